/* Internal. Work on its way to the device: queues, and rounds in which queues are merged.
 *
 * All work of a backend is done by one stream of the device. The main queue hands on what it is given at once. Items of
 * esper_backend_each have a queue and a thread each: what they queue is written down on a *page*. When a thread submits its page it
 * takes a fresh one and goes on writing; when all threads have submitted one, these pages are handed on together, in a *round*:
 *
 *     thread 1   page k+1: copy  program  step  copy  program  step ─┐
 *     thread 2   page k+1: copy  program  step  copy  program  step ─┼─► copies | programs as lanes | steps as lanes | ... ─► device
 *     thread 3   page k+1: copy  program        copy  program       ─┘                                  (which is at round k)
 *
 * An event stands behind each round. Whoever wants to know what a page has brought, or needs it to write on again, waits for the event
 * of its round: one thread asks the device, the others wait for that one. So the device has the next round before it is done with this
 * one, as long as threads submit before they wait.
 *
 * In every queue the order stays as it is; entries of several queues that are of one kind are launched together, a lane for each.
 * Kernels give a lane the same bits whoever runs beside it, so who happens to come together changes nothing but the speed. */
#ifndef ESPER_TENSOR_CUDA_BACKEND_QUEUE_H
#define ESPER_TENSOR_CUDA_BACKEND_QUEUE_H

#include <pthread.h>

#include "device/cuda_module.h"
#include "tensor/backends.h"
#include "tensor/cuda/backend_lanes.h"
#include "tensor/cuda/moves.h"

enum { CUDA_STAGE_BYTES = 1 << 17, CUDA_PAGES = 4, CUDA_ROUNDS = 64 };

/* Memory of the host that the device reads and writes: what is copied in and out passes through it. */
typedef struct cuda_stage {
    struct cuda_stage *next;
    char              *memory; /* pinned */
    char              *twin;   /* as much of the device's, for what is brought there place by place; NULL: nothing was yet */
    size_t             bytes, used;
} cuda_stage;

/* In the order in which they are handed on where queues are at several of them: all meet again where a batch is gathered, whether they
 * train or validate, and whatever else they have done between two batches. */
typedef enum cuda_entry_kind {
    CUDA_MOVE,
    CUDA_PART,    /* a program that begins within a network: of a coalition, or of a seed that learns aside */
    CUDA_SCAN,
    CUDA_LANE,
    CUDA_GATHER,
    CUDA_PROGRAM, /* a whole one */
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
    const void                *batch; /* CUDA_GATHER: a cuda_gather_table, staged and on the device */
} cuda_entry;

/* What has been copied out, and waits for the host to take it where it is wanted. */
typedef struct cuda_delivery {
    void       *to;
    const void *from;
    size_t      bytes;
} cuda_delivery;

typedef struct cuda_page {
    cuda_entry    *entries;
    int            begin, end, room; /* entries begin .. end-1 are to be handed on */
    cuda_delivery *deliveries;
    int            n_deliveries, room_deliveries;
    cuda_stage    *stage, *stages; /* the one in use, and all */
    bool           used;           /* something was queued */
    uint64_t       round;          /* it was handed on in; 0: nothing of it has reached the device */
    esper_status   status;         /* what that came to */
} cuda_page;

/* Pages are numbered from 0, page n lies at n % CUDA_PAGES: n_done <= n_handed <= n_written < n_done + CUDA_PAGES. */
typedef struct cuda_queue {
    esper_backend_stream base;
    cuda_page      pages[CUDA_PAGES];
    uint64_t       n_written, n_handed, n_done; /* pages that were submitted, handed on, and done and delivered */
    cuda_page     *out;            /* that is being handed on */
    void          *scan_room;      /* in which a scan's table is put together */
    size_t         scan_bytes;
    bool           direct;         /* what is queued is handed on at once */
    double         written_from;   /* when writing went on */
    esper_status   status;         /* the first failure that nobody has been told of ... */
    char           message[256];   /* ... and what it was */
    struct cuda_queue *next; /* of a round */
} cuda_queue;

typedef struct cuda_round {
    CUevent begun, over; /* NULL: not yet */
    bool    timed;       /* both were recorded */
    int     n_stopped;   /* threads that have nothing more to hand on before it is over */
} cuda_round;

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
    pthread_mutex_t  lock;    /* of all below, and of `lanes` but for what only rounds touch */
    pthread_cond_t   turn;    /* a round was handed on, or is over */
    int              n_live, n_ready; /* threads that write; queues with a page to hand on */
    int              n_stopped;       /* of all rounds that are not over */
    bool             busy;    /* a round is being handed on */
    bool             watched; /* a thread waits for the device */
    cuda_round       rounds[CUDA_ROUNDS]; /* round n at n % CUDA_ROUNDS */
    uint64_t         n_begun, n_over;     /* rounds */
    esper_backend_figures figures;
    bool             lost;    /* the device is: nothing is queued any more */
    char             why_lost[256];
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
/* What was written so far is handed on when all others have come as far. */
esper_status cuda_queue_submit(cuda_queue *queue, uint64_t *ticket_out);
/* All that was written before that is done when it returns. */
esper_status cuda_queue_wait_for(cuda_queue *queue, uint64_t ticket);
/* All that was queued is. */
esper_status cuda_queue_wait(cuda_queue *queue);
bool         cuda_queue_is_idle(const cuda_queue *queue);

#endif
