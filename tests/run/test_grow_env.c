/* ctest: timeout=240 cost=10 sealed=also */
/* The vector environment: a learner's episodes to the bit, legal steps of any kind, what is refused, what goes wrong. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault/alloc.h"
#include "learn/fleeting.h"
#include "run/grow_env_internal.h"

enum { N_ENVS = 3, MOST_SETTINGS = 24 };

/* As in learn/fleeting.h, without what is a learner's. Under a sanitizer convolutions take most of the time. */
#define SETTINGS                                                                                                 \
    "threads = 2\nbatch = 8\nblocks = 2\nmax_steps = 5\nepochs = 6\nsnapshot_every = 3\nvalid_fraction = 0.02\n"

/* An environment, and arrays for all that it shows. */
typedef struct player {
    esper_grow_env       *env;
    esper_grow_env_shape  shape;
    esper_grow_env_arrays shown;
    int32_t              *actions; /* (n_envs, n_heads) */
    uint64_t              n_drawn;
    int                   n_ops[ESPER_N_SLOT_OPS], n_accepted;
} player;

/* Opens it with lines "key = value". */
static esper_status try_open(const char *task, const char *lines, int n_envs, esper_grow_env **env_out)
{
    esper_grow_env_setting settings[MOST_SETTINGS];
    esper_grow_env_options options;
    char copy[2048], *rest = copy, *line;

    snprintf(copy, sizeof(copy), "%s", lines);
    esper_grow_env_options_init(&options);
    options.task = task;
    options.n_envs = (uint32_t)n_envs;
    options.settings = settings;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *value = strstr(line, " = ");

        if (value == NULL)
            continue;
        *value = '\0';
        assert_true(options.n_settings < MOST_SETTINGS);
        settings[options.n_settings++] = (esper_grow_env_setting){line, value + 3};
    }
    return esper_grow_env_open(&options, env_out);
}

static void *rows(const player *p, size_t each)
{
    void *memory = calloc(p->shape.n_envs, each);

    assert_non_null(memory);
    return memory;
}

static void player_open(player *p, const char *more, int n_envs)
{
    const esper_grow_env_shape *s = &p->shape;
    char lines[1024];

    memset(p, 0, sizeof(*p));
    snprintf(lines, sizeof(lines), SETTINGS "%s%s", is_brief() ? "channels = 2\n" : "channels = 4\n", more);
    check_good(try_open("synth", lines, n_envs, &p->env));
    p->shape.size = sizeof(p->shape);
    check_good(esper_grow_env_shape_get(p->env, &p->shape));
    p->actions = rows(p, s->n_heads * sizeof(int32_t));
    p->shown = (esper_grow_env_arrays){
        .size = sizeof(p->shown),
        .features = rows(p, s->n_features * sizeof(float)),
        .blueprints = rows(p, s->n_slots * sizeof(int32_t)),
        .mask_op = rows(p, s->n_ops),
        .mask_slot = rows(p, s->n_ops * s->n_slots),
        .mask_blueprint = rows(p, s->n_slots * s->n_blueprints),
        .mask_style = rows(p, s->n_slots * s->n_styles),
        .accuracy = rows(p, sizeof(double)),
        .params = rows(p, sizeof(int64_t)),
        .seed = rows(p, sizeof(uint64_t)),
        .reward = rows(p, sizeof(double)),
        .parts = rows(p, s->n_parts * sizeof(double)),
        .effective_op = rows(p, sizeof(int32_t)),
        .accepted = rows(p, 1),
        .rolled_back = rows(p, 1),
        .terminated = rows(p, 1),
    };
}

