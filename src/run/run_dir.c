/* Run directories and their names. */
#include "run/run_dir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/fields.h"
#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/shell.h"
#include "base/status.h"
#include "policy/policy.h"

static const char home[] = "runs";

enum { MOST_RUNS_A_DAY = 100000 };

esper_status esper_run_path(const char *dir, const char *name, char path_out[ESPER_PATH_CHARS])
{
    if (snprintf(path_out, ESPER_PATH_CHARS, "%s/%s", dir, name) >= ESPER_PATH_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s.../%s is too long", dir, name);
    return ESPER_OK;
}

/* A path as somebody typed it. */
static esper_status keep_path(const char *text, char path_out[ESPER_PATH_CHARS])
{
    if (snprintf(path_out, ESPER_PATH_CHARS, "%s", text) >= ESPER_PATH_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", text);
    return ESPER_OK;
}

static bool is_dir(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* A checkpoint alone is enough: somebody may have carried it here without the rest. */
static bool holds(const char *dir, const char *name)
{
    char path[ESPER_PATH_CHARS];

    return esper_run_path(dir, name, path) == ESPER_OK && is_file(path);
}

/* A run of `esper learn` in which a program learned leaves records, and no policy: its settings say that a program decides. */
static bool learned_outside(const char *dir)
{
    char path[ESPER_PATH_CHARS];
    esper_config config;

    esper_config_init(&config);
    return holds(dir, ESPER_RUN_STORE) && !holds(dir, ESPER_RUN_EVENTS) && !holds(dir, ESPER_RUN_CHECKPOINT) &&
           !holds(dir, ESPER_RUN_POLICY) && esper_run_path(dir, ESPER_RUN_CONFIG, path) == ESPER_OK && is_file(path) &&
           esper_config_load_file(&config, path) == ESPER_OK && config.policy_cmd[0] != '\0';
}

static bool holds_run(const char *dir)
{
    return holds(dir, ESPER_RUN_EVENTS) || holds(dir, ESPER_RUN_CHECKPOINT) || holds(dir, ESPER_RUN_POLICY) ||
           learned_outside(dir);
}

/* The text of a file of the directory that is no link; NULL: there is none that can be read, or it is longer. */
static char *read_plain(const char *dir, const char *name, size_t most_bytes)
{
    char path[ESPER_PATH_CHARS], *text = NULL;
    struct stat info;
    size_t bytes;

    if (esper_run_path(dir, name, path) != ESPER_OK || lstat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        esper_file_read(path, most_bytes, &text, &bytes) != ESPER_OK)
        return NULL;
    return text;
}

static bool is_record(const char *text)
{
    static const char mark[] = "# task: ";

    return strncmp(text, mark, strlen(mark)) == 0;
}

static bool tells_no_progress(const char *events)
{
    return strstr(events, "\"event\":\"checkpoint_saved\"") == NULL &&
           strstr(events, "\"event\":\"epoch_ended\"") == NULL;
}

static bool is_head_alone(const char *decisions)
{
    const char *entries = strchr(decisions, '\n');

    return entries == NULL || entries[1] == '\0';
}

/* A run that ended before its first checkpoint, which is made before the first step: by its record it is ours, and nothing in it was
 * trained or decided. Whoever starts it again begins anew there. */
static bool is_unbegun(const char *dir)
{
    enum { MOST_BYTES = ESPER_CONFIG_RECORD_CHARS + (1 << 16) }; /* files of such a run are small */
    static const struct {
        const char *name;
        bool (*is_fresh)(const char *text);
    } files[] = {
        {ESPER_RUN_CONFIG, is_record}, {ESPER_RUN_EVENTS, tells_no_progress}, {ESPER_RUN_DECISIONS, is_head_alone}};
    bool unbegun = holds(dir, ESPER_RUN_CONFIG) && !holds(dir, ESPER_RUN_CHECKPOINT) && !holds(dir, ESPER_RUN_POLICY) &&
                   !learned_outside(dir);

    for (size_t i = 0; unbegun && i < sizeof(files) / sizeof(files[0]); i++) {
        char *text = NULL;

        if (!holds(dir, files[i].name))
            continue;
        text = read_plain(dir, files[i].name, MOST_BYTES);
        unbegun = text != NULL && files[i].is_fresh(text);
        esper_mem_free(text);
    }
    return unbegun;
}

/* ------------------------------------------------------------------------------------------------ making */

/* Everything that a run writes under a name of its own: first what is written in place, then what is replaced as a whole. */
static const char *const written[] = {
    ESPER_RUN_EVENTS,       ESPER_RUN_DECISIONS, ESPER_RUN_STORE,      ESPER_RUN_STORE "-wal",
    ESPER_RUN_STORE "-shm", ESPER_RUN_CONFIG,    ESPER_RUN_CHECKPOINT, ESPER_RUN_BEST,
    ESPER_RUN_SOUND,        ESPER_RUN_BEFORE,    ESPER_RUN_POLICY,     ESPER_RUN_REPORT,
};

enum { N_IN_PLACE = 5, N_WRITTEN = sizeof(written) / sizeof(written[0]) };

/* Whoever made the directory may have linked one of these to a file elsewhere, which the run would then write to: by a symbolic
 * link, or by a second name for a file. */
static esper_status check_links(const char *dir)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    for (int i = 0; i < N_IN_PLACE; i++) {
        ESPER_TRY(esper_run_path(dir, written[i], path));
        if (lstat(path, &info) == 0 && (S_ISLNK(info.st_mode) || (S_ISREG(info.st_mode) && info.st_nlink > 1)))
            return ESPER_FAIL(
                ESPER_E_STATE,
                "%s is a link, and the file that it leads to would be written: put a copy of that file in "
                "its place",
                path);
    }
    return ESPER_OK;
}

/* The first of a run's files that is there, or a link of that name that leads nowhere; NULL: there is none. */
static const char *find_written(const char *dir, char path[ESPER_PATH_CHARS])
{
    struct stat info;

    for (int i = 0; i < N_WRITTEN; i++)
        if (esper_run_path(dir, written[i], path) == ESPER_OK && lstat(path, &info) == 0)
            return path;
    return NULL;
}

static esper_status make_wanted(const char *wanted, char path_out[ESPER_PATH_CHARS])
{
    char path[ESPER_PATH_CHARS];

    if (is_unbegun(wanted))
        return keep_path(wanted, path_out);
    if (holds_run(wanted))
        return learned_outside(wanted)
                   ? ESPER_FAIL(ESPER_E_CONFIG, "%s already holds a run: choose another directory", wanted)
                   : ESPER_FAIL(ESPER_E_CONFIG,
                                "%s already holds a run: go on with it by --resume %s, or choose another directory",
                                wanted, wanted);
    if (find_written(wanted, path) != NULL) /* somebody's own, and not of a run of ours */
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is there already, and a run would replace it: choose another directory",
                          path);
    ESPER_TRY(keep_path(wanted, path_out));
    return esper_file_make_dirs(wanted);
}

esper_status esper_run_dir_make(const char *wanted, const char *task, char path_out[ESPER_PATH_CHARS])
{
    time_t now = time(NULL);
    struct tm day;
    char date[16];

    if (wanted[0] != '\0')
        return make_wanted(wanted, path_out);
    ESPER_TRY(esper_file_make_dirs(home));
    localtime_r(&now, &day);
    strftime(date, sizeof(date), "%Y%m%d", &day);
    for (int n = 1; n < MOST_RUNS_A_DAY; n++) {
        snprintf(path_out, ESPER_PATH_CHARS, "%s/%s-%s-%d", home, task, date, n);
        if (mkdir(path_out, 0777) == 0) /* made by us: two runs started together cannot take the same one */
            return ESPER_OK;
        if (errno != EEXIST)
            return ESPER_FAIL(ESPER_E_IO, "%s: cannot be made: %s", path_out, strerror(errno));
    }
    return ESPER_FAIL(ESPER_E_IO, "%s holds %d runs of %s today: choose a --run-dir", home, MOST_RUNS_A_DAY, task);
}

/* Held until the file is closed, or the process ends. */
static esper_status lock(const char *dir, int *fd_out)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be opened: %s", dir, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) { /* where nobody can lock, nobody is kept out */
        close(fd);
        return ESPER_FAIL(
            ESPER_E_STATE,
            "%s is in use: another process runs there. Wait until it has ended, or choose another --run-dir", dir);
    }
    *fd_out = fd;
    return ESPER_OK;
}

