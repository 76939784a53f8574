/* Internal. Host networks: what a run starts from. A host has boundaries, where seeds can be put. */
#ifndef ESPER_NN_HOST_H
#define ESPER_NN_HOST_H

#include "tensor/net.h"

typedef enum esper_topology { ESPER_TOPOLOGY_CNN, ESPER_TOPOLOGY_TRANSFORMER } esper_topology;

/* blocks x [conv k x k -> batch norm -> ReLU -> (max pool)], channels doubling from `channels`; mean; linear. */
typedef struct esper_host_cnn {
    int in_channels, height, width, classes;
    int blocks;   /* at least 2 */
    int channels; /* of the first block */
    int kernel;
    int pools;    /* blocks that end in a pool; more than `blocks` = all */
} esper_host_cnn;

/* Token and position embedding, pre-norm blocks of causal attention and MLP, tied head. */
typedef struct esper_host_transformer {
    int   vocab, width, heads, layers;
    int   context;  /* positions */
    int   tokens;   /* sequence length of this program, at most context; 0 = context */
    int   segments; /* boundaries: one after every layers / segments layers */
    float dropout;
    float embed_std; /* deviation at birth. 0.02: a tied N(0,1) embedding would start at a loss of some 250 nats */
} esper_host_transformer;

typedef struct esper_host {
    esper_topology topology;
    union {
        esper_host_cnn         cnn;
        esper_host_transformer transformer;
    };
    bool with_loss; /* adds targets and the loss; without, the logits are the output whose gradient the caller gives */
} esper_host;

const char *esper_topology_name(esper_topology topology);

/* Builds the program into an initialised net. Sets net->hook beforehand to put seeds at boundaries. */
esper_status esper_host_build(const esper_host *host, esper_net *net);

#endif
