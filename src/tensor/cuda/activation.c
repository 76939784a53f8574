/* Functions of one element: relu, gelu, sigmoid, tanh, in both layouts. */
#include "tensor/cuda/elements.h"

ELEMENTS_OP_IN_BOTH(relu);
ELEMENTS_OP_IN_BOTH(gelu);
ELEMENTS_OP_IN_BOTH(sigmoid);
ELEMENTS_OP_IN_BOTH(tanh);
