/* A CUDA device that is none: queues of work that are run in a random order that their events allow, and never before
 * somebody waits or chance has it. What is not ordered by an event goes wrong here sooner or later.
 *
 * Included by one test program, it takes the place of device_cuda.c, engine_cuda.c and cuda_copy.c: the linker,
 * having found these names here, leaves those files in their library. Device memory is host memory. */
#ifndef TESTS_GUARD_FAKE_CUDA_H
#define TESTS_GUARD_FAKE_CUDA_H

#include <pthread.h>

#include "guard/engine_cuda.h"
#include "guard/report.h"
#include "ring_helpers.h"

enum { MAX_QUEUES = 64, MAX_COPY_BYTES = 1 << 20 };

typedef struct fake_op fake_op;
typedef struct fake_queue fake_queue;

struct fake_op {
    void (*run)(fake_op *op);
    fake_queue            *awaited; /* not NULL: may run when that queue has done `mark` */
    size_t                 mark;
    bool                   gated; /* may run when the gate is open */
    void                  *to;
    const void            *from;
    uint64_t               bytes, value;
    const esper_copy_part *parts;
    uint64_t              *sum;
    esper_scan_engine          *engine;
};

struct fake_queue {
    fake_op *ops;
    size_t   n, room, done;
};

typedef struct fake_stream {
    esper_stream base;
    fake_queue  *queue;
} fake_stream;

typedef struct fake_event {
    esper_device_event base;
    fake_queue        *queue;
    size_t             mark;
} fake_event;

static struct {
    fake_queue queues[MAX_QUEUES]; /* 0 is the default stream */
    size_t     n_queues;
    uint64_t   random;
    bool       gate_open;
    uint64_t   n_waits;
    uint64_t   memory_left; /* what alloc may still give */
} fake;

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER; /* the ring's writer to disk waits for events too */

/* ---- running ---- */

static bool may_run(const fake_queue *queue)
{
    const fake_op *op = &queue->ops[queue->done];

    if (queue->done == queue->n || (op->gated && !fake.gate_open))
        return false;
    return op->awaited == NULL || op->awaited->done >= op->mark;
}

/* Runs one piece of work, of any queue; false when none can. */
static bool fake_step(void)
{
    size_t start = next_random(&fake.random) % MAX_QUEUES;

    for (size_t i = 0; i < MAX_QUEUES; i++) {
        fake_queue *queue = &fake.queues[(start + i) % MAX_QUEUES];

        if (!may_run(queue))
            continue;
        if (queue->ops[queue->done].run != NULL)
            queue->ops[queue->done].run(&queue->ops[queue->done]);
        queue->done++;
        return true;
    }
    return false;
}

static void run_until(const fake_queue *queue, size_t mark)
{
    bool stuck = false;

    pthread_mutex_lock(&fake_lock);
    fake.n_waits++;
    while (queue->done < mark && !stuck)
        stuck = !fake_step();
    pthread_mutex_unlock(&fake_lock);
    if (stuck)
        fail_msg("somebody waits for what cannot happen");
}

static esper_status push(fake_queue *queue, fake_op op)
{
    pthread_mutex_lock(&fake_lock);
    for (uint64_t n = next_random(&fake.random) % 4; n > 1; n--)
        fake_step();
    if (queue->n == queue->room) {
        queue->room = queue->room * 2 + 64;
        queue->ops = realloc(queue->ops, queue->room * sizeof(*queue->ops));
        assert_non_null(queue->ops);
    }
    queue->ops[queue->n++] = op;
    pthread_mutex_unlock(&fake_lock);
    return ESPER_OK;
}

static void fake_reset(uint64_t seed)
{
    for (size_t i = 0; i < MAX_QUEUES; i++)
        free(fake.queues[i].ops);
    memset(&fake, 0, sizeof(fake));
    fake.n_queues = 1;
    fake.random = seed;
    fake.memory_left = UINT64_MAX;
}

static fake_queue *queue_of(void *native)
{
    return native == NULL ? &fake.queues[0] : native;
}

static fake_queue *new_queue(void)
{
    assert_in_range(fake.n_queues, 1, MAX_QUEUES - 1);
    return &fake.queues[fake.n_queues++];
}

/* ---- the device ---- */

static esper_status fake_open(int index, esper_device **device_out)
{
    *device_out = esper_mem_alloc(sizeof(**device_out));
    if (*device_out == NULL)
        return ESPER_E_NOMEM;
    **device_out = (esper_device){.ops = &esper_device_cuda, .index = index};
    return ESPER_OK;
}

