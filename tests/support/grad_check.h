/* Internal. The gradients of an operation against finite differences of its forward pass, in double.
 *
 * The loss is the sum of the outputs, weighted by the incoming gradient. Its derivative is taken from four points,
 * exact up to the fifth derivative: what a step of 2e-4 leaves is below rounding, about 1e-11, unless a norm meets
 * nearly equal values. */
#ifndef ESPER_TESTS_GRAD_CHECK_H
#define ESPER_TESTS_GRAD_CHECK_H

#include "support/op_cases.h"

enum { GRAD_CHECK_CASES = 120, GRAD_CHECK_PICKS = 10 }; /* cases of an operation, elements of a gradient in each */

/* Checks the gradients of a case with a set of kernels in double; `rng` draws which elements. Returns the number of
 * mismatches, a write outside of a buffer among them; the first is described in `first` (kept when that has text). */
int grad_check_case(const op_case *c, const esper_kernel_set *set, esper_rng *rng, char *first, size_t chars);

/* The stream from which the elements for all cases of an operation are drawn. */
esper_rng grad_check_rng(esper_op_kind kind);

#endif
