/* Internal. A program as it is evaluated, for other programs to compute: constants are put in, and nothing is left of what training
 * alone needs.
 *
 *     dropout, isolate, straight_through   are gone: another name for their input
 *     a blend at alpha 0 or 1              is host or seed alone; the other one's operations are gone where nobody else reads them
 *     batch norm, channel scale            a factor and a shift for each channel, folded into the convolution before where it has one
 *     relu, max pool                       part of the operation before, where nobody else reads what is between
 *
 * Everything is in order of computation, for one sample. Tensors are canonical, (C,H,W), (T,D) or (D). */
#ifndef ESPER_NN_INFER_H
#define ESPER_NN_INFER_H

#include "tensor/net.h"
#include "tensor/slab.h"

/* kind, name
 *
 *   conv         x (C,H,W), w (O,C/groups,k,k), b (O)         -> (O,H',W'), then relu, then pool, where they are set
 *   linear       x (..,I), w (O,I), b (O)                     -> (..,O), then relu
 *   affine       x (C,..), w (C), b (C)                       -> x w + b, then relu
 *   group_norm   x (C,H,W), w (C), b (C)                      -> as tensor/op.h has it
 *   layer_norm   x (..,D), w (D), b (D)
 *   mix          h, s                                         -> h + weight (s - h)
 *   blend_mul    h, s, u                                      -> h (1 + weight tanh(s - u))
 *   blend_gate   h, s, gate (1)                               -> h + e (s - h), e = weight clamp(gate)
 *   embedding    ids (T), w (V,D), b (P,D) or none            -> (T,D) */
#define ESPER_INFER_LIST(X)       \
    X(CONV, "conv")               \
    X(LINEAR, "linear")           \
    X(AFFINE, "affine")           \
    X(GROUP_NORM, "group_norm")   \
    X(LAYER_NORM, "layer_norm")   \
    X(RELU, "relu")               \
    X(GELU, "gelu")               \
    X(SIGMOID, "sigmoid")         \
    X(TANH, "tanh")               \
    X(MAX_POOL, "max_pool")       \
    X(GLOBAL_MEAN, "global_mean") \
    X(EMBEDDING, "embedding")     \
    X(ATTENTION, "attention")     \
    X(ADD, "add")                 \
    X(MUL, "mul")                 \
    X(MIX, "mix")                 \
    X(BLEND_MUL, "blend_mul")     \
    X(BLEND_GATE, "blend_gate")

typedef enum esper_infer_kind {
#define X(kind, name) ESPER_INFER_##kind,
    ESPER_INFER_LIST(X)
#undef X
        ESPER_N_INFER
} esper_infer_kind;

const char *esper_infer_name(esper_infer_kind kind);

enum { ESPER_INFER_NONE = -1, ESPER_INFER_MAX_IN = 3 };

typedef struct esper_infer_tensor {
    int32_t rank, dim[ESPER_MAX_RANK]; /* 1 beyond rank */
    int64_t count;
    bool    ids;      /* int32; else float */
    int     n_uses;   /* by operations, and as the output */
    int     last_use; /* operation; n_ops: the output */
} esper_infer_tensor;

/* Weights, of the list's own: folded ones are in no slab. */
typedef struct esper_infer_weights {
    float  *values;
    int32_t rank, dim[ESPER_MAX_RANK];
    int64_t count;
} esper_infer_weights;

typedef struct esper_infer_op {
    esper_infer_kind kind;
    int     in[ESPER_INFER_MAX_IN], out; /* tensors */
    int     w, b;                        /* weights; NONE = it has none */
    int32_t pad, groups, heads;
    bool    relu, pool;
    float   eps, weight;
    char name
        [ESPER_NAME_CHARS]; /* of its weights, as the checkpoint calls them, without the last part; "" = it has none */
} esper_infer_op;

typedef struct esper_infer {
    esper_infer_tensor  *tensors;
    esper_infer_op      *ops;
    esper_infer_weights *weights;
    int                  n_tensors, n_ops, n_weights, room_weights;
    int                  input, output;
} esper_infer;

/* The value of an input that is the same for every sample: a slot's alpha. */
typedef struct esper_infer_number {
    const char *name;
    float       value;
} esper_infer_number;

typedef struct esper_infer_desc {
    const esper_net          *net;
    const esper_slab         *mirror;  /* of the net: parameters and buffers in the host's memory */
    const esper_infer_number *numbers; /* for every input but the net's own and its targets */
    int                       n_numbers;
} esper_infer_desc;

/* E_UNSUPPORTED names an operation that only policies have, E_ARG an input without a value, E_FORMAT a weight that is no number. */
esper_status esper_infer_init(esper_infer *infer, const esper_infer_desc *desc);
void         esper_infer_fini(esper_infer *infer);

/* Multiplications (each with an addition) of a sample, and bytes of weights as floats. */
int64_t esper_infer_macs(const esper_infer *infer);
int64_t esper_infer_op_macs(const esper_infer *infer, const esper_infer_op *op);
int64_t esper_infer_params(const esper_infer *infer);

/* Memory in which tensors that are not needed at the same time share a place. Sizes are the caller's, in units of its own; `scratch`
 * is what operations want for themselves while they run. */
typedef struct esper_infer_places {
    int64_t *at;      /* (n_tensors) -1: it has none, such as the input and the output, which are the caller's */
    int64_t *scratch; /* (n_ops) likewise */
    int64_t  size;    /* of all */
} esper_infer_places;

/* sizes: (n_tensors), 0 = not to be placed; scratch: (n_ops). An operation that goes element by element may write over its first
 * input. */
esper_status esper_infer_place(const esper_infer *infer, const int64_t *sizes, const int64_t *scratch, int64_t align,
                               esper_infer_places *places);
void         esper_infer_places_fini(esper_infer_places *places);

#endif
