/* Building and printing net programs. What runs them: plan.c. */
#include "tensor/net.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { HOST_PLACE_STEP = 1024, GROW_BY = 64 };

/* Random streams for dropout (12 bits, base/rng.h). Every region has its own: what grows in a slot leaves the host's as
 * they were. A stream serves so many elements of a sample. */
enum { HOST_TAGS = 2048, SLOT_TAGS = 64, MAX_DROP_COUNT = 1 << 22 };
_Static_assert(HOST_TAGS + (ESPER_MAX_REGIONS - 1) * SLOT_TAGS <= 1 << 12, "a tag has 12 bits");

/* Elements of a tensor (of one sample): far above what memory holds, far below what 64 bits count. */
#define MAX_COUNT (INT64_C(1) << 40)

static const char *const role_names[] = {
#define X(role, text) text,
    ESPER_ROLE_LIST(X)
#undef X
};

void esper_net_init(esper_net *net)
{
    *net = (esper_net){.n_regions = 1, .place = HOST_PLACE_STEP, .place_step = HOST_PLACE_STEP};
    net->input = net->target = net->output = net->loss = net->correct = ESPER_NO_TENSOR;
}

void esper_net_fini(esper_net *net)
{
    esper_mem_free(net->tensors);
    esper_mem_free(net->ops);
    esper_mem_free(net->boundaries);
    esper_net_init(net);
}

size_t esper_net_bytes(const esper_net *net)
{
    return (size_t)net->n_tensors * sizeof(*net->tensors) + (size_t)net->n_ops * sizeof(*net->ops) +
           (size_t)net->n_boundaries * sizeof(*net->boundaries);
}

esper_status esper_net_status(const esper_net *net)
{
    return net->status;
}

/* ------------------------------------------------------------------------------------------------ lists that grow */

/* Room for one more element in a list that grows by GROW_BY; NULL (and net->status) when memory is out. */
static void *list_push(esper_net *net, void **list, int *n, size_t element_bytes)
{
    if (net->status != ESPER_OK)
        return NULL;
    if (*n % GROW_BY == 0) {
        void *larger = esper_mem_grow(*list, (size_t)(*n + GROW_BY) * element_bytes);

        if (larger == NULL) {
            net->status = ESPER_FAIL(ESPER_E_NOMEM, "net program of %d elements", *n + GROW_BY);
            return NULL;
        }
        *list = larger;
    }
    return (char *)*list + (size_t)(*n)++ * element_bytes;
}

/* ------------------------------------------------------------------------------------------------ programs */

static esper_status set_shape(esper_tensor *tensor, int rank, const int *dim)
{
    if (rank < 1 || rank > ESPER_MAX_RANK)
        return ESPER_FAIL(ESPER_E_ARG, "%s: rank %d, expected 1 to %d", tensor->name, rank, ESPER_MAX_RANK);
    tensor->rank = rank;
    tensor->count = 1;
    for (int i = 0; i < ESPER_MAX_RANK; i++) {
        tensor->dim[i] = i < rank ? dim[i] : 1;
        if (tensor->dim[i] <= 0)
            return ESPER_FAIL(ESPER_E_ARG, "%s: dimension %d is %d", tensor->name, i, dim[i]);
        if (tensor->count > MAX_COUNT / tensor->dim[i])
            return ESPER_FAIL(ESPER_E_ARG, "%s: more than 2^40 elements", tensor->name);
        tensor->count *= tensor->dim[i];
    }
    return ESPER_OK;
}

/* Names are looked up, key the weights at birth and stand in checkpoints: each is whole and given once. Operations
 * number their outputs, so only given names need the look. */
static esper_status set_name(const esper_net *net, esper_tensor *tensor, const char *name)
{
    if (snprintf(tensor->name, sizeof(tensor->name), "%s%s", net->prefix, name) >= ESPER_NAME_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "%s%s: names have at most %d characters", net->prefix, name,
                          ESPER_NAME_CHARS - 1);
    if (tensor->role != ESPER_ROLE_ACTIVATION && esper_net_find(net, tensor->name) != ESPER_NO_TENSOR)
        return ESPER_FAIL(ESPER_E_ARG, "%s: there is a tensor of that name already", tensor->name);
    return ESPER_OK;
}

static int push_tensor(esper_net *net, const char *name, esper_role role, int rank, const int *dim)
{
    esper_tensor made = {.role = role}; /* `dim` may belong to a tensor of this net: it is read before the list moves */
    esper_tensor *tensor;

    made.per_sample = role == ESPER_ROLE_INPUT || role == ESPER_ROLE_ACTIVATION;
    if (net->status == ESPER_OK)
        net->status = set_name(net, &made, name);
    if (net->status == ESPER_OK)
        net->status = set_shape(&made, rank, dim);
    tensor = list_push(net, (void **)&net->tensors, &net->n_tensors, sizeof(*tensor));
    if (tensor == NULL)
        return ESPER_NO_TENSOR;
    *tensor = made;
    return net->n_tensors - 1;
}

