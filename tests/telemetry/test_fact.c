/* Facts, the bus, the JSON writer and the JSON Lines sink. What is written is read back by another JSON reader. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/config.h"
#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "slot/stage.h"
#include "telemetry/fact.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void check_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* ---- the writer ---- */

static void texts_are_escaped(void **state)
{
    static const struct {
        const char *text, *json;
    } cases[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\""},
        {"\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\""},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\xB1", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\xB1\""}, /* 2, 3 and 4 bytes */
        {"a\xFFz", "\"a\\ufffdz\""},                             /* never a UTF-8 byte */
        {"\xC3", "\"\\ufffd\""},                                 /* cut short by the end */
        {"\xE2\x82", "\"\\ufffd\\ufffd\""},
        {"\x80", "\"\\ufffd\""},                                 /* a second byte without a first */
        {"\xC0\xAF", "\"\\ufffd\\ufffd\""},                      /* '/' in two bytes */
        {"\xE0\x80\xAF", "\"\\ufffd\\ufffd\\ufffd\""},           /* '/' in three */
        {"\xED\xA0\x80", "\"\\ufffd\\ufffd\\ufffd\""},           /* half a surrogate pair */
        {"\xF4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\""}, /* beyond U+10FFFF */
    };
    char text[128];
    esper_json json;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *parsed;

        esper_json_init(&json, text, sizeof(text));
        esper_json_text(&json, cases[i].text);
        assert_false(json.overflow);
        assert_string_equal(text, cases[i].json);
        parsed = json_loads(text, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        json_decref(parsed);
    }
}

static void values_nest_with_their_commas(void **state)
{
    char text[256];
    esper_json json;

    (void)state;
    esper_json_init(&json, text, sizeof(text));
    esper_json_object_begin(&json);
    esper_json_key(&json, "a");
    esper_json_array_begin(&json);
    esper_json_int(&json, INT64_MIN);
    esper_json_real(&json, 0.1);
    esper_json_array_begin(&json);
    esper_json_array_end(&json);
    esper_json_object_begin(&json);
    esper_json_object_end(&json);
    esper_json_bool(&json, true);
    esper_json_array_end(&json);
    esper_json_key(&json, "b");
    esper_json_text(&json, NULL);
    esper_json_key(&json, "c");
    esper_json_u64(&json, UINT64_MAX);
    esper_json_key(&json, "d");
    esper_json_hash(&json, 0xABCu);
    esper_json_object_end(&json);
    assert_string_equal(text, "{\"a\":[-9223372036854775808,0.1,[],{},true],\"b\":null,"
                              "\"c\":\"18446744073709551615\",\"d\":\"0000000000000abc\"}");
    assert_int_equal(json.used, strlen(text));
}

static void what_is_not_finite_becomes_text(void **state)
{
    char text[64];
    esper_json json;

    (void)state;
    esper_json_init(&json, text, sizeof(text));
    esper_json_array_begin(&json);
    esper_json_real(&json, (double)NAN);
    esper_json_real(&json, (double)INFINITY);
    esper_json_real(&json, -(double)INFINITY);
    esper_json_real(&json, -2.5e-300);
    esper_json_array_end(&json);
    assert_string_equal(text, "[\"nan\",\"inf\",\"-inf\",-2.5e-300]");
}

/* In every memory that is too small the writer stops inside it and says so. */
static void overflow_is_told_at_every_size(void **state)
{
    static const char whole[] = "{\"key\":[\"\\ufffd\\n\",-12345,1.5]}";

    (void)state;
    for (size_t size = 1; size <= sizeof(whole); size++) {
        char *text = malloc(size); /* of its own, so that the sanitizer sees its end */
        esper_json json;

        assert_non_null(text);
        esper_json_init(&json, text, size);
        esper_json_object_begin(&json);
        esper_json_key(&json, "key");
        esper_json_array_begin(&json);
        esper_json_text(&json, "\xFF\n");
        esper_json_int(&json, -12345);
        esper_json_real(&json, 1.5);
        esper_json_array_end(&json);
        esper_json_object_end(&json);
        assert_int_equal(json.overflow, size < sizeof(whole));
        assert_true(strlen(text) < size);
        if (!json.overflow)
            assert_string_equal(text, whole);
        free(text);
    }
}

/* ---- events ---- */

