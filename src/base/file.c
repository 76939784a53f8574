/* Files over the system calls: buffering by stdio would only hide what failed. */
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

enum { READ_STEP = 65536 };

/* The one place where errno becomes ours. */
esper_status esper_file_fail(const char *what, const char *path)
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
        return esper_file_fail("cannot be read", path);
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
            return esper_file_fail("cannot be read", path);
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
        return esper_file_fail("cannot be opened", path);
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

esper_status esper_file_sync_dir_of(const char *path)
{
    char *way = esper_mem_strdup(path), *slash;
    esper_status st = ESPER_OK;
    size_t n = strlen(path);
    int fd;

    if (way == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the directory of %s", path);
    while (n > 1 && way[n - 1] == '/')
        way[--n] = '\0';
    slash = strrchr(way, '/');
    if (slash != NULL)
        slash[1] = '\0'; /* keeps the slash, so that "/file" gives "/" */
    fd = open(slash != NULL ? way : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    esper_mem_free(way);
    if (fd < 0) /* one where we may write but not read is as durable as it gets */
        return errno == EACCES ? ESPER_OK : esper_file_fail("its directory cannot be opened", path);
    if (fsync(fd) != 0 && errno != EINVAL) /* that is what file systems answer that cannot sync a directory */
        st = esper_file_fail("its directory cannot be synced", path);
    close(fd);
    return st;
}

/* Makes one directory, or finds it there: mkdir has several ways of saying so (EEXIST, EROFS, EACCES), stat one. What is synced in
 * a new one is lost with its name. */
static esper_status make_dir(const char *path)
{
    struct stat info;
    int code;

    if (mkdir(path, 0777) == 0)
        return esper_file_sync_dir_of(path);
    code = errno;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ESPER_OK;
    errno = code;
    return esper_file_fail("directory cannot be made", path);
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
