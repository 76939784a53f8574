/* ctest: timeout=120 cost=20 sealed=also */
/* The life of seeds in a network that trains: what a seed may touch and what not, stage by stage. Decisions come from a file.
 * Going back is in test_growth_rollback.c, faults and kills in tests/fault and tests/replay. */
#include <unistd.h>

#include "base/file.h"
#include "grow/growing.h"
#include "tensor/cost.h"

#define BIRTH "1 r0c0 germinate blueprint=conv_light style=linear_add tempo=3\n2 r0c0 advance\n"
#define LIFE                                                                                    \
    BIRTH "14 r0c0 advance\n18 r0c0 advance\n20 r0c0 set_alpha_target target=0.5 speed=3\n" \
          "25 r0c0 set_alpha_target target=1 speed=2\n29 r0c0 advance\n31 r0c0 fossilize\n"

static garden *garden_new(const char *more, const char *script)
{
    garden *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    garden_open(g, more, script, NULL);
    return g;
}

static void garden_free(garden *g)
{
    garden_close(g);
    free(g);
}

static uint32_t age_of(const garden *g, int region)
{
    return esper_optim_group(g->network->optim, 0, region)->t;
}

/* Weights, moments and buffers of a region, copied. */
typedef struct copy {
    float *values[ESPER_N_FAMILIES];
} copy;

static copy copy_region(const garden *g, int region)
{
    copy c = {{NULL}};

    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        size_t n;
        const float *x = region_of(g->network, f, region, &n);

        c.values[f] = calloc(n + 1, sizeof(float));
        assert_non_null(c.values[f]);
        if (n > 0)
            memcpy(c.values[f], x, n * sizeof(float));
    }
    return c;
}

static void free_copy(copy *c)
{
    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        free(c->values[f]);
}

static bool is_same(const garden *g, int family, int region, const copy *c)
{
    size_t n;
    const float *x = region_of(g->network, family, region, &n);

    return n == 0 || memcmp(x, c->values[family], n * sizeof(float)) == 0;
}

/* Whether weights and moments of a region still are what was copied; and whether all of it is, gradients apart. */
static bool has_weights(const garden *g, int region, const copy *c)
{
    return is_same(g, ESPER_FAMILY_PARAM, region, c) && is_same(g, ESPER_FAMILY_MOMENT1, region, c) &&
           is_same(g, ESPER_FAMILY_MOMENT2, region, c);
}

static bool is_copy(const garden *g, int region, const copy *c)
{
    return has_weights(g, region, c) && is_same(g, ESPER_FAMILY_BUFFER, region, c);
}

/* ------------------------------------------------------------------------------------------------ a whole life */

