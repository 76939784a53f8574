/* CIFAR-10 as its binary release: five files for training and one for the test, 10,000 records each.
 *
 *     | label | 1024 red | 1024 green | 1024 blue |   rows of 32
 */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/source.h"
#include "data/reader.h"

enum {
    N_CLASSES = 10,
    SIDE = 32,
    CHANNELS = 3,
    IMAGE_BYTES = CHANNELS * SIDE * SIDE,
    RECORD_BYTES = 1 + IMAGE_BYTES,
    RECORDS_PER_FILE = 10000,
    N_TRAIN_FILES = 5,
};

static const char *const file_names[N_TRAIN_FILES + 1] = {
    "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
    "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin",
};

static const char *directory(const esper_dataset_desc *desc)
{
    return esper_source_path(desc, "data/cifar-10-batches-bin");
}

/* Opens a file and checks its size: one that is short would silently mean fewer samples. */
static esper_status open_file(const esper_dataset_desc *desc, const char *name, esper_reader **reader_out)
{
    char *path = esper_source_join(directory(desc), name);
    esper_status st;

    if (path == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s/%s", directory(desc), name);
    st = esper_reader_open(path, ESPER_READER_PLAIN, reader_out);
    esper_mem_free(path);
    if (st == ESPER_E_NOTFOUND)
        return esper_source_missing(
            desc, esper_last_error(), directory(desc),
            "data_batch_1.bin to data_batch_5.bin and test_batch.bin of CIFAR-10's binary version");
    if (st == ESPER_OK && esper_reader_bound(*reader_out) != (uint64_t)RECORDS_PER_FILE * RECORD_BYTES) {
        st = ESPER_FAIL(ESPER_E_FORMAT, "%s: %" PRIu64 " bytes where %d are wanted (%d records of %d): truncated?",
                        esper_reader_name(*reader_out), esper_reader_bound(*reader_out),
                        RECORDS_PER_FILE * RECORD_BYTES, RECORDS_PER_FILE, RECORD_BYTES);
        esper_reader_close(*reader_out);
    }
    return st;
}

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    esper_reader *reader;

    for (int f = 0; f <= N_TRAIN_FILES; f++) {
        ESPER_TRY(open_file(desc, file_names[f], &reader));
        esper_reader_close(reader);
    }
    *plan_out = (esper_source_plan){
        .channels = CHANNELS,
        .height = SIDE,
        .width = SIDE,
        .classes = N_CLASSES,
        .mean = {0.4914f, 0.4822f, 0.4465f},
        .std = {0.2470f, 0.2435f, 0.2616f},
        .n_items = {N_TRAIN_FILES * RECORDS_PER_FILE, RECORDS_PER_FILE},
    };
    return ESPER_OK;
}

static esper_status read_records(esper_reader *reader, uint8_t *images, uint8_t *labels)
{
    uint8_t record[RECORD_BYTES] = {0};

    for (int i = 0; i < RECORDS_PER_FILE; i++) {
        ESPER_TRY(esper_reader_read_all(reader, record, sizeof(record), "a record"));
        labels[i] = record[0];
        memcpy(images + (size_t)i * IMAGE_BYTES, record + 1, IMAGE_BYTES);
    }
    ESPER_TRY(esper_reader_expect_end(reader));
    return esper_source_check_labels(esper_reader_name(reader), labels, RECORDS_PER_FILE, N_CLASSES);
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    (void)plan;
    for (int f = 0; f <= N_TRAIN_FILES; f++) {
        const esper_store *store = &stores[f < N_TRAIN_FILES ? ESPER_STORE_TRAIN : ESPER_STORE_TEST];
        size_t first = f < N_TRAIN_FILES ? (size_t)f * RECORDS_PER_FILE : 0;
        esper_reader *reader;
        esper_status st;

        ESPER_TRY(open_file(desc, file_names[f], &reader));
        st = read_records(reader, store->images + first * IMAGE_BYTES, store->labels + first);
        esper_reader_close(reader);
        ESPER_TRY(st);
    }
    return ESPER_OK;
}

const esper_source_ops esper_source_cifar10 = {.measure = measure, .load = load};
