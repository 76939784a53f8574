/* Sampler and batches. */
#include "data/batch.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "data/shuffle.h"

enum {
    SAMPLES_PER_ITEM = 16,
    MAX_MARGIN = 4096,
    CACHE_LINE = 64,
    MOST_AHEAD = 4096, /* bytes of the next image that are asked for; of a larger one the rest follows by itself */
};

struct esper_sampler {
    esper_sampler_desc desc;
    uint32_t           epoch, n_samples;
    uint32_t           rank, n_ranks;
    uint32_t          *order; /* (n_samples) ids in the order of the epoch */
};

/* What happens to one image. */
typedef struct augment_draw {
    int  top, left;    /* of the window, in the image: -crop .. crop */
    bool flip;
    int  cut_y, cut_x; /* centre of the square */
} augment_draw;

esper_status esper_sampler_open(const esper_sampler_desc *desc, esper_sampler **sampler_out)
{
    const esper_augment *augment = &desc->augment;
    esper_sampler *sampler;

    if (desc->batch_size == 0)
        return ESPER_FAIL(ESPER_E_ARG, "batches of 0 samples");
    if (augment->crop < 0 || augment->crop > MAX_MARGIN || augment->cutout < 0 || augment->cutout > MAX_MARGIN)
        return ESPER_FAIL(ESPER_E_ARG, "crop by %d, cut-out of %d pixels: expected 0 to %d", augment->crop,
                          augment->cutout, MAX_MARGIN);
    sampler = esper_mem_alloc(sizeof(*sampler));
    if (sampler == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "sampler of %s", esper_split_name(desc->split));
    sampler->desc = *desc;
    sampler->n_ranks = 1;
    sampler->n_samples = esper_dataset_count(desc->set, desc->split);
    if (sampler->n_samples > 0) {
        sampler->order = esper_mem_alloc(sampler->n_samples * sizeof(*sampler->order));
        if (sampler->order == NULL) {
            esper_sampler_close(sampler);
            return ESPER_FAIL(ESPER_E_NOMEM, "order of %u samples", esper_dataset_count(desc->set, desc->split));
        }
    }
    esper_sampler_redraw(sampler, 0, 0);
    *sampler_out = sampler;
    return ESPER_OK;
}

void esper_sampler_close(esper_sampler *sampler)
{
    if (sampler == NULL)
        return;
    esper_mem_free(sampler->order);
    esper_mem_free(sampler);
}

uint64_t esper_sampler_predict_bytes(uint32_t n_samples)
{
    return sizeof(esper_sampler) + n_samples * (uint64_t)sizeof(uint32_t);
}

void esper_sampler_redraw(esper_sampler *sampler, uint32_t epoch, uint32_t draw)
{
    esper_rng_key key = {
        .seed = sampler->desc.seed,
        .purpose = ESPER_RNG_SHUFFLE,
        .network = sampler->desc.network,
        .step = epoch,
        .tag = draw,
    };

    assert(draw < ESPER_SAMPLER_DRAWS);
    sampler->epoch = epoch;
    for (uint32_t i = 0; i < sampler->n_samples; i++)
        sampler->order[i] = esper_dataset_id(sampler->desc.set, sampler->desc.split, i);
    if (sampler->desc.training)
        esper_shuffle(sampler->order, sampler->n_samples, &key);
}

uint32_t esper_sampler_batches(const esper_sampler *sampler)
{
    uint32_t whole = sampler->n_samples / sampler->desc.batch_size;
    uint32_t rest = sampler->n_samples % sampler->desc.batch_size;

    assert(sampler->desc.batch_size > 0);
    if (rest > 0 && (!sampler->desc.training || whole == 0))
        return whole + 1;
    return whole;
}

uint32_t esper_sampler_batch_total(const esper_sampler *sampler, uint32_t batch)
{
    uint64_t first = (uint64_t)batch * sampler->desc.batch_size;

    if (batch >= esper_sampler_batches(sampler))
        return 0;
    return sampler->n_samples - first < sampler->desc.batch_size ? (uint32_t)(sampler->n_samples - first)
                                                                 : sampler->desc.batch_size;
}

