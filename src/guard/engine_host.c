/* The guard's engine for tensors in host memory, on the thread pool; a scan is done when the call returns.
 *
 * A tensor is cut into pieces of a whole number of blocks, at most MAX_PIECES of them, by a rule that knows its count
 * alone. Each piece has its own partial record, and a tensor's are added in order: so its statistics depend neither on
 * threads nor on what else is registered. Pieces that follow each other are handed out together until they are worth a
 * thread's attention, so that ten thousand tiny tensors are some dozens of items:
 *
 *     tensors   | big                         | s | s | s | s | big ...
 *     pieces    | 0     | 1     | 2     | 3   | 4 | 5 | 6 | 7 | 8 ...
 *     items     | 0     | 1     | 2     | 3   | 4             | 5 ...
 *     runs      | 0                           | 1     | 2     | 3 ...
 *
 * What is little in all is done in the calling thread, which then wakes nobody.
 *
 * A tensor of one piece is finished by the item that scans it. Such tensors of one item and one group that follow each
 * other are a run, whose sums the item finishes as well; a tensor of several pieces is a run of its own, finished when
 * all items are done. Then runs are added up to groups, and groups to roles: few of each. */
#include "guard/engine_host.h"

#include <assert.h>
#include <errno.h>
#include <fenv.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "base/status.h"
#include "guard/report.h"
#include "guard/scan_kernels.h"

enum {
    PIECE = 32 * ESPER_SCAN_BLOCK, /* elements: 256 KiB of float32 */
    MAX_PIECES = 64,               /* of a tensor; beyond, pieces grow, so that tables stay below 1 MB */
    PIECE_COST = 512,              /* bytes that could be read in the time it takes to begin a piece */
    N_ITEMS = 64,                  /* as many as are wished for when there is little to do */
    MIN_ITEM = 16 << 10,           /* bytes, with PIECE_COST for each piece */
    MAX_ITEM = 256 << 10,
    ALONE = 128 << 10, /* so much, counted alike, is read before threads that slept have woken up */
    PAGE = 4096, /* of memory; it may be larger, never smaller */
};

typedef struct host_tensor {
    esper_scan_tensor tensor;
    uint64_t          piece; /* elements of each but the last */
    size_t            first_piece, n_pieces;
    size_t            first_partial; /* where the records of its pieces lie, when there are several */
    uint32_t          run;
} host_tensor;

typedef struct host_run {
    uint32_t        first, n; /* tensors */
    esper_scan_sums sums;
} host_run;

typedef struct host_piece {
    uint32_t tensor, index; /* the index-th piece of that tensor */
} host_piece;

/* What bind makes, all of it together. */
typedef struct host_tables {
    host_tensor       *tensors;
    size_t             n_tensors;
    host_piece        *pieces;
    size_t             n_pieces;
    esper_scan_record *partials; /* (n_partials) */
    size_t             n_partials;
    uint64_t           cost; /* of all pieces */
    size_t            *items; /* (n_items + 1) the piece each begins with */
    int                n_items;
    host_run          *runs;
    size_t             n_runs;
    esper_guard_stat  *stats;  /* (n_tensors) */
    esper_scan_sums   *groups; /* (n_groups) */
    size_t             n_groups;
    esper_scan_sums    roles[ESPER_GUARD_N_ROLES];
} host_tables;

typedef struct host_engine {
    esper_scan_engine              base;
    esper_pool               *pool;
    const esper_scan_kernels *kernels;
    esper_report_limits       limits;
    host_tables               tables;
    uint32_t                  shown; /* roles whose statistics are not zero */
    double                    clip_factor;
    uint32_t                  tag;
    uintptr_t                 readable_page; /* the last one found so, until tensors are bound; 0 = none */
    bool                      grads_writable; /* found so, until tensors are bound */
} host_engine;

/* What the items of one job share. */
typedef struct host_job {
    const host_engine  *engine;
    void (*run)(const struct host_job *job, const host_tensor *tensor, size_t piece);
    esper_scan_settings settings;
    uint32_t            roles;
    double              factor;
} host_job;

static host_engine *host_of(esper_scan_engine *engine)
{
    return (host_engine *)engine;
}

static bool is_wanted(const esper_scan_tensor *tensor, uint32_t roles)
{
    assert(tensor->role < ESPER_GUARD_N_ROLES);
    return (roles >> tensor->role & 1) != 0;
}

