/* Text that is tokens already: flat files of little-endian uint16, one run of tokens each, without head or padding. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "data/source.h"
#include "data/reader.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are used as they lie in the file");

enum { VOCAB_GPT2 = 50257 };

#define DEFAULT_PLACE "data/tinystories"

/* The files of the two stores; paths[TEST] is NULL when one file serves both. */
typedef struct token_files {
    char *paths[ESPER_N_STORES];
} token_files;

static void files_fini(token_files *files)
{
    for (int s = 0; s < ESPER_N_STORES; s++)
        esper_mem_free(files->paths[s]);
}

/* "dir" is dir/train.bin and dir/valid.bin; "file" is one run whose tail is the test; "file:file" is train and test. */
static esper_status files_init(const esper_dataset_desc *desc, token_files *files)
{
    const char *path = esper_source_path(desc, DEFAULT_PLACE);
    const char *colon = strchr(path, ':');
    bool whole = true;
    struct stat info;

    if (colon != NULL && strchr(colon + 1, ':') != NULL)
        return ESPER_FAIL(ESPER_E_ARG, "tokens: %s: expected a directory, a file, or two files (training and test)",
                          path);
    if (colon != NULL) {
        files->paths[ESPER_STORE_TRAIN] = esper_mem_strdup(path);
        files->paths[ESPER_STORE_TEST] = esper_mem_strdup(colon + 1);
        if (files->paths[ESPER_STORE_TRAIN] != NULL)
            files->paths[ESPER_STORE_TRAIN][colon - path] = '\0';
    } else if (desc->path == NULL || desc->path[0] == '\0' || (stat(path, &info) == 0 && S_ISDIR(info.st_mode))) {
        files->paths[ESPER_STORE_TRAIN] = esper_source_join(path, "train.bin");
        files->paths[ESPER_STORE_TEST] = esper_source_join(path, "valid.bin");
    } else {
        files->paths[ESPER_STORE_TRAIN] = esper_mem_strdup(path);
        whole = false;
    }
    if (files->paths[ESPER_STORE_TRAIN] == NULL || (whole && files->paths[ESPER_STORE_TEST] == NULL))
        return ESPER_FAIL(ESPER_E_NOMEM, "tokens: %s", path);
    return ESPER_OK;
}

static esper_status count_tokens(const esper_dataset_desc *desc, const char *path, uint64_t *n_out)
{
    esper_reader *reader;
    uint64_t n_bytes, n_tokens;
    esper_status st = esper_reader_open(path, ESPER_READER_PLAIN, &reader);

    if (st == ESPER_E_NOTFOUND)
        return esper_source_missing(desc, esper_last_error(), esper_source_path(desc, DEFAULT_PLACE),
                                    "train.bin and valid.bin, flat files of little-endian uint16 tokens");
    ESPER_TRY(st);
    n_bytes = esper_reader_bound(reader);
    esper_reader_close(reader);
    if (n_bytes == 0 || n_bytes % sizeof(uint16_t) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %" PRIu64 " bytes are not a whole number of uint16 tokens: truncated?",
                          path, n_bytes);
    n_tokens = n_bytes / sizeof(uint16_t);
    if (n_tokens <= (uint64_t)desc->context)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: %" PRIu64 " tokens are too few for one sample with a context of %d: take a smaller "
                          "--context",
                          path, n_tokens, desc->context);
    *n_out = n_tokens;
    return ESPER_OK;
}

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    esper_source_plan plan = {.vocab = desc->vocab != 0 ? desc->vocab : VOCAB_GPT2};
    token_files files = {{NULL}};
    esper_status st = files_init(desc, &files);

    for (int s = 0; st == ESPER_OK && s < ESPER_N_STORES; s++)
        if (files.paths[s] != NULL)
            st = count_tokens(desc, files.paths[s], &plan.n_items[s]);
    files_fini(&files);
    if (st == ESPER_OK)
        *plan_out = plan;
    return st;
}

static esper_status load_file(const char *path, int vocab, const esper_store *store)
{
    esper_reader *reader;
    esper_status st;

    ESPER_TRY(esper_reader_open(path, ESPER_READER_PLAIN, &reader));
    st = esper_reader_read_all(reader, store->tokens, (size_t)store->n_items * sizeof(uint16_t), "its tokens");
    if (st == ESPER_OK)
        st = esper_reader_expect_end(reader);
    esper_reader_close(reader);
    for (uint64_t i = 0; st == ESPER_OK && i < store->n_items; i++)
        if (store->tokens[i] >= vocab)
            st = ESPER_FAIL(ESPER_E_FORMAT, "%s: token %d at byte %" PRIu64 ": the vocabulary ends at %d", path,
                            store->tokens[i], i * (uint64_t)sizeof(uint16_t), vocab - 1);
    return st;
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    token_files files = {{NULL}};
    esper_status st = files_init(desc, &files);

    for (int s = 0; st == ESPER_OK && s < ESPER_N_STORES; s++)
        if (files.paths[s] != NULL)
            st = load_file(files.paths[s], plan->vocab, &stores[s]);
    files_fini(&files);
    return st;
}

const esper_source_ops esper_source_tokens = {.measure = measure, .load = load};
