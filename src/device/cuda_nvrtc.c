/* Compiling CUDA source at run time. The library is opened for one compilation and closed again: it is large, and
 * needed once. */
#include "device/cuda_nvrtc.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

typedef struct nvrtc_program_st *nvrtc_program;

#define NVRTC_FUNCTION_LIST(X)                                                                           \
    X(nvrtcVersion, (int *major, int *minor))                                                            \
    X(nvrtcGetNumSupportedArchs, (int *count))                                                           \
    X(nvrtcGetSupportedArchs, (int *archs))                                                              \
    X(nvrtcCreateProgram, (nvrtc_program * program, const char *source, const char *name, int n_headers, \
                           const char *const *headers, const char *const *include_names))                \
    X(nvrtcDestroyProgram, (nvrtc_program * program))                                                    \
    X(nvrtcCompileProgram, (nvrtc_program program, int n_options, const char *const *options))           \
    X(nvrtcGetProgramLogSize, (nvrtc_program program, size_t * bytes))                                   \
    X(nvrtcGetProgramLog, (nvrtc_program program, char *log))                                            \
    X(nvrtcGetCUBINSize, (nvrtc_program program, size_t * bytes))                                        \
    X(nvrtcGetCUBIN, (nvrtc_program program, char *code))                                                \
    X(nvrtcGetPTXSize, (nvrtc_program program, size_t * bytes))                                          \
    X(nvrtcGetPTX, (nvrtc_program program, char *code))

typedef struct nvrtc {
    void *library;
#define X(name, parameters) int(*name) parameters;
    NVRTC_FUNCTION_LIST(X)
#undef X
} nvrtc;

enum { MAX_ARCHS = 128, LOG_CHARS = 600 };

static void *open_library(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"};
    const char *path = getenv("ESPER_NVRTC");
    void *library = NULL;

    if (path != NULL && path[0] != '\0')
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static esper_status find_function(void *library, const char *name, void *function_out)
{
    void *address = dlsym(library, name);

    if (address == NULL)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "the NVRTC found is too old: it has no %s", name);
    memcpy(function_out, &address, sizeof(address));
    return ESPER_OK;
}

static esper_status open_compiler(nvrtc *compiler)
{
    compiler->library = open_library();
    if (compiler->library == NULL)
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "no NVRTC to compile them is found (%s): name its libnvrtc.so in ESPER_NVRTC, or let LD_LIBRARY_PATH "
            "lead to it (PyTorch brings one, in site-packages/nvidia/cu13/lib or nvidia/cuda_nvrtc/lib)",
            dlerror());
#define X(name, parameters) ESPER_TRY(find_function(compiler->library, #name, &compiler->name));
    NVRTC_FUNCTION_LIST(X)
#undef X
    return ESPER_OK;
}

/* The latest architecture the compiler knows that is not later than `capability`; 0 = none. */
static int choose_arch(const nvrtc *compiler, int capability)
{
    int archs[MAX_ARCHS] = {0}, count = 0, best = 0;

    assert(capability >= 10); /* major * 10 + minor */
    if (compiler->nvrtcGetNumSupportedArchs(&count) != 0 || count > MAX_ARCHS ||
        compiler->nvrtcGetSupportedArchs(archs) != 0)
        return 0;
    for (int i = 0; i < count; i++)
        if (archs[i] <= capability && archs[i] > best)
            best = archs[i];
    return best;
}

static esper_status fail_compile(const nvrtc *compiler, nvrtc_program program, const char *name, const char *option)
{
    esper_status st = ESPER_E_UNSUPPORTED;
    size_t bytes = 0;
    char *log = NULL;

    if (compiler->nvrtcGetProgramLogSize(program, &bytes) == 0)
        log = esper_mem_alloc(bytes + 1);
    if (log != NULL && compiler->nvrtcGetProgramLog(program, log) == 0)
        ESPER_FAIL(st, "NVRTC does not compile %s with %s: %.*s", name, option, LOG_CHARS, log);
    else
        ESPER_FAIL(st, "NVRTC does not compile %s with %s", name, option);
    esper_mem_free(log);
    return st;
}

