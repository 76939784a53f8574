/* Internal. Counter-based random numbers (Philox 4x32-10).
 *
 * A stream is a pure function of (seed, purpose, network, step, sample, tag): nothing is carried from step to step, so
 * any draw can be made again, in any order, on any thread or rank. */
#ifndef ESPER_BASE_RNG_H
#define ESPER_BASE_RNG_H

#include <stdint.h>

typedef enum esper_rng_purpose {
    ESPER_RNG_INIT = 1, /* weights; sample = hash of the parameter's name, step = how many seeds its slot had before */
    ESPER_RNG_SPLIT,    /* which training samples become validation */
    ESPER_RNG_SHUFFLE,  /* order of an epoch; step = epoch, tag = how often it was drawn anew */
    ESPER_RNG_AUGMENT,  /* crop, flip, cut-out; step = epoch, sample = global sample index */
    ESPER_RNG_DROPOUT,  /* tag = the op */
    ESPER_RNG_SYNTH,    /* contents of the synthetic data set */
    ESPER_RNG_TEST,     /* tests and benchmarks */
    ESPER_RNG_POLICY,   /* decisions; step = epoch, tag = what is drawn */
    ESPER_RNG_FAULT,    /* drills; step = when, tag = which */
    ESPER_RNG_SEARCH,   /* networks that a search draws */
    ESPER_RNG_SAMPLE,   /* tokens of a text that goes on */
} esper_rng_purpose;

/* What a stream is keyed by. network < 2^24, tag < 2^12; a stream yields up to 2^22 numbers. */
typedef struct esper_rng_key {
    uint64_t          seed;
    esper_rng_purpose purpose;
    uint32_t          network, step, sample, tag;
} esper_rng_key;

typedef struct esper_rng {
    uint32_t key[2];
    uint32_t counter[4];
    uint32_t ready[4]; /* numbers made and not yet given out: the last n_ready */
    int      n_ready;
} esper_rng;

void     esper_rng_init(esper_rng *rng, const esper_rng_key *key);
uint32_t esper_rng_u32(esper_rng *rng);
void     esper_rng_skip(esper_rng *rng, uint32_t n);    /* as if n numbers had been drawn; takes no time */
float    esper_rng_uniform(esper_rng *rng);             /* [0, 1), 24 bits */
uint32_t esper_rng_below(esper_rng *rng, uint32_t end); /* 0 .. end-1 without bias; end > 0 */
float    esper_rng_normal(esper_rng *rng);              /* mean 0, deviation 1 */

/* One block of the generator: four numbers from a counter and a key. */
void esper_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
