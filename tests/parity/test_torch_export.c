/* ctest: timeout=300 cost=8 */
/* Exported networks against PyTorch: every operation, every blueprint in both hosts, every way of blending, several
 * alphas, with weights and norm buffers that are not those of birth. Our outputs are the reference backend's.
 *
 * All cases are written to folders, then one Python process compares them (torch_compare.py). Skipped where no Python can
 * import torch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "support/effort.h"
#include "support/op_nets.h"
#include "support/small_net.h"
#include "support/torch_case.h"
#include "run/export.h"

enum { N_SAMPLES = 5, FOSSILISED = SMALL_N_MODES, N_MODES, MOST_NUMBERS = 8 };

static const char *const folder = "cases";

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* ---- a network with contents ---- */

/* Away from birth: scales that begin as 0, statistics that begin as 0 and 1. */
static void disturb(small_run *run, uint32_t number)
{
    esper_rng_key key = {.seed = 11, .purpose = ESPER_RNG_TEST, .step = number};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        bool is_param = tensor->role == ESPER_ROLE_PARAM, is_buffer = tensor->role == ESPER_ROLE_BUFFER;
        float *values;

        if (!is_param && !is_buffer)
            continue;
        values = esper_slab_at(&run->slab, is_param ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor);
        for (int64_t i = 0; i < tensor->count; i++)
            if (is_buffer && strstr(tensor->name, "var") != NULL)
                values[i] = 0.5f + 1.5f * (float)esper_rng_below(&rng, 1000) / 1000.0f;
            else
                values[i] += 0.2f * esper_rng_normal(&rng);
    }
}

static void fill(void *data, const esper_tensor *tensor, int n_ids, esper_rng *rng)
{
    for (int64_t i = 0; i < tensor->count * N_SAMPLES; i++)
        if (tensor->dtype == ESPER_I32)
            ((int32_t *)data)[i] = (int32_t)esper_rng_below(rng, (uint32_t)n_ids);
        else
            ((float *)data)[i] = esper_rng_normal(rng);
}

/* Ids of tokens are below the embedding's rows, targets below the classes; one target does not count. */
static void fill_inputs(small_run *run, float alpha)
{
    esper_rng_key key = {.seed = 12, .purpose = ESPER_RNG_TEST};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        void *data = tensor->role == ESPER_ROLE_INPUT ? esper_plan_data(run->plan, 0, t) : NULL;

        if (data == NULL)
            continue;
        fill(data, tensor, 5, &rng);
        if (t == run->net.target)
            ((int32_t *)data)[0] = -1;
        for (int i = 0; t != run->net.input && t != run->net.target && i < N_SAMPLES; i++)
            ((float *)data)[i] = alpha;
    }
}

static int number_inputs(const esper_net *net, float alpha, esper_torch_number numbers[MOST_NUMBERS])
{
    int n = 0;

    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_INPUT && t != net->input && t != net->target) {
            assert_true(n < MOST_NUMBERS);
            numbers[n++] = (esper_torch_number){net->tensors[t].name, alpha};
        }
    return n;
}

/* ---- a case on disk ---- */

/* Takes over run->net. */
static void write_case(small_run *run, const char *name, float alpha)
{
    static uint32_t number = 0;
    esper_torch_number numbers[MOST_NUMBERS];
    esper_export what = {.torch = {.class_name = "Net", .about = name, .numbers = numbers}, .n_batches = 3};
    char dir[200];

    run->net.tensors[run->net.output].keep = true;
    small_run_open(run, "ref", N_SAMPLES, false);
    disturb(run, number++);
    fill_inputs(run, alpha);
    check_good(esper_plan_forward(run->plan));
    check_good(esper_backend_sync(run->backend));
    what.torch.net = &run->net;
    what.torch.n_numbers = number_inputs(&run->net, alpha, numbers);
    what.slab = &run->slab;
    snprintf(dir, sizeof(dir), "%s/%s", folder, name);
    check_good(esper_export_torch(&what, dir));
    torch_case_write(&run->net, run->plan, N_SAMPLES, dir);
    small_run_close(run);
}

/* ---- the cases ---- */

static void write_operations(void **state)
{
    (void)state;
    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        small_run run = {0};
        char name[64];

        if (!op_net_build(&run.net, (esper_op_kind)kind))
            continue;
        snprintf(name, sizeof(name), "op-%s", esper_op_info_of((esper_op_kind)kind)->name);
        write_case(&run, name, 0.4f);
    }
}

