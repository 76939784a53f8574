/* Places of benchmarks: memory through the device's table, and on the host the loads and copies of all threads. */
#include "bench/place.h"

#include <stdio.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/clock.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"

enum {
    CHUNK = 1 << 20, /* bytes that a thread fills, reads or copies at a time: all threads end together */
    LEAST_CHUNK = 1 << 16,
    PATTERN = 32 << 20,
    SUMS = 8,
};

static esper_status parse_name(const char *name, int *index_out)
{
    uint64_t index = 0;
    bool fits = true;

    if (strcmp(name, "host") == 0) {
        *index_out = ESPER_GUARD_HOST;
        return ESPER_OK;
    }
    if (strncmp(name, "cuda", 4) != 0 || (name[4] != '\0' && name[4] != ':') ||
        (name[4] == ':' && (!esper_number_read_u64(name + 5, &index, &fits) || index > 63)))
        return ESPER_FAIL(ESPER_E_CONFIG, "--device %s: expected host, cuda or cuda:N", name);
    *index_out = (int)index;
    return ESPER_OK;
}

static esper_status open_device(esper_bench_place *place, const char *name)
{
    int index = 0;

    if (name != NULL)
        ESPER_TRY(parse_name(name, &index));
    place->number = index;
    if (index != ESPER_GUARD_HOST) {
        esper_status status = esper_device_open("cuda", index, &place->device);

        if (status == ESPER_OK)
            return esper_bench_reader_open(place, &place->reader);
        if (name != NULL)
            return status;
    }
    place->number = ESPER_GUARD_HOST;
    return esper_device_open("host", 0, &place->device);
}

