/* ctest: timeout=120 */
/* A host with its seeds as one program: what stands in it for each stage, that a seed in training leaves the host alone,
 * that keys tell programs apart, and that regions are large enough for whatever may be put there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "slot/splice.h"
#include "support/small_net.h"

enum { SAMPLES = 19, RUN_SEED = 7 };

static const esper_incubation incubations[] = {ESPER_INCUBATION_STRAIGHT, ESPER_INCUBATION_ASIDE};

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* ------------------------------------------------------------------------------------------------ hosts and slots */

static esper_host host_of(esper_topology topology)
{
    return topology == ESPER_TOPOLOGY_CNN ? small_cnn() : small_transformer(0.0f);
}

/* A seed that computes, with parameters and, in the cnn, with a norm. */
static const char *usual_seed(esper_topology topology)
{
    return topology == ESPER_TOPOLOGY_CNN ? "conv_light" : "mlp_small";
}

typedef struct garden {
    esper_host   host;
    esper_slots  slots;
    esper_splice splice;
} garden;

static void open_garden(garden *g, esper_topology topology)
{
    esper_slot_rules rules = {.permissive = true};
    esper_net net;

    *g = (garden){.host = host_of(topology)};
    esper_net_init(&net);
    check_good(esper_host_build(&g->host, &net));
    check_good(esper_slots_init(&g->slots, net.boundaries, net.n_boundaries, &rules));
    esper_net_fini(&net);
    g->splice = (esper_splice){.topology = topology, .slots = &g->slots, .training = true};
}

static void germinate(garden *g, int k, const char *blueprint, int blend)
{
    const esper_blueprint *found;
    esper_germination wanted;

    check_good(esper_blueprint_find(g->splice.topology, blueprint, &found));
    esper_germination_init(&wanted, blueprint, found->index);
    wanted.blend = blend;
    wanted.ramp = blend == ESPER_BLEND_GATE ? ESPER_RAMP_GATED : ESPER_RAMP_LINEAR;
    wanted.tempo = 3;
    check_good(esper_slot_germinate(&g->slots.slot[k], &wanted, NULL));
}

/* On from GERMINATED, gates open. */
static void lead_to(garden *g, int k, int stage)
{
    esper_slot *slot = &g->slots.slot[k];

    for (int i = 0; i < 100 && slot->stage != stage; i++) {
        esper_gate_result result;

        check_good(esper_slot_record_accuracy(slot, 50.0 + i));
        esper_slot_set_gradient(slot, &(esper_slot_gradient){.norm = 1.0, .health = 0.9, .ratio = 0.4});
        esper_slot_set_contribution(slot, 5.0);
        check_good(esper_slot_advance(slot, -1, NULL, NULL, &result));
        if (slot->stage != stage)
            esper_slot_tick(slot, NULL, NULL);
    }
    if (slot->stage != stage)
        fail_msg("the seed stands in %s", esper_stage_name(slot->stage));
}

static void plant(garden *g, int k, const char *blueprint, int blend, int stage)
{
    germinate(g, k, blueprint, blend);
    lead_to(g, k, stage);
}

static void uproot(garden *g, int k)
{
    check_good(esper_slot_prune(&g->slots.slot[k], "test", "test", NULL));
    while (!esper_slot_is_empty(&g->slots.slot[k]))
        esper_slot_tick(&g->slots.slot[k], NULL, NULL);
}

/* ------------------------------------------------------------------------------------------------ programs */

/* To be freed by free. */
static char *text_of(const garden *g)
{
    esper_net net;
    char *text;

    esper_net_init(&net);
    check_good(esper_splice_build(&g->splice, &g->host, &net));
    assert_null(net.hook);
    text = small_text(&net);
    esper_net_fini(&net);
    return text;
}

static bool has_op(const garden *g, esper_op_kind kind)
{
    char word[ESPER_NAME_CHARS], *text = text_of(g);
    bool found;

    snprintf(word, sizeof(word), " = %s ", esper_op_info_of(kind)->name);
    found = strstr(text, word) != NULL;
    free(text);
    return found;
}

static void check_text(const garden *g, const char *what, const char *expected)
{
    char *text = text_of(g);

    if (strcmp(text, expected) != 0)
        fail_msg("%s: expected the program\n%s\nfound\n%s", what, expected, text);
    free(text);
}

static char *plain_text(const garden *g)
{
    esper_net net;
    char *text;

    esper_net_init(&net);
    check_good(esper_host_build(&g->host, &net));
    text = small_text(&net);
    esper_net_fini(&net);
    return text;
}

