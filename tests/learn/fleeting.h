/* Internal to the tests. Fleets of tiny networks that grow, and what is compared of their episodes. */
#ifndef ESPER_TESTS_LEARN_FLEETING_H
#define ESPER_TESTS_LEARN_FLEETING_H

#include <inttypes.h>
#include <math.h>
#include <xxhash.h>

#include "engine/helpers.h"
#include "learn/learner.h"

enum { MAX_ENVS = 8, EPOCHS = 6 };

/* Episodes of six decisions, five steps of a millisecond between them; gates that ask for safety alone. */
#define FLEETING                                                                                            \
    "threads = 1\nbatch = 8\nchannels = 4\nblocks = 2\nmax_steps = 5\nepochs = 6\ngates = permissive\n"   \
    "snapshot_every = 3\npolicy = random\nenvs = 4\npolicy_width = 8\nppo_chunk = 4\nppo_batch = 4\n"

/* On top of it under a sanitizer, where convolutions take most of the time. */
#define NARROW (is_brief() ? "channels = 2\n" : "")

typedef struct stage {
    esper_config   config;
    esper_dataset *data;
    esper_engine  *engine;
    esper_fleet   *fleet;
} stage;

static inline void stage_open_seeds(stage *s, const char *more, int n_envs, int n_threads, int n_seeds)
{
    esper_dataset_desc data;

    memset(s, 0, sizeof(*s));
    s->config = config_of("synth", FLEETING, NARROW);
    set_keys(&s->config, more);
    s->config.threads = n_threads;
    data = esper_task_data(task_named("synth"), &s->config);
    check_good(esper_dataset_open(&data, &s->data));
    check_good(esper_single_engine(task_named("synth"), &s->config, ESPER_USE_GROW, s->data, 1, &s->engine));
    check_good(
        esper_fleet_open(&(esper_fleet_desc){.engine = s->engine, .n_envs = n_envs, .n_seeds = n_seeds}, &s->fleet));
}

static inline void stage_open(stage *s, const char *more, int n_envs, int n_threads)
{
    stage_open_seeds(s, more, n_envs, n_threads, 0);
}

static inline void stage_close(stage *s)
{
    esper_fleet_close(s->fleet);
    esper_engine_close(s->engine);
    esper_dataset_close(s->data);
}

static inline esper_env_look look_at(const stage *s, int env)
{
    return esper_env_look_at(esper_fleet_env(s->fleet, env));
}

/* An episode, and the weights, moments and norm buffers that it ended with. */
typedef struct outcome {
    esper_episode episode;
    uint64_t      weights;
} outcome;

static inline outcome outcome_of(const stage *s, int env)
{
    return (outcome){.episode = esper_fleet_episode(s->fleet, env),
                     .weights = slab_hash(&look_at(s, env).network->slab, 0)};
}

