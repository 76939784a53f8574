/* What the file of a learned policy says of itself, and whether it can decide in a comparison. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/learned.h"
#include "slot/slots.h"
#include "run/compare.h"
#include "run/policy_note.h"

/* Whether it is for the run that it would decide about: the task's host, with the slots that it has. */
static esper_status check_file(const esper_compare *compare, const esper_learned_file *file)
{
    const esper_slot_rules rules = {0};
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    const char *ids[ESPER_MAX_SLOTS];
    esper_learned_identity wanted;
    esper_net net;
    esper_status status = slots != NULL ? esper_task_build(compare->task, &compare->config, &compare->data, &net)
                                        : ESPER_FAIL(ESPER_E_NOMEM, "the slots of %s", compare->task->name);

    if (status == ESPER_OK) {
        status = esper_slots_init(slots, net.boundaries, net.n_boundaries, &rules);
        esper_net_fini(&net);
    }
    esper_learned_identity_init(&wanted);
    snprintf(wanted.task, sizeof(wanted.task), "%s", compare->task->name);
    wanted.topology = esper_task_host(compare->task, &compare->config, &compare->data).topology;
    for (int k = 0; status == ESPER_OK && k < slots->n; k++)
        ids[k] = slots->slot[k].id;
    if (status == ESPER_OK)
        status = esper_learned_identity_set_slots(&wanted, ids, slots->n);
    esper_mem_free(slots);
    return status == ESPER_OK ? esper_learned_check(file, &wanted) : status;
}

esper_status esper_compare_read_policy(const esper_compare *compare, esper_compare_line *line)
{
    esper_learned_file *file;
    const esper_learned_identity *identity;
    esper_config was;
    esper_status status = esper_learned_open(line->file, &file);

    if (status != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "--policies: ");
    status = check_file(compare, file);
    identity = esper_learned_identity_of(file);
    snprintf(line->reward, sizeof(line->reward), "%s", identity->reward);
    snprintf(line->gates, sizeof(line->gates), "%s", esper_config_gates_name(identity->gates));
    line->weights_known = esper_policy_settings(file, &was); /* a file without them says nothing of its weights */
    if (line->weights_known)
        esper_config_value_text(&was, esper_config_find("reward_weights"), line->weights);
    line->hash = esper_learned_hash_of(file);
    esper_learned_close(file);
    return status == ESPER_E_CONFIG ? esper_fail_within(ESPER_E_CONFIG, "--policies: ") : status;
}

esper_status esper_compare_note_policy(const esper_compare *compare, esper_compare_line *line)
{
    esper_learned_file *file;

    ESPER_TRY(esper_learned_open(line->file, &file));
    esper_policy_note(file, &compare->config, line->note);
    esper_learned_close(file);
    return ESPER_OK;
}
