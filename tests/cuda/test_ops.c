/* ctest: cost=10 kernels=ref64 cuda=only */
/* The kernels of tensor/cuda/, run on the host, on random cases of every operation that has one:
 *   - canonical and, with samples side by side, blocked: they agree with the reference in double up to rounding;
 *   - whichever order blocks and threads take, alone or as one lane of several: the same bits;
 *   - nothing is written outside of a buffer, and nothing that must be written is left out.
 *
 * Tolerance: 2e-5 of the largest entry of a tensor, with a floor of 2e-5 for tensors whose terms, of order 1, cancel. */
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
#include "support/effort.h"
#include "support/op_cases.h"
#include "tensor/cuda/kernels.h"

static const double TOLERANCE = 2e-5;

static void run_case(op_run *run, const op_case *c, const esper_kernel_set *set, unsigned char fill)
{
    op_run_init(run, c, set == &esper_kernels_ref64 ? sizeof(double) : sizeof(float), fill);
    op_run_forward(run, set, NULL);
    if (!c->flat)
        op_run_backward(run, set, NULL);
    if (op_run_broken_guard(run) != NULL)
        fail_msg("%s: %s wrote outside of %s", c->text, set->name, op_run_broken_guard(run)->name);
}

static double largest(const op_run *run, const op_buffer *b)
{
    double most = 1;

    for (size_t i = 0; i < b->count; i++)
        most = fmax(most, fabs(op_run_get(run, b, i)));
    return most;
}

static void check_close(const op_run *expected, const op_run *found)
{
    for (int k = 0; k < expected->n_buffers; k++) {
        const op_buffer *e = &expected->buffers[k], *f = &found->buffers[k];
        double room = TOLERANCE * largest(expected, e);

        for (size_t i = 0; i < e->count; i++) {
            double a = op_run_get(expected, e, i), b = op_run_get(found, f, i);

            if (!(fabs(a - b) <= room))
                fail_msg("%s: %s element %zu: expected %.9g, found %.9g", expected->c->text, e->name, i, a, b);
        }
    }
}

static void check_equal(const op_run *one, const op_run *other)
{
    for (int k = 0; k < one->n_buffers; k++) {
        const op_buffer *a = &one->buffers[k], *b = &other->buffers[k];
        size_t each = a->bytes / (a->count > 0 ? a->count : 1);

        for (size_t i = 0; i < a->count; i++)
            if (memcmp((char *)op_buffer_mem(a) + i * each, (char *)op_buffer_mem(b) + i * each, each) != 0)
                fail_msg("%s: %s element %zu: %.9g, and %.9g in another order", one->c->text, a->name, i,
                         op_run_get(one, a, i), op_run_get(other, b, i));
    }
}

static void check_canonical(const op_case *c)
{
    op_run exact, one, other;

    run_case(&exact, c, &esper_kernels_ref64, 0x55);
    run_case(&one, c, cuda_host_kernels(), 0x55);
    check_close(&exact, &one);
    host_cuda_reverse(true);
    run_case(&other, c, cuda_host_kernels(), 0xaa); /* another fill: an element that is not written differs */
    host_cuda_reverse(false);
    check_equal(&one, &other);
    op_run_fini(&other);
    op_run_fini(&one);
    op_run_fini(&exact);
}

/* ------------------------------------------------------------------------------------------------ more samples */

enum { MANY = 70 }; /* two blocks, and a third in part */

static bool is_of_samples(const op_tensor *t)
{
    return t->role == OP_SAMPLE || t->role == OP_IDS;
}

/* The samples again and again, a little less each time. */
static double *repeat(const op_tensor *t, const double *values, size_t total)
{
    double *more = values == NULL ? NULL : malloc(total * sizeof(double));

    for (size_t i = 0; values != NULL && i < total; i++) {
        double less = 1 - (double)(i / t->total) / 128;

        more[i] = values[i % t->total];
        if (t->role == OP_SAMPLE)
            more[i] = (double)(float)(more[i] * less);
    }
    return more;
}

static void enlarge(op_tensor *t)
{
    size_t total = t->count * MANY;
    double *value, *grad;

    if (!is_of_samples(t))
        return;
    value = repeat(t, t->value, total);
    grad = repeat(t, t->grad, total);
    free(t->value);
    free(t->grad);
    t->value = value;
    t->grad = grad;
    t->total = total;
}

static void make_many(op_case *c)
{
    static uint32_t sample_id[MANY];

    for (int n = 0; n < MANY; n++)
        sample_id[n] = (uint32_t)(7 * n + 3);
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        enlarge(&c->in[k]);
    for (int k = 0; k < ESPER_OP_MAX_OUT; k++)
        enlarge(&c->out[k]);
    c->pass.n_samples = MANY;
    c->pass.sample_id = sample_id;
}

