/* The table, the vector, and what is remembered for it. */
#include "policy/features.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "policy/actions.h"

static const esper_feature features[] = {
#define X(group, id, n, name, range, how, about) \
    {name, range, about, ESPER_FEATURE_##group, ESPER_FEATURE_##id, n, ESPER_NORM_##how},
    ESPER_FEATURE_RUN_LIST(X) ESPER_FEATURE_SLOT_LIST(X)
#undef X
};

enum { N_FEATURES = sizeof(features) / sizeof(features[0]) };

_Static_assert(ESPER_FEATURES_RUN == 41 && ESPER_FEATURES_SLOT == 71, "policies were trained with these");
_Static_assert(ESPER_FEATURE_LOSSES_END - ESPER_FEATURE_LOSSES + 1 == ESPER_POLICY_HISTORY, "as many as are tracked");

const esper_feature *esper_feature_list(int *n_out)
{
    *n_out = N_FEATURES;
    return features;
}

const char *esper_feature_group_name(esper_feature_group group)
{
    static const char *const names[] = {"host", "context", "task", "slot", "place"};

    return names[group];
}

int esper_features_count(int n_slots)
{
    return ESPER_FEATURES_RUN + ESPER_FEATURES_SLOT * n_slots;
}

void esper_features_how(uint8_t *how_out)
{
    for (int i = 0; i < N_FEATURES && features[i].group < ESPER_FEATURE_SLOT; i++)
        memset(how_out + features[i].at, features[i].how, (size_t)features[i].n);
}

/* ------------------------------------------------------------------------------------------------ memory */

static void forget(esper_feature_memory *memory, int slot)
{
    memory->health[slot] = (double)NAN;
    memory->since[slot] = -1;
}

void esper_feature_memory_init(esper_feature_memory *memory)
{
    for (int s = 0; s < ESPER_POLICY_MAX_SLOTS; s++)
        forget(memory, s);
    memory->last_op = ESPER_SLOT_OP_WAIT;
    memory->last_success = 1;
}

void esper_feature_memory_begin(esper_feature_memory *memory, const esper_policy_view *view)
{
    assert(view->n_slots <= ESPER_POLICY_MAX_SLOTS);
    if (view->rolled_back)
        esper_feature_memory_init(memory);
    memory->last_success = !view->rolled_back && !view->last_refused;
    for (int s = 0; s < view->n_slots; s++)
        if (view->slots[s].measured)
            memory->since[s] = 0;
}

void esper_feature_memory_step(esper_feature_memory *memory, const esper_policy_view *view, int op, bool success)
{
    for (int s = 0; s < view->n_slots; s++) {
        if (isfinite(view->slots[s].gradient_health))
            memory->health[s] = view->slots[s].gradient_health;
        memory->since[s] += memory->since[s] >= 0; /* what was never measured does not grow old */
        if (view->slots[s].stage == ESPER_STAGE_DORMANT)
            forget(memory, s); /* also before a seed germinates here */
    }
    memory->last_op = op;
    memory->last_success = success;
}

/* ------------------------------------------------------------------------------------------------ the vector */

/* A vector that is being made. */
typedef struct filling {
    const esper_policy_view *view;
    float                   *at;     /* of the run, or of one slot */
    double                   epochs; /* that epochs are parts of */
    int                      n_blueprints; /* of the topology, but for those that a process was given */
    int                      n_bad;
} filling;

static double symlog(double x)
{
    return copysign(log1p(fabs(x)), x);
}

static double cut(double x)
{
    return x < -1.0 ? -1.0 : x > 1.0 ? 1.0 : x;
}

static double part(const filling *f, int epochs)
{
    assert(f->epochs > 0.0);
    return fmin(epochs, f->epochs) / f->epochs;
}

/* A reading that must be there. */
static void put(filling *f, int at, double value)
{
    bool good = isfinite(value) && isfinite((float)value);

    f->n_bad += !good;
    f->at[at] = good ? (float)value : (float)ESPER_FEATURE_MISSING;
}

/* One that need not be: NaN is "not measured". */
static void put_measured(filling *f, int at, double value)
{
    f->n_bad += isinf(value) != 0;
    f->at[at] = isfinite(value) ? (float)value : 0.0f;
}

static int count_stages(const esper_policy_view *view, uint32_t stages)
{
    int n = 0;

    for (int s = 0; s < view->n_slots; s++)
        n += (stages >> view->slots[s].stage & 1u) != 0;
    return n;
}

/* Of a limit; all of it where there is none. */
static double left_of(double limit, double total)
{
    return limit > 0.0 ? fmax(0.0, cut(1.0 - total / limit)) : 1.0;
}

static void fill_task(filling *f)
{
    const esper_policy_view *view = f->view;
    double n = view->n_slots, grown = 0.0, total = (double)view->params_total;

    for (int s = 0; s < view->n_slots; s++)
        grown += esper_stage_has_seed(view->slots[s].stage) ? (double)view->slots[s].params : 0.0;
    f->at[ESPER_FEATURE_TOPOLOGY + view->topology] = 1.0f;
    put(f, ESPER_FEATURE_SHARE, cut(view->share));
    put(f, ESPER_FEATURE_LOSS_TRAIN, symlog(view->loss_train) / 7.0);
    put(f, ESPER_FEATURE_ACCURACY_TRAIN, view->accuracy_train / 100.0);
    put(f, ESPER_FEATURE_ACCURACY_BEST, view->signals.best_accuracy / 100.0);
    put(f, ESPER_FEATURE_PLATEAU, cut(view->signals.plateau_epochs / 10.0));
    put(f, ESPER_FEATURE_SETTLED, view->signals.host_stabilized);
    put(f, ESPER_FEATURE_N_SLOTS, log(n) / log((double)ESPER_POLICY_MAX_SLOTS));
    put(f, ESPER_FEATURE_N_SEEDS, esper_policy_view_seeds(view) / n);
    put(f, ESPER_FEATURE_PARAMS, log1p(total) / 14.0);
    put(f, ESPER_FEATURE_GROWTH, total > grown && grown > 0.0 ? log(total / (total - grown)) : 0.0);
    put(f, ESPER_FEATURE_PARAMS_LEFT, left_of((double)view->params_limit, total));
    put(f, ESPER_FEATURE_FLOPS_LEFT, left_of(view->flops_limit, view->flops_total));
    put(f, ESPER_FEATURE_FORWARDS, view->advances_itself);
    put(f, ESPER_FEATURE_FORKS_LEFT, cut(view->forks_left));
}

static void fill_run(filling *f, const esper_feature_memory *memory)
{
    const esper_policy_view *view = f->view;
    int missing = ESPER_POLICY_HISTORY - view->signals.n_history;
    double n = view->n_slots;

    assert(missing >= 0 && view->n_slots > 0);
    put(f, ESPER_FEATURE_EPOCH, part(f, view->epoch));
    put(f, ESPER_FEATURE_LOSS, symlog(view->loss_valid) / 7.0);
    put(f, ESPER_FEATURE_ACCURACY, view->accuracy_valid / 100.0);
    for (int i = 0; i < missing; i++)
        f->at[ESPER_FEATURE_LOSSES + i] = f->at[ESPER_FEATURE_ACCURACIES + i] = (float)ESPER_FEATURE_MISSING;
    for (int i = missing; i < ESPER_POLICY_HISTORY; i++) {
        put(f, ESPER_FEATURE_LOSSES + i, symlog(view->signals.losses[i - missing]) / 7.0);
        put(f, ESPER_FEATURE_ACCURACIES + i, view->signals.accuracies[i - missing] / 100.0);
    }
    put(f, ESPER_FEATURE_N_TRAINING, count_stages(view, 1u << ESPER_STAGE_TRAINING) / n);
    put(f, ESPER_FEATURE_N_BLENDING, count_stages(view, 1u << ESPER_STAGE_BLENDING) / n);
    put(f, ESPER_FEATURE_N_HOLDING, count_stages(view, 1u << ESPER_STAGE_HOLDING | 1u << ESPER_STAGE_FOSSILIZED) / n);
    put(f, ESPER_FEATURE_SUCCESS, memory->last_success != 0);
    f->at[ESPER_FEATURE_LAST_OP + memory->last_op] = 1.0f;
    fill_task(f);
}

/* What the forks of the slot have shown, if it has had some. */
static void fill_forks(filling *f, const esper_policy_slot *slot)
{
    int n_blueprints = ESPER_FEATURE_FORK_BLUEPRINT_END - ESPER_FEATURE_FORK_BLUEPRINT + 1;
    double gain = 10.0 * slot->fork_gain;

    put(f, ESPER_FEATURE_FORK_SHARE, cut(slot->fork_share));
    if (slot->fork_blueprint < 0)
        return;
    f->at[ESPER_FEATURE_FORKED] = 1.0f;
    f->at[ESPER_FEATURE_FORK_GAIN] = isfinite(gain) ? (float)(gain / (1.0 + fabs(gain))) : (float)ESPER_FEATURE_MISSING;
    put_measured(f, ESPER_FEATURE_FORK_CERTAINTY,
                 slot->fork_error > 0.0 ? cut(slot->fork_gain / slot->fork_error / 5.0) : (double)NAN);
    put(f, ESPER_FEATURE_FORK_AGE, part(f, slot->fork_epochs));
    f->at[ESPER_FEATURE_FORK_STANDS] = slot->fork_stands;
    f->at[ESPER_FEATURE_FORK_BLUEPRINT + (slot->fork_blueprint < n_blueprints ? slot->fork_blueprint : 0)] = 1.0f;
}

/* The slot itself, whatever is in it. widest: channels; most: evidence, of all slots. */
static void fill_place(filling *f, int s, int widest, double most)
{
    const esper_policy_view *view = f->view;
    const esper_policy_slot *slot = &view->slots[s];
    double total = fmax((double)view->params_total, 1.0), least = 0.0, largest = 0.0;
    int n = 0;

    for (int i = 1; i < ESPER_POLICY_BLUEPRINTS; i++)
        if ((slot->blueprints >> i & 1u) != 0) {
            double params = (double)slot->blueprint_params[i];

            least = n == 0 ? params : fmin(least, params);
            largest = fmax(largest, params);
            n++;
        }
    f->at[ESPER_FEATURE_THERE] = 1.0f;
    f->at[ESPER_FEATURE_OPEN] = slot->stage == ESPER_STAGE_DORMANT && n > 0;
    put(f, ESPER_FEATURE_COOLDOWN, cut(slot->cooldown_left / 12.0));
    put(f, ESPER_FEATURE_PARAMS_BEFORE, slot->params_before);
    put(f, ESPER_FEATURE_FLOPS_BEFORE, slot->flops_before);
    put(f, ESPER_FEATURE_CHANNELS, log1p(slot->channels) / 7.0);
    put(f, ESPER_FEATURE_WIDTH, widest > 0 ? (double)slot->channels / widest : 0.0);
    f->at[ESPER_FEATURE_EVIDENCE] = (float)(!isfinite(slot->evidence) ? ESPER_FEATURE_MISSING
                                            : most > 0.0              ? cut(slot->evidence / most)
                                                                      : 0.0);
    put(f, ESPER_FEATURE_N_BLUEPRINTS, fmin((double)n / f->n_blueprints, 1.0));
    put(f, ESPER_FEATURE_CHEAPEST, log1p(least / total));
    put(f, ESPER_FEATURE_DEAREST, log1p(largest / total));
    fill_forks(f, slot);
}

/* Those of texts, and new channels, are known to a whole process: a run must not see what another one has. */
static int count_built_in(esper_topology topology)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    int n = 0;

    for (int i = 0; list[i] != NULL; i++)
        n += list[i]->index != 0 && list[i]->index < ESPER_BLUEPRINT_FIRST_TEXT;
    return n;
}

