/* ctest: timeout=120 cost=3 driver=only */
/* What the cuda backend does with copies, fills and launches: of all sizes, in order, from many threads, and where the driver
 * refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "device/cuda_driver.h"
#include "support/cuda_driver.h"
#include "tensor/backend.h"

#define assert_ok(call) assert_int_equal((call), ESPER_OK)

static esper_backend *open_backend(void)
{
    esper_backend *be;

    assert_ok(esper_backend_open("cuda", NULL, &be));
    return be;
}

static void fill_bytes(unsigned char *bytes, size_t n, unsigned salt)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 31 + salt);
}

/* In, from place to place, and out again, with neighbours that stay as they are. */
static void test_bytes_of_all_sizes_arrive(void **state)
{
    static const size_t sizes[] = {1, 3, 4, 7, 16, 17, 64, 1000, 65536, 65537, 300001, (1 << 20) + 12};
    esper_backend *be = open_backend();

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        size_t n = sizes[s], room = n + 64;
        unsigned char *given = malloc(n), *back = malloc(room);
        void *a, *b;

        fill_bytes(given, n, (unsigned)s);
        assert_ok(esper_backend_alloc(be, room, &a));
        assert_ok(esper_backend_alloc(be, room, &b));
        assert_ok(esper_backend_copy_in(be, NULL, a, given, n));
        memset(given, 0, n); /* the caller may do so at once */
        assert_ok(esper_backend_copy(be, NULL, (char *)b + 4, a, n));
        assert_ok(esper_backend_read(be, back, b, room));
        fill_bytes(given, n, (unsigned)s);
        assert_memory_equal(back + 4, given, n);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(back[i], 0);
        for (size_t i = n + 4; i < room; i++)
            assert_int_equal(back[i], 0);
        esper_backend_release(be, a);
        esper_backend_release(be, b);
        free(given);
        free(back);
    }
    esper_backend_close(be);
}

enum { N_ITEMS = 37, N_FLOATS = 100, N_TURNS = 9 };

typedef struct shared {
    esper_backend *be;
    float         *memory; /* (N_ITEMS, N_FLOATS) */
    int            n_wrong, n_done[N_ITEMS];
} shared;

/* Every item works on its own part, in an order that matters, and waits now and then. */
static void do_item(void *context, int item, esper_backend_stream *stream)
{
    shared *all = context;
    float *mine = all->memory + item * N_FLOATS, values[N_FLOATS], back[N_FLOATS];

    for (int turn = 0; turn < N_TURNS + item % 3; turn++) {
        for (int i = 0; i < N_FLOATS; i++)
            values[i] = (float)(item * 1000 + turn * 10 + i);
        if (esper_backend_fill(all->be, stream, mine, -1.0f, N_FLOATS) != ESPER_OK ||
            esper_backend_copy_in(all->be, stream, mine, values, sizeof(values) / 2) != ESPER_OK ||
            esper_backend_copy(all->be, stream, mine + N_FLOATS / 2, mine, sizeof(values) / 4) != ESPER_OK ||
            esper_backend_copy_out(all->be, turn % 2 == 0 ? stream : NULL, back, mine, sizeof(back)) != ESPER_OK ||
            esper_backend_wait(all->be, stream) != ESPER_OK)
            all->n_wrong++;
        for (int i = 0; i < N_FLOATS; i++) {
            float wanted = i < N_FLOATS / 2 ? values[i] : i < N_FLOATS * 3 / 4 ? values[i - N_FLOATS / 2] : -1.0f;

            if (back[i] != wanted)
                all->n_wrong++;
        }
    }
    all->n_done[item]++;
}

static void test_items_have_nothing_to_do_with_each_other(void **state)
{
    shared all = {.be = open_backend()};
    void *memory;

    (void)state;
    assert_ok(esper_backend_alloc(all.be, N_ITEMS * N_FLOATS * sizeof(float), &memory));
    all.memory = memory;
    esper_backend_each(all.be, N_ITEMS, do_item, &all);
    assert_int_equal(all.n_wrong, 0);
    for (int i = 0; i < N_ITEMS; i++)
        assert_int_equal(all.n_done[i], 1);
    esper_backend_each(all.be, 1, do_item, &all);
    assert_int_equal(all.n_done[0], 2);
    assert_int_equal(all.n_wrong, 0);
    esper_backend_release(all.be, memory);
    esper_backend_close(all.be);
}

