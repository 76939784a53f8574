/* The live view of growing. A block is composed whole, line by line, and written at once. */
#include "ui/grow_view.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "ui/grow_words.h"
#include "ui/spark.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum {
    BAR_CELLS = 24,
    NARROW_BAR_CELLS = 10,
    NARROW = 100, /* columns; below it the bar is shorter */
    ALPHA_CELLS = 6,
    FRAME_BYTES = 16384,
    FOLD_INDENT = 12, /* of what does not fit in the first line of a note */
    LEAST_FOLD = 40,
    LEAST_ROOM = 39, /* of a window for the block: 40 columns, and 7 lines, of which the block takes 6 */
    LEAST_ROWS = 7,
    NETWORK_LINES = 3, /* stream, names, curve */
};

/* Where the cells of a slot's line begin. */
typedef struct layout {
    int blueprint, stage, alpha, epochs, params, merit, gate;
    bool has_bar; /* alpha has one */
} layout;

/* In 80 columns there is room for a dependence with its bounds, and none for the gate, which decisions name, too. */
static const layout wide = {8, 22, 34, 48, 53, 64, 82, true}, narrow = {8, 22, 33, 39, 44, 55, 0, false};

static const double bar_interval_s = 0.1, plain_interval_s = 15.0;

void esper_grow_view_init(esper_grow_view *view, esper_config_progress kind, FILE *stream)
{
    *view = (esper_grow_view){.adapts = kind == ESPER_CONFIG_PROGRESS_AUTO};
    esper_live_init(&view->live, kind, stream);
    view->colour = view->live.bar && view->live.terminal.colour;
}

/* Whether it is the block that is shown now. Windows change while a run goes on: in one that is too small there are plain lines,
 * until it is made larger. */
static bool shows_block(esper_grow_view *view)
{
    esper_terminal_measure(&view->live.terminal);
    if (!view->live.bar || !view->adapts)
        return view->live.bar;
    return view->live.terminal.room >= LEAST_ROOM && view->live.terminal.rows >= LEAST_ROWS;
}

/* ------------------------------------------------------------------------------------------------ figures */

static const char *loss(double value, char text[ESPER_TEXT_CHARS])
{
    return isnan(value) ? "-" : esper_text_loss(value, text); /* not measured */
}

/* "12/40", "12/~40" where that may change, or "12" with an open end. */
static const char *epochs(const esper_growth_view *growth, char text[ESPER_TEXT_CHARS])
{
    if (growth->max_epochs > 0)
        snprintf(text, ESPER_TEXT_CHARS, "%u/%s%u", growth->epoch, growth->foretold ? "~" : "", growth->max_epochs);
    else
        snprintf(text, ESPER_TEXT_CHARS, "%u", growth->epoch);
    return text;
}

static const char *speed(double samples_per_s, char text[ESPER_TEXT_CHARS])
{
    return samples_per_s > 0.0 && samples_per_s < 1e15 ? esper_text_count((int64_t)samples_per_s, text) : "-";
}

static const char *doing(const esper_growth_view *growth)
{
    return growth->doing != NULL ? growth->doing : "training";
}

/* ------------------------------------------------------------------------------------------------ the block */

/* A block under way: text that is ready to be written, its lines so far, and the present one. */
typedef struct frame {
    const esper_grow_view *view;
    char                   text[FRAME_BYTES];
    size_t                 used;
    int                    n_lines, most_lines;
    int                    columns[ESPER_GROW_MAX_LINES];
    esper_line             line;
} frame;

static void frame_flush(frame *out)
{
    fwrite(out->text, 1, out->used, out->view->live.stream);
    out->used = 0;
}

static void frame_add(frame *out, const char *text)
{
    size_t n = strlen(text);

    assert(n <= sizeof(out->text));
    if (n > sizeof(out->text) - out->used)
        frame_flush(out);
    memcpy(out->text + out->used, text, n);
    out->used += n;
}

static esper_line *begin_line(frame *out)
{
    esper_line_init(&out->line, out->view->live.terminal.room, out->view->colour);
    return &out->line;
}

