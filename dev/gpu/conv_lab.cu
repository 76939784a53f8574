/* Convolutions on blocks of samples, forward and back, by themselves: against float64, and how fast they are. What is launched is
 * what the table of operations writes. dev/gpu/conv_lab.sh builds it in some variants; each takes about two seconds on an H200.
 *
 * A row's limit is the larger of what memory and what arithmetic take: bytes that must move, each once, and multiply-adds at the
 * rate of tensor cores, measured first, by three products, or of FFMA where these are used. *
 *   nvcc -arch=sm_90 -O3 -std=c++17 -diag-suppress 128 -Isrc -Iinclude -cudart static src/tensor/cuda/block_conv.c -o conv_lab dev/gpu/conv_lab.cu */
#include "conv_fleet.cuh"
#include "tensor/cuda/block_conv.cu"

/* ------------------------------------------------------------------------------------------------ the machine */

static double clock_ghz = 1, memory_tb = 1, fp32_tflops = 1, tensor_tflops = 1; /* the last: of three products */
static int    processors = 1;

/* Products one behind the other, by 12 accumulators in turn. */
template <int DEPTH> __global__ void __launch_bounds__(128) rate(float *out, int rounds)
{
    float sum[12][4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};

    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int i = 0; i < 12; i++)
            if constexpr (DEPTH == 8) {
                mma_16x8x8(sum[i], a, b);
            } else {
                const unsigned few[2] = {a[0], a[1]};

                mma_16x8x4(sum[i], few, b[0]);
            }
    for (int i = 0; i < 12; i++)
        out[blockIdx.x * 128 + threadIdx.x] += sum[i][0] + sum[i][3];
}

template <int DEPTH> static void measure_rate(int warps)
{
    const int rounds = 4000;
    cudaEvent_t from, to;
    float *out;

    CHECK(cudaMalloc(&out, sizeof(float) * 128 * 16 * processors));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int k = 0; k < 2; k++) {
        CHECK(cudaEventRecord(from));
        rate<DEPTH><<<processors * warps, 128>>>(out, rounds);
        CHECK(cudaEventRecord(to));
    }
    {
        double seconds = milliseconds(from, to) / 1e3, products = 12.0 * rounds * 4 * processors * warps;
        double tflops = products * 16 * 8 * DEPTH * 2 / seconds / 1e12;

        printf("mma 16x8x%d, %d warps a quarter: %.1f TFLOP/s of TF32, %.2f cycles each at %.2f GHz; three products: %.1f\n",
               DEPTH, warps, tflops, seconds * clock_ghz * 1e9 * processors * 4 / products, clock_ghz, tflops / 3);
        if (DEPTH == 8 && tflops / 3 > tensor_tflops)
            tensor_tflops = tflops / 3;
    }
    CHECK(cudaFree(out));
}

static void look_at_machine(void)
{
    cudaDeviceProp p;
    int clock, memory_clock;

    CHECK(cudaGetDeviceProperties(&p, 0));
    CHECK(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0));
    CHECK(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0));
    processors = p.multiProcessorCount;
    clock_ghz = clock / 1e6;
    memory_tb = 2.0 * memory_clock * 1e3 * (p.memoryBusWidth / 8) / 1e12;
    fp32_tflops = processors * 128 * 2 * clock_ghz / 1e3;
    printf("%s, %d processors of %.2f GHz, memory %.2f TB/s, FFMA %.1f TFLOP/s; tensor cores %s\n", p.name, processors, clock_ghz,
           memory_tb, fp32_tflops, ESPER_BLOCK_CONV_TENSOR ? "used" : "not used");
    if (ESPER_BLOCK_CONV_TENSOR) {
        measure_rate<8>(1);
        measure_rate<8>(2);
        measure_rate<8>(3);
        measure_rate<4>(3);
    }
}

/* ------------------------------------------------------------------------------------------------ networks */