/* What a run that never began has left would stand before the first word of the one that does. The events, by which it is known for
 * a run, go last: whoever is killed in between can begin anew, too. */
static void clear_unbegun(const char *dir)
{
    int n = is_unbegun(dir) ? N_IN_PLACE : 0;
    char path[ESPER_PATH_CHARS];

    while (--n >= 0)
        if (esper_run_path(dir, written[n], path) == ESPER_OK)
            unlink(path);
}

/* A record that stands alone may be a copy that somebody put there, to start from: it is not replaced by another. */
static esper_status check_record(const char *dir, const char *record)
{
    char path[ESPER_PATH_CHARS], *text;
    struct stat info;
    bool same;

    for (int i = 0; i < N_IN_PLACE; i++)
        if (esper_run_path(dir, written[i], path) == ESPER_OK && lstat(path, &info) == 0)
            return ESPER_OK;
    if (!holds(dir, ESPER_RUN_CONFIG))
        return ESPER_OK;
    text = read_plain(dir, ESPER_RUN_CONFIG, ESPER_CONFIG_RECORD_CHARS + 256);
    same = text != NULL && strcmp(text, record) == 0;
    esper_mem_free(text);
    return same ? ESPER_OK
                : ESPER_FAIL(ESPER_E_CONFIG,
                             "%s/%s is there already, and a run would replace it: choose another directory, or move it "
                             "away (--config FILE starts from it)",
                             dir, ESPER_RUN_CONFIG);
}

