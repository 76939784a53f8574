/* Internal. The page about a run, as a file: what `esper report` and the end of `esper grow` write. */
#ifndef ESPER_CLI_REPORT_PAGE_H
#define ESPER_CLI_REPORT_PAGE_H

#include <stddef.h>

#include "run/run_dir.h"
#include "ui/report.h"

#define ESPER_REPORT_NAME ESPER_RUN_REPORT

/* Writes the page about the run in `dir` to `out`, all or nothing. A file of the run itself is refused. */
esper_status esper_report_page_write(const char *dir, const char *out, esper_report_numbers *numbers_out,
                                     size_t *bytes_out);

#endif
