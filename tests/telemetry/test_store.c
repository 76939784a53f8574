/* ctest: labels=tsan */
/* The run store: what is pushed comes back, in every table; lineage, rollbacks and cuts; a queue that is full; readers and
 * writers at the same time. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/file.h"
#include "policy/actions.h"
#include "slot/stage.h"
#include "telemetry/helpers.h"

static void check_equal_columns(const void *a, const void *b, const esper_store_column *columns, int n,
                                const char *table)
{
    for (int i = 0; i < n; i++) {
        const char *x = (const char *)a + columns[i].offset, *y = (const char *)b + columns[i].offset;

        if (memcmp(x, y, columns[i].bytes) == 0)
            continue;
        if (columns[i].kind == ESPER_STORE_COLUMN_REAL && isnan(*(const double *)x) && isnan(*(const double *)y))
            continue;
        if (columns[i].kind == ESPER_STORE_COLUMN_TEXT)
            fail_msg("%s.%s: read '%s', pushed '%s'", table, columns[i].name, x, y);
        else if (columns[i].kind == ESPER_STORE_COLUMN_REAL)
            fail_msg("%s.%s: read %.17g, pushed %.17g", table, columns[i].name, *(const double *)x, *(const double *)y);
        else
            fail_msg("%s.%s: read %lld, pushed %lld", table, columns[i].name, *(const long long *)x,
                     *(const long long *)y);
    }
}

static void check_equal_records(const esper_store_record *read, const esper_store_record *pushed)
{
    int n;
    const esper_store_column *columns = esper_store_columns(pushed->kind, &n);

    assert_int_equal(read->kind, pushed->kind);
    assert_int_equal(read->epoch, pushed->epoch);
    assert_int_equal(read->step, pushed->step);
    check_equal_columns(read, pushed, columns, n, esper_store_table(pushed->kind));
}

/* Reads all rows of a table into memory of the caller; gives their number. */
static int read_all(const char *path, esper_store_kind kind, esper_store_filter filter, esper_store_record *rows,
                    int most)
{
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store_record row;
    bool found = true;
    int n = 0;

    check_good(esper_store_reader_open(path, &reader));
    check_good(esper_store_read(reader, kind, &filter, &cursor));
    while (check_good(esper_store_next(cursor, &row, &found)), found) {
        if (n < most)
            rows[n] = row;
        n++;
    }
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
    return n;
}

/* ------------------------------------------------------------------------------------------------ round trips */

enum { N_EACH = 3 };

static void every_table_comes_back(void **state)
{
    uint64_t live = live_blocks();
    esper_store *store = begin_store("trip.sqlite", NULL, "runs/trip");
    esper_store_counts counts;
    int64_t seq = 0;

    (void)state;
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        for (int i = 0; i < N_EACH; i++) {
            esper_store_record record = filled_record(kind, i + 1, 10 * i, kind * 100 + i);

            assert_int_equal(esper_store_push(store, &record), seq++);
        }
    check_good(esper_store_flush(store));
    counts = esper_store_counts_get(store);
    assert_true(counts.is_on);
    assert_int_equal(counts.n_written, ESPER_STORE_N_KINDS * N_EACH);
    assert_int_equal(counts.n_waiting, 0);
    assert_int_equal(counts.n_dropped_all, 0);
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        esper_store_record rows[N_EACH];

        assert_int_equal(read_all("trip.sqlite", kind, all_of(1), rows, N_EACH), N_EACH);
        for (int i = 0; i < N_EACH; i++) {
            esper_store_record pushed = filled_record(kind, i + 1, 10 * i, kind * 100 + i);

            check_equal_records(&rows[i], &pushed);
            assert_int_equal(rows[i].run, 1);
            assert_int_equal(rows[i].seq, kind * N_EACH + i);
            assert_true(rows[i].time > 1.6e9);
        }
    }
    check_good(esper_store_status(store));
    esper_store_close(store);
    assert_int_equal(live_blocks(), live);
}

/* ------------------------------------------------------------------------------------------------ learning */

static double column_of(const esper_store_record *record, const char *name)
{
    int n;
    const esper_store_column *columns = esper_store_columns(record->kind, &n);

    for (int i = 0; i < n; i++)
        if (strcmp(columns[i].name, name) == 0 && columns[i].kind == ESPER_STORE_COLUMN_REAL)
            return *(const double *)(const void *)((const char *)record + columns[i].offset);
    fail_msg("%s has no number %s", esper_store_table(record->kind), name);
    return 0.0;
}

/* A column for each part, under its name; SQL finds that they add up. */
static void rewards_have_their_parts(void **state)
{
    esper_store *store = begin_store("reward.sqlite", NULL, "x");
    esper_fact fact = esper_fact_of(ESPER_FACT_REWARD, 3, 30);
    esper_store_record record;
    double parts[ESPER_N_REWARD_PARTS], total = 0.0;
    char sql[1024] = "SELECT total = (0.0";

    (void)state;
    for (int p = 0; p < ESPER_N_REWARD_PARTS; p++)
        total += parts[p] = 0.25 * (p + 1);
    esper_fact_set_reward(&fact, total, parts);
    record = esper_store_record_from(&fact);
    for (int p = 0; p < ESPER_N_REWARD_PARTS; p++) {
        if (column_of(&record, esper_reward_part_name(p)) != parts[p])
            fail_msg("%s: %g, not %g", esper_reward_part_name(p), column_of(&record, esper_reward_part_name(p)),
                     parts[p]);
        snprintf(sql + strlen(sql), sizeof(sql) - strlen(sql), " + %s", esper_reward_part_name(p));
    }
    snprintf(sql + strlen(sql), sizeof(sql) - strlen(sql), ") FROM rewards_standing");
    esper_store_push(store, &record);
    esper_store_close(store);
    assert_int_equal(ask("reward.sqlite", sql), 1);
    assert_int_equal(ask("reward.sqlite", "SELECT count(*) FROM rewards WHERE round IS NULL AND env IS NULL"), 1);
}