static void player_close(player *p)
{
    esper_grow_env_arrays *a = &p->shown;
    void *all[] = {a->features, a->blueprints, a->mask_op, a->mask_slot, a->mask_blueprint, a->mask_style,
                   a->accuracy, a->params,     a->seed,    a->reward,    a->parts,          a->effective_op,
                   a->accepted, a->rolled_back, a->terminated, p->actions};

    esper_grow_env_close(p->env);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

static uint32_t draw(player *p, uint32_t n)
{
    p->n_drawn++;
    return (uint32_t)(XXH64(&p->n_drawn, sizeof(p->n_drawn), 0) % n);
}

/* One of the choices whose byte is 1. */
static int32_t draw_open(player *p, const uint8_t *mask, uint32_t n)
{
    uint32_t at = draw(p, n);

    for (uint32_t i = 0; i < n; i++)
        if (mask[(at + i) % n] != 0)
            return (int32_t)((at + i) % n);
    fail_msg("a mask without an open choice");
    return -1;
}

/* Actions by the masks alone; what an operation does not ask is nonsense. */
static void draw_actions(player *p)
{
    const esper_grow_env_shape *s = &p->shape;

    for (uint32_t i = 0; i < s->n_envs; i++) {
        int32_t *a = p->actions + i * s->n_heads, op, slot;

        for (uint32_t h = 0; h < s->n_heads; h++)
            a[h] = (int32_t)draw(p, 2000) - 1000;
        op = a[ESPER_HEAD_OP] = draw_open(p, p->shown.mask_op + i * s->n_ops, s->n_ops);
        p->n_ops[op]++;
        if (op == ESPER_SLOT_OP_WAIT)
            continue;
        slot = a[ESPER_HEAD_SLOT] =
            draw_open(p, p->shown.mask_slot + (i * s->n_ops + (uint32_t)op) * s->n_slots, s->n_slots);
        a[ESPER_HEAD_BLUEPRINT] =
            op == ESPER_SLOT_OP_GERMINATE
                ? draw_open(p, p->shown.mask_blueprint + (i * s->n_slots + (uint32_t)slot) * s->n_blueprints,
                            s->n_blueprints)
                : -7;
        a[ESPER_HEAD_STYLE] =
            op == ESPER_SLOT_OP_SET_ALPHA_TARGET
                ? draw_open(p, p->shown.mask_style + (i * s->n_slots + (uint32_t)slot) * s->n_styles, s->n_styles)
                : (int32_t)draw(p, s->n_styles);
        a[ESPER_HEAD_TEMPO] = (int32_t)draw(p, ESPER_N_TEMPOS);
        a[ESPER_HEAD_TARGET] = (int32_t)draw(p, ESPER_N_TARGETS);
        a[ESPER_HEAD_SPEED] = (int32_t)draw(p, ESPER_N_SPEEDS);
        a[ESPER_HEAD_CURVE] = (int32_t)draw(p, ESPER_N_ALPHA_CHOICES);
    }
}

static void check_shown(player *p)
{
    const esper_grow_env_shape *s = &p->shape;

    for (uint32_t i = 0; i < s->n_envs * s->n_features; i++)
        assert_true(isfinite(p->shown.features[i]));
    for (uint32_t i = 0; i < s->n_envs; i++) {
        double sum = 0.0;

        for (uint32_t k = 0; k < s->n_parts; k++)
            sum += p->shown.parts[i * s->n_parts + k];
        assert_true(fabs(sum - p->shown.reward[i]) < 1e-9 * (1.0 + fabs(sum)));
        assert_int_equal(p->shown.mask_op[i * s->n_ops], 1);
        assert_true(p->shown.params[i] >= s->params_host);
        p->n_accepted += p->shown.accepted[i];
    }
}

/* ------------------------------------------------------------------------------------------------ the learner's */

/* What a learner's decision was worth before it is normalised, and the observation that it was made from. */
typedef struct pupil {
    school  school;
    double  reward[N_ENVS][EPOCHS];
    bool    undone[N_ENVS][EPOCHS];
    int     n[N_ENVS];
    uint64_t weights[N_ENVS];
} pupil;

static esper_status pupil_decide(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    pupil *self = context;

    return school_decide(&self->school, asks, n, stream);
}

static esper_status pupil_settle(void *context, int env, const esper_env_look *look)
{
    pupil *self = context;
    int decided = esper_fleet_episode(self->school.stage.fleet, env).n_steps;

    if (decided > self->n[env]) {
        bool undone = look->n_rollbacks > 0 || look->stopped;

        self->reward[env][self->n[env]] = undone ? ESPER_GROWTH_PENALTY : esper_growth_reward(look->growth)->total;
        self->undone[env][self->n[env]++] = undone;
        self->weights[env] = slab_hash(&look->network->slab, 0);
    }
    return school_settle(&self->school, env, look);
}

/* A fleet with a learner, on the engine of an environment of its own: the same configuration by construction. */
static void pupil_open(pupil *self, player *engine)
{
    school *c = &self->school;
    esper_learned_identity identity;

    memset(self, 0, sizeof(*self));
    c->stage.config = engine->env->config;
    set_keys(&c->stage.config, "policy_width = 8\nppo_chunk = 4\nppo_batch = 4\n");
    c->stage.engine = engine->env->engine;
    check_good(esper_fleet_open(&(esper_fleet_desc){.engine = c->stage.engine, .n_envs = N_ENVS}, &c->stage.fleet));
    identity = school_identity(&c->stage);
    esper_ranks_init(&c->ranks, NULL);
    check_good(esper_learner_open(&(esper_learner_desc){.backend = c->stage.engine->backend,
                                                        .config = &c->stage.config,
                                                        .identity = &identity,
                                                        .ranks = &c->ranks,
                                                        .n_envs = N_ENVS,
                                                        .n_steps = EPOCHS},
                                  &c->learner));
}

static void pupil_play(pupil *self, uint64_t number)
{
    esper_fleet_mind mind = {.context = self, .decide = pupil_decide, .settle = pupil_settle};

    memset(self->n, 0, sizeof(self->n));
    check_good(esper_fleet_begin(self->school.stage.fleet, number));
    esper_learner_begin(self->school.learner, number);
    check_good(esper_fleet_play(self->school.stage.fleet, EPOCHS, true, &mind, NULL));
}

static void pupil_close(pupil *self)
{
    esper_fleet_close(self->school.stage.fleet);
    esper_learner_close(self->school.learner);
    esper_ranks_fini(&self->school.ranks);
}

/* A round of the learner's decisions again: rewards, their parts, what was seen and the outcome. */
static void check_round(const pupil *theirs, player *p)
{
    const esper_rollout *r = esper_learner_rollout(theirs->school.learner);
    const esper_grow_env_shape *s = &p->shape;

    for (int t = 0; t < EPOCHS; t++) {
        for (int i = 0; i < N_ENVS; i++) {
            size_t at = esper_rollout_at(r, i, t);

            memcpy(p->actions + (size_t)i * s->n_heads, r->actions + at * ESPER_N_HEADS, s->n_heads * sizeof(int32_t));
            assert_memory_equal(p->shown.blueprints + (size_t)i * s->n_slots, r->blueprints + at * s->n_slots,
                                s->n_slots * sizeof(int32_t));
            for (int op = 0; op < ESPER_N_SLOT_OPS; op++)
                assert_int_equal(p->shown.mask_op[i * ESPER_N_SLOT_OPS + op],
                                 r->masks[at * ESPER_N_HEADS + ESPER_HEAD_OP] >> op & 1u);
        }
        check_good(esper_grow_env_step(p->env, p->actions, &p->shown));
        for (int i = 0; i < N_ENVS; i++) {
            size_t at = esper_rollout_at(r, i, t);
            const double *parts = p->shown.parts + (size_t)i * s->n_parts, *wanted = r->parts + at * s->n_parts;

            if (!same_real(p->shown.reward[i], theirs->reward[i][t]))
                fail_msg("environment %d, decision %d: %.17g, and the learner had %.17g", i, t, p->shown.reward[i],
                         theirs->reward[i][t]);
            for (uint32_t k = 0; k < s->n_parts && !theirs->undone[i][t]; k++) /* a rollback forfeits parts of before */
                assert_true(same_real(parts[k], wanted[k]) || wanted[ESPER_PART_ROLLBACK] != 0.0);
            assert_int_equal(p->shown.effective_op[i], r->effective_ops[at]);
            assert_int_equal(p->shown.accepted[i], r->accepted[at]);
            assert_int_equal(p->shown.rolled_back[i], theirs->undone[i][t]);
            assert_int_equal(p->shown.terminated[i], t + 1 == EPOCHS);
        }
    }
}

static void play_as_the_learner(const char *more, int n_rounds)
{
    pupil *theirs = malloc(sizeof(*theirs));
    uint64_t n_germinated = 0;
    player p;

    assert_non_null(theirs);
    player_open(&p, more, N_ENVS);
    pupil_open(theirs, &p);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    for (int round = 0; round < n_rounds; round++) {
        pupil_play(theirs, (uint64_t)(round * N_ENVS));
        for (int i = 0; i < N_ENVS; i++) {
            esper_episode wanted = esper_fleet_episode(theirs->school.stage.fleet, i);

            assert_true(p.shown.seed[i] == wanted.seed);
            n_germinated += (uint64_t)wanted.n_germinated;
        }
        check_round(theirs, &p);
        for (uint32_t i = 0; i < N_ENVS; i++) {
            esper_episode wanted = esper_fleet_episode(theirs->school.stage.fleet, (int)i);
            esper_grow_env_episode got = {.size = sizeof(got)};

            check_good(esper_grow_env_episode_get(p.env, i, &got));
            assert_true(same_real(got.total_reward, wanted.total_reward));
            assert_true(same_real(got.accuracy_final, wanted.accuracy_final));
            assert_true(same_real(got.accuracy_best, wanted.accuracy_best));
            assert_true(got.seed == wanted.seed && got.params == wanted.params);
            assert_int_equal(got.n_kept, wanted.n_kept);
            assert_int_equal(got.n_decisions, EPOCHS);
        }
    }
    assert_true(n_germinated > 0); /* or there is little to compare */
    pupil_close(theirs);
    player_close(&p);
    free(theirs);
}

static void rewards_are_the_learners(void **state)
{
    (void)state;
    play_as_the_learner("", effort(3, 2));
    play_as_the_learner("reward = shaped\nseed = 9\n", effort(2, 1));
}

static void rewards_are_the_learners_where_the_governor_goes_back(void **state)
{
    (void)state;
    play_as_the_learner("inject = 12:host:param:nan\n", 2);
}

/* ------------------------------------------------------------------------------------------------ any legal steps */

static void legal_steps_go_on(void **state)
{
    enum { LONG = 15 }; /* decisions of an episode: time for all operations */
    int n_steps = LONG * effort(24, 1), n_ended = 0;
    player p;

    (void)state;
    player_open(&p, "epochs = 15\ngate_epochs = 1\ntrial_share = 1\ntrial_steps = 4\n", 5);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    check_shown(&p);
    for (int t = 0; t < n_steps; t++) {
        draw_actions(&p);
        check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
        check_shown(&p);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(p.shown.terminated[i], (t + 1) % LONG == 0);
            n_ended += p.shown.terminated[i];
        }
    }
    assert_int_equal(n_ended, n_steps / LONG * 5);
    for (int op = 0; op < ESPER_N_SLOT_OPS && !is_brief(); op++)
        if (p.n_ops[op] == 0)
            fail_msg("%s was never open", esper_slot_op_name(op));
    assert_true(p.n_accepted > 0);
    player_close(&p);
}

