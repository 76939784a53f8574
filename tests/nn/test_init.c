/* Weights at birth: distributions, and on what they depend (seed, network, name) and on what not (everything else). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/init.h"
#include "support/memory.h"
#include "support/small_net.h"

enum { MANY = 40000, PIECE = 1 << 20 };

typedef struct born {
    esper_net  net;
    esper_slab slab;
} born;

static void born_close(born *b)
{
    esper_slab_fini(&b->slab);
    esper_net_fini(&b->net);
}

/* Takes over b->net, which the caller has built. */
static void born_open(born *b, esper_backend *backend, uint64_t seed, uint32_t network)
{
    if (esper_net_status(&b->net) != ESPER_OK)
        fail_msg("net: %s", esper_last_error());
    assert_int_equal(esper_slab_init(&b->slab, backend, &b->net, NULL), ESPER_OK);
    esper_init_net(&b->net, &b->slab, seed, network, -1);
}

static float *values_of(const born *b, const char *name)
{
    int t = esper_net_find(&b->net, name);

    if (t == ESPER_NO_TENSOR)
        fail_msg("no %s", name);
    return esper_slab_at(&b->slab,
                         b->net.tensors[t].role == ESPER_ROLE_BUFFER ? ESPER_FAMILY_BUFFER : ESPER_FAMILY_PARAM,
                         &b->net.tensors[t]);
}

static void one_param(born *b, const char *name, int count, esper_init init)
{
    esper_net_init(&b->net);
    esper_net_param(&b->net, name, 1, &count, init);
}

/* ------------------------------------------------------------------------------------------------ distributions */

typedef struct moments {
    double mean, variance, least, largest;
} moments;

static moments moments_of(const float *values, int n)
{
    moments m = {.least = INFINITY, .largest = -INFINITY};

    for (int i = 0; i < n; i++) {
        m.mean += (double)values[i] / n;
        m.least = fmin(m.least, (double)values[i]);
        m.largest = fmax(m.largest, (double)values[i]);
    }
    for (int i = 0; i < n; i++)
        m.variance += ((double)values[i] - m.mean) * ((double)values[i] - m.mean) / n;
    return m;
}

static void check_near(const char *what, double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s is %g, expected %g within %g", what, got, expected, tolerance);
}

/* U(-b,b): mean 0, variance b^2/3; five standard errors. */
static void test_uniform(void **state)
{
    double b = 0.25;
    moments m;
    born w;

    one_param(&w, "w", MANY, (esper_init){ESPER_INIT_UNIFORM, (float)b});
    born_open(&w, *state, 1, 0);
    m = moments_of(values_of(&w, "w"), MANY);
    check_near("mean", m.mean, 0.0, 5.0 * b / sqrt(3.0 * MANY));
    check_near("variance", m.variance, b * b / 3.0, 5.0 * b * b * sqrt(4.0 / 45.0 / MANY));
    check_near("least", m.least, -b, b * 1e-3);
    check_near("largest", m.largest, b, b * 1e-3);
    assert_true(m.least >= -b && m.largest <= b);
    born_close(&w);
}

/* N(0,s): mean 0, variance s^2, one in 370 beyond three deviations. */
static void test_normal(void **state)
{
    double s = 0.02;
    const float *values;
    int beyond = 0;
    moments m;
    born w;

    one_param(&w, "w", MANY, (esper_init){ESPER_INIT_NORMAL, (float)s});
    born_open(&w, *state, 1, 0);
    values = values_of(&w, "w");
    m = moments_of(values, MANY);
    for (int i = 0; i < MANY; i++)
        beyond += fabs((double)values[i]) > 3.0 * s;
    check_near("mean", m.mean, 0.0, 5.0 * s / sqrt((double)MANY));
    check_near("variance", m.variance, s * s, 5.0 * s * s * sqrt(2.0 / MANY));
    check_near("share beyond three deviations", (double)beyond / MANY, 0.0027, 5.0 * sqrt(0.0027 / MANY));
    check_near("largest", m.largest / s, 4.0, 1.5);
    born_close(&w);
}

static void check_all(const born *b, const char *name, float expected)
{
    int t = esper_net_find(&b->net, name);
    const float *values = values_of(b, name);

    for (int64_t i = 0; i < b->net.tensors[t].count; i++)
        if (values[i] != expected)
            fail_msg("%s: element %lld is %g, expected %g", name, (long long)i, (double)values[i], (double)expected);
}

