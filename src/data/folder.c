/* Folders of images: read, sorted, counted. A name is looked at once, by fstatat: of 100,000 files that takes half a second. */
#include "data/folder.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/source.h"

enum { STEP = 1024 };

/* ------------------------------------------------------------------------------------------------ names */

typedef struct name_list {
    char **names;
    size_t n, room;
} name_list;

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_fini(name_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        esper_mem_free(list->names[i]);
    esper_mem_free(list->names);
    *list = (name_list){0};
}

static esper_status list_add(name_list *list, const char *name)
{
    if (list->n == list->room) {
        char **larger = esper_mem_grow(list->names, (list->room * 2 + STEP) * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "a folder of %zu names", list->n);
        list->names = larger;
        list->room = list->room * 2 + STEP;
    }
    list->names[list->n] = esper_mem_strdup(name);
    if (list->names[list->n] == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a folder of %zu names", list->n);
    list->n++;
    return ESPER_OK;
}

/* All names in a folder that do not begin with a dot, sorted. */
static esper_status list_read(name_list *list, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    esper_status status = ESPER_OK;

    if (dir == NULL)
        return esper_file_fail("cannot be read", path);
    for (errno = 0; status == ESPER_OK && (entry = readdir(dir)) != NULL; errno = 0)
        if (entry->d_name[0] != '.')
            status = list_add(list, entry->d_name);
    if (status == ESPER_OK && errno != 0)
        status = esper_file_fail("cannot be read", path);
    closedir(dir);
    if (status == ESPER_OK && list->n > 0)
        qsort(list->names, list->n, sizeof(*list->names), by_name);
    return status;
}

static bool list_has(const name_list *list, const char *name)
{
    return list->n > 0 && bsearch(&name, list->names, list->n, sizeof(*list->names), by_name) != NULL;
}

static char *join(const char *dir, const char *name)
{
    return dir[0] == '\0' ? esper_mem_strdup(name) : esper_source_join(dir, name);
}

void esper_folder_passed_add(esper_folder_passed *passed, const char *name)
{
    if (passed->n < ESPER_FOLDER_NAMED)
        passed->named[passed->n] = esper_mem_strdup(name); /* NULL when memory is out: it is not named */
    passed->n++;
}

void esper_folder_passed_fini(esper_folder_passed *passed)
{
    for (int i = 0; i < ESPER_FOLDER_NAMED; i++)
        esper_mem_free(passed->named[i]);
    *passed = (esper_folder_passed){0};
}

void esper_folder_name_passed(const esper_folder_passed *passed, char *text, size_t chars)
{
    size_t used = 0, n_named = 0;

    assert(chars > 0);
    text[0] = '\0';
    for (; n_named < ESPER_FOLDER_NAMED && n_named < passed->n && passed->named[n_named] != NULL; n_named++) {
        int n = snprintf(text + used, chars - used, "%s%s", n_named > 0 ? ", " : "", passed->named[n_named]);

        if (n < 0 || (size_t)n + 32 >= chars - used) { /* room for what follows */
            text[used] = '\0';
            break;
        }
        used += (size_t)n;
    }
    if (passed->n > n_named)
        snprintf(text + used, chars - used, "%s%" PRIu64 " more", n_named > 0 ? " and " : "", passed->n - n_named);
}

/* ------------------------------------------------------------------------------------------------ classes */

static bool is_image_name(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL &&
           (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

/* Names travel into reports, exports and JSON: they are text. */
static esper_status check_name(const char *dir, const char *name)
{
    size_t n = strlen(name), length;

    for (size_t i = 0; i < n; i += length) {
        length = esper_utf8_length((const uint8_t *)name + i, n - i);
        if (length == 0)
            return ESPER_FAIL(ESPER_E_FORMAT,
                              "%s: the folder's name '%s' is not UTF-8 at byte %zu, and it is to be the name of a "
                              "class: rename it",
                              dir, name, i);
    }
    return ESPER_OK;
}

/* The class of that name; it is added where there is none and `may_add`. -1: there is none. */
static esper_status class_of(esper_folder *folder, const char *name, bool may_add, int *class_out)
{
    for (int i = 0; i < folder->n_classes; i++)
        if (strcmp(folder->classes[i], name) == 0) {
            *class_out = i;
            return ESPER_OK;
        }
    *class_out = -1;
    if (!may_add)
        return ESPER_OK;
    if (folder->n_classes == ESPER_DATASET_MAX_CLASSES)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "%s: more than %d folders with images: at most so many classes can be told apart",
                          folder->path, (int)ESPER_DATASET_MAX_CLASSES);
    if (folder->n_classes == folder->class_room) {
        char **larger = esper_mem_grow(folder->classes, ESPER_DATASET_MAX_CLASSES * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: classes", folder->path);
        folder->classes = larger;
        folder->class_room = ESPER_DATASET_MAX_CLASSES;
    }
    folder->classes[folder->n_classes] = esper_mem_strdup(name);
    if (folder->classes[folder->n_classes] == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: classes", folder->path);
    *class_out = folder->n_classes++;
    return ESPER_OK;
}

static esper_status add_file(esper_folder *folder, char *path, int class, int store, const struct stat *info)
{
    if (folder->n_files == folder->room) {
        esper_folder_file *larger = esper_mem_grow(folder->files, (folder->room * 2 + STEP) * sizeof(*larger));

        if (larger == NULL) {
            esper_mem_free(path);
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: %" PRIu64 " files", folder->path, folder->n_files);
        }
        folder->files = larger;
        folder->room = folder->room * 2 + STEP;
    }
    folder->files[folder->n_files++] =
        (esper_folder_file){.path = path,
                            .class = class,
                            .store = store,
                            .n_bytes = (uint64_t)info->st_size,
                            .time_ns = (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec};
    return ESPER_OK;
}

/* The images of one class. */
static esper_status add_class(esper_folder *folder, int dir_fd, const char *below, const char *name, int store)
{
    char *path = join(below, name), *full = path != NULL ? esper_source_join(folder->path, path) : NULL;
    uint64_t n_before = folder->n_files;
    name_list list = {0};
    esper_status status;
    int class = -1, fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    status = full == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "%s: %s", folder->path, name)
             : fd < 0     ? esper_file_fail("cannot be read", full)
                          : check_name(folder->path, name);
    if (status == ESPER_OK)
        status = list_read(&list, full);
    for (size_t i = 0; status == ESPER_OK && i < list.n; i++) {
        char *file = join(path, list.names[i]);
        struct stat info;

        if (file == NULL)
            status = ESPER_FAIL(ESPER_E_NOMEM, "%s: %s", folder->path, name);
        else if (fstatat(fd, list.names[i], &info, 0) == 0 && S_ISREG(info.st_mode) && is_image_name(list.names[i])) {
            if (folder->n_files == n_before) {
                status = class_of(folder, name, store == ESPER_STORE_TRAIN, &class);
                if (status == ESPER_OK && class < 0)
                    status = ESPER_FAIL(ESPER_E_FORMAT,
                                        "%s: the class '%s' is in the test and not in the training data: it could not "
                                        "be learned",
                                        full, name);
            }
            if (status == ESPER_OK)
                status = add_file(folder, file, class, store, &info);
            else
                esper_mem_free(file);
        } else {
            esper_folder_passed_add(&folder->others, file);
            esper_mem_free(file);
        }
    }
    if (status == ESPER_OK && folder->n_files == n_before)
        esper_folder_passed_add(&folder->empty, path);
    list_fini(&list);
    if (fd >= 0)
        close(fd);
    esper_mem_free(path);
    esper_mem_free(full);
    return status;
}

static bool is_dir(int fd, const char *name)
{
    struct stat info;

    return fstatat(fd, name, &info, 0) == 0 && S_ISDIR(info.st_mode);
}

/* The classes of one part of the data; below "" the folder itself. */
static esper_status add_store(esper_folder *folder, const char *below, int store)
{
    char *path = below[0] != '\0' ? esper_source_join(folder->path, below) : esper_mem_strdup(folder->path);
    name_list list = {0};
    esper_status status = path != NULL ? list_read(&list, path) : ESPER_FAIL(ESPER_E_NOMEM, "%s", folder->path);
    int fd = status == ESPER_OK ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (status == ESPER_OK && fd < 0)
        status = esper_file_fail("cannot be read", path);
    for (size_t i = 0; status == ESPER_OK && i < list.n; i++) {
        char *name;

        if (is_dir(fd, list.names[i])) {
            status = add_class(folder, fd, below, list.names[i], store);
            continue;
        }
        name = join(below, list.names[i]);
        if (name != NULL)
            esper_folder_passed_add(&folder->others, name);
        esper_mem_free(name);
    }
    if (fd >= 0)
        close(fd);
    list_fini(&list);
    esper_mem_free(path);
    return status;
}

/* ------------------------------------------------------------------------------------------------ splits */

static const char *const test_names[] = {"test", "val", "valid", "validation"};

enum { N_TEST_NAMES = sizeof(test_names) / sizeof(test_names[0]) };

/* Whether DIR holds train/ and nothing beside but tests. A class may be called "train", among others that are not called so. */
static bool has_splits(const name_list *dirs)
{
    if (!list_has(dirs, "train"))
        return false;
    for (size_t i = 0; i < dirs->n; i++) {
        bool known = strcmp(dirs->names[i], "train") == 0;

        for (int t = 0; t < N_TEST_NAMES; t++)
            known = known || strcmp(dirs->names[i], test_names[t]) == 0;
        if (!known)
            return false;
    }
    return true;
}

/* train/, and for the test the first of test/, val/, valid/, validation/ that is there. Where there is a test, a val/ beside it
 * is training data: validation is drawn by the seed. */
static esper_status add_splits(esper_folder *folder, const name_list *dirs)
{
    const char *test = NULL;

    folder->has_splits = true;
    ESPER_TRY(add_store(folder, "train", ESPER_STORE_TRAIN));
    for (int t = 0; t < N_TEST_NAMES; t++) {
        if (!list_has(dirs, test_names[t]))
            continue;
        if (test == NULL) {
            test = test_names[t];
            continue;
        }
        if (folder->joined != NULL)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: has %s/ and %s/ beside test/: keep one of them", folder->path,
                              folder->joined, test_names[t]);
        folder->joined = esper_mem_strdup(test_names[t]);
        if (folder->joined == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s", folder->path);
        ESPER_TRY(add_store(folder, test_names[t], ESPER_STORE_TRAIN));
    }
    if (test == NULL)
        return ESPER_OK;
    folder->has_test = true;
    return add_store(folder, test, ESPER_STORE_TEST);
}

static int by_place(const void *a, const void *b)
{
    const esper_folder_file *x = a, *y = b;

    if (x->store != y->store)
        return x->store < y->store ? -1 : 1;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return strcmp(x->path, y->path);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const char *const *)a)[0], ((const char *const *)b)[0]);
}

/* Classes in the order of their names, whichever folder they were met in first. */
static esper_status sort(esper_folder *folder)
{
    char **sorted = esper_mem_alloc((size_t)folder->n_classes * sizeof(*sorted));
    int place[ESPER_DATASET_MAX_CLASSES] = {0};

    if (sorted == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: classes", folder->path);
    memcpy(sorted, folder->classes, (size_t)folder->n_classes * sizeof(*sorted));
    qsort(sorted, (size_t)folder->n_classes, sizeof(*sorted), by_text);
    for (int i = 0; i < folder->n_classes; i++)
        for (int k = 0; k < folder->n_classes; k++)
            if (sorted[k] == folder->classes[i])
                place[i] = k;
    memcpy(folder->classes, sorted, (size_t)folder->n_classes * sizeof(*sorted));
    esper_mem_free(sorted);
    for (uint64_t i = 0; i < folder->n_files; i++)
        folder->files[i].class = place[folder->files[i].class];
    qsort(folder->files, (size_t)folder->n_files, sizeof(*folder->files), by_place);
    return ESPER_OK;
}

/* Only the folders among the names. */
static esper_status list_dirs(const char *path, name_list *dirs)
{
    name_list all = {0};
    esper_status status = list_read(&all, path);
    int fd = status == ESPER_OK ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (status == ESPER_OK && fd < 0)
        status = esper_file_fail("cannot be read", path);
    for (size_t i = 0; status == ESPER_OK && i < all.n; i++)
        if (is_dir(fd, all.names[i]))
            status = list_add(dirs, all.names[i]);
    if (fd >= 0)
        close(fd);
    list_fini(&all);
    return status;
}

/* Whether images lie in the folder itself. */
static bool holds_images(const char *path)
{
    name_list list = {0};
    bool found = false;

    if (list_read(&list, path) == ESPER_OK)
        for (size_t i = 0; i < list.n && !found; i++)
            found = is_image_name(list.names[i]);
    list_fini(&list);
    return found;
}

/* Whether there are classes in a folder: folders with images. */
static bool holds_classes(const char *path)
{
    name_list dirs = {0};
    bool found = false;

    if (list_dirs(path, &dirs) == ESPER_OK)
        for (size_t i = 0; i < dirs.n && !found; i++) {
            char *below = esper_source_join(path, dirs.names[i]);

            found = below != NULL && holds_images(below);
            esper_mem_free(below);
        }
    list_fini(&dirs);
    return found;
}

/* There are no images where they should be. People are often one folder too low or too high: then that is said. */
static esper_status fail_nothing(const esper_folder *folder, const name_list *dirs)
{
    char named[256];

    if (holds_images(folder->path))
        return ESPER_FAIL(
            ESPER_E_NOTFOUND,
            "%s: the images lie in it, and not in a folder for each class. If it is one class of several, "
            "give the folder that it lies in",
            folder->path);
    for (size_t i = 0; i < dirs->n; i++) {
        char *below = esper_source_join(folder->path, dirs->names[i]);
        bool found = below != NULL && holds_classes(below);

        esper_mem_free(below);
        if (found)
            return ESPER_FAIL(
                ESPER_E_NOTFOUND,
                "%s: the folders with images are one level further down: give %s/%s, which has a folder for "
                "each class",
                folder->path, folder->path, dirs->names[i]);
    }
    esper_folder_name_passed(&folder->others, named, sizeof(named));
    return ESPER_FAIL(ESPER_E_NOTFOUND,
                      "%s: no images: expected a folder for each class with PNG or JPEG files in it, such as "
                      "cats/1.png and dogs/1.jpg, or the same below train/ and test/%s%s",
                      folder->path, folder->others.n > 0 ? "; there is " : "", named);
}

esper_status esper_folder_list(const char *path, esper_folder *folder)
{
    name_list dirs = {0};
    esper_status status;

    folder->path = esper_mem_strdup(path);
    if (folder->path == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    status = list_dirs(path, &dirs);
    if (status == ESPER_OK)
        status = has_splits(&dirs) ? add_splits(folder, &dirs) : add_store(folder, "", ESPER_STORE_TRAIN);
    if (status == ESPER_OK && folder->n_files == 0)
        status = fail_nothing(folder, &dirs);
    list_fini(&dirs);
    ESPER_TRY(status);
    if (folder->n_classes < 2)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: all %" PRIu64 " images are of one class, '%s': there is nothing to tell apart. A folder "
                          "for each class is expected",
                          path, folder->n_files, folder->classes[0]);
    return sort(folder);
}

void esper_folder_fini(esper_folder *folder)
{
    for (uint64_t i = 0; i < folder->n_files; i++)
        esper_mem_free(folder->files[i].path);
    for (int i = 0; i < folder->n_classes; i++)
        esper_mem_free(folder->classes[i]);
    esper_mem_free(folder->files);
    esper_mem_free(folder->classes);
    esper_mem_free(folder->joined);
    esper_mem_free(folder->path);
    esper_folder_passed_fini(&folder->others);
    esper_folder_passed_fini(&folder->empty);
    *folder = (esper_folder){0};
}

uint64_t esper_folder_hash(const esper_folder *folder)
{
    uint64_t hash = XXH64(&folder->n_files, sizeof(folder->n_files), 0);
    uint64_t passed[] = {folder->others.n, folder->empty.n};

    for (uint64_t i = 0; i < folder->n_files; i++) {
        const esper_folder_file *file = &folder->files[i];
        const int64_t facts[] = {file->class, file->store, (int64_t)file->n_bytes, file->time_ns};

        hash = XXH64(file->path, strlen(file->path) + 1, hash);
        hash = XXH64(facts, sizeof(facts), hash);
    }
    return XXH64(passed, sizeof(passed), hash); /* what is told of them */
}
