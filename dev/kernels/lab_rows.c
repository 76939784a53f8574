/* The matrix products of token networks: linear layers and attention, a batch of 16 sequences of 128 tokens. The plain
 * loops are the reference's own. */
#include "lab.h"

#include <stdio.h>
#include <string.h>

#include "dnnl/dnnl_peer.h"
#include "tensor/kernel.h"

enum { SAMPLES = 16, TOKENS = 128 };

typedef enum side { FORWARD, DATA, WEIGHTS } side;

typedef struct context {
    esper_op_kind kind;
    side          side;
    esper_pass    pass;
    esper_lane    lane;
} context;

#define SET_(name) esper_kernels_##name
#define SET(name)  SET_(name)

static void run_phase(const esper_phase *phase, const esper_lane *lane)
{
    phase->run(lane, 0, phase->units != NULL ? phase->units(lane) : lane->pass->n_samples);
}

/* The phases of a table that belong to what is measured: the gradient of x is a linear layer's first. */
static void run_set(const esper_kernel_set *set, const lab_case *c)
{
    const context *k = c->context;
    const esper_op_kernels *op = set->op[k->kind];
    const esper_phase *phase = k->side == FORWARD ? op->forward : op->backward;

    if (k->side == DATA)
        run_phase(phase, &k->lane);
    else
        for (phase += k->side == WEIGHTS; phase->run != NULL; phase++)
            run_phase(phase, &k->lane);
}

static void run_plain(const lab_case *c)
{
    run_set(&esper_kernels_ref, c);
}

static void run_tiles(const lab_case *c)
{
    run_set(&SET(ESPER_KERNELS), c);
}

static const lab_variant variants[] = {{"plain", run_plain}, {"tiles", run_tiles}, {NULL, NULL}};

/* By the reference. It sums in float, but in other parts: what both have in common is the result. */
static void expect(const lab_case *c)
{
    run_plain(c);
    for (size_t i = 0; i < c->n; i++)
        c->expected[i] = (double)c->result[i];
}

static esper_view view_of(lab_case *c, size_t times, int rank, int a, int b, int d)
{
    esper_view view = {.count = (int64_t)a * b * d, .dim = {a, b, d, 1}, .rank = rank};

    view.data = lab_random(c, times * (size_t)view.count);
    view.grad = lab_random(c, times * (size_t)view.count);
    return view;
}

static context *context_of(lab_case *c, esper_op_kind kind, side part)
{
    context *k = lab_memory(c, sizeof(*k));

    *k = (context){.kind = kind, .side = part, .pass = {.n_samples = SAMPLES, .training = true, .loss_scale = 1}};
    k->lane.pass = &k->pass;
    c->context = k;
    return k;
}

/* ------------------------------------------------------------------------------------------------ linear */

#ifdef ESPER_LAB_DNNL

/* Its product, with the bias or its gradient by plain loops. */
static void run_peer(const lab_case *c)
{
    const context *k = c->context;
    const esper_view *x = &k->lane.in[0], *w = &k->lane.in[1], *b = &k->lane.in[2], *y = &k->lane.out[0];
    size_t I = (size_t)w->dim[1], O = (size_t)w->dim[0], rows = SAMPLES * TOKENS;
    float *db = b->grad;

    if (k->side == FORWARD) {
        for (size_t r = 0; r < rows; r++)
            memcpy((float *)y->data + r * O, b->data, O * sizeof(float));
        dnnl_peer_multiply(&(dnnl_product){.m = rows,
                                           .n = O,
                                           .k = I,
                                           .a = x->data,
                                           .a_row = I,
                                           .b = w->data,
                                           .b_row = I,
                                           .b_turned = true,
                                           .c = y->data,
                                           .c_row = O,
                                           .add = true});
    } else if (k->side == DATA) {
        dnnl_peer_multiply(&(dnnl_product){
            .m = rows, .n = I, .k = O, .a = y->grad, .a_row = O, .b = w->data, .b_row = I, .c = x->grad, .c_row = I});
    } else {
        dnnl_peer_multiply(&(dnnl_product){.m = O,
                                           .n = I,
                                           .k = rows,
                                           .a = y->grad,
                                           .a_row = O,
                                           .a_turned = true,
                                           .b = x->data,
                                           .b_row = I,
                                           .c = w->grad,
                                           .c_row = I});
        memset(db, 0, O * sizeof(float));
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < O; j++)
                db[j] += ((const float *)y->grad)[r * O + j];
    }
}

