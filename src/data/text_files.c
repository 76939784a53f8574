/* Listing the files of a text. */
#include "data/text_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/source.h"

enum { MAX_DEPTH = 1, MAX_FILES = 65536, ROOM_FIRST = 64 };

static esper_status fail_path(const char *path, const char *what)
{
    int code = errno;

    return ESPER_FAIL(code == ENOENT || code == ENOTDIR ? ESPER_E_NOTFOUND : ESPER_E_IO, "%s: %s: %s", path, what,
                      strerror(code));
}

/* Takes the path, also on failure. */
static esper_status add(esper_text_files *files, char *path, const struct stat *info)
{
    size_t room = files->room == 0 ? ROOM_FIRST : 2 * files->room;
    esper_text_file *larger = files->list;

    if (files->n == files->room)
        larger = room <= MAX_FILES ? esper_mem_grow(files->list, room * sizeof(*larger)) : NULL;
    if (larger == NULL) {
        esper_mem_free(path);
        if (room > MAX_FILES)
            return ESPER_FAIL(ESPER_E_ARG, "text: more than %d files: join them into fewer", MAX_FILES);
        return ESPER_FAIL(ESPER_E_NOMEM, "a list of %zu text files", room);
    }
    files->room = files->n == files->room ? room : files->room;
    files->list = larger;
    files->list[files->n++] = (esper_text_file){
        .path = path, .n_bytes = (uint64_t)info->st_size, .device = info->st_dev, .inode = info->st_ino};
    return ESPER_OK;
}

static esper_status list_directory(esper_text_files *files, const char *dir, int depth);

/* One name found in a directory. */
static esper_status list_entry(esper_text_files *files, const char *dir, const char *name, int depth)
{
    char *path = esper_source_join(dir, name);
    struct stat info;
    esper_status st = ESPER_OK;

    if (path == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s/%s", dir, name);
    if (stat(path, &info) != 0)
        st = errno == ENOENT ? ESPER_OK : fail_path(path, "cannot be opened"); /* a link to nowhere is no text */
    else if (S_ISREG(info.st_mode))
        return add(files, path, &info);
    else if (S_ISDIR(info.st_mode) && depth < MAX_DEPTH)
        st = list_directory(files, path, depth + 1);
    esper_mem_free(path);
    return st;
}

static esper_status list_directory(esper_text_files *files, const char *dir, int depth)
{
    DIR *handle = opendir(dir);
    const struct dirent *entry;
    esper_status st = ESPER_OK;

    if (handle == NULL)
        return fail_path(dir, "directory cannot be read");
    while (st == ESPER_OK) {
        errno = 0;
        entry = readdir(handle);
        if (entry == NULL && errno != 0)
            st = fail_path(dir, "directory cannot be read");
        if (entry == NULL)
            break;
        if (entry->d_name[0] != '.')
            st = list_entry(files, dir, entry->d_name, depth);
    }
    closedir(handle);
    return st;
}

static int compare_paths(const void *a, const void *b)
{
    const esper_text_file *x = a, *y = b;

    return strcmp(x->path, y->path);
}

/* One of the paths given: a file, or a directory with all its files. */
static esper_status list_path(esper_text_files *files, const char *path)
{
    size_t first = files->n;
    struct stat info;
    char *copy;

    if (stat(path, &info) != 0)
        return fail_path(path, "cannot be opened");
    if (S_ISDIR(info.st_mode)) {
        ESPER_TRY(list_directory(files, path, 0));
        if (files->n > first)
            qsort(files->list + first, files->n - first, sizeof(*files->list), compare_paths);
        return ESPER_OK;
    }
    if (!S_ISREG(info.st_mode))
        return ESPER_FAIL(ESPER_E_IO, "%s: is neither a file nor a directory", path);
    copy = esper_mem_strdup(path);
    return copy != NULL ? add(files, copy, &info) : ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
}

/* Whether a file before this one is the same file. Quadratic, which is why the number of files has a limit. */
static bool seen_before(const esper_text_files *files, size_t n_kept, const esper_text_file *file)
{
    for (size_t i = 0; i < n_kept; i++)
        if (files->list[i].inode == file->inode && files->list[i].device == file->device)
            return true;
    return false;
}

esper_status esper_text_files_init(esper_text_files *files, const char *paths)
{
    char *copy = esper_mem_strdup(paths);
    esper_status st = ESPER_OK;
    char *rest = copy, *path;
    size_t n_kept = 0;

    if (copy == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", paths);
    while (st == ESPER_OK && (path = strsep(&rest, ":")) != NULL)
        if (path[0] != '\0')
            st = list_path(files, path);
    esper_mem_free(copy);
    if (st != ESPER_OK)
        return st;
    for (size_t i = 0; i < files->n; i++) {
        esper_text_file file = files->list[i];

        if (file.n_bytes == 0 || seen_before(files, n_kept, &file)) {
            esper_mem_free(file.path);
            continue;
        }
        files->list[n_kept++] = file;
        files->n_bytes += file.n_bytes;
    }
    files->n = n_kept;
    return ESPER_OK;
}

void esper_text_files_fini(esper_text_files *files)
{
    for (size_t i = 0; i < files->n; i++)
        esper_mem_free(files->list[i].path);
    esper_mem_free(files->list);
    *files = (esper_text_files){0};
}
