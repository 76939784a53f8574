/* Images of people's own: a folder for each class, PNG and JPEG, decoded by all threads into the cache (prepared.h); or arrays of
 * images (arrays.h).
 *
 * Two passes over the files: the first reads heads, so that size and channels can be chosen; the second decodes. Files are taken in
 * portions, between which progress is told. What cannot be read is an error that names the file; with skip_bad it is left out,
 * counted and named. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/status.h"
#include "data/arrays.h"
#include "data/folder.h"
#include "data/picture.h"
#include "data/prepared.h"

enum {
    PORTION = 512,           /* files between two tellings */
    HEAD_BYTES = 1 << 16,    /* of a file, which is enough for nearly all heads */
    MAX_FILE_BYTES = 1 << 30,
    PATH_CHARS = PATH_MAX,
    MOST_KEPT = 128,         /* pixels a side up to which equal sizes stay as they are */
    LARGEST_CHOSEN = 64,     /* pixels a side where a size has to be chosen */
    ERROR_CHARS = 600,
};

/* What became of a file. */
typedef struct outcome {
    esper_picture_head head;
    uint8_t            was; /* ESPER_PICTURE_WAS_... */
    bool               bad;
} outcome;

/* The first file that failed, by its place; one for each thread. */
typedef struct failure {
    uint64_t     file;
    esper_status status;
    char         words[ERROR_CHARS];
} failure;

typedef struct build {
    const esper_dataset_desc *desc;
    const esper_folder       *folder;
    esper_pool               *pool;
    outcome                  *outcomes; /* (n_files) */
    failure                  *failures; /* (n_threads) */
    int                       n_threads;
    uint64_t                  first; /* of the portion under way */
    esper_prepared           *set;
} build;

/* ------------------------------------------------------------------------------------------------ files */

static void note_failure(build *self, uint64_t file, int worker, esper_status status)
{
    failure *mine = &self->failures[worker];

    self->outcomes[file].bad = true;
    if (mine->status != ESPER_OK && mine->file < file)
        return;
    mine->file = file;
    mine->status = status;
    snprintf(mine->words, sizeof(mine->words), "%s", esper_last_error());
}

static esper_status path_of(const build *self, uint64_t file, char path[PATH_CHARS])
{
    int n = snprintf(path, PATH_CHARS, "%s/%s", self->folder->path, self->folder->files[file].path);

    return n < PATH_CHARS ? ESPER_OK : ESPER_FAIL(ESPER_E_IO, "%s: the path is too long", self->folder->path);
}

/* The first bytes of a file; fewer where it ends. */
static esper_status read_beginning(const char *path, uint8_t *bytes, size_t room, size_t *n_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    esper_status status = ESPER_OK;
    size_t n = 0;

    if (fd < 0)
        return esper_file_fail("cannot be read", path);
    while (status == ESPER_OK && n < room) {
        ssize_t got = read(fd, bytes + n, room - n);

        if (got == 0)
            break;
        if (got < 0)
            status = esper_file_fail("cannot be read", path);
        else
            n += (size_t)got;
    }
    close(fd);
    *n_out = n;
    return status;
}

static esper_status look_at_file(const char *path, esper_picture_head *head)
{
    uint8_t bytes[HEAD_BYTES];
    size_t n = 0;
    char *all = NULL;
    esper_status status;

    ESPER_TRY(read_beginning(path, bytes, sizeof(bytes), &n));
    ESPER_TRY(esper_picture_look(path, bytes, n, head));
    if (head->height > 0)
        return ESPER_OK;
    ESPER_TRY(esper_file_read(path, MAX_FILE_BYTES, &all, &n)); /* a JPEG with much before its frame */
    status = esper_picture_look(path, (const uint8_t *)all, n, head);
    if (status == ESPER_OK && head->height == 0)
        status = ESPER_FAIL(ESPER_E_FORMAT, "%s: a damaged JPEG: the file is cut off", path);
    esper_mem_free(all);
    return status;
}

static void look_at_one(void *context, int item, int worker)
{
    build *self = context;
    uint64_t file = self->first + (uint64_t)item;
    char path[PATH_CHARS];
    esper_status status = path_of(self, file, path);

    if (status == ESPER_OK)
        status = look_at_file(path, &self->outcomes[file].head);
    if (status != ESPER_OK)
        note_failure(self, file, worker, status);
}

