/* Internal. `esper info plan`: what a training step consists of. */
#ifndef ESPER_CLI_INFO_PLAN_H
#define ESPER_CLI_INFO_PLAN_H

#include "engine/network.h"

/* Prints the launches of a step with FLOPs, bytes and each one's predicted share of the time; timed: the measured share,
 * too, of some steps that are run for it. */
esper_status esper_info_plan(esper_network *network, bool timed);

#endif
