/* The CSV sink: a row for each epoch, written with one call when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "telemetry/logs.h"

enum { LINE_BYTES = 4096, MOST_BYTES = 1 << 28 };

typedef struct csv_sink {
    int fd;
    bool grows, has_head;
    char *path;
    uint64_t n_dropped;
    int first_errno;
} csv_sink;

typedef struct row {
    char text[LINE_BYTES];
    size_t used;
} row;

static void add(row *line, const char *text)
{
    size_t n = strlen(text);

    if (n >= sizeof(line->text) - line->used)
        n = sizeof(line->text) - line->used - 1; /* all of ours fit */
    memcpy(line->text + line->used, text, n);
    line->used += n;
}

/* A part of a row that a full disk took is left: the next one would be spoilt, so a newline goes before it. */
static void write_row(csv_sink *sink, row *line)
{
    add(line, "\n");
    if (write(sink->fd, line->text, line->used) == (ssize_t)line->used)
        return;
    if (sink->n_dropped++ == 0)
        sink->first_errno = errno != 0 ? errno : ENOSPC;
}

static bool is_column(const esper_fact_field *field)
{
    return field->in_row && (field->kind == ESPER_FACT_FIELD_INT || field->kind == ESPER_FACT_FIELD_REAL);
}

static void write_head(csv_sink *sink, esper_fact_kind kind)
{
    row line = {.used = 0};
    int n;
    const esper_fact_field *fields = esper_fact_fields(kind, &n);

    add(&line, "epoch,step,time");
    for (int i = 0; i < n; i++)
        if (is_column(&fields[i])) {
            add(&line, ",");
            add(&line, fields[i].name);
        }
    write_row(sink, &line);
    sink->has_head = true;
}

static void put_number(row *line, double value)
{
    char text[ESPER_NUMBER_CHARS];

    if (isfinite(value))
        esper_number_write_real(value, text);
    else
        snprintf(text, sizeof(text), "%s", isnan(value) ? "nan" : value > 0.0 ? "inf" : "-inf");
    add(line, text);
}

static void csv_take(void *handle, const esper_fact *facts, int n)
{
    csv_sink *sink = handle;

    for (int i = 0; i < n; i++) {
        row line = {.used = 0};
        const esper_fact_field *fields;
        char text[64];
        int n_fields;

        if (!esper_logs_take(&facts[i], sink->grows))
            continue;
        if (!sink->has_head)
            write_head(sink, facts[i].kind);
        fields = esper_fact_fields(facts[i].kind, &n_fields);
        snprintf(text, sizeof(text), "%" PRId64 ",%" PRId64 ",", facts[i].epoch, facts[i].step);
        add(&line, text);
        put_number(&line, (double)(facts[i].time_ns / 1000) / 1e6);
        for (int k = 0; k < n_fields; k++) {
            double value;

            if (!is_column(&fields[k]))
                continue;
            add(&line, ",");
            if (esper_logs_number(&facts[i], &fields[k], &value))
                put_number(&line, value);
        }
        write_row(sink, &line);
    }
}

static esper_status csv_close(void *handle)
{
    csv_sink *sink = handle;
    esper_status status = ESPER_OK;

    if (sink->n_dropped > 0)
        status = ESPER_FAIL(ESPER_E_IO, "%s: %llu rows lost: %s", sink->path, (unsigned long long)sink->n_dropped,
                            strerror(sink->first_errno));
    close(sink->fd);
    esper_mem_free(sink->path);
    esper_mem_free(sink);
    return status;
}

static const esper_sink_ops csv_ops = {.name = "csv", .take = csv_take, .close = csv_close};

/* Cuts off rows of epochs that the run goes back before, and what a crash has left of one. */
static esper_status cut_back(const char *path, int fd, int64_t epoch, bool *has_head_out)
{
    char *text = NULL;
    size_t bytes = 0, kept = 0;
    esper_status status = esper_file_read(path, MOST_BYTES, &text, &bytes);

    if (status != ESPER_OK)
        return status;
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        char *behind;
        long long row_epoch = end != NULL ? strtoll(text + at, &behind, 10) : 0;

        if (end == NULL || (at > 0 && (*behind != ',' || row_epoch > epoch)))
            break;
        kept = at = (size_t)(end - text) + 1;
    }
    esper_mem_free(text);
    *has_head_out = kept > 0;
    return ftruncate(fd, (off_t)kept) == 0 ? ESPER_OK : esper_file_fail("cannot be cut", path);
}

esper_status esper_sink_csv_open(const char *path, esper_logs_from from, esper_sink *sink_out)
{
    csv_sink *sink = esper_mem_alloc(sizeof(*sink));
    esper_status status = ESPER_OK;

    if (sink == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: sink", path);
    *sink = (csv_sink){.grows = from.grows, .path = esper_mem_strdup(path)};
    sink->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | (from.resumed ? 0 : O_TRUNC), 0666);
    if (sink->path == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "%s: sink", path);
    else if (sink->fd < 0)
        status = esper_file_fail("cannot be opened", path);
    else if (from.resumed)
        status = cut_back(path, sink->fd, from.epoch, &sink->has_head);
    if (status != ESPER_OK) {
        if (sink->fd >= 0)
            close(sink->fd);
        esper_mem_free(sink->path);
        esper_mem_free(sink);
        return status;
    }
    *sink_out = (esper_sink){&csv_ops, sink};
    return ESPER_OK;
}
