/* The data set: measures, takes all memory, lets the source fill it, and cuts the splits. */
#include "data/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/shuffle.h"
#include "data/prepared.h"
#include "data/source.h"

enum {
    LEVELS = 256,
    TEST_PART =
        10, /* a text without test files gives up one window in so many, at its end; people's own images, at random */
    MAX_CONTEXT = 65536,
};

static const double VALID_FRACTION_MAX = 0.9;

struct esper_dataset {
    esper_dataset_info info;
    esper_store        stores[ESPER_N_STORES];
    uint32_t          *ids;         /* of the training data: those of validation, of training, of a drawn test; each rising */
    uint32_t           test_first;  /* id of the first test sample, unless the test is drawn */
    uint32_t           test_at;     /* in ids: where those of a drawn test begin; 0 = it is not drawn */
    uint64_t           hash;        /* of all stores */
    bool               was_cached;
    esper_source_texts texts;       /* of data that tells of itself */
    const char       **text;        /* (n_classes + n_remarks + 2 n_columns + n_features) into them */
    int                n_scaled;    /* leading numbers of a row that are normalised here */
    float             *row_mean, *row_std; /* (n_scaled) */
    char               numbers[ESPER_DATASET_MAX_CLASSES][12]; /* names of classes that have none */
    int                n_source_classes;                    /* of which it may have but some: */
    uint8_t            source_class[ESPER_DATASET_MAX_CLASSES]; /* (classes) what each of its own is among these, rising */
    float              levels[ESPER_DATASET_MAX_CHANNELS][LEVELS];
};

/* What opening will take, worked out before anything is loaded. */
typedef struct dataset_plan {
    esper_source_plan  source;
    esper_dataset_info info;
    uint32_t           n_pool; /* samples that validation and training are cut from */
    uint32_t           n_drawn; /* samples beside them, drawn by the seed, that are the test; 0 = it is not drawn */
    uint64_t           sample_bytes; /* of an image or a row */
} dataset_plan;

static const esper_source_ops *const sources[ESPER_N_SOURCES] = {
    [ESPER_SOURCE_FASHION] = &esper_source_fashion,
    [ESPER_SOURCE_MNIST] = &esper_source_fashion,
    [ESPER_SOURCE_CIFAR10] = &esper_source_cifar10,
    [ESPER_SOURCE_TEXT] = &esper_source_text,
    [ESPER_SOURCE_TOKENS] = &esper_source_tokens,
    [ESPER_SOURCE_SYNTH_IMAGES] = &esper_source_synth_images,
    [ESPER_SOURCE_SYNTH_TOKENS] = &esper_source_synth_tokens,
    [ESPER_SOURCE_OWN_IMAGES] = &esper_source_own_images,
    [ESPER_SOURCE_OWN_TABLE] = &esper_source_own_table,
    [ESPER_SOURCE_SYNTH_TABLE] = &esper_source_synth_table,
};

static const struct {
    const char        *name;
    esper_dataset_kind kind;
} source_facts[ESPER_N_SOURCES] = {
#define X(name, text, kind) [ESPER_SOURCE_##name] = {text, ESPER_DATASET_##kind},
    ESPER_SOURCE_LIST(X)
#undef X
};

const char *esper_source_name(esper_source source)
{
    return (unsigned)source < ESPER_N_SOURCES ? source_facts[source].name : "unknown source";
}

esper_dataset_kind esper_source_kind(esper_source source)
{
    return (unsigned)source < ESPER_N_SOURCES ? source_facts[source].kind : ESPER_DATASET_IMAGES;
}

bool esper_source_is_own(esper_source source)
{
    return source == ESPER_SOURCE_OWN_IMAGES || source == ESPER_SOURCE_OWN_TABLE;
}

bool esper_source_is_synthetic(esper_source source)
{
    return source == ESPER_SOURCE_SYNTH_IMAGES || source == ESPER_SOURCE_SYNTH_TOKENS ||
           source == ESPER_SOURCE_SYNTH_TABLE;
}

const char *esper_split_name(esper_split split)
{
    static const char *const names[ESPER_N_SPLITS] = {
        [ESPER_SPLIT_TRAIN] = "train", [ESPER_SPLIT_VALID] = "valid", [ESPER_SPLIT_TEST] = "test"};

    return (unsigned)split < ESPER_N_SPLITS ? names[split] : "unknown split";
}

esper_dataset_desc esper_dataset_desc_default(esper_source source)
{
    return (esper_dataset_desc){
        .source = source,
        .path = "",
        .valid_fraction = 0.1,
        .context = source == ESPER_SOURCE_TOKENS ? 256 : 128,
        .vocab = source == ESPER_SOURCE_SYNTH_TOKENS ? 256 : 0,
        .channels = 3,
        .height = 32,
        .width = 32,
        .features = 16,
        .classes = 10,
        .n_train = source == ESPER_SOURCE_SYNTH_TABLE ? 20000 : 2000, /* a row costs next to nothing */
        .n_test = source == ESPER_SOURCE_SYNTH_TABLE ? 2000 : 500,
    };
}

