/* Internal to tests/data. A scratch directory to be in, files made by hand, and statuses that print what they say. */
#ifndef ESPER_TESTS_DATA_HELPERS_H
#define ESPER_TESTS_DATA_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "esper.h"

/* ---------------------------------------------------------------- statuses */

#define assert_ok(call)                                                                                        \
    do {                                                                                                       \
        esper_status status_ = (call);                                                                         \
        if (status_ != ESPER_OK)                                                                               \
            fail_msg("%s: %s: %s", #call, esper_status_name(status_), esper_last_error());                     \
    } while (0)

/* The call must fail with this status, and say these words. */
#define assert_fails(call, wanted, words)                                                                      \
    do {                                                                                                       \
        esper_status status_ = (call);                                                                         \
        if (status_ != (wanted))                                                                               \
            fail_msg("%s: got %s (%s), wanted %s", #call, esper_status_name(status_),                          \
                     status_ == ESPER_OK ? "" : esper_last_error(), esper_status_name(wanted));                \
        if (strstr(esper_last_error(), (words)) == NULL)                                                       \
            fail_msg("%s: said \"%s\", wanted \"%s\" in it", #call, esper_last_error(), (words));              \
    } while (0)

static inline uint64_t blocks_live(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

static inline uint64_t bytes_live(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.live_bytes;
}

/* ---------------------------------------------------------------- scratch directory */

static char scratch_name[] = "scratch-XXXXXX";

static inline int scratch_enter(void **state)
{
    (void)state;
    if (mkdtemp(scratch_name) == NULL || chmod(scratch_name, 0755) != 0 || chdir(scratch_name) != 0)
        return -1;
    return 0;
}

static inline int scratch_remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline int scratch_leave(void **state)
{
    (void)state;
    return chdir("..") == 0 ? nftw(scratch_name, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS) : -1;
}

/* ---------------------------------------------------------------- files */

static inline void make_dir(const char *path)
{
    if (mkdir(path, 0755) != 0)
        fail_msg("mkdir %s", path);
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(bytes, 1, n, file) != n || fclose(file) != 0)
        fail_msg("cannot write %s", path);
}

static inline void write_gzip(const char *path, const void *bytes, size_t n)
{
    gzFile file = gzopen(path, "wb");

    if (file == NULL || gzwrite(file, bytes, (unsigned)n) != (int)n || gzclose(file) != Z_OK)
        fail_msg("cannot write %s", path);
}

/* The contents, up to `room` bytes; returns how many there are. */
static inline size_t read_file(const char *path, void *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    size_t n;

    if (file == NULL)
        fail_msg("cannot read %s", path);
    n = fread(bytes, 1, room, file);
    fclose(file);
    return n;
}

static inline int count_entries(const char *dir)
{
    DIR *handle = opendir(dir);
    int n = 0;

    assert_non_null(handle);
    while (readdir(handle) != NULL)
        n++;
    closedir(handle);
    return n - 2;
}

/* An IDX file of images (dims > 1) or labels in `bytes`; returns its size. Contents come from `values`. */
static inline size_t make_idx(uint8_t *bytes, int rank, const uint32_t *dims, const uint8_t *values, size_t n_values)
{
    size_t at = 4;

    memcpy(bytes, (uint8_t[]){0, 0, 8, (uint8_t)rank}, 4);
    for (int d = 0; d < rank; d++)
        for (int shift = 24; shift >= 0; shift -= 8)
            bytes[at++] = (uint8_t)(dims[d] >> shift);
    memcpy(bytes + at, values, n_values);
    return at + n_values;
}

#endif
