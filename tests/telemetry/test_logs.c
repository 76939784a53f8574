/* Logs for other people's tools: event files are read back by a parser of their format, checksums included; tables line by line;
 * resumed ones are cut back, and what is not finite or not known is told as such. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#include "base/file.h"
#include "telemetry/helpers.h"
#include "telemetry/logs.h"

/* ------------------------------------------------------------------------------------------------ a reader of event files */

typedef struct scalar {
    int64_t step;
    double time;
    char tag[80];
    float value;
} scalar;

typedef struct events {
    scalar at[256];
    int n, n_records;
    char version[32];
    int64_t started; /* step of a session that starts; -1 = none */
} events;

/* The definition, bit by bit. */
static uint32_t crc32c(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1u ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static uint32_t unmasked(const uint8_t *at)
{
    uint32_t masked = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    uint32_t rotated = masked - 0xa282ead8u;

    return rotated >> 17 | rotated << 15;
}

static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(*at < end);
        value |= (uint64_t)(**at & 0x7f) << shift;
        if ((*(*at)++ & 0x80) == 0)
            break;
    }
    return value;
}

/* A field: its number, and where its contents are. */
static unsigned read_field(const uint8_t **at, const uint8_t *end, uint64_t *number, const uint8_t **bytes, size_t *n)
{
    uint64_t key = read_varint(at, end);

    *bytes = *at;
    switch (key & 7) {
    case 0:
        *number = read_varint(at, end);
        break;
    case 1:
        *n = 8;
        *at += 8;
        break;
    case 2:
        *n = read_varint(at, end);
        *bytes = *at;
        *at += *n;
        break;
    case 5:
        *n = 4;
        *at += 4;
        break;
    default:
        fail_msg("kind %d of a field", (int)(key & 7));
    }
    assert_true(*at <= end);
    return (unsigned)(key >> 3);
}

static void read_value(const uint8_t *at, const uint8_t *end, scalar *out)
{
    while (at < end) {
        uint64_t number;
        const uint8_t *bytes;
        size_t n = 0;
        unsigned field = read_field(&at, end, &number, &bytes, &n);

        if (field == 1)
            snprintf(out->tag, sizeof(out->tag), "%.*s", (int)n, (const char *)bytes);
        else if (field == 2)
            memcpy(&out->value, bytes, 4);
    }
}

static void read_event(const uint8_t *at, const uint8_t *end, events *out)
{
    scalar common = {.step = 0};

    while (at < end) {
        uint64_t number = 0;
        const uint8_t *bytes, *value;
        size_t n = 0, n_value = 0;
        unsigned field = read_field(&at, end, &number, &bytes, &n);

        if (field == 1)
            memcpy(&common.time, bytes, 8);
        else if (field == 2)
            common.step = (int64_t)number;
        else if (field == 3)
            snprintf(out->version, sizeof(out->version), "%.*s", (int)n, (const char *)bytes);
        else if (field == 7)
            out->started = common.step;
        for (const uint8_t *s = bytes; field == 5 && s < bytes + n;) {
            assert_int_equal(read_field(&s, bytes + n, &number, &value, &n_value), 1);
            assert_true(out->n < 256);
            out->at[out->n] = common;
            read_value(value, value + n_value, &out->at[out->n++]);
        }
    }
}

/* All event files of a folder, in the order of their names. */
static void read_board(const char *dir, events *out)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);

    *out = (events){.started = -1};
    for (int i = 0; i < n; i++) {
        char path[512], *data;
        size_t bytes, at = 0;

        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        if (strstr(names[i]->d_name, "tfevents") != NULL) {
            check_good(esper_file_read(path, 1 << 20, &data, &bytes));
            while (at < bytes) {
                const uint8_t *record = (const uint8_t *)data + at;
                uint64_t length = 0;

                for (int k = 7; k >= 0; k--)
                    length = length << 8 | record[k];
                assert_true(at + 16 + length <= bytes);
                assert_int_equal(unmasked(record + 8), crc32c(record, 8));
                assert_int_equal(unmasked(record + 12 + length), crc32c(record + 12, length));
                read_event(record + 12, record + 12 + length, out);
                out->n_records++;
                at += 16 + length;
            }
            esper_mem_free(data);
        }
        free(names[i]);
    }
    free(names);
}

static const scalar *find(const events *all, const char *tag, int64_t step)
{
    for (int i = 0; i < all->n; i++)
        if (all->at[i].step == step && strcmp(all->at[i].tag, tag) == 0)
            return &all->at[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ logging */

static esper_fact epoch_fact(int64_t epoch, double loss)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_EPOCH, epoch, epoch * 10);

    fact.epoch_done.loss_valid = loss;
    fact.epoch_done.acc_valid = 80.0 + (double)epoch;
    fact.epoch_done.params = 1000 * epoch;
    fact.to = ESPER_TO_ROWS;
    return fact;
}

static void tell_epoch(esper_bus *bus, int64_t epoch, double loss)
{
    esper_fact line = epoch_fact(epoch, -1.0), row = epoch_fact(epoch, loss);
    esper_fact seed = esper_fact_of(ESPER_FACT_SEED_EPOCH, epoch, epoch * 10);

    line.to = ESPER_TO_LINES; /* which is not complete */
    esper_bus_tell(bus, &line, 1);
    esper_bus_tell(bus, &row, 1);
    seed.seed_epoch.slot = "r0c1";
    seed.seed_epoch.alpha = 0.5;
    esper_bus_tell(bus, &seed, 1);
}

