/* B3-DRL-18, in a job of several ranks. Before: rank 0 turns a gate's result into text, sends its length and its bytes,
 * and the others make an object of it again; the objects are jansson's, in memory of its own. After: the agreement
 * record. Both over the same communicator. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "bench/tickets.h"
#include "dist/agree.h"
#include "dist/launch.h"
#include "slot/slot_id.h"
#include "slot/slots.h"

enum { SLOTS = 10, CALLS = 100, ROUNDS = 101, QUICK_ROUNDS = 5, MAX_TEXT = 1024 };

static const double deadline_s = 30.0;

typedef struct gate_setup {
    esper_comm  *comm;
    esper_slots *slots;
    uint64_t     sequence;
    int          n_calls; /* in one measurement */
} gate_setup;

/* ---- before */

static esper_status write_object(char text_out[MAX_TEXT], uint64_t *length_out)
{
    json_t *object = json_pack("{s:i, s:b, s:f, s:[s, s, s], s:[], s:s}", "gate", 2, "passed", 1, "score", 0.87,
                               "checks_passed", "a", "b", "c", "checks_failed", "message", "ok");
    size_t length = object != NULL ? json_dumpb(object, text_out, MAX_TEXT, JSON_COMPACT) : 0;

    json_decref(object);
    if (length == 0 || length > MAX_TEXT)
        return ESPER_FAIL(ESPER_E_STATE, "a gate's result makes no text");
    *length_out = length;
    return ESPER_OK;
}

static esper_status read_object(const char *text, uint64_t length)
{
    json_t *object = json_loadb(text, length, 0, NULL);
    bool passed = object != NULL && json_is_true(json_object_get(object, "passed"));

    json_decref(object);
    return passed ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "a gate's result arrived as something else");
}

static esper_status tell_object(gate_setup *setup)
{
    bool is_root = esper_comm_rank(setup->comm) == 0;
    char text[MAX_TEXT];
    uint64_t length = 0;

    if (is_root)
        ESPER_TRY(write_object(text, &length));
    ESPER_TRY(esper_comm_broadcast(setup->comm, &length, sizeof(length), 0));
    if (length > MAX_TEXT)
        return ESPER_FAIL(ESPER_E_STATE, "a gate's result is %llu bytes long", (unsigned long long)length);
    ESPER_TRY(esper_comm_broadcast(setup->comm, text, length, 0));
    return is_root ? ESPER_OK : read_object(text, length);
}

static esper_status tell_objects(void *context)
{
    gate_setup *setup = context;

    for (int i = 0; i < setup->n_calls; i++)
        ESPER_TRY(tell_object(setup));
    return esper_comm_barrier(setup->comm);
}

/* ---- after */

static esper_status agree_once(gate_setup *setup)
{
    esper_agree_state mine = {.table = esper_slots_hash(setup->slots), .sequence = setup->sequence++};
    esper_agree_result result;

    ESPER_TRY(esper_agree(setup->comm, &mine, &result));
    return result.fields == 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "the ranks of the benchmark do not agree");
}

static esper_status agree(void *context)
{
    gate_setup *setup = context;

    for (int i = 0; i < setup->n_calls; i++)
        ESPER_TRY(agree_once(setup));
    return esper_comm_barrier(setup->comm);
}

/* ---- both */

static esper_status begin_together(void *context)
{
    gate_setup *setup = context;

    return esper_comm_barrier(setup->comm);
}

static esper_status open_setup(gate_setup *setup)
{
    const esper_comm_options options = {.kind = "auto", .deadline_s = deadline_s};
    const esper_slot_rules rules = {.permissive = true};
    esper_boundary boundaries[SLOTS];

    setup->n_calls = CALLS;
    setup->slots = esper_mem_alloc(sizeof(*setup->slots));
    if (setup->slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    memset(boundaries, 0, sizeof(boundaries));
    for (int k = 0; k < SLOTS; k++) {
        boundaries[k].col = boundaries[k].order = k;
        boundaries[k].channels = 64;
        ESPER_TRY(esper_slot_id_format(0, k, boundaries[k].slot));
    }
    ESPER_TRY(esper_slots_init(setup->slots, boundaries, SLOTS, &rules));
    return esper_comm_open(&options, &setup->comm);
}

/* In us, for one call. */
static void share_out(const gate_setup *setup, esper_ticket_result *result)
{
    result->before *= 1e3 / setup->n_calls;
    result->after *= 1e3 / setup->n_calls;
    result->silent = esper_comm_rank(setup->comm) != 0;
    result->measured = true;
    snprintf(result->machine, sizeof(result->machine), "%d ranks, %s", esper_comm_size(setup->comm),
             esper_comm_name(setup->comm));
}

esper_status esper_ticket_gate(const esper_bench_request *request, esper_ticket_result *result)
{
    gate_setup setup = {0};
    esper_ticket_pair pair = {.before = tell_objects,
                              .after = agree,
                              .prepare = begin_together,
                              .context = &setup,
                              .n_rounds = request->quick ? QUICK_ROUNDS : ROUNDS};
    esper_launcher launch = esper_launcher_look();
    esper_status status;

    if (!launch.launched || launch.size == 1)
        return ESPER_OK;
    status = open_setup(&setup);
    if (status == ESPER_OK)
        status = esper_ticket_time(&pair, request->quick, result);
    if (status == ESPER_OK)
        share_out(&setup, result);
    esper_comm_close(setup.comm);
    esper_mem_free(setup.slots);
    return status;
}
