/* ctest: cost=20 kernels=ref64 cuda=only */
/* Products of matrices in the kernels of tensor/cuda/, on sizes that fill several tiles in each direction, and where a tile is cut:
 * linear layers in every kind of tile, by the name of its kernels; and attention, LSTM and layer norm on more rows than random cases
 * have. The last batch is smaller than those that blocks are counted for.
 *
 * Tolerance: 2e-5 of the largest entry of a tensor, with a floor of 2e-5: sums of some hundred products of order 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_host.h"
#include "cuda/host_cuda_run.h"
#include "support/op_cases.h"
#include "tensor/cuda/linear.h"

#define DIMS(...)                                                                      \
    (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)), (const int32_t[]) \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }

static const double TOLERANCE = 2e-5;
/* Of factors of order 1 that are off by up to 0.7 of 2^-10, or by 2^-8, and by nothing in the mean: what is left of such errors in sums
 * of hundreds. */
static const double TOLERANCE_TF32 = 1.5e-3, TOLERANCE_BF16 = 6e-3;

static void begin(op_case *c, esper_op_kind kind, int n_samples)
{
    memset(c, 0, sizeof(*c));
    c->kind = kind;
    c->pass = (esper_pass){
        .n_samples = n_samples, .training = true, .loss_scale = 1, .seed = 0x123456789abcu, .sample_id = c->sample_id};
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        c->in[k].same_as = -1;
    for (int n = 0; n < OP_CASE_MAX_SAMPLES; n++)
        c->sample_id[n] = (uint32_t)(100 + 7 * n);
    snprintf(c->text, sizeof(c->text), "%s", esper_op_info_of(kind)->name);
}

/* Numbers in -1 .. 1, exact in float. */
static void draw(double *values, size_t n, uint32_t tag)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST, .tag = tag});
    for (size_t i = 0; i < n; i++)
        values[i] = (double)(2 * esper_rng_uniform(&rng) - 1);
}

static void input(op_case *c, int k, op_role role, int rank, const int32_t *dim, bool add)
{
    op_tensor *t = &c->in[k];

    op_tensor_init(t, role, c->pass.n_samples, rank, dim, false);
    draw(t->value, t->total, (uint32_t)k);
    t->grad = calloc(t->total, sizeof(double));
    assert_non_null(t->grad);
    t->add = add;
    draw(t->grad, t->total, (uint32_t)(10 + k));
}

static void output(op_case *c, int k, op_role role, int rank, const int32_t *dim)
{
    op_tensor *t = &c->out[k];

    op_tensor_init(t, role, c->pass.n_samples, rank, dim, true);
    if (k > 0)
        return;
    t->grad = calloc(t->total, sizeof(double));
    assert_non_null(t->grad);
    draw(t->grad, t->total, 20);
}

static void check_within(const op_run *expected, const op_run *found, double tolerance, const char *how)
{
    for (int k = 0; k < expected->n_buffers; k++) {
        const op_buffer *e = &expected->buffers[k], *f = &found->buffers[k];
        double most = 1;

        for (size_t i = 0; i < e->count; i++)
            most = fmax(most, fabs(op_run_get(expected, e, i)));
        for (size_t i = 0; i < e->count; i++) {
            double a = op_run_get(expected, e, i), b = op_run_get(found, f, i);

            if (!(fabs(a - b) <= tolerance * most))
                fail_msg("%s, %s: %s element %zu: expected %.9g, found %.9g", expected->c->text, how, e->name, i, a, b);
        }
    }
    if (op_run_broken_guard(found) != NULL)
        fail_msg("%s, %s wrote outside of %s", expected->c->text, how, op_run_broken_guard(found)->name);
}

static void check_close(const op_run *expected, const op_run *found, const char *how)
{
    check_within(expected, found, TOLERANCE, how);
}

static void check_equal(const op_run *one, const op_run *other, const char *how)
{
    for (int k = 0; k < one->n_buffers; k++)
        if (memcmp(op_buffer_mem(&one->buffers[k]), op_buffer_mem(&other->buffers[k]), one->buffers[k].bytes) != 0)
            fail_msg("%s, %s: %s differs where blocks take another order", one->c->text, how, one->buffers[k].name);
}

/* ---- linear layers, tile by tile ---- */

