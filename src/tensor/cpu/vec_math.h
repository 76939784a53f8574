/* Internal. Functions of vectors of floats: exp, log, tanh, sigmoid, erf, GELU and its slope.
 *
 * The polynomials are good to a few 1e-9 and what remains is a rounding or two: errors are at most 2e-7 of the result
 * (GELU, its slope and sigmoid: of 1, or of |x| where that is larger). Limits are exact (exp(-inf) = 0, tanh(inf) = 1),
 * subnormal results are there but for exp_down's, NaN stays NaN. There are no branches: both sides of a choice are computed, one is taken.
 *
 * The polynomials are minimax fits whose coefficients were rounded to float one after the other, the rest being fitted
 * anew each time. */
#ifndef ESPER_TENSOR_CPU_VEC_MATH_H
#define ESPER_TENSOR_CPU_VEC_MATH_H

#include "tensor/cpu/lanes.h"

/* The bits of floats, for arithmetic that may wrap round. */
typedef unsigned vec_bits __attribute__((vector_size(LANES_VEC_BYTES), may_alias));

/* x, or the bound where x is beyond it; NaN stays NaN. */
LANES_INLINE lanes_vec vec_at_least(lanes_vec x, float bound)
{
    return lanes_max((lanes_vec){0} + bound, x);
}

LANES_INLINE lanes_vec vec_at_most(lanes_vec x, float bound)
{
    return -lanes_max((lanes_vec){0} - bound, -x);
}

LANES_INLINE lanes_vec vec_abs(lanes_vec x)
{
    return (lanes_vec)((lanes_mask)x & 0x7fffffff);
}

/* The size of one, which is not negative, with the sign of the other. */
LANES_INLINE lanes_vec vec_with_sign(lanes_vec size, lanes_vec sign)
{
    return (lanes_vec)((lanes_mask)size | ((lanes_mask)sign & (int)0x80000000));
}

/* 2^n for -126 <= n <= 127. */
LANES_INLINE lanes_vec vec_power_of_two(lanes_mask n)
{
    return (lanes_vec)((vec_bits)(n + 127) << 23);
}

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. n
 * reaches beyond the exponents of normal numbers on both sides, so its power is multiplied on in two halves. */
LANES_INLINE lanes_vec vec_exp(lanes_vec x)
{
    const float to_integer = 12582912.0f;
    lanes_vec in = vec_at_most(vec_at_least(x, -104.5f), 89.0f); /* 0 and infinity come out at these */
    lanes_vec shifted = in * 1.44269504f + to_integer, n = shifted - to_integer;
    lanes_vec r = in - n * 0.693359375f + n * 2.12194440e-4f; /* log(2) in two parts: the first product is exact */
    lanes_vec p = 0.00836867094f + r * 0.001382104f;
    lanes_mask whole = (lanes_mask)shifted - 0x4b400000, half = whole >> 1;

    p = 0.166665211f + r * (0.0416682623f + r * p);
    p = 1.0f + (r + r * r * (0.49999994f + r * p));
    return p * vec_power_of_two(half) * vec_power_of_two(whole - half);
}

/* exp(x) for x <= 0, with less to do: results below the smallest normal number are 0. */
LANES_INLINE lanes_vec vec_exp_down(lanes_vec x)
{
    const float to_integer = 12582912.0f, least = -87.33654f;
    lanes_vec in = vec_at_least(x, least), shifted = in * 1.44269504f + to_integer, n = shifted - to_integer;
    lanes_vec r = in - n * 0.693359375f + n * 2.12194440e-4f;
    lanes_vec p = 0.00836867094f + r * 0.001382104f;

    p = 0.166665211f + r * (0.0416682623f + r * p);
    p = 1.0f + (r + r * r * (0.49999994f + r * p));
    p *= vec_power_of_two((lanes_mask)shifted - 0x4b400000);
    return (lanes_vec)((lanes_mask)p & ~(lanes_mask)(x < least));
}

