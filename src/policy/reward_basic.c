/* The modes `basic` and `basic_plus`: a bonus for what is kept and contributes, at once or drop by drop, against linear rent. And
 * `simplified`, which leaves out contributions and rent. */
#include "policy/reward_terms.h"

static void basic_seed(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (!in->has_seed || config->disable_pbrs || in->telescopes)
        return;
    if (in->op == ESPER_SLOT_OP_PRUNE)
        r->part[ESPER_PART_SHAPING] -=
            config->pbrs_weight * esper_reward_potential(config, in->seed.stage, in->seed.epochs_in_stage);
    else
        r->part[ESPER_PART_SHAPING] += esper_reward_stage_shaping(config, &in->seed);
}

/* The bonus for a seed that is kept; a part of it may be left to drip. */
static double keep(const esper_reward_config *config, const esper_reward_input *in, esper_reward_drip *drip)
{
    double c = in->contribution, all = isnan(in->seed.total) ? 0.0 : in->seed.total, whole;

    if (in->seed.stage != ESPER_STAGE_HOLDING)
        return config->basic_invalid_penalty;
    if (!(all > 0.0 && c >= config->min_fossilize_contribution))
        return all <= 0.0 && c > 0.1 ? config->basic_invalid_penalty : config->basic_noncontributing_penalty;
    whole = (config->basic_fossilize_base_bonus +
             config->basic_contribution_scale * esper_reward_combine(config->formula, all, c)) *
            fmin(1.0, in->seed.epochs_in_stage / config->min_holding_epochs);
    if (!(config->drip_fraction > 0.0) || !in->has_names)
        return whole;
    drip->total = whole * config->drip_fraction;
    drip->scale = drip->total / fmax(in->max_epochs - in->epoch, config->min_drip_epochs);
    return whole * (1.0 - config->drip_fraction);
}

static void basic_op(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (in->op == ESPER_SLOT_OP_FOSSILIZE && in->has_seed && !in->failed)
        r->part[ESPER_PART_FOSSIL] += keep(config, in, &r->drip);
}

static double drop(const esper_reward_config *config, const esper_reward_drip *drip, double contribution)
{
    double raw = drip->scale * contribution, most = config->max_drip_per_epoch;

    return raw >= 0.0 ? fmin(raw, most) : fmax(raw, -config->negative_drip_ratio * most);
}

static void basic_run(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double overhead = esper_reward_overhead(in);

    if (in->params_host > 0.0)
        r->growth = overhead / fmax(in->params_host, config->rent_host_params_floor);
    r->part[ESPER_PART_RENT] -= config->param_penalty_weight * overhead / config->param_budget;
    for (int i = 0; i < in->n_drips; i++) {
        double paid = drop(config, &in->drips[i], in->contributions[i]);

        in->drips[i].paid += paid;
        r->part[ESPER_PART_DRIP] += paid;
    }
    if (esper_reward_is_last(in))
        r->part[ESPER_PART_TERMINAL] += config->basic_acc_delta_weight * (in->accuracy_delta / 100.0);
}

/* ------------------------------------------------------------------------------------------------ simplified */

static void simplified_seed(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (in->has_seed && !config->disable_pbrs && !in->telescopes)
        r->part[ESPER_PART_SHAPING] += esper_reward_stage_shaping(config, &in->seed);
}

static void simplified_op(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (in->op != ESPER_SLOT_OP_WAIT)
        r->part[ESPER_PART_ACTION] += config->simplified_op_cost;
}

static void simplified_run(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (esper_reward_is_last(in) && !config->disable_terminal_reward)
        r->part[ESPER_PART_TERMINAL] += config->simplified_acc_weight * in->accuracy / 100.0 +
                                        config->simplified_fossil_weight * in->n_contributing;
}

const esper_reward_terms esper_terms_basic = {basic_seed, basic_op, basic_run, esper_reward_weighted_potential};
const esper_reward_terms esper_terms_simplified = {simplified_seed, simplified_op, simplified_run,
                                                   esper_reward_weighted_potential};