static void an_event_file_is_what_it_should_be(void **state)
{
    esper_sink sink;
    esper_bus bus;
    static events all;

    (void)state;
    check_good(esper_file_make_dirs("board"));
    esper_bus_init(&bus, 0);
    check_good(esper_sink_tensorboard_open("board", (esper_logs_from){.grows = true}, &sink));
    check_good(esper_bus_add(&bus, sink));
    tell_epoch(&bus, 1, 0.5);
    tell_epoch(&bus, 300, (double)NAN);
    check_good(esper_bus_fini(&bus));
    read_board("board", &all);
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xe3069283u); /* the check value of crc32c */
    assert_string_equal(all.version, "brain.Event:2");
    assert_int_equal(all.n_records, 1 + 2 + 2);
    assert_int_equal(all.started, -1);
    assert_true(find(&all, "loss/valid", 1)->value == 0.5f && find(&all, "acc/valid", 1)->value == 81.0f);
    assert_true(find(&all, "params", 300)->value == 300000.0f);
    assert_true(isnan(find(&all, "loss/valid", 300)->value));
    assert_true(find(&all, "alpha/r0c1", 1)->value == 0.5f);
    assert_null(find(&all, "loss/train", 1)); /* not known, not there */
    assert_true(find(&all, "loss/valid", 1)->time > 1.6e9);
    check_good(esper_sink_tensorboard_open("board", (esper_logs_from){.resumed = true, .epoch = 7}, &sink));
    check_good(sink.ops->close(sink.handle));
    read_board("board", &all);
    assert_int_equal(all.started, 8);
}

static char *text_of(const char *path)
{
    char *text;
    size_t bytes;

    check_good(esper_file_read(path, 1 << 20, &text, &bytes));
    return text;
}

static int count_lines(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static void open_csv(esper_bus *bus, bool resumed, int64_t epoch)
{
    esper_sink sink;

    esper_bus_init(bus, 0);
    check_good(esper_sink_csv_open("metrics.csv", (esper_logs_from){.resumed = resumed, .epoch = epoch, .grows = true},
                                   &sink));
    check_good(esper_bus_add(bus, sink));
}

static void a_table_is_cut_back_and_goes_on(void **state)
{
    esper_bus bus;
    char *text;
    FILE *file;

    (void)state;
    open_csv(&bus, false, 0);
    for (int64_t epoch = 1; epoch <= 4; epoch++)
        tell_epoch(&bus, epoch, epoch == 2 ? (double)INFINITY : 0.25);
    check_good(esper_bus_fini(&bus));
    text = text_of("metrics.csv");
    assert_int_equal(count_lines(text), 5);
    assert_memory_equal(text, "epoch,step,time,loss_train,acc_train,loss_valid,acc_valid,lr,", 60);
    assert_non_null(strstr(text, "\n1,10,"));
    assert_non_null(strstr(text, ",,,0.25,81,")); /* what is not known is empty */
    assert_non_null(strstr(text, ",,,inf,82,"));
    esper_mem_free(text);
    file = fopen("metrics.csv", "a");
    fputs("5,50,1", file); /* a crash has left a part of a row */
    fclose(file);
    open_csv(&bus, true, 2);
    tell_epoch(&bus, 3, 0.125);
    check_good(esper_bus_fini(&bus));
    text = text_of("metrics.csv");
    assert_int_equal(count_lines(text), 4);
    assert_non_null(strstr(text, "\n3,30,"));
    assert_non_null(strstr(text, ",0.125,"));
    assert_null(strstr(text, "\n4,"));
    esper_mem_free(text);
    unlink("metrics.csv");
    open_csv(&bus, true, 2); /* logged for the first time by a run that goes on */
    tell_epoch(&bus, 3, 0.125);
    check_good(esper_bus_fini(&bus));
    text = text_of("metrics.csv");
    assert_int_equal(count_lines(text), 2);
    esper_mem_free(text);
}

static void what_is_asked_for(void **state)
{
    unsigned logs = 9;
    esper_sink sink;

    (void)state;
    check_good(esper_logs_parse("", &logs));
    assert_int_equal(logs, 0);
    check_good(esper_logs_parse("csv,tensorboard", &logs));
    assert_int_equal(logs, ESPER_LOGS_CSV_BIT | ESPER_LOGS_TENSORBOARD_BIT);
    check_fails(esper_logs_parse("csv,wandb", &logs), ESPER_E_CONFIG, "log wandb|tensorboard, csv");
    check_fails(esper_logs_parse(",", &logs), ESPER_E_CONFIG, "expected");
    check_fails(esper_sink_csv_open("nowhere/m.csv", (esper_logs_from){0}, &sink), ESPER_E_NOTFOUND, "nowhere/m.csv");
    check_fails(esper_sink_tensorboard_open("nowhere", (esper_logs_from){0}, &sink), ESPER_E_NOTFOUND,
                "nowhere/events");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_file_is_what_it_should_be),
        cmocka_unit_test(a_table_is_cut_back_and_goes_on),
        cmocka_unit_test(what_is_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
