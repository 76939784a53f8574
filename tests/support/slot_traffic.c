/* Random traffic on a table of slots. */
#include "support/slot_traffic.h"

#include <string.h>

#include "base/status.h"
#include "slot/slot_id.h"

esper_status slot_traffic_table(int n_cols, esper_slots *slots_out)
{
    esper_boundary boundaries[ESPER_MAX_SLOTS];
    esper_slot_rules rules = {.permissive = true};

    memset(boundaries, 0, sizeof(boundaries));
    for (int k = 0; k < 2 * n_cols; k++) {
        boundaries[k].row = k % 2;
        boundaries[k].col = k / 2;
        boundaries[k].order = (k % 2) * n_cols + k / 2;
        boundaries[k].channels = 8;
        ESPER_TRY(esper_slot_id_format(boundaries[k].row, boundaries[k].col, boundaries[k].slot));
    }
    return esper_slots_init(slots_out, boundaries, 2 * n_cols, &rules);
}

static void germinate(esper_slot *slot, uint32_t more, esper_slot_events *events)
{
    static const char *const blueprints[] = {"norm", "conv_light", "attention"};
    esper_germination wanted;

    esper_germination_init(&wanted, blueprints[more % 3], (int)more);
    wanted.blend = more % 2 ? ESPER_BLEND_GATE : ESPER_BLEND_MULTIPLY;
    wanted.ramp = more % 2 ? ESPER_RAMP_GATED : ESPER_RAMP_SIGMOID;
    wanted.seed_params = 1000 + more;
    (void)esper_slot_germinate(slot, &wanted, events);
}

esper_status slot_traffic_stir(esper_slot *slot, esper_rng *rng, esper_slot_events *events)
{
    esper_alpha_ramp ramp = {(int)esper_rng_below(rng, 6), (int)esper_rng_below(rng, 4), 6.0};
    uint32_t what = esper_rng_below(rng, 14), more = esper_rng_below(rng, 12);
    double real = 0.1 * esper_rng_below(rng, 12);
    esper_slot_gradient gradient = {.norm = 1.0 + real, .health = 0.9, .ratio = real, .vanishing = more < 2};
    esper_gate_result result;

    switch (what) {
    case 0:
    case 1:
        germinate(slot, more, events);
        break;
    case 2:
        if (more == 0)
            (void)esper_slot_prune(slot, real < 0.5 ? "governor_nan" : "tired", "test", events);
        break;
    case 3:
        if (more < 4)
            (void)esper_slot_schedule_prune(slot, &ramp, "later", "test", events);
        break;
    case 4:
        (void)esper_slot_set_alpha_target(slot, real, &ramp, 0, events);
        break;
    case 5:
        esper_slot_set_gradient(slot, &gradient);
        break;
    case 6:
        esper_slot_set_contribution(slot, real);
        esper_slot_add_interaction(slot, real - 0.5);
        break;
    case 7:
    case 8:
        for (; more > 0; more--)
            ESPER_TRY(esper_slot_record_accuracy(slot, 50.0 + real));
        break;
    case 9:
    case 10:
    case 11:
        ESPER_TRY(esper_slot_advance(slot, -1, NULL, events, &result));
        break;
    default:
        esper_slot_tick(slot, NULL, events);
        break;
    }
    return ESPER_OK;
}