/* Removes the drafts that a run which was killed while it wrote has left: "last.safetensors.4711-0.tmp", see base/file.h. Nothing
 * else in the directory is ours to remove. */
static void clean(const char *dir)
{
    static const char *const files[] = {ESPER_RUN_CHECKPOINT ".", ESPER_RUN_CONFIG ".", ESPER_RUN_POLICY ".",
                                        ESPER_RUN_REPORT ".", ESPER_RUN_BEST "."};
    char path[ESPER_PATH_CHARS];
    DIR *handle = opendir(dir);
    const struct dirent *entry;

    while (handle != NULL && (entry = readdir(handle)) != NULL) {
        const char *name = entry->d_name, *dot = strrchr(name, '.');

        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
            if (strncmp(name, files[i], strlen(files[i])) == 0 && dot >= name + strlen(files[i]) &&
                strcmp(dot, ".tmp") == 0 && esper_run_path(dir, name, path) == ESPER_OK)
                unlink(path); /* one that stays does no harm but take room */
    }
    if (handle != NULL)
        closedir(handle);
}

/* ------------------------------------------------------------------------------------------------ finding */

/* What a run made: a network, or a policy that decides about networks. */
typedef enum kinds { OF_NETWORKS = 1, OF_POLICIES = 2, OF_ALL = OF_NETWORKS | OF_POLICIES } kinds;

enum { MOST_NAMED = 5 };

/* What a walk over runs/ is looking for and has found. */
typedef struct search {
    kinds           of;
    const char     *prefix; /* "" = the newest of all */
    int             n_found;
    bool            exact;
    int64_t         newest;
    char            best[ESPER_PATH_CHARS];
    char            first[MOST_NAMED][NAME_MAX + 1]; /* of their names, in order, for the message */
} search;

