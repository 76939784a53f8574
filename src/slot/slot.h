/* Internal. A slot and the life of the seed in it: the heart of growing, as pure logic on one plain record.
 *
 *                                                           ┌─less alpha─┐
 *                                                           v            │
 *   (empty) ─germinate─> GERMINATED ─G1─> TRAINING ─G2─> BLENDING ─G3─> HOLDING ─G5─> FOSSILIZED
 *      ^                     │               │              │             │
 *      │                     └───────────────┴─────prune────┴─────────────┘
 *      │                                                    v
 *      └─1 tick─ RESETTING <─5 ticks─ EMBARGOED <─1 tick─ PRUNED
 *
 *   stage        alpha   the seed
 *   GERMINATED   0       built, not part of the network
 *   TRAINING     0       learns; the network's output is the host's own
 *   BLENDING     0..1    is part of the network with weight alpha, which moves at ticks
 *   HOLDING      1       is fully part of it, on probation
 *   FOSSILIZED   1       stays for good
 *   PRUNED ...   0       is gone; the slot rests
 *
 * A slot holds no pointers, no padding and no times: a copy is a snapshot, and equal bytes are equal slots. Everything is
 * refused whole or done whole. One function, esper_slot_move, changes the stage; what can fail comes before it. What
 * happens is appended to a list of events; whether there is room in it changes nothing.
 *
 * Refusals are E_STATE (not now) and E_ARG (never), with a reason. That a gate did not let a seed pass is a reading, not a
 * failure: ESPER_OK with a result that says so. */
#ifndef ESPER_SLOT_SLOT_H
#define ESPER_SLOT_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "esper.h"
#include "nn/blueprint.h"
#include "slot/alpha.h"
#include "slot/gate.h"
#include "slot/stage.h"
#include "tensor/net.h"

enum {
    ESPER_SLOT_HISTORY = 100,
    ESPER_EMBARGO_TICKS = 5,
    ESPER_RESET_TICKS = 1,
    ESPER_SEED_ID_CHARS = 48,
    ESPER_BLUEPRINT_CHARS = 20,
    ESPER_REASON_CHARS = 32,
    ESPER_INITIATOR_CHARS = 16,
};

/* The way into blending. GATED goes with the operator GATE, and only with it. */
#define ESPER_RAMP_LIST(X) X(LINEAR, 1, "linear") X(SIGMOID, 2, "sigmoid") X(GATED, 3, "gated")

typedef enum esper_ramp {
#define X(name, code, text) ESPER_RAMP_##name = code,
    ESPER_RAMP_LIST(X)
#undef X
} esper_ramp;

const char *esper_ramp_name(int ramp);        /* NULL for other codes */
int         esper_ramp_find(const char *name); /* -1 = there is none */

/* What was measured and may be used: bits of esper_slot.known. */
enum { ESPER_KNOWN_RATIO = 1, ESPER_KNOWN_HEALTH = 2, ESPER_KNOWN_CONTRIBUTION = 4, ESPER_KNOWN_PREVIOUS = 8 };

typedef struct esper_slot_past {
    int32_t stage, tick; /* entered after so many ticks of this seed */
} esper_slot_past;

