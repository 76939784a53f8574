/* The modes that pay for the network as it stands, whatever was done to it: `gain` step by step, `sparse` and `minimal` at the end;
 * and the family by itself: `loss`. */
#include "policy/reward_terms.h"

static void nothing(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    (void)config;
    (void)in;
    (void)r;
}

/* What changed since the last step: an episode adds up to what the network gained in all, its size at the end, and all FLOPs that
 * were spent on the way: what was tried and removed has cost them, too. */
static void gain_run(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    r->part[ESPER_PART_GAIN] += in->gain_delta;
    r->part[ESPER_PART_RENT] -=
        config->size_price * in->doublings_delta + config->flops_price * in->flop_doublings_delta;
}

static void sparse_run(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double worth =
        in->accuracy_committed / 100.0 - config->param_penalty_weight * in->params_fossils / config->param_budget;

    if (esper_reward_is_last(in))
        r->part[ESPER_PART_TERMINAL] += config->sparse_reward_scale * esper_reward_cut(worth, -1.0, 1.0);
}

static void minimal_op(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    if (in->op == ESPER_SLOT_OP_PRUNE && in->has_seed && in->seed.age < config->early_prune_threshold)
        r->part[ESPER_PART_ACTION] += config->early_prune_penalty;
}

/* ------------------------------------------------------------------------------------------------ loss */

static double stage_value(const esper_reward_config *config, int stage, int epochs_in_stage)
{
    (void)epochs_in_stage;
    return config->loss_stage_weight * esper_reward_stage_value(stage);
}

/* The stage pays when it changes, and only then. */
static void loss_seed(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    const esper_reward_seed *seed = &in->seed;

    if (in->has_seed && !in->telescopes && seed->stage != seed->previous_stage && seed->epochs_in_stage <= 1)
        r->part[ESPER_PART_SHAPING] +=
            config->gamma * stage_value(config, seed->stage, 0) - stage_value(config, seed->previous_stage, 0);
}

static void loss_run(const esper_reward_config *config, const esper_reward_input *in, esper_reward *r)
{
    double z = esper_reward_cut(in->loss_delta / config->loss_delta_std, -config->loss_max, config->loss_max);
    double over = in->params_total - in->params_host;

    r->part[ESPER_PART_LOSS_DELTA] -= config->loss_weight * (z > 0.0 ? config->loss_regression_scale * z : z);
    if (in->params_host > 0.0 && over > 0.0 && !(in->has_seed && in->seed.age < config->loss_grace_epochs)) {
        r->growth = over / in->params_host;
        r->part[ESPER_PART_RENT] -= fmin(config->loss_rent_weight * log1p(r->growth), config->loss_max_rent);
    }
    if (esper_reward_is_last(in))
        r->part[ESPER_PART_TERMINAL] +=
            config->loss_terminal_weight *
            esper_reward_cut((config->loss_baseline - in->loss) / (config->loss_baseline - config->loss_target), 0.0,
                             1.0);
}

const esper_reward_terms esper_terms_gain = {nothing, nothing, gain_run, NULL};
const esper_reward_terms esper_terms_sparse = {nothing, nothing, sparse_run, NULL};
const esper_reward_terms esper_terms_minimal = {nothing, minimal_op, sparse_run, NULL};
const esper_reward_terms esper_terms_loss = {loss_seed, nothing, loss_run, stage_value};
