/* Linear layers on tensor cores: the products of linear.cu, of which a block has a tile of the result, and a warp 16 rows by 8 columns
 * of it MT x NT times. Factors are rounded as esper_lane.precision says; in fp32 three products of TF32 make one of floats (mma.cuh),
 * which is faster than multiply-adds.
 *
 * Operands come to shared memory as they lie, floats, sixteen bytes at a time and not waited for: while one BK of them is multiplied
 * the next is on its way. What lies along k is there as [row][k], what lies across as [k][row], with as many floats added to a line
 * that the 8 x 4 numbers of a fragment meet 32 banks in either. They are rounded when they are read; sums are of floats. */
#include "tensor/cuda/async.cuh"
#include "tensor/cuda/linear.cuh"
#include "tensor/cuda/mma_half.cuh"

template <int WM_, int WN_, int MT_, int NT_, int BK_> struct cores_tile {
    enum { WN = WN_, MT = MT_, NT = NT_, BM = WM_ * MT_ * 16, BN = WN_ * NT_ * 8, BK = BK_, THREADS = 32 * WM_ * WN_ };
};

/* B rows of an operand and BK of its k. */
template <class tile, int B, bool ALONG, bool WIDE> struct cores_operand {
    enum {
        LINE = ALONG ? tile::BK + 4 : B + 8,
        FLOATS = LINE * (ALONG ? B : tile::BK),
        EACH = (ALONG ? tile::BK : B) / 4, /* fours of a line */
        PIECES = B * tile::BK / 4 / tile::THREADS
    };
    static_assert(PIECES * 4 * tile::THREADS == B * tile::BK, "every thread brings as much");

    static __device__ __forceinline__ void bring(const matmul_operand &m, int first, int k, int end, float *to)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            int i = p * tile::THREADS + (int)threadIdx.x, line = i / EACH, at = i % EACH * 4;
            int row = first + (ALONG ? line : at), here = k + (ALONG ? at : line);
            const float *from = m.data + (ALONG ? row * m.stride + here : here * m.stride + row);

            if (WIDE)
                copy_four(to + line * LINE + at, from, row < m.n && here < end);
            else
#pragma unroll
                for (int j = 0; j < 4; j++)
                    copy_one(to + line * LINE + at + j, from + j, row + (ALONG ? 0 : j) < m.n && here + (ALONG ? j : 0) < end);
        }
    }

    static __device__ __forceinline__ float at(const float *from, int row, int k)
    {
        return from[ALONG ? row * LINE + k : k * LINE + row];
    }
};

/* Floats of shared memory: of two stages, whichever way the operands lie. */
template <class tile, int B> struct cores_widest {
    enum {
        ALONG = cores_operand<tile, B, true, true>::FLOATS,
        ACROSS = cores_operand<tile, B, false, true>::FLOATS,
        FLOATS = (int)ALONG > (int)ACROSS ? (int)ALONG : (int)ACROSS
    };
};
#define SHARED_OF(tile) (2 * (cores_widest<tile, tile::BM>::FLOATS + cores_widest<tile, tile::BN>::FLOATS))

