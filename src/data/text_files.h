/* Internal to src/data. Which files a text is made of, in an order that does not depend on the file system. */
#ifndef ESPER_DATA_TEXT_FILES_H
#define ESPER_DATA_TEXT_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "esper.h"

typedef struct esper_text_file {
    char    *path;
    uint64_t n_bytes;
    dev_t    device; /* with inode: which file it is, whatever its name */
    ino_t    inode;
} esper_text_file;

typedef struct esper_text_files {
    esper_text_file *list; /* (n) */
    size_t           n, room;
    uint64_t         n_bytes; /* of all */
} esper_text_files;

/* Files and directories, separated by ':'. A directory stands for its files and those of its subdirectories, one level
 * down, sorted by name; names that begin with a dot are passed over, and so is a file that has already been taken under
 * another name (a link), since text that comes twice would leak from one split into another. Empty files are left out.
 * Start from zeroes; call fini also on failure. */
esper_status esper_text_files_init(esper_text_files *files, const char *paths);
void         esper_text_files_fini(esper_text_files *files);

#endif