static void check_plain_program(esper_topology topology)
{
    garden g;
    char *plain;

    open_garden(&g, topology);
    plain = plain_text(&g);
    check_text(&g, "an empty table", plain);
    g.splice.training = false;
    check_text(&g, "an empty table, evaluated", plain);
    germinate(&g, 0, usual_seed(topology), ESPER_BLEND_ADD);
    check_text(&g, "a germinated seed, evaluated", plain);
    g.splice.training = true;
    check_text(&g, "a germinated seed", plain);
    lead_to(&g, 0, ESPER_STAGE_TRAINING);
    g.splice.presence[0] = ESPER_PRESENCE_OUT;
    check_text(&g, "a seed in training, left out", plain);
    g.splice.presence[0] = ESPER_PRESENCE_AS_IS;
    g.splice.training = false;
    check_text(&g, "a seed in training, evaluated", plain);
    assert_false(esper_splice_has_seed(&g.splice, 0));
    g.splice.training = true;
    assert_true(esper_splice_has_seed(&g.splice, 0));
    check_good(esper_slot_prune(&g.slots.slot[0], "test", "test", NULL));
    check_text(&g, "a slot that cools down", plain);
    free(plain);
}

static void test_plain_program(void **state)
{
    (void)state;
    check_plain_program(ESPER_TOPOLOGY_CNN);
    check_plain_program(ESPER_TOPOLOGY_TRANSFORMER);
}

/* Straight, the seed stands behind the stream; aside, it has a place for its weights and no operation at all. */
static void test_incubation(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        esper_net straight, aside;
        garden g;

        open_garden(&g, (esper_topology)t);
        plant(&g, 0, usual_seed((esper_topology)t), ESPER_BLEND_ADD, ESPER_STAGE_TRAINING);
        assert_true(has_op(&g, ESPER_OP_STRAIGHT_THROUGH));
        esper_net_init(&straight);
        check_good(esper_splice_build(&g.splice, &g.host, &straight));
        g.splice.incubation = ESPER_INCUBATION_ASIDE;
        assert_false(has_op(&g, ESPER_OP_STRAIGHT_THROUGH) || has_op(&g, ESPER_OP_ISOLATE));
        esper_net_init(&aside);
        check_good(esper_splice_build(&g.splice, &g.host, &aside));
        assert_true(aside.n_ops < straight.n_ops);
        assert_int_equal(esper_net_count_params(&aside, 1), esper_net_count_params(&straight, 1));
        assert_true(esper_net_count_params(&aside, 1) > 0);
        esper_net_fini(&straight);
        esper_net_fini(&aside);
    }
}

/* At full weight ADD is the stream itself: no blend and no alpha, also while it still holds. Others keep theirs. */
static void test_folded(void **state)
{
    static const int stages[] = {ESPER_STAGE_HOLDING, ESPER_STAGE_FOSSILIZED};
    static const struct {
        int           blend;
        esper_op_kind kind;
    } others[] = {{ESPER_BLEND_MULTIPLY, ESPER_OP_BLEND_MUL}, {ESPER_BLEND_GATE, ESPER_OP_BLEND_GATE}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        esper_topology topology = (esper_topology)(i % 2);
        garden g;
        char *text;

        open_garden(&g, topology);
        plant(&g, 1, usual_seed(topology), ESPER_BLEND_ADD, ESPER_STAGE_BLENDING);
        assert_true(has_op(&g, ESPER_OP_BLEND_ADD));
        lead_to(&g, 1, stages[i / 2]);
        assert_false(has_op(&g, ESPER_OP_BLEND_ADD));
        text = text_of(&g);
        assert_null(strstr(text, ".alpha"));
        free(text);
        assert_true(esper_splice_alpha(&g.splice, 1) == 1.0f);
        open_garden(&g, topology);
        plant(&g, 1, usual_seed(topology), others[i / 2].blend, ESPER_STAGE_FOSSILIZED);
        assert_true(has_op(&g, others[i / 2].kind));
    }
}

/* A trial blend: a seed in training as if it had full weight. */
static void test_trial(void **state)
{
    garden g;

    (void)state;
    open_garden(&g, ESPER_TOPOLOGY_CNN);
    plant(&g, 0, "conv_light", ESPER_BLEND_ADD, ESPER_STAGE_TRAINING);
    g.splice.training = false;
    g.splice.presence[0] = ESPER_PRESENCE_FULL;
    assert_true(esper_splice_has_seed(&g.splice, 0));
    assert_true(esper_splice_alpha(&g.splice, 0) == 1.0f);
    assert_false(has_op(&g, ESPER_OP_BLEND_ADD) || has_op(&g, ESPER_OP_STRAIGHT_THROUGH) ||
                 has_op(&g, ESPER_OP_ISOLATE));
}