static void end_line(frame *out)
{
    if (out->n_lines == out->most_lines)
        return;
    frame_add(out, out->n_lines > 0 ? "\n" : "");
    frame_add(out, out->line.text);
    frame_add(out, "\033[K");
    out->columns[out->n_lines++] = out->line.columns;
}

static void draw_head(const esper_growth_view *growth, esper_line *line)
{
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], cells[BAR_CELLS + 1];
    double part = growth->part > 0.0 ? growth->part < 1.0 ? growth->part : 1.0 : 0.0;

    esper_terminal_bar(part, line->room < NARROW ? NARROW_BAR_CELLS : BAR_CELLS, cells);
    esper_line_put(line, " %7s  [%s] %3.0f %%  ", epochs(growth, a), cells, 100.0 * part);
    if (growth->doing != NULL && strcmp(growth->doing, "training") != 0)
        esper_line_put(line, "%s  ", growth->doing);
    esper_line_put(line, "%s", line->room < NARROW ? "" : "valid ");
    esper_line_colour(line, "1");
    esper_line_put(line, "%s", esper_text_percent(growth->acc_valid, b));
    esper_line_colour(line, "0");
    esper_line_put_whole(line, "  best %s", esper_text_percent(growth->acc_best, c));
    esper_line_put_whole(line, "  %s params", esper_text_count(growth->params_total, a));
    if (growth->params_total != growth->params_host)
        esper_line_put_whole(line, " (host %s)", esper_text_count(growth->params_host, b));
}

static void draw_figures(const esper_growth_view *growth, esper_line *line)
{
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];

    esper_line_put_whole(line, "  spent %.0f %%", 100.0 * growth->share);
    esper_line_put_whole(line, "  %s left", esper_text_duration(growth->seconds_left, a));
    esper_line_put_whole(line, "  loss %s", loss(growth->loss_train, a));
    esper_line_put_whole(line, "  accuracy %s", esper_text_percent(growth->acc_train, b));
    esper_line_put_whole(line, "  valid loss %s", loss(growth->loss_valid, a));
    esper_line_put_whole(line, "  %s/s", speed(growth->samples_per_s, b));
    if (!isnan(growth->lr))
        esper_line_put_whole(line, "  lr %.3g", growth->lr);
    if (growth->n_rollbacks > 0)
        esper_line_put_whole(line, "  %llu rollback%s", (unsigned long long)growth->n_rollbacks,
                             growth->n_rollbacks == 1 ? "" : "s");
    if (growth->n_skips > 0)
        esper_line_put_whole(line, "  %llu skip%s", (unsigned long long)growth->n_skips,
                             growth->n_skips == 1 ? "" : "s");
}

static const layout *layout_of(const esper_line *line)
{
    return line->room < wide.gate ? &narrow : &wide;
}

static void draw_titles(esper_line *line)
{
    const layout *at = layout_of(line);
    const struct title {
        int         column;
        const char *text;
    } titles[] = {{at->blueprint, "blueprint"}, {at->stage, "stage"},      {at->alpha, "alpha"},   {at->epochs, "  ep"},
                  {at->params, "    params"},   {at->merit, "dependence"}, {at->gate, "last gate"}};

    esper_line_colour(line, "2");
    esper_line_put(line, "  slot");
    for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]) && titles[i].column > 0; i++) {
        esper_line_tab(line, titles[i].column);
        esper_line_put(line, "%s", titles[i].text);
    }
    esper_line_colour(line, "0");
}

/* How the network depends on a seed, with bounds where there is room; or, while it trains aside, what it would add. */
static void draw_merit(const esper_growth_slot *slot, esper_line *line)
{
    char words[ESPER_WORDS_CHARS];
    int mean;

    if (isnan(slot->dependence) && !isnan(slot->would_add)) {
        esper_line_put_whole(line, "would add %+.2f", slot->would_add);
        return;
    }
    esper_words_dependence(slot->dependence, slot->dependence_low, slot->dependence_high, words);
    mean = (int)strcspn(words, " ");
    esper_line_put_whole(line, "%.*s", mean, words);
    esper_line_put_whole(line, "%s", words + mean);
}