/* ------------------------------------------------------------------------------------------------ checks */

/* The tensor, or NULL when building has already failed. */
static const esper_tensor *get(const esper_net *net, int id)
{
    if (net->status != ESPER_OK || id < 0 || id >= net->n_tensors)
        return NULL;
    return &net->tensors[id];
}

/* Keeps the first mistake. Returns whether building may go on. */
static bool require(esper_net *net, bool holds, const char *op, const char *what)
{
    if (net->status == ESPER_OK && !holds)
        net->status = ESPER_FAIL(ESPER_E_ARG, "%s%s: %s", net->prefix, op, what);
    return net->status == ESPER_OK;
}

bool esper_op_takes_state(esper_op_kind kind, int input)
{
    switch (kind) {
    case ESPER_OP_CONV2D:
    case ESPER_OP_BATCH_NORM:
    case ESPER_OP_GROUP_NORM:
    case ESPER_OP_LAYER_NORM:
    case ESPER_OP_LINEAR:
    case ESPER_OP_EMBEDDING:
    case ESPER_OP_CHANNEL_SCALE:
    case ESPER_OP_CONV_NORM:
        return input >= 1;
    case ESPER_OP_MIX_TANH:
        return input == 2;
    case ESPER_OP_LSTM:
        return input == 1 || input == 2;
    default:
        return false;
    }
}

bool esper_op_is_seeds(const esper_op *op)
{
    return op->place % HOST_PLACE_STEP != 0;
}

/* Kernels trust what they are given: a slice for each sample or a whole parameter, numbers or ids. */
static void check_inputs(esper_net *net, esper_op_kind kind, const int *in)
{
    const esper_op_info *info = esper_op_info_of(kind);

    for (int i = 0; i < info->n_in; i++) {
        const esper_tensor *tensor = get(net, in[i]);
        bool state = esper_op_takes_state(kind, i);
        bool ids = (kind == ESPER_OP_EMBEDDING && i == 0) || (kind == ESPER_OP_SOFTMAX_XENT && i == 1);

        if (tensor == NULL) /* absent, or building has failed */
            continue;
        if (tensor->per_sample == state)
            net->status =
                ESPER_FAIL(ESPER_E_ARG, "%s%s: input %d, %s, must be %s", net->prefix, info->name, i, tensor->name,
                           state ? "a parameter or buffer" : "an input or an operation's output");
        else if ((tensor->dtype == ESPER_I32) != ids)
            net->status = ESPER_FAIL(ESPER_E_ARG, "%s%s: input %d, %s, must hold %s", net->prefix, info->name, i,
                                     tensor->name, ids ? "ids" : "numbers");
    }
}

/* An operation with its first output like `out_dim`; further outputs are the caller's to set. Ids of absent optional
 * inputs are ESPER_NO_TENSOR; a missing required one means that an earlier call failed. */
static int push_op(esper_net *net, esper_op_kind kind, const int *in, int out_rank, const int *out_dim)
{
    const esper_op_info *info = esper_op_info_of(kind);
    char name[ESPER_NAME_CHARS];
    esper_op *op;
    int out;

    check_inputs(net, kind, in);
    require(net, net->region == 0 || net->place % HOST_PLACE_STEP != 0, info->name, "too many operations in a seed");
    snprintf(name, sizeof(name), "%s.%d", info->name, net->n_ops);
    out = push_tensor(net, name, ESPER_ROLE_ACTIVATION, out_rank, out_dim);
    op = list_push(net, (void **)&net->ops, &net->n_ops, sizeof(*op));
    if (op == NULL)
        return ESPER_NO_TENSOR;
    *op = (esper_op){.kind = kind, .place = net->place};
    if (kind != ESPER_OP_ISOLATE) /* is no work: the same seed stands at the same places with it and without */
        net->place += net->place_step;
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        op->in[i] = i < info->n_in ? in[i] : ESPER_NO_TENSOR;
    for (int i = 0; i < ESPER_OP_MAX_OUT; i++)
        op->out[i] = ESPER_NO_TENSOR;
    op->out[0] = out;
    return out;
}

/* A further output of the operation pushed last: statistics and the like that its backward pass reads. */
static void push_extra_out(esper_net *net, int index, bool per_sample, int rank, const int *dim)
{
    char name[ESPER_NAME_CHARS];
    int id;

    if (net->status != ESPER_OK)
        return;
    snprintf(name, sizeof(name), "%s.%d.%d", esper_op_info_of(net->ops[net->n_ops - 1].kind)->name, net->n_ops - 1,
             index);
    id = push_tensor(net, name, ESPER_ROLE_ACTIVATION, rank, dim);
    if (id == ESPER_NO_TENSOR)
        return;
    net->tensors[id].per_sample = per_sample;
    net->ops[net->n_ops - 1].out[index] = id;
}

static esper_op *last_op(esper_net *net)
{
    return net->status == ESPER_OK ? &net->ops[net->n_ops - 1] : NULL;
}

