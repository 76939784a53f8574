/* ctest: timeout=60 labels=golden */
/* Rewards of one step with one seed: every recorded step of every mode with its parts, the helpers, the recorded sums of the
 * specification, and what must hold for any input. */
#include "policy/helpers.h"

#include "policy/reward_terms.h"

/* ------------------------------------------------------------------------------------------------ recorded */

enum { MAX_DRIPS = 8 };

/* What the mode cannot do without. */
static esper_status check_recorded(const esper_reward_config *config, const esper_reward_input *in)
{
    bool by_contribution = config->mode == ESPER_REWARD_SHAPED || config->mode == ESPER_REWARD_ESCROW;

    if (by_contribution && in->has_seed && !isnan(in->contribution) && isnan(in->seed.total))
        return ESPER_FAIL(ESPER_E_ARG, "a reward for a contribution needs the improvement by all seeds together");
    if (config->mode == ESPER_REWARD_ESCROW && isnan(in->accuracy_stable))
        return ESPER_FAIL(ESPER_E_ARG, "a reward with accounts needs a stable accuracy");
    if ((config->mode == ESPER_REWARD_SPARSE || config->mode == ESPER_REWARD_MINIMAL) && isnan(in->accuracy_committed))
        return ESPER_FAIL(ESPER_E_ARG, "a reward at the end needs the committed accuracy");
    for (int i = 0; i < in->n_drips; i++)
        if (isnan(in->contributions[i]))
            return ESPER_FAIL(ESPER_E_ARG, "drip %d needs the contribution of its fossil", i);
    return ESPER_OK;
}

/* One step with at most one seed, as it was recorded. */
static esper_status compute(const esper_reward_config *config, const esper_reward_input *in, esper_reward *reward_out)
{
    const esper_reward_terms *terms = esper_reward_terms_of(config->mode);
    esper_reward reward;

    ESPER_TRY(esper_reward_config_check(config));
    ESPER_TRY(check_recorded(config, in));
    esper_reward_init(&reward);
    terms->seed(config, in, &reward);
    terms->op(config, in, &reward);
    terms->run(config, in, &reward);
    esper_reward_close(&reward);
    *reward_out = reward;
    return ESPER_OK;
}

static int mode_now, n_compared, n_refused, n_parts, n_mismatches;

static void expect(const json_t *entry, const char *what, double ours, double recorded)
{
    if (is_near(ours, recorded))
        return;
    if (n_mismatches++ < 10)
        print_error("%s case %d: %s %.17g, recorded %.17g\n", esper_reward_mode_name(mode_now), int_of(entry, "case"),
                    what, ours, recorded);
}

/* A recorded setting under its name there. */
static void set_weight(esper_reward_config *config, const char *name, const json_t *value)
{
    if (strcmp(name, "attribution_formula") == 0)
        config->formula =
            strcmp(json_string_value(value), "minimum") == 0 ? ESPER_REWARD_MINIMUM : ESPER_REWARD_HARMONIC;
    else
        check_good(
            esper_reward_config_set(config, name, json_is_boolean(value) ? json_is_true(value) : number_of(value)));
}

static void recorded_seed(const json_t *seed, esper_reward_input *in)
{
    in->has_seed = json_is_object(seed);
    in->seed = (esper_reward_seed){.total = (double)NAN, .improvement = (double)NAN};
    if (!in->has_seed)
        return;
    in->seed = (esper_reward_seed){.stage = int_of(seed, "stage"),
                                   .epochs_in_stage = int_of(seed, "epochs_in_stage"),
                                   .previous_stage = int_of(seed, "previous_stage"),
                                   .previous_epochs = int_of(seed, "previous_epochs_in_stage"),
                                   .age = int_of(seed, "seed_age_epochs"),
                                   .improvement = real_of(seed, "improvement_since_stage_start"),
                                   .total = real_of(seed, "counterfactual_total_improvement"),
                                   .interaction = real_of(seed, "interaction_sum")};
}

static double real_or(const json_t *object, const char *key, double missing)
{
    const json_t *value = json_object_get(object, key);

    return value == NULL || json_is_null(value) ? missing : number_of(value);
}

