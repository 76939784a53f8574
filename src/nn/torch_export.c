/* A net as a PyTorch module: what is needed, the file around the module, and the list of its state_dict. */
#include "nn/torch_export.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/utf8.h"
#include "nn/torch_tree.h"

/* ------------------------------------------------------------------------------------------------ the text */

/* Who runs the file as a program to see whether it works gets a sentence; who imports it, Python's own error. */
static const char imports[] = "import json\n"
                              "import math\n"
                              "import os\n"
                              "import sys\n"
                              "\n"
                              "try:\n"
                              "    import torch\n"
                              "except ModuleNotFoundError as error:\n"
                              "    if __name__ != \"__main__\" or error.name != \"torch\":\n"
                              "        raise\n"
                              "    sys.exit(f\"model.py needs PyTorch, and {sys.executable} has none: \"\n"
                              "             \"pip install torch, or take a Python that has it\")\n"
                              "import torch.nn.functional as F\n"
                              "from torch import nn\n";

static const char group_class[] = "\n\nclass Group(nn.Module):\n"
                                  "    \"\"\"Holds modules, parameters and buffers under their names.\"\"\"\n"
                                  "\n"
                                  "    def __init__(self, **members):\n"
                                  "        super().__init__()\n"
                                  "        for name, member in members.items():\n"
                                  "            if isinstance(member, (nn.Module, nn.Parameter)):\n"
                                  "                setattr(self, name, member)\n"
                                  "            else:\n"
                                  "                self.register_buffer(name, member)\n";

static const char attention_function[] =
    "\n\ndef causal_attention(qkv, heads, drop=0.0, training=False):\n"
    "    \"\"\"Each token looks at itself and at those before it; a row of qkv is [q | k | v].\"\"\"\n"
    "    n, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3\n"
    "    parts = qkv.reshape(n, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)\n"
    "    q, k, v = parts[0], parts[1], parts[2]\n"
    "    scores = q @ k.transpose(2, 3) / math.sqrt(width // heads)\n"
    "    later = torch.ones(t, t, dtype=torch.bool, device=qkv.device).triu(1)\n"
    "    weights = F.softmax(scores.masked_fill(later, float(\"-inf\")), dim=-1)\n"
    "    weights = F.dropout(weights, drop, training)\n"
    "    return (weights @ v).transpose(1, 2).reshape(n, t, width)\n";

static const char lstm_function[] =
    "\n\ndef lstm_steps(gates, weight, bias, h, c, reset):\n"
    "    \"\"\"Steps of an LSTM from the state (h, c); where reset is not 0 a step begins from nothing.\"\"\"\n"
    "    steps = []\n"
    "    for t in range(gates.shape[1]):\n"
    "        anew = reset[:, t : t + 1] != 0\n"
    "        h, c = h.masked_fill(anew, 0.0), c.masked_fill(anew, 0.0)\n"
    "        i, f, g, o = (gates[:, t] + F.linear(h, weight, bias)).chunk(4, dim=1)\n"
    "        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)\n"
    "        h = torch.sigmoid(o) * torch.tanh(c)\n"
    "        steps.append(h)\n"
    "    return torch.stack(steps, dim=1)\n";

static const char straight_through_class[] =
    "\n\nclass StraightThrough(torch.autograd.Function):\n"
    "    \"\"\"The host's values; the gradient reaches host and seed alike.\"\"\"\n"
    "\n"
    "    @staticmethod\n"
    "    def forward(ctx, host, seed):\n"
    "        return host.clone()\n"
    "\n"
    "    @staticmethod\n"
    "    def backward(ctx, grad):\n"
    "        return grad, grad\n";

static const char blend_function[] =
    "\n\ndef blend(host, seed, alpha):\n"
    "    \"\"\"From host (alpha 0) to seed (alpha 1); at the ends the other one does not count at all.\"\"\"\n"
    "    alpha = alpha.clamp(0, 1).view(-1, *[1] * (host.dim() - 1))\n"
    "    mixed = torch.lerp(host, seed, alpha)\n"
    "    return torch.where(alpha == 0, host, torch.where(alpha == 1, seed, mixed))\n";

static const char blend_multiply_function[] =
    "\n\ndef blend_multiply(host, seed, seen, alpha):\n"
    "    \"\"\"The host scaled by what the seed made of the features it has seen; at alpha 0 the host.\"\"\"\n"
    "    alpha = alpha.clamp(0, 1).view(-1, *[1] * (host.dim() - 1))\n"
    "    return torch.where(alpha == 0, host, host * (1 + alpha * torch.tanh(seed - seen)))\n";

