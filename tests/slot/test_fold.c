/* Growing costs nothing when it does not grow: an empty slot adds no operation, and a fossil is as if the network had been
 * built with it, in the program's text, in its launches, and in what the backend makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "slot/splice.h"
#include "support/grown_slots.h"
#include "support/small_net.h"

enum { N_SAMPLES = 19, N_BACKENDS = 2, MAX_LIST = ESPER_MAX_SLOTS + 1 };

static const char *const backends[N_BACKENDS] = {"ref", "cpu"};

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* ------------------------------------------------------------------------------------------------ programs */

/* The same network by hand: each blueprint in line behind its boundary, in regions of its own or all in the host's. */
typedef struct in_line {
    const grown_seed *seeds;
    const esper_host *host;
    bool              one_region;
} in_line;

static int put_in_line(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    const in_line *built = context;
    const esper_blueprint *blueprint;
    esper_blueprint_how how = {.blend = ESPER_BLEND_ADD};
    char prefix[ESPER_SLOT_CHARS + 2];

    for (const grown_seed *seed = built->seeds; seed != NULL && seed->slot != NULL; seed++) {
        if (strcmp(seed->slot, boundary->slot) != 0)
            continue;
        check_good(esper_blueprint_find(built->host->topology, seed->blueprint, &blueprint));
        snprintf(prefix, sizeof(prefix), "%s.", boundary->slot);
        esper_net_enter(net, prefix, built->one_region ? 0 : boundary->order + 1);
        if (built->host->topology == ESPER_TOPOLOGY_TRANSFORMER) {
            how.heads = built->host->transformer.heads;
            how.dropout = built->host->transformer.dropout;
        }
        how.wide = boundary->wide.channels > 0 ? &boundary->wide : NULL;
        return esper_blueprint_build(blueprint, net, x, how);
    }
    return x;
}

static void build_static(esper_net *net, const esper_host *host, const grown_seed *seeds, bool one_region)
{
    in_line built = {.seeds = seeds, .host = host, .one_region = one_region};

    esper_net_init(net);
    net->hook = put_in_line;
    net->hook_context = &built;
    check_good(esper_host_build(host, net));
    net->hook = NULL;
}

static void build_grown(esper_net *net, const esper_host *host, const grown_seed *seeds, bool training)
{
    static esper_slots slots;
    esper_splice splice = {.topology = host->topology, .slots = &slots, .training = training};

    check_good(grown_slots(&slots, host, seeds));
    esper_net_init(net);
    check_good(esper_splice_build(&splice, host, net));
}

static void check_text(const esper_net *got, const esper_net *expected, const char *what)
{
    char *a = small_text(got), *b = small_text(expected);
    size_t at = 0;

    while (a[at] != '\0' && a[at] == b[at])
        at++;
    while (at > 0 && a[at - 1] != '\n')
        at--;
    if (strcmp(a, b) != 0)
        fail_msg("%s: the text differs:\n  grown:  %.*s\n  static: %.*s", what, (int)strcspn(a + at, "\n"), a + at,
                 (int)strcspn(b + at, "\n"), b + at);
    assert_true(strlen(a) > 0);
    free(a);
    free(b);
}

/* ------------------------------------------------------------------------------------------------ what a backend makes of it */

static bool same_view(const esper_view *a, const esper_view *b)
{
    return a->count == b->count && a->rank == b->rank && memcmp(a->dim, b->dim, sizeof(a->dim)) == 0 &&
           a->add == b->add && (a->data == NULL) == (b->data == NULL) && (a->grad == NULL) == (b->grad == NULL);
}

static bool same_lane(const esper_lane *a, const esper_lane *b)
{
    for (int i = 0; i < ESPER_OP_MAX_IN; i++)
        if (!same_view(&a->in[i], &b->in[i]))
            return false;
    for (int i = 0; i < ESPER_OP_MAX_OUT; i++)
        if (!same_view(&a->out[i], &b->out[i]))
            return false;
    return (a->scratch == NULL) == (b->scratch == NULL);
}

static void check_program(const esper_program *got, const esper_program *expected, const char *what)
{
    if (got->n_launches != expected->n_launches || got->flops != expected->flops)
        fail_msg("%s: %d launches, %.0f operations grown; %d, %.0f static", what, got->n_launches, got->flops,
                 expected->n_launches, expected->flops);
    for (int i = 0; i < got->n_launches; i++) {
        const esper_launch *a = &got->launches[i], *b = &expected->launches[i];

        if (a->kind != b->kind || a->direction != b->direction || a->variant != b->variant ||
            a->n_lanes != b->n_lanes || got->chain[i] != expected->chain[i] || !same_lane(a->lanes, b->lanes))
            fail_msg("%s: launch %d is %s grown, %s static, or another one of its kind", what, i,
                     esper_op_info_of(a->kind)->name, esper_op_info_of(b->kind)->name);
    }
}

