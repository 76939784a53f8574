/* Internal. Layers with their parameters, in the names and initial distributions that hosts and blueprints share. */
#ifndef ESPER_NN_LAYER_H
#define ESPER_NN_LAYER_H

#include "tensor/net.h"

#define ESPER_NORM_EPS      1e-5f
#define ESPER_NORM_MOMENTUM 0.1f /* share of a batch in the running statistics of batch norm */

/* `name` is the layer's: parameters are <name>.weight and <name>.bias. */
typedef struct esper_conv {
    int in, out, kernel, groups;
} esper_conv;

int esper_layer_conv(esper_net *net, const char *name, int x, esper_conv conv); /* padding kernel/2, no bias */
int esper_layer_conv_born(esper_net *net, const char *name, int x, esper_conv conv,
                          float times);                                           /* weights `times` the usual */
int esper_layer_batch_norm(esper_net *net, const char *name, int x, float scale); /* born so; 1 is usual */
int esper_layer_group_norm(esper_net *net, const char *name, int x);
int esper_layer_layer_norm(esper_net *net, const char *name, int x);

typedef struct esper_linear {
    int   in, out;
    bool  bias;
    bool  zero;       /* weights and bias born as zeros */
    float bias_value; /* with zero: the bias is born as this */
    float shrink;     /* weights and bias are born so many times as large as usual; 0 = 1 */
} esper_linear;

int esper_layer_linear(esper_net *net, const char *name, int x, esper_linear linear);

/* A layer of a transformer, pre-norm: x + attention, then that + MLP of four times the width. `prefix` is put before the names
 * of its parts. */
typedef struct esper_transformer {
    int   heads;
    float dropout;
    bool  zero;   /* of the two linear layers that lead back into the stream, as above */
    float shrink;
} esper_transformer;

int esper_layer_transformer(esper_net *net, const char *prefix, int x, esper_transformer layer);

/* Groups of a group norm over `channels`: the most that leave at least 16 channels in each, from 32 down in powers of two;
 * below that the largest power of two that divides. */
int esper_group_norm_groups(int channels);

#endif
