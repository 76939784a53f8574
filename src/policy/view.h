/* Internal. What a policy sees, once an epoch: plain numbers about the run and about each slot, no tensors.
 *
 * A real that was not measured is NaN; integers that can be missing say how. Accuracies are percentages. */
#ifndef ESPER_POLICY_VIEW_H
#define ESPER_POLICY_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json_write.h"
#include "nn/blueprint.h"
#include "slot/stage.h"

enum {
    ESPER_POLICY_MAX_SLOTS = 64,
    ESPER_POLICY_BLUEPRINTS = ESPER_BLUEPRINT_NUMBERS, /* indices of blueprints are below this */
    ESPER_POLICY_ID_CHARS = 16,   /* of a slot's id, terminator included */
    ESPER_POLICY_SEED_CHARS = 48, /* of a seed's id */
    ESPER_POLICY_HISTORY = 5,     /* epochs of losses and accuracies in the signals */
};

/* What alpha does. The values are the recorded codes. */
#define ESPER_POLICY_ALPHA_LIST(X) X(HOLD, 0, "hold") X(UP, 1, "up") X(DOWN, 2, "down")

typedef enum esper_policy_alpha {
#define X(name, code, text) ESPER_POLICY_ALPHA_##name = code,
    ESPER_POLICY_ALPHA_LIST(X)
#undef X
} esper_policy_alpha;

/* One slot and, while it is not dormant, its seed. */
typedef struct esper_policy_slot {
    char    id[ESPER_POLICY_ID_CHARS];     /* "r0c1" */
    char    seed[ESPER_POLICY_SEED_CHARS]; /* "" while it is empty */
    int     stage;                         /* esper_stage; ESPER_STAGE_DORMANT: it is empty */
    bool    closed;                        /* another slot at its place has to hold a kept seed before something grows here */
    int     channels;
    double  params_before, flops_before;   /* parts of the host's parameters and FLOPs that are in front of it, 0 to 1 */
    int     cooldown_left;                 /* ticks until the slot is empty again; 0 = it does not cool down */
    double  evidence;                      /* how much a seed here promises; comparable between slots, more is better */
    uint32_t blueprints;                   /* bits 1 << index: those that may germinate here, the budget included */
    int64_t blueprint_params[ESPER_POLICY_BLUEPRINTS]; /* parameters each of them would add */
    int64_t gate_params;                   /* what a gate network beside it would add; below 0: it cannot have one */
    double  blueprint_flops[ESPER_POLICY_BLUEPRINTS]; /* FLOPs of a sample likewise; 0 where there is no limit to them */
    double  gate_flops;

    int         blueprint;       /* of the seed; -1 = none */
    int64_t     params;          /* of the seed */
    esper_blend blend;           /* how it is put into the stream */
    int         tempo;           /* ticks of its blend-in */
    double      alpha, alpha_target;
    int         alpha_mode;      /* esper_policy_alpha */
    int         alpha_steps, alpha_done; /* ticks of the ramp, and those behind it */
    double      alpha_velocity;  /* of the ramp for each tick; 0 at rest */
    int         epochs_in_stage, epochs_total;
    double      improvement;       /* accuracy now - accuracy when this stage began */
    double      improvement_total; /* accuracy now - accuracy when it germinated */

    /* Points of accuracy that would be lost without the seed. With both bounds set this is a measurement; without them a
     * bare number; NaN = not measured. */
    double contribution, contribution_low, contribution_high; /* mean, one-sided 95 % bounds */
    int    contribution_epochs;                               /* epochs the bounds rest on */
    bool   measured;                                          /* the contribution is of this epoch */
    double contribution_velocity;                             /* smoothed, points for each epoch */
    double interaction;                                       /* sum over partners, points */
    double trial_gain;                                        /* points gained in a trial blend: it was let in for a moment */
    double gradient_ratio, gradient_health, gradient_norm;
    bool   vanishing, exploding;                              /* some gradient of the seed is */

    /* The last trial that was asked for here (`try`): forks of the run, one that got nothing and one for each candidate. It is
     * about the slot, whatever has grown in it since, and no trial blend. */
    int    fork_blueprint; /* whose fork did best; -1 = none was held */
    double fork_gain;      /* nats over the one that got nothing; NaN = one of the two was not finite */
    double fork_error;     /* standard error of that */
    int    fork_epochs;    /* since then */
    int    fork_seeds;     /* in the network then, fossils included */
    bool   fork_stands;    /* no other answer is to be expected yet, so that it cannot be asked for again */
    double fork_share;     /* of the run, that one would take now; 0 = there is nothing to try */
} esper_policy_slot;