void esper_sampler_share(esper_sampler *sampler, uint32_t rank, uint32_t n_ranks)
{
    assert(rank < n_ranks);
    sampler->rank = rank;
    sampler->n_ranks = n_ranks;
}

/* The first sample of a batch of `total` that falls to a rank. */
static uint32_t first_of(const esper_sampler *sampler, uint32_t total, uint32_t rank)
{
    assert(sampler->n_ranks > 0 && rank <= sampler->n_ranks);
    return (uint32_t)((uint64_t)total * rank / sampler->n_ranks);
}

uint32_t esper_sampler_batch_count(const esper_sampler *sampler, uint32_t batch)
{
    uint32_t total = esper_sampler_batch_total(sampler, batch);

    return first_of(sampler, total, sampler->rank + 1) - first_of(sampler, total, sampler->rank);
}

const uint32_t *esper_sampler_batch_ids(const esper_sampler *sampler, uint32_t batch)
{
    uint32_t total = esper_sampler_batch_total(sampler, batch);

    assert(batch < esper_sampler_batches(sampler));
    return sampler->order + (uint64_t)batch * sampler->desc.batch_size + first_of(sampler, total, sampler->rank);
}

/* All draws are made, always, in this order. */
static augment_draw draw_augment(const esper_sampler *sampler, uint32_t id, int height, int width)
{
    const esper_augment *augment = &sampler->desc.augment;
    esper_rng_key key = {.seed = sampler->desc.seed,
                         .purpose = ESPER_RNG_AUGMENT,
                         .network = sampler->desc.network,
                         .step = sampler->epoch,
                         .sample = id};
    augment_draw draw;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    draw.top = (int)esper_rng_below(&rng, 2 * (uint32_t)augment->crop + 1) - augment->crop;
    draw.left = (int)esper_rng_below(&rng, 2 * (uint32_t)augment->crop + 1) - augment->crop;
    draw.flip = esper_rng_uniform(&rng) < 0.5f && augment->flip;
    draw.cut_y = (int)esper_rng_below(&rng, (uint32_t)height);
    draw.cut_x = (int)esper_rng_below(&rng, (uint32_t)width);
    return draw;
}

/* Pixels as normalised numbers. Eight are loaded at once, since each has a lookup to load besides; the last eight of a row may be some
 * of those before once more. Where a network is tiny, this loop is what it waits for. */
static void look_up(const uint8_t *pixels, size_t n, const float *restrict levels, float *restrict dest)
{
    for (size_t i = 0; n >= 8 && i < n; i += 8) {
        uint64_t eight;

        i = i + 8 <= n ? i : n - 8;
        memcpy(&eight, pixels + i, sizeof(eight)); /* the first in the lowest byte, as our machines have it */
#pragma GCC unroll 8
        for (size_t k = 0; k < 8; k++)
            dest[i + k] = levels[eight >> 8 * k & 0xff];
    }
    for (size_t i = 0; n < 8 && i < n; i++)
        dest[i] = levels[pixels[i]];
}

/* The same, from right to left. */
static void look_up_mirrored(const uint8_t *pixels, size_t n, const float *restrict levels, float *restrict dest)
{
    for (size_t i = 0; i < n; i++)
        dest[n - 1 - i] = levels[pixels[i]];
}

