/* ctest: timeout=120 */
/* Out of memory at any point: all points for the quickest subjects, a part of them for the others. */
#include "fault/alloc.h"

enum { STRIDE = 5 };

static void text_network(void **state)
{
    subject *self = subject_new("chars", FAULT_TEXT);

    (void)state;
    fail_network(self, 1);
    free(self);
}

static void image_network(void **state)
{
    subject *self = subject_new("synth", FAULT_CNN);

    (void)state;
    fail_network(self, STRIDE);
    free(self);
}

static void checkpoint(void **state)
{
    subject *self = subject_new("synth", FAULT_CNN);

    (void)state;
    fail_checkpoint(self, 1);
    free(self);
}

static void text_run(void **state)
{
    subject *self = subject_new("chars", FAULT_TEXT);

    (void)state;
    fail_run(self, 1);
    free(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_network),
        cmocka_unit_test(image_network),
        cmocka_unit_test(checkpoint),
        cmocka_unit_test(text_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
