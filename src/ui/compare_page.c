/* The page of a comparison: what came out, the plot, the tables, every run. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "ui/compare_plot.h"
#include "ui/compare_table.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* What is not known is a dash on a page. */
static double known(double value)
{
    return isnan(value) ? ESPER_STORE_NO_REAL : value;
}

static const esper_compare_line *reference(const esper_compare *compare)
{
    return &compare->lines[compare->against];
}

/* ------------------------------------------------------------------------------------------------ head */

/* "82.10 % (81.90 to 82.30)" */
static void write_mean(esper_page *page, const esper_compare_spread *spread, int decimals, const char *unit)
{
    double margin = esper_compare_margin(spread);
    double low = spread->min >= 0.0 ? fmax(spread->mean - margin, 0.0)
                                    : spread->mean - margin; /* no network has -5 parameters */

    esper_html(page, "%.*f%s", decimals, known(spread->mean), spread->n > 0 ? unit : "");
    if (!isnan(margin))
        esper_html(page, " <span class=\"soft\">(%.*f to %.*f)</span>", decimals, low, decimals, spread->mean + margin);
}

/* Who is better, by how much, and whether that is certain: the line that others are held against, and the best of those. */
static void write_verdict(const esper_compare *compare, esper_page *page)
{
    static const double least = 0.005; /* points: less is not to be seen in two decimals */
    double best_mean = -(double)INFINITY, margin;
    esper_compare_pair pair, rival;
    int best = -1;

    for (int line = 0; line < compare->n_lines; line++) {
        esper_compare_summary summary;

        esper_compare_summarise(compare, line, &summary);
        if (summary.acc.n > 0 && summary.acc.mean > best_mean && esper_compare_pair_up(compare, line, &pair) &&
            pair.acc.n > 0) {
            best_mean = summary.acc.mean;
            best = line;
            rival = pair;
        }
    }
    if (best < 0)
        return;
    margin = esper_compare_margin(&rival.acc);
    if (fabs(rival.acc.mean) < least) {
        esper_html(page, "<p class=\"lead\"><b>%s and %s, its best rival, are equally accurate</b> on %s.</p>\n",
                   reference(compare)->name, compare->lines[best].name,
                   rival.acc.n == 1 ? "one seed" : "the same seeds");
        return;
    }
    esper_html(page,
               "<p class=\"lead\"><b>%s is %s than %s, its best rival, by %.2f points of test accuracy</b> on %s: ",
               reference(compare)->name, rival.acc.mean < 0.0 ? "worse" : "better", compare->lines[best].name,
               fabs(rival.acc.mean), rival.acc.n == 1 ? "one seed" : "the same seeds");
    if (isnan(margin))
        esper_html(page, "whether that is more than chance a single seed cannot tell.");
    else if (fabs(rival.acc.mean) > margin)
        esper_html(page, "that is certain, as far as %d seeds tell (95 %%: %+.2f to %+.2f).", rival.acc.n,
                   rival.acc.mean - margin, rival.acc.mean + margin);
    else
        esper_html(page, "that is not certain, chance could have done it over %d seeds (95 %%: %+.2f to %+.2f).",
                   rival.acc.n, rival.acc.mean - margin, rival.acc.mean + margin);
    esper_html(page, "</p>\n");
}

/* What the line that others are held against came to, and which of them it beats or loses to. */
static void write_lead(const esper_compare *compare, esper_page *page)
{
    esper_compare_summary summary;
    esper_compare_pair pair;
    int n_above = 0, n_below = 0, n = 0;

    assert(compare->against >= 0 && compare->against < compare->n_lines);
    esper_compare_summarise(compare, compare->against, &summary);
    for (int line = 0; line < compare->n_lines; line++)
        if (esper_compare_pair_up(compare, line, &pair)) {
            double margin = esper_compare_margin(&pair.acc);

            n++;
            n_above += pair.acc.mean - margin > 0.0;
            n_below += pair.acc.mean + margin < 0.0;
        }
    esper_html(page, "<p class=\"lead\">%s reaches ", reference(compare)->name);
    write_mean(page, &summary.acc, 2, " %");
    esper_html(page, " test accuracy with ");
    write_mean(page, &summary.params, 0, "");
    esper_html(page, " parameters over %d seed%s.", summary.acc.n, summary.acc.n == 1 ? "" : "s");
    if (n > 0)
        esper_html(page,
                   " On the same seeds its accuracy is above that of %d of %d other line%s and below that of %d, "
                   "as far as 95 %% intervals tell.",
                   n_above, n, n == 1 ? "" : "s", n_below);
    esper_html(page, "</p>\n");
}

