/* ctest: cost=4 kernels=ref64 cuda=only */
/* Gradients of the weights of convolutions on blocks of samples against ref64's, within 2e-5 of the largest: shapes that fill the
 * kernels' tiles and such as are cut by them in each direction, batches that no block divides, added to what stands there or not;
 * numbers whose mean is not 0, so that a sum that drifts shows. The same bits in another order of blocks and threads. Where dy is formed
 * on the way, the bits that there are when it is written first. On devices with tensor cores and without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cuda/cuda_host.h"
#include "cuda/host_cuda_run.h"
#include "support/effort.h"
#include "tensor/cuda/kernels.h"

static const double TOLERANCE = 2e-5;
static const double TOLERANCE_TF32 = 1e-3; /* a factor is off by up to 0.7 of 2^-10, and by nothing in the mean */

static esper_precision precision = ESPER_FP32; /* of all lanes */

typedef struct shape {
    int  in_c, out_c, kernel, pad, groups, h, w, n;
    bool add;
} shape;

static void *take(size_t count, size_t each)
{
    void *memory;

    assert_int_equal(posix_memalign(&memory, 64, count * each + 64), 0);
    memset(memory, 0xff, count * each + 64); /* NaN */
    return memory;
}

static void view(esper_view *v, void *data, void *grad, int rank, const int *dim)
{
    *v = (esper_view){.data = data, .grad = grad, .rank = rank, .count = 1, .dim = {1, 1, 1, 1}};
    for (int i = 0; i < rank; i++) {
        v->dim[i] = dim[i];
        v->count *= dim[i];
    }
}

static esper_lane lane_of(const shape *s, void *x, void *w, void *dw, void *dy, const esper_pass *pass)
{
    int out_h = s->h + 2 * s->pad - s->kernel + 1, out_w = s->w + 2 * s->pad - s->kernel + 1;
    esper_lane lane = {.max_samples = pass->n_samples, .pass = pass, .precision = (uint8_t)precision};

    view(&lane.in[0], x, NULL, 3, (int[]){s->in_c, s->h, s->w});
    view(&lane.in[1], w, dw, 4, (int[]){s->out_c, s->in_c / s->groups, s->kernel, s->kernel});
    view(&lane.out[0], NULL, dy, 3, (int[]){s->out_c, out_h, out_w});
    lane.in[1].add = s->add;
    lane.attr.conv.pad = s->pad;
    lane.attr.conv.groups = s->groups;
    return lane;
}

/* Numbers in -0.6 .. 1, exact in float; into blocks, too, where what is beyond the batch is `beyond`. */
static double *draw(const esper_view *v, int n, uint32_t tag, float beyond, float **blocks_out)
{
    int blocks = esper_cuda_blocks_of(n);
    double *plain = take((size_t)(v->count * n), sizeof(double));
    esper_rng rng;

    *blocks_out = take((size_t)(v->count * blocks) * ESPER_CUDA_BLOCK, sizeof(float));
    for (int64_t i = 0; i < v->count * blocks * ESPER_CUDA_BLOCK; i++)
        (*blocks_out)[i] = beyond;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST, .tag = tag});
    for (int64_t i = 0; i < v->count * n; i++) {
        int64_t sample = i / v->count, block = sample / ESPER_CUDA_BLOCK;
        float value = (float)(int)(1.6f * esper_rng_uniform(&rng) * 0x1p20f) * 0x1p-20f - 0.6f;

        plain[i] = (double)value;
        (*blocks_out)[(block * v->count + i % v->count) * ESPER_CUDA_BLOCK + sample % ESPER_CUDA_BLOCK] = value;
    }
    return plain;
}

static void run_exact(const shape *s, void *x, void *dw, void *dy, const esper_pass *pass)
{
    const esper_op_kernels *op = esper_kernels_ref64.op[ESPER_OP_CONV2D];
    esper_lane lane = lane_of(s, x, dw /* unread */, dw, dy, pass);

    lane.scratch = take(op->scratch != NULL ? op->scratch(&lane, true, pass->n_samples) : 0, 1);
    for (const esper_phase *p = op->backward; p->run != NULL; p++)
        p->run(&lane, 0, p->units != NULL ? p->units(&lane) : pass->n_samples);
    free(lane.scratch);
}

/* The plan is made for `more` samples than there are. */
static void run_blocks(const shape *s, float *x, float *dw, float *dy, const esper_pass *pass, int more)
{
    const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_CONV2D, ESPER_CUDA_BLOCKED);
    esper_lane lane = lane_of(s, x, dw, dw, dy, pass);

    lane.max_samples += more;
    lane.scratch = take(op->scratch(&lane, true, lane.max_samples), 1);
    cuda_host_run(&(esper_launch){.kind = ESPER_OP_CONV2D,
                                  .variant = ESPER_CUDA_BLOCKED,
                                  .direction = ESPER_BACKWARD,
                                  .n_lanes = 1,
                                  .lanes = &lane});
    free(lane.scratch);
}