/* Machine code, or PTX where `is_ptx`. One byte more than its size: PTX is text. */
static esper_status take_code(const nvrtc *compiler, nvrtc_program program, bool is_ptx, esper_cuda_code *code_out)
{
    size_t bytes = 0;
    void *code;
    int result = is_ptx ? compiler->nvrtcGetPTXSize(program, &bytes) : compiler->nvrtcGetCUBINSize(program, &bytes);

    if (result != 0 || bytes == 0)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "NVRTC gives no code (error %d)", result);
    code = esper_mem_alloc(bytes + 1);
    if (code == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%zu bytes of CUDA code", bytes);
    result = is_ptx ? compiler->nvrtcGetPTX(program, code) : compiler->nvrtcGetCUBIN(program, code);
    if (result != 0) {
        esper_mem_free(code);
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "NVRTC gives no code (error %d)", result);
    }
    code_out->bytes = code;
    code_out->n_bytes = bytes;
    return ESPER_OK;
}

/* What is missing where there is no C library: NVRTC brings none. */
static const esper_cuda_header plain_headers[] = {
    {"stdbool.h", ""},
    {"stddef.h", "#pragma once\ntypedef decltype(sizeof(0)) size_t;\n#ifndef NULL\n#define NULL 0\n#endif\n"
                 "#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n"},
    {"stdint.h",
     "#pragma once\ntypedef signed char int8_t;\ntypedef unsigned char uint8_t;\ntypedef short int16_t;\n"
     "typedef unsigned short uint16_t;\ntypedef int int32_t;\ntypedef unsigned int uint32_t;\n"
     "typedef long int64_t;\ntypedef unsigned long uint64_t;\ntypedef unsigned long uintptr_t;\n"
     "#define INT32_MAX 2147483647\n#define UINT32_MAX 4294967295u\n#define UINT64_MAX 18446744073709551615ul\n"},
};

enum { N_PLAIN = sizeof(plain_headers) / sizeof(plain_headers[0]), MOST_HEADERS = 128 };

static esper_status compile(const nvrtc *compiler, const char *name, const char *source,
                            const esper_cuda_header *headers, int capability, esper_cuda_code *code_out)
{
    int arch = choose_arch(compiler, capability), major = 0, minor = 0;
    const char *kind = arch == capability ? "sm" : "compute";
    char option[48];
    const char *options[] = {option, headers != NULL ? "--std=c++17" : "--std=c++14", "-diag-suppress=128",
                             "-default-device"}; /* the last: headers have functions that C calls as well */
    const char *texts[MOST_HEADERS], *names[MOST_HEADERS];
    int n_headers = 0;
    nvrtc_program program;
    esper_status st;

    for (int i = 0; i < N_PLAIN && headers != NULL; i++, n_headers++) {
        names[n_headers] = plain_headers[i].name;
        texts[n_headers] = plain_headers[i].text;
    }
    for (; headers != NULL && headers->name != NULL; headers++, n_headers++) {
        assert(n_headers < MOST_HEADERS);
        names[n_headers] = headers->name;
        texts[n_headers] = headers->text;
    }

    compiler->nvrtcVersion(&major, &minor);
    if (arch == 0)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "NVRTC %d.%d knows no architecture up to sm_%d", major, minor,
                          capability);
    snprintf(option, sizeof(option), "--gpu-architecture=%s_%d", kind, arch);
    if (compiler->nvrtcCreateProgram(&program, source, name, n_headers, texts, names) != 0)
        return ESPER_FAIL(ESPER_E_NOMEM, "NVRTC takes no program");
    if (compiler->nvrtcCompileProgram(program, n_headers > 0 ? 4 : 2, options) != 0)
        st = fail_compile(compiler, program, name, option);
    else
        st = take_code(compiler, program, arch != capability, code_out);
    compiler->nvrtcDestroyProgram(&program);
    if (st == ESPER_OK)
        snprintf(code_out->title, sizeof(code_out->title), "NVRTC %d.%d for %s_%d", major, minor, kind, arch);
    return st;
}

esper_status esper_nvrtc_compile(const char *name, const char *source, const esper_cuda_header *headers, int capability,
                                 esper_cuda_code *code_out)
{
    nvrtc compiler = {.library = NULL};
    esper_status st = open_compiler(&compiler);

    if (st == ESPER_OK)
        st = compile(&compiler, name, source, headers, capability, code_out);
    if (compiler.library != NULL)
        dlclose(compiler.library);
    return st;
}
