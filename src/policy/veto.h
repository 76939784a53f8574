/* Internal. The veto before an operation on a slot: while the run's vital signs or the request itself are not in order,
 * nothing is grown or removed, and the action counts as a wait. */
#ifndef ESPER_SLOT_PREFLIGHT_H
#define ESPER_SLOT_PREFLIGHT_H

#include <stdbool.h>

#include "slot/stage.h"

/* In the order in which they are looked at: the first that does not hold is the verdict. */
#define ESPER_VETO_LIST(X)                                                                                     \
    X(NONE, "none", "approved")                                                                                \
    X(LOSS, "val_loss_finite", "the validation loss is not finite")                                            \
    X(ACCURACY, "val_accuracy_finite", "the validation accuracy is not finite")                                \
    X(COOLDOWN, "cooldown_nonnegative", "the slot's cooldown is negative")                                     \
    X(CAPACITY, "active_seed_capacity", "there are more seeds than allowed")                                   \
    X(BLUEPRINT, "blueprint_present", "a germination needs a blueprint")                                       \
    X(OCCUPIED, "slot_empty_for_germination", "the slot is not empty")                                         \
    X(TARGET, "alpha_target_present", "a new alpha target is missing")                                         \
    X(SCHEDULE, "alpha_schedule_complete", "the speed or the curve of the ramp is missing")

typedef enum esper_veto {
#define X(name, text, about) ESPER_VETO_##name,
    ESPER_VETO_LIST(X)
#undef X
} esper_veto;

typedef struct esper_preflight {
    esper_slot_op op;
    int           stage; /* of the slot; DORMANT = empty */
    bool          has_blueprint, has_target, has_speed, has_curve;
    double        loss, accuracy; /* of the last validation */
    int           n_seeds, max_seeds; /* active ones; max 0 = no limit */
    int           cooldown; /* ticks until the slot is empty: esper_slot_cooldown */
} esper_preflight;

esper_veto esper_preflight_check(const esper_preflight *flight);

const char *esper_veto_name(esper_veto veto);  /* "val_loss_finite" */
const char *esper_veto_about(esper_veto veto); /* in words */

#endif