enum { N_ROUNDS = 23 };

/* Submits turn by turn, and looks at each turn while the next ones are under way; some items wait for all now and then, some lag
 * behind, and some write nothing for a while. */
static void submit_item(void *context, int item, esper_backend_stream *stream)
{
    shared *all = context;
    float *mine = all->memory + item * N_FLOATS, back[N_ROUNDS][N_FLOATS] = {{0}};
    uint64_t tickets[N_ROUNDS], waits = (uint64_t)item % 3; /* behind which a turn is looked at */

    for (int turn = 0; turn < N_ROUNDS; turn++) {
        float value = (float)(item * 100 + turn);
        int looked_at = turn - (int)waits;

        if (item % 5 == 4)
            usleep(1000);
        if ((turn > 0 && esper_backend_copy(all->be, stream, mine + 1, mine, sizeof(float)) != ESPER_OK) ||
            esper_backend_copy_in(all->be, stream, mine, &value, sizeof(value)) != ESPER_OK ||
            esper_backend_submit(all->be, stream, NULL) != ESPER_OK ||
            esper_backend_copy_out(all->be, stream, back[turn], mine, 2 * sizeof(float)) != ESPER_OK ||
            esper_backend_submit(all->be, stream, &tickets[turn]) != ESPER_OK)
            all->n_wrong++;
        if (item % 7 == 6 && turn % 4 == 3 && esper_backend_wait(all->be, stream) != ESPER_OK)
            all->n_wrong++;
        if (looked_at < 0)
            continue;
        if (esper_backend_wait_for(all->be, stream, tickets[looked_at]) != ESPER_OK)
            all->n_wrong++;
        if (back[looked_at][0] != (float)(item * 100 + looked_at) ||
            (looked_at > 0 && back[looked_at][1] != (float)(item * 100 + looked_at - 1)))
            all->n_wrong++;
    }
    if (esper_backend_wait(all->be, stream) != ESPER_OK || back[N_ROUNDS - 1][0] != (float)(item * 100 + N_ROUNDS - 1))
        all->n_wrong++;
    all->n_done[item]++;
}

static void test_pages_are_done_in_their_order(void **state)
{
    shared all = {.be = open_backend()};
    esper_backend_figures figures;
    void *memory;

    (void)state;
    assert_ok(esper_backend_alloc(all.be, N_ITEMS * N_FLOATS * sizeof(float), &memory));
    all.memory = memory;
    esper_backend_each(all.be, N_ITEMS, submit_item, &all);
    assert_int_equal(all.n_wrong, 0);
    for (int i = 0; i < N_ITEMS; i++)
        assert_int_equal(all.n_done[i], 1);
    esper_backend_figures_get(all.be, &figures);
    assert_int_equal(figures.n_pages, 2 * N_ITEMS * N_ROUNDS);
    assert_in_range(figures.n_rounds, 2 * N_ROUNDS, 2 * N_ITEMS * N_ROUNDS);
    esper_backend_each(all.be, 1, submit_item, &all); /* on the stream that is there from the start */
    assert_int_equal(all.n_wrong, 0);
    esper_backend_release(all.be, memory);
    esper_backend_close(all.be);
}

/* As long as threads submit before they wait, the device has the next round: a wait is for the one before. */
static void wait_behind(void *context, int item, esper_backend_stream *stream)
{
    shared *all = context;
    float *mine = all->memory + item * N_FLOATS;
    uint64_t ticket = 0, before = 0;

    for (int turn = 0; turn < N_ROUNDS; turn++) {
        if (esper_backend_fill(all->be, stream, mine, (float)turn, N_FLOATS) != ESPER_OK ||
            esper_backend_submit(all->be, stream, &ticket) != ESPER_OK)
            all->n_wrong++;
        if (before > 0 && esper_backend_wait_for(all->be, stream, before) != ESPER_OK)
            all->n_wrong++;
        before = ticket;
    }
}

