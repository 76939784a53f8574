/* The cuda backend: networks as lanes of one stream of a device.
 *
 * backend_queue.h tells how work gets there, backend_lanes.h what is launched; the operations' own files say which kernels compute
 * them. A guard's scan only raises the flag here: passes and steps of a network whose flag is up do nothing, so what raised it
 * stands where it stood when the host comes to look, with a scan of the guard's own. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/cuda/backend_queue.h"
#include "tensor/cuda/block_lower.h"

enum { MOST_ITEMS = 1024, CORES_SINCE = 80 /* compute capability 8.0: tensor cores that take TF32 */ };

static cuda_backend *backend_of(const esper_backend *be)
{
    return (cuda_backend *)(uintptr_t)be;
}

/* That of a thread of `each`: whatever it does without naming a stream goes there, too, so that no thread waits for another's. */
static _Thread_local cuda_queue *own_queue;

static cuda_queue *queue_of(esper_backend *be, esper_backend_stream *stream)
{
    if (stream != NULL)
        return (cuda_queue *)stream;
    return own_queue != NULL && own_queue->base.backend == be ? own_queue : &backend_of(be)->main;
}

/* ------------------------------------------------------------------------------------------------ opening */

/* ESPER_CUDA_DEVICE, or the number of this process among those on its machine. */
static int wanted_device(void)
{
    const char *number = getenv("ESPER_CUDA_DEVICE");

    if (number == NULL)
        number = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    return number != NULL ? atoi(number) : 0;
}

static esper_status open_device(esper_device **device_out)
{
    int wanted = wanted_device(), n = 0;

    ESPER_TRY(esper_cuda_driver_load());
    ESPER_TRY(ESPER_CUDA(cuDeviceGetCount, &n));
    return esper_device_open("cuda", n > 0 && getenv("ESPER_CUDA_DEVICE") == NULL ? wanted % n : wanted, device_out);
}

static void print_figures(cuda_backend *self)
{
    static const char *const kinds[] = {"moves", "parts", "scans", "operations", "gathers", "programs"};
    const esper_backend_figures *it = &self->figures;
    double rounds = (double)(it->n_rounds > 0 ? it->n_rounds : 1);

    fprintf(
        stderr,
        "rounds %lld of %.1f pages: %.3f s handing on (%.3f s putting groups together), %.3f s waiting; a page %.3f ms in "
        "writing; the device %.3f s busy, %.3f s idle\n",
        (long long)it->n_rounds, (double)it->n_pages / rounds, it->handing, self->lanes.grouping, it->waiting,
        1e3 * it->writing / (double)(it->n_pages > 0 ? it->n_pages : 1), it->busy, it->idle);
    for (int kind = 0; kind < CUDA_NOTHING; kind++) {
        const cuda_tally *tally = &self->lanes.tallies[kind];

        if (tally->n_launches > 0)
            fprintf(stderr, "  %-10s %9lld launches of %6.1f lanes, %7.3f s handing on\n", kinds[kind],
                    (long long)tally->n_launches, (double)tally->n_lanes / (double)tally->n_launches, tally->seconds);
    }
    fprintf(stderr, "  %lld groups of programs, %lld graphs, %d forms, %d steps\n", (long long)self->lanes.n_made,
            (long long)self->lanes.n_graphs, self->lanes.order.n_forms, self->lanes.order.n_steps);
}

static void close_round(cuda_round *round)
{
    if (round->begun != NULL)
        (void)ESPER_CUDA_RAW(cuEventDestroy, round->begun);
    if (round->over != NULL)
        (void)ESPER_CUDA_RAW(cuEventDestroy, round->over);
}

