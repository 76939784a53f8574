/* Internal. Which operations are legal now: the one place that says so. A slot itself knows no more than which of its stages
 * lead to which (slot/stage.h). Three strengths:
 *
 *   approve what growth carries out: no veto (policy/veto.h), and the preconditions of the operation.
 *   legal   what a policy may choose: that, and patience with a seed that is to be pruned.
 *   mask    legal, and one thing at a time: nothing germinates, or is tried, while another slot is germinated, training or
 *           cooling down.
 *           For policies that choose by drawing. */
#ifndef ESPER_POLICY_MASK_H
#define ESPER_POLICY_MASK_H

#include "policy/decision.h"
#include "policy/view.h"

enum { ESPER_MASK_MIN_PRUNE_AGE = 5 }; /* epochs a seed lives before a policy may prune it */

bool esper_mask_legal(const esper_policy_view *view, int slot, int op);

/* The whole decision against the view. E_STATE says which precondition it breaks; E_ARG, that it is no decision. */
esper_status esper_mask_check(const esper_policy_view *view, const esper_decision *decision);

/* Whether a decision is to be carried out. E_STATE and E_ARG likewise. */
esper_status esper_mask_approve(const esper_policy_view *view, const esper_decision *decision);

typedef struct esper_mask {
    bool ops[ESPER_N_SLOT_OPS];
    bool slots[ESPER_N_SLOT_OPS][ESPER_POLICY_MAX_SLOTS]; /* where; all of them for `wait` */
} esper_mask;

void esper_mask_build(const esper_policy_view *view, esper_mask *mask_out);

#endif
