/* Lanes in device memory, programs that run side by side, and their graphs. */
#include "tensor/cuda/backend_lanes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/cuda/images.h"
#include "tensor/cuda/moves.h"

enum { PLAIN_SHARED = 48 * 1024 }; /* bytes that a block gets without being asked for more */
enum {
    CUDA_BRANCHES = 4,
    BRANCH_PROGRAMS = 8
};                                  /* of a graph, where nobody says how many, and of programs each, at least */
enum { GATHER_PARTS = 256 }; /* parts of a block of samples that is gathered, over all networks, if 2 to 16 each */

struct cuda_group {
    cuda_group  *next;
    uint64_t     hash, used;
    int          n_programs, n_calls, n_lanes, n_runs;
    uint64_t    *ids;   /* (n_programs) */
    cuda_call   *calls; /* (n_calls) one behind the other */
    const esper_lane **lanes; /* (n_lanes) of all calls */
    int         *members; /* (n_lanes) which of the programs each belongs to */
    CUgraphExec  graph; /* NULL: not yet */
};

/* ------------------------------------------------------------------------------------------------ kernels */

static const esper_cuda_image no_image = {.name = "kernels", .source = ""};

static bool has_kernel(const esper_tensor_image *image, const char *name)
{
    char words[96];

    snprintf(words, sizeof(words), " %s ", name);
    return strstr(image->kernels, words) != NULL;
}

/* Its image is loaded the first time; no other is, as one that has to be compiled takes long. */
static esper_status find_kernel(cuda_lanes_table *table, const char *name, CUfunction *function_out)
{
    const esper_tensor_image *image = esper_tensor_images;
    esper_cuda_module *module;

    while (image->image.name != NULL && !has_kernel(image, name))
        image++;
    if (image->image.name == NULL)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "this build has no CUDA kernel %s", name);
    if (esper_cuda_driver_now.knows_kernels) {
        ESPER_TRY(esper_cuda_module_get(table->device, &no_image, &module));
    } else {
        ESPER_TRY(esper_cuda_module_get(table->device, &image->image, &module));
        table->origin = esper_cuda_module_origin(module);
    }
    return esper_cuda_module_kernel(module, name, function_out);
}

/* Of what computes here: machine code that was built in, or the sources and who has compiled them. */
static uint64_t hash_kernels(const cuda_lanes_table *table)
{
    const char *origin = table->origin != NULL ? table->origin : "embedded";
    const esper_tensor_image *images = esper_tensor_images;
    bool compiled = strcmp(origin, "embedded") != 0;
    uint64_t hash = compiled ? XXH64(origin, strlen(origin), 0) : 0;

    for (const esper_tensor_image *image = images; image->image.name != NULL; image++)
        hash = compiled || image->end == NULL
                   ? XXH64(image->image.source, strlen(image->image.source), hash)
                   : XXH64(image->image.binary, (size_t)((const char *)image->end - (const char *)image->image.binary),
                           hash);
    for (const esper_cuda_header *header = images->image.headers; compiled && header->name != NULL; header++)
        hash = XXH64(header->text, strlen(header->text), hash);
    return hash;
}

/* A kernel is asked for with more than a block gets anyway; another shape may want still more than the last one. */
static esper_status grant_shared(const cuda_lanes_table *table, cuda_kernel *kernel, int shared)
{
    esper_status status;

    if (shared <= kernel->shared)
        return ESPER_OK;
    ESPER_TRY(esper_cuda_enter(table->device));
    status = ESPER_CUDA(cuFuncSetAttribute, kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);
    esper_cuda_leave();
    if (status == ESPER_OK)
        kernel->shared = shared;
    return status;
}

static esper_status kernel_of(cuda_lanes_table *table, const char *name, int shared, CUfunction *function_out)
{
    CUfunction function;

    for (int i = 0; i < table->n_kernels; i++)
        if (strcmp(table->kernels[i].name, name) == 0) {
            *function_out = table->kernels[i].function;
            return grant_shared(table, &table->kernels[i], shared);
        }
    if (table->n_kernels == table->room_kernels) {
        int room = table->room_kernels == 0 ? 64 : 2 * table->room_kernels;
        cuda_kernel *kernels = esper_mem_grow(table->kernels, (size_t)room * sizeof(*kernels));

        if (kernels == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "list of %d kernels", room);
        table->kernels = kernels;
        table->room_kernels = room;
    }
    ESPER_TRY(find_kernel(table, name, &function));
    table->kernels[table->n_kernels] = (cuda_kernel){.name = name, .function = function, .shared = PLAIN_SHARED};
    ESPER_TRY(grant_shared(table, &table->kernels[table->n_kernels], shared));
    table->n_kernels++;
    *function_out = function;
    return ESPER_OK;
}

