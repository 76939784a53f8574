/* The trials of a run: forks beside each other, and what came of them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "policy/policy.h"
#include "policy/trials.h"
#include "slot/stage.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* ------------------------------------------------------------------------------------------------ reading */

/* A number of a line of the decision log, which may have been cut short; NaN: there is none. Quotes inside of texts are escaped,
 * so a key is not found there. */
static double number_in(const char *line, const char *key)
{
    char quoted[32], digits[ESPER_NUMBER_CHARS];
    double value = (double)NAN;
    const char *at;

    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    at = strstr(line, quoted);
    if (at == NULL)
        return value;
    at += strlen(quoted);
    snprintf(digits, sizeof(digits), "%.*s", (int)strcspn(at, ",}"), at);
    return esper_number_read_real(digits, &value) ? value : (double)NAN;
}

bool esper_report_is_fork(const esper_report_row *row)
{
    return strcmp(row->record.decision.source, "trial") == 0;
}

static esper_report_fork fork_of(const esper_report_row *row)
{
    const char *line = row->record.decision.line;
    double round = number_in(line, "round"), n_steps = number_in(line, "n_steps");

    return (esper_report_fork){.row = row,
                               .rounds = round >= 0.0 && round < 100.0 ? (int)round + 1 : 0,
                               .n_steps = n_steps >= 0.0 && n_steps < 1e9 ? (int64_t)n_steps : 0,
                               .loss = number_in(line, "loss"),
                               .gain = number_in(line, "gain"),
                               .error = number_in(line, "error"),
                               .flops = number_in(line, "flops")};
}

