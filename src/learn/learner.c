/* From what a fleet shows to decisions, and from what they were worth to a better policy. */
#include "learn/learner.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "learn/learner_internal.h"

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status open_memory(esper_learner *learner)
{
    size_t own = (size_t)learner->n_own, all = (size_t)learner->n_envs;

    learner->width = (size_t)(learner->identity.hidden * learner->identity.layers);
    learner->envs = esper_mem_alloc(own * sizeof(*learner->envs));
    learner->obs = esper_mem_alloc(own * (size_t)learner->identity.n_features * sizeof(float));
    learner->ids = esper_mem_alloc(own * (size_t)learner->identity.n_slots * sizeof(*learner->ids));
    learner->h = esper_mem_alloc(own * learner->width * sizeof(float));
    learner->c = esper_mem_alloc(own * learner->width * sizeof(float));
    learner->rows = esper_mem_alloc(own * (size_t)learner->identity.n_features * sizeof(float));
    learner->rows_ids = esper_mem_alloc(own * (size_t)learner->identity.n_slots * sizeof(*learner->ids));
    learner->rows_h = esper_mem_alloc(own * learner->width * sizeof(float));
    learner->rows_c = esper_mem_alloc(own * learner->width * sizeof(float));
    learner->targets = esper_mem_alloc(all * (size_t)learner->n_steps * sizeof(float));
    learner->ends = esper_mem_alloc(2 * all * learner->width * sizeof(float));
    if (learner->envs == NULL || learner->obs == NULL || learner->ids == NULL || learner->h == NULL ||
        learner->c == NULL || learner->rows == NULL || learner->rows_ids == NULL || learner->rows_h == NULL ||
        learner->rows_c == NULL || learner->targets == NULL || learner->ends == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a learner with %d environments", learner->n_own);
    return ESPER_OK;
}

static esper_status open_parts(esper_learner *learner, const esper_learner_desc *desc)
{
    const esper_config *config = desc->config;
    int ranks = desc->ranks->size;
    esper_rollout_shape shape = {.n_envs = desc->n_envs,
                                 .n_steps = desc->n_steps,
                                 .n_slots = desc->identity->n_slots,
                                 .n_features = desc->identity->n_features};
    esper_ppo_desc ppo;

    if (desc->n_envs % ranks != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%d environments cannot be spread evenly over %d ranks: set envs to %d",
                          desc->n_envs, ranks, (desc->n_envs + ranks - 1) / ranks * ranks);
    if (config->policy_width % 8 != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "policy_width is %d: it has to be a multiple of 8", config->policy_width);
    learner->n_own = desc->n_envs / ranks;
    learner->first = learner->n_own * desc->ranks->rank;
    esper_learned_ppo(desc->identity, &ppo);
    ppo.n_envs = desc->n_envs;
    ppo.max_steps = desc->n_steps;
    ppo.chunk_steps = config->ppo_chunk < desc->n_steps ? config->ppo_chunk : desc->n_steps;
    ppo.batch_chunks = config->ppo_batch;
    ppo.epochs = config->ppo_epochs;
    ppo.lr = config->ppo_lr;
    ppo.target_kl = config->ppo_kl;
    ppo.weights.clip = config->ppo_clip;
    ppo.weights.entropy = config->ppo_entropy_end;
    ppo.entropy_start = config->ppo_entropy;
    ppo.entropy_updates = ppo.total_updates = config->rounds;
    for (int head = 0; head < ESPER_N_HEADS; head++)
        ppo.floors[head] *= config->ppo_floor;
    ppo.seed = config->seed;
    ESPER_TRY(esper_growth_reward_config(config, &learner->reward));
    ESPER_TRY(esper_ppo_open(desc->backend, &ppo, &learner->ppo));
    ESPER_TRY(esper_learned_normaliser(0.0, &learner->norm));
    ESPER_TRY(esper_rollout_open(&shape, &learner->rollout));
    return open_memory(learner);
}

esper_status esper_learner_open(const esper_learner_desc *desc, esper_learner **learner_out)
{
    esper_learner *learner = esper_mem_alloc(sizeof(*learner));
    esper_status status;

    if (learner == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "learner");
    learner->identity = *desc->identity;
    learner->ranks = desc->ranks;
    learner->n_envs = desc->n_envs;
    learner->n_steps = desc->n_steps;
    learner->seed = desc->config->seed;
    learner->lambda = desc->config->ppo_lambda;
    esper_reward_norm_init(&learner->reward_norm);
    esper_value_norm_init(&learner->value_norm);
    status = open_parts(learner, desc);
    if (status != ESPER_OK) {
        esper_learner_close(learner);
        return status;
    }
    *learner_out = learner;
    return ESPER_OK;
}

void esper_learner_close(esper_learner *learner)
{
    if (learner == NULL)
        return;
    esper_rollout_close(learner->rollout);
    esper_normaliser_close(learner->norm);
    esper_ppo_close(learner->ppo);
    esper_mem_free(learner->envs);
    esper_mem_free(learner->obs);
    esper_mem_free(learner->ids);
    esper_mem_free(learner->h);
    esper_mem_free(learner->c);
    esper_mem_free(learner->rows);
    esper_mem_free(learner->rows_ids);
    esper_mem_free(learner->rows_h);
    esper_mem_free(learner->rows_c);
    esper_mem_free(learner->targets);
    esper_mem_free(learner->ends);
    esper_mem_free(learner);
}

int esper_learner_first_env(const esper_learner *learner)
{
    return learner->first;
}

int esper_learner_own_envs(const esper_learner *learner)
{
    return learner->n_own;
}

esper_ppo *esper_learner_ppo(esper_learner *learner)
{
    return learner->ppo;
}

const esper_rollout *esper_learner_rollout(const esper_learner *learner)
{
    return learner->rollout;
}

/* ------------------------------------------------------------------------------------------------ acting */

static void forget(esper_learner *learner, int env)
{
    assert(env >= 0 && env < learner->n_own);
    memset(learner->h + (size_t)env * learner->width, 0, learner->width * sizeof(float));
    memset(learner->c + (size_t)env * learner->width, 0, learner->width * sizeof(float));
}

void esper_learner_begin(esper_learner *learner, uint64_t episode)
{
    esper_rollout_reset(learner->rollout);
    learner->episode = episode;
    learner->n_bad_observations = 0;
    learner->rewards = (esper_moments){0};
    for (int i = 0; i < learner->n_own; i++) {
        learner->envs[i] = (learner_env){0};
        esper_feature_memory_init(&learner->envs[i].memory);
        forget(learner, i);
    }
}

/* What an environment shows, and what of it is kept for the rollout. */
static esper_status look_at(esper_learner *learner, int i, const esper_policy_view *view)
{
    learner_env *env = &learner->envs[i];
    float *row = learner->obs + (size_t)i * (size_t)learner->identity.n_features;
    int n_bad = 0;

    env->waits = true;
    esper_feature_memory_begin(&env->memory, view);
    ESPER_TRY(esper_features_fill(view, &env->memory, learner->identity.n_slots, row,
                                  learner->ids + (size_t)i * (size_t)learner->identity.n_slots, &n_bad));
    learner->n_bad_observations += (uint64_t)n_bad;
    esper_normaliser_gather(learner->norm, row);
    esper_normaliser_apply(learner->norm, row, row);
    for (int s = 0; s < learner->identity.n_slots; s++)
        env->contributions[s] = s < view->n_slots && view->slots[s].measured ? (float)view->slots[s].contribution : NAN;
    return ESPER_OK;
}

/* From what the network says of a row. */
static esper_status choose(esper_learner *learner, int row, int i, const esper_policy_view *view,
                           esper_decision *decision_out)
{
    learner_env *env = &learner->envs[i];
    esper_rng_key key = {.seed = learner->seed,
                         .purpose = ESPER_RNG_POLICY,
                         .network = (uint32_t)(learner->episode + (uint64_t)(learner->first + i)) & 0xffffff,
                         .step = (uint32_t)env->n_decided++};
    esper_action_mask mask;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    ESPER_TRY(esper_action_mask_build(view, &mask));
    ESPER_TRY(esper_learned_choose(learner->ppo, row, &mask, &rng, &env->choice));
    esper_action_decide(&env->choice.action, decision_out);
    decision_out->confidence = env->choice.probability;
    esper_decision_because(decision_out, ESPER_REASON_LEARNED, "p = %.2f, value %.2f", env->choice.probability,
                           (double)env->choice.value * esper_value_norm_scale(&learner->value_norm));
    env->effective_op = esper_action_effective_op(view, decision_out);
    esper_feature_memory_step(&env->memory, view, decision_out->op, true);
    return ESPER_OK;
}

/* What an environment knows to its row, or what it remembers now back from there. */
static void move_memory(esper_learner *learner, int row, int i, bool back)
{
    size_t bytes = learner->width * sizeof(float);
    float *h = learner->h + (size_t)i * learner->width, *row_h = learner->rows_h + (size_t)row * learner->width;
    float *c = learner->c + (size_t)i * learner->width, *row_c = learner->rows_c + (size_t)row * learner->width;

    memcpy(back ? h : row_h, back ? row_h : h, bytes);
    memcpy(back ? c : row_c, back ? row_c : c, bytes);
}

/* The network runs once for all: a row each, which has the same bits whoever stands beside it. */
static esper_status decide(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    esper_learner *learner = context;
    size_t n_features = (size_t)learner->identity.n_features, n_ids = (size_t)learner->identity.n_slots;
    esper_ppo_step step = {.stream = stream,
                           .n_envs = n,
                           .obs = learner->rows,
                           .ids = learner->rows_ids,
                           .h = learner->rows_h,
                           .c = learner->rows_c};

    assert(n >= 1 && n <= learner->n_own);
    for (int row = 0; row < n; row++) {
        size_t i = (size_t)asks[row].env;

        assert(asks[row].env >= 0 && asks[row].env < learner->n_own);
        ESPER_TRY(look_at(learner, asks[row].env, asks[row].view));
        memcpy(learner->rows + (size_t)row * n_features, learner->obs + i * n_features, n_features * sizeof(float));
        memcpy(learner->rows_ids + (size_t)row * n_ids, learner->ids + i * n_ids, n_ids * sizeof(int32_t));
        move_memory(learner, row, asks[row].env, false);
    }
    ESPER_TRY(esper_ppo_act(learner->ppo, &step));
    for (int row = 0; row < n; row++) {
        move_memory(learner, row, asks[row].env, true);
        ESPER_TRY(choose(learner, row, asks[row].env, asks[row].view, &asks[row].decision));
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ what it was worth */

static esper_status store(esper_learner *learner, int i, const esper_growth *growth)
{
    const esper_reward *reward = esper_growth_reward(growth);
    const learner_env *env = &learner->envs[i];
    bool spoiled = learner->fault == ESPER_LEARNER_FAULT_REWARD && learner->first + i == 0;
    double worth = spoiled ? (double)NAN : reward->total;
    esper_rollout_step step = {
        .features = learner->obs + (size_t)i * (size_t)learner->identity.n_features,
        .blueprints = learner->ids + (size_t)i * (size_t)learner->identity.n_slots,
        .action = env->choice.action,
        .value = env->choice.value,
        .paid = reward,
        .effective_op = env->effective_op,
        .accepted = esper_growth_look_at(growth).accepted,
        .forced = env->choice.forced,
        .contributions = env->contributions,
    };

    assert(env->waits);
    memcpy(step.masks, env->choice.masks, sizeof(step.masks));
    memcpy(step.open, env->choice.open, sizeof(step.open));
    memcpy(step.log_probs, env->choice.log_probs, sizeof(step.log_probs));
    step.reward = isfinite(worth) ? esper_reward_norm_apply(&learner->reward_norm, worth) : worth;
    esper_moments_add(&learner->rewards, worth);
    return esper_rollout_add(learner->rollout, learner->first + i, &step);
}

/* An environment has trained on, after a decision or for the first time. */
static esper_status settle(void *context, int i, const esper_env_look *look)
{
    esper_learner *learner = context;
    learner_env *env = &learner->envs[i];

    if (env->waits)
        ESPER_TRY(store(learner, i, look->growth));
    env->waits = false;
    if ((look->n_rollbacks == 0 && !look->stopped) || env->ended)
        return ESPER_OK; /* to be stopped where there is no way back is no better than to go back */
    env->ended = look->stopped;
    (void)esper_rollout_rollback(learner->rollout, learner->first + i, ESPER_GROWTH_PENALTY);
    forget(learner, i);
    return ESPER_OK;
}

esper_fleet_mind esper_learner_mind(esper_learner *learner)
{
    return (esper_fleet_mind){.context = learner, .decide = decide, .settle = settle};
}

void esper_learner_drill(esper_learner *learner, esper_learner_fault fault)
{
    learner->fault = fault;
}
