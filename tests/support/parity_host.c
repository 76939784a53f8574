/* A recorded host beside ours: one pass with every boundary, gradient and buffer; the evaluation pass; a shorter
 * sequence; and ten steps of training. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "nn/host.h"
#include "nn/optim.h"
#include "support/parity.h"

enum { TRAIN_STEPS = 10 };

/* The recorder's recipe: "SGD lr 0.01 momentum 0.9 weight decay 5e-4, clip norm 1.0". */
static const esper_group recipe = {.lr = 0.01f, .momentum = 0.9f, .decay = 5e-4f, .clip = 1.0f};

static int detail_int(const json_t *detail, const char *key, int when_absent)
{
    const json_t *value = json_object_get(detail, key);

    return json_is_integer(value) ? (int)json_integer_value(value) : when_absent;
}

static void read_cnn(const json_t *constructor, const esper_safetensors_tensor *input, esper_host *host_out)
{
    int blocks = detail_int(constructor, "n_blocks", 3);

    host_out->topology = ESPER_TOPOLOGY_CNN;
    host_out->cnn = (esper_host_cnn){
        .in_channels = (int)input->shape[1],
        .height = (int)input->shape[2],
        .width = (int)input->shape[3],
        .classes = 10,
        .blocks = blocks,
        .channels = detail_int(constructor, "base_channels", 32),
        .kernel = detail_int(constructor, "kernel_size", 3),
        .pools = detail_int(constructor, "pool_layers", blocks),
    };
}

static void read_transformer(const json_t *constructor, const esper_safetensors_tensor *input, esper_host *host_out)
{
    host_out->topology = ESPER_TOPOLOGY_TRANSFORMER;
    host_out->transformer = (esper_host_transformer){
        .vocab = detail_int(constructor, "vocab_size", 0),
        .width = detail_int(constructor, "n_embd", 0),
        .heads = detail_int(constructor, "n_head", 0),
        .layers = detail_int(constructor, "n_layer", 0),
        .context = detail_int(constructor, "block_size", 0),
        .tokens = (int)input->shape[1],
        .segments = detail_int(constructor, "num_segments", 0),
        .embed_std = 0.02f,
    };
}

/* The host that the file's constructor describes, as a program for inputs shaped like the tensor `input_name`. */
static esper_status read_host(golden *vectors, const char *input_name, esper_host *host_out)
{
    json_t *constructor = golden_detail(vectors, "constructor");
    const esper_safetensors_tensor *input = golden_find(vectors, input_name);
    esper_host host = {0};

    if (constructor == NULL || input == NULL || (input->rank != 4 && input->rank != 2)) {
        json_decref(constructor);
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: no constructor, or no usable %s", vectors->name, input_name);
    }
    if (input->rank == 4)
        read_cnn(constructor, input, &host);
    else
        read_transformer(constructor, input, &host);
    json_decref(constructor);
    *host_out = host;
    return ESPER_OK;
}

static int samples_of(golden *vectors, const char *input_name)
{
    const esper_safetensors_tensor *input = golden_find(vectors, input_name);

    return input != NULL ? (int)input->shape[0] : 0;
}

static void load_input(parity_run *run, golden *vectors, int tensor, const char *name)
{
    golden_load(vectors, name, esper_plan_data(run->plan, 0, tensor),
                run->pass.n_samples * run->net.tensors[tensor].count);
}

/* Compares an activation, kept by the plan, over all samples. */
static void compare_activation(const parity_run *run, golden *vectors, const char *name, int tensor)
{
    golden_compare(vectors, name, esper_plan_data(run->plan, 0, tensor),
                   run->pass.n_samples * run->net.tensors[tensor].count);
}

/* ------------------------------------------------------------------------------------------------ structure */

static void check_parameter_count(const parity_run *run, golden *vectors)
{
    json_t *recorded = golden_detail(vectors, "parameters");
    long long want = json_integer_value(recorded), have = esper_net_count_params(&run->net, -1);

    if (want != have)
        golden_mismatch(vectors->tally, vectors->name, "parameters", "%lld here, %lld recorded", have, want);
    json_decref(recorded);
}

