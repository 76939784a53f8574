/* Internal. Computes a program as it is evaluated (nn/infer.h) for one sample, with the kernels that exported C files have. Slow, and for
 * calibration: who watches sees every tensor. */
#ifndef ESPER_NN_INFER_RUN_H
#define ESPER_NN_INFER_RUN_H

#include "nn/infer.h"

typedef struct esper_infer_runner {
    const esper_infer *infer;
    esper_infer_places places; /* in floats */
    float             *memory;
    /* Called for the input and for every tensor once it is there; NULL: nobody watches. */
    void (*saw)(void *context, int tensor, const float *values);
    void *context;
} esper_infer_runner;

esper_status esper_infer_runner_init(esper_infer_runner *runner, const esper_infer *infer);
void         esper_infer_runner_fini(esper_infer_runner *runner);

/* input: floats, or int32 ids; output: the caller's, as many floats as the network's. */
void esper_infer_run(const esper_infer_runner *runner, const void *input, float *output);

/* Floats that an operation wants for itself while it runs: a row of scores. */
int64_t esper_infer_scratch(const esper_infer *infer, const esper_infer_op *op);

#endif
