/* Text and numbers in HTML. */
#include "ui/report_html.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "telemetry/store.h"

static const char not_measured[] = "\xe2\x80\x93"; /* a dash */

/* ------------------------------------------------------------------------------------------------ text and numbers */

/* What stands for a character that cannot stand for itself; NULL: it can. */
static const char *replacement(const uint8_t *s, size_t length)
{
    static const char *const named[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};

    if (length == 1 && *s < sizeof(named) / sizeof(named[0]) && named[*s] != NULL)
        return named[*s];
    if (length == 0 || (esper_utf8_is_control(s, length) && *s != '\n' && *s != '\t'))
        return "&#xFFFD;";
    if (*s == 0xef && s[1] == 0xbf && s[2] >= 0xbe) /* U+FFFE and U+FFFF are no characters */
        return "&#xFFFD;";
    return NULL;
}

static void put_text(esper_page *page, const char *text)
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

static void put_count(esper_page *page, int64_t value)
{
    char text[ESPER_TEXT_CHARS];

    esper_page_print(page, "%s", value != ESPER_STORE_NO_INT ? esper_text_count(value, text) : not_measured);
}

static void put_real(esper_page *page, double value, int decimals, bool with_sign)
{
    static const double most_grouped = 1e15; /* larger numbers are not read at all */
    char text[ESPER_NUMBER_CHARS];

    esper_page_print(page, "%s", with_sign && value > 0.0 && isfinite(value) ? "+" : "");
    if (decimals == 0 && fabs(value) < most_grouped) {
        put_count(page, (int64_t)llround(value));
        return;
    }
    esper_number_write_fixed(value, decimals, text);
    esper_page_print(page, "%s", value != ESPER_STORE_NO_REAL ? text : not_measured);
}

static void put_general(esper_page *page, double value)
{
    char text[ESPER_NUMBER_CHARS];

    if (value == ESPER_STORE_NO_REAL || (value == round(value) && fabs(value) < 1e9)) {
        put_real(page, value, 0, false);
        return;
    }
    esper_number_write_float((float)value, text);
    esper_page_print(page, "%s", text);
}

static void put_place(esper_page *page, double value)
{
    long tenths = isfinite(value) && fabs(value) < 1e7 ? lround(value * 10.0) : 0;
    long size = tenths < 0 ? -tenths : tenths;

    esper_page_print(page, "%s%ld", tenths < 0 ? "-" : "", size / 10);
    if (size % 10 != 0)
        esper_page_print(page, ".%ld", size % 10);
}

const char *esper_html_flops(int64_t value, char text[ESPER_TEXT_CHARS])
{
    char size[ESPER_TEXT_CHARS];

    if (value == ESPER_STORE_NO_INT)
        return not_measured;
    snprintf(text, ESPER_TEXT_CHARS, "%s%.30s", value < 0 ? "-" : "", esper_text_flops(fabs((double)value), size));
    return text;
}

const char *esper_html_seconds(double value, char text[ESPER_TEXT_CHARS])
{
    char size[ESPER_TEXT_CHARS];

    if (value == ESPER_STORE_NO_REAL)
        return not_measured;
    snprintf(text, ESPER_TEXT_CHARS, "%s%.30s", value < 0.0 ? "-" : "", esper_text_duration(fabs(value), size));
    return text;
}

bool esper_html_is_known(double value)
{
    return isfinite(value) && value != ESPER_STORE_NO_REAL;
}

/* ------------------------------------------------------------------------------------------------ formats */

/* A conversion of a format: "%+.2f". */
typedef struct conversion {
    bool with_sign, is_long;
    int  decimals; /* BY_ARGUMENT: the next one */
    char kind;
} conversion;

enum { BY_ARGUMENT = -1 };

/* `at` is behind the '%'; returns what stands behind the conversion. */
static const char *read_conversion(const char *at, conversion *read_out)
{
    conversion read = {.with_sign = *at == '+'};

    at += read.with_sign;
    if (*at == '.') {
        read.decimals = at[1] == '*' ? BY_ARGUMENT : at[1] - '0';
        at += 2;
    }
    read.is_long = *at == 'l';
    at += strspn(at, "l");
    read.kind = *at;
    assert(strchr("%sduifga", read.kind) != NULL && read.decimals >= BY_ARGUMENT && read.decimals <= 9);
    assert(read.kind != 'u' || read.is_long);
    *read_out = read;
    return at + 1;
}

typedef struct arguments {
    va_list list;
} arguments;

static void put_argument(esper_page *page, const conversion *as, arguments *from)
{
    int decimals = as->decimals == BY_ARGUMENT ? va_arg(from->list, int) : as->decimals;

    switch (as->kind) {
    case '%':
        esper_page_print(page, "%%");
        break;
    case 's':
        put_text(page, va_arg(from->list, const char *));
        break;
    case 'd':
        esper_page_print(page, "%lld",
                         (long long)(as->is_long ? va_arg(from->list, int64_t) : va_arg(from->list, int)));
        break;
    case 'u':
        esper_page_print(page, "%llu", (unsigned long long)va_arg(from->list, uint64_t));
        break;
    case 'i':
        put_count(page, as->is_long ? va_arg(from->list, int64_t) : va_arg(from->list, int));
        break;
    case 'f':
        put_real(page, va_arg(from->list, double), decimals, as->with_sign);
        break;
    case 'g':
        put_general(page, va_arg(from->list, double));
        break;
    case 'a':
        put_place(page, va_arg(from->list, double));
        break;
    default:
        break;
    }
}

void esper_html(esper_page *page, const char *format, ...)
{
    arguments from;
    conversion as;

    va_start(from.list, format);
    for (const char *at; (at = strchr(format, '%')) != NULL;) {
        esper_page_print(page, "%.*s", (int)(at - format), format);
        format = read_conversion(at + 1, &as);
        put_argument(page, &as, &from);
    }
    va_end(from.list);
    esper_page_print(page, "%s", format);
}

void esper_html_cells(esper_page *page, const char *format, ...)
{
    arguments from;
    conversion as;

    va_start(from.list, format);
    while (*format != '\0') {
        size_t n = strcspn(format, "%"); /* of the class, and the colon behind it */
        const char *style = format;

        assert(format[n] == '%' && (n == 0 || format[n - 1] == ':'));
        format = read_conversion(format + n + 1, &as);
        format += *format == ' ';
        if (n > 0)
            esper_page_print(page, "<td class=\"%.*s\">", (int)n - 1, style);
        else
            esper_page_print(page, as.kind == 's' ? "<td>" : "<td class=\"n\">");
        if (as.kind == 's') {
            const char *text = va_arg(from.list, const char *);

            put_text(page, text[0] != '\0' ? text : not_measured);
        } else
            put_argument(page, &as, &from);
        esper_page_print(page, "</td>");
    }
    va_end(from.list);
}

/* ------------------------------------------------------------------------------------------------ tables */

void esper_html_table(esper_page *page, const char *name, const char *caption, const char *const *columns)
{
    esper_html(page, "<div class=\"wide\"><table class=\"%s\">\n", name);
    if (caption != NULL)
        esper_html(page, "<caption>%s</caption>\n", caption);
    esper_html(page, "<thead><tr>");
    for (int i = 0; columns[i] != NULL; i++) {
        bool number = columns[i][0] == '#';

        esper_page_print(page, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
        esper_html(page, "%s</th>", columns[i] + number);
    }
    esper_html(page, "</tr></thead>\n<tbody>\n");
}

void esper_html_table_end(esper_page *page)
{
    esper_html(page, "</tbody></table></div>\n");
}
