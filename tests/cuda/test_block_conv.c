/* ctest: cost=2 kernels=ref64 cuda=only */
/* Convolutions on blocks of samples and the gradient of x against ref64's, within 2e-5 of the largest: channels and images that fill
 * the kernels' tiles and such as are cut by them, batches that no block divides, added to what stands there or not; numbers whose mean
 * is not 0, so that a sum that drifts shows. The same bits in another order of blocks and threads. */
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
#include "tensor/cuda/block.h"

/* With precision tf32 a factor is off by up to 0.7 of 2^-10, and by nothing in the mean. */
static const double tolerances[] = {[ESPER_FP32] = 2e-5, [ESPER_TF32] = 1e-3};

typedef struct shape {
    int  in_c, out_c, h, w, kernel, pad, groups, n;
    bool add;
} shape;

/* A tensor of a batch or of weights: for ref64, and for the kernels, in blocks if it is a batch's. */
typedef struct numbers {
    esper_view exact, blocks;
} numbers;

static void *take(int64_t bytes)
{
    void *memory;

    assert_int_equal(posix_memalign(&memory, 64, (size_t)bytes + 64), 0);
    memset(memory, 0xff, (size_t)bytes + 64); /* NaN */
    return memory;
}

static int64_t place(int64_t count, int64_t sample, int64_t element)
{
    return (sample / ESPER_CUDA_BLOCK * count + element) * ESPER_CUDA_BLOCK + sample % ESPER_CUDA_BLOCK;
}

/* data and grad, drawn in -0.6 .. 1 and exact in float; n = 0: weights. Beyond the batch there are finite numbers, and no gradients. */
static numbers draw(int n, int rank, const int *dim, uint32_t tag, bool add)
{
    numbers t = {.exact = {.rank = rank, .count = 1, .dim = {1, 1, 1, 1}, .add = add}};
    int64_t blocks = esper_cuda_blocks_of(n), total, room;
    esper_rng rng;

    for (int i = 0; i < rank; i++) {
        t.exact.dim[i] = dim[i];
        t.exact.count *= dim[i];
    }
    t.blocks = t.exact;
    total = n == 0 ? t.exact.count : t.exact.count * n;
    room = n == 0 ? total : t.exact.count * blocks * ESPER_CUDA_BLOCK;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST, .tag = tag});
    for (int family = 0; family < 2; family++) {
        double *exact = take(total * (int64_t)sizeof(double));
        float *found = take(room * (int64_t)sizeof(float));

        for (int64_t i = 0; i < room; i++)
            found[i] = family == 0 ? 0.75f : 0;
        for (int64_t i = 0; i < total; i++) {
            float value = (float)(int)(1.6f * esper_rng_uniform(&rng) * 0x1p20f) * 0x1p-20f - 0.6f;

            exact[i] = (double)value;
            found[n == 0 ? i : place(t.exact.count, i / t.exact.count, i % t.exact.count)] = value;
        }
        *(family == 0 ? &t.exact.data : &t.exact.grad) = exact;
        *(family == 0 ? &t.blocks.data : &t.blocks.grad) = found;
    }
    return t;
}

static void drop(numbers *t)
{
    free(t->exact.data);
    free(t->exact.grad);
    free(t->blocks.data);
    free(t->blocks.grad);
}

static void run_exact(const esper_phase *phases, const esper_lane *lane)
{
    for (const esper_phase *p = phases; p->run != NULL; p++)
        p->run(lane, 0, p->units != NULL ? p->units(lane) : lane->pass->n_samples);
}

static void run_blocks(esper_lane *lane)
{
    const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_CONV2D, ESPER_CUDA_BLOCKED);
    esper_launch launch = {.kind = ESPER_OP_CONV2D, .variant = ESPER_CUDA_BLOCKED, .n_lanes = 1, .lanes = lane};

    lane->scratch = take((int64_t)op->scratch(lane, true, lane->max_samples));
    launch.direction = ESPER_FORWARD;
    cuda_host_run(&launch);
    launch.direction = ESPER_BACKWARD;
    cuda_host_run(&launch);
    free(lane->scratch);
}

static void compare(const shape *s, esper_precision precision, const char *what, int64_t count, const double *exact,
                    const float *found)
{
    double most = 0;

    for (int64_t i = 0; i < count * s->n; i++)
        most = fmax(most, fabs(exact[i]));
    for (int64_t i = 0; i < count * s->n; i++) {
        double value = (double)found[place(count, i / count, i % count)];

        if (!(fabs(exact[i] - value) <= tolerances[precision] * most))
            fail_msg("%s: %d x %d x %d -> %d, %d taps, pad %d, groups %d, %d samples: %s %lld is %.9g, expected %.9g",
                     esper_precision_name(precision), s->in_c, s->h, s->w, s->out_c, s->kernel, s->pad, s->groups, s->n,
                     what, (long long)i, value, exact[i]);
    }
}

