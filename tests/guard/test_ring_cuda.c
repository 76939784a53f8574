/* ctest: timeout=300 */
/* The snapshot ring on a CUDA device: bit-exact, ordered by events alone, stopping nobody. Needs a device; says
 * "skipped" and leaves with 77 where there is none. */
#include <time.h>

#include "ring_cuda_cases.h"
#include "support/cuda_devices.h"
#include "support/cuda_waits.h"

enum { SPIN_NS = 300 * 1000 * 1000, N_SPIN_WORDS = 3 };

/* spin: keeps one thread of the device busy for so many ns; writes when it began and ended and the longest time
 * between two looks at the clock. scribble: writes value ^ index over all words. */
static const char kernels_ptx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry spin(.param .u64 p_out, .param .u64 p_ns)\n{\n"
    "  .reg .pred %p<2>;\n  .reg .b64 %r<10>;\n"
    "  ld.param.u64 %r1, [p_out];\n  ld.param.u64 %r2, [p_ns];\n  cvta.to.global.u64 %r3, %r1;\n"
    "  mov.u64 %r4, %globaltimer;\n  mov.u64 %r5, %r4;\n  mov.u64 %r6, 0;\n"
    "L1:\n  mov.u64 %r7, %globaltimer;\n  sub.u64 %r8, %r7, %r5;\n  max.u64 %r6, %r6, %r8;\n  mov.u64 %r5, %r7;\n"
    "  sub.u64 %r9, %r7, %r4;\n  setp.lt.u64 %p1, %r9, %r2;\n  @%p1 bra L1;\n"
    "  st.global.u64 [%r3], %r4;\n  st.global.u64 [%r3+8], %r7;\n  st.global.u64 [%r3+16], %r6;\n  ret;\n}\n"
    ".visible .entry scribble(.param .u64 p_data, .param .u32 p_n, .param .u32 p_value)\n{\n"
    "  .reg .pred %p<2>;\n  .reg .b32 %w<10>;\n  .reg .b64 %r<5>;\n"
    "  ld.param.u64 %r1, [p_data];\n  ld.param.u32 %w1, [p_n];\n  ld.param.u32 %w2, [p_value];\n"
    "  cvta.to.global.u64 %r2, %r1;\n"
    "  mov.u32 %w3, %ctaid.x;\n  mov.u32 %w4, %ntid.x;\n  mov.u32 %w5, %tid.x;\n  mad.lo.u32 %w6, %w3, %w4, %w5;\n"
    "  mov.u32 %w7, %nctaid.x;\n  mul.lo.u32 %w7, %w7, %w4;\n"
    "L1:\n  setp.ge.u32 %p1, %w6, %w1;\n  @%p1 bra L2;\n  xor.b32 %w8, %w2, %w6;\n"
    "  mul.wide.u32 %r3, %w6, 4;\n  add.u64 %r4, %r2, %r3;\n  st.global.u32 [%r4], %w8;\n  add.u32 %w6, %w6, %w7;\n"
    "  bra L1;\nL2:\n  ret;\n}\n";

/* The kernels above, on a bench. */
typedef struct spinner {
    CUmodule   module;
    CUfunction spin, scribble;
    uint64_t  *spun; /* (N_SPIN_WORDS) pinned */
} spinner;

static void spinner_init(spinner *s, bench *b)
{
    void *words;

    check_good(esper_device_alloc(b->device, N_SPIN_WORDS * sizeof(uint64_t), ESPER_DEVICE_MEMORY_PINNED, &words));
    s->spun = words;
    check_good(esper_cuda_enter(b->device));
    check_good(ESPER_CUDA(cuModuleLoadData, &s->module, kernels_ptx));
    check_good(ESPER_CUDA(cuModuleGetFunction, &s->spin, s->module, "spin"));
    check_good(ESPER_CUDA(cuModuleGetFunction, &s->scribble, s->module, "scribble"));
    esper_cuda_leave();
}

static void spinner_fini(spinner *s, bench *b)
{
    check_good(esper_stream_sync(b->stream));
    check_good(esper_stream_sync(b->other));
    check_good(esper_cuda_enter(b->device));
    check_good(ESPER_CUDA(cuModuleUnload, s->module));
    esper_cuda_leave();
    esper_device_release(b->device, s->spun);
}

static void launch(bench *b, CUfunction function, unsigned grid, unsigned block, esper_stream *stream,
                   void **parameters)
{
    check_good(esper_cuda_enter(b->device));
    check_good(ESPER_CUDA(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, esper_stream_native(stream), parameters,
                          NULL));
    esper_cuda_leave();
}

static void launch_spin(spinner *s, bench *b, esper_stream *stream, uint64_t ns)
{
    uint64_t out = (uint64_t)(uintptr_t)s->spun;
    void *parameters[] = {&out, &ns};

    memset(s->spun, 0, N_SPIN_WORDS * sizeof(uint64_t));
    launch(b, s->spin, 1, 1, stream, parameters);
}

static void launch_scribble(spinner *s, bench *b, esper_stream *stream, void *data, uint64_t bytes, uint32_t value)
{
    uint64_t at = (uint64_t)(uintptr_t)data;
    uint32_t n = (uint32_t)(bytes / 4);
    void *parameters[] = {&at, &n, &value};

    launch(b, s->scribble, 64, 256, stream, parameters);
}

static void from_disk(void **state)
{
    esper_ring_options options;
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_all);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    for (int place = ESPER_RING_DEVICE; place <= ESPER_RING_HOST; place++) {
        esper_ring_options_init(&options);
        options.place = (esper_ring_place)place;
        options.mirror = 0;
        options.directory = "ring-cuda";
        s.ring = device_ring(&s.d, s.guard, &options);
        check_good(esper_ring_take(s.ring, 9, "blob", 5));
        esper_ring_close(s.ring);
        check_good(esper_stream_set(s.b.stream, s.d.block, 0xFF, s.d.bytes));
        options.resume = 1;
        s.ring = device_ring(&s.d, s.guard, &options);
        assert_null(ring_status(s.ring).disk_error);
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        assert_int_equal(restored.step, 9);
        assert_int_equal(restored.from_host, 2);
        assert_string_equal(restored.blob, "blob");
        download(&s.d);
        model_check(&s.d.host, s.taken);
        esper_ring_close(s.ring);
        s.ring = NULL;
    }
    unlink("ring-cuda/snapshot.ring");
    unlink("ring-cuda/lock");
    rmdir("ring-cuda");
    device_scene_close(&s);
}

