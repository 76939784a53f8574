/* Names of slots. */
#include "slot/slot_id.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* Reads the number at *text and moves behind it. */
static bool read_number(const char **text, int *number_out)
{
    const char *at = *text;
    int number = 0;

    if (at[0] == '0' && at[1] >= '0' && at[1] <= '9')
        return false; /* r01c0 and r1c0 would be two names of one slot */
    while (*at >= '0' && *at <= '9') {
        number = 10 * number + (*at++ - '0');
        if (number > ESPER_SLOT_ID_MAX)
            return false;
    }
    if (at == *text)
        return false;
    *text = at;
    *number_out = number;
    return true;
}

esper_status esper_slot_id_parse(const char *text, int *row_out, int *col_out)
{
    const char *at = text;
    int row, col;

    if (text == NULL || *at++ != 'r' || !read_number(&at, &row) || *at++ != 'c' || !read_number(&at, &col) ||
        *at != '\0')
        return ESPER_FAIL(ESPER_E_ARG, "\"%.40s\" is no slot: expected r<row>c<column>, such as r0c1",
                          text != NULL ? text : "");
    *row_out = row;
    *col_out = col;
    return ESPER_OK;
}

esper_status esper_slot_id_format(int row, int col, char id_out[ESPER_SLOT_CHARS])
{
    if (row < 0 || col < 0 || row > ESPER_SLOT_ID_MAX || col > ESPER_SLOT_ID_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "slot at row %d, column %d: expected 0 to %d", row, col, (int)ESPER_SLOT_ID_MAX);
    memset(id_out, 0, ESPER_SLOT_CHARS);
    snprintf(id_out, ESPER_SLOT_CHARS, "r%dc%d", row, col);
    return ESPER_OK;
}