static const char loading[] =
    "\n\ndef read_safetensors(path):\n"
    "    \"\"\"Name -> tensor. The file: the header's length in 8 bytes, the header in JSON, the data.\"\"\"\n"
    "    dtypes = {\"F32\": torch.float32, \"I64\": torch.int64}\n"
    "    with open(path, \"rb\") as file:\n"
    "        header = json.loads(file.read(int.from_bytes(file.read(8), \"little\")))\n"
    "        data = bytearray(file.read())\n"
    "    header.pop(\"__metadata__\", None)\n"
    "    tensors = {}\n"
    "    for name, entry in header.items():\n"
    "        count, offset = math.prod(entry[\"shape\"]), entry[\"data_offsets\"][0]\n"
    "        flat = torch.frombuffer(data, dtype=dtypes[entry[\"dtype\"]], count=count, offset=offset)\n"
    "        tensors[name] = flat.reshape(entry[\"shape\"])\n"
    "    return tensors\n";

/* Text from anywhere, such as a path, inside of a string with three quotes: plain characters alone. */
static void print_plain(esper_page *page, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        esper_page_print(page, "%c", c == '"' ? '\'' : c == '\\' ? '/' : (c >= ' ' && c < 0x7f) || c == '\n' ? c : '?');
    }
}

static void print_docstring(const esper_torch_desc *desc, esper_page *page)
{
    esper_page_print(page, "\"\"\"");
    print_plain(page, desc->about != NULL ? desc->about : desc->class_name);
    esper_page_print(page,
                     "\n\nWritten by esper %s. The tensors of model.safetensors have the names of state_dict():\n\n"
                     "    from model import load\n"
                     "    model = load(\"model.safetensors\")\n\n"
                     "Run as a program, this file loads model.safetensors beside it and says what came out.\n"
                     "\"\"\"\n",
                     ESPER_VERSION);
}

/* Characters that are not seen, or that turn around how a line is seen: a name could look like another, or like code. Controls, soft
 * hyphen, marks of direction, separators of lines, joiners, private use, tags. */
static bool is_unseen(uint32_t c)
{
    static const uint32_t ranges[][2] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},       {0x34f, 0x34f},
                                         {0x61c, 0x61c},   {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180b, 0x180f},
                                         {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},   {0x3164, 0x3164},
                                         {0xd800, 0xf8ff}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
                                         {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0x10ffff}};

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return false;
}

/* Text from anywhere as a string of Python, in UTF-8: as it is but for quotes and backslashes, so that no text can end the string, and
 * what is not seen, by their numbers. Bytes that are no UTF-8 become U+FFFD. */
static void print_string(esper_page *page, const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t n = strlen(text), length;

    esper_page_print(page, "\"");
    for (; n > 0; at += length, n -= length) {
        uint32_t c = at[0];

        length = esper_utf8_length(at, n);
        if (length == 0) {
            length = 1;
            c = 0xfffd;
        }
        if (length > 1) {
            c = at[0] & (0xffu >> (length + 1));
            for (size_t i = 1; i < length; i++)
                c = c << 6 | (at[i] & 0x3fu);
        }
        if (c == '"' || c == '\\' || c == 0xfffd || is_unseen(c))
            esper_page_print(page, c > 0xffff ? "\\U%08x" : "\\u%04x", c);
        else
            esper_page_print(page, "%.*s", (int)length, (const char *)at);
    }
    esper_page_print(page, "\"");
}

static void print_lists(const esper_torch_desc *desc, esper_page *page)
{
    char mean[ESPER_NUMBER_CHARS], std[ESPER_NUMBER_CHARS];

    if (desc->n_classes > 0) {
        esper_page_print(page, "\n\n# What the outputs stand for, in their order.\nCLASSES = [\n");
        for (int i = 0; i < desc->n_classes; i++) {
            esper_page_print(page, "    ");
            print_string(page, desc->classes[i]);
            esper_page_print(page, ",\n");
        }
        esper_page_print(page, "]\n");
    }
    if (desc->n_features == 0)
        return;
    esper_page_print(
        page,
        "\n# What goes in, in this order: (value - mean) / std, and 0 for what is missing. \"column = word\" is 1 for"
        "\n# that word and 0 for others, \"column is missing\" 1 where it is.\nFEATURES = [  # name, mean, std\n");
    for (int i = 0; i < desc->n_features; i++) {
        esper_number_write_float(desc->features[i].mean, mean);
        esper_number_write_float(desc->features[i].std, std);
        esper_page_print(page, "    (");
        print_string(page, desc->features[i].name);
        esper_page_print(page, ", %s, %s),\n", mean, std);
    }
    esper_page_print(page, "]\n");
}

