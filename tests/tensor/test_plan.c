/* The plan: memory is never given to two that need it, fleets share launches, work is counted as the cost model says,
 * and what cannot be planned or run is refused. Gradients: test_plan_gradients.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/small_net.h"
#include "tensor/cpu/block.h"

enum { GRANULE = 64 };

/* ------------------------------------------------------------------------------------------------ memory */

/* Who has written each 64 bytes of the arena last: 0 nobody, else 1 + 2 * tensor, + 1 for its gradient. */
typedef struct shadow {
    const small_run *p;
    const char    *what; /* for messages */
    const char    *base;
    int           *owner;
    int           *home; /* (n_tensors) whose data an isolated tensor shares */
    bool          *wanted, *reached;
} shadow;

static const char *memory_of(const small_run *p, int t, bool grad)
{
    esper_role role = p->net.tensors[t].role;

    if (role != ESPER_ROLE_INPUT && role != ESPER_ROLE_ACTIVATION)
        return NULL;
    return grad ? (const char *)esper_plan_grad(p->plan, 0, t) : esper_plan_data(p->plan, 0, t);
}

static int n_granules(const small_run *p, int t)
{
    const esper_tensor *tensor = &p->net.tensors[t];

    return (int)((tensor->count * 4 * (tensor->per_sample ? p->pass.n_samples : 1) + GRANULE - 1) / GRANULE);
}

static void find_base(shadow *s)
{
    for (int t = 0; t < s->p->net.n_tensors; t++)
        for (int grad = 0; grad < 2; grad++) {
            const char *memory = memory_of(s->p, t, grad);

            if (memory != NULL && (s->base == NULL || memory < s->base))
                s->base = memory;
        }
}

static void shadow_init(shadow *s, const small_run *p, const char *what)
{
    size_t n = (size_t)p->net.n_tensors;

    *s = (shadow){.p = p, .what = what};
    s->owner = esper_mem_alloc(esper_plan_stats_of(p->plan).arena_bytes / GRANULE * sizeof(int));
    s->home = esper_mem_alloc(n * sizeof(int));
    s->wanted = esper_mem_alloc(n);
    s->reached = esper_mem_alloc(n);
    find_base(s);
    for (int t = 0; t < p->net.n_tensors; t++)
        s->home[t] = t;
    for (int o = 0; o < p->net.n_ops; o++)
        if (p->net.ops[o].kind == ESPER_OP_ISOLATE)
            s->home[p->net.ops[o].out[0]] = s->home[p->net.ops[o].in[0]];
}

static void shadow_fini(shadow *s)
{
    esper_mem_free(s->owner);
    esper_mem_free(s->home);
    esper_mem_free(s->wanted);
    esper_mem_free(s->reached);
}

static int owner_id(const shadow *s, int t, bool grad)
{
    return 1 + 2 * (grad ? t : s->home[t]) + grad;
}

static int *range_of(const shadow *s, int t, bool grad)
{
    const char *memory = memory_of(s->p, t, grad);
    size_t end = (size_t)(memory - s->base) + (size_t)n_granules(s->p, t) * GRANULE;

    if (memory == NULL)
        fail_msg("%s: %s has no %s", s->what, s->p->net.tensors[t].name, grad ? "gradient" : "data");
    assert_int_equal((memory - s->base) % GRANULE, 0);
    if (end > esper_plan_stats_of(s->p->plan).arena_bytes)
        fail_msg("%s: %s reaches to %zu of %zu bytes", s->what, s->p->net.tensors[t].name, end,
                 esper_plan_stats_of(s->p->plan).arena_bytes);
    return &s->owner[(memory - s->base) / GRANULE];
}

static bool in_arena(const shadow *s, int t)
{
    return t != ESPER_NO_TENSOR &&
           (s->p->net.tensors[t].role == ESPER_ROLE_INPUT || s->p->net.tensors[t].role == ESPER_ROLE_ACTIVATION);
}

static void writes(shadow *s, int t, bool grad)
{
    int *range;

    if (!in_arena(s, t))
        return;
    range = range_of(s, t, grad);
    for (int i = 0; i < n_granules(s->p, t); i++)
        range[i] = owner_id(s, t, grad);
}

