/* Signals of one host. A value that is not a number never looks like progress. */
#include "policy/tracker.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "slot/gate.h"

const esper_field esper_tracker_fields[] = {
    ESPER_FIELD(esper_tracker_state, REAL, losses),         ESPER_FIELD(esper_tracker_state, REAL, accuracies),
    ESPER_FIELD(esper_tracker_state, REAL, best_accuracy),  ESPER_FIELD(esper_tracker_state, REAL, prev_accuracy),
    ESPER_FIELD(esper_tracker_state, REAL, prev_loss),      ESPER_FIELD(esper_tracker_state, I32, n_history),
    ESPER_FIELD(esper_tracker_state, I32, plateau_epochs),  ESPER_FIELD(esper_tracker_state, I32, stable_epochs),
    ESPER_FIELD(esper_tracker_state, I32, is_stable),       ESPER_FIELDS_END,
};

static const double tiny_loss = 1e-8; /* below it a share of the loss means nothing */

void esper_tracker_options_init(esper_tracker_options *options)
{
    *options = (esper_tracker_options){.plateau_threshold = 0.5,
                                       .window = 10,
                                       .stable_threshold = 0.03,
                                       .regression_threshold = 0.05,
                                       .stable_epochs = 3};
}

void esper_tracker_options_pace(esper_tracker_options *options, int gate_epochs)
{
    if (gate_epochs == ESPER_GATE_MIN_EPOCHS)
        return;
    options->stable_epochs = esper_gate_pace(options->stable_epochs, gate_epochs);
    options->stable_threshold = 1.0 - pow(1.0 - options->stable_threshold, (double)ESPER_GATE_MIN_EPOCHS / gate_epochs);
}

esper_status esper_tracker_init(esper_tracker *tracker, const esper_tracker_options *options)
{
    esper_tracker_options defaults;

    esper_tracker_options_init(&defaults);
    if (options == NULL)
        options = &defaults;
    if (options->window < 1 || options->window > ESPER_TRACKER_MAX_WINDOW)
        return ESPER_FAIL(ESPER_E_ARG, "a tracker remembers 1 to %d epochs, not %d", ESPER_TRACKER_MAX_WINDOW,
                          options->window);
    if (options->stable_epochs < 0)
        return ESPER_FAIL(ESPER_E_ARG, "a host cannot settle in %d epochs", options->stable_epochs);
    if (isnan(options->plateau_threshold) || isnan(options->stable_threshold) || isnan(options->regression_threshold))
        return ESPER_FAIL(ESPER_E_ARG, "a tracker's threshold is not a number");
    tracker->options = *options;
    memset(&tracker->state, 0, sizeof(tracker->state));
    tracker->state.prev_loss = (double)INFINITY;
    tracker->state.is_stable = options->stable_epochs == 0;
    return ESPER_OK;
}

/* Further: by stage, alpha, smaller contribution (one that was never measured counts as the largest), id. */
static bool is_further(const esper_policy_slot *a, const esper_policy_slot *b)
{
    double ca = isnan(a->contribution) ? (double)INFINITY : a->contribution;
    double cb = isnan(b->contribution) ? (double)INFINITY : b->contribution;

    if (a->stage != b->stage)
        return a->stage > b->stage;
    if (a->alpha != b->alpha)
        return a->alpha > b->alpha;
    if (ca != cb)
        return ca < cb;
    return strcmp(a->seed, b->seed) > 0;
}

/* Whether this epoch makes the host count as settled. */
static bool settles(esper_tracker *tracker, double loss_delta)
{
    const esper_tracker_options *options = &tracker->options;
    esper_tracker_state *state = &tracker->state;
    double share;

    if (state->is_stable || !(state->prev_loss < (double)INFINITY && state->prev_loss > tiny_loss))
        return false;
    share = loss_delta / state->prev_loss;
    if (!(share > -options->regression_threshold && share < options->stable_threshold)) {
        state->stable_epochs = 0;
        return false;
    }
    state->stable_epochs++;
    state->is_stable = state->stable_epochs >= options->stable_epochs;
    return state->is_stable != 0;
}

