/* Convolution over one block of sixteen samples. */
#include "lab.h"

#include <stdio.h>

#include "dnnl/dnnl_peer.h"
#include "tensor/cpu/simd_conv_weights.h"

/* Square images, padded so that they keep their size. */
typedef struct shape {
    int in_c, out_c, kernel, size;
    int depthwise; /* channels, each by itself; in_c and out_c are 1 then */
} shape;

static const shape shapes[] = {
    {3, 8, 3, 32, 0},    {8, 16, 3, 16, 0},   {16, 32, 3, 8, 0},   {32, 64, 3, 16, 0},  {64, 128, 3, 8, 0},
    {32, 64, 3, 4, 0},   {64, 128, 3, 2, 0},  {8, 8, 3, 8, 0},     {16, 16, 3, 2, 0},   {16, 64, 1, 16, 0},
    {16, 16, 1, 16, 0},  {64, 64, 1, 8, 0},   {64, 16, 1, 7, 0},   {64, 128, 1, 2, 0},  {8, 8, 5, 16, 0},
    {8, 3, 3, 16, 0},    {5, 2, 3, 13, 0},    {1, 1, 3, 16, 16},   {1, 1, 3, 8, 64},    {1, 1, 3, 2, 128},
    {1, 1, 7, 8, 16},    {3, 32, 3, 32, 0},   {32, 32, 3, 16, 0},  {128, 128, 3, 8, 0}, {128, 128, 3, 16, 0},
    {128, 256, 3, 8, 0}, {256, 256, 3, 8, 0}, {256, 256, 3, 4, 0}, {128, 256, 1, 8, 0}, {256, 256, 1, 8, 0},
};

typedef struct context {
    simd_conv   v, back;
    int          depthwise;
    const float *x, *w, *g;
    float       *packed, *packed_back;
    size_t       n_x, n_w, n_y;
    dnnl_peer_conv *peer; /* NULL where there is none */
} context;

static double valid_taps(const simd_conv *v)
{
    double n_rows = 0, n_columns = 0;
    int begin;

    for (int y = 0; y < v->out_h; y++)
        n_rows += simd_conv_range(v->kernel, v->pad, v->in_h, y, &begin) - begin;
    for (int x = 0; x < v->out_w; x++)
        n_columns += simd_conv_range(v->kernel, v->pad, v->in_w, x, &begin) - begin;
    return n_rows * n_columns;
}

static void describe(lab_case *c, shape s)
{
    int n = s.depthwise > 0 ? snprintf(c->shape, sizeof(c->shape), "%d by itself", s.depthwise)
                            : snprintf(c->shape, sizeof(c->shape), "%d->%d", s.in_c, s.out_c);

    snprintf(c->shape + n, sizeof(c->shape) - (size_t)n, " %dx%d @%dx%d", s.kernel, s.kernel, s.size, s.size);
}

static bool open_any(int number, lab_case *c)
{
    size_t pixels, groups;
    context *k;
    shape s;

    if (number >= (int)(sizeof(shapes) / sizeof(shapes[0])))
        return false;
    s = shapes[number];
    describe(c, s);
    groups = s.depthwise > 0 ? (size_t)s.depthwise : 1;
    pixels = (size_t)(s.size * s.size * SIMD_WIDTH);
    c->context = k = lab_memory(c, sizeof(*k));
    k->v = (simd_conv){s.in_c, s.out_c, s.kernel, s.kernel / 2, s.size, s.size, s.size, s.size};
    k->depthwise = s.depthwise;
    k->n_x = (size_t)s.in_c * groups * pixels;
    k->n_w = (size_t)(s.in_c * s.out_c * s.kernel * s.kernel) * groups;
    k->n_y = (size_t)s.out_c * groups * pixels;
    k->x = lab_random(c, k->n_x);
    k->w = lab_random(c, k->n_w);
    k->g = lab_random(c, k->n_y);
    k->packed = lab_memory(c, k->n_w * sizeof(float));
    k->packed_back = lab_memory(c, k->n_w * sizeof(float));
    simd_conv_pack(&k->v, k->w, k->packed);
    k->back = simd_conv_turned(&k->v);
    simd_conv_pack_back(&k->v, k->w, k->packed_back);
    c->flops = 2.0 * SIMD_WIDTH * (double)(groups * (size_t)(s.in_c * s.out_c)) * valid_taps(&k->v);
    return true;
}

