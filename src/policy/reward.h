/* Internal. What a step is worth: pure functions of plain numbers, with named parts that add up to the total.
 *
 * A mode is a way to pay. Three families: by gain over the same network that got nothing (`gain`), by what seeds contribute, that
 * is, what is lost without them (all others but one), by the fall of the loss (`loss`). Every weight is a field of esper_reward_config, and one list names them all. Accuracies are percentages, differences of them points, NaN is
 * "not measured".
 *
 * Terms (reward_terms.h) look at a step with at most one seed, as it was recorded (see docs/parity.md): there shaping follows
 * from the stage alone. esper_reward_step (reward_step.h) makes of them the reward of a run with any number of seeds: every
 * seed is rewarded, shaping telescopes, and what depends on a gate is paid when it was passed.
 *
 * Where a part would not be finite it is left out and counted: a reward is always a number. */
#ifndef ESPER_POLICY_REWARD_H
#define ESPER_POLICY_REWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"
#include "slot/stage.h"

/* ------------------------------------------------------------------------------------------------ modes and weights */

/* name, text, its terms (reward_terms.h), what it pays */
#define ESPER_REWARD_MODE_LIST(X)                                                                                      \
    X(GAIN, "gain", gain,                                                                                              \
      "accuracy over the same host that got nothing, less the price of parameters and FLOPs added")                    \
    X(SHAPED, "shaped", contribution, "contribution of each seed, rent, action costs, shaping by stage")               \
    X(ESCROW, "escrow", contribution, "as shaped, but contributions are paid into an account that a prune takes back") \
    X(BASIC, "basic", basic, "shaping, rent, a bonus for a fossil that contributes, accuracy gained at the end")       \
    X(BASIC_PLUS, "basic_plus", basic, "as basic, but most of the bonus drips while the fossil goes on contributing")  \
    X(SIMPLIFIED, "simplified", simplified, "shaping, a cost for each operation, accuracy and fossils at the end")     \
    X(SPARSE, "sparse", sparse, "committed accuracy less the price of fossils, at the end alone")                      \
    X(MINIMAL, "minimal", minimal, "as sparse, and a cost for pruning early")                                          \
    X(LOSS, "loss", loss, "the fall of the validation loss, rent, shaping by stage")

typedef enum esper_reward_mode {
#define X(name, text, terms, about) ESPER_REWARD_##name,
    ESPER_REWARD_MODE_LIST(X)
#undef X
    ESPER_N_REWARD_MODES
} esper_reward_mode;

/* The mode to begin with. `gain` adds up to what growing was for: a run that did nothing has earned exactly 0, one that helps more,
 * one that harms less, however it went about it. By all others a host is paid for what it would have learned anyway, or for
 * leaning on its seeds. */
#define ESPER_REWARD_DEFAULT ESPER_REWARD_GAIN

/* How progress and contribution are put together. */
typedef enum esper_reward_formula {
    ESPER_REWARD_HARMONIC,
    ESPER_REWARD_MINIMUM,
    ESPER_N_REWARD_FORMULAS
} esper_reward_formula;