static void lives_a_whole_life(void **state)
{
    garden *g = garden_new("", LIFE);
    int64_t host = esper_net_count_params(&g->network->net, -1);
    double flops_host, flops_grown;
    copy before;

    (void)state;
    grow_until(g, 1);
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    assert_int_equal(esper_net_count_params(&g->network->net, -1), host); /* not part of the network yet */
    grow_until(g, 2);
    check_stage(g, 0, ESPER_STAGE_TRAINING);
    flops_host = esper_growth_account_of(g->growth).flops_sample;
    assert_int_equal(esper_net_count_params(&g->network->net, -1), host + slot_at(g, 0)->seed_params);
    assert_int_equal(esper_net_count_params(&g->network->net, 0), host);
    grow_until(g, 13);
    assert_int_equal(age_of(g, 0), 13 * 5);
    assert_int_equal(age_of(g, 1), 11 * 5);
    grow_until(g, 14);
    check_stage(g, 0, ESPER_STAGE_BLENDING);
    grow_until(g, 18);
    check_stage(g, 0, ESPER_STAGE_HOLDING);
    assert_true(slot_at(g, 0)->alpha.value == 1.0);
    assert_true(esper_optim_norm(g->network->optim, 0, 1) == esper_optim_norm_alone(g->network->optim, 0, 1));
    grow_until(g, 20);
    check_stage(g, 0, ESPER_STAGE_BLENDING);
    assert_true(esper_slot_is_frozen(slot_at(g, 0)));
    for (uint32_t epoch = 21; epoch <= 22; epoch++) { /* alpha goes down: the seed's weights stay */
        uint32_t age = age_of(g, 1);

        before = copy_region(g, 1);
        grow_until(g, epoch);
        assert_true(has_weights(g, 1, &before)); /* its norms follow the stream, which goes on changing */
        assert_int_equal(age_of(g, 1), age);
        free_copy(&before);
    }
    grow_until(g, 25); /* and learns again when it does not */
    before = copy_region(g, 1);
    grow_until(g, 26);
    assert_false(has_weights(g, 1, &before));
    free_copy(&before);
    grow_until(g, 30);
    check_stage(g, 0, ESPER_STAGE_HOLDING);
    train_epoch(g);
    g->last = measure_epoch(g);
    before = copy_region(g, 1);
    check_good(esper_growth_end_epoch(g->growth, &g->last));
    esper_network_next_epoch(g->network);
    check_stage(g, 0, ESPER_STAGE_FOSSILIZED);
    assert_true(is_copy(g, 1, &before)); /* with its moments */
    grow_until(g, 32); /* it has joined the host: one norm over both */
    assert_true(esper_optim_norm(g->network->optim, 0, 0) > esper_optim_norm_alone(g->network->optim, 0, 0));
    assert_false(has_weights(g, 1, &before));
    flops_grown = esper_growth_account_of(g->growth).flops_sample;
    if (!(flops_grown > flops_host && flops_host > 0.0))
        fail_msg("%g FLOPs a sample, grown %g", flops_host, flops_grown);
    free_copy(&before);
    garden_free(g);
}

/* ------------------------------------------------------------------------------------------------ in TRAINING */

static const char *const incubations[] = {"incubation = straight\n", "incubation = aside\n"};

/* The loss of every sample and every gradient of the host. */
static void check_same_pass(const garden *a, const garden *b, const char *what)
{
    const float *x = plan_values(a->network->engine->backend, a->network->plan, a->network->net.loss);
    const float *y = plan_values(b->network->engine->backend, b->network->plan, b->network->net.loss);
    size_t n;

    for (int i = 0; i < a->network->pass.n_samples; i++)
        if (memcmp(&x[i], &y[i], sizeof(float)) != 0)
            fail_msg("%s: loss of sample %d: %.9g and %.9g", what, i, (double)x[i], (double)y[i]);
    x = region_of(a->network, ESPER_FAMILY_GRAD, 0, &n);
    y = region_of(b->network, ESPER_FAMILY_GRAD, 0, &n);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof(float)) != 0)
            fail_msg("%s: gradient %zu of the host: %.9g and %.9g", what, i, (double)x[i], (double)y[i]);
}

static void spoil_region(garden *g, int region)
{
    size_t n;
    float *x = region_of(g->network, ESPER_FAMILY_PARAM, region, &n);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)NAN;
}

/* Step by step beside a run without the seed; then with NaN in every weight of it. */
static void the_host_does_not_notice(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *what = incubations[i];
        garden *grown = garden_new(what, BIRTH), *plain = garden_new(what, NULL);
        copy born;

        grow_until(grown, 2);
        grow_until(plain, 2);
        check_stage(grown, 0, ESPER_STAGE_TRAINING);
        born = copy_region(grown, 1);
        for (uint32_t epoch = 3; epoch <= 8; epoch++) {
            grow_until(grown, epoch);
            grow_until(plain, epoch);
            check_same_region(grown->network, plain->network, 0, what);
            assert_true(grown->last.acc_valid == plain->last.acc_valid &&
                        grown->last.loss_valid == plain->last.loss_valid);
        }
        assert_false(has_weights(grown, 1, &born)); /* it has learnt something, */
        assert_false(is_same(grown, ESPER_FAMILY_BUFFER, 1, &born)); /* and its norms have */
        spoil_region(grown, 1);
        check_good(esper_network_gradients(grown->network));
        check_good(esper_network_gradients(plain->network));
        check_same_pass(grown, plain, what);
        grown->last = measure_epoch(grown);
        plain->last = measure_epoch(plain);
        assert_true(grown->last.acc_valid == plain->last.acc_valid && grown->last.loss_valid == plain->last.loss_valid);
        free_copy(&born);
        garden_free(grown);
        garden_free(plain);
    }
}

