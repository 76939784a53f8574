/* blend.jsonl beside ours: the operators alone, and whole passes of a slot through the splice of a run.
 *
 * The recorded seed is s = w x + b for each channel. Here it stands in for the slot's blueprint; b is an input of its own,
 * so that the gradient that reaches s can be read there.
 *
 * A slot of ours has the alpha its stage says. Where another one was recorded, or alpha was given from outside for each
 * sample, the operator is what was recorded, and the slot is one that blends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/status.h"
#include "nn/blueprint.h"
#include "slot/recorded.h"
#include "slot/splice.h"
#include "support/grown_slots.h"
#include "support/parity.h"

enum { MAX_VALUES = 64, BLEND_RANK = 3 };

typedef struct blend_case {
    golden         vectors; /* a name and a tally */
    esper_backend *backend;
    const json_t  *line, *in, *out;
    int            n_samples, rank, dim[BLEND_RANK], channels;
    parity_run     run;
} blend_case;

/* ------------------------------------------------------------------------------------------------ numbers */

static int n_values_of(const blend_case *c)
{
    int n = c->n_samples;

    for (int i = 0; i < c->rank; i++)
        n *= c->dim[i];
    return n;
}

/* Numbers of a list, of lists of them, or a lone one. */
static int read_numbers(const json_t *value, double *numbers, int n)
{
    if (!json_is_array(value)) {
        if (n < MAX_VALUES)
            numbers[n] = recorded_number(value);
        return n + 1;
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        n = read_numbers(json_array_get(value, i), numbers, n);
    return n;
}

static void mismatch(blend_case *c, const char *what, const char *words)
{
    char where[64];

    snprintf(where, sizeof(where), "case %d %s", recorded_int(json_object_get(c->line, "case")), what);
    golden_mismatch(c->vectors.tally, "blend", where, "%s", words);
}

/* Values that are not finite must be the same; the others are near. */
static void compare_with(blend_case *c, const char *what, const float *values, const double *expected, int n)
{
    float finite[MAX_VALUES];
    double wanted[MAX_VALUES];
    char name[64];

    for (int i = 0; i < n; i++) {
        bool same =
            (isnan(expected[i]) && isnan(values[i])) || (isinf(expected[i]) && (double)values[i] == expected[i]);

        finite[i] = same ? 0.0f : values[i];
        wanted[i] = same ? 0.0 : expected[i];
    }
    snprintf(name, sizeof(name), "%d/%s", recorded_int(json_object_get(c->line, "case")), what);
    golden_compare_with(&c->vectors, name, finite, wanted, n);
}

static void compare(blend_case *c, const char *what, const float *values, const json_t *recorded, int n)
{
    double expected[MAX_VALUES];

    if (values == NULL || n > MAX_VALUES || read_numbers(recorded, expected, 0) != n)
        mismatch(c, what, "not as many values as recorded, or none");
    else
        compare_with(c, what, values, expected, n);
}

/* Recorded numbers into a tensor; a single one is repeated. */
static void fill(blend_case *c, int tensor, const json_t *recorded)
{
    double numbers[MAX_VALUES];
    int n = read_numbers(recorded, numbers, 0);
    int count = c->n_samples * (int)c->run.net.tensors[tensor].count;
    float *values = esper_plan_data(c->run.plan, 0, tensor);

    if (values == NULL || count > MAX_VALUES || (n != count && n != 1)) {
        mismatch(c, c->run.net.tensors[tensor].name, "not as many values as recorded, or none");
        return;
    }
    for (int i = 0; i < count; i++)
        values[i] = (float)numbers[n == 1 ? 0 : i];
}

static void read_case(blend_case *c, const json_t *line)
{
    const json_t *shape;

    c->line = line;
    c->in = json_object_get(line, "in");
    c->out = json_object_get(line, "out");
    shape = json_object_get(c->in, "shape");
    c->n_samples = recorded_int(json_array_get(shape, 0));
    c->rank = (int)json_array_size(shape) - 1;
    for (int i = 0; i < c->rank && i < BLEND_RANK; i++)
        c->dim[i] = recorded_int(json_array_get(shape, (size_t)i + 1));
    c->channels = c->rank == 3 ? c->dim[0] : c->dim[1];
}

/* Forward, then backward from the recorded gradient of y, which is the output unless that is h itself. */
static esper_status run_both(blend_case *c)
{
    double upstream[MAX_VALUES];
    parity_run *run = &c->run;
    float *grad;

    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(c->backend));
    if (run->net.n_ops == 0)
        return ESPER_OK;
    grad = esper_plan_grad(run->plan, 0, run->net.output);
    for (int i = 0; i < read_numbers(json_object_get(c->in, "upstream"), upstream, 0); i++)
        grad[i] = (float)upstream[i];
    ESPER_TRY(esper_plan_backward(run->plan));
    return esper_backend_sync(c->backend);
}

