/* The language of hosts and blueprints: reading it, with errors that point, and writing it. */
#include "nn/host_text.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/suggest.h"

enum { SHOWN_COLUMNS = 72, WORD_CHARS = 32 };

static const struct {
    const char *word, *arguments;
    unsigned    takes;
} kinds[ESPER_N_HOST_STAGES] = {
#define X(kind, word_, takes_, arguments_, about) [ESPER_HOST_STAGE_##kind] = {word_, arguments_, takes_},
    ESPER_HOST_STAGE_LIST(X)
#undef X
};

const char *esper_host_stage_word(esper_host_stage_kind kind)
{
    return (unsigned)kind < ESPER_N_HOST_STAGES ? kinds[kind].word : "[";
}

/* ------------------------------------------------------------------------------------------------ errors */

/* The line around a place, at most so many columns of it, with '?' for what a terminal might take for a command; then the mark. */
static void show_line(const char *text, int at, int length, char *shown, size_t size)
{
    int begin = at, end = at, from, to, used;

    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    while (text[end] != '\0' && text[end] != '\n')
        end++;
    from = end - begin > SHOWN_COLUMNS && at - begin > SHOWN_COLUMNS / 2 ? at - SHOWN_COLUMNS / 2 : begin;
    to = end - from > SHOWN_COLUMNS ? from + SHOWN_COLUMNS : end;
    used = snprintf(shown, size, "\n  %s", from > begin ? "..." : "");
    for (int i = from; i < to && used + 1 < (int)size; i++)
        shown[used++] = (char)(text[i] >= ' ' && text[i] < 127 ? text[i] : text[i] == '\t' ? ' ' : '?');
    used += snprintf(shown + used, size - (size_t)used, "%s\n  %*s", to < end ? "..." : "",
                     at - from + (from > begin ? 3 : 0), "");
    for (int i = 0; (i < length || i == 0) && at + i <= to && used + 1 < (int)size; i++)
        shown[used++] = '^';
    shown[used] = '\0';
}

esper_status esper_host_text_fail(esper_status status, const char *text, const char *name, int at, int length,
                                  const char *format, ...)
{
    char message[512], shown[3 * SHOWN_COLUMNS];
    int line = 1;
    va_list args;

    for (int i = 0; i < at; i++)
        line += text[i] == '\n';
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    show_line(text, at, length, shown, sizeof(shown));
    if (strchr(text, '\n') != NULL)
        return ESPER_FAIL(status, "%s, line %d: %s%s", name, line, message, shown);
    return ESPER_FAIL(status, "%s: %s%s", name, message, shown);
}

/* ------------------------------------------------------------------------------------------------ words */

typedef enum token_kind {
    TOKEN_END,
    TOKEN_SEPARATOR,
    TOKEN_OPEN,
    TOKEN_CLOSE,
    TOKEN_WORD,
    TOKEN_NUMBER, /* 16, 0.1 */
    TOKEN_SIZE,   /* 3x3 */
    TOKEN_TIMES,  /* x2 */
    TOKEN_SHARE,  /* 2w, w/4 */
} token_kind;

typedef struct token {
    token_kind kind;
    int        at, length, end; /* end: where the next one is looked for */
    bool       bar;    /* a separator that is or has a '|' */
    double     value;
    int        a, b;   /* of 3x3; of x2; of 2w (times) and w/4 (part) */
} token;

typedef struct parser {
    const char      *text, *name;
    esper_text_use   use;
    esper_host_text *out;
    token            next;
    int              depth, residuals;
} parser;

#define FAIL_AT(p, token_, ...) \
    esper_host_text_fail(ESPER_E_CONFIG, (p)->text, (p)->name, (token_)->at, (token_)->length, __VA_ARGS__)

static bool is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Digits from `at` on as a number that cannot overflow; where they end. */
static int read_digits(const char *text, int at, int *value_out)
{
    int64_t value = 0;

    for (; isdigit((unsigned char)text[at]); at++)
        value = value < INT32_MAX ? value * 10 + (text[at] - '0') : value;
    *value_out = value > INT32_MAX ? INT32_MAX : (int)value;
    return at;
}

