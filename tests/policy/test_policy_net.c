/* ctest: timeout=120 labels=golden sealed=also cuda=also driver=also */
/* The policy's network: a recorded one with all its gradients, finite differences through the whole of it, and what must
 * hold for any weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "policy/masked.h"
#include "policy/policy_net.h"
#include "support/golden.h"
#include "support/memory.h"

#ifdef ESPER_TEST_DRIVER
#define FAST "cuda"
#else
#define FAST "cpu"
#endif

enum { HEADS = 8, OP = 7 };

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* A network on a backend of its own. */
typedef struct fixture {
    esper_pool       *pool;
    esper_backend    *backend;
    esper_policy_net *net;
} fixture;

static void open_net(fixture *f, const char *backend, const esper_policy_net_desc *desc, int envs, int steps,
                     int chunks)
{
    const esper_policy_net_sizes sizes = {envs, steps, chunks};

    check_good(esper_pool_open(2, &f->pool));
    check_good(esper_backend_open(backend, f->pool, &f->backend));
    check_good(esper_policy_net_open(f->backend, desc, &sizes, 7, &f->net));
}

static void close_net(fixture *f)
{
    esper_policy_net_close(f->net);
    esper_backend_close(f->backend);
    esper_pool_close(f->pool);
}

/* A copy, until the next is asked for. */
static const float *param_named(fixture *f, const char *name, esper_family family, int64_t *count_out)
{
    const esper_net *net = esper_policy_net_program(f->net);
    int t = esper_net_find(net, name);
    static float copy[4096];

    if (t == ESPER_NO_TENSOR)
        fail_msg("no parameter %s", name);
    *count_out = net->tensors[t].count;
    assert_true(*count_out <= (int64_t)(sizeof(copy) / sizeof(copy[0])));
    memory_read(f->backend, copy, esper_slab_at(esper_policy_net_slab(f->net), family, &net->tensors[t]),
                (size_t)*count_out * sizeof(copy[0]));
    return copy;
}

static esper_policy_net_desc small_desc(void)
{
    esper_policy_net_desc d;

    esper_policy_net_desc_init(&d);
    d.n_features = 6;
    d.n_ids = 2;
    d.id_rows = 5;
    d.id_width = 3;
    d.n_heads = 2;
    d.heads[0] = (esper_policy_head){"slot", 3, false, ESPER_POLICY_OF_RUN};
    d.heads[1] = (esper_policy_head){"op", 4, true, ESPER_POLICY_OF_RUN};
    d.q_head = 1;
    d.n_contributions = 2;
    d.width = 12;
    d.hidden = 16;
    d.layers = 2;
    return d;
}

/* ------------------------------------------------------------------------------------------------ recorded */

static const esper_policy_head recorded_heads[HEADS] = {
    {"slot", 2, false, ESPER_POLICY_OF_RUN},         {"blueprint", 13, true, ESPER_POLICY_OF_RUN},
    {"style", 4, false, ESPER_POLICY_OF_RUN},        {"tempo", 3, false, ESPER_POLICY_OF_RUN},
    {"alpha_target", 3, false, ESPER_POLICY_OF_RUN}, {"alpha_speed", 4, false, ESPER_POLICY_OF_RUN},
    {"alpha_curve", 5, false, ESPER_POLICY_OF_RUN},  {"op", 6, false, ESPER_POLICY_OF_RUN},
};

enum { ENVS = 2, STEPS = 5, FEATURES = 85, SLOTS = 2, HIDDEN = 16, LAYERS = 2, WIDTH = 24 };

static esper_safetensors *recorded;
static double             worst_share;

/* In a file they may lie anywhere: a copy, which holds until four more were asked for. */
static const float *floats_of(const char *name, uint64_t count)
{
    enum { COPIES = 4, MOST = 4096 };
    static float copies[COPIES][MOST];
    static int next;
    const esper_safetensors_tensor *t = esper_safetensors_find(recorded, name);
    float *copy = copies[next++ % COPIES];

    if (t == NULL || t->dtype != ESPER_SAFETENSORS_F32 || t->n_bytes != count * sizeof(float) || count > MOST)
        fail_msg("%s is not recorded with %d floats", name, (int)count);
    memcpy(copy, t->data, count * sizeof(float));
    return copy;
}