static bool is_same_text(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

/* Where it is kept, and by how many threads it is decoded, changes nothing of it. */
bool esper_dataset_is_of(const esper_dataset_desc *desc, const esper_dataset_desc *other)
{
    return desc->source == other->source && is_same_text(desc->path, other->path) && desc->seed == other->seed &&
           desc->valid_fraction == other->valid_fraction && desc->train_limit == other->train_limit &&
           desc->keep_classes == other->keep_classes && desc->context == other->context &&
           desc->vocab == other->vocab && desc->channels == other->channels && desc->height == other->height &&
           desc->width == other->width && desc->features == other->features && desc->classes == other->classes &&
           desc->n_train == other->n_train && desc->n_test == other->n_test &&
           is_same_text(desc->image_size, other->image_size) && desc->grey == other->grey &&
           desc->skip_bad == other->skip_bad && is_same_text(desc->target, other->target);
}

static esper_status check_desc(const esper_dataset_desc *desc)
{
    if ((unsigned)desc->source >= ESPER_N_SOURCES)
        return ESPER_FAIL(ESPER_E_ARG, "data source %d does not exist", (int)desc->source);
    if (!(desc->valid_fraction >= 0.0 && desc->valid_fraction <= VALID_FRACTION_MAX))
        return ESPER_FAIL(ESPER_E_ARG, "%s: validation fraction %g: expected 0 to %g", esper_source_name(desc->source),
                          desc->valid_fraction, VALID_FRACTION_MAX);
    if (esper_source_kind(desc->source) != ESPER_DATASET_TOKENS)
        return ESPER_OK;
    if (desc->context < 1 || desc->context > MAX_CONTEXT)
        return ESPER_FAIL(ESPER_E_ARG, "%s: context of %d tokens: expected 1 to %d", esper_source_name(desc->source),
                          desc->context, MAX_CONTEXT);
    if (desc->vocab < 0 || desc->vocab > ESPER_DATASET_MAX_VOCAB)
        return ESPER_FAIL(ESPER_E_ARG, "%s: vocabulary of %d: expected at most %d", esper_source_name(desc->source),
                          desc->vocab, ESPER_DATASET_MAX_VOCAB);
    return ESPER_OK;
}

/* Whole windows in a run of tokens. The last target of one is the first input of the next. */
static uint64_t count_windows(uint64_t n_tokens, int context)
{
    return n_tokens > 0 ? (n_tokens - 1) / (uint64_t)context : 0;
}

/* Windows at the end of a text without test files that are its test; or images, drawn. */
static uint64_t count_tail(uint64_t n)
{
    return n == 0 ? 0 : n < TEST_PART ? 1 : n / TEST_PART;
}

/* Samples that validation takes. */
static uint64_t count_valid(const esper_dataset_desc *desc, uint64_t n_pool)
{
    uint64_t n_valid = (uint64_t)(desc->valid_fraction * (double)n_pool + 0.5);

    return desc->valid_fraction > 0.0 && n_valid == 0 ? 1 : n_valid;
}

/* Samples of the training data and of the test, before validation is carved out. */
static void count_samples(const esper_dataset_desc *desc, const esper_source_plan *source, uint64_t *n_pool,
                          uint64_t *n_test)
{
    *n_pool = source->n_items[ESPER_STORE_TRAIN];
    *n_test = source->n_items[ESPER_STORE_TEST];
    if (esper_source_kind(desc->source) != ESPER_DATASET_TOKENS) {
        if (*n_test == 0 && esper_source_is_own(desc->source)) {
            *n_test = count_tail(*n_pool);
            *n_pool -= *n_test;
        }
        return;
    }
    *n_pool = count_windows(*n_pool, desc->context);
    if (*n_test > 0) {
        *n_test = count_windows(*n_test, desc->context);
        return;
    }
    *n_test = count_tail(*n_pool);
    *n_pool -= *n_test;
}

/* Windows of training data that are enough for every split. */
static uint64_t windows_needed(const esper_dataset_desc *desc, bool tail_is_test)
{
    uint64_t n = 1, n_pool = 0;

    for (;; n++) {
        n_pool = n - (tail_is_test ? count_tail(n) : 0);
        if (n_pool > count_valid(desc, n_pool))
            return n;
    }
}

static esper_status fail_too_little(const esper_dataset_desc *desc, const esper_source_plan *source, uint64_t n_pool)
{
    const char *name = esper_source_name(desc->source);
    uint64_t n_tokens = source->n_items[ESPER_STORE_TRAIN];
    uint64_t n_needed, longest;

    if (esper_source_kind(desc->source) != ESPER_DATASET_TOKENS)
        return ESPER_FAIL(ESPER_E_ARG,
                          "%s: too little data: %" PRIu64 " training sample%s, of which %" PRIu64
                          " would be for validation: take more samples, or a smaller --valid-fraction",
                          name, n_pool, n_pool == 1 ? "" : "s", count_valid(desc, n_pool));
    n_needed = windows_needed(desc, source->n_items[ESPER_STORE_TEST] == 0);
    longest = n_tokens > 0 ? (n_tokens - 1) / n_needed : 0;
    if (longest == 0)
        return ESPER_FAIL(ESPER_E_ARG, "%s: too little data: %" PRIu64 " %s; take more with --data", name, n_tokens,
                          desc->source == ESPER_SOURCE_TEXT ? "bytes" : "tokens");
    return ESPER_FAIL(ESPER_E_ARG,
                      "%s: too little data: %" PRIu64 " %s give %" PRIu64 " of the %" PRIu64 " windows of %d + 1 that "
                      "are needed at least: take more with --data, or a shorter context (--context %" PRIu64
                      " or less)",
                      name, n_tokens, desc->source == ESPER_SOURCE_TEXT ? "bytes" : "tokens",
                      count_windows(n_tokens, desc->context), n_needed, desc->context, longest);
}

/* How many samples each split gets. */
static esper_status plan_splits(const esper_dataset_desc *desc, dataset_plan *plan)
{
    const char *name = esper_source_name(desc->source);
    uint64_t n_pool, n_test, n_valid, n_train;

    count_samples(desc, &plan->source, &n_pool, &n_test);
    if (n_pool > UINT32_MAX - n_test || n_test > UINT32_MAX)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: %" PRIu64 " samples: at most %u can be numbered", name,
                          n_pool + n_test, UINT32_MAX);
    n_valid = count_valid(desc, n_pool);
    if (n_pool <= n_valid)
        return fail_too_little(desc, &plan->source, n_pool);
    n_train = n_pool - n_valid;
    if (desc->train_limit > 0 && n_train > desc->train_limit)
        n_train = desc->train_limit;
    plan->n_pool = (uint32_t)n_pool;
    if (esper_source_is_own(desc->source) && plan->source.n_items[ESPER_STORE_TEST] == 0)
        plan->n_drawn = (uint32_t)n_test;
    plan->info.count[ESPER_SPLIT_TRAIN] = (uint32_t)n_train;
    plan->info.count[ESPER_SPLIT_VALID] = (uint32_t)n_valid;
    plan->info.count[ESPER_SPLIT_TEST] = (uint32_t)n_test;
    return ESPER_OK;
}

