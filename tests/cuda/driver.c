/* For programs of tests that run on the real cuda backend (driver=also): a driver made of the host below it, or, with
 * ESPER_TEST_GPU=1 in the environment, the machine's own. The guard's kernels run as guard/emulated_cuda.h has them, those of
 * tensor/cuda/ as host_cuda_run.h has them, behind all that was queued before.
 *
 * A lock makes the driver one thread's at a time: that is what its emulation is written for.
 *
 * For scripts, which start the whole program over it (PROGRAM_ON_DRIVER): ESPER_TEST_CUDA_LOST=N:RESULT loses the device at the Nth
 * call, ESPER_TEST_CUDA_MEMORY=BYTES gives it so much memory, and with ESPER_TEST_CUDA_DRY=1 it computes nothing: what is left of the
 * time is what the host takes. */
#include <pthread.h>

#include "cuda/host_cuda_run.h"
#include "guard/emulated_cuda.h"
#include "support/cuda_driver.h"
#include "tensor/backends.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/moves.h"

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_syncs, n_event_syncs, n_idle_waits, n_allocations;
static bool is_real;

/* How much work had been queued when an event was recorded. Under the lock. */
static struct {
    CUevent  event;
    uint64_t mark;
} marks[1024];
static int n_marks;
static uint64_t n_queued;

static int find_mark(CUevent event)
{
    int i = 0;

    while (i < n_marks && marks[i].event != event)
        i++;
    return i;
}
static atomic_int n_launches;

/* A name of a kernel of tensor/cuda/: what such functions are. */
typedef struct host_function {
    char name[64];
} host_function;

static host_function host_functions[512];
static int n_host_functions;

static CUresult find_host_function(CUfunction *function, const char *name)
{
    for (int i = 0; i < n_host_functions; i++)
        if (strcmp(host_functions[i].name, name) == 0) {
            *function = (CUfunction)(void *)&host_functions[i];
            return CUDA_SUCCESS;
        }
    if (!host_cuda_has(name))
        return 500;
    snprintf(host_functions[n_host_functions].name, sizeof(host_functions->name), "%s", name);
    *function = (CUfunction)(void *)&host_functions[n_host_functions++];
    return CUDA_SUCCESS;
}

static bool is_host_function(CUfunction function)
{
    return (host_function *)(void *)function >= host_functions &&
           (host_function *)(void *)function < host_functions + n_host_functions;
}

/* ------------------------------------------------------------------------------------------------ one at a time */

/* A device that is lost. What gives something back does so nevertheless: the host's memory is behind it here. */
static uint64_t n_calls, lost_at; /* 0: it is not to be */
static CUresult lost_with;

static bool is_lost(void)
{
    return ++n_calls >= lost_at && lost_at != 0;
}

#define ANSWERED(call)                     \
    CUresult result;                       \
                                           \
    pthread_mutex_lock(&one_at_a_time);    \
    result = is_lost() ? lost_with : call; \
    pthread_mutex_unlock(&one_at_a_time);  \
    return result

#define GIVEN_BACK(call)                     \
    CUresult result;                         \
                                             \
    pthread_mutex_lock(&one_at_a_time);      \
    result = call;                           \
    result = is_lost() ? lost_with : result; \
    pthread_mutex_unlock(&one_at_a_time);    \
    return result

#define LOCKED(call)                      \
    CUresult result;                      \
                                          \
    pthread_mutex_lock(&one_at_a_time);   \
    result = call;                        \
    pthread_mutex_unlock(&one_at_a_time); \
    return result

static CUresult push(CUcontext context)
{
    LOCKED(emu_push(context));
}
static CUresult pop(CUcontext *context)
{
    LOCKED(emu_pop(context));
}

/* In parts of 512 bytes, as that of a GPU. Device memory alone counts. */
static size_t memory_bytes = (size_t)1 << 30, memory_used;

