/* The table of which operation asks which head, the masks, and what decision an action stands for. */
#include "policy/actions.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"

static const int32_t tempos[ESPER_N_TEMPOS] = {3, 5, 8};
static const double targets[ESPER_N_TARGETS] = {0.5, 0.7, 1.0};
static const int32_t speeds[ESPER_N_SPEEDS] = {0, 3, 5, 8};

static const struct {
    const char *name;
    int         size, placeholder;
} heads[ESPER_N_HEADS] = {
#define X(name, text, size, placeholder) [ESPER_HEAD_##name] = {text, size, placeholder},
    ESPER_HEAD_LIST(X)
#undef X
};

#define ASKS(head) (1u << ESPER_HEAD_##head)

static const uint32_t asks[ESPER_N_SLOT_OPS] = {
    [ESPER_SLOT_OP_WAIT] = ASKS(OP),
    [ESPER_SLOT_OP_GERMINATE] = ASKS(OP) | ASKS(SLOT) | ASKS(BLUEPRINT) | ASKS(STYLE) | ASKS(TEMPO) | ASKS(TARGET),
    [ESPER_SLOT_OP_SET_ALPHA_TARGET] = ASKS(OP) | ASKS(SLOT) | ASKS(STYLE) | ASKS(TARGET) | ASKS(SPEED) | ASKS(CURVE),
    [ESPER_SLOT_OP_PRUNE] = ASKS(OP) | ASKS(SLOT) | ASKS(SPEED) | ASKS(CURVE),
    [ESPER_SLOT_OP_FOSSILIZE] = ASKS(OP) | ASKS(SLOT),
    [ESPER_SLOT_OP_ADVANCE] = ASKS(OP) | ASKS(SLOT),
    [ESPER_SLOT_OP_TRY] = ASKS(OP) | ASKS(SLOT), /* all candidates of the slot are tried at once */
};

int32_t esper_action_tempo(int choice)
{
    assert(choice >= 0 && choice < ESPER_N_TEMPOS);
    return tempos[choice];
}

double esper_action_target(int choice)
{
    assert(choice >= 0 && choice < ESPER_N_TARGETS);
    return targets[choice];
}

int32_t esper_action_speed(int choice)
{
    assert(choice >= 0 && choice < ESPER_N_SPEEDS);
    return speeds[choice];
}

const char *esper_head_name(int head)
{
    return head >= 0 && head < ESPER_N_HEADS ? heads[head].name : NULL;
}

int esper_head_size(int head, int n_slots)
{
    assert(head >= 0 && head < ESPER_N_HEADS && n_slots <= ESPER_POLICY_MAX_SLOTS);
    return heads[head].size > 0 ? heads[head].size : n_slots;
}

bool esper_action_matters(int op, int head)
{
    assert(op >= 0 && op < ESPER_N_SLOT_OPS && head >= 0 && head < ESPER_N_HEADS);
    return (asks[op] >> head & 1u) != 0;
}

uint32_t esper_action_asked(int op)
{
    assert(op >= 0 && op < ESPER_N_SLOT_OPS);
    return asks[op];
}

bool esper_action_available(uint64_t ops, int head)
{
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        if ((ops >> op & 1u) != 0 && esper_action_matters(op, head))
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------------ masks */

esper_status esper_action_mask_build(const esper_policy_view *view, esper_action_mask *mask_out)
{
    static const int shared[] = {ESPER_HEAD_STYLE, ESPER_HEAD_TARGET}; /* asked by two operations */
    /* A blueprint that came after this head has no place in it: it is for those who name what they plant. */
    uint32_t all = esper_policy_blueprints(view->topology) & ((1u << esper_head_size(ESPER_HEAD_BLUEPRINT, 1)) - 1),
             some = 0;
    esper_mask legal;

    if (view->n_slots < 1 || view->n_slots > ESPER_POLICY_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "a policy chooses among 1 to %d slots, not %d", (int)ESPER_POLICY_MAX_SLOTS,
                          view->n_slots);
    esper_mask_build(view, &legal);
    memset(mask_out, 0, sizeof(*mask_out));
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        int n = esper_head_size(head, view->n_slots);

        assert(n > 0 && n <= ESPER_ACTION_MAX_CHOICES);
        mask_out->heads[head] = UINT64_MAX >> (ESPER_ACTION_MAX_CHOICES - n);
    }
    mask_out->heads[ESPER_HEAD_OP] = 0;
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        mask_out->heads[ESPER_HEAD_OP] |= (uint64_t)legal.ops[op] << op;
        for (int s = 0; s < view->n_slots; s++)
            mask_out->slots[op] |= (uint64_t)legal.slots[op][s] << s;
    }
    for (int s = 0; s < view->n_slots; s++) {
        const esper_policy_slot *slot = &view->slots[s];

        mask_out->blueprints[s] = slot->blueprints & all;
        some |= mask_out->blueprints[s];
        if (mask_out->blueprints[s] == 0) /* what fits there, if anything does, is none of this head's */
            mask_out->slots[ESPER_SLOT_OP_GERMINATE] &= ~(UINT64_C(1) << s);
        for (int style = 0; style < ESPER_N_STYLES; style++) /* a seed with weight keeps its operator */
            if (!(slot->alpha > 0.0) || esper_style_blend(style) == slot->blend)
                mask_out->styles[s] |= 1u << style;
    }
    mask_out->heads[ESPER_HEAD_BLUEPRINT] = some != 0 ? some : all;
    if (mask_out->slots[ESPER_SLOT_OP_GERMINATE] == 0)
        mask_out->heads[ESPER_HEAD_OP] &= ~(UINT64_C(1) << ESPER_SLOT_OP_GERMINATE);
    for (int i = 0; i < 2; i++) /* where neither operation is open, only the placeholder is */
        if (!esper_action_available(mask_out->heads[ESPER_HEAD_OP], shared[i]))
            mask_out->heads[shared[i]] = UINT64_C(1) << heads[shared[i]].placeholder;
    return ESPER_OK;
}

