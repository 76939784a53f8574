/* ctest: cost=20 sealed=also */
/* How seeds are born: copies of a layer, silent ones, the steepest of several; the same bits in a fork, in a run that was resumed
 * and in a replay; and what is refused. */
#include "nn/init.h"
#include "grow/growing.h"

#define TEXT SMALL_TEXT "segments = 2\nclip = 0\n"

static esper_network *open_network(const char *task, const char *lines, const char *more)
{
    esper_config config = config_of(task, lines, more);
    esper_network *network;

    check_good(esper_single_open(task_named(task), &config, ESPER_USE_GROW, &network));
    return network;
}

static void take_steps(esper_network *network, int n)
{
    for (int i = 0; i < n; i++)
        check_good(esper_network_step(network));
    check_good(esper_network_wait(network));
}

static void put_seed(esper_slots *slots, esper_topology topology, int k, const char *name, const char *how, int birth)
{
    const esper_blueprint *blueprint;

    check_good(esper_blueprint_find(topology, name, &blueprint));
    check_good(esper_slot_plant(&slots->slot[k], blueprint, how, birth,
                                esper_splice_count_params(blueprint, slots->slot[k].channels),
                                esper_splice_count_gate(topology, slots->slot[k].channels)));
}

static void grow_seed(esper_network *network, int k, const char *name, const char *how, int birth)
{
    put_seed(&network->slots, network->engine->host.topology, k, name, how, birth);
    check_good(esper_network_bear(network, k));
    check_good(esper_network_replan(network));
}

static double loss_of(esper_network *network)
{
    esper_tally tally;

    check_good(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &tally));
    return tally.loss;
}

static float *values_of(const esper_network *network, esper_family family, int tensor)
{
    const esper_slab *slab = &network->slab;

    return esper_backend_address(slab->backend, esper_slab_at(slab, family, &network->net.tensors[tensor]));
}

/* ------------------------------------------------------------------------------------------------ copies */

/* Tensors of slot 1's seed that equal those of layer 1 in weights and all moments there are. */
static int count_copies(const esper_network *network, int *n_others)
{
    const esper_net *net = &network->net;
    int n = 0;

    *n_others = 0;
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        char name[ESPER_NAME_CHARS + 16];
        int from;

        if (tensor->region != 2 || tensor->role != ESPER_ROLE_PARAM)
            continue;
        snprintf(name, sizeof(name), "layers.1.%s", tensor->name + strlen("r0c1."));
        from = esper_net_find(net, name);
        if (from == ESPER_NO_TENSOR) {
            ++*n_others;
            continue;
        }
        n++;
        for (int f = ESPER_FAMILY_PARAM; f <= ESPER_FAMILY_MOMENT2; f++) {
            if (f == ESPER_FAMILY_GRAD || network->slab.family[f] == NULL)
                continue;
            if (memcmp(values_of(network, (esper_family)f, t), values_of(network, (esper_family)f, from),
                       (size_t)tensor->count * sizeof(float)) != 0)
                fail_msg("%s differs from %s in family %d", tensor->name, name, f);
        }
    }
    return n;
}

static void copies_weights_moments_and_age(void **state)
{
    static const char *const optimizers[] = {"optimizer = adamw\n", "optimizer = sgd\n"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        esper_network *network = open_network("synth_text", TEXT, optimizers[i]);
        int n_others, moments;

        take_steps(network, 4);
        grow_seed(network, 1, "layer", "add", ESPER_BIRTH_COPY);
        assert_int_equal(count_copies(network, &n_others), 12); /* two norms, four linear layers */
        assert_int_equal(n_others, 0);
        assert_int_equal(esper_optim_group(network->optim, 0, 2)->t, 4);
        moments = esper_net_find(&network->net, "r0c1.mlp.c_fc.weight");
        assert_true(values_of(network, ESPER_FAMILY_MOMENT1, moments)[0] != 0.0f);
        take_steps(network, 1); /* it goes its own way */
        assert_true(
            memcmp(values_of(network, ESPER_FAMILY_PARAM, moments),
                   values_of(network, ESPER_FAMILY_PARAM, esper_net_find(&network->net, "layers.1.mlp.c_fc.weight")),
                   sizeof(float) * 16) != 0);
        esper_single_close(network);
    }
}

