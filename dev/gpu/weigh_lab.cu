/* The lab for gradients of weights of 3 x 3 convolutions on blocks of samples: the kernels of fused multiply-adds (block_conv.cu) beside
 * those of tensor cores (block_weigh.cu), in the shapes of cnn_small and cnn_100k. Each is checked against sums in double first, for the
 * first and the last network, also on a batch that no block divides and on numbers whose mean is not 0, where sums of many small
 * products that are cut off instead of rounded would show. Then its time: the median of several runs of a few launches.
 *
 * Then a block with norm, ReLU and pool on the way back: the sums of its norm, dy written, and the weights' gradient from it; and dy
 * formed where the weights' gradient uses it, as a first layer does. Bits of the two are compared.
 *
 * The limits that are printed above the table are this device's, measured here: bytes read, products on tensor cores from registers,
 * and how long a conversion to TF32 takes beside cutting off.
 *
 *   nvcc -arch=sm_90 -O3 -std=c++17 -diag-suppress 128 -Isrc -Iinclude -cudart static -o weigh_lab dev/gpu/weigh_lab.cu
 *   usage: weigh_lab [networks]     64, and then one */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/block_norm.cu"
#include "tensor/cuda/block_weigh.cu"

enum { SAMPLES = 128, ROUNDS = 9, IN_A_ROW = 5, MOST_NETWORKS = 64 };

#define MUST(call)                                                                               \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            fprintf(stderr, "weigh_lab: line %d: %s\n", __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

typedef void kernel_of_lanes(const esper_cuda_lanes lanes);

static cudaEvent_t begin, end;

/* ------------------------------------------------------------------------------------------------ limits */

__global__ void fill(float *to, size_t n, unsigned tag, float shift)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u ^ (unsigned)(i >> 32) * 40503u ^ tag * 0x9e3779b9u;

        h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
        to[i] = (float)h * 0x1p-31f - 1.0f + shift;
    }
}

__global__ void read_all(const float4 *from, size_t n, float *to)
{
    float sum = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float4 v = from[i];

        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 12345.678f)
        *to = sum;
}

/* HOW: 0 products alone; 1 with numbers that are cut off, 2 with numbers that are converted: four for each product. */
template <int HOW> __global__ void multiply_only(float *to, int turns)
{
    float c[8][4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {4, 5};
    float x[4] = {threadIdx.x * 0.1f, 1, 2, 3};

    for (int t = 0; t < turns; t++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (HOW > 0)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    unsigned lo;

                    x[k] += 1.0f;
                    if (HOW == 1)
                        tf32_cut(x[k], &a[k], &lo);
                    else
                        tf32_split(x[k], &a[k], &lo);
                    b[k % 2] ^= lo;
                }
            mma_16x8x8(c[i], a, b);
        }
    for (int i = 0; i < 8; i++)
        if (c[i][0] + c[i][1] + c[i][2] + c[i][3] == 12345.678f)
            *to = c[i][0];
}

static double elapsed_us(void)
{
    float ms = 0;

    MUST(cudaEventRecord(end));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&ms, begin, end));
    return (double)ms * 1e3;
}

template <int HOW> static void print_products(const char *what, float *to, int n_blocks)
{
    const int turns = 2000;
    double us = 0;

    for (int i = 0; i < 2; i++) {
        MUST(cudaEventRecord(begin));
        multiply_only<HOW><<<n_blocks * 4, 128>>>(to, turns);
        us = elapsed_us();
    }
    printf("products of TF32, %s: %.0f TFLOP/s; three for one of floats: %.0f\n", what,
           2048.0 * 8 * turns * n_blocks * 16 / us * 1e-6, 2048.0 * 8 * turns * n_blocks * 16 / us * 1e-6 / 3);
}

