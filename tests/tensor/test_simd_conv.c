/* ctest: sets=each */
/* simd_conv.h and simd_conv_weights.h on random shapes, against plain loops in double: forward, gradient of x, gradient of
 * the weights in both ways, and channels by themselves. What is written over holds NaN before, what is added to random
 * numbers; nothing outside of a buffer may change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_conv_weights.h"

enum { N_CASES = 150 };

static const double MOST_PRODUCTS = 2e6; /* of a case, sixteen samples counted: milliseconds */

typedef struct conv_case {
    char       text[120];
    simd_conv v;
    int        groups; /* 1, or channels by themselves */
    bool       add;
    size_t     n_x, n_w, n_y;
    float     *x, *w, *g;
    double    *y, *dx, *dw; /* expected, without what stood there */
} conv_case;

/* ------------------------------------------------------------------------------------------------ the definition */

/* One output channel with one input channel; i, j and k are where x, w and y of them begin. */
static void define_planes(conv_case *c, size_t i, size_t j, size_t k)
{
    const simd_conv *v = &c->v;

    for (int p = 0; p < v->out_h * v->out_w; p++)
        for (int t = 0; t < v->kernel * v->kernel; t++) {
            int iy = p / v->out_w + t / v->kernel - v->pad, ix = p % v->out_w + t % v->kernel - v->pad;
            size_t x = i + (size_t)((iy * v->in_w + ix) * SIMD_WIDTH), w = j + (size_t)t;
            size_t y = k + (size_t)(p * SIMD_WIDTH);

            for (size_t l = 0; l < SIMD_WIDTH && iy >= 0 && iy < v->in_h && ix >= 0 && ix < v->in_w; l++) {
                c->y[y + l] += (double)c->w[w] * (double)c->x[x + l];
                c->dx[x + l] += (double)c->w[w] * (double)c->g[y + l];
                c->dw[w] += (double)c->g[y + l] * (double)c->x[x + l];
            }
        }
}

static void define(conv_case *c)
{
    size_t in_plane = (size_t)(c->v.in_h * c->v.in_w * SIMD_WIDTH), taps = (size_t)(c->v.kernel * c->v.kernel);
    size_t out_plane = (size_t)(c->v.out_h * c->v.out_w * SIMD_WIDTH), in_c = (size_t)c->v.in_c;

    c->y = simd_case_doubles(c->n_y);
    c->dx = simd_case_doubles(c->n_x);
    c->dw = simd_case_doubles(c->n_w);
    for (size_t o = 0; o < c->n_y / out_plane; o++)
        for (size_t i = 0; i < in_c; i++)
            define_planes(c, (c->groups > 1 ? o : i) * in_plane, (o * in_c + i) * taps, o * out_plane);
}

/* ------------------------------------------------------------------------------------------------ a case */

static double products(const conv_case *c)
{
    const simd_conv *v = &c->v;

    return (double)c->groups * v->in_c * v->out_c * v->kernel * v->kernel * v->out_h * v->out_w * SIMD_WIDTH;
}

/* Many channels, long sides, or both small; kernels that reach far over the edge of small images among them. */
static void draw_shape(conv_case *c, esper_rng *rng)
{
    static const int kernels[] = {1, 3, 3, 3, 5, 7};
    int most_channels[] = {20, 200, 8}, most_side[] = {18, 5, 64}, kind = simd_case_int(rng, 0, 2);
    simd_conv *v = &c->v;

    do {
        v->kernel = kernels[simd_case_int(rng, 0, 5)];
        v->pad = simd_case_int(rng, 0, 2) > 0 ? v->kernel / 2 : simd_case_int(rng, 0, v->kernel - 1);
        v->in_c = simd_case_int(rng, 1, most_channels[kind]);
        v->out_c = simd_case_int(rng, 1, most_channels[kind]);
        v->in_h = simd_case_int(rng, 1, most_side[kind]);
        v->in_w = simd_case_int(rng, 1, most_side[kind]);
        v->out_h = v->in_h + 2 * v->pad - v->kernel + 1;
        v->out_w = v->in_w + 2 * v->pad - v->kernel + 1;
    } while (v->out_h < 1 || v->out_w < 1 || products(c) > MOST_PRODUCTS);
}