static void reads(const shadow *s, int t, bool grad, const char *who)
{
    const int *range;

    if (!in_arena(s, t))
        return;
    range = range_of(s, t, grad);
    for (int i = 0; i < n_granules(s->p, t); i++)
        if (range[i] != owner_id(s, t, grad))
            fail_msg("%s: %s needs %s of %s, but there is %s of %s", s->what, who, grad ? "the gradient" : "the data",
                     s->p->net.tensors[t].name, (range[i] - 1) % 2 != 0 ? "the gradient" : "the data",
                     range[i] == 0 ? "nobody" : s->p->net.tensors[(range[i] - 1) / 2].name);
}

/* The launch that runs this operation, checked against it. */
static const esper_lane *lane_for(const shadow *s, esper_direction direction, int index, const esper_op *op)
{
    const esper_launch *launch = esper_plan_launch(s->p->plan, direction, index);

    if (launch == NULL || launch->kind != op->kind || launch->n_lanes != 1)
        fail_msg("%s: launch %d is %s, expected %s", s->what, index,
                 launch != NULL ? esper_op_info_of(launch->kind)->name : "missing", esper_op_info_of(op->kind)->name);
    for (int i = 0; i < esper_op_info_of(op->kind)->n_in; i++)
        assert_ptr_equal(launch->lanes[0].in[i].data, esper_plan_data(s->p->plan, 0, op->in[i]));
    for (int i = 0; i < esper_op_info_of(op->kind)->n_out; i++)
        assert_ptr_equal(launch->lanes[0].out[i].data, esper_plan_data(s->p->plan, 0, op->out[i]));
    return &launch->lanes[0];
}

static void forward_reads(const shadow *s, const esper_op *op)
{
    const esper_op_info *info = esper_op_info_of(op->kind);

    for (int i = 0; i < info->n_in; i++)
        reads(s, op->in[i], false, info->name);
}

static void walk_forward(shadow *s)
{
    const esper_net *net = &s->p->net;
    int n_launches = 0;

    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_INPUT)
            writes(s, t, false);
    for (int o = 0; o < net->n_ops; o++) {
        const esper_op *op = &net->ops[o];

        if (op->kind == ESPER_OP_ISOLATE)
            continue;
        lane_for(s, ESPER_FORWARD, n_launches++, op);
        forward_reads(s, op);
        for (int i = 0; i < esper_op_info_of(op->kind)->n_out; i++)
            writes(s, op->out[i], false);
        forward_reads(s, op); /* an operation may not write over what it reads */
    }
    assert_null(esper_plan_launch(s->p->plan, ESPER_FORWARD, n_launches));
}

static void backward_reads(const shadow *s, const esper_op *op)
{
    const esper_op_info *info = esper_op_info_of(op->kind);

    for (int i = 0; i < info->n_in; i++)
        if ((info->saved_in & ESPER_BIT(i)) != 0)
            reads(s, op->in[i], false, info->name);
    for (int i = 0; i < info->n_out; i++)
        if ((info->saved_out & ESPER_BIT(i)) != 0)
            reads(s, op->out[i], false, info->name);
    if (op->out[0] != s->p->net.loss)
        reads(s, op->out[0], true, info->name);
}

/* Whether a gradient must go from this operation to its input. */
static bool must_reach(const shadow *s, const esper_op *op, int i)
{
    return op->in[i] != ESPER_NO_TENSOR && (esper_op_info_of(op->kind)->grad_in & ESPER_BIT(i)) != 0 &&
           s->wanted[op->in[i]];
}

static void find_wanted(shadow *s)
{
    const esper_net *net = &s->p->net;

    for (int t = 0; t < net->n_tensors; t++)
        s->wanted[t] = net->tensors[t].role == ESPER_ROLE_PARAM || net->tensors[t].want_grad;
    for (int o = 0; o < net->n_ops; o++)
        for (int i = 0; i < esper_op_info_of(net->ops[o].kind)->n_in; i++)
            s->wanted[net->ops[o].out[0]] |= must_reach(s, &net->ops[o], i);
}

