/* The vector environment: actions as they come in, rows as they go out, and what their numbers are called. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "policy/reward.h"
#include "run/grow_env_internal.h"

/* ------------------------------------------------------------------------------------------------ names */

static esper_status no_such(const char *what, uint32_t index)
{
    return ESPER_FAIL(ESPER_E_ARG, "there is no %s %u", what, index);
}

esper_status esper_grow_env_head(const esper_grow_env *env, uint32_t head, char *text, size_t bytes)
{
    (void)env;
    if (head >= ESPER_N_HEADS)
        return no_such("head", head);
    snprintf(text, bytes, "%s", esper_head_name((int)head));
    return ESPER_OK;
}

esper_status esper_grow_env_choice(const esper_grow_env *env, uint32_t head, uint32_t choice, char *text, size_t bytes)
{
    int c = (int)choice;
    const esper_blueprint *blueprint;

    if (head >= ESPER_N_HEADS)
        return no_such("head", head);
    if (choice >= (uint32_t)esper_head_size((int)head, (int)env->shape.n_slots))
        return ESPER_FAIL(ESPER_E_ARG, "head %s has no choice %u", esper_head_name((int)head), choice);
    switch ((esper_head)head) {
    case ESPER_HEAD_SLOT:
        snprintf(text, bytes, "%s", env->slots[c]);
        break;
    case ESPER_HEAD_BLUEPRINT:
        blueprint = esper_policy_blueprint(env->topology, c);
        snprintf(text, bytes, "%s", blueprint != NULL ? blueprint->name : "");
        break;
    case ESPER_HEAD_STYLE:
        snprintf(text, bytes, "%s", esper_style_name(c));
        break;
    case ESPER_HEAD_TEMPO:
        snprintf(text, bytes, "%d", (int)esper_action_tempo(c));
        break;
    case ESPER_HEAD_TARGET:
        snprintf(text, bytes, "%g", esper_action_target(c));
        break;
    case ESPER_HEAD_SPEED:
        snprintf(text, bytes, "%d", (int)esper_action_speed(c));
        break;
    case ESPER_HEAD_CURVE:
        snprintf(text, bytes, "%s", esper_alpha_choice_name(c));
        break;
    case ESPER_HEAD_OP:
        snprintf(text, bytes, "%s", esper_slot_op_name(c));
        break;
    case ESPER_N_HEADS:
        break;
    }
    return ESPER_OK;
}

esper_status esper_grow_env_feature(const esper_grow_env *env, uint32_t feature, char *text, size_t bytes)
{
    int n, slot = -1, at = (int)feature;
    const esper_feature *list = esper_feature_list(&n);
    char prefix[ESPER_POLICY_ID_CHARS + 1] = "";

    if (feature >= env->shape.n_features)
        return no_such("feature", feature);
    if (at >= ESPER_FEATURES_RUN) {
        slot = (at - ESPER_FEATURES_RUN) / ESPER_FEATURES_SLOT;
        at = (at - ESPER_FEATURES_RUN) % ESPER_FEATURES_SLOT;
        snprintf(prefix, sizeof(prefix), "%.*s.", (int)sizeof(prefix) - 2, env->slots[slot]);
    }
    for (int i = 0; i < n; i++) {
        const esper_feature *row = &list[i];

        if ((row->group >= ESPER_FEATURE_SLOT) != (slot >= 0) || at < row->at || at >= row->at + row->n)
            continue;
        if (row->n == 1)
            snprintf(text, bytes, "%s%s", prefix, row->name);
        else
            snprintf(text, bytes, "%s%s[%d]", prefix, row->name, at - row->at);
    }
    return ESPER_OK;
}

esper_status esper_grow_env_part(const esper_grow_env *env, uint32_t part, char *text, size_t bytes)
{
    (void)env;
    if (part >= ESPER_N_REWARD_PARTS)
        return no_such("part of a reward", part);
    snprintf(text, bytes, "%s", esper_reward_part_name((int)part));
    return ESPER_OK;
}

uint32_t esper_grow_env_asked(uint32_t op)
{
    return op < ESPER_N_SLOT_OPS ? esper_action_asked((int)op) : 0;
}

