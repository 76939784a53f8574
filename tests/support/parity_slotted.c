/* A recorded host with seeds in several stages beside ours: one pass with every gradient, the pass with one alpha for each
 * sample, the evaluation pass, and ten steps with a group for each slot.
 *
 * The slots are brought to their stages by the operations of a run, isolated as the file's plan says, and spliced into the
 * host as a run would; all programs of a file work on one slab. Seeds in TRAINING learn straight through, as recorded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "nn/init.h"
#include "nn/optim.h"
#include "slot/splice.h"
#include "support/grown_slots.h"
#include "support/parity.h"

enum { TRAIN_STEPS = 10, MAX_SEEDS = 4, MAX_SAMPLES = 64, MAX_GROUPS = MAX_SEEDS + 1 };

/* "as hosts": rate 0.01, momentum 0.9, clip norm 1.0 for each group; decay 5e-4 for the host alone. */
static const esper_group recipe = {.lr = 0.01f, .momentum = 0.9f, .clip = 1.0f};
static const float host_decay = 5e-4f;

/* What a file is about. */
typedef struct slotted {
    golden        *vectors;
    esper_backend *backend;
    esper_host     host;
    json_t        *plan;
    grown_seed     seeds[MAX_SEEDS + 1];
    esper_slots    slots;   /* as the plan says */
    esper_slots    blended; /* the same seeds, all blending: for programs in which alpha is given from outside */
    esper_slab     slab;
} slotted;

/* A program on that slab. */
typedef struct slotted_run {
    esper_net    net;
    esper_splice splice;
    esper_plan  *plan;
    esper_pass   pass;
} slotted_run;

/* ------------------------------------------------------------------------------------------------ what is in it */

/* How many of <before>0<behind>, <before>1<behind>, ... there are. */
static int count_numbered(golden *vectors, const char *before, const char *behind)
{
    char name[ESPER_NAME_CHARS];
    int n = 0;

    for (;; n++) {
        snprintf(name, sizeof(name), "%s%d%s", before, n, behind);
        if (golden_find(vectors, name) == NULL)
            return n;
    }
}

/* The files do not say how their hosts were made; their shapes do. All blocks pool. */
static esper_status read_host(golden *vectors, const char *input_name, esper_host *host_out)
{
    const esper_safetensors_tensor *input = golden_find(vectors, input_name);
    const esper_safetensors_tensor *first = golden_find(vectors, "param/host.blocks.0.conv.weight");
    const esper_safetensors_tensor *classes = golden_find(vectors, "param/host.classifier.bias");
    const esper_safetensors_tensor *tokens = golden_find(vectors, "param/host.tok_emb.weight");
    const esper_safetensors_tensor *positions = golden_find(vectors, "param/host.pos_emb.weight");
    int blocks = count_numbered(vectors, "param/host.blocks.", ".conv.weight");
    int layers = count_numbered(vectors, "param/host.layers.", ".ln1.weight");

    if (input != NULL && input->rank == 4 && first != NULL && classes != NULL) {
        *host_out = (esper_host){
            .topology = ESPER_TOPOLOGY_CNN,
            .cnn = {.in_channels = (int)input->shape[1],
                    .height = (int)input->shape[2],
                    .width = (int)input->shape[3],
                    .classes = (int)classes->shape[0],
                    .blocks = blocks,
                    .channels = (int)first->shape[0],
                    .kernel = (int)first->shape[2],
                    .pools = blocks},
        };
        return ESPER_OK;
    }
    if (input == NULL || input->rank != 2 || tokens == NULL || positions == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: not the tensors of a host", vectors->name);
    *host_out = (esper_host){
        .topology = ESPER_TOPOLOGY_TRANSFORMER,
        .transformer = {.vocab = (int)tokens->shape[0],
                        .width = (int)tokens->shape[1],
                        .heads = 4,
                        .layers = layers,
                        .context = (int)positions->shape[0],
                        .tokens = (int)input->shape[1],
                        .segments = layers,
                        .embed_std = 0.02f},
    };
    return ESPER_OK;
}

/* "TRAINING" is ours in small letters. */
static int stage_of(const char *recorded)
{
    char name[32];
    size_t i = 0;

    for (; recorded[i] != '\0' && i < sizeof(name) - 1; i++)
        name[i] = (char)(recorded[i] >= 'A' && recorded[i] <= 'Z' ? recorded[i] - 'A' + 'a' : recorded[i]);
    name[i] = '\0';
    return esper_stage_find(name);
}

static int blend_of(const char *recorded)
{
    return strcmp(recorded, "ADD") == 0        ? ESPER_BLEND_ADD
           : strcmp(recorded, "MULTIPLY") == 0 ? ESPER_BLEND_MULTIPLY
                                               : ESPER_BLEND_GATE;
}

/* plan_fields: blueprint, stage, alpha, operator, isolated */
static esper_status read_plan(slotted *file)
{
    const char *slot;
    json_t *fields;
    int n = 0;

    file->plan = golden_detail(file->vectors, "plan");
    json_object_foreach(file->plan, slot, fields) {
        if (n == MAX_SEEDS || json_array_size(fields) != 5)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: not a plan of at most %d seeds", file->vectors->name, MAX_SEEDS);
        file->seeds[n++] = (grown_seed){
            .slot = slot,
            .blueprint = json_string_value(json_array_get(fields, 0)),
            .stage = stage_of(json_string_value(json_array_get(fields, 1))),
            .alpha = json_number_value(json_array_get(fields, 2)),
            .blend = blend_of(json_string_value(json_array_get(fields, 3))),
            .isolated = json_is_true(json_array_get(fields, 4)),
        };
    }
    return n > 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_FORMAT, "%s: no plan", file->vectors->name);
}

