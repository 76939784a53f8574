/* The guard's kernels: the scan, scaling of gradients, copies that sum what they copy, and spoiling one element.
 *
 * Written in what C and CUDA have in common, for nvcc, for NVRTC (no header is needed; scan_types.h stands before this
 * text there) and for the tests, which run it on the host with threads of their own making.
 *
 * Order is fixed everywhere: a thread takes the vectors thread, thread + stride, ... of its chunk, whatever their
 * alignment; threads and chunks are combined in trees that depend on their numbers alone. Only integers are added by
 * atomics. So a scan's bits do not change from run to run, nor with the device. */
#ifndef ESPER_GUARD_CUDA_SCAN_TYPES_H
#include "guard/cuda/scan_types.h"
#endif

#ifdef __CUDACC__
#define KERNEL     extern "C" __global__ void __launch_bounds__(GPU_THREADS, 4)
#define FUNCTION   static __device__ __forceinline__
#define LOAD16(p)  __ldcs((const uint4 *)(p)) /* read once: let it not push others out of the cache */
#define STORE16(p, v) __stcs((uint4 *)(p), (v))
#define COHERENT(p) __ldcg(p) /* what other blocks wrote in this launch */
#define ALL_LANES  0xffffffffu
#define ALIGNED16  __align__(16)
#define UNROLL     _Pragma("unroll")
#define KEEP_LOOP  _Pragma("unroll 1") /* where code would only grow */

typedef gpu_u64 any_u64; /* eight bytes of whatever there is */

FUNCTION double half_value(gpu_u32 bits) /* of a float16 */
{
    float value;

    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return (double)value;
}

