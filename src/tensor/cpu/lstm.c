/* Steps of an LSTM, one after the other: tensor/ref/lstm.c says what they are.
 *
 * A step multiplies the states of all samples of a range by the same matrix, which is packed once for the launch, by units
 * that are its panels. A sum runs over k in order, so a sample's numbers do not depend on what else is in its range. The
 * gradient of w is a sum over all steps of all samples: that of a linear layer whose rows are the states before each step.
 *
 * Scratch, forward: w packed. Backward: w packed the other way; the gradients of the sums (N,T,4H); the states before each
 * step (N,T,H), zeros where there is none; the gradients of h and c on their way back (N,2H). */
#include <string.h>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/vec_math.h"
#include "tensor/ref/ref.h"

extern const esper_op_kernels ESPER_OP_KERNELS(linear);

static size_t width(const esper_lane *lane)
{
    return (size_t)lane->out[0].dim[1];
}

static size_t n_steps(const esper_lane *lane)
{
    return (size_t)lane->out[0].dim[0];
}

static size_t whole_panels(size_t cols)
{
    return (cols + GEMM_COLS - 1) / GEMM_COLS * GEMM_COLS;
}

/* ------------------------------------------------------------------------------------------------ packed matrices */

/* b (depth, cols) in blocks of GEMM_K rows, each in panels. */
typedef struct packed {
    size_t depth, cols;
    float *at;
} packed;

static packed packed_for(const esper_lane *lane, bool backward)
{
    size_t H = width(lane);

    return (packed){.depth = backward ? 4 * H : H, .cols = backward ? H : 4 * H, .at = lane->scratch};
}

static size_t packed_floats(packed p)
{
    return p.depth * whole_panels(p.cols);
}

/* Rows k .. k+n_k-1 of the panel that begins at column col. */
static float *panel_at(packed p, size_t k, size_t n_k, size_t col)
{
    return p.at + k * whole_panels(p.cols) + col * n_k;
}

/* Units are panels. w is (4H,H): forward its rows are the columns of b, backward the rows. */
static void pack(const esper_lane *lane, bool backward, int begin, int end)
{
    packed p = packed_for(lane, backward);
    const float *w = lane->in[1].data;
    size_t H = width(lane);

    for (int unit = begin; unit < end; unit++)
        for (size_t k = 0; k < p.depth; k += GEMM_K) {
            size_t col = (size_t)unit * GEMM_COLS, n_k = gemm_least(p.depth - k, GEMM_K);
            size_t cols = gemm_least(p.cols - col, GEMM_COLS);

            if (backward)
                gemm_pack_rows(cols, n_k, w + k * H + col, H, panel_at(p, k, n_k, col));
            else
                gemm_pack_turned(cols, n_k, w + col * H + k, H, panel_at(p, k, n_k, col));
        }
}

static void pack_forward(const esper_lane *lane, int begin, int end)
{
    pack(lane, false, begin, end);
}

static void pack_backward(const esper_lane *lane, int begin, int end)
{
    pack(lane, true, begin, end);
}

static int forward_panels(const esper_lane *lane)
{
    return (int)(whole_panels(4 * width(lane)) / GEMM_COLS);
}

static int backward_panels(const esper_lane *lane)
{
    return (int)(whole_panels(width(lane)) / GEMM_COLS);
}

/* c = base + a b for `rows` rows. */
static void multiply(packed b, size_t rows, gemm_left a, gemm_out c)
{
    for (size_t k = 0; k < b.depth; k += GEMM_K) {
        size_t n_k = gemm_least(b.depth - k, GEMM_K);

        gemm_block(rows, b.cols, n_k, gemm_left_at(a, 0, k), panel_at(b, k, n_k, 0), c);
        c = gemm_out_more(c);
    }
}

/* ------------------------------------------------------------------------------------------------ forward */

static bool begins_anew(const esper_lane *lane, int n, size_t t)
{
    return ((const float *)data_at(&lane->in[5], n))[t] != 0.0f;
}

/* The state before step t: row t-1 of what the steps leave behind, or the first one. */
static const float *before(const esper_lane *lane, int n, size_t t, int first, int rows)
{
    if (t == 0)
        return data_at(&lane->in[first], n);
    return (const float *)data_at(&lane->out[rows], n) + (t - 1) * width(lane);
}

