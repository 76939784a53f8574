/* Reading a list of tasks, opening each beside the first, and drawing among them. Lists that have a name are run/task_lists.h's. */
#include "run/curriculum.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/suggest.h"
#include "run/own.h"
#include "run/settings.h"
#include "run/single.h"
#include "run/task_lists.h"
#include "slot/gate.h"

/* ------------------------------------------------------------------------------------------------ hosts by chance */

typedef struct drawing {
    esper_rng rng;
    char     *text; /* (ESPER_CONFIG_TEXT_CHARS) */
    size_t    chars;
} drawing;

__attribute__((format(printf, 2, 3))) static void say(drawing *d, const char *format, ...)
{
    va_list args;
    int more;

    va_start(args, format);
    more = vsnprintf(d->text + d->chars, ESPER_CONFIG_TEXT_CHARS - d->chars, format, args);
    va_end(args);
    d->chars += more > 0 ? (size_t)more : 0;
}

static int one_of(drawing *d, int n)
{
    return (int)esper_rng_below(&d->rng, (uint32_t)n);
}

/* One to four blocks, each with a slot behind it; of images at most two are followed by a pool, so that small ones fit. */
void esper_curriculum_host(esper_topology topology, uint64_t seed, int which, char text[ESPER_CONFIG_TEXT_CHARS])
{
    static const int widths[] = {4, 6, 8, 12, 16, 24};
    drawing d = {.text = text};
    int width, n_blocks, n_pools = 0;

    esper_rng_init(&d.rng, &(esper_rng_key){.seed = seed,
                                            .purpose = ESPER_RNG_SEARCH,
                                            .network = 1u << 20, /* apart from those of a search */
                                            .step = (uint32_t)which,
                                            .tag = (uint32_t)topology});
    width = widths[one_of(&d, sizeof(widths) / sizeof(widths[0]))];
    n_blocks = 1 + one_of(&d, 4);
    text[0] = '\0';
    if (topology == ESPER_TOPOLOGY_TRANSFORMER)
        say(&d, "embed %d | ", 2 * width);
    for (int b = 0; b < n_blocks; b++) {
        bool wider = b > 0 && one_of(&d, 2) == 1, residual = one_of(&d, 3) == 0;

        if (topology == ESPER_TOPOLOGY_TRANSFORMER) {
            say(&d, "layer 2 | slot | ");
            continue;
        }
        width += wider ? width / 2 : 0;
        if (topology == ESPER_TOPOLOGY_MLP) {
            say(&d, residual ? "[linear %d] residual | slot | " : "linear %d | slot | ", 2 * width);
            continue;
        }
        say(&d, residual ? "[[conv %d]x2] residual | slot | " : "conv %d | slot | ", width);
        if (n_pools < 2 && one_of(&d, 2) == 1) {
            say(&d, "pool | ");
            n_pools++;
        }
    }
    say(&d, topology == ESPER_TOPOLOGY_CNN           ? "mean | linear"
            : topology == ESPER_TOPOLOGY_TRANSFORMER ? "norm | linear"
                                                     : "linear");
}

/* ------------------------------------------------------------------------------------------------ data and budgets */

static const esper_config_source by_list = {.place = ESPER_CONFIG_FLAG, .name = "tasks"};

__attribute__((format(printf, 3, 4))) static esper_status set_drawn(esper_config *config, const char *key,
                                                                    const char *format, ...)
{
    char text[ESPER_NUMBER_CHARS];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return esper_config_set(config, key, text, &by_list);
}

/* Keyed by the run's seed and the place of the entry among all, so that entries of one task differ, and what is drawn of one says
 * nothing of another. */
static esper_rng_key key_of(uint64_t seed, int place, unsigned what)
{
    return (esper_rng_key){.seed = seed,
                           .purpose = ESPER_RNG_SEARCH,
                           .network = (1u << 20) + what, /* hosts: 1 << 20 itself */
                           .step = (uint32_t)place};
}

/* How many classes: from a third of those that there are to all. How many samples: all of them, a half, a quarter or an eighth. And
 * of a part, which; of synthetic data always, as its classes and its noise are then others. As many samples are set aside for
 * validation as of the whole, or the accuracies that decisions are paid by would be coarse. */