FUNCTION gpu_u32 half_bits(float value) /* rounded to float16 */
{
    unsigned short bits;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#define CHECKSUM_STEP 0x9E3779B97F4A7C15ull
#define NO_INDEX      0xffffffffffffffffull
#define INFINITE      0x7ff0000000000000ll /* as bits */
#define NOT_A_NUMBER  0x7ff8000000000000ll

/* -------------------------------------------------------------------------------------------------- vectors of data */

/* The bits of infinity, below which finite magnitudes lie. */
FUNCTION gpu_u64 infinity_of(int dtype)
{
    return dtype == GPU_F32    ? 0x7f800000u
           : dtype == GPU_F16  ? 0x7c00u
           : dtype == GPU_BF16 ? 0x7f80u
                               : 0x7ff0000000000000ull;
}

FUNCTION gpu_u32 size_of(int dtype)
{
    return dtype == GPU_F64 ? 8 : dtype == GPU_F32 ? 4 : 2;
}

FUNCTION gpu_u32 word_of(uint4 vector, int k)
{
    return k == 0 ? vector.x : k == 1 ? vector.y : k == 2 ? vector.z : vector.w;
}

FUNCTION gpu_u64 long_of(uint4 vector, int k)
{
    return k == 0 ? vector.x | (gpu_u64)vector.y << 32 : vector.z | (gpu_u64)vector.w << 32;
}

FUNCTION void or_word(uint4 *vector, gpu_u32 k, gpu_u32 bits)
{
    vector->x |= k == 0 ? bits : 0;
    vector->y |= k == 1 ? bits : 0;
    vector->z |= k == 2 ? bits : 0;
    vector->w |= k == 3 ? bits : 0;
}

/* `bytes` from an address that is a multiple of 4, of 2, or odd; the rest of the vector is zero. */
FUNCTION uint4 load_pieces(const char *at, gpu_u32 bytes)
{
    gpu_u32 piece = (gpu_u64)at % 4 == 0 && bytes % 4 == 0 ? 4 : (gpu_u64)at % 2 == 0 && bytes % 2 == 0 ? 2 : 1;
    uint4 vector = {0, 0, 0, 0};

    KEEP_LOOP
    for (gpu_u32 b = 0; b < bytes; b += piece) {
        gpu_u32 bits = piece == 4   ? *(const gpu_u32 *)(at + b)
                       : piece == 2 ? *(const unsigned short *)(at + b)
                                    : *(const unsigned char *)(at + b);

        or_word(&vector, b / 4, bits << b % 4 * 8);
    }
    return vector;
}

FUNCTION void store_pieces(char *at, uint4 vector, gpu_u32 bytes)
{
    gpu_u32 piece = (gpu_u64)at % 4 == 0 && bytes % 4 == 0 ? 4 : (gpu_u64)at % 2 == 0 && bytes % 2 == 0 ? 2 : 1;

    KEEP_LOOP
    for (gpu_u32 b = 0; b < bytes; b += piece) {
        gpu_u32 bits = word_of(vector, (int)(b / 4)) >> b % 4 * 8;

        if (piece == 4)
            *(gpu_u32 *)(at + b) = bits;
        else if (piece == 2)
            *(unsigned short *)(at + b) = (unsigned short)bits;
        else
            *(unsigned char *)(at + b) = (unsigned char)bits;
    }
}

/* One word's share of a checksum; engine.h defines it. */
FUNCTION gpu_u64 mix(gpu_u64 word, gpu_u64 index)
{
    gpu_u64 t = word ^ index * CHECKSUM_STEP;

    return (t & 0xffffffffu) * (t >> 32) + t;
}

FUNCTION gpu_u64 mix_vector(uint4 vector, gpu_u64 index)
{
    return mix(long_of(vector, 0), index) + mix(long_of(vector, 1), index + 1);
}

/* -------------------------------------------------------------------------------------------- what a thread gathers */

/* Largest and smallest are kept as bits: those of magnitudes are in the order of their values. The smallest is kept
 * less 1, so that zero, which does not count, comes out above all others; that is also what "none yet" looks like. */
typedef struct thread_sums {
    double  sum, sum_squares;
    gpu_u64 largest, smallest_less_1;
    gpu_u64 first_bad, checksum;
    gpu_u32 n_nan, n_pos_inf, n_neg_inf, n_zero, n_tiny;
} thread_sums;

FUNCTION gpu_u64 larger(int dtype, gpu_u64 a, gpu_u64 b)
{
    if (dtype == GPU_F64)
        return a > b ? a : b;
    return (gpu_u32)a > (gpu_u32)b ? (gpu_u32)a : (gpu_u32)b;
}

FUNCTION gpu_u64 smaller(int dtype, gpu_u64 a, gpu_u64 b)
{
    if (dtype == GPU_F64)
        return a < b ? a : b;
    return (gpu_u32)a < (gpu_u32)b ? (gpu_u32)a : (gpu_u32)b;
}

FUNCTION gpu_u64 less_1(int dtype, gpu_u64 magnitude)
{
    return dtype == GPU_F64 ? magnitude - 1 : (gpu_u32)magnitude - 1;
}

/* Element k of a vector: its bits, and its value. */
FUNCTION gpu_u64 bits_of(int dtype, uint4 vector, int k)
{
    if (dtype == GPU_F64)
        return long_of(vector, k);
    if (dtype == GPU_F32)
        return word_of(vector, k);
    return k % 2 == 0 ? word_of(vector, k / 2) & 0xffffu : word_of(vector, k / 2) >> 16;
}

FUNCTION double value_of(int dtype, gpu_u64 bits)
{
    if (dtype == GPU_F64)
        return __longlong_as_double((long long)bits);
    if (dtype == GPU_F32)
        return (double)__uint_as_float((gpu_u32)bits);
    if (dtype == GPU_BF16)
        return (double)__uint_as_float((gpu_u32)bits << 16);
    return half_value((gpu_u32)bits);
}

FUNCTION gpu_u64 sign_of(int dtype)
{
    return dtype == GPU_F64 ? 0x8000000000000000ull : dtype == GPU_F32 ? 0x80000000u : 0x8000u;
}

/* A finite element's share of the sums. */
FUNCTION void add_value(int dtype, thread_sums *sums, gpu_u64 bits)
{
    double value = value_of(dtype, bits);

    sums->sum += value;
    sums->sum_squares = fma(value, value, sums->sum_squares);
}

/* A finite element's share of what is about small ones. */
FUNCTION void count_small(int dtype, thread_sums *sums, gpu_u64 magnitude, gpu_u64 tiny)
{
    sums->n_zero += magnitude == 0;
    sums->n_tiny += magnitude < tiny;
    sums->smallest_less_1 = smaller(dtype, sums->smallest_less_1, less_1(dtype, magnitude));
}

/* An element that may be anything. */
FUNCTION void take_any(int dtype, thread_sums *sums, gpu_u64 bits, gpu_u64 tiny, gpu_u64 index)
{
    gpu_u64 magnitude = bits & ~sign_of(dtype);

    if (magnitude < infinity_of(dtype)) {
        count_small(dtype, sums, magnitude, tiny);
        sums->largest = larger(dtype, sums->largest, magnitude);
        add_value(dtype, sums, bits);
        return;
    }
    sums->n_nan += magnitude > infinity_of(dtype);
    sums->n_pos_inf += bits == infinity_of(dtype);
    sums->n_neg_inf += bits == (infinity_of(dtype) | sign_of(dtype));
    if (index < sums->first_bad)
        sums->first_bad = index;
}

/* A whole vector, whose first element has this index. Its extremes tell what it needs: most vectors hold nothing small
 * and nothing bad, and cost the least. */
FUNCTION void take_vector(int dtype, thread_sums *sums, uint4 vector, gpu_u64 tiny, gpu_u64 index)
{
    const int n = GPU_VECTOR / (int)size_of(dtype);
    gpu_u64 high = 0, low = infinity_of(dtype);

    UNROLL
    for (int k = 0; k < n; k++) {
        gpu_u64 magnitude = bits_of(dtype, vector, k) & ~sign_of(dtype);

        high = larger(dtype, high, magnitude);
        low = smaller(dtype, low, magnitude);
    }
    if (high >= infinity_of(dtype)) {
        KEEP_LOOP
        for (int k = 0; k < n; k++)
            take_any(dtype, sums, bits_of(dtype, vector, k), tiny, index + (gpu_u64)k);
        return;
    }
    if (low < tiny || low == 0) {
        UNROLL
        for (int k = 0; k < n; k++)
            count_small(dtype, sums, bits_of(dtype, vector, k) & ~sign_of(dtype), tiny);
    } else {
        sums->smallest_less_1 = smaller(dtype, sums->smallest_less_1, less_1(dtype, low));
    }
    sums->largest = larger(dtype, sums->largest, high);
    UNROLL
    for (int k = 0; k < n; k++)
        add_value(dtype, sums, bits_of(dtype, vector, k));
}

/* -------------------------------------------------------------------------------------------------- a chunk's share */

/* The vectors of a chunk that lie whole within the tensor, from `first` on, n of them; and those of this thread. */
typedef struct chunk_share {
    const char *at;
    gpu_u64     first;
    gpu_u32     n;
    gpu_u32     tail; /* elements after the last of them, of the tensor's last vector; this chunk's to take */
    gpu_u32     thread, stride;
} chunk_share;

FUNCTION chunk_share share_of(const gpu_tensor *tensor, gpu_u64 first, gpu_u32 chunk_vectors, gpu_u32 thread,
                              gpu_u32 stride)
{
    gpu_u32 in_vector = GPU_VECTOR / size_of((int)tensor->dtype);
    gpu_u64 whole = tensor->count / in_vector, left = whole > first ? whole - first : 0;
    chunk_share share;

    share.at = (const char *)tensor->data + first * GPU_VECTOR;
    share.first = first;
    share.n = left < chunk_vectors ? (gpu_u32)left : chunk_vectors;
    share.tail = left < chunk_vectors ? (gpu_u32)(tensor->count % in_vector) : 0;
    share.thread = thread;
    share.stride = stride;
    return share;
}

/* One vector of the share. dtype and with_sum are constants where this and scan_as are called: each call becomes a loop
 * of its own. */
FUNCTION void take_at(int dtype, int with_sum, const chunk_share *share, gpu_u32 at, uint4 vector, gpu_u64 tiny,
                      thread_sums *sums)
{
    take_vector(dtype, sums, vector, tiny, (share->first + at) * (GPU_VECTOR / size_of(dtype)));
    if (with_sum)
        sums->checksum += mix_vector(vector, (share->first + at) * 2);
}

/* The elements after the last whole vector. */
FUNCTION void take_tail(int dtype, int with_sum, const chunk_share *share, gpu_u64 tiny, thread_sums *sums)
{
    const gpu_u32 n = GPU_VECTOR / size_of(dtype), bytes = share->tail * size_of(dtype);
    const gpu_u64 at = share->first + share->n;
    uint4 vector = load_pieces(share->at + (gpu_u64)share->n * GPU_VECTOR, bytes);

    KEEP_LOOP
    for (gpu_u32 k = 0; k < share->tail; k++)
        take_any(dtype, sums, bits_of(dtype, vector, (int)k), tiny, at * n + k);
    if (with_sum) {
        sums->checksum += mix(long_of(vector, 0), at * 2);
        if (bytes > 8)
            sums->checksum += mix(long_of(vector, 1), at * 2 + 1);
    }
}

FUNCTION void scan_as(int dtype, int with_sum, const chunk_share *share, gpu_u64 tiny, thread_sums *sums)
{
    const gpu_u32 stride = share->stride, n = share->n;
    const int aligned = (gpu_u64)share->at % GPU_VECTOR == 0;
    gpu_u32 v = share->thread;

    for (; aligned && v + (GPU_BATCH - 1) * stride < n; v += GPU_BATCH * stride) {
        uint4 batch[GPU_BATCH];

        UNROLL
        for (gpu_u32 b = 0; b < GPU_BATCH; b++)
            batch[b] = LOAD16(share->at + (gpu_u64)(v + b * stride) * GPU_VECTOR);
        UNROLL
        for (gpu_u32 b = 0; b < GPU_BATCH; b++)
            take_at(dtype, with_sum, share, v + b * stride, batch[b], tiny, sums);
    }
    for (; v < n; v += stride) {
        const char *from = share->at + (gpu_u64)v * GPU_VECTOR;

        take_at(dtype, with_sum, share, v, aligned ? LOAD16(from) : load_pieces(from, GPU_VECTOR), tiny, sums);
    }
    if (share->tail != 0 && n % stride == share->thread)
        take_tail(dtype, with_sum, share, tiny, sums);
}

/* The same for all types from here on. */
FUNCTION gpu_record record_of(int dtype, const thread_sums *sums)
{
    gpu_record record;

    record.sum = sums->sum;
    record.sum_squares = sums->sum_squares;
    record.n_nan = sums->n_nan;
    record.n_pos_inf = sums->n_pos_inf;
    record.n_neg_inf = sums->n_neg_inf;
    record.first_bad = sums->first_bad;
    record.n_zero = sums->n_zero;
    record.n_tiny = sums->n_tiny;
    record.max_abs = value_of(dtype, sums->largest);
    record.min_abs = sums->smallest_less_1 >= infinity_of(dtype) ? __longlong_as_double(INFINITE)
                                                                 : value_of(dtype, sums->smallest_less_1 + 1);
    record.checksum = sums->checksum;
    return record;
}

FUNCTION gpu_record scan_share(int with_sum, const gpu_tensor *tensor, chunk_share share, const gpu_u64 *tiny)
{
    thread_sums sums = {0, 0, 0, NO_INDEX, NO_INDEX, 0, 0, 0, 0, 0, 0};

    switch (tensor->dtype) {
    case GPU_F32:
        scan_as(GPU_F32, with_sum, &share, tiny[GPU_F32], &sums);
        return record_of(GPU_F32, &sums);
    case GPU_F16:
        scan_as(GPU_F16, with_sum, &share, tiny[GPU_F16], &sums);
        return record_of(GPU_F16, &sums);
    case GPU_BF16:
        scan_as(GPU_BF16, with_sum, &share, tiny[GPU_BF16], &sums);
        return record_of(GPU_BF16, &sums);
    default:
        scan_as(GPU_F64, with_sum, &share, tiny[GPU_F64], &sums);
        return record_of(GPU_F64, &sums);
    }
}

/* ------------------------------------------------------------------------------------------------ combining records */

FUNCTION double down_double(double value, int distance)
{
    return __longlong_as_double(__shfl_down_sync(ALL_LANES, __double_as_longlong(value), distance));
}

FUNCTION gpu_u64 down_long(gpu_u64 value, int distance)
{
    return (gpu_u64)__shfl_down_sync(ALL_LANES, (long long)value, distance);
}

FUNCTION gpu_record empty_record(void)
{
    gpu_record record = {0, 0, 0, 0, 0, NO_INDEX, 0, 0, 0, __longlong_as_double(INFINITE), 0};

    return record;
}

FUNCTION void add_record(gpu_record *to, const gpu_record *from)
{
    to->sum += from->sum;
    to->sum_squares += from->sum_squares;
    to->n_nan += from->n_nan;
    to->n_pos_inf += from->n_pos_inf;
    to->n_neg_inf += from->n_neg_inf;
    to->first_bad = from->first_bad < to->first_bad ? from->first_bad : to->first_bad;
    to->n_zero += from->n_zero;
    to->n_tiny += from->n_tiny;
    to->max_abs = from->max_abs > to->max_abs ? from->max_abs : to->max_abs;
    to->min_abs = from->min_abs < to->min_abs ? from->min_abs : to->min_abs;
    to->checksum += from->checksum;
}

/* The warp's records, combined in thread 0. Bad elements are rare, so their counts travel only when there are any. */
FUNCTION void combine_warp(int with_sum, gpu_record *record)
{
    const int any_bad = __any_sync(ALL_LANES, record->first_bad != NO_INDEX);
    const int any_tiny = __any_sync(ALL_LANES, (record->n_zero | record->n_tiny) != 0);

    KEEP_LOOP
    for (int d = 16; d > 0; d /= 2) {
        gpu_record other = empty_record();

        other.sum = down_double(record->sum, d);
        other.sum_squares = down_double(record->sum_squares, d);
        other.max_abs = down_double(record->max_abs, d);
        other.min_abs = down_double(record->min_abs, d);
        if (any_tiny) {
            other.n_zero = down_long(record->n_zero, d);
            other.n_tiny = down_long(record->n_tiny, d);
        }
        if (any_bad) {
            other.n_nan = down_long(record->n_nan, d);
            other.n_pos_inf = down_long(record->n_pos_inf, d);
            other.n_neg_inf = down_long(record->n_neg_inf, d);
            other.first_bad = down_long(record->first_bad, d);
        }
        if (with_sum)
            other.checksum = down_long(record->checksum, d);
        add_record(record, &other);
    }
}

/* The block's records, combined in thread 0. `shared` has room for one record of each warp. */
FUNCTION void combine_block(int with_sum, gpu_record *record, gpu_record *shared)
{
    const gpu_u32 in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;

    combine_warp(with_sum, record);
    __syncthreads(); /* for those who read `shared` before */
    if (in_warp == 0)
        shared[warp] = *record;
    __syncthreads();
    if (warp == 0) {
        *record = in_warp < GPU_WARPS ? shared[in_warp] : empty_record();
        combine_warp(with_sum, record);
    }
}

FUNCTION gpu_record load_record(const gpu_record *from)
{
    gpu_record record;

    record.sum = COHERENT(&from->sum);
    record.sum_squares = COHERENT(&from->sum_squares);
    record.n_nan = COHERENT(&from->n_nan);
    record.n_pos_inf = COHERENT(&from->n_pos_inf);
    record.n_neg_inf = COHERENT(&from->n_neg_inf);
    record.first_bad = COHERENT(&from->first_bad);
    record.n_zero = COHERENT(&from->n_zero);
    record.n_tiny = COHERENT(&from->n_tiny);
    record.max_abs = COHERENT(&from->max_abs);
    record.min_abs = COHERENT(&from->min_abs);
    record.checksum = COHERENT(&from->checksum);
    return record;
}

/* ------------------------------------------------------------------------------------- sums of groups, by one warp */

FUNCTION gpu_sums empty_sums(void)
{
    gpu_sums sums = {0, __longlong_as_double(INFINITE), 0, 0, 0, 0, 0, 0, 0, 0, GPU_NONE, 0};

    return sums;
}

FUNCTION void add_sums(gpu_sums *to, const gpu_sums *from)
{
    to->sum_squares += from->sum_squares;
    to->min_norm = from->min_norm < to->min_norm ? from->min_norm : to->min_norm;
    to->max_norm = from->max_norm > to->max_norm ? from->max_norm : to->max_norm;
    to->n_nan += from->n_nan;
    to->n_inf += from->n_inf;
    to->n_zero += from->n_zero;
    to->n_vanishing += from->n_vanishing;
    to->n_exploding += from->n_exploding;
    to->n_not_finite += from->n_not_finite;
    to->n_bad += from->n_bad;
    to->first_bad = from->first_bad < to->first_bad ? from->first_bad : to->first_bad;
}

/* Of the first 2 * half threads, in thread 0. What most groups have none of travels only when there is some. */
FUNCTION void combine_sums(gpu_sums *sums, int half)
{
    const int any_odd = __any_sync(ALL_LANES, (sums->n_not_finite | sums->n_vanishing | sums->n_exploding) != 0);

    KEEP_LOOP
    for (int d = half; d > 0; d /= 2) {
        gpu_sums other = empty_sums();

        other.sum_squares = down_double(sums->sum_squares, d);
        other.min_norm = down_double(sums->min_norm, d);
        other.max_norm = down_double(sums->max_norm, d);
        other.n_zero = down_long(sums->n_zero, d);
        if (any_odd) {
            other.n_nan = down_long(sums->n_nan, d);
            other.n_inf = down_long(sums->n_inf, d);
            other.n_vanishing = __shfl_down_sync(ALL_LANES, sums->n_vanishing, d);
            other.n_exploding = __shfl_down_sync(ALL_LANES, sums->n_exploding, d);
            other.n_not_finite = __shfl_down_sync(ALL_LANES, sums->n_not_finite, d);
            other.n_bad = __shfl_down_sync(ALL_LANES, sums->n_bad, d);
            other.first_bad = __shfl_down_sync(ALL_LANES, sums->first_bad, d);
        }
        add_sums(sums, &other);
    }
}

FUNCTION gpu_sums load_sums(const gpu_sums *from)
{
    gpu_sums sums;

    sums.sum_squares = COHERENT(&from->sum_squares);
    sums.min_norm = COHERENT(&from->min_norm);
    sums.max_norm = COHERENT(&from->max_norm);
    sums.n_nan = COHERENT(&from->n_nan);
    sums.n_inf = COHERENT(&from->n_inf);
    sums.n_zero = COHERENT(&from->n_zero);
    sums.n_vanishing = COHERENT(&from->n_vanishing);
    sums.n_exploding = COHERENT(&from->n_exploding);
    sums.n_not_finite = COHERENT(&from->n_not_finite);
    sums.n_bad = COHERENT(&from->n_bad);
    sums.first_bad = COHERENT(&from->first_bad);
    sums.unused = 0;
    return sums;
}

/* Thread 0's sums, a word by each thread: a single burst where they go to the host. */
FUNCTION void store_sums(gpu_sums *to, const gpu_sums *sums)
{
    __shared__ gpu_sums staged;
    const gpu_u32 in_warp = threadIdx.x % 32;

    __syncwarp();
    if (in_warp == 0)
        staged = *sums;
    __syncwarp();
    if (in_warp < sizeof(gpu_sums) / sizeof(any_u64))
        ((any_u64 *)to)[in_warp] = ((const any_u64 *)&staged)[in_warp];
    __syncwarp();
}

/* The verdict, the norm of all gradients, and what follows from it; one thread. */
FUNCTION void finish_scan(const gpu_scan_args *args)
{
    gpu_total total = {0, 1, 0, 0};

    KEEP_LOOP
    for (gpu_u32 role = 0; role < GPU_N_ROLES; role++) {
        const gpu_sums *sums = args->sums + args->first_role + role;

        if ((args->roles >> role & 1) == 0)
            continue;
        if (COHERENT(&sums->n_nan) != 0)
            total.bad |= role == GPU_ROLE_GRAD ? GPU_BAD_NAN_GRAD : GPU_BAD_NAN_STATE;
        if (COHERENT(&sums->n_inf) != 0)
            total.bad |= role == GPU_ROLE_GRAD ? GPU_BAD_INF_GRAD : GPU_BAD_INF_STATE;
        if (role == GPU_ROLE_GRAD)
            total.grad_norm = sqrt(COHERENT(&sums->sum_squares));
    }
    if ((total.bad & GPU_BAD_NAN_GRAD) != 0)
        total.grad_norm = __longlong_as_double(NOT_A_NUMBER);
    else if ((total.bad & GPU_BAD_INF_GRAD) != 0)
        total.grad_norm = __longlong_as_double(INFINITE);
    if (args->clip_norm > 0 && total.grad_norm < __longlong_as_double(INFINITE)) { /* as esper_guard_clip_factor */
        double factor = args->clip_norm / (total.grad_norm + 1e-6);

        total.clip_factor = factor < 1 ? factor : 1;
    }
    *args->total = total;
    *args->told = total;
    if (args->skip_flag != 0)
        *args->skip_flag = total.bad;
}

/* Counts the caller's warp as arrived, after all that it wrote; true for the last of n, which sets the counter to 0
 * again and may read what the others wrote. */
FUNCTION int arrive(gpu_u32 *counter, gpu_u32 n)
{
    gpu_u32 is_last = 0;

    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        is_last = atomicAdd(counter, 1u) == n - 1;
        if (is_last) {
            *counter = 0;
            __threadfence();
        }
    }
    is_last = __shfl_sync(ALL_LANES, is_last, 0);
    __syncwarp(); /* what thread 0 may read from here on, all may */
    return (int)is_last;
}