/* Bound of the layer's U(-b,b): nothing beyond it, something near it. */
static void check_bound(const born *b, const char *name, double bound)
{
    int n = (int)b->net.tensors[esper_net_find(&b->net, name)].count;
    moments m = moments_of(values_of(b, name), n);
    double largest = fmax(-m.least, m.largest);

    if (largest > bound * (1 + 1e-6) || largest < bound * (1.0 - 8.0 / n))
        fail_msg("%s reaches %g, expected close to %g", name, largest, bound);
}

static void test_layers_of_a_cnn(void **state)
{
    esper_host host = spec_cnn(3, 8, 3, 3);
    born b;

    assert_int_equal(small_build(&b.net, &host, NULL), ESPER_OK);
    born_open(&b, *state, 4, 0);
    check_bound(&b, "blocks.0.conv.weight", 1.0 / sqrt(27.0));
    check_bound(&b, "blocks.2.conv.weight", 1.0 / sqrt(144.0));
    check_bound(&b, "classifier.weight", 1.0 / sqrt(32.0));
    check_bound(&b, "classifier.bias", 1.0 / sqrt(32.0));
    check_all(&b, "blocks.1.bn.weight", 1.0f);
    check_all(&b, "blocks.1.bn.bias", 0.0f);
    check_all(&b, "blocks.1.bn.running_mean", 0.0f);
    check_all(&b, "blocks.1.bn.running_var", 1.0f);
    born_close(&b);
}

static void test_layers_of_a_transformer(void **state)
{
    esper_host host = small_transformer(0.0f);
    moments m;
    born b;

    host.transformer.vocab = 2000;
    assert_int_equal(small_build(&b.net, &host, NULL), ESPER_OK);
    born_open(&b, *state, 4, 0);
    m = moments_of(values_of(&b, "tok_emb.weight"), 2000 * 16);
    check_near("deviation of the embedding", sqrt(m.variance), 0.02, 0.0005);
    check_bound(&b, "layers.0.attn.c_attn.weight", 0.25);
    check_bound(&b, "layers.1.mlp.c_proj.weight", 0.125);
    check_all(&b, "layers.0.ln1.weight", 1.0f);
    check_all(&b, "ln_f.bias", 0.0f);
    born_close(&b);
}

/* ------------------------------------------------------------------------------------------------ dependence */

/* The host's parameters are born the same with and without seeds beside them. */
static void test_birth_does_not_depend_on_others(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "conv_light", SMALL_TRAINING}, {"r0c1", "norm", SMALL_ADD}, {0}};
    esper_host host = small_cnn();
    int n_compared = 0;
    born plain, grown;

    assert_int_equal(small_build(&plain.net, &host, NULL), ESPER_OK);
    assert_int_equal(small_build(&grown.net, &host, seeds), ESPER_OK);
    born_open(&plain, *state, 4, 7);
    born_open(&grown, *state, 4, 7);
    for (int t = 0; t < plain.net.n_tensors; t++) {
        const esper_tensor *tensor = &plain.net.tensors[t];

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        n_compared++;
        assert_memory_equal(values_of(&plain, tensor->name), values_of(&grown, tensor->name),
                            (size_t)tensor->count * sizeof(float));
    }
    assert_int_equal(n_compared, 8);
    born_close(&plain);
    born_close(&grown);
}

static bool same_weights(void **state, const char *name_a, uint64_t seed_a, uint32_t network_a, const char *name_b,
                         uint64_t seed_b, uint32_t network_b)
{
    esper_init init = {ESPER_INIT_UNIFORM, 1.0f};
    int n_equal = 0;
    born a, b;

    one_param(&a, name_a, 1000, init);
    one_param(&b, name_b, 1000, init);
    born_open(&a, *state, seed_a, network_a);
    born_open(&b, *state, seed_b, network_b);
    for (int i = 0; i < 1000; i++)
        n_equal += values_of(&a, name_a)[i] == values_of(&b, name_b)[i];
    if (n_equal > 2 && n_equal < 1000)
        fail_msg("%d of 1000 elements are equal", n_equal);
    born_close(&a);
    born_close(&b);
    return n_equal == 1000;
}

