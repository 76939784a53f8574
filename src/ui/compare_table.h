/* Internal. A comparison as people read it, and as programs do. What has no good result is named and not averaged. */
#ifndef ESPER_UI_COMPARE_TABLE_H
#define ESPER_UI_COMPARE_TABLE_H

#include "base/page.h"
#include "run/compare.h"

typedef enum esper_compare_format { ESPER_COMPARE_PLAIN, ESPER_COMPARE_MARKDOWN } esper_compare_format;

/* How, and in how many columns: a table that is wider goes on below itself. Of Markdown the columns do not matter. */
typedef struct esper_compare_style {
    esper_compare_format format;
    int                  room;
} esper_compare_style;

/* The table, the differences to the line that others are held against, the runs that are not counted with their reasons, where
 * learned policies came from, and what was chosen for static lines. */
void esper_compare_write(const esper_compare *compare, esper_compare_style style, esper_page *page);

/* JSON Lines: an object for each run ("line", "seed", ...), one for each row of the table ("summary"), for each
 * difference ("pair") and for each learned policy ("policy"). */
void esper_compare_write_json(const esper_compare *compare, esper_page *page);

/* A page like that of esper report: the tables, and accuracy against parameters as a plot. `dir` is where the runs are. */
void esper_compare_report(const esper_compare *compare, const char *dir, esper_page *page);

/* "1.2 TFLOP for each, what 160 epochs of the host cost" */
enum { ESPER_COMPARE_BUDGET_CHARS = 128 };

const char *esper_compare_budget(const esper_compare *compare, char text[ESPER_COMPARE_BUDGET_CHARS]);

/* Whether a learned policy was trained with weights of its reward that are not the usual ones; then all say theirs. */
bool esper_compare_has_weights(const esper_compare *compare);
/* "rent_weight=0.2"; or that none was set, or that nobody knows. */
const char *esper_compare_weights(const esper_compare_line *line);

/* What a return is, in a few words. */
const char *esper_compare_return_text(const esper_compare *compare);

/* "gain", or "gain with size_price=1" where weights were set: the reward that returns are reckoned by. */
enum { ESPER_COMPARE_REWARD_CHARS = 2 * ESPER_CONFIG_TEXT_CHARS + 8 };

const char *esper_compare_reward(const esper_compare *compare, char text[ESPER_COMPARE_REWARD_CHARS]);

#endif
