/* Which runs a comparison is made of, what they wait for, and what they are configured with. */
#include "run/compare.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/suggest.h"
#include "policy/learned.h"
#include "policy/policy.h"
#include "run/settings.h"
#include "run/single.h"
#include "slot/slots.h"

enum { LIST_CHARS = 4096, MAX_STEM_CHARS = 24 };

static const char name_final[] = "static-final", name_equal[] = "static-equal", name_learned[] = "learned";
static const char name_static[] = "static"; /* another word for `none` */
static const char file_end[] = ".safetensors";

/* What a line cannot have for itself: runs are alike in it, or a comparison chooses it. */
static const char *const shared_keys[] = {
    "seed",   "threads",        "backend", "run_dir",   "policy",    "policy_cmd", "decisions",      "plant",
    "epochs", "length",         "flops",   "max_steps", "data",      "target",     "valid_fraction", "train_limit",
    "reward", "reward_weights", "gates",   "progress",  "log_level", NULL};

const char *esper_compare_outcome_name(esper_compare_outcome outcome)
{
    static const char *const names[] = {
#define X(name, text) [ESPER_COMPARE_##name] = text,
        ESPER_COMPARE_OUTCOME_LIST(X)
#undef X
    };

    return names[outcome];
}

/* ------------------------------------------------------------------------------------------------ lines */

static esper_status fail_line(const char *word)
{
    char names[160] = "", hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    if (strcmp(word, name_learned) == 0)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--policies: a learned policy is compared by its file, or by the run of `esper learn` that "
                          "made it: its directory, the beginning of its name below runs/, or 'last'");
    esper_suggest_init(&suggest, word);
    for (int i = 0; esper_policy_list()[i] != NULL; i++) {
        if (esper_policy_list()[i] == &esper_policy_learned)
            continue;
        esper_suggest_offer(&suggest, esper_policy_list()[i]->name);
        strncat(names, esper_policy_list()[i]->name, sizeof(names) - strlen(names) - 1);
        strncat(names, ", ", sizeof(names) - strlen(names) - 1);
    }
    esper_suggest_offer(&suggest, name_final);
    esper_suggest_offer(&suggest, name_equal);
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "--policies: nothing to compare is called '%.40s'%s There are: %s%s, %s, and learned policies: "
                      "their files or their runs",
                      word, suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", names, name_final,
                      name_equal);
}

/* A policy that has a name, and needs no more; NULL: none is called so. */
static const esper_policy_ops *find_policy(const char *word)
{
    for (int i = 0; esper_policy_list()[i] != NULL; i++)
        if (strcmp(esper_policy_list()[i]->name, word) == 0 && esper_policy_list()[i] != &esper_policy_learned)
            return esper_policy_list()[i];
    return NULL;
}

static void set_line(esper_compare_line *line, const char *name, esper_compare_kind kind)
{
    *line = (esper_compare_line){.kind = kind, .of = -1};
    snprintf(line->name, sizeof(line->name), "%s", name);
    line->ops = find_policy(name);
}

static esper_status set(esper_config *config, const char *key, const char *text)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};

    return esper_config_set(config, key, text, &source);
}

static esper_status set_int(esper_config *config, const char *key, int64_t value)
{
    char text[ESPER_NUMBER_CHARS];

    snprintf(text, sizeof(text), "%" PRId64, value);
    return set(config, key, text);
}

/* One setting "lr=0.05" of a line into the configuration of its runs; the size of the host into *size. */
static esper_status apply(char *setting, esper_config *config, int *size)
{
    char *value = strchr(setting, '=');
    int64_t units;
    bool fits;

    if (value == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "'%.40s' is no setting: expected key=value", setting);
    *value++ = '\0';
    if (strcmp(setting, "size") == 0) {
        if (!esper_number_read_int(value, &units, &fits) || !fits || units < 1 || units > INT32_MAX)
            return ESPER_FAIL(ESPER_E_CONFIG, "size: '%.40s' is no whole number of channels, width or eighths", value);
        *size = (int)units;
        return ESPER_OK;
    }
    if (esper_settings_list_has(shared_keys, setting))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is the same for all lines: give it as a flag", setting);
    return set(config, setting, value);
}

