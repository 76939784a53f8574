/* The end of a run that grew: what it was good for, and how every seed lived. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ui/grow_view.h"
#include "ui/grow_words.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum {
    CELL_CHARS = 14,
    GAIN_COLUMN = 61,  /* of a seed's line: what its trial said, and then how much hangs on it */
    DEPENDENCE_COLUMN = 98,
    SEED_COLUMNS = 130, /* of the whole line; then comes its reason */
    REASON_INDENT = 10,
    MOST_REASON = 160,
};

typedef const char *(*figure)(double value, char text[ESPER_TEXT_CHARS]);

static const char *as_count(double value, char text[ESPER_TEXT_CHARS])
{
    return esper_text_count((int64_t)value, text);
}

/* A figure of the static host, of the grown one, and how they differ: by points of accuracy, or by a factor. */
static void print_row(FILE *stream, bool has_static, const char *name, figure show, double fixed, double grown)
{
    bool known = isfinite(fixed) && isfinite(grown), is_share = show != esper_text_percent;
    char text[ESPER_TEXT_CHARS];

    fprintf(stream, "  %-16s", name);
    if (has_static)
        fprintf(stream, "%*s", CELL_CHARS, isfinite(fixed) ? show(fixed, text) : "-");
    fprintf(stream, "%*s", CELL_CHARS, isfinite(grown) ? show(grown, text) : "-");
    if (known && (!is_share || fixed > 0.0))
        snprintf(text, sizeof(text), is_share ? "x %.2f" : "%+.2f", is_share ? grown / fixed : grown - fixed);
    else
        snprintf(text, sizeof(text), "-"); /* there is nothing to compare with */
    if (has_static)
        fprintf(stream, "%*s", CELL_CHARS, text);
    fprintf(stream, "\n");
}

static void print_table(FILE *stream, const esper_growth_closing *closing)
{
    const esper_growth_side *fixed = &closing->fixed, *grown = &closing->grown;
    bool both = closing->has_static;

    fprintf(stream, "  %-16s%*s%*s%*s\n", "", both ? CELL_CHARS : 0, both ? "static host" : "", CELL_CHARS,
            "grown host", both ? CELL_CHARS : 0, both ? "difference" : "");
    print_row(stream, both, "test accuracy", esper_text_percent, fixed->acc_test, grown->acc_test);
    print_row(stream, both, "parameters", as_count, (double)fixed->params, (double)grown->params);
    print_row(stream, both, "FLOPs per sample", esper_text_flops, fixed->flops_per_sample, grown->flops_per_sample);
    print_row(stream, both, "training FLOPs", esper_text_flops, fixed->flops_training, grown->flops_training);
    if (grown->flops_trials > 0.0)
        print_row(stream, both, "  part of trials", esper_text_percent, (double)NAN,
                  100.0 * grown->flops_trials / grown->flops_training);
    print_row(stream, both, "time", esper_text_duration, fixed->seconds, grown->seconds);
}

/* "12 at 8 %": the epoch, and the share of the run that was spent then. */
static const char *birth_of(const esper_growth_seed *seed, char text[ESPER_TEXT_CHARS])
{
    int n = snprintf(text, ESPER_TEXT_CHARS, seed->germinated > 0 ? "%d" : "-", seed->germinated);

    if (isfinite(seed->share))
        snprintf(text + n, ESPER_TEXT_CHARS - (size_t)n, " at %.0f %%", 100.0 * seed->share);
    return text;
}

/* Behind what is there, or below it where the line would wrap. */
static void print_behind(FILE *stream, const char *text, int at, int *column)
{
    int room = esper_terminal_look(stream).room, n_text = (int)strlen(text);
    int gap = at > *column && at + n_text <= room ? at - *column : 2;

    if (*column + gap + n_text <= room) {
        *column += fprintf(stream, "%*s%s", gap, "", text);
        return;
    }
    fprintf(stream, "\n");
    for (size_t n; *text != '\0'; text += n + strspn(text + n, " ")) {
        n = esper_terminal_fold(text, room - REASON_INDENT);
        *column = fprintf(stream, "%*s%.*s", REASON_INDENT, "", (int)n, text);
        if (text[n] != '\0')
            fprintf(stream, "\n");
    }
}

static void print_seed(FILE *stream, const esper_growth_seed *seed)
{
    char count[ESPER_TEXT_CHARS], born[ESPER_TEXT_CHARS], ended[ESPER_TEXT_CHARS] = "";
    const char *stage = esper_stage_name(seed->stage);
    char value[ESPER_WORDS_CHARS], words[ESPER_WORDS_CHARS];
    esper_line reason;
    int column;

    if (seed->ended > 0) /* "fossilized 45", or "training" while it goes on */
        snprintf(ended, sizeof(ended), " %d", seed->ended);
    column = fprintf(stream, "  %-6s %-14s %8s %11s  %.12s%s", seed->slot, seed->blueprint,
                     esper_text_count(seed->params, count), birth_of(seed, born), stage != NULL ? stage : "?", ended);
    if (seed->n_candidates > 0) {
        esper_words_gain(seed->gain, seed->gain_error, seed->n_candidates, value);
        snprintf(words, sizeof(words), "gain %.64s of %d", value, seed->n_candidates);
        print_behind(stream, words, GAIN_COLUMN, &column);
    }
    esper_words_dependence(seed->dependence, seed->dependence_low, seed->dependence_high, value);
    snprintf(words, sizeof(words), "dependence %.64s", value);
    print_behind(stream, words, seed->n_candidates > 0 ? DEPENDENCE_COLUMN : GAIN_COLUMN, &column);
    esper_line_init(&reason, MOST_REASON, false); /* words of others: nothing in them may command the terminal */
    esper_line_put(&reason, "%s", seed->reason != NULL ? seed->reason : "");
    if (reason.used > 0)
        print_behind(stream, reason.text, SEED_COLUMNS, &column);
    fprintf(stream, "\n");
}

void esper_grow_view_closing(FILE *stream, const esper_growth_closing *closing)
{
    bool tried = false;
    esper_line why;

    assert(closing->n_seeds == 0 || closing->seeds != NULL);
    print_table(stream, closing);
    if (closing->n_seeds == 0) {
        esper_line_init(&why, MOST_REASON, false);
        esper_line_put(&why, "%s", closing->why_none != NULL ? closing->why_none : "");
        fprintf(stream, "\n  no seed germinated%s%s\n", why.used > 0 ? ": " : "", why.text);
    } else
        fprintf(stream, "\n  %-6s %-14s %8s %11s  end\n", "slot", "seed", "params", "born");
    for (int i = 0; i < closing->n_seeds; i++)
        print_seed(stream, &closing->seeds[i]);
    for (int i = 0; i < closing->n_seeds; i++)
        tried = tried || closing->seeds[i].n_candidates > 0;
    if (closing->n_seeds > 0)
        fprintf(stream, "\n");
    if (tried)
        esper_terminal_print(stream,
                             "  gain: validation loss (nats) that its fork won over the one that got nothing, best "
                             "of so many tried\n");
    if (closing->n_seeds > 0)
        esper_terminal_print(stream, "  born: its epoch, and the run's FLOPs spent by then, trials included\n");
    if (closing->n_seeds > 0)
        esper_terminal_print(stream,
                             "  dependence: accuracy (points) that the network loses when the seed is taken away\n");
    fflush(stream);
}
