/* Internal. What the files of the guard around a network (engine/guarded.h) share: guarded_open.c opens it and registers tensors,
 * guarded.c scans, asks the governor and does what it says, guarded_back.c takes snapshots and goes back to them. */
#ifndef ESPER_ENGINE_GUARDED_INTERNAL_H
#define ESPER_ENGINE_GUARDED_INTERNAL_H

#include "guard/governor.h"
#include "engine/guarded.h"

enum { NAME_CHARS = ESPER_NAME_CHARS + 16 };

#define ROLE_BIT(role) (1u << ESPER_GUARD_ROLE_##role)

static const uint32_t state_roles = ROLE_BIT(PARAM) | ROLE_BIT(MOMENT) | ROLE_BIT(BUFFER) | ROLE_BIT(OTHER);

/* What a scan does with checksums. */
typedef enum sums { SUMS_OFF, SUMS_REMEMBER, SUMS_COMPARE } sums;

enum { N_SNAPSHOTS = 2, WINDOW = 20, MOST_VITALS = WINDOW + 16 };

/* What is remembered of a snapshot beside what lies in the ring. */
typedef struct taken {
    esper_cursor cursor;
    uint32_t     unkept; /* bits 1 << slot: seeds that were there, and not kept */
    uint32_t     n_passed, draw; /* of the detour then */
    double       lr_scale;
    size_t       n_vitals;
    double       vitals[MOST_VITALS]; /* the governor's memory then */
} taken;

typedef struct esper_guarded {
    esper_network  *network;
    esper_guard    *guard; /* knows every tensor of the network by name */
    esper_guard    *whole; /* knows the slab's families as they lie, room for seeds included: what snapshots are made of */
    esper_ring     *ring;
    esper_governor *governor;
    float
        *buffers; /* on the backend: the norm buffers before each row's forward pass; NULL when the network has none */
    size_t          buffer_bytes; /* of a row */
    bool            checksum;
    uint32_t        asked; /* roles of the last scan */
    const esper_guard_report *report; /* of the last scan; NULL: it is not read yet */
    bool            settles_behind; /* an epoch's end is settled behind what is queued after it */
    bool            settling;       /* the scan of it is queued ... */
    uint32_t        settled_flag;   /* ... and its flag on the way here */
    /* Something was found, and nothing was done about it yet: where the run stood, and by which scan. */
    bool          found;
    esper_cursor  found_at;
    esper_verdict found_by;
    void           *blob; /* what goes into a snapshot beside the slab: an esper_position, then the companion's */
    size_t          blob_bytes;
    /* The batch used since the last clean scan of the state: when that is bad, it is not used again. */
    bool has_suspect,
        had_suspect[ESPER_NETWORK_BANKS]; /* now; before the first batch of each bank that is not read yet */
    esper_cursor suspect, suspect_before[ESPER_NETWORK_BANKS];
    /* The snapshots that may be gone back to, the newest first. */
    int          n_taken;
    taken        taken[N_SNAPSHOTS];
    /* The state on which ranks last agreed, beside them; NULL for a rank alone, and before they have. */
    esper_ring  *kept_ring;
    taken        kept;
    esper_drill  drill;
    void        *drill_context;
    esper_clerk        clerk; /* or NULL */
    void              *clerk_context;
    esper_scan_watcher watcher; /* or NULL */
    esper_scan_wish    wishes;
    void              *watcher_context;
    char               named[NAME_CHARS]; /* the tensor of the last incident: the network may change before it is told */
} esper_guarded;

/* guarded_open.c */
esper_status guarded_open_ring(esper_guarded *guarded, esper_ring **ring_out);

/* guarded.c */
esper_status guarded_lower_flag(esper_guarded *guarded);    /* what was found is dealt with, or gone */
esper_status guarded_remember_sums(esper_guarded *guarded); /* of state that was just put there by us */

/* guarded_back.c */
bool         guarded_snapshot_due(const esper_guarded *guarded);
esper_status guarded_take_snapshot(esper_guarded *guarded);
void         guarded_remember(const esper_guarded *guarded, taken *now); /* what is known beside what lies in a ring */
esper_status guarded_go_back(esper_guarded *guarded, esper_incident *incident); /* to the newest good snapshot */

#endif