static bool same_shape(const esper_tensor *a, const esper_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof(a->dim)) == 0;
}

static bool is_vector(const esper_tensor *tensor, int64_t count)
{
    return tensor != NULL && tensor->rank == 1 && tensor->count == count;
}

/* ------------------------------------------------------------------------------------------------ tensors */

int esper_net_input(esper_net *net, const char *name, esper_dtype dtype, int rank, const int *dim)
{
    int id = push_tensor(net, name, ESPER_ROLE_INPUT, rank, dim);

    if (id != ESPER_NO_TENSOR)
        net->tensors[id].dtype = dtype;
    return id;
}

/* Gives the tensor its place in the slab's region and lets the region grow. */
static int place_in_region(esper_net *net, int id, int64_t *used)
{
    esper_tensor *tensor;

    if (id == ESPER_NO_TENSOR)
        return id;
    tensor = &net->tensors[id];
    tensor->region = net->region;
    tensor->offset = *used;
    *used += (tensor->count + ESPER_SLAB_ALIGN - 1) / ESPER_SLAB_ALIGN * ESPER_SLAB_ALIGN;
    return id;
}

int esper_net_param(esper_net *net, const char *name, int rank, const int *dim, esper_init init)
{
    int id = push_tensor(net, name, ESPER_ROLE_PARAM, rank, dim);

    if (id != ESPER_NO_TENSOR)
        net->tensors[id].init = init;
    return place_in_region(net, id, &net->region_params[net->region]);
}

int esper_net_buffer(esper_net *net, const char *name, int rank, const int *dim, float value)
{
    int id = push_tensor(net, name, ESPER_ROLE_BUFFER, rank, dim);

    if (id != ESPER_NO_TENSOR)
        net->tensors[id].init = (esper_init){ESPER_INIT_CONSTANT, value};
    return place_in_region(net, id, &net->region_buffers[net->region]);
}

void esper_net_enter(esper_net *net, const char *prefix, int region)
{
    if (!require(net, region >= 0 && region < ESPER_MAX_REGIONS, prefix, "no such slab region"))
        return;
    if (!require(net, strlen(prefix) < sizeof(net->prefix), prefix, "the prefix is too long"))
        return;
    snprintf(net->prefix, sizeof(net->prefix), "%s", prefix);
    net->region = region;
    if (region >= net->n_regions)
        net->n_regions = region + 1;
    /* Seed operations stand between two host operations, so that equal host operations keep equal places: the first
     * comes right behind the host's last one, which stands a whole step before net->place. */
    net->place_step = region == 0 ? HOST_PLACE_STEP : 1;
    if (region == 0)
        net->place = (net->place + HOST_PLACE_STEP - 1) / HOST_PLACE_STEP * HOST_PLACE_STEP;
    else if (net->place % HOST_PLACE_STEP == 0)
        net->place -= HOST_PLACE_STEP - 1;
}

/* ------------------------------------------------------------------------------------------------ layers */

int esper_net_conv2d(esper_net *net, int x, int weight, int pad, int groups)
{
    const esper_tensor *in = get(net, x), *w = get(net, weight);
    int id;

    if (!require(net, in != NULL && w != NULL && in->rank == 3 && w->rank == 4, "conv2d",
                 "needs x (C,H,W) and w (O,C,k,k)"))
        return ESPER_NO_TENSOR;
    if (!require(net, w->dim[2] == w->dim[3] && pad >= 0, "conv2d", "needs a square kernel, and padding of 0 or more"))
        return ESPER_NO_TENSOR;
    if (!require(net, groups > 0 && in->dim[0] == w->dim[1] * groups && w->dim[0] % groups == 0, "conv2d",
                 "channels and groups do not fit the weights"))
        return ESPER_NO_TENSOR;
    id = push_op(net, ESPER_OP_CONV2D, (int[]){x, weight}, 3,
                 (int[]){w->dim[0], in->dim[1] + 2 * pad - w->dim[2] + 1, in->dim[2] + 2 * pad - w->dim[3] + 1});
    if (id != ESPER_NO_TENSOR) {
        last_op(net)->attr.conv.pad = pad;
        last_op(net)->attr.conv.groups = groups;
    }
    return id;
}

int esper_net_batch_norm(esper_net *net, int x, int scale, int shift, int mean, int var, float eps, float momentum)
{
    const esper_tensor *in = get(net, x);
    int channels, id;

    if (!require(net,
                 in != NULL && in->rank == 3 && is_vector(get(net, scale), in->dim[0]) &&
                     is_vector(get(net, shift), in->dim[0]) && is_vector(get(net, mean), in->dim[0]) &&
                     is_vector(get(net, var), in->dim[0]),
                 "batch_norm", "needs x (C,H,W) and four vectors of C"))
        return ESPER_NO_TENSOR;
    channels = in->dim[0];
    id = push_op(net, ESPER_OP_BATCH_NORM, (int[]){x, scale, shift, mean, var}, 3, in->dim);
    push_extra_out(net, 1, false, 1, &channels);
    push_extra_out(net, 2, false, 1, &channels);
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    last_op(net)->attr.norm.eps = eps;
    last_op(net)->attr.norm.momentum = momentum;
    return id;
}

