/* What is in a data set. */
#include "cli/info_data.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/shell.h"
#include "base/status.h"
#include "cli/cli.h"
#include "run/own.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { JSON_CHARS = 8 << 20, MOST_LINES = 60 };

/* What is told, however it is written. */
typedef struct look {
    const char          *word;
    const esper_task    *task;
    const esper_config  *config;
    const esper_dataset *data;
    const esper_dataset_info *info;
    uint32_t count[ESPER_N_SPLITS][ESPER_DATASET_MAX_CLASSES];
    char     cache[PATH_MAX + 64]; /* "": nothing is kept */
    int64_t  params;               /* of the host */
} look;

static void count_classes(look *self)
{
    for (int s = 0; s < ESPER_N_SPLITS && self->info->kind != ESPER_DATASET_TOKENS; s++)
        for (uint32_t i = 0; i < self->info->count[s]; i++)
            self->count[s][esper_dataset_label(self->data, (esper_split)s,
                                               esper_dataset_id(self->data, (esper_split)s, i))]++;
}

static const char *kind_of(const look *self)
{
    static const char *const kinds[] = {
        [ESPER_DATASET_IMAGES] = "images", [ESPER_DATASET_TOKENS] = "text", [ESPER_DATASET_VECTORS] = "table"};

    return kinds[self->info->kind];
}

/* ------------------------------------------------------------------------------------------------ for people */

static void print_classes(const look *self)
{
    char shown[ESPER_DATASET_SHOWN_CHARS];
    int n = self->info->classes;

    printf("classes      train    valid     test\n");
    for (int c = 0; c < n && c < MOST_LINES; c++)
        esper_terminal_print(stdout, "          %8u %8u %8u  %s\n", self->count[ESPER_SPLIT_TRAIN][c],
                             self->count[ESPER_SPLIT_VALID][c], self->count[ESPER_SPLIT_TEST][c],
                             esper_dataset_class_shown(self->data, c, shown));
    if (n > MOST_LINES)
        printf("          and %d more (--json lists all)\n", n - MOST_LINES);
}

static void print_columns(const look *self)
{
    uint32_t n = esper_dataset_column_count(self->data);

    for (uint32_t i = 0; i < n && i < MOST_LINES; i++) {
        const char *about, *name = esper_dataset_column(self->data, i, &about);

        esper_terminal_print(stdout, "%-9s %s: %s\n", i == 0 ? "columns" : "", name, about);
    }
    if (n > MOST_LINES)
        printf("          and %u more (--json lists all)\n", n - MOST_LINES);
}

static void print_chosen(const look *self)
{
    char value[ESPER_CONFIG_TEXT_CHARS], source[ESPER_CONFIG_TEXT_CHARS + 32], count[ESPER_TEXT_CHARS];
    int n = 0;

    esper_terminal_print(stdout, "grown     by the task `%s`, from a host of %s parameters\n", self->task->name,
                         esper_text_count(self->params, count));
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        esper_config_source_text(self->config, key, source, sizeof(source));
        if (strstr(source, ESPER_OWN_PRESET) == NULL)
            continue;
        esper_config_value_text(self->config, key, value);
        esper_terminal_print(stdout, "%-9s %s = %s\n", n++ == 0 ? "chosen" : "", esper_config_key_at(key)->name, value);
    }
}

/* The command that goes on from here, with the flags that were given for looking. */
static void print_next(const look *self)
{
    char quoted[ESPER_SHELL_CHARS], flag[ESPER_CONFIG_NAME_CHARS], value[ESPER_CONFIG_TEXT_CHARS];
    const esper_task *named;
    bool is_path = esper_task_find(self->word, &named) != ESPER_OK; /* which has become the setting `data` */

    esper_terminal_print(stdout, "next      %s grow %s", esper_cli_program(),
                         esper_shell_quote_path(self->word, quoted));
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        const esper_config_key *about = esper_config_key_at(key);

        if (esper_config_place_of(self->config, key) != ESPER_CONFIG_FLAG ||
            (is_path && strcmp(about->name, "data") == 0))
            continue;
        esper_config_flag_name(about->name, flag);
        esper_config_value_text(self->config, key, value);
        if (about->kind == ESPER_CONFIG_BOOL && strcmp(value, "true") == 0)
            esper_terminal_print(stdout, " %s", flag);
        else
            esper_terminal_print(stdout, " %s=%s", flag, esper_shell_quote(value, quoted));
    }
    printf("\n");
}

static void print_look(const look *self)
{
    const esper_dataset_info *info = self->info;
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], few[ESPER_OWN_FEW_CHARS];

    esper_terminal_print(stdout, "data      %s\n", self->config->data[0] != '\0' ? self->config->data : self->word);
    if (info->kind == ESPER_DATASET_IMAGES)
        printf("kind      images, %dx%d, %d channel%s, %d classes\n", info->height, info->width, info->channels,
               info->channels == 1 ? "" : "s", info->classes);
    else if (info->kind == ESPER_DATASET_VECTORS)
        printf("kind      a table, %d number%s for a row, %d classes\n", info->features, info->features == 1 ? "" : "s",
               info->classes);
    else
        printf("kind      text, windows of %d tokens of %d\n", info->context, info->vocab);
    for (uint32_t i = 0; i < esper_dataset_remark_count(self->data); i++)
        esper_terminal_print(stdout, "%-9s %s\n", i == 0 ? "seen" : "", esper_dataset_remark(self->data, i));
    esper_terminal_print(stdout, "splits    %s to train on, %s to validate, %s to test%s\n",
                         esper_text_count(info->count[ESPER_SPLIT_TRAIN], a),
                         esper_text_count(info->count[ESPER_SPLIT_VALID], b),
                         esper_text_count(info->count[ESPER_SPLIT_TEST], c),
                         esper_dataset_is_test_drawn(self->data) ? ", a tenth, drawn by the seed" : "");
    if (esper_own_is_few(self->data, few))
        esper_terminal_print(stdout, "careful   %s\n", few);
    if (info->kind != ESPER_DATASET_TOKENS)
        print_classes(self);
    print_columns(self);
    esper_terminal_print(stdout, "memory    %s\n", esper_text_bytes((double)info->n_bytes, a));
    if (self->cache[0] != '\0')
        esper_terminal_print(stdout, "cache     %s\n", self->cache);
    print_chosen(self);
    print_next(self);
}

