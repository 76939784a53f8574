/* The page of a run that learned a policy: how return, accuracy and size went, how the policy moved, and what it was paid for. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/status.h"
#include "ui/report_chart.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* Rounds that the beginning and the end are told by. */
enum { MANY_ROUNDS = 10, MAX_LINES = 8 };

/* A critic that is worse than none by far would squeeze all others into one line. */
static const double worst_explained = -1.0;

/* Curves of heads: told apart by dashes, too. */
static const char style[] = ".e0,.e4{stroke:var(--grown)}.e1,.e5{stroke:var(--static)}.e2,.e6{stroke:var(--fossilized)}"
                            ".e3,.e7{stroke:var(--holding)}.e4,.e5,.e6,.e7{stroke-dasharray:5 3}\n"
                            ".dot.e0,.dot.e4{fill:var(--grown)}.dot.e1,.dot.e5{fill:var(--static)}"
                            ".dot.e2,.dot.e6{fill:var(--fossilized)}.dot.e3,.dot.e7{fill:var(--holding)}\n";

/* Rewards by part, for one episode of the first rounds and of the last. */
typedef struct payments {
    double  first[ESPER_N_REWARD_PARTS], last[ESPER_N_REWARD_PARTS];
    int64_t n_first, n_last; /* episodes */
} payments;

typedef struct learning {
    const esper_store_run *run;
    esper_report_rows      updates;
    int64_t               *rounds;  /* (n) */
    double                *values;  /* (MAX_LINES, n): what is being drawn */
    payments               paid;
    int64_t                last_round;
    char                  *config;                           /* all settings, as text */
    char                   program[ESPER_CONFIG_TEXT_CHARS]; /* that decided, and learned by itself; "" = none */
    char                   weights[ESPER_CONFIG_TEXT_CHARS]; /* of the reward, those that were set; "" = none */
} learning;

/* Rounds that stand for the beginning, and as many for the end: they have none in common, unless there is but one. */
static int64_t window(int64_t n_rounds)
{
    return n_rounds >= 2 * MANY_ROUNDS ? MANY_ROUNDS : n_rounds > 1 ? n_rounds / 2 : n_rounds;
}

static const esper_store_record *update_at(const learning *self, int i)
{
    return &self->updates.at[i].record;
}

/* ------------------------------------------------------------------------------------------------ reading */

static void take_reward(learning *self, const esper_store_record *record)
{
    int n;
    const esper_store_column *columns = esper_store_columns(ESPER_STORE_REWARD, &n);
    bool is_first = record->reward.round <= window(self->last_round),
         is_last = record->reward.round > self->last_round - window(self->last_round);

    for (int i = n - ESPER_N_REWARD_PARTS, part = 0; i < n; i++, part++) { /* the parts are the last of its columns */
        double value = *(const double *)(const void *)((const char *)record + columns[i].offset);

        if (!isfinite(value) || value == ESPER_STORE_NO_REAL)
            continue;
        self->paid.first[part] += is_first ? value : 0.0;
        self->paid.last[part] += is_last ? value : 0.0;
    }
    self->paid.n_first += is_first && record->reward.episode_epoch == 1;
    self->paid.n_last += is_last && record->reward.episode_epoch == 1;
}

/* Many more than updates: looked at one by one. */
static esper_status read_rewards(esper_store_reader *reader, learning *self)
{
    const esper_store_filter filter = {.run = self->run->id, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY};
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_status status;
    bool found = true;

    ESPER_TRY(esper_store_read(reader, ESPER_STORE_REWARD, &filter, &cursor));
    while ((status = esper_store_next(cursor, &record, &found)) == ESPER_OK && found)
        take_reward(self, &record);
    esper_store_cursor_close(cursor);
    return status;
}

