/* The __init__ of an exported module: layers, groups, parameters and buffers, in the order of the net's tensors. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "nn/torch_tree.h"

enum { INDENT = 4, BODY = 8 };

/* ", eps=1e-06", unless it is what PyTorch takes by itself. */
static void print_unless(esper_page *page, const char *word, float value, float usual)
{
    char text[ESPER_NUMBER_CHARS];

    if (value == usual)
        return;
    esper_number_write_float(value, text);
    esper_page_print(page, ", %s=%s", word, text);
}

static void print_conv(const esper_op *op, const esper_tensor *weight, esper_page *page)
{
    esper_page_print(page, "nn.Conv2d(%d, %d, %d", weight->dim[1] * op->attr.conv.groups, weight->dim[0],
                     weight->dim[2]);
    if (op->attr.conv.pad != 0)
        esper_page_print(page, ", padding=%d", op->attr.conv.pad);
    if (op->attr.conv.groups != 1)
        esper_page_print(page, ", groups=%d", op->attr.conv.groups);
    esper_page_print(page, ", bias=False)");
}

static void print_norm(const esper_op *op, const esper_tensor *weight, esper_page *page)
{
    if (op->kind == ESPER_OP_GROUP_NORM)
        esper_page_print(page, "nn.GroupNorm(%d, %d", op->attr.norm.groups, weight->dim[0]);
    else
        esper_page_print(page, "nn.%s(%d", op->kind == ESPER_OP_BATCH_NORM ? "BatchNorm2d" : "LayerNorm",
                         weight->dim[0]);
    print_unless(page, "eps", op->attr.norm.eps, 1e-5f);
    if (op->kind == ESPER_OP_BATCH_NORM)
        print_unless(page, "momentum", op->attr.norm.momentum, 0.1f);
    esper_page_print(page, ")");
}

static void print_layer(const esper_torch_tree *tree, const esper_torch_node *node, esper_page *page)
{
    const esper_op *op = &tree->net->ops[node->op];
    const esper_tensor *weight = &tree->net->tensors[op->in[node->input]];

    switch (op->kind) {
    case ESPER_OP_CONV2D:
        print_conv(op, weight, page);
        break;
    case ESPER_OP_LINEAR:
        esper_page_print(page, "nn.Linear(%d, %d%s)", weight->dim[1], weight->dim[0],
                         op->in[2] != ESPER_NO_TENSOR ? "" : ", bias=False");
        break;
    case ESPER_OP_EMBEDDING:
        esper_page_print(page, "nn.Embedding(%d, %d)", weight->dim[0], weight->dim[1]);
        break;
    default:
        print_norm(op, weight, page);
        break;
    }
}

/* torch.tensor([1.0]): without the point it would hold integers. */
static void print_number(float value, esper_page *page)
{
    char text[ESPER_NUMBER_CHARS];

    esper_number_write_float(value, text);
    if (!isfinite(value))
        esper_page_print(page, "torch.tensor([float(\"%s\")])", text);
    else
        esper_page_print(page, "torch.tensor([%s%s])", text, strpbrk(text, ".e") == NULL ? ".0" : "");
}

static void print_leaf(const esper_torch_tree *tree, const esper_torch_desc *desc, int node, esper_page *page)
{
    const esper_tensor *tensor = &tree->net->tensors[tree->nodes[node].tensor];

    if (tensor->role == ESPER_ROLE_INPUT) {
        print_number(*esper_torch_find_number(desc, tensor->name), page);
        return;
    }
    esper_page_print(page, "%s", tensor->role == ESPER_ROLE_PARAM ? "nn.Parameter(" : "");
    esper_torch_print_dims(page, "torch.zeros(", tensor);
    esper_page_print(page, "%s", tensor->role == ESPER_ROLE_PARAM ? "))" : ")");
}

static void print_member(const esper_torch_tree *tree, const esper_torch_desc *desc, int node, int depth,
                         esper_page *page);

/* What a slot holds is said where it begins. */
static void print_slot(const esper_torch_tree *tree, int node, int depth, esper_page *page)
{
    if (esper_net_find_boundary(tree->net, tree->nodes[node].name) != NULL)
        esper_page_print(page, "%*s# the seed in slot %s\n", depth, "", tree->nodes[node].name);
}

static void print_group(const esper_torch_tree *tree, const esper_torch_desc *desc, int node, int depth,
                        esper_page *page)
{
    static const char *const begin[] = {"nn.ModuleList([\n", "nn.ModuleDict({\n", "Group(\n"};
    static const char *const end[] = {"])", "})", ")"};
    esper_torch_container container = esper_torch_container_of(tree, node);
    char word[ESPER_NAME_CHARS + 3];

    esper_page_print(page, "%s", begin[container]);
    for (int child = tree->nodes[node].first; child != ESPER_TORCH_NONE; child = tree->nodes[child].next) {
        print_slot(tree, child, depth + INDENT, page);
        esper_page_print(page, "%*s", depth + INDENT, "");
        esper_torch_word(tree, child, word);
        if (container == ESPER_TORCH_DICT)
            esper_page_print(page, "\"%s\": ", word);
        else if (container == ESPER_TORCH_NAMED)
            esper_page_print(page, "%s=", word);
        print_member(tree, desc, child, depth + INDENT, page);
        esper_page_print(page, ",\n");
    }
    esper_page_print(page, "%*s%s", depth, "", end[container]);
}

static void print_member(const esper_torch_tree *tree, const esper_torch_desc *desc, int node, int depth,
                         esper_page *page)
{
    if (esper_torch_is_layer(tree, node))
        print_layer(tree, &tree->nodes[node], page);
    else if (tree->nodes[node].tensor != ESPER_NO_TENSOR)
        print_leaf(tree, desc, node, page);
    else
        print_group(tree, desc, node, depth, page);
}

void esper_torch_print_init(const esper_torch_tree *tree, const esper_torch_desc *desc, esper_page *page)
{
    char word[ESPER_NAME_CHARS + 3];

    esper_page_print(page, "    def __init__(self):\n        super().__init__()\n");
    for (int node = tree->nodes[ESPER_TORCH_ROOT].first; node != ESPER_TORCH_NONE; node = tree->nodes[node].next) {
        int tensor = tree->nodes[node].tensor;
        bool buffer = tensor != ESPER_NO_TENSOR && tree->net->tensors[tensor].role != ESPER_ROLE_PARAM;

        print_slot(tree, node, BODY, page);
        esper_torch_word(tree, node, word);
        esper_page_print(page, buffer ? "%*sself.register_buffer(\"%s\", " : "%*sself.%s = ", BODY, "", word);
        print_member(tree, desc, node, BODY, page);
        esper_page_print(page, buffer ? ")\n" : "\n");
    }
}