/* A node is done, thread 0 has its sums: the warp goes up from there as far as it is the last. What the host is told is
 * written after the arrival, which would otherwise wait until it has got there. */
FUNCTION void finish_node(const gpu_scan_args *args, gpu_u32 at, gpu_sums sums)
{
    KEEP_LOOP
    for (;;) {
        const gpu_node node = args->nodes[at];
        int is_last = 1;

        if (node.n_siblings > 1) {
            store_sums(args->sums + at, &sums);
            is_last = arrive(args->gathered + node.parent, node.n_siblings);
        }
        if (node.result != GPU_NONE)
            store_sums(args->results + node.result, &sums);
        if (!is_last)
            return;
        if (node.parent == GPU_NONE)
            break;
        if (node.n_siblings > 1) {
            sums = empty_sums();
            KEEP_LOOP
            for (gpu_u32 k = threadIdx.x % 32; k < node.n_siblings; k += 32) {
                gpu_sums sibling = load_sums(args->sums + node.first + k);

                add_sums(&sums, &sibling);
            }
            combine_sums(&sums, 16);
        }
        at = node.parent;
    }
    if (args->total == 0)
        return;
    store_sums(args->sums + at, &sums);
    if (arrive(args->n_done, args->n_roles) && threadIdx.x % 32 == 0)
        finish_scan(args);
}

