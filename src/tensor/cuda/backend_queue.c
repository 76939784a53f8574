/* Queues and rounds. */
#include "tensor/cuda/backend_queue.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
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
    MOST_STAGED = 16 << 20,            /* bytes that the main queue stages on a page */
    PATIENCE_NS = 30 * 1000 * 1000,    /* how long a thread that waits does so for others to join a round */
    ALL_ROLES = (1 << ESPER_GUARD_N_ROLES) - 1,
};

static cuda_backend *backend_of(const cuda_queue *queue)
{
    return (cuda_backend *)queue->base.backend;
}

/* ------------------------------------------------------------------------------------------------ memory of a queue */

static cuda_page *page_of(cuda_queue *queue, uint64_t page)
{
    return &queue->pages[page % CUDA_PAGES];
}

static cuda_page *page_in_use(cuda_queue *queue)
{
    return page_of(queue, queue->n_written);
}

void cuda_queue_init(cuda_queue *queue, cuda_backend *self, bool direct)
{
    *queue = (cuda_queue){.base = {.backend = &self->base}, .direct = direct};
}

void cuda_queue_fini(cuda_queue *queue)
{
    for (int i = 0; i < CUDA_PAGES; i++) {
        cuda_page *page = &queue->pages[i];

        while (page->stages != NULL) {
            cuda_stage *stage = page->stages;

            page->stages = stage->next;
            esper_device_release(backend_of(queue)->device, stage->memory);
            if (stage->twin != NULL)
                esper_device_release(backend_of(queue)->device, stage->twin);
            esper_mem_free(stage);
        }
        esper_mem_free(page->entries);
        esper_mem_free(page->deliveries);
    }
    esper_mem_free(queue->scan_room);
}

bool cuda_queue_is_idle(const cuda_queue *queue)
{
    return queue->n_written == queue->n_done && !queue->pages[queue->n_written % CUDA_PAGES].used;
}

/* Room in memory that the device reaches, until the page is done. */
static esper_status take_stage(cuda_queue *queue, size_t bytes, void **room_out)
{
    cuda_backend *self = backend_of(queue);
    cuda_page *page = page_in_use(queue);
    size_t wanted = (bytes + 63) / 64 * 64;
    void *memory;

    while (page->stage != NULL && page->stage->used + wanted > page->stage->bytes && page->stage->next != NULL)
        page->stage = page->stage->next;
    if (page->stage == NULL || page->stage->used + wanted > page->stage->bytes) {
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
        if (page->stage == NULL) {
            page->stages = stage;
        } else {
            stage->next = page->stage->next;
            page->stage->next = stage;
        }
        page->stage = stage;
    }
    *room_out = page->stage->memory + page->stage->used;
    page->stage->used += wanted;
    return ESPER_OK;
}

static size_t staged(const cuda_page *page)
{
    size_t bytes = 0;

    for (const cuda_stage *stage = page->stages; stage != NULL; stage = stage->next)
        bytes += stage->used;
    return bytes;
}

