/* Internal. Products of matrices in fp32 for one block: C = A B over a tile of C, sums over k in order.
 *
 * An operand lies *along* k (element k is next to k+1) or *across* it. Tiles of BK lie in shared memory as [k][m] and [k][n],
 * two of each: while one is multiplied, the next comes from memory into registers. Each thread has TM x TN elements of C, and
 * per k reads TM + TN numbers, 16 bytes at a time, for TM * TN multiply-adds.
 *
 * An operand along k is stored across, four numbers to four rows k. That the stores of a warp meet different banks, its row k
 * has element m at m ^ swap(k).
 *
 * In tiles of SLICES > 1 the threads stand so many times, each slice takes its share of every BK, and the slices' sums are
 * added at the end, in order: more warps where a matrix has few tiles. */
#ifndef ESPER_TENSOR_CUDA_MATMUL_CUH
#define ESPER_TENSOR_CUDA_MATMUL_CUH

#include "tensor/cuda/dialect.cuh"

/* BM x BN of C to a block, whose warps stand WM x WN (and SLICES times), a warp's lanes LM x LN, a thread's elements TM x TN. */
template <int WM_, int WN_, int SLICES_, int LM_, int TM_, int TN_, int BK_> struct matmul_tile {
    enum {
        LM = LM_,
        LN = 32 / LM_,
        TM = TM_,
        TN = TN_,
        WM = WM_,
        WN = WN_,
        BM = WM_ * LM_ * TM_,
        BN = WN_ * (32 / LM_) * TN_,
        BK = BK_,
        SLICES = SLICES_,
        PLANE = 32 * WM_ * WN_, /* threads of a slice */
        THREADS = PLANE * SLICES_,
        STEPS = BK_ / SLICES_, /* of one slice in a BK */
        TILES = 2 * BK_ * (BM + BN),
        SUMS = (SLICES_ - 1) * TM_ * TN_ * PLANE,
        FLOATS = (TILES > SUMS ? TILES : SUMS), /* of shared memory */
        PIECES_K = BK_ / 4                      /* of a row along k */
    };

    static __device__ __forceinline__ int swap(int k)
    {
        return k / 4 % PIECES_K * (32 / PIECES_K);
    }
};

/* One operand: `n` rows or columns, of numbers `stride` apart. */
struct matmul_operand {
    const float *data;
    int64_t      stride; /* along: from m to m+1; across: from k to k+1 */
    int          n;
};

FUNCTION float4 float4_zero(void)
{
    return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* What a thread brings of one operand: PIECES times four numbers, first into registers, then into shared memory. WIDE: sizes
 * and addresses are such that four numbers are loaded at once. Rows beyond the last are the last again, as what comes of them is
 * not kept; beyond the last k there are zeros. */
template <class tile, int B, bool ALONG, bool WIDE> struct matmul_carrier {
    enum {
        PIECES = B * tile::BK / 4 / tile::THREADS,
        EACH_K = tile::PIECES_K, /* along: pieces of a row */
        EACH_M = B / 4           /* across: pieces of a k */
    };
    static_assert(PIECES * 4 * tile::THREADS == B * tile::BK, "every thread brings as much");

    const float *from;
    int          offset[PIECES];
    float4       piece[PIECES];
    int          last; /* of this block's rows: the last one there is */

    static __device__ __forceinline__ int row_of(int p)
    {
        int i = p * tile::THREADS + (int)threadIdx.x;

        return ALONG ? i / EACH_K : i % EACH_M * 4;
    }

    static __device__ __forceinline__ int k_of(int p)
    {
        int i = p * tile::THREADS + (int)threadIdx.x;

        return ALONG ? i % EACH_K * 4 : i / EACH_M;
    }

    __device__ __forceinline__ void begin(const matmul_operand &m, int first, int k)
    {
        last = m.n - 1 - first;
        from = m.data + (ALONG ? (int64_t)first * m.stride + k : (int64_t)k * m.stride + first);
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int row = row_of(p);

            if (ALONG)
                offset[p] = (row < last ? row : last) * (int)m.stride + k_of(p);
            else
                offset[p] = k_of(p) * (int)m.stride + (!WIDE || row <= last ? row : last & ~3);
        }
    }

    /* `left`: how many k there still are. */
    __device__ __forceinline__ void load(int left)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int k = k_of(p);

            if (WIDE)
                piece[p] = k < left ? *reinterpret_cast<const float4 *>(from + offset[p]) : float4_zero();
            else if (ALONG) {
                piece[p].x = k + 0 < left ? from[offset[p] + 0] : 0.0f;
                piece[p].y = k + 1 < left ? from[offset[p] + 1] : 0.0f;
                piece[p].z = k + 2 < left ? from[offset[p] + 2] : 0.0f;
                piece[p].w = k + 3 < left ? from[offset[p] + 3] : 0.0f;
            } else {
                int row = row_of(p);

                piece[p].x = k < left && row + 0 <= last ? from[offset[p] + 0] : 0.0f;
                piece[p].y = k < left && row + 1 <= last ? from[offset[p] + 1] : 0.0f;
                piece[p].z = k < left && row + 2 <= last ? from[offset[p] + 2] : 0.0f;
                piece[p].w = k < left && row + 3 <= last ? from[offset[p] + 3] : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void go_on(const matmul_operand &m)
    {
        from += ALONG ? (int64_t)tile::BK : (int64_t)tile::BK * m.stride;
    }

    __device__ __forceinline__ void store(float *to) const
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int row = row_of(p), k = k_of(p);

            if (ALONG) {
                row ^= tile::swap(k);
                to[(k + 0) * B + row] = piece[p].x;
                to[(k + 1) * B + row] = piece[p].y;
                to[(k + 2) * B + row] = piece[p].z;
                to[(k + 3) * B + row] = piece[p].w;
            } else
                *reinterpret_cast<float4 *>(to + k * B + row) = piece[p];
        }
    }
};

