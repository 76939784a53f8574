/* Internal. What a policy answers, once an epoch: one operation on one slot, with its choices and a reason.
 *
 * The record is plain memory of a fixed size without pointers and without holes: it can be logged, hashed, compared and
 * sent as it is. What an operation does not ask for keeps the value that esper_decision_init gave it. */
#ifndef ESPER_POLICY_DECISION_H
#define ESPER_POLICY_DECISION_H

#include <stdint.h>

#include "base/suggest.h"
#include "esper.h"
#include "nn/blueprint.h"
#include "slot/stage.h"

/* How a seed is blended in: code, text, how alpha climbs, how the seed is put into the stream. */
#define ESPER_STYLE_LIST(X)                                                     \
    X(LINEAR_ADD, 0, "linear_add", "linear", ESPER_BLEND_ADD)                   \
    X(LINEAR_MULTIPLY, 1, "linear_multiply", "linear", ESPER_BLEND_MULTIPLY)    \
    X(SIGMOID_ADD, 2, "sigmoid_add", "sigmoid", ESPER_BLEND_ADD)                \
    X(GATED_GATE, 3, "gated_gate", "gated", ESPER_BLEND_GATE)

typedef enum esper_style {
    ESPER_STYLE_KEEP = -1, /* the operator stays what it is */
#define X(name, code, text, ramp, blend) ESPER_STYLE_##name = code,
    ESPER_STYLE_LIST(X)
#undef X
        ESPER_N_STYLES = 4,
} esper_style;

/* How alpha moves to a new target: code, text, the curve's recorded code, steepness (which only sigmoids use). */
#define ESPER_ALPHA_CHOICE_LIST(X)                 \
    X(LINEAR, 0, "linear", 1, 12.0)               \
    X(COSINE, 1, "cosine", 2, 12.0)               \
    X(SIGMOID_GENTLE, 2, "sigmoid_gentle", 3, 6.0) \
    X(SIGMOID, 3, "sigmoid", 3, 12.0)             \
    X(SIGMOID_SHARP, 4, "sigmoid_sharp", 3, 24.0)

typedef enum esper_alpha_choice {
#define X(name, code, text, curve, steepness) ESPER_ALPHA_CHOICE_##name = code,
    ESPER_ALPHA_CHOICE_LIST(X)
#undef X
        ESPER_N_ALPHA_CHOICES = 5,
} esper_alpha_choice;

/* Why: for stores and counts. The text of a decision says it with numbers. */
#define ESPER_REASON_LIST(X)                                             \
    X(NONE, "none")                                                      \
    X(EMBARGO, "embargo")               /* a prune is too recent */      \
    X(UNSTABLE, "unstable")             /* the host has not settled */   \
    X(EARLY, "early")                                                    \
    X(LATE, "late")                     /* too few epochs are left */    \
    X(NO_SLOT, "no_slot")                                                \
    X(NO_BLUEPRINT, "no_blueprint")     /* none fits a free slot */      \
    X(PLATEAU, "plateau")                                                \
    X(PROGRESS, "progress")             /* the host learns by itself */  \
    X(NEXT_STAGE, "next_stage")                                          \
    X(FAILING, "failing")               /* accuracy fell since */        \
    X(STUCK, "stuck")                   /* too long in one stage */      \
    X(BLENDING, "blending")             /* alpha is on its way */        \
    X(RANSOMWARE, "ransomware")         /* needed, but all got worse */  \
    X(UNMEASURED, "unmeasured")                                          \
    X(UNDECIDED, "undecided")           /* bounds around the threshold */ \
    X(CONTRIBUTES, "contributes")                                        \
    X(NO_CONTRIBUTION, "no_contribution")                                \
    X(CHANCE, "chance")                 /* drawn at random */            \
    X(SCRIPT, "script")                                                  \
    X(PROGRAM, "program")                                                \
    X(LEARNED, "learned")                                                \
    X(TRIAL_WON, "trial_won")           /* a fork with it did better */  \
    X(TRIAL_LOST, "trial_lost")         /* none did */

typedef enum esper_reason {
#define X(name, text) ESPER_REASON_##name,
    ESPER_REASON_LIST(X)
#undef X
    ESPER_N_REASONS
} esper_reason;

enum {
    ESPER_DECISION_TEXT_CHARS = 116, /* terminator included; longer reasons are cut */
    ESPER_DECISION_MAX_TICKS = 1000, /* of a tempo or a speed */
};

typedef struct esper_decision {
    int32_t slot;      /* index in the view; -1 = none, for `wait` alone */
    int32_t op;        /* esper_slot_op */
    int32_t blueprint; /* germinate: its index; -1 = none */
    int32_t style;     /* germinate, set_alpha_target: esper_style */
    int32_t tempo;     /* germinate: ticks of the blend-in; 0 = it joins at once, by what a trial has shown */
    int32_t speed;     /* set_alpha_target, prune: ticks to get there, 0 = at once */
    int32_t curve;     /* set_alpha_target, prune: esper_alpha_choice */
    int32_t reason;    /* esper_reason */
    double  target;    /* germinate, set_alpha_target: alpha to reach, 0 < target <= 1 */
    double  confidence; /* 0 .. 1, for people */
    int32_t birth;      /* germinate: esper_birth; ESPER_BIRTH_UNSAID: as the run is set */
    char    text[ESPER_DECISION_TEXT_CHARS]; /* the reason in words; zeros after its end */
} esper_decision;

_Static_assert(sizeof(esper_decision) == 9 * 4 + 2 * 8 + ESPER_DECISION_TEXT_CHARS, "a decision has no holes");

/* The operation with its usual choices: sigmoid_add, 5 ticks, target 1, at once, linear; no slot, no birth, no reason. */
void esper_decision_init(esper_decision *decision, esper_slot_op op);

/* Sets reason and text. */
void esper_decision_because(esper_decision *decision, esper_reason reason, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets one choice by name: blueprint, birth, style, tempo, target, speed or curve. E_ARG names what is wrong: an unknown key, one
 * that this operation does not ask for, a value that is none. */
esper_status esper_decision_set(esper_decision *decision, esper_topology topology, const char *key, const char *value);

/* The operation of that name; -1 = there is none, and then the hint says what may have been meant. */
int esper_decision_find_op(const char *name, char hint_out[ESPER_SUGGEST_TEXT_CHARS]);

/* Everything that can be judged without a view: codes, ranges, and choices that an operation cannot do without. E_ARG. */
esper_status esper_decision_check(const esper_decision *decision, esper_topology topology);

/* Names; NULL for codes that are none. */
const char *esper_style_name(int style);
const char *esper_style_ramp(int style); /* "linear", "sigmoid" or "gated" */
const char *esper_alpha_choice_name(int choice);
const char *esper_reason_name(int reason);

/* What a style and a curve stand for. The code must be one. */
esper_blend esper_style_blend(int style);
int         esper_alpha_choice_curve(int choice); /* 1 linear, 2 cosine, 3 sigmoid: the recorded codes */
double      esper_alpha_choice_steepness(int choice);

#endif