static void recorded_input(const json_t *in, esper_reward_input *input)
{
    *input = (esper_reward_input){.op = int_of(in, "op"),
                                  .has_names = json_is_string(json_object_get(in, "seed_id")) &&
                                               json_is_string(json_object_get(in, "slot_id")),
                                  .contribution = real_of(in, "contribution"),
                                  .accuracy_before = real_of(in, "acc_at_germination"),
                                  .escrow = real_or(in, "escrow_credit_prev", 0.0),
                                  .epoch = int_of(in, "epoch"),
                                  .max_epochs = int_of(in, "max_epochs"),
                                  .accuracy = real_of(in, "val_acc"),
                                  .accuracy_stable = real_or(in, "stable_val_acc", (double)NAN),
                                  .accuracy_committed = real_or(in, "committed_val_acc", (double)NAN),
                                  .accuracy_delta = real_of(in, "acc_delta"),
                                  .loss = real_or(in, "val_loss", 0.0),
                                  .loss_delta = real_or(in, "loss_delta", 0.0),
                                  .params_total = real_of(in, "total_params"),
                                  .params_host = real_of(in, "host_params"),
                                  .params_fossils = real_or(in, "fossilized_seed_params", 0.0),
                                  .params_effective = real_or(in, "effective_seed_params", (double)NAN),
                                  .shock = real_or(in, "alpha_delta_sq_sum", 0.0),
                                  .n_active = int_of(in, "n_active_seeds"),
                                  .n_fossils = int_of(in, "num_fossilized_seeds"),
                                  .n_contributing = int_of(in, "num_contributing_fossilized")};
    recorded_seed(json_object_get(in, "seed"), input);
}

static void recorded_drips(const json_t *in, esper_reward_input *input, esper_reward_drip *drips, double *contributions)
{
    const json_t *states = json_object_get(in, "drip_states"), *measured = json_object_get(in, "fossil_contributions");

    input->drips = drips;
    input->contributions = contributions;
    input->n_drips = (int)json_array_size(states);
    assert_true(input->n_drips <= MAX_DRIPS);
    for (size_t i = 0; i < json_array_size(states); i++) {
        const json_t *state = json_array_get(states, i);

        drips[i] = (esper_reward_drip){real_of(state, "drip_total"), real_of(state, "drip_scale"),
                                       real_of(state, "drip_paid")};
        contributions[i] = real_or(measured, text_of(state, "seed_id"), (double)NAN);
    }
}

/* Parts as they were recorded; rents are costs there and negative here. */
static const struct {
    const char *recorded;
    int         part, sign;
} part_of[] = {
    {"bounded_attribution", ESPER_PART_ATTRIBUTION, 1},
    {"compute_rent", ESPER_PART_RENT, 1},
    {"alpha_shock", ESPER_PART_SHOCK, 1},
    {"blending_warning", ESPER_PART_BLENDING, 1},
    {"holding_warning", ESPER_PART_HOLDING, 1},
    {"pbrs_bonus", ESPER_PART_SHAPING, 1},
    {"synergy_bonus", ESPER_PART_SYNERGY, 1},
    {"action_shaping", ESPER_PART_ACTION, 1},
    {"occupancy_rent", ESPER_PART_OCCUPANCY, -1},
    {"fossilized_rent", ESPER_PART_MAINTENANCE, -1},
    {"terminal_bonus", ESPER_PART_TERMINAL, 1},
    {"drip_this_epoch", ESPER_PART_DRIP, 1},
    {"fossilize_terminal_bonus", ESPER_PART_FOSSIL, 1},
};

static void compare_parts(const json_t *entry, const json_t *parts, const esper_reward *reward)
{
    bool all = mode_now == ESPER_REWARD_SHAPED || mode_now == ESPER_REWARD_ESCROW; /* what is absent was 0 */

    for (size_t i = 0; i < sizeof(part_of) / sizeof(part_of[0]); i++) {
        const json_t *recorded = json_object_get(parts, part_of[i].recorded);

        n_parts += recorded != NULL;
        if (recorded != NULL || all)
            expect(entry, part_of[i].recorded, reward->part[part_of[i].part],
                   part_of[i].sign * real_or(parts, part_of[i].recorded, 0.0));
    }
    if (!all)
        return;
    expect(entry, "discount", reward->discount, real_or(parts, "attribution_discount", 1.0));
    expect(entry, "timing", reward->timing, real_or(parts, "timing_discount", 1.0));
    expect(entry, "ratio_penalty", reward->ratio_penalty, real_or(parts, "ratio_penalty", 0.0));
    expect(entry, "growth", reward->growth, real_or(parts, "growth_ratio", 0.0));
    if (mode_now == ESPER_REWARD_ESCROW) {
        expect(entry, "escrow_delta", reward->escrow_delta, real_or(parts, "escrow_delta", 0.0));
        expect(entry, "escrow_next", reward->escrow_next, real_or(parts, "escrow_credit_next", 0.0));
    }
}

