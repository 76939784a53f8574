/* Blueprints as text: what is read, what is refused, and that they are born as others are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/blueprint.h"
#include "nn/blueprint_text.h"
#include "support/small_net.h"

static const char both[] = "wide = [conv 2w | conv w bare] residual; gated = linear 2w | linear w bare";

static void check_resolved(const char *given, const char *expected)
{
    char texts[ESPER_HOST_CHARS];

    if (esper_blueprint_texts_resolve(given, texts) != ESPER_OK)
        fail_msg("%s: %s", given, esper_last_error());
    assert_string_equal(texts, expected);
}

static void check_refused(esper_status status, const char *words)
{
    assert_int_equal(status, ESPER_E_CONFIG);
    if (strstr(esper_last_error(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), words);
}

static void test_printed_form(void **state)
{
    (void)state;
    check_resolved(both, both);
    check_resolved("a=conv w/1|conv 1w", "a = conv w | conv w");
    check_resolved("# mine\n\na = conv 2w # wider\n  conv w\n\nb_2 =\n norm\n linear w bare\n",
                   "a = conv 2w | conv w; b_2 = norm | linear w bare");
}

static void test_mistakes(void **state)
{
    static const struct {
        const char *given, *words;
    } wrong[] = {
        {"=", "expected a name and its text"},
        {"a = conv w; b", "not 'b'"},
        {"a = conv w; b = ", "blueprint b: there is no stage in it"},
        {"a = conv w; a = norm", "'a' stands there twice"},
        {"a=norm;b=norm;c=norm;d=norm;e=norm;f=norm;g=norm;h=norm;i=norm;j=norm;k=norm;l=norm;m=norm;n=norm;o=norm;"
         "p=norm;q=norm",
         "at most 16 can be added"},
        {"a_name_that_is_too_long = norm", "at most 19 characters"},
        {"a = conv 2w | linear", "it has no embed, mean, pool, slot or linear without a width"},
        {"a = conv 65w", "expected w, 2w to 64w, or w/2 to w/64\n   conv 65w\n        ^^^"},
        {"a = con w", "blueprint a: there is no stage 'con'; did you mean 'conv'?\n   con w\n   ^^^"},
        {"nowhere.txt", "neither a file nor a name with its text"},
    };
    char texts[ESPER_HOST_CHARS];

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        check_refused(esper_blueprint_texts_resolve(wrong[i].given, texts), wrong[i].words);
}

static int count_list(esper_topology topology)
{
    int n = 0;

    while (esper_blueprint_list(topology)[n] != NULL)
        n++;
    return n;
}

/* What fits no stream is not added; nothing is left of it. */
static void test_misfits(void **state)
{
    int before = count_list(ESPER_TOPOLOGY_CNN);

    (void)state;
    check_refused(esper_blueprint_texts_add("odd = conv 2w"),
                  "keeps the width of the stream: it ends 128 wide on one of 64");
    check_refused(esper_blueprint_texts_add("odd = linear w"), "ends in linear w bare, which is what its birth scales");
    check_refused(esper_blueprint_texts_add("odd = attention 5 | linear w bare"), "5 heads do not divide the stream");
    check_refused(esper_blueprint_texts_add("norm = conv w"), "there is a blueprint 'norm' already");
    assert_int_equal(count_list(ESPER_TOPOLOGY_CNN), before);
}

static const esper_blueprint *find(esper_topology topology, const char *name)
{
    const esper_blueprint *blueprint = NULL;

    return esper_blueprint_find(topology, name, &blueprint) == ESPER_OK ? blueprint : NULL;
}

