/* Smooth functions of one element: GELU (exact, by the error function), sigmoid, tanh. Sigmoid and tanh take their slope from
 * the output, so that the input need not be kept. */
#include <tgmath.h>

#include "tensor/ref/elements.h"

/* The normal distribution up to x, and its density at x. */
static real normal_below(real x)
{
    return (real)0.5 * (1 + erf(x * (real)0.70710678118654752)); /* x / sqrt(2) */
}

static real normal_at(real x)
{
    return (real)0.39894228040143268 * exp((real)-0.5 * x * x); /* 1 / sqrt(2 pi) */
}

ELEMENT_FUNCTION(gelu, v *normal_below(v), in, g *(normal_below(v) + v * normal_at(v)));
ELEMENT_FUNCTION(sigmoid, 1 / (1 + exp(-v)), out, g *v *(1 - v)); /* exp may reach infinity: 0 then, as it should be */
ELEMENT_FUNCTION(tanh, tanh(v), out, g *(1 - v * v));
