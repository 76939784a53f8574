/* Lanes with their addresses, programs, and launches that several networks share. */
#include "tensor/plan_launches.h"

#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/cost.h"

/* ------------------------------------------------------------------------------------------------ memory */

static void *take(esper_launches *launches, size_t n, size_t element_bytes)
{
    return esper_plan_take(n, element_bytes, &launches->table_bytes);
}

esper_status esper_launches_init(esper_launches *launches, const esper_bound *nets, int n_nets)
{
    size_t n[2] = {0, 0}, n_programs = (size_t)n_nets;

    *launches = (esper_launches){.n_nets = n_nets};
    for (int k = 0; k < n_nets; k++) {
        n[ESPER_FORWARD] += (size_t)nets[k].schedule->n_steps[ESPER_FORWARD];
        n[ESPER_BACKWARD] += (size_t)nets[k].schedule->n_steps[ESPER_BACKWARD];
    }
    for (int d = 0; d < 2; d++) {
        launches->together[d] = take(launches, n[d], sizeof(esper_launch));
        launches->lanes[d] = take(launches, n[d], sizeof(esper_lane));
        launches->programs[d] = take(launches, n_programs, sizeof(esper_program));
        if (launches->together[d] == NULL || launches->lanes[d] == NULL || launches->programs[d] == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "plan of %zu launches", n[d]);
    }
    launches->gradients = take(launches, n_programs, sizeof(esper_program));
    launches->single = take(launches, n[ESPER_FORWARD] + n[ESPER_BACKWARD], sizeof(esper_launch));
    launches->next = take(launches, n_programs, sizeof(int));
    if (launches->gradients == NULL || launches->single == NULL || launches->next == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "plan of %d networks", n_nets);
    return ESPER_OK;
}

void esper_launches_fini(esper_launches *launches)
{
    for (int d = 0; d < 2; d++) {
        esper_mem_free(launches->together[d]);
        esper_mem_free(launches->lanes[d]);
        esper_mem_free(launches->programs[d]);
    }
    esper_mem_free(launches->gradients);
    esper_mem_free(launches->single);
    esper_mem_free(launches->next);
    *launches = (esper_launches){0};
}

/* ------------------------------------------------------------------------------------------------ addresses */

static void *at(const esper_bound *net, const esper_extent *extent)
{
    assert(extent->begin == ESPER_NEVER || extent->offset + extent->bytes <= net->schedule->arena_bytes);
    return extent->begin == ESPER_NEVER ? NULL : net->arena + extent->offset;
}

void *esper_bound_data(const esper_bound *net, int tensor)
{
    const esper_schedule *schedule = net->schedule;

    assert(0 <= tensor && tensor < schedule->net.n_tensors);
    switch (schedule->net.tensors[tensor].role) {
    case ESPER_ROLE_PARAM:
        return esper_slab_at(net->slab, ESPER_FAMILY_PARAM, &schedule->net.tensors[tensor]);
    case ESPER_ROLE_BUFFER:
        return esper_slab_at(net->slab, ESPER_FAMILY_BUFFER, &schedule->net.tensors[tensor]);
    default:
        return at(net, &schedule->data[schedule->home[tensor]]);
    }
}

void *esper_bound_grad(const esper_bound *net, int tensor)
{
    const esper_schedule *schedule = net->schedule;

    assert(0 <= tensor && tensor < schedule->net.n_tensors);
    if (!schedule->has_grad[tensor])
        return NULL;
    if (schedule->net.tensors[tensor].role == ESPER_ROLE_PARAM)
        return esper_slab_at(net->slab, ESPER_FAMILY_GRAD, &schedule->net.tensors[tensor]);
    return at(net, &schedule->grad[tensor]);
}

/* Tensors begin at cache lines, in slab and arena alike. */
static void give_memory(const esper_bound *net, int tensor, esper_view *view)
{
    if (tensor == ESPER_NO_TENSOR)
        return;
    view->data = esper_bound_data(net, tensor);
    view->grad = esper_bound_grad(net, tensor);
    assert((uintptr_t)view->data % ESPER_ARENA_ALIGN == 0 && (uintptr_t)view->grad % ESPER_ARENA_ALIGN == 0);
}

static esper_lane lane_of(const esper_bound *net, esper_direction direction, int o)
{
    const esper_op *op = &net->schedule->net.ops[o];
    const esper_op_info *info = esper_op_info_of(op->kind);
    esper_lane lane = esper_schedule_shape(net->schedule, o);

    lane.pass = net->pass;
    lane.max_samples = net->schedule->max_samples;
    lane.scratch = at(net, &net->schedule->scratch[direction][o]);
    for (int i = 0; i < info->n_in; i++) {
        give_memory(net, op->in[i], &lane.in[i]);
        if ((info->grad_in & ESPER_BIT(i)) == 0)
            lane.in[i].grad = NULL;
    }
    for (int i = 0; i < info->n_out; i++)
        give_memory(net, op->out[i], &lane.out[i]);
    return lane;
}

/* ------------------------------------------------------------------------------------------------ launches */