/* What begins with a digit. */
static esper_status read_number(parser *p, token *found)
{
    const char *text = p->text;
    char copy[WORD_CHARS];
    int end = read_digits(text, found->at, &found->a);

    found->kind = TOKEN_NUMBER;
    if (text[end] == 'x' && isdigit((unsigned char)text[end + 1])) {
        found->kind = TOKEN_SIZE;
        end = read_digits(text, end + 1, &found->b);
    } else if (text[end] == 'w') {
        found->kind = TOKEN_SHARE;
        found->b = 0;
        end++;
    } else {
        while (is_word_char(text[end]) || text[end] == '.' ||
               ((text[end] == '-' || text[end] == '+') && tolower((unsigned char)text[end - 1]) == 'e'))
            end++;
    }
    found->length = end - found->at;
    snprintf(copy, sizeof(copy), "%.*s", found->length, text + found->at);
    if (is_word_char(text[end]) || (found->kind == TOKEN_NUMBER &&
                                    (found->length >= WORD_CHARS || !esper_number_read_real(copy, &found->value)))) {
        while (is_word_char(text[end]) || text[end] == '.')
            end++;
        found->length = end - found->at;
        return FAIL_AT(p, found, "'%.*s' is no number", found->length < WORD_CHARS ? found->length : WORD_CHARS,
                       text + found->at);
    }
    return ESPER_OK;
}

static void read_word(const parser *p, token *found)
{
    const char *text = p->text;
    int end = found->at, last;

    while (is_word_char(text[end]))
        end++;
    found->kind = TOKEN_WORD;
    found->length = end - found->at;
    if (text[found->at] == 'x' && found->length > 1) {
        last = read_digits(text, found->at + 1, &found->a);
        found->kind = last == end ? TOKEN_TIMES : TOKEN_WORD;
    }
    if (text[found->at] != 'w' || found->length != 1)
        return;
    found->kind = TOKEN_SHARE;
    found->a = 1;
    found->b = 0;
    if (text[end] == '/' && isdigit((unsigned char)text[end + 1])) {
        end = read_digits(text, end + 1, &found->b);
        found->length = end - found->at;
    }
}

/* Blanks and comments are passed over. Ends of lines and bars in a row are one separator, if there is at most one bar. */
static esper_status advance(parser *p)
{
    const char *text = p->text;
    token found = {.at = p->next.end};
    int bars = 0, lines = 0, at = found.at;

    for (;; at++) {
        if (text[at] == '#')
            at += (int)strcspn(text + at, "\n");
        if (text[at] == '|' && bars == 1)
            break;
        if (text[at] == '|' || text[at] == '\n') {
            found.at = bars + lines == 0 || text[at] == '|' ? at : found.at;
            found.length = 1;
            bars += text[at] == '|';
            lines += text[at] == '\n';
        } else if (text[at] == '\0' || !isspace((unsigned char)text[at]))
            break;
    }
    if (bars + lines > 0 && text[at] != '|') {
        p->next = (token){.kind = TOKEN_SEPARATOR, .at = found.at, .length = 1, .end = at, .bar = bars > 0};
        return ESPER_OK;
    }
    if (text[at] == '|') {
        found.at = at;
        found.length = 1;
        return FAIL_AT(p, &found, "expected a stage between two bars");
    }
    found.at = at;
    found.length = text[at] != '\0';
    if (text[at] == '\0')
        found.kind = TOKEN_END;
    else if (text[at] == '[')
        found.kind = TOKEN_OPEN;
    else if (text[at] == ']')
        found.kind = TOKEN_CLOSE;
    else if (isdigit((unsigned char)text[at]))
        ESPER_TRY(read_number(p, &found));
    else if (is_word_char(text[at]))
        read_word(p, &found);
    else
        return FAIL_AT(p, &found, "a host has no place for this character");
    found.end = found.at + found.length;
    p->next = found;
    return ESPER_OK;
}

static bool is_word(const parser *p, const char *word)
{
    return p->next.kind == TOKEN_WORD && (size_t)p->next.length == strlen(word) &&
           strncmp(p->text + p->next.at, word, strlen(word)) == 0;
}

/* The word as a C string, cut where it is far too long. */
static void copy_word(const parser *p, char word[WORD_CHARS])
{
    snprintf(word, WORD_CHARS, "%.*s", p->next.length, p->text + p->next.at);
}

/* ------------------------------------------------------------------------------------------------ stages */

static esper_status parse_list(parser *p, const token *opened);