/* kind (REAL, WHOLE or SWITCH), name, default, what it is */
#define ESPER_REWARD_FIELD_LIST(X)                                                                                         \
    X(REAL, gamma, 0.995, "discount: of shaping here and of returns when a policy learns")                                 \
    X(REAL, size_price, 0.5, "points of gain that each doubling of the parameters costs")                                  \
    X(REAL, flops_price, 0.5, "points of gain that each doubling of the FLOPs spent on training costs")                   \
    X(REAL, contribution_weight, 1.0, "for each point of a contribution")                                                  \
    X(REAL, proxy_confidence, 0.3, "part of it for accuracy gained in a stage, while no contribution is measured")         \
    X(WHOLE, escrow_stable_window, 3, "epochs whose worst accuracy counts as stable")                                      \
    X(REAL, escrow_delta_clip, 2.0, "most that an account moves in a step; 0: any amount")                                 \
    X(REAL, pbrs_weight, 0.3, "of shaping by stage")                                                                       \
    X(REAL, epoch_progress_bonus, 0.3, "potential of each epoch in a stage")                                               \
    X(REAL, max_progress_bonus, 2.0, "and of all of them together")                                                        \
    X(REAL, rent_weight, 0.5, "for ln(1 + added parameters / those of the host)")                                          \
    X(REAL, max_rent, 1.5, "most rent of a step")                                                                          \
    X(REAL, rent_host_params_floor, 200.0, "a host counts as at least so large")                                           \
    X(REAL, base_slot_rent_ratio, 0.0039, "parameters, as part of the host's, that an occupied slot costs besides")        \
    X(REAL, alpha_shock_coef, 0.1958, "for squared jumps of alpha, by parameters")                                         \
    X(REAL, alpha_shock_cap, 1.0, "most of that in a step")                                                                \
    X(REAL, improvement_safe_threshold, 0.1, "points: a smaller total improvement does not explain a contribution")       \
    X(REAL, hacking_ratio_threshold, 5.0, "contribution by total improvement above which a penalty begins")                \
    X(REAL, attribution_steepness, 3.0, "of the discount when the total improvement is negative")                          \
    X(REAL, terminal_acc_weight, 0.05, "for each point of accuracy at the end")                                            \
    X(REAL, seed_occupancy_cost, 0.01, "for each seed or fossil beyond the free slots")                                    \
    X(REAL, free_slots, 1.0, "seeds and fossils without that cost")                                                        \
    X(REAL, fossilized_maintenance_cost, 0.002, "for each fossil")                                                         \
    X(REAL, germination_warmup_epochs, 10.0, "seeds that germinate earlier earn less")                                     \
    X(REAL, germination_discount_floor, 0.4, "part that a seed of epoch 0 earns")                                          \
    X(REAL, synergy_weight, 0.1, "most for seeds that help each other")                                                    \
    X(REAL, synergy_slope, 0.5, "of that with the interaction")                                                            \
    X(REAL, germinate_cost, -0.15, "of the operation")                                                                     \
    X(REAL, fossilize_cost, -0.01, "of the operation")                                                                     \
    X(REAL, prune_cost, -0.005, "of the operation")                                                                        \
    X(REAL, set_alpha_target_cost, -0.005, "of the operation")                                                             \
    X(REAL, advance_training_penalty, -0.1, "for advancing a seed that trains")                                            \
    X(REAL, germinate_with_seed_penalty, -0.3, "where a seed is already")                                                  \
    X(REAL, invalid_fossilize_penalty, -1.0, "for keeping what cannot be judged")                                          \
    X(REAL, fossilize_base_bonus, 0.5, "for keeping a seed that contributes")                                              \
    X(REAL, fossilize_contribution_scale, 0.1, "and for each point of it")                                                 \
    X(REAL, fossilize_noncontributing_penalty, -0.2, "for keeping one that does not")                                      \
    X(REAL, fossilize_terminal_scale, 3.0, "for a kept seed, once")                                                        \
    X(REAL, fossilize_quality_ceiling, 3.0, "number of kept seeds at which that saturates")                                \
    X(REAL, min_fossilize_contribution, 1.0, "points from which on a seed contributes")                                    \
    X(REAL, min_holding_epochs, 5.0, "epochs of holding that earn the whole bonus")                                        \
    X(REAL, prune_hurting_bonus, 0.15, "for removing a seed that hurts")                                                   \
    X(REAL, prune_acceptable_bonus, 0.1, "for removing one that hurts a little")                                           \
    X(REAL, prune_good_seed_penalty, -0.3, "for removing one that helps, and for each epoch it was too young")             \
    X(REAL, prune_hurting_threshold, -0.5, "points below which a seed hurts")                                              \
    X(REAL, prune_fossilized_penalty, -1.0, "for asking to remove a fossil")                                               \
    X(REAL, min_prune_bonus_age, 3.0, "epochs before a bonus for pruning")                                                 \
    X(REAL, early_prune_threshold, 5.0, "epochs: younger is early")                                                        \
    X(REAL, early_prune_penalty, -0.1, "for pruning early")                                                                \
    X(REAL, auto_prune_penalty, -0.2, "for each seed that the governor removed")                                           \
    X(REAL, hindsight_weight, 0.1, "for a partner that helped a seed on its way to being kept")                            \
    X(REAL, hindsight_cap, 0.2, "most of that in a step")                                                                  \
    X(REAL, basic_acc_delta_weight, 5.0, "for accuracy gained, as part of 1, at the end")                                  \
    X(REAL, basic_fossilize_base_bonus, 0.3, "for keeping a seed that contributes")                                        \
    X(REAL, basic_contribution_scale, 0.5, "and for each point of it")                                                     \
    X(REAL, basic_invalid_penalty, -0.5, "for keeping what only seems to help")                                            \
    X(REAL, basic_noncontributing_penalty, -0.2, "for keeping what does not help")                                         \
    X(REAL, drip_fraction, 0.0, "part of the bonus that drips (basic_plus: 0.7)")                                          \
    X(REAL, max_drip_per_epoch, 0.1, "most that drips in an epoch from one fossil")                                        \
    X(REAL, min_drip_epochs, 5.0, "epochs that a drip is spread over at least")                                            \
    X(REAL, negative_drip_ratio, 0.5, "part of that when it is taken back")                                                \
    X(REAL, param_budget, 500000.0, "parameters that cost the whole weight")                                               \
    X(REAL, param_penalty_weight, 0.1, "for parameters by budget")                                                         \
    X(REAL, sparse_reward_scale, 1.0, "of the reward at the end")                                                          \
    X(REAL, simplified_op_cost, -0.01, "of any operation")                                                                 \
    X(REAL, simplified_acc_weight, 3.0, "for accuracy, as part of 1, at the end")                                          \
    X(REAL, simplified_fossil_weight, 2.0, "for each fossil that contributes, at the end")                                 \
    X(REAL, loss_weight, 5.0, "for a fall of the loss by one deviation")                                                   \
    X(REAL, loss_max, 5.0, "deviations that count")                                                                        \
    X(REAL, loss_regression_scale, 0.5, "part of it for a rise")                                                           \
    X(REAL, loss_delta_std, 0.1, "deviation of the loss from epoch to epoch")                                              \
    X(REAL, loss_rent_weight, 0.05, "for ln(1 + added parameters / those of the host)")                                    \
    X(REAL, loss_max_rent, 5.0, "most rent of a step")                                                                     \
    X(REAL, loss_grace_epochs, 3.0, "epochs a seed lives without rent")                                                    \
    X(REAL, loss_stage_weight, 0.1, "of shaping by stage")                                                                 \
    X(REAL, loss_baseline, 2.3, "loss of a guess")                                                                         \
    X(REAL, loss_target, 0.3, "loss that earns the whole terminal weight")                                                 \
    X(REAL, loss_terminal_weight, 1.0, "at the end")                                                                       \
    X(SWITCH, disable_pbrs, 0, "no shaping by stage")                                                                      \
    X(SWITCH, disable_terminal_reward, 0, "nothing for accuracy at the end")                                               \
    X(SWITCH, disable_anti_gaming, 0, "no penalty for ratios and shocks")                                                  \
    X(SWITCH, disable_timing_discount, 0, "seeds of early epochs earn all")

