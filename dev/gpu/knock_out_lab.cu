/* What dev/gpu/knock_out_lab.sh builds: times of kernels with parts knocked out, beside the whole. 64 networks of one layer each. */
#include "conv_fleet.cuh"
#include "tensor/cuda/block_pixels.cuh"
#include "tensor/cuda/mma.cuh"

#include "parts.inc"

/* A layer whose norm, ReLU and pool stand behind, on the way back. */
static void add_norm(fleet *f)
{
    const int C = f->of.out, half = f->of.side / 2;
    size_t out = (size_t)SAMPLES * C * half * half;
    float *grads = device_numbers(out * f->n, 5), *few = device_numbers(8 * C, 6);
    esper_lane *lanes = (esper_lane *)f->at.lane[0];

    for (int i = 0; i < f->n; i++) {
        esper_lane *lane = &f->lanes[i];

        set_view(&lane->out[0], 3, C, half, half, 1);
        lane->out[0].grad = grads + out * i;
        for (int k = 0; k < 4; k++) {
            set_view(&lane->in[2 + k], 1, C, 1, 1, 1);
            lane->in[2 + k].data = few + k * C;
        }
        for (int k = 0; k < 2; k++) {
            set_view(&lane->out[2 + k], 1, C, 1, 1, 1);
            lane->out[2 + k].data = few + (4 + k) * C;
        }
        lane->attr.conv_norm.relu = lane->attr.conv_norm.pool = true;
        CHECK(cudaMemset((char *)lane->scratch + block_scratch_of(lane, true, SAMPLES).mean_g, 0, 8 * C * sizeof(float)));
    }
    CHECK(cudaMemcpy(lanes, f->lanes, f->n * sizeof(esper_lane), cudaMemcpyHostToDevice));
}

typedef void kernel_of_lanes(const esper_cuda_lanes);

static void time_of(const fleet *f, const char *shape, const char *kernel_name, const char *part, kernel_of_lanes *kernel, int blocks,
                    int shared)
{
    cudaEvent_t from, to;
    cudaFuncAttributes a;
    int dense;
    float us;

    CHECK(cudaFuncGetAttributes(&a, kernel));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&dense, kernel, BLOCK_THREADS, shared));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int k = 0; k < 2 + ROUNDS; k++) {
        if (k == 2)
            CHECK(cudaEventRecord(from));
        kernel<<<dim3(blocks, f->n), BLOCK_THREADS, shared>>>(f->at);
    }
    CHECK(cudaEventRecord(to));
    us = milliseconds(from, to) * 1e3f / ROUNDS;
    printf("%-12s %3d nets %-22s %-12s %8.1f us   %3d registers, %4d bytes spilt, %d blocks a processor\n", shape, f->n, kernel_name, part,
           us, a.numRegs, (int)a.localSizeBytes, dense);
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
}

int main(void)
{
    for (const shape &of : SHAPES) {
        fleet f;

        if (&of - SHAPES >= 3)
            break;
        for (int n = 64; n >= 1; n /= 64) {
            open_fleet(&f, of, n);
            if (of.in < 4) {
#define PART(kind, part) \
    time_of(&f, of.name, "conv_3_8_few", #part, kind##_##part::part##_conv_3_8_few, what.blocks, what.shared);
                const esper_cuda_launch what = launch_of(&f, false);
#include "conv.inc"
#undef PART
            } else {
#define PART(kind, part) time_of(&f, of.name, "conv_3_8", #part, kind##_##part::part##_conv_3_8, what.blocks, what.shared);
                const esper_cuda_launch what = launch_of(&f, false);
#include "conv.inc"
#undef PART
            }
            if (of.in >= 4) {
#define PART(kind, part) time_of(&f, of.name, "conv_back_3_8", #part, kind##_##part::part##_conv_back_3_8, what.blocks, what.shared);
                const esper_cuda_launch what = launch_of(&f, true);
#include "conv.inc"
#undef PART
            }
            {
                block_conv v = block_conv_of(f.lanes, false);
                block_weigh_cut cut = block_weigh_cut_of(&v);
                int blocks = block_divide(SAMPLES / ESPER_CUDA_BLOCK, cut.span) * cut.blocks;

                if (of.in < 4) {
#define PART(kind, part) time_of(&f, of.name, "weigh_8", #part, kind##_##part::part##_weigh_8, blocks, 0);
#include "weigh.inc"
#undef PART
                    add_norm(&f);
#define PART(kind, part) \
    time_of(&f, of.name, "weigh_first_pool", #part, kind##_##part::part##_weigh_first_pool, blocks, 0);
#include "weigh.inc"
#undef PART
                } else {
#define PART(kind, part) time_of(&f, of.name, "weigh_16", #part, kind##_##part::part##_weigh_16, blocks, 0);
#include "weigh.inc"
#undef PART
                }
            }
            close_fleet(&f);
        }
    }
    return 0;
}
