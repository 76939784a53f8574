/* ctest: cost=8 labels=tsan */
/* The order that the ring keeps against the caller's streams, its mirrors and its memory on devices, on devices
 * that are played: thousands of schedules that a real one would show once in a year. test_ring_cuda.c has the real
 * ones. */
#include <math.h>
#include <unistd.h>

#include "fake_cuda.h"

enum { N_TENSORS = 5, COUNT = 301, N_SEEDS = 400 };

static int n_torn; /* checks that met something else than they should */

/* Two devices and the host, two streams of the caller on device 0, one on device 1. */
typedef struct scene {
    float              data[N_TENSORS][COUNT];
    char names[N_TENSORS][16];
    esper_guard_tensor tensors[N_TENSORS];
    esper_guard       *guard;
    esper_ring        *ring;
    fake_queue        *writers[3];
} scene;

static const int32_t devices[N_TENSORS] = {0, 1, 0, ESPER_GUARD_HOST, 0};
/* Who writes each tensor; the host's is written by the caller. */
static const int writer_of[N_TENSORS] = {0, 2, 1, -1, 0};

static void run_fill(fake_op *op)
{
    float *data = op->to;

    for (size_t i = 0; i < COUNT; i++)
        data[i] = op->value == UINT64_MAX ? NAN : (float)op->value + (float)i;
}

static void run_check(fake_op *op)
{
    const float *data = op->from;

    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != (float)op->value + (float)i) {
            n_torn++;
            return;
        }
}

/* Queues that every tensor becomes `value` + index, or NaN for UINT64_MAX. */
static void write_all(scene *s, uint64_t value)
{
    for (int i = 0; i < N_TENSORS; i++) {
        fake_op op = {.run = run_fill, .to = s->data[i], .value = value};

        if (writer_of[i] < 0)
            run_fill(&op);
        else
            push(s->writers[writer_of[i]], op);
    }
}

/* Queues a look at every tensor, where its writer would come next. */
static void check_all(scene *s, uint64_t value)
{
    for (int i = 0; i < N_TENSORS; i++) {
        fake_op op = {.run = run_check, .from = s->data[i], .value = value};

        if (writer_of[i] < 0)
            run_check(&op);
        else
            push(s->writers[writer_of[i]], op);
    }
}

/* Waits for all that is queued. */
static void finish(void)
{
    fake.gate_open = true;
    while (fake_step())
        ;
}

static void check_not_torn(uint64_t seed)
{
    finish();
    if (n_torn != 0)
        fail_msg("schedule %llu: %d tensors were found torn", (unsigned long long)seed, n_torn);
}

static void scene_init(scene *s, uint64_t seed, const esper_ring_options *options)
{
    fake_reset(seed);
    n_torn = 0;
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(s->names[i], sizeof(s->names[i]), "t%d", i);
        s->tensors[i] = (esper_guard_tensor){.name = s->names[i],
                                             .group = "host",
                                             .role = ESPER_GUARD_ROLE_PARAM,
                                             .dtype = ESPER_GUARD_F32,
                                             .device = devices[i],
                                             .data = s->data[i],
                                             .count = COUNT};
    }
    for (int i = 0; i < 3; i++)
        s->writers[i] = new_queue();
    check_good(esper_guard_open(NULL, &s->guard));
    check_good(esper_guard_add(s->guard, s->tensors, N_TENSORS));
    check_good(esper_ring_open(s->guard, options, &s->ring));
    check_good(esper_ring_add_stream(s->ring, 0, s->writers[0]));
    check_good(esper_ring_add_stream(s->ring, 0, s->writers[1]));
    check_good(esper_ring_add_stream(s->ring, 0, s->writers[0])); /* named twice is named once */
    check_good(esper_ring_add_stream(s->ring, 1, s->writers[2]));
}

static void scene_fini(scene *s)
{
    esper_ring_close(s->ring);
    esper_guard_close(s->guard);
    fake_reset(0);
}

/* Writes, takes, spoils, rolls back, looks: nothing waits but where the ring must know a verdict. */
static void play(uint64_t seed, esper_ring_options *options)
{
    scene s;

    scene_init(&s, seed, options);
    for (uint64_t step = 1; step <= 6; step++) {
        esper_ring_restored restored;

        write_all(&s, step * 1000 - 1);
        write_all(&s, step * 1000);
        check_good(esper_ring_take(s.ring, step, &step, sizeof(step)));
        write_all(&s, UINT64_MAX);
        if (next_random(&fake.random) % 2 == 0)
            ring_status(s.ring);
        write_all(&s, 17);
        check_good(esper_ring_rollback(s.ring, (int)(next_random(&fake.random) % 2), &restored));
        assert_int_equal(restored.step, step);
        assert_int_equal(*(const uint64_t *)restored.blob, step);
        check_all(&s, step * 1000);
    }
    check_not_torn(seed);
    assert_int_equal(ring_status(s.ring).n_good, options->n_entries < 6 ? options->n_entries : 6);
    scene_fini(&s);
}

