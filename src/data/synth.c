/* Synthetic sets for tests and first steps: no files, the same on every machine, and learnable.
 *
 * Images: every class has a pattern of coarse squares, drawn once; a sample is its class's pattern under noise. Tokens:
 * every token has one successor, drawn once; a run follows them, and leaves them one time in eight. Tables: every class scores
 * a row by products of two columns each, drawn once, and the best score has it; half of the columns are in no product. Whole
 * numbers only, so that no library's rounding can make two machines differ. Every sample has its own stream of random numbers. */
#include "base/mem.h"

#include <assert.h>

#include "base/status.h"
#include "data/shuffle.h"
#include "data/source.h"

enum {
    CELL = 4,           /* pixels on a side of a square of the pattern */
    PATTERN_SPAN = 128, /* a square is up to half of this darker or lighter than the middle */
    MIDDLE = 128,
    RUN = 1024,         /* tokens that share a stream */
    STRAY = 8,          /* one step in so many goes anywhere */
    MAX_SIDE = 4096,
    TERMS = 3,          /* products that a class scores a row by */
};

static const float TABLE_UNIT = 104.0f; /* the deviation of the difference of two bytes */

/* Streams of the same seed: what the set has in common, and the samples of each store. */
enum { TAG_COMMON = 0, TAG_STORE = 1 };

static esper_rng_key synth_key(const esper_dataset_desc *desc, uint32_t sample, uint32_t tag)
{
    return (esper_rng_key){.seed = desc->seed, .purpose = ESPER_RNG_SYNTH, .sample = sample, .tag = tag};
}

/* ---------------------------------------------------------------- images */

static esper_status measure_images(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    esper_source_plan plan = {.channels = desc->channels,
                              .height = desc->height,
                              .width = desc->width,
                              .classes = desc->classes,
                              .n_items = {desc->n_train, desc->n_test}};

    if (desc->channels < 1 || desc->channels > ESPER_DATASET_MAX_CHANNELS || desc->height < 1 ||
        desc->height > MAX_SIDE || desc->width < 1 || desc->width > MAX_SIDE)
        return ESPER_FAIL(ESPER_E_ARG, "synthetic images of %d x %d x %d: expected 1 to %d channels, sides of 1 to %d",
                          desc->channels, desc->height, desc->width, ESPER_DATASET_MAX_CHANNELS, MAX_SIDE);
    if (desc->classes < 1 || desc->classes > ESPER_DATASET_MAX_CLASSES)
        return ESPER_FAIL(ESPER_E_ARG, "synthetic images of %d classes: expected 1 to %d", desc->classes,
                          ESPER_DATASET_MAX_CLASSES);
    for (int c = 0; c < desc->channels; c++) {
        plan.mean[c] = 0.5f;
        plan.std[c] = 0.25f;
    }
    *plan_out = plan;
    return ESPER_OK;
}

