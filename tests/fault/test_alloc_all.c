/* ctest: timeout=600 labels=soak */
/* Out of memory at every single point. */
#include "fault/alloc.h"

static void check_all(const char *task, const char *settings)
{
    subject *self = subject_new(task, settings);

    fail_network(self, 1);
    fail_checkpoint(self, 1);
    fail_run(self, 1);
    free(self);
}

static void text(void **state)
{
    (void)state;
    check_all("chars", FAULT_TEXT);
}

static void images(void **state)
{
    (void)state;
    check_all("synth", FAULT_CNN);
}

static void adamw_with_augmentation(void **state)
{
    (void)state;
    check_all("synth", FAULT_CNN "optimizer = adamw\ncrop = 2\nflip = true\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text),
        cmocka_unit_test(images),
        cmocka_unit_test(adamw_with_augmentation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
