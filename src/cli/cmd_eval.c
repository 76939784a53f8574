/* esper eval: accuracy of a checkpoint. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "run/checkpoint.h"
#include "run/predict.h"
#include "run/run_dir.h"
#include "run/settings.h"
#include "run/single.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* Settings that may differ from those the network was trained with. */
static const char *const keys[] = {"threads", "backend", "data", "cache", "batch", NULL};

enum { MOST_CLASSES_SHOWN = 40 };

/* How many samples of each class there are, and how many of them were right. */
typedef struct class_scores {
    uint32_t n[ESPER_DATASET_MAX_CLASSES], right[ESPER_DATASET_MAX_CLASSES];
    uint64_t *confusion; /* (classes, classes) a row for each true class; NULL: nobody asks */
} class_scores;

/* Samples come in the order of their ids. */
static void score_classes(const esper_dataset *data, esper_split split, const float *corrects, class_scores *out)
{
    *out = (class_scores){.confusion = NULL};
    for (uint32_t i = 0; i < esper_dataset_count(data, split); i++) {
        uint8_t label = esper_dataset_label(data, split, esper_dataset_id(data, split, i));

        out->n[label]++;
        out->right[label] += corrects[i] > 0.5f;
    }
}

static void print_classes(const esper_dataset *data, const class_scores *scores)
{
    char shown[ESPER_DATASET_SHOWN_CHARS];
    int n = esper_dataset_info_get(data)->classes;

    for (int c = 0; c < n && n <= MOST_CLASSES_SHOWN; c++)
        if (scores->n[c] > 0)
            esper_terminal_print(stdout, "  %6.2f %% of %6u  %s\n", 100.0 * scores->right[c] / scores->n[c],
                                 scores->n[c], esper_dataset_class_shown(data, c, shown));
    if (n > MOST_CLASSES_SHOWN)
        printf("  (of %d classes: --json lists them)\n", n);
}

static void write_classes(esper_json *json, const esper_dataset *data, const class_scores *scores)
{
    esper_json_key(json, "classes"), esper_json_array_begin(json);
    for (int c = 0; c < esper_dataset_info_get(data)->classes; c++) {
        esper_json_object_begin(json);
        esper_json_key(json, "name"), esper_json_text(json, esper_dataset_class_name(data, c));
        esper_json_key(json, "samples"), esper_json_int(json, scores->n[c]);
        esper_json_key(json, "correct"), esper_json_int(json, scores->right[c]);
        esper_json_key(json, "accuracy");
        if (scores->n[c] > 0)
            esper_json_real(json, 100.0 * scores->right[c] / scores->n[c]);
        else
            esper_json_null(json);
        esper_json_object_end(json);
    }
    esper_json_array_end(json);
}

/* Of training: whole ones, if there is one, as many as max_steps lets through. */
static uint32_t batches_of_epoch(const esper_engine *engine)
{
    uint32_t n = esper_dataset_count(engine->data, ESPER_SPLIT_TRAIN) / (uint32_t)engine->config.batch;
    uint32_t cap = (uint32_t)engine->config.max_steps;

    n = n > 0 ? n : 1;
    return cap > 0 && cap < n ? cap : n;
}

/* A row for each true class, in it how many samples were taken for each. */
static void write_confusion(esper_json *json, int classes, const uint64_t *counts)
{
    esper_json_key(json, "confusion"), esper_json_array_begin(json);
    for (int c = 0; c < classes; c++) {
        esper_json_array_begin(json);
        for (int k = 0; k < classes; k++)
            esper_json_int(json, (int64_t)counts[c * classes + k]);
        esper_json_array_end(json);
    }
    esper_json_array_end(json);
}