static void heads_have_their_entropy(void **state)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_UPDATE, 1, 1);
    esper_store_record record;
    double entropy[ESPER_N_HEADS];

    (void)state;
    for (int head = 0; head < ESPER_N_HEADS; head++)
        entropy[head] = head == ESPER_HEAD_TEMPO ? (double)__builtin_nanf("") : 0.5 + head;
    esper_fact_set_entropy(&fact, entropy);
    record = esper_store_record_from(&fact);
    for (int head = 0; head < ESPER_N_HEADS; head++) {
        double wanted = head == ESPER_HEAD_TEMPO ? ESPER_STORE_NO_REAL : entropy[head];
        char name[64];

        snprintf(name, sizeof(name), "entropy_%s", esper_head_name(head));
        if (column_of(&record, name) != wanted)
            fail_msg("%s: %g, not %g", name, column_of(&record, name), wanted);
    }
}

/* A learner that is resumed after its first round loses what it did later, and no more. */
static void a_learner_is_cut_back(void **state)
{
    static const esper_store_kind kinds[] = {ESPER_STORE_REWARD, ESPER_STORE_EPISODE, ESPER_STORE_UPDATE};
    esper_store *store = begin_store("learner.sqlite", NULL, "runs/learner");
    int64_t id;

    (void)state;
    for (int round = 1; round <= 3; round++)
        for (int k = 0; k < 3; k++) {
            esper_store_record record = filled_record(kinds[k], round, 50 * round, round);

            esper_store_push(store, &record);
        }
    esper_store_close(store);
    store = open_store("learner.sqlite", NULL);
    check_good(esper_store_resume(store, "runs/learner", 1, 50, ESPER_STORE_NO_INT, &id));
    esper_store_close(store);
    for (int k = 0; k < 3; k++) {
        esper_store_record row;

        assert_int_equal(read_all("learner.sqlite", kinds[k], all_of(1), &row, 1), 1);
        assert_int_equal(row.epoch, 1);
    }
}

/* What was not set is NULL for SQL and the same again for us. */
static void unset_is_null(void **state)
{
    esper_store *store = begin_store("unset.sqlite", NULL, "x");

    (void)state;
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        esper_store_record record = esper_store_record_of(kind, 1, 1);

        esper_store_push(store, &record);
    }
    esper_store_close(store);
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        esper_store_record row, record = esper_store_record_of(kind, 1, 1);
        int n;
        const esper_store_column *columns = esper_store_columns(kind, &n);

        assert_int_equal(read_all("unset.sqlite", kind, all_of(1), &row, 1), 1);
        check_equal_records(&row, &record);
        for (int i = 0; i < n; i++) {
            char sql[256];

            snprintf(sql, sizeof(sql), "SELECT 1 FROM %s WHERE %s IS NULL AND nonfinite IS NULL",
                     esper_store_table(kind), columns[i].name);
            if (columns[i].kind != ESPER_STORE_COLUMN_U64 && count_rows("unset.sqlite", sql, NULL) != 1)
                fail_msg("no row for: %s", sql);
        }
    }
}

static void numbers_that_are_not_finite(void **state)
{
    esper_store *store = begin_store("nan.sqlite", NULL, "x");
    esper_store_record row, record = filled_record(ESPER_STORE_EPOCH, 1, 1, 5);
    esper_store_run run = esper_store_run_of("x"), read;
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    bool found;

    (void)state;
    record.epoch_done.loss_train = (double)NAN;
    record.epoch_done.loss_valid = (double)INFINITY;
    record.epoch_done.grad_norm = -(double)INFINITY;
    record.epoch_done.lr = ESPER_STORE_NO_REAL;
    esper_store_push(store, &record);
    run.loss_test = (double)NAN;
    check_good(esper_store_end(store, &run));
    esper_store_close(store);

    assert_int_equal(ask("nan.sqlite", "SELECT loss_train IS NULL AND loss_valid IS NULL AND grad_norm IS NULL AND "
                                       "lr IS NULL AND acc_train IS NOT NULL FROM epochs"),
                     1);
    assert_int_equal(ask("nan.sqlite", "SELECT nonfinite = 'loss_train=nan loss_valid=inf grad_norm=-inf' FROM epochs"),
                     1);
    assert_int_equal(ask("nan.sqlite", "SELECT nonfinite = 'loss_test=nan' AND loss_test IS NULL FROM runs"), 1);
    assert_int_equal(read_all("nan.sqlite", ESPER_STORE_EPOCH, all_of(1), &row, 1), 1);
    check_equal_records(&row, &record);
    check_good(esper_store_reader_open("nan.sqlite", &reader));
    check_good(esper_store_read_runs(reader, &cursor));
    check_good(esper_store_next_run(cursor, &read, &found));
    assert_true(found && isnan(read.loss_test));
    assert_true(read.acc_test == ESPER_STORE_NO_REAL);
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
}

static void texts_are_cut_and_mended(void **state)
{
    char small[8];

    (void)state;
    ESPER_STORE_SET(small, "seven77");
    assert_string_equal(small, "seven77");
    ESPER_STORE_SET(small, "eight888");
    assert_string_equal(small, "eight88");
    ESPER_STORE_SET(small, "sixsi\xc3\xbc"); /* the last sign just fits */
    assert_string_equal(small, "sixsi\xc3\xbc");
    ESPER_STORE_SET(small, "sevens\xc3\xbc"); /* and here it does not */
    assert_string_equal(small, "sevens");
    ESPER_STORE_SET(small, "a\xff\xc3z");
    assert_string_equal(small, "a??z");
    ESPER_STORE_SET(small, NULL);
    assert_string_equal(small, "");
}