/* ------------------------------------------------------------------------------------------------ operators */

static int build_operator(blend_case *c, const char *op, int s, int alpha, int gate)
{
    esper_net *net = &c->run.net;
    int h = net->input;

    if (strcmp(op, "straight_through") == 0)
        return esper_net_straight_through(net, h, s);
    if (strcmp(op, "add") == 0)
        return esper_net_blend_add(net, h, s, alpha);
    if (strcmp(op, "gate") == 0)
        return esper_net_blend_gate(net, h, s, gate, alpha);
    return esper_net_blend_mul(
        net, h, s, json_is_true(json_object_get(c->in, "reference_detached")) ? esper_net_isolate(net, h) : h, alpha);
}

static esper_status check_operator(blend_case *c)
{
    const char *op = json_string_value(json_object_get(c->in, "op"));
    esper_net *net = &c->run.net;
    int one = 1, s, alpha, gate;

    net->input = esper_net_input(net, "h", ESPER_F32, c->rank, c->dim);
    s = esper_net_input(net, "s", ESPER_F32, c->rank, c->dim);
    alpha = esper_net_input(net, "alpha", ESPER_F32, 1, &one);
    gate = esper_net_input(net, "gate", ESPER_F32, 1, &one);
    net->output = build_operator(c, op, s, alpha, gate);
    net->tensors[net->input].want_grad = net->tensors[s].want_grad = net->tensors[gate].want_grad = true;
    ESPER_TRY(parity_run_open(&c->run, c->backend, c->n_samples, true));
    fill(c, net->input, json_object_get(c->in, "h"));
    fill(c, s, json_object_get(c->in, "s"));
    fill(c, alpha, json_object_get(c->in, "alpha"));
    if (json_object_get(c->in, "gate") != NULL)
        fill(c, gate, json_object_get(c->in, "gate"));
    ESPER_TRY(run_both(c));
    compare(c, "y", esper_plan_data(c->run.plan, 0, net->output), json_object_get(c->out, "y"), n_values_of(c));
    compare(c, "param_grad/h", esper_plan_grad(c->run.plan, 0, net->input), json_object_get(c->out, "grad_h"),
            n_values_of(c));
    compare(c, "param_grad/s", esper_plan_grad(c->run.plan, 0, s), json_object_get(c->out, "grad_s"), n_values_of(c));
    if (json_object_get(c->out, "grad_gate") != NULL)
        compare(c, "param_grad/gate", esper_plan_grad(c->run.plan, 0, gate), json_object_get(c->out, "grad_gate"),
                c->n_samples);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ a slot */

/* w x + b: the scale of each channel, for tokens the diagonal of a matrix. */
static int build_affine(esper_net *net, int x, esper_blueprint_how how)
{
    const esper_tensor like = net->tensors[x];
    bool image = like.rank == 3;
    int channels = image ? like.dim[0] : like.dim[1];
    int w = esper_net_param(net, "w", image ? 1 : 2, (int[]){channels, channels}, (esper_init){0});
    int b = esper_net_input(net, "b", ESPER_F32, like.rank, like.dim);

    (void)how;
    net->tensors[b].want_grad = true;
    return esper_net_add(net, image ? esper_net_channel_scale(net, x, w) : esper_net_linear(net, x, w, -1), b);
}

static const esper_blueprint affine = {.name = "affine", .build = build_affine};

static bool has_override(const blend_case *c)
{
    return json_is_array(json_object_get(c->in, "override"));
}

static int stage_of(const blend_case *c)
{
    const char *text = json_string_value(json_object_get(c->in, "stage"));
    char loud[32];

    for (int stage = 0; stage < ESPER_STAGE_CODES; stage++)
        if (esper_stage_name(stage) != NULL && strcmp(recorded_name(esper_stage_name(stage), loud), text) == 0)
            return stage;
    return -1;
}

static grown_seed seed_of(const blend_case *c)
{
    const char *blend = json_string_value(json_object_get(c->in, "operator"));
    double alpha = json_number_value(json_object_get(c->in, "alpha"));
    int stage = stage_of(c);
    grown_seed seed = {
        .slot = "r0c0",
        .blueprint = "affine",
        .stage = stage,
        .blend = strcmp(blend, "ADD") == 0        ? ESPER_BLEND_ADD
                 : strcmp(blend, "MULTIPLY") == 0 ? ESPER_BLEND_MULTIPLY
                                                  : ESPER_BLEND_GATE,
        .alpha = has_override(c) ? 0.5 : alpha,
        .isolated = json_is_true(json_object_get(c->in, "isolate")),
    };

    if (esper_stage_runs_seed(stage) && (has_override(c) || alpha != (stage == ESPER_STAGE_TRAINING ? 0.0 : 1.0)))
        seed.stage = ESPER_STAGE_BLENDING;
    return seed;
}

static int find(const blend_case *c, const char *name)
{
    char full[ESPER_NAME_CHARS];

    snprintf(full, sizeof(full), "r0c0.%s", name);
    return esper_net_find(&c->run.net, full);
}

static esper_status build_slot(blend_case *c, esper_splice *splice, esper_slots *slots)
{
    esper_boundary boundary = {.slot = "r0c0", .channels = c->channels};
    esper_net *net = &c->run.net;
    grown_seed seed = seed_of(c);

    ESPER_TRY(esper_slots_init(slots, &boundary, 1, &(esper_slot_rules){.permissive = true}));
    ESPER_TRY(grown_slot(&slots->slot[0], &seed));
    *splice = (esper_splice){
        .topology = c->rank == 3 ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER,
        .slots = slots,
        .training = true,
        .incubation = ESPER_INCUBATION_STRAIGHT,
        .stand_in = &affine,
    };
    net->input = esper_net_input(net, "h", ESPER_F32, c->rank, c->dim);
    net->tensors[net->input].want_grad = true;
    net->hook = esper_splice_put;
    net->hook_context = splice;
    net->output = esper_net_boundary(net, boundary, net->input);
    net->hook = NULL;
    return esper_net_status(net);
}

static float *state_of(blend_case *c, esper_family family, const char *name)
{
    int tensor = find(c, name);

    return tensor != ESPER_NO_TENSOR ? esper_slab_at(&c->run.slab, family, &c->run.net.tensors[tensor]) : NULL;
}

static void load_seed(blend_case *c)
{
    double w[MAX_VALUES], b[MAX_VALUES];
    float *weight = state_of(c, ESPER_FAMILY_PARAM, "w"), *shift = esper_plan_data(c->run.plan, 0, find(c, "b"));
    int inner = c->rank == 3 ? c->dim[1] * c->dim[2] : 1, stride = c->rank == 3 ? 1 : c->channels + 1;

    read_numbers(json_object_get(c->in, "seed_w"), w, 0);
    read_numbers(json_object_get(c->in, "seed_b"), b, 0);
    if (c->rank != 3)
        memset(weight, 0, (size_t)c->channels * (size_t)c->channels * sizeof(float));
    for (int i = 0; i < c->channels; i++)
        weight[i * stride] = (float)w[i];
    for (int i = 0; i < n_values_of(c); i++)
        shift[i] = (float)b[i / inner % c->channels];
}

static void load_gate(blend_case *c)
{
    const json_t *params = json_object_get(c->in, "gate_params"), *recorded;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)params, name, recorded) {
        double numbers[MAX_VALUES];
        float *values = state_of(c, ESPER_FAMILY_PARAM, name);
        int n = read_numbers(recorded, numbers, 0);

        if (values == NULL || c->run.net.tensors[find(c, name)].count != n) {
            mismatch(c, name, "of another size here, or not there");
            continue;
        }
        for (int i = 0; i < n; i++)
            values[i] = (float)numbers[i];
    }
}