/* Environment i plays the episodes i, i + n, ... of the run, whatever others do; a seed that is named comes first. */
static void episodes_have_their_seeds(void **state)
{
    static const uint64_t named[3] = {71, 72, 73};
    static const uint8_t second[3] = {0, 1, 0};
    float *before;
    size_t bytes;
    player p;

    (void)state;
    player_open(&p, "seed = 5\n", 3);
    bytes = 3 * p.shape.n_features * sizeof(float);
    before = malloc(bytes);
    assert_non_null(before);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    for (uint64_t i = 0; i < 3; i++)
        assert_true(p.shown.seed[i] == esper_fleet_seed(5, i));
    memcpy(before, p.shown.features, bytes);
    check_good(esper_grow_env_step(p.env, p.actions, &p.shown)); /* all wait */
    check_good(esper_grow_env_reset(p.env, second, NULL, &p.shown));
    assert_true(p.shown.seed[1] == esper_fleet_seed(5, 4) && p.shown.seed[0] == esper_fleet_seed(5, 0));
    for (int t = 1; t < 6; t++) { /* the first and the third end before the second does */
        check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
        assert_int_equal(p.shown.terminated[0], t == 5);
        assert_int_equal(p.shown.terminated[1], 0);
    }
    assert_true(p.shown.seed[0] == esper_fleet_seed(5, 3) && p.shown.seed[2] == esper_fleet_seed(5, 5));
    check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
    assert_int_equal(p.shown.terminated[1], 1);
    assert_true(p.shown.seed[1] == esper_fleet_seed(5, 7));
    check_good(esper_grow_env_reset(p.env, NULL, named, &p.shown));
    assert_true(p.shown.seed[0] == 71 && p.shown.seed[2] == 73);
    check_good(esper_grow_env_seek(p.env, 5, 0)); /* and the same is seen again */
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    assert_memory_equal(before, p.shown.features, bytes);
    free(before);
    player_close(&p);
}

