/* ctest: cost=5 labels=tsan */
/* The snapshot ring over host memory: what is put back is what was taken, to the bit; which entries are kept; what is
 * refused. */
#include <math.h>

#include "ring_helpers.h"

static void what_is_put_back_is_what_was_taken(void **state)
{
    static const char blob[] = "random state, cursor, slot table";

    (void)state;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        esper_ring_restored restored;
        host_scene s;

        host_scene_open(&s, model_init_all, n_threads, 2);
        s.taken = model_copy(&s.m);
        check_good(esper_ring_take(s.ring, 7, blob, sizeof(blob)));
        model_check(&s.m, s.taken);
        assert_int_equal(ring_status(s.ring).newest, ESPER_RING_GOOD);
        model_fill(&s.m, 99);
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        model_check(&s.m, s.taken);
        assert_int_equal(restored.step, 7);
        assert_int_equal(restored.blob_bytes, sizeof(blob));
        assert_string_equal(restored.blob, blob);
        assert_int_equal(restored.n_passed_over, 0);
        assert_int_equal(restored.from_host, 1);
        assert_true(restored.seconds > 0);
        host_scene_close(&s);
    }
}

/* Enough for every thread to have several chunks, with an end that is no whole word. */
static void large_tensors_too(void **state)
{
    host_scene s = {0};

    (void)state;
    model_add(&s.m, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 3000001, 1);
    model_add(&s.m, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F16, 2000003, 3);
    model_add(&s.m, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_F64, 500009, 0);
    model_fill(&s.m, 3);
    s.guard = model_guard(&s.m, 0);
    s.ring = open_ring(s.guard, 2);
    s.taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    model_fill(&s.m, 4);
    check_good(esper_ring_rollback(s.ring, 0, NULL));
    model_check(&s.m, s.taken);
    host_scene_close(&s);
}

/* Partitions of host memory are devices of their own: an arena and a sum for each, one verdict for all. */
static void several_devices(void **state)
{
    esper_ring_restored restored;
    uint64_t bytes;
    host_scene s = {0};

    (void)state;
    model_init_all(&s.m);
    for (size_t i = 0; i < s.m.n; i++)
        s.m.tensors[i].device = ESPER_GUARD_HOST - (int32_t)(i % 3);
    s.guard = model_guard(&s.m, 2);
    s.ring = open_ring(s.guard, 2);
    assert_int_equal(s.ring->n_sides, 3);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    s.taken = model_copy(&s.m);
    model_fill(&s.m, 31);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    model_check(&s.m, s.taken);
    model_fill(&s.m, 32);
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    ((unsigned char *)ring_arena(s.ring, 0, 2, false, &bytes))[1] ^= 1; /* of the third device alone */
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.n_passed_over, 1);
    model_check(&s.m, s.taken);
    check_good(esper_guard_inject(s.guard, 38, 0, ESPER_FAULT_INF, 0, NULL));
    check_good(esper_ring_take(s.ring, 3, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_REFUSED);
    assert_int_equal(ring_status(s.ring).refused_tensor, 38);
    host_scene_close(&s);
}

static void only_the_roles_asked_for(void **state)
{
    esper_ring_options options;
    unsigned char *taken, *later;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    model_fill(&s.m, 5);
    later = model_copy(&s.m);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    model_check_but(&s.m, taken, ESPER_GUARD_ROLE_GRAD);
    assert_memory_equal(s.m.tensors[1].data, later + 400, 400); /* the gradient is not part of it */
    esper_ring_close(s.ring);

    esper_ring_options_init(&options);
    options.roles = 1u << ESPER_GUARD_ROLE_GRAD;
    check_good(esper_ring_open(s.guard, &options, &s.ring));
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    memset(s.m.tensors[1].data, 0, 400);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    assert_memory_equal(s.m.tensors[1].data, later + 400, 400);
    free(later);
    free(taken);
    host_scene_close(&s);
}

static void blobs_of_any_size(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 8, 100, 100000, 3, 0};
    unsigned char *blob = malloc(100000);
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    assert_non_null(blob);
    host_scene_open(&s, model_init_small, 1, 2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        memset(blob, (int)i + 1, 100000);
        check_good(esper_ring_take(s.ring, i, blob, sizes[i]));
        memset(blob, 0xEE, 100000); /* the ring has its own */
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.step, i);
        assert_int_equal(restored.blob_bytes, sizes[i]);
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(((const unsigned char *)restored.blob)[b], i + 1);
        if (sizes[i] == 0)
            assert_null(restored.blob);
    }
    free(blob);
    host_scene_close(&s);
}