/* Where the pixels of a file go. */
static uint8_t *place_of(const build *self, uint64_t file, uint8_t **label_out)
{
    const esper_source_plan *plan = &self->set->plan;
    int store = self->folder->files[file].store;
    uint64_t index = store == ESPER_STORE_TRAIN ? file : file - plan->n_items[ESPER_STORE_TRAIN];

    *label_out = self->set->stores[store].labels + index;
    return self->set->stores[store].images +
           index * (uint64_t)plan->channels * (uint64_t)plan->height * (uint64_t)plan->width;
}

static void decode_one(void *context, int item, int worker)
{
    build *self = context;
    const esper_source_plan *plan = &self->set->plan;
    uint64_t file = self->first + (uint64_t)item;
    esper_picture picture = {0};
    char path[PATH_CHARS], *bytes = NULL;
    uint8_t *pixels, *label;
    size_t n = 0;
    esper_status status;

    if (self->outcomes[file].bad)
        return;
    pixels = place_of(self, file, &label);
    *label = (uint8_t)self->folder->files[file].class;
    status = path_of(self, file, path);
    if (status == ESPER_OK)
        status = esper_file_read(path, MAX_FILE_BYTES, &bytes, &n);
    if (status == ESPER_OK)
        status = esper_picture_decode(path, (const uint8_t *)bytes, n, &picture);
    if (status == ESPER_OK)
        status = esper_picture_fit(&picture, plan->channels, plan->height, plan->width, pixels);
    self->outcomes[file].was = (uint8_t)picture.was;
    if (status != ESPER_OK)
        note_failure(self, file, worker, status);
    esper_picture_fini(&picture);
    esper_mem_free(bytes);
}

/* The first failure of all threads, unless damaged files are to be left out and it is damage. */
static esper_status settle(build *self)
{
    failure *worst = NULL;

    for (int i = 0; i < self->n_threads; i++) {
        failure *mine = &self->failures[i];

        if (mine->status != ESPER_OK && (worst == NULL || mine->file < worst->file) &&
            (!self->desc->skip_bad || mine->status != ESPER_E_FORMAT))
            worst = mine;
    }
    if (worst == NULL)
        return ESPER_OK;
    return ESPER_FAIL(worst->status, "%s%s", worst->words,
                      worst->status == ESPER_E_FORMAT ? " (--skip-bad leaves such files out)" : "");
}

