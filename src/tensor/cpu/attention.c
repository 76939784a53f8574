/* Causal attention of several heads: what tensor/ref/attention.c defines, as products of matrices.
 *
 * Units are (sample, head). A head's products, T x T x width, go through the tiles of gemm.h; tiles that lie wholly beyond
 * the diagonal are left out:
 *
 *     forward     p = softmax(scale Q K^T)     Y = kept(p) V
 *     backward    dP = G V^T,  dS from it row by row     dQ = dS K     dK = dS^T Q     dV = kept(p)^T G
 *
 * kept(p) and dS are made for a block of queries at a time, on the stack. All sums run over k in order and blocks depend on
 * the shape alone. Sequences too long for the block are computed the plain way, query by query. */
#include "tensor/cpu/gemm.h"
#include "tensor/cpu/vec_math.h"
#include "tensor/ref/attention.h"

enum {
    BLOCK_FLOATS = 32768, /* a block of queries by all keys: 128 KB. For up to 175 tokens it holds the whole head */
    SOFTMAX_ROWS = 8,     /* queries whose probabilities are computed together */
};

/* A head at work. Rows of q, k, v and their gradients are h.stride apart, those of y h.y_stride. */
typedef struct work {
    const esper_lane *lane;
    head h;
    const float *q, *k, *v, *g;
    float *p, *y, *dq, *dk, *dv;
    bool add; /* to the gradients */
} work;

/* Queries first .. end-1. Row i of `kept` and `dscore` is query first + i, zero beyond the diagonal. */
typedef struct block {
    int first, end;
    size_t stride;
    float *kept, *dscore;
} block;

static work work_of(const esper_lane *lane, int unit)
{
    int heads = lane->attr.attention.heads, n = unit / heads;
    head h = head_of(lane, unit % heads);
    const float *qkv = data_at(&lane->in[0], n);
    float *dqkv = grad_at(&lane->in[0], n);
    work w = {.lane = lane, .h = h, .q = qkv + h.q, .k = qkv + h.k, .v = qkv + h.v, .add = lane->in[0].add};

    w.p = data_at(&lane->out[1], n) + h.p;
    w.y = data_at(&lane->out[0], n) + h.y;
    if (dqkv == NULL)
        return w;
    w.g = grad_at(&lane->out[0], n) + h.y;
    w.dq = dqkv + h.q;
    w.dk = dqkv + h.k;
    w.dv = dqkv + h.v;
    return w;
}

static int units(const esper_lane *lane)
{
    return lane->pass->n_samples * lane->attr.attention.heads;
}

/* The sample's stream of draws where this head begins: the heads before it have taken one for each query and key. */
static esper_rng stream_at(const esper_lane *lane, int unit)
{
    int heads = lane->attr.attention.heads, T = lane->out[0].dim[0];
    esper_rng rng = stream_of(lane, unit / heads);

    if (drops(lane))
        esper_rng_skip(&rng, (uint32_t)(unit % heads) * ((uint32_t)T * ((uint32_t)T + 1) / 2));
    return rng;
}

/* Rows of a block's matrices are an odd number of cache lines apart: a column then spreads over all sets of the cache. */
static size_t block_stride(int T)
{
    size_t lines = ((size_t)T + SIMD_WIDTH - 1) / SIMD_WIDTH;

    return (lines | 1) * SIMD_WIDTH;
}

/* How many queries a block takes; 0 when not even one row of tiles fits. */
static int block_rows(int T)
{
    size_t most = BLOCK_FLOATS / block_stride(T) / GEMM_ROWS * GEMM_ROWS;

    return (int)gemm_least(most, (size_t)T);
}

/* ------------------------------------------------------------------------------------------------ forward */

/* C = A B^T for rows begin .. end-1 of A and the keys, both `width` wide and h.stride or a_row apart; only entries on and
 * below the diagonal are asked for, C is addressed from row `begin`. */