static void a_gate_network_is_no_copy(void **state)
{
    esper_network *network = open_network("synth_text", TEXT, "");
    int n_others;

    (void)state;
    take_steps(network, 2);
    grow_seed(network, 1, "layer", "gate", ESPER_BIRTH_COPY);
    assert_int_equal(count_copies(network, &n_others), 12);
    assert_int_equal(n_others, 4);
    assert_true(values_of(network, ESPER_FAMILY_PARAM, esper_net_find(&network->net, "r0c1.gate.0.weight"))[0] != 0.0f);
    esper_single_close(network);
}

/* The state of a host's tensors as a larger host has them: the seed of the last slot is its last layer. */
static void move_state(const esper_network *from, const esper_network *to)
{
    for (int t = 0; t < to->net.n_tensors; t++) {
        const esper_tensor *tensor = &to->net.tensors[t];
        char name[ESPER_NAME_CHARS + 16];
        int source;

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        snprintf(name, sizeof(name), "%s", tensor->name);
        if (strncmp(name, "layers.2.", 9) == 0)
            snprintf(name, sizeof(name), "r0c1.%s", tensor->name + 9);
        source = esper_net_find(&from->net, name);
        assert_int_not_equal(source, ESPER_NO_TENSOR);
        for (int f = ESPER_FAMILY_PARAM; f <= ESPER_FAMILY_MOMENT2; f++)
            if (f != ESPER_FAMILY_GRAD)
                memcpy(values_of(to, (esper_family)f, t), values_of(from, (esper_family)f, source),
                       (size_t)tensor->count * sizeof(float));
    }
    esper_optim_group(to->optim, 0, 0)->t = esper_optim_group(from->optim, 0, 0)->t;
}

/* Grown by a copy of its last layer, a host of two layers is one of three: bit for bit, and so it stays. */
static void is_one_more_layer(void **state)
{
    esper_network *grown = open_network("synth_text", TEXT, "optimizer = adamw\n");
    esper_network *large = open_network("synth_text", TEXT, "optimizer = adamw\nlayers = 3\nsegments = 1\n");

    (void)state;
    take_steps(grown, 3);
    take_steps(large, 3);
    grow_seed(grown, 1, "layer", "add", ESPER_BIRTH_COPY);
    move_state(grown, large);
    assert_true(loss_of(grown) == loss_of(large));
    take_steps(grown, 2);
    take_steps(large, 2);
    assert_true(loss_of(grown) == loss_of(large));
    assert_int_equal(esper_network_params(grown), esper_network_params(large));
    esper_single_close(grown);
    esper_single_close(large);
}

/* ------------------------------------------------------------------------------------------------ silent and small ones */

