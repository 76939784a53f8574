/* The seeds of a run: their lives as bars, their lineage, and the evidence at their gates. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "slot/gate.h"
#include "slot/stage.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* A bar of the timeline, in units of its SVG. */
enum { BAR_WIDTH = 500, BAR_HEIGHT = 22, BAR_EDGE = 12, AXIS_HEIGHT = 20 };

/* The stages a seed lives in, in the order of the columns of the lineage. */
static const esper_stage lived[] = {ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING,
                                    ESPER_STAGE_HOLDING, ESPER_STAGE_FOSSILIZED};

enum { N_LIVED = sizeof(lived) / sizeof(lived[0]) };

/* ------------------------------------------------------------------------------------------------ lives */

/* A stretch of a seed's life in one stage. */
typedef struct stretch {
    int     stage; /* -1: a stage that we do not know */
    int64_t from, to;
} stretch;

/* A walk over the moves of one seed; after its prune there is only the cooling slot. */
typedef struct life {
    const esper_report_data *data;
    const esper_store_seed  *seed;
    int                      next; /* row of stages to look at */
    int64_t                  from;
    int                      stage;
    bool                     over;
} life;

static life life_of(const esper_report_data *data, const esper_store_seed *seed)
{
    return (life){.data = data, .seed = seed, .from = seed->germinated_epoch, .stage = ESPER_STAGE_GERMINATED};
}

static bool life_next(life *walk, stretch *stretch_out)
{
    const esper_report_rows *moves = &walk->data->stages;

    assert(walk->next <= moves->n);
    if (walk->over)
        return false;
    for (; walk->next < moves->n; walk->next++) {
        const esper_store_record *move = &moves->at[walk->next].record;

        if (!moves->at[walk->next].stands || move->stage.seed != walk->seed->seed ||
            strcmp(move->stage.from_stage, "dormant") == 0) /* its birth, which the germination tells */
            continue;
        *stretch_out = (stretch){.stage = walk->stage, .from = walk->from, .to = move->epoch};
        walk->next++;
        walk->from = move->epoch;
        walk->stage = esper_stage_find(move->stage.to_stage);
        walk->over = strcmp(move->stage.to_stage, "pruned") == 0;
        return true;
    }
    *stretch_out = (stretch){.stage = walk->stage, .from = walk->from, .to = walk->data->last_grown_epoch};
    walk->over = true;
    return true;
}

void esper_report_seed_name(const esper_report_data *data, int64_t seed, char *text, size_t chars)
{
    const esper_store_seed *known = esper_report_seed_of(data, seed);

    if (known != NULL)
        snprintf(text, chars, "seed %" PRId64 " (%s in %s)", seed, known->blueprint, known->slot);
    else
        snprintf(text, chars, "seed %" PRId64, seed);
}

static bool is_done(int64_t epoch)
{
    return epoch != ESPER_STORE_NO_INT;
}

/* "kept in epoch 24", or what it stands at when it has not ended; and who ended it, and why. */
static void write_fate(esper_page *page, const esper_store_seed *seed)
{
    esper_html(page, "<td class=\"why\">");
    if (is_done(seed->pruned_epoch))
        esper_html(page, "<span class=\"fail\">pruned</span> in epoch %" PRId64, seed->pruned_epoch);
    else if (is_done(seed->fossilized_epoch))
        esper_html(page, "<span class=\"pass\">kept</span> in epoch %" PRId64, seed->fossilized_epoch);
    else
        esper_html(page, "not decided: %s", seed->stage);
    if ((is_done(seed->pruned_epoch) || is_done(seed->fossilized_epoch)) &&
        (seed->initiator[0] != '\0' || seed->reason[0] != '\0'))
        esper_html(page, "<br/><span class=\"soft\">%s%s%s</span>", seed->initiator,
                   seed->initiator[0] != '\0' && seed->reason[0] != '\0' ? ": " : "", seed->reason);
    esper_html(page, "</td></tr>\n");
}

/* ------------------------------------------------------------------------------------------------ timeline */

