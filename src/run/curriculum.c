/* Reading a list of tasks, opening each beside the first, and drawing among them. */
#include "run/curriculum.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "run/settings.h"
#include "run/single.h"

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

/* ------------------------------------------------------------------------------------------------ one entry */

/* What a word may set: what is the entry's own. */
static const char *const own_sections[] = {"Training", "Data", "Network", NULL};

/* Of these, what the run says unless the entry does. */
static const char *const shared[] = {"epochs", "max_steps", "cache", NULL};

static esper_status set_word(esper_config *config, char *word, int *n_drawn)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG, .name = "tasks"};
    char *value = strchr(word, '='), *end;
    int key;

    if (value == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: '%s' is no setting, such as channels=8", word);
    *value++ = '\0';
    if (strcmp(word, "drawn") == 0) {
        long n = strtol(value, &end, 10);

        if (end == value || *end != '\0' || n < 1 || n > ESPER_CURRICULUM_MOST)
            return ESPER_FAIL(ESPER_E_CONFIG, "tasks: drawn=%s: from 1 to %d hosts can be drawn", value,
                              (int)ESPER_CURRICULUM_MOST);
        *n_drawn = (int)n;
        return ESPER_OK;
    }
    key = esper_config_find(word);
    if (key >= 0 && !esper_settings_list_has(own_sections, esper_config_key_at(key)->section))
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s is one for all tasks: set it by its flag", word);
    if (esper_config_set(config, word, value, &source) != ESPER_OK)
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
            return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: %s has no effect: %s", task->name,
                              esper_config_key_at(key)->name, why);
    }
    return ESPER_OK;
}

static esper_status open_entry(esper_curriculum *c, const esper_task *task, const esper_config *config, bool shares)
{
    esper_curriculum_entry *entry = &c->entry[c->n];
    esper_dataset_desc data;
    esper_status status = ESPER_OK;

    if (c->n == ESPER_CURRICULUM_MOST)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: there can be %d, hosts that are drawn included",
                          (int)ESPER_CURRICULUM_MOST);
    entry->task = task;
    entry->config = esper_mem_alloc(sizeof(*entry->config));
    if (entry->config == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "settings of a task");
    c->n++; /* from here on fini frees what there is */
    *entry->config = *config;
    entry->shares = shares;
    data = esper_task_data(task, entry->config);
    if (shares)
        entry->data = entry[-1].data;
    else
        status = esper_dataset_open(&data, &entry->data);
    if (status == ESPER_OK)
        status = esper_single_engine_beside(task, entry->config, ESPER_USE_GROW, entry->data, c->entry[0].engine,
                                            &entry->engine);
    if (status == ESPER_OK && entry->config->epochs < 2)
        status = ESPER_FAIL(ESPER_E_CONFIG, "an episode of %d epochs leaves nothing to decide", entry->config->epochs);
    if (status != ESPER_OK)
        return esper_fail_within(status, "tasks: %s: ", task->name);
    c->most_epochs = entry->config->epochs > c->most_epochs ? entry->config->epochs : c->most_epochs;
    return ESPER_OK;
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
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG, .name = "tasks"};
    char *rest = text, *word = next_word(&rest);
    const esper_task *task;
    esper_status status;
    int n_drawn = 0;

    if (word == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: there is nothing between two commas");
    if (esper_task_find(word, &task) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "tasks: ");
    esper_config_init(config);
    while ((word = next_word(&rest)) != NULL)
        ESPER_TRY(set_word(config, word, &n_drawn));
    if (n_drawn > 0 && config->host[0] != '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: drawn=%d draws the hosts: leave out host", task->name, n_drawn);
    ESPER_TRY(share(run, config));
    status = esper_task_configure(task, ESPER_CONFIG_IN_LEARN, config);
    if (status == ESPER_OK)
        status = esper_settings_read_texts(config);
    if (status != ESPER_OK)
        return esper_fail_within(status, "tasks: %s: ", task->name);
    for (int i = 0; i == 0 || i < n_drawn; i++) {
        char host[ESPER_CONFIG_TEXT_CHARS];

        if (n_drawn > 0) {
            esper_curriculum_host(esper_task_topology(task), run->seed, i, host);
            ESPER_TRY(esper_config_set(config, "host", host, &source));
        }
        ESPER_TRY(check_words(task, config));
        ESPER_TRY(open_entry(c, task, config, i > 0));
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of them */

/* The end of an entry: a comma that is not quoted. */
static char *entry_end(char *text)
{
    bool quoted = false;

    for (; *text != '\0' && (quoted || *text != ','); text++)
        quoted = quoted != (*text == '\'');
    return text;
}

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
        char *end = entry_end(at);

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

uint64_t esper_curriculum_hash_data(const esper_curriculum *c)
{
    uint64_t hash = esper_dataset_hash(c->entry[0].data);

    for (int i = 1; i < c->n; i++) {
        const char *host = c->entry[i].config->host; /* its text: what a file of it says may change */
        uint64_t words[3] = {hash, esper_dataset_hash(c->entry[i].data), XXH64(host, strlen(host), 0)};

        hash = XXH64(words, sizeof(words), 0);
    }
    return hash;
}
