/* The modes `shaped` and `escrow`: seeds earn by what they contribute, held against the progress since they germinated, so that
 * a seed which only makes itself indispensable earns little. */
#include "policy/reward_terms.h"

static bool is_at(const esper_reward_input *in, int stage)
{
    return in->has_seed && in->seed.stage == stage;
}

/* A contribution while everything got worse is discounted, and one that is far beyond what all seeds brought is punished. */
static void judge(const esper_reward_config *config, const esper_reward_input *in, bool discounts, esper_reward *r)
{
    double c = in->contribution, all = in->seed.total;

    r->discount = 1.0;
    r->ratio_penalty = 0.0;
    if (isnan(c) || !in->has_seed || isnan(all))
        return;
    if (discounts && all < 0.0)
        r->discount = 1.0 / (1.0 + exp(fmin(-config->attribution_steepness * all, 700.0)));
    if (!(c > 1.0) || r->discount < 0.5 || config->disable_anti_gaming)
        return;
    if (all <= config->improvement_safe_threshold)
        r->ratio_penalty = -0.3 * fmin(1.0, c / 10.0);
    else if (c / all > config->hacking_ratio_threshold)
        r->ratio_penalty =
            -fmin(0.3, 0.1 * (c / all - config->hacking_ratio_threshold) / config->hacking_ratio_threshold);
}

/* What of a contribution above 0 counts, by the progress since germination. */
static double bounded(const esper_reward_config *config, double progress, double c, bool geometric)
{
    if (isnan(progress))
        return 0.5 * c;
    if (progress <= 0.0)
        return 0.0;
    if (c < progress)
        return c;
    return geometric ? sqrt(progress * c) : esper_reward_combine(config->formula, progress, c);
}

/* ------------------------------------------------------------------------------------------------ attribution */

static double earned(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double c = in->contribution, x;

    if (is_at(in, ESPER_STAGE_FOSSILIZED))
        return 0.0;
    if (isnan(c)) { /* not measured yet: the accuracy gained in its stage stands for it */
        bool stands = in->has_seed && in->seed.stage >= ESPER_STAGE_BLENDING && in->seed.improvement > 0.0;

        return stands ? config->contribution_weight * config->proxy_confidence * in->seed.improvement : 0.0;
    }
    if (c < 0.0)
        return config->contribution_weight * c;
    x = config->contribution_weight * (bounded(config, r->progress, c, false) * r->discount);
    if (in->has_seed && !config->disable_timing_discount) {
        r->timing = esper_reward_timing(in->epoch - in->seed.age, config->germination_warmup_epochs,
                                        config->germination_discount_floor);
        x *= r->timing;
    }
    return x;
}

static double attribute_shaped(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double att;

    judge(config, in, true, r);
    r->progress = in->accuracy - in->accuracy_before;
    att = earned(config, in, r);
    if (in->op == ESPER_SLOT_OP_FOSSILIZE && in->has_seed && in->seed.total < 0.0)
        att = 0.0;
    if (in->op == ESPER_SLOT_OP_PRUNE)
        att = -att;
    return is_at(in, ESPER_STAGE_FOSSILIZED) ? att : att + r->ratio_penalty;
}

/* Moves the account towards what the seed deserves; what moves is what is paid. */
static double attribute_escrow(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double c = in->contribution, weight = config->contribution_weight, most = config->escrow_delta_clip, paid;

    judge(config, in, false, r);
    r->progress = in->accuracy_stable - in->accuracy_before;
    r->escrow_target = in->escrow;
    r->escrow_delta = paid = 0.0;
    if (in->op == ESPER_SLOT_OP_PRUNE || (!is_at(in, ESPER_STAGE_FOSSILIZED) && c < 0.0)) {
        r->escrow_target = 0.0;
        r->escrow_delta = -in->escrow;
        paid = r->escrow_delta + (in->op == ESPER_SLOT_OP_PRUNE ? 0.0 : weight * c);
    } else if (!is_at(in, ESPER_STAGE_FOSSILIZED) && !isnan(c)) {
        r->escrow_target = fmax(0.0, weight * bounded(config, r->progress, c, true) + r->ratio_penalty);
        paid = r->escrow_target - in->escrow;
        r->escrow_delta = paid = most > 0.0 ? esper_reward_cut(paid, -most, most) : paid;
    }
    r->escrow_next = in->escrow + r->escrow_delta;
    return in->op == ESPER_SLOT_OP_FOSSILIZE && in->has_seed && in->seed.total < 0.0 ? 0.0 : paid;
}

/* ------------------------------------------------------------------------------------------------ of a seed */

static void seed_terms(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    const esper_reward_seed *seed = &in->seed;
    int k = seed->epochs_in_stage;
    double att = (config->mode == ESPER_REWARD_ESCROW ? attribute_escrow : attribute_shaped)(config, in, r);

    r->part[ESPER_PART_ATTRIBUTION] += att;
    if (!in->has_seed)
        return;
    if (seed->stage == ESPER_STAGE_BLENDING && seed->total < 0.0)
        r->part[ESPER_PART_BLENDING] += -0.1 - fmin(0.05 * k, 0.3);
    if (seed->stage == ESPER_STAGE_HOLDING && in->op != ESPER_SLOT_OP_FOSSILIZE && in->op != ESPER_SLOT_OP_PRUNE &&
        k >= 2 && att > 0.0)
        r->part[ESPER_PART_HOLDING] -= fmin(0.1 + 0.05 * (k > 2 ? k - 2 : 0), 0.3);
    if (!config->disable_pbrs && !in->telescopes)
        r->part[ESPER_PART_SHAPING] += esper_reward_stage_shaping(config, seed);
    if (r->discount >= 0.5 && att > 0.0 && seed->interaction > 0.0)
        r->part[ESPER_PART_SYNERGY] += config->synergy_weight * tanh(config->synergy_slope * seed->interaction);
}

