/* Hosts and blueprints as programs: parameter totals, slots and their orders, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nn/layer.h"
#include "support/small_net.h"

/* ------------------------------------------------------------------------------------------------ totals */

static void check_total(const char *name, esper_host host, int64_t expected)
{
    esper_net net;

    if (small_build(&net, &host, NULL) != ESPER_OK)
        fail_msg("%s: %s", name, esper_last_error());
    if (esper_net_count_params(&net, -1) != expected)
        fail_msg("%s has %lld parameters, expected %lld", name, (long long)esper_net_count_params(&net, -1),
                 (long long)expected);
    esper_net_fini(&net);
}

static void test_parameter_totals(void **state)
{
    (void)state;
    check_total("B8", spec_cnn(3, 8, 3, 3), 6418);
    check_total("B8D", spec_cnn(5, 8, 3, 5), 99922);
    check_total("B16", spec_cnn(3, 16, 3, 3), 24346);
    check_total("I1", spec_cnn(3, 1, 1, 3), 77);
    check_total("M2", spec_cnn(3, 2, 1, 0), 164);
    check_total("I2D", spec_cnn(5, 2, 1, 5), 1140);
    check_total("the default cnn", spec_cnn(3, 32, 3, 3), 94762);
    check_total("the transformer", spec_transformer(), 30044544);
}

static void test_parts_of_b8(void **state)
{
    static const struct {
        const char *name;
        int64_t     count;
    } parts[] = {
        {"blocks.0.conv.weight", 216}, {"blocks.1.conv.weight", 1152}, {"blocks.2.conv.weight", 4608},
        {"blocks.0.bn.weight", 8},     {"blocks.2.bn.bias", 32},       {"classifier.weight", 320},
        {"classifier.bias", 10},       {"blocks.1.bn.running_var", 16},
    };
    esper_host host = spec_cnn(3, 8, 3, 3);
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        int t = esper_net_find(&net, parts[i].name);

        if (t == ESPER_NO_TENSOR)
            fail_msg("%s is missing", parts[i].name);
        if (net.tensors[t].count != parts[i].count)
            fail_msg("%s has %lld elements, expected %lld", parts[i].name, (long long)net.tensors[t].count,
                     (long long)parts[i].count);
    }
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ slots */

static void append(char *text, size_t size, const char *word)
{
    snprintf(text + strlen(text), size - strlen(text), "%s%s", text[0] != '\0' ? "," : "", word);
}

/* The slots as the host meets them, and by the policy's order. */
static void check_slots(const char *name, esper_host host, const char *execution, const char *row_major)
{
    char met[256] = "", ordered[256] = "";
    esper_net net;

    if (small_build(&net, &host, NULL) != ESPER_OK)
        fail_msg("%s: %s", name, esper_last_error());
    for (int i = 0; i < net.n_boundaries; i++)
        append(met, sizeof(met), net.boundaries[i].slot);
    for (int order = 0; order < 100; order++)
        for (int i = 0; i < net.n_boundaries; i++)
            if (net.boundaries[i].order == order)
                append(ordered, sizeof(ordered), net.boundaries[i].slot);
    if (strcmp(met, execution) != 0)
        fail_msg("%s meets %s, expected %s", name, met, execution);
    if (strcmp(ordered, row_major) != 0)
        fail_msg("%s orders %s, expected %s", name, ordered, row_major);
    esper_net_fini(&net);
}

static void test_slots_and_their_orders(void **state)
{
    (void)state;
    check_slots("B8", spec_cnn(3, 8, 3, 3), "r0c0,r1c0,r0c1,r1c1,r0c2,r1c2", "r0c0,r0c1,r0c2,r1c0,r1c1,r1c2");
    check_slots("B8D", spec_cnn(5, 8, 3, 5), "r0c0,r1c0,r0c1,r1c1,r0c2,r1c2,r0c3,r1c3,r0c4,r1c4",
                "r0c0,r0c1,r0c2,r0c3,r0c4,r1c0,r1c1,r1c2,r1c3,r1c4");
    check_slots("M2", spec_cnn(3, 2, 1, 0), "r0c0,r0c1,r0c2", "r0c0,r0c1,r0c2");
    check_slots("6 blocks with 3 pools", spec_cnn(6, 2, 3, 3), "r0c0,r1c0,r0c1,r1c1,r0c2,r1c2,r0c3,r0c4,r0c5",
                "r0c0,r0c1,r0c2,r0c3,r0c4,r0c5,r1c0,r1c1,r1c2");
    check_slots("more pools than blocks", spec_cnn(2, 2, 3, 9), "r0c0,r1c0,r0c1,r1c1", "r0c0,r0c1,r1c0,r1c1");
    check_slots("the transformer", spec_transformer(), "r0c0,r0c1,r0c2", "r0c0,r0c1,r0c2");
}

