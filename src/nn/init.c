/* Initial weights, and the hash that proves two networks equal. */
#include "nn/init.h"

#include <string.h>
#include <xxhash.h>

#include "base/rng.h"

/* A stream yields 2^22 numbers; a normal number takes two. Larger parameters draw a piece at a time, each with its tag. */
enum { PIECE = 1 << 20 };

static float draw(esper_rng *rng, const esper_init *init)
{
    switch (init->kind) {
    case ESPER_INIT_UNIFORM:
        return init->value * (2.0f * esper_rng_uniform(rng) - 1.0f);
    case ESPER_INIT_NORMAL:
        return init->value * esper_rng_normal(rng);
    default:
        return init->value;
    }
}

static void fill(float *values, const esper_tensor *tensor, uint64_t seed, uint32_t network, uint32_t birth)
{
    esper_rng_key key = {.seed = seed, .purpose = ESPER_RNG_INIT, .network = network, .step = birth};
    esper_rng rng;

    key.sample = (uint32_t)XXH64(tensor->name, strlen(tensor->name), 0);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % PIECE == 0) {
            key.tag = (uint32_t)(i / PIECE);
            esper_rng_init(&rng, &key);
        }
        values[i] = draw(&rng, &tensor->init);
    }
}

static float *state_of(const esper_slab *slab, const esper_tensor *tensor)
{
    if (tensor->role == ESPER_ROLE_PARAM)
        return esper_slab_at(slab, ESPER_FAMILY_PARAM, tensor);
    if (tensor->role == ESPER_ROLE_BUFFER)
        return esper_slab_at(slab, ESPER_FAMILY_BUFFER, tensor);
    return NULL;
}

static void fill_region(const esper_net *net, const esper_slab *slab, const esper_birth *birth, int region)
{
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        float *values = state_of(slab, tensor);

        if (values != NULL && (region < 0 || tensor->region == region))
            fill(values, tensor, birth->seed, birth->network, birth->number);
    }
}

void esper_init_net(const esper_net *net, const esper_slab *slab, uint64_t seed, uint32_t network, int region)
{
    fill_region(net, slab, &(esper_birth){.seed = seed, .network = network}, region);
}

void esper_init_seed(const esper_net *net, const esper_slab *slab, const esper_birth *birth, int region)
{
    fill_region(net, slab, birth, region);
}

uint64_t esper_weight_hash_add(uint64_t hash, const esper_tensor *tensor, const void *values)
{
    hash = XXH64(tensor->name, strlen(tensor->name), hash);
    return XXH64(values, (size_t)tensor->count * sizeof(float), hash);
}

uint64_t esper_weight_hash(const esper_net *net, const esper_slab *slab)
{
    uint64_t hash = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        const float *values = state_of(slab, tensor);

        if (values != NULL)
            hash = esper_weight_hash_add(hash, tensor, values);
    }
    return hash;
}
