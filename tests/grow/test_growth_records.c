/* ctest: cost=12 sealed=also */
/* The store's copy of the decision log: entry for entry the same, whoever decided, and still so when the run is resumed;
 * and what was shown to who decided. */
#include <unistd.h>

#include "base/file.h"
#include "telemetry/store.h"
#include "grow/growing.h"

/* Faults of three kinds: a step that is skipped, and two ways back, of which the second goes further. */
#define DRILLED                                                                                   \
    "policy = scripted\ndecisions = plan.txt\ncheckpoint_every = 1\nrun_dir = run\n"                 \
    "inject = 6:host:grad:inf,13:host:param:nan,14:host:param:nan,27:seed:param:nan\nmax_rollbacks = 9\n"

static void write_plan(void)
{
    write_file("plan.txt", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n");
}

/* The lines of the log but its head; their ends are cut off in `text`. */
static int split_log(char *text, char *lines[], int most)
{
    char *rest = text, *line;
    int n = -1;

    while ((line = strsep(&rest, "\n")) != NULL && n < most)
        if (line[0] != '\0' && ++n > 0)
            lines[n - 1] = line;
    return n;
}

static void check_row(const esper_store_record *record, const char *line, int number)
{
    char source[64];

    if (record->decision.number != number)
        fail_msg("row %d has the number %" PRId64 " of the log", number, record->decision.number);
    snprintf(source, sizeof(source), "\"source\":\"%s\"", record->decision.source);
    if (strstr(line, source) == NULL || strstr(line, record->decision.op) == NULL)
        fail_msg("entry %d: the store says %s: %s, the log %s", number, record->decision.source, record->decision.op,
                 line);
    if (strcmp(record->decision.line, line) != 0)
        fail_msg("entry %d: the store has %s, the log %s", number, record->decision.line, line);
    assert_true(record->decision.reason[0] != '\0' || strcmp(record->decision.op, "wait") == 0 ||
                strcmp(record->decision.source, "policy") == 0);
    assert_true(record->decision.accepted == 1 || record->decision.accepted == 0);
}

/* By source: of all rows, and of those that stand. */
typedef struct counts {
    int all[ESPER_LOG_N_SOURCES], standing[ESPER_LOG_N_SOURCES];
} counts;

static void count_rows(esper_store_reader *reader, bool standing, int *n, char *lines[], int n_lines)
{
    esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .standing = standing};
    esper_store_cursor *cursor;
    esper_store_record record;
    bool more;
    int row = 0;

    check_good(esper_store_read(reader, ESPER_STORE_DECISION, &filter, &cursor));
    for (check_good(esper_store_next(cursor, &record, &more)); more; row++) {
        if (!standing && row < n_lines)
            check_row(&record, lines[row], row);
        n[esper_log_find(esper_log_source_name, record.decision.source)]++;
        check_good(esper_store_next(cursor, &record, &more));
    }
    if (!standing)
        assert_int_equal(row, n_lines);
    esper_store_cursor_close(cursor);
}

static counts check_copy(void)
{
    esper_store_reader *reader;
    counts found = {0};
    char *text, *lines[256];
    size_t bytes;
    int n;

    check_good(esper_file_read("run/decisions.jsonl", 1 << 20, &text, &bytes));
    n = split_log(text, lines, 256);
    check_good(esper_store_reader_open("run/store.sqlite", &reader));
    count_rows(reader, false, found.all, lines, n);
    count_rows(reader, true, found.standing, lines, n);
    esper_store_reader_close(reader);
    esper_mem_free(text);
    return found;
}

/* Runs for n steps (< 0: to the end), a new run or the one that is there. */
static void run_for(int n_steps, bool resume)
{
    esper_config config = config_of("synth", GROWING "epochs = 7\n", DRILLED), nothing;
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {
        .task = task_named("synth"), .config = &config, .grows = true, .observer = &observer, .stop = &stopping.stop};
    esper_run_result result;

    esper_config_init(&nothing);
    if (resume) {
        desc.task = NULL;
        desc.config = &nothing;
        desc.resume = "run";
    }
    check_good(esper_run_train(&desc, &result));
}

static void the_store_has_every_entry(void **state)
{
    counts found;

    (void)state;
    write_plan();
    run_for(-1, false);
    found = check_copy();
    assert_int_equal(found.all[ESPER_LOG_INJECTION], 4);
    assert_int_equal(found.all[ESPER_LOG_GOVERNOR], 4);
    assert_int_equal(found.standing[ESPER_LOG_INJECTION], 4); /* they are no part of what was gone back on */
    assert_int_equal(found.standing[ESPER_LOG_GOVERNOR], 4);
    assert_int_equal(found.standing[ESPER_LOG_POLICY], 7);
    assert_int_equal(system("rm -rf run"), 0);
}

