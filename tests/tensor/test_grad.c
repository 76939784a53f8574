/* ctest: kernels=ref64 */
/* Every gradient of every operation against finite differences of its forward pass, in double.
 *
 * The loss is the sum of the outputs, weighted by the incoming gradient. Its derivative is taken from four points, exact
 * up to the fifth derivative: what a step of 2e-4 leaves is below rounding, about 1e-11, unless a norm meets nearly equal
 * values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "support/op_cases.h"

enum { N_CASES = 120, N_PICKS = 10 };

static const double STEP = 2e-4, TOLERANCE = 1e-7;

static double loss_of(op_run *run)
{
    const op_buffer *y = op_run_find(run, "out[0].data"), *g = op_run_find(run, "out[0].grad");
    bool is_loss = run->c->kind == ESPER_OP_SOFTMAX_XENT; /* its own gradient is taken as 1 */
    double sum = 0;

    op_run_forward(run, &esper_kernels_ref64, NULL);
    if (run->c->kind == ESPER_OP_STRAIGHT_THROUGH) /* by design its gradients are those of y = h + s */
        for (size_t i = 0; i < y->count; i++)
            sum += ((const double *)run->lane.in[1].data)[i] * op_run_get(run, g, i);
    for (size_t i = 0; i < y->count; i++)
        sum += op_run_get(run, y, i) * (is_loss ? (double)run->c->pass.loss_scale : op_run_get(run, g, i));
    return sum;
}

static double loss_with(op_run *run, const op_buffer *x, size_t at, double off)
{
    double value = op_run_get(run, x, at), loss;

    op_run_set(run, x, at, value + off);
    loss = loss_of(run);
    op_run_set(run, x, at, value);
    return loss;
}

static double slope(op_run *run, const op_buffer *x, size_t at)
{
    double near = loss_with(run, x, at, STEP) - loss_with(run, x, at, -STEP);
    double far = loss_with(run, x, at, 2 * STEP) - loss_with(run, x, at, -2 * STEP);

    return (8 * near - far) / (12 * STEP);
}

/* `run` has gone forward and backward; `other` is used for the forward passes beside it. */
static void check_input(const op_run *run, op_run *other, int k, esper_rng *rng)
{
    const op_tensor *t = &run->c->in[k];
    char data[24], grad[24];
    const op_buffer *x, *dx;

    snprintf(data, sizeof(data), "in[%d].data", k);
    snprintf(grad, sizeof(grad), "in[%d].grad", k);
    x = op_run_find(other, data);
    dx = op_run_find(run, grad);
    for (int pick = 0; pick < N_PICKS; pick++) {
        size_t at = t->total <= N_PICKS ? (size_t)pick : esper_rng_below(rng, (uint32_t)t->total);
        double expected, found;

        if (at >= t->total)
            return;
        expected = slope(other, x, at);
        found = op_run_get(run, dx, at) - (t->add ? t->grad[at] : 0);
        if (!(fabs(expected - found) <= TOLERANCE * (1 + fabs(expected))))
            fail_msg("%s: gradient of in[%d] element %zu: finite differences %.12g, backward %.12g", run->c->text, k,
                     at, expected, found);
    }
}

static void check_case(const op_case *c, esper_rng *rng)
{
    op_run run, other;

    op_run_init(&run, c, sizeof(double), 0x55);
    op_run_init(&other, c, sizeof(double), 0x55);
    op_run_forward(&run, &esper_kernels_ref64, NULL);
    op_run_backward(&run, &esper_kernels_ref64, NULL);
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        if (c->in[k].grad != NULL && c->in[k].same_as < 0)
            check_input(&run, &other, k, rng);
    if (op_run_broken_guard(&run) != NULL)
        fail_msg("%s: written beyond the end of %s", c->text, op_run_broken_guard(&run)->name);
    op_run_fini(&other);
    op_run_fini(&run);
}

static void test_kind(void **state)
{
    const esper_op_kind *kind = *state;
    esper_rng_key key = {.seed = 1, .purpose = ESPER_RNG_TEST, .network = (uint32_t)*kind};
    esper_rng rng;
    int n_gradients[ESPER_OP_MAX_IN] = {0};

    esper_rng_init(&rng, &key);
    for (uint32_t number = 0; number < N_CASES; number++) {
        op_case c;

        op_case_init(&c, *kind, number);
        check_case(&c, &rng);
        for (int k = 0; k < ESPER_OP_MAX_IN; k++)
            n_gradients[k] += c.in[k].grad != NULL;
        op_case_fini(&c);
    }
    for (int k = 0; k < ESPER_OP_MAX_IN; k++) /* the cases have left no gradient out */
        if ((esper_op_info_of(*kind)->grad_in & ESPER_BIT(k)) != 0)
            assert_true(n_gradients[k] > N_CASES / 4);
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    struct CMUnitTest tests[ESPER_N_OPS];
    size_t n = 0;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)kind);

        if (info->grad_in == 0)
            continue;
        kinds[n] = (esper_op_kind)kind;
        tests[n] = (struct CMUnitTest){info->name, test_kind, NULL, NULL, &kinds[n]};
        n++;
    }
    return _cmocka_run_group_tests("gradients", tests, n, NULL, NULL);
}
