/* The page of a run that learned a policy: how return, accuracy and size went, how the policy moved, and what it was paid for. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/status.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* Rounds that the beginning and the end are told by. */
enum { MANY_ROUNDS = 10 };

/* A critic that is worse than none by far would squeeze all others into one line. */
static const double worst_explained = -1.0;

/* Curves of heads: told apart by dashes, too. */
static const char style[] = ".e0,.e4{stroke:var(--grown)}.e1,.e5{stroke:var(--static)}.e2,.e6{stroke:var(--fossilized)}"
                            ".e3,.e7{stroke:var(--holding)}.e4,.e5,.e6,.e7{stroke-dasharray:5 3}\n"
                            ".dot.e0,.dot.e4{fill:var(--grown)}.dot.e1,.dot.e5{fill:var(--static)}"
                            ".dot.e2,.dot.e6{fill:var(--fossilized)}.dot.e3,.dot.e7{fill:var(--holding)}\n"
                            ".choices td.n{padding:5px 8px}.h1{background:#009e7322}.h2{background:#009e7344}"
                            ".h3{background:#009e7366}.h4{background:#009e7399}.h5{background:#009e73cc}\n";

/* Rewards by part, for one episode of the first rounds and of the last. */
typedef struct payments {
    double  first[ESPER_N_REWARD_PARTS], last[ESPER_N_REWARD_PARTS];
    int64_t n_first, n_last; /* episodes */
} payments;

/* What was planted where, in how many rounds of the run: columns of rounds, of equal numbers as far as they go. */
enum { MOST_CHOICES = 128, MOST_PARTS = 8 };

typedef struct choice {
    char    slot[16], blueprint[48];
    int64_t n[MOST_PARTS], sum;
} choice;

typedef struct learning {
    const esper_store_run *run;
    esper_report_rows      updates;
    esper_report_rows      classes; /* of the data; none where it does not name them */
    esper_report_rows      above, below; /* the same, with returns a standard deviation higher and lower */
    choice                 choices[MOST_CHOICES];
    int                    n_choices;
    int64_t                n_left_out; /* decisions of choices beyond that */
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
    assert(i >= 0 && i < self->updates.n);
    return &self->updates.at[i].record;
}

/* ------------------------------------------------------------------------------------------------ reading */

static int n_parts(const learning *self)
{
    return self->last_round < MOST_PARTS ? (int)self->last_round : MOST_PARTS;
}

/* A decision that put a seed somewhere. */
static esper_status take_choice(void *to, const esper_store_record *record)
{
    learning *self = to;
    choice *of = self->choices;
    int64_t round = record->epoch;
    int part;

    if (strcmp(record->decision.op, "germinate") != 0 || record->decision.accepted != 1 || round < 1 ||
        round > self->last_round)
        return ESPER_OK;
    part = (int)((round - 1) * n_parts(self) / self->last_round);
    while (of < self->choices + self->n_choices &&
           (strcmp(of->slot, record->decision.slot) != 0 || strcmp(of->blueprint, record->decision.blueprint) != 0))
        of++;
    if (of == self->choices + MOST_CHOICES) {
        self->n_left_out++;
        return ESPER_OK;
    }
    if (of == self->choices + self->n_choices) {
        *of = (choice){.sum = 0};
        snprintf(of->slot, sizeof(of->slot), "%s", record->decision.slot);
        snprintf(of->blueprint, sizeof(of->blueprint), "%s", record->decision.blueprint);
        self->n_choices++;
    }
    of->n[part]++;
    of->sum++;
    return ESPER_OK;
}

