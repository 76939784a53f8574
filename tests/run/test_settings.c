/* ctest: timeout=300 cost=30 labels=noasan */
/* Every setting, on images and on text, in runs that train, grow and learn. Where the table says that it can have an effect,
 * another value changes what it names: the bits of a run, or nothing but time, files or words. Everywhere else a flag is refused,
 * a variable is told by name, and the value indeed changes nothing. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/rng.h"
#include "engine/helpers.h"
#include "run/learn.h"
#include "run/settings.h"

/* ------------------------------------------------------------------------------------------------ the settings */

enum {
#define X(section, name, kind, preset, range, unit, jobs, needs, effect, help) KEY_##name,
    ESPER_CONFIG_KEY_LIST(X)
#undef X
};

/* A value other than the usual one, and what must be set besides, so that its effect shows. */
typedef struct trial {
    const char *value;
    const char *with;
    const char *text_value; /* on text; NULL = the same */
    const char *table_value; /* on tables, likewise */
    bool alone_vain;        /* without `with` it has no effect in one run at least that could do with it */
    const char *fault;      /* what brings it out that changes only what becomes of a fault */
    const char *elsewhere;  /* the test that sees what it changes, where these runs cannot: time, files, words, ranks */
} trial;

#define BY_CHANCE "policy = random\nepochs = 20\n"
#define FALLING   "schedule = cosine\n"
#define ADAMW     "optimizer = adamw\n"
/* Whatever comes of a trial, what it costs is seen: the rate goes by what is spent. */
#define TRYING "policy = trials\nschedule = cosine\nepochs = 1000\ntrial_first = 0\ntrial_share = 0.9\n"

