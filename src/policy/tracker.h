/* Internal. The tracker turns the losses and accuracies of one host, epoch by epoch, into signals: is it on a plateau, has
 * it settled, what was best, and which seed is furthest. Caller's storage, no heap. */
#ifndef ESPER_POLICY_TRACKER_H
#define ESPER_POLICY_TRACKER_H

#include "base/fields.h"
#include "policy/pack.h"
#include "policy/view.h"

enum { ESPER_TRACKER_MAX_WINDOW = 64 };

typedef struct esper_tracker_options {
    double plateau_threshold;    /* points of accuracy: a smaller gain counts as plateau; 0.5 */
    int    window;               /* epochs remembered: 10; 1 .. ESPER_TRACKER_MAX_WINDOW */
    double stable_threshold;     /* a loss that falls by a smaller share is stable ... : 0.03 */
    double regression_threshold; /* ... unless it rose by this share or more: 0.05 */
    int    stable_epochs;        /* in a row until the host counts as settled: 3; 0 = from the start */
} esper_tracker_options;

/* What changes: plain memory without holes. */
typedef struct esper_tracker_state {
    double  losses[ESPER_TRACKER_MAX_WINDOW], accuracies[ESPER_TRACKER_MAX_WINDOW]; /* oldest first */
    double  best_accuracy, prev_accuracy, prev_loss;
    int32_t n_history, plateau_epochs, stable_epochs, is_stable;
} esper_tracker_state;

_Static_assert(sizeof(esper_tracker_state) == (2 * ESPER_TRACKER_MAX_WINDOW + 3) * 8 + 4 * 4, "a state has no holes");

extern const esper_field esper_tracker_fields[]; /* of a state */

typedef struct esper_tracker {
    esper_tracker_options options; /* read-only */
    esper_tracker_state   state;   /* private */
} esper_tracker;

void         esper_tracker_options_init(esper_tracker_options *options);
/* Keeps time with gates that ask for so many epochs, as esper_heuristic_settings_pace does: a host settles in fewer epochs,
 * in each of which its loss may fall further. */
void         esper_tracker_options_pace(esper_tracker_options *options, int gate_epochs);
esper_status esper_tracker_init(esper_tracker *tracker, const esper_tracker_options *options); /* NULL = defaults */

/* The validation loss and accuracy (percent) of an epoch, and the slots as they are then. E_ARG, and nothing changed: two
 * seeds have one id. */
esper_status esper_tracker_update(esper_tracker *tracker, int epoch, double loss, double accuracy,
                                  const esper_policy_slot *slots, int n_slots, esper_signals *signals_out);

/* For checkpoints and snapshots. Unpacking leaves the tracker as it was when it fails. */
enum { ESPER_TRACKER_PACK_BYTES = ESPER_PACK_HEAD_BYTES + sizeof(esper_tracker_state) };
void         esper_tracker_pack(const esper_tracker *tracker, void *memory);
esper_status esper_tracker_unpack(esper_tracker *tracker, const void *memory, size_t bytes);

#endif
