/* Internal. A run as its store tells of it, in a window of characters: what it is and how it stands, the network, curves, seeds,
 * health, and what happened last. It is made of what a report is made of (report_data.h), so it shows runs of other processes
 * and such as have ended, at any epoch of theirs. */
#ifndef ESPER_UI_WATCH_VIEW_H
#define ESPER_UI_WATCH_VIEW_H

#include "base/page.h"
#include "telemetry/store.h"
#include "ui/terminal.h"

typedef struct esper_watch_look {
    esper_store_reader *reader;
    int64_t             run;
    int64_t             epoch;   /* as it stood at the end of this one; ESPER_DRAWING_LAST: as it stands */
    const char         *name;    /* what the run is called */
    bool                running; /* a process works on it */
} esper_watch_look;

typedef struct esper_watch_state {
    int64_t epoch;      /* that is shown, or round of one that learns */
    int64_t last_epoch; /* there is */
    bool    ended;
} esper_watch_state;

/* Composes the window: lines with "\n" behind each, no more than the terminal has rows, none wider. Where there is no terminal, all
 * there is. */
esper_status esper_watch_compose(const esper_watch_look *look, const esper_terminal *terminal, esper_page *page,
                                 esper_watch_state *state_out);

#endif
