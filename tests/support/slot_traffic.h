/* Internal. Random traffic on a table of slots: the same random numbers, the same table. */
#ifndef ESPER_TESTS_SLOT_TRAFFIC_H
#define ESPER_TESTS_SLOT_TRAFFIC_H

#include "base/rng.h"
#include "slot/slots.h"

enum {
    SLOT_TRAFFIC_LIFE = 400
}; /* operations after which a table should begin anew: in the end all seeds are fossils */

/* Two rows of a host: executed r0c0, r1c0, r0c1, r1c1, ..., but the policy counts row by row. */
esper_status slot_traffic_table(int n_cols, esper_slots *slots_out);

/* A random operation on one slot. That the slot refuses it is fine; fails where what cannot be refused is. */
esper_status slot_traffic_stir(esper_slot *slot, esper_rng *rng, esper_slot_events *events);

#endif