esper_status cuda_lanes_open(esper_device *device, CUstream stream, cuda_lanes_table *table)
{
    const char *profile = getenv("ESPER_CUDA_PROFILE"), *graph = getenv("ESPER_CUDA_GRAPH");
    const char *after = getenv("ESPER_CUDA_GRAPH_AFTER");
    esper_status status;

    *table = (cuda_lanes_table){.device = device,
                                .stream = stream,
                                .tally = table->tallies,
                                .timed = profile != NULL && strcmp(profile, "1") == 0,
                                .in_line = graph != NULL && strcmp(graph, "line") == 0,
                                .branches = graph != NULL && atoi(graph) > 0 ? atoi(graph) : CUDA_BRANCHES};
    table->graph_after = after != NULL ? atoi(after) : 0;
    cuda_memory_init(&table->memory, device);
    ESPER_TRY(esper_cuda_enter(device));
    status = ESPER_CUDA(cuEventCreate, &table->uploaded, CU_EVENT_DISABLE_TIMING);
    esper_cuda_leave();
    ESPER_TRY(status);
    ESPER_TRY(kernel_of(table, "esper_move", 0, &table->move));
    ESPER_TRY(kernel_of(table, "esper_gather_batch", 0, &table->gather));
    ESPER_TRY(kernel_of(table, "esper_scan_flags", 0, &table->scan));
    table->hash = hash_kernels(table);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ lanes */

/* What lies on the device from now on. On a stream of the device's own, as the other one may be making a graph. */
static esper_status put_on_device(cuda_lanes_table *table, const void *from, size_t bytes, void **memory_out)
{
    esper_status status;
    void *memory;

    ESPER_TRY(cuda_memory_take(&table->memory, bytes, false, &memory));
    status = esper_cuda_enter(table->device);
    if (status == ESPER_OK) {
        status = ESPER_CUDA(cuMemcpyHtoDAsync, (CUdeviceptr)(uintptr_t)memory, from, bytes,
                            esper_cuda_own_stream(table->device));
        esper_cuda_leave();
    }
    if (status != ESPER_OK) {
        cuda_memory_give_back(&table->memory, memory);
        return status;
    }
    atomic_store(&table->uploads, true);
    *memory_out = memory;
    return ESPER_OK;
}

esper_status cuda_lanes_await_uploads(cuda_lanes_table *table)
{
    if (!atomic_exchange(&table->uploads, false))
        return ESPER_OK;
    ESPER_TRY(ESPER_CUDA(cuEventRecord, table->uploaded, esper_cuda_own_stream(table->device)));
    return ESPER_CUDA(cuStreamWaitEvent, table->stream, table->uploaded, 0);
}

/* The number of a work's kind, taken up where it is new. */
static esper_status kind_of(cuda_lanes_table *table, const cuda_work *work, uint32_t *kind_out)
{
    uint64_t mixed = (uint64_t)(uintptr_t)work->kernel * 0x9E3779B97F4A7C15u;
    int *bucket = &table->kind_buckets[(mixed >> 32) % CUDA_KIND_BUCKETS];

    for (int at = *bucket; at > 0; at = table->kinds[at - 1].next)
        if (table->kinds[at - 1].kernel == work->kernel && table->kinds[at - 1].threads == work->threads &&
            table->kinds[at - 1].shared == work->shared) {
            *kind_out = (uint32_t)at;
            return ESPER_OK;
        }
    if (table->n_kinds == table->room_kinds) {
        int room = table->room_kinds == 0 ? 64 : 2 * table->room_kinds;
        cuda_kind *kinds = esper_mem_grow(table->kinds, (size_t)room * sizeof(*kinds));

        if (kinds == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "list of %d kinds of launches", room);
        table->kinds = kinds;
        table->room_kinds = room;
    }
    table->kinds[table->n_kinds++] =
        (cuda_kind){.kernel = work->kernel, .threads = work->threads, .shared = work->shared, .next = *bucket};
    *bucket = table->n_kinds;
    *kind_out = (uint32_t)table->n_kinds;
    return ESPER_OK;
}

/* All but where it lies. */
static esper_status describe(cuda_lanes_table *table, const esper_launch *launch, const esper_lane *lane,
                             cuda_lane *out)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);
    esper_cuda_launch launches[ESPER_CUDA_MAX_LAUNCHES];
    int n;

    if (op == NULL)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "backend cuda has no kernel for %s",
                          esper_op_info_of(launch->kind)->name);
    n = launch->direction == ESPER_BACKWARD ? op->backward(lane, launch->part, launches)
                                            : op->forward(lane, launch->part, launches);
    assert(n >= 0 && n <= ESPER_CUDA_MAX_LAUNCHES);
    *out = (cuda_lane){.n_works = 0};
    for (int i = 0; i < n; i++) {
        cuda_work *work = &out->works[out->n_works];

        assert(launches[i].threads > 0 && launches[i].threads <= 1024 && launches[i].blocks >= 0);
        if (launches[i].blocks == 0)
            continue;
        ESPER_TRY(kernel_of(table, launches[i].kernel, launches[i].shared, &work->kernel));
        work->threads = launches[i].threads;
        work->blocks = launches[i].blocks;
        work->shared = launches[i].shared;
        ESPER_TRY(kind_of(table, work, &work->kind));
        out->n_works++;
    }
    return ESPER_OK;
}

