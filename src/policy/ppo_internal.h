/* Internal. What the files of the PPO learner share. */
#ifndef ESPER_POLICY_PPO_INTERNAL_H
#define ESPER_POLICY_PPO_INTERNAL_H

#include "nn/optim.h"
#include "policy/masked.h"
#include "policy/ppo.h"

enum { ESPER_PPO_BLOCKS = 40 };

/* Steps gathered from the network's outputs: of a whole rollout, or of a minibatch. (n, n_heads) or (n). */
typedef struct ppo_steps {
    size_t    n;
    double   *log_prob, *old_log_prob, *entropy, *open_entropy;
    double   *advantage, *value, *old_value, *target, *q;
    uint32_t *asked, *available;
    uint8_t  *forced;
    size_t   *entry; /* in the rollout */
    size_t   *place; /* in the network's memory: sample * T + t */
} ppo_steps;

struct esper_ppo {
    esper_ppo_desc    desc;
    esper_policy_net *net;
    esper_optim      *optim;
    const esper_slab *slab; /* what the optimiser's list of one points to */
    int              *group; /* (tensors) head of a parameter; n_heads = value, n_heads + 1 = q, -1 = shared */
    float            *grads; /* a copy of all gradients, as they lie in the slab */
    void             *blocks[ESPER_PPO_BLOCKS]; /* all other memory */
    int               n_blocks;

    /* state: what the next update depends on, besides weights and moments */
    uint64_t       n_calls, n_performed, n_failures, n_skipped, n_passes;
    esper_detector detector;

    /* during an update */
    bool          drilled;
    int           n_times;  /* chunks that a lane's steps are cut into */
    float        *start_h, *start_c; /* (n_times + 1, lanes, layers * H) memory before each chunk, and at the end */
    int          *order;    /* (n_times * lanes) chunks that have steps, in the epoch's order; number = time * lanes + lane */
    int           n_order;
    size_t       *index_of; /* (steps of the rollout) where `whole` has it */
    double       *advantage; /* (steps of the rollout) normalised */
    ppo_steps     whole, part;
    esper_masked *masked, *open; /* (steps of a minibatch, heads) */
    double       *d_log_prob, *d_entropy, *d_open_entropy, *d_value, *d_q, *d_contributions; /* of a minibatch */
    float        *seen, *measured; /* (steps of a minibatch, n_contributions) */
    uint8_t      *counted;
    double        sum_head_norm[ESPER_POLICY_MAX_HEADS + 2], sum_norm;
};

#endif
