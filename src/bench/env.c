/* esper bench env: environment steps a second, which is how often a second an environment has trained an epoch, was validated, had its
 * seeds measured, decided, acted and was paid; rounds of `esper learn` as they are, with records, file and the policy's updates.
 *
 * What a round is spent on is told in shares of the time of the threads that play environments: on the cpu backend those of the
 * pool, on a device one for each environment, which waits there for what it has queued. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/home.h"
#include "data/dataset.h"
#include "run/learn.h"
#include "ui/terminal.h"

enum { MOST_ROUNDS = 64, QUICK_ROUNDS = 2 };

static const double most_seconds =
    16.0; /* no round is begun that would not be over by then; one that is not is broken off */

/* The earlier system's CIFAR host, which got no fork to compare with, on noise of CIFAR's shape: 25 batches of 128 a step. */
static const esper_task cifar = {
    .name = "cifar16",
    .source = ESPER_SOURCE_SYNTH_IMAGES,
    .settings = "blocks = 3\nchannels = 8\nbatch = 128\nmax_steps = 25\nlr = 0.05\ncrop = 4\nflip = true\n"
                "epochs = 25\nenvs = 16\nreward = shaped\ntrial_share = 0\n",
    .growth = "length = epochs\n",
    .synth = {.n_train = 4000},
};

static const char quick_settings[] = "batch = 8\nblocks = 2\nchannels = 2\nmax_steps = 2\nepochs = 3\nenvs = 4\n";

/* A figure. Nobody asks for trials: who has not learned does so at random, and steps would be of two kinds. */
typedef struct env_case {
    const char *name;
    const char *settings; /* laid over the task's */
    double      goal;     /* steps a second, on one H200 with 16 cores */
    const char *goal_is;
} env_case;

static const env_case cases[] = {
    {"env.cifar16", "", 500.0, "at least, on an H200 with 16 cores; the earlier Python system: 8.8"},
    {"env.fashion_fast256", "envs = 256\ntrial_share = 0\n", 3000.0, "at least, on an H200 with 16 cores"},
};

typedef struct env_bench {
    const esper_bench_request *request;
    const env_case            *which;
    esper_task                 task;
    esper_config               config;
    bool                       synthetic;
    char                       home[ESPER_BENCH_HOME_CHARS];
    volatile sig_atomic_t      stop;
    double                     began, round_began;
    double                     rates[MOST_ROUNDS];
    int                        n_rounds;
    double                     part, part_seconds; /* of a round that was broken off */
    esper_learn_result         result;
} env_bench;

/* ------------------------------------------------------------------------------------------------ what is played */

static esper_status set(esper_config *config, const char *key, const char *value)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG, .name = "bench"};

    return esper_config_set(config, key, value, &source);
}

/* Of what was asked for, what is the bench's own to say: how many environments, and how many decisions of an episode. */
static esper_status take_sizes(env_bench *self)
{
    static const char *const keys[] = {"envs", "epochs"};
    const esper_config *asked = self->request->config;
    char text[16];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (esper_config_place_of(asked, esper_config_find(keys[i])) != ESPER_CONFIG_FLAG)
            continue;
        snprintf(text, sizeof(text), "%d", i == 0 ? asked->envs : asked->epochs);
        ESPER_TRY(set(&self->config, keys[i], text));
    }
    return ESPER_OK;
}

/* Fashion-MNIST, or where it is not installed noise of its shape: the same work. */
static esper_status take_fashion(env_bench *self)
{
    esper_dataset_desc data = esper_task_data(&self->task, &self->config);
    esper_dataset_info info;

    if (esper_dataset_measure(&data, &info) == ESPER_OK)
        return ESPER_OK;
    if (self->config.data[0] != '\0')
        return ESPER_FAIL(ESPER_E_IO, "%s: there is no Fashion-MNIST", self->config.data);
    self->task.source = ESPER_SOURCE_SYNTH_IMAGES;
    self->task.synth.channels = 1;
    self->task.synth.height = self->task.synth.width = 28;
    self->task.synth.n_train = 60000;
    self->synthetic = true;
    return ESPER_OK;
}

