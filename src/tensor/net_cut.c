/* Cutting a finished program: from a tensor on, and down to what somebody asks for. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/net.h"

/* Whether one of the first n_ops operations makes the tensor. */
static bool is_made_by(const esper_net *net, int n_ops, int tensor)
{
    for (int o = 0; o < n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_out; i++)
            if (net->ops[o].out[i] == tensor)
                return true;
    return false;
}

/* Whether a slot of new channels begins with it. */
static bool is_source(const esper_net *net, int tensor)
{
    for (int i = 0; i < net->n_boundaries; i++)
        if (net->boundaries[i].wide.channels > 0 && net->boundaries[i].wide.source == tensor)
            return true;
    return false;
}

/* Whether all that remains can do without the first n_ops operations but for `tensor`. */
static esper_status check_cut(const esper_net *net, int n_ops, int tensor)
{
    const int ends[] = {net->output, net->loss, net->correct};

    for (int o = n_ops; o < net->n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_in; i++) {
            int in = net->ops[o].in[i];

            if (in != ESPER_NO_TENSOR && in != tensor && is_made_by(net, n_ops, in) && !is_source(net, in))
                return ESPER_FAIL(ESPER_E_ARG, "cut at %s: %s behind it needs %s", net->tensors[tensor].name,
                                  net->tensors[net->ops[o].out[0]].name, net->tensors[in].name);
        }
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
        if (ends[i] != ESPER_NO_TENSOR && ends[i] != tensor && is_made_by(net, n_ops, ends[i]))
            return ESPER_FAIL(ESPER_E_ARG, "cut at %s: it would remove %s, a result", net->tensors[tensor].name,
                              net->tensors[ends[i]].name);
    return ESPER_OK;
}

/* An input costs memory, and a lowered network changes its layout in every pass, whether anybody reads it or not. */
static void drop_inputs(esper_net *net)
{
    for (int t = 0; t < net->n_tensors; t++) {
        bool is_read = false;

        for (int o = 0; o < net->n_ops; o++)
            for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_in; i++)
                is_read = is_read || net->ops[o].in[i] == t;
        if (net->tensors[t].role != ESPER_ROLE_INPUT || is_read)
            continue;
        net->tensors[t].role = ESPER_ROLE_ACTIVATION;
        net->tensors[t].keep = net->tensors[t].want_grad = false;
        if (net->target == t)
            net->target = ESPER_NO_TENSOR;
    }
}

esper_status esper_net_cut(esper_net *net, int tensor)
{
    int n_ops = 0, n_boundaries = 0;

    ESPER_TRY(net->status);
    while (n_ops <= net->n_ops && !is_made_by(net, n_ops, tensor))
        n_ops++;
    if (n_ops > net->n_ops || tensor < 0)
        return ESPER_FAIL(ESPER_E_ARG, "cut at tensor %d: no operation makes it", tensor);
    if (!net->tensors[tensor].per_sample)
        return ESPER_FAIL(ESPER_E_ARG, "cut at %s: an input has a slice for each sample", net->tensors[tensor].name);
    ESPER_TRY(check_cut(net, n_ops, tensor));
    for (int o = 0; o < n_ops; o++)
        if (is_source(net, net->ops[o].out[0]))
            net->tensors[net->ops[o].out[0]].role = ESPER_ROLE_INPUT; /* unless nobody reads it: drop_inputs */
    for (int i = 0; i < net->n_boundaries; i++) {
        int at = net->boundaries[i].tensor;

        if (at == tensor || !(net->tensors[at].role == ESPER_ROLE_INPUT || is_made_by(net, n_ops, at)))
            net->boundaries[n_boundaries++] = net->boundaries[i];
    }
    net->n_boundaries = n_boundaries;
    for (int o = 0; o < n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_out; i++)
            if (net->ops[o].out[i] != ESPER_NO_TENSOR)
                net->tensors[net->ops[o].out[i]].keep = false;
    net->n_ops -= n_ops;
    memmove(net->ops, net->ops + n_ops, (size_t)net->n_ops * sizeof(*net->ops));
    drop_inputs(net);
    net->tensors[tensor].role = ESPER_ROLE_INPUT;
    net->input = tensor;
    return ESPER_OK;
}

int esper_net_list_passing(const esper_net *net, int tensors_out[ESPER_MAX_REGIONS])
{
    int n = 0;

    for (int i = 0; i < net->n_boundaries; i++) {
        int source = net->boundaries[i].wide.channels > 0 ? net->boundaries[i].wide.source : ESPER_NO_TENSOR;
        bool is_new = source != ESPER_NO_TENSOR && source != net->input &&
                      net->tensors[source].role == ESPER_ROLE_INPUT && n < ESPER_MAX_REGIONS;

        for (int k = 0; k < n && is_new; k++)
            is_new = tensors_out[k] != source;
        if (is_new)
            tensors_out[n++] = source;
    }
    return n;
}

/* Backwards over the list: an operation is used when something used needs one of its outputs. */
static void find_used(const esper_net *net, bool *needed, bool *used)
{
    for (int t = 0; t < net->n_tensors; t++)
        needed[t] = t == net->loss || t == net->output || t == net->correct || net->tensors[t].keep;
    for (int o = net->n_ops - 1; o >= 0; o--) {
        const esper_op_info *info = esper_op_info_of(net->ops[o].kind);

        used[o] = false;
        for (int i = 0; i < info->n_out; i++)
            used[o] = used[o] || (net->ops[o].out[i] != ESPER_NO_TENSOR && needed[net->ops[o].out[i]]);
        for (int i = 0; i < info->n_in && used[o]; i++)
            if (net->ops[o].in[i] != ESPER_NO_TENSOR)
                needed[net->ops[o].in[i]] = true;
    }
}

void esper_net_drop_unused(esper_net *net)
{
    bool *needed, *used;
    int n = 0;

    if (net->status != ESPER_OK)
        return;
    needed = esper_mem_alloc((size_t)net->n_tensors * sizeof(*needed) + 1);
    used = esper_mem_alloc((size_t)net->n_ops * sizeof(*used) + 1);
    if (needed == NULL || used == NULL)
        net->status = ESPER_FAIL(ESPER_E_NOMEM, "list of %d operations", net->n_ops);
    else {
        find_used(net, needed, used);
        for (int o = 0; o < net->n_ops; o++)
            if (used[o])
                net->ops[n++] = net->ops[o];
        net->n_ops = n;
    }
    esper_mem_free(needed);
    esper_mem_free(used);
}