int esper_net_group_norm(esper_net *net, int x, int scale, int shift, int groups, float eps)
{
    const esper_tensor *in = get(net, x);
    int id;

    if (!require(net,
                 in != NULL && in->rank == 3 && groups > 0 && in->dim[0] % groups == 0 &&
                     is_vector(get(net, scale), in->dim[0]) && is_vector(get(net, shift), in->dim[0]),
                 "group_norm", "needs x (C,H,W), two vectors of C, and groups that divide C"))
        return ESPER_NO_TENSOR;
    id = push_op(net, ESPER_OP_GROUP_NORM, (int[]){x, scale, shift}, 3, in->dim);
    push_extra_out(net, 1, true, 2, (int[]){groups, 2});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    last_op(net)->attr.norm.groups = groups;
    last_op(net)->attr.norm.eps = eps;
    return id;
}

int esper_net_layer_norm(esper_net *net, int x, int scale, int shift, float eps)
{
    const esper_tensor *in = get(net, x);
    int rows, id;

    if (!require(net,
                 in != NULL && is_vector(get(net, scale), in->dim[in->rank - 1]) &&
                     is_vector(get(net, shift), in->dim[in->rank - 1]),
                 "layer_norm", "needs x (..,D) and two vectors of D"))
        return ESPER_NO_TENSOR;
    rows = (int)(in->count / in->dim[in->rank - 1]);
    id = push_op(net, ESPER_OP_LAYER_NORM, (int[]){x, scale, shift}, in->rank, in->dim);
    push_extra_out(net, 1, true, 2, (int[]){rows, 2});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    last_op(net)->attr.norm.eps = eps;
    return id;
}

/* An operation whose output is like its first input. */
static int push_like(esper_net *net, esper_op_kind kind, const int *in)
{
    const esper_tensor *first = get(net, in[0]);

    if (!require(net, first != NULL, esper_op_info_of(kind)->name, "has no input"))
        return ESPER_NO_TENSOR;
    return push_op(net, kind, in, first->rank, first->dim);
}

int esper_net_relu(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_RELU, &x);
}

int esper_net_gelu(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_GELU, &x);
}

int esper_net_sigmoid(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_SIGMOID, &x);
}

int esper_net_tanh(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_TANH, &x);
}

int esper_net_max_pool(esper_net *net, int x)
{
    const esper_tensor *in = get(net, x);

    if (!require(net, in != NULL && in->rank == 3, "max_pool", "needs x (C,H,W)"))
        return ESPER_NO_TENSOR;
    if (!require(net, in->dim[1] >= 2 && in->dim[2] >= 2, "max_pool", "the map is too small: use fewer pools"))
        return ESPER_NO_TENSOR;
    return push_op(net, ESPER_OP_MAX_POOL, &x, 3, (int[]){in->dim[0], in->dim[1] / 2, in->dim[2] / 2});
}

int esper_net_global_mean(esper_net *net, int x)
{
    const esper_tensor *in = get(net, x);

    if (!require(net, in != NULL && (in->rank == 2 || in->rank == 3), "global_mean", "needs x (C,H,W) or (T,D)"))
        return ESPER_NO_TENSOR;
    return push_op(net, ESPER_OP_GLOBAL_MEAN, &x, 1, in->rank == 3 ? &in->dim[0] : &in->dim[1]);
}

int esper_net_linear(esper_net *net, int x, int weight, int bias)
{
    const esper_tensor *in = get(net, x), *w = get(net, weight);
    int dim[ESPER_MAX_RANK];

    if (!require(net, in != NULL && w != NULL && w->rank == 2 && in->dim[in->rank - 1] == w->dim[1], "linear",
                 "needs x (..,I) and w (O,I)"))
        return ESPER_NO_TENSOR;
    if (!require(net, bias == ESPER_NO_TENSOR || is_vector(get(net, bias), w->dim[0]), "linear", "needs a bias of O"))
        return ESPER_NO_TENSOR;
    memcpy(dim, in->dim, sizeof(dim));
    dim[in->rank - 1] = w->dim[0];
    return push_op(net, ESPER_OP_LINEAR, (int[]){x, weight, bias}, in->rank, dim);
}

int esper_net_embedding(esper_net *net, int ids, int tokens, int positions)
{
    const esper_tensor *id = get(net, ids), *tok = get(net, tokens), *pos = get(net, positions);
    bool placed = positions != ESPER_NO_TENSOR;

    if (!require(net,
                 id != NULL && tok != NULL && id->rank == 1 && tok->rank == 2 &&
                     (!placed || (pos != NULL && pos->rank == 2 && tok->dim[1] == pos->dim[1])),
                 "embedding", "needs ids (T), tokens (V,D), positions (P,D) or none"))
        return ESPER_NO_TENSOR;
    if (placed && id->dim[0] > pos->dim[0]) {
        net->status =
            ESPER_FAIL(ESPER_E_ARG, "sequence of %d tokens, but there are only %d positions", id->dim[0], pos->dim[0]);
        return ESPER_NO_TENSOR;
    }
    return push_op(net, ESPER_OP_EMBEDDING, (int[]){ids, tokens, positions}, 2, (int[]){id->dim[0], tok->dim[1]});
}

