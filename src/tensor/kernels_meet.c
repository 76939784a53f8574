/* Where the ranks meet in the middle of an operation. */
#include "base/status.h"
#include "tensor/kernel.h"

/* Alike on every rank, as the sums are: all of them refuse. */
static esper_status check_count(double count)
{
    if (count < 2.0)
        return ESPER_FAIL(ESPER_E_ARG, "batch norm cannot train on one value for each channel over all ranks: use "
                                       "batches of 2 or more");
    return ESPER_OK;
}

esper_status esper_kernels_meet(const esper_op_kernels *op, const esper_lane *lane, bool backward, int phase)
{
    double *values;
    size_t count;

    if (op->values == NULL || phase != (backward ? op->summed_backward : op->summed_forward))
        return ESPER_OK;
    values = op->values(lane, backward, &count);
    ESPER_TRY(lane->exchange->sum(lane->exchange->context, values, count));
    return check_count(values[0]);
}
