/* Internal. A program as it is evaluated (nn/infer.h) as an ONNX model: opset 13, weights inside, any number of samples.
 *
 * The protobuf is written here, field by field; there is no library. Operations that opset 13 does not have (layer norm, group norm,
 * GELU, causal attention, blends) are written out in those it has. Texts from anywhere are strings of the model's metadata. */
#ifndef ESPER_NN_ONNX_EXPORT_H
#define ESPER_NN_ONNX_EXPORT_H

#include "nn/infer.h"

/* An entry of the model's metadata. */
typedef struct esper_onnx_note {
    const char *key, *value; /* UTF-8; other bytes become U+FFFD */
} esper_onnx_note;

typedef struct esper_onnx_desc {
    const esper_infer     *infer;
    const char            *about; /* NULL = none */
    const esper_onnx_note *notes;
    int                    n_notes;
} esper_onnx_desc;

typedef struct esper_onnx {
    uint8_t *bytes;
    size_t   n;
} esper_onnx;

/* Input `input`: floats (N, ...) or int64 ids (N, T); output `output`: floats (N, ...). */
esper_status esper_onnx_init(esper_onnx *onnx, const esper_onnx_desc *desc);
void         esper_onnx_fini(esper_onnx *onnx);

#endif