static void check_plans(const esper_plan *got, const esper_plan *expected, bool training, const char *what)
{
    esper_plan_stats a = esper_plan_stats_of(got), b = esper_plan_stats_of(expected);

    if (a.n_forward != b.n_forward || a.n_backward != b.n_backward || a.arena_bytes != b.arena_bytes)
        fail_msg("%s: %d and %d launches, %zu bytes grown; %d and %d, %zu static", what, a.n_forward, a.n_backward,
                 a.arena_bytes, b.n_forward, b.n_backward, b.arena_bytes);
    assert_true(a.n_forward > 0 && (a.n_backward > 0) == training);
    check_program(esper_plan_program(got, ESPER_FORWARD, 0), esper_plan_program(expected, ESPER_FORWARD, 0), what);
    if (training)
        check_program(esper_plan_program(got, ESPER_BACKWARD, 0), esper_plan_program(expected, ESPER_BACKWARD, 0),
                      what);
}

/* Both networks as both backends plan them. */
static void check_same(const esper_host *host, const grown_seed *seeds, bool training, bool one_region,
                       const char *what)
{
    for (int b = 0; b < N_BACKENDS; b++) {
        small_run grown = {0}, built = {0};
        char where[160];

        snprintf(where, sizeof(where), "%s, %s, %s%s", what, backends[b], training ? "training" : "inference",
                 one_region ? ", all of it the host's" : "");
        build_grown(&grown.net, host, seeds, training);
        build_static(&built.net, host, seeds, one_region);
        if (!one_region)
            check_text(&grown.net, &built.net, where);
        small_run_open(&grown, backends[b], N_SAMPLES, training);
        small_run_open(&built, backends[b], N_SAMPLES, training);
        check_plans(grown.plan, built.plan, training, where);
        small_run_close(&built);
        small_run_close(&grown);
    }
}

static void check_all_ways(const esper_host *host, const grown_seed *seeds, const char *what)
{
    check_same(host, seeds, true, false, what);
    check_same(host, seeds, false, false, what);
    check_same(host, seeds, true, true, what);
}

/* ------------------------------------------------------------------------------------------------ the tests */

static esper_host host_of(esper_topology topology)
{
    esper_host host = topology == ESPER_TOPOLOGY_CNN   ? small_cnn()
                      : topology == ESPER_TOPOLOGY_MLP ? small_mlp(0.0f)
                                                       : small_transformer(0.0f);

    host.with_loss = true;
    return host;
}

/* The names of a host's slots; how many there are. */
static int slots_of(const esper_host *host, char ids[ESPER_MAX_SLOTS][ESPER_SLOT_CHARS])
{
    esper_net net;
    int n;

    build_static(&net, host, NULL, false);
    n = net.n_boundaries;
    for (int i = 0; i < n; i++)
        memcpy(ids[i], net.boundaries[i].slot, ESPER_SLOT_CHARS);
    esper_net_fini(&net);
    assert_true(n > 1);
    return n;
}

static void check_family(esper_topology topology, int stack)
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    esper_host host = host_of(topology);
    char ids[ESPER_MAX_SLOTS][ESPER_SLOT_CHARS], what[96];
    grown_seed all[MAX_LIST] = {0};
    int n_slots, n_blueprints = 0;

    host.stack = stack;
    n_slots = slots_of(&host, ids);
    for (; list[n_blueprints] != NULL; n_blueprints++) {
        grown_seed one[2] = {{ids[n_blueprints % n_slots], list[n_blueprints]->name, ESPER_STAGE_FOSSILIZED, 0, 0, 0}};

        snprintf(what, sizeof(what), "%s in %s", one[0].blueprint, one[0].slot);
        check_all_ways(&host, one, what);
    }
    for (int first = 0; first < n_blueprints;
         first += n_slots) { /* every slot at once, until all have had their turn */
        for (int k = 0; k < n_slots; k++)
            all[k] = (grown_seed){
                ids[k], list[(first + k) % n_blueprints]->name, ESPER_STAGE_FOSSILIZED, ESPER_BLEND_ADD, 0, false};
        snprintf(what, sizeof(what), "%s, %s and more", all[0].blueprint, all[1].blueprint);
        check_all_ways(&host, all, what);
    }
}