static esper_status for_all_files(build *self, const char *what, esper_pool_item run_item)
{
    const esper_dataset_progress *progress = self->desc->progress;

    for (self->first = 0; self->first < self->folder->n_files; self->first += PORTION) {
        uint64_t left = self->folder->n_files - self->first;

        esper_pool_run(self->pool, (int)(left < PORTION ? left : PORTION), run_item, self);
        ESPER_TRY(settle(self));
        if (progress != NULL)
            progress->tell(progress->context, what, self->first + (left < PORTION ? left : PORTION),
                           self->folder->n_files);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ sizes */

esper_status esper_image_size_read(const char *text, int *height_out, int *width_out)
{
    char *end;
    long height, width;

    *height_out = *width_out = 0;
    if (text == NULL || text[0] == '\0')
        return ESPER_OK;
    height = width = strtol(text, &end, 10);
    if (end != text && (*end == 'x' || *end == 'X')) {
        const char *second = end + 1;

        width = strtol(second, &end, 10);
        if (end == second)
            height = 0;
    }
    if (*end != '\0' || height < 1 || width < 1 || height > ESPER_DATASET_MAX_SIDE || width > ESPER_DATASET_MAX_SIDE)
        return ESPER_FAIL(ESPER_E_CONFIG, "image size '%s': expected HEIGHTxWIDTH in pixels, such as 32x32, up to %d",
                          text, (int)ESPER_DATASET_MAX_SIDE);
    *height_out = (int)height;
    *width_out = (int)width;
    return ESPER_OK;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Where sizes differ or are large: as many pixels a side as half of the images have at least on their shorter one, in whole fours,
 * at most LARGEST_CHOSEN. All images are brought to that square, whatever their proportions. */
static esper_status choose_side(const build *self, int *side_out)
{
    uint64_t n = 0;
    int *sides = esper_mem_alloc((size_t)self->folder->n_files * sizeof(*sides)), side;

    if (sides == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: sizes", self->folder->path);
    for (uint64_t i = 0; i < self->folder->n_files; i++) {
        const esper_picture_head *head = &self->outcomes[i].head;

        if (!self->outcomes[i].bad)
            sides[n++] = head->height < head->width ? head->height : head->width;
    }
    qsort(sides, (size_t)n, sizeof(*sides), by_number);
    side = n > 0 ? sides[n / 2] : 0;
    side = side > LARGEST_CHOSEN ? LARGEST_CHOSEN : side >= 4 ? side / 4 * 4 : side;
    *side_out = side;
    esper_mem_free(sides);
    return ESPER_OK;
}

/* What all files have in common. */
typedef struct sizes {
    int      height[2], width[2]; /* least and most */
    uint64_t n, n_colour, n_png;
} sizes;

static sizes compare_sizes(const build *self)
{
    sizes all = {0};

    for (uint64_t i = 0; i < self->folder->n_files; i++) {
        const esper_picture_head *head = &self->outcomes[i].head;

        if (self->outcomes[i].bad)
            continue;
        all.height[0] = all.n == 0 || head->height < all.height[0] ? head->height : all.height[0];
        all.width[0] = all.n == 0 || head->width < all.width[0] ? head->width : all.width[0];
        all.height[1] = head->height > all.height[1] ? head->height : all.height[1];
        all.width[1] = head->width > all.width[1] ? head->width : all.width[1];
        all.n_colour += head->channels == 3;
        all.n_png += head->format == ESPER_PICTURE_PNG;
        all.n++;
    }
    return all;
}

static esper_status choose_shape(build *self, const sizes *all)
{
    esper_source_plan *plan = &self->set->plan;
    int side = 0;

    plan->channels = self->desc->grey || all->n_colour == 0 ? 1 : 3;
    ESPER_TRY(esper_image_size_read(self->desc->image_size, &plan->height, &plan->width));
    if (plan->height > 0)
        return ESPER_OK;
    if (all->height[0] == all->height[1] && all->width[0] == all->width[1] && all->height[0] <= MOST_KEPT &&
        all->width[0] <= MOST_KEPT) {
        plan->height = all->height[0];
        plan->width = all->width[0];
        return ESPER_OK;
    }
    ESPER_TRY(choose_side(self, &side));
    plan->height = plan->width = side;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ telling */

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static uint64_t count_was(const build *self, unsigned bit)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < self->folder->n_files; i++)
        n += (self->outcomes[i].was & bit) != 0;
    return n;
}

static void tell_sizes(const build *self, const sizes *all)
{
    const esper_source_plan *plan = &self->set->plan;
    bool equal = all->height[0] == all->height[1] && all->width[0] == all->width[1];
    uint64_t n_jpeg = all->n - all->n_png;
    char formats[80];

    if (n_jpeg > 0 && all->n_png > 0)
        snprintf(formats, sizeof(formats), "%" PRIu64 " PNG and %" PRIu64 " JPEG", all->n_png, n_jpeg);
    else
        snprintf(formats, sizeof(formats), "%" PRIu64 " %s", all->n, n_jpeg > 0 ? "JPEG" : "PNG");
    if (equal)
        esper_prepared_remark(self->set, "%s, all %dx%d", formats, all->height[0], all->width[0]);
    else
        esper_prepared_remark(self->set, "%s from %dx%d to %dx%d (height x width)", formats, all->height[0],
                              all->width[0], all->height[1], all->width[1]);
    if (!equal || all->height[0] != plan->height || all->width[0] != plan->width)
        esper_prepared_remark(self->set, "brought to %dx%d %s, whatever their proportions", plan->height, plan->width,
                              self->desc->image_size != NULL && self->desc->image_size[0] != '\0'
                                  ? "as asked"
                                  : "(--image-size HxW chooses)");
    if (plan->channels == 1)
        esper_prepared_remark(self->set, "grey%s", all->n_colour > 0 ? " as asked; there is colour in the files" : "");
    else if (all->n_colour < all->n)
        esper_prepared_remark(self->set, "in colour: %" PRIu64 " grey one%s get three equal channels",
                              all->n - all->n_colour, plural(all->n - all->n_colour));
    else
        esper_prepared_remark(self->set, "in colour (--grey makes them grey)");
}

static void tell_changes(const build *self)
{
    static const struct {
        unsigned    bit;
        const char *words;
    } changes[] = {{ESPER_PICTURE_WAS_DEEP, "16 bits deep: their upper 8 are taken"},
                   {ESPER_PICTURE_WAS_CLEAR, "with transparency: laid onto white"},
                   {ESPER_PICTURE_WAS_CMYK, "in CMYK: turned into RGB without a colour profile"}};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        uint64_t n = count_was(self, changes[i].bit);

        if (n > 0)
            esper_prepared_remark(self->set, "%" PRIu64 " %s", n, changes[i].words);
    }
}

static void tell_passed(const build *self)
{
    const esper_folder *folder = self->folder;
    esper_folder_passed bad = {0};
    char named[512];

    for (uint64_t i = 0; i < folder->n_files; i++)
        if (self->outcomes[i].bad)
            esper_folder_passed_add(&bad, folder->files[i].path);
    if (bad.n > 0) {
        esper_folder_name_passed(&bad, named, sizeof(named));
        esper_prepared_remark(self->set, "%" PRIu64 " damaged file%s left out as asked: %s", bad.n, plural(bad.n),
                              named);
    }
    if (folder->others.n > 0) {
        esper_folder_name_passed(&folder->others, named, sizeof(named));
        esper_prepared_remark(self->set, "%" PRIu64 " not taken for an image: %s", folder->others.n, named);
    }
    if (folder->empty.n > 0) {
        esper_folder_name_passed(&folder->empty, named, sizeof(named));
        esper_prepared_remark(self->set, "%" PRIu64 " folder%s without images: %s", folder->empty.n,
                              plural(folder->empty.n), named);
    }
    if (folder->joined != NULL)
        esper_prepared_remark(self->set,
                              "%s/ is taken as training data, since there is test/; validation is drawn by "
                              "the seed",
                              folder->joined);
    esper_folder_passed_fini(&bad);
}

/* ------------------------------------------------------------------------------------------------ numbers */

/* Mean and deviation of every channel, over the training data. Sums are of whole numbers, so that they are exact. */
void esper_images_normalise(const esper_store *store, esper_source_plan *plan)
{
    uint64_t n_pixels = (uint64_t)plan->height * (uint64_t)plan->width;
    double n = (double)(store->n_items * n_pixels);

    for (int c = 0; c < plan->channels; c++) {
        uint64_t sum = 0, squares = 0;
        double mean, variance;

        for (uint64_t i = 0; i < store->n_items; i++) {
            const uint8_t *pixels = store->images + (i * (uint64_t)plan->channels + (uint64_t)c) * n_pixels;

            for (uint64_t k = 0; k < n_pixels; k++) {
                sum += pixels[k];
                squares += (uint64_t)pixels[k] * pixels[k];
            }
        }
        mean = (double)sum / n / 255.0;
        variance = (double)squares / n / (255.0 * 255.0) - mean * mean;
        plan->mean[c] = (float)mean;
        plan->std[c] = (float)sqrt(variance > 1.0 / (255.0 * 255.0) ? variance : 1.0 / (255.0 * 255.0));
    }
}

void esper_images_tell_normalised(esper_prepared *set)
{
    const esper_source_plan *plan = &set->plan;
    char mean[128] = "", std[128] = "";

    for (int c = 0; c < plan->channels; c++) {
        snprintf(mean + strlen(mean), sizeof(mean) - strlen(mean), "%s%.4f", c > 0 ? " " : "", (double)plan->mean[c]);
        snprintf(std + strlen(std), sizeof(std) - strlen(std), "%s%.4f", c > 0 ? " " : "", (double)plan->std[c]);
    }
    esper_prepared_remark(set, "mean %s, deviation %s, of the training data", mean, std);
}

/* ------------------------------------------------------------------------------------------------ all of it */

/* Closes the gaps that files left out have made. */
static void close_gaps(build *self)
{
    esper_source_plan *plan = &self->set->plan;
    size_t n_pixels = (size_t)plan->channels * (size_t)plan->height * (size_t)plan->width;
    uint64_t n[ESPER_N_STORES] = {0};

    for (uint64_t i = 0; i < self->folder->n_files; i++) {
        int s = self->folder->files[i].store;
        esper_store *store = &self->set->stores[s];
        uint8_t *label, *pixels = place_of(self, i, &label);

        if (self->outcomes[i].bad)
            continue;
        memmove(store->images + n[s] * n_pixels, pixels, n_pixels);
        store->labels[n[s]++] = *label;
    }
    for (int s = 0; s < ESPER_N_STORES; s++)
        plan->n_items[s] = self->set->stores[s].n_items = n[s];
}

static esper_status check_classes(const build *self)
{
    const esper_folder *folder = self->folder;
    uint64_t count[ESPER_DATASET_MAX_CLASSES] = {0};

    for (uint64_t i = 0; i < folder->n_files; i++)
        count[folder->files[i].class] += folder->files[i].store == ESPER_STORE_TRAIN && !self->outcomes[i].bad;
    for (int c = 0; c < folder->n_classes; c++)
        if (count[c] == 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: no image of the class '%s' can be read: it could not be learned",
                              folder->path, folder->classes[c]);
    return ESPER_OK;
}

static esper_status run_build(build *self)
{
    esper_source_plan *plan = &self->set->plan;
    const esper_folder *folder = self->folder;
    sizes all;

    ESPER_TRY(for_all_files(self, "looking at", look_at_one));
    ESPER_TRY(check_classes(self));
    all = compare_sizes(self);
    ESPER_TRY(choose_shape(self, &all));
    plan->classes = folder->n_classes;
    for (uint64_t i = 0; i < folder->n_files; i++)
        plan->n_items[folder->files[i].store]++;
    ESPER_TRY(esper_prepared_alloc(self->set));
    ESPER_TRY(for_all_files(self, "decoding", decode_one));
    ESPER_TRY(check_classes(self));
    all = compare_sizes(self); /* without those whose heads were good and the rest was not */
    close_gaps(self);
    esper_images_normalise(&self->set->stores[ESPER_STORE_TRAIN], plan);
    for (int c = 0; c < folder->n_classes; c++)
        esper_prepared_class(self->set, folder->classes[c]);
    tell_sizes(self, &all);
    tell_changes(self);
    tell_passed(self);
    esper_images_tell_normalised(self->set);
    return ESPER_OK;
}

static esper_status build_images(const esper_dataset_desc *desc, void *found, esper_prepared *set_out)
{
    build self = {.desc = desc, .folder = found, .set = set_out};
    esper_status status;

    if (found == NULL)
        return esper_arrays_prepare(desc, ESPER_DATASET_IMAGES, set_out);
    ESPER_TRY(esper_pool_open(desc->threads, &self.pool));
    self.n_threads = esper_pool_threads(self.pool);
    self.outcomes = esper_mem_alloc((size_t)self.folder->n_files * sizeof(*self.outcomes));
    self.failures = esper_mem_alloc((size_t)self.n_threads * sizeof(*self.failures));
    status = self.outcomes != NULL && self.failures != NULL ? run_build(&self)
                                                            : ESPER_FAIL(ESPER_E_NOMEM, "%s: files", desc->path);
    esper_mem_free(self.outcomes);
    esper_mem_free(self.failures);
    esper_pool_close(self.pool);
    return status;
}

static esper_status look(const esper_dataset_desc *desc, uint64_t *key_out, void **found_out)
{
    esper_folder *folder;
    int height, width;
    esper_status status;

    if (desc->path == NULL || desc->path[0] == '\0')
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "images: no folder is named: `esper grow DIR`, or --data DIR, where DIR has a "
                          "folder with PNG or JPEG files for each class");
    ESPER_TRY(esper_image_size_read(desc->image_size, &height, &width)); /* before a hundred thousand names are read */
    if (esper_arrays_is_file(desc->path)) {
        *found_out = NULL;
        return esper_arrays_hash(desc->path, key_out);
    }
    folder = esper_mem_alloc(sizeof(*folder));
    if (folder == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", desc->path);
    status = esper_folder_list(desc->path, folder);
    if (status != ESPER_OK) {
        esper_folder_fini(folder);
        esper_mem_free(folder);
        return status;
    }
    *key_out = esper_folder_hash(folder);
    *found_out = folder;
    return ESPER_OK;
}

static void close_found(void *found)
{
    if (found == NULL)
        return;
    esper_folder_fini(found);
    esper_mem_free(found);
}

static const esper_preparer preparer = {.look = look, .build = build_images, .close = close_found};

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    return esper_prepared_measure(desc, &preparer, plan_out);
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    return esper_prepared_load(desc, &preparer, plan, stores);
}

const esper_source_ops esper_source_own_images = {.measure = measure, .load = load};
