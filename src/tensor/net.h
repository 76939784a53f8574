/* Internal. A net is a program: an ordered list of operations over named tensors.
 *
 * A host or a blueprint builds it with the functions below. They check shapes and return the id of the new tensor; the
 * first mistake is kept in net->status and makes every later call a no-op that returns ESPER_NO_TENSOR, so a builder reads
 * as a plain list of layers and looks at the status once, at the end.
 *
 * Parameters and norm buffers live in the network's slab at (region, offset): region 0 is the host, the others are slots.
 * Activations get their memory from the plan. Shapes are those of one sample; parameters carry their whole shape. */
#ifndef ESPER_TENSOR_NET_H
#define ESPER_TENSOR_NET_H

#include <stdio.h>

#include "esper.h"
#include "tensor/op.h"

enum { ESPER_NO_TENSOR = -1, ESPER_NAME_CHARS = 80, ESPER_SLOT_CHARS = 16, ESPER_MAX_REGIONS = 33 };

/* Tensors of a slab begin at multiples of 16 elements (64 bytes): a cache line, and a vector of the widest kind. */
enum { ESPER_SLAB_ALIGN = 16 };

typedef enum esper_dtype { ESPER_F32, ESPER_I32 } esper_dtype;

#define ESPER_ROLE_LIST(X)                                                      \
    X(INPUT, "input")           /* written by the caller before a pass */       \
    X(PARAM, "param")           /* trained: has a gradient and moments */       \
    X(BUFFER, "buffer")         /* running statistics: state, but not trained */ \
    X(ACTIVATION, "activation") /* made by an operation */

typedef enum esper_role {
#define X(role, text) ESPER_ROLE_##role,
    ESPER_ROLE_LIST(X)
#undef X
} esper_role;

/* How a parameter is born. */
typedef struct esper_init {
    enum { ESPER_INIT_CONSTANT, ESPER_INIT_UNIFORM, ESPER_INIT_NORMAL, ESPER_INIT_ORTHOGONAL } kind;
    float
        value; /* the constant; the bound b of U(-b,b); the deviation of N(0,s); the length of a matrix's rows or columns,
                  * whichever are fewer, each at a right angle to all others */
} esper_init;

typedef struct esper_tensor {
    char        name[ESPER_NAME_CHARS];
    esper_role  role;
    esper_dtype dtype;
    int32_t     rank;
    int32_t     dim[ESPER_MAX_RANK]; /* 1 beyond rank */
    int64_t     count;               /* product of dim */
    bool        per_sample;          /* dim is repeated for each sample of a batch */
    bool        keep;                /* its data stay readable after the pass */
    bool        want_grad;           /* inputs only: the caller wants its gradient */
    bool        take_grad;           /* the caller gives its gradient, or a part of it, before the backward pass */
    int         layout;              /* the backend's word for how it lies in memory; 0, canonical, unless lowered */
    int         region;              /* of the slab: parameters and buffers */
    int64_t     offset;              /* in elements within the region */
    esper_init  init;
} esper_tensor;

typedef struct esper_op {
    esper_op_kind kind;
    esper_attr    attr;
    int           in[ESPER_OP_MAX_IN]; /* tensor ids; ESPER_NO_TENSOR = absent */
    int           out[ESPER_OP_MAX_OUT];
    uint32_t      place; /* where it stands: equal for the same operation of differently grown networks */
    int           region; /* whose it is: the host's, 0, or a slot's */
    int           variant; /* the backend's word for how it is computed; 0, on canonical layouts, unless lowered */
} esper_op;

typedef enum esper_surface {
    ESPER_SURFACE_BLOCK_END,
    ESPER_SURFACE_PRE_POOL,
    ESPER_SURFACE_POST_POOL,
    ESPER_SURFACE_POST_ATTN,
    ESPER_SURFACE_POST_MLP,
} esper_surface;

/* Of a slot whose seeds give a layer new channels: they come from what goes into the layer, take the way that its own channels take
 * (norm, ReLU, pools), and are added where the next layer adds these up. */
typedef struct esper_wide {
    int channels; /* of the layer; 0 = a slot like others */
    int source;   /* tensor that goes into the layer */
    int kernel;   /* of the layer */
    int halvings; /* pools behind it */
    int next;     /* kernel of the next layer; 0 = linear, behind a mean */
} esper_wide;

/* A place where a seed can be put: the injection spec of a slot. */
typedef struct esper_boundary {
    char          slot[ESPER_SLOT_CHARS]; /* r<row>c<col>, or a word that is nothing like it */
    int           row, col;
    int           order; /* the policy's action index; unique in a host */
    int           channels;
    float         position; /* 0..1 along the host, for display */
    int           layer_begin, layer_end;
    esper_surface surface;
    esper_wide    wide;
    int           tensor; /* features before the slot */
} esper_boundary;

struct esper_net;

/* Puts a seed at a boundary while the host is being built: returns the tensor the host goes on with. */
typedef int (*esper_net_hook)(struct esper_net *net, const esper_boundary *boundary, int x, void *context);

typedef struct esper_net {
    esper_status    status; /* the first mistake made while building */
    esper_tensor   *tensors;
    int             n_tensors;
    esper_op       *ops;
    int             n_ops;
    esper_boundary *boundaries; /* in execution order */
    int             n_boundaries;
    int64_t         region_params[ESPER_MAX_REGIONS];  /* elements used, padding included */
    int64_t         region_buffers[ESPER_MAX_REGIONS];
    int             n_regions;
    int             input, target, output, loss, correct; /* tensor ids, ESPER_NO_TENSOR where the net has none */
    esper_net_hook  hook;                        /* NULL = plain host */
    void           *hook_context;
    /* where the builder stands */
    char     prefix[ESPER_NAME_CHARS];
    int      region;
    uint32_t place, place_step;
    uint32_t n_tags[ESPER_MAX_REGIONS]; /* random streams given to dropouts of a region */
} esper_net;