/* A key that is missing here fails the test. */
static const trial trials[ESPER_CONFIG_N_KEYS] = {
    [KEY_seed] = {"7", ""},
    [KEY_threads] = {"2", "", .elsewhere = "cli/test_compare.sh"},
    [KEY_backend] = {"null", ""},
    [KEY_precision] = {"tf32", "", .elsewhere = "cli/test_precision.sh"},
    [KEY_run_dir] = {"elsewhere", "", .elsewhere = "cli/test_runs.sh"},
    [KEY_checkpoint_every] = {"2", "", .elsewhere = "replay/grow_kill.sh"},
    [KEY_progress] = {"none", "", .elsewhere = "ui/test_progress.sh"},
    [KEY_log_level] = {"error", "", .elsewhere = "cli/test_settings.sh"},
    [KEY_log] = {"csv", "", .elsewhere = "cli/test_logs.sh"},
    [KEY_epochs] = {"3", ""},
    [KEY_length] = {"epochs", ""},
    [KEY_flops] = {"1", ""},
    [KEY_batch] = {"5", ""},
    [KEY_max_steps] = {"3", ""},
    [KEY_optimizer] = {"adamw", "optimizer = sgd\n"},
    [KEY_lr] = {"0.02", ""},
    [KEY_momentum] = {"0.5", "optimizer = sgd\n", NULL, .alone_vain = true},
    [KEY_weight_decay] = {"0.2", ""},
    [KEY_beta1] = {"0.5", ADAMW, NULL, .alone_vain = true},
    [KEY_beta2] = {"0.5", ADAMW, NULL, .alone_vain = true},
    [KEY_adam_eps] = {"0.5", ADAMW, NULL, .alone_vain = true},
    [KEY_clip] = {"0.01", "optimizer = sgd\n"},
    [KEY_schedule] = {"cosine", ""},
    [KEY_warmup] = {"1", ""},
    [KEY_lr_min] = {"0.01", FALLING, NULL, .alone_vain = true},
    [KEY_fall] = {"0.9", "schedule = hold\n", NULL, .alone_vain = true},
    [KEY_policy] = {"none", ""},
    [KEY_policy_cmd] = {"sh wait.sh", ""},
    [KEY_policy_deadline] = {"90", "policy_cmd = sh wait.sh\n", NULL, .alone_vain = true,
                             .elsewhere = "cli/test_grow.sh"},
    [KEY_decisions] = {"later.txt", "policy = scripted\ndecisions = soon.txt\n", NULL, .alone_vain = true},
    [KEY_gates] = {"strict", ""},
    [KEY_gate_epochs] = {"3", "epochs = 16\n"},
    [KEY_embargo] = {"1", "policy = scripted\ndecisions = again.txt\nepochs = 20\n"},
    [KEY_max_seeds] = {"1", "policy = random\nepochs = 40\n"},
    [KEY_max_params] = {"200", BY_CHANCE, "3900", .table_value = "600"},
    [KEY_max_kib] = {"0.8", BY_CHANCE, "15.3", .table_value = "2.4"},
    [KEY_max_flops] = {"149000", BY_CHANCE, "60500", .table_value = "1100"},
    [KEY_blueprints] = {"norm", ""},
    [KEY_add_blueprints] = {"own = conv w", TRYING, "own = conv w; rows = linear w bare"},
    [KEY_trial_share] = {"0", TRYING, NULL, .alone_vain = true},
    [KEY_trial_first] = {"0.3", TRYING, NULL, .alone_vain = true},
    [KEY_trial_rounds] = {"1", TRYING, NULL, .alone_vain = true},
    [KEY_trial_steps] = {"20", TRYING, NULL, .alone_vain = true},
    [KEY_trial_seeds] = {"3", TRYING "epochs = 500\ntrial_price = 0\nvalid_fraction = 0.2\nmax_steps = 20\ntrial_rounds = 1\n", NULL,
                         .alone_vain = true},
    [KEY_trial_price] = {"100", TRYING, NULL, .alone_vain = true},
    [KEY_plateau] = {"0", ""},
    [KEY_plateau_epochs] = {"3", ""},
    [KEY_plant] = {"r0c0:norm", ""},
    [KEY_incubation] = {"straight", ""},
    [KEY_birth] = {"small", ""},
    [KEY_seed_lr] = {"0.5", ""},
    [KEY_attribution] = {"20", "attribution = 0\nbatch = 32\nvalid_fraction = 0.2\nepochs = 14\n"},
    [KEY_reward] = {"loss", ""},
    [KEY_reward_weights] = {"rent_weight=3", "reward = escrow\n"}, /* a gain is reckoned where there is a twin */
    [KEY_inject] = {"4:host:param:nan", ""},
    [KEY_rounds] = {"1", ""},
    [KEY_envs] = {"1", ""},
    [KEY_host_seeds] = {"1", ""},
    [KEY_patience] = {"1", "rounds = 16\nepochs = 8\nseed = 3\nlr = 0.5\n"},
    [KEY_tasks] = {"synth_table", ""},
    [KEY_curriculum] = {"ladder", "tasks = synth_table\n", .alone_vain = true},
    [KEY_policy_width] = {"16", ""},
    [KEY_ppo_lr] = {"0.01", ""},
    [KEY_ppo_epochs] = {"1", ""},
    [KEY_ppo_chunk] = {"2", ""},
    [KEY_ppo_batch] = {"1", ""},
    [KEY_ppo_clip] = {"0.001", ""},
    [KEY_ppo_kl] = {"1e-9", ""},
    [KEY_ppo_lambda] = {"0.5", ""},
    [KEY_ppo_entropy] = {"0.5", ""},
    [KEY_ppo_entropy_end] = {"0.5", ""},
    [KEY_ppo_floor] = {"2", ""},
    [KEY_guard] = {"false", "", .fault = "lr = 1000\nclip = 0\n"},
    [KEY_snapshot_every] = {"3", "", .fault = "inject = 9:host:param:nan\n"},
    [KEY_guard_checksum] = {"true", "", .fault = "inject = 9:host:param:mantissa\n"},
    [KEY_max_rollbacks] = {"1", "", .fault = "inject = 9:host:param:nan,19:host:param:nan\n"},
    [KEY_rank_deadline] = {"90", "", .elsewhere = "engine/test_ranks_lost.sh"},
    [KEY_join_deadline] = {"90", "", .elsewhere = "dist/test_join.sh"},
    [KEY_comm] = {"self", "", .elsewhere = "cli/test_settings.sh"},
    [KEY_sync_norm] = {"true", "", .elsewhere = "engine/test_ranks.sh"},
    [KEY_data] = {"other.txt", ""},
    [KEY_image_size] = {"8x8", "", .elsewhere = "cli/test_own_images.sh"},
    [KEY_grey] = {"true", "", .elsewhere = "cli/test_own_images.sh"},
    [KEY_skip_bad] = {"true", "", .elsewhere = "cli/test_own_images.sh"},
    [KEY_target] = {"b", "", .elsewhere = "cli/test_own_table.sh"},
    [KEY_cache] = {"kept", "", .elsewhere = "cli/test_own_images.sh"},
    [KEY_valid_fraction] = {"0.2", ""},
    [KEY_train_limit] = {"9", "max_steps = 0\ntrain_limit = 30\n"},
    [KEY_classes] = {"3", ""},
    [KEY_data_seed] = {"9", ""},
    [KEY_crop] = {"2", ""},
    [KEY_flip] = {"true", ""},
    [KEY_cutout] = {"8", ""},
    [KEY_host] = {"conv 3 | pool | mean | linear", "", "embed 8 | [layer 2]x2 | linear", "linear 9 | linear"},
    [KEY_slots] = {"r0c0", "", "r0c1"},
    [KEY_stack] = {"1", "plant = r0c0:norm,r0c0_2:norm\n"},
    [KEY_widen] = {"true", "plant = wide0:wide\n"},
    [KEY_blocks] = {"3", ""},
    [KEY_channels] = {"3", ""},
    [KEY_kernel] = {"1", ""},
    [KEY_pools] = {"1", ""},
    [KEY_layers] = {"4", ""},
    [KEY_width] = {"16", ""},
    [KEY_heads] = {"4", ""},
    [KEY_context] = {"6", ""},
    [KEY_segments] = {"1", "layers = 3\n"}, /* which two segments do not divide */
    [KEY_dropout] = {"0.3", ""},
};

