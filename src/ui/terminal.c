/* Terminals: sizes, bars, and lines that are cut. */
#include "ui/terminal.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/utf8.h"

/* Bytes kept for the colours of a line that is full. */
enum { COLOUR_BYTES = 256, MOST_ROOM = 400 };

static bool size_of(FILE *stream, struct winsize *size_out)
{
    int fd = fileno(stream);

    return fd >= 0 && ioctl(fd, TIOCGWINSZ, size_out) == 0;
}

int esper_terminal_room(FILE *stream)
{
    struct winsize size;

    return size_of(stream, &size) && size.ws_col > 0 ? size.ws_col - 1 : ESPER_TERMINAL_WIDE;
}

int esper_terminal_rows(FILE *stream)
{
    struct winsize size;

    return size_of(stream, &size) ? size.ws_row : 0;
}

bool esper_terminal_has_colour(FILE *stream)
{
    const char *refused = getenv("NO_COLOR"), *kind = getenv("TERM");
    int fd = fileno(stream);

    if (refused != NULL && refused[0] != '\0')
        return false;
    return fd >= 0 && isatty(fd) == 1 && kind != NULL && strcmp(kind, "dumb") != 0;
}

void esper_terminal_bar(double part, int cells, char *text_out)
{
    int filled = part > 0.0 ? (int)((part < 1.0 ? part : 1.0) * cells) : 0;

    for (int i = 0; i < cells; i++)
        text_out[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    text_out[cells] = '\0';
}

void esper_line_init(esper_line *line, int room, bool colour)
{
    line->text[0] = '\0';
    line->used = 0;
    line->columns = 0;
    line->room = room < MOST_ROOM ? room : MOST_ROOM;
    line->colour = colour;
}

/* Columns of a character: two for all of those among which wide ones are. C1 controls count as none. */
static int columns_of(const char *at, size_t length)
{
    unsigned char first = (unsigned char)at[0], second = length > 1 ? (unsigned char)at[1] : 0;

    if (length <= 1)
        return 1;
    if (length == 2)
        return first == 0xC2 && second < 0xA0 ? 0 : 1;
    return length == 3 && first == 0xE2 && second < 0x8C ? 1 : 2; /* dashes, quotes, arrows, mathematics */
}

/* One character, or nothing when it does not fit; returns the bytes of text it took. */
static size_t put_character(esper_line *line, const char *at)
{
    size_t length = esper_utf8_length((const uint8_t *)at, strnlen(at, 4)), bytes = length;
    int columns = length > 0 ? columns_of(at, length) : 1;

    if (length == 0 || columns == 0 || (length == 1 && ((unsigned char)*at < ' ' || *at == 0x7F))) {
        at = "?";
        bytes = 1;
        columns = 1;
    }
    if (line->columns + columns > line->room || line->used + bytes + COLOUR_BYTES >= sizeof(line->text)) {
        line->room = line->columns; /* what follows does not fit either */
    } else {
        memcpy(line->text + line->used, at, bytes);
        line->used += bytes;
        line->text[line->used] = '\0';
        line->columns += columns;
    }
    return length > 0 ? length : 1;
}

void esper_line_put(esper_line *line, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    for (const char *at = text; *at != '\0' && line->columns < line->room;)
        at += put_character(line, at);
}

void esper_line_tab(esper_line *line, int column)
{
    do
        esper_line_put(line, " ");
    while (line->columns < column && line->columns < line->room);
}

void esper_line_colour(esper_line *line, const char *number)
{
    if (!line->colour || line->used + 16 >= sizeof(line->text))
        return;
    line->used += (size_t)snprintf(line->text + line->used, sizeof(line->text) - line->used, "\033[%.4sm", number);
}
