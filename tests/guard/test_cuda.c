/* ctest: timeout=300 */
/* The CUDA engine on a device: its cases, tensors of more than 2^31 elements, several engines at once, the guard over
 * device and host together, and kernels compiled by NVRTC. Says "skipped" and leaves with 77 where there is no device.
 * ESPER_TEST_SMALL=1 leaves large tensors out, for compute-sanitizer; ESPER_TEST_FILTER=PATTERN runs some tests. */
#include "cuda_cases.h"
#include "support/cuda_devices.h"

#include <dlfcn.h>

static bool is_small_run(void)
{
    const char *small = getenv("ESPER_TEST_SMALL");

    return small != NULL && strcmp(small, "1") == 0;
}

static uint64_t large_bytes(void)
{
    return is_small_run() ? 200000 : 8 << 20;
}

/* -------------------------------------------------------------------------------------------- graphs, by the driver */

static struct {
    CUresult (*begin)(CUstream stream, int mode);
    CUresult (*end)(CUstream stream, void **graph);
    CUresult (*instantiate)(void **exec, void *graph, unsigned long long flags);
    CUresult (*launch)(void *exec, CUstream stream);
    CUresult (*destroy_exec)(void *exec);
    CUresult (*destroy)(void *graph);
    void *graph, *exec;
} graphs;

