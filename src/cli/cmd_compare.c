/* esper compare: what growing is worth, against controls, over several seeds. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "base/pool.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/compare_run.h"
#include "cli/job.h"
#include "cli/own_data.h"
#include "cli/report_page.h"
#include "policy/policy.h"
#include "run/frontier.h"
#include "run/settings.h"
#include "ui/compare_table.h"
#include "ui/frontier.h"
#include "ui/terminal.h"

enum { DEFAULT_SEEDS = 3 };

/* Of a frontier: 81 networks in three comparisons. */
#define DEFAULT_BUDGETS "0.5,1,2"
#define DEFAULT_SIZES   "1,1.5,2,3,4"
#define DEFAULT_RATES   "0.5,1,2"

enum { POLICIES, SEEDS, FIRST_SEED, AGAINST, JOBS, TOGETHER, DIR, OUT, JSON, FRONTIER, BUDGETS, SIZES, RATES };

static const esper_command_option options[] = {[POLICIES] = {"policies", true},
                                               [SEEDS] = {"seeds", true},
                                               [FIRST_SEED] = {"first-seed", true},
                                               [AGAINST] = {"against", true},
                                               [JOBS] = {"jobs", true},
                                               [TOGETHER] = {"together", false},
                                               [DIR] = {"dir", true},
                                               [OUT] = {"out", true},
                                               [JSON] = {"json", false},
                                               [FRONTIER] = {"frontier", false},
                                               [BUDGETS] = {"budgets", true},
                                               [SIZES] = {"sizes", true},
                                               [RATES] = {"rates", true},
                                               {.name = NULL}};

typedef struct request {
    const char *const *given; /* by `options` */
    int64_t            n_seeds, n_jobs, n_threads;
    bool               together; /* runs are lanes of this process */
    FILE              *progress;
} request;

/* ------------------------------------------------------------------------------------------------ what is asked for */

static esper_status read_count(const char *flag, const char *text, int64_t most, int64_t *value_out)
{
    int64_t value;
    bool fits;

    if (!esper_number_read_int(text, &value, &fits) || !fits || value < 1 || value > most)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: '%.40s' is no whole number from 1 to %lld", flag, text, (long long)most);
    *value_out = value;
    return ESPER_OK;
}

static esper_status read_wish(request *wish, esper_config *config)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    const char *first = wish->given[FIRST_SEED]; /* --seed by a name that says what it is here */
    esper_pool *pool;

    if (first != NULL && esper_config_place_of(config, esper_config_find("seed")) == ESPER_CONFIG_FLAG)
        return ESPER_FAIL(ESPER_E_CONFIG, "--first-seed and --seed are the same here: leave one out");
    if (first != NULL && esper_config_set(config, "seed", first, &source) != ESPER_OK)
        return ESPER_FAIL(ESPER_E_CONFIG, "--first-seed: '%.40s' is no seed: a whole number from 0", first);
    ESPER_TRY(esper_pool_open(config->threads, &pool));
    wish->n_jobs = wish->n_threads = esper_pool_threads(pool); /* as many runs at a time as there are threads to use */
    esper_pool_close(pool);
    wish->together = wish->given[TOGETHER] != NULL || config->backend == ESPER_CONFIG_BACKEND_CUDA;
    if (wish->together)
        wish->n_jobs = ESPER_COMPARE_MAX_JOBS; /* or as many as the backend likes to have */
    wish->n_seeds = DEFAULT_SEEDS;
    if (wish->given[SEEDS] != NULL)
        ESPER_TRY(read_count("--seeds", wish->given[SEEDS], ESPER_COMPARE_MAX_SEEDS, &wish->n_seeds));
    if (wish->given[OUT] != NULL && wish->given[OUT][0] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "--out wants a file, not an empty word");
    if (wish->given[DIR] != NULL && wish->given[DIR][0] == '\0')
        return ESPER_FAIL(ESPER_E_CONFIG, "--dir wants a directory, not an empty word");
    if (wish->given[JOBS] != NULL)
        ESPER_TRY(read_count("--jobs", wish->given[JOBS], ESPER_COMPARE_MAX_JOBS, &wish->n_jobs));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ its directory */

static const char *say_jobs(const request *wish, char text[64])
{
    if (wish->together)
        snprintf(text, 64, "side by side in one process");
    else
        snprintf(text, 64, "%d at a time", (int)wish->n_jobs);
    return text;
}