/* Read what you like; only the functions below write. Accuracies are in percent, differences of them in points. */
typedef struct esper_slot {
    /* the slot itself, which stays */
    char     id[ESPER_SLOT_CHARS];
    int32_t  row, col;
    int32_t  depth;    /* in the order of execution, from 0 */
    int32_t  channels;
    int32_t  permissive;       /* gates ask for safety alone */
    uint32_t auto_forward;     /* bits 1u << gate: ticks try to pass G1, G2, G3 by themselves */
    int32_t
        isolate_blending; /* the host gets no gradient through the seed from BLENDING on (in TRAINING it never does) */
    int32_t  gate_epochs;      /* asked of a stage: see esper_gate_input.min_epochs */
    int32_t  embargo_ticks;    /* of rest after a prune */
    int32_t  n_seeds;          /* that have germinated here so far: the present one's number */

    /* all below is zero in an empty slot, but for the stage */
    int32_t         stage, previous_stage;
    int32_t         n_ticks; /* of this seed, cooling down included */
    int32_t         epochs_total, epochs_in_stage, previous_epochs_in_stage;
    int32_t         n_history; /* moves so far; the last ESPER_SLOT_HISTORY are kept, entry n at n % ESPER_SLOT_HISTORY */
    uint32_t        known;
    esper_slot_past history[ESPER_SLOT_HISTORY];
    esper_alpha     alpha;

    /* as germinated */
    char    seed_id[ESPER_SEED_ID_CHARS];
    char    blueprint[ESPER_BLUEPRINT_CHARS];
    int32_t blueprint_index;
    int32_t blend;  /* esper_blend; changes only at alpha 0 */
    int32_t ramp, tempo; /* into blending: esper_ramp, ticks */
    int32_t birth;       /* esper_birth: a fork bears the same bits as the run */
    double  target;      /* of that ramp */
    int64_t host_params, seed_params, gate_params;

    /* measured */
    double  acc_initial, acc_now, acc_best;
    double  acc_stage, acc_blending; /* when the stage, and when blending began */
    double  grad_norm_avg;           /* 0.9 old + 0.1 new */
    double  grad_norm, grad_health, grad_ratio;
    double  contribution, contribution_previous, contribution_velocity;
    double  interaction, boost;              /* sum over pairs, and the best partner's; of the last validation */
    double  alpha_upstream, alpha_downstream; /* of its neighbours then */
    int32_t blending_started, vanishing, exploding, unhealthy;

    /* of a prune */
    int32_t prune_pending; /* the ramp to 0 ends in a prune, for reason and initiator below */
    int32_t auto_pruned;   /* the governor did it */
    char    prune_reason[ESPER_REASON_CHARS], prune_initiator[ESPER_INITIATOR_CHARS];
} esper_slot;

/* ---------------------------------------------------------------------------------------------------------- events */

typedef enum esper_slot_event_kind {
    ESPER_SLOT_EVENT_GERMINATED,
    ESPER_SLOT_EVENT_GATE,
    ESPER_SLOT_EVENT_STAGE,
    ESPER_SLOT_EVENT_FOSSILIZED,
    ESPER_SLOT_EVENT_PRUNED
} esper_slot_event_kind;

typedef struct esper_slot_event {
    esper_slot_event_kind kind;
    char    slot[ESPER_SLOT_CHARS], seed_id[ESPER_SEED_ID_CHARS], blueprint[ESPER_BLUEPRINT_CHARS];
    int     number;     /* of the seed in its slot */
    int     from, to;   /* stages; of GATE: where it stands and what it asks for */
    double  alpha;      /* after the move, but before a prune */
    double  improvement;   /* since germination; 0 while cooling down */
    double  contribution, gradient_ratio; /* NaN = never measured */
    int     vanishing, exploding;
    int     epochs_total, epochs_in_stage; /* of the stage that was left */
    int     ramp, tempo;
    int64_t params;       /* of the seed, without its gate network */
    int     auto_pruned;  /* PRUNED */
    char    reason[ESPER_REASON_CHARS], initiator[ESPER_INITIATOR_CHARS]; /* PRUNED */
    esper_gate_result gate; /* GATE */
} esper_slot_event;

/* The caller's list. What does not fit is counted. Where a list is asked for, NULL will do. */
typedef struct esper_slot_events {
    esper_slot_event *events;
    int               capacity, n, n_dropped;
} esper_slot_events;

/* ------------------------------------------------------------------------------------------------------ operations */

/* What a seed is to be. */
typedef struct esper_germination {
    const char *blueprint;
    int         blueprint_index;
    const char *seed_id; /* NULL or "": "<slot>-<blueprint>" */
    int         ramp, tempo;
    int         blend;
    int         birth;  /* esper_birth */
    double      target; /* above 0, up to 1 */
    int64_t     host_params, seed_params, gate_params; /* what was built */
} esper_germination;

/* The usual: a sigmoid over 5 ticks to 1, ADD, born as its blueprint says. */
void esper_germination_init(esper_germination *wanted, const char *blueprint, int blueprint_index);

/* Whether a germination would be accepted; changes nothing. Then the caller builds the module, and then commits: what
 * was accepted before and still is cannot fail. */
esper_status esper_slot_check_germinate(const esper_slot *slot, const esper_germination *wanted);
esper_status esper_slot_germinate(esper_slot *slot, const esper_germination *wanted, esper_slot_events *events);

/* Puts a seed into an empty slot as if it had been kept: a network that begins grown. `how` is an operator's name, `birth` an
 * esper_birth; sizes are those of the seed and, used for `gate` alone, of a gate network; -1: they could not be counted, below:
 * it does not fit. */
esper_status esper_slot_plant(esper_slot *slot, const esper_blueprint *blueprint, const char *how, int birth,
                              int64_t seed_params, int64_t gate_params);