static void check_execution_order(const parity_run *run, golden *vectors)
{
    json_t *order = golden_detail(vectors, "execution_order");

    if ((int)json_array_size(order) != run->net.n_boundaries)
        golden_mismatch(vectors->tally, vectors->name, "execution_order", "%d boundaries here, %d recorded",
                        run->net.n_boundaries, (int)json_array_size(order));
    for (int i = 0; i < run->net.n_boundaries && i < (int)json_array_size(order); i++) {
        const char *recorded = json_string_value(json_array_get(order, (size_t)i));

        if (recorded == NULL || strcmp(recorded, run->net.boundaries[i].slot) != 0)
            golden_mismatch(vectors->tally, vectors->name, "execution_order", "place %d: %s here, %s recorded", i,
                            run->net.boundaries[i].slot, recorded != NULL ? recorded : "nothing");
    }
    json_decref(order);
}

/* ------------------------------------------------------------------------------------------------ one pass */

static void compare_forward(const parity_run *run, golden *vectors)
{
    char name[ESPER_NAME_CHARS];

    compare_activation(run, vectors, "output", run->net.output);
    for (int i = 0; i < run->net.n_boundaries; i++) {
        snprintf(name, sizeof(name), "boundary/%s", run->net.boundaries[i].slot);
        compare_activation(run, vectors, name, run->net.boundaries[i].tensor);
    }
}

static void compare_backward(parity_run *run, golden *vectors)
{
    const esper_tensor *input = &run->net.tensors[run->net.input];

    if (input->want_grad)
        golden_compare(vectors, "input_grad", esper_plan_grad(run->plan, 0, run->net.input),
                       run->pass.n_samples * input->count);
    parity_compare_state(run, vectors, "param_grad/", ESPER_FAMILY_GRAD, NULL);
}