static void check_boundary(const esper_net *net, esper_boundary expected)
{
    const esper_boundary *got = esper_net_find_boundary(net, expected.slot);
    const int *dim = got != NULL ? net->tensors[got->tensor].dim : NULL;

    if (got == NULL)
        fail_msg("no slot %s", expected.slot);
    if (got->order != expected.order || got->channels != expected.channels || got->position != expected.position ||
        got->layer_begin != expected.layer_begin || got->layer_end != expected.layer_end ||
        got->surface != expected.surface)
        fail_msg("%s: order %d, %d channels, at %g, layers %d-%d, surface %d; expected %d, %d, %g, %d-%d, %d",
                 got->slot, got->order, got->channels, (double)got->position, got->layer_begin, got->layer_end,
                 (int)got->surface, expected.order, expected.channels, (double)expected.position, expected.layer_begin,
                 expected.layer_end, (int)expected.surface);
    if (net->tensors[got->tensor].rank == 3 ? dim[0] != got->channels : dim[1] != got->channels)
        fail_msg("%s: its features have %d channels, expected %d", got->slot, dim[0], got->channels);
}

static void test_injection_specs(void **state)
{
    esper_host b8 = spec_cnn(3, 8, 3, 3), transformer = spec_transformer();
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &b8, NULL), ESPER_OK);
    check_boundary(&net, (esper_boundary){.slot = "r0c1",
                                          .order = 1,
                                          .channels = 16,
                                          .position = 3.0f / 6.0f,
                                          .layer_begin = 1,
                                          .layer_end = 2,
                                          .surface = ESPER_SURFACE_PRE_POOL});
    check_boundary(&net, (esper_boundary){.slot = "r1c2",
                                          .order = 5,
                                          .channels = 32,
                                          .position = 1.0f,
                                          .layer_begin = 2,
                                          .layer_end = 3,
                                          .surface = ESPER_SURFACE_POST_POOL});
    assert_null(esper_net_find_boundary(&net, "r2c0"));
    esper_net_fini(&net);
    assert_int_equal(small_build(&net, &transformer, NULL), ESPER_OK);
    check_boundary(&net, (esper_boundary){.slot = "r0c1",
                                          .order = 1,
                                          .channels = 384,
                                          .position = 2.0f / 3.0f,
                                          .layer_begin = 2,
                                          .layer_end = 4,
                                          .surface = ESPER_SURFACE_BLOCK_END});
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void check_refused(esper_host host, const char *words)
{
    esper_net net;
    esper_status status = small_build(&net, &host, NULL);

    if ((status != ESPER_E_ARG && status != ESPER_E_CONFIG) || strstr(esper_last_error(), words) == NULL)
        fail_msg("status %d, message \"%s\", expected words \"%s\"", status,
                 status != ESPER_OK ? esper_last_error() : "", words);
    esper_net_fini(&net);
}

static esper_host transformer_with(int layers, int segments, int width, int heads, int tokens)
{
    esper_host host = spec_transformer();

    host.transformer.layers = layers;
    host.transformer.segments = segments;
    host.transformer.width = width;
    host.transformer.heads = heads;
    host.transformer.tokens = tokens;
    return host;
}

