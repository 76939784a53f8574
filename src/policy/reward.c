/* The tables of rewards, and what all modes share. */
#include "policy/reward.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "base/suggest.h"
#include "policy/reward_terms.h"

static const esper_reward_field fields[] = {
#define X(kind, name, preset, about) \
    {#name, about, offsetof(esper_reward_config, name), preset, ESPER_REWARD_KIND_##kind},
    ESPER_REWARD_FIELD_LIST(X)
#undef X
};

enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const struct {
    const char               *name, *about;
    const esper_reward_terms *terms;
} modes[ESPER_N_REWARD_MODES] = {
#define X(name, text, terms, about) {text, about, &esper_terms_##terms},
    ESPER_REWARD_MODE_LIST(X)
#undef X
};

/* ------------------------------------------------------------------------------------------------ weights */

const esper_reward_field *esper_reward_field_list(int *n_out)
{
    *n_out = N_FIELDS;
    return fields;
}

static void set_field(esper_reward_config *config, const esper_reward_field *field, double value)
{
    void *at = (char *)config + field->offset;

    if (field->kind == ESPER_REWARD_KIND_REAL)
        *(double *)at = value;
    else if (field->kind == ESPER_REWARD_KIND_WHOLE)
        *(int *)at = (int)value;
    else
        *(bool *)at = value != 0.0;
}

void esper_reward_config_init(esper_reward_config *config, esper_reward_mode mode)
{
    memset(config, 0, sizeof(*config));
    config->mode = (int)mode;
    config->formula = ESPER_REWARD_HARMONIC;
    for (int i = 0; i < N_FIELDS; i++)
        set_field(config, &fields[i], fields[i].preset);
    if (mode == ESPER_REWARD_BASIC_PLUS)
        config->drip_fraction = 0.7;
}

esper_status esper_reward_config_set(esper_reward_config *config, const char *name, double value)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    if (!isfinite(value))
        return ESPER_FAIL(ESPER_E_ARG, "weight %s of a reward: %g is no number", name, value);
    esper_suggest_init(&suggest, name);
    for (int i = 0; i < N_FIELDS; i++) {
        esper_suggest_offer(&suggest, fields[i].name);
        if (strcmp(fields[i].name, name) != 0)
            continue;
        set_field(config, &fields[i], value);
        return ESPER_OK;
    }
    return ESPER_FAIL(ESPER_E_ARG, "a reward has no weight '%s'%s", name, esper_suggest_text(&suggest, "", hint));
}

esper_status esper_reward_config_check(const esper_reward_config *config)
{
    const struct {
        const char *name;
        double      value, low, high;
    } ranges[] = {
        {"gamma", config->gamma, 1e-6, 1.0},
        {"size_price", config->size_price, 0.0, 1e18},
        {"flops_price", config->flops_price, 0.0, 1e18},
        {"param_budget", config->param_budget, 1.0, 1e18},
        {"param_penalty_weight", config->param_penalty_weight, 0.0, 1e18},
        {"sparse_reward_scale", config->sparse_reward_scale, 1e-12, 1e18},
        {"rent_host_params_floor", config->rent_host_params_floor, 1.0, 1e18},
        {"escrow_stable_window", config->escrow_stable_window, 1.0, 64.0},
        {"drip_fraction", config->drip_fraction, 0.0, 1.0},
        {"max_drip_per_epoch", config->max_drip_per_epoch, 1e-12, 1e18},
        {"min_drip_epochs", config->min_drip_epochs, 1.0, 1e18},
        {"negative_drip_ratio", config->negative_drip_ratio, 0.0, 1.0},
        {"loss_delta_std", config->loss_delta_std, 1e-12, 1e18},
    };

    if (config->mode < 0 || config->mode >= ESPER_N_REWARD_MODES || config->formula < 0 ||
        config->formula >= ESPER_N_REWARD_FORMULAS)
        return ESPER_FAIL(ESPER_E_CONFIG, "a reward of mode %d and formula %d", config->mode, config->formula);
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return ESPER_FAIL(ESPER_E_CONFIG, "weight %s of a reward is %g: from %g to %g is possible", ranges[i].name,
                              ranges[i].value, ranges[i].low, ranges[i].high);
    return ESPER_OK;
}

const char *esper_reward_mode_name(int mode)
{
    return mode >= 0 && mode < ESPER_N_REWARD_MODES ? modes[mode].name : NULL;
}

