/* ctest: timeout=120 cost=10 sealed=also */
/* Going back with structure: a snapshot brings the network of its time back, with everything that was known then; a rung of
 * the ladder is in the decision log before it acts. */
#include <xxhash.h>

#include <unistd.h>

#include "grow/growing.h"

/* All that a run goes on from, but for what a rollback does not undo. */
typedef struct witness {
    uint64_t slab, position, tensors;
} witness;

/* Names and places of the tensors of the network, as the guard knows them. */
static uint64_t hash_tensors(const garden *g)
{
    const esper_guard *guard = esper_guarded_guard(g->network);
    uint64_t hash = esper_guard_count(guard);

    for (size_t i = 0; i < esper_guard_count(guard); i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, i);

        hash = XXH64(tensor->name, strlen(tensor->name), hash);
        hash = XXH64(tensor->group, strlen(tensor->group), hash);
        hash = XXH64(&tensor->data, sizeof(tensor->data), hash);
        hash = XXH64(&tensor->count, sizeof(tensor->count), hash);
    }
    return hash;
}

/* The guard's table is that of the network: every parameter of it, no other. */
static void check_table(const garden *g)
{
    const esper_guard *guard = esper_guarded_guard(g->network);
    const esper_net *net = &g->network->net;
    size_t n_params = 0, n_known = 0;

    for (int t = 0; t < net->n_tensors; t++)
        n_params += net->tensors[t].role == ESPER_ROLE_PARAM;
    for (size_t i = 0; i < esper_guard_count(guard); i++) {
        const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, i);

        if (tensor->role != ESPER_GUARD_ROLE_PARAM)
            continue;
        n_known++;
        if (esper_net_find(net, tensor->name) == ESPER_NO_TENSOR)
            fail_msg("the guard knows %s, the network does not", tensor->name);
    }
    assert_int_equal(n_known, n_params);
}

static witness look(const garden *g)
{
    esper_position *position = calloc(1, sizeof(*position));
    witness w = {0};

    w.slab = slab_hash(&g->network->slab, 0);
    esper_network_position(g->network, position);
    w.position = XXH64(position, sizeof(*position), 0);
    w.tensors = hash_tensors(g);
    free(position);
    return w;
}

static void check_same_witness(const witness *a, const witness *b)
{
    assert_int_equal(a->slab, b->slab);
    assert_int_equal(a->position, b->position);
    assert_int_equal(a->tensors, b->tensors);
}

/* What the companion remembers, its facts behind it left out by the caller. */
static uint8_t *pack_companion(const garden *g)
{
    uint8_t *bytes = calloc(1, g->network->companion.bytes);

    assert_non_null(bytes);
    g->network->companion.pack(g->network->companion.context, bytes);
    return bytes;
}

/* Facts stand at the end: twelve numbers of 8 bytes, and one for each table of the store. */
enum { FACTS_BYTES = 8 * (12 + ESPER_FACT_N_TABLES) };

static void check_same_memory(const garden *g, const uint8_t *then)
{
    uint8_t *now = pack_companion(g);

    for (size_t i = 0; i + FACTS_BYTES < g->network->companion.bytes; i++)
        if (now[i] != then[i])
            fail_msg("byte %zu of what growth remembers: %d, expected %d", i, now[i], then[i]);
    free(now);
}

static void spoil_host(garden *g)
{
    slab_values(&g->network->slab, ESPER_FAMILY_PARAM)[3] = (float)NAN;
}

static garden *garden_new(const char *more, const char *script, const char *log)
{
    garden *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    garden_open(g, more, script, log);
    return g;
}

static void garden_free(garden *g)
{
    garden_close(g);
    free(g);
}

/* One step, and what it met. */
static esper_incident step(garden *g)
{
    esper_incident incident;

    check_good(esper_guarded_step(g->network, &incident));
    heed(g, &incident);
    return incident;
}

/* ------------------------------------------------------------------------------------------------ back over a birth */

/* The newest snapshot is of step 3 of the first epoch; a seed germinates and begins to train at the ends of two epochs that
 * take no snapshot of their own, as somebody who judges late would have it. */
