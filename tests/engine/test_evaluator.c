/* ctest: timeout=120 cost=25 sealed=also */
/* Validation with variants: each against the same network built and run by itself; what is kept, shared, refused; and what
 * becomes of it when something goes wrong. */
#include <math.h>

#include "base/rng.h"
#include "fault/alloc.h"
#include "nn/init.h"
#include "slot/attribution.h"
#include "engine/evaluator.h"

/* A batch that divides neither the split nor the blocks of 16 samples that lanes work in. */
#define EVAL_CNN \
    "threads = 1\nbatch = 21\nchannels = 4\nblocks = 2\nmax_steps = 12\nlr = 0.1\nepochs = 1\nvalid_fraction = 0.05\n"
#define EVAL_TEXT \
    "threads = 1\nbatch = 5\nlayers = 4\nwidth = 16\nheads = 2\ncontext = 12\nsegments = 2\nmax_steps = 10\nlr = 0.02\n" \
    "valid_fraction = 0.05\n"

enum { MAX_SAMPLES = 4096, MAX_VARIANTS = ESPER_MAX_COALITIONS };

/* A trained host, slots, and a slab with room for seeds. */
typedef struct grown {
    esper_network *network;
    esper_evaluator *evaluator;
    uint32_t         n_batches;
} grown;

static grown *grown_open(const char *task, const char *settings, const char *more)
{
    grown *self = calloc(1, sizeof(*self));
    esper_config config = config_of(task, settings, more);

    assert_non_null(self);
    set_keys(&config, "gates = permissive\n");
    check_good(esper_single_open(task_named(task), &config, ESPER_USE_GROW, &self->network));
    while (esper_network_batch_due(self->network))
        check_good(esper_network_step(self->network));
    self->n_batches = esper_sampler_batches(self->network->engine->samplers[ESPER_SPLIT_VALID]);
    return self;
}

static void open_evaluator(grown *self)
{
    check_good(esper_evaluator_open(self->network, ESPER_SPLIT_VALID, &self->evaluator));
}

static void grown_close(grown *self)
{
    esper_evaluator_close(self->evaluator);
    esper_single_close(self->network);
    free(self);
}

/* Puts a seed into a slot; its weights come with shake. */
static void plant(grown *self, const char *slot_id, const char *blueprint, int stage, int blend, double alpha)
{
    int k = esper_slots_find(&self->network->slots, slot_id);
    esper_slot *slot = &self->network->slots.slot[k];

    assert_true(k >= 0);
    slot->stage = stage;
    slot->blend = blend;
    slot->alpha.value = alpha;
    slot->n_seeds++;
    snprintf(slot->blueprint, sizeof(slot->blueprint), "%s", blueprint);
}

/* Seeds are born doing nothing: all their weights are moved away from that. */
static void shake(grown *self)
{
    esper_splice splice = {
        .topology = self->network->engine->host.topology, .slots = &self->network->slots, .training = true};
    esper_rng_key key = {.seed = 3, .purpose = ESPER_RNG_SYNTH};
    esper_rng rng;
    esper_net net;

    esper_rng_init(&rng, &key);
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, &self->network->engine->host, &net));
    for (int k = 0; k < self->network->slots.n; k++)
        esper_init_seed(&net, &self->network->slab, &(esper_birth_key){.seed = 9}, k + 1);
    for (int t = 0; t < net.n_tensors; t++) {
        float *there = net.tensors[t].role == ESPER_ROLE_PARAM && net.tensors[t].region > 0
                           ? esper_slab_at(&self->network->slab, ESPER_FAMILY_PARAM, &net.tensors[t])
                           : NULL;
        float *weights = esper_backend_address(self->network->engine->backend, there);

        for (int64_t i = 0; weights != NULL && i < net.tensors[t].count; i++)
            weights[i] += 0.15f * esper_rng_normal(&rng);
    }
    esper_net_fini(&net);
}

/* Four seeds of all operators, one of them in training. */
static grown *open_cnn(const char *more)
{
    grown *self = grown_open("synth", EVAL_CNN, more);

    plant(self, "r0c0", "conv_light", ESPER_STAGE_BLENDING, ESPER_BLEND_ADD, 0.4);
    plant(self, "r1c0", "norm", ESPER_STAGE_BLENDING, ESPER_BLEND_MULTIPLY, 0.7);
    plant(self, "r0c1", "depthwise", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0);
    plant(self, "r1c1", "conv_small", ESPER_STAGE_HOLDING, ESPER_BLEND_GATE, 1.0);
    shake(self);
    open_evaluator(self);
    return self;
}

