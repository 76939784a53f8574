/* Internal to the tests. What is done to a set of an engine's networks at a time, side by side. */
#ifndef ESPER_TESTS_ENGINE_SET_H
#define ESPER_TESTS_ENGINE_SET_H

#include <stdio.h>

#include "base/status.h"
#include "engine/guarded.h"

enum { SET_MOST = 16 };

typedef struct set_work {
    esper_network *const *networks; /* (n) to step */
    uint32_t              n_steps;
    esper_incident       *incidents; /* (n) */
    esper_request        *requests;  /* (n) to answer; NULL: to step */
    esper_status          status[SET_MOST];
    char                  message[SET_MOST][512];
} set_work;

static inline esper_status set_step_one(esper_network *network, uint32_t n_steps, esper_incident *incident)
{
    uint32_t n = 0;

    do {
        ESPER_TRY(esper_guarded_step(network, incident));
        n++;
    } while (incident->action == ESPER_GOVERNOR_GO && network->cursor.batch < network->engine->steps_per_epoch &&
             n != n_steps);
    return ESPER_OK;
}

/* Errors are kept by thread: what this one met is left with the work. */
static inline void set_do_item(void *context, int item, esper_backend_stream *stream)
{
    set_work *self = context;
    esper_network *network = self->requests != NULL ? self->requests[item].network : self->networks[item];

    network->stream = stream;
    if (self->requests != NULL)
        self->status[item] = esper_network_answer(&self->requests[item], NULL);
    else
        self->status[item] = set_step_one(network, self->n_steps, &self->incidents[item]);
    network->stream = NULL;
    if (self->status[item] != ESPER_OK)
        snprintf(self->message[item], sizeof(self->message[item]), "%s", esper_last_error());
}

/* The first network that fails speaks for all; the others have gone as far as they were to. */
static inline esper_status set_do_all(esper_engine *engine, set_work *self, int n)
{
    assert_true(n <= SET_MOST);
    esper_engine_each(engine, n, set_do_item, self);
    for (int i = 0; i < n; i++)
        if (self->status[i] != ESPER_OK)
            return ESPER_FAIL(self->status[i], "network %d of %d: %s", i, n, self->message[i]);
    return ESPER_OK;
}

/* Trains each network on until its epoch's training is done, n_steps calls were made (0: no limit) or its guard has met
 * something. incidents_out: (n) what that was. */
static inline esper_status set_step(esper_engine *engine, esper_network *const *networks, int n, uint32_t n_steps,
                                    esper_incident *incidents_out)
{
    set_work self = {.networks = networks, .n_steps = n_steps, .incidents = incidents_out};

    return set_do_all(engine, &self, n);
}

/* Answers all requests, each of another network. */
static inline esper_status set_evaluate(esper_engine *engine, esper_request *requests, int n)
{
    set_work self = {.requests = requests};

    return set_do_all(engine, &self, n);
}

#endif