static void write_facts(const esper_compare *compare, const char *dir, esper_page *page)
{
    char text[ESPER_COMPARE_REWARD_CHARS];

    esper_html(page, "<dl class=\"facts\">\n");
    esper_report_fact(page, "Task", compare->task->name);
    snprintf(text, sizeof(text), "%d from %" PRIu64, compare->n_seeds, compare->config.seed);
    esper_report_fact(page, "Seeds", text);
    esper_report_fact(page, "Length", esper_compare_budget(compare, text));
    esper_report_fact(page, "Gates", esper_config_gates_name(compare->config.gates));
    esper_report_fact(page, "Reward", esper_compare_reward(compare, text));
    esper_report_fact(page, "Held against", reference(compare)->name);
    esper_report_fact(page, "Directory", dir);
    esper_html(page, "</dl>\n");
}

/* ------------------------------------------------------------------------------------------------ tables */

static void begin_row(const esper_compare *compare, int line, esper_page *page)
{
    esper_html(page, "<tr><td>");
    esper_compare_plot_mark(line, page);
    esper_html(page, "</td><th scope=\"row\">%s</th>", compare->lines[line].name);
}

static void write_cell(esper_page *page, const esper_compare_spread *spread, int decimals, const char *unit)
{
    esper_html(page, "<td class=\"n\">");
    write_mean(page, spread, decimals, unit);
    esper_html(page, "</td>");
}

static const char *flops_of(double value, char text[ESPER_TEXT_CHARS])
{
    return esper_html_flops(isnan(value) ? ESPER_STORE_NO_INT : (int64_t)value, text);
}

