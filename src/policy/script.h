/* Internal. The form of a decision file:
 *
 *     # epoch slot operation [choice=value ...]
 *     6   r0c0  germinate  blueprint=conv_light style=sigmoid_add tempo=5 target=1
 *     7   r0c0  advance
 *     30  r0c0  set_alpha_target  target=0.5 speed=3 curve=cosine
 *     40  -     wait
 *
 * Words are parted by blanks or tabs; '#' begins a comment; lines go by epoch, one at most for each. An epoch without a line
 * waits. A line is judged when the file is read (words, ranges, slots, blueprints) and again when its epoch comes (is it
 * legal now); both name the file and the line. A checkpoint remembers a hash of the lines used so far: a file may be changed
 * for a resumed run, but only its future. */
#ifndef ESPER_POLICY_SCRIPT_H
#define ESPER_POLICY_SCRIPT_H

#include <stdint.h>

#include "policy/policy.h"

enum { ESPER_SCRIPT_MAX_BYTES = 16 << 20 };

typedef struct esper_script_line {
    int            epoch, line;
    esper_decision decision; /* its slot counts in the setup's slot_ids */
} esper_script_line;

typedef struct esper_script {
    esper_script_line *lines; /* (n_lines), by epoch */
    int                n_lines;
} esper_script;

/* Reads a decision file's text; `name` stands for it in messages. The text is changed. E_CONFIG names the line. */
esper_status esper_script_init(esper_script *script, char *text, size_t bytes, const char *name,
                               const esper_policy_setup *setup);
void         esper_script_fini(esper_script *script);

/* The line of an epoch; NULL = there is none. */
const esper_script_line *esper_script_find(const esper_script *script, int epoch);

#endif
