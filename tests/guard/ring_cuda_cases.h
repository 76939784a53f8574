/* What the ring must do on a CUDA device, for the real one (test_ring_cuda.c) and for the emulated one
 * (test_ring_emulated.c). */
#ifndef TESTS_GUARD_RING_CUDA_CASES_H
#define TESTS_GUARD_RING_CUDA_CASES_H

#include <unistd.h>

#include "device/device_cuda.h"
#include "ring_helpers.h"

/* The device, and two streams of the caller's. */
typedef struct bench {
    esper_device *device;
    esper_stream *stream, *other;
} bench;

static void bench_init(bench *b)
{
    check_good(esper_device_open("cuda", 0, &b->device));
    check_good(esper_stream_open(b->device, &b->stream));
    check_good(esper_stream_open(b->device, &b->other));
}

static void bench_fini(bench *b)
{
    check_good(esper_stream_sync(b->stream));
    check_good(esper_stream_sync(b->other));
    esper_stream_close(b->other);
    esper_stream_close(b->stream);
    esper_device_close(b->device);
}

/* ---- tensors on the device, beside their images in host memory ---- */

typedef struct device_model {
    bench             *b;
    model              host; /* the images */
    esper_guard_tensor tensors[MAX_TENSORS];
    void              *block; /* all of them */
    uint64_t           bytes;
} device_model;

static void place_tensors(device_model *d)
{
    uint64_t at = 0;

    for (size_t i = 0; i < d->host.n; i++) {
        size_t size = dtype_size(d->host.tensors[i].dtype);

        at = (at + 7) / 8 * 8 + i % 3 * size; /* odd addresses, as far as the type allows */
        d->tensors[i] = d->host.tensors[i];
        d->tensors[i].device = 0;
        d->tensors[i].data = (char *)d->block + at;
        at += model_bytes(&d->host, i);
    }
    d->bytes = at;
}

static void upload(device_model *d)
{
    for (size_t i = 0; i < d->host.n; i++)
        check_good(
            esper_stream_copy(d->b->stream, d->tensors[i].data, d->host.tensors[i].data, model_bytes(&d->host, i)));
    check_good(esper_stream_sync(d->b->stream));
}

static void download(device_model *d)
{
    for (size_t i = 0; i < d->host.n; i++)
        check_good(
            esper_stream_copy(d->b->stream, d->host.tensors[i].data, d->tensors[i].data, model_bytes(&d->host, i)));
    check_good(esper_stream_sync(d->b->stream));
}

/* Sets host.tensors before. */
static void device_model_init(device_model *d, bench *b)
{
    uint64_t bytes = 64;

    d->b = b;
    for (size_t i = 0; i < d->host.n; i++)
        bytes += model_bytes(&d->host, i) + 64;
    check_good(esper_device_alloc(b->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &d->block));
    place_tensors(d);
    upload(d);
}

static void device_model_fini(device_model *d)
{
    esper_device_release(d->b->device, d->block);
    model_fini(&d->host);
}

static esper_guard *device_guard(const device_model *d)
{
    esper_guard *guard;

    check_good(esper_guard_open(NULL, &guard));
    check_good(esper_guard_add(guard, d->tensors, d->host.n));
    return guard;
}

static esper_ring *device_ring(device_model *d, esper_guard *guard, esper_ring_options *options)
{
    esper_ring *ring;

    check_good(esper_ring_open(guard, options, &ring));
    check_good(esper_ring_add_stream(ring, 0, esper_stream_native(d->b->stream)));
    return ring;
}

static inline esper_ring *device_ring_at(device_model *d, esper_guard *guard, esper_ring_place place, uint32_t mirror)
{
    esper_ring_options options;

    esper_ring_options_init(&options);
    options.place = place;
    options.mirror = mirror;
    return device_ring(d, guard, &options);
}

/* A bench with a model, the guard that knows it and a ring of it. */
typedef struct device_scene {
    bench          b;
    device_model   d;
    esper_guard   *guard;
    esper_ring    *ring;
    unsigned char *taken; /* a copy of the images, or NULL */
} device_scene;

/* The guard is still to come: tensors may be put elsewhere before. */
static inline void device_scene_open(device_scene *s, void (*init)(model *m))
{
    *s = (device_scene){0};
    bench_init(&s->b);
    init(&s->d.host);
    device_model_init(&s->d, &s->b);
}

static inline void device_scene_close(device_scene *s)
{
    free(s->taken);
    esper_ring_close(s->ring);
    esper_guard_close(s->guard);
    device_model_fini(&s->d);
    bench_fini(&s->b);
}

/* Flips a bit of the newest entry where it lies. */
static void damage_device(device_model *d, esper_ring *ring, bool mirror, uint64_t byte)
{
    uint64_t bytes;
    char *arena = ring_arena(ring, 0, 0, mirror, &bytes);
    unsigned char value;

    assert_non_null(arena);
    check_good(esper_stream_copy(d->b->stream, &value, arena + byte, 1));
    check_good(esper_stream_sync(d->b->stream));
    value ^= 0x10;
    check_good(esper_stream_copy(d->b->stream, arena + byte, &value, 1));
    check_good(esper_stream_sync(d->b->stream));
}

