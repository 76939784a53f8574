/* The list of backends. By itself in a file, so that a program of tests can have another one. */
#include "tensor/backends.h"

static const esper_backend_ops *const backends[] = {
    &esper_backend_cpu, &esper_backend_cuda, &esper_backend_ref, &esper_backend_null, NULL,
};

const esper_backend_ops *const *esper_backend_list(void)
{
    return backends;
}