static void nothing_is_torn(void **state)
{
    esper_ring_options options;

    (void)state;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        esper_ring_options_init(&options);
        options.place = seed % 3 == 0 ? ESPER_RING_HOST : ESPER_RING_DEVICE;
        options.mirror = seed % 2 == 0;
        options.n_entries = 2 + (uint32_t)(seed % 4);
        play(seed, &options);
    }
}

/* Work that never ends on a stream that was not named: everything is done without it. */
static void strangers_are_not_waited_for(void **state)
{
    esper_ring_options options;

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fake_queue *stranger;
        scene s;

        esper_ring_options_init(&options);
        options.place = seed % 2 == 0 ? ESPER_RING_HOST : ESPER_RING_DEVICE;
        scene_init(&s, seed, &options);
        stranger = new_queue();
        push(stranger, (fake_op){.gated = true});
        push(&fake.queues[0], (fake_op){.gated = true}); /* the default stream is one too, as others were named */
        write_all(&s, 5);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
        write_all(&s, UINT64_MAX);
        check_good(esper_ring_rollback(s.ring, 1, NULL));
        assert_int_equal(stranger->done, 0);
        check_all(&s, 5);
        check_not_torn(seed);
        scene_fini(&s);
    }
}

/* Without named streams it is the default one that is ordered against. */
static void the_default_stream(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        scene s;
        esper_ring *ring;

        scene_init(&s, seed, NULL);
        check_good(esper_ring_open(s.guard, NULL, &ring));
        for (int i = 0; i < 3; i++)
            s.writers[i] = &fake.queues[0];
        write_all(&s, 5);
        check_good(esper_ring_take(ring, 1, NULL, 0));
        write_all(&s, UINT64_MAX);
        check_good(esper_ring_rollback(ring, 0, NULL));
        check_all(&s, 5);
        check_not_torn(seed);
        esper_ring_close(ring);
        scene_fini(&s);
    }
}

static void host_waits(void **state)
{
    esper_ring_status status;
    uint64_t before;
    scene s;

    (void)state;
    scene_init(&s, 3, NULL);
    write_all(&s, 5);
    before = fake.n_waits;
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    assert_int_equal(fake.n_waits - before, 0);
    check_good(esper_ring_status_get(s.ring, 0, &status));
    assert_int_equal(fake.n_waits - before, 0);
    check_good(esper_ring_status_get(s.ring, 1, &status));
    assert_int_equal(status.newest, ESPER_RING_GOOD);
    assert_int_equal(fake.n_waits - before, 2); /* one for each device */
    before = fake.n_waits;
    for (int i = 0; i < 10; i++) {
        write_all(&s, UINT64_MAX);
        check_good(esper_ring_rollback(s.ring, 0, NULL));
    }
    assert_int_equal(fake.n_waits - before, 0);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    assert_int_equal(fake.n_waits - before, 4); /* the sums of the last one without waiting, and this one's */
    check_all(&s, 5);
    check_not_torn(3);
    scene_fini(&s);
}

/* status_get without waiting tells PENDING while that is the truth, and the verdict as soon as it is there. */
static void pending_is_told(void **state)
{
    esper_ring_status status;
    scene s;

    (void)state;
    scene_init(&s, 3, NULL);
    check_good(esper_ring_status_get(s.ring, 0, &status));
    assert_int_equal(status.newest, ESPER_RING_EMPTY);
    push(s.writers[0], (fake_op){.gated = true});
    write_all(&s, 5);
    check_good(esper_ring_take(s.ring, 8, NULL, 0));
    check_good(esper_ring_status_get(s.ring, 0, &status));
    assert_int_equal(status.newest, ESPER_RING_PENDING);
    assert_int_equal(status.newest_step, 8);
    assert_int_equal(status.n_good, 0);
    finish();
    check_good(esper_ring_status_get(s.ring, 0, &status));
    assert_int_equal(status.newest, ESPER_RING_GOOD);
    assert_int_equal(status.n_good, 1);
    scene_fini(&s);
}

