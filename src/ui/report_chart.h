/* Internal to the report. Scales, plots with their axes, and curves over epochs with a band of marks above them, as inline SVG. */
#ifndef ESPER_UI_REPORT_CHART_H
#define ESPER_UI_REPORT_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"

/* A scale from low to high with ticks at round numbers: first, first + step, ... */
typedef struct esper_scale {
    double low, high, first, step;
    int    n_ticks, decimals;
} esper_scale;

/* Round ends around [low, high], about n_wanted ticks. Whole: no step below 1. */
esper_scale esper_scale_round(double low, double high, int n_wanted, bool whole);

/* Ends as they are, ticks inside. */
esper_scale esper_scale_inside(double low, double high, int n_wanted, bool whole);

/* Where a value lies when low is at `from` and high at `to`. */
double esper_scale_place(const esper_scale *scale, double value, double from, double to);

/* A rectangle of an SVG with its two scales, in the SVG's units. */
typedef struct esper_plot {
    double      left, right, top, bottom;
    esper_scale x, y;
} esper_plot;

/* Of all SVGs with a plot: half a page, two of which stand beside each other, and a phone. */
enum { ESPER_PLOT_WIDTH = 520, ESPER_PLOT_LEFT = 82 };

/* Where a value lies: not left of the plot, nor above it. */
double esper_plot_x(const esper_plot *plot, double value);
double esper_plot_y(const esper_plot *plot, double value);

/* Begins an SVG as high as the plot and `foot` below it; the caller writes a description, </desc> and all the rest. */
void esper_plot_begin(esper_page *page, const esper_plot *plot, int foot, const char *id, const char *title);
/* Both axes: a whole number has commas, `unit` stands behind those of the y axis, and x_name below the x axis. */
void esper_plot_axes(esper_page *page, const esper_plot *plot, bool whole, const char *unit, const char *x_name);

/* A straight line of that class. */
void esper_svg_segment(esper_page *page, const char *style, double x1, double y1, double x2, double y2);

typedef struct esper_chart_line {
    const char    *name;  /* "grown host, validation" */
    const char    *style; /* CSS classes */
    const int64_t *x;     /* epochs, rising */
    const double  *y;     /* what is not finite breaks the line and is marked; ESPER_STORE_NO_REAL just breaks it */
    int            n;
    bool           step;  /* holds its value until the next one */
    bool           dots;
} esper_chart_line;

/* In the order of the rows of the band. */
typedef enum esper_mark_kind {
    ESPER_MARK_GERMINATED,
    ESPER_MARK_BLENDED,
    ESPER_MARK_FOSSILIZED,
    ESPER_MARK_PRUNED,
    ESPER_MARK_ROLLBACK,
    ESPER_MARK_RATE, /* the learning rate went up: what follows is no crash */
    ESPER_MARK_N_KINDS
} esper_mark_kind;

/* All of one kind in one epoch. */
typedef struct esper_chart_mark {
    esper_mark_kind kind;
    int64_t         epoch;
    int             n;
    char            text[240]; /* which ones, for a tip */
} esper_chart_mark;

/* What a run was doing, behind the curves. */
typedef enum esper_phase {
    ESPER_PHASE_HOLD,  /* nothing grows, the rate is held */
    ESPER_PHASE_TRIAL, /* forks were on trial at its end */
    ESPER_PHASE_GROW,  /* a seed is there that is neither kept nor removed */
    ESPER_PHASE_FALL,  /* the rate falls to its end */
    ESPER_PHASE_N_KINDS
} esper_phase;

/* From the end of one epoch to that of another. */
typedef struct esper_chart_band {
    esper_phase phase;
    int64_t     from, to;
} esper_chart_band;

const char *esper_phase_name(esper_phase phase);

/* A list with a sample of each phase's colour and what it means. */
void esper_phase_key(esper_page *page);

typedef struct esper_chart {
    const char             *id;    /* a word, for references inside the page */
    const char             *title; /* "Accuracy" */
    const char             *unit;  /* "%" */
    const esper_chart_line *lines;
    int                     n_lines;
    const esper_chart_mark *marks;
    int                     n_marks;
    const esper_chart_band *bands;
    int                     n_bands;
    int64_t                 last_epoch;
    const char             *x_name;    /* "epoch" */
    int                     height;    /* of the plot, without the band */
    bool                    from_zero; /* the y axis begins at 0 */
    bool                    whole;     /* whole numbers, written with commas */
} esper_chart;

/* A <figure> with caption, key and SVG, or a sentence where there is nothing to draw. */
void esper_chart_write(esper_page *page, const esper_chart *chart);

const char *esper_mark_name(esper_mark_kind kind);

#endif
