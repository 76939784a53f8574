/* ctest: labels=tsan */
/* The allocation border: what a block is, what is counted, and allocations that fail on request. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"

static esper_mem_stats stats(void)
{
    esper_mem_stats now;

    esper_mem_stats_get(&now);
    return now;
}

static void blocks_are_zeroed_and_aligned(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 / 2 + 1) {
        unsigned char *block = esper_mem_alloc(bytes);

        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 64, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(block[i], 0);
        memset(block, 0xFF, bytes); /* the next block of this size must not show it */
        esper_mem_free(block);
    }
}

/* Around the size from which blocks have pages of their own. */
static void large_blocks_of_any_size(void **state)
{
    static const size_t sizes[] = {(2u << 20) - 129, (2u << 20) - 64, 2u << 20, (2u << 20) + 1, (5u << 20) + 12345};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned char *block = esper_mem_alloc(sizes[i]);

        if (block == NULL)
            fail_msg("no block of %zu bytes", sizes[i]);
        assert_int_equal((uintptr_t)block % 64, 0);
        memset(block, 0xFF, sizes[i]);
        esper_mem_free(block);
    }
}

static void impossible_sizes_are_refused(void **state)
{
    esper_mem_stats before = stats();

    (void)state;
    assert_null(esper_mem_alloc(0));
    assert_null(esper_mem_alloc(SIZE_MAX));
    assert_null(esper_mem_alloc(SIZE_MAX - 63));
    assert_int_equal(stats().n_allocs, before.n_allocs);
    assert_int_equal(stats().live_bytes, before.live_bytes);
    esper_mem_free(NULL);
}

static void growing_keeps_contents(void **state)
{
    unsigned char *block = esper_mem_grow(NULL, 10);

    (void)state;
    assert_non_null(block);
    memset(block, 7, 10);
    block = esper_mem_grow(block, 1000);
    assert_non_null(block);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(block[i], i < 10 ? 7 : 0);
    block = esper_mem_grow(block, 5);
    assert_non_null(block);
    for (int i = 0; i < 5; i++)
        assert_int_equal(block[i], 7);
    esper_mem_fail_at(1);
    assert_null(esper_mem_grow(block, 100));
    assert_int_equal(block[4], 7); /* still there */
    esper_mem_free(block);
}

static void strings_are_copied(void **state)
{
    char text[] = "copy";
    char *copy = esper_mem_strdup(text);
    char *empty = esper_mem_strdup("");

    (void)state;
    text[0] = 'X';
    assert_string_equal(copy, "copy");
    assert_string_equal(empty, "");
    esper_mem_free(copy);
    esper_mem_free(empty);
}

static void everything_is_counted(void **state)
{
    esper_mem_stats before = stats();
    void *a, *b;

    (void)state;
    esper_mem_reset_peak();
    a = esper_mem_alloc(100);
    b = esper_mem_alloc(1000);
    assert_int_equal(stats().n_allocs, before.n_allocs + 2);
    assert_int_equal(stats().n_live, before.n_live + 2);
    assert_int_equal(stats().live_bytes, before.live_bytes + 1100);
    esper_mem_free(b);
    assert_int_equal(stats().live_bytes, before.live_bytes + 100);
    assert_int_equal(stats().peak_bytes, before.live_bytes + 1100);
    esper_mem_reset_peak();
    assert_int_equal(stats().peak_bytes, before.live_bytes + 100);
    esper_mem_free(a);
    assert_int_equal(stats().n_live, before.n_live);
    assert_int_equal(stats().n_allocs, before.n_allocs + 2);
}

static void the_nth_allocation_fails_and_only_that(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 4; nth++) {
        esper_mem_fail_at((uint64_t)nth);
        for (int i = 1; i <= 5; i++) {
            void *block = esper_mem_alloc(8);

            if ((block == NULL) != (i == nth))
                fail_msg("failure %d asked for, allocation %d %s", nth, i, block == NULL ? "failed" : "succeeded");
            esper_mem_free(block);
        }
    }
    esper_mem_fail_at(1);
    esper_mem_fail_at(0);
    {
        void *block = esper_mem_alloc(8);

        assert_non_null(block);
        esper_mem_free(block);
    }
}

enum { N_ROUNDS = 2000, N_THREADS = 4 };

/* Returns how many of its allocations failed, as a pointer-sized number. */
static void *churn(void *argument)
{
    uintptr_t n_failed = 0;

    (void)argument;
    for (int i = 0; i < N_ROUNDS; i++) {
        void *block = esper_mem_alloc((size_t)(i % 300) + 1);

        n_failed += block == NULL;
        esper_mem_free(block);
    }
    return (void *)n_failed;
}

static void threads_share_the_counters(void **state)
{
    esper_mem_stats before = stats();
    pthread_t threads[N_THREADS];
    uintptr_t n_failed = 0;

    (void)state;
    esper_mem_fail_at(N_ROUNDS); /* met by exactly one of them */
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < N_THREADS; i++) {
        void *failed;

        assert_int_equal(pthread_join(threads[i], &failed), 0);
        n_failed += (uintptr_t)failed;
    }
    assert_int_equal(n_failed, 1);
    assert_int_equal(stats().n_allocs, before.n_allocs + N_THREADS * N_ROUNDS - 1);
    assert_int_equal(stats().n_live, before.n_live);
    assert_int_equal(stats().live_bytes, before.live_bytes);
    assert_true(stats().peak_bytes >= stats().live_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zeroed_and_aligned), cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(growing_keeps_contents),        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(everything_is_counted),         cmocka_unit_test(the_nth_allocation_fails_and_only_that),
        cmocka_unit_test(threads_share_the_counters),    cmocka_unit_test(large_blocks_of_any_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
