/* Internal. Sums over the columns of a long matrix, in double, rows in order. */
#ifndef ESPER_TENSOR_REF_COLUMNS_H
#define ESPER_TENSOR_REF_COLUMNS_H

#include "tensor/ref/ref.h"

enum { COLUMN_BLOCK = 64 }; /* columns summed at once: their sums fit on the stack, and rows are read in long pieces */

/* Puts the sums of columns begin .. end-1 of a (rows, width) matrix into a gradient of `width` elements. */
static inline void put_column_sums(const esper_view *to, const real *matrix, size_t rows, size_t width, int begin,
                                   int end)
{
    for (int first = begin; first < end; first += COLUMN_BLOCK) {
        int n = end - first < COLUMN_BLOCK ? end - first : COLUMN_BLOCK;
        double sum[COLUMN_BLOCK] = {0};

        for (size_t r = 0; r < rows; r++)
            for (int j = 0; j < n; j++)
                sum[j] += (double)matrix[r * width + (size_t)(first + j)];
        for (int j = 0; j < n; j++)
            grad_put(to, (real *)to->grad + first + j, (real)sum[j]);
    }
}

#endif