static void fill_black(float *dest, int n, const float *levels)
{
    for (int i = 0; i < n; i++)
        dest[i] = levels[0];
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* One row (W) of the output: window, then flip. `row` is NULL above and below the image. The window has black pixels beyond one side
 * of the image at most, so that between them and the other end it is a run of the image's own. */
static void fill_row(const uint8_t *row, int width, const augment_draw *draw, const float *levels, float *dest)
{
    int n_left = row == NULL || draw->left < 0 ? least(row == NULL ? width : -draw->left, width) : 0;
    int n_right = row != NULL && draw->left > 0 ? least(draw->left, width) : 0;
    int n = width - n_left - n_right;

    assert(n >= 0 && (n_left == 0 || n_right == 0));
    fill_black(dest, draw->flip ? n_right : n_left, levels);
    fill_black(dest + width - (draw->flip ? n_left : n_right), draw->flip ? n_left : n_right, levels);
    if (n > 0 && draw->flip)
        look_up_mirrored(row + draw->left + n_left, (size_t)n, levels, dest + n_right);
    else if (n > 0)
        look_up(row + draw->left + n_left, (size_t)n, levels, dest + n_left);
}

/* Blots out the square in one channel (H, W). */
static void cut_out(int side, int height, int width, const augment_draw *draw, float black, float *plane)
{
    int top = draw->cut_y - side / 2, left = draw->cut_x - side / 2;

    for (int y = top < 0 ? 0 : top; y < top + side && y < height; y++)
        for (int x = left < 0 ? 0 : left; x < left + side && x < width; x++)
            plane[y * width + x] = black;
}

static void fill_augmented(const esper_sampler *sampler, uint32_t id, const uint8_t *image, float *dest)
{
    const esper_dataset_info *info = esper_dataset_info_get(sampler->desc.set);
    int height = info->height, width = info->width;
    augment_draw draw = draw_augment(sampler, id, height, width);

    assert(sampler->desc.training && info->kind == ESPER_DATASET_IMAGES);
    for (int c = 0; c < info->channels; c++) {
        const float *levels = esper_dataset_levels(sampler->desc.set, c);
        const uint8_t *plane = image + (size_t)c * (size_t)height * (size_t)width;
        float *dest_plane = dest + (size_t)c * (size_t)height * (size_t)width;

        for (int y = 0; y < height; y++) {
            int from = y + draw.top;
            const uint8_t *row = from >= 0 && from < height ? plane + (size_t)from * (size_t)width : NULL;

            fill_row(row, width, &draw, levels, dest_plane + (size_t)y * (size_t)width);
        }
        cut_out(sampler->desc.augment.cutout, height, width, &draw, levels[0], dest_plane);
    }
}

static void fill_plain(const esper_dataset *set, const uint8_t *image, float *dest)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);
    size_t n_plane = (size_t)info->height * (size_t)info->width;

    for (int c = 0; c < info->channels; c++)
        look_up(image + (size_t)c * n_plane, n_plane, esper_dataset_levels(set, c), dest + (size_t)c * n_plane);
}

static void fill_image(const esper_sampler *sampler, uint32_t id, uint32_t at, const esper_batch *dest)
{
    const esper_dataset *set = sampler->desc.set;
    const esper_dataset_info *info = esper_dataset_info_get(set);
    size_t n_pixels = (size_t)info->channels * (size_t)info->height * (size_t)info->width;
    const uint8_t *image = esper_dataset_image(set, sampler->desc.split, id);
    const esper_augment *augment = &sampler->desc.augment;
    bool augments = sampler->desc.training && (augment->crop > 0 || augment->flip || augment->cutout > 0);

    if (dest->images != NULL && augments)
        fill_augmented(sampler, id, image, dest->images + at * n_pixels);
    else if (dest->images != NULL)
        fill_plain(set, image, dest->images + at * n_pixels);
    if (dest->targets != NULL)
        dest->targets[at] = esper_dataset_label(set, sampler->desc.split, id);
}

/* Samples of a random order lie anywhere, and a third of the time of making a batch was waiting for the first bytes of an image: they
 * are asked for while the image before is made. */
static void ask_for_image(const esper_sampler *sampler, uint32_t id)
{
    const esper_dataset_info *info = esper_dataset_info_get(sampler->desc.set);
    size_t n_bytes = (size_t)info->channels * (size_t)info->height * (size_t)info->width;
    const uint8_t *image = esper_dataset_image(sampler->desc.set, sampler->desc.split, id);

    n_bytes = n_bytes < MOST_AHEAD ? n_bytes : MOST_AHEAD;
    for (size_t at = 0; at < n_bytes; at += CACHE_LINE)
        __builtin_prefetch(image + at);
}

static void fill_features(const esper_sampler *sampler, uint32_t id, uint32_t at, const esper_batch *dest)
{
    const esper_dataset *set = sampler->desc.set;
    size_t n = (size_t)esper_dataset_info_get(set)->features;

    assert(n > 0);
    if (dest->features != NULL)
        memcpy(dest->features + at * n, esper_dataset_row(set, sampler->desc.split, id), n * sizeof(*dest->features));
    if (dest->targets != NULL)
        dest->targets[at] = esper_dataset_label(set, sampler->desc.split, id);
}