static esper_status configure(env_bench *self)
{
    const esper_bench_request *request = self->request;
    bool is_cifar = self->which == &cases[0];
    const esper_task *fashion;
    esper_task more;

    ESPER_TRY(esper_task_find("fashion_fast", &fashion));
    self->task = is_cifar || request->quick ? cifar : *fashion;
    if (!is_cifar)
        self->task.name = fashion->name;
    self->synthetic = is_cifar || request->quick;
    esper_config_init(&self->config);
    ESPER_TRY(esper_task_configure(&self->task, ESPER_CONFIG_IN_LEARN, &self->config));
    more = self->task;
    more.growth = "";
    more.settings = request->quick ? quick_settings : self->which->settings;
    ESPER_TRY(esper_task_configure(&more, ESPER_CONFIG_IN_LEARN, &self->config));
    self->config.backend = request->config->backend;
    self->config.threads = request->config->threads;
    snprintf(self->config.data, sizeof(self->config.data), "%s", self->synthetic ? "" : request->config->data);
    ESPER_TRY(take_sizes(self));
    if (!self->synthetic)
        ESPER_TRY(take_fashion(self));
    ESPER_TRY(set(&self->config, "rounds", request->quick ? "2" : "64"));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rounds */

static int steps_of_round(const env_bench *self)
{
    return self->config.envs * self->config.epochs;
}

static void begun(void *context, const esper_learn_view *view)
{
    env_bench *self = context;

    (void)view;
    self->began = self->round_began = esper_clock_seconds();
}

static void stepped(void *context, const esper_learn_view *view)
{
    env_bench *self = context;
    double now = esper_clock_seconds();

    self->part = view->part;
    self->part_seconds = now - self->round_began;
    if (now - self->began > most_seconds)
        self->stop = 1;
}

static void ended(void *context, const esper_learn_view *view, const esper_learn_round *round)
{
    env_bench *self = context;
    double now = esper_clock_seconds();

    (void)view;
    if (self->n_rounds < MOST_ROUNDS)
        self->rates[self->n_rounds++] = round->report.n_steps / (now - self->round_began);
    if (now - self->began + (now - self->round_began) > most_seconds)
        self->stop = 1;
    self->round_began = now;
}

static esper_status play(env_bench *self)
{
    esper_learn_observer observer = {.context = self, .begin = begun, .step = stepped, .round = ended};
    esper_learn_desc desc = {.task = &self->task,
                             .config = &self->config,
                             .observer = &observer,
                             .stop = &self->stop,
                             .threads = self->config.threads};
    char dir[ESPER_BENCH_HOME_CHARS + 8];

    snprintf(dir, sizeof(dir), "%s/run", self->home);
    ESPER_TRY(set(&self->config, "run_dir", dir));
    ESPER_TRY(esper_learn_run(&desc, &self->result));
    if (self->n_rounds == 0 && self->part_seconds > 0.0) /* it was broken off in the first */
        self->rates[self->n_rounds++] = self->part * steps_of_round(self) / self->part_seconds;
    return self->n_rounds > 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "%s: no step was done", self->which->name);
}

/* ------------------------------------------------------------------------------------------------ the figure */

typedef struct env_part {
    const char *name;
    double      seconds; /* of threads */
} env_part;

enum { N_PARTS = 6 };

static void list_parts(const env_bench *self, env_part parts[N_PARTS])
{
    const esper_learn_times *times = &self->result.times;
    const env_part list[N_PARTS] = {
        {"training", times->hosts},          {"validation", times->validation}, /* with attribution */
        {"deciding", times->deciding},       {"updating", times->policy - times->deciding},
        {"bookkeeping", times->bookkeeping}, /* opening, acting, rewards, records, files */
        {"waiting", times->waiting},
    };

    memcpy(parts, list, sizeof(list));
}