static esper_scale bar_scale(const esper_report_data *data)
{
    return esper_scale_inside(0.0, (double)data->last_epoch, 8, true);
}

static double bar_x(const esper_scale *scale, int64_t epoch)
{
    return esper_scale_place(scale, (double)epoch, BAR_EDGE, BAR_WIDTH - BAR_EDGE);
}

static void write_axis(esper_page *page, const esper_report_data *data)
{
    esper_scale scale = bar_scale(data);

    esper_html(page,
               "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\"><title>epochs, 0 to %" PRId64
               "</title>",
               BAR_WIDTH, AXIS_HEIGHT, BAR_WIDTH, AXIS_HEIGHT, data->last_epoch);
    for (int i = 0; i < scale.n_ticks; i++) {
        int64_t epoch = (int64_t)(scale.first + i * scale.step + 0.5);

        esper_html(page, "<text y=\"14\" text-anchor=\"middle\" x=\"%a\">%" PRId64 "</text>", bar_x(&scale, epoch),
                   epoch);
    }
    esper_html(page, "</svg>");
}

static const char *style_of(int stage)
{
    for (int i = 0; i < N_LIVED; i++)
        if ((int)lived[i] == stage)
            return esper_stage_name(stage);
    return "other";
}

static const char *stage_word(int stage)
{
    const char *name = esper_stage_name(stage);

    return name == NULL ? "another stage" : stage == ESPER_STAGE_FOSSILIZED ? "fossilised" : name;
}

static double alpha_y(double alpha)
{
    double share = alpha >= 0.0 && alpha <= 1.0 ? alpha : alpha > 1.0 ? 1.0 : 0.0; /* and none for NaN */

    return BAR_HEIGHT - 2 - share * (BAR_HEIGHT - 4);
}

/* Its weight when a stretch began: that of the last row before it. Rows are of epochs' ends. */
static double alpha_at(const esper_report_data *data, int64_t seed, int64_t epoch)
{
    double alpha = 0.0;

    for (int i = 0; i < data->seed_epochs.n; i++) {
        const esper_store_record *row = &data->seed_epochs.at[i].record;

        if (data->seed_epochs.at[i].stands && row->seed_epoch.seed == seed && row->epoch <= epoch)
            alpha = row->seed_epoch.alpha;
    }
    return alpha;
}

/* Pale over the whole height: where it was in this stage. Filled up to alpha, in the full colour of the stage. */
static void write_stretch(esper_page *page, const esper_report_data *data, const esper_scale *scale, int64_t seed,
                          const stretch *part)
{
    double from = bar_x(scale, part->from), to = bar_x(scale, part->to);

    if (part->to <= part->from)
        return;
    esper_html(page,
               "<rect class=\"back s-%s\" y=\"2\" height=\"%d\" x=\"%a\" width=\"%a\"><title>%s, epochs %" PRId64
               " to %" PRId64 "</title></rect>",
               style_of(part->stage), BAR_HEIGHT - 4, from, to - from, stage_word(part->stage), part->from, part->to);
    esper_html(page, "<path class=\"s-%s\" d=\"M%a %dL%a %a", style_of(part->stage), from, BAR_HEIGHT - 2, from,
               alpha_y(alpha_at(data, seed, part->from)));
    for (int i = 0; i < data->seed_epochs.n; i++) {
        const esper_store_record *row = &data->seed_epochs.at[i].record;

        if (data->seed_epochs.at[i].stands && row->seed_epoch.seed == seed && row->epoch > part->from &&
            row->epoch <= part->to)
            esper_html(page, "L%a %a", bar_x(scale, row->epoch), alpha_y(row->seed_epoch.alpha));
    }
    esper_html(page, "L%a %aL%a %dz\"/>", to, alpha_y(alpha_at(data, seed, part->to)), to, BAR_HEIGHT - 2);
}