static int64_t int_at(const char *name, size_t at)
{
    const esper_safetensors_tensor *t = esper_safetensors_find(recorded, name);
    int64_t value;

    if (t == NULL || t->dtype != ESPER_SAFETENSORS_I64)
        fail_msg("%s is not recorded", name);
    memcpy(&value, (const char *)t->data + at * sizeof(value), sizeof(value));
    return value;
}

/* Relative to the tensor's largest entry. */
static void compare(const char *name, const float *found, size_t count, double tolerance)
{
    const float *expected = floats_of(name, count);
    double largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++) {
        double off = fabs((double)found[i] - (double)expected[i]);

        worst_share = fmax(worst_share, largest > 0 ? off / (tolerance * largest) : 0);
        if (!(off <= tolerance * largest))
            fail_msg("%s %zu: found %.9g, recorded %.9g, largest %.9g", name, i, (double)found[i], (double)expected[i],
                     largest);
    }
}

static void load_weights(fixture *f)
{
    const esper_net *net = esper_policy_net_program(f->net);
    size_t n = 0, n_recorded = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        char name[ESPER_NAME_CHARS + 16];

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        snprintf(name, sizeof(name), "param/%s", tensor->name);
        memory_write(f->backend, esper_slab_at(esper_policy_net_slab(f->net), ESPER_FAMILY_PARAM, tensor),
                     floats_of(name, (uint64_t)tensor->count), (size_t)tensor->count * sizeof(float));
        n++;
    }
    for (size_t i = 0; i < esper_safetensors_count(recorded); i++)
        n_recorded += strncmp(esper_safetensors_at(recorded, i)->name, "param/", 6) == 0;
    assert_int_equal(n, n_recorded);
}

/* States of layer l are recorded as (layers, environments, H). */
static void load_inputs(const esper_policy_io *io)
{
    memcpy(io->obs, floats_of("in/states", ENVS * STEPS * FEATURES), ENVS * STEPS * FEATURES * sizeof(float));
    memset(io->reset, 0, ENVS * STEPS * sizeof(float));
    memset(io->q_choice, 0, ENVS * STEPS * 6 * sizeof(float));
    for (size_t i = 0; i < ENVS * STEPS; i++) {
        io->q_choice[i * 6 + (size_t)int_at("in/action/op", i)] = 1.0f;
        for (size_t slot = 0; slot < SLOTS; slot++) {
            int64_t id = int_at("in/blueprint_indices", i * SLOTS + slot);

            io->ids[i * SLOTS + slot] = id < 0 ? 13 : (int32_t)id;
        }
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t at = (size_t)layer * ENVS * HIDDEN;

        memcpy(io->h[layer], floats_of("in/hidden_h", LAYERS * ENVS * HIDDEN) + at, ENVS * HIDDEN * sizeof(float));
        memcpy(io->c[layer], floats_of("in/hidden_c", LAYERS * ENVS * HIDDEN) + at, ENVS * HIDDEN * sizeof(float));
    }
}

/* Which heads each operation asks: bits in the order of the heads. */
static const uint32_t asks[6] = {0x80, 0x9f, 0xf5, 0xe1, 0x81, 0x81};

/* The recorded mask, or the stored choice alone where the operation does not ask the head. */
static uint64_t mask_at(int which, size_t step)
{
    const char *head = recorded_heads[which].name;
    int size = recorded_heads[which].size;
    char name[64];
    const esper_safetensors_tensor *t;
    uint64_t mask = 0;

    snprintf(name, sizeof(name), "in/action/%s", head);
    if ((asks[int_at("in/action/op", step)] >> which & 1u) == 0)
        return UINT64_C(1) << int_at(name, step);
    snprintf(name, sizeof(name), "in/mask/%s", head);
    t = esper_safetensors_find(recorded, name);
    assert_non_null(t);
    for (int i = 0; i < size; i++)
        mask |= (uint64_t)(((const uint8_t *)t->data)[step * (size_t)size + (size_t)i] != 0) << i;
    return mask;
}