static void multiply_by_keys(const head *h, const float *a, size_t a_row, const float *keys, int begin, int end,
                             float *c, size_t c_row)
{
    float panel[GEMM_K * GEMM_COLS] __attribute__((aligned(64)));

    for (int j = 0; j < end; j += GEMM_COLS) {
        size_t cols = gemm_least((size_t)(end - j), GEMM_COLS), first = (size_t)(j > begin ? j : begin);

        for (size_t k = 0; k < (size_t)h->width; k += GEMM_K) {
            size_t n_k = gemm_least((size_t)h->width - k, GEMM_K);
            gemm_out out = {.to = c + (first - (size_t)begin) * c_row + j, .row = c_row};

            gemm_pack_turned(cols, n_k, keys + (size_t)j * h->stride + k, h->stride, panel);
            gemm_block((size_t)end - first, cols, n_k, (gemm_left){a + first * a_row + k, a_row, 1}, panel,
                       k == 0 ? out : gemm_out_more(out));
        }
    }
}

/* C = A B for queries begin .. end-1: row i of A, which is zero beyond the diagonal, times the rows of B. A is addressed
 * from row `begin`, B and C from row 0. */
static void multiply_by_rows(const head *h, const float *a, size_t a_row, const float *b, int begin, int end,
                             gemm_out c)
{
    float panel[GEMM_K * GEMM_COLS] __attribute__((aligned(64)));

    for (size_t col = 0; col < (size_t)h->width; col += GEMM_COLS) {
        size_t cols = gemm_least((size_t)h->width - col, GEMM_COLS);

        for (size_t k = 0; k < (size_t)end; k += GEMM_K) {
            size_t n_k = gemm_least((size_t)end - k, GEMM_K);

            gemm_pack_rows(cols, n_k, b + k * h->stride + col, h->stride, panel);
            for (size_t i = (size_t)begin; i < (size_t)end; i += GEMM_ROWS) {
                size_t rows = gemm_least((size_t)end - i, GEMM_ROWS);
                gemm_out out = gemm_out_at(c, i, col);

                if (i + rows > k)
                    gemm_strip(rows, cols, gemm_least(i + rows, k + n_k) - k,
                               (gemm_left){a + (i - (size_t)begin) * a_row + k, a_row, 1}, panel,
                               k == 0 ? out : gemm_out_more(out));
            }
        }
    }
}

/* n elements of a row as whole vectors, as far as the row of T goes: what follows them in the last one becomes `fill`.
 * Vectors that are read and written whole are much faster than parts of them. Returns how many elements that makes. */
static size_t fill_up(float *row, size_t n, size_t T, float fill)
{
    size_t whole = n / SIMD_VEC * SIMD_VEC;

    if (whole == n || whole + SIMD_VEC > T)
        return n;
    rows_store(row + whole, simd_select(rows_first(n - whole), rows_load(row + whole), simd_all(fill)));
    return whole + SIMD_VEC;
}

/* Scores of queries begin .. end-1, at most SOFTMAX_ROWS, become probabilities, e^(scale (score - top)) / sum; those of later
 * keys are zero. Each step is done for all of them before the next: a row's own steps wait for each other. */
