/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and the layout of its counter:
 *
 *     counter[0] = tag << 20 | index of the block     counter[2] = step
 *     counter[1] = sample                             counter[3] = purpose << 24 | network
 */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

enum { ROUNDS = 10, TAG_SHIFT = 20, PURPOSE_SHIFT = 24 };

void esper_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void esper_rng_init(esper_rng *rng, const esper_rng_key *key)
{
    rng->key[0] = (uint32_t)key->seed;
    rng->key[1] = (uint32_t)(key->seed >> 32);
    rng->counter[0] = key->tag << TAG_SHIFT;
    rng->counter[1] = key->sample;
    rng->counter[2] = key->step;
    rng->counter[3] = (uint32_t)key->purpose << PURPOSE_SHIFT | key->network;
    rng->n_ready = 0;
}

uint32_t esper_rng_u32(esper_rng *rng)
{
    assert(rng->n_ready >= 0 && rng->n_ready <= 4);
    if (rng->n_ready == 0) {
        esper_philox(rng->counter, rng->key, rng->ready);
        rng->counter[0]++;
        rng->n_ready = 4;
    }
    return rng->ready[4 - rng->n_ready--];
}

void esper_rng_skip(esper_rng *rng, uint32_t n)
{
    uint32_t at_hand = (uint32_t)rng->n_ready < n ? (uint32_t)rng->n_ready : n;

    rng->n_ready -= (int)at_hand;
    n -= at_hand;
    rng->counter[0] += n / 4;
    for (n %= 4; n > 0; n--)
        esper_rng_u32(rng);
}

float esper_rng_uniform(esper_rng *rng)
{
    return (float)(esper_rng_u32(rng) >> 8) * 0x1p-24f;
}

uint32_t esper_rng_below(esper_rng *rng, uint32_t end)
{
    uint32_t short_by = -end % end; /* 2^32 mod end: the numbers below it would favour small results */
    uint64_t wide;

    assert(end > 0);
    do
        wide = (uint64_t)esper_rng_u32(rng) * end;
    while ((uint32_t)wide < short_by);
    return (uint32_t)(wide >> 32);
}

float esper_rng_normal(esper_rng *rng)
{
    double radius = sqrt(-2.0 * log1p(-(double)esper_rng_uniform(rng)));
    double angle = 6.283185307179586 * (double)esper_rng_uniform(rng);

    return (float)(radius * cos(angle));
}
