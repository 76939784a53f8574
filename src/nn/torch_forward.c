/* The forward method of an exported module: the program, an operation to a line.
 *
 * Variables: an output takes over the name of an input that nobody reads any more, else the first free one. So the stream
 * through the host is x, and what branches off it is y or z, as somebody would write it by hand. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "nn/torch_tree.h"

enum { MOST_VARIABLES = 32 };

typedef struct forward {
    const esper_torch_tree *tree;
    const esper_net        *net;
    esper_page             *page;
    int                    *last_use; /* (n_tensors) the last needed operation that reads it */
    int                    *variable; /* (n_tensors) its number, ESPER_TORCH_NONE = none */
    int                     holder[MOST_VARIABLES]; /* the tensor in a variable, ESPER_NO_TENSOR = free */
} forward;

/* x, y, z, u, v, w, t6, t7 ...; nothing when a failure has left a tensor without one */
static void print_variable(esper_page *page, int number)
{
    static const char letters[] = "xyzuvw";

    if (number == ESPER_TORCH_NONE)
        return;
    if (number < (int)sizeof(letters) - 1)
        esper_page_print(page, "%c", letters[number]);
    else
        esper_page_print(page, "t%d", number);
}

/* The argument of forward: the input's own name, which no variable has. */
static const char *input_word(const esper_net *net)
{
    const esper_tensor *input = &net->tensors[net->input];

    return input->dtype == ESPER_I32 ? "tokens" : input->rank == 1 ? "features" : "images";
}

/* An input of an operation: a variable, the argument of forward, or state. */
static void print_input(const forward *f, const esper_op *op, int input)
{
    int tensor = op->in[input];

    if (tensor == f->net->input)
        esper_page_print(f->page, "%s", input_word(f->net));
    else if (f->variable[tensor] != ESPER_TORCH_NONE)
        print_variable(f->page, f->variable[tensor]);
    else if (f->net->tensors[tensor].role != ESPER_ROLE_ACTIVATION)
        esper_torch_print_place(f->tree, f->tree->leaf[tensor], f->page);
    else
        f->page->status = ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: PyTorch's operations give no such second output",
                                     f->net->tensors[tensor].name);
}

/* ------------------------------------------------------------------------------------------------ operations */

static void print_float(const forward *f, float value)
{
    char text[ESPER_NUMBER_CHARS];

    esper_number_write_float(value, text);
    esper_page_print(f->page, "%s", text);
}

/* A digit after '$' is the input of that number, a letter a setting of the operation. */
static void print_call(const forward *f, const esper_op *op, const char *text)
{
    const esper_tensor *x = &f->net->tensors[op->in[0]];

    for (const char *at = text; *at != '\0'; at++) {
        if (*at != '$') {
            esper_page_print(f->page, "%c", *at);
            continue;
        }
        switch (*++at) {
        case 'p':
            esper_page_print(f->page, "padding=%d, groups=%d", op->attr.conv.pad, op->attr.conv.groups);
            break;
        case 'g':
            esper_page_print(f->page, "%d", op->attr.norm.groups);
            break;
        case 'w': /* of a row */
            esper_page_print(f->page, "%d", x->dim[x->rank - 1]);
            break;
        case 'e':
            print_float(f, op->attr.norm.eps);
            break;
        case 'm':
            print_float(f, op->attr.norm.momentum);
            break;
        case 'd':
            print_float(f, op->attr.dropout.drop);
            break;
        default:
            assert(*at >= '0' && *at < '0' + ESPER_OP_MAX_IN);
            print_input(f, op, *at - '0');
            break;
        }
    }
}

static void write_global_mean(const forward *f, const esper_op *op)
{
    print_call(f, op, f->net->tensors[op->in[0]].rank == 3 ? "$0.mean(dim=(2, 3))" : "$0.mean(dim=1)");
}

static void write_linear(const forward *f, const esper_op *op)
{
    print_call(f, op, op->in[2] != ESPER_NO_TENSOR ? "F.linear($0, $1, $2)" : "F.linear($0, $1)");
}

/* Rows of a table by the ids in `ids`. */
static void write_table(const forward *f, const esper_op *op, int input, const char *ids)
{
    int layer = esper_torch_layer_of(f->tree, op, input);

    if (layer == ESPER_TORCH_NONE) {
        print_call(f, op, input == 1 ? "$1[" : "$2[");
        print_call(f, op, ids);
        esper_page_print(f->page, "]");
        return;
    }
    esper_torch_print_place(f->tree, layer, f->page);
    print_call(f, op, "(");
    print_call(f, op, ids);
    print_call(f, op, ")");
}