/* ---- order ---- */

/* Large enough that a copy takes a while. */
static void model_init_large(model *m)
{
    *m = (model){0};
    model_add(m, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 4000000, 0);
    model_add(m, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 1000001, 0);
    model_add(m, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_F32, 3000000, 0);
    model_fill(m, 21);
}

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A stream that has nothing to do with the tensors spins for 300 ms. Snapshot and rollback begin and end
 * meanwhile, and the spinner never stood still. */
static void other_streams_go_on(void **state)
{
    esper_device_event *spun;
    esper_ring_restored restored;
    double start, taking, going_back;
    bool reached = true;
    spinner spin;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_large);
    spinner_init(&spin, &s.b);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring_at(&s.d, s.guard, ESPER_RING_DEVICE, 1);
    check_good(esper_ring_take(s.ring, 1, NULL, 0)); /* kernels are loaded now */
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    check_good(esper_device_event_open(s.b.device, &spun));

    launch_spin(&spin, &s.b, s.b.other, SPIN_NS);
    check_good(esper_device_event_record(spun, s.b.other));
    start = now_seconds();
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD); /* waited for */
    taking = now_seconds() - start;
    launch_scribble(&spin, &s.b, s.b.stream, s.d.tensors[0].data, 16000000, 0x3F000000);
    start = now_seconds();
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    going_back = now_seconds() - start;
    check_good(esper_device_event_query(spun, &reached));
    assert_false(reached); /* the spinner still spins: nobody waited for it */
    check_good(esper_device_event_sync(spun));
    print_message("take %.3f ms, rollback %.3f ms, spinner %.3f ms with a longest pause of %.3f ms\n", taking * 1e3,
                  going_back * 1e3, (double)(spin.spun[1] - spin.spun[0]) * 1e-6, (double)spin.spun[2] * 1e-6);
    assert_true(spin.spun[1] - spin.spun[0] >= SPIN_NS && spin.spun[1] - spin.spun[0] < SPIN_NS * 101ull / 100);
    assert_true(spin.spun[2] < 5 * 1000 * 1000);
    assert_int_equal(restored.step, 2);
    download(&s.d);
    model_check(&s.d.host, s.taken);
    esper_device_event_close(spun);
    spinner_fini(&spin, &s.b);
    device_scene_close(&s);
}

/* 100 kernels that write the parameters are queued, then a rollback, and nobody waits: what is found at the end is the
 * snapshot, every time. A second registered stream writes too. */
