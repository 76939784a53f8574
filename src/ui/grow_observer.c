/* From what a run says of itself to what the view of growing shows. */
#include "ui/grow_observer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "policy/decision.h"
#include "ui/banner.h"
#include "ui/grow_words.h"

void esper_grow_observer_init(esper_grow_observer *watch, esper_config_progress kind, FILE *stream)
{
    *watch = (esper_grow_observer){.acc_best = (double)NAN};
    esper_grow_view_init(&watch->view, kind, stream);
}

/* ------------------------------------------------------------------------------------------------ filling in */

static esper_growth_slot slot_of(const esper_growth *growth, const esper_growth_look *look, int k)
{
    const esper_slot *slot = &look->slots->slot[k];
    esper_bound bound = esper_growth_bound_of(growth, k);
    bool is_shown = esper_stage_has_seed(slot->stage);
    esper_growth_slot shown = {.slot = slot,
                               .gate = look->gates[k],
                               .dependence = (double)NAN,
                               .dependence_low = (double)NAN,
                               .dependence_high = (double)NAN,
                               .would_add = (double)NAN,
                               .gradient_ratio = (double)NAN};

    if (is_shown && bound.n_epochs > 0) {
        shown.dependence = esper_bound_mean(&bound);
        shown.dependence_low = esper_bound_lower(&bound);
        shown.dependence_high = esper_bound_upper(&bound);
    } else if (is_shown && (slot->known & ESPER_KNOWN_CONTRIBUTION)) {
        shown.dependence = slot->contribution;
    }
    if (slot->stage == ESPER_STAGE_TRAINING)
        shown.would_add = look->trial[k].value;
    if (is_shown && (slot->known & ESPER_KNOWN_RATIO))
        shown.gradient_ratio = slot->grad_ratio;
    return shown;
}

static esper_growth_decision decision_of(const esper_growth_look *look)
{
    const esper_decision *decision = look->decision;
    bool has_slot = decision->slot >= 0 && decision->slot < look->slots->n;

    return (esper_growth_decision){.op = esper_slot_op_name(decision->op),
                                   .slot = has_slot ? look->slots->slot[decision->slot].id : NULL,
                                   .reason = decision->text,
                                   .refused = !look->accepted,
                                   .refusal = look->refusal};
}

static esper_growth_view view_of(esper_grow_observer *watch, const esper_run_view *run)
{
    const esper_network *network = run->network;
    esper_growth_look look = esper_growth_look_at(run->growth);
    uint32_t n_epochs = esper_network_epochs(network), epoch = network->cursor.epoch;
    bool begun = network->tally.targets > 0, known = watch->last.epoch > 0;
    esper_growth_view view = {
        .epoch = epoch < n_epochs ? epoch + 1 : n_epochs,
        .max_epochs = n_epochs,
        .foretold = network->budget > 0 && look.may_grow && esper_network_share(network) < 1.0,
        .share = esper_network_share(network),
        .part = (double)network->cursor.batch / network->engine->steps_per_epoch,
        .doing = "training",
        .loss_train = begun ? esper_tally_loss(&network->tally) : (double)NAN,
        .acc_train = begun ? esper_tally_accuracy(&network->tally) : (double)NAN,
        .loss_valid = known ? watch->last.loss_valid : (double)NAN,
        .acc_valid = known ? watch->last.acc_valid : (double)NAN,
        .acc_best = watch->acc_best,
        .params_total = esper_growth_params(run->growth),
        .params_host = esper_net_count_params(&network->net, 0),
        .lr = begun ? network->lr : (double)NAN,
        .samples_per_s = run->samples_per_s,
        .seconds = watch->last.seconds,
        .seconds_left = run->seconds_left,
    };

    assert(look.slots->n <= ESPER_MAX_SLOTS);
    for (int k = 0; k < look.slots->n; k++)
        if (esper_slots_is_open(look.slots, k))
            watch->slots[view.n_slots++] = slot_of(run->growth, &look, k);
    view.slots = watch->slots;
    if (known)
        view.decision = decision_of(&look);
    if (network->guarded != NULL) {
        esper_governor_reading reading = esper_guarded_reading(network);

        view.n_rollbacks = reading.n_rollbacks;
        view.n_skips = reading.n_skipped;
    }
    return view;
}

/* ------------------------------------------------------------------------------------------------ being told */

static void begin(void *context, const esper_run_view *run)
{
    esper_grow_observer *watch = context;
    esper_growth_view view = view_of(watch, run);

    esper_grow_view_network(&watch->view, &run->network->engine->plain);
    esper_banner_print(run, watch->view.live.stream);
    fflush(watch->view.live.stream);
    view.doing = "starting";
    if (watch->view.live.bar)
        esper_grow_view_step(&watch->view, &view);
}

