/* esper bench learn: rounds of learning on the fast task, on one thread and on two; what a second of them brings, and what it is
 * spent on. A round on one thread is the same work, bit for bit, as its fellow on two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/home.h"
#include "run/learn.h"
#include "ui/terminal.h"

enum { MOST_PAIRS = 15, LEAST_PAIRS = 1, QUICK_PAIRS = 2, THREADS = 2 };

static const double all_seconds = 95.0; /* no pair is begun that would not be over by then */

/* The goals that the figures stand beside. */
static const double goal_overhead = 10.0, goal_two = 1.8;

/* A few steps of small networks without data, to see it work. */
static const char *const quick_settings[][2] = {
    {"batch", "8"}, {"blocks", "2"}, {"channels", "2"}, {"max_steps", "2"}, {"epochs", "3"}, {"envs", "4"},
};

/* One learning, which is gone on with round by round. */
typedef struct learning {
    int               threads;
    char              dir[64]; /* below a directory of our own */
    bool              begun;
    esper_learn_times times;   /* of all rounds; thread-seconds */
    double            rate;    /* decisions of environments a second, in the last round */
} learning;

typedef struct learn_bench {
    const esper_bench_request *request;
    const esper_task          *task;
    esper_config               config;
    char                       home[ESPER_BENCH_HOME_CHARS];
    learning                   on_one, on_two;
    double                     ratios[MOST_PAIRS], rates[MOST_PAIRS];
    int                        n_pairs;
} learn_bench;

static esper_status make_home(learn_bench *self)
{
    ESPER_TRY(esper_bench_home_open(self->home));
    snprintf(self->on_one.dir, sizeof(self->on_one.dir), "%s/one", self->home);
    snprintf(self->on_two.dir, sizeof(self->on_two.dir), "%s/two", self->home);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rounds */

static esper_status set(esper_config *config, const char *key, const char *value)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG, .name = "bench"};

    return esper_config_set(config, key, value, &source);
}

static esper_status configure(learn_bench *self)
{
    bool quick = self->request->quick;

    ESPER_TRY(esper_task_find(quick ? "synth" : "fashion_fast", &self->task));
    esper_config_init(&self->config);
    self->config.backend = self->request->config->backend;
    snprintf(self->config.data, sizeof(self->config.data), "%s", quick ? "" : self->request->config->data);
    ESPER_TRY(esper_task_configure(self->task, ESPER_CONFIG_IN_LEARN, &self->config));
    for (size_t i = 0; quick && i < sizeof(quick_settings) / sizeof(quick_settings[0]); i++)
        ESPER_TRY(set(&self->config, quick_settings[i][0], quick_settings[i][1]));
    return ESPER_OK;
}

static double sum_of(const esper_learn_times *times)
{
    return times->hosts + times->validation + times->policy + times->bookkeeping + times->waiting;
}

static void add_times(esper_learn_times *sum, const esper_learn_times *times)
{
    sum->hosts += times->hosts;
    sum->validation += times->validation;
    sum->policy += times->policy;
    sum->bookkeeping += times->bookkeeping;
    sum->waiting += times->waiting;
}

/* One more round. What it takes to open the data and the run is not of the round. */
static esper_status play(const learn_bench *self, learning *which)
{
    esper_config config = self->config;
    esper_learn_desc desc = {
        .task = self->task, .config = &config, .resume = which->begun ? which->dir : NULL, .threads = which->threads};
    esper_learn_result result;
    char rounds[16];

    snprintf(rounds, sizeof(rounds), "%d", self->n_pairs + 1);
    ESPER_TRY(set(&config, "rounds", rounds));
    if (!which->begun)
        ESPER_TRY(set(&config, "run_dir", which->dir));
    ESPER_TRY(esper_learn_run(&desc, &result));
    which->begun = true;
    add_times(&which->times, &result.times);
    which->rate = (double)result.last.report.n_steps / (sum_of(&result.times) / which->threads);
    return ESPER_OK;
}

