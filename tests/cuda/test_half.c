/* ctest: cost=10 kernels=ref64 cuda=only */
/* Activations of bf16 on the cuda backend's kernels. Convolutions over words of two channels, forward and back, against ref64's on numbers
 * that bf16 has: what is written as bf16 within half a last place of it, gradients of weights within 2e-5 of the largest; channels and images
 * that fill tiles and such as are cut by them. Where dy is formed on the way, the bits that there are when it is written first. The same bits in another order of blocks and threads. */
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
#include "tensor/cuda/block_half.h"

static const double TOLERANCE_WEIGHTS = 2e-5;
static const double TOLERANCE_WORDS = 0x1.02p-8; /* half a last place, and what sums of floats are off by */

typedef struct shape {
    int  in_c, out_c, h, w, pad, n;
    bool add;
} shape;

static void *take(int64_t bytes)
{
    void *memory;

    assert_int_equal(posix_memalign(&memory, 64, (size_t)bytes + 64), 0);
    memset(memory, 0xff, (size_t)bytes + 64); /* NaN */
    return memory;
}

/* As a view of the tensor has it: numbers for ref64, and words, or floats for weights (n = 0). */
typedef struct numbers {
    esper_view exact, found;
} numbers;

static uint16_t half_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static double value_of(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* Where a sample's element is among 16-bit numbers. */
static int64_t place(const esper_view *v, int64_t sample, int64_t element)
{
    int64_t plane = (int64_t)v->dim[1] * v->dim[2], c = element / plane, pixel = element % plane,
            pairs = half_pairs(v->dim[0]);
    int64_t word =
        ((sample / ESPER_CUDA_BLOCK * pairs + c / 2) * plane + pixel) * ESPER_CUDA_BLOCK + sample % ESPER_CUDA_BLOCK;

    return 2 * word + c % 2;
}

static int64_t words_in(const esper_view *v, int n)
{
    return (int64_t)half_pairs(v->dim[0]) * v->dim[1] * v->dim[2] * esper_cuda_blocks_of(n) * ESPER_CUDA_BLOCK;
}

/* In -0.5 .. 1, of eight bits. Beyond the batch finite numbers, and no gradients; 0 in the upper half of an odd last channel. */
static numbers draw(int n, int rank, const int *dim, uint32_t tag, bool add)
{
    numbers t = {.exact = {.rank = rank, .count = 1, .dim = {1, 1, 1, 1}, .add = add}};
    int64_t total;
    esper_rng rng;

    for (int i = 0; i < rank; i++) {
        t.exact.dim[i] = dim[i];
        t.exact.count *= dim[i];
    }
    t.found = t.exact;
    total = n == 0 ? t.exact.count : t.exact.count * n;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 6, .purpose = ESPER_RNG_TEST, .tag = tag});
    for (int family = 0; family < 2; family++) {
        double *exact = take(total * (int64_t)sizeof(double));
        int64_t bytes = 4 * (n == 0 ? total : words_in(&t.exact, n));
        void *found = take(bytes);

        memset(found, family == 0 && n > 0 ? 0x3e : 0, (size_t)bytes);
        for (int64_t i = 0; i < words_in(&t.exact, n) && n > 0 && dim[0] % 2 == 1; i++)
            if (i / ((int64_t)dim[1] * dim[2] * ESPER_CUDA_BLOCK) % half_pairs(dim[0]) == dim[0] / 2)
                ((uint16_t *)found)[2 * i + 1] = 0;
        for (int64_t i = 0; i < total; i++) {
            float value = (float)((int)(192 * esper_rng_uniform(&rng)) - 64) / 128;

            exact[i] = (double)value;
            if (n == 0)
                ((float *)found)[i] = value;
            else
                ((uint16_t *)found)[place(&t.exact, i / t.exact.count, i % t.exact.count)] = half_of(value);
        }
        *(family == 0 ? &t.exact.data : &t.exact.grad) = exact;
        *(family == 0 ? &t.found.data : &t.found.grad) = found;
    }
    return t;
}

static void drop(numbers *t)
{
    free(t->exact.data);
    free(t->exact.grad);
    free(t->found.data);
    free(t->found.grad);
}

static void run_exact(const esper_phase *phases, const esper_lane *lane)
{
    for (const esper_phase *p = phases; p->run != NULL; p++)
        p->run(lane, 0, p->units != NULL ? p->units(lane) : lane->pass->n_samples);
}

