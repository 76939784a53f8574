/* Internal. All runs together: an SQLite database beside them, runs/index.db, with a row for each run, for each of its seeds and
 * for each fork that was on trial, so that one query answers about all of them (docs/runs.md).
 *
 *     runs/a/store.sqlite   runs/b/store.sqlite   runs/c/events.jsonl   ... ── read, never written ──> runs/index.db
 *
 * It is a cache: nothing is in it alone, and one that is damaged or of another version is made anew. Runs know nothing of it.
 * Bringing it up to date reads the stores that have changed since; a writer is never locked out, and does not wait. Several
 * processes may do it at a time. Where the folder cannot be written to, or is itself a run, the index is in memory.
 *
 * A walk over the folder follows no link and goes a few directories deep: comparisons keep their runs one below, and somebody may
 * keep comparisons in a folder of their own. What is asked for by name is compared with what the walk found.
 *
 * An index belongs to one thread. */
#ifndef ESPER_RUN_INDEX_H
#define ESPER_RUN_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "esper.h"
#include "run/run_dir.h"

#define ESPER_INDEX_FILE "index.db"
#define ESPER_INDEX_TAGS "tags.txt" /* of a run: a tag on a line */

/* The columns of a run: kind, name, meaning. What is not known is NULL. */
#define ESPER_INDEX_COLUMN_LIST(X)                                                               \
    X(TEXT, run, "its directory, below that of all runs")                                        \
    X(TEXT, kind, "grow, learn or train")                                                        \
    X(TEXT, state, "running, done, stopped, failed, cut off (it was killed) or unreadable")      \
    X(TEXT, task, "name of the task")                                                            \
    X(TEXT, policy, "who decided, or learned")                                                   \
    X(TEXT, tags, "its tags, sorted, with a comma between them")                                 \
    X(TEXT, rng_seed, "seed of all random numbers, decimal")                                     \
    X(REAL, began, "wall clock, seconds since 1970")                                             \
    X(REAL, seconds, "that it took, in its last process")                                        \
    X(INT, epochs, "done; of a learner: rounds")                                                 \
    X(REAL, acc_valid, "percent of the validation split, last measured")                         \
    X(REAL, acc_best, "the best of it")                                                          \
    X(REAL, acc_test, "percent of the test split")                                               \
    X(REAL, loss_valid, "of the validation split, last measured, nats")                          \
    X(INT, params, "of the network: at its end, or after its last epoch")                        \
    X(INT, params_host, "of its host")                                                           \
    X(INT, flops_train, "FLOPs spent on training")                                               \
    X(INT, n_seeds, "seeds that germinated")                                                     \
    X(INT, n_kept, "seeds that were kept")                                                       \
    X(INT, n_pruned, "seeds that were removed")                                                  \
    X(INT, n_rollbacks, "times it went back to a snapshot")                                      \
    X(REAL, total_reward, "sum of its rewards; of a learner, the mean return of its last round") \
    X(REAL, acc_static, "acc_test of its static control")                                        \
    X(INT, params_static, "parameters of that")                                                  \
    X(TEXT, kernels, "backend and kernel set")                                                   \
    X(TEXT, build, "commit of the program")                                                      \
    X(TEXT, problem, "why its store cannot be read")

typedef enum esper_index_column {
#define X(kind, name, meaning) ESPER_INDEX_##name,
    ESPER_INDEX_COLUMN_LIST(X)
#undef X
        ESPER_INDEX_N_COLUMNS
} esper_index_column;

/* Besides, for pages and SQL: `id`, how a page calls a run: its name, where that is plain, else "~" and its hash; `ended` and
 * `changed`, wall clock at its end and at its last epoch or round; `points`, how it went: at most 40 numbers with commas between
 * them, accuracy of validation over epochs, or return over rounds, of those that stand. */
enum { ESPER_INDEX_ID_CHARS = 512 };

typedef struct esper_index esper_index;

/* Opens the index of the runs below `root` ("runs"), making it where there is none. A root that is a run has it as ".". */
esper_status esper_index_open(const char *root, esper_index **index_out);
void esper_index_close(esper_index *index); /* NULL is fine */

typedef struct esper_index_news {
    int n_runs;       /* there are */
    int n_read;       /* of them, new or changed */
    int n_gone;       /* that were there the last time */
    int n_unreadable; /* of those read, stores that could not be: they have a row that says why */
    bool any;         /* a row is not what it was the last time, whoever brought it up to date */
} esper_index_news;

/* Brings it up to date. news_out may be NULL. */
esper_status esper_index_refresh(esper_index *index, esper_index_news *news_out);

/* The name of the run of that id. E_NOTFOUND: there is none, as far as the index knows. */
esper_status esper_index_find(esper_index *index, const char *id, char run_out[ESPER_PATH_CHARS]);

/* Which runs. filter: conditions with commas between them, all of which hold, such as "task=fashion,acc_test>=90,tag=good"; the
 * signs are = != < <= > >= and ~ (contains); `tag` is one of the tags. sort: a column; numbers begin with the largest, texts with
 * the first. NULL, "" and 0 take the default: all, the newest first. E_ARG: there is no such column or sign. */
typedef struct esper_index_query {
    const char *filter;
    const char *sort;
    bool reverse;
    int most;
} esper_index_query;

/* Hands every row to `take`, as texts by column; NULL is what is not known. A failure of it ends the walk. */
typedef esper_status (*esper_index_take)(void *to, const char *const texts[ESPER_INDEX_N_COLUMNS]);

esper_status esper_index_list(esper_index *index, const esper_index_query *query, esper_index_take take, void *to);

/* The same as a JSON array, an object on a line; numbers are numbers, and null is what is not known. */
esper_status esper_index_json(esper_index *index, const esper_index_query *query, esper_page *page);

/* Any SELECT on the index, as JSON likewise: an object for each row, by the names of the columns. It cannot write. E_ARG: what
 * SQLite says of the query. */
esper_status esper_index_ask(esper_index *index, const char *sql, esper_page *page);

const char *esper_index_column_name(esper_index_column column);
const char *esper_index_column_meaning(esper_index_column column);

/* Adds a tag to a run, or removes it; fine when it is there, or not. E_ARG: no tag, which is a word of letters, digits, '-', '_',
 * '.' and ':', of at most 40. */
esper_status esper_index_tag(const char *run_dir, const char *tag, bool remove);

/* Whether a process works on the run in this directory now, as far as the system tells. */
bool esper_index_is_running(const char *run_dir);

#endif