static esper_status grow(slotted *file)
{
    grown_seed blended[MAX_SEEDS + 1] = {0};

    ESPER_TRY(grown_slots(&file->slots, &file->host, file->seeds));
    for (int i = 0; file->seeds[i].slot != NULL; i++) {
        blended[i] = file->seeds[i];
        blended[i].stage = ESPER_STAGE_BLENDING;
        blended[i].alpha = 0.5;
    }
    return grown_slots(&file->blended, &file->host, blended);
}

/* ------------------------------------------------------------------------------------------------ names */

/* host.<name>, seed_slots.<slot>.seed.<name>, seed_slots.<slot>.alpha_schedule.<name of the gate network's> */
static void recorded_name(const slotted *file, const esper_tensor *tensor, const char *prefix, char *name, size_t chars)
{
    const char *slot = tensor->region > 0 ? file->slots.slot[tensor->region - 1].id : NULL, *rest;

    if (slot == NULL) {
        snprintf(name, chars, "%shost.%s", prefix, tensor->name);
        return;
    }
    rest = tensor->name + strlen(slot) + 1;
    snprintf(name, chars, "%sseed_slots.%s.%s.%s", prefix, slot,
             strncmp(rest, "gate.", 5) == 0 ? "alpha_schedule" : "seed", rest);
}

/* Our scale that the recorded blueprint has not; it stays 1. */
static bool is_unrecorded(const slotted *file, const esper_tensor *tensor)
{
    const esper_slot *slot = tensor->region > 0 ? &file->slots.slot[tensor->region - 1] : NULL;
    const char *dot = strrchr(tensor->name, '.');

    return slot != NULL && dot != NULL && strcmp(dot, ".scale") == 0 &&
           parity_has_scale(esper_topology_name(file->host.topology), slot->blueprint);
}

static bool is_state(const esper_tensor *tensor, esper_family family)
{
    return tensor->role == (family == ESPER_FAMILY_BUFFER ? ESPER_ROLE_BUFFER : ESPER_ROLE_PARAM);
}

static void load_params(slotted *file, const esper_net *net)
{
    char name[2 * ESPER_NAME_CHARS];

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        float *values;

        if (!is_state(tensor, ESPER_FAMILY_PARAM))
            continue;
        values = esper_slab_at(&file->slab, ESPER_FAMILY_PARAM, tensor);
        recorded_name(file, tensor, "param/", name, sizeof(name));
        if (!is_unrecorded(file, tensor))
            golden_load(file->vectors, name, values, tensor->count);
        for (int64_t i = 0; is_unrecorded(file, tensor) && i < tensor->count; i++)
            values[i] = 1.0f;
    }
}