static void writers_cannot_tear_it(void **state)
{
    esper_ring_restored restored;
    uint64_t waits = 0;
    spinner spin;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_large);
    spinner_init(&spin, &s.b);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring_at(&s.d, s.guard, ESPER_RING_DEVICE, 1);
    check_good(esper_ring_add_stream(s.ring, 0, esper_stream_native(s.b.other)));
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
    for (uint32_t round = 0; round < 200; round++) {
        uint64_t before;

        for (uint32_t k = 0; k < 100; k++)
            launch_scribble(&spin, &s.b, k % 2 ? s.b.stream : s.b.other, s.d.tensors[k % 3].data,
                            model_bytes(&s.d.host, k % 3), round * 1000 + k);
        before = esper_cuda_waits();
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        waits += esper_cuda_waits() - before;
        assert_int_equal(restored.step, 1);
        if (round % 20 == 19) {
            download(&s.d); /* on a registered stream, behind the rollback */
            model_check(&s.d.host, s.taken);
        }
    }
    assert_int_equal(waits, 0);
    assert_int_equal(ring_status(s.ring).n_good, 1); /* the sums of the last one fitted */
    spinner_fini(&spin, &s.b);
    device_scene_close(&s);
}

/* A snapshot is of the tensors as they are behind the work queued so far, and what is queued next cannot reach into it;
 * neither call waits. */
static void takes_see_what_was_queued_before(void **state)
{
    static const esper_ring_place places[] = {ESPER_RING_DEVICE, ESPER_RING_HOST};

    (void)state;
    for (int i = 0; i < 2; i++) {
        device_scene s;
        spinner spin;

        device_scene_open(&s, model_init_large);
        spinner_init(&spin, &s.b);
        s.guard = device_guard(&s.d);
        s.ring = device_ring_at(&s.d, s.guard, places[i], 1);
        for (uint32_t round = 1; round < 30; round++) {
            const uint32_t *found;
            uint64_t before;

            ring_status(s.ring); /* the last one is read, so that take has nothing to wait for */
            launch_spin(&spin, &s.b, s.b.stream, 1000 * 1000);
            launch_scribble(&spin, &s.b, s.b.stream, s.d.tensors[0].data, 16000000, round);
            before = esper_cuda_waits();
            check_good(esper_ring_take(s.ring, round, NULL, 0));
            launch_scribble(&spin, &s.b, s.b.stream, s.d.tensors[0].data, 16000000,
                            0xFFFFFFFFu); /* NaN: the scan would refuse it */
            check_good(esper_ring_rollback(s.ring, 0, NULL));
            assert_int_equal(esper_cuda_waits() - before,
                             1); /* the rollback, for the verdict about what it goes back to */
            download(&s.d);
            found = s.d.host.tensors[0].data;
            for (uint32_t w = 0; w < 4000000; w++)
                if (found[w] != (round ^ w))
                    fail_msg("place %d, round %u, word %u: %#x, expected %#x", i, round, w, found[w], round ^ w);
        }
        spinner_fini(&spin, &s.b);
        device_scene_close(&s);
    }
}

/* ---- memory ---- */

static void larger_than_the_device(void **state)
{
    esper_ring_options options;
    uint64_t available;
    void *hog = NULL;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_large);
    s.guard = device_guard(&s.d);
    esper_ring_options_init(&options);
    options.place = ESPER_RING_DEVICE;
    options.max_bytes = 1000000;
    check_status(esper_ring_open(s.guard, &options, &s.ring), ESPER_E_NOMEM);
    check_error_says("memory of CUDA device 0, the limit (max_bytes) is 1000.0 kB");
    options.max_bytes = 0;
    options.n_entries = 4000;
    check_good(esper_device_memory_free(s.b.device, &available));
    if (available < 4000 * 32000000ull) { /* 128 GB */
        check_status(esper_ring_open(s.guard, &options, &s.ring), ESPER_E_NOMEM);
        check_error_says("of memory of CUDA device 0");
        check_error_says("are available");
    }
    options.n_entries = 2;
    if (esper_device_alloc(s.b.device, available - 48000000, ESPER_DEVICE_MEMORY_NORMAL, &hog) == ESPER_OK) {
        options.place = ESPER_RING_AUTO;
        options.mirror = 0;
        check_good(esper_ring_open(s.guard, &options, &s.ring)); /* goes to host memory instead */
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
        assert_int_equal(ring_status(s.ring).device_bytes, 0);
        assert_true(ring_status(s.ring).host_bytes >= 64000000);
        esper_ring_close(s.ring);
        s.ring = NULL;
        esper_device_release(s.b.device, hog);
    }
    device_scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RING_CUDA_CASES,
        cmocka_unit_test_teardown(from_disk, nothing_left),
        cmocka_unit_test_teardown(other_streams_go_on, nothing_left),
        cmocka_unit_test_teardown(writers_cannot_tear_it, nothing_left),
        cmocka_unit_test_teardown(takes_see_what_was_queued_before, nothing_left),
        cmocka_unit_test_teardown(larger_than_the_device, nothing_left),
    };

    if (cuda_devices() == 0) {
        puts("skipped: no CUDA device");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