static grown *open_text(const char *more)
{
    grown *self = grown_open("synth_text", EVAL_TEXT, more);

    plant(self, "r0c0", "mlp", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0);
    plant(self, "r0c1", "attention", ESPER_STAGE_BLENDING, ESPER_BLEND_GATE, 0.5);
    shake(self);
    open_evaluator(self);
    return self;
}

static int variants_of(const grown *self, esper_variant variants[MAX_VARIANTS])
{
    esper_attribution_plan plan;

    esper_attribution_plan_make(&self->network->slots, NULL, &plan);
    for (int c = 0; c < plan.n_coalitions; c++)
        memcpy(variants[c].presence, plan.coalition[c].presence, sizeof(variants[c].presence));
    return plan.n_coalitions;
}

/* ------------------------------------------------------------------------------------------------ by itself */

/* What one network says of every sample. */
typedef struct answers {
    esper_tally tally;
    int         n_targets; /* of a sample */
    float       correct[MAX_SAMPLES];
} answers;

static void run_alone(const grown *self, const esper_net *net, const esper_splice *splice, uint32_t n_batches,
                      answers *out)
{
    const esper_sampler *sampler = self->network->engine->samplers[ESPER_SPLIT_VALID];
    esper_dataset_kind kind = esper_dataset_info_get(self->network->engine->data)->kind;
    esper_pass pass = {0};
    esper_plan_net plan_net = {.net = net, .slab = &self->network->slab, .pass = &pass};
    esper_plan_desc desc = {self->network->engine->backend,      &plan_net, 1,
                            self->network->engine->config.batch, false,     NULL};
    esper_plan *plan;

    check_good(esper_plan_open(&desc, &plan));
    for (uint32_t b = 0; b < n_batches; b++) {
        void *input = plan_values(desc.backend, plan, net->input);
        esper_batch dest = {.images = kind == ESPER_DATASET_IMAGES ? input : NULL,
                            .features = kind == ESPER_DATASET_VECTORS ? input : NULL,
                            .tokens = kind == ESPER_DATASET_TOKENS ? input : NULL,
                            .targets = plan_values(desc.backend, plan, net->target)};
        const float *loss = plan_values(desc.backend, plan, net->loss);
        const float *correct = plan_values(desc.backend, plan, net->correct);

        pass.n_samples = (int)esper_sampler_batch_count(sampler, b);
        pass.loss_scale = 1.0f;
        esper_batch_fill(sampler, b, NULL, &dest);
        for (int k = 0; k < self->network->slots.n; k++) {
            char name[ESPER_NAME_CHARS];
            float *alpha;

            snprintf(name, sizeof(name), "%s.alpha", self->network->slots.slot[k].id);
            alpha = plan_values(desc.backend, plan, esper_net_find(net, name));
            for (int i = 0; alpha != NULL && i < pass.n_samples; i++)
                alpha[i] = esper_splice_alpha(splice, k);
        }
        check_good(esper_plan_forward(plan));
        check_good(esper_backend_sync(self->network->engine->backend));
        for (int i = 0; i < pass.n_samples; i++) {
            assert_true(out->tally.samples < MAX_SAMPLES);
            out->correct[out->tally.samples++] = correct[i];
            out->tally.loss += (double)loss[i];
            out->tally.correct += (uint64_t)correct[i];
        }
    }
    out->n_targets = (int)net->tensors[net->target].count;
    out->tally.targets = out->tally.samples * (uint64_t)out->n_targets;
    esper_plan_close(plan);
}

/* The whole network of a variant (NULL: as it is), with nothing kept. */
static answers *answers_of(const grown *self, const esper_variant *variant, uint32_t n_batches)
{
    esper_splice splice = {.topology = self->network->engine->host.topology, .slots = &self->network->slots};
    answers *out = calloc(1, sizeof(*out));
    esper_net net;

    assert_non_null(out);
    if (variant != NULL)
        memcpy(splice.presence, variant->presence, sizeof(splice.presence));
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, &self->network->engine->host, &net));
    run_alone(self, &net, &splice, n_batches, out);
    esper_net_fini(&net);
    return out;
}

