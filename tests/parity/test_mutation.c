/* ctest: labels=soak,golden timeout=900 */
/* Would parity notice? A backend that wraps `ref` spoils one result of one operation at a time, and the parity
 * checks must fail: every output and every gradient of every operation that the recorded networks contain, scaled by
 * 1.001, with its largest value lost, and (gradients) added to memory where it should overwrite it or the other way
 * round. What no recorded network can show is listed below, and must stay out of reach to stay listed: it is spoiled in
 * tests/tensor/test_mutation.c, which does the same to every operation under finite differences and definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "support/parity.h"
#include "tensor/backends.h"

/* ------------------------------------------------------------------------------------------------ what to spoil */

typedef enum target_kind {
    TARGET_OUT,   /* an output of the forward pass */
    TARGET_STATE, /* an input that the forward pass changes: running statistics, parameters and moments in a step */
    TARGET_GRAD,  /* the gradient of an input */
    N_TARGETS
} target_kind;

typedef struct op_target {
    esper_op_kind op;
    target_kind   kind;
    int           index; /* of the input or output */
} op_target;

/* Inputs that the forward pass changes. */
static const op_target states[] = {
    {ESPER_OP_BATCH_NORM, TARGET_STATE, 3},
    {ESPER_OP_BATCH_NORM, TARGET_STATE, 4},
    {ESPER_OP_SGD, TARGET_STATE, 0},
    {ESPER_OP_SGD, TARGET_STATE, 1},
};

/* What the recorded networks do not contain. All of it but isolate is spoiled in tests/tensor/test_mutation.c, so that
 * nothing with work of its own is left out everywhere. */
static const struct uncovered {
    esper_op_kind op;
    int           out; /* only this output; -1 = the whole operation */
    const char   *why;
} elsewhere[] = {
    {ESPER_OP_TANH, -1, "in no recorded net: spoiled in tensor/mutation"},
    {ESPER_OP_DROPOUT, -1, "recorded without dropout: spoiled in tensor/mutation"},
    {ESPER_OP_ISOLATE, -1, "no work of its own to spoil; that gradients stop there is tested in tensor/plan_gradients"},
    {ESPER_OP_STRAIGHT_THROUGH, -1, "in slotted nets only: spoiled in tensor/mutation"},
    {ESPER_OP_BLEND_ADD, -1, "in slotted nets only: spoiled in tensor/mutation"},
    {ESPER_OP_BLEND_MUL, -1, "in slotted nets only: spoiled in tensor/mutation"},
    {ESPER_OP_BLEND_GATE, -1, "in slotted nets only: spoiled in tensor/mutation"},
    {ESPER_OP_LSTM, -1, "in the policy alone: spoiled in tensor/mutation"},
    {ESPER_OP_CONCAT, -1, "in the policy alone: spoiled in tensor/mutation"},
    {ESPER_OP_ADD_ROWS, -1, "in the policy alone: spoiled in tensor/mutation"},
    {ESPER_OP_POOL_ROWS, -1, "in the policy alone: spoiled in tensor/mutation"},
    {ESPER_OP_ADAMW, -1, "recorded with sgd: spoiled in tensor/mutation"},
    {ESPER_OP_SOFTMAX_XENT, 1, "the number of correct answers was not recorded: spoiled in tensor/mutation"},
    {ESPER_OP_GRAD_NORM, 1, "partial sums, used up when the launch is done: spoiled in tensor/mutation"},
};

static const struct uncovered *find_elsewhere(const op_target *target)
{
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
        if (elsewhere[i].op == target->op &&
            (elsewhere[i].out == -1 || (target->kind == TARGET_OUT && elsewhere[i].out == target->index)))
            return &elsewhere[i];
    return NULL;
}

/* Every target there is, in the order of the list of operations: calls for each. */
typedef void (*target_visit)(const op_target *target, void *context);

static void for_each_target(target_visit visit, void *context)
{
    for (int op = 0; op < ESPER_N_OPS; op++) {
        const esper_op_info *info = esper_op_info_of((esper_op_kind)op);

        if (op != ESPER_OP_SGD && op != ESPER_OP_ADAMW) /* their "output" is the norm they read */
            for (int i = 0; i < info->n_out; i++)
                visit(&(op_target){(esper_op_kind)op, TARGET_OUT, i}, context);
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
            if (states[i].op == (esper_op_kind)op)
                visit(&states[i], context);
        for (int i = 0; i < info->n_in; i++)
            if ((info->grad_in & ESPER_BIT(i)) != 0)
                visit(&(op_target){(esper_op_kind)op, TARGET_GRAD, i}, context);
    }
}

