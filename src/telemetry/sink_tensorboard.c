/* The TensorBoard sink: scalars in an event file, which is a TFRecord file of the protocol buffer `Event`.
 *
 *     record    length u64, crc of it u32, bytes, crc of them u32; all little-endian, crcs masked crc32c
 *     Event     1 wall_time double, 2 step int64, 3 file_version string, 5 summary message, 7 session_log message
 *     Summary   1 value message, any number;  Value  1 tag string, 2 simple_value float
 *
 * A field is a varint of its number << 3 | its kind (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes), and its value.
 * That is all of the format that is needed, so it is written by hand. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "telemetry/logs.h"

enum { RECORD_BYTES = 8192, PATH_CHARS = 1400, TAG_CHARS = 80, VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };

typedef struct board_sink {
    int fd;
    bool grows;
    char path[PATH_CHARS];
    uint64_t n_dropped;
    int first_errno;
    uint32_t table[256]; /* of crc32c */
} board_sink;

/* ------------------------------------------------------------------------------------------------ checksums */

static void fill_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1u ? crc >> 1 ^ 0x82f63b78u : crc >> 1; /* Castagnoli's polynomial, mirrored */
        table[i] = crc;
    }
}

static uint32_t masked_crc(const board_sink *sink, const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++)
        crc = crc >> 8 ^ sink->table[(crc ^ bytes[i]) & 0xffu];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ------------------------------------------------------------------------------------------------ messages */

typedef struct message {
    uint8_t bytes[RECORD_BYTES];
    size_t used;
    bool full;
} message;

static void put(message *to, const void *bytes, size_t n)
{
    if (to->full || n > sizeof(to->bytes) - to->used) {
        to->full = true;
        return;
    }
    memcpy(to->bytes + to->used, bytes, n);
    to->used += n;
}

