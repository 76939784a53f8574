/* Internal. A network as files that need nothing of Esper: C, or an ONNX model. The texts are nn/c99_export.c's and
 * nn/onnx_export.c's; here they meet weights, data and disk. */
#ifndef ESPER_RUN_EXPORT_PROGRAM_H
#define ESPER_RUN_EXPORT_PROGRAM_H

#include "engine/network.h"

typedef struct esper_export_program {
    esper_network *network; /* restored, to be evaluated; with its data where it is to be calibrated */
    const char    *about;   /* lines at the head */
    const char    *name;    /* of functions and files of C */
    bool           int8;    /* weights in 8 bits, calibrated on samples of the training split */
    bool           force;   /* replaces files that are there */
} esper_export_program;

/* What came of it, for people. */
typedef struct esper_export_size {
    int64_t  weight_bytes, memory_bytes, macs;
    uint64_t n_same, n_compared; /* int8: answers on the validation split that are those of the engine, in floats */
} esper_export_size;

/* NAME.c, NAME.h and main.c into `dir`, which is made if need be. A directory that was not there is there whole or not at all. */
esper_status esper_export_c(const esper_export_program *what, const char *dir, esper_export_size *size_out);

/* An ONNX model, opset 13. */
esper_status esper_export_onnx(const esper_export_program *what, const char *path);

#endif