/* ------------------------------------------------------------------------------------------------ of an operation */

/* How much of a bonus a seed has held for. */
static double held(const esper_reward_config *config, const esper_reward_input *in)
{
    return fmin(1.0, in->seed.epochs_in_stage / config->min_holding_epochs);
}

static double fossilize_merit(const esper_reward_config *config, const esper_reward_input *in)
{
    double c = in->contribution, all = in->seed.total;

    if (!is_at(in, ESPER_STAGE_HOLDING) || isnan(all))
        return config->invalid_fossilize_penalty;
    if (all < 0.0)
        return -0.5 - fmin(0.2 * -all, 1.0) - (c > 0.1 && all < -0.2 ? 0.3 : 0.0);
    if (c >= config->min_fossilize_contribution)
        return (config->fossilize_base_bonus + config->fossilize_contribution_scale * c) * held(config, in);
    return config->fossilize_noncontributing_penalty;
}

static double prune_merit(const esper_reward_config *config, const esper_reward_input *in)
{
    double c = in->contribution, age = in->seed.age;

    if (!in->has_seed)
        return -0.2;
    if (in->seed.stage == ESPER_STAGE_FOSSILIZED)
        return config->prune_fossilized_penalty;
    if (age < config->early_prune_threshold)
        return config->prune_good_seed_penalty * (config->early_prune_threshold - age);
    if (isnan(c))
        return 0.0;
    if (c < config->prune_hurting_threshold)
        return age < config->min_prune_bonus_age ? -0.1 : config->prune_hurting_bonus;
    if (c < 0.0)
        return config->prune_acceptable_bonus;
    return fmax(config->prune_good_seed_penalty - 0.05 * c, -0.9);
}

static void op_terms(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    bool shapes = !config->disable_pbrs && !in->telescopes;
    double value = 0.0;

    switch (in->op) {
    case ESPER_SLOT_OP_GERMINATE:
        value = config->germinate_cost;
        if (in->has_seed)
            value += config->germinate_with_seed_penalty;
        else if (shapes && in->epoch < in->max_epochs)
            value +=
                config->pbrs_weight * config->gamma * esper_reward_stage_value(ESPER_STAGE_GERMINATED) *
                (config->disable_timing_discount ? 1.0
                                                 : esper_reward_timing(in->epoch, config->germination_warmup_epochs,
                                                                       config->germination_discount_floor));
        break;
    case ESPER_SLOT_OP_FOSSILIZE:
        value = config->fossilize_cost + (in->failed ? 0.0 : fossilize_merit(config, in));
        if (!in->failed && is_at(in, ESPER_STAGE_HOLDING) && in->seed.total >= 0.0 &&
            in->contribution >= config->min_fossilize_contribution && !config->disable_terminal_reward)
            value +=
                config->fossilize_terminal_scale * tanh(1.0 / config->fossilize_quality_ceiling) * held(config, in);
        break;
    case ESPER_SLOT_OP_PRUNE:
        value = config->prune_cost + prune_merit(config, in);
        if (in->has_seed && shapes)
            value -= config->pbrs_weight * esper_reward_potential(config, in->seed.stage, in->seed.epochs_in_stage);
        break;
    case ESPER_SLOT_OP_ADVANCE:
        value = is_at(in, ESPER_STAGE_TRAINING) ? config->advance_training_penalty : 0.0;
        break;
    case ESPER_SLOT_OP_SET_ALPHA_TARGET:
        value = config->set_alpha_target_cost;
        break;
    default:
        break;
    }
    r->part[ESPER_PART_ACTION] += value;
}

/* ------------------------------------------------------------------------------------------------ of the run */

static void run_terms(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double overhead = esper_reward_overhead(in), crowd = in->n_active + in->n_fossils - config->free_slots;

    if (in->params_host > 0.0 && overhead > 0.0) {
        r->growth = overhead / fmax(in->params_host, config->rent_host_params_floor);
        r->part[ESPER_PART_RENT] -= fmin(config->rent_weight * log1p(r->growth), config->max_rent);
    }
    if (in->shock > 0.0 && !config->disable_anti_gaming)
        r->part[ESPER_PART_SHOCK] += fmax(-config->alpha_shock_coef * in->shock, -config->alpha_shock_cap);
    r->part[ESPER_PART_OCCUPANCY] -= config->seed_occupancy_cost * fmax(0.0, crowd);
    r->part[ESPER_PART_MAINTENANCE] -= config->fossilized_maintenance_cost * in->n_fossils;
    if (esper_reward_is_last(in) && !config->disable_terminal_reward)
        r->part[ESPER_PART_TERMINAL] += config->terminal_acc_weight * in->accuracy;
}

const esper_reward_terms esper_terms_contribution = {seed_terms, op_terms, run_terms, esper_reward_weighted_potential};
