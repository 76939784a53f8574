/* Internal. What a learned policy sees: the view as one vector of floats, so many of the run and so many of each slot, and the
 * one table that says what each of them is.
 *
 *     | host | context | task | slot 0: seed, place | slot 1: seed, place | ...
 *
 * Nothing says which slot of which host one is: a slot is what it has, so that a policy can decide about any host.
 * Two things are called after trials: a trial blend lets a seed that is there in for a moment (`tried`, `trial_gain`), and forks
 * of the run are trained beside each other, with a seed and without (`forked`, `fork_gain`, ...).
 *
 * Every value is finite. A reading that is not finite, or that is not there yet, is ESPER_FEATURE_MISSING where 0 could be
 * mistaken for a reading, else 0. What is said of a seed is zeros where the slot is empty; a slot that there is not is zeros
 * altogether. `esper info features` prints the table. */
#ifndef ESPER_POLICY_FEATURES_H
#define ESPER_POLICY_FEATURES_H

#include "policy/normaliser.h"
#include "policy/view.h"

enum { ESPER_FEATURES_VERSION = 3 }; /* of the table: policies are bound to the one they were trained with */

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
    X(CONTEXT, LAST_OP, ESPER_N_SLOT_OPS, "last_op", "one of them is 1", AS_IS, "operation of the last decision")    \
    X(TASK, TOPOLOGY, ESPER_N_TOPOLOGIES, "topology", "one of them is 1", AS_IS, "kind of the host, in their order") \
    X(TASK, SHARE, 1, "share", "0 .. 1", AS_IS, "of the run's budget that is spent")                                 \
    X(TASK, LOSS_TRAIN, 1, "loss_train", "0 and up, or -1", OR_MISSING, "symlog(training loss) / 7")                 \
    X(TASK, ACCURACY_TRAIN, 1, "accuracy_train", "0 .. 1, or -1", OR_MISSING, "training accuracy / 100")             \
    X(TASK, ACCURACY_BEST, 1, "accuracy_best", "0 .. 1, or -1", OR_MISSING, "best validation accuracy / 100")        \
    X(TASK, PLATEAU, 1, "plateau", "0 .. 1", AS_IS, "epochs without progress / 10, cut")                             \
    X(TASK, SETTLED, 1, "settled", "0 or 1", AS_IS, "the host has stabilised")                                       \
    X(TASK, N_SLOTS, 1, "n_slots", "0 .. 1", AS_IS, "ln(slots) / ln 64")                                             \
    X(TASK, N_SEEDS, 1, "n_seeds", "0 .. 1", AS_IS, "slots with a seed, fossils included / slots")                   \
    X(TASK, PARAMS, 1, "params", "0 and up", AS_IS, "ln(1 + parameters) / 14")                                       \
    X(TASK, GROWTH, 1, "growth", "0 and up", AS_IS, "ln(parameters / those of the host)")                            \
    X(TASK, PARAMS_LEFT, 1, "params_left", "0 .. 1", AS_IS, "of the limit of parameters; 1: there is none")          \
    X(TASK, FLOPS_LEFT, 1, "flops_left", "0 .. 1", AS_IS, "of the limit of FLOPs; 1: there is none")                 \
    X(TASK, FORWARDS, 1, "forwards", "0 or 1", AS_IS, "gates forward seeds without being asked")                     \
    X(TASK, FORKS_LEFT, 1, "forks_left", "0 .. 1", AS_IS,                                                            \
      "share of the run that trials may still take; 0: none may be asked for")