/* The settings of a line's own. */
static esper_status apply_all(const esper_compare_line *line, esper_config *config, int *size)
{
    char words[ESPER_COMPARE_LABEL_CHARS], *rest = words, *setting;
    esper_status status;

    if (line->settings[0] == '\0')
        return ESPER_OK;
    snprintf(words, sizeof(words), "%s", line->settings);
    while ((setting = strsep(&rest, ":")) != NULL)
        if ((status = apply(setting, config, size)) != ESPER_OK)
            return esper_fail_within(status, "--policies: %s: ", line->name);
    return ESPER_OK;
}

esper_status esper_compare_configure_line(const esper_compare *compare, int line, esper_config *config_out)
{
    int size;

    *config_out = compare->config;
    return apply_all(&compare->lines[line], config_out, &size);
}

esper_status esper_compare_set_size(const esper_compare *compare, int size, esper_config *config)
{
    char host[ESPER_HOST_CHARS];

    if (size == 0)
        return ESPER_OK;
    if (compare->config.host[0] == '\0')
        return set_int(config, esper_compare_size_key(compare->task, &compare->config), size);
    ESPER_TRY(esper_host_text_scale(compare->config.host, size, host));
    return set(config, "host", host);
}

/* "trials:lr=0.05": cuts the settings off. A colon without them is part of a file's name. */
static const char *cut_settings(char *word)
{
    char *colon = strchr(word, ':');

    if (colon == NULL || strchr(colon, '=') == NULL)
        return "";
    *colon = '\0';
    return colon + 1;
}

static esper_status find_line(const char *word, esper_compare_line *line_out)
{
    char path[ESPER_PATH_CHARS];

    if (strcmp(word, name_final) == 0)
        set_line(line_out, name_final, ESPER_COMPARE_FINAL);
    else if (strcmp(word, name_equal) == 0)
        set_line(line_out, name_equal, ESPER_COMPARE_EQUAL);
    else if (strcmp(word, name_static) == 0 || strcmp(word, esper_policy_none.name) == 0)
        set_line(line_out, esper_policy_none.name, ESPER_COMPARE_HOST);
    else if (find_policy(word) != NULL) /* which `none` is, too */
        set_line(line_out, word,
                 find_policy(word) == &esper_policy_halving ? ESPER_COMPARE_SEARCH : ESPER_COMPARE_GROWN);
    else if (!esper_policy_is_file(word) && !esper_run_policy_is_named(word) &&
             (strcmp(word, esper_policy_learned.name) != 0 || !esper_run_policy_shipped(path)))
        return fail_line(word);
    else { /* a learned policy, by its file or its run; named once all are known */
        if (esper_run_policy_take(word, path) != ESPER_OK)
            return esper_fail_within(ESPER_E_CONFIG, "--policies: ");
        set_line(line_out, "", ESPER_COMPARE_GROWN);
        if (snprintf(line_out->file, sizeof(line_out->file), "%s%s", strchr(path, '/') != NULL ? "" : "./", path) >=
            (int)sizeof(line_out->file))
            return ESPER_FAIL(ESPER_E_CONFIG, "--policies: the path %.60s... is too long", path);
    }
    return ESPER_OK;
}

/* Its settings stand behind its name, and are tried out: what they make has to be a network. */
static esper_status take_settings(const esper_compare *compare, const char *settings, esper_compare_line *line)
{
    esper_config config = compare->config;
    esper_status status;
    esper_net net;

    if (settings[0] == '\0')
        return ESPER_OK;
    if (line->ops == NULL || line->kind == ESPER_COMPARE_SEARCH)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--policies: only none and policies that grow, called by their names, have settings "
                          "of their own: leave out :%.60s",
                          settings);
    if (snprintf(line->settings, sizeof(line->settings), "%s", settings) >= (int)sizeof(line->settings) ||
        snprintf(line->name, sizeof(line->name), "%s:%s", line->ops->name, settings) >= (int)sizeof(line->name))
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: %.60s...: settings of a line have %d characters at most",
                          settings, ESPER_COMPARE_LABEL_CHARS - 16);
    if (strchr(settings, '/') != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: %s: a line is also a directory's name, which has no /",
                          line->name);
    ESPER_TRY(apply_all(line, &config, &line->size));
    ESPER_TRY(esper_compare_set_size(compare, line->size, &config));
    status = esper_task_build(compare->task, &config, &compare->data, &net);
    if (status != ESPER_OK)
        return esper_fail_within(status, "--policies: %s: ", line->name);
    esper_net_fini(&net);
    return ESPER_OK;
}

