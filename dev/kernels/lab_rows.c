/* The matrix products of token networks: linear layers and attention, a batch of 16 sequences of 128 tokens. The plain
 * loops are the reference's own. */
#include "lab.h"

#include <stdio.h>
#include <string.h>

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

static context *context_of(lab_case *c, esper_op_kind kind, side side)
{
    context *k = lab_memory(c, sizeof(*k));

    *k = (context){.kind = kind, .side = side, .pass = {.n_samples = SAMPLES, .training = true, .loss_scale = 1}};
    k->lane.pass = &k->pass;
    c->context = k;
    return k;
}

/* ------------------------------------------------------------------------------------------------ linear */

static bool open_linear(int number, lab_case *c, side side)
{
    static const int shapes[][2] = {{128, 384},  {128, 128}, {128, 512},  {512, 128},  {128, 256},
                                    {384, 1152}, {384, 384}, {384, 1536}, {1536, 384}, {50, 77}};
    const esper_view *out;
    context *k;
    int in, to;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    in = shapes[number][0], to = shapes[number][1];
    k = context_of(c, ESPER_OP_LINEAR, side);
    k->lane.in[0] = view_of(c, SAMPLES, 2, TOKENS, in, 1);
    k->lane.in[1] = view_of(c, 1, 2, to, in, 1);
    k->lane.in[2] = view_of(c, 1, 1, to, 1, 1);
    k->lane.out[0] = view_of(c, SAMPLES, 2, TOKENS, to, 1);
    snprintf(c->shape, sizeof(c->shape), "%dx%d->%d", SAMPLES * TOKENS, in, to);
    c->flops = 2.0 * SAMPLES * TOKENS * in * to;
    out = side == FORWARD ? &k->lane.out[0] : &k->lane.in[side == WEIGHTS];
    c->result = side == FORWARD ? out->data : out->grad;
    c->n = (size_t)out->count * (side == WEIGHTS ? 1 : SAMPLES);
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

static bool open_attention(int number, lab_case *c, side side)
{
    static const int shapes[][3] = {{128, 128, 4}, {128, 384, 6}, {512, 128, 4}, {57, 60, 5}}; /* tokens, width, heads */
    const int *s;
    context *k;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    s = shapes[number];
    k = context_of(c, ESPER_OP_ATTENTION, side);
    k->pass.n_samples = 2;
    k->lane.attr.attention.heads = s[2];
    k->lane.in[0] = view_of(c, 2, 2, s[0], 3 * s[1], 1);
    k->lane.out[0] = view_of(c, 2, 2, s[0], s[1], 1);
    k->lane.out[1] = view_of(c, 2, 3, s[2], s[0], s[0]);
    run_phase(&esper_kernels_ref.op[ESPER_OP_ATTENTION]->forward[0], &k->lane); /* the probabilities */
    snprintf(c->shape, sizeof(c->shape), "T %d D %d heads %d", s[0], s[1], s[2]);
    c->flops = (side == FORWARD ? 2.0 : 4.0) * 2 * s[0] * (s[0] + 1.0) * s[1];
    c->result = side == FORWARD ? k->lane.out[0].data : k->lane.in[0].grad;
    c->n = 2 * (size_t)(side == FORWARD ? k->lane.out[0] : k->lane.in[0]).count;
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
    {"linear y", open_linear_y, expect, variants},
    {"linear dx", open_linear_dx, expect, variants},
    {"linear dw", open_linear_dw, expect, variants},
    {"attention y", open_attention_forward, expect, variants},
    {"attention back", open_attention_backward, expect, variants},
    {NULL, NULL, NULL, NULL},
};