/* --------------------------------------------------------------------------------------------------------- the scan */

/* As esper_report_stat on the host. */
FUNCTION gpu_stat stat_of(const gpu_record *record, gpu_u64 count)
{
    const double infinite = __longlong_as_double(INFINITE);
    const gpu_u64 n_inf = record->n_pos_inf + record->n_neg_inf, n_finite = count - record->n_nan - n_inf;
    double norm = sqrt(record->sum_squares);
    gpu_stat stat;

    if (record->sum_squares < 1e-280 && norm < record->max_abs)
        norm = record->max_abs;
    stat.n_nan = record->n_nan;
    stat.n_pos_inf = record->n_pos_inf;
    stat.n_neg_inf = record->n_neg_inf;
    stat.first_bad = record->first_bad;
    stat.n_zero = record->n_zero;
    stat.n_tiny = record->n_tiny;
    stat.norm = record->n_nan != 0 ? __longlong_as_double(NOT_A_NUMBER) : n_inf != 0 ? infinite : norm;
    stat.mean = n_finite != 0 ? record->sum / (double)n_finite : 0;
    stat.max_abs = record->max_abs;
    stat.min_abs = record->min_abs < infinite ? record->min_abs : 0;
    stat.checksum = record->checksum;
    stat.scanned = 1;
    stat.norm_overflow = n_finite == count && !(norm < infinite);
    return stat;
}