/* Gradients of the whole network with the seed at full weight, in the mode side programs run in. */
static void whole_gradients(esper_network *network, float *grads_out, size_t n)
{
    esper_splice splice = network->splice;
    esper_net net;
    esper_plan_net plan_net = {.net = &net, .slab = &network->slab, .pass = &network->pass};
    esper_plan_desc desc = {.backend = network->engine->backend,
                            .nets = &plan_net,
                            .n_nets = 1,
                            .max_samples = network->engine->config.batch,
                            .training = true};
    int inputs[ESPER_MAX_SLOTS];
    esper_plan *plan;
    size_t count;
    const float *grads;

    splice.presence[0] = ESPER_PRESENCE_FULL;
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, &network->engine->host, &net));
    check_good(esper_plan_open(&desc, &plan));
    esper_network_load(network, plan, &net, ESPER_SPLIT_TRAIN, network->cursor.batch);
    esper_splice_find_alphas(&splice, &net, inputs);
    esper_splice_fill_alphas(&splice, inputs, plan, NULL, network->pass.n_samples); /* full weight: not the slot's */
    network->pass.training = false;
    check_good(esper_plan_gradients(plan));
    check_good(esper_backend_sync(network->engine->backend));
    grads = region_of(network, ESPER_FAMILY_GRAD, 1, &count);
    assert_int_equal(count, n);
    memcpy(grads_out, grads, n * sizeof(float));
    esper_plan_close(plan);
    esper_net_fini(&net);
}

/* Aside, a seed learns by what it would do: a transformer, in which training and evaluation are one for a host without
 * dropout, so that the whole network can be asked. */
static void check_aside(int blend)
{
    esper_config config =
        config_of("synth_text", SMALL_TEXT, "policy = none\nincubation = aside\ngates = permissive\nclip = 0\n");
    esper_network *network;
    esper_germination wanted;
    const esper_blueprint *blueprint;
    esper_gate_result result;
    float *aside, *whole, *seed;
    double most = 0.0;
    size_t n;

    check_good(esper_single_open(task_named("synth_text"), &config, ESPER_USE_GROW, &network));
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_TRANSFORMER, "mlp_small", &blueprint));
    esper_germination_init(&wanted, blueprint->name, blueprint->index);
    wanted.blend = blend;
    wanted.ramp = blend == ESPER_BLEND_GATE ? ESPER_RAMP_GATED : ESPER_RAMP_LINEAR;
    check_good(esper_slot_germinate(&network->slots.slot[0], &wanted, NULL));
    check_good(esper_network_bear(network, 0));
    check_good(esper_slot_advance(&network->slots.slot[0], -1, NULL, NULL, &result));
    check_good(esper_network_replan(network));
    for (int i = 0; i < 4; i++) /* away from weights that are 0 at birth */
        check_good(esper_network_step(network));
    check_good(esper_network_gradients(network));
    seed = region_of(network, ESPER_FAMILY_GRAD, 1, &n);
    aside = calloc(n, sizeof(float));
    whole = calloc(n, sizeof(float));
    memcpy(aside, seed, n * sizeof(float));
    whole_gradients(network, whole, n);
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)whole[i]));
        if (!(fabs((double)aside[i] - (double)whole[i]) <= 1e-6 * fmax(1.0, fabs((double)whole[i]))))
            fail_msg("%s: gradient %zu of the seed: %.9g aside, %.9g in the whole network", esper_blend_name(blend), i,
                     (double)aside[i], (double)whole[i]);
    }
    print_message("%s: largest gradient of the seed: %g\n", esper_blend_name(blend), most);
    assert_true(most > 1e-4);
    free(aside);
    free(whole);
    esper_single_close(network);
}

