/* The policy that follows a decision file (script.h). */
#include <stddef.h>
#include <string.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "policy/mask.h"
#include "policy/script.h"

typedef struct scripted {
    esper_policy   base;
    char          *path;
    esper_script   script;
    int            last_epoch; /* decided so far */
} scripted;

static void close_scripted(esper_policy *base)
{
    scripted *policy = (scripted *)base;

    esper_script_fini(&policy->script);
    esper_mem_free(policy->path);
    esper_mem_free(policy);
}

static esper_status open_scripted(const esper_policy_setup *setup, esper_policy **policy_out)
{
    scripted *policy;
    esper_status status;
    size_t bytes;
    char *text;

    if (setup->script == NULL || setup->script[0] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "the scripted policy needs a decision file: give one with --decisions FILE");
    ESPER_TRY(esper_file_read(setup->script, ESPER_SCRIPT_MAX_BYTES, &text, &bytes));
    policy = esper_mem_alloc(sizeof(*policy));
    if (policy != NULL) {
        policy->base.ops = &esper_policy_scripted;
        policy->path = esper_mem_strdup(setup->script);
    }
    if (policy == NULL || policy->path == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "scripted policy");
    else
        status = esper_script_init(&policy->script, text, bytes, setup->script, setup);
    esper_mem_free(text);
    if (status != ESPER_OK) {
        if (policy != NULL)
            close_scripted(&policy->base);
        return status;
    }
    *policy_out = &policy->base;
    return ESPER_OK;
}

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    scripted *policy = (scripted *)base;
    const esper_script_line *line = esper_script_find(&policy->script, view->epoch);
    esper_status status = ESPER_OK;

    if (line != NULL)
        status = esper_mask_check(view, &line->decision);
    if (status != ESPER_OK)
        return esper_fail_within(status, "%s:%d: epoch %d: ", policy->path, line->line, view->epoch);
    if (line != NULL) {
        *decision_out = line->decision;
    } else {
        esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
        esper_decision_because(decision_out, ESPER_REASON_SCRIPT, "No line for epoch %d", view->epoch);
    }
    policy->last_epoch = view->epoch;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ packed */

/* What was decided so far: the epoch and a hash of the decisions up to it. */
typedef struct used {
    uint64_t hash;
    int64_t  last_epoch;
} used;

/* Of epochs and what was asked for, not of line numbers: comments may come and go. */
static uint64_t hash_until(const scripted *policy, int64_t last_epoch)
{
    uint64_t hash = 0;

    for (int i = 0; i < policy->script.n_lines && policy->script.lines[i].epoch <= last_epoch; i++) {
        const esper_script_line *line = &policy->script.lines[i];

        hash = XXH64(&line->epoch, sizeof(line->epoch), hash);
        hash = XXH64(&line->decision, offsetof(esper_decision, text), hash);
    }
    return hash;
}

static size_t pack(const esper_policy *base, void *memory)
{
    const scripted *policy = (const scripted *)base;
    used u = {.hash = hash_until(policy, policy->last_epoch), .last_epoch = policy->last_epoch};

    if (memory != NULL)
        memcpy(memory, &u, sizeof(u));
    return sizeof(u);
}

static esper_status unpack(esper_policy *base, const void *memory, size_t bytes)
{
    scripted *policy = (scripted *)base;
    used u;

    if (bytes != sizeof(u))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed script: %zu bytes, expected %zu", bytes, sizeof(u));
    memcpy(&u, memory, sizeof(u));
    if (u.last_epoch < 0 || u.last_epoch > INT32_MAX)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed script: epoch %lld", (long long)u.last_epoch);
    if (u.hash != hash_until(policy, u.last_epoch))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: its decisions up to epoch %d are not those the run was led by: only later "
                          "epochs may be changed",
                          policy->path, (int)u.last_epoch);
    policy->last_epoch = (int)u.last_epoch;
    return ESPER_OK;
}

const esper_policy_ops esper_policy_scripted = {
    .name = "scripted",
    .about = "follows a decision file, one line for an epoch",
    .open = open_scripted,
    .close = close_scripted,
    .decide = decide,
    .pack = pack,
    .unpack = unpack,
};
