/* LSTM: a block takes a few samples through all steps, one after the other, and reads all weights at every step, from the
 * second-level cache. What goes from step to step lies in memory that the block alone writes.
 *
 * Forward: a kernel turns w (4H,H) over, into scratch (H,4H), so that threads beside each other read numbers beside each other;
 * a thread has unit j, all four gates of all samples of the block. Where H is small, several threads have one unit, each a part of
 * the sum, which are added in order.
 *
 * Backward: the steps from the last to the first, which leave in scratch the gradients of the sums, (N,T,4H), and h before each
 * step, (N,T,H), zeros where a step began from nothing; of those two the gradient of w is a linear layer's (linear.cuh). */
#include "tensor/cuda/linear.cuh"

#include "tensor/cuda/lstm.h"

enum { THREADS = ESPER_LSTM_THREADS, SAMPLES = ESPER_LSTM_SAMPLES, PARTS = (THREADS - 32) * SAMPLES * 4 };

typedef struct steps {
    int T, H, n_samples, max_samples;
} steps;

FUNCTION steps steps_of(const esper_lane *lane)
{
    return {lane->out[0].dim[0], lane->out[0].dim[1], lane->pass->n_samples, lane->max_samples};
}

/* What the kernels of the backward pass share: the gradients of the sums, h before each step, and the gradients of h and c on
 * their way back (N,2H). */
FUNCTION float *sums_of(const esper_lane *lane)
{
    return (float *)lane->scratch;
}

FUNCTION float *h_rows_of(const esper_lane *lane, const steps &s)
{
    return sums_of(lane) + (int64_t)s.max_samples * s.T * 4 * s.H;
}

FUNCTION float *states_of(const esper_lane *lane, const steps &s)
{
    return h_rows_of(lane, s) + (int64_t)s.max_samples * s.T * s.H;
}

FUNCTION float *parts_of(const esper_lane *lane, const steps &s)
{
    return states_of(lane, s) + (int64_t)s.max_samples * 2 * s.H;
}

FUNCTION float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---------------------------------------------------------------------------------------------------- forward */

/* Turns tiles of 32 x 32 over. */
ESPER_KERNEL(esper_lstm_turn, 256)
{
    __shared__ float tile[32][33];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    int H = lane->out[0].dim[1], across = (H + 31) / 32, x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    int first_k = (int)blockIdx.x / across * 32, first_i = (int)blockIdx.x % across * 32;
    const float *w = (const float *)lane->in[1].data;
    float *to = (float *)lane->scratch;

    if (first_k >= 4 * H)
        return;
    for (int r = y; r < 32; r += 8)
        if (first_k + r < 4 * H && first_i + x < H)
            tile[r][x] = w[(int64_t)(first_k + r) * H + first_i + x];
    __syncthreads();
    for (int r = y; r < 32; r += 8)
        if (first_i + r < H && first_k + x < 4 * H)
            to[(int64_t)(first_i + r) * 4 * H + first_k + x] = tile[x][r];
}

/* How many threads have one unit: a power of two that leaves every group of them whole warps. */
FUNCTION int sharers_of(int H)
{
    int n = 1;

    while (n < 16 && 2 * n * ((H + 31) / 32 * 32) <= THREADS)
        n *= 2;
    return n;
}

/* Row t of a tensor whose samples have T rows of `width`. */
FUNCTION int64_t row_at(const steps &s, int n, int t, int width)
{
    return ((int64_t)n * s.T + t) * width;
}

/* What h or c was before step t of sample n; NULL: nothing. */
FUNCTION const float *before(const esper_lane *lane, const steps &s, int n, int t, const esper_view *first, const esper_view *rows)
{
    if (((const float *)lane->in[5].data)[(int64_t)n * s.T + t] != 0.0f)
        return NULL;
    return t == 0 ? (const float *)first->data + (int64_t)n * s.H : (const float *)rows->data + row_at(s, n, t - 1, s.H);
}

