/* ctest: cost=9 labels=noasan */
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
#include "tensor/cuda/images.h"

static const char not_cuda[] = "this is no program";

static void kernels_compile_for_known_and_later_devices(void **state)
{
    static const struct {
        int         capability;
        const char *kind;
    } devices[] = {{90, "for sm_90"}, {999, "for compute_"}};
    esper_cuda_code code;

    (void)state;
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (esper_nvrtc_compile("scan.cu", esper_guard_image.source, NULL, devices[i].capability, &code) != ESPER_OK)
            fail_msg("%d: %s", devices[i].capability, esper_last_error());
        if (strncmp(code.title, "NVRTC ", 6) != 0 || strstr(code.title, devices[i].kind) == NULL)
            fail_msg("\"%s\" for %d, expected \"NVRTC ... %s\"", code.title, devices[i].capability, devices[i].kind);
        if (devices[i].capability == 999)
            assert_non_null(strstr(code.bytes, ".entry esper_guard_scan_plain")); /* PTX is text */
        else
            assert_memory_equal(code.bytes, "\177ELF", 4);
        esper_mem_free(code.bytes);
    }
}

/* Those of networks, with all that they include. ESPER_TEST_FULL: every source. */
static void kernels_of_networks_compile(void **state)
{
    static const char *const some[] = {"moves.cu", "dropout.cu"};
    const char *full = getenv("ESPER_TEST_FULL");
    int n = 0;

    (void)state;
    for (const esper_tensor_image *image = esper_tensor_images; image->image.name != NULL; image++) {
        bool wanted = full != NULL;
        esper_cuda_code code;

        for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
            wanted = wanted || strcmp(some[i], image->image.name) == 0;
        if (!wanted)
            continue;
        if (esper_nvrtc_compile(image->image.name, image->image.source, image->image.headers, 90, &code) != ESPER_OK)
            fail_msg("%s", esper_last_error());
        assert_memory_equal(code.bytes, "\177ELF", 4);
        esper_mem_free(code.bytes);
        n++;
    }
    assert_true(n >= (int)(sizeof(some) / sizeof(some[0])));
}

static void what_does_not_compile_is_told(void **state)
{
    esper_cuda_code code = {.bytes = NULL};

    (void)state;
    assert_int_equal(esper_nvrtc_compile("bad.cu", not_cuda, NULL, 90, &code), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "NVRTC does not compile bad.cu"));
    assert_non_null(strstr(esper_last_error(), "error"));
    assert_int_equal(esper_nvrtc_compile("scan.cu", esper_guard_image.source, NULL, 20, &code), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "knows no architecture up to sm_20"));
    assert_null(code.bytes);
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
    esper_cuda_code code = {.bytes = NULL};

    (void)state;
    setenv("ESPER_NVRTC", "/nowhere/libnvrtc.so", 1);
    assert_int_equal(esper_nvrtc_compile("scan.cu", esper_guard_image.source, NULL, 90, &code), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "/nowhere/libnvrtc.so"));
    assert_non_null(strstr(esper_last_error(), "LD_LIBRARY_PATH"));
    assert_null(code.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compile_for_known_and_later_devices),
        cmocka_unit_test(kernels_of_networks_compile),
        cmocka_unit_test(what_does_not_compile_is_told),
        cmocka_unit_test(nothing_is_leaked),
        cmocka_unit_test(a_missing_compiler_is_told),
    };
    const struct CMUnitTest without[] = {cmocka_unit_test(a_missing_compiler_is_told)};
    esper_cuda_code code;
    int failed;

    if (esper_nvrtc_compile("probe.cu", "extern \"C\" __global__ void probe(void) {}", NULL, 90, &code) == ESPER_OK) {
        esper_mem_free(code.bytes);
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    failed = cmocka_run_group_tests(without, NULL, NULL);
    print_message("skipped: %s\n", esper_last_error());
    return failed != 0 ? failed : 77;
}