static void draw_seed(const esper_growth_slot *growth, esper_line *line)
{
    const esper_slot *slot = growth->slot;
    const layout *at = layout_of(line);
    char count[ESPER_TEXT_CHARS], words[ESPER_WORDS_CHARS];
    double alpha = slot->alpha.value;
    int filled = alpha > 0.0 ? (int)((alpha < 1.0 ? alpha : 1.0) * ALPHA_CELLS + 0.5) : 0;

    esper_line_tab(line, at->alpha);
    if (at->has_bar) /* "[===   ] 0.43": unlike a run's progress, alpha rests */
        esper_line_put(line, "[%.*s%*s] ", filled, "======", ALPHA_CELLS - filled, "");
    esper_line_put(line, "%.2f", alpha);
    esper_line_tab(line, at->epochs);
    esper_line_put(line, "%4d", (int)slot->epochs_in_stage);
    esper_line_tab(line, at->params);
    esper_line_put(line, "%10s", esper_text_count(slot->seed_params + slot->gate_params, count));
    esper_line_tab(line, at->merit);
    draw_merit(growth, line);
    if (at->gate == 0)
        return;
    esper_line_tab(line, at->gate);
    esper_line_put(line, "%s", esper_words_gate(&growth->gate, words));
    if (slot->stage == ESPER_STAGE_TRAINING && !isnan(growth->gradient_ratio))
        esper_line_put(line, "  gradient ratio %.2g", growth->gradient_ratio);
}

static void draw_slot(const esper_growth_slot *growth, esper_line *line)
{
    const esper_slot *slot = growth->slot;
    const char *stage = esper_stage_name(slot->stage);
    int cooldown = esper_slot_cooldown(slot);

    esper_line_put(line, "  %s", slot->id);
    esper_line_tab(line, layout_of(line)->blueprint);
    esper_line_put(line, "%s", slot->blueprint[0] != '\0' ? slot->blueprint : "-");
    esper_line_tab(line, layout_of(line)->stage);
    esper_line_colour(line, esper_drawing_colour(slot->stage));
    esper_line_put(line, "%s", slot->stage == ESPER_STAGE_DORMANT ? "empty" : stage != NULL ? stage : "?");
    esper_line_colour(line, "0");
    if (esper_stage_has_seed(slot->stage))
        draw_seed(growth, line);
    else if (cooldown > 0)
        esper_line_put(line, ", free in %d epoch%s%s%s", cooldown, cooldown == 1 ? "" : "s",
                       slot->prune_reason[0] != '\0' ? ": " : "", slot->prune_reason);
}

static void draw_decision(const esper_growth_decision *decision, esper_line *line)
{
    char words[ESPER_WORDS_CHARS];

    esper_words_decision(decision, words);
    if (decision->refused)
        esper_line_colour(line, "31");
    esper_line_put(line, "  %s", words[0] != '\0' ? words : "no decision yet");
    if (decision->refused)
        esper_line_colour(line, "0");
}

/* To the first character of the block. A terminal that became narrower has wrapped its lines. */
static void go_to_top(const esper_grow_view *view, char text[ESPER_TEXT_CHARS])
{
    int rows = 0;

    for (int i = 0; i < view->n_lines; i++)
        rows += 1 + (view->columns[i] > 0 ? (view->columns[i] - 1) / (view->live.terminal.room + 1) : 0);
    if (rows > 1)
        snprintf(text, ESPER_TEXT_CHARS, "\r\033[%dA", rows - 1);
    else
        snprintf(text, ESPER_TEXT_CHARS, "\r");
}

/* The network, and how its accuracy has come to be; where there are lines enough for them beside the slots. */
static void add_network(esper_grow_view *view, const esper_growth_view *growth, frame *out)
{
    bool utf8 = view->live.terminal.utf8;
    esper_drawing drawing;
    esper_line names;

    if (view->drawing.n == 0 || out->most_lines < out->n_lines + growth->n_slots + NETWORK_LINES + 2)
        return;
    drawing = view->drawing;
    for (int i = 0; i < growth->n_slots; i++) {
        const esper_slot *slot = growth->slots[i].slot;

        esper_drawing_set(&drawing, slot->id, slot->stage, slot->alpha.value, slot->blueprint,
                          slot->seed_params + slot->gate_params);
    }
    esper_drawing_drop_closed(&drawing);
    esper_line_init(&names, view->live.terminal.room, view->colour);
    esper_line_put(begin_line(out), "  ");
    esper_line_put(&names, "  ");
    esper_drawing_lines(&drawing, utf8, &out->line, &names);
    end_line(out);
    out->line = names;
    end_line(out);
    if (view->n_curve < 2)
        return;
    esper_line_put(begin_line(out), "  valid ");
    esper_spark_line(view->curve, view->n_curve, utf8, &out->line);
    end_line(out);
}