/* ------------------------------------------------------------------------------------------------ the governor */

static void one_that_is_stopped_begins_anew(void **state)
{
    player p;

    (void)state;
    player_open(&p, "inject = 8:host:param:nan\nmax_rollbacks = 0\n",
                2); /* in the second of six epochs, of every episode */
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    for (int t = 0; t < 3; t++) {
        esper_grow_env_episode ended = {.size = sizeof(ended)};
        uint64_t seed = p.shown.seed[1];

        check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
        assert_int_equal(p.shown.terminated[1], 1);
        assert_int_equal(p.shown.rolled_back[1], 1);
        assert_true(p.shown.reward[1] == ESPER_GROWTH_PENALTY);
        check_shown(&p);
        check_good(esper_grow_env_episode_get(p.env, 1, &ended));
        assert_int_equal(ended.stopped, 1);
        assert_int_equal(ended.n_decisions, 1);
        assert_true(ended.seed == seed && p.shown.seed[1] != seed);
    }
    player_close(&p);
}

/* It never shows a view: nothing can be decided, and nothing is paid. */
static void one_that_is_stopped_at_once_can_be_stepped(void **state)
{
    player p;

    (void)state;
    player_open(&p, "inject = 2:host:param:nan\nmax_rollbacks = 0\n", 2);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    assert_true(isnan(p.shown.accuracy[0]));
    for (uint32_t op = 1; op < p.shape.n_ops; op++)
        assert_int_equal(p.shown.mask_op[op], 0);
    p.actions[ESPER_HEAD_OP] = ESPER_SLOT_OP_GERMINATE;
    check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG, "environment 0|germinate|masked");
    p.actions[ESPER_HEAD_OP] = ESPER_SLOT_OP_WAIT;
    for (int t = 0; t < 3; t++) {
        check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
        assert_true(p.shown.reward[0] == 0.0);
        assert_int_equal(p.shown.terminated[0], 1);
        assert_int_equal(p.shown.rolled_back[0], 0);
    }
    player_close(&p);
}