/* A refused newest entry, found by the rollback itself, which then takes the older one. */
static void a_pending_entry_is_judged_first(void **state)
{
    esper_ring_restored restored;
    scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        scene_init(&s, seed, NULL);
        write_all(&s, 5);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        check_good(esper_guard_inject(s.guard, 2, 300, ESPER_FAULT_NAN, 0, s.writers[1]));
        check_good(esper_ring_take(s.ring, 2, NULL, 0));
        write_all(&s, 77);
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        assert_int_equal(restored.step, 1);
        assert_int_equal(restored.n_passed_over, 0);
        assert_int_equal(ring_status(s.ring).refused_tensor, 2);
        check_all(&s, 5);
        check_not_torn(seed);
        scene_fini(&s);
    }
}

static void damage_side(scene *s, size_t side, bool mirror)
{
    uint64_t bytes;
    unsigned char *arena = ring_arena(s->ring, 0, side, mirror, &bytes);

    assert_non_null(arena);
    finish();
    arena[41] ^= 8;
}

static void a_mirror_mends_its_entry(void **state)
{
    esper_ring_restored restored;
    scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        scene_init(&s, seed, NULL);
        write_all(&s, 5);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        write_all(&s, 6);
        check_good(esper_ring_take(s.ring, 2, NULL, 0));
        ring_status(s.ring);
        damage_side(&s, seed % 2, false);
        write_all(&s, UINT64_MAX);
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.step, 2);
        assert_int_equal(restored.from_host, 1);
        assert_int_equal(restored.n_passed_over, 0);
        check_all(&s, 6);
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.from_host, 0); /* whole again */
        check_all(&s, 6);
        damage_side(&s, seed % 2, false);
        damage_side(&s, seed % 2, true);
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.step, 1);
        assert_int_equal(restored.n_passed_over, 1);
        check_all(&s, 5);
        check_not_torn(seed);
        damage_side(&s, 0, false);
        damage_side(&s, 0, true);
        check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_DEVICE);
        scene_fini(&s);
    }
}

/* Nobody waited: the next one who needs to know is told, and no snapshot is taken of what is there. */
static void damage_is_found_later(void **state)
{
    esper_ring_options options;
    esper_ring_restored restored;
    scene s;

    (void)state;
    esper_ring_options_init(&options);
    options.mirror = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        scene_init(&s, seed, &options);
        write_all(&s, 5);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        check_good(esper_ring_take(s.ring, 2, NULL, 0));
        ring_status(s.ring);
        damage_side(&s, 1, false);
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        assert_int_equal(restored.step, 2);
        check_status(esper_ring_take(s.ring, 3, NULL, 0), ESPER_E_STATE);
        check_error_says("damaged snapshot");
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        assert_int_equal(restored.step, 1);
        check_all(&s, 5);
        check_good(esper_ring_take(s.ring, 3, NULL, 0));
        assert_int_equal(ring_status(s.ring).good_step, 3);
        check_not_torn(seed);
        scene_fini(&s);
    }
}

static void from_disk_to_devices(void **state)
{
    static const char *const files[] = {"ring-order/snapshot.ring", "ring-order/lock"};
    esper_ring_options options;
    esper_ring_restored restored;
    esper_ring *ring;
    scene s;

    (void)state;
    esper_ring_options_init(&options);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        options.place = seed % 2 == 0 ? ESPER_RING_HOST : ESPER_RING_DEVICE;
        options.directory = NULL;
        options.resume = 0;
        scene_init(&s, seed, &options);
        options.directory = "ring-order";
        for (int i = 0; i < 3; i++)
            s.writers[i] = &fake.queues[0];
        check_good(esper_ring_open(s.guard, &options, &ring));
        for (uint64_t step = 1; step <= 5; step++) {
            write_all(&s, step);
            check_good(esper_ring_take(ring, step, "cursor", 7));
            if (ring_status(ring).disk_error != NULL)
                fail_msg("step %llu: %s", (unsigned long long)step, ring_status(ring).disk_error);
        }
        esper_ring_close(ring);
        options.resume = 1;
        check_good(esper_ring_open(s.guard, &options, &ring));
        write_all(&s, UINT64_MAX);
        check_good(esper_ring_rollback(ring, 0, &restored));
        assert_int_equal(restored.step, 5);
        assert_int_equal(restored.from_host, 2);
        assert_string_equal(restored.blob, "cursor");
        check_all(&s, 5);
        check_not_torn(seed);
        esper_ring_close(ring);
        scene_fini(&s);
        for (int i = 0; i < 2; i++)
            assert_int_equal(unlink(files[i]), 0);
    }
    rmdir("ring-order");
}

