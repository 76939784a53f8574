/* Internal. The veto before an operation: while the run's vital signs or the request itself are not in order, nothing is
 * grown or removed, and the decision counts as a wait. A part of what policy/mask.h calls legal. */
#ifndef ESPER_POLICY_VETO_H
#define ESPER_POLICY_VETO_H

#include "policy/decision.h"
#include "policy/view.h"

/* In the order in which they are looked at: the first that does not hold is the verdict. With it the name it is recorded by,
 * and its words. */
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

/* Of a decision about a slot of the view. */
esper_veto esper_veto_of(const esper_policy_view *view, const esper_decision *decision);

const char *esper_veto_about(esper_veto veto); /* in words */

#endif
