/* Configuration files, through inih. Nobody else knows inih.
 *
 * inih splits "name = value" and strips blanks. It is lenient where we are strict, so its reader (the callback that
 * hands it lines) looks at each line first: sections, ':' for '=' and zero bytes are refused, comments are taken off.
 * It also cuts lines at 200 characters; a longer one is handed over in pieces, as continuation lines (each begins with
 * a blank), and the handler joins them again:
 *
 *     data = /a/very/long/pa        ->   handler("data", "/a/very/long/pa")
 *      th                           ->   handler("data", "th")
 */
#include <ctype.h>
#include <ini.h>
#include <string.h>

#include "base/config.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

enum { FILE_BYTES_MAX = 1 << 20, LINE_CHARS_MAX = 4096 };

typedef struct file_reader {
    const char  *name;               /* of the file, for messages */
    const char  *at, *end;           /* the text after the current line */
    const char  *piece, *piece_end;  /* what inih has not yet seen of the current line */
    int          line;
    bool         is_continued;       /* the handler's next call continues a value */
    bool         has_assignment;     /* key and value wait to be set */
    char         key[ESPER_CONFIG_NAME_CHARS];
    char         value[LINE_CHARS_MAX + 1];
    int          set_at[ESPER_CONFIG_N_KEYS]; /* line that set the key; 0 = none */
    esper_config config;             /* becomes the caller's when all is well */
    esper_status status;
} file_reader;

static bool is_blank(char c)
{
    return isspace((unsigned char)c) != 0;
}

/* Sets what the last line said, now that inih has handed over all of it. */
static esper_status finish_assignment(file_reader *reader)
{
    esper_config_source source = {.place = ESPER_CONFIG_FILE, .name = reader->name, .line = reader->line};
    int index;

    if (!reader->has_assignment)
        return ESPER_OK;
    reader->has_assignment = false;
    index = esper_config_find(reader->key);
    if (index >= 0 && reader->set_at[index] != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: '%s' is set already on line %d; keep one of them", reader->name,
                          reader->line, reader->key, reader->set_at[index]);
    if (index >= 0)
        reader->set_at[index] = reader->line;
    return esper_config_set(&reader->config, reader->key, reader->value, &source);
}

/* Refuses what inih would let pass or cut. */
static esper_status check_line(const file_reader *reader, const char *line, const char *end)
{
    const char *sign = line;

    if (end - line > LINE_CHARS_MAX)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: line of %zu characters, at most %d are allowed", reader->name,
                          reader->line, (size_t)(end - line), LINE_CHARS_MAX);
    if (line < end && *line == '[')
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: there are no sections here, only lines 'key = value'", reader->name,
                          reader->line);
    while (sign < end && *sign != '=' && *sign != ':')
        sign++;
    if (line < end && (sign == end || sign == line || *sign == ':' || sign - line >= ESPER_CONFIG_NAME_CHARS))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: expected a line 'key = value'", reader->name, reader->line);
    return ESPER_OK;
}

/* Goes to the next line that says something; false at the end of the text or at a fault. */
static bool next_line(file_reader *reader)
{
    while (reader->at < reader->end) {
        const char *line = reader->at;
        const char *line_end = memchr(line, '\n', (size_t)(reader->end - line));

        if (line_end == NULL)
            line_end = reader->end;
        reader->at = line_end < reader->end ? line_end + 1 : line_end;
        reader->line++;
        while (line < line_end && is_blank(*line))
            line++; /* an indented line would be a continuation to inih */
        for (const char *at = line; at < line_end; at++) /* a comment begins at the start or after a blank */
            if ((*at == ';' || *at == '#') && (at == line || is_blank(at[-1])))
                line_end = at;
        while (line_end > line && is_blank(line_end[-1]))
            line_end--;
        reader->status = check_line(reader, line, line_end);
        if (reader->status != ESPER_OK)
            return false;
        reader->piece = line;
        reader->piece_end = line_end;
        if (line < line_end)
            return true;
    }
    return false;
}

/* How much of the current line to hand over when only `room` characters fit. inih strips blanks from both ends of a
 * piece and takes one that begins with ';' or '#' for a comment, so a cut lies between other characters. 0 = none. */
static size_t cut_line(const file_reader *reader, size_t room)
{
    size_t left = (size_t)(reader->piece_end - reader->piece);

    if (left <= room)
        return left;
    while (room > 0) {
        char before = reader->piece[room - 1], after = reader->piece[room];

        if (!is_blank(before) && !is_blank(after) && after != ';' && after != '#')
            break;
        room--;
    }
    return room;
}

/* inih's reader: like fgets, one line for each call, NULL at the end. */
static char *hand_over(char *text, int size, void *stream)
{
    file_reader *reader = stream;
    size_t n, lead;

    reader->is_continued = reader->piece < reader->piece_end;
    if (!reader->is_continued) {
        reader->status = finish_assignment(reader);
        if (reader->status != ESPER_OK || !next_line(reader))
            return NULL;
    }
    lead = reader->is_continued ? 1 : 0;
    n = size > ESPER_CONFIG_NAME_CHARS + 3 ? cut_line(reader, (size_t)size - 3) : 0; /* blank, line end, zero */
    if (n == 0) {
        reader->status = ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: too many blanks in a row", reader->name, reader->line);
        return NULL;
    }
    text[0] = ' ';
    memcpy(text + lead, reader->piece, n);
    memcpy(text + lead + n, "\n", 2);
    reader->piece += n;
    return text;
}

/* inih's handler. Returns 1 when content, as inih wants it. The lengths were bounded when the line was checked. */
static int take_value(void *user, const char *section, const char *name, const char *value)
{
    file_reader *reader = user;

    (void)section;
    if (reader->is_continued)
        strncat(reader->value, value, sizeof(reader->value) - strlen(reader->value) - 1);
    else {
        snprintf(reader->key, sizeof(reader->key), "%s", name);
        snprintf(reader->value, sizeof(reader->value), "%s", value);
        reader->has_assignment = true;
    }
    return 1;
}

static esper_status read_text(file_reader *reader, const char *text, size_t bytes)
{
    static const char byte_order_mark[] = "\xEF\xBB\xBF"; /* some editors begin UTF-8 files with it */
    const char *zero;
    int bad_line, line = 1;

    if (bytes >= 3 && memcmp(text, byte_order_mark, 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    reader->at = text;
    reader->end = text + bytes;
    zero = memchr(text, '\0', bytes); /* nothing below would see what follows it */
    for (const char *at = text; zero != NULL && at < zero; at++)
        line += *at == '\n';
    if (zero != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: a zero byte: this is not a text file", reader->name, line);
    bad_line = ini_parse_stream(hand_over, reader, take_value, reader);
    if (reader->status == ESPER_OK && bad_line != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: expected a line 'key = value'", reader->name, reader->line);
    return reader->status;
}

esper_status esper_config_load_text(esper_config *config, const char *text, size_t bytes, const char *name)
{
    file_reader *reader = esper_mem_alloc(sizeof(*reader));
    esper_status st;

    if (reader == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "reading %s", name);
    reader->name = name;
    reader->config = *config;
    st = read_text(reader, text, bytes);
    if (st == ESPER_OK)
        *config = reader->config;
    esper_mem_free(reader);
    return st;
}

esper_status esper_config_load_file(esper_config *config, const char *path)
{
    char *text;
    size_t bytes;
    esper_status st;

    ESPER_TRY(esper_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    st = esper_config_load_text(config, text, bytes, path);
    esper_mem_free(text);
    return st;
}
