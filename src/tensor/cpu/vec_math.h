/* Internal. Functions of vectors of floats: exp, log, tanh, sigmoid, GELU and its slope.
 *
 * The polynomials are good to a few 1e-9 and what remains is a rounding or two: errors are at most 2e-7 of the result
 * (GELU, its slope and sigmoid: of 1, or of |x| where that is larger). Limits are exact (exp(-inf) = 0, tanh(inf) = 1),
 * subnormal results are there but for exp_down's, NaN stays NaN. There are no branches: both sides of a choice are computed, one is taken.
 *
 * The polynomials are minimax fits whose coefficients were rounded to float one after the other, the rest being fitted
 * anew each time. */
#ifndef ESPER_TENSOR_CPU_VEC_MATH_H
#define ESPER_TENSOR_CPU_VEC_MATH_H

#include "tensor/cpu/simd.h"

/* The bits of floats, for arithmetic that may wrap round. */
typedef unsigned vec_bits __attribute__((vector_size(SIMD_VEC_BYTES), may_alias));

/* x, or the bound where x is beyond it; NaN stays NaN. */
SIMD_INLINE simd_vec vec_at_least(simd_vec x, float bound)
{
    return simd_max((simd_vec){0} + bound, x);
}

SIMD_INLINE simd_vec vec_at_most(simd_vec x, float bound)
{
    return -simd_max((simd_vec){0} - bound, -x);
}

SIMD_INLINE simd_vec vec_abs(simd_vec x)
{
    return (simd_vec)((simd_mask)x & 0x7fffffff);
}

/* The size of one, which is not negative, with the sign of the other. */
SIMD_INLINE simd_vec vec_with_sign(simd_vec size, simd_vec sign)
{
    return (simd_vec)((simd_mask)size | ((simd_mask)sign & (int)0x80000000));
}

/* 2^n for -126 <= n <= 127. */
SIMD_INLINE simd_vec vec_power_of_two(simd_mask n)
{
    return (simd_vec)((vec_bits)(n + 127) << 23);
}

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. n
 * reaches beyond the exponents of normal numbers on both sides, so its power is multiplied on in two halves. */
SIMD_INLINE simd_vec vec_exp(simd_vec x)
{
    const float to_integer = 12582912.0f;
    simd_vec in = vec_at_most(vec_at_least(x, -104.5f), 89.0f); /* 0 and infinity come out at these */
    simd_vec shifted = in * 1.44269504f + to_integer, n = shifted - to_integer;
    simd_vec r = in - n * 0.693359375f + n * 2.12194440e-4f; /* log(2) in two parts: the first product is exact */
    simd_vec p = 0.00836867094f + r * 0.001382104f;
    simd_mask whole = (simd_mask)shifted - 0x4b400000, half = whole >> 1;

    p = 0.166665211f + r * (0.0416682623f + r * p);
    p = 1.0f + (r + r * r * (0.49999994f + r * p));
    return p * vec_power_of_two(half) * vec_power_of_two(whole - half);
}

/* exp(x) for x <= 0, with less to do: results below the smallest normal number are 0. */
SIMD_INLINE simd_vec vec_exp_down(simd_vec x)
{
    const float to_integer = 12582912.0f, least = -87.33654f;
    simd_vec in = vec_at_least(x, least), shifted = in * 1.44269504f + to_integer, n = shifted - to_integer;
    simd_vec r = in - n * 0.693359375f + n * 2.12194440e-4f;
    simd_vec p = 0.00836867094f + r * 0.001382104f;

    p = 0.166665211f + r * (0.0416682623f + r * p);
    p = 1.0f + (r + r * r * (0.49999994f + r * p));
    p *= vec_power_of_two((simd_mask)shifted - 0x4b400000);
    return (simd_vec)((simd_mask)p & ~(simd_mask)(x < least));
}

/* log(x) = e log(2) + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). */
SIMD_INLINE simd_vec vec_log(simd_vec x)
{
    simd_mask tiny = (simd_mask)(x < 1.17549435e-38f); /* subnormal: made normal first; 0 and less are mended below */
    vec_bits bits = (vec_bits)simd_select(tiny, x * 8388608.0f, x);
    simd_mask power = (simd_mask)(bits - 0x3f3504f3u) >> 23; /* the bits of sqrt(1/2) */
    simd_vec f = (simd_vec)(bits - ((vec_bits)power << 23)) - 1.0f;
    simd_vec e = __builtin_convertvector(power - (tiny & 23), simd_vec);
    simd_vec p = 0.127624273f - f * 0.0763689056f, y;

    p = 0.200012431f + f * (-0.166234121f + f * (0.142015442f + f * (-0.131595373f + f * p)));
    p = 0.333333313f + f * (-0.250008196f + f * p);
    y = f + (f * f * (f * p - 0.5f) - e * 2.12194440e-4f);
    y += e * 0.693359375f;
    y = simd_select((simd_mask)(x < __builtin_inff()), y, x); /* infinity and NaN */
    y = simd_select((simd_mask)(x < 0.0f), (simd_vec){0} + __builtin_nanf(""), y);
    return simd_select((simd_mask)(x == 0.0f), (simd_vec){0} - __builtin_inff(), y);
}

SIMD_INLINE simd_vec vec_sigmoid(simd_vec x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

/* Near 0 a polynomial, as 1 - 2 / (exp(2x) + 1) would cancel there. */
SIMD_INLINE simd_vec vec_tanh(simd_vec x)
{
    simd_vec size = vec_abs(x), z = size * size;
    simd_vec p = 0.0206325818f - z * 0.0056981449f;
    simd_vec far = 1.0f - 2.0f / (vec_exp(size + size) + 1.0f);

    p = -0.333332807f + z * (0.133314133f + z * (-0.0537375547f + z * p));
    return vec_with_sign(simd_select((simd_mask)(size < 0.625f), size + size * z * p, far), x);
}

/* The normal distribution's mass beyond t >= 0 is exp(-t^2 / 2) times this: a polynomial in (t - 3) / (t + 3), which
 * maps 0 .. infinity to -1 .. 1, over 1 + t / 3. */
SIMD_INLINE simd_vec vec_tail_factor(simd_vec t)
{
    simd_vec u = 3.0f / (t + 3.0f), v = 1.0f - (u + u);
    simd_vec p = 0.00239829626f + v * 0.000699321856f;

    p = 0.0766550899f + v * (-0.0158290546f + v * (-0.0035915263f + v * p));
    return u * (0.24302794f + v * (-0.169778422f + v * p));
}

/* The normal distribution's mass up to x; bell = exp(-x^2 / 2). */
SIMD_INLINE simd_vec vec_normal_below(simd_vec x, simd_vec bell)
{
    simd_vec tail = bell * vec_tail_factor(vec_abs(x));

    return simd_select((simd_mask)(x < 0.0f), tail, 1.0f - tail);
}

/* x times the normal distribution's mass up to x. */
SIMD_INLINE simd_vec vec_gelu(simd_vec x)
{
    return x * vec_normal_below(x, vec_exp_down(-0.5f * x * x));
}

/* The slope of GELU. */
SIMD_INLINE simd_vec vec_gelu_slope(simd_vec x)
{
    simd_vec bell = vec_exp_down(-0.5f * x * x);

    return vec_normal_below(x, bell) + x * (0.39894228f * bell); /* 1 / sqrt(2 pi) */
}

#endif