/* Something in every field, by its place. Codes are those that every vocabulary has. */
static void fill(esper_fact *fact, esper_fact_kind kind)
{
    const esper_fact_field *fields;
    int n_fields;

    *fact = esper_fact_of(kind, 9, 420);
    fields = esper_fact_fields(kind, &n_fields);
    for (int i = 0; i < n_fields; i++) {
        char *field = (char *)fact + fields[i].offset;

        switch (fields[i].kind) {
        case ESPER_FACT_FIELD_INT:
            *(int64_t *)field = i + 1;
            break;
        case ESPER_FACT_FIELD_REAL:
            *(double *)field = i + 0.5;
            break;
        case ESPER_FACT_FIELD_TEXT:
            *(const char **)field = fields[i].name;
            break;
        case ESPER_FACT_FIELD_NAME:
            *(int *)field = 1;
            break;
        case ESPER_FACT_FIELD_U64:
        case ESPER_FACT_FIELD_HASH:
            *(uint64_t *)field = UINT64_MAX - (uint64_t)i;
            break;
        case ESPER_FACT_FIELD_EPOCH:
            break;
        }
    }
}

static void check_field(const json_t *object, const esper_fact_field *field, int i)
{
    const json_t *value = json_object_get(object, field->key);
    char text[32];

    assert_non_null(value);
    switch (field->kind) {
    case ESPER_FACT_FIELD_INT:
        assert_int_equal(json_integer_value(value), i + 1);
        break;
    case ESPER_FACT_FIELD_REAL:
        assert_true(json_real_value(value) == i + 0.5);
        break;
    case ESPER_FACT_FIELD_TEXT:
        assert_string_equal(json_string_value(value), field->name);
        break;
    case ESPER_FACT_FIELD_NAME:
        assert_string_equal(json_string_value(value), field->word(1));
        break;
    case ESPER_FACT_FIELD_U64:
        snprintf(text, sizeof(text), "%llu", (unsigned long long)(UINT64_MAX - (uint64_t)i));
        assert_string_equal(json_string_value(value), text);
        break;
    case ESPER_FACT_FIELD_HASH:
        snprintf(text, sizeof(text), "%016llx", (unsigned long long)(UINT64_MAX - (uint64_t)i));
        assert_string_equal(json_string_value(value), text);
        break;
    case ESPER_FACT_FIELD_EPOCH:
        assert_int_equal(json_integer_value(value), 9);
        break;
    }
}

static void every_line_is_json_with_all_its_fields(void **state)
{
    char text[4096];
    int n_lines = 0;

    (void)state;
    for (int kind = 0; kind < ESPER_FACT_N_KINDS; kind++) {
        esper_fact fact;
        const esper_fact_field *fields;
        int n_fields, n_members = 5;
        esper_json json;
        json_t *object;

        if (esper_fact_event((esper_fact_kind)kind) == NULL)
            continue;
        n_lines++;
        fill(&fact, (esper_fact_kind)kind);
        fact.seq = 7;
        fact.time_ns = 1700000000123456789u;
        esper_json_init(&json, text, sizeof(text));
        esper_fact_write_json(&fact, &json);
        object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(object);
        fields = esper_fact_fields(fact.kind, &n_fields);
        assert_int_equal(json_integer_value(json_object_get(object, "v")), 1);
        assert_string_equal(json_string_value(json_object_get(object, "event")), esper_fact_event(fact.kind));
        assert_int_equal(json_integer_value(json_object_get(object, "seq")), 7);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), 420);
        assert_true(fabs(json_real_value(json_object_get(object, "time")) - 1700000000.123456) < 1e-6);
        for (int i = 0; i < n_fields; i++)
            if (fields[i].key != NULL) {
                check_field(object, &fields[i], i);
                n_members++;
            }
        assert_int_equal(json_object_size(object), n_members);
        json_decref(object);
    }
    assert_int_equal(n_lines, 11);
}

/* The names that were published, of all events; a new one may come behind them. */
static void every_published_member_is_there(void **state)
{
    static const struct {
        esper_fact_kind kind;
        const char     *event, *members;
    } published[] = {
        {ESPER_FACT_RUN_STARTED, "run_started", "task run seed config kernels threads ranks params commit policy"},
        {ESPER_FACT_EPOCH, "epoch_ended",
         "epoch loss_train acc_train loss_valid acc_valid lr grad_norm samples_per_s seconds"},
        {ESPER_FACT_CHECKPOINT_SAVED, "checkpoint_saved", "path epoch bytes"},
        {ESPER_FACT_RUN_RESUMED, "run_resumed", "path epoch kernels threads ranks config"},
        {ESPER_FACT_HEALTH, "guard_tripped", "tensor role problem count first_index loss reason action"},
        {ESPER_FACT_ROLLBACK, "rolled_back", "from_step to_step damaged reason seconds"},
        {ESPER_FACT_DECISION, "decided", "epoch op slot blueprint accepted reason refusal"},
        {ESPER_FACT_GATE, "gate_judged", "epoch slot seed gate passed message"},
        {ESPER_FACT_STAGE, "seed_moved", "epoch slot seed blueprint from to alpha params reason initiator"},
        {ESPER_FACT_RUN_ENDED, "run_ended", "status epochs steps loss_test acc_test weight_hash seconds"},
        {ESPER_FACT_WARNING, "warning", "text"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        char found[256] = "";
        int n;
        const esper_fact_field *fields = esper_fact_fields(published[i].kind, &n);

        assert_string_equal(esper_fact_event(published[i].kind), published[i].event);
        for (int k = 0; k < n; k++)
            if (fields[k].key != NULL)
                snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s%s", found[0] != '\0' ? " " : "",
                         fields[k].key);
        assert_string_equal(found, published[i].members);
    }
}

