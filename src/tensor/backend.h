/* Internal. A backend runs launches: an operation kind, a direction, and an array of lanes.
 *
 * What esper_backend_alloc gives is the backend's own memory: an address to count from and to hand back, never to be read or
 * written. Values go in by copy_in and fill, come out by copy_out, and are changed by launches. All of these are queued on
 * a *stream*, which does them in order and may be behind the caller; streams have nothing to do with each other until they
 * are waited for. */
#ifndef ESPER_TENSOR_BACKEND_H
#define ESPER_TENSOR_BACKEND_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/pool.h"
#include "esper.h"
#include "tensor/op.h"

enum { ESPER_BACKEND_ABI = 8 };

struct esper_net;
struct esper_tensor;

typedef enum esper_direction { ESPER_FORWARD, ESPER_BACKWARD } esper_direction;

typedef struct esper_launch {
    esper_op_kind     kind;
    esper_direction   direction;
    int               variant; /* the backend's word for how it is computed, as lowering gave it to the operation */
    int               n_lanes;
    const esper_lane *lanes;
    esper_part        part;
    uint32_t          place; /* of the operation in its network: launches of several networks meet where it is equal */
} esper_launch;

/* What one network does in one direction: its launches, in order, each of one lane. */
typedef struct esper_program {
    int           n_launches;
    esper_launch *launches;
    const int    *chain; /* (n_launches) how many from this one on can be run in one go; 0: with one before it */
    double        flops; /* of a full batch */
    uint64_t      id;    /* another one whenever its launches were bound anew; 0: made for this call alone */
} esper_program;

/* A backend object begins with this; the rest is the backend's own. */
typedef struct esper_backend {
    const struct esper_backend_ops *ops;
    atomic_llong                    n_waits;    /* how often a caller has waited for a stream */
    atomic_ullong                   n_programs; /* how often a network's programs have been bound: their ids */
    esper_precision                 precision;
    bool                            has_cores; /* tensor cores: lanes are told */
} esper_backend;

/* A stream object begins with this; the rest is the backend's own. Where a stream is asked for, NULL is the one that every
 * backend has from the start, on all threads of the pool together: for the thread that owns the pool, one at a time. The
 * others are those that esper_backend_each gives: the calling thread's own, helped by threads that have nothing left to do. */
typedef struct esper_backend_stream {
    esper_backend *backend;
} esper_backend_stream;

/* What has become of a backend's time, in seconds since it was opened. Threads write down what is to be done, pages of it are handed on
 * to the device in rounds, and the device is at work or stands idle between two rounds. */
typedef struct esper_backend_figures {
    int64_t n_rounds, n_pages, n_launches, n_lanes; /* launches of kernels, and lanes of them */
    int64_t n_groups, n_graphs;                     /* sets of programs that were put together, and graphs made of them */
    double  writing, handing, waiting, grouping;    /* of all threads; of these, handing includes grouping */
    double  busy, idle;                             /* the device, as far as rounds tell */
} esper_backend_figures;

/* A piece of the host's work that has nothing to do with the others. */
typedef void (*esper_backend_item)(void *context, int item, esper_backend_stream *stream);

