/* ctest: timeout=300 cost=30 labels=noasan */
/* Networks that have grown, exported by the program itself and compared in PyTorch: every blueprint in both hosts, kept,
 * on probation, partly blended in by each operator, in training, on its way out, and not yet or no longer there.
 *
 * Each run is grown by a decision file (`esper grow --policy scripted`) and exported (`esper export --torch`). The other side
 * is the checkpoint, opened as `esper eval` opens it. That a seed has weight, or none, is checked here: else a seed that
 * was left out by both would go unnoticed. Skipped where no Python can import torch. */
#include <math.h>

#include "support/torch_case.h"
#include "engine/helpers.h"

enum { N_SAMPLES = 6, MOST_VALUES = 16384 };

static const char *const folder = "cases";
static const char *program, *python;

/* ------------------------------------------------------------------------------------------------ what a run is to end with */

/* A seed and where it is at the end. */
typedef struct ending {
    const char *style; /* of its germination */
    int         stage;
    int         tempo;
    double      target;
    bool        leaves; /* a prune has begun, and alpha is on its way down */
} ending;

/* For every blueprint. */
static const ending common[] = {
    {"sigmoid_add", ESPER_STAGE_FOSSILIZED, 1, 1.0, false},   {"linear_add", ESPER_STAGE_BLENDING, 1, 0.4, false},
    {"linear_multiply", ESPER_STAGE_BLENDING, 1, 0.7, false}, {"gated_gate", ESPER_STAGE_BLENDING, 1, 0.6, false},
    {"sigmoid_add", ESPER_STAGE_HOLDING, 1, 1.0, false},      {"sigmoid_add", ESPER_STAGE_TRAINING, 1, 1.0, false},
};

/* Two of them for each, in turn. */
static const ending others[] = {
    {"linear_multiply", ESPER_STAGE_FOSSILIZED, 1, 1.0, false},
    {"gated_gate", ESPER_STAGE_HOLDING, 1, 1.0, false},
    {"linear_multiply", ESPER_STAGE_TRAINING, 1, 1.0, false},
    {"linear_add", ESPER_STAGE_BLENDING, 1, 1.0, true},
    {"gated_gate", ESPER_STAGE_FOSSILIZED, 1, 1.0, false},
    {"linear_multiply", ESPER_STAGE_HOLDING, 1, 1.0, false},
    {"gated_gate", ESPER_STAGE_TRAINING, 1, 1.0, false},
    {"gated_gate", ESPER_STAGE_BLENDING, 1, 1.0, true},
    {"gated_gate", ESPER_STAGE_GERMINATED, 1, 1.0, false},
    {"linear_add", ESPER_STAGE_BLENDING, 60, 1.0, false}, /* in the midst of its ramp */
};

enum {
    N_COMMON = sizeof(common) / sizeof(common[0]),
    N_OTHERS = sizeof(others) / sizeof(others[0]),
    N_SLOTS = N_COMMON + 2,
    N_EPOCHS = 4 * N_SLOTS + 16,
};

typedef struct family {
    const char    *task, *flags;
    esper_topology topology;
    const char    *slots[N_SLOTS];
} family;

static const family families[] = {
    {"synth",
     "--blocks 4 --channels 16 --pools 4 --batch 8",
     ESPER_TOPOLOGY_CNN,
     {"r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2", "r0c3", "r1c3"}},
    {"synth_text",
     "--layers 8 --segments 8 --width 16 --heads 2 --context 8 --batch 4 --lr 0.006 --dropout 0.1",
     ESPER_TOPOLOGY_TRANSFORMER,
     {"r0c0", "r0c1", "r0c2", "r0c3", "r0c4", "r0c5", "r0c6", "r0c7"}},
};

/* ------------------------------------------------------------------------------------------------ decisions */

static bool reaches(const ending *end, int stage)
{
    return end->stage >= stage;
}

/* One decision an epoch: all germinate, then all are asked forward, gate by gate, as far as each shall come. G2 wants ten
 * epochs of training, which the others' decisions take. */
