/* Opening and running a plan: every network gets a schedule, all of them one arena, and schedules become launches. */
#include "tensor/plan.h"

#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/plan_launches.h"

struct esper_plan {
    esper_backend         *backend;
    bool                   training;
    int                    max_samples;
    int                    n_nets;
    esper_bound           *nets;      /* (n_nets) */
    const esper_pass     **passes;    /* (n_nets) the callers' */
    const esper_exchange **exchanges; /* (n_nets) NULL: its batch is all here */
    int                    n_spread;  /* networks whose batch is not */
    double                *sums;      /* what ranks add up, as many as the network needs that needs the most */
    char                  *pass_memory; /* (n_nets) of the backend: what lanes read of a pass, then its sample ids */
    size_t                 pass_bytes;  /* of one */
    char                  *arena;
    size_t                 arena_bytes, unshared_bytes, table_bytes;
    size_t                 arena_room; /* of the allocation: at least arena_bytes */
    esper_launches         launches;
};

/* ------------------------------------------------------------------------------------------------ opening */

static int64_t room(const int64_t *begin, int n_regions, int region)
{
    return region < n_regions ? begin[region + 1] - begin[region] : 0;
}

/* The net may have grown since its slab was made. */
static esper_status check_slab(const esper_plan *plan, const esper_net *net, const esper_slab *slab)
{
    if (slab->backend != plan->backend)
        return ESPER_FAIL(ESPER_E_ARG, "the slab belongs to another backend than the plan");
    for (int r = 0; r < net->n_regions; r++)
        if (net->region_params[r] > room(slab->param_begin, slab->n_regions, r) ||
            net->region_buffers[r] > room(slab->buffer_begin, slab->n_regions, r))
            return ESPER_FAIL(ESPER_E_ARG, "region %d of the slab is too small for the net: reserve more", r);
    if (plan->training && esper_net_count_params(net, -1) > 0 && slab->family[ESPER_FAMILY_GRAD] == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "a slab for inference has no gradients: training needs at least one moment");
    return ESPER_OK;
}

/* A schedule that the cache keeps is the cache's to count. */
static esper_status schedule_net(esper_plan *plan, const esper_plan_net *given, esper_plan_cache *cache, int k)
{
    esper_schedule_desc desc = {.backend = plan->backend,
                                .net = given->net,
                                .max_samples = plan->max_samples,
                                .training = plan->training,
                                .frozen = given->frozen,
                                .spread = given->exchange != NULL,
                                .exact = given->exact};
    esper_schedule *schedule;

    assert(!given->exact || cache == NULL); /* whose schedules are all of the backend's precision */
    ESPER_TRY(esper_net_status(given->net));
    ESPER_TRY(check_slab(plan, given->net, given->slab));
    ESPER_TRY(cache != NULL ? esper_plan_cache_get(cache, &desc, &schedule) : esper_schedule_open(&desc, &schedule));
    plan->nets[k] = (esper_bound){.schedule = schedule, .slab = given->slab};
    plan->passes[k] = given->pass;
    plan->exchanges[k] = given->exchange;
    plan->n_spread += given->exchange != NULL;
    plan->arena_bytes += schedule->arena_bytes;
    plan->unshared_bytes += schedule->unshared_bytes;
    plan->table_bytes += cache != NULL ? 0 : schedule->table_bytes;
    return ESPER_OK;
}

/* Memory of the caller's that nobody has written yet reads as zero, whatever was there before. */
static esper_status clear_shared(const esper_plan *plan, const esper_bound *net)
{
    const esper_schedule *schedule = net->schedule;

    for (int t = 0; t < schedule->net.n_tensors; t++)
        if (esper_net_is_shared(&schedule->net, t) && schedule->data[t].begin != ESPER_NEVER)
            ESPER_TRY(esper_backend_fill(plan->backend, NULL, esper_bound_data(net, t), 0.0f,
                                         schedule->data[t].bytes / sizeof(float)));
    return ESPER_OK;
}

/* The backend's memory for a network's pass; its sample ids begin SAMPLE_IDS behind it. */
enum { SAMPLE_IDS = (sizeof(esper_pass) + ESPER_ARENA_ALIGN - 1) / ESPER_ARENA_ALIGN * ESPER_ARENA_ALIGN };

