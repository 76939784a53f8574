/* The data set: measures, takes all memory, lets the source fill it, and cuts the splits. */
#include "data/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/shuffle.h"
#include "data/source.h"

enum {
    LEVELS = 256,
    TEST_PART = 10, /* a text without test files gives up one window in so many, at its end */
    MAX_CONTEXT = 65536,
};

static const double VALID_FRACTION_MAX = 0.9;

struct esper_dataset {
    esper_dataset_info info;
    esper_store        stores[ESPER_N_STORES];
    uint32_t          *ids;         /* of the training data: those of validation, then those of training; each rising */
    uint32_t           test_first;  /* id of the first test sample */
    uint64_t           hash;        /* of all stores */
    float              levels[ESPER_DATASET_MAX_CHANNELS][LEVELS];
};

/* What opening will take, worked out before anything is loaded. */
typedef struct dataset_plan {
    esper_source_plan  source;
    esper_dataset_info info;
    uint32_t           n_pool; /* samples that validation and training are cut from */
    uint64_t           image_bytes;
} dataset_plan;

static const esper_source_ops *const sources[ESPER_N_SOURCES] = {
    [ESPER_SOURCE_FASHION] = &esper_source_fashion,
    [ESPER_SOURCE_MNIST] = &esper_source_fashion,
    [ESPER_SOURCE_CIFAR10] = &esper_source_cifar10,
    [ESPER_SOURCE_TEXT] = &esper_source_text,
    [ESPER_SOURCE_TOKENS] = &esper_source_tokens,
    [ESPER_SOURCE_SYNTH_IMAGES] = &esper_source_synth_images,
    [ESPER_SOURCE_SYNTH_TOKENS] = &esper_source_synth_tokens,
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
        .classes = 10,
        .n_train = 2000,
        .n_test = 500,
    };
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

/* Windows at the end of a text without test files that are its test. */
static uint64_t count_tail(uint64_t n_windows)
{
    return n_windows == 0 ? 0 : n_windows < TEST_PART ? 1 : n_windows / TEST_PART;
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
    if (esper_source_kind(desc->source) == ESPER_DATASET_IMAGES)
        return;
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

    if (esper_source_kind(desc->source) == ESPER_DATASET_IMAGES)
        return ESPER_FAIL(ESPER_E_ARG,
                          "%s: too little data: %" PRIu64 " training samples, of which %" PRIu64
                          " would be for validation: take more samples, or a smaller --valid-fraction",
                          name, n_pool, count_valid(desc, n_pool));
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
    plan->info.count[ESPER_SPLIT_TRAIN] = (uint32_t)n_train;
    plan->info.count[ESPER_SPLIT_VALID] = (uint32_t)n_valid;
    plan->info.count[ESPER_SPLIT_TEST] = (uint32_t)n_test;
    return ESPER_OK;
}

static esper_status make_plan(const esper_dataset_desc *desc, dataset_plan *plan)
{
    const esper_source_plan *source = &plan->source;
    uint64_t item_bytes = sizeof(uint16_t);

    ESPER_TRY(check_desc(desc));
    ESPER_TRY(sources[desc->source]->measure(desc, &plan->source));
    plan->info.name = esper_source_name(desc->source);
    plan->info.kind = esper_source_kind(desc->source);
    ESPER_TRY(plan_splits(desc, plan));
    if (plan->info.kind == ESPER_DATASET_IMAGES) {
        plan->info.channels = source->channels;
        plan->info.height = source->height;
        plan->info.width = source->width;
        plan->info.classes = source->classes;
        memcpy(plan->info.mean, source->mean, sizeof(source->mean));
        memcpy(plan->info.std, source->std, sizeof(source->std));
        plan->image_bytes = (uint64_t)source->channels * (uint64_t)source->height * (uint64_t)source->width;
        item_bytes = plan->image_bytes + 1; /* and its label */
    } else {
        plan->info.context = desc->context;
        plan->info.vocab = source->vocab;
    }
    plan->info.n_bytes = sizeof(esper_dataset) + plan->n_pool * (uint64_t)sizeof(uint32_t) +
                         (source->n_items[ESPER_STORE_TRAIN] + source->n_items[ESPER_STORE_TEST]) * item_bytes;
    return ESPER_OK;
}

/* Memory for one store; none for an empty one. */
static esper_status store_init(esper_store *store, const dataset_plan *plan, uint64_t n_items)
{
    bool done = true;

    store->n_items = n_items;
    if (n_items == 0)
        return ESPER_OK;
    if (plan->info.kind == ESPER_DATASET_IMAGES) {
        store->images = esper_mem_alloc((size_t)(n_items * plan->image_bytes));
        store->labels = esper_mem_alloc((size_t)n_items);
        done = store->images != NULL && store->labels != NULL;
    } else {
        store->tokens = esper_mem_alloc((size_t)n_items * sizeof(*store->tokens));
        done = store->tokens != NULL;
    }
    if (!done)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: the whole set is held in memory and takes %" PRIu64 " bytes",
                          plan->info.name, plan->info.n_bytes);
    return ESPER_OK;
}

