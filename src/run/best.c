/* The best network of a run, and patience. */
#include "run/best.h"

#include <inttypes.h>
#include <math.h>

#include "base/number.h"
#include "base/status.h"

static esper_status write_best(void *context, esper_page *out)
{
    const esper_best *best = context;
    char loss[ESPER_NUMBER_CHARS], accuracy[ESPER_NUMBER_CHARS];

    if (best->epoch == 0 && best->waits_from == 0)
        return ESPER_OK;
    esper_number_write_real(best->loss, loss);
    esper_number_write_real(best->accuracy, accuracy);
    esper_page_print(out, "epoch %" PRIu32 " loss %s accuracy %s waits_from %" PRIu32 " budget %" PRIu64, best->epoch,
                     loss, accuracy, best->waits_from, best->budget);
    return ESPER_OK;
}

static esper_status read_best(void *context, const char *text)
{
    char loss[ESPER_NUMBER_CHARS], accuracy[ESPER_NUMBER_CHARS];
    esper_best best = {0};

    _Static_assert(ESPER_NUMBER_CHARS == 32, "the widths below leave room for the terminator");
    if (sscanf(text, "epoch %" SCNu32 " loss %31s accuracy %31s waits_from %" SCNu32 " budget %" SCNu64, &best.epoch,
               loss, accuracy, &best.waits_from, &best.budget) != 5 ||
        !esper_number_read_real(loss, &best.loss) || !esper_number_read_real(accuracy, &best.accuracy))
        return ESPER_FAIL(ESPER_E_FORMAT, "the checkpoint does not say which epoch was the best");
    *(esper_best *)context = best;
    return ESPER_OK;
}

void esper_best_attach(esper_best *best, esper_network *network)
{
    *best = (esper_best){0};
    esper_network_add_part(
        network, &(esper_state_part){.name = "best", .context = best, .write = write_best, .read = read_best});
}

bool esper_best_offer(esper_best *best, uint32_t epoch, double loss, double accuracy)
{
    if (!isfinite(loss) || (best->epoch > 0 && loss >= best->loss))
        return false;
    best->epoch = best->waits_from = epoch;
    best->loss = loss;
    best->accuracy = accuracy;
    return true;
}

esper_best_verdict esper_best_wait(esper_best *best, int patience, uint32_t epoch, esper_network *network)
{
    const esper_config *config = &network->engine->config;
    double held = config->schedule == ESPER_CONFIG_SCHEDULE_HOLD ? 1.0 - config->fall : 0.0;
    uint64_t spent = network->cursor.spent;

    if (patience == 0 || epoch - best->waits_from < (uint32_t)patience)
        return ESPER_BEST_GO_ON;
    best->waits_from = epoch;
    if (esper_network_share(network) < held) {
        best->budget = network->budget = (uint64_t)ceil((double)spent / held);
        return ESPER_BEST_FALL;
    }
    best->budget = network->budget = spent;
    return ESPER_BEST_END;
}
