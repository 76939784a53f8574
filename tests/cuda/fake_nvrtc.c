/* An NVRTC that compiles nothing: it says who was compiled, into the file calls.txt where the process is. NVRTC_FAKE_FAILS=1: it refuses
 * every source. For tests/cuda/test_compiled.c, as ESPER_NVRTC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char code[4096];

int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n_headers, const char *const *headers,
                       const char *const *names);
int nvrtcDestroyProgram(void **program);
int nvrtcCompileProgram(void *program, int n_options, const char *const *options);
int nvrtcGetProgramLogSize(void *program, size_t *bytes);
int nvrtcGetProgramLog(void *program, char *log);
int nvrtcGetCUBINSize(void *program, size_t *bytes);
int nvrtcGetCUBIN(void *program, char *to);
int nvrtcGetPTXSize(void *program, size_t *bytes);
int nvrtcGetPTX(void *program, char *to);

int nvrtcVersion(int *major, int *minor)
{
    *major = 99;
    *minor = 1;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 2;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = 75;
    archs[1] = 90;
    return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int n_headers, const char *const *headers,
                       const char *const *names)
{
    FILE *calls = fopen("calls.txt", "a");

    if (calls == NULL)
        return 1;
    fprintf(calls, "%s %zu", name, strlen(source));
    for (int i = 0; i < n_headers; i++)
        fprintf(calls, " %s:%d", names[i], headers[i] != NULL);
    fprintf(calls, "\n");
    fclose(calls);
    snprintf(code, sizeof(code), "code of %s", name);
    *program = code;
    return 0;
}

int nvrtcDestroyProgram(void **program)
{
    *program = NULL;
    return 0;
}

int nvrtcCompileProgram(void *program, int n_options, const char *const *options)
{
    const char *fails = getenv("NVRTC_FAKE_FAILS");

    (void)program;
    for (int i = 0; i < n_options; i++)
        if (strcmp(options[i], "--gpu-architecture=sm_90") == 0)
            return fails != NULL;
    return 1;
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    (void)program;
    *bytes = sizeof("it does not like this");
    return 0;
}

int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    memcpy(log, "it does not like this", sizeof("it does not like this"));
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
    (void)program;
    *bytes = strlen(code);
    return 0;
}

int nvrtcGetCUBIN(void *program, char *to)
{
    (void)program;
    memcpy(to, code, strlen(code));
    return 0;
}

int nvrtcGetPTXSize(void *program, size_t *bytes)
{
    return nvrtcGetCUBINSize(program, bytes);
}

int nvrtcGetPTX(void *program, char *to)
{
    return nvrtcGetCUBIN(program, to);
}
