/* Internal. What views need of a terminal: its size, whether it takes colours, and lines that never grow wider than it. */
#ifndef ESPER_UI_TERMINAL_H
#define ESPER_UI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    ESPER_TERMINAL_WIDE = 200, /* columns of what is no terminal, and of one that does not say */
    ESPER_LINE_BYTES = 2048,
};

/* Characters that fit before the end of a line: what is drawn over itself may not wrap. */
int esper_terminal_room(FILE *stream);
/* Lines of the screen; 0 = it does not say. */
int esper_terminal_rows(FILE *stream);
/* A terminal, not a dumb one, and nobody has set NO_COLOR. */
bool esper_terminal_has_colour(FILE *stream);

/* "===>    ": so many cells, terminator behind them. A part that is no number is 0. */
void esper_terminal_bar(double part, int cells, char *text_out);

/* A line that is cut at the edge. Control characters, and bytes that are no UTF-8, become '?'. */
typedef struct esper_line {
    char   text[ESPER_LINE_BYTES]; /* always zero-terminated */
    size_t used;
    int    columns, room;
    bool   colour; /* whether colours are written */
} esper_line;

void esper_line_init(esper_line *line, int room, bool colour);
void esper_line_put(esper_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Blanks up to that column, one at least. */
void esper_line_tab(esper_line *line, int column);
/* A colour or weight by its number in ECMA-48 ("32": green); "0" ends it. It takes no column. */
void esper_line_colour(esper_line *line, const char *number);

#endif