static void open_case(conv_case *c, uint32_t number, bool depthwise)
{
    esper_rng rng = simd_case_rng(number);
    simd_conv *v = &c->v;

    *c = (conv_case){.groups = 1, .add = number % 2 != 0};
    draw_shape(c, &rng);
    if (depthwise) {
        c->groups = v->in_c + 1; /* at least two, so that they are told from one dense channel */
        v->in_c = v->out_c = 1;
    }
    snprintf(c->text, sizeof(c->text), "%d x %d->%d, kernel %d, pad %d, %dx%d%s", c->groups, v->in_c, v->out_c,
             v->kernel, v->pad, v->in_h, v->in_w, c->add ? ", added" : "");
    c->n_x = (size_t)(c->groups * v->in_c * v->in_h * v->in_w * SIMD_WIDTH);
    c->n_w = (size_t)(c->groups * v->in_c * v->out_c * v->kernel * v->kernel);
    c->n_y = (size_t)(c->groups * v->out_c * v->out_h * v->out_w * SIMD_WIDTH);
    c->x = simd_case_random(&rng, c->n_x, 0, 1);
    c->w = simd_case_random(&rng, c->n_w, 0, 1);
    c->g = simd_case_random(&rng, c->n_y, 0, 1);
    define(c);
}

/* What stands in a result before: the same numbers in every call when they are added to. */
static float *before(const conv_case *c, size_t n)
{
    esper_rng rng = simd_case_rng(77);
    float *found = simd_case_random(&rng, n, 0, 1);

    for (size_t i = 0; i < n && !c->add; i++)
        found[i] = NAN;
    return found;
}

static void compare(const conv_case *c, const char *what, const double *expected, const float *found, size_t n)
{
    const float *stood = before(c, n);
    float *whole = simd_case_floats(n);
    char text[160];

    snprintf(text, sizeof(text), "%s: %s", c->text, what);
    for (size_t i = 0; i < n; i++)
        whole[i] = (float)(expected[i] + (c->add ? (double)stood[i] : 0));
    simd_case_compare(text, whole, found, n);
}

/* ------------------------------------------------------------------------------------------------ tests */

static void check_forward(const conv_case *c)
{
    float *packed = simd_case_floats(c->n_w), *y = before(c, c->n_y), *dx = before(c, c->n_x);
    simd_conv back = simd_conv_turned(&c->v);

    simd_conv_pack(&c->v, c->w, packed);
    simd_conv_forward(&c->v, c->x, packed, y, c->add);
    compare(c, "y", c->y, y, c->n_y);

    simd_conv_pack_back(&c->v, c->w, packed);
    simd_conv_forward(&back, c->g, packed, dx, c->add);
    compare(c, "dx", c->dx, dx, c->n_x);
}

static void check_weights(const conv_case *c)
{
    float *chosen = before(c, c->n_w), *dot = before(c, c->n_w), *outer = before(c, c->n_w);

    simd_conv_weights(&c->v, c->x, c->g, chosen, c->add);
    compare(c, "dw", c->dw, chosen, c->n_w);
    simd_conv_weights_dot(&c->v, c->x, c->g, dot, c->add);
    compare(c, "dw by dot products", c->dw, dot, c->n_w);
    if (!simd_conv_weights_can_outer(&c->v))
        return;
    simd_conv_weights_outer(&c->v, 0, simd_outer_tiles(&c->v), c->x, c->g, outer, c->add);
    compare(c, "dw by outer products", c->dw, outer, c->n_w);
}

static void test_dense(void **state)
{
    (void)state;
    for (uint32_t number = 0; number < N_CASES; number++) {
        conv_case c;

        open_case(&c, number, false);
        check_forward(&c);
        check_weights(&c);
        simd_case_end();
    }
}

static void test_depthwise(void **state)
{
    (void)state;
    for (uint32_t number = N_CASES; number < N_CASES + N_CASES / 2; number++) {
        float *y, *dx, *dw;
        conv_case c;

        open_case(&c, number, true);
        y = before(&c, c.n_y);
        dx = before(&c, c.n_x);
        dw = before(&c, c.n_w);
        simd_depthwise_forward(&c.v, c.groups, c.x, c.w, y, c.add);
        simd_depthwise_back(&c.v, c.groups, c.g, c.w, dx, c.add);
        simd_depthwise_weights(&c.v, c.groups, c.x, c.g, dw, c.add);
        compare(&c, "y", c.y, y, c.n_y);
        compare(&c, "dx", c.dx, dx, c.n_x);
        compare(&c, "dw", c.dw, dw, c.n_w);
        simd_case_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_depthwise),
    };

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