static void check_tally(const char *what, const esper_tally *tally, const esper_tally *wanted)
{
    if (tally->correct != wanted->correct || tally->samples != wanted->samples || tally->targets != wanted->targets ||
        memcmp(&tally->loss, &wanted->loss, sizeof(double)) != 0)
        fail_msg("%s: loss %.17g, %llu right of %llu; alone %.17g, %llu of %llu", what, tally->loss,
                 (unsigned long long)tally->correct, (unsigned long long)tally->targets, wanted->loss,
                 (unsigned long long)wanted->correct, (unsigned long long)wanted->targets);
}

/* The plain definition of a paired difference and its error. */
static void check_difference(const esper_variant_result *result, const answers *network, const answers *variant)
{
    double n = (double)variant->tally.samples, mean = 0.0, squares = 0.0, error;

    for (uint64_t i = 0; i < variant->tally.samples; i++)
        mean += 100.0 * (double)(network->correct[i] - variant->correct[i]) / network->n_targets / n;
    for (uint64_t i = 0; i < variant->tally.samples; i++) {
        double one = 100.0 * (double)(network->correct[i] - variant->correct[i]) / network->n_targets - mean;

        squares += one * one;
    }
    error = sqrt(squares / (n - 1.0) / n);
    if (fabs(result->difference - mean) > 1e-9 || fabs(result->error - error) > 1e-9)
        fail_msg("difference %.12g +- %.12g, expected %.12g +- %.12g", result->difference, result->error, mean, error);
    assert_int_equal(result->n_samples, variant->tally.samples);
}

/* Runs all that attribution asks for and compares; says whether some variant made a difference. */
static bool check_run(grown *self, uint32_t n_slice)
{
    esper_variant_result results[MAX_VARIANTS];
    esper_variant variants[MAX_VARIANTS];
    int n = variants_of(self, variants);
    answers *network = answers_of(self, NULL, self->n_batches);
    esper_tally tally;
    bool differs = false;

    check_good(esper_evaluator_run(self->evaluator, self->n_batches, variants, n, n_slice, NULL, &tally, results));
    check_tally("network", &tally, &network->tally);
    for (int i = 0; i < n; i++) {
        answers *variant = answers_of(self, &variants[i], n_slice);

        check_tally("variant", &results[i].tally, &variant->tally);
        check_difference(&results[i], network, variant);
        differs = differs || (results[i].difference != 0.0 && results[i].error > 0.0);
        free(variant);
    }
    free(network);
    return differs;
}

static void test_variants_are_what_they_would_be_alone(void **state)
{
    static const char *const backends[] = {"backend = cpu\n", "backend = ref\n"};

    (void)state;
    for (int b = 0; b < 2; b++) {
        grown *cnn = open_cnn(backends[b]), *text = open_text(backends[b]);

        assert_true(check_run(cnn, cnn->n_batches)); /* the last batch is a short one */
        assert_true(check_run(cnn, 3));
        assert_true(check_run(text, text->n_batches));
        assert_true(check_run(text, 7));
        grown_close(cnn);
        grown_close(text);
    }
}

/* Every kind of seed, in front of a cut and behind it. Where a seed before the cut has no kernels of lanes the whole network
 * runs in another layout than the cut one; no blueprint does that. */
static void test_every_blueprint(void **state)
{
    static const char *const tasks[][2] = {{"synth", EVAL_CNN}, {"synth_text", EVAL_TEXT}};

    (void)state;
    for (int f = 0; f < 2; f++) {
        grown *self = grown_open(tasks[f][0], tasks[f][1], "max_steps = 2\n");
        const esper_blueprint *const *list = esper_blueprint_list(self->network->engine->host.topology);

        open_evaluator(self);
        self->n_batches = 2; /* there are many of them */
        for (int i = 0; list[i] != NULL; i++)
            for (int blend = ESPER_BLEND_ADD; blend <= ESPER_BLEND_GATE; blend++) {
                plant(self, "r0c0", list[i]->name, ESPER_STAGE_HOLDING, blend, 1.0);
                plant(self, "r0c1", list[i]->name, ESPER_STAGE_BLENDING, blend, 0.5);
                shake(self);
                check_run(self, 2);
            }
        grown_close(self);
    }
}

