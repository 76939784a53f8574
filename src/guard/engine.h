/* Internal. What one device does for the guard: scan, copy out, copy in. The guard keeps one engine for each device that has
 * tensors; host and CUDA are the two kinds.
 *
 * Work is cut into chunks of elements by a rule that depends on the tensors alone (not on threads or multiprocessors); a
 * chunk's partial record is computed by one worker, and a tensor's partials are combined in order, as are tensors in their
 * groups and groups in their roles. So results are the same from run to run, and finished where the data are: nobody
 * walks over tensors afterwards. */
#ifndef ESPER_GUARD_ENGINE_H
#define ESPER_GUARD_ENGINE_H

#include <stdbool.h>

#include "device/device.h"
#include "esper.h"

/* What a pass over a part of a tensor yields. */
typedef struct esper_scan_record {
    double   sum, sum_squares; /* of finite elements, in double */
    uint64_t n_nan, n_pos_inf, n_neg_inf;
    uint64_t first_bad; /* UINT64_MAX = none */
    uint64_t n_zero, n_tiny;
    double   max_abs, min_abs; /* min over elements that are not 0; 0 when there is none */
    uint64_t checksum;
} esper_scan_record;

/* The checksum of n bytes, of which the last word is filled up with zeros: the sum, modulo 2^64, over the 8-byte
 * little-endian words v[i] of
 *
 *     t = v[i] ^ (i * 0x9E3779B97F4A7C15),  (t mod 2^32) * (t / 2^32) + t
 *
 * A sum, so that it can be taken in any order; every single flipped bit changes it. */
#define ESPER_CHECKSUM_STEP 0x9E3779B97F4A7C15u

/* One tensor as an engine sees it. */
typedef struct esper_scan_tensor {
    void             *data;
    uint64_t          count;
    esper_guard_dtype dtype;
    esper_guard_role  role;
    uint32_t          group; /* its number; all tensors of a group have one role */
} esper_scan_tensor;

/* What a scan finds of the tensors of one group, or one role, that lie on a device. The same layout on every device. */
typedef struct esper_scan_sums {
    double   sum_squares;          /* of finite elements */
    double   min_norm, max_norm;   /* over tensors with a finite norm; infinity and 0 when there is none */
    uint64_t n_nan, n_inf, n_zero; /* elements */
    uint32_t n_vanishing, n_exploding; /* tensors */
    uint32_t n_not_finite; /* tensors whose norm is not finite; they are among the exploding */
    uint32_t n_bad;        /* tensors that hold NaN or Inf */
    uint32_t first_bad;    /* the first of them, in the order of bind; UINT32_MAX = none */
    uint32_t unused;
} esper_scan_sums;

/* All that a scan found on a device. Belongs to the engine and holds until its next scan or bind. */
typedef struct esper_scan_result {
    const esper_guard_stat *stats;  /* (tensors) in the order of bind; zero for roles that were not asked for */
    const esper_scan_sums  *groups; /* (n_groups) by number; those of roles that were not asked for hold anything */
    const esper_scan_sums  *roles;  /* (ESPER_GUARD_N_ROLES) the same */
    size_t                  n_groups; /* as bind was told */
    double                  clip_factor; /* of this device's gradients; 1 without any */
    uint32_t                asked; /* roles of the request that it answers: of several graphs, the one that ran last */
    uint32_t                tag;   /* the same */
} esper_scan_result;

/* What a scan may become on a stream under capture. */
typedef enum esper_scan_capture {
    ESPER_SCAN_CAPTURE_ANY,   /* part of the graph, if there is one */
    ESPER_SCAN_CAPTURE_NEVER, /* E_UNSUPPORTED under capture ... */
    ESPER_SCAN_CAPTURE_ALWAYS /* ... and without */
} esper_scan_capture;

/* Settings of one scan. */
typedef struct esper_scan_request {
    uint32_t  roles;     /* bits */
    double    tiny;
    bool      checksum;
    double    clip_norm; /* 0 = no clipping; only when all gradients lie on this device, else the guard clips afterwards */
    uint32_t *skip_flag; /* NULL or a word on this device */
    void     *stream;
    uint32_t  tag; /* given back with the result; below 256 */
    esper_scan_capture capture;
} esper_scan_request;

typedef struct esper_scan_engine esper_scan_engine;

typedef struct esper_scan_engine_ops {
    const char *name; /* "host", "cuda" */
    esper_status (*open)(int32_t device, const esper_guard_options *options, esper_scan_engine **engine_out);
    void         (*close)(esper_scan_engine *engine);
    /* The tensors from now on, whose groups have numbers below n_groups. Takes all memory that scans will need. */
    esper_status (*bind)(esper_scan_engine *engine, const esper_scan_tensor *tensors, size_t n_tensors,
                         size_t n_groups);
    /* New addresses for the same tensors; takes no memory. */
    esper_status (*rebind)(esper_scan_engine *engine, void *const *data);
    /* Queues a scan on request->stream. */
    esper_status (*scan)(esper_scan_engine *engine, const esper_scan_request *request);
    /* Waits for it (one wait) and gives what it found. E_STATE: it is part of a graph that was not run since. */
    esper_status (*collect)(esper_scan_engine *engine, esper_scan_result *result_out);
    /* Multiplies the gradients by `factor`, queued on the stream: clipping over several devices. */
    esper_status (*scale)(esper_scan_engine *engine, double factor, void *stream);
    /* Is `memory` such that tensors of this engine may lie there? E_ARG says why not. */
    esper_status (*check)(esper_scan_engine *engine, const void *memory, uint64_t bytes);
} esper_scan_engine_ops;

struct esper_scan_engine {
    const esper_scan_engine_ops *ops;
    int32_t                 device;
};

extern const esper_scan_engine_ops esper_scan_engine_host;
extern const esper_scan_engine_ops esper_scan_engine_cuda; /* E_UNSUPPORTED with the reason where there is no CUDA */

/* Snapshots: arenas that hold all tensors of some roles one after the other, each at a multiple of 256 bytes, zero between
 * and from the end of the last one to the next multiple of 256, where the arena ends. The checksum of a copy is that of all
 * the arena's bytes, padding included; it is summed while copying, so that a byte is read once. */
typedef struct esper_copy_part {
    void    *data;   /* the live tensor */
    uint64_t bytes;
    uint64_t offset; /* in the arena, a multiple of 256 */
} esper_copy_part;

/* Host versions, over the pool (NULL: the caller alone). gather: tensors to arena; scatter: arena to tensors. The arena's padding is zero already. */
struct esper_pool;
uint64_t esper_copy_gather(struct esper_pool *pool, const esper_copy_part *parts, size_t n_parts, void *arena);
uint64_t esper_copy_scatter(struct esper_pool *pool, const esper_copy_part *parts, size_t n_parts, const void *arena);

#endif
