/* Copies and fills of many networks in one launch, the scan that raises flags, and batches out of samples on the device. */
#include "tensor/cuda/mma_half.cuh"
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

enum { GATHER_WARPS = CUDA_GATHER_THREADS / 32 };

/* Images, each pixel looked up where window and mirror say it lies; what lies outside of the image, or in the square that is cut
 * out, is black, which is byte 0. Where a row of one comes from: */
struct picked_row {
    const unsigned char *from;
    int first, step; /* column of pixel 0, and from one pixel to the next; NOWHERE: there is no such row */
    int cut;         /* column where the square begins; NOWHERE: it has none of this row */
};

enum { NOWHERE = 1 << 20 };

FUNCTION picked_row row_of(const esper_gather &gather, const esper_pick &pick, int row)
{
    int height = gather.dim[1], width = gather.dim[2], y = row % height, from_y = y + pick.top;
    int top = pick.cut_y - gather.cutout / 2;
    picked_row r;

    r.from = (const unsigned char *)gather.items + ((int64_t)pick.item * gather.dim[0] * height + (row - y + from_y)) * width;
    r.step = pick.flip != 0 ? -1 : 1;
    r.first = from_y < 0 || from_y >= height ? NOWHERE : pick.left + (pick.flip != 0 ? width - 1 : 0);
    r.cut = y >= top && y < top + gather.cutout ? pick.cut_x - gather.cutout / 2 : NOWHERE;
    return r;
}

/* A load that is not asked for reads some byte that is there: no thread jumps around it. */
FUNCTION unsigned char byte_of(const esper_gather &gather, const picked_row &r, int x)
{
    int from_x = r.first + x * r.step;
    bool is = (unsigned)from_x < (unsigned)gather.dim[2] && (unsigned)(x - r.cut) >= (unsigned)gather.cutout;
    unsigned char byte = __ldg(is ? r.from + from_x : (const unsigned char *)gather.items);

    return is ? byte : 0;
}

FUNCTION void gather_image(const esper_gather gather, const esper_pick &pick, int sample)
{
    int width = gather.dim[2], n_rows = gather.dim[0] * gather.dim[1];
    float *to = gather.inputs + (int64_t)sample * n_rows * width;

    for (int row = (int)threadIdx.x / 32; row < n_rows; row += GATHER_WARPS) { /* a warp makes a row */
        const float *levels = gather.levels + row / gather.dim[1] * 256;
        picked_row r = row_of(gather, pick, row);

        for (int x = (int)threadIdx.x % 32; x < width; x += 32)
            to[row * width + x] = __ldg(levels + byte_of(gather, r, x));
    }
}

/* What each warp of a block of threads has to itself, to make a row of 32 samples, of a channel or of two. */
struct gather_room {
    picked_row    from[2][GATHER_WARPS][32];
    unsigned char bytes[2][GATHER_WARPS][32][36]; /* of 32 pixels; a column lies in as many banks */
};

/* Some rows of a block's 32 samples. A thread finds out where its sample's row comes from; then the warp reads 32 pixels of one sample
 * after the other, many before it puts the first down, and writes 32 samples of one pixel after the other: of a channel as floats, or of
 * two as words (tensor/cuda/block_half.h). Samples beyond the batch are 0, as pack makes them, and so is a channel that is not there. */
