/* Internal. A policy that learns from a fleet: what it sees is stored step by step, and after a round it is updated.
 *
 *     fleet_play: views ──> decide: observations ──> network ──> choices ──> decisions ──> settle: rewards ──> ...
 *     the round is over ──> finish: credit (GAE), one PPO update, statistics
 *
 * What is drawn depends on the run's seed, the number of the episode and the step alone. Where an environment went
 * back its steps are cut: the blame falls on the last decision, and neither credit nor memory cross the cut. Nothing that is
 * not finite reaches weights or statistics: it is left out and counted. */
#ifndef ESPER_LEARN_LEARNER_H
#define ESPER_LEARN_LEARNER_H

#include "policy/learned.h"
#include "policy/rollout.h"
#include "learn/fleet.h"

typedef struct esper_learner esper_learner;

typedef struct esper_learner_desc {
    esper_backend       *backend;  /* borrowed: that of the environments, so that a thread can decide on its stream */
    const esper_config  *config;
    const esper_learned_identity *identity;
    const esper_ranks   *ranks;    /* borrowed; each plays an equal part of the environments */
    int                  n_envs;  /* of all ranks together */
    int                  n_steps;  /* of an episode */
} esper_learner_desc;

esper_status esper_learner_open(const esper_learner_desc *desc, esper_learner **learner_out);
void         esper_learner_close(esper_learner *learner);

/* Environments that this rank plays. */
int esper_learner_first_env(const esper_learner *learner);
int esper_learner_own_envs(const esper_learner *learner);

/* A round begins, with this number for its first episode, of all ranks. */
void esper_learner_begin(esper_learner *learner, uint64_t episode);

/* What a fleet is played by: decisions are drawn, and what they were worth is stored. */
esper_fleet_mind esper_learner_mind(esper_learner *learner);

/* What an update came to. */
typedef struct esper_learner_report {
    esper_ppo_report update;
    int      n_steps;            /* of the round, of all ranks */
    uint64_t n_bad_observations, n_bad_rewards; /* values that were not finite, and left out */
    int      n_rollbacks, n_rollbacks_lost;
    double   parts[ESPER_N_REWARD_PARTS]; /* mean of an episode */
} esper_learner_report;

/* The round is over: learns from it. */
esper_status esper_learner_finish(esper_learner *learner, esper_learner_report *report_out);

/* Everything that the next round depends on. The extra notes are the caller's. */
esper_status esper_learner_save(esper_learner *learner, const esper_safetensors_note *notes, size_t n_notes,
                                const char *path);
esper_status esper_learner_resume(esper_learner *learner, const esper_learned_file *file);

/* Of all that an update changes: weights, moments, counters, statistics. The same on every rank. */
uint64_t esper_learner_hash(const esper_learner *learner);

esper_ppo           *esper_learner_ppo(esper_learner *learner);
const esper_rollout *esper_learner_rollout(const esper_learner *learner);

/* Drills: spoils numbers of the round at hand, as a fault would: every gradient of its update, the rewards of the first
 * environment from now on, or an observation as it is stored. */
typedef enum esper_learner_fault {
    ESPER_LEARNER_NO_FAULT,
    ESPER_LEARNER_FAULT_GRADIENT,
    ESPER_LEARNER_FAULT_REWARD,
    ESPER_LEARNER_FAULT_OBSERVATION,
} esper_learner_fault;

void esper_learner_drill(esper_learner *learner, esper_learner_fault fault);

#endif