static void what_is_not_known_is_said_so(void **state)
{
    static const char line[] =
        "{\"v\":1,\"event\":\"guard_tripped\",\"seq\":0,\"time\":0,\"step\":3,\"tensor\":\"\",\"role\":\"\","
        "\"problem\":\"\",\"count\":-1,\"first_index\":-1,\"loss\":\"nan\",\"reason\":\"\",\"action\":\"\"}";
    esper_fact fact = esper_fact_of(ESPER_FACT_HEALTH, 1, 3);
    char text[1024];
    esper_json json;

    (void)state;
    esper_json_init(&json, text, sizeof(text));
    esper_fact_write_json(&fact, &json);
    assert_string_equal(text, line);
    assert_true(esper_fact_known((double)NAN) == ESPER_NO_REAL);
    assert_true(esper_fact_known(0.5) == 0.5);
}

static void the_contract_is_as_published(void **state)
{
    static const char epoch_ended[] =
        "{\"v\":1,\"event\":\"epoch_ended\",\"seq\":3,\"time\":0,\"step\":420,\"epoch\":1,\"loss_train\":0.5,"
        "\"acc_train\":0.75,\"loss_valid\":\"nan\",\"acc_valid\":0,\"lr\":0.01,\"grad_norm\":\"inf\","
        "\"samples_per_s\":2500,\"seconds\":1.5}";
    esper_fact event = {.kind = ESPER_FACT_EPOCH,
                        .seq = 3,
                        .epoch = 1,
                        .step = 420,
                        .epoch_done = {.loss_train = 0.5,
                                       .acc_train = 0.75,
                                       .loss_valid = (double)NAN,
                                       .lr = 0.01,
                                       .grad_norm = (double)INFINITY,
                                       .samples_per_s = 2500,
                                       .seconds = 1.5}};
    char text[1024];
    esper_json json;

    (void)state;
    esper_json_init(&json, text, sizeof(text));
    esper_fact_write_json(&event, &json);
    assert_string_equal(text, epoch_ended);
}

/* ---- the bus ---- */

/* A sink that remembers. */
typedef struct memory_sink {
    int          n_told, n_closed;
    uint64_t     last_seq, last_time_ns;
    esper_status answer;
} memory_sink;

static void memory_take(void *handle, const esper_fact *facts, int n)
{
    memory_sink *sink = handle;

    sink->n_told += n;
    sink->last_seq = facts[n - 1].seq;
    sink->last_time_ns = facts[n - 1].time_ns;
}

static esper_status memory_close(void *handle)
{
    memory_sink *sink = handle;

    sink->n_closed++;
    return sink->answer == ESPER_OK ? ESPER_OK : ESPER_FAIL(sink->answer, "as told");
}

static const esper_sink_ops memory_ops = {"memory", memory_take, memory_close};

static void the_bus_reaches_every_sink(void **state)
{
    memory_sink a = {.answer = ESPER_E_IO}, b = {.answer = ESPER_E_STATE};
    esper_fact event = esper_fact_of(ESPER_FACT_WARNING, 0, 0), row = esper_fact_of(ESPER_FACT_CHECK, 1, 1);
    esper_bus bus;

    (void)state;
    esper_bus_init(&bus, 41);
    event.warning.text = "careful";
    esper_bus_tell(NULL, &event, 1);
    esper_bus_tell(&bus, &event, 1); /* to nobody, but counted: the gap tells that something was missed */
    check_good(esper_bus_add(&bus, (esper_sink){&memory_ops, &a}));
    check_good(esper_bus_add(&bus, (esper_sink){&memory_ops, &b}));
    esper_bus_tell(&bus, &row, 1); /* no line of its own, so it takes no number */
    esper_bus_tell(&bus, &event, 1);
    event.to = ESPER_TO_ROWS;
    esper_bus_tell(&bus, &event, 1);
    event.to = ESPER_TO_LINES;
    esper_bus_tell(&bus, &event, 1);
    assert_int_equal(a.n_told, 4);
    assert_int_equal(b.n_told, 4);
    assert_int_equal(b.last_seq, 43);
    assert_true(b.last_time_ns > 1600000000000000000u);
    assert_int_equal(esper_bus_fini(&bus), ESPER_E_IO);
    assert_int_equal(a.n_closed, 1);
    assert_int_equal(b.n_closed, 1);
    check_good(esper_bus_fini(&bus));
    assert_int_equal(a.n_closed, 1);
}

