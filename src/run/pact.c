/* What ranks have to have in common. */
#include "run/pact.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "run/settings.h"

enum { TEXT_CHARS = ESPER_CONFIG_TEXT_CHARS, SAYING_CHARS = 512 };

/* One thing to compare, as text. Sent as it is. */
typedef struct clause {
    char what[64];
    char value[TEXT_CHARS];
    char remedy[128]; /* what makes it equal */
} clause;

enum { N_FIXED = 4, MAX_CLAUSES = N_FIXED + ESPER_CONFIG_N_KEYS };

static void add(clause *clauses, int *n, const char *what, const char *value, const char *remedy)
{
    clause *next = &clauses[(*n)++];

    assert(*n <= MAX_CLAUSES);
    snprintf(next->what, sizeof(next->what), "%s", what);
    snprintf(next->value, sizeof(next->value), "%s", value);
    snprintf(next->remedy, sizeof(next->remedy), "%s", remedy);
}

size_t esper_pact_kernel_chars(const char *identity)
{
    const char *slash = strrchr(identity, '/');

    return slash != NULL && slash[1] == 't' ? (size_t)(slash - identity) : strlen(identity);
}

static const char *const may_differ[] = {"threads", "progress",      "log_level",     "run_dir",
                                         "data",    "rank_deadline", "join_deadline", NULL};

/* The same list, in the same order, on every rank: they are of one build (esper_comm_open). What data there is may follow from
 * settings, such as the seed: so it comes behind them. */
static int list_clauses(const esper_engine *engine, bool grows, clause *clauses)
{
    const char *identity = esper_backend_identity(engine->backend);
    char text[TEXT_CHARS], what[64], remedy[128], flag[ESPER_CONFIG_NAME_CHARS];
    int n = 0;

    add(clauses, &n, "the command is", grows ? "grow" : "train", "start the same command on all ranks");
    add(clauses, &n, "the task is", engine->task, "name the same task on all ranks");
    snprintf(text, sizeof(text), "%.*s", (int)esper_pact_kernel_chars(identity), identity);
    add(clauses, &n, "the kernels are", text,
        "set ESPER_KERNELS to a set that all ranks' processors have, such as avx2 or portable");
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const char *key = esper_config_key_at(i)->name;

        if (esper_settings_list_has(may_differ, key))
            continue;
        esper_config_value_text(&engine->config, i, text);
        esper_config_flag_name(key, flag);
        snprintf(remedy, sizeof(remedy), "give all ranks the same %s", flag);
        snprintf(what, sizeof(what), "%s =", key);
        add(clauses, &n, what, text, remedy);
    }
    snprintf(text, sizeof(text), "%016" PRIx64, esper_dataset_hash(engine->data));
    add(clauses, &n, "the data has the hash", text, "give all ranks the same files with --data");
    return n;
}

/* What differs first, in words. The first rank with something to say speaks for all. */
static esper_status compare(const clause *ours, const clause *theirs, int n, esper_comm *comm)
{
    int size = esper_comm_size(comm), rank = esper_comm_rank(comm), i = 0;
    char saying[SAYING_CHARS] = "", *all = esper_mem_alloc((size_t)size * SAYING_CHARS);
    esper_status status;

    if (all == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "what %d ranks say", size);
    while (i < n && strcmp(ours[i].value, theirs[i].value) == 0)
        i++;
    if (i < n)
        snprintf(saying, SAYING_CHARS, "rank 0 and rank %d differ: %s '%.120s' on rank 0 and '%.120s' on rank %d: %s",
                 rank, ours[i].what, theirs[i].value, ours[i].value, rank, ours[i].remedy);
    status = esper_comm_gather(comm, saying, SAYING_CHARS, all);
    for (int r = 0; r < size && status == ESPER_OK; r++)
        if (all[(size_t)r * SAYING_CHARS] != '\0')
            status = ESPER_FAIL(ESPER_E_CONFIG, "%s", all + (size_t)r * SAYING_CHARS);
    esper_mem_free(all);
    return status;
}

esper_status esper_pact_check(const esper_engine *engine, bool grows, esper_comm *comm)
{
    clause *ours = esper_mem_alloc(2 * MAX_CLAUSES * sizeof(*ours)), *theirs = ours + MAX_CLAUSES;
    esper_status status;
    int n;

    if (ours == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "what ranks have in common");
    n = list_clauses(engine, grows, ours);
    memcpy(theirs, ours, (size_t)n * sizeof(*ours));
    status = esper_comm_broadcast(comm, theirs, (size_t)n * sizeof(*theirs), 0);
    if (status == ESPER_OK)
        status = compare(ours, theirs, n, comm);
    esper_mem_free(ours);
    return status;
}
