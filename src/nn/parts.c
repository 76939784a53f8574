/* A program cut into blocks, by the names of its parameters and by its slots. */
#include "nn/parts.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* More blocks than this cannot be told apart in a drawing. */
enum { MOST_BLOCKS = 48 };

typedef struct listing {
    const esper_net *net;
    esper_host_part *parts;
    int n, n_blocks;
    bool coarse;  /* a block reaches from slot to slot */
    int open;     /* the block that operations belong to; -1: the next one begins another */
    bool unnamed; /* it has the name of an operation so far */
} listing;

/* "blocks.0.conv.weight" is of blocks.0, and "classifier.weight" of classifier. */
static void block_of(const char *tensor, char name[ESPER_NAME_CHARS])
{
    size_t n = strcspn(tensor, ".");

    if (tensor[n] == '.' && isdigit((unsigned char)tensor[n + 1]))
        n += 1 + strspn(tensor + n + 1, "0123456789");
    snprintf(name, ESPER_NAME_CHARS, "%.*s", (int)n, tensor);
}

static void begin_block(listing *list, const char *name)
{
    if (list->n == ESPER_HOST_MAX_PARTS)
        return; /* as it goes on in the last one */
    list->open = list->n++;
    list->n_blocks++;
    list->parts[list->open] = (esper_host_part){.is_slot = false};
    snprintf(list->parts[list->open].name, ESPER_NAME_CHARS, "%s", name);
}

static void set_shape(esper_host_part *part, const esper_tensor *tensor)
{
    size_t used = 0;

    part->shape[0] = '\0';
    for (int i = 0; i < tensor->rank && used < sizeof(part->shape); i++)
        used +=
            (size_t)snprintf(part->shape + used, sizeof(part->shape) - used, "%s%d", i > 0 ? "x" : "", tensor->dim[i]);
    part->channels = tensor->rank == 3 || tensor->rank == 1 ? tensor->dim[0] : tensor->dim[tensor->rank - 1];
}

/* Whether an operation before this one has read the tensor. */
static bool is_counted(const esper_net *net, int op, int tensor)
{
    for (int i = 0; i < op; i++)
        for (int k = 0; k < ESPER_OP_MAX_IN; k++)
            if (net->ops[i].in[k] == tensor)
                return true;
    return false;
}

static void take_op(listing *list, int number)
{
    const esper_net *net = list->net;
    const esper_op *op = &net->ops[number];
    char name[ESPER_NAME_CHARS] = "";
    int64_t params = 0;

    for (int k = 0; k < ESPER_OP_MAX_IN; k++) {
        int t = op->in[k];

        if (t == ESPER_NO_TENSOR || net->tensors[t].role != ESPER_ROLE_PARAM || is_counted(net, number, t))
            continue;
        if (name[0] == '\0')
            block_of(net->tensors[t].name, name);
        params += net->tensors[t].count;
    }
    if (list->open < 0) {
        begin_block(list, name[0] != '\0' ? name : esper_op_info_of(op->kind)->name);
        list->unnamed = name[0] == '\0';
    } else if (name[0] != '\0' && list->unnamed) { /* a mean before the classifier is of the classifier */
        snprintf(list->parts[list->open].name, ESPER_NAME_CHARS, "%s", name);
        list->unnamed = false;
    } else if (name[0] != '\0' && !list->coarse && strcmp(list->parts[list->open].name, name) != 0) {
        begin_block(list, name);
    }
    if (list->open < 0)
        return;
    list->parts[list->open].params += params;
    set_shape(&list->parts[list->open], &net->tensors[op->out[0]]);
}

static void take_slots(listing *list, int tensor)
{
    for (int b = 0; b < list->net->n_boundaries && list->n < ESPER_HOST_MAX_PARTS; b++) {
        const esper_boundary *boundary = &list->net->boundaries[b];
        esper_host_part *part = &list->parts[list->n];

        if (boundary->tensor != tensor)
            continue;
        *part = (esper_host_part){.is_slot = true, .position = boundary->position};
        snprintf(part->name, sizeof(part->name), "%s", boundary->slot);
        set_shape(part, &list->net->tensors[tensor]);
        part->channels = boundary->channels;
        list->n++;
        if (boundary->wide.channels == 0) /* which stands inside a block */
            list->open = -1;
    }
}

static void list_all(listing *list)
{
    const esper_net *net = list->net;

    list->n = list->n_blocks = 0;
    list->open = -1;
    for (int i = 0; i < net->n_ops; i++) {
        take_op(list, i);
        for (int k = 0; k < ESPER_OP_MAX_OUT; k++)
            if (net->ops[i].out[k] != ESPER_NO_TENSOR)
                take_slots(list, net->ops[i].out[k]);
        if (net->ops[i].out[0] == net->output)
            break; /* the loss is no part of it */
    }
}

int esper_parts_list(const esper_net *net, esper_host_part parts_out[ESPER_HOST_MAX_PARTS])
{
    listing list = {.net = net, .parts = parts_out};

    list_all(&list);
    if (list.n_blocks > MOST_BLOCKS || list.n == ESPER_HOST_MAX_PARTS) {
        list.coarse = true;
        list_all(&list);
    }
    return list.n;
}
