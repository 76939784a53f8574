/* The table of slots as bytes: little-endian, field by field from one list.
 *
 *     "ESLT"  version  number of slots  bytes of a slot   (each four bytes)
 *     the slots, one behind the other
 *     hash of all bytes before                            (eight bytes) */
#include <string.h>
#include <xxhash.h>

#include "base/status.h"
#include "slot/slots.h"

enum { MAGIC = 0x544c5345, VERSION = 3, HEAD_BYTES = 16, TAIL_BYTES = 8 };

typedef enum field_kind { TEXT, WORDS, LONGS } field_kind; /* units of 1, 4 and 8 bytes */

typedef struct field {
    size_t     offset, bytes;
    field_kind kind;
} field;

#define FIELDS(F)                  \
    F(TEXT, id)                    \
    F(WORDS, row)                  \
    F(WORDS, col)                  \
    F(WORDS, depth)                \
    F(WORDS, channels)             \
    F(WORDS, permissive)           \
    F(WORDS, auto_forward)         \
    F(WORDS, isolate_blending)     \
    F(WORDS, gate_epochs)          \
    F(WORDS, embargo_ticks)        \
    F(WORDS, n_seeds)              \
    F(WORDS, stage)                \
    F(WORDS, previous_stage)       \
    F(WORDS, n_ticks)              \
    F(WORDS, epochs_total)         \
    F(WORDS, epochs_in_stage)      \
    F(WORDS, previous_epochs_in_stage) \
    F(WORDS, n_history)            \
    F(WORDS, known)                \
    F(WORDS, history)              \
    F(LONGS, alpha.value)          \
    F(LONGS, alpha.start)          \
    F(LONGS, alpha.target)         \
    F(LONGS, alpha.steepness)      \
    F(WORDS, alpha.mode)           \
    F(WORDS, alpha.curve)          \
    F(WORDS, alpha.n_steps)        \
    F(WORDS, alpha.n_done)         \
    F(TEXT, seed_id)               \
    F(TEXT, blueprint)             \
    F(WORDS, blueprint_index)      \
    F(WORDS, blend)                \
    F(WORDS, ramp)                 \
    F(WORDS, tempo)                \
    F(WORDS, birth)                \
    F(LONGS, target)               \
    F(LONGS, host_params)          \
    F(LONGS, seed_params)          \
    F(LONGS, gate_params)          \
    F(LONGS, acc_initial)          \
    F(LONGS, acc_now)              \
    F(LONGS, acc_best)             \
    F(LONGS, acc_stage)            \
    F(LONGS, acc_blending)         \
    F(LONGS, grad_norm_avg)        \
    F(LONGS, grad_norm)            \
    F(LONGS, grad_health)          \
    F(LONGS, grad_ratio)           \
    F(LONGS, contribution)         \
    F(LONGS, contribution_previous) \
    F(LONGS, contribution_velocity) \
    F(LONGS, interaction)          \
    F(LONGS, boost)                \
    F(LONGS, alpha_upstream)       \
    F(LONGS, alpha_downstream)     \
    F(WORDS, blending_started)     \
    F(WORDS, vanishing)            \
    F(WORDS, exploding)            \
    F(WORDS, unhealthy)            \
    F(WORDS, prune_pending)        \
    F(WORDS, auto_pruned)          \
    F(TEXT, prune_reason)          \
    F(TEXT, prune_initiator)