static void open_result(lab_case *c, size_t n)
{
    c->n = n;
    c->result = lab_memory(c, n * sizeof(float));
}

/* ------------------------------------------------------------------------------------------------ oneDNN */

#ifdef ESPER_LAB_DNNL

static void open_peer(lab_case *c, dnnl_side side)
{
    context *k = c->context;
    dnnl_shape s = {k->v.in_c, k->v.out_c, k->v.kernel, k->v.pad, k->v.in_w};

    if (k->depthwise == 0)
        k->peer =
            dnnl_peer_conv_open(side, s, side == DNNL_SIDE_DATA ? k->g : k->x, side == DNNL_SIDE_WEIGHTS ? k->g : k->w);
}

/* In layouts of its own choice. The result is brought into ours when the lab checks, and has put NaN there. */
static void run_peer(const lab_case *c)
{
    const context *k = c->context;

    if (k->peer == NULL)
        return;
    dnnl_peer_conv_run(k->peer);
    if (c->result[0] != c->result[0])
        dnnl_peer_conv_result(k->peer, c->result);
}

/* As one operation in a network that has our layout. */
static void run_peer_between(const lab_case *c)
{
    const context *k = c->context;

    if (k->peer != NULL)
        dnnl_peer_conv_run_between(k->peer, c->result);
}

#define PEER_VARIANTS {"oneDNN", run_peer}, {"oneDNN, our layout", run_peer_between},

#else

static void open_peer(lab_case *c, dnnl_side side)
{
    (void)c;
    (void)side;
}

#define PEER_VARIANTS

#endif

/* ------------------------------------------------------------------------------------------------ plain loops */

/* Where a product is: x and y of the first sample, and w. */
typedef void use_product(const lab_case *c, size_t x, size_t w, size_t y);

/* All products of one output channel with one input channel, of which x, w and y are the first. */
SIMD_INLINE void each_product_of_planes(const lab_case *c, size_t x, size_t w, size_t y, use_product *use)
{
    const simd_conv *v = &((const context *)c->context)->v;

    for (int oy = 0; oy < v->out_h; oy++)
        for (int ox = 0; ox < v->out_w; ox++)
            for (int ky = 0; ky < v->kernel; ky++)
                for (int kx = 0; kx < v->kernel; kx++) {
                    int iy = oy + ky - v->pad, ix = ox + kx - v->pad;

                    if (iy >= 0 && iy < v->in_h && ix >= 0 && ix < v->in_w)
                        use(c, x + (size_t)((iy * v->in_w + ix) * SIMD_WIDTH), w + (size_t)(ky * v->kernel + kx),
                            y + (size_t)((oy * v->out_w + ox) * SIMD_WIDTH));
                }
}

SIMD_INLINE void each_product(const lab_case *c, use_product *use)
{
    const context *k = c->context;
    size_t x_plane = (size_t)(k->v.in_h * k->v.in_w * SIMD_WIDTH), taps = (size_t)(k->v.kernel * k->v.kernel);
    size_t y_plane = (size_t)(k->v.out_h * k->v.out_w * SIMD_WIDTH), in_c = (size_t)k->v.in_c;

    for (size_t o = 0; o < k->n_y / y_plane; o++)
        for (size_t i = 0; i < in_c; i++)
            each_product_of_planes(c, (k->depthwise > 0 ? o : i) * x_plane, (o * in_c + i) * taps, o * y_plane, use);
}

/* ------------------------------------------------------------------------------------------------ forward */

static bool open_forward(int number, lab_case *c)
{
    bool is_there = open_any(number, c);

    if (is_there) {
        open_result(c, ((const context *)c->context)->n_y);
        open_peer(c, DNNL_SIDE_FORWARD);
    }
    return is_there;
}

SIMD_INLINE void forward_double(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->expected[y + l] += (double)k->w[w] * (double)k->x[x + l];
}

static void expect_forward(const lab_case *c)
{
    each_product(c, forward_double);
}

SIMD_INLINE void forward_float(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->result[y + l] += k->w[w] * k->x[x + l];
}

