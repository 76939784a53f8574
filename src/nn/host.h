/* Internal. Host networks: what a run starts from. A host has boundaries, where seeds can be put.
 *
 * Every host is a text (nn/host_text.h), which one builder (nn/host_build.h) makes a program of. The structs below have what the data
 * says of it, and the settings that the usual texts are made from. */
#ifndef ESPER_NN_HOST_H
#define ESPER_NN_HOST_H

#include "nn/host_text.h"
#include "tensor/net.h"

/* What flows through a host: images (C,H,W), tokens (T,D), the rows of a table (D). */
typedef enum esper_topology { ESPER_TOPOLOGY_CNN, ESPER_TOPOLOGY_TRANSFORMER, ESPER_TOPOLOGY_MLP } esper_topology;

enum { ESPER_N_TOPOLOGIES = ESPER_TOPOLOGY_MLP + 1 };

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

/* layers x [linear -> layer norm -> ReLU -> (dropout)], all of one width; linear. */
typedef struct esper_host_mlp {
    int   features, classes;
    int   layers, width;
    float dropout;
} esper_host_mlp;

typedef struct esper_host {
    esper_topology topology;
    union {
        esper_host_cnn         cnn;
        esper_host_transformer transformer;
        esper_host_mlp         mlp;
    };
    char text[ESPER_HOST_CHARS];  /* as it was given; "" = made from the settings above */
    char slots[ESPER_HOST_CHARS]; /* names of those that may grow, separated by commas; "" = all */
    int  stack;     /* how often a slot opens again behind a seed that was kept: so many more slots at each place */
    bool widen;     /* blocks of images that feed another layer have a slot that takes new channels (esper_wide) */
    bool with_loss; /* adds targets and the loss; without, the logits are the output whose gradient the caller gives */
} esper_host;

const char *esper_topology_name(esper_topology topology);

/* The topology of that name; -1 = there is none. */
int esper_topology_find(const char *name);

/* The text of a host on one line. E_ARG, with a sentence, where its settings make none. */
esper_status esper_host_describe(const esper_host *host, char text[ESPER_HOST_CHARS]);

/* Builds the program into an initialised net. Sets net->hook beforehand to put seeds at boundaries. */
esper_status esper_host_build(const esper_host *host, esper_net *net);

#endif
