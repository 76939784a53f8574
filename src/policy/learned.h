/* Internal. A policy that was learned: what it was trained for, how it chooses, and its file.
 *
 *     identity ──> esper_learned_ppo ──> learner ──> esper_ppo_act, esper_learned_choose ──> actions
 *        └──────────────┬─────────────────┴──> esper_learned_save ──> file (docs/policy-file.md)
 *     file ──> esper_learned_open ──> esper_learned_check (is it for this run?) ──> esper_learned_load, to act or go on learning
 *
 * The checkpoint of a training is a policy's file: it holds the whole learner, and whatever else the training needs. Whoever
 * only acts takes weights and the statistics of observations from it. */
#ifndef ESPER_POLICY_LEARNED_H
#define ESPER_POLICY_LEARNED_H

#include "base/config.h"
#include "base/rng.h"
#include "data/safetensors.h"
#include "policy/actions.h"
#include "policy/normaliser.h"
#include "policy/ppo.h"

enum { ESPER_LEARNED_VERSION = 3, ESPER_LEARNED_NAME_CHARS = 64 };

/* What a training notes in its file besides: the configuration it ran with, as esper_config_write has it. */
#define ESPER_LEARNED_CONFIG_NOTE "learn_config"

/* ------------------------------------------------------------------------------------------------ what it is for */

typedef struct esper_learned_identity {
    char               task[ESPER_LEARNED_NAME_CHARS];
    esper_topology     topology;
    uint32_t           topologies; /* bits 1 << topology of all hosts that it learned on; that one is among them, said or not */
    int                n_slots;    /* most slots of a host: the weights are the same for any number */
    char               slots[ESPER_POLICY_MAX_SLOTS][ESPER_POLICY_ID_CHARS]; /* (n_slots) ids, in the order of the views */
    int                max_epochs; /* of an episode, as its views said; 0 = open end */
    esper_config_gates gates;
    char               reward[ESPER_LEARNED_NAME_CHARS]; /* name of the mode */
    int                features_version;
    int                n_features; /* of an observation with n_slots slots */
    int                width, hidden, layers; /* of the network */
} esper_learned_identity;

/* Features of this version, network of 128, 128 and one layer, gates strict, the default reward; no task, slots or epochs. */
void esper_learned_identity_init(esper_learned_identity *identity);

/* Sets slots and n_features. E_ARG: too many, or an id that is too long. */
esper_status esper_learned_identity_set_slots(esper_learned_identity *identity, const char *const *ids, int n_slots);

/* The network, with room for so many slots: what is seen of the run, what is seen of each slot and its blueprint; eight heads, of
 * which the operation is chosen for the run, the slot among the slots, and all others for the slot that was chosen; the second
 * critic told the operation; a contribution of each slot. Names are static. */
void esper_learned_net(const esper_learned_identity *identity, esper_policy_net_desc *net_out);

/* The learner: that network, episodes of max_epochs steps (where it says so) in chunks of up to 16, and for each head the
 * floor of its probabilities, its weight of entropy, its penalty and when it has collapsed. Environments and seed are the caller's. */
void esper_learned_ppo(const esper_learned_identity *identity, esper_ppo_desc *desc_out);

/* ------------------------------------------------------------------------------------------------ choosing */

/* As a rollout stores it. */
typedef struct esper_learned_choice {
    esper_action action;
    uint64_t     masks[ESPER_N_HEADS]; /* what each head could choose, operation and slot being chosen */
    uint64_t
        open[ESPER_N_HEADS]; /* what it could have chosen had it been asked; 0: it depends on what was not chosen */
    float        log_probs[ESPER_N_HEADS];
    double       entropies[ESPER_N_HEADS]; /* 0 .. 1 */
    double       probability;              /* of the operation */
    float        value;
    bool         forced;
} esper_learned_choice;

/* After esper_ppo_act: operation, slot, then the other heads. With rng NULL the likeliest of each, of equals the first; else
 * eight draws, one for each head whatever is open, so that they depend on the stream alone. E_ARG: a logit is not finite. */
esper_status esper_learned_choose(const esper_ppo *ppo, int env, const esper_action_mask *mask, esper_rng *rng,
                                  esper_learned_choice *choice_out);

/* ------------------------------------------------------------------------------------------------ files */

/* Tensors and notes of the caller's own, under names that the learner does not use. */
typedef struct esper_learned_extra {
    const esper_safetensors_tensor *tensors;
    size_t                          n_tensors;
    const esper_safetensors_note   *notes;
    size_t                          n_notes;
} esper_learned_extra;

/* Writes learner, statistics of observations, identity and extra (NULL = none), all or nothing, with a hash of all of it.
 * E_ARG: learner and identity do not go together. */
esper_status esper_learned_save(esper_ppo *ppo, const esper_learned_identity *identity, const esper_normaliser *norm,
                                const esper_learned_extra *extra, const char *path);

typedef struct esper_learned_file esper_learned_file;

/* Reads a file and checks that it is whole. E_NOTFOUND, E_IO: it cannot be read. E_FORMAT: it is no policy, of another
 * version, sees other features, or damaged. */
esper_status esper_learned_open(const char *path, esper_learned_file **file_out);
void         esper_learned_close(esper_learned_file *file);

const esper_learned_identity *esper_learned_identity_of(const esper_learned_file *file);
uint64_t                      esper_learned_hash_of(const esper_learned_file *file); /* of the whole content */
const esper_safetensors      *esper_learned_content(const esper_learned_file *file); /* where extra is found again */

/* Whether this policy can decide about a run like that, which is one of a topology that it has learned on. E_CONFIG: it is not.
 * Task, slots, sizes, gates, reward and length are not looked at. */
esper_status esper_learned_check(const esper_learned_file *file, const esper_learned_identity *wanted);

/* Takes weights and statistics over; the learner was opened with a description of esper_learned_ppo for the file's identity.
 * A weight that is not finite is refused by its name (E_FORMAT). When it fails nothing has changed. `whole`: the learner's
 * moments and counters too, so that the next update is the one that would have followed. */
esper_status esper_learned_load(const esper_learned_file *file, esper_ppo *ppo, esper_normaliser *norm, bool whole);

/* The normaliser of what is seen of the run, open: momentum as esper_normaliser_open. The rows it is given may be longer. */
esper_status esper_learned_normaliser(double momentum, esper_normaliser **norm_out);

#endif