/* ------------------------------------------------------------------------------------------------ runs */

static void runs_follow_each_other(void **state)
{
    static const char config[] = "lr = 0.1\nepochs = 3\n";
    esper_store_run first = esper_store_run_of("runs/a"), second = esper_store_run_of("runs/b"), run;
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    esper_store *store;
    int n;
    const esper_store_column *columns;
    char *text;
    int64_t id;
    bool found;

    (void)state;
    columns = esper_store_part_columns(ESPER_STORE_PART_RUN_BEGIN, &n);
    fill_columns(&first, columns, n, 3);
    columns = esper_store_part_columns(ESPER_STORE_PART_RUN_END, &n);
    fill_columns(&first, columns, n, 4);
    store = open_store("runs.sqlite", NULL);
    check_fails(esper_store_end(store, &first), ESPER_E_STATE, "no run has begun");
    check_good(esper_store_begin(store, &first, config, &id));
    assert_int_equal(id, 1);
    check_fails(esper_store_begin(store, &first, config, &id), ESPER_E_STATE, "begun already");
    check_good(esper_store_end(store, &first));
    esper_store_close(store);
    store = open_store("runs.sqlite", NULL);
    second.parent_run = 1;
    ESPER_STORE_SET(second.relation, "static-control");
    check_good(esper_store_begin(store, &second, NULL, &id));
    assert_int_equal(id, 2);
    esper_store_close(store); /* never ended */

    check_good(esper_store_reader_open("runs.sqlite", &reader));
    check_good(esper_store_read_runs(reader, &cursor));
    check_good(esper_store_next_run(cursor, &run, &found));
    assert_true(found);
    for (esper_store_part part = ESPER_STORE_PART_RUN_BEGIN; part <= ESPER_STORE_PART_RUN_END; part++) {
        columns = esper_store_part_columns(part, &n);
        check_equal_columns(&run, &first, columns, n, "runs");
    }
    assert_int_equal(run.id, 1);
    assert_int_equal(run.n_resumed, 0);
    assert_true(run.began > 1.6e9 && run.ended >= run.began);
    check_good(esper_store_next_run(cursor, &run, &found));
    assert_true(found);
    assert_int_equal(run.id, 2);
    assert_int_equal(run.parent_run, 1);
    assert_string_equal(run.relation, "static-control");
    assert_true(run.ended == ESPER_STORE_NO_REAL);
    assert_string_equal(run.status, "");
    check_good(esper_store_next_run(cursor, &run, &found));
    assert_false(found);
    esper_store_cursor_close(cursor);
    check_good(esper_store_read_config(reader, 1, &text));
    assert_string_equal(text, config);
    esper_mem_free(text);
    check_good(esper_store_read_config(reader, 2, &text));
    assert_string_equal(text, "");
    esper_mem_free(text);
    check_fails(esper_store_read_config(reader, 3, &text), ESPER_E_NOTFOUND, "no run 3");
    esper_store_reader_close(reader);
}

/* ------------------------------------------------------------------------------------------------ lives of seeds */

static void germinate(esper_store *store, int64_t seed, const char *slot, int64_t epoch)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_GERMINATION, epoch, epoch * 10);

    record.germination.seed = seed;
    ESPER_STORE_SET(record.germination.slot, slot);
    ESPER_STORE_SET(record.germination.blueprint, "conv_small");
    ESPER_STORE_SET(record.germination.reason, "host stalls");
    esper_store_push(store, &record);
}

static void move(esper_store *store, int64_t seed, esper_stage from, esper_stage to, int64_t epoch, const char *reason)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_STAGE, epoch, epoch * 10);

    record.stage.seed = seed;
    ESPER_STORE_SET(record.stage.from_stage, esper_stage_name((int)from));
    ESPER_STORE_SET(record.stage.to_stage, esper_stage_name((int)to));
    ESPER_STORE_SET(record.stage.reason, reason);
    ESPER_STORE_SET(record.stage.initiator, "policy");
    esper_store_push(store, &record);
}

static void contribute(esper_store *store, int64_t seed, int64_t epoch, double value)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_ATTRIBUTION, epoch, epoch * 10);

    ESPER_STORE_SET(record.attribution.measure, "contribution");
    record.attribution.seed = seed;
    record.attribution.value = value;
    record.attribution.lower = value - 0.5;
    esper_store_push(store, &record);
}

static void roll_back(esper_store *store, int64_t from_epoch, int64_t to_epoch)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_ROLLBACK, to_epoch + 1, to_epoch * 10);

    record.rollback.from_step = from_epoch * 10;
    record.rollback.to_step = to_epoch * 10;
    esper_store_push(store, &record);
}

/* Seed 1 is kept, seed 2 removed, seed 3 still trains. */
static void write_lives(esper_store *store)
{
    germinate(store, 1, "r0c0", 2);
    move(store, 1, ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, 3, "");
    germinate(store, 2, "r1c0", 3);
    move(store, 2, ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, 4, "");
    move(store, 1, ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING, 5, "");
    contribute(store, 1, 6, 0.25);
    move(store, 2, ESPER_STAGE_TRAINING, ESPER_STAGE_PRUNED, 6, "no gain");
    move(store, 2, ESPER_STAGE_PRUNED, ESPER_STAGE_EMBARGOED, 7, "");
    contribute(store, 1, 7, 1.75);
    move(store, 1, ESPER_STAGE_BLENDING, ESPER_STAGE_HOLDING, 7, "");
    move(store, 1, ESPER_STAGE_HOLDING, ESPER_STAGE_FOSSILIZED, 8, "lower bound reached");
    germinate(store, 3, "r1c0", 8);
}