static void write_gradient(shadow *s, const esper_op *op, const esper_lane *lane, int i)
{
    int t = op->in[i];

    assert_ptr_equal(lane->in[i].grad, esper_plan_grad(s->p->plan, 0, t));
    assert_non_null(lane->in[i].grad);
    if (lane->in[i].add != s->reached[t])
        fail_msg("%s: %s %s the gradient of %s", s->what, esper_op_info_of(op->kind)->name,
                 lane->in[i].add ? "adds to" : "overwrites", s->p->net.tensors[t].name);
    if (lane->in[i].add)
        reads(s, t, true, "an addition");
    s->reached[t] = true;
    writes(s, t, true);
}

static void walk_backward(shadow *s)
{
    const esper_net *net = &s->p->net;
    int n_launches = 0, start = net->loss != ESPER_NO_TENSOR ? net->loss : net->output;

    find_wanted(s);
    s->reached[start] = s->wanted[start];
    if (net->loss == ESPER_NO_TENSOR)
        writes(s, net->output, true); /* by the caller */
    for (int o = net->n_ops - 1; o >= 0; o--) {
        const esper_op *op = &net->ops[o];
        const esper_lane *lane = NULL;

        for (int i = 0; i < esper_op_info_of(op->kind)->n_in && s->reached[op->out[0]]; i++) {
            if (!must_reach(s, op, i))
                continue;
            if (lane == NULL) {
                lane = lane_for(s, ESPER_BACKWARD, n_launches++, op);
                backward_reads(s, op);
            }
            write_gradient(s, op, lane, i);
        }
        if (lane != NULL)
            backward_reads(s, op);
    }
    assert_null(esper_plan_launch(s->p->plan, ESPER_BACKWARD, n_launches));
}

/* What the caller may still read at the end. */
static void check_end(const shadow *s)
{
    const esper_net *net = &s->p->net;

    for (int t = 0; t < net->n_tensors; t++) {
        if (net->tensors[t].role == ESPER_ROLE_INPUT || net->tensors[t].keep || t == net->output)
            reads(s, t, false, "the caller");
        if (net->tensors[t].want_grad && s->reached[t])
            reads(s, t, true, "the caller");
    }
}

static void check_memory(esper_host host, const small_seed *seeds, bool with_loss, bool training)
{
    small_run p = {0};
    shadow s;
    char what[128];

    snprintf(what, sizeof(what), "%s, %s in %s, %s, %s", esper_topology_name(host.topology), seeds[0].blueprint,
             small_mode_name(seeds[0].mode), with_loss ? "loss" : "no loss", training ? "training" : "inference");
    host.with_loss = with_loss;
    if (small_build(&p.net, &host, seeds) != ESPER_OK)
        fail_msg("%s: %s", what, esper_last_error());
    p.net.tensors[p.net.input].want_grad = host.topology == ESPER_TOPOLOGY_CNN;
    small_run_open(&p, "null", 3, training);
    shadow_init(&s, &p, what);
    walk_forward(&s);
    if (training)
        walk_backward(&s);
    check_end(&s);
    shadow_fini(&s);
    small_run_close(&p);
}

static void check_blueprints(esper_host host, const char *const slots[SMALL_MAX_SEEDS])
{
    const esper_blueprint *const *list = esper_blueprint_list(host.topology);

    for (int b = 0; list[b] != NULL; b++)
        for (int mode = 0; mode < SMALL_N_MODES; mode++) {
            small_seed seeds[SMALL_MAX_SEEDS + 1] = {0};

            for (int i = 0; i < SMALL_MAX_SEEDS && slots[i] != NULL; i++)
                seeds[i] = (small_seed){slots[i], list[b]->name, (small_mode)mode};
            check_memory(host, seeds, true, true);
            check_memory(host, seeds, false, true);
            check_memory(host, seeds, true, false);
        }
}

static void test_memory_is_never_shared_too_early(void **state)
{
    (void)state;
    check_blueprints(small_cnn(), (const char *[SMALL_MAX_SEEDS]){"r0c0", "r1c0", "r0c1", "r1c1"});
    check_blueprints(small_transformer(0.1f), (const char *[SMALL_MAX_SEEDS]){"r0c0", "r0c1"});
}