#define X(of, name, text) text,
static const char *const backends[] = {ESPER_CONFIG_BACKEND_LIST(X)};
#undef X

static void print_json(const env_bench *self, double rate, double spread, const env_part *parts, double all)
{
    char text[1024];
    esper_json out;

    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, self->which->name);
    esper_json_key(&out, "value"), esper_json_real(&out, rate);
    esper_json_key(&out, "unit"), esper_json_text(&out, "steps/s");
    esper_json_key(&out, "spread"), esper_json_real(&out, spread);
    esper_json_key(&out, "limit"), esper_json_real(&out, self->which->goal);
    esper_json_key(&out, "ratio"), esper_json_real(&out, rate / self->which->goal);
    esper_json_key(&out, "limit_is"), esper_json_text(&out, self->which->goal_is);
    esper_json_key(&out, "parts"), esper_json_object_begin(&out);
    for (int i = 0; i < N_PARTS; i++)
        esper_json_key(&out, parts[i].name), esper_json_real(&out, parts[i].seconds / all);
    esper_json_object_end(&out);
    esper_json_key(&out, "envs"), esper_json_int(&out, self->config.envs);
    esper_json_key(&out, "decisions"), esper_json_int(&out, self->config.epochs);
    esper_json_key(&out, "rounds"), esper_json_int(&out, self->n_rounds);
    esper_json_key(&out, "whole"), esper_json_bool(&out, self->result.rounds > 0);
    esper_json_key(&out, "backend"), esper_json_text(&out, backends[self->config.backend]);
    esper_json_key(&out, "data"), esper_json_text(&out, self->synthetic ? "synthetic" : "fashion");
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    if (self->request->quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

static void print_text(const env_bench *self, double rate, double spread, const env_part *parts, double all)
{
    char shares[256] = "";

    for (int i = 0; i < N_PARTS; i++)
        snprintf(shares + strlen(shares), sizeof(shares) - strlen(shares), "%s%s %.1f %%", i > 0 ? ", " : "",
                 parts[i].name, 100.0 * parts[i].seconds / all);
    esper_terminal_print(stdout, "%-20s %8.1f steps/s (+-%.1f %%) goal %g (%s)%s%s\n", self->which->name, rate,
                         100.0 * spread, self->which->goal, self->which->goal_is,
                         self->result.rounds > 0 ? "" : "   a part of a round", self->request->quick ? "   quick" : "");
    esper_terminal_print(stdout, "  %s\n", shares);
}

/* In the first round networks are planned and launches met for the first time: where there are more it does not count. */
static void report(env_bench *self)
{
    int first = self->n_rounds > 2 ? 1 : 0, n = self->n_rounds - first;
    double median = esper_bench_quantile(self->rates + first, n, 0.5), all = 0.0;
    double spread = (self->rates[first + n - 1] - self->rates[first]) / 2.0 / median;
    env_part parts[N_PARTS];

    list_parts(self, parts);
    for (int i = 0; i < N_PARTS; i++)
        all += parts[i].seconds;
    all = all > 0.0 ? all : 1.0;
    (self->request->json ? print_json : print_text)(self, median, spread, parts, all);
}

static esper_status measure(const esper_bench_request *request, const env_case *which)
{
    env_bench self = {.request = request, .which = which};
    esper_status status;

    ESPER_TRY(configure(&self));
    ESPER_TRY(esper_bench_home_open(self.home));
    status = play(&self);
    esper_bench_home_close(self.home);
    if (status == ESPER_OK)
        report(&self);
    return status;
}

static esper_status run(esper_bench_request *request)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!esper_bench_is_wanted(request, cases[i].name))
            continue;
        request->n_run++;
        if (request->device != NULL || request->paced)
            return ESPER_FAIL(ESPER_E_CONFIG, "env takes no --device and no --paced");
        ESPER_TRY(measure(request, &cases[i]));
    }
    return ESPER_OK;
}

const esper_bench_subject esper_bench_env = {.name = "env", .run = run};