/* The number of a random stream for a dropout over `count` elements of a sample. */
static uint32_t take_tag(esper_net *net, const char *op, float drop, int64_t count)
{
    int region = net->region;
    uint32_t first = region == 0 ? 0 : (uint32_t)(HOST_TAGS + (region - 1) * SLOT_TAGS);

    if (!require(net, drop > 0.0f && drop < 1.0f, op, "the share to drop is not in [0, 1)") ||
        !require(net, count <= MAX_DROP_COUNT, op, "a sample has more than 2^22 elements to drop") ||
        !require(net, net->n_tags[region] < (region == 0 ? HOST_TAGS : SLOT_TAGS), op,
                 "too many dropouts in one region"))
        return 0;
    return first + net->n_tags[region]++;
}

int esper_net_attention(esper_net *net, int qkv, int heads, float drop)
{
    const esper_tensor *in = get(net, qkv);
    uint32_t tag = 0;
    int tokens, id;

    if (!require(net, in != NULL && in->rank == 2 && heads > 0 && in->dim[1] % (3 * heads) == 0, "attention",
                 "needs qkv (T,3D) with D divisible by the number of heads"))
        return ESPER_NO_TENSOR;
    tokens = in->dim[0];
    if (drop != 0.0f)
        tag = take_tag(net, "attention", drop, (int64_t)heads * tokens * tokens);
    id = push_op(net, ESPER_OP_ATTENTION, &qkv, 2, (int[]){tokens, in->dim[1] / 3});
    push_extra_out(net, 1, true, 3, (int[]){heads, tokens, tokens});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    last_op(net)->attr.attention.heads = heads;
    last_op(net)->attr.attention.drop = drop;
    last_op(net)->attr.attention.tag = tag;
    return id;
}

int esper_net_dropout(esper_net *net, int x, float drop)
{
    const esper_tensor *in = get(net, x);
    uint32_t tag;
    int id;

    if (drop == 0.0f)
        return x;
    tag = take_tag(net, "dropout", drop, in != NULL ? in->count : 0);
    id = push_like(net, ESPER_OP_DROPOUT, &x);
    if (id != ESPER_NO_TENSOR) {
        last_op(net)->attr.dropout.drop = drop;
        last_op(net)->attr.dropout.tag = tag;
    }
    return id;
}

/* Two inputs of one shape. */
static int push_pair(esper_net *net, esper_op_kind kind, const int *in)
{
    const esper_tensor *a = get(net, in[0]), *b = get(net, in[1]);

    if (!require(net, a != NULL && b != NULL && same_shape(a, b), esper_op_info_of(kind)->name,
                 "needs two tensors of one shape"))
        return ESPER_NO_TENSOR;
    return push_like(net, kind, in);
}

int esper_net_add(esper_net *net, int a, int b)
{
    return push_pair(net, ESPER_OP_ADD, (int[]){a, b});
}

int esper_net_mul(esper_net *net, int a, int b)
{
    const esper_tensor *left = get(net, a), *right = get(net, b);

    if (!require(net,
                 left != NULL && right != NULL &&
                     (same_shape(left, right) || (left->rank == 3 && is_vector(right, left->dim[0]))),
                 "mul", "needs b like a, or a (C,H,W) and b (C)"))
        return ESPER_NO_TENSOR;
    return push_like(net, ESPER_OP_MUL, (int[]){a, b});
}

int esper_net_channel_scale(esper_net *net, int x, int scale)
{
    const esper_tensor *in = get(net, x);

    if (!require(net, in != NULL && in->rank == 3 && is_vector(get(net, scale), in->dim[0]), "channel_scale",
                 "needs x (C,H,W) and a vector of C"))
        return ESPER_NO_TENSOR;
    return push_like(net, ESPER_OP_CHANNEL_SCALE, (int[]){x, scale});
}

int esper_net_mix_tanh(esper_net *net, int x, int z, int weight)
{
    if (!require(net, is_vector(get(net, weight), 1), "mix_tanh", "needs one weight"))
        return ESPER_NO_TENSOR;
    return push_pair(net, ESPER_OP_MIX_TANH, (int[]){x, z, weight});
}

