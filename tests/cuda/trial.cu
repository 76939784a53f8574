/* Kernels that try the emulation itself (test_host_cuda.c). Their argument is not what it seems: lane 0 is an array of doubles. */
#include "tensor/cuda/mma.cuh"

FUNCTION double *numbers(const esper_cuda_lanes &lanes)
{
    return reinterpret_cast<double *>(const_cast<esper_lane *>(lanes.lane[0]));
}

template <class T> FUNCTION T warp_sum(T value)
{
#pragma unroll
    for (int with = 16; with > 0; with /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, with);
    return value;
}

/* numbers[block] = the sum of 1 .. threads, by shuffles and then through shared memory. */
ESPER_KERNEL_PLAIN(trial_sum, 1024)
{
    __shared__ double of_warp[32];
    double sum = warp_sum(static_cast<double>(threadIdx.x + 1));

    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < (blockDim.x + 31) / 32 ? of_warp[threadIdx.x] : 0;
        sum = warp_sum(sum);
    }
    if (threadIdx.x == 0)
        numbers(lanes)[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* Every kind of exchange: numbers[8 thread + k]. */
ESPER_KERNEL_PLAIN(trial_exchanges, 64)
{
    double *out = numbers(lanes) + 8 * threadIdx.x;
    int lane = static_cast<int>(threadIdx.x % 32);

    out[0] = __shfl_sync(0xffffffffu, lane, 5);
    out[1] = static_cast<double>(__shfl_down_sync(0xffffffffu, static_cast<float>(lane), 3));
    out[2] = __shfl_up_sync(0xffffffffu, static_cast<double>(lane), 3);
    out[3] = __shfl_xor_sync(0xffffffffu, lane, 1, 4);
    out[4] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    out[5] = __any_sync(0xffffffffu, lane == 7) + 2 * __all_sync(0xffffffffu, lane < 31);
    if (lane < 8)
        out[6] = __shfl_sync(0xffu, lane, 7 - lane);
    out[7] = __syncthreads_or(threadIdx.x == 40);
}

/* Shared memory that nobody has written to: declared, and of the launch. */
ESPER_KERNEL_PLAIN(trial_unwritten, 32)
{
    __shared__ float declared[8];
    ESPER_SHARED(float, given);

    numbers(lanes)[threadIdx.x] = static_cast<double>(threadIdx.x < 8 ? declared[threadIdx.x] : given[threadIdx.x]);
    declared[threadIdx.x % 8] = given[threadIdx.x] = 1;
}

/* The neighbour's number without waiting for it. */
ESPER_KERNEL_PLAIN(trial_race, 64)
{
    __shared__ float of[64];

    of[threadIdx.x] = static_cast<float>(threadIdx.x);
    numbers(lanes)[threadIdx.x] = static_cast<double>(of[(threadIdx.x + 1) % blockDim.x]);
}

ESPER_KERNEL_PLAIN(trial_hang, 64)
{
    if (threadIdx.x < 40)
        __syncthreads();
}

ESPER_KERNEL_PLAIN(trial_two_barriers, 64)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();
}

ESPER_KERNEL_PLAIN(trial_lost_lane, 32)
{
    if (threadIdx.x != 9)
        __syncwarp();
}

ESPER_KERNEL_PLAIN(trial_absent_source, 32)
{
    if (threadIdx.x < 8)
        numbers(lanes)[0] = __shfl_sync(0xffu, 1.0, 8);
}

ESPER_KERNEL_PLAIN(trial_crooked, 32)
{
    float *at = reinterpret_cast<float *>(numbers(lanes)) + threadIdx.x + 1;

    *reinterpret_cast<float4 *>(at) = make_float4(0, 1, 2, 3);
}

/* A warp multiplies a (16,K), its numbers[0..], by b (K,8), [128..]: by one product of TF32 to [192..], by three to [320..]. */
template <int K> FUNCTION void multiply(double *from)
{
    int row = threadIdx.x / 4 % 8, column = threadIdx.x % 4, warp = threadIdx.x / 32;
    unsigned a[K / 2], a_lo[K / 2], b[2], b_lo[2];
    float one[4] = {0, 0, 0, 0}, three[4] = {0, 0, 0, 0};

    from += warp * 512;
    for (int i = 0; i < K / 2; i++)
        tf32_split(static_cast<float>(from[(row + i % 2 * 8) * K + column + i / 2 * 4]), &a[i], &a_lo[i]);
    for (int i = 0; i < K / 4; i++)
        tf32_split(static_cast<float>(from[128 + (column + i * 4) * 8 + row]), &b[i], &b_lo[i]);
    if constexpr (K == 8) {
        mma_16x8x8(one, a, b);
        mma_3(three, a, a_lo, b, b_lo);
    } else {
        mma_16x8x4(one, a, b[0]);
        mma_3(three, a, a_lo, b[0], b_lo[0]);
    }
    for (int i = 0; i < 4; i++) {
        from[192 + (row + i / 2 * 8) * 8 + 2 * column + i % 2] = static_cast<double>(one[i]);
        from[320 + (row + i / 2 * 8) * 8 + 2 * column + i % 2] = static_cast<double>(three[i]);
    }
}

ESPER_KERNEL_PLAIN(trial_products_8, 64)
{
    multiply<8>(numbers(lanes));
}

ESPER_KERNEL_PLAIN(trial_products_4, 64)
{
    multiply<4>(numbers(lanes));
}
