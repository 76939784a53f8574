/* The host's kernels for AVX2, FMA and F16C: eight floats or four doubles to a vector. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "guard/scan_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { N_SUMS = 16, N_U32 = 8, N_U16 = 16, N_F64 = 4, N_F16 = 8 };
typedef __m256i vec_u32;
typedef __m256i vec_u16;
typedef __m256i vec_u64;
typedef __m256d vec_f64;

#define u32_set(value)       _mm256_set1_epi32((int)(value))
#define u32_load(memory)     _mm256_loadu_si256((const __m256i *)(const void *)(memory))
#define u32_and(a, b)        _mm256_and_si256(a, b)
#define u32_sub(a, b)        _mm256_sub_epi32(a, b)
#define i32_max(a, b)        _mm256_max_epi32(a, b)
#define u32_min(a, b)        _mm256_min_epu32(a, b)
#define u32_store(memory, a) _mm256_storeu_si256((__m256i *)(void *)(memory), a)

#define u16_set(value)       _mm256_set1_epi16((short)(value))
#define u16_load(memory)     u32_load(memory)
#define u16_and(a, b)        u32_and(a, b)
#define u16_sub(a, b)        _mm256_sub_epi16(a, b)
#define i16_max(a, b)        _mm256_max_epi16(a, b)
#define u16_min(a, b)        _mm256_min_epu16(a, b)
#define u16_store(memory, a) u32_store(memory, a)

/* Signs of 32-bit words are gathered into bits and counted by the other half of the processor; for 16-bit words there
 * is no cheap way to gather them. */
typedef uint64_t count_u32;
#define u32_count_none()             0
#define u32_count_negative(count, a) \
    ((count) + (unsigned)_mm_popcnt_u32((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(a))))
#define u32_count_sum(count)         (count)
#define u16_count_negative(count, a) _mm256_add_epi16(count, _mm256_srli_epi16(a, 15))

#define f64_zero()           _mm256_setzero_pd()
#define f64_set(value)       _mm256_set1_pd(value)
#define f64_load(memory)     _mm256_loadu_pd((const double *)(const void *)(memory))
#define f64_add(a, b)        _mm256_add_pd(a, b)
#define f64_mul(a, b)        _mm256_mul_pd(a, b)
#define f64_fma(a, b, c)     _mm256_fmadd_pd(a, b, c)
#define f64_abs(a)           _mm256_andnot_pd(_mm256_set1_pd(-0.0), a)
#define f64_max(a, b)        _mm256_max_pd(a, b)
#define f64_min(a, b)        _mm256_min_pd(a, b)
#define f64_store(memory, a) _mm256_storeu_pd(memory, a)
#define f64_or_nan_if_zero(a) _mm256_or_pd(a, _mm256_cmp_pd(a, _mm256_setzero_pd(), _CMP_EQ_OQ))

#define u64_zero()            _mm256_setzero_si256()
#define u64_set(value)        _mm256_set1_epi64x((long long)(value))
#define u64_load(memory)      _mm256_loadu_si256((const __m256i *)(const void *)(memory))
#define u64_add(a, b)         _mm256_add_epi64(a, b)
#define u64_xor(a, b)         _mm256_xor_si256(a, b)
#define u64_fold(a)           _mm256_add_epi64(_mm256_mul_epu32(a, _mm256_srli_epi64(a, 32)), a)
#define u64_store(memory, a)  _mm256_storeu_si256((__m256i *)(void *)(memory), a)
#define u64_stream(memory, a) _mm256_stream_si256((__m256i *)(void *)(memory), a)
#define fence()               _mm_sfence()

/* A comparison yields -1 where it holds. */
#define u64_count_if(count, a, b, how) _mm256_sub_epi64(count, _mm256_castpd_si256(_mm256_cmp_pd(a, b, how)))
#define u64_count_zero(count, a)     u64_count_if(count, a, _mm256_setzero_pd(), _CMP_EQ_OQ)
#define u64_count_below(count, a, b) u64_count_if(count, a, b, _CMP_LT_OQ)

INLINE vec_u32 load_bits(const unsigned char *data, esper_guard_dtype dtype)
{
    if (dtype == ESPER_GUARD_F32)
        return u32_load(data);
    if (dtype == ESPER_GUARD_F16)
        return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)data)));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)data)), 16);
}

/* Halves of a vector are read by themselves where memory allows it: that is cheaper than taking a vector apart. What
 * becomes the upper half of a float comes from a shuffle, with zeros for the lower half. */
INLINE vec_f64 load_as_f64(const unsigned char *data, esper_guard_dtype dtype, int v)
{
    const void *pair = data + (size_t)v / 2 * 2 * N_F64 * sizeof(uint16_t); /* of vectors: what one load yields */
    __m128i halves;
    __m256 floats;

    if (dtype == ESPER_GUARD_F32)
        return _mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)data + v * N_F64));
    halves = _mm_loadu_si128((const __m128i *)pair);
    if (dtype == ESPER_GUARD_BF16)
        return _mm256_cvtps_pd(_mm_castsi128_ps(v % 2 == 0 ? _mm_unpacklo_epi16(_mm_setzero_si128(), halves)
                                                           : _mm_unpackhi_epi16(_mm_setzero_si128(), halves)));
    floats = _mm256_cvtph_ps(halves);
    return _mm256_cvtps_pd(v % 2 == 0 ? _mm256_castps256_ps128(floats) : _mm256_extractf128_ps(floats, 1));
}

INLINE void scale_f16_vector(unsigned char *data, float factor)
{
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)data));

    x = _mm256_mul_ps(x, _mm256_set1_ps(factor));
    _mm_storeu_si128((__m128i *)(void *)data, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "guard/scan_kernels.inc"

const esper_scan_kernels esper_scan_kernels_avx2 = KERNEL_TABLE("avx2");
