/* ctest: labels=noasan */
/* The snapshot ring over the real CUDA engine and kernels, on an emulated driver (which changes stacks, so not under
 * AddressSanitizer). Order is test_ring_order.c's. */
#include "emulated_cuda.h"
#include "ring_cuda_cases.h"

/* A tensor moves, and every driver call of the take that follows fails once: the take after it is of the new address. */
static void a_move_is_not_forgotten(void **state)
{
    const float values[] = {1, 2};
    esper_guard_tensor tensor = {.name = "w", .group = "host", .dtype = ESPER_GUARD_F32, .count = 1};
    esper_ring_options options;
    esper_guard *guard;
    esper_ring *ring;
    void *places[2];
    float *now, *old;
    esper_status st = ESPER_E_NOMEM;
    bench b;

    (void)state;
    bench_init(&b);
    for (int i = 0; i < 2; i++)
        check_good(esper_device_alloc(b.device, 4, ESPER_DEVICE_MEMORY_NORMAL, &places[i]));
    tensor.data = places[0];
    check_good(esper_guard_open(NULL, &guard));
    check_good(esper_guard_add(guard, &tensor, 1));
    esper_ring_options_init(&options);
    options.place = ESPER_RING_DEVICE;
    options.mirror = 0;
    check_good(esper_ring_open(guard, &options, &ring));
    for (uint64_t call = 1; st != ESPER_OK; call++) {
        assert_true(call < 100);
        now = places[call % 2];
        old = places[1 - call % 2];
        *now = values[0];
        *old = values[1];
        check_good(esper_guard_replace(guard, (void *const *)&now, 1));
        emulated_cuda_fail_at(call);
        st = esper_ring_take(ring, call, NULL, 0);
        emulated_cuda_fail_at(0);
        check_good(esper_ring_take(ring, 1000 + call, NULL, 0));
        assert_int_equal(ring_status(ring).newest, ESPER_RING_GOOD);
        *now = 5;
        check_good(esper_ring_rollback(ring, 1, NULL));
        if (*now != values[0] || *old != values[1])
            fail_msg("call %d failed: the tensor is %g, expected %g; its old place %g, expected %g", (int)call,
                     (double)*now, (double)values[0], (double)*old, (double)values[1]);
    }
    esper_ring_close(ring);
    esper_guard_close(guard);
    for (int i = 0; i < 2; i++)
        esper_device_release(b.device, places[i]);
    bench_fini(&b);
}

/* A snapshot or rollback would become part of the graph: refused, and nothing has changed. */
static void a_stream_under_capture_is_refused(void **state)
{
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_small);
    s.guard = device_guard(&s.d);
    s.ring = device_ring(&s.d, s.guard, NULL);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    emulated_capture(true);
    check_status(esper_ring_take(s.ring, 2, NULL, 0), ESPER_E_STATE);
    check_error_says("under capture");
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_STATE);
    check_error_says("under capture");
    emulated_capture(false);
    assert_int_equal(captured.n, 0);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    device_scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RING_CUDA_CASES,
        cmocka_unit_test_teardown(a_move_is_not_forgotten, nothing_left),
        cmocka_unit_test_teardown(a_stream_under_capture_is_refused, nothing_left),
    };

    emulated_cuda_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
