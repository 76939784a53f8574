/* Internal to the index: its record, and reading one run. */
#ifndef ESPER_RUN_INDEX_INTERNAL_H
#define ESPER_RUN_INDEX_INTERNAL_H

#include <sqlite3.h>

#include "run/index.h"

enum { INDEX_STAMP_CHARS = 256 };

struct esper_index {
    sqlite3 *db;
    char root[ESPER_PATH_CHARS];
    char path[ESPER_PATH_CHARS]; /* of the database */
    int64_t known_version;       /* of the database, as SQLite counts what others write into it */
    sqlite3_stmt *find, *see;    /* while it is brought up to date */
    esper_index_news news;
};

/* Puts the rows of a run in the place of those that are there. What cannot be read has a row that says why; a failure is one of
 * the index alone. */
esper_status esper_index_read_run(esper_index *index, const char *run, const char *dir, const char *stamp,
                                  bool has_store);

#endif