static esper_status add_line(esper_compare *compare, char *word)
{
    esper_compare_line line = {.name = ""};
    const char *settings = cut_settings(word);

    ESPER_TRY(find_line(word, &line));
    ESPER_TRY(take_settings(compare, settings, &line));
    for (int i = 0; i < compare->n_lines; i++)
        if (strcmp(compare->lines[i].name, line.name) == 0 && strcmp(compare->lines[i].file, line.file) == 0)
            return ESPER_FAIL(ESPER_E_CONFIG, "--policies: %s stands there twice",
                              line.file[0] != '\0' ? line.file : line.name);
    if (compare->n_lines == ESPER_COMPARE_MAX_LINES)
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: more than %d lines", ESPER_COMPARE_MAX_LINES);
    compare->lines[compare->n_lines++] = line;
    return ESPER_OK;
}

static bool is_policy(const esper_compare_line *line, const esper_policy_ops *ops)
{
    return line->ops == ops;
}

/* Lines that would only fail one by one, once they run. */
static esper_status check_lines(const esper_compare *compare)
{
    for (int i = 0; i < compare->n_lines; i++) {
        const esper_compare_line *line = &compare->lines[i];

        if (compare->grown < 0 && (line->kind == ESPER_COMPARE_FINAL || line->kind == ESPER_COMPARE_EQUAL))
            return ESPER_FAIL(
                ESPER_E_CONFIG,
                "--policies: %s is made after a network that has grown: add a policy that grows one, such "
                "as trials",
                line->name);
        if (line->kind == ESPER_COMPARE_SEARCH && compare->config.plant[0] != '\0')
            return ESPER_FAIL(ESPER_E_CONFIG, "--policies: %s chooses all seeds by itself: leave it out, or --plant",
                              line->name);
        if (is_policy(line, &esper_policy_command) && compare->config.policy_cmd[0] == '\0')
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "--policies: command needs the program that decides: --policy-cmd COMMAND");
        if (is_policy(line, &esper_policy_scripted) && compare->config.decisions[0] == '\0')
            return ESPER_FAIL(ESPER_E_CONFIG, "--policies: scripted needs its decision file: --decisions PATH");
    }
    return ESPER_OK;
}

/* Lines from there on move up by one, and so does what is known of them. */
static esper_status insert_line(esper_compare *compare, int at, const esper_compare_line *line)
{
    if (compare->n_lines == ESPER_COMPARE_MAX_LINES)
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: more than %d lines, with a %s of each learned policy",
                          ESPER_COMPARE_MAX_LINES, name_final);
    assert(at >= 0 && at <= compare->n_lines);
    memmove(&compare->lines[at + 1], &compare->lines[at], (size_t)(compare->n_lines - at) * sizeof(*line));
    compare->lines[at] = *line;
    compare->n_lines++;
    compare->grown += compare->grown >= at;
    compare->host += compare->host >= at;
    for (int i = 0; i < compare->n_lines; i++)
        compare->lines[i].of += compare->lines[i].of >= at;
    return ESPER_OK;
}

/* Whose networks static lines are made after. Where learned policies grow some, too, each has a static-final of its own. */
static esper_status follow(esper_compare *compare)
{
    esper_compare_line final;
    int at = -1;

    for (int i = 0; i < compare->n_lines; i++) {
        esper_compare_kind kind = compare->lines[i].kind;

        if (kind == ESPER_COMPARE_FINAL || kind == ESPER_COMPARE_EQUAL) {
            compare->lines[i].of = compare->grown; /* and it is trained like that one */
            memcpy(compare->lines[i].settings, compare->lines[compare->grown].settings,
                   sizeof(compare->lines[i].settings));
            compare->lines[i].size = kind == ESPER_COMPARE_FINAL ? compare->lines[compare->grown].size : 0;
        }
        if (kind == ESPER_COMPARE_FINAL)
            at = i;
    }
    set_line(&final, name_final, ESPER_COMPARE_FINAL);
    for (int i = 0; i < compare->n_lines && at >= 0; i++) {
        if (compare->lines[i].file[0] == '\0' || i == compare->grown)
            continue;
        ESPER_TRY(insert_line(compare, ++at, &final));
        i += i >= at;
        compare->lines[at].of = i;
    }
    return ESPER_OK;
}

