/* ctest: cost=30 labels=tsan
 *
 * Short trainings end in the same weights, bit for bit, with any number of threads, alone or in a fleet, on every set
 * of kernels that this processor can run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/effort.h"
#include "support/small_net.h"

enum { N_FLEET = 5 };

static const uint32_t numbers[N_FLEET] = {11, 12, 13, 14, 15};

static const small_seed in_cnn_a[] = {{"r0c0", "conv_light", SMALL_TRAINING}, {"r1c1", "bottleneck", SMALL_GATE}, {0}};
static const small_seed in_cnn_b[] = {{"r0c0", "depthwise", SMALL_ADD}, {"r0c1", "attention", SMALL_MULTIPLY}, {0}};
static const small_seed in_cnn_c[] = {{"r0c0", "conv_light", SMALL_ADD_ISOLATED}, {"r1c0", "norm", SMALL_ADD}, {0}};
static const small_seed in_transformer_a[] = {{"r0c0", "mlp_small", SMALL_TRAINING}, {"r0c1", "lora", SMALL_ADD}, {0}};
static const small_seed in_transformer_b[] = {{"r0c0", "attention", SMALL_GATE}, {0}};
static const small_seed in_transformer_c[] = {{"r0c1", "norm", SMALL_MULTIPLY}, {0}};

/* Widths that no vector divides. */
static esper_host odd_cnn(void)
{
    esper_host host = small_cnn();

    host.cnn.channels = 5;
    host.cnn.height = 9;
    host.cnn.width = 7;
    return host;
}

/* From 64 to 128 channels: so many weights that each thread sums those of some channels over all samples. */
static esper_host wide_cnn(void)
{
    esper_host host = small_cnn();

    host.cnn.channels = 64;
    host.cnn.height = host.cnn.width = 5;
    return host;
}

typedef struct setting {
    const char       *name;
    int               n_steps;
    esper_host (*host)(void);
    esper_op_kind     optimiser;
    const small_seed *seeds[N_FLEET];
} setting;

static esper_host dropping_transformer(void)
{
    return small_transformer(0.1f);
}

static esper_host dropping_mlp(void)
{
    return small_mlp(0.1f);
}

static const small_seed in_mlp_a[] = {{"r0c0", "glu", SMALL_GATE}, {"r0c1", "mlp_tiny", SMALL_TRAINING}, {0}};
static const small_seed in_mlp_b[] = {{"r0c1", "norm", SMALL_MULTIPLY}, {0}};

enum { WITH_DROPOUT = 4 };

static const setting settings[] = {
    {"cnn", 20, small_cnn, ESPER_OP_SGD, {NULL}},
    {"odd cnn", 5, odd_cnn, ESPER_OP_ADAMW, {NULL}},
    {"wide cnn", 3, wide_cnn, ESPER_OP_SGD, {NULL}},
    {"grown cnns", 5, odd_cnn, ESPER_OP_SGD, {in_cnn_a, in_cnn_b, NULL, in_cnn_c, in_cnn_a}},
    {"transformer with dropout", 20, dropping_transformer, ESPER_OP_ADAMW, {NULL}},
    {"grown transformers",
     5,
     dropping_transformer,
     ESPER_OP_ADAMW,
     {in_transformer_a, in_transformer_b, NULL, in_transformer_c, in_transformer_b}},
    {"grown mlps", 5, dropping_mlp, ESPER_OP_ADAMW, {in_mlp_a, in_mlp_b, NULL, in_mlp_a, in_mlp_b}},
};

/* Under a sanitizer two, as the second computes with weights that have moved; but one where they are many. */
static uint32_t steps_of(const setting *s)
{
    return (uint32_t)effort(s->n_steps, s->n_steps < 5 ? (s->n_steps + 2) / 3 : 2);
}

/* Trains networks first .. first + n - 1 of a setting and writes their hashes. */
static void train(const char *backend, int n_threads, const setting *s, int first, int n, uint64_t *hashes_out)
{
    small_desc desc = {
        .backend = backend, .n_threads = n_threads, .host = s->host(), .n_nets = n, .optimiser = s->optimiser};
    static small_fleet fleet;

    for (int k = 0; k < n; k++) {
        desc.seeds[k] = s->seeds[first + k];
        desc.network[k] = numbers[first + k];
    }
    if (small_fleet_open(&fleet, &desc) != ESPER_OK)
        fail_msg("%s: %s", s->name, esper_last_error());
    for (uint32_t step = 0; step < steps_of(s); step++)
        assert_int_equal(small_fleet_step(&fleet, step), ESPER_OK);
    for (int k = 0; k < n; k++) {
        if (!isfinite(small_fleet_loss(&fleet, k)))
            fail_msg("%s: network %d has the loss %g", s->name, first + k, small_fleet_loss(&fleet, k));
        hashes_out[k] = small_fleet_hash(&fleet, k);
    }
    small_fleet_close(&fleet);
}

