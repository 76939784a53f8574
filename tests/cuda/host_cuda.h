/* Internal. CUDA's words on the host, for kernels written in the dialect of src/tensor/cuda/dialect.cuh, included before
 * everything else (-include). A kernel makes itself known by its name before main begins; host_cuda_run.h has what
 * runs it. No C++ library is needed: C's headers, and what stands here.
 *
 * What differs from a GPU: products and sums are not fused unless fmaf says so, __expf and the like are as exact as libm, and
 * threads of a block take turns where they wait for each other, so that races show in the order of turns alone. */
#ifndef ESPER_TESTS_CUDA_HOST_CUDA_H
#define ESPER_TESTS_CUDA_HOST_CUDA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda/host_cuda_run.h"
#include "tensor/cuda/kernels.h"

/* ---------------------------------------------------------------------------------------------------- kernels, memory */

/* As dialect.cuh has it: a pass that is to be left out is left at once. */
static inline bool host_is_skipped(const esper_cuda_lanes &lanes)
{
    const esper_lane *lane = lanes.lane[host_cuda_now.block.y];

    return lane->pass != NULL && lane->pass->skip != NULL && *lane->pass->skip != 0;
}

#define ESPER_KERNEL(name, n_threads)       ESPER_KERNEL_HOST(name, n_threads, host_is_skipped(lanes))
#define ESPER_KERNEL_PLAIN(name, n_threads) ESPER_KERNEL_HOST(name, n_threads, false)

