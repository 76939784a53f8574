/* ctest: labels=noasan */
/* The snapshot ring over the real CUDA engine and kernels, on an emulated driver (which changes stacks, so not under
 * AddressSanitizer). Order is test_ring_order.c's. */
#include "emulated_cuda.h"
#include "ring_cuda_cases.h"

int main(void)
{
    const struct CMUnitTest tests[] = {RING_CUDA_CASES};

    emulated_cuda_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
