/* What decisions are worth: readings of the engine, put before the reward of a step. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/suggest.h"
#include "policy/actions.h"
#include "grow/growth_internal.h"

/* ------------------------------------------------------------------------------------------------ settings */

static esper_status no_such_mode(const char *name)
{
    char names[256] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; i < ESPER_N_REWARD_MODES; i++) {
        esper_suggest_offer(&suggest, esper_reward_mode_name(i));
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i > 0 ? ", " : "",
                 esper_reward_mode_name(i));
    }
    return ESPER_FAIL(ESPER_E_CONFIG, "reward: no mode is called '%s'%s There are: %s", name,
                      suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", names);
}

/* One word of `reward_weights`. */
static esper_status set_weight(esper_reward_config *reward, char *word)
{
    char *value = strchr(word, '='), *end;
    double number;

    if (value == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "reward_weights: '%s' is no name=value, such as rent_weight=0.2", word);
    *value++ = '\0';
    number = strtod(value, &end);
    if (end == value || *end != '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "reward_weights: %s: '%s' is no number", word, value);
    if (esper_reward_config_set(reward, word, number) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "reward_weights: ");
    return ESPER_OK;
}

esper_status esper_growth_reward_config(const esper_config *config, esper_reward_config *reward_out)
{
    char words[ESPER_CONFIG_TEXT_CHARS], *rest = words, *word;
    int mode = esper_reward_mode_find(config->reward);
    esper_reward_config reward;

    if (mode < 0)
        return no_such_mode(config->reward);
    esper_reward_config_init(&reward, (esper_reward_mode)mode);
    snprintf(words, sizeof(words), "%s", config->reward_weights);
    while ((word = strsep(&rest, ", ")) != NULL)
        if (word[0] != '\0')
            ESPER_TRY(set_weight(&reward, word));
    if (esper_reward_config_check(&reward) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "reward_weights: ");
    *reward_out = reward;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ a decision */

void growth_begin_ledger(esper_growth *growth)
{
    if (growth->facts.ledger_open)
        return;
    esper_reward_ledger_init(&growth->state.ledger, &growth->deciding.reward_config, &growth->deciding.view);
    growth->facts.ledger_open = 1;
}

bool growth_is_paid(const esper_growth *growth)
{
    return growth->deciding.reward_config.mode != ESPER_REWARD_GAIN || growth->deciding.has_twin;
}

void esper_growth_expect_twin(esper_growth *growth)
{
    growth->deciding.has_twin = true;
}

/* After the operation and the ticks. What was not legal came to nothing; what was and is refused has failed. */
esper_status growth_pay(esper_growth *growth, bool last)
{
    const esper_slots *slots = &growth->network->slots;
    const growth_measuring *measuring = &growth->measuring;
    growth_deciding *deciding = &growth->deciding;
    int op = esper_action_effective_op(&deciding->view, &deciding->decision);
    int stages[ESPER_MAX_SLOTS], epochs[ESPER_MAX_SLOTS];
    esper_reward_pair pairs[ESPER_ATTRIBUTION_PAIRS];
    esper_reward_facts facts = {
        .view = &deciding->view,
        .op = op,
        .slot = op == ESPER_SLOT_OP_WAIT ? -1 : deciding->decision.slot,
        .failed = op != ESPER_SLOT_OP_WAIT && !deciding->accepted,
        .last = last,
        .params_host = (double)esper_net_count_params(&growth->network->net, 0),
        .params_begun = deciding->params_begun,
        .flops = deciding->flops_seen + deciding->flops_beside / growth->network->engine->steps_per_epoch,
        .flops_begun = deciding->flops_begun,
        .improvement = measuring->measured ? measuring->probation : (double)NAN,
        .n_measured = measuring->measured ? measuring->n_probation : 0,
        .accuracy_committed = measuring->measured && measuring->n_probation > 0
                                  ? growth->recording.record.acc_valid - measuring->probation
                                  : (double)NAN,
        .accuracy_twin = growth->recording.record.acc_twin,
        .n_auto_pruned = (int)growth->facts.n_auto_pruned,
        .stages = stages,
        .epochs = epochs,
        .pairs = pairs,
    };

    for (int k = 0; k < slots->n; k++) {
        stages[k] = slots->slot[k].stage;
        epochs[k] = slots->slot[k].epochs_in_stage;
    }
    for (int i = 0; measuring->measured && i < measuring->found.n_synergies; i++)
        pairs[facts.n_pairs++] = (esper_reward_pair){.first = measuring->found.synergy[i].first,
                                                     .second = measuring->found.synergy[i].second,
                                                     .value = measuring->found.synergy[i].value};
    assert(growth->facts.ledger_open && facts.n_pairs <= ESPER_ATTRIBUTION_PAIRS);
    ESPER_TRY(esper_reward_step(&deciding->reward_config, &facts, &growth->state.ledger, &deciding->reward));
    growth->facts.n_auto_pruned = 0;
    growth->facts.n_segment++;
    growth->facts.earned += deciding->reward.total;
    growth->facts.earned_segment += deciding->reward.total;
    return ESPER_OK;
}

/* The first decisions of all may be blamed on nobody. */
void growth_forfeit(esper_growth *growth)
{
    growth_facts *facts = &growth->facts;

    if (facts->n_segment > 0)
        facts->earned += ESPER_GROWTH_PENALTY - facts->earned_segment;
    facts->earned_segment = 0.0;
    facts->n_segment = 0;
}

const esper_reward *esper_growth_reward(const esper_growth *growth)
{
    return &growth->deciding.reward;
}
