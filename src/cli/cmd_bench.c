/* esper bench: figures beside their limits. Each subject has a file of its own. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "bench/bench.h"
#include "cli/cli.h"

static const esper_bench_subject *const subjects[] = {
    &esper_bench_train, &esper_bench_fleet,   &esper_bench_guard, &esper_bench_gate, &esper_bench_ranks,
    &esper_bench_tune,  &esper_bench_tickets, &esper_bench_learn, &esper_bench_env,  NULL};

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return left < right ? -1 : left > right;
}

double esper_bench_quantile(double *values, int n_values, double part)
{
    assert(n_values > 0 && part >= 0.0 && part <= 1.0);
    qsort(values, (size_t)n_values, sizeof(values[0]), by_value);
    return values[(int)(part * (n_values - 1) + 0.5)];
}

bool esper_bench_is_wanted(const esper_bench_request *request, const char *name)
{
    size_t n = strlen(request->name);

    return strncmp(name, request->name, n) == 0 && (name[n] == '\0' || name[n] == '.');
}

static const char *const of_env[] = {"envs", "epochs", NULL};

enum { JSON, QUICK, PACED, DEVICE, OUT };

static const esper_command_option options[] = {
    [JSON] = {"json", false},    [QUICK] = {"quick", false}, [PACED] = {"paced", false},
    [DEVICE] = {"device", true}, [OUT] = {"out", true},      {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    esper_bench_request request = {.name = call->words[0],
                                   .config = &call->config,
                                   .json = call->given[JSON] != NULL,
                                   .quick = call->given[QUICK] != NULL,
                                   .paced = call->given[PACED] != NULL,
                                   .device = call->given[DEVICE],
                                   .out = call->given[OUT]};

    if (request.out != NULL && strncmp(request.name, "tune", 4) != 0)
        return esper_cli_usage(call, "--out is for tune");
    for (int i = 0; strncmp(request.name, "env", 3) != 0 && of_env[i] != NULL; i++)
        if (esper_config_place_of(&call->config, esper_config_find(of_env[i])) == ESPER_CONFIG_FLAG)
            return esper_cli_usage(call, "--%s is for env", of_env[i]);
    for (int i = 0; subjects[i] != NULL; i++)
        ESPER_TRY(subjects[i]->run(&request));
    return request.n_run > 0 ? ESPER_OK : esper_cli_usage(call, "no benchmark is called '%s'", request.name);
}

const esper_command esper_command_bench = {
    .name = "bench",
    .arguments = "NAME",
    .summary = "figures beside their limits",
    .help =
        "  train           training steps of five networks, each beside what the processor's multiply-add units would\n"
        "                  allow, measured in the same run (train.cnn_small, train.cnn_100k, train.lm_tiny,\n"
        "                  train.cnn_wide, train.lm_384)\n"
        "  fleet           networks as lanes of one plan: two on two threads beside one on one (fleet.two), four that\n"
        "                  have grown apart on two threads beside one (fleet.four); planning anew after a splice\n"
        "                  (fleet.replan)\n"
        "  guard           health scans and rollbacks, each beside the time that reading or copying the same bytes\n"
        "                  takes, measured in turn with it (guard.scan: gpt2, gpt2_grads, small100, small100_grads, tiny10k,\n"
        "                  1b, 1b_grads; guard.rollback: gpt2, gpt2_adam, gpt2_pinned)\n"
        "  gate            ranks agreeing on their state after an epoch: a table of ten slots hashed, one record exchanged and\n"
        "                  checked, beside the exchange alone (gate.agree); 100,000 gradients summed over all ranks, beside\n"
        "                  copying them in and out (gate.sum); start it with mpirun -n N, rank 0 prints\n"
        "  ranks           the part of a training step (99,922 parameters, batches of 128 over all ranks) that the exchange of\n"
        "                  gradients takes (ranks.exchange); with mpirun -n N, too\n"
        "  tune            the ways that kernels can be computed in, each beside the other, for the tune table\n"
        "                  (tune.linear.y, tune.linear.dx, tune.linear.dw, tune.conv.y, tune.conv.dx); measures the kernel\n"
        "                  set in force\n"
        "  tickets         the five findings that the engine began with, each as it was found and as it is now, in turn\n"
        "                  (tickets.B1-PT-02, tickets.B3-CR-05, tickets.B3-DRL-18, tickets.B7-PT-02, tickets.B7-PT-03);\n"
        "                  what cannot be measured on this machine shows recorded figures, and says so: docs/tickets.md\n"
        "  learn           rounds of `esper learn fashion_fast` on one thread and on two, in turn, in about two minutes:\n"
        "                  decisions of environments a second (learn.steps); what two threads spend their time on\n"
        "                  (learn.hosts, learn.validation, learn.policy, learn.bookkeeping, learn.waiting; learn.overhead is\n"
        "                  policy and bookkeeping, at most 10 %); two threads beside one (learn.two, at least 1.8)\n"
        "  env             steps of environments a second: epochs trained, validated, measured and decided in rounds of `esper\n"
        "                  learn`, records and updates included, and what they are spent on; 16 networks of the earlier system's\n"
        "                  CIFAR host (env.cifar16), 256 of fashion_fast (env.fashion_fast256); below 20 seconds each\n"
        "NAME is one of these, or a longer name such as guard.scan.gpt2.\n\n"
        "limit is the best that any program could do in the figure's place, by the same threads or on the same device:\n"
        "train: the multiply-add peak; guard.scan: the time to read the same bytes once and do nothing with them;\n"
        "guard.rollback: the time to copy them once; fleet: twice one thread; gate: as above. The percentage (ratio) says\n"
        "how near the figure comes: 100 % is nothing left to gain; chance, and caches, may show a little more.\n"
        "fleet.replan stands beside its goal of 1 ms instead: less is better; learn and env beside their goals, too.\n\n"
        "  --json          one JSON object a line: name, value, unit, limit, ratio; tickets: name, before, after, unit, ratio\n"
        "  --device NAME   guard, tickets: host, cuda or cuda:N; the first CUDA device, if there is one, unless said\n"
        "  --out FILE      tune: write the table, with the faster ways, to this file; ESPER_TUNE=FILE takes it\n"
        "  --quick         small shapes and few rounds: to see it work, not to measure; guard: lines say \"quick\", no more\n"
        "  --paced         one benchmark: measure once for each line of standard input, to take turns with\n"
        "                  another program\n"
        "  --threads N, --backend NAME, --precision NAME   as for train; fleet and learn take two threads and one\n"
        "  --envs N, --epochs N, --data PATH   env: so many environments, decisions of an episode; where Fashion-MNIST lies\n\n"
        "Environment: ESPER_KERNELS=avx512|avx2|portable takes another kernel set than the fastest; ESPER_TUNE=FILE another\n"
        "tune table than the one built in (docs/determinism.md).",
    .keys = (const char *const[]){"threads", "backend", "precision", "data", "envs", "epochs", NULL},
    .has_ranks = true, /* gate and ranks; the others are each rank's own */
    .options = options,
    .wants = "the name of a benchmark",
    .run = run,
};
