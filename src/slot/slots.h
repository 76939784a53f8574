/* Internal. All slots of a network in one plain table: copied for a snapshot, hashed for agreement, packed for a checkpoint.
 *
 * Slots stand in the policy's order (that of its action indices); where each stands in the execution is its `depth`. */
#ifndef ESPER_SLOT_SLOTS_H
#define ESPER_SLOT_SLOTS_H

#include <stddef.h>

#include "slot/slot.h"

enum { ESPER_MAX_SLOTS = ESPER_MAX_REGIONS - 1 };

typedef struct esper_slots {
    int32_t    n, unused;
    esper_slot slot[ESPER_MAX_SLOTS];
} esper_slots;

/* Settings of all slots: see the fields of esper_slot. */
typedef struct esper_slot_rules {
    bool     permissive, isolate_blending;
    uint32_t auto_forward;
    int      gate_epochs, embargo_ticks; /* 0 = the usual, 10 and 5 */
} esper_slot_rules;

/* An empty slot for every boundary of a host, which are given in the order of execution. E_ARG: none, too many, a name
 * that is none, or two with the same name or order. */
esper_status esper_slots_init(esper_slots *slots, const esper_boundary *boundaries, int n_boundaries,
                              const esper_slot_rules *rules);

/* The index of a slot; -1 = there is none of that name. */
int esper_slots_find(const esper_slots *slots, const char *id);

/* A slot at the place of another one is closed until that one's seed was kept. The index of the slot that has to hold such a seed;
 * -1: the slot is the first one at its place. Whether it is open: it is the first, or the one before it holds a kept seed. */
int  esper_slots_behind(const esper_slots *slots, int slot);
bool esper_slots_is_open(const esper_slots *slots, int slot);

/* How many slots are in these stages (bits 1u << stage). */
int esper_slots_count(const esper_slots *slots, uint32_t stages);

/* For each of the slots in `which` (bits 1u << index): the sums of alpha of the others before and behind it. */
void esper_slots_sum_neighbours(esper_slots *slots, uint32_t which);

/* 64 bits that differ when any byte of the table does (but for one in 2^64). */
uint64_t esper_slots_hash(const esper_slots *slots);

/* The table as bytes, the same on every machine. */
size_t       esper_slots_pack_bytes(const esper_slots *slots);
void         esper_slots_pack(const esper_slots *slots, void *bytes_out);
/* E_FORMAT, with what is wrong: damaged, of another version, or not what any slot can be. Never anything else. */
esper_status esper_slots_unpack(const void *bytes, size_t n_bytes, esper_slots *slots_out);

#endif