void         esper_net_init(esper_net *net);
void         esper_net_fini(esper_net *net);
size_t       esper_net_bytes(const esper_net *net); /* of its lists */
esper_status esper_net_status(const esper_net *net);

/* Tensors. */
int esper_net_input(esper_net *net, const char *name, esper_dtype dtype, int rank, const int *dim);
int esper_net_param(esper_net *net, const char *name, int rank, const int *dim, esper_init init);
int esper_net_buffer(esper_net *net, const char *name, int rank, const int *dim, float value);

/* From now on names begin with `prefix` and parameters go to `region`; operations count as a seed's (region > 0). */
void esper_net_enter(esper_net *net, const char *prefix, int region);

/* Layers. */
int esper_net_conv2d(esper_net *net, int x, int weight, int pad, int groups);
int esper_net_batch_norm(esper_net *net, int x, int scale, int shift, int mean, int var, float eps, float momentum);
int esper_net_group_norm(esper_net *net, int x, int scale, int shift, int groups, float eps);
int esper_net_layer_norm(esper_net *net, int x, int scale, int shift, float eps);
int esper_net_relu(esper_net *net, int x);
int esper_net_gelu(esper_net *net, int x);
int esper_net_sigmoid(esper_net *net, int x);
int esper_net_tanh(esper_net *net, int x); /* for nets of tests: no host or blueprint has it */
int esper_net_max_pool(esper_net *net, int x);
int esper_net_global_mean(esper_net *net, int x);
int esper_net_linear(esper_net *net, int x, int weight, int bias); /* bias may be ESPER_NO_TENSOR */
int esper_net_embedding(esper_net *net, int ids, int tokens, int positions); /* positions may be ESPER_NO_TENSOR */
int esper_net_attention(esper_net *net, int qkv, int heads, float drop);
int esper_net_dropout(esper_net *net, int x, float drop); /* drop 0: returns x */
int esper_net_add(esper_net *net, int a, int b);
int esper_net_mul(esper_net *net, int a, int b);
int esper_net_channel_scale(esper_net *net, int x, int scale);
int esper_net_mix_tanh(esper_net *net, int x, int z, int weight);
int esper_net_softmax_xent(esper_net *net, int logits, int target); /* the loss; its outputs are kept */
int esper_net_isolate(esper_net *net, int x);
int esper_net_straight_through(esper_net *net, int h, int s);
int esper_net_blend_add(esper_net *net, int h, int s, int alpha);
int esper_net_blend_mul(esper_net *net, int h, int s, int u, int alpha);
int esper_net_blend_gate(esper_net *net, int h, int s, int gate, int alpha);

/* What the steps of an LSTM read (tensor/op.h). */
typedef struct esper_net_lstm_in {
    int gates, weight, bias, h, c, reset;
} esper_net_lstm_in;

int esper_net_lstm(esper_net *net, esper_net_lstm_in in, int *cells_out); /* cells_out may be NULL */
int esper_net_concat(esper_net *net, int a, int b);
int esper_net_add_rows(esper_net *net, int a, int b);
int esper_net_pool_rows(esper_net *net, int x, int there, int groups); /* groups: T */

/* An activation whose gradient the caller writes (esper_plan_grad) before each backward pass: a net may have several, beside
 * its output or loss. It is kept. What operations that read it add comes on top. */
void esper_net_take_grad(esper_net *net, int x);

/* Marks a boundary and, when the net has a hook, lets it put a seed there. boundary->tensor is filled in. */
int esper_net_boundary(esper_net *net, esper_boundary boundary, int x);

/* Makes an activation the net's input and removes every operation up to the one that made it: what is left computes the
 * same from there. Tensors keep their numbers; inputs that nobody reads any more are inputs no longer, and boundaries
 * before the cut are gone. What passes the cut on its way to a slot of new channels (esper_wide) becomes an input, too. For finished
 * programs. E_ARG, and nothing is changed: no operation makes it, or what stands behind it needs more of what would be removed
 * than that, parameters, buffers and inputs. */
esper_status esper_net_cut(esper_net *net, int tensor);

/* The inputs of a program that was cut that passed the cut; how many there are. */
int esper_net_list_passing(const esper_net *net, int tensors_out[ESPER_MAX_REGIONS]);

/* Removes the operations whose results nobody asks for: neither the loss, nor the output, nor a tensor that is kept depends
 * on them. Tensors stay, parameters of removed operations too: they have a place, but no part in the program. */
void esper_net_drop_unused(esper_net *net);

/* Reading. */
int                   esper_net_find(const esper_net *net, const char *name); /* ESPER_NO_TENSOR when there is none */
const esper_boundary *esper_net_find_boundary(const esper_net *net, const char *slot);
int64_t               esper_net_count_params(const esper_net *net, int region); /* -1 = all regions */

/* Whether the operation's input is state of the slab, read whole (weights, running statistics), rather than one slice for
 * each sample. */
bool esper_op_takes_state(esper_op_kind kind, int input);

/* The shapes and settings of an operation as a lane without memory. */
esper_lane esper_net_lane(const esper_net *net, const esper_op *op);

/* Tensors the caller reads or writes between passes keep their memory to themselves all the time. */
bool esper_net_is_shared(const esper_net *net, int tensor);

/* Whether the operation was built in a slot's region: its place lies between two of the host's. */
bool esper_op_is_seeds(const esper_op *op);

/* The text form: a line for each tensor that holds state and for each operation. */
void esper_net_print(const esper_net *net, FILE *stream);

#endif
