/* Internal. Recorded vectors: where they are, reading them, and comparing with them.
 *
 * The whole set lies in the folder that ESPER_GOLDEN names; where that is not set, a part of one, copied unchanged, in
 * tests/golden is all there is, and what is not in it is skipped. Nobody but golden.c asks where. Tests that read
 * recorded vectors carry the label `golden`. A value is compared under the tolerance that one table (golden.c) gives its
 * tensor, with the reason. */
#ifndef ESPER_TESTS_GOLDEN_H
#define ESPER_TESTS_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/safetensors.h"

enum { GOLDEN_PATH_CHARS = 1024, GOLDEN_FIXTURE_BYTES = 1000000 /* all of tests/golden together, at most */ };

typedef enum golden_part {
    GOLDEN_HOST = 1,   /* nets/<name>: a host */
    GOLDEN_SEED = 2,   /* nets/<name>: a blueprint, as constructed and perturbed */
    GOLDEN_GATE = 4,   /* nets/<name>: a gate network */
    GOLDEN_BIRTHS = 8, /* blueprints.jsonl; its fixture is a part of its lines */
    GOLDEN_SLOTTED = 16, /* nets/<name>: a host with seeds in its slots */
    GOLDEN_BLEND = 32,   /* blend.jsonl; its fixture is a part of its lines */
    GOLDEN_POLICY = 64,  /* <name>.jsonl: steps of policies (tests/policy); its fixture is a part of its lines */
} golden_part;

typedef struct golden_entry {
    const char *name; /* NULL ends the list */
    golden_part part;
    bool        fixture; /* also in tests/golden */
} golden_entry;

extern const golden_entry golden_entries[];

/* The folder that is read: ESPER_GOLDEN, or tests/golden where that is not set or empty. The program ends with an error
 * where ESPER_GOLDEN is no folder, or where ctest runs a test that is not labelled `golden`. */
const char *golden_dir(void);
bool        golden_is_whole(void); /* ESPER_GOLDEN is set */

/* Where a file is in that folder, and whether it is. */
bool        golden_is_here(const golden_entry *entry);
const char *golden_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS]);

/* Of the committed part, whichever folder is read. */
const char *golden_fixture_dir(void);
const char *golden_fixture_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS]);

/* How many files of these parts (bits) are here; says on standard output which are, and which are skipped. */
int golden_count(unsigned parts);
void golden_say(unsigned parts);

/* Within a cmocka test: calls `each` for every case of <name>.jsonl and gives their number, one or more. Skips the test
 * where there is no such file, and fails where it holds no case or what is no JSON. */
int golden_each_case(const char *name, void (*each)(const json_t *line));

/* What has been compared so far, and how it went. */
typedef struct golden_tally {
    const char *label; /* who computed: "cpu/avx2" */
    bool        quiet; /* mismatches are counted, not printed */
    long        n_values, n_tensors, n_mismatches;
    double      share;             /* largest part of a tolerance that was used up, 1 = all of it */
    char        share_where[192];  /* and by which tensor */
    char        first_bad[192];    /* the first mismatch: file and tensor */
} golden_tally;

/* A mismatch that is no tensor: describes it as printf does. */
void golden_mismatch(golden_tally *tally, const char *file, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* One recorded file of tensors. */
typedef struct golden {
    const char        *name;
    golden_tally      *tally;
    esper_safetensors *file;
    bool              *used; /* tensors that were loaded or compared */
} golden;

esper_status golden_open(golden *vectors, const golden_entry *entry, golden_tally *tally);
void         golden_close(golden *vectors);

/* A tensor by name, marked as used; NULL when there is none. */
const esper_safetensors_tensor *golden_find(golden *vectors, const char *name);

/* Copies a tensor: F32 to float, I64 to int32_t. False, and a mismatch, unless it is there with `count` elements. */
bool golden_load(golden *vectors, const char *name, void *data_out, int64_t count);

/* Element i of a tensor of floating-point numbers; NAN, which equals nothing, for other types. */
double golden_number(const esper_safetensors_tensor *tensor, int64_t i);

/* Compares values with the tensor of that name. A missing tensor or another number of elements is a mismatch. */
void golden_compare(golden *vectors, const char *name, const float *values, int64_t count);

/* The same with values that follow from the recorded ones, under the tolerance of `name`. */
void golden_compare_with(golden *vectors, const char *name, const float *values, const double *expected, int64_t count);

/* Every tensor of the file that nobody has used is a mismatch: nothing recorded is passed over by mistake. */
void golden_expect_all_used(golden *vectors);

/* A detail of the file, parsed; NULL when there is none. The caller drops it with json_decref. */
json_t *golden_detail(const golden *vectors, const char *key);

/* The tolerance of a tensor, relative to its largest recorded entry, and why. */
double golden_tolerance(const char *file, const char *tensor, const char **reason_out);

#endif
