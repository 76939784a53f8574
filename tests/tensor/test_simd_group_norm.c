/* ctest: sets=each */
/* simd_group_norm.h against the reference: results, statistics and all gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/each_set.h"
#include "support/simd_case.h"
#include "tensor/cpu/simd_group_norm.h"

typedef struct group_case {
    char   text[120];
    int    N, C, H, W, groups;
    bool   add;
    size_t count;
    float *x, *scale, *shift, *y, *stat, *g, *dx, *dscale, *dshift;
    float *before; /* what stands in the gradient of x */
} group_case;

static void open_case(group_case *c, esper_rng *rng, float mean)
{
    size_t n;

    *c = (group_case){.N = simd_case_int(rng, 1, 36), .H = simd_case_int(rng, 1, 12), .W = simd_case_int(rng, 1, 12)};
    c->groups = simd_case_int(rng, 1, 4);
    c->C = c->groups * simd_case_int(rng, 1, 3);
    c->add = esper_rng_below(rng, 2) != 0;
    c->count = (size_t)c->C * (size_t)c->H * (size_t)c->W;
    n = (size_t)c->N * c->count;
    snprintf(c->text, sizeof(c->text), "%d x (%d,%d,%d), %d groups, mean %g%s", c->N, c->C, c->H, c->W, c->groups,
             (double)mean, c->add ? ", added" : "");
    c->x = simd_case_random(rng, n, mean, 1);
    c->g = simd_case_random(rng, n, 0.1f, 1);
    c->scale = simd_case_random(rng, (size_t)c->C, 0, 1);
    c->shift = simd_case_random(rng, (size_t)c->C, 0, 1);
    c->y = simd_case_floats(n);
    c->stat = simd_case_floats((size_t)c->N * 2 * (size_t)c->groups);
    c->before = simd_case_random(rng, n, 0, 1);
    c->dx = simd_case_floats(n);
    memcpy(c->dx, c->before, n * sizeof(float));
    c->dscale = simd_case_floats((size_t)c->C);
    c->dshift = simd_case_floats((size_t)c->C);
}

static void run_reference(group_case *c)
{
    esper_pass pass = {.n_samples = c->N, .training = true};
    esper_lane lane = {.pass = &pass, .attr.norm = {.groups = c->groups, .eps = 1e-5f}};

    lane.in[0] = simd_case_view(c->x, c->dx, c->C, c->H, c->W);
    lane.in[0].add = c->add;
    lane.in[1] = simd_case_view(c->scale, c->dscale, c->C, 0, 0);
    lane.in[2] = simd_case_view(c->shift, c->dshift, c->C, 0, 0);
    lane.out[0] = simd_case_view(c->y, c->g, c->C, c->H, c->W);
    lane.out[1] = simd_case_view(c->stat, NULL, c->groups, 2, 0);
    simd_case_forward(ESPER_OP_GROUP_NORM, &lane);
    simd_case_backward(ESPER_OP_GROUP_NORM, &lane);
}

static void check_case(const group_case *c)
{
    size_t size = c->count * SIMD_WIDTH, stat_size = 2 * (size_t)c->groups * SIMD_WIDTH;
    size_t n_blocks = (size_t)simd_case_blocks(c->N), pixels = (size_t)c->H * (size_t)c->W;
    float *x = simd_case_pack(c->x, c->N, c->count, 2), *g = simd_case_pack(c->g, c->N, c->count, 0);
    float *dx = simd_case_pack(c->before, c->N, c->count, 0), *y = simd_case_floats(n_blocks * size);
    float *stat = simd_case_floats(n_blocks * stat_size);
    double *dscale = simd_case_doubles((size_t)c->C), *dshift = simd_case_doubles((size_t)c->C);
    float *scale_part = simd_case_floats((size_t)c->C), *shift_part = simd_case_floats((size_t)c->C);

    for (size_t b = 0; b < n_blocks; b++) {
        simd_group_norm_forward(x + b * size, c->C, pixels, c->groups, c->scale, c->shift, 1e-5f, stat + b * stat_size,
                                y + b * size);
        simd_group_norm_back(x + b * size, g + b * size, c->C, pixels, c->groups, c->scale, stat + b * stat_size,
                             simd_case_valid(c->N, (int)b), c->add, dx + b * size, scale_part, shift_part);
        for (int i = 0; i < c->C; i++) {
            dscale[i] += (double)scale_part[i];
            dshift[i] += (double)shift_part[i];
        }
    }
    simd_case_compare_blocks(c->text, c->stat, stat, c->N, 2 * (size_t)c->groups, false);
    simd_case_compare_blocks(c->text, c->y, y, c->N, c->count, false);
    simd_case_compare_sums(c->text, c->dscale, dscale, (size_t)c->C);
    simd_case_compare_sums(c->text, c->dshift, dshift, (size_t)c->C);
    simd_case_compare_blocks(c->text, c->dx, dx, c->N, c->count, true);
}

static void test_group_norm(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 120; k++) {
        esper_rng rng = simd_case_rng(k);
        group_case c;

        open_case(&c, &rng, k % 3 == 0 ? 100 : 0.5f);
        run_reference(&c);
        check_case(&c);
        simd_case_end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_group_norm)};

    return each_set_can_run() ? cmocka_run_group_tests(tests, NULL, NULL) : EACH_SET_SKIPPED;
}