/* ------------------------------------------------------------------------------------------------ the runs */

#define FEW "valid_fraction = 0.02\ncheckpoint_every = 0\n"

/* Families of tasks. The last reads files, for the one setting that names them. */
static const struct {
    const char *task, *lines;
    bool text;
} families[] = {
    /* tables come before what reads files */
    {"synth", SMALL_CNN FEW "epochs = 2\n", false},
    {"synth_text", SMALL_TEXT FEW "epochs = 2\n", true},
    {"synth_table", "threads = 1\nlayers = 3\nwidth = 8\nbatch = 8\nmax_steps = 5\n" FEW "epochs = 2\n", false},
    {"chars", SMALL_TEXT "data = some.txt\nvalid_fraction = 0.1\n", true},
};

/* Tables are trained alone: growing and learning go by slots, whatever flows through them. */
enum { N_FAMILIES = sizeof(families) / sizeof(families[0]), ON_FILES = N_FAMILIES - 1, TABLES = ON_FILES - 1 };

#define SOON "gates = permissive\ngate_epochs = 1\n"

static const struct {
    esper_config_job job;
    const char *lines;
} jobs[] = {
    {ESPER_CONFIG_IN_TRAIN, ""},
    {ESPER_CONFIG_IN_GROW, SOON "policy = heuristic\nplateau = 100\nplateau_epochs = 1\nepochs = 9\n"},
    {ESPER_CONFIG_IN_LEARN, SOON "envs = 2\nrounds = 2\npolicy_width = 8\nppo_chunk = 4\nppo_batch = 2\nepochs = 6\n"},
};

enum { N_JOBS = sizeof(jobs) / sizeof(jobs[0]) };

/* A configuration of a family and job, before any flag. */
static esper_config usual_of(int family, int job)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_PRESET, .name = "test"};
    const esper_task *task = task_named(families[family].task);
    esper_config config;

    esper_config_init(&config);
    check_good(esper_task_configure(
        task, jobs[job].job == ESPER_CONFIG_IN_TRAIN ? ESPER_CONFIG_IN_TRAIN : ESPER_CONFIG_IN_GROW, &config));
    lay_over(&config, jobs[job].job, families[family].lines, &source);
    lay_over(&config, jobs[job].job, jobs[job].lines, &source);
    return config;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

#define MIX(hash, value) mix((hash), &(value), sizeof(value))