#define KERNEL(name) {#name, (const void *)name}
static const struct {
    const char *name;
    const void *kernel;
} KERNELS[] = {
    KERNEL(esper_block_conv_3_1),       KERNEL(esper_block_conv_3_4),       KERNEL(esper_block_conv_3_8),
    KERNEL(esper_block_conv_3_8_few),   KERNEL(esper_block_conv_3_8_small), KERNEL(esper_block_conv_back_3_1),
    KERNEL(esper_block_conv_back_3_4),  KERNEL(esper_block_conv_back_3_8),  KERNEL(esper_block_conv_back_3_8_few),
    KERNEL(esper_block_conv_back_3_8_small),
};

static void launch(const fleet *f, const esper_cuda_launch &what, int n_lanes)
{
    const void *kernel = NULL;
    void *argument = (void *)&f->at;

    for (size_t k = 0; k < sizeof(KERNELS) / sizeof(KERNELS[0]); k++)
        if (strcmp(KERNELS[k].name, what.kernel) == 0)
            kernel = KERNELS[k].kernel;
    if (kernel == NULL) {
        printf("the lab does not know %s\n", what.kernel);
        exit(1);
    }
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, what.shared));
    CHECK(cudaLaunchKernel(kernel, dim3(what.blocks, n_lanes), dim3(what.threads), &argument, what.shared, 0));
}

/* ------------------------------------------------------------------------------------------------ right? */

