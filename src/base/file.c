/* Whole files over the system calls: buffering by stdio would only hide which write failed. */
#include "base/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"

enum { READ_STEP = 65536, TEMP_TRIES = 100, TEMP_SUFFIX_CHARS = 48 };

struct esper_draft {
    int   fd;        /* -1 once committed */
    int   dir_fd;    /* the directory, to be synced after the move; -1 where we may write but not read it */
    char *path;
    char *temp_path; /* in the same directory, so that the last move stays within one file system */
};

/* The one place where errno becomes ours. */
static esper_status fail_errno(const char *what, const char *path)
{
    int code = errno;

    return ESPER_FAIL(code == ENOENT ? ESPER_E_NOTFOUND : ESPER_E_IO, "%s: %s: %s", path, what, strerror(code));
}

/* Reads until the end. On failure the buffer is still the caller's. */
static esper_status read_all(int fd, const char *path, size_t max_bytes, char **data, size_t *used)
{
    size_t room = READ_STEP; /* of a plain file all at once */
    struct stat info;

    if (fstat(fd, &info) != 0)
        return fail_errno("cannot be read", path);
    if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > max_bytes)
        return ESPER_FAIL(ESPER_E_IO, "%s: %lld bytes, more than the %zu allowed here", path, (long long)info.st_size,
                          max_bytes);
    if (S_ISREG(info.st_mode))
        room = (size_t)info.st_size + 1; /* one more, so that the end is met without growing */
    for (;;) {
        ssize_t n;

        if (*data == NULL || *used == room) {
            char *larger;

            room += *data == NULL ? 0 : READ_STEP + room / 2;
            larger = esper_mem_grow(*data, room + 1); /* one for the terminating zero */
            if (larger == NULL)
                return ESPER_FAIL(ESPER_E_NOMEM, "%s: reading %zu bytes", path, room);
            *data = larger;
        }
        n = read(fd, *data + *used, room - *used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("cannot be read", path);
        if (n == 0)
            return ESPER_OK;
        *used += (size_t)n;
        if (*used > max_bytes)
            return ESPER_FAIL(ESPER_E_IO, "%s: more than the %zu bytes allowed here", path, max_bytes);
    }
}

esper_status esper_file_read(const char *path, size_t max_bytes, char **data_out, size_t *bytes_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *data = NULL;
    size_t used = 0;
    esper_status st;

    if (fd < 0)
        return fail_errno("cannot be opened", path);
    st = read_all(fd, path, max_bytes, &data, &used);
    close(fd);
    if (st != ESPER_OK) {
        esper_mem_free(data);
        return st;
    }
    data[used] = '\0';
    *data_out = data;
    *bytes_out = used;
    return ESPER_OK;
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

/* Makes one directory, or finds it there: mkdir has several ways of saying so (EEXIST, EROFS, EACCES), stat one. */
static esper_status make_dir(const char *path)
{
    struct stat info;
    int code;

    if (mkdir(path, 0777) == 0)
        return ESPER_OK;
    code = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ESPER_OK;
    errno = code;
    return fail_errno("directory cannot be made", path);
}

esper_status esper_file_make_dirs(const char *path)
{
    char *way = esper_mem_strdup(path);
    esper_status st = ESPER_OK;

    if (way == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "making directory %s", path);
    for (char *at = way + 1; st == ESPER_OK && *way != '\0' && *at != '\0'; at++) {
        if (*at != '/' || at[-1] == '/')
            continue;
        *at = '\0';
        st = make_dir(way);
        *at = '/';
    }
    if (st == ESPER_OK)
        st = make_dir(path);
    esper_mem_free(way);
    return st;
}

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
    return fail_errno("cannot be created", draft->temp_path);
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
        return fail_errno("its directory cannot be opened", draft->path);
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
            return fail_errno("cannot be written", draft->path);
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
        return fail_errno("cannot be synced", draft->path);
    if (rename(draft->temp_path, draft->path) != 0)
        return fail_errno("cannot be put in place", draft->path);
    close(draft->fd);
    draft->fd = -1;
    /* Some file systems cannot sync a directory and answer EINVAL; their names are as durable as they get. */
    if (draft->dir_fd >= 0 && fsync(draft->dir_fd) != 0 && errno != EINVAL)
        return fail_errno("written, but its directory cannot be synced", draft->path);
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
