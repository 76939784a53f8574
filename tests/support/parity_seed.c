/* A recorded seed or gate network beside ours: output, gradient of the input, gradient of every parameter. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/blueprint.h"
#include "nn/layer.h"
#include "support/parity.h"

bool parity_has_scale(const char *topology, const char *blueprint)
{
    static const char *const scaled[] = {"conv_small", "depthwise", "conv_light", "conv_heavy"};

    if (strcmp(topology, "cnn") != 0)
        return false;
    for (size_t i = 0; i < sizeof(scaled) / sizeof(scaled[0]); i++)
        if (strcmp(blueprint, scaled[i]) == 0)
            return true;
    return false;
}

/* bn in a name is gn. */
static void rename_norm(esper_tensor *param)
{
    char *dot = strrchr(param->name, '.'); /* before weight or bias */

    if (dot != NULL && dot - param->name >= 2 && memcmp(dot - 2, "bn", 2) == 0)
        dot[-2] = 'g';
}

/* What nobody makes or reads takes no memory. */
static void drop_tensor(esper_net *net, int *tensor)
{
    net->tensors[*tensor].role = ESPER_ROLE_ACTIVATION;
    *tensor = ESPER_NO_TENSOR;
}

int parity_put_group_norms(esper_net *net, int first_region)
{
    int n = 0;

    for (int o = 0; o < net->n_ops; o++) {
        esper_op *op = &net->ops[o];
        esper_tensor *statistics;
        int groups;

        if (op->kind != ESPER_OP_BATCH_NORM || op->region < first_region)
            continue;
        groups = esper_group_norm_groups(net->tensors[op->in[0]].dim[0]);
        op->kind = ESPER_OP_GROUP_NORM;
        op->attr.norm.groups = groups;
        rename_norm(&net->tensors[op->in[1]]);
        rename_norm(&net->tensors[op->in[2]]);
        drop_tensor(net, &op->in[3]);
        drop_tensor(net, &op->in[4]);
        drop_tensor(net, &op->out[2]);
        statistics = &net->tensors[op->out[1]]; /* (mean, 1/std) of each group, for each sample */
        statistics->per_sample = true;
        statistics->rank = 2;
        statistics->dim[0] = groups;
        statistics->dim[1] = 2;
        statistics->count = 2 * groups;
        n++;
    }
    return n;
}

/* What a file says it holds. blueprint is "" for a gate network. */
typedef struct seed_detail {
    char topology[32], blueprint[32];
    int  width;
} seed_detail;

static void copy_text(const golden *vectors, const char *key, char *text, size_t chars)
{
    json_t *detail = golden_detail(vectors, key);

    if (json_is_string(detail))
        snprintf(text, chars, "%s", json_string_value(detail));
    json_decref(detail);
}

static seed_detail read_detail(const golden *vectors)
{
    seed_detail detail = {0};
    json_t *width = golden_detail(vectors, "width");

    copy_text(vectors, "topology", detail.topology, sizeof(detail.topology));
    copy_text(vectors, "blueprint", detail.blueprint, sizeof(detail.blueprint));
    detail.width = (int)json_integer_value(width);
    json_decref(width);
    return detail;
}

static esper_topology topology_of(const seed_detail *detail)
{
    return strcmp(detail->topology, esper_topology_name(ESPER_TOPOLOGY_CNN)) == 0 ? ESPER_TOPOLOGY_CNN
                                                                                  : ESPER_TOPOLOGY_TRANSFORMER;
}

