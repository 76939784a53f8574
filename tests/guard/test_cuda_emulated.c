/* ctest: labels=noasan */
/* The CUDA engine without CUDA: its cases on an emulated driver (which changes stacks, so not under AddressSanitizer),
 * every driver call failing once, and what it says where there is no driver at all. */
#include "cuda_cases.h"
#include "emulated_cuda.h"
#include "support/cuda_devices.h"

static uint64_t large_bytes(void)
{
    return 120000;
}

static void capture_begin(fixture *f)
{
    (void)f;
    emulated_capture(true);
}

static void capture_end(fixture *f)
{
    (void)f;
    emulated_capture(false);
    assert_true(graph_records_event);
}

static void capture_replay(fixture *f)
{
    (void)f;
    emulated_replay();
}

static void capture_close(fixture *f)
{
    (void)f;
}

/* One of everything; the status of the first that failed. */
static esper_status use_everything(esper_device *device, void *memory, esper_copy_part *part)
{
    esper_scan_engine *engine = NULL;
    esper_cuda_copy *copy = NULL;
    esper_scan_tensor tensor = {.data = memory, .count = 60, .dtype = ESPER_GUARD_F32, .role = ESPER_GUARD_ROLE_GRAD};
    esper_scan_request request = {.roles = ALL_ROLES, .tiny = 1e-8, .clip_norm = 0.5};
    esper_scan_result result;
    esper_status st = esper_scan_engine_cuda.open(0, &no_options, &engine);

    if (st == ESPER_OK)
        st = esper_scan_engine_cuda.bind(engine, &tensor, 1, 1);
    if (st == ESPER_OK)
        st = esper_scan_engine_cuda.rebind(engine, &memory);
    if (st == ESPER_OK)
        st = esper_scan_engine_cuda.scan(engine, &request);
    if (st == ESPER_OK)
        st = esper_scan_engine_cuda.collect(engine, &result);
    if (st == ESPER_OK)
        st = esper_cuda_copy_open(device, part, 1, &copy);
    if (st == ESPER_OK)
        st = esper_cuda_copy_gather(copy, (char *)memory + 512, (uint64_t *)memory + 100, NULL);
    esper_cuda_copy_close(copy);
    esper_scan_engine_cuda.close(engine);
    return st;
}

/* Fails the first call or allocation, the second, ... until none is left to fail; what is open and live stays what it was.
 * Returns how many there were. */
