/* ctest: labels=tsan
 * Schedules are kept: a network whose program was planned before is bound to its memory and computes the same. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/effort.h"
#include "support/memory.h"
#include "support/small_net.h"

static const small_seed seeds_a[] = {{"r0c0", "norm", SMALL_TRAINING}, {0}};
static const small_seed seeds_b[] = {{"r0c0", "norm", SMALL_ADD}, {0}};
static const small_seed seeds_c[] = {{"r1c0", "conv_light", SMALL_GATE}, {0}};

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

static void open_fleet(small_fleet *fleet, const char *backend, const small_seed *a, const small_seed *b)
{
    small_desc desc = {
        .backend = backend, .n_threads = 2, .host = small_cnn(), .n_nets = 2, .seeds = {a, b}, .network = {3, 4}};

    check_good(small_fleet_open(fleet, &desc));
}

/* Plans the fleet anew, through a cache. */
static void plan_through(small_fleet *fleet, esper_plan_cache *cache)
{
    esper_plan_net nets[SMALL_MAX_NETS];
    esper_plan_desc desc = {.backend = fleet->backend,
                            .nets = nets,
                            .n_nets = fleet->n_nets,
                            .max_samples = SMALL_SAMPLES,
                            .training = true,
                            .cache = cache};

    for (int k = 0; k < fleet->n_nets; k++)
        nets[k] = (esper_plan_net){
            .net = &fleet->members[k].net, .slab = &fleet->members[k].slab, .pass = &fleet->members[k].pass};
    check_good(esper_plan_reopen(&desc, &fleet->plan));
}

static void check_stats(esper_plan_cache *cache, int64_t n_made, int n_kept)
{
    esper_plan_cache_stats stats = esper_plan_cache_stats_of(cache);

    if (stats.n_made != n_made || stats.n_kept != n_kept)
        fail_msg("%lld made and %d kept, expected %lld and %d", (long long)stats.n_made, stats.n_kept,
                 (long long)n_made, n_kept);
}

/* ------------------------------------------------------------------------------------------------ the same bits */

/* Networks that share a schedule learn as networks that do not: each with its own slab and arena. */
static void check_bits(const char *backend)
{
    static small_fleet kept, plain;
    esper_plan_cache *cache;

    open_fleet(&kept, backend, NULL, NULL);
    open_fleet(&plain, backend, NULL, NULL);
    check_good(esper_plan_cache_open(kept.backend, 8, &cache));
    plan_through(&kept, cache);
    check_stats(cache, 1, 1); /* two networks, one program */
    plan_through(&kept, cache);
    check_stats(cache, 1, 1);
    for (uint32_t step = 0; step < 3; step++) {
        check_good(small_fleet_step(&kept, step));
        check_good(small_fleet_step(&plain, step));
    }
    for (int k = 0; k < 2; k++)
        assert_true(small_fleet_hash(&kept, k) == small_fleet_hash(&plain, k));
    assert_true(small_fleet_hash(&kept, 0) != small_fleet_hash(&kept, 1));
    esper_plan_cache_close(cache); /* before the plan */
    check_good(small_fleet_step(&kept, 3));
    check_good(small_fleet_step(&plain, 3));
    assert_true(small_fleet_hash(&kept, 1) == small_fleet_hash(&plain, 1));
    small_fleet_close(&kept);
    small_fleet_close(&plain);
}

static void test_same_bits(void **state)
{
    (void)state;
    check_bits("cpu");
    check_bits("ref");
}

/* When one network grows, the other's schedule is the one it had. */
static void test_growing_plans_one(void **state)
{
    static small_fleet fleet, grown;
    esper_plan_cache *cache;

    (void)state;
    open_fleet(&fleet, "null", seeds_a, seeds_c);
    check_good(esper_plan_cache_open(fleet.backend, 8, &cache));
    plan_through(&fleet, cache);
    check_stats(cache, 2, 2);
    open_fleet(&grown, "null", seeds_b, seeds_c);
    for (int k = 0; k < 2; k++) { /* the first has gone from one stage to the next */
        esper_net swap = fleet.members[k].net;

        fleet.members[k].net = grown.members[k].net;
        grown.members[k].net = swap;
    }
    plan_through(&fleet, cache);
    check_stats(cache, 3, 3);
    small_fleet_close(&grown);
    small_fleet_close(&fleet);
    esper_plan_cache_close(cache);
}

/* ------------------------------------------------------------------------------------------------ keys */

static void open_one(small_run *run, esper_plan_cache *cache, int max_samples, bool training, uint64_t frozen)
{
    esper_plan_net net = {.net = &run->net, .slab = &run->slab, .pass = &run->pass, .frozen = frozen};
    esper_plan_desc desc = {.backend = run->backend,
                            .nets = &net,
                            .n_nets = 1,
                            .max_samples = max_samples,
                            .training = training,
                            .cache = cache};

    check_good(esper_plan_reopen(&desc, &run->plan));
}