/* ---- tests ---- */

static void round_trip(bench *b, esper_ring_place place, uint32_t mirror, void *stream_of_ring)
{
    esper_ring_options options;
    esper_ring_restored restored;
    esper_ring_status status;
    unsigned char *taken;
    device_model d = {0};
    esper_guard *guard;
    esper_ring *ring;

    model_init_all(&d.host);
    device_model_init(&d, b);
    guard = device_guard(&d);
    esper_ring_options_init(&options);
    options.place = place;
    options.mirror = mirror;
    check_good(esper_ring_open(guard, &options, &ring));
    if (stream_of_ring != NULL)
        check_good(esper_ring_add_stream(ring, 0, stream_of_ring));
    for (uint64_t step = 1; step < 6; step++) {
        model_fill(&d.host, step);
        upload(&d);
        taken = model_copy(&d.host);
        check_good(esper_ring_take(ring, step, &step, sizeof(step)));
        status = ring_status(ring);
        assert_int_equal(status.newest, ESPER_RING_GOOD);
        assert_int_equal(status.good_step, step);
        assert_true((status.device_bytes != 0) == (place != ESPER_RING_HOST));
        assert_true((status.host_bytes != 0) == (place == ESPER_RING_HOST || mirror != 0));
        check_good(esper_stream_set(b->stream, d.block, 0xFF, d.bytes));
        check_good(esper_stream_sync(b->stream));
        check_good(esper_ring_rollback(ring, 1, &restored));
        assert_int_equal(restored.step, step);
        assert_int_equal(*(const uint64_t *)restored.blob, step);
        assert_int_equal(restored.from_host, place == ESPER_RING_HOST);
        download(&d);
        model_check(&d.host, taken);
        free(taken);
    }
    esper_ring_close(ring);
    esper_guard_close(guard);
    device_model_fini(&d);
}

static void what_is_put_back_is_what_was_taken(void **state)
{
    bench b;

    (void)state;
    bench_init(&b);
    round_trip(&b, ESPER_RING_AUTO, 1, esper_stream_native(b.stream));
    round_trip(&b, ESPER_RING_DEVICE, 0, esper_stream_native(b.stream));
    round_trip(&b, ESPER_RING_HOST, 0, esper_stream_native(b.stream));
    round_trip(&b, ESPER_RING_DEVICE, 0, NULL); /* the default stream */
    bench_fini(&b);
}

static void a_refused_entry(void **state)
{
    static const esper_ring_place places[] = {ESPER_RING_DEVICE, ESPER_RING_HOST};
    esper_ring_restored restored;
    esper_ring_status status;

    (void)state;
    for (int i = 0; i < 2; i++) {
        device_scene s;

        device_scene_open(&s, model_init_all);
        s.guard = device_guard(&s.d);
        s.ring = device_ring_at(&s.d, s.guard, places[i], 1);
        check_good(esper_ring_take(s.ring, 1, NULL, 0));
        check_good(esper_guard_inject(s.guard, 23, 5, ESPER_FAULT_NAN, 0, esper_stream_native(s.b.stream)));
        check_good(esper_ring_take(s.ring, 2, NULL, 0));
        status = ring_status(s.ring);
        assert_int_equal(status.newest, ESPER_RING_REFUSED);
        assert_int_equal(status.refused_tensor, 23);
        assert_int_equal(status.good_step, 1);
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.step, 1);
        device_scene_close(&s);
    }
}

/* A mirror mends a damaged entry; without one the older entry is taken; without that, the error says so. */
static void damaged_entries(void **state)
{
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_all);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring_at(&s.d, s.guard, ESPER_RING_DEVICE, 1);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    ring_status(s.ring);
    damage_device(&s.d, s.ring, false, 1000);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 2);
    assert_int_equal(restored.from_host, 1);
    assert_int_equal(restored.n_passed_over, 0);
    download(&s.d);
    model_check(&s.d.host, s.taken);
    check_good(esper_ring_rollback(s.ring, 1, &restored)); /* it is whole again */
    assert_int_equal(restored.from_host, 0);
    damage_device(&s.d, s.ring, false, 3);
    damage_device(&s.d, s.ring, true, 3);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.n_passed_over, 1);
    download(&s.d);
    model_check(&s.d.host, s.taken);
    damage_device(&s.d, s.ring, false, 77);
    damage_device(&s.d, s.ring, true, 77);
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_DEVICE);
    check_error_says("not to be trusted");
    device_scene_close(&s);
}