/* What a policy has learned: its file, but for the head, which tells the configuration. */
static uint64_t mix_policy(uint64_t hash, const char *path)
{
    uint64_t n_head;
    size_t bytes;
    char *text;

    if (path[0] == '\0')
        return hash;
    check_good(esper_file_read(path, 1 << 26, &text, &bytes));
    memcpy(&n_head, text, sizeof(n_head));
    hash = mix(hash, text + sizeof(n_head) + n_head, bytes - sizeof(n_head) - n_head);
    esper_mem_free(text);
    return hash;
}

/* The steps that a run went back to. */
static uint64_t mix_rollbacks(uint64_t hash, const char *run_dir)
{
    static const char word[] = "\"to_step\":";
    char path[ESPER_PATH_CHARS], *text;
    size_t bytes;

    check_good(esper_run_path(run_dir, ESPER_RUN_EVENTS, path));
    check_good(esper_file_read(path, 1 << 26, &text, &bytes));
    for (const char *at = text; (at = strstr(at, word)) != NULL;) {
        at += strlen(word);
        hash = mix(hash, at, strcspn(at, ","));
    }
    esper_mem_free(text);
    return hash;
}

static esper_status play(int family, int job, const esper_config *config, uint64_t *print_out)
{
    const esper_task *task = task_named(families[family].task);
    esper_learn_desc learning = {.task = task, .config = config};
    esper_run_desc training = {.task = task, .config = config, .grows = jobs[job].job == ESPER_CONFIG_IN_GROW};
    uint64_t hash = 14695981039346656037u;

    if (jobs[job].job == ESPER_CONFIG_IN_LEARN) {
        esper_learn_result result;

        ESPER_TRY(esper_learn_run(&learning, &result));
        hash = MIX(hash, result.rounds);
        hash = MIX(hash, result.n_episodes);
        hash = MIX(hash, result.last.total_reward);
        hash = MIX(hash, result.last.accuracy);
        hash = MIX(hash, result.last.params);
        hash = mix_policy(hash, result.policy);
    } else {
        esper_run_result result;

        ESPER_TRY(esper_run_train(&training, &result));
        hash = MIX(hash, result.weight_hash);
        hash = MIX(hash, result.params);
        hash = MIX(hash, result.loss_test);
        hash = MIX(hash, result.last.loss_valid);
        hash = mix_rollbacks(MIX(hash, result.n_rollbacks), result.run_dir);
        if (training.grows)
            hash = MIX(hash, result.total_reward);
    }
    *print_out = hash;
    return ESPER_OK;
}

