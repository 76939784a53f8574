/* Internal. Tensor cores with factors of bf16 (tensor/cuda/mma_half.cuh) on the host, by the definition, as host_cuda.h has them for TF32. */
#ifndef ESPER_TESTS_CUDA_HOST_MMA_HALF_H
#define ESPER_TESTS_CUDA_HOST_MMA_HALF_H

static inline unsigned host_bf16_of(float x)
{
    unsigned bits = __float_as_uint(x);

    if (!(x - x == 0)) /* an infinity stays one, and a NaN */
        return (bits >> 16) | (unsigned)((bits & 0x7fffff) != 0) << 6;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

static inline unsigned bf16_pack(float low, float high)
{
    return host_bf16_of(low) | host_bf16_of(high) << 16;
}

static inline double host_bf16(unsigned word, int half)
{
    return (double)__uint_as_float(half == 0 ? word << 16 : word & 0xffff0000u);
}

/* n_k: 16 or 8. */
static inline void host_mma_half(float *c, const unsigned *a, const unsigned *b, int n_k, int line)
{
    unsigned linear = host_cuda_now.linear, turn = host_products[linear] ^= 1;
    int lane = host_lane(), row = lane / 4, column = lane % 4;
    const host_fragments *warp = host_shown[turn] + linear - (unsigned)lane;

    memcpy(host_shown[turn][linear].a, a, (size_t)n_k / 4 * sizeof(unsigned));
    memcpy(host_shown[turn][linear].b, b, (size_t)n_k / 8 * sizeof(unsigned));
    host_cuda_exchange(HOST_CUDA_SYNC, 0xffffffffu, 0, 0, line);
    for (int i = 0; i < 4; i++) {
        int m = row + i / 2 * 8, n = 2 * column + i % 2;
        float sum = c[i];

        for (int k = 0; k < n_k; k++) /* a product has 16 bits */
            sum = (float)((double)sum + host_bf16(warp[m % 8 * 4 + k % 8 / 2].a[m / 8 + k / 8 * 2], k % 2) *
                                            host_bf16(warp[n * 4 + k % 8 / 2].b[k / 8], k % 2));
        c[i] = sum;
    }
}

static inline void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    host_mma_half(c, a, b, 16, __LINE__);
}

static inline void mma_16x8x8_half(float (&c)[4], const unsigned (&a)[2], unsigned b)
{
    host_mma_half(c, a, &b, 8, __LINE__);
}

#endif
