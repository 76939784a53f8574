/* Internal. Recorded behaviour of slots, line by line, and the one table of where ours differs on purpose.
 *
 * The vectors lie in ../shared/golden beside the source tree; where they are absent the tests that read them say
 * "skipped". A test compares every row. Where a row shows a difference of the table, it checks the corrected answer
 * instead, and that the recorded case is marked with it; then it takes over what was recorded, so that the rows that follow
 * are compared, too. */
#ifndef ESPER_TESTS_SLOT_RECORDED_H
#define ESPER_TESTS_SLOT_RECORDED_H

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/golden.h"

typedef struct recorded_difference {
    const char *mark, *file, *recorded, *ours;
} recorded_difference;

static const recorded_difference recorded_differences[] = {
    {"lifecycle D3", "alpha_ramp", "a target that is not finite is clamped to 0 or 1", "refused, nothing changes"},
    {"lifecycle D3", "gates", "a contribution of NaN is available, and insufficient",
     "it is not finite: one check fails"},
    {"lifecycle D1", "blend", "a seed in TRAINING that is not isolated adds to the host's gradient",
     "in TRAINING the host's gradient is its own, whatever the setting; the seed's own is compared with STRAIGHT"},
    {"lifecycle D14", "blend", "a seed that is not finite spoils y at weight 0", "y is h there"},
    {"not marked", "blend", "TRAINING, HOLDING and FOSSILIZED with any alpha, or one given for each sample",
     "a stage has its alpha: compared as BLENDING, which is the same operator"},
    {"lifecycle D4", "slotted_*", "a gate network is made when blending begins", "it is there from germination"},
    {"not marked", "slotted_*", "conv_light and depthwise end in no scale", "see nn/blueprint.h; held at 1"},
    {"lifecycle D12", "alpha_ramp", "a target equal to alpha leaves 0 of N steps", "no steps are left"},
    {"lifecycle D5", "lifecycle", "an accuracy makes a slot that cools down count on", "ignored there"},
    {"lifecycle D8", "lifecycle", "a refused germination changes ramp, tempo and target", "nothing changes"},
    {"lifecycle D9", "lifecycle", "a refused prune raises or lowers the auto-prune flag", "the flag stays"},
    {"not marked", "lifecycle", "so does one of another reason, or scheduled", "the flag stays"},
    {"lifecycle D12", "lifecycle", "an instant target acts at the next tick", "at once"},
    {"lifecycle D12", "lifecycle", "a target equal to alpha leaves 0 of N steps", "no steps are left"},
    {"lifecycle D12", "lifecycle", "weights stay frozen for a tick after a ramp down", "until it is done"},
    {"lifecycle D12", "lifecycle", "a holding seed told 0.9999995 ramps down and never arrives", "that is 1: it holds"},
    {"lifecycle D13", "lifecycle", "the blend can be switched at alpha above 0", "refused"},
    {"lifecycle D21", "lifecycle", "a frozen seed has no trainable parameters", "their number is what it is"},
};

/* Whether the case is marked with a difference that the table has. */
static inline bool recorded_differs(const json_t *line, const char *file, const char *mark)
{
    const json_t *marks = json_object_get(line, "touches");
    bool marked = false, listed = false;

    for (size_t i = 0; i < json_array_size(marks); i++)
        marked = marked || strcmp(json_string_value(json_array_get(marks, i)), mark) == 0;
    for (size_t i = 0; i < sizeof(recorded_differences) / sizeof(recorded_differences[0]); i++)
        listed = listed ||
                 (strcmp(recorded_differences[i].mark, mark) == 0 && strcmp(recorded_differences[i].file, file) == 0);
    return marked && listed;
}

/* Calls `each` for every case of <name>.jsonl; the number of cases, -1 when the file is not here. */
static inline int recorded_each(const char *name, void (*each)(const json_t *line))
{
    char path[GOLDEN_PATH_CHARS];
    char *text = NULL;
    size_t size = 0;
    int n = -1;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s.jsonl", golden_whole_dir(), name);
    file = fopen(path, "r");
    if (file == NULL) {
        printf("skipped: %s: recorded vectors are not here\n", path);
        return -1;
    }
    while (getline(&text, &size, file) > 0) {
        json_t *line = json_loads(text, JSON_DECODE_ANY, NULL);

        if (line == NULL)
            fail_msg("%s: line %d is no JSON", path, n + 2);
        if (n >= 0) /* the first line tells about the file */
            each(line);
        n++;
        json_decref(line);
    }
    free(text);
    fclose(file);
    printf("%s: %d recorded cases\n", name, n);
    return n;
}

/* A number; not finite ones are texts, null is NaN. */
static inline double recorded_number(const json_t *value)
{
    const char *text = json_string_value(value);

    if (text != NULL)
        return strcmp(text, "nan") == 0 ? (double)NAN : strcmp(text, "inf") == 0 ? (double)INFINITY : -(double)INFINITY;
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static inline int recorded_int(const json_t *value)
{
    return (int)json_integer_value(value);
}

static inline bool recorded_is_near(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= 1e-12 * fmax(1.0, fmax(fabs(a), fabs(b)));
}

/* A name of ours as it was recorded: "TRAINING". */
static inline const char *recorded_name(const char *name, char loud[32])
{
    size_t i = 0;

    for (; name != NULL && name[i] != '\0' && i < 31; i++)
        loud[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
    loud[i] = '\0';
    return loud;
}

#endif
