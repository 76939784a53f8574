/* Queues and rounds. */
#include "tensor/cuda/backend_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "guard/guard_internal.h"
#include "guard/guard_state.h"

enum {
    LARGE_MOVE = 1 << 20,              /* bytes from which on a copy is the driver's own */
    MOST_STAGED = 64 << 20,            /* bytes that the main queue stages before it waits for what it has handed on */
    PATIENCE_NS = 30 * 1000 * 1000,    /* how long a thread waits for others to join a round */
    ALL_ROLES = (1 << ESPER_GUARD_N_ROLES) - 1,
};

static cuda_backend *backend_of(const cuda_queue *queue)
{
    return (cuda_backend *)queue->base.backend;
}

/* ------------------------------------------------------------------------------------------------ memory of a queue */

void cuda_queue_init(cuda_queue *queue, cuda_backend *self, bool direct)
{
    *queue = (cuda_queue){.base = {.backend = &self->base}, .direct = direct};
}

void cuda_queue_fini(cuda_queue *queue)
{
    while (queue->stages != NULL) {
        cuda_stage *stage = queue->stages;

        queue->stages = stage->next;
        esper_device_release(backend_of(queue)->device, stage->memory);
        esper_mem_free(stage);
    }
    esper_mem_free(queue->entries);
    esper_mem_free(queue->deliveries);
    esper_mem_free(queue->scan_room);
}

/* Room in memory that the device reaches, until the next wait. */
static esper_status take_stage(cuda_queue *queue, size_t bytes, void **room_out)
{
    cuda_backend *self = backend_of(queue);
    size_t wanted = (bytes + 63) / 64 * 64;
    void *memory;

    while (queue->stage != NULL && queue->stage->used + wanted > queue->stage->bytes && queue->stage->next != NULL)
        queue->stage = queue->stage->next;
    if (queue->stage == NULL || queue->stage->used + wanted > queue->stage->bytes) {
        cuda_stage *stage = esper_mem_alloc(sizeof(*stage));
        esper_status status;

        if (stage == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "staging memory");
        stage->bytes = wanted > CUDA_STAGE_BYTES ? wanted : CUDA_STAGE_BYTES;
        status = esper_device_alloc(self->device, stage->bytes, ESPER_DEVICE_MEMORY_PINNED, &memory);
        if (status != ESPER_OK) {
            esper_mem_free(stage);
            return status;
        }
        stage->memory = memory;
        if (queue->stage == NULL) {
            queue->stages = stage;
        } else {
            stage->next = queue->stage->next;
            queue->stage->next = stage;
        }
        queue->stage = stage;
    }
    *room_out = queue->stage->memory + queue->stage->used;
    queue->stage->used += wanted;
    return ESPER_OK;
}

static size_t staged(const cuda_queue *queue)
{
    size_t bytes = 0;

    for (const cuda_stage *stage = queue->stages; stage != NULL; stage = stage->next)
        bytes += stage->used;
    return bytes;
}

/* Everything is done: what was copied out goes where it is wanted. */
static void deliver(cuda_queue *queue, bool good)
{
    for (int i = 0; i < queue->n_deliveries && good; i++)
        memcpy(queue->deliveries[i].to, queue->deliveries[i].from, queue->deliveries[i].bytes);
    queue->n_deliveries = 0;
    queue->begin = queue->end = 0;
    for (cuda_stage *stage = queue->stages; stage != NULL; stage = stage->next)
        stage->used = 0;
    queue->stage = queue->stages;
}

/* ------------------------------------------------------------------------------------------------ handing on */

/* Moves that are handed on together, and whose queue each comes from. */
typedef struct bundle {
    cuda_moves        moves;
    const cuda_queue *from[CUDA_MOVES];
    int               n;
    uint64_t          largest;
} bundle;