/* What it holds lies there. */
static void place_lane(cuda_lane *lane, const esper_lane *at)
{
    for (int w = 0; w < lane->n_works; w++)
        lane->works[w].at = at;
}

/* The works of all lanes, one behind the other. */
static esper_status list_works(cuda_program *made, const cuda_lane *lanes, int n)
{
    for (int i = 0; i < n; i++)
        made->n_works += lanes[i].n_works;
    made->works = esper_mem_alloc((size_t)made->n_works * sizeof(*made->works));
    made->kinds = esper_mem_alloc((size_t)made->n_works * sizeof(*made->kinds));
    if (made->works == NULL || made->kinds == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "program of %d launches", n);
    for (int i = 0, at = 0; i < n; i++)
        for (int w = 0; w < lanes[i].n_works; w++, at++) {
            made->works[at] = lanes[i].works[w];
            made->kinds[at] = lanes[i].works[w].kind;
        }
    return ESPER_OK;
}

static esper_status describe_program(cuda_lanes_table *table, const esper_program *program, cuda_program *made)
{
    size_t n = (size_t)program->n_launches;
    esper_lane *lanes = esper_mem_alloc(n * sizeof(*lanes));
    cuda_lane *described = esper_mem_alloc(n * sizeof(*described));
    esper_status status =
        lanes == NULL || described == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "%d lanes", program->n_launches) : ESPER_OK;

    for (int i = 0; status == ESPER_OK && i < program->n_launches; i++) {
        assert(program->launches[i].n_lanes == 1);
        lanes[i] = program->launches[i].lanes[0];
        status = describe(table, &program->launches[i], &lanes[i], &described[i]);
        made->begins = made->begins == 0 ? program->launches[i].place : made->begins;
    }
    if (status == ESPER_OK)
        status = put_on_device(table, lanes, n * sizeof(*lanes), &made->memory);
    for (int i = 0; status == ESPER_OK && i < program->n_launches; i++)
        place_lane(&described[i], (const esper_lane *)made->memory + i);
    if (status == ESPER_OK)
        status = list_works(made, described, program->n_launches);
    esper_mem_free(lanes);
    esper_mem_free(described);
    return status;
}

static void free_program(cuda_lanes_table *table, cuda_program *program)
{
    cuda_memory_give_back(&table->memory, program->memory);
    esper_mem_free(program->works);
    esper_mem_free(program->kinds);
    esper_mem_free(program);
}

esper_status cuda_lanes_program(cuda_lanes_table *table, const esper_program *program, const cuda_program **program_out)
{
    cuda_program **bucket = &table->programs[program->id % CUDA_BUCKETS], *made;
    esper_status status;

    for (made = *bucket; made != NULL && made->id != program->id; made = made->next)
        ;
    if (made == NULL) {
        made = esper_mem_alloc(sizeof(*made));
        if (made == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "program of %d launches", program->n_launches);
        made->id = program->id;
        status = describe_program(table, program, made);
        if (status != ESPER_OK) {
            free_program(table, made);
            return status;
        }
        if (table->first_place == 0 || made->begins < table->first_place)
            table->first_place = made->begins;
        made->next = *bucket;
        *bucket = made;
    }
    *program_out = made;
    return ESPER_OK;
}

/* What holds these bytes: found, or taken up with the bytes on the device. */
static esper_status keep(cuda_lanes_table *table, const void *bytes, size_t n, uint64_t salt, cuda_kept **kept_out)
{
    uint64_t hash = XXH64(bytes, n, salt);
    cuda_kept **bucket = &table->kept[hash % CUDA_BUCKETS], *kept;
    esper_status status;

    for (kept = *bucket; kept != NULL; kept = kept->next)
        if (kept->hash == hash && kept->bytes == n && memcmp(kept->copy, bytes, n) == 0) {
            *kept_out = kept;
            return ESPER_OK;
        }
    kept = esper_mem_alloc(sizeof(*kept));
    if (kept == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "lane");
    kept->hash = hash;
    kept->bytes = n;
    kept->copy = esper_mem_alloc(n);
    status = kept->copy == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "lane") : put_on_device(table, bytes, n, &kept->memory);
    if (status != ESPER_OK) {
        esper_mem_free(kept->copy);
        esper_mem_free(kept);
        return status;
    }
    memcpy(kept->copy, bytes, n);
    kept->next = *bucket;
    *bucket = kept;
    table->n_kept++;
    *kept_out = kept;
    return ESPER_OK;
}

/* The same lane may be launched in several ways: the salt tells them apart. */
esper_status cuda_lanes_lane(cuda_lanes_table *table, const esper_launch *launch, const esper_lane *lane,
                             const cuda_lane **lane_out)
{
    uint64_t salt = 1 + ((uint64_t)launch->place << 32 | (uint64_t)launch->kind << 16 | (uint64_t)launch->variant << 8 |
                         (uint64_t)launch->part << 1 | (uint64_t)(launch->direction == ESPER_BACKWARD));
    cuda_kept *kept;

    ESPER_TRY(keep(table, lane, sizeof(*lane), salt, &kept));
    if (!kept->described) {
        ESPER_TRY(describe(table, launch, lane, &kept->lane));
        place_lane(&kept->lane, kept->memory);
        kept->described = true;
    }
    *lane_out = &kept->lane;
    return ESPER_OK;
}

