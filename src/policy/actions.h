/* Internal. A decision as a network takes it: eight heads, each of which picks one choice from a short menu, and the masks that
 * say which choices are open.
 *
 * An operation does not ask all heads: which ones it asks is one table (esper_action_matters). A head that is not asked has
 * one choice, its placeholder, and so probability 1 and no entropy. Heads are drawn in the order op, slot, then the others:
 * what may be chosen there depends on both. Choices are bits 1 << index of 64-bit words, so a view may have up to 64 slots.
 *
 * Where this differs from the recorded masks is told in docs/parity.md. */
#ifndef ESPER_POLICY_ACTIONS_H
#define ESPER_POLICY_ACTIONS_H

#include "policy/decision.h"
#include "policy/mask.h"
#include "policy/view.h"

/* In the order in which they are stored: name, text, choices (0 = one for each slot), placeholder. */
#define ESPER_HEAD_LIST(X)                                                     \
    X(SLOT, "slot", 0, 0)                                                      \
    X(BLUEPRINT, "blueprint", 13, 0)              /* 0 is noop, never open */  \
    X(STYLE, "style", ESPER_N_STYLES, ESPER_STYLE_SIGMOID_ADD)                 \
    X(TEMPO, "tempo", ESPER_N_TEMPOS, 1)                                       \
    X(TARGET, "alpha_target", ESPER_N_TARGETS, 2)                              \
    X(SPEED, "alpha_speed", ESPER_N_SPEEDS, 0)                                 \
    X(CURVE, "alpha_curve", ESPER_N_ALPHA_CHOICES, ESPER_ALPHA_CHOICE_LINEAR)  \
    X(OP, "op", ESPER_N_SLOT_OPS, ESPER_SLOT_OP_WAIT)

typedef enum esper_head {
#define X(name, text, size, placeholder) ESPER_HEAD_##name,
    ESPER_HEAD_LIST(X)
#undef X
    ESPER_N_HEADS
} esper_head;

/* The menus of numbers: ticks of the blend-in, alpha to reach, ticks to get there. */
enum { ESPER_N_TEMPOS = 3, ESPER_N_TARGETS = 3, ESPER_N_SPEEDS = 4, ESPER_ACTION_MAX_CHOICES = 64 };

int32_t esper_action_tempo(int choice);  /* 3, 5, 8 */
double  esper_action_target(int choice); /* 0.5, 0.7, 1 */
int32_t esper_action_speed(int choice);  /* 0, 3, 5, 8 */

const char *esper_head_name(int head); /* "alpha_speed"; NULL for a code that is none */
int         esper_head_size(int head, int n_slots);

/* Whether the outcome of an operation depends on the head; all such heads, bits 1 << head. */
bool     esper_action_matters(int op, int head);
uint32_t esper_action_asked(int op);

/* Whether it could depend on it, when these operations (bits 1 << op) are open. */
bool esper_action_available(uint64_t ops, int head);

/* One choice for each head: plain memory. */
typedef struct esper_action {
    int32_t choice[ESPER_N_HEADS];
} esper_action;

/* What is open, before anything is chosen. */
typedef struct esper_action_mask {
    uint64_t heads[ESPER_N_HEADS];               /* whatever the other heads choose */
    uint64_t slots[ESPER_N_SLOT_OPS];            /* where each operation can be done; all slots for `wait` */
    uint32_t blueprints[ESPER_POLICY_MAX_SLOTS]; /* what can germinate in a slot */
    uint32_t styles[ESPER_POLICY_MAX_SLOTS];     /* with which the alpha of its seed can get a target: its operator is fixed
                                                    once it has weight */
} esper_action_mask;

/* E_ARG: a view without slots, or with more than ESPER_POLICY_MAX_SLOTS. Every row has an open choice. */
esper_status esper_action_mask_build(const esper_policy_view *view, esper_action_mask *mask_out);

/* The choices of a head once operation and slot are chosen; never none. For head OP both are ignored, for SLOT the slot. */
uint64_t esper_action_mask_head(const esper_action_mask *mask, int head, int op, int slot);

/* The choices that a head would have, had the best operation for it been chosen; 0 = none asks it. To measure by how much a
 * head is undecided also where it was not asked. */
uint64_t esper_action_mask_open(const esper_action_mask *mask, int head);

/* There is nothing to choose but to wait. */
bool esper_action_is_forced(const esper_action_mask *mask);

/* The decision that an action stands for. What its operation does not ask for is left as esper_decision_init has it. */
void esper_action_decide(const esper_action *action, esper_decision *decision_out);

/* The operation that a decision comes to: its own, or `wait` when the view does not allow it. */
int esper_action_effective_op(const esper_policy_view *view, const esper_decision *decision);

#endif