static void write_bar(esper_page *page, const esper_report_data *data, const esper_store_seed *seed)
{
    esper_scale scale = bar_scale(data);
    life walk = life_of(data, seed);
    stretch part;

    esper_html(page,
               "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\"><title>seed %" PRId64
               ", epochs %" PRId64 " to %" PRId64 "</title>",
               BAR_WIDTH, BAR_HEIGHT, BAR_WIDTH, BAR_HEIGHT, seed->seed, seed->germinated_epoch,
               is_done(seed->pruned_epoch) ? seed->pruned_epoch : data->last_grown_epoch);
    while (life_next(&walk, &part))
        write_stretch(page, data, &scale, seed->seed, &part);
    esper_html(
        page, /* so that one that has just come is seen */
        "<rect class=\"s-germinated\" y=\"2\" width=\"2\" height=\"%d\" x=\"%a\"><title>germinated in epoch %" PRId64
        "</title></rect>",
        BAR_HEIGHT - 4, bar_x(&scale, seed->germinated_epoch), seed->germinated_epoch);
    if (is_done(seed->pruned_epoch))
        esper_html(page,
                   "<path class=\"cut\" fill=\"none\" d=\"M%a 6l10 10m0 -10l-10 10\"><title>pruned in epoch %" PRId64
                   "</title></path>",
                   bar_x(&scale, seed->pruned_epoch) - 5.0, seed->pruned_epoch);
    esper_html(page, "</svg>");
}

static void write_stage_key(esper_page *page)
{
    esper_html(page, "<ul class=\"key\">");
    for (int i = 0; i < N_LIVED; i++)
        esper_html(page,
                   "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"s-%s\" width=\"14\" "
                   "height=\"14\"/></svg>%s: %s</li>",
                   style_of((int)lived[i]), stage_word((int)lived[i]), esper_stage_about((int)lived[i]));
    esper_html(page, "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><path class=\"cut\" fill=\"none\" "
                     "d=\"M2 2l10 10m0 -10l-10 10\"/></svg>pruned</li></ul>\n");
}

void esper_report_timeline(esper_page *page, const esper_report_data *data)
{
    esper_html(page, "<h2 id=\"timeline\">Seed timeline</h2>\n");
    if (data->n_seeds == 0) {
        esper_html(page, "<p>No seed has germinated.</p>\n");
        return;
    }
    esper_html(page, "<p class=\"soft\">A row for each seed. Pale: in this stage. Full: up to its weight alpha, "
                     "from 0 at the foot to 1 at the top.</p>\n");
    write_stage_key(page);
    esper_html(page, "<div class=\"wide\"><table class=\"timeline\">\n<thead><tr><th scope=\"col\">Seed</th>"
                     "<th scope=\"col\">Slot</th><th scope=\"col\">Blueprint</th><th scope=\"col\" class=\"bar\">");
    write_axis(page, data);
    esper_html(page, "</th><th scope=\"col\">What became of it</th></tr></thead>\n<tbody>\n");
    for (int i = 0; i < data->n_seeds; i++) {
        const esper_store_seed *seed = &data->seeds[i];

        esper_html(page, "<tr><th scope=\"row\">%" PRId64 "</th>", seed->seed);
        esper_html_cells(page, "name:%s name:%s", seed->slot, seed->blueprint);
        esper_html(page, "<td class=\"bar\">");
        write_bar(page, data, seed);
        esper_html(page, "</td>");
        write_fate(page, seed);
    }
    esper_html_table_end(page);
}

/* ------------------------------------------------------------------------------------------------ lineage */

static void write_epochs_lived(esper_page *page, const esper_report_data *data, const esper_store_seed *seed)
{
    int64_t epochs[N_LIVED] = {0};
    bool been[N_LIVED] = {false};
    life walk = life_of(data, seed);
    stretch part;

    while (life_next(&walk, &part))
        for (int i = 0; i < N_LIVED; i++)
            if ((int)lived[i] == part.stage) {
                epochs[i] += part.to - part.from;
                been[i] = true;
            }
    for (int i = 0; i < N_LIVED - 1; i++) /* fossilised is for good */
        esper_html_cells(page, "%" PRIi64, been[i] ? epochs[i] : ESPER_STORE_NO_INT);
}

