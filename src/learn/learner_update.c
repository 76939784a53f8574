/* The end of a round: ranks put together what they saw, credit is given, the policy is updated; and its file. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/init.h"
#include "learn/learner_internal.h"

/* ------------------------------------------------------------------------------------------------ ranks */

/* What is added up: moments, and counts of what went wrong. Whole numbers, so the order does not matter. */
typedef struct round_sums {
    esper_moments rewards;
    uint64_t      n_bad_observations, n_bad_rewards, n_rollbacks, n_rollbacks_lost;
} round_sums;

/* A rank's record: its sums, its moments of observations, the memory its environments ended with, its environments. */
typedef struct record_layout {
    size_t moments, ends, envs, bytes; /* where each begins, and the whole */
} record_layout;

static record_layout layout_of(const esper_learner *learner)
{
    record_layout layout = {.moments = sizeof(round_sums)};

    layout.ends = layout.moments + (size_t)learner->norm->n * sizeof(esper_moments);
    layout.envs = layout.ends + 2 * (size_t)learner->n_own * learner->width * sizeof(float);
    layout.bytes = (layout.envs + esper_rollout_envs_bytes(learner->rollout, learner->n_own) + 7) / 8 * 8;
    return layout;
}

/* Memory of a rank's environments, h and then c, to where it belongs among all. */
static void place_ends(esper_learner *learner, int first, const float *h, const float *c)
{
    size_t n = (size_t)learner->n_own * learner->width, all = (size_t)learner->n_envs * learner->width;

    assert(first >= 0 && first + learner->n_own <= learner->n_envs);
    memcpy(learner->ends + (size_t)first * learner->width, h, n * sizeof(*h));
    memcpy(learner->ends + all + (size_t)first * learner->width, c, n * sizeof(*c));
}

/* mine: room for a record; all: for those of all ranks. */
static esper_status exchange(esper_learner *learner, const record_layout *layout, char *mine, char *all,
                             round_sums *sums)
{
    const esper_ranks *ranks = learner->ranks;
    int own = learner->n_own;
    size_t n = (size_t)own * learner->width;

    memcpy(mine, sums, sizeof(*sums));
    memcpy(mine + layout->moments, learner->norm->round, layout->ends - layout->moments);
    memcpy(mine + layout->ends, learner->h, n * sizeof(float));
    memcpy(mine + layout->ends + n * sizeof(float), learner->c, n * sizeof(float));
    esper_rollout_copy_envs(learner->rollout, learner->first, own, mine + layout->envs);
    ESPER_TRY(esper_ranks_gather(ranks, mine, layout->bytes, all));
    for (int rank = 0; rank < ranks->size; rank++) {
        const char *record = all + layout->bytes * (size_t)rank;
        const float *ends = (const float *)(const void *)(record + layout->ends);
        round_sums theirs;

        if (rank == ranks->rank)
            continue;
        memcpy(&theirs, record, sizeof(theirs));
        esper_moments_merge(&sums->rewards, &theirs.rewards);
        sums->n_bad_observations += theirs.n_bad_observations;
        sums->n_bad_rewards += theirs.n_bad_rewards;
        sums->n_rollbacks += theirs.n_rollbacks;
        sums->n_rollbacks_lost += theirs.n_rollbacks_lost;
        esper_normaliser_merge(learner->norm, (const esper_moments *)(const void *)(record + layout->moments));
        place_ends(learner, rank * own, ends, ends + n);
        esper_rollout_take_envs(learner->rollout, rank * own, own, record + layout->envs);
    }
    return ESPER_OK;
}

/* All ranks have all steps afterwards, and go on with the same numbers: each computes the whole update, whose gradients are
 * those of all environments together. */
