/* A learned policy that decides: its network, always the likeliest choice, and what it remembers of the run.
 *
 * After max_epochs it waits: no episode that it learned from went on so long. After a rollback it begins anew, as it did in
 * those. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/features.h"
#include "policy/learned.h"
#include "policy/pack.h"
#include "policy/policy.h"

typedef struct policy_learned {
    esper_policy         base;
    esper_pool          *pool;
    esper_backend       *backend;
    esper_ppo           *ppo;
    esper_normaliser    *norm;
    uint64_t             hash; /* of the file */
    char                 about[ESPER_POLICY_ABOUT_CHARS];
    int                  n_slots, n_state; /* n_state: floats of h, and of c */
    esper_feature_memory memory;
    float               *h, *c, *obs; /* (n_state), (n_state), (features); one block */
    int32_t              ids[ESPER_POLICY_MAX_SLOTS];
} policy_learned;

/* Plain memory; h and c follow. */
typedef struct packed_head {
    uint64_t             hash;
    uint64_t             n_state;
    esper_feature_memory memory;
} packed_head;

_Static_assert(sizeof(packed_head) == 16 + sizeof(esper_feature_memory), "a head has no holes");

static size_t state_bytes(const policy_learned *policy)
{
    return (size_t)policy->n_state * sizeof(float);
}

/* ------------------------------------------------------------------------------------------------ opening */

static void close_learned(esper_policy *base)
{
    policy_learned *policy = (policy_learned *)base;

    esper_mem_free(policy->h);
    esper_normaliser_close(policy->norm);
    esper_ppo_close(policy->ppo);
    esper_backend_close(policy->backend);
    esper_pool_close(policy->pool);
    esper_mem_free(policy);
}

static esper_status check_for(const esper_learned_file *file, const esper_policy_setup *setup)
{
    const esper_learned_identity *identity = esper_learned_identity_of(file);
    size_t n_state = (size_t)identity->layers * (size_t)identity->hidden;
    size_t bytes = ESPER_PACK_HEAD_BYTES + sizeof(packed_head) + 2 * n_state * sizeof(float);
    esper_learned_identity wanted;

    esper_learned_identity_init(&wanted);
    snprintf(wanted.task, sizeof(wanted.task), "%s", setup->task != NULL ? setup->task : "");
    wanted.topology = setup->topology;
    ESPER_TRY(esper_learned_identity_set_slots(&wanted, setup->slot_ids, setup->n_slots));
    ESPER_TRY(esper_learned_check(file, &wanted));
    if (setup->room_bytes > 0 && bytes > setup->room_bytes)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "%s: %d times %d hidden values remember %zu bytes: there is room for %zu", setup->policy_file,
                          identity->layers, identity->hidden, bytes, setup->room_bytes);
    return ESPER_OK;
}

/* A learner of one environment that never learns: the smallest there is; and what it remembers. */
static esper_status open_parts(policy_learned *policy, const esper_learned_file *file, const esper_policy_setup *setup)
{
    esper_learned_identity here = *esper_learned_identity_of(file); /* with the slots of this host */
    size_t n_state = (size_t)here.layers * (size_t)here.hidden;
    const char *backend = setup->backend;
    esper_ppo_desc desc;

    ESPER_TRY(esper_learned_identity_set_slots(&here, setup->slot_ids, setup->n_slots));
    esper_learned_ppo(&here, &desc);
    desc.n_envs = desc.max_steps = desc.chunk_steps = desc.batch_chunks = 1;
    desc.net.unborn = true; /* all of its weights are in the file */
    ESPER_TRY(esper_pool_open(1, &policy->pool));
    ESPER_TRY(esper_backend_open(backend != NULL ? backend : "auto", policy->pool, &policy->backend));
    ESPER_TRY(esper_ppo_open(policy->backend, &desc, &policy->ppo));
    ESPER_TRY(esper_learned_normaliser(0.0, &policy->norm));
    ESPER_TRY(esper_learned_load(file, policy->ppo, policy->norm, false));
    policy->n_slots = here.n_slots;
    policy->n_state = (int)n_state;
    policy->h = esper_mem_alloc((2 * n_state + (size_t)here.n_features) * sizeof(float));
    if (policy->h == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "what a learned policy remembers");
    policy->c = policy->h + n_state;
    policy->obs = policy->c + n_state;
    esper_feature_memory_init(&policy->memory);
    return ESPER_OK;
}