static const struct tile {
    const char *name;
    int         rows, columns, threads;
    bool        any; /* size and address */
    const char *precision; /* on tensor cores; NULL: by multiply-adds */
} tiles[] = {
    {"128x128", 128, 128, 256, false, NULL},   {"64x96", 64, 96, 128, false, NULL},
    {"64x96_twice", 64, 96, 256, false, NULL}, {"64x64", 64, 64, 128, false, NULL},
    {"32x32", 32, 32, 128, false, NULL},       {"64x64_any", 64, 64, 128, true, NULL},
    {"32x32_any", 32, 32, 128, true, NULL},    {"64x96", 64, 96, 128, false, "fp32"},
    {"64x64", 64, 64, 128, false, "fp32"},     {"32x32", 32, 32, 128, false, "fp32"},
    {"64x64_any", 64, 64, 128, true, "fp32"},  {"128x128", 128, 128, 256, false, "tf32"},
    {"64x64", 64, 64, 128, false, "tf32"},     {"32x32", 32, 32, 128, false, "tf32"},
    {"64x64_any", 64, 64, 128, true, "tf32"},  {"128x128", 128, 128, 256, false, "bf16"},
    {"64x64", 64, 64, 128, false, "bf16"},     {"32x32", 32, 32, 128, false, "bf16"},
    {"64x64_any", 64, 64, 128, true, "bf16"},
};

static double tolerance_of(const struct tile *t)
{
    if (t->precision == NULL || strcmp(t->precision, "fp32") == 0)
        return TOLERANCE;
    return strcmp(t->precision, "tf32") == 0 ? TOLERANCE_TF32 : TOLERANCE_BF16;
}

static void launch(const struct tile *t, const char *what, int blocks, int threads, const esper_lane *lane)
{
    esper_cuda_lanes lanes = {.lane = {lane}};
    char name[64];
    bool rounds = t->precision != NULL && strcmp(what, "join") != 0;

    snprintf(name, sizeof(name), "esper_linear_%s_%s%s%s", what, t->name, rounds ? "_" : "",
             rounds ? t->precision : "");
    host_cuda_launch(name, blocks, 1, threads, 0, &lanes);
}

static int tiles_in(const struct tile *t, int m, int n)
{
    return esper_cuda_divide(m, t->rows) * esper_cuda_divide(n, t->columns);
}

/* The lane in such tiles, of a batch that might have `more` samples. */
static void run_tiles(op_run *run, const struct tile *t, int more)
{
    esper_lane *lane = &run->lane;
    int I = lane->in[1].dim[1], O = lane->in[1].dim[0], each = (int)lane->in[0].count / I, rows, pieces;
    size_t floats;

    lane->max_samples = lane->pass->n_samples + more;
    rows = lane->max_samples * each;
    pieces = esper_linear_pieces(tiles_in(t, O, I), rows);
    floats = (size_t)pieces * (size_t)(O * I + O);
    if (posix_memalign(&lane->scratch, 64, floats * sizeof(float)) != 0)
        abort();
    memset(lane->scratch, 0xff, floats * sizeof(float)); /* NaN */
    launch(t, "y", tiles_in(t, rows, O), t->threads, lane);
    launch(t, "dx", tiles_in(t, rows, I), t->threads, lane);
    launch(t, "dw", pieces * tiles_in(t, O, I) + 1, t->threads, lane); /* as among wider lanes */
    if (pieces > 1)
        launch(t, "join", esper_cuda_divide((int64_t)O * I + O, 256), 256, lane);
    free(lane->scratch);
    lane->scratch = NULL;
}

static void check_layer(const struct tile *t, int T, int I, int O, bool add, bool bias)
{
    op_case c;
    op_run exact, one, other;

    begin(&c, ESPER_OP_LINEAR, 3);
    input(&c, 0, OP_SAMPLE, DIMS(T, I), add);
    input(&c, 1, OP_WHOLE, DIMS(O, I), add);
    if (bias)
        input(&c, 2, OP_WHOLE, DIMS(O), add);
    output(&c, 0, OP_SAMPLE, DIMS(T, O));
    snprintf(c.text, sizeof(c.text), "linear %d -> %d, 3 x %d rows", I, O, T);
    op_run_init(&exact, &c, sizeof(double), 0x55);
    op_run_forward(&exact, &esper_kernels_ref64, NULL);
    op_run_backward(&exact, &esper_kernels_ref64, NULL);
    op_run_init(&one, &c, sizeof(float), 0x55);
    run_tiles(&one, t, 0);
    check_within(&exact, &one, tolerance_of(t), t->name);
    host_cuda_reverse(true);
    op_run_init(&other, &c, sizeof(float), 0xaa);
    run_tiles(&other, t, 0);
    host_cuda_reverse(false);
    check_equal(&one, &other, t->name);
    op_run_fini(&other);
    op_run_init(&other, &c, sizeof(float), 0xaa);
    run_tiles(&other, t, 2); /* a short batch */
    check_within(&exact, &other, tolerance_of(t), t->name);
    op_run_fini(&other);
    op_run_fini(&one);
    op_run_fini(&exact);
    op_case_fini(&c);
}

static void test_linear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); i++) {
        const struct tile *t = &tiles[i];

        check_layer(t, 60, 140, 204, false, true);
        check_layer(t, 3, 36, 4, true, true);
        check_layer(t, 150, 4, 100, true, false);
        check_layer(t, 1, 260, 132, false, true);
        if (t->any) {
            check_layer(t, 50, 131, 69, false, true);
            check_layer(t, 41, 33, 65, true, true);
            check_layer(t, 2, 1, 1, false, false);
        }
    }
}

