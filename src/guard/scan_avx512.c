/* The host's kernels for AVX-512 (F, BW, VL, DQ): sixteen floats or eight doubles to a vector. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "guard/scan_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { N_SUMS = 16, N_U32 = 16, N_U16 = 16, N_F64 = 8, N_F16 = 16 };
typedef __m512i vec_u32;
typedef __m256i vec_u16; /* N_SUMS of them */
typedef __m512i vec_u64;
typedef __m512d vec_f64;

#define u32_set(value)       _mm512_set1_epi32((int)(value))
#define u32_load(memory)     _mm512_loadu_si512(memory)
#define u32_and(a, b)        _mm512_and_si512(a, b)
#define u32_sub(a, b)        _mm512_sub_epi32(a, b)
#define i32_max(a, b)        _mm512_max_epi32(a, b)
#define u32_min(a, b)        _mm512_min_epu32(a, b)
#define u32_store(memory, a) _mm512_storeu_si512(memory, a)

#define u16_set(value)       _mm256_set1_epi16((short)(value))
#define u16_load(memory)     _mm256_loadu_si256((const __m256i *)(const void *)(memory))
#define u16_and(a, b)        _mm256_and_si256(a, b)
#define u16_sub(a, b)        _mm256_sub_epi16(a, b)
#define i16_max(a, b)        _mm256_max_epi16(a, b)
#define u16_min(a, b)        _mm256_min_epu16(a, b)
#define u16_store(memory, a) _mm256_storeu_si256((__m256i *)(void *)(memory), a)

/* Signs of 32-bit words are gathered into bits and counted by the other half of the processor. */
typedef uint64_t count_u32;
#define u32_count_none()             0
#define u32_count_negative(count, a) ((count) + (unsigned)_mm_popcnt_u32(_mm512_movepi32_mask(a)))
#define u32_count_sum(count)         (count)
#define u16_count_negative(count, a) _mm256_add_epi16(count, _mm256_srli_epi16(a, 15))

#define f64_zero()           _mm512_setzero_pd()
#define f64_set(value)       _mm512_set1_pd(value)
#define f64_load(memory)     _mm512_loadu_pd(memory)
#define f64_add(a, b)        _mm512_add_pd(a, b)
#define f64_mul(a, b)        _mm512_mul_pd(a, b)
#define f64_fma(a, b, c)     _mm512_fmadd_pd(a, b, c)
#define f64_abs(a)           _mm512_andnot_pd(_mm512_set1_pd(-0.0), a)
#define f64_max(a, b)        _mm512_max_pd(a, b)
#define f64_min(a, b)        _mm512_min_pd(a, b)
#define f64_store(memory, a) _mm512_storeu_pd(memory, a)
#define f64_or_nan_if_zero(a) \
    _mm512_or_pd(a, _mm512_castsi512_pd(_mm512_movm_epi64(_mm512_cmp_pd_mask(a, _mm512_setzero_pd(), _CMP_EQ_OQ))))

#define u64_zero()            _mm512_setzero_si512()
#define u64_set(value)        _mm512_set1_epi64((long long)(value))
#define u64_load(memory)      _mm512_loadu_si512(memory)
#define u64_add(a, b)         _mm512_add_epi64(a, b)
#define u64_xor(a, b)         _mm512_xor_si512(a, b)
#define u64_fold(a)           _mm512_add_epi64(_mm512_mul_epu32(a, _mm512_srli_epi64(a, 32)), a)
#define u64_store(memory, a)  _mm512_storeu_si512(memory, a)
#define u64_stream(memory, a) _mm512_stream_si512((__m512i *)(void *)(memory), a)
#define fence()               _mm_sfence()

/* A comparison yields a mask under which something is added. */
#define u64_count_if(count, a, b, how) \
    _mm512_mask_add_epi64(count, _mm512_cmp_pd_mask(a, b, how), count, _mm512_set1_epi64(1))
#define u64_count_zero(count, a)     u64_count_if(count, a, _mm512_setzero_pd(), _CMP_EQ_OQ)
#define u64_count_below(count, a, b) u64_count_if(count, a, b, _CMP_LT_OQ)

INLINE vec_u32 load_bits(const unsigned char *data, esper_guard_dtype dtype)
{
    if (dtype == ESPER_GUARD_F32)
        return u32_load(data);
    if (dtype == ESPER_GUARD_F16)
        return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)data)));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)data)), 16);
}

INLINE vec_f64 load_as_f64(const unsigned char *data, esper_guard_dtype dtype, int v)
{
    __m128i halves;

    if (dtype == ESPER_GUARD_F32)
        return _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(const void *)data + v * N_F64));
    halves = _mm_loadu_si128((const __m128i *)(const void *)(data + (size_t)v * N_F64 * sizeof(uint16_t)));
    if (dtype == ESPER_GUARD_F16)
        return _mm512_cvtps_pd(_mm256_cvtph_ps(halves));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
}

INLINE void scale_f16_vector(unsigned char *data, float factor)
{
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)data));

    x = _mm512_mul_ps(x, _mm512_set1_ps(factor));
    _mm256_storeu_si256((__m256i *)(void *)data, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "guard/scan_kernels.inc"

const esper_scan_kernels esper_scan_kernels_avx512 = KERNEL_TABLE("avx512");
