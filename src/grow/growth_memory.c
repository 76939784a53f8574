/* What growth remembers: into snapshots as it lies in memory, into checkpoints as lines with names. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "grow/growth_internal.h"

typedef struct growth_memory {
    growth_state state;
    growth_facts facts;
} growth_memory;

/* The state as it is now: tracker and policy live outside of it, and what is told is counted by the bus. */
void growth_gather(esper_growth *growth)
{
    const esper_bus *bus = growth->recording.records.bus;

    if (bus != NULL)
        memcpy(growth->facts.rows, bus->n_rows, sizeof(growth->facts.rows));
    esper_tracker_pack(&growth->deciding.tracker, growth->state.tracker);
    if (growth->deciding.follows)
        return;
    memset(growth->state.policy, 0, sizeof(growth->state.policy));
    growth->state.policy_bytes = esper_policy_pack_bytes(growth->deciding.policy);
    assert(growth->state.policy_bytes <= GROWTH_POLICY_BYTES);
    esper_policy_pack(growth->deciding.policy, growth->state.policy);
}

void growth_take_facts(esper_growth *growth, const growth_facts *facts)
{
    esper_bus *bus = growth->recording.records.bus;

    growth->facts = *facts;
    if (bus != NULL)
        memcpy(bus->n_rows, facts->rows, sizeof(facts->rows));
}

esper_status growth_spread(esper_growth *growth)
{
    ESPER_TRY(esper_tracker_unpack(&growth->deciding.tracker, growth->state.tracker, sizeof(growth->state.tracker)));
    if (growth->deciding.follows)
        return ESPER_OK;
    return esper_policy_unpack(growth->deciding.policy, growth->state.policy, growth->state.policy_bytes);
}

static void pack_memory(void *context, void *bytes_out)
{
    esper_growth *growth = context;
    growth_memory memory;

    growth_gather(growth);
    memset(&memory, 0, sizeof(memory));
    memory.state = growth->state;
    memory.facts = growth->facts;
    memcpy(bytes_out, &memory, sizeof(memory));
}

/* Whether it can be, and if so, takes it over. */
static esper_status take_memory(esper_growth *growth, const growth_memory *memory, bool whole)
{
    const growth_facts *facts = &memory->facts;

    if (memory->state.policy_bytes > GROWTH_POLICY_BYTES)
        return ESPER_FAIL(ESPER_E_FORMAT, "what a policy remembers cannot take %llu bytes",
                          (unsigned long long)memory->state.policy_bytes);
    if (!(facts->flops >= 0.0 && facts->flops < 1e30) || facts->n_seeds < 0 || facts->n_seeds > INT32_MAX ||
        facts->n_logged > UINT32_MAX || !isfinite(facts->earned) || !isfinite(facts->earned_segment) ||
        !(facts->asked >= 0.0 && facts->asked < 1e6))
        return ESPER_FAIL(ESPER_E_FORMAT, "what it says of the growth cannot be: %g FLOPs, %lld seeds", facts->flops,
                          (long long)facts->n_seeds);
    for (int kind = 0; kind < ESPER_FACT_N_TABLES; kind++)
        if (facts->rows[kind] < 0 || facts->rows[kind] > INT32_MAX)
            return ESPER_FAIL(ESPER_E_FORMAT, "what it says of the growth cannot be: %lld rows told",
                              (long long)facts->rows[kind]);
    for (int k = 0; k < ESPER_MAX_SLOTS; k++)
        if (memory->state.fork[k].blueprint < 0 || memory->state.fork[k].blueprint >= ESPER_POLICY_BLUEPRINTS)
            return ESPER_FAIL(ESPER_E_FORMAT, "what it says of the growth cannot be: a fork with blueprint %d",
                              (int)memory->state.fork[k].blueprint);
    growth->state = memory->state;
    if (whole)
        growth_take_facts(growth, facts);
    else
        growth->facts.ledger_open = 0;
    growth->measuring.measured = false;
    return growth_spread(growth);
}

static esper_status unpack_memory(void *context, const void *bytes, bool whole)
{
    growth_memory memory;

    memcpy(&memory, bytes, sizeof(memory));
    return take_memory(context, &memory, whole);
}