static uint8_t clamp_pixel(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* The pattern of one class (C, H, W). */
static void draw_pattern(const esper_dataset_desc *desc, int class_index, uint8_t *pattern)
{
    int cells_y = (desc->height + CELL - 1) / CELL, cells_x = (desc->width + CELL - 1) / CELL;
    int n_cells = cells_y * cells_x;
    esper_rng_key key = synth_key(desc, (uint32_t)class_index, TAG_COMMON);
    esper_rng rng;

    assert(class_index >= 0 && class_index < desc->classes);
    esper_rng_init(&rng, &key);
    for (int cell = 0; cell < desc->channels * n_cells; cell++) {
        int top = cell % n_cells / cells_x * CELL, left = cell % cells_x * CELL;
        uint8_t value = (uint8_t)(MIDDLE - PATTERN_SPAN / 2 + (int)esper_rng_below(&rng, PATTERN_SPAN + 1));
        uint8_t *plane = pattern + (size_t)(cell / n_cells) * (size_t)desc->height * (size_t)desc->width;

        for (int y = top; y < top + CELL && y < desc->height; y++)
            for (int x = left; x < left + CELL && x < desc->width; x++)
                plane[(size_t)y * (size_t)desc->width + (size_t)x] = value;
    }
}

/* A sample: its class is drawn, then noise in -63 .. 63 (two bytes of each number: near 0 more often) is added. */
static void draw_sample(const esper_dataset_desc *desc, uint32_t sample, uint32_t tag, const uint8_t *patterns,
                        size_t n_pixels, uint8_t *image, uint8_t *label)
{
    esper_rng_key key = synth_key(desc, sample, tag);
    const uint8_t *pattern;
    esper_rng rng;

    assert(desc->classes > 0 && tag >= TAG_STORE);
    esper_rng_init(&rng, &key);
    *label = (uint8_t)esper_rng_below(&rng, (uint32_t)desc->classes);
    pattern = patterns + *label * n_pixels;
    for (size_t i = 0; i < n_pixels; i += 2) {
        uint32_t bits = esper_rng_u32(&rng);

        image[i] = clamp_pixel(pattern[i] + ((int)(bits & 255) - (int)(bits >> 8 & 255)) / 4);
        if (i + 1 < n_pixels)
            image[i + 1] = clamp_pixel(pattern[i + 1] + ((int)(bits >> 16 & 255) - (int)(bits >> 24)) / 4);
    }
}

static esper_status load_images(const esper_dataset_desc *desc, const esper_source_plan *plan,
                                esper_store stores[ESPER_N_STORES])
{
    size_t n_pixels = (size_t)plan->channels * (size_t)plan->height * (size_t)plan->width;
    uint8_t *patterns = esper_mem_alloc((size_t)plan->classes * n_pixels);

    if (patterns == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "patterns of %d classes", plan->classes);
    for (int c = 0; c < plan->classes; c++)
        draw_pattern(desc, c, patterns + (size_t)c * n_pixels);
    for (uint32_t s = 0; s < ESPER_N_STORES; s++)
        for (uint32_t i = 0; i < stores[s].n_items; i++)
            draw_sample(desc, i, TAG_STORE + s, patterns, n_pixels, stores[s].images + i * n_pixels,
                        &stores[s].labels[i]);
    esper_mem_free(patterns);
    return ESPER_OK;
}

const esper_source_ops esper_source_synth_images = {.measure = measure_images, .load = load_images};

/* ---------------------------------------------------------------- tokens */

static esper_status measure_tokens(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    uint64_t context = (uint64_t)desc->context; /* dataset.c has checked it */

    if (desc->vocab < 2 || desc->vocab > ESPER_DATASET_MAX_VOCAB)
        return ESPER_FAIL(ESPER_E_ARG, "synthetic tokens of a vocabulary of %d: expected 2 to %d", desc->vocab,
                          ESPER_DATASET_MAX_VOCAB);
    *plan_out =
        (esper_source_plan){.vocab = desc->vocab, .n_items = {desc->n_train * context + 1, desc->n_test * context + 1}};
    return ESPER_OK;
}

/* One run of tokens, at most RUN long. */
static void draw_run(const esper_dataset_desc *desc, uint32_t run, uint32_t tag, const uint32_t *successor,
                     uint16_t *tokens, uint64_t n)
{
    esper_rng_key key = synth_key(desc, run, tag);
    uint32_t token;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    token = esper_rng_below(&rng, (uint32_t)desc->vocab);
    for (uint64_t i = 0; i < n; i++) {
        tokens[i] = (uint16_t)token;
        if (esper_rng_below(&rng, STRAY) == 0)
            token = esper_rng_below(&rng, (uint32_t)desc->vocab);
        else
            token = successor[token];
    }
}

static esper_status load_tokens(const esper_dataset_desc *desc, const esper_source_plan *plan,
                                esper_store stores[ESPER_N_STORES])
{
    uint32_t *successor = esper_mem_alloc((size_t)plan->vocab * sizeof(*successor));
    esper_rng_key key = synth_key(desc, 0, TAG_COMMON);

    if (successor == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "vocabulary of %d", plan->vocab);
    for (int t = 0; t < plan->vocab; t++)
        successor[t] = (uint32_t)t;
    esper_shuffle(successor, (uint32_t)plan->vocab, &key);
    for (uint32_t s = 0; s < ESPER_N_STORES; s++)
        for (uint64_t at = 0; at < stores[s].n_items; at += RUN) {
            uint64_t left = stores[s].n_items - at;

            draw_run(desc, (uint32_t)(at / RUN), TAG_STORE + s, successor, stores[s].tokens + at,
                     left < RUN ? left : RUN);
        }
    esper_mem_free(successor);
    return ESPER_OK;
}

const esper_source_ops esper_source_synth_tokens = {.measure = measure_tokens, .load = load_tokens};

/* ---------------------------------------------------------------- tables */

/* What a class scores a row by: the sum of its terms, each the product of two columns, taken or subtracted. */
typedef struct table_term {
    uint32_t a, b; /* columns */
    int      sign;
} table_term;

/* Columns that are in products; the others are noise. */
static uint32_t count_telling(const esper_source_plan *plan)
{
    return plan->features < 4 ? (uint32_t)plan->features : (uint32_t)(plan->features + 1) / 2;
}

static esper_status measure_table(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    if (desc->features < 2 || desc->features > ESPER_DATASET_MAX_FEATURES)
        return ESPER_FAIL(ESPER_E_ARG, "a synthetic table of %d columns: expected 2 to %d", desc->features,
                          ESPER_DATASET_MAX_FEATURES);
    if (desc->classes < 1 || desc->classes > ESPER_DATASET_MAX_CLASSES)
        return ESPER_FAIL(ESPER_E_ARG, "a synthetic table of %d classes: expected 1 to %d", desc->classes,
                          ESPER_DATASET_MAX_CLASSES);
    *plan_out = (esper_source_plan){
        .features = desc->features, .classes = desc->classes, .n_items = {desc->n_train, desc->n_test}};
    return ESPER_OK;
}

/* (classes, TERMS); two different columns each. */
static void draw_terms(const esper_dataset_desc *desc, const esper_source_plan *plan, table_term *terms)
{
    uint32_t n = count_telling(plan);
    esper_rng_key key = synth_key(desc, 0, TAG_COMMON);
    esper_rng rng;

    assert(n >= 2);
    esper_rng_init(&rng, &key);
    for (int i = 0; i < plan->classes * TERMS; i++) {
        terms[i].a = esper_rng_below(&rng, n);
        terms[i].b = (terms[i].a + 1 + esper_rng_below(&rng, n - 1)) % n;
        terms[i].sign = esper_rng_below(&rng, 2) == 0 ? 1 : -1;
    }
}

/* A row: every column is the difference of two bytes, near 0 more often. The values are multiples of 1/104, whose mean is 0 and
 * whose deviation is about 1, as of a table that was normalised. */
static uint8_t draw_row(const esper_dataset_desc *desc, uint32_t sample, uint32_t tag, const table_term *terms,
                        float *row)
{
    esper_rng_key key = synth_key(desc, sample, tag);
    int64_t best = INT64_MIN;
    uint8_t label = 0;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int f = 0; f < desc->features; f++) {
        uint32_t bits = esper_rng_u32(&rng);

        row[f] = (float)((int)(bits & 255) - (int)(bits >> 8 & 255));
    }
    for (int c = 0; c < desc->classes; c++) {
        int64_t score = 0;

        for (int t = 0; t < TERMS; t++) {
            const table_term *term = &terms[c * TERMS + t];

            score += term->sign * (int64_t)row[term->a] * (int64_t)row[term->b];
        }
        if (score > best) {
            best = score;
            label = (uint8_t)c;
        }
    }
    for (int f = 0; f < desc->features; f++)
        row[f] /= TABLE_UNIT;
    return label;
}

static esper_status load_table(const esper_dataset_desc *desc, const esper_source_plan *plan,
                               esper_store stores[ESPER_N_STORES])
{
    table_term *terms = esper_mem_alloc((size_t)plan->classes * TERMS * sizeof(*terms));

    if (terms == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "terms of %d classes", plan->classes);
    draw_terms(desc, plan, terms);
    for (uint32_t s = 0; s < ESPER_N_STORES; s++)
        for (uint32_t i = 0; i < stores[s].n_items; i++)
            stores[s].labels[i] =
                draw_row(desc, i, TAG_STORE + s, terms, stores[s].rows + (size_t)i * (size_t)plan->features);
    esper_mem_free(terms);
    return ESPER_OK;
}

const esper_source_ops esper_source_synth_table = {.measure = measure_table, .load = load_table};