/* A tile of C = A B, as matmul has it, but that fragments are what a thread has of it (mma.cuh). */
template <class tile, bool A_ALONG, bool B_ALONG, bool WIDE, bool SUM_A, esper_precision PRECISION> struct product {
    typedef cores_operand<tile, tile::BM, A_ALONG, WIDE> left;
    typedef cores_operand<tile, tile::BN, B_ALONG, WIDE> right;
    enum {
        STAGE = left::FLOATS + right::FLOATS,
        DEPTH = PRECISION == ESPER_BF16 ? 16 : 8,
        PRODUCTS = PRECISION == ESPER_FP32 ? 3 : 1
    };
    static_assert(2 * (int)STAGE <= SHARED_OF(tile), "what the kernels give it");

    /* Rows `row` and `row` + 8 of DEPTH k from column on, the k of a word 4 apart: whatever their order, it is the same in both operands.
     * What a word leaves of a float is in lo, where it is wanted. */
    template <class operand>
    static __device__ __forceinline__ void word_of(const float *from, int row, int k, int half, unsigned *word, unsigned *lo)
    {
        if (PRECISION == ESPER_BF16)
            *word = bf16_pack(operand::at(from, row, k + 8 * half), operand::at(from, row, k + 8 * half + 4));
        else
            tf32_parts<PRODUCTS>(operand::at(from, row, k + 4 * half), word, lo);
    }

    /* Tensor cores cut off what a sum has no place for, always towards 0: of a chain of hundreds of products that would be ten times the
     * error of floats. So what is as exact as floats is added up as floats are, BK by BK. */
    static __device__ __forceinline__ void add_product(const float *a, const float *b, float (&sum)[tile::MT][tile::NT][4])
    {
        float some[tile::MT][tile::NT][4];

        if (PRODUCTS == 1) {
            multiply(a, b, sum);
            return;
        }
#pragma unroll
        for (int i = 0; i < tile::MT * tile::NT * 4; i++)
            some[i / 4 / tile::NT][i / 4 % tile::NT][i % 4] = 0.0f;
        multiply(a, b, some);
#pragma unroll
        for (int i = 0; i < tile::MT * tile::NT * 4; i++)
            sum[i / 4 / tile::NT][i / 4 % tile::NT][i % 4] += some[i / 4 / tile::NT][i / 4 % tile::NT][i % 4];
    }

    static __device__ __forceinline__ void multiply(const float *a, const float *b, float (&sum)[tile::MT][tile::NT][4])
    {
        int warp = (int)threadIdx.x / 32, row = (int)threadIdx.x % 32 / 4, column = (int)threadIdx.x % 4;
        int m = warp / tile::WN * tile::MT * 16 + row, n = warp % tile::WN * tile::NT * 8 + row;

#pragma unroll
        for (int k = column; k < tile::BK + column; k += DEPTH) {
            unsigned in_b[tile::NT][2], lo_b[tile::NT][2];

#pragma unroll
            for (int j = 0; j < tile::NT * 2; j++)
                word_of<right>(b, n + j / 2 * 8, k, j % 2, &in_b[j / 2][j % 2], &lo_b[j / 2][j % 2]);
#pragma unroll
            for (int i = 0; i < tile::MT; i++) {
                unsigned in_a[4], lo_a[4];

#pragma unroll
                for (int w = 0; w < 4; w++)
                    word_of<left>(a, m + i * 16 + w % 2 * 8, k, w / 2, &in_a[w], &lo_a[w]);
                /* Products of one kind side by side: those of one sum wait for each other. The smaller ones come first. */
#pragma unroll
                for (int kind = 3 - PRODUCTS; kind < 3; kind++)
#pragma unroll
                for (int j = 0; j < tile::NT; j++)
                    if (PRECISION == ESPER_BF16)
                            mma_16x8x16(sum[i][j], in_a, in_b[j]);
                    else
                            mma_16x8x8(sum[i][j], kind == 0 ? lo_a : in_a, kind == 1 ? lo_b[j] : in_b[j]);
            }
        }
    }

    static __device__ __forceinline__ void run(const matmul_operand &a, const matmul_operand &b, int m, int n, int begin, int end,
                                               float *shared, float (&sum)[tile::MT][tile::NT][4], float *sum_a)
    {
        float total = 0.0f;

#pragma unroll
        for (int i = 0; i < tile::MT * tile::NT * 4; i++)
            sum[i / 4 / tile::NT][i / 4 % tile::NT][i % 4] = 0.0f;
        left::bring(a, m, begin, end, shared);
        right::bring(b, n, begin, end, shared + left::FLOATS);
        for (int k = begin, turn = 0; k < end; k += tile::BK, turn ^= 1) {
            float *now = shared + turn * STAGE, *next = shared + (turn ^ 1) * STAGE;

            await_all();
            __syncthreads(); /* all have come, and nobody reads any more where the next go */
            if (k + tile::BK < end) {
                left::bring(a, m, k + tile::BK, end, next);
                right::bring(b, n, k + tile::BK, end, next + left::FLOATS);
            }
            if (SUM_A && n == 0 && threadIdx.x < tile::BM)
#pragma unroll
                for (int i = 0; i < tile::BK; i++)
                    total += left::at(now, (int)threadIdx.x, i);
            add_product(now, now + left::FLOATS, sum);
        }
        if (SUM_A)
            *sum_a = total;
    }
};