/* ------------------------------------------------------------------------------------------------ keys */

enum { MOST_PROGRAMS = 32 };

typedef struct census {
    int      n;
    uint64_t key[MOST_PROGRAMS];
    char    *text[MOST_PROGRAMS];
    bool     training[MOST_PROGRAMS];
} census;

/* Equal keys where the programs are equal, and only there; whether gradients are computed is part of a program. */
static void note(census *c, const garden *g)
{
    int n = c->n++;

    assert_in_range(n, 0, MOST_PROGRAMS - 1);
    c->key[n] = esper_splice_key(&g->splice);
    c->text[n] = text_of(g);
    c->training[n] = g->splice.training;
    for (int i = 0; i < n; i++) {
        bool same = strcmp(c->text[i], c->text[n]) == 0 && c->training[i] == c->training[n];

        if (same != (c->key[i] == c->key[n]))
            fail_msg("programs %d and %d are %s, their keys %016llx and %016llx\n%s\n%s", i, n,
                     same ? "the same" : "different", (unsigned long long)c->key[i], (unsigned long long)c->key[n],
                     c->text[i], c->text[n]);
    }
}

/* The program under every setting that may or may not matter. */
static void note_settings(census *c, garden *g)
{
    note(c, g);
    g->splice.incubation = ESPER_INCUBATION_ASIDE;
    note(c, g);
    g->splice.incubation = ESPER_INCUBATION_STRAIGHT;
}

static void check_keys(esper_topology topology)
{
    census c = {0};
    garden g;

    open_garden(&g, topology);
    note_settings(&c, &g);
    g.splice.probes = true;
    note(&c, &g);
    g.splice.probes = false;
    germinate(&g, 0, usual_seed(topology), ESPER_BLEND_ADD);
    note(&c, &g);
    lead_to(&g, 0, ESPER_STAGE_TRAINING);
    note_settings(&c, &g);
    g.splice.presence[0] = ESPER_PRESENCE_OUT;
    note(&c, &g);
    g.splice.presence[0] = ESPER_PRESENCE_AS_IS;
    g.splice.training = false;
    note(&c, &g);
    g.splice.training = true;
    g.slots.slot[0].isolate_blending = 1; /* makes no difference yet */
    note(&c, &g);
    lead_to(&g, 0, ESPER_STAGE_BLENDING);
    note(&c, &g);
    g.slots.slot[0].isolate_blending = 0;
    note_settings(&c, &g);
    g.slots.slot[0].alpha.value = 0.5; /* a value, no other program */
    note(&c, &g);
    lead_to(&g, 0, ESPER_STAGE_HOLDING);
    note(&c, &g);
    uproot(&g, 0);
    note(&c, &g);
    plant(&g, 0, usual_seed(topology), ESPER_BLEND_ADD, ESPER_STAGE_TRAINING); /* the second of its kind */
    note(&c, &g);
    uproot(&g, 0);
    plant(&g, 1, usual_seed(topology), ESPER_BLEND_ADD, ESPER_STAGE_TRAINING); /* in another slot */
    note(&c, &g);
    uproot(&g, 1);
    plant(&g, 0, "norm", ESPER_BLEND_ADD, ESPER_STAGE_TRAINING);
    note(&c, &g);
    uproot(&g, 0);
    plant(&g, 0, "norm", ESPER_BLEND_GATE, ESPER_STAGE_TRAINING);
    note(&c, &g);
    for (int i = 0; i < c.n; i++)
        free(c.text[i]);
}

static void test_keys(void **state)
{
    (void)state;
    check_keys(ESPER_TOPOLOGY_CNN);
    check_keys(ESPER_TOPOLOGY_TRANSFORMER);
}

/* ------------------------------------------------------------------------------------------------ runs */

/* One forward and backward pass on noise. */
static void open_run(small_run *run, const garden *g, const char *backend)
{
    esper_net_init(&run->net);
    check_good(esper_splice_build(&g->splice, &g->host, &run->net));
    small_run_open_on(run, backend, 2, SAMPLES, true);
}

static void open_plain(small_run *run, const garden *g, const char *backend)
{
    esper_net_init(&run->net);
    check_good(esper_host_build(&g->host, &run->net));
    small_run_open_on(run, backend, 2, SAMPLES, true);
}