/* Who comes first changes from pair to pair. */
static esper_status play_pair(learn_bench *self)
{
    bool one_first = self->n_pairs % 2 == 0;

    ESPER_TRY(play(self, one_first ? &self->on_one : &self->on_two));
    ESPER_TRY(play(self, one_first ? &self->on_two : &self->on_one));
    self->ratios[self->n_pairs] = self->on_two.rate / self->on_one.rate;
    self->rates[self->n_pairs] = self->on_two.rate;
    self->n_pairs++;
    return ESPER_OK;
}

static esper_status measure(learn_bench *self)
{
    double began = esper_clock_seconds(), spent = 0.0;
    int most = self->request->quick ? QUICK_PAIRS : MOST_PAIRS,
        least = self->request->quick ? QUICK_PAIRS : LEAST_PAIRS;

    while (self->n_pairs < most && (self->n_pairs < least || spent + spent / self->n_pairs < all_seconds)) {
        ESPER_TRY(play_pair(self));
        spent = esper_clock_seconds() - began;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ figures */

/* limit 0: there is none. */
static void print_line(const learn_bench *self, const char *name, double value, const char *unit, double limit,
                       const char *limit_is)
{
    const esper_bench_request *request = self->request;
    char text[512];
    esper_json out;

    if (!esper_bench_is_wanted(request, name))
        return;
    if (!request->json) {
        snprintf(text, sizeof(text), " goal %g (%s)", limit, limit_is);
        esper_terminal_print(stdout, "%-18s %8.2f %-8s%s%s\n", name, value, unit, limit > 0.0 ? text : "",
                             request->quick ? "   quick" : "");
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, unit);
    if (limit > 0.0) {
        esper_json_key(&out, "limit"), esper_json_real(&out, limit);
        esper_json_key(&out, "ratio"), esper_json_real(&out, value / limit);
        esper_json_key(&out, "limit_is"), esper_json_text(&out, limit_is);
    }
    esper_json_key(&out, "task"), esper_json_text(&out, self->task->name);
    esper_json_key(&out, "envs"), esper_json_int(&out, self->config.envs);
    esper_json_key(&out, "threads"), esper_json_int(&out, THREADS);
    esper_json_key(&out, "rounds"), esper_json_int(&out, self->n_pairs);
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    if (request->quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

static void report(learn_bench *self)
{
    const esper_learn_times *times = &self->on_two.times;
    double part = 100.0 / sum_of(times);

    print_line(self, "learn.steps", esper_bench_quantile(self->rates, self->n_pairs, 0.5), "steps/s", 0.0, NULL);
    print_line(self, "learn.hosts", part * times->hosts, "%", 0.0, NULL);
    print_line(self, "learn.validation", part * times->validation, "%", 0.0, NULL);
    print_line(self, "learn.policy", part * times->policy, "%", 0.0, NULL);
    print_line(self, "learn.bookkeeping", part * times->bookkeeping, "%", 0.0, NULL);
    print_line(self, "learn.waiting", part * times->waiting, "%", 0.0, NULL);
    print_line(self, "learn.overhead", part * (times->policy + times->bookkeeping), "%", goal_overhead,
               "at most: policy and bookkeeping together");
    print_line(self, "learn.two", esper_bench_quantile(self->ratios, self->n_pairs, 0.5), "times", goal_two,
               "at least: two threads beside one");
}

static bool is_any_wanted(const esper_bench_request *request)
{
    static const char *const names[] = {"learn.steps",       "learn.hosts",   "learn.validation", "learn.policy",
                                        "learn.bookkeeping", "learn.waiting", "learn.overhead",   "learn.two"};
    bool wanted = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        wanted = wanted || esper_bench_is_wanted(request, names[i]);
    return wanted;
}

static esper_status run(esper_bench_request *request)
{
    learn_bench self = {.request = request, .on_one.threads = 1, .on_two.threads = THREADS};
    esper_status status;

    if (!is_any_wanted(request))
        return ESPER_OK;
    request->n_run++;
    if (request->device != NULL || request->paced)
        return ESPER_FAIL(ESPER_E_CONFIG, "learn takes no --device and no --paced");
    ESPER_TRY(configure(&self));
    status = make_home(&self);
    if (status == ESPER_OK)
        status = measure(&self);
    if (status == ESPER_OK)
        report(&self);
    esper_bench_home_close(self.home);
    return status;
}

const esper_bench_subject esper_bench_learn = {.name = "learn", .run = run};