/* A head's log-probabilities and entropies against the recorded ones, and the gradients of its logits. */
static void compare_head(const esper_policy_io *io, int head)
{
    const char *word = recorded_heads[head].name;
    size_t size = (size_t)recorded_heads[head].size;
    float log_prob[ENVS * STEPS], entropy[ENVS * STEPS];
    char name[4][64];

    snprintf(name[0], sizeof(name[0]), "out/log_prob/%s", word);
    snprintf(name[1], sizeof(name[1]), "out/entropy/%s", word);
    snprintf(name[2], sizeof(name[2]), "in/upstream_log_prob/%s", word);
    snprintf(name[3], sizeof(name[3]), "in/upstream_entropy/%s", word);
    memset(io->d_logits[head], 0, ENVS * STEPS * size * sizeof(float));
    for (size_t i = 0; i < ENVS * STEPS; i++) {
        char action[64];
        esper_masked m;

        snprintf(action, sizeof(action), "in/action/%s", word);
        check_good(esper_masked_init(io->logits[head] + i * size, (int)size, mask_at(head, i), 0, &m));
        log_prob[i] = (float)esper_masked_log_prob(&m, (int)int_at(action, i));
        entropy[i] = (float)m.entropy;
        esper_masked_backward(&m, (int)int_at(action, i), (double)floats_of(name[2], ENVS * STEPS)[i],
                              (double)floats_of(name[3], ENVS * STEPS)[i], io->d_logits[head] + i * size);
    }
    compare(name[0], log_prob, ENVS * STEPS, 1e-5);
    compare(name[1], entropy, ENVS * STEPS, 1e-5);
}

static void compare_states(const esper_policy_io *io)
{
    float h[LAYERS * ENVS * HIDDEN], c[LAYERS * ENVS * HIDDEN];

    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t env = 0; env < ENVS; env++) {
            size_t from = (env * STEPS + STEPS - 1) * HIDDEN, to = (layer * ENVS + env) * HIDDEN;

            memcpy(h + to, io->h_after[layer] + from, HIDDEN * sizeof(float));
            memcpy(c + to, io->c_after[layer] + from, HIDDEN * sizeof(float));
        }
    compare("out/hidden_h", h, LAYERS * ENVS * HIDDEN, 1e-5);
    compare("out/hidden_c", c, LAYERS * ENVS * HIDDEN, 1e-5);
}

static void compare_gradients(fixture *f)
{
    const esper_net *net = esper_policy_net_program(f->net);
    esper_slab mirror;

    check_good(esper_slab_mirror(esper_policy_net_slab(f->net), ESPER_FAMILY_BIT(ESPER_FAMILY_GRAD), &mirror));
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        char name[ESPER_NAME_CHARS + 16];

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        snprintf(name, sizeof(name), "param_grad/%s", tensor->name);
        compare(name, esper_slab_at(&mirror, ESPER_FAMILY_GRAD, tensor), (size_t)tensor->count, 2e-5);
    }
    esper_slab_fini(&mirror);
}

static void check_recorded(const char *backend)
{
    esper_policy_net_desc d;
    esper_policy_io io;
    fixture f;

    esper_policy_net_desc_init(&d);
    d.n_features = FEATURES;
    d.n_ids = d.n_contributions = SLOTS;
    d.id_rows = 14;
    d.id_width = 4;
    d.n_heads = HEADS;
    memcpy(d.heads, recorded_heads, sizeof(recorded_heads));
    d.q_head = OP;
    d.width = WIDTH;
    d.hidden = HIDDEN;
    d.layers = LAYERS;
    open_net(&f, backend, &d, 1, STEPS, ENVS);
    load_weights(&f);
    io = esper_policy_net_io(f.net, ESPER_POLICY_LEARN);
    for (int pass = 0; pass < 2; pass++) { /* the second over used memory */
        load_inputs(&io);
        check_good(esper_policy_net_forward(f.net, ESPER_POLICY_LEARN, NULL, ENVS));
        for (int head = 0; head < HEADS; head++)
            compare_head(&io, head);
        compare("out/value", io.value, ENVS * STEPS, 1e-5);
        compare("out/q", io.q, ENVS * STEPS, 1e-5);
        compare("out/contribution", io.contributions, ENVS * STEPS * SLOTS, 1e-5);
        compare_states(&io);
        memcpy(io.d_value, floats_of("in/upstream_value", ENVS * STEPS), ENVS * STEPS * sizeof(float));
        memcpy(io.d_q, floats_of("in/upstream_q", ENVS * STEPS), ENVS * STEPS * sizeof(float));
        memcpy(io.d_contributions, floats_of("in/upstream_contribution", ENVS * STEPS * SLOTS),
               ENVS * STEPS * SLOTS * sizeof(float));
        check_good(esper_policy_net_backward(f.net));
        compare_gradients(&f);
    }
    close_net(&f);
}