/* What was recorded, or what is right: see the table of differences. */
static void compare_host_side(blend_case *c, const esper_splice *splice)
{
    int n = n_values_of(c);
    const json_t *y = json_object_get(c->out, "y"), *grad = json_object_get(c->out, "grad_h");
    bool lives = esper_splice_has_seed(splice, 0);
    const float *grad_h = lives ? esper_plan_grad(c->run.plan, 0, c->run.net.input) : NULL;
    const float zeros[MAX_VALUES] = {0};
    double upstream[MAX_VALUES];

    if (splice->slots->slot[0].alpha.value == 0.0 && difference_is_marked(DIFFERENCE_BLEND_NOT_FINITE, c->line))
        y = json_object_get(c->in, "h");
    if (splice->slots->slot[0].stage == ESPER_STAGE_TRAINING && !json_is_true(json_object_get(c->in, "isolate")) &&
        difference_is_marked(DIFFERENCE_BLEND_TRAINING, c->line))
        grad = json_object_get(c->in, "upstream");
    compare(c, "y", esper_plan_data(c->run.plan, 0, c->run.net.output), y, n);
    if (lives) { /* behind a seed that is isolated at full weight there is no gradient: zero */
        compare(c, "param_grad/h", grad_h != NULL ? grad_h : zeros, grad, n);
        return;
    }
    if (c->run.net.n_ops != 0 || c->run.net.output != c->run.net.input)
        mismatch(c, "program", "an inactive slot adds operations");
    read_numbers(json_object_get(c->in, "upstream"), upstream, 0);
    for (int i = 0; i < n; i++)
        if (upstream[i] != recorded_number(json_array_get(grad, (size_t)i)))
            mismatch(c, "grad_h", "not the gradient of an identity");
}