static void print_limits(void)
{
    const size_t n = (size_t)1 << 30;
    cudaDeviceProp p;
    double us = 0;
    float *memory;

    MUST(cudaGetDeviceProperties(&p, 0));
    printf("%s, %d multiprocessors, second cache %d MiB\n", p.name, p.multiProcessorCount, p.l2CacheSize >> 20);
    MUST(cudaMalloc(&memory, n * sizeof(float)));
    MUST(cudaMemset(memory, 0, n * sizeof(float)));
    for (int i = 0; i < 3; i++) {
        MUST(cudaEventRecord(begin));
        read_all<<<p.multiProcessorCount * 16, 256>>>((const float4 *)memory, n / 4, memory);
        us = elapsed_us();
    }
    printf("reads: %.0f GB/s\n", (double)n * 4 / us * 1e-3);
    print_products<0>("from registers", memory, p.multiProcessorCount);
    print_products<1>("and four cut off", memory, p.multiProcessorCount);
    print_products<2>("and four converted", memory, p.multiProcessorCount);
    MUST(cudaFree(memory));
}

/* ------------------------------------------------------------------------------------------------ a shape */

typedef struct shape {
    const char *name;
    int         in_c, out_c, side;
} shape;

typedef struct lab {
    shape            s;
    int              n_networks, n_samples;
    size_t           x_floats, y_floats, n_weights, scratch_bytes; /* of a network */
    float           *x, *dy, *dw;
    char            *scratch;
    esper_pass      *pass;
    esper_lane       lane; /* of the first network */
    esper_lane      *lanes;
    esper_cuda_lanes list;
} lab;

static esper_view view_of(void *data, void *grad, int rank, int a, int b, int c, int d)
{
    esper_view v = {};

    v.data = data;
    v.grad = grad;
    v.rank = rank;
    v.dim[0] = a, v.dim[1] = b, v.dim[2] = c, v.dim[3] = d;
    v.count = (int64_t)a * b * c * d;
    return v;
}

static void open_lab(lab *l, shape s, int n_networks, int n_samples, float shift)
{
    esper_lane *lanes = (esper_lane *)calloc((size_t)n_networks, sizeof(*lanes));
    esper_pass pass = {};
    int blocks = block_divide(n_samples, ESPER_CUDA_BLOCK);

    memset(l, 0, sizeof(*l));
    l->s = s;
    l->n_networks = n_networks;
    l->n_samples = n_samples;
    l->x_floats = (size_t)s.in_c * s.side * s.side * blocks * ESPER_CUDA_BLOCK;
    l->y_floats = (size_t)s.out_c * s.side * s.side * blocks * ESPER_CUDA_BLOCK;
    l->n_weights = (size_t)s.in_c * s.out_c * 9;
    MUST(cudaMalloc(&l->x, n_networks * l->x_floats * sizeof(float)));
    MUST(cudaMalloc(&l->dy, n_networks * l->y_floats * sizeof(float)));
    MUST(cudaMalloc(&l->dw, n_networks * l->n_weights * sizeof(float)));
    fill<<<1024, 256>>>(l->x, n_networks * l->x_floats, 1, shift);
    fill<<<1024, 256>>>(l->dy, n_networks * l->y_floats, 2, shift);
    pass.n_samples = n_samples;
    pass.training = true;
    MUST(cudaMalloc(&l->pass, sizeof(pass)));
    MUST(cudaMemcpy(l->pass, &pass, sizeof(pass), cudaMemcpyHostToDevice));
    for (int n = 0; n < n_networks; n++) {
        esper_lane *lane = &lanes[n];

        lane->in[0] = view_of(l->x + n * l->x_floats, NULL, 3, s.in_c, s.side, s.side, 1);
        lane->in[1] = view_of(l->dw, l->dw + n * l->n_weights, 4, s.out_c, s.in_c, 3, 3);
        lane->out[0] = view_of(NULL, l->dy + n * l->y_floats, 3, s.out_c, s.side, s.side, 1);
        lane->attr.conv.pad = 1;
        lane->attr.conv.groups = 1;
        lane->max_samples = n_samples;
        lane->pass = l->pass;
        l->scratch_bytes = block_scratch_of(lane, true, n_samples).bytes;
    }
    MUST(cudaMalloc(&l->scratch, n_networks * l->scratch_bytes));
    MUST(cudaMalloc(&l->lanes, n_networks * sizeof(*lanes)));
    for (int n = 0; n < n_networks; n++) {
        lanes[n].scratch = l->scratch + n * l->scratch_bytes;
        l->list.lane[n] = l->lanes + n;
    }
    MUST(cudaMemcpy(l->lanes, lanes, n_networks * sizeof(*lanes), cudaMemcpyHostToDevice));
    l->lane = lanes[0];
    free(lanes);
}