static void recorded_network(void **state)
{
    char path[GOLDEN_PATH_CHARS];

    (void)state;
    snprintf(path, sizeof(path), "%s/nets/policy_small.safetensors", golden_dir());
    if (access(path, F_OK) != 0) {
        printf("skipped: policy_small is not among the recorded files\n");
        skip();
    }
    check_good(esper_safetensors_open(path, &recorded));
    check_recorded("ref");
    check_recorded(FAST);
    printf("largest part of a tolerance used: %.0f %%\n", 100 * worst_share);
    esper_safetensors_close(recorded);
}

/* ------------------------------------------------------------------------------------------------ differences */

static void fill_noise(float *values, size_t n, uint32_t step, float size)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = 8, .purpose = ESPER_RNG_TEST, .step = step});
    for (size_t i = 0; i < n; i++)
        values[i] = size * esper_rng_normal(&rng);
}

enum { N = 3, T = 4 }; /* samples and steps of the small network */

static void fill_inputs(const esper_policy_io *io, int n, int steps)
{
    size_t rows = (size_t)n * (size_t)steps;

    fill_noise(io->obs, rows * 6, 1, 1.0f);
    memset(io->reset, 0, rows * sizeof(float));
    memset(io->q_choice, 0, rows * 4 * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        io->ids[2 * i] = (int32_t)(i % 5);
        io->ids[2 * i + 1] = (int32_t)(i * 3 % 5);
        io->q_choice[i * 4 + i % 4] = 1.0f;
    }
    for (int layer = 0; layer < 2; layer++) {
        fill_noise(io->h[layer], (size_t)n * 16, 2 + (uint32_t)layer, 0.5f);
        fill_noise(io->c[layer], (size_t)n * 16, 4 + (uint32_t)layer, 0.5f);
    }
}

/* A sum of all outputs with fixed weights: q and contributions too, or not. */
static double weighted_sum(fixture *f, const esper_policy_io *io, bool with_side, bool put)
{
    const size_t rows = N * T, sizes[] = {rows * 3, rows * 4, rows, rows, rows * 2};
    const float *values[] = {io->logits[0], io->logits[1], io->value, io->q, io->contributions};
    float *grads[] = {io->d_logits[0], io->d_logits[1], io->d_value, io->d_q, io->d_contributions};
    double sum = 0;
    float weight[N * T * 4];

    check_good(esper_policy_net_forward(f->net, ESPER_POLICY_LEARN, NULL, N));
    for (int i = 0; i < 5; i++) {
        fill_noise(weight, sizes[i], 20 + (uint32_t)i, i < 3 || with_side ? 1.0f : 0.0f);
        for (size_t k = 0; k < sizes[i]; k++)
            sum += (double)weight[k] * (double)values[i][k];
        if (put)
            memcpy(grads[i], weight, sizes[i] * sizeof(float));
    }
    return sum;
}

/* The second critic and the contributions see x but send nothing back: what flows into shared parameters is as if they were
 * not there. Their own parameters and all others must agree with differences. */
typedef double (*summing)(fixture *f, const esper_policy_io *io, bool with_side, bool put);