static void check(const shape *s)
{
    esper_pass pass = {.n_samples = s->n, .training = true, .loss_scale = 1};
    esper_lane shapes = lane_of(s, NULL, NULL, NULL, NULL, &pass);
    size_t n_weights = (size_t)shapes.in[1].count;
    double *exact = take(n_weights, sizeof(double)), most = 0;
    float *x_blocks, *dy_blocks, *found = take(n_weights, sizeof(float)), *again = take(n_weights, sizeof(float));
    double *x = draw(&shapes.in[0], s->n, 1, 0.75f, &x_blocks), *dy = draw(&shapes.out[0], s->n, 2, 0, &dy_blocks);

    for (size_t i = 0; i < n_weights && s->add; i++) {
        found[i] = again[i] = (float)(i % 7);
        exact[i] = (double)found[i];
    }
    run_exact(s, x, exact, dy, &pass);
    run_blocks(s, x_blocks, found, dy_blocks, &pass, 0);
    for (size_t i = 0; i < n_weights; i++)
        most = fmax(most, fabs(exact[i]));
    for (size_t i = 0; i < n_weights; i++)
        if (!(fabs(exact[i] - (double)found[i]) <= (precision == ESPER_FP32 ? TOLERANCE : TOLERANCE_TF32) * most))
            fail_msg("%d x %d x %d -> %d, %d taps, pad %d, groups %d, %d samples: weight %zu is %.9g, expected %.9g",
                     s->in_c, s->h, s->w, s->out_c, s->kernel, s->pad, s->groups, s->n, i, (double)found[i], exact[i]);
    host_cuda_reverse(true);
    run_blocks(s, x_blocks, again, dy_blocks, &pass, 40);
    host_cuda_reverse(false);
    assert_memory_equal(found, again, n_weights * sizeof(float));
    free(exact);
    free(found);
    free(again);
    free(x);
    free(dy);
    free(x_blocks);
    free(dy_blocks);
}

static const shape
    shapes
        [] =
            {
                {3, 8, 3, 1, 1, 8, 12, 64, false},  /* a first layer */
                {5, 7, 3, 1, 1, 13, 9, 37, true},   /* two tiles of x, an odd row and column */
                {2, 2, 3, 0, 1, 4, 3, 32, false},   /* a column of y */
                {6, 3, 3, 2, 1, 5, 2, 33, false},   /* more padding than pixels */
                {8, 16, 3, 1, 1, 16, 8, 20, true},  /* whole tiles, in two parts */
                {11, 21, 3, 1, 1, 7, 7, 70, false}, /* tiles cut both ways */
                {9, 33, 3, 0, 1, 6, 5, 31, true},
                {16, 17, 3, 1, 1, 2, 2, 100, false}, /* all blocks of samples are one part */
                {4, 24, 3, 1, 1, 4, 4, 300, true},   /* several parts of four blocks */
                {8, 6, 3, 1, 2, 6, 6, 40, false},    /* groups */
                {6, 30, 3, 2, 3, 3, 5, 40, true},
                {4, 4, 3, 1, 4, 9, 9, 35, false}, /* multiply-adds: a channel alone, other kernels */
                {3, 9, 1, 0, 1, 5, 5, 33, true},
                {3, 5, 5, 2, 1, 7, 6, 33, false},
                {2, 9, 2, 0, 1, 6, 6, 33, true},
};

static void test_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof(shapes) / sizeof(shapes[0])); i += effort(1, 2))
        check(&shapes[i]);
}

static void test_shapes_without_cores(void **state)
{
    host_cuda_set_cores(false);
    test_shapes(state);
    host_cuda_set_cores(true);
}

static void test_shapes_in_tf32(void **state)
{
    precision = ESPER_TF32;
    test_shapes(state);
    precision = ESPER_FP32;
}

/* ------------------------------------------------------------------------------------------------ a first layer */

static float *draw_floats(int64_t count, uint32_t tag, float about)
{
    float *values = take((size_t)count, sizeof(float));
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = 6, .purpose = ESPER_RNG_TEST, .tag = tag});
    for (int64_t i = 0; i < count; i++)
        values[i] = about + esper_rng_uniform(&rng) - 0.5f;
    return values;
}

