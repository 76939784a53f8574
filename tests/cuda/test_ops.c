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

static void test_canonical(void **state)
{
    esper_op_kind kind = *(const esper_op_kind *)*state;

    for (uint32_t number = 0; number < (uint32_t)effort(60, 12); number++) {
        op_case c;
        op_run exact, one, other;

        op_case_init(&c, kind, 3000 + number);
        run_case(&exact, &c, &esper_kernels_ref64, 0x55);
        run_case(&one, &c, cuda_host_kernels(), 0x55);
        check_close(&exact, &one);
        host_cuda_reverse(true);
        run_case(&other, &c, cuda_host_kernels(), 0xaa); /* another fill: an element that is not written differs */
        host_cuda_reverse(false);
        check_equal(&one, &other);
        op_run_fini(&other);
        op_run_fini(&one);
        op_run_fini(&exact);
        op_case_fini(&c);
    }
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    static struct CMUnitTest tests[2 * ESPER_N_OPS];
    size_t n = 0;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        kinds[kind] = (esper_op_kind)kind;
        if (esper_cuda_op_of(kinds[kind], ESPER_CUDA_CANONICAL) != NULL)
            tests[n++] =
                (struct CMUnitTest){esper_op_info_of(kinds[kind])->name, test_canonical, NULL, NULL, &kinds[kind]};
    }
    return _cmocka_run_group_tests("cuda ops", tests, n, NULL, NULL);
}
