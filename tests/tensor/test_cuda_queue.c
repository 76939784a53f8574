/* ctest: timeout=120 cost=3 driver=only */
/* What the cuda backend does with copies and fills: of all sizes, in order, from many threads, and where the driver refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_all_sizes_arrive),
        cmocka_unit_test(test_items_have_nothing_to_do_with_each_other),
        cmocka_unit_test(test_every_call_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
