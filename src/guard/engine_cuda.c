/* The engine of a CUDA device: one launch scans all tensors (a second scales gradients, where they are to be clipped)
 * and writes what it finds straight into pinned memory, while it goes on; one event tells that all is there.
 *
 * All memory is one block on the device and one in pinned memory, taken in bind:
 *
 *     device   | tensors | blocks | nodes | counters | total | sums | partials |
 *     pinned   | tensors | blocks | nodes | mark | total | results: groups, roles | stats |
 *
 * The pinned tensors are what addresses are changed in; the device has them again before the next scan.
 *
 * A scan may be part of graphs, which are run without us. All scans, of graphs or not, use the same memory, so each waits
 * for the one before: the event `done` stands behind the last, on whatever stream. What results are of is told by the
 * mark, which every scan writes: its number, its roles and its tag. */
#include "guard/engine_cuda.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/cuda_image.h"
#include "guard/cuda_plan.h"
#include "guard/report.h"

_Static_assert(sizeof(gpu_stat) == sizeof(esper_guard_stat) && sizeof(gpu_stat) == 96, "statistics differ");
_Static_assert(offsetof(gpu_stat, first_bad) == offsetof(esper_guard_stat, first_bad), "statistics differ");
_Static_assert(offsetof(gpu_stat, norm) == offsetof(esper_guard_stat, norm), "statistics differ");
_Static_assert(offsetof(gpu_stat, min_abs) == offsetof(esper_guard_stat, min_abs), "statistics differ");
_Static_assert(offsetof(gpu_stat, norm_overflow) == offsetof(esper_guard_stat, norm_overflow), "statistics differ");
_Static_assert(sizeof(gpu_sums) == sizeof(esper_scan_sums) && sizeof(gpu_sums) == 72, "sums differ");
_Static_assert(offsetof(gpu_sums, n_zero) == offsetof(esper_scan_sums, n_zero), "sums differ");
_Static_assert(offsetof(gpu_sums, n_bad) == offsetof(esper_scan_sums, n_bad), "sums differ");
_Static_assert(offsetof(gpu_sums, first_bad) == offsetof(esper_scan_sums, first_bad), "sums differ");
_Static_assert(sizeof(gpu_mark) == 16, "a mark is written as one vector");
_Static_assert((int)GPU_N_ROLES == ESPER_GUARD_N_ROLES, "lists differ");
_Static_assert((int)GPU_F32 == ESPER_GUARD_F32 && (int)GPU_F16 == ESPER_GUARD_F16, "types differ");
_Static_assert((int)GPU_BF16 == ESPER_GUARD_BF16 && (int)GPU_F64 == ESPER_GUARD_F64, "types differ");
_Static_assert((int)GPU_N_DTYPES == ESPER_GUARD_N_DTYPES && (int)GPU_ROLE_GRAD == ESPER_GUARD_ROLE_GRAD,
               "lists differ");
_Static_assert((int)GPU_BAD_NAN_GRAD == ESPER_GUARD_BAD_NAN_GRAD && (int)GPU_BAD_INF_GRAD == ESPER_GUARD_BAD_INF_GRAD,
               "bits differ");
_Static_assert((int)GPU_BAD_NAN_STATE == ESPER_GUARD_BAD_NAN_STATE &&
                   (int)GPU_BAD_INF_STATE == ESPER_GUARD_BAD_INF_STATE,
               "bits differ");

enum { ALIGN = 256, HAS_TOTAL = 256 /* a bit of the mark's tag, beside the caller's */ };

/* Where things lie, in bytes from the start. */
typedef struct memory_layout {
    size_t tensors, blocks, nodes, tables_end; /* the same in both blocks */
    size_t arrived, gathered, n_done, n_scans, total, sums, partials, device_end;
    size_t mark, told, results, stats, pinned_end; /* in pinned memory */
} memory_layout;

