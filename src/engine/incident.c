/* What a guard met, in a sentence. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/guarded.h"

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* What was found, in words. */
static int describe_finding(const esper_incident *incident, char *text, size_t chars)
{
    char where[48] = "";

    if (incident->tensor == NULL)
        return snprintf(text, chars, "%s: validation loss %g", esper_governor_reason_name(incident->reason),
                        incident->loss);
    if (incident->rank >= 0 && incident->n_ranks > 1)
        snprintf(where, sizeof(where), " on rank %d and %d more", incident->rank, incident->n_ranks - 1);
    else if (incident->rank >= 0)
        snprintf(where, sizeof(where), " on rank %d", incident->rank);
    if (incident->n_elements == 0)
        return snprintf(text, chars, "%s (%s)%s is not what the last step left", incident->tensor, incident->role,
                        where);
    return snprintf(
        text, chars, "%s in %s (%s)%s: %" PRIu64 " element%s, the first at %" PRIu64 "; %" PRIu64 " bad tensor%s",
        incident->problem, incident->tensor, incident->role, where, incident->n_elements, plural(incident->n_elements),
        incident->first_index, incident->n_tensors, plural(incident->n_tensors));
}

/* What was done about it. */
static void describe_deed(const esper_incident *incident, char *text, size_t chars)
{
    if (incident->action == ESPER_GOVERNOR_SKIP)
        snprintf(text, chars, "; batch %u of epoch %u is passed over", incident->at.batch + 1, incident->at.epoch + 1);
    else if (!incident->restored)
        snprintf(text, chars, "; there is no way back: %s", incident->failure);
    else
        snprintf(text, chars, "; back from step %" PRIu64 " to step %" PRIu64 "%s", incident->at.step,
                 incident->to.step,
                 incident->action == ESPER_GOVERNOR_PRUNE  ? ", with half the learning rate"
                 : incident->action == ESPER_GOVERNOR_STOP ? ", and there the run ends"
                                                           : "");
}

const char *esper_incident_describe(const esper_incident *incident, char *text, size_t chars)
{
    int n;

    if (chars == 0)
        return text;
    if (incident->action == ESPER_GOVERNOR_GO) {
        snprintf(text, chars, "nothing");
        return text;
    }
    n = describe_finding(incident, text, chars);
    if (n >= 0 && (size_t)n < chars)
        describe_deed(incident, text + n, chars - (size_t)n);
    return text;
}
