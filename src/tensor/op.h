/* Internal. The one list of operations, and what a backend receives when an operation is launched.
 *
 * Dimension letters: N samples, C channels, O output channels, H W height and width, T tokens, D width of a token, V
 * vocabulary or classes, I O inputs and outputs of a linear layer. Layouts are canonical: (N,C,H,W) and (N,T,D), dense.
 *
 * A *lane* is one network's share of a launch: pointers and dimensions. An operation is launched once for all networks
 * that reached it, so a backend gets an operation kind and an array of lanes. */
#ifndef ESPER_TENSOR_OP_H
#define ESPER_TENSOR_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"

enum { ESPER_MAX_RANK = 4, ESPER_OP_MAX_IN = 6, ESPER_OP_MAX_OUT = 4 };

#define ESPER_BIT(i) (1u << (i))

/* kind, name, inputs, outputs, which inputs a gradient can reach, which inputs and outputs the backward pass reads (bit i
 * = entry i; parameters are always at hand and need no bit).
 *
 *   conv2d        x (C,H,W), w (O,C/groups,k,k)                    -> y (O,H',W')          stride 1
 *   batch_norm    x (C,H,W), scale (C), shift (C), mean (C), var (C) -> y, batch mean (C), batch 1/std (C)
 *   group_norm    x (C,H,W), scale (C), shift (C)                  -> y, (mean, 1/std) of each group (G,2)
 *   layer_norm    x (..,D), scale (D), shift (D)                   -> y, (mean, 1/std) of each row (rows,2)
 *   max_pool      x (C,H,W)                                        -> y (C,H/2,W/2)        2x2, floor
 *   global_mean   x (C,H,W) -> (C), or x (T,D) -> (D)
 *   linear        x (..,I), w (O,I), b (O) or absent               -> y (..,O)
 *   embedding     ids (T) int32, tokens (V,D), positions (P,D) or absent -> y (T,D)        token + position
 *   attention     qkv (T,3D)                                       -> y (T,D), probabilities (heads,T,T)    causal
 *   mul           a (C,H,W), b (C) of the same sample, or b like a -> y
 *   channel_scale x (C,H,W), s (C) parameter                       -> y = x s
 *   mix_tanh      x, z like x, w (1) parameter                     -> y = x + tanh(w) (z - x)
 *   softmax_xent  logits (rows,V) or (V), targets (rows) int32     -> loss (1): sum over the sample's rows, correct (1),
 *                                                                     log of the sum of exponentials (rows)
 *   isolate       x -> the same tensor with no way back for gradients (no work, no copy)
 *   straight_through  h, s                                         -> y = h; both receive the gradient of y
 *   blend_add     h, s, alpha (1)                                  -> y = h + a (s - h)
 *   blend_mul     h, s, u, alpha (1)                               -> y = h (1 + a tanh(s - u))
 *   blend_gate    h, s, gate (1), alpha (1)                        -> y = h + e (s - h), e = a clamp(gate)
 *   lstm          gates (T,4H), w (4H,H), b (4H), h (H), c (H), reset (T) -> y (T,H), cells (T,H), opened gates (T,4H)
 *                 T steps from the state h, c; gates: what comes in at each step; where reset is not 0 a step begins from
 *                 nothing. No gradient comes in through the cells
 *   concat        a (T,A), b with T rows of B elements             -> y (T,A+B)            side by side
 *   add_rows      a (T S,D), b (T,D)                               -> y (T S,D): S rows of a get one of b each
 *   pool_rows     x (T S,D), there (T S)                           -> y (T,2D): mean, then largest, of those S rows of x where
 *                 there is not 0; zeros where all are
 */
