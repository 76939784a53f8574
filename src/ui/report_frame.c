/* What every page has: its head, its style, and the facts in a row. */
#include <time.h>

#include "ui/report_html.h"
#include "ui/report_sections.h"

void esper_report_begin(esper_page *page, const char *title, const char *style)
{
    esper_page_print(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                           "style-src 'unsafe-inline'\"/>\n"
                           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
    esper_html_text(page, title);
    esper_page_print(page, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<header>\n<h1>", esper_report_style,
                     style);
    esper_html_text(page, title);
    esper_page_print(page, "</h1>\n");
}

void esper_report_fact(esper_page *page, const char *name, const char *text)
{
    esper_page_print(page, "<div><dt>%s</dt><dd>", name);
    esper_html_text(page, text[0] != '\0' ? text : "not recorded");
    esper_page_print(page, "</dd></div>\n");
}

void esper_report_fact_int(esper_page *page, const char *name, int64_t value)
{
    esper_page_print(page, "<div><dt>%s</dt><dd>", name);
    esper_html_int(page, value);
    esper_page_print(page, "</dd></div>\n");
}

void esper_report_configuration(esper_page *page, const char *text)
{
    if (text[0] == '\0')
        return;
    esper_page_print(page, "<details><summary>Configuration</summary>\n<pre>");
    esper_html_text(page, text);
    esper_page_print(page, "</pre></details>\n");
}

void esper_report_fact_time(esper_page *page, const char *name, double seconds)
{
    char text[40] = "";
    time_t when = seconds > 0.0 && seconds < 1e11 ? (time_t)seconds : 0;
    struct tm day;

    if (when != 0 && gmtime_r(&when, &day) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &day);
    esper_report_fact(page, name, text);
}
