/* Internal to the report. Text and numbers in HTML. Whatever comes from a store goes through here: nothing in it can
 * become a tag, and every page is well-formed. */
#ifndef ESPER_UI_REPORT_HTML_H
#define ESPER_UI_REPORT_HTML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"

/* Text between tags or in an attribute; what is no UTF-8, and control characters but tab and newline, become U+FFFD. */
void esper_html_text(esper_page *page, const char *text);

/* A dash for what was not measured; "nan" and "inf" as they are. A number with an ESPER_STORE_NO_... is not measured. */
void esper_html_int(esper_page *page, int64_t value);                   /* 1,234 */
void esper_html_real(esper_page *page, double value, int decimals);     /* 0.50 */
void esper_html_signed(esper_page *page, double value, int decimals);   /* +0.50 */
void esper_html_general(esper_page *page, double value);                /* as short as a float can be told: 0.05 */
void esper_html_flops(esper_page *page, int64_t value);                 /* 1.62 MFLOP */
void esper_html_seconds(esper_page *page, double value);                /* 2:13 */

/* A place in an SVG, with one decimal: cheap, and the same in every locale. */
void esper_html_at(esper_page *page, double value);
void esper_html_attribute(esper_page *page, const char *name, double value); /* ' x="12.5"' */

/* Parts of an SVG: a straight line of that class, and the beginning of a text (class NULL: none), which the caller writes and ends
 * with </text>. Anchor: start, middle or end. */
void esper_svg_segment(esper_page *page, const char *name, double x1, double y1, double x2, double y2);
void esper_svg_text(esper_page *page, const char *name, double x, double y, const char *anchor);

/* Cells. `name` may be NULL; then it is a plain cell. */
void esper_html_cell(esper_page *page, const char *name, const char *text);
void esper_html_cell_int(esper_page *page, int64_t value);
void esper_html_cell_real(esper_page *page, double value, int decimals);
void esper_html_cell_signed(esper_page *page, double value, int decimals);

/* The head of a table: column names, NULL at the end; a name that begins with '#' is a column of numbers. */
void esper_html_table(esper_page *page, const char *name, const char *caption, const char *const *columns);
void esper_html_table_end(esper_page *page);

#endif