static void check_differences(fixture *f, const esper_policy_io *io, summing sum, int n_least)
{
    const esper_net *net = esper_policy_net_program(f->net);
    const float step = 1.0f / 64;
    int n_checked = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        bool side = strncmp(tensor->name, "q_head", 6) == 0 || strncmp(tensor->name, "contribution", 12) == 0;
        float *values, *grads, before;
        double slope, found;
        size_t at;

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        values = esper_slab_at(esper_policy_net_slab(f->net), ESPER_FAMILY_PARAM, tensor);
        grads = esper_slab_at(esper_policy_net_slab(f->net), ESPER_FAMILY_GRAD, tensor);
        at = (size_t)(tensor->count / 2);
        before = memory_peek(f->backend, &values[at]);
        slope = 0;
        for (int k = -2; k <= 2; k++) {
            static const double factor[] = {1, -8, 0, 8, -1};

            memory_poke(f->backend, &values[at], before + (float)k * step);
            slope += k == 0 ? 0 : factor[k + 2] * sum(f, io, side, false) / (12 * (double)step);
        }
        memory_poke(f->backend, &values[at], before);
        found = (double)memory_peek(f->backend, &grads[at]);
        /* a relu may bend within the step: a few parts in a hundred */
        if (fabs(slope - found) > 0.05 * fmax(0.5, fabs(slope)))
            fail_msg("%s %zu: finite differences %.6g, gradient %.6g", tensor->name, at, slope, found);
        n_checked++;
    }
    assert_true(n_checked > n_least);
}

static void gradients_by_differences(void **state)
{
    esper_policy_net_desc d = small_desc();
    esper_policy_io io;
    fixture f;

    (void)state;
    open_net(&f, "ref", &d, 1, T, N);
    io = esper_policy_net_io(f.net, ESPER_POLICY_LEARN);
    fill_inputs(&io, N, T);
    weighted_sum(&f, &io, true, true);
    check_good(esper_policy_net_backward(f.net));
    check_differences(&f, &io, weighted_sum, 50);
    close_net(&f);
}

/* ------------------------------------------------------------------------------------------------ slots */

enum { S = 3, FS = 4, OPS = 4, KINDS = 5 }; /* slots, features of one, operations, choices for a slot */

static esper_policy_net_desc slots_desc(int n_slots)
{
    esper_policy_net_desc d = small_desc();

    d.n_slots = d.n_ids = d.n_contributions = n_slots;
    d.n_slot_features = FS;
    d.there = 2;
    d.slot_width = 8;
    d.n_heads = 3;
    d.heads[0] = (esper_policy_head){"slot", n_slots, false, ESPER_POLICY_AMONG_SLOTS};
    d.heads[1] = (esper_policy_head){"op", OPS, true, ESPER_POLICY_OF_RUN};
    d.heads[2] = (esper_policy_head){"kind", KINDS, false, ESPER_POLICY_OF_SLOT};
    d.layers = 1;
    return d;
}

/* Row `which` of some observations: slot k of it is that of `from[k]` of S drawn ones; further ones are not there. */
static void put_slots(const esper_policy_net_desc *d, const esper_policy_io *io, size_t row, uint32_t which,
                      const int *from)
{
    float obs[6 + 8 * FS] = {0}, drawn[S * FS];
    int32_t ids[8];

    fill_noise(obs, 6, 100 + which, 1.0f);
    fill_noise(drawn, S * FS, 200 + which, 1.0f);
    for (int k = 0; k < d->n_slots; k++) {
        ids[k] = k < S ? (int32_t)((which + 2 * (uint32_t)from[k]) % 6) - 1 : -1;
        if (k >= S)
            continue;
        memcpy(obs + 6 + k * FS, drawn + from[k] * FS, FS * sizeof(float));
        obs[6 + k * FS + d->there] = which % 4 == 3 && from[k] == 1 ? 0.0f : 1.0f; /* not all are always there */
    }
    esper_policy_net_put(d, io, row, obs, ids);
    io->reset[row] = 0.0f;
    memset(io->q_choice + row * OPS, 0, OPS * sizeof(float));
    io->q_choice[row * OPS + which % OPS] = 1.0f;
}

static const int in_order[S] = {0, 1, 2};

static void put_memory(const esper_policy_io *io, size_t sample, uint32_t which)
{
    fill_noise(io->h[0] + sample * 16, 16, 300 + which, 0.5f);
    fill_noise(io->c[0] + sample * 16, 16, 400 + which, 0.5f);
}

