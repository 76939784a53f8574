/* Internal. How something that goes on is shown: by a bar that is drawn over itself, by plain lines now and then, or not at
 * all. What the views of runs share. */
#ifndef ESPER_UI_LIVE_H
#define ESPER_UI_LIVE_H

#include <stdint.h>
#include <stdio.h>

#include "base/config.h"
#include "ui/terminal.h"

typedef struct esper_live {
    FILE          *stream; /* borrowed */
    esper_terminal terminal;
    bool           bar, plain; /* one of them, or none: nothing is shown */
    bool           bar_shown;
    double         last_shown; /* clock at the last bar or plain line */
    uint32_t last_epoch; /* whose end had the last plain line; 0 = none */
} esper_live;

/* `auto` takes the bar on a terminal that takes escapes, and plain lines elsewhere. */
void esper_live_init(esper_live *live, esper_config_progress kind, FILE *stream);

/* Whether anything is shown at all. */
bool esper_live_is_shown(const esper_live *live);

/* Whether it is time to show something: a bar ten times a second, a plain line every plain_s seconds. If so, the time is noted. */
bool esper_live_is_due(esper_live *live, double plain_s);

/* Whether the end of an epoch of so many (0: nobody knows) gets a plain line: a log that nobody watches has about a hundred of
 * them, however many epochs there are; the last one always has. */
bool esper_live_is_epoch_due(const esper_live *live, uint32_t epoch, uint32_t n_epochs);

/* Draws "  3/40  [===>   ]  40 %  words" over what was drawn before. */
void esper_live_draw(esper_live *live, const char *where, double part, const char *words);

/* Takes the bar away, so that other output can follow. */
void esper_live_clear(esper_live *live);

#endif
