/* A plain C training loop under the guard. A small network learns which points lie inside a circle; on the way it is
 * poisoned twice, on purpose. A bad gradient costs one step; a bad weight is undone from the last good snapshot.
 *
 *     cc guard.c $(pkg-config --cflags --libs esper-guard) -lm && ./a.out
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "esper.h"

enum { HIDDEN = 16, BATCH = 64, STEPS = 400, SNAPSHOT_EVERY = 50, BAD_GRADIENT_AT = 120, BAD_WEIGHT_AT = 230 };

typedef struct network {
    float weight1[HIDDEN][2], bias1[HIDDEN], weight2[HIDDEN], bias2[1];
} network;

static network params, grads, momentum;

/* Everything the library says no to ends here. */
static void check(esper_status status)
{
    if (status == ESPER_OK)
        return;
    fprintf(stderr, "guard: %s\n", esper_last_error());
    exit(1);
}

/* Made-up numbers between -1 and 1: the same for the same place in the sequence. */
static float number(uint64_t place)
{
    uint64_t x = (place + 1) * 0x9E3779B97F4A7C15u;

    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
    return (float)((double)(x >> 40) / (1 << 23) - 1.0);
}

/* Forward and backward over one batch: fills the gradients, returns the loss. */
static double learn(uint64_t batch)
{
    double loss = 0.0;

    grads = (network){0};
    for (uint64_t i = 0; i < BATCH; i++) {
        float x = number(2 * (batch * BATCH + i)), y = number(2 * (batch * BATCH + i) + 1);
        float inside = x * x + y * y < 0.5f, hidden[HIDDEN], logit = params.bias2[0], error;

        for (int h = 0; h < HIDDEN; h++) {
            hidden[h] = tanhf(params.weight1[h][0] * x + params.weight1[h][1] * y + params.bias1[h]);
            logit += params.weight2[h] * hidden[h];
        }
        loss += log1p(exp(-fabs((double)logit))) + (double)fmaxf(logit, 0.0f) - (double)(inside * logit);
        error = (1.0f / (1.0f + expf(-logit)) - inside) / BATCH;
        grads.bias2[0] += error;
        for (int h = 0; h < HIDDEN; h++) {
            float back = error * params.weight2[h] * (1.0f - hidden[h] * hidden[h]);

            grads.weight2[h] += error * hidden[h];
            grads.weight1[h][0] += back * x;
            grads.weight1[h][1] += back * y;
            grads.bias1[h] += back;
        }
    }
    return loss / BATCH;
}

static void update(void)
{
    float *p = (float *)&params, *g = (float *)&grads, *m = (float *)&momentum;

    for (size_t i = 0; i < sizeof(params) / sizeof(float); i++) {
        m[i] = 0.9f * m[i] + g[i];
        p[i] -= 0.3f * m[i];
    }
}

/* Registers one family of tensors: four names, four addresses. */
static void watch(esper_guard *guard, network *family, esper_guard_role role)
{
    const esper_guard_tensor tensors[] = {
        {"layer1.weight", "host", role, ESPER_GUARD_F32, ESPER_GUARD_HOST, family->weight1, 2 * HIDDEN},
        {"layer1.bias", "host", role, ESPER_GUARD_F32, ESPER_GUARD_HOST, family->bias1, HIDDEN},
        {"layer2.weight", "host", role, ESPER_GUARD_F32, ESPER_GUARD_HOST, family->weight2, HIDDEN},
        {"layer2.bias", "host", role, ESPER_GUARD_F32, ESPER_GUARD_HOST, family->bias2, 1},
    };

    check(esper_guard_add(guard, tensors, 4));
}

/* A snapshot, and word of it to the governor: after this one, what lies before is settled. */
static void keep(esper_ring *ring, esper_governor *governor, uint64_t step)
{
    esper_ring_status status;

    check(esper_ring_take(ring, step, NULL, 0));
    check(esper_ring_status_get(ring, 1, &status));
    if (status.newest == ESPER_RING_GOOD)
        check(esper_governor_snapshot(governor, step));
}

int main(void)
{
    esper_guard *guard;
    esper_ring *ring;
    esper_governor *governor;
    const esper_guard_report *report;
    esper_governor_reading reading;
    esper_ring_restored restored;
    char text[256];
    double loss = 0.0;

    for (size_t i = 0; i < sizeof(params) / sizeof(float); i++)
        ((float *)&params)[i] = number(1000000 + i);
    check(esper_guard_open(NULL, &guard));
    watch(guard, &params, ESPER_GUARD_ROLE_PARAM);  /* tensors 0 to 3 */
    watch(guard, &grads, ESPER_GUARD_ROLE_GRAD);    /* 4 to 7 */
    watch(guard, &momentum, ESPER_GUARD_ROLE_MOMENT); /* 8 to 11 */
    check(esper_ring_open(guard, NULL, &ring));
    check(esper_governor_open(NULL, &governor));

    for (uint64_t step = 0, batch = 0; step < STEPS; batch++) { /* batches go on where steps are taken back */
        loss = learn(batch);
        if (batch == BAD_GRADIENT_AT)
            check(esper_guard_inject(guard, 6, 3, ESPER_FAULT_INF, 0, NULL));
        if (batch == BAD_WEIGHT_AT)
            check(esper_guard_inject(guard, 0, 17, ESPER_FAULT_NAN, 0, NULL));

        check(esper_guard_launch(guard, NULL));
        check(esper_guard_read(guard, &report));
        check(esper_governor_scan(governor, report->bad, &reading));
        if (batch % 100 == 0 || report->bad != 0)
            printf("step %3u  loss %.4f  %s\n", (unsigned)step, loss,
                   esper_guard_describe(guard, report, text, sizeof(text)));

        if (reading.action == ESPER_GOVERNOR_SKIP) {
            printf("          skipped: the weights never saw it\n");
            continue;
        }
        if (reading.action != ESPER_GOVERNOR_GO) {
            check(esper_ring_rollback(ring, 1, &restored));
            check(esper_governor_rolled_back(governor, restored.step, 0));
            printf("          rolled back to step %u\n", (unsigned)restored.step);
            step = restored.step;
            continue;
        }
        if (step % SNAPSHOT_EVERY == 0) /* the scan has just found it clean */
            keep(ring, governor, step);
        update();
        step++;
    }
    printf("step %3d  loss %.4f  done\n", STEPS, loss);
    esper_governor_close(governor);
    esper_ring_close(ring);
    esper_guard_close(guard);
    return loss < 0.2 ? 0 : 1;
}