/* Finishes unit j of sample n in step t, from the four sums over h. */
FUNCTION void open_gates(const esper_lane *lane, const steps &s, int n, int t, int j, const float (&sum)[4])
{
    const float *gates = (const float *)lane->in[0].data + row_at(s, n, t, 4 * s.H) + j;
    const float *b = (const float *)lane->in[2].data + j, *c = before(lane, s, n, t, &lane->in[4], &lane->out[1]);
    float *open = (float *)lane->out[2].data + row_at(s, n, t, 4 * s.H) + j;
    int64_t to = row_at(s, n, t, s.H) + j;
    float i = sigmoid(gates[0] + b[0] + sum[0]), f = sigmoid(gates[s.H] + b[s.H] + sum[1]);
    float g = tanhf(gates[2 * s.H] + b[2 * s.H] + sum[2]), o = sigmoid(gates[3 * s.H] + b[3 * s.H] + sum[3]);
    float cell = i * g + (c != NULL ? f * c[j] : 0.0f);

    open[0] = i, open[s.H] = f, open[2 * s.H] = g, open[3 * s.H] = o;
    ((float *)lane->out[1].data)[to] = cell;
    ((float *)lane->out[0].data)[to] = o * tanhf(cell);
}

ESPER_KERNEL(esper_lstm_forward, THREADS)
{
    __shared__ float parts[PARTS];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    steps s = steps_of(lane);
    int sharers = sharers_of(s.H), units = THREADS / sharers, first = (int)blockIdx.x * SAMPLES;
    int part = (int)threadIdx.x / units, unit = (int)threadIdx.x % units;
    int begin = (int)((int64_t)s.H * part / sharers), end = (int)((int64_t)s.H * (part + 1) / sharers);
    const float *turned = (const float *)lane->scratch;

    if (first >= s.n_samples)
        return;
    for (int t = 0; t < s.T; t++) {
        const float *h[SAMPLES];

        for (int n = 0; n < SAMPLES; n++)
            h[n] = first + n < s.n_samples ? before(lane, s, first + n, t, &lane->in[3], &lane->out[0]) : NULL;
        for (int from = 0; from < s.H; from += units) {
            int j = from + unit;
            float sum[SAMPLES][4] = {};

            if (j < s.H)
#pragma unroll 4
                for (int i = begin; i < end; i++) {
                    const float *w = turned + (int64_t)i * 4 * s.H + j;
                    float w0 = w[0], w1 = w[s.H], w2 = w[2 * s.H], w3 = w[3 * s.H];

#pragma unroll
                    for (int n = 0; n < SAMPLES; n++) {
                        float v = h[n] != NULL ? h[n][i] : 0.0f;

                        sum[n][0] = fmaf(w0, v, sum[n][0]);
                        sum[n][1] = fmaf(w1, v, sum[n][1]);
                        sum[n][2] = fmaf(w2, v, sum[n][2]);
                        sum[n][3] = fmaf(w3, v, sum[n][3]);
                    }
                }
            if (part > 0)
#pragma unroll
                for (int k = 0; k < 4 * SAMPLES; k++)
                    parts[((part - 1) * 4 * SAMPLES + k) * units + unit] = sum[k / 4][k % 4];
            __syncthreads();
            if (part == 0 && j < s.H)
#pragma unroll
                for (int n = 0; n < SAMPLES; n++) {
                    for (int p = 0; p + 1 < sharers; p++)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            sum[n][k] += parts[(p * 4 * SAMPLES + 4 * n + k) * units + unit];
                    if (first + n < s.n_samples)
                        open_gates(lane, s, first + n, t, j, sum[n]);
                }
            __syncthreads();
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- backward */

FUNCTION void put(const esper_view *view, int64_t at, float v)
{
    float *grad = (float *)view->grad;

    if (grad != NULL)
        grad[at] = view->add ? grad[at] + v : v;
}

/* From the gradients of y[t] and c[t] of unit j of sample n to those of the four sums and of the c before; h before the step goes
 * into the rows that w's gradient is taken of. */
FUNCTION void close_gates(const esper_lane *lane, const steps &s, int n, int t, int j)
{
    const float *open = (const float *)lane->out[2].data + row_at(s, n, t, 4 * s.H) + j;
    const float *c = before(lane, s, n, t, &lane->in[4], &lane->out[1]);
    const float *h = before(lane, s, n, t, &lane->in[3], &lane->out[0]);
    float *da = sums_of(lane) + row_at(s, n, t, 4 * s.H) + j, *state = states_of(lane, s) + (int64_t)n * 2 * s.H + j;
    int64_t at = row_at(s, n, t, s.H) + j;
    bool last = t == s.T - 1;
    float i = open[0], f = open[s.H], g = open[2 * s.H], o = open[3 * s.H];
    float dh = ((const float *)lane->out[0].grad)[at] + (last ? 0.0f : state[0]);
    float bent = tanhf(((const float *)lane->out[1].data)[at]);
    float d = (last ? 0.0f : state[s.H]) + dh * o * (1.0f - bent * bent);
    float a[4] = {d * g * i * (1.0f - i), c != NULL ? d * c[j] * f * (1.0f - f) : 0.0f, d * i * (1.0f - g * g),
                  dh * bent * o * (1.0f - o)};

#pragma unroll
    for (int k = 0; k < 4; k++) {
        da[k * s.H] = a[k];
        put(&lane->in[0], row_at(s, n, t, 4 * s.H) + k * s.H + j, a[k]);
    }
    state[s.H] = c != NULL ? d * f : 0.0f;
    h_rows_of(lane, s)[at] = h != NULL ? h[j] : 0.0f;
}

ESPER_KERNEL(esper_lstm_backward, THREADS)
{
    __shared__ float parts[PARTS / 4];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    steps s = steps_of(lane);
    int sharers = sharers_of(s.H), units = THREADS / sharers, first = (int)blockIdx.x * SAMPLES;
    int part = (int)threadIdx.x / units, unit = (int)threadIdx.x % units, n_here = min(SAMPLES, s.n_samples - first);
    int begin = (int)((int64_t)4 * s.H * part / sharers), end = (int)((int64_t)4 * s.H * (part + 1) / sharers);
    const float *w = (const float *)lane->in[1].data;

    if (first >= s.n_samples)
        return;
    for (int t = s.T - 1; t >= 0; t--) {
        const float *da[SAMPLES];
        bool reset[SAMPLES];

        for (int i = (int)threadIdx.x; i < n_here * s.H; i += THREADS)
            close_gates(lane, s, first + i / s.H, t, i % s.H);
        __syncthreads();
        for (int n = 0; n < SAMPLES; n++) {
            int at = first + min(n, n_here - 1);

            da[n] = sums_of(lane) + row_at(s, at, t, 4 * s.H);
            reset[n] = ((const float *)lane->in[5].data)[(int64_t)at * s.T + t] != 0.0f;
        }
        for (int from = 0; from < s.H; from += units) {
            int j = from + unit;
            float sum[SAMPLES] = {};

            if (j < s.H)
#pragma unroll 8
                for (int k = begin; k < end; k++) {
                    float v = w[(int64_t)k * s.H + j];

#pragma unroll
                    for (int n = 0; n < SAMPLES; n++)
                        sum[n] = fmaf(v, da[n][k], sum[n]);
                }
            if (part > 0)
#pragma unroll
                for (int n = 0; n < SAMPLES; n++)
                    parts[((part - 1) * SAMPLES + n) * units + unit] = sum[n];
            __syncthreads();
            if (part == 0 && j < s.H)
#pragma unroll
                for (int n = 0; n < SAMPLES; n++) {
                    for (int p = 0; p + 1 < sharers; p++)
                        sum[n] += parts[(p * SAMPLES + n) * units + unit];
                    if (n < n_here)
                        states_of(lane, s)[(int64_t)(first + n) * 2 * s.H + j] = reset[n] ? 0.0f : sum[n];
                }
            __syncthreads();
        }
    }
    for (int i = (int)threadIdx.x; i < n_here * s.H; i += THREADS) {
        int n = first + i / s.H, j = i % s.H;
        const float *state = states_of(lane, s) + (int64_t)n * 2 * s.H + j;

        put(&lane->in[3], (int64_t)n * s.H + j, state[0]);
        put(&lane->in[4], (int64_t)n * s.H + j, state[s.H]);
    }
}

FUNCTION linear_weights weights_of(const esper_lane *lane)
{
    steps s = steps_of(lane);

    return {s.H,
            4 * s.H,
            s.n_samples * s.T,
            s.max_samples * s.T,
            sums_of(lane),
            h_rows_of(lane, s),
            (float *)lane->in[1].grad,
            (float *)lane->in[2].grad,
            lane->in[1].add,
            lane->in[2].add,
            parts_of(lane, s)};
}

#define WEIGHT_KERNELS(name, wide)                                                                          \
    ESPER_KERNEL_DENSE(esper_lstm_dw_##name, tile_64x64::THREADS, 4)                                        \
    {                                                                                                       \
        __shared__ float4 shared[tile_64x64::FLOATS / 4];                                                   \
        linear_piece<tile_64x64, wide>(weights_of(lanes.lane[blockIdx.y]), (int)blockIdx.x, (float *)shared); \
    }

WEIGHT_KERNELS(64x64, true)
WEIGHT_KERNELS(64x64_any, false)

ESPER_KERNEL(esper_lstm_join, 256)
{
    linear_join<tile_64x64>(weights_of(lanes.lane[blockIdx.y]), (int64_t)blockIdx.x * 256 + threadIdx.x);
}