/* As weighted_sum, of all that a network with slots says. */
static double sum_of_slots(fixture *f, const esper_policy_io *io, bool with_side, bool put)
{
    const size_t rows = N * T;
    const size_t sizes[] = {rows * S * OPS, rows * OPS, rows * S * KINDS, rows, rows, rows * S};
    const float *values[] = {io->logits[0], io->logits[1], io->logits[2], io->value, io->q, io->contributions};
    float *grads[] = {io->d_logits[0], io->d_logits[1], io->d_logits[2], io->d_value, io->d_q, io->d_contributions};
    float weight[N * T * S * KINDS];
    double sum = 0;

    check_good(esper_policy_net_forward(f->net, ESPER_POLICY_LEARN, NULL, N));
    for (int i = 0; i < 6; i++) {
        fill_noise(weight, sizes[i], 30 + (uint32_t)i, i < 4 || with_side ? 1.0f : 0.0f);
        for (size_t k = 0; k < sizes[i]; k++)
            sum += (double)weight[k] * (double)values[i][k];
        if (put)
            memcpy(grads[i], weight, sizes[i] * sizeof(float));
    }
    return sum;
}

static void gradients_through_slots(void **state)
{
    esper_policy_net_desc d = slots_desc(S);
    esper_policy_io io;
    fixture f;

    (void)state;
    open_net(&f, "ref", &d, 1, T, N);
    io = esper_policy_net_io(f.net, ESPER_POLICY_LEARN);
    for (uint32_t n = 0; n < N; n++) {
        for (uint32_t t = 0; t < T; t++)
            put_slots(&d, &io, n * T + t, n * T + t, in_order);
        put_memory(&io, n, n);
    }
    sum_of_slots(&f, &io, true, true);
    check_good(esper_policy_net_backward(f.net));
    check_differences(&f, &io, sum_of_slots, 35);
    close_net(&f);
}

/* What is said of one observation, for the slot that stood at each place when they were in order; with room for n_slots. */
typedef struct saying {
    float ops[OPS], scores[S][OPS], kinds[S][KINDS], contributions[S], value, h[16];
} saying;

static saying say(const esper_policy_net_desc *d, const esper_policy_io *io, size_t row, const int *from)
{
    saying said;
    size_t slots = (size_t)d->n_slots;

    memcpy(said.ops, io->logits[1] + row * OPS, sizeof(said.ops));
    for (size_t k = 0; k < S; k++) {
        int32_t chosen[3] = {(int32_t)k, 0, 0};

        for (int op = 0; op < OPS; op++) {
            esper_policy_logits at;

            chosen[1] = op;
            at = esper_policy_net_logits_at(d, 0, chosen);
            assert_int_equal(at.n, slots * OPS);
            said.scores[from[k]][op] = io->logits[0][row * at.n + at.first + k * at.stride];
        }
        for (size_t i = 0; i < KINDS; i++) {
            esper_policy_logits at = esper_policy_net_logits_at(d, 2, chosen);

            said.kinds[from[k]][i] = io->logits[2][row * at.n + at.first + i * at.stride];
        }
        said.contributions[from[k]] = io->contributions[row * slots + k];
    }
    said.value = io->value[row];
    memcpy(said.h, io->h_after[0] + row * 16, sizeof(said.h));
    return said;
}

/* Alone, among others, with room for more slots: the same bits. In another order of the slots: the same of each, but for the
 * rounding of a mean. */
static void check_slots_travel(const char *backend)
{
    static const int turned[S] = {2, 0, 1};
    esper_policy_net_desc d = slots_desc(S), roomy = slots_desc(7);
    fixture f, wide;
    esper_policy_io io, wide_io;
    saying alone[8];

    open_net(&f, backend, &d, 8, 1, 1);
    open_net(&wide, backend, &roomy, 8, 1, 1);
    io = esper_policy_net_io(f.net, ESPER_POLICY_ACT);
    wide_io = esper_policy_net_io(wide.net, ESPER_POLICY_ACT);
    for (uint32_t i = 0; i < 8; i++) {
        put_slots(&d, &io, 0, i, in_order);
        put_memory(&io, 0, i);
        check_good(esper_policy_net_forward(f.net, ESPER_POLICY_ACT, NULL, 1));
        alone[i] = say(&d, &io, 0, in_order);
    }
    assert_memory_not_equal(alone[0].scores[0], alone[0].scores[1], sizeof(alone[0].scores[0]));
    for (int pass = 0; pass < 3; pass++) { /* together; with room; turned */
        const esper_policy_net_desc *desc = pass == 1 ? &roomy : &d;
        const esper_policy_io *to = pass == 1 ? &wide_io : &io;
        const int *from = pass == 2 ? turned : in_order;

        for (uint32_t i = 0; i < 8; i++) {
            put_slots(desc, to, i, i, from);
            put_memory(to, i, i);
        }
        check_good(esper_policy_net_forward(pass == 1 ? wide.net : f.net, ESPER_POLICY_ACT, NULL, 8));
        for (uint32_t i = 0; i < 8; i++) {
            saying said = say(desc, to, i, from);
            const float *a = (const float *)&alone[i], *b = (const float *)&said;

            if (pass < 2)
                assert_memory_equal(&said, &alone[i], sizeof(said));
            for (size_t k = 0; k < sizeof(said) / sizeof(float); k++)
                assert_true(fabs((double)a[k] - (double)b[k]) < 1e-5);
        }
    }
    close_net(&f);
    close_net(&wide);
}

