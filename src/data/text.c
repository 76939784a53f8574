/* Any UTF-8 text, byte by byte: a token is a byte. Files are joined in their order, with nothing between them. */
#include <inttypes.h>
#include <stdbool.h>

#include "base/status.h"
#include "base/utf8.h"
#include "data/source.h"
#include "data/reader.h"
#include "data/text_files.h"

enum { VOCAB_BYTES = 256 };

#define DEFAULT_PLACE "/usr/share/common-licenses"

static esper_status check_utf8(const char *path, const uint8_t *bytes, size_t n)
{
    size_t at = 0;

    while (at < n) {
        size_t length = esper_utf8_length(bytes + at, n - at);

        if (length == 0)
            return ESPER_FAIL(ESPER_E_FORMAT,
                              "%s: not UTF-8 at byte %zu (0x%02x): convert it (iconv -t UTF-8), or leave it out", path,
                              at, bytes[at]);
        at += length;
    }
    return ESPER_OK;
}

/* Reads the file's n bytes into room for n tokens: first into its upper half, then spread from the lower end. The write
 * position 2i never passes the read position n+i, so no other memory is needed. */
static esper_status load_file(const esper_text_file *file, uint16_t *tokens)
{
    size_t n = (size_t)file->n_bytes;
    uint8_t *bytes = (uint8_t *)tokens + n;
    esper_reader *reader;
    esper_status st;

    ESPER_TRY(esper_reader_open(file->path, ESPER_READER_PLAIN, &reader));
    st = esper_reader_read_all(reader, bytes, n, "the text");
    if (st == ESPER_OK)
        st = esper_reader_expect_end(reader);
    esper_reader_close(reader);
    if (st == ESPER_OK)
        st = check_utf8(file->path, bytes, n);
    for (size_t i = 0; st == ESPER_OK && i < n; i++)
        tokens[i] = bytes[i];
    return st;
}

static esper_status list_files(const esper_dataset_desc *desc, esper_text_files *files)
{
    const char *place = esper_source_path(desc, DEFAULT_PLACE);
    esper_status st = esper_text_files_init(files, place);

    const char *found = st == ESPER_E_NOTFOUND ? esper_last_error() : "there is no text in the files";

    if (st == ESPER_E_NOTFOUND || (st == ESPER_OK && files->n_bytes == 0))
        return esper_source_missing(desc, found, place,
                                    "files of UTF-8 text, or directories of them, separated by ':'");
    return st;
}

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    esper_text_files files = {0};
    esper_status st = list_files(desc, &files);

    if (st == ESPER_OK)
        *plan_out = (esper_source_plan){.vocab = VOCAB_BYTES, .n_items = {files.n_bytes, 0}};
    esper_text_files_fini(&files);
    return st;
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    const esper_store *store = &stores[ESPER_STORE_TRAIN];
    esper_text_files files = {0};
    esper_status st = list_files(desc, &files);
    uint64_t at = 0;

    (void)plan;
    if (st == ESPER_OK && files.n_bytes != store->n_items)
        st = ESPER_FAIL(ESPER_E_IO,
                        "text: its files changed while they were being read (%" PRIu64 " bytes, then %" PRIu64 ")",
                        store->n_items, files.n_bytes);
    for (size_t i = 0; st == ESPER_OK && i < files.n; i++) {
        st = load_file(&files.list[i], store->tokens + at);
        at += files.list[i].n_bytes;
    }
    esper_text_files_fini(&files);
    return st;
}

const esper_source_ops esper_source_text = {.measure = measure, .load = load};
