/* Networks of one 3 x 3 convolution each, on a device: what labs of these kernels launch them on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/cuda/block_norm.cuh"

extern "C" const esper_cuda_op esper_cuda_blocked_conv_norm;

#define CHECK(call)                                                                                     \
    do {                                                                                                \
        cudaError_t error = (call);                                                                     \
        if (error != cudaSuccess) {                                                                     \
            printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(error));                    \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

enum { SAMPLES = 128, ROUNDS = 20 };

static const struct shape {
    const char *name;
    int in, out, side;
} SHAPES[] = {
    {"3-8 at 32", 3, 8, 32},      {"8-16 at 16", 8, 16, 16},   {"16-32 at 8", 16, 32, 8},
    {"32-64 at 4", 32, 64, 4},    {"64-128 at 2", 64, 128, 2}, {"8-8 at 32", 8, 8, 32},
    {"16-16 at 28", 16, 16, 28},  {"24-48 at 14", 24, 48, 14}, {"32-32 at 7", 32, 32, 7},
};

static float milliseconds(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0;

    CHECK(cudaEventSynchronize(to));
    CHECK(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

static float uniform(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) * 2 - 1;
}

static float *device_numbers(size_t n, unsigned seed)
{
    float *host = (float *)malloc(n * sizeof(float)), *device;

    for (size_t i = 0; i < n; i++)
        host[i] = uniform(&seed);
    CHECK(cudaMalloc(&device, n * sizeof(float)));
    CHECK(cudaMemcpy(device, host, n * sizeof(float), cudaMemcpyHostToDevice));
    free(host);
    return device;
}

static void set_view(esper_view *view, int rank, int a, int b, int c, int d)
{
    const int dim[4] = {a, b, c, d};

    view->rank = rank;
    view->count = 1;
    for (int i = 0; i < ESPER_MAX_RANK; i++) {
        view->dim[i] = i < rank ? dim[i] : 1;
        view->count *= view->dim[i];
    }
}

/* Networks of one layer: x, the convolution's y, which a norm follows, and weights. */
struct fleet {
    int         n;
    shape       of;
    esper_lane *lanes; /* the host's */
    esper_cuda_lanes at;
    esper_pass *pass;
};

static void open_fleet(fleet *f, const shape &of, int n)
{
    int most = SAMPLES / ESPER_CUDA_BLOCK * ESPER_CUDA_BLOCK;
    size_t x = (size_t)most * of.in * of.side * of.side, y = (size_t)most * of.out * of.side * of.side;
    float *xs = device_numbers(x * n, 1), *ys = device_numbers(y * n, 2), *grads;
    float *weights = device_numbers((size_t)n * of.out * of.in * 9, 3);
    esper_pass pass = {};
    esper_lane *lanes;

    f->n = n;
    f->of = of;
    f->lanes = (esper_lane *)calloc(n, sizeof(esper_lane));
    pass.n_samples = SAMPLES;
    pass.training = true;
    CHECK(cudaMalloc(&f->pass, sizeof(pass)));
    CHECK(cudaMemcpy(f->pass, &pass, sizeof(pass), cudaMemcpyHostToDevice));
    CHECK(cudaMalloc(&grads, x * n * sizeof(float)));
    CHECK(cudaMalloc(&lanes, n * sizeof(esper_lane)));
    for (int i = 0; i < n; i++) {
        esper_lane *lane = &f->lanes[i];

        set_view(&lane->in[0], 3, of.in, of.side, of.side, 1);
        set_view(&lane->in[1], 4, of.out, of.in, 3, 3);
        set_view(&lane->out[0], 3, of.out, of.side, of.side, 1);
        set_view(&lane->out[1], 3, of.out, of.side, of.side, 1);
        lane->in[0].data = xs + x * i;
        lane->in[0].grad = grads + x * i;
        lane->in[1].data = weights + (size_t)of.out * of.in * 9 * i;
        lane->out[1].data = ys + y * i;
        lane->attr.conv_norm.pad = 1;
        lane->attr.conv_norm.groups = 1;
        lane->max_samples = SAMPLES;
        lane->pass = f->pass;
        CHECK(cudaMalloc(&lane->scratch, block_scratch_of(lane, true, SAMPLES).bytes + block_scratch_of(lane, false, SAMPLES).bytes));
        f->at.lane[i] = lanes + i;
    }
    CHECK(cudaMemcpy(lanes, f->lanes, n * sizeof(esper_lane), cudaMemcpyHostToDevice));
}

static void close_fleet(fleet *f)
{
    CHECK(cudaFree(f->lanes[0].in[0].data));
    CHECK(cudaFree(f->lanes[0].in[0].grad));
    CHECK(cudaFree(f->lanes[0].in[1].data));
    CHECK(cudaFree(f->lanes[0].out[1].data));
    for (int i = 0; i < f->n; i++)
        CHECK(cudaFree(f->lanes[i].scratch));
    CHECK(cudaFree((void *)f->at.lane[0]));
    CHECK(cudaFree(f->pass));
    free(f->lanes);
}

/* The launch of a convolution among those of its operation. */
static esper_cuda_launch launch_of(const fleet *f, bool back)
{
    esper_cuda_launch launches[ESPER_CUDA_MAX_LAUNCHES];
    const esper_cuda_op *op = &esper_cuda_blocked_conv_norm;
    int n = back ? op->backward(f->lanes, ESPER_PART_WHOLE, launches) : op->forward(f->lanes, ESPER_PART_WHOLE, launches), i = 0;
    const char *prefix = back ? "esper_block_conv_back" : "esper_block_conv";

    while (i < n && strncmp(launches[i].kernel, prefix, strlen(prefix)) != 0)
        i++;
    return launches[i];
}
