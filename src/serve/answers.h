/* Internal. What the server answers, as JSON, from run stores. A store is opened for reading, may be written meanwhile by its
 * run, and is not changed.
 *
 *     whole    {"id":..., "mark":"7.120.-1", "run":{...}, "control":{...}, "config":"...", "n_dropped":0, "tables":{"epochs":{"columns":[...],
 *              "rows":[[...],...]}, ...}, "control_epochs":{...}}
 *     news     {"run":{...}, "control":{...}, "n_dropped":0, "rows":{"epochs":[[...],...], ...}, "control_rows":[[...],...]}
 *
 * Columns are those of docs/store.md but for run, time of most rows, and nonfinite: a number that was not finite is "nan", "inf"
 * or "-inf". null is what was not measured. */
#ifndef ESPER_SERVE_ANSWERS_H
#define ESPER_SERVE_ANSWERS_H

#include "base/page.h"
#include "serve/request.h"
#include "telemetry/store.h"

/* A run directory's store, with the rows of its run and of the static control. */
typedef struct esper_source {
    esper_store_reader *reader;
    int64_t             inode;
    esper_store_run     run, control;
    bool                has_control;
    esper_mark          mark; /* the rows that are committed */
} esper_source;

/* E_NOTFOUND: there is no store, or it has no run yet. */
esper_status esper_source_open(const char *store, esper_source *source_out);
void         esper_source_close(esper_source *source);

/* Looks once more: runs and mark are those of now. E_NOTFOUND: the file is another one by now, or gone. */
esper_status esper_source_look(esper_source *source, const char *store);

/* All rows up to the source's mark. running: whether its process is there. */
esper_status esper_answer_whole(esper_source *source, const char *id, const char *name, bool running, esper_page *page);

/* Rows behind `from`, which is of the same generation, up to the source's mark. with_runs: the rows of the runs too. */
esper_status esper_answer_news(esper_source *source, const esper_mark *from, bool with_runs, bool running,
                               esper_page *page);

/* The columns of a run as an object, for comparing them. */
void esper_answer_run(const esper_store_run *run, bool running, esper_page *page);

#endif
