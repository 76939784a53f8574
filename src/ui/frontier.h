/* Internal. A frontier as people read it, and as programs do. */
#ifndef ESPER_UI_FRONTIER_H
#define ESPER_UI_FRONTIER_H

#include "base/page.h"
#include "run/frontier.h"

/* Shares, a table of grown less static by budget and size, and which networks these are; plain text that is Markdown, too. */
void esper_frontier_write(const esper_frontier *frontier, esper_page *page);

/* JSON Lines: an object for each network ("point"), for each budget and size ("limit"), and the shares ("share"). */
void esper_frontier_write_json(const esper_frontier *frontier, esper_page *page);

/* A page like that of a comparison: the verdict, accuracy over parameters and over training FLOPs, the table. */
void esper_frontier_report(const esper_frontier *frontier, esper_page *page);

#endif
