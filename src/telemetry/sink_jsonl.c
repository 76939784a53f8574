/* The JSON Lines sink. A line is composed in memory taken at open and written with one call, so that a crash loses at
 * most the line being written, and a reader following the file meets whole lines but for the one in the making. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "telemetry/fact.h"

/* Room for any event with some to spare: the longest carries a configuration of a few thousand characters. */
enum { LINE_BYTES = 65536, SCAN_BYTES = 16384 };

typedef struct jsonl_sink {
    int      fd;
    bool     is_plain;   /* a plain file: can be cut and synced; not a pipe or terminal */
    char    *path;
    char    *line;       /* (LINE_BYTES) */
    uint64_t n_dropped;
    int      first_errno; /* of the first of them; 0 = too long a line */
} jsonl_sink;

static void drop(jsonl_sink *sink, int code)
{
    if (sink->n_dropped == 0)
        sink->first_errno = code;
    sink->n_dropped++;
}

/* Writes one line or nothing: the part of a line that a full disk accepted is cut off again. */
static void write_line(jsonl_sink *sink, const char *line, size_t bytes)
{
    size_t done = 0;

    assert(bytes > 0 && line[bytes - 1] == '\n');
    while (done < bytes) {
        ssize_t n = write(sink->fd, line + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            off_t end;

            drop(sink, errno);
            end = sink->is_plain ? lseek(sink->fd, 0, SEEK_END) : -1;
            if (done > 0 && end >= (off_t)done && ftruncate(sink->fd, end - (off_t)done) != 0)
                drop(sink, errno); /* the torn line will spoil its successor */
            return;
        }
        done += (size_t)n;
    }
}

static void jsonl_take(void *handle, const esper_fact *facts, int n)
{
    jsonl_sink *sink = handle;
    esper_json json;

    for (int i = 0; i < n; i++) {
        if (!esper_fact_has_line(&facts[i]))
            continue;
        esper_json_init(&json, sink->line, LINE_BYTES - 1);
        esper_fact_write_json(&facts[i], &json);
        if (json.overflow) {
            drop(sink, 0);
            continue;
        }
        sink->line[json.used] = '\n';
        write_line(sink, sink->line, json.used + 1);
        if (facts[i].kind == ESPER_FACT_CHECKPOINT_SAVED && sink->is_plain && fdatasync(sink->fd) != 0)
            drop(sink, errno); /* what led to a checkpoint that outlasts a loss of power does, too */
    }
}

static void free_sink(jsonl_sink *sink)
{
    if (sink->fd >= 0)
        close(sink->fd);
    esper_mem_free(sink->line);
    esper_mem_free(sink->path);
    esper_mem_free(sink);
}

static esper_status jsonl_close(void *handle)
{
    jsonl_sink *sink = handle;
    esper_status status = ESPER_OK;

    if (sink->n_dropped != 0)
        status = ESPER_FAIL(ESPER_E_IO, "%s: %llu events lost: %s", sink->path, (unsigned long long)sink->n_dropped,
                            sink->first_errno != 0 ? strerror(sink->first_errno) : "longer than a line may be");
    else if (sink->is_plain && fsync(sink->fd) != 0)
        status = ESPER_FAIL(ESPER_E_IO, "%s: cannot be synced: %s", sink->path, strerror(errno));
    free_sink(sink);
    return status;
}

static const esper_sink_ops jsonl_ops = {.name = "jsonl", .take = jsonl_take, .close = jsonl_close};

/* The offset behind the last of the whole lines at the beginning of the file; -1 when it cannot be read. When the power fails, what
 * was written but not synced may be there in part, with zeros for the rest. */
static off_t end_of_lines(int fd)
{
    char part[SCAN_BYTES], last = '\n';
    off_t at = 0, end = 0;

    for (;;) {
        ssize_t n = pread(fd, part, sizeof(part), at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -1 : end;
        for (ssize_t i = 0; i < n; i++) {
            bool begins = last == '\n', ends = part[i] == '\n';

            if ((begins && part[i] != '{') || (ends && last != '}') || (!ends && (unsigned char)part[i] < ' '))
                return end;
            if (ends)
                end = at + i + 1;
            last = part[i];
        }
        at += n;
    }
}

/* Leaves the file with whole lines only. */
static esper_status open_file(jsonl_sink *sink, bool append)
{
    int flags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | (append ? 0 : O_TRUNC);
    struct stat info;
    off_t end;

    sink->fd = open(sink->path, flags, 0666);
    if (sink->fd < 0 || fstat(sink->fd, &info) != 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be opened: %s", sink->path, strerror(errno));
    sink->is_plain = S_ISREG(info.st_mode);
    if (!sink->is_plain)
        return ESPER_OK;
    end = end_of_lines(sink->fd);
    if (end < 0 || (end != info.st_size && ftruncate(sink->fd, end) != 0))
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be appended to: %s", sink->path, strerror(errno));
    return ESPER_OK;
}

esper_status esper_sink_jsonl_open(const char *path, bool append, esper_sink *sink_out)
{
    jsonl_sink *sink = esper_mem_alloc(sizeof(*sink));
    esper_status st;

    if (sink == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "events to %s", path);
    sink->fd = -1;
    sink->path = esper_mem_strdup(path);
    sink->line = esper_mem_alloc(LINE_BYTES);
    if (sink->path == NULL || sink->line == NULL)
        st = ESPER_FAIL(ESPER_E_NOMEM, "events to %s", path);
    else
        st = open_file(sink, append);
    if (st != ESPER_OK) {
        free_sink(sink);
        return st;
    }
    *sink_out = (esper_sink){.ops = &jsonl_ops, .handle = sink};
    return ESPER_OK;
}