static const field fields[] = {
#define F(kind, name) {offsetof(esper_slot, name), sizeof(((esper_slot *)0)->name), kind},
    FIELDS(F)
#undef F
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

/* The list has every field, and there is nothing between them: a slot's bytes are its fields. */
#define F(kind, name) +sizeof(((esper_slot *)0)->name)
_Static_assert(sizeof(esper_slot) == 0 FIELDS(F), "a field of esper_slot is missing here, or it has padding");
#undef F
_Static_assert(offsetof(esper_slot, alpha_downstream) - offsetof(esper_slot, acc_initial) == 15 * sizeof(double),
               "slot_fault.c looks at the readings as one row of numbers");

/* Copies a field between the machine's order of bytes and the file's, which is its own inverse. */
static void copy_field(const field *f, unsigned char *to, const unsigned char *from)
{
    static const size_t units[] = {[TEXT] = 1, [WORDS] = 4, [LONGS] = 8};
    size_t unit = units[f->kind];

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    (void)unit;
    memcpy(to, from, f->bytes);
#else
    for (size_t i = 0; i < f->bytes; i++)
        to[i] = from[i - i % unit + unit - 1 - i % unit];
#endif
}

static void put(unsigned char *bytes, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *bytes, int n)
{
    uint64_t value = 0;

    for (int i = 0; i < n; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static size_t packed_bytes(size_t n_slots)
{
    return HEAD_BYTES + n_slots * sizeof(esper_slot) + TAIL_BYTES;
}

size_t esper_slots_pack_bytes(const esper_slots *slots)
{
    return packed_bytes((size_t)slots->n);
}

void esper_slots_pack(const esper_slots *slots, void *bytes_out)
{
    unsigned char *bytes = bytes_out, *at = bytes + HEAD_BYTES;

    put(bytes, MAGIC, 4);
    put(bytes + 4, VERSION, 4);
    put(bytes + 8, (uint64_t)slots->n, 4);
    put(bytes + 12, sizeof(esper_slot), 4);
    for (int k = 0; k < slots->n; k++)
        for (int f = 0; f < N_FIELDS; f++) {
            copy_field(&fields[f], at, (const unsigned char *)&slots->slot[k] + fields[f].offset);
            at += fields[f].bytes;
        }
    put(at, XXH64(bytes, (size_t)(at - bytes), 0), TAIL_BYTES);
}

static esper_status check_head(const unsigned char *bytes, size_t n_bytes)
{
    if (n_bytes < packed_bytes(1) || get(bytes, 4) != MAGIC)
        return ESPER_FAIL(ESPER_E_FORMAT, "this is no table of slots");
    if (get(bytes + 4, 4) != VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT, "table of slots: version %u, this program reads %d",
                          (unsigned)get(bytes + 4, 4), (int)VERSION);
    if (get(bytes + 8, 4) < 1 || get(bytes + 8, 4) > ESPER_MAX_SLOTS || get(bytes + 12, 4) != sizeof(esper_slot) ||
        n_bytes != packed_bytes((size_t)get(bytes + 8, 4)))
        return ESPER_FAIL(ESPER_E_FORMAT, "table of slots: its size does not fit its contents");
    if (get(bytes + n_bytes - TAIL_BYTES, TAIL_BYTES) != XXH64(bytes, n_bytes - TAIL_BYTES, 0))
        return ESPER_FAIL(ESPER_E_FORMAT, "table of slots: damaged, its sum does not fit");
    return ESPER_OK;
}

esper_status esper_slots_unpack(const void *bytes, size_t n_bytes, esper_slots *slots_out)
{
    const unsigned char *at = bytes;
    esper_slots slots;

    ESPER_TRY(check_head(at, n_bytes));
    memset(&slots, 0, sizeof(slots));
    slots.n = (int32_t)get(at + 8, 4);
    at += HEAD_BYTES;
    for (int k = 0; k < slots.n; k++)
        for (int f = 0; f < N_FIELDS; f++) {
            copy_field(&fields[f], (unsigned char *)&slots.slot[k] + fields[f].offset, at);
            at += fields[f].bytes;
        }
    for (int k = 0; k < slots.n; k++) {
        const char *fault = esper_slot_fault(&slots.slot[k]);

        if (fault != NULL)
            return ESPER_FAIL(ESPER_E_FORMAT, "table of slots: number %d: %s", k, fault);
        for (int i = 0; i < k; i++)
            if (strcmp(slots.slot[i].id, slots.slot[k].id) == 0 || slots.slot[i].depth == slots.slot[k].depth)
                return ESPER_FAIL(ESPER_E_FORMAT, "table of slots: %s and %s are in one place", slots.slot[i].id,
                                  slots.slot[k].id);
    }
    *slots_out = slots;
    return ESPER_OK;
}