esper_status cuda_lanes_scan(cuda_lanes_table *table, const void *scan_table, size_t bytes, int blocks,
                             const cuda_scan **scan_out)
{
    cuda_kept *kept;

    ESPER_TRY(keep(table, scan_table, bytes, 0, &kept));
    if (kept->scan.at == NULL) /* a round that is being handed on may read it */
        kept->scan = (cuda_scan){.at = kept->memory, .blocks = blocks};
    *scan_out = &kept->scan;
    return ESPER_OK;
}

void cuda_lanes_forget(cuda_lanes_table *table, uint64_t id, const uint64_t *done, uint64_t until)
{
    cuda_program **at = &table->programs[id % CUDA_BUCKETS], *gone;

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    gone = *at;
    if (gone == NULL)
        return;
    *at = gone->next;
    gone->done = done;
    gone->until = until;
    gone->next = table->doomed;
    table->doomed = gone;
}

static void free_kept(cuda_lanes_table *table)
{
    for (int b = 0; b < CUDA_BUCKETS; b++)
        while (table->kept[b] != NULL) {
            cuda_kept *kept = table->kept[b];

            table->kept[b] = kept->next;
            cuda_memory_give_back(&table->memory, kept->memory);
            esper_mem_free(kept->copy);
            esper_mem_free(kept);
        }
    table->n_kept = 0;
}

void cuda_lanes_sweep(cuda_lanes_table *table, bool all)
{
    for (cuda_program **at = &table->doomed, *gone; (gone = *at) != NULL;)
        if (all || *gone->done >= gone->until) {
            *at = gone->next;
            free_program(table, gone);
        } else {
            at = &gone->next;
        }
    if (all && table->n_kept > CUDA_KEPT_MOST)
        free_kept(table);
}

/* ------------------------------------------------------------------------------------------------ launches */

static esper_status launch(cuda_lanes_table *table, const cuda_call *call, void *argument)
{
    void *parameters[] = {argument};

    return ESPER_CUDA(cuLaunchKernel, call->kernel, (unsigned)call->blocks, (unsigned)call->n_lanes, 1,
                      (unsigned)call->threads, 1, 1, (unsigned)call->shared, table->stream, parameters, NULL);
}

static esper_status launch_timed(cuda_lanes_table *table, const cuda_call *call, void *argument)
{
    double began;

    ESPER_TRY(ESPER_CUDA(cuStreamSynchronize, table->stream));
    began = esper_clock_seconds();
    ESPER_TRY(launch(table, call, argument));
    ESPER_TRY(ESPER_CUDA(cuStreamSynchronize, table->stream));
    for (int i = 0; i < table->n_kernels; i++)
        if (table->kernels[i].function == call->kernel) {
            table->kernels[i].seconds += esper_clock_seconds() - began;
            table->kernels[i].n_launches++;
            table->kernels[i].n_lanes += call->n_lanes;
        }
    return ESPER_OK;
}

esper_status cuda_lanes_call(cuda_lanes_table *table, const cuda_call *call, void *argument)
{
    if (call->blocks == 0 || call->n_lanes == 0)
        return ESPER_OK;
    table->tally->n_launches++;
    table->tally->n_lanes += call->n_lanes;
    return table->timed ? launch_timed(table, call, argument) : launch(table, call, argument);
}

