/* Internal. The host's kernels over plain memory: scan, scale, sum, copy. One table for each instruction set; all of
 * them give the same bits (scan_kernels.inc says why), so a set is chosen for its speed alone.
 *
 * Data may lie at any address. Kernels expect the default floating-point environment (no flushing of denormals). */
#ifndef ESPER_GUARD_SCAN_KERNELS_H
#define ESPER_GUARD_SCAN_KERNELS_H

#include <stdbool.h>

#include "guard/engine.h"

/* Elements are taken in blocks of this many; a scan that is one part of a tensor begins at a multiple of it. */
enum { ESPER_SCAN_BLOCK = 2048 };

/* What a kernel is told besides the data. */
typedef struct esper_scan_settings {
    uint32_t tiny_bits; /* |x| < tiny, for what fits into a float: its bits without the sign are below this */
    double   tiny;      /* the same for float64 */
    bool     checksum;
} esper_scan_settings;

/* Scans n elements of a tensor from element `first` on; `data` is the address of that element. The checksum is this
 * part's share of the tensor's. */
typedef void (*esper_scan_run)(const void *data, uint64_t first, uint64_t n, const esper_scan_settings *settings,
                               esper_scan_record *record_out);

/* Multiplies n elements by a factor, rounded to the nearest. */
typedef void (*esper_scale_run)(void *data, uint64_t n, double factor);

typedef struct esper_scan_kernels {
    const char     *name; /* "avx2" */
    esper_scan_run  scan[ESPER_GUARD_N_DTYPES];
    esper_scale_run scale[ESPER_GUARD_N_DTYPES];
    /* The share of `bytes` from word `first_word` on in the checksum of something larger. */
    uint64_t (*checksum)(const void *data, uint64_t bytes, uint64_t first_word);
    /* The same while copying. past_cache: the copy is too large for the caches to be of use, so it goes around them. */
    uint64_t (*copy)(void *to, const void *from, uint64_t bytes, uint64_t first_word, bool past_cache);
} esper_scan_kernels;

extern const esper_scan_kernels esper_scan_kernels_portable;
#if defined(__x86_64__)
extern const esper_scan_kernels esper_scan_kernels_avx2;
extern const esper_scan_kernels esper_scan_kernels_avx512;
#endif

/* The fastest set this processor runs, or the one that the environment variable ESPER_KERNELS names; NULL when there is
 * no such set or the processor cannot run it. */
const esper_scan_kernels *esper_scan_kernels_choose(void);

/* A set by its name, under the same conditions. */
const esper_scan_kernels *esper_scan_kernels_find(const char *name);

/* Settings for a limit of `tiny`, which is not negative. */
esper_scan_settings esper_scan_settings_make(double tiny, bool checksum);

/* The record of two adjoining parts, `next` being the later one. */
void esper_scan_record_add(esper_scan_record *record, const esper_scan_record *next);

/* The size of an element in bytes. */
size_t esper_guard_dtype_bytes(esper_guard_dtype dtype);

#endif
