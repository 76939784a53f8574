/* The agreement record. */
#include "dist/agree.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "dist/append.h"

_Static_assert(sizeof(esper_agree_record) == 56, "with the communicator's word the record is one cache line");

const char *esper_agree_field_name(int field)
{
    static const char *const names[] = {
#define X(name, member, text) text,
        ESPER_AGREE_LIST(X)
#undef X
    };

    return field >= 0 && field < ESPER_AGREE_N_FIELDS ? names[field] : NULL;
}

/* Half a word of a number, in which both halves of a hash count; its complement in the other half. */
static uint64_t half(uint64_t number)
{
    uint64_t low = (number ^ number >> 32) & UINT32_MAX;

    return low | ~low << 32;
}

void esper_agree_fill(const esper_agree_state *state, esper_agree_record *record_out)
{
    *record_out = (esper_agree_record){{state->health, state->table, ~state->table, state->verdict, ~state->verdict,
                                        half(state->sequence), half(state->weights)}};
}

static bool halves_differ(uint64_t word)
{
    return (uint32_t)word != (uint32_t) ~(word >> 32);
}

/* Anything but a number beside its complement: also what only a damaged exchange could bring. */
unsigned esper_agree_differing(const esper_agree_record *reduced)
{
    const uint64_t *w = reduced->words;

    return (unsigned)(w[1] != ~w[2]) << ESPER_AGREE_TABLE | (unsigned)halves_differ(w[5]) << ESPER_AGREE_SEQUENCE |
           (unsigned)(w[3] != ~w[4]) << ESPER_AGREE_VERDICT | (unsigned)halves_differ(w[6]) << ESPER_AGREE_WEIGHTS;
}

/* ---------------------------------------------------------------------------------------------------------- judging */

static uint64_t value_of(const esper_agree_state *state, int field)
{
    switch ((esper_agree_field)field) {
#define X(name, member, text) \
    case ESPER_AGREE_##name:  \
        return state->member;
        ESPER_AGREE_LIST(X)
#undef X
    case ESPER_AGREE_N_FIELDS:
        break;
    }
    return 0;
}

/* A vote that whoever has more than half survives; whether it has is counted afterwards. */
static bool find_majority(const esper_agree_state *states, int n_ranks, int field, uint64_t *value_out)
{
    uint64_t value = 0;
    int lead = 0, n = 0;

    assert(n_ranks > 0);
    for (int r = 0; r < n_ranks; r++) {
        uint64_t vote = value_of(&states[r], field);

        if (lead == 0)
            value = vote;
        lead += vote == value ? 1 : -1;
    }
    for (int r = 0; r < n_ranks; r++)
        n += value_of(&states[r], field) == value;
    *value_out = value;
    return n > n_ranks / 2;
}

static unsigned fields_of_rank(const esper_agree_state *state, unsigned fields, const bool *has_majority,
                               const uint64_t *majority)
{
    unsigned differing = 0;

    for (int f = 0; f < ESPER_AGREE_N_FIELDS; f++)
        if ((fields & 1u << f) != 0 && (!has_majority[f] || value_of(state, f) != majority[f]))
            differing |= 1u << f;
    return differing;
}

/* Of the fields, which differ among all; and of those, the majority. */
static void compare(const esper_agree_state *states, int n_ranks, esper_agree_result *result, bool *has_majority,
                    uint64_t *majority)
{
    result->has_majority = true;
    for (int f = 0; f < ESPER_AGREE_N_FIELDS; f++) {
        bool same = true;

        for (int r = 1; r < n_ranks; r++)
            same = same && value_of(&states[r], f) == value_of(&states[0], f);
        has_majority[f] = find_majority(states, n_ranks, f, &majority[f]);
        if (same)
            continue;
        result->fields |= 1u << f;
        result->has_majority = result->has_majority && has_majority[f];
    }
}