/* The kernels that took most come first. */
static int compare_seconds(const void *a, const void *b)
{
    const cuda_kernel *x = a, *y = b;

    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void print_times(cuda_lanes_table *table)
{
    double all = 0.0;

    qsort(table->kernels, (size_t)table->n_kernels, sizeof(*table->kernels), compare_seconds);
    for (int i = 0; i < table->n_kernels; i++)
        all += table->kernels[i].seconds;
    for (int i = 0; i < table->n_kernels; i++)
        if (table->kernels[i].n_launches > 0)
            fprintf(stderr, "%5.1f %%  %9.1f us a launch of %6.1f lanes  %8" PRId64 " launches  %s\n",
                    100.0 * table->kernels[i].seconds / all,
                    1e6 * table->kernels[i].seconds / (double)table->kernels[i].n_launches,
                    (double)table->kernels[i].n_lanes / (double)table->kernels[i].n_launches,
                    table->kernels[i].n_launches, table->kernels[i].name);
}

static esper_status call_lanes(cuda_lanes_table *table, const cuda_call *call, const esper_lane *const *lanes)
{
    esper_cuda_lanes argument;

    assert(call->n_lanes <= ESPER_CUDA_LANES);
    memcpy(argument.lane, lanes, (size_t)call->n_lanes * sizeof(*lanes));
    return cuda_lanes_call(table, call, &argument);
}

/* Something that lists calls: into a group that is being made, or onto the stream at once. */
typedef struct caller {
    cuda_lanes_table *table;
    cuda_group       *group; /* NULL: at once */
    int               first; /* of the group's programs: that of those that are listed now */
    int               room_calls, room_lanes;
} caller;

static esper_status list_call(caller *self, const cuda_call *call, const esper_lane *const *lanes, const int *members)
{
    cuda_group *group = self->group;

    if (group == NULL)
        return call_lanes(self->table, call, lanes);
    if (group->n_calls == self->room_calls) {
        int room = self->room_calls == 0 ? 64 : 2 * self->room_calls;
        cuda_call *calls = esper_mem_grow(group->calls, (size_t)room * sizeof(*calls));

        if (calls == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "group of %d launches", room);
        group->calls = calls;
        self->room_calls = room;
    }
    if (group->n_lanes + call->n_lanes > self->room_lanes) {
        int room = 2 * self->room_lanes + call->n_lanes;
        const esper_lane **all = esper_mem_grow(group->lanes, (size_t)room * sizeof(*all));
        int *of_all;

        if (all == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "group of %d lanes", room);
        group->lanes = all;
        of_all = esper_mem_grow(group->members, (size_t)room * sizeof(*of_all));
        if (of_all == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "group of %d lanes", room);
        group->members = of_all;
        self->room_lanes = room;
    }
    memcpy(group->lanes + group->n_lanes, lanes, (size_t)call->n_lanes * sizeof(*lanes));
    memcpy(group->members + group->n_lanes, members, (size_t)call->n_lanes * sizeof(*members));
    group->calls[group->n_calls] = *call;
    group->calls[group->n_calls++].first = group->n_lanes;
    group->n_lanes += call->n_lanes;
    return ESPER_OK;
}

enum { SPARE_BLOCKS = 8192 }; /* of a launch, that find nothing to do: two microseconds, no more than another launch */

/* Works that have nothing to do with each other: those of one kind together, but for narrow ones beside so wide ones that most blocks would
 * find nothing to do. `works` is used up, and so is `members`, which a group wants to know. */
static esper_status list_works_of_step(caller *self, const cuda_work **works, int *members, int n)
{
    while (n > 0) {
        const cuda_work *widest = works[0];
        const esper_lane *at[ESPER_CUDA_LANES];
        int of[ESPER_CUDA_LANES], n_alike = 0, n_left = 0, n_spare = SPARE_BLOCKS;

        for (int i = 1; i < n; i++)
            if (works[i]->kind == widest->kind && works[i]->blocks > widest->blocks)
                widest = works[i];
        for (int i = 0; i < n; i++)
            if (n_alike < ESPER_CUDA_LANES && works[i]->kind == widest->kind &&
                widest->blocks - works[i]->blocks <= n_spare) {
                n_spare -= widest->blocks - works[i]->blocks;
                at[n_alike] = works[i]->at;
                of[n_alike++] = members[i];
            } else {
                works[n_left] = works[i];
                members[n_left++] = members[i];
            }
        ESPER_TRY(list_call(self,
                            &(cuda_call){.kernel = widest->kernel,
                                         .threads = widest->threads,
                                         .blocks = widest->blocks,
                                         .shared = widest->shared,
                                         .n_lanes = n_alike},
                            at, of));
        n = n_left;
    }
    return ESPER_OK;
}

esper_status cuda_lanes_run(cuda_lanes_table *table, const cuda_lane *const *lanes, int n)
{
    caller self = {.table = table};
    const cuda_work *works[ESPER_CUDA_LANES];
    int nobody[ESPER_CUDA_LANES] = {0};

    for (int first = 0; first < n; first += ESPER_CUDA_LANES) {
        int end = n - first < ESPER_CUDA_LANES ? n : first + ESPER_CUDA_LANES, n_works = 1;

        for (int w = 0; n_works > 0; w++) {
            n_works = 0;
            for (int i = first; i < end; i++)
                if (w < lanes[i]->n_works)
                    works[n_works++] = &lanes[i]->works[w];
            ESPER_TRY(list_works_of_step(&self, works, nobody, n_works));
        }
    }
    return ESPER_OK;
}

esper_status cuda_lanes_run_scans(cuda_lanes_table *table, const cuda_scan *const *scans, int n)
{
    for (int first = 0; first < n; first += ESPER_CUDA_LANES) {
        cuda_call call = {.kernel = table->scan, .threads = CUDA_SCAN_THREADS};
        esper_cuda_lanes argument;

        for (; call.n_lanes < ESPER_CUDA_LANES && first + call.n_lanes < n; call.n_lanes++) {
            const cuda_scan *scan = scans[first + call.n_lanes];

            argument.lane[call.n_lanes] = scan->at;
            if (scan->blocks > call.blocks)
                call.blocks = scan->blocks;
        }
        ESPER_TRY(cuda_lanes_call(table, &call, &argument));
    }
    return ESPER_OK;
}

/* So many that the device is full: many networks have few of them each. */
static int gather_parts(int n_lanes)
{
    int parts = GATHER_PARTS / n_lanes;

    return parts < 2 ? 2 : parts > 16 ? 16 : parts;
}

esper_status cuda_lanes_run_gathers(cuda_lanes_table *table, const void *const *tables, int n)
{
    const int parts = gather_parts(n);

    for (int first = 0; first < n; first += ESPER_CUDA_LANES) {
        cuda_call call = {.kernel = table->gather, .threads = CUDA_GATHER_THREADS};
        esper_cuda_lanes argument;

        for (; call.n_lanes < ESPER_CUDA_LANES && first + call.n_lanes < n; call.n_lanes++) {
            const cuda_gather_table *batch = tables[first + call.n_lanes];

            argument.lane[call.n_lanes] = batch->at;
            int blocks = batch->gather.blocks == NULL
                             ? batch->gather.n
                             : (batch->gather.n + ESPER_CUDA_BLOCK - 1) / ESPER_CUDA_BLOCK * parts;

            if (blocks > call.blocks)
                call.blocks = blocks;
        }
        ESPER_TRY(cuda_lanes_call(table, &call, &argument));
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ groups */

/* Works by the step of their program's form: a counting sort, in which those of a step stay in the order of programs. */
typedef struct sorting {
    const cuda_form **forms;   /* (n) of the programs */
    int              *begin;   /* (n_steps + 1) where the works of each step begin */
    const cuda_work **works;   /* (n_works) */
    int              *members; /* (n_works) which program each is of */
} sorting;

static void sort_works(const cuda_order *order, const cuda_program *const *programs, int n, int first, sorting *it)
{
    for (int k = 0; k < n; k++)
        for (int i = 0; i < programs[k]->n_works; i++)
            it->begin[order->steps[it->forms[k]->steps[i]].rank + 1]++;
    for (int rank = 0; rank < order->n_steps; rank++)
        it->begin[rank + 1] += it->begin[rank];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < programs[k]->n_works; i++) {
            int at = it->begin[order->steps[it->forms[k]->steps[i]].rank]++;

            it->works[at] = &programs[k]->works[i];
            it->members[at] = first + k;
        }
}

static esper_status list_programs(caller *self, const cuda_program *const *programs, int n)
{
    cuda_order *order = &self->table->order;
    sorting it = {.forms = esper_mem_alloc((size_t)n * sizeof(*it.forms))};
    esper_status status = ESPER_OK;
    size_t n_works = 0;

    cuda_order_tidy(order);
    if (it.forms == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "group of %d programs", n);
    for (int k = 0; k < n && status == ESPER_OK; k++) {
        status = cuda_order_find(order, programs[k]->kinds, programs[k]->n_works, &it.forms[k]);
        n_works += (size_t)programs[k]->n_works;
    }
    if (status == ESPER_OK) {
        it.begin = esper_mem_alloc(((size_t)order->n_steps + 1) * sizeof(*it.begin));
        it.works = esper_mem_alloc(n_works * sizeof(*it.works));
        it.members = esper_mem_alloc(n_works * sizeof(*it.members));
        if (it.begin == NULL || it.works == NULL || it.members == NULL)
            status = ESPER_FAIL(ESPER_E_NOMEM, "group of %d programs", n);
    }
    if (status == ESPER_OK)
        sort_works(order, programs, n, self->first, &it);
    for (int rank = 0, at = 0; rank < order->n_steps && status == ESPER_OK; at = it.begin[rank++])
        status = list_works_of_step(self, it.works + at, it.members + at, it.begin[rank] - at);
    esper_mem_free((void *)it.forms);
    esper_mem_free(it.begin);
    esper_mem_free((void *)it.works);
    esper_mem_free(it.members);
    return status;
}

static void free_group(cuda_group *group)
{
    if (group->graph != NULL)
        (void)ESPER_CUDA_RAW(cuGraphExecDestroy, group->graph);
    esper_mem_free(group->ids);
    esper_mem_free(group->calls);
    esper_mem_free(group->lanes);
    esper_mem_free(group->members);
    esper_mem_free(group);
}

/* The one that was not used for the longest time. */
static void drop_oldest(cuda_lanes_table *table)
{
    cuda_group **oldest = NULL, *gone;

    for (int b = 0; b < CUDA_BUCKETS; b++)
        for (cuda_group **at = &table->groups[b]; *at != NULL; at = &(*at)->next)
            if (oldest == NULL || (*at)->used < (*oldest)->used)
                oldest = at;
    gone = *oldest;
    *oldest = gone->next;
    free_group(gone);
    table->n_groups--;
}

static esper_status make_group(cuda_lanes_table *table, const cuda_program *const *programs, int n, cuda_group *group)
{
    caller self = {.table = table, .group = group};

    group->ids = esper_mem_alloc((size_t)n * sizeof(*group->ids));
    if (group->ids == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "group of %d programs", n);
    for (int k = 0; k < n; k++)
        group->ids[k] = programs[k]->id;
    group->n_programs = n;
    return list_programs(&self, programs, n);
}

static esper_status launch_group(cuda_lanes_table *table, const cuda_group *group)
{
    for (int i = 0; i < group->n_calls; i++)
        ESPER_TRY(call_lanes(table, &group->calls[i], group->lanes + group->calls[i].first));
    return ESPER_OK;
}

/* Room for making a graph of a group. */
typedef struct drawing {
    CUgraphNode *nodes;  /* (n_calls) */
    CUgraphNode *before; /* (n_programs) that a launch comes after */
    int         *last;   /* (n_programs) each one's last call; -1: none */
    int         *seen;   /* (n_calls) the last call that comes after it */
} drawing;

static esper_status draw_call(const cuda_group *group, CUgraph graph, drawing *it, int c)
{
    const cuda_call *call = &group->calls[c];
    const int *members = group->members + call->first;
    esper_cuda_lanes argument;
    void *parameters[] = {&argument};
    size_t n_before = 0;
    CUDA_KERNEL_NODE_PARAMS launch = {.func = call->kernel,
                                      .gridDimX = (unsigned)call->blocks,
                                      .gridDimY = (unsigned)call->n_lanes,
                                      .gridDimZ = 1,
                                      .blockDimX = (unsigned)call->threads,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .sharedMemBytes = (unsigned)call->shared,
                                      .kernelParams = parameters};

    if (call->blocks == 0)
        return ESPER_OK;
    for (int i = 0; i < call->n_lanes; i++) {
        int last = it->last[members[i]];

        it->last[members[i]] = c;
        if (last < 0 || last == c || it->seen[last] == c)
            continue;
        it->seen[last] = c;
        it->before[n_before++] = it->nodes[last];
    }
    memcpy(argument.lane, group->lanes + call->first, (size_t)call->n_lanes * sizeof(*argument.lane));
    return ESPER_CUDA(cuGraphAddKernelNode, &it->nodes[c], graph, it->before, n_before, &launch);
}

/* A launch comes after the last ones of the networks that it has lanes of. */
static esper_status draw_graph(const cuda_group *group, CUgraph *graph_out)
{
    size_t n_calls = (size_t)group->n_calls, n_programs = (size_t)group->n_programs;
    drawing it = {.nodes = esper_mem_alloc(n_calls * sizeof(*it.nodes)),
                  .before = esper_mem_alloc(n_programs * sizeof(*it.before)),
                  .last = esper_mem_alloc(n_programs * sizeof(*it.last)),
                  .seen = esper_mem_alloc(n_calls * sizeof(*it.seen))};
    esper_status status = ESPER_OK;

    if (it.nodes == NULL || it.before == NULL || it.last == NULL || it.seen == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "graph of %d launches", group->n_calls);
    if (status == ESPER_OK)
        status = ESPER_CUDA(cuGraphCreate, graph_out, 0);
    for (int k = 0; status == ESPER_OK && k < group->n_programs; k++)
        it.last[k] = -1;
    for (int c = 0; status == ESPER_OK && c < group->n_calls; c++)
        status = draw_call(group, *graph_out, &it, c);
    esper_mem_free(it.nodes);
    esper_mem_free(it.before);
    esper_mem_free(it.last);
    esper_mem_free(it.seen);
    return status;
}

/* What the stream would be given, one launch after the other. */
static esper_status capture_graph(cuda_lanes_table *table, const cuda_group *group, CUgraph *graph_out)
{
    esper_status status;

    ESPER_TRY(ESPER_CUDA(cuStreamBeginCapture, table->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    status = launch_group(table, group);
    ESPER_TRY(ESPER_CUDA(cuStreamEndCapture, table->stream, graph_out));
    return status;
}

/* Programs whose launches are much alike come behind each other. */
static int compare_kinds(const void *a, const void *b)
{
    const cuda_program *x = *(const cuda_program *const *)a, *y = *(const cuda_program *const *)b;
    int n = x->n_works < y->n_works ? x->n_works : y->n_works,
        way = memcmp(x->kinds, y->kinds, (size_t)n * sizeof(*x->kinds));

    way = way == 0 ? x->n_works - y->n_works : way;
    return way == 0 ? (x->id > y->id) - (x->id < y->id) : way;
}

/* The calls of a group as those of a graph, with branches of some programs each, which are much alike: when the last blocks of threads of
 * one launch run, those of another branch take the room, and one waits for memory while another multiplies. A step that few have, as
 * seeds of some kind do, keeps its own branch waiting alone. Call by call branches would do no good: one would come behind the other. */
static esper_status cut_into_branches(cuda_lanes_table *table, const cuda_program *const *programs, cuda_group *group)
{
    const int n = group->n_programs,
              most = n / BRANCH_PROGRAMS < table->branches ? n / BRANCH_PROGRAMS : table->branches;
    cuda_group cut = {.n_programs = n}, whole = *group;
    caller self = {.table = table, .group = &cut};
    const cuda_program **sorted;
    esper_status status = ESPER_OK;

    if (most < 2)
        return ESPER_OK;
    sorted = esper_mem_alloc((size_t)n * sizeof(*sorted));
    if (sorted == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "branches of %d programs", n);
    memcpy((void *)sorted, (const void *)programs, (size_t)n * sizeof(*sorted));
    qsort((void *)sorted, (size_t)n, sizeof(*sorted), compare_kinds);
    for (int b = 0; status == ESPER_OK && b < most; b++) {
        self.first = n * b / most;
        status = list_programs(&self, sorted + self.first, n * (b + 1) / most - self.first);
    }
    esper_mem_free((void *)sorted);
    if (status == ESPER_OK) {
        group->calls = cut.calls;
        group->lanes = cut.lanes;
        group->members = cut.members;
        group->n_calls = cut.n_calls;
        group->n_lanes = cut.n_lanes;
        cut = whole;
    }
    esper_mem_free(cut.calls);
    esper_mem_free((void *)cut.lanes);
    esper_mem_free(cut.members);
    return status;
}

/* A driver without graphs is launched call by call, and so is a group whose graph could not be made. */
static void make_graph(cuda_lanes_table *table, const cuda_program *const *programs, cuda_group *group)
{
    const esper_cuda_driver *driver = &esper_cuda_driver_now;
    bool draws = driver->cuGraphCreate != NULL && driver->cuGraphAddKernelNode != NULL && !table->in_line;
    double began = esper_clock_seconds();
    CUgraph graph = NULL;
    esper_status status = ESPER_OK;

    if (table->timed || driver->cuGraphInstantiate == NULL || (!draws && driver->cuStreamBeginCapture == NULL))
        return;
    if (draws)
        status = cut_into_branches(table, programs, group);
    if (status == ESPER_OK)
        status = draws ? draw_graph(group, &graph) : capture_graph(table, group, &graph);
    if (status != ESPER_OK || ESPER_CUDA_RAW(cuGraphInstantiate, &group->graph, graph, 0) != CUDA_SUCCESS)
        group->graph = NULL;
    if (graph != NULL)
        (void)ESPER_CUDA_RAW(cuGraphDestroy, graph);
    table->n_graphs += group->graph != NULL;
    table->grouping += esper_clock_seconds() - began;
}

static int compare_ids(const void *a, const void *b)
{
    const cuda_program *x = *(const cuda_program *const *)a, *y = *(const cuda_program *const *)b;

    return (x->id > y->id) - (x->id < y->id);
}

/* Many groups are run but once. One of many programs does not stay for long where they grow, and takes milliseconds to make a graph of, as
 * much as a dozen runs call by call; few are soon made one, and gain most from launches beside each other. */
static int runs_before_graph(const cuda_lanes_table *table, const cuda_group *group)
{
    return table->graph_after > 0 ? table->graph_after : group->n_programs <= 16 ? 2 : 24;
}

esper_status cuda_lanes_run_programs(cuda_lanes_table *table, const cuda_program **programs, int n)
{
    cuda_group **bucket, *group;
    uint64_t hash = (uint64_t)n;

    qsort((void *)programs, (size_t)n, sizeof(*programs), compare_ids);
    for (int k = 0; k < n; k++)
        hash = (hash ^ programs[k]->id) * 0x9E3779B97F4A7C15u + (hash >> 29);
    bucket = &table->groups[hash % CUDA_BUCKETS];
    for (group = *bucket; group != NULL; group = group->next) {
        bool same = group->hash == hash && group->n_programs == n;

        for (int k = 0; same && k < n; k++)
            same = group->ids[k] == programs[k]->id;
        if (same)
            break;
    }
    if (group == NULL) {
        double began = esper_clock_seconds();
        esper_status status;

        group = esper_mem_alloc(sizeof(*group));
        if (group == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "group of %d programs", n);
        group->hash = hash;
        status = make_group(table, programs, n, group);
        if (status != ESPER_OK) {
            free_group(group);
            return status;
        }
        if (table->n_groups == CUDA_GROUPS_KEPT)
            drop_oldest(table);
        group->next = *bucket;
        *bucket = group;
        table->n_groups++;
        table->n_made++;
        table->grouping += esper_clock_seconds() - began;
    }
    group->used = ++table->clock;
    if (++group->n_runs == runs_before_graph(table, group))
        make_graph(table, programs, group);
    if (group->graph == NULL)
        return launch_group(table, group);
    table->tally->n_launches += group->n_calls;
    table->tally->n_lanes += group->n_lanes;
    return ESPER_CUDA(cuGraphLaunch, group->graph, table->stream);
}

void cuda_lanes_close(cuda_lanes_table *table)
{
    if (table->device == NULL)
        return;
    if (table->timed)
        print_times(table);
    for (int b = 0; b < CUDA_BUCKETS; b++) {
        while (table->groups[b] != NULL) {
            cuda_group *group = table->groups[b];

            table->groups[b] = group->next;
            free_group(group);
        }
        while (table->programs[b] != NULL)
            cuda_lanes_forget(table, table->programs[b]->id, NULL, 0);
    }
    cuda_lanes_sweep(table, true);
    free_kept(table);
    cuda_memory_fini(&table->memory);
    if (table->uploaded != NULL)
        (void)ESPER_CUDA_RAW(cuEventDestroy, table->uploaded);
    cuda_order_fini(&table->order);
    esper_mem_free(table->kinds);
    esper_mem_free(table->kernels);
    *table = (cuda_lanes_table){0};
}