static esper_plan_stats stats_of(esper_host host, int n_samples, bool training)
{
    esper_plan_stats stats;
    small_run p = {0};

    assert_int_equal(small_build(&p.net, &host, NULL), ESPER_OK);
    small_run_open(&p, "null", n_samples, training);
    stats = esper_plan_stats_of(p.plan);
    small_run_close(&p);
    return stats;
}

static void test_memory_is_reused(void **state)
{
    esper_plan_stats training = stats_of(spec_cnn(3, 8, 3, 3), 16, true);
    esper_plan_stats inference = stats_of(spec_cnn(3, 8, 3, 3), 16, false);

    (void)state;
    if (training.arena_bytes * 10 > training.arena_bytes_unshared * 7)
        fail_msg("training takes %zu of %zu bytes", training.arena_bytes, training.arena_bytes_unshared);
    if (inference.arena_bytes * 10 > training.arena_bytes * 6)
        fail_msg("inference takes %zu bytes, training %zu", inference.arena_bytes, training.arena_bytes);
    assert_int_equal(inference.n_backward, 0);
}

/* ------------------------------------------------------------------------------------------------ fleets */

static const small_seed fleet_b[] = {{"r0c0", "conv_small", SMALL_TRAINING}, {0}};
static const small_seed fleet_c[] = {{"r0c0", "conv_small", SMALL_TRAINING}, {"r1c1", "norm", SMALL_ADD}, {0}};
static const small_seed fleet_d[] = {{"r0c1", "bottleneck", SMALL_GATE}, {0}};

static small_desc mixed_fleet(const char *backend)
{
    return (small_desc){.backend = backend,
                        .n_threads = 2,
                        .host = small_cnn(),
                        .n_nets = 4,
                        .seeds = {NULL, fleet_b, fleet_c, fleet_d},
                        .network = {0, 1, 2, 3}};
}

static int count_launches(const esper_plan *plan, esper_direction direction, int n_lanes)
{
    const esper_launch *launch;
    int n = 0;

    for (int i = 0; (launch = esper_plan_launch(plan, direction, i)) != NULL; i++)
        n += launch->n_lanes == n_lanes;
    return n;
}

/* The trunk has 11 operations. conv_small is conv, norm, ReLU, scale, add and the straight-through: six launches for
 * both of its networks. norm is a norm, a mix and the blend. bottleneck is conv, ReLU, conv, ReLU, conv, norm, add; its
 * gate mean, linear, ReLU, linear, sigmoid; and the blend. All of it has gradients. */
static void test_fleet_shares_launches(void **state)
{
    small_desc desc = mixed_fleet("null");
    small_fleet fleet;

    (void)state;
    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    for (int d = ESPER_FORWARD; d <= ESPER_BACKWARD; d++) {
        assert_int_equal(count_launches(fleet.plan, (esper_direction)d, 4), 11);
        assert_int_equal(count_launches(fleet.plan, (esper_direction)d, 3), 0);
        assert_int_equal(count_launches(fleet.plan, (esper_direction)d, 2), 6);
        assert_int_equal(count_launches(fleet.plan, (esper_direction)d, 1), 3 + 13);
    }
    small_fleet_close(&fleet);
}

static void check_same_as_alone(const char *backend)
{
    small_desc desc = mixed_fleet(backend);
    static small_fleet together, alone;

    assert_int_equal(small_fleet_open(&together, &desc), ESPER_OK);
    for (uint32_t step = 0; step < 3; step++)
        assert_int_equal(small_fleet_step(&together, step), ESPER_OK);
    for (int k = 0; k < desc.n_nets; k++) {
        small_desc single = desc;

        single.n_nets = 1;
        single.seeds[0] = desc.seeds[k];
        single.network[0] = desc.network[k];
        assert_int_equal(small_fleet_open(&alone, &single), ESPER_OK);
        for (uint32_t step = 0; step < 3; step++)
            assert_int_equal(small_fleet_step(&alone, step), ESPER_OK);
        if (small_fleet_hash(&alone, 0) != small_fleet_hash(&together, k))
            fail_msg("%s: network %d has weights %016llx in the fleet and %016llx alone", backend, k,
                     (unsigned long long)small_fleet_hash(&together, k),
                     (unsigned long long)small_fleet_hash(&alone, 0));
        small_fleet_close(&alone);
    }
    small_fleet_close(&together);
}

