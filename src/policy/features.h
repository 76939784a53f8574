/* Internal. What a learned policy sees: the view as one vector of floats, 23 of the run and 31 for each slot, and the one
 * table that says what each of them is.
 *
 *     | host 13 | context 10 | slot 0: 31 | slot 1: 31 | ...
 *
 * Every value is finite. A reading that is not finite, or that is not there yet, is ESPER_FEATURE_MISSING where 0 could be
 * mistaken for a reading, else 0. A slot that is empty is all zeros. `esper info features` prints the table. */
#ifndef ESPER_POLICY_FEATURES_H
#define ESPER_POLICY_FEATURES_H

#include "policy/normaliser.h"
#include "policy/view.h"

enum { ESPER_FEATURES_VERSION = 1 }; /* of the table: policies are bound to the one they were trained with */

#define ESPER_FEATURE_MISSING  (-1.0)
#define ESPER_FEATURE_FADE     0.995 /* of the freshness of a contribution, each epoch */
#define ESPER_FEATURE_EPOCHS   150   /* what epochs are parts of in a run with an open end */

/* symlog(x) is sign(x) ln(1 + |x|); part(x) is min(x, max_epochs) / max_epochs.
 * group, id, how many, name, values, what the normaliser does (esper_norm_how), meaning */
#define ESPER_FEATURE_RUN_LIST(X)                                                                                    \
    X(HOST, EPOCH, 1, "epoch", "0 .. 1", AS_IS, "part(epoch)")                                                       \
    X(HOST, LOSS, 1, "loss_valid", "0 and up, or -1", OR_MISSING, "symlog(validation loss) / 7; -1: not finite")     \
    X(HOST, ACCURACY, 1, "accuracy_valid", "0 .. 1, or -1", OR_MISSING, "validation accuracy / 100; -1: not finite") \
    X(HOST, LOSSES, 5, "losses", "0 and up, or -1", OR_MISSING, "the last five, oldest first; -1: there was none")   \
    X(HOST, ACCURACIES, 5, "accuracies", "0 .. 1, or -1", OR_MISSING,                                                \
      "the last five, oldest first; -1: there was none")                                                             \
    X(CONTEXT, N_TRAINING, 1, "n_training", "0 .. 1", AS_IS, "slots with a seed that trains / slots")                \
    X(CONTEXT, N_BLENDING, 1, "n_blending", "0 .. 1", AS_IS, "slots with a seed that blends / slots")                \
    X(CONTEXT, N_HOLDING, 1, "n_holding", "0 .. 1", AS_IS, "slots with a seed that holds or is fossilized / slots")  \
    X(CONTEXT, SUCCESS, 1, "last_success", "0 or 1", AS_IS, "the last decision was carried out")                     \
    X(CONTEXT, LAST_OP, ESPER_N_SLOT_OPS, "last_op", "one of them is 1", AS_IS, "operation of the last decision")