/* Which of the lines that grow static ones follow: trials, else the heuristic, else the first. */
static int preference(const esper_compare_line *line)
{
    return is_policy(line, &esper_policy_trials) ? 2 : is_policy(line, &esper_policy_heuristic) ? 1 : 0;
}

static esper_status read_lines(esper_compare *compare, const char *policies)
{
    char words[LIST_CHARS], *rest = words, *word;

    if (snprintf(words, sizeof(words), "%s", policies) >= (int)sizeof(words))
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: a list of %zu characters is too long", strlen(policies));
    while ((word = strsep(&rest, ",")) != NULL) {
        word += strspn(word, " ");
        word[strcspn(word, " ")] = '\0';
        ESPER_TRY(add_line(compare, word));
    }
    compare->grown = compare->host = -1;
    for (int i = compare->n_lines - 1; i >= 0; i--) {
        if (compare->lines[i].kind == ESPER_COMPARE_GROWN &&
            (compare->grown < 0 || preference(&compare->lines[i]) >= preference(&compare->lines[compare->grown])))
            compare->grown = i;
        if (compare->lines[i].kind == ESPER_COMPARE_HOST)
            compare->host = i;
    }
    ESPER_TRY(check_lines(compare));
    return follow(compare);
}

/* ------------------------------------------------------------------------------------------------ learned policies */

/* Whether it is for the run that it would decide about: the task's host, with the slots that it has. */
static esper_status check_file(const esper_compare *compare, const esper_learned_file *file)
{
    const esper_slot_rules rules = {0};
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    const char *ids[ESPER_MAX_SLOTS];
    esper_learned_identity wanted;
    esper_net net;
    esper_status status = slots != NULL ? esper_task_build(compare->task, &compare->config, &compare->data, &net)
                                        : ESPER_FAIL(ESPER_E_NOMEM, "the slots of %s", compare->task->name);

    if (status == ESPER_OK) {
        status = esper_slots_init(slots, net.boundaries, net.n_boundaries, &rules);
        esper_net_fini(&net);
    }
    esper_learned_identity_init(&wanted);
    snprintf(wanted.task, sizeof(wanted.task), "%s", compare->task->name);
    wanted.topology = esper_task_host(compare->task, &compare->config, &compare->data).topology;
    for (int k = 0; status == ESPER_OK && k < slots->n; k++)
        ids[k] = slots->slot[k].id;
    if (status == ESPER_OK)
        status = esper_learned_identity_set_slots(&wanted, ids, slots->n);
    esper_mem_free(slots);
    return status == ESPER_OK ? esper_learned_check(file, &wanted) : status;
}

/* What a policy's file says of itself. */
static esper_status read_policy(const esper_compare *compare, esper_compare_line *line)
{
    esper_learned_file *file;
    const esper_learned_identity *identity;
    esper_config was;
    esper_status status = esper_learned_open(line->file, &file);

    if (status != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "--policies: ");
    status = check_file(compare, file);
    identity = esper_learned_identity_of(file);
    snprintf(line->reward, sizeof(line->reward), "%s", identity->reward);
    snprintf(line->gates, sizeof(line->gates), "%s", esper_config_gates_name(identity->gates));
    line->weights_known = esper_policy_settings(file, &was); /* a file without them says nothing of its weights */
    if (line->weights_known)
        esper_config_value_text(&was, esper_config_find("reward_weights"), line->weights);
    line->hash = esper_learned_hash_of(file);
    esper_learned_close(file);
    return status == ESPER_E_CONFIG ? esper_fail_within(ESPER_E_CONFIG, "--policies: ") : status;
}

/* "runs/x/policy.safetensors": up 0 is "policy", up 1 is "x". Only what a file's name can be made of. */
static void part_of_path(const char *path, int up, char name_out[ESPER_COMPARE_LABEL_CHARS])
{
    const char *end = path + strlen(path), *begin;
    size_t n;

    for (; up > 0; up--) {
        while (end > path && end[-1] != '/')
            end--;
        while (end > path && end[-1] == '/')
            end--;
    }
    for (begin = end; begin > path && begin[-1] != '/'; begin--)
        ;
    n = (size_t)(end - begin);
    if (n > strlen(file_end) && strncmp(end - strlen(file_end), file_end, strlen(file_end)) == 0)
        n -= strlen(file_end);
    snprintf(name_out, MAX_STEM_CHARS, "%.*s", (int)n, begin);
    for (char *c = name_out; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && (c == name_out || strchr("-_.", *c) == NULL))
            *c = '_';
}

