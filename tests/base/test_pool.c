/* ctest: labels=tsan */
/* The thread pool: every item exactly once whatever the number of threads, and jobs that follow each other closely. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/pool.h"

static const int thread_counts[] = {1, 2, 3, 8};

enum { N_THREAD_COUNTS = sizeof(thread_counts) / sizeof(thread_counts[0]), MAX_ITEMS = 10000 };

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* Deliberately plain integers: two threads on one item, or an item after its job, are races the sanitizer sees. */
typedef struct tally {
    int        n_threads;
    int        n_runs[MAX_ITEMS]; /* of each item */
    int        scratch[8];        /* of each worker: items it ran */
    atomic_int n_bad_workers;
} tally;

static void count_item(void *context, int item, int worker)
{
    tally *counts = context;

    if (worker < 0 || worker >= counts->n_threads) {
        atomic_fetch_add(&counts->n_bad_workers, 1);
        return;
    }
    counts->n_runs[item]++;
    counts->scratch[worker]++;
}

/* Of three threads, with nothing counted yet. */
static esper_pool *open_counted(tally *counts)
{
    esper_pool *pool;

    check_good(esper_pool_open(3, &pool));
    memset(counts, 0, sizeof(*counts));
    counts->n_threads = 3;
    return pool;
}

static void every_item_runs_once(void **state)
{
    static const int sizes[] = {0, 1, 2, 3, 7, 8, 9, 100, MAX_ITEMS};
    static tally counts;

    (void)state;
    for (int t = 0; t < N_THREAD_COUNTS; t++) {
        esper_pool *pool;

        check_good(esper_pool_open(thread_counts[t], &pool));
        assert_int_equal(esper_pool_threads(pool), thread_counts[t]);
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            int sum = 0;

            memset(&counts, 0, sizeof(counts));
            counts.n_threads = thread_counts[t];
            esper_pool_run(pool, sizes[s], count_item, &counts);
            for (int i = 0; i < MAX_ITEMS; i++)
                if (counts.n_runs[i] != (i < sizes[s]))
                    fail_msg("%d threads, %d items: item %d ran %d times", thread_counts[t], sizes[s], i,
                             counts.n_runs[i]);
            for (int w = 0; w < 8; w++)
                sum += counts.scratch[w];
            assert_int_equal(sum, sizes[s]);
            assert_int_equal(atomic_load(&counts.n_bad_workers), 0);
        }
        esper_pool_close(pool);
    }
}

/* Each job reads what the last one wrote: a worker that lags behind would add to the wrong round. */
typedef struct relay {
    int64_t values[16];
} relay;

static void add_from_neighbours(void *context, int item, int worker)
{
    relay *race = context; /* [0..7] read, [8..15] written; swapped by the caller */

    (void)worker;
    race->values[8 + item] = race->values[item] + race->values[(item + 1) % 8] % 1000 + 1;
}

static int64_t run_relay(int n_threads, int n_jobs)
{
    relay race = {{1, 2, 3, 4, 5, 6, 7, 8}};
    esper_pool *pool;
    int64_t sum = 0;

    check_good(esper_pool_open(n_threads, &pool));
    for (int job = 0; job < n_jobs; job++) {
        esper_pool_run(pool, 8, add_from_neighbours, &race);
        memcpy(race.values, race.values + 8, 8 * sizeof(race.values[0]));
    }
    esper_pool_close(pool);
    for (int i = 0; i < 8; i++)
        sum += race.values[i];
    return sum;
}

/* Fewer with more threads: beyond the number of cores each job costs turns of the scheduler, a millisecond or more. */
static void thousands_of_tiny_jobs_keep_their_order(void **state)
{
    static const int n_jobs[N_THREAD_COUNTS] = {0, 2000, 300, 60};

    (void)state;
    for (int t = 1; t < N_THREAD_COUNTS; t++)
        assert_int_equal(run_relay(thread_counts[t], n_jobs[t]), run_relay(1, n_jobs[t]));
}

/* Long enough apart for the workers to have gone to sleep. */
static void sleeping_workers_wake_up(void **state)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    static tally counts;
    esper_pool *pool;

    (void)state;
    pool = open_counted(&counts);
    for (int job = 0; job < 10; job++) {
        nanosleep(&nap, NULL);
        esper_pool_run(pool, 100, count_item, &counts);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(counts.n_runs[i], 10);
    nanosleep(&nap, NULL);
    esper_pool_close(pool); /* of sleepers */
}

/* Workers are slower than the caller, who then waits long enough to sleep. */
static void nap_item(void *context, int item, int worker)
{
    const struct timespec nap = {.tv_nsec = worker == 0 ? 2000000 : 20000000};

    nanosleep(&nap, NULL);
    count_item(context, item, worker);
}

static void the_caller_waits_for_the_slowest(void **state)
{
    static tally counts;
    esper_pool *pool;

    (void)state;
    check_good(esper_pool_open(3, &pool));
    for (int job = 0; job < 5; job++) {
        memset(&counts, 0, sizeof(counts));
        counts.n_threads = 3;
        esper_pool_run(pool, 6, nap_item, &counts);
        for (int i = 0; i < 6; i++)
            assert_int_equal(counts.n_runs[i], 1);
    }
    esper_pool_close(pool);
}

static void running_takes_no_memory(void **state)
{
    esper_mem_stats before, after;
    static tally counts;
    esper_pool *pool;

    (void)state;
    pool = open_counted(&counts);
    esper_mem_stats_get(&before);
    for (int job = 0; job < 100; job++)
        esper_pool_run(pool, 50, count_item, &counts);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_pool_close(pool);
}

static void pools_open_and_close(void **state)
{
    esper_pool *pool = NULL;

    (void)state;
    esper_pool_close(NULL);
    assert_int_equal(esper_pool_open(-1, &pool), ESPER_E_ARG);
    assert_int_equal(esper_pool_open(1000000, &pool), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "1000000 threads"));
    assert_null(pool);
    check_good(esper_pool_open(0, &pool));
    assert_true(esper_pool_threads(pool) >= 1);
    esper_pool_close(pool);
    for (int i = 0; i < 100; i++) { /* closed at once, before the workers have begun */
        check_good(esper_pool_open(3, &pool));
        esper_pool_close(pool);
    }
}

/* The pool and its list of workers. */
static void every_failed_allocation_is_survived(void **state)
{
    esper_mem_stats before, after;

    (void)state;
    esper_mem_stats_get(&before);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        esper_pool *pool = NULL;
        esper_status st;

        esper_mem_fail_at(nth);
        st = esper_pool_open(3, &pool);
        esper_mem_fail_at(0);
        assert_int_equal(st, nth < 3 ? ESPER_E_NOMEM : ESPER_OK);
        esper_pool_close(pool);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(thousands_of_tiny_jobs_keep_their_order),
        cmocka_unit_test(sleeping_workers_wake_up),
        cmocka_unit_test(the_caller_waits_for_the_slowest),
        cmocka_unit_test(running_takes_no_memory),
        cmocka_unit_test(pools_open_and_close),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