/* Every blueprint of a task's topology, and how its network's loss changes by it. */
static void check_silence(const char *task, const char *lines)
{
    esper_network *network = open_network(task, lines, "");
    const esper_blueprint *const *list = esper_blueprint_list(network->engine->host.topology);
    double before;
    int n_fixed = 0, n_heard = 0;

    take_steps(network, 3);
    before = loss_of(network);
    for (int i = 0; list[i] != NULL; i++) {
        const int births[] = {ESPER_BIRTH_ZERO, ESPER_BIRTH_SMALL, ESPER_BIRTH_FIRST};

        for (int b = 0; b < 3; b++) {
            put_seed(&network->slots, network->engine->host.topology, 0, list[i]->name, "add", births[b]);
            if (esper_blueprint_check_birth(list[i], births[b]) != ESPER_OK) {
                check_fails(esper_network_bear(network, 0), ESPER_E_ARG, "cannot be born|scales its output");
                n_fixed++;
            } else {
                check_good(esper_network_bear(network, 0));
                check_good(esper_network_replan(network));
                if (births[b] != ESPER_BIRTH_SMALL && loss_of(network) != before)
                    fail_msg("%s is born silent, yet the loss goes from %.17g to %.17g", list[i]->name, before,
                             loss_of(network));
                n_heard += births[b] == ESPER_BIRTH_SMALL && loss_of(network) != before;
            }
            check_good(esper_slots_init(&network->slots, network->engine->plain.boundaries,
                                        network->engine->plain.n_boundaries, &(esper_slot_rules){0}));
            check_good(esper_network_replan(network));
        }
    }
    assert_true(n_heard >= 5);
    assert_int_equal(n_fixed,
                     network->engine->host.topology == ESPER_TOPOLOGY_CNN ? 3 : 0); /* squeeze and excitation */
    esper_single_close(network);
}

static void zero_changes_nothing(void **state)
{
    (void)state;
    check_silence("synth", SMALL_CNN);
    check_silence("synth_text", TEXT);
}

/* ------------------------------------------------------------------------------------------------ the steepest of several */

/* The norm of a seed's gradients, summed tensor by tensor. */
static double seed_norm(const esper_network *network, int k)
{
    double square = 0.0;

    for (int t = 0; t < network->net.n_tensors; t++) {
        const esper_tensor *tensor = &network->net.tensors[t];

        for (int64_t i = 0; tensor->region == k + 1 && tensor->role == ESPER_ROLE_PARAM && i < tensor->count; i++)
            square += pow((double)values_of(network, ESPER_FAMILY_GRAD, t)[i], 2.0);
    }
    return sqrt(square);
}

/* Puts draw after draw of a silent seed into slot 1 of a fork, which is left with the steepest one's weights. Which it is. */
static uint32_t find_steepest(esper_network *fork)
{
    double best = -1.0;
    uint32_t steepest = 0;

    for (uint32_t draw = 0; draw < ESPER_BIRTH_DRAWS; draw++) {
        double norm;

        check_good(esper_init_seed(&fork->net, &fork->slab, &(esper_birth_key){fork->seed, draw, 0}, 2));
        check_good(esper_network_gradients(fork));
        check_good(esper_network_wait(fork));
        norm = seed_norm(fork, 1);
        assert_true(isfinite(norm) && norm > 0.0 && norm != best);
        if (norm > best) {
            best = norm;
            steepest = draw;
        }
    }
    check_good(esper_init_seed(&fork->net, &fork->slab, &(esper_birth_key){fork->seed, steepest, 0}, 2));
    return steepest;
}

static void first_is_the_steepest(void **state)
{
    static const char *const cases[][4] = {
        {"synth", SMALL_CNN, "conv_light", "add"},  {"synth", SMALL_CNN, "bottleneck", "gate"},
        {"synth_text", TEXT, "lora", "add"},        {"synth_text", TEXT, "layer", "add"},
        {"synth_text", TEXT, "mlp", "multiply"},
    };
    static const char *const threads[] = {"threads = 1\n", "threads = 3\n"};
    uint32_t any = 0;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const *one = cases[i / 2];
        esper_network *network = open_network(one[0], one[1], threads[i % 2]), *fork;
        esper_slots *slots = malloc(sizeof(*slots));
        esper_cursor before;
        uint64_t host;

        assert_non_null(slots);
        take_steps(network, 3);
        *slots = network->slots;
        put_seed(slots, network->engine->host.topology, 1, one[2], one[3], ESPER_BIRTH_ZERO);
        check_good(esper_network_fork(network, slots, &fork));
        any |= find_steepest(fork);
        before = network->cursor;
        host = slab_hash(&network->slab, 0);
        put_seed(&network->slots, network->engine->host.topology, 1, one[2], one[3], ESPER_BIRTH_FIRST);
        check_good(esper_network_bear(network, 1));
        check_same_region(network, fork, 2, one[2]);
        assert_int_equal(network->cursor.spent, before.spent + ESPER_BIRTH_DRAWS * fork->step_cost);
        before.spent = network->cursor.spent;
        assert_memory_equal(&network->cursor, &before, sizeof(before));
        check_good(esper_network_clear_region(network, 1));
        check_good(esper_network_wait(network));
        assert_true(slab_hash(&network->slab, 0) == host); /* nothing else has changed */
        esper_network_remove(fork);
        esper_single_close(network);
        free(slots);
    }
    assert_true(any > 0); /* the first draw is not the steepest each time */
}