/* Coalitions without seeds that new channels pass by, and without these. */
static void test_new_channels(void **state)
{
    static const char *const backends[] = {"backend = cpu\n", "backend = ref\n"};

    (void)state;
    esper_blueprint_add_wide();
    for (int b = 0; b < 2; b++) {
        char more[64];
        grown *self;

        snprintf(more, sizeof(more), "%swiden = true\n", backends[b]);
        self = grown_open("synth", EVAL_CNN, more);
        open_evaluator(self);
        plant(self, "wide0", "wide", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0);
        plant(self, "wide1", "wide", ESPER_STAGE_BLENDING, ESPER_BLEND_ADD, 0.3);
        plant(self, "r1c0", "conv_light", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0);
        plant(self, "r0c1", "conv_small", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0);
        shake(self);
        assert_true(check_run(self, 3));
        grown_close(self);
    }
}

/* A slot of new channels takes a seed later: the network's program is as it was, but what passes to them must stay readable now. */
static void test_new_channels_later(void **state)
{
    static const char *const backends[] = {"backend = cpu\n", "backend = ref\n"};

    (void)state;
    esper_blueprint_add_wide();
    for (int b = 0; b < 2; b++) {
        char more[64];
        grown *self;

        snprintf(more, sizeof(more), "%swiden = true\n", backends[b]);
        self = grown_open("synth", EVAL_CNN, more);
        open_evaluator(self);
        plant(self, "r1c0", "conv_light", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0);
        plant(self, "r1c1", "conv_small", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0);
        shake(self);
        assert_true(check_run(self, 3));
        plant(self, "wide0", "wide", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0);
        plant(self, "wide1", "wide", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0);
        shake(self);
        assert_true(check_run(self, 3));
        grown_close(self);
    }
}

/* ------------------------------------------------------------------------------------------------ sharing */

static void test_plain_network_is_the_networks_own(void **state)
{
    grown *self = grown_open("synth", EVAL_CNN, "max_steps = 0\n");
    esper_tally tally, wanted;

    (void)state;
    open_evaluator(self);
    check_good(esper_evaluator_run(self->evaluator, self->n_batches, NULL, 0, 0, NULL, &tally, NULL));
    check_good(esper_network_evaluate(self->network, ESPER_SPLIT_VALID, NULL, &wanted));
    check_tally("network", &tally, &wanted);
    grown_close(self);
}

static esper_variant out_at(const grown *self, const char *slot)
{
    esper_variant variant = {{0}};

    variant.presence[esper_slots_find(&self->network->slots, slot)] = ESPER_PRESENCE_OUT;
    return variant;
}

static void test_equal_variants_are_computed_once(void **state)
{
    grown *self = open_cnn("");
    esper_variant variants[5] = {out_at(self, "r0c0"), out_at(self, "r0c1"), out_at(self, "r0c0")};
    esper_variant_result results[5];
    double network, flops[5];
    esper_tally tally;

    (void)state;
    variants[2].presence[esper_slots_find(&self->network->slots, "r0c1")] =
        ESPER_PRESENCE_OUT; /* a seed in training is out anyway */
    variants[4].presence[esper_slots_find(&self->network->slots, "r1c1")] =
        ESPER_PRESENCE_FULL; /* as it holds, it is */
    check_good(esper_evaluator_run(self->evaluator, self->n_batches, variants, 5, 4, NULL, &tally, results));
    assert_int_equal(esper_evaluator_count_plans(self->evaluator), 2);
    assert_memory_equal(&results[0], &results[2], sizeof(results[0]));
    for (int i = 1; i < 5; i++) {
        if (i == 2)
            continue;
        assert_true(results[i].difference == 0.0 && results[i].error == 0.0);
        assert_int_equal(results[i].tally.samples, 4 * 21);
    }
    assert_true(results[0].error > 0.0);
    check_good(esper_evaluator_flops(self->evaluator, variants, 5, &network, flops));
    assert_true(network > 0.0 && flops[0] > 0.0 && flops[0] < network);
    assert_true(flops[1] == 0.0 && flops[2] == 0.0 && flops[3] == 0.0 && flops[4] == 0.0);
    grown_close(self);
}

static uint64_t n_allocs(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_allocs;
}