#define ESPER_FEATURE_SLOT_LIST(X)                                                                               \
    X(SLOT, PRESENT, 1, "present", "0 or 1", AS_IS, "the slot is not empty; all others are 0 when it is")        \
    X(SLOT, STAGE, ESPER_N_STAGES, "stage", "one of them is 1", AS_IS, "its stage, in their order")              \
    X(SLOT, ALPHA, 1, "alpha", "0 .. 1", AS_IS, "weight of the seed")                                            \
    X(SLOT, CONTRIBUTION, 1, "contribution", "-1 .. 1", AS_IS, "points / 10, cut; 0: not measured")              \
    X(SLOT, CONTRIBUTION_SPEED, 1, "contribution_velocity", "-1 .. 1", AS_IS, "points for each epoch / 10, cut") \
    X(SLOT, TEMPO, 1, "tempo", "0 and up", AS_IS, "ticks of the blend-in / 12")                                  \
    X(SLOT, TARGET, 1, "alpha_target", "0 .. 1", AS_IS, "where alpha goes")                                      \
    X(SLOT, MODE, 1, "alpha_mode", "0, 1/2 or 1", AS_IS, "alpha rests, goes up, goes down")                      \
    X(SLOT, STEPS, 1, "alpha_steps", "0 .. 1", AS_IS, "part(ticks of the ramp)")                                 \
    X(SLOT, STEPS_DONE, 1, "alpha_steps_done", "0 .. 1", AS_IS, "part(those behind it)")                         \
    X(SLOT, STEPS_LEFT, 1, "alpha_steps_left", "0 .. 1", AS_IS, "part(those before it)")                         \
    X(SLOT, ALPHA_SPEED, 1, "alpha_velocity", "-1 .. 1", AS_IS, "of the ramp for each tick, cut")                \
    X(SLOT, BLEND, 1, "operator", "0, 1/2 or 1", AS_IS, "add, multiply, gate")                                   \
    X(SLOT, INTERACTION, 1, "interaction", "-1 .. 1", AS_IS, "sum over partners, points / 10, cut")              \
    X(SLOT, GRADIENT, 1, "gradient_norm", "0 and up", AS_IS,                                                     \
      "symlog(norm of the seed's gradients) / 7; 0: not measured")                                               \
    X(SLOT, HEALTH, 1, "gradient_health", "0 .. 1", AS_IS, "of the seed's gradients; 0: not measured")           \
    X(SLOT, VANISHING, 1, "vanishing", "0 or 1", AS_IS, "some gradient of the seed vanishes")                    \
    X(SLOT, EXPLODING, 1, "exploding", "0 or 1", AS_IS, "some gradient of the seed explodes")                    \
    X(SLOT, HEALTH_BEFORE, 1, "gradient_health_before", "0 .. 1, or -1", AS_IS,                                  \
      "in the step before; -1: not measured")                                                                    \
    X(SLOT, STAGE_EPOCHS, 1, "epochs_in_stage", "0 .. 1", AS_IS, "part(epochs in this stage)")                   \
    X(SLOT, FRESHNESS, 1, "freshness", "0 .. 1, or -1", AS_IS,                                                   \
      "0.995 ^ epochs since the contribution was measured; -1: never")                                           \
    X(SLOT, SEED_EPOCHS, 1, "epochs_total", "0 .. 1", AS_IS, "part(epochs since it germinated)")

/* Where each begins: ESPER_FEATURE_LOSS in the vector, ESPER_FEATURE_ALPHA in a slot's part of it. */
enum {
#define X(group, id, n, name, range, how, about) \
    ESPER_FEATURE_##id, ESPER_FEATURE_##id##_END = ESPER_FEATURE_##id + (n)-1,
    ESPER_FEATURE_RUN_LIST(X) ESPER_FEATURES_RUN
};
enum { ESPER_FEATURE_SLOT_LIST(X) ESPER_FEATURES_SLOT };
#undef X

typedef enum esper_feature_group { ESPER_FEATURE_HOST, ESPER_FEATURE_CONTEXT, ESPER_FEATURE_SLOT } esper_feature_group;

/* A row of the table. */
typedef struct esper_feature {
    const char         *name, *range, *about;
    esper_feature_group group;
    int                 at, n; /* first index, in the vector or in a slot's part; how many values */
    esper_norm_how      how;
} esper_feature;

/* The whole table, *n_out rows: those of the run, then those of a slot. */
const esper_feature *esper_feature_list(int *n_out);
const char          *esper_feature_group_name(esper_feature_group group); /* "context" */

int esper_features_count(int n_slots);

/* What the normaliser is to do with each of the esper_features_count(n_slots) values. */
void esper_features_how(int n_slots, uint8_t *how_out);

/* What is remembered from step to step of one run: plain memory without holes. */
typedef struct esper_feature_memory {
    double  health[ESPER_POLICY_MAX_SLOTS]; /* of the gradients, in the step before; NaN = not measured */
    int32_t since[ESPER_POLICY_MAX_SLOTS];  /* epochs since a contribution was measured; -1 = never */
    int32_t last_op, last_success;
} esper_feature_memory;

_Static_assert(sizeof(esper_feature_memory) == ESPER_POLICY_MAX_SLOTS * 12 + 8, "a memory has no holes");

/* An episode begins. */
void esper_feature_memory_init(esper_feature_memory *memory);
/* What a view tells of the time since the last step: a rollback (the episode begins again, and the last decision counts as one
 * that failed), a refusal, contributions that were measured. Before the vector is made. */
void esper_feature_memory_begin(esper_feature_memory *memory, const esper_policy_view *view);
/* A step is over: what was decided in this view, and whether it was carried out. */
void esper_feature_memory_step(esper_feature_memory *memory, const esper_policy_view *view, int op, bool success);

/* obs: (esper_features_count); blueprints: (n_slots) index of each slot's blueprint, -1 = none, 0 = one that has no place in the
 * head. Returns how many readings had to be replaced because they are not finite. E_ARG: a view that no run can have (stage or
 * last operation is none). */
esper_status esper_features_fill(const esper_policy_view *view, const esper_feature_memory *memory, float *obs_out,
                                 int32_t *blueprints_out, int *n_bad_out);

#endif