/* Stopped at many places, right behind a rollback among them, and gone on with: log and store are cut alike. */
static void the_copy_survives_a_resume(void **state)
{
    (void)state;
    write_plan();
    for (int n_steps = 10; n_steps <= 32; n_steps += 2) {
        run_for(n_steps, false);
        check_copy();
        run_for(-1, true);
        check_copy();
        assert_int_equal(system("rm -rf run"), 0);
    }
}

/* What the policy was shown of empty slots can be looked up: a row for each of them, in every epoch that is calm
 * behind another calm one. */
static void evidence_of_empty_slots_is_kept(void **state)
{
    esper_config config = config_of("synth", GROWING "epochs = 8\n",
                                    "policy = heuristic\nattribution = 100\nplateau = 0\nlr = 1e-6\nrun_dir = shown\n");
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
    esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_run_result result;
    int n_first = 0, n_second = 0;
    int64_t begins = INT64_MAX;
    bool more;

    (void)state;
    check_good(esper_run_train(&desc, &result));
    check_good(esper_store_reader_open("shown/store.sqlite", &reader));
    check_good(esper_store_read(reader, ESPER_STORE_ATTRIBUTION, &filter, &cursor));
    for (check_good(esper_store_next(cursor, &record, &more)); more;) {
        assert_string_equal(record.attribution.measure, "evidence"); /* there was no seed to measure anything else of */
        assert_true(isfinite(record.attribution.value) && record.attribution.value >= 0.0);
        begins = record.epoch < begins ? record.epoch : begins;
        n_first += strcmp(record.attribution.slot, "r0c0") == 0;
        n_second += strcmp(record.attribution.slot, "r0c1") == 0;
        check_good(esper_store_next(cursor, &record, &more));
    }
    assert_true(n_first > 0);
    assert_int_equal(n_first, n_second);
    assert_true(begins <= 3); /* it counts as settled after epoch 4, and the first seed may come right then */
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
}

/* Seeds of an epoch and their parameters, as the rows of seeds have them. */
static void sum_seeds(esper_store_reader *reader, int64_t epoch, int64_t *n_out, int64_t *params_out)
{
    esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    esper_store_cursor *cursor;
    esper_store_record record;
    bool more;

    *n_out = *params_out = 0;
    check_good(esper_store_read(reader, ESPER_STORE_SEED_EPOCH, &filter, &cursor));
    for (check_good(esper_store_next(cursor, &record, &more)); more;) {
        *n_out += record.epoch == epoch;
        *params_out += record.epoch == epoch ? record.seed_epoch.params : 0;
        check_good(esper_store_next(cursor, &record, &more));
    }
    esper_store_cursor_close(cursor);
}

/* Parameters of an epoch, its count of seeds and the rows of its seeds are of one moment, behind the decision: a seed counts
 * from its germination on, and no longer once it is pruned. */
