/* Each thread has a bench on which it lays out the job it is at. The job's items are parted into shares, one a thread, so that
 * each finds the samples again that it had in the launch before, in its own caches: half of what is left of its share at a
 * time, as ranges are faster than their items apart. Who is through with its own takes single items of the others' shares. What is posted is (number of the job, its items), a share is (number of the job, items taken); one that bears
 * another number is untouched. Who takes an item swaps in a share with one item more, and may read the bench until that item
 * is done, because the next job is laid out only then. A thread that comes late finds all shares of its job taken. */
#include "tensor/cpu/backend_crew.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/cpu/backend_job.h"
#include "tensor/cpu/block.h"

/* Enough items that no thread waits long for another. */
enum { ITEMS_PER_THREAD = 4 };

/* With fewer blocks than so many a thread, operations are cut finer than by blocks. */
enum { BLOCKS_PER_THREAD = 3 };

/* A job's number has the other 40 bits: it does not come round. */
enum { ITEM_BITS = 24, MOST_ITEMS = (1 << ITEM_BITS) - 1 };

/* Who waits gives the core away now and then, at every turn where cores are short: the one waited for may need it. */
enum { TURNS_TO_YIELD = 256 };

/* Each on a cache line of its own. */
typedef struct crew_share {
    _Alignas(64) _Atomic uint64_t taken;
} crew_share;

typedef struct crew_bench {
    _Alignas(64) _Atomic uint64_t posted;
    crew_share *shares;              /* (n_threads) of the job */
    esper_job   job;
    _Alignas(64) atomic_int n_left;  /* items not yet done */
} crew_bench;

/* The stream of the item that a thread is at. */
typedef struct crew_stream {
    esper_backend_stream base;
    crew_bench          *bench;
} crew_stream;

struct esper_crew {
    esper_pool             *pool;
    const esper_kernel_set *kernels;
    const esper_tune       *tune;
    int                     n_threads;
    unsigned                turns_to_yield;
    crew_bench             *benches;  /* (n_threads) */
    crew_share             *shares;   /* (n_threads, n_threads) of each bench */
    uint64_t               *seen;     /* (n_threads, seen_row) what each thread has found posted on each bench, and all of it taken */
    size_t                  seen_row; /* rows of two threads do not share a cache line */
    crew_stream            *streams;  /* (n_threads) */
    const esper_program    *programs; /* the items of the current run; NULL: they are run_item's */
    esper_backend_item      run_item;
    void                   *item_context;
    int                     n_items;
    atomic_int              next;
    atomic_int              n_unfinished;
};

esper_status esper_crew_open(esper_backend *be, esper_pool *pool, const esper_kernel_set *kernels,
                             const esper_tune *tune, esper_crew **crew_out)
{
    esper_crew *crew = esper_mem_alloc(sizeof(*crew));

    if (crew == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "crew");
    crew->pool = pool;
    crew->kernels = kernels;
    crew->tune = tune;
    crew->n_threads = esper_pool_threads(pool);
    crew->turns_to_yield = esper_pool_is_crowded(pool) ? 1 : TURNS_TO_YIELD;
    crew->benches = esper_mem_alloc((size_t)crew->n_threads * sizeof(*crew->benches));
    crew->shares = esper_mem_alloc((size_t)crew->n_threads * (size_t)crew->n_threads * sizeof(*crew->shares));
    crew->seen_row = ((size_t)crew->n_threads + 7) / 8 * 8;
    crew->seen = esper_mem_alloc((size_t)crew->n_threads * crew->seen_row * sizeof(*crew->seen));
    crew->streams = esper_mem_alloc((size_t)crew->n_threads * sizeof(*crew->streams));
    if (crew->benches == NULL || crew->shares == NULL || crew->seen == NULL || crew->streams == NULL) {
        esper_crew_close(crew);
        return ESPER_FAIL(ESPER_E_NOMEM, "crew of %d threads", esper_pool_threads(pool));
    }
    for (int i = 0; i < crew->n_threads; i++) {
        crew->benches[i].shares = &crew->shares[(size_t)i * (size_t)crew->n_threads];
        crew->streams[i] = (crew_stream){.base = {.backend = be}, .bench = &crew->benches[i]};
    }
    *crew_out = crew;
    return ESPER_OK;
}

void esper_crew_close(esper_crew *crew)
{
    if (crew == NULL)
        return;
    esper_mem_free(crew->streams);
    esper_mem_free(crew->seen);
    esper_mem_free(crew->shares);
    esper_mem_free(crew->benches);
    esper_mem_free(crew);
}