static int read_seeds(const char *path, int64_t run, esper_store_seed seeds[4])
{
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    bool found = true;
    int n = 0;

    check_good(esper_store_reader_open(path, &reader));
    check_good(esper_store_read_seeds(reader, run, &cursor));
    while (n < 4 && (check_good(esper_store_next_seed(cursor, &seeds[n], &found)), found))
        n++;
    esper_store_cursor_close(cursor);
    esper_store_reader_close(reader);
    return n;
}

static void lineage_of_seeds(void **state)
{
    esper_store *store = begin_store("lives.sqlite", NULL, "x");
    esper_store_seed seeds[4];

    (void)state;
    write_lives(store);
    esper_store_close(store);
    assert_int_equal(read_seeds("lives.sqlite", 1, seeds), 3);
    assert_int_equal(read_seeds("lives.sqlite", ESPER_STORE_ANY, seeds), 3);
    assert_int_equal(read_seeds("lives.sqlite", 2, seeds), 0);
    read_seeds("lives.sqlite", 1, seeds);
    assert_string_equal(seeds[0].stage, "fossilized");
    assert_int_equal(seeds[0].germinated_epoch, 2);
    assert_int_equal(seeds[0].blended_epoch, 5);
    assert_int_equal(seeds[0].fossilized_epoch, 8);
    assert_int_equal(seeds[0].pruned_epoch, ESPER_STORE_NO_INT);
    assert_string_equal(seeds[0].reason, "lower bound reached");
    assert_true(seeds[0].contribution == 1.75 && seeds[0].contribution_lower == 1.25);
    assert_string_equal(seeds[1].stage, "pruned");
    assert_string_equal(seeds[1].slot, "r1c0");
    assert_int_equal(seeds[1].pruned_epoch, 6);
    assert_int_equal(seeds[1].fossilized_epoch, ESPER_STORE_NO_INT);
    assert_string_equal(seeds[1].reason, "no gain");
    assert_true(seeds[1].contribution == ESPER_STORE_NO_REAL);
    assert_string_equal(seeds[2].stage, "germinated");
    assert_string_equal(seeds[2].reason, "host stalls");
    assert_string_equal(seeds[2].blueprint, "conv_small");
}

/* The view knows the stages by name. */
static void stages_are_called_so(void **state)
{
    (void)state;
    assert_string_equal(esper_stage_name(ESPER_STAGE_GERMINATED), "germinated");
    assert_string_equal(esper_stage_name(ESPER_STAGE_BLENDING), "blending");
    assert_string_equal(esper_stage_name(ESPER_STAGE_FOSSILIZED), "fossilized");
    assert_string_equal(esper_stage_name(ESPER_STAGE_PRUNED), "pruned");
}

/* Back from epoch 8 to 7: the fossil holds again, seed 3 never came. Back to 2: nothing but the first germination. Then
 * another life under the number 2. */
static void rollbacks_undo(void **state)
{
    esper_store *store = begin_store("undo.sqlite", NULL, "x");
    esper_store_filter standing = all_of(1);
    esper_store_record row;
    esper_store_seed seeds[4];

    (void)state;
    standing.standing = true;
    write_lives(store);
    roll_back(store, 8, 7);
    check_good(esper_store_flush(store));
    assert_int_equal(read_seeds("undo.sqlite", 1, seeds), 2);
    assert_string_equal(seeds[0].stage, "holding");
    assert_int_equal(seeds[0].fossilized_epoch, ESPER_STORE_NO_INT);
    assert_string_equal(seeds[1].stage, "pruned");
    roll_back(store, 7, 2);
    check_good(esper_store_flush(store));
    assert_int_equal(read_seeds("undo.sqlite", 1, seeds), 1);
    assert_string_equal(seeds[0].stage, "germinated");
    assert_true(seeds[0].contribution == ESPER_STORE_NO_REAL);
    germinate(store, 2, "r0c1", 3);
    move(store, 2, ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, 4, "");
    esper_store_close(store);
    assert_int_equal(read_seeds("undo.sqlite", 1, seeds), 2);
    assert_string_equal(seeds[1].slot, "r0c1");
    assert_string_equal(seeds[1].stage, "training");
    assert_int_equal(read_all("undo.sqlite", ESPER_STORE_GERMINATION, all_of(1), &row, 1), 4); /* history stays */
    assert_int_equal(read_all("undo.sqlite", ESPER_STORE_GERMINATION, standing, &row, 1), 2);
    assert_int_equal(read_all("undo.sqlite", ESPER_STORE_ROLLBACK, standing, &row, 1), 2); /* facts cannot be undone */
}

/* Who follows a run asks for what is behind the last row it has. */
static void rows_since_a_number(void **state)
{
    esper_store *store = begin_store("since.sqlite", NULL, "x");
    esper_store_record rows[4], record;
    esper_store_filter filter = all_of(1);
    esper_store_reader *reader;
    int64_t seq;

    (void)state;
    for (int i = 0; i < 4; i++) {
        record = filled_record(i % 2 == 0 ? ESPER_STORE_EPOCH : ESPER_STORE_STAGE, i, i, i);
        assert_int_equal(esper_store_push(store, &record), i);
    }
    esper_store_close(store);
    check_good(esper_store_reader_glance("since.sqlite", &reader));
    check_good(esper_store_last_seq(reader, ESPER_STORE_N_KINDS, 1, &seq));
    assert_int_equal(seq, 3);
    check_good(esper_store_last_seq(reader, ESPER_STORE_EPOCH, 1, &seq));
    assert_int_equal(seq, 2);
    check_good(esper_store_last_seq(reader, ESPER_STORE_GATE, 1, &seq));
    assert_int_equal(seq, -1);
    check_good(esper_store_last_seq(reader, ESPER_STORE_N_KINDS, 2, &seq));
    assert_int_equal(seq, -1);
    esper_store_reader_close(reader);
    filter.since = 1;
    assert_int_equal(read_all("since.sqlite", ESPER_STORE_EPOCH, filter, rows, 4), 1);
    assert_int_equal(rows[0].seq, 2);
    filter.since = 2;
    assert_int_equal(read_all("since.sqlite", ESPER_STORE_EPOCH, filter, rows, 4), 1);
    filter.since = 4;
    assert_int_equal(read_all("since.sqlite", ESPER_STORE_STAGE, filter, rows, 4), 0);
}

