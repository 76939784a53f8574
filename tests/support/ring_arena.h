/* Internal to the tests. Where an entry of a ring lies, for those who damage it. */
#ifndef ESPER_TESTS_SUPPORT_RING_ARENA_H
#define ESPER_TESTS_SUPPORT_RING_ARENA_H

#include "guard/ring.h"

/* An entry's arena (age 0 = the newest that is not empty) on a side; NULL past the end. */
static inline void *ring_arena(esper_ring *ring, uint32_t age, size_t side, bool mirror, uint64_t *bytes_out)
{
    for (uint64_t sequence = ring->sequence; sequence > 0; sequence--)
        for (uint32_t i = 0; i < ring->options.n_entries; i++) {
            ring_copy *copy = side < ring->n_sides ? &ring->sides[side].copies[i] : NULL;

            if (copy == NULL || ring->entries[i].sequence != sequence || ring->entries[i].state == ESPER_RING_EMPTY ||
                age-- > 0)
                continue;
            *bytes_out = ring->sides[side].arena_bytes;
            return mirror ? copy->mirror.at : copy->arena.at;
        }
    return NULL;
}

#endif