static void write_summary(const esper_compare *compare, esper_page *page)
{
    static const char *const columns[] = {"",
                                          "Line",
                                          "#Runs",
                                          "#Test accuracy",
                                          "#Return",
                                          "#Parameters",
                                          "#FLOPs per sample",
                                          "#Training FLOPs",
                                          "#Epochs",
                                          "#Time",
                                          "#Return a TFLOP",
                                          NULL};
    char flops[ESPER_TEXT_CHARS], training[ESPER_TEXT_CHARS], seconds[ESPER_TEXT_CHARS];
    esper_compare_summary summary;

    esper_html_table(
        page, "summary",
        compare->config.length == ESPER_CONFIG_LENGTH_EPOCHS ? "At equal epochs" : "At equal training FLOPs", columns);
    for (int line = 0; line < compare->n_lines; line++) {
        esper_compare_summarise(compare, line, &summary);
        begin_row(compare, line, page);
        esper_html(page, "<td class=\"n\">%d of %d</td>", summary.acc.n, summary.acc.n + summary.n_bad);
        write_cell(page, &summary.acc, 2, " %");
        write_cell(page, &summary.total_reward, 3, "");
        write_cell(page, &summary.params, 0, "");
        esper_html_cells(page, "n:%s n:%s %.1f n:%s", flops_of(summary.flops.mean, flops),
                         flops_of(summary.flops_train.mean, training), known(summary.epochs.mean),
                         esper_html_seconds(known(summary.seconds.mean), seconds));
        write_cell(page, &summary.per_tflop, 2, "");
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
}

/* A difference with its interval; one that is clear of zero is in bold. */
static void write_difference(esper_page *page, const esper_compare_spread *spread, int decimals)
{
    double margin = esper_compare_margin(spread);
    bool clear = fabs(spread->mean) > margin;

    esper_page_print(page, "<td class=\"n\">%s", clear ? "<b>" : "");
    esper_html(page, "%+.*f", decimals, known(spread->mean));
    if (!isnan(margin))
        esper_html(page, " <span class=\"soft\">(%+.*f to %+.*f)</span>", decimals, spread->mean - margin, decimals,
                   spread->mean + margin);
    esper_page_print(page, "%s</td>", clear ? "</b>" : "");
}

static void write_pairs(const esper_compare *compare, esper_page *page)
{
    static const char *const columns[] = {
        "", "Less", "#Seeds", "#Return", "#Test accuracy, points", "#Parameters", "#Return a TFLOP", NULL};
    esper_compare_pair pair;
    char caption[200];

    esper_html(page, "<h2 id=\"pairs\">Differences</h2>\n");
    if (compare->n_lines < 2) {
        esper_html(page, "<p>There is nothing to hold %s against.</p>\n", reference(compare)->name);
        return;
    }
    snprintf(caption, sizeof(caption),
             "%s less each other line on the same seeds: mean and 95 %% interval by Student's t; bold: "
             "clear of zero",
             reference(compare)->name);
    esper_html_table(page, "pairs", caption, columns);
    for (int line = 0; line < compare->n_lines; line++) {
        if (!esper_compare_pair_up(compare, line, &pair))
            continue;
        begin_row(compare, line, page);
        esper_html_cells(page, "%i", pair.acc.n);
        write_difference(page, &pair.total_reward, 3);
        write_difference(page, &pair.acc, 2);
        write_difference(page, &pair.params, 0);
        write_difference(page, &pair.per_tflop, 2);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
}

static void write_learned(const esper_compare *compare, esper_page *page)
{
    static const char *const columns[] = {"", "Line", "File", "Trained by", "Gates", "Hash", NULL};
    static const char *const columns_weights[] = {"", "Line", "File", "Trained by", "Weights", "Gates", "Hash", NULL};
    bool weights = esper_compare_has_weights(compare);
    char hash[20];
    int n = 0;

    for (int line = 0; line < compare->n_lines; line++) {
        const esper_compare_line *of = &compare->lines[line];

        if (of->file[0] == '\0')
            continue;
        if (n++ == 0)
            esper_html_table(page, "learned", "Learned policies, and the reward that each was trained by",
                             weights ? columns_weights : columns);
        begin_row(compare, line, page);
        esper_html_cells(page, "why:%s %s", of->file, of->reward);
        if (weights)
            esper_html_cells(page, "why:%s", esper_compare_weights(of));
        snprintf(hash, sizeof(hash), "%016" PRIx64, of->hash);
        esper_html_cells(page, "%s %s", of->gates, hash);
        esper_html(page, "</tr>\n");
    }
    if (n > 0)
        esper_html_table_end(page);
    for (int line = 0; line < compare->n_lines; line++)
        if (compare->lines[line].note[0] != '\0')
            esper_html(page, "<p class=\"note\">%s: %s</p>\n", compare->lines[line].name, compare->lines[line].note);
}

/* ------------------------------------------------------------------------------------------------ runs */

static void write_runs(const esper_compare *compare, esper_page *page)
{
    static const char *const columns[] = {
        "",  "Line", "Run", "#Test accuracy", "#Return", "#Parameters", "#Epochs", "Outcome", "Seeds in the network",
        NULL};
    char name[ESPER_COMPARE_NAME_CHARS], how[ESPER_COMPARE_WHY_CHARS + 32];
    int n_bad = 0;

    for (int i = 0; i < compare->n_runs; i++)
        n_bad += compare->runs[i].result.outcome != ESPER_COMPARE_GOOD;
    esper_html(page, "<h2 id=\"runs\">Runs</h2>\n");
    if (n_bad > 0)
        esper_html(page, "<p class=\"note\">%d of %d runs have no good result and are in no mean.</p>\n", n_bad,
                   compare->n_runs);
    esper_page_print(page, "<details%s><summary>All %d runs</summary>\n", n_bad > 0 ? " open=\"open\"" : "",
                     compare->n_runs);
    esper_html_table(page, "runs", NULL, columns);
    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];
        const esper_compare_result *result = &run->result;

        esper_compare_name(compare, run, name);
        snprintf(how, sizeof(how), "%s%s%s", esper_compare_outcome_name(result->outcome),
                 result->why[0] != '\0' ? ": " : "", result->why);
        begin_row(compare, run->line, page);
        esper_html_cells(page, "%s %.2f %.3f %" PRIi64 " %" PRIi64 " why:%s why:%s", name, known(result->acc_test),
                         known(esper_compare_return(compare, run)),
                         result->params >= 0 ? result->params : ESPER_STORE_NO_INT,
                         result->epochs >= 0 ? (int64_t)result->epochs : ESPER_STORE_NO_INT, how,
                         result->tested[0] != '\0' ? result->tested : run->plant);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
    esper_html(page, "</details>\n");
}

/* ------------------------------------------------------------------------------------------------ the page */

void esper_compare_report(const esper_compare *compare, const char *dir, esper_page *page)
{
    char title[160];

    snprintf(title, sizeof(title), "%s: %d ways compared", compare->task->name, compare->n_lines);
    esper_report_begin(page, title, esper_compare_plot_style);
    write_verdict(compare, page);
    write_lead(compare, page);
    write_facts(compare, dir, page);
    esper_html(page, "<nav aria-label=\"Sections\"><a href=\"#front\">Front</a><a href=\"#curves\">Curves</a>"
                     "<a href=\"#result\">Result</a>"
                     "<a href=\"#pairs\">Differences</a><a href=\"#runs\">Runs</a></nav>\n</header>\n<main>\n"
                     "<h2 id=\"front\">Accuracy and size</h2>\n");
    esper_compare_plot(compare, page);
    esper_html(page, "<h2 id=\"curves\">Learning curves</h2>\n");
    esper_compare_curves(compare, dir, page);
    esper_html(page, "<h2 id=\"result\">Result</h2>\n");
    write_summary(compare, page);
    write_learned(compare, page);
    write_pairs(compare, page);
    write_runs(compare, page);
    esper_html(
        page,
        "</main>\n<footer><p>Made by esper compare in %s. Means are over the seeds whose run has a good result; "
        "what stands in brackets is the 95 %% interval of the mean. Return: %s.</p></footer>\n</body>\n</html>\n",
        dir, esper_compare_return_text(compare));
}
