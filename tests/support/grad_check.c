#include "support/grad_check.h"

#include <math.h>
#include <stdio.h>

static const double STEP = 2e-4, TOLERANCE = 1e-7;

/* A case that has gone forward and backward, and a second run for the forward passes beside it. */
typedef struct grad_check {
    const esper_kernel_set *set;
    op_run                  run, other;
    esper_rng              *rng;
    int                     n_bad;
    char                   *first;
    size_t                  chars;
} grad_check;

static double loss_of(grad_check *check)
{
    op_run *run = &check->other;
    const op_buffer *y = op_run_find(run, "out[0].data"), *g = op_run_find(run, "out[0].grad");
    bool is_loss = run->c->kind == ESPER_OP_SOFTMAX_XENT; /* its own gradient is taken as 1 */
    double sum = 0;

    op_run_forward(run, check->set, NULL);
    if (run->c->kind == ESPER_OP_STRAIGHT_THROUGH) /* by design its gradients are those of y = h + s */
        for (size_t i = 0; i < y->count; i++)
            sum += ((const double *)run->lane.in[1].data)[i] * op_run_get(run, g, i);
    for (size_t i = 0; i < y->count; i++)
        sum += op_run_get(run, y, i) * (is_loss ? (double)run->c->pass.loss_scale : op_run_get(run, g, i));
    return sum;
}

static double loss_with(grad_check *check, const op_buffer *x, size_t at, double off)
{
    double value = op_run_get(&check->other, x, at), loss;

    op_run_set(&check->other, x, at, value + off);
    loss = loss_of(check);
    op_run_set(&check->other, x, at, value);
    return loss;
}

static double slope(grad_check *check, const op_buffer *x, size_t at)
{
    double near = loss_with(check, x, at, STEP) - loss_with(check, x, at, -STEP);
    double far = loss_with(check, x, at, 2 * STEP) - loss_with(check, x, at, -2 * STEP);

    return (8 * near - far) / (12 * STEP);
}

static bool is_first(grad_check *check)
{
    check->n_bad++;
    return check->first[0] == '\0';
}

static void check_input(grad_check *check, int k)
{
    const op_tensor *t = &check->run.c->in[k];
    char data[24], grad[24];
    const op_buffer *x, *dx;

    snprintf(data, sizeof(data), "in[%d].data", k);
    snprintf(grad, sizeof(grad), "in[%d].grad", k);
    x = op_run_find(&check->other, data);
    dx = op_run_find(&check->run, grad);
    for (int pick = 0; pick < GRAD_CHECK_PICKS; pick++) {
        size_t at = t->total <= GRAD_CHECK_PICKS ? (size_t)pick : esper_rng_below(check->rng, (uint32_t)t->total);
        double expected, found;

        if (at >= t->total)
            return;
        expected = slope(check, x, at);
        found = op_run_get(&check->run, dx, at) - (t->add ? t->grad[at] : 0);
        if (!(fabs(expected - found) <= TOLERANCE * (1 + fabs(expected))) && is_first(check))
            snprintf(check->first, check->chars,
                     "%s: gradient of in[%d] element %zu: finite differences %.12g, backward %.12g", check->run.c->text,
                     k, at, expected, found);
    }
}

int grad_check_case(const op_case *c, const esper_kernel_set *set, esper_rng *rng, char *first, size_t chars)
{
    grad_check check = {.set = set, .rng = rng, .first = first, .chars = chars};
    const op_buffer *broken;

    op_run_init(&check.run, c, sizeof(double), 0x55);
    op_run_init(&check.other, c, sizeof(double), 0x55);
    op_run_forward(&check.run, set, NULL);
    op_run_backward(&check.run, set, NULL);
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        if (c->in[k].grad != NULL && c->in[k].same_as < 0)
            check_input(&check, k);
    broken = op_run_broken_guard(&check.run);
    if (broken != NULL && is_first(&check))
        snprintf(first, chars, "%s: written beyond the end of %s", c->text, broken->name);
    op_run_fini(&check.other);
    op_run_fini(&check.run);
    return check.n_bad;
}

esper_rng grad_check_rng(esper_op_kind kind)
{
    esper_rng_key key = {.seed = 1, .purpose = ESPER_RNG_TEST, .network = (uint32_t)kind};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}