static esper_status draw_data(const esper_task *task, uint64_t seed, int place, esper_config *config)
{
    enum { LEAST_BATCHES = 4 };
    esper_rng_key key = key_of(seed, place, ESPER_DRAWS_DATA);
    esper_dataset_desc desc = esper_task_data(task, config);
    bool made = esper_source_is_synthetic(task->source);
    uint32_t n, least, limit;
    esper_dataset_info whole;
    esper_rng rng;
    int classes, fewest, data_seed;

    if (config->data_seed != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "the data is drawn: leave out data_seed");
    ESPER_TRY(esper_dataset_measure(&desc, &whole));
    esper_rng_init(&rng, &key);
    classes = whole.classes;
    fewest = classes < 6 ? 2 : (classes + 2) / 3;
    if (classes > fewest)
        classes = fewest + (int)esper_rng_below(&rng, (uint32_t)(classes - fewest + 1));
    n = whole.count[ESPER_SPLIT_TRAIN];
    if (classes < whole.classes && !made)
        n = (uint32_t)((double)n * classes / whole.classes);
    limit = n >> esper_rng_below(&rng, 4);
    least = LEAST_BATCHES * (uint32_t)config->batch;
    limit = limit < least ? least : limit;
    data_seed = 1 + (int)(esper_rng_u32(&rng) >> 2);
    if (classes < whole.classes) {
        ESPER_TRY(set_drawn(config, "classes", "%d", classes));
        if (!made)
            ESPER_TRY(set_drawn(config, "valid_fraction", "%.4g",
                                fmin(0.5, config->valid_fraction * whole.classes / classes)));
    }
    if (limit < n)
        ESPER_TRY(set_drawn(config, "train_limit", "%" PRIu32, limit));
    return made || limit < n || classes < whole.classes ? set_drawn(config, "data_seed", "%d", data_seed) : ESPER_OK;
}

/* From half of the epochs to half as many again, but as many as it takes to keep a seed; and so of the batches of one, where they
 * are limited. */
static esper_status draw_budget(uint64_t seed, int place, esper_config *config)
{
    esper_rng_key key = key_of(seed, place, ESPER_DRAWS_BUDGET);
    int least = esper_gate_least_epochs(config->gates == ESPER_CONFIG_GATES_PERMISSIVE, config->gate_epochs), epochs;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    epochs = config->epochs * (2 + (int)esper_rng_below(&rng, 5)) / 4;
    least = least < config->epochs ? least : config->epochs;
    ESPER_TRY(set_drawn(config, "epochs", "%d", epochs < least ? least : epochs));
    if (config->max_steps > 1)
        return set_drawn(config, "max_steps", "%d", config->max_steps * (2 + (int)esper_rng_below(&rng, 5)) / 4);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ one entry */

/* What an entry says beside settings. */
typedef struct entry_draws {
    int      n;
    unsigned what;
} entry_draws;

/* What a word may set: what is the entry's own. */
static const char *const own_sections[] = {"Training", "Data", "Network", NULL};

/* Of these, what the run says unless the entry does. */
static const char *const shared[] = {"epochs", "max_steps", "cache", NULL};

/* "host+data", "all" */
static esper_status read_draws(const char *value, unsigned *what_out)
{
    static const struct {
        const char *name;
        unsigned    bit;
    } known[] = {{"host", ESPER_DRAWS_HOST},
                 {"data", ESPER_DRAWS_DATA},
                 {"budget", ESPER_DRAWS_BUDGET},
                 {"all", ESPER_DRAWS_ALL}};
    unsigned what = 0;

    for (const char *at = value;; at++) {
        size_t n = strcspn(at, "+"), i = 0;

        while (i < sizeof(known) / sizeof(known[0]) &&
               (strlen(known[i].name) != n || memcmp(known[i].name, at, n) != 0))
            i++;
        if (i == sizeof(known) / sizeof(known[0]))
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "tasks: draws=%s: expected host, data and budget, with + between them, or all", value);
        what |= known[i].bit;
        at += n;
        if (*at == '\0')
            break;
    }
    *what_out = what;
    return ESPER_OK;
}