void esper_grow_view_network(esper_grow_view *view, const esper_net *plain)
{
    esper_drawing_of_host(plain, &view->drawing);
}

/* The oldest ones are thinned out when there is no more room: the curve stays that of the whole run. */
static void add_point(esper_grow_view *view, double value)
{
    if (view->n_curve == ESPER_GROW_MAX_CURVE) {
        for (int i = 0; i < ESPER_GROW_MAX_CURVE / 2; i++)
            view->curve[i] = view->curve[2 * i + 1];
        view->n_curve = ESPER_GROW_MAX_CURVE / 2;
    }
    view->curve[view->n_curve++] = value;
}

static int count_seeds(const esper_growth_view *growth)
{
    int n = 0;

    for (int i = 0; i < growth->n_slots; i++)
        n += esper_stage_has_seed(growth->slots[i].slot->stage);
    return n;
}

/* As many slots as there are lines for. Those without a seed are left out first. */
static void add_slots(const esper_growth_view *growth, frame *out)
{
    int left = out->most_lines - out->n_lines - 1; /* one for the decision */
    int n_hidden = growth->n_slots > left ? growth->n_slots - left + 1 : 0; /* one for the line that says so */
    int n_empty = growth->n_slots - count_seeds(growth);
    int empties = n_hidden < n_empty ? n_hidden : n_empty, seeds = n_hidden - empties; /* still to be left out */

    if (left <= 0)
        return;
    for (int i = 0; i < growth->n_slots; i++) {
        int *to_hide = esper_stage_has_seed(growth->slots[i].slot->stage) ? &seeds : &empties;

        if (*to_hide > 0) {
            --*to_hide;
            continue;
        }
        draw_slot(&growth->slots[i], begin_line(out));
        end_line(out);
    }
    if (n_hidden == 0)
        return;
    esper_line_put(begin_line(out), "  and %d more slots", n_hidden);
    end_line(out);
}

static void draw_block(esper_grow_view *view, const esper_growth_view *growth)
{
    int rows = view->live.terminal.rows; /* 0: no screen */
    frame out = {.view = view};
    char top[ESPER_TEXT_CHARS];

    out.most_lines = rows <= 0 || rows > ESPER_GROW_MAX_LINES ? ESPER_GROW_MAX_LINES : rows > 1 ? rows - 1 : 1;
    go_to_top(view, top);
    frame_add(&out, top);
    draw_head(growth, begin_line(&out));
    end_line(&out);
    draw_figures(growth, begin_line(&out));
    end_line(&out);
    add_network(view, growth, &out);
    if (growth->n_slots > 0) {
        draw_titles(begin_line(&out));
        end_line(&out);
    }
    add_slots(growth, &out);
    draw_decision(&growth->decision, begin_line(&out));
    end_line(&out);
    frame_add(&out, "\033[J");
    frame_flush(&out);
    fflush(view->live.stream);
    view->n_lines = out.n_lines;
    memcpy(view->columns, out.columns, sizeof(view->columns));
}

void esper_grow_view_clear(esper_grow_view *view)
{
    char top[ESPER_TEXT_CHARS];

    if (view->n_lines > 0) {
        esper_terminal_measure(&view->live.terminal);
        go_to_top(view, top);
        fprintf(view->live.stream, "%s\033[J", top);
    }
    view->n_lines = 0;
    fflush(view->live.stream);
}

/* ------------------------------------------------------------------------------------------------ public */

bool esper_grow_view_is_due(esper_grow_view *view, const char *doing_now)
{
    bool block = shows_block(view), changed = strcmp(view->last_doing, doing_now) != 0;
    double waited = esper_clock_seconds() - view->live.last_shown;

    if (block) /* a window that has been enlarged gets it at once */
        return changed || view->n_lines == 0 || waited >= bar_interval_s;
    return esper_live_is_shown(&view->live) && (view->n_lines > 0 || waited >= plain_interval_s);
}

