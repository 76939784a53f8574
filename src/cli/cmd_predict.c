/* esper predict: a network's answers for files of anybody's. */
#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "data/inputs.h"
#include "run/checkpoint.h"
#include "run/predict.h"
#include "run/run_dir.h"
#include "run/settings.h"
#include "run/single.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* Settings that may differ from those the network was trained with; the seed draws samples of text. */
static const char *const keys[] = {"threads", "backend", "data", "cache", "seed", NULL};

enum { MOST_TOP = 20, MOST_TOKENS = 1 << 20, BATCH = 32, MAX_TEXT_BYTES = 1 << 30 };

enum { SPLIT, TOP, JSON, SAMPLE, PROMPT, TEMPERATURE };

static const esper_command_option options[] = {[SPLIT] = {"split", true},
                                               [TOP] = {"top", true},
                                               [JSON] = {"json", false},
                                               [SAMPLE] = {"sample", true},
                                               [PROMPT] = {"prompt", true},
                                               [TEMPERATURE] = {"temperature", true},
                                               {.name = NULL}};

typedef struct request {
    const char         *file; /* the checkpoint */
    char              **words; /* files to answer for */
    int                 n_words;
    int                 split; /* -1: none */
    int                 top, n_tokens;
    double              temperature;
    const char         *prompt; /* NULL: none */
    bool                json;
    const esper_config *config;
    const esper_log    *log;
} request;

/* Where a sample is from. */
typedef struct origin {
    const char *path;  /* NULL: of a split */
    uint64_t    index; /* within it */
    bool        alone; /* the file's only one */
    int         label; /* -1: nobody knows */
} origin;

/* Samples on their way through the network. */
typedef struct pipeline {
    const request *asked;
    esper_network *network;
    float         *samples, *logits;
    origin         origins[BATCH];
    char          *paths[BATCH]; /* copies, of origins */
    int            n, room;
    uint64_t       n_right, n_labelled;
} pipeline;

/* ------------------------------------------------------------------------------------------------ telling */

static void write_choice(esper_json *json, const esper_dataset *data, const esper_choice *choice)
{
    esper_json_key(json, "class"), esper_json_text(json, esper_dataset_class_name(data, choice->class));
    esper_json_key(json, "index"), esper_json_int(json, choice->class);
    esper_json_key(json, "probability"), esper_json_real(json, choice->probability);
}

static esper_status print_json(const pipeline *self, const origin *from, const esper_choice *choices, int n)
{
    const esper_dataset *data = self->network->engine->data;
    size_t room = 320 + (from->path != NULL ? 6 * strlen(from->path) : 0);
    char *text;
    esper_json json;

    for (int i = 0; i < n; i++)
        room += 12 * strlen(esper_dataset_class_name(data, choices[i].class)) + 256;
    room += from->label >= 0 ? 6 * strlen(esper_dataset_class_name(data, from->label)) : 0;
    text = esper_mem_alloc(room);
    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a line");
    esper_json_init(&json, text, room);
    esper_json_object_begin(&json);
    if (from->path != NULL)
        esper_json_key(&json, "file"), esper_json_text(&json, from->path);
    else
        esper_json_key(&json, "split"), esper_json_text(&json, esper_split_name((esper_split)self->asked->split));
    if (!from->alone)
        esper_json_key(&json, "sample"), esper_json_int(&json, (int64_t)from->index);
    write_choice(&json, data, &choices[0]);
    if (from->label >= 0)
        esper_json_key(&json, "label"), esper_json_text(&json, esper_dataset_class_name(data, from->label));
    if (n > 1) {
        esper_json_key(&json, "top"), esper_json_array_begin(&json);
        for (int i = 0; i < n; i++) {
            esper_json_object_begin(&json);
            write_choice(&json, data, &choices[i]);
            esper_json_object_end(&json);
        }
        esper_json_array_end(&json);
    }
    esper_json_object_end(&json);
    assert(!json.overflow);
    printf("%s\n", text);
    esper_mem_free(text);
    return ESPER_OK;
}