static esper_status push(parser *p, const token *at, esper_host_stage **stage_out)
{
    if (p->out->n == ESPER_HOST_STAGES)
        return FAIL_AT(p, at, "more than %d stages: repeat some with [...]xN", ESPER_HOST_STAGES);
    *stage_out = &p->out->stages[p->out->n++];
    **stage_out = (esper_host_stage){.at = at->at, .length = at->length, .repeat = 1};
    return ESPER_OK;
}

/* A whole number in the place of a size. */
static esper_status read_size(parser *p, int least, int most, const char *what, int *value_out)
{
    const token *t = &p->next;

    if (t->kind != TOKEN_NUMBER || t->value != floor(t->value) || t->value < least || t->value > most)
        return FAIL_AT(p, t, "%s: expected a whole number from %d to %d", what, least, most);
    *value_out = (int)t->value;
    return advance(p);
}

static esper_status read_share(parser *p, float *share_out)
{
    if (p->next.kind != TOKEN_NUMBER || !(p->next.value > 0.0 && p->next.value < 1.0) ||
        !((float)p->next.value > 0.0f && (float)p->next.value < 1.0f))
        return FAIL_AT(p, &p->next, "dropout: expected a share above 0 and below 1, such as 0.1");
    *share_out = (float)p->next.value;
    return advance(p);
}

/* Channels, width or heads. */
static esper_status parse_size(parser *p, esper_host_stage *stage)
{
    bool heads = stage->kind == ESPER_HOST_STAGE_LAYER || stage->kind == ESPER_HOST_STAGE_ATTENTION;
    const char *what = heads ? "heads" : stage->kind == ESPER_HOST_STAGE_CONV ? "channels" : "width";

    if (p->next.kind != TOKEN_SHARE || heads)
        return read_size(p, 1, heads ? ESPER_HOST_HEADS : ESPER_HOST_MOST, what, &stage->size);
    if (p->use != ESPER_TEXT_BLUEPRINT)
        return FAIL_AT(p, &p->next, "w, the stream's width, is for blueprints: a host says how wide it is");
    if (p->next.b > ESPER_HOST_REPEATS || p->next.a < 1 || p->next.a > ESPER_HOST_REPEATS)
        return FAIL_AT(p, &p->next, "%s: expected w, 2w to %dw, or w/2 to w/%d", what, ESPER_HOST_REPEATS,
                       ESPER_HOST_REPEATS);
    stage->times = p->next.b > 0 ? 0 : p->next.a;
    stage->part = p->next.b;
    if (p->next.b == 1) { /* w/1 is w */
        stage->times = 1;
        stage->part = 0;
    }
    return advance(p);
}

static esper_status parse_kernel(parser *p, esper_host_stage *stage)
{
    if (p->next.a != p->next.b || p->next.a % 2 == 0 || p->next.a > ESPER_HOST_KERNEL)
        return FAIL_AT(p, &p->next, "kernel: expected an odd side twice, from 1x1 to %dx%d", ESPER_HOST_KERNEL,
                       ESPER_HOST_KERNEL);
    stage->kernel = p->next.a;
    return advance(p);
}

/* Words that a host's parameters begin with, that a seed's of such a slot must not. */
static const char *const parameters[] = {"blocks",     "layers",  "norms",   "attentions", "shortcuts",
                                         "classifier", "tok_emb", "pos_emb", "ln_f"};
static const char *const arguments[] = {"bare", "tied", "dropout", "residual"};

static bool has_meaning(const char *word)
{
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
        if (strcmp(parameters[i], word) == 0)
            return true;
    for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++)
        if (strcmp(arguments[i], word) == 0)
            return true;
    for (int kind = 0; kind < ESPER_N_HOST_STAGES; kind++)
        if (strcmp(kinds[kind].word, word) == 0)
            return true;
    return false;
}

bool esper_host_slot_place(const char *slot, int *row_out, int *col_out)
{
    int end;

    if (slot[0] != 'r' || !isdigit((unsigned char)slot[1]))
        return false;
    end = read_digits(slot, 1, row_out);
    return slot[end] == 'c' && isdigit((unsigned char)slot[end + 1]) &&
           slot[read_digits(slot, end + 1, col_out)] == '\0' && *row_out <= 99 && *col_out <= 999 &&
           (slot[1] != '0' || end == 2) && (slot[end + 1] != '0' || slot[end + 2] == '\0');
}