static void test_fossils_are_folded(void **state)
{
    (void)state;
    for (int stack = 0; stack <= 2; stack += 2) { /* one seed at a place, and three */
        check_family(ESPER_TOPOLOGY_CNN, stack);
        check_family(ESPER_TOPOLOGY_TRANSFORMER, stack);
        check_family(ESPER_TOPOLOGY_MLP, stack);
    }
}

static void test_new_channels_are_folded(void **state)
{
    static const grown_seed seeds[] = {{"wide1", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"wide1_2", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"r0c0", "conv_light", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {"wide0", "wide", ESPER_STAGE_FOSSILIZED, 0, 0, false},
                                       {0}};
    esper_host host = host_of(ESPER_TOPOLOGY_CNN);

    (void)state;
    host.stack = 1;
    host.widen = true;
    esper_blueprint_add_wide();
    check_all_ways(&host, seeds, "new channels");
}

/* A seed that holds costs no more than a fossil; nor does one that blends and has arrived. */
static void test_full_weight_is_folded(void **state)
{
    static const int stages[] = {ESPER_STAGE_HOLDING, ESPER_STAGE_BLENDING};
    esper_host host = host_of(ESPER_TOPOLOGY_CNN);

    (void)state;
    for (int i = 0; i < 2; i++) {
        grown_seed seeds[] = {{"r0c0", "conv_light", stages[i], ESPER_BLEND_ADD, 1.0, false}, {0}};

        check_same(&host, seeds, true, false, "at full weight");
    }
}

static void check_plain(const esper_host *host, const grown_seed *seeds, bool training, const char *what)
{
    esper_net grown, plain;

    build_grown(&grown, host, seeds, training);
    build_static(&plain, host, NULL, false);
    check_text(&grown, &plain, what);
    assert_int_equal(grown.n_ops, plain.n_ops);
    esper_net_fini(&plain);
    esper_net_fini(&grown);
}

/* The program of the plain host: slots that are empty, whose seed is not yet or no longer part of it, and at inference a
 * seed that only learns or has no weight. */
static void test_empty_slots_cost_nothing(void **state)
{
    static const int idle[] = {ESPER_STAGE_GERMINATED, ESPER_STAGE_PRUNED, ESPER_STAGE_EMBARGOED,
                               ESPER_STAGE_RESETTING};
    static const char *const blueprints[] = {"norm", "attention"};

    (void)state;
    for (int family = 0; family < 2; family++) {
        esper_host host = host_of(family == 0 ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER);
        grown_seed seeds[] = {{"r0c0", blueprints[family], 0, ESPER_BLEND_ADD, 0.0, false}, {0}};

        check_plain(&host, NULL, true, "empty, training");
        check_plain(&host, NULL, false, "empty, inference");
        for (int i = 0; i < 4; i++) {
            seeds[0].stage = idle[i];
            check_plain(&host, seeds, true, esper_stage_name(idle[i]));
            check_plain(&host, seeds, false, esper_stage_name(idle[i]));
        }
        seeds[0].stage = ESPER_STAGE_TRAINING;
        check_plain(&host, seeds, false, "training, inference");
        seeds[0].stage = ESPER_STAGE_BLENDING;
        check_plain(&host, seeds, false, "no weight, inference");
    }
}

/* The comparison can fail: a seed that blends is another program. */
static void test_a_blend_is_seen(void **state)
{
    esper_host host = host_of(ESPER_TOPOLOGY_CNN);
    grown_seed seeds[] = {{"r0c0", "conv_light", ESPER_STAGE_BLENDING, ESPER_BLEND_ADD, 0.5, false}, {0}};
    esper_net grown, built;
    char *a, *b;

    (void)state;
    build_grown(&grown, &host, seeds, true);
    build_static(&built, &host, seeds, false);
    a = small_text(&grown);
    b = small_text(&built);
    assert_string_not_equal(a, b);
    assert_int_equal(grown.n_ops, built.n_ops + 1);
    free(a);
    free(b);
    esper_net_fini(&grown);
    esper_net_fini(&built);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fossils_are_folded),      cmocka_unit_test(test_full_weight_is_folded),
        cmocka_unit_test(test_new_channels_are_folded), cmocka_unit_test(test_empty_slots_cost_nothing),
        cmocka_unit_test(test_a_blend_is_seen),
    };

    return cmocka_run_group_tests_name("slot/fold", tests, NULL, NULL);
}
