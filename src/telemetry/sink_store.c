/* The run store as a sink: facts become rows. */
#include <assert.h>

#include "slot/gate.h"
#include "telemetry/store.h"

void esper_store_tell(esper_store *store, const esper_fact *facts, int n)
{
    esper_store_record record, checks[ESPER_GATE_MAX_CHECKS];

    assert(n >= 1 && n <= 1 + ESPER_GATE_MAX_CHECKS);
    if (facts[0].kind >= ESPER_FACT_N_TABLES || (facts[0].to & ESPER_TO_ROWS) == 0)
        return;
    record = esper_store_record_from(&facts[0]);
    for (int i = 1; i < n; i++)
        checks[i - 1] = esper_store_record_from(&facts[i]);
    if (record.kind == ESPER_STORE_GATE)
        (void)esper_store_push_gate(store, &record, checks, n - 1);
    else
        (void)esper_store_push(store, &record);
}

static void sink_take(void *handle, const esper_fact *facts, int n)
{
    esper_store_tell(handle, facts, n);
}

static esper_status sink_flush(void *handle)
{
    (void)handle;
    return ESPER_OK;
}

static uint64_t sink_n_dropped(const void *handle)
{
    (void)handle; /* what the store loses is the store's to tell: it is no loss of the run's own record */
    return 0;
}

static const esper_sink_ops sink_ops = {
    .name = "store", .take = sink_take, .flush = sink_flush, .close = sink_flush, .n_dropped = sink_n_dropped};

esper_sink esper_store_sink(esper_store *store)
{
    return (esper_sink){.ops = &sink_ops, .handle = store};
}