/* ------------------------------------------------------------------------------------------------ what is refused */

static void masked_actions_move_nothing(void **state)
{
    player p, q;

    (void)state;
    player_open(&p, "", 2);
    player_open(&q, "", 2);
    check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_STATE, "reset");
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    check_good(esper_grow_env_reset(q.env, NULL, NULL, &q.shown));
    for (int k = 0; k < 2; k++) { /* one that asks too much keeps the other from moving */
        int32_t *a = p.actions + (size_t)k * p.shape.n_heads;

        a[ESPER_HEAD_OP] = ESPER_SLOT_OP_FOSSILIZE;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG,
                    k == 0 ? "environment 0|op 4 (fossilize)|masked" : "environment 1|op 4 (fossilize)|masked");
        a[ESPER_HEAD_OP] = 7;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG, "op is 7|0 to 6");
        a[ESPER_HEAD_OP] = INT32_MIN;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG, "op is -2147483648");
        a[ESPER_HEAD_OP] = ESPER_SLOT_OP_GERMINATE;
        a[ESPER_HEAD_BLUEPRINT] = 0;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG,
                    "blueprint 0 (noop) is masked for op 1 (germinate) in slot r0c0");
        a[ESPER_HEAD_SLOT] = 64;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG, "slot is 64");
        a[ESPER_HEAD_SLOT] = 0;
        a[ESPER_HEAD_BLUEPRINT] = draw_open(&p, p.shown.mask_blueprint, p.shape.n_blueprints);
        a[ESPER_HEAD_TEMPO] = -1;
        check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_ARG, "tempo is -1");
        a[ESPER_HEAD_OP] = ESPER_SLOT_OP_WAIT;
    }
    check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
    check_good(esper_grow_env_step(q.env, q.actions, &q.shown));
    assert_memory_equal(p.shown.features, q.shown.features, 2 * p.shape.n_features * sizeof(float));
    player_close(&p);
    player_close(&q);
}

