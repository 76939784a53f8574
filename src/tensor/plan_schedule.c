/* Making a schedule: checks, the network as its backend likes it, and the steps of a pass. */
#include "tensor/plan_schedule.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* Elements of one tensor with all its samples. */
#define MAX_ARENA_COUNT (INT64_C(1) << 44)

/* ------------------------------------------------------------------------------------------------ checks */

/* Batches that no memory could hold would also overflow the sizes. */
static esper_status check_net(const esper_schedule_desc *desc)
{
    const esper_net *net = desc->net;

    ESPER_TRY(esper_net_status(net));
    for (int o = 0; o < net->n_ops; o++)
        if (net->ops[o].kind != ESPER_OP_ISOLATE && !esper_backend_supports(desc->backend, net->ops[o].kind))
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "backend %s has no %s", esper_backend_name(desc->backend),
                              esper_op_info_of(net->ops[o].kind)->name);
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].count > MAX_ARENA_COUNT / desc->max_samples)
            return ESPER_FAIL(ESPER_E_ARG, "%s: batches of %d are too large, use a smaller batch", net->tensors[t].name,
                              desc->max_samples);
    return ESPER_OK;
}

static bool is_frozen(uint64_t frozen, const esper_op *op)
{
    return (frozen >> op->region & 1) != 0;
}

/* What a pass must fulfil, so that kernels need not look. Ranks that share a batch count their values when they meet. */
static void find_pass_rules(esper_schedule *schedule, const esper_schedule_desc *desc)
{
    schedule->min_samples = 1;
    for (int o = 0; o < desc->net->n_ops; o++) {
        const esper_op *op = &desc->net->ops[o];
        const esper_tensor *x = &desc->net->tensors[op->in[0]];

        if (is_frozen(desc->frozen, op))
            continue;
        if (op->kind == ESPER_OP_DROPOUT || (op->kind == ESPER_OP_ATTENTION && op->attr.attention.drop > 0.0f))
            schedule->draws = true;
        if (op->kind == ESPER_OP_BATCH_NORM && !desc->spread && x->count == x->dim[0])
            schedule->min_samples = 2;
    }
}

/* ------------------------------------------------------------------------------------------------ the network */

/* Its lists alone: whoever shares the schedule does not depend on the network it was made for. */
static esper_status copy_net(const esper_net *net, esper_net *copy_out)
{
    size_t tensor_bytes = (size_t)net->n_tensors * sizeof(*net->tensors),
           op_bytes = (size_t)net->n_ops * sizeof(*net->ops);
    esper_net copy = *net;

    copy.boundaries = NULL;
    copy.n_boundaries = 0;
    copy.tensors = esper_mem_alloc(tensor_bytes > 0 ? tensor_bytes : 1);
    copy.ops = esper_mem_alloc(op_bytes > 0 ? op_bytes : 1);
    if (copy.tensors == NULL || copy.ops == NULL) {
        esper_net_fini(&copy);
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d operations", net->n_ops);
    }
    if (tensor_bytes > 0)
        memcpy(copy.tensors, net->tensors, tensor_bytes);
    if (op_bytes > 0)
        memcpy(copy.ops, net->ops, op_bytes);
    *copy_out = copy;
    return ESPER_OK;
}

