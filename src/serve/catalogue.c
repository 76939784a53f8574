/* Runs below a directory. */
#include "serve/catalogue.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "serve/answers.h"

/* A comparison keeps its runs one directory below, and somebody may keep comparisons in a directory of their own. */
enum { MOST_DEPTH = 4, MOST_RUNS = 20000, MOST_LOCKS = 4096, WHY_CHARS = 512 };

static const double least_pause_s = 0.5; /* between two walks that somebody's unknown name asks for */

/* What is compared to see whether a store has changed: its file and that of its newest rows. */
typedef struct signature {
    struct {
        int64_t inode, bytes, time_ns;
    } file, wal;
    bool running;
} signature;

typedef struct entry {
    esper_catalogue_entry what;
    signature             known;
    char                 *json;           /* NULL: it could not be read */
    char                  why[WHY_CHARS]; /* then */
    bool                  seen;           /* by the walk under way */
} entry;

typedef struct lock {
    dev_t device;
    ino_t inode;
} lock;

struct esper_catalogue {
    pthread_mutex_t mutex;
    char            dir[ESPER_PATH_CHARS];
    entry         **entries; /* by name */
    int             n, room;
    uint64_t        version;
    double          walked;      /* when, by esper_clock_seconds */
    lock            locks[MOST_LOCKS];
    int             n_locks;
};

/* ------------------------------------------------------------------------------------------------ who runs */

/* A run holds a lock on its directory. Asking for the lock would keep a run from beginning just then, so the list that the system
 * has of all locks is read: "5: FLOCK  ADVISORY  WRITE 4711 fe:00:1835010 0 EOF". */
static void read_locks(esper_catalogue *catalogue)
{
    FILE *file = fopen("/proc/locks", "re");
    char line[256];

    catalogue->n_locks = 0;
    while (file != NULL && catalogue->n_locks < MOST_LOCKS && fgets(line, sizeof(line), file) != NULL) {
        unsigned major_number, minor_number;
        unsigned long long inode;

        if (sscanf(line, "%*d: FLOCK %*s WRITE %*d %x:%x:%llu", &major_number, &minor_number, &inode) == 3)
            catalogue->locks[catalogue->n_locks++] =
                (lock){.device = makedev(major_number, minor_number), .inode = (ino_t)inode};
    }
    if (file != NULL)
        fclose(file);
}

/* File systems that are layered have another device number in that list; the number of the inode decides then, among directories
 * that hold a store. */
static bool is_locked(const esper_catalogue *catalogue, const struct stat *dir)
{
    for (int i = 0; i < catalogue->n_locks; i++)
        if (catalogue->locks[i].inode == dir->st_ino)
            return true;
    return false;
}

/* ------------------------------------------------------------------------------------------------ entries */

static void entry_close(entry *one)
{
    if (one == NULL)
        return;
    esper_mem_free(one->json);
    esper_mem_free(one);
}

static bool is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/");

    return name[0] != '\0' && name[n] == '\0' && n < ESPER_REQUEST_ID_CHARS;
}