static void write_script(const family *host, const esper_blueprint *blueprint, const ending *ends)
{
    FILE *file = fopen("script.txt", "w");

    assert_non_null(file);
    for (int i = 0; i < N_SLOTS; i++)
        fprintf(file, "%d %s germinate blueprint=%s style=%s tempo=%d target=%g\n", 1 + i, host->slots[i],
                blueprint->name, ends[i].style, ends[i].tempo, ends[i].target);
    for (int i = 0; i < N_SLOTS; i++)
        if (reaches(&ends[i], ESPER_STAGE_TRAINING))
            fprintf(file, "%d %s advance\n", 1 + N_SLOTS + i, host->slots[i]);
    for (int i = 0; i < N_SLOTS; i++)
        if (reaches(&ends[i], ESPER_STAGE_BLENDING))
            fprintf(file, "%d %s advance\n", 12 + N_SLOTS + i, host->slots[i]);
    for (int i = 0; i < N_SLOTS; i++)
        if (reaches(&ends[i], ESPER_STAGE_HOLDING))
            fprintf(file, "%d %s advance\n", 14 + 2 * N_SLOTS + i, host->slots[i]);
        else if (ends[i].leaves)
            fprintf(file, "%d %s prune speed=40\n", 14 + 2 * N_SLOTS + i, host->slots[i]);
    for (int i = 0; i < N_SLOTS; i++)
        if (reaches(&ends[i], ESPER_STAGE_FOSSILIZED))
            fprintf(file, "%d %s fossilize\n", 15 + 3 * N_SLOTS + i, host->slots[i]);
    fclose(file);
}

/* ------------------------------------------------------------------------------------------------ the program */

static void esper(const char *arguments)
{
    char command[1200];

    snprintf(command, sizeof(command), "'%s' %s >said.txt 2>&1 </dev/null", program, arguments);
    if (system(command) != 0) {
        (void)!system("tail -20 said.txt");
        fail_msg("esper %s", arguments);
    }
}

static void export_run(const char *dir)
{
    char arguments[256];

    snprintf(arguments, sizeof(arguments), "export run --torch %s", dir);
    esper(arguments);
}

/* ------------------------------------------------------------------------------------------------ our outputs */

/* The network of a checkpoint, with one seed out of it if need be. */
typedef struct pass {
    esper_net   net;
    esper_plan *plan;
} pass;

static void open_pass(pass *it, esper_network *network, int without)
{
    esper_plan_net net = {.net = &it->net, .slab = &network->slab, .pass = &network->pass};
    esper_plan_desc desc = {.backend = network->engine->backend, .nets = &net, .n_nets = 1, .max_samples = N_SAMPLES};
    esper_splice splice = network->splice;

    if (without >= 0)
        splice.presence[without] = ESPER_PRESENCE_OUT;
    esper_net_init(&it->net);
    check_good(esper_splice_build(&splice, &network->engine->host, &it->net));
    it->net.tensors[it->net.output].keep = true;
    check_good(esper_plan_open(&desc, &it->plan));
    esper_network_load(network, it->plan, &it->net, ESPER_SPLIT_TEST, 0);
    assert_int_equal(network->pass.n_samples, N_SAMPLES);
    network->pass.training = false;
    check_good(esper_plan_forward(it->plan));
    check_good(esper_backend_sync(network->engine->backend));
}

static void close_pass(pass *it)
{
    esper_plan_close(it->plan);
    esper_net_fini(&it->net);
}

static int copy_output(const pass *it, float values[MOST_VALUES])
{
    int n = (int)it->net.tensors[it->net.output].count * N_SAMPLES;

    assert_in_range(n, 1, MOST_VALUES);
    memcpy(values, esper_plan_data(it->plan, 0, it->net.output), (size_t)n * sizeof(*values));
    return n;
}

/* How far the output is from what it would be without the seed of a slot. */
static double weight_of_seed(esper_network *network, int slot, const float *output)
{
    float without[MOST_VALUES];
    double worst = 0.0;
    pass it;
    int n;

    open_pass(&it, network, slot);
    n = copy_output(&it, without);
    close_pass(&it);
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)output[i] - (double)without[i]));
    return worst;
}

/* The seed came where it was to come, and counts there or does not: by twenty times the comparison's tolerance. */
static void check_seed(esper_network *network, int k, const ending *end, const char *name, const float *output)
{
    const esper_slot *slot = &network->slots.slot[k];
    bool in = end->stage >= ESPER_STAGE_BLENDING, full = in && end->tempo == 1 && end->target >= 1.0 && !end->leaves;
    double weight = weight_of_seed(network, k, output);

    if (slot->stage != end->stage)
        fail_msg("%s: slot %s is %s, expected %s", name, slot->id, esper_stage_name(slot->stage),
                 esper_stage_name(end->stage));
    if (full ? slot->alpha.value != 1.0 : in ? !(slot->alpha.value > 0.05 && slot->alpha.value < 0.95) : false)
        fail_msg("%s: slot %s has alpha %g", name, slot->id, slot->alpha.value);
    if (in ? !(weight > 2e-4) : weight != 0.0)
        fail_msg("%s: %s in slot %s (%s, %s, alpha %g) changes the output by %g", name, slot->blueprint, slot->id,
                 esper_stage_name(slot->stage), end->style, slot->alpha.value, weight);
}