#define ESPER_FEATURE_SLOT_LIST(X)                                                                                     \
    X(SLOT, PRESENT, 1, "present", "0 or 1", AS_IS, "the slot is not empty; all others are 0 when it is")              \
    X(SLOT, STAGE, ESPER_N_STAGES, "stage", "one of them is 1", AS_IS, "its stage, in their order")                    \
    X(SLOT, ALPHA, 1, "alpha", "0 .. 1", AS_IS, "weight of the seed")                                                  \
    X(SLOT, CONTRIBUTION, 1, "contribution", "-1 .. 1", AS_IS, "points / 10, cut; 0: not measured")                    \
    X(SLOT, CONTRIBUTION_SPEED, 1, "contribution_velocity", "-1 .. 1", AS_IS, "points for each epoch / 10, cut")       \
    X(SLOT, TEMPO, 1, "tempo", "0 and up", AS_IS, "ticks of the blend-in / 12")                                        \
    X(SLOT, TARGET, 1, "alpha_target", "0 .. 1", AS_IS, "where alpha goes")                                            \
    X(SLOT, MODE, 1, "alpha_mode", "0, 1/2 or 1", AS_IS, "alpha rests, goes up, goes down")                            \
    X(SLOT, STEPS, 1, "alpha_steps", "0 .. 1", AS_IS, "part(ticks of the ramp)")                                       \
    X(SLOT, STEPS_DONE, 1, "alpha_steps_done", "0 .. 1", AS_IS, "part(those behind it)")                               \
    X(SLOT, STEPS_LEFT, 1, "alpha_steps_left", "0 .. 1", AS_IS, "part(those before it)")                               \
    X(SLOT, ALPHA_SPEED, 1, "alpha_velocity", "-1 .. 1", AS_IS, "of the ramp for each tick, cut")                      \
    X(SLOT, BLEND, 1, "operator", "0, 1/2 or 1", AS_IS, "add, multiply, gate")                                         \
    X(SLOT, INTERACTION, 1, "interaction", "-1 .. 1", AS_IS, "sum over partners, points / 10, cut")                    \
    X(SLOT, GRADIENT, 1, "gradient_norm", "0 and up", AS_IS,                                                           \
      "symlog(norm of the seed's gradients) / 7; 0: not measured")                                                     \
    X(SLOT, HEALTH, 1, "gradient_health", "0 .. 1", AS_IS, "of the seed's gradients; 0: not measured")                 \
    X(SLOT, VANISHING, 1, "vanishing", "0 or 1", AS_IS, "some gradient of the seed vanishes")                          \
    X(SLOT, EXPLODING, 1, "exploding", "0 or 1", AS_IS, "some gradient of the seed explodes")                          \
    X(SLOT, HEALTH_BEFORE, 1, "gradient_health_before", "0 .. 1, or -1", AS_IS,                                        \
      "in the step before; -1: not measured")                                                                          \
    X(SLOT, STAGE_EPOCHS, 1, "epochs_in_stage", "0 .. 1", AS_IS, "part(epochs in this stage)")                         \
    X(SLOT, FRESHNESS, 1, "freshness", "0 .. 1, or -1", AS_IS,                                                         \
      "0.995 ^ epochs since the contribution was measured; -1: never")                                                 \
    X(SLOT, SEED_EPOCHS, 1, "epochs_total", "0 .. 1", AS_IS, "part(epochs since it germinated)")                       \
    X(SLOT, SEED_PARAMS, 1, "seed_params", "0 and up", AS_IS, "ln(1 + parameters of the seed) / 14")                   \
    X(SLOT, SEED_SHARE, 1, "seed_share", "0 .. 1", AS_IS, "its part of all parameters")                                \
    X(SLOT, IMPROVEMENT, 1, "improvement", "-1 .. 1", AS_IS, "points since the stage began / 10, cut")                 \
    X(SLOT, IMPROVEMENT_TOTAL, 1, "improvement_total", "-1 .. 1", AS_IS, "points since it germinated / 10, cut")       \
    X(SLOT, BOUNDED, 1, "bounded", "0 or 1", AS_IS, "the contribution has bounds")                                     \
    X(SLOT, CONTRIBUTION_LOW, 1, "contribution_low", "-1 .. 1", AS_IS, "lower bound / 10, cut")                        \
    X(SLOT, CONTRIBUTION_HIGH, 1, "contribution_high", "-1 .. 1", AS_IS, "upper bound / 10, cut")                      \
    X(SLOT, GRADIENT_RATIO, 1, "gradient_ratio", "0 .. 1", AS_IS, "of seed and host / 10; 0: not measured")            \
    X(SLOT, TRIED, 1, "tried", "0 or 1", AS_IS, "what a trial blend of the seed brings is known")                      \
    X(SLOT, TRIAL_GAIN, 1, "trial_gain", "-1 .. 1", AS_IS, "points gained in it / 10, cut")                            \
    X(PLACE, THERE, 1, "there", "0 or 1", AS_IS, "there is such a slot; all others are 0 when there is not")           \
    X(PLACE, OPEN, 1, "open", "0 or 1", AS_IS, "a seed may germinate in it now")                                       \
    X(PLACE, COOLDOWN, 1, "cooldown", "0 .. 1", AS_IS, "ticks until it is empty again / 12, cut")                      \
    X(PLACE, PARAMS_BEFORE, 1, "params_before", "0 .. 1", AS_IS, "part of the host's parameters in front of it")       \
    X(PLACE, FLOPS_BEFORE, 1, "flops_before", "0 .. 1", AS_IS, "part of the host's FLOPs in front of it")              \
    X(PLACE, CHANNELS, 1, "channels", "0 and up", AS_IS, "ln(1 + channels) / 7")                                       \
    X(PLACE, WIDTH, 1, "width", "0 .. 1", AS_IS, "channels / those of the widest slot")                                \
    X(PLACE, EVIDENCE, 1, "evidence", "-1 .. 1", AS_IS,                                                                \
      "what a seed here promises, of the slot that promises most; -1: not known")                                      \
    X(PLACE, N_BLUEPRINTS, 1, "n_blueprints", "0 .. 1", AS_IS, "blueprints that may germinate here / those there are") \
    X(PLACE, CHEAPEST, 1, "cheapest", "0 and up", AS_IS, "ln(1 + parameters of the smallest of them / all)")           \
    X(PLACE, DEAREST, 1, "dearest", "0 and up", AS_IS, "ln(1 + parameters of the largest of them / all)")              \
    X(PLACE, FORKED, 1, "forked", "0 or 1", AS_IS,                                                                     \
      "a trial of forks was asked for here (`try`); what follows of it is 0 when none was")                            \
    X(PLACE, FORK_GAIN, 1, "fork_gain", "-1 .. 1", AS_IS,                                                              \
      "x / (1 + |x|) of x = 10 times the nats that the best seed's fork gained; -1: one was not finite")               \
    X(PLACE, FORK_CERTAINTY, 1, "fork_certainty", "-1 .. 1", AS_IS, "that gain / its standard error / 5, cut")         \
    X(PLACE, FORK_AGE, 1, "fork_age", "0 .. 1", AS_IS, "part(epochs since)")                                           \
    X(PLACE, FORK_STANDS, 1, "fork_stands", "0 or 1", AS_IS, "it is too early to ask again")                           \
    X(PLACE, FORK_BLUEPRINT, 13, "fork_blueprint", "one of them is 1", AS_IS,                                          \
      "that seed's blueprint, as the head has them; the first: it has no place there")                                 \
    X(PLACE, FORK_SHARE, 1, "fork_share", "0 .. 1", AS_IS,                                                             \
      "of the run, that a trial here takes; 0: there is nothing to try")

