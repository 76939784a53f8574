/* One environment: network, growth and guard, moved from decision to decision. */
#include "learn/env.h"

#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "grow/epoch.h"
#include "learn/twin.h"

struct esper_env {
    esper_network *network;
    esper_growth  *growth;
    esper_twin    *twin; /* NULL: its reward does not go by gain */
    const esper_policy_view *view; /* of an epoch that waits for a decision; NULL = none does */
    bool           stopped;
    const volatile sig_atomic_t *stop;
    int            n_rollbacks;
    double         best_accuracy;
    esper_epoch_player player;
    double         seconds_twin, seconds_act;
};

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status met(void *context, const esper_incident *incident)
{
    esper_env *env = context;

    env->n_rollbacks += incident->restored;
    env->stopped = incident->action == ESPER_GOVERNOR_STOP;
    return esper_growth_heed(env->growth, incident);
}

/* After every step. */
static esper_status stepped(void *context)
{
    const esper_env *env = context;

    return env->stop == NULL || *env->stop == 0 ? ESPER_OK
                                                : ESPER_FAIL(ESPER_E_STOPPED, "stopped in the midst of an epoch");
}

static esper_status open_twin(esper_env *env, esper_twin_book *book)
{
    esper_reward_config reward;

    ESPER_TRY(esper_growth_reward_config(&env->network->engine->config, &reward));
    if (reward.mode != ESPER_REWARD_GAIN)
        return ESPER_OK;
    esper_growth_expect_twin(env->growth);
    return esper_twin_open(env->network, book, &env->twin);
}

esper_status esper_env_open(const esper_env_desc *desc, esper_env **env_out)
{
    const esper_growth_records nothing = {0};
    esper_env *env = esper_mem_alloc(sizeof(*env));
    esper_status status;

    if (env == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "environment");
    env->best_accuracy = (double)NAN;
    status = esper_network_add(desc->engine, desc->seed, desc->stream, &env->network);
    if (status != ESPER_OK)
        goto fail;
    env->network->budget = 0; /* an episode is a number of decisions */
    status = esper_growth_open(env->network, NULL, desc->inject, &env->growth);
    if (status == ESPER_OK)
        status = esper_guarded_open(env->network);
    if (status == ESPER_OK)
        status = esper_growth_attach(env->growth, &nothing);
    esper_guarded_let_behind(env->network, true);
    if (status == ESPER_OK)
        status = open_twin(env, desc->inject == NULL ? desc->twins : NULL);
    if (status != ESPER_OK)
        goto fail;
    env->stop = desc->stop;
    env->player = (esper_epoch_player){.network = env->network,
                                       .growth = env->growth,
                                       .context = env,
                                       .stepped = stepped,
                                       .met = met,
                                       .follower = {.stop = desc->stop}};
    *env_out = env;
    return ESPER_OK;
fail:
    esper_env_close(env);
    return status;
}

void esper_env_close(esper_env *env)
{
    if (env == NULL)
        return;
    esper_twin_close(env->twin);
    esper_growth_close(env->growth);
    esper_network_remove(env->network);
    esper_mem_free(env);
}

void esper_env_move(esper_env *env, esper_backend_stream *stream)
{
    env->network->stream = stream;
    if (env->twin != NULL)
        esper_twin_move(env->twin, stream);
}

bool esper_env_has_twin(const esper_env *env)
{
    return env->twin != NULL;
}

void esper_env_expect_helper(esper_env *env)
{
    if (env->twin != NULL)
        esper_twin_expect(env->twin);
}

void esper_env_help(esper_env *env, esper_backend_stream *stream)
{
    if (env->twin != NULL)
        esper_twin_serve(env->twin, stream);
}

void esper_env_dismiss_helper(esper_env *env)
{
    if (env->twin != NULL)
        esper_twin_dismiss(env->twin);
}

/* ------------------------------------------------------------------------------------------------ to the next decision */

esper_status esper_env_advance(esper_env *env)
{
    esper_epoch_end end = ESPER_EPOCH_GONE_BACK;
    esper_epoch_record record;
    double began;

    env->n_rollbacks = 0;
    env->view = NULL;
    if (env->twin != NULL && !env->stopped)
        ESPER_TRY(esper_twin_begin(env->twin, env->network->cursor.epoch + 1));
    while (!env->stopped && end != ESPER_EPOCH_GOOD)
        ESPER_TRY(esper_epoch_play(&env->player, &record, &end));
    if (env->stopped)
        return ESPER_OK;
    assert(end == ESPER_EPOCH_GOOD);
    env->best_accuracy = fmax(env->best_accuracy, record.acc_valid);
    began = esper_clock_seconds();
    if (env->twin != NULL)
        ESPER_TRY(esper_twin_accuracy(env->twin, record.epoch, record.acc_valid, &record.acc_twin));
    env->seconds_twin += esper_clock_seconds() - began;
    began = esper_clock_seconds();
    ESPER_TRY(esper_growth_observe(env->growth, &record, &env->view));
    env->seconds_act += esper_clock_seconds() - began;
    return ESPER_OK;
}

esper_status esper_env_decide(esper_env *env, const esper_decision *decision, bool last)
{
    double began = esper_clock_seconds();
    esper_decision own;

    if (env->view == NULL)
        return ESPER_FAIL(ESPER_E_STATE, "an environment is to decide, and has not been advanced");
    if (decision == NULL) {
        ESPER_TRY(esper_growth_ask(env->growth, &own));
        decision = &own;
    }
    ESPER_TRY(esper_growth_decide(env->growth, decision, last));
    if (env->twin != NULL && !last)
        ESPER_TRY(esper_twin_watch(env->twin));
    esper_network_next_epoch(env->network);
    env->view = NULL;
    env->n_rollbacks = 0; /* of the advance before this decision: it is not to blame */
    env->seconds_act += esper_clock_seconds() - began;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

esper_env_look esper_env_look_at(const esper_env *env)
{
    esper_governor_reading reading = esper_guarded_reading(env->network);

    return (esper_env_look){
        .view = env->view,
        .stopped = env->stopped,
        .growth = env->growth,
        .network = env->network,
        .n_rollbacks = env->n_rollbacks,
        .n_rollbacks_all = reading.n_rollbacks,
        .n_skipped = reading.n_skipped,
        .best_accuracy = env->best_accuracy,
        .seconds_train = env->player.seconds_train + env->seconds_twin,
        .seconds_valid = env->player.seconds_valid,
        .seconds_act = env->seconds_act,
    };
}
