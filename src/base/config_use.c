/* Which settings can have an effect in a run: the columns jobs, needs and effect of the table. */
#include <assert.h>
#include <string.h>

#include "base/config.h"

/* The words of the column needs, as bits. */
enum {
#define X(name, holds, why, instead, compared) NEED_##name,
    ESPER_CONFIG_NEED_LIST(X) N_NEEDS
#undef X
};

enum {
    ALWAYS = 0,
#define X(name, holds, why, instead, compared) name = 1 << NEED_##name,
    ESPER_CONFIG_NEED_LIST(X)
#undef X
        IMAGES = NO_TEXT | NO_TABLE,
    TEXT = NO_IMAGES | NO_TABLE,
    DENSE = NO_IMAGES,
};

/* And of the column jobs. */
enum {
#define X(name, text) name = ESPER_CONFIG_IN_##name,
    ESPER_CONFIG_JOB_LIST(X)
#undef X
        GROWN = GROW | LEARN | COMPARE,
    EVERY = TRAIN | GROWN
};

static const struct {
    unsigned            jobs, needs;
    esper_config_effect effect;
} uses[ESPER_CONFIG_N_KEYS] = {
#define X(section, name, kind, preset, range, unit, jobs_, needs_, effect_, help)                                      \
    {.jobs = (jobs_), .needs = (needs_), .effect = ESPER_CONFIG_CHANGES_##effect_},
    ESPER_CONFIG_KEY_LIST(X)
#undef X
};

static const char *const job_names[ESPER_CONFIG_N_JOBS] = {
#define X(name, text) text,
    ESPER_CONFIG_JOB_LIST(X)
#undef X
};

/* By the commands that have it. (No command lacks what is of every one.) */
#define OF "that is a setting of "
static const char *const job_reasons[EVERY] = {
    [GROW] = OF "`esper grow`",
    [LEARN] = OF "`esper learn`",
    [TRAIN | GROW] = OF "`esper train` and `esper grow`",
    [GROW | COMPARE] = OF "`esper grow` and `esper compare`",
    [TRAIN | GROW | LEARN] = OF "`esper train`, `esper grow` and `esper learn`",
    [TRAIN | GROW | COMPARE] = OF "`esper train`, `esper grow` and `esper compare`",
    [GROWN] = OF "`esper grow`, `esper learn` and `esper compare`",
};

static const struct {
    const char *why, *instead, *compared;
} needs[N_NEEDS] = {
#define X(name, holds, why, instead, compared) {why, instead, compared},
    ESPER_CONFIG_NEED_LIST(X)
#undef X
};

/* Faults of a drill strike one after the other: behind one that waits for a seed, none does before there is one. */
static bool waits_for_seed(const char *inject)
{
    const char *where = strchr(inject, ':');

    return where != NULL && strncmp(where, ":seed:", strlen(":seed:")) == 0;
}

/* The needs that are met, as bits. */
static unsigned met(const esper_config *config, const esper_config_use *use)
{
    unsigned bits = 0;

#define X(name, holds, why, instead, compared) bits |= (holds) ? (unsigned)name : 0;
    ESPER_CONFIG_NEED_LIST(X)
#undef X
    return bits;
}

static int lowest_bit(unsigned bits)
{
    return __builtin_ctz(bits);
}

const char *esper_config_why_not(const esper_config *config, int index, const esper_config_use *use,
                                 const char **instead_out)
{
    unsigned missing;

    assert(index >= 0 && index < ESPER_CONFIG_N_KEYS);
    *instead_out = "";
    if ((uses[index].jobs & use->job) == 0) {
        assert(uses[index].jobs < EVERY && job_reasons[uses[index].jobs] != NULL);
        return job_reasons[uses[index].jobs];
    }
    missing = uses[index].needs & ~met(config, use);
    if (missing == 0)
        return NULL;
    *instead_out =
        use->job == ESPER_CONFIG_IN_COMPARE ? needs[lowest_bit(missing)].compared : needs[lowest_bit(missing)].instead;
    return needs[lowest_bit(missing)].why;
}

const char *esper_config_job_name(esper_config_job job)
{
    return job_names[lowest_bit(job)];
}

unsigned esper_config_jobs_of(int index)
{
    assert(index >= 0 && index < ESPER_CONFIG_N_KEYS);
    return uses[index].jobs;
}

esper_config_effect esper_config_effect_of(int index)
{
    assert(index >= 0 && index < ESPER_CONFIG_N_KEYS);
    return uses[index].effect;
}
