/* Internal. What the tensors of a lane must be like for each kind of operation: what op.h's table says, as assertions.
 *
 * Kernels trust shapes, and a wrong one travels far: it writes into a neighbour's memory. Nothing here looks into the
 * backend's memory, so a launch for a device is looked at as well. Without assertions there is nothing to call. */
#ifndef ESPER_TENSOR_OP_SHAPES_H
#define ESPER_TENSOR_OP_SHAPES_H

#include "tensor/op.h"

#ifdef NDEBUG
#define esper_assert_shapes(kind, lane) ((void)(kind), (void)(lane))
#else
void esper_assert_shapes(esper_op_kind kind, const esper_lane *lane);
#endif

#endif