static void gates_carry_their_evidence(void **state)
{
    esper_store *store = begin_store("gates.sqlite", NULL, "x");
    esper_store_record checks[3], rows[3], gate = filled_record(ESPER_STORE_GATE, 4, 40, 1);
    esper_store_filter filter = all_of(1);
    esper_store_reader *reader;
    esper_store_cursor *cursor;
    int64_t seq;

    (void)state;
    gate.gate.seed = 7;
    for (int i = 0; i < 3; i++)
        checks[i] = filled_record(ESPER_STORE_CHECK, 0, 0, 10 + i);
    esper_store_push_gate(store, &gate, checks, 3);
    gate.gate.seed = 8;
    seq = esper_store_push_gate(store, &gate, checks, 2);
    assert_int_equal(seq, 4);
    esper_store_close(store);
    filter.seed = 8;
    assert_int_equal(read_all("gates.sqlite", ESPER_STORE_GATE, filter, rows, 3), 1);
    check_equal_records(&rows[0], &gate);
    filter = all_of(1);
    filter.gate = rows[0].seq;
    assert_int_equal(read_all("gates.sqlite", ESPER_STORE_CHECK, filter, rows, 3), 2);
    for (int i = 0; i < 2; i++) {
        checks[i].check.gate = seq;
        checks[i].epoch = 4;
        checks[i].step = 40;
        check_equal_records(&rows[i], &checks[i]);
    }
    check_good(esper_store_reader_open("gates.sqlite", &reader));
    filter.seed = 1;
    check_fails(esper_store_read(reader, ESPER_STORE_CHECK, &filter, &cursor), ESPER_E_ARG, "gate_checks|seed");
    filter = all_of(1);
    filter.gate = 1; /* a text in this table */
    check_fails(esper_store_read(reader, ESPER_STORE_GATE, &filter, &cursor), ESPER_E_ARG, "gates|gate");
    esper_store_reader_close(reader);
}

/* ------------------------------------------------------------------------------------------------ cut and resume */

static void push_epochs(esper_store *store, int first, int last)
{
    for (int epoch = first; epoch <= last; epoch++)
        for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
            esper_store_record record = filled_record(kind, epoch, epoch * 10, epoch);

            record.rollback.to_step = kind == ESPER_STORE_ROLLBACK ? 1000000 : record.rollback.to_step;
            esper_store_push(store, &record);
        }
}

static void resume_cuts_back(void **state)
{
    static const char *const sql = "SELECT max(epoch) * 1000 + count(*) FROM epochs WHERE run = 2";
    esper_store_run run = esper_store_run_of("runs/cut");
    esper_store *store = begin_store("cut.sqlite", NULL, "runs/cut"); /* an older one of the name, to be left alone */
    int64_t id;

    (void)state;
    push_epochs(store, 1, 6);
    esper_store_close(store);
    store = begin_store("cut.sqlite", NULL, "runs/cut");
    push_epochs(store, 1, 6);
    ESPER_STORE_SET(run.status, "ESPER_OK");
    check_good(esper_store_end(store, &run));
    esper_store_close(store);
    assert_int_equal(ask("cut.sqlite", sql), 6006);

    store = open_store("cut.sqlite", NULL);
    check_fails(esper_store_resume(store, "runs/other", 4, 40, ESPER_STORE_NO_INT, &id), ESPER_E_NOTFOUND,
                "runs/other");
    check_good(esper_store_resume(store, "runs/cut", 4, 40, ESPER_STORE_NO_INT, &id));
    assert_int_equal(id, 2);
    assert_int_equal(ask("cut.sqlite", sql), 4004);
    for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
        char one[128];

        snprintf(one, sizeof(one), "SELECT max(epoch) FROM %s WHERE run = 2", esper_store_table(kind));
        assert_int_equal(ask("cut.sqlite", one), 4);
        snprintf(one, sizeof(one), "SELECT max(epoch) FROM %s WHERE run = 1", esper_store_table(kind));
        assert_int_equal(ask("cut.sqlite", one), 6);
    }
    assert_int_equal(ask("cut.sqlite", "SELECT n_resumed = 1 AND ended IS NULL AND status IS NULL FROM runs "
                                       "WHERE id = 2"),
                     1);
    push_epochs(store, 5, 5);
    check_good(esper_store_flush(store));
    /* seq goes on without a gap */
    assert_int_equal(ask("cut.sqlite", "SELECT min(seq) FROM epochs WHERE run = 2 AND epoch = 5"),
                     4 * ESPER_STORE_N_KINDS);
    push_epochs(store, 6, 7);
    esper_store_close(store);
    assert_int_equal(ask("cut.sqlite", sql), 7007);
}

/* A checkpoint in the middle of epoch 3: what happened in it before stays. */
static void cut_within_an_epoch(void **state)
{
    esper_store *store = begin_store("within.sqlite", NULL, "x");
    int64_t id;

    (void)state;
    for (int step = 20; step <= 30; step += 2) {
        esper_store_record record = filled_record(ESPER_STORE_HEALTH, 3, step, step);

        esper_store_push(store, &record);
    }
    esper_store_close(store);
    store = open_store("within.sqlite", NULL);
    check_good(esper_store_resume(store, "x", 2, 25, ESPER_STORE_NO_INT, &id));
    assert_int_equal(ask("within.sqlite", "SELECT max(step) FROM health"), 24);
    esper_store_close(store);
    store = open_store("within.sqlite", NULL);
    check_good(
        esper_store_resume(store, "x", 2, 20, ESPER_STORE_NO_INT, &id)); /* at the end of epoch 2: all of 3 goes */
    assert_int_equal(ask("within.sqlite", "SELECT count(*) FROM health"), 0);
    esper_store_close(store);
}

