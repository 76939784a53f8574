/* Terminals: what they can do, bars, and lines that fit. */
#include "ui/terminal.h"

#include <assert.h>
#include <ctype.h>
#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"

/* Bytes kept for the colours of a line that is full. */
enum { COLOUR_BYTES = 256, MOST_ROOM = 400 };

/* stdout and stderr have their usual numbers, whichever stream stands for them (ui/ascii.h). */
static int number_of(FILE *stream)
{
    return stream == stdout ? STDOUT_FILENO : stream == stderr ? STDERR_FILENO : fileno(stream);
}

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* A locale that is not installed here may still be that of the terminal, behind an ssh: then its name has to do ("de_DE.UTF-8",
 * "C.utf8@x"). */
static bool has_utf8(void)
{
    const char *all = getenv("LC_ALL"), *characters = getenv("LC_CTYPE"), *language = getenv("LANG");
    const char *name = is_set(all) ? all : is_set(characters) ? characters : is_set(language) ? language : "C";
    const char *charset = strchr(name, '.');
    locale_t locale = newlocale(LC_CTYPE_MASK, name, (locale_t)0);
    bool utf8;

    if (locale == (locale_t)0)
        return charset != NULL && (strncasecmp(charset, ".utf-8", 6) == 0 || strncasecmp(charset, ".utf8", 5) == 0);
    utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
}

esper_terminal esper_terminal_look(FILE *stream)
{
    const char *kind = getenv("TERM");
    int fd = number_of(stream);
    esper_terminal terminal = {.stream = stream, .is_tty = fd >= 0 && isatty(fd) == 1, .utf8 = has_utf8()};

    terminal.escapes = terminal.is_tty && is_set(kind) && strcmp(kind, "dumb") != 0;
    terminal.colour = terminal.escapes && !is_set(getenv("NO_COLOR"));
    esper_terminal_measure(&terminal);
    return terminal;
}

void esper_terminal_measure(esper_terminal *terminal)
{
    enum { USUAL_COLUMNS = 80, USUAL_ROWS = 24 }; /* of a terminal that does not say */
    struct winsize size = {0};

    terminal->room = ESPER_TERMINAL_WIDE;
    terminal->rows = 0;
    if (!terminal->is_tty)
        return;
    if (ioctl(number_of(terminal->stream), TIOCGWINSZ, &size) != 0)
        size = (struct winsize){0};
    terminal->room = (size.ws_col > 0 ? size.ws_col : USUAL_COLUMNS) - 1;
    terminal->rows = size.ws_row > 0 ? size.ws_row : USUAL_ROWS;
}

const char *esper_terminal_tick(const esper_terminal *terminal, bool is_good)
{
    if (terminal->utf8)
        return is_good ? "\u2713" : "\u2717";
    return is_good ? "+" : "-";
}

/* ------------------------------------------------------------------------------------------------ folding */

/* Bytes stand for columns, of which there are never more. */
size_t esper_terminal_fold(const char *text, int room)
{
    size_t length = strlen(text), fits = room > 1 ? (size_t)room : 1, blank = 0;

    if (length <= fits)
        return length;
    for (size_t at = fits; at > 0; at--) {
        if (text[at] != ' ')
            continue;
        if (!isdigit((unsigned char)text[at - 1]))
            return at;
        blank = blank > 0 ? blank : at; /* a number from its unit, if it must be */
    }
    if (blank > 0)
        return blank;
    while (fits > 1 && ((unsigned char)text[fits] & 0xC0) == 0x80) /* not within a character */
        fits--;
    return fits;
}

/* Where the last cell begins that leaves a third of the line to what it says: cells are two blanks apart. */
static size_t hang_of(const char *line, size_t length, size_t most)
{
    size_t hang = strspn(line, " ");

    for (size_t at = hang + 1; at + 1 < length && at + 1 < most; at++)
        if (line[at - 1] == ' ' && line[at] == ' ' && line[at + 1] != ' ')
            hang = at + 1;
    return hang < most ? hang : 0;
}

/* Bytes that belong on a line. A command `between such quotes` is not taken apart, nor is a word without blanks, a path as a
 * rule, that has no room on a line of its own: who pastes them would get two. */
static size_t part_of(const char *line, int room)
{
    size_t n = esper_terminal_fold(line, room), quote = 0, n_quotes = 0;

    if (line[n] != '\0' && line[n] != ' ')
        return n + strcspn(line + n, " ");
    for (size_t i = 0; i < n; i++)
        if (line[i] == '`') {
            quote = i;
            n_quotes++;
        }
    return line[n] != '\0' && n_quotes % 2 == 1 && quote > 1 && line[quote - 1] == ' ' ? quote - 1 : n;
}

/* Nothing in a text may command the terminal. */
static void put_shown(FILE *stream, const char *text, size_t n)
{
    for (size_t i = 0, took; i < n; i += took) {
        const uint8_t *at = (const uint8_t *)text + i;
        size_t length = esper_utf8_length(at, n - i);

        took = length > 0 ? length : 1;
        if (length == 0 || esper_utf8_is_control(at, length))
            fputc('?', stream);
        else
            fwrite(at, 1, length, stream);
    }
}