static void close_lab(lab *l)
{
    MUST(cudaFree(l->x));
    MUST(cudaFree(l->dy));
    MUST(cudaFree(l->dw));
    MUST(cudaFree(l->pass));
    MUST(cudaFree(l->scratch));
    MUST(cudaFree(l->lanes));
}

/* Both launches of a kind of kernels. */
static void run(const lab *l, bool on_cores)
{
    block_conv v = block_conv_of(&l->lane, false);
    int blocks = block_divide(l->n_samples, ESPER_CUDA_BLOCK), join = block_divide((int)l->n_weights, BLOCK_THREADS);

    if (on_cores) {
        block_weigh_cut cut = block_weigh_cut_of(&v);
        dim3 grid(block_divide(blocks, cut.span) * cut.blocks, l->n_networks);

        if (cut.wide)
            esper_block_weigh_16<<<grid, BLOCK_THREADS>>>(l->list);
        else
            esper_block_weigh_8<<<grid, BLOCK_THREADS>>>(l->list);
        esper_block_weigh_join<<<dim3(join, l->n_networks), BLOCK_THREADS>>>(l->list);
    } else {
        block_weights_cut cut = block_weights_cut_of(&v);

        esper_block_conv_weights_3_8<<<dim3(block_divide(blocks * cut.parts * cut.warps, BLOCK_WARPS), l->n_networks),
                                       BLOCK_THREADS>>>(l->list);
        esper_block_conv_join<<<dim3(join, l->n_networks), BLOCK_THREADS>>>(l->list);
    }
    MUST(cudaGetLastError());
}

/* ------------------------------------------------------------------------------------------------ checks */

/* A block of threads has a weight. Samples beyond the batch are left out, whatever they hold. */
__global__ void sum_in_double(const float *x, const float *dy, int in_c, int out_c, int side, int n_samples, double *dw)
{
    __shared__ double room[256];
    int tap = blockIdx.x % 9, c = blockIdx.x / 9 % in_c, o = blockIdx.x / (9 * in_c), plane = side * side;
    double sum = 0;

    for (int i = threadIdx.x; i < plane * n_samples; i += 256) {
        int n = i % n_samples, p = i / n_samples, y = p / side, iy = y + tap / 3 - 1, ix = p % side + tap % 3 - 1;
        size_t block = n / ESPER_CUDA_BLOCK;

        if (iy >= 0 && iy < side && ix >= 0 && ix < side)
            sum += (double)dy[((block * out_c + o) * plane + p) * ESPER_CUDA_BLOCK + n % ESPER_CUDA_BLOCK] *
                   (double)x[((block * in_c + c) * plane + iy * side + ix) * ESPER_CUDA_BLOCK + n % ESPER_CUDA_BLOCK];
    }
    room[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        dw[blockIdx.x] = room[0];
}

/* Gradients beyond the batch are 0, as everywhere in a net. */
__global__ void clear_beyond(float *dy, size_t elements, int n_samples, int blocks)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, block = i / (elements * ESPER_CUDA_BLOCK);

    if (i < elements * ESPER_CUDA_BLOCK * blocks && (int)(block * ESPER_CUDA_BLOCK + i % ESPER_CUDA_BLOCK) >= n_samples)
        dy[i] = 0;
}