static void test_one_thread_asks_the_device(void **state)
{
    shared all = {.be = open_backend()};
    esper_backend_figures figures;
    int before, waits;
    void *memory;

    (void)state;
    assert_ok(esper_backend_alloc(all.be, N_ITEMS * N_FLOATS * sizeof(float), &memory));
    all.memory = memory;
    before = cuda_driver_waits();
    esper_backend_each(all.be, N_ITEMS, wait_behind, &all);
    waits = cuda_driver_waits() - before;
    esper_backend_figures_get(all.be, &figures);
    assert_int_equal(all.n_wrong, 0);
    if (!cuda_driver_is_real() && waits > figures.n_rounds)
        fail_msg("%d waits for %d rounds of %d threads", waits, (int)figures.n_rounds, N_ITEMS);
    esper_backend_release(all.be, memory);
    esper_backend_close(all.be);
}

/* What a round cannot do is told to all who had a part in it, once, and the next one is as good as any. */
static void fail_one_round(void *context, int item, esper_backend_stream *stream)
{
    shared *all = context;
    float *mine = all->memory + item * N_FLOATS, back = 0.0f;
    uint64_t ticket;

    if (esper_backend_fill(all->be, stream, mine, 1.0f, N_FLOATS) == ESPER_OK &&
        esper_backend_submit(all->be, stream, &ticket) == ESPER_OK &&
        esper_backend_wait_for(all->be, stream, ticket) == ESPER_OK)
        all->n_done[item] = 1; /* it went well */
    if (esper_backend_fill(all->be, stream, mine, 2.0f, N_FLOATS) != ESPER_OK ||
        esper_backend_copy_out(all->be, stream, &back, mine, sizeof(back)) != ESPER_OK ||
        esper_backend_wait(all->be, stream) != ESPER_OK || back != 2.0f)
        all->n_wrong++;
}

static void test_a_round_may_fail(void **state)
{
    int n_told_all = 0, n_told_none = 0;

    (void)state;
    if (cuda_driver_is_real())
        skip(); /* nothing fails there at a word */
    for (uint64_t nth = 1; nth < 12; nth++) {
        shared all = {.be = open_backend()};
        void *memory;

        assert_ok(esper_backend_alloc(all.be, N_ITEMS * N_FLOATS * sizeof(float), &memory));
        all.memory = memory;
        esper_backend_each(all.be, 2, wait_behind, &all); /* events are there */
        assert_int_equal(all.n_wrong, 0);
        cuda_driver_fail_at(nth);
        esper_backend_each(all.be, 2, fail_one_round, &all);
        cuda_driver_fail_at(0);
        n_told_all += all.n_done[0] + all.n_done[1] + all.n_wrong == 0;
        n_told_none += all.n_done[0] + all.n_done[1] == 2 && all.n_wrong == 0;
        esper_backend_release(all.be, memory);
        esper_backend_close(all.be);
    }
    if (n_told_all < 3 || n_told_none > 3)
        fail_msg("of 11 failing calls %d were told to all and %d to nobody", n_told_all, n_told_none);
}

/* Every call of the driver in turn: opening fails with a sentence and leaves nothing behind, or succeeds. */
static void test_every_call_may_fail(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth < 200; nth++) {
        esper_backend *be = NULL;
        esper_status status;
        void *memory;

        cuda_driver_fail_at(nth);
        status = esper_backend_open("cuda", NULL, &be);
        if (status == ESPER_OK) {
            status = esper_backend_alloc(be, 1000, &memory);
            if (status == ESPER_OK) {
                status = esper_backend_fill(be, NULL, memory, 1.0f, 250);
                if (status == ESPER_OK)
                    status = esper_backend_sync(be);
                cuda_driver_fail_at(0);
                esper_backend_release(be, memory);
            }
            cuda_driver_fail_at(0);
            esper_backend_close(be);
        }
        if (status != ESPER_OK)
            assert_true(esper_last_error()[0] != '\0');
        else if (nth > 60)
            return;
    }
    cuda_driver_fail_at(0);
}