static void test_fleet_computes_as_alone(void **state)
{
    (void)state;
    check_same_as_alone("ref");
    check_same_as_alone("cpu");
}

/* ------------------------------------------------------------------------------------------------ planning anew */

static void open_again(small_fleet *fleet)
{
    esper_plan_net nets[SMALL_MAX_NETS];
    esper_plan_desc desc = {fleet->backend, nets, fleet->n_nets, SMALL_SAMPLES, true, NULL};

    for (int k = 0; k < fleet->n_nets; k++)
        nets[k] = (esper_plan_net){
            .net = &fleet->members[k].net, .slab = &fleet->members[k].slab, .pass = &fleet->members[k].pass};
    assert_int_equal(esper_plan_reopen(&desc, &fleet->plan), ESPER_OK);
}

/* A plan in the memory of another, full of what that left there, trains as one in fresh memory. */
static void test_planning_anew(void **state)
{
    small_desc desc = mixed_fleet("cpu");
    static small_fleet fresh, again;
    const void *memory;

    (void)state;
    assert_int_equal(small_fleet_open(&fresh, &desc), ESPER_OK);
    assert_int_equal(small_fleet_open(&again, &desc), ESPER_OK);
    memory = esper_plan_data(again.plan, 0, again.members[0].net.input);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(small_fleet_step(&fresh, i), ESPER_OK);
        assert_int_equal(small_fleet_step(&again, i), ESPER_OK);
        open_again(&again);
        assert_ptr_equal(esper_plan_data(again.plan, 0, again.members[0].net.input), memory);
    }
    for (int k = 0; k < desc.n_nets; k++)
        assert_true(small_fleet_hash(&fresh, k) == small_fleet_hash(&again, k));
    small_fleet_close(&again);
    small_fleet_close(&fresh);
}

/* When planning fails, the old plan goes on. */
static void test_planning_anew_fails(void **state)
{
    small_desc desc = mixed_fleet("cpu");
    static small_fleet fleet;
    esper_plan_desc bad;

    (void)state;
    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    bad = (esper_plan_desc){fleet.backend, NULL, 0, SMALL_SAMPLES, true, NULL};
    assert_int_equal(esper_plan_reopen(&bad, &fleet.plan), ESPER_E_ARG);
    assert_int_equal(small_fleet_step(&fleet, 0), ESPER_OK);
    small_fleet_close(&fleet);
}

/* ------------------------------------------------------------------------------------------------ chains */

typedef struct range {
    const char *begin, *end;
} range;

static int add_range(range *ranges, int n, const void *memory, const esper_view *view)
{
    int64_t samples = esper_blocks_of(SMALL_SAMPLES) * ESPER_BLOCK_SAMPLES; /* blocks are whole */

    if (memory != NULL)
        ranges[n++] = (range){memory, (const char *)memory + view->count * samples * (int64_t)sizeof(float)};
    return n;
}

/* All memory that a launch of one lane touches: data forward; backward gradients, and what data were saved. */
static int add_ranges(range *ranges, int n, const esper_launch *launch)
{
    const esper_op_info *info = esper_op_info_of(launch->kind);
    bool back = launch->direction == ESPER_BACKWARD;

    for (int i = 0; i < info->n_in; i++) {
        const esper_view *in = &launch->lanes[0].in[i];

        if (esper_op_takes_state(launch->kind, i))
            continue;
        n = add_range(ranges, n, back && (info->saved_in & ESPER_BIT(i)) == 0 ? NULL : in->data, in);
        n = add_range(ranges, n, back ? in->grad : NULL, in);
    }
    for (int i = 0; i < info->n_out; i++) {
        const esper_view *out = &launch->lanes[0].out[i];

        n = add_range(ranges, n, back && (info->saved_out & ESPER_BIT(i)) == 0 ? NULL : out->data, out);
        n = add_range(ranges, n, back && i == 0 ? out->grad : NULL, out);
    }
    return n;
}

