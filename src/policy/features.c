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

_Static_assert(ESPER_FEATURES_RUN == 23 && ESPER_FEATURES_SLOT == 31, "policies were trained with these");
_Static_assert(ESPER_FEATURE_LOSSES_END - ESPER_FEATURE_LOSSES + 1 == ESPER_POLICY_HISTORY, "as many as are tracked");

const esper_feature *esper_feature_list(int *n_out)
{
    *n_out = N_FEATURES;
    return features;
}

const char *esper_feature_group_name(esper_feature_group group)
{
    return group == ESPER_FEATURE_HOST ? "host" : group == ESPER_FEATURE_CONTEXT ? "context" : "slot";
}

int esper_features_count(int n_slots)
{
    return ESPER_FEATURES_RUN + ESPER_FEATURES_SLOT * n_slots;
}

void esper_features_how(int n_slots, uint8_t *how_out)
{
    for (int i = 0; i < N_FEATURES; i++) {
        bool of_slot = features[i].group == ESPER_FEATURE_SLOT;

        for (int s = 0; s < (of_slot ? n_slots : 1); s++)
            memset(how_out + (of_slot ? esper_features_count(s) : 0) + features[i].at, features[i].how,
                   (size_t)features[i].n);
    }
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
}

esper_status esper_features_fill(const esper_policy_view *view, const esper_feature_memory *memory, float *obs_out,
                                 int32_t *blueprints_out, int *n_bad_out)
{
    filling f = {.view = view, .at = obs_out, .epochs = view->max_epochs > 0 ? view->max_epochs : ESPER_FEATURE_EPOCHS};

    if (memory->last_op < 0 || memory->last_op >= ESPER_N_SLOT_OPS)
        return ESPER_FAIL(ESPER_E_ARG, "the last operation is %d, which is none", (int)memory->last_op);
    for (int s = 0; s < view->n_slots; s++)
        if (esper_stage_index(view->slots[s].stage) < 0)
            return ESPER_FAIL(ESPER_E_ARG, "slot %s: %d is no stage", view->slots[s].id, view->slots[s].stage);
    memset(obs_out, 0, (size_t)esper_features_count(view->n_slots) * sizeof(*obs_out));
    fill_run(&f, memory);
    for (int s = 0; s < view->n_slots; s++) {
        f.at = obs_out + esper_features_count(s);
        blueprints_out[s] = view->slots[s].stage == ESPER_STAGE_DORMANT ? -1 : view->slots[s].blueprint;
        if (blueprints_out[s] >= esper_head_size(ESPER_HEAD_BLUEPRINT, 1))
            blueprints_out[s] = 0; /* planted by somebody else, of a kind that its network does not know */
        if (view->slots[s].stage != ESPER_STAGE_DORMANT)
            fill_slot(&f, &view->slots[s], memory->health[s], memory->since[s]);
    }
    *n_bad_out = f.n_bad;
    return ESPER_OK;
}
