/* The list of policies, and what all of them share. */
#include "policy/policy.h"

#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/suggest.h"
#include "policy/pack.h"

static const esper_policy_ops *const policies[] = {
    &esper_policy_none,     &esper_policy_heuristic, &esper_policy_random,
    &esper_policy_scripted, &esper_policy_command,   &esper_policy_halving,
    &esper_policy_learned,  &esper_policy_trials,    NULL,
};

const esper_policy_ops *const *esper_policy_list(void)
{
    return policies;
}

esper_status esper_policy_find(const char *name, const esper_policy_ops **ops_out)
{
    char names[128] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; policies[i] != NULL; i++) {
        if (strcmp(policies[i]->name, name) == 0) {
            *ops_out = policies[i];
            return ESPER_OK;
        }
        esper_suggest_offer(&suggest, policies[i]->name);
        strncat(names, i == 0 ? "" : ", ", sizeof(names) - strlen(names) - 1);
        strncat(names, policies[i]->name, sizeof(names) - strlen(names) - 1);
    }
    return ESPER_FAIL(ESPER_E_ARG, "no policy is called '%s'%s There are %s (learned: by its file or its run)", name,
                      suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", names);
}

bool esper_policy_is_file(const char *text)
{
    static const char suffix[] = ".safetensors";
    size_t chars = strlen(text), end = sizeof(suffix) - 1;
    struct stat info;

    for (int i = 0; policies[i] != NULL; i++)
        if (strcmp(policies[i]->name, text) == 0)
            return false;
    return strchr(text, '/') != NULL || (chars > end && strcmp(text + chars - end, suffix) == 0) ||
           (stat(text, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)));
}

esper_status esper_policy_open(const char *name, const esper_policy_setup *setup, esper_policy **policy_out)
{
    const esper_policy_ops *ops;

    ESPER_TRY(esper_policy_find(name, &ops));
    if (setup->n_slots < 1 || setup->n_slots > ESPER_POLICY_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "policy %s: %d slots, expected 1 to %d", name, setup->n_slots,
                          ESPER_POLICY_MAX_SLOTS);
    return ops->open(setup, policy_out);
}

void esper_policy_close(esper_policy *policy)
{
    if (policy != NULL && policy->ops->close != NULL)
        policy->ops->close(policy);
    else
        esper_mem_free(policy);
}

const char *esper_policy_name(const esper_policy *policy)
{
    return policy->ops->name;
}

const char *esper_policy_describe(const esper_policy *policy)
{
    return policy->ops->describe != NULL ? policy->ops->describe(policy) : policy->ops->name;
}

esper_status esper_policy_decide(esper_policy *policy, const esper_policy_view *view, esper_decision *decision_out)
{
    if (view->n_slots < 1 || view->n_slots > ESPER_POLICY_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_ARG, "policy %s: a view of %d slots, expected 1 to %d", policy->ops->name,
                          view->n_slots, ESPER_POLICY_MAX_SLOTS);
    return policy->ops->decide(policy, view, decision_out);
}

size_t esper_policy_pack_bytes(const esper_policy *policy)
{
    return ESPER_PACK_HEAD_BYTES + (policy->ops->pack != NULL ? policy->ops->pack(policy, NULL) : 0);
}

void esper_policy_pack(const esper_policy *policy, void *memory)
{
    size_t bytes = 0;

    if (policy->ops->pack != NULL)
        bytes = policy->ops->pack(policy, (char *)memory + ESPER_PACK_HEAD_BYTES);
    esper_pack_seal(memory, policy->ops->name, bytes);
}

esper_status esper_policy_unpack(esper_policy *policy, const void *memory, size_t bytes)
{
    const void *payload;
    size_t n;

    ESPER_TRY(esper_pack_open(memory, bytes, policy->ops->name, &payload, &n));
    if (policy->ops->unpack != NULL)
        return policy->ops->unpack(policy, payload, n);
    return n == 0 ? ESPER_OK
                  : ESPER_FAIL(ESPER_E_FORMAT, "packed memory of %s: %zu bytes, but it remembers nothing",
                               policy->ops->name, n);
}
