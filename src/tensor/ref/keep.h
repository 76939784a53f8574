/* Internal. Which elements dropout keeps: a stream of draws keyed by what the sample is, not by where it lies in a batch,
 * so that the backward pass, another batch size or another rank draws the same. */
#ifndef ESPER_TENSOR_REF_KEEP_H
#define ESPER_TENSOR_REF_KEEP_H

#include "base/rng.h"
#include "tensor/ref/ref.h"

static inline esper_rng keep_stream(const esper_pass *pass, int sample, uint32_t tag)
{
    esper_rng_key key = {
        .seed = pass->seed,
        .purpose = ESPER_RNG_DROPOUT,
        .network = pass->network,
        .step = pass->step,
        .sample = pass->sample_id[sample],
        .tag = tag,
    };
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

/* The next element's factor: 0, or what makes up for the dropped ones. */
static inline real keep_factor(esper_rng *rng, float drop)
{
    return esper_rng_uniform(rng) < drop ? 0 : 1 / (1 - (real)drop);
}

#endif