/* ------------------------------------------------------------------------------------------------ in checkpoints */

static const esper_field seed_fields[] = {
    ESPER_FIELD(growth_seed, U64, bound.n_epochs),
    ESPER_FIELD(growth_seed, REAL, bound.sum),
    ESPER_FIELD(growth_seed, REAL, bound.sum_squares),
    ESPER_FIELD(growth_seed, REAL, bound.sum_error_squares),
    ESPER_FIELD(growth_seed, REAL, ratio),
    ESPER_FIELD(growth_seed, REAL, sample),
    ESPER_FIELD(growth_seed, I32, vanishing),
    ESPER_FIELD(growth_seed, I32, exploding),
    ESPER_FIELD(growth_seed, I32, sampled),
    ESPER_FIELD(growth_seed, I32, number),
    ESPER_FIELDS_END,
};

static const esper_field fork_fields[] = {
    ESPER_FIELD(growth_fork, I32, blueprint), ESPER_FIELD(growth_fork, I32, epoch),
    ESPER_FIELD(growth_fork, I32, n_seeds),   ESPER_FIELD(growth_fork, I32, n_steps),
    ESPER_FIELD(growth_fork, REAL, gain),     ESPER_FIELD(growth_fork, REAL, error),
    ESPER_FIELD(growth_fork, U64, seeds),     ESPER_FIELDS_END,
};

static const esper_field state_fields[] = {
    ESPER_FIELD(growth_state, REAL, promise),
    ESPER_FIELD(growth_state, U64, decided),
    ESPER_FIELD(growth_state, U64, refused),
    ESPER_FIELDS_END,
};

static const esper_field facts_fields[] = {
    ESPER_FIELD(growth_facts, U64, n_logged),        ESPER_FIELD(growth_facts, U64, n_injected),
    ESPER_FIELD(growth_facts, U64, went_back),       ESPER_FIELD(growth_facts, I64, n_seeds),
    ESPER_FIELD(growth_facts, I64, n_auto_pruned),   ESPER_FIELD(growth_facts, I64, n_segment),
    ESPER_FIELD(growth_facts, I64, ledger_open),     ESPER_FIELD(growth_facts, REAL, earned),
    ESPER_FIELD(growth_facts, REAL, earned_segment), ESPER_FIELD(growth_facts, REAL, asked),
    ESPER_FIELD(growth_facts, REAL, flops),          ESPER_FIELDS_END,
};