static esper_status pass_training(parity_run *run, golden *vectors, esper_backend *backend)
{
    const esper_tensor *output = &run->net.tensors[run->net.output];

    load_input(run, vectors, run->net.input, "input");
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    compare_forward(run, vectors);
    parity_compare_state(run, vectors, "buffer_after_one_training_forward/", ESPER_FAMILY_BUFFER, NULL);
    golden_load(vectors, "output_grad", esper_plan_grad(run->plan, 0, run->net.output),
                run->pass.n_samples * output->count);
    ESPER_TRY(esper_plan_backward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    compare_backward(run, vectors);
    return ESPER_OK;
}

/* Running statistics instead of the batch's, after that one training pass: in the same plan, and in one without a
 * backward pass, whose memory is shared more tightly. */
static esper_status pass_eval(parity_run *run, golden *vectors, esper_backend *backend)
{
    esper_plan_net net = {.net = &run->net, .slab = &run->slab, .pass = &run->pass};
    esper_plan_desc desc = {.backend = backend, .nets = &net, .n_nets = 1, .max_samples = run->pass.n_samples};
    esper_plan *training_plan = run->plan, *plan;

    if (golden_find(vectors, "eval_output") == NULL)
        return ESPER_OK;
    run->pass.training = false;
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    compare_activation(run, vectors, "eval_output", run->net.output);

    ESPER_TRY(esper_plan_open(&desc, &plan));
    run->plan = plan;
    load_input(run, vectors, run->net.input, "input");
    if (esper_plan_forward(plan) == ESPER_OK && esper_backend_sync(backend) == ESPER_OK)
        compare_activation(run, vectors, "eval_output", run->net.output);
    else
        golden_mismatch(vectors->tally, vectors->name, "eval_output", "%s", esper_last_error());
    run->plan = training_plan;
    esper_plan_close(plan);
    return ESPER_OK;
}

static esper_status check_pass(golden *vectors, esper_backend *backend, parity_run *run)
{
    esper_host host;

    ESPER_TRY(read_host(vectors, "input", &host));
    ESPER_TRY(esper_host_build(&host, &run->net));
    run->net.tensors[run->net.input].want_grad = host.topology == ESPER_TOPOLOGY_CNN;
    for (int i = 0; i < run->net.n_boundaries; i++)
        run->net.tensors[run->net.boundaries[i].tensor].keep = true;
    ESPER_TRY(parity_run_open(run, backend, samples_of(vectors, "input"), true));
    check_parameter_count(run, vectors);
    check_execution_order(run, vectors);
    parity_load_params(run, vectors, "", NULL);
    ESPER_TRY(pass_training(run, vectors, backend));
    return pass_eval(run, vectors, backend);
}

/* A program for fewer tokens than there are positions. */
static esper_status check_short(golden *vectors, esper_backend *backend, parity_run *run)
{
    esper_host host;

    if (golden_find(vectors, "short_input") == NULL)
        return ESPER_OK;
    ESPER_TRY(read_host(vectors, "short_input", &host));
    ESPER_TRY(esper_host_build(&host, &run->net));
    ESPER_TRY(parity_run_open(run, backend, samples_of(vectors, "short_input"), false));
    parity_load_params(run, vectors, "", NULL);
    load_input(run, vectors, run->net.input, "short_input");
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    compare_activation(run, vectors, "short_output", run->net.output);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ten steps */

/* Mean loss of a batch: its samples' sums, divided by the number of targets. */
static float mean_loss(const parity_run *run, int64_t n_targets)
{
    const float *losses = esper_plan_data(run->plan, 0, run->net.loss);
    double sum = 0.0;

    for (int i = 0; i < run->pass.n_samples; i++)
        sum += (double)losses[i];
    return (float)(sum / (double)n_targets);
}

static esper_status train_step(parity_run *run, golden *vectors, esper_backend *backend, esper_optim *optim, int step)
{
    char name[ESPER_NAME_CHARS];

    snprintf(name, sizeof(name), "train/batch_input/%d", step);
    load_input(run, vectors, run->net.input, name);
    snprintf(name, sizeof(name), "train/batch_target/%d", step);
    load_input(run, vectors, run->net.target, name);
    run->pass.step = (uint32_t)step;
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_plan_backward(run->plan));
    ESPER_TRY(esper_optim_step(optim));
    return esper_backend_sync(backend);
}

static esper_status train_steps(parity_run *run, golden *vectors, esper_backend *backend, esper_optim *optim)
{
    int64_t n_targets = run->pass.n_samples * run->net.tensors[run->net.target].count;
    float losses[TRAIN_STEPS], norms[TRAIN_STEPS];

    run->pass.loss_scale = 1.0f / (float)n_targets;
    for (int step = 0; step < TRAIN_STEPS; step++) {
        ESPER_TRY(train_step(run, vectors, backend, optim, step));
        losses[step] = mean_loss(run, n_targets);
        norms[step] = (float)esper_optim_norm(optim, 0, 0);
    }
    golden_compare(vectors, "train/losses", losses, TRAIN_STEPS);
    golden_compare(vectors, "train/losses_f64", losses, TRAIN_STEPS);
    golden_compare(vectors, "train/grad_norms_before_clip", norms, TRAIN_STEPS);
    parity_compare_state(run, vectors, "train/final_param/", ESPER_FAMILY_PARAM, NULL);
    parity_compare_state(run, vectors, "train/final_buffer/", ESPER_FAMILY_BUFFER, NULL);
    return ESPER_OK;
}

static esper_status check_training(golden *vectors, esper_backend *backend, parity_run *run)
{
    const esper_slab *slabs[] = {&run->slab};
    esper_optim_desc desc = {
        .backend = backend, .slabs = slabs, .n_slabs = 1, .kind = ESPER_OP_SGD, .settings = recipe};
    esper_optim *optim;
    esper_status status;
    esper_host host;

    ESPER_TRY(read_host(vectors, "train/batch_input/0", &host));
    host.with_loss = true;
    ESPER_TRY(esper_host_build(&host, &run->net));
    ESPER_TRY(parity_run_open(run, backend, samples_of(vectors, "train/batch_input/0"), true));
    parity_load_params(run, vectors, "", NULL);
    ESPER_TRY(esper_optim_open(&desc, &optim));
    status = train_steps(run, vectors, backend, optim);
    esper_optim_close(optim);
    return status;
}

/* ------------------------------------------------------------------------------------------------ all of it */

typedef esper_status (*host_check)(golden *vectors, esper_backend *backend, parity_run *run);

static void run_check(host_check check, const char *what, golden *vectors, esper_backend *backend)
{
    parity_run run = {0};

    esper_net_init(&run.net);
    if (check(vectors, backend, &run) != ESPER_OK)
        golden_mismatch(vectors->tally, vectors->name, what, "%s", esper_last_error());
    parity_run_close(&run);
}

int parity_check_host(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    long before = tally->n_mismatches;
    golden vectors;

    if (golden_open(&vectors, entry, tally) != ESPER_OK) {
        golden_mismatch(tally, entry->name, "file", "%s", esper_last_error());
        return 1;
    }
    run_check(check_pass, "pass", &vectors, backend);
    run_check(check_short, "short sequence", &vectors, backend);
    run_check(check_training, "training", &vectors, backend);
    golden_expect_all_used(&vectors);
    golden_close(&vectors);
    return (int)(tally->n_mismatches - before);
}
