/* ctest: sets=each */
/* simd_head.h against the reference: linear layer and softmax with cross-entropy, there and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_head.h"

static void check_linear(uint32_t number)
{
    esper_rng rng = simd_case_rng(number);
    int N = simd_case_int(&rng, 1, 16), I = simd_case_int(&rng, 1, 70), O = simd_case_int(&rng, 1, 23);
    bool add = number % 2 != 0, biased = number % 3 != 0;
    float *x = simd_case_random(&rng, (size_t)(N * I), 0, 1), *dx = simd_case_random(&rng, (size_t)(N * I), 0, 1);
    float *w = simd_case_random(&rng, (size_t)(O * I), 0, 1), *dw = simd_case_random(&rng, (size_t)(O * I), 0, 1);
    float *b = simd_case_random(&rng, (size_t)O, 0, 1), *db = simd_case_random(&rng, (size_t)O, 0, 1);
    float *y = simd_case_floats((size_t)(N * O)), *g = simd_case_random(&rng, (size_t)(N * O), 0, 1);
    float *x_in = simd_case_pack(x, N, (size_t)I, 2), *dx_in = simd_case_pack(dx, N, (size_t)I, 0);
    float *g_in = simd_case_pack(g, N, (size_t)O, 0), *y_in = simd_case_floats((size_t)O * SIMD_WIDTH);
    float *dw_found = simd_case_floats((size_t)(O * I)), *db_found = simd_case_floats((size_t)O);
    esper_pass pass = {.n_samples = N};
    esper_lane lane = {.pass = &pass};
    char text[100];

    snprintf(text, sizeof(text), "linear: %d x %d to %d%s%s", N, I, O, biased ? ", bias" : "", add ? ", added" : "");
    memcpy(dw_found, dw, (size_t)(O * I) * sizeof(float));
    memcpy(db_found, db, (size_t)O * sizeof(float));
    lane.in[0] = simd_case_view(x, dx, I, 0, 0);
    lane.in[1] = simd_case_view(w, dw, O, I, 0);
    lane.in[2] = simd_case_view(biased ? b : NULL, biased ? db : NULL, O, 0, 0);
    lane.in[0].add = lane.in[1].add = lane.in[2].add = add;
    lane.out[0] = simd_case_view(y, g, O, 0, 0);
    simd_case_forward(ESPER_OP_LINEAR, &lane);
    simd_case_backward(ESPER_OP_LINEAR, &lane);

    simd_linear_forward(x_in, I, w, biased ? b : NULL, O, y_in);
    simd_linear_back_x(g_in, O, w, I, add, dx_in);
    simd_linear_back_w(x_in, I, g_in, O, add, dw_found);
    if (biased)
        simd_linear_back_bias(g_in, O, add, db_found);
    simd_case_compare_blocks(text, y, y_in, N, (size_t)O, false);
    simd_case_compare_blocks(text, dx, dx_in, N, (size_t)I, true);
    simd_case_compare(text, dw, dw_found, (size_t)(O * I));
    simd_case_compare(text, db, db_found, (size_t)O);
    simd_case_end();
}

static void test_linear(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 120; k++)
        check_linear(k);
}

typedef struct xent_case {
    char     text[100];
    int      N, V;
    bool     add;
    float   *logits, *dlogits, *loss, *correct, *lse;
    int32_t *targets;
    float   *dlogits_in; /* a block: what stands in the gradient before */
} xent_case;