static void fill_slot(filling *f, const esper_policy_slot *slot, double health_before, int since)
{
    int left = slot->alpha_steps - slot->alpha_done;

    f->at[ESPER_FEATURE_PRESENT] = 1.0f;
    f->at[ESPER_FEATURE_STAGE + esper_stage_index(slot->stage)] = 1.0f;
    put(f, ESPER_FEATURE_ALPHA, slot->alpha);
    put(f, ESPER_FEATURE_TEMPO, slot->tempo / 12.0);
    put(f, ESPER_FEATURE_TARGET, slot->alpha_target);
    put(f, ESPER_FEATURE_MODE, slot->alpha_mode / 2.0);
    put(f, ESPER_FEATURE_STEPS, part(f, slot->alpha_steps));
    put(f, ESPER_FEATURE_STEPS_DONE, part(f, slot->alpha_done));
    put(f, ESPER_FEATURE_STEPS_LEFT, part(f, left > 0 ? left : 0));
    put(f, ESPER_FEATURE_ALPHA_SPEED, cut(slot->alpha_velocity));
    put(f, ESPER_FEATURE_BLEND, ((int)slot->blend - 1) / 2.0);
    f->at[ESPER_FEATURE_GRADIENT] =
        isfinite(slot->gradient_norm) ? (float)(symlog(slot->gradient_norm) / 7.0) : 0.0f; /* Inf is in `exploding` */
    put_measured(f, ESPER_FEATURE_HEALTH, cut(slot->gradient_health));
    f->at[ESPER_FEATURE_VANISHING] = slot->vanishing;
    f->at[ESPER_FEATURE_EXPLODING] = slot->exploding;
    f->at[ESPER_FEATURE_HEALTH_BEFORE] = isfinite(health_before) ? (float)health_before : (float)ESPER_FEATURE_MISSING;
    put_measured(f, ESPER_FEATURE_CONTRIBUTION, cut(slot->contribution / 10.0));
    put_measured(f, ESPER_FEATURE_CONTRIBUTION_SPEED, cut(slot->contribution_velocity / 10.0));
    put_measured(f, ESPER_FEATURE_INTERACTION, cut(slot->interaction / 10.0));
    put(f, ESPER_FEATURE_STAGE_EPOCHS, part(f, slot->epochs_in_stage));
    put(f, ESPER_FEATURE_SEED_EPOCHS, part(f, slot->epochs_total));
    put(f, ESPER_FEATURE_FRESHNESS, since >= 0 ? pow(ESPER_FEATURE_FADE, since) : ESPER_FEATURE_MISSING);
    put(f, ESPER_FEATURE_SEED_PARAMS, log1p((double)slot->params) / 14.0);
    put(f, ESPER_FEATURE_SEED_SHARE, cut((double)slot->params / fmax((double)f->view->params_total, 1.0)));
    put_measured(f, ESPER_FEATURE_IMPROVEMENT, cut(slot->improvement / 10.0));
    put_measured(f, ESPER_FEATURE_IMPROVEMENT_TOTAL, cut(slot->improvement_total / 10.0));
    f->at[ESPER_FEATURE_BOUNDED] = isfinite(slot->contribution_low) && isfinite(slot->contribution_high);
    put_measured(f, ESPER_FEATURE_CONTRIBUTION_LOW, cut(slot->contribution_low / 10.0));
    put_measured(f, ESPER_FEATURE_CONTRIBUTION_HIGH, cut(slot->contribution_high / 10.0));
    put_measured(f, ESPER_FEATURE_GRADIENT_RATIO, cut(slot->gradient_ratio / 10.0));
    f->at[ESPER_FEATURE_TRIED] = isfinite(slot->trial_gain) ? 1.0f : 0.0f;
    put_measured(f, ESPER_FEATURE_TRIAL_GAIN, cut(slot->trial_gain / 10.0));
}