const char *esper_reward_mode_about(int mode)
{
    return mode >= 0 && mode < ESPER_N_REWARD_MODES ? modes[mode].about : NULL;
}

int esper_reward_mode_find(const char *name)
{
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode++)
        if (strcmp(modes[mode].name, name) == 0)
            return mode;
    return -1;
}

const char *esper_reward_part_name(int part)
{
    static const char *const names[] = {
#define X(e, name, text, about) #text,
        ESPER_REWARD_PART_LIST(X, )
#undef X
    };

    return part >= 0 && part < ESPER_N_REWARD_PARTS ? names[part] : NULL;
}

const esper_reward_terms *esper_reward_terms_of(int mode)
{
    assert(mode >= 0 && mode < ESPER_N_REWARD_MODES);
    return modes[mode].terms;
}

/* ------------------------------------------------------------------------------------------------ helpers */

double esper_reward_stage_value(int stage)
{
    static const double values[ESPER_STAGE_CODES] = {
        [ESPER_STAGE_GERMINATED] = 1.0, [ESPER_STAGE_TRAINING] = 2.0,   [ESPER_STAGE_BLENDING] = 3.5,
        [ESPER_STAGE_HOLDING] = 5.5,    [ESPER_STAGE_FOSSILIZED] = 6.0,
    };

    return stage >= 0 && stage < ESPER_STAGE_CODES ? values[stage] : 0.0;
}

double esper_reward_potential(const esper_reward_config *config, int stage, int epochs_in_stage)
{
    return esper_reward_stage_value(stage) +
           fmin(config->epoch_progress_bonus * epochs_in_stage, config->max_progress_bonus);
}

double esper_reward_weighted_potential(const esper_reward_config *config, int stage, int epochs_in_stage)
{
    return esper_reward_stage_value(stage) > 0.0 && !config->disable_pbrs
               ? config->pbrs_weight * esper_reward_potential(config, stage, epochs_in_stage)
               : 0.0;
}

double esper_reward_stage_shaping(const esper_reward_config *config, const esper_reward_seed *seed)
{
    int k = seed->epochs_in_stage;
    double before = k >= 1 ? esper_reward_potential(config, seed->stage, k - 1)
                           : esper_reward_potential(config, seed->previous_stage, seed->previous_epochs);

    return config->pbrs_weight * (config->gamma * esper_reward_potential(config, seed->stage, k) - before);
}

double esper_reward_timing(double germination_epoch, double warmup, double floor)
{
    return warmup <= 0.0 || germination_epoch >= warmup ? 1.0 : floor + (1.0 - floor) * germination_epoch / warmup;
}

double esper_reward_combine(int formula, double progress, double contribution)
{
    if (!(progress > 0.0) || !(contribution > 0.0))
        return 0.0;
    if (formula == ESPER_REWARD_MINIMUM)
        return fmin(progress, contribution);
    return 2.0 * progress * contribution / fmax(progress + contribution, 1e-8);
}

double esper_reward_doublings(double params, double before)
{
    return before > 0.0 && params > 0.0 ? log2(params / before) : 0.0;
}

double esper_reward_gain_return(const esper_reward_config *config, double points, double params_ratio,
                                double flops_ratio)
{
    return points - config->size_price * esper_reward_doublings(params_ratio, 1.0) -
           config->flops_price * esper_reward_doublings(flops_ratio, 1.0);
}

double esper_reward_hindsight(double weight, double boost, double improvement)
{
    return boost > 0.0 && improvement > 0.0 ? weight * tanh(0.1 * boost * improvement) : 0.0;
}

double esper_reward_overhead(const esper_reward_input *in)
{
    return isnan(in->params_effective) ? fmax(in->params_total - in->params_host, 0.0) : in->params_effective;
}

void esper_reward_init(esper_reward *reward)
{
    *reward = (esper_reward){.progress = (double)NAN, .discount = 1.0, .timing = 1.0};
}

void esper_reward_close(esper_reward *reward)
{
    reward->total = 0.0;
    for (int i = 0; i < ESPER_N_REWARD_PARTS; i++) {
        if (!isfinite(reward->part[i])) {
            reward->part[i] = 0.0;
            reward->n_bad++;
        }
        reward->total += reward->part[i];
    }
}
