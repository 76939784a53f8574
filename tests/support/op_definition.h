/* Internal. What each operation is, one element at a time in double: written from the definitions and for reading, not
 * from the kernels, and as slow as that is. */
#ifndef ESPER_TESTS_OP_DEFINITION_H
#define ESPER_TESTS_OP_DEFINITION_H

#include "support/op_cases.h"

/* Runs a case forward with a set of kernels in double and compares every output, and every input, with what the
 * definition makes of the case: running statistics move, parameters and moments take a step, all other inputs stay.
 * Returns the number of elements that differ; the first is described in `first` (kept when that has text). */
int op_definition_check(const op_case *c, const esper_kernel_set *set, char *first, size_t chars);

#endif
