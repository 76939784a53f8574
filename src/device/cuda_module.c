/* Loading kernels: the embedded image, or its source through NVRTC. */
#include "device/cuda_module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cuda_cache.h"

struct esper_cuda_module {
    esper_cuda_module      *next;
    CUcontext               context; /* stays while anybody has the device open */
    const esper_cuda_image *image;
    CUmodule                handle;
    char                    origin[ESPER_NVRTC_TITLE_CHARS];
};

/* Answers that mean "not for this device", so that compiling the source is worth a try. */
static bool does_not_fit(CUresult result)
{
    return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
           result == CUDA_ERROR_INVALID_PTX || result == CUDA_ERROR_INVALID_IMAGE ||
           result == CUDA_ERROR_JIT_COMPILATION_DISABLED;
}

/* Compiled now, unless it was before and is found on disk. What is found there and does not load is compiled again. */
static esper_status load_source(const esper_device *device, esper_cuda_module *module)
{
    const esper_cuda_image *image = module->image;
    int capability = esper_cuda_capability(device);
    bool keeps = image->headers != NULL, found;
    esper_cuda_code code = {.bytes = NULL};
    uint64_t key = 0;
    esper_status st = ESPER_E_UNSUPPORTED;

    if (keeps)
        key = esper_cuda_cache_key(image->source, image->headers);
    found = keeps && esper_cuda_cache_find(image->name, key, capability, &code);
    if (found)
        st = ESPER_CUDA(cuModuleLoadData, &module->handle, code.bytes);
    if (st != ESPER_OK) {
        esper_mem_free(code.bytes);
        ESPER_TRY(esper_nvrtc_compile(image->name, image->source, image->headers, capability, &code));
        st = ESPER_CUDA(cuModuleLoadData, &module->handle, code.bytes);
        if (st == ESPER_OK && keeps)
            esper_cuda_cache_put(image->name, key, capability, &code);
    }
    snprintf(module->origin, sizeof(module->origin), "%s", code.title);
    esper_mem_free(code.bytes);
    return st;
}

/* In the device's context. */
static esper_status load(const esper_device *device, esper_cuda_module *module)
{
    const char *forbidden = getenv("ESPER_TEST_NO_CUBIN");
    CUresult result;
    esper_status st;

    assert(module->handle == NULL && module->image->source != NULL);
    if (esper_cuda_driver_now.knows_kernels)
        return ESPER_CUDA(cuModuleLoadData, &module->handle, module->image->source);
    if (module->image->binary != NULL && (forbidden == NULL || strcmp(forbidden, "1") != 0)) {
        result = ESPER_CUDA_RAW(cuModuleLoadData, &module->handle, module->image->binary);
        if (!does_not_fit(result)) {
            snprintf(module->origin, sizeof(module->origin), "embedded");
            return esper_cuda_check(result, ESPER_CUDA_cuModuleLoadData);
        }
    }
    st = load_source(device, module);
    if (st != ESPER_OK)
        return esper_fail_within(st, "no kernels for %s (sm_%d): %s, and ", esper_cuda_device_title(device),
                                 esper_cuda_capability(device),
                                 module->image->binary == NULL ? "this build has none" : "none that were built in fit");
    return ESPER_OK;
}

static esper_status open_module(esper_device *device, const esper_cuda_image *image, esper_cuda_module **module_out)
{
    esper_cuda_module *module = esper_mem_alloc(sizeof(*module));
    esper_status st;

    if (module == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "CUDA kernels");
    module->context = esper_cuda_context(device);
    module->image = image;
    st = esper_cuda_enter(device);
    if (st == ESPER_OK) {
        st = load(device, module);
        esper_cuda_leave();
    }
    if (st != ESPER_OK) {
        esper_mem_free(module);
        return st;
    }
    *module_out = module;
    return ESPER_OK;
}

esper_status esper_cuda_module_get(esper_device *device, const esper_cuda_image *image, esper_cuda_module **module_out)
{
    esper_cuda_module **modules = esper_cuda_modules_lock(device), *module;
    esper_status st = ESPER_OK;

    for (module = *modules; module != NULL; module = module->next)
        if (module->image == image)
            break;
    if (module == NULL) {
        st = open_module(device, image, &module);
        if (st == ESPER_OK) {
            module->next = *modules;
            *modules = module;
        }
    }
    esper_cuda_modules_unlock(device);
    if (st == ESPER_OK)
        *module_out = module;
    return st;
}

/* Since CUDA 12 kernels are loaded when first needed; asking for an attribute is need enough. */
esper_status esper_cuda_module_kernel(esper_cuda_module *module, const char *name, CUfunction *kernel_out)
{
    CUfunction kernel = NULL;
    int threads = 0;
    esper_status st;

    ESPER_TRY(ESPER_CUDA(cuCtxPushCurrent, module->context));
    st = ESPER_CUDA(cuModuleGetFunction, &kernel, module->handle, name);
    if (st == ESPER_OK)
        st = ESPER_CUDA(cuFuncGetAttribute, &threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel);
    esper_cuda_leave();
    if (st != ESPER_OK)
        return esper_fail_within(st, "kernel %s: ", name);
    *kernel_out = kernel;
    return ESPER_OK;
}

const char *esper_cuda_module_origin(const esper_cuda_module *module)
{
    return module->origin;
}

void esper_cuda_modules_close(esper_cuda_module *first)
{
    while (first != NULL) {
        esper_cuda_module *next = first->next;

        (void)ESPER_CUDA_RAW(cuModuleUnload, first->handle);
        esper_mem_free(first);
        first = next;
    }
}
