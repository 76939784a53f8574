/* The vector environment: episodes, decision by decision. Environments that are done begin anew in the same item of work, so that
 * no thread waits for the others' ends. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "run/grow_env_internal.h"

/* ------------------------------------------------------------------------------------------------ an episode */

/* Begins the next episode, and shows its first view. Where the governor stops one before that, there is none: whoever plays can
 * only wait, and is told then that it is over. */
static esper_status begin_episode(esper_grow_env *env, int i, esper_backend_stream *stream)
{
    grow_env_member *member = &env->members[i];
    esper_env_look look;

    if (!member->has_seed) {
        member->seed = esper_fleet_seed(env->run_seed, member->next);
        member->next += env->shape.n_envs;
    }
    member->has_seed = false;
    esper_feature_memory_init(&member->memory);
    ESPER_TRY(esper_fleet_renew(env->fleet, i, member->seed, stream));
    ESPER_TRY(esper_fleet_move(env->fleet, i, NULL, false, stream));
    look = esper_env_look_at(esper_fleet_env(env->fleet, i));
    return grow_env_show(env, i, &look);
}

/* A decision, and the way to the next view, be it the next episode's. */
static esper_status play_step(esper_grow_env *env, int i, esper_backend_stream *stream)
{
    grow_env_member *member = &env->members[i];
    esper_env_look look = esper_env_look_at(esper_fleet_env(env->fleet, i));
    bool last = esper_fleet_episode(env->fleet, i).n_steps + 1 == env->config.epochs, over = true;

    if (look.view != NULL) {
        member->op = esper_action_effective_op(look.view, &member->decision);
        esper_feature_memory_step(&member->memory, look.view, member->decision.op, true);
        ESPER_TRY(esper_fleet_move(env->fleet, i, &member->decision, last, stream));
        look = esper_env_look_at(esper_fleet_env(env->fleet, i));
        over = last || look.stopped;
    }
    grow_env_show_worth(env, i, &look, over);
    if (!over)
        return grow_env_show(env, i, &look);
    member->ended = esper_fleet_episode(env->fleet, i);
    member->has_ended = true;
    return begin_episode(env, i, stream);
}

static esper_status play(void *context, int i, esper_backend_stream *stream)
{
    esper_grow_env *env = context;

    assert(i >= 0 && (uint32_t)i < env->shape.n_envs);
    return env->steps ? play_step(env, i, stream) : begin_episode(env, i, stream);
}

/* ------------------------------------------------------------------------------------------------ calls */

/* A call begins: it must be the only one, in the process that has the threads. Returns with env->busy set. */
static esper_status enter(esper_grow_env *env, const esper_grow_env_arrays *shown)
{
    if (env == NULL || shown == NULL || shown->size < sizeof(*shown))
        return ESPER_FAIL(ESPER_E_ARG, env == NULL ? "no environment" : "arrays of an environment: set their size");
    if (env->pid != getpid())
        return ESPER_FAIL(ESPER_E_STATE,
                          "the environment was opened in another process, before fork(): its threads are "
                          "not in this one. Open one here");
    if (atomic_exchange(&env->busy, true))
        return ESPER_FAIL(ESPER_E_STATE, "another thread is using the environment");
    env->stop = 0;
    env->shown = shown;
    return ESPER_OK;
}

/* What the environments did. After a failure they are at different places, and nobody knows what was seen. */
static esper_status leave(esper_grow_env *env, esper_status status)
{
    env->begun = status == ESPER_OK;
    env->shown = NULL;
    atomic_store(&env->busy, false);
    return status;
}

esper_status esper_grow_env_reset(esper_grow_env *env, const uint8_t *which, const uint64_t *seeds,
                                  const esper_grow_env_arrays *shown)
{
    bool all = true;

    ESPER_TRY(enter(env, shown));
    for (uint32_t i = 0; i < env->shape.n_envs; i++) {
        env->which[i] = which == NULL || which[i] != 0;
        all &= env->which[i];
        if (env->which[i]) { /* one of a reset that failed, or was stopped, is not kept */
            env->members[i].has_seed = seeds != NULL;
            env->members[i].seed = seeds != NULL ? seeds[i] : env->members[i].seed;
        }
    }
    if (!all && !env->begun) {
        atomic_store(&env->busy, false);
        return ESPER_FAIL(ESPER_E_STATE, "some environments are to be reset, and the others have not begun: reset all");
    }
    env->steps = false;
    return leave(env, esper_fleet_each(env->fleet, env->which, play, env));
}

esper_status esper_grow_env_step(esper_grow_env *env, const int32_t *actions, const esper_grow_env_arrays *shown)
{
    esper_status status = ESPER_OK;

    if (actions == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "a step without actions");
    ESPER_TRY(enter(env, shown));
    if (!env->begun)
        status = ESPER_FAIL(ESPER_E_STATE, "the environment has to be reset before it is stepped");
    if (status == ESPER_OK)
        status = grow_env_take_actions(env, actions);
    if (status != ESPER_OK) { /* nothing has moved */
        atomic_store(&env->busy, false);
        return status;
    }
    env->steps = true;
    return leave(env, esper_fleet_each(env->fleet, NULL, play, env));
}

esper_status esper_grow_env_seek(esper_grow_env *env, uint64_t seed, uint64_t number)
{
    if (env == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "no environment");
    if (atomic_exchange(&env->busy, true))
        return ESPER_FAIL(ESPER_E_STATE, "another thread is using the environment");
    env->run_seed = seed;
    for (uint32_t i = 0; i < env->shape.n_envs; i++) {
        env->members[i].next = number + i;
        env->members[i].has_seed = false;
    }
    atomic_store(&env->busy, false);
    return ESPER_OK;
}

void esper_grow_env_stop(esper_grow_env *env)
{
    if (env != NULL)
        env->stop = 1;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_status esper_grow_env_shape_get(const esper_grow_env *env, esper_grow_env_shape *shape_out)
{
    if (env == NULL || shape_out == NULL || shape_out->size < sizeof(*shape_out))
        return ESPER_FAIL(ESPER_E_ARG, env == NULL ? "no environment" : "the shape of an environment: set its size");
    *shape_out = env->shape;
    return ESPER_OK;
}

esper_status esper_grow_env_episode_get(const esper_grow_env *env, uint32_t index, esper_grow_env_episode *episode_out)
{
    const esper_episode *ended;

    if (env == NULL || episode_out == NULL || episode_out->size < sizeof(*episode_out))
        return ESPER_FAIL(ESPER_E_ARG, env == NULL ? "no environment" : "an episode of an environment: set its size");
    if (index >= env->shape.n_envs)
        return ESPER_FAIL(ESPER_E_ARG, "environment %u of %u", index, env->shape.n_envs);
    if (!env->members[index].has_ended)
        return ESPER_FAIL(ESPER_E_STATE, "no episode of environment %u has ended", index);
    ended = &env->members[index].ended;
    *episode_out = (esper_grow_env_episode){
        .size = sizeof(*episode_out),
        .seed = ended->seed,
        .total_reward = ended->total_reward,
        .accuracy_final = ended->accuracy_final,
        .accuracy_best = ended->accuracy_best,
        .params = ended->params,
        .n_decisions = (uint32_t)ended->n_steps,
        .n_germinated = (uint32_t)ended->n_germinated,
        .n_kept = (uint32_t)ended->n_kept,
        .n_pruned = (uint32_t)ended->n_pruned,
        .n_rollbacks = (uint32_t)ended->n_rollbacks,
        .stopped = ended->stopped,
    };
    return ESPER_OK;
}