/* The sums of step t: what comes in, and the states before through w. The bias follows later. */
static void add_states(const esper_lane *lane, packed w, int begin, int end, size_t t)
{
    size_t row = 4 * width(lane), stride = n_steps(lane) * row;
    const float *in = (const float *)data_at(&lane->in[0], begin) + t * row;
    float *to = (float *)data_at(&lane->out[2], begin) + t * row;
    gemm_left states = {before(lane, begin, t, 3, 0), (t == 0 ? 1 : n_steps(lane)) * width(lane), 1};

    multiply(w, (size_t)(end - begin), states, (gemm_out){to, stride, in, stride});
    for (int n = begin; n < end; n++, in += stride, to += stride)
        if (begins_anew(lane, n, t)) /* whatever the state before was */
            memcpy(to, in, row * sizeof(*to));
}

static void step_sample(const esper_lane *lane, int n, size_t t)
{
    size_t H = width(lane);
    const float *b = lane->in[2].data, *c = begins_anew(lane, n, t) ? NULL : before(lane, n, t, 4, 1);
    float *open = (float *)data_at(&lane->out[2], n) + t * 4 * H;
    float *cells = (float *)data_at(&lane->out[1], n) + t * H, *y = (float *)data_at(&lane->out[0], n) + t * H;

    ROWS_EACH(j, some, H, {
        simd_vec i = vec_sigmoid(rows_get(open, j, some, 0.0f) + rows_get(b, j, some, 0.0f));
        simd_vec f = vec_sigmoid(rows_get(open + H, j, some, 0.0f) + rows_get(b + H, j, some, 0.0f));
        simd_vec g = vec_tanh(rows_get(open + 2 * H, j, some, 0.0f) + rows_get(b + 2 * H, j, some, 0.0f));
        simd_vec o = vec_sigmoid(rows_get(open + 3 * H, j, some, 0.0f) + rows_get(b + 3 * H, j, some, 0.0f));
        simd_vec cell = i * g;

        if (c != NULL)
            cell += f * rows_get(c, j, some, 0.0f);
        rows_put(open, j, some, i);
        rows_put(open + H, j, some, f);
        rows_put(open + 2 * H, j, some, g);
        rows_put(open + 3 * H, j, some, o);
        rows_put(cells, j, some, cell);
        rows_put(y, j, some, o * vec_tanh(cell));
    });
}

static void forward(const esper_lane *lane, int begin, int end)
{
    packed w = packed_for(lane, false);

    for (size_t t = 0; t < n_steps(lane); t++) {
        add_states(lane, w, begin, end, t);
        for (int n = begin; n < end; n++)
            step_sample(lane, n, t);
    }
}

/* ------------------------------------------------------------------------------------------------ backward */

/* The parts of the scratch memory. */
typedef struct back {
    packed w;
    float *sums;   /* (N,T,4H) gradients of the sums */
    float *states; /* (N,T,H) before each step */
    float *dh;     /* (N,2H) */
} back;

static back back_of(const esper_lane *lane)
{
    size_t rows = (size_t)lane->pass->n_samples * n_steps(lane), H = width(lane);
    back s = {.w = packed_for(lane, true)};

    s.sums = s.w.at + packed_floats(s.w);
    s.states = s.sums + rows * 4 * H;
    s.dh = s.states + rows * H;
    return s;
}

static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    size_t H = width(lane), rows = (size_t)max_samples * n_steps(lane);
    size_t floats = packed_floats(packed_for(lane, is_backward));

    if (is_backward)
        floats += rows * 5 * H + (size_t)max_samples * 2 * H;
    return floats * sizeof(float);
}

