/* The end of a run that grew: what it was good for, and how every seed lived. */
#include <math.h>
#include <string.h>

#include "ui/grow_view.h"
#include "ui/grow_words.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum {
    CELL_CHARS = 14,
    GAIN_COLUMN = 61,  /* of a seed's line: what it contributes */
    SEED_COLUMNS = 80, /* of the whole line; then comes its reason */
    REASON_INDENT = 10,
    MOST_REASON = 160,
};

typedef const char *(*figure)(double value, char text[ESPER_TEXT_CHARS]);

static const char *as_percent(double value, char text[ESPER_TEXT_CHARS])
{
    snprintf(text, ESPER_TEXT_CHARS, isfinite(value) ? "%.2f %%" : "-", value);
    return text;
}

static const char *as_count(double value, char text[ESPER_TEXT_CHARS])
{
    return isfinite(value) ? esper_text_count((int64_t)value, text) : "-";
}

static const char *as_flops(double value, char text[ESPER_TEXT_CHARS])
{
    return isfinite(value) ? esper_text_flops(value, text) : "-";
}

static const char *as_duration(double value, char text[ESPER_TEXT_CHARS])
{
    return isfinite(value) ? esper_text_duration(value, text) : "-";
}

/* What is left out where there is nothing to compare with. */
static void print_difference(FILE *stream, double fixed, double grown, bool is_share)
{
    char text[ESPER_TEXT_CHARS];

    if (!isfinite(fixed) || !isfinite(grown) || (is_share && fixed <= 0.0))
        snprintf(text, sizeof(text), "-");
    else
        snprintf(text, sizeof(text), is_share ? "x %.2f" : "%+.2f", is_share ? grown / fixed : grown - fixed);
    fprintf(stream, "%*s", CELL_CHARS, text);
}

static void print_row(FILE *stream, const esper_growth_closing *closing, const char *name, figure show,
                      const double values[2]) /* of the static and of the grown host */
{
    char text[ESPER_TEXT_CHARS];

    fprintf(stream, "  %-16s", name);
    if (closing->has_static)
        fprintf(stream, "%*s", CELL_CHARS, show(values[0], text));
    fprintf(stream, "%*s", CELL_CHARS, show(values[1], text));
    if (closing->has_static)
        print_difference(stream, values[0], values[1], show != as_percent);
    fprintf(stream, "\n");
}

static void print_table(FILE *stream, const esper_growth_closing *closing)
{
    const esper_growth_side *fixed = &closing->fixed, *grown = &closing->grown;

    fprintf(stream, "  %-16s", "");
    if (closing->has_static)
        fprintf(stream, "%*s", CELL_CHARS, "static host");
    fprintf(stream, "%*s", CELL_CHARS, "grown host");
    if (closing->has_static)
        fprintf(stream, "%*s", CELL_CHARS, "difference");
    fprintf(stream, "\n");
    print_row(stream, closing, "test accuracy", as_percent, (double[]){fixed->acc_test, grown->acc_test});
    print_row(stream, closing, "parameters", as_count, (double[]){(double)fixed->params, (double)grown->params});
    print_row(stream, closing, "FLOPs per sample", as_flops,
              (double[]){fixed->flops_per_sample, grown->flops_per_sample});
    print_row(stream, closing, "training FLOPs", as_flops, (double[]){fixed->flops_training, grown->flops_training});
    print_row(stream, closing, "time", as_duration, (double[]){fixed->seconds, grown->seconds});
}

/* "12", or "-" for never. */
static const char *epoch_of(int epoch, char text[ESPER_TEXT_CHARS])
{
    snprintf(text, ESPER_TEXT_CHARS, epoch > 0 ? "%d" : "-", epoch);
    return text;
}

/* "fossilized 45", or "training" while it goes on. */
static const char *end_of(const esper_growth_seed *seed, char text[ESPER_TEXT_CHARS])
{
    const char *stage = esper_stage_name(seed->stage);

    if (seed->ended > 0)
        snprintf(text, ESPER_TEXT_CHARS, "%.12s %d", stage != NULL ? stage : "?", seed->ended);
    else
        snprintf(text, ESPER_TEXT_CHARS, "%.12s", stage != NULL ? stage : "?");
    return text;
}

/* Behind what is there, or below it where the line would wrap. */
static void print_behind(FILE *stream, const char *text, int at, int *column)
{
    int gap = at > *column ? at - *column : 2, room = esper_terminal_look(stream).room;

    if (*column + gap + (int)strlen(text) <= room) {
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
    char count[ESPER_TEXT_CHARS], a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS];
    char gain[ESPER_WORDS_CHARS];
    esper_line reason;
    int column;

    esper_words_contribution(seed->contribution, seed->contribution_low, seed->contribution_high, gain);
    column = fprintf(stream, "  %-6s %-14s %8s %4s %7s  %s", seed->slot, seed->blueprint,
                     esper_text_count(seed->params, count), epoch_of(seed->germinated, a), epoch_of(seed->blended, b),
                     end_of(seed, c));
    print_behind(stream, gain, GAIN_COLUMN, &column);
    esper_line_init(&reason, MOST_REASON, false); /* words of others: nothing in them may command the terminal */
    esper_line_put(&reason, "%s", seed->reason != NULL ? seed->reason : "");
    if (reason.used > 0)
        print_behind(stream, reason.text, SEED_COLUMNS, &column);
    fprintf(stream, "\n");
}

static void print_lineage(FILE *stream, const esper_growth_closing *closing)
{
    if (closing->n_seeds == 0) {
        fprintf(stream, "  no seed germinated\n");
        return;
    }
    fprintf(stream, "  %-6s %-14s %8s %4s %7s  %-13s %s\n", "slot", "seed", "params", "born", "blended", "end",
            "contribution");
    for (int i = 0; i < closing->n_seeds; i++)
        print_seed(stream, &closing->seeds[i]);
}

void esper_grow_view_closing(FILE *stream, const esper_growth_closing *closing)
{
    print_table(stream, closing);
    fprintf(stream, "\n");
    print_lineage(stream, closing);
    fflush(stream);
}
