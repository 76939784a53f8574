/* Internal. Successive halving: search as a control for growing, within the FLOPs of one run.
 *
 * Static networks are drawn by the run's seed from all sets of seeds (slot:blueprint in any of the slots) that keep below
 * max_params, max_kib and max_flops. The budget is divided evenly over the rounds: 16, 8, 4, 2 networks, and the last one. In a round each has the same FLOPs;
 * it goes on from where it stands, its rate held and, in the recipe's last part of the round, falling to 0, so that what is measured is
 * what it would be worth. The better half by validation loss goes on. The last one is the run's network: what is left of the
 * budget is its own, and its rate goes by the share of all that it itself gets, as the recipe says. */
#ifndef ESPER_RUN_HALVING_H
#define ESPER_RUN_HALVING_H

#include "base/log.h"
#include "engine/network.h"

enum { ESPER_HALVING_NETWORKS = 16, ESPER_HALVING_ROUNDS = 5 };

/* A set of seeds: for each slot a place in the list of blueprints, or -1: none. */
typedef struct esper_halving_set {
    int8_t  blueprint[ESPER_MAX_SLOTS];
    int64_t params; /* of the seeds together */
} esper_halving_set;

/* What a set may add to the host. */
typedef struct esper_halving_room {
    int64_t params; /* -1 = any number */
    double  flops;  /* of a sample; -1 = any number */
} esper_halving_room;

/* Up to 16 different sets, each as likely as any other, for empty slots of the host, that find room. Fewer where there are not so
 * many, or where chance finds no more. */
esper_status esper_halving_draw(const esper_slots *slots, const esper_host *host, const esper_halving_room *room,
                                uint64_t seed, esper_halving_set sets_out[ESPER_HALVING_NETWORKS], int *n_out);

/* The set as the setting `plant` takes it; false: it has no room there. */
bool esper_halving_text(const esper_halving_set *set, const esper_slots *slots, esper_topology topology,
                        char text[ESPER_CONFIG_TEXT_CHARS]);

typedef struct esper_halving_desc {
    const esper_log *log; /* each round is told there */
    void            *context;
    esper_status (*step)(void *context); /* called before each; what fails there ends the search. NULL: nobody asks */
} esper_halving_desc;

/* Puts the winner in the place of a network that has not been trained, and its seeds into the engine's setting `plant`. *spent_out:
 * FLOPs of all of them so far, the winner's included. On failure the network is as it was. */
esper_status esper_halving_search(const esper_halving_desc *desc, esper_network **network, double *spent_out);

#endif
