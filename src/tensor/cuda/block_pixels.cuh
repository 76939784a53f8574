/* Internal. Pixels that the taps of a convolution on blocks of samples see, as a thread loads them: those of its own sample, a row at
 * a time. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_PIXELS_CUH
#define ESPER_TENSOR_CUDA_BLOCK_PIXELS_CUH

#include "tensor/cuda/block.cuh"

/* Where a row of pixels that taps see begins, and which of them there are. */
struct row_of_pixels {
    const float *at; /* the sample's pixel of column -pad from the first: perhaps none */
    int  before;     /* pixels up to this one are left of the image */
    int  end;        /* pixels from this one on are right of it */
    bool usual;      /* those in the middle are all there */
};

/* N pixels in a row, the outer ones of which only taps beside the middle see. */
template <int N, int K> FUNCTION void load_row(const row_of_pixels &row, float *x)
{
    const int edge = K / 2;

    if (row.usual) {
#pragma unroll
        for (int j = edge; j < N - edge; j++)
            x[j] = row.at[j * ESPER_CUDA_BLOCK];
#pragma unroll
        for (int j = 0; j < edge; j++)
            x[j] = row.before == 0 ? row.at[j * ESPER_CUDA_BLOCK] : 0.0f;
#pragma unroll
        for (int j = N - edge; j < N; j++)
            x[j] = j < row.end ? row.at[j * ESPER_CUDA_BLOCK] : 0.0f;
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = j >= row.before && j < row.end ? row.at[j * ESPER_CUDA_BLOCK] : 0.0f;
}

/* The row that begins left of pixel `x` by the padding. N - K + 1 of its pixels are the middle. */
template <int N, int K> FUNCTION row_of_pixels row_at(const block_conv &v, int x)
{
    row_of_pixels row;
    int first = x - v.pad;

    row.at = 0;
    row.before = first < 0 ? -first : 0;
    row.end = v.in_w - first;
    row.usual = v.pad == K / 2 && N - K / 2 <= row.end && (row.before == 0 || row.before == K / 2);
    return row;
}

#endif