/* At the end of an epoch the next one's first batch decides; one that is to be passed over does not. */
static void the_next_batch_decides(void **state)
{
    uint64_t hashes[2][2];

    (void)state;
    for (int i = 0; i < 4; i++) {
        esper_network *network = open_network("synth_text", TEXT, "max_steps = 3\n");
        bool next = i % 2 != 0, passes = i / 2 != 0;

        take_steps(network, 3);
        assert_true(esper_network_epoch_done(network));
        if (passes)
            check_good(esper_network_pass_over(network, 1, 0));
        if (next)
            esper_network_next_epoch(network);
        if (next && passes)
            assert_true(esper_network_batch_due(network) && network->cursor.batch == 1);
        grow_seed(network, 1, "lora", "add", ESPER_BIRTH_FIRST);
        hashes[i / 2][i % 2] = esper_network_hash(network);
        esper_single_close(network);
    }
    assert_true(hashes[0][0] == hashes[0][1] && hashes[1][0] == hashes[1][1]);
}

/* y = x + c, with a c that is no number. */
static int build_poison(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = net->tensors[x].dim[0];
    int scale = esper_net_param(net, "scale", 1, &channels, (esper_init){ESPER_INIT_CONSTANT, NAN});

    (void)how;
    return esper_net_add(net, x, esper_net_channel_scale(net, x, scale));
}

static void where_none_is_finite_the_first_draw_is_taken(void **state)
{
    static const esper_blueprint poison = {.name = "conv_light", .topology = ESPER_TOPOLOGY_CNN, .build = build_poison};
    esper_network *network = open_network("synth", SMALL_CNN, "");
    uint64_t host = slab_hash(&network->slab, 0);

    (void)state;
    network->splice.stand_in = &poison;
    put_seed(&network->slots, ESPER_TOPOLOGY_CNN, 1, "conv_light", "add", ESPER_BIRTH_FIRST);
    check_good(esper_network_bear(network, 1));
    check_good(esper_network_clear_region(network, 1));
    check_good(esper_network_wait(network));
    assert_true(slab_hash(&network->slab, 0) == host);
    esper_single_close(network);
}

/* ------------------------------------------------------------------------------------------------ a fork's, and a run's */

