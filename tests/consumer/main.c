/* A program of somebody else: knows the installed header and library, and nothing of this repository. */
#include <esper.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    float weight[1000];
    esper_guard_tensor tensor;
    esper_guard *guard = NULL;
    const esper_guard_report *report = NULL;
    char text[256];
    int i;

    for (i = 0; i < 1000; i++)
        weight[i] = 0.5f;
    weight[417] = (float)NAN;
    memset(&tensor, 0, sizeof(tensor));
    tensor.name = "weight";
    tensor.group = "host";
    tensor.role = ESPER_GUARD_ROLE_PARAM;
    tensor.dtype = ESPER_GUARD_F32;
    tensor.device = ESPER_GUARD_HOST;
    tensor.data = weight;
    tensor.count = 1000;

    if (strcmp(esper_version(), ESPER_VERSION) != 0) {
        printf("header %s, library %s\n", ESPER_VERSION, esper_version());
        return 1;
    }
    if (esper_guard_open(NULL, &guard) != ESPER_OK || esper_guard_add(guard, &tensor, 1) != ESPER_OK ||
        esper_guard_launch(guard, NULL) != ESPER_OK || esper_guard_read(guard, &report) != ESPER_OK) {
        printf("%s\n", esper_last_error());
        return 1;
    }
    printf("esper-guard %s: %s\n", esper_version(), esper_guard_describe(guard, report, text, sizeof(text)));
    i = report->bad == ESPER_GUARD_BAD_NAN_STATE && report->first_bad == 0 && report->stats[0].n_nan == 1 &&
        report->stats[0].first_bad == 417;
    esper_guard_close(guard);
    return i ? 0 : 1;
}
