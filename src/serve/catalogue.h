/* Internal. The runs below a directory: which there are, where their stores lie, and a line of JSON about each, kept until its
 * store changes. A walk over the tree follows no link and goes a few directories deep; what somebody asks for is compared with
 * what it found, so no name that is asked for becomes a path.
 *
 * Any thread may call. */
#ifndef ESPER_SERVE_CATALOGUE_H
#define ESPER_SERVE_CATALOGUE_H

#include "base/page.h"
#include "run/run_dir.h"
#include "serve/request.h"

typedef struct esper_catalogue esper_catalogue;

typedef struct esper_catalogue_entry {
    char id[ESPER_REQUEST_ID_CHARS];  /* the name, where that is plain; else "~" and its hash */
    char name[ESPER_PATH_CHARS];      /* relative to the directory; any bytes */
    char store[ESPER_PATH_CHARS];     /* path of the file */
    bool running;                     /* a process holds the lock of its directory, as far as the system tells */
} esper_catalogue_entry;

esper_status esper_catalogue_open(const char *dir, esper_catalogue **catalogue_out);
void         esper_catalogue_close(esper_catalogue *catalogue);

/* Walks over the tree; reads the stores that changed. The version goes up when anything that is listed did. */
esper_status esper_catalogue_refresh(esper_catalogue *catalogue, uint64_t *version_out);

/* The entry of that id; one that is new is looked for. E_NOTFOUND: there is none. */
esper_status esper_catalogue_find(esper_catalogue *catalogue, const char *id, esper_catalogue_entry *entry_out);

/* {"version":3,"dir":"runs","runs":[{...},...],"unread":[{"name":...,"why":...}]} as it was at the last refresh. */
esper_status esper_catalogue_list(esper_catalogue *catalogue, esper_page *page);

int esper_catalogue_count(esper_catalogue *catalogue);

#endif
