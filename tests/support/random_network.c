/* Networks of random growth. */
#include "support/random_network.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/grown_slots.h"

static int between(esper_rng *rng, int low, int high)
{
    return low + (int)esper_rng_below(rng, (uint32_t)(high - low + 1));
}

/* ------------------------------------------------------------------------------------------------ hosts */

static const char *const image_texts[] = {
    "conv 6 | [conv 6]x2 residual | pool | conv 9 5x5 | mean | linear",
    "conv 4 bare | norm | gelu | slot r0c0 | pool | conv 8 1x1 | slot r1c0 | relu | mean | linear 12 | linear",
    "conv 8 | pool | [conv 8 bare | relu | norm] residual | mean | linear 10 bare | gelu | linear",
};

static esper_host draw_image_host(esper_rng *rng)
{
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN, .with_loss = true};
    int side;

    host.cnn = (esper_host_cnn){.in_channels = between(rng, 1, 3),
                                .height = between(rng, 6, 18),
                                .width = between(rng, 6, 18),
                                .classes = between(rng, 2, 11),
                                .blocks = between(rng, 2, 3),
                                .channels = 2 * between(rng, 1, 5),
                                .kernel = 2 * between(rng, 0, 2) + 1};
    side = host.cnn.height < host.cnn.width ? host.cnn.height : host.cnn.width;
    host.cnn.pools = between(rng, 0, host.cnn.blocks);
    while (side >> host.cnn.pools == 0)
        host.cnn.pools--;
    if (between(rng, 0, 2) == 0)
        snprintf(host.text, sizeof(host.text), "%s", image_texts[between(rng, 0, 2)]);
    return host;
}

static esper_host draw_host(esper_rng *rng)
{
    esper_host host = {.with_loss = true};
    int heads;

    switch (between(rng, 0, 2)) {
    case 0:
        return draw_image_host(rng);
    case 1:
        host.topology = ESPER_TOPOLOGY_MLP;
        host.mlp = (esper_host_mlp){.features = between(rng, 1, 20),
                                    .classes = between(rng, 2, 9),
                                    .layers = between(rng, 1, 3),
                                    .width = 2 * between(rng, 1, 12),
                                    .dropout = 0.1f * (float)between(rng, 0, 2)};
        return host;
    default:
        heads = between(rng, 1, 3);
        host.topology = ESPER_TOPOLOGY_TRANSFORMER;
        host.transformer = (esper_host_transformer){.vocab = between(rng, 5, 40),
                                                    .width = 4 * heads * between(rng, 1, 3),
                                                    .heads = heads,
                                                    .layers = between(rng, 1, 3),
                                                    .context = between(rng, 4, 12),
                                                    .dropout = 0.1f * (float)between(rng, 0, 1),
                                                    .embed_std = 0.3f};
        host.transformer.segments = between(rng, 1, host.transformer.layers);
        while (host.transformer.layers % host.transformer.segments != 0)
            host.transformer.segments--;
        return host;
    }
}

/* ------------------------------------------------------------------------------------------------ seeds */

static const int stages[] = {ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING,   ESPER_STAGE_BLENDING,
                             ESPER_STAGE_BLENDING,   ESPER_STAGE_BLENDING,   ESPER_STAGE_HOLDING,
                             ESPER_STAGE_FOSSILIZED, ESPER_STAGE_FOSSILIZED, ESPER_STAGE_EMBARGOED};
static const int blends[] = {ESPER_BLEND_ADD, ESPER_BLEND_MULTIPLY, ESPER_BLEND_GATE};

static grown_seed draw_seed(esper_rng *rng, const esper_slot *slot, esper_topology topology)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    static const double alphas[] = {0.0, 0.1, 0.35, 0.6, 0.9, 1.0};
    int n = 0;

    while (list[n] != NULL)
        n++;
    return (grown_seed){slot->id,
                        list[between(rng, 0, n - 1)]->name,
                        stages[between(rng, 0, (int)(sizeof(stages) / sizeof(stages[0])) - 1)],
                        blends[between(rng, 0, 2)],
                        alphas[between(rng, 0, 5)],
                        between(rng, 0, 1) == 0};
}

static bool fits(const grown_seed *seed, esper_topology topology, int channels)
{
    const esper_blueprint *blueprint;

    return esper_blueprint_find(topology, seed->blueprint, &blueprint) == ESPER_OK &&
           esper_splice_count_params(blueprint, channels) >= 0;
}

static void grow(random_network *net, esper_rng *rng)
{
    esper_net plain;

    esper_net_init(&plain);
    if (esper_host_build(&net->host, &plain) != ESPER_OK)
        fail_msg("%s: %s", net->text, esper_last_error());
    if (esper_slots_init(&net->slots, plain.boundaries, plain.n_boundaries, &(esper_slot_rules){.permissive = true}) !=
        ESPER_OK)
        fail_msg("%s: %s", net->text, esper_last_error());
    for (int k = 0; k < net->slots.n; k++) {
        esper_slot *slot = &net->slots.slot[k];
        grown_seed seed = draw_seed(rng, slot, net->host.topology);
        size_t used = strlen(net->text);

        if (between(rng, 0, 3) == 0 || !fits(&seed, net->host.topology, slot->channels))
            continue;
        if (grown_slot(slot, &seed) != ESPER_OK)
            fail_msg("%s, %s in %s: %s", net->text, seed.blueprint, seed.slot, esper_last_error());
        snprintf(net->text + used, sizeof(net->text) - used, ", %s in %s (%s, %s, alpha %g)", seed.blueprint, seed.slot,
                 esper_stage_name(seed.stage), esper_blend_name(seed.blend), slot->alpha.value);
    }
    esper_net_fini(&plain);
}