typedef struct cuda_engine {
    esper_scan_engine        base;
    esper_guard_options options;
    esper_device       *device;
    esper_cuda_module  *module;
    CUfunction          scan_plain, scan_summed, scale, inject;
    CUevent             done;
    esper_cuda_plan     plan;
    memory_layout       at;
    char               *memory, *pinned;
    char               *mapped;      /* the pinned memory as the device knows it */
    bool                is_moved;    /* addresses in the pinned tensors are newer than those on the device */
    bool                is_pending;  /* queued and not collected */
    bool                is_captured; /* the latest scan was put into a graph ... */
    bool                has_graphs;  /* ... or one before it, since bind: they may run at any time */
    uint64_t            seen;        /* number of the scan that was collected last */
    uint32_t            roles, tag;  /* of the latest scan that is in no graph, for when it had nothing to do */
    uint32_t            shown;       /* roles whose statistics are not zero */
    double              tiny;        /* what the bounds below are of */
    gpu_u64             tiny_bits[GPU_N_DTYPES];
} cuda_engine;

static const uint32_t element_bytes[] = {
#define X(name, text, bytes) bytes,
    ESPER_GUARD_DTYPE_LIST(X)
#undef X
};

/* The base comes first, so that a pointer to one is a pointer to the other. */
static cuda_engine *engine_of(esper_scan_engine *engine)
{
    return (cuda_engine *)engine;
}

static const cuda_engine *const_engine_of(const esper_scan_engine *engine)
{
    return (const cuda_engine *)engine;
}

