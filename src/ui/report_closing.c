/* The numbers of the closing table: the static host beside the grown one. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "ui/report_data.h"

static int64_t int_or(int64_t value, int64_t other)
{
    return value != ESPER_STORE_NO_INT ? value : other;
}

static bool is_known(double value)
{
    return value != ESPER_STORE_NO_REAL;
}

/* What the epochs tell; the run's own row knows more once it has ended. Time went by in undone epochs, too. */
static void take_epochs(const esper_report_rows *rows, esper_report_line *line)
{
    for (int i = 0; i < rows->n; i++) {
        const esper_store_record *record = &rows->at[i].record;

        if (is_known(record->epoch_done.seconds))
            line->seconds = (is_known(line->seconds) ? line->seconds : 0.0) + record->epoch_done.seconds;
        if (!rows->at[i].stands)
            continue;
        line->epochs = record->epoch;
        line->params = int_or(record->epoch_done.params, line->params);
        line->flops_train = int_or(record->epoch_done.flops_train, line->flops_train);
        line->acc_valid = record->epoch_done.acc_valid;
    }
}

static esper_report_line nothing(void)
{
    return (esper_report_line){.run = ESPER_STORE_NO_INT,
                               .epochs = ESPER_STORE_NO_INT,
                               .params = ESPER_STORE_NO_INT,
                               .flops = ESPER_STORE_NO_INT,
                               .flops_train = ESPER_STORE_NO_INT,
                               .acc_test = ESPER_STORE_NO_REAL,
                               .acc_valid = ESPER_STORE_NO_REAL,
                               .seconds = ESPER_STORE_NO_REAL};
}

static esper_status read_line(esper_store_reader *reader, const esper_store_run *run, esper_report_line *line_out)
{
    esper_report_line line = nothing();
    esper_report_rows rows;

    ESPER_TRY(esper_report_rows_read(reader, ESPER_STORE_EPOCH, run->id, &rows));
    take_epochs(&rows, &line);
    esper_report_rows_fini(&rows);
    line.run = run->id;
    line.ended = is_known(run->ended);
    line.epochs = int_or(run->epochs, int_or(line.epochs, 0));
    line.params = int_or(run->params, line.params);
    line.flops = run->flops;
    line.flops_train = int_or(run->flops_train, line.flops_train);
    line.acc_test = run->acc_test;
    if (is_known(run->seconds) && run->n_resumed <= 0) /* the row knows of its last process alone */
        line.seconds = run->seconds;
    *line_out = line;
    return ESPER_OK;
}

static int64_t int_minus(int64_t a, int64_t b)
{
    return a != ESPER_STORE_NO_INT && b != ESPER_STORE_NO_INT ? a - b : ESPER_STORE_NO_INT;
}

static double real_minus(double a, double b)
{
    return is_known(a) && is_known(b) ? a - b : ESPER_STORE_NO_REAL;
}

static esper_report_line line_minus(const esper_report_line *a, const esper_report_line *b)
{
    esper_report_line line = nothing();

    line.epochs = int_minus(a->epochs, b->epochs);
    line.params = int_minus(a->params, b->params);
    line.flops = int_minus(a->flops, b->flops);
    line.flops_train = int_minus(a->flops_train, b->flops_train);
    line.acc_test = real_minus(a->acc_test, b->acc_test);
    line.acc_valid = real_minus(a->acc_valid, b->acc_valid);
    line.seconds = real_minus(a->seconds, b->seconds);
    return line;
}

static esper_status count_row(void *to, const esper_store_record *record)
{
    (void)record;
    ++*(int64_t *)to;
    return ESPER_OK;
}

esper_status esper_report_closing(esper_store_reader *reader, int64_t run, esper_report_numbers *numbers_out)
{
    esper_report_numbers numbers = {.host = nothing()};
    esper_store_run grown, control;
    bool has_control;

    ESPER_TRY(esper_report_find_runs(reader, run, &grown, &control, &has_control));
    ESPER_TRY(read_line(reader, &grown, &numbers.grown));
    numbers.learns = strcmp(grown.policy, ESPER_REPORT_LEARNER) == 0;
    if (numbers.learns) { /* rounds, as far as it has come */
        numbers.grown.epochs = 0;
        ESPER_TRY(esper_report_walk(reader, ESPER_STORE_UPDATE, run, false, count_row, &numbers.grown.epochs));
    }
    if (has_control)
        ESPER_TRY(read_line(reader, &control, &numbers.host));
    numbers.host.params = int_or(numbers.host.params, grown.params_host);
    numbers.host.flops = int_or(numbers.host.flops, grown.flops_host);
    numbers.difference = line_minus(&numbers.grown, &numbers.host);
    *numbers_out = numbers;
    return ESPER_OK;
}
