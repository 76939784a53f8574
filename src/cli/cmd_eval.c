/* esper eval: accuracy of a checkpoint. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "run/checkpoint.h"
#include "run/run_dir.h"
#include "run/settings.h"
#include "run/single.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* Settings that may differ from those the network was trained with. */
static const char *const keys[] = {"threads", "backend", "data", "batch", NULL};

static void print_score(const esper_network *network, const char *file, esper_split split, const esper_tally *tally,
                        bool as_json)
{
    const esper_cursor *cursor = &network->cursor;
    char text[6 * ESPER_PATH_CHARS + 256]; /* every character of the path may need an escape */
    char count[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], batches[40] = "";
    esper_json json;

    if (!as_json) { /* "runs/x/last.safetensors after epoch 3: test split: loss ..." */
        if (cursor->batch > 0)
            snprintf(batches, sizeof(batches), " and %u batch%s", cursor->batch, cursor->batch == 1 ? "" : "es");
        esper_terminal_print(stdout, "%s after epoch %u%s: %s split: loss %s, accuracy %.2f %% over %s samples\n", file,
                             cursor->epoch, batches, esper_split_name(split),
                             esper_text_loss(esper_tally_loss(tally), loss), esper_tally_accuracy(tally),
                             esper_text_count((int64_t)tally->samples, count));
        return;
    }
    esper_json_init(&json, text, sizeof(text));
    esper_json_object_begin(&json);
    esper_json_key(&json, "path"), esper_json_text(&json, file);
    esper_json_key(&json, "epoch"), esper_json_int(&json, cursor->epoch);
    esper_json_key(&json, "task"), esper_json_text(&json, network->engine->task);
    esper_json_key(&json, "split"), esper_json_text(&json, esper_split_name(split));
    esper_json_key(&json, "samples"), esper_json_int(&json, (int64_t)tally->samples);
    esper_json_key(&json, "loss"), esper_json_real(&json, esper_tally_loss(tally));
    esper_json_key(&json, "accuracy"), esper_json_real(&json, esper_tally_accuracy(tally));
    esper_json_object_end(&json);
    assert(!json.overflow);
    printf("%s\n", text);
}

static esper_status evaluate(const char *file, const esper_config *asked, esper_split split, bool json)
{
    const esper_log log = {.level = asked->log_level, .stream = stderr};
    esper_checkpoint checkpoint;
    esper_network *network = NULL;
    esper_config_use use;
    esper_config config;
    esper_tally tally;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init(file, &checkpoint));
    config = checkpoint.config;
    use = esper_settings_use(checkpoint.task, ESPER_CONFIG_IN_TRAIN, &config);
    config.max_steps = 0; /* the whole split, however short the epochs were */
    status = esper_settings_check(asked, &config, &use, &log);
    if (status == ESPER_OK)
        status = esper_config_lay_over(&config, asked, keys);
    if (status == ESPER_OK)
        status = esper_single_open(checkpoint.task, &config, ESPER_USE_EVALUATE, &network);
    if (status == ESPER_OK) {
        if (!esper_checkpoint_knows_data(&checkpoint, network))
            esper_log_warn(&log, "%s: the data is not what the network was trained on", file);
        status = esper_checkpoint_restore(&checkpoint, network);
        if (status == ESPER_OK)
            status = esper_network_evaluate(network, split, NULL, &tally);
        if (status == ESPER_OK)
            print_score(network, file, split, &tally, json);
        esper_single_close(network);
    }
    esper_checkpoint_fini(&checkpoint);
    return status;
}

enum { SPLIT, JSON };

static const esper_command_option options[] = {[SPLIT] = {"split", true}, [JSON] = {"json", false}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    const char *name = call->given[SPLIT] != NULL ? call->given[SPLIT] : esper_split_name(ESPER_SPLIT_TEST);
    char path[ESPER_PATH_CHARS];
    int split = 0;

    while (split < ESPER_N_SPLITS && strcmp(esper_split_name((esper_split)split), name) != 0)
        split++;
    if (split == ESPER_N_SPLITS)
        return esper_cli_usage(call, "no split is called '%s': there are train, valid and test", name);
    ESPER_TRY(esper_run_checkpoint_find(call->words[0], path));
    return evaluate(path, &call->config, (esper_split)split, call->given[JSON] != NULL);
}

const esper_command esper_command_eval = {
    .name = "eval",
    .arguments = "RUN|FILE [flags]",
    .summary = "accuracy of a checkpoint",
    .help = "FILE is a checkpoint; RUN a directory, the beginning of its name below runs/, or 'last'.\n\n"
            "  --split NAME    test (default), valid or train\n"
            "  --json          one JSON object instead of a sentence\n"
            "  --threads N, --backend NAME, --data PATH, --batch N   as for train",
    .keys = keys,
    .options = options,
    .wants = "one run or checkpoint",
    .run = run,
};