static void compare_state(slotted *file, const esper_net *net, const char *prefix, esper_family family)
{
    char name[2 * ESPER_NAME_CHARS];

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];

        if (!is_state(tensor, family) || is_unrecorded(file, tensor))
            continue;
        recorded_name(file, tensor, prefix, name, sizeof(name));
        golden_compare(file->vectors, name, esper_slab_at(&file->slab, family, tensor), tensor->count);
    }
}

/* ------------------------------------------------------------------------------------------------ programs */

static esper_status build(slotted *file, slotted_run *run, const esper_slots *slots, bool training)
{
    run->splice = (esper_splice){
        .topology = file->host.topology,
        .slots = slots,
        .training = training,
        .incubation = ESPER_INCUBATION_STRAIGHT,
    };
    esper_net_init(&run->net);
    ESPER_TRY(esper_splice_build(&run->splice, &file->host, &run->net));
    parity_put_group_norms(&run->net, 1);
    return ESPER_OK;
}

/* The slab of the program that trains, which is large enough for all others, as recorded at the start. */
static esper_status take_slab(slotted *file, slotted_run *run)
{
    esper_slab_desc desc = {.n_moments = 1};

    ESPER_TRY(build(file, run, &file->slots, true));
    ESPER_TRY(esper_splice_reserve(&file->slots, NULL, file->host.topology, UINT32_MAX, -1, &desc));
    ESPER_TRY(esper_slab_init(&file->slab, file->backend, &run->net, &desc));
    esper_init_net(&run->net, &file->slab, 1, 0, -1);
    load_params(file, &run->net);
    return ESPER_OK;
}

static esper_status open_plan(slotted *file, slotted_run *run, int n_samples)
{
    static const uint32_t sample_ids[MAX_SAMPLES];
    esper_plan_net net = {.net = &run->net, .slab = &file->slab, .pass = &run->pass};
    esper_plan_desc desc = {.backend = file->backend,
                            .nets = &net,
                            .n_nets = 1,
                            .max_samples = n_samples,
                            .training = run->splice.training};

    run->pass = (esper_pass){
        .n_samples = n_samples, .training = run->splice.training, .loss_scale = 1.0f, .sample_id = sample_ids};
    return esper_plan_open(&desc, &run->plan);
}

static void close_run(slotted_run *run)
{
    esper_plan_close(run->plan);
    esper_net_fini(&run->net);
    *run = (slotted_run){0};
}

static int alpha_of(const slotted_run *run, int slot)
{
    char name[ESPER_NAME_CHARS];

    snprintf(name, sizeof(name), "%s.alpha", run->splice.slots->slot[slot].id);
    return esper_net_find(&run->net, name);
}

static void set_alphas(slotted_run *run)
{
    for (int k = 0; k < run->splice.slots->n; k++) {
        int tensor = alpha_of(run, k);
        float *alphas = tensor != ESPER_NO_TENSOR ? esper_plan_data(run->plan, 0, tensor) : NULL;

        for (int i = 0; alphas != NULL && i < run->pass.n_samples; i++)
            alphas[i] = esper_splice_alpha(&run->splice, k);
    }
}

static void load_input(slotted *file, slotted_run *run, int tensor, const char *name)
{
    golden_load(file->vectors, name, esper_plan_data(run->plan, 0, tensor),
                run->pass.n_samples * run->net.tensors[tensor].count);
}

static int samples_of(golden *vectors, const char *name)
{
    const esper_safetensors_tensor *input = golden_find(vectors, name);

    return input != NULL ? (int)input->shape[0] : 0;
}

static esper_status run_forward(slotted *file, slotted_run *run)
{
    ESPER_TRY(esper_plan_forward(run->plan));
    return esper_backend_sync(file->backend);
}

static void compare_output(slotted *file, slotted_run *run, const char *name)
{
    golden_compare(file->vectors, name, esper_plan_data(run->plan, 0, run->net.output),
                   run->pass.n_samples * run->net.tensors[run->net.output].count);
}

/* ------------------------------------------------------------------------------------------------ passes */

/* Behind a seed that is isolated at full weight there is none: it is zero. */
static void compare_input_grad(slotted *file, slotted_run *run)
{
    int64_t count = run->pass.n_samples * run->net.tensors[run->net.input].count;
    const float *grad = esper_plan_grad(run->plan, 0, run->net.input);
    float *zeros = calloc((size_t)count, sizeof(*zeros));

    golden_compare(file->vectors, "input_grad", grad != NULL ? grad : zeros, count);
    free(zeros);
}

