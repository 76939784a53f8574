/* Internal to the report. Text and numbers in HTML. Whatever comes from a store goes through here: nothing in it can
 * become a tag, and every page is well-formed. */
#ifndef ESPER_UI_REPORT_HTML_H
#define ESPER_UI_REPORT_HTML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "ui/text.h"

/* As printf does, but the format alone is markup, and numbers are for people:
 *
 *     %s           text, between tags or in an attribute: escaped; what is no UTF-8, and control characters but tab and
 *                  newline, become U+FFFD
 *     %d           digits, with l for 64 bits (PRId64); unsigned ones always have 64 (PRIu64)
 *     %i           1,234; likewise
 *     %.2f  %+.2f  0.50, +0.50; without decimals in groups of digits; the number of decimals may be a '*'
 *     %g           as short as a float can be told: 0.05
 *     %a           a place in an SVG: one decimal at most, cheap, and the same in every locale
 *
 * Of i, f and g what was not measured (ESPER_STORE_NO_INT, ESPER_STORE_NO_REAL) is a dash; "nan" and "inf" are as they are. */
void esper_html(esper_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Cells of a table, one for each conversion; blanks stand between them, and before one may stand the class of its cell:
 * "%i name:%s %.2f". Numbers are of class n unless it says so; an empty text is a dash. */
void esper_html_cells(esper_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For %s: 1.62 MFLOP, 2:13; a dash for what was not measured. */
const char *esper_html_flops(int64_t value, char text[ESPER_TEXT_CHARS]);
const char *esper_html_seconds(double value, char text[ESPER_TEXT_CHARS]);

/* Whether a value was measured and is a number. */
bool esper_html_is_known(double value);

/* The head of a table: column names, NULL at the end; a name that begins with '#' is a column of numbers. */
void esper_html_table(esper_page *page, const char *name, const char *caption, const char *const *columns);
void esper_html_table_end(esper_page *page);

#endif
