/* Internal. For the tests of the lanes_*.h kernels: memory with guards, blocks of sixteen samples made by plain loops,
 * the reference run on canonical tensors, and comparing the two. */
#ifndef ESPER_TESTS_SIMD_CASE_H
#define ESPER_TESTS_SIMD_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "tensor/op.h"

esper_rng simd_case_rng(uint32_t number);
int       simd_case_int(esper_rng *rng, int least, int most); /* both included */

/* Zeroed, 64-byte aligned; lives until simd_case_end, which fails the test when something wrote around it. */
float  *simd_case_floats(size_t n);
double *simd_case_doubles(size_t n);
float  *simd_case_random(esper_rng *rng, size_t n, float mean, float deviation);
void    simd_case_end(void);

int simd_case_blocks(int N);              /* how many hold N samples */
int simd_case_valid(int N, int block);    /* samples of one of them */

/* The blocks of N samples of `count` elements; those beyond hold `rest`. */
float *simd_case_pack(const float *samples, int N, size_t count, float rest);

/* A view of a tensor with its gradient, either of which may be NULL. Dimensions of 0 end the list. */
esper_view simd_case_view(void *data, void *grad, int d0, int d1, int d2);

/* Runs the reference over all samples or units. */
void simd_case_forward(esper_op_kind kind, const esper_lane *lane);
void simd_case_backward(esper_op_kind kind, const esper_lane *lane);

/* Fails where found is further from expected than 2e-5 of the largest finite entry expected (of 1, when that is
 * smaller), or where one of them is NaN or infinite and the other is not the same. */
void simd_case_compare(const char *text, const float *expected, const float *found, size_t n);
void simd_case_compare_sums(const char *text, const float *expected, const double *found, size_t n);

/* The same for blocks against canonical samples; places beyond the last sample must hold 0 when rest_is_zero. */
void simd_case_compare_blocks(const char *text, const float *expected, const float *blocks, int N, size_t count,
                              int rest_is_zero);

#endif
