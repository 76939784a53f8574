/* ctest: timeout=120 cost=6 driver=only */
/* Slots that have opened again, and layers with new channels, on the cuda backend: the same training as on the reference. Few steps:
 * the device is made of the host here. */
#include "grow/growing.h"

#define GROWN                                                                                                     \
    "stack = 2\nwiden = true\nmax_steps = 2\ntrain_limit = 64\nvalid_fraction = 0.3\n"                          \
    "plant = r0c0:norm,r0c0_2:conv_light,wide0:wide,wide0_2:wide,wide1:wide,r1c1:conv_small,r1c1_2:depthwise\n" \
    "policy = scripted\n"

static garden *trained(const char *backend)
{
    garden *g = calloc(1, sizeof(*g));
    char more[512];

    assert_non_null(g);
    snprintf(more, sizeof(more), GROWN "backend = %s\n", backend);
    garden_open(g, more, "1 r0c0_3 germinate blueprint=conv_light tempo=1\n", NULL);
    grow_until(g, 1);
    assert_string_equal(esper_backend_name(g->network->engine->backend), backend);
    return g;
}

static void trains_as_on_the_reference(void **state)
{
    garden *cuda, *ref;

    (void)state;
    esper_blueprint_add_wide();
    cuda = trained("cuda");
    ref = trained("ref");
    check_stage(cuda, esper_slots_find(&cuda->network->slots, "r0c0_3"), ESPER_STAGE_GERMINATED);
    assert_true(fabs(cuda->last.loss_train - ref->last.loss_train) < 1e-4);
    assert_true(fabs(cuda->last.loss_valid - ref->last.loss_valid) < 1e-4);
    garden_close(cuda);
    garden_close(ref);
    free(cuda);
    free(ref);
}

/* Its program begins behind the first block, and takes the images, from which the new channels come, past it. */
static garden *learning_aside(const char *backend)
{
    garden *g = calloc(1, sizeof(*g));
    char more[256];

    assert_non_null(g);
    snprintf(more, sizeof(more),
             "widen = true\nincubation = aside\nmax_steps = 2\ntrain_limit = 64\nvalid_fraction = 0.3\n"
             "plant = r1c0:norm\npolicy = scripted\nbackend = %s\n",
             backend);
    garden_open(g, more, "1 wide0 germinate blueprint=wide tempo=1\n2 wide0 advance\n", NULL);
    grow_until(g, 4);
    return g;
}

static void new_channels_learn_aside_as_on_the_reference(void **state)
{
    garden *cuda = learning_aside("cuda"), *ref = learning_aside("ref");
    int k = esper_slots_find(&ref->network->slots, "wide0");
    const esper_slab *slab = &cuda->network->slab;
    size_t n, bytes;
    const float *wanted = region_of(ref->network, ESPER_FAMILY_PARAM, k + 1, &n);
    float *found = calloc(n, sizeof(*found));
    double moved = 0.0;

    (void)state;
    check_stage(cuda, k, ESPER_STAGE_TRAINING);
    assert_non_null(found);
    bytes = n * sizeof(*found);
    check_good(
        esper_backend_read(slab->backend, found, slab->family[ESPER_FAMILY_PARAM] + slab->param_begin[k + 1], bytes));
    for (size_t i = 0; i < n; i++) {
        moved = fmax(moved, fabs((double)wanted[i]));
        if (!(fabs((double)found[i] - (double)wanted[i]) <= 1e-4))
            fail_msg("weight %zu of new channels: %g, %g on the reference", i, (double)found[i], (double)wanted[i]);
    }
    assert_true(moved > 0.01);
    assert_true(fabs(esper_growth_look_at(cuda->growth).trial[k].value -
                     esper_growth_look_at(ref->growth).trial[k].value) < 1e-9);
    free(found);
    garden_close(cuda);
    garden_close(ref);
    free(cuda);
    free(ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trains_as_on_the_reference),
                                       cmocka_unit_test(new_channels_learn_aside_as_on_the_reference)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
