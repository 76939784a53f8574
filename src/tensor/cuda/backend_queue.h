/* Internal. Work on its way to the device: queues, and rounds in which queues that wait are merged.
 *
 * All work of a backend is done by one stream of the device. The main queue hands on what it is given at once. Items of
 * esper_backend_each have a queue and a thread each: what they queue is written down, and when a thread waits, all who wait
 * are served together, in a *round*:
 *
 *     thread 1   copy  program  step  copy  program  step  wait ─┐
 *     thread 2   copy  program  step  copy  program  step  wait ─┼─► copies | programs as lanes | steps as lanes | ... ─► device
 *     thread 3   copy  program        copy  program        wait ─┘
 *
 * In every queue the order stays as it is; entries of several queues that are of one kind are launched together, a lane for each.
 * Kernels give a lane the same bits whoever runs beside it, so who happens to wait together changes nothing but the speed. */
#ifndef ESPER_TENSOR_CUDA_BACKEND_QUEUE_H
#define ESPER_TENSOR_CUDA_BACKEND_QUEUE_H

#include <pthread.h>

#include "device/cuda_module.h"
#include "tensor/backends.h"
#include "tensor/cuda/backend_lanes.h"
#include "tensor/cuda/moves.h"

enum { CUDA_STAGE_BYTES = 1 << 20 };

/* Memory of the host that the device reads and writes: what is copied in and out passes through it. */
typedef struct cuda_stage {
    struct cuda_stage *next;
    char              *memory; /* pinned */
    size_t             bytes, used;
} cuda_stage;

typedef enum cuda_entry_kind {
    CUDA_MOVE,
    CUDA_GATHER,
    CUDA_SCAN,
    CUDA_LANE,
    CUDA_PROGRAM,
    CUDA_NOTHING
} cuda_entry_kind;

/* Something to do. */
typedef struct cuda_entry {
    cuda_entry_kind kind;
    int             n;       /* entries that are launched together, from this one on */
    int             op;      /* CUDA_LANE: its esper_op_kind */
    const struct cuda_lane    *lane;
    const struct cuda_program *program;
    cuda_move       move;
    const struct cuda_scan    *scan;
    const void                *batch; /* CUDA_GATHER: a cuda_gather_table, staged */
} cuda_entry;

/* What has been copied out, and waits for the host to take it where it is wanted. */
typedef struct cuda_delivery {
    void       *to;
    const void *from;
    size_t      bytes;
} cuda_delivery;

typedef struct cuda_queue {
    esper_backend_stream base;
    cuda_entry    *entries;
    int            begin, end, room; /* entries begin .. end-1 are to be done */
    cuda_delivery *deliveries;
    int            n_deliveries, room_deliveries;
    cuda_stage    *stage, *stages; /* the one in use, and all */
    void          *scan_room;      /* in which a scan's table is put together */
    size_t         scan_bytes;
    bool           direct;         /* what is queued is handed on at once */
    bool           served;         /* the round that it waited for is over ... */
    esper_status   status;         /* ... and came to this */
    char           message[256];
    struct cuda_queue *next; /* of those that wait */
} cuda_queue;

typedef struct cuda_backend {
    esper_backend    base;
    esper_device    *device;
    esper_stream    *stream;  /* on which everything is done */
    CUstream         handle;  /* of it */
    char             identity[48];
    cuda_lanes_table lanes;   /* of everything that is launched */
    cuda_queue       main;
    cuda_queue     **queues;  /* (n_queues) of threads of `each`, kept for the next time */
    int              n_queues;
    const void     **together; /* (room_together) entries that are handed on together */
    int              room_together;
    pthread_mutex_t  lock;    /* of all below, and of `lanes` */
    pthread_cond_t   turn;    /* a round is over */
    cuda_queue      *waiting; /* queues whose threads wait for a round */
    int              n_live, n_waiting;
    bool             busy;    /* a round is under way */
    double           seconds_handing, seconds_waiting; /* in rounds: before the device has all, and until it is done */
    int64_t          n_rounds, n_served;
    bool             lost;    /* the device is: nothing is queued any more */
} cuda_backend;

void cuda_queue_init(cuda_queue *queue, cuda_backend *self, bool direct);
void cuda_queue_fini(cuda_queue *queue);

esper_status cuda_queue_launch(cuda_queue *queue, const esper_launch *launch);
esper_status cuda_queue_programs(cuda_queue *queue, const esper_program *programs, int n_programs);
esper_status cuda_queue_copy_in(cuda_queue *queue, void *to, const void *from, size_t bytes);
esper_status cuda_queue_copy_out(cuda_queue *queue, void *to, const void *from, size_t bytes);
esper_status cuda_queue_copy(cuda_queue *queue, void *to, const void *from, size_t bytes);
esper_status cuda_queue_fill(cuda_queue *queue, void *to, float value, size_t count);
esper_status cuda_queue_scan(cuda_queue *queue, esper_guard *guard, uint32_t roles, uint32_t *flag);
esper_status cuda_queue_gather(cuda_queue *queue, const esper_gather *gather, const esper_pick *picks);
/* All that was queued is done when it returns. */
esper_status cuda_queue_wait(cuda_queue *queue);

#endif