static uint64_t survive_all(void (*fail_at)(uint64_t nth), bool of_memory)
{
    esper_device *device;
    esper_mem_stats before, after;
    esper_copy_part part = {.bytes = 256};
    esper_status st = ESPER_E_NOMEM;
    uint64_t n_failures = 0;
    void *memory;

    check_good(esper_device_open("cuda", 0, &device));
    check_good(esper_device_alloc(device, 4096, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    part.data = memory;
    check_good(use_everything(device, memory, &part)); /* the device keeps its kernels from here on */
    esper_mem_stats_get(&before);
    while (st != ESPER_OK) {
        int live = emulated_cuda_live();

        fail_at(n_failures + 1);
        st = use_everything(device, memory, &part);
        fail_at(0);
        drain();
        n_failures += st != ESPER_OK;
        assert_true(st == ESPER_OK || !of_memory || st == ESPER_E_NOMEM);
        assert_true(st == ESPER_OK || strlen(esper_last_error()) > 0);
        assert_int_equal(emulated_cuda_live(), live);
        assert_int_equal(context_depth, 0);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        assert_true(n_failures < 1000);
    }
    esper_device_release(device, memory);
    esper_device_close(device);
    return n_failures;
}

static void every_failing_call_is_survived(void **state)
{
    (void)state;
    assert_true(survive_all(emulated_cuda_fail_at, false) > 40);
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    assert_true(survive_all(esper_mem_fail_at, true) >= 8);
}

static void memory_of_another_device_is_refused(void **state)
{
    esper_device *other;
    esper_scan_engine *engine;
    void *memory;

    (void)state;
    check_good(esper_device_open("cuda", 1, &other));
    check_good(esper_device_alloc(other, 64, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    check_good(esper_scan_engine_cuda.open(0, &no_options, &engine));
    assert_int_equal(esper_scan_engine_cuda.check(engine, memory, 64), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "CUDA device 1, not of 0"));
    esper_scan_engine_cuda.close(engine);
    esper_device_release(other, memory);
    esper_device_close(other);
}

/* Two CUDA devices and host memory under one guard: each has a share of every group. */
static void a_guard_joins_several_devices(void **state)
{
    enum { N = 30, COUNT = 50, DEVICES = 3 };
    static float host[N * COUNT];
    static char names[N][16];
    esper_guard_tensor tensors[N];
    esper_device *devices[DEVICES - 1];
    void *memory[DEVICES - 1];
    const esper_guard_report *report;
    esper_guard_scan request;
    esper_guard *guard;

    (void)state;
    for (int d = 0; d < DEVICES - 1; d++) {
        check_good(esper_device_open("cuda", d, &devices[d]));
        check_good(esper_device_alloc(devices[d], sizeof(host), ESPER_DEVICE_MEMORY_NORMAL, &memory[d]));
    }
    fill(host, N * COUNT, ESPER_GUARD_F32, DATA_PLAIN);
    for (int i = 0; i < N; i++) {
        int d = i % DEVICES;

        snprintf(names[i], sizeof(names[i]), "t%d", i);
        tensors[i] = (esper_guard_tensor){.name = names[i],
                                          .group = i % 4 < 2 ? "a" : "b",
                                          .role = i < 20 ? ESPER_GUARD_ROLE_PARAM : ESPER_GUARD_ROLE_GRAD,
                                          .dtype = ESPER_GUARD_F32,
                                          .device = d == 0 ? ESPER_GUARD_HOST : d - 1,
                                          .data = d == 0 ? host + i * COUNT : (float *)memory[d - 1] + i * COUNT,
                                          .count = COUNT};
        memcpy(tensors[i].data, host + i * COUNT, COUNT * sizeof(float)); /* a device's memory is the host's here */
    }
    check_good(esper_guard_open(NULL, &guard));
    check_good(esper_guard_add(guard, tensors, 10)); /* groups come later that some devices know nothing of */
    check_good(esper_guard_add(guard, tensors + 10, N - 10));
    esper_guard_scan_init(&request);
    for (int turn = 0; turn < 3; turn++) {
        double squares = 0;

        request.roles = turn == 1 ? GRADS : 0;
        if (turn == 2) {
            *(float *)tensors[17].data = NAN;
            *(float *)tensors[11].data = INFINITY;
        }
        check_good(esper_guard_launch(guard, &request));
        check_good(esper_guard_read(guard, &report));
        for (int i = 0; i < N; i++) {
            double unused, norm = sqrt(reference_scan(tensors[i].data, COUNT, ESPER_GUARD_F32, 0, &unused).sum_squares);

            assert_int_equal(report->stats[i].scanned, turn != 1 || i >= 20);
            squares += i >= 20 ? norm * norm : 0;
            if (report->stats[i].scanned && i != 17 && i != 11)
                assert_true(fabs(report->stats[i].norm - norm) <= 1e-12 * norm);
            else if (!report->stats[i].scanned)
                assert_true(report->stats[i].norm == 0);
        }
        assert_true(fabs(report->grad_norm - sqrt(squares)) <= 1e-12 * report->grad_norm);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_GRAD].n_tensors, 10);
        assert_int_equal(report->totals[ESPER_GUARD_ROLE_PARAM].measured, turn != 1);
        assert_int_equal(report->n_groups, 4);
        assert_int_equal(report->bad, turn == 2 ? ESPER_GUARD_BAD_NAN_STATE | ESPER_GUARD_BAD_INF_STATE : 0);
        assert_int_equal(report->first_bad, turn == 2 ? 11 : ESPER_GUARD_NONE);
        assert_int_equal(report->n_bad, turn == 2 ? 2 : 0);
    }
    esper_guard_close(guard);
    for (int d = 0; d < DEVICES - 1; d++) {
        esper_device_release(devices[d], memory[d]);
        esper_device_close(devices[d]);
    }
}

/* ------------------------------------------------------------------------------------------- graphs, under a guard */

/* A parameter and a gradient on a device, and a tensor in host memory, which is added only where it is wanted. */
typedef struct graph_bench {
    esper_device      *device;
    float             *memory[2];
    float              host[4];
    esper_guard_tensor tensors[3];
    esper_guard       *guard;
    esper_guard_scan   scan;
} graph_bench;

static const uint32_t params = 1u << ESPER_GUARD_ROLE_PARAM, grads = 1u << ESPER_GUARD_ROLE_GRAD;

static void open_graph_bench(graph_bench *b, size_t n_tensors)
{
    static const esper_guard_role roles[] = {ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_ROLE_OTHER};

    *b = (graph_bench){0};
    check_good(esper_device_open("cuda", 0, &b->device));
    for (int i = 0; i < 3; i++) {
        void *memory = b->host;

        if (i < 2) {
            check_good(esper_device_alloc(b->device, sizeof(b->host), ESPER_DEVICE_MEMORY_NORMAL, &memory));
            memset(memory, 0, sizeof(b->host));
            b->memory[i] = memory;
        }
        b->tensors[i] = (esper_guard_tensor){.name = "w",
                                             .group = "host",
                                             .role = roles[i],
                                             .dtype = ESPER_GUARD_F32,
                                             .device = i < 2 ? 0 : ESPER_GUARD_HOST,
                                             .data = memory,
                                             .count = 4};
    }
    check_good(esper_guard_open(NULL, &b->guard));
    check_good(esper_guard_add(b->guard, b->tensors, n_tensors));
    esper_guard_scan_init(&b->scan);
}

static void close_graph_bench(graph_bench *b)
{
    esper_guard_close(b->guard);
    for (int i = 0; i < 2; i++)
        esper_device_release(b->device, b->memory[i]);
    esper_device_close(b->device);
}

static esper_status capture_scan(graph_bench *b, uint32_t roles)
{
    esper_status st;

    b->scan.roles = roles;
    emulated_capture(true);
    st = esper_guard_launch(b->guard, &b->scan);
    emulated_capture(false);
    return st;
}

static const esper_guard_report *read_report(graph_bench *b)
{
    const esper_guard_report *report;

    check_good(esper_guard_read(b->guard, &report));
    return report;
}

static void expect_nothing_new(graph_bench *b)
{
    const esper_guard_report *report;

    assert_int_equal(esper_guard_read(b->guard, &report), ESPER_E_STATE);
    assert_non_null(strstr(esper_last_error(), "no replay since the last read"));
}

static uint64_t n_calls(esper_cuda_function function)
{
    return atomic_load(&esper_cuda_calls[function]);
}

/* Read before any replay, and twice for one: never what an earlier scan found. */
static void a_graph_is_read_once_a_replay(void **state)
{
    graph_bench b;

    (void)state;
    open_graph_bench(&b, 2);
    check_good(esper_guard_launch(b.guard, NULL));
    assert_int_equal(read_report(&b)->bad, 0);
    b.memory[0][1] = NAN;
    check_good(capture_scan(&b, 0));
    expect_nothing_new(&b);
    expect_nothing_new(&b);
    emulated_replay();
    assert_int_equal(read_report(&b)->bad, ESPER_GUARD_BAD_NAN_STATE);
    expect_nothing_new(&b);
    b.memory[0][1] = 0;
    emulated_replay();
    emulated_replay();
    assert_int_equal(read_report(&b)->bad, 0);
    expect_nothing_new(&b);
    close_graph_bench(&b);
}

/* Two graphs: the report is of the one that ran, whichever was captured last. */
static void the_graph_that_ran_is_reported(void **state)
{
    static emulated_list of_grads;
    const esper_guard_report *report;
    graph_bench b;

    (void)state;
    open_graph_bench(&b, 2);
    b.scan.clip_norm = 1;
    b.memory[1][0] = 100;
    check_good(capture_scan(&b, grads));
    of_grads = captured;
    b.scan.clip_norm = 0;
    check_good(capture_scan(&b, 0));
    b.memory[0][0] = NAN;
    emulated_replay();
    report = read_report(&b);
    assert_int_equal(report->bad, ESPER_GUARD_BAD_NAN_STATE);
    assert_true(report->clip_factor == 1);
    captured = of_grads;
    emulated_replay();
    report = read_report(&b);
    assert_int_equal(report->bad, 0);
    assert_int_equal(report->first_bad, ESPER_GUARD_NONE);
    assert_int_equal(report->stats[0].scanned, 0);
    assert_int_equal(report->stats[1].scanned, 1);
    assert_int_equal(report->totals[ESPER_GUARD_ROLE_PARAM].measured, 0);
    assert_true(report->clip_factor < 0.011 && report->clip_factor > 0.009);
    close_graph_bench(&b);
}

/* Half of a scan would be done once and half at every replay. */
static void a_scan_is_not_captured_in_part(void **state)
{
    graph_bench b;

    (void)state;
    open_graph_bench(&b, 3);
    assert_int_equal(capture_scan(&b, 0), ESPER_E_UNSUPPORTED);
    assert_non_null(strstr(esper_last_error(), "cannot be captured"));
    assert_int_equal(captured.n, 0);
    check_good(capture_scan(&b, params | grads));
    b.memory[1][2] = INFINITY;
    emulated_replay();
    assert_int_equal(read_report(&b)->bad, ESPER_GUARD_BAD_INF_GRAD);
    check_good(esper_guard_launch(b.guard, NULL)); /* outside a graph all are scanned together */
    assert_int_equal(read_report(&b)->first_bad, 1);
    close_graph_bench(&b);
}

/* A replay that nobody has read may be running: scans on other streams, new addresses and new tensors wait for it. */
static void replays_in_flight_are_waited_for(void **state)
{
    void *data[2];
    uint64_t before;
    graph_bench b;

    (void)state;
    open_graph_bench(&b, 2);
    before = n_calls(ESPER_CUDA_cuStreamWaitEvent);
    check_good(esper_guard_launch(b.guard, NULL)); /* no graph yet: nothing to wait for */
    read_report(&b);
    assert_int_equal(n_calls(ESPER_CUDA_cuStreamWaitEvent), before);
    n_external_waits = 0;
    check_good(capture_scan(&b, 0));
    assert_int_equal(n_external_waits, 1);
    emulated_replay();
    read_report(&b);
    emulated_replay();
    before = n_calls(ESPER_CUDA_cuStreamWaitEvent);
    check_good(esper_guard_launch(b.guard, NULL));
    assert_int_equal(n_calls(ESPER_CUDA_cuStreamWaitEvent), before + 1);
    read_report(&b);
    check_good(capture_scan(&b, 0));
    b.memory[0][0] = NAN;
    emulated_replay();
    data[0] = data[1] = b.memory[1];
    check_good(esper_guard_replace(b.guard, data, 2));
    assert_int_equal(queued.n, 0);
    assert_int_equal(read_report(&b)->first_bad, 0); /* of the addresses before */
    emulated_replay();
    assert_int_equal(read_report(&b)->bad, 0);
    emulated_replay();
    before = n_calls(ESPER_CUDA_cuEventSynchronize);
    b.tensors[0].name = "v";
    check_good(esper_guard_add(b.guard, b.tensors, 1));
    assert_int_equal(n_calls(ESPER_CUDA_cuEventSynchronize), before + 1);
    close_graph_bench(&b);
}

/* A flag that may be set by the host may not for that reason be set by a kernel. */
static void a_flag_is_checked_for_its_roles(void **state)
{
    uint32_t flag = 77;
    graph_bench b;

    (void)state;
    open_graph_bench(&b, 3);
    b.scan.skip_flag = &flag;
    b.scan.roles = 1u << ESPER_GUARD_ROLE_OTHER;
    check_good(esper_guard_launch(b.guard, &b.scan));
    read_report(&b);
    assert_int_equal(flag, 0);
    b.scan.roles = params;
    assert_int_equal(esper_guard_launch(b.guard, &b.scan), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "skip_flag"));
    close_graph_bench(&b);
}