/* ------------------------------------------------------------------------------------------------ blocked */

/* A buffer of samples in the blocked layout beside the canonical one. */
typedef struct twin {
    float *canonical, *blocked;
    size_t count;
    bool   is_grad;
} twin;

static size_t blocked_samples(int n)
{
    return (size_t)esper_cuda_blocks_of(n) * ESPER_CUDA_BLOCK;
}

static size_t place(size_t sample, size_t element, size_t count)
{
    return (sample / ESPER_CUDA_BLOCK * count + element) * ESPER_CUDA_BLOCK + sample % ESPER_CUDA_BLOCK;
}

/* The address that stands for a canonical one; inputs that are the same tensor stay it. */
static void *blocked_of(twin *twins, int *n_twins, void *canonical, size_t count, int n, bool is_grad)
{
    twin *t = &twins[*n_twins];
    size_t total = count * blocked_samples(n);

    for (int i = 0; i < *n_twins; i++)
        if (twins[i].canonical == canonical)
            return twins[i].blocked;
    if (canonical == NULL)
        return NULL;
    *t = (twin){canonical, aligned_alloc(64, (total * sizeof(float) + 63) / 64 * 64), count, is_grad};
    for (size_t i = 0; i < total; i++)
        t->blocked[i] = is_grad ? 0 : 0.25f; /* beyond the batch */
    for (size_t s = 0; s < (size_t)n; s++)
        for (size_t e = 0; e < count; e++)
            t->blocked[place(s, e, count)] = t->canonical[s * count + e];
    (*n_twins)++;
    return t->blocked;
}

static void bring_back(twin *t, int n, const char *text)
{
    for (size_t s = 0; s < blocked_samples(n); s++)
        for (size_t e = 0; e < t->count; e++) {
            float value = t->blocked[place(s, e, t->count)];

            if (s < (size_t)n)
                t->canonical[s * t->count + e] = value;
            else if (t->is_grad ? value != 0 : !isfinite(value))
                fail_msg("%s: %g stands in the %s of sample %zu, which is beyond the batch", text, (double)value,
                         t->is_grad ? "gradient" : "data", s);
        }
    free(t->blocked);
}

static void block_view(esper_view *v, const op_tensor *t, twin *twins, int *n_twins, int n)
{
    if (!is_of_samples(t))
        return;
    v->data = blocked_of(twins, n_twins, v->data, t->count, n, false);
    v->grad = blocked_of(twins, n_twins, v->grad, t->count, n, true);
}

static void run_direction(esper_lane *lane, esper_op_kind kind, esper_direction direction)
{
    esper_launch launch = {
        .kind = kind, .direction = direction, .variant = ESPER_CUDA_BLOCKED, .n_lanes = 1, .lanes = lane};
    const esper_cuda_op *op = esper_cuda_op_of(kind, ESPER_CUDA_BLOCKED);
    size_t bytes = op->scratch == NULL ? 0 : op->scratch(lane, direction == ESPER_BACKWARD, lane->max_samples);
    char *scratch = bytes == 0 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (scratch != NULL)
        memset(scratch, 0xff, bytes);
    lane->scratch = scratch;
    cuda_host_run(&launch);
    free(scratch);
}

static void run_blocked(op_run *run, const op_case *c, unsigned char fill)
{
    int n = c->pass.n_samples, n_twins = 0;
    twin twins[OP_RUN_MAX_BUFFERS];
    esper_lane lane;

    op_run_init(run, c, sizeof(float), fill);
    lane = run->lane;
    lane.max_samples = n + 40; /* kernels are launched for more than there is */
    for (int k = 0; k < ESPER_OP_MAX_IN; k++)
        block_view(&lane.in[k], &c->in[k], twins, &n_twins, n);
    for (int k = 0; k < ESPER_OP_MAX_OUT; k++)
        block_view(&lane.out[k], &c->out[k], twins, &n_twins, n);
    run_direction(&lane, c->kind, ESPER_FORWARD);
    run_direction(&lane, c->kind, ESPER_BACKWARD);
    for (int i = 0; i < n_twins; i++)
        bring_back(&twins[i], n, c->text);
}

static void check_blocked(const op_case *c)
{
    op_run exact, one, other;

    run_case(&exact, c, &esper_kernels_ref64, 0x55);
    run_blocked(&one, c, 0x55);
    check_close(&exact, &one);
    host_cuda_reverse(true);
    run_blocked(&other, c, 0x2a);
    host_cuda_reverse(false);
    check_equal(&one, &other);
    op_run_fini(&other);
    op_run_fini(&one);
    op_run_fini(&exact);
}

/* ------------------------------------------------------------------------------------------------ several lanes */

