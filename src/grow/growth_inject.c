/* Faults on purpose: the setting `inject`, a list of STEP:WHERE:ROLE:FAULT. WHERE is a tensor's name, or `host` or `seed`: one
 * of those, drawn by the run's random numbers, as the element is. FAULT may end with @RANK: then it strikes that rank alone. A
 * fault that finds nothing to spoil waits until there is something; one of a rank that does not exist strikes nobody, as a run may
 * be resumed with fewer. Each is written to the decision log before it is done. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"
#include "grow/growth_internal.h"

static esper_status read_fault(esper_growth *growth, const char *word)
{
    growth_fault fault = {.rank = -1};
    char role[16], name[16];
    int end = 0;

    if (growth->drills.n_faults == GROWTH_MAX_FAULTS)
        return ESPER_FAIL(ESPER_E_CONFIG, "inject: at most %d faults", (int)GROWTH_MAX_FAULTS);
    if (sscanf(word, "%" SCNu64 ":%79[^:]:%15[^:]:%15[^:@]%n@%d%n", &fault.step, fault.where, role, name, &end,
               &fault.rank, &end) < 4 ||
        word[end] != '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "inject: '%s' is no STEP:WHERE:ROLE:FAULT, such as 300:host:param:nan", word);
    fault.role = esper_log_find(esper_log_role_name, role);
    fault.fault = esper_log_find(esper_log_fault_name, name);
    if (fault.role < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "inject: '%s' is no role: there are param, grad, moment and buffer", role);
    if (fault.fault < 0)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "inject: '%s' is no fault: there are nan, inf, neg_inf, exponent and mantissa", name);
    if (growth->drills.n_faults > 0 && growth->drills.faults[growth->drills.n_faults - 1].step >= fault.step)
        return ESPER_FAIL(ESPER_E_CONFIG, "inject: steps go up; %" PRIu64 " comes too late", fault.step);
    growth->drills.faults[growth->drills.n_faults++] = fault;
    return ESPER_OK;
}

esper_status growth_read_faults(esper_growth *growth, const char *text)
{
    char words[ESPER_CONFIG_TEXT_CHARS], *rest = words, *word;

    snprintf(words, sizeof(words), "%s", text);
    while ((word = strsep(&rest, ",")) != NULL)
        if (word[0] != '\0')
            ESPER_TRY(read_fault(growth, word));
    return ESPER_OK;
}

/* The tensor to spoil; -1 = there is none now. */
static int64_t choose(const esper_guard *guard, const growth_fault *fault, esper_rng *rng)
{
    int64_t chosen = -1;
    uint32_t n = 0;

    for (size_t i = 0; i < esper_guard_count(guard); i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, i);
        bool in_host = strcmp(tensor->group, "host") == 0;
        bool is_there = strcmp(fault->where, "host") == 0   ? in_host
                        : strcmp(fault->where, "seed") == 0 ? !in_host
                                                            : strcmp(tensor->name, fault->where) == 0;

        if (is_there && (int)tensor->role == fault->role && tensor->count > 0 && esper_rng_below(rng, ++n) == 0)
            chosen = (int64_t)i;
    }
    return chosen;
}

static esper_status spoil(esper_growth *growth, esper_guard *guard, const growth_fault *fault, esper_drill_point point)
{
    const esper_network *network = growth->network;
    esper_rng_key key = {.seed = network->seed,
                         .purpose = ESPER_RNG_FAULT,
                         .step = (uint32_t)fault->step,
                         .tag = (uint32_t)growth->facts.n_injected};
    esper_log_entry entry = {
        .step = network->cursor.step, .epoch = (int32_t)network->cursor.epoch + 1, .source = ESPER_LOG_INJECTION};
    const esper_guard_tensor *tensor;
    esper_rng rng;
    int64_t chosen;

    esper_rng_init(&rng, &key);
    chosen = choose(guard, fault, &rng);
    if (chosen < 0)
        return ESPER_OK;
    tensor = esper_guard_tensor_at(guard, (size_t)chosen);
    snprintf(entry.injection.tensor, sizeof(entry.injection.tensor), "%s", tensor->name);
    entry.injection.role = fault->role;
    entry.injection.fault = fault->fault;
    entry.injection.point = (int32_t)point;
    entry.injection.bit = 1;
    entry.injection.element = esper_rng_below(&rng, (uint32_t)tensor->count);
    assert(entry.injection.element < tensor->count);
    ESPER_TRY(growth_log(growth, &entry));
    growth_record_injection(growth, &entry);
    growth->facts.n_injected++;
    if (fault->rank >= 0 && fault->rank != network->engine->ranks.rank)
        return ESPER_OK;
    return esper_guard_inject(guard, (size_t)chosen, entry.injection.element, (esper_fault)fault->fault, 1, NULL);
}

void growth_drill(void *context, esper_network *network, esper_drill_point point)
{
    esper_growth *growth = context;
    const growth_fault *fault;
    esper_drill_point due;
    esper_status status;

    if (growth->facts.n_injected >= (uint64_t)growth->drills.n_faults || growth->drills.status != ESPER_OK)
        return;
    fault = &growth->drills.faults[growth->facts.n_injected];
    due = fault->role == ESPER_GUARD_ROLE_GRAD ? ESPER_DRILL_GRADIENTS : ESPER_DRILL_BETWEEN_STEPS;
    if (point != due || growth->network->cursor.step < fault->step)
        return;
    status = spoil(growth, esper_guarded_guard(network), fault, point);
    if (status == ESPER_OK)
        return;
    growth->drills.status = status; /* esper_growth_check_drills tells it */
    snprintf(growth->drills.text, sizeof(growth->drills.text), "%s", esper_last_error());
}

esper_status esper_growth_check_drills(const esper_growth *growth)
{
    if (growth->drills.status == ESPER_OK)
        return ESPER_OK;
    return ESPER_FAIL(growth->drills.status, "%s", growth->drills.text);
}