/* The network's next step; NULL when there is no other. */
static const esper_step *next_step(const esper_launches *launches, const esper_bound *nets, esper_direction direction,
                                   int k)
{
    const esper_schedule *schedule = nets[k].schedule;

    return launches->next[k] < schedule->n_steps[direction]
               ? &esper_schedule_steps(schedule, direction)[launches->next[k]]
               : NULL;
}

/* A launch like the step that comes first among the networks' next ones, without lanes, and where it stands; false when all
 * are through. Operations stand in the order of their places; backward it is the last that comes first. */
static bool first_launch(const esper_launches *launches, const esper_bound *nets, esper_direction direction,
                         esper_launch *launch_out, uint32_t *place_out)
{
    const esper_op *first = NULL;
    esper_part part = ESPER_PART_WHOLE;

    for (int k = 0; k < launches->n_nets; k++) {
        const esper_step *step = next_step(launches, nets, direction, k);
        const esper_op *op = step == NULL ? NULL : &nets[k].schedule->net.ops[step->op];

        if (op != NULL &&
            (first == NULL || (direction == ESPER_FORWARD ? op->place < first->place : op->place > first->place))) {
            first = op;
            part = step->part;
        }
    }
    if (first == NULL)
        return false;
    *launch_out = (esper_launch){
        .kind = first->kind, .direction = direction, .variant = first->variant, .part = part, .place = first->place};
    *place_out = first->place;
    return true;
}

/* Gives the launch a lane for each network whose next step is the same, and each of these networks its own. */
static void join(esper_launches *launches, const esper_bound *nets, esper_launch *launch, uint32_t place,
                 esper_lane *lanes)
{
    launch->lanes = lanes;
    for (int k = 0; k < launches->n_nets; k++) {
        const esper_step *step = next_step(launches, nets, launch->direction, k);
        const esper_op *op = step == NULL ? NULL : &nets[k].schedule->net.ops[step->op];
        esper_launch *single;

        if (op == NULL || op->kind != launch->kind || op->place != place || op->variant != launch->variant ||
            step->part != launch->part)
            continue;
        lanes[launch->n_lanes] = lane_of(&nets[k], launch->direction, step->op);
        single = &launches->programs[launch->direction][k].launches[launches->next[k]++];
        *single = *launch;
        single->n_lanes = 1;
        single->lanes = &lanes[launch->n_lanes++];
    }
    assert(launch->n_lanes > 0);
}

static void bind_direction(esper_launches *launches, const esper_bound *nets, esper_direction direction)
{
    esper_lane *lanes = launches->lanes[direction];
    esper_launch launch;
    uint32_t place;

    launches->n_together[direction] = 0;
    for (int k = 0; k < launches->n_nets; k++)
        launches->next[k] = 0;
    while (first_launch(launches, nets, direction, &launch, &place)) {
        join(launches, nets, &launch, place, lanes);
        launches->together[direction][launches->n_together[direction]++] = launch;
        lanes += launch.n_lanes;
    }
}

/* A network's programs lie one behind the other: together they are a third. */
static void lay_out_programs(esper_launches *launches, const esper_bound *nets)
{
    esper_launch *single = launches->single;

    for (int k = 0; k < launches->n_nets; k++) {
        const esper_schedule *schedule = nets[k].schedule;
        esper_program both = {.n_launches = schedule->n_steps[ESPER_FORWARD] + schedule->n_steps[ESPER_BACKWARD],
                              .launches = single,
                              .chain = schedule->chain,
                              .id = ++nets[k].slab->backend->n_programs};

        for (int d = 0; d < 2; d++) {
            int first = d == ESPER_FORWARD ? 0 : schedule->n_steps[ESPER_FORWARD];

            launches->programs[d][k] = (esper_program){.n_launches = schedule->n_steps[d],
                                                       .launches = single + first,
                                                       .chain = schedule->chain + first,
                                                       .id = ++nets[k].slab->backend->n_programs};
        }
        launches->gradients[k] = both;
        single += both.n_launches;
    }
}

/* Threads that begin with long programs end at about the same time. Networks that are alike keep their order. */
static void sort_programs(esper_program *programs, int n_programs)
{
    for (int k = 1; k < n_programs; k++) {
        esper_program moved = programs[k];
        int place = k;

        for (; place > 0 && programs[place - 1].flops < moved.flops; place--)
            programs[place] = programs[place - 1];
        programs[place] = moved;
    }
}

void esper_launches_bind(esper_launches *launches, const esper_bound *nets)
{
    lay_out_programs(launches, nets);
    bind_direction(launches, nets, ESPER_FORWARD);
    bind_direction(launches, nets, ESPER_BACKWARD);
    for (int k = 0; k < launches->n_nets; k++) {
        esper_program *both = &launches->gradients[k];

        for (const esper_launch *at = both->launches; at < both->launches + both->n_launches; at++)
            if (at->part != ESPER_PART_BEFORE) /* both parts are one operation */
                both->flops += esper_op_cost(at->kind, at->direction, at->lanes, nets[k].schedule->max_samples).flops;
    }
    sort_programs(launches->gradients, launches->n_nets);
}
