/* The epoch. */
#include "grow/epoch.h"

#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "base/status.h"

/* Speed is measured from here. */
static void begin_stretch(esper_epoch_player *player)
{
    player->began = esper_clock_seconds();
    player->first_samples = player->network->tally.samples;
}

double esper_epoch_speed(const esper_epoch_player *player)
{
    double seconds = esper_clock_seconds() - player->began;

    return seconds > 0.0 ? (double)(player->network->tally.samples - player->first_samples) / seconds : 0.0;
}

/* What came of a call of the guard's. */
static esper_status heed(esper_epoch_player *player, esper_status status, const esper_incident *incident,
                         esper_epoch_end *end_out)
{
    *end_out = ESPER_EPOCH_GOOD;
    if (status != ESPER_OK)
        return player->failed != NULL ? player->failed(player->context, status) : status;
    if (incident->action == ESPER_GOVERNOR_GO)
        return ESPER_OK;
    *end_out = incident->action == ESPER_GOVERNOR_STOP ? ESPER_EPOCH_STOPPED : ESPER_EPOCH_GONE_BACK;
    if (player->met != NULL)
        ESPER_TRY(player->met(player->context, incident));
    assert(*end_out != ESPER_EPOCH_GOOD);
    if (incident->restored)
        begin_stretch(player);
    return ESPER_OK;
}

static esper_status train(esper_epoch_player *player, esper_epoch_end *end_out)
{
    esper_network *network = player->network;
    esper_incident incident;
    esper_status status = ESPER_OK;

    *end_out = ESPER_EPOCH_GOOD;
    begin_stretch(player);
    while (status == ESPER_OK && *end_out != ESPER_EPOCH_STOPPED && !esper_network_epoch_done(network)) {
        status = esper_guarded_step(network, &incident);
        if (status == ESPER_OK && player->growth != NULL)
            status = esper_growth_check_drills(player->growth);
        status = heed(player, status, &incident, end_out);
        if (status == ESPER_OK && player->stepped != NULL)
            status = player->stepped(player->context);
    }
    player->seconds_train += esper_clock_seconds() - player->began;
    return status;
}

esper_status esper_epoch_settle(esper_epoch_player *player, esper_epoch_end *end_out)
{
    esper_incident incident;

    return heed(player, esper_guarded_settle(player->network, &incident), &incident, end_out);
}

esper_status esper_epoch_begin(esper_epoch_player *player, esper_epoch_end *end_out)
{
    esper_incident incident;

    return heed(player, esper_guarded_begin_epoch(player->network, &incident), &incident, end_out);
}

/* Behind the passes of the validation. */
static esper_status settle_behind(void *context, bool *good_out)
{
    esper_epoch_player *player = context;

    ESPER_TRY(esper_epoch_settle(player, &player->settled));
    *good_out = player->settled == ESPER_EPOCH_GOOD;
    return ESPER_OK;
}

/* behind: what came of the epoch's end is known only behind the passes. */
static esper_status validate(esper_epoch_player *player, bool behind, esper_epoch_record *record,
                             esper_epoch_end *end_out)
{
    esper_growth_settler settler = {.context = player, .settle = settle_behind};
    esper_network *network = player->network;
    esper_tally valid;

    if (player->growth != NULL)
        ESPER_TRY(esper_growth_validate(player->growth, &player->follower, behind ? &settler : NULL, &valid));
    else
        ESPER_TRY(esper_network_evaluate(network, ESPER_SPLIT_VALID, &player->follower, &valid));
    if (behind) {
        *end_out = player->settled;
        record->samples_per_s = esper_epoch_speed(player);
    }
    if (*end_out != ESPER_EPOCH_GOOD)
        return ESPER_OK;
    record->loss_train = esper_tally_loss(&network->tally);
    record->acc_train = esper_tally_accuracy(&network->tally);
    record->loss_valid = esper_tally_loss(&valid);
    record->acc_valid = esper_tally_accuracy(&valid);
    record->lr = network->lr;
    record->grad_norm = network->grad_norm;
    record->seconds = esper_clock_seconds() - player->began;
    return player->measured != NULL ? player->measured(player->context, record) : ESPER_OK;
}

esper_status esper_epoch_play(esper_epoch_player *player, esper_epoch_record *record_out, esper_epoch_end *end_out)
{
    esper_epoch_record record = {.acc_twin = (double)NAN};
    esper_incident incident;
    bool behind = false;
    esper_status status;
    double began;

    assert(player->network->cursor.batch <= player->network->engine->steps_per_epoch);
    ESPER_TRY(train(player, end_out));
    if (*end_out == ESPER_EPOCH_STOPPED)
        return ESPER_OK;
    if (player->growth != NULL)
        ESPER_TRY(esper_guarded_settle_behind(player->network, &behind));
    if (!behind)
        ESPER_TRY(esper_network_read(player->network));
    began = esper_clock_seconds();
    record.epoch = player->network->cursor.epoch + 1;
    record.samples_per_s = esper_epoch_speed(player);
    status = behind ? ESPER_OK : esper_epoch_settle(player, end_out);
    if (status == ESPER_OK && *end_out == ESPER_EPOCH_GOOD) {
        status = validate(player, behind, &record, end_out);
        if (status == ESPER_OK && *end_out == ESPER_EPOCH_GOOD)
            status =
                heed(player, esper_guarded_judge(player->network, record.loss_valid, &incident), &incident, end_out);
    }
    player->seconds_valid += esper_clock_seconds() - began;
    *record_out = record;
    return status;
}
