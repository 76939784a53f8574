/* The names of a net's tensors as a tree of modules, and which of its groups are layers of torch.nn. */
#include "nn/torch_tree.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

/* ------------------------------------------------------------------------------------------------ words */

/* What an attribute of a module cannot be called: Python's keywords, what nn.Module and our own class have already. */
static const char taken_words[] =
    " False None True and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield self members forward "
    "loss T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double "
    "dump_patches eval extra_repr float get_buffer get_extra_state get_parameter get_submodule half ipu "
    "load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters "
    "register_backward_hook register_buffer register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_module register_parameter register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule "
    "share_memory state_dict to to_empty train training type xpu zero_grad ";

static bool is_taken(const char *word)
{
    char apart[ESPER_NAME_CHARS + 4];

    snprintf(apart, sizeof(apart), " %s ", word);
    return strstr(taken_words, apart) != NULL;
}

static bool is_number(const char *word)
{
    return word[0] != '\0' && word[strspn(word, "0123456789")] == '\0';
}

/* A part of a path, n characters of it, as Python can have it. A leaf is no index: parameters have names. */
static void make_word(const char *part, size_t n, bool leaf, char word[ESPER_NAME_CHARS + 2])
{
    for (size_t i = 0; i < n; i++)
        word[i] = isalnum((unsigned char)part[i]) && (unsigned char)part[i] < 0x80 ? part[i] : '_';
    word[n] = '\0';
    if (n == 0 || (isdigit((unsigned char)word[0]) && (leaf || !is_number(word)))) {
        memmove(word + 1, word, n + 1);
        word[0] = '_';
    }
    if (is_taken(word))
        strcat(word, "_"); /* there is room for both */
}

void esper_torch_word(const esper_torch_tree *tree, int node, char word[ESPER_NAME_CHARS + 3])
{
    const esper_torch_node *at = &tree->nodes[node];
    bool index = is_number(at->name) && esper_torch_container_of(tree, at->parent) == ESPER_TORCH_NAMED;

    snprintf(word, ESPER_NAME_CHARS + 3, "%s%s", index ? "_" : "", at->name);
}

/* ------------------------------------------------------------------------------------------------ nodes */

/* A new last child; ESPER_TORCH_NONE when memory is out. */
static int add_node(esper_torch_tree *tree, int parent, const char *word)
{
    esper_torch_node *node;
    int id = tree->n_nodes;

    if (tree->n_nodes == tree->room) {
        int room = tree->room + 64;
        esper_torch_node *larger = esper_mem_grow(tree->nodes, (size_t)room * sizeof(*larger));

        if (larger == NULL)
            return ESPER_TORCH_NONE;
        tree->nodes = larger;
        tree->room = room;
    }
    node = &tree->nodes[tree->n_nodes++];
    *node = (esper_torch_node){.parent = parent, .tensor = ESPER_NO_TENSOR, .op = ESPER_TORCH_NONE};
    node->first = node->last = node->next = ESPER_TORCH_NONE;
    snprintf(node->name, sizeof(node->name), "%s", word);
    if (parent == ESPER_TORCH_NONE)
        return id;
    if (tree->nodes[parent].first == ESPER_TORCH_NONE)
        tree->nodes[parent].first = id;
    else
        tree->nodes[tree->nodes[parent].last].next = id;
    tree->nodes[parent].last = id;
    return id;
}

static int find_child(const esper_torch_tree *tree, int parent, const char *word)
{
    for (int node = tree->nodes[parent].first; node != ESPER_TORCH_NONE; node = tree->nodes[node].next)
        if (strcmp(tree->nodes[node].name, word) == 0)
            return node;
    return ESPER_TORCH_NONE;
}

static esper_status add_tensor(esper_torch_tree *tree, int tensor)
{
    const char *name = tree->net->tensors[tensor].name;
    int node = ESPER_TORCH_ROOT;

    for (const char *part = name; part != NULL;) {
        const char *dot = strchr(part, '.');
        char word[ESPER_NAME_CHARS + 2];
        int child;

        make_word(part, dot != NULL ? (size_t)(dot - part) : strlen(part), dot == NULL, word);
        child = find_child(tree, node, word);
        if (child != ESPER_TORCH_NONE && (dot == NULL || tree->nodes[child].tensor != ESPER_NO_TENSOR))
            return ESPER_FAIL(ESPER_E_ARG, "%s: a PyTorch module cannot hold this name beside the others", name);
        if (child == ESPER_TORCH_NONE)
            child = add_node(tree, node, word);
        if (child == ESPER_TORCH_NONE)
            return ESPER_FAIL(ESPER_E_NOMEM, "names of %d tensors", tree->net->n_tensors);
        node = child;
        part = dot != NULL ? dot + 1 : NULL;
    }
    tree->nodes[node].tensor = tensor;
    tree->leaf[tensor] = node;
    return ESPER_OK;
}