/* ------------------------------------------------------------------------------------------------ spoiling */

typedef enum change_kind { CHANGE_SCALE, CHANGE_LOSE, CHANGE_FLIP } change_kind;

static const char *const change_names[] = {"times 1.001", "largest lost", "add flipped"};

typedef struct mutant_backend {
    esper_backend  base;
    esper_backend *inner;
    const op_target *active; /* NULL: nothing is spoiled */
    change_kind    change;
    bool           seen[ESPER_N_OPS][N_TARGETS][ESPER_OP_MAX_IN]; /* targets that were met */
} mutant_backend;

/* The values of a target in a lane. */
typedef struct target_values {
    float  *data; /* NULL: the lane has none */
    double *norm; /* the one result that is in double: a norm of gradients */
    int64_t count;
    bool    in_place; /* what stood there before is part of the result */
} target_values;

/* Whether an input is a parameter: of the network, not of each sample. */
static bool is_param(esper_op_kind op, int input)
{
    switch (op) {
    case ESPER_OP_CONV2D:
    case ESPER_OP_CHANNEL_SCALE:
        return input == 1;
    case ESPER_OP_BATCH_NORM:
    case ESPER_OP_GROUP_NORM:
    case ESPER_OP_LAYER_NORM:
    case ESPER_OP_LINEAR:
    case ESPER_OP_EMBEDDING:
        return input >= 1;
    case ESPER_OP_MIX_TANH:
        return input == 2;
    default:
        return false;
    }
}

static target_values find_values(const op_target *target, const esper_lane *lane)
{
    const esper_view *in = &lane->in[target->index];
    int64_t n = lane->pass != NULL ? lane->pass->n_samples : 1;

    if (target->kind == TARGET_STATE)
        return (target_values){.data = in->data, .count = in->count, .in_place = true};
    if (target->kind == TARGET_GRAD)
        return (target_values){
            .data = in->grad, .count = in->count * (is_param(target->op, target->index) ? 1 : n), .in_place = in->add};
    if (target->op == ESPER_OP_GRAD_NORM)
        return (target_values){.norm = target->index == 0 ? lane->out[0].data : NULL, .count = 1};
    if (target->op == ESPER_OP_BATCH_NORM && target->index > 0) /* statistics of the batch */
        n = 1;
    return (target_values){.data = lane->out[target->index].data, .count = lane->out[target->index].count * n};
}

/* Spoils what an operation has added to `before`. */
static void spoil(change_kind change, const target_values *values, const float *before)
{
    int64_t largest = 0;

    if (values->norm != NULL) /* a single value */
        *values->norm *= change == CHANGE_SCALE ? 1.001 : 0.0;
    for (int64_t i = 0; values->data != NULL && i < values->count; i++) {
        float part = values->data[i] - before[i];

        if (change == CHANGE_SCALE)
            values->data[i] = before[i] + 1.001f * part;
        else if (fabsf(part) > fabsf(values->data[largest] - before[largest]))
            largest = i;
    }
    if (change == CHANGE_LOSE && values->data != NULL)
        values->data[largest] = before[largest];
}

/* Adds a gradient where it should be written, writes it where it should be added. */
static esper_status flip_lane(mutant_backend *mutant, const esper_launch *launch)
{
    esper_lane lane = launch->lanes[0];

    lane.in[mutant->active->index].add = !lane.in[mutant->active->index].add;
    return esper_backend_enqueue(
        mutant->inner, NULL,
        &(esper_launch){launch->kind, launch->direction, launch->variant, 1, &lane, launch->part, launch->place});
}

/* Runs a launch of one lane and spoils its result. */
static esper_status spoil_lane(mutant_backend *mutant, const esper_launch *launch)
{
    target_values values = find_values(mutant->active, launch->lanes);
    float *before = NULL;
    esper_status status;

    if (values.data != NULL) {
        before = esper_mem_alloc((size_t)values.count * sizeof(*before));
        if (before == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "copy of %lld values", (long long)values.count);
        if (values.in_place)
            memcpy(before, values.data, (size_t)values.count * sizeof(*before));
    }
    status = esper_backend_enqueue(mutant->inner, NULL, launch);
    if (status == ESPER_OK)
        spoil(mutant->change, &values, before);
    esper_mem_free(before);
    return status;
}