static void close_cuda(esper_backend *be)
{
    cuda_backend *self = backend_of(be);

    if (self->lanes.device != NULL && getenv("ESPER_CUDA_ROUNDS") != NULL)
        print_figures(self);
    if (self->device != NULL && esper_cuda_enter(self->device) == ESPER_OK) {
        if (self->stream != NULL)
            (void)esper_stream_sync(self->stream);
        cuda_lanes_close(&self->lanes);
        for (int i = 0; i < CUDA_ROUNDS; i++)
            close_round(&self->rounds[i]);
        esper_cuda_leave();
    }
    for (int i = 0; i < self->n_queues; i++) {
        cuda_queue_fini(self->queues[i]);
        esper_mem_free(self->queues[i]);
    }
    cuda_queue_fini(&self->main);
    esper_mem_free(self->queues);
    esper_mem_free((void *)self->together);
    if (self->stream != NULL)
        esper_stream_close(self->stream);
    esper_device_close(self->device);
    pthread_cond_destroy(&self->turn);
    pthread_mutex_destroy(&self->lock);
    esper_mem_free(self);
}

static void name_kernels(cuda_backend *self, esper_precision precision)
{
    snprintf(self->identity, sizeof(self->identity), "cuda/sm_%d/k%08x%s%s", esper_cuda_capability(self->device),
             (unsigned)self->lanes.hash, precision == ESPER_FP32 ? "" : "/",
             precision == ESPER_FP32 ? "" : esper_precision_name(precision));
}

static esper_status open_parts(cuda_backend *self)
{
    ESPER_TRY(open_device(&self->device));
    ESPER_TRY(esper_stream_open(self->device, &self->stream));
    self->handle = esper_stream_native(self->stream);
    self->base.has_cores = esper_cuda_capability(self->device) >= CORES_SINCE;
    ESPER_TRY(cuda_lanes_open(self->device, self->handle, &self->lanes));
    name_kernels(self, ESPER_FP32);
    return ESPER_OK;
}

static esper_status open_cuda(esper_pool *pool, esper_backend **be_out)
{
    cuda_backend *self = esper_mem_alloc(sizeof(*self));
    pthread_condattr_t monotonic;
    esper_status status;

    (void)pool; /* threads of its own wait for the device */
    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "backend cuda");
    self->base.ops = &esper_backend_cuda;
    cuda_queue_init(&self->main, self, true);
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->turn, &monotonic);
    pthread_condattr_destroy(&monotonic);
    status = open_parts(self);
    if (status != ESPER_OK) {
        close_cuda(&self->base);
        return status;
    }
    *be_out = &self->base;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ planning */

static bool supports_cuda(const esper_backend *be, esper_op_kind kind)
{
    (void)be;
    return esper_cuda_op_of(kind, ESPER_CUDA_CANONICAL) != NULL || esper_cuda_op_of(kind, ESPER_CUDA_BLOCKED) != NULL;
}

static esper_status lower_cuda(const esper_backend *be, const esper_net *net, int max_samples, esper_net *lowered_out)
{
    return esper_cuda_lower(net, max_samples, be->precision, lowered_out);
}

static size_t bytes_cuda(const esper_backend *be, const esper_tensor *tensor, int max_samples)
{
    (void)be;
    return esper_cuda_bytes(tensor, max_samples);
}

static size_t scratch_cuda(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);

    (void)be;
    return op == NULL || op->scratch == NULL
               ? 0
               : op->scratch(launch->lanes, launch->direction == ESPER_BACKWARD, max_samples);
}

static size_t sums_cuda(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);

    (void)be;
    return op == NULL || op->sums == NULL ? 0
                                          : op->sums(launch->lanes, launch->direction == ESPER_BACKWARD, offset_out);
}

static const char *identity_cuda(const esper_backend *be)
{
    return backend_of(be)->identity;
}

/* ------------------------------------------------------------------------------------------------ running */

static esper_status alloc_cuda(esper_backend *be, size_t bytes, void **mem_out)
{
    return cuda_memory_take(&backend_of(be)->lanes.memory, bytes, true, mem_out);
}

static void release_cuda(esper_backend *be, void *mem)
{
    cuda_memory_give_back(&backend_of(be)->lanes.memory, mem);
}