static void wait_a_little(const esper_crew *crew, unsigned *turns)
{
    if (++*turns % crew->turns_to_yield == 0)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Items of a share. */
typedef struct crew_range {
    int begin, end;
} crew_range;

/* Takes items of a share of a job: half of those that are left, or one; none when there are none left. */
static crew_range take_items(crew_share *share, uint64_t number, crew_range whole, bool half)
{
    uint64_t taken = atomic_load_explicit(&share->taken, memory_order_acquire);

    for (;;) {
        bool touched = taken >> ITEM_BITS == number;
        int begin = whole.begin + (touched ? (int)(taken & MOST_ITEMS) : 0);
        int end = half ? begin + (whole.end - begin + 1) / 2 : begin + 1;

        if (begin >= whole.end || taken >> ITEM_BITS > number) /* late: another job is on */
            return (crew_range){0, 0};
        if (atomic_compare_exchange_weak_explicit(&share->taken, &taken,
                                                  number << ITEM_BITS | (uint64_t)(end - whole.begin),
                                                  memory_order_acq_rel, memory_order_acquire))
            return (crew_range){begin, end};
    }
}

/* Does what is left of the job on a bench, the thread's own share first; false when nothing was. Who has seen all of it taken does
 * not look at the shares again: others are writing them. */
static bool work_at(const esper_crew *crew, crew_bench *bench, int worker)
{
    uint64_t posted = atomic_load_explicit(&bench->posted, memory_order_acquire);
    uint64_t *seen = &crew->seen[(size_t)worker * crew->seen_row + (size_t)(bench - crew->benches)];
    int64_t n_items = (int64_t)(posted & MOST_ITEMS), n_shares = crew->n_threads;
    bool worked = false;

    for (int k = 0; k < n_shares && posted != *seen; k++) {
        int owner = (worker + k) % crew->n_threads, n_done = 0;
        crew_range whole = {(int)(n_items * owner / n_shares), (int)(n_items * (owner + 1) / n_shares)};
        for (crew_range r;
             r = take_items(&bench->shares[owner], posted >> ITEM_BITS, whole, k == 0), r.begin < r.end;) {
            esper_job_run_items(&bench->job, r.begin, r.end);
            n_done += r.end - r.begin;
        }
        if (n_done > 0)
            atomic_fetch_sub_explicit(&bench->n_left, n_done, memory_order_release);
        worked |= n_done > 0;
    }
    *seen = posted;
    return worked;
}

/* Posts the job on the bench and works on it until all of it is done. */
static void share_job(const esper_crew *crew, crew_bench *bench, int n_items)
{
    uint64_t number = (atomic_load_explicit(&bench->posted, memory_order_relaxed) >> ITEM_BITS) + 1;
    unsigned turns = 0;

    assert(n_items <= MOST_ITEMS);
    atomic_store_explicit(&bench->n_left, n_items, memory_order_relaxed);
    atomic_store_explicit(&bench->posted, number << ITEM_BITS | (uint64_t)n_items, memory_order_release);
    (void)work_at(crew, bench, (int)(bench - crew->benches));
    while (atomic_load_explicit(&bench->n_left, memory_order_acquire) > 0)
        wait_a_little(crew, &turns);
}

/* While every thread has a network of its own. */
static bool is_alone(const esper_crew *crew)
{
    return atomic_load_explicit(&crew->n_unfinished, memory_order_relaxed) >= crew->n_threads;
}

/* By the thread itself while it is alone; else in items that others can take. */
static void run_job(const esper_crew *crew, crew_bench *bench)
{
    bool alone = is_alone(crew);
    int n_items = esper_job_cut(&bench->job, alone ? 1 : ITEMS_PER_THREAD * crew->n_threads);

    if (!alone && n_items > 1)
        share_job(crew, bench, n_items);
    else
        esper_job_run_items(&bench->job, 0, n_items);
}

/* Phase i of a launch of one lane, counted from the first that is this part's, and computed the way the tune table says;
 * NULL after the last. */
static const esper_phase *phase_of(const esper_crew *crew, const esper_launch *launch, const esper_op_kernels *op,
                                   int i)
{
    bool backward = launch->direction == ESPER_BACKWARD;
    esper_phases part = esper_phases_of(op, backward, launch->part);

    i += part.begin;
    if (i >= part.end || (backward ? op->backward : op->forward)[i].run == NULL)
        return NULL;
    return esper_tune_phase(crew->tune, op, backward, i, launch->lanes);
}

/* A launch by itself: one job a phase. */
static void run_phases(const esper_crew *crew, crew_bench *bench, const esper_launch *launch)
{
    const esper_op_kernels *op = esper_job_kernels(crew->kernels, launch);
    const esper_phase *phase;

    if (op->fine != NULL && !is_alone(crew) &&
        esper_blocks_of(launch->lanes->pass->n_samples) < BLOCKS_PER_THREAD * crew->n_threads)
        op = op->fine;
    for (int i = 0; (phase = phase_of(crew, launch, op, i)) != NULL; i++) {
        bench->job = (esper_job){.phase = {phase}, .lanes = {launch->lanes}, .n_phases = 1, .n_lanes = 1};
        run_job(crew, bench);
    }
}

/* Launches of one phase each, which run in one go. */
static void run_chain(const esper_crew *crew, crew_bench *bench, const esper_launch *launches, int n_launches)
{
    for (int first = 0; first < n_launches; first += ESPER_JOB_PHASES) {
        esper_job *job = &bench->job;

        *job = (esper_job){.n_lanes = 1};
        for (int i = first; i < n_launches && job->n_phases < ESPER_JOB_PHASES; i++) {
            assert(launches[i].part == ESPER_PART_WHOLE && launches[i].n_lanes == 1);
            job->phase[job->n_phases] = phase_of(crew, &launches[i], esper_job_kernels(crew->kernels, &launches[i]), 0);
            job->lanes[job->n_phases++] = launches[i].lanes;
        }
        run_job(crew, bench);
    }
}

static void run_program(const esper_crew *crew, crew_bench *bench, const esper_program *program)
{
    for (int i = 0, n; i < program->n_launches; i += n) {
        n = program->chain[i];
        if (n > 1)
            run_chain(crew, bench, &program->launches[i], n);
        else
            run_phases(crew, bench, &program->launches[i]);
    }
}

/* Takes items from any bench until every network is through. */
static void help(esper_crew *crew, int worker)
{
    unsigned turns = 0;

    while (atomic_load_explicit(&crew->n_unfinished, memory_order_acquire) > 0) {
        bool helped = false;

        for (int i = 0; i < crew->n_threads; i++)
            helped |= work_at(crew, &crew->benches[i], worker);
        if (!helped)
            wait_a_little(crew, &turns);
    }
}

/* What each thread does. One that comes late finds all done and leaves. */
static void take_part(void *context, int part, int worker)
{
    esper_crew *crew = context;
    int item;

    (void)part;
    while ((item = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed)) < crew->n_items) {
        if (crew->programs != NULL)
            run_program(crew, &crew->benches[worker], &crew->programs[item]);
        else
            crew->run_item(crew->item_context, item, &crew->streams[worker].base);
        atomic_fetch_sub_explicit(&crew->n_unfinished, 1, memory_order_release);
    }
    help(crew, worker);
}