/* ------------------------------------------------------------------------------------------------ a full queue */

/* Somebody else holds the file, so the writer gets nowhere. */
static sqlite3 *lock_file(const char *path)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static void unlock_file(sqlite3 *db)
{
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void drops_are_counted(void **state)
{
    const esper_store_options tiny = {.queue_records = 16, .batch_ms = 10, .patience_ms = 300};
    esper_store *store = begin_store("drops.sqlite", &tiny, "x");
    sqlite3 *holder = lock_file("drops.sqlite");
    esper_store_record health = filled_record(ESPER_STORE_HEALTH, 1, 1, 1);
    esper_store_record rollback = filled_record(ESPER_STORE_ROLLBACK, 1, 1, 1);
    esper_store_record gate = filled_record(ESPER_STORE_GATE, 1, 1, 1), checks[2];
    esper_store_run run = esper_store_run_of("x");
    uint64_t drops[ESPER_STORE_N_KINDS];
    esper_store_reader *reader;
    esper_store_counts counts;

    (void)state;
    for (int i = 0; i < 20; i++) /* 12 places for these */
        assert_int_equal(esper_store_push(store, &health), i);
    for (int i = 0; i < 3; i++) /* the rest is kept for these */
        esper_store_push(store, &rollback);
    checks[0] = checks[1] = filled_record(ESPER_STORE_CHECK, 1, 1, 1);
    assert_int_equal(esper_store_push_gate(store, &gate, checks, 2), 23); /* one place left, three wanted */
    counts = esper_store_counts_get(store);
    assert_true(counts.is_on);
    assert_int_equal(counts.n_waiting, 15);
    assert_int_equal(counts.n_dropped[ESPER_STORE_HEALTH], 8);
    assert_int_equal(counts.n_dropped[ESPER_STORE_ROLLBACK], 0);
    assert_int_equal(counts.n_dropped[ESPER_STORE_GATE], 1);
    assert_int_equal(counts.n_dropped[ESPER_STORE_CHECK], 2);
    assert_int_equal(counts.n_dropped_all, 11);
    check_fails(esper_store_flush(store), ESPER_E_IO, "drops.sqlite|another program|locked");
    assert_true(esper_store_counts_get(store).is_on); /* a lock goes away; a store that is off stays so */
    unlock_file(holder);
    check_good(esper_store_flush(store));
    assert_int_equal(esper_store_push(store, &health), 26);
    check_good(esper_store_end(store, &run));
    check_good(esper_store_status(store));
    esper_store_close(store);

    assert_int_equal(ask("drops.sqlite", "SELECT count(*) FROM health"), 13);
    assert_int_equal(ask("drops.sqlite", "SELECT count(*) FROM rollbacks"), 3);
    assert_int_equal(ask("drops.sqlite", "SELECT max(seq) FROM health"), 26); /* the gap shows the loss */
    assert_int_equal(ask("drops.sqlite", "SELECT n FROM drops WHERE run = 1 AND records = 'health'"), 8);
    check_good(esper_store_reader_open("drops.sqlite", &reader));
    check_good(esper_store_read_drops(reader, 1, drops));
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        assert_int_equal(drops[kind], counts.n_dropped[kind]);
    esper_store_reader_close(reader);
}

/* The locker never lets go: close gives up in time, and says so beforehand to whoever asks. */
static void close_does_not_wait_for_ever(void **state)
{
    const esper_store_options tiny = {.queue_records = 16, .batch_ms = 10, .patience_ms = 200};
    esper_store *store = begin_store("held.sqlite", &tiny, "x");
    sqlite3 *holder = lock_file("held.sqlite");
    esper_store_record health = filled_record(ESPER_STORE_HEALTH, 1, 1, 1);
    uint64_t live = live_blocks();

    (void)state;
    esper_store_push(store, &health);
    esper_store_close(store);
    assert_true(live_blocks() < live);
    unlock_file(holder);
    assert_int_equal(ask("held.sqlite", "SELECT count(*) FROM health"), 0);
}

static void pushing_before_a_run_is_a_drop(void **state)
{
    esper_store *store = open_store("early.sqlite", NULL);
    esper_store_record health = filled_record(ESPER_STORE_HEALTH, 1, 1, 1);

    (void)state;
    assert_int_equal(esper_store_push(store, &health), -1);
    assert_int_equal(esper_store_counts_get(store).n_dropped[ESPER_STORE_HEALTH], 1);
    esper_store_close(store);
    esper_store_close(NULL);
    check_good(esper_store_status(NULL));
}

/* Rows become visible without anybody asking, and pushing takes no memory. */
static void written_by_itself(void **state)
{
    const esper_store_options quick = {.batch_ms = 20};
    esper_store *store = begin_store("itself.sqlite", &quick, "x");
    esper_store_record health = filled_record(ESPER_STORE_HEALTH, 1, 1, 1);
    const struct timespec pause = {.tv_nsec = 10000000};
    esper_mem_stats before, after;

    (void)state;
    esper_mem_stats_get(&before);
    for (int i = 0; i < 100; i++)
        esper_store_push(store, &health);
    for (int i = 0; i < 500 && esper_store_counts_get(store).n_written < 100; i++)
        nanosleep(&pause, NULL);
    esper_mem_stats_get(&after);
    assert_int_equal(ask("itself.sqlite", "SELECT count(*) FROM health"), 100);
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_store_close(store);
}

/* ------------------------------------------------------------------------------------------------ at the same time */

enum { N_PUSHERS = 2, N_READERS = 2, N_PUSHES = 1500 };

typedef struct crowd {
    esper_store *store;
    atomic_bool  done;
    atomic_int   n_looks, n_bad;
} crowd;

static void *push_many(void *context)
{
    crowd *all = context;

    for (int i = 0; i < N_PUSHES; i++) {
        esper_store_record record = filled_record(ESPER_STORE_EPOCH, i + 1, i, i);

        esper_store_push(all->store, &record);
    }
    return NULL;
}

/* What is seen only grows, in whole rows without gaps. */
static void *look_often(void *context)
{
    crowd *all = context;
    const esper_store_filter filter = all_of(1);
    int64_t most = 0;

    do {
        esper_store_reader *reader = NULL;
        esper_store_cursor *cursor = NULL;
        esper_store_record record;
        int64_t next = 0;
        bool found = true, good;

        good = esper_store_reader_open("crowd.sqlite", &reader) == ESPER_OK &&
               esper_store_read(reader, ESPER_STORE_EPOCH, &filter, &cursor) == ESPER_OK;
        while (good && (good = esper_store_next(cursor, &record, &found) == ESPER_OK) && found)
            good = record.seq == next++;
        if (!good || next < most)
            atomic_fetch_add(&all->n_bad, 1);
        most = next;
        esper_store_cursor_close(cursor);
        esper_store_reader_close(reader);
        atomic_fetch_add(&all->n_looks, 1);
    } while (!atomic_load(&all->done));
    return NULL;
}

static void many_at_once(void **state)
{
    const esper_store_options options = {.queue_records = 2 * N_PUSHERS * N_PUSHES, .batch_ms = 5};
    crowd all = {.store = begin_store("crowd.sqlite", &options, "x")};
    pthread_t pushers[N_PUSHERS], readers[N_READERS];

    (void)state;
    for (int i = 0; i < N_READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, look_often, &all), 0);
    for (int i = 0; i < N_PUSHERS; i++)
        assert_int_equal(pthread_create(&pushers[i], NULL, push_many, &all), 0);
    for (int i = 0; i < N_PUSHERS; i++)
        pthread_join(pushers[i], NULL);
    check_good(esper_store_flush(all.store));
    atomic_store(&all.done, true);
    for (int i = 0; i < N_READERS; i++)
        pthread_join(readers[i], NULL);
    assert_int_equal(esper_store_counts_get(all.store).n_written, N_PUSHERS * N_PUSHES);
    esper_store_close(all.store);
    assert_int_equal(atomic_load(&all.n_bad), 0);
    assert_true(atomic_load(&all.n_looks) >= N_READERS);
    assert_int_equal(ask("crowd.sqlite", "SELECT count(*) FROM epochs"), N_PUSHERS * N_PUSHES);
}