/* Whatever a schedule depends on tells it from others. */
static void test_keys(void **state)
{
    esper_host host = small_cnn();
    esper_plan_cache *cache;
    small_run run = {0};
    esper_tensor *made;
    esper_op *first;

    (void)state;
    check_good(small_build(&run.net, &host, seeds_a));
    small_run_open(&run, "ref", 4, true);
    check_good(esper_plan_cache_open(run.backend, 32, &cache));
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 1, 1);
    open_one(&run, cache, 5, true, 0);
    check_stats(cache, 2, 2);
    open_one(&run, cache, 4, false, 0);
    check_stats(cache, 3, 3);
    open_one(&run, cache, 4, true, 2);
    check_stats(cache, 4, 4);
    open_one(&run, cache, 4, true, 0);
    open_one(&run, cache, 4, true, 2);
    check_stats(cache, 4, 4);
    made = &run.net.tensors[run.net.ops[0].out[0]];
    made->keep = !made->keep;
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 5, 5);
    made->keep = !made->keep;
    first = &run.net.ops[0];
    first->place++;
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 6, 6);
    first->place--;
    first->region++;
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 7, 7);
    first->region--;
    strcpy(made->name, "another"); /* a name is no part of it */
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 7, 7);
    small_run_close(&run);
    esper_plan_cache_close(cache);
}

/* The same program, built twice, is the same to the last byte of its key. */
static void test_built_twice(void **state)
{
    esper_host hosts[2] = {small_cnn(), small_transformer(0.1f)};

    (void)state;
    for (int h = 0; h < 2; h++) {
        static small_fleet fleet;
        small_desc desc = {
            .backend = "cpu", .n_threads = 1, .host = hosts[h], .n_nets = SMALL_MAX_NETS, .network = {0, 1, 2, 3, 4}};
        esper_plan_cache *cache;

        check_good(small_fleet_open(&fleet, &desc));
        check_good(esper_plan_cache_open(fleet.backend, 8, &cache));
        plan_through(&fleet, cache);
        check_stats(cache, 1, 1);
        small_fleet_close(&fleet);
        esper_plan_cache_close(cache);
    }
}

/* ------------------------------------------------------------------------------------------------ bounds */

/* The one that was used the longest time ago goes; a plan that has it goes on. */
static void test_bounded(void **state)
{
    esper_host host = small_cnn();
    esper_plan_cache *cache;
    small_run run = {0};

    (void)state;
    check_good(small_build(&run.net, &host, NULL));
    small_run_open(&run, "null", 4, true);
    check_good(esper_plan_cache_open(run.backend, 2, &cache));
    assert_int_equal(esper_plan_cache_open(run.backend, 0, &cache), ESPER_E_ARG);
    open_one(&run, cache, 2, true, 0);
    open_one(&run, cache, 3, true, 0);
    open_one(&run, cache, 2, true, 0); /* 3 is now the oldest */
    check_stats(cache, 2, 2);
    open_one(&run, cache, 4, true, 0);
    check_stats(cache, 3, 2);
    open_one(&run, cache, 2, true, 0);
    check_stats(cache, 3, 2);
    open_one(&run, cache, 3, true, 0);
    check_stats(cache, 4, 2);
    open_one(&run, cache, 5, true, 0);
    open_one(&run, cache, 6, true, 0);
    run.pass.n_samples = 6;
    check_good(esper_plan_gradients(run.plan));
    small_run_close(&run);
    esper_plan_cache_close(cache);
    esper_plan_cache_close(NULL);
}

static void test_allocation_failures(void **state)
{
    esper_host host = small_cnn();
    small_run run = {0};
    esper_plan_net net = {.net = &run.net, .slab = &run.slab, .pass = &run.pass};
    esper_plan_desc desc = {.nets = &net, .n_nets = 1, .max_samples = 4, .training = true};
    esper_status status = ESPER_E_NOMEM;
    esper_mem_stats before, after;
    uint64_t nth;

    (void)state;
    check_good(small_build(&run.net, &host, seeds_a));
    small_run_open(&run, "cpu", 4, true);
    desc.backend = run.backend;
    for (nth = 1; nth < 200 && status != ESPER_OK; nth++) {
        esper_plan_cache *cache = NULL;
        esper_plan *plan = NULL;

        esper_mem_stats_get(&before);
        esper_mem_fail_at(nth);
        status = esper_plan_cache_open(run.backend, 2, &cache);
        desc.cache = cache;
        if (status == ESPER_OK)
            status = esper_plan_open(&desc, &plan);
        esper_mem_fail_at(0);
        assert_true(status == ESPER_OK || status == ESPER_E_NOMEM);
        if (status == ESPER_OK)
            check_stats(cache, 1, 1);
        esper_plan_close(plan);
        esper_plan_cache_close(cache);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(after.live_bytes, before.live_bytes);
    }
    assert_int_equal(status, ESPER_OK);
    assert_true(nth > 15);
    small_run_close(&run);
}