static void check_sum(const esper_reward *reward)
{
    double sum = 0.0;

    for (int i = 0; i < ESPER_N_REWARD_PARTS; i++)
        sum += reward->part[i];
    assert_true(sum == reward->total);
    assert_int_equal(reward->n_bad, 0);
}

static void compare_drips(const json_t *entry, const json_t *out, const esper_reward_input *input,
                          const esper_reward *reward)
{
    const json_t *begun = json_object_get(out, "new_drip"), *paid = json_object_get(out, "drips_paid");

    expect(entry, "total of a drip", reward->drip.total, real_or(begun, "drip_total", 0.0));
    expect(entry, "scale of a drip", reward->drip.scale, real_or(begun, "drip_scale", 0.0));
    for (size_t i = 0; i < json_array_size(paid); i++)
        expect(entry, "paid of a drip", input->drips[i].paid, number_of(json_array_get(paid, i)));
}

static void replay_mode(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out"), *value;
    esper_reward reward = {.total = 77.0};
    esper_reward_drip drips[MAX_DRIPS];
    double contributions[MAX_DRIPS];
    esper_reward_config config;
    esper_reward_input input;
    const char *name;

    esper_reward_config_init(&config, (esper_reward_mode)mode_now);
    json_object_foreach(json_object_get(in, "config"), name, value)
        set_weight(&config, name, value);
    recorded_input(in, &input);
    recorded_drips(in, &input, drips, contributions);
    if (json_is_true(json_object_get(out, "error"))) {
        check_fails(compute(&config, &input, &reward), ESPER_E_ARG, "needs");
        assert_true(reward.total == 77.0);
        n_refused++;
        return;
    }
    check_good(compute(&config, &input, &reward));
    check_sum(&reward);
    expect(entry, "total", reward.total, real_of(out, "total"));
    compare_parts(entry, json_object_get(out, "parts"), &reward);
    compare_drips(entry, out, &input, &reward);
    n_compared++;
}

/* One test for each mode: a file that is not here leaves out its own alone. */
static void recorded_mode(void **state)
{
    char file[64];

    mode_now = *(const esper_reward_mode *)*state;
    n_compared = n_refused = n_parts = n_mismatches = 0;
    snprintf(file, sizeof(file), "rewards_%s", esper_reward_mode_name(mode_now));
    golden_each_case(file, replay_mode);
    printf("%s: %d recorded steps, %d parts, %d refused\n", esper_reward_mode_name(mode_now), n_compared, n_parts,
           n_refused);
    assert_int_equal(n_mismatches, 0);
    assert_true(n_compared > 0);
}

/* ------------------------------------------------------------------------------------------------ loss */

static void replay_loss(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    const char *preset = text_of(in, "preset");
    double recorded = real_of(out, "total");
    esper_reward_config config;
    esper_reward_input input;
    esper_reward reward;

    esper_reward_config_init(&config, ESPER_REWARD_LOSS);
    if (strcmp(preset, "cifar10") == 0)
        config.loss_delta_std = 0.05;
    if (strcmp(preset, "tinystories") == 0) {
        config.loss_delta_std = 0.15;
        config.loss_rent_weight = 0.01;
        config.loss_baseline = 10.8;
        config.loss_target = 3.5;
    }
    recorded_input(in, &input);
    check_good(compute(&config, &input, &reward));
    check_sum(&reward);
    if (input.has_seed && (input.seed.stage == input.seed.previous_stage || input.seed.epochs_in_stage > 1)) {
        recorded -= 0.1 * (0.995 * esper_reward_stage_value(input.seed.stage) -
                           esper_reward_stage_value(input.seed.previous_stage));
        assert_true(reward.part[ESPER_PART_SHAPING] == 0.0);
        difference_met(DIFFERENCE_STAGE_TERM, entry);
    }
    expect(entry, "total", reward.total, recorded);
    n_compared++;
}

static void recorded_loss(void **state)
{
    (void)state;
    mode_now = ESPER_REWARD_LOSS;
    n_compared = n_mismatches = 0;
    golden_each_case("rewards_loss", replay_loss);
    printf("loss: %d recorded steps\n", n_compared);
    difference_say("rewards_loss");
    assert_int_equal(n_mismatches, 0);
    assert_true(n_compared > 0);
}

/* ------------------------------------------------------------------------------------------------ helpers */

static int n_helpers;