static esper_status pass_training(slotted *file, slotted_run *run)
{
    const esper_tensor *output;

    ESPER_TRY(build(file, run, &file->slots, true));
    run->net.tensors[run->net.input].want_grad = file->host.topology == ESPER_TOPOLOGY_CNN;
    output = &run->net.tensors[run->net.output];
    ESPER_TRY(open_plan(file, run, samples_of(file->vectors, "input")));
    load_input(file, run, run->net.input, "input");
    set_alphas(run);
    ESPER_TRY(run_forward(file, run));
    compare_output(file, run, "output");
    golden_load(file->vectors, "output_grad", esper_plan_grad(run->plan, 0, run->net.output),
                run->pass.n_samples * output->count);
    ESPER_TRY(esper_plan_backward(run->plan));
    ESPER_TRY(esper_backend_sync(file->backend));
    if (run->net.tensors[run->net.input].want_grad)
        compare_input_grad(file, run);
    compare_state(file, &run->net, "param_grad/", ESPER_FAMILY_GRAD);
    return ESPER_OK;
}

/* By running statistics, as they are at birth; seeds in TRAINING are left out. */
static esper_status pass_eval(slotted *file, slotted_run *run)
{
    ESPER_TRY(build(file, run, &file->slots, false));
    ESPER_TRY(open_plan(file, run, samples_of(file->vectors, "input")));
    load_input(file, run, run->net.input, "input");
    set_alphas(run);
    ESPER_TRY(run_forward(file, run));
    compare_output(file, run, "eval_output");
    return ESPER_OK;
}