static esper_status set_word(esper_config *config, char *word, entry_draws *draws)
{
    char *value = strchr(word, '='), *end;
    int key;

    if (value == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: '%s' is no setting, such as channels=8", word);
    *value++ = '\0';
    if (strcmp(word, "drawn") == 0) {
        long n = strtol(value, &end, 10);

        if (end == value || *end != '\0' || n < 1 || n > ESPER_CURRICULUM_MOST)
            return ESPER_FAIL(ESPER_E_CONFIG, "tasks: drawn=%s: from 1 to %d can be drawn", value,
                              (int)ESPER_CURRICULUM_MOST);
        draws->n = (int)n;
        return ESPER_OK;
    }
    if (strcmp(word, "draws") == 0)
        return read_draws(value, &draws->what);
    key = esper_config_find(word);
    if (key >= 0 && !esper_settings_list_has(own_sections, esper_config_key_at(key)->section))
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s is one for all tasks: set it by its flag", word);
    if (esper_config_set(config, word, value, &by_list) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "tasks: ");
    return ESPER_OK;
}

/* Everything that is not the entry's own is as in the run. */
static esper_status share(const esper_config *run, esper_config *config)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FILE, .name = "tasks"};
    char text[ESPER_CONFIG_TEXT_CHARS];

    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        const esper_config_key *about = esper_config_key_at(key);
        bool own =
            esper_settings_list_has(own_sections, about->section) && !esper_settings_list_has(shared, about->name);

        if (own || esper_config_place_of(config, key) == ESPER_CONFIG_FLAG)
            continue;
        esper_config_value_text(run, key, text);
        ESPER_TRY(esper_config_set(config, about->name, text, &source));
    }
    return ESPER_OK;
}

/* What an entry says has an effect on it: nobody is to learn on other tasks than they think. */
static esper_status check_words(const esper_task *task, const esper_config *config)
{
    esper_config_use use = esper_settings_use(task, ESPER_CONFIG_IN_LEARN, config);

    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        const char *instead, *why = esper_config_place_of(config, key) == ESPER_CONFIG_FLAG
                                        ? esper_config_why_not(config, key, &use, &instead)
                                        : NULL;

        if (why != NULL)
            return ESPER_FAIL(ESPER_E_CONFIG, "%s has no effect: %s", esper_config_key_at(key)->name, why);
    }
    return ESPER_OK;
}

/* Data that an entry before has is not held twice. */
static esper_dataset *find_data(const esper_curriculum *c, const esper_dataset_desc *wanted)
{
    for (int i = 0; i < c->n - 1; i++) {
        const esper_curriculum_entry *entry = &c->entry[i];
        esper_dataset_desc desc =
            esper_task_data(entry->task, entry->config != NULL ? entry->config : &entry->engine->config);

        if (esper_dataset_is_of(&desc, wanted))
            return entry->data;
    }
    return NULL;
}

