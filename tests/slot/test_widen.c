/* New channels: a layer with a seed `wide` computes what a layer that had been built wider would, forward and back; at birth nothing
 * changes; and a program that is cut where they pass by goes on as the whole one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "slot/splice.h"
#include "support/grown_slots.h"
#include "support/small_net.h"

enum { N_SAMPLES = 19 };

static const char *const backends[] = {"ref", "cpu"};

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static esper_host host_of(const char *text)
{
    esper_host host = small_cnn();

    snprintf(host.text, sizeof(host.text), "%s", text);
    host.widen = true;
    return host;
}

#define NARROW "conv 4 | pool | conv 6 5x5 | mean | linear"
#define WIDER  "conv 6 | pool | conv 9 5x5 | mean | linear"

static const grown_seed both[] = {{"wide0", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                  {"wide1", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                  {0}};

static void build(esper_net *net, const esper_host *host, const grown_seed *seeds, bool training)
{
    static esper_slots slots;
    esper_splice splice = {.topology = host->topology, .slots = &slots, .training = training};

    check_good(grown_slots(&slots, host, seeds));
    esper_net_init(net);
    check_good(esper_splice_build(&splice, host, net));
}

/* Weights and statistics unlike those of birth: what is born as zeros would hide much. */
static void shake(small_run *run)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = 3, .purpose = ESPER_RNG_TEST});
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        bool is_buffer = tensor->role == ESPER_ROLE_BUFFER;
        float *values;

        if (tensor->role != ESPER_ROLE_PARAM && !is_buffer)
            continue;
        values = esper_slab_at(&run->slab, is_buffer ? ESPER_FAMILY_BUFFER : ESPER_FAMILY_PARAM, tensor);
        for (int64_t i = 0; i < tensor->count; i++)
            values[i] = is_buffer ? 0.5f + (float)esper_rng_below(&rng, 1000) / 1000.0f
                                  : values[i] + 0.2f * esper_rng_normal(&rng);
    }
}

