/* The table of stages. */
#include "slot/stage.h"

#include <stddef.h>
#include <string.h>

typedef struct stage_row {
    const char *name, *about;
    unsigned next; /* bits of codes */
} stage_row;

static const stage_row stages[ESPER_STAGE_CODES] = {
#define X(name, code, text, about, next) [code] = {text, about, next},
    ESPER_STAGE_LIST(X)
#undef X
};

static const char *const ops[ESPER_N_SLOT_OPS] = {
#define X(name, code, text) [code] = text,
    ESPER_SLOT_OP_LIST(X)
#undef X
};

static bool is_stage(int code)
{
    return code >= 0 && code < ESPER_STAGE_CODES && stages[code].name != NULL;
}

const char *esper_stage_name(int code)
{
    return is_stage(code) ? stages[code].name : NULL;
}

const char *esper_stage_about(int code)
{
    return is_stage(code) ? stages[code].about : NULL;
}

int esper_stage_find(const char *name)
{
    for (int code = 0; code < ESPER_STAGE_CODES; code++)
        if (is_stage(code) && strcmp(stages[code].name, name) == 0)
            return code;
    return -1;
}

const char *esper_slot_op_name(int code)
{
    return code >= 0 && code < ESPER_N_SLOT_OPS ? ops[code] : NULL;
}

bool esper_stage_may_move(int from, int to)
{
    return is_stage(from) && is_stage(to) && (stages[from].next & 1u << to) != 0;
}

int esper_stage_next(int stage)
{
    if (stage == ESPER_STAGE_HOLDING) /* it may also go back to blending, but that is no advance */
        return ESPER_STAGE_FOSSILIZED;
    for (int to = 0; to < ESPER_STAGE_CODES; to++)
        if (esper_stage_may_move(stage, to) && !esper_stage_cools_down(to))
            return to;
    return -1;
}

int esper_stage_index(int code)
{
    if (!is_stage(code))
        return -1;
    return code > 5 ? code - 1 : code;
}

bool esper_stage_runs_seed(int stage)
{
    return stage == ESPER_STAGE_TRAINING || stage == ESPER_STAGE_BLENDING || stage == ESPER_STAGE_HOLDING ||
           stage == ESPER_STAGE_FOSSILIZED;
}

bool esper_stage_has_seed(int stage)
{
    return stage == ESPER_STAGE_GERMINATED || esper_stage_runs_seed(stage);
}

bool esper_stage_cools_down(int stage)
{
    return stage == ESPER_STAGE_PRUNED || stage == ESPER_STAGE_EMBARGOED || stage == ESPER_STAGE_RESETTING;
}
