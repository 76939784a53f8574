/* Environments in lock step. */
#include "learn/fleet.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

/* What one lane is to do, and what came of it. */
typedef struct fleet_lane {
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
} fleet_lane;

typedef enum fleet_work { FLEET_OPEN, FLEET_ADVANCE, FLEET_FINISH } fleet_work;

struct esper_fleet {
    esper_engine       *engine;
    int                 n_lanes, n_begun;
    fleet_lane         *lanes; /* (n_lanes) */
    int                *order; /* (n_lanes) lanes, the ones with most to compute first */
    fleet_work          work;
    const esper_decision *decisions; /* (lanes) of the work at hand */
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
    fleet->n_lanes = desc->n_lanes;
    fleet->lanes = esper_mem_alloc((size_t)desc->n_lanes * sizeof(*fleet->lanes));
    fleet->order = esper_mem_alloc((size_t)desc->n_lanes * sizeof(*fleet->order));
    if (fleet->lanes == NULL || fleet->order == NULL) {
        esper_fleet_close(fleet);
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet of %d", desc->n_lanes);
    }
    *fleet_out = fleet;
    return ESPER_OK;
}

/* The episode is over; its times are kept. */
static void close_lane(fleet_lane *lane)
{
    esper_env_look look;

    if (lane->env == NULL)
        return;
    look = esper_env_look_at(lane->env);
    lane->seconds_train += look.seconds_train;
    lane->seconds_valid += look.seconds_valid;
    lane->seconds_act += look.seconds_act;
    esper_env_close(lane->env);
    lane->env = NULL;
}

void esper_fleet_close(esper_fleet *fleet)
{
    if (fleet == NULL)
        return;
    for (int i = 0; fleet->lanes != NULL && i < fleet->n_lanes; i++)
        close_lane(&fleet->lanes[i]);
    esper_mem_free(fleet->order);
    esper_mem_free(fleet->lanes);
    esper_mem_free(fleet);
}

/* ------------------------------------------------------------------------------------------------ work of a lane */

static esper_status open_lane(esper_fleet *fleet, fleet_lane *lane, esper_backend_stream *stream)
{
    esper_env_desc desc = {.engine = fleet->engine,
                           .stream = stream,
                           .seed = lane->seed,
                           .inject = lane->inject[0] != '\0' ? lane->inject : NULL};
    esper_status status;

    close_lane(lane);
    lane->n_steps = 0;
    lane->seconds = 0.0;
    lane->accuracy_final = (double)NAN;
    status = esper_env_open(&desc, &lane->env);
    lane->inject[0] = '\0';
    return status;
}

static esper_status decide(const esper_fleet *fleet, fleet_lane *lane, int index, bool last)
{
    esper_env_look look = esper_env_look_at(lane->env);

    if (look.view == NULL || (fleet->decisions == NULL && !fleet->own))
        return ESPER_OK;
    lane->accuracy_final = look.view->accuracy_valid;
    lane->n_steps++;
    return esper_env_decide(lane->env, fleet->own ? NULL : &fleet->decisions[index], last);
}

static esper_status do_work(esper_fleet *fleet, fleet_lane *lane, int index, esper_backend_stream *stream)
{
    if (fleet->work == FLEET_OPEN)
        return open_lane(fleet, lane, stream);
    esper_env_move(lane->env, stream);
    ESPER_TRY(decide(fleet, lane, index, fleet->work == FLEET_FINISH));
    return fleet->work == FLEET_ADVANCE ? esper_env_advance(lane->env) : ESPER_OK;
}

static void run_lane(void *context, int item, esper_backend_stream *stream)
{
    esper_fleet *fleet = context;
    int index = fleet->order[item];
    fleet_lane *lane = &fleet->lanes[index];
    double began = esper_clock_seconds(), took;

    lane->status = do_work(fleet, lane, index, stream);
    if (lane->status != ESPER_OK)
        snprintf(lane->message, sizeof(lane->message), "%s", esper_last_error());
    took = esper_clock_seconds() - began;
    lane->seconds += took;
    if (fleet->work == FLEET_OPEN)
        lane->seconds_open += took;
}

/* The first lane that failed speaks. */
static esper_status verdict(const esper_fleet *fleet)
{
    for (int i = 0; i < fleet->n_begun; i++)
        if (fleet->lanes[i].status != ESPER_OK)
            return ESPER_FAIL(fleet->lanes[i].status, "environment %d (seed %llu): %s", i,
                              (unsigned long long)fleet->lanes[i].seed, fleet->lanes[i].message);
    return ESPER_OK;
}