/* Adds one. `which` of those that are drawn alike. */
static esper_status open_entry(esper_curriculum *c, const esper_task *task, const esper_config *config,
                               const entry_draws *draws, int which)
{
    esper_curriculum_entry *entry = &c->entry[c->n];
    char host[ESPER_CONFIG_TEXT_CHARS];
    esper_dataset_desc data;
    int place = c->n;

    if (c->n == ESPER_CURRICULUM_MOST)
        return ESPER_FAIL(ESPER_E_CONFIG, "there can be %d, those that are drawn included", (int)ESPER_CURRICULUM_MOST);
    entry->task = task;
    entry->draws = draws->n > 0 ? draws->what : 0;
    entry->config = esper_mem_alloc(sizeof(*entry->config));
    if (entry->config == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "settings of a task");
    c->n++; /* from here on fini frees what there is */
    *entry->config = *config;
    if (entry->draws & ESPER_DRAWS_HOST) {
        esper_curriculum_host(esper_task_topology(task), c->seed, which, host);
        ESPER_TRY(esper_config_set(entry->config, "host", host, &by_list));
    }
    if (entry->draws & ESPER_DRAWS_DATA)
        ESPER_TRY(draw_data(task, c->seed, place, entry->config));
    if (entry->draws & ESPER_DRAWS_BUDGET)
        ESPER_TRY(draw_budget(c->seed, place, entry->config));
    ESPER_TRY(check_words(task, entry->config));
    if (entry->config->epochs < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "an episode of %d epochs leaves nothing to decide", entry->config->epochs);
    data = esper_task_data(task, entry->config);
    entry->data = find_data(c, &data);
    entry->shares = entry->data != NULL;
    if (!entry->shares)
        ESPER_TRY(esper_dataset_open(&data, &entry->data));
    ESPER_TRY(esper_single_engine_beside(task, entry->config, ESPER_USE_GROW, entry->data, c->entry[0].engine,
                                         &entry->engine));
    c->most_epochs = entry->config->epochs > c->most_epochs ? entry->config->epochs : c->most_epochs;
    return ESPER_OK;
}

/* What the first word of an entry names: a task, or data of people's own, which becomes a setting. */
static esper_status find_task(const char *word, esper_config *config, const esper_task **task_out)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;
    struct stat found;

    if (esper_task_find(word, task_out) == ESPER_OK)
        return ESPER_OK;
    if (stat(word, &found) == 0)
        return esper_own_find(word, config, task_out);
    esper_suggest_init(&suggest, word);
    for (int i = 0; esper_task_list()[i] != NULL; i++)
        esper_suggest_offer(&suggest, esper_task_list()[i]->name);
    for (int i = 0; esper_task_lists()[i].name != NULL; i++)
        esper_suggest_offer(&suggest, esper_task_lists()[i].name);
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "'%s' is no task, no list of tasks, and no folder or file here%s (`esper info tasks` and `esper "
                      "info lists` show what there is)",
                      word, esper_suggest_text(&suggest, "", hint));
}

/* The next word: up to a blank, but for what stands between quotes, which are taken off. NULL: there is none. */
static char *next_word(char **rest)
{
    char *from = *rest + strspn(*rest, " \t"), *at = from, *to = from;
    bool quoted = false;

    if (*from == '\0')
        return NULL;
    for (; *at != '\0' && (quoted || (*at != ' ' && *at != '\t')); at++)
        if (*at == '\'')
            quoted = !quoted;
        else
            *to++ = *at;
    *rest = *at != '\0' ? at + 1 : at;
    *to = '\0';
    return from;
}

