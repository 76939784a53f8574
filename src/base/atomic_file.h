/* Internal. Files that are replaced so that a reader sees the old contents or the new, never a mix: checkpoints, policies, records. */
#ifndef ESPER_BASE_ATOMIC_FILE_H
#define ESPER_BASE_ATOMIC_FILE_H

#include "esper.h"

/* Replaces (or creates) the file with these bytes, as one draft below. */
esper_status esper_file_write(const char *path, const void *data, size_t bytes);

/* A file being written. It grows under a temporary name in the directory of `path`; commit makes it durable and puts
 * it in place of `path` in one move. Until that move, and whenever anything before it fails, the file at `path` stays
 * as it was. A process that is killed may leave a "*.tmp" behind, which nobody reads. */
typedef struct esper_draft esper_draft;

esper_status esper_draft_open(const char *path, esper_draft **draft_out);
esper_status esper_draft_write(esper_draft *draft, const void *data, size_t bytes);
esper_status esper_draft_commit(esper_draft *draft); /* the draft still has to be closed */
void         esper_draft_close(esper_draft *draft);  /* removes what was not committed; NULL is fine */

#endif