/* scores NULL: of text, which has no classes. */
static esper_status print_score(const esper_network *network, const char *file, esper_split split,
                                const esper_tally *tally, const class_scores *scores, bool as_json)
{
    /* The best network is kept behind an epoch's last batch, before the next epoch begins. */
    bool is_whole = network->cursor.batch > 0 && network->cursor.batch == batches_of_epoch(network->engine);
    uint32_t epoch = network->cursor.epoch + is_whole, batch = is_whole ? 0 : network->cursor.batch;
    enum {
        TEXT_CHARS = 6 * ESPER_PATH_CHARS + 256 + ESPER_DATASET_MAX_CLASSES * (6 * 1024 + 96) + /* with escapes */
                     ESPER_DATASET_MAX_CLASSES * ESPER_DATASET_MAX_CLASSES * 11
    };
    char *text;
    char count[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS], batches[40] = "";
    esper_json json;

    if (!as_json) { /* "runs/x/last.safetensors after epoch 3: test split: loss ..." */
        if (batch > 0)
            snprintf(batches, sizeof(batches), " and %u batch%s", batch, batch == 1 ? "" : "es");
        esper_terminal_print(stdout, "%s after epoch %u%s: %s split: loss %s, accuracy %.2f %% over %s samples\n", file,
                             epoch, batches, esper_split_name(split), esper_text_loss(esper_tally_loss(tally), loss),
                             esper_tally_accuracy(tally), esper_text_count((int64_t)tally->samples, count));
        if (scores != NULL && esper_dataset_names_classes(network->engine->data))
            print_classes(network->engine->data, scores);
        esper_job_report_best(file, epoch);
        return ESPER_OK;
    }
    text = esper_mem_alloc(TEXT_CHARS);
    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "scores");
    esper_json_init(&json, text, TEXT_CHARS);
    esper_json_object_begin(&json);
    esper_json_key(&json, "path"), esper_json_text(&json, file);
    esper_json_key(&json, "epoch"), esper_json_int(&json, epoch);
    esper_json_key(&json, "task"), esper_json_text(&json, network->engine->task);
    esper_json_key(&json, "split"), esper_json_text(&json, esper_split_name(split));
    esper_json_key(&json, "samples"), esper_json_int(&json, (int64_t)tally->samples);
    esper_json_key(&json, "loss"), esper_json_real(&json, esper_tally_loss(tally));
    esper_json_key(&json, "accuracy"), esper_json_real(&json, esper_tally_accuracy(tally));
    if (scores != NULL)
        write_classes(&json, network->engine->data, scores);
    if (scores != NULL && scores->confusion != NULL)
        write_confusion(&json, esper_dataset_info_get(network->engine->data)->classes, scores->confusion);
    esper_json_object_end(&json);
    assert(!json.overflow);
    printf("%s\n", text);
    esper_mem_free(text);
    return ESPER_OK;
}

static esper_status score(esper_network *network, const char *file, esper_split split, bool as_json)
{
    const esper_dataset *data = network->engine->data;
    esper_request request = {.network = network, .split = split};
    class_scores scores;
    esper_status status;

    if (esper_dataset_info_get(data)->kind == ESPER_DATASET_TOKENS) {
        ESPER_TRY(esper_network_answer(&request, NULL));
        return print_score(network, file, split, &request.tally, NULL, as_json);
    }
    request.corrects = esper_mem_alloc(esper_dataset_count(data, split) * sizeof(*request.corrects));
    if (request.corrects == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "scores of %u samples", esper_dataset_count(data, split));
    status = esper_network_answer(&request, NULL);
    if (status == ESPER_OK) {
        size_t classes = (size_t)esper_dataset_info_get(data)->classes;

        score_classes(data, split, request.corrects, &scores);
        if (as_json) { /* which class it was instead, only a second look tells */
            scores.confusion = esper_mem_alloc(classes * classes * sizeof(*scores.confusion));
            status = scores.confusion != NULL ? esper_predict_confusion(network, split, scores.confusion)
                                              : ESPER_FAIL(ESPER_E_NOMEM, "confusion of %zu classes", classes);
        }
        if (status == ESPER_OK)
            status = print_score(network, file, split, &request.tally, &scores, as_json);
        esper_mem_free(scores.confusion);
    }
    esper_mem_free(request.corrects);
    return status;
}

static esper_status evaluate(const char *file, const esper_config *asked, esper_split split, bool json)
{
    const esper_log log = {.level = asked->log_level, .stream = stderr};
    esper_checkpoint checkpoint;
    esper_network *network = NULL;
    esper_config_use use;
    esper_config config;
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
            status = score(network, file, split, json);
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
    .help =
        "FILE is a checkpoint; RUN a directory, the beginning of its name below runs/, or 'last'. Of a run its last network is\n"
        "scored; RUN/best.safetensors is the one with the least validation loss.\n\n"
        "  --split NAME    test (default), valid or train\n"
        "  --json          one JSON object instead of a sentence: with the accuracy of every class, and with what each was taken\n"
        "                  for (confusion: a row for each true class)\n"
        "  --threads N, --backend NAME, --data PATH, --batch N   as for train",
    .keys = keys,
    .options = options,
    .wants = "one run or checkpoint",
    .run = run,
};
