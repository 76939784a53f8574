/* The thread pool: one shared job, an atomic ticket from which threads take its items, and two ways to wait.
 *
 * A ticket is (number of the job, items not yet taken). Who takes an item does so by swapping in a ticket with one item
 * less, so a thread that comes late finds nothing to take and nobody waits for it: a job is done when its items are. The
 * job's description may be read by whoever holds an item, because the next job is posted only after that item is done.
 *
 * Jobs follow each other within microseconds during a step, so workers first look at the job number for a short while
 * and only then sleep on a condition variable; a step rarely pays for a wake-up, an idle engine burns no core. With more
 * threads than cores nobody looks: the one who is waited for may need that very core. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/mem.h"
#include "base/status.h"

enum { SPIN_TURNS = 4000, MAX_THREADS = 1024 };

typedef struct pool_worker {
    esper_pool *pool;
    pthread_t   thread;
    int         index;
} pool_worker;

struct esper_pool {
    int             n_threads; /* the caller included */
    int             n_started; /* threads to join */
    int             spin_turns;
    pool_worker    *workers;   /* (n_threads): entry 0 is the caller and has no thread */
    pthread_mutex_t lock;
    pthread_cond_t  job_posted, job_done;
    _Atomic uint64_t ticket;     /* of the current job */
    atomic_int      n_left;      /* items of the current job not yet done */
    bool            closing;     /* guarded by lock */
    int             n_items;     /* the job itself: written before the ticket */
    esper_pool_item run_item;
    void           *context;
};

static int cores_available(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

static unsigned job_of(uint64_t ticket)
{
    return (unsigned)(ticket >> 32);
}

static unsigned items_in(uint64_t ticket)
{
    return (unsigned)ticket;
}

/* Takes items of the current job until there are none, and reports the last one done. */
static void take_items(esper_pool *pool, int worker)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);

    while (items_in(ticket) > 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        pool->run_item(pool->context, pool->n_items - (int)items_in(ticket), worker);
        if (atomic_fetch_sub_explicit(&pool->n_left, 1, memory_order_acq_rel) == 1 && worker != 0) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->job_done);
            pthread_mutex_unlock(&pool->lock);
        }
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

/* Waits until a job other than `seen` is posted; false when the pool closes. */
static bool wait_for_job(esper_pool *pool, unsigned seen)
{
    bool closing;

    for (int turn = 0; turn < pool->spin_turns; turn++) {
        if (job_of(atomic_load_explicit(&pool->ticket, memory_order_acquire)) != seen)
            return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(&pool->lock);
    while (job_of(atomic_load(&pool->ticket)) == seen && !pool->closing)
        pthread_cond_wait(&pool->job_posted, &pool->lock);
    closing = pool->closing;
    pthread_mutex_unlock(&pool->lock);
    return !closing;
}

static void *work(void *argument)
{
    pool_worker *self = argument;
    esper_pool *pool = self->pool;
    unsigned seen = 0;

    while (wait_for_job(pool, seen)) {
        seen = job_of(atomic_load_explicit(&pool->ticket, memory_order_acquire)); /* it may have missed some */
        take_items(pool, self->index);
    }
    return NULL;
}

static void wait_for_items(esper_pool *pool)
{
    for (int turn = 0; turn < pool->spin_turns; turn++) {
        if (atomic_load_explicit(&pool->n_left, memory_order_acquire) == 0)
            return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->n_left) != 0)
        pthread_cond_wait(&pool->job_done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

esper_status esper_pool_open(int n_threads, esper_pool **pool_out)
{
    esper_pool *pool;

    if (n_threads < 0 || n_threads > MAX_THREADS)
        return ESPER_FAIL(ESPER_E_ARG, "%d threads: expected 0 (one for each core) to %d", n_threads, MAX_THREADS);
    pool = esper_mem_alloc(sizeof(*pool));
    if (pool == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "thread pool");
    pool->n_threads = n_threads != 0 ? n_threads : cores_available();
    pool->spin_turns = pool->n_threads <= cores_available() ? SPIN_TURNS : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->job_posted, NULL);
    pthread_cond_init(&pool->job_done, NULL);
    pool->workers = esper_mem_alloc((size_t)pool->n_threads * sizeof(*pool->workers));
    if (pool->workers == NULL) {
        esper_pool_close(pool);
        return ESPER_FAIL(ESPER_E_NOMEM, "thread pool");
    }
    for (int i = 1; i < pool->n_threads; i++) {
        pool->workers[i] = (pool_worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i]) != 0) {
            ESPER_FAIL(ESPER_E_NOMEM, "thread %d of %d cannot be started", i + 1, pool->n_threads);
            esper_pool_close(pool);
            return ESPER_E_NOMEM;
        }
        pool->n_started++;
    }
    *pool_out = pool;
    return ESPER_OK;
}

void esper_pool_close(esper_pool *pool)
{
    if (pool == NULL)
        return;
    assert(atomic_load(&pool->n_left) == 0);
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->job_posted);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->job_done);
    pthread_cond_destroy(&pool->job_posted);
    pthread_mutex_destroy(&pool->lock);
    esper_mem_free(pool->workers);
    esper_mem_free(pool);
}

int esper_pool_threads(const esper_pool *pool)
{
    return pool->n_threads;
}

bool esper_pool_is_crowded(const esper_pool *pool)
{
    return pool->spin_turns == 0;
}

void esper_pool_run(esper_pool *pool, int n_items, esper_pool_item run_item, void *context)
{
    uint64_t ticket;

    assert(n_items >= 0 && run_item != NULL);
    assert(atomic_load(&pool->n_left) == 0); /* one job at a time */
    if (pool->n_threads == 1 || n_items <= 1) {
        for (int item = 0; item < n_items; item++)
            run_item(context, item, 0);
        return;
    }
    pool->n_items = n_items;
    pool->run_item = run_item;
    pool->context = context;
    atomic_store_explicit(&pool->n_left, n_items, memory_order_relaxed);
    ticket = (uint64_t)(job_of(atomic_load(&pool->ticket)) + 1u) << 32 | (unsigned)n_items;
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->ticket, ticket, memory_order_release);
    pthread_cond_broadcast(&pool->job_posted);
    pthread_mutex_unlock(&pool->lock);
    take_items(pool, 0);
    wait_for_items(pool);
}