static void what_cannot_be_opened_says_why(void **state)
{
    static const struct {
        const char *task, *lines;
        esper_status status;
        const char *words;
    } cases[] = {
        {"synht", "", ESPER_E_CONFIG, "synht|synth"},
        {"no/such/folder", "", ESPER_E_NOTFOUND, "no/such/folder"},
        {"%s%n%s", "", ESPER_E_CONFIG, "%s%n%s"},
        {"'; DROP TABLE runs; --", "", ESPER_E_CONFIG, "DROP TABLE"},
        {"synth", "epochs = 1\n", ESPER_E_CONFIG, "2 or more"},
        {"synth", "epohcs = 3\n", ESPER_E_CONFIG, "epohcs|epochs"},
        {"synth", "epochs = nan\n", ESPER_E_CONFIG, "epochs"},
        {"synth", "policy_cmd = touch stolen\n", ESPER_E_CONFIG, "policy_cmd|decides"},
        {"synth", "policy = random\n", ESPER_E_CONFIG, "policy|decides"},
        {"synth", "envs = 3\n", ESPER_E_CONFIG, "n_envs"},
        {"synth", "run_dir = x\n", ESPER_E_CONFIG, "run_dir"},
        {"synth", "ppo_lr = 0.1\n", ESPER_E_CONFIG, "ppo-lr"},
        {"synth", "context = 8\n", ESPER_E_CONFIG, "context"},
        {"fashion_fast", "data = not/here\n", ESPER_E_NOTFOUND, "not/here"},
    };
    uint64_t live = live_blocks();
    esper_grow_env_options options;
    esper_grow_env *env = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_status status = try_open(cases[i].task, cases[i].lines, 2, &env);

        if (status == ESPER_OK || (status != cases[i].status && status != ESPER_E_FORMAT && status != ESPER_E_IO))
            fail_msg("%s %s: %s (%s)", cases[i].task, cases[i].lines, esper_status_name(status), esper_last_error());
        check_fails(status, status, cases[i].words);
        assert_null(env);
        assert_true(live_blocks() == live);
    }
    assert_int_equal(access("stolen", F_OK), -1);
    check_fails(try_open("synth", "", 0, &env), ESPER_E_CONFIG, "envs");
    check_fails(try_open("synth", "", 1025, &env), ESPER_E_CONFIG, "envs");
    check_fails(esper_grow_env_open(NULL, &env), ESPER_E_ARG, "options");
    esper_grow_env_options_init(&options);
    check_fails(esper_grow_env_open(&options, &env), ESPER_E_ARG, "task");
    options.task = "synth";
    options.n_settings = 1;
    check_fails(esper_grow_env_open(&options, &env), ESPER_E_ARG, "settings");
    options.settings = &(esper_grow_env_setting){NULL, "1"};
    check_fails(esper_grow_env_open(&options, &env), ESPER_E_ARG, "key");
    options.settings = &(esper_grow_env_setting){"epochs", NULL};
    check_fails(esper_grow_env_open(&options, &env), ESPER_E_ARG, "value");
    options.size = 3;
    check_fails(esper_grow_env_open(&options, &env), ESPER_E_ARG, "options");
    esper_grow_env_close(NULL);
}

