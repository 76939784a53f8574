/* Data of people's own: what a path leads to, and what fits it. docs/your-data.md tells both. */
#include "run/own.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/shell.h"
#include "base/status.h"

/* ------------------------------------------------------------------------------------------------ paths */

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);

    return n > m && strcasecmp(path + n - m, ending) == 0;
}

static bool is_image(const char *path)
{
    return ends_in(path, ".png") || ends_in(path, ".jpg") || ends_in(path, ".jpeg");
}

/* Whether a folder holds text: files, none of which is an image, and no folders. */
static bool is_text_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    bool has_text = false, has_others = false;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        struct stat info;

        if (entry->d_name[0] == '.' || fstatat(dirfd(dir), entry->d_name, &info, 0) != 0)
            continue;
        has_others = has_others || S_ISDIR(info.st_mode) || is_image(entry->d_name);
        has_text = has_text || S_ISREG(info.st_mode);
    }
    if (dir != NULL)
        closedir(dir);
    return has_text && !has_others;
}

/* The name of the task for what lies at a path. */
static esper_status task_of(const char *path, const struct stat *info, const char **name_out)
{
    esper_dataset_kind kind = ESPER_DATASET_IMAGES;

    if (S_ISDIR(info->st_mode)) {
        *name_out = is_text_dir(path) ? "chars" : "images";
        return ESPER_OK;
    }
    if (!S_ISREG(info->st_mode))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: neither a folder nor a file", path);
    if (is_image(path))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: one image is nothing to learn from: give the folder that has a folder for each class",
                          path);
    if (ends_in(path, ".csv") || ends_in(path, ".tsv")) {
        *name_out = "table";
        return ESPER_OK;
    }
    if (esper_arrays_is_file(path)) {
        ESPER_TRY(esper_arrays_kind(path, &kind));
        *name_out = kind == ESPER_DATASET_VECTORS ? "table" : "images";
        return ESPER_OK;
    }
    *name_out = "chars"; /* what is not UTF-8 is refused when it is read */
    return ESPER_OK;
}

/* A column is asked for: is there a table? */
static esper_status check_target(const char *word, const char *name, const esper_config *config)
{
    if (config->target[0] == '\0' || strcmp(name, "table") == 0 ||
        esper_config_place_of(config, esper_config_find("target")) != ESPER_CONFIG_FLAG)
        return ESPER_OK;
    if (strcmp(name, "chars") == 0)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "--target %s is for tables, and %s is taken for text by its name: a table's name ends in .csv "
            "or .tsv. Rename it, or leave --target out",
            config->target, word);
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "--target %s is for tables, and %s holds images: their classes are the folders they lie in, or "
                      "the labels beside them. Leave it out",
                      config->target, word);
}

esper_status esper_own_find(const char *word, esper_config *config, const esper_task **task_out)
{
    static const esper_config_source by_word = {.place = ESPER_CONFIG_FLAG};
    char real[PATH_MAX], reason[512];
    const char *name = NULL;
    struct stat info;
    esper_status status = esper_task_find(word, task_out);

    if (status == ESPER_OK)
        return ESPER_OK;
    if (stat(word, &info) != 0) {
        if (strchr(word, '/') == NULL && strchr(word, '.') == NULL)
            return esper_fail_within(status, "there is no folder or file of that name here, and ");
        snprintf(reason, sizeof(reason), "%s", strerror(errno));
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s: %s; and no task is called so (`esper info tasks` lists them)", word,
                          reason);
    }
    ESPER_TRY(task_of(word, &info, &name));
    ESPER_TRY(check_target(word, name, config));
    if (config->data[0] != '\0' && esper_config_place_of(config, esper_config_find("data")) == ESPER_CONFIG_FLAG)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is data, and --data names other data: leave one of them out", word);
    if (realpath(word, real) == NULL)
        return esper_file_fail("cannot be opened", word);
    if (strcmp(name, "chars") == 0 && strchr(real, ':') != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: ':' separates files of text, so it cannot be in a name: rename it",
                          real);
    ESPER_TRY(esper_config_set(config, "data", real, &by_word));
    return esper_task_find(name, task_out);
}

