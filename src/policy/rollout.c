/* The buffer of a round: one block of memory, filled step by step. */
#include "policy/rollout.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* Every array, and how many elements an environment has in it. */
#define ARRAYS(X, s)                                             \
    X(n_stored, 1)                                               \
    X(segment, 1)                                                \
    X(features, (size_t)(s)->n_steps *(size_t)(s)->n_features)   \
    X(blueprints, (size_t)(s)->n_steps *(size_t)(s)->n_slots)    \
    X(actions, (size_t)(s)->n_steps *ESPER_N_HEADS)              \
    X(masks, (size_t)(s)->n_steps *ESPER_N_HEADS)                \
    X(open, (size_t)(s)->n_steps *ESPER_N_HEADS)                 \
    X(log_probs, (size_t)(s)->n_steps *ESPER_N_HEADS)            \
    X(values, (size_t)(s)->n_steps)                              \
    X(rewards, (size_t)(s)->n_steps)                             \
    X(bootstraps, (size_t)(s)->n_steps)                          \
    X(parts, (size_t)(s)->n_steps *ESPER_N_REWARD_PARTS)         \
    X(advantages, (size_t)(s)->n_steps)                          \
    X(returns, (size_t)(s)->n_steps)                             \
    X(errors, (size_t)(s)->n_steps)                              \
    X(contributions, (size_t)(s)->n_steps *(size_t)(s)->n_slots) \
    X(effective_ops, (size_t)(s)->n_steps)                       \
    X(asked, (size_t)(s)->n_steps)                               \
    X(done, (size_t)(s)->n_steps)                                \
    X(truncated, (size_t)(s)->n_steps)                           \
    X(accepted, (size_t)(s)->n_steps)                            \
    X(forced, (size_t)(s)->n_steps)                              \
    X(begins, (size_t)(s)->n_steps)

/* Points the arrays into the block, and returns its size: sizes first, with a block at NULL. */
static size_t lay_out(esper_rollout *r, char *block)
{
    size_t envs = (size_t)r->shape.n_envs;
    char *at = block;

#define X(name, n)        \
    r->name = (void *)at; \
    at += (envs * (n) * sizeof(*r->name) + 63) / 64 * 64;
    ARRAYS(X, &r->shape)
#undef X
    return (size_t)(at - block);
}

static esper_status check_shape(const esper_rollout_shape *shape)
{
    const struct {
        const char *name;
        int         value, high;
    } ranges[] = {
        {"environments", shape->n_envs, 1 << 20},
        {"steps", shape->n_steps, 1 << 20},
        {"slots", shape->n_slots, ESPER_POLICY_MAX_SLOTS},
        {"features", shape->n_features, 1 << 16},
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].value < 1 || ranges[i].value > ranges[i].high)
            return ESPER_FAIL(ESPER_E_ARG, "a rollout of %d %s: from 1 to %d is possible", ranges[i].value,
                              ranges[i].name, ranges[i].high);
    return ESPER_OK;
}