static void run_words(esper_lane *lane)
{
    const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_CONV2D, ESPER_CUDA_HALVES);
    esper_launch launch = {.kind = ESPER_OP_CONV2D, .variant = ESPER_CUDA_HALVES, .n_lanes = 1, .lanes = lane};

    lane->scratch = take((int64_t)op->scratch(lane, true, lane->max_samples));
    launch.direction = ESPER_FORWARD;
    cuda_host_run(&launch);
    launch.direction = ESPER_BACKWARD;
    cuda_host_run(&launch);
    free(lane->scratch);
}

static void compare(const shape *s, const char *what, const esper_view *view, int n, const double *exact,
                    const void *found)
{
    int64_t total = view->count * (n == 0 ? 1 : n);
    double most = 0;

    for (int64_t i = 0; i < total; i++)
        most = fmax(most, fabs(exact[i]));
    for (int64_t i = 0; i < total; i++) {
        double value = n == 0 ? (double)((const float *)found)[i]
                              : value_of(((const uint16_t *)found)[place(view, i / view->count, i % view->count)]);
        double least = n == 0 ? TOLERANCE_WEIGHTS * most : TOLERANCE_WORDS * fabs(exact[i]) + 1e-5 * most;

        if (!(fabs(exact[i] - value) <= least))
            fail_msg("%d x %d x %d -> %d, pad %d, %d samples: %s %lld is %.9g, expected %.9g", s->in_c, s->h, s->w,
                     s->out_c, s->pad, s->n, what, (long long)i, value, exact[i]);
    }
}

static void check(const shape *s)
{
    int out_h = s->h + 2 * s->pad - 2, out_w = s->w + 2 * s->pad - 2;
    const esper_op_kernels *op = esper_kernels_ref64.op[ESPER_OP_CONV2D];
    esper_pass pass = {.n_samples = s->n, .training = true, .loss_scale = 1};
    numbers x[2], w[2], y[2];
    esper_lane exact = {.max_samples = s->n, .pass = &pass}, found[2];

    for (int k = 0; k < 2; k++) {
        x[k] = draw(s->n, 3, (int[]){s->in_c, s->h, s->w}, 1, s->add);
        w[k] = draw(0, 4, (int[]){s->out_c, s->in_c, 3, 3}, 2, s->add);
        y[k] = draw(s->n, 3, (int[]){s->out_c, out_h, out_w}, 3, false);
        found[k] = (esper_lane){.max_samples = s->n + 40 * k, .pass = &pass, .precision = ESPER_BF16};
        found[k].in[0] = x[k].found;
        found[k].in[1] = w[k].found;
        found[k].out[0] = y[k].found;
        found[k].attr.conv.pad = exact.attr.conv.pad = s->pad;
        found[k].attr.conv.groups = exact.attr.conv.groups = 1;
    }
    exact.in[0] = x[0].exact;
    exact.in[1] = w[0].exact;
    exact.out[0] = y[0].exact;
    exact.scratch = take(op->scratch != NULL ? (int64_t)op->scratch(&exact, true, s->n) : 0);
    run_exact(op->forward, &exact);
    run_exact(op->backward, &exact);
    free(exact.scratch);
    run_words(&found[0]);
    compare(s, "y", &exact.out[0], s->n, exact.out[0].data, found[0].out[0].data);
    compare(s, "the gradient of x", &exact.in[0], s->n, exact.in[0].grad, found[0].in[0].grad);
    compare(s, "the gradient of w", &exact.in[1], 0, exact.in[1].grad, found[0].in[1].grad);

    host_cuda_reverse(true);
    run_words(&found[1]);
    host_cuda_reverse(false);
    assert_memory_equal(found[0].out[0].data, found[1].out[0].data, (size_t)words_in(&exact.out[0], s->n) * 4);
    assert_memory_equal(found[0].in[0].grad, found[1].in[0].grad, (size_t)words_in(&exact.in[0], s->n) * 4);
    assert_memory_equal(found[0].in[1].grad, found[1].in[1].grad, (size_t)exact.in[1].count * 4);
    for (int k = 0; k < 2; k++) {
        drop(&x[k]);
        drop(&w[k]);
        drop(&y[k]);
    }
}