static esper_status put_together(esper_learner *learner, round_sums *sums)
{
    const esper_ranks *ranks = learner->ranks;
    record_layout layout = layout_of(learner);
    char *mine, *all;
    esper_status status = ESPER_OK;

    *sums = (round_sums){.rewards = learner->rewards,
                         .n_bad_observations = learner->n_bad_observations,
                         .n_bad_rewards = (uint64_t)learner->rollout->n_bad_rewards,
                         .n_rollbacks = (uint64_t)learner->rollout->n_rollbacks_asked,
                         .n_rollbacks_lost = (uint64_t)learner->rollout->n_rollbacks_lost};
    place_ends(learner, learner->first, learner->h, learner->c);
    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    mine = esper_mem_alloc(layout.bytes);
    all = esper_mem_alloc(layout.bytes * (size_t)ranks->size);
    if (mine == NULL || all == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "the steps of %d ranks", ranks->size);
    status = esper_ranks_settle(ranks, status);
    if (status == ESPER_OK && mine != NULL && all != NULL)
        status = exchange(learner, &layout, mine, all, sums);
    esper_mem_free(mine);
    esper_mem_free(all);
    return status;
}

/* ------------------------------------------------------------------------------------------------ credit */

/* Returns, and advantages over what the critic expected. Gives the mean size of the critic's errors. */
static double give_credit(esper_learner *learner, esper_moments *returns)
{
    esper_rollout *rollout = learner->rollout;
    double scale = esper_value_norm_scale(&learner->value_norm), sum = 0.0;
    esper_credit credit = {.gamma = learner->reward.gamma, .lambda = learner->lambda, .value_scale = scale};
    int n = 0;

    for (int env = 0; env < learner->n_envs; env++) {
        esper_rollout_end(rollout, env); /* its time is up, and nothing follows that could be worth anything */
        esper_rollout_credit(rollout, env, &credit);
        for (int t = 0; t < rollout->n_stored[env]; t++, n++) {
            size_t at = esper_rollout_at(rollout, env, t);

            esper_moments_add(returns, (double)rollout->returns[at]);
            learner->targets[at] = (float)((double)rollout->returns[at] / scale);
            sum += fabs((double)rollout->errors[at]);
        }
    }
    return n > 0 ? sum / n : (double)NAN;
}

static esper_status update(esper_learner *learner, double bellman_error, esper_ppo_report *report_out)
{
    const esper_rollout *r = learner->rollout;
    const float *ends = learner->ends;
    esper_state_health health = esper_state_health_of(ends, ends + (size_t)learner->n_envs * learner->width,
                                                      learner->n_envs, (int)learner->width);
    esper_ppo_batch batch = {
        .n_steps = r->shape.n_steps,
        .n_envs = r->shape.n_envs,
        .n_stored = r->n_stored,
        .obs = r->features,
        .ids = r->blueprints,
        .actions = r->actions,
        .masks = r->masks,
        .open = r->open,
        .asked = r->asked,
        .forced = r->forced,
        .reset = r->begins,
        .log_probs = r->log_probs,
        .rewards = r->rewards,
        .values = r->values,
        .advantages = r->advantages,
        .targets = learner->targets,
        .contributions = r->contributions,
    };

    if (learner->fault == ESPER_LEARNER_FAULT_OBSERVATION)
        r->features[0] = NAN;
    if (learner->fault == ESPER_LEARNER_FAULT_GRADIENT)
        esper_ppo_drill(learner->ppo);
    return esper_ppo_update(learner->ppo, &batch, bellman_error, &health, report_out);
}

