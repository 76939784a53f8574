/* The device table on the host: memory, copies, the order of streams and events, and every failed allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/device.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void the_host_opens_by_name(void **state)
{
    esper_device *device = NULL;

    (void)state;
    check_good(esper_device_open("host", 0, &device));
    assert_string_equal(esper_device_name(device), "host");
    assert_int_equal(device->index, 0);
    esper_device_close(device);
    device = NULL;
    assert_int_equal(esper_device_open("host", 1, &device), ESPER_E_NOTFOUND);
    assert_int_equal(esper_device_open("hots", 0, &device), ESPER_E_NOTFOUND);
    assert_string_equal(esper_last_error(), "this build has no device of kind 'hots'; did you mean 'host'?");
    assert_int_equal(esper_device_open("", 0, &device), ESPER_E_NOTFOUND);
    assert_null(device);
}

static void memory_is_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 4096, 100003};
    esper_device *device;
    void *memory;

    (void)state;
    check_good(esper_device_open("host", 0, &device));
    for (int kind = ESPER_DEVICE_MEMORY_NORMAL; kind <= ESPER_DEVICE_MEMORY_PINNED; kind++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            check_good(esper_device_alloc(device, sizes[i], (esper_device_memory)kind, &memory));
            assert_int_equal((uintptr_t)memory % 64, 0);
            for (size_t b = 0; b < sizes[i]; b++)
                assert_int_equal(((unsigned char *)memory)[b], 0);
            memset(memory, 0xAB, sizes[i]);
            esper_device_release(device, memory);
        }
    memory = &device;
    check_good(esper_device_alloc(device, 0, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    assert_null(memory);
    esper_device_release(device, memory);
    assert_int_equal(esper_device_alloc(device, SIZE_MAX - 8, ESPER_DEVICE_MEMORY_NORMAL, &memory), ESPER_E_NOMEM);
    esper_device_close(device);
}

/* Each operation sees what was queued before it, in its own stream and behind an event of another. */
static void work_is_done_in_order(void **state)
{
    esper_device *device;
    esper_stream *a, *b;
    esper_device_event *event;
    unsigned char from[100], to[100];

    (void)state;
    check_good(esper_device_open("host", 0, &device));
    check_good(esper_stream_open(device, &a));
    check_good(esper_stream_open(device, &b));
    check_good(esper_device_event_open(device, &event));
    check_good(esper_device_event_wait(event, b)); /* never recorded: counts as reached */
    check_good(esper_device_event_sync(event));
    memset(to, 0xEE, sizeof(to));
    check_good(esper_stream_set(a, from, 0x11, sizeof(from)));
    check_good(esper_stream_set(a, from + 50, 0x22, 10));
    check_good(esper_device_event_record(event, a));
    check_good(esper_device_event_wait(event, b));
    check_good(esper_stream_copy(b, to + 1, from + 1, sizeof(to) - 2));
    check_good(esper_stream_copy(b, NULL, NULL, 0));
    check_good(esper_stream_set(b, NULL, 1, 0));
    check_good(esper_device_event_record(event, b));
    check_good(esper_device_event_sync(event));
    check_good(esper_stream_sync(a));
    check_good(esper_stream_sync(b));
    assert_int_equal(to[0], 0xEE);
    assert_int_equal(to[99], 0xEE);
    for (int i = 1; i < 99; i++)
        assert_int_equal(to[i], i >= 50 && i < 60 ? 0x22 : 0x11);
    esper_device_event_close(event);
    esper_stream_close(b);
    esper_stream_close(a);
    esper_device_close(device);
}

/* Opens one of each; on failure all that was opened is closed again. */
static esper_status open_and_close_all(void)
{
    esper_device *device = NULL;
    esper_stream *stream = NULL;
    esper_device_event *event = NULL;
    void *memory = NULL;
    esper_status st = esper_device_open("host", 0, &device);

    if (st == ESPER_OK)
        st = esper_stream_open(device, &stream);
    if (st == ESPER_OK)
        st = esper_device_event_open(device, &event);
    if (st == ESPER_OK)
        st = esper_device_alloc(device, 1000, ESPER_DEVICE_MEMORY_PINNED, &memory);
    if (device != NULL)
        esper_device_release(device, memory);
    esper_device_event_close(event);
    esper_stream_close(stream);
    esper_device_close(device);
    return st;
}

static void every_failed_allocation_is_survived(void **state)
{
    esper_mem_stats before, after;
    esper_status st = ESPER_E_NOMEM;
    int n_failures = 0;

    (void)state;
    esper_mem_stats_get(&before);
    while (st == ESPER_E_NOMEM) {
        esper_mem_fail_at((uint64_t)n_failures + 1);
        st = open_and_close_all();
        esper_mem_fail_at(0);
        n_failures += st == ESPER_E_NOMEM;
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(after.live_bytes, before.live_bytes);
    }
    check_good(st);
    assert_int_equal(n_failures, 4);
}

static void no_member_that_is_needed_is_missing(void **state)
{
    const esper_device_ops *ops = &esper_device_host;

    (void)state;
    assert_int_equal(ops->abi, ESPER_DEVICE_ABI);
    assert_true(ops->name && ops->open && ops->close && ops->alloc && ops->release);
    assert_true(ops->stream_open && ops->stream_close && ops->stream_wrap && ops->copy_async && ops->set_async);
    assert_true(ops->event_open && ops->event_close && ops->memory_free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_opens_by_name),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(work_is_done_in_order),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(no_member_that_is_needed_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
