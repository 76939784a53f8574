/* A snapshot in a file. It is written as a draft that takes the place of the older file in one move, so a reader
 * finds one or the other, whole; what a bad disk does to it afterwards, the sums tell. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/mem.h"
#include "base/status.h"
#include "guard/ring.h"

enum { FILE_VERSION = 1, BYTE_ORDER_MARK = 0x01020304 };

static const char file_magic[8] = {'E', 'S', 'P', 'R', 'I', 'N', 'G', '\n'};

typedef struct file_head {
    char     magic[8];
    uint32_t version, byte_order;
    uint64_t step, layout;
    uint64_t blob_bytes, blob_sum;
    uint64_t file_bytes;
    uint32_t n_sides, zero;
    uint64_t head_sum; /* of this with 0 here, plus that of the sides' records */
} file_head;

static uint64_t sum_of(const void *data, uint64_t bytes)
{
    return esper_scan_kernels_choose()->checksum(data, bytes, 0);
}

static uint64_t head_sum(file_head head, const ring_file_side *sides)
{
    head.head_sum = 0;
    return sum_of(&head, sizeof(head)) + 3 * sum_of(sides, head.n_sides * sizeof(*sides));
}

static uint64_t file_bytes(const ring_file_image *image, uint64_t blob_bytes)
{
    uint64_t bytes = sizeof(file_head) + image->n_sides * sizeof(ring_file_side) + blob_bytes;

    for (size_t i = 0; i < image->n_sides; i++)
        bytes += image->sides[i].bytes;
    return bytes;
}

/* ---- writing ---- */

static esper_status write_parts(esper_draft *draft, const file_head *head, const ring_file_image *image)
{
    ESPER_TRY(esper_draft_write(draft, head, sizeof(*head)));
    ESPER_TRY(esper_draft_write(draft, image->sides, image->n_sides * sizeof(*image->sides)));
    ESPER_TRY(esper_draft_write(draft, image->blob, image->blob_bytes));
    for (size_t i = 0; i < image->n_sides; i++)
        ESPER_TRY(esper_draft_write(draft, image->arenas[i], image->sides[i].bytes));
    return esper_draft_commit(draft);
}

esper_status esper_ring_file_write(const char *path, const ring_file_image *image)
{
    file_head head = {
        .version = FILE_VERSION,
        .byte_order = BYTE_ORDER_MARK,
        .step = image->step,
        .layout = image->layout,
        .blob_bytes = image->blob_bytes,
        .blob_sum = image->blob_sum,
        .file_bytes = file_bytes(image, image->blob_bytes),
        .n_sides = (uint32_t)image->n_sides,
    };
    esper_draft *draft;
    esper_status st;

    assert(image->n_sides > 0 && (image->blob != NULL || image->blob_bytes == 0));
    memcpy(head.magic, file_magic, sizeof(file_magic));
    head.head_sum = head_sum(head, image->sides);
    ESPER_TRY(esper_draft_open(path, &draft));
    st = write_parts(draft, &head, image);
    esper_draft_close(draft);
    return st;
}

/* ---- reading ---- */

typedef struct reader {
    int         fd;
    const char *path;
    uint64_t    bytes; /* of the file */
} reader;

static esper_status open_reader(const char *path, reader *reader_out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int code = errno;

    if (fd < 0)
        return ESPER_FAIL(code == ENOENT ? ESPER_E_NOTFOUND : ESPER_E_IO, "%s: cannot be opened: %s", path,
                          strerror(code));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return ESPER_FAIL(ESPER_E_IO, "%s: is no plain file", path);
    }
    *reader_out = (reader){.fd = fd, .path = path, .bytes = (uint64_t)info.st_size};
    return ESPER_OK;
}

