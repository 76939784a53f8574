/* Embedding: the row of each token's id plus the row of its position, where there are positions.
 *
 * A table's gradient: a block has a row of the table, or some of its columns, and looks through all ids, in order, for those that
 * point there. Its warps take what is found in turn, and their sums are added up in the warps' order. */
#include "tensor/cuda/elements.cuh"
#include "tensor/cuda/embedding.h"
#include "tensor/cuda/sums.cuh"

enum { WARPS = ELEMENTS_THREADS / WARP };

ESPER_KERNEL(esper_embedding_forward, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const int32_t *ids = static_cast<const int32_t *>(lane->in[0].data);
    const float *tokens = static_cast<const float *>(lane->in[1].data), *positions = static_cast<const float *>(lane->in[2].data);
    int64_t T = lane->in[0].count, D = lane->in[1].dim[1];
    unit_counter<ESPER_CUDA_CANONICAL> row_of(D);

    for_fours(elements_of<ESPER_CUDA_CANONICAL>(lane, &lane->out[0]), [&](int64_t at, int n) {
        int64_t row = row_of.row(at), d = at - row * D;
        four y = {};

        if (n == 4 && d + 4 <= D) {
            y = load_four(tokens + ids[row] * D + d, 4);
            if (positions != NULL) {
                four p = load_four(positions + row % T * D + d, 4);

#pragma unroll
                for (int k = 0; k < 4; k++)
                    y.v[k] += p.v[k];
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k < n) {
                    row = row_of.row(at + k);
                    d = at + k - row * D;
                    y.v[k] = tokens[ids[row] * D + d] + (positions != NULL ? positions[row % T * D + d] : 0);
                }
        }
        write_four(&lane->out[0], at, n, y);
    });
}

/* What a block adds up: four columns for each lane of a warp. */
struct columns {
    const float *g; /* of the output, from the block's first column on */
    int64_t      D;
    int          n; /* of the lane's four: how many there are */
    four         sum;

    __device__ __forceinline__ void add(int64_t row)
    {
        if (n > 0) {
            four x = load_four(g + row * D, n);

#pragma unroll
            for (int k = 0; k < 4; k++)
                sum.v[k] += x.v[k];
        }
    }
};

FUNCTION columns columns_of(const esper_lane *lane, int64_t D, int64_t first)
{
    int64_t column = first + threadIdx.x % WARP * 4;
    columns c = {static_cast<const float *>(lane->out[0].grad) + column, D, 0, {}};

    c.n = static_cast<int>(max(static_cast<int64_t>(0), min(static_cast<int64_t>(4), D - column)));
    return c;
}

/* The warps' sums in their order, into a row of the table's gradient. */
FUNCTION void put_row(const esper_view *table, int64_t row, int64_t first, const columns &c)
{
    __shared__ float of_warp[WARPS][EMBEDDING_COLUMNS];
    int column = static_cast<int>(threadIdx.x);

#pragma unroll
    for (int k = 0; k < 4; k++)
        of_warp[threadIdx.x / WARP][threadIdx.x % WARP * 4 + k] = c.sum.v[k];
    __syncthreads();
    if (column < EMBEDDING_COLUMNS && first + column < c.D) {
        float *to = static_cast<float *>(table->grad) + row * c.D + first + column;
        float sum = 0;

#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += of_warp[w][column];
        *to = (table->add ? *to : 0) + sum;
    }
}

/* Block: row blockIdx.x / slices of the tokens, and a slice of its columns. */
ESPER_KERNEL(esper_embedding_tokens, ELEMENTS_THREADS)
{
    __shared__ int found[ELEMENTS_THREADS], found_of_warp[WARPS];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *table = &lane->in[1];
    const int32_t *ids = static_cast<const int32_t *>(lane->in[0].data);
    int64_t D = table->dim[1], slices = (D + EMBEDDING_COLUMNS - 1) / EMBEDDING_COLUMNS;
    int64_t token = blockIdx.x / slices, first = blockIdx.x % slices * EMBEDDING_COLUMNS;
    int64_t n_ids = lane->in[0].count * lane->pass->n_samples;
    int warp = static_cast<int>(threadIdx.x / WARP), in_warp = static_cast<int>(threadIdx.x % WARP), turn = 0;
    columns c = columns_of(lane, D, first);

    if (table->grad == NULL || token >= table->dim[0])
        return;
    for (int64_t from = 0; from < n_ids; from += ELEMENTS_THREADS) {
        int64_t mine = from + threadIdx.x;
        bool is_here = mine < n_ids && ids[mine] == token;
        unsigned here = __ballot_sync(0xffffffffu, is_here);
        int before = 0, all = 0;

        __syncthreads(); /* what was found before has been read */
        if (in_warp == 0)
            found_of_warp[warp] = __popc(here);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? found_of_warp[w] : 0;
            all += found_of_warp[w];
        }
        if (is_here)
            found[before + __popc(here & ((1u << in_warp) - 1))] = static_cast<int>(threadIdx.x);
        __syncthreads();
        for (int k = (warp - turn % WARPS + WARPS) % WARPS; k < all; k += WARPS) /* the turn goes on where it ended */
            c.add(from + found[k]);
        turn += all;
    }
    put_row(table, token, first, c);
}

/* Block: a row of the positions and a slice of its columns. Rows beyond the tokens get nothing. */
ESPER_KERNEL(esper_embedding_positions, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *table = &lane->in[2];
    int64_t D = lane->in[1].dim[1], T = lane->in[0].count, slices = (D + EMBEDDING_COLUMNS - 1) / EMBEDDING_COLUMNS;
    int64_t t = blockIdx.x / slices, first = blockIdx.x % slices * EMBEDDING_COLUMNS;
    columns c = columns_of(lane, D, first);

    if (table->grad == NULL || t >= table->dim[0])
        return;
    if (t < T) {
#pragma unroll 4
        for (int64_t n = threadIdx.x / WARP; n < lane->pass->n_samples; n += WARPS)
            c.add(n * T + t);
    }
    put_row(table, t, first, c);
}