static esper_status parse_slot(parser *p, esper_host_stage *stage)
{
    char word[WORD_CHARS];
    int row, col;

    copy_word(p, word);
    if (word[0] == 'r' && isdigit((unsigned char)word[1]) && !esper_host_slot_place(word, &row, &col))
        return FAIL_AT(p, &p->next, "the name of a place is r, its row, c, its column, such as r0c2: not '%s'", word);
    if (!islower((unsigned char)word[0]) || p->next.length >= ESPER_SLOT_CHARS)
        return FAIL_AT(p, &p->next,
                       "a slot is called by a place, such as r0c2, or by a word of up to %d letters, digits and '_' "
                       "that begins with a small letter: not '%s'",
                       ESPER_SLOT_CHARS - 1, word);
    if (has_meaning(word))
        return FAIL_AT(p, &p->next, "a slot cannot be called '%s', which has another meaning", word);
    memcpy(stage->slot, word, strlen(word) + 1);
    return advance(p);
}

/* "conv takes C [KxK] [bare] [dropout P]" */
static esper_status fail_argument(const parser *p, const esper_host_stage *stage)
{
    const char *takes = kinds[stage->kind].arguments;
    char word[WORD_CHARS], hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    copy_word(p, word);
    esper_suggest_init(&suggest, word);
    for (size_t i = 0; p->next.kind == TOKEN_WORD && i < sizeof(arguments) / sizeof(arguments[0]); i++)
        esper_suggest_offer(&suggest, arguments[i]);
    for (int kind = 0; p->next.kind == TOKEN_WORD && kind < ESPER_N_HOST_STAGES; kind++)
        if (strcmp(kinds[kind].word, word) == 0)
            return FAIL_AT(p, &p->next, "expected '|' or a new line before '%s'", word);
    if (is_word(p, "residual"))
        return FAIL_AT(p, &p->next, "residual stands behind brackets: [%s ...] residual", kinds[stage->kind].word);
    return FAIL_AT(p, &p->next, "%s takes %s: not '%s'%s", kinds[stage->kind].word,
                   takes[0] != '\0' ? takes : "nothing", word, esper_suggest_text(&suggest, "", hint));
}

static esper_status parse_arguments(parser *p, esper_host_stage *stage)
{
    unsigned takes = kinds[stage->kind].takes;

    if ((takes & ESPER_TAKES_SHARE) != 0)
        ESPER_TRY(read_share(p, &stage->dropout));
    if ((takes & ESPER_TAKES_SIZE) != 0 &&
        ((takes & ESPER_TAKES_NO_SIZE) == 0 || p->next.kind == TOKEN_NUMBER || p->next.kind == TOKEN_SHARE))
        ESPER_TRY(parse_size(p, stage));
    if (p->next.kind == TOKEN_WORD && (takes & ESPER_TAKES_NAME) != 0)
        ESPER_TRY(parse_slot(p, stage));
    if (stage->kind == ESPER_HOST_STAGE_LINEAR) /* the head takes what other linear layers do not */
        takes &= ~(unsigned)(stage->size + stage->times + stage->part > 0 ? ESPER_TAKES_TIED
                                                                          : ESPER_TAKES_BARE | ESPER_TAKES_DROPOUT);
    if (stage->kind == ESPER_HOST_STAGE_CONV)
        stage->kernel = 3;
    if (p->next.kind == TOKEN_SIZE && (takes & ESPER_TAKES_KERNEL) != 0)
        ESPER_TRY(parse_kernel(p, stage));
    for (;;) {
        if (is_word(p, "bare") && (takes & ESPER_TAKES_BARE) != 0 && !stage->bare) {
            stage->bare = true;
            ESPER_TRY(advance(p));
        } else if (is_word(p, "tied") && (takes & ESPER_TAKES_TIED) != 0 && !stage->tied) {
            stage->tied = true;
            ESPER_TRY(advance(p));
        } else if (is_word(p, "dropout") && (takes & ESPER_TAKES_DROPOUT) != 0 && stage->dropout == 0.0f) {
            ESPER_TRY(advance(p));
            ESPER_TRY(read_share(p, &stage->dropout));
        } else
            break;
    }
    if (p->next.kind == TOKEN_SEPARATOR || p->next.kind == TOKEN_END || p->next.kind == TOKEN_CLOSE)
        return ESPER_OK;
    if (p->next.kind == TOKEN_OPEN)
        return FAIL_AT(p, &p->next, "expected '|' or a new line before '['");
    return fail_argument(p, stage);
}

