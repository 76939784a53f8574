/* Copies and fills of many networks in one launch, and the scan that raises flags. */
#include "tensor/cuda/dialect.cuh"
#include "tensor/cuda/moves.h"

template <typename T>
FUNCTION void move_words(T *to, const T *from, uint64_t n, uint64_t first, uint64_t last)
{
    if (last > n)
        last = n;
    for (uint64_t i = first + threadIdx.x; i < last; i += CUDA_MOVE_THREADS)
        to[i] = from[i];
}

ESPER_KERNEL(esper_move, 256)
{
    const cuda_move *move = &reinterpret_cast<const cuda_moves *>(&lanes)->move[blockIdx.y];
    uint64_t begin = (uint64_t)blockIdx.x * CUDA_MOVE_PART, end = begin + CUDA_MOVE_PART;
    uintptr_t both = (uintptr_t)move->to | (uintptr_t)move->from | move->bytes;

    if (begin >= move->bytes)
        return;
    if (move->from == NULL) {
        uint32_t *to = (uint32_t *)move->to;

        if (end > move->bytes)
            end = move->bytes;
        for (uint64_t i = begin / 4 + threadIdx.x; i < end / 4; i += CUDA_MOVE_THREADS)
            to[i] = (uint32_t)move->word;
    } else if (both % 16 == 0) {
        move_words((uint4 *)move->to, (const uint4 *)move->from, move->bytes / 16, begin / 16, end / 16);
    } else if (both % 4 == 0) {
        move_words((uint32_t *)move->to, (const uint32_t *)move->from, move->bytes / 4, begin / 4, end / 4);
    } else {
        move_words((unsigned char *)move->to, (const unsigned char *)move->from, move->bytes, begin, end);
    }
}

/* Ors into the flag what is not finite; flags are integers, so the order does not matter. */
ESPER_KERNEL(esper_scan_flags, 256)
{
    const cuda_scan_table *table = (const cuda_scan_table *)(const void *)lanes.lane[blockIdx.y];
    const cuda_stretch *stretch = table->stretch;
    uint64_t begin, end;
    uint32_t bad = 0;

    if (blockIdx.x >= table->n_parts)
        return;
    for (uint32_t s = 1; s < table->n_stretches && table->stretch[s].first_part <= blockIdx.x; s++)
        stretch = &table->stretch[s];
    begin = (uint64_t)(blockIdx.x - stretch->first_part) * CUDA_SCAN_PART;
    end = begin + CUDA_SCAN_PART < stretch->count ? begin + CUDA_SCAN_PART : stretch->count;
    for (uint64_t i = begin + threadIdx.x; i < end; i += CUDA_SCAN_THREADS) {
        uint32_t bits = __float_as_uint(stretch->values[i]) & 0x7fffffffu;

        if (bits >= 0x7f800000u)
            bad |= bits > 0x7f800000u ? stretch->nan : stretch->inf;
    }
    if (bad != 0)
        atomicOr(table->flag, bad);
}
