/* LSTM on a GPU: what is launched for a lane (lstm.cu). */
#include "tensor/cuda/lstm.h"

#include <assert.h>

enum { TILE = 64, TILE_THREADS = 128, TURN = 32, TURN_THREADS = 256, JOIN_THREADS = 256 };

typedef struct steps {
    int T, H, max_rows, tiles, pieces; /* tiles and pieces of w's gradient */
} steps;

static steps steps_of(const esper_lane *lane, int max_samples)
{
    int T = lane->out[0].dim[0], H = lane->out[0].dim[1];
    int tiles = esper_cuda_divide(4 * H, TILE) * esper_cuda_divide(H, TILE);

    assert((int64_t)max_samples * T <= INT32_MAX);
    return (steps){T, H, max_samples * T, tiles, esper_linear_pieces(tiles, max_samples * T)};
}

static int blocks_of_samples(const esper_lane *lane)
{
    return esper_cuda_divide(lane->max_samples, ESPER_LSTM_SAMPLES);
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    int H = steps_of(lane, lane->max_samples).H;

    (void)part;
    launches_out[0] = (esper_cuda_launch){"esper_lstm_turn", TURN_THREADS,
                                          esper_cuda_divide(4 * H, TURN) * esper_cuda_divide(H, TURN), 0};
    launches_out[1] = (esper_cuda_launch){"esper_lstm_forward", ESPER_LSTM_THREADS, blocks_of_samples(lane), 0};
    return 2;
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    steps s = steps_of(lane, lane->max_samples);
    bool wide = s.H % 4 == 0 && (uintptr_t)lane->in[1].grad % 16 == 0 && (uintptr_t)lane->scratch % 16 == 0;
    int n = 0;

    (void)part;
    launches_out[n++] = (esper_cuda_launch){"esper_lstm_backward", ESPER_LSTM_THREADS, blocks_of_samples(lane), 0};
    if (lane->in[1].grad == NULL && lane->in[2].grad == NULL)
        return n;
    launches_out[n++] = (esper_cuda_launch){wide ? "esper_lstm_dw_64x64" : "esper_lstm_dw_64x64_any", TILE_THREADS,
                                            s.pieces * s.tiles, 0};
    if (s.pieces > 1)
        launches_out[n++] = (esper_cuda_launch){"esper_lstm_join", JOIN_THREADS,
                                                esper_cuda_divide((int64_t)4 * s.H * (s.H + 1), JOIN_THREADS), 0};
    return n;
}

/* Forward: w turned over. Backward: see lstm.cu. */
static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    steps s = steps_of(lane, max_samples);
    size_t H = (size_t)s.H, rows = (size_t)s.max_rows, parts = s.pieces > 1 ? (size_t)s.pieces * 4 * H * (H + 1) : 0;

    return (is_backward ? rows * 5 * H + (size_t)max_samples * 2 * H + parts : 4 * H * H) * sizeof(float);
}

const esper_cuda_op esper_cuda_lstm = {.forward = forward, .backward = backward, .scratch = scratch};
