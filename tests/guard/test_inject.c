/* Fault injection: every fault in every type does to the bits what it says, and to no others. */
#include <math.h>

#include "ring_helpers.h"

enum { COUNT = 37 };

/* By hand, from the standard's formats. */
typedef struct expected_bits {
    esper_guard_dtype dtype;
    uint64_t          nan, infinity, sign;
    uint32_t          exponent_low, exponent_bits, mantissa_bits;
} expected_bits;

static const expected_bits formats[] = {
    {ESPER_GUARD_F32, 0x7FC00000u, 0x7F800000u, 0x80000000u, 23, 8, 23},
    {ESPER_GUARD_F16, 0x7E00u, 0x7C00u, 0x8000u, 10, 5, 10},
    {ESPER_GUARD_BF16, 0x7FC0u, 0x7F80u, 0x8000u, 7, 8, 7},
    {ESPER_GUARD_F64, 0x7FF8000000000000u, 0x7FF0000000000000u, 0x8000000000000000u, 52, 11, 52},
};

static uint64_t bits_at(const esper_guard_tensor *tensor, size_t element)
{
    size_t bytes = dtype_size(tensor->dtype);
    uint64_t bits = 0;

    memcpy(&bits, (char *)tensor->data + element * bytes, bytes); /* little-endian machines only, as the checksum */
    return bits;
}

static void check_element(esper_guard *guard, model *m, size_t tensor, size_t element, esper_fault fault, uint32_t bit,
                          uint64_t expected)
{
    unsigned char *before = model_copy(m);
    size_t bytes = dtype_size(m->tensors[tensor].dtype);
    uint64_t old = bits_at(&m->tensors[tensor], element);

    check_good(esper_guard_inject(guard, tensor, element, fault, bit, NULL));
    if (bits_at(&m->tensors[tensor], element) != expected)
        fail_msg("tensor %zu, fault %d, bit %u: %#llx, expected %#llx", tensor, (int)fault, bit,
                 (unsigned long long)bits_at(&m->tensors[tensor], element), (unsigned long long)expected);
    memcpy((char *)m->tensors[tensor].data + element * bytes, &old, bytes);
    model_check(m, before); /* nothing else has changed */
    free(before);
}

static void every_fault_in_every_type(void **state)
{
    static const size_t elements[] = {0, 1, 18, COUNT - 1};
    esper_guard *guard;
    model m = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        model_add(&m, ESPER_GUARD_ROLE_PARAM, formats[i].dtype, COUNT, 1);
    model_fill(&m, 6);
    guard = model_guard(&m, 1);
    for (size_t i = 0; i < m.n; i++)
        for (size_t e = 0; e < sizeof(elements) / sizeof(elements[0]); e++) {
            const expected_bits *f = &formats[i];
            size_t at = elements[e];
            uint64_t old = bits_at(&m.tensors[i], at);

            check_element(guard, &m, i, at, ESPER_FAULT_NAN, 0, f->nan);
            check_element(guard, &m, i, at, ESPER_FAULT_INF, 0, f->infinity);
            check_element(guard, &m, i, at, ESPER_FAULT_NEG_INF, 0, f->infinity | f->sign);
            for (uint32_t bit = 0; bit < f->exponent_bits + 3; bit++)
                check_element(guard, &m, i, at, ESPER_FAULT_EXPONENT, bit,
                              old ^ (uint64_t)1 << (f->exponent_low + bit % f->exponent_bits));
            for (uint32_t bit = 0; bit < f->mantissa_bits + 3; bit++)
                check_element(guard, &m, i, at, ESPER_FAULT_MANTISSA, bit, old ^ (uint64_t)1 << bit % f->mantissa_bits);
        }
    esper_guard_close(guard);
    model_fini(&m);
}

/* What is injected is what the scan then finds. */
static void the_scan_finds_it(void **state)
{
    static const esper_fault faults[] = {ESPER_FAULT_NAN, ESPER_FAULT_INF, ESPER_FAULT_NEG_INF};
    const esper_guard_report *report;
    esper_guard *guard;
    model m;

    (void)state;
    model_init_all(&m);
    guard = model_guard(&m, 1);
    for (size_t tensor = 0; tensor < m.n; tensor++)
        for (int f = 0; f < 3; f++) {
            uint64_t element = m.tensors[tensor].count * 2 / 3;

            check_good(esper_guard_inject(guard, tensor, element, faults[f], 0, NULL));
            check_good(esper_guard_launch(guard, NULL));
            check_good(esper_guard_read(guard, &report));
            assert_int_equal(report->first_bad, tensor);
            assert_int_equal(report->n_bad, 1);
            assert_int_equal(report->stats[tensor].first_bad, element);
            assert_int_equal(report->stats[tensor].n_nan, f == 0);
            assert_int_equal(report->stats[tensor].n_pos_inf, f == 1);
            assert_int_equal(report->stats[tensor].n_neg_inf, f == 2);
            memset((char *)m.tensors[tensor].data + element * dtype_size(m.tensors[tensor].dtype), 0,
                   dtype_size(m.tensors[tensor].dtype));
        }
    esper_guard_close(guard);
    model_fini(&m);
}

static void bad_arguments_are_refused(void **state)
{
    unsigned char *before;
    esper_guard *guard;
    model m;

    (void)state;
    model_init_small(&m);
    guard = model_guard(&m, 1);
    before = model_copy(&m);
    check_status(esper_guard_inject(NULL, 0, 0, ESPER_FAULT_NAN, 0, NULL), ESPER_E_ARG);
    check_status(esper_guard_inject(guard, 4, 0, ESPER_FAULT_NAN, 0, NULL), ESPER_E_ARG);
    check_error_says("tensor 4: the guard has 4");
    check_status(esper_guard_inject(guard, 0, 100, ESPER_FAULT_NAN, 0, NULL), ESPER_E_ARG);
    check_error_says("element 100 of t0, which has 100");
    check_status(esper_guard_inject(guard, 0, UINT64_MAX, ESPER_FAULT_NAN, 0, NULL), ESPER_E_ARG);
    check_status(esper_guard_inject(guard, 0, 0, (esper_fault)9, 0, NULL), ESPER_E_ARG);
    check_error_says("fault 9");
    model_check(&m, before);
    free(before);
    esper_guard_close(guard);
    model_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_fault_in_every_type, nothing_left),
        cmocka_unit_test_teardown(the_scan_finds_it, nothing_left),
        cmocka_unit_test_teardown(bad_arguments_are_refused, nothing_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
