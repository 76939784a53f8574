/* The result of a run, from its store. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/policy.h"
#include "slot/stage.h"
#include "telemetry/store.h"
#include "run/compare.h"
#include "run/settings.h"

/* What may differ between two runs that are the same. */
static const char *const free_keys[] = {"threads", "progress", "log_level", "checkpoint_every", "run_dir", NULL};

/* What has no effect on a run may differ, too; and so may the seeds that a search has found, which are what it tested. */
static esper_status check_config(esper_store_reader *reader, const esper_store_run *run, const char *run_dir,
                                 const esper_config *wanted, char tested[ESPER_CONFIG_TEXT_CHARS])
{
    bool searched = strcmp(wanted->policy, esper_policy_halving.name) == 0;
    char was[ESPER_CONFIG_TEXT_CHARS], now[ESPER_CONFIG_TEXT_CHARS], *text;
    const char *instead;
    const esper_task *task;
    esper_config_use use;
    esper_config config;
    esper_status status;

    ESPER_TRY(esper_task_find(run->task, &task));
    use = esper_settings_use(task, ESPER_CONFIG_IN_GROW, wanted);
    ESPER_TRY(esper_store_read_config(reader, run->id, &text));
    esper_config_init(&config);
    status =
        strstr(text, "\nlength = ") == NULL
            ? ESPER_FAIL(ESPER_E_CONFIG,
                         "%s holds a run of an earlier version, which had no budget of FLOPs: choose another directory",
                         run_dir)
            : esper_config_load_text(&config, text, strlen(text), run_dir);
    esper_mem_free(text);
    ESPER_TRY(status);
    if (searched)
        memcpy(tested, config.plant, sizeof(config.plant));
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const esper_config_key *key = esper_config_key_at(i);

        if (searched && strcmp(key->name, "plant") == 0)
            continue;
        esper_config_value_text(&config, i, was);
        esper_config_value_text(wanted, i, now);
        if (strcmp(was, now) != 0 && !esper_settings_list_has(free_keys, key->name) &&
            esper_config_why_not(wanted, i, &use, &instead) == NULL)
            return ESPER_FAIL(
                ESPER_E_CONFIG,
                "%s holds a run with %s = %s, and %s is wanted now: ask as before to go on, or choose another "
                "directory",
                run_dir, key->name, was[0] != '\0' ? was : "(nothing)", now[0] != '\0' ? now : "nothing");
    }
    return ESPER_OK;
}

/* The test is of the network as it stands at the end: seeds that blend or hold are part of it like those that were kept. */
static esper_status read_tested(esper_store_reader *reader, int64_t run, char tested[ESPER_CONFIG_TEXT_CHARS])
{
    static const esper_stage stages[] = {ESPER_STAGE_BLENDING, ESPER_STAGE_HOLDING, ESPER_STAGE_FOSSILIZED};
    esper_store_cursor *cursor;
    esper_store_seed seed;
    esper_status status;
    size_t n = 0;
    bool found = true;

    tested[0] = '\0';
    ESPER_TRY(esper_store_read_seeds(reader, run, &cursor));
    while ((status = esper_store_next_seed(cursor, &seed, &found)) == ESPER_OK && found)
        for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
            if (n < ESPER_CONFIG_TEXT_CHARS && strcmp(seed.stage, esper_stage_name(stages[i])) == 0)
                n += (size_t)snprintf(tested + n, ESPER_CONFIG_TEXT_CHARS - n, "%s%s:%s:%s", n > 0 ? "," : "",
                                      seed.slot, seed.blueprint, seed.blend);
    esper_store_cursor_close(cursor);
    if (status == ESPER_OK && n >= ESPER_CONFIG_TEXT_CHARS)
        return ESPER_FAIL(ESPER_E_CONFIG, "the network has more seeds than the setting plant can name");
    return status;
}

static double real_of(double value)
{
    return value == ESPER_STORE_NO_REAL ? (double)NAN : value;
}

/* What stands in its epochs alone: the accuracy that the last one was validated with, and the time of a run that was resumed, which
 * itself knows that of its last part. */
