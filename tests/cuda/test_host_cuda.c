/* ctest: cuda=only */
/* The GPU that is made of the host: exchanges, barriers and shared memory are a GPU's, and what would hang there or be by chance
 * ends in a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/wait.h>
#include <unistd.h>

#include "cuda/host_cuda_run.h"
#include "tensor/cuda/kernels.h"

static double numbers[1024];

static void launch(const char *kernel, int blocks, int lanes, int threads, int shared)
{
    static esper_cuda_lanes argument;

    argument.lane[0] = (const esper_lane *)numbers;
    host_cuda_launch(kernel, blocks, lanes, threads, shared, &argument);
}

static void test_sum(void **state)
{
    static const int threads[] = {32, 64, 1024, 256};

    (void)state;
    for (int backwards = 0; backwards <= 1; backwards++)
        for (int k = 0; k < 4; k++) {
            host_cuda_reverse(backwards);
            memset(numbers, 0, sizeof(numbers));
            launch("trial_sum", 3, 2, threads[k], 0);
            for (int i = 0; i < 6; i++)
                assert_true(numbers[i] == threads[k] * (threads[k] + 1) / 2);
            assert_true(numbers[6] == 0);
        }
    host_cuda_reverse(false);
}

static void test_exchanges(void **state)
{
    (void)state;
    for (int backwards = 0; backwards <= 1; backwards++) {
        memset(numbers, 0, sizeof(numbers));
        host_cuda_reverse(backwards);
        launch("trial_exchanges", 1, 1, 64, 0);
        for (int t = 0; t < 64; t++) {
            int lane = t % 32;
            const double *found = numbers + 8 * t;

            assert_true(found[0] == 5);
            assert_true(found[1] == (lane + 3 < 32 ? lane + 3 : lane));
            assert_true(found[2] == (lane >= 3 ? lane - 3 : lane));
            assert_true(found[3] == (lane ^ 1));
            assert_true(found[4] == 0x49249249);
            assert_true(found[5] == 1);
            assert_true(found[6] == (lane < 8 ? 7 - lane : 0));
            assert_true(found[7] == 1);
        }
    }
    host_cuda_reverse(false);
}

/* Tensor cores: one product of TF32 is off by 2^-11 of the factors, three by 2^-21. */
static void test_products(void **state)
{
    (void)state;
    for (int k_count = 4; k_count <= 8; k_count += 4) {
        for (int i = 0; i < 1024; i++)
            numbers[i] = (float)((double)((uint32_t)i * 2654435761u >> 4) / 134217728.0 - 1.0);
        launch(k_count == 8 ? "trial_products_8" : "trial_products_4", 1, 1, 64, 0);
        for (int warp = 0; warp < 2; warp++)
            for (int m = 0; m < 16; m++)
                for (int n = 0; n < 8; n++) {
                    const double *own = numbers + 512 * warp;
                    double exact = 0, size = 0;

                    for (int k = 0; k < k_count; k++) {
                        double product = own[m * k_count + k] * own[128 + k * 8 + n];

                        exact += product;
                        size += fabs(product);
                    }
                    assert_true(fabs(own[192 + m * 8 + n] - exact) <= size * 0x1p-10);
                    assert_true(fabs(own[320 + m * 8 + n] - exact) <= size * 0x1p-20);
                }
    }
}

/* In every block anew. */
static void test_unwritten(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        launch("trial_unwritten", 2, 1, 32, 32 * sizeof(float));
        for (int i = 0; i < 32; i++)
            assert_true(isnan(numbers[i]));
    }
}

/* A race depends on who goes first. */
static void test_race(void **state)
{
    double first[64];

    (void)state;
    launch("trial_race", 1, 1, 64, 0);
    memcpy(first, numbers, sizeof(first));
    host_cuda_reverse(true);
    launch("trial_race", 1, 1, 64, 0);
    host_cuda_reverse(false);
    assert_memory_not_equal(first, numbers, sizeof(first));
}

typedef struct death {
    const char *kernel;
    int         threads, shared;
    const char *sentence;
} death;

/* What a process says that dies of it. */
static void last_words(const death *d, char *text, size_t chars)
{
    int pipes[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(pipes), 0);
    child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        signal(SIGILL, SIG_DFL); /* cmocka's would make them a failed test */
        signal(SIGSEGV, SIG_DFL);
        launch(d->kernel, 1, 1, d->threads, d->shared);
        _exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], text + n, chars - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void test_deaths(void **state)
{
    static const death deaths[] = {
        {"trial_hang", 64, 0, "the block hangs: it waits for its block at line"},
        {"trial_two_barriers", 64, 0, "the block meets at two barriers"},
        {"trial_lost_lane", 32, 0, "but thread 9 has returned"},
        {"trial_absent_source", 32, 0, "lane 0 reads lane 8, which takes no part (mask 000000ff)"},
        {"trial_crooked", 32, 0, ""}, /* a fault, as on a GPU */
        {"trial_unwritten", 32, 0, "asks for shared memory, and the launch gave none"},
        {"trial_unwritten", 64, 0, "more than it is compiled for"},
        {"trial_unwritten", 32, HOST_CUDA_MAX_SHARED + 1, "more shared memory than there is"},
        {"trial_of_nothing", 32, 0, "there is no such kernel"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++) {
        char text[4096];

        last_words(&deaths[i], text, sizeof(text));
        if (strstr(text, deaths[i].sentence) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", deaths[i].kernel, deaths[i].sentence, text);
    }
    assert_false(host_cuda_has("trial_of_nothing"));
    assert_true(host_cuda_has("trial_hang"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum),  cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_products), cmocka_unit_test(test_unwritten),
        cmocka_unit_test(test_race), cmocka_unit_test(test_deaths),
    };

    return cmocka_run_group_tests_name("host cuda", tests, NULL, NULL);
}
