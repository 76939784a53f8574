/* Faults on purpose: one element of a tensor becomes NaN or infinite, or has one bit flipped. Every fault is a
 * word with some bits kept and some turned around, so that host and device do the same. */
#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "guard/engine_cuda.h"
#include "guard/guard_internal.h"
#include "guard/scan_kernels.h"

/* Where the fields of a type lie: sign | exponent | mantissa, from the top. */
typedef struct number_form {
    uint32_t bytes, exponent_bits, mantissa_bits;
} number_form;

static const number_form forms[ESPER_GUARD_N_DTYPES] = {
    [ESPER_GUARD_F32] = {4, 8, 23},
    [ESPER_GUARD_F16] = {2, 5, 10},
    [ESPER_GUARD_BF16] = {2, 8, 7},
    [ESPER_GUARD_F64] = {8, 11, 52},
};

/* The element becomes (element & keep) ^ flip. */
typedef struct word_change {
    uint64_t keep, flip;
} word_change;

/* False for an unknown fault. */
static bool find_change(const number_form *form, esper_fault fault, uint32_t bit, word_change *change_out)
{
    uint64_t infinity = (((uint64_t)1 << form->exponent_bits) - 1) << form->mantissa_bits,
             sign = (uint64_t)1 << (8 * form->bytes - 1);

    assert(8 * form->bytes == 1 + form->exponent_bits + form->mantissa_bits);
    switch (fault) {
    case ESPER_FAULT_NAN: /* a quiet one */
        *change_out = (word_change){0, infinity | (uint64_t)1 << (form->mantissa_bits - 1)};
        return true;
    case ESPER_FAULT_INF:
        *change_out = (word_change){0, infinity};
        return true;
    case ESPER_FAULT_NEG_INF:
        *change_out = (word_change){0, infinity | sign};
        return true;
    case ESPER_FAULT_EXPONENT:
        *change_out = (word_change){UINT64_MAX, (uint64_t)1 << (form->mantissa_bits + bit % form->exponent_bits)};
        return true;
    case ESPER_FAULT_MANTISSA:
        *change_out = (word_change){UINT64_MAX, (uint64_t)1 << bit % form->mantissa_bits};
        return true;
    }
    return false;
}

/* Of a word of the type's size, in either order of bytes. */
static void change_host(void *element, uint32_t bytes, const word_change *change)
{
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;

    if (bytes == 8) {
        memcpy(&u64, element, 8);
        u64 = (u64 & change->keep) ^ change->flip;
        memcpy(element, &u64, 8);
    } else if (bytes == 4) {
        memcpy(&u32, element, 4);
        u32 = (u32 & (uint32_t)change->keep) ^ (uint32_t)change->flip;
        memcpy(element, &u32, 4);
    } else {
        memcpy(&u16, element, 2);
        u16 = (uint16_t)((u16 & change->keep) ^ change->flip);
        memcpy(element, &u16, 2);
    }
}

esper_status esper_guard_inject(esper_guard *guard, size_t tensor, uint64_t element, esper_fault fault, uint32_t bit,
                                void *stream)
{
    const esper_guard_tensor *target;
    const number_form *form;
    word_change change;
    void *at;

    if (guard == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_inject: the guard is NULL");
    target = esper_guard_tensor_at(guard, tensor);
    if (target == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_inject: tensor %zu: the guard has %zu", tensor,
                          esper_guard_count(guard));
    if (element >= target->count)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_inject: element %llu of %s, which has %llu",
                          (unsigned long long)element, target->name, (unsigned long long)target->count);
    form = &forms[target->dtype];
    if (!find_change(form, fault, bit, &change))
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_inject: fault %d is none of those in esper_fault", (int)fault);
    assert(form->bytes == esper_guard_dtype_bytes(target->dtype));
    at = (char *)target->data + element * form->bytes;
    if (target->device >= 0)
        return esper_cuda_inject(esper_guard_engine(guard, target->device), at, form->bytes, change.keep, change.flip,
                                 stream);
    change_host(at, form->bytes, &change);
    return ESPER_OK;
}
