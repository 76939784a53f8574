/* Internal. A run that grows, live. On a terminal: a block that is drawn over itself, with a line for each slot, below lines
 * that stay and tell what happened:
 *
 *     epoch   12  trial of 8 seeds: r0c1 conv_light wins, gain +0.0412 [0.0331, 0.0493] nats, and joins with 8,512 parameters
 *       14/~40  [=========>              ]  40 %  valid 84.31 %  best 84.90 %  20,857 params (host 12,345)
 *       spent 33 %  2:13 left  loss 0.4321  accuracy 83.50 %  valid loss 0.4500  12,345/s  lr 0.05
 *       ██──○──▪──○──█████████──[████]──▪──○──██
 *          r0c0  r1c0          r0c1 H     r1c1
 *       valid ▁▄▅▆▆▇▆▇██
 *       slot  blueprint     stage       alpha           ep     params dependence        last gate
 *       r0c0  -             empty
 *       r0c1  conv_light    holding     [======] 1.00    2      8,512 +4.1 [3.2, 5.0]   G2 passed
 *       wait: The next trial comes when 38.0 % of the run is spent
 *
 * Elsewhere, and in a window that is too small for it: plain lines, one for each epoch, or in a log for about a hundred of a long
 * run, and one for each thing that happened. */
#ifndef ESPER_UI_GROW_VIEW_H
#define ESPER_UI_GROW_VIEW_H

#include "grow/growth_view.h"
#include "ui/drawing.h"
#include "ui/live.h"

enum { ESPER_GROW_MAX_LINES = 40, ESPER_GROW_MAX_CURVE = 256 };

typedef struct esper_grow_view {
    esper_live  live;
    bool        colour;
    bool        adapts;       /* the block gives way to plain lines while the window is too small */
    bool        table_begun;  /* plain: the heading of the epochs is there */
    char        last_doing[32]; /* what the last block showed */
    int         n_lines;      /* of the block that is on the screen; 0 = none */
    int         columns[ESPER_GROW_MAX_LINES]; /* of its lines */
    esper_drawing drawing;                     /* of the network; n 0: none is shown */
    double        curve[ESPER_GROW_MAX_CURVE]; /* validation accuracies */
    int           n_curve;
} esper_grow_view;

void esper_grow_view_init(esper_grow_view *view, esper_config_progress kind, FILE *stream);

/* From now on the block has the network in it, where there is room: its host is drawn from here, its seeds from each view. */
void esper_grow_view_network(esper_grow_view *view, const esper_net *plain);

/* Whether the next call would show anything: asking is cheap, filling in a view is not. */
bool esper_grow_view_is_due(esper_grow_view *view, const char *doing);
/* At any step, and before each batch of an evaluation: shows it when it is time. */
void esper_grow_view_step(esper_grow_view *view, const esper_growth_view *growth);
/* At the end of an epoch: always shows the block, and plain lines as esper_live_is_epoch_due has them. */
void esper_grow_view_epoch(esper_grow_view *view, const esper_growth_view *growth);

/* What happened to a seed, as a line that stays; nothing for events that say nothing new. why: the reason of the decision
 * that led to it, or NULL. */
void esper_grow_view_event(esper_grow_view *view, uint32_t epoch, const esper_slot_event *event, const char *why);
/* Anything else that happened: a rollback, a refused decision. One line of text. */
void esper_grow_view_note(esper_grow_view *view, uint32_t epoch, const char *text);

/* Takes the block away, so that other output can follow. */
void esper_grow_view_clear(esper_grow_view *view);

/* The table that compares the grown network with its static host, and the life of every seed. */
void esper_grow_view_closing(FILE *stream, const esper_growth_closing *closing);

#endif