/* Puts a blueprint into the stream with nothing around it, as a fossilised seed stands there. */
static int fossil_hook(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const esper_blueprint *blueprint = context;
    char prefix[ESPER_SLOT_CHARS + 2];

    snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
    esper_net_enter(net, prefix, boundary->order + 1);
    return esper_blueprint_build(blueprint, net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
}

static void build_seed(esper_net *net, const esper_host *host, const esper_blueprint *blueprint, int mode)
{
    const small_seed seeds[] = {{host->topology == ESPER_TOPOLOGY_CNN ? "r1c0" : "r0c0", blueprint->name,
                                 mode == FOSSILISED ? SMALL_ADD : (small_mode)mode},
                                {0}};

    if (mode != FOSSILISED) {
        check_good(small_build(net, host, seeds));
        return;
    }
    esper_net_init(net);
    net->hook = fossil_hook;
    net->hook_context = (void *)(uintptr_t)blueprint;
    check_good(esper_host_build(host, net));
}

/* Both sides of the middle for all; for the first few both ends as well, and beyond them: weights are clamped. Under a sanitizer
 * one of them: an alpha is a number like any other. */
static void write_alphas(const esper_host *host, const esper_blueprint *blueprint, int mode, bool ends)
{
    static const float alphas[] = {0.3f, 0.75f, 0.0f, 1.0f, 1.5f, -0.5f};
    bool has_alpha = mode != SMALL_TRAINING && mode != FOSSILISED;
    int n = !has_alpha || is_brief() ? 1 : ends ? 6 : 2;

    for (int a = 0; a < n; a++) {
        small_run run = {0};
        char name[96];

        build_seed(&run.net, host, blueprint, mode);
        snprintf(name, sizeof(name), "%s-%s-%s-%g", esper_topology_name(host->topology), blueprint->name,
                 mode == FOSSILISED ? "fossilised" : small_mode_name((small_mode)mode), (double)alphas[a]);
        write_case(&run, name, alphas[a]);
    }
}

static void write_blueprints_of(const esper_host *host)
{
    const esper_blueprint *const *list = esper_blueprint_list(host->topology);

    for (int b = 0; list[b] != NULL; b++)
        for (int mode = 0; mode < N_MODES; mode++)
            write_alphas(host, list[b], mode, b < 2);
}

static void write_blueprints(void **state)
{
    esper_host cnn = small_cnn(), transformer = small_transformer(0.1f), mlp = small_mlp(0.1f);

    (void)state;
    write_blueprints_of(&cnn);
    write_blueprints_of(&transformer);
    write_blueprints_of(&mlp);
}

/* Seeds in every slot at once, in different stages. */
static void write_crowded(void **state)
{
    const small_seed cnn_seeds[] = {{"r0c0", "bottleneck", SMALL_TRAINING},
                                    {"r1c0", "conv_heavy", SMALL_GATE},
                                    {"r0c1", "norm", SMALL_MULTIPLY},
                                    {"r1c1", "attention", SMALL_ADD},
                                    {0}};
    const small_seed text_seeds[] = {{"r0c0", "mlp", SMALL_GATE}, {"r0c1", "lora", SMALL_MULTIPLY}, {0}};
    const small_seed table_seeds[] = {{"r0c0", "glu", SMALL_GATE}, {"r0c1", "lora", SMALL_MULTIPLY}, {0}};
    esper_host cnn = small_cnn(), transformer = small_transformer(0.0f), mlp = small_mlp(0.0f);
    small_run run = {0};

    (void)state;
    check_good(small_build(&run.net, &cnn, cnn_seeds));
    write_case(&run, "crowded-cnn", 0.6f);
    run = (small_run){0};
    check_good(small_build(&run.net, &transformer, text_seeds));
    write_case(&run, "crowded-transformer", 0.6f);
    run = (small_run){0};
    check_good(small_build(&run.net, &mlp, table_seeds));
    write_case(&run, "crowded-mlp", 0.6f);
    run = (small_run){0};
    check_good(small_build(&run.net, &cnn, NULL));
    write_case(&run, "plain-cnn", 0.0f);
    run = (small_run){0};
    check_good(small_build(&run.net, &transformer, NULL));
    write_case(&run, "plain-transformer", 0.0f);
    run = (small_run){0};
    check_good(small_build(&run.net, &mlp, NULL));
    write_case(&run, "plain-mlp", 0.0f);
}

/* ---- PyTorch ---- */

static const char *python;

static void pytorch_gives_our_outputs(void **state)
{
    (void)state;
    torch_case_compare(python, folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_operations),
        cmocka_unit_test(write_blueprints),
        cmocka_unit_test(write_crowded),
        cmocka_unit_test(pytorch_gives_our_outputs),
    };

    python = torch_case_python();
    if (python == NULL)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
