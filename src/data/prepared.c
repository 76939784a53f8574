/* The cache of decoded data: one file for each folder or file of people's own, and for each way of reading it. */
#include "data/prepared.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/reader.h"

enum { CACHE_PATH_CHARS = PATH_MAX + 64, NAME_CHARS = 48, MAX_TEXT_BYTES = 256 << 20 };

static const char magic[8] = {'e', 's', 'p', 'e', 'r', 's', 'e', 't'};

/* The file's beginning. All numbers little-endian, as the machines are that we build for. */
typedef struct file_head {
    char     magic[8];
    uint32_t version, bytes; /* bytes: of this struct, so that one of another size is another version */
    uint64_t key;
    int32_t  channels, height, width, classes, features, numbers;
    float    mean[ESPER_DATASET_MAX_CHANNELS], std[ESPER_DATASET_MAX_CHANNELS];
    uint64_t n_items[ESPER_N_STORES];
    uint64_t text_bytes;
    uint32_t n_classes, n_remarks, n_columns, n_features;
    uint64_t text_hash, contents_hash; /* XXH64 */
    uint64_t head_hash;                /* of all before it */
} file_head;

/* ------------------------------------------------------------------------------------------------ texts */

static void add_text(esper_prepared *set, const char *text)
{
    esper_page_print(&set->plan.texts.page, "%s%c", text, 0);
}

void esper_prepared_class(esper_prepared *set, const char *name)
{
    assert(set->plan.texts.n_remarks == 0 && set->plan.texts.n_columns == 0);
    add_text(set, name);
    set->plan.texts.n_classes++;
}

void esper_prepared_remark(esper_prepared *set, const char *format, ...)
{
    char text[1024];
    va_list args;

    assert(set->plan.texts.n_columns == 0);
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    add_text(set, text);
    set->plan.texts.n_remarks++;
}

void esper_prepared_column(esper_prepared *set, const char *name, const char *about)
{
    add_text(set, name);
    add_text(set, about);
    set->plan.texts.n_columns++;
}

void esper_prepared_feature(esper_prepared *set, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    add_text(set, text);
    set->plan.texts.n_features++;
}

/* ------------------------------------------------------------------------------------------------ places */

/* Where the cache is: the setting `cache`, or where programs keep such files. */
static esper_status cache_dir(const esper_dataset_desc *desc, char *out, size_t chars)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;

    if (desc->cache != NULL && desc->cache[0] != '\0')
        n = snprintf(out, chars, "%s", desc->cache);
    else if (xdg != NULL && xdg[0] == '/')
        n = snprintf(out, chars, "%s/esper", xdg);
    else if (home != NULL && home[0] == '/')
        n = snprintf(out, chars, "%s/.cache/esper", home);
    else
        return ESPER_FAIL(ESPER_E_CONFIG, "there is no place for decoded data: HOME is not set; give --cache DIR");
    return n > 0 && (size_t)n < chars ? ESPER_OK : ESPER_FAIL(ESPER_E_CONFIG, "cache: the path is too long");
}

/* The settings that make another set of the same files. */
static uint64_t hash_settings(const esper_dataset_desc *desc)
{
    const uint32_t numbers[] = {ESPER_PREPARED_VERSION, (uint32_t)desc->source, desc->grey, desc->skip_bad};
    uint64_t hash = XXH64(numbers, sizeof(numbers), 0);
    const char *texts[] = {desc->image_size, desc->target};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *text = texts[i] != NULL ? texts[i] : "";

        hash = XXH64(text, strlen(text) + 1, hash);
    }
    return hash;
}

esper_status esper_prepared_path(const esper_dataset_desc *desc, char *path_out, size_t chars)
{
    char real[PATH_MAX], dir[PATH_MAX], name[NAME_CHARS];
    const char *last;
    size_t n = 0;

    if (realpath(desc->path, real) == NULL)
        return esper_file_fail("cannot be opened", desc->path);
    ESPER_TRY(cache_dir(desc, dir, sizeof(dir)));
    last = strrchr(real, '/') + 1;
    for (; last[n] != '\0' && n < sizeof(name) - 1;
         n++) /* for people who look into the cache; the hash is what counts */
        name[n] = (last[n] >= 'a' && last[n] <= 'z') || (last[n] >= 'A' && last[n] <= 'Z') ||
                          (last[n] >= '0' && last[n] <= '9')
                      ? last[n]
                      : '_';
    name[n] = '\0';
    if (snprintf(path_out, chars, "%s/%s-%016" PRIx64 ".set", dir, name,
                 XXH64(real, strlen(real), hash_settings(desc))) >= (int)chars)
        return ESPER_FAIL(ESPER_E_CONFIG, "cache: the path is too long");
    return ESPER_OK;
}