static void test_plans_are_used_again(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result first[MAX_VARIANTS], second[MAX_VARIANTS];
    esper_variant variants[MAX_VARIANTS];
    int n = variants_of(self, variants), n_plans;
    esper_tally tally, again;
    uint64_t before;
    int64_t n_waits;

    (void)state;
    assert_int_equal(n, 8); /* three participants and a trial */
    check_good(esper_evaluator_run(self->evaluator, 3, variants, n, 2, NULL, &tally, first));
    n_plans = esper_evaluator_count_plans(self->evaluator);
    assert_int_equal(n_plans, 9);
    before = n_allocs();
    n_waits = esper_backend_waits(self->network->engine->backend);
    check_good(esper_evaluator_run(self->evaluator, 3, variants, n, 2, NULL, &again, second));
    assert_int_equal(n_allocs() - before, 1); /* the list of variants */
    assert_int_equal(esper_backend_waits(self->network->engine->backend) - n_waits, 1); /* for all of it */
    assert_int_equal(esper_evaluator_count_plans(self->evaluator), n_plans);
    check_tally("again", &again, &tally);
    assert_memory_equal(first, second, (size_t)n * sizeof(*first));
    self->network->slots.slot[esper_slots_find(&self->network->slots, "r0c0")].alpha.value =
        0.6; /* the same programs */
    before = n_allocs();
    check_good(esper_evaluator_run(self->evaluator, 3, variants, n, 2, NULL, &again, second));
    assert_int_equal(n_allocs() - before, 1);
    assert_true(check_run(self, 3));
    check_good(esper_evaluator_run(self->evaluator, 3, NULL, 0, 0, NULL, &again, NULL));
    assert_int_equal(esper_evaluator_count_plans(self->evaluator), 1);
    plant(self, "r0c0", "conv_light", ESPER_STAGE_HOLDING, ESPER_BLEND_ADD, 1.0); /* folded: another program */
    assert_true(check_run(self, 2));
    grown_close(self);
}

static void test_flops_are_those_of_the_plans(void **state)
{
    static const char *const in_order[] = {"r0c0", "r1c0", "r1c1"};
    grown *self = open_cnn("");
    esper_splice splice = {.topology = ESPER_TOPOLOGY_CNN, .slots = &self->network->slots};
    esper_pass pass = {0};
    esper_net net;
    esper_plan_net plan_net = {.net = &net, .slab = &self->network->slab, .pass = &pass};
    esper_plan *plan;
    esper_variant variants[3];
    double network, flops[3], wanted;

    (void)state;
    for (int i = 0; i < 3; i++)
        variants[i] = out_at(self, in_order[i]);
    check_good(esper_evaluator_flops(self->evaluator, variants, 3, &network, flops));
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, &self->network->engine->host, &net));
    check_good(
        esper_plan_open(&(esper_plan_desc){self->network->engine->backend, &plan_net, 1, 10, false, NULL}, &plan));
    wanted = esper_plan_stats_of(plan).forward.flops / 10.0;
    if (fabs(network - wanted) > 1e-6 * wanted)
        fail_msg("%.12g FLOPs, the plan says %.12g", network, wanted);
    if (!(network > flops[0] && flops[0] >= flops[1] && flops[1] > flops[2] && flops[2] > 0.0))
        fail_msg("FLOPs %g; from %s %g, from %s %g, from %s %g", network, in_order[0], flops[0], in_order[1], flops[1],
                 in_order[2], flops[2]);
    esper_plan_close(plan);
    esper_net_fini(&net);
    grown_close(self);
}

static void test_training_is_not_touched(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result results[MAX_VARIANTS];
    esper_variant variants[MAX_VARIANTS];
    int n = variants_of(self, variants);
    void *before = malloc(self->network->slab.bytes);
    float *memory = slab_values(&self->network->slab, ESPER_FAMILY_PARAM);
    esper_slots *slots = malloc(sizeof(*slots));
    esper_tally tally;

    (void)state;
    assert_non_null(before);
    assert_non_null(slots);
    for (size_t i = 0; i < self->network->slab.bytes / sizeof(float); i++) /* gradients and moments, too */
        if (memory[i] == 0.0f)
            memory[i] = 0.125f;
    memcpy(before, memory, self->network->slab.bytes);
    *slots = self->network->slots;
    check_good(esper_evaluator_run(self->evaluator, self->n_batches, variants, n, 5, NULL, &tally, results));
    assert_memory_equal(before, memory, self->network->slab.bytes);
    assert_memory_equal(slots, &self->network->slots, sizeof(*slots));
    free(before);
    free(slots);
    grown_close(self);
}

