/* The copy on disk, written by a thread of its own.
 *
 * An entry goes to disk by way of a stage in host memory, taken when the ring is opened, so that a slow disk never
 * holds an entry: the writer copies it there (or, from a device, the side's background stream does) and from then
 * on the ring may overwrite it. While the writer is busy, newer entries are passed by; the newest good one is
 * offered again with the next call and, at last, when the ring is closed. What goes wrong here is told by the
 * ring's status and disturbs nothing else.
 *
 *     IDLE ──offer──> FILLING (reads the entry) ──> WRITING (reads the stage) ──> IDLE
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "guard/ring.h"

#define FILE_NAME "snapshot.ring"
#define LOCK_NAME "lock"

enum { ERROR_CHARS = 512 };

typedef enum disk_state { DISK_IDLE, DISK_FILLING, DISK_WRITING } disk_state;

struct ring_disk {
    char           *path;
    int             lock_fd; /* keeps others out of the directory; -1 = none */
    ring_memory    *stages;  /* (n_sides) */
    ring_file_side *sides;   /* (n_sides) of what is staged */
    ring_file_side *found;   /* (n_sides) of what was read */
    void          **arenas;  /* (n_sides) where the stages begin */
    void           *blob;    /* of what is staged */
    size_t          blob_room;
    ring_file_image image;
    const ring_entry *entry;  /* being staged */
    uint64_t        sequence; /* of the entry last taken; older ones are of no interest */
    pthread_t       thread;
    bool            started;
    pthread_mutex_t lock;    /* guards what follows */
    pthread_cond_t  changed; /* state or closing */
    disk_state      state;
    bool            closing;
    uint64_t        step;               /* on disk */
    bool            is_ours;            /* this ring wrote it; false: nothing is there, or an earlier ring left it */
    char            error[ERROR_CHARS]; /* "" = the last writing went well */
    char            shown[ERROR_CHARS]; /* the caller's copy */
};

/* ---- the writer ---- */

/* Brings the entry into the stage: what lies on a device is on its way already. */
static esper_status fill_stage(esper_ring *ring)
{
    ring_disk *disk = ring->disk;
    size_t entry = (size_t)(disk->entry - ring->entries);

    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];

        if (side->resident)
            ESPER_TRY(esper_device_event_sync(side->staged));
        else
            memcpy(disk->arenas[i], side->copies[entry].arena.at, side->arena_bytes);
    }
    return ESPER_OK;
}

/* An entry that was damaged since it was sealed must not take the place of a good file. */
static esper_status write_stage(esper_ring *ring)
{
    ring_disk *disk = ring->disk;

    for (size_t i = 0; i < ring->n_sides; i++)
        if (ring->kernels->checksum(disk->arenas[i], disk->sides[i].bytes, 0) != disk->sides[i].sum)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: not written: the snapshot of step %llu is damaged", disk->path,
                              (unsigned long long)disk->image.step);
    return esper_ring_file_write(disk->path, &disk->image);
}

static void set_state(ring_disk *disk, disk_state state)
{
    assert(state == (disk->state == DISK_WRITING ? DISK_IDLE : disk->state + 1));
    disk->state = state;
    pthread_cond_broadcast(&disk->changed);
}

static void write_one(esper_ring *ring)
{
    ring_disk *disk = ring->disk;
    esper_status st = fill_stage(ring);

    pthread_mutex_lock(&disk->lock);
    set_state(disk, DISK_WRITING);
    pthread_mutex_unlock(&disk->lock);
    if (st == ESPER_OK)
        st = write_stage(ring);
    pthread_mutex_lock(&disk->lock);
    if (st == ESPER_OK) {
        disk->step = disk->image.step;
        disk->is_ours = true;
    }
    snprintf(disk->error, sizeof(disk->error), "%s", st == ESPER_OK ? "" : esper_last_error());
    set_state(disk, DISK_IDLE);
    pthread_mutex_unlock(&disk->lock);
}

static void *write_entries(void *argument)
{
    esper_ring *ring = argument;
    ring_disk *disk = ring->disk;
    bool closing = false;

    while (!closing) {
        pthread_mutex_lock(&disk->lock);
        while (disk->state == DISK_IDLE && !disk->closing)
            pthread_cond_wait(&disk->changed, &disk->lock);
        closing = disk->state == DISK_IDLE;
        pthread_mutex_unlock(&disk->lock);
        if (!closing)
            write_one(ring);
    }
    return NULL;
}

/* The writer takes no signals: they are the program's, and a file-size limit must be an error here, not its end. */
static esper_status start_writer(esper_ring *ring)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&ring->disk->thread, NULL, write_entries, ring);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring: the thread that writes to disk cannot be started: %s", strerror(code));
    ring->disk->started = true;
    return ESPER_OK;
}

/* ---- the directory ---- */

