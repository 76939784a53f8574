/* Internal. Checkpoints: the exact state of a run in one safetensors file. docs/checkpoint.md describes the format. */
#ifndef ESPER_RUN_CHECKPOINT_H
#define ESPER_RUN_CHECKPOINT_H

#include "data/safetensors.h"
#include "engine/network.h"
#include "run/task.h"

enum { ESPER_CHECKPOINT_VERSION = 1 };

#define ESPER_CHECKPOINT_FORMAT "esper-checkpoint" /* the note "format" */

/* Writes the network's state in place of what was at `path`, all or nothing. */
esper_status esper_checkpoint_save(esper_network *network, const char *path);

/* A checkpoint opened for reading: whose task and configuration it is of. */
typedef struct esper_checkpoint {
    esper_safetensors *file;
    const esper_task  *task;
    esper_config       config;
    const char        *kernels; /* the backend and kernel set that wrote it */
} esper_checkpoint;

/* Whether an open file is a checkpoint of this version, and whole; E_FORMAT says what it is instead. */
esper_status esper_checkpoint_check(const esper_safetensors *file, const char *path);

/* A file that is none, of another version, or changed since it was written, is E_FORMAT and says so. */
esper_status esper_checkpoint_init(const char *path, esper_checkpoint *checkpoint_out);
void         esper_checkpoint_fini(esper_checkpoint *checkpoint);

/* Where the run stood, what it may spend (0: its epochs), and the hash of its weights. */
esper_status esper_checkpoint_mark(const esper_checkpoint *checkpoint, esper_cursor *cursor_out, uint64_t *budget_out,
                                   uint64_t *weights_out);

/* Puts weights, norm buffers and the cursor, and into a network with an optimiser also its moments and steps and the
 * tally, back. The network must have been made for the checkpoint's task and configuration. On failure the network is
 * not to be used further. */
esper_status esper_checkpoint_restore(const esper_checkpoint *checkpoint, esper_network *network);

/* Likewise one of the network's parts (esper_network_add_part), when the checkpoint has it. E_FORMAT: another version wrote it. */
esper_status esper_checkpoint_restore_part(const esper_checkpoint *checkpoint, esper_network *network,
                                           const char *name);

/* Whether the network's data is that of the run, by its hash; true also where the checkpoint does not say. */
bool esper_checkpoint_knows_data(const esper_checkpoint *checkpoint, const esper_network *network);

/* What the checkpoint knows of the run's data, as a set without samples, to use the network where the data is not; NULL: it is of
 * before such notes were kept. */
esper_status esper_checkpoint_recall_data(const esper_checkpoint *checkpoint, esper_dataset **set_out);

/* Whether it is of a run that grows. */
bool esper_checkpoint_has_growth(const esper_checkpoint *checkpoint);

#endif