/* The largest difference beside the largest weight, of the first and the last network. */
static double error_of(const lab *l, bool on_cores)
{
    int networks[2] = {0, l->n_networks - 1}, blocks = block_divide(l->n_samples, ESPER_CUDA_BLOCK);
    double *exact, *room = (double *)malloc(l->n_weights * sizeof(double)), worst = 0;
    float *found = (float *)malloc(l->n_weights * sizeof(float));

    MUST(cudaMalloc(&exact, l->n_weights * sizeof(double)));
    MUST(cudaMemset(l->dw, 0xff, l->n_networks * l->n_weights * sizeof(float)));
    MUST(cudaMemset(l->scratch, 0xff, l->n_networks * l->scratch_bytes));
    for (int n = 0; n < l->n_networks; n++)
        clear_beyond<<<(unsigned)((l->y_floats + 255) / 256), 256>>>(
            l->dy + n * l->y_floats, (size_t)l->s.out_c * l->s.side * l->s.side, l->n_samples, blocks);
    run(l, on_cores);
    for (int i = 0; i < 2; i++) {
        double most = 0, off = 0;

        sum_in_double<<<(unsigned)l->n_weights, 256>>>(l->x + networks[i] * l->x_floats, l->dy + networks[i] * l->y_floats,
                                                       l->s.in_c, l->s.out_c, l->s.side, l->n_samples, exact);
        MUST(cudaMemcpy(room, exact, l->n_weights * sizeof(double), cudaMemcpyDeviceToHost));
        MUST(cudaMemcpy(found, l->dw + networks[i] * l->n_weights, l->n_weights * sizeof(float), cudaMemcpyDeviceToHost));
        for (size_t w = 0; w < l->n_weights; w++) {
            double d = fabs(room[w] - (double)found[w]);

            most = fmax(most, fabs(room[w]));
            off = d <= off ? off : d; /* NaN counts as off */
        }
        worst = off / most <= worst ? worst : off / most;
    }
    MUST(cudaFree(exact));
    free(room);
    free(found);
    return worst;
}

static int check(shape s)
{
    static const struct {
        int   n_networks, n_samples;
        float shift;
    } cases[] = {{2, 128, 0}, {2, 128, 0.5f}, {1, 69, 0.25f}};
    int bad = 0;

    printf("%-24s", s.name);
    for (int i = 0; i < 3; i++) {
        lab l;
        double old, cores;

        open_lab(&l, s, cases[i].n_networks, cases[i].n_samples, cases[i].shift);
        old = error_of(&l, false);
        cores = error_of(&l, true);
        printf("  %.1e -> %.1e", old, cores);
        bad += !(cores <= 2e-5);
        close_lab(&l);
    }
    printf("%s\n", bad > 0 ? "   WRONG" : "");
    fflush(stdout);
    return bad;
}

/* ------------------------------------------------------------------------------------------------ times */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double time_of(const lab *l, bool on_cores)
{
    double us[ROUNDS];

    run(l, on_cores);
    for (int i = 0; i < ROUNDS; i++) {
        MUST(cudaEventRecord(begin));
        for (int k = 0; k < IN_A_ROW; k++)
            run(l, on_cores);
        us[i] = elapsed_us() / IN_A_ROW;
    }
    qsort(us, ROUNDS, sizeof(*us), compare);
    return us[ROUNDS / 2];
}

static void print_times(shape s, int n_networks)
{
    lab l;

    open_lab(&l, s, n_networks, SAMPLES, 0);
    printf("%-24s %3d", s.name, n_networks);
    for (int on_cores = 0; on_cores < 2; on_cores++) {
        double us = time_of(&l, on_cores), samples = (double)n_networks * SAMPLES;

        printf("  | %8.1f us %6.2f ns/sample %6.1f TFLOP/s %5.0f GB/s", us, us * 1e3 / samples,
               18.0 * s.in_c * s.out_c * s.side * s.side * samples / us * 1e-6,
               4.0 * (s.in_c + s.out_c) * s.side * s.side * samples / us * 1e-3);
    }
    printf("\n");
    fflush(stdout);
    close_lab(&l);
}