static esper_status enqueue_cuda(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    return cuda_queue_launch(queue_of(be, stream), launch);
}

static esper_status enqueue_programs_cuda(esper_backend *be, esper_backend_stream *stream,
                                          const esper_program *programs, int n_programs)
{
    return cuda_queue_programs(queue_of(be, stream), programs, n_programs);
}

static esper_status sync_cuda(esper_backend *be, esper_backend_stream *stream)
{
    return cuda_queue_wait(queue_of(be, stream));
}

static esper_status submit_cuda(esper_backend *be, esper_backend_stream *stream, uint64_t *ticket_out)
{
    return cuda_queue_submit(queue_of(be, stream), ticket_out);
}

static esper_status wait_for_cuda(esper_backend *be, esper_backend_stream *stream, uint64_t ticket)
{
    return cuda_queue_wait_for(queue_of(be, stream), ticket);
}

static void figures_cuda(esper_backend *be, esper_backend_figures *figures_out)
{
    cuda_backend *self = backend_of(be);

    pthread_mutex_lock(&self->lock);
    *figures_out = self->figures;
    figures_out->n_launches = figures_out->n_lanes = 0;
    for (int kind = 0; kind < CUDA_NOTHING; kind++) {
        figures_out->n_launches += self->lanes.tallies[kind].n_launches;
        figures_out->n_lanes += self->lanes.tallies[kind].n_lanes;
    }
    figures_out->n_groups = self->lanes.n_made;
    figures_out->n_graphs = self->lanes.n_graphs;
    figures_out->grouping = self->lanes.grouping;
    pthread_mutex_unlock(&self->lock);
}

static esper_status copy_in_cuda(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                 size_t bytes)
{
    return cuda_queue_copy_in(queue_of(be, stream), to, from, bytes);
}

static esper_status copy_out_cuda(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                  size_t bytes)
{
    return cuda_queue_copy_out(queue_of(be, stream), to, from, bytes);
}

static esper_status copy_cuda(esper_backend *be, esper_backend_stream *stream, void *to, const void *from, size_t bytes)
{
    return cuda_queue_copy(queue_of(be, stream), to, from, bytes);
}

static esper_status fill_cuda(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    return cuda_queue_fill(queue_of(be, stream), to, value, count);
}

static esper_status scan_cuda(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                              const esper_guard_scan *request, uint32_t *flag)
{
    return cuda_queue_scan(queue_of(be, stream), guard, request->roles, flag);
}

static esper_status gather_cuda(esper_backend *be, esper_backend_stream *stream, const esper_gather *gather,
                                const esper_pick *picks)
{
    return cuda_queue_gather(queue_of(be, stream), gather, picks);
}

static void forget_cuda(esper_backend *be, uint64_t program)
{
    cuda_backend *self = backend_of(be);
    const cuda_queue *queue = queue_of(be, NULL);

    pthread_mutex_lock(&self->lock);
    cuda_lanes_forget(&self->lanes, program, &queue->n_done,
                      queue->n_written + queue->pages[queue->n_written % CUDA_PAGES].used);
    pthread_mutex_unlock(&self->lock);
}

static esper_status set_precision_cuda(esper_backend *be, esper_precision precision)
{
    cuda_backend *self = backend_of(be);
    int here = esper_cuda_capability(self->device);

    if (precision != ESPER_FP32 && !self->base.has_cores)
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "%s is for devices of compute capability 8.0 or newer, and this one has %d.%d: leave out --precision",
            esper_precision_name(precision), here / 10, here % 10);
    name_kernels(self, precision);
    return ESPER_OK;
}

static int device_cuda(const esper_backend *be)
{
    return backend_of(be)->device->index;
}

static void stand_by_cuda(esper_backend *be, bool on)
{
    cuda_backend *self = backend_of(be);

    pthread_mutex_lock(&self->lock);
    self->n_live += on ? -1 : 1;
    pthread_cond_broadcast(&self->turn);
    pthread_mutex_unlock(&self->lock);
}