enum { N_LANES = 3, N_GRADS = 100 };

/* Norms of N_LANES ranges of gradients, which lie in the backend's memory one behind the other. */
typedef struct norms {
    esper_backend *be;
    float         *grads;  /* (N_LANES, N_GRADS) */
    double        *found;  /* (N_LANES) */
    double        *sums;   /* (N_LANES) */
    float         *beside; /* (N_GRADS) filled after the launch */
    uint64_t       nth;    /* the driver's call that fails while the launch is queued; 0 = none */
    esper_status   queued, waited;
    double         back[N_LANES];
    float          filled[N_GRADS];
} norms;

static void queue_norms(void *context, int item, esper_backend_stream *stream)
{
    norms *self = context;
    esper_lane lanes[N_LANES] = {0};
    esper_launch launch = {.kind = ESPER_OP_GRAD_NORM, .n_lanes = N_LANES, .lanes = lanes};

    (void)item;
    for (int i = 0; i < N_LANES; i++) {
        lanes[i].in[0] = (esper_view){.data = self->grads + i * N_GRADS,
                                      .grad = self->grads + i * N_GRADS,
                                      .count = N_GRADS,
                                      .dim = {N_GRADS, 1, 1, 1},
                                      .rank = 1};
        lanes[i].out[0] = (esper_view){.data = self->found + i, .count = 1, .dim = {1, 1, 1, 1}, .rank = 1};
        lanes[i].out[1] = (esper_view){.data = self->sums + i, .count = 1, .dim = {1, 1, 1, 1}, .rank = 1};
    }
    cuda_driver_fail_at(self->nth);
    self->queued = esper_backend_enqueue(self->be, stream, &launch);
    cuda_driver_fail_at(0);
    self->waited = esper_backend_fill(self->be, stream, self->beside, 7.0f, N_GRADS);
    if (self->waited == ESPER_OK)
        self->waited = esper_backend_copy_out(self->be, stream, self->back, self->found, sizeof(self->back));
    if (self->waited == ESPER_OK)
        self->waited = esper_backend_copy_out(self->be, stream, self->filled, self->beside, sizeof(self->filled));
    if (self->waited == ESPER_OK)
        self->waited = esper_backend_wait(self->be, stream);
}

static void *room_for(esper_backend *be, size_t bytes)
{
    void *memory;

    assert_ok(esper_backend_alloc(be, bytes, &memory));
    return memory;
}

static void run_norms(norms *self)
{
    self->be = open_backend();
    self->grads = room_for(self->be, N_LANES * N_GRADS * sizeof(float));
    self->found = room_for(self->be, N_LANES * sizeof(double));
    self->sums = room_for(self->be, N_LANES * sizeof(double));
    self->beside = room_for(self->be, N_GRADS * sizeof(float));
    for (int i = 0; i < N_LANES; i++)
        assert_ok(esper_backend_fill(self->be, NULL, self->grads + i * N_GRADS, (float)(i + 1), N_GRADS));
    assert_ok(esper_backend_sync(self->be));
    esper_backend_each(self->be, 1, queue_norms, self);
    esper_backend_release(self->be, self->grads);
    esper_backend_release(self->be, self->found);
    esper_backend_release(self->be, self->sums);
    esper_backend_release(self->be, self->beside);
    esper_backend_close(self->be);
}

/* Of a launch whose lanes cannot all be taken up none is queued: what comes after it is done as if it had not been. */
static void test_a_launch_is_queued_whole_or_not_at_all(void **state)
{
    const char *gpu = getenv("ESPER_TEST_GPU");
    norms all = {.queued = ESPER_E_NOMEM};
    uint64_t nth = 0;

    (void)state;
    while (all.queued != ESPER_OK && nth < 200) {
        all = (norms){.nth = ++nth};
        run_norms(&all);
        assert_ok(all.waited);
        for (int i = 0; i < N_GRADS; i++)
            assert_true(all.filled[i] == 7.0f);
        for (int i = 0; i < N_LANES; i++) /* the root of 100 squares */
            assert_true(all.back[i] == (all.queued == ESPER_OK ? 10.0 * (i + 1) : 0.0));
    }
    assert_ok(all.queued);
    if (gpu == NULL || strcmp(gpu, "1") != 0) /* the machine's own driver fails at nothing */
        assert_true(nth > 2 * N_LANES);       /* calls of every lane have failed */
}

