/* Sets of networks: each is worked on by a thread at a time. */
#include "engine/set.h"

#include <stdio.h>

#include "base/status.h"

typedef struct work {
    esper_network *const *networks; /* (n) to step */
    uint32_t              n_steps;
    esper_incident       *incidents; /* (n) */
    esper_request        *requests;  /* (n) to answer; NULL: to step */
} work;

static esper_status step(esper_network *network, uint32_t n_steps, esper_incident *incident)
{
    uint32_t n = 0;

    do {
        ESPER_TRY(esper_guarded_step(network, incident));
        n++;
    } while (incident->action == ESPER_GOVERNOR_GO && !esper_network_epoch_done(network) && n != n_steps);
    return ESPER_OK;
}

static esper_network *network_of(const work *self, int item)
{
    return self->requests != NULL ? self->requests[item].network : self->networks[item];
}

/* Errors are kept by thread: what this one met is left in the network's record. */
static void do_item(void *context, int item, esper_backend_stream *stream)
{
    work *self = context;
    esper_network *network = network_of(self, item);
    esper_backend_stream *own = network->stream;

    network->stream = stream;
    if (self->requests != NULL)
        network->status = esper_network_answer(&self->requests[item], NULL);
    else
        network->status = step(network, self->n_steps, &self->incidents[item]);
    network->stream = own;
    if (network->status != ESPER_OK)
        snprintf(network->message, sizeof(network->message), "%s", esper_last_error());
}

static esper_status do_all(esper_engine *engine, work *self, int n)
{
    esper_backend_stream *stream = n > 0 ? network_of(self, 0)->stream : NULL;

    if (stream == NULL)
        esper_engine_each(engine, n, do_item, self);
    for (int i = 0; stream != NULL && i < n; i++) /* their thread is one of many, and what is beside them is others' */
        do_item(self, i, stream);
    for (int i = 0; i < n; i++) {
        const esper_network *network = network_of(self, i);

        if (network->status != ESPER_OK)
            return ESPER_FAIL(network->status, "network %d of %d: %s", i, n, network->message);
    }
    return ESPER_OK;
}

esper_status esper_engine_step(esper_engine *engine, esper_network *const *networks, int n, uint32_t n_steps,
                               esper_incident *incidents_out)
{
    work self = {.networks = networks, .n_steps = n_steps, .incidents = incidents_out};

    return do_all(engine, &self, n);
}

esper_status esper_engine_evaluate(esper_engine *engine, esper_request *requests, int n)
{
    work self = {.requests = requests};

    return do_all(engine, &self, n);
}
