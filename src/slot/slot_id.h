/* Internal. Names of slots: "r<row>c<col>", both decimal, from 0, without leading zeros. */
#ifndef ESPER_SLOT_SLOT_ID_H
#define ESPER_SLOT_SLOT_ID_H

#include "esper.h"
#include "tensor/net.h"

enum { ESPER_SLOT_ID_MAX = 999999 }; /* largest row or column: the name fits ESPER_SLOT_CHARS */

/* E_ARG, with what was expected, for anything that is not exactly such a name. */
esper_status esper_slot_id_parse(const char *text, int *row_out, int *col_out);
esper_status esper_slot_id_format(int row, int col, char id_out[ESPER_SLOT_CHARS]);

#endif
