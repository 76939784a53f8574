/* Internal. The learner of a recurrent policy: PPO over minibatches of sequences.
 *
 *     rollout (T steps of some environments) -> reference pass: old log-probabilities and values, memory at each chunk's begin
 *     -> epochs: [how far the policy has moved: stop?] -> chunks in random order, some at a time: losses, gradients, a step
 *
 * Ratios are between passes over the same stored steps, so they are 1 at first; how far the acting network was from the
 * reference pass is reported. Every epoch begins with a pass over the whole rollout, which finds out how far the policy has
 * moved, and the memory with which each chunk begins under the weights of now. Gradients are cut at chunks.
 *
 * Nothing that is not finite reaches a weight: inputs are looked at before an update, losses before a backward pass and
 * gradients before a step. What fails is skipped and counted; the third failed update in a row is the last.
 * The same rollout gives the same bits at any number of threads. */
#ifndef ESPER_POLICY_PPO_H
#define ESPER_POLICY_PPO_H

#include "data/safetensors.h"
#include "policy/anomaly.h"
#include "policy/policy_net.h"
#include "policy/ppo_loss.h"

enum { ESPER_PPO_MAX_FAILURES = 3 };

typedef struct esper_ppo_desc {
    esper_policy_net_desc net;
    int      n_envs;     /* environments of a rollout, and that act at once */
    int      max_steps;   /* of a rollout */
    int      chunk_steps; /* of a sequence: gradients go back that far; at most max_steps */
    int      batch_chunks; /* sequences of a minibatch */
    int      epochs;
    double   lr, max_grad_norm;
    double   target_kl;   /* an epoch that begins with more than 1.5 times that is the end; 0 = no stop */
    double   floors[ESPER_POLICY_MAX_HEADS]; /* smallest probability of an open choice */
    esper_ppo_weights weights;    /* entropy at the end of its ramp; floor penalties without the run's scale */
    double   contribution_weight; /* of predicted contributions, reached over contribution_steps updates */
    double   contribution_steps;
    double entropy_start,
        entropy_updates; /* entropy weight at first, and updates to get to the given one; 0 = at once */
    double   total_updates;  /* of the whole run: what penalties scale with */
    double   collapsed[ESPER_POLICY_MAX_HEADS]; /* mean entropy below which a head has collapsed, for the detector */
    uint64_t seed;
} esper_ppo_desc;

/* Chunks of 16 steps, 8 a minibatch, 4 epochs, rate 3e-4, clip 0.2, norm 5, target 0.015, floors of 0.01, collapse below 0.1, all weights of
 * the heads 1; no net, environments or steps. */
void esper_ppo_desc_init(esper_ppo_desc *desc);

/* A rollout: environment after environment, each with room for n_steps: entry (env, t) is env * n_steps + t. */
typedef struct esper_ppo_batch {
    int             n_steps, n_envs;
    const int      *n_stored;  /* (E) steps that an environment has */
    const float    *obs;       /* (E,T,esper_policy_net_wide) as the network saw it */
    const int32_t  *ids;       /* (E,T,n_ids) -1 = the last row of the table */
    const int32_t  *actions;   /* (E,T,n_heads) */
    const uint64_t *masks;     /* (E,T,n_heads) open choices, one bit where a head was not asked */
    const uint64_t *open;      /* (E,T,n_heads) open had the head been asked; 0 = it could not be */
    const uint32_t *asked;     /* (E,T) bits 1 << head, of the operation that came of it */
    const uint8_t  *forced;    /* (E,T) there was nothing to choose */
    const uint8_t  *reset;     /* (E,T) memory was empty before the step */
    const float    *log_probs; /* (E,T,n_heads) of the rollout */
    const float    *rewards;   /* (E,T) looked at, not used */
    const float    *values;    /* (E,T) of the rollout, in the scale of the targets */
    const float    *advantages, *targets; /* (E,T) */
    const float    *contributions;        /* (E,T,n_contributions) NAN = not measured */
} esper_ppo_batch;

/* What failed to be finite. */
#define ESPER_PPO_SOURCE_LIST(X)         \
    X(OBSERVATION, "observation")        \
    X(REWARD, "reward")                  \
    X(LOG_PROB, "stored log-probability") \
    X(RETURN, "return")                  \
    X(LOGITS, "logits")                  \
    X(VALUE, "value")                    \
    X(LOSS, "loss")                      \
    X(GRADIENT, "gradient")

typedef enum esper_ppo_source {
#define X(name, text) ESPER_PPO_SOURCE_##name,
    ESPER_PPO_SOURCE_LIST(X)
#undef X
    ESPER_PPO_N_SOURCES
} esper_ppo_source;

const char *esper_ppo_source_name(int source);

