/* Internal. What the files of the PPO learner share. */
#ifndef ESPER_POLICY_PPO_INTERNAL_H
#define ESPER_POLICY_PPO_INTERNAL_H

#include <assert.h>
#include <math.h>

#include "nn/optim.h"
#include "policy/masked.h"
#include "policy/ppo.h"

enum { ESPER_PPO_BLOCKS = 40 };

#define PPO_UNKNOWN ((double)NAN) /* not measured */

/* Steps gathered from the network's outputs: of a whole rollout, or of a minibatch. (n, n_heads) or (n). */
typedef struct ppo_steps {
    size_t    n;
    double   *log_prob, *old_log_prob, *entropy, *open_entropy;
    double   *advantage, *value, *target, *q;
    uint32_t *asked, *available;
    uint8_t  *forced;
    size_t   *entry; /* in the rollout */
    size_t   *row; /* in the network's memory: sample * T + t */
} ppo_steps;

struct esper_ppo {
    esper_ppo_desc    desc;
    esper_policy_net *net;
    esper_optim      *optim;
    const esper_slab *slab; /* what the optimiser's list of one points to */
    float            *grads; /* a copy of all gradients, as they lie in the slab */
    void             *blocks[ESPER_PPO_BLOCKS]; /* all other memory */
    int               n_blocks;

    /* state: what the next update depends on, besides weights and moments */
    uint64_t       n_calls, n_performed, n_failures, n_skipped, n_passes;
    esper_detector detector;

    /* during an update */
    bool          drilled;
    int           n_times;  /* chunks that an environment's steps are cut into */
    float        *start_h, *start_c; /* (n_times + 1, environments, layers * H) memory before each chunk, and at the end */
    int          *order;    /* (n_times * envs) chunks that have steps, in the order of the epoch; number = time * envs + env */
    int           n_order;
    size_t       *index_of; /* (steps of the rollout) where `whole` has it */
    double       *advantage; /* (steps of the rollout) normalised */
    ppo_steps     whole, part;
    esper_masked *masked, *open; /* (steps of a minibatch, heads) */
    double       *d_log_prob, *d_entropy, *d_open_entropy, *d_value, *d_q, *d_contributions; /* of a minibatch */
    float        *seen, *measured; /* (steps of a minibatch, n_contributions) */
    uint8_t      *counted;
    double        sum_norm;
};

/* ------------------------------------------------------------------------------------------------ entries and chunks */

/* A step of an environment is an entry of the batch's arrays. */
static inline size_t ppo_entry_at(const esper_ppo_batch *b, int env, int step)
{
    assert(env >= 0 && env < b->n_envs && step >= 0 && step < b->n_steps);
    return (size_t)env * (size_t)b->n_steps + (size_t)step;
}

/* A chunk: some steps of an environment. */
typedef struct ppo_chunk {
    int time, env; /* number of the chunk in its environment */
    int first, n;  /* steps; n 0 = the environment ended before */
} ppo_chunk;

static inline ppo_chunk ppo_chunk_at(const esper_ppo *p, const esper_ppo_batch *b, int time, int env)
{
    ppo_chunk c = {.time = time, .env = env, .first = time * p->desc.chunk_steps};
    int left = b->n_stored[env] - c.first;

    assert(time >= 0 && time < p->n_times && env >= 0 && env < b->n_envs && c.first < b->n_steps);
    c.n = left < 0 ? 0 : left < p->desc.chunk_steps ? left : p->desc.chunk_steps;
    return c;
}

/* Where the memory before an environment's chunk is kept; time n_times is the end. */
static inline size_t ppo_state_at(const esper_ppo *p, int time, int env)
{
    assert(time >= 0 && time <= p->n_times && env >= 0 && env < p->desc.n_envs);
    return ((size_t)time * (size_t)p->desc.n_envs + (size_t)env) * (size_t)(p->desc.net.layers * p->desc.net.hidden);
}

/* How many chunks the steps of an environment make. */
static inline int ppo_n_times(const esper_ppo *p, const esper_ppo_batch *b)
{
    return (b->n_steps + p->desc.chunk_steps - 1) / p->desc.chunk_steps;
}

static inline bool ppo_all_finite(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------ the batch: ppo_batch.c */

/* E_ARG: it does not fit, or a stored choice was not open. */
esper_status ppo_check_batch(const esper_ppo *p, const esper_ppo_batch *b);
/* Sets the bits of what is not finite in the steps that count. */
uint32_t ppo_scan_batch(const esper_ppo *p, const esper_ppo_batch *b);
/* Over all valid steps, forced ones too: less the mean, by the deviation. */
void ppo_normalise_advantages(esper_ppo *p, const esper_ppo_batch *b);
/* 1 - Var(R - v) / Var(R). */
double ppo_explained_variance(const esper_ppo_batch *b);

/* ------------------------------------------------------------------------------------------------ passes: ppo_pass.c */

/* A chunk as one sample of the network. Steps that are not there read as zeros. */
void ppo_load_chunk(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, int sample,
                    const ppo_chunk *c);
/* A head's logits of a row, in the order of its choices, once those it depends on are chosen; maybe in `room`. */
const float *ppo_logits(const esper_policy_net_desc *d, const esper_policy_io *io, size_t row, int head,
                        const int32_t *chosen, float room[ESPER_MASKED_MAX]);
/* Adds a step; masked and open are (heads) to be filled. */
esper_status ppo_read_step(const esper_ppo *p, const esper_ppo_batch *b, const esper_policy_io *io, ppo_steps *s,
                           size_t row, size_t entry, esper_masked *masked, esper_masked *open, esper_ppo_report *r);
/* The steps as losses want them. */
esper_ppo_terms ppo_terms_of(const esper_ppo *p, const ppo_steps *s);
/* All steps under the weights of now, memory carried from chunk to chunk. */
esper_status ppo_evaluate(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r);
/* The reference pass: what the policy said before the update, for ratios and for the report. */
esper_status ppo_refer(esper_ppo *p, const esper_ppo_batch *b, esper_ppo_report *r);

/* ------------------------------------------------------------------------------------------------ minibatches: ppo_minibatch.c */

/* Chunks with steps in them, in an order that epoch and update give. */
void ppo_shuffle(esper_ppo *p, const esper_ppo_batch *b, int epoch);
/* The weights of the losses in this update. */
esper_ppo_weights ppo_weights_now(const esper_ppo *p);
/* One minibatch: n chunks of the order. */
esper_status ppo_learn(esper_ppo *p, const esper_ppo_batch *b, const esper_ppo_weights *w, int first, int n,
                       esper_ppo_report *r);

#endif