/* Entries give way from the oldest; damaging the newest one after the other shows which are there. */
static void the_oldest_gives_way(void **state)
{
    esper_ring_restored restored;
    float *weights;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 3);
    weights = s.m.tensors[0].data;
    for (uint64_t step = 0; step < 10; step++) {
        esper_ring_status status;

        weights[0] = (float)step;
        check_good(esper_ring_take(s.ring, step * 10, &step, sizeof(step)));
        status = ring_status(s.ring);
        assert_int_equal(status.newest, ESPER_RING_GOOD);
        assert_int_equal(status.newest_step, step * 10);
        assert_int_equal(status.good_step, step * 10);
        assert_int_equal(status.n_good, step < 2 ? step + 1 : 3);
        assert_int_equal(status.refused_tensor, ESPER_GUARD_NONE);
    }
    for (uint64_t step = 9; step >= 7; step--) {
        weights[0] = -1;
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        assert_int_equal(restored.step, step * 10);
        assert_int_equal(*(const uint64_t *)restored.blob, step);
        assert_true(weights[0] == (float)step);
        assert_int_equal(restored.n_passed_over, step == 9 ? 0 : 1);
        damage(s.ring, 0, 17);
    }
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_DEVICE);
    host_scene_close(&s);
}

static void a_refused_entry_keeps_the_good_one(void **state)
{
    static const float bad_values[] = {NAN, INFINITY, -INFINITY};
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    s.taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    for (uint64_t step = 2; step < 8; step++) {
        esper_ring_status status;

        ((float *)s.m.tensors[0].data)[step] = bad_values[step % 3];
        if (step > 4) /* tensor 2 of the guard, 1 of the ring's: the gradient is not in it */
            ((double *)s.m.tensors[2].data)[32] = (double)bad_values[step % 3];
        check_good(esper_ring_take(s.ring, step, NULL, 0));
        status = ring_status(s.ring);
        assert_int_equal(status.newest, ESPER_RING_REFUSED);
        assert_int_equal(status.newest_step, step);
        assert_int_equal(status.good_step, 1);
        assert_int_equal(status.n_good, 1);
        assert_int_equal(status.refused_tensor, 0);
        if (step > 4) {
            ((float *)s.m.tensors[0].data)[step] = 0;
            for (int i = 2; i < 8; i++)
                ((float *)s.m.tensors[0].data)[i] = 0;
            check_good(esper_ring_take(s.ring, step, NULL, 0));
            assert_int_equal(ring_status(s.ring).refused_tensor, 2);
        }
    }
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.n_passed_over, 0); /* refused is not damaged */
    model_check_but(&s.m, s.taken, ESPER_GUARD_ROLE_GRAD);
    check_good(esper_ring_take(s.ring, 9, NULL, 0));
    assert_int_equal(ring_status(s.ring).n_good, 2);
    host_scene_close(&s);
}

static void nothing_is_taken_while_held(void **state)
{
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    esper_ring_hold(s.ring, 1);
    check_status(esper_ring_take(s.ring, 2, NULL, 0), ESPER_E_STATE);
    check_error_says("anomaly is pending");
    assert_int_equal(ring_status(s.ring).newest_step, 1);
    check_good(esper_ring_rollback(s.ring, 1, &restored)); /* going back is what one holds for */
    assert_int_equal(restored.step, 1);
    check_status(esper_ring_take(s.ring, 2, NULL, 0), ESPER_E_STATE);
    esper_ring_hold(s.ring, 0);
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    assert_int_equal(ring_status(s.ring).newest_step, 2);
    host_scene_close(&s);
}

static void without_a_snapshot_there_is_no_way_back(void **state)
{
    esper_ring_restored restored = {.step = 42};
    unsigned char *before;
    esper_ring_status status;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    before = model_copy(&s.m);
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_STATE);
    check_error_says("none was taken");
    assert_int_equal(restored.step, 42);
    status = ring_status(s.ring);
    assert_int_equal(status.newest, ESPER_RING_EMPTY);
    assert_int_equal(status.newest_step, ESPER_GUARD_NONE);
    assert_int_equal(status.good_step, ESPER_GUARD_NONE);
    assert_int_equal(status.n_good, 0);
    ((float *)s.m.tensors[0].data)[0] = INFINITY;
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_STATE);
    check_error_says("refused");
    assert_true(((float *)s.m.tensors[0].data)[0] == INFINITY);
    memcpy(s.m.tensors[0].data, before, 4);
    model_check(&s.m, before);
    free(before);
    host_scene_close(&s);
}

static void moved_tensors_are_followed(void **state)
{
    void *data[MAX_TENSORS];
    unsigned char *taken;
    host_scene s;
    model moved;

    (void)state;
    model_init_all(&moved);
    host_scene_open(&s, model_init_all, 2, 2);
    taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    for (size_t i = 0; i < moved.n; i++)
        data[i] = moved.tensors[i].data;
    check_good(esper_guard_replace(s.guard, data, moved.n));
    model_fill(&moved, 11);
    model_fill(&s.m, 12);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    model_check(&moved, taken);
    free(taken);
    taken = model_copy(&s.m); /* the old place is left alone, and not read any more */
    model_fill(&moved, 13);
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    model_check(&s.m, taken);
    free(taken);
    taken = model_copy(&moved);
    model_fill(&moved, 14);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    model_check(&moved, taken);
    free(taken);
    host_scene_close(&s);
    model_fini(&moved);
}