#define ESPER_REWARD_TYPE_REAL   double
#define ESPER_REWARD_TYPE_WHOLE  int
#define ESPER_REWARD_TYPE_SWITCH bool

typedef struct esper_reward_config {
    int mode, formula; /* esper_reward_mode, esper_reward_formula */
#define X(kind, name, preset, about) ESPER_REWARD_TYPE_##kind name;
    ESPER_REWARD_FIELD_LIST(X)
#undef X
} esper_reward_config;

typedef enum esper_reward_kind {
    ESPER_REWARD_KIND_REAL,
    ESPER_REWARD_KIND_WHOLE,
    ESPER_REWARD_KIND_SWITCH
} esper_reward_kind;

/* A weight by name, for configuration and for help. */
typedef struct esper_reward_field {
    const char       *name, *about;
    size_t            offset; /* in esper_reward_config */
    double            preset;
    esper_reward_kind kind;
} esper_reward_field;

const esper_reward_field *esper_reward_field_list(int *n_out);

/* The defaults of a mode. */
void esper_reward_config_init(esper_reward_config *config, esper_reward_mode mode);
/* E_ARG: no such weight, or not finite. */
esper_status esper_reward_config_set(esper_reward_config *config, const char *name, double value);
/* E_CONFIG says which weight cannot be: a gamma outside 0 .. 1, a budget of 0 and so on. */
esper_status esper_reward_config_check(const esper_reward_config *config);

const char *esper_reward_mode_name(int mode); /* NULL for other codes */
const char *esper_reward_mode_about(int mode);
int         esper_reward_mode_find(const char *name); /* -1 = there is none */

/* ------------------------------------------------------------------------------------------------ parts */

