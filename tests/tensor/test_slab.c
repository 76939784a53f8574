/* The slab: where everything lies, what is reserved, what stays zero, and failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/memory.h"
#include "support/small_net.h"

static const small_seed grown_seeds[] = {{"r0c0", "conv_light", SMALL_TRAINING}, {"r1c1", "norm", SMALL_ADD}, {0}};

/* ------------------------------------------------------------------------------------------------ layout */

/* Families follow each other in the header's order, each as long as its count. */
static void check_families(const esper_slab *slab, int n_moments)
{
    const float *next = slab->memory;
    bool present[ESPER_N_FAMILIES] = {true, n_moments >= 1, n_moments >= 1, n_moments >= 2, true};

    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        if (present[f] ? slab->family[f] != next : slab->family[f] != NULL)
            fail_msg("%d moments: family %s begins at %td, expected %s%td", n_moments,
                     esper_family_name((esper_family)f), slab->family[f] - slab->memory,
                     present[f] ? "" : "nowhere, not ", next - slab->memory);
        if (present[f])
            next += esper_slab_count(slab, (esper_family)f);
    }
    assert_int_equal((size_t)(next - slab->memory) * sizeof(float), slab->bytes);
}

/* No two tensors of a family overlap, all are aligned and inside of their region. */
static void check_tensors(const esper_slab *slab, const esper_net *net, esper_family family)
{
    const int64_t *begin = family == ESPER_FAMILY_BUFFER ? slab->buffer_begin : slab->param_begin;

    for (int a = 0; a < net->n_tensors; a++) {
        const esper_tensor *left = &net->tensors[a];
        const float *at = esper_slab_at(slab, family, left);

        if (at == NULL)
            continue;
        if ((uintptr_t)at % 64 != 0)
            fail_msg("%s in %s: address %p is not aligned to 64", left->name, esper_family_name(family),
                     (const void *)at);
        assert_true(at >= slab->family[family] + begin[left->region]);
        assert_true(at + left->count <= slab->family[family] + begin[left->region + 1]);
        for (int b = 0; b < a; b++) {
            const float *other = esper_slab_at(slab, family, &net->tensors[b]);

            if (other != NULL && at < other + net->tensors[b].count && other < at + left->count)
                fail_msg("%s and %s overlap in %s", left->name, net->tensors[b].name, esper_family_name(family));
        }
    }
}

/* The slab has one address for a tensor in each family it belongs to, and none in others. */
static void check_membership(const esper_slab *slab, const esper_net *net)
{
    for (int t = 0; t < net->n_tensors; t++)
        for (int f = 0; f < ESPER_N_FAMILIES; f++) {
            const esper_tensor *tensor = &net->tensors[t];
            bool belongs = slab->family[f] != NULL && (f == ESPER_FAMILY_BUFFER ? tensor->role == ESPER_ROLE_BUFFER
                                                                                : tensor->role == ESPER_ROLE_PARAM);

            if ((esper_slab_at(slab, (esper_family)f, tensor) != NULL) != belongs)
                fail_msg("%s in %s: %p, expected %s", tensor->name, esper_family_name((esper_family)f),
                         (void *)esper_slab_at(slab, (esper_family)f, tensor), belongs ? "an address" : "none");
        }
}

static void test_layout(void **state)
{
    esper_host host = small_cnn();
    esper_net net;

    assert_int_equal(small_build(&net, &host, grown_seeds), ESPER_OK);
    for (int n_moments = 0; n_moments <= 2; n_moments++) {
        /* Odd reservations must not push tensors behind them off their alignment. */
        esper_slab_desc desc = {.n_moments = n_moments,
                                .n_regions = 5,
                                .region_params = {0, 1501, 333, 5, 0},
                                .region_buffers = {7, 1, 0, 0, 0}};
        esper_slab slab;

        assert_int_equal(esper_slab_init(&slab, *state, &net, &desc), ESPER_OK);
        assert_int_equal(slab.bytes, esper_slab_bytes(&net, &desc));
        check_families(&slab, n_moments);
        check_membership(&slab, &net);
        for (int f = 0; f < ESPER_N_FAMILIES; f++)
            check_tensors(&slab, &net, (esper_family)f);
        esper_slab_fini(&slab);
        assert_null(slab.memory);
    }
    esper_net_fini(&net);
}