static void parameters_go_with_seeds(void **state)
{
    esper_config config =
        config_of("synth", GROWING "epochs = 7\n", "policy = scripted\ndecisions = sizes.txt\nrun_dir = sizes\n");
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
    esper_store_filter filter = {.run = 1, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_run_result result;
    int64_t seen[7] = {0};
    bool more;

    (void)state;
    write_file("sizes.txt", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n3 r0c1 germinate blueprint=norm\n"
                            "6 r0c0 prune\n");
    check_good(esper_run_train(&desc, &result));
    check_good(esper_store_reader_open("sizes/store.sqlite", &reader));
    check_good(esper_store_read(reader, ESPER_STORE_EPOCH, &filter, &cursor));
    for (check_good(esper_store_next(cursor, &record, &more)); more;) {
        int64_t n, params;

        sum_seeds(reader, record.epoch, &n, &params);
        if (record.epoch_done.n_seeds != n || record.epoch_done.params != result.params_host + params)
            fail_msg("epoch %" PRId64 ": %" PRId64 " seeds, %" PRId64 " parameters; rows have %" PRId64
                     " seeds, %" PRId64 " with the host",
                     record.epoch, record.epoch_done.n_seeds, record.epoch_done.params, n, result.params_host + params);
        assert_in_range(record.epoch, 1, 7);
        seen[record.epoch - 1] = record.epoch_done.params;
        check_good(esper_store_next(cursor, &record, &more));
    }
    assert_true(seen[0] > result.params_host && seen[1] == seen[0] && seen[2] > seen[1] && seen[5] < seen[0]);
    assert_int_equal(seen[4], seen[2]);
    assert_int_equal(seen[6], seen[5]);
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
}

/* A seed that was planted is none of the host's, neither its parameters nor its FLOPs. */
static void the_host_is_without_what_was_planted(void **state)
{
    esper_store_run runs[2];

    (void)state;
    for (int planted = 0; planted < 2; planted++) {
        const char *dir = planted ? "planted" : "bare";
        esper_config config = config_of("synth", GROWING "epochs = 1\npolicy = none\n",
                                        planted ? "run_dir = planted\nplant = r0c0:conv_light\n" : "run_dir = bare\n");
        esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
        esper_store_reader *reader;
        esper_store_cursor *cursor;
        esper_run_result result;
        char path[64];
        bool found;

        check_good(esper_run_train(&desc, &result));
        snprintf(path, sizeof(path), "%s/store.sqlite", dir);
        check_good(esper_store_reader_open(path, &reader));
        check_good(esper_store_read_runs(reader, &cursor));
        check_good(esper_store_next_run(cursor, &runs[planted], &found));
        assert_true(found);
        esper_store_cursor_close(cursor);
        esper_store_reader_close(reader);
    }
    assert_int_equal(runs[1].params_host, runs[0].params_host);
    assert_int_equal(runs[1].flops_host, runs[0].flops_host);
    assert_int_equal(runs[0].flops, runs[0].flops_host);
    assert_true(runs[1].params > runs[0].params && runs[1].flops > runs[0].flops);
}

/* What a checkpoint is given of the growth. */
static const esper_state_part *part_of(const garden *g)
{
    for (int i = 0; i < g->network->n_parts; i++)
        if (strcmp(g->network->parts[i].name, "growth") == 0)
            return &g->network->parts[i];
    fail_msg("a growth is no part of the network");
    return NULL;
}

/* A checkpoint of an earlier version does not tell how many rows there were. Nor do those that follow: a count of what was told since
 * would have all the others cut off. */
static void rows_that_were_not_counted_stay_so(void **state)
{
    esper_page fresh = {0}, before = {0}, after = {0};
    esper_growth_records records = {.decisions = NULL};
    char *line, *end;
    esper_bus bus;
    garden g;

    (void)state;
    garden_open(&g, "", NULL, NULL);
    esper_bus_init(&bus, 0);
    records.bus = &bus;
    check_good(esper_growth_attach(g.growth, &records));
    check_good(part_of(&g)->write(part_of(&g)->context, &fresh));
    check_good(part_of(&g)->read(part_of(&g)->context, fresh.text));
    assert_non_null(esper_growth_account_of(g.growth).rows); /* none is a count, too */
    check_good(try_epoch(&g));
    check_good(part_of(&g)->write(part_of(&g)->context, &before));
    assert_non_null(strstr(before.text, "rows.epochs 1\n"));
    assert_int_equal(esper_growth_account_of(g.growth).rows[ESPER_FACT_EPOCH], 1);
    while ((line = strstr(before.text, "rows.")) != NULL) {
        end = strchr(line, '\n') + 1;
        memmove(line, end, strlen(end) + 1);
    }
    check_good(part_of(&g)->read(part_of(&g)->context, before.text));
    assert_null(esper_growth_account_of(g.growth).rows);
    check_good(try_epoch(&g));
    check_good(part_of(&g)->write(part_of(&g)->context, &after));
    check_good(part_of(&g)->read(part_of(&g)->context, after.text));
    assert_null(esper_growth_account_of(g.growth).rows);
    esper_page_fini(&fresh);
    esper_page_fini(&before);
    esper_page_fini(&after);
    esper_bus_fini(&bus);
    garden_close(&g);
}

/* A run that is over is not trained again because it was in doubt once. Asked for more, it goes on from where it was not. */
static void what_is_over_stays_so(void **state)
{
    esper_config nothing;
    esper_run_desc desc = {.config = &nothing, .resume = "run", .grows = true};
    esper_run_result result;

    (void)state;
    esper_config_init(&nothing);
    write_plan();
    run_for(10, false);
    assert_int_equal(rename("run/last.safetensors", "doubtless"), 0);
    assert_int_equal(system("rm -rf run"), 0);
    run_for(-1, false);
    assert_int_equal(rename("doubtless", "run/sound.safetensors"), 0);
    check_fails(esper_run_train(&desc, &result), ESPER_E_STATE, "spent all that was asked for");
    set_keys(&nothing, "epochs = 8\n");
    check_good(esper_run_train(&desc, &result));
    assert_int_equal(result.cursor.epoch, 8);
    assert_true(access("run/sound.safetensors", F_OK) != 0);
    assert_int_equal(system("rm -rf run"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_has_every_entry),
        cmocka_unit_test(the_copy_survives_a_resume),
        cmocka_unit_test(evidence_of_empty_slots_is_kept),
        cmocka_unit_test(parameters_go_with_seeds),
        cmocka_unit_test(the_host_is_without_what_was_planted),
        cmocka_unit_test(rows_that_were_not_counted_stay_so),
        cmocka_unit_test(what_is_over_stays_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
