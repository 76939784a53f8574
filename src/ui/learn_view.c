/* Rounds of learning, a line each. */
#include "ui/learn_view.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "ui/text.h"

enum { HEAD_EVERY = 20, CELL_CHARS = 16, WHOLE = 93 }; /* the last: columns of a line with entropies */

static const double plain_interval_s = 30.0;

void esper_learn_progress_init(esper_learn_progress *progress, esper_config_progress kind, FILE *stream)
{
    *progress = (esper_learn_progress){0};
    esper_live_init(&progress->live, kind, stream);
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
    esper_terminal_measure(&progress->live.terminal);
    return progress->live.terminal.room >= WHOLE;
}

static void print_heads(esper_learn_progress *progress)
{
    if (progress->n_lines++ % HEAD_EVERY == 0)
        fprintf(progress->live.stream,
                "    round   return    +-  accuracy  params  kept%s    KL  expl  steps/s   left\n",
                has_entropies(progress) ? "   H op slot blue" : "");
}

static void draw_bar(esper_learn_progress *progress, const esper_learn_view *view)
{
    bool known = view->seconds_left >= 0.0;
    char where[32], words[sizeof(progress->words) + ESPER_TEXT_CHARS + 8], left[ESPER_TEXT_CHARS];

    snprintf(where, sizeof(where), "%4u/%-4d", view->round, view->config->rounds);
    snprintf(words, sizeof(words), "%s%s%s", progress->words,
             known ? esper_text_duration(view->seconds_left, left) : "", known ? " left" : "");
    esper_live_draw(&progress->live, where, view->part, words);
}

static void begin(void *context, const esper_learn_view *view)
{
    esper_learn_progress *progress = context;

    if (!esper_live_is_shown(&progress->live))
        return;
    print_banner(view, progress->live.stream);
    print_heads(progress);
    fflush(progress->live.stream);
    if (progress->live.bar)
        draw_bar(progress, view);
}

static void step(void *context, const esper_learn_view *view)
{
    esper_learn_progress *progress = context;
    char left[ESPER_TEXT_CHARS];

    if (!esper_live_is_due(&progress->live, plain_interval_s))
        return;
    if (progress->live.bar) {
        draw_bar(progress, view);
        return;
    }
    fprintf(progress->live.stream, " %4u/%-4d %3.0f %% of the round%s%s\n", view->round, view->config->rounds,
            100.0 * view->part, view->seconds_left >= 0.0 ? ", left " : "",
            view->seconds_left >= 0.0 ? esper_text_duration(view->seconds_left, left) : "");
    fflush(progress->live.stream);
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
    if (!esper_live_is_shown(&progress->live))
        return;
    esper_live_clear(&progress->live);
    if (progress->n_lines > 1)
        print_heads(progress);
    else
        progress->n_lines++;
    if (has_entropies(progress))
        snprintf(entropies, sizeof(entropies), "   %4s %4s %4s", text_of(report->head_entropy[ESPER_HEAD_OP], 2, op),
                 text_of(report->head_entropy[ESPER_HEAD_SLOT], 2, slot),
                 text_of(report->head_entropy[ESPER_HEAD_BLUEPRINT], 2, blueprint));
    fprintf(progress->live.stream, " %4u/%-4d %7.2f %5s  %6.2f %% %7s  %4.1f%s %5s %5s  %7.1f %6s%s\n", round->round,
            view->config->rounds, round->total_reward, text_of(round->total_reward_error, 2, error), round->accuracy,
            esper_text_count((int64_t)round->params, params), round->n_kept, entropies, text_of(report->move.kl, 3, kl),
            text_of(report->explained_variance, 2, explained), round->steps_per_s,
            is_last ? "-" : esper_text_duration(view->seconds_left, left),
            report->health == ESPER_PPO_FINE ? ""
            : report->performed              ? "  part skipped"
                                             : "  skipped");
    fflush(progress->live.stream);
    progress->live.last_shown = esper_clock_seconds();
}

esper_learn_observer esper_learn_progress_observer(esper_learn_progress *progress)
{
    return (esper_learn_observer){.context = progress, .begin = begin, .step = step, .round = round_done};
}
