/* Internal. The allocation border: every byte the engine takes from the heap passes here and is counted. Three things
 * stay outside: the trees jansson makes of a safetensors header, while that file is open (data/safetensors.h), and of a
 * policy program's answer or a line of a decision log, while it is read (policy/command.c, grow/decision_log_read.c);
 * and what SQLite takes on behalf of a store, on its writer's thread (telemetry/store.h).
 *
 * Counters are of the process, not of a handle, so that "no allocation inside a step" and "peak as predicted" can be
 * proven for everything at once; they never decide anything. */
#ifndef ESPER_BASE_MEM_H
#define ESPER_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed and aligned to 64 bytes. NULL when memory is out, and for 0 bytes. */
void *esper_mem_alloc(size_t bytes);

/* The block with its contents in a size of `bytes`, new bytes zeroed; NULL when memory is out (the block then stays). */
void *esper_mem_grow(void *block, size_t bytes);

/* A copy of a string. */
char *esper_mem_strdup(const char *text);

/* NULL is fine. */
void esper_mem_free(void *block);

/* Hands what was freed back to the system, as far as it lies in whole pages. The C library does so by itself only at the end of its
 * heaps, and small blocks that a thread keeps at hand for its next use hold that end in place. It takes milliseconds: for who has
 * just freed a lot, and goes on for long. */
void esper_mem_give_back(void);

typedef struct esper_mem_stats {
    uint64_t n_allocs;   /* calls that took memory since the process began */
    uint64_t n_live;     /* blocks not yet freed */
    uint64_t live_bytes; /* bytes asked for and not yet freed */
    uint64_t peak_bytes; /* largest live_bytes since the last esper_mem_reset_peak */
} esper_mem_stats;

void esper_mem_stats_get(esper_mem_stats *stats_out);
void esper_mem_reset_peak(void);

/* For tests: the nth allocation from now (1 = the next) fails, and only that one. 0 turns it off. */
void esper_mem_fail_at(uint64_t nth);

#endif
