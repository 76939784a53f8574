/* What `backend = auto` comes to. */
#include "run/backend_choice.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include "tensor/backend.h"
#include "tensor/cost.h"
#include "tensor/cuda/images.h"

/* A device, and kernels that were built in: who wants others compiled says so. */
static bool has_device(void)
{
    esper_device *device;

    if (esper_device_open("cuda", 0, &device) != ESPER_OK)
        return false;
    esper_device_close(device);
    return esper_tensor_images[0].image.binary != NULL || esper_cuda_driver_now.knows_kernels;
}

/* Of a step on a full batch: a backward pass is twice the forward pass. */
static esper_status count_flops(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                                double *flops_out)
{
    esper_status status;
    esper_net net;

    esper_net_init(&net);
    status = esper_task_build(task, config, data, &net);
    *flops_out = 3.0 * config->batch * esper_net_flops(&net);
    esper_net_fini(&net);
    return status;
}

esper_status esper_backend_choose(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                                  const char *recorded, esper_backend_choice *choice_out)
{
    bool goes_on = recorded != NULL && recorded[0] != '\0', was_cuda = goes_on && strncmp(recorded, "cuda/", 5) == 0;
    double flops;

    *choice_out = (esper_backend_choice){.name = NULL};
    if (config->backend != ESPER_CONFIG_BACKEND_AUTO)
        return ESPER_OK;
    choice_out->name = "cpu";
    if ((goes_on && !was_cuda) || !has_device())
        return ESPER_OK;
    if (was_cuda) {
        choice_out->name = "cuda";
        return ESPER_OK;
    }
    if (config->precision != ESPER_CONFIG_PRECISION_FP32) {
        choice_out->name = "cuda";
        snprintf(choice_out->why, sizeof(choice_out->why), "chosen as no other has --precision %s",
                 esper_precision_name((esper_precision)config->precision));
        return ESPER_OK;
    }
    ESPER_TRY(count_flops(task, config, data, &flops));
    if (flops >= ESPER_BACKEND_WORTH_FLOPS)
        choice_out->name = "cuda";
    snprintf(choice_out->why, sizeof(choice_out->why),
             "chosen as a step takes %.3g MFLOP: from %.3g on it is the GPU's; --backend cpu or cuda says otherwise",
             flops * 1e-6, ESPER_BACKEND_WORTH_FLOPS * 1e-6);
    return ESPER_OK;
}
