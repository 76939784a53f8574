/* The list of differences on purpose: marks, counts, rows. */
#include "support/difference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *file, *mark, *recorded, *ours;
} list[] = {
#define X(name, file, mark, recorded, ours) {file, mark, recorded, ours},
    DIFFERENCE_LIST(X)
#undef X
};

static int n_met[N_DIFFERENCES];

bool difference_is_marked(difference d, const json_t *line)
{
    const json_t *marks = json_object_get(line, "touches");

    if (strcmp(list[d].mark, "-") == 0)
        return true;
    for (size_t i = 0; i < json_array_size(marks); i++)
        if (strcmp(json_string_value(json_array_get(marks, i)), list[d].mark) == 0)
            return true;
    return false;
}

void difference_met(difference d, const json_t *line)
{
    if (!difference_is_marked(d, line))
        fail_msg("%s, case %d: differs (%s), and is not marked %s", list[d].file,
                 (int)json_integer_value(json_object_get(line, "case")), list[d].ours, list[d].mark);
    n_met[d]++;
}

int difference_say(const char *file)
{
    int n = 0;

    for (int d = 0; d < N_DIFFERENCES; d++)
        if (strcmp(list[d].file, file) == 0) {
            printf("  %5d times: %s; ours: %s\n", n_met[d], list[d].recorded, list[d].ours);
            n += n_met[d];
            n_met[d] = 0;
        }
    return n;
}

const char *difference_row(difference d, char row[DIFFERENCE_ROW_CHARS])
{
    snprintf(row, DIFFERENCE_ROW_CHARS, "| `%s` | %s | %s | %s |\n", list[d].file, list[d].mark, list[d].recorded,
             list[d].ours);
    return row;
}