static void learns_aside_by_the_whole_loss(void **state)
{
    (void)state;
    for (int blend = ESPER_BLEND_ADD; blend <= ESPER_BLEND_GATE; blend++)
        check_aside(blend);
}

/* ------------------------------------------------------------------------------------------------ coming and going */

static void leaves_nothing_behind(void **state)
{
    garden *g = garden_new("", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n8 r0c0 prune\n"
                               "16 r0c0 germinate blueprint=conv_light\n17 r0c0 advance\n");
    copy first;

    (void)state;
    grow_until(g, 1);
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    assert_true(region_is_zero(g->network, 1)); /* it is born when it begins to learn */
    grow_until(g, 2);
    first = copy_region(g, 1);
    assert_false(region_is_zero(g->network, 1));
    grow_until(g, 7);
    assert_true(age_of(g, 1) == 25);
    grow_until(g, 8);
    assert_false(esper_slot_is_active(slot_at(g, 0)));
    assert_true(region_is_zero(g->network, 1));
    assert_int_equal(age_of(g, 1), 0);
    assert_int_equal(esper_net_count_params(&g->network->net, 1), 0);
    grow_until(g, 15);
    check_stage(g, 0, ESPER_STAGE_DORMANT);
    assert_true(region_is_zero(g->network, 1));
    grow_until(g, 16);
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    assert_int_equal(slot_at(g, 0)->n_seeds, 2);
    assert_true(region_is_zero(g->network, 1));
    grow_until(g, 17);
    assert_false(region_is_zero(g->network, 1));
    assert_false(has_weights(g, 1, &first)); /* another seed of the same kind, not the same seed */
    grow_until(g, 18);
    assert_int_equal(age_of(g, 1), 5);
    free_copy(&first);
    garden_free(g);
}

/* A probe of the empty slots: it has run (somebody paid for it), and left no trace. */
static void probes_leave_no_trace(void **state)
{
    garden *g = garden_new("policy = heuristic\nattribution = 100\nplateau = 0\nlr = 1e-6\n", NULL);
    copy host, seed;
    double spent;

    (void)state;
    grow_until(g, 5); /* nothing is learnt, so the host has settled; but it is no plateau of accuracy yet */
    train_epoch(g);
    host = copy_region(g, 0);
    seed = copy_region(g, 1);
    spent = esper_growth_account_of(g->growth).flops_train;
    g->last = measure_epoch(g);
    assert_true(esper_growth_account_of(g->growth).flops_train > spent);
    assert_true(is_copy(g, 0, &host) && is_copy(g, 1, &seed));
    assert_true(region_is_zero(g->network, 1) && region_is_zero(g->network, 2));
    free_copy(&host);
    free_copy(&seed);
    garden_free(g);
}

/* Attribution takes its share of an epoch's FLOPs, over the epochs it is spread over, and no more. */
static void attribution_keeps_its_budget(void **state)
{
    static const char *const shares[] = {"attribution = 0.25\n", "attribution = 0.02\n"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        garden *g = garden_new(shares[i], BIRTH);
        double training = 0.0, measuring = 0.0, before;
        int n_measured = 0;

        grow_until(g, 2);
        while (g->network->cursor.epoch < 38) {
            before = esper_growth_account_of(g->growth).flops_train;
            train_epoch(g);
            training += esper_growth_account_of(g->growth).flops_train - before;
            before = esper_growth_account_of(g->growth).flops_train;
            g->last = measure_epoch(g);
            measuring += esper_growth_account_of(g->growth).flops_train - before;
            n_measured += esper_growth_account_of(g->growth).flops_train > before;
            check_good(esper_growth_end_epoch(g->growth, &g->last));
            esper_network_next_epoch(g->network);
        }
        print_message("share %g: %d of 36 epochs measured, %.3f of the training's FLOPs\n", g->config.attribution,
                      n_measured, measuring / training);
        assert_true(n_measured > 0);
        assert_true(measuring <= g->config.attribution * training);
        garden_free(g);
    }
}