/* The page is done: what was copied out goes where it is wanted, and the page can be written on again. */
static void deliver(cuda_page *page)
{
    for (int i = 0; i < page->n_deliveries && page->status == ESPER_OK; i++)
        memcpy(page->deliveries[i].to, page->deliveries[i].from, page->deliveries[i].bytes);
    page->n_deliveries = 0;
    page->begin = page->end = 0;
    for (cuda_stage *stage = page->stages; stage != NULL; stage = stage->next)
        stage->used = 0;
    page->stage = page->stages;
    page->used = false;
    page->round = 0;
    page->status = ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ handing on */

/* Moves that are handed on together, one queue's behind another's. */
typedef struct bundle {
    cuda_moves moves;
    int        n, own; /* own: the first of the queue that is being looked at */
    uint64_t   largest;
} bundle;

static esper_status hand_on_moves(cuda_backend *self, bundle *all)
{
    cuda_call call = {.kernel = self->lanes.move,
                      .threads = CUDA_MOVE_THREADS,
                      .blocks = esper_cuda_divide((int64_t)all->largest, CUDA_MOVE_PART),
                      .n_lanes = all->n};

    all->n = all->own = 0;
    all->largest = 0;
    return cuda_lanes_call(&self->lanes, &call, &all->moves);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

/* Whether a move can be done beside those of its own queue that come before it. */
static bool goes_beside(const bundle *all, const cuda_move *move)
{
    for (int i = all->own; i < all->n; i++) {
        const cuda_move *other = &all->moves.move[i];

        if (overlap(other->to, other->bytes, move->to, move->bytes) ||
            (move->from != NULL && overlap(other->to, other->bytes, move->from, move->bytes)) ||
            (other->from != NULL && overlap(move->to, move->bytes, other->from, other->bytes)))
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

    for (cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
        all.own = all.n;
        while (queue->out->begin < queue->out->end && queue->out->entries[queue->out->begin].kind == CUDA_MOVE) {
            const cuda_move *move = &queue->out->entries[queue->out->begin].move;

            if (!goes_beside(&all, move))
                break;
            queue->out->begin++;
            if (move->from != NULL && move->bytes >= LARGE_MOVE) {
                ESPER_TRY(hand_on_moves(self, &all));
                ESPER_TRY(move_large(self, move));
                continue;
            }
            all.moves.move[all.n++] = *move;
            all.largest = move->bytes > all.largest ? move->bytes : all.largest;
            if (all.n == CUDA_MOVES)
                ESPER_TRY(hand_on_moves(self, &all));
        }
    }
    return all.n > 0 ? hand_on_moves(self, &all) : ESPER_OK;
}

/* What is handed on next, and of lanes by themselves one operation at a time. */
static cuda_entry_kind next_kind(const cuda_queue *queues, int *op_out)
{
    cuda_entry_kind kind = CUDA_NOTHING;
    int op = ESPER_N_KINDS;

    for (const cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
        const cuda_entry *entry = &queue->out->entries[queue->out->begin];

        if (queue->out->begin == queue->out->end)
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
    esper_status status = cuda_lanes_await_uploads(&self->lanes);
    double began = esper_clock_seconds(), now;
    int op;

    for (cuda_entry_kind kind; status == ESPER_OK && (kind = next_kind(queues, &op)) != CUDA_NOTHING;) {
        int n = 0;

        now = esper_clock_seconds();
        self->lanes.tally->seconds += now - began;
        self->lanes.tally = &self->lanes.tallies[kind];
        began = now;
        if (kind == CUDA_MOVE) {
            status = hand_on_heads(self, queues);
            continue;
        }
        for (cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
            cuda_page *page = queue->out;
            const cuda_entry *entry = &page->entries[page->begin];

            if (page->begin == page->end || entry->kind != kind || (kind == CUDA_LANE && entry->op != op))
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
            page->begin = (int)(entry - page->entries);
        }
        status = kind == CUDA_GATHER ? cuda_lanes_run_gathers(&self->lanes, self->together, n)
                 : kind == CUDA_SCAN ? cuda_lanes_run_scans(&self->lanes, (const cuda_scan *const *)self->together, n)
                 : kind == CUDA_LANE ? cuda_lanes_run(&self->lanes, (const cuda_lane *const *)self->together, n)
                                     : cuda_lanes_run_programs(&self->lanes, (const cuda_program **)self->together, n);
    }
    self->lanes.tally->seconds += esper_clock_seconds() - began;
    return status;
}

static esper_status check_there(const cuda_backend *self)
{
    return self->lost ? ESPER_FAIL(ESPER_E_DEVICE, "%s", self->why_lost) : ESPER_OK;
}

/* Once the device is lost, everybody hears what the first sign of it was. */
static void note_lost(cuda_backend *self, esper_status status)
{
    if (status != ESPER_E_DEVICE || self->lost)
        return;
    self->lost = true;
    snprintf(self->why_lost, sizeof(self->why_lost), "%s", esper_last_error());
}

/* Outside of rounds. */
static esper_status hand_on_now(cuda_backend *self, cuda_queue *queue)
{
    esper_status status;

    ESPER_TRY(check_there(self));
    ESPER_TRY(esper_cuda_enter(self->device));
    status = hand_on(self, queue);
    esper_cuda_leave();
    note_lost(self, status);
    return status;
}

/* ------------------------------------------------------------------------------------------------ queueing */

static esper_status push(cuda_queue *queue, const cuda_entry *entry)
{
    cuda_page *page = page_in_use(queue);

    if (page->end == page->room) {
        int room = page->room == 0 ? 256 : 2 * page->room;
        cuda_entry *entries = esper_mem_grow(page->entries, (size_t)room * sizeof(*entries));

        if (entries == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "queue of %d entries", room);
        page->entries = entries;
        page->room = room;
    }
    page->entries[page->end++] = *entry;
    page->used = true;
    return ESPER_OK;
}

/* The main queue hands on at once. */
static esper_status pushed(cuda_queue *queue)
{
    esper_status status;

    if (!queue->direct)
        return ESPER_OK;
    assert(queue->next == NULL);
    queue->out = page_in_use(queue);
    status = hand_on_now(backend_of(queue), queue);
    queue->out->begin = queue->out->end = 0;
    return status;
}

/* Before something is staged. */
static esper_status turn_full_page(cuda_queue *queue)
{
    return queue->direct && staged(page_in_use(queue)) > MOST_STAGED ? cuda_queue_submit(queue, NULL) : ESPER_OK;
}

static esper_status push_move(cuda_queue *queue, const cuda_move *move)
{
    ESPER_TRY(push(queue, &(cuda_entry){.kind = CUDA_MOVE, .n = 1, .move = *move}));
    return pushed(queue);
}

esper_status cuda_queue_copy_in(cuda_queue *queue, void *to, const void *from, size_t bytes)
{
    void *room;

    ESPER_TRY(turn_full_page(queue));
    ESPER_TRY(take_stage(queue, bytes, &room));
    memcpy(room, from, bytes);
    return push_move(queue, &(cuda_move){.to = to, .from = room, .bytes = bytes});
}

esper_status cuda_queue_copy_out(cuda_queue *queue, void *to, const void *from, size_t bytes)
{
    esper_status status;
    cuda_page *page;
    void *room;

    ESPER_TRY(turn_full_page(queue));
    page = page_in_use(queue);
    if (page->n_deliveries == page->room_deliveries) {
        int more = page->room_deliveries == 0 ? 16 : 2 * page->room_deliveries;
        cuda_delivery *deliveries = esper_mem_grow(page->deliveries, (size_t)more * sizeof(*deliveries));

        if (deliveries == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%d copies", more);
        page->deliveries = deliveries;
        page->room_deliveries = more;
    }
    ESPER_TRY(take_stage(queue, bytes, &room));
    page->deliveries[page->n_deliveries++] = (cuda_delivery){.to = to, .from = room, .bytes = bytes};
    status = push_move(queue, &(cuda_move){.to = room, .from = from, .bytes = bytes});
    if (status != ESPER_OK) /* the caller's memory may be gone before the next wait */
        page->n_deliveries--;
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
    page_in_use(queue)->end = end;
    return status;
}

esper_status cuda_queue_launch(cuda_queue *queue, const esper_launch *launch)
{
    cuda_backend *self = backend_of(queue);
    int end = page_in_use(queue)->end;

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
    end = page_in_use(queue)->end;
    for (int k = 0; k < n_programs; k++) {
        cuda_entry entry = {.kind = CUDA_PROGRAM, .n = page_in_use(queue)->end == end ? n_known : 1};
        esper_status status;

        if (programs[k].id == 0 || programs[k].n_launches == 0) /* one that only hands on its input has no launch */
            continue;
        pthread_mutex_lock(&self->lock);
        status = cuda_lanes_program(&self->lanes, &programs[k], &entry.program);
        if (status == ESPER_OK && entry.program->begins > self->lanes.first_place)
            entry.kind = CUDA_PART;
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
    size_t bytes = (size_t)gather->n * sizeof(*picks),
           whole = (offsetof(cuda_gather_table, pick) + bytes + 15) / 16 * 16;
    cuda_gather_table *table;
    cuda_stage *stage;
    char *twin;
    void *room, *at;
    esper_status status;
    int end;

    ESPER_TRY(turn_full_page(queue));
    ESPER_TRY(take_stage(queue, whole, &room));
    stage = page_in_use(queue)->stage;
    if (stage->twin == NULL) {
        ESPER_TRY(esper_device_alloc(backend_of(queue)->device, stage->bytes, ESPER_DEVICE_MEMORY_NORMAL, &at));
        stage->twin = at;
    }
    table = room;
    twin = stage->twin + ((char *)room - stage->memory);
    end = page_in_use(queue)->end;
    table->at = twin;
    table->gather = *gather;
    memcpy(table->pick, picks, bytes);
    status = push(queue, &(cuda_entry){.kind = CUDA_MOVE, .n = 1, .move = {.to = twin, .from = table, .bytes = whole}});
    if (status == ESPER_OK)
        status = push(queue, &(cuda_entry){.kind = CUDA_GATHER, .n = 1, .batch = table});
    return status == ESPER_OK ? pushed(queue) : unqueue(queue, end, status);
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

static cuda_round *round_of(cuda_backend *self, uint64_t number)
{
    return &self->rounds[number % CUDA_ROUNDS];
}

static esper_status record(cuda_backend *self, CUevent *event)
{
    if (*event == NULL)
        ESPER_TRY(ESPER_CUDA(cuEventCreate, event, 0));
    return ESPER_CUDA(cuEventRecord, *event, self->handle);
}

/* Hands on the pages that the queues have out, between the events of a round. Also says whether there is an event behind what has
 * reached the device; the first failure is what it all came to. In the device's context. */
static esper_status hand_on_round(cuda_backend *self, cuda_queue *queues, uint64_t number, bool in_use,
                                  bool *recorded_out)
{
    cuda_round *round = round_of(self, number);
    esper_status status, recorded;

    if (in_use) /* by a round long ago, which nobody has asked for */
        ESPER_TRY(ESPER_CUDA(cuEventSynchronize, round->over));
    ESPER_TRY(record(self, &round->begun));
    status = hand_on(self, queues);
    recorded = record(self, &round->over);
    *recorded_out = recorded == ESPER_OK;
    return status != ESPER_OK ? status : recorded;
}

/* Hands on a page of every queue that has one. The lock is held on the way in and out, and not in between: threads go on writing. */
static void serve(cuda_backend *self)
{
    cuda_queue *queues = NULL, **last = &queues;
    uint64_t number = ++self->n_begun;
    double began = esper_clock_seconds();
    char why[sizeof(queues->message)] = "";
    bool recorded = false, in_use = number > self->n_over + CUDA_ROUNDS;
    esper_status status;

    assert(!self->busy);
    for (int i = 0; i < self->n_queues; i++) {
        cuda_queue *queue = self->queues[i];

        if (queue->n_handed == queue->n_written)
            continue;
        queue->out = page_of(queue, queue->n_handed);
        *last = queue;
        last = &queue->next;
        self->figures.n_pages++;
    }
    *last = NULL;
    self->busy = true;
    status = check_there(self);
    pthread_mutex_unlock(&self->lock);
    if (status == ESPER_OK)
        status = esper_cuda_enter(self->device);
    if (status == ESPER_OK) {
        status = hand_on_round(self, queues, number, in_use, &recorded);
        esper_cuda_leave();
    }
    if (status != ESPER_OK)
        snprintf(why, sizeof(why), "%s", esper_last_error());
    pthread_mutex_lock(&self->lock);
    self->busy = false;
    note_lost(self, status);
    round_of(self, number)->timed = recorded;
    self->figures.n_rounds++;
    self->figures.handing += esper_clock_seconds() - began;
    for (cuda_queue *queue = queues; queue != NULL; queue = queue->next) {
        queue->out->round = recorded ? number : 0;
        queue->out->status = status;
        if (status != ESPER_OK)
            memcpy(queue->message, why, sizeof(why));
        if (++queue->n_handed == queue->n_written)
            self->n_ready--;
    }
    pthread_cond_broadcast(&self->turn);
}

/* Whether a round can be handed on. Nobody is waited for who himself waits for the device, as one does whose network is about to change, as
 * long as they are few: of networks that all wait for the same round the first to come back is not to go on alone. */
static bool is_round_ready(const cuda_backend *self)
{
    int n_few = self->n_live / 8, n_away = self->n_stopped < n_few ? self->n_stopped : n_few;

    return !self->busy && self->n_ready > 0 && self->n_ready >= self->n_live - n_away;
}

/* How long the device was at rounds, and at nothing between them. */
static void take_times(cuda_backend *self, uint64_t last)
{
    for (uint64_t number = self->n_over + 1; number <= last; number++) {
        const cuda_round *round = round_of(self, number), *before = round_of(self, number - 1);
        float busy, idle;

        if (esper_cuda_driver_now.cuEventElapsedTime == NULL || !round->timed || !before->timed ||
            ESPER_CUDA_RAW(cuEventElapsedTime, &busy, round->begun, round->over) != CUDA_SUCCESS ||
            ESPER_CUDA_RAW(cuEventElapsedTime, &idle, before->over, round->begun) != CUDA_SUCCESS)
            continue;
        self->figures.busy += 1e-3 * (double)busy;
        self->figures.idle += 1e-3 * (double)idle;
    }
}

/* A failure that the device tells of is one of all that has not been found done before. */
static void fail_rounds(cuda_backend *self, uint64_t number, esper_status status)
{
    for (int i = -1; i < self->n_queues; i++) {
        cuda_queue *queue = i < 0 ? &self->main : self->queues[i];

        for (uint64_t n = queue->n_done; n < queue->n_handed; n++)
            if (page_of(queue, n)->round > self->n_over && page_of(queue, n)->round <= number &&
                page_of(queue, n)->status == ESPER_OK) {
                page_of(queue, n)->status = status;
                snprintf(queue->message, sizeof(queue->message), "%s", esper_last_error());
            }
    }
}

/* Waits for the device until a round is over, in all others' stead. The lock is held on the way in and out. */
static void watch(cuda_backend *self, uint64_t number)
{
    double began = esper_clock_seconds();
    esper_status status;

    assert(!self->watched);
    self->watched = true;
    pthread_mutex_unlock(&self->lock);
    status = esper_cuda_enter(self->device);
    if (status == ESPER_OK) {
        status = ESPER_CUDA(cuEventSynchronize, round_of(self, number)->over);
        if (status == ESPER_OK)
            take_times(self, number);
        esper_cuda_leave();
    }
    pthread_mutex_lock(&self->lock);
    self->watched = false;
    note_lost(self, status);
    if (status != ESPER_OK)
        fail_rounds(self, number, status);
    for (uint64_t n = self->n_over + 1; n <= number; n++) {
        self->n_stopped -= round_of(self, n)->n_stopped;
        round_of(self, n)->n_stopped = 0;
    }
    self->n_over = number;
    self->figures.waiting += esper_clock_seconds() - began;
    pthread_cond_broadcast(&self->turn);
}

/* Until the pages before `page` have been handed on: at once when all are ready, and when others let us wait too long, without them. */
static void wait_until_handed(cuda_backend *self, cuda_queue *queue, uint64_t page)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (queue->n_handed < page) {
        bool late = false;

        if (is_round_ready(self)) {
            serve(self);
            continue;
        }
        late = pthread_cond_timedwait(&self->turn, &self->lock, &until) == ETIMEDOUT;
        if (late && queue->n_handed < page && !self->busy)
            serve(self);
        else if (late && queue->n_handed < page)
            pthread_cond_wait(&self->turn, &self->lock);
    }
}

/* About to wait for all that was written: others need not wait for more of it. Whoever waits for a round of theirs may hand on theirs. */
static void stop_for(cuda_backend *self, const cuda_queue *queue, uint64_t page)
{
    uint64_t number = queue->pages[(page - 1) % CUDA_PAGES].round;

    if (queue->direct || page != queue->n_written || number <= self->n_over)
        return;
    round_of(self, number)->n_stopped++;
    self->n_stopped++;
    if (is_round_ready(self))
        serve(self);
}

/* Until the pages before `page` are done and delivered. The lock is held on the way in and out. */
static void wait_until_done(cuda_backend *self, cuda_queue *queue, uint64_t page)
{
    uint64_t done = queue->n_done, last = 0;

    if (page <= done)
        return;
    wait_until_handed(self, queue, page);
    stop_for(self, queue, page);
    for (uint64_t n = done; n < page; n++) /* rounds end in their order */
        last = page_of(queue, n)->round > last ? page_of(queue, n)->round : last;
    while (self->n_over < last)
        if (self->watched)
            pthread_cond_wait(&self->turn, &self->lock);
        else
            watch(self, last);
    queue->n_done = page;
    pthread_mutex_unlock(&self->lock);
    for (uint64_t n = done; n < page; n++) {
        if (queue->status == ESPER_OK)
            queue->status = page_of(queue, n)->status;
        deliver(page_of(queue, n));
    }
    pthread_mutex_lock(&self->lock);
    cuda_lanes_sweep(&self->lanes, false);
}

/* What the main queue has handed on since the last time is a round of its own. */
static void close_main_page(cuda_backend *self, cuda_queue *queue)
{
    uint64_t number = ++self->n_begun;
    cuda_page *page = page_in_use(queue);
    cuda_round *round = round_of(self, number);

    page->status = check_there(self);
    if (page->status == ESPER_OK)
        page->status = esper_cuda_enter(self->device);
    if (page->status == ESPER_OK) {
        page->status = record(self, &round->over);
        note_lost(self, page->status);
        esper_cuda_leave();
    }
    page->round = page->status == ESPER_OK ? number : 0;
    round->timed = false;
    if (page->status != ESPER_OK)
        snprintf(queue->message, sizeof(queue->message), "%s", esper_last_error());
    queue->n_handed++;
}

static void submit(cuda_backend *self, cuda_queue *queue)
{
    if (!page_in_use(queue)->used)
        return;
    if (queue->direct)
        close_main_page(self, queue);
    else
        self->figures.writing += esper_clock_seconds() - queue->written_from;
    if (!queue->direct && queue->n_handed == queue->n_written)
        self->n_ready++;
    queue->n_written++;
    if (!queue->direct && is_round_ready(self))
        serve(self);
    if (queue->n_written - queue->n_done == CUDA_PAGES) /* the next one is still in use */
        wait_until_done(self, queue, queue->n_written - CUDA_PAGES + 1);
}

/* A failure is told once. */
static esper_status outcome(cuda_queue *queue)
{
    esper_status status = queue->status;

    queue->written_from = esper_clock_seconds();
    queue->status = ESPER_OK;
    return status == ESPER_OK ? ESPER_OK : ESPER_FAIL(status, "%s", queue->message);
}

esper_status cuda_queue_submit(cuda_queue *queue, uint64_t *ticket_out)
{
    cuda_backend *self = backend_of(queue);

    pthread_mutex_lock(&self->lock);
    submit(self, queue);
    pthread_mutex_unlock(&self->lock);
    ESPER_TRY(outcome(queue));
    if (ticket_out != NULL)
        *ticket_out = queue->n_written;
    return ESPER_OK;
}

esper_status cuda_queue_wait_for(cuda_queue *queue, uint64_t ticket)
{
    cuda_backend *self = backend_of(queue);

    assert(ticket <= queue->n_written);
    pthread_mutex_lock(&self->lock);
    wait_until_done(self, queue, ticket);
    pthread_mutex_unlock(&self->lock);
    return outcome(queue);
}

esper_status cuda_queue_wait(cuda_queue *queue)
{
    cuda_backend *self = backend_of(queue);

    pthread_mutex_lock(&self->lock);
    submit(self, queue);
    wait_until_done(self, queue, queue->n_written);
    if (queue->direct)
        cuda_lanes_sweep(&self->lanes, self->n_live == 0);
    pthread_mutex_unlock(&self->lock);
    return outcome(queue);
}