/* What the tracker makes of the losses and accuracies so far (tracker.h). */
typedef struct esper_signals {
    double loss_delta;     /* loss before - loss now; +inf at first */
    double accuracy_delta; /* accuracy now - accuracy before */
    int    plateau_epochs;
    bool   host_stabilized; /* for good, until a reset */
    bool   just_stabilized; /* in this epoch */
    bool   scale_suspect;   /* an accuracy above 100, or one that seems to be on a scale of 0 to 1 */
    double best_accuracy;   /* of the whole run */
    double best_loss;       /* of the tracker's window */
    int    n_history;
    double losses[ESPER_POLICY_HISTORY], accuracies[ESPER_POLICY_HISTORY]; /* (n_history), oldest first */
    /* The seed that is furthest: zeros when there is none. */
    int    seed_stage, seed_epochs_in_stage;
    double seed_alpha, seed_improvement;
} esper_signals;

/* Where a view is of an environment that somebody learns from. */
typedef struct esper_policy_episode {
    uint64_t number, seed;
    int      env;    /* environment that plays it, from 0 */
    double   reward; /* of the decision before; NaN = there was none */
    bool     over;   /* no decision follows: only the last reward is told */
} esper_policy_episode;

typedef struct esper_policy_view {
    esper_topology topology;
    int            epoch, max_epochs; /* epochs count from 1; growing is to be over after max_epochs, 0 = open end */
    double         share;  /* of the run that is spent, 0 to 1 */
    double         budget; /* training FLOPs of the whole run */
    double         loss_train, accuracy_train, loss_valid, accuracy_valid;
    esper_signals  signals;
    int64_t        params_total, params_limit; /* limit 0 = none */
    double         flops_total, flops_limit;   /* of a sample; total 0 where there is no limit */
    int            max_seeds;                  /* seeds at a time, fossils included; 0 = any number */
    bool           advances_itself;            /* gates forward seeds without being asked: `advance` is no choice */
    bool           last_refused;               /* what was decided last was not carried out */
    bool           rolled_back;                /* the governor went back since the last decision */
    double         forks_left; /* share of the run that trials may still take, 0 to 1; 0 = nobody may ask for one */
    const esper_policy_episode *episode;       /* borrowed for the call; NULL = a run of its own */
    const esper_policy_slot *slots;            /* borrowed for the call */
    int            n_slots;
} esper_policy_view;

/* An empty slot of which nothing is known: reals unset, every blueprint of the topology but noop allowed. */
void esper_policy_slot_init(esper_policy_slot *slot, esper_topology topology, const char *id);

/* "hold"; NULL for a code that is none. */
const char *esper_policy_alpha_name(int mode);

/* The topology's blueprint of that index; NULL when it has none. */
const esper_blueprint *esper_policy_blueprint(esper_topology topology, int index);

/* Bits 1 << index of everything in the topology that can germinate: all but noop. */
uint32_t esper_policy_blueprints(esper_topology topology);

/* Seeds in the view's slots, fossils included. */
int esper_policy_view_seeds(const esper_policy_view *view);

/* The index in the view of the slot of that id; -1 = there is none. */
int esper_policy_view_find(const esper_policy_view *view, const char *id);

/* The members of the view as JSON, into an object that is open: what docs/policy-protocol.md describes. */
void esper_policy_view_write(const esper_policy_view *view, esper_json *json);

#endif