static void slots_have_no_numbers(void **state)
{
    (void)state;
    check_slots_travel("ref");
    check_slots_travel("cpu");
}

/* ------------------------------------------------------------------------------------------------ properties */

/* T steps at once are T single steps, memory carried by hand. */
static void steps_are_steps(void **state)
{
    esper_policy_net_desc d = small_desc();
    esper_policy_io act, learn;
    fixture f;

    (void)state;
    open_net(&f, FAST, &d, N, T, N);
    act = esper_policy_net_io(f.net, ESPER_POLICY_ACT);
    learn = esper_policy_net_io(f.net, ESPER_POLICY_LEARN);
    fill_inputs(&learn, N, T);
    learn.reset[T + 2] = 1.0f;
    check_good(esper_policy_net_forward(f.net, ESPER_POLICY_LEARN, NULL, N));
    for (int layer = 0; layer < 2; layer++) {
        memcpy(act.h[layer], learn.h[layer], N * 16 * sizeof(float));
        memcpy(act.c[layer], learn.c[layer], N * 16 * sizeof(float));
    }
    for (size_t t = 0; t < T; t++) {
        for (size_t n = 0; n < N; n++) {
            memcpy(act.obs + n * 6, learn.obs + (n * T + t) * 6, 6 * sizeof(float));
            memcpy(act.ids + n * 2, learn.ids + (n * T + t) * 2, 2 * sizeof(int32_t));
            memcpy(act.q_choice + n * 4, learn.q_choice + (n * T + t) * 4, 4 * sizeof(float));
            act.reset[n] = learn.reset[n * T + t];
        }
        check_good(esper_policy_net_forward(f.net, ESPER_POLICY_ACT, NULL, N));
        for (size_t n = 0; n < N; n++) {
            if (fabs((double)act.value[n] - (double)learn.value[n * T + t]) > 1e-6)
                fail_msg("value of sample %zu, step %zu: %.9g alone, %.9g in a row", n, t, (double)act.value[n],
                         (double)learn.value[n * T + t]);
            for (size_t k = 0; k < 4; k++)
                assert_true(fabs((double)act.logits[1][n * 4 + k] - (double)learn.logits[1][(n * T + t) * 4 + k]) <
                            1e-6);
        }
        for (int layer = 0; layer < 2; layer++) {
            memcpy(act.h[layer], act.h_after[layer], N * 16 * sizeof(float));
            memcpy(act.c[layer], act.c_after[layer], N * 16 * sizeof(float));
        }
    }
    close_net(&f);
}

/* A reset forgets what was before it, whatever that was; the value does not know the choice, its companion does. */
static void resets_and_critics(void **state)
{
    esper_policy_net_desc d = small_desc();
    float value[N * T], q[N * T];
    int n_other = 0;
    esper_policy_io io;
    fixture f;

    (void)state;
    open_net(&f, FAST, &d, 1, T, N);
    io = esper_policy_net_io(f.net, ESPER_POLICY_LEARN);
    fill_inputs(&io, N, T);
    io.reset[0] = 1.0f;
    check_good(esper_policy_net_forward(f.net, ESPER_POLICY_LEARN, NULL, N));
    memcpy(value, io.value, sizeof(value));
    memcpy(q, io.q, sizeof(q));
    io.h[0][3] = NAN;
    io.c[1][2] = INFINITY;
    for (int i = 0; i < N * T; i++)
        io.q_choice[4 * i] = 1.0f - io.q_choice[4 * i];
    check_good(esper_policy_net_forward(f.net, ESPER_POLICY_LEARN, NULL, N));
    assert_memory_equal(value, io.value, sizeof(value));
    for (int i = 0; i < N * T; i++)
        n_other += q[i] != io.q[i];
    assert_true(n_other > 0);
    close_net(&f);
}