/* ------------------------------------------------------------------------------------------------ refusals */

/* One decision made by a log, which no mask looks at. */
static void check_refused(const char *more, int epoch, int op, int slot, int blueprint, const char *words)
{
    enum { EPOCHS = 5 };
    esper_log_entry entries[EPOCHS] = {0};
    esper_decision_history history = {.entries = entries, .n = EPOCHS};
    garden *g = calloc(1, sizeof(*g));
    esper_slots before;

    g->config = config_of("synth", GROWING "policy = none\n", more);
    check_good(esper_single_open(task_named("synth"), &g->config, ESPER_USE_GROW, &g->network));
    for (int i = 0; i < EPOCHS; i++) {
        entries[i] = (esper_log_entry){.epoch = i + 1, .step = (uint64_t)(i + 1) * 5, .source = ESPER_LOG_POLICY};
        esper_decision_init(&entries[i].decision, i == 0 ? ESPER_SLOT_OP_GERMINATE : ESPER_SLOT_OP_WAIT);
        entries[i].decision.slot = 0;
        if (i == 0)
            check_good(esper_decision_set(&entries[i].decision, ESPER_TOPOLOGY_CNN, "blueprint", "conv_light"));
    }
    esper_decision_init(&entries[epoch - 1].decision, op);
    entries[epoch - 1].decision.slot = slot;
    entries[epoch - 1].decision.blueprint = blueprint;
    for (int i = 0; i < EPOCHS; i++)
        if (entries[i].decision.slot >= 0 && entries[i].decision.slot < g->network->slots.n)
            snprintf(entries[i].slot, sizeof(entries[i].slot), "%s", slot_at(g, entries[i].decision.slot)->id);
    check_good(esper_growth_open(g->network, &history, NULL, &g->growth));
    check_good(esper_guarded_open(g->network));
    check_good(esper_growth_attach(g->growth, &(esper_growth_records){0}));
    grow_until(g, (uint32_t)epoch - 1);
    before = g->network->slots;
    grow_until(g, (uint32_t)epoch);
    if (esper_growth_look_at(g->growth).accepted)
        fail_msg("%s %d in epoch %d was done (%s)", esper_slot_op_name(op), slot, epoch, more);
    if (strstr(esper_growth_look_at(g->growth).refusal, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_growth_look_at(g->growth).refusal, words);
    for (int k = 0; k < before.n; k++)
        assert_int_equal(slot_at(g, k)->stage, before.slot[k].stage);
    garden_free(g);
}

static void refuses_what_cannot_be(void **state)
{
    const esper_blueprint *light;
    char limit[64], by_size[64], by_flops[64];
    garden *g = garden_new("", NULL);

    (void)state;
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &light));
    snprintf(limit, sizeof(limit), "max_params = %d\n", (int)esper_net_count_params(&g->network->net, -1) + 1);
    snprintf(by_size, sizeof(by_size), "max_kib = %g\n",
             (double)(esper_net_count_params(&g->network->net, -1) + 1) / 256.0);
    snprintf(by_flops, sizeof(by_flops), "max_flops = %.17g\n", esper_net_flops(&g->network->net) + 1.0);
    garden_free(g);
    check_refused(limit, 1, ESPER_SLOT_OP_GERMINATE, 0, light->index, "parameters");
    check_refused(by_size, 1, ESPER_SLOT_OP_GERMINATE, 0, light->index, "parameters");
    check_refused(by_flops, 1, ESPER_SLOT_OP_GERMINATE, 0, light->index, "budget");
    check_refused("max_seeds = 1\n", 2, ESPER_SLOT_OP_GERMINATE, 1, light->index, "max_seeds");
    check_refused("", 1, ESPER_SLOT_OP_GERMINATE, 0, 77, "blueprint");
    check_refused("", 1, ESPER_SLOT_OP_GERMINATE, 99, light->index, "slot");
    check_refused("", 2, ESPER_SLOT_OP_GERMINATE, 0, light->index, "");
    check_refused("", 2, ESPER_SLOT_OP_FOSSILIZE, 0, -1, "");
    check_refused("", 2, ESPER_SLOT_OP_PRUNE, 1, -1, "");
    check_refused("", 1, ESPER_SLOT_OP_ADVANCE, 1, -1, "");
}