/* Operations of a chain run by turns, part by part: tensors of theirs are the same memory or have none in common. */
static void check_chain(const esper_program *program, int first)
{
    range ranges[128];
    int n = 0, n_launches = program->chain[first];

    for (int i = first; i < first + n_launches; i++)
        n = add_ranges(ranges, n, &program->launches[i]);
    assert_in_range(n, 1, 127);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            if ((ranges[a].begin != ranges[b].begin || ranges[a].end != ranges[b].end) &&
                ranges[a].begin < ranges[b].end && ranges[b].begin < ranges[a].end)
                fail_msg("%s: launches %d to %d run in one go, and tensors of theirs overlap",
                         program->launches[first].direction == ESPER_FORWARD ? "forward" : "backward", first,
                         first + n_launches - 1);
}

/* The longest chain of a host with two seeds. */
static int check_chains(esper_host host, const small_seed *seeds)
{
    small_desc desc = {.backend = "cpu", .n_threads = 1, .host = host, .n_nets = 1, .seeds = {seeds}, .network = {1}};
    static small_fleet fleet;
    int longest = 0;

    assert_int_equal(small_fleet_open(&fleet, &desc), ESPER_OK);
    for (int d = 0; d < 2; d++) {
        const esper_program *program = esper_plan_program(fleet.plan, (esper_direction)d, 0);

        for (int l = 0; l < program->n_launches; l++) {
            longest = program->chain[l] > longest ? program->chain[l] : longest;
            if (program->chain[l] > 1)
                check_chain(program, l);
        }
    }
    small_fleet_close(&fleet);
    return longest;
}

static void test_chains(void **state)
{
    static const char *const blueprints[] = {"conv_light", "conv_heavy", "bottleneck",
                                             "depthwise",  "attention",  "norm"};
    enum { N = sizeof(blueprints) / sizeof(blueprints[0]) };
    int longest = 0;

    (void)state;
    for (int i = 0; i < 20 * N; i++) {
        small_seed seeds[] = {{"r1c0", blueprints[i % N], (small_mode)(i % SMALL_N_MODES)},
                              {"r0c1", blueprints[i / N % N], (small_mode)(i / 7 % SMALL_N_MODES)},
                              {"r0c0", blueprints[i / 5 % N], (small_mode)(i / 3 % SMALL_N_MODES)},
                              {0}};
        esper_host host = small_cnn();
        int n;

        host.cnn.channels = 1 + i % 11;
        host.cnn.height = 4 + i % 7;
        host.cnn.width = 4 + i % 9;
        n = check_chains(host, seeds);
        longest = n > longest ? n : longest;
    }
    assert_in_range(longest, 3, 16); /* there are some */
}

/* ------------------------------------------------------------------------------------------------ cost */

static void check_flops(const char *name, double got, double expected)
{
    if (fabs(got - expected) > 0.005 * expected)
        fail_msg("%s: %.6g FLOP, expected %.6g", name, got, expected);
}

static void test_flops(void **state)
{
    static const struct {
        const char *name;
        int         blocks, channels, kernel, pools;
        double      forward, both; /* for one sample */
    } hosts[] = {
        {"B8", 3, 8, 3, 3, 1.623e6, 4.426e6},      {"B8D", 5, 8, 3, 5, 2.804e6, 7.970e6},
        {"B16", 3, 16, 3, 3, 5.605e6, 15.929e6},   {"I1", 3, 1, 1, 3, 8.27e3, 18.7e3},
        {"M2", 3, 2, 1, 0, 94.4e3, 271e3},         {"I2D", 5, 2, 1, 5, 29.3e3, 75.6e3},
        {"default", 3, 32, 3, 3, 20.65e6, 60.17e6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        esper_plan_stats stats =
            stats_of(spec_cnn(hosts[i].blocks, hosts[i].channels, hosts[i].kernel, hosts[i].pools), 2, true);

        check_flops(hosts[i].name, stats.forward.flops / 2, hosts[i].forward);
        check_flops(hosts[i].name, (stats.forward.flops + stats.backward.flops) / 2, hosts[i].both);
    }
}

static void test_flops_of_the_transformer(void **state)
{
    esper_plan_stats large = stats_of(spec_transformer(), 1, false);
    esper_plan_stats small = stats_of(small_transformer(0.1f), 3, true);

    (void)state;
    check_flops("forward", large.forward.flops, 15.62e9);
    check_flops("backward against forward", small.backward.flops, 2.0 * small.forward.flops);
}

/* Seeds as the cost model lists them for the base of 8 channels: (forward, both), isolated, at r0c0. */
static void test_flops_of_seeds(void **state)
{
    static const struct {
        const char *blueprint;
        double      forward, both;
    } seeds[] = {
        {"depthwise", 279e3, 688e3},   {"bottleneck", 1442e3, 4194e3},  {"conv_small", 131e3, 262e3},
        {"conv_light", 1180e3, 2359e3}, {"conv_heavy", 2359e3, 5898e3},
    };
    esper_host host = spec_cnn(3, 8, 3, 3);
    esper_plan_stats plain = stats_of(host, 1, true);

    (void)state;
    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
        small_seed list[] = {{"r0c0", seeds[i].blueprint, SMALL_TRAINING}, {0}};
        small_run p = {0};
        esper_plan_stats grown;
        double forward, backward;

        assert_int_equal(small_build(&p.net, &host, list), ESPER_OK);
        small_run_open(&p, "null", 1, true);
        grown = esper_plan_stats_of(p.plan);
        forward = grown.forward.flops - plain.forward.flops;
        backward = grown.backward.flops - plain.backward.flops;
        check_flops(seeds[i].blueprint, forward, seeds[i].forward);
        check_flops(seeds[i].blueprint, forward + backward, seeds[i].both);
        small_run_close(&p);
    }
}