/* Other tensors in the guard than when the ring was opened: named, not followed. */
static void other_tensors_are_refused(void **state)
{
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    check_good(esper_guard_clear(s.guard));
    check_good(esper_guard_add(s.guard, s.m.tensors, s.m.n - 1));
    check_status(esper_ring_take(s.ring, 2, NULL, 0), ESPER_E_STATE);
    check_error_says("not those the ring was opened for");
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_STATE);
    check_good(esper_guard_clear(s.guard));
    s.m.tensors[0].name = "another";
    check_good(esper_guard_add(s.guard, s.m.tensors, s.m.n));
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_STATE);
    check_good(esper_guard_clear(s.guard));
    s.m.tensors[0].name = s.m.names[0];
    s.m.tensors[0].count--;
    check_good(esper_guard_add(s.guard, s.m.tensors, s.m.n));
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_STATE);
    check_good(esper_guard_clear(s.guard));
    s.m.tensors[0].count++;
    check_good(esper_guard_add(s.guard, s.m.tensors, s.m.n));
    check_good(esper_ring_rollback(s.ring, 1, NULL)); /* the same ones again */
    host_scene_close(&s);
}

static void try_options(esper_guard *guard, const esper_ring_options *options, const char *words)
{
    esper_ring *ring = NULL;

    check_status(esper_ring_open(guard, options, &ring), ESPER_E_ARG);
    check_error_says(words);
    assert_null(ring);
}

static void bad_arguments_are_refused(void **state)
{
    esper_ring_options options;
    esper_ring_status status;
    esper_guard *empty;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 0);
    check_good(esper_guard_open(NULL, &empty));
    try_options(NULL, NULL, "the guard is NULL");
    try_options(empty, NULL, "needs tensors");
    esper_ring_options_init(&options);
    options.n_entries = 1;
    try_options(s.guard, &options, "1 entries");
    esper_ring_options_init(&options);
    options.size = 1000;
    try_options(s.guard, &options, "esper_ring_options_init");
    options.size = 0;
    try_options(s.guard, &options, "esper_ring_options_init");
    esper_ring_options_init(&options);
    options.place = (esper_ring_place)7;
    try_options(s.guard, &options, "place 7");
    esper_ring_options_init(&options);
    options.roles = 1u << ESPER_GUARD_N_ROLES;
    try_options(s.guard, &options, "ring: roles unknown 0x20:");
    options.roles = 1u << ESPER_GUARD_ROLE_OTHER;
    try_options(s.guard, &options, "none of the roles asked for (other)");

    check_good(esper_ring_open(s.guard, NULL, &s.ring));
    check_status(esper_ring_take(NULL, 1, NULL, 0), ESPER_E_ARG);
    check_status(esper_ring_take(s.ring, 1, NULL, 5), ESPER_E_ARG);
    check_status(esper_ring_rollback(NULL, 1, NULL), ESPER_E_ARG);
    check_status(esper_ring_status_get(NULL, 1, &status), ESPER_E_ARG);
    check_status(esper_ring_status_get(s.ring, 1, NULL), ESPER_E_ARG);
    check_status(esper_ring_add_stream(NULL, 0, NULL), ESPER_E_ARG);
    check_status(esper_ring_add_stream(s.ring, 3, NULL), ESPER_E_ARG);
    check_error_says("no tensors on device 3");
    check_good(esper_ring_add_stream(s.ring, ESPER_GUARD_HOST, NULL));
    esper_ring_hold(NULL, 1);
    esper_ring_trust(NULL);
    esper_ring_options_init(NULL);
    esper_ring_close(NULL);
    esper_guard_close(empty);
    host_scene_close(&s);
}

static void taking_and_rolling_back_take_no_memory(void **state)
{
    esper_mem_stats before, after;
    char blob[100] = {0};
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 2, 2);
    for (uint64_t step = 0; step < 2; step++) /* room for the blobs */
        check_good(esper_ring_take(s.ring, step, blob, sizeof(blob)));
    esper_mem_stats_get(&before);
    for (uint64_t step = 2; step < 20; step++) {
        check_good(esper_ring_take(s.ring, step, blob, sizeof(blob)));
        check_good(esper_ring_rollback(s.ring, 1, NULL));
        ring_status(s.ring);
    }
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs - before.n_allocs, 0);
    host_scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_put_back_is_what_was_taken, nothing_left),
        cmocka_unit_test_teardown(large_tensors_too, nothing_left),
        cmocka_unit_test_teardown(several_devices, nothing_left),
        cmocka_unit_test_teardown(only_the_roles_asked_for, nothing_left),
        cmocka_unit_test_teardown(blobs_of_any_size, nothing_left),
        cmocka_unit_test_teardown(the_oldest_gives_way, nothing_left),
        cmocka_unit_test_teardown(a_refused_entry_keeps_the_good_one, nothing_left),
        cmocka_unit_test_teardown(nothing_is_taken_while_held, nothing_left),
        cmocka_unit_test_teardown(without_a_snapshot_there_is_no_way_back, nothing_left),
        cmocka_unit_test_teardown(moved_tensors_are_followed, nothing_left),
        cmocka_unit_test_teardown(other_tensors_are_refused, nothing_left),
        cmocka_unit_test_teardown(bad_arguments_are_refused, nothing_left),
        cmocka_unit_test_teardown(taking_and_rolling_back_take_no_memory, nothing_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