/* e is handed through to X; name, column of the store, what it is for */
#define ESPER_REWARD_PART_LIST(X, e)                                                                                  \
    X(e, GAIN, gain, "accuracy gained over the same host that got nothing")                                           \
    X(e, ATTRIBUTION, attribution, "what seeds contribute")                                                           \
    X(e, BLENDING, blending_warning, "blending goes on while accuracy falls")                                         \
    X(e, HOLDING, holding_warning, "a seed is held and not decided about")                                            \
    X(e, SHAPING, pbrs, "shaping by stage, which adds up to nothing over a seed's life")                              \
    X(e, SYNERGY, synergy, "seeds that help each other")                                                              \
    X(e, RENT, rent, "for parameters and FLOPs added")                                                                          \
    X(e, SHOCK, alpha_shock, "for jumps of a seed's weight")                                                          \
    X(e, OCCUPANCY, occupancy_rent, "for seeds beyond the free slots")                                                \
    X(e, MAINTENANCE, fossil_rent, "for every kept seed")                                                             \
    X(e, ACTION, action_shaping, "what operations cost, and what is right or wrong about them")                       \
    X(e, FOSSIL, fossilize_bonus, "a seed was kept that contributes")                                                 \
    X(e, DRIP, drip, "the part of that bonus which is paid bit by bit")                                               \
    X(e, LOSS_DELTA, loss_delta, "the fall of the validation loss")                                                   \
    X(e, TERMINAL, terminal, "at the end, for the network as it stands")                                              \
    X(e, FORFEIT, escrow_forfeit, "accounts of seeds that were never kept, taken back at the end")                    \
    X(e, AUTO_PRUNE, auto_prune, "for seeds that the governor removed")                                               \
    X(e, HINDSIGHT, hindsight, "for partners of a seed that was kept")                                                \
    X(e, ROLLBACK, rollback, "what a rollback changes; set by the rollout")

typedef enum esper_reward_part {
#define X(e, name, text, about) ESPER_PART_##name,
    ESPER_REWARD_PART_LIST(X, )
#undef X
    ESPER_N_REWARD_PARTS
} esper_reward_part;

const char *esper_reward_part_name(int part);

/* A bonus that is paid bit by bit, as long as the fossil contributes. */
typedef struct esper_reward_drip {
    double total, scale; /* of the bonus; paid for each point of contribution and epoch */
    double paid;
} esper_reward_drip;

typedef struct esper_reward {
    double            total;                     /* the sum of the parts */
    double            part[ESPER_N_REWARD_PARTS];
    /* for people; of the seed that was looked at last */
    double            progress, discount, ratio_penalty, timing; /* NaN, 1, 0 and 1 where there is nothing to tell */
    double            growth;                    /* added parameters by those of the host */
    double            escrow_target, escrow_delta, escrow_next;
    esper_reward_drip drip;                      /* that this step begins; total 0 = none */
    int               n_bad;                     /* parts that were not finite, and left out */
} esper_reward;

/* ------------------------------------------------------------------------------------------------ one seed */

typedef struct esper_reward_seed {
    int    stage, epochs_in_stage, previous_stage, previous_epochs; /* esper_stage */
    int    age;             /* epochs since it germinated */
    double improvement;     /* accuracy now - when this stage began */
    double total;           /* what all seeds together brought */
    double interaction;     /* sum over partners */
} esper_reward_seed;

typedef struct esper_reward_input {
    int    op;               /* esper_slot_op, as it came out */
    bool   failed;           /* a gate refused it: it costs, and earns nothing */
    bool   telescopes;       /* shaping is somebody else's: operations neither pay nor charge it */
    bool   has_seed;
    bool   has_names;        /* of seed and slot: without them nothing drips */
    esper_reward_seed seed;
    double contribution;     /* of the seed */
    double accuracy_before;  /* when it germinated */
    double escrow;           /* its account */
    int    epoch, max_epochs;
    double accuracy, accuracy_stable,
        accuracy_committed;  /* now; worst of the last epochs; without seeds on probation */
    double accuracy_delta;   /* basic: gained since the episode began */
    double loss, loss_delta; /* now; new - old */
    double gain_delta;       /* of the accuracy over the twin's since it was last paid for, points */
    double doublings_delta;  /* of the parameters, likewise */
    double flop_doublings_delta; /* and of the FLOPs spent on training */
    double params_total, params_host, params_fossils;
    double params_effective; /* added, by weight; NaN: total - host */
    double shock;            /* squared jumps of alpha, by parameters */
    int    n_active, n_fossils, n_contributing;
    int                n_drips;
    esper_reward_drip *drips;         /* (n_drips) paid is changed */
    const double      *contributions; /* (n_drips) of each fossil, in this epoch */
} esper_reward_input;

/* ------------------------------------------------------------------------------------------------ helpers */

double esper_reward_stage_value(int stage);                                                    /* 0 .. 6 */
double esper_reward_potential(const esper_reward_config *config, int stage, int epochs_in_stage);
double esper_reward_timing(double germination_epoch, double warmup, double floor);             /* floor .. 1 */
double esper_reward_combine(int formula, double progress, double contribution);
double esper_reward_doublings(double params, double before);                                   /* log2 of their ratio */
/* What a run that gained so many points, with so many times the parameters and the training FLOPs of one that got nothing, has
 * earned in the mode `gain`. */
double esper_reward_gain_return(const esper_reward_config *config, double points, double params_ratio,
                                double flops_ratio);
double esper_reward_hindsight(double weight, double boost, double improvement);

#endif