static void a_script_keeps_to_the_limits(void **state)
{
    garden *g =
        garden_new("max_seeds = 1\n", "1 r0c0 germinate blueprint=conv_light\n2 r0c1 germinate blueprint=conv_light\n");

    (void)state;
    grow_until(g, 1);
    check_fails(try_epoch(g), ESPER_E_STATE, "script.txt:2|max_seeds");
    assert_int_equal(g->network->cursor.epoch, 1);
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    garden_free(g);
}

/* ------------------------------------------------------------------------------------------------ whole runs */

static esper_status run_grow(const esper_config *config, const char *resume, bool grows, esper_run_result *result)
{
    esper_run_desc desc = {
        .task = resume == NULL ? task_named("synth") : NULL, .config = config, .resume = resume, .grows = grows};

    return esper_run_train(&desc, result);
}

/* Growing costs nothing, and changes nothing, where it does not grow. */
static void none_is_training(void **state)
{
    static const char *const settings[] = {"", "optimizer = adamw\nlr = 1e-3\ncrop = 2\nflip = true\n",
                                           "threads = 2\nschedule = cosine\nclip = 0.1\n"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_config config = config_of("synth", GROWING "epochs = 4\npolicy = none\n", settings[i]);
        esper_run_result grown, trained;
        char dirs[64];

        snprintf(dirs, sizeof(dirs), "run_dir = none-%d\n", i);
        set_keys(&config, dirs);
        check_good(run_grow(&config, NULL, true, &grown));
        snprintf(dirs, sizeof(dirs), "run_dir = train-%d\n", i);
        set_keys(&config, dirs);
        check_good(run_grow(&config, NULL, false, &trained));
        if (grown.weight_hash != trained.weight_hash)
            fail_msg("%s: weights %016" PRIx64 " and %016" PRIx64, settings[i], grown.weight_hash, trained.weight_hash);
        assert_true(grown.loss_test == trained.loss_test && grown.last.loss_valid == trained.last.loss_valid);
        assert_int_equal(grown.params, trained.params);
    }
}

static void write_program(const char *answers)
{
    char text[2048];

    snprintf(text, sizeof(text), "n=0\nwhile read -r line; do\nn=$((n+1))\n%s\ndone\n", answers);
    write_file("policy.sh", text);
}

/* Everything that a checkpoint says of the growth, and the governor's memory. */
static void check_same_notes(const char *dir_a, const char *dir_b)
{
    static const char *const notes[] = {"slots", "cursor", "optim", "governor", "weight_hash"};
    char path_a[ESPER_PATH_CHARS], path_b[ESPER_PATH_CHARS];
    esper_safetensors *a, *b;

    check_good(esper_safetensors_open(checkpoint_of(dir_a, path_a), &a));
    check_good(esper_safetensors_open(checkpoint_of(dir_b, path_b), &b));
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
        const char *x = esper_safetensors_note_find(a, notes[i]), *y = esper_safetensors_note_find(b, notes[i]);

        if (x == NULL || y == NULL || strcmp(x, y) != 0)
            fail_msg("%s and %s: %s: %s and %s", dir_a, dir_b, notes[i], x, y);
    }
    esper_safetensors_close(a);
    esper_safetensors_close(b);
}

static char *read_log(const char *dir)
{
    char path[ESPER_PATH_CHARS], *text;
    size_t bytes;

    check_good(esper_run_path(dir, ESPER_RUN_DECISIONS, path));
    check_good(esper_file_read(path, 1 << 24, &text, &bytes));
    return text;
}

