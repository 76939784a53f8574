/* ctest: timeout=120 driver=only */
/* Kernels that no image fits are compiled when they are first needed, with all that they include, and kept on disk: found there the
 * next time, compiled again where the file is damaged; what cannot be compiled is told. The compiler is one that compiles nothing
 * (cuda/fake_nvrtc.c), and the driver takes anything for code. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/cuda_driver.h"
#include "tensor/backend.h"

/* Opens the backend as if nothing had been built in. */
static esper_status open_compiled(char identity_out[64])
{
    esper_backend *backend;
    esper_status status;

    esper_cuda_driver_now.knows_kernels = false;
    status = esper_backend_open("cuda", NULL, &backend);
    if (status == ESPER_OK) {
        snprintf(identity_out, 64, "%s", esper_backend_identity(backend));
        esper_backend_close(backend);
    }
    esper_cuda_driver_now.knows_kernels = true;
    return status;
}

static int count_calls(const char *words)
{
    FILE *calls = fopen("calls.txt", "r");
    char line[8192];
    int n = 0;

    while (calls != NULL && fgets(line, sizeof(line), calls) != NULL)
        n += strstr(line, words) != NULL;
    if (calls != NULL)
        fclose(calls);
    return n;
}

/* The one file that is kept. */
static void kept_file(char path[512])
{
    DIR *folder = opendir("cache/esper");
    int n = 0;

    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (strstr(entry->d_name, "-sm_90.kernels") != NULL) {
            snprintf(path, 512, "cache/esper/%s", entry->d_name);
            n++;
        }
    closedir(folder);
    assert_int_equal(n, 1);
}

static void compiled_once(void **state)
{
    char first[64] = "", again[64] = "", path[512], here[400];
    FILE *file;

    (void)state;
    assert_non_null(getcwd(here, sizeof(here)));
    snprintf(path, sizeof(path), "%s/cache", here);
    setenv("XDG_CACHE_HOME", path, 1);
    if (open_compiled(first) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(count_calls("moves.cu "), 1); /* what opening needs, and no more */
    assert_int_equal(count_calls(".cu "), 1);
    assert_int_equal(count_calls(" tensor/cuda/dialect.cuh:1 "), 1);
    assert_int_equal(count_calls(" stdint.h:1 "), 1);
    if (open_compiled(again) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(count_calls(".cu "), 1); /* found */
    assert_string_equal(first, again);
    kept_file(path);
    file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, -3, SEEK_END);
    fputc('?', file);
    fclose(file);
    if (open_compiled(again) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(count_calls(".cu "), 2);
    assert_string_equal(first, again);
    kept_file(path); /* written anew */
}

static void what_computes_is_known(void **state)
{
    char compiled[64] = "";
    esper_backend *backend;

    (void)state;
    assert_int_equal(open_compiled(compiled), ESPER_OK);
    assert_int_equal(esper_backend_open("cuda", NULL, &backend), ESPER_OK);
    assert_string_not_equal(compiled, esper_backend_identity(backend)); /* other code, another identity */
    esper_backend_close(backend);
}

static void failures_are_told(void **state)
{
    const char *fake = getenv("ESPER_NVRTC");
    char identity[64], kept[512], path[512];

    (void)state;
    snprintf(kept, sizeof(kept), "%s", fake);
    kept_file(path);
    assert_int_equal(unlink(path), 0);
    setenv("NVRTC_FAKE_FAILS", "1", 1);
    assert_int_equal(open_compiled(identity), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "no kernels for Emulated GPU 0 (sm_90)"));
    assert_non_null(strstr(esper_last_error(), "NVRTC does not compile moves.cu"));
    assert_non_null(strstr(esper_last_error(), "it does not like this"));
    unsetenv("NVRTC_FAKE_FAILS");
    setenv("ESPER_NVRTC", "/nowhere/libnvrtc.so", 1);
    assert_int_equal(open_compiled(identity), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "/nowhere/libnvrtc.so"));
    setenv("ESPER_NVRTC", kept, 1);
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* nothing can be kept: compiled each time */
    assert_int_equal(open_compiled(identity), ESPER_OK);
}

static int nothing_is_left(void **state)
{
    esper_mem_stats stats;

    (void)state;
    esper_mem_stats_get(&stats);
    return stats.n_live == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_once),
        cmocka_unit_test(what_computes_is_known),
        cmocka_unit_test(failures_are_told),
    };

    if (getenv("NVRTC_FAKE") == NULL) {
        print_message("skipped: NVRTC_FAKE does not name tests/cuda/fake_nvrtc.c as a library\n");
        return 77;
    }
    setenv("ESPER_NVRTC", getenv("NVRTC_FAKE"), 1);
    setenv("ESPER_TEST_NO_CUBIN", "1", 1);
    return cmocka_run_group_tests(tests, NULL, nothing_is_left);
}