/* ------------------------------------------------------------------------------------------------ numbers */

/* Away from birth: scales that begin as 0, statistics that begin as 0 and 1. */
static void stir(small_run *run, esper_rng *rng)
{
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        bool is_param = tensor->role == ESPER_ROLE_PARAM, is_buffer = tensor->role == ESPER_ROLE_BUFFER;
        float *values;

        if (!is_param && !is_buffer)
            continue;
        values = esper_slab_at(&run->slab, is_param ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor);
        for (int64_t i = 0; i < tensor->count; i++)
            if (is_buffer && strstr(tensor->name, "var") != NULL)
                values[i] = 0.5f + 1.5f * esper_rng_uniform(rng);
            else
                values[i] += 0.1f * esper_rng_normal(rng);
    }
}

static void fill_inputs(random_network *net, esper_rng *rng)
{
    small_run *run = &net->run;

    for (int64_t i = 0; i < net->n_in * RANDOM_SAMPLES; i++)
        if (net->ids)
            ((int32_t *)net->input)[i] = between(rng, 0, net->host.transformer.vocab - 1);
        else
            net->input[i] = 2.0f * esper_rng_uniform(rng) - 0.5f;
    memcpy(esper_plan_data(run->plan, 0, run->net.input), net->input,
           (size_t)(net->n_in * RANDOM_SAMPLES) * sizeof(float));
    for (int k = 0; k < net->slots.n; k++) {
        char name[ESPER_NAME_CHARS];
        int t;

        snprintf(name, sizeof(name), "%s.alpha", net->slots.slot[k].id);
        t = esper_net_find(&run->net, name);
        if (t == ESPER_NO_TENSOR)
            continue;
        snprintf(net->names[net->n_numbers], ESPER_NAME_CHARS, "%s", name);
        net->numbers[net->n_numbers] =
            (esper_infer_number){net->names[net->n_numbers], (float)net->slots.slot[k].alpha.value};
        for (int i = 0; i < RANDOM_SAMPLES && esper_plan_data(run->plan, 0, t) != NULL; i++)
            ((float *)esper_plan_data(run->plan, 0, t))[i] = net->numbers[net->n_numbers].value;
        net->n_numbers++;
    }
}

void random_network_open(random_network *net, uint32_t number)
{
    esper_rng_key key = {.seed = 21, .purpose = ESPER_RNG_TEST, .network = number};
    esper_splice splice;
    small_run *run = &net->run;
    esper_rng rng;

    *net = (random_network){.n_numbers = 0};
    esper_rng_init(&rng, &key);
    net->host = draw_host(&rng);
    snprintf(net->text, sizeof(net->text), "network %u, %s %s", number, esper_topology_name(net->host.topology),
             net->host.text);
    grow(net, &rng);
    splice = (esper_splice){.topology = net->host.topology, .slots = &net->slots};
    esper_net_init(&run->net);
    if (esper_splice_build(&splice, &net->host, &run->net) != ESPER_OK)
        fail_msg("%s: %s", net->text, esper_last_error());
    run->net.tensors[run->net.output].keep = true;
    small_run_open(run, number % 2 == 0 ? "cpu" : "ref", RANDOM_SAMPLES, false);
    stir(run, &rng);
    net->ids = run->net.tensors[run->net.input].dtype == ESPER_I32;
    net->n_in = run->net.tensors[run->net.input].count;
    net->n_out = run->net.tensors[run->net.output].count;
    net->input = calloc((size_t)(net->n_in * RANDOM_SAMPLES), sizeof(float));
    net->output = calloc((size_t)(net->n_out * RANDOM_SAMPLES), sizeof(float));
    assert_true(net->input != NULL && net->output != NULL);
    fill_inputs(net, &rng);
    if (esper_plan_forward(run->plan) != ESPER_OK || esper_backend_sync(run->backend) != ESPER_OK)
        fail_msg("%s: %s", net->text, esper_last_error());
    memcpy(net->output, esper_plan_data(run->plan, 0, run->net.output),
           (size_t)(net->n_out * RANDOM_SAMPLES) * sizeof(float));
}

void random_network_close(random_network *net)
{
    small_run_close(&net->run);
    free(net->input);
    free(net->output);
}

void random_network_infer(random_network *net, esper_infer *infer)
{
    esper_infer_desc desc = {&net->run.net, &net->run.slab, net->numbers, net->n_numbers};

    if (esper_infer_init(infer, &desc) != ESPER_OK)
        fail_msg("%s: %s", net->text, esper_last_error());
}

double random_network_distance(const random_network *net, const float *output)
{
    double worst = 0.0, largest = 1.0;

    for (int64_t i = 0; i < net->n_out * RANDOM_SAMPLES; i++) {
        double off = fabs((double)output[i] - (double)net->output[i]);

        largest = fmax(largest, fabs((double)net->output[i]));
        worst = off <= worst ? worst : off; /* a NaN is the worst */
    }
    return worst / largest;
}