static void a_fork_bears_the_same(void **state)
{
    static const struct {
        const char *task, *lines, *blueprint;
        int         birth;
    } cases[] = {
        {"synth", SMALL_CNN, "conv_light", ESPER_BIRTH_OWN},   {"synth", SMALL_CNN, "conv_light", ESPER_BIRTH_SMALL},
        {"synth", SMALL_CNN, "bottleneck", ESPER_BIRTH_ZERO},  {"synth_text", TEXT, "layer", ESPER_BIRTH_OWN},
        {"synth_text", TEXT, "layer", ESPER_BIRTH_ZERO},       {"synth_text", TEXT, "mlp", ESPER_BIRTH_SMALL},
        {"synth_text", TEXT, "layer", ESPER_BIRTH_COPY},       {"synth", SMALL_CNN, "conv_light", ESPER_BIRTH_FIRST},
        {"synth_text", TEXT, "layer", ESPER_BIRTH_FIRST},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_network *run = open_network(cases[i].task, cases[i].lines, "length = epochs\n"), *fork;
        esper_slots *slots = malloc(sizeof(*slots));

        assert_non_null(slots);
        take_steps(run, 3);
        *slots = run->slots;
        put_seed(slots, run->engine->host.topology, 1, cases[i].blueprint, "add", cases[i].birth);
        check_good(esper_network_fork(run, slots, &fork));
        check_good(esper_network_bear(fork, 1));
        grow_seed(run, 1, cases[i].blueprint, "add", cases[i].birth);
        for (int n = 0; n < 2; n++) {
            if (slab_hash(&run->slab, 0) != slab_hash(&fork->slab, 0))
                fail_msg("%s born %s, after %d steps: the fork differs", cases[i].blueprint,
                         esper_birth_name(cases[i].birth), n);
            take_steps(run, 1);
            take_steps(fork, 1);
        }
        esper_network_remove(fork);
        esper_single_close(run);
        free(slots);
    }
}

/* A life with a long wait before the seed begins to learn: it is copied then, and a checkpoint in between has nothing of it. */
static const char *const lives[ESPER_N_BIRTHS] = {
    [ESPER_BIRTH_OWN] = "1 r0c1 germinate blueprint=layer\n3 r0c1 advance\n4 r0c1 advance\n",
    [ESPER_BIRTH_ZERO] = "1 r0c1 germinate blueprint=mlp birth=zero tempo=1\n3 r0c1 advance\n4 r0c1 advance\n",
    [ESPER_BIRTH_SMALL] = "1 r0c1 germinate blueprint=norm birth=small\n3 r0c1 advance\n4 r0c1 advance\n",
    [ESPER_BIRTH_COPY] = "1 r0c1 germinate blueprint=layer birth=copy tempo=1\n3 r0c1 advance\n4 r0c1 advance\n",
    [ESPER_BIRTH_FIRST] = "1 r0c1 germinate blueprint=mlp birth=first tempo=1\n3 r0c1 advance\n4 r0c1 advance\n",
};

static esper_run_result run_life(int n_steps, bool resume, const esper_decision_history *replay)
{
    esper_config config = config_of("synth_text", TEXT "epochs = 6\nlength = epochs\n",
                                    "gates = permissive\ngate_epochs = 1\npolicy = scripted\ndecisions = life.txt\n"
                                    "checkpoint_every = 1\nrun_dir = run\n"),
                 nothing;
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {.task = task_named("synth_text"),
                           .config = &config,
                           .grows = true,
                           .observer = &observer,
                           .stop = &stopping.stop,
                           .replay = replay};
    esper_run_result result;

    esper_config_init(&nothing);
    if (resume) {
        desc.task = NULL;
        desc.config = &nothing;
        desc.resume = "run";
    }
    check_good(esper_run_train(&desc, &result));
    return result;
}

static void runs_are_resumed_and_replayed(void **state)
{
    (void)state;
    for (int birth = 0; birth < ESPER_N_BIRTHS; birth++) {
        esper_decision_history history;
        esper_run_result whole, again;

        write_file("life.txt", lives[birth]);
        whole = run_life(-1, false, NULL);
        check_good(esper_decision_history_read("run/decisions.jsonl", UINT64_MAX, &history));
        assert_int_equal(history.entries[0].decision.birth, birth);
        assert_int_equal(history.entries[1].decision.birth, ESPER_BIRTH_UNSAID);
        again = run_life(-1, false, &history);
        assert_true(again.weight_hash == whole.weight_hash);
        assert_int_equal(again.n_replayed, history.n);
        esper_decision_history_free(&history);
        for (int n_steps = 7; n_steps < 30; n_steps += 5) {
            assert_int_equal(system("rm -rf run"), 0);
            again = run_life(n_steps, false, NULL);
            assert_true(again.stopped);
            again = run_life(-1, true, NULL);
            if (again.weight_hash != whole.weight_hash)
                fail_msg("born %s: resumed after step %d it becomes another", esper_birth_name(birth), n_steps);
        }
        assert_int_equal(system("rm -rf run"), 0);
    }
}