static void print_line(const pipeline *self, const origin *from, const esper_choice *choices, int n)
{
    const esper_dataset *data = self->network->engine->data;

    for (int i = 0; i < n; i++) {
        const char *name = esper_dataset_class_name(data, choices[i].class);

        esper_terminal_print(stdout, "  %6.2f %%  %-20s%s", 100.0 * choices[i].probability, name,
                             i + 1 < n ? "\n" : "  ");
    }
    if (from->path == NULL)
        esper_terminal_print(stdout, "%s %llu", esper_split_name((esper_split)self->asked->split),
                             (unsigned long long)from->index);
    else if (from->alone)
        esper_terminal_print(stdout, "%s", from->path);
    else
        esper_terminal_print(stdout, "%s, %llu", from->path, (unsigned long long)from->index);
    if (from->label >= 0 && from->label != choices[0].class)
        esper_terminal_print(stdout, " is %s", esper_dataset_class_name(data, from->label));
    printf("\n");
}

/* ------------------------------------------------------------------------------------------------ the pipeline */

static esper_status flush(pipeline *self)
{
    const esper_dataset *data = self->network->engine->data;
    int64_t n_out = esper_predict_outputs(self->network);

    if (self->n == 0)
        return ESPER_OK;
    ESPER_TRY(esper_predict_logits(self->network, self->samples, self->n, self->logits));
    for (int i = 0; i < self->n; i++) {
        esper_choice choices[MOST_TOP];
        int n = esper_predict_choose(self->logits + i * n_out, esper_dataset_info_get(data)->classes, self->asked->top,
                                     choices);

        if (self->origins[i].label >= 0) {
            self->n_labelled++;
            self->n_right += self->origins[i].label == choices[0].class;
        }
        if (self->asked->json)
            ESPER_TRY(print_json(self, &self->origins[i], choices, n));
        else
            print_line(self, &self->origins[i], choices, n);
        esper_mem_free(self->paths[i]);
        self->paths[i] = NULL;
    }
    self->n = 0;
    return ESPER_OK;
}

