/* Internal to the export to PyTorch. The names of a net's tensors as a tree of modules. */
#ifndef ESPER_NN_TORCH_TREE_H
#define ESPER_NN_TORCH_TREE_H

#include "base/page.h"
#include "nn/torch_export.h"

enum { ESPER_TORCH_NONE = -1, ESPER_TORCH_ROOT = 0 };

typedef struct esper_torch_node {
    char name[ESPER_NAME_CHARS + 2]; /* one part of a path, as Python has it; digits alone are an index */
    int  parent, first, last, next;  /* ESPER_TORCH_NONE where there is none */
    int  tensor;                     /* of a leaf, else ESPER_NO_TENSOR */
    int  op, input; /* of a layer of torch.nn: the operation it is, and which of its inputs is its weight; else NONE */
} esper_torch_node;

typedef struct esper_torch_tree {
    const esper_net  *net;
    esper_torch_node *nodes; /* the first is the module itself */
    int               n_nodes, room;
    int              *leaf; /* (n_tensors) the node of a tensor that holds state or a number */
} esper_torch_tree;

/* All parameters and buffers, and the inputs marked in `is_number` (n_tensors). Operations marked in `needed` (n_ops)
 * become layers where the names allow it: their tensors are weight, bias, ... of one group that holds nothing else. */
esper_status esper_torch_tree_init(esper_torch_tree *tree, const esper_net *net, const bool *is_number,
                                   const bool *needed);
void         esper_torch_tree_fini(esper_torch_tree *tree);

/* How a group is written: nn.ModuleList, nn.ModuleDict, or with names. */
typedef enum esper_torch_container { ESPER_TORCH_LIST, ESPER_TORCH_DICT, ESPER_TORCH_NAMED } esper_torch_container;

esper_torch_container esper_torch_container_of(const esper_torch_tree *tree, int node);
bool                  esper_torch_is_layer(const esper_torch_tree *tree, int node);

/* The name in the state_dict, "blocks.0.conv.weight"; and the expression for it, "self.blocks[0].conv.weight". */
void esper_torch_tree_name(const esper_torch_tree *tree, int node, char name[ESPER_TORCH_NAME_CHARS]);
void esper_torch_print_place(const esper_torch_tree *tree, int node, esper_page *page);

/* The layer that computes this operation, of an embedding the one of this input; ESPER_TORCH_NONE: there is none. */
int esper_torch_layer_of(const esper_torch_tree *tree, const esper_op *op, int input);

/* The word by which a member of a named group is known. */
void esper_torch_word(const esper_torch_tree *tree, int node, char word[ESPER_NAME_CHARS + 3]);

/* "torch.zeros(8, 3", with `before` "torch.zeros(". */
void esper_torch_print_dims(esper_page *page, const char *before, const esper_tensor *tensor);

/* The slot that a name speaks of ("r0c1" in "r0c1.conv.weight"); NULL when it is of none. */
const esper_boundary *esper_torch_slot_of_name(const esper_net *net, const char *name);

/* The module: its classes' __init__, and forward with the loss (torch_layers.c, torch_forward.c). */
void esper_torch_print_init(const esper_torch_tree *tree, const esper_torch_desc *desc, esper_page *page);
void esper_torch_print_forward(const esper_torch_tree *tree, const esper_torch_desc *desc, const bool *needed,
                               esper_page *page);

/* Whether forward can write this kind. */
bool esper_torch_can_write(esper_op_kind kind);

/* The value of a number; NULL when the description has none of that name. */
const float *esper_torch_find_number(const esper_torch_desc *desc, const char *name);

#endif