esper_status esper_bench_place_open(const char *name, int n_threads, esper_bench_place **place_out)
{
    esper_bench_place *place = esper_mem_alloc(sizeof(*place));
    esper_status status;

    if (place == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    status = open_device(place, name);
    if (status == ESPER_OK)
        status = esper_stream_open(place->device, &place->stream);
    if (status == ESPER_OK)
        status = esper_pool_open(n_threads, &place->pool);
    if (status != ESPER_OK) {
        esper_bench_place_close(place);
        return status;
    }
    *place_out = place;
    return ESPER_OK;
}

void esper_bench_place_close(esper_bench_place *place)
{
    if (place == NULL)
        return;
    esper_pool_close(place->pool);
    esper_bench_reader_close(place->reader);
    if (place->stream != NULL)
        esper_stream_close(place->stream);
    if (place->device != NULL)
        esper_device_close(place->device);
    esper_mem_free(place);
}

const char *esper_bench_place_name(const esper_bench_place *place, char text[16])
{
    if (place->number == ESPER_GUARD_HOST)
        snprintf(text, 16, "host");
    else
        snprintf(text, 16, "cuda:%d", place->number);
    return text;
}

/* ---- filling */

typedef struct fill_job {
    float   *memory;
    uint64_t count;
} fill_job;

/* Sign, an exponent from 2^-8 to 2^-1, and a mantissa from a multiplicative generator: fast, and random enough to
 * defeat any short cut. */
static void fill_chunk(void *context, int item, int worker)
{
    const fill_job *job = context;
    uint64_t begin = (uint64_t)item * (CHUNK / sizeof(float)), end = begin + CHUNK / sizeof(float);
    uint64_t state = begin + 1;

    (void)worker;
    for (uint64_t i = begin; i < end && i < job->count; i++) {
        uint32_t bits;

        state = state * 6364136223846793005u + 1442695040888963407u;
        bits = (uint32_t)(state >> 32);
        bits = (bits & 0x807fffffu) | ((119u + (bits >> 23 & 7u)) << 23);
        memcpy(&job->memory[i], &bits, sizeof(bits));
    }
}

static void fill(esper_pool *pool, void *memory, uint64_t bytes)
{
    fill_job job = {memory, bytes / sizeof(float)};

    esper_pool_run(pool, (int)((bytes + CHUNK - 1) / CHUNK), fill_chunk, &job);
}

/* Over and over the same pattern, which no kernel can notice. */
static esper_status fill_device(esper_bench_place *place, void *memory, uint64_t bytes)
{
    uint64_t pattern_bytes = bytes < PATTERN ? bytes : PATTERN;
    void *pattern = esper_mem_alloc(pattern_bytes);
    esper_status status = ESPER_OK;

    if (pattern == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    fill(place->pool, pattern, pattern_bytes);
    for (uint64_t at = 0; at < bytes && status == ESPER_OK; at += pattern_bytes)
        status = esper_stream_copy(place->stream, (char *)memory + at, pattern,
                                   bytes - at < pattern_bytes ? bytes - at : pattern_bytes);
    if (status == ESPER_OK)
        status = esper_stream_sync(place->stream);
    esper_mem_free(pattern);
    return status;
}

esper_status esper_bench_place_alloc(esper_bench_place *place, uint64_t bytes, void **memory_out)
{
    void *memory;
    esper_status status = ESPER_OK;

    ESPER_TRY(esper_device_alloc(place->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    if (place->number == ESPER_GUARD_HOST)
        fill(place->pool, memory, bytes);
    else
        status = fill_device(place, memory, bytes);
    if (status == ESPER_OK)
        *memory_out = memory;
    else
        esper_device_release(place->device, memory);
    return status;
}

void esper_bench_place_release(esper_bench_place *place, void *memory)
{
    if (memory != NULL)
        esper_device_release(place->device, memory);
}

/* ---- reading */

/* Few bytes are cut smaller, so that all threads have some. A multiple of 64. */
static uint64_t chunk_of(uint64_t bytes, int n_threads)
{
    uint64_t part = bytes / (4 * (uint64_t)n_threads) / 64 * 64;

    return part > CHUNK ? CHUNK : part < LEAST_CHUNK ? LEAST_CHUNK : part;
}

typedef uint64_t (*read_function)(const void *memory, uint64_t bytes);

typedef struct read_job {
    read_function read;
    const char   *memory;
    uint64_t      bytes, chunk;
    uint64_t     *sums; /* (n_items): what keeps the loads alive */
} read_job;

typedef uint64_t v2 __attribute__((vector_size(16)));
typedef uint64_t v4 __attribute__((vector_size(32)));
typedef uint64_t v8 __attribute__((vector_size(64)));

/* One body for each vector width. Memory comes from an allocator that aligns to 64. */
#define READ(name, vector, attributes)                                                              \
    __attribute__((noinline)) attributes static uint64_t name(const void *memory, uint64_t bytes)   \
    {                                                                                               \
        const vector *at = memory;                                                                  \
        uint64_t n = bytes / sizeof(vector) / SUMS * SUMS, sum = 0;                                 \
        vector sums[SUMS] = {{0}}, total = {0};                                                     \
                                                                                                    \
        for (uint64_t i = 0; i < n; i += SUMS) {                                                    \
            sums[0] += at[i], sums[1] += at[i + 1], sums[2] += at[i + 2], sums[3] += at[i + 3];     \
            sums[4] += at[i + 4], sums[5] += at[i + 5], sums[6] += at[i + 6], sums[7] += at[i + 7]; \
        }                                                                                           \
        for (int i = 0; i < SUMS; i++)                                                              \
            total += sums[i];                                                                       \
        for (uint64_t i = n * sizeof(vector); i < bytes; i++)                                       \
            sum += ((const unsigned char *)memory)[i];                                              \
        return sum + total[0] + total[sizeof(vector) / 8 - 1];                                      \
    }

READ(read_portable, v2, )
#if defined(__x86_64__)
READ(read_avx2, v4, __attribute__((target("avx2"))))
READ(read_avx512, v8, __attribute__((target("avx512f"))))
#endif

static read_function widest_read(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return read_avx512;
    if (__builtin_cpu_supports("avx2"))
        return read_avx2;
#endif
    return read_portable;
}

static void read_chunk(void *context, int item, int worker)
{
    read_job *job = context;
    uint64_t begin = (uint64_t)item * job->chunk;
    uint64_t bytes = job->bytes - begin < job->chunk ? job->bytes - begin : job->chunk;

    (void)worker;
    job->sums[item] = job->read(job->memory + begin, bytes);
}

esper_status esper_bench_place_read(esper_bench_place *place, const void *memory, uint64_t bytes, double *seconds_out)
{
    uint64_t chunk = chunk_of(bytes, esper_pool_threads(place->pool));
    int n_items = (int)((bytes + chunk - 1) / chunk);
    read_job job = {widest_read(), memory, bytes, chunk, NULL};
    double began;

    if (place->number != ESPER_GUARD_HOST)
        return esper_bench_reader_run(place->reader, memory, bytes, seconds_out);
    job.sums = esper_mem_alloc((size_t)n_items * sizeof(job.sums[0]));
    if (job.sums == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    began = esper_clock_seconds();
    esper_pool_run(place->pool, n_items, read_chunk, &job);
    *seconds_out = esper_clock_seconds() - began;
    esper_mem_free(job.sums);
    return ESPER_OK;
}

/* ---- copying */

typedef struct copy_job {
    char       *to;
    const char *from;
    uint64_t    bytes, chunk;
} copy_job;

/* Past the caches: memory that is only written need not be read first, which memcpy does for all but huge copies. Both
 * pointers are multiples of 64. */
static void copy_bytes(char *to, const char *from, uint64_t bytes)
{
    uint64_t done = 0;

#if defined(__SSE2__)
    for (; done + 64 <= bytes; done += 64) {
        const __m128i *source = (const __m128i *)(from + done);
        __m128i *target = (__m128i *)(to + done);
        __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
        __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);

        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
#endif
    memcpy(to + done, from + done, bytes - done);
}

static void copy_chunk(void *context, int item, int worker)
{
    const copy_job *job = context;
    uint64_t begin = (uint64_t)item * job->chunk;

    (void)worker;
    copy_bytes(job->to + begin, job->from + begin, job->bytes - begin < job->chunk ? job->bytes - begin : job->chunk);
}

esper_status esper_bench_place_copy(esper_bench_place *place, void *to, const void *from, uint64_t bytes,
                                    double *seconds_out)
{
    copy_job job = {to, from, bytes, chunk_of(bytes, esper_pool_threads(place->pool))};
    double began = esper_clock_seconds();

    if (place->number == ESPER_GUARD_HOST) {
        esper_pool_run(place->pool, (int)((bytes + job.chunk - 1) / job.chunk), copy_chunk, &job);
    } else {
        ESPER_TRY(esper_stream_copy(place->stream, to, from, bytes));
        ESPER_TRY(esper_stream_sync(place->stream));
    }
    *seconds_out = esper_clock_seconds() - began;
    return ESPER_OK;
}