static void print_line(FILE *stream, const char *line, int room)
{
    size_t indent = 0, hang = hang_of(line, strlen(line), (size_t)room * 2 / 3);

    do {
        size_t lead = indent == 0 ? strspn(line, " ") : 0; /* no place for a break */
        size_t n = lead + part_of(line + lead, room - (int)(lead + indent));

        fprintf(stream, "%*s", (int)indent, "");
        put_shown(stream, line, n);
        line += n;
        line += strspn(line, " ");
        if (*line != '\0')
            fputc('\n', stream);
        indent = hang;
    } while (*line != '\0');
}

void esper_terminal_print(FILE *stream, const char *format, ...)
{
    esper_terminal terminal = esper_terminal_look(stream);
    char usual[4096], *text = usual;
    va_list arguments, again;
    int length;

    va_start(arguments, format);
    va_copy(again, arguments);
    length = terminal.is_tty ? vsnprintf(usual, sizeof(usual), format, again) : -1;
    va_end(again);
    if (length >= (int)sizeof(usual)) {
        text = esper_mem_alloc((size_t)length + 1);
        if (text != NULL)
            vsnprintf(text, (size_t)length + 1, format, arguments);
    }
    for (char *line = text, *end; length >= 0 && line != NULL; line = end) { /* takes the text apart */
        end = strchr(line, '\n');
        if (end != NULL)
            *end++ = '\0';
        print_line(stream, line, terminal.room + 1);
        if (end != NULL)
            fputc('\n', stream);
    }
    if (length < 0 || text == NULL)
        vfprintf(stream, format, arguments); /* whole lines, here or for want of memory */
    va_end(arguments);
    if (text != usual)
        esper_mem_free(text);
}

/* ------------------------------------------------------------------------------------------------ lines */

void esper_terminal_bar(double part, int cells, char *text_out)
{
    int filled = part > 0.0 ? (int)((part < 1.0 ? part : 1.0) * cells) : 0;

    assert(cells > 0 && filled <= cells);
    for (int i = 0; i < cells; i++)
        text_out[i] = i < filled ? '=' : i == filled ? '>' : ' ';
    text_out[cells] = '\0';
}

void esper_line_init(esper_line *line, int room, bool colour)
{
    line->text[0] = '\0'; /* the rest of it need not be cleared */
    line->used = line->word_used = 0;
    line->columns = line->word_columns = 0;
    line->room = room < MOST_ROOM ? room : MOST_ROOM;
    line->colour = colour;
    line->full = false;
}

/* Columns of a character: two for all of those among which wide ones are. */
static int columns_of(const char *at, size_t length)
{
    unsigned char first = (unsigned char)at[0], second = length > 1 ? (unsigned char)at[1] : 0;

    if (length <= 2)
        return 1;
    if (length != 3 || first != 0xE2)
        return 2;
    /* dashes, quotes, arrows, mathematics; boxes and blocks */
    return second < 0x8C || (second >= 0x94 && second <= 0x97) ? 1 : 2;
}

/* One character; returns the bytes of text it took, 0 when it does not fit. */
static size_t put_character(esper_line *line, const char *at)
{
    size_t length = esper_utf8_length((const uint8_t *)at, strnlen(at, 4)), bytes = length;
    int columns = length > 0 ? columns_of(at, length) : 1;

    if (length == 0 || esper_utf8_is_control((const uint8_t *)at, length)) {
        at = "?";
        bytes = 1;
        columns = 1;
    }
    if (line->columns + columns > line->room || line->used + bytes + COLOUR_BYTES >= sizeof(line->text))
        return 0;
    assert(line->used + bytes < sizeof(line->text));
    memcpy(line->text + line->used, at, bytes);
    line->used += bytes;
    line->text[line->used] = '\0';
    line->columns += columns;
    if (*at == ' ') {
        line->word_used = line->used;
        line->word_columns = line->columns;
    }
    return length > 0 ? length : 1;
}

/* Returns whether all of it has been put. Half a number would be another one: the word that does not fit goes as a whole, unless it
 * is long beyond measure. */
static __attribute__((format(printf, 2, 0))) bool put_text(esper_line *line, const char *format, va_list arguments)
{
    enum { LONGEST_WORD = 24 };
    char text[1024];
    const char *at = text;
    size_t n;

    assert(!line->full);
    vsnprintf(text, sizeof(text), format, arguments);
    while (*at != '\0' && (n = put_character(line, at)) > 0)
        at += n;
    if (*at == '\0')
        return true;
    line->full = true;
    if (*at != ' ' && line->columns - line->word_columns <= LONGEST_WORD) {
        line->used = line->word_used;
        line->columns = line->word_columns;
        line->text[line->used] = '\0';
        esper_line_colour(line, "0"); /* an end of a colour may have gone with it */
    }
    return false;
}

void esper_line_put(esper_line *line, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (!line->full)
        put_text(line, format, arguments);
    va_end(arguments);
}

void esper_line_put_whole(esper_line *line, const char *format, ...)
{
    size_t used = line->used;
    int columns = line->columns;
    va_list arguments;

    va_start(arguments, format);
    if (!line->full && !put_text(line, format, arguments)) {
        line->used = used;
        line->columns = columns;
        line->text[used] = '\0';
    }
    va_end(arguments);
}

void esper_line_tab(esper_line *line, int column)
{
    do
        esper_line_put(line, " ");
    while (line->columns < column && !line->full);
}

void esper_line_colour(esper_line *line, const char *number)
{
    if (!line->colour || line->used + 16 >= sizeof(line->text))
        return;
    line->used += (size_t)snprintf(line->text + line->used, sizeof(line->text) - line->used, "\033[%.4sm", number);
}