/* The program behind an input shaped like the recorded one: the blueprint's, or the gate network's. */
static esper_status build(const seed_detail *detail, const esper_safetensors_tensor *input, esper_net *net)
{
    const esper_blueprint *blueprint = NULL;
    esper_topology topology = topology_of(detail);
    int rank = topology == ESPER_TOPOLOGY_CNN ? 3 : 2, dim[3];

    if (input == NULL || input->rank != rank + 1)
        return ESPER_FAIL(ESPER_E_FORMAT, "no input of %d dimensions", rank + 1);
    for (int i = 0; i < rank; i++)
        dim[i] = (int)input->shape[i + 1];
    if (dim[topology == ESPER_TOPOLOGY_CNN ? 0 : 1] != detail->width)
        return ESPER_FAIL(ESPER_E_FORMAT, "input is not of width %d", detail->width);
    net->input = esper_net_input(net, "x", ESPER_F32, rank, dim);
    if (detail->blueprint[0] == '\0') {
        net->output = esper_gate_build(net, net->input);
    } else {
        ESPER_TRY(esper_blueprint_find(topology, detail->blueprint, &blueprint));
        net->output =
            esper_blueprint_build(blueprint, net, net->input, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
        parity_put_group_norms(net, 0);
    }
    return esper_net_status(net);
}

/* <group><what>, for example random/output */
static const char *in_group(char *name, const char *group, const char *what)
{
    snprintf(name, ESPER_NAME_CHARS, "%s%s", group, what);
    return name;
}

static esper_status run_forward(parity_run *run, golden *vectors, const char *group, esper_backend *backend)
{
    char name[ESPER_NAME_CHARS];
    int64_t n = run->pass.n_samples;

    golden_load(vectors, in_group(name, group, "input"), esper_plan_data(run->plan, 0, run->net.input),
                n * run->net.tensors[run->net.input].count);
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    golden_compare(vectors, in_group(name, group, "output"), esper_plan_data(run->plan, 0, run->net.output),
                   n * run->net.tensors[run->net.output].count);
    return ESPER_OK;
}

/* The gradient of our extra scale was not recorded, but follows from what was. At scale 1, output = input + branch, and
 * the scale's gradient is the sum over samples and pixels of output_grad * branch. */
static void compare_scale(parity_run *run, golden *vectors, const char *group)
{
    char name[ESPER_NAME_CHARS];
    const esper_safetensors_tensor *input = golden_find(vectors, in_group(name, group, "input"));
    const esper_safetensors_tensor *output = golden_find(vectors, in_group(name, group, "output"));
    const esper_safetensors_tensor *grad = golden_find(vectors, in_group(name, group, "output_grad"));
    const esper_tensor *x = &run->net.tensors[run->net.input];
    int scale = esper_net_find(&run->net, "scale"), n_scale = x->dim[0];
    double *expected = esper_mem_alloc((size_t)n_scale * sizeof(*expected));

    if (expected == NULL || scale == ESPER_NO_TENSOR || run->net.tensors[scale].count != n_scale || output == NULL) {
        golden_mismatch(vectors->tally, vectors->name, "scale", "not there, or not of %d channels", n_scale);
        esper_mem_free(expected);
        return;
    }
    for (int64_t i = 0; i < run->pass.n_samples * x->count; i++)
        expected[i % x->count / (x->count / n_scale)] +=
            golden_number(grad, i) * (golden_number(output, i) - golden_number(input, i));
    golden_compare_with(vectors, in_group(name, group, "param_grad/scale"),
                        esper_slab_at(&run->slab, ESPER_FAMILY_GRAD, &run->net.tensors[scale]), expected, n_scale);
    esper_mem_free(expected);
}

static esper_status run_backward(parity_run *run, golden *vectors, const char *group, esper_backend *backend)
{
    char name[ESPER_NAME_CHARS];

    golden_load(vectors, in_group(name, group, "output_grad"), esper_plan_grad(run->plan, 0, run->net.output),
                run->pass.n_samples * run->net.tensors[run->net.output].count);
    ESPER_TRY(esper_plan_backward(run->plan));
    return esper_backend_sync(backend);
}

static void compare_backward(parity_run *run, golden *vectors, const char *group, const char *unrecorded)
{
    char name[ESPER_NAME_CHARS];

    golden_compare(vectors, in_group(name, group, "input_grad"), esper_plan_grad(run->plan, 0, run->net.input),
                   run->pass.n_samples * run->net.tensors[run->net.input].count);
    parity_compare_state(run, vectors, in_group(name, group, "param_grad/"), ESPER_FAMILY_GRAD, unrecorded);
    if (unrecorded != NULL)
        compare_scale(run, vectors, group);
}

/* The pass is made twice, the second time over what the first has left in memory: gradients must overwrite it. */
static esper_status check_group(parity_run *run, golden *vectors, const char *group, esper_backend *backend)
{
    char name[ESPER_NAME_CHARS];
    seed_detail detail = read_detail(vectors);
    const char *unrecorded = parity_has_scale(detail.topology, detail.blueprint) ? "scale" : NULL;
    const esper_safetensors_tensor *input = golden_find(vectors, in_group(name, group, "input"));

    ESPER_TRY(build(&detail, input, &run->net));
    run->net.tensors[run->net.input].want_grad = true;
    ESPER_TRY(parity_run_open(run, backend, (int)input->shape[0], true));
    parity_load_params(run, vectors, group, unrecorded);
    for (int pass = 0; pass < 2; pass++) {
        ESPER_TRY(run_forward(run, vectors, group, backend));
        if (golden_find(vectors, in_group(name, group, "output_grad")) == NULL) /* noop: nothing to differentiate */
            continue;
        ESPER_TRY(run_backward(run, vectors, group, backend));
        compare_backward(run, vectors, group, unrecorded);
    }
    return ESPER_OK;
}

static int check_groups(esper_backend *backend, const golden_entry *entry, golden_tally *tally,
                        const char *const *groups)
{
    long before = tally->n_mismatches;
    golden vectors;

    if (golden_open(&vectors, entry, tally) != ESPER_OK) {
        golden_mismatch(tally, entry->name, "file", "%s", esper_last_error());
        return 1;
    }
    for (; *groups != NULL; groups++) {
        parity_run run = {0};

        esper_net_init(&run.net);
        if (check_group(&run, &vectors, *groups, backend) != ESPER_OK)
            golden_mismatch(tally, entry->name, *groups, "%s", esper_last_error());
        parity_run_close(&run);
    }
    golden_expect_all_used(&vectors);
    golden_close(&vectors);
    return (int)(tally->n_mismatches - before);
}

int parity_check_seed(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    return check_groups(backend, entry, tally, (const char *const[]){"init/", "random/", NULL});
}

int parity_check_gate(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    return check_groups(backend, entry, tally, (const char *const[]){"", NULL});
}