/* Images and targets, the same in all programs. */
static void fill(small_run *run)
{
    esper_rng rng;
    float *images = esper_plan_data(run->plan, 0, esper_net_find(&run->net, "images"));
    int32_t *targets = esper_plan_data(run->plan, 0, run->net.target);

    esper_rng_init(&rng, &(esper_rng_key){.seed = 4, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < N_SAMPLES * 3 * 8 * 8; i++)
        images[i] = esper_rng_normal(&rng);
    for (int i = 0; i < N_SAMPLES; i++)
        targets[i] = (int32_t)esper_rng_below(&rng, 5);
}

/* ------------------------------------------------------------------------------------------------ a wider layer */

/* Where a tensor of the network with seeds is part of one of the wider network: from this output and input channel on. */
static const struct {
    const char *narrow, *wider;
    int row, col;
} parts[] = {
    {"blocks.0.conv.weight", "blocks.0.conv.weight", 0, 0},
    {"wide0.conv.weight", "blocks.0.conv.weight", 4, 0},
    {"blocks.0.bn.weight", "blocks.0.bn.weight", 0, 0},
    {"wide0.bn.weight", "blocks.0.bn.weight", 4, 0},
    {"blocks.0.bn.bias", "blocks.0.bn.bias", 0, 0},
    {"wide0.bn.bias", "blocks.0.bn.bias", 4, 0},
    {"blocks.1.conv.weight", "blocks.1.conv.weight", 0, 0},
    {"wide0.out.weight", "blocks.1.conv.weight", 0, 4},
    {"wide1.conv.weight", "blocks.1.conv.weight", 6, 0},
    {"blocks.1.bn.weight", "blocks.1.bn.weight", 0, 0},
    {"wide1.bn.weight", "blocks.1.bn.weight", 6, 0},
    {"blocks.1.bn.bias", "blocks.1.bn.bias", 0, 0},
    {"wide1.bn.bias", "blocks.1.bn.bias", 6, 0},
    {"classifier.weight", "classifier.weight", 0, 0},
    {"wide1.out.weight", "classifier.weight", 0, 6},
    {"classifier.bias", "classifier.bias", 0, 0},
    {"blocks.0.bn.running_mean", "blocks.0.bn.running_mean", 0, 0},
    {"wide0.bn.running_mean", "blocks.0.bn.running_mean", 4, 0},
    {"blocks.0.bn.running_var", "blocks.0.bn.running_var", 0, 0},
    {"wide0.bn.running_var", "blocks.0.bn.running_var", 4, 0},
    {"blocks.1.bn.running_mean", "blocks.1.bn.running_mean", 0, 0},
    {"wide1.bn.running_mean", "blocks.1.bn.running_mean", 6, 0},
    {"blocks.1.bn.running_var", "blocks.1.bn.running_var", 0, 0},
    {"wide1.bn.running_var", "blocks.1.bn.running_var", 6, 0},
};

enum { N_PARTS = sizeof(parts) / sizeof(parts[0]) };

typedef void (*with_pair)(const char *name, float *narrow, float *wider);

/* Every number of the one beside its place in the other. */
static void each_pair(const small_run *narrow, const small_run *wider, bool gradients, with_pair then)
{
    for (int p = 0; p < N_PARTS; p++) {
        int a = esper_net_find(&narrow->net, parts[p].narrow), b = esper_net_find(&wider->net, parts[p].wider);
        const esper_tensor *from, *to;
        esper_family family;
        int cols, wide_cols;
        int64_t inner;

        if (a == ESPER_NO_TENSOR || b == ESPER_NO_TENSOR)
            fail_msg("%s of %s", parts[p].narrow, parts[p].wider);
        from = &narrow->net.tensors[a];
        to = &wider->net.tensors[b];
        if (gradients && from->role == ESPER_ROLE_BUFFER)
            continue;
        family = from->role == ESPER_ROLE_BUFFER ? ESPER_FAMILY_BUFFER
                 : gradients                     ? ESPER_FAMILY_GRAD
                                                 : ESPER_FAMILY_PARAM;
        cols = from->rank > 1 ? from->dim[1] : 1;
        wide_cols = to->rank > 1 ? to->dim[1] : 1;
        inner = from->count / from->dim[0] / cols;
        for (int r = 0; r < from->dim[0]; r++)
            for (int c = 0; c < cols; c++)
                for (int64_t i = 0; i < inner; i++)
                    then(parts[p].narrow,
                         (float *)esper_slab_at(&narrow->slab, family, from) + (r * cols + c) * inner + i,
                         (float *)esper_slab_at(&wider->slab, family, to) +
                             ((parts[p].row + r) * wide_cols + parts[p].col + c) * inner + i);
    }
}

static void give(const char *name, float *narrow, float *wider)
{
    (void)name;
    *wider = *narrow;
}

static int n_unlike_zero;

static void compare(const char *name, float *narrow, float *wider)
{
    if (!(fabs((double)*narrow - (double)*wider) <= 2e-5 * (1.0 + fabs((double)*wider))))
        fail_msg("%s: %.9g, %.9g in the wider network", name, (double)*narrow, (double)*wider);
    n_unlike_zero += *narrow != 0.0f;
}

/* New channels of one layer do not reach those of the next: the wider network has zeros there. */
static void cut_between_new_ones(const small_run *wider)
{
    const esper_tensor *weight = &wider->net.tensors[esper_net_find(&wider->net, "blocks.1.conv.weight")];
    float *values = esper_slab_at(&wider->slab, ESPER_FAMILY_PARAM, weight);

    for (int out = 6; out < 9; out++)
        memset(values + (out * 6 + 4) * 25, 0, 2 * 25 * sizeof(float));
}

static void check_losses(const small_run *a, const small_run *b, double tolerance)
{
    const float *x = esper_plan_data(a->plan, 0, a->net.loss), *y = esper_plan_data(b->plan, 0, b->net.loss);

    for (int i = 0; i < N_SAMPLES; i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= tolerance * (1.0 + fabs((double)y[i]))))
            fail_msg("sample %d: loss %.9g, expected %.9g", i, (double)x[i], (double)y[i]);
}

static void is_a_wider_layer(void **state)
{
    esper_host narrow_host = host_of(NARROW), wider_host = host_of(WIDER);

    (void)state;
    for (int b = 0; b < 2; b++)
        for (int training = 0; training < 2; training++) {
            small_run narrow = {0}, wider = {0};

            build(&narrow.net, &narrow_host, both, training != 0);
            build(&wider.net, &wider_host, NULL, training != 0);
            small_run_open(&narrow, backends[b], N_SAMPLES, training != 0);
            small_run_open(&wider, backends[b], N_SAMPLES, training != 0);
            shake(&narrow);
            each_pair(&narrow, &wider, false, give);
            cut_between_new_ones(&wider);
            fill(&narrow);
            fill(&wider);
            n_unlike_zero = 0;
            if (training) {
                check_good(esper_plan_gradients_one(narrow.plan, NULL, 0));
                check_good(esper_plan_gradients_one(wider.plan, NULL, 0));
                each_pair(&narrow, &wider, true, compare);
                assert_true(n_unlike_zero > 1000);
            } else {
                check_good(esper_plan_forward_one(narrow.plan, NULL, 0));
                check_good(esper_plan_forward_one(wider.plan, NULL, 0));
            }
            check_losses(&narrow, &wider, 1e-5);
            small_run_close(&narrow);
            small_run_close(&wider);
        }
}

/* On the reference to the bit; elsewhere the host's layer is no longer one operation with its norm. */
static void changes_nothing_at_birth(void **state)
{
    esper_host host = host_of(NARROW);

    (void)state;
    for (int b = 0; b < 2; b++) {
        small_run plain = {0}, widened = {0};

        build(&plain.net, &host, NULL, false);
        build(&widened.net, &host, both, false);
        assert_int_equal(widened.net.n_ops, plain.net.n_ops + 6 + 6);
        small_run_open(&plain, backends[b], N_SAMPLES, false);
        small_run_open(&widened, backends[b], N_SAMPLES, false);
        fill(&plain);
        fill(&widened);
        check_good(esper_plan_forward_one(plain.plan, NULL, 0));
        check_good(esper_plan_forward_one(widened.plan, NULL, 0));
        check_losses(&widened, &plain, b == 0 ? 0.0 : 1e-6);
        small_run_close(&plain);
        small_run_close(&widened);
    }
}

