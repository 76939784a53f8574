/* The list of backends, opening them, and what each promises: memory, copies, streams, names, an operation for everything. */
/* ctest: labels=tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/small_net.h"
#include "tensor/cpu/block.h"
#include "tensor/kernel.h"

static int open_pool(void **state)
{
    esper_pool *pool;

    unsetenv("ESPER_KERNELS");
    if (esper_pool_open(2, &pool) != ESPER_OK)
        return -1;
    *state = pool;
    return 0;
}

static int close_pool(void **state)
{
    esper_pool_close(*state);
    return 0;
}

/* The next backend of the list whose memory is the host's, from number *b on; NULL: there is no other. tensor/test_cuda_queue.c has the
 * same tests of the one that is not. */
static const char *next_of_host(int *b)
{
    const esper_backend_ops *ops;

    while ((ops = esper_backend_list()[*b]) != NULL) {
        ++*b;
        if (ops->device == NULL)
            return ops->name;
    }
    return NULL;
}

static void test_list(void **state)
{
    static const char *const expected[] = {"cpu", "cuda", "ref", "null"};
    const esper_backend_ops *const *list = esper_backend_list();

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_non_null(list[i]);
        assert_string_equal(list[i]->name, expected[i]);
        assert_int_equal(list[i]->abi, ESPER_BACKEND_ABI);
        assert_true(strlen(list[i]->about) > 0);
    }
    assert_null(list[4]);
}

static void test_names(void **state)
{
    static const char *const names[][2] = {{"auto", "cpu"}, {"cpu", "cpu"}, {"ref", "ref"}, {"null", "null"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        esper_backend *backend;

        assert_int_equal(esper_backend_open(names[i][0], *state, &backend), ESPER_OK);
        assert_string_equal(esper_backend_name(backend), names[i][1]);
        if (strncmp(esper_backend_identity(backend), names[i][1], strlen(names[i][1])) != 0)
            fail_msg("%s is identified as %s", names[i][0], esper_backend_identity(backend));
        esper_backend_close(backend);
    }
    esper_backend_close(NULL);
}

static void check_refused(const char *name, esper_pool *pool, esper_status status, const char *words)
{
    esper_backend *backend = NULL;
    esper_status got = esper_backend_open(name, pool, &backend);

    if (got != status || backend != NULL || strstr(esper_last_error(), words) == NULL)
        fail_msg("%s: status %d, message \"%s\", expected %d with \"%s\"", name, got, esper_last_error(), status,
                 words);
}

static void test_refusals(void **state)
{
    check_refused("gpu", *state, ESPER_E_ARG, "'gpu'");
    check_refused("", *state, ESPER_E_ARG, "''");
    check_refused("cpu", NULL, ESPER_E_ARG, "thread pool");
    setenv("ESPER_KERNELS", "avx1024", 1);
    check_refused("cpu", *state, ESPER_E_CONFIG, "ESPER_KERNELS");
    unsetenv("ESPER_KERNELS");
}

/* The sets that are offered instead of a wrong one run here, and no others are. */
static void test_offered_kernels_run(void **state)
{
    static const char *const sets[] = {"portable", "avx2", "avx512"};
    char names[64];

    (void)state;
    esper_kernels_names(names, sizeof(names));
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        setenv("ESPER_KERNELS", sets[i], 1);
        if ((esper_kernels_choose() != NULL) != (strstr(names, sets[i]) != NULL))
            fail_msg("\"%s\" is offered, and %s %s", names, sets[i],
                     esper_kernels_choose() != NULL ? "runs" : "does not run");
    }
    unsetenv("ESPER_KERNELS");
}

static void test_kernel_set_is_part_of_the_identity(void **state)
{
    esper_backend *backend;

    setenv("ESPER_KERNELS", "portable", 1);
    assert_int_equal(esper_backend_open("cpu", *state, &backend), ESPER_OK);
    unsetenv("ESPER_KERNELS");
    assert_memory_equal(esper_backend_identity(backend), "cpu/portable/t", strlen("cpu/portable/t"));
    esper_backend_close(backend);
}

static void test_all_operations_are_supported(void **state)
{
    const char *name;

    for (int b = 0; (name = next_of_host(&b)) != NULL;) {
        esper_backend *backend;

        assert_int_equal(esper_backend_open(name, *state, &backend), ESPER_OK);
        for (int kind = 0; kind < ESPER_N_OPS; kind++)
            if (kind != ESPER_OP_ISOLATE && !esper_backend_supports(backend, (esper_op_kind)kind))
                fail_msg("%s has no %s", esper_backend_name(backend), esper_op_info_of((esper_op_kind)kind)->name);
        esper_backend_close(backend);
    }
}

