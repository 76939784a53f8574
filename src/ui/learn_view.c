/* Rounds of learning, a line each. */
#include "ui/learn_view.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "ui/text.h"

enum {
    BAR_CELLS = 24,
    NARROW_BAR_CELLS = 10,
    NARROW = 90,
    HEAD_EVERY = 20,
    WHOLE = 93,
    CELL_CHARS = 16
}; /* WHOLE: columns of a line with entropies */

static const double bar_interval_s = 0.1, plain_interval_s = 30.0;

void esper_learn_progress_init(esper_learn_progress *progress, esper_config_progress kind, FILE *stream)
{
    bool draws;

    *progress = (esper_learn_progress){.stream = stream, .terminal = esper_terminal_look(stream)};
    draws = progress->terminal.escapes;
    progress->bar = kind == ESPER_CONFIG_PROGRESS_BAR || (kind == ESPER_CONFIG_PROGRESS_AUTO && draws);
    progress->plain = kind == ESPER_CONFIG_PROGRESS_PLAIN || (kind == ESPER_CONFIG_PROGRESS_AUTO && !draws);
    progress->last_shown = esper_clock_seconds();
}

bool esper_learn_progress_is_shown(const esper_learn_progress *progress)
{
    return progress->bar || progress->plain;
}

void esper_learn_progress_clear(esper_learn_progress *progress)
{
    if (progress->bar_shown)
        fprintf(progress->stream, "\r\033[K");
    progress->bar_shown = false;
    fflush(progress->stream);
}

static void print_banner(const esper_learn_view *view, FILE *stream)
{
    const esper_config *config = view->config;
    char host[ESPER_TEXT_CHARS], policy[ESPER_TEXT_CHARS], learner[ESPER_CONFIG_TEXT_CHARS + 32];

    esper_terminal_print(stream, "task      %s: hosts of %s parameters, %d slots, episodes of %d decisions, gates %s\n",
                         view->task->name, esper_text_count(view->params_host, host), view->identity->n_slots,
                         config->epochs, esper_config_gates_name(config->gates));
    if (config->policy_cmd[0] == '\0')
        snprintf(learner, sizeof(learner), "%s parameters, recurrent", esper_text_count(view->params_policy, policy));
    else
        snprintf(learner, sizeof(learner), "%s, which learns by itself", config->policy_cmd);
    esper_terminal_print(stream, "policy    %s; reward %s%s%s\n", learner, config->reward,
                         config->reward_weights[0] != '\0' ? " with " : "", config->reward_weights);
    fprintf(stream, "fleet     %d environment%s on %d thread%s", config->envs, config->envs == 1 ? "" : "s",
            view->n_threads, view->n_threads == 1 ? "" : "s");
    if (view->n_ranks > 1)
        fprintf(stream, " of each of %d ranks", view->n_ranks);
    esper_terminal_print(stream, "; up to %d round%s\nrun       %s\n\n", config->rounds, config->rounds == 1 ? "" : "s",
                         view->run_dir);
}

/* The entropies are left out where the line would wrap. */
static bool has_entropies(esper_learn_progress *progress)
{
    esper_terminal_measure(&progress->terminal);
    return progress->terminal.room >= WHOLE;
}

static void print_heads(esper_learn_progress *progress)
{
    if (progress->n_lines++ % HEAD_EVERY == 0)
        fprintf(progress->stream, "    round   return    +-  accuracy  params  kept%s    KL  expl  steps/s   left\n",
                has_entropies(progress) ? "   H op slot blue" : "");
}

static void draw_bar(esper_learn_progress *progress, const esper_learn_view *view)
{
    char cells[BAR_CELLS + 1], left[ESPER_TEXT_CHARS];
    esper_line line;

    esper_terminal_measure(&progress->terminal);
    esper_terminal_bar(view->part, progress->terminal.room < NARROW ? NARROW_BAR_CELLS : BAR_CELLS, cells);
    esper_line_init(&line, progress->terminal.room, false);
    esper_line_put(&line, " %4u/%-4d [%s] %3.0f %%  %s%s%s", view->round, view->config->rounds, cells,
                   100.0 * view->part, progress->words,
                   view->seconds_left >= 0.0 ? esper_text_duration(view->seconds_left, left) : "",
                   view->seconds_left >= 0.0 ? " left" : "");
    fprintf(progress->stream, "\r%s\033[K", line.text);
    progress->bar_shown = true;
    fflush(progress->stream);
}

