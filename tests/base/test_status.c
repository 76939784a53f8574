/* ctest: labels=tsan */
/* Statuses, the description of the last failure, and the log. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"

static void every_status_has_a_name_and_a_text(void **state)
{
    static const esper_status all[] = {
#define X(name, value, text) ESPER_##name,
        ESPER_STATUS_LIST(X)
#undef X
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_int_equal(strncmp(esper_status_name(all[i]), "ESPER_", 6), 0);
        assert_true(strlen(esper_status_text(all[i])) > 1);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(all[i], all[k]);
            assert_string_not_equal(esper_status_name(all[i]), esper_status_name(all[k]));
        }
    }
    assert_int_equal(ESPER_OK, 0);
    assert_string_equal(esper_status_name(ESPER_E_CONFIG), "ESPER_E_CONFIG");
    assert_string_equal(esper_status_name((esper_status)-77), "unknown status");
    assert_string_equal(esper_status_text((esper_status)-77), "unknown status");
    assert_string_equal(esper_version(), ESPER_VERSION);
}

static esper_status fails(void)
{
    return ESPER_FAIL(ESPER_E_STATE, "%s at %d", "stuck", 3);
}

static esper_status passes_on(int *reached)
{
    ESPER_TRY(ESPER_OK);
    ++*reached;
    ESPER_TRY(fails());
    ++*reached;
    return ESPER_OK;
}

static void a_failure_is_described_once_and_passed_on(void **state)
{
    int reached = 0;

    (void)state;
    assert_int_equal(passes_on(&reached), ESPER_E_STATE);
    assert_int_equal(reached, 1);
    assert_string_equal(esper_last_error(), "stuck at 3");
    assert_int_equal(esper_fail_within(ESPER_E_IO, "file %d: ", 7), ESPER_E_IO);
    assert_string_equal(esper_last_error(), "file 7: stuck at 3");
}

/* Texts of any length end inside their memory. */
static void long_descriptions_are_cut(void **state)
{
    static char text[3000];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    esper_fail(ESPER_E_ARG, "%s", text);
    assert_int_equal(strlen(esper_last_error()), 1023);
    esper_fail_within(ESPER_E_ARG, "before: ");
    assert_int_equal(strlen(esper_last_error()), 1023);
    assert_int_equal(strncmp(esper_last_error(), "before: xxx", 11), 0);
    esper_fail_within(ESPER_E_ARG, "%s", text);
    assert_int_equal(strlen(esper_last_error()), 1023);
    esper_fail(ESPER_E_ARG, "short");
    assert_string_equal(esper_last_error(), "short");
}

/* Returns whether the thread saw no failure but its own. */
static void *fail_alone(void *argument)
{
    int number = *(int *)argument;
    char expected[32];
    int n_wrong = esper_last_error()[0] != '\0';

    snprintf(expected, sizeof(expected), "thread %d", number);
    for (int i = 0; i < 1000; i++) {
        esper_fail(ESPER_E_ARG, "thread %d", number);
        n_wrong += strcmp(esper_last_error(), expected) != 0;
    }
    *(int *)argument = n_wrong;
    return NULL;
}

static void threads_have_their_own_failures(void **state)
{
    pthread_t threads[4];
    int numbers[4] = {1, 2, 3, 4};

    (void)state;
    esper_fail(ESPER_E_ARG, "mine");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_alone, &numbers[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(numbers[i], 0);
    }
    assert_string_equal(esper_last_error(), "mine");
}

static void the_log_keeps_to_its_level(void **state)
{
    char *text = NULL;
    size_t size;
    esper_log log = {.level = ESPER_LOG_INFO, .stream = open_memstream(&text, &size)};

    (void)state;
    assert_non_null(log.stream);
    esper_log_write(&log, ESPER_LOG_ERROR, "e%d", 1);
    esper_log_warn(&log, "w");
    esper_log_write(&log, ESPER_LOG_INFO, "i");
    esper_log_debug(&log, "d");
    log.level = ESPER_LOG_ERROR;
    esper_log_warn(&log, "w2");
    esper_log_write(&log, ESPER_LOG_ERROR, "e2");
    fclose(log.stream);
    assert_string_equal(text, "esper: error: e1\nesper: warn: w\nesper: i\nesper: error: e2\n");
    free(text);
    esper_log_write(NULL, ESPER_LOG_ERROR, "nobody hears");
    log.stream = NULL;
    esper_log_write(&log, ESPER_LOG_ERROR, "nobody hears");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_a_text),
        cmocka_unit_test(a_failure_is_described_once_and_passed_on),
        cmocka_unit_test(long_descriptions_are_cut),
        cmocka_unit_test(threads_have_their_own_failures),
        cmocka_unit_test(the_log_keeps_to_its_level),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