static void test_slots_open_again(void **state)
{
    esper_host host = spec_cnn(2, 4, 3, 1);

    (void)state;
    host.stack = 2;
    check_slots("stacked", host, "r0c0,r0c0_2,r0c0_3,r1c0,r1c0_2,r1c0_3,r0c1,r0c1_2,r0c1_3",
                "r0c0,r0c1,r1c0,r0c0_2,r0c1_2,r1c0_2,r0c0_3,r0c1_3,r1c0_3");
    snprintf(host.slots, sizeof(host.slots), "r1c0");
    check_slots("one of them", host, "r1c0,r1c0_2,r1c0_3", "r1c0,r1c0_2,r1c0_3");
    host.slots[0] = '\0';
    host.stack = 11;
    check_refused(host, "3 slots that open again so often are 36, and 32 at most");
    host.stack = 1;
    snprintf(host.text, sizeof(host.text), "conv 4 | slot fourteen_chars | mean | linear");
    check_refused(host, "fourteen_chars cannot open again: its name is too long");
}

static void test_impossible_hosts_are_refused(void **state)
{
    esper_host dropped = spec_transformer(), imageless = spec_cnn(3, 8, 3, 3), classless = spec_cnn(3, 8, 3, 3);

    (void)state;
    dropped.transformer.dropout = 1.0f;
    imageless.cnn.height = 0;
    classless.cnn.classes = 0;
    check_refused(spec_cnn(1, 8, 3, 1), "requires at least 2 blocks");
    check_refused(spec_cnn(6, 2, 3, 6), "6 pools: an image of 32x32 can be halved 5 times: choose --pools 5 or fewer");
    check_refused(spec_cnn(3, 0, 3, 3), "0 channels");
    check_refused(spec_cnn(3, 8, 2, 3), "kernel 2");
    check_refused(spec_cnn(17, 1, 3, 0), "channels double");
    check_refused(imageless, "images: dimension 1 is 0");
    check_refused(classless, "dimension 0 is 0");
    check_refused(transformer_with(6, 4, 384, 6, 0),
                  "6 layers are not divisible into 4 segments: choose --segments 3 or 6");
    check_refused(transformer_with(6, 7, 384, 6, 0), "choose --segments 6 or fewer");
    check_refused(transformer_with(6, 0, 384, 6, 0), "segments");
    check_refused(transformer_with(6, 3, 384, 5, 0), "width 384 is not divisible by 5 heads");
    check_refused(transformer_with(6, 3, 384, 0, 0), "heads");
    check_refused(transformer_with(6, 3, 384, 6, 257), "sequence of 257 tokens, but the context is 256");
    check_refused(dropped, "expected a share above 0 and below 1");
}

/* ------------------------------------------------------------------------------------------------ blueprints */

enum { N_WIDTHS = 8 };

static const int widths[N_WIDTHS] = {1, 2, 4, 8, 16, 32, 64, 128};

/* The recorded counts; those that end in a scale born 0 have C more here. */
static const struct {
    const char *name;
    bool        scaled;
    int         params[N_WIDTHS];
} cnn_counts[] = {
    {"noop", false, {0, 0, 0, 0, 0, 0, 0, 0}},
    {"norm", false, {3, 5, 9, 17, 33, 65, 129, 257}},
    {"attention", false, {3, 6, 12, 40, 144, 544, 2112, 8320}},
    {"conv_small", true, {3, 8, 24, 80, 288, 1088, 4224, 16640}},
    {"bottleneck", false, {594, 612, 648, 720, 864, 1152, 4480, 17664}},
    {"depthwise", true, {12, 26, 60, 152, 432, 1376, 4800, 17792}},
    {"conv_light", true, {11, 40, 152, 592, 2336, 9280, 36992, 147712}},
    {"conv_heavy", true, {22, 80, 304, 1184, 4672, 18560, 73984, 295424}},
};

static const struct {
    const char *name;
    int         params; /* at width 384 */
} transformer_counts[] = {
    {"noop", 0},           {"norm", 769},         {"lora", 6144},
    {"lora_large", 24576}, {"attention", 591360}, {"flex_attention", 591360},
    {"mlp_small", 590976}, {"mlp", 1181568},     {"layer", 1774464},
};

static const struct {
    const char *name;
    int         params[3]; /* at widths 4, 16, 64 */
} mlp_counts[] = {
    {"noop", {0, 0, 0}},           {"norm", {9, 33, 129}},
    {"lora", {64, 256, 1024}},     {"lora_large", {256, 1024, 4096}},
    {"mlp_tiny", {40, 544, 8320}}, {"mlp_small", {76, 1072, 16576}},
    {"glu", {116, 1616, 24896}},   {"mlp", {148, 2128, 33088}},
};

