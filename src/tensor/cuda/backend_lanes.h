/* Internal. Lanes in device memory, and what is launched for them.
 *
 * A lane goes to the device once, whoever launches it how often: that of a program when the program is first run, others by what
 * they hold. Programs that run together become a *group*: launches that have a lane for each network that has come to one of that kind
 * (backend_order.h). A group is remembered by the programs it was made of, and the second time it becomes a graph. */
#ifndef ESPER_TENSOR_CUDA_BACKEND_LANES_H
#define ESPER_TENSOR_CUDA_BACKEND_LANES_H

#include <stdatomic.h>

#include "device/device_cuda.h"
#include "tensor/backend.h"
#include "tensor/cuda/backend_memory.h"
#include "tensor/cuda/backend_order.h"
#include "tensor/cuda/kernels.h"

/* A kernel for one lane. Those of one kind differ in lane and blocks alone, and can share launches. */
typedef struct cuda_work {
    const esper_lane *at;     /* on the device */
    CUfunction        kernel;
    int               threads, blocks, shared;
    uint32_t          kind;
} cuda_work;

/* A launch of one lane. */
typedef struct cuda_lane {
    int       n_works;
    cuda_work works[ESPER_CUDA_MAX_LAUNCHES];
} cuda_lane;

typedef struct cuda_program {
    struct cuda_program *next; /* in its bucket */
    uint64_t   id;
    uint32_t   begins; /* at this place, but for what brings its inputs into blocks, which stands at 0 */
    int        n_works;
    cuda_work *works;  /* of all its lanes, one behind the other */
    uint32_t  *kinds;  /* (n_works) of them */
    void      *memory; /* of the device, for its lanes */
    const uint64_t *done; /* of one that was forgotten: the count of pages by which nobody has it queued any more */
    uint64_t        until;
} cuda_program;

/* What the guard wants scanned, on the device. */
typedef struct cuda_scan {
    const void *at;
    int         blocks;
} cuda_scan;

/* A launch of many lanes: those from `first` on in the group's list. */
typedef struct cuda_call {
    CUfunction kernel;
    int        threads, blocks, shared;
    int        n_lanes;
    int        first;
} cuda_call;

typedef struct cuda_group cuda_group;

/* Something that is kept by what it holds: a lane or a scan. */
typedef struct cuda_kept {
    struct cuda_kept *next;
    uint64_t          hash;
    size_t            bytes;
    void             *copy;
    void             *memory; /* of the device */
    bool              described; /* the lane is */
    cuda_lane         lane;
    cuda_scan         scan;
} cuda_kept;

enum { CUDA_BUCKETS = 4096, CUDA_GROUPS_KEPT = 256, CUDA_KEPT_MOST = 1 << 16 };

typedef struct cuda_kernel {
    const char *name; /* the operation's own text */
    CUfunction  function;
    int         shared;  /* bytes that a block of it may have besides what it declares */
    double      seconds; /* of all its launches, and how many; while they are timed */
    int64_t     n_launches, n_lanes;
} cuda_kernel;

/* What works of one kind have in common. */
typedef struct cuda_kind {
    CUfunction kernel;
    int        threads, shared;
    int        next; /* in its bucket, as the bucket has it */
} cuda_kind;

/* What something that is handed on has come to. */
typedef struct cuda_tally {
    int64_t n_launches, n_lanes;
    double  seconds; /* of handing on */
} cuda_tally;

enum { CUDA_KIND_BUCKETS = 256, CUDA_TALLIES = 6 };

typedef struct cuda_lanes_table {
    esper_device *device;
    cuda_memory   memory;   /* of tables, and of all that the backend's callers take */
    atomic_bool   uploads;  /* tables are on their way on the device's own stream */
    CUevent       uploaded; /* behind them */
    CUstream      stream;
    cuda_kernel  *kernels;
    int           n_kernels, room_kernels;
    CUfunction    move, scan, gather;
    cuda_kind    *kinds;
    int           n_kinds, room_kinds;
    int           kind_buckets[CUDA_KIND_BUCKETS]; /* 1 + the first; 0: none */
    cuda_order    order;    /* of launches of programs that are put together */
    cuda_program *programs[CUDA_BUCKETS];
    uint32_t      first_place; /* at which a program begins: those that begin behind it are parts of networks */
    cuda_kept    *kept[CUDA_BUCKETS];
    int           n_kept;
    cuda_program *doomed; /* programs that are gone, whose memory may still be read */
    cuda_group   *groups[CUDA_BUCKETS];
    int           n_groups;
    uint64_t      clock; /* of uses of groups */
    const char   *origin; /* of the kernels that were looked up last: "embedded", or who has compiled them */
    uint64_t      hash;  /* of the kernels that are there */
    cuda_tally    tallies[CUDA_TALLIES], *tally; /* by what is handed on; of what is handed on now */
    int64_t       n_made, n_graphs; /* so far: groups, graphs */
    double        grouping; /* seconds that groups and graphs took */
    int           branches; /* of a graph; ESPER_CUDA_GRAPH=4, say */
    bool          in_line;  /* ESPER_CUDA_GRAPH=line: launches of a graph come one after the other, to see what that costs */
    int           graph_after; /* ESPER_CUDA_GRAPH_AFTER=N: a group becomes a graph at its Nth run; 0: where that pays */
    bool          timed; /* ESPER_CUDA_PROFILE=1: every launch is waited for, and what each kernel takes is printed at the end */
} cuda_lanes_table;

esper_status cuda_lanes_open(esper_device *device, CUstream stream, cuda_lanes_table *table);
void         cuda_lanes_close(cuda_lanes_table *table);

esper_status cuda_lanes_program(cuda_lanes_table *table, const esper_program *program,
                                const cuda_program **program_out);
esper_status cuda_lanes_lane(cuda_lanes_table *table, const esper_launch *launch, const esper_lane *lane,
                             const cuda_lane **lane_out);
/* `bytes` of a cuda_scan_table; it is compared with those that are there. */
esper_status cuda_lanes_scan(cuda_lanes_table *table, const void *scan_table, size_t bytes, int blocks,
                             const cuda_scan **scan_out);
/* Nobody has it queued any more when the count of pages has come so far. */
void         cuda_lanes_forget(cuda_lanes_table *table, uint64_t program, const uint64_t *done, uint64_t until);
/* Gives back what was forgotten; `all`: nothing is queued at all, and lanes by themselves go, too, when they have become many. */
void         cuda_lanes_sweep(cuda_lanes_table *table, bool all);

/* What is launched next on the stream comes behind the tables that were put on the device so far. */
esper_status cuda_lanes_await_uploads(cuda_lanes_table *table);

/* Queues programs side by side on the stream. They are put into an order that does not depend on who came first. */
esper_status cuda_lanes_run_programs(cuda_lanes_table *table, const cuda_program **programs, int n);
/* Queues lanes by themselves; those that are computed alike, together. */
esper_status cuda_lanes_run(cuda_lanes_table *table, const cuda_lane *const *lanes, int n);
esper_status cuda_lanes_run_scans(cuda_lanes_table *table, const cuda_scan *const *scans, int n);
/* Batches are gathered; the tables lie where the device reads them. */
esper_status cuda_lanes_run_gathers(cuda_lanes_table *table, const void *const *tables, int n);
/* One launch with the argument that every kernel has, filled in by the caller. */
esper_status cuda_lanes_call(cuda_lanes_table *table, const cuda_call *call, void *argument);

#endif