static int find_place(const esper_catalogue *catalogue, const char *name, bool *found_out)
{
    int low = 0, high = catalogue->n;

    *found_out = false;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(name, catalogue->entries[middle]->what.name);

        if (order == 0) {
            *found_out = true;
            return middle;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static esper_status add_entry(esper_catalogue *catalogue, const char *name, entry **entry_out)
{
    bool found;
    int at = find_place(catalogue, name, &found);
    entry *one;

    if (found) {
        *entry_out = catalogue->entries[at];
        return ESPER_OK;
    }
    if (catalogue->n == catalogue->room) {
        int room = 2 * catalogue->room + 64;
        entry **larger = esper_mem_grow(catalogue->entries, (size_t)room * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%d runs", room);
        catalogue->entries = larger;
        catalogue->room = room;
    }
    one = esper_mem_alloc(sizeof(*one));
    if (one == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "run %s", name);
    snprintf(one->what.name, sizeof(one->what.name), "%s", name);
    if (is_plain(name))
        snprintf(one->what.id, sizeof(one->what.id), "%s", name);
    else
        snprintf(one->what.id, sizeof(one->what.id), "~%016" PRIx64, (uint64_t)XXH3_64bits(name, strlen(name)));
    memmove(catalogue->entries + at + 1, catalogue->entries + at, sizeof(entry *) * (size_t)(catalogue->n - at));
    catalogue->entries[at] = one;
    catalogue->n++;
    *entry_out = one;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the walk */

static signature sign(int dir, const struct stat *store, bool running)
{
    signature now = {.running = running};
    struct stat wal;

    now.file.inode = (int64_t)store->st_ino;
    now.file.bytes = (int64_t)store->st_size;
    now.file.time_ns = (int64_t)store->st_mtim.tv_sec * 1000000000 + store->st_mtim.tv_nsec;
    if (fstatat(dir, ESPER_RUN_STORE "-wal", &wal, AT_SYMLINK_NOFOLLOW) == 0) {
        now.wal.inode = (int64_t)wal.st_ino;
        now.wal.bytes = (int64_t)wal.st_size;
        now.wal.time_ns = (int64_t)wal.st_mtim.tv_sec * 1000000000 + wal.st_mtim.tv_nsec;
    }
    return now;
}

static bool is_same(const signature *a, const signature *b)
{
    return a->running == b->running && memcmp(&a->file, &b->file, sizeof(a->file)) == 0 &&
           memcmp(&a->wal, &b->wal, sizeof(a->wal)) == 0;
}

/* The line about a run, made anew. A store that cannot be read is listed with the reason. */
static void read_entry(entry *one)
{
    esper_page page = {0};
    esper_source source;
    esper_status status = esper_source_open(one->what.store, true, &source);

    if (status == ESPER_OK) {
        status = esper_answer_summary(&source, one->what.id, one->what.name, one->what.running, &page);
        esper_source_close(&source);
    }
    if (status != ESPER_OK)
        snprintf(one->why, sizeof(one->why), "%s", esper_last_error());
    esper_mem_free(one->json);
    one->json = status == ESPER_OK ? page.text : NULL;
    if (status != ESPER_OK)
        esper_page_fini(&page);
}

/* The directory holds a store, unless that is a link. */
static esper_status take_store(esper_catalogue *catalogue, int dir, const char *name, bool *changed)
{
    struct stat store, own;
    signature now;
    entry *one = NULL;
    int n_before = catalogue->n;

    if (fstatat(dir, ESPER_RUN_STORE, &store, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(store.st_mode) ||
        fstat(dir, &own) != 0 || catalogue->n >= MOST_RUNS)
        return ESPER_OK;
    ESPER_TRY(add_entry(catalogue, name, &one));
    one->seen = true;
    if (snprintf(one->what.store, sizeof(one->what.store), "%s/%s/%s", catalogue->dir, name, ESPER_RUN_STORE) >=
        (int)sizeof(one->what.store))
        one->what.store[0] = '\0'; /* too deep to be opened, and said so */
    one->what.running = is_locked(catalogue, &own);
    now = sign(dir, &store, one->what.running);
    if (catalogue->n != n_before || !is_same(&now, &one->known)) {
        one->known = now;
        read_entry(one);
        *changed = true;
    }
    return ESPER_OK;
}

/* dir is closed. */
static esper_status walk(esper_catalogue *catalogue, int dir, const char *name, int depth, bool *changed)
{
    esper_status status = take_store(catalogue, dir, name, changed);
    DIR *handle = fdopendir(dir);
    const struct dirent *found;
    char below[ESPER_PATH_CHARS];

    if (handle == NULL) {
        close(dir);
        return status;
    }
    while (status == ESPER_OK && depth < MOST_DEPTH && (found = readdir(handle)) != NULL) {
        int fd;

        if (found->d_name[0] == '.' || (found->d_type != DT_DIR && found->d_type != DT_UNKNOWN))
            continue;
        if (snprintf(below, sizeof(below), "%s%s%s", depth > 0 ? name : "", depth > 0 ? "/" : "", found->d_name) >=
            (int)sizeof(below))
            continue;
        fd = openat(dirfd(handle), found->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            status = walk(catalogue, fd, below, depth + 1, changed);
    }
    closedir(handle);
    return status;
}

static void drop_unseen(esper_catalogue *catalogue, bool *changed)
{
    int n = 0;

    for (int i = 0; i < catalogue->n; i++) {
        if (catalogue->entries[i]->seen) {
            catalogue->entries[n++] = catalogue->entries[i];
        } else {
            entry_close(catalogue->entries[i]);
            *changed = true;
        }
    }
    catalogue->n = n;
}

/* A directory that is not there (yet) holds no runs. */
static esper_status refresh(esper_catalogue *catalogue)
{
    int dir = open(catalogue->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    esper_status status = ESPER_OK;
    bool changed = false;

    if (dir < 0 && errno != ENOENT)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be opened: %s", catalogue->dir, strerror(errno));
    read_locks(catalogue);
    for (int i = 0; i < catalogue->n; i++)
        catalogue->entries[i]->seen = false;
    if (dir >= 0)
        status = walk(catalogue, dir, ".", 0, &changed);
    if (status == ESPER_OK)
        drop_unseen(catalogue, &changed);
    catalogue->walked = esper_clock_seconds();
    catalogue->version += changed;
    return status;
}

/* ------------------------------------------------------------------------------------------------ asking */

esper_status esper_catalogue_refresh(esper_catalogue *catalogue, uint64_t *version_out)
{
    esper_status status;

    pthread_mutex_lock(&catalogue->mutex);
    status = refresh(catalogue);
    *version_out = catalogue->version;
    pthread_mutex_unlock(&catalogue->mutex);
    return status;
}

static const entry *entry_of(const esper_catalogue *catalogue, const char *id)
{
    for (int i = 0; i < catalogue->n; i++)
        if (strcmp(catalogue->entries[i]->what.id, id) == 0)
            return catalogue->entries[i];
    return NULL;
}

esper_status esper_catalogue_find(esper_catalogue *catalogue, const char *id, esper_catalogue_entry *entry_out)
{
    esper_status status = ESPER_OK;
    const entry *found;

    pthread_mutex_lock(&catalogue->mutex);
    found = entry_of(catalogue, id);
    if (found == NULL && esper_clock_seconds() - catalogue->walked > least_pause_s) {
        status = refresh(catalogue);
        found = entry_of(catalogue, id);
    }
    if (found != NULL)
        *entry_out = found->what;
    pthread_mutex_unlock(&catalogue->mutex);
    if (status != ESPER_OK)
        return status;
    return found != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOTFOUND, "there is no such run");
}

static void add_unread(const entry *one, esper_page *page)
{
    char text[6 * (ESPER_PATH_CHARS + WHY_CHARS) + 64];
    esper_json json;

    esper_json_init(&json, text, sizeof(text));
    esper_json_object_begin(&json);
    esper_json_key(&json, "name");
    esper_json_text(&json, one->what.name);
    esper_json_key(&json, "why");
    esper_json_text(&json, one->why);
    esper_json_object_end(&json);
    esper_page_print(page, "%s", text);
}

esper_status esper_catalogue_list(esper_catalogue *catalogue, esper_page *page)
{
    char dir[6 * ESPER_PATH_CHARS + 16];
    esper_json json;
    int n = 0;

    pthread_mutex_lock(&catalogue->mutex);
    esper_json_init(&json, dir, sizeof(dir));
    esper_json_text(&json, catalogue->dir);
    esper_page_print(page, "{\"version\":%" PRIu64 ",\"dir\":%s,\"runs\":[", catalogue->version, dir);
    for (int i = 0; i < catalogue->n; i++)
        if (catalogue->entries[i]->json != NULL)
            esper_page_print(page, "%s%s", n++ > 0 ? ",\n" : "", catalogue->entries[i]->json);
    esper_page_print(page, "],\"unread\":[");
    n = 0;
    for (int i = 0; i < catalogue->n; i++) {
        if (catalogue->entries[i]->json != NULL)
            continue;
        esper_page_print(page, "%s", n++ > 0 ? "," : "");
        add_unread(catalogue->entries[i], page);
    }
    esper_page_print(page, "]}");
    pthread_mutex_unlock(&catalogue->mutex);
    return page->status;
}

int esper_catalogue_count(esper_catalogue *catalogue)
{
    int n;

    pthread_mutex_lock(&catalogue->mutex);
    n = catalogue->n;
    pthread_mutex_unlock(&catalogue->mutex);
    return n;
}

esper_status esper_catalogue_open(const char *dir, esper_catalogue **catalogue_out)
{
    esper_catalogue *catalogue = esper_mem_alloc(sizeof(*catalogue));
    size_t n = strlen(dir);
    esper_status status;

    if (catalogue == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the list of runs");
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n >= sizeof(catalogue->dir)) {
        esper_mem_free(catalogue);
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", dir);
    }
    memcpy(catalogue->dir, dir, n);
    pthread_mutex_init(&catalogue->mutex, NULL);
    status = refresh(catalogue);
    if (status != ESPER_OK) {
        esper_catalogue_close(catalogue);
        return status;
    }
    *catalogue_out = catalogue;
    return ESPER_OK;
}

void esper_catalogue_close(esper_catalogue *catalogue)
{
    if (catalogue == NULL)
        return;
    for (int i = 0; i < catalogue->n; i++)
        entry_close(catalogue->entries[i]);
    esper_mem_free(catalogue->entries);
    pthread_mutex_destroy(&catalogue->mutex);
    esper_mem_free(catalogue);
}