void esper_grow_view_step(esper_grow_view *view, const esper_growth_view *growth)
{
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS], e[ESPER_TEXT_CHARS];

    if (!esper_grow_view_is_due(view, doing(growth)))
        return;
    view->live.last_shown = esper_clock_seconds();
    snprintf(view->last_doing, sizeof(view->last_doing), "%s", doing(growth));
    if (shows_block(view)) {
        draw_block(view, growth);
        return;
    }
    esper_grow_view_clear(view);
    fprintf(view->live.stream, " %7s %3.0f %%  %s  loss %s  accuracy %s  %s/s  %.0f %% of the run spent  %s left\n",
            epochs(growth, a), 100.0 * growth->part, doing(growth), loss(growth->loss_train, b),
            esper_text_percent(growth->acc_train, c), speed(growth->samples_per_s, d), 100.0 * growth->share,
            esper_text_duration(growth->seconds_left, e));
    fflush(view->live.stream);
}

void esper_grow_view_epoch(esper_grow_view *view, const esper_growth_view *growth)
{
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS], e[ESPER_TEXT_CHARS];
    char f[ESPER_TEXT_CHARS], g[ESPER_TEXT_CHARS], h[ESPER_TEXT_CHARS];
    bool is_last = growth->max_epochs > 0 && growth->epoch >= growth->max_epochs;

    if (!esper_live_is_shown(&view->live))
        return;
    if (isfinite(growth->acc_valid))
        add_point(view, growth->acc_valid);
    if (shows_block(view)) {
        view->live.last_shown = esper_clock_seconds();
        draw_block(view, growth);
        return;
    }
    if (view->live.plain && !esper_live_is_epoch_due(&view->live, growth->epoch, growth->max_epochs))
        return;
    view->live.last_shown = esper_clock_seconds();
    view->live.last_epoch = growth->epoch;
    esper_grow_view_clear(view);
    if (!view->table_begun)
        fprintf(view->live.stream, "   epoch     loss accuracy valid loss accuracy     params seeds    time    left\n");
    view->table_begun = true;
    fprintf(view->live.stream, "%8s %8s %8s %10s %8s %10s %5d %7s %7s\n", epochs(growth, a),
            loss(growth->loss_train, b), esper_text_percent(growth->acc_train, c), loss(growth->loss_valid, d),
            esper_text_percent(growth->acc_valid, e), esper_text_count(growth->params_total, f), count_seeds(growth),
            esper_text_duration(growth->seconds, g), is_last ? "-" : esper_text_duration(growth->seconds_left, h));
    fflush(view->live.stream);
}

/* In a terminal long lines are broken here, between words; elsewhere not at all. */
void esper_grow_view_note(esper_grow_view *view, uint32_t epoch, const char *text)
{
    int room = view->live.terminal.is_tty ? view->live.terminal.room - FOLD_INDENT : ESPER_LINE_BYTES;
    bool first = true;
    esper_line line;

    if (!esper_live_is_shown(&view->live))
        return;
    esper_grow_view_clear(view);
    do {
        size_t n = esper_terminal_fold(text, room > LEAST_FOLD ? room : LEAST_FOLD);

        esper_line_init(&line, 2 * ESPER_TERMINAL_WIDE, false);
        esper_line_put(&line, "%.*s", (int)n, text);
        if (first)
            fprintf(view->live.stream, "epoch %4u  %s\n", epoch, line.text);
        else
            fprintf(view->live.stream, "%*s%s\n", FOLD_INDENT, "", line.text);
        first = false;
        text += n + strspn(text + n, " ");
    } while (*text != '\0');
    fflush(view->live.stream);
}

void esper_grow_view_event(esper_grow_view *view, uint32_t epoch, const esper_slot_event *event, const char *why)
{
    char words[ESPER_WORDS_CHARS];
    const char *text = esper_words_event(event, why, words);

    if (text != NULL)
        esper_grow_view_note(view, epoch, text);
}