/* The epoch joins the others, the oldest goes; then what they say together. */
static void remember(esper_tracker *tracker, double loss, double accuracy, esper_signals *signals)
{
    esper_tracker_state *state = &tracker->state;
    int n;

    assert(state->n_history >= 0 && state->n_history <= tracker->options.window);
    if (state->n_history == tracker->options.window) {
        state->n_history--;
        memmove(state->losses, state->losses + 1, (size_t)state->n_history * sizeof(state->losses[0]));
        memmove(state->accuracies, state->accuracies + 1, (size_t)state->n_history * sizeof(state->accuracies[0]));
    }
    state->losses[state->n_history] = loss;
    state->accuracies[state->n_history] = accuracy;
    state->n_history++;
    state->best_accuracy = fmax(state->best_accuracy, accuracy);
    signals->best_accuracy = state->best_accuracy;
    signals->best_loss = (double)NAN; /* and stays so when there is no other */
    for (int i = 0; i < state->n_history; i++)
        signals->best_loss = fmin(signals->best_loss, state->losses[i]);
    n = signals->n_history = state->n_history < ESPER_POLICY_HISTORY ? state->n_history : ESPER_POLICY_HISTORY;
    memcpy(signals->losses, state->losses + state->n_history - n, (size_t)n * sizeof(double));
    memcpy(signals->accuracies, state->accuracies + state->n_history - n, (size_t)n * sizeof(double));
}

esper_status esper_tracker_update(esper_tracker *tracker, int epoch, double loss, double accuracy,
                                  const esper_policy_slot *slots, int n_slots, esper_signals *signals_out)
{
    esper_tracker_state *state = &tracker->state;
    esper_signals signals = {.loss_delta = state->prev_loss - loss, .accuracy_delta = accuracy - state->prev_accuracy};
    const esper_policy_slot *best = NULL;

    for (int a = 0; a < n_slots; a++) {
        if (!esper_stage_has_seed(slots[a].stage))
            continue;
        for (int b = 0; b < a; b++)
            if (esper_stage_has_seed(slots[b].stage) && strcmp(slots[a].seed, slots[b].seed) == 0)
                return ESPER_FAIL(ESPER_E_ARG, "slots %s and %s both have the seed '%s'", slots[b].id, slots[a].id,
                                  slots[a].seed);
        if (best == NULL || is_further(&slots[a], best))
            best = &slots[a];
    }
    state->plateau_epochs =
        signals.accuracy_delta >= tracker->options.plateau_threshold ? 0 : state->plateau_epochs + 1;
    signals.just_stabilized = settles(tracker, signals.loss_delta);
    signals.plateau_epochs = state->plateau_epochs;
    signals.host_stabilized = state->is_stable != 0;
    signals.scale_suspect = accuracy > 100.0 || (accuracy > 0.0 && accuracy <= 1.0 && epoch > 0);
    remember(tracker, loss, accuracy, &signals);
    if (best != NULL) {
        signals.seed_stage = best->stage;
        signals.seed_epochs_in_stage = best->epochs_in_stage;
        signals.seed_alpha = best->alpha;
        signals.seed_improvement = best->improvement;
    }
    state->prev_loss = loss;
    state->prev_accuracy = accuracy;
    *signals_out = signals;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ packed */

static const char name[] = "tracker";

void esper_tracker_pack(const esper_tracker *tracker, void *memory)
{
    memcpy((char *)memory + ESPER_PACK_HEAD_BYTES, &tracker->state, sizeof(tracker->state));
    esper_pack_seal(memory, name, sizeof(tracker->state));
}

esper_status esper_tracker_unpack(esper_tracker *tracker, const void *memory, size_t bytes)
{
    esper_tracker_state state;
    const void *payload;
    size_t n;

    ESPER_TRY(esper_pack_open(memory, bytes, name, &payload, &n));
    if (n != sizeof(state))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed tracker: %zu bytes, expected %zu", n, sizeof(state));
    memcpy(&state, payload, sizeof(state));
    if (state.n_history < 0 || state.n_history > tracker->options.window)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed tracker: %d epochs in a window of %d", (int)state.n_history,
                          tracker->options.window);
    if (state.plateau_epochs < 0 || state.stable_epochs < 0 || (state.is_stable != 0 && state.is_stable != 1))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed tracker: its counters are impossible");
    tracker->state = state;
    return ESPER_OK;
}