/* What the set is, by what its source has. */
static esper_status plan_set(const esper_dataset_desc *desc, dataset_plan *plan)
{
    const esper_source_plan *source = &plan->source;
    uint64_t item_bytes = sizeof(uint16_t);

    plan->info.name = esper_source_name(desc->source);
    plan->info.kind = esper_source_kind(desc->source);
    ESPER_TRY(plan_splits(desc, plan));
    if (plan->info.kind == ESPER_DATASET_IMAGES) {
        plan->info.channels = source->channels;
        plan->info.height = source->height;
        plan->info.width = source->width;
        memcpy(plan->info.mean, source->mean, sizeof(source->mean));
        memcpy(plan->info.std, source->std, sizeof(source->std));
        plan->sample_bytes = (uint64_t)source->channels * (uint64_t)source->height * (uint64_t)source->width;
    } else if (plan->info.kind == ESPER_DATASET_VECTORS) {
        plan->info.features = source->features;
        plan->sample_bytes = (uint64_t)source->features * sizeof(float);
    } else {
        plan->info.context = desc->context;
        plan->info.vocab = source->vocab;
    }
    if (plan->info.kind != ESPER_DATASET_TOKENS) {
        plan->info.classes = source->classes;
        item_bytes = plan->sample_bytes + 1; /* and its label */
    }
    plan->info.n_bytes = sizeof(esper_dataset) + (plan->n_pool + plan->n_drawn) * (uint64_t)sizeof(uint32_t) +
                         (source->n_items[ESPER_STORE_TRAIN] + source->n_items[ESPER_STORE_TEST]) * item_bytes;
    return ESPER_OK;
}

static esper_status make_plan(const esper_dataset_desc *desc, dataset_plan *plan)
{
    ESPER_TRY(check_desc(desc));
    ESPER_TRY(sources[desc->source]->measure(desc, &plan->source));
    if (desc->keep_classes != 0 && (desc->keep_classes < 2 || desc->keep_classes > plan->source.classes))
        return ESPER_FAIL(ESPER_E_ARG, "%s: %d classes of %d: expected from 2 to as many as there are",
                          esper_source_name(desc->source), desc->keep_classes, plan->source.classes);
    return plan_set(desc, plan);
}