/* From the gradients of y[t] and c[t] to those of the four sums and of the c before; the state before is put by. */
static void close_gates(const esper_lane *lane, const back *s, int n, size_t t)
{
    size_t H = width(lane), at = (size_t)n * n_steps(lane) + t;
    bool anew = begins_anew(lane, n, t);
    const float *c = anew ? NULL : before(lane, n, t, 4, 1), *h = anew ? NULL : before(lane, n, t, 3, 0);
    const float *open = (const float *)data_at(&lane->out[2], n) + t * 4 * H;
    const float *cells = (const float *)data_at(&lane->out[1], n) + t * H;
    const float *g = (const float *)grad_at(&lane->out[0], n) + t * H;
    float *dh = s->dh + (size_t)n * 2 * H, *dc = dh + H, *da = s->sums + at * 4 * H, *state = s->states + at * H;

    ROWS_EACH(j, some, H, {
        simd_vec i = rows_get(open, j, some, 0.0f);
        simd_vec f = rows_get(open + H, j, some, 0.0f);
        simd_vec bend = rows_get(open + 2 * H, j, some, 0.0f);
        simd_vec o = rows_get(open + 3 * H, j, some, 0.0f);
        simd_vec out = rows_get(dh, j, some, 0.0f) + rows_get(g, j, some, 0.0f);
        simd_vec seen = vec_tanh(rows_get(cells, j, some, 0.0f));
        simd_vec d = rows_get(dc, j, some, 0.0f) + out * o * (1.0f - seen * seen);
        simd_vec old = {0};
        simd_vec carried = {0};
        simd_vec put_by = {0};

        if (c != NULL) {
            old = rows_get(c, j, some, 0.0f);
            put_by = rows_get(h, j, some, 0.0f);
            carried = d * f;
        }
        rows_put(da, j, some, d * bend * i * (1.0f - i));
        rows_put(da + H, j, some, d * old * f * (1.0f - f));
        rows_put(da + 2 * H, j, some, d * i * (1.0f - bend * bend));
        rows_put(da + 3 * H, j, some, out * seen * o * (1.0f - o));
        rows_put(dc, j, some, carried);
        rows_put(state, j, some, put_by);
    });
}

/* The gradients of the states before step t. */
static void pass_back(const esper_lane *lane, const back *s, int begin, int end, size_t t)
{
    size_t H = width(lane), T = n_steps(lane);
    const float *da = s->sums + ((size_t)begin * T + t) * 4 * H;
    float *dh = s->dh + (size_t)begin * 2 * H;

    multiply(s->w, (size_t)(end - begin), (gemm_left){da, T * 4 * H, 1}, (gemm_out){.to = dh, .row = 2 * H});
    for (int n = begin; n < end; n++, dh += 2 * H)
        if (begins_anew(lane, n, t))
            memset(dh, 0, H * sizeof(*dh));
}

static void backward_steps(const esper_lane *lane, int begin, int end)
{
    back s = back_of(lane);
    size_t H = width(lane), T = n_steps(lane);

    memset(s.dh + (size_t)begin * 2 * H, 0, (size_t)(end - begin) * 2 * H * sizeof(float));
    for (size_t t = T; t-- > 0;) {
        for (int n = begin; n < end; n++)
            close_gates(lane, &s, n, t);
        pass_back(lane, &s, begin, end, t);
    }
    for (int n = begin; n < end; n++) {
        grad_put_all(&lane->in[0], n, s.sums + (size_t)n * T * 4 * H);
        grad_put_all(&lane->in[3], n, s.dh + (size_t)n * 2 * H);
        grad_put_all(&lane->in[4], n, s.dh + (size_t)n * 2 * H + H);
    }
}

/* The product that the gradients of w and b are made of, as a linear layer's. */
static esper_lane as_linear(const esper_lane *lane)
{
    back s = back_of(lane);
    esper_lane linear = *lane;

    linear.in[0] = lane->out[0]; /* (T,H), and so are the states */
    linear.in[0].data = s.states;
    linear.in[0].grad = NULL;
    linear.out[0] = lane->in[0];
    linear.out[0].grad = s.sums;
    linear.scratch = NULL;
    return linear;
}

enum { LINEAR_W = 1 }; /* the phase of a linear layer that makes them */

static void backward_w(const esper_lane *lane, int begin, int end)
{
    esper_lane linear = as_linear(lane);

    ESPER_OP_KERNELS(linear).backward[LINEAR_W].run(&linear, begin, end);
}

static int backward_w_units(const esper_lane *lane)
{
    esper_lane linear = as_linear(lane);

    return ESPER_OP_KERNELS(linear).backward[LINEAR_W].units(&linear);
}

const esper_op_kernels ESPER_OP_KERNELS(lstm) = {
    .forward = {{pack_forward, forward_panels}, {forward, NULL}},
    .backward = {{pack_backward, backward_panels}, {backward_steps, NULL}, {backward_w, backward_w_units}},
    .scratch = scratch,
};