/* Statistics move after the update, so that what was stored and what is learned from it go by the same ones. */
esper_status esper_learner_finish(esper_learner *learner, esper_learner_report *report_out)
{
    const esper_rollout *rollout = learner->rollout;
    esper_learner_report report = {0};
    esper_moments returns = {0};
    round_sums sums;

    ESPER_TRY(put_together(learner, &sums));
    ESPER_TRY(update(learner, give_credit(learner, &returns), &report.update));
    (void)esper_normaliser_update(learner->norm);
    esper_reward_norm_update(&learner->reward_norm, &sums.rewards);
    esper_value_norm_update(&learner->value_norm, &returns);
    learner->fault = ESPER_LEARNER_NO_FAULT;
    report.n_steps = esper_rollout_count_steps(rollout);
    report.n_bad_observations = sums.n_bad_observations;
    report.n_bad_rewards = sums.n_bad_rewards;
    report.n_rollbacks = (int)sums.n_rollbacks;
    report.n_rollbacks_lost = (int)sums.n_rollbacks_lost;
    for (int env = 0; env < rollout->shape.n_envs; env++)
        for (int t = 0; t < rollout->n_stored[env]; t++)
            for (size_t part = 0; part < ESPER_N_REWARD_PARTS; part++)
                report.parts[part] += rollout->parts[esper_rollout_at(rollout, env, t) * ESPER_N_REWARD_PARTS + part] /
                                      rollout->shape.n_envs;
    *report_out = report;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ its hash */

uint64_t esper_learner_hash(const esper_learner *learner)
{
    static const esper_family families[] = {ESPER_FAMILY_PARAM, ESPER_FAMILY_MOMENT1, ESPER_FAMILY_MOMENT2};
    esper_policy_net *policy = esper_ppo_net(learner->ppo);
    const esper_net *net = esper_policy_net_program(policy);
    const esper_normaliser *norm = learner->norm;
    uint64_t hash = 0, counts = esper_ppo_hash_counts(learner->ppo);

    for (int t = 0; t < net->n_tensors; t++)
        for (size_t f = 0; f < sizeof(families) / sizeof(families[0]) && net->tensors[t].role == ESPER_ROLE_PARAM; f++)
            hash = esper_weight_hash_read(hash, esper_policy_net_slab(policy), families[f], &net->tensors[t]);
    hash = XXH64(&counts, sizeof(counts), hash);
    hash = XXH64(norm->mean, (size_t)norm->n * sizeof(double), hash);
    hash = XXH64(norm->variance, (size_t)norm->n * sizeof(double), hash);
    hash = XXH64(norm->count, (size_t)norm->n * sizeof(double), hash);
    hash = XXH64(&learner->reward_norm, sizeof(learner->reward_norm), hash);
    return XXH64(&learner->value_norm, sizeof(learner->value_norm), hash);
}

/* ------------------------------------------------------------------------------------------------ its file */

#define STATISTICS "learn/statistics"

enum { N_STATISTICS = 6 };

esper_status esper_learner_save(esper_learner *learner, const esper_safetensors_note *notes, size_t n_notes,
                                const char *path)
{
    double values[N_STATISTICS] = {learner->reward_norm.count,   learner->reward_norm.mean,
                                   learner->reward_norm.squares, learner->value_norm.mean,
                                   learner->value_norm.variance, learner->value_norm.count};
    esper_safetensors_tensor tensor = {
        .name = STATISTICS, .dtype = ESPER_SAFETENSORS_F64, .rank = 1, .shape = {N_STATISTICS}, .data = values};
    esper_learned_extra extra = {.tensors = &tensor, .n_tensors = 1, .notes = notes, .n_notes = n_notes};

    return esper_learned_save(learner->ppo, &learner->identity, learner->norm, &extra, path);
}

esper_status esper_learner_resume(esper_learner *learner, const esper_learned_file *file)
{
    double values[N_STATISTICS];
    const uint64_t shape[] = {N_STATISTICS};

    ESPER_TRY(esper_safetensors_copy(esper_learned_content(file), STATISTICS, ESPER_SAFETENSORS_F64, 1, shape, values));
    for (int i = 0; i < N_STATISTICS; i++)
        if (!isfinite(values[i]))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s holds a number that is not finite",
                              esper_safetensors_name(esper_learned_content(file)), STATISTICS);
    ESPER_TRY(esper_learned_load(file, learner->ppo, learner->norm, true));
    learner->reward_norm = (esper_reward_norm){.count = values[0], .mean = values[1], .squares = values[2]};
    learner->value_norm = (esper_value_norm){.mean = values[3], .variance = values[4], .count = values[5]};
    return ESPER_OK;
}
