/* Launches as a table. The prediction is a roof: a launch takes as long as its FLOPs at the processor's peak or its bytes at
 * the memory's speed, whichever is longer, where a byte costs as much as so many FLOPs. */
#include "cli/info_plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/device.h"
#include "engine/set.h"
#include "ui/terminal.h"
#include "ui/text.h"

/* A core of today makes some 100 GFLOP/s and moves some 10 GB/s. */
#define FLOPS_PER_BYTE 10.0

enum {
    ROUNDS = 30,
    NAME_CHARS = 64,
    WITH_TIMES = 96
}; /* the last: columns of a row with its time; narrower, it has its share */

typedef struct plan_row {
    double predicted; /* in FLOPs */
    double seconds;   /* of all rounds */
} plan_row;

typedef struct plan_table {
    esper_network *network;
    int            n_rows[2]; /* by direction */
    plan_row      *rows[2];
    double         predicted, seconds; /* of all */
    bool           timed;
    esper_terminal terminal;
} plan_table;

/* "conv2d+batch_norm+relu": what was fused. */
static const char *name_of(const esper_launch *launch, char text[NAME_CHARS])
{
    const esper_attr *attr = &launch->lanes[0].attr;

    if (launch->kind != ESPER_OP_CONV_NORM)
        snprintf(text, NAME_CHARS, "%s", esper_op_info_of(launch->kind)->name);
    else
        snprintf(text, NAME_CHARS, "conv2d+batch_norm%s%s", attr->conv_norm.relu ? "+relu" : "",
                 attr->conv_norm.pool ? "+max_pool" : "");
    return text;
}

static esper_cost cost_of(const plan_table *table, const esper_launch *launch)
{
    return esper_op_cost(launch->kind, launch->direction, &launch->lanes[0], table->network->engine->config.batch);
}

/* Launches run in their order, so that each finds in the caches what the one before left there. */
static esper_status measure(plan_table *table, esper_direction direction)
{
    const esper_program *program = esper_plan_program(table->network->plan, direction, 0);
    esper_backend *backend = table->network->engine->backend;

    ESPER_TRY(esper_plan_refresh(table->network->plan));
    for (int i = 0; i < table->n_rows[direction]; i += program->chain[i]) {
        esper_program chain = {
            .n_launches = program->chain[i], .launches = &program->launches[i], .chain = &program->chain[i]};
        double begin = esper_clock_seconds(), took;

        assert(program->chain[i] > 0); /* what runs in one go is timed in one go */
        if (backend->ops->enqueue_programs == NULL)
            ESPER_TRY(esper_backend_enqueue(backend, NULL, &program->launches[i]));
        else
            ESPER_TRY(backend->ops->enqueue_programs(backend, NULL, &chain, 1));
        ESPER_TRY(esper_backend_sync(backend));
        took = esper_clock_seconds() - begin;
        table->rows[direction][i].seconds += took;
        table->seconds += took;
    }
    return ESPER_OK;
}

/* Launches that run in one go, a few results at a time, are tied together. */
static const char *in_chain(const plan_table *table, esper_direction direction, int i)
{
    const int *chain = esper_plan_program(table->network->plan, direction, 0)->chain;
    bool goes_on = i + 1 < table->n_rows[direction] && chain[i + 1] == 0, utf8 = table->terminal.utf8;

    if (chain[i] == 1)
        return " ";
    if (chain[i] > 1)
        return utf8 ? "\u250c" : "/";
    if (goes_on)
        return utf8 ? "\u2502" : "|";
    return utf8 ? "\u2514" : "\\";
}

static void print_rows(const plan_table *table, esper_direction direction)
{
    char name[NAME_CHARS], flops[ESPER_TEXT_CHARS], bytes[ESPER_TEXT_CHARS];
    bool has_times = table->terminal.room >= WITH_TIMES;

    printf("%-36s %11s %11s %9s%s\n", direction == ESPER_FORWARD ? "forward" : "backward", "FLOPs", "bytes",
           "predicted", table->timed ? " measured" : "");
    for (int i = 0; i < table->n_rows[direction]; i++) {
        const esper_launch *launch = esper_plan_launch(table->network->plan, direction, i);
        const plan_row *row = &table->rows[direction][i];
        esper_cost cost = cost_of(table, launch);

        printf("%3d%s%-32s %11s %11s %7.1f %%", i, in_chain(table, direction, i), name_of(launch, name),
               esper_text_flops(cost.flops, flops), esper_text_bytes(cost.bytes, bytes),
               100 * row->predicted / table->predicted);
        if (table->timed && row->seconds > 0)
            printf(" %6.1f %%", 100 * row->seconds / table->seconds);
        if (table->timed && row->seconds > 0 && has_times)
            printf("  %.1f us", row->seconds / ROUNDS * 1e6);
        printf("\n");
    }
}