static void write_embedding(const forward *f, const esper_op *op)
{
    bool long_index = esper_torch_layer_of(f->tree, op, 1) == ESPER_TORCH_NONE; /* tables are indexed with int64 */

    write_table(f, op, 1, long_index ? "$0.long()" : "$0");
    if (op->in[2] == ESPER_NO_TENSOR)
        return;
    esper_page_print(f->page, " + ");
    write_table(f, op, 2, "torch.arange($0.shape[1], device=$0.device)");
}

static void write_attention(const forward *f, const esper_op *op)
{
    print_call(f, op, "causal_attention($0");
    esper_page_print(f->page, ", heads=%d", op->attr.attention.heads);
    if (op->attr.attention.drop > 0.0f) {
        esper_page_print(f->page, ", drop=");
        print_float(f, op->attr.attention.drop);
        esper_page_print(f->page, ", training=self.training");
    }
    esper_page_print(f->page, ")");
}

static void write_mul(const forward *f, const esper_op *op)
{
    bool planes = f->net->tensors[op->in[0]].rank == 3 && f->net->tensors[op->in[1]].rank == 1;

    print_call(f, op, planes ? "$0 * $1[:, :, None, None]" : "$0 * $1");
}

static void write_concat(const forward *f, const esper_op *op)
{
    const esper_tensor *a = &f->net->tensors[op->in[0]], *y = &f->net->tensors[op->out[0]];

    print_call(f, op, "torch.cat(($0, $1.reshape(-1");
    esper_page_print(f->page, ", %d, %d)), dim=2)", a->dim[0], y->dim[1] - a->dim[1]);
}

/* A loss is no part of forward: it is a method of its own. */
static void write_nothing(const forward *f, const esper_op *op)
{
    (void)f;
    (void)op;
}

static const struct {
    const char *call; /* as print_call has it, where the operation is no layer; NULL: `write` does it */
    void (*write)(const forward *f, const esper_op *op);
} writers[ESPER_N_KINDS] = {
    [ESPER_OP_CONV2D] = {"F.conv2d($0, $1, $p)", NULL},
    [ESPER_OP_BATCH_NORM] = {"F.batch_norm($0, $3, $4, $1, $2, self.training, $m, $e)", NULL},
    [ESPER_OP_GROUP_NORM] = {"F.group_norm($0, $g, $1, $2, $e)", NULL},
    [ESPER_OP_LAYER_NORM] = {"F.layer_norm($0, ($w,), $1, $2, $e)", NULL},
    [ESPER_OP_RELU] = {"F.relu($0)", NULL},
    [ESPER_OP_GELU] = {"F.gelu($0)", NULL},
    [ESPER_OP_SIGMOID] = {"torch.sigmoid($0)", NULL},
    [ESPER_OP_TANH] = {"torch.tanh($0)", NULL},
    [ESPER_OP_MAX_POOL] = {"F.max_pool2d($0, 2)", NULL},
    [ESPER_OP_GLOBAL_MEAN] = {NULL, write_global_mean},
    [ESPER_OP_LINEAR] = {NULL, write_linear},
    [ESPER_OP_EMBEDDING] = {NULL, write_embedding},
    [ESPER_OP_ATTENTION] = {NULL, write_attention},
    [ESPER_OP_DROPOUT] = {"F.dropout($0, $d, self.training)", NULL},
    [ESPER_OP_ADD] = {"$0 + $1", NULL},
    [ESPER_OP_MUL] = {NULL, write_mul},
    [ESPER_OP_CHANNEL_SCALE] = {"$0 * $1[:, None, None]", NULL},
    [ESPER_OP_MIX_TANH] = {"$0 + torch.tanh($2) * ($1 - $0)", NULL},
    [ESPER_OP_SOFTMAX_XENT] = {NULL, write_nothing},
    [ESPER_OP_ISOLATE] = {"$0.detach()", NULL},
    [ESPER_OP_STRAIGHT_THROUGH] = {"StraightThrough.apply($0, $1)", NULL},
    [ESPER_OP_BLEND_ADD] = {"blend($0, $1, $2)", NULL},
    [ESPER_OP_BLEND_MUL] = {"blend_multiply($0, $1, $2, $3)", NULL},
    [ESPER_OP_LSTM] = {"lstm_steps($0, $1, $2, $3, $4, $5)", NULL},
    [ESPER_OP_CONCAT] = {NULL, write_concat},
    [ESPER_OP_BLEND_GATE] = {"blend($0, $1, $3.clamp(0, 1) * $2.clamp(0, 1))", NULL},
};

bool esper_torch_can_write(esper_op_kind kind)
{
    return writers[kind].call != NULL || writers[kind].write != NULL;
}