static CUdeviceptr address(const cuda_engine *self, size_t at)
{
    return (CUdeviceptr)(uintptr_t)(self->memory + at);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

/* Through the caller's allocator where there is one. */
static esper_status take_device_memory(cuda_engine *self, size_t bytes)
{
    void *memory;

    if (self->options.alloc == NULL) {
        ESPER_TRY(esper_device_alloc(self->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    } else {
        memory = self->options.alloc(self->options.alloc_context, self->base.device, bytes);
        if (memory == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "the caller's allocator gives no %zu bytes on CUDA device %d", bytes,
                              self->base.device);
        if ((uintptr_t)memory % ALIGN != 0) {
            self->options.release(self->options.alloc_context, self->base.device, memory);
            return ESPER_FAIL(ESPER_E_ARG,
                              "the caller's allocator gave %p on CUDA device %d, which is not a multiple of %d", memory,
                              self->base.device, ALIGN);
        }
    }
    self->memory = memory;
    return ESPER_OK;
}

static esper_status take_pinned_memory(cuda_engine *self, size_t bytes)
{
    void *memory;

    if (self->options.alloc == NULL) {
        ESPER_TRY(esper_device_alloc(self->device, bytes, ESPER_DEVICE_MEMORY_PINNED, &memory));
    } else {
        esper_status st;

        memory = self->options.alloc(self->options.alloc_context, ESPER_GUARD_HOST, bytes);
        if (memory == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "the caller's allocator gives no %zu bytes of host memory", bytes);
        st = esper_device_pin(self->device, memory, bytes);
        if (st != ESPER_OK) {
            self->options.release(self->options.alloc_context, ESPER_GUARD_HOST, memory);
            return st;
        }
    }
    self->pinned = memory;
    return ESPER_OK;
}

static void release_memory(cuda_engine *self)
{
    if (self->options.release == NULL) {
        esper_device_release(self->device, self->memory);
        esper_device_release(self->device, self->pinned);
    } else {
        if (self->memory != NULL)
            self->options.release(self->options.alloc_context, self->base.device, self->memory);
        if (self->pinned != NULL) {
            esper_device_unpin(self->device, self->pinned);
            self->options.release(self->options.alloc_context, ESPER_GUARD_HOST, self->pinned);
        }
    }
    self->memory = NULL;
    self->pinned = NULL;
    self->mapped = NULL;
}

static esper_status map_pinned_memory(cuda_engine *self)
{
    CUdeviceptr mapped = 0;
    esper_status st;

    ESPER_TRY(esper_cuda_enter(self->device));
    st = ESPER_CUDA(cuMemHostGetDevicePointer, &mapped, self->pinned, 0);
    esper_cuda_leave();
    self->mapped = (char *)(uintptr_t)mapped;
    return st;
}

/* Puts `bytes` at the end; gives where they begin. */
static size_t reserve(size_t *end, size_t bytes)
{
    size_t at = (*end + ALIGN - 1) / ALIGN * ALIGN;

    *end = at + bytes;
    return at;
}

static memory_layout lay_out(const esper_cuda_plan *plan)
{
    const size_t n_results = (size_t)plan->n_groups + ESPER_GUARD_N_ROLES;
    memory_layout at;
    size_t end = 0;

    at.tensors = reserve(&end, plan->n_tensors * sizeof(gpu_tensor));
    at.blocks = reserve(&end, plan->n_blocks * sizeof(gpu_block));
    at.nodes = reserve(&end, plan->n_nodes * sizeof(gpu_node));
    at.tables_end = end;
    at.mark = reserve(&end, sizeof(gpu_mark));
    at.told = reserve(&end, sizeof(gpu_total));
    at.results = reserve(&end, n_results * sizeof(gpu_sums));
    at.stats = reserve(&end, plan->n_tensors * sizeof(gpu_stat));
    at.pinned_end = end;
    end = at.tables_end;
    at.arrived = reserve(&end, plan->n_tensors * sizeof(gpu_u32));
    at.gathered = reserve(&end, plan->n_nodes * sizeof(gpu_u32));
    at.n_done = reserve(&end, sizeof(gpu_u32));
    at.n_scans = reserve(&end, sizeof(gpu_u64));
    at.total = reserve(&end, sizeof(gpu_total));
    at.sums = reserve(&end, plan->n_nodes * sizeof(gpu_sums));
    at.partials = reserve(&end, plan->n_partials * sizeof(gpu_record));
    at.device_end = end;
    return at;
}

/* What the device writes, as the host sees it. */
static esper_guard_stat *stats_of(const cuda_engine *self)
{
    return (esper_guard_stat *)(void *)(self->pinned + self->at.stats);
}

static gpu_mark mark_of(const cuda_engine *self)
{
    return *(const gpu_mark *)(void *)(self->pinned + self->at.mark);
}

static esper_scan_sums *results_of(const cuda_engine *self)
{
    return (esper_scan_sums *)(void *)(self->pinned + self->at.results);
}

/* ------------------------------------------------------------------------------------------------------ open, close */

static esper_status find_kernels(cuda_engine *self)
{
    ESPER_TRY(esper_cuda_module_get(self->device, &esper_guard_image, &self->module));
    ESPER_TRY(esper_cuda_module_kernel(self->module, "esper_guard_scan_plain", &self->scan_plain));
    ESPER_TRY(esper_cuda_module_kernel(self->module, "esper_guard_scan_summed", &self->scan_summed));
    ESPER_TRY(esper_cuda_module_kernel(self->module, "esper_guard_scale", &self->scale));
    return esper_cuda_module_kernel(self->module, "esper_guard_inject_word", &self->inject);
}

static esper_status open_event(cuda_engine *self)
{
    esper_status st;

    ESPER_TRY(esper_cuda_enter(self->device));
    st = ESPER_CUDA(cuEventCreate, &self->done, CU_EVENT_DISABLE_TIMING); /* and not blocking: a wait is short */
    esper_cuda_leave();
    return st;
}

static void unbind(cuda_engine *self)
{
    if (self->device != NULL)
        release_memory(self);
    esper_cuda_plan_fini(&self->plan);
}

/* What is still queued may write statistics, so it is waited for. */
static void cuda_close(esper_scan_engine *engine)
{
    cuda_engine *self;

    if (engine == NULL)
        return;
    self = engine_of(engine);
    if (self->done != NULL && esper_cuda_enter(self->device) == ESPER_OK) {
        if (self->is_pending || self->has_graphs)
            (void)ESPER_CUDA_RAW(cuEventSynchronize, self->done);
        (void)ESPER_CUDA_RAW(cuEventDestroy, self->done);
        esper_cuda_leave();
    }
    unbind(self);
    esper_device_close(self->device);
    esper_mem_free(self);
}

static esper_status cuda_open(int32_t device, const esper_guard_options *options, esper_scan_engine **engine_out)
{
    cuda_engine *self = esper_mem_alloc(sizeof(*self));
    esper_status st;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "engine of CUDA device %d", device);
    self->base = (esper_scan_engine){.ops = &esper_scan_engine_cuda, .device = device};
    if (options != NULL)
        self->options = *options;
    self->tiny = -1;
    st = esper_device_open("cuda", device, &self->device);
    if (st == ESPER_OK)
        st = find_kernels(self);
    if (st == ESPER_OK)
        st = open_event(self);
    if (st != ESPER_OK) {
        cuda_close(&self->base);
        return st;
    }
    *engine_out = &self->base;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------ the tensors */

static esper_status check_address(size_t index, const void *data, uint64_t count, uint32_t dtype)
{
    if (count != 0 && data == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu of the device has elements but no address", index);
    if (count != 0 && (uintptr_t)data % element_bytes[dtype] != 0)
        return ESPER_FAIL(ESPER_E_ARG,
                          "tensor %zu of the device lies at %p, which is not a multiple of its elements' %u bytes",
                          index, data, element_bytes[dtype]);
    return ESPER_OK;
}

static esper_status check_all(const esper_scan_tensor *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        if ((unsigned)tensors[i].dtype >= ESPER_GUARD_N_DTYPES || (unsigned)tensors[i].role >= ESPER_GUARD_N_ROLES)
            return ESPER_FAIL(ESPER_E_ARG, "tensor %zu of the device: type %d, role %d are unknown", i,
                              (int)tensors[i].dtype, (int)tensors[i].role);
        ESPER_TRY(check_address(i, tensors[i].data, tensors[i].count, tensors[i].dtype));
    }
    return ESPER_OK;
}

/* A scan that nobody collected is waited for: it uses the tables. So does a graph that may be running. */
static esper_status settle(cuda_engine *self)
{
    esper_status st;

    if (!self->is_pending && !self->has_graphs)
        return ESPER_OK;
    ESPER_TRY(esper_cuda_enter(self->device));
    st = ESPER_CUDA(cuEventSynchronize, self->done);
    esper_cuda_leave();
    self->is_pending = false;
    return st;
}

/* Device memory as the first scan expects it: tables filled, all else zero. */
static esper_status upload(cuda_engine *self)
{
    CUstream stream = esper_cuda_own_stream(self->device);
    const memory_layout *at = &self->at;
    esper_status st;

    memset(self->pinned, 0, at->pinned_end);
    memcpy(self->pinned + at->tensors, self->plan.tensors, self->plan.n_tensors * sizeof(gpu_tensor));
    memcpy(self->pinned + at->blocks, self->plan.blocks, self->plan.n_blocks * sizeof(gpu_block));
    memcpy(self->pinned + at->nodes, self->plan.nodes, self->plan.n_nodes * sizeof(gpu_node));
    for (uint32_t i = 0; i < self->plan.n_groups + ESPER_GUARD_N_ROLES; i++)
        esper_scan_sums_init(&results_of(self)[i]); /* those without a tensor here stay so */
    ESPER_TRY(esper_cuda_enter(self->device));
    st = ESPER_CUDA(cuMemcpyHtoDAsync, address(self, 0), self->pinned, at->tables_end, stream);
    if (st == ESPER_OK)
        st = ESPER_CUDA(cuMemsetD8Async, address(self, at->tables_end), 0, at->device_end - at->tables_end, stream);
    if (st == ESPER_OK)
        st = ESPER_CUDA(cuStreamSynchronize, stream);
    esper_cuda_leave();
    return st;
}

static esper_status take_all(cuda_engine *self, const esper_scan_tensor *tensors, size_t n_tensors, size_t n_groups)
{
    ESPER_TRY(esper_cuda_plan_init(&self->plan, tensors, n_tensors, n_groups));
    self->at = lay_out(&self->plan);
    if (n_tensors == 0)
        return ESPER_OK;
    ESPER_TRY(take_device_memory(self, self->at.device_end));
    ESPER_TRY(take_pinned_memory(self, self->at.pinned_end));
    ESPER_TRY(map_pinned_memory(self));
    return upload(self);
}

static esper_status cuda_bind(esper_scan_engine *engine, const esper_scan_tensor *tensors, size_t n_tensors,
                              size_t n_groups)
{
    cuda_engine *self = engine_of(engine);
    esper_status st;

    ESPER_TRY(check_all(tensors, n_tensors));
    ESPER_TRY(settle(self));
    unbind(self);
    self->is_moved = false;
    self->is_captured = self->has_graphs = false;
    self->seen = 0;
    self->shown = 0;
    st = take_all(self, tensors, n_tensors, n_groups);
    if (st != ESPER_OK)
        unbind(self);
    return st;
}

static esper_status cuda_rebind(esper_scan_engine *engine, void *const *data)
{
    cuda_engine *self = engine_of(engine);
    gpu_tensor *tensors;

    if (self->plan.n_tensors == 0)
        return ESPER_OK;
    ESPER_TRY(settle(self));
    tensors = (gpu_tensor *)(void *)(self->pinned + self->at.tensors);
    for (uint32_t i = 0; i < self->plan.n_tensors; i++) {
        const gpu_tensor *tensor = &tensors[self->plan.order_of[i]];

        ESPER_TRY(check_address(i, data[i], tensor->count, tensor->dtype));
    }
    for (uint32_t i = 0; i < self->plan.n_tensors; i++)
        tensors[self->plan.order_of[i]].data = (uintptr_t)data[i];
    self->is_moved = true;
    return ESPER_OK;
}

/* --------------------------------------------------------------------------------------------------------- the scan */

/* The magnitude that has these bits. */
static double magnitude_of(int dtype, uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float value;
    double wide;

    switch (dtype) {
    case ESPER_GUARD_F16:
        return word < 0x400 ? ldexp((double)word, -24)
                            : ldexp((double)((word & 0x3ff) | 0x400), (int)(word >> 10) - 25);
    case ESPER_GUARD_F64:
        memcpy(&wide, &bits, sizeof(wide));
        return wide;
    default:
        word <<= dtype == ESPER_GUARD_BF16 ? 16 : 0;
        memcpy(&value, &word, sizeof(value));
        return (double)value;
    }
}

/* How many magnitudes lie below `tiny`: as bits are in the order of values, |x| < tiny becomes a comparison of bits. */
static uint64_t bits_below(int dtype, double tiny)
{
    static const uint64_t infinities[] = {0x7f800000, 0x7c00, 0x7f80, 0x7ff0000000000000};
    uint64_t low = 0, high = infinities[dtype];

    assert(dtype >= 0 && dtype < GPU_N_DTYPES);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (magnitude_of(dtype, middle) < tiny)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void set_tiny(cuda_engine *self, double tiny)
{
    if (tiny == self->tiny)
        return;
    for (int dtype = 0; dtype < GPU_N_DTYPES; dtype++)
        self->tiny_bits[dtype] = bits_below(dtype, tiny);
    self->tiny = tiny;
}

/* The blocks from the first role that was asked for to the last; those of roles between them end at once. */
static void find_blocks(const esper_cuda_plan *plan, uint32_t roles, uint32_t *first_out, uint32_t *n_out)
{
    uint32_t first = plan->n_blocks, end = 0;

    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        if ((roles >> role & 1) == 0 || plan->first_block[role] == plan->first_block[role + 1])
            continue;
        first = plan->first_block[role] < first ? plan->first_block[role] : first;
        end = plan->first_block[role + 1];
    }
    *first_out = first;
    *n_out = end > first ? end - first : 0;
}

/* How many of the roles have tensors here. */
static uint32_t count_roles(const esper_cuda_plan *plan, uint32_t roles)
{
    uint32_t n = 0;

    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        n += (roles >> role & 1) != 0 && plan->first_tensor[role] != plan->first_tensor[role + 1];
    return n;
}

static gpu_scan_args scan_args(const cuda_engine *self, const esper_scan_request *request, uint32_t first_block,
                               bool has_total)
{
    const esper_cuda_plan *plan = &self->plan;
    const memory_layout *at = &self->at;
    gpu_scan_args args = {
        .tensors = (const gpu_tensor *)(void *)(self->memory + at->tensors),
        .blocks = (const gpu_block *)(void *)(self->memory + at->blocks) + first_block,
        .nodes = (const gpu_node *)(void *)(self->memory + at->nodes),
        .partials = (gpu_record *)(void *)(self->memory + at->partials),
        .sums = (gpu_sums *)(void *)(self->memory + at->sums),
        .arrived = (gpu_u32 *)(void *)(self->memory + at->arrived),
        .gathered = (gpu_u32 *)(void *)(self->memory + at->gathered),
        .n_done = (gpu_u32 *)(void *)(self->memory + at->n_done),
        .stats = (gpu_stat *)(void *)(self->mapped + at->stats),
        .results = (gpu_sums *)(void *)(self->mapped + at->results),
        .total = has_total ? (gpu_total *)(void *)(self->memory + at->total) : NULL,
        .told = (gpu_total *)(void *)(self->mapped + at->told),
        .n_scans = (gpu_u64 *)(void *)(self->memory + at->n_scans),
        .mark = (gpu_mark *)(void *)(self->mapped + at->mark),
        .skip_flag = request->skip_flag,
        .clip_norm = request->clip_norm,
        .vanishing = self->options.vanishing,
        .exploding = self->options.exploding,
        .roles = request->roles,
        .chunk_vectors = plan->chunk_vectors,
        .first_role = plan->first_role,
        .n_roles = count_roles(plan, request->roles),
        .tag = request->tag | (has_total ? HAS_TOTAL : 0),
    };

    assert(first_block < plan->n_blocks && self->memory != NULL && self->mapped != NULL);
    memcpy(args.tiny, self->tiny_bits, sizeof(args.tiny));
    return args;
}

static esper_status launch(CUfunction kernel, uint32_t n_blocks, void *args, CUstream stream)
{
    void *parameters[] = {args};

    assert(n_blocks > 0 && kernel != NULL);
    return ESPER_CUDA(cuLaunchKernel, kernel, n_blocks, 1, 1, GPU_THREADS, 1, 1, 0, stream, parameters, NULL);
}

/* Multiplies gradients by the total's factor, or, without one, by `factor`. */
static esper_status launch_scale(cuda_engine *self, bool by_total, double factor, CUstream stream)
{
    const uint32_t first = self->plan.first_block[GPU_ROLE_GRAD], end = self->plan.first_block[GPU_ROLE_GRAD + 1];
    gpu_scale_args args = {
        .tensors = (const gpu_tensor *)(void *)(self->memory + self->at.tensors),
        .blocks = (const gpu_block *)(void *)(self->memory + self->at.blocks) + first,
        .total = by_total ? (const gpu_total *)(void *)(self->memory + self->at.total) : NULL,
        .factor = factor,
        .chunk_vectors = self->plan.chunk_vectors,
    };

    return end == first ? ESPER_OK : launch(self->scale, end - first, &args, stream);
}

static esper_status launch_scan(cuda_engine *self, const esper_scan_request *request)
{
    CUstream stream = request->stream;
    const bool clips = request->clip_norm > 0 && (request->roles >> GPU_ROLE_GRAD & 1) != 0;
    uint32_t first, n_blocks;
    gpu_scan_args args;

    find_blocks(&self->plan, request->roles, &first, &n_blocks);
    if (n_blocks == 0)
        return request->skip_flag == NULL ? ESPER_OK
                                          : ESPER_CUDA(cuMemsetD8Async, (CUdeviceptr)(uintptr_t)request->skip_flag, 0,
                                                       sizeof(uint32_t), stream);
    args = scan_args(self, request, first, clips || request->skip_flag != NULL);
    ESPER_TRY(launch(request->checksum ? self->scan_summed : self->scan_plain, n_blocks, &args, stream));
    return clips ? launch_scale(self, true, 1, stream) : ESPER_OK;
}

/* A graph replays what is queued here: it brings the addresses along each time, as they may have changed since. */
static esper_status upload_addresses(cuda_engine *self, CUstream stream)
{
    if (self->plan.n_tensors == 0 || !(self->is_moved || self->is_captured))
        return ESPER_OK;
    ESPER_TRY(ESPER_CUDA(cuMemcpyHtoDAsync, address(self, self->at.tensors), self->pinned + self->at.tensors,
                         self->plan.n_tensors * sizeof(gpu_tensor), stream));
    self->is_moved = self->is_captured;
    return ESPER_OK;
}

static esper_status check_capture(const cuda_engine *self, esper_scan_capture wanted, bool captured)
{
    if (captured && wanted == ESPER_SCAN_CAPTURE_NEVER)
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "the stream of CUDA device %d is under capture, but the scan has tensors elsewhere whose part "
            "of it cannot be captured: scan the roles of one device, or outside the graph",
            self->base.device);
    if (!captured && wanted == ESPER_SCAN_CAPTURE_ALWAYS)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "the stream of CUDA device %d is not under capture, but that of another is: capture all or "
                          "none, and do not use the graph that was begun",
                          self->base.device);
    return ESPER_OK;
}

/* Lets the scan before this one end first, whatever its stream. One in a graph cannot know what will be before it. */
static esper_status follow_last(cuda_engine *self, CUstream stream)
{
    if (self->is_captured)
        return ESPER_CUDA(cuStreamWaitEvent, stream, self->done, CU_EVENT_WAIT_EXTERNAL);
    if (self->is_pending || self->has_graphs)
        return ESPER_CUDA(cuStreamWaitEvent, stream, self->done, 0);
    return ESPER_OK;
}

/* In the device's context. Under capture the event becomes a node of the graph, so that it can be waited for outside. */
static esper_status queue_scan(cuda_engine *self, const esper_scan_request *request)
{
    CUstream stream = request->stream;
    int state = CU_STREAM_CAPTURE_STATUS_NONE;

    ESPER_TRY(ESPER_CUDA(cuStreamIsCapturing, stream, &state));
    ESPER_TRY(check_capture(self, request->capture, state != CU_STREAM_CAPTURE_STATUS_NONE));
    self->is_captured = state != CU_STREAM_CAPTURE_STATUS_NONE;
    self->has_graphs |= self->is_captured;
    ESPER_TRY(follow_last(self, stream));
    ESPER_TRY(upload_addresses(self, stream));
    ESPER_TRY(launch_scan(self, request));
    if (self->is_captured)
        return ESPER_CUDA(cuEventRecordWithFlags, self->done, stream, CU_EVENT_RECORD_EXTERNAL);
    return ESPER_CUDA(cuEventRecord, self->done, stream);
}

static esper_status cuda_scan(esper_scan_engine *engine, const esper_scan_request *request)
{
    cuda_engine *self = engine_of(engine);
    esper_status st;

    set_tiny(self, request->tiny);
    ESPER_TRY(esper_cuda_enter(self->device));
    st = queue_scan(self, request);
    esper_cuda_leave();
    if (st != ESPER_OK)
        return st;
    self->is_pending = !self->is_captured;
    self->roles = request->roles;
    self->tag = request->tag;
    return ESPER_OK;
}

/* What stands there of roles that were not asked for this time. Graphs may have shown any since. */
static void clear_stats(cuda_engine *self, uint32_t roles)
{
    const uint32_t old = (self->has_graphs ? UINT32_MAX : self->shown) & ~roles;

    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        for (uint32_t t = self->plan.first_tensor[role];
             (old >> role & 1) != 0 && t < self->plan.first_tensor[role + 1]; t++)
            stats_of(self)[self->plan.tensors[t].index] = (esper_guard_stat){0};
    self->shown = roles;
}

static esper_scan_result give_result(cuda_engine *self, const gpu_mark *mark)
{
    const esper_cuda_plan *plan = &self->plan;
    esper_scan_result result = {.clip_factor = 1, .asked = mark->roles, .tag = mark->tag & ~(uint32_t)HAS_TOTAL};

    clear_stats(self, mark->roles);
    result.stats = stats_of(self);
    result.groups = results_of(self);
    result.n_groups = plan->n_groups;
    result.roles = result.groups + plan->n_groups;
    if ((mark->tag & HAS_TOTAL) != 0)
        result.clip_factor = ((const gpu_total *)(void *)(self->pinned + self->at.told))->clip_factor;
    return result;
}

/* Everything that was queued is done: takes over what is there, if it is new. */
static esper_status take_result(cuda_engine *self, esper_scan_result *result_out)
{
    gpu_mark mark;

    if (self->plan.n_tensors == 0) {
        *result_out = (esper_scan_result){.clip_factor = 1};
        return ESPER_OK;
    }
    mark = mark_of(self);
    if (self->is_captured && mark.number == self->seen)
        return ESPER_FAIL(ESPER_E_STATE,
                          "the scan of CUDA device %d is part of a graph, of which there was no replay since the last "
                          "read: launch the graph first",
                          self->base.device);
    if (mark.number == self->seen)
        mark = (gpu_mark){.number = mark.number, .roles = self->roles, .tag = self->tag}; /* of no tensor */
    self->seen = mark.number;
    *result_out = give_result(self, &mark);
    return ESPER_OK;
}

static esper_status cuda_collect(esper_scan_engine *engine, esper_scan_result *result_out)
{
    cuda_engine *self = engine_of(engine);
    esper_status st;

    if (!self->is_pending && !self->is_captured)
        return ESPER_FAIL(ESPER_E_STATE, "no scan of CUDA device %d was launched", engine->device);
    ESPER_TRY(esper_cuda_enter(self->device));
    st = ESPER_CUDA(cuEventSynchronize, self->done);
    esper_cuda_leave();
    self->is_pending = false;
    return st == ESPER_OK ? take_result(self, result_out) : st;
}

static esper_status cuda_scale(esper_scan_engine *engine, double factor, void *stream)
{
    cuda_engine *self = engine_of(engine);
    esper_status st;

    if (self->plan.n_tensors == 0 || factor == 1)
        return ESPER_OK;
    ESPER_TRY(esper_cuda_enter(self->device));
    st = launch_scale(self, false, factor, stream);
    esper_cuda_leave();
    return st;
}

/* ------------------------------------------------------------------------------------------------------------- rest */

/* Whose memory a byte is. */
static esper_status check_byte(cuda_engine *self, const char *byte)
{
    int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    int type = 0, ordinal = -1, device = self->base.device;
    void *values[] = {&type, &ordinal};

    ESPER_TRY(ESPER_CUDA(cuPointerGetAttributes, 2, attributes, values, (CUdeviceptr)(uintptr_t)byte));
    if (type == CU_MEMORYTYPE_HOST)
        return ESPER_FAIL(ESPER_E_ARG, "%p is pinned host memory, not memory of CUDA device %d", (const void *)byte,
                          device);
    if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return ESPER_FAIL(ESPER_E_ARG, "%p is not memory of CUDA device %d: it is ordinary host memory, or nobody's",
                          (const void *)byte, device);
    if (ordinal != device)
        return ESPER_FAIL(ESPER_E_ARG, "%p is memory of CUDA device %d, not of %d", (const void *)byte, ordinal,
                          device);
    return ESPER_OK;
}

/* The first and the last byte: what lies between them may be of several pieces. */
static esper_status cuda_check(esper_scan_engine *engine, const void *memory, uint64_t bytes)
{
    cuda_engine *self = engine_of(engine);
    esper_status st;

    if (bytes == 0)
        return ESPER_OK;
    ESPER_TRY(esper_cuda_enter(self->device));
    st = check_byte(self, memory);
    if (st == ESPER_OK)
        st = check_byte(self, (const char *)memory + bytes - 1);
    esper_cuda_leave();
    return st;
}

const esper_scan_engine_ops esper_scan_engine_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .bind = cuda_bind,
    .rebind = cuda_rebind,
    .scan = cuda_scan,
    .collect = cuda_collect,
    .scale = cuda_scale,
    .check = cuda_check,
};