static size_t parts_of(size_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

static CUresult info_now(size_t *free_bytes, size_t *total)
{
    CUresult result = emu_mem_info(free_bytes, total);

    *total = memory_bytes;
    *free_bytes = memory_bytes - memory_used;
    return result;
}

static CUresult alloc_now(CUdeviceptr *memory, size_t bytes)
{
    CUresult result =
        memory_used + parts_of(bytes) > memory_bytes ? CUDA_ERROR_OUT_OF_MEMORY : emu_alloc(memory, bytes);

    memory_used += result == CUDA_SUCCESS ? parts_of(bytes) : 0;
    return result;
}

static CUresult free_now(CUdeviceptr memory)
{
    for (int i = 0; i < n_memories; i++)
        if (memories[i].at == (char *)(uintptr_t)memory)
            memory_used -= parts_of(memories[i].bytes);
    return emu_free(memory);
}

static CUresult info(size_t *free_bytes, size_t *total)
{
    ANSWERED(info_now(free_bytes, total));
}
static CUresult alloc(CUdeviceptr *memory, size_t bytes)
{
    n_allocations++;
    ANSWERED(alloc_now(memory, bytes));
}
static CUresult release_memory(CUdeviceptr memory)
{
    n_allocations++;
    GIVEN_BACK(free_now(memory));
}
static CUresult host_alloc(void **memory, size_t bytes, unsigned flags)
{
    n_allocations++;
    ANSWERED(emu_host_alloc(memory, bytes, flags));
}
static CUresult host_free(void *memory)
{
    GIVEN_BACK(emu_host_free(memory));
}
static CUresult pin(void *memory, size_t bytes, unsigned flags)
{
    ANSWERED(emu_register(memory, bytes, flags));
}
static CUresult unpin(void *memory)
{
    GIVEN_BACK(emu_unregister(memory));
}
static CUresult device_pointer(CUdeviceptr *at, void *memory, unsigned flags)
{
    ANSWERED(emu_device_pointer(at, memory, flags));
}
static CUresult pointer(unsigned n, int *which, void **values, CUdeviceptr at)
{
    LOCKED(emu_pointer(n, which, values, at));
}
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ANSWERED(emu_copy(to, from, bytes, stream));
}
static CUresult upload(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    CUresult result;

    pthread_mutex_lock(&one_at_a_time);
    result = is_lost() ? lost_with : emu_upload(to, from, bytes, stream);
    drain(); /* memory that is not pinned may be used again at once */
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}
static CUresult download(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ANSWERED(emu_download(to, from, bytes, stream));
}
static CUresult set(CUdeviceptr at, unsigned char byte, size_t bytes, CUstream stream)
{
    ANSWERED(emu_set(at, byte, bytes, stream));
}
static CUresult stream_create(CUstream *stream, unsigned flags)
{
    ANSWERED(emu_stream_create(stream, flags));
}
static CUresult stream_destroy(CUstream stream)
{
    GIVEN_BACK(emu_stream_destroy(stream));
}
static CUresult stream_sync(CUstream stream)
{
    n_syncs++;
    ANSWERED(emu_stream_sync(stream));
}
static CUresult stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    ANSWERED(emu_stream_wait(stream, event, flags));
}
static CUresult is_captured(CUstream stream, int *state)
{
    ANSWERED(emu_is_capturing(stream, state));
}
static CUresult event_create(CUevent *event, unsigned flags)
{
    ANSWERED(emu_event_create(event, flags));
}
static CUresult event_destroy(CUevent event)
{
    GIVEN_BACK(emu_event_destroy(event));
}
static CUresult mark_event(CUevent event, CUstream stream)
{
    CUresult result = emu_event_record(event, stream);
    int i = find_mark(event);

    if (result != CUDA_SUCCESS || i == (int)(sizeof(marks) / sizeof(marks[0])))
        return result;
    n_marks += i == n_marks;
    marks[i].event = event;
    marks[i].mark = n_queued;
    return result;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    ANSWERED(mark_event(event, stream));
}
static CUresult event_record_flags(CUevent event, CUstream stream, unsigned flags)
{
    ANSWERED(emu_event_record_flags(event, stream, flags));
}
static CUresult event_query(CUevent event)
{
    ANSWERED(emu_event_query(event));
}
/* A wait for what was queued last leaves the device with nothing to do. */
static CUresult await_event(CUevent event)
{
    int i = find_mark(event);

    n_idle_waits += i < n_marks && marks[i].mark == n_queued;
    return emu_event_sync(event);
}

static CUresult event_sync(CUevent event)
{
    n_event_syncs++;
    ANSWERED(await_event(event));
}
static CUresult load_module(CUmodule *module, const void *image)
{
    ANSWERED(emu_module_load(module, image));
}
static CUresult unload_module(CUmodule module)
{
    GIVEN_BACK(emu_module_unload(module));
}

static CUresult function(CUfunction *function_out, CUmodule module, const char *name)
{
    CUresult result;

    pthread_mutex_lock(&one_at_a_time);
    result = is_lost() ? lost_with : emu_function(function_out, module, name);
    if (result == 500)
        result = find_host_function(function_out, name);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

static CUresult attribute(int *value, int which, CUfunction of)
{
    ANSWERED(emu_function_attribute(value, which, of));
}

static CUresult set_attribute(CUfunction of, int which, int value)
{
    (void)of;
    (void)which;
    (void)value;
    return CUDA_SUCCESS;
}

static bool is_dry;

/* What a dry device does nevertheless: verdicts and results are what was copied there. */
static void move_all(const cuda_moves *all, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const cuda_move *move = &all->move[i];

        if (move->from != NULL)
            memcpy(move->to, move->from, move->bytes);
        for (uint64_t w = 0; move->from == NULL && w < move->bytes / sizeof(uint32_t); w++)
            ((uint32_t *)move->to)[w] = (uint32_t)move->word;
    }
}

