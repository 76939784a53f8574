/* A draft beside the file, synced and moved into its place. */
#include "base/atomic_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

enum { TEMP_TRIES = 100, TEMP_SUFFIX_CHARS = 48 };

struct esper_draft {
    int   fd;        /* -1 once committed */
    int   dir_fd;    /* the directory, to be synced after the move; -1 where we may write but not read it */
    char *path;
    char *temp_path; /* in the same directory, so that the last move stays within one file system */
};

/* Opens a file beside `path` under a name that nobody uses: others may be writing the same file, or have left their
 * draft when they died. */
static esper_status open_temp(esper_draft *draft, size_t size)
{
    for (int i = 0; i < TEMP_TRIES; i++) {
        snprintf(draft->temp_path, size, "%s.%ld-%d.tmp", draft->path, (long)getpid(), i);
        draft->fd = open(draft->temp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (draft->fd >= 0)
            return ESPER_OK;
        if (errno != EEXIST)
            break;
    }
    return esper_file_fail("cannot be created", draft->temp_path);
}

/* The directory that holds `path`. The end of the path is cut for the moment. */
static esper_status open_directory_of(esper_draft *draft)
{
    char *slash = strrchr(draft->path, '/'), after = slash != NULL ? slash[1] : '\0';

    if (slash != NULL)
        slash[1] = '\0'; /* keeps the slash, so that "/file" gives "/" */
    draft->dir_fd = open(slash != NULL ? draft->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slash != NULL)
        slash[1] = after;
    if (draft->dir_fd < 0 && errno != EACCES)
        return esper_file_fail("its directory cannot be opened", draft->path);
    return ESPER_OK;
}

esper_status esper_draft_open(const char *path, esper_draft **draft_out)
{
    size_t temp_size = strlen(path) + TEMP_SUFFIX_CHARS;
    esper_draft *draft = esper_mem_alloc(sizeof(*draft));
    esper_status st;

    if (draft == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "writing %s", path);
    draft->fd = -1;
    draft->dir_fd = -1;
    draft->path = esper_mem_strdup(path);
    draft->temp_path = esper_mem_alloc(temp_size);
    if (draft->path == NULL || draft->temp_path == NULL)
        st = ESPER_FAIL(ESPER_E_NOMEM, "writing %s", path);
    else
        st = open_directory_of(draft);
    if (st == ESPER_OK)
        st = open_temp(draft, temp_size);
    if (st != ESPER_OK) {
        esper_draft_close(draft);
        return st;
    }
    *draft_out = draft;
    return ESPER_OK;
}

esper_status esper_draft_write(esper_draft *draft, const void *data, size_t bytes)
{
    const char *at = data;

    assert(draft->fd >= 0); /* nothing follows a commit */
    while (bytes > 0) {
        ssize_t n = write(draft->fd, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return esper_file_fail("cannot be written", draft->path);
        at += n;
        bytes -= (size_t)n;
    }
    return ESPER_OK;
}

esper_status esper_draft_commit(esper_draft *draft)
{
    if (draft->fd < 0)
        return ESPER_FAIL(ESPER_E_STATE, "%s: committed already", draft->path);
    if (fsync(draft->fd) != 0)
        return esper_file_fail("cannot be synced", draft->path);
    if (rename(draft->temp_path, draft->path) != 0)
        return esper_file_fail("cannot be put in place", draft->path);
    close(draft->fd);
    draft->fd = -1;
    /* Some file systems cannot sync a directory and answer EINVAL; their names are as durable as they get. */
    if (draft->dir_fd >= 0 && fsync(draft->dir_fd) != 0 && errno != EINVAL)
        return esper_file_fail("written, but its directory cannot be synced", draft->path);
    return ESPER_OK;
}

void esper_draft_close(esper_draft *draft)
{
    if (draft == NULL)
        return;
    if (draft->fd >= 0) {
        close(draft->fd);
        unlink(draft->temp_path);
    }
    if (draft->dir_fd >= 0)
        close(draft->dir_fd);
    esper_mem_free(draft->temp_path);
    esper_mem_free(draft->path);
    esper_mem_free(draft);
}

esper_status esper_file_write(const char *path, const void *data, size_t bytes)
{
    esper_draft *draft;
    esper_status st;

    ESPER_TRY(esper_draft_open(path, &draft));
    st = esper_draft_write(draft, data, bytes);
    if (st == ESPER_OK)
        st = esper_draft_commit(draft);
    esper_draft_close(draft);
    return st;
}