/* ------------------------------------------------------------------------------------------------ a block with a norm */

enum { SUMS, WRITE_DY, WEIGH, FORM_AND_WEIGH, N_PASSES };

static void run_pass(const lab *l, int pass)
{
    const esper_lane *lane = &l->lane;
    block_conv v = block_conv_of(lane, false);
    block_norm n = block_norm_of(lane);
    int blocks = block_divide(l->n_samples, ESPER_CUDA_BLOCK), joiners = block_divide((int)l->n_weights, BLOCK_THREADS);
    int cells = n.C * (n.H / 2) * (n.W / 2) * BLOCK_QUADS;
    block_weigh_cut cut = block_weigh_cut_of(&v);
    dim3 tiles(block_divide(blocks, cut.span) * cut.blocks, l->n_networks);

    if (pass == SUMS) {
        esper_block_norm_sums_pool<<<dim3(blocks * block_norm_parts(lane, true) * n.C, l->n_networks), BLOCK_THREADS>>>(l->list);
        esper_block_norm_join_back<<<dim3(n.C, l->n_networks), BLOCK_THREADS>>>(l->list);
    } else if (pass == WRITE_DY)
        esper_block_norm_back_pool<<<dim3(blocks * block_divide(cells, BLOCK_ITEMS), l->n_networks), BLOCK_THREADS>>>(l->list);
    else {
        if (pass == FORM_AND_WEIGH)
            esper_block_weigh_first_pool<<<tiles, BLOCK_THREADS>>>(l->list);
        else if (cut.wide)
            esper_block_weigh_16<<<tiles, BLOCK_THREADS>>>(l->list);
        else
            esper_block_weigh_8<<<tiles, BLOCK_THREADS>>>(l->list);
        esper_block_weigh_join<<<dim3(joiners, l->n_networks), BLOCK_THREADS>>>(l->list);
    }
    MUST(cudaGetLastError());
}

static double time_of_pass(const lab *l, int pass)
{
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        MUST(cudaEventRecord(begin));
        run_pass(l, pass);
        us[i] = elapsed_us();
    }
    qsort(us, ROUNDS, sizeof(*us), compare);
    return us[ROUNDS / 2];
}

/* Returns 1 where the two ways to a first layer's weights differ. */
static int check_ways(const lab *l)
{
    size_t bytes = l->n_networks * l->n_weights * sizeof(float);
    float *found[2] = {(float *)malloc(bytes), (float *)malloc(bytes)};
    int bad;

    run_pass(l, SUMS);
    run_pass(l, FORM_AND_WEIGH); /* leaves y as it is */
    MUST(cudaMemcpy(found[0], l->dw, bytes, cudaMemcpyDeviceToHost));
    run_pass(l, WRITE_DY);
    run_pass(l, WEIGH);
    MUST(cudaMemcpy(found[1], l->dw, bytes, cudaMemcpyDeviceToHost));
    bad = memcmp(found[0], found[1], bytes) != 0;
    free(found[0]);
    free(found[1]);
    return bad;
}