/* As one would write it: the compiler's vectors along the samples, sums in memory. */
static void forward_plain(const lab_case *c)
{
    memset(c->result, 0, c->n * sizeof(float));
    each_product(c, forward_float);
}

static void forward_simd(const lab_case *c)
{
    const context *k = c->context;

    if (k->depthwise > 0)
        simd_depthwise_forward(&k->v, k->depthwise, k->x, k->w, c->result, false);
    else
        simd_conv_forward(&k->v, k->x, k->packed, c->result, false);
}

static const lab_variant forward_variants[] = {{"plain", forward_plain}, {"simd", forward_simd}, PEER_VARIANTS{0}};

/* ------------------------------------------------------------------------------------------------ gradient of x */

static bool open_back(int number, lab_case *c)
{
    bool is_there = open_any(number, c);

    if (is_there) {
        open_result(c, ((const context *)c->context)->n_x);
        open_peer(c, DNNL_SIDE_DATA);
    }
    return is_there;
}

SIMD_INLINE void back_double(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->expected[x + l] += (double)k->w[w] * (double)k->g[y + l];
}

static void expect_back(const lab_case *c)
{
    each_product(c, back_double);
}

SIMD_INLINE void back_float(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->result[x + l] += k->w[w] * k->g[y + l];
}

static void back_plain(const lab_case *c)
{
    memset(c->result, 0, c->n * sizeof(float));
    each_product(c, back_float);
}

static void back_simd(const lab_case *c)
{
    const context *k = c->context;

    if (k->depthwise > 0)
        simd_depthwise_back(&k->v, k->depthwise, k->g, k->w, c->result, false);
    else
        simd_conv_forward(&k->back, k->g, k->packed_back, c->result, false);
}

static const lab_variant back_variants[] = {{"plain", back_plain}, {"simd", back_simd}, PEER_VARIANTS{0}};

/* ------------------------------------------------------------------------------------------------ gradient of w */

static bool open_weights(int number, lab_case *c)
{
    bool is_there = open_any(number, c);

    if (is_there) {
        open_result(c, ((const context *)c->context)->n_w);
        open_peer(c, DNNL_SIDE_WEIGHTS);
    }
    return is_there;
}

SIMD_INLINE void weights_double(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->expected[w] += (double)k->g[y + l] * (double)k->x[x + l];
}

static void expect_weights(const lab_case *c)
{
    each_product(c, weights_double);
}

SIMD_INLINE void weights_float(const lab_case *c, size_t x, size_t w, size_t y)
{
    const context *k = c->context;

    for (int l = 0; l < SIMD_WIDTH; l++)
        c->result[w] += k->g[y + l] * k->x[x + l];
}

static void weights_plain(const lab_case *c)
{
    memset(c->result, 0, c->n * sizeof(float));
    each_product(c, weights_float);
}

static void weights_simd(const lab_case *c)
{
    const context *k = c->context;

    if (k->depthwise > 0)
        simd_depthwise_weights(&k->v, k->depthwise, k->x, k->g, c->result, false);
    else
        simd_conv_weights(&k->v, k->x, k->g, c->result, false);
}

/* The two ways between which simd_conv_weights chooses. */
static void weights_dot(const lab_case *c)
{
    const context *k = c->context;

    if (k->depthwise > 0)
        weights_simd(c);
    else
        simd_conv_weights_dot(&k->v, k->x, k->g, c->result, false);
}

static void weights_outer(const lab_case *c)
{
    const context *k = c->context;

    if (k->depthwise > 0 || !simd_conv_weights_can_outer(&k->v))
        weights_simd(c);
    else
        simd_conv_weights_outer(&k->v, 0, simd_outer_tiles(&k->v), k->x, k->g, c->result, false);
}

static const lab_variant weights_variants[] = {
    {"plain", weights_plain},         {"simd", weights_simd}, {"simd (dot)", weights_dot},
    {"simd (outer)", weights_outer}, PEER_VARIANTS{0},
};

const lab_kernel LAB_KERNELS(conv)[] = {
    {"conv forward", open_forward, expect_forward, forward_variants},
    {"conv back", open_back, expect_back, back_variants},
    {"conv weights", open_weights, expect_weights, weights_variants},
    {0},
};