static esper_status hand_on_moves(cuda_backend *self, bundle *all)
{
    cuda_call call = {.kernel = self->lanes.move,
                      .threads = CUDA_MOVE_THREADS,
                      .blocks = esper_cuda_divide((int64_t)all->largest, CUDA_MOVE_PART),
                      .n_lanes = all->n};

    all->n = 0;
    all->largest = 0;
    return cuda_lanes_call(&self->lanes, &call, &all->moves);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

/* Whether a move can be done beside those of its own queue that come before it. */
static bool goes_beside(const bundle *all, const cuda_queue *queue, const cuda_move *move)
{
    for (int i = 0; i < all->n; i++) {
        const cuda_move *other = &all->moves.move[i];

        if (all->from[i] == queue &&
            (overlap(other->to, other->bytes, move->to, move->bytes) ||
             (move->from != NULL && overlap(other->to, other->bytes, move->from, move->bytes)) ||
             (other->from != NULL && overlap(move->to, move->bytes, other->from, other->bytes))))
            return false;
    }
    return true;
}

static esper_status move_large(cuda_backend *self, const cuda_move *move)
{
    return ESPER_CUDA(cuMemcpyAsync, (CUdeviceptr)(uintptr_t)move->to, (CUdeviceptr)(uintptr_t)move->from,
                      (size_t)move->bytes, self->handle);
}

/* The moves at the heads of the queues, as many of each as go beside each other. */
static esper_status hand_on_heads(cuda_backend *self, cuda_queue *queues)
{
    bundle all = {.n = 0};

    for (cuda_queue *queue = queues; queue != NULL; queue = queue->next)
        while (queue->begin < queue->end && queue->entries[queue->begin].kind == CUDA_MOVE) {
            const cuda_move *move = &queue->entries[queue->begin].move;

            if (!goes_beside(&all, queue, move))
                break;
            queue->begin++;
            if (move->from != NULL && move->bytes >= LARGE_MOVE) {
                ESPER_TRY(hand_on_moves(self, &all));
                ESPER_TRY(move_large(self, move));
                continue;
            }
            all.from[all.n] = queue;
            all.moves.move[all.n++] = *move;
            all.largest = move->bytes > all.largest ? move->bytes : all.largest;
            if (all.n == CUDA_MOVES)
                ESPER_TRY(hand_on_moves(self, &all));
        }
    return all.n > 0 ? hand_on_moves(self, &all) : ESPER_OK;
}

enum { MOST_TOGETHER = 4096 };

/* What is handed on next: moves before batches, scans and those before lanes, one operation at a time, and programs when all others have come
 * to theirs: they are most of the work, and are done by as many as there are. */
static cuda_entry_kind next_kind(const cuda_queue *queues, int *op_out)
{
    cuda_entry_kind kind = CUDA_NOTHING;
    int op = ESPER_N_KINDS;

    for (const cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
        const cuda_entry *entry = &queue->entries[queue->begin];

        if (queue->begin == queue->end)
            continue;
        if (entry->kind < kind)
            kind = entry->kind;
        if (entry->kind == CUDA_LANE && entry->op < op)
            op = entry->op;
    }
    *op_out = op;
    return kind;
}

/* All that was queued, in the order of each queue. */
static esper_status hand_on(cuda_backend *self, cuda_queue *queues)
{
    esper_status status = ESPER_OK;
    int op;

    for (cuda_entry_kind kind; status == ESPER_OK && (kind = next_kind(queues, &op)) != CUDA_NOTHING;) {
        int n = 0;

        if (kind == CUDA_MOVE) {
            status = hand_on_heads(self, queues);
            continue;
        }
        for (cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
            const cuda_entry *entry = &queue->entries[queue->begin];

            if (queue->begin == queue->end || entry->kind != kind || (kind == CUDA_LANE && entry->op != op))
                continue;
            if (n + entry->n > self->room_together) {
                int room = 2 * (n + entry->n);
                const void **larger = esper_mem_grow((void *)self->together, (size_t)room * sizeof(*larger));

                if (larger == NULL)
                    return ESPER_FAIL(ESPER_E_NOMEM, "%d entries of queues", room);
                self->together = larger;
                self->room_together = room;
            }
            for (int i = 0, last = entry->n; i < last; i++, entry++)
                self->together[n++] = kind == CUDA_GATHER ? entry->batch
                                      : kind == CUDA_SCAN ? (const void *)entry->scan
                                      : kind == CUDA_LANE ? (const void *)entry->lane
                                                          : (const void *)entry->program;
            queue->begin = (int)(entry - queue->entries);
        }
        status = kind == CUDA_GATHER ? cuda_lanes_run_gathers(&self->lanes, self->together, n)
                 : kind == CUDA_SCAN ? cuda_lanes_run_scans(&self->lanes, (const cuda_scan *const *)self->together, n)
                 : kind == CUDA_LANE ? cuda_lanes_run(&self->lanes, (const cuda_lane *const *)self->together, n)
                                     : cuda_lanes_run_programs(&self->lanes, (const cuda_program **)self->together, n);
    }
    return status;
}

static esper_status in_context(cuda_backend *self, cuda_queue *queues, bool wait)
{
    double began = esper_clock_seconds(), handed;
    esper_status status;

    if (self->lost)
        return ESPER_FAIL(ESPER_E_DEVICE, "the CUDA device was lost before");
    ESPER_TRY(esper_cuda_enter(self->device));
    status = hand_on(self, queues);
    handed = esper_clock_seconds();
    if (status == ESPER_OK && wait)
        status = ESPER_CUDA(cuStreamSynchronize, self->handle);
    if (wait) {
        self->seconds_handing += handed - began;
        self->seconds_waiting += esper_clock_seconds() - handed;
        self->n_rounds++;
        for (const cuda_queue *queue = queues; queue != NULL; queue = queue->next)
            self->n_served++;
    }
    esper_cuda_leave();
    self->lost = status == ESPER_E_DEVICE;
    return status;
}

/* ------------------------------------------------------------------------------------------------ queueing */

static esper_status push(cuda_queue *queue, const cuda_entry *entry)
{
    if (queue->end == queue->room) {
        int room = queue->room == 0 ? 256 : 2 * queue->room;
        cuda_entry *entries = esper_mem_grow(queue->entries, (size_t)room * sizeof(*entries));

        if (entries == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "queue of %d entries", room);
        queue->entries = entries;
        queue->room = room;
    }
    queue->entries[queue->end++] = *entry;
    return ESPER_OK;
}

/* The main queue hands on at once. */
static esper_status pushed(cuda_queue *queue)
{
    cuda_backend *self = backend_of(queue);
    esper_status status;

    if (!queue->direct)
        return ESPER_OK;
    assert(queue->next == NULL);
    status = in_context(self, queue, false);
    queue->begin = queue->end = 0;
    if (status == ESPER_OK && staged(queue) > MOST_STAGED)
        status = cuda_queue_wait(queue);
    return status;
}

static esper_status push_move(cuda_queue *queue, const cuda_move *move)
{
    ESPER_TRY(push(queue, &(cuda_entry){.kind = CUDA_MOVE, .n = 1, .move = *move}));
    return pushed(queue);
}

esper_status cuda_queue_copy_in(cuda_queue *queue, void *to, const void *from, size_t bytes)
{
    void *room;

    ESPER_TRY(take_stage(queue, bytes, &room));
    memcpy(room, from, bytes);
    return push_move(queue, &(cuda_move){.to = to, .from = room, .bytes = bytes});
}

esper_status cuda_queue_copy_out(cuda_queue *queue, void *to, const void *from, size_t bytes)
{
    esper_status status;
    void *room;

    if (queue->n_deliveries == queue->room_deliveries) {
        int more = queue->room_deliveries == 0 ? 16 : 2 * queue->room_deliveries;
        cuda_delivery *deliveries = esper_mem_grow(queue->deliveries, (size_t)more * sizeof(*deliveries));

        if (deliveries == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%d copies", more);
        queue->deliveries = deliveries;
        queue->room_deliveries = more;
    }
    ESPER_TRY(take_stage(queue, bytes, &room));
    queue->deliveries[queue->n_deliveries++] = (cuda_delivery){.to = to, .from = room, .bytes = bytes};
    status = push_move(queue, &(cuda_move){.to = room, .from = from, .bytes = bytes});
    if (status != ESPER_OK && queue->n_deliveries > 0) /* the caller's memory may be gone before the next wait */
        queue->n_deliveries--;
    return status;
}

esper_status cuda_queue_copy(cuda_queue *queue, void *to, const void *from, size_t bytes)
{
    return push_move(queue, &(cuda_move){.to = to, .from = from, .bytes = bytes});
}

esper_status cuda_queue_fill(cuda_queue *queue, void *to, float value, size_t count)
{
    cuda_move move = {.to = to, .bytes = count * sizeof(value)};
    uint32_t word;

    memcpy(&word, &value, sizeof(word));
    move.word = word;
    return push_move(queue, &move);
}

/* Of entries that are launched together all are queued, or none: the first one says how many there are. */
static esper_status unqueue(cuda_queue *queue, int end, esper_status status)
{
    queue->end = end;
    return status;
}

esper_status cuda_queue_launch(cuda_queue *queue, const esper_launch *launch)
{
    cuda_backend *self = backend_of(queue);
    int end = queue->end;

    for (int i = 0; i < launch->n_lanes; i++) {
        cuda_entry entry = {.kind = CUDA_LANE, .n = i == 0 ? launch->n_lanes : 1, .op = (int)launch->kind};
        esper_status status;

        pthread_mutex_lock(&self->lock);
        status = cuda_lanes_lane(&self->lanes, launch, &launch->lanes[i], &entry.lane);
        pthread_mutex_unlock(&self->lock);
        if (status == ESPER_OK)
            status = push(queue, &entry);
        if (status != ESPER_OK)
            return unqueue(queue, end, status);
    }
    return pushed(queue);
}

/* Programs made for one call have no number to be known by: their launches go one by one. */
esper_status cuda_queue_programs(cuda_queue *queue, const esper_program *programs, int n_programs)
{
    cuda_backend *self = backend_of(queue);
    int n_known = 0, end;

    for (int k = 0; k < n_programs; k++) {
        n_known += programs[k].id != 0 && programs[k].n_launches > 0;
        for (int i = 0; programs[k].id == 0 && i < programs[k].n_launches; i++)
            ESPER_TRY(cuda_queue_launch(queue, &programs[k].launches[i]));
    }
    end = queue->end;
    for (int k = 0; k < n_programs; k++) {
        cuda_entry entry = {.kind = CUDA_PROGRAM, .n = queue->end == end ? n_known : 1};
        esper_status status;

        if (programs[k].id == 0 || programs[k].n_launches == 0) /* one that only hands on its input has no launch */
            continue;
        pthread_mutex_lock(&self->lock);
        status = cuda_lanes_program(&self->lanes, &programs[k], &entry.program);
        pthread_mutex_unlock(&self->lock);
        if (status == ESPER_OK)
            status = push(queue, &entry);
        if (status != ESPER_OK)
            return unqueue(queue, end, status);
    }
    return pushed(queue);
}

esper_status cuda_queue_gather(cuda_queue *queue, const esper_gather *gather, const esper_pick *picks)
{
    size_t bytes = (size_t)gather->n * sizeof(*picks);
    cuda_gather_table *table;
    void *room;

    ESPER_TRY(take_stage(queue, sizeof(*table) + bytes, &room));
    table = room;
    table->gather = *gather;
    memcpy(table->pick, picks, bytes);
    ESPER_TRY(push(queue, &(cuda_entry){.kind = CUDA_GATHER, .n = 1, .batch = table}));
    return pushed(queue);
}

/* ------------------------------------------------------------------------------------------------ scans */

/* Tensors that lie one behind the other, with nothing but the zeros of their alignment between, are one stretch. */
static bool continues(const cuda_stretch *stretch, const esper_guard_tensor *tensor, uint32_t nan)
{
    const float *end = stretch->values + stretch->count, *begin = tensor->data;

    return stretch->nan == nan && begin >= end && begin - end < 16;
}

static esper_status list_stretches(const esper_guard *guard, uint32_t roles, cuda_scan_table *table)
{
    for (size_t i = 0; i < guard->table.n_tensors; i++) {
        const esper_guard_tensor *tensor = &guard->table.tensors[i];
        bool grad = tensor->role == ESPER_GUARD_ROLE_GRAD;
        uint32_t nan = grad ? ESPER_GUARD_BAD_NAN_GRAD : ESPER_GUARD_BAD_NAN_STATE;
        cuda_stretch *last = table->n_stretches > 0 ? &table->stretch[table->n_stretches - 1] : NULL;

        if ((roles >> tensor->role & 1) == 0 || tensor->count == 0)
            continue;
        if (last != NULL && continues(last, tensor, nan)) {
            last->count = (uint64_t)((const float *)tensor->data - last->values) + tensor->count;
            continue;
        }
        table->stretch[table->n_stretches++] = (cuda_stretch){
            .values = tensor->data,
            .count = tensor->count,
            .nan = nan,
            .inf = grad ? ESPER_GUARD_BAD_INF_GRAD : ESPER_GUARD_BAD_INF_STATE,
        };
    }
    for (uint32_t s = 0; s < table->n_stretches; s++) {
        table->stretch[s].first_part = table->n_parts;
        table->n_parts += (uint32_t)esper_cuda_divide((int64_t)table->stretch[s].count, CUDA_SCAN_PART);
    }
    return ESPER_OK;
}

esper_status cuda_queue_scan(cuda_queue *queue, esper_guard *guard, uint32_t roles, uint32_t *flag)
{
    cuda_backend *self = backend_of(queue);
    size_t most = sizeof(cuda_scan_table) + guard->table.n_tensors * sizeof(cuda_stretch), bytes;
    cuda_entry entry = {.kind = CUDA_SCAN, .n = 1};
    cuda_scan_table *table;
    esper_status status;

    if (most > queue->scan_bytes) {
        void *room = esper_mem_grow(queue->scan_room, most);

        if (room == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "scan of %zu tensors", guard->table.n_tensors);
        queue->scan_room = room;
        queue->scan_bytes = most;
    }
    table = queue->scan_room;
    memset(table, 0, most);
    table->flag = flag;
    status = list_stretches(guard, roles != 0 ? roles : (uint32_t)ALL_ROLES, table);
    bytes = sizeof(*table) + table->n_stretches * sizeof(*table->stretch);
    if (status == ESPER_OK) {
        pthread_mutex_lock(&self->lock);
        status = cuda_lanes_scan(&self->lanes, table, bytes, (int)table->n_parts, &entry.scan);
        pthread_mutex_unlock(&self->lock);
    }
    ESPER_TRY(status);
    ESPER_TRY(push(queue, &entry));
    return pushed(queue);
}

/* ------------------------------------------------------------------------------------------------ rounds */

/* Serves all who wait. The lock is held on the way in and out, and not while the device works. */
static void serve(cuda_backend *self)
{
    cuda_queue *queues = self->waiting, *next;
    esper_status status;
    char why[256] = "";

    assert(!self->busy && queues != NULL);
    self->busy = true;
    self->waiting = NULL;
    self->n_waiting = 0;
    pthread_mutex_unlock(&self->lock);
    status = in_context(self, queues, true);
    if (status != ESPER_OK)
        snprintf(why, sizeof(why), "%s", esper_last_error());
    pthread_mutex_lock(&self->lock);
    self->busy = false;
    for (cuda_queue *queue = queues; queue != NULL; queue = next) {
        next = queue->next; /* whoever is served may go on at once */
        queue->next = NULL;
        deliver(queue, status == ESPER_OK);
        queue->status = status;
        memcpy(queue->message, why, sizeof(why));
        queue->served = true;
    }
    cuda_lanes_sweep(&self->lanes, false);
    pthread_cond_broadcast(&self->turn);
}

static esper_status wait_for_round(cuda_backend *self, cuda_queue *queue)
{
    struct timespec until;

    pthread_mutex_lock(&self->lock);
    queue->served = false;
    queue->next = self->waiting;
    self->waiting = queue;
    self->n_waiting++;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!queue->served) {
        bool late = false;

        if (!self->busy && self->n_waiting == self->n_live) {
            serve(self);
            continue;
        }
        late = pthread_cond_timedwait(&self->turn, &self->lock, &until) == ETIMEDOUT;
        if (late && !queue->served && !self->busy)
            serve(self);
        else if (late && !queue->served)
            pthread_cond_wait(&self->turn, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return queue->status == ESPER_OK ? ESPER_OK : ESPER_FAIL(queue->status, "%s", queue->message);
}

esper_status cuda_queue_wait(cuda_queue *queue)
{
    cuda_backend *self = backend_of(queue);
    esper_status status;

    if (!queue->direct)
        return wait_for_round(self, queue);
    status = in_context(self, queue, true);
    deliver(queue, status == ESPER_OK);
    pthread_mutex_lock(&self->lock);
    cuda_lanes_sweep(&self->lanes, self->n_live == 0);
    pthread_mutex_unlock(&self->lock);
    return status;
}