static void replay_helper(const json_t *entry)
{
    const char *kind = text_of(entry, "kind");
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    esper_reward_config config;

    esper_reward_config_init(&config, ESPER_REWARD_SHAPED);
    n_helpers++;
    if (strcmp(kind, "hindsight") == 0)
        expect(entry, kind,
               esper_reward_hindsight(real_of(in, "weight"), real_of(in, "boost"), real_of(in, "improvement")),
               real_of(out, "credit"));
    else if (strcmp(kind, "timing") == 0)
        expect(entry, kind,
               esper_reward_timing(real_of(in, "germination_epoch"), real_of(in, "warmup"), real_of(in, "floor")),
               real_of(out, "discount"));
    else if (strcmp(kind, "combine") == 0)
        expect(entry, kind,
               esper_reward_combine(strcmp(text_of(in, "formula"), "minimum") == 0, real_of(in, "progress"),
                                    real_of(in, "contribution")),
               real_of(out, "value"));
    else if (strcmp(kind, "pbrs_generic") == 0)
        expect(entry, kind, config.gamma * real_of(in, "potential_next") - real_of(in, "potential_prev"),
               real_of(out, "bonus"));
    else if (strcmp(kind, "seed_potential") == 0)
        expect(entry, kind,
               int_of(in, "has_active_seed") && int_of(in, "seed_stage") > 1
                   ? esper_reward_potential(&config, int_of(in, "seed_stage"), int_of(in, "seed_epochs_in_stage"))
                   : 0.0,
               real_of(out, "potential"));
    else
        n_helpers--; /* normalisers: test_normaliser.c; accuracy_potential: no reward uses it */
}

static void recorded_helpers(void **state)
{
    (void)state;
    n_mismatches = 0;
    golden_each_case("rewards_helpers", replay_helper);
    printf("%d recorded helpers\n", n_helpers);
    assert_int_equal(n_mismatches, 0);
    assert_true(n_helpers > 0);
}

/* ------------------------------------------------------------------------------------------------ any input */

static double draw(esper_rng *rng, double size)
{
    static const double edges[] = {0.0, (double)NAN, 1e-12, -1e-12, 1e6, -1e6};
    uint32_t at = esper_rng_below(rng, 24);

    return at < 6 ? edges[at] : size * (double)esper_rng_normal(rng);
}

static void draw_input(esper_rng *rng, esper_reward_input *in)
{
    static const int stages[] = {0, 1, 2, 3, 4, 6, 7, 8, 9, 10};

    *in = (esper_reward_input){.op = (int)esper_rng_below(rng, 6),
                               .failed = esper_rng_below(rng, 4) == 0,
                               .has_seed = esper_rng_below(rng, 4) != 0,
                               .has_names = esper_rng_below(rng, 2) != 0,
                               .contribution = draw(rng, 4.0),
                               .accuracy_before = draw(rng, 50.0),
                               .escrow = fabs(3.0 * (double)esper_rng_normal(rng)),
                               .epoch = 1 + (int)esper_rng_below(rng, 20),
                               .max_epochs = 20,
                               .accuracy = 100.0 * (double)esper_rng_uniform(rng),
                               .accuracy_stable = 50.0,
                               .accuracy_committed = 60.0,
                               .accuracy_delta = draw(rng, 2.0),
                               .loss = draw(rng, 2.0),
                               .loss_delta = draw(rng, 0.2),
                               .params_total = 12000.0,
                               .params_host = esper_rng_below(rng, 8) == 0 ? 0.0 : 10000.0,
                               .params_effective = fabs(draw(rng, 3000.0)),
                               .shock = fabs(draw(rng, 1.0)),
                               .n_active = (int)esper_rng_below(rng, 5),
                               .n_fossils = (int)esper_rng_below(rng, 5)};
    in->seed = (esper_reward_seed){.stage = stages[esper_rng_below(rng, 10)],
                                   .epochs_in_stage = (int)esper_rng_below(rng, 20),
                                   .previous_stage = stages[esper_rng_below(rng, 10)],
                                   .age = (int)esper_rng_below(rng, (uint32_t)in->epoch + 1),
                                   .improvement = draw(rng, 2.0),
                                   .total = draw(rng, 3.0),
                                   .interaction = draw(rng, 2.0)};
}

