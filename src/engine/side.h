/* Internal. Seeds that learn aside: a seed in TRAINING has a program of its own, in which it is fully blended in.
 *
 *     images ──> host ──> h ──────────────> rest of the host ──> loss          the network's: as if there were no seed
 *                         │ (a copy)
 *                         └──> seed ──────> rest of the host ──> loss aside    all but the seed is frozen
 *
 * The stream before the slot is the network's own, so the side program begins at the slot. It leaves the gradients of the seed
 * and nothing else. So the seed learns what it would do, and the host does not notice. */
#ifndef ESPER_ENGINE_SIDE_H
#define ESPER_ENGINE_SIDE_H

#include "engine/network.h"

/* The network has been built: keeps readable what side programs begin with. Before it is planned. */
void esper_side_keep(esper_network *network);

/* Opens the side programs that the slots ask for, by slot, NULL where there is none. After the network was built. On failure
 * there are none. */
esper_status esper_side_open_all(esper_network *network, struct esper_side **sides_out);
void         esper_side_close_all(struct esper_side **sides);

/* Before the network's pass, while its targets lie there; and after it. */
esper_status esper_side_take_targets(esper_network *network);
esper_status esper_side_gradients(esper_network *network);

double esper_side_flops(const esper_network *network); /* of all, for a full batch */
size_t esper_side_bytes(const esper_network *network); /* of all: activations and tables */

#endif