/* Makes it, and holds it until this process ends: two comparisons in one directory would run the same runs. */
static esper_status open_dir(const request *wish, const esper_task *task, char dir_out[ESPER_PATH_CHARS])
{
    char name[128], path[ESPER_PATH_CHARS];
    int lock;

    if (wish->given[DIR] == NULL) {
        snprintf(name, sizeof(name), "compare-%s", task->name);
        ESPER_TRY(esper_run_dir_make("", name, dir_out));
    } else if (snprintf(dir_out, ESPER_PATH_CHARS, "%s", wish->given[DIR]) >=
               ESPER_CONFIG_TEXT_CHARS - ESPER_COMPARE_NAME_CHARS - 1)
        return ESPER_FAIL(ESPER_E_CONFIG, "--dir: the path %.60s... is too long", wish->given[DIR]);
    else
        ESPER_TRY(esper_file_make_dirs(dir_out));
    ESPER_TRY(esper_run_path(dir_out, ESPER_RUN_COMPARISON, path));
    lock = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (lock < 0)
        return ESPER_FAIL(ESPER_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0)
        return ESPER_FAIL(ESPER_E_STATE, "%s is in use: another comparison runs there", dir_out);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ telling */

static void tell_begin(const esper_compare *compare, const request *wish, const char *dir)
{
    const esper_log log = {.level = compare->config.log_level, .stream = stderr};
    char jobs[64];

    fprintf(wish->progress, "compare   %s:", compare->task->name);
    for (int i = 0; i < compare->n_lines; i++)
        fprintf(wish->progress, " %s", compare->lines[i].name);
    esper_terminal_print(wish->progress, "\nruns      %d, %s, in %s; gates %s for all\n", compare->n_runs,
                         say_jobs(wish, jobs), dir, esper_config_gates_name(compare->config.gates));
    fflush(wish->progress);
    for (int i = 0; i < compare->n_lines; i++) /* as each of its runs will note in its log */
        if (compare->lines[i].note[0] != '\0')
            esper_log_warn(&log, "%s: %s", compare->lines[i].name, compare->lines[i].note);
}

/* Takes what was composed, and frees it. */
static esper_status write_file(esper_page *page, const char *path)
{
    esper_status status = page->status == ESPER_OK ? esper_file_write(path, page->text, page->used) : page->status;

    esper_page_fini(page);
    return status;
}

/* The page in the directory, and the tables where they were asked for. */
static esper_status write_files(const esper_compare *compare, const char *dir, const char *out)
{
    char path[ESPER_PATH_CHARS];
    esper_page page = {0};

    ESPER_TRY(esper_run_path(dir, ESPER_REPORT_NAME, path));
    esper_compare_report(compare, dir, &page);
    ESPER_TRY(write_file(&page, path));
    if (out == NULL)
        return ESPER_OK;
    page = (esper_page){0};
    esper_compare_write(compare, (esper_compare_style){ESPER_COMPARE_MARKDOWN, 0}, &page);
    return write_file(&page, out);
}

/* Takes what was composed, and frees it. JSON goes to programs, which know no columns. */
static esper_status print_page(esper_page *page, bool json)
{
    esper_status status = page->status;

    if (status == ESPER_OK && json)
        printf("%s", page->text);
    else if (status == ESPER_OK)
        esper_terminal_print(stdout, "\n%s", page->text);
    esper_page_fini(page);
    return status;
}

static esper_status print_result(const esper_compare *compare, bool json)
{
    esper_page page = {0};

    if (json)
        esper_compare_write_json(compare, &page);
    else
        esper_compare_write(compare, (esper_compare_style){ESPER_COMPARE_PLAIN, esper_terminal_look(stdout).room},
                            &page);
    return print_page(&page, json);
}

static bool is_complete(const esper_compare *compare)
{
    for (int i = 0; i < compare->n_runs; i++)
        if (compare->runs[i].result.outcome != ESPER_COMPARE_GOOD)
            return false;
    return true;
}

static esper_status tell_end(const esper_compare *compare, const request *wish, const char *dir, bool stopped,
                             int *code_out)
{
    char quoted[ESPER_SHELL_CHARS];

    ESPER_TRY(print_result(compare, wish->given[JSON] != NULL));
    ESPER_TRY(write_files(compare, dir, wish->given[OUT]));
    if (stopped)
        fprintf(wish->progress, "\nstopped: what has ended is kept; the same command with --dir %s goes on\n",
                esper_shell_quote_path(dir, quoted));
    else
        esper_terminal_print(wish->progress, "\nwritten   %s/%s%s%s\n", dir, ESPER_REPORT_NAME,
                             wish->given[OUT] != NULL ? ", " : "", wish->given[OUT] != NULL ? wish->given[OUT] : "");
    *code_out = stopped ? ESPER_EXIT_STOPPED : is_complete(compare) ? ESPER_EXIT_OK : ESPER_EXIT_FAILED;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ running them */

/* Until all are over, or somebody wants it to stop. */
static esper_status run_parts(esper_compare_part *parts, int n_parts, const request *wish,
                              const volatile sig_atomic_t *stop)
{
    assert(wish->n_jobs >= 1 && wish->n_threads >= 1);
    return esper_compare_run_all(&(esper_compare_desc){.parts = parts,
                                                       .n_parts = n_parts,
                                                       .jobs = (int)wish->n_jobs,
                                                       .threads = (int)wish->n_threads,
                                                       .together = wish->together,
                                                       .progress = wish->progress,
                                                       .stop = stop});
}

static esper_status run_all(esper_compare *compare, const request *wish, int *code_out)
{
    const volatile sig_atomic_t *stop;
    esper_compare_part part = {.compare = compare};

    ESPER_TRY(open_dir(wish, compare->task, part.dir));
    stop = esper_job_listen(); /* and looks at it from now on */
    tell_begin(compare, wish, part.dir);
    ESPER_TRY(run_parts(&part, 1, wish, stop));
    return tell_end(compare, wish, part.dir, *stop != 0 && !is_complete(compare), code_out);
}

/* A setting that was asked for serves where one of the lines uses it. */
static esper_status check_settings(const esper_compare *compare, const esper_config *asked)
{
    const esper_log log = {.level = asked->log_level, .stream = stderr};
    esper_config_use use = esper_settings_use(compare->task, ESPER_CONFIG_IN_COMPARE, asked);

    use.deciders = 0;
    for (int i = 0; i < compare->n_lines; i++)
        if (compare->lines[i].kind == ESPER_COMPARE_GROWN || compare->lines[i].kind == ESPER_COMPARE_SEARCH)
            use.deciders |= compare->lines[i].file[0] != '\0' ? ESPER_CONFIG_BY_LEARNED
                                                              : esper_settings_decider(compare->lines[i].ops->name);
    return esper_settings_check(asked, asked, &use, &log);
}

/* ------------------------------------------------------------------------------------------------ a frontier */

static esper_status read_frontier(const request *wish, esper_frontier_desc *desc_out)
{
    const char *const *given = wish->given;

    *desc_out = (esper_frontier_desc){.policy = given[POLICIES] != NULL ? given[POLICIES] : esper_policy_trials.name};
    if (strchr(desc_out->policy, ',') != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "--policies: a frontier has one policy that grows, such as trials");
    if (given[AGAINST] != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "--against: a frontier holds grown networks against static ones: leave it out");
    ESPER_TRY(esper_frontier_read_list("--budgets", given[BUDGETS] != NULL ? given[BUDGETS] : DEFAULT_BUDGETS,
                                       ESPER_FRONTIER_MAX_BUDGETS, desc_out->budgets, &desc_out->n_budgets));
    ESPER_TRY(esper_frontier_read_list("--sizes", given[SIZES] != NULL ? given[SIZES] : DEFAULT_SIZES,
                                       ESPER_FRONTIER_MAX_VALUES, desc_out->sizes, &desc_out->n_sizes));
    return esper_frontier_read_list("--rates", given[RATES] != NULL ? given[RATES] : DEFAULT_RATES,
                                    ESPER_FRONTIER_MAX_VALUES, desc_out->rates, &desc_out->n_rates);
}

static esper_status write_frontier(const esper_frontier *frontier, const request *wish, const char *dir)
{
    bool json = wish->given[JSON] != NULL;
    char path[ESPER_PATH_CHARS];
    esper_page page = {0};

    (json ? esper_frontier_write_json : esper_frontier_write)(frontier, &page);
    ESPER_TRY(print_page(&page, json));
    page = (esper_page){0};
    esper_frontier_report(frontier, &page);
    ESPER_TRY(esper_run_path(dir, ESPER_REPORT_NAME, path));
    ESPER_TRY(write_file(&page, path));
    if (wish->given[OUT] == NULL)
        return ESPER_OK;
    page = (esper_page){0};
    esper_frontier_write(frontier, &page);
    return write_file(&page, wish->given[OUT]);
}

/* The comparisons of all budgets, each in a directory of its own. Runs of the largest take longest, and begin first. */
static esper_status run_budgets(esper_frontier *frontier, const request *wish, const char *dir, bool *complete_out)
{
    const volatile sig_atomic_t *stop = esper_job_listen();
    esper_compare_part parts[ESPER_FRONTIER_MAX_BUDGETS];
    char name[ESPER_FRONTIER_NAME_CHARS];
    int n = frontier->n_budgets;

    for (int i = 0; i < n; i++) {
        int b = n - 1 - i;

        parts[i].compare = &frontier->budgets[b];
        ESPER_TRY(esper_run_path(dir, esper_frontier_name(frontier, b, name), parts[i].dir));
        ESPER_TRY(esper_file_make_dirs(parts[i].dir));
        snprintf(parts[i].label, sizeof(parts[i].label), "%.20s/", name);
    }
    ESPER_TRY(run_parts(parts, n, wish, stop));
    *complete_out = true;
    for (int i = 0; i < n; i++) {
        ESPER_TRY(write_files(parts[i].compare, parts[i].dir, NULL));
        *complete_out &= is_complete(parts[i].compare);
    }
    return ESPER_OK;
}

static esper_status run_frontier(const request *wish, const esper_task *task, const esper_config *config, int *code_out)
{
    char dir[ESPER_PATH_CHARS], quoted[ESPER_SHELL_CHARS], jobs[64];
    esper_frontier_desc desc;
    esper_frontier frontier;
    esper_status status;
    bool complete = false, stopped;

    ESPER_TRY(read_frontier(wish, &desc));
    ESPER_TRY(esper_frontier_init(&frontier, task, config, &desc, wish->n_seeds));
    status = check_settings(&frontier.budgets[0], config);
    if (status == ESPER_OK)
        status = open_dir(wish, task, dir);
    if (status == ESPER_OK) {
        esper_terminal_print(wish->progress,
                             "frontier  %s: %d budgets, %d networks in each, %d seeds: %d runs, %s, in %s\n",
                             task->name, frontier.n_budgets, frontier.budgets[0].n_lines, (int)wish->n_seeds,
                             frontier.n_budgets * frontier.budgets[0].n_runs, say_jobs(wish, jobs), dir);
        fflush(wish->progress);
        status = run_budgets(&frontier, wish, dir, &complete);
    }
    if (status == ESPER_OK)
        status = esper_frontier_measure(&frontier);
    if (status == ESPER_OK)
        status = write_frontier(&frontier, wish, dir);
    esper_frontier_fini(&frontier);
    ESPER_TRY(status);
    stopped = *esper_job_listen() != 0 && !complete;
    esper_terminal_print(wish->progress,
                         stopped ? "\nstopped: what has ended is kept; the same command with --dir %s goes on\n"
                                 : "\nwritten   %s/" ESPER_REPORT_NAME "\n",
                         stopped ? esper_shell_quote_path(dir, quoted) : dir);
    *code_out = stopped ? ESPER_EXIT_STOPPED : complete ? ESPER_EXIT_OK : ESPER_EXIT_FAILED;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the command */

static esper_status run(esper_cli_call *call)
{
    request wish = {.given = call->given, .progress = call->given[JSON] != NULL ? stderr : stdout};
    const char *policies = wish.given[POLICIES] != NULL ? wish.given[POLICIES] : ESPER_COMPARE_POLICIES;
    const esper_task *task;
    esper_compare compare;
    esper_status status;

    ESPER_TRY(esper_own_data_task(call->n_words == 1 ? call->words[0] : esper_task_list()[0]->name,
                                  ESPER_CONFIG_IN_COMPARE, &call->config, &task));
    ESPER_TRY(read_wish(&wish, &call->config));
    if (wish.given[FRONTIER] != NULL)
        return run_frontier(&wish, task, &call->config, &call->code);
    if (wish.given[BUDGETS] != NULL || wish.given[SIZES] != NULL || wish.given[RATES] != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "--budgets, --sizes and --rates are those of a frontier: add --frontier");
    ESPER_TRY(esper_compare_init(&compare, task, &call->config, policies, wish.n_seeds));
    status = check_settings(&compare, &compare.config);
    if (status == ESPER_OK && wish.given[AGAINST] != NULL)
        status = esper_compare_set_against(&compare, wish.given[AGAINST]);
    if (status == ESPER_OK)
        status = run_all(&compare, &wish, &call->code);
    esper_compare_fini(&compare);
    return status;
}

const esper_command esper_command_compare = {
    .name = "compare",
    .arguments = "[TASK] [flags]",
    .summary = "growing against controls, over several seeds",
    .help =
        "Trains the task in several ways, each with the same seeds, and prints test accuracy with its spread, size and\n"
        "cost. All spend the same FLOPs of training: --flops, or what --epochs cost the host. Differences are paired\n"
        "by seed, with 95 % intervals. A page with accuracy against parameters is written into DIR.\n\n"
        "  --policies LIST  what to compare, separated by commas\n"
        "                   (default: none,trials,halving,static-final,static-equal)\n"
        "                     none, or static      the static host\n"
        "                     trials, heuristic, random, scripted, command\n"
        "                                          the host, grown by that policy\n"
        "                     FILE, or RUN         the host, grown by a policy that `esper learn` made: its file, or that\n"
        "                                          run: a directory, the beginning of its name, or 'last'\n"
        "                     halving              the best of 16 static networks drawn by chance from all sets of seeds\n"
        "                                          below max_params, found by successive halving\n"
        "                     static-final         the network that growing ended with, trained from scratch\n"
        "                     static-equal         a wider static host of about as many parameters\n"
        "                   The last two follow trials, else heuristic, else the first policy that grows; static-final\n"
        "                   also each FILE, and then says whose network it is: static-final-learned. One file is called\n"
        "                   'learned', several by their names, or policy-1, policy-2 where these are alike. Two files\n"
        "                   that learned from different rewards are an A/B of these: same seeds, and returns by the one\n"
        "                   reward in force (--reward).\n"
        "                   A policy's name may have settings of its own behind it, and `size` is that of the host:\n"
        "                   none:size=24:lr=0.05,trials:max_params=30000\n"
        "  --frontier       instead: grown against static networks at many budgets, both sides at several sizes and rates.\n"
        "                   Says at which of them growing pays, and writes a page with both frontiers. --policies then\n"
        "                   names the policy that grows (default: trials)\n"
        "  --budgets LIST   its FLOPs, as multiples of what the command says without it (default: " DEFAULT_BUDGETS
        ")\n"
        "  --sizes LIST     sizes of static networks, as multiples of the host's channels or width; grown ones may have as\n"
        "                   many parameters as each of them (default: " DEFAULT_SIZES ")\n"
        "  --rates LIST     learning rates that all are trained at, as multiples of lr (default: " DEFAULT_RATES ")\n"
        "  --seeds N        seeds: --seed, --seed + 1, ... (default: 3)\n"
        "  --first-seed S   the same as --seed; take one beyond the seeds a policy learned with\n"
        "  --against NAME   the line that all others are held against, as the tables name it (default: the first FILE, else\n"
        "                   as static-final)\n"
        "  --jobs J         runs at a time, each a process with its share of --threads (default: --threads)\n"
        "  --together       runs are threads of one process instead, and lanes of one backend, to the same results: what a GPU\n"
        "                   is for, so --backend cuda says it by itself. Of up to --jobs (default: 256) as many go at a time\n"
        "                   as memory has room for\n"
        "  --dir DIR        where the runs are kept (default: runs/compare-<task>-<date>-<n>); the same command with\n"
        "                   the DIR of an earlier one goes on with it: what has ended there is not run again\n"
        "  --out FILE       also writes the tables as Markdown\n"
        "  --json           prints JSON Lines instead of tables: each run, then each row; progress on standard error\n\n"
        "Ctrl-C saves the runs under way and prints what there is. A run that fails, is broken off by the governor or\n"
        "ends without a finite loss is named, and is in no mean. Each run has a directory and a log in DIR.\n\n"
        "examples:  esper compare fashion --epochs 20 --seeds 5\n"
        "           esper compare synth --policies none,heuristic --seeds 2 --jobs 1\n"
        "           esper compare fashion_fast --policies none,random,heuristic,runs/x/policy.safetensors --seeds 30\n"
        "           esper compare fashion_fast --frontier --seeds 2\n"
        "           esper compare --dir runs/compare-fashion-20260131-1 --epochs 20 --seeds 5",
    .has_config = true,
    .job = ESPER_CONFIG_IN_COMPARE,
    .own = (const esper_command_own[]){{.key = "policy", .refusal = "name all of them with --policies"},
                                       {.key = "run_dir", .refusal = "--dir is for all of its runs"},
                                       {.key = NULL}},
    .options = options,
    .most_words = 1,
    .run = run,
};