static void fill_inputs(small_run *run)
{
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        esper_rng_key key = {.seed = RUN_SEED, .purpose = ESPER_RNG_TEST, .sample = t != run->net.input};
        float *data = esper_plan_data(run->plan, 0, t);
        esper_rng rng;

        esper_rng_init(&rng, &key);
        for (int64_t i = 0; tensor->role == ESPER_ROLE_INPUT && i < tensor->count * SAMPLES; i++)
            if (tensor->dtype == ESPER_I32)
                ((int32_t *)data)[i] = (int32_t)esper_rng_below(&rng, 5);
            else
                data[i] = esper_rng_normal(&rng);
    }
}

static void go(small_run *run)
{
    fill_inputs(run);
    check_good(esper_plan_forward(run->plan));
    check_good(esper_plan_backward(run->plan));
    check_good(esper_backend_sync(run->backend));
}

static void check_bits(const char *what, const float *expected, const float *found, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&expected[i], &found[i], sizeof(float)) != 0)
            fail_msg("%s: element %lld: expected %.9g, found %.9g", what, (long long)i, (double)expected[i],
                     (double)found[i]);
}

/* Outputs, losses, and the gradients of the host's parameters are those of the host alone, bit for bit. */
static void check_host_alone(const small_run *plain, const small_run *grown)
{
    for (int t = 0; t < plain->net.n_tensors; t++) {
        const esper_tensor *tensor = &plain->net.tensors[t];
        int twin = esper_net_find(&grown->net, tensor->name);

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        assert_int_not_equal(twin, ESPER_NO_TENSOR);
        check_bits(tensor->name, esper_plan_grad(plain->plan, 0, t), esper_plan_grad(grown->plan, 0, twin),
                   tensor->count);
    }
    check_bits("the output", esper_plan_data(plain->plan, 0, plain->net.output),
               esper_plan_data(grown->plan, 0, grown->net.output),
               plain->net.tensors[plain->net.output].count * SAMPLES);
    check_bits("the loss", esper_plan_data(plain->plan, 0, plain->net.loss),
               esper_plan_data(grown->plan, 0, grown->net.loss), SAMPLES);
}

/* Every weight of a region, the seed's. */
static void set_region(small_run *run, int region, float value)
{
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        float *data = esper_slab_at(&run->slab, ESPER_FAMILY_PARAM, tensor);

        for (int64_t i = 0; data != NULL && tensor->region == region && i < tensor->count; i++)
            data[i] = value;
    }
}

/* The largest gradient of a region; NaN when one of them is. */
static double largest_gradient(const small_run *run, int region)
{
    double most = 0.0;

    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        const float *grad = tensor->role == ESPER_ROLE_PARAM ? esper_plan_grad(run->plan, 0, t) : NULL;

        for (int64_t i = 0; grad != NULL && tensor->region == region && i < tensor->count; i++)
            most = isnan(grad[i]) || fabs((double)grad[i]) > most ? fabs((double)grad[i]) : most;
    }
    return most;
}

/* A seed in training in slot k, whole and with every weight spoiled. */
static void check_unfelt(garden *g, int k, const char *backend)
{
    small_run plain = {0}, grown = {0};
    double most;

    open_plain(&plain, g, backend);
    go(&plain);
    open_run(&grown, g, backend);
    go(&grown);
    check_host_alone(&plain, &grown);
    most = largest_gradient(&grown, k + 1);
    if (g->splice.incubation == ESPER_INCUBATION_STRAIGHT && !(isfinite(most) && most > 0.0))
        fail_msg("%s in slot %d learns with a gradient of %g", g->slots.slot[k].blueprint, k, most);
    set_region(&grown, k + 1, NAN);
    go(&grown);
    check_host_alone(&plain, &grown);
    small_run_close(&grown);
    small_run_close(&plain);
}

static void test_training_is_unfelt(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        esper_topology topology = (esper_topology)(i % 2);
        garden g;

        open_garden(&g, topology);
        g.splice.incubation = incubations[i / 2 % 2];
        for (int k = 0; k < g.slots.n; k++) {
            plant(&g, k, usual_seed(topology), ESPER_BLEND_ADD, ESPER_STAGE_TRAINING);
            check_unfelt(&g, k, i / 4 == 0 ? "ref" : "cpu");
            uproot(&g, k);
        }
    }
}

/* Nobody listens to the gate's network yet: its weights are there, it gets no gradient, and the rest trains. */
static void test_gate_in_training(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        esper_topology topology = (esper_topology)(i % 2);
        garden g;
        char *text;

        open_garden(&g, topology);
        g.splice.incubation = incubations[i / 2 % 2];
        plant(&g, 1, usual_seed(topology), ESPER_BLEND_GATE, ESPER_STAGE_TRAINING);
        text = text_of(&g);
        assert_non_null(strstr(text, ".gate."));
        free(text);
        check_unfelt(&g, 1, i / 4 == 0 ? "ref" : "cpu");
    }
}

