/* Internal. What happens to seeds in words: gates, gains, dependences, events, decisions. */
#ifndef ESPER_UI_GROW_WORDS_H
#define ESPER_UI_GROW_WORDS_H

#include "grow/growth_view.h"

enum { ESPER_WORDS_CHARS = 512 };

/* The best candidate of a trial. */
typedef struct esper_words_best {
    const char *slot, *blueprint;
    double      gain, error;
    int64_t     params;
    int         n_candidates;
    bool        asked; /* for by a policy, which decides later */
} esper_words_best;

/* Each writes into `text` and returns it. */

/* "G2 failed: improvement 0.21 < 0.5", "G2 passed", "-" where none was asked: for a cell. */
const char *esper_words_gate(const esper_gate_result *result, char text[ESPER_WORDS_CHARS]);
/* Every check of a gate: "improvement 0.81 >= 0.5, epochs in stage 10 >= 10". */
const char *esper_words_checks(const esper_gate_result *result, char text[ESPER_WORDS_CHARS]);
/* How much accuracy is lost without a seed, in points: "+1.8 [1.2, 2.4]", "+1.8", or "-". */
const char *esper_words_dependence(double mean, double low, double high, char text[ESPER_WORDS_CHARS]);
/* What a fork won over the one that got nothing, in nats, with the interval that is right for all n candidates of the trial
 * together: "+0.0412 [0.0331, 0.0493]", or "-". */
const char *esper_words_gain(double gain, double error, int n_candidates, char text[ESPER_WORDS_CHARS]);
/* What came of a trial: "trial of 8 seeds: r0c1 conv_light wins, gain ... nats, 8,512 parameters", that none pays, or, of
 * one that was asked for, which did best. best: of its candidates. */
const char *esper_words_trial(const esper_words_best *best, bool won, char text[ESPER_WORDS_CHARS]);
/* "germinate r0c1: plateau of 3 epochs", with " (refused: why)" behind it; "" when there is none. */
const char *esper_words_decision(const esper_growth_decision *decision, char text[ESPER_WORDS_CHARS]);
/* "r0c1 conv_light germinated, 8,512 parameters (plateau of 3 epochs)". NULL for events that others tell of already, and for
 * gates that did not let a seed pass. why: the decision's reason, or NULL. */
const char *esper_words_event(const esper_slot_event *event, const char *why, char text[ESPER_WORDS_CHARS]);

#endif