/* Carves validation out of the training data. One random order of all samples, which only the seed decides: validation
 * takes its share from the front, training (up to its limit) follows. So a limit leaves validation as it is, and a
 * larger limit only adds samples. */
static esper_status carve(esper_dataset *set, uint32_t n_pool, uint64_t seed)
{
    esper_rng_key key = {.seed = seed, .purpose = ESPER_RNG_SPLIT};
    uint32_t n_valid = set->info.count[ESPER_SPLIT_VALID], n_train = set->info.count[ESPER_SPLIT_TRAIN];
    uint32_t valid_at = 0, train_at = n_valid;
    uint8_t *split_of; /* (n_pool) 0 = in no split, else 1 + the split */

    set->ids = esper_mem_alloc(n_pool * sizeof(*set->ids));
    split_of = esper_mem_alloc(n_pool);
    if (set->ids == NULL || split_of == NULL) {
        esper_mem_free(split_of);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: split of %u samples", set->info.name, n_pool);
    }
    for (uint32_t i = 0; i < n_pool; i++)
        set->ids[i] = i;
    esper_shuffle(set->ids, n_pool, &key);
    for (uint32_t i = 0; i < n_valid + n_train; i++)
        split_of[set->ids[i]] = 1 + (i < n_valid ? ESPER_SPLIT_VALID : ESPER_SPLIT_TRAIN);
    for (uint32_t id = 0; id < n_pool; id++) {
        if (split_of[id] == 1 + ESPER_SPLIT_VALID)
            set->ids[valid_at++] = id;
        else if (split_of[id] == 1 + ESPER_SPLIT_TRAIN)
            set->ids[train_at++] = id;
    }
    esper_mem_free(split_of);
    return ESPER_OK;
}

static esper_status build(const esper_dataset_desc *desc, const dataset_plan *plan, esper_dataset *set)
{
    set->info = plan->info;
    for (int s = 0; s < ESPER_N_STORES; s++)
        ESPER_TRY(store_init(&set->stores[s], plan, plan->source.n_items[s]));
    if (set->stores[ESPER_STORE_TEST].n_items == 0)
        set->test_first = plan->n_pool;
    for (int c = 0; c < set->info.channels;
         c++) /* looked up, not computed per pixel: the same everywhere, bit for bit */
        for (int value = 0; value < LEVELS; value++)
            set->levels[c][value] = ((float)value / 255.0f - set->info.mean[c]) / set->info.std[c];
    ESPER_TRY(carve(set, plan->n_pool, desc->seed));
    return sources[desc->source]->load(desc, &plan->source, set->stores);
}

esper_status esper_dataset_measure(const esper_dataset_desc *desc, esper_dataset_info *info_out)
{
    dataset_plan plan = {0};

    ESPER_TRY(make_plan(desc, &plan));
    *info_out = plan.info;
    return ESPER_OK;
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

    ESPER_TRY(make_plan(desc, &plan));
    set = esper_mem_alloc(sizeof(*set));
    if (set == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: data set", plan.info.name);
    st = build(desc, &plan, set);
    if (st != ESPER_OK) {
        esper_dataset_close(set);
        return st;
    }
    set->hash = hash_stores(set);
    *set_out = set;
    return ESPER_OK;
}

void esper_dataset_close(esper_dataset *set)
{
    if (set == NULL)
        return;
    for (int s = 0; s < ESPER_N_STORES; s++) {
        esper_mem_free(set->stores[s].images);
        esper_mem_free(set->stores[s].labels);
        esper_mem_free(set->stores[s].tokens);
    }
    esper_mem_free(set->ids);
    esper_mem_free(set);
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
        return set->test_first + index;
    return set->ids[split == ESPER_SPLIT_VALID ? index : set->info.count[ESPER_SPLIT_VALID] + index];
}

/* Where the samples of a split lie: a test split cut from the end of the training data lies there. */
static const esper_store *store_of(const esper_dataset *set, esper_split split)
{
    bool in_test = split == ESPER_SPLIT_TEST && set->test_first == 0;

    return &set->stores[in_test ? ESPER_STORE_TEST : ESPER_STORE_TRAIN];
}

const uint8_t *esper_dataset_image(const esper_dataset *set, esper_split split, uint32_t id)
{
    size_t n_pixels = (size_t)set->info.channels * (size_t)set->info.height * (size_t)set->info.width;

    return store_of(set, split)->images + id * n_pixels;
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
