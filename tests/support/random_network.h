/* Internal. Networks of random growth: any host, seeds in any slot and stage, weights that are not those of birth. For tests that
 * write a network down in another language. */
#ifndef ESPER_TESTS_RANDOM_NETWORK_H
#define ESPER_TESTS_RANDOM_NETWORK_H

#include "nn/infer.h"
#include "slot/splice.h"
#include "support/small_net.h"

enum { RANDOM_SAMPLES = 3 };

typedef struct random_network {
    small_run          run; /* open, for RANDOM_SAMPLES */
    esper_host         host;
    esper_slots        slots;
    char               text[2048]; /* what it is, for people */
    esper_infer_number numbers[ESPER_MAX_SLOTS];
    char               names[ESPER_MAX_SLOTS][ESPER_NAME_CHARS];
    int                n_numbers;
    bool               ids;
    int64_t            n_in, n_out; /* elements of a sample */
    float             *input, *output; /* (RANDOM_SAMPLES, n) what went in (ids as int32), and what came out of the engine */
} random_network;

/* The number decides all of it. */
void random_network_open(random_network *net, uint32_t number);
void random_network_close(random_network *net);

/* The same as it is evaluated; closed by esper_infer_fini. */
void random_network_infer(random_network *net, esper_infer *infer);

/* The largest distance between outputs and the engine's, beside 1 or the engine's largest output, whichever is more. */
double random_network_distance(const random_network *net, const float *output);

#endif