static void test_convolutions(void **state)
{
    static const shape shapes[] = {
        {3, 8, 4, 32, 1, 33, false},   /* a first layer */
        {8, 16, 6, 14, 1, 20, true},   /* rows cut by a tile, two taps to a product */
        {16, 32, 4, 16, 1, 5, false},  /* all warps have channels of their own */
        {32, 16, 7, 7, 1, 17, true},   {24, 8, 5, 9, 1, 40, false}, /* channels that are no power of two */
        {13, 11, 1, 2, 1, 4, false},   /* odd channels, less than a tile */
        {5, 7, 9, 5, 0, 6, true},      /* without padding, and with more than there is */
        {4, 6, 3, 6, 2, 70, false},    {3, 21, 5, 5, 1, 7, true},
        {40, 40, 2, 2, 1, 100, false}, /* all blocks of samples are one part, of several tiles of channels */
        {3, 8, 18, 16, 1, 2, false},   /* so many tiles that a warp has two */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i += (size_t)effort(1, 3))
        check(&shapes[i]);
}

/* ------------------------------------------------------------------------------------------------ a first layer */

/* The gradient of the weights of a convolution with a norm behind it; to be freed. */
static float *run_layer(const shape *s, bool relu, bool pool, bool with_dx)
{
    const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_CONV_NORM, ESPER_CUDA_HALVES);
    int h = s->h + 2 * s->pad - 2, w = s->w + 2 * s->pad - 2, C = s->out_c, shrink = pool ? 2 : 1;
    esper_pass pass = {.n_samples = s->n, .training = true, .loss_scale = 1};
    esper_lane lane = {.max_samples = s->n, .pass = &pass, .precision = ESPER_BF16};
    esper_launch launch = {.kind = ESPER_OP_CONV_NORM, .variant = ESPER_CUDA_HALVES, .n_lanes = 1, .lanes = &lane};
    numbers given[10];
    float *gradient = take(4 * (int64_t)C * s->in_c * 9);

    given[0] = draw(s->n, 3, (int[]){s->in_c, s->h, s->w}, 1, false);
    given[1] = draw(0, 4, (int[]){C, s->in_c, 3, 3}, 2, false);
    for (int i = 2; i < 6; i++) /* scale, shift, running mean and variance */
        given[i] = draw(0, 1, &C, (uint32_t)i + 1, false);
    given[6] = draw(s->n, 3, (int[]){C, h / shrink, w / shrink}, 7, false);
    given[7] = draw(s->n, 3, (int[]){C, h, w}, 8, false);
    given[8] = draw(0, 1, &C, 9, false);
    given[9] = draw(0, 1, &C, 10, false);
    for (int i = 0; i < 6; i++)
        lane.in[i] = given[i].found;
    for (int i = 0; i < 4; i++)
        lane.out[i] = given[6 + i].found;
    if (!with_dx)
        lane.in[0].grad = NULL;
    lane.attr.conv_norm.pad = s->pad;
    lane.attr.conv_norm.groups = 1;
    lane.attr.conv_norm.eps = 1e-5f;
    lane.attr.conv_norm.momentum = 0.1f;
    lane.attr.conv_norm.relu = relu;
    lane.attr.conv_norm.pool = pool;
    for (int back = 0; back < 2; back++) {
        lane.scratch = take((int64_t)op->scratch(&lane, back == 1, s->n));
        launch.direction = back == 1 ? ESPER_BACKWARD : ESPER_FORWARD;
        cuda_host_run(&launch);
        free(lane.scratch);
    }
    memcpy(gradient, lane.in[1].grad, 4 * (size_t)(C * s->in_c * 9));
    for (int i = 0; i < 10; i++)
        drop(&given[i]);
    return gradient;
}

/* Where dy is formed on the way, the bits that there are when it is written first. */
static void test_first_layer(void **state)
{
    static const shape shapes[] = {
        {3, 8, 6, 8, 1, 40, false},  {3, 7, 5, 7, 1, 33, false}, {4, 20, 9, 6, 0, 20, false},
        {3, 16, 3, 3, 2, 65, false}, {3, 4, 2, 13, 1, 5, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int how = 0; how < 4; how++) {
            const shape *s = &shapes[i];
            float *formed = run_layer(s, how % 2 == 1, how / 2 == 1, false),
                  *written = run_layer(s, how % 2 == 1, how / 2 == 1, true);
            bool is_any = false;

            for (int k = 0; k < s->out_c * s->in_c * 9; k++) {
                is_any = is_any || written[k] != 0;
                if (!(formed[k] == written[k]))
                    fail_msg(
                        "%d x %d x %d -> %d, pad %d, %d samples, relu %d, pool %d: weight %d is %.9g, expected %.9g",
                        s->in_c, s->h, s->w, s->out_c, s->pad, s->n, how % 2, how / 2, k, (double)formed[k],
                        (double)written[k]);
            }
            assert_true(is_any);
            free(formed);
            free(written);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_first_layer),
    };

    return cmocka_run_group_tests_name("cuda halves", tests, NULL, NULL);
}
