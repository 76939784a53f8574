/* Internal. Recorded vectors: where they are, reading them, and comparing with them.
 *
 * All of them lie in ../shared/golden beside the source tree; where that is absent, a part of them, copied
 * unchanged, in tests/golden. A value is compared under the tolerance that one table (golden.c) gives its tensor,
 * with the reason. */
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

/* Where a file is; the path of a fixture whether or not all vectors are here. */
bool        golden_is_whole(void); /* ../shared/golden is here */
bool        golden_is_here(const golden_entry *entry);
const char *golden_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS]);
const char *golden_fixture_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS]);
const char *golden_fixture_dir(void);
const char *golden_whole_dir(void);

/* One line on standard output: which files of these parts (bits) are checked, from where, and which are skipped. */
void golden_say(unsigned parts);

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
