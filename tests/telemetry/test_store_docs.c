/* docs/store.md against the store: every table, view and column of the schema is in the page and no others, and every query
 * there runs and finds something in a store with a run's worth of everything. */
#include "base/file.h"
#include "telemetry/helpers.h"
#include "telemetry/store_sql.h"

static char *page; /* NULL: the documentation is not here, as in the kit */

static int read_page(void **state)
{
    size_t bytes;

    (void)state;
    if (esper_file_read(ESPER_SOURCE_DIR "/docs/store.md", 1 << 20, &page, &bytes) != ESPER_OK)
        page = NULL;
    return 0;
}

static int free_page(void **state)
{
    (void)state;
    esper_mem_free(page);
    return 0;
}

static void skip_without_page(void)
{
    if (page == NULL) {
        print_message("skipped: the documentation is not here\n");
        skip();
    }
}

/* The part of the page below the heading "### `name`", as text of its own; NULL = no such heading. */
static char *section_of(const char *name)
{
    char heading[64];
    const char *begin, *end;

    snprintf(heading, sizeof(heading), "\n### `%s`\n", name);
    begin = strstr(page, heading);
    if (begin == NULL)
        return NULL;
    begin += strlen(heading);
    end = strstr(begin, "\n##");
    return strndup(begin, end != NULL ? (size_t)(end - begin) : strlen(begin));
}

static bool tells_of(const char *text, const char *column)
{
    char line[64];

    snprintf(line, sizeof(line), "\n| `%s` |", column);
    return text != NULL && strstr(text, line) != NULL;
}

static int count_lines(const char *text, const char *beginning)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, beginning)) != NULL; at++)
        n++;
    return n;
}

/* Runs a query on a fresh store and hands each row's first two texts to a function. */
typedef void (*on_row)(const char *first, const char *second);