static void moved_tensors_are_followed(void **state)
{
    static float other[N_TENSORS][COUNT];
    void *data[N_TENSORS];
    scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        scene_init(&s, seed, NULL);
        write_all(&s, 5);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        for (int i = 0; i < N_TENSORS; i++)
            data[i] = other[i];
        check_good(esper_guard_replace(s.guard, data, N_TENSORS));
        write_all(&s, 6);
        memset(other, 0xFF, sizeof(other));
        check_good(esper_ring_rollback(s.ring, 0, NULL));
        check_all(&s, 6); /* where they were */
        for (int i = 0; i < N_TENSORS; i++) {
            fake_op op = {.run = run_check, .from = other[i], .value = 5};

            if (writer_of[i] < 0)
                run_check(&op);
            else
                push(s.writers[writer_of[i]], op);
        }
        check_not_torn(seed);
        scene_fini(&s);
    }
}

/* ---- memory ---- */

static void device_memory_that_is_not_there(void **state)
{
    esper_ring_options options;
    esper_ring *ring = NULL;
    scene s;

    (void)state;
    scene_init(&s, 1, NULL);
    esper_ring_options_init(&options);
    options.mirror = 0;
    options.place = ESPER_RING_DEVICE;
    for (uint64_t left = 0; left < 8000; left += 500) {
        fake.memory_left = left;
        if (esper_ring_open(s.guard, &options, &ring) == ESPER_OK) {
            assert_true(left > 2 * 3 * COUNT * 4); /* two entries, three tensors on device 0 */
            esper_ring_close(ring);
        } else {
            check_error_says("a ring of 2 entries wants");
            check_error_says("of memory of CUDA device");
            check_error_says("bytes are available");
        }
    }
    options.place = ESPER_RING_AUTO;
    fake.memory_left = 1000; /* not for entries, but for the sums */
    check_good(esper_ring_open(s.guard, &options, &ring));
    assert_int_equal(ring_status(ring).device_bytes, 0);
    assert_true(ring_status(ring).host_bytes >= 2 * N_TENSORS * COUNT * 4);
    esper_ring_close(ring);
    fake.memory_left = UINT64_MAX;
    options.max_bytes = 5000; /* enough for device 1 alone */
    options.roles = 1u << ESPER_GUARD_ROLE_PARAM;
    check_status(esper_ring_open(s.guard, &options, &ring), ESPER_E_NOMEM);
    check_error_says("of host memory, the limit (max_bytes) is 5000 bytes");
    options.max_bytes = 0;
    options.place = ESPER_RING_DEVICE;
    check_good(esper_ring_open(s.guard, &options, &ring));
    assert_int_equal(ring_status(ring).device_bytes,
                     2 * (4 * 1280)); /* four tensors of 1204 bytes, at multiples of 256 */
    assert_int_equal(ring_status(ring).host_bytes, 2 * 1280);
    esper_ring_close(ring);
    scene_fini(&s);
}

static void every_failed_allocation_of_open(void **state)
{
    esper_mem_stats before, after;
    esper_ring_options options;
    esper_ring *ring = NULL;
    int n_failed = 0;
    scene s;

    (void)state;
    scene_init(&s, 1, NULL);
    esper_ring_options_init(&options);
    options.place = ESPER_RING_DEVICE; /* AUTO would go to host memory instead */
    esper_mem_stats_get(&before);
    for (uint64_t nth = 1;; nth++) {
        esper_status st;

        fake.n_queues = 12; /* those of rings that failed are free again */
        esper_mem_fail_at(nth);
        st = esper_ring_open(s.guard, &options, &ring);
        esper_mem_fail_at(0);
        if (st == ESPER_OK)
            break;
        check_status(st, ESPER_E_NOMEM);
        assert_null(ring);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        n_failed++;
    }
    assert_true(n_failed > 50);
    esper_ring_close(ring);
    scene_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_torn, nothing_left),
        cmocka_unit_test_teardown(strangers_are_not_waited_for, nothing_left),
        cmocka_unit_test_teardown(the_default_stream, nothing_left),
        cmocka_unit_test_teardown(host_waits, nothing_left),
        cmocka_unit_test_teardown(pending_is_told, nothing_left),
        cmocka_unit_test_teardown(a_pending_entry_is_judged_first, nothing_left),
        cmocka_unit_test_teardown(a_mirror_mends_its_entry, nothing_left),
        cmocka_unit_test_teardown(damage_is_found_later, nothing_left),
        cmocka_unit_test_teardown(from_disk_to_devices, nothing_left),
        cmocka_unit_test_teardown(moved_tensors_are_followed, nothing_left),
        cmocka_unit_test_teardown(device_memory_that_is_not_there, nothing_left),
        cmocka_unit_test_teardown(every_failed_allocation_of_open, nothing_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
