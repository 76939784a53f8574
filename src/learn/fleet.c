/* Environments and the threads that play them. */
#include "learn/fleet.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

/* One environment, and what came of it. */
typedef struct fleet_member {
    esper_env   *env;
    esper_engine *engine; /* of which it is a network */
    uint64_t     seed;
    bool         begun; /* it has trained to its first view */
    bool         taken; /* by a thread */
    int          n_left; /* steps to play */
    int          n_steps;
    double       flops; /* of a step of the network */
    double       accuracy_final;
    double       seconds_train, seconds_valid, seconds_act; /* of episodes behind it */
    double       seconds_open, seconds;
    esper_status status;
    char         inject[ESPER_CONFIG_TEXT_CHARS]; /* drills; "" = as the configuration says */
    char         message[512]; /* errors are kept by thread: this one's is carried over */
} fleet_member;

/* A thread's question, while it waits for the answer. */
typedef struct fleet_question {
    struct fleet_question *next;
    esper_fleet_ask        ask;
    bool                   answered;
    esper_status           status;
    char                   message[512];
} fleet_question;

struct esper_fleet {
    esper_engine    *engine;
    esper_engine  *(*engine_of)(void *context, uint64_t episode);
    void            *engine_context;
    const volatile sig_atomic_t *stop_within;
    int              n_envs, n_begun, n_seeds;
    esper_twin_book *twins; /* NULL: no two episodes have a seed in common */
    fleet_member    *members; /* (n_envs) */
    double           seconds_mind, wall;
    pthread_mutex_t  lock;      /* of who has taken which, and how far they are */
    pthread_mutex_t  mind_lock; /* one thread at a time has it decide, or tells it something */
    /* Who asks: */
    pthread_mutex_t  ask_lock;  /* of the next five */
    pthread_cond_t   answered;  /* some were, or a thread has left */
    fleet_question  *questions; /* not taken by anybody */
    int              n_asking, n_threads; /* threads that ask; that play */
    bool             deciding;  /* some are being answered */
    bool             gathers;   /* all are waited for */
    esper_fleet_ask *asks;      /* (n_envs) that are being answered */
    /* what is being done */
    esper_status (*step)(struct esper_fleet *fleet, int index, esper_backend_stream *stream);
    bool                        last, ended; /* ended: somebody failed, or wants to leave */
    const esper_fleet_mind     *mind;
    const esper_fleet_follower *follower;
    esper_fleet_item            item;
    void                       *item_context;
    pthread_t                   caller;
    atomic_int                  n_helped, n_taken; /* threads that help environments, and environments that have theirs, so far */
    int                         n_helpers;         /* that there are to be: as many as environments, or none */
    int                         n_steps, n_played; /* steps to play, of all together, and those done */
};

/* ------------------------------------------------------------------------------------------------ opening */

uint64_t esper_fleet_seed(uint64_t run_seed, uint64_t episode)
{
    uint64_t words[2] = {run_seed, episode};

    return XXH64(words, sizeof(words), 0) | (uint64_t)1 << 63;
}

uint64_t esper_fleet_seed_of(const esper_fleet *fleet, uint64_t episode)
{
    return esper_fleet_seed(fleet->engine->config.seed,
                            fleet->n_seeds > 0 ? episode % (uint64_t)fleet->n_seeds : episode);
}

