/* Internal. What a policy learns on: tasks, each with an engine of its own on the same threads, and which of them an episode is of.
 *
 *     --tasks "fashion_fast channels=8, synth_table, synth drawn=6"
 *
 * An entry is a task and settings of its training, its data and its network; everything else is the run's. `drawn=N` makes N
 * entries of it, with hosts drawn of the run's seed: depth, width, pools, shortcuts. The task of the run is the first entry.
 *
 * Which entry an episode is of depends on the run's seed, the number of the episode and, where the curriculum says so, on how much
 * of the rounds is done: so it is the same on any number of threads and ranks, and when a run goes on. */
#ifndef ESPER_RUN_CURRICULUM_H
#define ESPER_RUN_CURRICULUM_H

#include "engine/engine.h"
#include "run/task.h"

enum { ESPER_CURRICULUM_MOST = 64 };

typedef struct esper_curriculum_entry {
    const esper_task *task;
    esper_config     *config;
    esper_dataset    *data;
    bool              shares; /* the data is that of the entry before: only their hosts differ */
    esper_engine     *engine;
} esper_curriculum_entry;

typedef struct esper_curriculum {
    int                    n;
    esper_curriculum_entry entry[ESPER_CURRICULUM_MOST]; /* the first is borrowed */
    uint64_t               seed;
    esper_config_curriculum kind;
    int                    most_epochs; /* of an episode, in the entry that has most */
} esper_curriculum;

/* Those of the configuration of an engine's run, beside the engine itself. E_CONFIG says what is wrong with an entry. Ended by fini,
 * also where it fails. */
esper_status esper_curriculum_init(esper_curriculum *curriculum, const esper_task *task, esper_engine *first);
void         esper_curriculum_fini(esper_curriculum *curriculum);

/* The entry of an episode. done: how much of the rounds is over, 0 to 1. */
int esper_curriculum_draw(const esper_curriculum *curriculum, uint64_t episode, double done);

/* Of all data, and of what the list says of hosts, in the order of the entries; of one entry it is that of its data. */
uint64_t esper_curriculum_hash_data(const esper_curriculum *curriculum);

/* A host for this kind of data, as text (docs/hosts.md), drawn of the seed: number `which` of them. */
void esper_curriculum_host(esper_topology topology, uint64_t seed, int which, char text[ESPER_CONFIG_TEXT_CHARS]);

#endif