/* What is said to be taken is taken. */
static void test_bytes(void **state)
{
    esper_host host = small_cnn();
    esper_mem_stats before, after;
    esper_plan_cache *cache;
    small_run run = {0};

    (void)state;
    check_good(small_build(&run.net, &host, seeds_a));
    small_run_open(&run, "cpu", 4, true);
    esper_plan_close(run.plan);
    run.plan = NULL;
    esper_mem_stats_get(&before);
    check_good(esper_plan_cache_open(run.backend, 2, &cache));
    open_one(&run, cache, 4, true, 0);
    esper_mem_stats_get(&after);
    assert_int_equal(after.live_bytes - before.live_bytes, esper_plan_cache_stats_of(cache).bytes +
                                                               esper_plan_stats_of(run.plan).table_bytes +
                                                               esper_plan_stats_of(run.plan).arena_bytes);
    small_run_close(&run);
    esper_plan_cache_close(cache);
}

/* ------------------------------------------------------------------------------------------------ threads */

enum { N_THREADS = 4, N_PROGRAMS = 3 };

typedef struct planner {
    esper_plan_cache *cache;
    esper_backend    *backend;
    int               index;
    uint64_t          hash[N_PROGRAMS]; /* of the gradients each program gives, with weights and data of its own */
    bool              failed;
    pthread_t         thread;
} planner;

static uint64_t mix(uint64_t hash, const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Plans a program on the shared backend and runs it once; assertions are the main thread's. */
static bool plan_and_run(planner *p, int program)
{
    static const small_seed *const grown[N_PROGRAMS] = {NULL, seeds_a, seeds_c};
    esper_host host = small_cnn();
    esper_net net;
    esper_slab slab;
    uint32_t ids[4] = {0, 1, 2, 3};
    esper_pass pass = {.n_samples = 4, .training = true, .loss_scale = 0.25f, .sample_id = ids};
    esper_plan_net one = {.net = &net, .slab = &slab, .pass = &pass};
    esper_plan_desc desc = {
        .backend = p->backend, .nets = &one, .n_nets = 1, .max_samples = 4, .training = true, .cache = p->cache};
    esper_plan *plan = NULL;
    bool good = small_build(&net, &host, grown[program]) == ESPER_OK &&
                esper_slab_init(&slab, p->backend, &net, &(esper_slab_desc){.n_moments = 1}) == ESPER_OK &&
                esper_plan_open(&desc, &plan) == ESPER_OK;

    if (!good)
        return false;
    for (int64_t i = 0; i < esper_slab_count(&slab, ESPER_FAMILY_PARAM); i++)
        ((float *)slab.family[ESPER_FAMILY_PARAM])[i] = (float)(i % 13 - 6) * 0.05f;
    for (int64_t i = 0; i < 4 * net.tensors[net.input].count; i++)
        ((float *)esper_plan_data(plan, 0, net.input))[i] = (float)(i % 7 - 3) * 0.3f;
    good = esper_plan_gradients_one(plan, NULL, 0) == ESPER_OK;
    p->hash[program] =
        mix(UINT64_C(0xcbf29ce484222325), slab.family[ESPER_FAMILY_GRAD], esper_slab_count(&slab, ESPER_FAMILY_GRAD));
    esper_plan_close(plan);
    esper_slab_fini(&slab);
    esper_net_fini(&net);
    return good;
}

static void *run_planner(void *context)
{
    planner *p = context;

    for (int i = 0; i < effort(60, 12) && !p->failed; i++)
        p->failed = !plan_and_run(p, (i + p->index) % N_PROGRAMS);
    return NULL;
}

/* Threads plan at the same time through a cache that has room for less than they ask for. */
static void test_threads(void **state)
{
    planner planners[N_THREADS];
    esper_plan_cache *cache;
    esper_backend *backend;

    (void)state;
    check_good(esper_backend_open("ref", NULL, &backend));
    check_good(esper_plan_cache_open(backend, N_PROGRAMS - 1, &cache));
    for (int i = 0; i < N_THREADS; i++) {
        planners[i] = (planner){.cache = cache, .backend = backend, .index = i};
        assert_int_equal(pthread_create(&planners[i].thread, NULL, run_planner, &planners[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(planners[i].thread, NULL);
    for (int i = 0; i < N_THREADS; i++) {
        assert_false(planners[i].failed);
        for (int program = 0; program < N_PROGRAMS; program++)
            assert_true(planners[i].hash[program] == planners[0].hash[program]);
    }
    assert_true(planners[0].hash[0] != planners[0].hash[1] && planners[0].hash[1] != planners[0].hash[2]);
    assert_int_equal(esper_plan_cache_stats_of(cache).n_kept, N_PROGRAMS - 1);
    esper_plan_cache_close(cache);
    esper_backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_growing_plans_one),
        cmocka_unit_test(test_keys),      cmocka_unit_test(test_built_twice),
        cmocka_unit_test(test_bounded),   cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, memory_is_given_back);
}