/* "synth channels=8 host='conv 8 | slot | mean | linear'" */
static esper_status add_entry(esper_curriculum *c, const esper_config *run, char *text, esper_config *config)
{
    char *rest = text, *name = next_word(&rest), *word;
    entry_draws draws = {.n = 0};
    const esper_task *task;
    esper_status status;

    if (name == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: there is nothing between two commas");
    esper_config_init(config);
    while ((word = next_word(&rest)) != NULL)
        ESPER_TRY(set_word(config, word, &draws));
    if (find_task(name, config, &task) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "tasks: ");
    if (draws.what != 0 && draws.n == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: draws says what is drawn, and drawn=N how often: give both",
                          name);
    if (draws.n > 0 && draws.what == 0)
        draws.what = ESPER_DRAWS_HOST;
    if (draws.what & ESPER_DRAWS_HOST && config->host[0] != '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: drawn=%d draws the hosts: leave out host", task->name, draws.n);
    status = share(run, config);
    if (status == ESPER_OK)
        status = esper_task_configure(task, ESPER_CONFIG_IN_LEARN, config);
    if (status == ESPER_OK)
        status = esper_settings_read_texts(config);
    for (int i = 0; status == ESPER_OK && (i == 0 || i < draws.n); i++)
        status = open_entry(c, task, config, &draws, i);
    return status == ESPER_OK ? ESPER_OK : esper_fail_within(status, "tasks: %s: ", task->name);
}

/* ------------------------------------------------------------------------------------------------ all of them */

esper_status esper_curriculum_init(esper_curriculum *c, const esper_task *task, esper_engine *first)
{
    const esper_config *run = &first->config;
    char text[ESPER_CONFIG_TEXT_CHARS], *at = text;
    esper_config *config;
    esper_status status = ESPER_OK;

    *c = (esper_curriculum){.n = 1, .seed = run->seed, .kind = run->curriculum, .most_epochs = run->epochs};
    c->entry[0] = (esper_curriculum_entry){.task = task, .data = first->data, .engine = first};
    if (run->tasks[0] == '\0')
        return ESPER_OK;
    config = esper_mem_alloc(sizeof(*config));
    if (config == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "settings of a task");
    snprintf(text, sizeof(text), "%s", run->tasks);
    for (bool more = true; more && status == ESPER_OK;) {
        char *end = esper_task_lists_entry_end(at);

        more = *end == ',';
        *end = '\0';
        status = add_entry(c, run, at, config);
        at = end + 1;
    }
    esper_mem_free(config);
    return status;
}

void esper_curriculum_fini(esper_curriculum *c)
{
    for (int i = c->n - 1; i > 0; i--) {
        esper_engine_close(c->entry[i].engine);
        if (!c->entry[i].shares)
            esper_dataset_close(c->entry[i].data);
        esper_mem_free(c->entry[i].config);
    }
    *c = (esper_curriculum){.n = 0};
}

/* ladder: the first entry alone at first, one more after each equal part of the first half of the rounds. */
int esper_curriculum_draw(const esper_curriculum *c, uint64_t episode, double done)
{
    int n = c->n;
    esper_rng rng;

    if (c->kind == ESPER_CONFIG_CURRICULUM_LADDER && done < 0.5)
        n = 1 + (int)(2.0 * done * (c->n - 1));
    if (n == 1)
        return 0;
    esper_rng_init(&rng, &(esper_rng_key){.seed = c->seed,
                                          .purpose = ESPER_RNG_POLICY,
                                          .network = (uint32_t)episode & 0xffffff,
                                          .step = (uint32_t)(episode >> 24),
                                          .tag = 1}); /* decisions are drawn with tag 0 */
    return (int)esper_rng_below(&rng, (uint32_t)n);
}

void esper_curriculum_tell(const esper_curriculum_entry *entry, char *text_out, size_t chars)
{
    const esper_config *config = entry->config != NULL ? entry->config : &entry->engine->config;
    size_t used = (size_t)snprintf(text_out, chars, "%s", entry->task->name);

    for (int key = 0; key < ESPER_CONFIG_N_KEYS && used < chars; key++) {
        const esper_config_key *about = esper_config_key_at(key);
        char value[ESPER_CONFIG_TEXT_CHARS];
        bool quoted;

        if (esper_config_place_of(config, key) != ESPER_CONFIG_FLAG ||
            !esper_settings_list_has(own_sections, about->section))
            continue;
        esper_config_value_text(config, key, value);
        quoted = strpbrk(value, " ,\t") != NULL;
        used += (size_t)snprintf(text_out + used, chars - used, " %s=%s%s%s", about->name, quoted ? "'" : "", value,
                                 quoted ? "'" : "");
    }
}

uint64_t esper_curriculum_hash_data(const esper_curriculum *c)
{
    uint64_t hash = esper_dataset_hash(c->entry[0].data);

    for (int i = 1; i < c->n; i++) {
        const esper_curriculum_entry *entry = &c->entry[i];
        const char *host = entry->config->host; /* its text: what a file of it says may change */
        uint64_t words[3] = {hash, esper_dataset_hash(entry->data), XXH64(host, strlen(host), 0)};
        uint64_t drawn[] = {(uint64_t)entry->config->epochs, (uint64_t)entry->config->max_steps,
                            (uint64_t)entry->config->classes, (uint64_t)entry->config->train_limit,
                            entry->config->data_seed};

        hash = XXH64(words, sizeof(words), 0);
        if (entry->draws & ~(unsigned)ESPER_DRAWS_HOST)
            hash = XXH64(drawn, sizeof(drawn), hash);
    }
    return hash;
}