esper_status esper_prepared_hash_file(const char *path, uint64_t *hash_out)
{
    struct stat info;
    int64_t facts[4];

    if (stat(path, &info) != 0)
        return esper_file_fail("cannot be read", path);
    if (!S_ISREG(info.st_mode))
        return ESPER_FAIL(ESPER_E_IO, "%s: not a file", path);
    facts[0] = info.st_size;
    facts[1] = info.st_mtim.tv_sec;
    facts[2] = info.st_mtim.tv_nsec;
    facts[3] = (int64_t)info.st_ino; /* one that was put in its place within a tick of the clock has the same time */
    *hash_out = XXH64(facts, sizeof(facts), XXH64(path, strlen(path), 0));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ contents */

/* The arrays of a store, in the order of the file. */
typedef struct part {
    void  *data;
    size_t bytes;
} part;

enum { N_PARTS = 3 };

static void parts_of(const esper_source_plan *plan, const esper_store *store, part parts[N_PARTS])
{
    size_t n = (size_t)store->n_items;

    parts[0] = (part){store->images, n * (size_t)plan->channels * (size_t)plan->height * (size_t)plan->width};
    parts[1] = (part){store->rows, n * (size_t)plan->features * sizeof(*store->rows)};
    parts[2] = (part){store->labels, n};
}

static uint64_t contents_bytes(const esper_source_plan *plan)
{
    uint64_t bytes = 0;
    part parts[N_PARTS];

    for (int s = 0; s < ESPER_N_STORES; s++) {
        const esper_store empty = {.n_items = plan->n_items[s]};

        parts_of(plan, &empty, parts);
        for (int i = 0; i < N_PARTS; i++)
            bytes += parts[i].bytes;
    }
    return bytes;
}

esper_status esper_prepared_alloc(esper_prepared *set)
{
    const esper_source_plan *plan = &set->plan;
    uint64_t bytes = contents_bytes(plan);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    if (pages > 0 && page > 0 && bytes > (uint64_t)pages * (uint64_t)page)
        return ESPER_FAIL(ESPER_E_NOMEM,
                          "the whole set is held in memory and would take %.1f GiB, and this machine has %.1f: take "
                          "fewer samples, or smaller ones (of images: --image-size HxW, --grey)",
                          (double)bytes / (1 << 30), (double)pages * (double)page / (1 << 30));
    for (int s = 0; s < ESPER_N_STORES; s++) {
        esper_store *store = &set->stores[s];
        part parts[N_PARTS];

        store->n_items = plan->n_items[s];
        parts_of(plan, store, parts);
        store->images = esper_mem_alloc(parts[0].bytes);
        store->rows = esper_mem_alloc(parts[1].bytes);
        store->labels = esper_mem_alloc(parts[2].bytes);
        if ((parts[0].bytes > 0 && store->images == NULL) || (parts[1].bytes > 0 && store->rows == NULL) ||
            (parts[2].bytes > 0 && store->labels == NULL))
            return ESPER_FAIL(ESPER_E_NOMEM, "the whole set is held in memory and takes %" PRIu64 " bytes", bytes);
    }
    return ESPER_OK;
}

void esper_prepared_fini(esper_prepared *set)
{
    for (int s = 0; s < ESPER_N_STORES; s++) {
        esper_mem_free(set->stores[s].images);
        esper_mem_free(set->stores[s].rows);
        esper_mem_free(set->stores[s].labels);
    }
    esper_page_fini(&set->plan.texts.page);
    *set = (esper_prepared){0};
}

/* ------------------------------------------------------------------------------------------------ the file */

static uint64_t hash_head(const file_head *head)
{
    return XXH64(head, offsetof(file_head, head_hash), 0);
}

static esper_status write_file(const char *path, uint64_t key, const esper_prepared *set)
{
    const esper_source_plan *plan = &set->plan;
    file_head head = {.version = ESPER_PREPARED_VERSION,
                      .bytes = sizeof(head),
                      .key = key,
                      .channels = plan->channels,
                      .height = plan->height,
                      .width = plan->width,
                      .classes = plan->classes,
                      .features = plan->features,
                      .numbers = plan->numbers,
                      .n_items = {plan->n_items[0], plan->n_items[1]},
                      .text_bytes = plan->texts.page.used,
                      .n_classes = plan->texts.n_classes,
                      .n_remarks = plan->texts.n_remarks,
                      .n_columns = plan->texts.n_columns,
                      .n_features = plan->texts.n_features,
                      .text_hash = XXH64(plan->texts.page.text, plan->texts.page.used, 0)};
    part parts[N_PARTS];
    esper_draft *draft;
    esper_status status;

    memcpy(head.magic, magic, sizeof(magic));
    memcpy(head.mean, plan->mean, sizeof(head.mean));
    memcpy(head.std, plan->std, sizeof(head.std));
    for (int s = 0; s < ESPER_N_STORES; s++) {
        parts_of(plan, &set->stores[s], parts);
        for (int i = 0; i < N_PARTS; i++)
            head.contents_hash =
                parts[i].bytes > 0 ? XXH64(parts[i].data, parts[i].bytes, head.contents_hash) : head.contents_hash;
    }
    head.head_hash = hash_head(&head);
    ESPER_TRY(esper_draft_open(path, &draft));
    status = esper_draft_write(draft, &head, sizeof(head));
    if (status == ESPER_OK)
        status = esper_draft_write(draft, plan->texts.page.text, plan->texts.page.used);
    for (int s = 0; s < ESPER_N_STORES; s++) {
        parts_of(plan, &set->stores[s], parts);
        for (int i = 0; i < N_PARTS && status == ESPER_OK; i++)
            status = esper_draft_write(draft, parts[i].data, parts[i].bytes);
    }
    if (status == ESPER_OK)
        status = esper_draft_commit(draft);
    esper_draft_close(draft);
    return status;
}

/* Whether the texts are as many as the head says. */
static bool texts_are_whole(const file_head *head, const char *text)
{
    uint64_t n = 0,
             wanted = (uint64_t)head->n_classes + head->n_remarks + 2 * (uint64_t)head->n_columns + head->n_features;

    for (uint64_t i = 0; i < head->text_bytes; i++)
        n += text[i] == '\0';
    return n == wanted && (n == 0 || text[head->text_bytes - 1] == '\0') &&
           XXH64(text, head->text_bytes, 0) == head->text_hash;
}

/* Head and texts of a file that is what is wanted; anything else is false, and the file is made anew. */
static bool read_plan(const char *path, uint64_t key, esper_reader **reader_out, file_head *head,
                      esper_source_plan *plan)
{
    esper_reader *reader = NULL;
    struct stat info;
    char *text = NULL;
    bool good;

    if (stat(path, &info) != 0 || esper_reader_open(path, ESPER_READER_PLAIN, &reader) != ESPER_OK)
        return false;
    good = esper_reader_read_all(reader, head, sizeof(*head), "head") == ESPER_OK &&
           memcmp(head->magic, magic, sizeof(magic)) == 0 && head->version == ESPER_PREPARED_VERSION &&
           head->bytes == sizeof(*head) && head->head_hash == hash_head(head) && head->key == key &&
           head->text_bytes < MAX_TEXT_BYTES;
    if (good) {
        text = esper_mem_alloc((size_t)head->text_bytes + 1);
        good = text != NULL && esper_reader_read_all(reader, text, (size_t)head->text_bytes, "texts") == ESPER_OK &&
               texts_are_whole(head, text);
    }
    if (good) {
        *plan = (esper_source_plan){
            .channels = head->channels,
            .height = head->height,
            .width = head->width,
            .classes = head->classes,
            .features = head->features,
            .numbers = head->numbers,
            .n_items = {head->n_items[0], head->n_items[1]},
            .key = key,
            .texts = {.page = {.text = text, .used = (size_t)head->text_bytes, .room = (size_t)head->text_bytes + 1},
                      .n_classes = head->n_classes,
                      .n_remarks = head->n_remarks,
                      .n_columns = head->n_columns,
                      .n_features = head->n_features}};
        memcpy(plan->mean, head->mean, sizeof(head->mean));
        memcpy(plan->std, head->std, sizeof(head->std));
        good = (uint64_t)info.st_size == sizeof(*head) + head->text_bytes + contents_bytes(plan);
    }
    if (good && reader_out != NULL)
        *reader_out = reader;
    else
        esper_reader_close(reader);
    if (!good) {
        esper_mem_free(text);
        *plan = (esper_source_plan){0};
    }
    return good;
}

/* ------------------------------------------------------------------------------------------------ making it */

/* Whoever makes the file holds a lock beside it; others wait there. */
static esper_status lock_file(const char *path, int *fd_out)
{
    char name[CACHE_PATH_CHARS + 8];
    int fd;

    snprintf(name, sizeof(name), "%s.lock", path);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return esper_file_fail("cannot be created; --cache DIR chooses another place for decoded data", name);
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) { /* a file system without locks: two may decode at once, and the later one's file stays */
            break;
        }
    *fd_out = fd;
    return ESPER_OK;
}