static esper_status open_learned(const esper_policy_setup *setup, esper_policy **policy_out)
{
    policy_learned *policy;
    esper_learned_file *file;
    esper_status status;
    const char *slash;

    if (setup->policy_file == NULL || setup->policy_file[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "a learned policy is opened from its file: give its path in place of the name");
    ESPER_TRY(esper_learned_open(setup->policy_file, &file));
    policy = esper_mem_alloc(sizeof(*policy));
    status = policy != NULL ? check_for(file, setup) : ESPER_FAIL(ESPER_E_NOMEM, "learned policy");
    if (status == ESPER_OK) {
        policy->base.ops = &esper_policy_learned;
        policy->hash = esper_learned_hash_of(file);
        slash = strrchr(setup->policy_file, '/'); /* "learned 0123456789abcdef best.safetensors" */
        snprintf(policy->about, sizeof(policy->about), "learned %016" PRIx64 " %.*s", policy->hash,
                 ESPER_POLICY_ABOUT_CHARS - 26, slash != NULL ? slash + 1 : setup->policy_file);
        status = open_parts(policy, file, setup);
    }
    esper_learned_close(file);
    if (status != ESPER_OK) {
        if (policy != NULL)
            close_learned(&policy->base);
        return status;
    }
    *policy_out = &policy->base;
    return ESPER_OK;
}

static const char *describe(const esper_policy *base)
{
    return ((const policy_learned *)base)->about;
}

/* ------------------------------------------------------------------------------------------------ deciding */

static esper_status decide(esper_policy *base, const esper_policy_view *view, esper_decision *decision_out)
{
    policy_learned *policy = (policy_learned *)base;
    esper_ppo_step step = {.n_envs = 1, .obs = policy->obs, .ids = policy->ids, .h = policy->h, .c = policy->c};
    esper_learned_choice choice;
    esper_action_mask mask;
    int n_bad;

    if (view->n_slots != policy->n_slots)
        return ESPER_FAIL(ESPER_E_ARG, "a view of %d slots for a policy of %d", view->n_slots, policy->n_slots);
    if (view->max_epochs > 0 && view->epoch > view->max_epochs) {
        esper_decision_init(decision_out, ESPER_SLOT_OP_WAIT);
        esper_decision_because(decision_out, ESPER_REASON_LATE, "Growing is over since epoch %d", view->max_epochs);
        return ESPER_OK;
    }
    ESPER_TRY(esper_action_mask_build(view, &mask));
    esper_feature_memory_begin(&policy->memory, view);
    if (view->rolled_back) {
        memset(policy->h, 0, state_bytes(policy));
        memset(policy->c, 0, state_bytes(policy));
    }
    ESPER_TRY(esper_features_fill(view, &policy->memory, policy->n_slots, policy->obs, policy->ids, &n_bad));
    esper_normaliser_apply(policy->norm, policy->obs, policy->obs);
    ESPER_TRY(esper_ppo_act(policy->ppo, &step));
    ESPER_TRY(esper_learned_choose(policy->ppo, 0, &mask, NULL, &choice));
    esper_feature_memory_step(&policy->memory, view, choice.action.choice[ESPER_HEAD_OP],
                              true); /* the next view says whether it was */
    esper_action_decide(&choice.action, decision_out);
    decision_out->confidence = choice.probability;
    esper_decision_because(decision_out, ESPER_REASON_LEARNED, "Learned: with a probability of %.3f; value %.4g",
                           choice.probability, (double)choice.value);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ memory */

static size_t pack(const esper_policy *base, void *memory)
{
    const policy_learned *policy = (const policy_learned *)base;
    packed_head head = {.hash = policy->hash, .n_state = (uint64_t)policy->n_state, .memory = policy->memory};
    char *at = memory;

    if (memory != NULL) {
        memcpy(at, &head, sizeof(head));
        memcpy(at + sizeof(head), policy->h, state_bytes(policy));
        memcpy(at + sizeof(head) + state_bytes(policy), policy->c, state_bytes(policy));
    }
    return sizeof(head) + 2 * state_bytes(policy);
}

static esper_status unpack(esper_policy *base, const void *memory, size_t bytes)
{
    policy_learned *policy = (policy_learned *)base;
    const char *at = memory;
    packed_head head;

    if (bytes < sizeof(head))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of a learned policy: %zu bytes are too few", bytes);
    memcpy(&head, at, sizeof(head));
    if (head.hash != policy->hash)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s is another policy than the one that has decided so far, whose hash is %016" PRIx64
                          ": go on with that one",
                          policy->about, head.hash);
    if (head.n_state != (uint64_t)policy->n_state || bytes != sizeof(head) + 2 * state_bytes(policy) ||
        head.memory.last_op < 0 || head.memory.last_op >= ESPER_N_SLOT_OPS)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of a learned policy: damaged");
    policy->memory = head.memory;
    memcpy(policy->h, at + sizeof(head), state_bytes(policy));
    memcpy(policy->c, at + sizeof(head) + state_bytes(policy), state_bytes(policy));
    return ESPER_OK;
}

const esper_policy_ops esper_policy_learned = {
    .name = "learned",
    .about = "a trained network: give its file, or the run of `esper learn` that made it, in place of a name",
    .open = open_learned,
    .close = close_learned,
    .decide = decide,
    .pack = pack,
    .unpack = unpack,
    .describe = describe,
};