/* As esper_scan_sums_take on the host. */
FUNCTION gpu_sums sums_of(const gpu_scan_args *args, const gpu_record *record, const gpu_stat *stat, gpu_u32 index)
{
    const int is_finite = stat->norm < __longlong_as_double(INFINITE);
    const int is_bad = record->first_bad != NO_INDEX;
    gpu_sums sums = empty_sums();

    sums.sum_squares = record->sum_squares;
    sums.n_zero = record->n_zero;
    sums.n_nan = record->n_nan;
    sums.n_inf = record->n_pos_inf + record->n_neg_inf;
    sums.n_vanishing = is_finite && stat->norm < args->vanishing;
    sums.n_exploding = !is_finite || stat->norm > args->exploding;
    sums.n_not_finite = !is_finite;
    sums.n_bad = is_bad;
    sums.first_bad = is_bad ? index : GPU_NONE;
    if (is_finite)
        sums.min_norm = sums.max_norm = stat->norm;
    return sums;
}

/* Tells the host the statistics of a unit's tensors. A thread finishes each; then all write what they say together, so
 * that statistics that lie side by side go out in long bursts. */
FUNCTION void tell_stats(const gpu_scan_args *args, gpu_u32 first, gpu_u32 n, const gpu_record *records)
{
    __shared__ ALIGNED16 gpu_stat stats[GPU_WARPS];
    const gpu_u32 in_warp = threadIdx.x % 32, words = sizeof(gpu_stat) / GPU_VECTOR;

    if (in_warp < n)
        stats[in_warp] = stat_of(&records[in_warp], args->tensors[first + in_warp].count);
    __syncwarp();
    for (gpu_u32 w = in_warp; w < n * words; w += 32)
        STORE16((uint4 *)(args->stats + args->tensors[first + w / words].index) + w % words,
                ((const uint4 *)stats)[w]);
}