/* Where a thread's elements lie in a tile: element i of T, of which lane `lane` of L has every so many in groups of four, and
 * then, where T is no multiple of four, one of two. */
template <int T, int L> FUNCTION int matmul_place(int i, int lane)
{
    return i < T / 4 * 4 ? i / 4 * 4 * L + lane * 4 + i % 4 : T / 4 * 4 * L + lane * (T % 4) + i % 4;
}

/* Reads T numbers of row k of a tile in shared memory; `first`: where the warp's begin. */
template <int T, int L, int B, bool ALONG>
FUNCTION void matmul_read(const float *row, int first, int swap, int lane, float (&out)[T])
{
    for (int i = 0; i < T / 4; i++) {
        int at = first + i * 4 * L + lane * 4;
        float4 v = *reinterpret_cast<const float4 *>(row + (ALONG ? at ^ swap : at));

        out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
    }
    if (T % 4 == 2) {
        int at = first + T / 4 * 4 * L + lane * 2;
        float2 v = *reinterpret_cast<const float2 *>(row + (ALONG ? at ^ swap : at));

        out[T / 4 * 4] = v.x, out[T / 4 * 4 + 1] = v.y;
    }
}

/* The block's tile of C, rows `m`.., columns `n`.., over k from `begin` to before `end`, in the registers of slice 0. With
 * SUM_A a thread of the first BM has in sum_a the sum of row m + threadIdx.x of A, in blocks whose n is 0. */
template <class tile, bool A_ALONG, bool B_ALONG, bool WIDE, bool SUM_A> struct matmul {
    static __device__ __forceinline__ void run(const matmul_operand &a, const matmul_operand &b, int m, int n, int begin, int end,
                                    float *shared, float (&sum)[tile::TM][tile::TN], float *sum_a)
    {
        enum { BM = tile::BM, BN = tile::BN, BK = tile::BK, TM = tile::TM, TN = tile::TN, STEPS = tile::STEPS };
        int thread = (int)threadIdx.x, slice = thread / tile::PLANE, warp = thread % tile::PLANE / 32;
        int lane_m = thread % 32 / tile::LN, lane_n = thread % tile::LN;
        int first_m = warp / tile::WN * tile::LM * TM, first_n = warp % tile::WN * tile::LN * TN;
        float *tiles_a = shared, *tiles_b = shared + 2 * BK * BM;
        matmul_carrier<tile, BM, A_ALONG, WIDE> from_a;
        matmul_carrier<tile, BN, B_ALONG, WIDE> from_b;
        float total = 0.0f;

#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++)
                sum[i][j] = 0.0f;
        from_a.begin(a, m, begin);
        from_b.begin(b, n, begin);
        from_a.load(end - begin);
        from_b.load(end - begin);
        from_a.store(tiles_a);
        from_b.store(tiles_b);
        __syncthreads();
        for (int k = begin, turn = 0; k < end; k += BK, turn ^= 1) {
            const float *now_a = tiles_a + turn * BK * BM + slice * STEPS * BM;
            const float *now_b = tiles_b + turn * BK * BN + slice * STEPS * BN;
            bool more = k + BK < end;
            float in_a[2][TM], in_b[2][TN];

            if (more) {
                from_a.go_on(a);
                from_b.go_on(b);
                from_a.load(end - k - BK);
                from_b.load(end - k - BK);
            }
            if (SUM_A && n == 0 && thread < BM)
#pragma unroll
                for (int i = 0; i < BK; i++)
                    total += tiles_a[turn * BK * BM + i * BM + thread];
            matmul_read<TM, tile::LM, BM, A_ALONG>(now_a, first_m, tile::swap(slice * STEPS), lane_m, in_a[0]);
            matmul_read<TN, tile::LN, BN, B_ALONG>(now_b, first_n, tile::swap(slice * STEPS), lane_n, in_b[0]);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                int next = i + 1, swap = tile::swap(slice * STEPS) ^ tile::swap(next);

                if (next < STEPS) {
                    matmul_read<TM, tile::LM, BM, A_ALONG>(now_a + next * BM, first_m, swap, lane_m, in_a[next % 2]);
                    matmul_read<TN, tile::LN, BN, B_ALONG>(now_b + next * BN, first_n, swap, lane_n, in_b[next % 2]);
                }
#pragma unroll
                for (int u = 0; u < TM; u++)
#pragma unroll
                    for (int v = 0; v < TN; v++)
                        sum[u][v] = fmaf(in_a[i % 2][u], in_b[i % 2][v], sum[u][v]);
            }
            if (more) {
                from_a.store(tiles_a + (turn ^ 1) * BK * BM);
                from_b.store(tiles_b + (turn ^ 1) * BK * BN);
                __syncthreads();
            }
        }
        if (SUM_A)
            *sum_a = total;
        if (tile::SLICES > 1)
            join_slices(shared, slice, thread % tile::PLANE, sum);
    }

    static __device__ __forceinline__ void join_slices(float *shared, int slice, int thread, float (&sum)[tile::TM][tile::TN])
    {
        __syncthreads();
        if (slice > 0)
#pragma unroll
            for (int i = 0; i < tile::TM * tile::TN; i++)
                shared[((slice - 1) * tile::TM * tile::TN + i) * tile::PLANE + thread] =
                    sum[i / tile::TN][i % tile::TN];
        __syncthreads();
        if (slice == 0)
            for (int s = 0; s + 1 < tile::SLICES; s++)
#pragma unroll
                for (int i = 0; i < tile::TM * tile::TN; i++)
                    sum[i / tile::TN][i % tile::TN] +=
                        shared[(s * tile::TM * tile::TN + i) * tile::PLANE + thread];
    }
};

