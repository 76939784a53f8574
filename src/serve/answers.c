/* JSON from run stores. */
#include "serve/answers.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "slot/gate.h"
#include "ui/report_data.h"

/* Texts of a row may grow sixfold by escapes. */
enum { ROW_CHARS = 8 * sizeof(esper_store_record) + 8192, GENERATION_BITS = 30 };

/* ------------------------------------------------------------------------------------------------ sources */

void esper_source_close(esper_source *source)
{
    esper_store_reader_close(source->reader);
    source->reader = NULL;
}

/* Rows go only when a run is resumed; a control is a run of its own, which begins later. */
static int64_t generation_of(const esper_source *source)
{
    uint64_t hash = (uint64_t)source->inode * 0x9E3779B97F4A7C15u;

    hash = (hash ^ (uint64_t)source->run.n_resumed) * 0x9E3779B97F4A7C15u;
    if (source->has_control)
        hash = (hash ^ (uint64_t)source->control.id ^ (uint64_t)source->control.n_resumed << 32) * 0x9E3779B97F4A7C15u;
    return (int64_t)(hash >> (64 - GENERATION_BITS));
}

static int64_t inode_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? (int64_t)info.st_ino : -1;
}

esper_status esper_source_look(esper_source *source, const char *store)
{
    esper_source now = *source;

    if (inode_of(store) != source->inode)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s: is another file than before, or gone", store);
    ESPER_TRY(esper_report_find_runs(now.reader, ESPER_REPORT_RUN, &now.run, &now.control, &now.has_control));
    now.mark = (esper_mark){.generation = generation_of(&now), .seq_control = -1};
    ESPER_TRY(esper_store_last_seq(now.reader, ESPER_STORE_N_KINDS, now.run.id, &now.mark.seq));
    if (now.has_control)
        ESPER_TRY(esper_store_last_seq(now.reader, ESPER_STORE_N_KINDS, now.control.id, &now.mark.seq_control));
    *source = now;
    return ESPER_OK;
}