esper_torch_container esper_torch_container_of(const esper_torch_tree *tree, int node)
{
    esper_torch_container kind = ESPER_TORCH_LIST;
    char index[16];
    int n = 0;

    if (node == ESPER_TORCH_ROOT)
        return ESPER_TORCH_NAMED;
    for (int child = tree->nodes[node].first; child != ESPER_TORCH_NONE; child = tree->nodes[child].next, n++) {
        snprintf(index, sizeof(index), "%d", n);
        if (!is_number(tree->nodes[child].name))
            return ESPER_TORCH_NAMED;
        if (strcmp(tree->nodes[child].name, index) != 0)
            kind = ESPER_TORCH_DICT;
    }
    return kind;
}

bool esper_torch_is_layer(const esper_torch_tree *tree, int node)
{
    return tree->nodes[node].op != ESPER_TORCH_NONE;
}

void esper_torch_tree_name(const esper_torch_tree *tree, int node, char name[ESPER_TORCH_NAME_CHARS])
{
    char word[ESPER_NAME_CHARS + 3];
    size_t used;

    if (node == ESPER_TORCH_ROOT) {
        name[0] = '\0';
        return;
    }
    esper_torch_tree_name(tree, tree->nodes[node].parent, name);
    esper_torch_word(tree, node, word);
    used = strlen(name);
    snprintf(name + used, ESPER_TORCH_NAME_CHARS - used, "%s%s", used > 0 ? "." : "", word);
}

void esper_torch_print_place(const esper_torch_tree *tree, int node, esper_page *page)
{
    static const char *const before[] = {"[", "[\"", "."}, *const after[] = {"]", "\"]", ""}; /* by container */
    esper_torch_container container;
    char word[ESPER_NAME_CHARS + 3];

    if (node == ESPER_TORCH_ROOT) {
        esper_page_print(page, "self");
        return;
    }
    esper_torch_print_place(tree, tree->nodes[node].parent, page);
    esper_torch_word(tree, node, word);
    container = esper_torch_container_of(tree, tree->nodes[node].parent);
    esper_page_print(page, "%s%s%s", before[container], word, after[container]);
}

void esper_torch_print_dims(esper_page *page, const char *before, const esper_tensor *tensor)
{
    esper_page_print(page, "%s", before);
    for (int i = 0; i < tensor->rank; i++)
        esper_page_print(page, "%s%d", i > 0 || before[strlen(before) - 1] != '(' ? ", " : "", tensor->dim[i]);
}