typedef struct esper_backend_ops {
    uint32_t    abi;  /* ESPER_BACKEND_ABI it was written for; others are refused */
    const char *name; /* "cpu": used by --backend, logs and telemetry */
    const char *about;
    esper_status (*open)(esper_pool *pool, esper_backend **be_out); /* the pool is borrowed until close */
    void (*close)(esper_backend *be);
    esper_status (*alloc)(esper_backend *be, size_t bytes, void **mem_out); /* zeroed, aligned to 64 bytes */
    void (*release)(esper_backend *be, void *mem);
    bool (*supports)(const esper_backend *be, esper_op_kind kind); /* asked while planning, never in a step */
    /* The next six may be NULL. Lowering: rewrites a network for batches of up to max_samples as this backend likes it
     * best. What it computes stays the same, and so do the numbers of its tensors; new ones come after the old. Layouts and
     * variants are words between lowering and this backend. E_UNSUPPORTED without a message: it is best as it is. */
    esper_status (*lower)(const esper_backend *be, const struct esper_net *net, int max_samples,
                          struct esper_net *lowered_out);
    /* Bytes of a tensor of that network with up to max_samples; NULL: every tensor is canonical. */
    size_t (*bytes)(const esper_backend *be, const struct esper_tensor *tensor, int max_samples);
    /* Bytes of lane->scratch for a launch of one lane, of which only shapes and settings are there. */
    size_t (*scratch)(const esper_backend *be, const esper_launch *launch, int max_samples);
    /* How many doubles of its scratch ranks are to add up between the parts of such a launch, the first of them being how
     * many values of a channel there are, and at which byte they begin; 0: it is launched whole. NULL: all are. */
    size_t (*sums)(const esper_backend *be, const esper_launch *launch, size_t *offset_out);
    /* Whether a launch of one lane can be run in one go with the one before it of the same network, a few results at a
     * time. */
    bool (*chains)(const esper_backend *be, const esper_launch *before, const esper_launch *launch);
    /* Runs the programs of several networks, which have nothing to do with each other. NULL: operations that stand at the
     * same place of several networks come as one launch with a lane for each, in turn. */
    esper_status (*enqueue_programs)(esper_backend *be, esper_backend_stream *stream, const esper_program *programs,
                                     int n_programs);
    /* The rest as told below; each may return before the work is done. */
    esper_status (*enqueue)(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch);
    esper_status (*sync)(esper_backend *be, esper_backend_stream *stream); /* asynchronous faults surface here */
    const char *(*identity)(const esper_backend *be); /* part of a run's identity: "cpu/avx2/t1a2b3c4d" */
    esper_status (*copy_in)(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes);
    esper_status (*copy_out)(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes);
    esper_status (*copy)(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes);
    esper_status (*fill)(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count);
    /* May be NULL: items run in turn, on the stream that is there from the start. */
    void (*each)(esper_backend *be, int n_items, esper_backend_item run_item, void *context);
    void *(*address)(const esper_backend *be, void *mem); /* may be NULL: memory lies where its address says */
    esper_status (*scan)(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                         const esper_guard_scan *request, uint32_t *flag);
    bool behind; /* streams may be behind the caller; false: what is queued is done when the call returns */
    /* May be NULL: this program will not be run again, whatever it kept of it. */
    void (*forget)(esper_backend *be, uint64_t program);
    /* `scan` raises the flag and leaves no report: passes and steps of a network whose flag is up (esper_pass.skip) do nothing,
     * so that who wants to know more scans what still stands there. */
    bool flags_only;
    /* The CUDA device that its memory is of, for who works on it in the backend's stead; NULL: it is the host's. */
    int (*device)(const esper_backend *be);
    /* May be NULL. The calling thread, one of `each`, is about to wait for something that is not the backend's (on), or has it. */
    void (*stand_by)(esper_backend *be, bool on);
    /* May be NULL: batches are made by the host. The picks are the host's, and may be used again when the call returns. */
    esper_status (*gather)(esper_backend *be, esper_backend_stream *stream, const esper_gather *gather,
                           const esper_pick *picks);
    /* How many items of `each` it likes to have under way at a time; NULL: as many as the pool has threads. */
    int (*width)(const esper_backend *be);
    /* Both, or NULL: nothing is begun before somebody waits. What was queued so far may begin; the ticket is how far that is. And waits
     * until that is done, and nothing that was queued later. */
    esper_status (*submit)(esper_backend *be, esper_backend_stream *stream, uint64_t *ticket_out);
    esper_status (*wait_for)(esper_backend *be, esper_backend_stream *stream, uint64_t ticket);
    /* May be NULL: nobody counts. */
    void (*figures)(esper_backend *be, esper_backend_figures *figures_out);
    /* NULL: it has FP32 alone. Before anything is planned: launches of all plans that are made later compute so. */
    esper_status (*set_precision)(esper_backend *be, esper_precision precision);
} esper_backend_ops;

/* All backends in order of preference, NULL at the end. */
const esper_backend_ops *const *esper_backend_list(void);

/* Opens the named backend; "auto" is the first of the list. */
esper_status esper_backend_open(const char *name, esper_pool *pool, esper_backend **be_out);
void         esper_backend_close(esper_backend *be);

/* Before anything is planned. E_CONFIG where it is not FP32 and the backend has nothing else. */
esper_status esper_backend_set_precision(esper_backend *be, esper_precision precision);
const char  *esper_precision_name(esper_precision precision); /* "fp32" */