static bool is_taken(const esper_compare *compare, int line, const char *name)
{
    bool taken = name[0] == '\0' || strcmp(name, name_static) == 0 || strcmp(name, name_learned) == 0 ||
                 find_policy(name) != NULL;

    for (int i = 0; i < compare->n_lines; i++)
        taken |= i != line && strcmp(compare->lines[i].name, name) == 0;
    return taken;
}

/* After the part of its path, the file's name or the directory's, that tells it from all others; where neither does, numbered. */
static void name_file(esper_compare *compare, int line, int n_files)
{
    char *name = compare->lines[line].name, stem[ESPER_COMPARE_LABEL_CHARS], other[ESPER_COMPARE_LABEL_CHARS];

    if (n_files == 1) {
        snprintf(name, ESPER_COMPARE_LABEL_CHARS, "%s", name_learned);
        return;
    }
    for (int up = 0; up < 2 && name[0] == '\0'; up++) {
        bool taken;

        part_of_path(compare->lines[line].file, up, stem);
        taken = is_taken(compare, line, stem);
        for (int i = 0; i < compare->n_lines; i++) {
            part_of_path(compare->lines[i].file, up, other);
            taken |= i != line && compare->lines[i].file[0] != '\0' && strcmp(stem, other) == 0;
        }
        if (!taken)
            snprintf(name, ESPER_COMPARE_LABEL_CHARS, "%s", stem);
    }
    part_of_path(compare->lines[line].file, 0, stem);
    for (int n = 1; is_taken(compare, line, name); n++)
        snprintf(name, ESPER_COMPARE_LABEL_CHARS, "%.*s-%d", MAX_STEM_CHARS - 1, stem, n % 100);
}

/* Several lines static-final are told apart by whose network they have. */
static void name_finals(esper_compare *compare)
{
    int n_finals = 0;

    for (int i = 0; i < compare->n_lines; i++)
        n_finals += compare->lines[i].kind == ESPER_COMPARE_FINAL;
    for (int i = 0; i < compare->n_lines && n_finals > 1; i++) {
        esper_compare_line *line = &compare->lines[i];
        char whose[MAX_STEM_CHARS];

        if (line->kind != ESPER_COMPARE_FINAL)
            continue;
        snprintf(whose, sizeof(whose), "%.*s", MAX_STEM_CHARS - 1, compare->lines[line->of].name);
        snprintf(line->name, sizeof(line->name), "%s-%s", name_final, whose);
        for (int n = 2; is_taken(compare, i, line->name); n++)
            snprintf(line->name, sizeof(line->name), "%s-%s-%d", name_final, whose, n % 100);
    }
}

static esper_status read_files(esper_compare *compare)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_PRESET};
    bool gates_asked = esper_config_place_of(&compare->config, esper_config_find("gates")) > ESPER_CONFIG_PRESET;
    const esper_compare_line *first = NULL;
    int n_files = 0;

    for (int i = 0; i < compare->n_lines; i++)
        n_files += compare->lines[i].file[0] != '\0';
    for (int i = 0; i < compare->n_lines; i++) {
        esper_compare_line *line = &compare->lines[i];

        if (line->file[0] == '\0')
            continue;
        name_file(compare, i, n_files);
        ESPER_TRY(read_policy(compare, line));
        first = first != NULL ? first : line;
        if (gates_asked)
            continue;
        /* All lines grow behind the same gates: those that the files were trained with. */
        if (strcmp(line->gates, first->gates) != 0)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "--policies: %s was trained with %s gates and %s with %s ones: choose --gates",
                              first->file, first->gates, line->file, line->gates);
        ESPER_TRY(esper_config_set(&compare->config, "gates", line->gates, &source));
    }
    for (int i = 0; i < compare->n_lines; i++) { /* the gates are chosen */
        esper_learned_file *file;

        if (compare->lines[i].file[0] == '\0')
            continue;
        ESPER_TRY(esper_learned_open(compare->lines[i].file, &file));
        esper_policy_note(file, &compare->config, compare->lines[i].note);
        esper_learned_close(file);
    }
    name_finals(compare);
    return ESPER_OK;
}

