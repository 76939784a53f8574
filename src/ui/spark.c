/* Curves in characters. A cell has eight heights where there is UTF-8, and two elsewhere. */
#include "ui/spark.h"

#include <assert.h>
#include <math.h>

enum { MOST_WIDE = 4 }; /* columns of a value in a chart, where there are few */

static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const signs[] = {" ", ".", "#"}; /* in ASCII: half, and whole */

bool esper_spark_measure(esper_spark_chart *chart)
{
    chart->low = (double)INFINITY;
    chart->high = -(double)INFINITY;
    for (int i = 0; i < chart->n; i++)
        if (isfinite(chart->values[i])) {
            chart->low = fmin(chart->low, chart->values[i]);
            chart->high = fmax(chart->high, chart->values[i]);
        }
    return chart->low <= chart->high;
}

/* The value of a column: the mean of those that fall into it; NaN = there is none. */
static double column_of(const esper_spark_chart *chart, int column)
{
    int used = chart->n < chart->columns ? chart->n : chart->columns;
    int from = (int)((long long)column * chart->n / used), to = (int)((long long)(column + 1) * chart->n / used);
    double sum = 0.0;
    int n = 0;

    for (int i = from; i < to; i++)
        if (isfinite(chart->values[i])) {
            sum += chart->values[i];
            n++;
        }
    return n > 0 ? sum / n : (double)NAN;
}

void esper_spark_row(const esper_spark_chart *chart, int row, esper_line *line)
{
    int levels = chart->utf8 ? 8 : 2, used = chart->n < chart->columns ? chart->n : chart->columns;
    int wide = used > 0 && chart->columns / used > 1 && chart->n_rows > 1 ? chart->columns / used : 1;

    assert(row >= 0 && row < chart->n_rows);
    for (int column = 0; column < used; column++) {
        double value = column_of(chart, column), range = chart->high - chart->low;
        double share = range > 0.0 ? (value - chart->low) / range : 0.5;
        int level = 0;

        if (!isnan(value)) { /* the least is not nothing */
            int height = 1 + (int)lround(share * (chart->n_rows * levels - 1));

            level = height - (chart->n_rows - 1 - row) * levels;
            level = level < 0 ? 0 : level > levels ? levels : level;
        }
        for (int i = 0; i < (wide < MOST_WIDE ? wide : MOST_WIDE); i++)
            esper_line_put(line, "%s", chart->utf8 ? blocks[level] : signs[level]);
    }
}

void esper_spark_line(const double *values, int n, bool utf8, esper_line *line)
{
    esper_spark_chart chart = {
        .values = values, .n = n, .n_rows = 1, .columns = line->room - line->columns, .utf8 = utf8};

    if (n > 0 && chart.columns > 0 && esper_spark_measure(&chart))
        esper_spark_row(&chart, 0, line);
}