/* Of 0 bytes there is NULL. */
esper_status esper_backend_alloc(esper_backend *be, size_t bytes, void **mem_out);
void         esper_backend_release(esper_backend *be, void *mem); /* NULL: nothing */
bool         esper_backend_supports(const esper_backend *be, esper_op_kind kind);
size_t       esper_backend_bytes(const esper_backend *be, const struct esper_tensor *tensor, int max_samples);
const char  *esper_backend_name(const esper_backend *be);
const char  *esper_backend_identity(const esper_backend *be);

/* Queue work. A launch's lanes, and the tables of programs, stay as they are until it is done. Of `bytes` and `count` 0 is
 * nothing to do, and no address is looked at. */
esper_status esper_backend_enqueue(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch);
/* Launch by launch where the backend has no way of its own. */
esper_status esper_backend_enqueue_programs(esper_backend *be, esper_backend_stream *stream,
                                            const esper_program *programs, int n_programs);
/* From the host, which may reuse `from` as soon as this returns. */
esper_status esper_backend_copy_in(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                   size_t bytes);
/* To the host: `to` is not to be touched until the stream has been waited for. */
esper_status esper_backend_copy_out(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                    size_t bytes);
/* From one place of the backend's memory to another, which do not overlap. */
esper_status esper_backend_copy(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                size_t bytes);
/* Sets `count` floats; 0.0f clears memory of any kind. */
esper_status esper_backend_fill(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count);

/* A guard's scan of tensors in the backend's memory. It raises the flag, a word of that memory, to the bits of what it found; while
 * the flag is up nothing is scanned, and what it was raised for stays there to be read (esper_guard_read, after a wait). What an
 * earlier scan found good and nobody has read is given up. */
esper_status esper_backend_scan(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                                const esper_guard_scan *request, uint32_t *flag);

/* Makes a batch where the backend can do so; E_UNSUPPORTED without a message where it is the host's to make. */
esper_status esper_backend_gather(esper_backend *be, esper_backend_stream *stream, const esper_gather *gather,
                                  const esper_pick *picks);
bool         esper_backend_gathers(const esper_backend *be);

/* Runs all items, each with a stream to queue its work on, on as many threads as the backend has; returns when the last is done.
 * Items do not call it, and use no other stream. */
void esper_backend_each(esper_backend *be, int n_items, esper_backend_item run_item, void *context);

/* How many items it pays to have under way at once: as many as the pool has threads, or more. */
int esper_backend_width(const esper_backend *be, const esper_pool *pool);

/* A program that will not be run again (plans tell it of theirs). */
void esper_backend_forget(esper_backend *be, uint64_t program);

/* Around a lock that threads of `each` contend for: a backend that serves all who wait together does not wait for this one. */
void esper_backend_stand_by(esper_backend *be, bool on);

/* The number of the CUDA device whose memory it has; ESPER_GUARD_HOST: it has the host's. */
int32_t esper_backend_device(const esper_backend *be);

/* Whether a scan leaves a report in the guard; else it raises the flag alone. */
bool esper_backend_reports(const esper_backend *be);

/* For who has more to queue, and reads later what came of this: what was queued so far is begun, without a wait for it. It may wait
 * for what was submitted some time ago. The ticket is good for a wait_for on this stream. A backend that knows no such thing waits
 * here, and where nobody wants a ticket (NULL) it does nothing. */
esper_status esper_backend_submit(esper_backend *be, esper_backend_stream *stream, uint64_t *ticket_out);
/* Waits until what was queued before that submit is done. */
esper_status esper_backend_wait_for(esper_backend *be, esper_backend_stream *stream, uint64_t ticket);

/* All zeros where nobody counts. */
void esper_backend_figures_get(esper_backend *be, esper_backend_figures *figures_out);

/* Waits until all that was queued on the stream is done. */
esper_status esper_backend_wait(esper_backend *be, esper_backend_stream *stream);
/* The same for the stream that is there from the start. */
esper_status esper_backend_sync(esper_backend *be);
/* How often somebody has waited, in all. */
int64_t esper_backend_waits(const esper_backend *be);

/* Whether streams may be behind the caller. Where they never are, what lies in memory may be looked at without a wait. */
bool esper_backend_is_behind(const esper_backend *be);

/* Where those find memory who work on it in the backend's stead, on its own device: the guard's scans and copies. They do so
 * only while the stream is not behind: between a wait and the next thing queued. To all others it is as closed as the memory
 * itself. */
void *esper_backend_address(const esper_backend *be, void *mem);

/* copy_out and wait: for what is read now and then. */
esper_status esper_backend_read(esper_backend *be, void *to, const void *from, size_t bytes);

#endif