esper_status esper_compare_set_against(esper_compare *compare, const char *name)
{
    char names[LIST_CHARS] = "", file[ESPER_PATH_CHARS] = "";
    const char *path = file; /* of a policy, without "./" */
    int against = compare->grown >= 0 ? compare->grown : 0;

    for (int i = compare->n_lines - 1; i >= 0 && name == NULL; i--)
        if (compare->lines[i].file[0] != '\0')
            against = i;
    if (name != NULL && esper_run_policy_take(name, file) != ESPER_OK)
        file[0] = '\0'; /* it is something else */
    path += strncmp(file, "./", 2) == 0 ? 2 : 0;
    for (int i = 0; i < compare->n_lines && name != NULL; i++) {
        const esper_compare_line *line = &compare->lines[i];
        const char *at = line->file + (strncmp(line->file, "./", 2) == 0 ? 2 : 0);
        bool other = (line->kind == ESPER_COMPARE_HOST && strcmp(name, name_static) == 0) ||
                     (line->kind == ESPER_COMPARE_FINAL && strcmp(name, name_final) == 0);

        if (other || strcmp(line->name, name) == 0 || (at[0] != '\0' && strcmp(at, path) == 0)) {
            compare->against = i;
            return ESPER_OK;
        }
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i > 0 ? ", " : "", line->name);
    }
    if (name != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "--against: '%.60s' is not compared; there are: %s", name, names);
    compare->against = against;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ runs */

static void add_run(esper_compare *compare, int line, int seed)
{
    esper_compare_run *run = &compare->runs[compare->n_runs++];

    assert(compare->n_runs <= compare->n_lines * compare->n_seeds);
    *run = (esper_compare_run){.line = line, .seed = seed, .same_as = -1};
    run->result = (esper_compare_result){.outcome = ESPER_COMPARE_PENDING,
                                         .acc_test = (double)NAN,
                                         .loss_test = (double)NAN,
                                         .acc_valid = (double)NAN,
                                         .total_reward = (double)NAN,
                                         .flops = (double)NAN,
                                         .flops_train = (double)NAN,
                                         .seconds = (double)NAN,
                                         .params = -1,
                                         .epochs = -1};
}

/* Those that static lines are made after come first, and of them the one that all go by. */
static void add_runs_of_seed(esper_compare *compare, int seed)
{
    uint64_t followed = 0;

    _Static_assert(ESPER_COMPARE_MAX_LINES <= 64, "a bit for each line");
    for (int i = 0; i < compare->n_lines; i++)
        if (compare->lines[i].of >= 0)
            followed |= UINT64_C(1) << compare->lines[i].of;
    if (compare->grown >= 0)
        add_run(compare, compare->grown, seed);
    for (int waits = 0; waits < 2; waits++)
        for (int i = 0; i < compare->n_lines; i++)
            if (i != compare->grown && (followed >> i & 1) != (uint64_t)waits)
                add_run(compare, i, seed);
}

/* What the host may spend, as a run of it would reckon: static lines begin with other networks, and must not have more for it. */
static esper_status read_budget(esper_compare *compare)
{
    esper_config config = compare->config;
    esper_network *network;

    if (config.length == ESPER_CONFIG_LENGTH_FLOPS && config.flops > 0.0) {
        compare->flops = config.flops;
        return ESPER_OK;
    }
    config.length = ESPER_CONFIG_LENGTH_FLOPS;
    config.flops = 0.0;
    ESPER_TRY(esper_single_open(compare->task, &config, ESPER_USE_TRAIN, &network));
    compare->flops = (double)network->budget;
    esper_single_close(network);
    return ESPER_OK;
}