static void softmax_rows(float *p, size_t begin, size_t end, size_t T, float scale)
{
    simd_vec top[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
    size_t filled[SOFTMAX_ROWS];

    for (size_t i = begin; i < end; i++) {
        float *row = p + i * T;
        simd_vec most = simd_all(row[0]);

        filled[i - begin] = fill_up(row, i + 1, T, -__builtin_inff());
        ROWS_EACH(j, some, filled[i - begin], { most = simd_max(most, rows_get(row, j, some, row[0])); });
        top[i - begin] = simd_all(rows_largest(most));
    }
    for (size_t i = begin; i < end; i++) {
        float *row = p + i * T;
        simd_vec most = top[i - begin], all = {0};

        ROWS_EACH(j, some, filled[i - begin], {
            simd_vec e = vec_exp_down((rows_get(row, j, some, -__builtin_inff()) - most) * scale);

            all += e;
            rows_put(row, j, some, e);
        });
        sum[i - begin] = all;
    }
    for (size_t i = begin; i < end; i++) {
        float *row = p + i * T, part = 1.0f / rows_sum(sum[i - begin]);

        ROWS_EACH(j, some, filled[i - begin], { rows_put(row, j, some, rows_get(row, j, some, 0.0f) * part); });
        memset(row + i + 1, 0, (T - i - 1) * sizeof(float));
    }
}

/* What dropout leaves of the probabilities of queries first .. end-1. */
static void keep_block(const work *w, esper_rng *rng, block b)
{
    size_t T = (size_t)w->h.T;

    for (int i = b.first; i < b.end; i++) {
        const float *p = w->p + (size_t)i * T;
        float *kept = b.kept + (size_t)(i - b.first) * b.stride;

        for (int j = 0; j <= i; j++)
            kept[j] = p[j] * keep_factor(rng, w->lane->attr.attention.drop);
        memset(kept + i + 1, 0, (b.stride - (size_t)i - 1) * sizeof(float));
    }
}

static void forward_values(const work *w, esper_rng *rng)
{
    float kept[BLOCK_FLOATS] __attribute__((aligned(64)));
    gemm_out y = {.to = w->y, .row = w->h.y_stride};
    int rows = block_rows(w->h.T);

    if (!drops(w->lane)) {
        multiply_by_rows(&w->h, w->p, (size_t)w->h.T, w->v, 0, w->h.T, y);
        return;
    }
    for (int first = 0; first < w->h.T; first += rows) {
        block b = {.first = first, .end = (int)gemm_least((size_t)first + (size_t)rows, (size_t)w->h.T)};

        b.stride = block_stride(w->h.T);
        b.kept = kept;
        keep_block(w, rng, b);
        multiply_by_rows(&w->h, kept, b.stride, w->v, b.first, b.end, y);
    }
}

static void forward_unit(const esper_lane *lane, int unit)
{
    work w = work_of(lane, unit);
    size_t T = (size_t)w.h.T;
    esper_rng rng = stream_at(lane, unit);

    if (block_rows(w.h.T) == 0) {
        int n = unit / lane->attr.attention.heads;

        forward_head(lane, &w.h, data_at(&lane->in[0], n), &rng, data_at(&lane->out[1], n), data_at(&lane->out[0], n));
        return;
    }
    multiply_by_keys(&w.h, w.q, w.h.stride, w.k, 0, w.h.T, w.p, T);
    for (size_t i = 0; i < T; i += SOFTMAX_ROWS)
        softmax_rows(w.p, i, gemm_least(i + SOFTMAX_ROWS, T), T, w.h.scale);
    forward_values(&w, &rng);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    for (int unit = begin; unit < end; unit++)
        forward_unit(lane, unit);
}

/* ------------------------------------------------------------------------------------------------ backward */

/* dscore holds the gradients of the kept probabilities and becomes that of the scores. With k the factors of dropout,
 *
 *     d = k dscore        dscore = p (d - sum of p d) scale */
static void score_row(const work *w, const float *p, const float *kept, float *d, size_t n)
{
    simd_vec sum = {0};
    float all;

    ROWS_EACH(j, some, n, { sum += rows_get(kept, j, some, 0.0f) * rows_get(d, j, some, 0.0f); });
    all = rows_sum(sum);
    ROWS_EACH(j, some, n, {
        simd_vec with_d = rows_get(kept, j, some, 0.0f) * rows_get(d, j, some, 0.0f);

        rows_put(d, j, some, (with_d - rows_get(p, j, some, 0.0f) * all) * w->h.scale);
    });
}

/* kept and dscore of a block. */
static void score_block(const work *w, esper_rng *rng, block b)
{
    size_t T = (size_t)w->h.T;

    if (drops(w->lane))
        keep_block(w, rng, b);
    for (int i = b.first; i < b.end; i++) {
        size_t at = (size_t)(i - b.first) * b.stride, n = (size_t)i + 1;
        const float *p = w->p + (size_t)i * T;

        if (!drops(w->lane)) {
            memcpy(b.kept + at, p, T * sizeof(float));
            memset(b.kept + at + T, 0, (b.stride - T) * sizeof(float));
        }
        if (drops(w->lane))
            score_row(w, p, b.kept + at, b.dscore + at, n);
        else
            score_row(w, b.kept + at, b.kept + at, b.dscore + at, fill_up(b.dscore + at, n, b.stride, 0.0f));
        memset(b.dscore + at + n, 0, (b.stride - n) * sizeof(float));
    }
}

/* C += A^T B for keys j .. j_end-1, where row i of A and B is query i of the block. Queries before key j have no part. */
static void add_to_keys(const work *w, block b, const float *a, const float *right, size_t right_row, int j, int j_end,
                        gemm_out c)
{
    float panel[GEMM_K * GEMM_COLS] __attribute__((aligned(64)));
    size_t width = (size_t)w->h.width, n = (size_t)(b.end - b.first);

    for (size_t col = 0; col < width; col += GEMM_COLS) {
        size_t cols = gemm_least(width - col, GEMM_COLS);

        gemm_pack_rows(cols, n, right + (size_t)b.first * right_row + col, right_row, panel);
        for (int key = j; key < j_end; key += GEMM_ROWS) {
            size_t skip = key > b.first ? (size_t)(key - b.first) : 0;

            gemm_strip(gemm_least((size_t)(j_end - key), GEMM_ROWS), cols, n - skip,
                       (gemm_left){a + skip * b.stride + key, 1, b.stride}, panel + skip * GEMM_COLS,
                       gemm_out_at(c, (size_t)key, col));
        }
    }
}

/* A block meets the keys before it, whose gradients are begun, and its own. */
static void put_keys(const work *w, block b, const float *a, const float *right, size_t right_row, float *to)
{
    gemm_out c = {.to = to, .row = w->h.stride}, more = gemm_out_more(c);

    add_to_keys(w, b, a, right, right_row, 0, b.first, more);
    add_to_keys(w, b, a, right, right_row, b.first, b.end, w->add ? more : c);
}

static void backward_block(const work *w, esper_rng *rng, block b)
{
    gemm_out dq = {.to = w->dq, .row = w->h.stride};

    multiply_by_keys(&w->h, w->g, w->h.y_stride, w->v, b.first, b.end, b.dscore, b.stride);
    score_block(w, rng, b);
    multiply_by_rows(&w->h, b.dscore, b.stride, w->k, b.first, b.end, w->add ? gemm_out_more(dq) : dq);
    put_keys(w, b, b.dscore, w->q, w->h.stride, w->dk);
    put_keys(w, b, b.kept, w->g, w->h.y_stride, w->dv);
}

static void backward_plain(const work *w, int n, esper_rng *rng)
{
    size_t bytes = (size_t)w->h.width * sizeof(float);

    for (size_t row = 0; row < (size_t)w->h.T * w->h.stride && !w->add; row += w->h.stride) {
        memset(w->dq + row, 0, bytes);
        memset(w->dk + row, 0, bytes);
        memset(w->dv + row, 0, bytes);
    }
    backward_head(w->lane, &w->h, n, rng);
}

static void backward_unit(const esper_lane *lane, int unit)
{
    float kept[BLOCK_FLOATS] __attribute__((aligned(64))), dscore[BLOCK_FLOATS] __attribute__((aligned(64)));
    work w = work_of(lane, unit);
    esper_rng rng = stream_at(lane, unit);
    int rows = block_rows(w.h.T);

    if (rows == 0) {
        backward_plain(&w, unit / lane->attr.attention.heads, &rng);
        return;
    }
    for (int first = 0; first < w.h.T; first += rows) {
        block b = {.first = first, .end = (int)gemm_least((size_t)first + (size_t)rows, (size_t)w.h.T)};

        b.stride = block_stride(w.h.T);
        b.kept = kept;
        b.dscore = dscore;
        backward_block(&w, &rng, b);
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    if (lane->in[0].grad != NULL)
        for (int unit = begin; unit < end; unit++)
            backward_unit(lane, unit);
}

const esper_op_kernels ESPER_OP_KERNELS(attention) = {
    .forward = {{forward, units}},
    .backward = {{backward, units}},
};