static int64_t count_seed(const esper_blueprint *blueprint, int rank, const int *dim)
{
    esper_net net;
    int64_t count;
    int x, y;

    esper_net_init(&net);
    x = esper_net_input(&net, "x", ESPER_F32, rank, dim);
    esper_net_enter(&net, "seed.", 1);
    y = esper_blueprint_build(blueprint, &net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
    if (y == ESPER_NO_TENSOR)
        fail_msg("%s: %s", blueprint->name, esper_last_error());
    assert_memory_equal(net.tensors[y].dim, net.tensors[x].dim, sizeof(net.tensors[x].dim));
    count = esper_net_count_params(&net, 1);
    assert_int_equal(esper_net_count_params(&net, 0), 0);
    esper_net_fini(&net);
    return count;
}

static void test_cnn_blueprint_counts(void **state)
{
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_CNN);

    (void)state;
    for (size_t i = 0; i < sizeof(cnn_counts) / sizeof(cnn_counts[0]); i++) {
        assert_string_equal(list[i]->name, cnn_counts[i].name);
        for (int w = 0; w < N_WIDTHS; w++) {
            int64_t got = count_seed(list[i], 3, (int[]){widths[w], 4, 4});
            int64_t expected = cnn_counts[i].params[w] + (cnn_counts[i].scaled ? widths[w] : 0);

            if (got != expected)
                fail_msg("%s at %d channels has %lld parameters, expected %lld", list[i]->name, widths[w],
                         (long long)got, (long long)expected);
        }
    }
    assert_null(list[sizeof(cnn_counts) / sizeof(cnn_counts[0])]);
}

static void test_transformer_blueprint_counts(void **state)
{
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_TRANSFORMER);

    (void)state;
    for (size_t i = 0; i < sizeof(transformer_counts) / sizeof(transformer_counts[0]); i++) {
        int64_t got = count_seed(list[i], 2, (int[]){8, 384});

        assert_string_equal(list[i]->name, transformer_counts[i].name);
        if (got != transformer_counts[i].params)
            fail_msg("%s has %lld parameters, expected %d", list[i]->name, (long long)got,
                     transformer_counts[i].params);
    }
    assert_null(list[sizeof(transformer_counts) / sizeof(transformer_counts[0])]);
}

static void test_mlp_blueprint_counts(void **state)
{
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_MLP);

    (void)state;
    for (size_t i = 0; i < sizeof(mlp_counts) / sizeof(mlp_counts[0]); i++) {
        assert_string_equal(list[i]->name, mlp_counts[i].name);
        for (int w = 0; w < 3; w++) {
            int width = 4 << (2 * w);
            int64_t got = count_seed(list[i], 1, &width);

            if (got != mlp_counts[i].params[w])
                fail_msg("%s at width %d has %lld parameters, expected %d", list[i]->name, width, (long long)got,
                         mlp_counts[i].params[w]);
        }
    }
    assert_null(list[sizeof(mlp_counts) / sizeof(mlp_counts[0])]);
}

/* A slot behind every layer, in both orders; names as the checkpoint has them. */
static void test_mlp_host(void **state)
{
    esper_host host = small_mlp(0.1f);
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    assert_int_equal(esper_net_count_params(&net, -1), (7 * 12 + 12 + 24) + (12 * 12 + 12 + 24) + (12 * 5 + 5));
    assert_int_equal(net.n_boundaries, 2);
    for (int k = 0; k < 2; k++) {
        assert_string_equal(net.boundaries[k].slot, k == 0 ? "r0c0" : "r0c1");
        assert_int_equal(net.boundaries[k].order, k);
        assert_int_equal(net.boundaries[k].channels, 12);
        assert_int_equal(net.tensors[net.boundaries[k].tensor].rank, 1);
    }
    assert_string_equal(net.tensors[net.input].name, "features");
    assert_true(esper_net_find(&net, "blocks.1.linear.weight") != ESPER_NO_TENSOR);
    assert_true(esper_net_find(&net, "blocks.0.norm.bias") != ESPER_NO_TENSOR);
    assert_true(esper_net_find(&net, "classifier.bias") != ESPER_NO_TENSOR);
    esper_net_fini(&net);
    host.mlp.layers = ESPER_MAX_REGIONS;
    check_refused(host, "expected 1 to 32, as each ends in a slot");
    host.mlp.layers = 0;
    check_refused(host, "0 layers");
    host = small_mlp(0.0f);
    host.mlp.features = 0;
    check_refused(host, "0 features");
}