/* log(x) = e log(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). */
LANES_INLINE lanes_vec vec_log(lanes_vec x)
{
    lanes_mask tiny = (lanes_mask)(x < 1.17549435e-38f); /* subnormal: made normal first; 0 and less are mended below */
    vec_bits bits = (vec_bits)lanes_select(tiny, x * 8388608.0f, x);
    lanes_mask power = (lanes_mask)(bits - 0x3f3504f3u) >> 23; /* the bits of sqrt(1/2) */
    lanes_vec f = (lanes_vec)(bits - ((vec_bits)power << 23)) - 1.0f;
    lanes_vec e = __builtin_convertvector(power - (tiny & 23), lanes_vec);
    lanes_vec p = 0.127624273f - f * 0.0763689056f, y;

    p = 0.200012431f + f * (-0.166234121f + f * (0.142015442f + f * (-0.131595373f + f * p)));
    p = 0.333333313f + f * (-0.250008196f + f * p);
    y = f + (f * f * (f * p - 0.5f) - e * 2.12194440e-4f);
    y += e * 0.693359375f;
    y = lanes_select((lanes_mask)(x < __builtin_inff()), y, x); /* infinity and NaN */
    y = lanes_select((lanes_mask)(x < 0.0f), (lanes_vec){0} + __builtin_nanf(""), y);
    return lanes_select((lanes_mask)(x == 0.0f), (lanes_vec){0} - __builtin_inff(), y);
}

LANES_INLINE lanes_vec vec_sigmoid(lanes_vec x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

/* Near 0 a polynomial, as 1 - 2 / (exp(2x) + 1) would cancel there. */
LANES_INLINE lanes_vec vec_tanh(lanes_vec x)
{
    lanes_vec size = vec_abs(x), z = size * size;
    lanes_vec p = 0.0206325818f - z * 0.0056981449f;
    lanes_vec far = 1.0f - 2.0f / (vec_exp(size + size) + 1.0f);

    p = -0.333332807f + z * (0.133314133f + z * (-0.0537375547f + z * p));
    return vec_with_sign(lanes_select((lanes_mask)(size < 0.625f), size + size * z * p, far), x);
}

/* The normal distribution's mass beyond t >= 0 is exp(-t^2 / 2) times this: a polynomial in (t - 3) / (t + 3), which
 * maps 0 .. infinity to -1 .. 1, over 1 + t / 3. */
LANES_INLINE lanes_vec vec_tail_factor(lanes_vec t)
{
    lanes_vec u = 3.0f / (t + 3.0f), v = 1.0f - (u + u);
    lanes_vec p = 0.00239829626f + v * 0.000699321856f;

    p = 0.0766550899f + v * (-0.0158290546f + v * (-0.0035915263f + v * p));
    return u * (0.24302794f + v * (-0.169778422f + v * p));
}

LANES_INLINE lanes_vec vec_erf(lanes_vec x)
{
    lanes_vec size = vec_abs(x), z = size * size;
    lanes_vec far = 1.0f - 2.0f * (vec_exp(-z) * vec_tail_factor(size * 1.41421356f));
    lanes_vec p = -0.00150705955f + z * 0.000352170755f;

    p = 0.11289864f + z * (-0.0271613486f + z * (0.00587335043f + z * p));
    p = 0.128379167f + z * (-0.376130998f + z * p);
    return vec_with_sign(lanes_select((lanes_mask)(size < 0.92f), size + size * p, far), x);
}

/* The normal distribution's mass up to x; bell = exp(-x^2 / 2). */
LANES_INLINE lanes_vec vec_normal_below(lanes_vec x, lanes_vec bell)
{
    lanes_vec tail = bell * vec_tail_factor(vec_abs(x));

    return lanes_select((lanes_mask)(x < 0.0f), tail, 1.0f - tail);
}

/* x times the normal distribution's mass up to x. */
LANES_INLINE lanes_vec vec_gelu(lanes_vec x)
{
    return x * vec_normal_below(x, vec_exp_down(-0.5f * x * x));
}

/* The slope of GELU. */
LANES_INLINE lanes_vec vec_gelu_slope(lanes_vec x)
{
    lanes_vec bell = vec_exp_down(-0.5f * x * x);

    return vec_normal_below(x, bell) + x * (0.39894228f * bell); /* 1 / sqrt(2 pi) */
}

#endif