static esper_status read_epochs(esper_store_reader *reader, const esper_store_run *run, esper_compare_result *result)
{
    const esper_store_filter filter = {
        .run = run->id, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .standing = true};
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_status status;
    double seconds = 0.0;
    bool found = true;

    ESPER_TRY(esper_store_read(reader, ESPER_STORE_EPOCH, &filter, &cursor));
    while ((status = esper_store_next(cursor, &record, &found)) == ESPER_OK && found) {
        seconds += record.epoch_done.seconds;
        result->acc_valid = real_of(record.epoch_done.acc_valid);
    }
    esper_store_cursor_close(cursor);
    result->seconds = run->n_resumed > 0 ? seconds : real_of(run->seconds);
    return status;
}

static esper_compare_outcome judge(const esper_store_run *run)
{
    bool finite = run->acc_test != ESPER_STORE_NO_REAL && isfinite(run->acc_test) &&
                  run->loss_test != ESPER_STORE_NO_REAL && isfinite(run->loss_test);

    if (run->ended == ESPER_STORE_NO_REAL)
        return ESPER_COMPARE_PENDING;
    if (strcmp(run->status, esper_status_name(ESPER_OK)) == 0)
        return finite ? ESPER_COMPARE_GOOD : ESPER_COMPARE_NOT_FINITE;
    if (strcmp(run->status, esper_status_name(ESPER_E_STATE)) == 0)
        return ESPER_COMPARE_BROKEN_OFF;
    return ESPER_COMPARE_PENDING; /* stopped, or failed for a reason that may be gone */
}

static double real_of_int(int64_t value)
{
    return value == ESPER_STORE_NO_INT ? (double)NAN : (double)value;
}

static esper_status take_run(esper_store_reader *reader, const esper_store_run *run, esper_compare_result *result)
{
    result->outcome = judge(run);
    if (result->outcome == ESPER_COMPARE_PENDING)
        return ESPER_OK;
    if (strcmp(run->policy, esper_policy_halving.name) != 0)
        ESPER_TRY(read_tested(reader, run->id, result->tested));
    ESPER_TRY(read_epochs(reader, run, result));
    result->acc_test = real_of(run->acc_test);
    result->loss_test = real_of(run->loss_test);
    result->total_reward = real_of(run->total_reward);
    snprintf(result->policy, sizeof(result->policy), "%s", run->policy);
    result->flops = real_of_int(run->flops);
    result->flops_train = real_of_int(run->flops_train);
    result->params = run->params;
    result->epochs = run->epochs;
    if (result->outcome == ESPER_COMPARE_NOT_FINITE)
        snprintf(result->why, sizeof(result->why), "the loss of its test is no number");
    return ESPER_OK;
}

static esper_status read_store(esper_store_reader *reader, const char *run_dir, const esper_config *config,
                               esper_compare_result *result)
{
    esper_store_run run = esper_store_run_of("");
    bool found;

    ESPER_TRY(esper_store_find_run(reader, ESPER_STORE_NO_INT, NULL, &run, &found));
    if (!found)
        return ESPER_OK;
    ESPER_TRY(check_config(reader, &run, run_dir, config, result->tested));
    return take_run(reader, &run, result);
}

esper_status esper_compare_read(const char *run_dir, const esper_config *config, esper_compare_result *result_out)
{
    esper_compare_result result = *result_out;
    esper_store_reader *reader;
    char path[ESPER_PATH_CHARS];
    struct stat info;
    esper_status status;

    result_out->outcome = result.outcome = ESPER_COMPARE_PENDING;
    ESPER_TRY(esper_run_path(run_dir, ESPER_RUN_STORE, path));
    if (stat(path, &info) != 0 || info.st_size == 0)
        return ESPER_OK;
    ESPER_TRY(esper_store_reader_open(path, &reader));
    status = read_store(reader, run_dir, config, &result);
    esper_store_reader_close(reader);
    if (status == ESPER_OK)
        *result_out = result;
    return status;
}