static void run_items(esper_crew *crew, int n_items)
{
    assert(atomic_load_explicit(&crew->n_unfinished, memory_order_relaxed) == 0); /* one run at a time */
    crew->n_items = n_items;
    atomic_store_explicit(&crew->next, 0, memory_order_relaxed);
    atomic_store_explicit(&crew->n_unfinished, n_items, memory_order_relaxed);
    esper_pool_run(crew->pool, crew->n_threads, take_part, crew);
}

void esper_crew_each(esper_crew *crew, int n_items, esper_backend_item run_item, void *context)
{
    crew->programs = NULL;
    crew->run_item = run_item;
    crew->item_context = context;
    run_items(crew, n_items);
}

static crew_bench *bench_of(const esper_backend_stream *stream)
{
    return ((const crew_stream *)stream)->bench;
}

void esper_crew_run(esper_crew *crew, const esper_backend_stream *stream, const esper_program *programs, int n_programs)
{
    if (stream == NULL) {
        crew->programs = programs;
        run_items(crew, n_programs);
        return;
    }
    for (int k = 0; k < n_programs; k++)
        run_program(crew, bench_of(stream), &programs[k]);
}

static void run_pool_item(void *context, int item, int worker)
{
    (void)worker;
    esper_job_run_items(context, item, item + 1);
}

/* All lanes compute the same way. */
static void run_alike(esper_crew *crew, const esper_launch *launch)
{
    const esper_phase *phase;

    for (int i = 0; (phase = phase_of(crew, launch, esper_job_kernels(crew->kernels, launch), i)) != NULL; i++) {
        esper_job job = {.phase = {phase}, .lanes = {launch->lanes}, .n_phases = 1, .n_lanes = launch->n_lanes};

        esper_pool_run(crew->pool, esper_job_cut(&job, ITEMS_PER_THREAD * crew->n_threads), run_pool_item, &job);
    }
}

/* Lanes of a batch that is spread over ranks take other phases in training than in evaluation. */
static bool are_alike(const esper_crew *crew, const esper_launch *launch)
{
    const esper_op_kernels *op = esper_job_kernels(crew->kernels, launch);

    for (int l = 0; l < launch->n_lanes; l++)
        if (launch->lanes[l].spread)
            return false;
    return op->ways_forward == NULL && op->ways_backward == NULL;
}

void esper_crew_run_launch(esper_crew *crew, const esper_backend_stream *stream, const esper_launch *launch)
{
    esper_launch one = *launch;

    if (stream == NULL && are_alike(crew, launch)) {
        run_alike(crew, launch);
        return;
    }
    one.n_lanes = 1;
    for (int l = 0; l < launch->n_lanes; l++) {
        one.lanes = &launch->lanes[l];
        if (stream == NULL)
            run_alike(crew, &one);
        else
            run_phases(crew, bench_of(stream), &one);
    }
}
