/* Lowering: which tensors get a blocked twin, which operations become one, and the list that results.
 *
 * Operations are walked once, in order. What an operation reads is looked up in `stands_for`: the blocked twin of a tensor
 * that the caller shares, or the tensor itself. */
#include "tensor/lower.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

typedef struct lowering {
    const esper_net *from;
    esper_net       *to;
    int             *stands_for; /* (from's tensors) what operations of `to` use in its place */
    int             *n_readers;  /* (from's tensors) operations that read it */
    int             *reader;     /* (from's tensors) the last of them */
} lowering;

/* An operation and those after it that it swallows: each is the only reader of the one before. */
typedef struct chain {
    const esper_op *conv, *norm, *relu, *pool; /* relu and pool may be NULL */
} chain;

/* Blocks have linear layers and losses of one row for each sample. Convolutions over blocks have kernels of limited size, and
 * no pixel of theirs sees padding alone. */
static bool fits_blocks(const esper_net *net, const esper_op *op, int largest_kernel)
{
    switch (op->kind) {
    case ESPER_OP_LINEAR:
    case ESPER_OP_SOFTMAX_XENT:
        return net->tensors[op->in[0]].rank == 1;
    case ESPER_OP_CONV2D:
        return net->tensors[op->in[1]].dim[2] <= largest_kernel && op->attr.conv.pad < net->tensors[op->in[1]].dim[2];
    default:
        return true;
    }
}

bool esper_lower_applies(const esper_net *net, const esper_lower_rules *rules)
{
    bool is_image =
        false; /* an input is: a program that was cut may begin with the logits, and new channels on their way */

    for (int t = 0; t < net->n_tensors; t++)
        is_image = is_image || (net->tensors[t].role == ESPER_ROLE_INPUT && net->tensors[t].rank == 3);
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].take_grad) /* a blocked twin would have to take it */
            return false;
    for (int o = 0; o < net->n_ops && is_image; o++)
        if (net->ops[o].kind != ESPER_OP_ISOLATE &&
            (!rules->has(rules->of, net->ops[o].kind) || !fits_blocks(net, &net->ops[o], rules->largest_kernel)))
            is_image = false;
    return is_image;
}

/* One number a sample lies in memory alike in both layouts. */
static bool needs_twin(const esper_net *net, int t)
{
    return net->tensors[t].per_sample && net->tensors[t].count > 1 && esper_net_is_shared(net, t);
}

static void add_twin(lowering *low, int t)
{
    esper_net *to = low->to;
    esper_tensor *twin = &to->tensors[to->n_tensors];

    *twin = low->from->tensors[t];
    snprintf(twin->name, sizeof(twin->name), "%.*s.blocked", ESPER_NAME_CHARS - 10, low->from->tensors[t].name);
    twin->role = ESPER_ROLE_ACTIVATION;
    twin->keep = twin->want_grad = false;
    twin->layout = ESPER_BLOCKED;
    low->stands_for[t] = to->n_tensors++;
}

static void copy_tensors(lowering *low)
{
    const esper_net *from = low->from;

    memcpy(low->to->tensors, from->tensors, (size_t)from->n_tensors * sizeof(*from->tensors));
    low->to->n_tensors = from->n_tensors;
    for (int t = 0; t < from->n_tensors; t++) {
        low->stands_for[t] = t;
        if (needs_twin(from, t))
            add_twin(low, t);
        else
            low->to->tensors[t].layout = from->tensors[t].per_sample ? ESPER_BLOCKED : ESPER_CANONICAL;
    }
}

static void count_readers(lowering *low)
{
    for (int o = 0; o < low->from->n_ops; o++)
        for (int i = 0; i < esper_op_info_of(low->from->ops[o].kind)->n_in; i++) {
            int t = low->from->ops[o].in[i];

            if (t == ESPER_NO_TENSOR)
                continue;
            low->n_readers[t]++;
            low->reader[t] = o;
        }
}

/* The operation of that kind that alone reads tensor t, which nobody else sees; else NULL. */
static const esper_op *only_reader(const lowering *low, int t, esper_op_kind kind)
{
    const esper_op *op = &low->from->ops[low->reader[t]];

    if (low->n_readers[t] != 1 || esper_net_is_shared(low->from, t) || op->kind != kind || op->in[0] != t)
        return NULL;
    return op;
}

/* What begins at this operation; without a norm after the convolution there is no chain. */
static chain chain_at(const lowering *low, const esper_op *op)
{
    chain c = {.conv = op};

    if (op->kind != ESPER_OP_CONV2D)
        return c;
    c.norm = only_reader(low, op->out[0], ESPER_OP_BATCH_NORM);
    if (c.norm != NULL)
        c.relu = only_reader(low, c.norm->out[0], ESPER_OP_RELU);
    if (c.norm != NULL)
        c.pool = only_reader(low, c.relu != NULL ? c.relu->out[0] : c.norm->out[0], ESPER_OP_MAX_POOL);
    return c;
}

/* pack (after an input) or unpack (after what the caller reads). */
static void push_change(lowering *low, esper_op_kind kind, int from, int to, uint32_t place)
{
    low->to->ops[low->to->n_ops++] =
        (esper_op){.kind = kind, .in = {from}, .out = {to}, .place = place, .variant = ESPER_BLOCKED};
}