/* A parameter, its gradient and its moments lie at the same offset of their families. */
static void test_families_are_parallel(void **state)
{
    esper_slab_desc desc = {.n_moments = 2};
    esper_host host = small_cnn();
    esper_slab slab;
    esper_net net;

    assert_int_equal(small_build(&net, &host, grown_seeds), ESPER_OK);
    assert_int_equal(esper_slab_init(&slab, *state, &net, &desc), ESPER_OK);
    for (int t = 0; t < net.n_tensors; t++) {
        ptrdiff_t offset;

        if (net.tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        offset = esper_slab_at(&slab, ESPER_FAMILY_PARAM, &net.tensors[t]) - slab.family[ESPER_FAMILY_PARAM];
        for (int f = ESPER_FAMILY_GRAD; f <= ESPER_FAMILY_MOMENT2; f++)
            assert_int_equal(esper_slab_at(&slab, (esper_family)f, &net.tensors[t]) - slab.family[f], offset);
    }
    esper_slab_fini(&slab);
    esper_net_fini(&net);
}

static void test_reservations(void **state)
{
    esper_slab_desc desc = {.n_moments = 1, .n_regions = 4, .region_params = {0, 4000, 0, 160}};
    esper_host host = small_cnn();
    esper_slab slab;
    esper_net net;

    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    assert_int_equal(net.n_regions, 1);
    assert_int_equal(esper_slab_init(&slab, *state, &net, &desc), ESPER_OK);
    assert_int_equal(slab.n_regions, 4);
    assert_int_equal(slab.param_begin[1], net.region_params[0]); /* raised to what the net uses */
    assert_int_equal(slab.param_begin[2] - slab.param_begin[1], 4000);
    assert_int_equal(slab.param_begin[3] - slab.param_begin[2], 0);
    assert_int_equal(slab.param_begin[4] - slab.param_begin[3], 160);
    assert_int_equal(esper_slab_count(&slab, ESPER_FAMILY_GRAD), net.region_params[0] + 4160);
    esper_slab_fini(&slab);
    esper_net_fini(&net);
}

/* What the host's tensors are called and where they lie does not change when a seed comes into a reserved region. */
static void test_addresses_survive_growth(void **state)
{
    esper_slab_desc desc = {.n_moments = 2, .n_regions = 5, .region_params = {0, 4000, 4000, 4000, 4000}};
    esper_host host = small_cnn();
    esper_net plain, grown;
    esper_slab slab;
    int n_compared = 0;

    assert_int_equal(small_build(&plain, &host, NULL), ESPER_OK);
    assert_int_equal(small_build(&grown, &host, grown_seeds), ESPER_OK);
    assert_int_equal(esper_slab_init(&slab, *state, &plain, &desc), ESPER_OK);
    for (int t = 0; t < plain.n_tensors; t++) {
        int in_grown = esper_net_find(&grown, plain.tensors[t].name);

        if (plain.tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        assert_int_not_equal(in_grown, ESPER_NO_TENSOR);
        assert_ptr_equal(esper_slab_at(&slab, ESPER_FAMILY_PARAM, &plain.tensors[t]),
                         esper_slab_at(&slab, ESPER_FAMILY_PARAM, &grown.tensors[in_grown]));
        n_compared++;
    }
    assert_int_equal(n_compared, 8);
    esper_slab_fini(&slab);
    esper_net_fini(&plain);
    esper_net_fini(&grown);
}

/* ------------------------------------------------------------------------------------------------ contents */

/* After all tensors of a family are filled with ones, their number is the sum of the family: padding is still zero. */
static void test_padding_is_zero(void **state)
{
    esper_slab_desc desc = {.n_moments = 2, .n_regions = 3, .region_params = {0, 999, 50}};
    esper_host host = small_cnn();
    esper_slab slab;
    esper_net net;
    double sum = 0.0, expected = 0.0;

    assert_int_equal(small_build(&net, &host, grown_seeds), ESPER_OK);
    assert_int_equal(esper_slab_init(&slab, *state, &net, &desc), ESPER_OK);
    for (size_t i = 0; i < slab.bytes / sizeof(float); i++)
        assert_true(slab.memory[i] == 0.0f);
    for (int t = 0; t < net.n_tensors; t++)
        for (int f = 0; f < ESPER_N_FAMILIES; f++) {
            float *at = esper_slab_at(&slab, (esper_family)f, &net.tensors[t]);

            for (int64_t i = 0; at != NULL && i < net.tensors[t].count; i++, expected += 1.0)
                at[i] = 1.0f;
        }
    for (size_t i = 0; i < slab.bytes / sizeof(float); i++)
        sum += (double)slab.memory[i];
    if (sum != expected)
        fail_msg("sum %g, expected %g", sum, expected);
    assert_true(expected < (double)(slab.bytes / sizeof(float)));
    esper_slab_fini(&slab);
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void test_bad_descriptions(void **state)
{
    esper_slab_desc many_moments = {.n_moments = 3}, many_regions = {.n_regions = ESPER_MAX_REGIONS + 1};
    esper_host host = small_cnn();
    esper_slab slab = {0};
    esper_net net;

    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    assert_int_equal(esper_slab_init(&slab, *state, &net, &many_moments), ESPER_E_ARG);
    assert_int_equal(esper_slab_init(&slab, *state, &net, &many_regions), ESPER_E_ARG);
    assert_int_equal(esper_net_relu(&net, 999), ESPER_NO_TENSOR); /* a net with a mistake in it */
    assert_int_equal(esper_slab_init(&slab, *state, &net, NULL), ESPER_E_ARG);
    assert_null(slab.memory);
    esper_net_fini(&net);
}

static void test_empty_net(void **state)
{
    esper_slab slab;
    esper_net net;

    esper_net_init(&net);
    assert_int_equal(esper_slab_init(&slab, *state, &net, NULL), ESPER_OK);
    assert_int_equal(slab.bytes, 0);
    assert_null(slab.memory);
    assert_null(slab.family[ESPER_FAMILY_PARAM]);
    esper_slab_fini(&slab);
    esper_net_fini(&net);
}

static void test_failing_allocation(void **state)
{
    esper_slab slab = {.n_regions = 77}, untouched = slab;
    esper_mem_stats before, after;
    esper_host host = small_cnn();
    esper_net net;

    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    esper_mem_stats_get(&before);
    esper_mem_fail_at(1);
    assert_int_equal(esper_slab_init(&slab, *state, &net, NULL), ESPER_E_NOMEM);
    esper_mem_fail_at(0);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_live, before.n_live);
    assert_memory_equal(&slab, &untouched, sizeof(slab)); /* outputs are written only on success */
    esper_net_fini(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),          cmocka_unit_test(test_families_are_parallel),
        cmocka_unit_test(test_reservations),    cmocka_unit_test(test_addresses_survive_growth),
        cmocka_unit_test(test_padding_is_zero), cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_empty_net),       cmocka_unit_test(test_failing_allocation),
    };

    return cmocka_run_group_tests(tests, memory_open_null, memory_close_null);
}
