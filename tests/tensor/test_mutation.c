/* ctest: labels=soak timeout=900 kernels=ref64 */
/* Would the operations' own tests notice? A copy of the kernel table `ref64` spoils one result of one operation at a
 * time:
 *
 *   each gradient        must fail the finite differences of test_grad.c,
 *   each output, state   must fail the definitions of test_definition.c,
 *
 * times 1.001, with its largest value lost and, for gradients, always written or always added whatever its flag says.
 * Nothing spoiled must pass. Isolate alone is not here: it has no kernels; what it does, stopping gradients, is tested
 * by test_plan_gradients.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/grad_check.h"
#include "support/op_definition.h"

enum { N_CASES = 60 }; /* for the definitions, as in test_definition.c */

/* ------------------------------------------------------------------------------------------------ spoiling */

typedef enum target_kind {
    TARGET_OUT,   /* an output of the forward pass */
    TARGET_STATE, /* an input that the forward pass changes */
    TARGET_GRAD,  /* the gradient of an input */
} target_kind;

typedef enum change_kind { CHANGE_NONE, CHANGE_SCALE, CHANGE_LOSE, CHANGE_WRITE, CHANGE_ADD } change_kind;

static const char *const change_names[] = {"nothing", "times 1.001", "largest lost", "always written", "always added"};

/* What is spoiled now. Kernels have no room for an argument: these are the tests' own, and there is one thread. */
static struct mutant {
    const op_case *c;
    target_kind    target;
    int            index;
    change_kind    change;
} now;

static void run_phases(const esper_phase *phases, const esper_lane *lane)
{
    for (; phases->run != NULL; phases++)
        phases->run(lane, 0, phases->units != NULL ? phases->units(lane) : lane->pass->n_samples);
}

/* Runs the phases and spoils what they have added to `values`, or, without `in_place`, written there. */
static void run_spoiled(const esper_phase *phases, const esper_lane *lane, double *values, size_t count, bool in_place)
{
    double *before = calloc(count + 1, sizeof(*before));
    size_t largest = 0;

    assert_non_null(before);
    if (in_place && values != NULL)
        memcpy(before, values, count * sizeof(*before));
    run_phases(phases, lane);
    for (size_t i = 0; values != NULL && i < count; i++) {
        if (now.change == CHANGE_SCALE)
            values[i] = before[i] + 1.001 * (values[i] - before[i]);
        else if (fabs(values[i] - before[i]) > fabs(values[largest] - before[largest]))
            largest = i;
    }
    if (values != NULL && now.change == CHANGE_LOSE)
        values[largest] = before[largest];
    free(before);
}

static void spoiled_forward(const esper_lane *lane, int begin, int end)
{
    const esper_phase *phases = esper_kernels_ref64.op[now.c->kind]->forward;

    (void)begin, (void)end;
    if (now.target == TARGET_OUT)
        run_spoiled(phases, lane, lane->out[now.index].data, now.c->out[now.index].total, false);
    else if (now.target == TARGET_STATE)
        run_spoiled(phases, lane, lane->in[now.index].data, now.c->in[now.index].total, true);
    else
        run_phases(phases, lane);
}

static void spoiled_backward(const esper_lane *lane, int begin, int end)
{
    const esper_phase *phases = esper_kernels_ref64.op[now.c->kind]->backward;
    esper_lane changed = *lane;
    esper_view *view = &changed.in[now.index];

    (void)begin, (void)end;
    if (now.target == TARGET_GRAD && now.change == CHANGE_WRITE)
        view->add = false;
    if (now.target == TARGET_GRAD && now.change == CHANGE_ADD)
        view->add = true;
    if (now.target == TARGET_GRAD)
        run_spoiled(phases, &changed, view->grad, now.c->in[now.index].total, view->add);
    else
        run_phases(phases, lane);
}

static int one(const esper_lane *lane)
{
    (void)lane;
    return 1;
}

static esper_op_kernels spoiled_op = {.forward = {{spoiled_forward, one}}, .backward = {{spoiled_backward, one}}};

/* ------------------------------------------------------------------------------------------------ checking */

typedef struct verdict {
    int  n_cases, n_noticed;
    char first[512];
} verdict;

/* Whether a case has the target at all. */
static bool has_target(const op_case *c)
{
    if (now.target == TARGET_GRAD)
        return c->in[now.index].grad != NULL;
    return now.target == TARGET_OUT ? c->out[now.index].role != OP_ABSENT : c->in[now.index].role != OP_ABSENT;
}