/* Rows of weights, or columns where they are fewer, at right angles and of the length the layer is born with. */
static void check_orthogonal(fixture *f, const char *name, int rows, int cols, double length)
{
    int64_t count;
    const float *w = param_named(f, name, ESPER_FAMILY_PARAM, &count);
    int n = rows < cols ? rows : cols;

    assert_int_equal(count, rows * cols);
    for (int a = 0; a < n; a++)
        for (int b = 0; b <= a; b++) {
            double sum = 0;

            for (int k = 0; k < (rows < cols ? cols : rows); k++)
                sum += rows < cols ? (double)w[a * cols + k] * (double)w[b * cols + k]
                                   : (double)w[k * cols + a] * (double)w[k * cols + b];
            if (fabs(sum - (a == b ? length * length : 0)) > 1e-5 * length * length)
                fail_msg("%s: vectors %d and %d have the product %g", name, a, b, sum);
        }
}

static void weights_at_birth(void **state)
{
    esper_policy_net_desc d = small_desc();
    const float *bias;
    int64_t count;
    fixture f;

    (void)state;
    open_net(&f, "ref", &d, 1, T, N);
    check_orthogonal(&f, "feature_net.0.weight", 12, 12, sqrt(2));
    check_orthogonal(&f, "lstm.layers.1.weight_hh_l0", 64, 16, 1);
    check_orthogonal(&f, "op_head.0.weight", 16, 16, sqrt(2));
    check_orthogonal(&f, "op_head.4.weight", 4, 8, 0.01);
    check_orthogonal(&f, "state_value_head.8.weight", 1, 2, 0.1);
    check_orthogonal(&f, "q_head.0.weight", 8, 20, sqrt(2));
    bias = param_named(&f, "lstm.layers.0.bias_hh_l0", ESPER_FAMILY_PARAM, &count);
    for (int i = 0; i < 64; i++)
        assert_true(fabs((double)bias[i] - (i >= 16 && i < 32 ? 1 + log(2) : 0)) < 1e-6);
    close_net(&f);
}

static void bad_shapes_are_refused(void **state)
{
    const esper_policy_net_sizes sizes = {1, 1, 1}, none = {0, 1, 1};
    esper_policy_net_desc d = small_desc();
    esper_policy_net *net = NULL;
    fixture f;

    (void)state;
    open_net(&f, "ref", &d, 1, 1, 1);
    d.hidden = 20;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = small_desc();
    d.heads[0].size = 65;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = small_desc();
    d.q_head = 2;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = small_desc();
    d.layers = 5;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = slots_desc(S);
    d.heads[2].deep = true;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = slots_desc(S);
    d.heads[0].size = S + 1;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = slots_desc(S);
    d.there = FS;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = slots_desc(S);
    d.heads[2].kind = ESPER_POLICY_AMONG_SLOTS;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = small_desc();
    d.heads[0].kind = ESPER_POLICY_OF_SLOT;
    assert_int_equal(esper_policy_net_open(f.backend, &d, &sizes, 1, &net), ESPER_E_ARG);
    d = small_desc();
    assert_int_equal(esper_policy_net_open(f.backend, &d, &none, 1, &net), ESPER_E_ARG);
    assert_null(net);
    close_net(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_network),        cmocka_unit_test(gradients_by_differences),
        cmocka_unit_test(gradients_through_slots), cmocka_unit_test(slots_have_no_numbers),
        cmocka_unit_test(steps_are_steps),         cmocka_unit_test(resets_and_critics),
        cmocka_unit_test(weights_at_birth),        cmocka_unit_test(bad_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, memory_is_given_back);
}