/* The bits of a run in a directory of its own. Runs that were made before are known by their configuration. */
static esper_status print_of(int family, int job, const esper_config *config, uint64_t *print_out)
{
    enum { MOST = 4096 };
    static struct {
        uint64_t key, print;
    } known[MOST];
    static int n_known, n_dirs;
    char *text = esper_mem_alloc(ESPER_CONFIG_RECORD_CHARS);
    uint64_t key = 14695981039346656037u;
    esper_config_place place = esper_config_place_of(config, KEY_policy_cmd); /* to learning it is not all one */
    esper_config placed = *config;
    esper_status status;

    assert_non_null(text);
    key = mix(key, text, esper_config_write(config, text));
    esper_mem_free(text);
    key = MIX(MIX(MIX(key, family), job), place);
    for (int i = 0; i < n_known; i++)
        if (known[i].key == key) {
            *print_out = known[i].print;
            return ESPER_OK;
        }
    snprintf(placed.run_dir + strlen(placed.run_dir), sizeof(placed.run_dir) - strlen(placed.run_dir), "run-%d",
             n_dirs++);
    status = play(family, job, &placed, print_out);
    if (status == ESPER_E_STATE)
        *print_out = 0; /* a decision that is not legal ends the run */
    else if (status != ESPER_OK)
        return status;
    assert_in_range(n_known, 0, MOST - 1);
    known[n_known].key = key;
    known[n_known++].print = *print_out;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ one of them */

static const esper_config_source by_flag = {.place = ESPER_CONFIG_FLAG}, by_variable = {.place = ESPER_CONFIG_ENVIRON};

static void set_value(esper_config *config, int family, int key, const esper_config_source *source)
{
    const char *other = families[family].text                               ? trials[key].text_value
                        : strcmp(families[family].task, "synth_table") == 0 ? trials[key].table_value
                                                                            : NULL;

    check_good(
        esper_config_set(config, esper_config_key_at(key)->name, other != NULL ? other : trials[key].value, source));
}

static int n_bad; /* all are told before the test fails */

static void fail_at(int family, int job, int key, const char *what)
{
    n_bad++;
    print_error("%s %s, %s = %s: %s\n", esper_config_job_name(jobs[job].job), families[family].task,
                esper_config_key_at(key)->name, trials[key].value, what);
}

static esper_config vain[N_FAMILIES][N_JOBS]; /* everything at once that has no effect there */

/* As a flag it is refused, as a variable told. */
static void check_in_vain(int family, int job, int key, const esper_config *usual, const char *why)
{
    const char *name = esper_config_key_at(key)->name;
    const esper_task *task = task_named(families[family].task);
    char flag[ESPER_CONFIG_NAME_CHARS], variable[ESPER_CONFIG_NAME_CHARS], *said = NULL;
    esper_config flagged = *usual, told = *usual;
    esper_config_use use;
    size_t size;
    esper_log log = {.level = ESPER_LOG_WARN, .stream = open_memstream(&said, &size)};

    esper_config_flag_name(name, flag);
    esper_config_variable_name(name, variable);
    set_value(&flagged, family, key, &by_flag);
    use = esper_settings_use(task, jobs[job].job, &flagged);
    if (esper_config_why_not(&flagged, key, &use, &(const char *){NULL}) != NULL) { /* the flag may be what it needs */
        check_fails(esper_settings_check(&flagged, &flagged, &use, NULL), ESPER_E_CONFIG, flag);
        check_fails(ESPER_E_CONFIG, ESPER_E_CONFIG, why);
        check_fails(ESPER_E_CONFIG, ESPER_E_CONFIG, "esper info config");
    }
    set_value(&told, family, key, &by_variable);
    use = esper_settings_use(task, jobs[job].job, &told);
    check_good(esper_settings_check(&told, &told, &use, &log));
    fclose(log.stream);
    if (strstr(said, variable) == NULL || strstr(said, why) == NULL)
        fail_at(family, job, key, "the environment is not told that this has no effect");
    free(said);
    set_value(&vain[family][job], family, key, &by_variable);
}

/* Whether another value makes another thing of a fault. */
static bool shows_by_fault(int family, int job, int key, const esper_config *usual)
{
    esper_config struck = *usual, other;
    uint64_t before = 0, after = 0;
    esper_status ended, ended_other;

    lay_over(&struck, jobs[job].job, trials[key].fault, &by_flag);
    other = struck;
    set_value(&other, family, key, &by_flag);
    ended = print_of(family, job, &struck, &before);
    ended_other = print_of(family, job, &other, &after);
    return ended != ESPER_E_CONFIG && ended_other != ESPER_E_CONFIG && (ended != ended_other || before != after);
}

/* Another value changes bits, or none, as the table says. Some values are refused where the key is not. Returns whether what the
 * setting names was seen to change: of one that changes no bits, that these are the same shows nothing. */
static bool check_matters(int family, int job, int key, const esper_config *usual)
{
    bool changes = esper_config_effect_of(key) == ESPER_CONFIG_CHANGES_BITS;
    esper_config other = *usual;
    uint64_t before, after;
    esper_config_use use;

    set_value(&other, family, key, &by_flag);
    use = esper_settings_use(task_named(families[family].task), jobs[job].job, &other);
    check_good(esper_settings_check(&other, &other, &use, NULL));
    if (print_of(family, job, usual, &before) != ESPER_OK) { /* without it the host does not open at all */
        if (strstr(esper_last_error(), esper_config_key_at(key)->name) == NULL)
            fail_at(family, job, key, esper_last_error());
        check_good(print_of(family, job, &other, &after));
        return true;
    }
    if (print_of(family, job, &other, &after) == ESPER_E_CONFIG) {
        if (strstr(esper_last_error(), esper_config_key_at(key)->name) == NULL)
            fail_at(family, job, key, esper_last_error());
        return false;
    }
    check_good(print_of(family, job, &other, &after));
    if ((before != after) != changes)
        fail_at(family, job, key, changes ? "changes nothing" : "changes the bits of a run");
    return changes || (trials[key].fault != NULL && shows_by_fault(family, job, key, usual));
}

/* Whether it was seen to matter; counts where it is in vain though the job is one of its own. */
static bool check_one(int family, int job, int key, int *vain_out)
{
    const esper_task *task = task_named(families[family].task);
    esper_config config = usual_of(family, job);
    esper_config_use use = esper_settings_use(task, jobs[job].job, &config);
    const char *instead, *why = esper_config_why_not(&config, key, &use, &instead);

    if (why != NULL)
        check_in_vain(family, job, key, &config, why);
    *vain_out += why != NULL && (esper_config_jobs_of(key) & jobs[job].job) != 0;
    lay_over(&config, jobs[job].job, trials[key].with, &by_flag);
    use = esper_settings_use(task, jobs[job].job, &config);
    if (esper_config_why_not(&config, key, &use, &instead) != NULL)
        return false;
    return check_matters(family, job, key, &config);
}

/* ------------------------------------------------------------------------------------------------ all of them */

static void write_text(const char *path, const char *text)
{
    check_good(esper_file_write(path, text, strlen(text)));
}

/* Something to read, and to follow. */
static int write_files(void **state)
{
    char text[4096];

    (void)state;
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        text[i] = (char)('a' + i * i % 23);
    text[sizeof(text) - 1] = '\0';
    write_text("some.txt", text);
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        text[i] = (char)('a' + i * i % 19);
    write_text("other.txt", text);
    write_text("soon.txt", "2 r0c0 germinate blueprint=norm tempo=1\n3 r0c0 advance\n");
    write_text("later.txt", "4 r0c0 germinate blueprint=norm tempo=1\n5 r0c0 advance\n");
    write_text("again.txt",
               "1 r0c0 germinate blueprint=norm tempo=1\n6 r0c0 prune\n10 r0c0 germinate blueprint=norm\n");
    write_text("wait.sh", "while read -r line; do\n"
                          "    case $line in\n"
                          "    *'\"epoch\":'*) epoch=${line#*\\\"epoch\\\":} && "
                          "echo \"{\\\"epoch\\\":${epoch%%[!0-9]*},\\\"op\\\":\\\"wait\\\"}\" ;;\n"
                          "    *) echo '{\"ok\":true}' ;;\n"
                          "    esac\n"
                          "done\n");
    return 0;
}

static void every_setting_has_a_trial(void **state)
{
    (void)state;
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++)
        if (trials[key].value == NULL)
            fail_msg("%s: the test does not try it", esper_config_key_at(key)->name);
}