static esper_status make(const esper_dataset_desc *desc, const esper_preparer *preparer, const char *path, uint64_t key,
                         void *found)
{
    esper_prepared set = {0};
    esper_status status = preparer->build(desc, found, &set);

    if (status == ESPER_OK)
        status = set.plan.texts.page.status;
    if (status == ESPER_OK) {
        status = write_file(path, key, &set);
        if (status != ESPER_OK)
            status = esper_fail_within(status, "decoded data cannot be kept (--cache DIR chooses another place): ");
    }
    esper_prepared_fini(&set);
    return status;
}

static esper_status measure_found(const esper_dataset_desc *desc, const esper_preparer *preparer, uint64_t key,
                                  void *found, esper_source_plan *plan)
{
    char path[CACHE_PATH_CHARS], *slash;
    file_head head;
    esper_status status = ESPER_OK;
    int lock = -1;

    ESPER_TRY(esper_prepared_path(desc, path, sizeof(path)));
    if (read_plan(path, key, NULL, &head, plan)) {
        plan->was_fresh = true;
        return ESPER_OK;
    }
    slash = strrchr(path, '/');
    *slash = '\0';
    status = esper_file_make_dirs(path);
    *slash = '/';
    if (status != ESPER_OK)
        return esper_fail_within(status, "decoded data cannot be kept (--cache DIR chooses another place): ");
    ESPER_TRY(lock_file(path, &lock));
    if (!read_plan(path, key, NULL, &head, plan)) { /* another process may have made it meanwhile */
        status = make(desc, preparer, path, key, found);
        if (status == ESPER_OK && !read_plan(path, key, NULL, &head, plan))
            status = ESPER_FAIL(ESPER_E_IO, "%s: was written, and cannot be read again", path);
    }
    close(lock); /* the lock's file stays: removing it would let two in */
    return status;
}

