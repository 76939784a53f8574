/* Internal. The one place that decides what may be written where: everything else asks here whether a stream leads to a
 * terminal, whether that takes escapes, colours and UTF-8, and how large it is. Besides, lines that are never wider. */
#ifndef ESPER_UI_TERMINAL_H
#define ESPER_UI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
    ESPER_TERMINAL_WIDE = 200, /* columns of what is no terminal */
    ESPER_LINE_BYTES = 2048,
};

typedef struct esper_terminal {
    FILE *stream;  /* borrowed */
    bool  is_tty;
    bool  escapes; /* a terminal whose TERM is neither unset nor dumb: lines may be drawn over themselves */
    bool  colour;  /* escapes, and nobody has set NO_COLOR */
    bool  utf8;    /* the locale's characters are UTF-8; elsewhere ASCII alone is written */
    int   room;    /* characters that fit in a line without wrapping it */
    int   rows;    /* of the screen; 0 where there is none */
} esper_terminal;

esper_terminal esper_terminal_look(FILE *stream);
/* Takes the size again, which changes with the window: before each time something is drawn. */
void esper_terminal_measure(esper_terminal *terminal);

/* "+" and "-" where there is no UTF-8 for a tick and a cross. */
const char *esper_terminal_tick(const esper_terminal *terminal, bool is_good);

/* Prints text as printf does. Lines that a terminal would wrap are broken between words, a number not from its unit; what
 * follows stands below the last cell that leaves it a third of the line. A command `between such quotes`, and a word longer than
 * the line, stay in one piece. Control characters, and bytes that are no UTF-8, become '?'. Elsewhere all stays as it is. */
void esper_terminal_print(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How many bytes of a text belong on a line of so many characters: all of them, or those before a blank. */
size_t esper_terminal_fold(const char *text, int room);

/* "===>    ": so many cells, terminator behind them. A part that is no number is 0. */
void esper_terminal_bar(double part, int cells, char *text_out);

/* A line that ends before the edge, by whole words. Control characters, and bytes that are no UTF-8, become '?'. */
typedef struct esper_line {
    char   text[ESPER_LINE_BYTES]; /* always zero-terminated */
    size_t used;
    int    columns, room;
    size_t word_used; /* what stands before the word under way, and its columns */
    int    word_columns;
    bool   colour; /* whether colours are written */
    bool   full;   /* something did not fit: nothing more is put */
} esper_line;

void esper_line_init(esper_line *line, int room, bool colour);
void esper_line_put(esper_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same all or nothing: a figure does not stay behind without its unit, nor a word without its figure. */
void esper_line_put_whole(esper_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Blanks up to that column, one at least. */
void esper_line_tab(esper_line *line, int column);
/* A colour or weight by its number in ECMA-48 ("32": green); "0" ends it. It takes no column. */
void esper_line_colour(esper_line *line, const char *number);

#endif
