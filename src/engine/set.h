/* Internal. What is done to a set of an engine's networks at a time, side by side. */
#ifndef ESPER_ENGINE_SET_H
#define ESPER_ENGINE_SET_H

#include "engine/guarded.h"

/* Trains each network on until its epoch's training is done, n_steps calls were made (0: no limit) or its guard has met
 * something. incidents_out: (n) what that was. The first network that fails speaks for all; the others have gone as far as
 * they were to. */
esper_status esper_engine_step(esper_engine *engine, esper_network *const *networks, int n, uint32_t n_steps,
                               esper_incident *incidents_out);

/* Answers all requests, each of another network. */
esper_status esper_engine_evaluate(esper_engine *engine, esper_request *requests, int n);

#endif