/* ------------------------------------------------------------------------------------------------ what is refused */

static void says_what_cannot_be(void **state)
{
    static const struct {
        const char *task, *keys, *script, *says;
    } cases[] = {
        {"synth", "birth = copy\n", NULL, "birth = copy|no cnn blueprint can be born so"},
        {"synth_text", "birth = copy\npolicy = heuristic\n", NULL,
         "nothing that the heuristic tries|--blueprints layer"},
        {"synth_text", "birth = copy\npolicy = some.safetensors\n", NULL, "learned policy does not know"},
        {"synth", "", "1 r0c0 germinate blueprint=conv_light birth=copy\n", ":1: |conv_light cannot be born by copy"},
        {"synth", "", "1 r0c0 germinate blueprint=attention birth=zero\n", ":1: |attention cannot be born 'zero'"},
        {"synth", "", "1 r0c0 germinate blueprint=attention birth=first\n", ":1: |attention cannot be born 'first'"},
        {"synth_text", "", "1 r0c0 germinate blueprint=mlp birth=copy\n", ":1: |mlp cannot be born by copy"},
        {"synth_text", "", "1 r0c0 germinate blueprint=mlp birth=twin\n",
         "birth 'twin' is none of own, zero, small, copy, first"},
        {"synth_text", "", "2 r0c0 advance birth=own\n", "advance takes no choices"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool text = strcmp(cases[i].task, "synth_text") == 0;
        esper_config config = config_of(cases[i].task, text ? TEXT : SMALL_CNN, "policy = none\n");
        esper_network *network;
        esper_growth *growth;

        if (cases[i].script != NULL) {
            write_file("bad.txt", cases[i].script);
            set_keys(&config, "policy = scripted\ndecisions = bad.txt\n");
        }
        set_keys(&config, cases[i].keys);
        check_good(esper_single_open(task_named(cases[i].task), &config, ESPER_USE_GROW, &network));
        check_fails(esper_growth_open(network, NULL, NULL, &growth), ESPER_E_CONFIG, cases[i].says);
        esper_single_close(network);
    }
}

static void says_what_cannot_be_planted(void **state)
{
    static const char *const cases[][2] = {
        {"plant = r0c0:mlp:add:copy\n", "plant: slot r0c0: mlp cannot be born by copy"},
        {"plant = r0c0:mlp:add:twin\n", "plant: 'twin' is no birth"},
    };

    (void)state;
    for (int i = 0; i < 2; i++) {
        esper_config config = config_of("synth_text", TEXT, cases[i][0]);
        esper_network *network;

        check_fails(esper_single_open(task_named("synth_text"), &config, ESPER_USE_TRAIN, &network), ESPER_E_CONFIG,
                    cases[i][1]);
    }
    esper_single_close(open_network("synth_text", TEXT, "plant = r0c0:mlp:add:small,r0c1:layer:add:copy\n"));
    esper_single_close(open_network("synth_text", TEXT, "plant = r0c0:mlp:add:first,r0c1:layer:gate:first\n"));
}

/* Where the run is set to a birth, only what can be born so is offered, and the decision says which it was. */
static void the_setting_is_the_usual(void **state)
{
    esper_config config = config_of("synth_text", TEXT, "policy = scripted\ndecisions = usual.txt\nbirth = copy\n");
    const esper_policy_view *view;
    esper_network *network;
    esper_growth *growth;
    esper_decision decision;
    esper_epoch_record record = {.epoch = 1, .loss_valid = 1.0, .acc_valid = 10.0};

    (void)state;
    write_file("usual.txt", "1 r0c0 germinate blueprint=layer\n");
    check_good(esper_single_open(task_named("synth_text"), &config, ESPER_USE_GROW, &network));
    check_good(esper_growth_open(network, NULL, NULL, &growth));
    check_good(esper_growth_observe(growth, &record, &view));
    assert_int_equal(view->slots[0].blueprints, 1u << 13);
    check_good(esper_growth_ask(growth, &decision));
    assert_int_equal(decision.birth, ESPER_BIRTH_UNSAID);
    check_good(esper_growth_decide(growth, &decision, false));
    assert_int_equal(network->slots.slot[0].birth, ESPER_BIRTH_COPY);
    assert_int_equal(esper_growth_look_at(growth).decision->birth, ESPER_BIRTH_COPY);
    esper_growth_close(growth);
    esper_single_close(network);
}

/* ------------------------------------------------------------------------------------------------ memory, and the governor's */

static void fails_whole(void **state)
{
    esper_network *network = open_network("synth_text", TEXT, "");
    uint64_t live = live_blocks(), nth;
    esper_status status = ESPER_E_NOMEM;
    int n_others;

    (void)state;
    take_steps(network, 2);
    put_seed(&network->slots, ESPER_TOPOLOGY_TRANSFORMER, 1, "layer", "add", ESPER_BIRTH_COPY);
    for (nth = 1; status != ESPER_OK; nth++) {
        esper_mem_fail_at(nth);
        status = esper_network_bear(network, 1);
        esper_mem_fail_at(0);
        assert_true(status == ESPER_OK || status == ESPER_E_NOMEM);
        assert_int_equal(live_blocks(), live);
    }
    assert_true(nth > 5);
    check_good(esper_network_replan(network));
    assert_int_equal(count_copies(network, &n_others), 12);
    esper_single_close(network);
}

/* A seed that is faded in leaves the governor its losses; one that joins at once makes it begin anew. */
static void a_jump_is_no_divergence(void **state)
{
    static const struct {
        const char *script;
        uint32_t    n_losses; /* that are remembered after eight epochs */
    } cases[] = {
        {"1 r0c0 germinate blueprint=conv_light tempo=4\n2 r0c0 advance\n5 r0c0 advance\n", 8},
        {"1 r0c0 germinate blueprint=conv_light tempo=1\n2 r0c0 advance\n5 r0c0 advance\n", 3},
    };

    (void)state;
    for (int i = 0; i < 2; i++) {
        garden g;

        garden_open(&g, "gate_epochs = 2\n", cases[i].script, NULL);
        for (int epoch = 0; epoch < 8; epoch++) {
            esper_incident incident;

            train_epoch(&g);
            g.last = measure_epoch(&g);
            check_good(esper_guarded_judge(g.network, g.last.loss_valid, &incident));
            check_good(esper_growth_end_epoch(g.growth, &g.last));
            esper_network_next_epoch(g.network);
        }
        assert_true(slot_at(&g, 0)->alpha.value > 0.0);
        assert_int_equal(esper_guarded_reading(g.network).history_count, cases[i].n_losses);
        garden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_weights_moments_and_age),
        cmocka_unit_test(a_gate_network_is_no_copy),
        cmocka_unit_test(is_one_more_layer),
        cmocka_unit_test(zero_changes_nothing),
        cmocka_unit_test(first_is_the_steepest),
        cmocka_unit_test(the_next_batch_decides),
        cmocka_unit_test(where_none_is_finite_the_first_draw_is_taken),
        cmocka_unit_test(a_fork_bears_the_same),
        cmocka_unit_test(runs_are_resumed_and_replayed),
        cmocka_unit_test(says_what_cannot_be),
        cmocka_unit_test(says_what_cannot_be_planted),
        cmocka_unit_test(the_setting_is_the_usual),
        cmocka_unit_test(fails_whole),
        cmocka_unit_test(a_jump_is_no_divergence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