static void print_end(const esper_torch_desc *desc, esper_page *page)
{
    const esper_tensor *input = &desc->net->tensors[desc->net->input];

    esper_page_print(page,
                     "%s\n\ndef load(path):\n"
                     "    \"\"\"The network with the weights of a file, ready to be evaluated.\"\"\"\n"
                     "    model = %s()\n"
                     "    model.load_state_dict(read_safetensors(path), strict=True)\n"
                     "    return model.eval()\n"
                     "\n\nif __name__ == \"__main__\":\n"
                     "    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), \"model.safetensors\")\n"
                     "    model = load(sys.argv[1] if len(sys.argv) > 1 else beside)\n"
                     "    with torch.no_grad():\n"
                     "        output = model(",
                     loading, desc->class_name);
    esper_torch_print_dims(page, "torch.zeros(1", input); /* one sample */
    esper_page_print(page,
                     "%s))\n"
                     "    count = sum(parameter.numel() for parameter in model.parameters())\n"
                     "    print(f\"{count:,} parameters, output {tuple(output.shape)} for an input of zeros\")\n",
                     input->dtype == ESPER_I32 ? ", dtype=torch.long" : "");
}

/* ------------------------------------------------------------------------------------------------ the writer */

typedef struct writer {
    const esper_torch_desc *desc;
    const esper_net        *net;
    bool                   *needed;    /* (n_ops) the output is made with it, or it is the output's loss */
    bool                   *is_number; /* (n_tensors) an input that becomes a buffer */
    esper_torch_tree        tree;
    esper_page              page;
} writer;

const float *esper_torch_find_number(const esper_torch_desc *desc, const char *name)
{
    for (int i = 0; i < desc->n_numbers; i++)
        if (strcmp(desc->numbers[i].name, name) == 0)
            return &desc->numbers[i].value;
    return NULL;
}

static bool uses(const writer *w, esper_op_kind kind)
{
    for (int i = 0; i < w->net->n_ops; i++)
        if (w->needed[i] && w->net->ops[i].kind == kind)
            return true;
    return false;
}

static void print_helpers(writer *w)
{
    bool gate = uses(w, ESPER_OP_BLEND_GATE), group = false;

    for (int node = 1; node < w->tree.n_nodes; node++)
        group = group || (w->tree.nodes[node].tensor == ESPER_NO_TENSOR && !esper_torch_is_layer(&w->tree, node) &&
                          esper_torch_container_of(&w->tree, node) == ESPER_TORCH_NAMED);
    esper_page_print(&w->page, "%s", group ? group_class : "");
    esper_page_print(&w->page, "%s", uses(w, ESPER_OP_ATTENTION) ? attention_function : "");
    esper_page_print(&w->page, "%s", uses(w, ESPER_OP_LSTM) ? lstm_function : "");
    esper_page_print(&w->page, "%s", uses(w, ESPER_OP_STRAIGHT_THROUGH) ? straight_through_class : "");
    esper_page_print(&w->page, "%s", gate || uses(w, ESPER_OP_BLEND_ADD) ? blend_function : "");
    esper_page_print(&w->page, "%s", uses(w, ESPER_OP_BLEND_MUL) ? blend_multiply_function : "");
}

static void print_file(writer *w)
{
    print_docstring(w->desc, &w->page);
    esper_page_print(&w->page, "%s", imports);
    print_lists(w->desc, &w->page);
    print_helpers(w);
    esper_page_print(&w->page, "\n\nclass %s(nn.Module):\n", w->desc->class_name);
    esper_torch_print_init(&w->tree, w->desc, &w->page);
    esper_torch_print_forward(&w->tree, w->desc, w->needed, &w->page);
    print_end(w->desc, &w->page);
}