static esper_status find_kind(const parser *p, esper_host_stage_kind *kind_out)
{
    char word[WORD_CHARS], hint[ESPER_SUGGEST_TEXT_CHARS], all[192] = "";
    esper_suggest suggest;

    copy_word(p, word);
    esper_suggest_init(&suggest, word);
    for (int kind = 0; kind < ESPER_N_HOST_STAGES; kind++) {
        if (strcmp(kinds[kind].word, word) == 0) {
            *kind_out = (esper_host_stage_kind)kind;
            return ESPER_OK;
        }
        esper_suggest_offer(&suggest, kinds[kind].word);
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", kind > 0 ? ", " : "", kinds[kind].word);
    }
    if (suggest.best == NULL)
        return FAIL_AT(p, &p->next, "there is no stage '%s'. There are: %s", word, all);
    return FAIL_AT(p, &p->next, "there is no stage '%s'%s", word, esper_suggest_text(&suggest, "", hint));
}

/* Behind '['. */
static esper_status parse_group(parser *p, int group, const token *opened)
{
    int first = p->out->n;

    if (++p->depth > ESPER_HOST_DEPTH)
        return FAIL_AT(p, opened, "more than %d brackets in each other", ESPER_HOST_DEPTH);
    ESPER_TRY(parse_list(p, opened));
    p->depth--;
    p->out->stages[group].end = p->out->n;
    for (bool times = false;;) {
        if (p->next.kind == TOKEN_TIMES && !times) {
            if (p->next.a < 1 || p->next.a > ESPER_HOST_REPEATS)
                return FAIL_AT(p, &p->next, "copies: expected x1 to x%d", ESPER_HOST_REPEATS);
            p->out->stages[group].repeat = p->next.a;
            times = true;
            ESPER_TRY(advance(p));
        } else if (is_word(p, "residual") && !p->out->stages[group].residual) {
            p->out->stages[group].residual = true;
            ESPER_TRY(advance(p));
        } else
            break;
    }
    for (int i = first; i < p->out->n; i++) {
        const esper_host_stage *stage = &p->out->stages[i];

        if (stage->kind == ESPER_HOST_STAGE_SLOT && p->out->stages[group].residual)
            return esper_host_text_fail(
                ESPER_E_CONFIG, p->text, p->name, stage->at, stage->length,
                "a slot cannot stand inside a residual block, as the shortcut would go past it: "
                "put it behind the block");
        if (stage->kind == ESPER_HOST_STAGE_SLOT && stage->slot[0] != '\0' && p->out->stages[group].repeat > 1)
            return esper_host_text_fail(ESPER_E_CONFIG, p->text, p->name, stage->at, stage->length,
                                        "a slot that is repeated cannot have a name: leave out %s", stage->slot);
    }
    if (p->next.kind == TOKEN_SEPARATOR || p->next.kind == TOKEN_END || p->next.kind == TOKEN_CLOSE)
        return ESPER_OK;
    return FAIL_AT(p, &p->next, "behind brackets: expected xN, residual, '|' or a new line");
}

static esper_status parse_stage(parser *p)
{
    const token first = p->next;
    esper_host_stage *stage = NULL;
    int index = p->out->n;

    if (first.kind != TOKEN_OPEN && first.kind != TOKEN_WORD)
        return FAIL_AT(p, &first,
                       first.kind == TOKEN_END ? "expected a stage" : "expected the name of a stage, or '['");
    ESPER_TRY(push(p, &first, &stage));
    if (first.kind == TOKEN_OPEN) {
        stage->kind = ESPER_HOST_STAGE_GROUP;
        ESPER_TRY(advance(p));
        return parse_group(p, index, &first);
    }
    ESPER_TRY(find_kind(p, &stage->kind));
    ESPER_TRY(advance(p));
    return parse_arguments(p, stage);
}

