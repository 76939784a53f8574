/* Internal. A backend runs launches: an operation kind, a direction, and an array of lanes. */
#ifndef ESPER_TENSOR_BACKEND_H
#define ESPER_TENSOR_BACKEND_H

#include <stddef.h>

#include "base/pool.h"
#include "esper.h"
#include "tensor/op.h"

enum { ESPER_BACKEND_ABI = 4 };

struct esper_net;
struct esper_tensor;

typedef enum esper_direction { ESPER_FORWARD, ESPER_BACKWARD } esper_direction;

typedef struct esper_launch {
    esper_op_kind     kind;
    esper_direction   direction;
    int               variant; /* the backend's word for how it is computed, as lowering gave it to the operation */
    int               n_lanes;
    const esper_lane *lanes;
} esper_launch;

/* What one network does in one direction: its launches, in order, each of one lane. */
typedef struct esper_program {
    int           n_launches;
    esper_launch *launches;
    int          *chain; /* (n_launches) how many from this one on can be run in one go; 0: with one before it */
    double        flops; /* of a full batch */
    bool          meets; /* it may meet other ranks on its way: to be run by the caller, after the programs before it */
} esper_program;

/* A backend object begins with this; the rest is the backend's own. */
typedef struct esper_backend {
    const struct esper_backend_ops *ops;
} esper_backend;

typedef struct esper_backend_ops {
    uint32_t    abi;  /* ESPER_BACKEND_ABI it was written for; others are refused */
    const char *name; /* "cpu": used by --backend, logs and telemetry */
    const char *about;
    esper_status (*open)(esper_pool *pool, esper_backend **be_out); /* the pool is borrowed until close */
    void (*close)(esper_backend *be);
    esper_status (*alloc)(esper_backend *be, size_t bytes, void **mem_out); /* zeroed, aligned to 64 bytes */
    void (*release)(esper_backend *be, void *mem);
    bool (*supports)(const esper_backend *be, esper_op_kind kind); /* asked while planning, never in a step */
    /* The next five may be NULL. Lowering: rewrites a network for batches of up to max_samples as this backend likes it
     * best. What it computes stays the same, and so do the numbers of its tensors; new ones come after the old. Layouts and
     * variants are words between lowering and this backend. E_UNSUPPORTED without a message: it is best as it is. */
    esper_status (*lower)(const esper_backend *be, const struct esper_net *net, int max_samples,
                          struct esper_net *lowered_out);
    /* Bytes of a tensor of that network with up to max_samples; NULL: every tensor is canonical. */
    size_t (*bytes)(const esper_backend *be, const struct esper_tensor *tensor, int max_samples);
    /* Bytes of lane->scratch for a launch of one lane, of which only shapes and settings are there. */
    size_t (*scratch)(const esper_backend *be, const esper_launch *launch, int max_samples);
    /* Whether a launch of one lane can be run in one go with the one before it of the same network, a few results at a
     * time. */
    bool (*chains)(const esper_backend *be, const esper_launch *before, const esper_launch *launch);
    /* Runs the programs of several networks, which have nothing to do with each other. NULL: operations that stand at the
     * same place of several networks come as one launch with a lane for each, in turn. */
    esper_status (*enqueue_programs)(esper_backend *be, const esper_program *programs, int n_programs);
    esper_status (*enqueue)(esper_backend *be, const esper_launch *launch); /* may return before the work is done */
    esper_status (*sync)(esper_backend *be);              /* waits; asynchronous faults surface here */
    const char *(*identity)(const esper_backend *be);     /* part of a run's identity: "cpu/avx2/t1a2b3c4d" */
} esper_backend_ops;

/* All backends in order of preference, NULL at the end. */
const esper_backend_ops *const *esper_backend_list(void);

/* Opens the named backend; "auto" is the first of the list. */
esper_status esper_backend_open(const char *name, esper_pool *pool, esper_backend **be_out);
void         esper_backend_close(esper_backend *be);

esper_status esper_backend_alloc(esper_backend *be, size_t bytes, void **mem_out);
void         esper_backend_release(esper_backend *be, void *mem);
bool         esper_backend_supports(const esper_backend *be, esper_op_kind kind);
size_t       esper_backend_bytes(const esper_backend *be, const struct esper_tensor *tensor, int max_samples);
esper_status esper_backend_enqueue(esper_backend *be, const esper_launch *launch);
esper_status esper_backend_sync(esper_backend *be);
const char  *esper_backend_name(const esper_backend *be);
const char  *esper_backend_identity(const esper_backend *be);

#endif
