/* Initial weights, and the hash that proves two networks equal. */
#include "nn/init.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a state that is no allocation */
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

/* A stream yields 2^22 numbers; a normal number takes two. Larger parameters draw a piece at a time, each with its tag. */
enum { PIECE = 1 << 20 };

/* Elements that go to the backend and come from it at a time. */
enum { PART = 1 << 14 };

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

    assert(tensor->rank >= 2 && rows > 0 && tensor->count % rows == 0);
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

/* Draws elements first .. first + n - 1 of a parameter, which begin a part or go on where the one before ended. */
static void draw_part(esper_rng *rng, const esper_tensor *tensor, const esper_birth_key *birth, int64_t first,
                      int64_t n, float *values)
{
    esper_rng_key key = {
        .seed = birth->seed, .purpose = ESPER_RNG_INIT, .network = birth->network, .step = birth->number};

    assert(first >= 0 && n > 0 && first + n <= tensor->count);
    key.sample = (uint32_t)XXH64(tensor->name, strlen(tensor->name), 0);
    for (int64_t i = 0; i < n; i++) {
        if ((first + i) % PIECE == 0) {
            key.tag = (uint32_t)((first + i) / PIECE);
            esper_rng_init(rng, &key);
        }
        values[i] = draw(rng, &tensor->init);
    }
}

/* Matrices whose rows know of each other are made as a whole. */
static esper_status fill_orthogonal(const esper_slab *slab, float *to, const esper_tensor *tensor,
                                    const esper_birth_key *birth)
{
    float *values = esper_mem_alloc((size_t)tensor->count * sizeof(*values));
    esper_rng rng;
    esper_status status;

    if (values == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s at its birth", tensor->name);
    draw_part(&rng, tensor, birth, 0, tensor->count, values);
    make_orthogonal(values, tensor);
    status = esper_backend_copy_in(slab->backend, NULL, to, values, (size_t)tensor->count * sizeof(*values));
    esper_mem_free(values);
    return status;
}

/* Everything else a part at a time: a seed is born without taking memory. */
static esper_status fill(const esper_slab *slab, float *to, const esper_tensor *tensor, const esper_birth_key *birth)
{
    float values[PART];
    esper_rng rng;

    if (tensor->init.kind == ESPER_INIT_ORTHOGONAL)
        return fill_orthogonal(slab, to, tensor, birth);
    for (int64_t first = 0, n; first < tensor->count; first += n) {
        n = tensor->count - first < PART ? tensor->count - first : PART;
        draw_part(&rng, tensor, birth, first, n, values);
        ESPER_TRY(esper_backend_copy_in(slab->backend, NULL, to + first, values, (size_t)n * sizeof(*values)));
    }
    return ESPER_OK;
}

/* The family that holds what a tensor is, rather than what is known about it; false for activations. */
static bool is_state(const esper_tensor *tensor, esper_family *family_out)
{
    *family_out = tensor->role == ESPER_ROLE_PARAM ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER;
    return tensor->role == ESPER_ROLE_PARAM || tensor->role == ESPER_ROLE_BUFFER;
}

esper_status esper_init_seed(const esper_net *net, const esper_slab *slab, const esper_birth_key *birth, int region)
{
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        esper_family family;

        if (is_state(tensor, &family) && (region < 0 || tensor->region == region))
            ESPER_TRY(fill(slab, esper_slab_at(slab, family, tensor), tensor, birth));
    }
    return ESPER_OK;
}

esper_status esper_init_net(const esper_net *net, const esper_slab *slab, uint64_t seed, uint32_t network, int region)
{
    return esper_init_seed(net, slab, &(esper_birth_key){.seed = seed, .network = network}, region);
}

uint64_t esper_weight_hash_add(uint64_t hash, const esper_tensor *tensor, const void *values)
{
    hash = XXH64(tensor->name, strlen(tensor->name), hash);
    return XXH64(values, (size_t)tensor->count * sizeof(float), hash);
}

uint64_t esper_weight_hash_read(uint64_t hash, const esper_slab *slab, esper_family family, const esper_tensor *tensor)
{
    const float *from = esper_slab_at(slab, family, tensor);
    float values[PART];
    XXH64_state_t state;

    XXH64_reset(&state, XXH64(tensor->name, strlen(tensor->name), hash));
    for (int64_t first = 0, n; first < tensor->count; first += n) {
        n = tensor->count - first < PART ? tensor->count - first : PART;
        if (esper_backend_read(slab->backend, values, from + first, (size_t)n * sizeof(*values)) != ESPER_OK)
            return 0;
        XXH64_update(&state, values, (size_t)n * sizeof(*values));
    }
    return XXH64_digest(&state);
}

uint64_t esper_weight_hash(const esper_net *net, const esper_slab *slab)
{
    uint64_t hash = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        esper_family family;

        if (is_state(&net->tensors[t], &family))
            hash = esper_weight_hash_read(hash, slab, family, &net->tensors[t]);
    }
    return hash;
}