/* Adds a unit's tensors up and goes on from there. */
FUNCTION void finish_unit(const gpu_scan_args *args, gpu_u32 first, gpu_u32 n, const gpu_record *records)
{
    const gpu_u32 in_warp = threadIdx.x % 32;
    gpu_sums sums = empty_sums();

    if (in_warp < n) {
        const gpu_stat stat = stat_of(&records[in_warp], args->tensors[first + in_warp].count);

        sums = sums_of(args, &records[in_warp], &stat, args->tensors[first + in_warp].index);
    }
    if (n > 1)
        combine_sums(&sums, GPU_WARPS / 2);
    finish_node(args, args->tensors[first].node, sums);
}

/* Thread 0 has the record of a chunk. The block that brings a tensor's last one combines them all, in their order; in
 * it thread 0 then has the tensor's, and true is returned. */
FUNCTION int finish_chunk(int with_sum, const gpu_scan_args *args, const gpu_tensor *tensor, gpu_block block,
                          gpu_record *record, gpu_record *shared)
{
    __shared__ gpu_u32 is_last;
    const gpu_record *partials = args->partials + tensor->first_partial;

    if (threadIdx.x == 0) {
        args->partials[tensor->first_partial + block.chunk] = *record;
        __threadfence();
        is_last = atomicAdd(&args->arrived[block.tensor], 1u) == tensor->n_chunks - 1;
    }
    __syncthreads();
    if (!is_last)
        return 0;
    __threadfence();
    *record = empty_record();
    for (gpu_u32 c = threadIdx.x; c < tensor->n_chunks; c += GPU_THREADS) {
        gpu_record partial = load_record(partials + c);

        add_record(record, &partial);
    }
    if (tensor->n_chunks > 32)
        combine_block(with_sum, record, shared);
    else if (threadIdx.x < 32) /* they are all here */
        combine_warp(with_sum, record);
    if (threadIdx.x == 0)
        args->arrived[block.tensor] = 0;
    return 1;
}

/* Says which scan this is. One block does so, when it begins: the host looks when all are done, as it is the event behind
 * the launch that tells it so. No other thread waits for this one, nor does it wait for others. */
FUNCTION void tell_mark(const gpu_scan_args *args)
{
    const gpu_u64 number = *args->n_scans + 1;
    uint4 mark;

    mark.x = (gpu_u32)number;
    mark.y = (gpu_u32)(number >> 32);
    mark.z = args->roles;
    mark.w = args->tag;
    *args->n_scans = number;
    STORE16(args->mark, mark);
}

