/* Internal. CUDA's driver, found at run time: a table of the functions we use, and the one macro that turns its results
 * into ours. Nothing here needs CUDA's headers or links with CUDA.
 *
 * The table is the process's, as the driver itself is: it is filled once and not changed afterwards. */
#ifndef ESPER_DEVICE_CUDA_DRIVER_H
#define ESPER_DEVICE_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The driver's own types and values, as far as we use them. */
typedef int                CUresult;
typedef int                CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st   *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st   *CUmodule;
typedef struct CUfunc_st  *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;

/* What a graph is told of a launch. */
typedef struct CUDA_KERNEL_NODE_PARAMS {
    CUfunction func;
    unsigned   gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void     **kernelParams; /* copied */
    void     **extra;
} CUDA_KERNEL_NODE_PARAMS;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_CAPTURE_FIRST = 900, /* of those that a stream under capture gives ... */
    CUDA_ERROR_CAPTURE_LAST = 908,

    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_RECORD_EXTERNAL = 1,
    CU_EVENT_WAIT_EXTERNAL = 1,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_MEMHOST_PORTABLE = 1,
    CU_MEMHOST_DEVICEMAP = 2,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_UNIFIED = 4,
};

/* X(name, the symbol it has in the driver, parameters). No cuCtxSynchronize: nothing of ours stops a device. */
#define ESPER_CUDA_FUNCTION_LIST(X)                                                                                 \
    X(cuInit, "cuInit", (unsigned flags))                                                                           \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                           \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                 \
    X(cuDeviceGetName, "cuDeviceGetName", (char *name, int chars, CUdevice device))                                 \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                 \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                 \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                                 \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                                 \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                                 \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t bytes))                                            \
    X(cuMemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                              \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                              \
    X(cuMemFreeHost, "cuMemFreeHost", (void *memory))                                                               \
    X(cuMemHostRegister, "cuMemHostRegister_v2", (void *memory, size_t bytes, unsigned flags))                      \
    X(cuMemHostUnregister, "cuMemHostUnregister", (void *memory))                                                   \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2",                                                    \
      (CUdeviceptr * address, void *memory, unsigned flags))                                                        \
    X(cuPointerGetAttributes, "cuPointerGetAttributes",                                                             \
      (unsigned n, int *attributes, void **values, CUdeviceptr memory))                                             \
    X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))            \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream))       \
    X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr memory, unsigned char byte, size_t bytes, CUstream stream))  \
    X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                                        \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                     \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                                \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                     \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int *state))                                    \
    X(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                            \
    X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                         \
    X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                             \
    X(cuEventRecordWithFlags, "cuEventRecordWithFlags", (CUevent event, CUstream stream, unsigned flags))           \
    X(cuEventQuery, "cuEventQuery", (CUevent event))                                                                \
    X(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                                                    \
    X(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void *image))                                 \
    X(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                          \
    X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char *name))       \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, CUfunction function))                   \
    X(cuLaunchKernel, "cuLaunchKernel",                                                                             \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra))                  \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))                    \
    X(cuGetErrorName, "cuGetErrorName", (CUresult result, const char **text))                                       \
    X(cuGetErrorString, "cuGetErrorString", (CUresult result, const char **text))                                   \
    /* From here on: an older driver may lack them, and then they are NULL. */                                      \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                                 \
    X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                                 \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                                            \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                                                \
    X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                                          \
    X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                                            \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))                                                 \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent from, CUevent to))                    \
    X(cuGraphCreate, "cuGraphCreate", (CUgraph * graph, unsigned flags))                                            \
    X(cuGraphAddKernelNode, "cuGraphAddKernelNode",                                                                 \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *before, size_t n_before,                               \
       const CUDA_KERNEL_NODE_PARAMS *launch))

typedef enum esper_cuda_function {
#define X(name, symbol, parameters) ESPER_CUDA_##name,
    ESPER_CUDA_FUNCTION_LIST(X)
#undef X
        ESPER_CUDA_N_FUNCTIONS,
    ESPER_CUDA_FIRST_OPTIONAL = ESPER_CUDA_cuStreamBeginCapture
} esper_cuda_function;

typedef struct esper_cuda_driver {
#define X(name, symbol, parameters) CUresult(*name) parameters;
    ESPER_CUDA_FUNCTION_LIST(X)
#undef X
    bool knows_kernels; /* for tests: it knows kernels by name and takes anything for an image */
} esper_cuda_driver;

/* Finds the driver and initialises it, once in a process. E_UNSUPPORTED says what is missing. */
esper_status esper_cuda_driver_load(void);

/* For tests: this table in place of the driver's (NULL: the driver's again). While nothing of CUDA is open. */
void esper_cuda_driver_replace(const esper_cuda_driver *driver);

/* ESPER_TRY(ESPER_CUDA(cuEventSynchronize, event)): calls, counts, and describes a failure. Every call passes here, but
 * for those whose failure is an answer: they use ESPER_CUDA_RAW, which counts as well. */
#define ESPER_CUDA(name, ...) esper_cuda_check(ESPER_CUDA_RAW(name, __VA_ARGS__), ESPER_CUDA_##name)
#define ESPER_CUDA_RAW(name, ...) (esper_cuda_count(ESPER_CUDA_##name), esper_cuda_driver_now.name(__VA_ARGS__))

/* Calls of the process so far, by function: they decide nothing, tests read them. */
extern atomic_uint_fast64_t esper_cuda_calls[ESPER_CUDA_N_FUNCTIONS];

/* Behind the macros. */
extern esper_cuda_driver esper_cuda_driver_now;
esper_status             esper_cuda_check(CUresult result, esper_cuda_function function);
void                     esper_cuda_count(esper_cuda_function function);

#endif