const esper_boundary *esper_torch_slot_of_name(const esper_net *net, const char *name)
{
    for (int i = 0; i < net->n_boundaries; i++) {
        const char *slot = net->boundaries[i].slot;
        size_t n = strlen(slot);

        for (const char *part = name; part != NULL; part = strchr(part, '.') != NULL ? strchr(part, '.') + 1 : NULL)
            if (strncmp(part, slot, n) == 0 && (part[n] == '.' || part[n] == '\0'))
                return &net->boundaries[i];
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ layers */

/* A layer of torch.nn: the names of its tensors, and which inputs of the operation they are. */
typedef struct layer {
    const char *names[4];
    int         inputs[4]; /* 0 ends the list: input 0 is never a layer's own */
} layer;

static const layer weight_alone = {{"weight"}, {1}};
static const layer weight_of_positions = {{"weight"}, {2}};
static const layer weight_and_bias = {{"weight", "bias"}, {1, 2}};
static const layer weight_bias_statistics = {{"weight", "bias", "running_mean", "running_var"}, {1, 2, 3, 4}};

/* What an operation would be as a layer; an embedding has two, one for each of its tables. */
static const layer *layer_for(const esper_op *op, int input)
{
    switch (op->kind) {
    case ESPER_OP_CONV2D:
        return &weight_alone;
    case ESPER_OP_BATCH_NORM:
        return &weight_bias_statistics;
    case ESPER_OP_GROUP_NORM:
    case ESPER_OP_LAYER_NORM:
        return &weight_and_bias;
    case ESPER_OP_LINEAR:
        return op->in[2] != ESPER_NO_TENSOR ? &weight_and_bias : &weight_alone;
    case ESPER_OP_EMBEDDING:
        return input == 2 ? &weight_of_positions : &weight_alone;
    default:
        return NULL;
    }
}

/* The group whose members are just what the layer has; ESPER_TORCH_NONE when names or roles are others. */
static int group_of(const esper_torch_tree *tree, const esper_op *op, const layer *like)
{
    int group = tree->nodes[tree->leaf[op->in[like->inputs[0]]]].parent, n = 0, n_members = 0;

    if (group == ESPER_TORCH_ROOT)
        return ESPER_TORCH_NONE;
    for (; n < 4 && like->names[n] != NULL; n++) {
        int tensor = op->in[like->inputs[n]], node = tree->leaf[tensor];
        esper_role role = n < 2 ? ESPER_ROLE_PARAM : ESPER_ROLE_BUFFER;

        if (tree->nodes[node].parent != group || strcmp(tree->nodes[node].name, like->names[n]) != 0 ||
            tree->net->tensors[tensor].role != role)
            return ESPER_TORCH_NONE;
    }
    for (int child = tree->nodes[group].first; child != ESPER_TORCH_NONE; child = tree->nodes[child].next)
        n_members++;
    return n_members == n ? group : ESPER_TORCH_NONE;
}

static bool same_settings(const esper_op *a, const esper_op *b)
{
    switch (a->kind) {
    case ESPER_OP_CONV2D:
        return a->attr.conv.pad == b->attr.conv.pad && a->attr.conv.groups == b->attr.conv.groups;
    case ESPER_OP_BATCH_NORM:
    case ESPER_OP_GROUP_NORM:
    case ESPER_OP_LAYER_NORM:
        return a->attr.norm.groups == b->attr.norm.groups && a->attr.norm.eps == b->attr.norm.eps &&
               a->attr.norm.momentum == b->attr.norm.momentum;
    default:
        return true;
    }
}

int esper_torch_layer_of(const esper_torch_tree *tree, const esper_op *op, int input)
{
    const layer *like = layer_for(op, input);
    int group = like != NULL ? group_of(tree, op, like) : ESPER_TORCH_NONE;
    const esper_op *made_of;

    if (group == ESPER_TORCH_NONE || tree->nodes[group].op == ESPER_TORCH_NONE)
        return ESPER_TORCH_NONE;
    made_of = &tree->net->ops[tree->nodes[group].op];
    return made_of->kind == op->kind && same_settings(made_of, op) ? group : ESPER_TORCH_NONE;
}

/* The first operation that could be the group's layer gives it its kind. */
static void claim(esper_torch_tree *tree, int op, int input)
{
    const layer *like = layer_for(&tree->net->ops[op], input);
    int group = like != NULL ? group_of(tree, &tree->net->ops[op], like) : ESPER_TORCH_NONE;

    if (group == ESPER_TORCH_NONE || tree->nodes[group].op != ESPER_TORCH_NONE)
        return;
    tree->nodes[group].op = op;
    tree->nodes[group].input = input;
}

/* ------------------------------------------------------------------------------------------------ the tree */

esper_status esper_torch_tree_init(esper_torch_tree *tree, const esper_net *net, const bool *is_number_input,
                                   const bool *needed)
{
    esper_status status;

    *tree = (esper_torch_tree){.net = net};
    tree->leaf = esper_mem_alloc((size_t)net->n_tensors * sizeof(*tree->leaf));
    status = tree->leaf != NULL && add_node(tree, ESPER_TORCH_NONE, "") == ESPER_TORCH_ROOT
                 ? ESPER_OK
                 : ESPER_FAIL(ESPER_E_NOMEM, "names of %d tensors", net->n_tensors);
    for (int t = 0; status == ESPER_OK && t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_PARAM || net->tensors[t].role == ESPER_ROLE_BUFFER || is_number_input[t])
            status = add_tensor(tree, t);
    for (int op = 0; status == ESPER_OK && op < net->n_ops; op++)
        if (needed[op]) {
            claim(tree, op, 1);
            if (net->ops[op].kind == ESPER_OP_EMBEDDING)
                claim(tree, op, 2);
        }
    if (status != ESPER_OK)
        esper_torch_tree_fini(tree);
    return status;
}

void esper_torch_tree_fini(esper_torch_tree *tree)
{
    esper_mem_free(tree->nodes);
    esper_mem_free(tree->leaf);
    *tree = (esper_torch_tree){0};
}
