/* Finding CUDA's driver, and what its results mean to us. */
#include "device/cuda_driver.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { REASON_CHARS = 300 };

static const char *const function_names[] = {
#define X(name, symbol, parameters) #name,
    ESPER_CUDA_FUNCTION_LIST(X)
#undef X
};

esper_cuda_driver    esper_cuda_driver_now;
atomic_uint_fast64_t esper_cuda_calls[ESPER_CUDA_N_FUNCTIONS];

static pthread_once_t    load_once = PTHREAD_ONCE_INIT;
static esper_cuda_driver found; /* the real driver; empty when there is none */
static char              why_none[REASON_CHARS];
static int               is_replaced;

/* Looks up one function; a table of functions of different types is filled through the one way C knows. */
static int find_function(void *library, const char *symbol, void *function_out)
{
    void *address = dlsym(library, symbol);

    if (address == NULL) {
        snprintf(why_none, sizeof(why_none), "the CUDA driver is too old: it has no %s", symbol);
        return 0;
    }
    memcpy(function_out, &address, sizeof(address));
    return 1;
}

static int find_functions(void *library)
{
#define X(name, symbol, parameters)                                                                        \
    if (!find_function(library, symbol, &found.name) && ESPER_CUDA_##name < ESPER_CUDA_FIRST_OPTIONAL) \
        return 0;
    ESPER_CUDA_FUNCTION_LIST(X)
#undef X
    why_none[0] = '\0';
    return 1;
}

/* Runs once. The library stays open: a driver cannot be taken out of a process that used it. */
static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *text = NULL;
    CUresult result;

    if (library == NULL) {
        snprintf(why_none, sizeof(why_none), "there is no CUDA driver (%s)", dlerror());
        return;
    }
    if (!find_functions(library))
        return;
    result = found.cuInit(0);
    if (result == CUDA_SUCCESS) {
        esper_cuda_driver_now = found;
        return;
    }
    if (found.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "unknown error";
    snprintf(why_none, sizeof(why_none), "the CUDA driver does not start: error %d, %s", result, text);
}

esper_status esper_cuda_driver_load(void)
{
    if (is_replaced)
        return ESPER_OK;
    pthread_once(&load_once, load);
    if (why_none[0] != '\0')
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "CUDA cannot be used here: %s", why_none);
    return ESPER_OK;
}

void esper_cuda_driver_replace(const esper_cuda_driver *driver)
{
    is_replaced = driver != NULL;
    esper_cuda_driver_now = driver != NULL ? *driver : found;
}

void esper_cuda_count(esper_cuda_function function)
{
    assert((unsigned)function < ESPER_CUDA_N_FUNCTIONS);
    atomic_fetch_add_explicit(&esper_cuda_calls[function], 1, memory_order_relaxed);
}

/* Which of our statuses: what must the caller do about it? */
static esper_status status_of(CUresult result)
{
    if (result >= CUDA_ERROR_CAPTURE_FIRST && result <= CUDA_ERROR_CAPTURE_LAST)
        return ESPER_E_STATE;
    switch (result) {
    case CUDA_SUCCESS:
        return ESPER_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return ESPER_E_NOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
        return ESPER_E_ARG;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_NOT_SUPPORTED:
        return ESPER_E_UNSUPPORTED;
    default:
        return ESPER_E_DEVICE;
    }
}

esper_status esper_cuda_check(CUresult result, esper_cuda_function function)
{
    const char *name = NULL, *text = NULL;

    assert((unsigned)function < ESPER_CUDA_N_FUNCTIONS);
    if (result == CUDA_SUCCESS)
        return ESPER_OK;
    if (esper_cuda_driver_now.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        name = "an unknown error";
    if (esper_cuda_driver_now.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "no description";
    return ESPER_FAIL(status_of(result), "%s: %s (%d: %s)", function_names[function], name, result, text);
}