static void test_topology_names(void **state)
{
    (void)state;
    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++)
        assert_int_equal(esper_topology_find(esper_topology_name((esper_topology)topology)), topology);
    assert_int_equal(esper_topology_find("tree"), -1);
}

/* Within a quarter of the count at 64 channels or width 384 or 64, in the order of the list. */
static void check_estimates(esper_topology topology, int rank, const int *dim)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);

    for (int i = 0; list[i] != NULL; i++) {
        int64_t count = count_seed(list[i], rank, dim);

        if (4 * llabs(count - list[i]->estimate) > count)
            fail_msg("%s is estimated at %d parameters and has %lld", list[i]->name, list[i]->estimate,
                     (long long)count);
        if (i > 0 && (list[i]->estimate < list[i - 1]->estimate ||
                      (list[i]->estimate == list[i - 1]->estimate && strcmp(list[i - 1]->name, list[i]->name) > 0)))
            fail_msg("%s comes after %s", list[i]->name, list[i - 1]->name);
    }
}

static void test_estimates(void **state)
{
    (void)state;
    check_estimates(ESPER_TOPOLOGY_CNN, 3, (int[]){64, 4, 4});
    check_estimates(ESPER_TOPOLOGY_TRANSFORMER, 2, (int[]){8, 384});
    check_estimates(ESPER_TOPOLOGY_MLP, 1, (int[]){64});
}

static void test_unknown_blueprint(void **state)
{
    const esper_blueprint *blueprint = NULL;

    (void)state;
    assert_int_equal(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "lora", &blueprint), ESPER_E_ARG);
    assert_null(blueprint);
    if (strstr(esper_last_error(), "conv_light") == NULL || strstr(esper_last_error(), "'lora'") == NULL)
        fail_msg("message \"%s\"", esper_last_error());
    assert_int_equal(esper_blueprint_find(ESPER_TOPOLOGY_TRANSFORMER, "lora", &blueprint), ESPER_OK);
    assert_int_equal(blueprint->index, 8);
}

static void test_attention_seed_needs_four_heads(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "attention", SMALL_ADD}, {0}};
    esper_host host = small_transformer(0.0f);
    esper_net net;

    (void)state;
    host.transformer.width = 18;
    assert_int_equal(small_build(&net, &host, seeds), ESPER_E_ARG);
    if (strstr(esper_last_error(), "r0c0.attention: needs qkv") == NULL)
        fail_msg("message \"%s\"", esper_last_error());
    esper_net_fini(&net);
}

static void test_groups(void **state)
{
    static const int expected[][2] = {{1, 1},  {2, 2},  {4, 4},  {8, 8},   {16, 1},   {24, 1}, {32, 2},
                                      {48, 2}, {64, 4}, {31, 1}, {128, 8}, {384, 16}, {6, 2},  {1024, 32}};

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        if (esper_group_norm_groups(expected[i][0]) != expected[i][1])
            fail_msg("%d channels make %d groups, expected %d", expected[i][0], esper_group_norm_groups(expected[i][0]),
                     expected[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_totals),
        cmocka_unit_test(test_parts_of_b8),
        cmocka_unit_test(test_slots_and_their_orders),
        cmocka_unit_test(test_slots_open_again),
        cmocka_unit_test(test_injection_specs),
        cmocka_unit_test(test_impossible_hosts_are_refused),
        cmocka_unit_test(test_cnn_blueprint_counts),
        cmocka_unit_test(test_transformer_blueprint_counts),
        cmocka_unit_test(test_mlp_blueprint_counts),
        cmocka_unit_test(test_mlp_host),
        cmocka_unit_test(test_topology_names),
        cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_unknown_blueprint),
        cmocka_unit_test(test_attention_seed_needs_four_heads),
        cmocka_unit_test(test_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