static float *fetch(const void *device, size_t n)
{
    float *host = (float *)malloc(n * sizeof(float));

    CHECK(cudaMemcpy(host, device, n * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
}

/* The largest difference among some thousand results of the last network, of the largest of them. */
static double error_of(const fleet *f, bool back)
{
    const esper_lane *lane = &f->lanes[f->n - 1];
    const esper_view *in = back ? &lane->out[1] : &lane->in[0], *out = back ? &lane->in[0] : &lane->out[1];
    int side = f->of.side, n_in = in->dim[0], n_out = out->dim[0];
    float *x = fetch(in->data, (size_t)in->count * SAMPLES), *w = fetch(lane->in[1].data, (size_t)lane->in[1].count);
    float *y = fetch(back ? out->grad : out->data, (size_t)out->count * SAMPLES);
    double most = 0, off = 0;
    unsigned state = 7;

    for (int k = 0; k < 4000; k++) {
        int s = (int)((uniform(&state) + 1) / 2 * SAMPLES), c = (int)((uniform(&state) + 1) / 2 * n_out);
        int py = k % 5 == 0 ? side - 1 : (int)((uniform(&state) + 1) / 2 * side), px = (int)((uniform(&state) + 1) / 2 * side);
        double sum = 0, found;

        for (int i = 0; i < n_in; i++)
            for (int tap = 0; tap < 9; tap++) {
                int dy = tap / 3, dx = tap % 3, iy = py + dy - 1, ix = px + dx - 1;

                if (iy < 0 || iy >= side || ix < 0 || ix >= side)
                    continue;
                sum += (double)x[((size_t)(s / 32 * n_in + i) * side * side + iy * side + ix) * 32 + s % 32] *
                       (double)(back ? w[(i * n_out + c) * 9 + 8 - tap] : w[(c * n_in + i) * 9 + tap]);
            }
        found = (double)y[((size_t)(s / 32 * n_out + c) * side * side + py * side + px) * 32 + s % 32];
        most = fmax(most, fabs(sum));
        off = fmax(off, fabs(sum - found));
    }
    free(x);
    free(w);
    free(y);
    return off / most;
}

/* The norm's sums of the last network, against what they are of y: the larger difference, of its channel's sum of squares. */
static double error_of_moments(const fleet *f)
{
    const esper_lane *lane = &f->lanes[f->n - 1];
    int C = f->of.out, pixels = f->of.side * f->of.side, n_parts = SAMPLES / 32 * block_norm_parts(lane, false);
    float *y = fetch(lane->out[1].data, (size_t)C * pixels * SAMPLES);
    double *parts = (double *)fetch((char *)lane->scratch + block_scratch_of(lane, false, SAMPLES).sums, (size_t)n_parts * C * 4);
    double off = 0;

    for (int c = 0; c < C; c++) {
        double sum = 0, squares = 0;

        for (int b = 0; b < SAMPLES / 32; b++)
            for (int i = 0; i < pixels * 32; i++) {
                double value = y[((size_t)b * C + c) * pixels * 32 + i];

                sum += value;
                squares += value * value;
            }
        for (int p = 0; p < n_parts; p++) {
            sum -= parts[((size_t)p * C + c) * 2];
            squares -= parts[((size_t)p * C + c) * 2 + 1];
        }
        off = fmax(off, fmax(fabs(sum), fabs(squares)) / (pixels * SAMPLES));
    }
    free(y);
    free(parts);
    return off;
}

/* ------------------------------------------------------------------------------------------------ fast? */

static bool try_shape(const shape &of, int n, bool back, bool check)
{
    fleet f;
    esper_cuda_launch what;
    cudaEvent_t from, to;
    double pixels = (double)n * SAMPLES * of.side * of.side, flops = 2 * 9 * pixels * of.in * of.out;
    double bytes = pixels * (of.in + of.out) * 4, us, memory_us, sums_us, error = 0, moments = 0;
    bool good, same = true;

    open_fleet(&f, of, n);
    what = launch_of(&f, back);
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    if (check) {
        const esper_view *out = back ? &f.lanes[0].in[0] : &f.lanes[0].out[1];
        float *alone, *beside;

        launch(&f, what, 1);
        alone = fetch(back ? out->grad : out->data, (size_t)out->count * SAMPLES);
        launch(&f, what, n);
        beside = fetch(back ? out->grad : out->data, (size_t)out->count * SAMPLES);
        same = memcmp(alone, beside, (size_t)out->count * SAMPLES * sizeof(float)) == 0;
        free(alone);
        free(beside);
        error = error_of(&f, back);
        moments = back ? 0 : error_of_moments(&f);
    }
    for (int k = 0; k < 2 + ROUNDS; k++) {
        if (k == 2)
            CHECK(cudaEventRecord(from));
        launch(&f, what, n);
    }
    CHECK(cudaEventRecord(to));
    us = milliseconds(from, to) * 1e3 / ROUNDS;
    memory_us = bytes / memory_tb / 1e6;
    sums_us = flops / (strstr(what.kernel, "_3_8") != NULL ? tensor_tflops : fp32_tflops) / 1e6;
    good = error <= 2e-5 && moments <= 1e-5 && same;
    printf("%-12s %-7s %3d nets %-31s %8.1f us %6.1f TFLOP/s %5.2f TB/s  limit %7.1f us (memory %6.1f, sums %6.1f): %3.0f %%", of.name,
           back ? "back" : "forward", n, what.kernel + 6, us, flops / us / 1e6, bytes / us / 1e6, fmax(memory_us, sums_us),
           memory_us, sums_us, 100 * fmax(memory_us, sums_us) / us);
    if (check)
        printf("  off %.1e, moments %.1e%s%s", error, moments, same ? "" : ", NOT THE SAME BITS", good ? "" : "  WRONG");
    printf("\n");
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    close_fleet(&f);
    return good;
}

int main(void)
{
    bool good = true;

    look_at_machine();
    for (const shape &of : SHAPES)
        for (int back = 0; back < 2; back++) {
            if (back && of.in < 4)
                continue;
            good = try_shape(of, 64, back, true) && good;
            if (&of - SHAPES < 5)
                try_shape(of, 1, back, false);
        }
    printf(good ? "all right\n" : "SOMETHING IS WRONG\n");
    return good ? 0 : 1;
}
