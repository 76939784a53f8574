/* ReLU. Its slope is taken from the output, so that the input need not be kept, and is 0 at 0. NaN passes in both directions:
 * what is not <= 0 is let through. */
#include "tensor/ref/elements.h"

ELEMENT_FUNCTION(relu, v <= 0 ? 0 : v, out, v <= 0 ? 0 : g);