esper_status esper_cuda_inject(esper_scan_engine *engine, void *element, uint32_t bytes, uint64_t keep, uint64_t flip,
                               void *stream)
{
    cuda_engine *self = engine_of(engine);
    gpu_inject_args args = {.element = (uintptr_t)element, .keep = keep, .flip = flip, .bytes = bytes};
    esper_status st;

    if (engine->ops != &esper_scan_engine_cuda || (bytes != 2 && bytes != 4 && bytes != 8) ||
        (uintptr_t)element % bytes != 0)
        return ESPER_FAIL(ESPER_E_ARG, "no element of %u bytes can be at %p", bytes, element);
    ESPER_TRY(esper_cuda_enter(self->device));
    st = launch(self->inject, 1, &args, stream);
    esper_cuda_leave();
    return st;
}

bool esper_cuda_engine_captured(const esper_scan_engine *engine)
{
    return engine->ops == &esper_scan_engine_cuda && const_engine_of(engine)->is_captured;
}

uint64_t esper_cuda_engine_bytes(const esper_scan_engine *engine)
{
    return const_engine_of(engine)->plan.n_tensors == 0 ? 0 : const_engine_of(engine)->at.device_end;
}

const char *esper_cuda_engine_origin(const esper_scan_engine *engine)
{
    return esper_cuda_module_origin(const_engine_of(engine)->module);
}