FUNCTION void scan_block(int with_sum, const gpu_scan_args *args)
{
    __shared__ gpu_record shared[GPU_WARPS];
    const gpu_block block = args->blocks[blockIdx.x];
    const int is_pack = (block.chunk & GPU_PACK) != 0;
    const gpu_u32 in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
    const gpu_u32 n = is_pack ? block.chunk & ~GPU_PACK : 1;
    const gpu_tensor *tensor = args->tensors + block.tensor + (is_pack && warp < n ? warp : 0);

    if (blockIdx.x == 0 && threadIdx.x == GPU_THREADS - 1)
        tell_mark(args);
    if ((args->roles >> tensor->role & 1) == 0)
        return;
    if (!is_pack || warp < n) {
        chunk_share share = share_of(tensor, is_pack ? 0 : (gpu_u64)block.chunk * args->chunk_vectors,
                                     args->chunk_vectors, is_pack ? in_warp : threadIdx.x, is_pack ? 32 : GPU_THREADS);
        gpu_record record = scan_share(with_sum, tensor, share, args->tiny);

        if (is_pack)
            combine_warp(with_sum, &record);
        else
            combine_block(with_sum, &record, shared);
        if (!is_pack && tensor->n_chunks > 1 && !finish_chunk(with_sum, args, tensor, block, &record, shared))
            return;
        if (is_pack ? in_warp == 0 : threadIdx.x == 0)
            shared[is_pack ? warp : 0] = record;
    }
    __syncthreads();
    if (warp == 0)
        finish_unit(args, block.tensor, n, shared);
    else if (warp == 1) /* another one, so that the first need not wait until the host has them */
        tell_stats(args, block.tensor, n, shared);
}

KERNEL esper_guard_scan_plain(const gpu_scan_args args)
{
    scan_block(0, &args);
}

KERNEL esper_guard_scan_summed(const gpu_scan_args args)
{
    scan_block(1, &args);
}

/* ------------------------------------------------------------------------------------------------ scaling gradients */