static void for_each(const char *sql, on_row take)
{
    sqlite3_stmt *statement;
    sqlite3 *db;

    assert_int_equal(sqlite3_open("docs.sqlite", &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    while (sqlite3_step(statement) == SQLITE_ROW)
        take((const char *)sqlite3_column_text(statement, 0), (const char *)sqlite3_column_text(statement, 1));
    sqlite3_finalize(statement);
    sqlite3_close(db);
}

static int n_columns, n_views;

static void check_column(const char *table, const char *column)
{
    static const char rules[] = "\n## Rules for all tables\n";
    char *section = section_of(table);
    bool is_common = strcmp(table, "runs") != 0 && strcmp(table, "drops") != 0 && strcmp(table, "seeds") != 0;

    if (section == NULL)
        fail_msg("docs/store.md has no heading for %s", table);
    if (!tells_of(section, column) && !(is_common && tells_of(strstr(page, rules), column)))
        fail_msg("docs/store.md does not tell of %s.%s", table, column);
    free(section);
    n_columns++;
}

static void check_view(const char *view, const char *unused)
{
    (void)unused;
    if (strstr(page, view) == NULL)
        fail_msg("docs/store.md does not tell of the view %s", view);
    n_views++;
}

static void every_column_is_told(void **state)
{
    (void)state;
    skip_without_page();
    remove_store("docs.sqlite");
    esper_store_close(begin_store("docs.sqlite", NULL, "x"));
    for_each("SELECT s.name, c.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS c "
             "WHERE s.type = 'table' OR s.name = 'seeds'",
             check_column);
    for_each("SELECT name, name FROM sqlite_schema WHERE type = 'view'", check_view);
    assert_true(n_columns > 150);
    assert_true(n_views > 5);
}

/* Every column with its own meaning beside it. */
static void check_meanings(const char *table, const char *section, const esper_store_column *columns, int n)
{
    for (int i = 0; i < n; i++) {
        char begin[64], end[256];
        const char *line;

        snprintf(begin, sizeof(begin), "\n| `%s` | ", columns[i].name);
        snprintf(end, sizeof(end), " | %s |\n", columns[i].meaning);
        line = strstr(section, begin);
        if (line == NULL || strstr(line, end) == NULL || strstr(line, end) > strchr(line + 1, '\n'))
            fail_msg("docs/store.md does not explain %s.%s as '%s': run scripts/docs store", table, columns[i].name,
                     columns[i].meaning);
    }
}

/* The page is generated, so a column too many means that it is out of date. */
static void nothing_else_is_told(void **state)
{
    (void)state;
    skip_without_page();
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        char *section = section_of(esper_store_table(kind));
        int n;
        const esper_store_column *columns = esper_store_columns(kind, &n);

        assert_non_null(section);
        if (count_lines(section, "\n| `") != n)
            fail_msg("docs/store.md tells of %d columns of %s, there are %d", count_lines(section, "\n| `"),
                     esper_store_table(kind), n);
        check_meanings(esper_store_table(kind), section, columns, n);
        free(section);
    }
    for (esper_store_part part = ESPER_STORE_PART_RUN_OWN; part <= ESPER_STORE_PART_SEED; part++) {
        const char *table = part == ESPER_STORE_PART_SEED ? "seeds" : "runs";
        char *section = section_of(table);
        int n;
        const esper_store_column *columns = esper_store_part_columns(part, &n);

        assert_non_null(section);
        check_meanings(table, section, columns, n);
        free(section);
    }
    assert_int_equal(count_lines(page, "\n### `"), ESPER_STORE_N_KINDS + 3); /* runs, drops, seeds */
}

/* ------------------------------------------------------------------------------------------------ queries */

static void push_gate(esper_store *store, int64_t seed, int64_t passed)
{
    esper_store_record gate = filled_record(ESPER_STORE_GATE, 3, 30, 1);
    esper_store_record check = filled_record(ESPER_STORE_CHECK, 3, 30, 1);

    gate.gate.seed = seed;
    gate.gate.passed = check.check.passed = passed;
    esper_store_push_gate(store, &gate, &check, 1);
}

static void push_seed_rows(esper_store *store, int64_t seed, const char *end)
{
    esper_store_record row = filled_record(ESPER_STORE_GERMINATION, 2, 20, seed);

    row.germination.seed = seed;
    esper_store_push(store, &row);
    row = filled_record(ESPER_STORE_ATTRIBUTION, 3, 30, seed);
    row.attribution.seed = seed;
    ESPER_STORE_SET(row.attribution.measure, "contribution");
    esper_store_push(store, &row);
    row = filled_record(ESPER_STORE_STAGE, 4, 40, seed);
    row.stage.seed = seed;
    ESPER_STORE_SET(row.stage.to_stage, end);
    esper_store_push(store, &row);
    row = filled_record(ESPER_STORE_DECISION, 4, 40, seed);
    row.decision.seed = seed;
    esper_store_push(store, &row);
}

/* What a learner leaves: two rounds of two episodes, with a seed planted in each round. */
static void push_learning(esper_store *store)
{
    for (int round = 1; round <= 2; round++) {
        esper_store_record row = filled_record(ESPER_STORE_UPDATE, 1, 10, round);

        row.update.round = round;
        esper_store_push(store, &row);
        row = filled_record(ESPER_STORE_EPISODE, 1, 10, round);
        row.episode.round = round;
        esper_store_push(store, &row);
        row.episode.env++;
        esper_store_push(store, &row);
        row = filled_record(ESPER_STORE_DECISION, 1, 10, round);
        ESPER_STORE_SET(row.decision.op, "germinate");
        esper_store_push(store, &row);
    }
}

/* A run with two seeds, gates, rewards, an incident with its rollback, and a control; and a loss. */
static void fill_runs(const char *path)
{
    const esper_store_options small = {.queue_records = 64};
    esper_store *store = begin_store(path, &small, "runs/grown"), *control;
    esper_store_run run = esper_store_run_of("runs/control");
    esper_store_record row = filled_record(ESPER_STORE_EPOCH, 1, 10, 1);
    int64_t id;

    esper_store_push(store, &row);
    row.epoch_done.loss_valid = (double)__builtin_nanf("");
    esper_store_push(store, &row);
    push_seed_rows(store, 1, "fossilized");
    push_seed_rows(store, 2, "pruned");
    push_gate(store, 2, 0);
    push_gate(store, 1, 1);
    row = filled_record(ESPER_STORE_REWARD, 4, 40, 1);
    esper_store_push(store, &row);
    push_learning(store);
    row = filled_record(ESPER_STORE_ATTRIBUTION, 4, 40, 1);
    ESPER_STORE_SET(row.attribution.measure, "synergy");
    esper_store_push(store, &row);
    row = filled_record(ESPER_STORE_HEALTH, 5, 45, 1);
    row.health.n_tensors = 1;
    esper_store_push(store, &row);
    row = filled_record(ESPER_STORE_ROLLBACK, 5, 40, 1);
    row.rollback.from_step = 45;
    row.rollback.to_step = 40;
    esper_store_push(store, &row);
    run.acc_test = 90.0;
    check_good(esper_store_end(store, &run));
    esper_store_close(store);
    control = open_store(path, NULL);
    run.parent_run = 1;
    ESPER_STORE_SET(run.relation, "static-control");
    check_good(esper_store_begin(control, &run, NULL, &id));
    esper_store_close(control);
}

static void every_query_answers(void **state)
{
    const char *at = page;
    int n_queries = 0;

    (void)state;
    skip_without_page();
    remove_store("queries.sqlite");
    fill_runs("queries.sqlite");
    while ((at = strstr(at, "\n```sql\n")) != NULL) {
        const char *end;
        char *sql;

        at += strlen("\n```sql\n");
        end = strstr(at, "\n```");
        assert_non_null(end);
        sql = strndup(at, (size_t)(end - at));
        if (count_rows("queries.sqlite", sql, NULL) == 0)
            fail_msg("this query of docs/store.md finds nothing:\n%s", sql);
        free(sql);
        n_queries++;
    }
    print_message("%d queries\n", n_queries);
    assert_true(n_queries >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_column_is_told),
        cmocka_unit_test(nothing_else_is_told),
        cmocka_unit_test(every_query_answers),
    };

    return cmocka_run_group_tests(tests, read_page, free_page);
}
