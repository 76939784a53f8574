/* Making and running a plan.
 *
 * Time is counted in operations: operation i of a network runs forward at time i and backward at time 2n-1-i, where n is
 * the number of its operations. A tensor's data must live from the time it is made to its last reader, its gradient from
 * the first consumer's backward operation to its producer's. Tensors whose times do not meet may share memory:
 *
 *     time      0 ........ n-1 | n ........ 2n-1
 *     data      ####------------------#            made at 0, read by an operation's backward pass
 *     gradient                    ####--           written, added to, read
 *
 * Steps, in order: the network as the backend likes it; which gradients are wanted; life times; offsets (largest first,
 * lowest free place); launches. */
#include "tensor/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { NEVER = -1, ARENA_ALIGN = 64 };

/* Elements of one tensor with all its samples. */
#define MAX_ARENA_COUNT (INT64_C(1) << 44)

/* A range of arena memory and the time it is needed. */
typedef struct extent {
    size_t bytes, offset;
    int    begin, end; /* first and last time, inclusive; begin NEVER = not needed */
    int    order;      /* settles ties, so that a layout depends on the net alone */
} extent;

typedef struct planned_net {
    esper_plan_net given;     /* its net is `lowered` where the backend has rewritten it */
    esper_net      lowered;
    extent        *data;      /* (n_tensors) of the arena; parameters have none */
    extent        *grad;      /* (n_tensors) */
    extent        *scratch[2]; /* (n_ops) by direction */
    int           *home;      /* (n_tensors) the tensor whose memory it uses: itself unless isolated */
    bool          *has_grad;  /* (n_tensors) a gradient is wanted and arrives */
    bool          *runs_back; /* (n_ops) */
    int           *chain_begin[2], *chain_end[2]; /* (n_ops) by direction: the operations it may be run in one go with */
    uint32_t      *add_mask;  /* (n_ops) inputs whose gradient is added to */
    size_t         arena_base;
    bool           draws;       /* it has dropout */
    bool           meets;       /* it has batch norm over ranks */
    int            min_samples; /* in training: batch norm needs two values for each channel, on all ranks together */
    int            next_op; /* while launches are merged */
} planned_net;

struct esper_plan {
    esper_backend  *backend;
    bool            training;
    int             max_samples;
    int             n_nets;
    planned_net    *nets;
    char           *arena;
    size_t          arena_bytes, unshared_bytes, table_bytes;
    size_t          arena_room; /* of the allocation: at least arena_bytes */
    int             n_launches[2]; /* by direction */
    esper_launch   *launches[2];   /* of all networks together */
    esper_program  *programs[2];   /* (n_nets) of each by itself */
    esper_program  *gradients;     /* (n_nets) forward and backward, the longest first: they own the memory of both */
    esper_lane     *lanes[2];      /* of both */
};

/* Tables are counted, so that the memory of a run can be predicted. */
static void *take(esper_plan *plan, size_t n, size_t element_bytes)
{
    void *table = esper_mem_alloc((n > 0 ? n : 1) * element_bytes);

    if (table != NULL)
        plan->table_bytes += (n > 0 ? n : 1) * element_bytes;
    return table;
}

/* ------------------------------------------------------------------------------------------------ gradients */

/* Whether a gradient can be of use: it leads to a parameter or to an input that wants one. */
static void mark_wanted(const esper_net *net, uint64_t frozen, bool *wanted)
{
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];

        wanted[t] = tensor->want_grad || (tensor->role == ESPER_ROLE_PARAM && (frozen >> tensor->region & 1) == 0);
    }
    for (int o = 0; o < net->n_ops; o++) {
        const esper_op *op = &net->ops[o];
        const esper_op_info *info = esper_op_info_of(op->kind);

        for (int i = 0; i < info->n_in; i++)
            if (op->in[i] != ESPER_NO_TENSOR && (info->grad_in & ESPER_BIT(i)) != 0 && wanted[op->in[i]])
                wanted[op->out[0]] = true;
    }
}

/* Walks back from the loss (or the output whose gradient the caller gives) and keeps what is wanted. The first operation
 * to be met writes a gradient, later ones add to it. */