static void goes_back_over_a_birth(void **state)
{
    static const char script[] = "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n";
    garden *g = garden_new("snapshot_every = 1000\n", script, NULL);
    garden *plain = garden_new("snapshot_every = 1000\n", script, NULL);
    esper_incident incident;
    uint8_t *memory;
    witness before, after;

    (void)state;
    before = look(g); /* the snapshot that opening takes */
    memory = pack_companion(g);
    train_epoch(g);
    g->last = measure_epoch(g);
    check_good(esper_growth_end_epoch(g->growth, &g->last)); /* the cursor stays: no snapshot before the next step */
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    g->last.epoch = 2;
    check_good(esper_growth_end_epoch(g->growth, &g->last));
    check_stage(g, 0, ESPER_STAGE_TRAINING);
    assert_false(region_is_zero(g->network, 1));
    assert_true(g->network->cursor.epoch == 0);
    spoil_host(g);
    check_good(esper_guarded_settle(g->network, &incident));
    heed(g, &incident);
    assert_int_equal(incident.action, ESPER_GOVERNOR_ROLL_BACK);
    assert_true(incident.restored);
    check_stage(g, 0, ESPER_STAGE_DORMANT);
    after = look(g);
    check_same_witness(&before, &after);
    check_same_memory(g, memory);
    check_table(g);
    assert_int_equal(g->network->program, plain->network->program);
    grow_until(g, 2); /* another batch is passed over, but the seed germinates again */
    check_stage(g, 0, ESPER_STAGE_TRAINING);
    free(memory);
    garden_free(plain);
    garden_free(g);
}

