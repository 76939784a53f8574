/* Internal. Weights at birth. */
#ifndef ESPER_NN_INIT_H
#define ESPER_NN_INIT_H

#include "tensor/slab.h"

/* Fills the parameters and norm buffers of a region (-1 = all) as the net says they are born. Every parameter draws from a
 * stream of its own, keyed by (seed, network, its name): it is born the same whatever else the network holds. */
esper_status esper_init_net(const esper_net *net, const esper_slab *slab, uint64_t seed, uint32_t network, int region);

/* Which birth: seeds that follow each other in a slot are born different. The first one's number is 0. Of a seed `network` is which
 * of several draws. */
typedef struct esper_birth_key {
    uint64_t seed;
    uint32_t network, number;
} esper_birth_key;

/* The same for the seed in a region. */
esper_status esper_init_seed(const esper_net *net, const esper_slab *slab, const esper_birth_key *birth, int region);

/* A hash of the net's parameters and norm buffers (names and bits): equal weights, equal hash. It goes on from 0, tensor by
 * tensor, in the net's order. A slab that cannot be read, its backend being lost, has the hash 0. */
uint64_t esper_weight_hash(const esper_net *net, const esper_slab *slab);
uint64_t esper_weight_hash_add(uint64_t hash, const esper_tensor *tensor, const void *values);
/* The same of a tensor in the backend's memory. */
uint64_t esper_weight_hash_read(uint64_t hash, const esper_slab *slab, esper_family family, const esper_tensor *tensor);

#endif
