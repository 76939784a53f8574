/* Internal to the tests. Agents that follow a few simple rules, honest ones and such that try to be paid for nothing; and fleets
 * that are played by them. */
#ifndef ESPER_TESTS_GROW_RULES_H
#define ESPER_TESTS_GROW_RULES_H

#include <math.h>

#include "base/clock.h"
#include "policy/mask.h"
#include "learn/fleet.h"
#include "engine/helpers.h"

/* Slots by what grows there: the host's own, those of new channels, and with the first also those that open again behind them. */
typedef enum rules_place { PLACE_OWN, PLACE_WIDE, PLACE_STACKED } rules_place;

typedef struct rules {
    const char *blueprint;
    int         style, tempo;
    double      target;     /* alpha that its seeds are to reach; 0 = all of it */
    rules_place place;
    int         first_slot, n_slots; /* which of those slots it uses, in turn */
    int         start;      /* epoch of the first germination; 0 = never */
    int         most;       /* seeds in all */
    int         rests_in;   /* a seed is not moved on from this stage; ESPER_STAGE_FOSSILIZED: to the end */
    double      keeps_from; /* keeps seeds that contribute this much ... */
    int         keeps_after; /* ... once they have held for so many epochs */
    int         prunes_in, prunes_after; /* removes a seed that was so long in this stage; 0 = never */
    int         speed;      /* of a prune */
    int         sheds_at;   /* epoch from which on it removes what it has not kept; 0 = never */
    int         tears;      /* so many of its first seeds are torn out as soon as they hold, and the host has come to lean on them */
    bool        tries;      /* asks for a trial whenever it may */
    bool        chases;     /* keeps a seed that holds when the reading is the best so far, and removes it when it is not */
} rules;

typedef struct rules_state {
    int n_germinated, n_torn;
} rules_state;

/* Its slots in the view (ESPER_POLICY_MAX_SLOTS at most): how many there are. */
static inline int rules_slots(const rules *r, const esper_policy_view *view, int slots_out[ESPER_POLICY_MAX_SLOTS])
{
    int n = 0;

    for (int k = 0; k < view->n_slots; k++) {
        bool wide = strncmp(view->slots[k].id, "wide", 4) == 0, again = strchr(view->slots[k].id, '_') != NULL;

        if (r->place == PLACE_WIDE ? wide : !wide && (!again || r->place == PLACE_STACKED))
            slots_out[n++] = k;
    }
    return n;
}

static inline bool is_open(const esper_policy_view *view, const esper_decision *decision)
{
    return esper_mask_check(view, decision) == ESPER_OK;
}

/* Whether the rules want the seed of a slot away. */
static inline bool rules_remove(const rules *r, const rules_state *state, const esper_policy_view *view,
                                const esper_policy_slot *slot)
{
    bool holds = slot->stage == ESPER_STAGE_HOLDING;

    return (slot->stage == r->prunes_in && slot->epochs_in_stage >= r->prunes_after) ||
           (r->sheds_at > 0 && view->epoch >= r->sheds_at) || (holds && state->n_torn < r->tears) ||
           (holds && r->chases && view->accuracy_valid < view->signals.best_accuracy);
}

/* What the rules say about the seed of one slot; false = nothing. */
static inline bool rules_tend(const rules *r, rules_state *state, const esper_policy_view *view, int k,
                              esper_decision *d)
{
    const esper_policy_slot *slot = &view->slots[k];

    if (rules_remove(r, state, view, slot)) {
        esper_decision_init(d, ESPER_SLOT_OP_PRUNE);
        d->slot = k;
        d->speed = r->speed;
        if (is_open(view, d)) {
            state->n_torn += slot->stage == ESPER_STAGE_HOLDING && state->n_torn < r->tears;
            return true;
        }
    }
    if (slot->stage == r->rests_in || slot->stage == ESPER_STAGE_FOSSILIZED)
        return false;
    if (slot->stage == ESPER_STAGE_HOLDING &&
        (!(slot->contribution >= r->keeps_from) || slot->epochs_in_stage < r->keeps_after))
        return false;
    esper_decision_init(d, slot->stage == ESPER_STAGE_HOLDING ? ESPER_SLOT_OP_FOSSILIZE : ESPER_SLOT_OP_ADVANCE);
    d->slot = k;
    if (slot->stage == ESPER_STAGE_TRAINING && slot->epochs_in_stage < 4)
        return false;
    if (slot->stage == ESPER_STAGE_BLENDING && slot->alpha_mode != ESPER_POLICY_ALPHA_HOLD)
        return false;
    return is_open(view, d);
}

