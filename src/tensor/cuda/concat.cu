/* Two tensors of T rows side by side: row t of y is row t of a, then row t of b. Rows are rows whatever their shape. */
#include "tensor/cuda/elements.cuh"

/* Calls work(at, input, from) for each element of the output: it is element `from` of that input. */
template <class Work> FUNCTION void for_sources(const esper_lane *lane, Work work)
{
    const esper_view *y = &lane->out[0];
    int64_t width = y->dim[1], A = lane->in[0].count / y->dim[0], B = width - A;
    unit_counter<ESPER_CUDA_CANONICAL> row_of(width);

    for_fours(elements_of<ESPER_CUDA_CANONICAL>(lane, y), [&](int64_t at, int n) {
        for (int k = 0; k < n; k++) {
            int64_t row = row_of.row(at + k), column = at + k - row * width;

            if (column < A)
                work(at + k, 0, row * A + column);
            else
                work(at + k, 1, row * B + column - A);
        }
    });
}

ESPER_KERNEL(esper_concat_forward, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    float *y = static_cast<float *>(lane->out[0].data);

    for_sources(lane, [&](int64_t at, int input, int64_t from) {
        y[at] = static_cast<const float *>(lane->in[input].data)[from];
    });
}

ESPER_KERNEL(esper_concat_backward, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const float *g = static_cast<const float *>(lane->out[0].grad);

    for_sources(lane, [&](int64_t at, int input, int64_t from) {
        const esper_view *view = &lane->in[input];
        float *to = static_cast<float *>(view->grad) + from;

        if (view->grad != NULL)
            *to = (view->add ? *to : 0) + g[at];
    });
}