/* The updates once more, with returns so many deviations higher. */
static esper_status shift_returns(const esper_report_rows *updates, double deviations, esper_report_rows *rows_out)
{
    rows_out->at = esper_mem_alloc((size_t)updates->n * sizeof(*rows_out->at) + 1);
    if (rows_out->at == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: %d updates", updates->n);
    rows_out->n = rows_out->room = updates->n;
    for (int i = 0; i < updates->n; i++) {
        esper_store_record *record = &rows_out->at[i].record;

        rows_out->at[i] = updates->at[i];
        if (record->update.return_mean == ESPER_STORE_NO_REAL || record->update.return_sd == ESPER_STORE_NO_REAL)
            record->update.return_mean = ESPER_STORE_NO_REAL;
        else
            record->update.return_mean += deviations * record->update.return_sd;
    }
    return ESPER_OK;
}

static esper_status take_reward(void *to, const esper_store_record *record)
{
    learning *self = to;
    int n;
    const esper_store_column *columns = esper_store_columns(ESPER_STORE_REWARD, &n);
    bool is_first = record->reward.round <= window(self->last_round),
         is_last = record->reward.round > self->last_round - window(self->last_round);

    for (int i = n - ESPER_N_REWARD_PARTS, part = 0; i < n; i++, part++) { /* the parts are the last of its columns */
        double value = *(const double *)(const void *)((const char *)record + columns[i].offset);

        if (!esper_html_is_known(value))
            continue;
        self->paid.first[part] += is_first ? value : 0.0;
        self->paid.last[part] += is_last ? value : 0.0;
    }
    self->paid.n_first += is_first && record->reward.episode_epoch == 1;
    self->paid.n_last += is_last && record->reward.episode_epoch == 1;
    return ESPER_OK;
}

static esper_status read_all(esper_store_reader *reader, learning *self)
{
    esper_config config;

    ESPER_TRY(esper_store_read_config(reader, self->run->id, &self->config));
    esper_config_init(&config);
    if (esper_config_load_text(&config, self->config, strlen(self->config), self->run->name) == ESPER_OK) {
        /* whether it was a program that learned, and what from; settings of another version tell nothing */
        snprintf(self->program, sizeof(self->program), "%s", config.policy_cmd);
        snprintf(self->weights, sizeof(self->weights), "%s", config.reward_weights);
    }
    ESPER_TRY(esper_report_rows_read(reader, ESPER_STORE_UPDATE, self->run->id, &self->updates));
    ESPER_TRY(esper_report_rows_read(reader, ESPER_STORE_CLASS, self->run->id, &self->classes));
    if (self->updates.n == 0)
        return ESPER_OK;
    self->last_round = update_at(self, self->updates.n - 1)->update.round;
    ESPER_TRY(shift_returns(&self->updates, 1.0, &self->above));
    ESPER_TRY(shift_returns(&self->updates, -1.0, &self->below));
    ESPER_TRY(esper_report_walk(reader, ESPER_STORE_DECISION, self->run->id, false, take_choice, self));
    return esper_report_walk(reader, ESPER_STORE_REWARD, self->run->id, false, take_reward, self); /* many more */
}

/* ------------------------------------------------------------------------------------------------ head */

/* The mean of a column over some rounds; those that have none are left out. */
static double mean_of(const learning *self, size_t offset, int first, int last)
{
    double sum = 0.0;
    int n = 0;

    assert(first <= last && last <= self->updates.n);
    for (int i = first; i < last; i++) {
        double value = *(const double *)(const void *)((const char *)update_at(self, i) + offset);

        if (esper_html_is_known(value)) {
            sum += value;
            n++;
        }
    }
    return n > 0 ? sum / n : ESPER_STORE_NO_REAL;
}

#define UPDATE(name) offsetof(esper_store_record, update.name)

/* "mean return went from 1.200 to 3.400", stayed at what it was, or, of a single round, was. */
static void write_change(const learning *self, esper_page *page, const char *what, size_t offset, int decimals)
{
    int n = self->updates.n, some = (int)window(n);
    double first = mean_of(self, offset, 0, some), last = mean_of(self, offset, n - some, n);
    double scale = pow(10.0, decimals); /* whether both look the same with so many decimals */
    bool alike =
        first == last || (fabs(first) < 1e12 && fabs(last) < 1e12 && llround(first * scale) == llround(last * scale));

    esper_html(page, "%s %s %.*f", what, n == 1 ? "was" : alike ? "stayed at" : "went from", decimals, first);
    if (n > 1 && !alike)
        esper_html(page, " to %.*f", decimals, last);
}

static void write_lead(const learning *self, esper_page *page)
{
    int n = self->updates.n, some = (int)window(n);

    esper_html(page, "<p class=\"lead\">");
    if (n == 0)
        esper_html(page, "No round has been finished.");
    else {
        if (n == 1)
            esper_html(page, "In its one round the ");
        else if (some == 1)
            esper_html(page, "From the first round to the last of %d the ", n);
        else
            esper_html(page, "From the first %d rounds to the last %d of %d the ", some, some, n);
        write_change(self, page, "mean return", UPDATE(return_mean), 3);
        write_change(self, page, ", validation accuracy", UPDATE(acc_mean), 2);
        esper_html(page, " %%");
        write_change(self, page, ", and parameters", UPDATE(params_mean), 0);
        esper_html(page, ".");
    }
    esper_html(page, "</p>\n");
    if (self->run->ended == ESPER_STORE_NO_REAL)
        esper_html(page, "<p class=\"note\">This run has not ended: it is still going on, or it was stopped.</p>\n");
}

static void write_facts(const learning *self, esper_page *page)
{
    const esper_store_run *run = self->run;
    char seed[24], reward[ESPER_CONFIG_TEXT_CHARS + 80];

    snprintf(seed, sizeof(seed), "%" PRIu64, run->rng_seed);
    snprintf(reward, sizeof(reward), "%s%s%s", run->reward_mode, self->weights[0] != '\0' ? " with " : "",
             self->weights);
    esper_html(page, "<dl class=\"facts\">\n");
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
    esper_report_run_facts(page, run);
    esper_report_fact_int(page, "Times resumed", run->n_resumed);
    esper_report_classes(page, &self->classes);
    esper_html(page, "</dl>\n");
}

/* ------------------------------------------------------------------------------------------------ curves */

static void write_curves(const learning *self, esper_page *page)
{
#define CURVE(name, style, column)                                           \
    {                                                                        \
        name, style, &self->updates, .x = UPDATE(round), .y = UPDATE(column) \
    }
    const esper_report_curve returns[] = {
        CURVE("mean of the round's episodes", "grown", return_mean),
        {"a standard deviation of them higher", "static thin", &self->above, .x = UPDATE(round),
         .y = UPDATE(return_mean)},
        {"and lower", "static thin", &self->below, .x = UPDATE(round), .y = UPDATE(return_mean)}};
    const esper_report_curve accuracy[] = {CURVE("mean at the ends of episodes, validation", "grown", acc_mean)};
    const esper_report_curve params[] = {CURVE("mean at the ends of episodes", "grown", params_mean)};
    const esper_report_curve heads[] = {
        CURVE("op", "e0", entropy_op),
        CURVE("slot", "e1", entropy_slot),
        CURVE("blueprint", "e2", entropy_blueprint),
        CURVE("style", "e3", entropy_style),
        CURVE("tempo", "e4", entropy_tempo),
        CURVE("alpha_target", "e5", entropy_alpha_target),
        CURVE("alpha_speed", "e6", entropy_alpha_speed),
        CURVE("alpha_curve", "e7", entropy_alpha_curve),
    };
    const esper_report_curve moved[] = {CURVE("KL", "grown", kl),
                                        CURVE("share of clipped steps", "static", clip_fraction)};
    const esper_report_curve explained[] = {{"by the critic", "grown", &self->updates, .x = UPDATE(round),
                                             .y = UPDATE(explained_variance), .least = &worst_explained}};
#undef CURVE
    const struct {
        const char               *id, *title, *unit;
        int                       height;
        bool                      from_zero, whole;
        const esper_report_curve *curves;
        int                       n_curves;
    } charts[] = {
        {"return", "Return", "", 260, false, false, returns, 3},
        {"accuracy", "Accuracy", "%", 220, false, false, accuracy, 1},
        {"params", "Parameters", "", 150, false, true, params, 1},
        {"entropy", "Entropy of each head", "", 240, true, false, heads, 8},
        {"moved", "How far the policy moved", "", 150, true, false, moved, 2},
        {"explained", "Explained variance of returns (what is below -1 is drawn there)", "", 150, false, false,
         explained, 1},
    };
    enum { OF_ALL = 3 }; /* the others are of a policy of ours */
    size_t n = self->program[0] != '\0' ? OF_ALL : sizeof(charts) / sizeof(charts[0]);

    esper_html(page, "<h2 id=\"curves\">Curves</h2>\n");
    if (self->updates.n == 0) {
        esper_html(page, "<p>No round has been finished.</p>\n");
        return;
    }
    esper_html(page, "<div class=\"pair\">\n");
    for (size_t i = 0; i < n; i++)
        esper_report_chart(page,
                           (esper_chart){.id = charts[i].id,
                                         .title = charts[i].title,
                                         .unit = charts[i].unit,
                                         .x_name = "round",
                                         .last_epoch = self->last_round,
                                         .height = charts[i].height,
                                         .from_zero = charts[i].from_zero,
                                         .whole = charts[i].whole},
                           charts[i].curves, charts[i].n_curves);
    esper_html(page, "</div>\n");
    if (self->program[0] != '\0')
        esper_html(page, "<p>A program decided and learned by itself: how it moved is not known here.</p>\n");
}

/* ------------------------------------------------------------------------------------------------ tables */

static void write_payments(const learning *self, esper_page *page)
{
    static const char *const columns[] = {"Part", "#First rounds", "#Last rounds", "#Change", NULL};
    const payments *paid = &self->paid;

    esper_html(page, "<h2 id=\"paid\">What was paid for</h2>\n");
    if (paid->n_first == 0 || paid->n_last == 0) {
        esper_html(page, "<p>No rewards are recorded%s.</p>\n",
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
        esper_html(page, "<tr><th scope=\"row\">%s</th>", esper_reward_part_name(part));
        esper_html_cells(page, "%+.3f %+.3f %+.3f", first, last, last - first);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
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
    esper_html(page, "<h2 id=\"rounds\">Rounds</h2>\n");
    if (self->updates.n == 0) {
        esper_html(page, "<p>There is none to tell of.</p>\n");
        return;
    }
    esper_html(page, "<details><summary>The numbers behind the curves, round by round</summary>\n");
    esper_html_table(page, "rounds", NULL, columns);
    for (int i = 0; i < self->updates.n; i++) {
        const esper_store_record *record = update_at(self, i);

        esper_html(page, "<tr>");
        esper_html_cells(page, "%" PRIi64 " %.3f %.3f %.2f %.0f %.1f", record->update.round, record->update.return_mean,
                         record->update.return_sd, record->update.acc_mean, record->update.params_mean,
                         record->update.steps_per_s);
        if (self->program[0] == '\0')
            esper_html_cells(page, "%.3f %.4f %.3f %.4f %.4f %.3f %" PRIi64 " %" PRIi64 " why:%s",
                             record->update.entropy, record->update.kl, record->update.explained_variance,
                             record->update.loss_policy, record->update.loss_value, record->update.grad_norm,
                             record->update.n_learned, record->update.n_skipped, record->update.health);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
    esper_html(page, "</details>\n");
}

static int compare_choices(const void *a, const void *b)
{
    int64_t x = ((const choice *)a)->sum, y = ((const choice *)b)->sum;

    return (x < y) - (x > y);
}

/* What the policy does: seeds it planted, by slot and blueprint, over the rounds. The darker, the more. */
static void write_choices(learning *self, esper_page *page)
{
    enum { SHADES = 5 };
    int64_t most = 1;
    int parts = n_parts(self);

    esper_html(page, "<h2 id=\"choices\">What it plants, and where</h2>\n");
    if (self->n_choices == 0) {
        esper_html(page, "<p>No seed was planted%s.</p>\n", self->program[0] != '\0' ? ", as far as is known" : "");
        return;
    }
    qsort(self->choices, (size_t)self->n_choices, sizeof(self->choices[0]), compare_choices);
    for (int i = 0; i < self->n_choices; i++)
        for (int part = 0; part < parts; part++)
            most = self->choices[i].n[part] > most ? self->choices[i].n[part] : most;
    esper_html(page, "<p class=\"soft\">Seeds that germinated in all episodes, by slot and blueprint, from the first "
                     "rounds to the last.</p>\n<div class=\"wide\"><table class=\"choices\">\n<thead><tr><th "
                     "scope=\"col\">Slot</th><th scope=\"col\">Blueprint</th>");
    for (int part = 0; part < parts; part++)
        esper_html(page, "<th scope=\"col\" class=\"n\">%" PRId64 " to %" PRId64 "</th>",
                   (part * self->last_round + parts - 1) / parts + 1,
                   ((part + 1) * self->last_round + parts - 1) / parts);
    esper_html(page, "<th scope=\"col\" class=\"n\">All</th></tr></thead>\n<tbody>\n");
    for (int i = 0; i < self->n_choices; i++) {
        esper_html(page, "<tr>");
        esper_html_cells(page, "name:%s name:%s", self->choices[i].slot, self->choices[i].blueprint);
        for (int part = 0; part < parts; part++)
            esper_html(page, "<td class=\"n h%d\">%" PRIi64 "</td>",
                       (int)((self->choices[i].n[part] * SHADES + most - 1) / most), self->choices[i].n[part]);
        esper_html_cells(page, "%" PRIi64, self->choices[i].sum);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
    if (self->n_left_out > 0)
        esper_html(page, "<p class=\"soft\">%" PRIi64 " more, of other choices, are in the store.</p>\n",
                   self->n_left_out);
}

/* ------------------------------------------------------------------------------------------------ the page */

static void write_page(learning *self, esper_page *page)
{
    char title[160];

    snprintf(title, sizeof(title), "%s: a %s that learns", self->run->task[0] != '\0' ? self->run->task : "a task",
             self->program[0] != '\0' ? "program" : "policy");
    esper_report_begin(page, title, style);
    write_lead(self, page);
    write_facts(self, page);
    esper_report_configuration(page, self->config);
    esper_html(page, "<nav aria-label=\"Sections\"><a href=\"#curves\">Curves</a>"
                     "<a href=\"#choices\">Choices</a><a href=\"#paid\">Paid for</a>"
                     "<a href=\"#rounds\">Rounds</a></nav>\n</header>\n<main>\n");
    write_curves(self, page);
    write_choices(self, page);
    write_payments(self, page);
    write_updates(self, page);
    esper_html(page,
               "</main>\n<footer><p>Made by esper report from the run store of %s. A round is an episode of every "
               "environment%s.</p></footer>\n</body>\n</html>\n",
               self->run->name[0] != '\0' ? self->run->name : "this run",
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
    esper_report_rows_fini(&self.classes);
    esper_report_rows_fini(&self.above);
    esper_report_rows_fini(&self.below);
    esper_mem_free(self.config);
    return status;
}