/* As the backend likes it. Tensors keep their numbers. */
static esper_status take_net(esper_schedule *schedule, const esper_schedule_desc *desc)
{
    const esper_backend_ops *ops = desc->backend->ops;
    esper_status status = ESPER_E_UNSUPPORTED;

    if (ops->lower != NULL && schedule->precision == desc->backend->precision)
        status = ops->lower(desc->backend, desc->net, desc->max_samples, &schedule->net);
    if (status == ESPER_E_UNSUPPORTED)
        status = copy_net(desc->net, &schedule->net);
    ESPER_TRY(status);
    assert(schedule->net.n_tensors >= desc->net->n_tensors);
    schedule->net.hook = NULL;
    schedule->net.hook_context = NULL;
    schedule->table_bytes += esper_net_bytes(&schedule->net);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ steps */

esper_lane esper_schedule_shape(const esper_schedule *schedule, int o)
{
    esper_lane lane = esper_net_lane(&schedule->net, &schedule->net.ops[o]);

    lane.frozen = is_frozen(schedule->frozen, &schedule->net.ops[o]);
    lane.spread = schedule->spread && !lane.frozen; /* nothing is summed there */
    lane.precision = (uint8_t)schedule->precision;
    lane.cores = schedule->cores;
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        lane.in[i].add = (schedule->add_mask[o] & ESPER_BIT(i)) != 0;
    return lane;
}

/* isolate is no work. */
static bool runs(const esper_schedule *schedule, esper_direction direction, int o)
{
    return schedule->net.ops[o].kind != ESPER_OP_ISOLATE &&
           (direction == ESPER_FORWARD || (schedule->training && schedule->runs_back[o]));
}

/* What the backend is asked about: a launch that has shapes and no memory. */
static esper_launch launch_of(const esper_schedule *schedule, esper_direction direction, int o, const esper_lane *shape)
{
    const esper_op *op = &schedule->net.ops[o];

    return (esper_launch){
        .kind = op->kind, .direction = direction, .variant = op->variant, .n_lanes = 1, .lanes = shape};
}

/* Where the batch is spread over ranks, a launch that needs sums over all of it is two steps. */
static void push_steps(esper_schedule *schedule, const esper_backend *backend, esper_direction direction, int o)
{
    esper_lane shape = esper_schedule_shape(schedule, o);
    esper_launch launch = launch_of(schedule, direction, o, &shape);
    int *n = &schedule->n_steps[direction];
    esper_step *steps = schedule->steps + (direction == ESPER_BACKWARD ? schedule->n_steps[ESPER_FORWARD] : 0);
    size_t n_sums = 0, sums_at = 0;

    if (backend->ops->scratch != NULL)
        schedule->scratch[direction][o].bytes = backend->ops->scratch(backend, &launch, schedule->max_samples);
    if (shape.spread && backend->ops->sums != NULL)
        n_sums = backend->ops->sums(backend, &launch, &sums_at);
    if (n_sums == 0) {
        steps[(*n)++] = (esper_step){.op = o};
        return;
    }
    assert(sums_at % sizeof(double) == 0);
    assert(sums_at + n_sums * sizeof(double) <= schedule->scratch[direction][o].bytes);
    steps[(*n)++] = (esper_step){.op = o, .part = ESPER_PART_BEFORE, .n_sums = n_sums, .sums_at = sums_at};
    steps[(*n)++] = (esper_step){.op = o, .part = ESPER_PART_AFTER};
    if (n_sums > schedule->max_sums)
        schedule->max_sums = n_sums;
}

/* Puts steps that the backend can run in one go into chains. */
static void find_chains(esper_schedule *schedule, const esper_backend *backend, esper_direction direction)
{
    int begin = direction == ESPER_BACKWARD ? schedule->n_steps[ESPER_FORWARD] : 0;
    int end = begin + schedule->n_steps[direction], first = begin;

    for (int i = begin; i < end; i++) {
        bool goes_on = i > begin && backend->ops->chains != NULL;

        if (goes_on) {
            int o = schedule->steps[i].op, o_before = schedule->steps[i - 1].op;
            esper_lane shape = esper_schedule_shape(schedule, o),
                       shape_before = esper_schedule_shape(schedule, o_before);
            esper_launch launch = launch_of(schedule, direction, o, &shape);
            esper_launch before = launch_of(schedule, direction, o_before, &shape_before);

            goes_on = schedule->steps[i].part == ESPER_PART_WHOLE && schedule->steps[i - 1].part == ESPER_PART_WHOLE &&
                      backend->ops->chains(backend, &before, &launch);
        }
        first = goes_on ? first : i;
        schedule->chain[i] = 0;
        schedule->chain[first]++;
    }
}

static void find_steps(esper_schedule *schedule, const esper_backend *backend, esper_direction direction)
{
    int n_ops = schedule->net.n_ops;

    for (int k = 0; k < n_ops; k++) {
        int o = direction == ESPER_FORWARD ? k : n_ops - 1 - k;

        if (runs(schedule, direction, o))
            push_steps(schedule, backend, direction, o);
    }
    find_chains(schedule, backend, direction);
}

/* ------------------------------------------------------------------------------------------------ making one */

void *esper_plan_take(size_t n, size_t element_bytes, size_t *total)
{
    void *table = esper_mem_alloc((n > 0 ? n : 1) * element_bytes);

    if (table != NULL)
        *total += (n > 0 ? n : 1) * element_bytes;
    return table;
}

static void *take(esper_schedule *schedule, size_t n, size_t element_bytes)
{
    return esper_plan_take(n, element_bytes, &schedule->table_bytes);
}

/* The tables for all tensors or operations, and their lengths. */
#define TABLES(X)            \
    X(has_grad, n_tensors)   \
    X(home, n_tensors)       \
    X(data, n_tensors)       \
    X(grad, n_tensors)       \
    X(runs_back, n_ops)      \
    X(add_mask, n_ops)       \
    X(scratch[0], n_ops)     \
    X(scratch[1], n_ops)

static esper_status take_tables(esper_schedule *schedule)
{
    size_t n_tensors = (size_t)schedule->net.n_tensors, n_ops = (size_t)schedule->net.n_ops;

#define X(table, n) schedule->table = take(schedule, n, sizeof(*schedule->table));
    TABLES(X)
#undef X
#define X(table, n) || schedule->table == NULL
    if (false TABLES(X))
#undef X
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu tensors", n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        schedule->data[t].begin = schedule->data[t].end = ESPER_NEVER;
        schedule->grad[t].begin = schedule->grad[t].end = ESPER_NEVER;
        schedule->home[t] = (int)t;
    }
    for (size_t o = 0; o < n_ops; o++) {
        schedule->scratch[0][o].begin = schedule->scratch[0][o].end = ESPER_NEVER;
        schedule->scratch[1][o].begin = schedule->scratch[1][o].end = ESPER_NEVER;
        if (schedule->net.ops[o].kind == ESPER_OP_ISOLATE)
            schedule->home[schedule->net.ops[o].out[0]] = schedule->home[schedule->net.ops[o].in[0]];
    }
    return ESPER_OK;
}