static esper_status read_bytes(const reader *from, void *to, uint64_t bytes)
{
    char *at = to;

    while (bytes > 0) {
        ssize_t n = read(from->fd, at, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return ESPER_FAIL(ESPER_E_IO, "%s: cannot be read: %s", from->path, strerror(errno));
        if (n == 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: truncated: %llu bytes", from->path, (unsigned long long)from->bytes);
        at += n;
        bytes -= (uint64_t)n;
    }
    return ESPER_OK;
}

/* What can be told from the head alone. */
static esper_status check_kind(const reader *from, const file_head *head)
{
    if (memcmp(head->magic, file_magic, sizeof(file_magic)) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: is no snapshot of a ring", from->path);
    if (head->byte_order != BYTE_ORDER_MARK)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: was written by a machine with another order of bytes", from->path);
    if (head->version != FILE_VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: is of version %u, this library reads version %d", from->path,
                          head->version, FILE_VERSION);
    return ESPER_OK;
}

/* What it holds against what is wanted: `found` against image->sides. */
static esper_status check_contents(const reader *from, const file_head *head, const ring_file_side *found,
                                   const ring_file_image *image)
{
    if (head->head_sum != head_sum(*head, found))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: damaged: the sum of its head does not fit", from->path);
    if (head->layout != image->layout)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: holds other tensors than the ring's (names, roles, types or counts differ)", from->path);
    for (size_t i = 0; i < image->n_sides; i++)
        if (found[i].bytes != image->sides[i].bytes)
            return ESPER_FAIL(ESPER_E_FORMAT,
                              "%s: holds %llu bytes for device %d, the ring %llu: tensors were on other devices",
                              from->path, (unsigned long long)found[i].bytes, found[i].number,
                              (unsigned long long)image->sides[i].bytes);
    if (head->blob_bytes > from->bytes || head->file_bytes != file_bytes(image, head->blob_bytes))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: damaged: its lengths do not add up", from->path);
    if (from->bytes != head->file_bytes)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s: %llu bytes, %llu expected", from->path,
                          from->bytes < head->file_bytes ? "truncated" : "damaged", (unsigned long long)from->bytes,
                          (unsigned long long)head->file_bytes);
    return ESPER_OK;
}

static esper_status read_head(const reader *from, const ring_file_image *image, file_head *head, ring_file_side *found)
{
    ESPER_TRY(read_bytes(from, head, sizeof(*head)));
    ESPER_TRY(check_kind(from, head));
    if (head->n_sides != image->n_sides)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: holds tensors of %u devices, the ring has %zu", from->path,
                          head->n_sides, image->n_sides);
    ESPER_TRY(read_bytes(from, found, image->n_sides * sizeof(*found)));
    return check_contents(from, head, found, image);
}

/* Bytes whose sum is known; `what` they are. */
static esper_status read_summed(const reader *from, void *to, uint64_t bytes, uint64_t sum, const char *what)
{
    ESPER_TRY(read_bytes(from, to, bytes));
    if (sum_of(to, bytes) != sum)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: damaged: the sum of its %s does not fit", from->path, what);
    return ESPER_OK;
}

static esper_status read_image(const reader *from, ring_file_image *image, ring_file_side *found)
{
    file_head head;
    void *blob = NULL;
    esper_status st = read_head(from, image, &head, found);

    if (st == ESPER_OK && head.blob_bytes != 0) {
        blob = esper_mem_alloc(head.blob_bytes);
        st = blob == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "%s: a blob of %llu bytes", from->path,
                                       (unsigned long long)head.blob_bytes)
                          : read_summed(from, blob, head.blob_bytes, head.blob_sum, "blob");
    }
    for (size_t i = 0; st == ESPER_OK && i < image->n_sides; i++) {
        char what[48];

        snprintf(what, sizeof(what), "tensors of device %d", found[i].number);
        st = read_summed(from, image->arenas[i], found[i].bytes, found[i].sum, what);
    }
    if (st != ESPER_OK) {
        esper_mem_free(blob);
        return st;
    }
    image->step = head.step;
    image->blob = blob;
    image->blob_bytes = head.blob_bytes;
    image->blob_sum = head.blob_sum;
    return ESPER_OK;
}

esper_status esper_ring_file_look(const char *path, const ring_file_image *image, ring_file_side *sides,
                                  uint64_t *step_out)
{
    reader from = {.fd = -1};
    file_head head;
    esper_status st;

    ESPER_TRY(open_reader(path, &from));
    st = read_head(&from, image, &head, sides);
    close(from.fd);
    if (st == ESPER_OK)
        *step_out = head.step;
    return st;
}

esper_status esper_ring_file_read(const char *path, ring_file_image *image, ring_file_side *sides_out)
{
    reader from = {.fd = -1};
    esper_status st;

    ESPER_TRY(open_reader(path, &from));
    st = read_image(&from, image, sides_out);
    close(from.fd);
    return st;
}
