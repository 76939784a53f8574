/* Internal. A net as a PyTorch module: the text of a model.py and the names its state_dict has.
 *
 * The module is written from the program. Operations that torch.nn has a layer for become submodules, the others calls of
 * torch.nn.functional or of a few lines at the head of the file; forward is the program, line by line, as far as the
 * output needs it. The loss becomes a method of its own.
 *
 * Names: a tensor keeps the name it has in the program, and its dots become submodules (nn.ModuleList for 0, 1, 2 ...,
 * nn.ModuleDict for other numbers). What Python or nn.Module do not allow is changed: characters that are neither letters
 * nor digits become '_', a word that is taken gets a '_' behind it, a number that cannot be an index one before it. */
#ifndef ESPER_NN_TORCH_EXPORT_H
#define ESPER_NN_TORCH_EXPORT_H

#include "tensor/net.h"

enum { ESPER_TORCH_NAME_CHARS = 3 * ESPER_NAME_CHARS };

/* The value of an input that is the same for every sample of a finished network: a slot's alpha. It becomes a buffer. */
typedef struct esper_torch_number {
    const char *name; /* of the input in the program */
    float       value;
} esper_torch_number;

/* A number of a row that goes in: what it is, and how it is normalised. */
typedef struct esper_torch_feature {
    const char *name; /* UTF-8, anything */
    float       mean, std;
} esper_torch_feature;

typedef struct esper_torch_desc {
    const esper_net          *net;
    const char               *class_name; /* a Python name */
    const char               *about;      /* lines at the head of the file: what this network is; NULL = none */
    const esper_torch_number *numbers;    /* for every input but the net's own and its targets */
    int                       n_numbers;
    const char *const        *classes; /* names of the outputs, UTF-8, anything: they are written as data, never as code */
    int                       n_classes;
    const esper_torch_feature *features; /* of the inputs of a network for tables */
    int                       n_features;
} esper_torch_desc;

typedef enum esper_torch_source {
    ESPER_TORCH_STATE,   /* a parameter or norm buffer: its elements in the slab */
    ESPER_TORCH_NUMBER,  /* one float */
    ESPER_TORCH_BATCHES, /* one int64, a scalar: batches a batch norm has seen. PyTorch counts them; we have no such tensor */
} esper_torch_source;

/* One entry of the state_dict. */
typedef struct esper_torch_entry {
    char               name[ESPER_TORCH_NAME_CHARS];
    esper_torch_source source;
    int                tensor; /* whose shape it has; of BATCHES the running variance beside it */
    float              value;  /* of NUMBER */
} esper_torch_entry;

typedef struct esper_torch {
    char              *text; /* model.py */
    esper_torch_entry *entries;
    int                n_entries;
} esper_torch;

/* E_UNSUPPORTED names an operation that has no counterpart yet, E_ARG an input without a value or a name that two tensors
 * would share. */
esper_status esper_torch_init(esper_torch *torch, const esper_torch_desc *desc);
void         esper_torch_fini(esper_torch *torch);

#endif