#define ESPER_OP_LIST(X)                                            \
    X(CONV2D, conv2d, 2, 1, 0x3, 0x1, 0x0)                        \
    X(BATCH_NORM, batch_norm, 5, 3, 0x7, 0x1, 0x6)                \
    X(GROUP_NORM, group_norm, 3, 2, 0x7, 0x1, 0x2)                \
    X(LAYER_NORM, layer_norm, 3, 2, 0x7, 0x1, 0x2)                \
    X(RELU, relu, 1, 1, 0x1, 0x0, 0x1)                            \
    X(GELU, gelu, 1, 1, 0x1, 0x1, 0x0)                            \
    X(SIGMOID, sigmoid, 1, 1, 0x1, 0x0, 0x1)                      \
    X(TANH, tanh, 1, 1, 0x1, 0x0, 0x1)                            \
    X(MAX_POOL, max_pool, 1, 1, 0x1, 0x1, 0x0)                    \
    X(GLOBAL_MEAN, global_mean, 1, 1, 0x1, 0x0, 0x0)              \
    X(LINEAR, linear, 3, 1, 0x7, 0x1, 0x0)                        \
    X(EMBEDDING, embedding, 3, 1, 0x6, 0x1, 0x0)                  \
    X(ATTENTION, attention, 1, 2, 0x1, 0x1, 0x2)                  \
    X(DROPOUT, dropout, 1, 1, 0x1, 0x0, 0x0)                      \
    X(ADD, add, 2, 1, 0x3, 0x0, 0x0)                              \
    X(MUL, mul, 2, 1, 0x3, 0x3, 0x0)                              \
    X(CHANNEL_SCALE, channel_scale, 2, 1, 0x3, 0x1, 0x0)          \
    X(MIX_TANH, mix_tanh, 3, 1, 0x7, 0x3, 0x0)                    \
    X(SOFTMAX_XENT, softmax_xent, 2, 3, 0x1, 0x3, 0x4)            \
    X(ISOLATE, isolate, 1, 1, 0x0, 0x0, 0x0)                      \
    X(STRAIGHT_THROUGH, straight_through, 2, 1, 0x3, 0x0, 0x0)    \
    X(BLEND_ADD, blend_add, 3, 1, 0x3, 0x4, 0x0)                  \
    X(BLEND_MUL, blend_mul, 4, 1, 0x7, 0xf, 0x0)                  \
    X(BLEND_GATE, blend_gate, 4, 1, 0x7, 0xf, 0x0)                \
    X(LSTM, lstm, 6, 3, 0x1f, 0x38, 0x7)                          \
    X(CONCAT, concat, 2, 1, 0x3, 0x0, 0x0)                        \
    X(ADD_ROWS, add_rows, 2, 1, 0x3, 0x0, 0x0)                    \
    X(POOL_ROWS, pool_rows, 2, 1, 0x1, 0x3, 0x0)                  \
    /* Not part of a network: work on flat ranges of a slab. */     \
    X(GRAD_NORM, grad_norm, 1, 2, 0x0, 0x0, 0x0)                  \
    X(SGD, sgd, 3, 1, 0x0, 0x0, 0x0)                              \
    X(ADAMW, adamw, 3, 1, 0x0, 0x0, 0x0)

/* What lowering (tensor/backend.h) puts into a network for a backend with a layout of its own. No network is built of these.
 *
 *   pack          x in canonical layout                            -> y, the same in the backend's layout
 *   unpack        x in the backend's layout                        -> y, the same in canonical layout
 *   conv_norm     x, w, scale, shift, mean, var                    -> y, convolution (O,H,W), batch mean (O), batch 1/std (O)
 *                 conv2d, then batch_norm, then relu and max_pool where the attributes say so; the norm's own output and
 *                 that of relu are never in memory */
#define ESPER_LOWERED_LIST(X)                        \
    X(PACK, pack, 1, 1, 0x1, 0x0, 0x0)             \
    X(UNPACK, unpack, 1, 1, 0x1, 0x0, 0x0)         \
    X(CONV_NORM, conv_norm, 6, 4, 0xf, 0x1, 0xf)