/* ------------------------------------------------------------------------------------------------ cuts */

static void cut_programs_go_on(void **state)
{
    static const char *const slots[] = {"r0c0", "r1c0", "wide0", "r0c1", "wide1"};
    static const grown_seed seeds[] = {{"wide0", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"wide1", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"r0c0", "conv_light", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"r0c1", "norm", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {0}};
    esper_host host = host_of(NARROW);

    (void)state;
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 5; s++) {
            small_run whole = {0}, cut = {0};
            int passing[ESPER_MAX_REGIONS], n, at;
            esper_slots table;
            esper_splice splice = {.topology = host.topology, .slots = &table};

            check_good(grown_slots(&table, &host, seeds));
            build(&whole.net, &host, seeds, false);
            build(&cut.net, &host, seeds, false);
            at = esper_net_find_boundary(&whole.net, slots[s])->tensor;
            esper_splice_keep_at(&splice, &whole.net, esper_slots_find(&table, slots[s]));
            check_good(esper_net_cut(&cut.net, at));
            n = esper_net_list_passing(&cut.net, passing);
            assert_int_equal(n, s == 2 ? 2 : 1); /* on wide0 both are on their way */
            small_run_open(&whole, backends[b], N_SAMPLES, false);
            small_run_open(&cut, backends[b], N_SAMPLES, false);
            shake(&whole);
            shake(&cut);
            fill(&whole);
            check_good(esper_plan_forward_one(whole.plan, NULL, 0));
            memcpy(esper_plan_data(cut.plan, 0, cut.net.target), esper_plan_data(whole.plan, 0, whole.net.target),
                   N_SAMPLES * sizeof(int32_t));
            passing[n++] = at;
            for (int i = 0; i < n; i++)
                memcpy(esper_plan_data(cut.plan, 0, passing[i]), esper_plan_data(whole.plan, 0, passing[i]),
                       (size_t)(cut.net.tensors[passing[i]].count * N_SAMPLES) * sizeof(float));
            check_good(esper_plan_forward_one(cut.plan, NULL, 0));
            check_losses(&cut, &whole, 0.0);
            small_run_close(&whole);
            small_run_close(&cut);
        }
}

/* ------------------------------------------------------------------------------------------------ where */

static void check_wide_slots(const char *text, const char *expected)
{
    esper_host host = host_of(text);
    char found[256] = "";
    esper_net net;

    build(&net, &host, NULL, false);
    for (int i = 0; i < net.n_boundaries; i++)
        if (net.boundaries[i].wide.channels > 0)
            snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s ", net.boundaries[i].slot);
    assert_string_equal(found, expected);
    esper_net_fini(&net);
}

static void stand_where_one_layer_follows(void **state)
{
    (void)state;
    check_wide_slots(NARROW, "wide0 wide1 ");
    check_wide_slots("conv 4 | slot | pool | slot stem | conv 4 | mean | linear", "wide0 wide1 ");
    check_wide_slots("conv 4 | [conv 4] residual | conv 4 | mean | linear", "wide2 ");
    check_wide_slots("conv 4 bare | relu | conv 4 dropout 0.1 | conv 4 | norm | mean | linear", "");
    check_wide_slots("conv 4 | conv 4 | mean | linear 8 | linear", "wide0 ");
}

static void take_new_channels_alone(void **state)
{
    esper_host host = host_of(NARROW);
    const esper_blueprint *wide, *light;
    esper_net net;

    (void)state;
    build(&net, &host, NULL, false);
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "wide", &wide));
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &light));
    assert_int_equal(esper_splice_count_seed(wide, &net, "wide0"), 2 * 3 * 9 + 2 * 2 + 2 * 6 * 25);
    assert_int_equal(esper_splice_count_seed(wide, &net, "wide1"), 3 * 4 * 25 + 2 * 3 + 3 * 5);
    assert_int_equal(esper_splice_count_seed(light, &net, "wide0"), ESPER_SPLICE_UNFIT);
    assert_int_equal(esper_splice_count_seed(wide, &net, "r0c0"), ESPER_SPLICE_UNFIT);
    assert_int_equal(esper_splice_count_seed(light, &net, "r0c0"), esper_splice_count_params(light, 4));
    esper_net_fini(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_a_wider_layer),        cmocka_unit_test(changes_nothing_at_birth),
        cmocka_unit_test(cut_programs_go_on),      cmocka_unit_test(stand_where_one_layer_follows),
        cmocka_unit_test(take_new_channels_alone),
    };

    esper_blueprint_add_wide();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