static void calls_are_checked(void **state)
{
    static const uint8_t first[2] = {1, 0};
    esper_grow_env_episode episode = {.size = sizeof(episode)};
    esper_grow_env_arrays small = {.size = 8};
    char text[64];
    player p;
    uint32_t n = 0;

    (void)state;
    player_open(&p, "", 2);
    check_fails(esper_grow_env_reset(p.env, first, NULL, &p.shown), ESPER_E_STATE, "reset all");
    check_fails(esper_grow_env_reset(p.env, NULL, NULL, &small), ESPER_E_ARG, "size");
    check_fails(esper_grow_env_reset(NULL, NULL, NULL, &p.shown), ESPER_E_ARG, "no environment");
    check_fails(esper_grow_env_step(p.env, NULL, &p.shown), ESPER_E_ARG, "actions");
    check_fails(esper_grow_env_episode_get(p.env, 0, &episode), ESPER_E_STATE, "no episode");
    check_fails(esper_grow_env_episode_get(p.env, 2, &episode), ESPER_E_ARG, "2 of 2");
    episode.size = 0;
    check_fails(esper_grow_env_episode_get(p.env, 0, &episode), ESPER_E_ARG, "size");
    for (uint32_t head = 0; esper_grow_env_head(p.env, head, text, sizeof(text)) == ESPER_OK; head++, n++) {
        uint32_t k = 0;

        while (esper_grow_env_choice(p.env, head, k, text, sizeof(text)) == ESPER_OK)
            k++;
        assert_int_equal(k, esper_head_size((int)head, (int)p.shape.n_slots));
    }
    assert_int_equal(n, p.shape.n_heads);
    check_good(esper_grow_env_choice(p.env, ESPER_HEAD_SLOT, 0, text, sizeof(text)));
    assert_string_equal(text, "r0c0");
    check_good(esper_grow_env_choice(p.env, ESPER_HEAD_TARGET, 1, text, sizeof(text)));
    assert_string_equal(text, "0.7");
    check_good(esper_grow_env_feature(p.env, 0, text, sizeof(text)));
    assert_string_equal(text, "epoch");
    check_good(esper_grow_env_feature(p.env, ESPER_FEATURES_RUN + ESPER_FEATURES_SLOT + 1, text, sizeof(text)));
    assert_string_equal(text, "r0c1.stage[0]");
    check_fails(esper_grow_env_feature(p.env, p.shape.n_features, text, sizeof(text)), ESPER_E_ARG, "feature");
    check_good(esper_grow_env_part(p.env, ESPER_PART_ROLLBACK, text, 5));
    assert_string_equal(text, "roll");
    check_fails(esper_grow_env_part(p.env, p.shape.n_parts, text, sizeof(text)), ESPER_E_ARG, "part");
    assert_int_equal(esper_grow_env_asked(7), 0);
    assert_int_equal(esper_grow_env_asked(0), 1 << ESPER_HEAD_OP);
    player_close(&p);
}

/* ------------------------------------------------------------------------------------------------ processes, threads */

static void a_child_cannot_play(void **state)
{
    player p;
    int status = -1;
    pid_t child;

    (void)state;
    player_open(&p, "", 2);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool refused = esper_grow_env_step(p.env, p.actions, &p.shown) == ESPER_E_STATE &&
                       strstr(esper_last_error(), "another process") != NULL;

        esper_grow_env_close(p.env); /* and this neither waits nor crashes */
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    check_good(esper_grow_env_step(p.env, p.actions, &p.shown)); /* the parent's goes on */
    player_close(&p);
}

static void *stop_soon(void *context)
{
    player *p = context;

    for (int i = 0; i < 4000 && !atomic_load(&p->env->busy); i++)
        usleep(1000);
    while (atomic_load(&p->env->busy)) { /* as whoever waits for it would */
        esper_grow_env_stop(p->env);
        usleep(1000);
    }
    return NULL;
}