/* From a network with the seed in TRAINING back to one without, and from one that blends back to one that trains. */
static void goes_back_over_a_program(void **state)
{
    static const struct {
        uint32_t    snapshot; /* after this many epochs, which is the newest snapshot's */
        const char *what;
    } cases[] = {{1, "training"}, {13, "blending"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        garden *g =
            garden_new("", "1 r0c0 germinate blueprint=conv_light tempo=3\n2 r0c0 advance\n14 r0c0 advance\n", NULL);
        esper_incident incident;
        witness before, after;
        uint8_t *memory;
        uint64_t program;

        grow_until(g, cases[i].snapshot);
        before = look(g); /* which the first step of the epoch takes a snapshot of */
        memory = pack_companion(g);
        program = g->network->program;
        step(g);
        g->config.snapshot_every = g->network->engine->config.snapshot_every = 1000;
        train_epoch(g);
        g->last = measure_epoch(g);
        check_good(esper_growth_end_epoch(g->growth, &g->last));
        assert_int_not_equal(g->network->program, program);
        spoil_host(g);
        check_good(esper_guarded_settle(g->network, &incident));
        heed(g, &incident);
        assert_true(incident.restored);
        assert_int_equal(incident.to.epoch, cases[i].snapshot);
        assert_int_equal(g->network->program, program);
        after = look(g);
        check_same_witness(&before, &after);
        check_same_memory(g, memory);
        check_table(g);
        grow_until(g, cases[i].snapshot + 3); /* and the plan fits */
        free(memory);
        garden_free(g);
    }
}

/* ------------------------------------------------------------------------------------------------ the ladder */

/* Entries of the governor in a log, in order. */
static int read_governor(const char *path, esper_log_entry *entries, int most)
{
    esper_decision_history history;
    int n = 0;

    check_good(esper_decision_history_read(path, UINT64_MAX, &history));
    for (uint64_t i = 0; i < history.n && n < most; i++)
        if (history.entries[i].source == ESPER_LOG_GOVERNOR)
            entries[n++] = history.entries[i];
    esper_decision_history_free(&history);
    return n;
}

/* Spoils the host again and again; what is in the log when the call returns was written before it acted. */
static void climbs_the_ladder(void **state)
{
    static const esper_governor_action rungs[] = {ESPER_GOVERNOR_ROLL_BACK, ESPER_GOVERNOR_PRUNE, ESPER_GOVERNOR_PRUNE,
                                                  ESPER_GOVERNOR_STOP};
    garden *g =
        garden_new("",
                   "1 r0c0 germinate blueprint=conv_light tempo=1\n2 r0c0 advance\n13 r0c0 advance\n"
                   "15 r0c0 advance\n17 r0c0 fossilize\n18 r0c1 germinate blueprint=conv_light\n19 r0c1 advance\n",
                   "ladder.jsonl");
    esper_log_entry entries[8];
    esper_incident incident;

    (void)state;
    grow_until(g, 20);
    check_stage(g, 0, ESPER_STAGE_FOSSILIZED);
    check_stage(g, 1, ESPER_STAGE_TRAINING);
    step(g);
    for (int i = 0; i < 4; i++) {
        double scale = g->network->detour.lr_scale;
        int n;

        spoil_host(g);
        check_good(esper_guarded_settle(g->network, &incident));
        n = read_governor("ladder.jsonl", entries, 8);
        assert_int_equal(n, i + 1); /* before anybody heeds it */
        heed(g, &incident);
        assert_int_equal(entries[i].governor.action, rungs[i]);
        assert_int_equal(incident.action, rungs[i]);
        assert_string_equal(entries[i].governor.tensor, incident.tensor);
        assert_string_equal(entries[i].governor.problem, "NaN");
        assert_true(entries[i].governor.lr_scale == scale);
        assert_int_equal(entries[i].governor.to_step, incident.to.step);
        assert_int_equal(entries[i].governor.n_pruned, rungs[i] == ESPER_GOVERNOR_PRUNE);
        if (rungs[i] == ESPER_GOVERNOR_PRUNE)
            assert_string_equal(entries[i].governor.pruned[0], slot_at(g, 1)->id);
        check_stage(g, 0, ESPER_STAGE_FOSSILIZED); /* what is kept is kept */
        assert_true(incident.restored);
        if (rungs[i] != ESPER_GOVERNOR_PRUNE)
            check_stage(g, 1, ESPER_STAGE_TRAINING);
        else {
            assert_false(esper_slot_is_active(slot_at(g, 1)));
            assert_true(g->network->detour.lr_scale == scale / 2.0);
            assert_true(region_is_zero(g->network, 2));
            assert_int_equal(esper_net_count_params(&g->network->net, 2), 0);
        }
        check_table(g);
        if (i < 3)
            step(g);
    }
    check_fails(esper_guarded_step(g->network, &incident), ESPER_E_STATE, "stopped");
    check_good(esper_checkpoint_save(g->network, "stopped.safetensors")); /* somebody can go on from it */
    garden_free(g);
}

/* A rung that cannot be written down is not climbed. */
static esper_status refuse(void *context, const esper_incident *incident)
{
    (void)context;
    (void)incident;
    return esper_fail(ESPER_E_IO, "no room for this");
}

static void does_not_act_without_a_record(void **state)
{
    garden *g = garden_new("", NULL, NULL);
    esper_incident incident;
    uint64_t n_rollbacks;

    (void)state;
    grow_until(g, 1);
    esper_guarded_set_clerk(g->network, refuse, NULL);
    spoil_host(g);
    n_rollbacks = esper_guarded_reading(g->network).n_rollbacks;
    check_fails(esper_guarded_step(g->network, &incident), ESPER_E_IO, "no room");
    assert_int_equal(esper_guarded_reading(g->network).n_rollbacks, n_rollbacks);
    assert_true(isnan(slab_values(&g->network->slab, ESPER_FAMILY_PARAM)[3]));
    garden_free(g);
}

/* A loss that was judged behind the snapshot is judged again, and counts once. */
static void losses_count_once(void **state)
{
    garden *g = garden_new("snapshot_every = 1000\n", NULL, NULL);
    esper_incident incident;

    (void)state;
    for (uint32_t n = 0; n < 5; n++) {
        train_epoch(g);
        g->last = measure_epoch(g);
        check_good(esper_guarded_judge(g->network, g->last.loss_valid, &incident));
        assert_int_equal(incident.action, ESPER_GOVERNOR_GO);
        assert_int_equal(esper_guarded_reading(g->network).history_count, n == 4 ? 4 : n + 1);
        check_good(esper_growth_end_epoch(g->growth, &g->last));
        esper_network_next_epoch(g->network);
        if (n != 3)
            continue;
        spoil_host(g); /* before epoch 5 has a snapshot of its own: that of epoch 4 is put back */
        incident = step(g);
        assert_int_equal(incident.to.epoch, 3);
        assert_int_equal(esper_guarded_reading(g->network).history_count, 3);
    }
    garden_free(g);
}

/* Makes the log fail at a step, and the host bad, so that the governor has something to say. */
typedef struct saboteur {
    uint64_t at_step;
    bool     done;
} saboteur;

/* Somebody moves the log away. */
static void sabotage(void *context, const esper_run_view *view)
{
    saboteur *self = context;
    esper_network *network = (esper_network *)(uintptr_t)view->network;

    if (self->done || network->cursor.step != self->at_step)
        return;
    self->done = true;
    assert_int_equal(rename("unwritten/decisions.jsonl", "moved.jsonl"), 0);
    slab_values(&network->slab, ESPER_FAMILY_PARAM)[3] = NAN;
}

/* The run ends as it last stood well, and goes on from there as if nothing had been: in an epoch, at its beginning, and when
 * steps were skipped behind the snapshot. */
static void an_unwritten_rung_ends_a_run(void **state)
{
    static const uint64_t at[] = {13, 15, 19};
    esper_run_result result, plain;

    (void)state;
    write_file("unwritten.txt", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n");
    for (int i = -1; i < 3; i++) {
        esper_config config = config_of("synth", GROWING "epochs = 6\ncheckpoint_every = 0\n",
                                        "policy = scripted\ndecisions = unwritten.txt\nrun_dir = unwritten\n"
                                        "inject = 18:host:grad:inf\n");
        saboteur bad = {.at_step = i >= 0 ? at[i] : UINT64_MAX};
        esper_run_observer observer = {.context = &bad, .step = sabotage};
        esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true, .observer = &observer};
        esper_config nothing;

        if (i < 0) {
            check_good(esper_run_train(&desc, &plain));
        } else {
            check_fails(esper_run_train(&desc, &result), ESPER_E_IO,
                        "decisions.jsonl|saved as it stood at step|--resume");
            assert_int_equal(rename("moved.jsonl", "unwritten/decisions.jsonl"), 0);
            esper_config_init(&nothing);
            desc = (esper_run_desc){.config = &nothing, .resume = "unwritten", .grows = true};
            check_good(esper_run_train(&desc, &result));
            assert_int_equal(result.last.epoch, 6);
            assert_int_equal(result.weight_hash, plain.weight_hash);
        }
        assert_int_equal(system("rm -rf unwritten"), 0);
    }
}

/* The last rung ends a run with an error, and what it saved can be gone on with. */
static void a_stopped_run_goes_on(void **state)
{
    esper_config config = config_of("synth", GROWING "epochs = 6\nmax_rollbacks = 1\n",
                                    "policy = scripted\ndecisions = stop.txt\nrun_dir = stopped\n"
                                    "inject = 12:host:param:nan,14:seed:moment:inf\n");
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
    esper_run_result result;
    esper_config nothing;
    esper_log_entry entries[8];

    (void)state;
    write_file("stop.txt", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n");
    check_fails(esper_run_train(&desc, &result), ESPER_E_STATE, "the governor stopped the run|saved");
    assert_int_equal(read_governor("stopped/decisions.jsonl", entries, 8), 2);
    assert_int_equal(entries[1].governor.action, ESPER_GOVERNOR_STOP);
    esper_config_init(&nothing);
    desc = (esper_run_desc){.config = &nothing, .resume = "stopped", .grows = true};
    check_good(esper_run_train(&desc, &result));
    assert_int_equal(result.last.epoch, 6);
    assert_int_equal(result.params, result.params_host); /* the seed still learns: it is no part of what was tested */
}

/* The memory goes into a checkpoint and back; one of an older version, which was bytes, is refused with a sentence. */
static void memory_has_names(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    esper_page first = {0}, second = {0};
    const esper_state_part *part = NULL;

    (void)state;
    assert_non_null(g);
    garden_open(g, "", "1 r0c0 germinate blueprint=conv_light\n", NULL);
    grow_until(g, 3);
    for (int i = 0; i < g->network->n_parts; i++)
        if (strcmp(g->network->parts[i].name, "growth") == 0)
            part = &g->network->parts[i];
    assert_non_null(part);
    check_good(part->write(part->context, &first));
    assert_non_null(strstr(first.text, "tracker.n_history 3\n"));
    assert_non_null(strstr(first.text, "facts.n_seeds 1\n"));
    grow_until(g, 5);
    check_good(part->read(part->context, first.text));
    check_good(part->write(part->context, &second));
    assert_string_equal(first.text, second.text);
    check_fails(part->read(part->context, "657370657270"), ESPER_E_FORMAT, "growth|657370657270|Esper 0.1");
    check_fails(part->read(part->context, "facts.n_seeds -3\n"), ESPER_E_FORMAT, "cannot be|-3 seeds");
    esper_page_fini(&first);
    esper_page_fini(&second);
    garden_close(g);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_has_names),
        cmocka_unit_test(goes_back_over_a_birth),
        cmocka_unit_test(goes_back_over_a_program),
        cmocka_unit_test(climbs_the_ladder),
        cmocka_unit_test(does_not_act_without_a_record),
        cmocka_unit_test(a_stopped_run_goes_on),
        cmocka_unit_test(losses_count_once),
        cmocka_unit_test(an_unwritten_rung_ends_a_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
