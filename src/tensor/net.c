/* Net programs: their lists, tensors and boundaries. Operations are appended by net_layers.c, programs are cut by
 * net_cut.c and printed by net_print.c; what runs them: plan.c. */
#include "tensor/net.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/net_build.h"

enum { HOST_PLACE_STEP = 1024, STACK_PLACE_STEP = 128, GROW_BY = 64 };

/* Elements of a tensor (of one sample): far above what memory holds, far below what 64 bits count. */
#define MAX_COUNT (INT64_C(1) << 40)

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

bool esper_net_require(esper_net *net, bool holds, const char *op, const char *what)
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
        const esper_tensor *tensor = esper_net_get(net, in[i]);
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

int esper_net_push_op(esper_net *net, esper_op_kind kind, const int *in, int out_rank, const int *out_dim)
{
    const esper_op_info *info = esper_op_info_of(kind);
    char name[ESPER_NAME_CHARS];
    esper_op *op;
    int out;

    check_inputs(net, kind, in);
    esper_net_require(net, net->region == 0 || net->place % HOST_PLACE_STEP != 0, info->name,
                      "too many operations in a seed");
    snprintf(name, sizeof(name), "%s.%d", info->name, net->n_ops);
    out = push_tensor(net, name, ESPER_ROLE_ACTIVATION, out_rank, out_dim);
    op = list_push(net, (void **)&net->ops, &net->n_ops, sizeof(*op));
    if (op == NULL)
        return ESPER_NO_TENSOR;
    memset(op, 0, sizeof(*op)); /* what a kind does not use of `attr` is equal too where programs are compared */
    op->kind = kind;
    op->place = net->place;
    op->region = net->region;
    if (kind != ESPER_OP_ISOLATE) /* is no work: the same seed stands at the same places with it and without */
        net->place += net->place_step;
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        op->in[i] = i < info->n_in ? in[i] : ESPER_NO_TENSOR;
    for (int i = 0; i < ESPER_OP_MAX_OUT; i++)
        op->out[i] = ESPER_NO_TENSOR;
    op->out[0] = out;
    return out;
}

void esper_net_push_extra_out(esper_net *net, int index, bool per_sample, int rank, const int *dim)
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

/* ------------------------------------------------------------------------------------------------ tensors */

int esper_net_input(esper_net *net, const char *name, esper_dtype dtype, int rank, const int *dim)
{
    int id = push_tensor(net, name, ESPER_ROLE_INPUT, rank, dim);

    if (id != ESPER_NO_TENSOR)
        net->tensors[id].dtype = dtype;
    return id;
}

/* State has its place in the slab's region, which grows. */
static int push_state(esper_net *net, const char *name, esper_role role, int rank, const int *dim, esper_init init)
{
    int id = push_tensor(net, name, role, rank, dim);
    int64_t *used = &(role == ESPER_ROLE_PARAM ? net->region_params : net->region_buffers)[net->region];

    if (id == ESPER_NO_TENSOR)
        return id;
    net->tensors[id].init = init;
    net->tensors[id].region = net->region;
    net->tensors[id].offset = *used;
    *used += (net->tensors[id].count + ESPER_SLAB_ALIGN - 1) / ESPER_SLAB_ALIGN * ESPER_SLAB_ALIGN;
    return id;
}

int esper_net_param(esper_net *net, const char *name, int rank, const int *dim, esper_init init)
{
    return push_state(net, name, ESPER_ROLE_PARAM, rank, dim, init);
}

int esper_net_buffer(esper_net *net, const char *name, int rank, const int *dim, float value)
{
    return push_state(net, name, ESPER_ROLE_BUFFER, rank, dim, (esper_init){ESPER_INIT_CONSTANT, value});
}

