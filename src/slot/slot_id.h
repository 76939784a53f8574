/* Internal. Names of slots: that of a place, "r<row>c<col>", both decimal, from 0, without leading zeros; or a word that a host's
 * text has for it (nn/host_text.h), such as "stem". Slots that open behind a kept seed have its name and a number from 2 on:
 * "r0c1_2", "stem_3". */
#ifndef ESPER_SLOT_SLOT_ID_H
#define ESPER_SLOT_SLOT_ID_H

#include <stdbool.h>

#include "esper.h"
#include "tensor/net.h"

enum { ESPER_SLOT_ID_MAX = 999999 }; /* largest row or column: the name fits ESPER_SLOT_CHARS */

enum { ESPER_SLOT_LEVEL_MAX = 99 }; /* the largest such number */

/* Whether a text is a slot's name, and whether it can be that of the slot in this row and column. */
bool esper_slot_id_is_name(const char *text);
bool esper_slot_id_fits(const char *text, int row, int col);

/* E_ARG, with what was expected, for anything that is not exactly the name of a place. */
esper_status esper_slot_id_parse(const char *text, int *row_out, int *col_out);
esper_status esper_slot_id_format(int row, int col, char id_out[ESPER_SLOT_CHARS]);

#endif
