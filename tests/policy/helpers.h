/* Internal to tests/policy. Views to decide on, and the recorded files. */
#ifndef ESPER_TESTS_POLICY_HELPERS_H
#define ESPER_TESTS_POLICY_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "policy/mask.h"
#include "policy/policy.h"
#include "support/difference.h"
#include "support/golden.h"

static inline void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static inline void check_fails(esper_status status, esper_status expected, const char *words)
{
    if (status != expected)
        fail_msg("%s (%s), expected %s", esper_status_name(status), esper_last_error(), esper_status_name(expected));
    if (strstr(esper_last_error(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), words);
}

static inline uint64_t live_blocks(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

/* ---- views ---- */

static const char *const slot_ids[] = {"r0c0", "r1c0", "r2c0"};

enum { N_SLOTS = 3 };

/* A view of three empty slots in epoch 10 of a settled host on a plateau. */
typedef struct scene {
    esper_policy_slot slots[ESPER_POLICY_MAX_SLOTS];
    esper_policy_view view;
} scene;

static inline void set_scene(scene *s, esper_topology topology)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SLOTS; i++) {
        esper_policy_slot_init(&s->slots[i], topology, slot_ids[i]);
        s->slots[i].channels = 8 << i;
    }
    s->view = (esper_policy_view){.topology = topology,
                                  .epoch = 10,
                                  .max_epochs = 1000,
                                  .loss_train = 0.5,
                                  .accuracy_train = 80,
                                  .loss_valid = 0.6,
                                  .accuracy_valid = 78,
                                  .params_total = 5000,
                                  .params_limit = 100000,
                                  .slots = s->slots,
                                  .n_slots = N_SLOTS};
    s->view.signals.host_stabilized = true;
    s->view.signals.plateau_epochs = 4;
}

/* Puts a seed of the blueprint into a slot. */
static inline esper_policy_slot *put_seed(scene *s, int slot, int stage, const char *blueprint)
{
    const esper_blueprint *found;
    esper_policy_slot *at = &s->slots[slot];
    char id[ESPER_POLICY_ID_CHARS];

    check_good(esper_blueprint_find(s->view.topology, blueprint, &found));
    memcpy(id, at->id, sizeof(id)); /* the compiler cannot tell the two texts of a slot apart */
    at->stage = stage;
    at->blueprint = found->index;
    at->epochs_in_stage = 6;
    at->epochs_total = 12;
    at->improvement = 0.5;
    at->improvement_total = 1.0;
    at->tempo = 5;
    at->alpha_target = 1.0;
    snprintf(at->seed, sizeof(at->seed), "%s-%s", id, blueprint);
    return at;
}

static inline esper_policy_setup plain_setup(void)
{
    return (esper_policy_setup){
        .topology = ESPER_TOPOLOGY_CNN, .seed = 7, .max_epochs = 60, .slot_ids = slot_ids, .n_slots = N_SLOTS};
}

static inline esper_policy *open_policy(const char *name, const esper_policy_setup *setup)
{
    esper_policy *policy = NULL;

    check_good(esper_policy_open(name, setup, &policy));
    return policy;
}

static inline void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- recorded files ---- */

/* Numbers of the recorded files: non-finite ones are texts; null is NaN, which is "unset". */
static inline double number_of(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text != NULL)
        return strcmp(text, "nan") == 0 ? (double)NAN : strcmp(text, "inf") == 0 ? (double)INFINITY : -(double)INFINITY;
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

static inline double real_of(const json_t *object, const char *key)
{
    return number_of(json_object_get(object, key));
}

static inline int int_of(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static inline const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    assert_non_null(text);
    return text;
}

static inline bool is_near(double a, double b)
{
    double size = fmax(1.0, fmax(fabs(a), fabs(b)));

    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= 1e-12 * size;
}

/* "HOLDING" as they are written there. */
static inline int stage_of(const char *name)
{
    char lower[32];
    int stage;

    for (size_t i = 0; i <= strlen(name); i++)
        lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 'a' - 'A' : name[i]);
    stage = esper_stage_find(lower);
    if (stage < 0)
        fail_msg("no stage is called %s", name);
    return stage;
}

static inline int mode_of(const char *name)
{
    return strcmp(name, "HOLD") == 0 ? ESPER_POLICY_ALPHA_HOLD
           : strcmp(name, "UP") == 0 ? ESPER_POLICY_ALPHA_UP
                                     : ESPER_POLICY_ALPHA_DOWN;
}

#endif