esper_status esper_source_open(const char *store, esper_source *source_out)
{
    esper_source source = {.inode = inode_of(store), .mark = {.seq = -1, .seq_control = -1}};
    esper_status status;

    if (source.inode < 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s: is not there", store);
    ESPER_TRY(esper_store_reader_open(store, &source.reader));
    status = esper_source_look(&source, store);
    if (status != ESPER_OK) {
        esper_source_close(&source);
        return status;
    }
    *source_out = source;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ values */

static void add_value(esper_json *json, const void *row, const esper_store_column *column)
{
    const char *at = (const char *)row + column->offset;
    int64_t whole;
    uint64_t bits;
    double real;

    switch (column->kind) {
    case ESPER_STORE_COLUMN_INT:
        memcpy(&whole, at, sizeof(whole));
        if (whole == ESPER_STORE_NO_INT)
            esper_json_null(json);
        else
            esper_json_int(json, whole);
        break;
    case ESPER_STORE_COLUMN_REAL:
        memcpy(&real, at, sizeof(real));
        if (real == ESPER_STORE_NO_REAL)
            esper_json_null(json);
        else
            esper_json_real(json, real);
        break;
    case ESPER_STORE_COLUMN_TEXT:
        esper_json_text(json, at[0] != '\0' ? at : NULL);
        break;
    case ESPER_STORE_COLUMN_U64:
        memcpy(&bits, at, sizeof(bits));
        esper_json_u64(json, bits);
        break;
    case ESPER_STORE_COLUMN_HASH:
        memcpy(&bits, at, sizeof(bits));
        if (bits == 0)
            esper_json_null(json);
        else
            esper_json_hash(json, bits);
        break;
    }
}

/* A text of any length in quotes. */
static void add_text(esper_page *page, const char *text)
{
    size_t size = 6 * strlen(text) + 16;
    char *room = esper_mem_alloc(size);
    esper_json json;

    if (room == NULL) {
        page->status = page->status != ESPER_OK ? page->status : ESPER_FAIL(ESPER_E_NOMEM, "text of %zu bytes", size);
        return;
    }
    esper_json_init(&json, room, size);
    esper_json_text(&json, text);
    assert(!json.overflow);
    esper_page_print(page, "%s", room);
    esper_mem_free(room);
}

static void add_member(esper_page *page, const char *name, const char *text)
{
    esper_page_print(page, "\"%s\":", name);
    add_text(page, text);
    esper_page_print(page, ",");
}

/* ------------------------------------------------------------------------------------------------ runs */

void esper_answer_run(const esper_store_run *run, bool running, esper_page *page)
{
    char text[ROW_CHARS];
    esper_json json;

    esper_json_init(&json, text, sizeof(text));
    esper_json_object_begin(&json);
    for (esper_store_part part = ESPER_STORE_PART_RUN_OWN; part <= ESPER_STORE_PART_RUN_END; part++) {
        int n;
        const esper_store_column *columns = esper_store_part_columns(part, &n);

        for (int i = 0; i < n; i++) {
            esper_json_key(&json, columns[i].name);
            add_value(&json, run, &columns[i]);
        }
    }
    esper_json_key(&json, "running");
    esper_json_bool(&json, running);
    esper_json_object_end(&json);
    assert(!json.overflow);
    esper_page_print(page, "%s", text);
}

static bool is_over(const esper_store_run *run)
{
    return run->ended != ESPER_STORE_NO_REAL;
}

/* The run comes before its control, and the process of both is one. */
static void add_runs(const esper_source *source, bool running, esper_page *page)
{
    esper_page_print(page, "\"run\":");
    esper_answer_run(&source->run, running && !is_over(&source->run), page);
    esper_page_print(page, ",\"control\":");
    if (source->has_control)
        esper_answer_run(&source->control, running && !is_over(&source->control), page);
    else
        esper_page_print(page, "null");
}

/* ------------------------------------------------------------------------------------------------ rows */

/* Tables that a page shows. Rewards of a learner are hundreds for each round: `esper report` sums them up. */
static const esper_store_kind shown[] = {
    ESPER_STORE_EPOCH,   ESPER_STORE_GERMINATION, ESPER_STORE_STAGE,  ESPER_STORE_SEED_EPOCH, ESPER_STORE_GATE,
    ESPER_STORE_CHECK,   ESPER_STORE_DECISION,    ESPER_STORE_HEALTH, ESPER_STORE_ROLLBACK,   ESPER_STORE_ATTRIBUTION,
    ESPER_STORE_EPISODE, ESPER_STORE_UPDATE,      ESPER_STORE_CLASS};

enum { N_SHOWN = sizeof(shown) / sizeof(shown[0]) };

static void add_columns(esper_store_kind kind, esper_page *page)
{
    int n;
    const esper_store_column *columns = esper_store_columns(kind, &n);

    esper_page_print(page, "[\"seq\",\"time\",\"epoch\",\"step\"");
    for (int i = 0; i < n; i++)
        esper_page_print(page, ",\"%s\"", columns[i].name);
    esper_page_print(page, "]");
}

static void add_row(const esper_store_record *record, esper_page *page)
{
    char text[ROW_CHARS];
    esper_json json;
    int n;
    const esper_store_column *columns = esper_store_columns(record->kind, &n);
    bool is_wait = record->kind == ESPER_STORE_DECISION && strcmp(record->decision.op, "wait") == 0;

    esper_json_init(&json, text, sizeof(text));
    esper_json_array_begin(&json);
    esper_json_int(&json, record->seq);
    esper_json_real(&json, record->time);
    esper_json_int(&json, record->epoch);
    esper_json_int(&json, record->step);
    for (int i = 0; i < n; i++) {
        if (is_wait && strcmp(columns[i].name, "line") == 0)
            esper_json_null(&json); /* says nothing that the row does not, a thousand times */
        else
            add_value(&json, record, &columns[i]);
    }
    esper_json_array_end(&json);
    assert(!json.overflow);
    esper_page_print(page, "%s", text);
}

/* "[[...],...]" of the rows behind `from` and up to `to`. */
static esper_status add_rows(esper_store_reader *reader, esper_store_kind kind, int64_t run, int64_t from, int64_t to,
                             int *n_out, esper_page *page)
{
    esper_store_filter filter = {.run = run, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .since = from + 1};
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_status status;
    bool found = true;
    int n = 0;

    ESPER_TRY(esper_store_read(reader, kind, &filter, &cursor));
    esper_page_print(page, "[");
    while ((status = esper_store_next(cursor, &record, &found)) == ESPER_OK && found && record.seq <= to) {
        esper_page_print(page, "%s", n++ > 0 ? "," : "");
        add_row(&record, page);
    }
    esper_page_print(page, "]");
    esper_store_cursor_close(cursor);
    *n_out = n;
    return status;
}

static esper_status add_table(esper_store_reader *reader, esper_store_kind kind, int64_t run, int64_t to,
                              esper_page *page)
{
    int n;

    esper_page_print(page, "{\"columns\":");
    add_columns(kind, page);
    esper_page_print(page, ",\"rows\":");
    ESPER_TRY(add_rows(reader, kind, run, -1, to, &n, page));
    esper_page_print(page, "}");
    return ESPER_OK;
}

static esper_status add_drops(esper_store_reader *reader, int64_t run, esper_page *page)
{
    uint64_t n[ESPER_STORE_N_KINDS], all = 0;

    ESPER_TRY(esper_store_read_drops(reader, run, n));
    for (int i = 0; i < ESPER_STORE_N_KINDS; i++)
        all += n[i];
    esper_page_print(page, "\"n_dropped\":%llu,", (unsigned long long)all);
    return ESPER_OK;
}

esper_status esper_answer_whole(esper_source *source, const char *id, const char *name, bool running, esper_page *page)
{
    char mark[ESPER_MARK_CHARS], *config;

    esper_page_print(page, "{");
    add_member(page, "id", id);
    add_member(page, "name", name);
    add_member(page, "mark", esper_mark_write(&source->mark, mark));
    add_runs(source, running, page);
    esper_page_print(page, ",");
    ESPER_TRY(esper_store_read_config(source->reader, source->run.id, &config));
    add_member(page, "config", config);
    esper_mem_free(config);
    ESPER_TRY(add_drops(source->reader, source->run.id, page));
    esper_page_print(page, "\"checks\":{");
    for (int kind = 0; kind < ESPER_CHECK_N_KINDS; kind++)
        esper_page_print(page, "%s\"%s\":\"%s\"", kind > 0 ? "," : "", esper_gate_check_name(kind),
                         esper_gate_check_about(kind));
    esper_page_print(page, "},\"tables\":{");
    for (int i = 0; i < N_SHOWN; i++) {
        esper_page_print(page, "%s\"%s\":", i > 0 ? "," : "", esper_store_table(shown[i]));
        ESPER_TRY(add_table(source->reader, shown[i], source->run.id, source->mark.seq, page));
    }
    esper_page_print(page, "},\"control_epochs\":");
    if (source->has_control)
        ESPER_TRY(add_table(source->reader, ESPER_STORE_EPOCH, source->control.id, source->mark.seq_control, page));
    else
        esper_page_print(page, "null");
    esper_page_print(page, "}");
    return page->status;
}

esper_status esper_answer_news(esper_source *source, const esper_mark *from, bool with_runs, bool running,
                               esper_page *page)
{
    int n;

    esper_page_print(page, "{");
    if (with_runs) {
        add_runs(source, running, page);
        esper_page_print(page, ",");
    }
    ESPER_TRY(add_drops(source->reader, source->run.id, page));
    esper_page_print(page, "\"rows\":{");
    for (int i = 0; i < N_SHOWN; i++) {
        esper_page_print(page, "%s\"%s\":", i > 0 ? "," : "", esper_store_table(shown[i]));
        ESPER_TRY(add_rows(source->reader, shown[i], source->run.id, from->seq, source->mark.seq, &n, page));
    }
    esper_page_print(page, "},\"control_rows\":");
    if (source->has_control)
        ESPER_TRY(add_rows(source->reader, ESPER_STORE_EPOCH, source->control.id, from->seq_control,
                           source->mark.seq_control, &n, page));
    else
        esper_page_print(page, "[]");
    esper_page_print(page, "}");
    return page->status;
}