esper_status esper_prepared_measure(const esper_dataset_desc *desc, const esper_preparer *preparer,
                                    esper_source_plan *plan_out)
{
    void *found = NULL;
    uint64_t files, key;
    esper_status status;

    ESPER_TRY(preparer->look(desc, &files, &found));
    key = XXH64(&files, sizeof(files), hash_settings(desc));
    status = measure_found(desc, preparer, key, found, plan_out);
    preparer->close(found);
    return status;
}

/* False: what was read is not what was written. */
static bool read_contents(esper_reader *reader, const file_head *head, const esper_source_plan *plan,
                          const esper_store stores[ESPER_N_STORES])
{
    uint64_t hash = 0;
    part parts[N_PARTS];

    for (int s = 0; s < ESPER_N_STORES; s++) {
        parts_of(plan, &stores[s], parts);
        for (int i = 0; i < N_PARTS; i++) {
            if (parts[i].bytes == 0)
                continue;
            if (esper_reader_read_all(reader, parts[i].data, parts[i].bytes, "contents") != ESPER_OK)
                return false;
            hash = XXH64(parts[i].data, parts[i].bytes, hash);
        }
    }
    return hash == head->contents_hash;
}

static bool load_once(const char *path, const esper_source_plan *plan, esper_store stores[ESPER_N_STORES])
{
    esper_source_plan read = {0};
    esper_reader *reader;
    file_head head;
    bool good;

    if (!read_plan(path, plan->key, &reader, &head, &read))
        return false;
    good = contents_bytes(&read) == contents_bytes(plan) && read_contents(reader, &head, plan, stores);
    esper_reader_close(reader);
    esper_page_fini(&read.texts.page);
    return good;
}

esper_status esper_prepared_load(const esper_dataset_desc *desc, const esper_preparer *preparer,
                                 const esper_source_plan *plan, esper_store stores[ESPER_N_STORES])
{
    char path[CACHE_PATH_CHARS];
    esper_source_plan again = {0};

    ESPER_TRY(esper_prepared_path(desc, path, sizeof(path)));
    if (load_once(path, plan, stores))
        return ESPER_OK;
    if (unlink(path) != 0 && errno != ENOENT) /* damaged behind its head: it is made anew */
        return esper_file_fail("is damaged and cannot be removed", path);
    ESPER_TRY(esper_prepared_measure(desc, preparer, &again));
    esper_page_fini(&again.texts.page);
    if (!load_once(path, plan, stores))
        return ESPER_FAIL(ESPER_E_IO, "%s: its files changed while they were being read: begin again", desc->path);
    return ESPER_OK;
}