/* Convolution, norm and what follows, forward and back: the gradient of the weights. With the gradient of x dy is written first. */
static float *run_layer(const shape *s, bool relu, bool pool, bool with_dx, float *x, float *w, float *g)
{
    const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_CONV_NORM, ESPER_CUDA_BLOCKED);
    esper_pass pass = {.n_samples = s->n, .training = true, .loss_scale = 1};
    esper_lane lane = lane_of(s, x, w, NULL, NULL, &pass);
    int C = s->out_c, h = lane.out[0].dim[1], width = lane.out[0].dim[2];
    size_t samples = (size_t)esper_cuda_blocks_of(s->n) * ESPER_CUDA_BLOCK;
    float *memory[10] = {NULL};

    lane.in[1].grad = memory[0] = take((size_t)lane.in[1].count, sizeof(float));
    for (int i = 2; i < 6; i++)
        view(&lane.in[i], memory[i] = draw_floats(C, (uint32_t)i, i == 3 ? 0 : 1), NULL, 1, &C);
    view(&lane.out[0], memory[1] = take((size_t)(C * h * width) * samples, sizeof(float)), g, 3,
         (int[]){C, pool ? h / 2 : h, pool ? width / 2 : width});
    view(&lane.out[1], memory[6] = take((size_t)(C * h * width) * samples, sizeof(float)), NULL, 3,
         (int[]){C, h, width});
    for (int i = 2; i < 4; i++)
        view(&lane.out[i], memory[5 + i] = take((size_t)C, sizeof(float)), NULL, 1, &C);
    lane.attr = (esper_attr){0};
    lane.attr.conv_norm.pad = s->pad;
    lane.attr.conv_norm.groups = 1;
    lane.attr.conv_norm.eps = 1e-5f;
    lane.attr.conv_norm.momentum = 0.1f;
    lane.attr.conv_norm.relu = relu;
    lane.attr.conv_norm.pool = pool;
    if (with_dx)
        lane.in[0].grad = memory[9] = take((size_t)lane.in[0].count * samples, sizeof(float));
    for (int back = 0; back < 2; back++) {
        lane.scratch = take(op->scratch(&lane, back == 1, s->n), 1);
        cuda_host_run(&(esper_launch){.kind = ESPER_OP_CONV_NORM,
                                      .variant = ESPER_CUDA_BLOCKED,
                                      .direction = back == 1 ? ESPER_BACKWARD : ESPER_FORWARD,
                                      .n_lanes = 1,
                                      .lanes = &lane});
        free(lane.scratch);
    }
    for (int i = 1; i < 10; i++)
        free(memory[i]);
    return memory[0];
}

static void check_layer(const shape *s, bool relu, bool pool)
{
    esper_pass pass = {.n_samples = s->n};
    esper_lane shapes_of = lane_of(s, NULL, NULL, NULL, NULL, &pass);
    size_t n_weights = (size_t)shapes_of.in[1].count;
    float *x, *g, *w = draw_floats((int64_t)n_weights, 1, 0), *found[3];
    double most = 0;

    free(draw(&shapes_of.in[0], s->n, 1, 0.75f, &x));
    free(draw(&shapes_of.out[0], s->n, 2, 0, &g)); /* of a pool's result the first numbers of it */
    found[0] = run_layer(s, relu, pool, true, x, w, g);
    found[1] = run_layer(s, relu, pool, false, x, w, g);
    host_cuda_set_cores(false);
    found[2] = run_layer(s, relu, pool, false, x, w, g);
    host_cuda_set_cores(true);
    for (size_t i = 0; i < n_weights; i++)
        most = fmax(most, fabs((double)found[0][i]));
    assert_true(most > 0);
    assert_memory_equal(found[0], found[1], n_weights * sizeof(float));
    for (size_t i = 0; i < n_weights; i++)
        if (!(fabs((double)found[0][i] - (double)found[2][i]) <= 2 * TOLERANCE * most))
            fail_msg("%d x %d x %d -> %d: weight %zu is %.9g, and %.9g without tensor cores", s->in_c, s->h, s->w,
                     s->out_c, i, (double)found[0][i], (double)found[2][i]);
    for (int i = 0; i < 3; i++)
        free(found[i]);
    free(x);
    free(g);
    free(w);
}

static void test_first_layer(void **state)
{
    static const shape layers[] = {
        {3, 8, 3, 1, 1, 10, 12, 40, false},
        {4, 11, 3, 1, 1, 9, 7, 33, false}, /* windows cut, two tiles of channels */
        {2, 5, 3, 0, 1, 5, 6, 100, false}, /* several blocks in a part */
        {3, 16, 3, 2, 1, 3, 4, 31, false},
    };

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int how = 0; how < 4; how += effort(1, 3))
            check_layer(&layers[i], how % 2 == 0, how < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shapes_without_cores),
        cmocka_unit_test(test_shapes_in_tf32),
        cmocka_unit_test(test_first_layer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