esper_status esper_fleet_open(const esper_fleet_desc *desc, esper_fleet **fleet_out)
{
    esper_fleet *fleet = esper_mem_alloc(sizeof(*fleet));

    if (fleet == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet");
    fleet->engine = desc->engine;
    fleet->engine_of = desc->engine_of;
    fleet->engine_context = desc->context;
    fleet->stop_within = desc->stop;
    fleet->n_envs = desc->n_envs;
    fleet->n_seeds = desc->n_seeds;
    pthread_mutex_init(&fleet->lock, NULL);
    pthread_mutex_init(&fleet->mind_lock, NULL);
    pthread_mutex_init(&fleet->ask_lock, NULL);
    pthread_cond_init(&fleet->answered, NULL);
    fleet->gathers = esper_backend_is_behind(desc->engine->backend) &&
                     esper_backend_width(desc->engine->backend, desc->engine->pool) >= desc->n_envs;
    fleet->members = esper_mem_alloc((size_t)desc->n_envs * sizeof(*fleet->members));
    fleet->asks = esper_mem_alloc((size_t)desc->n_envs * sizeof(*fleet->asks));
    if (fleet->members == NULL || fleet->asks == NULL ||
        (fleet->n_seeds > 0 && esper_twin_book_open(&fleet->twins) != ESPER_OK)) {
        esper_fleet_close(fleet);
        return ESPER_FAIL(ESPER_E_NOMEM, "fleet of %d", desc->n_envs);
    }
    for (int i = 0; i < desc->n_envs; i++)
        fleet->members[i].engine = desc->engine;
    *fleet_out = fleet;
    return ESPER_OK;
}

/* The episode is over; its times are kept. It is closed on the stream of whoever does that: the one it was played on may be another
 * thread's by now. */
static void close_member(fleet_member *member, esper_backend_stream *stream)
{
    esper_env_look look;

    if (member->env == NULL)
        return;
    esper_env_move(member->env, stream);
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
        close_member(&fleet->members[i], NULL);
    pthread_cond_destroy(&fleet->answered);
    pthread_mutex_destroy(&fleet->ask_lock);
    pthread_mutex_destroy(&fleet->mind_lock);
    pthread_mutex_destroy(&fleet->lock);
    esper_twin_book_close(fleet->twins);
    esper_mem_free(fleet->asks);
    esper_mem_free(fleet->members);
    esper_mem_free(fleet);
}

/* ------------------------------------------------------------------------------------------------ steps of one */

static esper_status open_env(esper_fleet *fleet, int index, esper_backend_stream *stream)
{
    fleet_member *member = &fleet->members[index];
    double began = esper_clock_seconds();
    esper_status status;

    close_member(member, stream);
    member->begun = false;
    member->n_steps = 0;
    member->seconds = 0.0;
    member->accuracy_final = (double)NAN;
    status = esper_env_open(&(esper_env_desc){.engine = member->engine,
                                              .stream = stream,
                                              .seed = member->seed,
                                              .stop = fleet->stop_within,
                                              .twins = fleet->twins,
                                              .inject = member->inject[0] != '\0' ? member->inject : NULL},
                            &member->env);
    member->inject[0] = '\0';
    member->seconds_open += esper_clock_seconds() - began;
    return status;
}

/* NULL: what the policy of the configuration says. */
static esper_status carry_out(fleet_member *member, const esper_decision *decision, bool last)
{
    member->accuracy_final = esper_env_look_at(member->env).view->accuracy_valid;
    member->n_steps++;
    return esper_env_decide(member->env, decision, last);
}

/* Others may be computing while this one waits for its turn. */
static void lock_mind(esper_fleet *fleet)
{
    if (pthread_mutex_trylock(&fleet->mind_lock) == 0)
        return;
    esper_backend_stand_by(fleet->engine->backend, true);
    pthread_mutex_lock(&fleet->mind_lock);
    esper_backend_stand_by(fleet->engine->backend, false);
}

static int by_env(const void *a, const void *b)
{
    return ((const esper_fleet_ask *)a)->env - ((const esper_fleet_ask *)b)->env;
}

static esper_status decide_all(esper_fleet *fleet, int n, esper_backend_stream *stream)
{
    double began = esper_clock_seconds();
    esper_status status;

    qsort(fleet->asks, (size_t)n, sizeof(*fleet->asks), by_env);
    lock_mind(fleet);
    status = fleet->mind->decide(fleet->mind->context, fleet->asks, n, stream);
    fleet->seconds_mind += n * (esper_clock_seconds() - began);
    pthread_mutex_unlock(&fleet->mind_lock);
    return status;
}

static const esper_fleet_ask *find_ask(const esper_fleet *fleet, int n, int env)
{
    return bsearch(&(esper_fleet_ask){.env = env}, fleet->asks, (size_t)n, sizeof(*fleet->asks), by_env);
}

/* For all who ask now. All threads that ask stand by; those that are answered go on together, so that none is left behind in a
 * round of its own. The lock is held on the way in and out. */
static void answer(esper_fleet *fleet, esper_backend_stream *stream)
{
    fleet_question *questions = fleet->questions, *next;
    esper_status status;
    int n = 0;

    for (const fleet_question *it = questions; it != NULL; it = it->next)
        fleet->asks[n++] = it->ask;
    fleet->questions = NULL;
    fleet->deciding = true;
    pthread_mutex_unlock(&fleet->ask_lock);
    esper_backend_stand_by(fleet->engine->backend, false);
    status = decide_all(fleet, n, stream);
    pthread_mutex_lock(&fleet->ask_lock);
    fleet->deciding = false;
    fleet->n_asking -= n;
    for (int i = 1; i < n; i++)
        esper_backend_stand_by(fleet->engine->backend, false);
    for (fleet_question *it = questions; it != NULL; it = next) {
        next = it->next; /* whoever is answered is gone at once */
        it->ask = *find_ask(fleet, n, it->ask.env);
        it->status = status;
        if (status != ESPER_OK)
            snprintf(it->message, sizeof(it->message), "%s", esper_last_error());
        it->answered = true;
    }
    pthread_cond_broadcast(&fleet->answered);
}

static esper_status ask(esper_fleet *fleet, int index, const esper_policy_view *view, esper_backend_stream *stream,
                        esper_decision *decision_out)
{
    fleet_question mine = {.ask = {.env = index, .view = view}};

    pthread_mutex_lock(&fleet->ask_lock);
    mine.next = fleet->questions;
    fleet->questions = &mine;
    fleet->n_asking++;
    esper_backend_stand_by(fleet->engine->backend, true);
    while (!mine.answered) {
        bool all = !fleet->gathers || fleet->n_asking == fleet->n_threads;

        if (!fleet->deciding && all)
            answer(fleet, stream);
        else
            pthread_cond_wait(&fleet->answered, &fleet->ask_lock);
    }
    pthread_mutex_unlock(&fleet->ask_lock);
    if (mine.status != ESPER_OK)
        return ESPER_FAIL(mine.status, "%s", mine.message);
    *decision_out = mine.ask.decision;
    return ESPER_OK;
}

/* A thread comes to play, or leaves. */
static void count_thread(esper_fleet *fleet, int more)
{
    pthread_mutex_lock(&fleet->ask_lock);
    fleet->n_threads += more;
    pthread_cond_broadcast(&fleet->answered);
    pthread_mutex_unlock(&fleet->ask_lock);
}

static esper_status decide(esper_fleet *fleet, int index, const esper_policy_view *view, esper_backend_stream *stream,
                           bool last)
{
    fleet_member *member = &fleet->members[index];
    esper_decision decision;

    if (fleet->mind == NULL)
        return carry_out(member, NULL, last);
    ESPER_TRY(ask(fleet, index, view, stream, &decision));
    return carry_out(member, &decision, last);
}

static esper_status settle(esper_fleet *fleet, int index)
{
    esper_env_look look = esper_env_look_at(fleet->members[index].env);
    esper_status status;

    if (fleet->mind == NULL || fleet->mind->settle == NULL)
        return ESPER_OK;
    lock_mind(fleet);
    status = fleet->mind->settle(fleet->mind->context, index, &look);
    pthread_mutex_unlock(&fleet->mind_lock);
    return status;
}

/* Decisions that its episode has still room for. */
static int decisions_left(const esper_fleet *fleet, const fleet_member *member, int wanted)
{
    int left = member->engine->config.epochs - member->n_steps;

    return fleet->engine_of == NULL || wanted < left ? wanted : left;
}

/* A decision, where one is due, and the way to the next view, where there is one. */
static esper_status play_env(esper_fleet *fleet, int index, esper_backend_stream *stream)
{
    fleet_member *member = &fleet->members[index];
    const esper_policy_view *view = esper_env_look_at(member->env).view;
    bool last = fleet->engine_of != NULL ? view != NULL && decisions_left(fleet, member, 1 << 30) == 1
                                         : fleet->last && member->n_left == 1;

    assert(member->begun || view == NULL);
    esper_env_move(member->env, stream);
    if (view != NULL)
        ESPER_TRY(decide(fleet, index, view, stream, last));
    if (!last)
        ESPER_TRY(esper_env_advance(member->env));
    member->begun = true;
    return settle(fleet, index);
}

/* ------------------------------------------------------------------------------------------------ all of them */

/* The one that is furthest behind; of those, the one with most to compute, as whoever comes last is waited for. -1: none that is
 * not in somebody's hands. */
static int take_member(esper_fleet *fleet)
{
    int best = -1;

    pthread_mutex_lock(&fleet->lock);
    for (int i = 0; i < fleet->n_begun && !fleet->ended; i++) {
        const fleet_member *member = &fleet->members[i], *other = best < 0 ? NULL : &fleet->members[best];

        if (!member->taken && member->n_left > 0 &&
            (other == NULL || member->n_left > other->n_left ||
             (member->n_left == other->n_left && member->flops > other->flops)))
            best = i;
    }
    if (best >= 0)
        fleet->members[best].taken = true;
    pthread_mutex_unlock(&fleet->lock);
    return best;
}

/* Where each has a thread it keeps it, so that what is queued for an environment stays in one order. */
static int take_own(esper_fleet *fleet, int index)
{
    fleet_member *member = &fleet->members[index];

    pthread_mutex_lock(&fleet->lock);
    member->taken = !fleet->ended && member->n_left > 0;
    pthread_mutex_unlock(&fleet->lock);
    return member->taken ? index : -1;
}

static void put_back(esper_fleet *fleet, int index, esper_status status)
{
    const esper_fleet_follower *follower = fleet->follower;
    fleet_member *member = &fleet->members[index];
    double flops = member->env != NULL ? (double)esper_env_look_at(member->env).network->step_cost : 0.0;
    int n_played;

    member->status = status;
    if (status != ESPER_OK)
        snprintf(member->message, sizeof(member->message), "%s", esper_last_error());
    pthread_mutex_lock(&fleet->lock);
    assert(member->taken && member->n_left > 0);
    member->taken = false;
    member->n_left--;
    member->flops = flops;
    n_played = ++fleet->n_played;
    fleet->ended |= status != ESPER_OK || (follower != NULL && follower->stop != NULL && *follower->stop != 0);
    pthread_mutex_unlock(&fleet->lock);
    if (follower != NULL && follower->step != NULL && pthread_equal(pthread_self(), fleet->caller))
        follower->step(follower->context, (double)n_played / fleet->n_steps);
}

/* What each thread does. When all that is left is in others' hands it leaves, and helps them (tensor/cpu/backend_crew.h). */
static void play_members(void *context, int item, esper_backend_stream *stream)
{
    esper_fleet *fleet = context;
    int index, own;

    (void)item;
    if (!pthread_equal(pthread_self(), fleet->caller) && (index = fleet->n_helped++) < fleet->n_helpers) {
        esper_env_help(fleet->members[index].env, stream);
        return;
    }
    own = fleet->n_taken++;
    if (own >= fleet->n_begun) /* too few threads were there for all who were to help */
        return;
    count_thread(fleet, 1);
    while ((index = fleet->gathers ? take_own(fleet, own) : take_member(fleet)) >= 0) {
        double began = esper_clock_seconds();
        esper_status status = fleet->step(fleet, index, stream);

        fleet->members[index].seconds += esper_clock_seconds() - began;
        put_back(fleet, index, status);
    }
    if (fleet->n_helpers > 0)
        esper_env_dismiss_helper(fleet->members[own].env);
    count_thread(fleet, -1);
}

/* Where each environment has a thread, another one may train its twin beside it. */
static int count_helpers(esper_fleet *fleet, int n_threads)
{
    bool helped = fleet->gathers && fleet->step == play_env && n_threads >= 2 * fleet->n_begun;

    for (int i = 0; helped && i < fleet->n_begun; i++)
        helped = esper_env_has_twin(fleet->members[i].env);
    for (int i = 0; helped && i < fleet->n_begun; i++)
        esper_env_expect_helper(fleet->members[i].env);
    return helped ? fleet->n_begun : 0;
}

static esper_status work(esper_fleet *fleet)
{
    int n_threads = esper_backend_width(fleet->engine->backend, fleet->engine->pool);
    double began = esper_clock_seconds();

    fleet->ended = false;
    fleet->caller = pthread_self();
    fleet->n_steps = fleet->n_played = 0;
    for (int i = 0; i < fleet->n_begun; i++) {
        fleet->members[i].status = ESPER_OK;
        fleet->n_steps += fleet->members[i].n_left;
    }
    fleet->n_helped = fleet->n_taken = 0;
    fleet->n_helpers = count_helpers(fleet, n_threads);
    esper_engine_each(fleet->engine, fleet->n_helpers + (fleet->n_begun < n_threads ? fleet->n_begun : n_threads),
                      play_members, fleet);
    fleet->wall += esper_clock_seconds() - began;
    for (int i = 0; i < fleet->n_begun; i++) /* the first that failed speaks */
        if (fleet->members[i].status != ESPER_OK)
            return ESPER_FAIL(fleet->members[i].status, "environment %d (seed %llu): %s", i,
                              (unsigned long long)fleet->members[i].seed, fleet->members[i].message);
    return ESPER_OK;
}

static esper_status open_all(esper_fleet *fleet)
{
    for (int i = 0; i < fleet->n_begun; i++)
        fleet->members[i].n_left = 1;
    fleet->step = open_env;
    fleet->mind = NULL;
    fleet->follower = NULL;
    return work(fleet);
}

esper_status esper_fleet_begin(esper_fleet *fleet, uint64_t number)
{
    fleet->n_begun = fleet->n_envs;
    for (int i = 0; i < fleet->n_begun; i++) {
        uint64_t episode = number + (uint64_t)i;

        fleet->members[i].seed = esper_fleet_seed_of(fleet, episode);
        if (fleet->engine_of != NULL)
            fleet->members[i].engine = fleet->engine_of(fleet->engine_context, episode);
    }
    return open_all(fleet);
}

esper_status esper_fleet_begin_at(esper_fleet *fleet, const uint64_t *seeds, int n)
{
    if (n < 1 || n > fleet->n_envs)
        return ESPER_FAIL(ESPER_E_ARG, "%d seeds for a fleet of %d", n, fleet->n_envs);
    fleet->n_begun = n;
    for (int i = 0; i < n; i++)
        fleet->members[i].seed = seeds[i];
    return open_all(fleet);
}

esper_status esper_fleet_play(esper_fleet *fleet, int n_decisions, bool last, const esper_fleet_mind *mind,
                              const esper_fleet_follower *follower)
{
    for (int i = 0; i < fleet->n_begun; i++)
        fleet->members[i].n_left =
            decisions_left(fleet, &fleet->members[i], n_decisions) + (fleet->members[i].begun ? 0 : 1);
    fleet->step = play_env;
    fleet->last = last;
    fleet->mind = mind;
    fleet->follower = follower;
    return work(fleet);
}

static esper_status do_item(esper_fleet *fleet, int index, esper_backend_stream *stream)
{
    return fleet->item(fleet->item_context, index, stream);
}

esper_status esper_fleet_each(esper_fleet *fleet, const bool *which, esper_fleet_item item, void *context)
{
    fleet->n_begun = fleet->n_envs;
    for (int i = 0; i < fleet->n_begun; i++)
        fleet->members[i].n_left = which == NULL || which[i] ? 1 : 0;
    fleet->step = do_item;
    fleet->item = item;
    fleet->item_context = context;
    fleet->mind = NULL;
    fleet->follower = NULL;
    return work(fleet);
}

esper_status esper_fleet_renew(esper_fleet *fleet, int index, uint64_t seed, esper_backend_stream *stream)
{
    assert(index >= 0 && index < fleet->n_envs);
    fleet->members[index].seed = seed;
    return open_env(fleet, index, stream);
}

esper_status esper_fleet_move(esper_fleet *fleet, int index, const esper_decision *decision, bool last,
                              esper_backend_stream *stream)
{
    fleet_member *member = &fleet->members[index];

    assert(index >= 0 && index < fleet->n_envs && member->env != NULL);
    esper_env_move(member->env, stream);
    if (decision != NULL)
        ESPER_TRY(carry_out(member, decision, last));
    member->begun = true;
    return last ? ESPER_OK : esper_env_advance(member->env);
}

/* Decisions that somebody has made before. */
static esper_status look_up(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    (void)stream;
    for (int i = 0; i < n; i++)
        asks[i].decision = ((const esper_decision *)context)[asks[i].env];
    return ESPER_OK;
}

static esper_status play_list(esper_fleet *fleet, const esper_decision *decisions, bool last)
{
    esper_fleet_mind list = {.context = (void *)(uintptr_t)decisions, .decide = look_up};

    return esper_fleet_play(fleet, decisions != NULL ? 1 : 0, last, &list, NULL);
}

esper_status esper_fleet_advance(esper_fleet *fleet, const esper_decision *decisions)
{
    return play_list(fleet, decisions, false);
}

esper_status esper_fleet_finish(esper_fleet *fleet, const esper_decision *decisions)
{
    return play_list(fleet, decisions, true);
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
        .total_reward = esper_growth_account_of(look.growth).total_reward,
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
    esper_fleet_times times = {.mind = fleet->seconds_mind, .wall = fleet->wall};

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