#define ESPER_KERNEL_HOST(name, n_threads, skipped)                                    \
    extern "C" void name(const esper_cuda_lanes &lanes);                               \
    static void run_##name(const void *given)                                          \
    {                                                                                  \
        const esper_cuda_lanes &lanes = *static_cast<const esper_cuda_lanes *>(given); \
                                                                                       \
        if (!(skipped))                                                                \
            name(lanes);                                                               \
    }                                                                                  \
    static host_cuda_kernel host_cuda_##name = {#name, run_##name, n_threads, 0};      \
    __attribute__((constructor)) static void tell_##name(void)                         \
    {                                                                                  \
        host_cuda_register(&host_cuda_##name);                                         \
    }                                                                                  \
    extern "C" void name([[maybe_unused]] const esper_cuda_lanes &lanes)
#define ESPER_KERNEL_DENSE(name, n_threads, blocks) ESPER_KERNEL(name, n_threads)

#define FUNCTION         __attribute__((unused)) static inline
#define __device__
#define __host__
#define __forceinline__  inline
#define __noinline__     __attribute__((noinline))
#define __align__(n)     __attribute__((aligned(n)))
#define __restrict__     __restrict
#define __constant__     static const
/* In a section of its own, to be filled with NaN before every block. (gcc forgets it within templates.) */
#define __shared__       static __attribute__((section("esper_shared")))

#define ESPER_SHARED(type, name) type *name = static_cast<type *>(host_cuda_shared())

/* --------------------------------------------------------------------------------------------------- where a thread is */

#define threadIdx host_cuda_now.thread
#define blockIdx  host_cuda_now.block
#define blockDim  host_cuda_now.block_dim
#define gridDim   host_cuda_now.grid_dim
#define warpSize  32

/* ------------------------------------------------------------------------------------------- what threads do together */

#define __syncthreads()     host_cuda_wait_for_block(__LINE__)
#define __syncwarp(...)     host_cuda_exchange(HOST_CUDA_SYNC, mask_or_all(__VA_ARGS__), 0, 0, __LINE__)
#define __threadfence()       ((void)0)
#define __threadfence_block() ((void)0)

static inline unsigned mask_or_all(unsigned mask = 0xffffffffu)
{
    return mask;
}

/* Through 64 bits, whatever the type. */
template <class T> static inline T exchange(unsigned mask, T value, int source, int line)
{
    uint64_t bits = 0;

    static_assert(sizeof(T) <= sizeof(bits), "a lane gives 64 bits at most");
    memcpy(&bits, &value, sizeof(value));
    bits = host_cuda_exchange(HOST_CUDA_SHUFFLE, mask, bits, source, line);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline int host_lane(void)
{
    return (int)(host_cuda_now.linear % 32);
}

/* Of groups of `width` lanes: what would come from outside of the group is the lane's own. */
template <class T> static inline T shuffle(unsigned mask, T value, int source, int line, int width = 32)
{
    return exchange(mask, value, (host_lane() & ~(width - 1)) + (source & (width - 1)), line);
}

template <class T> static inline T shuffle_xor(unsigned mask, T value, int with, int line, int width = 32)
{
    int source = host_lane() ^ with;

    return exchange(mask, value, source / width == host_lane() / width ? source : host_lane(), line);
}

template <class T> static inline T shuffle_by(unsigned mask, T value, int distance, int line, int width = 32)
{
    int at = (host_lane() & (width - 1)) + distance;

    return exchange(mask, value, at >= 0 && at < width ? host_lane() + distance : host_lane(), line);
}

#define __shfl_sync(mask, value, source, ...)   shuffle((mask), (value), (int)(source), __LINE__, ##__VA_ARGS__)
#define __shfl_xor_sync(mask, value, with, ...) shuffle_xor((mask), (value), (int)(with), __LINE__, ##__VA_ARGS__)
#define __shfl_down_sync(mask, value, by, ...)  shuffle_by((mask), (value), (int)(by), __LINE__, ##__VA_ARGS__)
#define __shfl_up_sync(mask, value, by, ...)    shuffle_by((mask), (value), -(int)(by), __LINE__, ##__VA_ARGS__)
#define __ballot_sync(mask, predicate) \
    ((unsigned)host_cuda_exchange(HOST_CUDA_BALLOT, (mask), (predicate) ? 1 : 0, 0, __LINE__))
#define __any_sync(mask, predicate)    (__ballot_sync((mask), (predicate)) != 0)
#define __all_sync(mask, predicate)    (__ballot_sync((mask), !(predicate)) == 0)
#define __syncthreads_or(predicate)    host_cuda_any_of_block((predicate) ? 1 : 0, __LINE__)
#define __activemask()                 0xffffffffu

/* ------------------------------------------------------------------------------------------------------------- vectors */

#define HOST_VECTOR2(name, type)                                        \
    struct __attribute__((may_alias, aligned(2 * sizeof(type)))) name { \
        type x, y;                                                      \
    };                                                                  \
    static inline name make_##name(type x, type y)                      \
    {                                                                   \
        name v = {x, y};                                                \
        return v;                                                       \
    }
#define HOST_VECTOR4(name, type)                                   \
    struct __attribute__((may_alias, aligned(16))) name {          \
        type x, y, z, w;                                           \
    };                                                             \
    static inline name make_##name(type x, type y, type z, type w) \
    {                                                              \
        name v = {x, y, z, w};                                     \
        return v;                                                  \
    }
HOST_VECTOR2(float2, float)
HOST_VECTOR2(int2, int)
HOST_VECTOR2(uint2, unsigned)
HOST_VECTOR2(double2, double)
HOST_VECTOR2(longlong2, long long)
HOST_VECTOR2(ulonglong2, unsigned long long)
HOST_VECTOR4(float4, float)
HOST_VECTOR4(int4, int)
HOST_VECTOR4(uint4, unsigned)

/* ---------------------------------------------------------------------------------------------------- loads and stores */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
#define __ldcg(p) __ldg(p)
#define __ldca(p) __ldg(p)
#define __ldcs(p) __ldg(p)
#define __ldlu(p) __ldg(p)
#define __ldcv(p) __ldg(p)

template <class T> static inline void __stcs(T *p, T value)
{
    *p = value;
}
#define __stcg(p, value) __stcs((p), (value))
#define __stwb(p, value) __stcs((p), (value))
#define __stwt(p, value) __stcs((p), (value))

/* ------------------------------------------------------------------------------------------------------------- numbers */

template <class To, class From> static inline To same_bits(From from)
{
    To to;

    static_assert(sizeof(To) == sizeof(From), "as many bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}
#define __float_as_uint(v)       same_bits<unsigned, float>(v)
#define __float_as_int(v)        same_bits<int, float>(v)
#define __uint_as_float(v)       same_bits<float, unsigned>(v)
#define __int_as_float(v)        same_bits<float, int>(v)
#define __longlong_as_double(v)  same_bits<double, long long>(v)
#define __double_as_longlong(v)  same_bits<long long, double>(v)

/* As CUDA has them: of each type one, and nothing in between. */
#define HOST_MIN_MAX(type)                    \
    static inline type min(type a, type b)    \
    {                                         \
        return b < a ? b : a;                 \
    }                                         \
    static inline type max(type a, type b)    \
    {                                         \
        return a < b ? b : a;                 \
    }
HOST_MIN_MAX(int)
HOST_MIN_MAX(unsigned)
HOST_MIN_MAX(long)
HOST_MIN_MAX(unsigned long)
HOST_MIN_MAX(long long)
HOST_MIN_MAX(unsigned long long)

/* Of a number and a NaN the number, as fminf and fmaxf. */
static inline float min(float a, float b)
{
    return fminf(a, b);
}

static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

static inline float rsqrtf(float x)
{
    return (float)(1 / sqrt((double)x));
}

static inline double rsqrt(double x)
{
    return 1 / sqrt(x);
}

static inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

static inline float normcdff(float x)
{
    return (float)(0.5 * erfc(-(double)x * 0.70710678118654752));
}

#define __expf(x)            expf(x)
#define __exp10f(x)          exp10f(x)
#define __logf(x)            logf(x)
#define __log2f(x)           log2f(x)
#define __fdividef(a, b)     ((float)(a) / (float)(b))
#define __fdiv_rn(a, b)      ((float)(a) / (float)(b))
#define __frcp_rn(x)         (1.0f / (float)(x))
#define __fsqrt_rn(x)        sqrtf(x)
#define __frsqrt_rn(x)       rsqrtf(x)
#define __fadd_rn(a, b)      ((float)(a) + (float)(b))
#define __fsub_rn(a, b)      ((float)(a) - (float)(b))
#define __fmul_rn(a, b)      ((float)(a) * (float)(b))
#define __fmaf_rn(a, b, c)   fmaf((a), (b), (c))
#define __dadd_rn(a, b)      ((double)(a) + (double)(b))
#define __dmul_rn(a, b)      ((double)(a) * (double)(b))
#define __float2int_rn(x)    ((int)lrintf(x))
#define __float2int_rz(x)    ((int)(x))
#define __int2float_rn(x)    ((float)(x))
#define __uint2float_rn(x)   ((float)(x))
#define __popc(x)            __builtin_popcount(x)
#define __clz(x)             ((x) == 0 ? 32 : __builtin_clz((unsigned)(x)))
#define __ffs(x)             __builtin_ffs((int)(x))
#define __umulhi(a, b)       ((unsigned)((uint64_t)(unsigned)(a) * (unsigned)(b) >> 32))

/* --------------------------------------------------------------------------------------------------------- tensor cores */

/* tensor/cuda/mma.cuh, by the definition: products of numbers with ten bits behind the point, what is behind them left out, summed
 * in float. Lanes show each other where their fragments lie. */
#define tf32_of(x)       host_tf32_of(x)
#define HAS_TENSOR_CORES host_cuda_has_cores()

static inline unsigned host_tf32_of(float x)
{
    unsigned bits = __float_as_uint(x);

    return x - x == 0 ? (bits + 0x1000u) & 0xffffe000u : bits; /* to the nearest, halves away from 0 */
}

static inline float host_tf32(unsigned bits)
{
    return __uint_as_float(bits & 0xffffe000u);
}

/* What a lane shows of two products in turn: whoever has come to the second has read what was shown of the one before the first. */
struct host_fragments {
    unsigned a[4], b[2];
};

static host_fragments host_shown[2][HOST_CUDA_MAX_THREADS];
static unsigned char  host_products[HOST_CUDA_MAX_THREADS]; /* of a lane, but for multiples of 2 */

/* n_k: 8 or 4. */
static inline void host_mma(float *c, const unsigned *a, const unsigned *b, int n_k, int line)
{
    unsigned linear = host_cuda_now.linear, turn = host_products[linear] ^= 1;
    int lane = host_lane(), row = lane / 4, column = lane % 4;
    const host_fragments *warp = host_shown[turn] + linear - (unsigned)lane;

    memcpy(host_shown[turn][linear].a, a, (size_t)n_k / 2 * sizeof(unsigned));
    memcpy(host_shown[turn][linear].b, b, (size_t)n_k / 4 * sizeof(unsigned));
    host_cuda_exchange(HOST_CUDA_SYNC, 0xffffffffu, 0, 0, line);
    for (int i = 0; i < 4; i++) {
        int m = row + i / 2 * 8, n = 2 * column + i % 2;
        float sum = c[i];

        for (int k = 0; k < n_k; k++) /* a product has 22 bits */
            sum = (float)((double)sum + (double)host_tf32(warp[m % 8 * 4 + k % 4].a[m / 8 + k / 4 * 2]) *
                                            (double)host_tf32(warp[n * 4 + k % 4].b[k / 4]));
        c[i] = sum;
    }
}

static inline void mma_16x8x8(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    host_mma(c, a, b, 8, __LINE__);
}

static inline void mma_16x8x4(float (&c)[4], const unsigned (&a)[2], unsigned b)
{
    host_mma(c, a, &b, 4, __LINE__);
}

/* ------------------------------------------------------------------------------------------------ integers in one piece */

#define HOST_ATOMIC(name, operation)                        \
    template <class T> static inline T name(T *at, T value) \
    {                                                       \
        T old = *at;                                        \
                                                            \
        *at = (operation);                                  \
        return old;                                         \
    }
HOST_ATOMIC(atomicAdd, old + value)
HOST_ATOMIC(atomicSub, old - value)
HOST_ATOMIC(atomicExch, value)
HOST_ATOMIC(atomicMin, value < old ? value : old)
HOST_ATOMIC(atomicMax, value < old ? old : value)
HOST_ATOMIC(atomicAnd, old &value)
HOST_ATOMIC(atomicOr, old | value)
HOST_ATOMIC(atomicXor, old ^ value)

template <class T> static inline T atomicCAS(T *at, T expected, T value)
{
    T old = *at;

    if (old == expected)
        *at = value;
    return old;
}

/* The order of sums would be chance's. */
float atomicAdd(float *at, float value) __attribute__((error("no atomics on floats: sums are taken in a fixed order")));
double atomicAdd(double *at, double value)
    __attribute__((error("no atomics on floats: sums are taken in a fixed order")));

#include "cuda/host_mma_half.h"

#endif
