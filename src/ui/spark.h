/* Internal. Curves in characters: one line, or a chart of several. */
#ifndef ESPER_UI_SPARK_H
#define ESPER_UI_SPARK_H

#include <stdbool.h>

#include "ui/terminal.h"

/* The values from left to right, as high as they are between the least and the greatest of them, in what is left of the line;
 * where they are more than there are columns each one is the mean of its share. What is not finite is a blank. */
void esper_spark_line(const double *values, int n, bool utf8, esper_line *line);

/* Row `row` of `n_rows`, from the top, of a chart of these values in so many columns. low, high: where it begins and ends. */
typedef struct esper_spark_chart {
    const double *values;
    int           n, n_rows, columns;
    double        low, high;
    bool          utf8;
} esper_spark_chart;

/* Sets low and high from the values; false: there is none that is finite. */
bool esper_spark_measure(esper_spark_chart *chart);
void esper_spark_row(const esper_spark_chart *chart, int row, esper_line *line);

#endif
