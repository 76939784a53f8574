/* Internal. The tensors that the guard's benchmarks watch: the shapes of known networks, in one block of memory. */
#ifndef ESPER_BENCH_GUARD_MODEL_H
#define ESPER_BENCH_GUARD_MODEL_H

#include "bench/place.h"
#include "esper.h"

typedef enum esper_bench_shapes {
    ESPER_BENCH_GPT2,     /* 124 M parameters in 148 tensors */
    ESPER_BENCH_1B,       /* 1.01 G parameters in 220 tensors */
    ESPER_BENCH_SMALL100, /* 50 convolutions of 64 x 64 x 3 x 3 and 50 vectors of 64 */
    ESPER_BENCH_TINY      /* 5,000 tensors of 64: with their gradients 10,000 */
} esper_bench_shapes;

/* Tensors lie one after the other, at multiples of 256 bytes, family by family. Fields are read-only. */
typedef struct esper_bench_model {
    esper_bench_place  *place;
    esper_guard_tensor *tensors; /* (n_tensors) */
    size_t              n_tensors;
    char               *names;   /* their texts */
    char               *memory;
    uint64_t            bytes;   /* of all, with what lies between */
} esper_bench_model;

/* families: a letter for each set of tensors of these shapes: p parameters, g gradients, m and v moments. */
esper_status esper_bench_model_open(esper_bench_place *place, esper_bench_shapes shapes, const char *families,
                                    bool quick, esper_bench_model **model_out);
void         esper_bench_model_close(esper_bench_model *model);

/* The part of the memory that tensors of these roles (bits) take: families of one role lie together. */
void esper_bench_model_span(const esper_bench_model *model, uint32_t roles, char **begin_out, uint64_t *bytes_out);

#endif