/* ------------------------------------------------------------------------------------------------ what fits */

enum {
    SMALL = 10000,     /* samples: fewer are learned by heart, and leave few to judge by */
    MOST_PASSES = 120, /* over a small set */
    TRIED_STEPS = 2600, /* of a grown network for images: a fifth of fewer steps does not pay for a trial */
    TRIED_PASSES = 240, /* but for that no more than so many */
    LEAST_PASSES = 3,
    MOST_VISITS = 1500000, /* samples seen in all, where that is less: what `fashion` has */
    MOST_STEPS = 200,      /* between two decisions */
    LEAST_EPOCHS = 20,     /* so that growing has time to decide */
    TABLE_FACTOR = 10,     /* a run may spend what its host costs, and that of a table costs a tenth of what it becomes */
};

static esper_status set_number(esper_config *config, const char *key, double value)
{
    static const esper_config_source by_data = {.place = ESPER_CONFIG_PRESET, .name = ESPER_OWN_PRESET};
    char text[ESPER_NUMBER_CHARS];

    snprintf(text, sizeof(text), "%.10g", value);
    return esper_config_set(config, key, text, &by_data);
}

static bool is_small(const esper_dataset_info *data)
{
    return data->count[ESPER_SPLIT_TRAIN] + data->count[ESPER_SPLIT_VALID] < SMALL;
}

/* Batch and length, by the number of samples. A small set is gone through often, a large one until as many samples have been seen
 * as suffice for Fashion-MNIST. */
static esper_status choose_length(esper_config_job job, const esper_dataset_info *data, esper_config *config)
{
    uint32_t n = data->count[ESPER_SPLIT_TRAIN];
    int batch = n >= 5000 ? 128 : n >= 1000 ? 64 : n >= 32 ? 32 : (int)n;
    double passes = (double)MOST_VISITS / n;
    uint32_t steps, all, factor = data->kind == ESPER_DATASET_VECTORS ? TABLE_FACTOR : 1;

    passes = passes > MOST_PASSES ? MOST_PASSES : passes < LEAST_PASSES ? LEAST_PASSES : passes;
    ESPER_TRY(set_number(config, "batch", batch));
    if (job == ESPER_CONFIG_IN_TRAIN)
        return set_number(config, "epochs", (int)passes);
    if (data->kind == ESPER_DATASET_IMAGES && passes * n / config->batch < TRIED_STEPS)
        passes = fmax(passes, fmin((double)TRIED_STEPS * config->batch / n, TRIED_PASSES));
    steps = n / (uint32_t)config->batch;
    steps = steps > MOST_STEPS ? MOST_STEPS : steps < 1 ? 1 : steps;
    all = (uint32_t)(passes * n / config->batch);
    ESPER_TRY(set_number(config, "max_steps", steps));
    return set_number(config, "epochs", factor * (all / steps > LEAST_EPOCHS ? all / steps : LEAST_EPOCHS));
}

/* The host of `fashion` for its 28 pixels; a block more for each doubling. A grown one begins with a block less and twice the
 * channels. The rate falls with the batch. */
static esper_status choose_image_host(esper_config_job job, const esper_dataset_info *data, esper_config *config)
{
    int side = data->height < data->width ? data->height : data->width;
    int blocks = side >= 192 ? 5 : side >= 96 ? 4 : side >= 48 ? 3 : 2, pools = 0;

    while (pools < 8 && side >> (pools + 1) > 0)
        pools++;
    if (job == ESPER_CONFIG_IN_TRAIN)
        blocks++;
    else
        ESPER_TRY(set_number(config, "max_params", 30000.0 * (1 << (2 * (blocks - 2)))));
    ESPER_TRY(set_number(config, "blocks", blocks));
    ESPER_TRY(set_number(config, "channels", job == ESPER_CONFIG_IN_TRAIN ? 8 : 16));
    if (pools < config->blocks)
        ESPER_TRY(set_number(config, "pools", pools));
    if (is_small(data)) { /* moved by a few pixels an image stays what it is; mirrored it may not */
        ESPER_TRY(set_number(config, "crop", side >= 256 ? 16 : side / 14));
        ESPER_TRY(set_number(config, "weight_decay", 5e-4));
    }
    return set_number(config, "lr", 0.1 * config->batch / 128);
}

