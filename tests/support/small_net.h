/* Internal. Small hosts with seeds in them, alone or as a fleet, ready to train on made-up data. */
#ifndef ESPER_TESTS_SMALL_NET_H
#define ESPER_TESTS_SMALL_NET_H

#include "nn/blueprint.h"
#include "nn/host.h"
#include "nn/optim.h"
#include "tensor/plan.h"

enum { SMALL_MAX_NETS = 5, SMALL_MAX_SEEDS = 4, SMALL_SAMPLES = 19 };

/* ------------------------------------------------------------------------------------------------ hosts and seeds */

esper_host small_cnn(void);                        /* 3x8x8 -> 4 -> 8 channels, two pools, 5 classes */
esper_host small_transformer(float dropout);       /* 2 layers of width 16, 6 of 8 positions, 11 words, 2 segments */
esper_host small_mlp(float dropout);               /* 7 features, 2 layers of width 12, 5 classes */
esper_host spec_cnn(int blocks, int channels, int kernel, int pools); /* 3x32x32, 10 classes */
esper_host spec_transformer(void);                 /* the tinystories host */

/* How a seed is put into the stream. */
typedef enum small_mode {
    SMALL_TRAINING,     /* isolated input, straight-through: the host's values and gradients are its own */
    SMALL_ADD,          /* blends, with the true gradient both ways */
    SMALL_ADD_ISOLATED,
    SMALL_MULTIPLY,
    SMALL_GATE,
    SMALL_N_MODES
} small_mode;

const char *small_mode_name(small_mode mode);

typedef struct small_seed {
    const char *slot, *blueprint; /* slot NULL ends a list */
    small_mode  mode;
} small_seed;

/* A list of seeds as net->hook sees it. A slot of order k uses region k + 1 and names that begin with "<slot>."; its
 * alpha is the input "<slot>.alpha". */
typedef struct small_grown {
    esper_topology    topology;
    const small_seed *seeds; /* NULL = none */
} small_grown;

int small_hook(esper_net *net, const esper_boundary *boundary, int x, void *context);

/* Builds the host with seeds into a net, which it initialises. */
esper_status small_build(esper_net *net, const esper_host *host, const small_seed *seeds);

/* The program as it is printed; to be freed. */
char *small_text(const esper_net *net);

/* ------------------------------------------------------------------------------------------------ any net, to run */

/* The plan points into it: it may not be moved once open. */
typedef struct small_run {
    esper_pool    *pool;
    esper_backend *backend;
    esper_net      net;
    esper_slab     slab;
    esper_pass     pass;
    esper_plan    *plan;
} small_run;

/* Takes over run->net, which the caller has built, and opens the rest. Fails the test when that fails. */
void small_run_open(small_run *run, const char *backend, int n_samples, bool training);
void small_run_open_on(small_run *run, const char *backend, int n_threads, int n_samples, bool training);
void small_run_close(small_run *run);

/* ------------------------------------------------------------------------------------------------ fleets */

typedef struct small_desc {
    const char       *backend;
    int               n_threads;
    esper_host        host;
    int               n_nets;
    const small_seed *seeds[SMALL_MAX_NETS];   /* NULL = none */
    uint32_t          network[SMALL_MAX_NETS]; /* numbers: key weights, data and dropout */
    bool              inference;
    esper_op_kind     optimiser; /* ESPER_OP_SGD or ESPER_OP_ADAMW; 0 = SGD */
} small_desc;

typedef struct small_member {
    esper_net  net;
    esper_slab slab;
    esper_pass pass;
    uint32_t   sample_id[SMALL_SAMPLES];
} small_member;

/* The plan points into it: it may not be moved once open. */
typedef struct small_fleet {
    int            n_nets;
    esper_pool    *pool;
    esper_backend *backend;
    small_member   members[SMALL_MAX_NETS];
    esper_plan    *plan;
    esper_optim   *optim; /* NULL for inference */
} small_fleet;

/* On failure nothing stays open. */
esper_status small_fleet_open(small_fleet *fleet, const small_desc *desc);
void         small_fleet_close(small_fleet *fleet);

/* Writes the batch of a step into the inputs: a function of (network, step) alone. */
void small_fleet_fill(small_fleet *fleet, uint32_t step);

/* Fill, forward, backward, optimiser step. */
esper_status small_fleet_step(small_fleet *fleet, uint32_t step);

/* The mean loss of a network's batch after a forward pass. */
double small_fleet_loss(const small_fleet *fleet, int k);

uint64_t small_fleet_hash(const small_fleet *fleet, int k);

/* The gradient of a parameter by name; NULL when there is none. */
const float *small_fleet_grad(const small_fleet *fleet, int k, const char *name, int64_t *count_out);

#endif