/* The fork that got nothing begins a trial; what follows the last of its forks is the verdict. */
esper_status esper_report_trials_read(esper_report_data *data)
{
    const esper_report_rows *rows = &data->decisions;
    esper_report_trial *trial = NULL;
    int n = 0;

    for (int i = 0; i < rows->n; i++)
        n += esper_report_is_fork(&rows->at[i]);
    data->forks = esper_mem_alloc((size_t)n * sizeof(*data->forks) + 1);
    data->trials = esper_mem_alloc((size_t)n * sizeof(*data->trials) + 1);
    if (data->forks == NULL || data->trials == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: %d forks", n);
    for (int i = 0; i < rows->n; i++) {
        const esper_store_record *record = &rows->at[i].record;

        if (!esper_report_is_fork(&rows->at[i])) {
            if (trial != NULL && trial->verdict == NULL && strcmp(record->decision.source, "policy") == 0)
                trial->verdict = &rows->at[i];
            trial = NULL;
            continue;
        }
        if (trial == NULL || record->decision.slot[0] == '\0') {
            trial = &data->trials[data->n_trials++];
            *trial = (esper_report_trial){.forks = &data->forks[data->n_forks],
                                          .share = number_in(record->decision.line, "share")};
        }
        data->forks[data->n_forks++] = fork_of(&rows->at[i]);
        trial->n++;
    }
    return ESPER_OK;
}

double esper_report_trial_flops(const esper_report_data *data)
{
    double flops = 0.0;

    for (int i = 0; i < data->n_forks; i++)
        if (data->forks[i].row->stands && isfinite(data->forks[i].flops))
            flops += data->forks[i].flops;
    return flops;
}

/* Whether a seed came of it. */
static bool is_won(const esper_report_trial *trial)
{
    return trial->n > 1 && trial->verdict != NULL && trial->verdict->record.decision.accepted == 1 &&
           strcmp(trial->verdict->record.decision.op, "germinate") == 0;
}

/* Whether a policy asked for it, to decide by it later. */
static bool is_asked_for(const esper_report_trial *trial)
{
    return trial->verdict != NULL &&
           strcmp(trial->verdict->record.decision.op, esper_slot_op_name(ESPER_SLOT_OP_TRY)) == 0;
}

static bool is_birth(const esper_report_row *row, const esper_store_seed *seed)
{
    return row->stands && row->record.epoch == seed->germinated_epoch && row->record.decision.accepted == 1 &&
           strcmp(row->record.decision.op, "germinate") == 0 && strcmp(row->record.decision.slot, seed->slot) == 0;
}

const esper_report_trial *esper_report_trial_of(const esper_report_data *data, const esper_store_seed *seed)
{
    for (int i = 0; i < data->n_trials; i++)
        if (is_won(&data->trials[i]) && is_birth(data->trials[i].verdict, seed))
            return &data->trials[i];
    return NULL;
}

double esper_report_birth_share(const esper_report_data *data, const esper_store_seed *seed)
{
    for (int i = 0; i < data->decisions.n; i++)
        if (is_birth(&data->decisions.at[i], seed))
            return number_in(data->decisions.at[i].record.decision.line, "share");
    return (double)NAN;
}

const char *esper_report_why_nothing(const esper_report_data *data)
{
    const char *why = NULL;

    for (int i = data->n_trials - 1; i >= 0; i--)
        if (data->trials[i].verdict != NULL && !is_asked_for(&data->trials[i]))
            return data->trials[i].verdict->record.decision.reason;
    for (int i = 0; i < data->decisions.n; i++) {
        const esper_report_row *row = &data->decisions.at[i];

        if (row->stands && strcmp(row->record.decision.source, "policy") == 0 &&
            row->record.decision.reason[0] != '\0' && strcmp(row->record.decision.reason, ESPER_TRIALS_OVER) != 0 &&
            strcmp(row->record.decision.reason, ESPER_TRIALS_DONE) != 0)
            why = row->record.decision.reason;
    }
    return why;
}

/* ------------------------------------------------------------------------------------------------ the section */

double esper_report_reach(const esper_report_trial *trial, const esper_report_fork *fork)
{
    return trial->n > 1 ? esper_trial_bound(trial->n - 1) * fork->error : (double)NAN;
}

static void write_fork(esper_page *page, const esper_report_trial *trial, const esper_report_fork *fork, double most)
{
    const esper_store_record *record = &fork->row->record;
    double reach = esper_report_reach(trial, fork);

    esper_report_row_begin(page, fork->row);
    if (record->decision.slot[0] == '\0') {
        esper_html(page, "<td colspan=\"2\">nothing</td>");
        esper_html_cells(page, "%d %" PRIi64 " %.4f", fork->rounds, fork->n_steps, fork->loss);
        esper_html(page, "<td class=\"soft\" colspan=\"3\">what the others are compared with</td></tr>\n");
        return;
    }
    esper_html_cells(page, "name:%s name:%s %d %" PRIi64 " %.4f %+.4f", record->decision.slot,
                     record->decision.blueprint, fork->rounds, fork->n_steps, fork->loss, fork->gain);
    esper_html(page, "<td class=\"n\">%+.4f to %+.4f</td>", fork->gain - reach, fork->gain + reach);
    esper_report_gauge(page, fork->gain, fork->gain - reach, fork->gain + reach, most);
    esper_html(page, "</tr>\n");
}

static void write_trial(esper_page *page, const esper_report_trial *trial)
{
    static const char *const columns[] = {"Slot",  "Blueprint", "#Rounds",  "#Steps", "#Loss",
                                          "#Gain", "#Interval", "Gain in nats", NULL};
    const esper_store_record *best = &trial->forks[trial->n > 1].row->record;
    int64_t epoch = trial->forks[0].row->record.epoch;
    double most = 0.0;

    for (int i = 1; i < trial->n; i++)
        if (isfinite(trial->forks[i].gain) && isfinite(trial->forks[i].error))
            most = fmax(most, fabs(trial->forks[i].gain) + esper_report_reach(trial, &trial->forks[i]));
    esper_html(page, "<h3>Epoch %" PRId64, epoch);
    if (isfinite(trial->share))
        esper_html(page, ", %.1f %% of the run's training FLOPs spent by its end", 100.0 * trial->share);
    if (is_won(trial))
        esper_html(page, ": %s in %s wins</h3>\n", best->decision.blueprint, best->decision.slot);
    else if (is_asked_for(trial))
        esper_html(page, ": asked for, and %s in %s did best</h3>\n", best->decision.blueprint, best->decision.slot);
    else
        esper_html(page, ": %s</h3>\n", trial->verdict != NULL ? "none pays" : "not decided");
    if (trial->verdict != NULL)
        esper_html(page, "<p class=\"soft\">%s.</p>\n", trial->verdict->record.decision.reason);
    esper_html_table(page, "trial", NULL, columns);
    for (int i = 0; i < trial->n; i++)
        write_fork(page, trial, &trial->forks[i], most > 0.0 ? most : 1.0);
    esper_html_table_end(page);
}

void esper_report_trials(esper_page *page, const esper_report_data *data)
{
    double flops = esper_report_trial_flops(data), all = (double)data->closing.grown.flops_train;
    char text[ESPER_TEXT_CHARS];
    const char *why;

    esper_html(page, "<h2 id=\"trials\">Trials</h2>\n");
    if (data->n_trials == 0) {
        why = esper_report_why_nothing(data);
        if (data->run.policy[0] != '\0' && strcmp(data->run.policy, esper_policy_trials.name) != 0)
            esper_html(page, "<p>No trial was held: %s decided, which decides otherwise.</p>\n", data->run.policy);
        else
            esper_html(page, "<p>No trial was held%s%s.</p>\n", why != NULL ? ": " : "", why != NULL ? why : "");
        return;
    }
    esper_html(page, "<p>Trials took %s of training", esper_text_flops(flops, text));
    if (all > 0.0)
        esper_html(page, ", %.1f %% of all that the run spent", 100.0 * flops / all);
    esper_html(page,
               ".</p>\n<p class=\"soft\">The run is forked: once as it is, and once with each candidate. All forks "
               "train on the same batches while their rate falls to 0; half of them go on to the next round, from "
               "the start and for longer. Gain: validation loss of the fork that got nothing less the candidate's, "
               "in its last round, with the interval that is right for all candidates together.</p>\n");
    for (int i = 0; i < data->n_trials; i++)
        write_trial(page, &data->trials[i]);
}