static int width_cuda(const esper_backend *be)
{
    (void)be;
    return MOST_ITEMS;
}

/* ------------------------------------------------------------------------------------------------ many at a time */

/* Items, and the threads that do them: a thread for each, as far as there are queues. */
typedef struct crew {
    cuda_backend      *self;
    esper_backend_item run_item;
    void              *context;
    int                n_items;
    atomic_int         next, n_here; /* the next item; threads that have come, each of which takes a queue */
} crew;

/* What an item has left in its queue is done before the next one begins. A failure of that shows in the next wait. */
static void *work(void *context)
{
    crew *all = context;
    cuda_backend *self = all->self;
    cuda_queue *queue = self->queues[all->n_here++];

    own_queue = queue;
    queue->written_from = esper_clock_seconds();
    for (int item; (item = all->next++) < all->n_items;) {
        all->run_item(all->context, item, &queue->base);
        if (!cuda_queue_is_idle(queue))
            (void)cuda_queue_wait(queue);
    }
    own_queue = NULL;
    pthread_mutex_lock(&self->lock);
    self->n_live--;
    pthread_cond_broadcast(&self->turn);
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Takes queues until there are n, or no memory for more. Returns how many there are. */
static int take_queues(cuda_backend *self, int n)
{
    cuda_queue **queues = n > self->n_queues ? esper_mem_grow(self->queues, (size_t)n * sizeof(*queues)) : self->queues;

    if (queues == NULL)
        return self->n_queues;
    self->queues = queues;
    while (self->n_queues < n) {
        cuda_queue *queue = esper_mem_alloc(sizeof(*queue));

        if (queue == NULL)
            break;
        cuda_queue_init(queue, self, false);
        self->queues[self->n_queues++] = queue;
    }
    return self->n_queues < n ? self->n_queues : n;
}

static void each_cuda(esper_backend *be, int n_items, esper_backend_item run_item, void *context)
{
    cuda_backend *self = backend_of(be);
    crew all = {.self = self, .run_item = run_item, .context = context, .n_items = n_items};
    int n = n_items < MOST_ITEMS ? n_items : MOST_ITEMS, n_started = 0;
    pthread_t threads[MOST_ITEMS];

    n = n > 1 ? take_queues(self, n) : 0;
    if (n < 2) { /* one item, or no memory for more than one at a time */
        for (int item = 0; item < n_items; item++)
            run_item(context, item, NULL);
        return;
    }
    self->n_live = n;
    while (n_started < n - 1 && pthread_create(&threads[n_started], NULL, work, &all) == 0)
        n_started++;
    pthread_mutex_lock(&self->lock);
    self->n_live -= n - 1 - n_started;
    pthread_mutex_unlock(&self->lock);
    work(&all);
    for (int i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
}

const esper_backend_ops esper_backend_cuda = {
    .abi = ESPER_BACKEND_ABI,
    .name = "cuda",
    .about = "an NVIDIA GPU: networks side by side",
    .open = open_cuda,
    .close = close_cuda,
    .alloc = alloc_cuda,
    .release = release_cuda,
    .supports = supports_cuda,
    .lower = lower_cuda,
    .bytes = bytes_cuda,
    .scratch = scratch_cuda,
    .sums = sums_cuda,
    .enqueue_programs = enqueue_programs_cuda,
    .enqueue = enqueue_cuda,
    .sync = sync_cuda,
    .identity = identity_cuda,
    .copy_in = copy_in_cuda,
    .copy_out = copy_out_cuda,
    .copy = copy_cuda,
    .fill = fill_cuda,
    .each = each_cuda,
    .scan = scan_cuda,
    .gather = gather_cuda,
    .behind = true,
    .flags_only = true,
    .device = device_cuda,
    .stand_by = stand_by_cuda,
    .forget = forget_cuda,
    .width = width_cuda,
    .submit = submit_cuda,
    .wait_for = wait_for_cuda,
    .figures = figures_cuda,
    .set_precision = set_precision_cuda,
};