static void fake_close(esper_device *device)
{
    esper_mem_free(device);
}

static esper_status fake_alloc(esper_device *device, size_t bytes, esper_device_memory kind, void **memory_out)
{
    (void)device;
    if (kind == ESPER_DEVICE_MEMORY_NORMAL && bytes > fake.memory_left)
        return ESPER_E_NOMEM;
    if (kind == ESPER_DEVICE_MEMORY_NORMAL)
        fake.memory_left -= bytes;
    *memory_out = esper_mem_alloc(bytes);
    return *memory_out != NULL ? ESPER_OK : ESPER_E_NOMEM;
}

static void fake_release(esper_device *device, void *memory)
{
    (void)device;
    esper_mem_free(memory);
}

static esper_status fake_wrap(esper_device *device, void *native, esper_stream **stream_out)
{
    fake_stream *stream = esper_mem_alloc(sizeof(*stream));

    if (stream == NULL)
        return ESPER_E_NOMEM;
    *stream = (fake_stream){.base = {.device = device}, .queue = queue_of(native)};
    *stream_out = &stream->base;
    return ESPER_OK;
}

static esper_status fake_stream_open(esper_device *device, esper_stream **stream_out)
{
    return fake_wrap(device, new_queue(), stream_out);
}

static void fake_stream_close(esper_stream *stream)
{
    esper_mem_free(stream);
}

static fake_queue *queue_in(const esper_stream *stream)
{
    return ((const fake_stream *)stream)->queue;
}

static esper_status fake_stream_sync(esper_stream *stream)
{
    run_until(queue_in(stream), queue_in(stream)->n);
    return ESPER_OK;
}

static void run_copy(fake_op *op)
{
    memcpy(op->to, op->from, op->bytes);
}

static esper_status fake_copy(esper_stream *stream, void *to, const void *from, size_t bytes)
{
    return push(queue_in(stream), (fake_op){.run = run_copy, .to = to, .from = from, .bytes = bytes});
}

static void run_set(fake_op *op)
{
    memset(op->to, (int)op->value, op->bytes);
}

static esper_status fake_set(esper_stream *stream, void *memory, int byte, size_t bytes)
{
    return push(queue_in(stream), (fake_op){.run = run_set, .to = memory, .value = (uint64_t)byte, .bytes = bytes});
}

static esper_status fake_event_open(esper_device *device, esper_device_event **event_out)
{
    fake_event *event = esper_mem_alloc(sizeof(*event));

    if (event == NULL)
        return ESPER_E_NOMEM;
    event->base.device = device;
    *event_out = &event->base;
    return ESPER_OK;
}

static void fake_event_close(esper_device_event *event)
{
    esper_mem_free(event);
}

static esper_status fake_event_record(esper_device_event *event, esper_stream *stream)
{
    ((fake_event *)event)->queue = queue_in(stream);
    ((fake_event *)event)->mark = queue_in(stream)->n;
    return ESPER_OK;
}

static esper_status fake_event_wait(esper_device_event *event, esper_stream *stream)
{
    const fake_event *self = (fake_event *)event;

    return push(queue_in(stream), (fake_op){.awaited = self->queue, .mark = self->mark});
}

static esper_status fake_event_sync(esper_device_event *event)
{
    if (((fake_event *)event)->queue != NULL)
        run_until(((fake_event *)event)->queue, ((fake_event *)event)->mark);
    return ESPER_OK;
}

static esper_status fake_event_query(esper_device_event *event, bool *reached_out)
{
    const fake_event *self = (fake_event *)event;

    pthread_mutex_lock(&fake_lock);
    *reached_out = self->queue == NULL || self->queue->done >= self->mark;
    pthread_mutex_unlock(&fake_lock);
    return ESPER_OK;
}

static void *fake_stream_native(const esper_stream *stream)
{
    return queue_in(stream);
}

static esper_status fake_memory_free(esper_device *device, uint64_t *bytes_out)
{
    (void)device;
    *bytes_out = fake.memory_left;
    return ESPER_OK;
}