/* Stages up to the bracket that closes, or the end of the text. */
static esper_status parse_list(parser *p, const token *opened)
{
    if (p->next.kind == TOKEN_SEPARATOR && !p->next.bar)
        ESPER_TRY(advance(p));
    if (p->next.kind == TOKEN_CLOSE && opened != NULL)
        return FAIL_AT(p, &p->next, "expected a stage between the brackets");
    for (;;) {
        ESPER_TRY(parse_stage(p));
        if (p->next.kind == TOKEN_SEPARATOR) {
            token separator = p->next;

            ESPER_TRY(advance(p));
            if (p->next.kind != TOKEN_END && p->next.kind != TOKEN_CLOSE)
                continue;
            if (separator.bar)
                return FAIL_AT(p, &separator, "expected a stage behind '|'");
        }
        if (p->next.kind == TOKEN_CLOSE && opened != NULL)
            return advance(p);
        if (p->next.kind == TOKEN_CLOSE)
            return FAIL_AT(p, &p->next, "no bracket was opened for this one");
        if (p->next.kind == TOKEN_END && opened != NULL)
            return FAIL_AT(p, opened, "this bracket is not closed");
        return ESPER_OK;
    }
}

/* ------------------------------------------------------------------------------------------------ the whole */

static bool is_head(const esper_host_stage *stage)
{
    return stage->kind == ESPER_HOST_STAGE_LINEAR && stage->size + stage->times + stage->part == 0;
}

static esper_status fail_stage(const parser *p, const esper_host_stage *stage, const char *why)
{
    return esper_host_text_fail(ESPER_E_CONFIG, p->text, p->name, stage->at, stage->length, "%s", why);
}

/* What can be said of the whole without data. */
static esper_status check_host(const parser *p)
{
    const esper_host_stage *stages = p->out->stages;
    int last = p->out->n - 1;

    for (int i = 0; i <= last; i++) {
        if (stages[i].kind == ESPER_HOST_STAGE_EMBED && i > 0)
            return fail_stage(p, &stages[i], "embed stands at the beginning");
        if (is_head(&stages[i]) && i < last)
            return fail_stage(p, &stages[i],
                              "linear without a width ends a host; with one, such as linear 64, it goes on");
        if (stages[i].kind != ESPER_HOST_STAGE_SLOT)
            continue;
        if (i == 0)
            return fail_stage(p, &stages[i], "a slot stands behind a stage");
        for (int k = 0; k < i; k++)
            if (stages[i].slot[0] != '\0' && strcmp(stages[k].slot, stages[i].slot) == 0)
                return fail_stage(p, &stages[i], "another slot has that name");
    }
    for (int i = 0, end = 0; i <= last; i++) { /* brackets that the last stage stands in */
        end = stages[i].kind == ESPER_HOST_STAGE_GROUP && stages[i].end > end ? stages[i].end : end;
        if (i == last && is_head(&stages[i]) && end > last)
            return fail_stage(p, &stages[i], "linear without a width ends a host, behind all brackets");
    }
    if (!is_head(&stages[last]))
        return fail_stage(p, &stages[last],
                          "a host ends in linear without a width: what the data has to be told apart gives it one");
    return ESPER_OK;
}

static esper_status check_blueprint(const parser *p)
{
    for (int i = 0; i < p->out->n; i++) {
        const esper_host_stage *stage = &p->out->stages[i];

        if (stage->kind == ESPER_HOST_STAGE_EMBED || stage->kind == ESPER_HOST_STAGE_SLOT ||
            stage->kind == ESPER_HOST_STAGE_MEAN || stage->kind == ESPER_HOST_STAGE_POOL || is_head(stage))
            return fail_stage(
                p, stage,
                "a blueprint keeps the shape of what it is put behind: it has no embed, mean, pool, slot or "
                "linear without a width");
    }
    return ESPER_OK;
}

esper_status esper_host_text_parse(const char *text, const char *name, esper_text_use use, esper_host_text *out)
{
    parser p = {.text = text, .name = name, .use = use, .out = out};

    out->n = 0;
    if (strlen(text) >= ESPER_HOST_SOURCE_CHARS)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: more than %d characters", name, ESPER_HOST_SOURCE_CHARS - 1);
    ESPER_TRY(advance(&p));
    if (p.next.kind == TOKEN_SEPARATOR && p.next.bar)
        return FAIL_AT(&p, &p.next, "expected a stage before '|'");
    if (p.next.kind == TOKEN_SEPARATOR)
        ESPER_TRY(advance(&p));
    if (p.next.kind == TOKEN_END)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: there is no stage in it", name);
    ESPER_TRY(parse_list(&p, NULL));
    return use == ESPER_TEXT_HOST ? check_host(&p) : check_blueprint(&p);
}

/* ------------------------------------------------------------------------------------------------ printing */

typedef struct printer {
    char  *text;
    size_t used;
} printer;