/* What cannot be seen here is tried in another test. */
static void others_see_the_rest(void **state)
{
    char path[1024], flag[ESPER_CONFIG_NAME_CHARS], *text;
    size_t bytes;

    (void)state;
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        if (trials[key].elsewhere == NULL)
            continue;
        snprintf(path, sizeof(path), "%s/tests/%s", ESPER_SOURCE_DIR, trials[key].elsewhere);
        check_good(esper_file_read(path, 1 << 20, &text, &bytes));
        esper_config_flag_name(esper_config_key_at(key)->name, flag);
        if (strstr(text, flag) == NULL)
            fail_msg("%s does not try %s", path, flag);
        esper_mem_free(text);
    }
}

static void every_setting_has_an_effect_or_is_refused(void **state)
{
    (void)state;
    for (int family = 0; family < N_FAMILIES; family++)
        for (int job = 0; job < N_JOBS; job++)
            vain[family][job] = usual_of(family, job);
    for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
        bool of_files = key == KEY_data;
        int n_seen = 0, n_vain = 0;

        for (int family = 0; family < N_FAMILIES; family++)
            for (int job = 0; job < N_JOBS; job++)
                if ((family == ON_FILES) <= of_files && (family < TABLES || jobs[job].job == ESPER_CONFIG_IN_TRAIN))
                    n_seen += check_one(family, job, key, &n_vain);
        if ((n_seen == 0) != (trials[key].elsewhere != NULL))
            fail_msg("%s: %s", esper_config_key_at(key)->name,
                     n_seen == 0 ? "nowhere seen to matter" : "is seen to matter here");
        if (n_vain == 0 && trials[key].alone_vain)
            fail_msg("%s: nowhere refused", esper_config_key_at(key)->name);
    }
    assert_int_equal(n_bad, 0);
}