static void open_xent(xent_case *c, uint32_t number)
{
    esper_rng rng = simd_case_rng(900 + number);

    *c = (xent_case){.N = simd_case_int(&rng, 1, 16), .V = simd_case_int(&rng, 1, 60), .add = number % 2 != 0};
    snprintf(c->text, sizeof(c->text), "softmax: %d x %d%s, case %u", c->N, c->V, c->add ? ", added" : "", number);
    c->logits = simd_case_random(&rng, (size_t)(c->N * c->V), number % 5 == 0 ? 1000 : 0, number % 3 == 0 ? 30 : 2);
    c->dlogits = simd_case_random(&rng, (size_t)(c->N * c->V), 0, 1);
    c->dlogits_in = simd_case_pack(c->dlogits, c->N, (size_t)c->V, 0);
    c->loss = simd_case_floats((size_t)c->N);
    c->correct = simd_case_floats((size_t)c->N);
    c->lse = simd_case_floats((size_t)c->N);
    c->targets = (int32_t *)simd_case_floats((size_t)c->N);
    for (int n = 0; n < c->N; n++)
        c->targets[n] = simd_case_int(&rng, n % 4 == 3 ? -1 : 0, c->V - 1);
    if (number % 4 == 1) /* ties: the first is the answer */
        for (int i = 0; i < c->N * c->V; i++)
            c->logits[i] = rintf(c->logits[i]);
    if (number % 7 == 2) { /* broken: in the first place, anywhere, and what exp cannot bear */
        c->logits[0] = NAN;
        c->logits[esper_rng_below(&rng, (uint32_t)(c->N * c->V))] = NAN;
        c->logits[esper_rng_below(&rng, (uint32_t)(c->N * c->V))] = INFINITY;
        c->logits[esper_rng_below(&rng, (uint32_t)(c->N * c->V))] = -INFINITY;
    }
}

static void run_reference(xent_case *c)
{
    esper_pass pass = {.n_samples = c->N, .loss_scale = 0.125f};
    esper_lane lane = {.pass = &pass};

    lane.in[0] = simd_case_view(c->logits, c->dlogits, c->V, 0, 0);
    lane.in[0].add = c->add;
    lane.in[1] = simd_case_view(c->targets, NULL, 1, 0, 0);
    lane.out[0] = simd_case_view(c->loss, NULL, 1, 0, 0);
    lane.out[1] = simd_case_view(c->correct, NULL, 1, 0, 0);
    lane.out[2] = simd_case_view(c->lse, NULL, 1, 0, 0);
    simd_case_forward(ESPER_OP_SOFTMAX_XENT, &lane);
    simd_case_backward(ESPER_OP_SOFTMAX_XENT, &lane);
}

static void check_xent(const xent_case *c)
{
    float *logits = simd_case_pack(c->logits, c->N, (size_t)c->V, 1);
    float *loss = simd_case_floats(SIMD_WIDTH), *correct = simd_case_floats(SIMD_WIDTH);
    float *lse = simd_case_floats(SIMD_WIDTH), *same_lse = simd_case_pack(c->lse, c->N, 1, 0);

    simd_xent_forward(logits, c->V, c->targets, c->N, loss, correct, lse);
    simd_case_compare_blocks(c->text, c->loss, loss, c->N, 1, true);
    simd_case_compare_blocks(c->text, c->correct, correct, c->N, 1, true);
    simd_case_compare_blocks(c->text, c->lse, lse, c->N, 1, false);
    /* From the reference's log-sum-exp: of logits about 1000 it is rounded to 6e-5, one way or the other. */
    simd_xent_back(logits, c->V, c->targets, c->N, same_lse, 0.125f, c->add, c->dlogits_in);
    simd_case_compare_blocks(c->text, c->dlogits, c->dlogits_in, c->N, (size_t)c->V, true);
}

static void test_softmax_xent(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 150; k++) {
        xent_case c;

        open_xent(&c, k);
        run_reference(&c);
        check_xent(&c);
        simd_case_end();
    }
}

/* A small loss beside large logits keeps its digits. */
static void test_small_losses(void **state)
{
    float logits[2 * SIMD_WIDTH] __attribute__((aligned(64))), loss[SIMD_WIDTH] __attribute__((aligned(64)));
    float correct[SIMD_WIDTH] __attribute__((aligned(64))), lse[SIMD_WIDTH] __attribute__((aligned(64)));
    int32_t targets[SIMD_WIDTH] = {0};
    double expected = log1p(exp(-8.0));

    (void)state;
    for (int l = 0; l < SIMD_WIDTH; l++) {
        logits[l] = 100;
        logits[SIMD_WIDTH + l] = 92;
    }
    simd_xent_forward(logits, 2, targets, SIMD_WIDTH, loss, correct, lse);
    if (!(fabs((double)loss[3] / expected - 1) <= 2e-4)) /* 1 + exp(-8) in float */
        fail_msg("expected %.9g, found %.9g", expected, (double)loss[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_softmax_xent),
        cmocka_unit_test(test_small_losses),
    };

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
