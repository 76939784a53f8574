/* Learning outside: one program is asked about every environment in turn. It sees which one a view is of and what its decision
 * before was worth; how it learns from that is its own affair. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "run/learn_internal.h"

esper_status learn_open_program(learn *self)
{
    const char *ids[ESPER_POLICY_MAX_SLOTS];
    esper_policy_setup setup = {
        .topology = self->identity.topology,
        .seed = self->base.config.seed,
        .max_epochs = self->base.config.epochs,
        .slot_ids = ids,
        .n_slots = self->identity.n_slots,
        .command = self->base.config.policy_cmd,
        .deadline_ms = (int)fmin(self->base.config.policy_deadline * 1000.0, 1e9),
    };

    if (esper_ranks_are_many(&self->base.ranks))
        return ESPER_FAIL(ESPER_E_CONFIG, "a program that learns outside (policy_cmd) is for a job of one rank");
    for (int k = 0; k < setup.n_slots; k++)
        ids[k] = self->identity.slots[k];
    return esper_policy_open(esper_policy_command.name, &setup, &self->program);
}

/* One line to the program, and its answer. */
static esper_status ask(learn *self, int env, const esper_policy_view *seen, double reward, bool over,
                        esper_decision *decision_out)
{
    uint64_t number = self->n_episodes + (uint64_t)env;
    esper_policy_episode episode = {
        .number = number, .seed = esper_fleet_seed_of(self->fleet, number), .env = env, .reward = reward, .over = over};
    esper_policy_view view = *seen;

    assert(self->program != NULL && env >= 0 && env < esper_fleet_envs(self->fleet));
    view.episode = &episode;
    return esper_policy_decide(self->program, &view, decision_out);
}

/* What the last decision was worth; one that the governor had to undo is punished. */
static double reward_of(const learn *self, int env)
{
    esper_env_look look = esper_env_look_at(esper_fleet_env(self->fleet, env));

    return look.n_rollbacks > 0 || look.stopped ? ESPER_GROWTH_PENALTY : esper_growth_reward(look.growth)->total;
}

esper_status learn_ask_program(learn *self, int step)
{
    for (int env = 0; env < esper_fleet_envs(self->fleet); env++) {
        const esper_policy_view *view = esper_env_look_at(esper_fleet_env(self->fleet, env)).view;

        if (step == 0)
            self->last_views[env] = NULL;
        if (view == NULL)
            continue; /* the governor has stopped it */
        self->last_views[env] = view;
        ESPER_TRY(ask(self, env, view, step == 0 ? (double)NAN : reward_of(self, env), false, &self->decisions[env]));
    }
    return ESPER_OK;
}

/* The last view once more, as there is none after it. */
esper_status learn_tell_program(learn *self)
{
    esper_decision answer;

    for (int env = 0; env < esper_fleet_envs(self->fleet); env++)
        if (self->last_views[env] != NULL)
            ESPER_TRY(ask(self, env, self->last_views[env], reward_of(self, env), true, &answer));
    return ESPER_OK;
}
