/* Fashion-MNIST, and MNIST, which has the same files: four of IDX, plain or gzip, one channel, ten classes. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/idx.h"
#include "data/source.h"

enum { N_CLASSES = 10 };

/* The files of one store. */
static const struct {
    const char *images, *labels;
} stems[ESPER_N_STORES] = {
    [ESPER_STORE_TRAIN] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
    [ESPER_STORE_TEST] = {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
};

static const char *directory(const esper_dataset_desc *desc)
{
    return esper_source_path(desc,
                             desc->source == ESPER_SOURCE_MNIST ? "data/mnist" : "/usr/share/datasets/fashion-mnist");
}

static esper_status open_one(const char *dir, const char *stem, const char *suffix, esper_idx **idx_out)
{
    char *bare = esper_source_join(dir, stem), *path = NULL;
    esper_status st;

    if (bare != NULL)
        path = esper_mem_grow(bare, strlen(bare) + strlen(suffix) + 1);
    if (path == NULL) {
        esper_mem_free(bare);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s/%s", dir, stem);
    }
    strcat(path, suffix);
    st = esper_idx_open(path, idx_out);
    esper_mem_free(path);
    return st;
}

/* The plain file, or else the packed one. */
static esper_status open_idx(const esper_dataset_desc *desc, const char *stem, int rank, esper_idx **idx_out)
{
    esper_status st = open_one(directory(desc), stem, "", idx_out);

    if (st == ESPER_E_NOTFOUND)
        st = open_one(directory(desc), stem, ".gz", idx_out);
    if (st == ESPER_E_NOTFOUND)
        return esper_source_missing(desc, esper_last_error(), directory(desc),
                                    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
                                    "t10k-labels-idx1-ubyte (each plain or .gz)");
    if (st == ESPER_OK && esper_idx_shape_get(*idx_out)->rank != rank) {
        st = ESPER_FAIL(ESPER_E_FORMAT, "%s/%s: holds rank %d where rank %d is wanted: are images and labels mixed up?",
                        directory(desc), stem, esper_idx_shape_get(*idx_out)->rank, rank);
        esper_idx_close(*idx_out);
    }
    return st;
}

static esper_status read_shape(const esper_dataset_desc *desc, const char *stem, int rank, esper_idx_shape *shape_out)
{
    esper_idx *idx;

    ESPER_TRY(open_idx(desc, stem, rank, &idx));
    *shape_out = *esper_idx_shape_get(idx);
    esper_idx_close(idx);
    return ESPER_OK;
}

static esper_status measure_store(const esper_dataset_desc *desc, int store, esper_idx_shape *images_out)
{
    esper_idx_shape labels = {0};

    ESPER_TRY(read_shape(desc, stems[store].images, 3, images_out));
    ESPER_TRY(read_shape(desc, stems[store].labels, 1, &labels));
    if (labels.dims[0] != images_out->dims[0])
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %u images in %s, but %u labels in %s", directory(desc),
                          images_out->dims[0], stems[store].images, labels.dims[0], stems[store].labels);
    return ESPER_OK;
}

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    esper_idx_shape train = {0}, test = {0};

    ESPER_TRY(measure_store(desc, ESPER_STORE_TRAIN, &train));
    ESPER_TRY(measure_store(desc, ESPER_STORE_TEST, &test));
    if (train.dims[1] != test.dims[1] || train.dims[2] != test.dims[2])
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: training images are %u x %u, test images %u x %u", directory(desc),
                          train.dims[1], train.dims[2], test.dims[1], test.dims[2]);
    *plan_out = (esper_source_plan){
        .channels = 1,
        .height = (int)train.dims[1],
        .width = (int)train.dims[2],
        .classes = N_CLASSES,
        .mean = {desc->source == ESPER_SOURCE_MNIST ? 0.1307f : 0.2860f},
        .std = {desc->source == ESPER_SOURCE_MNIST ? 0.3081f : 0.3530f},
        .n_items = {train.dims[0], test.dims[0]},
    };
    return ESPER_OK;
}

/* Reads one file whose shape must still be what was measured. */
static esper_status load_file(const esper_dataset_desc *desc, const char *stem, int rank, uint64_t n_bytes,
                              uint8_t *dest)
{
    esper_idx *idx;
    esper_status st;

    ESPER_TRY(open_idx(desc, stem, rank, &idx));
    if (esper_idx_shape_get(idx)->n_bytes != n_bytes)
        st = ESPER_FAIL(ESPER_E_FORMAT, "%s/%s: changed while it was being read", directory(desc), stem);
    else
        st = esper_idx_read(idx, dest);
    esper_idx_close(idx);
    return st;
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    uint64_t n_pixels = (uint64_t)plan->height * (uint64_t)plan->width;

    for (int s = 0; s < ESPER_N_STORES; s++) {
        uint64_t n = stores[s].n_items;
        esper_status st;

        ESPER_TRY(load_file(desc, stems[s].images, 3, n * n_pixels, stores[s].images));
        ESPER_TRY(load_file(desc, stems[s].labels, 1, n, stores[s].labels));
        st = esper_source_check_labels(stems[s].labels, stores[s].labels, n, N_CLASSES);
        if (st != ESPER_OK)
            return esper_fail_within(st, "%s/", directory(desc));
    }
    return ESPER_OK;
}

const esper_source_ops esper_source_fashion = {.measure = measure, .load = load};
