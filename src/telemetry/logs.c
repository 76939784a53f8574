/* What the logs for other people's tools share. */
#include "telemetry/logs.h"

#include <string.h>

#include "base/status.h"

esper_status esper_logs_parse(const char *text, unsigned *logs_out)
{
    unsigned logs = 0;

    while (*text != '\0') {
        size_t n = strcspn(text, ",");

        if (n == strlen("tensorboard") && strncmp(text, "tensorboard", n) == 0)
            logs |= ESPER_LOGS_TENSORBOARD_BIT;
        else if (n == strlen("csv") && strncmp(text, "csv", n) == 0)
            logs |= ESPER_LOGS_CSV_BIT;
        else
            return ESPER_FAIL(ESPER_E_CONFIG, "log %.*s: expected tensorboard, csv, or both with a comma between them",
                              (int)n, text);
        text += n + (text[n] == ',');
    }
    *logs_out = logs;
    return ESPER_OK;
}

bool esper_logs_take(const esper_fact *fact, bool grows)
{
    if (fact->kind == ESPER_FACT_UPDATE)
        return true;
    return fact->kind == ESPER_FACT_EPOCH && fact->to == (unsigned)(grows ? ESPER_TO_ROWS : ESPER_TO_LINES);
}

bool esper_logs_number(const esper_fact *fact, const esper_fact_field *field, double *value_out)
{
    const void *at = (const char *)fact + field->offset;

    if (field->kind == ESPER_FACT_FIELD_INT && *(const int64_t *)at != ESPER_NO_INT)
        *value_out = (double)*(const int64_t *)at;
    else if (field->kind == ESPER_FACT_FIELD_REAL && *(const double *)at != ESPER_NO_REAL)
        *value_out = *(const double *)at;
    else
        return false;
    return true;
}