static void nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(emulated_cuda_live(), 0);
    assert_int_equal(context_depth, 0);
}

/* Whatever this machine has: without a driver the reason is told, and nothing else happens. */
static void without_a_driver_the_reason_is_told(void **state)
{
    esper_scan_engine *engine = NULL;
    esper_status st;

    (void)state;
    esper_cuda_driver_replace(NULL);
    if (cuda_devices() > 0)
        skip();
    st = esper_scan_engine_cuda.open(0, &no_options, &engine);
    assert_int_equal(st, ESPER_E_UNSUPPORTED);
    assert_null(engine);
    assert_non_null(strstr(esper_last_error(), "CUDA cannot be used here: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CUDA_CASES,
        cmocka_unit_test(every_failing_call_is_survived),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(memory_of_another_device_is_refused),
        cmocka_unit_test(a_guard_joins_several_devices),
        cmocka_unit_test(a_graph_is_read_once_a_replay),
        cmocka_unit_test(the_graph_that_ran_is_reported),
        cmocka_unit_test(a_scan_is_not_captured_in_part),
        cmocka_unit_test(replays_in_flight_are_waited_for),
        cmocka_unit_test(a_flag_is_checked_for_its_roles),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(without_a_driver_the_reason_is_told),
    };

    emulated_cuda_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
