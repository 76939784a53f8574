/* Internal. A comparison as people read it, and as programs do. What has no good result is named and not averaged. */
#ifndef ESPER_UI_COMPARE_TABLE_H
#define ESPER_UI_COMPARE_TABLE_H

#include "base/page.h"
#include "train/compare.h"

typedef enum esper_compare_format { ESPER_COMPARE_PLAIN, ESPER_COMPARE_MARKDOWN } esper_compare_format;

/* Both tables, the runs that are not counted with their reasons, and what was chosen for static lines. */
void esper_compare_write(const esper_compare *compare, esper_compare_format format, esper_page *page);

/* JSON Lines: an object for each run ("line", "seed", "budget", ...), then one for each row of the tables ("summary"). */
void esper_compare_write_json(const esper_compare *compare, esper_page *page);

#endif