static void push_plain(lowering *low, const esper_op *op)
{
    const esper_op_info *info = esper_op_info_of(op->kind);
    esper_op lowered = *op;

    lowered.variant = ESPER_BLOCKED;
    for (int i = 0; i < info->n_in; i++)
        if (op->in[i] != ESPER_NO_TENSOR)
            lowered.in[i] = low->stands_for[op->in[i]];
    for (int i = 0; i < info->n_out; i++)
        lowered.out[i] = low->stands_for[op->out[i]];
    low->to->ops[low->to->n_ops++] = lowered;
}

static void push_chain(lowering *low, const chain *c)
{
    const esper_op *last = c->pool != NULL ? c->pool : c->relu != NULL ? c->relu : c->norm;
    esper_op op = {
        .kind = ESPER_OP_CONV_NORM,
        .in = {low->stands_for[c->conv->in[0]], c->conv->in[1], c->norm->in[1], c->norm->in[2], c->norm->in[3],
               c->norm->in[4]},
        .out = {low->stands_for[last->out[0]], c->conv->out[0], c->norm->out[1], c->norm->out[2]},
        .place = c->conv->place,
        .region = c->norm->region,
        .variant = ESPER_BLOCKED,
    };

    op.attr.conv_norm.pad = c->conv->attr.conv.pad;
    op.attr.conv_norm.groups = c->conv->attr.conv.groups;
    op.attr.conv_norm.eps = c->norm->attr.norm.eps;
    op.attr.conv_norm.momentum = c->norm->attr.norm.momentum;
    op.attr.conv_norm.relu = c->relu != NULL;
    op.attr.conv_norm.pool = c->pool != NULL;
    low->to->ops[low->to->n_ops++] = op;
}

/* `swallowed` marks operations that an earlier chain has taken. */
static void lower_ops(lowering *low, bool *swallowed)
{
    const esper_net *from = low->from;

    for (int t = 0; t < from->n_tensors; t++)
        if (from->tensors[t].role == ESPER_ROLE_INPUT && needs_twin(from, t))
            push_change(low, ESPER_OP_PACK, t, low->stands_for[t], 0);
    for (int o = 0; o < from->n_ops; o++) {
        const esper_op *op = &from->ops[o], *last = op;
        chain c = chain_at(low, op);

        if (swallowed[o])
            continue;
        if (c.norm != NULL) {
            last = c.pool != NULL ? c.pool : c.relu != NULL ? c.relu : c.norm;
            swallowed[c.norm - from->ops] = true;
            if (c.relu != NULL)
                swallowed[c.relu - from->ops] = true;
            if (c.pool != NULL)
                swallowed[c.pool - from->ops] = true;
            push_chain(low, &c);
        } else {
            push_plain(low, op);
        }
        for (int i = 0; i < esper_op_info_of(last->kind)->n_out;
             i++) /* what the caller reads is brought back at once */
            if (needs_twin(from, last->out[i]))
                push_change(low, ESPER_OP_UNPACK, low->stands_for[last->out[i]], last->out[i], last->place);
    }
}

/* Room for all that lowering can add: some twins, and a change of layout for each. */
static esper_status take_room(lowering *low, bool **swallowed_out)
{
    size_t n_tensors = (size_t)low->from->n_tensors, n_ops = (size_t)low->from->n_ops, n_twins = 0;

    for (int t = 0; t < low->from->n_tensors; t++)
        n_twins += needs_twin(low->from, t);
    low->to->tensors = esper_mem_alloc((n_tensors + n_twins) * sizeof(esper_tensor));
    low->to->ops = esper_mem_alloc((n_ops + n_twins) * sizeof(esper_op));
    low->stands_for = esper_mem_alloc((n_tensors + 1) * sizeof(int));
    low->n_readers = esper_mem_alloc((n_tensors + 1) * sizeof(int));
    low->reader = esper_mem_alloc((n_tensors + 1) * sizeof(int));
    *swallowed_out = esper_mem_alloc((n_ops + 1) * sizeof(bool));
    if (low->to->tensors == NULL || low->to->ops == NULL || low->stands_for == NULL || low->n_readers == NULL ||
        low->reader == NULL || *swallowed_out == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "lowering a network of %zu operations", n_ops);
    return ESPER_OK;
}

esper_status esper_lower(const esper_net *net, esper_net *lowered_out)
{
    esper_net to = *net;
    lowering low = {.from = net, .to = &to};
    bool *swallowed = NULL;
    esper_status status;

    to.tensors = NULL;
    to.ops = NULL;
    to.boundaries = NULL; /* nobody looks for them here */
    to.n_tensors = to.n_ops = to.n_boundaries = 0;
    status = take_room(&low, &swallowed);
    if (status == ESPER_OK) {
        esper_op *fewer;

        copy_tensors(&low);
        count_readers(&low);
        lower_ops(&low, swallowed);
        fewer = esper_mem_grow(to.ops, (size_t)to.n_ops * sizeof(*to.ops)); /* chains need less than was taken, and */
        if (fewer != NULL)                                                  /* what a plan costs is counted to the byte */
            to.ops = fewer;
        else
            status = ESPER_FAIL(ESPER_E_NOMEM, "lowering a network to %d operations", to.n_ops);
    }
    esper_mem_free(low.stands_for);
    esper_mem_free(low.n_readers);
    esper_mem_free(low.reader);
    esper_mem_free(swallowed);
    if (status != ESPER_OK) {
        esper_net_fini(&to);
        return status;
    }
    *lowered_out = to;
    return ESPER_OK;
}
