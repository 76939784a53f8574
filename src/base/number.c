/* Numbers as text. The C library does the conversions, in its "C" locale: a terminal view may have set another one, in
 * which 0.5 is written 0,5. */
#include "base/number.h"

#include <assert.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and friends skip white space, take signs and prefixes; we do not. A sign is allowed where `sign` says so. */
static bool is_whole_number(const char *text, bool sign)
{
    const char *digits = text + (sign && *text == '-');

    return *digits != '\0' && digits[strspn(digits, "0123456789")] == '\0';
}

/* Digits with at most one point among them, then perhaps an exponent. */
static bool is_real_number(const char *text)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t n_before = strspn(at, "0123456789");
    size_t n_after = 0;

    at += n_before;
    if (*at == '.') {
        n_after = strspn(++at, "0123456789");
        at += n_after;
    }
    if (n_before + n_after == 0)
        return false;
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '-' || *at == '+';
        return is_whole_number(at, false);
    }
    return *at == '\0';
}

/* Makes the calling thread use the "C" locale and returns the one it had, for leave_c_locale. glibc hands out its
 * built-in locale here, so nothing is allocated; should it fail, the thread keeps what it has. */
static locale_t enter_c_locale(locale_t *c_locale)
{
    *c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c_locale != (locale_t)0 ? uselocale(*c_locale) : (locale_t)0;
}

static void leave_c_locale(locale_t c_locale, locale_t previous)
{
    if (c_locale == (locale_t)0)
        return;
    uselocale(previous);
    freelocale(c_locale);
}

bool esper_number_read_int(const char *text, int64_t *value_out, bool *fits_out)
{
    if (!is_whole_number(text, true))
        return false;
    errno = 0;
    *value_out = strtoll(text, NULL, 10);
    *fits_out = errno != ERANGE;
    return true;
}

bool esper_number_read_u64(const char *text, uint64_t *value_out, bool *fits_out)
{
    if (!is_whole_number(text, false))
        return false;
    errno = 0;
    *value_out = strtoull(text, NULL, 10);
    *fits_out = errno != ERANGE;
    return true;
}

bool esper_number_read_real(const char *text, double *value_out)
{
    locale_t c_locale, previous;
    double value;

    if (!is_real_number(text))
        return false;
    previous = enter_c_locale(&c_locale);
    value = strtod(text, NULL);
    leave_c_locale(c_locale, previous);
    if (!isfinite(value))
        return false; /* 1e999 */
    *value_out = value;
    return true;
}

/* The shortest of so many digits that reads back as the same value. */
static void write_shortest(double value, int least, int most, bool is_float, char text[ESPER_NUMBER_CHARS])
{
    locale_t c_locale, previous;

    if (!isfinite(value)) {
        strcpy(text, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    previous = enter_c_locale(&c_locale);
    for (int digits = least; digits <= most; digits++) {
        snprintf(text, ESPER_NUMBER_CHARS, "%.*g", digits, value);
        if (is_float ? (double)strtof(text, NULL) == value : strtod(text, NULL) == value)
            break;
    }
    leave_c_locale(c_locale, previous);
}

void esper_number_write_real(double value, char text[ESPER_NUMBER_CHARS])
{
    write_shortest(value, 15, 17, false, text);
}

void esper_number_write_float(float value, char text[ESPER_NUMBER_CHARS])
{
    write_shortest((double)value, 6, 9, true, text);
}

void esper_number_write_fixed(double value, int decimals, char text[ESPER_NUMBER_CHARS])
{
    locale_t c_locale, previous;

    assert(decimals >= 0 && decimals <= 9);
    if (!(fabs(value) < 1e15)) { /* and what is not finite */
        esper_number_write_real(value, text);
        return;
    }
    previous = enter_c_locale(&c_locale);
    snprintf(text, ESPER_NUMBER_CHARS, "%.*f", decimals, value);
    leave_c_locale(c_locale, previous);
}
