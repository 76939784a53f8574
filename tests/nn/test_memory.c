/* ctest: labels=noasan
 *
 * Memory of a training: nothing is taken inside a step, neither at our border nor from the C library; what is taken
 * before is what was predicted; and when it cannot be had, everything is given back.
 *
 * The C library's allocator is counted by standing in front of it, which sanitizers want to do themselves. */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/small_net.h"

enum { N_STEPS = 100 };

/* ------------------------------------------------------------------------------------------------ counting */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_ulong n_taken; /* calls to the C library that take memory, of all threads */

void *malloc(size_t bytes)
{
    atomic_fetch_add(&n_taken, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&n_taken, 1);
    return __libc_calloc(n, bytes);
}

void *realloc(void *block, size_t bytes)
{
    atomic_fetch_add(&n_taken, 1);
    return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&n_taken, 1);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **block_out, size_t alignment, size_t bytes)
{
    *block_out = memalign(alignment, bytes);
    return *block_out != NULL ? 0 : ENOMEM;
}

/* ------------------------------------------------------------------------------------------------ inside a step */

static void check_steps(const char *backend, esper_host host, esper_op_kind optimiser, const small_seed *seeds)
{
    small_desc desc = {.backend = backend,
                       .n_threads = 2,
                       .host = host,
                       .n_nets = 2,
                       .seeds = {seeds, NULL},
                       .network = {1, 2},
                       .optimiser = optimiser};
    static small_fleet fleet;
    esper_mem_stats before, after;
    unsigned long taken;

    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    esper_mem_stats_get(&before);
    taken = atomic_load(&n_taken);
    for (uint32_t step = 0; step < N_STEPS; step++)
        if (small_fleet_step(&fleet, step) != ESPER_OK)
            fail_msg("%s", esper_last_error());
    taken = atomic_load(&n_taken) - taken;
    esper_mem_stats_get(&after);
    if (after.n_allocs != before.n_allocs || taken != 0)
        fail_msg("%s on %s: %llu allocations at the border and %lu of the C library in %d steps",
                 esper_topology_name(host.topology), backend, (unsigned long long)(after.n_allocs - before.n_allocs),
                 taken, N_STEPS);
    small_fleet_close(&fleet);
}

static void test_steps_take_no_memory(void **state)
{
    static const small_seed in_cnn[] = {
        {"r0c0", "conv_heavy", SMALL_TRAINING}, {"r1c1", "bottleneck", SMALL_GATE}, {0}};
    static const small_seed in_transformer[] = {{"r0c0", "attention", SMALL_ADD}, {"r0c1", "mlp", SMALL_TRAINING}, {0}};

    (void)state;
    check_steps("cpu", small_cnn(), ESPER_OP_SGD, in_cnn);
    check_steps("cpu", small_transformer(0.1f), ESPER_OP_ADAMW, in_transformer);
    check_steps("ref", small_cnn(), ESPER_OP_ADAMW, in_cnn);
}

/* The counters count: one step on a plan opened between the readings is seen by both. */
static void test_counters_count(void **state)
{
    small_desc desc = {.backend = "cpu", .n_threads = 1, .host = small_cnn(), .n_nets = 1};
    static small_fleet fleet;
    esper_mem_stats before, after;
    unsigned long taken = atomic_load(&n_taken);

    (void)state;
    esper_mem_stats_get(&before);
    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    esper_mem_stats_get(&after);
    taken = atomic_load(&n_taken) - taken;
    assert_true(after.n_allocs > before.n_allocs + 10);
    if (taken < after.n_allocs - before.n_allocs)
        fail_msg("the C library saw %lu allocations, the border %llu", taken,
                 (unsigned long long)(after.n_allocs - before.n_allocs));
    small_fleet_close(&fleet);
}

/* ------------------------------------------------------------------------------------------------ predictions */

typedef struct trained {
    esper_pool    *pool;
    esper_backend *backend;
    esper_net      net;
    esper_slab     slab;
    esper_pass     pass;
    esper_plan    *plan;
    esper_optim   *optim;
} trained;

