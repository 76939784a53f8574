/* Copies and fills of many networks in one launch, the scan that raises flags, and batches out of samples on the device. */
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

ESPER_KERNEL_PLAIN(esper_move, 256)
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
ESPER_KERNEL_PLAIN(esper_scan_flags, 256)
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

/* A batch of images: each pixel is looked up where window and mirror say it lies; what lies outside of the image, or in the square
 * that is cut out, is black. */
FUNCTION void gather_image(const esper_gather *gather, const esper_pick *pick, int sample)
{
    int height = gather->dim[1], width = gather->dim[2], n_rows = gather->dim[0] * height;
    const unsigned char *image = (const unsigned char *)gather->items + (uint64_t)pick->item * n_rows * width;
    float *to = gather->inputs + (uint64_t)sample * n_rows * width;
    int top = pick->cut_y - gather->cutout / 2, left = pick->cut_x - gather->cutout / 2;
    bool flip = pick->flip != 0;

    for (int row = (int)threadIdx.x / 32; row < n_rows; row += CUDA_GATHER_THREADS / 32) { /* a warp makes a row */
        const float *levels = gather->levels + row / height * 256;
        int y = row % height, from_y = y + pick->top;
        const unsigned char *from = image + (row - y + from_y) * width;
        bool black = from_y < 0 || from_y >= height, cuts = y >= top && y < top + gather->cutout;

        for (int x = (int)threadIdx.x % 32; x < width; x += 32) {
            int from_x = (flip ? width - 1 - x : x) + pick->left;
            bool cut = cuts && x >= left && x < left + gather->cutout;

            to[row * width + x] = levels[black || cut || from_x < 0 || from_x >= width ? 0 : from[from_x]];
        }
    }
}

ESPER_KERNEL_PLAIN(esper_gather_batch, 128)
{
    /* The table is the host's memory: it is read once for a block, word by word side by side. */
    const cuda_gather_table *table = (const cuda_gather_table *)(const void *)lanes.lane[blockIdx.y];
    enum { HEAD = sizeof(esper_gather) / 4, WORDS = HEAD + sizeof(esper_pick) / 4 };
    __shared__ __align__(8) uint32_t words[WORDS];
    int sample = (int)blockIdx.x, n;
    esper_gather gather;
    esper_pick pick;

    if (threadIdx.x < WORDS)
        words[threadIdx.x] = threadIdx.x < HEAD ? ((const uint32_t *)(const void *)&table->gather)[threadIdx.x]
                                                : ((const uint32_t *)(const void *)&table->pick[sample])[threadIdx.x - HEAD];
    __syncthreads();
    memcpy(&gather, words, sizeof(gather));
    memcpy(&pick, words + HEAD, sizeof(pick));
    if (sample >= gather.n)
        return;
    n = gather.dim[0];
    if (gather.kind == ESPER_ITEMS_TOKENS) {
        const unsigned short *tokens = (const unsigned short *)gather.items + (uint64_t)pick.item * n;

        for (int t = threadIdx.x; t < n; t += CUDA_GATHER_THREADS) {
            ((int32_t *)gather.inputs)[(uint64_t)sample * n + t] = tokens[t];
            if (gather.targets != NULL)
                gather.targets[(uint64_t)sample * n + t] = tokens[t + 1];
        }
        return;
    }
    if (gather.targets != NULL && threadIdx.x == 0)
        gather.targets[sample] = gather.labels[pick.item];
    if (gather.kind == ESPER_ITEMS_IMAGES) {
        gather_image(&gather, &pick, sample);
        return;
    }
    for (int i = threadIdx.x; i < n; i += CUDA_GATHER_THREADS)
        gather.inputs[(uint64_t)sample * n + i] = ((const float *)gather.items)[(uint64_t)pick.item * n + i];
}
