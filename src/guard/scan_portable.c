/* The host's kernels where there is nothing better: vectors of 16 bytes, as compilers lower them for any processor. */
#include <math.h>
#include <string.h>

#include "guard/scan_kernels.h"

enum { N_SUMS = 16, N_U32 = 4, N_U16 = 8, N_F64 = 2, N_F16 = 4 };
typedef uint32_t vec_u32 __attribute__((vector_size(16)));
typedef int32_t  vec_i32 __attribute__((vector_size(16)));
typedef uint16_t vec_u16 __attribute__((vector_size(16)));
typedef int16_t  vec_i16 __attribute__((vector_size(16)));
typedef uint64_t vec_u64 __attribute__((vector_size(16)));
typedef int64_t  vec_i64 __attribute__((vector_size(16)));
typedef float    vec_f32 __attribute__((vector_size(16)));
typedef double   vec_f64 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

/* a where the mask is -1, b where it is 0. */
INLINE vec_u32 u32_select(vec_i32 mask, vec_u32 a, vec_u32 b)
{
    return ((vec_u32)mask & a) | (~(vec_u32)mask & b);
}

INLINE vec_u16 u16_select(vec_i16 mask, vec_u16 a, vec_u16 b)
{
    return ((vec_u16)mask & a) | (~(vec_u16)mask & b);
}

INLINE vec_f64 f64_select(vec_i64 mask, vec_f64 a, vec_f64 b)
{
    return (vec_f64)(((vec_u64)mask & (vec_u64)a) | (~(vec_u64)mask & (vec_u64)b));
}

INLINE vec_u32 u32_set(uint32_t value)
{
    return (vec_u32){value, value, value, value};
}

#define u32_and(a, b)       ((a) & (b))
#define u32_sub(a, b)       ((a) - (b))
#define i32_max(a, b)       u32_select((vec_i32)(a) > (vec_i32)(b), a, b)
#define u32_min(a, b)       u32_select((a) < (b), a, b)

INLINE vec_u16 u16_set(uint16_t value)
{
    return (vec_u16){value, value, value, value, value, value, value, value};
}

#define u16_and(a, b)       ((a) & (b))
#define u16_sub(a, b)       ((a) - (b))
#define i16_max(a, b)       u16_select((vec_i16)(a) > (vec_i16)(b), a, b)
#define u16_min(a, b)       u16_select((a) < (b), a, b)

/* Signs are counted in each word. */
typedef vec_u32 count_u32;
#define u32_count_none()             u32_set(0)
#define u32_count_negative(count, a) ((count) + ((a) >> 31))
#define u32_count_sum(count)         ((uint64_t)(count)[0] + (count)[1] + (count)[2] + (count)[3])
#define u16_count_negative(count, a) ((count) + ((a) >> 15))

#define f64_zero()            ((vec_f64){0.0, 0.0})
#define f64_set(value)        ((vec_f64){value, value})
#define f64_add(a, b)         ((a) + (b))
#define f64_mul(a, b)         ((a) * (b))
#define f64_fma(a, b, c)      ((a) * (b) + (c)) /* of floats alone, whose product is exact */
#define f64_abs(a)            ((vec_f64)((vec_u64)(a)&u64_set(UINT64_MAX >> 1)))
#define f64_max(a, b)         f64_select((a) > (b), a, b)
#define f64_min(a, b)         f64_select((a) < (b), a, b)
#define f64_or_nan_if_zero(a) ((vec_f64)((vec_u64)(a) | (vec_u64)((a) == f64_zero())))

#define LOAD_AND_STORE(type)                                 \
    INLINE vec_##type type##_load(const void *memory)        \
    {                                                        \
        vec_##type value;                                    \
                                                             \
        memcpy(&value, memory, sizeof(value));               \
        return value;                                        \
    }                                                        \
    INLINE void type##_store(void *memory, vec_##type value) \
    {                                                        \
        memcpy(memory, &value, sizeof(value));               \
    }

LOAD_AND_STORE(u16)
LOAD_AND_STORE(u32)
LOAD_AND_STORE(u64)
LOAD_AND_STORE(f64)

INLINE vec_u64 u64_set(uint64_t value)
{
    return (vec_u64){value, value};
}

#define u64_zero()            u64_set(0)
#define u64_add(a, b)         ((a) + (b))
#define u64_xor(a, b)         ((a) ^ (b))
#define u64_fold(a)                  (((a)&u64_set(0xffffffffu)) * ((a) >> 32) + (a))
#define u64_stream(memory, a) u64_store(memory, a)
#define fence()               ((void)0)
#define u64_count_zero(count, a)     ((count) - (vec_u64)((a) == f64_zero()))
#define u64_count_below(count, a, b) ((count) - (vec_u64)((a) < (b)))

/* The bits of the floats that halves stand for, each in the lower half of a word. Shifted into a float's place, a finite
 * half is too small by 2^112, also where it is denormal; the product is exact. */
INLINE vec_u32 halves_to_bits(vec_u32 halves)
{
    vec_u32 size = (halves & 0x7fff) << 13;
    vec_u32 not_finite = (vec_u32)((vec_i32)size >= 0x7c00 << 13) & 0x7f800000u;

    return (vec_u32)((vec_f32)size * 0x1p112f) | not_finite | (halves & 0x8000) << 16;
}

/* The half nearest to a float, ties to even. */
INLINE uint16_t half_of_bits(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
    float value;

    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (size >= 0x47800000u) /* 2^16 */
        return (uint16_t)(sign | 0x7c00);
    if (size >= 0x38800000u) /* 2^-14: from here on halves are normal */
        return (uint16_t)(sign | (size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13);
    memcpy(&value, &size, sizeof(value));
    value += 0.5f; /* whose last place is that of the smallest half */
    memcpy(&size, &value, sizeof(size));
    return (uint16_t)(sign | (size - 0x3f000000u));
}

INLINE vec_u32 load_halves(const unsigned char *data)
{
    uint16_t halves[N_U32];

    memcpy(halves, data, sizeof(halves));
    return (vec_u32){halves[0], halves[1], halves[2], halves[3]};
}

INLINE vec_u32 load_bits(const unsigned char *data, esper_guard_dtype dtype)
{
    if (dtype == ESPER_GUARD_F32)
        return u32_load(data);
    return dtype == ESPER_GUARD_F16 ? halves_to_bits(load_halves(data)) : load_halves(data) << 16;
}

INLINE vec_f64 load_as_f64(const unsigned char *data, esper_guard_dtype dtype, int v)
{
    float pair[N_F64];

    if (dtype == ESPER_GUARD_F32) {
        memcpy(pair, data + (size_t)v * sizeof(pair), sizeof(pair));
    } else {
        vec_u32 bits = load_bits(data + (size_t)v / 2 * N_U32 * sizeof(uint16_t), dtype);

        memcpy(pair, (const unsigned char *)&bits + (size_t)v % 2 * sizeof(pair), sizeof(pair));
    }
    return (vec_f64){(double)pair[0], (double)pair[1]};
}

INLINE void scale_f16_vector(unsigned char *data, float factor)
{
    vec_u32 bits = (vec_u32)((vec_f32)halves_to_bits(load_halves(data)) * factor);
    uint16_t halves[N_F16];

    for (int l = 0; l < N_F16; l++)
        halves[l] = half_of_bits(bits[l]);
    memcpy(data, halves, sizeof(halves));
}

#include "guard/scan_kernels.inc"

const esper_scan_kernels esper_scan_kernels_portable = KERNEL_TABLE("portable");