__attribute__((format(printf, 2, 3))) static void put(printer *out, const char *format, ...)
{
    size_t left = out->used < ESPER_HOST_CHARS ? ESPER_HOST_CHARS - out->used : 0;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(left > 0 ? out->text + out->used : NULL, left, format, args);
    va_end(args);
    assert(n >= 0);
    out->used += (size_t)n;
}

static void put_stage(printer *out, const esper_host_stage *stage)
{
    char number[ESPER_NUMBER_CHARS];

    put(out, "%s", kinds[stage->kind].word);
    if (stage->size > 0)
        put(out, " %d", stage->size);
    if (stage->times > 1)
        put(out, " %dw", stage->times);
    else if (stage->times == 1)
        put(out, " w");
    if (stage->part > 0)
        put(out, " w/%d", stage->part);
    if (stage->kind == ESPER_HOST_STAGE_CONV && stage->kernel != 3)
        put(out, " %dx%d", stage->kernel, stage->kernel);
    if (stage->slot[0] != '\0')
        put(out, " %s", stage->slot);
    if (stage->bare)
        put(out, " bare");
    if (stage->tied)
        put(out, " tied");
    if (stage->dropout > 0.0f) {
        esper_number_write_float(stage->dropout, number);
        put(out, stage->kind == ESPER_HOST_STAGE_DROPOUT ? " %s" : " dropout %s", number);
    }
}

static void put_list(printer *out, const esper_host_stage *stages, int first, int end)
{
    for (int i = first; i < end; i++) {
        if (i > first)
            put(out, " | ");
        if (stages[i].kind != ESPER_HOST_STAGE_GROUP) {
            put_stage(out, &stages[i]);
            continue;
        }
        put(out, "[");
        put_list(out, stages, i + 1, stages[i].end);
        put(out, "]");
        if (stages[i].repeat > 1)
            put(out, "x%d", stages[i].repeat);
        if (stages[i].residual)
            put(out, " residual");
        i = stages[i].end - 1;
    }
}

esper_status esper_host_text_print(const esper_host_text *host, char text[ESPER_HOST_CHARS])
{
    char whole[ESPER_HOST_CHARS];
    printer out = {.text = whole};

    put_list(&out, host->stages, 0, host->n);
    if (out.used >= ESPER_HOST_CHARS)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "the host takes %zu characters on one line, and %d at most are kept: repeat with "
                          "[...]xN what is alike",
                          out.used, ESPER_HOST_CHARS - 1);
    memcpy(text, whole, out.used + 1);
    return ESPER_OK;
}

bool esper_host_text_equal(const esper_host_text *a, const esper_host_text *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        const esper_host_stage *s = &a->stages[i], *t = &b->stages[i];

        if (s->kind != t->kind || s->size != t->size || s->times != t->times || s->part != t->part ||
            s->kernel != t->kernel || s->dropout != t->dropout || s->bare != t->bare || s->tied != t->tied ||
            strcmp(s->slot, t->slot) != 0 || s->end != t->end || s->repeat != t->repeat || s->residual != t->residual)
            return false;
    }
    return true;
}

void esper_host_text_layers(const char *text, int *heads_out, float *dropout_out)
{
    esper_host_text host;

    *heads_out = 1;
    *dropout_out = 0.0f;
    if (esper_host_text_parse(text, "host", ESPER_TEXT_HOST, &host) != ESPER_OK)
        return; /* who builds it says why */
    for (int i = 0; i < host.n; i++)
        if (host.stages[i].kind == ESPER_HOST_STAGE_LAYER || host.stages[i].kind == ESPER_HOST_STAGE_ATTENTION) {
            *heads_out = host.stages[i].size;
            *dropout_out = host.stages[i].dropout;
            return;
        }
}

/* The least number that all heads divide; 1 where there are none. */
static int64_t common_multiple(const esper_host_text *host)
{
    int64_t multiple = 1;

    for (int i = 0; i < host->n; i++) {
        int64_t a = multiple, b = host->stages[i].size;

        if (host->stages[i].kind != ESPER_HOST_STAGE_LAYER && host->stages[i].kind != ESPER_HOST_STAGE_ATTENTION)
            continue;
        while (b != 0) {
            int64_t rest = a % b;

            a = b;
            b = rest;
        }
        multiple = multiple / a * host->stages[i].size;
        if (multiple > ESPER_HOST_MOST)
            return ESPER_HOST_MOST;
    }
    return multiple;
}

