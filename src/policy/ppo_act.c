/* Acting with a learner's network: one step of all environments. */
#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "policy/ppo_internal.h"

esper_status esper_ppo_act(esper_ppo *ppo, const esper_ppo_step *step)
{
    const esper_policy_net_desc *d = &ppo->desc.net;
    esper_policy_io io = esper_policy_net_io(ppo->net, ESPER_POLICY_ACT);
    size_t n = (size_t)step->n_envs, H = (size_t)d->hidden, layers = (size_t)d->layers;

    if (step->n_envs < 1 || step->n_envs > ppo->desc.n_envs)
        return ESPER_FAIL(ESPER_E_ARG, "%d environments act, the network takes 1 to %d", step->n_envs,
                          ppo->desc.n_envs);
    memcpy(io.obs, step->obs, n * (size_t)d->n_features * sizeof(float));
    for (size_t i = 0; i < n * (size_t)d->n_ids; i++)
        io.ids[i] = step->ids[i] < 0 ? d->id_rows - 1 : step->ids[i];
    memset(io.reset, 0, n * sizeof(float));
    for (size_t env = 0; env < n; env++)
        for (size_t layer = 0; layer < layers; layer++) {
            memcpy(io.h[layer] + env * H, step->h + (env * layers + layer) * H, H * sizeof(float));
            memcpy(io.c[layer] + env * H, step->c + (env * layers + layer) * H, H * sizeof(float));
        }
    ESPER_TRY(esper_policy_net_forward(ppo->net, ESPER_POLICY_ACT, step->n_envs));
    for (size_t env = 0; env < n; env++)
        for (size_t layer = 0; layer < layers; layer++) {
            memcpy(step->h + (env * layers + layer) * H, io.h_after[layer] + env * H, H * sizeof(float));
            memcpy(step->c + (env * layers + layer) * H, io.c_after[layer] + env * H, H * sizeof(float));
        }
    return ESPER_OK;
}

esper_status esper_ppo_head(const esper_ppo *ppo, int env, int head, uint64_t mask, esper_masked *masked_out)
{
    esper_policy_io io = esper_policy_net_io(ppo->net, ESPER_POLICY_ACT);
    int size = ppo->desc.net.heads[head].size;

    assert(head >= 0 && head < ppo->desc.net.n_heads && env >= 0 && env < ppo->desc.n_envs);
    return esper_masked_init(io.logits[head] + (size_t)env * (size_t)size, size, mask, ppo->desc.floors[head],
                             masked_out);
}

float esper_ppo_value(const esper_ppo *ppo, int env)
{
    assert(env >= 0 && env < ppo->desc.n_envs);
    return esper_policy_net_io(ppo->net, ESPER_POLICY_ACT).value[env];
}
