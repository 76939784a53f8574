/* Fisher and Yates over counter-based numbers. */
#include "data/shuffle.h"

enum { DRAWS_PER_STREAM = 1 << 20 }; /* a stream holds four times as many: room for draws that are thrown away */

void esper_shuffle(uint32_t *list, uint32_t n, const esper_rng_key *key)
{
    esper_rng_key part = *key;
    esper_rng rng;

    for (uint32_t k = 0; k + 1 < n; k++) {
        uint32_t last = n - 1 - k;
        uint32_t pick, held;

        if (k % DRAWS_PER_STREAM == 0) {
            part.sample = k / DRAWS_PER_STREAM;
            esper_rng_init(&rng, &part);
        }
        pick = esper_rng_below(&rng, last + 1);
        held = list[last];
        list[last] = list[pick];
        list[pick] = held;
    }
}