/* When the file was changed last, nanoseconds since 1970; -1: it is not there. */
static int64_t age_of_file(const char *dir, const char *name)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    if (esper_run_path(dir, name, path) != ESPER_OK || stat(path, &info) != 0)
        return -1;
    return (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
}

/* A run is as new as the last event or policy it wrote; of a program that learned, as its records. -1: it is not of that kind. */
static int64_t age_of(const char *dir, kinds of)
{
    int64_t events = (of & OF_NETWORKS) != 0 ? age_of_file(dir, ESPER_RUN_EVENTS) : -1;
    int64_t policy = (of & OF_POLICIES) != 0 ? age_of_file(dir, ESPER_RUN_POLICY) : -1;

    if (of == OF_ALL && learned_outside(dir))
        return age_of_file(dir, ESPER_RUN_STORE);
    return events > policy ? events : policy;
}

/* Keeps the first ones, as they sort. */
static void keep_name(search *wanted, const char *name)
{
    int at = wanted->n_found < MOST_NAMED ? wanted->n_found : MOST_NAMED;

    while (at > 0 && strcmp(name, wanted->first[at - 1]) < 0)
        at--;
    if (at == MOST_NAMED)
        return;
    assert(at >= 0 && at < MOST_NAMED);
    memmove(wanted->first[at + 1], wanted->first[at], sizeof(wanted->first[0]) * (size_t)(MOST_NAMED - 1 - at));
    snprintf(wanted->first[at], sizeof(wanted->first[at]), "%s", name);
}

static void consider(search *wanted, const char *name)
{
    char dir[ESPER_PATH_CHARS];
    int64_t when;

    if (name[0] == '.' || strncmp(name, wanted->prefix, strlen(wanted->prefix)) != 0)
        return;
    if (esper_run_path(home, name, dir) != ESPER_OK)
        return;
    when = age_of(dir, wanted->of);
    if (when < 0)
        return;
    keep_name(wanted, name);
    wanted->n_found++;
    if (strcmp(name, wanted->prefix) == 0 || (!wanted->exact && (wanted->n_found == 1 || when > wanted->newest))) {
        wanted->exact = strcmp(name, wanted->prefix) == 0;
        wanted->newest = when;
        snprintf(wanted->best, sizeof(wanted->best), "%s", dir);
    }
}

static bool is_last(const char *text)
{
    return strcmp(text, "last") == 0;
}

/* What somebody typed, looked for below runs/; a whole path may have been begun. */
static search search_for(const char *text, kinds of)
{
    bool below = strncmp(text, home, strlen(home)) == 0 && text[strlen(home)] == '/';
    search wanted = {.of = of, .prefix = is_last(text) ? "" : below ? text + strlen(home) + 1 : text};
    const struct dirent *entry;
    DIR *dir;

    dir = opendir(home);
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        consider(&wanted, entry->d_name);
    if (dir != NULL)
        closedir(dir);
    return wanted;
}

static esper_status fail_several(const char *text, const search *found)
{
    char names[MOST_NAMED * (NAME_MAX + 3)] = "";

    assert(found->n_found > 1);
    for (int i = 0; i < found->n_found && i < MOST_NAMED; i++) {
        strcat(names, i > 0 ? ", " : "");
        strcat(names, found->first[i]);
    }
    return ESPER_FAIL(ESPER_E_NOTFOUND, "'%.60s' is the beginning of %d runs; type more of the name, or `last`: %s%s",
                      text, found->n_found, names, found->n_found > MOST_NAMED ? ", ..." : "");
}