/* relu of 4 x 6 x 6 for 3 samples: read and write forward; gradient read, output read, gradient written backward. */
static void test_bytes(void **state)
{
    small_run p = {0};
    int x;

    (void)state;
    esper_net_init(&p.net);
    x = esper_net_input(&p.net, "x", ESPER_F32, 3, (int[]){4, 6, 6});
    p.net.tensors[x].want_grad = true;
    p.net.output = esper_net_relu(&p.net, x);
    small_run_open(&p, "null", 3, true);
    assert_true(esper_plan_stats_of(p.plan).forward.bytes == 2.0 * 4 * 4 * 6 * 6 * 3);
    assert_true(esper_plan_stats_of(p.plan).backward.bytes == 3.0 * 4 * 4 * 6 * 6 * 3);
    small_run_close(&p);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void check_open_fails(const small_run *p, esper_plan_desc desc, esper_status status, const char *words)
{
    esper_plan_net net = {.net = &p->net, .slab = &p->slab, .pass = &p->pass};
    esper_plan *plan = NULL;
    esper_status got;

    desc.nets = &net;
    got = esper_plan_open(&desc, &plan);
    if (got != status || plan != NULL || strstr(esper_last_error(), words) == NULL)
        fail_msg("status %d, message \"%s\", expected %d with \"%s\"", got, esper_last_error(), status, words);
}

static void test_bad_descriptions(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "norm", SMALL_TRAINING}, {0}};
    esper_host host = small_cnn();
    esper_backend *other;
    esper_net grown, plain;
    small_run p = {0};

    (void)state;
    assert_int_equal(small_build(&p.net, &host, NULL), ESPER_OK);
    small_run_open(&p, "null", 2, false);
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 0, .max_samples = 1}, ESPER_E_ARG,
                     "0 networks");
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 1, .max_samples = 0}, ESPER_E_ARG,
                     "batches of 0");
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 1, .max_samples = 1, .training = true},
                     ESPER_E_ARG, "no gradients");
    assert_int_equal(esper_backend_open("ref", NULL, &other), ESPER_OK);
    check_open_fails(&p, (esper_plan_desc){.backend = other, .n_nets = 1, .max_samples = 1}, ESPER_E_ARG,
                     "another backend");
    esper_backend_close(other);
    assert_int_equal(small_build(&grown, &host, seeds), ESPER_OK);
    plain = p.net;
    p.net = grown; /* grown into a region that its slab has not */
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 1, .max_samples = 1}, ESPER_E_ARG,
                     "region 1 of the slab is too small");
    p.net = plain;
    esper_net_relu(&grown, 999);
    p.net = grown; /* and with a mistake in it */
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 1, .max_samples = 1}, ESPER_E_ARG,
                     "has no input");
    p.net = plain;
    esper_net_fini(&grown);
    assert_int_equal(esper_plan_backward(p.plan), ESPER_E_STATE);
    small_run_close(&p);
}