FUNCTION gpu_u32 brain_bits(float value) /* rounded to bfloat16, to even; NaN stays NaN */
{
    gpu_u32 bits = __float_as_uint(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* A float is multiplied as a float, a double as a double; the small types as floats, then rounded. */
FUNCTION gpu_u64 scaled(int dtype, gpu_u64 bits, double factor)
{
    if (dtype == GPU_F64)
        return (gpu_u64)__double_as_longlong(value_of(GPU_F64, bits) * factor);
    if (dtype == GPU_F32)
        return __float_as_uint(__uint_as_float((gpu_u32)bits) * (float)factor);
    if (dtype == GPU_BF16)
        return brain_bits(__uint_as_float((gpu_u32)bits << 16) * (float)factor);
    return half_bits((float)half_value((gpu_u32)bits) * (float)factor);
}

FUNCTION uint4 scaled_vector(int dtype, uint4 vector, double factor)
{
    const int n = GPU_VECTOR / (int)size_of(dtype);
    uint4 result = {0, 0, 0, 0};

    UNROLL
    for (int k = 0; k < n; k++) {
        gpu_u64 bits = scaled(dtype, bits_of(dtype, vector, k), factor);

        if (dtype == GPU_F64) {
            or_word(&result, (gpu_u32)k * 2, (gpu_u32)bits);
            or_word(&result, (gpu_u32)k * 2 + 1, (gpu_u32)(bits >> 32));
        } else if (dtype == GPU_F32) {
            or_word(&result, (gpu_u32)k, (gpu_u32)bits);
        } else {
            or_word(&result, (gpu_u32)k / 2, (gpu_u32)bits << k % 2 * 16);
        }
    }
    return result;
}

FUNCTION void scale_as(int dtype, chunk_share share, double factor)
{
    char *at = (char *)(gpu_u64)share.at;
    const int aligned = (gpu_u64)at % GPU_VECTOR == 0;

    for (gpu_u32 v = share.thread; v < share.n; v += GPU_BATCH * share.stride) {
        uint4 batch[GPU_BATCH];

        UNROLL
        for (int b = 0; b < GPU_BATCH; b++) {
            char *from = at + ((gpu_u64)v + (gpu_u32)b * share.stride) * GPU_VECTOR;

            if (v + (gpu_u32)b * share.stride < share.n)
                batch[b] = aligned ? *(const uint4 *)from : load_pieces(from, GPU_VECTOR);
        }
        UNROLL
        for (int b = 0; b < GPU_BATCH; b++) {
            char *to = at + ((gpu_u64)v + (gpu_u32)b * share.stride) * GPU_VECTOR;

            if (v + (gpu_u32)b * share.stride >= share.n)
                continue;
            batch[b] = scaled_vector(dtype, batch[b], factor);
            if (aligned)
                *(uint4 *)to = batch[b];
            else
                store_pieces(to, batch[b], GPU_VECTOR);
        }
    }
    if (share.tail != 0 && share.n % share.stride == share.thread) {
        char *last = at + (gpu_u64)share.n * GPU_VECTOR;
        gpu_u32 bytes = share.tail * size_of(dtype);

        store_pieces(last, scaled_vector(dtype, load_pieces(last, bytes), factor), bytes);
    }
}

KERNEL esper_guard_scale(const gpu_scale_args args)
{
    const double factor = args.total != 0 ? args.total->clip_factor : args.factor;
    const gpu_block block = args.blocks[blockIdx.x];
    const int is_pack = (block.chunk & GPU_PACK) != 0;
    const gpu_u32 in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;

    if (factor == 1 || (is_pack && warp >= (block.chunk & ~GPU_PACK)))
        return;
    const gpu_tensor tensor = args.tensors[is_pack ? block.tensor + warp : block.tensor];
    chunk_share share = share_of(&tensor, is_pack ? 0 : (gpu_u64)block.chunk * args.chunk_vectors, args.chunk_vectors,
                                 is_pack ? in_warp : threadIdx.x, is_pack ? 32 : GPU_THREADS);

    switch (tensor.dtype) {
    case GPU_F32:
        scale_as(GPU_F32, share, factor);
        break;
    case GPU_F16:
        scale_as(GPU_F16, share, factor);
        break;
    case GPU_BF16:
        scale_as(GPU_BF16, share, factor);
        break;
    default:
        scale_as(GPU_F64, share, factor);
    }
}

/* ----------------------------------------------------------------------------------------------------------- copies */

enum { COPY_GATHER, COPY_SCATTER, COPY_CHECKSUM };

/* Adds the threads' sums to a word in device memory: of integers, so in any order. */
FUNCTION void add_checksums(gpu_u64 sum, gpu_u64 *to)
{
    __shared__ gpu_u64 sums[GPU_WARPS];
    const gpu_u32 in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;

    for (int d = 16; d > 0; d /= 2)
        sum += down_long(sum, d);
    if (in_warp == 0)
        sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < GPU_WARPS; w++)
        sum += sums[w];
    atomicAdd(to, sum);
}

/* How many of a vector's bytes at `at` are among the first `bytes`. */
FUNCTION gpu_u32 bytes_at(gpu_u64 bytes, gpu_u64 at)
{
    return at >= bytes ? 0 : bytes - at < GPU_VECTOR ? (gpu_u32)(bytes - at) : GPU_VECTOR;
}

/* A part reaches to the next multiple of 256 bytes in the arena; beyond its tensor's bytes there are zeros. */
FUNCTION void copy_block(int way, const gpu_copy_args *args)
{
    const gpu_block block = args->blocks[blockIdx.x];
    const gpu_part part = args->parts[block.tensor];
    const gpu_u64 first = (gpu_u64)block.chunk * args->chunk_vectors;
    const gpu_u64 all = (part.bytes + 255) / 256 * (256 / GPU_VECTOR);
    const gpu_u32 n = all - first < args->chunk_vectors ? (gpu_u32)(all - first) : args->chunk_vectors;
    const int aligned = part.data % GPU_VECTOR == 0;
    char *data = (char *)part.data + first * GPU_VECTOR, *arena = args->arena + part.offset + first * GPU_VECTOR;
    const gpu_u64 bytes = part.bytes - first * GPU_VECTOR; /* of the tensor from here on; not below 0, as chunks
                                                            * are multiples of 256 bytes */
    const gpu_u64 word = (part.offset + first * GPU_VECTOR) / 8;
    gpu_u64 sum = 0;

    for (gpu_u32 v = threadIdx.x; v < n; v += GPU_BATCH * GPU_THREADS) {
        uint4 batch[GPU_BATCH];

        UNROLL
        for (int b = 0; b < GPU_BATCH; b++) {
            gpu_u64 at = ((gpu_u64)v + (gpu_u32)b * GPU_THREADS) * GPU_VECTOR;

            if (v + (gpu_u32)b * GPU_THREADS >= n)
                continue;
            if (way == COPY_SCATTER)
                batch[b] = LOAD16(arena + at);
            else if (aligned && at + GPU_VECTOR <= bytes)
                batch[b] = LOAD16(data + at);
            else
                batch[b] = load_pieces(data + at, bytes_at(bytes, at));
        }
        UNROLL
        for (int b = 0; b < GPU_BATCH; b++) {
            gpu_u64 at = ((gpu_u64)v + (gpu_u32)b * GPU_THREADS) * GPU_VECTOR;

            if (v + (gpu_u32)b * GPU_THREADS >= n)
                continue;
            sum += mix_vector(batch[b], word + at / 8);
            if (way == COPY_GATHER)
                STORE16(arena + at, batch[b]);
            else if (way == COPY_SCATTER && aligned && at + GPU_VECTOR <= bytes)
                STORE16(data + at, batch[b]);
            else if (way == COPY_SCATTER && at < bytes)
                store_pieces(data + at, batch[b], bytes_at(bytes, at));
        }
    }
    add_checksums(sum, args->sum);
}

KERNEL esper_guard_gather(const gpu_copy_args args)
{
    copy_block(COPY_GATHER, &args);
}

KERNEL esper_guard_scatter(const gpu_copy_args args)
{
    copy_block(COPY_SCATTER, &args);
}

KERNEL esper_guard_checksum(const gpu_copy_args args)
{
    copy_block(COPY_CHECKSUM, &args);
}

/* -------------------------------------------------------------------------------------------------- fault injection */

KERNEL esper_guard_inject_word(const gpu_inject_args args)
{
    if (threadIdx.x != 0)
        return;
    if (args.bytes == 8)
        *(gpu_u64 *)args.element = (*(gpu_u64 *)args.element & args.keep) ^ args.flip;
    else if (args.bytes == 4)
        *(gpu_u32 *)args.element = (gpu_u32)((*(gpu_u32 *)args.element & args.keep) ^ args.flip);
    else
        *(unsigned short *)args.element = (unsigned short)((*(unsigned short *)args.element & args.keep) ^ args.flip);
}