static void a_step_can_be_stopped(void **state)
{
    esper_status status;
    pthread_t thread;
    double began;
    player p;

    (void)state;
    player_open(&p, "max_steps = 100000\nchannels = 64\nbatch = 64\n", 4); /* an epoch of many seconds */
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &p), 0);
    began = esper_clock_seconds();
    status = esper_grow_env_reset(p.env, NULL, NULL, &p.shown);
    assert_int_equal(pthread_join(thread, NULL), 0);
    check_fails(status, ESPER_E_STOPPED, "stopped");
    assert_true(esper_clock_seconds() - began < 20.0);
    check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_STATE, "reset");
    player_close(&p);
}

static void one_thread_at_a_time(void **state)
{
    player p;

    (void)state;
    player_open(&p, "", 1);
    atomic_store(&p.env->busy, true); /* another thread is inside */
    check_fails(esper_grow_env_reset(p.env, NULL, NULL, &p.shown), ESPER_E_STATE, "another thread");
    check_fails(esper_grow_env_seek(p.env, 1, 0), ESPER_E_STATE, "another thread");
    atomic_store(&p.env->busy, false);
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    player_close(&p);
}

/* ------------------------------------------------------------------------------------------------ memory */

static esper_status try_all(void *context)
{
    esper_grow_env_arrays nothing = {.size = sizeof(nothing)};
    int32_t waits[2 * ESPER_N_HEADS] = {0};
    esper_grow_env *env = NULL;
    esper_status status;

    (void)context;
    ESPER_TRY(try_open("synth",
                       "threads = 1\nbatch = 4\nchannels = 1\nblocks = 2\nkernel = 1\nmax_steps = 1\nepochs = 2\n"
                       "valid_fraction = 0.01\n",
                       2, &env));
    status = esper_grow_env_reset(env, NULL, NULL, &nothing);
    for (int t = 0; t < 2 && status == ESPER_OK; t++)
        status = esper_grow_env_step(env, waits, &nothing);
    if (status != ESPER_OK) /* and it is used again, once there is memory */
        assert_int_equal(esper_grow_env_step(env, waits, &nothing), ESPER_E_STATE);
    esper_grow_env_close(env);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    fail_each("open, reset, step", try_all, NULL, NULL, (uint64_t)effort(2, 29));
}

static void it_goes_on_after_a_failure(void **state)
{
    player p;

    (void)state;
    player_open(&p, "", 2);
    esper_mem_fail_at(1);
    assert_int_equal(esper_grow_env_reset(p.env, NULL, NULL, &p.shown), ESPER_E_NOMEM);
    esper_mem_fail_at(0);
    check_fails(esper_grow_env_step(p.env, p.actions, &p.shown), ESPER_E_STATE, "reset");
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    check_good(esper_grow_env_step(p.env, p.actions, &p.shown));
    player_close(&p);
}

static void seeds_of_a_failure_are_not_kept(void **state)
{
    static const uint8_t first[2] = {1, 0};
    static const uint64_t named[2] = {71, 72};
    player p;

    (void)state;
    player_open(&p, "seed = 5\n", 2);
    check_fails(esper_grow_env_reset(p.env, first, named, &p.shown), ESPER_E_STATE, "reset all");
    check_good(esper_grow_env_reset(p.env, NULL, NULL, &p.shown));
    for (uint64_t i = 0; i < 2; i++)
        assert_true(p.shown.seed[i] == esper_fleet_seed(5, i));
    player_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewards_are_the_learners),
        cmocka_unit_test(rewards_are_the_learners_where_the_governor_goes_back),
        cmocka_unit_test(legal_steps_go_on),
        cmocka_unit_test(episodes_have_their_seeds),
        cmocka_unit_test(one_that_is_stopped_begins_anew),
        cmocka_unit_test(one_that_is_stopped_at_once_can_be_stepped),
        cmocka_unit_test(masked_actions_move_nothing),
        cmocka_unit_test(what_cannot_be_opened_says_why),
        cmocka_unit_test(calls_are_checked),
        cmocka_unit_test(a_child_cannot_play),
        cmocka_unit_test(a_step_can_be_stopped),
        cmocka_unit_test(one_thread_at_a_time),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(it_goes_on_after_a_failure),
        cmocka_unit_test(seeds_of_a_failure_are_not_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