static void print_head(const esper_network *network)
{
    esper_plan_stats stats = esper_plan_stats_of(network->plan);
    esper_memory memory = esper_network_memory(network);
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS], c[ESPER_TEXT_CHARS], d[ESPER_TEXT_CHARS], e[ESPER_TEXT_CHARS];

    esper_terminal_print(stdout, "plan of %s: batches of %d, %d + %d launches, %s and %s a step\n",
                         network->engine->task, network->engine->config.batch, stats.n_forward, stats.n_backward,
                         esper_text_flops(stats.forward.flops + stats.backward.flops, a),
                         esper_text_bytes(stats.forward.bytes + stats.backward.bytes, b));
    esper_terminal_print(stdout,
                         "memory: %s in all: data %s, weights and moments %s, activations %s (%s without reuse)\n",
                         esper_text_bytes((double)memory.total, a), esper_text_bytes((double)memory.data, b),
                         esper_text_bytes((double)memory.slab, c), esper_text_bytes((double)memory.activations, d),
                         esper_text_bytes((double)stats.arena_bytes_unshared, e));
}

enum { TRIED = 12 }; /* networks that are opened to see what one takes */

/* How many such networks the device has room for: forks of this one take a step under guard, and its free memory tells what they took. A
 * device gives memory in large parts, so they are several; where even they take less than a part, what the parts of one said is counted. */
static esper_status print_room(esper_network *network)
{
    char free_text[ESPER_TEXT_CHARS], one_text[ESPER_TEXT_CHARS];
    esper_memory memory = esper_network_memory(network);
    esper_engine *engine = network->engine;
    esper_network *forks[TRIED];
    esper_incident incidents[TRIED];
    uint64_t before = 0, after = 0;
    esper_status status = ESPER_OK;
    esper_device *device;
    double one;
    int n = 0;

    if (esper_backend_device(engine->backend) == ESPER_GUARD_HOST)
        return ESPER_OK;
    ESPER_TRY(esper_device_open("cuda", esper_backend_device(engine->backend), &device));
    status = esper_device_memory_free(device, &before);
    for (; n < TRIED && status == ESPER_OK; n++) {
        status = esper_network_fork(network, NULL, &forks[n]);
        if (status != ESPER_OK)
            break;
        status = esper_guarded_open(forks[n]);
    }
    if (status == ESPER_E_NOMEM)
        status = ESPER_OK;
    if (status == ESPER_OK && n > 0)
        status = esper_engine_step(engine, forks, n, 1, incidents);
    if (status == ESPER_OK)
        status = esper_device_memory_free(device, &after);
    if (status == ESPER_OK) {
        one = n > 0 && before > after ? (double)(before - after) / n : (double)(memory.total - memory.data);
        esper_terminal_print(stdout, "device: %s free; a network under guard takes %s, so %.0f fit beside this one\n",
                             esper_text_bytes((double)before, free_text), esper_text_bytes(one, one_text),
                             floor((double)before / one));
    }
    while (n-- > 0)
        esper_network_remove(forks[n]);
    esper_device_close(device);
    return status;
}

static esper_status fill(plan_table *table)
{
    for (int d = 0; d < 2; d++) {
        while (esper_plan_launch(table->network->plan, (esper_direction)d, table->n_rows[d]) != NULL)
            table->n_rows[d]++;
        table->rows[d] = esper_mem_alloc((size_t)(table->n_rows[d] + 1) * sizeof(plan_row));
        if (table->rows[d] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "table of %d launches", table->n_rows[d]);
        for (int i = 0; i < table->n_rows[d]; i++) {
            esper_cost cost = cost_of(table, esper_plan_launch(table->network->plan, (esper_direction)d, i));
            double by_bytes = cost.bytes * FLOPS_PER_BYTE;

            table->rows[d][i].predicted = cost.flops > by_bytes ? cost.flops : by_bytes;
            table->predicted += table->rows[d][i].predicted;
        }
    }
    if (table->timed)
        ESPER_TRY(esper_network_gradients(table->network)); /* a batch to work on, and warm caches */
    for (int r = 0; r < ROUNDS && table->timed; r++) {
        ESPER_TRY(measure(table, ESPER_FORWARD));
        ESPER_TRY(measure(table, ESPER_BACKWARD));
    }
    return ESPER_OK;
}

esper_status esper_info_plan(esper_network *network, bool timed)
{
    plan_table table = {.network = network, .timed = timed, .terminal = esper_terminal_look(stdout)};
    esper_status status = fill(&table);

    if (status == ESPER_OK) {
        print_head(network);
        print_rows(&table, ESPER_FORWARD);
        print_rows(&table, ESPER_BACKWARD);
        status = print_room(network);
    }
    if (status == ESPER_OK && timed)
        esper_terminal_print(
            stdout,
            "measured: %.3f ms for both on %d threads, the mean of %d rounds, batches and optimiser not counted\n",
            table.seconds / ROUNDS * 1e3, esper_pool_threads(network->engine->pool), ROUNDS);
    esper_mem_free(table.rows[0]);
    esper_mem_free(table.rows[1]);
    return status;
}
