/* Internal. The gates between stages: G0 to a seed's birth, G1 to training, G2 to blending, G3 to holding, G5 to being
 * kept. A gate is a pure function of a record of readings; it answers with its verdict and the evidence of each check,
 * passed or failed. The words of recorded checks and messages are kept.
 *
 * Strict gates judge the seed's merit. Permissive ones ask for safety and structure alone, so that a learned policy finds
 * out about merit itself. In both, a reading that is not finite, or was never taken, does not pass. */
#ifndef ESPER_SLOT_GATE_H
#define ESPER_SLOT_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "slot/stage.h"

#define ESPER_GATE_LIST(X)       \
    X(G0, 0, "G0", GERMINATED)   \
    X(G1, 1, "G1", TRAINING)     \
    X(G2, 2, "G2", BLENDING)     \
    X(G3, 3, "G3", HOLDING)      \
    X(G5, 5, "G5", FOSSILIZED)

typedef enum esper_gate {
#define X(name, code, text, target) ESPER_GATE_##name = code,
    ESPER_GATE_LIST(X)
#undef X
} esper_gate;

/* What they ask for. Epochs count from entering the stage; pp are points of accuracy in percent. */
enum { ESPER_GATE_MIN_EPOCHS = 10, ESPER_GATE_MIN_BOUND_EPOCHS = 3 };
#define ESPER_GATE_MIN_IMPROVEMENT  0.5 /* pp, G2 strict */
#define ESPER_GATE_MIN_RATIO        0.1 /* of gradient activity, seed to host, G2 strict */
#define ESPER_GATE_MIN_HEALTH       0.7 /* of the seed's gradients, G2 permissive */
#define ESPER_GATE_MIN_CONTRIBUTION 1.0 /* pp, G5 strict */

/* How a merit was measured. A plain number is judged as recorded; the other two replace it under the same threshold,
 * because they say something about the seed: accuracy gained while alpha is 0 is the host's own, and one reading of a
 * contribution is mostly noise. */
typedef enum esper_merit_how {
    ESPER_MERIT_NONE,        /* never measured */
    ESPER_MERIT_PLAIN,       /* G2: accuracy gained in this stage. G5: the last ablation's answer */
    ESPER_MERIT_TRIAL,       /* G2: gain of a trial blend of the seed */
    ESPER_MERIT_FORKS,       /* G2: what a fork with the seed gained over one without, in loss; its lower bound */
    ESPER_MERIT_LOWER_BOUND, /* G5: one-sided 95 % lower bound of its contribution, over n_epochs */
} esper_merit_how;

typedef struct esper_merit {
    double  value; /* pp; of FORKS, nats */
    int32_t how, n_epochs;
} esper_merit;

typedef struct esper_gate_input {
    bool        permissive;
    const char *seed_id, *blueprint; /* "" or NULL = none */
    int         stage, epochs_in_stage;
    int         min_epochs; /* asked of TRAINING, and by strict gates of BLENDING; 0 = ESPER_GATE_MIN_EPOCHS */
    esper_merit improvement, contribution;
    bool        has_gradient_ratio, has_gradient_health; /* false: never measured */
    double      gradient_ratio, gradient_health;
    bool        exploding; /* some gradient of the seed is, when it was measured last */
    bool        healthy;   /* nothing of the seed was found not finite when it was looked at last */
    double      alpha, alpha_target;
    int         alpha_mode;
} esper_gate_input;

/* What is looked at: by name in records, and in words for people, where what is yes or no is a question. */
#define ESPER_GATE_CHECK_LIST(X) \
    X(SEED, "seed", "is there a seed?") \
    X(SEED_ID, "seed_id", "has it a number?") \
    X(BLUEPRINT, "blueprint", "has it a blueprint?") \
    X(STAGE, "stage", "has it germinated?") \
    X(IMPROVEMENT, "improvement", "gained: points of accuracy since its stage began, or nats of loss in its trial") \
    X(EPOCHS, "epochs_in_stage", "epochs in this stage") \
    X(GRADIENT_RATIO, "gradient_ratio", "its gradients beside the host's") \
    X(GRADIENT_MEASURED, "gradient_measured", "were its gradients measured?") \
    X(EXPLODING, "exploding", "are its gradients free of explosions?") \
    X(GRADIENT_HEALTH, "gradient_health", "health of its gradients, 0 to 1") \
    X(ALPHA_TARGET, "alpha_target", "the weight it is to reach") \
    X(ALPHA, "alpha", "its weight") \
    X(CONTRIBUTION_MEASURED, "contribution_measured", "was its dependence measured?") \
    X(HEALTHY, "healthy", "are all its numbers finite?") \
    X(CONTRIBUTION, "contribution", "dependence: points of accuracy that are lost without it") \
    X(BOUND_EPOCHS, "bound_epochs", "epochs that its dependence rests on")

typedef enum esper_gate_check_kind {
#define X(name, text, about) ESPER_CHECK_##name,
    ESPER_GATE_CHECK_LIST(X)
#undef X
    ESPER_CHECK_N_KINDS
} esper_gate_check_kind;

enum {
    ESPER_GATE_TOKEN_CHARS = 64,
    ESPER_GATE_MESSAGE_CHARS = 96,
    ESPER_GATE_WHY_CHARS = 160,
    ESPER_GATE_MAX_CHECKS = 4
};

typedef struct esper_gate_check {
    int32_t kind, passed;
    double  value, threshold; /* value NaN: never measured. Yes and no are 1 and 0 */
    char    token[ESPER_GATE_TOKEN_CHARS]; /* the recorded word; "" where a check has none */
} esper_gate_check;

typedef struct esper_gate_result {
    int32_t          gate, passed;
    double           score; /* 0..1, for display; decides nothing */
    int32_t          n_checks, permissive;
    esper_gate_check checks[ESPER_GATE_MAX_CHECKS];
    char             message[ESPER_GATE_MESSAGE_CHARS];
} esper_gate_result;

/* A number of epochs that goes with gates that ask for ESPER_GATE_MIN_EPOCHS, for gates that ask for `gate_epochs`: rounded
 * up, so that only 0 becomes 0. */
int esper_gate_pace(int epochs, int gate_epochs);

/* The fewest epochs of a run after which a seed can have been kept. It germinates after the first, passes G1 after the second,
 * trains, blends (permissive: in one epoch), and holds until its contribution is known (strict: with its bounds). */
int esper_gate_least_epochs(bool permissive, int gate_epochs);

/* The gate before a stage; -1 = it has none. */
int         esper_gate_before(int stage);
const char *esper_gate_name(int gate);                 /* "G2"; NULL for other codes */
const char *esper_gate_check_name(int kind);           /* "improvement" */
const char *esper_gate_check_about(int kind);          /* what it means, for people */

/* Judges; false when that is no gate. */
bool esper_gate_judge(int gate, const esper_gate_input *input, esper_gate_result *result_out);

/* What a gate says, in words for people: what it asked for in vain, such as "epochs in stage 2, needs 10"; its message where it
 * was passed. Messages are the recorded ones, and speak of safety also where time is short. */
const char *esper_gate_why(const esper_gate_result *result, char text[ESPER_GATE_WHY_CHARS]);

/* The answer where no gate could be asked or none is enough: "no_active_seed", "transition_failed". */
void esper_gate_refuse(int gate, const char *token, esper_gate_result *result_out);

#endif