static void fill_window(const esper_sampler *sampler, uint32_t id, uint32_t at, const esper_batch *dest)
{
    size_t context = (size_t)esper_dataset_info_get(sampler->desc.set)->context;
    const uint16_t *window = esper_dataset_window(sampler->desc.set, sampler->desc.split, id);

    assert(context > 0);
    for (size_t t = 0; dest->tokens != NULL && t < context; t++)
        dest->tokens[at * context + t] = window[t];
    for (size_t t = 0; dest->targets != NULL && t < context; t++)
        dest->targets[at * context + t] = window[t + 1];
}

void esper_batch_pick(const esper_sampler *sampler, uint32_t batch, esper_pick *picks, uint32_t *ids)
{
    const esper_dataset_info *info = esper_dataset_info_get(sampler->desc.set);
    const esper_augment *augment = &sampler->desc.augment;
    const uint32_t *order = esper_sampler_batch_ids(sampler, batch);
    uint32_t n = esper_sampler_batch_count(sampler, batch);
    bool augments = info->kind == ESPER_DATASET_IMAGES && sampler->desc.training &&
                    (augment->crop > 0 || augment->flip || augment->cutout > 0);

    for (uint32_t i = 0; i < n; i++) {
        picks[i] = (esper_pick){.item = order[i]};
        if (augments) {
            augment_draw draw = draw_augment(sampler, order[i], info->height, info->width);

            picks[i].top = (int16_t)draw.top;
            picks[i].left = (int16_t)draw.left;
            picks[i].flip = draw.flip;
            picks[i].cut_y = (int16_t)draw.cut_y;
            picks[i].cut_x = (int16_t)draw.cut_x;
        }
        if (ids != NULL)
            ids[i] = order[i];
    }
}

int esper_batch_cutout(const esper_sampler *sampler)
{
    return sampler->desc.training ? sampler->desc.augment.cutout : 0;
}

void esper_batch_fill_range(const esper_sampler *sampler, uint32_t batch, uint32_t begin, uint32_t end,
                            const esper_batch *dest)
{
    const uint32_t *ids = esper_sampler_batch_ids(sampler, batch);
    static void (*const fill[])(const esper_sampler *, uint32_t, uint32_t, const esper_batch *) = {
        [ESPER_DATASET_IMAGES] = fill_image,
        [ESPER_DATASET_TOKENS] = fill_window,
        [ESPER_DATASET_VECTORS] = fill_features,
    };
    esper_dataset_kind kind = esper_dataset_info_get(sampler->desc.set)->kind;

    assert(end <= esper_sampler_batch_count(sampler, batch));
    for (uint32_t i = begin; i < end; i++) {
        if (kind == ESPER_DATASET_IMAGES && i + 1 < end)
            ask_for_image(sampler, ids[i + 1]);
        fill[kind](sampler, ids[i], i, dest);
        if (dest->ids != NULL)
            dest->ids[i] = ids[i];
    }
}

/* What the pool's threads need to know. */
typedef struct fill_job {
    const esper_sampler *sampler;
    const esper_batch   *dest;
    uint32_t             batch, count;
} fill_job;

static void fill_item(void *context, int item, int worker)
{
    const fill_job *job = context;
    uint32_t begin = (uint32_t)item * SAMPLES_PER_ITEM;
    uint32_t end = job->count - begin < SAMPLES_PER_ITEM ? job->count : begin + SAMPLES_PER_ITEM;

    assert(begin < job->count);
    (void)worker;
    esper_batch_fill_range(job->sampler, job->batch, begin, end, job->dest);
}

void esper_batch_fill(const esper_sampler *sampler, uint32_t batch, esper_pool *pool, const esper_batch *dest)
{
    fill_job job = {
        .sampler = sampler, .dest = dest, .batch = batch, .count = esper_sampler_batch_count(sampler, batch)};

    if (pool == NULL)
        esper_batch_fill_range(sampler, batch, 0, job.count, dest);
    else
        esper_pool_run(pool, (int)((job.count + SAMPLES_PER_ITEM - 1) / SAMPLES_PER_ITEM), fill_item, &job);
}