static void note_seen(mutant_backend *mutant, const esper_launch *launch)
{
    const esper_op_info *info = esper_op_info_of(launch->kind);
    bool forward = launch->direction == ESPER_FORWARD;

    for (int i = 0; i < info->n_out && forward; i++)
        mutant->seen[launch->kind][TARGET_OUT][i] |= launch->lanes[0].out[i].data != NULL;
    for (int i = 0; i < info->n_in; i++) {
        mutant->seen[launch->kind][TARGET_STATE][i] |= forward && launch->lanes[0].in[i].data != NULL;
        mutant->seen[launch->kind][TARGET_GRAD][i] |= !forward && launch->lanes[0].in[i].grad != NULL;
    }
}

static esper_status enqueue_mutant(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    mutant_backend *mutant = (mutant_backend *)be;
    const op_target *active = mutant->active;

    (void)stream; /* there is only the one that all backends have */
    note_seen(mutant, launch);
    if (active == NULL || active->op != launch->kind ||
        (active->kind == TARGET_GRAD) != (launch->direction == ESPER_BACKWARD))
        return esper_backend_enqueue(mutant->inner, NULL, launch);
    for (int l = 0; l < launch->n_lanes; l++) {
        esper_launch single = {launch->kind,      launch->direction, launch->variant, 1,
                               &launch->lanes[l], launch->part,      launch->place};

        ESPER_TRY(mutant->change == CHANGE_FLIP ? flip_lane(mutant, &single) : spoil_lane(mutant, &single));
    }
    return ESPER_OK;
}

static esper_status alloc_mutant(esper_backend *be, size_t bytes, void **mem_out)
{
    return esper_backend_alloc(((mutant_backend *)be)->inner, bytes, mem_out);
}

static void release_mutant(esper_backend *be, void *mem)
{
    esper_backend_release(((mutant_backend *)be)->inner, mem);
}

static bool mutant_supports(const esper_backend *be, esper_op_kind kind)
{
    return esper_backend_supports(((const mutant_backend *)be)->inner, kind);
}

static esper_status sync_mutant(esper_backend *be, esper_backend_stream *stream)
{
    (void)stream;
    return esper_backend_sync(((mutant_backend *)be)->inner);
}

static esper_status copy_in_mutant(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                   size_t bytes)
{
    return esper_backend_copy_in(((mutant_backend *)be)->inner, stream, to, from, bytes);
}

static esper_status copy_out_mutant(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                    size_t bytes)
{
    return esper_backend_copy_out(((mutant_backend *)be)->inner, stream, to, from, bytes);
}

static esper_status copy_mutant(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                size_t bytes)
{
    return esper_backend_copy(((mutant_backend *)be)->inner, stream, to, from, bytes);
}

static esper_status fill_mutant(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    return esper_backend_fill(((mutant_backend *)be)->inner, stream, to, value, count);
}

static const char *mutant_identity(const esper_backend *be)
{
    (void)be;
    return "mutant";
}

/* Never opened by name: the tests below make it themselves. */
static const esper_backend_ops mutant_ops = {
    .abi = ESPER_BACKEND_ABI,
    .name = "mutant",
    .about = "ref with one result spoiled",
    .alloc = alloc_mutant,
    .release = release_mutant,
    .supports = mutant_supports,
    .enqueue = enqueue_mutant,
    .sync = sync_mutant,
    .identity = mutant_identity,
    .copy_in = copy_in_mutant,
    .copy_out = copy_out_mutant,
    .copy = copy_mutant,
    .fill = fill_mutant,
};

/* ------------------------------------------------------------------------------------------------ the files */

enum { MAX_FILES = 64 };

/* The recorded networks that are here, and which targets occur in each. */
typedef struct file_census {
    const golden_entry *entry;
    bool                seen[ESPER_N_OPS][N_TARGETS][ESPER_OP_MAX_IN];
} file_census;

typedef struct net_census {
    mutant_backend mutant;
    file_census files[MAX_FILES];
    int         n_files;
    int         n_spoiled, n_unnoticed, n_problems;
} net_census;

static int check_file(mutant_backend *mutant, const golden_entry *entry, bool quiet, golden_tally *tally)
{
    *tally = (golden_tally){.label = "mutant", .quiet = quiet};
    return parity_check(&mutant->base, entry, tally);
}