/* The input several times over, each time with other alphas for every seed, in one pass. */
static esper_status pass_fused(slotted *file, slotted_run *run)
{
    int n_input = samples_of(file->vectors, "input"), n = samples_of(file->vectors, "fused_output");
    char name[ESPER_NAME_CHARS], *input;
    size_t bytes;

    ESPER_TRY(build(file, run, &file->blended, false));
    ESPER_TRY(open_plan(file, run, n));
    input = esper_plan_data(run->plan, 0, run->net.input);
    bytes = (size_t)n_input * (size_t)run->net.tensors[run->net.input].count * sizeof(float);
    golden_load(file->vectors, "input", input, n_input * run->net.tensors[run->net.input].count);
    for (int copy = 1; copy < n / n_input; copy++)
        memcpy(input + (size_t)copy * bytes, input, bytes);
    for (int k = 0; k < file->blended.n; k++) {
        int alpha = alpha_of(run, k);

        if (alpha == ESPER_NO_TENSOR)
            continue;
        snprintf(name, sizeof(name), "fused_alpha/%s", file->blended.slot[k].id);
        golden_load(file->vectors, name, esper_plan_data(run->plan, 0, alpha), n);
    }
    ESPER_TRY(run_forward(file, run));
    compare_output(file, run, "fused_output");
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ten steps */

/* A group's column in the recorded norms: the host, then the slots in the plan's order. */
static int region_of_group(const slotted *file, int group)
{
    return group == 0 ? 0 : esper_slots_find(&file->slots, file->seeds[group - 1].slot) + 1;
}

static esper_status train_step(slotted *file, slotted_run *run, esper_optim *optim, int step)
{
    char name[ESPER_NAME_CHARS];

    snprintf(name, sizeof(name), "train/batch_input/%d", step);
    load_input(file, run, run->net.input, name);
    snprintf(name, sizeof(name), "train/batch_target/%d", step);
    load_input(file, run, run->net.target, name);
    ESPER_TRY(run_forward(file, run));
    ESPER_TRY(esper_plan_backward(run->plan));
    ESPER_TRY(esper_backend_sync(file->backend));
    for (int t = 0; t < run->net.n_tensors; t++) /* the recorded seeds had no such parameter to move or to clip by */
        if (is_state(&run->net.tensors[t], ESPER_FAMILY_PARAM) && is_unrecorded(file, &run->net.tensors[t]))
            memset(esper_slab_at(&file->slab, ESPER_FAMILY_GRAD, &run->net.tensors[t]), 0,
                   (size_t)run->net.tensors[t].count * sizeof(float));
    ESPER_TRY(esper_optim_step(optim));
    return esper_backend_sync(file->backend);
}

static float mean_loss(const slotted_run *run, int64_t n_targets)
{
    const float *losses = esper_plan_data(run->plan, 0, run->net.loss);
    double sum = 0.0;

    for (int i = 0; i < run->pass.n_samples; i++)
        sum += (double)losses[i];
    return (float)(sum / (double)n_targets);
}

static esper_status train_steps(slotted *file, slotted_run *run, esper_optim *optim)
{
    int64_t n_targets = run->pass.n_samples * run->net.tensors[run->net.target].count;
    float losses[TRAIN_STEPS], norms[TRAIN_STEPS * MAX_GROUPS];
    int n_groups = 1 + (int)json_object_size(file->plan);

    run->pass.loss_scale = 1.0f / (float)n_targets;
    for (int step = 0; step < TRAIN_STEPS; step++) {
        ESPER_TRY(train_step(file, run, optim, step));
        losses[step] = mean_loss(run, n_targets);
        for (int g = 0; g < n_groups; g++)
            norms[step * n_groups + g] = (float)esper_optim_norm(optim, 0, region_of_group(file, g));
    }
    golden_compare(file->vectors, "train/losses", losses, TRAIN_STEPS);
    golden_compare(file->vectors, "train/losses_f64", losses, TRAIN_STEPS);
    golden_compare(file->vectors, "train/grad_norms_before_clip", norms, TRAIN_STEPS * n_groups);
    compare_state(file, &run->net, "train/final_param/", ESPER_FAMILY_PARAM);
    compare_state(file, &run->net, "train/final_buffer/", ESPER_FAMILY_BUFFER);
    return ESPER_OK;
}

static esper_status pass_ten_steps(slotted *file, slotted_run *run)
{
    const esper_slab *slabs[] = {&file->slab};
    esper_optim_desc desc = {
        .backend = file->backend, .slabs = slabs, .n_slabs = 1, .kind = ESPER_OP_SGD, .settings = recipe};
    esper_optim *optim;
    esper_status status;

    ESPER_TRY(read_host(file->vectors, "train/batch_input/0", &file->host));
    file->host.with_loss = true;
    ESPER_TRY(take_slab(file, run));
    ESPER_TRY(open_plan(file, run, samples_of(file->vectors, "train/batch_input/0")));
    set_alphas(run);
    ESPER_TRY(esper_optim_open(&desc, &optim));
    esper_optim_group(optim, 0, 0)->decay = host_decay;
    status = train_steps(file, run, optim);
    esper_optim_close(optim);
    return status;
}

/* ------------------------------------------------------------------------------------------------ all of it */

typedef esper_status (*slotted_pass)(slotted *file, slotted_run *run);

static void check_pass(slotted *file, slotted_pass pass, const char *what)
{
    slotted_run run = {0};

    esper_net_init(&run.net);
    if (pass(file, &run) != ESPER_OK)
        golden_mismatch(file->vectors->tally, file->vectors->name, what, "%s", esper_last_error());
    close_run(&run);
}

static esper_status open_file(slotted *file)
{
    ESPER_TRY(read_plan(file));
    ESPER_TRY(read_host(file->vectors, "input", &file->host));
    return grow(file);
}

int parity_check_slotted(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    long before = tally->n_mismatches;
    golden vectors;
    slotted *file = calloc(1, sizeof(*file));

    if (file == NULL || golden_open(&vectors, entry, tally) != ESPER_OK) {
        golden_mismatch(tally, entry->name, "file", "%s", esper_last_error());
        free(file);
        return 1;
    }
    file->vectors = &vectors;
    file->backend = backend;
    if (open_file(file) != ESPER_OK) {
        golden_mismatch(tally, entry->name, "plan", "%s", esper_last_error());
    } else {
        check_pass(file, take_slab, "slab");
        check_pass(file, pass_fused, "fused pass");
        check_pass(file, pass_eval, "evaluation");
        check_pass(file, pass_training, "training pass");
        esper_slab_fini(&file->slab);
        check_pass(file, pass_ten_steps, "ten steps");
        esper_slab_fini(&file->slab);
        golden_expect_all_used(&vectors);
    }
    json_decref(file->plan);
    golden_close(&vectors);
    free(file);
    return (int)(tally->n_mismatches - before);
}