/* Opens slab, plan and optimiser of a host and returns the bytes they say they take. */
static uint64_t open_predicted(trained *t, const esper_slab_desc *slab_desc, int batch)
{
    const esper_slab *slabs[1] = {&t->slab};
    esper_plan_net net = {.net = &t->net, .slab = &t->slab, .pass = &t->pass};
    esper_plan_desc plan_desc = {t->backend, &net, 1, batch, true, NULL};
    esper_optim_desc optim_desc = {.backend = t->backend, .slabs = slabs, .n_slabs = 1, .kind = ESPER_OP_SGD};
    esper_plan_stats stats;

    assert_int_equal(esper_slab_init(&t->slab, t->backend, &t->net, slab_desc), ESPER_OK);
    assert_int_equal(esper_plan_open(&plan_desc, &t->plan), ESPER_OK);
    assert_int_equal(esper_optim_open(&optim_desc, &t->optim), ESPER_OK);
    stats = esper_plan_stats_of(t->plan);
    return esper_slab_bytes(&t->net, slab_desc) + stats.arena_bytes + stats.table_bytes + esper_optim_bytes(slabs, 1);
}

static void check_prediction(const char *name, esper_host host, int batch)
{
    esper_slab_desc slab_desc = {.n_moments = 1, .n_regions = 3, .region_params = {0, 5000, 123}};
    esper_mem_stats before, after;
    trained t = {0};
    uint64_t predicted;

    assert_int_equal(small_build(&t.net, &host, NULL), ESPER_OK);
    assert_int_equal(esper_pool_open(1, &t.pool), ESPER_OK);
    assert_int_equal(esper_backend_open("cpu", t.pool, &t.backend), ESPER_OK);
    esper_mem_reset_peak();
    esper_mem_stats_get(&before);
    predicted = open_predicted(&t, &slab_desc, batch);
    esper_mem_stats_get(&after);
    if (after.live_bytes - before.live_bytes != predicted)
        fail_msg("%s: %llu bytes are taken, %llu were predicted", name,
                 (unsigned long long)(after.live_bytes - before.live_bytes), (unsigned long long)predicted);
    if ((double)(after.peak_bytes - before.live_bytes) > 1.05 * (double)predicted)
        fail_msg("%s: the peak is %llu bytes, %llu were predicted", name,
                 (unsigned long long)(after.peak_bytes - before.live_bytes), (unsigned long long)predicted);
    esper_optim_close(t.optim);
    esper_plan_close(t.plan);
    esper_slab_fini(&t.slab);
    esper_backend_close(t.backend);
    esper_pool_close(t.pool);
    esper_net_fini(&t.net);
}

static void test_predictions(void **state)
{
    (void)state;
    check_prediction("small cnn", small_cnn(), 1);
    check_prediction("small transformer", small_transformer(0.1f), 3);
    check_prediction("B8", spec_cnn(3, 8, 3, 3), 32);
    check_prediction("B8D", spec_cnn(5, 8, 3, 5), 16);
}

/* ------------------------------------------------------------------------------------------------ failures */

/* Fails allocation 1, 2, 3, ... of opening a fleet until it succeeds; then everything is closed. */
static void check_failures(const char *backend, esper_host host, const small_seed *seeds)
{
    small_desc desc = {
        .backend = backend, .n_threads = 2, .host = host, .n_nets = 2, .seeds = {seeds, NULL}, .network = {1, 2}};
    static small_fleet fleet;
    esper_mem_stats before, after;
    esper_status status = ESPER_E_NOMEM;
    uint64_t nth;

    esper_mem_stats_get(&before);
    for (nth = 1; status != ESPER_OK && nth < 1000; nth++) {
        esper_mem_fail_at(nth);
        status = small_fleet_open(&fleet, &desc);
        esper_mem_fail_at(0);
        if (status == ESPER_OK)
            small_fleet_close(&fleet);
        else if (status != ESPER_E_NOMEM)
            fail_msg("%s, allocation %llu: status %d, \"%s\"", backend, (unsigned long long)nth, status,
                     esper_last_error());
        esper_mem_stats_get(&after);
        if (after.n_live != before.n_live || after.live_bytes != before.live_bytes)
            fail_msg("%s, allocation %llu: %llu blocks are left, %llu were there before", backend,
                     (unsigned long long)nth, (unsigned long long)after.n_live, (unsigned long long)before.n_live);
    }
    assert_int_equal(status, ESPER_OK);
    assert_true(nth > 30);
}

static void test_failing_allocations(void **state)
{
    static const small_seed in_cnn[] = {
        {"r0c0", "conv_heavy", SMALL_TRAINING}, {"r1c1", "bottleneck", SMALL_GATE}, {0}};
    static const small_seed in_transformer[] = {{"r0c0", "attention", SMALL_ADD}, {"r0c1", "mlp", SMALL_TRAINING}, {0}};

    (void)state;
    check_failures("cpu", small_cnn(), in_cnn);
    check_failures("ref", small_transformer(0.1f), in_transformer);
    check_failures("null", small_cnn(), NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_take_no_memory),
        cmocka_unit_test(test_counters_count),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
