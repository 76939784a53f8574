/* Internal. Run directories: where a run keeps its checkpoint, its configuration and its events, and how people name it.
 *
 *     runs/fashion-20260131-1/    config.ini    events.jsonl    decisions.jsonl    last.safetensors    best.safetensors
 */
#ifndef ESPER_RUN_RUN_DIR_H
#define ESPER_RUN_RUN_DIR_H

#include <stdbool.h>

#include "esper.h"

enum { ESPER_PATH_CHARS = 1200 };

#define ESPER_RUN_CONFIG     "config.ini"
#define ESPER_RUN_EVENTS     "events.jsonl"
#define ESPER_RUN_DECISIONS  "decisions.jsonl"
#define ESPER_RUN_CHECKPOINT "last.safetensors"
#define ESPER_RUN_BEST       "best.safetensors" /* the network of the epoch with the least validation loss */
#define ESPER_RUN_BEFORE \
    "before.safetensors" /* while the checkpoint lies in the midst of an epoch: the last one that does not */
#define ESPER_RUN_SOUND      "sound.safetensors" /* while the checkpoint is of a state in doubt: the last one that is not */
#define ESPER_RUN_STORE      "store.sqlite"
#define ESPER_RUN_POLICY     "policy.safetensors" /* of a run that learns: policy and checkpoint */
#define ESPER_RUN_REPORT     "report.html"
#define ESPER_RUN_COMPARISON "compare.lock"       /* of a comparison: its runs are in directories below */

/* Makes the directory of a new run: `wanted`, or runs/<task>-<date>-<n> when that is empty. One that already holds a run is
 * refused, unless it ended before its first checkpoint: then the new one takes its place. So is one that holds any other file
 * a run would write. */
esper_status esper_run_dir_make(const char *wanted, const char *task, char path_out[ESPER_PATH_CHARS]);

/* A run begins in its directory, or goes on there (`resumed`): removes drafts that a run which was killed has left, and, where one
 * begins, what one that never began has; writes the configuration, to start from again; the file takes no task, so that stands in a comment. The lock is held until it is closed, or
 * the process ends: two runs in one directory would spoil each other's. E_STATE: somebody has it, or a file that the run would
 * write is a link. E_CONFIG: nothing but another configuration is there, and a run begins. */
esper_status esper_run_dir_begin(const char *dir, const char *task, const char *record, bool resumed, int *lock_out);

/* The directory that a file lies in: a run that is resumed goes on there. */
void esper_run_dir_of(const char *file, char dir_out[ESPER_PATH_CHARS]);

/* Finds a run by what a person typed: a directory, a unique beginning of a name below runs/, or "last". */
esper_status esper_run_dir_find(const char *text, char path_out[ESPER_PATH_CHARS]);

/* The same among runs that trained a network. A name that none of them has may be that of a run that learned: the caller tells
 * what it lacks. */
esper_status esper_run_network_find(const char *text, char path_out[ESPER_PATH_CHARS]);

/* Finds a checkpoint: a file as it is, or the checkpoint of a run that trained a network. */
esper_status esper_run_checkpoint_find(const char *text, char path_out[ESPER_PATH_CHARS]);

/* Finds a policy: a file as it is, or that of a run of `esper learn`, whose names are looked up among those first. */
esper_status esper_run_policy_find(const char *text, char path_out[ESPER_PATH_CHARS]);

/* Whether a text that is neither a policy's name nor there as a file or directory names a run of `esper learn`: "last", or the
 * beginning of a name below runs/. */
bool esper_run_policy_is_named(const char *text);

/* The policy that ships with the program: share/esper/policy.safetensors beside its folder. False: there is none. */
bool esper_run_policy_shipped(char path_out[ESPER_PATH_CHARS]);

/* The policy that `--policy TEXT` means: the file of a run of `esper learn` where TEXT is its directory or names it, all else as
 * it is. E_NOTFOUND: a directory that holds none, several runs of that name, or "learned" where none ships with the program, with what to give instead. */
esper_status esper_run_policy_take(const char *text, char path_out[ESPER_PATH_CHARS]);

/* dir/name; E_ARG when that is too long. */
esper_status esper_run_path(const char *dir, const char *name, char path_out[ESPER_PATH_CHARS]);

#endif