static esper_status take_passes(esper_plan *plan)
{
    size_t ids = (size_t)plan->max_samples * sizeof(uint32_t);
    void *memory;

    plan->pass_bytes = SAMPLE_IDS + (ids + ESPER_ARENA_ALIGN - 1) / ESPER_ARENA_ALIGN * ESPER_ARENA_ALIGN;
    ESPER_TRY(esper_backend_alloc(plan->backend, (size_t)plan->n_nets * plan->pass_bytes, &memory));
    plan->pass_memory = memory;
    plan->table_bytes += (size_t)plan->n_nets * plan->pass_bytes;
    for (int k = 0; k < plan->n_nets; k++)
        plan->nets[k].pass = (const esper_pass *)(const void *)(plan->pass_memory + (size_t)k * plan->pass_bytes);
    return ESPER_OK;
}

/* The arena of `old` if there is one and it is large enough, or a new one: larger than needed where the network is growing,
 * so that the next plan finds room. */
static esper_status take_arena(esper_plan *plan, esper_plan *old)
{
    size_t bytes = old == NULL ? plan->arena_bytes : plan->arena_bytes + plan->arena_bytes / 2, base = 0;
    bool inherits = old != NULL && old->arena_room >= plan->arena_bytes;
    void *arena = NULL;

    if (inherits) {
        plan->arena = old->arena;
        plan->arena_room = old->arena_room;
        old->arena = NULL;
    } else if (bytes > 0) {
        esper_status status = esper_backend_alloc(plan->backend, bytes, &arena);

        if (status == ESPER_E_NOMEM)
            return ESPER_FAIL(status, "%zu bytes for the activations of batches of %d: a smaller batch needs less",
                              bytes, plan->max_samples);
        ESPER_TRY(status);
        plan->arena = arena;
        plan->arena_room = bytes;
    }
    for (int k = 0; k < plan->n_nets; k++) {
        plan->nets[k].arena = plan->arena == NULL ? NULL : plan->arena + base;
        base += plan->nets[k].schedule->arena_bytes;
        if (inherits)
            ESPER_TRY(clear_shared(plan, &plan->nets[k]));
    }
    assert(base == plan->arena_bytes && base <= plan->arena_room);
    return ESPER_OK;
}

