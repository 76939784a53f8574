/* Internal. oneDNN (2.x, its C API) on one thread, to be measured beside our kernels; the only place that knows it. */
#ifndef ESPER_LAB_DNNL_PEER_H
#define ESPER_LAB_DNNL_PEER_H

#include <stdbool.h>
#include <stddef.h>

/* C (m x n) = A (m x k) B (k x n), + C where `add`. Rows lie a_row, b_row, c_row apart; a side that is turned is read with
 * rows and columns exchanged. */
typedef struct dnnl_product {
    size_t       m, n, k;
    bool         a_turned, b_turned, add;
    const float *a, *b;
    size_t       a_row, b_row, c_row;
    float       *c;
} dnnl_product;

void dnnl_peer_multiply(const dnnl_product *p);

/* A convolution of a block of sixteen samples, stride 1, square images. */
typedef enum dnnl_side { DNNL_SIDE_FORWARD, DNNL_SIDE_DATA, DNNL_SIDE_WEIGHTS, DNNL_SIDES } dnnl_side;

typedef struct dnnl_shape {
    int in_c, out_c, kernel, pad, size;
} dnnl_shape;

typedef struct dnnl_peer_conv dnnl_peer_conv;

/* The two arrays that the side reads: x and w, g and w, or x and g. Activations are blocked as ours are, weights canonical;
 * they are brought into the layouts oneDNN chooses. Lives as long as the process. NULL where oneDNN refuses. */
dnnl_peer_conv *dnnl_peer_conv_open(dnnl_side side, dnnl_shape shape, const float *first, const float *second);

void dnnl_peer_conv_run(dnnl_peer_conv *conv);                         /* in its own layouts */
void dnnl_peer_conv_result(dnnl_peer_conv *conv, float *result);       /* in ours */
void dnnl_peer_conv_run_between(dnnl_peer_conv *conv, float *result);  /* from our layouts to ours; the weights packed */

#endif