int esper_net_softmax_xent(esper_net *net, int logits, int target)
{
    const esper_tensor *in = get(net, logits), *want = get(net, target);
    int one = 1, rows, id;

    if (!require(net,
                 in != NULL && want != NULL && want->dtype == ESPER_I32 &&
                     want->count == in->count / in->dim[in->rank - 1],
                 "softmax_xent", "needs logits (rows,V) and a target for each row"))
        return ESPER_NO_TENSOR;
    rows = (int)want->count;
    id = push_op(net, ESPER_OP_SOFTMAX_XENT, (int[]){logits, target}, 1, &one);
    push_extra_out(net, 1, true, 1, &one);
    push_extra_out(net, 2, true, 1, &rows);
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    net->loss = id;
    net->correct = last_op(net)->out[1];
    net->tensors[net->loss].keep = net->tensors[net->correct].keep = true;
    return id;
}

int esper_net_isolate(esper_net *net, int x)
{
    return push_like(net, ESPER_OP_ISOLATE, &x);
}

int esper_net_straight_through(esper_net *net, int h, int s)
{
    return push_pair(net, ESPER_OP_STRAIGHT_THROUGH, (int[]){h, s});
}

int esper_net_blend_add(esper_net *net, int h, int s, int alpha)
{
    if (!require(net, is_vector(get(net, alpha), 1), "blend_add", "needs one alpha for each sample"))
        return ESPER_NO_TENSOR;
    return push_pair(net, ESPER_OP_BLEND_ADD, (int[]){h, s, alpha});
}

int esper_net_blend_mul(esper_net *net, int h, int s, int u, int alpha)
{
    const esper_tensor *host = get(net, h), *seen = get(net, u);

    if (!require(net, is_vector(get(net, alpha), 1), "blend_mul", "needs one alpha for each sample") ||
        !require(net, host != NULL && seen != NULL && same_shape(host, seen), "blend_mul",
                 "needs h, s and u of one shape"))
        return ESPER_NO_TENSOR;
    return push_pair(net, ESPER_OP_BLEND_MUL, (int[]){h, s, u, alpha});
}

int esper_net_blend_gate(esper_net *net, int h, int s, int gate, int alpha)
{
    if (!require(net, is_vector(get(net, alpha), 1) && is_vector(get(net, gate), 1), "blend_gate",
                 "needs one gate value and one alpha for each sample"))
        return ESPER_NO_TENSOR;
    return push_pair(net, ESPER_OP_BLEND_GATE, (int[]){h, s, gate, alpha});
}

int esper_net_lstm(esper_net *net, esper_net_lstm_in in, int *cells_out)
{
    const esper_tensor *gates = get(net, in.gates), *w = get(net, in.weight), *reset = get(net, in.reset);
    int T, H, id;

    if (!require(net, gates != NULL && w != NULL && gates->rank == 2 && w->rank == 2, "lstm",
                 "needs gates (T,4H) and w (4H,H)"))
        return ESPER_NO_TENSOR;
    T = gates->dim[0];
    H = w->dim[1];
    if (!require(net, w->dim[0] == 4 * H && gates->dim[1] == 4 * H && is_vector(get(net, in.bias), 4 * H), "lstm",
                 "needs gates (T,4H), w (4H,H) and a bias of 4H") ||
        !require(net, is_vector(get(net, in.h), H) && is_vector(get(net, in.c), H) && is_vector(reset, T), "lstm",
                 "needs a state of H and H, and a reset for each step"))
        return ESPER_NO_TENSOR;
    id = push_op(net, ESPER_OP_LSTM, (int[]){in.gates, in.weight, in.bias, in.h, in.c, in.reset}, 2, (int[]){T, H});
    push_extra_out(net, 1, true, 2, (int[]){T, H});
    push_extra_out(net, 2, true, 2, (int[]){T, 4 * H});
    if (net->status != ESPER_OK)
        return ESPER_NO_TENSOR;
    if (cells_out != NULL)
        *cells_out = last_op(net)->out[1];
    return id;
}

int esper_net_concat(esper_net *net, int a, int b)
{
    const esper_tensor *left = get(net, a), *right = get(net, b);
    const int in[ESPER_OP_MAX_IN] = {a, b};
    int T;

    if (!require(net, left != NULL && right != NULL && left->rank == 2 && right->count % left->dim[0] == 0, "concat",
                 "needs a (T,A) and b with T rows"))
        return ESPER_NO_TENSOR;
    T = left->dim[0];
    return push_op(net, ESPER_OP_CONCAT, in, 2, (int[]){T, left->dim[1] + (int)(right->count / T)});
}

void esper_net_take_grad(esper_net *net, int x)
{
    if (require(net, get(net, x) != NULL && get(net, x)->per_sample, "gradient", "of nothing, or of a parameter"))
        net->tensors[x].keep = net->tensors[x].take_grad = true;
}

/* The rules of a slot's injection spec. */
static void check_boundary(esper_net *net, const esper_boundary *boundary, int x)
{
    const esper_tensor *in = get(net, x);

    const char *slot = boundary->slot;

    require(net, in != NULL && boundary->channels == (in->rank == 3 ? in->dim[0] : in->dim[in->rank - 1]), slot,
            "channels are not those of its features");
    require(net, boundary->position >= 0.0f && boundary->position <= 1.0f, slot, "position is not in 0..1");
    require(net, boundary->layer_begin >= 0 && boundary->layer_begin <= boundary->layer_end, slot, "bad layer range");
    require(net, boundary->order >= 0, slot, "negative order");
    require(net, esper_net_find_boundary(net, slot) == NULL, slot, "there is such a slot already");
    for (int i = 0; i < net->n_boundaries; i++)
        require(net, net->boundaries[i].order != boundary->order, slot, "another slot has the same order");
}

