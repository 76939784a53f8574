/* Internal to tests/policy. Learned policies of random weights, views of a run that goes on, and files to be damaged. */
#ifndef ESPER_TESTS_POLICY_LEARNED_CASE_H
#define ESPER_TESTS_POLICY_LEARNED_CASE_H

#include "policy/features.h"
#include "policy/helpers.h"
#include "policy/learned.h"
#include "policy/masked.h"

enum { HIDDEN = 16, EPISODE = 20 };

static const char policy_path[] = "learned.safetensors";

static inline esper_learned_identity identity_of(const char *task, int n_slots)
{
    esper_learned_identity identity;

    esper_learned_identity_init(&identity);
    snprintf(identity.task, sizeof(identity.task), "%s", task);
    identity.topology = ESPER_TOPOLOGY_CNN;
    identity.topologies = 1u << ESPER_TOPOLOGY_CNN;
    identity.max_epochs = EPISODE;
    identity.gates = ESPER_CONFIG_GATES_PERMISSIVE;
    identity.width = identity.hidden = HIDDEN;
    check_good(esper_learned_identity_set_slots(&identity, slot_ids, n_slots));
    return identity;
}

typedef struct learner {
    esper_learned_identity identity;
    esper_pool            *pool;
    esper_backend         *backend;
    esper_ppo             *ppo;
    esper_normaliser      *norm;
} learner;

static inline void each_weight(esper_ppo *ppo, void (*visit)(float *values, int64_t n, int tensor))
{
    const esper_net *net = esper_policy_net_program(esper_ppo_net(ppo));

    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_PARAM)
            visit(esper_slab_at(esper_policy_net_slab(esper_ppo_net(ppo)), ESPER_FAMILY_PARAM, &net->tensors[t]),
                  net->tensors[t].count, t);
}

/* A network at birth chooses nearly evenly: this one has opinions. */
static inline void make_bold(float *values, int64_t n, int tensor)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST, .tag = (uint32_t)tensor});
    for (int64_t i = 0; i < n; i++)
        values[i] += 0.4f * esper_rng_normal(&rng);
}

static inline void learner_open(learner *l, const esper_learned_identity *identity, int n_envs, uint64_t seed)
{
    esper_ppo_desc desc;

    memset(l, 0, sizeof(*l));
    l->identity = *identity;
    esper_learned_ppo(identity, &desc);
    desc.n_envs = n_envs;
    desc.seed = seed;
    check_good(esper_pool_open(1, &l->pool));
    check_good(esper_backend_open("auto", l->pool, &l->backend));
    check_good(esper_ppo_open(l->backend, &desc, &l->ppo));
    check_good(esper_learned_normaliser(0.0, &l->norm));
    each_weight(l->ppo, make_bold);
}

static inline void learner_close(learner *l)
{
    esper_normaliser_close(l->norm);
    esper_ppo_close(l->ppo);
    esper_backend_close(l->backend);
    esper_pool_close(l->pool);
}

/* Statistics other than those it was born with. */
static inline void learner_see(learner *l)
{
    float row[ESPER_FEATURES_RUN + ESPER_FEATURES_SLOT * ESPER_POLICY_MAX_SLOTS];

    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < l->norm->n; i++)
            row[i] = 0.1f * (float)(i % 7) + 0.2f * (float)k;
        esper_normaliser_gather(l->norm, row);
    }
    (void)esper_normaliser_update(l->norm);
}

/* Some epoch of some run: slots in stages that depend on both. */
static inline void set_epoch(scene *s, uint32_t run, int epoch, int n_slots)
{
    static const int stages[] = {ESPER_STAGE_DORMANT, ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING, ESPER_STAGE_HOLDING,
                                 ESPER_STAGE_FOSSILIZED};
    esper_rng rng;

    esper_rng_init(&rng,
                   &(esper_rng_key){.seed = 3, .purpose = ESPER_RNG_TEST, .network = run, .step = (uint32_t)epoch});
    set_scene(s, ESPER_TOPOLOGY_CNN);
    s->view.n_slots = n_slots;
    s->view.epoch = epoch;
    s->view.max_epochs = EPISODE;
    s->view.loss_valid = 0.3 + (double)esper_rng_uniform(&rng);
    s->view.accuracy_valid = 50.0 + 40.0 * (double)esper_rng_uniform(&rng);
    s->view.last_refused = esper_rng_below(&rng, 4) == 0;
    s->view.forks_left = 0.3;
    for (int k = 0; k < n_slots; k++) {
        int stage = stages[esper_rng_below(&rng, 5)];
        esper_policy_slot *slot;

        s->slots[k].fork_share = 0.05;
        if (stage == ESPER_STAGE_DORMANT)
            continue;
        slot = put_seed(s, k, stage, "conv_light");
        slot->alpha = stage == ESPER_STAGE_TRAINING ? 0.0 : (double)esper_rng_uniform(&rng);
        slot->blend = ESPER_BLEND_ADD;
        slot->gradient_health = (double)esper_rng_uniform(&rng);
        slot->measured = esper_rng_below(&rng, 2) == 0;
        slot->contribution = slot->measured ? (double)esper_rng_normal(&rng) : (double)NAN;
    }
}

static inline void save_policy(learner *l, const char *path)
{
    check_good(esper_learned_save(l->ppo, &l->identity, l->norm, NULL, path));
}

static inline char *read_bytes(const char *path, size_t *n_out)
{
    FILE *file = fopen(path, "rb");
    char *bytes;
    long n;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    n = ftell(file);
    rewind(file);
    bytes = malloc((size_t)n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)n, file), n);
    fclose(file);
    *n_out = (size_t)n;
    return bytes;
}

static inline void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

#endif