void esper_agree_judge(const esper_agree_state *states, int n_ranks, esper_agree_result *result_out)
{
    bool has_majority[ESPER_AGREE_N_FIELDS];
    uint64_t majority[ESPER_AGREE_N_FIELDS];
    esper_agree_result result = {0};

    compare(states, n_ranks, &result, has_majority, majority);
    for (int r = 0; r < n_ranks; r++) {
        unsigned differing = fields_of_rank(&states[r], result.fields, has_majority, majority);

        result.health |= states[r].health;
        if (differing == 0)
            continue;
        if (result.n_differing == 0) {
            result.field = __builtin_ctz(differing); /* the first */
            result.majority = majority[result.field];
        }
        if (result.n_differing < ESPER_AGREE_NAMED) {
            result.rank[result.n_differing] = r;
            result.rank_fields[result.n_differing] = differing;
            result.value[result.n_differing] = value_of(&states[r], result.field);
        }
        result.n_differing++;
    }
    *result_out = result;
}

/* ------------------------------------------------------------------------------------------------------------ words */

void esper_agree_text(const esper_agree_result *result, int n_ranks, char *text_out, size_t chars)
{
    int n = result->n_differing, n_named = n < ESPER_AGREE_NAMED ? n : ESPER_AGREE_NAMED;
    const char *between = "";

    assert(chars > 0 && (result->fields == 0 || (n > 0 && result->field < ESPER_AGREE_N_FIELDS)));
    text_out[0] = '\0';
    if (result->fields == 0)
        return;
    esper_append(text_out, chars, n == 1 ? "rank " : "ranks ");
    for (int i = 0; i < n_named; i++)
        esper_append(text_out, chars, "%s%d", i == 0 ? "" : i + 1 < n ? ", " : " and ", result->rank[i]);
    if (n_named < n)
        esper_append(text_out, chars, " and %d more", n - n_named);
    esper_append(text_out, chars, " of %d %s in: ", n_ranks,
                 !result->has_majority ? "differ, with no majority to say who is right,"
                 : n == 1              ? "differs from the others"
                                       : "differ from the others");
    for (int f = 0; f < ESPER_AGREE_N_FIELDS; f++)
        if ((result->fields & 1u << f) != 0) {
            esper_append(text_out, chars, "%s%s", between, esper_agree_field_name(f));
            between = ", ";
        }
    esper_append(text_out, chars, " (%s: rank %d has %016llx", esper_agree_field_name(result->field), result->rank[0],
                 (unsigned long long)result->value[0]);
    if (result->has_majority)
        esper_append(text_out, chars, ", the majority %016llx)", (unsigned long long)result->majority);
    else
        esper_append(text_out, chars, ", rank %d has %016llx)", result->rank[1], (unsigned long long)result->value[1]);
}

/* --------------------------------------------------------------------------------------------------------- agreeing */

/* Rare: then everybody says everything. The reduced record has shown all ranks the same, so all come here. */
static esper_status find_out(esper_comm *comm, const esper_agree_state *state, esper_agree_result *result_out)
{
    int size = esper_comm_size(comm);
    esper_agree_state *states = esper_mem_alloc((size_t)size * sizeof(*states));
    esper_status status;

    if (states == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "what %d ranks say", size);
    status = esper_comm_gather(comm, state, sizeof(*state), states);
    if (status == ESPER_OK)
        esper_agree_judge(states, size, result_out);
    esper_mem_free(states);
    if (status == ESPER_OK && result_out->fields == 0)
        return ESPER_FAIL(ESPER_E_PEER,
                          "the agreement record was damaged on its way: ranks say the same, the record not");
    return status;
}

esper_status esper_agree(esper_comm *comm, const esper_agree_state *state, esper_agree_result *result_out)
{
    esper_agree_record record;

    esper_agree_fill(state, &record);
    ESPER_TRY(esper_comm_or_u64(comm, record.words, 7));
    if (esper_agree_differing(&record) != 0)
        return find_out(comm, state, result_out);
    result_out->health = record.words[0];
    result_out->fields = 0;
    return ESPER_OK;
}