/* Two layers as wide as twice the columns, in powers of two; a grown one begins with one. */
static esper_status choose_table_host(esper_config_job job, const esper_dataset_info *data, esper_config *config)
{
    int width = 16;

    while (width < 2 * data->features && width < 256)
        width *= 2;
    ESPER_TRY(set_number(config, "width", width));
    ESPER_TRY(set_number(config, "layers", job == ESPER_CONFIG_IN_TRAIN ? 2 : 1));
    return is_small(data) ? set_number(config, "weight_decay", 0.2) : ESPER_OK;
}

esper_status esper_own_choose(const esper_task *task, esper_config_job job, esper_config *config)
{
    esper_dataset_desc desc = esper_task_data(task, config);
    esper_dataset_info data;

    if (!esper_source_is_own(task->source) || config->data[0] == '\0')
        return ESPER_OK;
    ESPER_TRY(esper_dataset_measure(&desc, &data));
    if (is_small(&data)) {
        ESPER_TRY(set_number(config, "valid_fraction", 0.2));
        desc.valid_fraction = config->valid_fraction;
        ESPER_TRY(esper_dataset_measure(&desc, &data));
    }
    ESPER_TRY(choose_length(job, &data, config));
    if (data.kind == ESPER_DATASET_VECTORS)
        return choose_table_host(job, &data, config);
    return choose_image_host(job, &data, config);
}

/* ------------------------------------------------------------------------------------------------ too little */

/* Below these nothing can be told: with 5 samples of a class one of them is 20 points of its accuracy. */
enum { LEAST_TO_LEARN = 20, LEAST_TO_JUDGE = 5 };

bool esper_own_is_few(const esper_dataset *data, char words_out[ESPER_OWN_FEW_CHARS])
{
    const esper_dataset_info *info = esper_dataset_info_get(data);
    uint32_t count[ESPER_N_SPLITS][ESPER_DATASET_MAX_CLASSES] = {{0}};
    char shown[ESPER_DATASET_SHOWN_CHARS];
    int fewest = 0, n_few = 0;

    if (info->kind == ESPER_DATASET_TOKENS)
        return false;
    for (int s = 0; s < ESPER_N_SPLITS; s++)
        for (uint32_t i = 0; i < info->count[s]; i++)
            count[s][esper_dataset_label(data, (esper_split)s, esper_dataset_id(data, (esper_split)s, i))]++;
    for (int c = 0; c < info->classes; c++) {
        n_few += count[ESPER_SPLIT_TRAIN][c] < LEAST_TO_LEARN || count[ESPER_SPLIT_VALID][c] < LEAST_TO_JUDGE ||
                 count[ESPER_SPLIT_TEST][c] < LEAST_TO_JUDGE;
        if (count[ESPER_SPLIT_TRAIN][c] < count[ESPER_SPLIT_TRAIN][fewest])
            fewest = c;
    }
    if (n_few == 0)
        return false;
    snprintf(words_out, ESPER_OWN_FEW_CHARS,
             "%d of %d classes %s few samples: '%s' has %u to train on, %u to validate and %u to test. With fewer "
             "than %d, %d and %d accuracy is chance: more data is worth more than growing",
             n_few, info->classes, n_few == 1 ? "has" : "have", esper_dataset_class_shown(data, fewest, shown),
             count[ESPER_SPLIT_TRAIN][fewest], count[ESPER_SPLIT_VALID][fewest], count[ESPER_SPLIT_TEST][fewest],
             (int)LEAST_TO_LEARN, (int)LEAST_TO_JUDGE, (int)LEAST_TO_JUDGE);
    return true;
}
