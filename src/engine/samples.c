/* The data set on a backend. Splits that share their items share them there, too:
 *
 *     levels (C, 256) | items of the training store | its labels | items of the test store | its labels */
#include "engine/samples.h"

#include "base/status.h"

enum { ALIGN = 256, LEVELS = 256 };

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static esper_gather describe(const esper_dataset *set)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);

    switch (info->kind) {
    case ESPER_DATASET_IMAGES:
        return (esper_gather){.kind = ESPER_ITEMS_IMAGES, .dim = {info->channels, info->height, info->width}};
    case ESPER_DATASET_VECTORS:
        return (esper_gather){.kind = ESPER_ITEMS_ROWS, .dim = {info->features}};
    default:
        return (esper_gather){.kind = ESPER_ITEMS_TOKENS, .dim = {info->context}};
    }
}

esper_status esper_samples_init(esper_samples *samples, esper_backend *backend, const esper_dataset *set)
{
    esper_gather model = describe(set);
    bool images = model.kind == ESPER_ITEMS_IMAGES;
    size_t bytes = images ? padded((size_t)model.dim[0] * LEVELS * sizeof(float)) : 0, at = 0;
    const void *before = NULL, *items;
    const uint8_t *labels;
    size_t n_bytes, n_labels;
    esper_status status;
    char *memory;

    *samples = (esper_samples){0};
    if (!esper_backend_gathers(backend))
        return ESPER_OK;
    for (int split = 0; split < ESPER_N_SPLITS; split++) {
        items = esper_dataset_items(set, (esper_split)split, &n_bytes, &labels, &n_labels);
        bytes += items != before ? padded(n_bytes) + padded(n_labels) : 0;
        before = items;
    }
    status = esper_backend_alloc(backend, bytes, &samples->memory);
    if (status == ESPER_E_NOMEM)
        return ESPER_OK;
    ESPER_TRY(status);
    samples->backend = backend;
    memory = samples->memory;
    for (int c = 0; images && c < model.dim[0]; c++)
        ESPER_TRY(esper_backend_copy_in(backend, NULL, memory + (size_t)c * LEVELS * sizeof(float),
                                        esper_dataset_levels(set, c), LEVELS * sizeof(float)));
    model.levels = (const float *)(const void *)memory;
    at = images ? padded((size_t)model.dim[0] * LEVELS * sizeof(float)) : 0;
    before = NULL;
    for (int split = 0; split < ESPER_N_SPLITS; split++) {
        items = esper_dataset_items(set, (esper_split)split, &n_bytes, &labels, &n_labels);
        if (items != before) {
            model.items = memory + at;
            ESPER_TRY(esper_backend_copy_in(backend, NULL, memory + at, items, n_bytes));
            at += padded(n_bytes);
            model.labels = labels != NULL ? (const uint8_t *)memory + at : NULL;
            if (labels != NULL)
                ESPER_TRY(esper_backend_copy_in(backend, NULL, memory + at, labels, n_labels));
            at += padded(n_labels);
            before = items;
        }
        samples->of_split[split] = model;
    }
    return esper_backend_sync(backend);
}

void esper_samples_fini(esper_samples *samples)
{
    if (samples->memory != NULL && samples->backend != NULL)
        esper_backend_release(samples->backend, samples->memory);
    *samples = (esper_samples){0};
}