static void expect_same(const char *what, const setting *s, int k, uint64_t got, uint64_t expected)
{
    const char *kernels = getenv("ESPER_KERNELS");

    if (got != expected)
        fail_msg("%s (kernels %s), network %d, %s: weights %016llx, expected %016llx", s->name,
                 kernels != NULL ? kernels : "of choice", k, what, (unsigned long long)got,
                 (unsigned long long)expected);
}

/* Fleets of five, of two, and networks alone. */
static void check_threads(const char *backend, const setting *s, int n_threads, const uint64_t *expected)
{
    static const int sizes[] = {N_FLEET, 2, 1};
    uint64_t got[N_FLEET];
    char what[64];

    for (int i = 0; i < 3; i++) {
        int first = sizes[i] == N_FLEET ? 0 : n_threads; /* another network each time */

        snprintf(what, sizeof(what), "in a fleet of %d on %d threads", sizes[i], n_threads);
        train(backend, n_threads, s, first, sizes[i], got);
        for (int k = 0; k < sizes[i]; k++)
            expect_same(what, s, first + k, got[k], expected[first + k]);
    }
}

/* A fleet on one thread sets the mark; fleets of any size on any number of threads meet it. Under a sanitizer on two and no other
 * number: what it looks for is among threads, or is met by one of them as well. */
static void check_setting(const char *backend, const setting *s)
{
    uint64_t expected[N_FLEET];

    train(backend, 1, s, 0, N_FLEET, expected);
    for (int k = 1; k < N_FLEET; k++)
        assert_true(expected[k] != expected[0]);
    for (int n_threads = effort(1, 2); n_threads <= effort(3, 2); n_threads++)
        check_threads(backend, s, n_threads, expected);
}

/* Whether the processor can run the set; it then is the one that the cpu backend uses. */
static bool use_kernels(const char *name)
{
    esper_backend *backend;
    esper_pool *pool;
    esper_status status;

    setenv("ESPER_KERNELS", name, 1);
    assert_int_equal(esper_pool_open(1, &pool), ESPER_OK);
    status = esper_backend_open("cpu", pool, &backend);
    if (status == ESPER_OK)
        esper_backend_close(backend);
    esper_pool_close(pool);
    if (status != ESPER_OK)
        printf("kernels %s: skipped, this processor cannot run them\n", name);
    return status == ESPER_OK;
}

static void check_kernels(const char *kernels)
{
    if (!use_kernels(kernels)) {
        unsetenv("ESPER_KERNELS");
        skip();
    }
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        check_setting("cpu", &settings[i]);
    unsetenv("ESPER_KERNELS");
}

static void test_portable(void **state)
{
    (void)state;
    check_kernels("portable");
}

static void test_avx2(void **state)
{
    (void)state;
    check_kernels("avx2");
}

static void test_avx512(void **state)
{
    (void)state;
    check_kernels("avx512");
}

static void test_ref(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        uint64_t first[N_FLEET], again[N_FLEET], alone[1];

        train("ref", 1, &settings[i], 0, N_FLEET, first);
        train("ref", 1, &settings[i], 0, N_FLEET, again);
        train("ref", 1, &settings[i], 2, 1, alone);
        for (int k = 0; k < N_FLEET; k++)
            expect_same("again on ref", &settings[i], k, again[k], first[k]);
        expect_same("alone on ref", &settings[i], 2, alone[0], first[2]);
    }
}

static esper_host calm_transformer(void)
{
    return small_transformer(0.0f);
}

/* The weights move, and what is drawn matters: no test above compares networks that stand still. */
static void test_training_moves_weights(void **state)
{
    setting born = settings[WITH_DROPOUT], calm = settings[WITH_DROPOUT];
    uint64_t at_birth, with_dropout, without;

    (void)state;
    born.n_steps = 0;
    calm.host = calm_transformer;
    train("cpu", 1, &born, 0, 1, &at_birth);
    train("cpu", 1, &settings[WITH_DROPOUT], 0, 1, &with_dropout);
    train("cpu", 1, &calm, 0, 1, &without);
    assert_true(with_dropout != at_birth);
    assert_true(with_dropout != without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_portable),
        cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),
        cmocka_unit_test(test_training_moves_weights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