static uint64_t calls_of(esper_cuda_function function)
{
    return atomic_load(&esper_cuda_calls[function]);
}

/* What is given back is taken again, cleared, where it is not much larger than what is wanted; and goes to the driver at the end. */
static void test_memory_is_kept_for_the_next(void **state)
{
    enum { WORDS = 1000 };
    uint64_t freed = calls_of(ESPER_CUDA_cuMemFree), taken, given;
    esper_backend *be = open_backend();
    void *first, *again, *other;
    float values[WORDS];

    (void)state;
    assert_ok(esper_backend_alloc(be, sizeof(values), &first));
    assert_ok(esper_backend_fill(be, NULL, first, 3.0f, WORDS));
    assert_ok(esper_backend_sync(be));
    esper_backend_release(be, first);
    taken = calls_of(ESPER_CUDA_cuMemAlloc);
    given = calls_of(ESPER_CUDA_cuMemFree);
    assert_ok(esper_backend_alloc(be, sizeof(values) - 12, &again));
    assert_ptr_equal(again, first);
    assert_ok(esper_backend_alloc(be, sizeof(values), &other));
    assert_ptr_not_equal(other, first);
    assert_int_equal(calls_of(ESPER_CUDA_cuMemAlloc) - taken, 1);
    assert_ok(esper_backend_read(be, values, again, sizeof(values) - 12));
    for (int i = 0; i < WORDS - 3; i++)
        assert_true(values[i] == 0.0f);
    esper_backend_release(be, again);
    esper_backend_release(be, other);
    assert_int_equal(calls_of(ESPER_CUDA_cuMemFree), given);
    assert_ok(esper_backend_alloc(be, 16, &again)); /* a large block is not for a small wish */
    assert_int_equal(calls_of(ESPER_CUDA_cuMemAlloc) - taken, 2);
    esper_backend_release(be, again);
    esper_backend_close(be);
    assert_true(calls_of(ESPER_CUDA_cuMemFree) >= freed + 3);
}

/* Kernels are the device's, not each caller's: whoever comes later finds them there, and the last takes them away. */
static void test_kernels_are_loaded_once(void **state)
{
    uint64_t before = calls_of(ESPER_CUDA_cuModuleLoadData), unloaded = calls_of(ESPER_CUDA_cuModuleUnload), loaded;
    esper_backend *be = open_backend(), *beside;

    (void)state;
    loaded = calls_of(ESPER_CUDA_cuModuleLoadData);
    assert_true(loaded > before);
    beside = open_backend();
    assert_int_equal(calls_of(ESPER_CUDA_cuModuleLoadData), loaded);
    esper_backend_close(be);
    assert_int_equal(calls_of(ESPER_CUDA_cuModuleUnload), unloaded);
    be = open_backend();
    assert_int_equal(calls_of(ESPER_CUDA_cuModuleLoadData), loaded);
    esper_backend_close(beside);
    esper_backend_close(be);
    assert_int_equal(calls_of(ESPER_CUDA_cuModuleUnload) - unloaded, loaded - before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_all_sizes_arrive),
        cmocka_unit_test(test_items_have_nothing_to_do_with_each_other),
        cmocka_unit_test(test_pages_are_done_in_their_order),
        cmocka_unit_test(test_one_thread_asks_the_device),
        cmocka_unit_test(test_a_round_may_fail),
        cmocka_unit_test(test_every_call_may_fail),
        cmocka_unit_test(test_a_launch_is_queued_whole_or_not_at_all),
        cmocka_unit_test(test_memory_is_kept_for_the_next),
        cmocka_unit_test(test_kernels_are_loaded_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