int esper_net_boundary(esper_net *net, esper_boundary boundary, int x)
{
    esper_boundary *mark;
    int after;

    check_boundary(net, &boundary, x);
    mark = list_push(net, (void **)&net->boundaries, &net->n_boundaries, sizeof(*mark));
    if (mark == NULL)
        return ESPER_NO_TENSOR;
    boundary.tensor = x;
    *mark = boundary;
    if (net->hook == NULL)
        return x;
    after = net->hook(net, &boundary, x, net->hook_context);
    require(net, get(net, after) != NULL && same_shape(get(net, after), get(net, x)), boundary.slot,
            "a seed must keep the shape of its input");
    esper_net_enter(net, "", 0);
    return net->status == ESPER_OK ? after : ESPER_NO_TENSOR;
}

/* ------------------------------------------------------------------------------------------------ cutting */

/* Whether one of the first n_ops operations makes the tensor. */
static bool is_made_by(const esper_net *net, int n_ops, int tensor)
{
    for (int o = 0; o < n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_out; i++)
            if (net->ops[o].out[i] == tensor)
                return true;
    return false;
}

static bool is_read(const esper_net *net, int tensor)
{
    for (int o = 0; o < net->n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_in; i++)
            if (net->ops[o].in[i] == tensor)
                return true;
    return false;
}

/* Whether all that remains can do without the first n_ops operations but for `tensor`. */
static esper_status check_cut(const esper_net *net, int n_ops, int tensor)
{
    const int ends[] = {net->output, net->loss, net->correct};

    for (int o = n_ops; o < net->n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_in; i++) {
            int in = net->ops[o].in[i];

            if (in != ESPER_NO_TENSOR && in != tensor && is_made_by(net, n_ops, in))
                return ESPER_FAIL(ESPER_E_ARG, "cut at %s: %s behind it needs %s", net->tensors[tensor].name,
                                  net->tensors[net->ops[o].out[0]].name, net->tensors[in].name);
        }
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
        if (ends[i] != ESPER_NO_TENSOR && ends[i] != tensor && is_made_by(net, n_ops, ends[i]))
            return ESPER_FAIL(ESPER_E_ARG, "cut at %s: it would remove %s, a result", net->tensors[tensor].name,
                              net->tensors[ends[i]].name);
    return ESPER_OK;
}

static void drop_boundaries(esper_net *net, int n_ops, int tensor)
{
    int n = 0;

    for (int i = 0; i < net->n_boundaries; i++) {
        int at = net->boundaries[i].tensor;

        if (at == tensor || !(net->tensors[at].role == ESPER_ROLE_INPUT || is_made_by(net, n_ops, at)))
            net->boundaries[n++] = net->boundaries[i];
    }
    net->n_boundaries = n;
}

static void drop_ops(esper_net *net, int n_ops)
{
    for (int o = 0; o < n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_out; i++)
            if (net->ops[o].out[i] != ESPER_NO_TENSOR)
                net->tensors[net->ops[o].out[i]].keep = false;
    net->n_ops -= n_ops;
    memmove(net->ops, net->ops + n_ops, (size_t)net->n_ops * sizeof(*net->ops));
}

/* An input costs memory, and a lowered network changes its layout in every pass, whether anybody reads it or not. */
static void drop_inputs(esper_net *net)
{
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_INPUT && !is_read(net, t)) {
            net->tensors[t].role = ESPER_ROLE_ACTIVATION;
            net->tensors[t].keep = net->tensors[t].want_grad = false;
            if (net->target == t)
                net->target = ESPER_NO_TENSOR;
        }
}

esper_status esper_net_cut(esper_net *net, int tensor)
{
    int n_ops = 0;

    ESPER_TRY(net->status);
    while (n_ops <= net->n_ops && !is_made_by(net, n_ops, tensor))
        n_ops++;
    if (n_ops > net->n_ops || tensor < 0)
        return ESPER_FAIL(ESPER_E_ARG, "cut at tensor %d: no operation makes it", tensor);
    if (!net->tensors[tensor].per_sample)
        return ESPER_FAIL(ESPER_E_ARG, "cut at %s: an input has a slice for each sample", net->tensors[tensor].name);
    ESPER_TRY(check_cut(net, n_ops, tensor));
    drop_boundaries(net, n_ops, tensor);
    drop_ops(net, n_ops);
    drop_inputs(net);
    net->tensors[tensor].role = ESPER_ROLE_INPUT;
    net->input = tensor;
    return ESPER_OK;
}