/* Whether another seed may come: as for a policy that learns, nothing germinates while another one is young. */
static inline bool rules_sow(const rules *r, rules_state *state, const esper_policy_view *view, esper_decision *d)
{
    const esper_blueprint *blueprint;
    int slots[ESPER_POLICY_MAX_SLOTS], n_slots = rules_slots(r, view, slots);
    esper_mask mask;

    if (r->start == 0 || view->epoch < r->start || state->n_germinated >= r->most)
        return false;
    esper_mask_build(view, &mask);
    check_good(esper_blueprint_find(view->topology, r->blueprint, &blueprint));
    for (int i = 0; i < r->n_slots && n_slots > 0; i++) {
        int k = slots[(r->first_slot + (state->n_germinated + i) % r->n_slots) % n_slots];

        esper_decision_init(d, ESPER_SLOT_OP_GERMINATE);
        d->slot = k;
        d->blueprint = blueprint->index;
        d->style = r->style;
        d->tempo = r->tempo;
        d->target = r->target > 0.0 ? r->target : d->target;
        if (mask.slots[ESPER_SLOT_OP_GERMINATE][k] && is_open(view, d)) {
            state->n_germinated++;
            return true;
        }
    }
    return false;
}

/* A trial in some slot of the host, whatever came of the last. */
static inline bool rules_try(const esper_policy_view *view, esper_decision *d)
{
    for (int k = 0; k < view->n_slots; k++) {
        esper_decision_init(d, ESPER_SLOT_OP_TRY);
        d->slot = (view->epoch + k) % view->n_slots;
        if (is_open(view, d))
            return true;
    }
    return false;
}

static inline void rules_decide(const rules *r, rules_state *state, const esper_policy_view *view, esper_decision *d)
{
    if (r->tries && rules_try(view, d))
        return;
    for (int k = 0; k < view->n_slots; k++)
        if (esper_stage_has_seed(view->slots[k].stage) && rules_tend(r, state, view, k, d))
            return;
    if (rules_sow(r, state, view, d))
        return;
    esper_decision_init(d, ESPER_SLOT_OP_WAIT);
}

/* Plays one episode for each of the rules (n), all with the same seed. */
static inline void rules_play(esper_fleet *fleet, const rules *list, int n, int n_steps, uint64_t seed,
                              esper_episode *episodes_out)
{
    rules_state *states = calloc((size_t)n, sizeof(*states));
    esper_decision *decisions = calloc((size_t)n, sizeof(*decisions));
    uint64_t *seeds = calloc((size_t)n, sizeof(*seeds));

    assert_true(states != NULL && decisions != NULL && seeds != NULL);
    for (int i = 0; i < n; i++)
        seeds[i] = seed;
    check_good(esper_fleet_begin_at(fleet, seeds, n));
    check_good(esper_fleet_advance(fleet, NULL));
    for (int step = 0; step < n_steps; step++) {
        for (int i = 0; i < n; i++) {
            const esper_policy_view *view = esper_env_look_at(esper_fleet_env(fleet, i)).view;

            if (view != NULL)
                rules_decide(&list[i], &states[i], view, &decisions[i]);
        }
        if (step + 1 < n_steps)
            check_good(esper_fleet_advance(fleet, decisions));
        else
            check_good(esper_fleet_finish(fleet, decisions));
    }
    for (int i = 0; i < n; i++)
        episodes_out[i] = esper_fleet_episode(fleet, i);
    free(states);
    free(decisions);
    free(seeds);
}

#endif