_Static_assert((int)ESPER_ACTION_MAX_CHOICES == 64, "choices are bits of a word");

uint64_t esper_action_mask_head(const esper_action_mask *mask, int head, int op, int slot)
{
    if (head == ESPER_HEAD_OP)
        return mask->heads[ESPER_HEAD_OP];
    if (head == ESPER_HEAD_SLOT)
        return mask->slots[op] == 0             ? 1
               : esper_action_matters(op, head) ? mask->slots[op]
                                                : mask->slots[op] & -mask->slots[op];
    if (!esper_action_matters(op, head))
        return UINT64_C(1) << heads[head].placeholder;
    if (head == ESPER_HEAD_BLUEPRINT && mask->blueprints[slot] != 0)
        return mask->blueprints[slot];
    if (head == ESPER_HEAD_STYLE && op == ESPER_SLOT_OP_SET_ALPHA_TARGET)
        return mask->styles[slot];
    return mask->heads[head];
}

uint64_t esper_action_mask_open(const esper_action_mask *mask, int head)
{
    uint64_t ops = mask->heads[ESPER_HEAD_OP], bits = 0;

    if (!esper_action_available(ops, head))
        return 0;
    if (head != ESPER_HEAD_SLOT)
        return mask->heads[head];
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
        if ((ops >> op & 1u) != 0 && esper_action_matters(op, head))
            bits |= mask->slots[op];
    return bits;
}

bool esper_action_is_forced(const esper_action_mask *mask)
{
    return mask->heads[ESPER_HEAD_OP] == UINT64_C(1) << ESPER_SLOT_OP_WAIT;
}

/* ------------------------------------------------------------------------------------------------ and decisions */

void esper_action_decide(const esper_action *action, esper_decision *decision_out)
{
    const int32_t *choice = action->choice;
    int op = choice[ESPER_HEAD_OP];

    esper_decision_init(decision_out, (esper_slot_op)op);
    if (esper_action_matters(op, ESPER_HEAD_SLOT))
        decision_out->slot = choice[ESPER_HEAD_SLOT];
    if (esper_action_matters(op, ESPER_HEAD_BLUEPRINT))
        decision_out->blueprint = choice[ESPER_HEAD_BLUEPRINT];
    if (esper_action_matters(op, ESPER_HEAD_STYLE))
        decision_out->style = choice[ESPER_HEAD_STYLE];
    if (esper_action_matters(op, ESPER_HEAD_TEMPO))
        decision_out->tempo = tempos[choice[ESPER_HEAD_TEMPO]];
    if (esper_action_matters(op, ESPER_HEAD_TARGET))
        decision_out->target = targets[choice[ESPER_HEAD_TARGET]];
    if (esper_action_matters(op, ESPER_HEAD_SPEED))
        decision_out->speed = speeds[choice[ESPER_HEAD_SPEED]];
    if (esper_action_matters(op, ESPER_HEAD_CURVE))
        decision_out->curve = choice[ESPER_HEAD_CURVE];
}

int esper_action_effective_op(const esper_policy_view *view, const esper_decision *decision)
{
    return esper_mask_check(view, decision) == ESPER_OK ? decision->op : ESPER_SLOT_OP_WAIT;
}
