/* Internal. The runs below a directory, as their index knows them (run/index.h), for many threads. What somebody asks for is looked
 * up among what the index found, so no name that is asked for becomes a path.
 *
 * Any thread may call. */
#ifndef ESPER_SERVE_CATALOGUE_H
#define ESPER_SERVE_CATALOGUE_H

#include "base/page.h"
#include "run/index.h"

typedef struct esper_catalogue esper_catalogue;

typedef struct esper_catalogue_entry {
    char id[ESPER_INDEX_ID_CHARS];
    char name[ESPER_PATH_CHARS];  /* relative to the directory; any bytes */
    char store[ESPER_PATH_CHARS]; /* path of the file, which a run of `esper train` does not have */
    bool running;                 /* a process holds the lock of its directory, as far as the system tells */
} esper_catalogue_entry;

esper_status esper_catalogue_open(const char *dir, esper_catalogue **catalogue_out);
void         esper_catalogue_close(esper_catalogue *catalogue);

/* Brings the index up to date. The version goes up when anything that is listed has changed. */
esper_status esper_catalogue_refresh(esper_catalogue *catalogue, uint64_t *version_out);

/* The entry of that id; one that is new is looked for. E_NOTFOUND: there is none. */
esper_status esper_catalogue_find(esper_catalogue *catalogue, const char *id, esper_catalogue_entry *entry_out);

/* {"version":3,"dir":"runs","runs":[...]} as it was at the last refresh: of each run its columns in the index. */
esper_status esper_catalogue_list(esper_catalogue *catalogue, esper_page *page);

int esper_catalogue_count(esper_catalogue *catalogue);

#endif
