/* The ring when things go wrong: entries whose bits changed, memory that is not there, allocators of the caller. */
#include <sys/mman.h>

#include "ring_helpers.h"

/* Whichever bit of whichever tensor flips, the entry is passed over and the report says so. */
static void a_damaged_entry_is_passed_over(void **state)
{
    uint64_t random = 5;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 2, 3);
    s.taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    for (int i = 0; i < 200; i++) {
        esper_ring_restored restored;

        model_fill(&s.m, 100 + (uint64_t)i);
        check_good(esper_ring_take(s.ring, 2, NULL, 0));
        damage(s.ring, 0, next_random(&random));
        check_good(esper_ring_rollback(s.ring, 1, &restored));
        model_check(&s.m, s.taken);
        assert_int_equal(restored.step, 1);
        assert_int_equal(restored.n_passed_over, 1);
        assert_int_equal(ring_status(s.ring).n_good, 1); /* the damaged one does not count any more */
        assert_int_equal(ring_status(s.ring).newest_step, 1);
    }
    host_scene_close(&s);
}

static void several_damaged_entries(void **state)
{
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 5);
    for (uint64_t step = 0; step < 5; step++) {
        model_fill(&s.m, step);
        if (step == 1)
            s.taken = model_copy(&s.m);
        check_good(esper_ring_take(s.ring, step, NULL, 0));
    }
    damage(s.ring, 0, 1);
    damage(s.ring, 1, 64 * 8 + 3);
    damage(s.ring, 2, 77);
    check_good(esper_ring_rollback(s.ring, 0, &restored)); /* on the host sums are compared in any case */
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.n_passed_over, 3);
    model_check_but(&s.m, s.taken, ESPER_GUARD_ROLE_GRAD);
    host_scene_close(&s);
}

/* The caller's blob is summed as well. A damaged one is found before anything is written. */
static void a_damaged_blob(void **state)
{
    esper_ring_restored restored;
    unsigned char *now;
    char blob[9] = "cursor 1";
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    check_good(esper_ring_take(s.ring, 1, blob, sizeof(blob)));
    blob[7] = '2';
    check_good(esper_ring_take(s.ring, 2, blob, sizeof(blob)));
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_string_equal(restored.blob, "cursor 2");
    ((char *)(uintptr_t)restored.blob)[3] ^= 1;
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_string_equal(restored.blob, "cursor 1");
    assert_int_equal(restored.n_passed_over, 1);
    ((char *)(uintptr_t)restored.blob)[3] ^= 1;
    model_fill(&s.m, 9);
    now = model_copy(&s.m);
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_STATE);
    check_error_says("the tensors are as they were");
    model_check(&s.m, now);
    free(now);
    host_scene_close(&s);
}

/* Nothing good is left: said plainly, and no snapshot of that state may be taken until somebody answers for it. */
static void all_damaged(void **state)
{
    esper_ring_restored restored = {.step = 42};
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    damage(s.ring, 0, 5);
    damage(s.ring, 1, 5);
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_DEVICE);
    check_error_says("not to be trusted");
    check_error_says("(2)");
    assert_int_equal(restored.step, 42);
    check_status(esper_ring_rollback(s.ring, 1, &restored), ESPER_E_DEVICE);
    check_status(esper_ring_take(s.ring, 3, NULL, 0), ESPER_E_STATE);
    check_error_says("esper_ring_trust");
    assert_int_equal(ring_status(s.ring).n_good, 0);
    model_fill(&s.m, 4); /* a checkpoint is loaded */
    esper_ring_hold(s.ring, 0); /* as a loop does at every step: it says nothing about the tensors */
    check_status(esper_ring_take(s.ring, 3, NULL, 0), ESPER_E_STATE);
    esper_ring_trust(s.ring);
    check_good(esper_ring_take(s.ring, 3, NULL, 0));
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 3);
    host_scene_close(&s);
}

/* ---- memory ---- */