/* What its trial said. */
static void write_gain(esper_page *page, const esper_report_data *data, const esper_store_seed *seed)
{
    const esper_report_trial *trial = esper_report_trial_of(data, seed);

    if (trial == NULL) {
        esper_html_cells(page, "%+.4f", ESPER_STORE_NO_REAL);
        return;
    }
    esper_html(page, "<td class=\"n\">%+.4f<br/><span class=\"soft\">%+.4f to %+.4f</span></td>", trial->forks[1].gain,
               trial->forks[1].gain - esper_report_reach(trial, &trial->forks[1]),
               trial->forks[1].gain + esper_report_reach(trial, &trial->forks[1]));
}

/* The last dependence, and below it the bounds. */
static void write_dependence(esper_page *page, const esper_report_data *data, const esper_store_seed *seed)
{
    const esper_store_record *last = esper_report_attribution_of(data, "contribution", seed->seed);
    double lower = last != NULL ? last->attribution.lower : ESPER_STORE_NO_REAL;
    double upper = last != NULL ? last->attribution.upper : ESPER_STORE_NO_REAL;

    esper_html(page, "<td class=\"n\">%+.2f", last != NULL ? last->attribution.value : ESPER_STORE_NO_REAL);
    if (lower != ESPER_STORE_NO_REAL || upper != ESPER_STORE_NO_REAL)
        esper_html(page, "<br/><span class=\"soft\">%+.2f to %+.2f</span>", lower, upper);
    esper_html(page, "</td>");
}

static void write_lineage_row(esper_page *page, const esper_report_data *data, const esper_store_seed *seed)
{
    esper_html(page, "<tr><th scope=\"row\">%" PRId64 "</th>", seed->seed);
    esper_html_cells(page, "name:%s", seed->slot);
    esper_html(page, "<td>%s", seed->blueprint);
    if (seed->blend[0] != '\0')
        esper_html(page, "<br/><span class=\"soft\">%s</span>", seed->blend);
    if (seed->parent_seed != ESPER_STORE_NO_INT) {
        esper_html(page, "<br/><span class=\"soft\">from seed %" PRId64, seed->parent_seed);
        if (seed->parent_run != ESPER_STORE_NO_INT)
            esper_html(page, " of run %" PRId64, seed->parent_run);
        esper_html(page, "</span>");
    }
    esper_html(page, "</td>");
    esper_html_cells(page, "%" PRIi64 " %" PRIi64, seed->params, seed->germinated_epoch);
    write_epochs_lived(page, data, seed);
    write_gain(page, data, seed);
    write_dependence(page, data, seed);
    write_fate(page, seed);
}

void esper_report_lineage(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {
        "Seed",      "Slot",     "Blueprint", "#Parameters", "#Came in epoch",    "#Germinated", "#Training",
        "#Blending", "#Holding", "#Gain",     "#Dependence", "What became of it", NULL};

    esper_html(page, "<h2 id=\"lineage\">Lineage</h2>\n");
    if (data->n_seeds == 0) {
        esper_html(page, "<p>No seed has germinated.</p>\n");
        return;
    }
    esper_html(page,
               "<p class=\"soft\">Germinated to holding: epochs spent in that stage. Gain: nats of validation "
               "loss that its fork won over the one that got nothing, in its trial, with an interval. Dependence: "
               "points of validation accuracy that are lost when the seed is taken away, as last measured, with "
               "one-sided 95 %% bounds: how much the network leans on it, not what it brought.</p>\n");
    esper_html_table(page, "lineage", NULL, columns);
    for (int i = 0; i < data->n_seeds; i++)
        write_lineage_row(page, data, &data->seeds[i]);
    esper_html_table_end(page);
}

/* ------------------------------------------------------------------------------------------------ gates */

/* How many checks an evaluation has. They come right after it, and rows are in the order of seq. */
static int find_checks(const esper_report_data *data, int64_t gate, int *first_out)
{
    int low = 0, high = data->checks.n, n = 0;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (data->checks.at[middle].record.seq > gate)
            high = middle;
        else
            low = middle + 1;
    }
    while (low + n < data->checks.n && data->checks.at[low + n].record.check.gate == gate)
        n++;
    *first_out = low;
    return n;
}

