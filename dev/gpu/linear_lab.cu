/* The lab for linear layers: every kind of tile, of multiply-adds (linear.cu) and of three products of TF32 for one of floats
 * (linear_cores.cu), in the shapes of lm_tiny and lm_384 for one network and for eight. Each is checked against sums in double first; then
 * its time, the median of several runs of a few launches, and what rate that is. The tables of linear.c rest on what it prints.
 *
 *   nvcc -arch=sm_90 -O3 -std=c++17 -diag-suppress 128 -Isrc -Iinclude -cudart static -o linear_lab dev/gpu/linear_lab.cu
 *   usage: linear_lab */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION static __host__ __device__ inline /* the host reckons with it, too */
#include "tensor/cuda/linear.h"
#undef FUNCTION
#include "tensor/cuda/async.cuh"
#include "tensor/cuda/linear.cuh"
#include "tensor/cuda/mma_half.cuh"

namespace multiply_adds {
#include "tensor/cuda/linear.cu"
}
namespace cores {
#include "tensor/cuda/linear_cores.cu"
}

enum { ROWS = 2048, RUNS = 9, IN_A_ROW = 5, MOST_NETWORKS = 8, LONGEST = 1536 };

#define MUST(call)                                                                             \
    do {                                                                                       \
        cudaError_t error = (call);                                                            \
        if (error != cudaSuccess) {                                                            \
            fprintf(stderr, "linear_lab: line %d: %s\n", __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

typedef void kernel_of_lanes(const esper_cuda_lanes lanes);

typedef struct tile {
    const char      *name;
    int              rows, columns, threads;
    kernel_of_lanes *kernels[4]; /* y, dx, dw, join */
} tile;

#define TILE(space, name, joined, rows, columns, threads)                                    \
    {#space " " #name, rows, columns, threads,                                               \
     {space::esper_linear_y_##name, space::esper_linear_dx_##name, space::esper_linear_dw_##name, \
      multiply_adds::esper_linear_join_##joined}},

static const tile tiles[] = {
    TILE(multiply_adds, 128x128, 128x128, 128, 128, 256)
    TILE(multiply_adds, 64x96, 64x96, 64, 96, 128)
    TILE(multiply_adds, 64x96_twice, 64x96_twice, 64, 96, 256)
    TILE(multiply_adds, 64x64, 64x64, 64, 64, 128)
    TILE(multiply_adds, 32x32, 32x32, 32, 32, 128)
    TILE(cores, 64x96_fp32, 64x96, 64, 96, 128)
    TILE(cores, 64x64_fp32, 64x64, 64, 64, 128)
    TILE(cores, 32x32_fp32, 32x32, 32, 32, 128)
    TILE(cores, 64x64_any_fp32, 64x64_any, 64, 64, 128)
};

typedef struct lab {
    int              I, O;
    float           *x, *w, *b, *y, *dx, *dw, *scratch;
    esper_pass      *pass;
    esper_lane      *lanes;
    esper_cuda_lanes list;
} lab;

__global__ void fill(float *to, size_t n, unsigned tag)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u ^ tag * 0x9e3779b9u;

        h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
        to[i] = (float)h * 0x1p-31f - 1.0f;
    }
}

static int divide(int a, int b)
{
    return (a + b - 1) / b;
}

static esper_view view_of(float *data, float *grad, int rank, int a, int b)
{
    esper_view v = {};

    v.data = data;
    v.grad = grad;
    v.rank = rank;
    v.dim[0] = a, v.dim[1] = b;
    v.count = (int64_t)a * b;
    return v;
}

/* y and its gradient are one, and x and w are the same numbers in all networks' places: what is timed does not know. */
static void open_lab(lab *l, int I, int O)
{
    size_t n = MOST_NETWORKS, x = (size_t)ROWS * I, y = (size_t)ROWS * O, w = (size_t)I * O;
    esper_lane lanes[MOST_NETWORKS] = {};
    esper_pass pass = {};

    l->I = I;
    l->O = O;
    MUST(cudaMalloc(&l->x, n * x * 4));
    MUST(cudaMalloc(&l->dx, n * x * 4));
    MUST(cudaMalloc(&l->y, n * y * 4));
    MUST(cudaMalloc(&l->w, n * w * 4));
    MUST(cudaMalloc(&l->dw, n * w * 4));
    MUST(cudaMalloc(&l->b, n * 2 * O * 4));
    MUST(cudaMalloc(&l->scratch, n * 11 * (w + O) * 4));
    MUST(cudaMalloc(&l->pass, sizeof(pass)));
    MUST(cudaMalloc(&l->lanes, sizeof(lanes)));
    fill<<<1024, 256>>>(l->x, n * x, 1), fill<<<1024, 256>>>(l->w, n * w, 2), fill<<<64, 256>>>(l->b, n * 2 * O, 3);
    pass.n_samples = ROWS;
    pass.training = true;
    MUST(cudaMemcpy(l->pass, &pass, sizeof(pass), cudaMemcpyHostToDevice));
    for (size_t i = 0; i < n; i++) {
        lanes[i].in[0] = view_of(l->x + i * x, l->dx + i * x, 1, I, 1);
        lanes[i].in[1] = view_of(l->w + i * w, l->dw + i * w, 2, O, I);
        lanes[i].in[2] = view_of(l->b + i * 2 * O, l->b + i * 2 * O + O, 1, O, 1);
        lanes[i].out[0] = view_of(l->y + i * y, l->y + i * y, 1, O, 1);
        lanes[i].max_samples = ROWS;
        lanes[i].pass = l->pass;
        lanes[i].scratch = l->scratch + i * 11 * (w + O);
        l->list.lane[i] = l->lanes + i;
    }
    MUST(cudaMemcpy(l->lanes, lanes, sizeof(lanes), cudaMemcpyHostToDevice));
}

static void close_lab(lab *l)
{
    void *all[] = {l->x, l->dx, l->y, l->w, l->dw, l->b, l->scratch, l->pass, l->lanes};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        MUST(cudaFree(all[i]));
}

/* what: 0 y, 1 dx, 2 dw and what joins its pieces. */
static void run(const lab *l, const tile *t, int what, int n_networks)
{
    int m = what == 2 ? l->O : ROWS, n = what == 0 ? l->O : l->I;
    int blocks = divide(m, t->rows) * divide(n, t->columns);
    int pieces = what == 2 ? esper_linear_pieces(blocks, ROWS) : 1;

    t->kernels[what]<<<dim3(blocks * pieces, n_networks), t->threads>>>(l->list);
    if (pieces > 1)
        t->kernels[3]<<<dim3(divide(l->O * l->I + l->O, 256), n_networks), 256>>>(l->list);
    MUST(cudaGetLastError());
}

/* Elements of the last network's result beside sums in double of the same numbers: the largest difference beside the largest sum. */
static double error_of(const lab *l, const tile *t, int what)
{
    static float x[ROWS * LONGEST], y[ROWS * LONGEST], w[LONGEST * LONGEST], b[2 * LONGEST], found[ROWS * LONGEST];
    size_t at = MOST_NETWORKS - 1;
    int I = l->I, O = l->O, columns = what == 0 ? O : I, rows = what == 2 ? O : ROWS, terms = what == 0 ? I : what == 1 ? O : ROWS;
    float *result = what == 0 ? l->y + at * ROWS * O : what == 1 ? l->dx + at * ROWS * I : l->dw + at * I * O;
    double off = 0, most = 0;

    fill<<<1024, 256>>>(l->y, (size_t)MOST_NETWORKS * ROWS * O, 4); /* the gradient, which y was written over */
    MUST(cudaMemcpy(x, l->x + at * ROWS * I, (size_t)ROWS * I * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(y, l->y + at * ROWS * O, (size_t)ROWS * O * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(w, l->w + at * I * O, (size_t)I * O * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(b, l->b + at * 2 * O, (size_t)O * 4, cudaMemcpyDeviceToHost));
    if (what > 0)
        MUST(cudaMemset(result, 0xff, (size_t)rows * columns * 4));
    run(l, t, what, MOST_NETWORKS);
    MUST(cudaMemcpy(found, result, (size_t)rows * columns * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 997; i++) {
        int row = (int)((unsigned)i * 2654435761u % (unsigned)rows), column = (int)((unsigned)i * 40503u % (unsigned)columns);
        double sum = what == 0 ? b[column] : 0, d;

        for (int k = 0; k < terms; k++)
            sum += what == 0   ? (double)x[(size_t)row * I + k] * w[(size_t)column * I + k]
                   : what == 1 ? (double)y[(size_t)row * O + k] * w[(size_t)k * I + column]
                               : (double)y[(size_t)k * O + row] * x[(size_t)k * I + column];
        d = fabs(sum - (double)found[(size_t)row * columns + column]);
        most = fmax(most, fabs(sum));
        off = d <= off ? off : d;
    }
    return off / most;
}

static double time_of(const lab *l, const tile *t, int what, int n_networks)
{
    cudaEvent_t begin, end;
    float us[RUNS];

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int r = -1; r < RUNS; r++) {
        float ms;

        MUST(cudaEventRecord(begin));
        for (int i = 0; i < IN_A_ROW; i++)
            run(l, t, what, n_networks);
        MUST(cudaEventRecord(end));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        for (int at = r; at >= 0; at--) /* sorted as they come */
            if (at == 0 || us[at - 1] <= ms) {
                us[at] = ms;
                break;
            } else
                us[at] = us[at - 1];
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    return (double)us[RUNS / 2] * 1e3 / IN_A_ROW;
}

int main(void)
{
    static const int shapes[][2] = {{384, 1152}, {384, 384}, {384, 1536}, {1536, 384}, {128, 384}, {128, 128}, {128, 512}, {512, 128}};
    static const char *const whats[] = {"y", "dx", "dw"};
    int bad = 0;

    printf("%d rows; for one network and for %d: us (TFLOP/s)\n", ROWS, MOST_NETWORKS);
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        lab l;

        open_lab(&l, shapes[s][0], shapes[s][1]);
        for (int what = 0; what < 3; what++)
            for (size_t t = 0; t < sizeof(tiles) / sizeof(tiles[0]); t++) {
                double flops = 2.0 * ROWS * l.I * l.O, error = error_of(&l, &tiles[t], what);
                double one = time_of(&l, &tiles[t], what, 1), all = time_of(&l, &tiles[t], what, MOST_NETWORKS);

                bad += !(error < 5e-6);
                printf("%4d -> %4d %-2s %-28s %7.1f (%5.1f)  %7.1f (%5.1f)  off %.1e%s\n", l.I, l.O, whats[what], tiles[t].name, one,
                       flops / one * 1e-6, all, flops * MOST_NETWORKS / all * 1e-6, error, error < 5e-6 ? "" : "  WRONG");
            }
        close_lab(&l);
    }
    return bad > 0;
}