/* Two stores on one file, as two processes have them. */
static void two_writers(void **state)
{
    const esper_store_options quick = {.batch_ms = 5};
    esper_store *a = begin_store("both.sqlite", &quick, "a"), *b = begin_store("both.sqlite", &quick, "b");

    (void)state;
    for (int i = 0; i < 500; i++) {
        esper_store_record record = filled_record(ESPER_STORE_EPOCH, i + 1, i, i);

        esper_store_push(i % 2 ? a : b, &record);
        esper_store_push(i % 2 ? b : a, &record);
    }
    check_good(esper_store_flush(a));
    check_good(esper_store_flush(b));
    esper_store_close(a);
    esper_store_close(b);
    assert_int_equal(ask("both.sqlite", "SELECT count(*) FROM epochs WHERE run = 1"), 500);
    assert_int_equal(ask("both.sqlite", "SELECT count(*) FROM epochs WHERE run = 2"), 500);
}

/* ------------------------------------------------------------------------------------------------ facts */

/* Every kind of fact with nothing in it is a row of NULLs; with something in every field, a row of that. */
static void every_fact_is_its_row(void **state)
{
    (void)state;
    for (int kind = 0; kind < ESPER_FACT_N_TABLES; kind++) {
        esper_fact fact = esper_fact_of((esper_fact_kind)kind, 3, 30);
        esper_store_record nothing = esper_store_record_of((esper_store_kind)kind, 3, 30);
        esper_store_record record = esper_store_record_from(&fact);
        int n_fields, n_columns, column = 0;
        const esper_fact_field *fields = esper_fact_fields(fact.kind, &n_fields);
        const esper_store_column *columns = esper_store_columns(record.kind, &n_columns);

        assert_memory_equal(&record, &nothing, sizeof(record));
        for (int i = 0; i < n_fields; i++)
            if (fields[i].kind == ESPER_FACT_FIELD_TEXT)
                *(const char **)((char *)&fact + fields[i].offset) = fields[i].name;
            else if (fields[i].kind == ESPER_FACT_FIELD_NAME)
                *(int *)((char *)&fact + fields[i].offset) = 1;
            else if (fields[i].kind != ESPER_FACT_FIELD_EPOCH)
                *(int64_t *)((char *)&fact + fields[i].offset) = i + 1;
        record = esper_store_record_from(&fact);
        for (int i = 0; i < n_fields; i++) {
            const char *value;

            if (!fields[i].in_row)
                continue;
            value = (const char *)&record + columns[column].offset;
            assert_string_equal(columns[column].name, fields[i].name);
            if (columns[column].kind == ESPER_STORE_COLUMN_TEXT)
                assert_true(strncmp(value, esper_fact_text(&fact, &fields[i]), columns[column].bytes - 1) == 0);
            else
                assert_int_equal(*(const int64_t *)value, i + 1);
            column++;
        }
        assert_int_equal(column, n_columns);
    }
}

