/* Internal. What a policy learns on: tasks, each with an engine of its own on the same threads, and which of them an episode is of.
 *
 *     --tasks "fashion_fast channels=8, synth_table, synth drawn=6, photos drawn=4 draws=all"
 *
 * An entry is a task, or the path of data of one's own, and settings of its training, its data and its network; everything else is
 * the run's. `drawn=N` makes N entries of it, which differ by what is drawn of the run's seed:
 *
 *     host    depth, width, pools, shortcuts (the usual)
 *     data    how many classes and samples and which, or what synthetic data is like
 *     budget  how long an episode is: its epochs, and how many batches one has
 *
 * `draws=host+data` says which, `draws=all` is all three. What is drawn is settings of the entry, no more: `esper grow` takes the same.
 * The task of the run is the first entry. Entries whose data is the same share it.
 *
 * Which entry an episode is of depends on the run's seed, the number of the episode and, where the curriculum says so, on how much
 * of the rounds is done: so it is the same on any number of threads and ranks, and when a run goes on. */
#ifndef ESPER_RUN_CURRICULUM_H
#define ESPER_RUN_CURRICULUM_H

#include "engine/engine.h"
#include "run/task.h"

enum { ESPER_CURRICULUM_MOST = 64 };

enum {
    ESPER_DRAWS_HOST = 1,
    ESPER_DRAWS_DATA = 2,
    ESPER_DRAWS_BUDGET = 4,
    ESPER_DRAWS_ALL = ESPER_DRAWS_HOST | ESPER_DRAWS_DATA | ESPER_DRAWS_BUDGET
};

typedef struct esper_curriculum_entry {
    const esper_task *task;
    esper_config     *config;
    esper_dataset    *data;
    bool              shares; /* the data is that of an entry before it */
    unsigned          draws;  /* what was drawn of it: ESPER_DRAWS_* */
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

/* Of all data, and of what the list says of hosts and what was drawn besides, in the order of the entries; of one entry it is that
 * of its data. */
uint64_t esper_curriculum_hash_data(const esper_curriculum *curriculum);

/* An entry as it would be written by itself, what was drawn spelt out: "fashion_fast epochs=18 host='conv 8 | ...'". */
void esper_curriculum_tell(const esper_curriculum_entry *entry, char *text_out, size_t chars);

/* A host for this kind of data, as text (docs/hosts.md), drawn of the seed: number `which` of them. */
void esper_curriculum_host(esper_topology topology, uint64_t seed, int which, char text[ESPER_CONFIG_TEXT_CHARS]);

#endif