const esper_device_ops esper_device_cuda = {
    .abi = ESPER_DEVICE_ABI,
    .name = "cuda",
    .open = fake_open,
    .close = fake_close,
    .alloc = fake_alloc,
    .release = fake_release,
    .stream_open = fake_stream_open,
    .stream_close = fake_stream_close,
    .stream_sync = fake_stream_sync,
    .copy_async = fake_copy,
    .set_async = fake_set,
    .event_open = fake_event_open,
    .event_close = fake_event_close,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_sync = fake_event_sync,
    .stream_wrap = fake_wrap,
    .stream_native = fake_stream_native,
    .event_query = fake_event_query,
    .memory_free = fake_memory_free,
};

/* ---- copies ---- */

struct esper_cuda_copy {
    esper_copy_part *parts; /* a copy: the list may change while work is queued */
    size_t           n_parts;
};

esper_status esper_cuda_copy_open(esper_device *device, const esper_copy_part *parts, size_t n_parts,
                                  esper_cuda_copy **copy_out)
{
    esper_cuda_copy *copy = esper_mem_alloc(sizeof(*copy));

    (void)device;
    if (copy == NULL)
        return ESPER_E_NOMEM;
    copy->parts = esper_mem_alloc(n_parts * sizeof(*parts));
    if (copy->parts == NULL) {
        esper_mem_free(copy);
        return ESPER_E_NOMEM;
    }
    memcpy(copy->parts, parts, n_parts * sizeof(*parts));
    copy->n_parts = n_parts;
    *copy_out = copy;
    return ESPER_OK;
}

void esper_cuda_copy_close(esper_cuda_copy *copy)
{
    if (copy != NULL)
        esper_mem_free(copy->parts);
    esper_mem_free(copy);
}

static void run_gather(fake_op *op)
{
    *op->sum += esper_copy_gather(NULL, op->parts, op->bytes, op->to);
}

static void run_scatter(fake_op *op)
{
    *op->sum += esper_copy_scatter(NULL, op->parts, op->bytes, op->from);
}

static void run_checksum(fake_op *op)
{
    void *arena = calloc(1, MAX_COPY_BYTES);

    assert_non_null(arena);
    *op->sum += esper_copy_gather(NULL, op->parts, op->bytes, arena);
    free(arena);
}

static esper_status push_copy(esper_cuda_copy *copy, void (*run)(fake_op *op), void *to, const void *from,
                              uint64_t *sum, void *stream)
{
    return push(
        queue_of(stream),
        (fake_op){.run = run, .parts = copy->parts, .bytes = copy->n_parts, .to = to, .from = from, .sum = sum});
}

esper_status esper_cuda_copy_gather(esper_cuda_copy *copy, void *arena, uint64_t *sum_device, void *stream)
{
    return push_copy(copy, run_gather, arena, NULL, sum_device, stream);
}

esper_status esper_cuda_copy_scatter(esper_cuda_copy *copy, const void *arena, uint64_t *sum_device, void *stream)
{
    return push_copy(copy, run_scatter, NULL, arena, sum_device, stream);
}

esper_status esper_cuda_copy_checksum(esper_cuda_copy *copy, uint64_t *sum_device, void *stream)
{
    return push_copy(copy, run_checksum, NULL, NULL, sum_device, stream);
}

/* ---- the engine ---- */

typedef struct fake_engine {
    esper_scan_engine       base;
    esper_scan_tensor *tensors;
    esper_guard_stat  *stats;
    esper_scan_sums   *groups;
    esper_scan_sums    roles[ESPER_GUARD_N_ROLES];
    size_t             n_tensors, n_groups;
    fake_queue        *queue;
    size_t             mark;
    uint32_t           asked, tag;
} fake_engine;

static esper_status engine_open(int32_t device, const esper_guard_options *options, esper_scan_engine **engine_out)
{
    fake_engine *self = esper_mem_alloc(sizeof(*self));

    (void)options;
    if (self == NULL)
        return ESPER_E_NOMEM;
    self->base = (esper_scan_engine){.ops = &esper_scan_engine_cuda, .device = device};
    *engine_out = &self->base;
    return ESPER_OK;
}

static void engine_unbind(fake_engine *self)
{
    esper_mem_free(self->tensors);
    esper_mem_free(self->stats);
    esper_mem_free(self->groups);
    self->tensors = NULL;
    self->stats = NULL;
    self->groups = NULL;
}

static void engine_close(esper_scan_engine *engine)
{
    engine_unbind((fake_engine *)engine);
    esper_mem_free(engine);
}

