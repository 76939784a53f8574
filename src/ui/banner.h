/* Internal. What stands above the progress of a run: task, network, data, machine, directory. */
#ifndef ESPER_UI_BANNER_H
#define ESPER_UI_BANNER_H

#include <stdio.h>

#include "run/run.h"

void esper_banner_print(const esper_run_view *view, FILE *stream);

#endif