/* Memory for one store; none for an empty one. */
static esper_status store_init(esper_store *store, const dataset_plan *plan, uint64_t n_items)
{
    bool done = true;

    store->n_items = n_items;
    if (n_items == 0)
        return ESPER_OK;
    if (plan->info.kind == ESPER_DATASET_IMAGES) {
        store->images = esper_mem_alloc((size_t)(n_items * plan->sample_bytes));
        done = store->images != NULL;
    } else if (plan->info.kind == ESPER_DATASET_VECTORS) {
        store->rows = esper_mem_alloc((size_t)(n_items * plan->sample_bytes));
        done = store->rows != NULL;
    } else {
        store->tokens = esper_mem_alloc((size_t)n_items * sizeof(*store->tokens));
        done = store->tokens != NULL;
    }
    if (plan->info.kind != ESPER_DATASET_TOKENS) {
        store->labels = esper_mem_alloc((size_t)n_items);
        done = done && store->labels != NULL;
    }
    if (!done)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: the whole set is held in memory and takes %" PRIu64 " bytes",
                          plan->info.name, plan->info.n_bytes);
    return ESPER_OK;
}

/* A sample on its way to a place among all: `at` is how much of its class comes before it. */
typedef struct spread_sample {
    uint64_t at;
    uint32_t turn, id; /* turn: of its class among all, which no other class has */
} spread_sample;

static int by_spread(const void *a, const void *b)
{
    const spread_sample *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Brings a random order of samples into one in which every class is spread evenly: sample k of the n of a class comes at
 * (k + 1/2) / n of the way, and where several classes come at the same place they take turns, always in the order they were met in
 * first. So whatever is cut from the front has every class in its proportion, to within one sample; and a class of one sample is
 * trained on. */
static esper_status spread_classes(const uint8_t *labels, uint32_t *ids, uint32_t n)
{
    uint32_t count[ESPER_DATASET_MAX_CLASSES] = {0}, met[ESPER_DATASET_MAX_CLASSES] = {0};
    uint32_t turn[ESPER_DATASET_MAX_CLASSES] = {0}, n_turns = 0;
    spread_sample *samples = esper_mem_alloc(n * sizeof(*samples));

    if (samples == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "split of %u samples", n);
    for (uint32_t i = 0; i < n; i++)
        if (count[labels[ids[i]]]++ == 0)
            turn[labels[ids[i]]] = n_turns++;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t class = labels[ids[i]];
        uint64_t halves = 2 * (uint64_t)met[class]++ + 1;

        samples[i] = (spread_sample){.at = (halves << 30) / count[class], .turn = turn[class], .id = ids[i]};
    }
    qsort(samples, n, sizeof(*samples), by_spread);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = samples[i].id;
    esper_mem_free(samples);
    return ESPER_OK;
}

/* Carves validation, and a test that is to be drawn, out of the training data. One random order of all samples, which only the
 * seed decides: the test takes its share from the front, then validation, and training (up to its limit) follows. So a limit
 * leaves the others as they are, and a larger limit only adds samples. People's own data, of which there may be little, is cut class
 * by class; where the sets are that everybody has, chance is good enough, and their splits stay what they were. */
static esper_status carve(esper_dataset *set, const dataset_plan *plan, const esper_dataset_desc *desc)
{
    uint64_t seed = desc->seed;
    esper_rng_key key = {.seed = seed, .purpose = ESPER_RNG_SPLIT};
    uint32_t n_valid = set->info.count[ESPER_SPLIT_VALID], n_train = set->info.count[ESPER_SPLIT_TRAIN];
    uint32_t n_all = plan->n_pool + plan->n_drawn;
    uint32_t at[ESPER_N_SPLITS] = {
        [ESPER_SPLIT_VALID] = 0, [ESPER_SPLIT_TRAIN] = n_valid, [ESPER_SPLIT_TEST] = plan->n_pool};
    uint8_t *split_of; /* (n_all) 0 = in no split, else 1 + the split */

    set->test_at = plan->n_drawn > 0 ? plan->n_pool : 0;
    set->ids = esper_mem_alloc(n_all * sizeof(*set->ids));
    split_of = esper_mem_alloc(n_all);
    if (set->ids == NULL || split_of == NULL) {
        esper_mem_free(split_of);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: split of %u samples", set->info.name, n_all);
    }
    for (uint32_t i = 0; i < n_all; i++)
        set->ids[i] = i;
    esper_shuffle(set->ids, n_all, &key);
    if (esper_source_is_own(desc->source)) {
        esper_status status = spread_classes(set->stores[ESPER_STORE_TRAIN].labels, set->ids, n_all);

        if (status != ESPER_OK) {
            esper_mem_free(split_of);
            return status;
        }
    }
    for (uint32_t i = 0; i < plan->n_drawn + n_valid + n_train; i++)
        split_of[set->ids[i]] = (uint8_t)(1 + (i < plan->n_drawn             ? ESPER_SPLIT_TEST
                                               : i < plan->n_drawn + n_valid ? ESPER_SPLIT_VALID
                                                                             : ESPER_SPLIT_TRAIN));
    for (uint32_t id = 0; id < n_all; id++)
        if (split_of[id] > 0)
            set->ids[at[split_of[id] - 1]++] = id;
    esper_mem_free(split_of);
    return ESPER_OK;
}