static esper_status engine_bind(esper_scan_engine *engine, const esper_scan_tensor *tensors, size_t n_tensors,
                                size_t n_groups)
{
    fake_engine *self = (fake_engine *)engine;

    engine_unbind(self);
    self->tensors = esper_mem_alloc(n_tensors * sizeof(*tensors));
    self->stats = esper_mem_alloc(n_tensors * sizeof(*self->stats));
    self->groups = esper_mem_alloc(n_groups * sizeof(*self->groups));
    self->n_tensors = n_tensors;
    self->n_groups = n_groups;
    if (self->tensors == NULL || self->stats == NULL || self->groups == NULL)
        return ESPER_E_NOMEM;
    memcpy(self->tensors, tensors, n_tensors * sizeof(*tensors));
    return ESPER_OK;
}

static esper_status engine_rebind(esper_scan_engine *engine, void *const *data)
{
    fake_engine *self = (fake_engine *)engine;

    for (size_t i = 0; i < self->n_tensors; i++)
        self->tensors[i].data = data[i];
    return ESPER_OK;
}

static void run_scan(fake_op *op)
{
    fake_engine *self = (fake_engine *)op->engine;
    esper_scan_settings settings = esper_scan_settings_make(1e-8, false);
    const esper_report_limits limits = {1e-7, 10.0};

    for (size_t g = 0; g < self->n_groups; g++)
        esper_scan_sums_init(&self->groups[g]);
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        esper_scan_sums_init(&self->roles[role]);
    for (size_t i = 0; i < self->n_tensors; i++) {
        const esper_scan_tensor *tensor = &self->tensors[i];
        esper_guard_stat *stat = &self->stats[i];
        esper_scan_record record;

        esper_scan_kernels_portable.scan[tensor->dtype](tensor->data, 0, tensor->count, &settings, &record);
        esper_report_stat(&record, tensor->count, stat);
        esper_scan_sums_take(&self->groups[tensor->group], &record, stat, (uint32_t)i, &limits);
        esper_scan_sums_take(&self->roles[tensor->role], &record, stat, (uint32_t)i, &limits);
    }
}

static esper_status engine_scan(esper_scan_engine *engine, const esper_scan_request *request)
{
    fake_engine *self = (fake_engine *)engine;

    self->queue = queue_of(request->stream);
    self->asked = request->roles;
    self->tag = request->tag;
    push(self->queue, (fake_op){.run = run_scan, .engine = engine});
    self->mark = self->queue->n;
    return ESPER_OK;
}

static esper_status engine_collect(esper_scan_engine *engine, esper_scan_result *result_out)
{
    fake_engine *self = (fake_engine *)engine;

    run_until(self->queue, self->mark);
    *result_out = (esper_scan_result){.stats = self->stats,
                                      .groups = self->groups,
                                      .roles = self->roles,
                                      .n_groups = self->n_groups,
                                      .clip_factor = 1,
                                      .asked = self->asked,
                                      .tag = self->tag};
    return ESPER_OK;
}

static esper_status engine_scale(esper_scan_engine *engine, double factor, void *stream)
{
    (void)engine;
    (void)factor;
    (void)stream;
    return ESPER_OK;
}

static esper_status engine_check(esper_scan_engine *engine, const void *memory, uint64_t bytes)
{
    (void)engine;
    (void)memory;
    (void)bytes;
    return ESPER_OK;
}

const esper_scan_engine_ops esper_scan_engine_cuda = {
    .name = "cuda",
    .open = engine_open,
    .close = engine_close,
    .bind = engine_bind,
    .rebind = engine_rebind,
    .scan = engine_scan,
    .collect = engine_collect,
    .scale = engine_scale,
    .check = engine_check,
};

bool esper_cuda_engine_captured(const esper_scan_engine *engine)
{
    (void)engine;
    return false;
}

esper_status esper_cuda_check_live(esper_device *device, void *stream)
{
    (void)device;
    (void)stream;
    return ESPER_OK;
}

static void run_inject(fake_op *op)
{
    uint64_t word = 0;

    memcpy(&word, op->to, op->bytes);
    word = (word & op->mark) ^ op->value;
    memcpy(op->to, &word, op->bytes);
}

esper_status esper_cuda_inject(esper_scan_engine *engine, void *element, uint32_t bytes, uint64_t keep, uint64_t flip,
                               void *stream)
{
    (void)engine;
    return push(queue_of(stream),
                (fake_op){.run = run_inject, .to = element, .bytes = bytes, .mark = keep, .value = flip});
}

#endif