/* Whoever comes last is waited for: so the networks with most to compute come first. Nobody else can tell the order. */
static void sort_lanes(esper_fleet *fleet)
{
    for (int i = 0; i < fleet->n_begun; i++) {
        fleet_lane *lane = &fleet->lanes[i];
        int at = i;

        lane->flops = lane->env != NULL ? esper_network_step_flops(esper_env_look_at(lane->env).network) : 0.0;
        for (; at > 0 && fleet->lanes[fleet->order[at - 1]].flops < lane->flops; at--)
            fleet->order[at] = fleet->order[at - 1];
        fleet->order[at] = i;
    }
}

static esper_status work(esper_fleet *fleet, fleet_work what, const esper_decision *decisions, bool own)
{
    double began = esper_clock_seconds();

    fleet->work = what;
    fleet->decisions = decisions;
    fleet->own = own;
    sort_lanes(fleet);
    esper_engine_each(fleet->engine, fleet->n_begun, run_lane, fleet);
    fleet->wall += esper_clock_seconds() - began;
    return verdict(fleet);
}

/* ------------------------------------------------------------------------------------------------ a round */

esper_status esper_fleet_begin(esper_fleet *fleet, uint64_t number)
{
    fleet->n_begun = fleet->n_lanes;
    for (int i = 0; i < fleet->n_begun; i++)
        fleet->lanes[i].seed = esper_fleet_seed(fleet->engine->config.seed, number + (uint64_t)i);
    return work(fleet, FLEET_OPEN, NULL, false);
}

esper_status esper_fleet_begin_at(esper_fleet *fleet, const uint64_t *seeds, int n)
{
    if (n < 1 || n > fleet->n_lanes)
        return ESPER_FAIL(ESPER_E_ARG, "%d seeds for a fleet of %d", n, fleet->n_lanes);
    fleet->n_begun = n;
    for (int i = 0; i < n; i++)
        fleet->lanes[i].seed = seeds[i];
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

int esper_fleet_lanes(const esper_fleet *fleet)
{
    return fleet->n_begun;
}

const esper_env *esper_fleet_env(const esper_fleet *fleet, int lane)
{
    return fleet->lanes[lane].env;
}

void esper_fleet_inject(esper_fleet *fleet, int lane, const char *faults)
{
    snprintf(fleet->lanes[lane].inject, sizeof(fleet->lanes[lane].inject), "%s", faults);
}

static void count_seeds(const esper_slots *slots, esper_episode *episode)
{
    for (int k = 0; k < slots->n; k++) {
        episode->n_germinated += slots->slot[k].n_seeds;
        episode->n_kept += slots->slot[k].stage == ESPER_STAGE_FOSSILIZED;
        episode->n_pruned += slots->slot[k].n_seeds - (esper_slot_is_active(&slots->slot[k]) ? 1 : 0);
    }
}

esper_episode esper_fleet_episode(const esper_fleet *fleet, int index)
{
    const fleet_lane *lane = &fleet->lanes[index];
    esper_env_look look = esper_env_look_at(lane->env);
    esper_episode episode = {
        .seed = lane->seed,
        .total_reward = esper_growth_account_of(look.growth).total_reward,
        .accuracy_final = lane->accuracy_final,
        .accuracy_best = look.best_accuracy,
        .params = esper_network_params(look.network),
        .params_host = esper_net_count_params(&look.network->net, 0),
        .n_steps = lane->n_steps,
        .n_rollbacks = (int)look.n_rollbacks_all,
        .stopped = look.stopped,
        .seconds = lane->seconds,
    };

    count_seeds(&look.network->slots, &episode);
    return episode;
}

esper_fleet_times esper_fleet_times_of(const esper_fleet *fleet)
{
    esper_fleet_times times = {.wall = fleet->wall};

    for (int i = 0; i < fleet->n_lanes; i++) {
        const fleet_lane *lane = &fleet->lanes[i];

        times.open += lane->seconds_open;
        times.train += lane->seconds_train;
        times.valid += lane->seconds_valid;
        times.act += lane->seconds_act;
        if (lane->env != NULL) {
            esper_env_look look = esper_env_look_at(lane->env);

            times.train += look.seconds_train;
            times.valid += look.seconds_valid;
            times.act += look.seconds_act;
        }
    }
    return times;
}
