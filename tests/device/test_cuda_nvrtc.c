/* ctest: cost=6 labels=noasan */
/* The run-time compiler: the guard's kernels compile for every device it knows, and what is missing is told. Says
 * "skipped" where there is no NVRTC (LD_LIBRARY_PATH or ESPER_NVRTC may lead to one). Not under the address sanitizer:
 * NVRTC itself leaks when it is unloaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/cuda_nvrtc.h"
#include "guard/cuda_image.h"

static const char not_cuda[] = "this is no program";

static void kernels_compile_for_known_and_later_devices(void **state)
{
    static const struct {
        int         capability;
        const char *kind;
    } devices[] = {{90, "for sm_90"}, {999, "for compute_"}};
    char title[ESPER_NVRTC_TITLE_CHARS];
    void *code;

    (void)state;
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (esper_nvrtc_compile("scan.cu", esper_guard_image.source, devices[i].capability, &code, title) != ESPER_OK)
            fail_msg("%d: %s", devices[i].capability, esper_last_error());
        if (strncmp(title, "NVRTC ", 6) != 0 || strstr(title, devices[i].kind) == NULL)
            fail_msg("\"%s\" for %d, expected \"NVRTC ... %s\"", title, devices[i].capability, devices[i].kind);
        if (devices[i].capability == 999)
            assert_non_null(strstr(code, ".entry esper_guard_scan_plain")); /* PTX is text */
        else
            assert_memory_equal(code, "\177ELF", 4);
        esper_mem_free(code);
    }
}

static void what_does_not_compile_is_told(void **state)
{
    char title[ESPER_NVRTC_TITLE_CHARS];
    void *code = NULL;

    (void)state;
    assert_int_equal(esper_nvrtc_compile("bad.cu", not_cuda, 90, &code, title), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "NVRTC does not compile bad.cu"));
    assert_non_null(strstr(esper_last_error(), "error"));
    assert_int_equal(esper_nvrtc_compile("scan.cu", esper_guard_image.source, 20, &code, title), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "knows no architecture up to sm_20"));
    assert_null(code);
}

static void nothing_is_leaked(void **state)
{
    esper_mem_stats stats;

    (void)state;
    esper_mem_stats_get(&stats);
    assert_int_equal(stats.n_live, 0);
}

static void a_missing_compiler_is_told(void **state)
{
    char title[ESPER_NVRTC_TITLE_CHARS];
    void *code = NULL;

    (void)state;
    setenv("ESPER_NVRTC", "/nowhere/libnvrtc.so", 1);
    assert_int_equal(esper_nvrtc_compile("scan.cu", esper_guard_image.source, 90, &code, title), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "/nowhere/libnvrtc.so"));
    assert_non_null(strstr(esper_last_error(), "LD_LIBRARY_PATH"));
    assert_null(code);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compile_for_known_and_later_devices),
        cmocka_unit_test(what_does_not_compile_is_told),
        cmocka_unit_test(nothing_is_leaked),
        cmocka_unit_test(a_missing_compiler_is_told),
    };
    const struct CMUnitTest without[] = {cmocka_unit_test(a_missing_compiler_is_told)};
    char title[ESPER_NVRTC_TITLE_CHARS];
    void *code;
    int failed;

    if (esper_nvrtc_compile("probe.cu", "extern \"C\" __global__ void probe(void) {}", 90, &code, title) == ESPER_OK) {
        esper_mem_free(code);
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    failed = cmocka_run_group_tests(without, NULL, NULL);
    print_message("skipped: %s\n", esper_last_error());
    return failed != 0 ? failed : 77;
}
