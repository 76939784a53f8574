/* Internal. Recorded behaviour of slots: numbers and names as the files have them.
 *
 * A test compares every row. Where a row shows a difference on purpose (support/difference.h), it checks the corrected
 * answer instead; then it takes over what was recorded, so that the rows that follow are compared, too. */
#ifndef ESPER_TESTS_SLOT_RECORDED_H
#define ESPER_TESTS_SLOT_RECORDED_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/difference.h"
#include "support/golden.h"

/* A number; not finite ones are texts, null is NaN. */
static inline double recorded_number(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text != NULL)
        return strcmp(text, "nan") == 0 ? (double)NAN : strcmp(text, "inf") == 0 ? (double)INFINITY : -(double)INFINITY;
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static inline int recorded_int(const json_t *value)
{
    return (int)json_integer_value(value);
}

static inline bool recorded_is_near(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= 1e-12 * fmax(1.0, fmax(fabs(a), fabs(b)));
}

/* A name of ours as it was recorded: "TRAINING". */
static inline const char *recorded_name(const char *name, char loud[32])
{
    size_t i = 0;

    for (; name != NULL && name[i] != '\0' && i < 31; i++)
        loud[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    loud[i] = '\0';
    return loud;
}

#endif