static void test_birth_depends_on_seed_network_and_name(void **state)
{
    assert_true(same_weights(state, "w", 1, 2, "w", 1, 2));
    assert_false(same_weights(state, "w", 1, 2, "w", 3, 2));
    assert_false(same_weights(state, "w", 1, 2, "w", 1 + (UINT64_C(1) << 32), 2));
    assert_false(same_weights(state, "w", 1, 2, "w", 1, 3));
    assert_false(same_weights(state, "w", 1, 2, "v", 1, 2));
}

/* Only the asked region is filled. */
static void test_one_region(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "conv_light", SMALL_TRAINING}, {0}};
    esper_host host = small_cnn();
    born b;

    assert_int_equal(small_build(&b.net, &host, seeds), ESPER_OK);
    assert_int_equal(esper_slab_init(&b.slab, *state, &b.net, NULL), ESPER_OK);
    esper_init_net(&b.net, &b.slab, 1, 0, 1);
    check_all(&b, "blocks.0.conv.weight", 0.0f);
    check_all(&b, "blocks.0.bn.weight", 0.0f);
    check_all(&b, "r0c0.enhance.bn.weight", 1.0f);
    assert_true(values_of(&b, "r0c0.enhance.conv.weight")[0] != 0.0f);
    born_close(&b);
}

static int compare_floats(const void *a, const void *b)
{
    float left = *(const float *)a, right = *(const float *)b;

    return (left > right) - (left < right);
}

/* A piece drawn from another's stream would begin like it. */
static void check_pieces_differ(const float *values, int64_t count)
{
    for (int64_t a = 0; a < count; a += PIECE)
        for (int64_t b = a + PIECE; b < count; b += PIECE) {
            int n_equal = 0;

            for (int i = 0; i < 1000 && b + i < count; i++)
                n_equal += values[a + i] == values[b + i];
            if (n_equal > 2)
                fail_msg("%d of the first 1000 elements of pieces %lld and %lld are equal", n_equal,
                         (long long)(a / PIECE), (long long)(b / PIECE));
        }
}

/* 2^22 and some normal numbers: five pieces. Nearly all values are distinct; with a piece repeated, a quarter would not
 * be. */
static void test_large_parameters_do_not_repeat(void **state)
{
    int count = 4 * PIECE + 5000, n_distinct = 1;
    float *values;
    born w;

    one_param(&w, "w", count, (esper_init){ESPER_INIT_NORMAL, 1.0f});
    born_open(&w, *state, 1, 0);
    values = values_of(&w, "w");
    check_pieces_differ(values, count);
    qsort(values, (size_t)count, sizeof(float), compare_floats);
    for (int i = 1; i < count; i++)
        n_distinct += values[i] != values[i - 1];
    if (n_distinct < count * 0.85)
        fail_msg("%d of %d values are distinct", n_distinct, count);
    born_close(&w);
}

/* ------------------------------------------------------------------------------------------------ the hash */

static void test_hash(void **state)
{
    esper_host host = small_cnn();
    uint64_t first;
    born a, b;

    assert_int_equal(small_build(&a.net, &host, NULL), ESPER_OK);
    assert_int_equal(small_build(&b.net, &host, NULL), ESPER_OK);
    born_open(&a, *state, 1, 0);
    born_open(&b, *state, 1, 0);
    first = esper_weight_hash(&a.net, &a.slab);
    assert_true(first == esper_weight_hash(&b.net, &b.slab));
    values_of(&b, "classifier.bias")[4] += 1e-6f;
    assert_true(first != esper_weight_hash(&b.net, &b.slab));
    values_of(&a, "blocks.0.bn.running_var")[0] = 2.0f;
    assert_true(first != esper_weight_hash(&a.net, &a.slab));
    born_close(&a);
    born_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_normal),
        cmocka_unit_test(test_layers_of_a_cnn),
        cmocka_unit_test(test_layers_of_a_transformer),
        cmocka_unit_test(test_birth_does_not_depend_on_others),
        cmocka_unit_test(test_birth_depends_on_seed_network_and_name),
        cmocka_unit_test(test_one_region),
        cmocka_unit_test(test_large_parameters_do_not_repeat),
        cmocka_unit_test(test_hash),
    };

    return cmocka_run_group_tests(tests, memory_open_null, memory_close_null);
}