#define PEER_VARIANTS {"oneDNN", run_peer},

#else

#define PEER_VARIANTS

#endif

static const lab_variant linear_variants[] = {{"plain", run_plain}, {"tiles", run_tiles}, PEER_VARIANTS{NULL, NULL}};

static bool open_linear(int number, lab_case *c, side part)
{
    static const int shapes[][2] = {{128, 384},  {128, 128}, {128, 512},  {512, 128},  {128, 256},
                                    {384, 1152}, {384, 384}, {384, 1536}, {1536, 384}, {50, 77},
                                    {512, 512},  {512, 2048}, {1024, 1024}, {1024, 4096}, {4096, 1024}};
    const esper_view *out;
    context *k;
    int in, to;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    in = shapes[number][0], to = shapes[number][1];
    k = context_of(c, ESPER_OP_LINEAR, part);
    k->lane.in[0] = view_of(c, SAMPLES, 2, TOKENS, in, 1);
    k->lane.in[1] = view_of(c, 1, 2, to, in, 1);
    k->lane.in[2] = view_of(c, 1, 1, to, 1, 1);
    k->lane.out[0] = view_of(c, SAMPLES, 2, TOKENS, to, 1);
    snprintf(c->shape, sizeof(c->shape), "%dx%d->%d", SAMPLES * TOKENS, in, to);
    c->flops = 2.0 * SAMPLES * TOKENS * in * to;
    out = part == FORWARD ? &k->lane.out[0] : &k->lane.in[part == WEIGHTS];
    c->result = part == FORWARD ? out->data : out->grad;
    c->n = (size_t)out->count * (part == WEIGHTS ? 1 : SAMPLES);
    return true;
}

static bool open_linear_y(int number, lab_case *c)
{
    return open_linear(number, c, FORWARD);
}

static bool open_linear_dx(int number, lab_case *c)
{
    return open_linear(number, c, DATA);
}

static bool open_linear_dw(int number, lab_case *c)
{
    return open_linear(number, c, WEIGHTS);
}

/* ------------------------------------------------------------------------------------------------ attention */

static bool open_attention(int number, lab_case *c, side part)
{
    static const int shapes[][3] = {
        {128, 128, 4}, {128, 384, 6}, {512, 128, 4}, {57, 60, 5}}; /* tokens, width, heads */
    const int *s;
    context *k;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    s = shapes[number];
    k = context_of(c, ESPER_OP_ATTENTION, part);
    k->pass.n_samples = 2;
    k->lane.attr.attention.heads = s[2];
    k->lane.in[0] = view_of(c, 2, 2, s[0], 3 * s[1], 1);
    k->lane.out[0] = view_of(c, 2, 2, s[0], s[1], 1);
    k->lane.out[1] = view_of(c, 2, 3, s[2], s[0], s[0]);
    run_phase(&esper_kernels_ref.op[ESPER_OP_ATTENTION]->forward[0], &k->lane); /* the probabilities */
    snprintf(c->shape, sizeof(c->shape), "T %d D %d heads %d", s[0], s[1], s[2]);
    c->flops = (part == FORWARD ? 2.0 : 4.0) * 2 * s[0] * (s[0] + 1.0) * s[1];
    c->result = part == FORWARD ? k->lane.out[0].data : k->lane.in[0].grad;
    c->n = 2 * (size_t)(part == FORWARD ? k->lane.out[0] : k->lane.in[0]).count;
    return true;
}

static bool open_attention_forward(int number, lab_case *c)
{
    return open_attention(number, c, FORWARD);
}

static bool open_attention_backward(int number, lab_case *c)
{
    return open_attention(number, c, DATA);
}

const lab_kernel LAB_KERNELS(rows)[] = {
    {"linear y", open_linear_y, expect, linear_variants},
    {"linear dx", open_linear_dx, expect, linear_variants},
    {"linear dw", open_linear_dw, expect, linear_variants},
    {"attention y", open_attention_forward, expect, variants},
    {"attention back", open_attention_backward, expect, variants},
    {NULL, NULL, NULL, NULL},
};