/* Walks back from the output. An operation that is needed must be one we can write. */
static esper_status find_needed(writer *w)
{
    const esper_net *net = w->net;
    bool *wanted = esper_mem_alloc((size_t)net->n_tensors);
    esper_status status = ESPER_OK;

    if (wanted == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a program of %d tensors", net->n_tensors);
    wanted[net->output] = true;
    for (int i = net->n_ops - 1; i >= 0 && status == ESPER_OK; i--) {
        const esper_op *op = &net->ops[i];
        bool loss = op->kind == ESPER_OP_SOFTMAX_XENT && op->in[0] == net->output;

        for (int k = 0; k < ESPER_OP_MAX_OUT; k++)
            w->needed[i] = w->needed[i] || (op->out[k] != ESPER_NO_TENSOR && wanted[op->out[k]]);
        if (w->needed[i] && (!esper_torch_can_write(op->kind) || op->kind == ESPER_OP_SOFTMAX_XENT))
            status = ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: no PyTorch is known for the operation %s",
                                net->tensors[op->out[0]].name, esper_op_info_of(op->kind)->name);
        for (int k = 0; w->needed[i] && k < ESPER_OP_MAX_IN; k++)
            if (op->in[k] != ESPER_NO_TENSOR)
                wanted[op->in[k]] = true;
        w->needed[i] = w->needed[i] || loss;
    }
    for (int t = 0; t < net->n_tensors; t++)
        w->is_number[t] = wanted[t] && net->tensors[t].role == ESPER_ROLE_INPUT && t != net->input;
    esper_mem_free(wanted);
    return status;
}

static esper_status check_numbers(const writer *w)
{
    for (int t = 0; t < w->net->n_tensors; t++) {
        const esper_tensor *tensor = &w->net->tensors[t];

        if (!w->is_number[t])
            continue;
        if (tensor->count != 1 || tensor->dtype != ESPER_F32)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: a second input of the network, and not one number",
                              tensor->name);
        if (esper_torch_find_number(w->desc, tensor->name) == NULL)
            return ESPER_FAIL(ESPER_E_ARG, "%s: the network needs this number, and nobody says what it is",
                              tensor->name);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ entries */

static esper_status list_entries(const writer *w, esper_torch *torch)
{
    torch->entries = esper_mem_alloc(2 * (size_t)w->tree.n_nodes * sizeof(*torch->entries));
    if (torch->entries == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "names of %d tensors", w->net->n_tensors);
    for (int node = 1; node < w->tree.n_nodes; node++) {
        const esper_torch_node *at = &w->tree.nodes[node];
        bool counts = at->tensor == ESPER_NO_TENSOR && esper_torch_is_layer(&w->tree, node) &&
                      w->net->ops[at->op].kind == ESPER_OP_BATCH_NORM;
        esper_torch_entry *entry = &torch->entries[torch->n_entries];

        if (at->tensor == ESPER_NO_TENSOR && !counts)
            continue;
        assert(torch->n_entries < 2 * w->tree.n_nodes);
        torch->n_entries++;
        esper_torch_tree_name(&w->tree, node, entry->name);
        entry->source = counts ? ESPER_TORCH_BATCHES : ESPER_TORCH_STATE;
        entry->tensor = counts ? w->net->ops[at->op].in[4] : at->tensor;
        if (counts) {
            strncat(entry->name, ".num_batches_tracked", sizeof(entry->name) - strlen(entry->name) - 1);
        } else if (w->is_number[at->tensor]) {
            entry->source = ESPER_TORCH_NUMBER;
            entry->value = *esper_torch_find_number(w->desc, w->net->tensors[at->tensor].name);
        }
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static esper_status write_all(writer *w, esper_torch *torch)
{
    ESPER_TRY(find_needed(w));
    ESPER_TRY(check_numbers(w));
    ESPER_TRY(esper_torch_tree_init(&w->tree, w->net, w->is_number, w->needed));
    print_file(w);
    ESPER_TRY(w->page.status);
    ESPER_TRY(list_entries(w, torch));
    torch->text = w->page.text;
    w->page.text = NULL;
    return ESPER_OK;
}

esper_status esper_torch_init(esper_torch *torch, const esper_torch_desc *desc)
{
    writer w = {.desc = desc, .net = desc->net};
    esper_torch made = {0};
    esper_status status = ESPER_OK;

    if (desc->net->input == ESPER_NO_TENSOR || desc->net->output == ESPER_NO_TENSOR)
        return ESPER_FAIL(ESPER_E_ARG, "a network without input or output cannot be a PyTorch module");
    w.needed = esper_mem_alloc((size_t)desc->net->n_ops + 1);
    w.is_number = esper_mem_alloc((size_t)desc->net->n_tensors);
    if (w.needed == NULL || w.is_number == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "a program of %d operations", desc->net->n_ops);
    if (status == ESPER_OK)
        status = write_all(&w, &made);
    esper_torch_tree_fini(&w.tree);
    esper_page_fini(&w.page);
    esper_mem_free(w.needed);
    esper_mem_free(w.is_number);
    if (status == ESPER_OK)
        *torch = made;
    else
        esper_torch_fini(&made);
    return status;
}

void esper_torch_fini(esper_torch *torch)
{
    esper_mem_free(torch->text);
    esper_mem_free(torch->entries);
    *torch = (esper_torch){0};
}