/* A name is looked up among runs of that kind; where none has it, among all, so that what it names can be told. */
static esper_status find_dir(const char *text, kinds of, char path_out[ESPER_PATH_CHARS])
{
    search wanted;

    if (is_dir(text)) {
        if (holds_run(text))
            return keep_path(text, path_out);
        if (holds(text, ESPER_RUN_COMPARISON))
            return ESPER_FAIL(ESPER_E_NOTFOUND,
                              "%s is a comparison, not a run: report.html in it is its page, which `esper compare` "
                              "writes; its runs are the directories below it, such as %s/none-1",
                              text, text);
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s holds no run (none of %s, %s and %s is in it)", text, ESPER_RUN_EVENTS,
                          ESPER_RUN_CHECKPOINT, ESPER_RUN_POLICY);
    }
    wanted = search_for(text, of);
    if (wanted.n_found == 0 && is_last(text))
        return ESPER_FAIL(ESPER_E_NOTFOUND, "there is no run below %s/ yet%s: start one with `esper %s`", home,
                          of == OF_NETWORKS   ? " that trained a network"
                          : of == OF_POLICIES ? " that learned a policy"
                                              : "",
                          of == OF_POLICIES ? "learn" : "train");
    if (wanted.n_found == 0)
        wanted = search_for(text, OF_ALL);
    if (wanted.n_found == 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "'%.60s' is no run: neither a directory nor the beginning of a name below %s/", text, home);
    if (wanted.n_found > 1 && !is_last(text) && !wanted.exact)
        return fail_several(text, &wanted);
    snprintf(path_out, ESPER_PATH_CHARS, "%s", wanted.best);
    return ESPER_OK;
}

esper_status esper_run_dir_find(const char *text, char path_out[ESPER_PATH_CHARS])
{
    return find_dir(text, OF_ALL, path_out);
}

esper_status esper_run_network_find(const char *text, char path_out[ESPER_PATH_CHARS])
{
    return find_dir(text, OF_NETWORKS, path_out);
}

esper_status esper_run_checkpoint_find(const char *text, char path_out[ESPER_PATH_CHARS])
{
    char dir[ESPER_PATH_CHARS], quoted[ESPER_SHELL_CHARS];

    if (is_file(text))
        return keep_path(text, path_out);
    ESPER_TRY(esper_run_network_find(text, dir));
    ESPER_TRY(esper_run_path(dir, ESPER_RUN_CHECKPOINT, path_out));
    if (is_file(path_out))
        return ESPER_OK;
    if (holds(dir, ESPER_RUN_POLICY))
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s is a run of `esper learn`: it holds a policy and no network. `esper inspect %s/%s` shows "
                          "the policy, `esper report %s` how it was learned",
                          dir, esper_shell_quote_path(dir, quoted), ESPER_RUN_POLICY,
                          esper_shell_quote_path(dir, quoted));
    if (learned_outside(dir))
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s is a run of `esper learn` in which a program learned: it holds records (see them with "
                          "`esper report %s`) and no network",
                          dir, esper_shell_quote_path(dir, quoted));
    return ESPER_FAIL(ESPER_E_NOTFOUND, "%s has no checkpoint yet%s", dir,
                      is_unbegun(dir) ? ": the command that started it, with --run-dir, begins it there anew" : "");
}

esper_status esper_run_policy_find(const char *text, char path_out[ESPER_PATH_CHARS])
{
    char dir[ESPER_PATH_CHARS];

    if (is_file(text))
        return keep_path(text, path_out);
    ESPER_TRY(find_dir(text, OF_POLICIES, dir));
    ESPER_TRY(esper_run_path(dir, ESPER_RUN_POLICY, path_out));
    if (is_file(path_out))
        return ESPER_OK;
    if (learned_outside(dir))
        return ESPER_FAIL(
            ESPER_E_NOTFOUND,
            "%s holds no run that could go on: a program learned there (policy_cmd), and keeps what it has "
            "learned to itself. Start another run with that program",
            dir);
    return ESPER_FAIL(ESPER_E_NOTFOUND, "%s is no run of `esper learn`: it has no %s", dir, ESPER_RUN_POLICY);
}

bool esper_run_policy_is_named(const char *text)
{
    for (int i = 0; esper_policy_list()[i] != NULL; i++)
        if (strcmp(esper_policy_list()[i]->name, text) == 0)
            return false;
    if (text[0] == '\0' || is_dir(text) || is_file(text))
        return false;
    return is_last(text) || search_for(text, OF_POLICIES).n_found > 0;
}