/* ------------------------------------------------------------------------------------------------ variables */

static void find_last_uses(forward *f, const bool *needed)
{
    for (int t = 0; t < f->net->n_tensors; t++)
        f->last_use[t] = f->variable[t] = ESPER_TORCH_NONE;
    for (int i = 0; i < f->net->n_ops; i++)
        for (int k = 0; needed[i] && k < ESPER_OP_MAX_IN; k++)
            if (f->net->ops[i].in[k] != ESPER_NO_TENSOR)
                f->last_use[f->net->ops[i].in[k]] = i;
    f->last_use[f->net->output] = f->net->n_ops;
}

/* Gives the output of operation i a variable, and frees those whose tensors were read for the last time. */
static int take_variable(forward *f, int i)
{
    const esper_op *op = &f->net->ops[i];
    int taken = ESPER_TORCH_NONE;

    for (int k = 0; k < ESPER_OP_MAX_IN; k++) {
        int tensor = op->in[k], number = tensor != ESPER_NO_TENSOR ? f->variable[tensor] : ESPER_TORCH_NONE;

        if (number == ESPER_TORCH_NONE || f->last_use[tensor] > i)
            continue;
        f->holder[number] = ESPER_NO_TENSOR;
        f->variable[tensor] = ESPER_TORCH_NONE;
        if (taken == ESPER_TORCH_NONE)
            taken = number;
    }
    for (int number = 0; taken == ESPER_TORCH_NONE && number < MOST_VARIABLES; number++)
        if (f->holder[number] == ESPER_NO_TENSOR)
            taken = number;
    if (taken == ESPER_TORCH_NONE) {
        f->page->status = ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: more than %d tensors are alive at once",
                                     f->net->tensors[op->out[0]].name, MOST_VARIABLES);
        return ESPER_TORCH_NONE;
    }
    f->holder[taken] = op->out[0];
    return taken;
}

/* ------------------------------------------------------------------------------------------------ sections */

/* What a line belongs to: a slot, a numbered part of the host ("blocks.1"), or neither. */
typedef struct section {
    const esper_boundary *slot;
    char                  part[ESPER_NAME_CHARS];
} section;

/* "blocks.1" of "blocks.1.conv.weight"; nothing of "classifier.weight" */
static void part_of_name(const char *name, char part[ESPER_NAME_CHARS])
{
    const char *dot = strchr(name, '.');
    size_t digits = dot != NULL ? strspn(dot + 1, "0123456789") : 0;

    part[0] = '\0';
    if (digits > 0 && dot[1 + digits] == '.')
        snprintf(part, ESPER_NAME_CHARS, "%.*s", (int)((size_t)(dot - name) + 1 + digits), name);
}

/* The boundary that operation i stands behind. */
static const esper_boundary *boundary_before(const esper_net *net, int i)
{
    for (int b = net->n_boundaries - 1; b >= 0; b--) {
        if (net->boundaries[b].tensor == net->input)
            return &net->boundaries[b];
        for (int k = 0; k < i; k++)
            if (net->ops[k].out[0] == net->boundaries[b].tensor)
                return &net->boundaries[b];
    }
    return NULL;
}

/* A layer says by its names where it belongs, what has no names belongs to what came before, but for the mean before the
 * host's head. `host` is the host's section so far. */
static section section_of(const esper_net *net, int i, section *host)
{
    const esper_op *op = &net->ops[i];
    const char *name = NULL;
    section found = {0};

    for (int k = 0; k < ESPER_OP_MAX_IN && name == NULL; k++)
        if (op->in[k] != ESPER_NO_TENSOR && esper_op_takes_state(op->kind, k))
            name = net->tensors[op->in[k]].name;
    found.slot = name != NULL ? esper_torch_slot_of_name(net, name) : NULL;
    if (found.slot == NULL && esper_op_is_seeds(op))
        found.slot = boundary_before(net, i);
    if (found.slot != NULL)
        return found;
    if (name != NULL)
        part_of_name(name, host->part);
    else if (op->kind == ESPER_OP_GLOBAL_MEAN)
        host->part[0] = '\0';
    return *host;
}

/* How the seed that begins at operation i is connected. */
static const char *stage_of(const esper_net *net, int i, const section *here)
{
    section host = {0};

    for (; i < net->n_ops; i++) {
        section at = section_of(net, i, &host);

        if (at.slot != here->slot)
            break;
        switch (net->ops[i].kind) {
        case ESPER_OP_STRAIGHT_THROUGH:
            return "a seed in training, whose output is not used yet";
        case ESPER_OP_BLEND_ADD:
            return "a seed blended in by alpha";
        case ESPER_OP_BLEND_MUL:
            return "a seed that scales the host's output, by alpha";
        case ESPER_OP_BLEND_GATE:
            return "a seed blended in by alpha and a gate of its own";
        default:
            break;
        }
    }
    return "a seed that has become part of the network";
}