static void a_full_bus_takes_no_more(void **state)
{
    memory_sink sink = {.answer = ESPER_OK};
    esper_bus bus;

    (void)state;
    esper_bus_init(&bus, 0);
    for (int i = 0; i < ESPER_BUS_MAX_SINKS; i++)
        check_good(esper_bus_add(&bus, (esper_sink){&memory_ops, &sink}));
    assert_int_equal(esper_bus_add(&bus, (esper_sink){&memory_ops, &sink}), ESPER_E_STATE);
    check_good(esper_bus_fini(&bus));
    assert_int_equal(sink.n_closed, ESPER_BUS_MAX_SINKS);
}

/* ---- JSON Lines ---- */

/* Opens the file alone on a bus. */
static void open_bus(esper_bus *bus, const char *path, bool append)
{
    esper_sink sink;

    esper_bus_init(bus, 0);
    check_good(esper_sink_jsonl_open(path, append, &sink));
    check_good(esper_bus_add(bus, sink));
}

static void emit_warning(esper_bus *bus, const char *text)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_WARNING, 0, 0);

    fact.warning.text = text;
    esper_bus_tell(bus, &fact, 1);
}

/* The texts of the warnings in the file, joined by '|'. Every line must be JSON. */
static void check_warnings(const char *path, const char *expected)
{
    char *data, found[256] = "";
    size_t bytes;

    check_good(esper_file_read(path, 1 << 20, &data, &bytes));
    for (char *line = strtok(data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, 0, NULL);

        if (object == NULL)
            fail_msg("not JSON: %s", line);
        strcat(found, found[0] != '\0' ? "|" : "");
        strncat(found, json_string_value(json_object_get(object, "text")), 40);
        json_decref(object);
    }
    esper_mem_free(data);
    assert_string_equal(found, expected);
}

static void lines_are_written_at_once_and_appended(void **state)
{
    esper_bus bus;

    (void)state;
    open_bus(&bus, "events.jsonl", false);
    emit_warning(&bus, "one");
    check_warnings("events.jsonl", "one"); /* before it is closed */
    emit_warning(&bus, "two\nlines");
    check_good(esper_bus_fini(&bus));
    open_bus(&bus, "events.jsonl", true);
    emit_warning(&bus, "three");
    check_good(esper_bus_fini(&bus));
    check_warnings("events.jsonl", "one|two\nlines|three");
    open_bus(&bus, "events.jsonl", false);
    emit_warning(&bus, "anew");
    check_good(esper_bus_fini(&bus));
    check_warnings("events.jsonl", "anew");
}

/* A crash in the middle of a line leaves a part of it, of any length. */
static void an_unfinished_line_is_cut_off(void **state)
{
    static char torn[20000];

    (void)state;
    for (size_t n = 1; n < sizeof(torn); n = n * 3 + 1) {
        static const char whole[] = "{\"text\":\"one\"}\n";
        esper_bus bus;

        memset(torn, '{', sizeof(torn));
        memcpy(torn, whole, sizeof(whole) - 1);
        check_good(esper_file_write("torn.jsonl", torn, sizeof(whole) - 1 + (n < 19000 ? n : 19000)));
        open_bus(&bus, "torn.jsonl", true);
        emit_warning(&bus, "two");
        check_good(esper_bus_fini(&bus));
        check_warnings("torn.jsonl", "one|two");
    }
    memset(torn, '{', sizeof(torn)); /* nothing but a part of a line */
    check_good(esper_file_write("torn.jsonl", torn, sizeof(torn)));
    {
        esper_bus bus;

        open_bus(&bus, "torn.jsonl", true);
        emit_warning(&bus, "two");
        check_good(esper_bus_fini(&bus));
    }
    check_warnings("torn.jsonl", "two");
}

static void lost_events_are_counted_and_told(void **state)
{
    esper_bus bus;

    (void)state;
    open_bus(&bus, "/dev/full", true);
    emit_warning(&bus, "one");
    emit_warning(&bus, "two");
    assert_int_equal(esper_bus_fini(&bus), ESPER_E_IO);
    check_contains(esper_last_error(), "/dev/full: 2 events lost: No space left on device");
}