static void find_graphs(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found[6];
    static const char *const names[] = {"cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                                        "cuGraphLaunch",           "cuGraphExecDestroy", "cuGraphDestroy"};

    for (int i = 0; i < 6; i++) {
        found[i] = dlsym(library, names[i]);
        if (found[i] == NULL)
            fail_msg("the driver has no %s", names[i]);
    }
    memcpy(&graphs, found, sizeof(found));
}

static void capture_begin(fixture *f)
{
    find_graphs();
    check_good(esper_cuda_enter(f->device));
    assert_int_equal(graphs.begin(esper_stream_native(f->stream), 0), CUDA_SUCCESS); /* the strictest mode: global */
}

static void capture_end(fixture *f)
{
    assert_int_equal(graphs.end(esper_stream_native(f->stream), &graphs.graph), CUDA_SUCCESS);
    assert_int_equal(graphs.instantiate(&graphs.exec, graphs.graph, 0), CUDA_SUCCESS);
    esper_cuda_leave();
}

static void capture_replay(fixture *f)
{
    check_good(esper_cuda_enter(f->device));
    assert_int_equal(graphs.launch(graphs.exec, esper_stream_native(f->stream)), CUDA_SUCCESS);
    esper_cuda_leave();
}

static void capture_close(fixture *f)
{
    check_good(esper_stream_sync(f->stream));
    check_good(esper_cuda_enter(f->device));
    graphs.destroy_exec(graphs.exec);
    graphs.destroy(graphs.graph);
    esper_cuda_leave();
}

/* ---------------------------------------------------------------------------------------------------- large tensors */

/* A tensor on the device alone, every byte the same. */
static void scan_huge(esper_guard_dtype dtype, uint64_t count, int byte)
{
    esper_scan_tensor tensor = {.count = count, .dtype = dtype, .role = ESPER_GUARD_ROLE_PARAM};
    uint64_t bytes = count * dtype_bytes[dtype], bits = 0, at[] = {count - 1, ((uint64_t)1 << 31) + 5};
    esper_scan_request request;
    double value, want;
    fixture f;

    open_fixture(&f);
    check_good(esper_device_alloc(f.device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &tensor.data));
    check_good(esper_stream_set(f.stream, tensor.data, byte, bytes));
    check_good(esper_scan_engine_cuda.bind(f.engine, &tensor, 1, 1));
    f.n_bound = 1;
    memset(&bits, byte, dtype_bytes[dtype]);
    value = value_of_bits(dtype, bits);
    request = request_of(&f, ALL_ROLES);
    request.checksum = true;
    scan(&f, &request);
    assert_true(fabs(f.stats[0].mean - value) <= 1e-12 * value);
    want = sqrt((double)count) * value;
    assert_true(fabs(f.stats[0].norm - want) <= 1e-12 * want);
    assert_true(f.stats[0].max_abs == value && f.stats[0].min_abs == value);
    assert_int_equal(f.stats[0].first_bad, UINT64_MAX);
    for (int i = 0; i < 2; i++) {
        uint64_t checksum = f.stats[0].checksum;

        check_good(esper_cuda_inject(f.engine, (char *)tensor.data + at[i] * dtype_bytes[dtype], dtype_bytes[dtype], 0,
                                     infinities[dtype] | 1, request.stream));
        scan(&f, &request);
        assert_int_equal(f.stats[0].n_nan, i + 1);
        assert_int_equal(f.stats[0].first_bad, at[i]);
        assert_true(f.stats[0].checksum != checksum);
    }
    assert_true(esper_cuda_engine_bytes(f.engine) < 1000000);
    esper_device_release(f.device, tensor.data);
    close_fixture(&f);
}

static void more_than_2_to_the_31_elements(void **state)
{
    (void)state;
    if (is_small_run())
        skip();
    scan_huge(ESPER_GUARD_BF16, ((uint64_t)1 << 31) + 1001, 0x3f);
    scan_huge(ESPER_GUARD_F32, ((uint64_t)1 << 31) + 777, 0x41);
}

static void ten_thousand_tensors_are_two_launches_at_most(void **state)
{
    enum { N = 10000, COUNT = 257 };
    esper_scan_tensor *tensors = calloc(N, sizeof(*tensors));
    float *host = malloc((size_t)N * COUNT * 4);
    uint64_t launches, waits;
    esper_scan_request request;
    void *memory;
    fixture f;

    (void)state;
    open_fixture(&f);
    check_good(esper_device_alloc(f.device, (size_t)N * COUNT * 4, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    fill(host, (uint64_t)N * COUNT, ESPER_GUARD_F32, DATA_SPECIAL);
    check_good(esper_stream_copy(f.stream, memory, host, (size_t)N * COUNT * 4));
    for (size_t i = 0; i < N; i++)
        tensors[i] = (esper_scan_tensor){.data = (char *)memory + i * COUNT * 4,
                                         .count = COUNT,
                                         .dtype = ESPER_GUARD_F32,
                                         .role = i % 2 ? ESPER_GUARD_ROLE_GRAD : ESPER_GUARD_ROLE_PARAM,
                                         .group = i % 2};
    check_good(esper_scan_engine_cuda.bind(f.engine, tensors, N, 2));
    request = request_of(&f, ALL_ROLES);
    launches = calls_of(ESPER_CUDA_cuLaunchKernel);
    waits = esper_cuda_waits();
    check_good(esper_scan_engine_cuda.scan(f.engine, &request));
    check_good(esper_scan_engine_cuda.collect(f.engine, &f.result));
    assert_true(calls_of(ESPER_CUDA_cuLaunchKernel) - launches <= 2);
    assert_int_equal(esper_cuda_waits() - waits, 1);
    for (size_t i = 0; i < N; i++) {
        double magnitudes;
        esper_scan_record want = reference_scan(host + i * COUNT, COUNT, ESPER_GUARD_F32, 1e-8, &magnitudes);

        const esper_guard_stat *got = &f.result.stats[i];

        assert_int_equal(got->n_nan, want.n_nan);
        assert_int_equal(got->first_bad, want.first_bad);
        if (want.first_bad == UINT64_MAX)
            assert_true(fabs(got->norm - sqrt(want.sum_squares)) <= 1e-13 * got->norm);
    }
    esper_device_release(f.device, memory);
    close_fixture(&f);
    free(host);
    free(tensors);
}

/* -------------------------------------------------------------------------------------------------- several at once */

/* Engines are independent: two on one device, on streams of their own, queued before either is read. */
static void several_engines_work_side_by_side(void **state)
{
    fixture f[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        open_fixture(&f[i]);
        for (int k = 0; k < 10; k++)
            add_tensor(&f[i], (esper_guard_role)(k % 3), (esper_guard_dtype)(k % 4), k < 5 ? 100000 : 100, 0,
                       DATA_SPECIAL);
        bind(&f[i]);
    }
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 3; i++) {
            esper_scan_request request = request_of(&f[i], ALL_ROLES);

            request.clip_norm = 1e300;
            check_good(esper_scan_engine_cuda.scan(f[i].engine, &request));
        }
        for (int i = 0; i < 3; i++) {
            collect(&f[i]);
            for (size_t t = 0; turn == 0 && t < f[i].n; t++)
                check_stat(&f[i], t, 1e-8, false);
        }
    }
    for (int i = 0; i < 3; i++)
        close_fixture(&f[i]);
}

/* The default stream of a caller who has none. */
static void default_stream_is_taken(void **state)
{
    esper_scan_request request;
    fixture f;

    (void)state;
    open_fixture(&f);
    add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 100000, 0, DATA_SPECIAL);
    bind(&f);
    request = request_of(&f, ALL_ROLES);
    request.stream = NULL;
    scan(&f, &request);
    check_stat(&f, 0, 1e-8, false);
    close_fixture(&f);
}

