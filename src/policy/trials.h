/* Internal. Trials: whether a seed pays is a question about two trained networks, so two are trained.
 *
 * At a decision point the run is forked: into one that gets nothing, and one for each candidate, a seed of some kind in an empty
 * slot. The forks train on the same batches while their rate falls to 0; then their losses on the validation split are compared,
 * sample by sample. Halving: several rounds, each from the run as it stands, with half the candidates and more steps. The rules
 * here know of candidates, costs and losses; who makes forks and trains them is the ground they are tried on.
 *
 * The policy `trials` holds them by itself. Others may ask for one of a slot, in one round: the operation `try`, which growth
 * carries out. */
#ifndef ESPER_POLICY_TRIALS_H
#define ESPER_POLICY_TRIALS_H

#include <stdint.h>

#include "esper.h"
#include "nn/blueprint.h"

enum {
    ESPER_TRIAL_MAX_FORKS = 64,
    ESPER_TRIAL_MAX_SEEDS = 8, /* that one trial may bring */
};

/* Reasons of decisions in which nothing is tried any more. Why that is so, one before them says. */
#define ESPER_TRIALS_OVER "The rate falls: growing is over"
#define ESPER_TRIALS_DONE "Nothing is left to try, or to try it with"

/* A fork, and what came of it in the last round that it took part in. */
typedef struct esper_fork {
    int32_t  slot, blueprint; /* slot of the view; -1: it got nothing */
    double   step_flops;      /* of a training step */
    double   sample_flops;    /* of a forward pass of one sample */
    uint32_t birth_steps;     /* that the choice of its weights costs, in each round */
    int64_t  params;          /* that it has more */
    int32_t  round;           /* from 0 */
    uint32_t n_steps, n_samples; /* trained, and validated on */
    double   loss;            /* not finite: it has lost */
    double   gain, error;     /* nothing's loss less its own, mean over samples, and the standard error, paired by sample */
    double   flops;           /* spent on it, in all rounds */
    uint64_t weights;         /* hash of them, at the end */
} esper_fork;

/* Where forks are trained. */
typedef struct esper_trial_ground {
    void *context;
    /* Sets step_flops, sample_flops, birth_steps and params of a fork. E_NOMEM. */
    esper_status (*measure)(void *context, esper_fork *fork);
    /* Trains all forks, the first of which gets nothing, for n_steps, and validates them on so many batches; sets all below params
     * but the round. E_STOPPED: somebody wants the run to stop. */
    esper_status (*compare)(void *context, esper_fork *forks, int n, uint32_t n_steps, uint32_t n_batches);
    /* The trial is over: its forks are written down. */
    esper_status (*record)(void *context, const esper_fork *forks, int n);
    /* The next seed that germinates is this one, by what a trial before has shown. */
    void (*vouch)(void *context, const esper_fork *fork);
} esper_trial_ground;

/* How trials are held. */
typedef struct esper_trial_settings {
    double   share;      /* of the run's budget that they may cost together */
    double   first;      /* share of the run before the first */
    uint32_t n_steps;    /* of the last round, at most; 0: as many as can be paid */
    int      n_rounds;   /* at most; 0: until two candidates are left */
    int      n_seeds;    /* that one trial may bring, each in another slot */
    double   price;      /* loss that twice the FLOPs of a sample have to bring */
    uint32_t blueprints; /* bits 1 << index of what is tried */
    int      batch;      /* samples of a step */
    uint32_t n_batches;  /* of the validation split */
} esper_trial_settings;

/* What is tried where nobody says: few kinds, as every one costs a fork in every slot. */
uint32_t esper_trial_usual(esper_topology topology);

/* Sorts forks 1 to n - 1 by what they are worth, the best first, of equals the earlier: the gain, less `price` nats for twice the
 * FLOPs of a sample of fork 0, which got nothing. One that is not finite is worth least. */
void esper_trial_rank(double price, esper_fork *forks, int n);

/* The least gain, in standard errors, that chance brings to one of n candidates once in twenty trials. */
double esper_trial_bound(int n_candidates);

#endif