/* Nobody waited, so the damage is found by the next call that needs to know. */
static void damage_found_later(void **state)
{
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_small);
    s.guard = device_guard(&s.d);
    s.ring = device_ring_at(&s.d, s.guard, ESPER_RING_DEVICE, 0);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    ring_status(s.ring);
    damage_device(&s.d, s.ring, false, 8);
    check_good(esper_ring_rollback(s.ring, 0, &restored));
    assert_int_equal(restored.step, 2);
    check_status(esper_ring_take(s.ring, 3, NULL, 0), ESPER_E_STATE);
    check_error_says("damaged snapshot");
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    check_good(esper_ring_take(s.ring, 3, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
    device_scene_close(&s);
}

/* The same with a mirror: the entry is not lost, the next rollback mends it, also one that would not wait. */
static void damage_found_later_is_mended(void **state)
{
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_small);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring_at(&s.d, s.guard, ESPER_RING_DEVICE, 1);
    for (int wait = 0; wait < 2; wait++) {
        check_good(esper_ring_take(s.ring, 1 + (uint64_t)wait, NULL, 0));
        ring_status(s.ring);
        damage_device(&s.d, s.ring, false, 8);
        check_good(esper_ring_rollback(s.ring, 0, &restored));
        check_status(esper_ring_take(s.ring, 9, NULL, 0), ESPER_E_STATE);
        check_error_says("damaged snapshot");
        check_good(esper_ring_rollback(s.ring, wait, &restored));
        assert_int_equal(restored.step, 1 + wait);
        assert_int_equal(restored.from_host, 1);
        assert_int_equal(restored.n_passed_over, 0);
        download(&s.d);
        model_check(&s.d.host, s.taken);
    }
    device_scene_close(&s);
}

/* Host and device sum by the same rule, or no file could be checked. */
static void the_sum_is_the_hosts(void **state)
{
    unsigned char *copy;
    uint64_t bytes;
    void *arena;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_all);
    s.guard = device_guard(&s.d);
    s.ring = device_ring(&s.d, s.guard, NULL);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
    arena = ring_arena(s.ring, 0, 0, false, &bytes);
    copy = malloc(bytes);
    assert_non_null(copy);
    check_good(esper_stream_copy(s.b.stream, copy, arena, bytes));
    check_good(esper_stream_sync(s.b.stream));
    assert_int_equal(s.ring->sides[0].copies[0].sum, s.ring->kernels->checksum(copy, bytes, 0));
    free(copy);
    device_scene_close(&s);
}

/* Some tensors in host memory, some on the device: one entry has both, at the same step. */
static void host_and_device_together(void **state)
{
    esper_ring_restored restored;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_all);
    for (size_t i = 0; i < s.d.host.n; i += 2) /* every second one stays on the host */
        s.d.tensors[i] = s.d.host.tensors[i];
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring(&s.d, s.guard, NULL);
    check_good(esper_ring_take(s.ring, 4, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
    check_good(esper_stream_set(s.b.stream, s.d.block, 0xFF, s.d.bytes));
    model_fill(&s.d.host, 5);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 4);
    for (size_t i = 1; i < s.d.host.n; i += 2)
        check_good(
            esper_stream_copy(s.b.stream, s.d.host.tensors[i].data, s.d.tensors[i].data, model_bytes(&s.d.host, i)));
    check_good(esper_stream_sync(s.b.stream));
    model_check(&s.d.host, s.taken);
    device_scene_close(&s);
}

static void moved_tensors_are_followed(void **state)
{
    void *data[MAX_TENSORS], *old;
    device_scene s;

    (void)state;
    device_scene_open(&s, model_init_all);
    s.guard = device_guard(&s.d);
    s.taken = model_copy(&s.d.host);
    s.ring = device_ring(&s.d, s.guard, NULL);
    check_good(esper_ring_take(s.ring, 4, NULL, 0));
    old = s.d.block;
    check_good(esper_device_alloc(s.b.device, s.d.bytes + 4096, ESPER_DEVICE_MEMORY_NORMAL, &s.d.block));
    place_tensors(&s.d);
    for (size_t i = 0; i < s.d.host.n; i++)
        data[i] = s.d.tensors[i].data;
    check_good(esper_guard_replace(s.guard, data, s.d.host.n));
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    download(&s.d);
    model_check(&s.d.host, s.taken);
    esper_device_release(s.b.device, old);
    device_scene_close(&s);
}

#define RING_CUDA_CASES                                                          \
    cmocka_unit_test_teardown(what_is_put_back_is_what_was_taken, nothing_left), \
        cmocka_unit_test_teardown(a_refused_entry, nothing_left),                \
        cmocka_unit_test_teardown(damaged_entries, nothing_left),                \
        cmocka_unit_test_teardown(damage_found_later, nothing_left),             \
        cmocka_unit_test_teardown(damage_found_later_is_mended, nothing_left),   \
        cmocka_unit_test_teardown(the_sum_is_the_hosts, nothing_left),           \
        cmocka_unit_test_teardown(host_and_device_together, nothing_left),       \
        cmocka_unit_test_teardown(moved_tensors_are_followed, nothing_left)

#endif