/* The public functions over tensors on the device and in host memory. */
static void the_guard_joins_device_and_host(void **state)
{
    esper_guard_tensor tensors[4] = {
        {.name = "a",
         .group = "g",
         .role = ESPER_GUARD_ROLE_PARAM,
         .dtype = ESPER_GUARD_F32,
         .device = 0,
         .count = 50000},
        {.name = "b",
         .group = "g",
         .role = ESPER_GUARD_ROLE_PARAM,
         .dtype = ESPER_GUARD_F32,
         .device = -1,
         .count = 50000},
        {.name = "a",
         .group = "g",
         .role = ESPER_GUARD_ROLE_GRAD,
         .dtype = ESPER_GUARD_F32,
         .device = 0,
         .count = 50000},
        {.name = "b",
         .group = "g",
         .role = ESPER_GUARD_ROLE_GRAD,
         .dtype = ESPER_GUARD_F32,
         .device = -1,
         .count = 50000},
    };
    const esper_guard_report *report;
    esper_guard *guard;
    uint64_t waits;
    double norm;
    fixture f;

    (void)state;
    open_fixture(&f);
    check_good(esper_guard_open(NULL, &guard));
    for (size_t i = 0; i < 4; i++) {
        add_tensor(&f, tensors[i].role, ESPER_GUARD_F32, 50000, 0, DATA_PLAIN);
        tensors[i].data = tensors[i].device < 0 ? (void *)f.twins[i].host : f.tensors[i].data;
    }
    norm = reference_norm(&f);
    check_good(esper_guard_add(guard, tensors, 4));
    waits = esper_cuda_waits();
    check_good(esper_guard_launch(guard, NULL));
    check_good(esper_guard_read(guard, &report));
    assert_int_equal(esper_cuda_waits() - waits, 1);
    assert_int_equal(report->bad, 0);
    assert_true(fabs(report->grad_norm - norm) <= 1e-12 * norm);
    for (size_t i = 0; i < 4; i++) {
        double magnitudes;
        esper_scan_record want = reference_scan(f.twins[i].host, 50000, ESPER_GUARD_F32, 1e-8, &magnitudes);

        assert_true(fabs(report->stats[i].norm - sqrt(want.sum_squares)) <= 1e-12 * report->stats[i].norm);
        assert_true(report->stats[i].max_abs == want.max_abs);
    }
    check_good(esper_guard_inject(guard, 2, 41102, ESPER_FAULT_NAN, 0, NULL));
    check_good(esper_guard_launch(guard, NULL));
    check_good(esper_guard_read(guard, &report));
    assert_int_equal(report->bad, ESPER_GUARD_BAD_NAN_GRAD);
    assert_int_equal(report->first_bad, 2);
    assert_int_equal(report->stats[2].first_bad, 41102);
    tensors[0].device = -1; /* host memory it is not, nor the other way round */
    tensors[0].name = "c";
    assert_int_equal(esper_guard_add(guard, tensors, 1), ESPER_E_ARG);
    tensors[1].device = 0;
    tensors[1].name = "d";
    assert_int_equal(esper_guard_add(guard, &tensors[1], 1), ESPER_E_ARG);
    esper_guard_close(guard);
    close_fixture(&f);
}

/* ------------------------------------------------------------------------------------------ where kernels come from */

static void kernels_can_be_compiled_at_run_time(void **state)
{
    esper_scan_request request;
    esper_guard_stat embedded[MAX_TWINS];
    esper_scan_engine *with_nvrtc = NULL, *first;
    esper_status st;
    fixture f;

    (void)state;
    open_fixture(&f);
    setenv("ESPER_TEST_NO_CUBIN", "1", 1);
    st = esper_scan_engine_cuda.open(0, &no_options, &with_nvrtc);
    unsetenv("ESPER_TEST_NO_CUBIN");
    if (st == ESPER_E_UNSUPPORTED) {
        print_message("not tried: %s\n", esper_last_error());
        close_fixture(&f);
        skip();
    }
    check_good(st);
    print_message("kernels: %s, %s\n", esper_cuda_engine_origin(f.engine), esper_cuda_engine_origin(with_nvrtc));
    assert_non_null(strstr(esper_cuda_engine_origin(with_nvrtc), "NVRTC"));
    add_random_tensors(&f);
    bind(&f);
    request = request_of(&f, ALL_ROLES);
    request.checksum = true;
    scan(&f, &request);
    memcpy(embedded, f.stats, sizeof(embedded));
    first = f.engine;
    f.engine = with_nvrtc;
    bind(&f);
    memset(f.stats, 0xEE, sizeof(f.stats));
    scan(&f, &request);
    assert_memory_equal(embedded, f.stats, f.n * sizeof(embedded[0])); /* to the bit */
    esper_scan_engine_cuda.close(first);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CUDA_CASES,
        cmocka_unit_test(more_than_2_to_the_31_elements),
        cmocka_unit_test(ten_thousand_tensors_are_two_launches_at_most),
        cmocka_unit_test(several_engines_work_side_by_side),
        cmocka_unit_test(default_stream_is_taken),
        cmocka_unit_test(the_guard_joins_device_and_host),
        cmocka_unit_test(kernels_can_be_compiled_at_run_time),
    };

    if (cuda_devices() == 0) {
        print_message("skipped: no CUDA device\n");
        return 77;
    }
    if (getenv("ESPER_TEST_FILTER") != NULL)
        cmocka_set_test_filter(getenv("ESPER_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