/* 2^20 elements of 2^31 samples: a size that must be refused before it is asked for. */
static void test_impossible_sizes(void **state)
{
    small_run p = {0};

    (void)state;
    esper_net_init(&p.net);
    p.net.output = esper_net_relu(&p.net, esper_net_input(&p.net, "x", ESPER_F32, 2, (int[]){1024, 1024}));
    small_run_open(&p, "null", 1, false);
    check_open_fails(&p, (esper_plan_desc){.backend = p.backend, .n_nets = 1, .max_samples = INT32_MAX}, ESPER_E_ARG,
                     "use a smaller batch");
    small_run_close(&p);
}

static void check_pass_fails(small_run *p, const char *words)
{
    esper_status got = esper_plan_forward(p->plan);

    if (got != ESPER_E_ARG || strstr(esper_last_error(), words) == NULL)
        fail_msg("status %d, message \"%s\", expected words \"%s\"", got, esper_last_error(), words);
}

static void test_bad_passes(void **state)
{
    esper_host host = small_cnn(), dropping = small_transformer(0.1f);
    uint32_t ids[4] = {0, 1, 2, 3};
    small_run p = {0};

    (void)state;
    host.cnn.height = host.cnn.width = 2; /* the second block works on one pixel */
    host.cnn.pools = 1;
    assert_int_equal(small_build(&p.net, &host, NULL), ESPER_OK);
    small_run_open(&p, "null", 4, true);
    p.pass.n_samples = 5;
    check_pass_fails(&p, "batch of 5 samples: this plan takes 1 to 4");
    p.pass.n_samples = 0;
    check_pass_fails(&p, "batch of 0 samples");
    p.pass.n_samples = 1;
    check_pass_fails(&p, "batch norm cannot train on one value");
    p.pass.training = false;
    assert_int_equal(esper_plan_forward(p.plan), ESPER_OK);
    small_run_close(&p);

    p = (small_run){0};
    assert_int_equal(small_build(&p.net, &dropping, NULL), ESPER_OK);
    small_run_open(&p, "null", 4, true);
    check_pass_fails(&p, "samples' ids");
    p.pass.sample_id = ids;
    assert_int_equal(esper_plan_forward(p.plan), ESPER_OK);
    small_run_close(&p);
}

static void test_allocation_failures(void **state)
{
    esper_host host = small_cnn();
    small_run p = {0};
    esper_plan_net net = {.net = &p.net, .slab = &p.slab, .pass = &p.pass};
    esper_plan_desc desc = {.nets = &net, .n_nets = 1, .max_samples = 2, .training = true};
    esper_mem_stats before, after;
    esper_status status = ESPER_E_NOMEM;
    esper_plan *plan = NULL;
    uint64_t nth;

    (void)state;
    assert_int_equal(small_build(&p.net, &host, fleet_c), ESPER_OK);
    small_run_open(&p, "null", 2, true);
    desc.backend = p.backend;
    for (nth = 1; nth < 100; nth++) {
        esper_mem_stats_get(&before);
        esper_mem_fail_at(nth);
        status = esper_plan_open(&desc, &plan);
        esper_mem_fail_at(0);
        if (status == ESPER_OK)
            break;
        esper_mem_stats_get(&after);
        assert_int_equal(status, ESPER_E_NOMEM);
        assert_null(plan);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(after.live_bytes, before.live_bytes);
    }
    assert_int_equal(status, ESPER_OK);
    assert_true(nth > 10);
    esper_plan_close(plan);
    esper_plan_close(NULL);
    small_run_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_never_shared_too_early),
        cmocka_unit_test(test_memory_is_reused),
        cmocka_unit_test(test_fleet_shares_launches),
        cmocka_unit_test(test_fleet_computes_as_alone),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_planning_anew),
        cmocka_unit_test(test_planning_anew_fails),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_flops_of_the_transformer),
        cmocka_unit_test(test_flops_of_seeds),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_impossible_sizes),
        cmocka_unit_test(test_bad_passes),
        cmocka_unit_test(test_allocation_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