static void check(const shape *s, esper_precision precision)
{
    int out_h = s->h + 2 * s->pad - s->kernel + 1, out_w = s->w + 2 * s->pad - s->kernel + 1;
    const esper_op_kernels *op = esper_kernels_ref64.op[ESPER_OP_CONV2D];
    esper_pass pass = {.n_samples = s->n, .training = true, .loss_scale = 1};
    numbers x[2], w, y[2];
    esper_lane exact = {.max_samples = s->n, .pass = &pass}, found[2];

    w = draw(0, 4, (int[]){s->out_c, s->in_c / s->groups, s->kernel, s->kernel}, 2, false);
    for (int k = 0; k < 2; k++) {
        x[k] = draw(s->n, 3, (int[]){s->in_c, s->h, s->w}, 1, s->add);
        y[k] = draw(s->n, 3, (int[]){s->out_c, out_h, out_w}, 3, false);
        found[k] = (esper_lane){.max_samples = s->n + 40 * k, .pass = &pass, .precision = (uint8_t)precision};
        found[k].in[0] = x[k].blocks;
        found[k].in[1] = w.blocks;
        found[k].in[1].grad = NULL;
        found[k].out[0] = y[k].blocks;
        found[k].attr.conv.pad = exact.attr.conv.pad = s->pad;
        found[k].attr.conv.groups = exact.attr.conv.groups = s->groups;
    }
    exact.in[0] = x[0].exact;
    exact.in[1] = w.exact;
    exact.out[0] = y[0].exact;
    exact.scratch = take(op->scratch != NULL ? (int64_t)op->scratch(&exact, true, s->n) : 0);
    run_exact(op->forward, &exact);
    run_exact(op->backward, &exact);
    free(exact.scratch);
    run_blocks(&found[0]);
    compare(s, precision, "y", exact.out[0].count, exact.out[0].data, found[0].out[0].data);
    compare(s, precision, "the gradient of x", exact.in[0].count, exact.in[0].grad, found[0].in[0].grad);

    host_cuda_reverse(true);
    run_blocks(&found[1]);
    host_cuda_reverse(false);
    for (int b = 0; b < esper_cuda_blocks_of(s->n); b++) {
        int64_t n_x = x[0].exact.count * ESPER_CUDA_BLOCK, n_y = y[0].exact.count * ESPER_CUDA_BLOCK;

        assert_memory_equal((float *)found[0].out[0].data + b * n_y, (float *)found[1].out[0].data + b * n_y,
                            (size_t)n_y * sizeof(float));
        assert_memory_equal((float *)found[0].in[0].grad + b * n_x, (float *)found[1].in[0].grad + b * n_x,
                            (size_t)n_x * sizeof(float));
    }
    for (int k = 0; k < 2; k++) {
        drop(&x[k]);
        drop(&y[k]);
    }
    drop(&w);
}

static void test_shapes(void **state)
{
    static const shape shapes[] = {
        {3, 8, 4, 32, 3, 1, 1, 33, false},  /* a first layer */
        {8, 16, 6, 28, 3, 1, 1, 20, true},  /* rows cut by a tile */
        {16, 32, 4, 16, 3, 1, 1, 5, false}, /* all warps have channels of their own */
        {32, 16, 7, 7, 3, 1, 1, 17, true},  {24, 8, 5, 14, 3, 1, 1, 40, false}, /* channels that are no power of two */
        {48, 24, 4, 4, 3, 1, 1, 3, true},                                       /* weights come in two pieces */
        {64, 40, 2, 2, 3, 1, 1, 36, false},                                     /* images of 2 x 2 */
        {13, 11, 1, 2, 3, 1, 1, 4, false}, /* of less, and channels cut everywhere */
        {5, 7, 9, 5, 3, 0, 1, 6, true},    /* without padding, and with more than there is */
        {4, 6, 3, 6, 3, 2, 1, 6, false},    {12, 20, 6, 6, 3, 1, 2, 34, true}, /* groups */
        {6, 6, 5, 5, 2, 1, 1, 7, false},                                       /* two taps of the three */
        {4, 4, 8, 8, 3, 1, 1, 9, false},                                       /* not on tensor cores */
        {3, 8, 36, 34, 3, 1, 1, 2, false},                                     /* so many tiles that a warp has two */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (esper_precision precision = ESPER_FP32; precision <= ESPER_TF32; precision++)
            check(&shapes[i], precision);
}

/* Which are made how: by the shape of one lane. */
static void test_choice(void **state)
{
    block_conv v = {
        .in_c = 8, .out_c = 8, .groups = 1, .kernel = 3, .pad = 1, .in_h = 8, .in_w = 8, .out_h = 8, .out_w = 8};

    (void)state;
    assert_true(block_is_tensor(&v));
    v.kernel = 5;
    assert_false(block_is_tensor(&v));
    v.kernel = 3;
    v.out_c = 4;
    assert_false(block_is_tensor(&v));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_choice),
    };

    return cmocka_run_group_tests_name("convolutions on blocks", tests, NULL, NULL);
}