/* Readings that take the place of the slot's own plain numbers at the gates; see esper_merit_how. */
typedef struct esper_slot_merits {
    esper_merit improvement, contribution;
} esper_slot_merits;

/* Asks the gate of stage `to` (-1 = the next one) and moves when it passes. result_out->passed: it moved. merits may be NULL:
 * plain numbers. E_ARG: no gate leads there. */
esper_status esper_slot_advance(esper_slot *slot, int to, const esper_slot_merits *merits, esper_slot_events *events,
                                esper_gate_result *result_out);
/* A seed that has just germinated joins the network at full weight, on probation: through G1, and G2 by what forks have shown
 * (a merit of FORKS). result_out: of the last gate asked; where it did not pass, the seed stands before it. */
esper_status esper_slot_join(esper_slot *slot, const esper_merit *gain, esper_slot_events *events,
                             esper_gate_result *result_out);
/* The same to FOSSILIZED; E_STATE unless it is HOLDING. */
esper_status esper_slot_fossilize(esper_slot *slot, const esper_slot_merits *merits, esper_slot_events *events,
                                  esper_gate_result *result_out);

/* A new target above 0 for a seed that blends or holds, effective at once where there are no steps. In HOLDING less than
 * full alpha leads back to BLENDING. blend 0 = as before; another one only at alpha 0. E_STATE while a ramp runs. */
esper_status esper_slot_set_alpha_target(esper_slot *slot, double target, const esper_alpha_ramp *ramp, int blend,
                                         esper_slot_events *events);

/* Removes the seed. Reasons that begin with "governor_" make it auto-pruned. NULL: "" and "policy". */
esper_status esper_slot_prune(esper_slot *slot, const char *reason, const char *initiator, esper_slot_events *events);
/* Removes it when alpha has come down to 0; now, when there are no steps or it has no weight. E_STATE while a ramp runs. */
esper_status esper_slot_schedule_prune(esper_slot *slot, const esper_alpha_ramp *ramp, const char *reason,
                                       const char *initiator, esper_slot_events *events);

/* The end of an epoch, once for each slot: ramps move, cooling goes on, auto-forward gates are tried. At most one move,
 * but for gates none that can be refused. merits as above. */
void esper_slot_tick(esper_slot *slot, const esper_slot_merits *merits, esper_slot_events *events);

/* The one function that writes the stage: a legal move with what entering the stage brings, and its event. The functions
 * above make all moves there are; this is here for them and their tests. E_STATE: no such move, nothing changed. */
esper_status esper_slot_move(esper_slot *slot, int to, esper_slot_events *events);

/* --------------------------------------------------------------------------------------------------- measurements */

/* The accuracy of an epoch's validation. Without a seed, and while cooling down, it is ignored. E_ARG: not finite. */
esper_status esper_slot_record_accuracy(esper_slot *slot, double accuracy);

/* What an ablation says; keeps its velocity, 0.7 old + 0.3 new. Not finite: there is no contribution to speak of. */
void esper_slot_set_contribution(esper_slot *slot, double contribution);

/* Interactions and neighbours of the validation that begins: none yet. A measured pair; both seeds are told. */
void esper_slot_clear_interactions(esper_slot *slot);
void esper_slot_add_interaction(esper_slot *slot, double interaction);

/* Of the seed's gradients. A health or ratio that is not finite counts as not measured; a norm that is not finite makes the
 * seed unhealthy until a finite one comes, and leaves the average alone. */
typedef struct esper_slot_gradient {
    double norm, health, ratio;
    bool   vanishing, exploding;
} esper_slot_gradient;

void esper_slot_set_gradient(esper_slot *slot, const esper_slot_gradient *gradient);

/* ---------------------------------------------------------------------------------------------------------- asking */

bool   esper_slot_is_empty(const esper_slot *slot);
bool   esper_slot_is_active(const esper_slot *slot);   /* a seed with weights is in it */
bool   esper_slot_is_frozen(const esper_slot *slot);   /* alpha goes down: the seed's weights stay as they are */
int    esper_slot_cooldown(const esper_slot *slot);    /* ticks until it is empty; 0 when nothing cools down */
double esper_slot_improvement(const esper_slot *slot);       /* since germination */
double esper_slot_stage_improvement(const esper_slot *slot); /* since the stage began */
double esper_slot_alpha_velocity(const esper_slot *slot);    /* of the ramp, per tick */

/* NULL when every field is what the stage allows, else what is wrong, in words. Checked after every move in debug builds,
 * and of everything that is read from a file. */
const char *esper_slot_fault(const esper_slot *slot);

#endif