/* Whether it was a program that learned, and what from, which the run's settings know. */
static esper_status read_settings(esper_store_reader *reader, learning *self)
{
    esper_config config;

    ESPER_TRY(esper_store_read_config(reader, self->run->id, &self->config));
    esper_config_init(&config);
    if (esper_config_load_text(&config, self->config, strlen(self->config), self->run->name) != ESPER_OK)
        return ESPER_OK; /* settings of another version tell nothing */
    snprintf(self->program, sizeof(self->program), "%s", config.policy_cmd);
    snprintf(self->weights, sizeof(self->weights), "%s", config.reward_weights);
    return ESPER_OK;
}

static esper_status read_all(esper_store_reader *reader, learning *self)
{
    size_t n;

    ESPER_TRY(read_settings(reader, self));
    ESPER_TRY(esper_report_rows_read(reader, ESPER_STORE_UPDATE, self->run->id, &self->updates));
    n = (size_t)self->updates.n;
    if (n == 0)
        return ESPER_OK;
    self->rounds = esper_mem_alloc(n * sizeof(*self->rounds));
    self->values = esper_mem_alloc(n * MAX_LINES * sizeof(*self->values));
    if (self->rounds == NULL || self->values == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: curves of %zu rounds", n);
    for (size_t i = 0; i < n; i++)
        self->rounds[i] = update_at(self, (int)i)->update.round;
    self->last_round = self->rounds[n - 1];
    return read_rewards(reader, self);
}

/* ------------------------------------------------------------------------------------------------ head */

/* The mean of a column over some rounds; those that have none are left out. */
static double mean_of(const learning *self, size_t offset, int first, int last)
{
    double sum = 0.0;
    int n = 0;

    for (int i = first; i < last; i++) {
        double value = *(const double *)(const void *)((const char *)update_at(self, i) + offset);

        if (isfinite(value) && value != ESPER_STORE_NO_REAL) {
            sum += value;
            n++;
        }
    }
    return n > 0 ? sum / n : ESPER_STORE_NO_REAL;
}

#define UPDATE(name) offsetof(esper_store_record, update.name)

/* Whether both look the same with so many decimals. */
static bool is_alike(double a, double b, int decimals)
{
    double scale = pow(10.0, decimals);

    return a == b || (fabs(a) < 1e12 && fabs(b) < 1e12 && llround(a * scale) == llround(b * scale));
}

/* "mean return went from 1.200 to 3.400", stayed at what it was, or, of a single round, was. */
static void write_change(const learning *self, esper_page *page, const char *what, size_t offset, int decimals)
{
    int n = self->updates.n, some = (int)window(n);
    double first = mean_of(self, offset, 0, some), last = mean_of(self, offset, n - some, n);
    bool alike = is_alike(first, last, decimals);

    esper_page_print(page, "%s %s ", what, n == 1 ? "was" : alike ? "stayed at" : "went from");
    esper_html_real(page, first, decimals);
    if (n == 1 || alike)
        return;
    esper_page_print(page, " to ");
    esper_html_real(page, last, decimals);
}

static void write_lead(const learning *self, esper_page *page)
{
    int n = self->updates.n, some = (int)window(n);

    esper_page_print(page, "<p class=\"lead\">");
    if (n == 0)
        esper_page_print(page, "No round has been finished.");
    else {
        if (n == 1)
            esper_page_print(page, "In its one round the ");
        else if (some == 1)
            esper_page_print(page, "From the first round to the last of %d the ", n);
        else
            esper_page_print(page, "From the first %d rounds to the last %d of %d the ", some, some, n);
        write_change(self, page, "mean return", UPDATE(return_mean), 3);
        write_change(self, page, ", validation accuracy", UPDATE(acc_mean), 2);
        esper_page_print(page, " %%");
        write_change(self, page, ", and parameters", UPDATE(params_mean), 0);
        esper_page_print(page, ".");
    }
    esper_page_print(page, "</p>\n");
    if (self->run->ended == ESPER_STORE_NO_REAL)
        esper_page_print(page,
                         "<p class=\"note\">This run has not ended: it is still going on, or it was stopped.</p>\n");
}

static void write_facts(const learning *self, esper_page *page)
{
    const esper_store_run *run = self->run;
    char seed[24], reward[ESPER_CONFIG_TEXT_CHARS + 80];

    snprintf(seed, sizeof(seed), "%" PRIu64, run->rng_seed);
    snprintf(reward, sizeof(reward), "%s%s%s", run->reward_mode, self->weights[0] != '\0' ? " with " : "",
             self->weights);
    esper_page_print(page, "<dl class=\"facts\">\n");
    esper_report_fact(page, "Task", run->task);
    if (self->program[0] != '\0')
        esper_report_fact(page, "Program", self->program);
    esper_report_fact(page, "Reward", reward);
    esper_report_fact(page, "Gates", run->gate_mode);
    esper_report_fact(page, "Random seed", seed);
    esper_report_fact_int(page, "Rounds", self->updates.n);
    esper_report_fact_int(page, "Episodes a round",
                          self->updates.n > 0 ? update_at(self, 0)->update.n_episodes : ESPER_STORE_NO_INT);
    esper_report_fact_int(page, "Parameters of the host", run->params_host);
    esper_report_fact_int(page, "Threads", run->threads);
    esper_report_fact(page, "Build", run->build);
    esper_report_fact(page, "Run", run->name);
    esper_report_fact_time(page, "Began", run->began);
    esper_report_fact_int(page, "Times resumed", run->n_resumed);
    esper_page_print(page, "</dl>\n");
}

/* ------------------------------------------------------------------------------------------------ curves */

typedef struct curve {
    const char *name, *style;
    size_t      offset;
} curve;

/* What the numbers of a curve are at its ends, for those who cannot see it. */
static void describe(const esper_chart *chart, esper_page *about)
{
    for (int l = 0; l < chart->n_lines; l++) {
        const esper_chart_line *line = &chart->lines[l];

        esper_page_print(about, "%s%s: ", l > 0 ? " " : "", line->name);
        esper_html_general(about, line->y[0]);
        esper_page_print(about, " in round %" PRId64 ", ", line->x[0]);
        esper_html_general(about, line->y[line->n - 1]);
        esper_page_print(about, " in round %" PRId64 ".", line->x[line->n - 1]);
    }
}

static void write_chart(const learning *self, esper_page *page, esper_chart chart, const curve *curves, int n_curves)
{
    esper_chart_line lines[MAX_LINES];
    esper_page about = {0};
    int n = self->updates.n;

    for (int c = 0; c < n_curves; c++) {
        double *y = self->values + (size_t)c * (size_t)n;

        for (int i = 0; i < n; i++) {
            y[i] = *(const double *)(const void *)((const char *)update_at(self, i) + curves[c].offset);
            if (curves[c].offset == UPDATE(explained_variance) && y[i] != ESPER_STORE_NO_REAL)
                y[i] = fmax(y[i], worst_explained);
        }
        lines[c] =
            (esper_chart_line){.name = curves[c].name, .style = curves[c].style, .x = self->rounds, .y = y, .n = n};
    }
    chart.lines = lines;
    chart.n_lines = n_curves;
    chart.last_epoch = self->last_round;
    chart.x_name = "round";
    describe(&chart, &about);
    chart.about = about.text != NULL ? about.text : "";
    if (about.status == ESPER_OK)
        esper_chart_write(page, &chart);
    else
        page->status = about.status;
    esper_page_fini(&about);
}

static void write_curves(const learning *self, esper_page *page)
{
    static const curve returns[] = {{"mean of the round's episodes", "grown", UPDATE(return_mean)}};
    static const curve accuracy[] = {{"mean at the ends of episodes, validation", "grown", UPDATE(acc_mean)}};
    static const curve params[] = {{"mean at the ends of episodes", "grown", UPDATE(params_mean)}};
    static const curve heads[] = {{"op", "e0", UPDATE(entropy_op)},
                                  {"slot", "e1", UPDATE(entropy_slot)},
                                  {"blueprint", "e2", UPDATE(entropy_blueprint)},
                                  {"style", "e3", UPDATE(entropy_style)},
                                  {"tempo", "e4", UPDATE(entropy_tempo)},
                                  {"alpha_target", "e5", UPDATE(entropy_alpha_target)},
                                  {"alpha_speed", "e6", UPDATE(entropy_alpha_speed)},
                                  {"alpha_curve", "e7", UPDATE(entropy_alpha_curve)}};
    static const curve moved[] = {{"KL", "grown", UPDATE(kl)},
                                  {"share of clipped steps", "static", UPDATE(clip_fraction)}};
    static const curve explained[] = {{"by the critic", "grown", UPDATE(explained_variance)}};

    esper_page_print(page, "<h2 id=\"curves\">Curves</h2>\n");
    if (self->updates.n == 0) {
        esper_page_print(page, "<p>No round has been finished.</p>\n");
        return;
    }
    write_chart(self, page, (esper_chart){.id = "return", .title = "Return", .unit = "", .height = 260}, returns, 1);
    write_chart(self, page, (esper_chart){.id = "accuracy", .title = "Accuracy", .unit = "%", .height = 220}, accuracy,
                1);
    write_chart(self, page,
                (esper_chart){.id = "params", .title = "Parameters", .unit = "", .height = 150, .whole = true}, params,
                1);
    if (self->program[0] != '\0') {
        esper_page_print(page, "<p>A program decided and learned by itself: how it moved is not known here.</p>\n");
        return;
    }
    write_chart(
        self, page,
        (esper_chart){.id = "entropy", .title = "Entropy of each head", .unit = "", .height = 240, .from_zero = true},
        heads, MAX_LINES);
    write_chart(
        self, page,
        (esper_chart){.id = "moved", .title = "How far the policy moved", .unit = "", .height = 150, .from_zero = true},
        moved, 2);
    write_chart(self, page,
                (esper_chart){.id = "explained",
                              .title = "Explained variance of returns (what is below -1 is drawn there)",
                              .unit = "",
                              .height = 150},
                explained, 1);
}

/* ------------------------------------------------------------------------------------------------ tables */

static void write_payments(const learning *self, esper_page *page)
{
    static const char *const columns[] = {"Part", "#First rounds", "#Last rounds", "#Change", NULL};
    const payments *paid = &self->paid;

    esper_page_print(page, "<h2 id=\"paid\">What was paid for</h2>\n");
    if (paid->n_first == 0 || paid->n_last == 0) {
        esper_page_print(page, "<p>No rewards are recorded%s.</p>\n",
                         self->program[0] != '\0' ? " decision by decision: the program was told them" : "");
        return;
    }
    esper_html_table(
        page, "paid",
        "Parts of the return, means over the episodes of the first and of the last rounds, up to ten of each; parts that "
        "were never paid are left out",
        columns);
    for (int part = 0; part < ESPER_N_REWARD_PARTS; part++) {
        double first = paid->first[part] / (double)paid->n_first, last = paid->last[part] / (double)paid->n_last;

        if (first == 0.0 && last == 0.0)
            continue;
        esper_page_print(page, "<tr><th scope=\"row\">%s</th>", esper_reward_part_name(part));
        esper_html_cell_signed(page, first, 3);
        esper_html_cell_signed(page, last, 3);
        esper_html_cell_signed(page, last - first, 3);
        esper_page_print(page, "</tr>\n");
    }
    esper_html_table_end(page);
}

/* What became of the update of a round. */
static void write_vitals(esper_page *page, const esper_store_record *record)
{
    esper_html_cell_real(page, record->update.entropy, 3);
    esper_html_cell_real(page, record->update.kl, 4);
    esper_html_cell_real(page, record->update.explained_variance, 3);
    esper_html_cell_real(page, record->update.loss_policy, 4);
    esper_html_cell_real(page, record->update.loss_value, 4);
    esper_html_cell_real(page, record->update.grad_norm, 3);
    esper_html_cell_int(page, record->update.n_learned);
    esper_html_cell_int(page, record->update.n_skipped);
    esper_html_cell(page, "why", record->update.health);
}

static void write_update(const learning *self, const esper_store_record *record, esper_page *page)
{
    esper_page_print(page, "<tr>");
    esper_html_cell_int(page, record->update.round);
    esper_html_cell_real(page, record->update.return_mean, 3);
    esper_html_cell_real(page, record->update.return_sd, 3);
    esper_html_cell_real(page, record->update.acc_mean, 2);
    esper_html_cell_real(page, record->update.params_mean, 0);
    esper_html_cell_real(page, record->update.steps_per_s, 1);
    if (self->program[0] == '\0')
        write_vitals(page, record);
    esper_page_print(page, "</tr>\n");
}

static void write_updates(const learning *self, esper_page *page)
{
    enum { OF_ALL = 6 }; /* columns that every learning has; the others are of an update of ours */
    const char *columns[] = {"#Round",
                             "#Return",
                             "#SD",
                             "#Accuracy",
                             "#Parameters",
                             "#Steps/s",
                             "#Entropy",
                             "#KL",
                             "#Explained variance",
                             "#Policy loss",
                             "#Value loss",
                             "#Gradient norm",
                             "#Learning steps",
                             "#Skipped",
                             "Health",
                             NULL};

    if (self->program[0] != '\0')
        columns[OF_ALL] = NULL;
    esper_page_print(page, "<h2 id=\"rounds\">Rounds</h2>\n");
    if (self->updates.n == 0) {
        esper_page_print(page, "<p>There is none to tell of.</p>\n");
        return;
    }
    esper_page_print(page, "<details><summary>The numbers behind the curves, round by round</summary>\n");
    esper_html_table(page, "rounds", NULL, columns);
    for (int i = 0; i < self->updates.n; i++)
        write_update(self, update_at(self, i), page);
    esper_html_table_end(page);
    esper_page_print(page, "</details>\n");
}

/* ------------------------------------------------------------------------------------------------ the page */

static void write_page(const learning *self, esper_page *page)
{
    char title[160];

    snprintf(title, sizeof(title), "%s: a %s that learns", self->run->task[0] != '\0' ? self->run->task : "a task",
             self->program[0] != '\0' ? "program" : "policy");
    esper_report_begin(page, title, style);
    write_lead(self, page);
    write_facts(self, page);
    esper_report_configuration(page, self->config);
    esper_page_print(page, "<nav aria-label=\"Sections\"><a href=\"#curves\">Curves</a><a href=\"#paid\">Paid for</a>"
                           "<a href=\"#rounds\">Rounds</a></nav>\n</header>\n<main>\n");
    write_curves(self, page);
    write_payments(self, page);
    write_updates(self, page);
    esper_page_print(page, "</main>\n<footer><p>Made by esper report from the run store of ");
    esper_html_text(page, self->run->name[0] != '\0' ? self->run->name : "this run");
    esper_page_print(page, ". A round is an episode of every environment%s.</p></footer>\n</body>\n</html>\n",
                     self->program[0] != '\0' ? "" : " and one update of the policy");
}

esper_status esper_report_learning(esper_store_reader *reader, const esper_store_run *run, esper_page *page)
{
    learning self = {.run = run};
    esper_status status = read_all(reader, &self);

    if (status == ESPER_OK) {
        write_page(&self, page);
        status = page->status;
    }
    esper_report_rows_fini(&self.updates);
    esper_mem_free(self.config);
    esper_mem_free(self.rounds);
    esper_mem_free(self.values);
    return status;
}