/* Where the next sample goes; full batches are answered first. */
static esper_status next_place(pipeline *self, origin from, float **sample_out)
{
    if (self->n == self->room)
        ESPER_TRY(flush(self));
    if (from.path != NULL) {
        self->paths[self->n] = esper_mem_strdup(from.path);
        if (self->paths[self->n] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s", from.path);
        from.path = self->paths[self->n];
    }
    self->origins[self->n] = from;
    *sample_out = self->samples + self->n++ * esper_predict_inputs(self->network);
    return ESPER_OK;
}

static esper_status answer_file(pipeline *self, const char *path)
{
    int64_t n_in = esper_predict_inputs(self->network);
    esper_inputs inputs = {.n = 0};
    float *to;
    esper_status status = esper_inputs_read(self->network->engine->data, path, &inputs);

    for (uint64_t i = 0; status == ESPER_OK && i < inputs.n; i++) {
        status = next_place(self, (origin){path, i, esper_inputs_is_image(path), -1}, &to);
        if (status == ESPER_OK)
            memcpy(to, inputs.values + i * (uint64_t)n_in, (size_t)n_in * sizeof(*to));
    }
    if (status == ESPER_OK && inputs.remark[0] != '\0')
        esper_log_warn(self->asked->log, "%s: %s", path, inputs.remark);
    esper_inputs_fini(&inputs);
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_seen(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* A file, or all images below a folder in the order of their names. */
static esper_status answer_path(pipeline *self, const char *path, bool named)
{
    struct dirent **entries;
    struct stat info;
    char below[ESPER_PATH_CHARS];
    esper_status status = ESPER_OK;
    int n;

    if (!named && lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && /* a folder's may lead back to it, or nowhere */
        (stat(path, &info) != 0 ? !esper_inputs_is_image(path) : S_ISDIR(info.st_mode)))
        return ESPER_OK;
    if (stat(path, &info) != 0)
        return esper_file_fail("cannot be read", path);
    if (!S_ISDIR(info.st_mode))
        return named || esper_inputs_is_image(path) ? answer_file(self, path) : ESPER_OK;
    n = scandir(path, &entries, is_seen, by_name);
    if (n < 0)
        return esper_file_fail("cannot be read", path);
    for (int i = 0; i < n; i++) {
        if (status == ESPER_OK &&
            snprintf(below, sizeof(below), "%s/%s", path, entries[i]->d_name) >= (int)sizeof(below))
            status = ESPER_FAIL(ESPER_E_IO, "%s: the path is too long", path);
        if (status == ESPER_OK)
            status = answer_path(self, below, false);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static esper_status answer_split(pipeline *self)
{
    const esper_dataset *data = self->network->engine->data;
    esper_split split = (esper_split)self->asked->split;
    float *to;

    for (uint32_t i = 0; i < esper_dataset_count(data, split); i++) {
        ESPER_TRY(next_place(self, (origin){.index = i}, &to));
        esper_predict_take(data, split, i, to, &self->origins[self->n - 1].label);
    }
    return ESPER_OK;
}

static esper_status answer_all(pipeline *self)
{
    const request *asked = self->asked;

    if (asked->split >= 0)
        ESPER_TRY(answer_split(self));
    for (int i = 0; i < asked->n_words; i++)
        ESPER_TRY(answer_path(self, asked->words[i], true));
    ESPER_TRY(flush(self));
    if (self->n_labelled > 0 && !asked->json)
        printf("%.2f %% of %llu right\n", 100.0 * (double)self->n_right / (double)self->n_labelled,
               (unsigned long long)self->n_labelled);
    return ESPER_OK;
}

static esper_status predict_classes(const request *asked, esper_network *network)
{
    pipeline self = {.asked = asked, .network = network, .room = esper_predict_room(network)};
    esper_status status = ESPER_OK;

    assert(self.room <= BATCH);
    if (asked->n_tokens > 0 || asked->prompt != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--sample and --prompt are for networks of text, and this one tells classes apart");
    if (asked->split < 0 && asked->n_words == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "which files? Or --split test, for the run's own data");
    self.samples = esper_mem_alloc((size_t)(self.room * esper_predict_inputs(network)) * sizeof(float));
    self.logits = esper_mem_alloc((size_t)(self.room * esper_predict_outputs(network)) * sizeof(float));
    if (self.samples == NULL || self.logits == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "a batch");
    if (status == ESPER_OK)
        status = answer_all(&self);
    for (int i = 0; i < BATCH; i++)
        esper_mem_free(self.paths[i]);
    esper_mem_free(self.samples);
    esper_mem_free(self.logits);
    return status;
}

/* ------------------------------------------------------------------------------------------------ text */

static bool is_bytes(const esper_network *network)
{
    return strcmp(esper_dataset_info_get(network->engine->data)->name, esper_source_name(ESPER_SOURCE_TEXT)) == 0;
}

/* A text's bytes, or little-endian uint16, as the network was trained on. */
static esper_status read_tokens(const esper_network *network, const char *path, int32_t **tokens_out, uint64_t *n_out)
{
    char *bytes;
    size_t n_bytes, each = is_bytes(network) ? 1 : 2;
    int32_t *tokens;

    ESPER_TRY(esper_file_read(path, MAX_TEXT_BYTES, &bytes, &n_bytes));
    tokens = esper_mem_alloc((n_bytes / each + 1) * sizeof(*tokens));
    if (tokens == NULL) {
        esper_mem_free(bytes);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    }
    for (size_t i = 0; i < n_bytes / each; i++)
        tokens[i] = each == 1 ? (uint8_t)bytes[i] : (uint8_t)bytes[2 * i] | (uint8_t)bytes[2 * i + 1] << 8;
    esper_mem_free(bytes);
    *tokens_out = tokens;
    *n_out = n_bytes / each;
    return ESPER_OK;
}

static esper_status foretell_file(const request *asked, esper_network *network, const char *path)
{
    esper_foretold found = {0};
    int32_t *tokens = NULL;
    uint64_t n = 0;
    char count[ESPER_TEXT_CHARS], *line;
    size_t room = 6 * strlen(path) + 320;
    double loss;
    esper_json json;
    esper_status status;

    ESPER_TRY(read_tokens(network, path, &tokens, &n));
    status = n >= 2 ? esper_predict_foretell(network, tokens, n, &found)
                    : ESPER_FAIL(ESPER_E_FORMAT, "two %s are needed at least", is_bytes(network) ? "bytes" : "tokens");
    esper_mem_free(tokens);
    if (status != ESPER_OK)
        return esper_fail_within(status, "%s: ", path);
    loss = found.loss / (double)found.n_tokens;
    if (!asked->json) {
        esper_terminal_print(stdout, "%s: perplexity %.4g, loss %.4f nats (%.4f bits) a %s, over %s\n", path, exp(loss),
                             loss, loss / log(2.0), is_bytes(network) ? "byte" : "token",
                             esper_text_count((int64_t)found.n_tokens, count));
        return ESPER_OK;
    }
    line = esper_mem_alloc(room);
    if (line == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    esper_json_init(&json, line, room);
    esper_json_object_begin(&json);
    esper_json_key(&json, "file"), esper_json_text(&json, path);
    esper_json_key(&json, "tokens"), esper_json_int(&json, (int64_t)found.n_tokens);
    esper_json_key(&json, "loss"), esper_json_real(&json, loss);
    esper_json_key(&json, "perplexity"), esper_json_real(&json, exp(loss));
    esper_json_object_end(&json);
    assert(!json.overflow);
    printf("%s\n", line);
    esper_mem_free(line);
    return ESPER_OK;
}

/* What a network writes can be anything, commands of terminals and half characters too: those become U+FFFD. */
static char *show_bytes(const int32_t *tokens, int n)
{
    uint8_t *bytes = esper_mem_alloc((size_t)n + 1);
    char *text = esper_mem_alloc(3 * (size_t)n + 1);
    size_t used = 0, length;

    for (int i = 0; bytes != NULL && i < n; i++)
        bytes[i] = (uint8_t)tokens[i];
    for (int i = 0; bytes != NULL && text != NULL && i < n; i += (int)length) {
        length = esper_utf8_length(bytes + i, (size_t)(n - i));
        if (length == 0 || (esper_utf8_is_control(bytes + i, length) && bytes[i] != '\n' && bytes[i] != '\t')) {
            memcpy(text + used, "\xef\xbf\xbd", 3);
            used += 3;
            length = length == 0 ? 1 : length;
        } else {
            memcpy(text + used, bytes + i, length);
            used += length;
        }
    }
    esper_mem_free(bytes);
    return text;
}

static esper_status print_sample(const request *asked, const esper_network *network, const int32_t *tokens)
{
    char *text = is_bytes(network) ? show_bytes(tokens, asked->n_tokens) : NULL, *line;
    size_t room = 6 * (3 * (size_t)asked->n_tokens + (asked->prompt != NULL ? strlen(asked->prompt) : 0)) + 256;
    esper_json json;

    if (is_bytes(network) && text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a text of %d tokens", asked->n_tokens);
    if (!asked->json && text != NULL)
        printf("%s%s\n", asked->prompt != NULL ? asked->prompt : "", text);
    for (int i = 0; !asked->json && text == NULL && i < asked->n_tokens; i++)
        printf("%d%s", tokens[i], i + 1 < asked->n_tokens ? " " : "\n");
    line = asked->json ? esper_mem_alloc(room) : NULL;
    if (line != NULL) {
        esper_json_init(&json, line, room);
        esper_json_object_begin(&json);
        if (asked->prompt != NULL)
            esper_json_key(&json, "prompt"), esper_json_text(&json, asked->prompt);
        esper_json_key(&json, "temperature"), esper_json_real(&json, asked->temperature);
        esper_json_key(&json, "seed"), esper_json_u64(&json, asked->config->seed);
        esper_json_key(&json, text != NULL ? "text" : "tokens");
        if (text != NULL)
            esper_json_text(&json, text);
        else {
            esper_json_array_begin(&json);
            for (int i = 0; i < asked->n_tokens; i++)
                esper_json_int(&json, tokens[i]);
            esper_json_array_end(&json);
        }
        esper_json_object_end(&json);
        printf("%s\n", line);
    }
    esper_mem_free(text);
    esper_mem_free(line);
    return asked->json && line == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "a line") : ESPER_OK;
}

static esper_status sample_text(const request *asked, esper_network *network)
{
    const char *prompt = asked->prompt != NULL && asked->prompt[0] != '\0' ? asked->prompt : "\n";
    int n_prompt = is_bytes(network) ? (int)strlen(prompt) : 1;
    int32_t *tokens = esper_mem_alloc(((size_t)asked->n_tokens + (size_t)n_prompt) * sizeof(*tokens));
    int32_t *out;
    esper_status status = ESPER_OK;

    if (tokens == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d tokens", asked->n_tokens);
    out = tokens + n_prompt;
    if (!is_bytes(network) && asked->prompt != NULL)
        status = ESPER_FAIL(ESPER_E_CONFIG, "--prompt is for networks that were trained on text, not on tokens");
    for (int i = 0; is_bytes(network) && i < n_prompt; i++)
        tokens[i] = (uint8_t)prompt[i];
    if (status == ESPER_OK)
        status = esper_predict_continue(network, tokens, n_prompt, asked->temperature, asked->config->seed, out,
                                        asked->n_tokens);
    if (status == ESPER_OK)
        status = print_sample(asked, network, out);
    esper_mem_free(tokens);
    return status;
}

static esper_status predict_text(const request *asked, esper_network *network)
{
    if (asked->n_tokens == 0 && asked->n_words == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "which files are to be foretold? Or --sample N, for a text of N tokens");
    for (int i = 0; i < asked->n_words; i++)
        ESPER_TRY(foretell_file(asked, network, asked->words[i]));
    return asked->n_tokens > 0 ? sample_text(asked, network) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static esper_status open_network(const request *asked, const esper_checkpoint *checkpoint, esper_network **network_out)
{
    esper_config config = checkpoint->config;
    esper_config_use use = esper_settings_use(checkpoint->task, ESPER_CONFIG_IN_TRAIN, &config);
    static const char *const own[] = {"threads", "backend", "data", "cache", NULL};

    config.max_steps = 0;
    if (asked->split >= 0 && esper_source_kind(checkpoint->task->source) == ESPER_DATASET_TOKENS)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--split is for networks that tell classes apart; `esper eval` has the loss of a text's");
    ESPER_TRY(esper_settings_check(asked->config, &config, &use, asked->log));
    ESPER_TRY(esper_config_lay_over(&config, asked->config, own));
    config.batch = config.batch < BATCH ? config.batch : BATCH; /* no more memory than training took */
    if (asked->split < 0)
        return esper_single_recall(checkpoint, &config, network_out);
    ESPER_TRY(esper_single_open(checkpoint->task, &config, ESPER_USE_EVALUATE, network_out));
    return esper_checkpoint_restore(checkpoint, *network_out);
}

static esper_status predict(const request *asked)
{
    esper_checkpoint checkpoint;
    esper_network *network = NULL;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init(asked->file, &checkpoint));
    status = open_network(asked, &checkpoint, &network);
    if (status == ESPER_OK && esper_dataset_info_get(network->engine->data)->kind == ESPER_DATASET_TOKENS)
        status = predict_text(asked, network);
    else if (status == ESPER_OK)
        status = predict_classes(asked, network);
    esper_single_close(network);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

/* A whole number of an option; what is not given stays. */
static bool read_whole(const char *text, int least, int most, int *value)
{
    int64_t read;
    bool fits;

    if (text == NULL)
        return true;
    if (!esper_number_read_int(text, &read, &fits) || !fits || read < least || read > most)
        return false;
    *value = (int)read;
    return true;
}

static esper_status run(esper_cli_call *call)
{
    const esper_log log = {.level = call->config.log_level, .stream = stderr};
    char path[ESPER_PATH_CHARS];
    request asked = {.file = path,
                     .words = call->words + 1,
                     .n_words = call->n_words - 1,
                     .split = -1,
                     .top = 1,
                     .temperature = 1.0,
                     .prompt = call->given[PROMPT],
                     .json = call->given[JSON] != NULL,
                     .config = &call->config,
                     .log = &log};

    if (call->n_words == 0)
        return esper_cli_usage(call, "expected a run or checkpoint, then files");
    for (int s = 0; call->given[SPLIT] != NULL && s < ESPER_N_SPLITS; s++)
        if (strcmp(esper_split_name((esper_split)s), call->given[SPLIT]) == 0)
            asked.split = s;
    if (call->given[SPLIT] != NULL && asked.split < 0)
        return esper_cli_usage(call, "no split is called '%s': there are train, valid and test", call->given[SPLIT]);
    if (!read_whole(call->given[TOP], 1, MOST_TOP, &asked.top))
        return esper_cli_usage(call, "--top wants a number from 1 to %d", (int)MOST_TOP);
    if (!read_whole(call->given[SAMPLE], 1, MOST_TOKENS, &asked.n_tokens))
        return esper_cli_usage(call, "--sample wants a number of tokens, from 1 to %d", (int)MOST_TOKENS);
    if (call->given[TEMPERATURE] != NULL && (!esper_number_read_real(call->given[TEMPERATURE], &asked.temperature) ||
                                             asked.temperature < 0.0 || asked.temperature > 100.0))
        return esper_cli_usage(call, "--temperature wants a number from 0 to 100");
    ESPER_TRY(esper_run_checkpoint_find(call->words[0], path));
    return predict(&asked);
}

const esper_command esper_command_predict = {
    .name = "predict",
    .arguments = "RUN|FILE FILES... [flags]",
    .summary = "a network's answers for files of yours",
    .help =
        "Writes for each sample its class and how probable that is. FILE is a checkpoint; RUN a directory, the beginning of its\n"
        "name below runs/, or 'last'. Of a run its last network answers; RUN/best.safetensors is the one with the least\n"
        "validation loss. The data the network was trained on need not be there: a checkpoint keeps what has to be known of it.\n\n"
        "FILES are what the network was trained on: images (PNG, JPEG, or folders of them), brought to its size as then;\n"
        "tables (CSV), their columns found by name; arrays (.npy, .npz, .safetensors); of a network of text, texts, for which\n"
        "it says how well it foretells them (perplexity).\n\n"
        "  --top N            the N likeliest classes\n"
        "  --json             a JSON object for each sample\n"
        "  --split NAME       samples of the run's own data, with their labels: test, valid or train\n"
        "  --sample N         of a network of text: go on for N tokens\n"
        "  --prompt TEXT      from this text on\n"
        "  --temperature T    1; less is safer, more is freer, 0 always takes the likeliest\n"
        "  --seed N           another seed draws another text; the same one the same\n"
        "  --threads N, --backend NAME, --data PATH   as for train\n\n"
        "examples:\n"
        "  esper predict last photo.jpg --top 3\n"
        "  esper predict last table.csv --json\n"
        "  esper predict last --sample 500 --prompt \"Once \" --temperature 0.8",
    .keys = keys,
    .options = options,
    .most_words = 1 << 20,
    .run = run,
};