/* "" for a check of another version. */
static const char *about_check(const char *name)
{
    for (int kind = 0; kind < ESPER_CHECK_N_KINDS; kind++)
        if (strcmp(esper_gate_check_name(kind), name) == 0)
            return esper_gate_check_about(kind);
    return "";
}

static void write_evaluation(esper_page *page, const esper_report_data *data, const esper_report_row *row)
{
    const esper_store_record *gate = &row->record;
    bool passed = gate->gate.passed == 1;
    int first = 0, n = find_checks(data, gate->seq, &first), span = n > 0 ? n : 1;

    for (int i = 0; i < span; i++) {
        esper_report_row_begin(page, row);
        if (i == 0)
            esper_html(page,
                       "<td class=\"n\" rowspan=\"%d\">%" PRId64 "</td><td rowspan=\"%d\">%s to %s</td>"
                       "<td class=\"%s\" rowspan=\"%d\">%s</td>",
                       span, gate->epoch, span, gate->gate.gate, gate->gate.to_stage, passed ? "pass" : "fail", span,
                       passed ? "passed" : "failed");
        if (n > 0) {
            const esper_store_record *check = &data->checks.at[first + i].record;
            const char *word = check->check.passed == 1 ? "pass" : "fail";

            esper_html(page, "<td>%s<br/><span class=\"soft\">%s</span></td>", check->check.name,
                       about_check(check->check.name));
            esper_html_cells(page, "%g %g", check->check.value, check->check.threshold);
            esper_html(page, "<td class=\"%s\">%s</td>", word, word);
        } else
            esper_html(page, "<td colspan=\"4\" class=\"soft\">no check was recorded</td>");
        if (i == 0)
            esper_html(page, "<td class=\"why\" rowspan=\"%d\">%s%s</td>", span, row->stands ? "" : "(undone) ",
                       gate->gate.message);
        esper_html(page, "</tr>\n");
    }
}

static void write_seed_gates(esper_page *page, const esper_report_data *data, int64_t seed)
{
    static const char *const columns[] = {"#Epoch",     "Gate",  "Result", "Check", "#Measured",
                                          "#Asked for", "Held", "In words", NULL};
    int n = 0, n_passed = 0;
    char name[128];

    for (int i = 0; i < data->gates.n; i++)
        if (data->gates.at[i].record.gate.seed == seed) {
            n++;
            n_passed += data->gates.at[i].record.gate.passed == 1;
        }
    esper_report_seed_name(data, seed, name, sizeof(name));
    esper_html(page, "<details><summary>%s: %d evaluation%s, %d passed</summary>\n", name, n, n == 1 ? "" : "s",
               n_passed);
    esper_html_table(page, "gates", NULL, columns);
    for (int i = 0; i < data->gates.n; i++)
        if (data->gates.at[i].record.gate.seed == seed)
            write_evaluation(page, data, &data->gates.at[i]);
    esper_html_table_end(page);
    esper_html(page, "</details>\n");
}

void esper_report_gates(esper_page *page, const esper_report_data *data)
{
    esper_html(page, "<h2 id=\"gates\">Gate evidence</h2>\n");
    if (data->gates.n == 0) {
        esper_html(page, "<p>No gate has been evaluated.</p>\n");
        return;
    }
    esper_html(page, "<p class=\"soft\">Every evaluation of every gate");
    if (data->run.gate_mode[0] != '\0')
        esper_html(page, " (mode: %s)", data->run.gate_mode);
    esper_html(page, ", with what was measured and what was asked for. A question is answered by 1 (yes) or "
                     "0 (no); `contribution` is what this page calls dependence. What a rollback has undone is struck "
                     "through.</p>\n");
    for (int i = 0; i < data->gates.n; i++) {
        int64_t seed = data->gates.at[i].record.gate.seed;
        int first = 0;

        while (data->gates.at[first].record.gate.seed != seed)
            first++;
        if (first == i) /* the first of its seed: all of it is written here */
            write_seed_gates(page, data, seed);
    }
}