void esper_net_enter(esper_net *net, const char *prefix, int region)
{
    if (!esper_net_require(net, region >= 0 && region < ESPER_MAX_REGIONS, prefix, "no such slab region"))
        return;
    if (!esper_net_require(net, strlen(prefix) < sizeof(net->prefix), prefix, "the prefix is too long"))
        return;
    snprintf(net->prefix, sizeof(net->prefix), "%s", prefix);
    net->region = region;
    if (region >= net->n_regions)
        net->n_regions = region + 1;
    /* Seed operations stand between two host operations, so that equal host operations keep equal places: the first
     * comes right behind the host's last one, which stands a whole step before net->place. A seed behind another one
     * begins at a round number, so that its place seldom depends on what stands before it. */
    net->place_step = region == 0 ? HOST_PLACE_STEP : 1;
    if (region == 0)
        net->place = (net->place + HOST_PLACE_STEP - 1) / HOST_PLACE_STEP * HOST_PLACE_STEP;
    else if (net->place % HOST_PLACE_STEP == 0) {
        uint32_t first = net->place - HOST_PLACE_STEP, last = net->n_ops > 0 ? net->ops[net->n_ops - 1].place : 0;

        net->place = last <= first ? first + 1 : last / STACK_PLACE_STEP * STACK_PLACE_STEP + STACK_PLACE_STEP;
    }
}

/* ------------------------------------------------------------------------------------------------ boundaries */

void esper_net_take_grad(esper_net *net, int x)
{
    if (esper_net_require(net, esper_net_get(net, x) != NULL && esper_net_get(net, x)->per_sample, "gradient",
                          "of nothing, or of a parameter"))
        net->tensors[x].keep = net->tensors[x].take_grad = true;
}

/* The rules of a slot's injection spec. */
static void check_boundary(esper_net *net, const esper_boundary *boundary, int x)
{
    const esper_tensor *in = esper_net_get(net, x);

    const char *slot = boundary->slot;

    esper_net_require(net, in != NULL && boundary->channels == (in->rank == 3 ? in->dim[0] : in->dim[in->rank - 1]),
                      slot, "channels are not those of its features");
    esper_net_require(net, boundary->position >= 0.0f && boundary->position <= 1.0f, slot, "position is not in 0..1");
    esper_net_require(net, boundary->layer_begin >= 0 && boundary->layer_begin <= boundary->layer_end, slot,
                      "bad layer range");
    esper_net_require(net, boundary->order >= 0, slot, "negative order");
    esper_net_require(net, esper_net_find_boundary(net, slot) == NULL, slot, "there is such a slot already");
    for (int i = 0; i < net->n_boundaries; i++)
        esper_net_require(net, net->boundaries[i].order != boundary->order, slot, "another slot has the same order");
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
    esper_net_require(net,
                      esper_net_get(net, after) != NULL &&
                          esper_tensor_same_shape(esper_net_get(net, after), esper_net_get(net, x)),
                      boundary.slot, "a seed must keep the shape of its input");
    esper_net_enter(net, "", 0);
    return net->status == ESPER_OK ? after : ESPER_NO_TENSOR;
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

static esper_view shape_of(const esper_net *net, int t)
{
    esper_view view = {.dim = {1, 1, 1, 1}};

    if (t == ESPER_NO_TENSOR)
        return view;
    view.count = net->tensors[t].count;
    view.rank = net->tensors[t].rank;
    memcpy(view.dim, net->tensors[t].dim, sizeof(view.dim));
    return view;
}

esper_lane esper_net_lane(const esper_net *net, const esper_op *op)
{
    const esper_op_info *info = esper_op_info_of(op->kind);
    esper_lane lane = {.attr = op->attr};

    for (int i = 0; i < info->n_in; i++)
        lane.in[i] = shape_of(net, op->in[i]);
    for (int i = 0; i < info->n_out; i++)
        lane.out[i] = shape_of(net, op->out[i]);
    return lane;
}

bool esper_net_is_shared(const esper_net *net, int tensor)
{
    assert(tensor >= 0 && tensor < net->n_tensors);
    return net->tensors[tensor].role == ESPER_ROLE_INPUT || net->tensors[tensor].keep || tensor == net->output;
}