/* ----------------------------------------------------------------------------------------------------------- tables */

static void free_tables(host_tables *tables)
{
    esper_mem_free(tables->tensors);
    esper_mem_free(tables->pieces);
    esper_mem_free(tables->partials);
    esper_mem_free(tables->items);
    esper_mem_free(tables->runs);
    esper_mem_free(tables->stats);
    esper_mem_free(tables->groups);
    *tables = (host_tables){0};
}

/* An empty tensor has one piece of nothing, so that every tensor has a record. */
static size_t cut_tensor(host_tensor *tensor)
{
    uint64_t count = tensor->tensor.count, n_pieces;

    tensor->piece = PIECE;
    while (count / tensor->piece >= MAX_PIECES)
        tensor->piece *= 2;
    n_pieces = (count + tensor->piece - 1) / tensor->piece;
    tensor->n_pieces = n_pieces > 0 ? (size_t)n_pieces : 1;
    return tensor->n_pieces;
}

static uint64_t piece_count(const host_tensor *tensor, uint32_t index)
{
    uint64_t first = index * tensor->piece, left = tensor->tensor.count - first;

    assert(index < tensor->n_pieces && first <= tensor->tensor.count);
    return left < tensor->piece ? left : tensor->piece;
}

static uint64_t piece_cost(const host_tables *tables, const host_piece *piece)
{
    const host_tensor *tensor = &tables->tensors[piece->tensor];

    return piece_count(tensor, piece->index) * esper_guard_dtype_bytes(tensor->tensor.dtype) + PIECE_COST;
}

/* Writes where items begin, when `items` is not NULL, and returns their number. */
static size_t cut_items(const host_tables *tables, size_t *items)
{
    const uint64_t wished = tables->cost / N_ITEMS;
    const uint64_t enough = wished < MIN_ITEM ? MIN_ITEM : wished > MAX_ITEM ? MAX_ITEM : wished;
    uint64_t cost = enough;
    size_t n_items = 0;

    for (size_t i = 0; i < tables->n_pieces; i++) {
        if (cost >= enough) {
            if (items != NULL)
                items[n_items] = i;
            n_items++;
            cost = 0;
        }
        cost += piece_cost(tables, &tables->pieces[i]);
    }
    if (items != NULL)
        items[n_items] = tables->n_pieces;
    return n_items;
}

/* Whether a tensor goes on with the run of the one before it, which is in the item that begins with piece `item`. */
static bool joins_run(const host_tables *tables, size_t t, size_t item)
{
    const host_tensor *tensor = &tables->tensors[t], *before = tensor - 1;

    return t > 0 && tensor->n_pieces == 1 && before->n_pieces == 1 && tensor->first_piece != item &&
           tensor->tensor.group == before->tensor.group && tensor->tensor.role == before->tensor.role;
}

static void cut_runs(host_tables *tables)
{
    size_t item = 0;

    for (size_t t = 0; t < tables->n_tensors; t++) {
        host_tensor *tensor = &tables->tensors[t];

        while (tables->items[item + 1] <= tensor->first_piece)
            item++;
        if (!joins_run(tables, t, tables->items[item]))
            tables->runs[tables->n_runs++].first = (uint32_t)t;
        tensor->run = (uint32_t)(tables->n_runs - 1);
        tables->runs[tensor->run].n++;
    }
}