/* ------------------------------------------------------------------------------------------------ what goes wrong */

/* NaN in the weights of a slot's seed. */
static void poison(grown *self, const char *slot)
{
    int region = esper_slots_find(&self->network->slots, slot) + 1;
    float *params = slab_values(&self->network->slab, ESPER_FAMILY_PARAM);

    for (int64_t i = self->network->slab.param_begin[region]; i < self->network->slab.param_begin[region + 1]; i++)
        params[i] = NAN;
}

/* A seed in training cannot hurt the network; its trial has no accuracy, and nobody else's reading suffers. */
static void test_poisoned_trial(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result results[2];
    esper_variant variants[2] = {out_at(self, "r1c0")};
    esper_tally tally;

    (void)state;
    poison(self, "r0c1");
    variants[1].presence[esper_slots_find(&self->network->slots, "r0c1")] = ESPER_PRESENCE_FULL;
    check_good(esper_evaluator_run(self->evaluator, self->n_batches, variants, 2, 4, NULL, &tally, results));
    assert_true(isfinite(tally.loss));
    assert_true(isfinite(results[0].difference) && isfinite(results[0].error) && isfinite(results[0].tally.loss));
    assert_false(isfinite(results[1].tally.loss));
    assert_true(isnan(results[1].difference) && isnan(results[1].error));
    assert_true(results[1].tally.correct <= results[1].tally.targets);
    grown_close(self);
}

/* A blended seed takes the network with it: without the seed the network is finite, but there is nothing to compare with. */
static void test_poisoned_network(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result results[2];
    esper_variant variants[2] = {out_at(self, "r1c0"), out_at(self, "r0c0")};
    answers *alone;
    esper_tally tally;

    (void)state;
    poison(self, "r0c0");
    check_good(esper_evaluator_run(self->evaluator, self->n_batches, variants, 2, 4, NULL, &tally, results));
    assert_false(isfinite(tally.loss));
    assert_true(isnan(results[0].difference) && isnan(results[1].difference) && isnan(results[1].error));
    alone = answers_of(self, &variants[1], 4);
    assert_true(isfinite(results[1].tally.loss));
    check_tally("without the poisoned seed", &results[1].tally, &alone->tally);
    free(alone);
    grown_close(self);
}

typedef struct watcher {
    volatile sig_atomic_t stop;
    uint32_t              stop_at, n_seen, n_batches;
} watcher;

static void watch(void *context, esper_split split, uint32_t n_done, uint32_t n_batches)
{
    watcher *self = context;

    assert_int_equal(split, ESPER_SPLIT_VALID);
    assert_int_equal(n_done, self->n_seen);
    self->n_seen++;
    self->n_batches = n_batches;
    if (n_done == self->stop_at)
        self->stop = 1;
}

static void test_followers_may_stop_it(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result results[1], untouched[1];
    esper_variant variant = out_at(self, "r0c0");
    esper_tally tally = {.correct = 77}, same = tally;

    (void)state;
    memset(results, 0x5a, sizeof(results));
    memcpy(untouched, results, sizeof(results));
    for (uint32_t at = 0; at < 3; at++) { /* in the slice, at its end, behind it */
        watcher watching = {.stop_at = at};
        esper_follower follower = {.stop = &watching.stop, .context = &watching, .batch = watch};

        check_fails(esper_evaluator_run(self->evaluator, 4, &variant, 1, 2, &follower, &tally, results),
                    ESPER_E_STOPPED, "evaluation of the");
        assert_int_equal(watching.n_seen, at + 1);
        assert_memory_equal(&tally, &same, sizeof(tally));
        assert_memory_equal(results, untouched, sizeof(results));
    }
    {
        watcher watching = {.stop_at = UINT32_MAX};
        esper_follower follower = {.stop = &watching.stop, .context = &watching, .batch = watch};

        check_good(esper_evaluator_run(self->evaluator, 4, &variant, 1, 2, &follower, &tally, results));
        assert_int_equal(watching.n_seen, 4);
        assert_int_equal(watching.n_batches, 4);
        watching.stop = 1;
        check_fails(esper_evaluator_run(self->evaluator, 4, NULL, 0, 0, &follower, &tally, results), ESPER_E_STOPPED,
                    "evaluation of the");
    }
    grown_close(self);
}

