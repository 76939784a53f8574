/* The fork that got nothing. */
#include "learn/twin.h"

#include <assert.h>

#include "base/mem.h"
#include "base/status.h"

struct esper_twin {
    esper_network *of;
    esper_network *fork;     /* NULL: the network is its own twin */
    double        *accuracy; /* (room) at the end of each epoch, percent */
    uint32_t       n_known, room;
};

esper_status esper_twin_open(esper_network *of, esper_twin **twin_out)
{
    esper_twin *twin = esper_mem_alloc(sizeof(*twin));

    if (twin == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the twin of an environment");
    twin->of = of;
    *twin_out = twin;
    return ESPER_OK;
}

void esper_twin_close(esper_twin *twin)
{
    if (twin == NULL)
        return;
    esper_network_remove(twin->fork);
    esper_mem_free(twin->accuracy);
    esper_mem_free(twin);
}

void esper_twin_move(esper_twin *twin, esper_backend_stream *stream)
{
    if (twin->fork != NULL)
        twin->fork->stream = stream;
}

esper_status esper_twin_part(esper_twin *twin)
{
    assert(twin->fork == NULL);
    return esper_network_fork(twin->of, NULL, &twin->fork);
}

bool esper_twin_has_parted(const esper_twin *twin)
{
    return twin->fork != NULL;
}

void esper_twin_join(esper_twin *twin)
{
    esper_network_remove(twin->fork);
    twin->fork = NULL;
}

/* An epoch of the fork, on the thread of its network. */
static esper_status train(esper_network *fork, double *accuracy_out)
{
    esper_tally valid;

    if (esper_network_epoch_done(fork))
        esper_network_next_epoch(fork);
    while (!esper_network_epoch_done(fork))
        ESPER_TRY(esper_network_queue_step(fork));
    ESPER_TRY(esper_network_evaluate(fork, ESPER_SPLIT_VALID, NULL, &valid));
    *accuracy_out = esper_tally_accuracy(&valid);
    return ESPER_OK;
}

static esper_status make_room(esper_twin *twin, uint32_t epoch)
{
    uint32_t room = twin->room == 0 ? 32 : 2 * twin->room;
    double *grown;

    if (epoch <= twin->room)
        return ESPER_OK;
    room = room > epoch ? room : epoch;
    grown = esper_mem_grow(twin->accuracy, room * sizeof(*grown));
    if (grown == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%u epochs of a twin", room);
    twin->accuracy = grown;
    twin->room = room;
    return ESPER_OK;
}

esper_status esper_twin_accuracy(esper_twin *twin, uint32_t epoch, double own, double *accuracy_out)
{
    assert(epoch >= 1);
    ESPER_TRY(make_room(twin, epoch));
    if (twin->fork == NULL) {
        twin->accuracy[epoch - 1] = own;
        twin->n_known = epoch;
    } else {
        for (; twin->n_known < epoch; twin->n_known++)
            ESPER_TRY(train(twin->fork, &twin->accuracy[twin->n_known]));
    }
    *accuracy_out = twin->accuracy[epoch - 1];
    return ESPER_OK;
}
