/* Internal. The stages of a seed's life, the legal moves between them, and the operations a policy can ask for.
 *
 * The numbers are the recorded codes: they stand in logs, stores and checkpoints. 5 is retired and no stage. */
#ifndef ESPER_SLOT_STAGE_H
#define ESPER_SLOT_STAGE_H

#include <stdbool.h>

/* code, name, what a seed does there, and the stages it may go to (bits; see esper_stage_next for their order) */
#define ESPER_STAGE_LIST(X)                                                                                  \
    X(UNKNOWN, 0, "unknown", "nothing is known of it", 1u << 1)                                              \
    X(DORMANT, 1, "dormant", "the slot is empty", 1u << 2)                                                   \
    X(GERMINATED, 2, "germinated", "built, not yet trained", 1u << 3 | 1u << 8)                              \
    X(TRAINING, 3, "training", "learns behind the host, whose output it does not change", 1u << 4 | 1u << 8) \
    X(BLENDING, 4, "blending", "its weight alpha moves", 1u << 6 | 1u << 8)                                  \
    X(HOLDING, 6, "holding", "fully blended, on probation", 1u << 7 | 1u << 4 | 1u << 8)                     \
    X(FOSSILIZED, 7, "fossilized", "kept for good", 0)                                                       \
    X(PRUNED, 8, "pruned", "removed just now", 1u << 9)                                                      \
    X(EMBARGOED, 9, "embargoed", "the slot rests", 1u << 10)                                                 \
    X(RESETTING, 10, "resetting", "the slot is about to be empty again", 1u << 1)

typedef enum esper_stage {
#define X(name, code, text, about, next) ESPER_STAGE_##name = code,
    ESPER_STAGE_LIST(X)
#undef X
} esper_stage;

enum { ESPER_STAGE_CODES = 11, ESPER_N_STAGES = 10 };

/* What a policy can do with a slot. */
#define ESPER_SLOT_OP_LIST(X)                  \
    X(WAIT, 0, "wait")                         \
    X(GERMINATE, 1, "germinate")               \
    X(SET_ALPHA_TARGET, 2, "set_alpha_target") \
    X(PRUNE, 3, "prune")                       \
    X(FOSSILIZE, 4, "fossilize")               \
    X(ADVANCE, 5, "advance")                   \
    X(TRY, 6, "try")

typedef enum esper_slot_op {
#define X(name, code, text) ESPER_SLOT_OP_##name = code,
    ESPER_SLOT_OP_LIST(X)
#undef X
} esper_slot_op;

enum { ESPER_N_SLOT_OPS = 7 };

/* "training"; NULL for a code that is no stage. */
const char *esper_stage_name(int code);
const char *esper_stage_about(int code);
/* The stage of that name; -1 = there is none. */
int esper_stage_find(const char *name);

const char *esper_slot_op_name(int code);

/* Whether the one table of moves has this one. Codes that are no stages have none. */
bool esper_stage_may_move(int from, int to);

/* Where `advance` leads: the first stage on that is no failure; -1 = nowhere. */
int esper_stage_next(int stage);

/* 0 .. 9 among the stages in order, for one-hot codes; -1 for what is no stage. */
int esper_stage_index(int code);

/* The seed's operations are part of the network there. */
bool esper_stage_runs_seed(int stage);
/* The seed has weights there. */
bool esper_stage_has_seed(int stage);
/* The slot rests after a prune. */
bool esper_stage_cools_down(int stage);

#endif