/* ------------------------------------------------------------------------------------------------ actions */

/* Whether the environment can do this now. */
static esper_status check_action(const esper_grow_env *env, uint32_t index, const int32_t *choice)
{
    const esper_action_mask *mask = &env->members[index].mask;
    int op = choice[ESPER_HEAD_OP], slot = choice[ESPER_HEAD_SLOT];
    /* operation, then slot: what may be chosen of the others depends on both */
    static const int order[] = {ESPER_HEAD_OP,     ESPER_HEAD_SLOT,  ESPER_HEAD_BLUEPRINT, ESPER_HEAD_STYLE,
                                ESPER_HEAD_TEMPO, ESPER_HEAD_TARGET, ESPER_HEAD_SPEED,     ESPER_HEAD_CURVE};
    _Static_assert(sizeof(order) / sizeof(order[0]) == ESPER_N_HEADS, "every head is judged");

    for (int k = 0; k < ESPER_N_HEADS; k++) {
        int head = order[k], size = esper_head_size(head, (int)env->shape.n_slots), value = choice[head];
        char name[64];

        if (head != ESPER_HEAD_OP && !esper_action_matters(op, head))
            continue;
        if (value < 0 || value >= size)
            return ESPER_FAIL(ESPER_E_ARG, "environment %u: %s is %d, and goes from 0 to %d", index,
                              esper_head_name(head), value, size - 1);
        if ((esper_action_mask_head(mask, head, op, slot) >> value & 1u) != 0)
            continue;
        (void)esper_grow_env_choice(env, (uint32_t)head, (uint32_t)value, name, sizeof(name));
        if (head == ESPER_HEAD_OP)
            return ESPER_FAIL(ESPER_E_ARG, "environment %u: op %d (%s) is masked: it cannot be done in any slot now",
                              index, value, name);
        return ESPER_FAIL(ESPER_E_ARG, "environment %u: %s %d (%s) is masked for op %d (%s)%s%s", index,
                          esper_head_name(head), value, name, op, esper_slot_op_name(op),
                          head == ESPER_HEAD_SLOT ? "" : " in slot ", head == ESPER_HEAD_SLOT ? "" : env->slots[slot]);
    }
    return ESPER_OK;
}

