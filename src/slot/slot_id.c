/* Names of slots. */
#include "slot/slot_id.h"

#include <ctype.h>
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

/* A place, and behind it, where *level_out is not 0, which of the slots there. */
static bool read_place(const char *text, int *row_out, int *col_out, int *level_out)
{
    const char *at = text;

    *level_out = 0;
    if (*at++ != 'r' || !read_number(&at, row_out) || *at++ != 'c' || !read_number(&at, col_out))
        return false;
    if (*at == '_')
        return at++, read_number(&at, level_out) && *at == '\0' && *level_out > 1 && *level_out <= ESPER_SLOT_LEVEL_MAX;
    return *at == '\0';
}

esper_status esper_slot_id_parse(const char *text, int *row_out, int *col_out)
{
    int row, col, level;

    if (text == NULL || !read_place(text, &row, &col, &level) || level != 0)
        return ESPER_FAIL(ESPER_E_ARG, "\"%.40s\" is no slot: expected r<row>c<column>, such as r0c1",
                          text != NULL ? text : "");
    *row_out = row;
    *col_out = col;
    return ESPER_OK;
}

/* A small letter, then letters, digits and '_'; nothing that looks like a place. */
static bool is_word(const char *text)
{
    size_t n = strnlen(text, ESPER_SLOT_CHARS);

    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_')
            return false;
    return n > 0 && n < ESPER_SLOT_CHARS && islower((unsigned char)text[0]) &&
           !(text[0] == 'r' && isdigit((unsigned char)text[1]));
}

bool esper_slot_id_is_name(const char *text)
{
    int row, col, level;

    return is_word(text) ||
           (strnlen(text, ESPER_SLOT_CHARS) < ESPER_SLOT_CHARS && read_place(text, &row, &col, &level));
}

bool esper_slot_id_fits(const char *text, int row, int col)
{
    int named_row, named_col, level;

    return is_word(text) || (read_place(text, &named_row, &named_col, &level) && named_row == row && named_col == col);
}

esper_status esper_slot_id_format(int row, int col, char id_out[ESPER_SLOT_CHARS])
{
    if (row < 0 || col < 0 || row > ESPER_SLOT_ID_MAX || col > ESPER_SLOT_ID_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "slot at row %d, column %d: expected 0 to %d", row, col, (int)ESPER_SLOT_ID_MAX);
    memset(id_out, 0, ESPER_SLOT_CHARS);
    snprintf(id_out, ESPER_SLOT_CHARS, "r%dc%d", row, col);
    return ESPER_OK;
}