/* An empty slot with a probe: the output is the host's own, and the gradient says something. */
static void test_probe(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        small_run plain = {0}, probed = {0};
        const char *backend = i / 2 == 0 ? "ref" : "cpu";
        garden g;

        open_garden(&g, (esper_topology)(i % 2));
        g.splice.probes = true;
        open_plain(&plain, &g, backend);
        go(&plain);
        open_run(&probed, &g, backend);
        go(&probed);
        check_host_alone(&plain, &probed);
        for (int k = 0; k < g.slots.n; k++) {
            double most = largest_gradient(&probed, k + 1);

            assert_false(esper_splice_has_seed(&g.splice, k));
            if (!(isfinite(most) && most > 0.0))
                fail_msg("%s: the probe of slot %s has a gradient of %g", backend, g.slots.slot[k].id, most);
        }
        small_run_close(&probed);
        small_run_close(&plain);
    }
}

/* ------------------------------------------------------------------------------------------------ reservations */

static void check_room(const garden *g, const esper_slab_desc *desc, const char *what)
{
    esper_net net;

    esper_net_init(&net);
    check_good(esper_splice_build(&g->splice, &g->host, &net));
    for (int r = 1; r < net.n_regions; r++)
        if (net.region_params[r] > desc->region_params[r] || net.region_buffers[r] > desc->region_buffers[r])
            fail_msg("%s in region %d: %lld parameters and %lld buffers, room for %lld and %lld", what, r,
                     (long long)net.region_params[r], (long long)net.region_buffers[r],
                     (long long)desc->region_params[r], (long long)desc->region_buffers[r]);
    assert_true(net.n_regions <= desc->n_regions);
    esper_net_fini(&net);
}

/* Every blueprint with every operator, and the probe, in every slot of the slab's region for it. */
static void check_reservations(esper_topology topology)
{
    static const int blends[] = {ESPER_BLEND_ADD, ESPER_BLEND_MULTIPLY, ESPER_BLEND_GATE};
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    esper_slab_desc desc = {.n_moments = 1}, probe_alone = {.n_moments = 1};
    garden g;

    open_garden(&g, topology);
    check_good(esper_splice_reserve(&g.slots, NULL, topology, UINT32_MAX, -1, &desc));
    check_good(esper_splice_reserve(&g.slots, NULL, topology, 0, -1, &probe_alone));
    assert_int_equal(desc.n_regions, g.slots.n + 1);
    g.splice.probes = true;
    check_room(&g, &desc, "the probe");
    check_room(&g, &probe_alone, "the probe");
    g.splice.probes = false;
    for (int i = 0; list[i] != NULL; i++)
        for (int b = 0; b < 3; b++)
            for (int k = 0; k < g.slots.n; k++) {
                esper_slab_desc single = {.n_moments = 1};

                plant(&g, k, list[i]->name, blends[b], ESPER_STAGE_TRAINING);
                check_room(&g, &desc, list[i]->name);
                check_good(esper_splice_reserve(&g.slots, NULL, topology, ESPER_BIT(list[i]->index), -1, &single));
                check_room(&g, &single, list[i]->name);
                uproot(&g, k);
            }
}

static void test_reservations(void **state)
{
    (void)state;
    check_reservations(ESPER_TOPOLOGY_CNN);
    check_reservations(ESPER_TOPOLOGY_TRANSFORMER);
}

/* What a seed counts as is what it adds to the network. */
static void test_counts(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const esper_blueprint *const *list = esper_blueprint_list((esper_topology)t);
        garden g;

        open_garden(&g, (esper_topology)t);
        for (int i = 0; list[i] != NULL; i++) {
            int channels = g.slots.slot[1].channels;
            int64_t expected =
                esper_splice_count_params(list[i], channels) + esper_splice_count_gate((esper_topology)t, channels);
            esper_net net;

            plant(&g, 1, list[i]->name, ESPER_BLEND_GATE, ESPER_STAGE_TRAINING);
            esper_net_init(&net);
            check_good(esper_splice_build(&g.splice, &g.host, &net));
            if (esper_net_count_params(&net, 2) != expected)
                fail_msg("%s: %lld parameters, counted as %lld", list[i]->name,
                         (long long)esper_net_count_params(&net, 2), (long long)expected);
            esper_net_fini(&net);
            uproot(&g, 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_program),
        cmocka_unit_test(test_incubation),
        cmocka_unit_test(test_folded),
        cmocka_unit_test(test_trial),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_training_is_unfelt),
        cmocka_unit_test(test_gate_in_training),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_reservations),
        cmocka_unit_test(test_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