/* Finds the beginnings of the texts, which are now the set's. */
static esper_status take_texts(esper_dataset *set, esper_source_texts *texts)
{
    size_t n = (size_t)texts->n_classes + texts->n_remarks + 2 * (size_t)texts->n_columns + texts->n_features;
    char *at = texts->page.text;

    set->texts = *texts;
    *texts = (esper_source_texts){0};
    set->text = esper_mem_alloc(n * sizeof(*set->text));
    if (n > 0 && set->text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: names", set->info.name);
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1) {
        set->text[i] = at;
        if (i >= set->texts.n_classes) /* for people alone; names of classes are compared and written */
            esper_utf8_show(at);
    }
    return ESPER_OK;
}

/* Numbers of rows of people's own are brought to mean 0 and deviation 1 over the training split, and over nothing else: what is
 * set aside says nothing to it. A missing one becomes the mean, that is 0. */
static void scale_rows(esper_dataset *set)
{
    size_t n_features = (size_t)set->info.features;
    uint32_t n_train = set->info.count[ESPER_SPLIT_TRAIN];

    for (int f = 0; f < set->n_scaled; f++) {
        double sum = 0.0, squares = 0.0, mean = 0.0, deviation;
        uint32_t n = 0;

        for (int pass = 0; pass < 2; pass++) { /* squares of what is left: of large numbers that differ little, too */
            mean = n > 0 ? sum / n : 0.0;
            n = 0;
            for (uint32_t i = 0; i < n_train; i++) {
                uint32_t id = esper_dataset_id(set, ESPER_SPLIT_TRAIN, i);
                float value = esper_dataset_row(set, ESPER_SPLIT_TRAIN, id)[f];

                if (isnan(value))
                    continue;
                n++;
                sum += pass == 0 ? (double)value : 0.0;
                squares += pass == 0 ? 0.0 : ((double)value - mean) * ((double)value - mean);
            }
        }
        deviation = n > 0 ? sqrt(squares / n) : 0.0;
        set->row_mean[f] = (float)mean;
        set->row_std[f] = deviation > 0.0 && isfinite(deviation) ? (float)deviation : 1.0f;
    }
    for (int s = 0; s < ESPER_N_STORES; s++)
        for (uint64_t i = 0; i < set->stores[s].n_items; i++)
            for (int f = 0; f < set->n_scaled; f++) {
                float *value = &set->stores[s].rows[i * n_features + (size_t)f];

                *value = isnan(*value) ? 0.0f : (*value - set->row_mean[f]) / set->row_std[f];
            }
}

/* What pixels and numbers look like to a network: levels, names of classes that have none, and room for means and deviations. */
static esper_status prepare_looks(esper_dataset *set)
{
    for (int c = 0; c < set->info.channels;
         c++) /* looked up, not computed per pixel: the same everywhere, bit for bit */
        for (int value = 0; value < LEVELS; value++)
            set->levels[c][value] = ((float)value / 255.0f - set->info.mean[c]) / set->info.std[c];
    set->n_source_classes = set->info.classes;
    for (int i = 0; i < ESPER_DATASET_MAX_CLASSES; i++) {
        set->source_class[i] = (uint8_t)i;
        snprintf(set->numbers[i], sizeof(set->numbers[i]), "%d", i);
    }
    set->row_mean = esper_mem_alloc((size_t)set->n_scaled * sizeof(float));
    set->row_std = esper_mem_alloc((size_t)set->n_scaled * sizeof(float));
    if (set->n_scaled > 0 && (set->row_mean == NULL || set->row_std == NULL))
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: %d numbers of a row", set->info.name, set->n_scaled);
    return ESPER_OK;
}

/* Whether it is to have some of its classes, and not all. */
static bool is_part_of(const esper_dataset_desc *desc, const dataset_plan *plan)
{
    return desc->keep_classes > 0 && desc->keep_classes < plan->source.classes;
}

