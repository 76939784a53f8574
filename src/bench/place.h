/* Internal. Where the tensors of a benchmark lie, and how fast bytes can be read or copied there at most. */
#ifndef ESPER_BENCH_PLACE_H
#define ESPER_BENCH_PLACE_H

#include "base/pool.h"
#include "device/device.h"

typedef struct esper_bench_reader esper_bench_reader; /* a kernel that only reads; on devices other than the host */

/* Fields are read-only outside bench_place*.c. */
typedef struct esper_bench_place {
    esper_device       *device;
    esper_stream       *stream;
    int32_t             number;  /* as the guard counts: ESPER_GUARD_HOST, or that of a CUDA device */
    esper_pool         *pool;    /* the host's threads */
    esper_bench_reader *reader;  /* NULL on the host */
} esper_bench_place;

/* "host", "cuda", "cuda:N"; NULL: the first CUDA device if there is one, else the host. */
esper_status esper_bench_place_open(const char *name, int n_threads, esper_bench_place **place_out);
void         esper_bench_place_close(esper_bench_place *place);

/* "host" or "cuda:0". */
const char *esper_bench_place_name(const esper_bench_place *place, char text[16]);

/* Memory with made-up floats in it, none of them 0, denormal or not finite. */
esper_status esper_bench_place_alloc(esper_bench_place *place, uint64_t bytes, void **memory_out);
void         esper_bench_place_release(esper_bench_place *place, void *memory);

/* Reads all bytes once, with nothing done to them but what keeps the loads alive, and brings one word back: the least
 * that any scan takes. */
esper_status esper_bench_place_read(esper_bench_place *place, const void *memory, uint64_t bytes, double *seconds_out);

/* Copies within the device, or from (pinned) host memory to it; by all threads on the host. */
esper_status esper_bench_place_copy(esper_bench_place *place, void *to, const void *from, uint64_t bytes,
                                    double *seconds_out);

/* The kernel that only reads. */
esper_status esper_bench_reader_open(esper_bench_place *place, esper_bench_reader **reader_out);
void         esper_bench_reader_close(esper_bench_reader *reader);
esper_status esper_bench_reader_run(esper_bench_reader *reader, const void *memory, uint64_t bytes,
                                    double *seconds_out);

#endif