static void compare_seed_side(blend_case *c)
{
    int n = n_values_of(c), inner = c->rank == 3 ? c->dim[1] * c->dim[2] : 1;
    const float *grad_s = esper_plan_grad(c->run.plan, 0, find(c, "b"));
    const float *grad_w = state_of(c, ESPER_FAMILY_GRAD, "w");
    float w[MAX_VALUES], b[MAX_VALUES] = {0};

    for (int i = 0; i < c->channels; i++)
        w[i] = grad_w[c->rank == 3 ? i : i * (c->channels + 1)];
    for (int i = 0; i < n; i++)
        b[i / inner % c->channels] += grad_s[i];
    compare(c, "param_grad/s", grad_s, json_object_get(c->out, "grad_s"), n);
    compare(c, "param_grad/w", w, json_object_get(c->out, "grad_seed_w"), c->channels);
    compare(c, "param_grad/b", b, json_object_get(c->out, "grad_seed_b"), c->channels);
}

/* null: no gradient has reached it, so the region's is what it was, zero. */
static void compare_gate(blend_case *c)
{
    const json_t *grads = json_object_get(c->out, "grad_gate_params");
    const char *name;
    json_t *input;

    json_object_foreach(json_object_get(c->in, "gate_params"), name, input) {
        const json_t *recorded = json_object_get(grads, name);
        const double zeros[MAX_VALUES] = {0};
        const float *grad = state_of(c, ESPER_FAMILY_GRAD, name);
        char what[64];
        int n = grad != NULL ? (int)c->run.net.tensors[find(c, name)].count : 0;

        snprintf(what, sizeof(what), "param_grad/%s", name);
        if (recorded != NULL && !json_is_null(recorded))
            compare(c, what, grad, recorded, n);
        else if (grad != NULL)
            compare_with(c, what, grad, zeros, n);
    }
}

static esper_status check_slot(blend_case *c, esper_slots *slots)
{
    const json_t *evaluated = json_object_get(c->out, "seed_evaluated");
    esper_splice splice;
    int alpha;

    ESPER_TRY(build_slot(c, &splice, slots));
    ESPER_TRY(parity_run_open(&c->run, c->backend, c->n_samples, true));
    fill(c, c->run.net.input, json_object_get(c->in, "h"));
    if (evaluated != NULL && json_is_true(evaluated) != esper_splice_has_seed(&splice, 0))
        mismatch(c, "seed_evaluated", "not as recorded");
    if (esper_splice_has_seed(&splice, 0)) {
        load_seed(c);
        load_gate(c);
    }
    alpha = find(c, "alpha");
    if (alpha != ESPER_NO_TENSOR)
        fill(c, alpha, json_object_get(c->in, has_override(c) ? "override" : "alpha"));
    ESPER_TRY(run_both(c));
    compare_host_side(c, &splice);
    if (esper_splice_has_seed(&splice, 0) && json_object_get(c->out, "grad_s") != NULL) {
        compare_seed_side(c);
        compare_gate(c);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static void check_line(esper_backend *backend, golden_tally *tally, const json_t *line, esper_slots *slots)
{
    blend_case c = {.vectors = {.name = "blend", .tally = tally}, .backend = backend};
    esper_status status;

    read_case(&c, line);
    esper_net_init(&c.run.net);
    if (c.rank < 2 || c.rank > BLEND_RANK || n_values_of(&c) > MAX_VALUES)
        status = ESPER_FAIL(ESPER_E_FORMAT, "a shape that is none");
    else if (strcmp(json_string_value(json_object_get(line, "kind")), "operator") == 0)
        status = check_operator(&c);
    else
        status = check_slot(&c, slots);
    if (status != ESPER_OK)
        mismatch(&c, "all of it", esper_last_error());
    parity_run_close(&c.run);
}

int parity_check_blend(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    char path[GOLDEN_PATH_CHARS], *text = NULL;
    long before = tally->n_mismatches;
    FILE *file = fopen(golden_path(entry, path), "r");
    esper_slots *slots = calloc(1, sizeof(*slots));
    size_t size = 0;
    int n = -1;

    while (file != NULL && slots != NULL && getline(&text, &size, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);

        if (n++ >= 0) /* the first line tells about the file */
            check_line(backend, tally, line, slots);
        json_decref(line);
    }
    if (n < 1)
        golden_mismatch(tally, entry->name, "file", "%s: no cases", path);
    if (file != NULL)
        fclose(file);
    free(text);
    free(slots);
    return (int)(tally->n_mismatches - before);
}
