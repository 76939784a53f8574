/* Attention on a GPU: what is launched for a lane (attention.cu). */
#include "tensor/cuda/attention.h"

#include "tensor/cuda/kernels.h"

static bool is_aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

/* Four numbers at a time can be loaded and stored. */
static bool fits_wide(const esper_lane *lane)
{
    int T = lane->out[0].dim[0], D = lane->out[0].dim[1], width = D / lane->attr.attention.heads;

    return T % 4 == 0 && width % 4 == 0 && is_aligned(lane->in[0].data) && is_aligned(lane->in[0].grad) &&
           is_aligned(lane->out[0].data) && is_aligned(lane->out[0].grad) && is_aligned(lane->out[1].data) &&
           is_aligned(lane->scratch);
}

static esper_cuda_launch launch_of(const esper_lane *lane, const char *wide, const char *any)
{
    int tiles = esper_cuda_divide(lane->out[0].dim[0], ESPER_ATTENTION_ROWS);

    return (esper_cuda_launch){fits_wide(lane) ? wide : any, ESPER_ATTENTION_THREADS,
                               tiles * lane->attr.attention.heads * lane->max_samples, 0};
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    launches_out[0] = launch_of(lane, "esper_attention_forward", "esper_attention_forward_any");
    return 1;
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    if (lane->in[0].grad == NULL)
        return 0;
    launches_out[0] = launch_of(lane, "esper_attention_queries", "esper_attention_queries_any");
    launches_out[1] = launch_of(lane, "esper_attention_keys", "esper_attention_keys_any");
    return 2;
}

/* Matrices like the probabilities: see attention.cu. */
static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    size_t matrices = (size_t)is_backward + (size_t)(lane->attr.attention.drop > 0);

    return matrices * (size_t)max_samples * (size_t)lane->out[1].count * sizeof(float);
}

const esper_cuda_op esper_cuda_attention = {.forward = forward, .backward = backward, .scratch = scratch};