/* ---- the others, as the table has them ---- */

static void check_case(op_case *c)
{
    op_run exact, one, other;

    op_run_init(&exact, c, sizeof(double), 0x55);
    op_run_forward(&exact, &esper_kernels_ref64, NULL);
    op_run_backward(&exact, &esper_kernels_ref64, NULL);
    op_run_init(&one, c, sizeof(float), 0x55);
    op_run_forward(&one, cuda_host_kernels(), NULL);
    op_run_backward(&one, cuda_host_kernels(), NULL);
    check_close(&exact, &one, "cuda");
    host_cuda_reverse(true);
    op_run_init(&other, c, sizeof(float), 0xaa);
    op_run_forward(&other, cuda_host_kernels(), NULL);
    op_run_backward(&other, cuda_host_kernels(), NULL);
    host_cuda_reverse(false);
    check_equal(&one, &other, "cuda");
    op_run_fini(&other);
    op_run_fini(&one);
    op_run_fini(&exact);
    op_case_fini(c);
}

static void check_attention(int T, int heads, int width, float drop, bool add)
{
    op_case c;

    begin(&c, ESPER_OP_ATTENTION, 2);
    c.attr.attention.heads = heads;
    c.attr.attention.drop = drop;
    c.attr.attention.tag = 9;
    input(&c, 0, OP_SAMPLE, DIMS(T, 3 * heads * width), add);
    output(&c, 0, OP_SAMPLE, DIMS(T, heads * width));
    output(&c, 1, OP_SAMPLE, DIMS(heads, T, T));
    snprintf(c.text, sizeof(c.text), "attention of %d tokens, %d heads of %d, drop %g", T, heads, width, (double)drop);
    check_case(&c);
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(128, 2, 64, 0, false);
    check_attention(128, 1, 32, 0.25f, true);
    check_attention(100, 2, 20, 0.5f, false);
    check_attention(67, 1, 71, 0, true);
    check_attention(65, 3, 7, 0.1f, false);
    check_attention(200, 1, 12, 0, false);
}

static void check_lstm(int T, int H, bool add)
{
    op_case c;

    begin(&c, ESPER_OP_LSTM, 6);
    input(&c, 0, OP_SAMPLE, DIMS(T, 4 * H), add);
    input(&c, 1, OP_WHOLE, DIMS(4 * H, H), add);
    input(&c, 2, OP_WHOLE, DIMS(4 * H), add);
    input(&c, 3, OP_SAMPLE, DIMS(H), add);
    input(&c, 4, OP_SAMPLE, DIMS(H), add);
    input(&c, 5, OP_SAMPLE, DIMS(T), add);
    for (size_t i = 0; i < c.in[1].total; i++)
        c.in[1].value[i] /= 8; /* gates are open half way, not all or nothing */
    for (size_t i = 0; i < c.in[5].total; i++)
        c.in[5].value[i] = i % 11 == 4;
    free(c.in[5].grad);
    c.in[5].grad = NULL;
    output(&c, 0, OP_SAMPLE, DIMS(T, H));
    output(&c, 1, OP_SAMPLE, DIMS(T, H));
    output(&c, 2, OP_SAMPLE, DIMS(T, 4 * H));
    snprintf(c.text, sizeof(c.text), "lstm of %d steps, %d units", T, H);
    check_case(&c);
}

static void test_lstm(void **state)
{
    (void)state;
    check_lstm(25, 128, false);
    check_lstm(20, 24, true);
    check_lstm(3, 67, false);
    check_lstm(1, 128, true);
    check_lstm(2, 530, false); /* more units than threads */
}

static void check_layer_norm(int T, int D, bool add)
{
    op_case c;

    begin(&c, ESPER_OP_LAYER_NORM, 4);
    c.attr.norm.eps = 1e-5f;
    input(&c, 0, OP_SAMPLE, DIMS(T, D), add);
    input(&c, 1, OP_WHOLE, DIMS(D), add);
    input(&c, 2, OP_WHOLE, DIMS(D), add);
    output(&c, 0, OP_SAMPLE, DIMS(T, D));
    output(&c, 1, OP_SAMPLE, DIMS(T, 2));
    snprintf(c.text, sizeof(c.text), "layer norm of %d elements, 4 x %d rows", D, T);
    check_case(&c);
}

static void test_layer_norm(void **state)
{
    (void)state;
    check_layer_norm(100, 384, false);
    check_layer_norm(33, 131, true);
    check_layer_norm(70, 1000, false);
    check_layer_norm(1, 12, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_lstm),
        cmocka_unit_test(test_layer_norm),
    };

    return cmocka_run_group_tests_name("cuda products", tests, NULL, NULL);
}