static void test_memory(void **state)
{
    const char *name;

    for (int b = 0; (name = next_of_host(&b)) != NULL;) {
        esper_mem_stats before, after;
        esper_backend *backend;
        void *memory = NULL, *none = NULL;

        esper_mem_stats_get(&before);
        assert_int_equal(esper_backend_open(name, *state, &backend), ESPER_OK);
        assert_int_equal(esper_backend_alloc(backend, 1000, &memory), ESPER_OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(((char *)memory)[i], 0);
        esper_mem_fail_at(1);
        assert_int_equal(esper_backend_alloc(backend, 1000, &none), ESPER_E_NOMEM);
        assert_null(none);
        esper_backend_release(backend, memory);
        esper_backend_close(backend);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
    }
}

static void test_opening_fails_cleanly(void **state)
{
    const char *name;

    for (int b = 0; (name = next_of_host(&b)) != NULL;) {
        esper_mem_stats before, after;
        esper_backend *backend = NULL;
        esper_status status = ESPER_E_NOMEM;

        esper_mem_stats_get(&before);
        for (uint64_t nth = 1; status == ESPER_E_NOMEM && nth < 20; nth++) {
            esper_mem_fail_at(nth);
            status = esper_backend_open(name, *state, &backend);
            esper_mem_fail_at(0);
            esper_mem_stats_get(&after);
            if (status == ESPER_OK)
                break;
            assert_null(backend);
            assert_int_equal(after.n_live, before.n_live);
        }
        assert_int_equal(status, ESPER_OK);
        esper_backend_close(backend);
    }
}

/* What goes in by copy and fill comes out again, on every kind of stream, and an empty range is no address at all. */
static void check_copies(esper_backend *backend, esper_backend_stream *stream)
{
    float in[6] = {1, 2, 3, 4, 5, 6}, out[12], *memory;
    void *taken;

    assert_int_equal(esper_backend_alloc(backend, sizeof(out), &taken), ESPER_OK);
    memory = taken;
    assert_int_equal(esper_backend_copy_in(backend, stream, memory + 2, in, sizeof(in)), ESPER_OK);
    memset(in, 0, sizeof(in)); /* it is the caller's again */
    assert_int_equal(esper_backend_copy(backend, stream, memory + 8, memory + 3, 3 * sizeof(float)), ESPER_OK);
    assert_int_equal(esper_backend_fill(backend, stream, memory + 3, -7.5f, 2), ESPER_OK);
    assert_int_equal(esper_backend_copy_out(backend, stream, out, memory, sizeof(out)), ESPER_OK);
    assert_int_equal(esper_backend_copy_in(backend, stream, NULL, NULL, 0), ESPER_OK);
    assert_int_equal(esper_backend_copy_out(backend, stream, NULL, NULL, 0), ESPER_OK);
    assert_int_equal(esper_backend_copy(backend, stream, NULL, NULL, 0), ESPER_OK);
    assert_int_equal(esper_backend_fill(backend, stream, NULL, 1.0f, 0), ESPER_OK);
    assert_int_equal(esper_backend_wait(backend, stream), ESPER_OK);
    for (int i = 0; i < 12; i++) {
        static const float expected[12] = {0, 0, 1, -7.5f, -7.5f, 4, 5, 6, 2, 3, 4, 0};

        if (out[i] != expected[i])
            fail_msg("%s: value %d is %g, expected %g", esper_backend_name(backend), i, (double)out[i],
                     (double)expected[i]);
    }
    esper_backend_release(backend, memory);
}

static void check_copies_of_item(void *context, int item, esper_backend_stream *stream)
{
    (void)item;
    check_copies(context, stream);
}

static void test_copies(void **state)
{
    const char *name;

    for (int b = 0; (name = next_of_host(&b)) != NULL;) {
        esper_backend *backend;

        assert_int_equal(esper_backend_open(name, *state, &backend), ESPER_OK);
        check_copies(backend, NULL);
        esper_backend_each(backend, 1, check_copies_of_item, backend);
        assert_int_equal(esper_backend_waits(backend), 2);
        esper_backend_close(backend);
    }
}

/* Each network an item of the backend's, with a stream of its own. */
typedef struct item_run {
    small_fleet *fleet;
    esper_status status[SMALL_MAX_NETS];
} item_run;

static void step_one(void *context, int k, esper_backend_stream *stream)
{
    item_run *run = context;

    run->status[k] = esper_plan_gradients_one(run->fleet->plan, stream, k);
    if (run->status[k] == ESPER_OK)
        run->status[k] = esper_optim_step_one(run->fleet->optim, stream, k);
    if (run->status[k] == ESPER_OK)
        run->status[k] = esper_backend_wait(run->fleet->backend, stream);
}

static void check_item_steps(const char *backend)
{
    static const small_seed seeds[] = {{"r0c0", "conv_light", SMALL_ADD}, {NULL, NULL, SMALL_ADD}};
    small_desc desc = {.backend = backend,
                       .n_threads = 3,
                       .host = small_cnn(),
                       .n_nets = 4,
                       .seeds = {NULL, seeds, NULL, seeds},
                       .network = {1, 2, 3, 4}};
    static small_fleet together, apart;
    item_run run = {.fleet = &apart};

    assert_int_equal(small_fleet_open(&together, &desc), ESPER_OK);
    assert_int_equal(small_fleet_open(&apart, &desc), ESPER_OK);
    for (uint32_t step = 0; step < 3; step++) {
        assert_int_equal(small_fleet_step(&together, step), ESPER_OK);
        small_fleet_fill(&apart, step);
        esper_backend_each(apart.backend, desc.n_nets, step_one, &run);
        for (int k = 0; k < desc.n_nets; k++) {
            assert_int_equal(run.status[k], ESPER_OK);
            if (small_fleet_hash(&apart, k) != small_fleet_hash(&together, k))
                fail_msg("%s: network %d differs at step %u from the one that ran with the others", backend, k, step);
        }
    }
    small_fleet_close(&together);
    small_fleet_close(&apart);
}

static void test_streams_of_items_give_the_same_bits(void **state)
{
    (void)state;
    check_item_steps("cpu");
    check_item_steps("ref");
}

/* Where each operation computes something on ref, it computes nothing on null: a pass leaves the memory as it was. */
static void test_null_computes_nothing(void **state)
{
    small_desc desc = {.backend = "null", .n_threads = 1, .host = small_cnn(), .n_nets = 1};
    static small_fleet fleet;
    const float *logits;
    uint64_t before;

    (void)state;
    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    before = small_fleet_hash(&fleet, 0);
    assert_int_equal(small_fleet_step(&fleet, 0), ESPER_OK);
    logits = esper_plan_data(fleet.plan, 0, fleet.members[0].net.output);
    for (int i = 0; i < 5 * SMALL_SAMPLES; i++)
        assert_true(logits[i] == 0.0f);
    assert_true(small_fleet_hash(&fleet, 0) == before);
    small_fleet_close(&fleet);
}

/* A fleet whose networks have batches of different sizes: a lane's samples beyond the last block of its batch are not
 * touched. */
static void test_batches_of_different_sizes(void **state)
{
    small_desc desc = {.backend = "cpu", .n_threads = 2, .host = small_cnn(), .n_nets = 2, .network = {1, 2}};
    static small_fleet fleet;
    float *loss;

    (void)state;
    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    fleet.members[1].pass.n_samples = 2;
    loss = esper_plan_data(fleet.plan, 1, fleet.members[1].net.loss);
    for (int i = 0; i < SMALL_SAMPLES; i++)
        loss[i] = -1.0f;
    assert_int_equal(small_fleet_step(&fleet, 0), ESPER_OK);
    for (int i = 0; i < SMALL_SAMPLES; i++)
        if (i < 2 ? loss[i] <= 0.0f : i >= ESPER_BLOCK_SAMPLES && loss[i] != -1.0f)
            fail_msg("sample %d of a batch of 2 has the loss %g", i, (double)loss[i]);
    small_fleet_close(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_offered_kernels_run),
        cmocka_unit_test(test_kernel_set_is_part_of_the_identity),
        cmocka_unit_test(test_all_operations_are_supported),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_opening_fails_cleanly),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_streams_of_items_give_the_same_bits),
        cmocka_unit_test(test_null_computes_nothing),
        cmocka_unit_test(test_batches_of_different_sizes),
    };

    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