esper_status grow_env_take_actions(esper_grow_env *env, const int32_t *actions)
{
    for (uint32_t i = 0; i < env->shape.n_envs; i++)
        ESPER_TRY(check_action(env, i, actions + (size_t)i * ESPER_N_HEADS));
    for (uint32_t i = 0; i < env->shape.n_envs; i++) {
        esper_action action;

        memcpy(action.choice, actions + (size_t)i * ESPER_N_HEADS, sizeof(action.choice));
        esper_action_decide(&action, &env->members[i].decision);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rows */

static void write_bits(uint8_t *row, uint64_t bits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        row[i] = (uint8_t)(bits >> i & 1u);
}

static void show_mask(const esper_grow_env *env, size_t i)
{
    const esper_grow_env_arrays *shown = env->shown;
    const esper_grow_env_shape *shape = &env->shape;
    const esper_action_mask *mask = &env->members[i].mask;
    uint64_t ops = mask->heads[ESPER_HEAD_OP];

    if (shown->mask_op != NULL)
        write_bits(shown->mask_op + i * shape->n_ops, ops, shape->n_ops);
    for (uint32_t op = 0; shown->mask_slot != NULL && op < shape->n_ops; op++)
        write_bits(shown->mask_slot + (i * shape->n_ops + op) * shape->n_slots,
                   (ops >> op & 1u) != 0 ? mask->slots[op] : 0, shape->n_slots);
    for (uint32_t s = 0; shown->mask_blueprint != NULL && s < shape->n_slots; s++)
        write_bits(shown->mask_blueprint + (i * shape->n_slots + s) * shape->n_blueprints, mask->blueprints[s],
                   shape->n_blueprints);
    for (uint32_t s = 0; shown->mask_style != NULL && s < shape->n_slots; s++)
        write_bits(shown->mask_style + (i * shape->n_slots + s) * shape->n_styles, mask->styles[s], shape->n_styles);
}

/* Features as a policy that learns here sees them, before they are normalised. */
static esper_status show_features(esper_grow_env *env, size_t i, const esper_policy_view *view)
{
    float features[ESPER_FEATURES_RUN + ESPER_POLICY_MAX_SLOTS * ESPER_FEATURES_SLOT] = {0};
    int32_t blueprints[ESPER_POLICY_MAX_SLOTS];
    const esper_grow_env_arrays *shown = env->shown;
    grow_env_member *member = &env->members[i];
    int n_bad = 0;

    for (uint32_t s = 0; s < env->shape.n_slots; s++)
        blueprints[s] = -1;
    if (view != NULL) {
        esper_feature_memory_begin(&member->memory, view);
        ESPER_TRY(esper_features_fill(view, &member->memory, (int)env->shape.n_slots, features, blueprints, &n_bad));
    }
    if (shown->features != NULL)
        memcpy(shown->features + i * env->shape.n_features, features, env->shape.n_features * sizeof(float));
    if (shown->blueprints != NULL)
        memcpy(shown->blueprints + i * env->shape.n_slots, blueprints, env->shape.n_slots * sizeof(*blueprints));
    return ESPER_OK;
}

esper_status grow_env_show(esper_grow_env *env, int index, const esper_env_look *look)
{
    const esper_grow_env_arrays *shown = env->shown;
    grow_env_member *member = &env->members[index];
    size_t i = (size_t)index;

    assert(index >= 0 && i < env->shape.n_envs);
    ESPER_TRY(show_features(env, i, look->view));
    if (look->view != NULL)
        ESPER_TRY(esper_action_mask_build(look->view, &member->mask));
    else
        member->mask = (esper_action_mask){.heads[ESPER_HEAD_OP] = UINT64_C(1) << ESPER_SLOT_OP_WAIT};
    show_mask(env, i);
    if (shown->accuracy != NULL)
        shown->accuracy[i] = look->view != NULL ? look->view->accuracy_valid : (double)NAN;
    if (shown->params != NULL)
        shown->params[i] = look->view != NULL ? look->view->params_total : esper_network_params(look->network);
    if (shown->seed != NULL)
        shown->seed[i] = member->seed;
    return ESPER_OK;
}

/* A decision that the governor had to undo is punished; parts add up still. Where there was no view, nothing was decided. */
void grow_env_show_worth(esper_grow_env *env, int index, const esper_env_look *look, bool over)
{
    const esper_reward *paid = esper_growth_reward(look->growth);
    const esper_grow_env_arrays *shown = env->shown;
    size_t i = (size_t)index;
    bool decided = esper_fleet_episode(env->fleet, index).n_steps > 0;
    bool undone = decided && (look->n_rollbacks > 0 || look->stopped);
    double *parts = shown->parts != NULL ? shown->parts + i * ESPER_N_REWARD_PARTS : NULL;

    if (shown->reward != NULL)
        shown->reward[i] = undone ? ESPER_GROWTH_PENALTY : decided ? paid->total : 0.0;
    if (parts != NULL && decided)
        memcpy(parts, paid->part, sizeof(paid->part));
    if (parts != NULL && !decided)
        memset(parts, 0, sizeof(paid->part));
    if (parts != NULL && undone) { /* as a rollout has it */
        double sum = 0.0;

        for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
            sum += part == ESPER_PART_ROLLBACK ? 0.0 : parts[part];
        parts[ESPER_PART_ROLLBACK] = ESPER_GROWTH_PENALTY - sum;
    }
    if (shown->effective_op != NULL)
        shown->effective_op[i] = decided ? env->members[i].op : ESPER_SLOT_OP_WAIT;
    if (shown->accepted != NULL)
        shown->accepted[i] = decided && esper_growth_look_at(look->growth).accepted;
    if (shown->rolled_back != NULL)
        shown->rolled_back[i] = undone;
    if (shown->terminated != NULL)
        shown->terminated[i] = over;
}