/* By whatever way they come, they change nothing. */
static void what_is_refused_has_no_effect(void **state)
{
    uint64_t before, after;

    (void)state;
    for (int family = 0; family < ON_FILES; family++)
        for (int job = 0; job < N_JOBS; job++) {
            esper_config usual = usual_of(family, job);

            check_good(print_of(family, job, &usual, &before));
            check_good(print_of(family, job, &vain[family][job], &after));
            for (int key = 0; before != after && key < ESPER_CONFIG_N_KEYS; key++) { /* which one */
                esper_config one = usual;
                uint64_t alone;

                if (esper_config_place_of(&vain[family][job], key) != ESPER_CONFIG_ENVIRON)
                    continue;
                set_value(&one, family, key, &by_variable);
                check_good(print_of(family, job, &one, &alone));
                if (alone != before)
                    print_error("%s changes it\n", esper_config_key_at(key)->name);
            }
            if (before != after)
                fail_msg("%s %s: a setting that is said to have no effect changes the run",
                         esper_config_job_name(jobs[job].job), families[family].task);
        }
}

/* A comparison makes runs that grow, so it has their settings, but for those of one directory and one view; and each of its own
 * reasons comes with what to do about its --policies. */
static void a_comparison_has_the_settings_of_its_runs(void **state)
{
    const esper_task *tasks[] = {task_named("synth"), task_named("synth_text")};
    unsigned everybody = ESPER_CONFIG_BY_RULES | ESPER_CONFIG_BY_CHANCE | ESPER_CONFIG_BY_SCRIPT |
                         ESPER_CONFIG_BY_PROGRAM | ESPER_CONFIG_BY_LEARNED;
    const char *instead, *compared, *grown;

    (void)state;
    for (int i = 0; i < 2; i++)
        for (int key = 0; key < ESPER_CONFIG_N_KEYS; key++) {
            esper_config config = usual_of(i, 1);
            esper_config_use use = esper_settings_use(tasks[i], ESPER_CONFIG_IN_COMPARE, &config);
            bool has_it = (esper_config_jobs_of(key) & ESPER_CONFIG_IN_COMPARE) != 0;

            use.deciders = everybody;
            compared = esper_config_why_not(&config, key, &use, &instead);
            use.job = ESPER_CONFIG_IN_GROW;
            grown = esper_config_why_not(&config, key, &use, &instead);
            if (compared != grown && has_it)
                fail_msg("%s: has %s effect on a comparison", esper_config_key_at(key)->name, compared ? "no" : "an");
            use.job = ESPER_CONFIG_IN_COMPARE;
            use.deciders = 0;
            if (!has_it || esper_config_why_not(&config, key, &use, &instead) == compared)
                continue;
            if (strstr(instead, "--policies") == NULL)
                fail_msg("%s: what to do in a comparison is \"%s\"", esper_config_key_at(key)->name, instead);
        }
}

/* Ranks are other processes: what they need is known all the same. */
static void settings_of_ranks_matter_to_ranks(void **state)
{
    esper_config config = usual_of(0, 0);
    esper_config_use use = esper_settings_use(task_named("synth"), ESPER_CONFIG_IN_TRAIN, &config);
    const char *instead;

    (void)state;
    assert_non_null(esper_config_why_not(&config, KEY_rank_deadline, &use, &instead));
    use.launched = true;
    assert_null(esper_config_why_not(&config, KEY_rank_deadline, &use, &instead));
    assert_null(esper_config_why_not(&config, KEY_sync_norm, &use, &instead));
    use.images = false;
    use.text = true; /* a transformer has no batch norm */
    assert_non_null(esper_config_why_not(&config, KEY_sync_norm, &use, &instead));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_has_a_trial),
        cmocka_unit_test(others_see_the_rest),
        cmocka_unit_test(every_setting_has_an_effect_or_is_refused),
        cmocka_unit_test(what_is_refused_has_no_effect),
        cmocka_unit_test(a_comparison_has_the_settings_of_its_runs),
        cmocka_unit_test(settings_of_ranks_matter_to_ranks),
    };

    return cmocka_run_group_tests(tests, write_files, NULL);
}