static void every_failed_allocation_of_open(void **state)
{
    esper_mem_stats before, after;
    esper_ring_options options;
    esper_status st;
    int n_failed = 0;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 2, 0);
    esper_ring_options_init(&options);
    options.directory = "ring-alloc";
    esper_mem_stats_get(&before);
    for (uint64_t nth = 1;; nth++) {
        esper_mem_fail_at(nth);
        st = esper_ring_open(s.guard, &options, &s.ring);
        esper_mem_fail_at(0);
        if (st == ESPER_OK)
            break;
        check_status(st, ESPER_E_NOMEM);
        assert_null(s.ring);
        assert_true(esper_last_error()[0] != '\0');
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        n_failed++;
    }
    assert_true(n_failed > 20);
    esper_ring_close(s.ring);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_live, before.n_live);
    esper_guard_close(s.guard);
    model_fini(&s.m);
}

/* No room for a larger blob: the entry that was to give way is still there. */
static void a_failed_allocation_of_take(void **state)
{
    esper_ring_restored restored;
    char blob[500] = {0};
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 2);
    check_good(esper_ring_take(s.ring, 1, "a", 2));
    check_good(esper_ring_take(s.ring, 2, "b", 2));
    esper_mem_fail_at(1);
    check_status(esper_ring_take(s.ring, 3, blob, sizeof(blob)), ESPER_E_NOMEM);
    esper_mem_fail_at(0);
    assert_int_equal(ring_status(s.ring).n_good, 2);
    damage(s.ring, 0, 0);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    assert_string_equal(restored.blob, "a");
    host_scene_close(&s);
}

static void larger_than_allowed(void **state)
{
    esper_ring_options options;
    uint64_t wanted;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 1, 2);
    wanted = ring_status(s.ring).host_bytes;
    assert_int_equal(ring_status(s.ring).device_bytes, 0);
    esper_ring_close(s.ring);
    s.ring = NULL;
    esper_ring_options_init(&options);
    options.max_bytes = wanted - 1;
    check_status(esper_ring_open(s.guard, &options, &s.ring), ESPER_E_NOMEM);
    check_error_says("a ring of 2 entries wants");
    check_error_says("the limit (max_bytes)");
    assert_null(s.ring);
    options.max_bytes = wanted;
    check_good(esper_ring_open(s.guard, &options, &s.ring));
    esper_ring_close(s.ring);
    options.directory = "ring-limit"; /* needs a stage as large as an entry */
    s.ring = NULL;
    check_status(esper_ring_open(s.guard, &options, &s.ring), ESPER_E_NOMEM);
    options.max_bytes = wanted / 2 * 3;
    check_good(esper_ring_open(s.guard, &options, &s.ring));
    assert_int_equal(ring_status(s.ring).host_bytes, wanted / 2 * 3);
    host_scene_close(&s);
}

/* Twice what the machine has: refused before it is asked for, since Linux would promise it and kill whoever
 * touches it. */
static void larger_than_memory(void **state)
{
    esper_guard_tensor huge = {.name = "huge",
                               .group = "host",
                               .role = ESPER_GUARD_ROLE_PARAM,
                               .dtype = ESPER_GUARD_F32,
                               .device = ESPER_GUARD_HOST};
    esper_ring *ring = NULL;
    esper_device *host;
    esper_guard *guard;
    uint64_t available;

    (void)state;
    check_good(esper_device_open("host", 0, &host));
    check_good(esper_device_memory_free(host, &available));
    esper_device_close(host);
    huge.count = available / sizeof(float);
    huge.data = mmap(NULL, available, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); /* never read */
    assert_ptr_not_equal(huge.data, MAP_FAILED);
    check_good(esper_guard_open(NULL, &guard));
    check_good(esper_guard_add(guard, &huge, 1));
    check_status(esper_ring_open(guard, NULL, &ring), ESPER_E_NOMEM);
    check_error_says("a ring of 2 entries wants");
    check_error_says("MB of host memory");
    check_error_says("are available");
    assert_null(ring);
    esper_guard_close(guard);
    munmap(huge.data, available);
}

