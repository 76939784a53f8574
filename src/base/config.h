/* Internal. The configuration in force: one plain struct with a field for each key of config_keys.h.
 *
 * Values come from five places, from the weakest to the strongest: default, task preset, file, environment, flag. A
 * weaker place never replaces the value of a stronger one, so they may be loaded in any order (flags first, to learn
 * which task and file are meant), and every value remembers its place. What is set is checked at once; functions that
 * set several values leave the configuration as it was when one of them is bad. All failures are ESPER_E_CONFIG, except
 * for a file that cannot be read. The struct owns nothing and may be copied. */
#ifndef ESPER_BASE_CONFIG_H
#define ESPER_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/config_keys.h"
#include "base/number.h"
#include "base/suggest.h"
#include "esper.h"

enum {
    ESPER_CONFIG_TEXT_CHARS = 1024, /* of a text, terminator included */
    ESPER_CONFIG_MAX_NAMES = 8,     /* presets and files one configuration can come from */
};

/* One enum for each choice: ESPER_CONFIG_OPTIMIZER_ADAMW and so on; log_level uses esper_log_level. */
#define X(of, name, text) ESPER_CONFIG_##of##_##name,
typedef enum esper_config_backend { ESPER_CONFIG_BACKEND_LIST(X) } esper_config_backend;
typedef enum esper_config_precision { ESPER_CONFIG_PRECISION_LIST(X) } esper_config_precision;
typedef enum esper_config_progress { ESPER_CONFIG_PROGRESS_LIST(X) } esper_config_progress;
typedef enum esper_config_optimizer { ESPER_CONFIG_OPTIMIZER_LIST(X) } esper_config_optimizer;
typedef enum esper_config_length { ESPER_CONFIG_LENGTH_LIST(X) } esper_config_length;
typedef enum esper_config_schedule { ESPER_CONFIG_SCHEDULE_LIST(X) } esper_config_schedule;
typedef enum esper_config_gates { ESPER_CONFIG_GATES_LIST(X) } esper_config_gates;
typedef enum esper_config_comm { ESPER_CONFIG_COMM_LIST(X) } esper_config_comm;
typedef enum esper_config_curriculum { ESPER_CONFIG_CURRICULUM_LIST(X) } esper_config_curriculum;
typedef enum esper_config_incubation { ESPER_CONFIG_INCUBATION_LIST(X) } esper_config_incubation;
typedef enum esper_config_birth { ESPER_CONFIG_BIRTH_LIST(X) } esper_config_birth;
#undef X
typedef esper_log_level esper_config_log_level;

typedef enum esper_config_kind {
    ESPER_CONFIG_INT,
    ESPER_CONFIG_U64,
    ESPER_CONFIG_REAL,
    ESPER_CONFIG_BOOL,
    ESPER_CONFIG_CHOICE,
    ESPER_CONFIG_TEXT,
} esper_config_kind;

/* Places a value can come from, the strongest last. */
typedef enum esper_config_place {
    ESPER_CONFIG_DEFAULT,
    ESPER_CONFIG_PRESET,
    ESPER_CONFIG_FILE,
    ESPER_CONFIG_ENVIRON,
    ESPER_CONFIG_FLAG,
} esper_config_place;

typedef struct esper_config_source {
    esper_config_place place;
    const char        *name; /* of the preset or file; unused by the other places */
    int                line; /* in the file; 0 = none */
} esper_config_source;

#define X(section, name, kind, preset, range, unit, jobs, needs, effect, help) +1
enum { ESPER_CONFIG_N_KEYS = 0 ESPER_CONFIG_KEY_LIST(X) };
#undef X

/* How a kind is kept, and how long it is as text. Choices are checked to be as wide as int. */
#define ESPER_CONFIG_FIELD_INT(name)    int name;
#define ESPER_CONFIG_FIELD_U64(name)    uint64_t name;
#define ESPER_CONFIG_FIELD_REAL(name)   double name;
#define ESPER_CONFIG_FIELD_BOOL(name)   bool name;
#define ESPER_CONFIG_FIELD_CHOICE(name) esper_config_##name name;
#define ESPER_CONFIG_FIELD_TEXT(name)   char name[ESPER_CONFIG_TEXT_CHARS];

