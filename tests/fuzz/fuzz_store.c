/* Any bytes as a run store: refused with words, or every row of every table read to its end. */
#include "fuzz/fuzz.h"
#include "telemetry/store.h"

enum { MOST_ROWS = 1000 }; /* a query over a damaged tree may go round */

static void read_rows(esper_store_cursor *cursor, int kind)
{
    static esper_store_record record;
    static esper_store_run run;
    static esper_store_seed seed;
    bool found = true;

    for (int i = 0; found && i < MOST_ROWS; i++) {
        esper_status status = kind == 0   ? esper_store_next_run(cursor, &run, &found)
                              : kind == 1 ? esper_store_next_seed(cursor, &seed, &found)
                                          : esper_store_next(cursor, &record, &found);

        fuzz_must_say(status);
        if (status != ESPER_OK)
            break;
    }
    esper_store_cursor_close(cursor);
}

static void read_all(esper_store_reader *reader)
{
    const esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    uint64_t n_drops[ESPER_STORE_N_KINDS];
    esper_store_cursor *cursor;
    esper_store_run run;
    char *config = NULL;
    bool found;

    if (esper_store_read_runs(reader, &cursor) == ESPER_OK)
        read_rows(cursor, 0);
    if (esper_store_read_seeds(reader, ESPER_STORE_ANY, &cursor) == ESPER_OK)
        read_rows(cursor, 1);
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        if (esper_store_read(reader, (esper_store_kind)kind, &filter, &cursor) == ESPER_OK)
            read_rows(cursor, 2);
    (void)esper_store_find_run(reader, ESPER_STORE_ANY, NULL, &run, &found);
    if (esper_store_read_config(reader, 1, &config) == ESPER_OK)
        esper_mem_free(config);
    (void)esper_store_read_drops(reader, 1, n_drops);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_store_reader *reader;
    esper_status status;
    char path[96];

    fuzz_write(fuzz_path("store.sqlite", path), bytes, n_bytes);
    status = esper_store_reader_open(path, &reader);
    fuzz_must_say(status);
    if (status == ESPER_OK) {
        read_all(reader);
        esper_store_reader_close(reader);
    }
    fuzz_remove(path);
    fuzz_must_be_free();
    return 0;
}
