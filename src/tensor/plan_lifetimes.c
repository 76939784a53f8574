/* Which gradients are wanted, and from when to when a network's memory is needed.
 *
 * A tensor's data must live from the time it is made to its last reader, its gradient from the first consumer's backward
 * operation to its producer's:
 *
 *     time      0 ........ n-1 | n ........ 2n-1
 *     data      ####------------------#            made at 0, read by an operation's backward pass
 *     gradient                    ####--           written, added to, read
 */
#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/plan_schedule.h"

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
static void trace(esper_schedule *schedule, const bool *wanted)
{
    const esper_net *net = &schedule->net;

    if (net->loss == ESPER_NO_TENSOR && net->output != ESPER_NO_TENSOR)
        schedule->has_grad[net->output] = wanted[net->output];
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].take_grad)
            schedule->has_grad[t] = wanted[t];
    for (int o = net->n_ops - 1; o >= 0; o--) {
        const esper_op *op = &net->ops[o];
        const esper_op_info *info = esper_op_info_of(op->kind);

        if (!(schedule->has_grad[op->out[0]] || (op->out[0] == net->loss && wanted[op->out[0]])))
            continue;
        for (int i = 0; i < info->n_in; i++) {
            int t = op->in[i];

            if (t == ESPER_NO_TENSOR || (info->grad_in & ESPER_BIT(i)) == 0 || !wanted[t])
                continue;
            if (schedule->has_grad[t])
                schedule->add_mask[o] |= ESPER_BIT(i);
            schedule->has_grad[t] = true;
            schedule->runs_back[o] = true;
        }
    }
}

esper_status esper_schedule_trace_gradients(esper_schedule *schedule)
{
    bool *wanted = esper_mem_alloc((size_t)schedule->net.n_tensors * sizeof(*wanted) + 1);

    if (wanted == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d tensors", schedule->net.n_tensors);
    mark_wanted(&schedule->net, schedule->frozen, wanted);
    trace(schedule, wanted);
    esper_mem_free(wanted);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ times */

typedef struct span {
    int begin, end; /* inclusive */
} span;

static void live(esper_extent *range, span when)
{
    assert(0 <= when.begin && when.begin <= when.end);
    if (range->begin == ESPER_NEVER || when.begin < range->begin)
        range->begin = when.begin;
    if (when.end > range->end)
        range->end = when.end;
}

/* An operation's tensors: all of them forward; backward what was saved, and gradients. */
static void live_op(esper_schedule *schedule, const esper_op *op, esper_direction direction, span when)
{
    const esper_op_info *info = esper_op_info_of(op->kind);
    bool forward = direction == ESPER_FORWARD;

    for (int i = 0; i < info->n_in; i++) {
        int t = op->in[i];

        if (t == ESPER_NO_TENSOR)
            continue;
        if (forward || (info->saved_in & ESPER_BIT(i)) != 0)
            live(&schedule->data[schedule->home[t]], when);
        if (!forward && (info->grad_in & ESPER_BIT(i)) != 0 && schedule->has_grad[t])
            live(&schedule->grad[t], when);
    }
    for (int i = 0; i < info->n_out; i++)
        if (forward || (info->saved_out & ESPER_BIT(i)) != 0)
            live(&schedule->data[schedule->home[op->out[i]]], when);
    if (!forward && schedule->has_grad[op->out[0]])
        live(&schedule->grad[op->out[0]], when);
}

static int time_of(const esper_schedule *schedule, int step)
{
    int o = schedule->steps[step].op;

    return step < schedule->n_steps[ESPER_FORWARD] ? o : 2 * schedule->net.n_ops - 1 - o;
}

/* Steps of a chain run by turns, a few results at a time: what one of them needs must be there for all of them. */
static void live_in_chain(esper_schedule *schedule, int first, int n)
{
    span when = {time_of(schedule, first), time_of(schedule, first + n - 1)};

    for (int i = first; i < first + n; i++) {
        esper_direction direction = i < schedule->n_steps[ESPER_FORWARD] ? ESPER_FORWARD : ESPER_BACKWARD;
        esper_extent *scratch = &schedule->scratch[direction][schedule->steps[i].op];

        live_op(schedule, &schedule->net.ops[schedule->steps[i].op], direction, when);
        if (scratch->bytes > 0)
            live(scratch, when);
    }
}

void esper_schedule_find_times(esper_schedule *schedule)
{
    const esper_net *net = &schedule->net;
    int n_steps = schedule->n_steps[ESPER_FORWARD] + schedule->n_steps[ESPER_BACKWARD];
    span always = {0, schedule->training ? 2 * net->n_ops : net->n_ops};

    for (int t = 0; t < net->n_tensors; t++) {
        bool has_place = net->tensors[t].role == ESPER_ROLE_PARAM || net->tensors[t].role == ESPER_ROLE_BUFFER;

        if (!has_place && esper_net_is_shared(net, t))
            live(&schedule->data[schedule->home[t]], always);
        /* The caller reads the gradients of inputs, and gives those it said, and that of the output where there is no loss
         * to begin from. */
        if (!has_place && schedule->has_grad[t] &&
            (net->tensors[t].role == ESPER_ROLE_INPUT || net->tensors[t].take_grad ||
             (t == net->output && net->loss == ESPER_NO_TENSOR)))
            live(&schedule->grad[t], always);
    }
    for (int o = 0; o < net->n_ops; o++) /* batches are gathered there between passes */
        if (net->ops[o].kind == ESPER_OP_PACK && net->ops[o].attr.pack.of_batch)
            live(&schedule->data[schedule->home[net->ops[o].out[0]]], always);
    for (int i = 0; i < n_steps; i += schedule->chain[i])
        live_in_chain(schedule, i, schedule->chain[i]);
}