static CUresult launch(CUfunction of, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                       unsigned threads_z, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&one_at_a_time);
    n_queued++;
    if (is_lost()) {
        result = lost_with;
    } else if (!is_host_function(of) && !is_dry) {
        result = emu_launch(of, x, y, z, threads, threads_y, threads_z, shared, stream, parameters, extra);
    } else if (fails()) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        drain();
        n_launches++;
        if (is_dry && strcmp(((host_function *)(void *)of)->name, "esper_move") == 0)
            move_all(parameters[0], y);
        else if (!is_dry)
            host_cuda_launch(((host_function *)(void *)of)->name, (int)x, (int)y, (int)threads, (int)shared,
                             parameters[0]);
    }
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

/* ------------------------------------------------------------------------------------------------ graphs */

/* A launch of a graph, and those that come before it. */
typedef struct graph_node {
    CUDA_KERNEL_NODE_PARAMS launch;
    esper_cuda_lanes        lanes;
    struct graph_node     **before;
    size_t                  n_before;
    bool                    done;
} graph_node;

typedef struct graph {
    graph_node **nodes;
    int          n;
} graph;

static atomic_int n_graphs, n_graph_launches, n_beside;

static CUresult graph_create(CUgraph *graph_out, unsigned flags)
{
    (void)flags;
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    *graph_out = (CUgraph)calloc(1, sizeof(graph));
    return CUDA_SUCCESS;
}

static CUresult graph_add(CUgraphNode *node_out, CUgraph of, const CUgraphNode *before, size_t n_before,
                          const CUDA_KERNEL_NODE_PARAMS *launch_of)
{
    graph *self = (graph *)(void *)of;
    graph_node *node = calloc(1, sizeof(*node));

    node->launch = *launch_of;
    memcpy(&node->lanes, launch_of->kernelParams[0], sizeof(node->lanes));
    node->before = calloc(n_before + 1, sizeof(graph_node *));
    node->n_before = n_before;
    for (size_t i = 0; i < n_before; i++)
        node->before[i] = (graph_node *)(void *)before[i];
    self->nodes = realloc(self->nodes, ((size_t)self->n + 1) * sizeof(graph_node *));
    self->nodes[self->n++] = node;
    *node_out = (CUgraphNode)(void *)node;
    return CUDA_SUCCESS;
}

/* The nodes are the executable's from then on. */
static CUresult graph_instantiate(CUgraphExec *exec_out, CUgraph of, unsigned long long flags)
{
    graph *self = (graph *)(void *)of, *exec;

    (void)flags;
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec = calloc(1, sizeof(*exec));
    *exec = *self;
    *self = (graph){0};
    *exec_out = (CUgraphExec)(void *)exec;
    n_graphs++;
    return CUDA_SUCCESS;
}

static bool may_run(const graph_node *node)
{
    for (size_t i = 0; i < node->n_before; i++)
        if (!node->before[i]->done)
            return false;
    return !node->done;
}