static esper_network *open_checkpoint(void)
{
    esper_network *network;
    esper_checkpoint checkpoint;

    check_good(esper_checkpoint_init("run/last.safetensors", &checkpoint));
    checkpoint.config.threads = 1;
    checkpoint.config.batch = N_SAMPLES;
    check_good(esper_single_open(checkpoint.task, &checkpoint.config, ESPER_USE_EVALUATE, &network));
    check_good(esper_checkpoint_restore(&checkpoint, network));
    esper_checkpoint_fini(&checkpoint);
    return network;
}

/* ends NULL: nothing is expected of the seeds. */
static void write_vectors(const family *host, const ending *ends, const char *name, const char *dir)
{
    float output[MOST_VALUES];
    esper_network *network = open_checkpoint();
    pass it;

    open_pass(&it, network, -1);
    copy_output(&it, output);
    torch_case_write(&it.net, it.plan, N_SAMPLES, dir);
    close_pass(&it);
    for (int i = 0; ends != NULL && i < N_SLOTS; i++)
        check_seed(network, esper_slots_find(&network->slots, host->slots[i]), &ends[i], name, output);
    esper_single_close(network);
}

/* ------------------------------------------------------------------------------------------------ the cases */

static void grow_case(const family *host, const esper_blueprint *blueprint, int number)
{
    ending ends[N_SLOTS];
    char name[96], dir[160], arguments[512];

    memcpy(ends, common, sizeof(common));
    for (int i = N_COMMON; i < N_SLOTS; i++)
        ends[i] = others[(2 * number + i - N_COMMON) % N_OTHERS];
    snprintf(name, sizeof(name), "%s-%s", host->task, blueprint->name);
    snprintf(dir, sizeof(dir), "%s/%s", folder, name);
    write_script(host, blueprint, ends);
    (void)!system("rm -rf run");
    snprintf(
        arguments, sizeof(arguments),
        "grow %s %s --threads 1 --epochs %d --length epochs --max-steps 2 --gates permissive --policy scripted --decisions script.txt "
        "--run-dir run --progress none",
        host->task, host->flags, N_EPOCHS);
    esper(arguments);
    export_run(dir);
    write_vectors(host, ends, name, dir);
}

static void write_grown(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        const esper_blueprint *const *list = esper_blueprint_list(families[f].topology);

        for (int b = 0; list[b] != NULL; b++)
            if (strcmp(list[b]->name, "noop") != 0)
                grow_case(&families[f], list[b], b);
    }
}

/* Seeds that were there from the start; noop, which cannot germinate, among them. */
static void write_planted(void **state)
{
    static const char *const lists[] = {"r0c0:noop,r0c1:noop:multiply,r0c2:noop:gate,r0c3:norm",
                                        "r0c0:noop,r0c1:noop:multiply,r0c2:noop:gate,r0c3:norm:gate"};
    char dir[160], arguments[512];

    (void)state;
    for (int f = 0; f < 2; f++) {
        (void)!system("rm -rf run");
        snprintf(arguments, sizeof(arguments),
                 "train %s %s --threads 1 --epochs 2 --max-steps 5 --plant %s --run-dir run --progress none",
                 families[f].task, families[f].flags, lists[f]);
        esper(arguments);
        snprintf(dir, sizeof(dir), "%s/%s-planted", folder, families[f].task);
        export_run(dir);
        write_vectors(&families[f], NULL, "planted", dir);
    }
}

static void pytorch_gives_our_outputs(void **state)
{
    (void)state;
    torch_case_compare(python, folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_grown),
        cmocka_unit_test(write_planted),
        cmocka_unit_test(pytorch_gives_our_outputs),
    };

    program = getenv("ESPER");
    if (program == NULL) {
        printf("ESPER must name the program, as ctest has it\n");
        return 1;
    }
    python = torch_case_python();
    if (python == NULL)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