static void trace_gradients(planned_net *planned, const bool *wanted)
{
    const esper_net *net = planned->given.net;

    if (net->loss == ESPER_NO_TENSOR && net->output != ESPER_NO_TENSOR)
        planned->has_grad[net->output] = wanted[net->output];
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].take_grad)
            planned->has_grad[t] = wanted[t];
    for (int o = net->n_ops - 1; o >= 0; o--) {
        const esper_op *op = &net->ops[o];
        const esper_op_info *info = esper_op_info_of(op->kind);

        if (!(planned->has_grad[op->out[0]] || (op->out[0] == net->loss && wanted[op->out[0]])))
            continue;
        for (int i = 0; i < info->n_in; i++) {
            int t = op->in[i];

            if (t == ESPER_NO_TENSOR || (info->grad_in & ESPER_BIT(i)) == 0 || !wanted[t])
                continue;
            if (planned->has_grad[t])
                planned->add_mask[o] |= ESPER_BIT(i);
            planned->has_grad[t] = true;
            planned->runs_back[o] = true;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ life times */

static void live_at(extent *range, int time)
{
    if (range->begin == NEVER || time < range->begin)
        range->begin = time;
    if (time > range->end)
        range->end = time;
}

static bool lives_in_arena(const esper_tensor *tensor)
{
    return tensor->role == ESPER_ROLE_INPUT || tensor->role == ESPER_ROLE_ACTIVATION;
}

/* Tensors the caller reads or writes between passes keep their memory to themselves all the time. */
static bool is_shared_with_caller(const esper_net *net, int t)
{
    return net->tensors[t].role == ESPER_ROLE_INPUT || net->tensors[t].keep || t == net->output;
}

/* When an operation runs. */
static int time_of(const planned_net *planned, esper_direction direction, int o)
{
    return direction == ESPER_FORWARD ? o : 2 * planned->given.net->n_ops - 1 - o;
}

/* Operations of a chain run by turns, a few results at a time: what one of them needs must be there for all of them. */
static void live_with(const planned_net *planned, extent *range, esper_direction direction, int o)
{
    live_at(range, time_of(planned, direction, planned->chain_begin[direction][o]));
    live_at(range, time_of(planned, direction, planned->chain_end[direction][o]));
}

static void find_data_times(planned_net *planned, bool training)
{
    const esper_net *net = planned->given.net;
    int n = net->n_ops, last = training ? 2 * n : n;

    for (int t = 0; t < net->n_tensors; t++)
        if (lives_in_arena(&net->tensors[t]) && is_shared_with_caller(net, t)) {
            live_at(&planned->data[planned->home[t]], 0);
            live_at(&planned->data[planned->home[t]], last);
        }
    for (int o = 0; o < n; o++) {
        const esper_op *op = &net->ops[o];
        const esper_op_info *info = esper_op_info_of(op->kind);
        bool back = training && planned->runs_back[o];

        for (int i = 0; i < info->n_in; i++)
            if (op->in[i] != ESPER_NO_TENSOR) {
                extent *data = &planned->data[planned->home[op->in[i]]];

                live_with(planned, data, ESPER_FORWARD, o);
                if (back && (info->saved_in & ESPER_BIT(i)) != 0)
                    live_with(planned, data, ESPER_BACKWARD, o);
            }
        for (int i = 0; i < info->n_out; i++) {
            extent *data = &planned->data[planned->home[op->out[i]]];

            live_with(planned, data, ESPER_FORWARD, o);
            if (back && (info->saved_out & ESPER_BIT(i)) != 0)
                live_with(planned, data, ESPER_BACKWARD, o);
        }
    }
}

/* The caller reads the gradients of inputs, and gives those he said, and that of the output where there is no loss to begin
 * from. */
static bool grad_is_shared_with_caller(const esper_net *net, int t)
{
    return net->tensors[t].role == ESPER_ROLE_INPUT || net->tensors[t].take_grad ||
           (t == net->output && net->loss == ESPER_NO_TENSOR);
}

static void find_grad_times(planned_net *planned)
{
    const esper_net *net = planned->given.net;
    int n = net->n_ops;

    for (int o = n - 1; o >= 0; o--) {
        const esper_op *op = &net->ops[o];
        const esper_op_info *info = esper_op_info_of(op->kind);

        if (!planned->runs_back[o])
            continue;
        if (planned->has_grad[op->out[0]])
            live_with(planned, &planned->grad[op->out[0]], ESPER_BACKWARD, o);
        for (int i = 0; i < info->n_in; i++)
            if (op->in[i] != ESPER_NO_TENSOR && (info->grad_in & ESPER_BIT(i)) != 0 && planned->has_grad[op->in[i]])
                live_with(planned, &planned->grad[op->in[i]], ESPER_BACKWARD, o);
    }
    for (int t = 0; t < net->n_tensors; t++)
        if (planned->has_grad[t] && grad_is_shared_with_caller(net, t)) {
            live_at(&planned->grad[t], 0);
            live_at(&planned->grad[t], 2 * n);
        }
}

/* ------------------------------------------------------------------------------------------------ offsets */

static int by_size_then_time(const void *a, const void *b)
{
    const extent *left = *(const extent *const *)a, *right = *(const extent *const *)b;

    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    if (left->begin != right->begin)
        return left->begin - right->begin;
    return left->order - right->order;
}

static bool times_meet(const extent *a, const extent *b)
{
    return a->begin <= b->end && b->begin <= a->end;
}

/* The lowest offset at which `wanted` meets none of the extents placed before it. */
static size_t lowest_free(extent *const *placed, int n_placed, const extent *wanted)
{
    size_t offset = 0;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int i = 0; i < n_placed; i++) {
            const extent *other = placed[i];

            if (times_meet(other, wanted) && offset < other->offset + other->bytes &&
                other->offset < offset + wanted->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* Places all extents of one network; returns how far its part of the arena reaches. */
static size_t place_extents(extent **list, int n, size_t *unshared)
{
    size_t reach = 0;

    for (int i = 0; i < n; i++)
        list[i]->order = i;
    qsort(list, (size_t)n, sizeof(extent *), by_size_then_time);
    for (int i = 0; i < n; i++) {
        list[i]->offset = lowest_free(list, i, list[i]);
        *unshared += list[i]->bytes;
        if (list[i]->offset + list[i]->bytes > reach)
            reach = list[i]->offset + list[i]->bytes;
    }
    return reach;
}

static size_t align_bytes(size_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static size_t arena_bytes_of(const esper_plan *plan, const esper_tensor *tensor)
{
    return align_bytes(esper_backend_bytes(plan->backend, tensor, plan->max_samples));
}

/* Batches that no memory could hold would also overflow the sizes. */
static esper_status check_sizes(const esper_plan *plan, const esper_net *net)
{
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].count > MAX_ARENA_COUNT / plan->max_samples)
            return ESPER_FAIL(ESPER_E_ARG, "%s: batches of %d are too large, use a smaller batch", net->tensors[t].name,
                              plan->max_samples);
    return ESPER_OK;
}

static esper_status place_net(esper_plan *plan, planned_net *planned)
{
    const esper_net *net = planned->given.net;
    extent **list = esper_mem_alloc((size_t)(2 * net->n_tensors + 2 * net->n_ops + 1) * sizeof(*list));
    int n = 0;

    if (list == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d tensors", net->n_tensors);
    for (int t = 0; t < net->n_tensors; t++) {
        if (!lives_in_arena(&net->tensors[t]))
            continue;
        planned->data[t].bytes = planned->grad[t].bytes = arena_bytes_of(plan, &net->tensors[t]);
        if (planned->data[t].begin != NEVER)
            list[n++] = &planned->data[t];
        if (planned->grad[t].begin != NEVER)
            list[n++] = &planned->grad[t];
    }
    for (int d = 0; d < 2; d++)
        for (int o = 0; o < net->n_ops; o++)
            if (planned->scratch[d][o].begin != NEVER)
                list[n++] = &planned->scratch[d][o];
    planned->arena_base = plan->arena_bytes;
    plan->arena_bytes += place_extents(list, n, &plan->unshared_bytes);
    esper_mem_free(list);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ lanes and launches */

static void *data_of(const esper_plan *plan, const planned_net *planned, int t)
{
    const esper_tensor *tensor = &planned->given.net->tensors[t];
    const extent *data = &planned->data[planned->home[t]];

    if (tensor->role == ESPER_ROLE_PARAM)
        return esper_slab_at(planned->given.slab, ESPER_FAMILY_PARAM, tensor);
    if (tensor->role == ESPER_ROLE_BUFFER)
        return esper_slab_at(planned->given.slab, ESPER_FAMILY_BUFFER, tensor);
    return data->begin == NEVER ? NULL : plan->arena + planned->arena_base + data->offset;
}

static void *grad_of(const esper_plan *plan, const planned_net *planned, int t)
{
    const esper_tensor *tensor = &planned->given.net->tensors[t];

    if (!plan->training || !planned->has_grad[t])
        return NULL;
    if (tensor->role == ESPER_ROLE_PARAM)
        return esper_slab_at(planned->given.slab, ESPER_FAMILY_GRAD, tensor);
    return planned->grad[t].begin == NEVER ? NULL : plan->arena + planned->arena_base + planned->grad[t].offset;
}

/* The tensor's shape, without its memory. */
static esper_view shape_of(const planned_net *planned, int t)
{
    esper_view view = {.dim = {1, 1, 1, 1}};

    if (t == ESPER_NO_TENSOR)
        return view;
    view.count = planned->given.net->tensors[t].count;
    view.rank = planned->given.net->tensors[t].rank;
    memcpy(view.dim, planned->given.net->tensors[t].dim, sizeof(view.dim));
    return view;
}

static esper_lane lane_shape_of(const planned_net *planned, int o)
{
    const esper_op *op = &planned->given.net->ops[o];
    const esper_op_info *info = esper_op_info_of(op->kind);
    esper_lane lane = {.attr = op->attr, .pass = planned->given.pass, .exchange = planned->given.exchange};

    for (int i = 0; i < info->n_in; i++) {
        lane.in[i] = shape_of(planned, op->in[i]);
        lane.in[i].add = (planned->add_mask[o] & ESPER_BIT(i)) != 0;
    }
    for (int i = 0; i < info->n_out; i++)
        lane.out[i] = shape_of(planned, op->out[i]);
    return lane;
}

static void give_memory(const esper_plan *plan, const planned_net *planned, int t, esper_view *view)
{
    if (t == ESPER_NO_TENSOR)
        return;
    view->data = data_of(plan, planned, t);
    view->grad = grad_of(plan, planned, t);
}

static esper_lane lane_of(const esper_plan *plan, const planned_net *planned, int o, esper_direction direction)
{
    const esper_op *op = &planned->given.net->ops[o];
    const esper_op_info *info = esper_op_info_of(op->kind);
    const extent *scratch = &planned->scratch[direction][o];
    esper_lane lane = lane_shape_of(planned, o);

    for (int i = 0; i < info->n_in; i++) {
        give_memory(plan, planned, op->in[i], &lane.in[i]);
        if ((info->grad_in & ESPER_BIT(i)) == 0)
            lane.in[i].grad = NULL;
    }
    for (int i = 0; i < info->n_out; i++)
        give_memory(plan, planned, op->out[i], &lane.out[i]);
    if (scratch->begin != NEVER)
        lane.scratch = plan->arena + planned->arena_base + scratch->offset;
    return lane;
}

/* Whether two operations could share a chain, were their launches to follow each other. */
static bool could_chain(const esper_plan *plan, const planned_net *planned, esper_direction direction, int before,
                        int o)
{
    const esper_op *ops = planned->given.net->ops;
    esper_lane lanes[2] = {lane_shape_of(planned, before), lane_shape_of(planned, o)};
    esper_launch first = {ops[before].kind, direction, ops[before].variant, 1, &lanes[0]};
    esper_launch second = {ops[o].kind, direction, ops[o].variant, 1, &lanes[1]};

    return plan->backend->ops->chains != NULL && plan->backend->ops->chains(plan->backend, &first, &second);
}

/* What find_chains will find: whatever runs in one go must live as long as the longest of it. */
static void find_chain_bounds(const esper_plan *plan, planned_net *planned, esper_direction direction)
{
    int n = planned->given.net->n_ops, begin = 0, before = NEVER;

    for (int k = 0; k < n; k++) {
        int o = direction == ESPER_FORWARD ? k : n - 1 - k;

        planned->chain_begin[direction][o] = planned->chain_end[direction][o] = o;
        if (planned->given.net->ops[o].kind == ESPER_OP_ISOLATE ||
            (direction == ESPER_BACKWARD && !planned->runs_back[o]))
            continue;
        if (before == NEVER || !could_chain(plan, planned, direction, before, o))
            begin = o;
        planned->chain_begin[direction][o] = begin;
        for (int member = begin; member != o; member += direction == ESPER_FORWARD ? 1 : -1)
            planned->chain_end[direction][member] = o;
        before = o;
    }
}

/* Memory that an operation's kernels want for themselves, while they run. */
static void find_scratch(const esper_plan *plan, planned_net *planned)
{
    const esper_net *net = planned->given.net;

    for (int d = 0; d < 2 && plan->backend->ops->scratch != NULL; d++)
        for (int o = 0; o < net->n_ops; o++) {
            esper_lane lane = lane_shape_of(planned, o);
            esper_launch launch = {net->ops[o].kind, (esper_direction)d, net->ops[o].variant, 1, &lane};
            extent *scratch = &planned->scratch[d][o];

            if (net->ops[o].kind == ESPER_OP_ISOLATE || (d == ESPER_BACKWARD && !planned->runs_back[o]))
                continue;
            scratch->bytes = align_bytes(plan->backend->ops->scratch(plan->backend, &launch, plan->max_samples));
            if (scratch->bytes > 0)
                live_with(planned, scratch, (esper_direction)d, o);
        }
}

/* The network's next operation that is work (isolate is none); NULL when there is no other. */
static const esper_op *head_of(planned_net *planned)
{
    const esper_net *net = planned->given.net;

    while (planned->next_op < net->n_ops && net->ops[planned->next_op].kind == ESPER_OP_ISOLATE)
        planned->next_op++;
    return planned->next_op < net->n_ops ? &net->ops[planned->next_op] : NULL;
}

/* The operation that stands first among the networks' next ones; NULL when all are through. */
static const esper_op *first_head(const esper_plan *plan)
{
    const esper_op *first = NULL;

    for (int k = 0; k < plan->n_nets; k++) {
        const esper_op *head = head_of(&plan->nets[k]);

        if (head != NULL && (first == NULL || head->place < first->place))
            first = head;
    }
    return first;
}

static void push_launch(esper_plan *plan, const esper_launch *launch)
{
    if (launch->n_lanes > 0)
        plan->launches[launch->direction][plan->n_launches[launch->direction]++] = *launch;
}

/* Adds the network's lane to a launch of several, and to its own program. */
static void push_lane(esper_plan *plan, int k, esper_launch *launch, esper_lane *lanes)
{
    planned_net *planned = &plan->nets[k];
    esper_program *program = &plan->programs[launch->direction][k];
    esper_lane *lane = &lanes[launch->n_lanes++];

    *lane = lane_of(plan, planned, planned->next_op, launch->direction);
    program->launches[program->n_launches++] =
        (esper_launch){launch->kind, launch->direction, launch->variant, 1, lane};
}

/* Adds a launch with a lane for each network whose next operation is `first` too, and one for those of them whose
 * operation also runs backward. */
static void merge_launch(esper_plan *plan, const esper_op *first, esper_lane **forward_lanes,
                         esper_lane **backward_lanes)
{
    esper_launch forward = {first->kind, ESPER_FORWARD, first->variant, 0, *forward_lanes};
    esper_launch backward = {first->kind, ESPER_BACKWARD, first->variant, 0, *backward_lanes};
    uint32_t place = first->place;

    for (int k = 0; k < plan->n_nets; k++) {
        planned_net *planned = &plan->nets[k];
        const esper_op *head = head_of(planned);

        if (head == NULL || head->kind != forward.kind || head->place != place || head->variant != forward.variant)
            continue;
        push_lane(plan, k, &forward, *forward_lanes);
        if (plan->training && planned->runs_back[planned->next_op])
            push_lane(plan, k, &backward, *backward_lanes);
        planned->next_op++;
    }
    push_launch(plan, &forward);
    push_launch(plan, &backward);
    *forward_lanes += forward.n_lanes;
    *backward_lanes += backward.n_lanes;
}

static void reverse_launches(esper_launch *launches, int n)
{
    for (int i = 0; i < n / 2; i++) {
        esper_launch swap = launches[i];

        launches[i] = launches[n - 1 - i];
        launches[n - 1 - i] = swap;
    }
}

/* Puts launches that the backend can run in one go into chains. */
static void find_chains(const esper_plan *plan, esper_program *program)
{
    const esper_launch *launches = program->launches;
    int first = 0;

    for (int i = 0; i < program->n_launches; i++) {
        bool goes_on = i > 0 && plan->backend->ops->chains != NULL &&
                       plan->backend->ops->chains(plan->backend, &launches[i - 1], &launches[i]);

        first = goes_on ? first : i;
        program->chain[i] = 0;
        program->chain[first]++;
    }
}

static double count_flops(const esper_plan *plan, const esper_program *program)
{
    double flops = 0.0;

    for (int i = 0; i < program->n_launches; i++) {
        const esper_launch *launch = &program->launches[i];

        flops += esper_op_cost(launch->kind, launch->direction, launch->lanes, plan->max_samples).flops;
    }
    return flops;
}

/* Moves the backward program to where the forward one ends: together they are a third. */
static void join_programs(esper_plan *plan, int k)
{
    esper_program *forward = &plan->programs[ESPER_FORWARD][k], *backward = &plan->programs[ESPER_BACKWARD][k];
    esper_launch *end = forward->launches + forward->n_launches;

    reverse_launches(backward->launches, backward->n_launches);
    memmove(end, backward->launches, (size_t)backward->n_launches * sizeof(*end));
    backward->launches = end;
    backward->chain = forward->chain + forward->n_launches;
    find_chains(plan, forward);
    find_chains(plan, backward);
    forward->meets = backward->meets = plan->gradients[k].meets = plan->nets[k].meets;
    plan->gradients[k].n_launches = forward->n_launches + backward->n_launches;
    plan->gradients[k].flops = count_flops(plan, &plan->gradients[k]);
}

/* Threads that begin with long programs end at about the same time. Networks that are alike keep their order. */
static void sort_programs(esper_program *programs, int n_programs)
{
    for (int k = 1; k < n_programs; k++) {
        esper_program moved = programs[k];
        int at = k;

        for (; at > 0 && programs[at - 1].flops < moved.flops; at--)
            programs[at] = programs[at - 1];
        programs[at] = moved;
    }
}

static void make_launches(esper_plan *plan)
{
    esper_lane *forward = plan->lanes[ESPER_FORWARD], *backward = plan->lanes[ESPER_BACKWARD];
    const esper_op *first;

    while ((first = first_head(plan)) != NULL)
        merge_launch(plan, first, &forward, &backward);
    reverse_launches(plan->launches[ESPER_BACKWARD], plan->n_launches[ESPER_BACKWARD]);
    for (int k = 0; k < plan->n_nets; k++)
        join_programs(plan, k);
    sort_programs(plan->gradients, plan->n_nets);
}

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status take_tables(esper_plan *plan, planned_net *planned)
{
    size_t n_tensors = (size_t)planned->given.net->n_tensors, n_ops = (size_t)planned->given.net->n_ops;

    planned->data = take(plan, n_tensors, sizeof(*planned->data));
    planned->grad = take(plan, n_tensors, sizeof(*planned->grad));
    planned->scratch[0] = take(plan, n_ops, sizeof(extent));
    planned->scratch[1] = take(plan, n_ops, sizeof(extent));
    for (int d = 0; d < 2; d++) {
        planned->chain_begin[d] = take(plan, n_ops, sizeof(int));
        planned->chain_end[d] = take(plan, n_ops, sizeof(int));
        if (planned->chain_begin[d] == NULL || planned->chain_end[d] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu operations", n_ops);
    }
    planned->home = take(plan, n_tensors, sizeof(*planned->home));
    planned->has_grad = take(plan, n_tensors, sizeof(*planned->has_grad));
    planned->runs_back = take(plan, n_ops, sizeof(*planned->runs_back));
    planned->add_mask = take(plan, n_ops, sizeof(*planned->add_mask));
    if (planned->data == NULL || planned->grad == NULL || planned->scratch[0] == NULL || planned->scratch[1] == NULL ||
        planned->home == NULL || planned->has_grad == NULL || planned->runs_back == NULL || planned->add_mask == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu tensors", n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        planned->data[t].begin = planned->data[t].end = NEVER;
        planned->grad[t].begin = planned->grad[t].end = NEVER;
        planned->home[t] = (int)t;
    }
    for (size_t o = 0; o < n_ops; o++) {
        const esper_op *op = &planned->given.net->ops[o];

        planned->scratch[0][o].begin = planned->scratch[1][o].begin = NEVER;
        planned->scratch[0][o].end = planned->scratch[1][o].end = NEVER;
        if (op->kind == ESPER_OP_ISOLATE)
            planned->home[op->out[0]] = planned->home[op->in[0]];
    }
    return ESPER_OK;
}

static esper_status check_supported(const esper_plan *plan, const esper_net *net)
{
    for (int o = 0; o < net->n_ops; o++)
        if (net->ops[o].kind != ESPER_OP_ISOLATE && !esper_backend_supports(plan->backend, net->ops[o].kind))
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "backend %s has no %s", esper_backend_name(plan->backend),
                              esper_op_info_of(net->ops[o].kind)->name);
    return ESPER_OK;
}

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

/* What a pass must fulfil, so that kernels need not look. */
static void find_pass_rules(planned_net *planned)
{
    const esper_net *net = planned->given.net;

    planned->min_samples = 1;
    for (int o = 0; o < net->n_ops; o++) {
        const esper_op *op = &net->ops[o];
        const esper_tensor *x = &net->tensors[op->in[0]];

        if (op->kind == ESPER_OP_DROPOUT || (op->kind == ESPER_OP_ATTENTION && op->attr.attention.drop > 0.0f))
            planned->draws = true;
        if (op->kind != ESPER_OP_BATCH_NORM)
            continue;
        if (planned->given.exchange != NULL)
            planned->meets = true; /* and the ranks count their values when they meet */
        else if (x->count == x->dim[0])
            planned->min_samples = 2;
    }
}

/* From now on the network is what the backend makes of it. */
static esper_status lower_net(esper_plan *plan, planned_net *planned)
{
    const esper_backend_ops *ops = plan->backend->ops;
    esper_status status = ESPER_E_UNSUPPORTED;

    if (ops->lower != NULL)
        status = ops->lower(plan->backend, planned->given.net, plan->max_samples, &planned->lowered);
    if (status == ESPER_E_UNSUPPORTED)
        return ESPER_OK;
    ESPER_TRY(status);
    planned->given.net = &planned->lowered;
    plan->table_bytes += esper_net_bytes(&planned->lowered);
    return ESPER_OK;
}

static esper_status check_net(const esper_plan *plan, const planned_net *planned)
{
    ESPER_TRY(esper_net_status(planned->given.net));
    ESPER_TRY(check_supported(plan, planned->given.net));
    ESPER_TRY(check_slab(plan, planned->given.net, planned->given.slab));
    return check_sizes(plan, planned->given.net);
}

static esper_status plan_net(esper_plan *plan, planned_net *planned)
{
    const esper_net *net;
    bool *wanted;

    ESPER_TRY(check_net(plan, planned));
    find_pass_rules(planned);
    ESPER_TRY(lower_net(plan, planned));
    ESPER_TRY(take_tables(plan, planned));
    net = planned->given.net;
    if (plan->training) {
        wanted = esper_mem_alloc((size_t)net->n_tensors * sizeof(*wanted) + 1);
        if (wanted == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d tensors", net->n_tensors);
        mark_wanted(net, planned->given.frozen, wanted);
        trace_gradients(planned, wanted);
        esper_mem_free(wanted);
    }
    find_chain_bounds(plan, planned, ESPER_FORWARD);
    find_chain_bounds(plan, planned, ESPER_BACKWARD);
    if (plan->training)
        find_grad_times(planned);
    find_data_times(planned, plan->training);
    find_scratch(plan, planned);
    return place_net(plan, planned);
}

static esper_status take_programs(esper_plan *plan)
{
    plan->gradients = take(plan, (size_t)plan->n_nets, sizeof(esper_program));
    plan->programs[ESPER_FORWARD] = take(plan, (size_t)plan->n_nets, sizeof(esper_program));
    plan->programs[ESPER_BACKWARD] = take(plan, (size_t)plan->n_nets, sizeof(esper_program));
    if (plan->gradients == NULL || plan->programs[ESPER_FORWARD] == NULL || plan->programs[ESPER_BACKWARD] == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d networks", plan->n_nets);
    for (int k = 0; k < plan->n_nets; k++) {
        esper_program *both = &plan->gradients[k];
        size_t n_ops = (size_t)plan->nets[k].given.net->n_ops;

        both->launches = take(plan, 2 * n_ops, sizeof(esper_launch));
        both->chain = take(plan, 2 * n_ops, sizeof(int));
        if (both->launches == NULL || both->chain == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu operations", n_ops);
        plan->programs[ESPER_FORWARD][k] = *both;
        plan->programs[ESPER_BACKWARD][k].launches = both->launches + n_ops;
    }
    return ESPER_OK;
}

static esper_status take_launches(esper_plan *plan)
{
    size_t n_ops = 0;

    for (int k = 0; k < plan->n_nets; k++)
        n_ops += (size_t)plan->nets[k].given.net->n_ops;
    for (int d = 0; d < 2; d++) {
        plan->launches[d] = take(plan, n_ops, sizeof(esper_launch));
        plan->lanes[d] = take(plan, n_ops, sizeof(esper_lane));
        if (plan->launches[d] == NULL || plan->lanes[d] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu operations", n_ops);
    }
    return take_programs(plan);
}

/* Gradients nobody writes under this plan must read as zero, whatever an earlier plan left there. */
static void clear_gradients(const esper_slab *slab)
{
    if (slab->family[ESPER_FAMILY_GRAD] != NULL)
        memset(slab->family[ESPER_FAMILY_GRAD], 0, (size_t)esper_slab_count(slab, ESPER_FAMILY_GRAD) * sizeof(float));
}

/* Memory of the caller's that nobody has written yet reads as zero, whatever was there before. */
static void clear_shared(esper_plan *plan)
{
    for (int k = 0; k < plan->n_nets; k++) {
        const planned_net *planned = &plan->nets[k];

        for (int t = 0; t < planned->given.net->n_tensors; t++)
            if (is_shared_with_caller(planned->given.net, t) && planned->data[t].begin != NEVER)
                memset(plan->arena + planned->arena_base + planned->data[t].offset, 0, planned->data[t].bytes);
    }
}

/* The arena of `old` if there is one and it is large enough, or a new one: larger than needed where the network is growing,
 * so that the next plan finds room. */
static esper_status take_arena(esper_plan *plan, esper_plan *old)
{
    size_t room = old == NULL ? plan->arena_bytes : plan->arena_bytes + plan->arena_bytes / 2;
    esper_status status;
    void *arena = NULL;

    if (old != NULL && old->arena_room >= plan->arena_bytes) {
        plan->arena = old->arena;
        plan->arena_room = old->arena_room;
        old->arena = NULL;
        clear_shared(plan);
        return ESPER_OK;
    }
    if (room == 0)
        return ESPER_OK;
    status = esper_backend_alloc(plan->backend, room, &arena);
    if (status == ESPER_E_NOMEM)
        return ESPER_FAIL(status, "%zu bytes for the activations of batches of %d: a smaller batch needs less", room,
                          plan->max_samples);
    ESPER_TRY(status);
    plan->arena = arena;
    plan->arena_room = room;
    return ESPER_OK;
}

/* `old` loses its arena at the last point where this can fail. */
static esper_status build(esper_plan *plan, const esper_plan_desc *desc, esper_plan *old)
{
    plan->nets = take(plan, (size_t)desc->n_nets, sizeof(*plan->nets));
    if (plan->nets == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d networks", desc->n_nets);
    for (int k = 0; k < desc->n_nets; k++) {
        plan->nets[k].given = desc->nets[k];
        plan->n_nets = k + 1;
        ESPER_TRY(plan_net(plan, &plan->nets[k]));
    }
    ESPER_TRY(take_launches(plan));
    ESPER_TRY(take_arena(plan, old));
    make_launches(plan);
    for (int k = 0; k < plan->n_nets && plan->training; k++)
        clear_gradients(plan->nets[k].given.slab);
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

static void close_net(planned_net *planned)
{
    esper_mem_free(planned->data);
    esper_mem_free(planned->grad);
    for (int d = 0; d < 2; d++) {
        esper_mem_free(planned->chain_begin[d]);
        esper_mem_free(planned->chain_end[d]);
    }
    esper_mem_free(planned->scratch[0]);
    esper_mem_free(planned->scratch[1]);
    esper_mem_free(planned->home);
    esper_mem_free(planned->has_grad);
    esper_mem_free(planned->runs_back);
    esper_mem_free(planned->add_mask);
    esper_net_fini(&planned->lowered);
}

void esper_plan_close(esper_plan *plan)
{
    if (plan == NULL)
        return;
    for (int d = 0; d < 2; d++) {
        esper_mem_free(plan->launches[d]);
        esper_mem_free(plan->lanes[d]);
        esper_mem_free(plan->programs[d]);
    }
    for (int k = 0; k < plan->n_nets && plan->gradients != NULL; k++) {
        esper_mem_free(plan->gradients[k].launches);
        esper_mem_free(plan->gradients[k].chain);
    }
    esper_mem_free(plan->gradients);
    for (int k = 0; k < plan->n_nets; k++)
        close_net(&plan->nets[k]);
    if (plan->arena != NULL)
        esper_backend_release(plan->backend, plan->arena);
    esper_mem_free(plan->nets);
    esper_mem_free(plan);
}

/* ------------------------------------------------------------------------------------------------ running */

static esper_status check_pass(const esper_plan *plan, const planned_net *planned)
{
    const esper_pass *pass = planned->given.pass;

    if (pass->n_samples < 1 || pass->n_samples > plan->max_samples)
        return ESPER_FAIL(ESPER_E_ARG, "batch of %d samples: this plan takes 1 to %d", pass->n_samples,
                          plan->max_samples);
    if (pass->training && pass->n_samples < planned->min_samples)
        return ESPER_FAIL(ESPER_E_ARG,
                          "batch norm cannot train on one value for each channel: use batches of 2 or more");
    if (pass->training && planned->draws && pass->sample_id == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "dropout needs the samples' ids");
    return ESPER_OK;
}

static esper_status check_passes(const esper_plan *plan, bool backward)
{
    if (backward && !plan->training)
        return ESPER_FAIL(ESPER_E_STATE, "this plan has no backward pass");
    for (int k = 0; k < plan->n_nets; k++)
        ESPER_TRY(check_pass(plan, &plan->nets[k]));
    return ESPER_OK;
}

static esper_status run(esper_plan *plan, esper_direction direction)
{
    const esper_backend_ops *ops = plan->backend->ops;

    ESPER_TRY(check_passes(plan, direction == ESPER_BACKWARD));
    if (ops->enqueue_programs != NULL)
        return ops->enqueue_programs(plan->backend, NULL, plan->programs[direction], plan->n_nets);
    for (int i = 0; i < plan->n_launches[direction]; i++)
        ESPER_TRY(esper_backend_enqueue(plan->backend, NULL, &plan->launches[direction][i]));
    return ESPER_OK;
}

esper_status esper_plan_forward(esper_plan *plan)
{
    return run(plan, ESPER_FORWARD);
}

esper_status esper_plan_backward(esper_plan *plan)
{
    return run(plan, ESPER_BACKWARD);
}

esper_status esper_plan_gradients(esper_plan *plan)
{
    const esper_backend_ops *ops = plan->backend->ops;

    ESPER_TRY(check_passes(plan, true));
    if (ops->enqueue_programs != NULL)
        return ops->enqueue_programs(plan->backend, NULL, plan->gradients, plan->n_nets);
    ESPER_TRY(run(plan, ESPER_FORWARD));
    return run(plan, ESPER_BACKWARD);
}

static esper_status run_one(esper_plan *plan, esper_backend_stream *stream, const esper_program *program)
{
    const esper_backend_ops *ops = plan->backend->ops;

    if (ops->enqueue_programs != NULL)
        return ops->enqueue_programs(plan->backend, stream, program, 1);
    for (int i = 0; i < program->n_launches; i++)
        ESPER_TRY(esper_backend_enqueue(plan->backend, stream, &program->launches[i]));
    return ESPER_OK;
}

esper_status esper_plan_forward_one(esper_plan *plan, esper_backend_stream *stream, int net_index)
{
    ESPER_TRY(check_pass(plan, &plan->nets[net_index]));
    return run_one(plan, stream, &plan->programs[ESPER_FORWARD][net_index]);
}

esper_status esper_plan_gradients_one(esper_plan *plan, esper_backend_stream *stream, int net_index)
{
    if (!plan->training)
        return ESPER_FAIL(ESPER_E_STATE, "this plan has no backward pass");
    ESPER_TRY(esper_plan_forward_one(plan, stream, net_index));
    return run_one(plan, stream, &plan->programs[ESPER_BACKWARD][net_index]);
}

void *esper_plan_data(const esper_plan *plan, int net_index, int tensor)
{
    return tensor == ESPER_NO_TENSOR ? NULL : data_of(plan, &plan->nets[net_index], tensor);
}

float *esper_plan_grad(const esper_plan *plan, int net_index, int tensor)
{
    return tensor == ESPER_NO_TENSOR ? NULL : grad_of(plan, &plan->nets[net_index], tensor);
}

const esper_launch *esper_plan_launch(const esper_plan *plan, esper_direction direction, int index)
{
    return index < plan->n_launches[direction] ? &plan->launches[direction][index] : NULL;
}

const esper_program *esper_plan_program(const esper_plan *plan, esper_direction direction, int net_index)
{
    return &plan->programs[direction][net_index];
}

static esper_cost total_cost(const esper_plan *plan, esper_direction direction)
{
    esper_cost total = {0};

    for (int i = 0; i < plan->n_launches[direction]; i++) {
        const esper_launch *launch = &plan->launches[direction][i];

        for (int l = 0; l < launch->n_lanes; l++) {
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
        .n_forward = plan->n_launches[ESPER_FORWARD],
        .n_backward = plan->n_launches[ESPER_BACKWARD],
        .forward = total_cost(plan, ESPER_FORWARD),
        .backward = total_cost(plan, ESPER_BACKWARD),
    };
}