static void step(void *context, const esper_run_view *run)
{
    esper_grow_observer *watch = context;
    esper_growth_view view;

    if (!esper_grow_view_is_due(&watch->view, "training"))
        return;
    view = view_of(watch, run);
    esper_grow_view_step(&watch->view, &view);
}

static void evaluation(void *context, const esper_run_view *run, esper_split split, double part)
{
    esper_grow_observer *watch = context;
    int n_trying = esper_growth_look_at(run->growth).n_trying;
    char doing[32];
    esper_growth_view view;

    snprintf(doing, sizeof(doing), "%s", split == ESPER_SPLIT_TEST ? "testing" : "validating");
    if (n_trying > 0)
        snprintf(doing, sizeof(doing), "trying %d seed%s", n_trying, n_trying == 1 ? "" : "s");

    if (!esper_grow_view_is_due(&watch->view, doing))
        return;
    view = view_of(watch, run);
    view.doing = doing;
    view.part = part;
    esper_grow_view_step(&watch->view, &view);
}

/* One line for a trial. */
static void tell_trial(esper_grow_observer *watch, const esper_run_view *run, const esper_growth_look *look,
                       uint32_t epoch, bool won)
{
    const esper_blueprint *blueprint =
        esper_policy_blueprint(run->network->engine->host.topology, look->best->blueprint);
    esper_words_best best = {.slot = look->slots->slot[look->best->slot].id,
                             .blueprint = blueprint != NULL ? blueprint->name : "?",
                             .gain = look->best->gain,
                             .error = look->best->error,
                             .params = look->best->params,
                             .n_candidates = look->n_tried,
                             .asked = look->decision->op == ESPER_SLOT_OP_TRY};
    char words[ESPER_WORDS_CHARS];

    esper_grow_view_note(&watch->view, epoch, esper_words_trial(&best, won, words));
}

/* The words of the decision go with what it led to, and not with what slots did by themselves. told: a slot of which
 * all has been told; or NULL. */
static void tell_events(esper_grow_observer *watch, const esper_growth_look *look, uint32_t epoch, const char *told)
{
    const esper_decision *decision = look->decision;
    bool acts = look->accepted && decision->op != ESPER_SLOT_OP_WAIT && decision->slot >= 0;

    for (int i = 0; i < look->n_events; i++) {
        const esper_slot_event *event = &look->events[i];
        bool meant = acts && strcmp(look->slots->slot[decision->slot].id, event->slot) == 0;

        if (told == NULL || strcmp(told, event->slot) != 0)
            esper_grow_view_event(&watch->view, epoch, event, meant ? decision->text : NULL);
    }
}

/* A gate that stays shut for some epochs is what gates are for, and stands in the block; other refusals are news. */
static bool is_news(const esper_growth_look *look)
{
    if (look->accepted)
        return false;
    for (int i = 0; i < look->n_events; i++)
        if (look->events[i].kind == ESPER_SLOT_EVENT_GATE && !look->events[i].gate.passed)
            return false;
    return true;
}

static void epoch(void *context, const esper_run_view *run, const esper_epoch_record *record)
{
    esper_grow_observer *watch = context;
    esper_growth_look look = esper_growth_look_at(run->growth);
    esper_growth_decision decision = decision_of(&look);
    bool won = look.best != NULL && look.accepted && look.decision->op == ESPER_SLOT_OP_GERMINATE;
    char words[ESPER_WORDS_CHARS];
    esper_growth_view view;

    watch->last = *record;
    if (!(record->acc_valid <= watch->acc_best) && !isnan(record->acc_valid))
        watch->acc_best = record->acc_valid;
    view = view_of(watch, run);
    esper_grow_view_epoch(&watch->view, &view);
    if (look.best != NULL)
        tell_trial(watch, run, &look, record->epoch, won);
    tell_events(watch, &look, record->epoch, won ? look.slots->slot[look.best->slot].id : NULL);
    if (is_news(&look))
        esper_grow_view_note(&watch->view, record->epoch, esper_words_decision(&decision, words));
}

static void incident(void *context, const esper_run_view *run, const esper_incident *what)
{
    esper_grow_observer *watch = context;
    esper_growth_look look = esper_growth_look_at(run->growth);
    char text[512];

    esper_grow_view_note(&watch->view, what->at.epoch + 1, esper_incident_describe(what, text, sizeof(text)));
    look.accepted = false; /* what it led to is not the policy's doing */
    tell_events(watch, &look, what->at.epoch + 1, NULL);
}

esper_run_observer esper_grow_observer_of(esper_grow_observer *watch)
{
    if (!esper_live_is_shown(&watch->view.live))
        return (esper_run_observer){0};
    return (esper_run_observer){
        .context = watch, .begin = begin, .step = step, .evaluation = evaluation, .epoch = epoch, .incident = incident};
}
