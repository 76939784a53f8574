/* Internal to the page of a comparison. Accuracy against parameters as an inline SVG: a small mark for every run, a large one for
 * each line's mean with its 95 % intervals, and the front of means that no other line beats in both. */
#ifndef ESPER_UI_COMPARE_PLOT_H
#define ESPER_UI_COMPARE_PLOT_H

#include "base/page.h"
#include "run/compare.h"

extern const char esper_compare_plot_style[]; /* CSS, after that of all pages */

/* A <figure> with caption, key and SVG, or a sentence where no run has a result. */
void esper_compare_plot(const esper_compare *compare, esper_page *page);

/* Likewise: validation accuracy over the share of the budget, or over epochs where these are the length; every epoch of every seed
 * as a point, the mean over seeds as a line. Read from the stores below `dir`. */
void esper_compare_curves(const esper_compare *compare, const char *dir, esper_page *page);

/* The mark of a line, for tables and the key. */
void esper_compare_plot_mark(int line, esper_page *page);

#endif