static esper_status init_parts(esper_compare *compare, const char *policies)
{
    esper_dataset_desc data = esper_task_data(compare->task, &compare->config);
    esper_net net;

    ESPER_TRY(esper_dataset_measure(&data, &compare->data));
    ESPER_TRY(read_lines(compare, policies));
    ESPER_TRY(esper_task_build(compare->task, &compare->config, &compare->data, &net));
    esper_net_fini(&net); /* one that cannot be built is better known before a hundred runs say so */
    ESPER_TRY(read_files(compare));
    ESPER_TRY(read_budget(compare));
    ESPER_TRY(esper_compare_set_against(compare, NULL));
    compare->runs = esper_mem_alloc((size_t)compare->n_lines * (size_t)compare->n_seeds * sizeof(*compare->runs));
    if (compare->runs == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a comparison of %d seeds", compare->n_seeds);
    for (int seed = 0; seed < compare->n_seeds; seed++)
        add_runs_of_seed(compare, seed);
    return ESPER_OK;
}

esper_status esper_compare_init(esper_compare *compare, const esper_task *task, const esper_config *config,
                                const char *policies, int64_t n_seeds)
{
    esper_status status;

    if (n_seeds < 1 || n_seeds > ESPER_COMPARE_MAX_SEEDS)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--seeds: %" PRId64 ", expected 1 to %d: each line is run once for every seed", n_seeds,
                          ESPER_COMPARE_MAX_SEEDS);
    if (config->epochs < 1)
        return ESPER_FAIL(ESPER_E_CONFIG, "epochs is 0: there is nothing to compare");
    *compare = (esper_compare){.task = task, .config = *config, .n_seeds = (int)n_seeds};
    status = init_parts(compare, policies);
    if (status != ESPER_OK)
        esper_compare_fini(compare);
    return status;
}

void esper_compare_fini(esper_compare *compare)
{
    esper_mem_free(compare->runs);
    compare->runs = NULL;
    compare->n_runs = 0;
}

const esper_compare_run *esper_compare_find(const esper_compare *compare, int line, int seed)
{
    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];

        if (run->line == line && run->seed == seed)
            return run;
    }
    return NULL;
}

uint64_t esper_compare_seed(const esper_compare *compare, int seed)
{
    return compare->config.seed + (uint64_t)seed;
}

void esper_compare_name(const esper_compare *compare, const esper_compare_run *run, char text[ESPER_COMPARE_NAME_CHARS])
{
    snprintf(text, ESPER_COMPARE_NAME_CHARS, "%s-%" PRIu64, compare->lines[run->line].name,
             esper_compare_seed(compare, run->seed));
}

/* ------------------------------------------------------------------------------------------------ preparing */

static bool is_over(const esper_compare_run *run)
{
    return run->result.outcome != ESPER_COMPARE_PENDING && run->result.outcome != ESPER_COMPARE_RUNNING;
}

/* The grown run of the same seed that a static line is made after; NULL = it is made after none. False: it has to be waited for,
 * or came to nothing, and then nothing comes of this run, too. */
static bool find_model(const esper_compare *compare, esper_compare_run *run, const esper_compare_run **model_out)
{
    const esper_compare_line *line = &compare->lines[run->line];
    const esper_compare_run *model = line->of >= 0 ? esper_compare_find(compare, line->of, run->seed) : NULL;
    char name[ESPER_COMPARE_NAME_CHARS];

    *model_out = model;
    if (model == NULL || model->result.outcome == ESPER_COMPARE_GOOD)
        return true;
    if (is_over(model)) {
        esper_compare_name(compare, model, name);
        run->result.outcome = ESPER_COMPARE_SKIPPED;
        snprintf(run->result.why, sizeof(run->result.why), "it needs %s (%s)", name,
                 esper_compare_outcome_name(model->result.outcome));
    }
    return false;
}

static esper_status choose(esper_compare *compare, esper_compare_run *run, const esper_compare_run *model)
{
    esper_compare_kind kind = compare->lines[run->line].kind;
    const char *planted = compare->config.plant, *tested = "";

    assert(model != NULL || (kind != ESPER_COMPARE_FINAL && kind != ESPER_COMPARE_EQUAL));
    if (compare->config.length == ESPER_CONFIG_LENGTH_FLOPS || kind == ESPER_COMPARE_SEARCH) /* which knows no epochs */
        run->flops = compare->flops;
    if (kind == ESPER_COMPARE_EQUAL)
        return esper_compare_size(compare->task, &compare->config, &compare->data, model->result.params, &run->size,
                                  &run->size_params);
    run->size = compare->lines[run->line].size;
    /* What was tested in the end, besides what was there from the start. Planted seeds have full weight: a network in which one
     * was still being blended in has the same parameters, and finds weights of its own. */
    if (kind == ESPER_COMPARE_FINAL)
        tested = model->result.tested;
    if (snprintf(run->plant, sizeof(run->plant), "%s%s%s", planted, planted[0] != '\0' && tested[0] != '\0' ? "," : "",
                 tested) >= (int)sizeof(run->plant))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: the seeds of the network do not fit into the setting plant", name_final);
    return ESPER_OK;
}

