/* Numbers as people read them. */
#include "ui/text.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const double most_seconds = 1e12; /* thirty thousand years */

const char *esper_text_count(int64_t count, char text[ESPER_TEXT_CHARS])
{
    char digits[ESPER_TEXT_CHARS];
    int n = snprintf(digits, sizeof(digits), "%" PRId64, count), out = 0;

    for (int i = 0; i < n; i++) {
        text[out++] = digits[i];
        if (digits[i] != '-' && i + 1 < n && (n - i - 1) % 3 == 0)
            text[out++] = ',';
    }
    text[out] = '\0';
    return text;
}

/* The value in the largest unit in which it is at least 1. */
static const char *scaled(double value, double base, const char *const *units, int n_units, char *text)
{
    int unit = 0;

    assert(n_units > 0 && base > 1.0);
    while (value >= base && unit + 1 < n_units) {
        value /= base;
        unit++;
    }
    snprintf(text, ESPER_TEXT_CHARS, unit == 0 ? "%.0f %s" : value < 9.995 ? "%.2f %s" : "%.1f %s", value, units[unit]);
    return text;
}

const char *esper_text_bytes(double bytes, char text[ESPER_TEXT_CHARS])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};

    return scaled(bytes, 1024.0, units, 5, text);
}

const char *esper_text_flops(double flops, char text[ESPER_TEXT_CHARS])
{
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};

    return scaled(flops, 1000.0, units, 5, text);
}

const char *esper_text_loss(double loss, char text[ESPER_TEXT_CHARS])
{
    if (isnan(loss))
        snprintf(text, ESPER_TEXT_CHARS, "nan"); /* whose sign means nothing */
    else
        snprintf(text, ESPER_TEXT_CHARS, fabs(loss) < 1000.0 ? "%.4f" : "%.2e", loss);
    return text;
}

const char *esper_text_percent(double value, char text[ESPER_TEXT_CHARS])
{
    snprintf(text, ESPER_TEXT_CHARS, isfinite(value) ? "%.2f %%" : "-", value);
    return text;
}

const char *esper_text_duration(double seconds, char text[ESPER_TEXT_CHARS])
{
    bool known = seconds >= 0.0 && seconds < most_seconds; /* neither not a number nor infinite */
    int64_t whole = known ? (int64_t)(seconds + 0.5) : 0;

    if (!known)
        snprintf(text, ESPER_TEXT_CHARS, "?");
    else if (seconds < 9.95)
        snprintf(text, ESPER_TEXT_CHARS, "%.1f s", seconds);
    else if (whole < 3600)
        snprintf(text, ESPER_TEXT_CHARS, "%" PRId64 ":%02" PRId64, whole / 60, whole % 60);
    else
        snprintf(text, ESPER_TEXT_CHARS, "%" PRId64 ":%02" PRId64 ":%02" PRId64, whole / 3600, whole / 60 % 60,
                 whole % 60);
    return text;
}
