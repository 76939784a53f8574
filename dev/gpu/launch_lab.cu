/* The lab for launches: what one costs the host and the device, by the size of its argument and the number of its lanes, on a stream call
 * by call and as a node of a graph. Addresses of lanes are the argument of every kernel (kernels.h: 3,584 bytes), or lie in device memory.
 *
 *   nvcc -arch=sm_90 -O3 -std=c++17 -cudart static -o launch_lab dev/gpu/launch_lab.cu
 *   usage: launch_lab */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAUNCHES = 400, RUNS = 5 };

#define MUST(call)                                                                             \
    do {                                                                                       \
        cudaError_t error = (call);                                                            \
        if (error != cudaSuccess) {                                                            \
            fprintf(stderr, "launch_lab: line %d: %s\n", __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

template <int N> struct lanes {
    const float *lane[N];
};

/* A block adds one to the numbers of its lane, as small kernels do. */
template <int N> __global__ void touch(const __grid_constant__ lanes<N> list)
{
    float *at = (float *)(N == 1 ? ((const float *const *)list.lane[0])[blockIdx.y] : list.lane[blockIdx.y]);

    at[blockIdx.x * 256 + threadIdx.x] += 1.0f;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

template <int N> static void measure(const lanes<N> &list, int blocks, int n_lanes, cudaStream_t stream)
{
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double host = 1e9, host_graph = 1e9, making;
    float device = 1e9f, device_graph = 1e9f, ms;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int r = 0; r < RUNS; r++) {
        double began = now();

        MUST(cudaEventRecord(begin, stream));
        for (int i = 0; i < LAUNCHES; i++)
            touch<N><<<dim3(blocks, n_lanes), 256, 0, stream>>>(list);
        MUST(cudaEventRecord(end, stream));
        host = now() - began < host ? now() - began : host;
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        device = ms < device ? ms : device;
    }
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < LAUNCHES; i++)
        touch<N><<<dim3(blocks, n_lanes), 256, 0, stream>>>(list);
    MUST(cudaStreamEndCapture(stream, &graph));
    making = now();
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    making = now() - making;
    for (int r = 0; r < RUNS; r++) {
        double began = now();

        MUST(cudaEventRecord(begin, stream));
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaEventRecord(end, stream));
        host_graph = now() - began < host_graph ? now() - began : host_graph;
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        device_graph = ms < device_graph ? ms : device_graph;
    }
    printf("%5zu bytes, %3d blocks x %3d lanes: a launch takes the host %5.2f us, the device %5.2f; in a graph %5.2f and %5.2f; making one "
           "%5.2f us a launch\n",
           sizeof(list), blocks, n_lanes, host * 1e6 / LAUNCHES, (double)device * 1e3 / LAUNCHES, host_graph * 1e6 / LAUNCHES,
           (double)device_graph * 1e3 / LAUNCHES, making * 1e6 / LAUNCHES);
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
}

template <int N> static void open_and_measure(int blocks, int n_lanes, cudaStream_t stream)
{
    static const float *room[448];
    lanes<N> list = {};
    float *memory;
    void *table;

    MUST(cudaMalloc(&memory, sizeof(float) * 256 * blocks * n_lanes));
    MUST(cudaMalloc(&table, sizeof(room)));
    for (int i = 0; i < n_lanes; i++)
        room[i] = memory + (size_t)i * 256 * blocks;
    MUST(cudaMemcpy(table, room, sizeof(room), cudaMemcpyHostToDevice));
    for (int i = 0; i < N && i < n_lanes; i++)
        list.lane[i] = N == 1 ? (const float *)table : room[i];
    measure(list, blocks, n_lanes, stream);
    MUST(cudaFree(memory));
    MUST(cudaFree(table));
}

int main(void)
{
    static const int shapes[][2] = {{1, 1}, {8, 8}, {8, 32}, {32, 32}, {32, 128}};
    cudaStream_t stream;

    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const auto &shape : shapes) {
        open_and_measure<1>(shape[0], shape[1], stream);
        if (shape[1] <= 64)
            open_and_measure<64>(shape[0], shape[1], stream);
        open_and_measure<448>(shape[0], shape[1], stream);
    }
    return 0;
}