/* y is what open_lab takes for dy; beyond it a norm needs what comes out of the pool, with its gradient, and a few numbers a channel. */
static int print_block(shape s, int n_networks)
{
    static const char *const names[N_PASSES] = {"sums", "dy written", "weights", "weights, dy formed"};
    const int C = s.out_c, half = s.side / 2;
    esper_lane *lanes = (esper_lane *)malloc(n_networks * sizeof(*lanes));
    float *numbers, *out;
    size_t out_floats;
    int bad = 0;
    lab l;

    open_lab(&l, s, n_networks, SAMPLES, 0.1f);
    out_floats = l.y_floats / 4;
    MUST(cudaMalloc(&numbers, n_networks * 6 * C * sizeof(float)));
    MUST(cudaMalloc(&out, n_networks * 2 * out_floats * sizeof(float)));
    fill<<<64, 256>>>(numbers, n_networks * 6 * C, 3, 1.5f);
    fill<<<1024, 256>>>(out, n_networks * 2 * out_floats, 4, 0.1f);
    MUST(cudaMemcpy(lanes, l.lanes, n_networks * sizeof(*lanes), cudaMemcpyDeviceToHost));
    MUST(cudaFree(l.scratch));
    for (int n = 0; n < n_networks; n++) {
        esper_lane *lane = &lanes[n];
        float *own = numbers + n * 6 * C, *result = out + n * 2 * out_floats;

        for (int i = 0; i < 4; i++)
            lane->in[2 + i] = view_of(own + i * C, NULL, 1, C, 1, 1, 1);
        lane->out[1] = view_of(lane->out[0].grad, NULL, 3, C, s.side, s.side, 1);
        lane->out[0] = view_of(result, result + out_floats, 3, C, half, half, 1);
        lane->out[2] = view_of(own + 4 * C, NULL, 1, C, 1, 1, 1);
        lane->out[3] = view_of(own + 5 * C, NULL, 1, C, 1, 1, 1);
        lane->attr = esper_attr();
        lane->attr.conv_norm.pad = 1;
        lane->attr.conv_norm.groups = 1;
        lane->attr.conv_norm.eps = 1e-5f;
        lane->attr.conv_norm.relu = lane->attr.conv_norm.pool = true;
        l.scratch_bytes = block_scratch_of(lane, true, SAMPLES).bytes;
    }
    MUST(cudaMalloc(&l.scratch, n_networks * l.scratch_bytes));
    for (int n = 0; n < n_networks; n++)
        lanes[n].scratch = l.scratch + n * l.scratch_bytes;
    MUST(cudaMemcpy(l.lanes, lanes, n_networks * sizeof(*lanes), cudaMemcpyHostToDevice));
    l.lane = lanes[0];
    if (s.in_c <= 4)
        bad = check_ways(&l);
    printf("%-24s %3d", s.name, n_networks);
    for (int pass = 0; pass < N_PASSES; pass++)
        if (pass != FORM_AND_WEIGH || s.in_c <= 4)
            printf("  | %s %.1f us %.2f ns/sample", names[pass], time_of_pass(&l, pass), time_of_pass(&l, pass) * 1e3 / (n_networks * SAMPLES));
    printf("%s\n", bad ? "   WRONG: dy formed gives other bits" : "");
    fflush(stdout);
    MUST(cudaFree(numbers));
    MUST(cudaFree(out));
    free(lanes);
    close_lab(&l);
    return bad;
}

int main(int n_args, char **args)
{
    static const shape shapes[] = {{"cnn_small 3>8 32x32", 3, 8, 32},     {"cnn_small 8>16 16x16", 8, 16, 16},
                                   {"cnn_small 16>32 8x8", 16, 32, 8},    {"cnn_100k 32>64 4x4", 32, 64, 4},
                                   {"cnn_100k 64>128 2x2", 64, 128, 2}};
    static const shape odd[] = {{"odd 5>7 13x13", 5, 7, 13}, {"odd 11>21 7x7", 11, 21, 7}, {"odd 2>2 3x3", 2, 2, 3}};
    int n_networks = n_args > 1 ? atoi(args[1]) : 64, bad = 0;

    n_networks = n_networks < 1 ? 1 : n_networks > MOST_NETWORKS ? MOST_NETWORKS : n_networks;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    print_limits();
    printf("\nerrors beside the largest weight, multiply-adds -> tensor cores: 128 samples; of mean 0.5; 69 samples\n");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        bad += check(shapes[i]);
    for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++)
        bad += check(odd[i]);
    printf("\nmultiply-adds | tensor cores, with what joins the parts; bytes are x and dy, once\n");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        print_times(shapes[i], n_networks);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        print_times(shapes[i], 1);
    printf("\nback through a block with norm, ReLU and pool\n");
    for (int i = 0; i < 3; i++)
        bad += print_block(shapes[i], n_networks);
    printf("%s\n", bad > 0 ? "WRONG" : "right");
    return bad > 0;
}
