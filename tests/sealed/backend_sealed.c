/* A backend for tests whose memory cannot be touched from outside: `ref` with real numbers, in the place of every backend
 * that computes, and `null` without any.
 *
 * Its memory is a file without a name, mapped twice: once closed, and once open at a fixed distance from that.
 *
 *     | closed: what alloc gives, any access is a fault |          | open: what launches and copies work on |
 *       ^ address                                                    ^ address + distance
 *
 * So whoever reads or writes a slab, a plan or an optimiser's table without a launch or a copy dies at once, on any thread,
 * and nothing is opened and closed again. A lane may hold no other address than the backend's: that is looked at too.
 *
 * With ESPER_SEALED=behind in the environment it does nothing before it is waited for, as a device might: what is queued is
 * written down, and what is copied out is nonsense until then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/backends.h"

/* Addresses are not given twice: memory that was released is closed for good. */
static const size_t ROOM = (size_t)1 << 36, PAGE = 4096;

typedef struct block {
    struct block *next;
    size_t        offset, bytes;
} block;

/* Something that is not done yet. */
typedef struct order {
    struct order *next;
    enum { LAUNCH, COPY_IN, COPY_OUT, COPY, FILL, SCAN } what;
    esper_launch     launch;
    void            *to;
    const void      *from;
    size_t           bytes;
    float            value;
    esper_guard     *guard;
    esper_guard_scan request;
    char             copied[]; /* in: the host may have changed it since */
} order;

typedef struct sealed_backend {
    esper_backend   base;
    esper_backend  *ref;
    int             file;
    char           *closed, *open; /* ROOM bytes each */
    size_t          used;
    block          *blocks;
    order          *first, **last; /* what is queued, when it is behind */
    pthread_mutex_t lock; /* of used and blocks */
} sealed_backend;

static void drop(sealed_backend *sealed)
{
    if (sealed->closed != NULL && sealed->closed != MAP_FAILED)
        munmap(sealed->closed, ROOM);
    if (sealed->open != NULL && sealed->open != MAP_FAILED)
        munmap(sealed->open, ROOM);
    if (sealed->file >= 0)
        close(sealed->file);
    esper_backend_close(sealed->ref);
    pthread_mutex_destroy(&sealed->lock);
    esper_mem_free(sealed);
}

static esper_status open_as(const esper_backend_ops *ops, esper_pool *pool, esper_backend **be_out)
{
    sealed_backend *sealed = esper_mem_alloc(sizeof(*sealed));
    esper_status status;

    if (sealed == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "sealed backend");
    sealed->base.ops = ops;
    sealed->used = PAGE;
    sealed->last = &sealed->first;
    pthread_mutex_init(&sealed->lock, NULL);
    sealed->file = memfd_create("sealed", MFD_CLOEXEC);
    if (sealed->file < 0 || ftruncate(sealed->file, (off_t)ROOM) != 0 ||
        (sealed->closed = mmap(NULL, ROOM, PROT_NONE, MAP_SHARED | MAP_NORESERVE, sealed->file, 0)) == MAP_FAILED ||
        (sealed->open = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, sealed->file, 0)) ==
            MAP_FAILED) {
        drop(sealed);
        return ESPER_FAIL(ESPER_E_NOMEM, "sealed backend: no room for its two views");
    }
    status = esper_backend_ref.open(pool, &sealed->ref);
    if (status != ESPER_OK) {
        drop(sealed);
        return status;
    }
    *be_out = &sealed->base;
    return ESPER_OK;
}

static void close_sealed(esper_backend *be)
{
    drop((sealed_backend *)be);
}

static esper_status alloc_sealed(esper_backend *be, size_t bytes, void **mem_out)
{
    sealed_backend *sealed = (sealed_backend *)be;
    block *taken;

    if (bytes == 0) {
        *mem_out = NULL;
        return ESPER_OK;
    }
    taken = bytes < ROOM ? esper_mem_alloc(sizeof(*taken)) : NULL;
    if (taken == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%zu bytes of sealed memory", bytes);
    pthread_mutex_lock(&sealed->lock);
    *taken = (block){sealed->blocks, sealed->used, (bytes + PAGE - 1) / PAGE * PAGE};
    sealed->used += taken->bytes + PAGE; /* a page between blocks belongs to nobody */
    sealed->blocks = taken;
    pthread_mutex_unlock(&sealed->lock);
    if (sealed->used > ROOM) {
        fprintf(stderr, "sealed backend: out of addresses\n");
        abort();
    }
    *mem_out = sealed->closed + taken->offset;
    return ESPER_OK;
}

static void release_sealed(esper_backend *be, void *mem)
{
    sealed_backend *sealed = (sealed_backend *)be;
    block **at = &sealed->blocks, *found;

    if (mem == NULL)
        return;
    pthread_mutex_lock(&sealed->lock);
    while (*at != NULL && sealed->closed + (*at)->offset != (char *)mem)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&sealed->lock);
    if (found == NULL) {
        fprintf(stderr, "sealed backend: %p was released, which is no memory of its own\n", mem);
        abort();
    }
    fallocate(sealed->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)found->offset, (off_t)found->bytes);
    esper_mem_free(found);
}

