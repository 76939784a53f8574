/* Internal. Linear layers on a GPU: what the host, which chooses the kernels, and the kernels reckon alike. */
#ifndef ESPER_TENSOR_CUDA_LINEAR_H
#define ESPER_TENSOR_CUDA_LINEAR_H

#include "tensor/cuda/kernels.h"

#ifndef FUNCTION
#define FUNCTION static inline
#endif

/* The gradient of w sums over rows, of which there are many, while w has few tiles: its rows are cut into so many pieces, each of
 * its own blocks, whose sums are added in order. As many as keep every multiprocessor at four blocks, where that does not make
 * them short. Of the lane's shape alone, and so for its largest batch. */
FUNCTION int esper_linear_pieces(int tiles, int max_rows)
{
    enum { BLOCKS = 4 * 132, MOST = 11, LEAST_ROWS = 64 };
    int pieces = BLOCKS / tiles, most = (max_rows + LEAST_ROWS - 1) / LEAST_ROWS;

    pieces = pieces < MOST ? pieces : MOST;
    pieces = pieces < most ? pieces : most;
    return pieces > 1 ? pieces : 1;
}

/* Rows of a piece, the last one's may be fewer. */
FUNCTION int esper_linear_piece_rows(int pieces, int max_rows)
{
    return ((max_rows + pieces - 1) / pieces + 3) / 4 * 4;
}

#endif
