/* What fuzz targets share: bytes as a file, and nothing left behind. */
#ifndef ESPER_FUZZ_FUZZ_H
#define ESPER_FUZZ_FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "esper.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static inline void fuzz_must(int condition)
{
    if (!condition)
        abort();
}

/* A failure has words. */
static inline void fuzz_must_say(esper_status status)
{
    fuzz_must(status == ESPER_OK || esper_last_error()[0] != '\0');
}

static inline void fuzz_must_be_free(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    fuzz_must(stats.n_live == 0);
}

/* A path of that name in memory, of this process alone; the same one each time. */
static inline const char *fuzz_path(const char *name, char path[96])
{
    char dir[64];

    snprintf(dir, sizeof(dir), "%s/esper-fuzz-%ld", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
             (long)getpid());
    mkdir(dir, 0700);
    snprintf(path, 96, "%s/%s", dir, name);
    return path;
}

/* The file and its directory are gone again. */
static inline void fuzz_remove(const char *path)
{
    char dir[96];

    unlink(path);
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
    rmdir(dir);
}

static inline void fuzz_write(const char *path, const uint8_t *bytes, size_t n_bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    fuzz_must(fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
    close(fd);
}

#endif