/* ------------------------------------------------------------------------------------------------ from outside to inside */

static bool is_closed(const sealed_backend *sealed, const void *mem)
{
    return (const char *)mem >= sealed->closed && (const char *)mem < sealed->closed + ROOM;
}

static bool is_ours(const sealed_backend *sealed, const void *mem)
{
    return is_closed(sealed, mem) || ((const char *)mem >= sealed->open && (const char *)mem < sealed->open + ROOM);
}

/* The open view of an address that must be the backend's. */
static void *inside(const sealed_backend *sealed, const void *mem, const char *what)
{
    if (mem == NULL)
        return NULL;
    if (!is_closed(sealed, mem)) {
        fprintf(stderr, "sealed backend: %s is %p, which is not the backend's memory\n", what, mem);
        abort();
    }
    return sealed->open + ((const char *)mem - sealed->closed);
}

static void check_outside(const sealed_backend *sealed, const void *mem, const char *what)
{
    if (is_ours(sealed, mem)) {
        fprintf(stderr, "sealed backend: %s is %p, which is the backend's memory and not the host's\n", what, mem);
        abort();
    }
}

static void open_view(const sealed_backend *sealed, esper_view *view)
{
    view->data = inside(sealed, view->data, "the data of a lane");
    view->grad = inside(sealed, view->grad, "the gradient of a lane");
}

static esper_status run_launch(const sealed_backend *sealed, const esper_launch *launch)
{
    for (int l = 0; l < launch->n_lanes; l++) {
        esper_lane lane = launch->lanes[l];
        esper_launch one = *launch;
        esper_pass pass;

        for (int i = 0; i < ESPER_OP_MAX_IN; i++)
            open_view(sealed, &lane.in[i]);
        for (int i = 0; i < ESPER_OP_MAX_OUT; i++)
            open_view(sealed, &lane.out[i]);
        lane.scratch = inside(sealed, lane.scratch, "the scratch memory of a lane");
        lane.group = inside(sealed, lane.group, "the group of a lane");
        if (lane.pass != NULL) {
            pass = *(const esper_pass *)inside(sealed, lane.pass, "the pass of a lane");
            pass.sample_id = inside(sealed, pass.sample_id, "the list of sample ids");
            lane.pass = &pass;
        }
        one.n_lanes = 1;
        one.lanes = &lane;
        ESPER_TRY(esper_backend_ref.enqueue(sealed->ref, NULL, &one));
    }
    return ESPER_OK;
}

static bool computes(const esper_backend *be)
{
    return strcmp(be->ops->name, "null") != 0;
}

static esper_status carry_out(sealed_backend *sealed, const order *it)
{
    switch (it->what) {
    case LAUNCH:
        return computes(&sealed->base) ? run_launch(sealed, &it->launch) : ESPER_OK;
    case COPY_IN:
        memcpy(inside(sealed, it->to, "the target of a copy in"), it->from, it->bytes);
        return ESPER_OK;
    case COPY_OUT:
        memcpy(it->to, inside(sealed, it->from, "the source of a copy out"), it->bytes);
        return ESPER_OK;
    case COPY:
        memcpy(inside(sealed, it->to, "the target of a copy"), inside(sealed, it->from, "the source of a copy"),
               it->bytes);
        return ESPER_OK;
    case FILL:
        return esper_ram_fill(&sealed->base, NULL, inside(sealed, it->to, "the target of a fill"), it->value,
                              it->bytes / sizeof(float));
    case SCAN:
        return esper_ram_scan(&sealed->base, NULL, it->guard, &it->request, it->to);
    }
    return ESPER_FAIL(ESPER_E_ARG, "sealed backend: order %d", (int)it->what);
}

/* Now, or written down. */
static esper_status do_or_queue(esper_backend *be, order it)
{
    sealed_backend *sealed = (sealed_backend *)be;
    size_t copied = it.what == COPY_IN ? it.bytes : 0;
    order *queued;

    if (!be->ops->behind)
        return carry_out(sealed, &it);
    queued = malloc(sizeof(*queued) + copied);
    if (queued == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "sealed backend: an order");
    *queued = it;
    if (it.what == COPY_IN)
        queued->from = memcpy(queued->copied, it.from, copied);
    if (it.what == COPY_OUT)
        memset(it.to, 0xa5, it.bytes);
    *sealed->last = queued;
    sealed->last = &queued->next;
    return ESPER_OK;
}