static bool is_asked_for(const esper_net *net, int t)
{
    return t == net->loss || t == net->output || t == net->correct || net->tensors[t].keep;
}

/* Backwards over the list: an operation is used when something used needs one of its outputs. */
static void find_used(const esper_net *net, bool *needed, bool *used)
{
    for (int t = 0; t < net->n_tensors; t++)
        needed[t] = is_asked_for(net, t);
    for (int o = net->n_ops - 1; o >= 0; o--) {
        const esper_op_info *info = esper_op_info_of(net->ops[o].kind);

        used[o] = false;
        for (int i = 0; i < info->n_out; i++)
            used[o] = used[o] || (net->ops[o].out[i] != ESPER_NO_TENSOR && needed[net->ops[o].out[i]]);
        for (int i = 0; i < info->n_in && used[o]; i++)
            if (net->ops[o].in[i] != ESPER_NO_TENSOR)
                needed[net->ops[o].in[i]] = true;
    }
}

void esper_net_drop_unused(esper_net *net)
{
    bool *needed, *used;
    int n = 0;

    if (net->status != ESPER_OK)
        return;
    needed = esper_mem_alloc((size_t)net->n_tensors * sizeof(*needed) + 1);
    used = esper_mem_alloc((size_t)net->n_ops * sizeof(*used) + 1);
    if (needed == NULL || used == NULL)
        net->status = ESPER_FAIL(ESPER_E_NOMEM, "list of %d operations", net->n_ops);
    else {
        find_used(net, needed, used);
        for (int o = 0; o < net->n_ops; o++)
            if (used[o])
                net->ops[n++] = net->ops[o];
        net->n_ops = n;
    }
    esper_mem_free(needed);
    esper_mem_free(used);
}

/* ------------------------------------------------------------------------------------------------ reading */

int esper_net_find(const esper_net *net, const char *name)
{
    for (int i = 0; i < net->n_tensors; i++)
        if (strcmp(net->tensors[i].name, name) == 0)
            return i;
    return ESPER_NO_TENSOR;
}

const esper_boundary *esper_net_find_boundary(const esper_net *net, const char *slot)
{
    for (int i = 0; i < net->n_boundaries; i++)
        if (strcmp(net->boundaries[i].slot, slot) == 0)
            return &net->boundaries[i];
    return NULL;
}

int64_t esper_net_count_params(const esper_net *net, int region)
{
    int64_t count = 0;

    for (int i = 0; i < net->n_tensors; i++)
        if (net->tensors[i].role == ESPER_ROLE_PARAM && (region < 0 || net->tensors[i].region == region))
            count += net->tensors[i].count;
    return count;
}

static void print_shape(const esper_tensor *tensor, FILE *stream)
{
    fprintf(stream, "%s(%s", tensor->name, tensor->per_sample ? "N" : "");
    for (int i = 0; i < tensor->rank; i++)
        fprintf(stream, "%s%d", i > 0 || tensor->per_sample ? "," : "", tensor->dim[i]);
    fprintf(stream, ")");
}

static void print_attr(const esper_op *op, FILE *stream)
{
    switch (op->kind) {
    case ESPER_OP_CONV2D:
        fprintf(stream, " pad=%d groups=%d", op->attr.conv.pad, op->attr.conv.groups);
        break;
    case ESPER_OP_GROUP_NORM:
        fprintf(stream, " groups=%d", op->attr.norm.groups);
        break;
    case ESPER_OP_ATTENTION:
        fprintf(stream, " heads=%d drop=%g", op->attr.attention.heads, (double)op->attr.attention.drop);
        break;
    case ESPER_OP_DROPOUT:
        fprintf(stream, " drop=%g", (double)op->attr.dropout.drop);
        break;
    default:
        break;
    }
}

static void print_op(const esper_net *net, const esper_op *op, FILE *stream)
{
    print_shape(&net->tensors[op->out[0]], stream);
    fprintf(stream, " = %s", esper_op_info_of(op->kind)->name);
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        if (op->in[i] != ESPER_NO_TENSOR)
            fprintf(stream, " %s", net->tensors[op->in[i]].name);
    print_attr(op, stream);
    fprintf(stream, "\n");
}

static void print_boundary(const esper_boundary *boundary, FILE *stream)
{
    fprintf(stream, "slot %s: %d channels\n", boundary->slot, boundary->channels);
}

void esper_net_print(const esper_net *net, FILE *stream)
{
    int boundary = 0;

    for (int i = 0; i < net->n_tensors; i++) {
        if (net->tensors[i].role == ESPER_ROLE_ACTIVATION)
            continue;
        fprintf(stream, "%s ", role_names[net->tensors[i].role]);
        print_shape(&net->tensors[i], stream);
        fprintf(stream, "\n");
    }
    for (int i = 0; i < net->n_ops; i++) {
        print_op(net, &net->ops[i], stream);
        while (boundary < net->n_boundaries && net->boundaries[boundary].tensor == net->ops[i].out[0])
            print_boundary(&net->boundaries[boundary++], stream);
    }
}