static inline bool same_real(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

/* The same bits in everything but the time it took. */
static inline void check_same_outcome(const outcome *a, const outcome *b, const char *what)
{
    const esper_episode *x = &a->episode, *y = &b->episode;

    if (a->weights != b->weights)
        fail_msg("%s: weights %016" PRIx64 " and %016" PRIx64, what, a->weights, b->weights);
    if (x->seed != y->seed || x->params != y->params || x->params_host != y->params_host ||
        x->n_germinated != y->n_germinated || x->n_kept != y->n_kept || x->n_pruned != y->n_pruned ||
        x->n_steps != y->n_steps || x->n_rollbacks != y->n_rollbacks || x->stopped != y->stopped)
        fail_msg("%s: seed %" PRIu64 " and %" PRIu64 ", %" PRId64 " and %" PRId64
                 " parameters, %d and %d germinated, %d and %d steps, %d and %d rollbacks",
                 what, x->seed, y->seed, x->params, y->params, x->n_germinated, y->n_germinated, x->n_steps, y->n_steps,
                 x->n_rollbacks, y->n_rollbacks);
    if (!same_real(x->total_reward, y->total_reward) || !same_real(x->accuracy_final, y->accuracy_final) ||
        !same_real(x->accuracy_best, y->accuracy_best))
        fail_msg("%s: return %.17g and %.17g, accuracy %.17g and %.17g", what, x->total_reward, y->total_reward,
                 x->accuracy_final, y->accuracy_final);
}

/* Episodes whose environments decide for themselves, from these seeds. */
static inline esper_status play_own(stage *s, const uint64_t *seeds, int n)
{
    ESPER_TRY(esper_fleet_begin_at(s->fleet, seeds, n));
    return esper_fleet_play(s->fleet, s->config.epochs, true, NULL, NULL);
}

/* ---- a learner beside a fleet ---- */

typedef struct school {
    stage          stage;
    esper_ranks    ranks;
    esper_learner *learner;
    uint64_t       n_decided[ESPER_N_SLOT_OPS]; /* by operation */
} school;

/* What its policy is for, as learn.c finds it out. */
static inline esper_learned_identity school_identity(stage *s)
{
    const char *ids[ESPER_MAX_SLOTS];
    esper_learned_identity identity;
    esper_env_look look;
    esper_env *env;

    check_good(esper_env_open(&(esper_env_desc){.engine = s->engine, .seed = s->config.seed}, &env));
    look = esper_env_look_at(env);
    for (int k = 0; k < look.network->slots.n; k++)
        ids[k] = look.network->slots.slot[k].id;
    esper_learned_identity_init(&identity);
    strcpy(identity.task, "synth");
    identity.topology = look.network->engine->host.topology;
    identity.max_epochs = s->config.epochs;
    identity.gates = s->config.gates;
    identity.width = identity.hidden = s->config.policy_width;
    check_good(esper_learned_identity_set_slots(&identity, ids, look.network->slots.n));
    esper_env_close(env);
    return identity;
}

/* On storage that does not move. */
static inline void school_open(school *c, const char *more, int n_envs, int n_threads)
{
    esper_learned_identity identity;

    memset(c, 0, sizeof(*c));
    stage_open(&c->stage, more, n_envs, n_threads);
    identity = school_identity(&c->stage);
    esper_ranks_init(&c->ranks, NULL);
    check_good(esper_learner_open(&(esper_learner_desc){.backend = c->stage.engine->backend,
                                                        .config = &c->stage.config,
                                                        .identity = &identity,
                                                        .ranks = &c->ranks,
                                                        .n_envs = n_envs,
                                                        .n_steps = c->stage.config.epochs},
                                  &c->learner));
}

static inline void school_close(school *c)
{
    esper_learner_close(c->learner);
    esper_ranks_fini(&c->ranks);
    stage_close(&c->stage);
}

/* The learner's decisions, counted. */
static inline esper_status school_decide(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    school *c = context;
    esper_fleet_mind mind = esper_learner_mind(c->learner);

    ESPER_TRY(mind.decide(mind.context, asks, n, stream));
    for (int i = 0; i < n; i++)
        c->n_decided[asks[i].decision.op]++;
    return ESPER_OK;
}

static inline esper_status school_settle(void *context, int env, const esper_env_look *look)
{
    esper_fleet_mind mind = esper_learner_mind(((school *)context)->learner);

    return mind.settle(mind.context, env, look);
}

/* A round of episodes from this number on, all decisions drawn; nothing is learned yet. */
static inline void school_play_begun(school *c, uint64_t number)
{
    esper_fleet_mind mind = {.context = c, .decide = school_decide, .settle = school_settle};

    esper_learner_begin(c->learner, number);
    check_good(esper_fleet_play(c->stage.fleet, c->stage.config.epochs, true, &mind, NULL));
}

static inline void school_play(school *c, uint64_t number)
{
    check_good(esper_fleet_begin(c->stage.fleet, number));
    school_play_begun(c, number);
}

#endif