typedef enum esper_op_kind {
#define X(kind, ...) ESPER_OP_##kind,
    ESPER_OP_LIST(X) ESPER_N_OPS, /* operations that networks and optimisers are made of; those below are lowering's */
    ESPER_OP_BEFORE_LOWERED = ESPER_N_OPS - 1,
    ESPER_LOWERED_LIST(X)
#undef X
        ESPER_N_KINDS
} esper_op_kind;

/* What the list says of one kind. */
typedef struct esper_op_info {
    const char *name;
    int         n_in, n_out;
    uint32_t    grad_in;   /* inputs a gradient can reach */
    uint32_t    saved_in;  /* inputs and outputs that must live until the backward pass */
    uint32_t    saved_out;
} esper_op_info;

const esper_op_info *esper_op_info_of(esper_op_kind kind);

/* What an operation needs to know beyond the shapes of its tensors. */
typedef union esper_attr {
    struct {
        int32_t pad, groups;
    } conv; /* conv2d */
    struct {
        int32_t groups;   /* group_norm */
        float   eps;      /* all norms */
        float   momentum; /* batch_norm: share of the new batch in the running statistics */
    } norm;
    struct {
        int32_t  heads;
        float    drop; /* dropout of the probabilities in training, 0 = none */
        uint32_t tag;  /* keys the dropout's random stream; unique in the network */
    } attention;
    struct {
        float    drop;
        uint32_t tag;
    } dropout;
    struct {
        int32_t pad, groups;
        float   eps, momentum;
        bool    relu, pool; /* what follows the norm */
    } conv_norm;
    struct {
        bool of_batch; /* it packs the network's input, which may have been gathered into blocks */
    } pack;
} esper_attr;

/* A tensor as a kernel sees it. Elements are float (double in the double-precision build of the kernels); int32 for ids
 * and targets. */
typedef struct esper_view {
    void   *data;                /* NULL: the tensor is absent (a linear layer without bias) */
    void   *grad;                /* like data; NULL: no gradient is wanted */
    int64_t count;               /* elements of dim: of one sample, or of the whole tensor for parameters */
    int32_t dim[ESPER_MAX_RANK]; /* without the sample dimension; 1 beyond rank */
    int32_t rank;
    bool    add; /* the gradient is added to what stands there; else it overwrites */
} esper_view;

/* What changes from pass to pass for one network. Kept by the network's owner, read by its lanes. */
typedef struct esper_pass {
    int32_t         n_samples;  /* in this batch: at most what the plan was made for */
    bool            training;   /* batch statistics and dropout, or not */
    bool            packed;     /* the batch was gathered into the blocks that pack would make of it (set by the plan) */
    float           loss_scale; /* gradient weight of one target: 1 / targets counted in the whole batch, over all ranks
                                 * that have a slice of it; then the sum of their gradients is the batch's */
    uint64_t        seed;
    uint32_t        network, step;
    const uint32_t *sample_id; /* (N) global index of each sample: keys dropout */
    const uint32_t *skip;      /* a word of the backend's: while it is not 0 a backend that is behind leaves the pass out */
} esper_pass;

/* Settings of an optimiser group for the next step. Kept by the optimiser, read by its lanes. */
typedef struct esper_group {
    float    lr, momentum, decay;
    float    beta1, beta2, eps;
    float    clip; /* largest gradient norm of the group, 0 = no clipping */
    uint32_t t;    /* number of this step, from 1: Adam's bias correction */
    uint64_t with; /* clipped by one norm over these regions of its network, bits 1u << region; 0 = by its own */
} esper_group;

/* Flat lanes:  in[0] = parameters with gradients, in[1] = first moment, in[2] = second moment (adamw);
 *              out[0] = norm of the group's gradients, one double (also in the double-precision build; written by
 *              grad_norm, read by sgd and adamw when clip > 0; NULL data = no clipping);
 *              in[3] of sgd and adamw = such norms of all regions of the network, for groups that are clipped together;
 *              in[4] = a word that skips the step while it is not 0: nothing is written then; NULL data = there is none;
 *              out[1] of grad_norm = partial sums, one double for each ESPER_FLAT_CHUNK elements. */
