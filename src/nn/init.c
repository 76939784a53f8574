/* Initial weights, and the hash that proves two networks equal. */
#include "nn/init.h"

#include <math.h>
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
    case ESPER_INIT_ORTHOGONAL:
        return esper_rng_normal(rng);
    default:
        return init->value;
    }
}

/* A matrix's rows, or its columns where those are fewer, as vectors: element k of vector v is at[v * vector + k * element]. */
typedef struct vectors {
    float  *at;
    int64_t n, length, vector, element;
} vectors;

static double dot(const vectors *m, int64_t a, int64_t b)
{
    double sum = 0;

    for (int64_t k = 0; k < m->length; k++)
        sum += (double)m->at[a * m->vector + k * m->element] * (double)m->at[b * m->vector + k * m->element];
    return sum;
}

/* Vector v less its part along u, or times a factor. */
static void change(const vectors *m, int64_t v, double factor, int64_t u, double part)
{
    for (int64_t k = 0; k < m->length; k++) {
        float *at = &m->at[v * m->vector + k * m->element];

        *at = (float)(factor * (double)*at - part * (double)m->at[u * m->vector + k * m->element]);
    }
}

/* Gram-Schmidt, each vector twice: what remains of the others after the first time is rounding. */
static void make_orthogonal(float *values, const esper_tensor *tensor)
{
    int64_t rows = tensor->dim[0], cols = tensor->count / rows;
    vectors m = {values, rows, cols, cols, 1};

    if (rows > cols)
        m = (vectors){values, cols, rows, 1, cols};
    for (int64_t v = 0; v < m.n; v++) {
        for (int64_t u = 0; u < 2 * v; u++)
            change(&m, v, 1, u % v, dot(&m, u % v, v));
        change(&m, v, 1 / sqrt(dot(&m, v, v)), v, 0);
    }
    for (int64_t i = 0; i < tensor->count; i++)
        values[i] *= tensor->init.value;
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
    if (tensor->init.kind == ESPER_INIT_ORTHOGONAL)
        make_orthogonal(values, tensor);
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