static esper_status sync_sealed(esper_backend *be, esper_backend_stream *stream)
{
    sealed_backend *sealed = (sealed_backend *)be;
    esper_status status = ESPER_OK;

    (void)stream;
    while (sealed->first != NULL) {
        order *it = sealed->first;

        if (status == ESPER_OK)
            status = carry_out(sealed, it);
        sealed->first = it->next;
        free(it);
    }
    sealed->last = &sealed->first;
    return status;
}

static esper_status enqueue_sealed(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    (void)stream;
    return do_or_queue(be, (order){.what = LAUNCH, .launch = *launch});
}

static esper_status copy_in_sealed(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                   size_t bytes)
{
    (void)stream;
    check_outside((sealed_backend *)be, from, "the source of a copy in");
    return do_or_queue(be, (order){.what = COPY_IN, .to = to, .from = from, .bytes = bytes});
}

static esper_status copy_out_sealed(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                    size_t bytes)
{
    (void)stream;
    check_outside((sealed_backend *)be, to, "the target of a copy out");
    return do_or_queue(be, (order){.what = COPY_OUT, .to = to, .from = from, .bytes = bytes});
}

static esper_status copy_sealed(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                size_t bytes)
{
    (void)stream;
    return do_or_queue(be, (order){.what = COPY, .to = to, .from = from, .bytes = bytes});
}

static esper_status fill_sealed(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    (void)stream;
    return do_or_queue(be, (order){.what = FILL, .to = to, .value = value, .bytes = count * sizeof(float)});
}

static esper_status scan_sealed(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                                const esper_guard_scan *request, uint32_t *flag)
{
    (void)stream;
    return do_or_queue(be, (order){.what = SCAN, .guard = guard, .request = *request, .to = flag});
}

static void *address_sealed(const esper_backend *be, void *mem)
{
    return inside((const sealed_backend *)be, mem, "what is asked for by the guard");
}

/* ------------------------------------------------------------------------------------------------ as others see it */

static bool supports_sealed(const esper_backend *be, esper_op_kind kind)
{
    return esper_backend_supports(((const sealed_backend *)be)->ref, kind);
}

static size_t scratch_sealed(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    return esper_backend_ref.scratch(((const sealed_backend *)be)->ref, launch, max_samples);
}

static size_t sums_sealed(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    return esper_backend_ref.sums(((const sealed_backend *)be)->ref, launch, offset_out);
}

static const char *identity_sealed(const esper_backend *be)
{
    return strcmp(be->ops->name, "cpu") == 0   ? "cpu/sealed"
           : strcmp(be->ops->name, "ref") == 0 ? "ref/sealed"
                                               : "null/sealed";
}

#define SEALED(text, opener, is_behind)                                                                                \
    {                                                                                                                  \
        .abi = ESPER_BACKEND_ABI, .name = #text, .about = "in memory that cannot be touched", .open = (opener),        \
        .close = close_sealed, .alloc = alloc_sealed, .release = release_sealed, .supports = supports_sealed,          \
        .scratch = scratch_sealed, .sums = sums_sealed, .enqueue = enqueue_sealed, .sync = sync_sealed,                \
        .identity = identity_sealed, .copy_in = copy_in_sealed, .copy_out = copy_out_sealed, .copy = copy_sealed,      \
        .fill = fill_sealed, .address = address_sealed, .scan = scan_sealed, .behind = (is_behind),                    \
    }

/* Whichever backend is asked for, it is this one. */
#define OPENER(ops)                                                                 \
    static const esper_backend_ops ops;                                             \
    static esper_status open_##ops(esper_pool *pool, esper_backend **be_out)        \
    {                                                                               \
        return open_as(&(ops), pool, be_out);                                       \
    }
OPENER(sealed_cpu)
OPENER(sealed_ref)
OPENER(sealed_null)
OPENER(behind_cpu)
OPENER(behind_ref)
OPENER(behind_null)

static const esper_backend_ops sealed_cpu = SEALED(cpu, open_sealed_cpu, false);
static const esper_backend_ops sealed_ref = SEALED(ref, open_sealed_ref, false);
static const esper_backend_ops sealed_null = SEALED(null, open_sealed_null, false);
static const esper_backend_ops behind_cpu = SEALED(cpu, open_behind_cpu, true);
static const esper_backend_ops behind_ref = SEALED(ref, open_behind_ref, true);
static const esper_backend_ops behind_null = SEALED(null, open_behind_null, true);

const esper_backend_ops *const *esper_backend_list(void)
{
    static const esper_backend_ops *const at_once[] = {&sealed_cpu, &sealed_ref, &sealed_null, NULL};
    static const esper_backend_ops *const behind[] = {&behind_cpu, &behind_ref, &behind_null, NULL};
    const char *how = getenv("ESPER_SEALED");

    return how != NULL && strcmp(how, "behind") == 0 ? behind : at_once;
}
