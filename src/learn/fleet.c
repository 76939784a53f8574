/* Environments in lock step. */
#include "learn/fleet.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

/* What one environment is to do, and what came of it. */
typedef struct fleet_member {
    esper_env   *env;
    uint64_t     seed;
    int          n_steps;
    double       flops; /* of a step */
    double       accuracy_final;
    double       seconds_train, seconds_valid, seconds_act; /* of episodes behind it */
    double       seconds_open, seconds;
    esper_status status;
    char         inject[ESPER_CONFIG_TEXT_CHARS]; /* drills; "" = as the configuration says */
    char         message[512]; /* errors are kept by thread: this one's is carried over */
} fleet_member;

typedef enum fleet_work { FLEET_OPEN, FLEET_ADVANCE, FLEET_FINISH } fleet_work;

struct esper_fleet {
    esper_engine       *engine;
    int                 n_envs, n_begun;
    fleet_member         *members; /* (n_envs) */
    int                *order; /* (n_envs) environments, the ones with most to compute first */
    fleet_work          work;
    const esper_decision *decisions; /* (environments) of the work at hand */
    bool                own;
    double              wall;
};

/* ------------------------------------------------------------------------------------------------ opening */

uint64_t esper_fleet_seed(uint64_t run_seed, uint64_t episode)
{
    uint64_t words[2] = {run_seed, episode};

    return XXH64(words, sizeof(words), 0) | (uint64_t)1 << 63;
}