static esper_status cut_work(host_tables *tables)
{
    size_t n_items, at = 0;

    tables->pieces = esper_mem_alloc(tables->n_pieces * sizeof(*tables->pieces));
    tables->partials = esper_mem_alloc((tables->n_partials + 1) * sizeof(*tables->partials));
    tables->runs = esper_mem_alloc(tables->n_tensors * sizeof(*tables->runs));
    if (tables->pieces == NULL || tables->partials == NULL || tables->runs == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "records of %zu tensors in %zu pieces", tables->n_tensors, tables->n_pieces);
    for (size_t t = 0; t < tables->n_tensors; t++)
        for (uint32_t i = 0; i < tables->tensors[t].n_pieces; i++, at++) {
            tables->pieces[at] = (host_piece){.tensor = (uint32_t)t, .index = i};
            tables->cost += piece_cost(tables, &tables->pieces[at]);
        }
    assert(at == tables->n_pieces);
    n_items = cut_items(tables, NULL);
    tables->items = esper_mem_alloc((n_items + 1) * sizeof(*tables->items));
    if (tables->items == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu items of work", n_items);
    tables->n_items = (int)cut_items(tables, tables->items);
    cut_runs(tables);
    return ESPER_OK;
}

static esper_status make_tables(const esper_scan_tensor *tensors, size_t n_tensors, size_t n_groups,
                                host_tables *tables)
{
    tables->n_tensors = n_tensors;
    tables->n_groups = n_groups;
    tables->tensors = esper_mem_alloc(n_tensors * sizeof(*tables->tensors));
    tables->stats = esper_mem_alloc(n_tensors * sizeof(*tables->stats));
    tables->groups = esper_mem_alloc(n_groups * sizeof(*tables->groups));
    if (tables->tensors == NULL || tables->stats == NULL || tables->groups == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu tensors", n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        size_t n_pieces;

        tables->tensors[t].tensor = tensors[t];
        tables->tensors[t].first_piece = tables->n_pieces;
        tables->tensors[t].first_partial = tables->n_partials;
        n_pieces = cut_tensor(&tables->tensors[t]);
        tables->n_pieces += n_pieces;
        tables->n_partials += n_pieces > 1 ? n_pieces : 0;
    }
    return cut_work(tables);
}

/* ------------------------------------------------------------------------------------------------------------- jobs */

/* Threads may come with denormals flushed or another rounding, from whoever started them; no result depends on that. */
static void run_item(void *context, int item, int worker)
{
    const host_job *job = context;
    const host_tables *tables = &job->engine->tables;
    fenv_t callers;

    (void)worker;
    assert(item >= 0 && item < tables->n_items);
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    for (size_t p = tables->items[item]; p < tables->items[item + 1]; p++) {
        const host_tensor *tensor = &tables->tensors[tables->pieces[p].tensor];

        if (is_wanted(&tensor->tensor, job->roles))
            job->run(job, tensor, p);
    }
    fesetenv(&callers);
}

static unsigned char *piece_data(const host_tensor *tensor, uint32_t index)
{
    assert(index < tensor->n_pieces);
    return (unsigned char *)tensor->tensor.data + index * tensor->piece * esper_guard_dtype_bytes(tensor->tensor.dtype);
}

/* A tensor's record is complete. */
static void finish_tensor(const host_engine *engine, const host_tensor *tensor, const esper_scan_record *record)
{
    const host_tables *tables = &engine->tables;
    const uint32_t index = (uint32_t)(tensor - tables->tensors);
    host_run *run = &tables->runs[tensor->run];

    assert(index < tables->n_tensors && tensor->run < tables->n_runs);
    if (index == run->first)
        esper_scan_sums_init(&run->sums);
    esper_report_stat(record, tensor->tensor.count, &tables->stats[index]);
    esper_scan_sums_take(&run->sums, record, &tables->stats[index], index, &engine->limits);
}

static void scan_piece(const host_job *job, const host_tensor *tensor, size_t piece)
{
    const host_tables *tables = &job->engine->tables;
    uint32_t index = tables->pieces[piece].index;
    esper_scan_record whole,
        *record = tensor->n_pieces == 1 ? &whole : &tables->partials[tensor->first_partial + index];

    job->engine->kernels->scan[tensor->tensor.dtype](piece_data(tensor, index), index * tensor->piece,
                                                     piece_count(tensor, index), &job->settings, record);
    if (tensor->n_pieces == 1)
        finish_tensor(job->engine, tensor, &whole);
}

static void scale_piece(const host_job *job, const host_tensor *tensor, size_t piece)
{
    uint32_t index = job->engine->tables.pieces[piece].index;

    job->engine->kernels->scale[tensor->tensor.dtype](piece_data(tensor, index), piece_count(tensor, index),
                                                      job->factor);
}

/* All items, on the pool where that is worth waking it. */
static void run_items(const host_job *job)
{
    const host_tables *tables = &job->engine->tables;
    void *context = (void *)(uintptr_t)job;

    if (tables->cost > ALONE) {
        esper_pool_run(job->engine->pool, tables->n_items, run_item, context);
        return;
    }
    for (int item = 0; item < tables->n_items; item++)
        run_item(context, item, 0);
}

/* From runs to groups to roles, in their order. */
static void add_up(host_engine *engine, uint32_t roles)
{
    host_tables *tables = &engine->tables;

    for (size_t g = 0; g < tables->n_groups; g++)
        esper_scan_sums_init(&tables->groups[g]);
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        esper_scan_sums_init(&tables->roles[role]);
    for (size_t r = 0; r < tables->n_runs; r++) {
        const host_tensor *tensor = &tables->tensors[tables->runs[r].first];

        if (!is_wanted(&tensor->tensor, roles))
            continue;
        if (tensor->n_pieces > 1) {
            esper_scan_record *records = &tables->partials[tensor->first_partial];

            for (size_t p = 1; p < tensor->n_pieces; p++)
                esper_scan_record_add(&records[0], &records[p]);
            finish_tensor(engine, tensor, &records[0]);
        }
        esper_scan_sums_add(&tables->groups[tensor->tensor.group], &tables->runs[r].sums);
        esper_scan_sums_add(&tables->roles[tensor->tensor.role], &tables->runs[r].sums);
    }
}

/* What stands there of roles that are no longer asked for. */
static void clear_stats(host_engine *engine, uint32_t roles)
{
    const host_tables *tables = &engine->tables;

    for (size_t t = 0; (engine->shown & ~roles) != 0 && t < tables->n_tensors; t++)
        if (!is_wanted(&tables->tensors[t].tensor, roles))
            tables->stats[t] = (esper_guard_stat){0};
    engine->shown = roles;
}

/* ------------------------------------------------------------------------------------------------------------ table */

static void host_close(esper_scan_engine *engine)
{
    if (engine == NULL)
        return;
    esper_pool_close(host_of(engine)->pool);
    free_tables(&host_of(engine)->tables);
    esper_mem_free(engine);
}

static esper_status host_open(int32_t device, const esper_guard_options *options, esper_scan_engine **engine_out)
{
    const esper_scan_kernels *kernels = esper_scan_kernels_choose();
    host_engine *engine;
    esper_status status;

    if (kernels == NULL)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "ESPER_KERNELS=%s: expected portable, avx2 or avx512, as this processor has",
                          getenv("ESPER_KERNELS"));
    engine = esper_mem_alloc(sizeof(*engine));
    if (engine == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the guard's engine for host memory");
    engine->base = (esper_scan_engine){.ops = &esper_scan_engine_host, .device = device};
    engine->kernels = kernels;
    engine->limits = (esper_report_limits){options->vanishing, options->exploding};
    status = esper_pool_open(options->n_threads, &engine->pool);
    if (status != ESPER_OK) {
        host_close(&engine->base);
        return status;
    }
    *engine_out = &engine->base;
    return ESPER_OK;
}

static esper_status host_bind(esper_scan_engine *engine, const esper_scan_tensor *tensors, size_t n_tensors,
                              size_t n_groups)
{
    host_tables tables = {0};
    esper_status status;

    if (n_tensors > UINT32_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "%zu tensors on one device are too many", n_tensors);
    status = n_tensors > 0 ? make_tables(tensors, n_tensors, n_groups, &tables) : ESPER_OK;
    if (status != ESPER_OK) {
        free_tables(&tables);
        return status;
    }
    free_tables(&host_of(engine)->tables);
    host_of(engine)->tables = tables;
    host_of(engine)->shown = 0;
    host_of(engine)->readable_page = 0;
    host_of(engine)->grads_writable = false;
    return ESPER_OK;
}

static esper_status host_rebind(esper_scan_engine *engine, void *const *data)
{
    host_tables *tables = &host_of(engine)->tables;

    for (size_t t = 0; t < tables->n_tensors; t++)
        tables->tensors[t].tensor.data = data[t];
    host_of(engine)->readable_page = 0;
    host_of(engine)->grads_writable = false;
    return ESPER_OK;
}

static esper_status host_scale(esper_scan_engine *engine, double factor, void *stream)
{
    host_job job = {
        .engine = host_of(engine), .run = scale_piece, .roles = 1u << ESPER_GUARD_ROLE_GRAD, .factor = factor};

    (void)stream;
    run_items(&job);
    return ESPER_OK;
}

/* What all pieces come to: sums are added, and gradients are clipped, by no rounding but our own either. */
static uint32_t sum_up(host_engine *host, const esper_scan_request *request)
{
    uint32_t bad = 0;
    fenv_t callers;

    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    add_up(host, request->roles);
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        bad |= esper_scan_bad(&host->tables.roles[role], (esper_guard_role)role);
    host->clip_factor =
        esper_guard_clip_factor(esper_scan_norm(&host->tables.roles[ESPER_GUARD_ROLE_GRAD]), request->clip_norm);
    fesetenv(&callers);
    return bad;
}

static esper_status host_scan(esper_scan_engine *engine, const esper_scan_request *request)
{
    host_engine *host = host_of(engine);
    host_job job = {.engine = host, .run = scan_piece, .roles = request->roles};
    uint32_t bad;

    job.settings = esper_scan_settings_make(request->tiny, request->checksum);
    host->tag = request->tag;
    clear_stats(host, request->roles);
    run_items(&job);
    bad = sum_up(host, request);
    if (request->skip_flag != NULL)
        *request->skip_flag = bad;
    return host->clip_factor < 1.0 ? host_scale(engine, host->clip_factor, NULL) : ESPER_OK;
}

static esper_status host_collect(esper_scan_engine *engine, esper_scan_result *result_out)
{
    const host_engine *host = host_of(engine);

    *result_out = (esper_scan_result){
        .stats = host->tables.stats,
        .groups = host->tables.groups,
        .roles = host->tables.roles,
        .n_groups = host->tables.n_groups,
        .clip_factor = host->clip_factor,
        .asked = host->shown,
        .tag = host->tag,
    };
    return ESPER_OK;
}

/* Whether a byte can be read: the kernel tries, instead of us. Where it does not want to answer, one hopes. It takes a
 * microsecond or more, and many a small tensor lies in one page. */
static bool is_readable(host_engine *engine, const void *address)
{
    const uintptr_t page = (uintptr_t)address / PAGE + 1;
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)address, 1};

    if (page == engine->readable_page)
        return true;
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1 && errno == EFAULT)
        return false;
    engine->readable_page = page;
    return true;
}

