/* Internal. A program as it is evaluated (nn/infer.h), in whole numbers: weights of convolutions, linear layers and embeddings in 8 bits
 * with a scale for each output channel, activations in 16 bits with a scale for each tensor, sums in 32.
 *
 * Scales are taken from samples. Weights are rounded so that a layer's outputs on these samples change least: up or down together,
 * by the samples' second moments, not each to the nearest. What is left of a channel's mean goes into its bias. The range of an
 * activation is limited where a sum could overflow otherwise, so none can, whatever comes in.
 *
 * Why 16 bits for activations: with 8 three to six times as many answers differ from those in floats, and activations are the
 * smaller part of the memory (docs/export-c.md has the figures). */
#ifndef ESPER_NN_FIXED_H
#define ESPER_NN_FIXED_H

#include "nn/infer_run.h"

enum { ESPER_FIXED_MOST = 32767, ESPER_FIXED_WEIGHT = 127 };

typedef struct esper_fixed_tensor {
    float   largest; /* that was seen */
    float   scale;
    int32_t most;
} esper_fixed_tensor;

/* Of a conv or linear operation. */
typedef struct esper_fixed_op {
    int32_t *bias, *factor; /* (O) */
    uint8_t *shift;         /* (O) */
    bool     last;          /* a linear layer that makes the output: floats */
    float   *moments;       /* while calibrating: (groups, K, K), then (groups, K) sums */
    float   *correction;    /* (O) what rounding took from the mean */
    int64_t  n_seen;
} esper_fixed_op;

/* Rows of a table in 8 bits; q NULL: it stays in floats. */
typedef struct esper_fixed_weights {
    int8_t *q;     /* like values */
    float  *scale; /* (rows) */
} esper_fixed_weights;

typedef struct esper_fixed {
    const esper_infer   *infer;   /* borrowed */
    esper_fixed_tensor  *tensors; /* (n_tensors) */
    esper_fixed_op      *ops;     /* (n_ops) */
    esper_fixed_weights *weights; /* (n_weights) */
    esper_infer_places   places;  /* in int16; scratch in floats */
    int64_t              n_scratch;
    int16_t             *memory;  /* for esper_fixed_run */
    float               *scratch;
} esper_fixed;

/* Samples to calibrate with: the next one's input, or NULL at the end. */
typedef const void *(*esper_fixed_sample)(void *context, int index);

esper_status esper_fixed_init(esper_fixed *fixed, const esper_infer *infer, esper_fixed_sample sample, void *context);
void         esper_fixed_fini(esper_fixed *fixed);

/* Computes it for one sample, as the exported file does, bit for bit but for libm. */
void esper_fixed_run(const esper_fixed *fixed, const void *input, float *output);

#endif