esper_status esper_host_text_scale(const char *text, int eighths, char scaled[ESPER_HOST_CHARS])
{
    esper_host_text host;
    int64_t unit;

    ESPER_TRY(esper_host_text_parse(text, "host", ESPER_TEXT_HOST, &host));
    unit = common_multiple(&host);
    for (int i = 0; i < host.n; i++) {
        esper_host_stage *stage = &host.stages[i];
        int64_t size = ((int64_t)stage->size * eighths + 4) / 8;

        if (stage->size == 0 || (stage->kind != ESPER_HOST_STAGE_CONV && stage->kind != ESPER_HOST_STAGE_LINEAR &&
                                 stage->kind != ESPER_HOST_STAGE_EMBED))
            continue;
        size = (size + unit - 1) / unit * unit;
        if (size > ESPER_HOST_MOST)
            return ESPER_FAIL(ESPER_E_CONFIG, "host: %d/8 of it is wider than %d", eighths, ESPER_HOST_MOST);
        stage->size = (int)(size > 0 ? size : unit);
    }
    return esper_host_text_print(&host, scaled);
}

/* ------------------------------------------------------------------------------------------------ presets */

static const esper_host_preset presets[] = {
    {"cnn", "conv 8 | pool | conv 16 | pool | conv 32 | pool | mean | linear",
     "images; the host of `fashion` and `synth`"},
    {"resnet",
     "conv 16 | [[conv 16]x2] residual | pool | [[conv 32]x2] residual | pool | [[conv 64]x2] residual | mean | linear",
     "images; a small residual network, with a slot behind every block and pool"},
    {"transformer", "embed 128 | [layer 4]x4 | norm | linear tied", "text; a slot behind every layer"},
    {"mlp", "[linear 64]x2 | linear", "tables; a slot behind every layer"},
    {"resmlp", "linear 64 | [linear 64 | linear 64 bare]x2 residual | linear", "tables; with residual blocks"},
    {NULL, NULL, NULL},
};

const esper_host_preset *esper_host_presets(void)
{
    return presets;
}

static esper_status read_file(const char *path, char text[ESPER_HOST_CHARS])
{
    esper_host_text *host = esper_mem_alloc(sizeof(*host));
    esper_status status;
    char *source = NULL;
    size_t n;

    if (host == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    status = esper_file_read(path, ESPER_HOST_SOURCE_CHARS, &source, &n);
    if (status == ESPER_OK && strlen(source) != n)
        status = ESPER_FAIL(ESPER_E_CONFIG, "%s: not a text: a byte of it is 0", path);
    if (status == ESPER_OK)
        status = esper_host_text_parse(source, path, ESPER_TEXT_HOST, host);
    if (status == ESPER_OK)
        status = esper_host_text_print(host, text);
    esper_mem_free(source);
    esper_mem_free(host);
    return status;
}

/* A single word that is neither a preset nor a file is a stage, or a mistake that nothing else could be said about. */
static esper_status check_word(const char *given)
{
    char names[128] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, given);
    for (int i = 0; presets[i].name != NULL; i++) {
        esper_suggest_offer(&suggest, presets[i].name);
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    for (int kind = 0; kind < ESPER_N_HOST_STAGES; kind++)
        if (strcmp(kinds[kind].word, given) == 0)
            return ESPER_OK;
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "host: '%.80s' is neither a file nor a host's name%s There are %s; a text is such as "
                      "'conv 16 | pool | mean | linear'",
                      given, suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", names);
}

esper_status esper_host_text_resolve(const char *given, char text[ESPER_HOST_CHARS])
{
    esper_host_text *host;
    struct stat found;
    esper_status status;
    bool is_word = given[strcspn(given, " |[]\n")] == '\0';

    for (int i = 0; presets[i].name != NULL; i++)
        if (strcmp(presets[i].name, given) == 0)
            given = presets[i].text, is_word = false;
    if (is_word && stat(given, &found) == 0)
        return read_file(given, text);
    if (is_word)
        ESPER_TRY(check_word(given));
    host = esper_mem_alloc(sizeof(*host));
    if (host == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host");
    status = esper_host_text_parse(given, "host", ESPER_TEXT_HOST, host);
    if (status == ESPER_OK)
        status = esper_host_text_print(host, text);
    esper_mem_free(host);
    return status;
}