/* Added to the topologies that it fits, with a number of its own; once. */
static void test_places(void **state)
{
    int before[ESPER_N_TOPOLOGIES];

    (void)state;
    for (int t = 0; t < ESPER_N_TOPOLOGIES; t++)
        before[t] = count_list((esper_topology)t);
    for (int again = 0; again < 2; again++)
        assert_int_equal(esper_blueprint_texts_add(both), ESPER_OK);
    assert_int_equal(count_list(ESPER_TOPOLOGY_CNN), before[ESPER_TOPOLOGY_CNN] + 1);
    assert_int_equal(count_list(ESPER_TOPOLOGY_TRANSFORMER), before[ESPER_TOPOLOGY_TRANSFORMER] + 1);
    assert_int_equal(count_list(ESPER_TOPOLOGY_MLP), before[ESPER_TOPOLOGY_MLP] + 1);
    assert_int_equal(find(ESPER_TOPOLOGY_CNN, "wide")->index, 14);
    assert_int_equal(find(ESPER_TOPOLOGY_MLP, "gated")->index, 15);
    assert_null(find(ESPER_TOPOLOGY_CNN, "gated"));
    assert_null(find(ESPER_TOPOLOGY_MLP, "wide"));
    check_refused(esper_blueprint_texts_add("wide = conv w"), "there is a blueprint 'wide' already");
    check_refused(esper_blueprint_texts_add("other = conv w"), "'wide' was added before in the place of 'other'");
}

/* Its scale, or its last layer, is born as the birth says. */
static void check_born(esper_topology topology, const char *name, esper_birth birth, const char *scales, float expected)
{
    const esper_blueprint *blueprint = find(topology, name);
    int width = 8, x, scale;
    esper_net net;

    esper_net_init(&net);
    x = topology == ESPER_TOPOLOGY_CNN ? esper_net_input(&net, "x", ESPER_F32, 3, (int[]){width, 4, 4})
                                       : esper_net_input(&net, "x", ESPER_F32, 1, &width);
    esper_blueprint_build(blueprint, &net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD, .birth = birth});
    assert_int_equal(esper_net_status(&net), ESPER_OK);
    scale = esper_net_find(&net, scales);
    assert_true(scale != ESPER_NO_TENSOR);
    assert_float_equal(net.tensors[scale].init.value, expected, 1e-6f);
    esper_net_fini(&net);
}

static void test_births(void **state)
{
    float usual = 1.0f / 4.0f; /* 1 / sqrt(16) */

    (void)state;
    check_born(ESPER_TOPOLOGY_CNN, "wide", ESPER_BIRTH_OWN, "scale", 0.5f);
    check_born(ESPER_TOPOLOGY_CNN, "wide", ESPER_BIRTH_ZERO, "scale", 0.0f);
    check_born(ESPER_TOPOLOGY_CNN, "wide", ESPER_BIRTH_SMALL, "scale", 0.1f);
    check_born(ESPER_TOPOLOGY_MLP, "gated", ESPER_BIRTH_OWN, "blocks.1.linear.weight", 0.0f);
    check_born(ESPER_TOPOLOGY_MLP, "gated", ESPER_BIRTH_SMALL, "blocks.1.linear.weight", 0.1f * usual);
    assert_int_equal(esper_blueprint_check_birth(find(ESPER_TOPOLOGY_CNN, "wide"), ESPER_BIRTH_COPY), ESPER_E_ARG);
}

/* In a host, at every width, in every way a seed can be put into the stream: it trains. */
static void test_trains(void **state)
{
    static const char *const slots[] = {"r0c0", "r1c0", "r0c1", "r1c1"};
    esper_mem_stats memory;

    (void)state;
    for (int mode = 0; mode < SMALL_N_MODES; mode++)
        for (int cnn = 0; cnn < 2; cnn++) {
            small_seed seeds[] = {{slots[cnn ? mode % 4 : 2 * (mode % 2)], cnn ? "wide" : "gated", (small_mode)mode},
                                  {0}};
            small_desc desc = {.backend = "cpu",
                               .n_threads = 1,
                               .host = cnn ? small_cnn() : small_mlp(0.0f),
                               .n_nets = 1,
                               .seeds = {seeds}};
            static small_fleet fleet;

            if (small_fleet_open(&fleet, &desc) != ESPER_OK)
                fail_msg("%s", esper_last_error());
            for (uint32_t step = 0; step < 3; step++)
                assert_int_equal(small_fleet_step(&fleet, step), ESPER_OK);
            assert_true(small_fleet_loss(&fleet, 0) < 100.0);
            small_fleet_close(&fleet);
        }
    esper_mem_stats_get(&memory);
    assert_int_equal(memory.n_live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed_form), cmocka_unit_test(test_mistakes), cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_places),       cmocka_unit_test(test_births),   cmocka_unit_test(test_trains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