static const esper_field rows_fields[] = {
    ESPER_FIELD(growth_facts, I64, counted),
#define FACT(NAME, name, table, event, priority, fate, meaning) \
    {#table, ESPER_FIELD_I64, offsetof(growth_facts, rows) + ESPER_FACT_##NAME * sizeof(int64_t), 1},
    ESPER_FACT_TABLE_LIST(FACT)
#undef FACT
        ESPER_FIELDS_END,
};

enum { PREFIX_CHARS = 24 };

static const char *prefix_of(char prefix[PREFIX_CHARS], const char *what, int slot)
{
    snprintf(prefix, PREFIX_CHARS, "%s.%d.", what, slot);
    return prefix;
}

static bool read_policy(const esper_field_line *line, growth_state *state)
{
    int n = (line->value_chars - 1) / 2;

    if (line->name_chars != 6 || strncmp(line->name, "policy", 6) != 0 || line->value_chars % 2 != 1 ||
        n > GROWTH_POLICY_BYTES)
        return false;
    for (int i = 0; i < n; i++) {
        unsigned byte;

        if (sscanf(line->values + 1 + 2 * i, "%2x", &byte) != 1)
            return false;
        state->policy[i] = (uint8_t)byte;
    }
    state->policy_bytes = (uint64_t)n;
    return true;
}

static esper_status write_memory(void *context, esper_page *out)
{
    esper_growth *growth = context;
    const growth_state *state = &growth->state;
    char prefix[PREFIX_CHARS];

    growth_gather(growth);
    esper_fields_write(out, "facts.", facts_fields, &growth->facts);
    esper_fields_write(out, "rows.", rows_fields, &growth->facts);
    esper_fields_write(out, "state.", state_fields, state);
    esper_fields_write(out, "tracker.", esper_tracker_fields, &growth->deciding.tracker.state);
    esper_fields_write(out, "ledger.", esper_reward_ledger_fields, &state->ledger);
    for (int k = 0; k < ESPER_MAX_SLOTS; k++)
        esper_fields_write(out, prefix_of(prefix, "seed", k), seed_fields, &state->seed[k]);
    for (int k = 0; k < ESPER_MAX_SLOTS; k++)
        if (state->fork[k].blueprint != 0)
            esper_fields_write(out, prefix_of(prefix, "fork", k), fork_fields, &state->fork[k]);
    for (int k = 0; k < ESPER_REWARD_MAX_SLOTS; k++)
        esper_fields_write(out, prefix_of(prefix, "account", k), esper_reward_account_fields, &state->ledger.slot[k]);
    if (state->policy_bytes > 0)
        esper_page_print(out, "policy "); /* what it remembers is its own: bytes, two hexadecimal digits for each */
    for (uint64_t i = 0; i < state->policy_bytes; i++)
        esper_page_print(out, "%02x%s", state->policy[i], i + 1 == state->policy_bytes ? "\n" : "");
    return ESPER_OK;
}

static bool read_line(const esper_field_line *line, growth_memory *memory, esper_tracker *tracker)
{
    growth_state *state = &memory->state;
    char prefix[PREFIX_CHARS];
    int k = -1;

    if (sscanf(line->name, "seed.%d.", &k) == 1)
        return k >= 0 && k < ESPER_MAX_SLOTS &&
               esper_fields_read(line, prefix_of(prefix, "seed", k), seed_fields, &state->seed[k]);
    if (sscanf(line->name, "fork.%d.", &k) == 1)
        return k >= 0 && k < ESPER_MAX_SLOTS &&
               esper_fields_read(line, prefix_of(prefix, "fork", k), fork_fields, &state->fork[k]);
    if (sscanf(line->name, "account.%d.", &k) == 1)
        return k >= 0 && k < ESPER_REWARD_MAX_SLOTS &&
               esper_fields_read(line, prefix_of(prefix, "account", k), esper_reward_account_fields,
                                 &state->ledger.slot[k]);
    return esper_fields_read(line, "facts.", facts_fields, &memory->facts) ||
           esper_fields_read(line, "rows.", rows_fields, &memory->facts) ||
           esper_fields_read(line, "state.", state_fields, state) ||
           esper_fields_read(line, "tracker.", esper_tracker_fields, &tracker->state) ||
           esper_fields_read(line, "ledger.", esper_reward_ledger_fields, &state->ledger) || read_policy(line, state);
}

static esper_status read_memory(void *context, const char *text)
{
    esper_growth *growth = context;
    growth_memory *memory = esper_mem_alloc(sizeof(*memory)); /* zeroed: so are members without a line */
    esper_tracker tracker = growth->deciding.tracker;
    esper_field_line line;
    esper_status status = ESPER_OK;

    if (memory == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "memory of a growth");
    memset(&tracker.state, 0, sizeof(tracker.state));
    while (status == ESPER_OK && esper_fields_next(&text, &line))
        if (!read_line(&line, memory, &tracker))
            status =
                ESPER_FAIL(ESPER_E_FORMAT,
                           "what it says of the growth ('%.*s') is not what this version writes: a run of Esper 0.1 "
                           "is finished with Esper 0.1",
                           line.name_chars < 40 ? line.name_chars : 40, line.name);
    esper_tracker_pack(&tracker, memory->state.tracker);
    if (status == ESPER_OK)
        status = take_memory(growth, memory, true);
    esper_mem_free(memory);
    return status;
}

/* ------------------------------------------------------------------------------------------------ where it goes */

void growth_join(esper_growth *growth)
{
    assert(growth->network->companion.context == NULL);
    growth->network->companion = (esper_companion){
        .context = growth, .bytes = sizeof(growth_memory), .pack = pack_memory, .unpack = unpack_memory};
    esper_network_add_part(
        growth->network,
        &(esper_state_part){.name = "growth", .context = growth, .write = write_memory, .read = read_memory});
}

void growth_leave(esper_growth *growth)
{
    growth->network->companion = (esper_companion){0};
    esper_network_drop_part(growth->network, "growth");
}