/* Runs the check that watches over the target on all its cases. */
static verdict check_target(esper_op_kind kind)
{
    esper_kernel_set set = esper_kernels_ref64;
    esper_rng rng = grad_check_rng(kind);
    verdict v = {0};

    spoiled_op.scratch = esper_kernels_ref64.op[kind]->scratch;
    set.op[kind] = &spoiled_op;
    for (uint32_t number = 0; number < (now.target == TARGET_GRAD ? GRAD_CHECK_CASES : N_CASES); number++) {
        int n_bad;
        op_case c;

        op_case_init(&c, kind, number);
        now.c = &c;
        n_bad = now.target == TARGET_GRAD ? grad_check_case(&c, &set, &rng, v.first, sizeof(v.first))
                                          : op_definition_check(&c, &set, v.first, sizeof(v.first));
        v.n_cases += has_target(&c);
        v.n_noticed += n_bad > 0;
        now.c = NULL;
        op_case_fini(&c);
    }
    return v;
}

static int n_spoiled, n_unnoticed;

static void spoil_target(esper_op_kind kind, target_kind target, int index, change_kind change)
{
    static const char *const targets[] = {"output", "state", "gradient of input"};
    verdict v;

    now = (struct mutant){.target = target, .index = index, .change = change};
    v = check_target(kind);
    if (change == CHANGE_NONE) {
        if (v.n_noticed > 0)
            fail_msg("nothing is spoiled, yet: %s", v.first);
        return;
    }
    n_spoiled++;
    n_unnoticed += v.n_noticed == 0;
    printf("%-16s %-17s %d %-14s %3d of %3d cases notice%s; first: %s\n", esper_op_info_of(kind)->name, targets[target],
           index, change_names[change], v.n_noticed, v.n_cases, v.n_noticed == 0 ? "  <-- UNNOTICED" : "", v.first);
    fflush(stdout);
}

/* Which inputs the forward pass changes. */
static uint32_t state_of(esper_op_kind kind)
{
    switch (kind) {
    case ESPER_OP_BATCH_NORM:
        return ESPER_BIT(3) | ESPER_BIT(4);
    case ESPER_OP_SGD:
        return ESPER_BIT(0) | ESPER_BIT(1);
    case ESPER_OP_ADAMW:
        return ESPER_BIT(0) | ESPER_BIT(1) | ESPER_BIT(2);
    default:
        return 0;
    }
}

static void test_kind(void **state)
{
    esper_op_kind kind = *(const esper_op_kind *)*state;
    const esper_op_info *info = esper_op_info_of(kind);
    bool is_step = kind == ESPER_OP_SGD || kind == ESPER_OP_ADAMW; /* their "output" is the norm they read */
    int n_before = n_spoiled, n_unnoticed_before = n_unnoticed;

    spoil_target(kind, TARGET_OUT, 0, CHANGE_NONE);
    if (info->grad_in != 0)
        spoil_target(kind, TARGET_GRAD, 0, CHANGE_NONE);
    for (int k = 0; k < info->n_out && !is_step; k++)
        for (int change = CHANGE_SCALE; change <= CHANGE_LOSE; change++)
            spoil_target(kind, TARGET_OUT, k, (change_kind)change);
    for (int k = 0; k < info->n_in; k++) {
        for (int change = CHANGE_SCALE; change <= CHANGE_LOSE && (state_of(kind) & ESPER_BIT(k)) != 0; change++)
            spoil_target(kind, TARGET_STATE, k, (change_kind)change);
        for (int change = CHANGE_SCALE; change <= CHANGE_ADD && (info->grad_in & ESPER_BIT(k)) != 0; change++)
            spoil_target(kind, TARGET_GRAD, k, (change_kind)change);
    }
    assert_true(n_spoiled > n_before);
    assert_int_equal(n_unnoticed, n_unnoticed_before);
}

static void test_isolate_has_no_work(void **state)
{
    (void)state;
    assert_null(esper_kernels_ref64.op[ESPER_OP_ISOLATE]->forward[0].run);
    assert_null(esper_kernels_ref64.op[ESPER_OP_ISOLATE]->backward[0].run);
}

int main(void)
{
    static esper_op_kind kinds[ESPER_N_OPS];
    struct CMUnitTest tests[ESPER_N_OPS];
    int n_failed;

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        bool is_isolate = kind == ESPER_OP_ISOLATE;

        kinds[kind] = (esper_op_kind)kind;
        tests[kind] = (struct CMUnitTest){esper_op_info_of(kinds[kind])->name,
                                          is_isolate ? test_isolate_has_no_work : test_kind, NULL, NULL, &kinds[kind]};
    }
    n_failed = _cmocka_run_group_tests("mutation", tests, ESPER_N_OPS, NULL, NULL);
    printf("%d results of %d operations spoiled, %d unnoticed\n", n_spoiled, ESPER_N_OPS - 1, n_unnoticed);
    return n_failed;
}