esper_status esper_features_fill(const esper_policy_view *view, const esper_feature_memory *memory, int n_slots,
                                 float *obs_out, int32_t *blueprints_out, int *n_bad_out)
{
    filling f = {.view = view, .at = obs_out, .epochs = view->max_epochs > 0 ? view->max_epochs : ESPER_FEATURE_EPOCHS};
    double most = 0.0;
    int widest = 0;

    if (memory->last_op < 0 || memory->last_op >= ESPER_N_SLOT_OPS)
        return ESPER_FAIL(ESPER_E_ARG, "the last operation is %d, which is none", (int)memory->last_op);
    if (view->n_slots > n_slots)
        return ESPER_FAIL(ESPER_E_ARG, "a view of %d slots, and room for %d", view->n_slots, n_slots);
    for (int s = 0; s < view->n_slots; s++) {
        if (esper_stage_index(view->slots[s].stage) < 0)
            return ESPER_FAIL(ESPER_E_ARG, "slot %s: %d is no stage", view->slots[s].id, view->slots[s].stage);
        widest = view->slots[s].channels > widest ? view->slots[s].channels : widest;
        most = isfinite(view->slots[s].evidence) ? fmax(most, view->slots[s].evidence) : most;
    }
    f.n_blueprints = count_built_in(view->topology);
    memset(obs_out, 0, (size_t)esper_features_count(n_slots) * sizeof(*obs_out));
    fill_run(&f, memory);
    for (int s = 0; s < n_slots; s++) {
        bool empty = s >= view->n_slots || view->slots[s].stage == ESPER_STAGE_DORMANT;

        f.at = obs_out + esper_features_count(s);
        blueprints_out[s] = empty ? -1 : view->slots[s].blueprint;
        if (blueprints_out[s] >= esper_head_size(ESPER_HEAD_BLUEPRINT, 1))
            blueprints_out[s] = 0; /* planted by somebody else, of a kind that its network does not know */
        if (s < view->n_slots)
            fill_place(&f, s, widest, most);
        if (!empty)
            fill_slot(&f, &view->slots[s], memory->health[s], memory->since[s]);
    }
    *n_bad_out = f.n_bad;
    return ESPER_OK;
}