/* Adds to what is put, and puts it, in columns at .. of a row: as many as V has. */
FUNCTION void matmul_put_some(float *to, bool add, const float *bias, float4 v)
{
    if (bias != NULL)
        v.x += bias[0], v.y += bias[1], v.z += bias[2], v.w += bias[3];
    if (add) {
        float4 old = *reinterpret_cast<const float4 *>(to);

        v.x += old.x, v.y += old.y, v.z += old.z, v.w += old.w;
    }
    *reinterpret_cast<float4 *>(to) = v;
}

FUNCTION void matmul_put_some(float *to, bool add, const float *bias, float2 v)
{
    if (bias != NULL)
        v.x += bias[0], v.y += bias[1];
    if (add) {
        float2 old = *reinterpret_cast<const float2 *>(to);

        v.x += old.x, v.y += old.y;
    }
    *reinterpret_cast<float2 *>(to) = v;
}

/* Writes the numbers of one row of C that a thread has, the warp's beginning in column n; `bias` may be NULL. */
template <class tile, bool WIDE>
FUNCTION void matmul_put(float *row, int n, int n_end, bool add, const float *bias, const float (&sum)[tile::TN])
{
    enum { FOURS = tile::TN / 4 * 4 };
    int lane = (int)threadIdx.x % tile::LN;

    if (WIDE) {
#pragma unroll
        for (int j = 0; j < FOURS; j += 4) {
            int at = n + matmul_place<tile::TN, tile::LN>(j, lane);

            if (at < n_end)
                matmul_put_some(row + at, add, bias == NULL ? NULL : bias + at,
                                make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]));
        }
        if (tile::TN % 4 == 2) {
            int at = n + matmul_place<tile::TN, tile::LN>(FOURS, lane);

            if (at < n_end)
                matmul_put_some(row + at, add, bias == NULL ? NULL : bias + at,
                                make_float2(sum[tile::TN - 2], sum[tile::TN - 1]));
        }
    } else
#pragma unroll
        for (int j = 0; j < tile::TN; j++) {
            int at = n + matmul_place<tile::TN, tile::LN>(j, lane);

            if (at < n_end) {
                float v = sum[j] + (bias != NULL ? bias[at] : 0.0f);

                row[at] = add ? row[at] + v : v;
            }
        }
}

/* Where the block's tile begins that the thread's warp has, in rows and columns. */
template <class tile> FUNCTION int matmul_first_m(void)
{
    return (int)threadIdx.x % tile::PLANE / 32 / tile::WN * tile::LM * tile::TM;
}

template <class tile> FUNCTION int matmul_first_n(void)
{
    return (int)threadIdx.x % tile::PLANE / 32 % tile::WN * tile::LN * tile::TN;
}

/* Writes the block's tile of C, from slice 0, in rows m.. of `rows`, columns n.. of `columns`; rows are `stride` apart. */
template <class tile, bool WIDE>
FUNCTION void matmul_write(float *c, int rows, int columns, int64_t stride, int m, int n, bool add, const float *bias,
                           const float (&sum)[tile::TM][tile::TN])
{
    int lane = (int)threadIdx.x % 32 / tile::LN;

    if (threadIdx.x >= tile::PLANE)
        return;
    m += matmul_first_m<tile>();
    n += matmul_first_n<tile>();
#pragma unroll
    for (int i = 0; i < tile::TM; i++) {
        int at = m + matmul_place<tile::TM, tile::LM>(i, lane);

        if (at < rows)
            matmul_put<tile, WIDE>(c + at * stride, n, columns, add, bias, sum[i]);
    }
}

#endif