typedef struct esper_config {
#define X(section, name, kind, preset, range, unit, jobs, needs, effect, help) ESPER_CONFIG_FIELD_##kind(name)
    ESPER_CONFIG_KEY_LIST(X)
#undef X
    /* Private: where each value came from. A name is kept once and known by its index. */
    struct {
        esper_config_place place;
        int                name, line;
    } origins[ESPER_CONFIG_N_KEYS];
    int  n_names;
    char names[ESPER_CONFIG_MAX_NAMES][ESPER_CONFIG_TEXT_CHARS];
} esper_config;

/* The whole configuration as text fits into this: for each key its name, " = ", the longest value and a line end. */
enum {
    ESPER_CONFIG_RECORD_CHARS = 1
#define X(section, name, kind, preset, range, unit, jobs, needs, effect, help) \
    +sizeof(#name " = ") + (ESPER_CONFIG_##kind == ESPER_CONFIG_TEXT ? ESPER_CONFIG_TEXT_CHARS : ESPER_NUMBER_CHARS)
    ESPER_CONFIG_KEY_LIST(X)
#undef X
};

/* What is known about a key. Numbers outside low .. high are refused. */
typedef struct esper_config_key {
    const char        *section; /* heading in the help: "Training" */
    const char        *name;    /* "weight_decay"; the flag is --weight-decay, the variable ESPER_WEIGHT_DECAY */
    esper_config_kind  kind;
    const char        *preset;  /* the default, as text */
    struct {
        bool   any, low_open, high_open;
        double low, high;
    } range;
    const char *const *choices; /* words, NULL after the last; NULL for other kinds */
    const char        *unit, *help;
    size_t             offset;  /* of the field in esper_config */
} esper_config_key;

/* Every key with its default. */
void esper_config_init(esper_config *config);

/* Sets one key. Words of the key may be joined by '_' or '-'. */
esper_status esper_config_set(esper_config *config, const char *key, const char *text,
                              const esper_config_source *source);

/* Lines "key = value"; '#' or ';' begins a comment, at the start of a line or after a blank; no sections, no quotes, no
 * key twice. `name` stands for the text in messages. */
esper_status esper_config_load_file(esper_config *config, const char *path);
esper_status esper_config_load_text(esper_config *config, const char *text, size_t bytes, const char *name);

/* Every variable ESPER_<KEY>. One that is no key is an error, so that a misspelt one is not silently ignored; only
 * ESPER_CONFIG, ESPER_KERNELS, ESPER_TUNE, ESPER_NVRTC, ESPER_MPI_SHARED, ESPER_GOLDEN, ESPER_TEST_*, ESPER_FUZZ_*,
 * ESPER_GUARD_LIBRARY and ESPER_ENGINE_LIBRARY belong to others. */
esper_status esper_config_load_environ(esper_config *config);

/* An option of one command, beside the keys. */
typedef struct esper_config_option {
    const char  *name;       /* "resume" for --resume */
    char         letter;     /* 'h' for -h; 0 = none */
    bool         has_value;
    const char **text_out;   /* receives the value (borrowed from argv), "" for an option without; else left alone */
} esper_config_option;

/* Takes --key value, --key=value, --flag, --no-flag and the command's own options out of argv (arguments only, without
 * the program's name). What remains are the positional arguments, moved to the front: *n_left_out of them. "--" ends
 * the options. Of a repeated flag the last one counts. */
esper_status esper_config_parse_args(esper_config *config, int argc, char **argv, const esper_config_option *options,
                                     int n_options, int *n_left_out);

/* The whole configuration as text that esper_config_load_text reads back to the same values: for run records and
 * checkpoints. Returns its length. */
size_t esper_config_write(const esper_config *config, char text[ESPER_CONFIG_RECORD_CHARS]);

/* Keys by index, 0 .. ESPER_CONFIG_N_KEYS-1 in the order of the list; find gives -1 for a name that is none. */
int                     esper_config_find(const char *name);
const esper_config_key *esper_config_key_at(int index);

/* Begins a suggestion for a name, with all keys offered. */
void esper_config_suggest(esper_suggest *suggest, const char *name);

/* One value as text, and where it came from, in words: "flag --lr", "my.conf:12", "environment ESPER_LR", "default". */
void               esper_config_value_text(const esper_config *config, int index, char text[ESPER_CONFIG_TEXT_CHARS]);
void               esper_config_source_text(const esper_config *config, int index, char *text, size_t size);
esper_config_place esper_config_place_of(const esper_config *config, int index);

const char *esper_config_gates_name(esper_config_gates gates); /* "strict", "permissive" */

/* What a key accepts, in words: "a whole number of samples from 1 to 65536". */
void esper_config_expected_text(const esper_config_key *key, char *text, size_t size);

/* The flag or variable of a key: "--weight-decay", "ESPER_WEIGHT_DECAY". */
enum { ESPER_CONFIG_NAME_CHARS = 64 };
void esper_config_flag_name(const char *key, char text[ESPER_CONFIG_NAME_CHARS]);
void esper_config_variable_name(const char *key, char text[ESPER_CONFIG_NAME_CHARS]);

/* Whether a key is meant. It is a copy: default and help may be replaced by what they are in this place. */
typedef bool (*esper_config_choose)(esper_config_key *key, const void *context);

/* For people: every flag that `choose` (NULL: all) takes, with its help, by section, in lines of `width` columns. */
void esper_config_help(FILE *stream, int width, esper_config_choose choose, const void *context);

/* ---- which settings can have an effect ---- */

/* Commands that make runs, and who may decide about seeds there: bits. */
#define X(name, text) ESPER_CONFIG_INDEX_##name,
enum { ESPER_CONFIG_JOB_LIST(X) ESPER_CONFIG_N_JOBS };
#undef X
#define X(name, text) ESPER_CONFIG_IN_##name = 1 << ESPER_CONFIG_INDEX_##name,
typedef enum esper_config_job { ESPER_CONFIG_JOB_LIST(X) } esper_config_job;
#undef X

enum {
    ESPER_CONFIG_BY_RULES = 1,   /* the heuristic */
    ESPER_CONFIG_BY_CHANCE = 2,
    ESPER_CONFIG_BY_SCRIPT = 4,  /* a decision file */
    ESPER_CONFIG_BY_PROGRAM = 8, /* policy_cmd */
    ESPER_CONFIG_BY_LEARNED = 16, /* a policy that has learned, or that learns here */
    ESPER_CONFIG_BY_SEARCH = 32,  /* halving: it decides before the run begins, and nobody then */
    ESPER_CONFIG_BY_TRIALS = 64
};

/* What a run is, as far as it is not in its configuration. */
typedef struct esper_config_use {
    esper_config_job job;
    const char      *task;
    bool             images, text, table; /* which of these its data is: its host is convolutional, a transformer, an MLP */
    bool             has_files; /* its data is read from files */
    bool             own;       /* its data is people's own: named by a path, decoded into the cache */
    bool             launched;  /* below mpirun or the like, if only as one rank: jobs of several sizes have the same flags */
    unsigned         deciders;  /* ESPER_CONFIG_BY_*; 0 = nobody */
} esper_config_use;

/* What a setting changes. Only BITS may change what is computed or decided. */
#define X(name) ESPER_CONFIG_CHANGES_##name,
typedef enum esper_config_effect { ESPER_CONFIG_EFFECT_LIST(X) ESPER_CONFIG_N_EFFECTS } esper_config_effect;
#undef X

/* Why a setting has no effect in a run, and what somebody could do who gave it as a flag ("" = nothing); NULL: it can have one. Of
 * the same reason it is the same pointer. */
const char *esper_config_why_not(const esper_config *config, int index, const esper_config_use *use,
                                 const char **instead_out);

const char         *esper_config_job_name(esper_config_job job); /* "train" */
unsigned            esper_config_jobs_of(int index);             /* ESPER_CONFIG_IN_* */
esper_config_effect esper_config_effect_of(int index);

/* Every key that can have an effect in that run with its value and where it came from; with `all` the others, too, and why
 * they have none. */
void esper_config_print_sources(const esper_config *config, const esper_config_use *use, bool all, FILE *stream);

/* The saved configuration with what was asked for by file, environment or flag laid over it. Only the free keys (NULL at the end)
 * may differ; another that does is E_CONFIG. */
esper_status esper_config_merge(const esper_config *saved, const esper_config *asked, const char *const *free_keys,
                                esper_config *merged_out);

/* Lays what was asked for by file, environment or flag over a configuration, each value with its place: of `keys` (NULL at the
 * end), or all of it where they are NULL. */
esper_status esper_config_lay_over(esper_config *config, const esper_config *asked, const char *const *keys);

/* As if nobody had set that key. */
void esper_config_withdraw(esper_config *config, int index);

#endif