/* Channels or width. */
static int size_of(const esper_compare *compare, const esper_compare_run *run)
{
    return run->size > 0 ? run->size : esper_compare_own_size(compare->task, &compare->config);
}

static bool is_static(const esper_compare_line *line)
{
    return line->kind != ESPER_COMPARE_GROWN && line->kind != ESPER_COMPARE_SEARCH;
}

/* Static runs are the same when seed, network and budget are. */
static bool is_alike(const esper_compare *compare, const esper_compare_run *a, const esper_compare_run *b)
{
    return a->seed == b->seed && a->flops == b->flops && strcmp(a->plant, b->plant) == 0 &&
           size_of(compare, a) == size_of(compare, b) &&
           strcmp(compare->lines[a->line].settings, compare->lines[b->line].settings) == 0 &&
           is_static(&compare->lines[a->line]) && is_static(&compare->lines[b->line]);
}

esper_status esper_compare_prepare(esper_compare *compare, esper_compare_run *run, bool *ready_out)
{
    *ready_out = false;
    if (!run->prepared) {
        const esper_compare_run *model;

        if (!find_model(compare, run, &model))
            return ESPER_OK;
        ESPER_TRY(choose(compare, run, model));
        run->prepared = true;
        for (int i = 0; i < compare->n_runs && run->same_as < 0; i++) {
            const esper_compare_run *other = &compare->runs[i];

            if (other != run && other->prepared && other->same_as < 0 && is_alike(compare, run, other))
                run->same_as = i;
        }
    }
    if (run->same_as >= 0) {
        if (is_over(&compare->runs[run->same_as]))
            run->result = compare->runs[run->same_as].result;
        return ESPER_OK;
    }
    *ready_out = true;
    return ESPER_OK;
}

/* Who begins with the task's host finds out by itself what its epochs cost. */
static bool reckons_itself(const esper_compare *compare, const esper_compare_line *line)
{
    return compare->config.length == ESPER_CONFIG_LENGTH_FLOPS && line->settings[0] == '\0' &&
           line->kind != ESPER_COMPARE_FINAL && line->kind != ESPER_COMPARE_EQUAL;
}

esper_status esper_compare_configure(const esper_compare *compare, const esper_compare_run *run, const char *run_dir,
                                     int threads, esper_config *config_out)
{
    const esper_compare_line *line = &compare->lines[run->line];
    const char *policy = line->file[0] != '\0' ? line->file
                         : is_static(line)     ? esper_policy_none.name
                                               : line->ops->name;
    char seed[ESPER_NUMBER_CHARS], flops[ESPER_NUMBER_CHARS];
    int size = 0;

    assert(run->prepared);
    *config_out = compare->config;
    snprintf(seed, sizeof(seed), "%" PRIu64, esper_compare_seed(compare, run->seed));
    ESPER_TRY(set(config_out, "seed", seed));
    ESPER_TRY(set(config_out, "run_dir", run_dir));
    ESPER_TRY(set(config_out, "policy", policy));
    if (!is_policy(line, &esper_policy_command))
        ESPER_TRY(set(config_out, "policy_cmd", ""));
    if (!is_policy(line, &esper_policy_scripted))
        ESPER_TRY(set(config_out, "decisions", ""));
    ESPER_TRY(set(config_out, "plant", run->plant));
    if (run->flops > 0.0 && !reckons_itself(compare, line)) {
        snprintf(flops, sizeof(flops), "%.17g", run->flops);
        ESPER_TRY(set(config_out, "length", "flops"));
        ESPER_TRY(set(config_out, "flops", flops));
    }
    ESPER_TRY(set_int(config_out, "threads", threads));
    ESPER_TRY(apply_all(line, config_out, &size)); /* its size is the run's already */
    return esper_compare_set_size(compare, run->size, config_out);
}