/* Catches the address of a device, or of nothing: its first and last byte are tried. */
static esper_status host_check(esper_scan_engine *engine, const void *memory, uint64_t bytes)
{
    host_engine *host = host_of(engine);

    if (bytes == 0)
        return ESPER_OK;
    if ((uintptr_t)memory + (bytes - 1) < (uintptr_t)memory)
        return ESPER_FAIL(ESPER_E_ARG, "%p: %llu bytes do not fit behind that address", memory,
                          (unsigned long long)bytes);
    if (!is_readable(host, memory) || !is_readable(host, (const char *)memory + (bytes - 1)))
        return ESPER_FAIL(ESPER_E_ARG,
                          "%p: no %llu bytes of host memory that can be read (give the number of the CUDA "
                          "device if they lie on one)",
                          memory, (unsigned long long)bytes);
    return ESPER_OK;
}

/* Whether a byte can be written, by writing what is there. Where the kernel does not want to answer, one hopes. */
static bool is_writable(void *address)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {address, 1};

    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1)
        return errno != EFAULT;
    return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

esper_status esper_scan_engine_host_check_writable(void *memory, uint64_t bytes)
{
    if (bytes > 0 && (!is_writable(memory) || !is_writable((char *)memory + (bytes - 1))))
        return ESPER_FAIL(ESPER_E_ARG, "%p: %llu bytes of host memory that cannot be written", memory,
                          (unsigned long long)bytes);
    return ESPER_OK;
}

esper_status esper_scan_engine_host_check_grads(esper_scan_engine *engine)
{
    host_engine *host = host_of(engine);

    for (size_t t = 0; !host->grads_writable && t < host->tables.n_tensors; t++) {
        const esper_scan_tensor *tensor = &host->tables.tensors[t].tensor;

        if (tensor->role == ESPER_GUARD_ROLE_GRAD)
            ESPER_TRY(esper_scan_engine_host_check_writable(tensor->data,
                                                            tensor->count * esper_guard_dtype_bytes(tensor->dtype)));
    }
    host->grads_writable = true;
    return ESPER_OK;
}

esper_pool *esper_scan_engine_host_pool(const esper_scan_engine *engine)
{
    return ((const host_engine *)engine)->pool;
}

const esper_scan_engine_ops esper_scan_engine_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .bind = host_bind,
    .rebind = host_rebind,
    .scan = host_scan,
    .collect = host_collect,
    .scale = host_scale,
    .check = host_check,
};