/* ---- the caller's allocator ---- */

typedef struct counting {
    int    n_taken, n_released, fail_from; /* fail_from: this call and later ones fail; 0 = none */
    size_t shift;
} counting;

/* Dirty and badly aligned, as far as malloc allows. */
static void *count_alloc(void *context, int32_t device, size_t bytes)
{
    counting *c = context;
    char *memory;

    assert_int_equal(device, ESPER_GUARD_HOST);
    if (c->fail_from != 0 && c->n_taken + 1 >= c->fail_from)
        return NULL;
    memory = malloc(bytes + 64);
    if (memory == NULL)
        return NULL;
    memset(memory, 0xCC, bytes + 64);
    c->n_taken++;
    return memory + 16;
}

static void count_release(void *context, int32_t device, void *memory)
{
    counting *c = context;

    assert_int_equal(device, ESPER_GUARD_HOST);
    c->n_released++;
    free((char *)memory - 16);
}

static esper_guard *counting_guard(const model *m, counting *c)
{
    esper_guard_options options;
    esper_guard *guard;

    esper_guard_options_init(&options);
    options.alloc = count_alloc;
    options.release = count_release;
    options.alloc_context = c;
    check_good(esper_guard_open(&options, &guard));
    check_good(esper_guard_add(guard, m->tensors, m->n));
    return guard;
}

static void the_callers_allocator_is_used(void **state)
{
    counting c = {0};
    unsigned char *taken;
    int before;
    host_scene s;

    (void)state;
    model_init_all(&s.m);
    s.guard = counting_guard(&s.m, &c);
    before = c.n_taken;
    s.ring = open_ring(s.guard, 3);
    assert_true(c.n_taken - before >= 3);
    taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    model_fill(&s.m, 8);
    check_good(esper_ring_rollback(s.ring, 1, NULL));
    model_check(&s.m, taken);
    free(taken);
    esper_ring_close(s.ring);
    esper_guard_close(s.guard);
    assert_int_equal(c.n_taken, c.n_released);
    model_fini(&s.m);
}

static void the_callers_allocator_is_empty(void **state)
{
    counting c = {0};
    int before;
    host_scene s;

    (void)state;
    model_init_small(&s.m);
    s.guard = counting_guard(&s.m, &c);
    before = c.n_taken;
    for (int i = 1; i <= 2; i++) {
        c.fail_from = before + i;
        check_status(esper_ring_open(s.guard, NULL, &s.ring), ESPER_E_NOMEM);
        check_error_says("a ring of 2 entries wants");
        assert_int_equal(c.n_taken - c.n_released, before);
        c.n_taken = before;
        c.n_released = 0;
    }
    c.fail_from = 0;
    check_good(esper_ring_open(s.guard, NULL, &s.ring));
    esper_ring_close(s.ring);
    esper_guard_close(s.guard);
    assert_int_equal(c.n_taken, c.n_released);
    model_fini(&s.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_damaged_entry_is_passed_over, nothing_left),
        cmocka_unit_test_teardown(several_damaged_entries, nothing_left),
        cmocka_unit_test_teardown(a_damaged_blob, nothing_left),
        cmocka_unit_test_teardown(all_damaged, nothing_left),
        cmocka_unit_test_teardown(every_failed_allocation_of_open, nothing_left),
        cmocka_unit_test_teardown(a_failed_allocation_of_take, nothing_left),
        cmocka_unit_test_teardown(larger_than_allowed, nothing_left),
        cmocka_unit_test_teardown(larger_than_memory, nothing_left),
        cmocka_unit_test_teardown(the_callers_allocator_is_used, nothing_left),
        cmocka_unit_test_teardown(the_callers_allocator_is_empty, nothing_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