/* Drafts of a writer that was killed. The lock is ours, so nobody is writing them. */
static void remove_drafts(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *item;

    if (list == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((item = readdir(list)) != NULL) {
        const char *end = strrchr(item->d_name, '.');

        if (strncmp(item->d_name, FILE_NAME ".", sizeof(FILE_NAME)) == 0 && strcmp(end, ".tmp") == 0)
            unlinkat(dir_fd, item->d_name, 0);
    }
    closedir(list);
}

/* One ring to a directory: two would take turns at overwriting each other. */
static esper_status lock_directory(ring_disk *disk, const char *directory)
{
    int dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = errno;

    if (dir_fd < 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be opened: %s", directory, strerror(code));
    disk->lock_fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    code = errno;
    if (disk->lock_fd < 0) {
        close(dir_fd);
        return ESPER_FAIL(ESPER_E_IO, "%s/" LOCK_NAME ": cannot be created: %s", directory, strerror(code));
    }
    if (flock(disk->lock_fd, LOCK_EX | LOCK_NB) == 0)
        remove_drafts(dir_fd);
    else if (errno == EWOULDBLOCK) {
        close(dir_fd);
        return ESPER_FAIL(ESPER_E_STATE, "%s: another ring keeps its snapshots here: give each a directory of its own",
                          directory);
    }
    close(dir_fd);
    return ESPER_OK;
}

/* ---- opening and closing ---- */

static esper_status open_stages(esper_ring *ring)
{
    ring_disk *disk = ring->disk;
    size_t n = ring->n_sides;

    disk->stages = esper_mem_alloc(n * sizeof(*disk->stages));
    disk->sides = esper_mem_alloc(n * sizeof(*disk->sides));
    disk->found = esper_mem_alloc(n * sizeof(*disk->found));
    disk->arenas = esper_mem_alloc(n * sizeof(*disk->arenas));
    if (disk->stages == NULL || disk->sides == NULL || disk->found == NULL || disk->arenas == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    for (size_t i = 0; i < n; i++) {
        ring_memory *stage = &disk->stages[i];

        ESPER_TRY(esper_ring_side_reserve(&ring->sides[i], true, &stage, 1));
        disk->arenas[i] = stage->at;
        disk->sides[i] = (ring_file_side){.number = ring->sides[i].number, .bytes = ring->sides[i].arena_bytes};
    }
    disk->image = (ring_file_image){.layout = ring->layout, .sides = disk->sides, .n_sides = n, .arenas = disk->arenas};
    return ESPER_OK;
}

static esper_status open_parts(esper_ring *ring, const char *directory)
{
    size_t chars = strlen(directory) + sizeof("/" FILE_NAME);
    esper_status st;

    ring->disk->path = esper_mem_alloc(chars);
    if (ring->disk->path == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    snprintf(ring->disk->path, chars, "%s/" FILE_NAME, directory);
    ESPER_TRY(esper_file_make_dirs(directory));
    ESPER_TRY(lock_directory(ring->disk, directory));
    ESPER_TRY(open_stages(ring));
    st = esper_ring_file_look(ring->disk->path, &ring->disk->image, ring->disk->found, &ring->disk->step);
    if (st != ESPER_OK && st != ESPER_E_NOTFOUND) /* no reason not to begin: the status tells of it */
        snprintf(ring->disk->error, sizeof(ring->disk->error), "%s", esper_last_error());
    return start_writer(ring);
}

esper_status esper_ring_disk_open(esper_ring *ring, const char *directory)
{
    ring_disk *disk = esper_mem_alloc(sizeof(*disk));
    esper_status st;

    if (disk == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "ring");
    disk->lock_fd = -1;
    disk->step = ESPER_GUARD_NONE;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_cond_init(&disk->changed, NULL);
    ring->disk = disk;
    st = open_parts(ring, directory);
    if (st != ESPER_OK)
        esper_ring_disk_close(ring);
    return st;
}

void esper_ring_disk_close(esper_ring *ring)
{
    ring_disk *disk = ring->disk;

    if (disk == NULL)
        return;
    if (disk->started) {
        pthread_mutex_lock(&disk->lock);
        disk->closing = true;
        pthread_cond_broadcast(&disk->changed);
        pthread_mutex_unlock(&disk->lock);
        pthread_join(disk->thread, NULL); /* it finishes what it has begun */
    }
    for (size_t i = 0; disk->stages != NULL && i < ring->n_sides; i++)
        esper_ring_memory_fini(&ring->sides[i], &disk->stages[i]);
    if (disk->lock_fd >= 0)
        close(disk->lock_fd);
    pthread_cond_destroy(&disk->changed);
    pthread_mutex_destroy(&disk->lock);
    esper_mem_free(disk->blob);
    esper_mem_free(disk->arenas);
    esper_mem_free(disk->found);
    esper_mem_free(disk->sides);
    esper_mem_free(disk->stages);
    esper_mem_free(disk->path);
    esper_mem_free(disk);
    ring->disk = NULL;
}

/* ---- the ring's side ---- */

static esper_status stage_blob(ring_disk *disk, const ring_entry *entry)
{
    if (entry->blob_bytes > disk->blob_room) {
        void *room = esper_mem_alloc(entry->blob_bytes);

        if (room == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: not written: no memory for a blob of %zu bytes", disk->path,
                              entry->blob_bytes);
        esper_mem_free(disk->blob);
        disk->blob = room;
        disk->blob_room = entry->blob_bytes;
    }
    if (entry->blob_bytes != 0)
        memcpy(disk->blob, entry->blob, entry->blob_bytes);
    disk->image.blob = disk->blob;
    disk->image.blob_bytes = entry->blob_bytes;
    disk->image.blob_sum = entry->blob_sum;
    return ESPER_OK;
}

/* Everything the writer needs to know, and the way from the devices to the stage. */
static esper_status stage_entry(esper_ring *ring, const ring_entry *entry)
{
    ring_disk *disk = ring->disk;

    assert(entry->state == ESPER_RING_GOOD);
    ESPER_TRY(stage_blob(disk, entry));
    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_side *side = &ring->sides[i];
        ring_copy *copy = &side->copies[entry - ring->entries];

        disk->sides[i].sum = copy->sum;
        if (!side->resident)
            continue;
        ESPER_TRY(esper_stream_copy(side->background, disk->arenas[i], copy->arena.at, side->arena_bytes));
        ESPER_TRY(esper_device_event_record(side->staged, side->background));
    }
    disk->image.step = entry->step;
    disk->entry = entry;
    return ESPER_OK;
}

void esper_ring_disk_offer(esper_ring *ring, const ring_entry *entry)
{
    ring_disk *disk = ring->disk;
    bool idle;
    esper_status st;

    if (disk == NULL || entry->sequence <= disk->sequence)
        return;
    pthread_mutex_lock(&disk->lock);
    idle = disk->state == DISK_IDLE;
    pthread_mutex_unlock(&disk->lock);
    if (!idle)
        return;
    st = stage_entry(ring, entry);
    disk->sequence = entry->sequence;
    pthread_mutex_lock(&disk->lock);
    if (st == ESPER_OK)
        set_state(disk, DISK_FILLING);
    else
        snprintf(disk->error, sizeof(disk->error), "%s", esper_last_error());
    pthread_mutex_unlock(&disk->lock);
}

void esper_ring_disk_leave(esper_ring *ring, const ring_entry *entry)
{
    ring_disk *disk = ring->disk;

    if (disk == NULL || disk->entry != entry)
        return;
    pthread_mutex_lock(&disk->lock);
    while (disk->state == DISK_FILLING)
        pthread_cond_wait(&disk->changed, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
}

void esper_ring_disk_wait(esper_ring *ring)
{
    ring_disk *disk = ring->disk;

    if (disk == NULL)
        return;
    pthread_mutex_lock(&disk->lock);
    while (disk->state != DISK_IDLE)
        pthread_cond_wait(&disk->changed, &disk->lock);
    pthread_mutex_unlock(&disk->lock);
}

/* The stage is free once the writer is, and serves as the place to read to. */
esper_status esper_ring_disk_load(esper_ring *ring, ring_entry *entry)
{
    ring_disk *disk = ring->disk;
    ring_file_image image = disk->image;

    esper_ring_disk_wait(ring);
    if (!disk->is_ours && !ring->options.resume)
        return ESPER_E_NOTFOUND; /* the ring says so in its own words */
    ESPER_TRY(esper_ring_file_read(disk->path, &image, disk->found));
    entry->state = ESPER_RING_EMPTY;
    esper_mem_free(entry->blob);
    entry->blob = image.blob;
    entry->blob_bytes = entry->blob_room = image.blob_bytes;
    entry->blob_sum = image.blob_sum;
    for (size_t i = 0; i < ring->n_sides; i++) {
        ring_copy *copy = &ring->sides[i].copies[entry - ring->entries];

        ESPER_TRY(ring->sides[i].ops->load(&ring->sides[i], copy, disk->arenas[i]));
        copy->sum = disk->found[i].sum;
        copy->mirrored = false;
    }
    entry->step = image.step;
    entry->sequence = ++ring->sequence;
    entry->state = ESPER_RING_GOOD;
    disk->sequence = entry->sequence; /* it need not be written again */
    return ESPER_OK;
}

void esper_ring_disk_status(esper_ring *ring, esper_ring_status *status)
{
    ring_disk *disk = ring->disk;

    status->disk_step = ESPER_GUARD_NONE;
    if (disk == NULL)
        return;
    pthread_mutex_lock(&disk->lock);
    memcpy(disk->shown, disk->error, sizeof(disk->shown));
    status->disk_step = disk->step;
    status->disk_left_over = disk->step != ESPER_GUARD_NONE && !disk->is_ours;
    pthread_mutex_unlock(&disk->lock);
    status->disk_error = disk->shown[0] != '\0' ? disk->shown : NULL;
}

void esper_ring_disk_left_over(esper_ring *ring, char text[RING_TEXT_CHARS])
{
    esper_ring_status status = {0};

    text[0] = '\0';
    esper_ring_disk_status(ring, &status);
    if (status.disk_left_over && !ring->options.resume)
        snprintf(
            text, RING_TEXT_CHARS,
            "; an older one of step %llu lies in %s, left by another ring: it is used only by a ring that is opened "
            "with resume = 1",
            (unsigned long long)status.disk_step, ring->disk->path);
}