/* `old` loses its arena at the last point where this can fail, but for the backend itself. */
static esper_status build(esper_plan *plan, const esper_plan_desc *desc, esper_plan *old)
{
    size_t n_nets = (size_t)desc->n_nets, n_sums = 0;

    plan->nets = esper_plan_take(n_nets, sizeof(*plan->nets), &plan->table_bytes);
    plan->passes = esper_plan_take(n_nets, sizeof(*plan->passes), &plan->table_bytes);
    plan->exchanges = esper_plan_take(n_nets, sizeof(*plan->exchanges), &plan->table_bytes);
    if (plan->nets == NULL || plan->passes == NULL || plan->exchanges == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d networks", desc->n_nets);
    for (int k = 0; k < desc->n_nets; k++) {
        ESPER_TRY(schedule_net(plan, &desc->nets[k], desc->cache, k));
        plan->n_nets = k + 1;
        if (plan->nets[k].schedule->max_sums > n_sums)
            n_sums = plan->nets[k].schedule->max_sums;
    }
    if (n_sums > 0) {
        plan->sums = esper_plan_take(n_sums, sizeof(*plan->sums), &plan->table_bytes);
        if (plan->sums == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%zu sums over ranks", n_sums);
    }
    ESPER_TRY(esper_launches_init(&plan->launches, plan->nets, plan->n_nets));
    plan->table_bytes += plan->launches.table_bytes;
    ESPER_TRY(take_passes(plan));
    ESPER_TRY(take_arena(plan, old));
    esper_launches_bind(&plan->launches, plan->nets);
    /* Gradients nobody writes under this plan must read as zero, whatever an earlier plan left there. */
    for (int k = 0; k < plan->n_nets && plan->training; k++) {
        const esper_slab *slab = plan->nets[k].slab;

        if (slab->family[ESPER_FAMILY_GRAD] != NULL)
            ESPER_TRY(esper_backend_fill(slab->backend, NULL, slab->family[ESPER_FAMILY_GRAD], 0.0f,
                                         (size_t)esper_slab_count(slab, ESPER_FAMILY_GRAD)));
    }
    return ESPER_OK;
}

static esper_status open_plan(const esper_plan_desc *desc, esper_plan *old, esper_plan **plan_out)
{
    esper_plan *plan;
    esper_status status;

    if (desc->n_nets < 1 || desc->max_samples < 1)
        return ESPER_FAIL(ESPER_E_ARG, "plan for %d networks and batches of %d", desc->n_nets, desc->max_samples);
    plan = esper_mem_alloc(sizeof(*plan));
    if (plan == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan");
    plan->backend = desc->backend;
    plan->training = desc->training;
    plan->max_samples = desc->max_samples;
    plan->table_bytes = sizeof(*plan);
    status = build(plan, desc, old);
    if (status != ESPER_OK) {
        esper_plan_close(plan);
        return status;
    }
    *plan_out = plan;
    return ESPER_OK;
}

esper_status esper_plan_open(const esper_plan_desc *desc, esper_plan **plan_out)
{
    return open_plan(desc, NULL, plan_out);
}

esper_status esper_plan_reopen(const esper_plan_desc *desc, esper_plan **plan)
{
    esper_plan *fresh;

    if (*plan != NULL && (*plan)->backend != desc->backend)
        return ESPER_FAIL(ESPER_E_ARG, "a plan cannot move from backend %s to another",
                          esper_backend_name((*plan)->backend));
    ESPER_TRY(open_plan(desc, *plan, &fresh));
    esper_plan_close(*plan);
    *plan = fresh;
    return ESPER_OK;
}

void esper_plan_close(esper_plan *plan)
{
    if (plan == NULL)
        return;
    for (int k = 0; k < plan->n_nets && plan->launches.gradients != NULL; k++) {
        esper_backend_forget(plan->backend, plan->launches.gradients[k].id);
        esper_backend_forget(plan->backend, plan->launches.programs[ESPER_FORWARD][k].id);
        esper_backend_forget(plan->backend, plan->launches.programs[ESPER_BACKWARD][k].id);
    }
    esper_launches_fini(&plan->launches);
    for (int k = 0; k < plan->n_nets; k++)
        esper_schedule_release(plan->nets[k].schedule);
    if (plan->arena != NULL)
        esper_backend_release(plan->backend, plan->arena);
    if (plan->pass_memory != NULL)
        esper_backend_release(plan->backend, plan->pass_memory);
    esper_mem_free(plan->sums);
    esper_mem_free(plan->passes);
    esper_mem_free(plan->exchanges);
    esper_mem_free(plan->nets);
    esper_mem_free(plan);
}

/* ------------------------------------------------------------------------------------------------ running */

static esper_status check_backward(const esper_plan *plan)
{
    return plan->training ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "this plan has no backward pass");
}

static esper_status send_pass(esper_plan *plan, esper_backend_stream *stream, int k)
{
    const esper_schedule *schedule = plan->nets[k].schedule;
    char *to = plan->pass_memory + (size_t)k * plan->pass_bytes;
    esper_pass pass = *plan->passes[k];

    pass.packed = plan->nets[k].packed;
    if (pass.n_samples < 1 || pass.n_samples > plan->max_samples)
        return ESPER_FAIL(ESPER_E_ARG, "batch of %d samples: this plan takes 1 to %d", pass.n_samples,
                          plan->max_samples);
    if (pass.training && pass.n_samples < schedule->min_samples)
        return ESPER_FAIL(ESPER_E_ARG,
                          "batch norm cannot train on one value for each channel: use batches of 2 or more");
    if (pass.training && schedule->draws && pass.sample_id == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "dropout needs the samples' ids");
    if (pass.sample_id != NULL) {
        ESPER_TRY(esper_backend_copy_in(plan->backend, stream, to + SAMPLE_IDS, pass.sample_id,
                                        (size_t)pass.n_samples * sizeof(*pass.sample_id)));
        pass.sample_id = (const uint32_t *)(const void *)(to + SAMPLE_IDS);
    }
    return esper_backend_copy_in(plan->backend, stream, to, &pass, sizeof(pass));
}

esper_status esper_plan_refresh(esper_plan *plan)
{
    for (int k = 0; k < plan->n_nets; k++)
        ESPER_TRY(send_pass(plan, NULL, k));
    return ESPER_OK;
}

/* Where the ranks meet: what the launch has found is replaced by the sums over all of them. The first of these is how many
 * values of a channel there are, alike on every rank: all of them refuse. */
static esper_status meet(esper_plan *plan, esper_backend_stream *stream, const esper_exchange *exchange,
                         const esper_step *step, const esper_launch *launch)
{
    char *sums = (char *)launch->lanes->scratch + step->sums_at;
    size_t bytes = step->n_sums * sizeof(double);

    assert(launch->part == ESPER_PART_BEFORE && launch->n_lanes == 1);
    ESPER_TRY(esper_backend_copy_out(plan->backend, stream, plan->sums, sums, bytes));
    ESPER_TRY(esper_backend_wait(plan->backend, stream));
    ESPER_TRY(exchange->sum(exchange->context, plan->sums, step->n_sums));
    if (plan->sums[0] < 2.0)
        return ESPER_FAIL(ESPER_E_ARG, "batch norm cannot train on one value for each channel over all ranks: use "
                                       "batches of 2 or more");
    return esper_backend_copy_in(plan->backend, stream, sums, plan->sums, bytes);
}

/* One network's program in a direction. Where its batch is spread over ranks, the program is cut at each place where they
 * meet: launches up to there, the meeting, and on. */
static esper_status run_one(esper_plan *plan, esper_backend_stream *stream, esper_direction direction, int k)
{
    const esper_program *program = &plan->launches.programs[direction][k];
    const esper_step *steps = esper_schedule_steps(plan->nets[k].schedule, direction);
    const esper_exchange *exchange = plan->exchanges[k];
    int begin = 0;

    if (exchange == NULL) /* whole: a backend knows it by its number */
        return esper_backend_enqueue_programs(plan->backend, stream, program, 1);
    for (int i = 0; i < program->n_launches; i++) {
        bool meets = steps[i].part == ESPER_PART_BEFORE && plan->passes[k]->training;
        esper_program piece = {
            .n_launches = i + 1 - begin, .launches = program->launches + begin, .chain = program->chain + begin};

        if (!meets && i + 1 < program->n_launches)
            continue;
        ESPER_TRY(esper_backend_enqueue_programs(plan->backend, stream, &piece, 1));
        if (meets)
            ESPER_TRY(meet(plan, stream, exchange, &steps[i], &program->launches[i]));
        begin = i + 1;
    }
    return ESPER_OK;
}

/* All networks, which have nothing to do with each other. Those spread over ranks meet in an order that is the same on every
 * rank: one network after the other. */
static esper_status run(esper_plan *plan, bool forward, bool backward)
{
    const esper_launches *launches = &plan->launches;
    const esper_program *programs = !backward ? launches->programs[ESPER_FORWARD]
                                    : forward ? launches->gradients
                                              : launches->programs[ESPER_BACKWARD];

    if (backward)
        ESPER_TRY(check_backward(plan));
    ESPER_TRY(esper_plan_refresh(plan));
    if (plan->n_spread > 0) {
        for (int k = 0; k < plan->n_nets; k++) {
            if (forward)
                ESPER_TRY(run_one(plan, NULL, ESPER_FORWARD, k));
            if (backward)
                ESPER_TRY(run_one(plan, NULL, ESPER_BACKWARD, k));
        }
        return ESPER_OK;
    }
    if (plan->backend->ops->enqueue_programs != NULL)
        return esper_backend_enqueue_programs(plan->backend, NULL, programs, plan->n_nets);
    for (int d = forward ? ESPER_FORWARD : ESPER_BACKWARD; d <= (backward ? ESPER_BACKWARD : ESPER_FORWARD); d++)
        for (int i = 0; i < launches->n_together[d]; i++)
            ESPER_TRY(esper_backend_enqueue(plan->backend, NULL, &launches->together[d][i]));
    return ESPER_OK;
}

esper_status esper_plan_forward(esper_plan *plan)
{
    return run(plan, true, false);
}

esper_status esper_plan_backward(esper_plan *plan)
{
    return run(plan, false, true);
}

esper_status esper_plan_gradients(esper_plan *plan)
{
    return run(plan, true, true);
}

esper_status esper_plan_forward_one(esper_plan *plan, esper_backend_stream *stream, int net_index)
{
    assert(0 <= net_index && net_index < plan->n_nets);
    ESPER_TRY(send_pass(plan, stream, net_index));
    return run_one(plan, stream, ESPER_FORWARD, net_index);
}

esper_status esper_plan_gradients_one(esper_plan *plan, esper_backend_stream *stream, int net_index)
{
    assert(0 <= net_index && net_index < plan->n_nets);
    ESPER_TRY(check_backward(plan));
    ESPER_TRY(send_pass(plan, stream, net_index));
    if (plan->n_nets == 1 && plan->exchanges[0] == NULL) /* of several they lie in an order of their own */
        return esper_backend_enqueue_programs(plan->backend, stream, plan->launches.gradients, 1);
    ESPER_TRY(run_one(plan, stream, ESPER_FORWARD, net_index));
    return run_one(plan, stream, ESPER_BACKWARD, net_index);
}

/* ------------------------------------------------------------------------------------------------ reading */

void *esper_plan_data(const esper_plan *plan, int net_index, int tensor)
{
    assert(0 <= net_index && net_index < plan->n_nets);
    return tensor == ESPER_NO_TENSOR ? NULL : esper_bound_data(&plan->nets[net_index], tensor);
}

float *esper_plan_grad(const esper_plan *plan, int net_index, int tensor)
{
    assert(0 <= net_index && net_index < plan->n_nets);
    return tensor == ESPER_NO_TENSOR ? NULL : esper_bound_grad(&plan->nets[net_index], tensor);
}

/* Bytes of the first samples of a tensor that the caller may read and write; 0 = it has no memory. */
static size_t caller_bytes(const esper_plan *plan, int net_index, int tensor, int n_samples)
{
    const esper_tensor *t;

    if (esper_plan_data(plan, net_index, tensor) == NULL)
        return 0;
    t = &plan->nets[net_index].schedule->net.tensors[tensor];
    assert(n_samples >= 0 && n_samples <= plan->max_samples);
    return (size_t)t->count * sizeof(float) * (size_t)(t->per_sample ? n_samples : 1);
}

esper_status esper_plan_write(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor,
                              const void *from, int n_samples)
{
    if (tensor == plan->nets[net_index].schedule->net.input)
        plan->nets[net_index].packed = false;
    return esper_backend_copy_in(plan->backend, stream, esper_plan_data(plan, net_index, tensor), from,
                                 caller_bytes(plan, net_index, tensor, n_samples));
}

esper_status esper_plan_gather(esper_plan *plan, esper_backend_stream *stream, int net_index, bool is_read,
                               esper_gather *gather, const esper_pick *picks)
{
    esper_bound *net = &plan->nets[net_index];
    const esper_net *lowered = &net->schedule->net;

    assert(gather->n <= plan->max_samples);
    gather->inputs = esper_bound_data(net, lowered->input);
    gather->blocks = NULL;
    for (int o = 0; o < lowered->n_ops && !is_read; o++)
        if (lowered->ops[o].kind == ESPER_OP_PACK && lowered->ops[o].attr.pack.of_batch) {
            gather->blocks = esper_bound_data(net, lowered->ops[o].out[0]);
            gather->layout = lowered->tensors[lowered->ops[o].out[0]].layout;
        }
    net->packed = gather->blocks != NULL;
    return esper_backend_gather(plan->backend, stream, gather, picks);
}

bool esper_plan_is_packed(const esper_plan *plan, int net_index)
{
    return plan->nets[net_index].packed;
}

esper_status esper_plan_read(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor, void *to,
                             int n_samples)
{
    return esper_backend_copy_out(plan->backend, stream, to, esper_plan_data(plan, net_index, tensor),
                                  caller_bytes(plan, net_index, tensor, n_samples));
}

esper_status esper_plan_fill(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor,
                             float value, int n_samples)
{
    return esper_backend_fill(plan->backend, stream, esper_plan_data(plan, net_index, tensor), value,
                              caller_bytes(plan, net_index, tensor, n_samples) / sizeof(float));
}

const esper_launch *esper_plan_launch(const esper_plan *plan, esper_direction direction, int index)
{
    return index < plan->launches.n_together[direction] ? &plan->launches.together[direction][index] : NULL;
}

const esper_program *esper_plan_program(const esper_plan *plan, esper_direction direction, int net_index)
{
    assert(0 <= net_index && net_index < plan->n_nets);
    return &plan->launches.programs[direction][net_index];
}

static esper_cost total_cost(const esper_plan *plan, esper_direction direction)
{
    esper_cost total = {0};

    for (int i = 0; i < plan->launches.n_together[direction]; i++) {
        const esper_launch *launch = &plan->launches.together[direction][i];

        for (int l = 0; l < launch->n_lanes && launch->part != ESPER_PART_BEFORE; l++) {
            esper_cost cost = esper_op_cost(launch->kind, direction, &launch->lanes[l], plan->max_samples);

            total.flops += cost.flops;
            total.bytes += cost.bytes;
        }
    }
    return total;
}

esper_plan_stats esper_plan_stats_of(const esper_plan *plan)
{
    return (esper_plan_stats){
        .arena_bytes = plan->arena_room,
        .arena_bytes_unshared = plan->unshared_bytes,
        .table_bytes = plan->table_bytes,
        .n_forward = plan->launches.n_together[ESPER_FORWARD],
        .n_backward = plan->launches.n_together[ESPER_BACKWARD],
        .forward = total_cost(plan, ESPER_FORWARD),
        .backward = total_cost(plan, ESPER_BACKWARD),
    };
}