enum { ESPER_FLAT_CHUNK = 4096 };

/* The sum of squares of the norms of some regions: of them all as one. In one order, whoever asks. */
static inline double esper_sum_norms(const double *norms, uint64_t with)
{
    double sum = 0;

    for (int r = 0; with >> r != 0; r++)
        if ((with >> r & 1u) != 0)
            sum += norms[r] * norms[r];
    return sum;
}

/* Where a batch is spread over ranks, an operation that needs sums over all of it is launched in two parts. The first leaves
 * the sums of this rank's samples in the lane's scratch (esper_backend_ops.sums), whoever runs the launches replaces them by
 * those of all ranks, and the second goes on. In evaluation there is nothing to sum: the second does all of it. */
typedef enum esper_part { ESPER_PART_WHOLE, ESPER_PART_BEFORE, ESPER_PART_AFTER } esper_part;

/* What factors of products are rounded to, where a backend is told to (esper_backend_set_precision): they are floats, or have 10 or 7
 * bits behind the point. With BF16 a backend may also keep activations and their gradients so. All sums are of floats, and so are
 * parameters, their gradients, statistics and losses. */
typedef enum esper_precision { ESPER_FP32, ESPER_TF32, ESPER_BF16 } esper_precision;

/* All pointers are into the backend's memory: a device can read a lane as it is. */
typedef struct esper_lane {
    esper_view         in[ESPER_OP_MAX_IN];
    esper_view         out[ESPER_OP_MAX_OUT];
    esper_attr         attr;
    int32_t            max_samples; /* of the plan: no batch is larger; 0 for flat work */
    bool               spread;  /* the batch is spread over ranks: sums of a training pass are those of all of them */
    bool               frozen;  /* of a frozen region: computes as in evaluation, whatever the pass */
    uint8_t            precision; /* esper_precision: of a backend that has more than FP32 */
    bool cores;               /* the device has tensor cores, three products of which make one of floats */
    const esper_pass  *pass;    /* NULL for flat work */
    const esper_group *group;   /* NULL unless flat work */
    void              *scratch; /* memory for this launch alone, as much as its kernels asked for; NULL = none */
} esper_lane;

/* A sample of a batch: which one of the items, and for images the window in it, whether it is mirrored, and the centre of what is
 * blotted out (data/batch.h says what these are). */
typedef struct esper_pick {
    uint32_t item;
    int16_t  top, left, cut_y, cut_x;
    uint32_t flip;
} esper_pick;

typedef enum esper_items { ESPER_ITEMS_IMAGES, ESPER_ITEMS_ROWS, ESPER_ITEMS_TOKENS } esper_items;

/* A batch out of samples that lie in the backend's memory. */
typedef struct esper_gather {
    esper_items      kind;
    int32_t          n;         /* samples */
    int32_t dim
        [3]; /* C, H, W of images; F of rows; T of tokens, of which an item has one more and begins T after the last */
    int32_t          cutout;    /* side of the square that is blotted out; 0 = none */
    const void      *items;     /* bytes, floats or 16-bit tokens */
    const uint8_t   *labels;    /* of items; NULL for tokens */
    const float     *levels;    /* (C, 256) what a byte of an image stands for */
    float           *inputs;    /* (n, C, H, W), (n, F), or int32 (n, T) */
    void            *blocks;    /* of images: where they go instead, in the backend's layout of blocks; NULL: nowhere */
    int32_t          layout;    /* of blocks: the backend's word for it */
    int32_t         *targets;   /* (n) or (n, T); NULL: nobody wants them */
} esper_gather;

/* Batch statistics and dropout, or not. */
static inline bool esper_lane_trains(const esper_lane *lane)
{
    return lane->pass->training && !lane->frozen;
}

#endif