/* Writes the block's tile, in rows m.. of `rows`, columns n.. of `columns`; rows are `columns` apart. `bias` may be NULL. */
template <class tile, bool WIDE>
FUNCTION void put_product(float *c, int rows, int columns, int m, int n, bool add, const float *bias,
                          const float (&sum)[tile::MT][tile::NT][4])
{
    int warp = (int)threadIdx.x / 32;

    m += warp / tile::WN * tile::MT * 16 + (int)threadIdx.x % 32 / 4;
    n += warp % tile::WN * tile::NT * 8 + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < tile::MT * 2; i++)
#pragma unroll
        for (int j = 0; j < tile::NT; j++) {
            int row = m + i * 8, column = n + j * 8;
            float *to = c + (int64_t)row * columns + column;
            float one = sum[i / 2][j][i % 2 * 2], two = sum[i / 2][j][i % 2 * 2 + 1];

            if (row >= rows || column >= columns)
                continue;
            if (WIDE)
                matmul_put_some(to, add, bias == NULL ? NULL : bias + column, make_float2(one, two));
            else {
                one += bias == NULL ? 0.0f : bias[column];
                to[0] = add ? to[0] + one : one;
                if (column + 1 < columns) {
                    two += bias == NULL ? 0.0f : bias[column + 1];
                    to[1] = add ? to[1] + two : two;
                }
            }
        }
}

/* ------------------------------------------------------------------------------------------------ layers */

typedef struct layer {
    int I, O;
    int rows, max_rows; /* of the batch, and of the largest */
} layer;

FUNCTION layer layer_of(const esper_lane *lane)
{
    int I = lane->in[1].dim[1], each = (int)lane->in[0].count / I;

    return {I, lane->in[1].dim[0], lane->pass->n_samples * each, lane->max_samples * each};
}

template <class tile, bool WIDE, esper_precision PRECISION> FUNCTION void forward(const esper_lane *lane, float *shared)
{
    layer at = layer_of(lane);
    int across = (at.O + tile::BN - 1) / tile::BN;
    int m = (int)blockIdx.x / across * tile::BM, n = (int)blockIdx.x % across * tile::BN;
    matmul_operand x = {(const float *)lane->in[0].data, at.I, at.rows};
    matmul_operand w = {(const float *)lane->in[1].data, at.I, at.O};
    float sum[tile::MT][tile::NT][4];

    if (m >= at.rows)
        return;
    product<tile, true, true, WIDE, false, PRECISION>::run(x, w, m, n, 0, at.I, shared, sum, NULL);
    put_product<tile, WIDE>((float *)lane->out[0].data, at.rows, at.O, m, n, false, (const float *)lane->in[2].data, sum);
}

template <class tile, bool WIDE, esper_precision PRECISION> FUNCTION void backward_x(const esper_lane *lane, float *shared)
{
    layer at = layer_of(lane);
    int across = (at.I + tile::BN - 1) / tile::BN;
    int m = (int)blockIdx.x / across * tile::BM, n = (int)blockIdx.x % across * tile::BN;
    matmul_operand g = {(const float *)lane->out[0].grad, at.O, at.rows};
    matmul_operand w = {(const float *)lane->in[1].data, at.I, at.I};
    float sum[tile::MT][tile::NT][4];

    if (m >= at.rows)
        return;
    product<tile, true, false, WIDE, false, PRECISION>::run(g, w, m, n, 0, at.O, shared, sum, NULL);
    put_product<tile, WIDE>((float *)lane->in[0].grad, at.rows, at.I, m, n, lane->in[0].add, NULL, sum);
}

