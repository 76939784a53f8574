/* The buffer of a round: one block of memory, filled step by step. */
#include "policy/rollout.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static int chunks_of_env(const esper_rollout_shape *shape)
{
    return (shape->n_steps + shape->chunk - 1) / shape->chunk;
}

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
    X(states, (size_t)chunks_of_env(s) * (size_t)(s)->n_state)  \
    X(effective_ops, (size_t)(s)->n_steps)                       \
    X(asked, (size_t)(s)->n_steps)                               \
    X(done, (size_t)(s)->n_steps)                                \
    X(truncated, (size_t)(s)->n_steps)                           \
    X(accepted, (size_t)(s)->n_steps)                            \
    X(forced, (size_t)(s)->n_steps)                              \
    X(begins, (size_t)(s)->n_steps)

/* Takes n elements out of the block; sizes first, with a block at NULL. */
static void *take(char **at, size_t n, size_t bytes)
{
    char *here = *at;

    *at += (n * bytes + 63) / 64 * 64;
    return here;
}

/* Points the arrays into the block, and returns its size. */
static size_t lay_out(esper_rollout *r, char *block)
{
    size_t envs = (size_t)r->shape.n_envs;
    char *at = block;

#define X(name, n) r->name = take(&at, envs * (n), sizeof(*r->name));
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
        {"values of recurrent state", shape->n_state, 1 << 20},
        {"steps of a chunk", shape->chunk, shape->n_steps},
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

static float *state_at(const esper_rollout *rollout, int env, int chunk)
{
    size_t index = (size_t)env * (size_t)chunks_of_env(&rollout->shape) + (size_t)chunk;

    assert(env >= 0 && env < rollout->shape.n_envs && chunk >= 0 && chunk < chunks_of_env(&rollout->shape));
    return rollout->states + index * (size_t)rollout->shape.n_state;
}

/* The recurrent state is kept where a chunk begins; where a segment begins it is zero. */
static void store_state(esper_rollout *rollout, int env, int step, const float *state)
{
    size_t bytes = (size_t)rollout->shape.n_state * sizeof(float);
    bool begins = step == rollout->segment[env];

    rollout->begins[esper_rollout_at(rollout, env, step)] = begins;
    if (step % rollout->shape.chunk != 0)
        return;
    if (state == NULL || begins)
        memset(state_at(rollout, env, step / rollout->shape.chunk), 0, bytes);
    else
        memcpy(state_at(rollout, env, step / rollout->shape.chunk), state, bytes);
}

static void store_slots(esper_rollout *rollout, size_t at, const esper_rollout_step *step)
{
    int n = rollout->shape.n_slots;

    for (int s = 0; s < n; s++) {
        rollout->blueprints[at * (size_t)n + (size_t)s] = step->blueprints[s];
        rollout->contributions[at * (size_t)n + (size_t)s] = step->contributions != NULL ? step->contributions[s] : NAN;
    }
}

static void store_heads(esper_rollout *rollout, size_t at, const esper_rollout_step *step)
{
    for (size_t head = 0; head < ESPER_N_HEADS; head++) {
        rollout->actions[at * ESPER_N_HEADS + head] = step->action.choice[head];
        rollout->masks[at * ESPER_N_HEADS + head] = step->masks[head];
        rollout->open[at * ESPER_N_HEADS + head] = step->open[head];
        rollout->log_probs[at * ESPER_N_HEADS + head] = step->log_probs[head];
    }
}

esper_status esper_rollout_add(esper_rollout *rollout, int env, const esper_rollout_step *step)
{
    const esper_rollout_shape *shape = &rollout->shape;
    int t = rollout->n_stored[env];
    size_t at = esper_rollout_at(rollout, env, t);
    bool good = isfinite(step->reward);

    assert(env >= 0 && env < shape->n_envs && rollout->segment[env] <= t);
    if (t >= shape->n_steps)
        return ESPER_FAIL(ESPER_E_STATE, "environment %d of a rollout has its %d steps already", env, shape->n_steps);
    store_state(rollout, env, t, step->state);
    store_slots(rollout, at, step);
    store_heads(rollout, at, step);
    memcpy(rollout->features + at * (size_t)shape->n_features, step->features,
           (size_t)shape->n_features * sizeof(float));
    for (size_t part = 0; part < ESPER_N_REWARD_PARTS; part++)
        rollout->parts[at * ESPER_N_REWARD_PARTS + part] = step->paid != NULL ? step->paid->part[part] : 0.0;
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

int esper_rollout_count_steps(const esper_rollout *rollout)
{
    int n = 0;

    for (int env = 0; env < rollout->shape.n_envs; env++)
        n += rollout->n_stored[env];
    return n;
}

/* ------------------------------------------------------------------------------------------------ between ranks */

size_t esper_rollout_envs_bytes(const esper_rollout *rollout, int n_envs)
{
    size_t bytes = 0;

#define X(name, n) bytes += (size_t)n_envs * (n) * sizeof(*rollout->name);
    ARRAYS(X, &rollout->shape)
#undef X
    return bytes;
}

void esper_rollout_copy_envs(const esper_rollout *rollout, int first, int n_envs, void *memory_out)
{
    char *at = memory_out;

    assert(first >= 0 && n_envs >= 0 && first + n_envs <= rollout->shape.n_envs);
#define X(name, n)                                                                        \
    memcpy(at, rollout->name + (size_t)first * (n), (size_t)n_envs * (n) * sizeof(*rollout->name)); \
    at += (size_t)n_envs * (n) * sizeof(*rollout->name);
    ARRAYS(X, &rollout->shape)
#undef X
}

void esper_rollout_take_envs(esper_rollout *rollout, int first, int n_envs, const void *memory)
{
    const char *at = memory;

    assert(first >= 0 && n_envs >= 0 && first + n_envs <= rollout->shape.n_envs);
#define X(name, n)                                                                        \
    memcpy(rollout->name + (size_t)first * (n), at, (size_t)n_envs * (n) * sizeof(*rollout->name)); \
    at += (size_t)n_envs * (n) * sizeof(*rollout->name);
    ARRAYS(X, &rollout->shape)
#undef X
}