typedef enum esper_ppo_health {
    ESPER_PPO_FINE,
    ESPER_PPO_DEGRADED, /* this update failed; so may the next */
    ESPER_PPO_HALTED,   /* ESPER_PPO_MAX_FAILURES in a row: stop, and save what there is */
} esper_ppo_health;

typedef struct esper_ppo_report {
    bool             performed; /* at least one step was taken */
    esper_ppo_health health;
    uint32_t         failed;    /* bits 1 << source */
    int              n_skipped; /* minibatches, or 1 for a whole update */
    int              n_updates; /* optimiser steps taken */
    int              n_epochs;  /* epochs begun */
    int              stop_epoch; /* that was not begun because the policy had moved too far; -1 = none */
    esper_ppo_losses loss;      /* means over the minibatches that were stepped */
    esper_ppo_move   move;      /* at the end, over the whole rollout */
    double           log_prob_gap; /* largest distance of the rollout's log-probabilities from the reference pass */
    double           grad_norm_max, grad_norm_mean; /* before clipping */
    double           head_entropy[ESPER_POLICY_MAX_HEADS]; /* mean where there was a choice, before the update; NAN: never */
    double           entropy;   /* mean of those */
    double           explained_variance; /* of returns by the rollout's values; NAN: not known */
    int              n_steps, n_forced;
    esper_state_health state;   /* of the memory that the passes of the update end with */
    esper_findings   findings;  /* when performed */
} esper_ppo_report;

typedef struct esper_ppo esper_ppo;

/* The backend is borrowed until close. */
esper_status esper_ppo_open(esper_backend *backend, const esper_ppo_desc *desc, esper_ppo **ppo_out);
void         esper_ppo_close(esper_ppo *ppo);

esper_policy_net     *esper_ppo_net(esper_ppo *ppo);
const esper_ppo_desc *esper_ppo_desc_of(const esper_ppo *ppo);

/* One update. E_ARG: the batch does not fit. A batch that is not finite is no error: see the report.
 * bellman_error: mean size of the rollout's temporal differences, NAN = not known; state: memory of the rollout's end, NULL
 * = not known. Both are for the detector. */
esper_status esper_ppo_update(esper_ppo *ppo, const esper_ppo_batch *batch, double bellman_error,
                              const esper_state_health *state, esper_ppo_report *report_out);

/* Drill: a gradient of every minibatch of the next update is not finite. */
void esper_ppo_drill(esper_ppo *ppo);

/* ------------------------------------------------------------------------------------------------ acting */

/* What one step of all environments draws with and gives back: (n_envs, ..) arrays of the caller's. */
typedef struct esper_ppo_step {
    int          n_envs;
    const float *obs;     /* (E,esper_policy_net_wide) */
    const int32_t *ids;   /* (E,n_ids) */
    float       *h, *c;   /* (E,layers,H) memory: read, then replaced */
    esper_backend_stream *stream; /* NULL: all threads */
} esper_ppo_step;

/* Runs the network; logits and value are then in esper_policy_net_io(net, ESPER_POLICY_ACT), environment after environment. */
esper_status esper_ppo_act(esper_ppo *ppo, const esper_ppo_step *step);
/* The distribution of a head of an environment after that. chosen: (n_heads) what those that it depends on have chosen. E_ARG as
 * esper_masked_init. */
struct esper_masked;
esper_status esper_ppo_head(const esper_ppo *ppo, int env, int head, const int32_t *chosen, uint64_t mask,
                            struct esper_masked *masked_out);
float        esper_ppo_value(const esper_ppo *ppo, int env);

/* ------------------------------------------------------------------------------------------------ files */

/* Weights, moments, counters and the detector, with tensors and notes of the caller's own: everything that the next update
 * depends on. Going on from a file gives the same bits as never having stopped. */
esper_status esper_ppo_save(esper_ppo *ppo, const char *path, const esper_safetensors_tensor *more, size_t n_more,
                            const esper_safetensors_note *notes, size_t n_notes);

/* Of its counters and its detector. */
uint64_t esper_ppo_hash_counts(esper_ppo *ppo);

/* Writes such a file as it is given, with a hash of all of it in the note policy_hash. */
esper_status esper_ppo_write(const char *path, const esper_safetensors_tensor *tensors, size_t n_tensors,
                             const esper_safetensors_note *notes, size_t n_notes);

/* Whether a file is a policy, of this version, and as it was written. E_FORMAT says what it is not. */
esper_status esper_ppo_check_file(const esper_safetensors *file, uint64_t *hash_out);

/* Takes over the whole of what a file holds, or its weights alone, for which it needs no moments. E_CONFIG: it is of another
 * network; says what differs. E_FORMAT: as above, or a number that is not finite. Then nothing has changed. */
esper_status esper_ppo_load(esper_ppo *ppo, const esper_safetensors *file, bool whole);

#endif