#define ANSWER                                                                                                     \
    "e=${line#*\\\"epoch\\\":}; e=${e%%[!0-9]*}\n"                                                                \
    "case $e in 1) echo '{\"epoch\":1,\"op\":\"germinate\",\"slot\":\"r0c0\",\"blueprint\":\"conv_light\"}';;\n" \
    "2) echo '{\"epoch\":2,\"op\":\"advance\",\"slot\":\"r0c0\"}';;\n"                                             \
    "*) echo \"{\\\"epoch\\\":$e,\\\"op\\\":\\\"wait\\\"}\";; esac\n"

/* A program that dies: the run stops before the decision, and asks again when it is resumed; nothing shows of it then. */
static void a_program_that_dies_is_asked_again(void **state)
{
    static const char *const dying[] = {"[ $n -lt 3 ] || exit 3\n" ANSWER, "exit 1\n"};
    esper_config config = config_of("synth", GROWING "epochs = 5\n", "policy_cmd = sh policy.sh\nrun_dir = whole\n");
    const esper_config_source flag = {.place = ESPER_CONFIG_FLAG};
    esper_config nothing, again;
    esper_run_result whole, part;
    char *log;

    (void)state;
    esper_config_init(&nothing);
    esper_config_init(&again);
    check_good(esper_config_set(&again, "policy_cmd", "sh policy.sh", &flag));
    write_program(ANSWER);
    check_good(run_grow(&config, NULL, true, &whole));
    log = read_log("whole");
    assert_non_null(strstr(log, "\"germinate\""));
    for (int i = 0; i < 2; i++) {
        const char *dir = i == 0 ? "third" : "first";
        char *its_log;

        write_program(dying[i]);
        set_keys(&config, i == 0 ? "run_dir = third\n" : "run_dir = first\n");
        check_fails(run_grow(&config, NULL, true, &part), ESPER_E_IO, "policy.sh|before the decision|--resume");
        check_fails(run_grow(&again, dir, true, &part), ESPER_E_IO, "policy.sh"); /* it still dies */
        write_program(ANSWER);
        check_fails(run_grow(&nothing, dir, true, &part), ESPER_E_CONFIG,
                    "a file starts none|--policy-cmd 'sh policy.sh'");
        check_good(run_grow(&again, dir, true, &part));
        if (part.weight_hash != whole.weight_hash)
            fail_msg("%s: weights %016" PRIx64 " and %016" PRIx64, dir, part.weight_hash, whole.weight_hash);
        its_log = read_log(dir);
        assert_string_equal(its_log, log);
        check_same_notes("whole", dir);
        esper_mem_free(its_log);
    }
    esper_mem_free(log);
}

/* A program may have 16,383 bytes remembered: they travel in snapshots and checkpoints. */
static void a_program_remembers_much(void **state)
{
    esper_config config = config_of("synth", GROWING "epochs = 3\n", "policy_cmd = sh policy.sh\nrun_dir = memory\n");
    esper_run_result result;

    (void)state;
    write_program("m=$(head -c 16383 /dev/zero | tr '\\0' x)\n"
                  "[ $n -eq 1 ] || case $line in *\\\"xxx*) ;; *) exit 4;; esac\n"
                  "echo \"{\\\"epoch\\\":$n,\\\"op\\\":\\\"wait\\\",\\\"memory\\\":\\\"$m\\\"}\"\n");
    check_good(run_grow(&config, NULL, true, &result));
    assert_int_equal(result.last.epoch, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives_a_whole_life),
        cmocka_unit_test(the_host_does_not_notice),
        cmocka_unit_test(learns_aside_by_the_whole_loss),
        cmocka_unit_test(leaves_nothing_behind),
        cmocka_unit_test(probes_leave_no_trace),
        cmocka_unit_test(attribution_keeps_its_budget),
        cmocka_unit_test(refuses_what_cannot_be),
        cmocka_unit_test(a_script_keeps_to_the_limits),
        cmocka_unit_test(none_is_training),
        cmocka_unit_test(a_program_that_dies_is_asked_again),
        cmocka_unit_test(a_program_remembers_much),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
