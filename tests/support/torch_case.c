/* Cases for PyTorch: the vectors beside a module, and the process that compares them. */
#include "support/torch_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "data/safetensors.h"

const char *torch_case_python(void)
{
    const char *candidates[] = {getenv("PYTHON"), "/usr/bin/python3", "python3"};
    char command[512];

    for (int i = 0; i < 3; i++) {
        if (candidates[i] == NULL || candidates[i][0] == '\0')
            continue;
        snprintf(command, sizeof(command), "'%s' -c 'import torch' >/dev/null 2>&1", candidates[i]);
        if (system(command) == 0)
            return candidates[i];
    }
    printf("skipped: no python3 here can import torch (on Debian: apt-get install python3-torch)\n");
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ vectors */

typedef struct vector {
    esper_safetensors_tensor tensor;
    int64_t                 *ids; /* its data where it holds ids: PyTorch counts in int64 */
} vector;

static vector vector_of(const esper_net *net, const esper_plan *plan, int n_samples, const char *name, int t)
{
    const esper_tensor *tensor = &net->tensors[t];
    vector out = {.tensor = {.name = name,
                             .dtype = ESPER_SAFETENSORS_F32,
                             .rank = 1 + tensor->rank,
                             .shape = {(uint64_t)n_samples},
                             .data = esper_plan_data(plan, 0, t)}};

    for (int i = 0; i < tensor->rank; i++)
        out.tensor.shape[1 + i] = (uint64_t)tensor->dim[i];
    if (tensor->dtype == ESPER_I32) {
        out.ids = calloc((size_t)tensor->count * (size_t)n_samples, sizeof(*out.ids));
        assert_non_null(out.ids);
        for (int64_t i = 0; i < tensor->count * n_samples; i++)
            out.ids[i] = ((const int32_t *)out.tensor.data)[i];
        out.tensor.dtype = ESPER_SAFETENSORS_I64;
        out.tensor.data = out.ids;
    }
    return out;
}

/* The mean over targets that count. */
static float mean_loss(const esper_net *net, const esper_plan *plan, int n_samples)
{
    const float *loss = esper_plan_data(plan, 0, net->loss);
    const int32_t *targets = esper_plan_data(plan, 0, net->target);
    int64_t n_targets = 0;
    double sum = 0.0;

    for (int i = 0; i < n_samples; i++)
        sum += (double)loss[i];
    for (int64_t i = 0; i < net->tensors[net->target].count * n_samples; i++)
        n_targets += targets[i] >= 0;
    return (float)(sum / (double)n_targets);
}

void torch_case_write(const esper_net *net, const esper_plan *plan, int n_samples, const char *dir)
{
    bool has_loss = net->loss != ESPER_NO_TENSOR;
    float loss = has_loss ? mean_loss(net, plan, n_samples) : 0.0f;
    vector vectors[3] = {vector_of(net, plan, n_samples, "input", net->input),
                         vector_of(net, plan, n_samples, "output", net->output)};
    esper_safetensors_tensor tensors[4] = {vectors[0].tensor, vectors[1].tensor};
    char path[512];

    if (has_loss) {
        vectors[2] = vector_of(net, plan, n_samples, "targets", net->target);
        tensors[2] = vectors[2].tensor;
        tensors[3] = (esper_safetensors_tensor){
            .name = "loss", .dtype = ESPER_SAFETENSORS_F32, .rank = 1, .shape = {1}, .data = &loss};
    }
    snprintf(path, sizeof(path), "%s/vectors.safetensors", dir);
    if (esper_safetensors_write(path, tensors, has_loss ? 4 : 2, NULL, 0) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    for (int i = 0; i < 3; i++)
        free(vectors[i].ids);
}

/* ------------------------------------------------------------------------------------------------ PyTorch */

void torch_case_compare(const char *python, const char *folder)
{
    char command[1200];

    snprintf(command, sizeof(command), "'%s' '%s/tests/parity/torch_compare.py' %s", python, ESPER_SOURCE_DIR, folder);
    fflush(stdout);
    if (system(command) != 0)
        fail_msg("%s: see above", command);
}