esper_status esper_rollout_open(const esper_rollout_shape *shape, esper_rollout **rollout_out)
{
    size_t head = (sizeof(esper_rollout) + 63) / 64 * 64, bytes;
    esper_rollout measured = {.shape = *shape}, *rollout;

    ESPER_TRY(check_shape(shape));
    bytes = lay_out(&measured, NULL);
    rollout = esper_mem_alloc(head + bytes);
    if (rollout == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a rollout of %d environments and %d steps", shape->n_envs, shape->n_steps);
    rollout->shape = *shape;
    (void)lay_out(rollout, (char *)rollout + head);
    *rollout_out = rollout;
    return ESPER_OK;
}

void esper_rollout_close(esper_rollout *rollout)
{
    esper_mem_free(rollout);
}

void esper_rollout_reset(esper_rollout *rollout)
{
    size_t envs = (size_t)rollout->shape.n_envs;

    memset(rollout->n_stored, 0, envs * sizeof(*rollout->n_stored));
    memset(rollout->segment, 0, envs * sizeof(*rollout->segment));
    rollout->n_rollbacks_asked = rollout->n_rollbacks_applied = rollout->n_rollbacks_lost = 0;
    rollout->n_steps_forfeited = rollout->n_bad_rewards = 0;
}

/* ------------------------------------------------------------------------------------------------ storing */

esper_status esper_rollout_add(esper_rollout *rollout, int env, const esper_rollout_step *step)
{
    const esper_rollout_shape *shape = &rollout->shape;
    size_t slots = (size_t)shape->n_slots, features = (size_t)shape->n_features, at;
    bool good = isfinite(step->reward);
    int t = rollout->n_stored[env];

    assert(env >= 0 && env < shape->n_envs && rollout->segment[env] <= t);
    if (t >= shape->n_steps)
        return ESPER_FAIL(ESPER_E_STATE, "environment %d of a rollout has its %d steps already", env, shape->n_steps);
    at = esper_rollout_at(rollout, env, t);
    for (size_t s = 0; s < slots; s++) {
        rollout->blueprints[at * slots + s] = step->blueprints[s];
        rollout->contributions[at * slots + s] = step->contributions != NULL ? step->contributions[s] : NAN;
    }
    memcpy(rollout->actions + at * ESPER_N_HEADS, step->action.choice, sizeof(step->action.choice));
    memcpy(rollout->masks + at * ESPER_N_HEADS, step->masks, sizeof(step->masks));
    memcpy(rollout->open + at * ESPER_N_HEADS, step->open, sizeof(step->open));
    memcpy(rollout->log_probs + at * ESPER_N_HEADS, step->log_probs, sizeof(step->log_probs));
    memcpy(rollout->features + at * features, step->features, features * sizeof(float));
    for (size_t part = 0; part < ESPER_N_REWARD_PARTS; part++)
        rollout->parts[at * ESPER_N_REWARD_PARTS + part] = step->paid != NULL ? step->paid->part[part] : 0.0;
    rollout->begins[at] = t == rollout->segment[env];
    rollout->values[at] = step->value;
    rollout->rewards[at] = good ? (float)step->reward : 0.0f;
    rollout->n_bad_rewards += !good;
    rollout->effective_ops[at] = step->effective_op;
    rollout->asked[at] = esper_action_asked(step->effective_op);
    rollout->accepted[at] = step->accepted;
    rollout->forced[at] = step->forced;
    rollout->bootstraps[at] = 0.0f;
    rollout->done[at] = rollout->truncated[at] = 0;
    rollout->n_stored[env] = t + 1;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ends */

void esper_rollout_end(esper_rollout *rollout, int env)
{
    int n = rollout->n_stored[env];
    size_t at;

    if (n == 0)
        return;
    at = esper_rollout_at(rollout, env, n - 1);
    rollout->done[at] = 1;
    rollout->truncated[at] = 0;
    rollout->segment[env] = n;
}

/* Sets what a step is worth; the part ROLLBACK takes up the difference to what was paid. */
static void rewrite(esper_rollout *rollout, size_t at, double worth, double learned)
{
    double *parts = rollout->parts + at * ESPER_N_REWARD_PARTS, paid = 0.0;

    for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
        paid += part == ESPER_PART_ROLLBACK ? 0.0 : parts[part];
    parts[ESPER_PART_ROLLBACK] = worth - paid;
    rollout->rewards[at] = (float)learned;
}

bool esper_rollout_rollback(esper_rollout *rollout, int env, double penalty)
{
    int from = rollout->segment[env], n = rollout->n_stored[env];

    assert(env >= 0 && env < rollout->shape.n_envs && from <= n);
    rollout->n_rollbacks_asked++;
    if (n == from) {
        rollout->n_rollbacks_lost++;
        return false;
    }
    for (int t = from; t < n - 1; t++)
        rewrite(rollout, esper_rollout_at(rollout, env, t), 0.0, 0.0);
    rewrite(rollout, esper_rollout_at(rollout, env, n - 1), penalty,
            fmin(fmax(penalty, -ESPER_ROLLOUT_CLIP), ESPER_ROLLOUT_CLIP));
    esper_rollout_end(rollout, env);
    rollout->n_rollbacks_applied++;
    rollout->n_steps_forfeited += n - 1 - from;
    return true;
}

void esper_rollout_credit(esper_rollout *rollout, int env, const esper_credit *credit)
{
    double next = 0.0, ahead = 0.0, fade = credit->gamma * credit->lambda;
    int n = rollout->n_stored[env];

    assert(credit->gamma >= 0.0 && credit->lambda >= 0.0 && credit->value_scale > 0.0);
    for (int t = n - 1; t >= 0; t--) {
        size_t at = esper_rollout_at(rollout, env, t);
        bool last = t == n - 1, truncated = rollout->truncated[at] != 0;
        bool goes_on = last ? truncated : rollout->done[at] == 0 || truncated;
        double value = (double)rollout->values[at] * credit->value_scale, error;

        if (last)
            next = (double)rollout->bootstraps[at] * credit->value_scale;
        error = (double)rollout->rewards[at] - value + (goes_on ? credit->gamma * next : 0.0);
        ahead = error + (goes_on ? fade * ahead : 0.0);
        rollout->errors[at] = (float)error;
        rollout->advantages[at] = (float)ahead;
        rollout->returns[at] = (float)(ahead + value);
        next = value;
    }
}

int esper_rollout_count_steps(const esper_rollout *rollout)
{
    int n = 0;

    for (int env = 0; env < rollout->shape.n_envs; env++)
        n += rollout->n_stored[env];
    return n;
}

/* ------------------------------------------------------------------------------------------------ between ranks */

/* Bytes of some environments; with `out` or `in` they are copied there or taken from there, array after array. */
static size_t move_envs(const esper_rollout *rollout, int first, int n_envs, char *out, const char *in)
{
    size_t at = 0;

    assert(first >= 0 && n_envs >= 0 && first + n_envs <= rollout->shape.n_envs);
#define X(name, n)                                                      \
    {                                                                   \
        size_t bytes = (size_t)n_envs * (n) * sizeof(*rollout->name);   \
        if (out != NULL)                                                \
            memcpy(out + at, rollout->name + (size_t)first * (n), bytes); \
        if (in != NULL)                                                 \
            memcpy(rollout->name + (size_t)first * (n), in + at, bytes); \
        at += bytes;                                                    \
    }
    ARRAYS(X, &rollout->shape)
#undef X
    return at;
}

size_t esper_rollout_envs_bytes(const esper_rollout *rollout, int n_envs)
{
    return move_envs(rollout, 0, n_envs, NULL, NULL);
}

void esper_rollout_copy_envs(const esper_rollout *rollout, int first, int n_envs, void *memory_out)
{
    (void)move_envs(rollout, first, n_envs, memory_out, NULL);
}

void esper_rollout_take_envs(esper_rollout *rollout, int first, int n_envs, const void *memory)
{
    (void)move_envs(rollout, first, n_envs, NULL, memory);
}