/* Of the launches that could be next, the one that was added last: so whatever is not ordered comes the wrong way round. */
static CUresult graph_launch(CUgraphExec of, CUstream stream)
{
    graph *self = (graph *)(void *)of;
    CUresult result = CUDA_SUCCESS;
    int last = 0;

    if (is_dry)
        return CUDA_SUCCESS;
    for (int i = 0; i < self->n; i++)
        self->nodes[i]->done = false;
    for (int n = 0; n < self->n && result == CUDA_SUCCESS; n++) {
        graph_node *node = NULL;
        void *parameters[1];
        int at = self->n;

        while (node == NULL && at-- > 0)
            node = may_run(self->nodes[at]) ? self->nodes[at] : NULL;
        if (node == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        n_beside += at < last;
        last = at;
        parameters[0] = &node->lanes;
        result = launch(node->launch.func, node->launch.gridDimX, node->launch.gridDimY, 1, node->launch.blockDimX, 1,
                        1, node->launch.sharedMemBytes, stream, parameters, NULL);
        node->done = true;
    }
    n_graph_launches++;
    return result;
}

static void free_graph(graph *self)
{
    for (int i = 0; i < self->n; i++) {
        free(self->nodes[i]->before);
        free(self->nodes[i]);
    }
    free(self->nodes);
    free(self);
}

static CUresult graph_destroy(CUgraph of)
{
    free_graph((graph *)(void *)of);
    return CUDA_SUCCESS;
}

static CUresult exec_destroy(CUgraphExec of)
{
    free_graph((graph *)(void *)of);
    return CUDA_SUCCESS;
}

int cuda_driver_graphs(void)
{
    return n_graphs;
}

int cuda_driver_graph_launches(void)
{
    return n_graph_launches;
}

int cuda_driver_beside(void)
{
    return n_beside;
}

int cuda_driver_syncs(void)
{
    return n_syncs;
}

int cuda_driver_waits(void)
{
    return n_syncs + n_event_syncs;
}

int cuda_driver_allocations(void)
{
    return n_allocations;
}

bool cuda_driver_is_real(void)
{
    return is_real;
}

int cuda_driver_idle_waits(void)
{
    return n_idle_waits;
}

int cuda_driver_launches(void)
{
    return n_launches;
}

void cuda_driver_fail_at(uint64_t nth)
{
    emulated_cuda_fail_at(nth);
}

void cuda_driver_lose_at(uint64_t nth, int result)
{
    pthread_mutex_lock(&one_at_a_time);
    lost_at = nth > 0 ? n_calls + nth : 0;
    lost_with = result;
    pthread_mutex_unlock(&one_at_a_time);
}

uint64_t cuda_driver_calls(void)
{
    return n_calls;
}

static void read_environment(void)
{
    const char *lost = getenv("ESPER_TEST_CUDA_LOST"), *memory = getenv("ESPER_TEST_CUDA_MEMORY");
    const char *dry = getenv("ESPER_TEST_CUDA_DRY");
    unsigned long long nth;
    int result;

    if (lost != NULL && sscanf(lost, "%llu:%d", &nth, &result) == 2)
        cuda_driver_lose_at(nth, result);
    if (memory != NULL)
        memory_bytes = strtoull(memory, NULL, 10);
    is_dry = dry != NULL && strcmp(dry, "1") == 0;
}

__attribute__((constructor)) static void install(void)
{
    static const esper_cuda_driver driver = {
        .cuInit = emu_init,
        .cuDeviceGetCount = emu_device_count,
        .cuDeviceGet = emu_device_get,
        .cuDeviceGetName = emu_device_name,
        .cuDeviceGetAttribute = emu_device_attribute,
        .cuDevicePrimaryCtxRetain = emu_retain,
        .cuDevicePrimaryCtxRelease = emu_release,
        .cuCtxPushCurrent = push,
        .cuCtxPopCurrent = pop,
        .cuMemGetInfo = info,
        .cuMemAlloc = alloc,
        .cuMemFree = release_memory,
        .cuMemHostAlloc = host_alloc,
        .cuMemFreeHost = host_free,
        .cuMemHostRegister = pin,
        .cuMemHostUnregister = unpin,
        .cuMemHostGetDevicePointer = device_pointer,
        .cuPointerGetAttributes = pointer,
        .cuMemcpyAsync = copy,
        .cuMemcpyHtoDAsync = upload,
        .cuMemcpyDtoHAsync = download,
        .cuMemsetD8Async = set,
        .cuStreamCreate = stream_create,
        .cuStreamDestroy = stream_destroy,
        .cuStreamSynchronize = stream_sync,
        .cuStreamWaitEvent = stream_wait,
        .cuStreamIsCapturing = is_captured,
        .cuEventCreate = event_create,
        .cuEventDestroy = event_destroy,
        .cuEventRecord = event_record,
        .cuEventRecordWithFlags = event_record_flags,
        .cuEventQuery = event_query,
        .cuEventSynchronize = event_sync,
        .cuModuleLoadData = load_module,
        .cuModuleUnload = unload_module,
        .cuModuleGetFunction = function,
        .cuFuncGetAttribute = attribute,
        .cuFuncSetAttribute = set_attribute,
        .cuLaunchKernel = launch,
        .cuGetErrorName = emu_error_name,
        .cuGetErrorString = emu_error_text,
        .cuGraphCreate = graph_create,
        .cuGraphAddKernelNode = graph_add,
        .cuGraphInstantiate = graph_instantiate,
        .cuGraphLaunch = graph_launch,
        .cuGraphDestroy = graph_destroy,
        .cuGraphExecDestroy = exec_destroy,
        .knows_kernels = true,
    };
    const char *gpu = getenv("ESPER_TEST_GPU");

    read_environment();
    is_real = gpu != NULL && strcmp(gpu, "1") == 0;
    if (!is_real)
        esper_cuda_driver_replace(&driver);
}

/* The cuda backend is what programs get that name none. */
const esper_backend_ops *const *esper_backend_list(void)
{
    static const esper_backend_ops *const backends[] = {&esper_backend_cuda, &esper_backend_cpu, &esper_backend_ref,
                                                        &esper_backend_null, NULL};

    return backends;
}