/* Where each begins: ESPER_FEATURE_LOSS in the vector, ESPER_FEATURE_ALPHA in a slot's part of it. */
enum {
#define X(group, id, n, name, range, how, about) \
    ESPER_FEATURE_##id, ESPER_FEATURE_##id##_END = ESPER_FEATURE_##id + (n)-1,
    ESPER_FEATURE_RUN_LIST(X) ESPER_FEATURES_RUN
};
enum { ESPER_FEATURE_SLOT_LIST(X) ESPER_FEATURES_SLOT };
#undef X

typedef enum esper_feature_group {
    ESPER_FEATURE_HOST,
    ESPER_FEATURE_CONTEXT,
    ESPER_FEATURE_TASK,
    ESPER_FEATURE_SLOT,  /* the seed in a slot */
    ESPER_FEATURE_PLACE, /* the slot itself */
} esper_feature_group;

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

/* What the normaliser is to do with each of the ESPER_FEATURES_RUN values of the run. Those of slots it is not shown: they are
 * made so that they are of size 1. */
void esper_features_how(uint8_t *how_out);

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

/* n_slots: room for so many, at least those of the view. obs: (esper_features_count(n_slots)); blueprints: (n_slots) index of each
 * slot's blueprint, -1 = none, 0 = one that has no place in the head. Returns how many readings had to be replaced because they are not finite. E_ARG: a view that no run can have (stage or
 * last operation is none). */
esper_status esper_features_fill(const esper_policy_view *view, const esper_feature_memory *memory, int n_slots,
                                 float *obs_out, int32_t *blueprints_out, int *n_bad_out);

#endif
