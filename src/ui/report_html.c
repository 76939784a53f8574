/* Text and numbers in HTML. */
#include "ui/report_html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "telemetry/store.h"
#include "ui/text.h"

static const char not_measured[] = "\xe2\x80\x93"; /* a dash */

/* ------------------------------------------------------------------------------------------------ text */

/* What stands for a character that cannot stand for itself; NULL: it can. */
static const char *replacement(const uint8_t *s, size_t length)
{
    if (length == 0)
        return "&#xFFFD;";
    switch (*s) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        break;
    }
    if ((*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7f)
        return "&#xFFFD;";
    if (*s == 0xc2 && s[1] < 0xa0) /* the control characters of Latin-1 */
        return "&#xFFFD;";
    if (*s == 0xef && s[1] == 0xbf && s[2] >= 0xbe) /* U+FFFE and U+FFFF are no characters */
        return "&#xFFFD;";
    return NULL;
}

void esper_html_text(esper_page *page, const char *text)
{
    const uint8_t *s = (const uint8_t *)text, *plain = s, *end = s + strlen(text);

    while (s < end) {
        size_t length = esper_utf8_length(s, (size_t)(end - s));
        const char *instead = replacement(s, length);
        const uint8_t *next = s + (length > 0 ? length : 1);

        if (instead != NULL) {
            esper_page_print(page, "%.*s%s", (int)(s - plain), (const char *)plain, instead);
            plain = next;
        }
        s = next;
    }
    esper_page_print(page, "%.*s", (int)(s - plain), (const char *)plain);
}

/* ------------------------------------------------------------------------------------------------ numbers */

void esper_html_int(esper_page *page, int64_t value)
{
    char text[ESPER_TEXT_CHARS];

    esper_page_print(page, "%s", value != ESPER_STORE_NO_INT ? esper_text_count(value, text) : not_measured);
}

/* Numbers of so many digits are read in groups; larger ones are not read at all. */
static const double most_grouped = 1e15;

void esper_html_real(esper_page *page, double value, int decimals)
{
    char text[ESPER_NUMBER_CHARS], count[ESPER_TEXT_CHARS];

    if (decimals == 0 && fabs(value) < most_grouped) {
        esper_page_print(page, "%s", esper_text_count((int64_t)llround(value), count));
        return;
    }
    esper_number_write_fixed(value, decimals, text);
    esper_page_print(page, "%s", value != ESPER_STORE_NO_REAL ? text : not_measured);
}

void esper_html_signed(esper_page *page, double value, int decimals)
{
    if (value > 0.0 && isfinite(value))
        esper_page_print(page, "+");
    esper_html_real(page, value, decimals);
}

void esper_html_general(esper_page *page, double value)
{
    char text[ESPER_NUMBER_CHARS];

    if (value == ESPER_STORE_NO_REAL)
        snprintf(text, sizeof(text), "%s", not_measured);
    else if (isfinite(value) && value == round(value) && fabs(value) < 1e9) {
        esper_html_real(page, value, 0);
        return;
    } else
        esper_number_write_float((float)value, text);
    esper_page_print(page, "%s", text);
}

void esper_html_flops(esper_page *page, int64_t value)
{
    char text[ESPER_TEXT_CHARS];
    bool known = value != ESPER_STORE_NO_INT;

    if (known && value < 0)
        esper_page_print(page, "-");
    esper_page_print(page, "%s", known ? esper_text_flops(fabs((double)value), text) : not_measured);
}

void esper_html_seconds(esper_page *page, double value)
{
    char text[ESPER_TEXT_CHARS];
    bool known = value != ESPER_STORE_NO_REAL;

    if (known && value < 0.0)
        esper_page_print(page, "-");
    esper_page_print(page, "%s", known ? esper_text_duration(fabs(value), text) : not_measured);
}

void esper_html_at(esper_page *page, double value)
{
    long tenths = isfinite(value) && fabs(value) < 1e7 ? lround(value * 10.0) : 0;
    long size = tenths < 0 ? -tenths : tenths;

    esper_page_print(page, "%s%ld", tenths < 0 ? "-" : "", size / 10);
    if (size % 10 != 0)
        esper_page_print(page, ".%ld", size % 10);
}

void esper_html_attribute(esper_page *page, const char *name, double value)
{
    esper_page_print(page, " %s=\"", name);
    esper_html_at(page, value);
    esper_page_print(page, "\"");
}

void esper_svg_segment(esper_page *page, const char *name, double x1, double y1, double x2, double y2)
{
    esper_page_print(page, "<line class=\"%s\"", name);
    esper_html_attribute(page, "x1", x1);
    esper_html_attribute(page, "y1", y1);
    esper_html_attribute(page, "x2", x2);
    esper_html_attribute(page, "y2", y2);
    esper_page_print(page, "/>\n");
}

void esper_svg_text(esper_page *page, const char *name, double x, double y, const char *anchor)
{
    esper_page_print(page, "<text");
    if (name != NULL)
        esper_page_print(page, " class=\"%s\"", name);
    esper_html_attribute(page, "x", x);
    esper_html_attribute(page, "y", y);
    esper_page_print(page, " text-anchor=\"%s\">", anchor);
}

/* ------------------------------------------------------------------------------------------------ tables */

void esper_html_cell(esper_page *page, const char *name, const char *text)
{
    if (name != NULL)
        esper_page_print(page, "<td class=\"%s\">", name);
    else
        esper_page_print(page, "<td>");
    esper_html_text(page, text[0] != '\0' ? text : not_measured);
    esper_page_print(page, "</td>");
}

void esper_html_cell_int(esper_page *page, int64_t value)
{
    esper_page_print(page, "<td class=\"n\">");
    esper_html_int(page, value);
    esper_page_print(page, "</td>");
}

void esper_html_cell_real(esper_page *page, double value, int decimals)
{
    esper_page_print(page, "<td class=\"n\">");
    esper_html_real(page, value, decimals);
    esper_page_print(page, "</td>");
}

void esper_html_cell_signed(esper_page *page, double value, int decimals)
{
    esper_page_print(page, "<td class=\"n\">");
    esper_html_signed(page, value, decimals);
    esper_page_print(page, "</td>");
}

void esper_html_table(esper_page *page, const char *name, const char *caption, const char *const *columns)
{
    esper_page_print(page, "<div class=\"wide\"><table class=\"%s\">\n", name);
    if (caption != NULL) {
        esper_page_print(page, "<caption>");
        esper_html_text(page, caption);
        esper_page_print(page, "</caption>\n");
    }
    esper_page_print(page, "<thead><tr>");
    for (int i = 0; columns[i] != NULL; i++) {
        bool number = columns[i][0] == '#';

        esper_page_print(page, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
        esper_html_text(page, columns[i] + number);
        esper_page_print(page, "</th>");
    }
    esper_page_print(page, "</tr></thead>\n<tbody>\n");
}

void esper_html_table_end(esper_page *page)
{
    esper_page_print(page, "</tbody></table></div>\n");
}