/* Told once, a fact is in both places; who has no table, or is for lines alone, has no row. */
static void facts_become_rows(void **state)
{
    esper_store *store = begin_store("facts.sqlite", NULL, "x");
    esper_fact epoch = esper_fact_of(ESPER_FACT_EPOCH, 1, 10), warning = esper_fact_of(ESPER_FACT_WARNING, 1, 10);
    esper_fact gate[3] = {esper_fact_of(ESPER_FACT_GATE, 2, 20), esper_fact_of(ESPER_FACT_CHECK, 2, 20),
                          esper_fact_of(ESPER_FACT_CHECK, 2, 20)};
    esper_store_record rows[4];
    esper_bus bus;

    (void)state;
    esper_bus_init(&bus, 5);
    check_good(esper_bus_add(&bus, esper_store_sink(store)));
    epoch.epoch_done.loss_train = (double)NAN;
    esper_bus_tell(&bus, &epoch, 1);
    epoch.to = ESPER_TO_LINES;
    esper_bus_tell(&bus, &epoch, 1);
    warning.warning.text = "so";
    esper_bus_tell(&bus, &warning, 1);
    gate[0].gate.to_stage = ESPER_STAGE_BLENDING;
    gate[0].gate.slot = "r0c1";
    gate[2].check.passed = 1;
    esper_bus_tell(&bus, gate, 3);
    check_good(esper_bus_fini(&bus));
    esper_store_close(store);
    assert_int_equal(read_all("facts.sqlite", ESPER_STORE_EPOCH, all_of(1), rows, 4), 1);
    assert_true(isnan(rows[0].epoch_done.loss_train));
    assert_true(rows[0].epoch_done.loss_valid == ESPER_STORE_NO_REAL);
    assert_int_equal(rows[0].step, 10);
    assert_int_equal(read_all("facts.sqlite", ESPER_STORE_GATE, all_of(1), rows, 4), 1);
    assert_string_equal(rows[0].gate.to_stage, "blending");
    assert_string_equal(rows[0].gate.slot, "r0c1");
    assert_string_equal(rows[0].gate.mode, "");
    assert_int_equal(ask("facts.sqlite", "SELECT count(*) FROM gate_checks AS c JOIN gates AS g ON c.gate = g.seq"), 2);
    assert_int_equal(ask("facts.sqlite", "SELECT passed FROM gate_checks ORDER BY seq DESC"), 1);
}

/* ------------------------------------------------------------------------------------------------ 0.1 */

/* A store as the first release wrote it (grow synth: 3 epochs, a fault, a rollback, a seed) is read, and its run goes on. */
static void a_store_of_the_first_release_is_read(void **state)
{
    esper_store *store;
    esper_store_record rows[4];
    esper_fact epoch = esper_fact_of(ESPER_FACT_EPOCH, 4, 20);
    int64_t id;
    char *sql;
    size_t bytes;

    (void)state;
    if (esper_file_read(ESPER_SOURCE_DIR "/tests/telemetry/store_v3.sql", 1 << 20, &sql, &bytes) != ESPER_OK)
        skip();
    remove_store("first.sqlite");
    change("first.sqlite", sql);
    esper_mem_free(sql);
    assert_int_equal(ask("first.sqlite", "PRAGMA user_version"), 3);
    assert_int_equal(read_all("first.sqlite", ESPER_STORE_EPOCH, all_of(1), rows, 4), 3);
    assert_int_equal(rows[2].epoch_done.n_seeds, 1);
    assert_true(rows[2].epoch_done.weight_hash != 0);
    assert_int_equal(read_all("first.sqlite", ESPER_STORE_ROLLBACK, all_of(1), rows, 4), 1);
    assert_string_equal(rows[0].rollback.action, "roll_back");
    assert_int_equal(rows[0].rollback.from_step, 7);
    assert_int_equal(read_all("first.sqlite", ESPER_STORE_REWARD, all_of(1), rows, 4), 3);
    assert_true(rows[1].reward.gain == ESPER_STORE_NO_REAL && rows[1].reward.total == 0.1485);
    assert_int_equal(read_all("first.sqlite", ESPER_STORE_CLASS, all_of(1), rows, 4), 0);
    store = open_store("first.sqlite", NULL);
    check_good(esper_store_resume(store, "old", 3, 15, ESPER_STORE_NO_INT, &id));
    assert_int_equal(id, 1);
    esper_store_tell(store, &epoch, 1);
    check_good(esper_store_flush(store));
    esper_store_close(store);
    assert_int_equal(ask("first.sqlite", "SELECT count(*) FROM epochs WHERE run = 1"), 4);
    assert_int_equal(ask("first.sqlite", "PRAGMA user_version"), ESPER_STORE_VERSION);
    assert_int_equal(ask("first.sqlite", "SELECT count(*) FROM rewards_standing WHERE gain IS NULL"), 3);
    assert_int_equal(ask("first.sqlite", "SELECT count(*) FROM classes"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_comes_back),
        cmocka_unit_test(rewards_have_their_parts),
        cmocka_unit_test(heads_have_their_entropy),
        cmocka_unit_test(a_learner_is_cut_back),
        cmocka_unit_test(unset_is_null),
        cmocka_unit_test(numbers_that_are_not_finite),
        cmocka_unit_test(texts_are_cut_and_mended),
        cmocka_unit_test(runs_follow_each_other),
        cmocka_unit_test(lineage_of_seeds),
        cmocka_unit_test(stages_are_called_so),
        cmocka_unit_test(rollbacks_undo),
        cmocka_unit_test(rows_since_a_number),
        cmocka_unit_test(gates_carry_their_evidence),
        cmocka_unit_test(resume_cuts_back),
        cmocka_unit_test(cut_within_an_epoch),
        cmocka_unit_test(drops_are_counted),
        cmocka_unit_test(close_does_not_wait_for_ever),
        cmocka_unit_test(pushing_before_a_run_is_a_drop),
        cmocka_unit_test(written_by_itself),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(two_writers),
        cmocka_unit_test(every_fact_is_its_row),
        cmocka_unit_test(facts_become_rows),
        cmocka_unit_test(a_store_of_the_first_release_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