/* A disk that fills in the middle of a line must not leave half of it for the next line to run into. */
static void a_full_disk_leaves_whole_lines(void **state)
{
    struct rlimit limit, small;
    esper_bus bus;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    open_bus(&bus, "full.jsonl", false);
    emit_warning(&bus, "one");
    small = limit;
    small.rlim_cur = 150; /* the first line takes about 90 */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    emit_warning(&bus, "two");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    emit_warning(&bus, "three");
    assert_int_equal(esper_bus_fini(&bus), ESPER_E_IO);
    check_contains(esper_last_error(), "full.jsonl: 1 events lost: File too large");
    check_warnings("full.jsonl", "one|three");
}

static void a_line_that_is_too_long_is_dropped_whole(void **state)
{
    static char text[70000];
    esper_bus bus;

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    open_bus(&bus, "long.jsonl", false);
    emit_warning(&bus, text);
    emit_warning(&bus, "short");
    assert_int_equal(esper_bus_fini(&bus), ESPER_E_IO);
    check_contains(esper_last_error(), "1 events lost: longer than a line may be");
    check_warnings("long.jsonl", "short");
}

/* The longest event there is: a configuration whose every text is full of characters that need escaping. */
static void the_longest_configuration_fits_a_line(void **state)
{
    static char config[ESPER_CONFIG_RECORD_CHARS];
    esper_fact event = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, 0);
    esper_bus bus;

    (void)state;
    event.run_started.config = config;
    memset(config, '\\', sizeof(config) - 1);
    open_bus(&bus, "config.jsonl", false);
    esper_bus_tell(&bus, &event, 1);
    check_good(esper_bus_fini(&bus));
}

static void emitting_takes_no_memory(void **state)
{
    esper_mem_stats before, after;
    esper_bus bus;

    (void)state;
    open_bus(&bus, "events.jsonl", false);
    esper_mem_stats_get(&before);
    for (int i = 0; i < 100; i++)
        for (int kind = 0; kind < ESPER_FACT_N_KINDS; kind++) {
            esper_fact event;

            fill(&event, (esper_fact_kind)kind);
            esper_bus_tell(&bus, &event, 1);
        }
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    check_good(esper_bus_fini(&bus));
}

static void sinks_that_cannot_open_say_why(void **state)
{
    esper_sink sink = {NULL, NULL};
    esper_mem_stats before, after;
    esper_status st = ESPER_E_NOMEM;
    int n_failures = 0;

    (void)state;
    assert_int_equal(esper_sink_jsonl_open("absent/events.jsonl", true, &sink), ESPER_E_IO);
    check_contains(esper_last_error(), "absent/events.jsonl: cannot be opened: No such file");
    assert_int_equal(esper_sink_jsonl_open(".", true, &sink), ESPER_E_IO);
    assert_null(sink.ops);
    esper_mem_stats_get(&before);
    while (st == ESPER_E_NOMEM) {
        esper_mem_fail_at((uint64_t)n_failures + 1);
        st = esper_sink_jsonl_open("events.jsonl", true, &sink);
        esper_mem_fail_at(0);
        n_failures += st == ESPER_E_NOMEM;
        if (st == ESPER_OK)
            check_good(sink.ops->close(sink.handle));
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
    }
    check_good(st);
    assert_int_equal(n_failures, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_escaped),
        cmocka_unit_test(values_nest_with_their_commas),
        cmocka_unit_test(what_is_not_finite_becomes_text),
        cmocka_unit_test(overflow_is_told_at_every_size),
        cmocka_unit_test(every_line_is_json_with_all_its_fields),
        cmocka_unit_test(every_published_member_is_there),
        cmocka_unit_test(what_is_not_known_is_said_so),
        cmocka_unit_test(the_contract_is_as_published),
        cmocka_unit_test(the_bus_reaches_every_sink),
        cmocka_unit_test(a_full_bus_takes_no_more),
        cmocka_unit_test(lines_are_written_at_once_and_appended),
        cmocka_unit_test(an_unfinished_line_is_cut_off),
        cmocka_unit_test(lost_events_are_counted_and_told),
        cmocka_unit_test(a_full_disk_leaves_whole_lines),
        cmocka_unit_test(a_line_that_is_too_long_is_dropped_whole),
        cmocka_unit_test(the_longest_configuration_fits_a_line),
        cmocka_unit_test(emitting_takes_no_memory),
        cmocka_unit_test(sinks_that_cannot_open_say_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
