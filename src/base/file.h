/* Internal. Whole files, read with a limit, and directories. Files are written as atomic_file.h says.
 *
 * Every failure names the path and the system's reason. A missing file is ESPER_E_NOTFOUND, all else ESPER_E_IO. */
#ifndef ESPER_BASE_FILE_H
#define ESPER_BASE_FILE_H

#include "esper.h"

/* The contents, with a terminating zero after them; free with esper_mem_free. More than max_bytes is a failure. */
esper_status esper_file_read(const char *path, size_t max_bytes, char **data_out, size_t *bytes_out);

/* errno as a status: "path: what: reason". */
esper_status esper_file_fail(const char *what, const char *path);

/* Makes names in the directory that holds `path` durable, as far as its file system can. */
esper_status esper_file_sync_dir_of(const char *path);

/* Creates the directory and those above it, durably; fine when it exists. */
esper_status esper_file_make_dirs(const char *path);

#endif