/* The pieces are those of linear_piece (linear.cuh), and what joins tiles of this size joins them. */
template <class tile, bool WIDE, esper_precision PRECISION> FUNCTION void backward_w(const esper_lane *lane, float *shared)
{
    layer at = layer_of(lane);
    int across = (at.I + tile::BN - 1) / tile::BN, tiles = (at.O + tile::BM - 1) / tile::BM * across;
    int pieces = esper_linear_pieces(tiles, at.max_rows), piece_rows = esper_linear_piece_rows(pieces, at.max_rows);
    int piece = (int)blockIdx.x / tiles, t = (int)blockIdx.x % tiles;
    int m = t / across * tile::BM, n = t % across * tile::BN;
    int begin = piece * piece_rows, end = min(begin + piece_rows, at.rows);
    int64_t size = (int64_t)at.O * at.I;
    matmul_operand g = {(const float *)lane->out[0].grad, at.O, at.O}, x = {(const float *)lane->in[0].data, at.I, at.I};
    float *parts = (float *)lane->scratch, *dw = (float *)lane->in[1].grad, *db = (float *)lane->in[2].grad;
    bool wants_w = dw != NULL, wants_b = db != NULL;
    float sum[tile::MT][tile::NT][4], sum_g;

    if (piece >= pieces)
        return;
    product<tile, false, false, WIDE, true, PRECISION>::run(g, x, m, n, begin, end, shared, sum, &sum_g);
    if (pieces > 1) {
        dw = parts + piece * size;
        db = parts + pieces * size + (int64_t)piece * at.O;
    }
    if (wants_w)
        put_product<tile, WIDE>(dw, at.O, at.I, m, n, pieces == 1 && lane->in[1].add, NULL, sum);
    if (wants_b && n == 0 && threadIdx.x < tile::BM && m + (int)threadIdx.x < at.O) {
        float *to = db + m + threadIdx.x;

        *to = pieces == 1 && lane->in[2].add ? *to + sum_g : sum_g;
    }
}

#define CORES_KERNELS(name, tile, wide, precision, dense)                       \
    static_assert(SHARED_OF(tile) * 4 <= 48 * 1024, "what every GPU has");      \
    ESPER_KERNEL_DENSE(esper_linear_y_##name, tile::THREADS, dense)             \
    {                                                                           \
        __shared__ float4 shared[SHARED_OF(tile) / 4];                          \
        forward<tile, wide, precision>(lanes.lane[blockIdx.y], (float *)shared); \
    }                                                                           \
    ESPER_KERNEL_DENSE(esper_linear_dx_##name, tile::THREADS, dense)            \
    {                                                                           \
        __shared__ float4 shared[SHARED_OF(tile) / 4];                          \
        backward_x<tile, wide, precision>(lanes.lane[blockIdx.y], (float *)shared); \
    }                                                                           \
    ESPER_KERNEL_DENSE(esper_linear_dw_##name, tile::THREADS, dense)            \
    {                                                                           \
        __shared__ float4 shared[SHARED_OF(tile) / 4];                          \
        backward_w<tile, wide, precision>(lanes.lane[blockIdx.y], (float *)shared); \
    }

/*                 warps of M and N, 16 rows and 8 columns of each, k at once */
typedef cores_tile<2, 4, 4, 4, 16> cores_128x128;
typedef cores_tile<2, 2, 2, 6, 32> cores_64x96;
typedef cores_tile<2, 2, 2, 4, 32> cores_64x64;
typedef cores_tile<2, 2, 1, 2, 32> cores_32x32;

#define CORES(suffix, precision)                                         \
    CORES_KERNELS(128x128_##suffix, cores_128x128, true, precision, 2)   \
    CORES_KERNELS(64x64_##suffix, cores_64x64, true, precision, 4)       \
    CORES_KERNELS(32x32_##suffix, cores_32x32, true, precision, 4)       \
    CORES_KERNELS(64x64_any_##suffix, cores_64x64, false, precision, 2)

CORES(tf32, ESPER_TF32)
CORES(bf16, ESPER_BF16)

/* Of floats a thread has every sum twice, and more than 64 x 96 does not fit its registers. */
CORES_KERNELS(64x96_fp32, cores_64x96, true, ESPER_FP32, 2)
CORES_KERNELS(64x64_fp32, cores_64x64, true, ESPER_FP32, 3)
CORES_KERNELS(32x32_fp32, cores_32x32, true, ESPER_FP32, 4)
CORES_KERNELS(64x64_any_fp32, cores_64x64, false, ESPER_FP32, 2)