/* A reward is a number whatever comes in, its parts add up, and the parts that are bounded keep their bounds. */
static void always_a_number(void **state)
{
    int n_bad = 0, n_done = 0;
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 11, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 50000; i++) {
        esper_reward_config config;
        esper_reward_input in;
        esper_reward r;
        double sum = 0.0;

        esper_reward_config_init(&config, (esper_reward_mode)(i % ESPER_N_REWARD_MODES));
        draw_input(&rng, &in);
        if (compute(&config, &in, &r) != ESPER_OK)
            continue;
        n_done++;
        n_bad += r.n_bad > 0;
        assert_true(isfinite(r.total));
        for (int p = 0; p < ESPER_N_REWARD_PARTS; p++)
            sum += r.part[p];
        assert_true(sum == r.total);
        assert_true(r.part[ESPER_PART_SHOCK] <= 0.0 && r.part[ESPER_PART_SHOCK] >= -1.0);
        assert_true(r.part[ESPER_PART_BLENDING] <= 0.0 && r.part[ESPER_PART_BLENDING] >= -0.4 - 1e-12);
        assert_true(r.part[ESPER_PART_HOLDING] <= 0.0 && r.part[ESPER_PART_HOLDING] >= -0.3);
        assert_true(r.part[ESPER_PART_SYNERGY] >= 0.0 && r.part[ESPER_PART_SYNERGY] <= 0.1);
        assert_true(r.discount > 0.0 && r.discount <= 1.0 && r.timing >= 0.4 && r.timing <= 1.0);
        assert_true(r.part[ESPER_PART_RENT] <= 0.0);
        if (config.mode == ESPER_REWARD_SHAPED)
            assert_true(r.part[ESPER_PART_RENT] >= -1.5);
        if (in.failed && in.op == ESPER_SLOT_OP_FOSSILIZE && config.mode == ESPER_REWARD_SHAPED)
            assert_true(r.part[ESPER_PART_ACTION] == config.fossilize_cost);
    }
    printf("%d rewards, %d of them with a part left out\n", n_done, n_bad);
    assert_true(n_bad > 100 && n_done > 30000);
}

static double weight_of(const esper_reward_config *config, const esper_reward_field *field)
{
    const void *at = (const char *)config + field->offset;

    return field->kind == ESPER_REWARD_KIND_REAL    ? *(const double *)at
           : field->kind == ESPER_REWARD_KIND_WHOLE ? *(const int *)at
                                                    : *(const bool *)at;
}

static void weights_by_name(void **state)
{
    esper_reward_config config;
    const esper_reward_field *list;
    int n;

    (void)state;
    esper_reward_config_init(&config, ESPER_REWARD_BASIC_PLUS);
    assert_true(config.drip_fraction == 0.7 && config.gamma == 0.995 && config.escrow_stable_window == 3);
    list = esper_reward_field_list(&n);
    for (int i = 0; i < n; i++) {
        check_good(esper_reward_config_set(&config, list[i].name, 1.0));
        assert_true(weight_of(&config, &list[i]) == 1.0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(list[i].name, list[j].name);
    }
    check_fails(esper_reward_config_set(&config, "max_rnt", 1.0), ESPER_E_ARG, "did you mean 'max_rent'?");
    check_fails(esper_reward_config_set(&config, "max_rent", (double)NAN), ESPER_E_ARG, "no number");
    config.param_budget = 0.0;
    check_fails(esper_reward_config_check(&config), ESPER_E_CONFIG, "param_budget");
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode++) {
        assert_int_equal(esper_reward_mode_find(esper_reward_mode_name(mode)), mode);
        assert_non_null(esper_reward_mode_about(mode));
    }
    assert_int_equal(esper_reward_mode_find("none"), -1);
}

int main(void)
{
    static esper_reward_mode modes[] = {ESPER_REWARD_SHAPED,     ESPER_REWARD_ESCROW, ESPER_REWARD_BASIC,
                                        ESPER_REWARD_BASIC_PLUS, ESPER_REWARD_SIMPLIFIED, ESPER_REWARD_SPARSE,
                                        ESPER_REWARD_MINIMAL};
    const struct CMUnitTest tests[] = {
        {"recorded_shaped", recorded_mode, NULL, NULL, &modes[0]},
        {"recorded_escrow", recorded_mode, NULL, NULL, &modes[1]},
        {"recorded_basic", recorded_mode, NULL, NULL, &modes[2]},
        {"recorded_basic_plus", recorded_mode, NULL, NULL, &modes[3]},
        {"recorded_simplified", recorded_mode, NULL, NULL, &modes[4]},
        {"recorded_sparse", recorded_mode, NULL, NULL, &modes[5]},
        {"recorded_minimal", recorded_mode, NULL, NULL, &modes[6]},
        cmocka_unit_test(recorded_loss),
        cmocka_unit_test(recorded_helpers),
        cmocka_unit_test(always_a_number),
        cmocka_unit_test(weights_by_name),
    };

    return cmocka_run_group_tests_name("policy/reward", tests, NULL, NULL);
}