static void begin(void *context, const esper_learn_view *view)
{
    esper_learn_progress *progress = context;

    if (!esper_learn_progress_is_shown(progress))
        return;
    print_banner(view, progress->stream);
    print_heads(progress);
    fflush(progress->stream);
    if (progress->bar)
        draw_bar(progress, view);
}

static void step(void *context, const esper_learn_view *view)
{
    esper_learn_progress *progress = context;
    double now = esper_clock_seconds();
    char left[ESPER_TEXT_CHARS];

    if (!esper_learn_progress_is_shown(progress) ||
        now - progress->last_shown < (progress->bar ? bar_interval_s : plain_interval_s))
        return;
    progress->last_shown = now;
    if (progress->bar) {
        draw_bar(progress, view);
        return;
    }
    fprintf(progress->stream, " %4u/%-4d %3.0f %% of the round%s%s\n", view->round, view->config->rounds,
            100.0 * view->part, view->seconds_left >= 0.0 ? ", left " : "",
            view->seconds_left >= 0.0 ? esper_text_duration(view->seconds_left, left) : "");
    fflush(progress->stream);
}

/* What is not known is a dash. */
static const char *text_of(double value, int decimals, char text[CELL_CHARS])
{
    if (isnan(value))
        snprintf(text, CELL_CHARS, "-");
    else
        snprintf(text, CELL_CHARS, "%.*f", decimals, value);
    return text;
}

static void round_done(void *context, const esper_learn_view *view, const esper_learn_round *round)
{
    esper_learn_progress *progress = context;
    const esper_ppo_report *report = &round->report.update;
    char error[CELL_CHARS], op[CELL_CHARS], slot[CELL_CHARS], blueprint[CELL_CHARS], kl[CELL_CHARS];
    char explained[CELL_CHARS], entropies[3 * CELL_CHARS + 8] = "", left[ESPER_TEXT_CHARS], params[ESPER_TEXT_CHARS];
    bool is_last = (int)round->round >= view->config->rounds;

    snprintf(progress->words, sizeof(progress->words), "return %.2f  %.2f %%  ", round->total_reward, round->accuracy);
    if (!esper_learn_progress_is_shown(progress))
        return;
    esper_learn_progress_clear(progress);
    if (progress->n_lines > 1)
        print_heads(progress);
    else
        progress->n_lines++;
    if (has_entropies(progress))
        snprintf(entropies, sizeof(entropies), "   %4s %4s %4s", text_of(report->head_entropy[ESPER_HEAD_OP], 2, op),
                 text_of(report->head_entropy[ESPER_HEAD_SLOT], 2, slot),
                 text_of(report->head_entropy[ESPER_HEAD_BLUEPRINT], 2, blueprint));
    fprintf(progress->stream, " %4u/%-4d %7.2f %5s  %6.2f %% %7s  %4.1f%s %5s %5s  %7.1f %6s%s\n", round->round,
            view->config->rounds, round->total_reward, text_of(round->total_reward_error, 2, error), round->accuracy,
            esper_text_count((int64_t)round->params, params), round->n_kept, entropies, text_of(report->move.kl, 3, kl),
            text_of(report->explained_variance, 2, explained), round->steps_per_s,
            is_last ? "-" : esper_text_duration(view->seconds_left, left),
            report->health == ESPER_PPO_FINE ? ""
            : report->performed              ? "  part skipped"
                                             : "  skipped");
    fflush(progress->stream);
    progress->last_shown = esper_clock_seconds();
}

esper_learn_observer esper_learn_progress_observer(esper_learn_progress *progress)
{
    return (esper_learn_observer){.context = progress, .begin = begin, .step = step, .round = round_done};
}