esper_status esper_fleet_open(const esper_fleet_desc *desc, esper_fleet **fleet_out)
{
    esper_fleet *fleet = esper_mem_alloc(sizeof(*fleet));

    if (fleet == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet");
    fleet->engine = desc->engine;
    fleet->n_envs = desc->n_envs;
    fleet->members = esper_mem_alloc((size_t)desc->n_envs * sizeof(*fleet->members));
    fleet->order = esper_mem_alloc((size_t)desc->n_envs * sizeof(*fleet->order));
    if (fleet->members == NULL || fleet->order == NULL) {
        esper_fleet_close(fleet);
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet of %d", desc->n_envs);
    }
    *fleet_out = fleet;
    return ESPER_OK;
}

/* The episode is over; its times are kept. */
static void close_member(fleet_member *member)
{
    esper_env_look look;

    if (member->env == NULL)
        return;
    look = esper_env_look_at(member->env);
    member->seconds_train += look.seconds_train;
    member->seconds_valid += look.seconds_valid;
    member->seconds_act += look.seconds_act;
    esper_env_close(member->env);
    member->env = NULL;
}

void esper_fleet_close(esper_fleet *fleet)
{
    if (fleet == NULL)
        return;
    for (int i = 0; fleet->members != NULL && i < fleet->n_envs; i++)
        close_member(&fleet->members[i]);
    esper_mem_free(fleet->order);
    esper_mem_free(fleet->members);
    esper_mem_free(fleet);
}

/* ------------------------------------------------------------------------------------------------ work of one */

static esper_status do_work(esper_fleet *fleet, fleet_member *member, int index, esper_backend_stream *stream)
{
    const esper_policy_view *view;
    esper_status status;

    if (fleet->work == FLEET_OPEN) {
        close_member(member);
        member->n_steps = 0;
        member->seconds = 0.0;
        member->accuracy_final = (double)NAN;
        status = esper_env_open(&(esper_env_desc){.engine = fleet->engine,
                                                  .stream = stream,
                                                  .seed = member->seed,
                                                  .inject = member->inject[0] != '\0' ? member->inject : NULL},
                                &member->env);
        member->inject[0] = '\0';
        return status;
    }
    assert(member->env != NULL);
    esper_env_move(member->env, stream);
    view = esper_env_look_at(member->env).view;
    if (view != NULL && (fleet->decisions != NULL || fleet->own)) {
        member->accuracy_final = view->accuracy_valid;
        member->n_steps++;
        ESPER_TRY(
            esper_env_decide(member->env, fleet->own ? NULL : &fleet->decisions[index], fleet->work == FLEET_FINISH));
    }
    return fleet->work == FLEET_ADVANCE ? esper_env_advance(member->env) : ESPER_OK;
}

static void run_member(void *context, int item, esper_backend_stream *stream)
{
    esper_fleet *fleet = context;
    int index = fleet->order[item];
    fleet_member *member = &fleet->members[index];
    double began = esper_clock_seconds(), took;

    assert(index >= 0 && index < fleet->n_begun);
    member->status = do_work(fleet, member, index, stream);
    if (member->status != ESPER_OK)
        snprintf(member->message, sizeof(member->message), "%s", esper_last_error());
    took = esper_clock_seconds() - began;
    member->seconds += took;
    if (fleet->work == FLEET_OPEN)
        member->seconds_open += took;
}

static esper_status work(esper_fleet *fleet, fleet_work what, const esper_decision *decisions, bool own)
{
    double began = esper_clock_seconds();

    fleet->work = what;
    fleet->decisions = decisions;
    fleet->own = own;
    /* whoever comes last is waited for: so the networks with most to compute come first. Nobody else can tell the order */
    for (int i = 0, at; i < fleet->n_begun; i++) {
        fleet_member *member = &fleet->members[i];

        member->flops = member->env != NULL ? esper_network_step_flops(esper_env_look_at(member->env).network) : 0.0;
        for (at = i; at > 0 && fleet->members[fleet->order[at - 1]].flops < member->flops; at--)
            fleet->order[at] = fleet->order[at - 1];
        fleet->order[at] = i;
    }
    esper_engine_each(fleet->engine, fleet->n_begun, run_member, fleet);
    fleet->wall += esper_clock_seconds() - began;
    for (int i = 0; i < fleet->n_begun; i++) /* the first that failed speaks */
        if (fleet->members[i].status != ESPER_OK)
            return ESPER_FAIL(fleet->members[i].status, "environment %d (seed %llu): %s", i,
                              (unsigned long long)fleet->members[i].seed, fleet->members[i].message);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ a round */

esper_status esper_fleet_begin(esper_fleet *fleet, uint64_t number)
{
    fleet->n_begun = fleet->n_envs;
    for (int i = 0; i < fleet->n_begun; i++)
        fleet->members[i].seed = esper_fleet_seed(fleet->engine->config.seed, number + (uint64_t)i);
    return work(fleet, FLEET_OPEN, NULL, false);
}

esper_status esper_fleet_begin_at(esper_fleet *fleet, const uint64_t *seeds, int n)
{
    if (n < 1 || n > fleet->n_envs)
        return ESPER_FAIL(ESPER_E_ARG, "%d seeds for a fleet of %d", n, fleet->n_envs);
    fleet->n_begun = n;
    for (int i = 0; i < n; i++)
        fleet->members[i].seed = seeds[i];
    return work(fleet, FLEET_OPEN, NULL, false);
}

esper_status esper_fleet_advance(esper_fleet *fleet, const esper_decision *decisions)
{
    return work(fleet, FLEET_ADVANCE, decisions, false);
}

esper_status esper_fleet_advance_own(esper_fleet *fleet)
{
    return work(fleet, FLEET_ADVANCE, NULL, true);
}

esper_status esper_fleet_finish(esper_fleet *fleet, const esper_decision *decisions)
{
    return work(fleet, FLEET_FINISH, decisions, decisions == NULL);
}

/* ------------------------------------------------------------------------------------------------ about it */

int esper_fleet_envs(const esper_fleet *fleet)
{
    return fleet->n_begun;
}

const esper_env *esper_fleet_env(const esper_fleet *fleet, int index)
{
    assert(index >= 0 && index < fleet->n_begun);
    return fleet->members[index].env;
}

void esper_fleet_inject(esper_fleet *fleet, int index, const char *faults)
{
    assert(index >= 0 && index < fleet->n_envs);
    snprintf(fleet->members[index].inject, sizeof(fleet->members[index].inject), "%s", faults);
}

esper_episode esper_fleet_episode(const esper_fleet *fleet, int index)
{
    const fleet_member *member = &fleet->members[index];
    esper_env_look look = esper_env_look_at(member->env);
    const esper_slots *slots = &look.network->slots;
    esper_episode episode = {
        .seed = member->seed,
        .total_reward = esper_growth_return(look.growth),
        .accuracy_final = member->accuracy_final,
        .accuracy_best = look.best_accuracy,
        .params = esper_network_params(look.network),
        .params_host = esper_net_count_params(&look.network->net, 0),
        .n_steps = member->n_steps,
        .n_rollbacks = (int)look.n_rollbacks_all,
        .stopped = look.stopped,
        .seconds = member->seconds,
    };

    for (int k = 0; k < slots->n; k++) {
        episode.n_germinated += slots->slot[k].n_seeds;
        episode.n_kept += slots->slot[k].stage == ESPER_STAGE_FOSSILIZED;
        episode.n_pruned += slots->slot[k].n_seeds - (esper_slot_is_active(&slots->slot[k]) ? 1 : 0);
    }
    return episode;
}

esper_fleet_times esper_fleet_times_of(const esper_fleet *fleet)
{
    esper_fleet_times times = {.wall = fleet->wall};

    for (int i = 0; i < fleet->n_envs; i++) {
        const fleet_member *member = &fleet->members[i];
        esper_env_look look = member->env != NULL ? esper_env_look_at(member->env) : (esper_env_look){0};

        times.open += member->seconds_open;
        times.train += member->seconds_train + look.seconds_train;
        times.valid += member->seconds_valid + look.seconds_valid;
        times.act += member->seconds_act + look.seconds_act;
    }
    return times;
}