template <bool HALVES>
FUNCTION void gather_block(const esper_gather gather, const esper_pick *picks, int block, int part, int n_parts, gather_room &room)
{
    enum { AT_ONCE = 16, CHANNELS = HALVES ? 2 : 1 };
    int height = gather.dim[1], width = gather.dim[2], n_rows = (gather.dim[0] + CHANNELS - 1) / CHANNELS * height;
    int warp = (int)threadIdx.x / 32, place = (int)threadIdx.x % 32;
    int end = n_rows * (part + 1) / n_parts, n_valid = min(32, gather.n - 32 * block);
    float *to = static_cast<float *>(gather.blocks) + (int64_t)block * n_rows * width * 32;

    for (int first = n_rows * part / n_parts; first < end; first += GATHER_WARPS) {
        int row = min(first + warp, end - 1); /* the last one twice, where warps are left */
        int channel = row / height * CHANNELS, next = min(channel + 1, gather.dim[0] - 1);
        const float *levels = gather.levels + channel * 256;

        __syncwarp();
        room.from[0][warp][place] = row_of(gather, picks[min(place, n_valid - 1)], channel * height + row % height);
        if (HALVES)
            room.from[1][warp][place] = row_of(gather, picks[min(place, n_valid - 1)], next * height + row % height);
        for (int first_x = 0; first_x < width; first_x += 32) {
            __syncwarp();
            for (int turn = 0; turn < (n_valid + AT_ONCE - 1) / AT_ONCE * CHANNELS; turn++) { /* sixteen samples of a channel */
                int c = turn % CHANNELS, sample = turn / CHANNELS * AT_ONCE;
                unsigned char found[AT_ONCE];

#pragma unroll
                for (int k = 0; k < AT_ONCE; k++)
                    found[k] = byte_of(gather, room.from[c][warp][sample + k], first_x + place);
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++)
                    room.bytes[c][warp][sample + k][place] = found[k];
            }
            __syncwarp();
#pragma unroll 8
            for (int i = 0; i < min(32, width - first_x); i++) {
                float *one = to + (int64_t)(row * width + first_x + i) * 32 + place;
                float low = __ldg(levels + room.bytes[0][warp][place][i]);

                low = place < n_valid ? low : 0.0f;
                if (HALVES) {
                    float high = __ldg(gather.levels + next * 256 + room.bytes[1][warp][place][i]);

                    *reinterpret_cast<unsigned *>(one) = bf16_pack(low, place < n_valid && next > channel ? high : 0.0f);
                } else
                    *one = low;
            }
        }
    }
}

/* Words, side by side. */
FUNCTION void fetch(void *to, const void *from, int n_words)
{
    for (int i = threadIdx.x; i < n_words; i += CUDA_GATHER_THREADS)
        static_cast<uint32_t *>(to)[i] = static_cast<const uint32_t *>(from)[i];
}

/* A block of threads makes a sample, or, of images that go into blocks, some rows of a block: as many as there are blocks of threads
 * for. */
ESPER_KERNEL_PLAIN(esper_gather_batch, 128)
{
    const cuda_gather_table *table = (const cuda_gather_table *)(const void *)lanes.lane[blockIdx.y];
    __shared__ __align__(16) esper_gather gather;
    __shared__ __align__(16) esper_pick picks[32];
    __shared__ gather_room room;
    int sample = (int)blockIdx.x, n;

    fetch(&gather, &table->gather, sizeof(gather) / 4);
    __syncthreads();
    n = gather.dim[0];
    if (gather.blocks != NULL) {
        int n_blocks = (gather.n + 31) / 32, n_parts = (int)gridDim.x / n_blocks, block = sample / n_parts, part = sample % n_parts;

        if (block >= n_blocks)
            return;
        fetch(picks, &table->pick[32 * block], min(32, gather.n - 32 * block) * (int)sizeof(esper_pick) / 4);
        __syncthreads();
        if (gather.targets != NULL && part == 0 && 32 * block + (int)threadIdx.x < gather.n && threadIdx.x < 32)
            gather.targets[32 * block + threadIdx.x] = gather.labels[picks[threadIdx.x].item];
        if (gather.layout == ESPER_CUDA_HALVES)
            gather_block<true>(gather, picks, block, part, n_parts, room);
        else
            gather_block<false>(gather, picks, block, part, n_parts, room);
        return;
    }
    if (sample >= gather.n)
        return;
    fetch(picks, &table->pick[sample], sizeof(esper_pick) / 4);
    __syncthreads();
    if (gather.kind == ESPER_ITEMS_TOKENS) {
        const unsigned short *tokens = (const unsigned short *)gather.items + (uint64_t)picks[0].item * n;

        for (int t = threadIdx.x; t < n; t += CUDA_GATHER_THREADS) {
            ((int32_t *)gather.inputs)[(uint64_t)sample * n + t] = tokens[t];
            if (gather.targets != NULL)
                gather.targets[(uint64_t)sample * n + t] = tokens[t + 1];
        }
        return;
    }
    if (gather.targets != NULL && threadIdx.x == 0)
        gather.targets[sample] = gather.labels[picks[0].item];
    if (gather.kind == ESPER_ITEMS_IMAGES) {
        gather_image(gather, picks[0], sample);
        return;
    }
    for (int i = threadIdx.x; i < n; i += CUDA_GATHER_THREADS)
        gather.inputs[(uint64_t)sample * n + i] = ((const float *)gather.items)[(uint64_t)picks[0].item * n + i];
}