/* Leaves the samples of some classes, drawn by the seed, and numbers these anew, in their order: from here on it is a smaller set. */
static esper_status keep_classes(esper_dataset *set, dataset_plan *plan, const esper_dataset_desc *desc)
{
    esper_rng_key key = {
        .seed = desc->seed, .purpose = ESPER_RNG_SPLIT, .tag = 1}; /* the splits are drawn with tag 0 */
    uint32_t drawn[ESPER_DATASET_MAX_CLASSES];
    bool keeps[ESPER_DATASET_MAX_CLASSES] = {false};
    uint8_t number[ESPER_DATASET_MAX_CLASSES] = {0};
    bool has_images = plan->info.kind == ESPER_DATASET_IMAGES;
    int n = 0;

    for (int c = 0; c < plan->source.classes; c++)
        drawn[c] = (uint32_t)c;
    esper_shuffle(drawn, (uint32_t)plan->source.classes, &key);
    for (int c = 0; c < desc->keep_classes; c++)
        keeps[drawn[c]] = true;
    for (int c = 0; c < plan->source.classes; c++)
        if (keeps[c]) {
            set->source_class[n] = (uint8_t)c;
            number[c] = (uint8_t)n++;
        }
    for (int s = 0; s < ESPER_N_STORES; s++) {
        esper_store *store = &set->stores[s];
        uint8_t *items = has_images ? store->images : (uint8_t *)store->rows, *labels = store->labels;
        uint64_t n_kept = 0;

        if (store->n_items == 0)
            continue;
        for (uint64_t i = 0; i < store->n_items; i++)
            if (keeps[labels[i]]) {
                memmove(items + n_kept * plan->sample_bytes, items + i * plan->sample_bytes,
                        (size_t)plan->sample_bytes);
                labels[n_kept++] = number[labels[i]];
            }
        if (n_kept == 0)
            return ESPER_FAIL(ESPER_E_ARG, "%s: the %d classes that were drawn have no samples %s", plan->info.name,
                              desc->keep_classes, s == ESPER_STORE_TEST ? "in the test" : "to train on");
        items = esper_mem_grow(items, (size_t)(n_kept * plan->sample_bytes)); /* what is left of it */
        if (items != NULL && has_images)
            store->images = items;
        else if (items != NULL)
            store->rows = (float *)(void *)items;
        labels = esper_mem_grow(labels, (size_t)n_kept);
        store->labels = labels != NULL ? labels : store->labels;
        if (items == NULL || labels == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: %d classes", plan->info.name, desc->keep_classes);
        store->n_items = plan->source.n_items[s] = n_kept;
    }
    plan->source.classes = desc->keep_classes;
    ESPER_TRY(plan_set(desc, plan));
    set->info = plan->info;
    return ESPER_OK;
}

static esper_status build(const esper_dataset_desc *desc, dataset_plan *plan, esper_dataset *set)
{
    set->info = plan->info;
    set->was_cached = plan->source.was_fresh;
    for (int s = 0; s < ESPER_N_STORES; s++)
        ESPER_TRY(store_init(&set->stores[s], plan, plan->source.n_items[s]));
    set->n_scaled = plan->source.numbers;
    ESPER_TRY(prepare_looks(set));
    ESPER_TRY(take_texts(set, &plan->source.texts));
    ESPER_TRY(sources[desc->source]->load(desc, &plan->source, set->stores));
    if (is_part_of(desc, plan))
        ESPER_TRY(keep_classes(set, plan, desc));
    if (set->stores[ESPER_STORE_TEST].n_items == 0)
        set->test_first = plan->n_pool;
    return carve(set, plan, desc); /* by labels, which have to be there */
}

/* At the speed of memory: a hundredth of what reading the files takes. */
static uint64_t hash_array(const void *items, uint64_t n_bytes, uint64_t hash)
{
    return items != NULL ? XXH64(items, n_bytes, hash) : hash;
}

static uint64_t hash_stores(const esper_dataset *set)
{
    const esper_dataset_info *info = &set->info;
    uint64_t n_pixels = (uint64_t)info->channels * (uint64_t)info->height * (uint64_t)info->width, hash = 0;

    for (int i = 0; i < ESPER_N_STORES; i++) {
        const esper_store *store = &set->stores[i];

        hash = hash_array(&store->n_items, sizeof(store->n_items), hash);
        hash = hash_array(store->images, store->n_items * n_pixels, hash);
        hash = hash_array(store->rows, store->n_items * (uint64_t)info->features * sizeof(*store->rows), hash);
        hash = hash_array(store->labels, store->n_items, hash);
        hash = hash_array(store->tokens, store->n_items * sizeof(*store->tokens), hash);
    }
    return hash;
}

esper_status esper_dataset_open(const esper_dataset_desc *desc, esper_dataset **set_out)
{
    dataset_plan plan = {0};
    esper_dataset *set;
    esper_status st;

    st = make_plan(desc, &plan);
    set = st == ESPER_OK ? esper_mem_alloc(sizeof(*set)) : NULL;
    if (st == ESPER_OK)
        st = set != NULL ? build(desc, &plan, set) : ESPER_FAIL(ESPER_E_NOMEM, "%s: data set", plan.info.name);
    esper_page_fini(&plan.source.texts.page);
    if (st != ESPER_OK) {
        esper_dataset_close(set);
        return st;
    }
    set->hash = hash_stores(set); /* of what was read, whatever the seed sets aside */
    scale_rows(set);
    *set_out = set;
    return ESPER_OK;
}

void esper_dataset_close(esper_dataset *set)
{
    if (set == NULL)
        return;
    for (int s = 0; s < ESPER_N_STORES; s++) {
        esper_mem_free(set->stores[s].images);
        esper_mem_free(set->stores[s].rows);
        esper_mem_free(set->stores[s].labels);
        esper_mem_free(set->stores[s].tokens);
    }
    esper_mem_free(set->ids);
    esper_page_fini(&set->texts.page);
    esper_mem_free(set->text);
    esper_mem_free(set->row_mean);
    esper_mem_free(set->row_std);
    esper_mem_free(set);
}

esper_status esper_dataset_measure(const esper_dataset_desc *desc, esper_dataset_info *info_out)
{
    dataset_plan plan = {0};
    esper_status status = make_plan(desc, &plan);
    esper_dataset *set;

    esper_page_fini(&plan.source.texts.page);
    ESPER_TRY(status);
    *info_out = plan.info;
    if (is_part_of(desc, &plan)) {
        ESPER_TRY(esper_dataset_open(desc, &set));
        *info_out = set->info;
        esper_dataset_close(set);
    }
    return ESPER_OK;
}

const esper_dataset_info *esper_dataset_info_get(const esper_dataset *set)
{
    return &set->info;
}

uint32_t esper_dataset_count(const esper_dataset *set, esper_split split)
{
    return set->info.count[split];
}

uint64_t esper_dataset_hash(const esper_dataset *set)
{
    return set->hash;
}

uint32_t esper_dataset_id(const esper_dataset *set, esper_split split, uint32_t index)
{
    assert((unsigned)split < ESPER_N_SPLITS && index < set->info.count[split]);
    if (split == ESPER_SPLIT_TEST)
        return set->test_at > 0 ? set->ids[set->test_at + index] : set->test_first + index;
    return set->ids[split == ESPER_SPLIT_VALID ? index : set->info.count[ESPER_SPLIT_VALID] + index];
}

/* Where the samples of a split lie: a test split cut from the training data lies there. */
static const esper_store *store_of(const esper_dataset *set, esper_split split)
{
    bool in_test = split == ESPER_SPLIT_TEST && set->stores[ESPER_STORE_TEST].n_items > 0;

    return &set->stores[in_test ? ESPER_STORE_TEST : ESPER_STORE_TRAIN];
}

const uint8_t *esper_dataset_image(const esper_dataset *set, esper_split split, uint32_t id)
{
    size_t n_pixels = (size_t)set->info.channels * (size_t)set->info.height * (size_t)set->info.width;

    return store_of(set, split)->images + id * n_pixels;
}

const void *esper_dataset_items(const esper_dataset *set, esper_split split, size_t *bytes_out,
                                const uint8_t **labels_out, size_t *n_labels_out)
{
    const esper_store *store = store_of(set, split);
    size_t n = (size_t)store->n_items,
           n_pixels = (size_t)set->info.channels * (size_t)set->info.height * (size_t)set->info.width;

    *labels_out = store->labels;
    *n_labels_out = store->labels != NULL ? n : 0;
    *bytes_out = store->images != NULL ? n * n_pixels
                 : store->rows != NULL ? n * (size_t)set->info.features * sizeof(*store->rows)
                                       : n * sizeof(*store->tokens);
    return store->images != NULL ? (const void *)store->images
           : store->rows != NULL ? (const void *)store->rows
                                 : store->tokens;
}

const float *esper_dataset_row(const esper_dataset *set, esper_split split, uint32_t id)
{
    assert(id < store_of(set, split)->n_items);
    return store_of(set, split)->rows + id * (size_t)set->info.features;
}

uint8_t esper_dataset_label(const esper_dataset *set, esper_split split, uint32_t id)
{
    assert(id < store_of(set, split)->n_items);
    return store_of(set, split)->labels[id];
}

const uint16_t *esper_dataset_window(const esper_dataset *set, esper_split split, uint32_t id)
{
    return store_of(set, split)->tokens + id * (size_t)set->info.context;
}

const float *esper_dataset_levels(const esper_dataset *set, int channel)
{
    assert(channel >= 0 && channel < set->info.channels);
    return set->levels[channel];
}

/* Names that are part of a set's definition, where its files do not tell them. */
static const char *known_name(const esper_dataset *set, int class)
{
    static const char *const fashion[] = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                          "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
    static const char *const cifar10[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                          "dog",      "frog",       "horse", "ship", "truck"};
    const char *name = set->info.name;

    if (set->n_source_classes != 10)
        return NULL;
    return strcmp(name, esper_source_name(ESPER_SOURCE_FASHION)) == 0   ? fashion[class]
           : strcmp(name, esper_source_name(ESPER_SOURCE_CIFAR10)) == 0 ? cifar10[class]
                                                                        : NULL;
}

const char *esper_dataset_class_name(const esper_dataset *set, int class)
{
    const char *name;

    assert(class >= 0 && class < set->info.classes && class < ESPER_DATASET_MAX_CLASSES);
    class = set->source_class[class];
    if (set->texts.n_classes > 0)
        return set->text[class];
    name = known_name(set, class);
    return name != NULL ? name : set->numbers[class];
}

bool esper_dataset_is_part(const esper_dataset *set)
{
    return set->info.classes < set->n_source_classes;
}

bool esper_dataset_names_classes(const esper_dataset *set)
{
    return set->info.classes > 0 && (set->texts.n_classes > 0 || known_name(set, 0) != NULL);
}

const char *esper_dataset_class_shown(const esper_dataset *set, int class, char shown[ESPER_DATASET_SHOWN_CHARS])
{
    const char *name = esper_dataset_class_name(set, class);
    size_t n = strlen(name);

    if (n < ESPER_DATASET_SHOWN_CHARS)
        memcpy(shown, name, n + 1);
    else {
        n = ESPER_DATASET_SHOWN_CHARS - sizeof("...");
        while (((unsigned char)name[n] & 0xC0) == 0x80) /* not within a character */
            n--;
        snprintf(shown, ESPER_DATASET_SHOWN_CHARS, "%.*s...", (int)n, name);
    }
    esper_utf8_show(shown);
    return shown;
}

void esper_dataset_list_classes(const esper_dataset *set, char *text_out, size_t chars)
{
    enum { ENDING = 32 }; /* room for "and 250 more" */
    size_t used = 0;

    assert(chars > ENDING);
    text_out[0] = '\0';
    for (int c = 0; c < set->info.classes; c++) {
        char shown[ESPER_DATASET_SHOWN_CHARS];
        const char *name = esper_dataset_class_shown(set, c, shown);

        if (used + strlen(name) + 2 + ENDING > chars) {
            snprintf(text_out + used, chars - used, "%s%d more", c > 0 ? " and " : "", set->info.classes - c);
            return;
        }
        used += (size_t)snprintf(text_out + used, chars - used, "%s%s", c > 0 ? ", " : "", name);
    }
}

uint32_t esper_dataset_remark_count(const esper_dataset *set)
{
    return set->texts.n_remarks;
}

const char *esper_dataset_remark(const esper_dataset *set, uint32_t index)
{
    assert(index < set->texts.n_remarks);
    return set->text[set->texts.n_classes + index];
}

uint32_t esper_dataset_column_count(const esper_dataset *set)
{
    return set->texts.n_columns;
}

const char *esper_dataset_column(const esper_dataset *set, uint32_t index, const char **about_out)
{
    const char *const *text = set->text + set->texts.n_classes + set->texts.n_remarks + 2 * (size_t)index;

    assert(index < set->texts.n_columns);
    *about_out = text[1];
    return text[0];
}

uint32_t esper_dataset_feature_count(const esper_dataset *set)
{
    return set->texts.n_features;
}

const char *esper_dataset_feature(const esper_dataset *set, uint32_t index, float *mean_out, float *std_out)
{
    size_t before = (size_t)set->texts.n_classes + set->texts.n_remarks + 2 * (size_t)set->texts.n_columns;

    assert(index < set->texts.n_features);
    *mean_out = (int)index < set->n_scaled ? set->row_mean[index] : 0.0f;
    *std_out = (int)index < set->n_scaled ? set->row_std[index] : 1.0f;
    return set->text[before + index];
}

bool esper_dataset_is_test_drawn(const esper_dataset *set)
{
    return set->test_at > 0;
}

bool esper_dataset_was_cached(const esper_dataset *set)
{
    return set->was_cached;
}

esper_status esper_dataset_cache_path(const esper_dataset_desc *desc, char *path_out, size_t chars)
{
    if (!esper_source_is_own(desc->source))
        return ESPER_FAIL(ESPER_E_ARG, "%s is read as it is: nothing is kept of it", esper_source_name(desc->source));
    return esper_prepared_path(desc, path_out, chars);
}

esper_status esper_dataset_open_empty(const esper_source_blank *blank, esper_source_texts *texts,
                                      esper_dataset **set_out)
{
    esper_dataset *set = esper_mem_alloc(sizeof(*set));
    esper_status status;

    if (set == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "data set");
    set->info = blank->info;
    memset(set->info.count, 0, sizeof(set->info.count));
    set->n_scaled = blank->n_scaled;
    status = prepare_looks(set);
    if (status == ESPER_OK && set->n_scaled > 0) {
        memcpy(set->row_mean, blank->row_mean, (size_t)set->n_scaled * sizeof(float));
        memcpy(set->row_std, blank->row_std, (size_t)set->n_scaled * sizeof(float));
    }
    if (status == ESPER_OK)
        status = take_texts(set, texts);
    if (status != ESPER_OK) {
        esper_dataset_close(set);
        return status;
    }
    *set_out = set;
    return ESPER_OK;
}

int esper_dataset_scaled(const esper_dataset *set)
{
    return set->n_scaled;
}
