/* Everything a network needs of the backend's memory, without touching it: inputs, steps, losses, weights. */
/* ctest: sealed=also */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "nn/init.h"
#include "support/small_net.h"

static bool is_sealed(const esper_backend *backend)
{
    return strstr(esper_backend_identity(backend), "/sealed") != NULL;
}

static void open_fleet(small_fleet *fleet, esper_host host, esper_op_kind optimiser)
{
    static const small_seed seeds[] = {{"r0c0", "norm", SMALL_ADD}, {NULL, NULL, SMALL_ADD}};
    small_desc desc = {.backend = "ref", .n_threads = 2, .host = host, .n_nets = 2, .network = {1, 2}};

    desc.optimiser = optimiser;
    if (host.topology == ESPER_TOPOLOGY_CNN)
        desc.seeds[1] = seeds;
    if (small_fleet_open(fleet, &desc) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

/* Runs in a child, whose end tells. */
static int signal_of(void (*touch)(float *memory), float *memory)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would tell of it at length */
        touch(memory);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void read_it(float *memory)
{
    volatile float value = memory[0];

    (void)value;
}

static void write_it(float *memory)
{
    *(volatile float *)memory = 1.0f;
}

/* The proof is worth as much as the lock. */
static void test_touching_is_a_fault(void **state)
{
    static small_fleet fleet;
    int expected;

    (void)state;
    open_fleet(&fleet, small_cnn(), ESPER_OP_SGD);
    expected = is_sealed(fleet.backend) ? SIGSEGV : 0;
    assert_int_equal(signal_of(read_it, fleet.members[0].slab.family[ESPER_FAMILY_PARAM]), expected);
    assert_int_equal(signal_of(write_it, fleet.members[0].slab.family[ESPER_FAMILY_GRAD]), expected);
    assert_int_equal(signal_of(read_it, esper_plan_data(fleet.plan, 1, fleet.members[1].net.input)), expected);
    small_fleet_close(&fleet);
}

static void check_training(esper_host host, esper_op_kind optimiser)
{
    static small_fleet fleet;
    double first[2];

    open_fleet(&fleet, host, optimiser);
    for (uint32_t step = 0; step < 12; step++) {
        assert_int_equal(small_fleet_step(&fleet, 0), ESPER_OK); /* one batch, learned by heart */
        for (int k = 0; k < 2; k++) {
            if (step == 0)
                first[k] = small_fleet_loss(&fleet, k);
            if (!(esper_optim_norm(fleet.optim, k, 0) > 0.0))
                fail_msg("network %d has a gradient of norm %g", k, esper_optim_norm(fleet.optim, k, 0));
        }
    }
    for (int k = 0; k < 2; k++)
        if (!(small_fleet_loss(&fleet, k) < first[k]))
            fail_msg("network %d: a loss of %g after %g", k, small_fleet_loss(&fleet, k), first[k]);
    small_fleet_close(&fleet);
}

static void test_training(void **state)
{
    (void)state;
    check_training(small_cnn(), ESPER_OP_SGD);
    check_training(small_cnn(), ESPER_OP_ADAMW);
    check_training(small_transformer(0.1f), ESPER_OP_SGD); /* dropout reads the samples' ids */
}

/* A mirror has the families it is asked for and no others, with the values of the slab. */
static void test_mirror(void **state)
{
    static small_fleet fleet;
    const small_member *member = &fleet.members[1];
    esper_slab mirror;
    uint64_t hash = 0;

    (void)state;
    open_fleet(&fleet, small_cnn(), ESPER_OP_SGD);
    assert_int_equal(small_fleet_step(&fleet, 0), ESPER_OK);
    assert_int_equal(esper_slab_mirror(&member->slab,
                                       ESPER_FAMILY_BIT(ESPER_FAMILY_PARAM) | ESPER_FAMILY_BIT(ESPER_FAMILY_BUFFER),
                                       &mirror),
                     ESPER_OK);
    assert_null(mirror.family[ESPER_FAMILY_GRAD]);
    assert_null(mirror.family[ESPER_FAMILY_MOMENT2]);
    for (int t = 0; t < member->net.n_tensors; t++) {
        const esper_tensor *tensor = &member->net.tensors[t];
        bool is_param = tensor->role == ESPER_ROLE_PARAM;

        if (is_param || tensor->role == ESPER_ROLE_BUFFER)
            hash = esper_weight_hash_add(
                hash, tensor, esper_slab_at(&mirror, is_param ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor));
    }
    assert_true(hash == small_fleet_hash(&fleet, 1));
    esper_slab_fini(&mirror);
    small_fleet_close(&fleet);
}

/* Samples beyond those that are written or filled keep what they have. */
static void test_plan_copies(void **state)
{
    static small_fleet fleet;
    float in[SMALL_SAMPLES * 192], out[SMALL_SAMPLES * 192];
    int input;

    (void)state;
    open_fleet(&fleet, small_cnn(), ESPER_OP_SGD);
    input = fleet.members[1].net.input;
    for (int i = 0; i < SMALL_SAMPLES * 192; i++)
        in[i] = (float)i;
    assert_int_equal(esper_plan_write(fleet.plan, NULL, 1, input, in, SMALL_SAMPLES), ESPER_OK);
    assert_int_equal(esper_plan_fill(fleet.plan, NULL, 1, input, -1.0f, 2), ESPER_OK);
    assert_int_equal(esper_plan_read(fleet.plan, NULL, 1, input, out, SMALL_SAMPLES), ESPER_OK);
    assert_int_equal(esper_backend_sync(fleet.backend), ESPER_OK);
    for (int i = 0; i < SMALL_SAMPLES * 192; i++)
        if (out[i] != (i < 2 * 192 ? -1.0f : in[i]))
            fail_msg("element %d is %g", i, (double)out[i]);
    small_fleet_close(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_touching_is_a_fault),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_mirror),
        cmocka_unit_test(test_plan_copies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
