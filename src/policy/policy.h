/* Internal. Decision makers behind one interface: a view in, one decision out, once an epoch.
 *
 * A policy knows nothing of tensors or of the training loop. Its answer depends on the views it has seen, its setup and its
 * memory, never on the clock. What it remembers can be packed and unpacked, so a run that is resumed or rolled back goes on
 * as if nothing had happened. */
#ifndef ESPER_POLICY_POLICY_H
#define ESPER_POLICY_POLICY_H

#include <stddef.h>

#include "policy/decision.h"
#include "policy/heuristic.h"
#include "policy/trials.h"
#include "policy/view.h"

enum { ESPER_POLICY_DEADLINE_MS = 30000, ESPER_POLICY_ABOUT_CHARS = 64 };

/* What a policy is opened with. Everything is borrowed until open returns. */
typedef struct esper_policy_setup {
    esper_topology     topology;
    uint64_t           seed;       /* of the run */
    uint32_t           network;    /* which network of a fleet decides; 0 */
    int                max_epochs; /* 0 = open end */
    const char *const *slot_ids;   /* (n_slots) in the order of every view's slots */
    int                n_slots;
    const esper_heuristic_settings *heuristic; /* NULL = esper_heuristic_settings_init */
    const esper_trial_settings *trials; /* trials alone asks for these two */
    const esper_trial_ground   *ground;
    const char        *script;      /* scripted: path of the decision file */
    const char        *command;     /* command: what /bin/sh is to run */
    int                deadline_ms; /* command: for one answer; 0 = ESPER_POLICY_DEADLINE_MS */
    const char        *policy_file; /* learned: path of the policy's file */
    const char        *task;        /* learned: name of the run's task; NULL = any */
    const char        *backend;     /* learned: who computes its network; NULL = auto */
    size_t             room_bytes;  /* learned: for what it remembers, packed; 0 = any */
} esper_policy_setup;

typedef struct esper_policy esper_policy;

typedef struct esper_policy_ops {
    const char *name, *about;
    esper_status (*open)(const esper_policy_setup *setup, esper_policy **policy_out);
    void         (*close)(esper_policy *policy); /* NULL: its memory is one block */
    esper_status (*decide)(esper_policy *policy, const esper_policy_view *view, esper_decision *decision_out);
    /* Both NULL: it remembers nothing. pack returns the bytes it takes, and writes them unless memory is NULL. */
    size_t       (*pack)(const esper_policy *policy, void *memory);
    esper_status (*unpack)(esper_policy *policy, const void *memory, size_t bytes);
    const char  *(*describe)(const esper_policy *policy); /* NULL: by its name */
} esper_policy_ops;

/* The head of every policy: private to src/policy. */
struct esper_policy {
    const esper_policy_ops *ops;
};

/* All policies, NULL at the end: none, heuristic, random, scripted, command, halving, learned, trials. */
const esper_policy_ops *const *esper_policy_list(void);

/* E_ARG with the nearest name and all there are when there is none of that name. */
esper_status esper_policy_find(const char *name, const esper_policy_ops **ops_out);

/* Whether a text that is no policy's name is a path: it has a '/', ends in ".safetensors", or there is such a file or
 * directory. */
bool esper_policy_is_file(const char *text);

esper_status esper_policy_open(const char *name, const esper_policy_setup *setup, esper_policy **policy_out);
void         esper_policy_close(esper_policy *policy);
const char  *esper_policy_name(const esper_policy *policy);
const char *esper_policy_describe(
    const esper_policy *policy); /* for records: its name, with the hash and name of its file */

/* One decision for the epoch of the view. Its choices are whole and its slot is one of the view's; random, scripted,
 * command and learned also keep what esper_mask_check demands. A failure means that the run has no policy any more: save and stop.
 * E_STATE: a script or program asked for an illegal move; E_IO: a program hangs, died or closed its pipes; E_FORMAT: it
 * answered nonsense. */
esper_status esper_policy_decide(esper_policy *policy, const esper_policy_view *view, esper_decision *decision_out);

/* What it remembers, framed and hashed. Unpacking (E_FORMAT, E_CONFIG) leaves the policy as it was when it fails. */
size_t       esper_policy_pack_bytes(const esper_policy *policy);
void         esper_policy_pack(const esper_policy *policy, void *memory);
esper_status esper_policy_unpack(esper_policy *policy, const void *memory, size_t bytes);

extern const esper_policy_ops esper_policy_none, esper_policy_heuristic, esper_policy_random, esper_policy_scripted,
    esper_policy_command, esper_policy_halving, esper_policy_learned, esper_policy_trials;

#endif