static esper_status take_steps(esper_schedule *schedule)
{
    size_t n = 0;

    for (int o = 0; o < schedule->net.n_ops; o++)
        n += (size_t)runs(schedule, ESPER_FORWARD, o) + (size_t)runs(schedule, ESPER_BACKWARD, o);
    if (schedule->spread) /* some may be cut in two */
        n *= 2;
    schedule->steps = take(schedule, n, sizeof(*schedule->steps));
    schedule->chain = take(schedule, n, sizeof(*schedule->chain));
    if (schedule->steps == NULL || schedule->chain == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu steps", n);
    return ESPER_OK;
}

static esper_status make(esper_schedule *schedule, const esper_schedule_desc *desc)
{
    ESPER_TRY(check_net(desc));
    find_pass_rules(schedule, desc);
    ESPER_TRY(take_net(schedule, desc));
    ESPER_TRY(take_tables(schedule));
    if (desc->training)
        ESPER_TRY(esper_schedule_trace_gradients(schedule));
    ESPER_TRY(take_steps(schedule));
    find_steps(schedule, desc->backend, ESPER_FORWARD);
    find_steps(schedule, desc->backend, ESPER_BACKWARD);
    esper_schedule_find_times(schedule);
    return esper_schedule_place(schedule, desc->backend);
}

esper_status esper_schedule_open(const esper_schedule_desc *desc, esper_schedule **schedule_out)
{
    esper_schedule *schedule = esper_mem_alloc(sizeof(*schedule));
    esper_status status;

    assert(desc->max_samples > 0);
    if (schedule == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d operations", desc->net->n_ops);
    atomic_init(&schedule->n_holders, 1);
    esper_net_init(&schedule->net);
    schedule->max_samples = desc->max_samples;
    schedule->training = desc->training;
    schedule->spread = desc->spread;
    schedule->frozen = desc->frozen;
    schedule->precision = desc->exact ? ESPER_FP32 : desc->backend->precision;
    schedule->cores = desc->backend->has_cores;
    schedule->table_bytes = sizeof(*schedule);
    status = make(schedule, desc);
    if (status != ESPER_OK) {
        esper_schedule_release(schedule);
        return status;
    }
    *schedule_out = schedule;
    return ESPER_OK;
}

void esper_schedule_hold(esper_schedule *schedule)
{
    atomic_fetch_add_explicit(&schedule->n_holders, 1, memory_order_relaxed);
}

void esper_schedule_release(esper_schedule *schedule)
{
    int n_before = atomic_fetch_sub_explicit(&schedule->n_holders, 1, memory_order_acq_rel);

    assert(n_before > 0);
    if (n_before > 1)
        return;
#define X(table, n) esper_mem_free(schedule->table);
    TABLES(X)
#undef X
    esper_mem_free(schedule->steps);
    esper_mem_free(schedule->chain);
    esper_net_fini(&schedule->net);
    esper_mem_free(schedule);
}
