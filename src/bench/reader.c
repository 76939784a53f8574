/* A CUDA kernel that only reads: what a scan's time is set beside. It is written in the driver's own assembly, so that
 * no compiler is needed and none can leave the loads out. */
#include "base/clock.h"
#include "base/mem.h"
#include "bench/place.h"
#include "device/device_cuda.h"

enum {
    THREADS = 256,
    TILE = THREADS * 16 * 8, /* bytes that a block reads at a time: eight loads of 16 bytes a thread, all under way */
    BLOCKS_PER_MULTIPROCESSOR = 8,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
};

#define LOAD(i, offset) "    ld.global.nc.v2.u64 {%a" #i ", %b" #i "}, [%at + " #offset "];\n"
#define ADD(i)          "    add.u64 %sum, %sum, %a" #i ";\n    add.u64 %sum, %sum, %b" #i ";\n"

/* Tiles are dealt out to the blocks; the sum is stored in the one case that does not occur. */
static const char reader_code[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry esper_read(.param .u64 memory, .param .u64 n_tiles, .param .u64 sink)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .u32 %thread, %block, %blocks;\n"
    "    .reg .u64 %base, %n, %to, %tile, %step, %at, %sum, %lane, %a<8>, %b<8>;\n"
    "    ld.param.u64 %base, [memory];\n"
    "    ld.param.u64 %n, [n_tiles];\n"
    "    ld.param.u64 %to, [sink];\n"
    "    cvta.to.global.u64 %base, %base;\n"
    "    cvta.to.global.u64 %to, %to;\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    mov.u32 %block, %ctaid.x;\n"
    "    mov.u32 %blocks, %nctaid.x;\n"
    "    mul.wide.u32 %lane, %thread, 16;\n"
    "    add.u64 %base, %base, %lane;\n"
    "    cvt.u64.u32 %tile, %block;\n"
    "    cvt.u64.u32 %step, %blocks;\n"
    "    mov.u64 %sum, 0;\n"
    "    setp.ge.u64 %p, %tile, %n;\n"
    "    @%p bra done;\n"
    "next:\n"
    "    shl.b64 %at, %tile, 15;\n"
    "    add.u64 %at, %base, %at;\n" LOAD(0, 0) LOAD(1, 4096) LOAD(2, 8192) LOAD(3, 12288) LOAD(4, 16384) LOAD(5, 20480)
        LOAD(6, 24576) LOAD(7, 28672) ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6)
            ADD(7) "    add.u64 %tile, %tile, %step;\n"
                   "    setp.lt.u64 %p, %tile, %n;\n"
                   "    @%p bra next;\n"
                   "done:\n"
                   "    setp.ne.u64 %p, %sum, 81985529216486895;\n"
                   "    @%p bra end;\n"
                   "    st.global.u64 [%to], %sum;\n"
                   "end:\n"
                   "    ret;\n"
                   "}\n";

_Static_assert(TILE == 1 << 15, "reader_code shifts by 15");

struct esper_bench_reader {
    esper_bench_place *place;
    CUmodule           module;
    CUfunction         function;
    unsigned           n_blocks;
    void              *sink, *word; /* on the device, and pinned */
};

static esper_status load(esper_bench_reader *reader)
{
    esper_device *device = reader->place->device;
    CUdevice number;
    int n;

    ESPER_TRY(ESPER_CUDA(cuDeviceGet, &number, device->index));
    ESPER_TRY(ESPER_CUDA(cuDeviceGetAttribute, &n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, number));
    reader->n_blocks = (unsigned)n * BLOCKS_PER_MULTIPROCESSOR;
    ESPER_TRY(ESPER_CUDA(cuModuleLoadData, &reader->module, reader_code));
    ESPER_TRY(ESPER_CUDA(cuModuleGetFunction, &reader->function, reader->module, "esper_read"));
    ESPER_TRY(esper_device_alloc(device, 8, ESPER_DEVICE_MEMORY_NORMAL, &reader->sink));
    return esper_device_alloc(device, 8, ESPER_DEVICE_MEMORY_PINNED, &reader->word);
}

esper_status esper_bench_reader_open(esper_bench_place *place, esper_bench_reader **reader_out)
{
    esper_bench_reader *reader = esper_mem_alloc(sizeof(*reader));
    esper_status status;

    if (reader == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    reader->place = place;
    status = esper_cuda_enter(place->device);
    if (status == ESPER_OK) {
        status = load(reader);
        esper_cuda_leave();
    }
    if (status != ESPER_OK) {
        esper_bench_reader_close(reader);
        return status;
    }
    *reader_out = reader;
    return ESPER_OK;
}

void esper_bench_reader_close(esper_bench_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->word != NULL)
        esper_device_release(reader->place->device, reader->word);
    if (reader->sink != NULL)
        esper_device_release(reader->place->device, reader->sink);
    if (reader->module != NULL && esper_cuda_enter(reader->place->device) == ESPER_OK) {
        (void)ESPER_CUDA_RAW(cuModuleUnload, reader->module);
        esper_cuda_leave();
    }
    esper_mem_free(reader);
}

static esper_status launch(esper_bench_reader *reader, const void *memory, uint64_t n_tiles)
{
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)memory, sink = (CUdeviceptr)(uintptr_t)reader->sink;
    void *parameters[] = {&from, &n_tiles, &sink};
    unsigned n_blocks = n_tiles < reader->n_blocks ? (unsigned)n_tiles : reader->n_blocks;

    if (n_tiles == 0)
        return ESPER_OK;
    return ESPER_CUDA(cuLaunchKernel, reader->function, n_blocks, 1, 1, THREADS, 1, 1, 0,
                      (CUstream)esper_stream_native(reader->place->stream), parameters, NULL);
}

/* A last part of a tile is left out: less than 32 KiB. */
esper_status esper_bench_reader_run(esper_bench_reader *reader, const void *memory, uint64_t bytes, double *seconds_out)
{
    esper_stream *stream = reader->place->stream;
    double began = esper_clock_seconds();
    esper_status status;

    ESPER_TRY(esper_cuda_enter(reader->place->device));
    status = launch(reader, memory, bytes / TILE);
    esper_cuda_leave();
    if (status == ESPER_OK)
        status = esper_stream_copy(stream, reader->word, reader->sink, 8);
    if (status == ESPER_OK)
        status = esper_stream_sync(stream);
    *seconds_out = esper_clock_seconds() - began;
    return status;
}
