/* ctest: sets=each */
/* simd_pool.h against the reference: ReLU, max pool, global mean, mul and channel_scale, there and back, with ties,
 * zeros and NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_pool.h"

/* One input of (C, H, W), a result of (C, ...), and their gradients; canonical and in one block. */
typedef struct pool_case {
    char       text[100];
    int        N, C, H, W;
    bool       add;
    size_t     count, out_count, pixels;
    esper_pass pass;
    esper_lane lane;
    float     *x, *dx, *y, *g;             /* canonical */
    float     *x_in, *g_in, *dx_in, *y_in; /* blocks; dx_in: what stands there before */
} pool_case;

/* Ties and zeros come of rounding. */
static void break_values(float *x, size_t n, esper_rng *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rintf(x[i]);
    for (int i = 0; i < 4; i++)
        x[esper_rng_below(rng, (uint32_t)n)] = i < 2 ? NAN : i == 2 ? INFINITY : -INFINITY;
}

static void open_case(pool_case *c, uint32_t number, const char *what, int least_side)
{
    esper_rng rng = simd_case_rng(number);
    size_t n;

    *c = (pool_case){.N = simd_case_int(&rng, 1, 16), .C = simd_case_int(&rng, 1, 5)};
    c->H = simd_case_int(&rng, least_side, 13);
    c->W = simd_case_int(&rng, least_side, 13);
    c->add = number % 2 != 0;
    c->pixels = (size_t)c->H * (size_t)c->W;
    c->count = (size_t)c->C * c->pixels;
    n = (size_t)c->N * c->count;
    snprintf(c->text, sizeof(c->text), "%s: %d x (%d,%d,%d)%s", what, c->N, c->C, c->H, c->W, c->add ? ", added" : "");
    c->pass = (esper_pass){.n_samples = c->N};
    c->lane.pass = &c->pass;
    c->x = simd_case_random(&rng, n, 0, 1);
    c->dx = simd_case_random(&rng, n, 0, 1);
    c->y = simd_case_floats(n);
    c->y_in = simd_case_floats(c->count * SIMD_WIDTH);
    c->g = simd_case_random(&rng, n, 0.1f, 1);
    if (number % 3 == 0)
        break_values(c->x, n, &rng);
    c->x_in = simd_case_pack(c->x, c->N, c->count, 3);
    c->dx_in = simd_case_pack(c->dx, c->N, c->count, 0);
    c->lane.in[0] = simd_case_view(c->x, c->dx, c->C, c->H, c->W);
    c->lane.in[0].add = c->add;
}

static void run_reference(pool_case *c, esper_op_kind kind, int d0, int d1, int d2)
{
    c->lane.out[0] = simd_case_view(c->y, c->g, d0, d1, d2);
    c->out_count = (size_t)c->lane.out[0].count;
    c->g_in = simd_case_pack(c->g, c->N, c->out_count, 0);
    simd_case_forward(kind, &c->lane);
    simd_case_backward(kind, &c->lane);
}

static void close_case(pool_case *c)
{
    simd_case_compare_blocks(c->text, c->y, c->y_in, c->N, c->out_count, false);
    simd_case_compare_blocks(c->text, c->dx, c->dx_in, c->N, c->count, true);
    simd_case_end();
}

static void test_max_pool(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 100; k++) {
        pool_case c;

        open_case(&c, k, "max pool", 2);
        run_reference(&c, ESPER_OP_MAX_POOL, c.C, c.H / 2, c.W / 2);
        simd_max_pool_forward(c.x_in, c.C, c.H, c.W, c.y_in);
        simd_max_pool_back(c.x_in, c.g_in, c.C, c.H, c.W, c.add, c.dx_in);
        close_case(&c);
    }
}

static void test_global_mean(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 60; k++) {
        pool_case c;

        open_case(&c, k, "global mean", 1);
        run_reference(&c, ESPER_OP_GLOBAL_MEAN, c.C, 0, 0);
        simd_global_mean_forward(c.x_in, c.C, c.pixels, c.y_in);
        simd_global_mean_back(c.g_in, c.C, c.pixels, c.add, c.dx_in);
        close_case(&c);
    }
}

/* b: one factor for each channel, or one for each element. */
static void check_mul(uint32_t number, bool like)
{
    esper_rng rng = simd_case_rng(5000 + number);
    pool_case c;
    int factors;
    size_t pixels;
    float *b, *db, *b_in, *db_in;

    open_case(&c, number, like ? "mul of two alike" : "mul", 1);
    factors = like ? (int)c.count : c.C;
    pixels = like ? 1 : c.pixels;
    b = simd_case_random(&rng, (size_t)(c.N * factors), 0, 1);
    db = simd_case_random(&rng, (size_t)(c.N * factors), 0, 1);
    b_in = simd_case_pack(b, c.N, (size_t)factors, 1);
    db_in = simd_case_pack(db, c.N, (size_t)factors, 0);
    c.lane.in[1] = like ? simd_case_view(b, db, c.C, c.H, c.W) : simd_case_view(b, db, c.C, 0, 0);
    c.lane.in[1].add = c.add;
    run_reference(&c, ESPER_OP_MUL, c.C, c.H, c.W);
    simd_mul(c.x_in, b_in, factors, pixels, false, c.y_in);
    simd_mul(c.g_in, b_in, factors, pixels, c.add, c.dx_in);
    simd_mul_back_b(c.g_in, c.x_in, factors, pixels, c.add, db_in);
    simd_case_compare_blocks(c.text, db, db_in, c.N, (size_t)factors, true);
    close_case(&c);
}

static void test_mul(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 60; k++) {
        check_mul(k, false);
        check_mul(k, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_pool),
        cmocka_unit_test(test_global_mean),
        cmocka_unit_test(test_mul),
    };

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