enum { LANES = 3 };

static void *take_scratch(esper_lane *lane, esper_op_kind kind, esper_direction direction)
{
    const esper_cuda_op *op = esper_cuda_op_of(kind, ESPER_CUDA_CANONICAL);
    size_t bytes = op->scratch == NULL ? 0 : op->scratch(lane, direction == ESPER_BACKWARD, lane->max_samples);

    lane->scratch = bytes == 0 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (lane->scratch != NULL)
        memset(lane->scratch, 0xff, bytes);
    return lane->scratch;
}

static void run_together(op_run *runs, esper_op_kind kind, esper_direction direction)
{
    esper_launch launch = {.kind = kind, .direction = direction, .n_lanes = LANES};
    esper_lane lanes[LANES];

    for (int l = 0; l < LANES; l++) {
        lanes[l] = runs[l].lane;
        lanes[l].max_samples = runs[l].c->flat ? 0 : runs[l].c->pass.n_samples;
        take_scratch(&lanes[l], kind, direction);
    }
    launch.lanes = lanes;
    cuda_host_run(&launch);
    for (int l = 0; l < LANES; l++)
        free(lanes[l].scratch);
}

/* A lane gives the same bits beside others, larger and smaller ones, as alone. */
static void test_together(void **state)
{
    esper_op_kind kind = *(const esper_op_kind *)*state;

    for (uint32_t number = 0; number < (uint32_t)effort(8, 3); number++) {
        op_case c[LANES];
        op_run alone, runs[LANES];

        for (int l = 0; l < LANES; l++) {
            op_case_init(&c[l], kind, 5000 + LANES * number + (uint32_t)l);
            op_run_init(&runs[l], &c[l], sizeof(float), 0x55);
        }
        run_together(runs, kind, ESPER_FORWARD);
        if (!c[0].flat)
            run_together(runs, kind, ESPER_BACKWARD);
        for (int l = 0; l < LANES; l++) {
            run_case(&alone, &c[l], cuda_host_kernels(), 0x55);
            check_equal(&alone, &runs[l]);
            op_run_fini(&alone);
            op_run_fini(&runs[l]);
            op_case_fini(&c[l]);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ all of them */

static void test_op(esper_op_kind kind, int full, int brief, void (*check)(const op_case *c))
{
    for (uint32_t number = 0; number < (uint32_t)effort(full, brief); number++) {
        op_case c;

        op_case_init(&c, kind, 3000 + number);
        if (number % 3 == 2 && !c.flat)
            make_many(&c);
        check(&c);
        op_case_fini(&c);
    }
}

static void test_canonical(void **state)
{
    test_op(*(const esper_op_kind *)*state, 30, 9, check_canonical);
}

static void test_blocked(void **state)
{
    test_op(*(const esper_op_kind *)*state, 18, 6, check_blocked);
}

/* Those that make each element of elements at the same place; images on blocks have a test of their own. */
static bool is_elementwise(esper_op_kind kind)
{
    switch (kind) {
    case ESPER_OP_RELU:
    case ESPER_OP_GELU:
    case ESPER_OP_SIGMOID:
    case ESPER_OP_TANH:
    case ESPER_OP_ADD:
    case ESPER_OP_MUL:
    case ESPER_OP_CHANNEL_SCALE:
    case ESPER_OP_MIX_TANH:
    case ESPER_OP_STRAIGHT_THROUGH:
    case ESPER_OP_BLEND_ADD:
    case ESPER_OP_BLEND_MUL:
    case ESPER_OP_BLEND_GATE:
        return true;
    default:
        return false;
    }
}

static const char *name_of(esper_op_kind kind, const char *how)
{
    static char names[3 * ESPER_N_OPS][40];
    static int n;

    snprintf(names[n], sizeof(names[n]), "%s%s", esper_op_info_of(kind)->name, how);
    return names[n++];
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    static struct CMUnitTest tests[3 * ESPER_N_OPS];
    size_t n = 0;

    for (int k = 0; k < ESPER_N_OPS; k++) {
        esper_op_kind kind = kinds[k] = (esper_op_kind)k;

        if (esper_cuda_op_of(kind, ESPER_CUDA_CANONICAL) != NULL) {
            tests[n++] = (struct CMUnitTest){name_of(kind, ""), test_canonical, NULL, NULL, &kinds[k]};
            tests[n++] = (struct CMUnitTest){name_of(kind, ", together"), test_together, NULL, NULL, &kinds[k]};
        }
        if (is_elementwise(kind))
            tests[n++] = (struct CMUnitTest){name_of(kind, ", blocked"), test_blocked, NULL, NULL, &kinds[k]};
    }
    return _cmocka_run_group_tests("cuda ops", tests, n, NULL, NULL);
}