/* Nothing spoiled: the wrapper alone must pass. Notes what occurs in which file. */
static void take_census(net_census *census)
{
    golden_tally tally;

    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++) {
        file_census *file = &census->files[census->n_files];

        if (!golden_is_here(entry) || (entry->part & (GOLDEN_HOST | GOLDEN_SEED | GOLDEN_GATE)) == 0)
            continue;
        assert_in_range(census->n_files, 0, MAX_FILES - 1);
        memset(census->mutant.seen, 0, sizeof(census->mutant.seen));
        assert_int_equal(check_file(&census->mutant, entry, false, &tally), 0);
        file->entry = entry;
        memcpy(file->seen, census->mutant.seen, sizeof(file->seen));
        census->n_files++;
    }
}

static const char *describe(const op_target *target, char *text, size_t chars)
{
    static const char *const kinds[] = {"output", "state", "gradient of input"};

    snprintf(text, chars, "%s %d", kinds[target->kind], target->index);
    return text;
}

/* Spoils one target in every file in which it occurs, and counts the files that notice. */
static void spoil_target(net_census *census, const op_target *target, change_kind change)
{
    char what[64], first[192] = "-";
    int n_with = 0, n_noticed = 0;
    golden_tally tally;

    census->mutant.active = target;
    census->mutant.change = change;
    for (int f = 0; f < census->n_files; f++) {
        if (!census->files[f].seen[target->op][target->kind][target->index])
            continue;
        n_with++;
        if (check_file(&census->mutant, census->files[f].entry, true, &tally) > 0 && n_noticed++ == 0)
            memcpy(first, tally.first_bad, sizeof(first));
    }
    census->mutant.active = NULL;
    census->n_spoiled++;
    census->n_unnoticed += n_noticed == 0;
    printf("%-16s %-20s %-13s %2d of %2d files notice%s; first: %s\n", esper_op_info_of(target->op)->name,
           describe(target, what, sizeof(what)), change_names[change], n_noticed, n_with,
           n_noticed == 0 ? "  <-- UNNOTICED" : "", first);
    fflush(stdout);
}

static bool occurs(const net_census *census, const op_target *target)
{
    for (int f = 0; f < census->n_files; f++)
        if (census->files[f].seen[target->op][target->kind][target->index])
            return true;
    return false;
}

static void visit_target(const op_target *target, void *context)
{
    net_census *census = context;
    const struct uncovered *uncovered = find_elsewhere(target);
    const char *op = esper_op_info_of(target->op)->name;
    char what[64];

    if (uncovered != NULL) {
        if (uncovered->out == -1 && occurs(census, target)) {
            printf("%s is listed as covered elsewhere, but occurs: take it off the list\n", op);
            census->n_problems++;
        }
        return;
    }
    if (!occurs(census, target)) {
        printf("%s %s: in no recorded file that is here, and not listed as covered elsewhere\n", op,
               describe(target, what, sizeof(what)));
        census->n_problems += !golden_is_whole(); /* tests/golden has them all; another recording may have other nets */
        return;
    }
    spoil_target(census, target, CHANGE_SCALE);
    spoil_target(census, target, CHANGE_LOSE);
    if (target->kind == TARGET_GRAD)
        spoil_target(census, target, CHANGE_FLIP);
}

static void test_every_spoiled_result_is_noticed(void **state)
{
    net_census *census = esper_mem_alloc(sizeof(*census));

    (void)state;
    assert_non_null(census);
    census->mutant.base.ops = &mutant_ops;
    assert_int_equal(esper_backend_open("ref", NULL, &census->mutant.inner), ESPER_OK);
    take_census(census);
    for_each_target(visit_target, census);
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
        printf("%-16s %s%s\n", esper_op_info_of(elsewhere[i].op)->name,
               elsewhere[i].out < 0 ? "" : "output 1: ", elsewhere[i].why);
    printf("%d results spoiled over %d files, %d unnoticed\n", census->n_spoiled, census->n_files, census->n_unnoticed);
    assert_int_equal(census->n_problems, 0);
    assert_int_equal(census->n_unnoticed, 0);
    assert_true(census->n_spoiled > 0);
    esper_backend_close(census->mutant.inner);
    esper_mem_free(census);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_spoiled_result_is_noticed),
    };

    golden_say(GOLDEN_HOST | GOLDEN_SEED | GOLDEN_GATE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