static void test_nonsense_is_refused(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result results[1];
    esper_variant variant = {{0}};
    esper_tally tally;
    double network, flops[1];

    (void)state;
    check_fails(esper_evaluator_run(self->evaluator, 0, NULL, 0, 0, NULL, &tally, NULL), ESPER_E_ARG, "0 batches");
    check_fails(esper_evaluator_run(self->evaluator, self->n_batches + 1, NULL, 0, 0, NULL, &tally, NULL), ESPER_E_ARG,
                "split has");
    check_fails(esper_evaluator_run(self->evaluator, 3, &variant, 1, 0, NULL, &tally, results), ESPER_E_ARG, "0 of 3");
    check_fails(esper_evaluator_run(self->evaluator, 3, &variant, 1, 4, NULL, &tally, results), ESPER_E_ARG, "4 of 3");
    variant.presence[1] = 3;
    check_fails(esper_evaluator_run(self->evaluator, 3, &variant, 1, 2, NULL, &tally, results), ESPER_E_ARG,
                "presence 3|r0c1");
    check_fails(esper_evaluator_flops(self->evaluator, &variant, 1, &network, flops), ESPER_E_ARG, "presence 3");
    esper_evaluator_close(NULL);
    grown_close(self);
}

static esper_status try_all(void *context)
{
    grown *self = context;
    esper_variant_result results[2];
    esper_variant variants[2] = {out_at(self, "r0c0"), out_at(self, "r1c1")};
    esper_evaluator *evaluator;
    esper_tally tally;
    double network, flops[2];
    esper_status status;

    ESPER_TRY(esper_evaluator_open(self->network, ESPER_SPLIT_VALID, &evaluator));
    status = esper_evaluator_flops(evaluator, variants, 2, &network, flops);
    if (status == ESPER_OK)
        status = esper_evaluator_run(evaluator, 1, variants, 2, 1, NULL, &tally, results);
    esper_evaluator_close(evaluator);
    return status;
}

static void test_memory_runs_out(void **state)
{
    grown *self = open_cnn("");

    (void)state;
    check_good(try_all(self)); /* the engine keeps the plans */
    fail_each("evaluator", try_all, NULL, self, 1);
    grown_close(self);
}

/* An evaluator that found no memory once goes on as if nothing had been. */
static void test_memory_runs_out_midway(void **state)
{
    grown *self = open_cnn("");
    esper_variant_result good[MAX_VARIANTS], results[MAX_VARIANTS];
    esper_variant variants[MAX_VARIANTS];
    int n = variants_of(self, variants);
    esper_tally tally, wanted;

    (void)state;
    check_good(esper_evaluator_run(self->evaluator, 2, variants, n, 1, NULL, &wanted, good));
    for (uint64_t nth = 1; nth < 200; nth += 9) {
        esper_status status;

        check_good(esper_evaluator_run(self->evaluator, 1, NULL, 0, 0, NULL, &tally, NULL)); /* plans are given up */
        esper_mem_fail_at(nth);
        status = esper_evaluator_run(self->evaluator, 2, variants, n, 1, NULL, &tally, results);
        esper_mem_fail_at(0);
        assert_int_equal(status, ESPER_E_NOMEM);
        check_good(esper_evaluator_run(self->evaluator, 2, variants, n, 1, NULL, &tally, results));
        check_tally("after a failure", &tally, &wanted);
        assert_memory_equal(good, results, (size_t)n * sizeof(*good));
    }
    grown_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants_are_what_they_would_be_alone),
        cmocka_unit_test(test_every_blueprint),
        cmocka_unit_test(test_new_channels),
        cmocka_unit_test(test_new_channels_later),
        cmocka_unit_test(test_plain_network_is_the_networks_own),
        cmocka_unit_test(test_equal_variants_are_computed_once),
        cmocka_unit_test(test_plans_are_used_again),
        cmocka_unit_test(test_flops_are_those_of_the_plans),
        cmocka_unit_test(test_training_is_not_touched),
        cmocka_unit_test(test_poisoned_trial),
        cmocka_unit_test(test_poisoned_network),
        cmocka_unit_test(test_followers_may_stop_it),
        cmocka_unit_test(test_nonsense_is_refused),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_memory_runs_out_midway),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