/* ------------------------------------------------------------------------------------------------ the method */

static void print_op(forward *f, int i)
{
    const esper_op *op = &f->net->ops[i];
    esper_page line = {0}, *page = f->page;
    int layer = op->kind == ESPER_OP_EMBEDDING ? ESPER_TORCH_NONE : esper_torch_layer_of(f->tree, op, 1), number;

    f->page = &line; /* inputs are named before the output may take over one of their variables */
    if (layer != ESPER_TORCH_NONE) {
        esper_torch_print_place(f->tree, layer, f->page);
        print_call(f, op, "($0)");
    } else if (writers[op->kind].call != NULL)
        print_call(f, op, writers[op->kind].call);
    else
        writers[op->kind].write(f, op);
    f->page = page;
    number = take_variable(f, i);
    f->variable[op->out[0]] = number;
    if (line.status != ESPER_OK && page->status == ESPER_OK)
        page->status = line.status;
    esper_page_print(page, "        ");
    print_variable(page, number);
    esper_page_print(page, " = %s\n", line.text != NULL ? line.text : "");
    esper_page_fini(&line);
}

static void print_head(const forward *f)
{
    const esper_net *net = f->net;

    esper_page_print(f->page, "\n    def forward(self, %s):\n        \"\"\"", input_word(net));
    esper_torch_print_dims(f->page, "(N", &net->tensors[net->input]);
    esper_torch_print_dims(f->page, ") -> (N", &net->tensors[net->output]);
    esper_page_print(f->page, ")%s\"\"\"",
                     net->tensors[net->input].dtype == ESPER_I32 ? "; sequences may be shorter" : "");
}

static void print_body(forward *f, const bool *needed)
{
    section host = {0}, before = {0};
    bool first = true;

    for (int i = 0; i < f->net->n_ops && f->page->status == ESPER_OK; i++) {
        section here = section_of(f->net, i, &host);

        if (!needed[i] || f->net->ops[i].kind == ESPER_OP_SOFTMAX_XENT)
            continue;
        if (first || here.slot != before.slot || strcmp(here.part, before.part) != 0) {
            if (here.slot != NULL)
                esper_page_print(f->page, "\n        # slot %s: %s\n", here.slot->slot, stage_of(f->net, i, &here));
            else
                esper_page_print(f->page, "%s%s\n", here.part[0] != '\0' ? "\n        # " : "", here.part);
        }
        print_op(f, i);
        before = here;
        first = false;
    }
}

/* The loss of the engine: the mean over all targets that count. */
static void print_loss(const forward *f)
{
    for (int i = 0; i < f->net->n_ops; i++)
        if (f->net->ops[i].kind == ESPER_OP_SOFTMAX_XENT && f->net->ops[i].in[0] == f->net->output) {
            esper_page_print(f->page,
                             "\n    def loss(self, logits, targets):\n"
                             "        \"\"\"Mean cross-entropy; negative targets do not count.\"\"\"\n"
                             "        targets = targets.flatten().long().clamp(min=-1)\n"
                             "        return F.cross_entropy(logits.flatten(0, -2), targets, ignore_index=-1)\n");
            return;
        }
}

void esper_torch_print_forward(const esper_torch_tree *tree, const esper_torch_desc *desc, const bool *needed,
                               esper_page *page)
{
    forward f = {.tree = tree, .net = desc->net, .page = page};
    size_t bytes = (size_t)desc->net->n_tensors * sizeof(*f.last_use);

    if (page->status != ESPER_OK)
        return;
    f.last_use = esper_mem_alloc(bytes);
    f.variable = esper_mem_alloc(bytes);
    if (f.last_use == NULL || f.variable == NULL) {
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "variables for %d tensors", desc->net->n_tensors);
    } else {
        for (int i = 0; i < MOST_VARIABLES; i++)
            f.holder[i] = ESPER_NO_TENSOR;
        find_last_uses(&f, needed);
        print_head(&f);
        print_body(&f, needed);
        esper_page_print(page, "        return ");
        if (desc->net->output == desc->net->input)
            esper_page_print(page, "%s", input_word(desc->net));
        else
            print_variable(page, f.variable[desc->net->output]);
        esper_page_print(page, "\n");
        print_loss(&f);
    }
    esper_mem_free(f.last_use);
    esper_mem_free(f.variable);
}