bool esper_run_policy_shipped(char path_out[ESPER_PATH_CHARS])
{
    /* Seen from the program's folder: where it is installed, or built in build/; in a build tree below that; in a kit. */
    static const char *const places[] = {"../share/esper", "../../share/esper", "share/esper"};
    char folder[ESPER_PATH_CHARS], path[2 * ESPER_PATH_CHARS], whole[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash;

    if (n <= 0 || (size_t)n >= sizeof(folder) - 1)
        return false;
    folder[n] = '\0';
    slash = strrchr(folder, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%.*s/%s/%s", (int)(slash - folder), folder, places[i], ESPER_RUN_POLICY);
        if (realpath(path, whole) != NULL && is_file(whole) && strlen(whole) < ESPER_PATH_CHARS) {
            snprintf(path_out, ESPER_PATH_CHARS, "%.*s", ESPER_PATH_CHARS - 1, whole);
            return true;
        }
    }
    return false;
}

esper_status esper_run_policy_take(const char *text, char path_out[ESPER_PATH_CHARS])
{
    char dir[ESPER_PATH_CHARS];

    if (strcmp(text, esper_policy_learned.name) == 0)
        return esper_run_policy_shipped(path_out)
                   ? ESPER_OK
                   : ESPER_FAIL(
                         ESPER_E_NOTFOUND,
                         "'%s' does not say which one, and none ships with this program: give a run of `esper learn` "
                         "(its directory, the beginning of its name below %s/, or 'last'), or a policy's file",
                         text, home);
    if (esper_run_policy_is_named(text))
        return esper_run_policy_find(text, path_out);
    ESPER_TRY(keep_path(text, dir));
    if (!esper_policy_is_file(text) || !is_dir(text))
        return keep_path(text, path_out);
    for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--)
        dir[n - 1] = '\0';
    if (holds(dir, ESPER_RUN_POLICY))
        return esper_run_path(dir, ESPER_RUN_POLICY, path_out);
    if (holds(dir, ESPER_RUN_EVENTS) || holds(dir, ESPER_RUN_CHECKPOINT))
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s is a run that trained a network, and holds no policy: give the directory of a run of "
                          "`esper learn`, or a policy's file",
                          dir);
    if (learned_outside(dir))
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s holds no policy: a program learned there, and keeps what it has learned to itself. Let "
                          "it decide with --policy-cmd COMMAND",
                          dir);
    return ESPER_FAIL(ESPER_E_NOTFOUND,
                      "%s is a directory without a %s: give the directory of a run of `esper learn`, or a policy's "
                      "file",
                      dir, ESPER_RUN_POLICY);
}

static esper_status begin(const char *dir, const char *record, bool resumed, int *lock_out)
{
    char path[ESPER_PATH_CHARS];

    ESPER_TRY(lock(dir, lock_out));
    ESPER_TRY(check_links(dir));
    if (!resumed)
        ESPER_TRY(check_record(dir, record));
    clean(dir);
    if (!resumed)
        clear_unbegun(dir);
    ESPER_TRY(esper_run_path(dir, ESPER_RUN_CONFIG, path));
    return esper_file_write(path, record, strlen(record));
}

esper_status esper_run_dir_begin(const char *dir, const char *task, const char *record, bool resumed, int *lock_out)
{
    esper_page text = {0};
    esper_status status;

    esper_page_print(&text, "# task: %s\n%s", task, record);
    status = text.status == ESPER_OK ? begin(dir, text.text, resumed, lock_out) : text.status;
    esper_page_fini(&text);
    return status;
}

void esper_run_dir_of(const char *file, char dir_out[ESPER_PATH_CHARS])
{
    const char *slash = strrchr(file, '/');

    if (slash == NULL)
        strcpy(dir_out, ".");
    else
        snprintf(dir_out, ESPER_PATH_CHARS, "%.*s", slash == file ? 1 : (int)(slash - file), file);
}
