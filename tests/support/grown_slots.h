/* Internal. Slots that were brought where a test wants them, by the operations a run would use. */
#ifndef ESPER_TESTS_GROWN_SLOTS_H
#define ESPER_TESTS_GROWN_SLOTS_H

#include "slot/slots.h"

typedef struct grown_seed {
    const char *slot, *blueprint; /* slot NULL ends a list */
    int         stage;            /* GERMINATED to FOSSILIZED, or one in which it cools down */
    int         blend;            /* esper_blend; 0 = ADD */
    double      alpha;            /* in BLENDING */
    bool        isolated;         /* from BLENDING on */
} grown_seed;

/* Brings one empty slot there. On failure esper_last_error() tells which step was refused. */
esper_status grown_slot(esper_slot *slot, const grown_seed *seed);

/* The slots of a host with these seeds in them, gates asking for safety alone. seeds may be NULL. */
esper_status grown_slots(esper_slots *slots, const esper_host *host, const grown_seed *seeds);

#endif