/* ------------------------------------------------------------------------------------------------ for programs */

static void write_lists(const look *self, esper_json *json)
{
    esper_json_key(json, "remarks"), esper_json_array_begin(json);
    for (uint32_t i = 0; i < esper_dataset_remark_count(self->data); i++)
        esper_json_text(json, esper_dataset_remark(self->data, i));
    esper_json_array_end(json);
    esper_json_key(json, "classes"), esper_json_array_begin(json);
    for (int c = 0; c < self->info->classes && self->info->kind != ESPER_DATASET_TOKENS; c++) {
        esper_json_object_begin(json);
        esper_json_key(json, "name"), esper_json_text(json, esper_dataset_class_name(self->data, c));
        for (int s = 0; s < ESPER_N_SPLITS; s++)
            esper_json_key(json, esper_split_name((esper_split)s)), esper_json_int(json, self->count[s][c]);
        esper_json_object_end(json);
    }
    esper_json_array_end(json);
    esper_json_key(json, "columns"), esper_json_array_begin(json);
    for (uint32_t i = 0; i < esper_dataset_column_count(self->data); i++) {
        const char *about, *name = esper_dataset_column(self->data, i, &about);

        esper_json_object_begin(json);
        esper_json_key(json, "name"), esper_json_text(json, name);
        esper_json_key(json, "about"), esper_json_text(json, about);
        esper_json_object_end(json);
    }
    esper_json_array_end(json);
}

static void write_chosen(const look *self, esper_json *json)
{
    char value[ESPER_CONFIG_TEXT_CHARS], source[ESPER_CONFIG_TEXT_CHARS + 32];

    esper_json_key(json, "chosen"), esper_json_object_begin(json);
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        esper_config_source_text(self->config, key, source, sizeof(source));
        if (strstr(source, ESPER_OWN_PRESET) == NULL)
            continue;
        esper_config_value_text(self->config, key, value);
        esper_json_key(json, esper_config_key_at(key)->name), esper_json_text(json, value);
    }
    esper_json_object_end(json);
}

static esper_status write_look(const look *self)
{
    const esper_dataset_info *info = self->info;
    char *text = esper_mem_alloc(JSON_CHARS);
    esper_json json;
    bool fits;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "info data");
    esper_json_init(&json, text, JSON_CHARS);
    esper_json_object_begin(&json);
    esper_json_key(&json, "data"), esper_json_text(&json, self->config->data);
    esper_json_key(&json, "task"), esper_json_text(&json, self->task->name);
    esper_json_key(&json, "kind"), esper_json_text(&json, kind_of(self));
    esper_json_key(&json, "channels"), esper_json_int(&json, info->channels);
    esper_json_key(&json, "height"), esper_json_int(&json, info->height);
    esper_json_key(&json, "width"), esper_json_int(&json, info->width);
    esper_json_key(&json, "features"), esper_json_int(&json, info->features);
    for (int s = 0; s < ESPER_N_SPLITS; s++)
        esper_json_key(&json, esper_split_name((esper_split)s)), esper_json_int(&json, info->count[s]);
    esper_json_key(&json, "test_drawn"), esper_json_bool(&json, esper_dataset_is_test_drawn(self->data));
    esper_json_key(&json, "bytes"), esper_json_int(&json, (int64_t)info->n_bytes);
    esper_json_key(&json, "cache"), esper_json_text(&json, self->cache[0] != '\0' ? self->cache : NULL);
    esper_json_key(&json, "host_params"), esper_json_int(&json, self->params);
    write_lists(self, &json);
    write_chosen(self, &json);
    esper_json_object_end(&json);
    fits = !json.overflow;
    if (fits)
        printf("%s\n", text);
    esper_mem_free(text);
    return fits ? ESPER_OK : ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: too many names for one JSON object", self->word);
}

esper_status esper_info_data(const char *word, const esper_task *task, const esper_config *config, bool as_json)
{
    esper_dataset_desc desc = esper_task_data(task, config);
    look *self = esper_mem_alloc(sizeof(*self));
    esper_dataset *data = NULL;
    esper_task_size size = {0};
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "info data");
    self->word = word;
    self->task = task;
    self->config = config;
    status = esper_dataset_open(&desc, &data);
    if (status == ESPER_OK && esper_source_is_own(task->source))
        status = esper_dataset_cache_path(&desc, self->cache, sizeof(self->cache));
    if (status == ESPER_OK)
        status = esper_task_measure_host(task, config, &size);
    if (status == ESPER_OK) {
        self->params = size.params;
        self->data = data;
        self->info = esper_dataset_info_get(data);
        count_classes(self);
        if (as_json)
            status = write_look(self);
        else
            print_look(self);
    }
    esper_dataset_close(data);
    esper_mem_free(self);
    return status;
}