static void put_varint(message *to, uint64_t value)
{
    uint8_t byte;

    do {
        byte = (uint8_t)((value & 0x7fu) | (value > 0x7fu ? 0x80u : 0u));
        put(to, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

/* The lowest byte first, whatever the machine. */
static void put_fixed(message *to, uint64_t bits, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) {
        uint8_t byte = (uint8_t)(bits >> 8 * i);

        put(to, &byte, 1);
    }
}

static void put_key(message *to, unsigned field, unsigned kind)
{
    put_varint(to, field << 3 | kind);
}

static void put_bytes(message *to, unsigned field, const void *bytes, size_t n)
{
    put_key(to, field, BYTES);
    put_varint(to, n);
    put(to, bytes, n);
}

static void begin_event(message *event, double wall_time, int64_t step)
{
    uint64_t bits;

    event->used = 0;
    event->full = false;
    memcpy(&bits, &wall_time, sizeof(bits));
    put_key(event, 1, EIGHT);
    put_fixed(event, bits, 8);
    if (step != 0) {
        put_key(event, 2, VARINT);
        put_varint(event, (uint64_t)step);
    }
}

static void put_scalar(message *summary, const char *tag, double value)
{
    message one = {.used = 0};
    float simple = (float)value; /* not finite stays so */
    uint32_t bits;

    memcpy(&bits, &simple, sizeof(bits));
    put_bytes(&one, 1, tag, strlen(tag));
    put_key(&one, 2, FOUR);
    put_fixed(&one, bits, 4);
    put_bytes(summary, 1, one.bytes, one.used);
}

static void drop(board_sink *sink, int code)
{
    if (sink->n_dropped++ == 0)
        sink->first_errno = code;
}

static void write_event(board_sink *sink, const message *event)
{
    message record = {.used = 0};

    put_fixed(&record, event->used, 8);
    put_fixed(&record, masked_crc(sink, record.bytes, 8), 4);
    put(&record, event->bytes, event->used);
    put_fixed(&record, masked_crc(sink, event->bytes, event->used), 4);
    if (event->full || record.full)
        drop(sink, EMSGSIZE);
    else if (write(sink->fd, record.bytes, record.used) != (ssize_t)record.used)
        drop(sink, errno != 0 ? errno : ENOSPC);
}

/* ------------------------------------------------------------------------------------------------ facts */

/* Curves of one kind share a part of the page: "loss_train" is loss/train. */
static void tag_of(const char *name, char tag[TAG_CHARS])
{
    static const char *const groups[] = {"loss_", "acc_", "return_", "entropy_"};

    snprintf(tag, TAG_CHARS, "%s", name);
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (strncmp(name, groups[i], strlen(groups[i])) == 0)
            tag[strlen(groups[i]) - 1] = '/';
}

static void take_scalars(board_sink *sink, const esper_fact *fact, double wall_time)
{
    message event, summary = {.used = 0};
    int n;
    const esper_fact_field *fields = esper_fact_fields(fact->kind, &n);
    char tag[TAG_CHARS];
    double value;

    begin_event(&event, wall_time, fact->epoch);
    for (int i = 0; i < n; i++)
        if (fields[i].in_row && esper_logs_number(fact, &fields[i], &value)) {
            tag_of(fields[i].name, tag);
            put_scalar(&summary, tag, value);
        }
    put_bytes(&event, 5, summary.bytes, summary.used);
    event.full = event.full || summary.full;
    write_event(sink, &event);
}

/* The weight of the seed in a slot. */
static void take_seed(board_sink *sink, const esper_fact *fact, double wall_time)
{
    message event, summary = {.used = 0};
    char tag[TAG_CHARS];

    begin_event(&event, wall_time, fact->epoch);
    snprintf(tag, sizeof(tag), "alpha/%s", fact->seed_epoch.slot);
    put_scalar(&summary, tag, fact->seed_epoch.alpha);
    put_bytes(&event, 5, summary.bytes, summary.used);
    write_event(sink, &event);
}

static void board_take(void *handle, const esper_fact *facts, int n)
{
    board_sink *sink = handle;

    for (int i = 0; i < n; i++) {
        double wall_time = (double)(facts[i].time_ns / 1000) / 1e6;

        if (esper_logs_take(&facts[i], sink->grows))
            take_scalars(sink, &facts[i], wall_time);
        else if (facts[i].kind == ESPER_FACT_SEED_EPOCH)
            take_seed(sink, &facts[i], wall_time);
    }
}

static esper_status board_close(void *handle)
{
    board_sink *sink = handle;
    esper_status status = ESPER_OK;

    if (sink->n_dropped > 0)
        status = ESPER_FAIL(ESPER_E_IO, "%s: %llu events lost: %s", sink->path, (unsigned long long)sink->n_dropped,
                            strerror(sink->first_errno));
    close(sink->fd);
    esper_mem_free(sink);
    return status;
}

static const esper_sink_ops board_ops = {.name = "tensorboard", .take = board_take, .close = board_close};

esper_status esper_sink_tensorboard_open(const char *dir, esper_logs_from from, esper_sink *sink_out)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {1 << 3 | VARINT,
                                    1}; /* SessionLog.status = START: what is of this step or later is void */
    board_sink *sink = esper_mem_alloc(sizeof(*sink));
    struct timespec now;
    message event;

    if (sink == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: sink", dir);
    *sink = (board_sink){.grows = from.grows};
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(sink->path, sizeof(sink->path), "%s/events.out.tfevents.%lld.%d.esper", dir, (long long)now.tv_sec,
             (int)getpid());
    sink->fd = open(sink->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (sink->fd < 0) {
        esper_status status = esper_file_fail("cannot be opened", sink->path);

        esper_mem_free(sink);
        return status;
    }
    fill_table(sink->table);
    begin_event(&event, (double)now.tv_sec, 0);
    put_bytes(&event, 3, version, strlen(version));
    write_event(sink, &event);
    if (from.resumed) {
        begin_event(&event, (double)now.tv_sec, from.epoch + 1);
        put_bytes(&event, 7, start, sizeof(start));
        write_event(sink, &event);
    }
    *sink_out = (esper_sink){&board_ops, sink};
    return ESPER_OK;
}
