/* Files of learned policies: what was saved comes back bit for bit, and what cannot be used is refused by a sentence that says
 * why. */
#include "policy/learned_case.h"

static esper_learned_file *open_file(const char *path)
{
    esper_learned_file *file = NULL;

    check_good(esper_learned_open(path, &file));
    return file;
}

static void save_new(const esper_learned_identity *identity, const char *path)
{
    learner l;

    learner_open(&l, identity, 2, 1);
    learner_see(&l);
    save_policy(&l, path);
    learner_close(&l);
}

/* ------------------------------------------------------------------------------------------------ there and back */

/* How many a head has of an environment. */
static size_t logits_of(const learner *l, int head)
{
    static const int32_t chosen[ESPER_N_HEADS] = {0};

    return esper_policy_net_logits_at(&esper_ppo_desc_of(l->ppo)->net, head, chosen).n;
}

/* One step of all environments: logits and value of every environment, and memory. */
static uint64_t hash_act(learner *l, int n_envs, float *h, float *c)
{
    int n_features = l->identity.n_features, n_slots = l->identity.n_slots;
    float *obs = calloc((size_t)(n_envs * n_features), sizeof(float));
    int32_t ids[8] = {0};
    esper_policy_io io;
    uint64_t hash = 0;

    assert_non_null(obs);
    for (int env = 0; env < n_envs; env++) {
        esper_feature_memory memory;
        float *row = obs + env * n_features;
        scene s;
        int n_bad;

        set_epoch(&s, (uint32_t)env, 3, n_slots);
        esper_feature_memory_init(&memory);
        check_good(esper_features_fill(&s.view, &memory, n_slots, row, ids + env * n_slots, &n_bad));
        esper_normaliser_apply(l->norm, row, row);
    }
    check_good(esper_ppo_act(l->ppo, &(esper_ppo_step){.n_envs = n_envs, .obs = obs, .ids = ids, .h = h, .c = c}));
    io = esper_policy_net_io(esper_ppo_net(l->ppo), ESPER_POLICY_ACT);
    for (int head = 0; head < ESPER_N_HEADS; head++)
        for (size_t i = 0; i < (size_t)n_envs * logits_of(l, head); i++) {
            uint32_t bits;

            memcpy(&bits, &io.logits[head][i], sizeof(bits));
            hash = hash * 1099511628211u + bits;
        }
    free(obs);
    return hash;
}

static void acts_as_it_was_saved(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    float h[2][2 * HIDDEN] = {{0}}, c[2][2 * HIDDEN] = {{0}};
    esper_learned_file *file;
    learner saved, loaded;

    (void)state;
    learner_open(&saved, &identity, 2, 1);
    learner_see(&saved);
    save_policy(&saved, policy_path);
    file = open_file(policy_path);
    assert_memory_equal(esper_learned_identity_of(file), &identity, sizeof(identity));
    learner_open(&loaded, esper_learned_identity_of(file), 2, 77);
    assert_true(hash_act(&saved, 2, h[0], c[0]) != hash_act(&loaded, 2, h[1], c[1])); /* or the rest shows nothing */
    check_good(esper_learned_load(file, loaded.ppo, loaded.norm, false));
    esper_learned_close(file);
    memset(h, 0, sizeof(h));
    memset(c, 0, sizeof(c));
    for (int step = 0; step < 3; step++) {
        assert_int_equal(hash_act(&saved, 2, h[0], c[0]), hash_act(&loaded, 2, h[1], c[1]));
        assert_memory_equal(h[0], h[1], sizeof(h[0]));
        assert_memory_equal(c[0], c[1], sizeof(c[0]));
    }
    learner_close(&saved);
    learner_close(&loaded);
}

/* The caller's own tensors and notes come back; a learner that resumes writes the same bytes again. */
static void resumes_whole(void **state)
{
    esper_learned_identity identity = identity_of("synth", 2);
    static const double returns[3] = {1.5, -2.0, 0.25};
    esper_safetensors_tensor tensor = {
        .name = "learn/returns", .dtype = ESPER_SAFETENSORS_F64, .rank = 1, .shape = {3}, .data = returns};
    esper_safetensors_note note = {"learn_round", "17"};
    esper_learned_extra extra = {&tensor, 1, &note, 1};
    esper_learned_file *file;
    double found[3];
    size_t n[2];
    char *bytes[2];
    learner l;

    (void)state;
    learner_open(&l, &identity, 2, 1);
    learner_see(&l);
    for (int f = ESPER_FAMILY_MOMENT1; f <= ESPER_FAMILY_MOMENT2; f++)
        esper_policy_net_slab(esper_ppo_net(l.ppo))->family[f][5] = 0.125f;
    check_good(esper_learned_save(l.ppo, &identity, l.norm, &extra, "a.safetensors"));
    learner_close(&l);
    file = open_file("a.safetensors");
    assert_string_equal(esper_safetensors_note_find(esper_learned_content(file), "learn_round"), "17");
    check_good(esper_safetensors_copy(esper_learned_content(file), "learn/returns", ESPER_SAFETENSORS_F64, 1,
                                      (uint64_t[]){3}, found));
    assert_memory_equal(found, returns, sizeof(found));
    learner_open(&l, &identity, 5, 2); /* the number of environments is no part of it */
    check_good(esper_learned_load(file, l.ppo, l.norm, true));
    esper_learned_close(file);
    check_good(esper_learned_save(l.ppo, &identity, l.norm, &extra, "b.safetensors"));
    learner_close(&l);
    for (int i = 0; i < 2; i++)
        bytes[i] = read_bytes(i == 0 ? "a.safetensors" : "b.safetensors", &n[i]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* A name that the learner uses itself is refused, and so is a learner of another shape. */
static void refuses_to_save_nonsense(void **state)
{
    esper_learned_identity identity = identity_of("synth", 2);
    esper_safetensors_note note = {"learned_task", "mnist"};
    esper_learned_extra extra = {.notes = &note, .n_notes = 1};
    learner l;

    (void)state;
    learner_open(&l, &identity, 1, 1);
    check_fails(esper_learned_save(l.ppo, &identity, l.norm, &extra, "x.safetensors"), ESPER_E_ARG, "given twice");
    identity.hidden = 24;
    check_fails(esper_learned_save(l.ppo, &identity, l.norm, NULL, "x.safetensors"), ESPER_E_ARG, "1 times 24");
    assert_int_equal(access("x.safetensors", F_OK), -1);
    learner_close(&l);
}

/* ------------------------------------------------------------------------------------------------ for another run */

static void says_what_differs(void **state)
{
    esper_learned_identity identity = identity_of("fashion_fast", 2), wanted = identity;
    esper_learned_file *file;

    (void)state;
    save_new(&identity, policy_path);
    file = open_file(policy_path);
    check_good(esper_learned_check(file, &wanted));
    wanted.max_epochs = 99;
    wanted.gates = ESPER_CONFIG_GATES_STRICT;
    snprintf(wanted.task, sizeof(wanted.task), "fashion");
    check_good(esper_learned_identity_set_slots(&wanted, slot_ids, 3));
    check_good(esper_learned_check(file, &wanted)); /* none of it keeps a policy from deciding */
    wanted.topology = ESPER_TOPOLOGY_TRANSFORMER;
    check_fails(esper_learned_check(file, &wanted), ESPER_E_CONFIG,
                "learned.safetensors was trained for hosts of the kind cnn, this one is a transformer. A policy");
    esper_learned_close(file);
    identity.topologies |= 1u << ESPER_TOPOLOGY_MLP;
    save_new(&identity, policy_path);
    file = open_file(policy_path);
    assert_memory_equal(esper_learned_identity_of(file), &identity, sizeof(identity));
    wanted = identity;
    wanted.topology = ESPER_TOPOLOGY_MLP;
    check_good(esper_learned_check(file, &wanted));
    wanted.topology = ESPER_TOPOLOGY_TRANSFORMER;
    check_fails(esper_learned_check(file, &wanted), ESPER_E_CONFIG, "of the kind cnn mlp, this one is a transformer");
    esper_learned_close(file);
}

/* 64 slots of the longest ids come back. */
static void knows_many_slots(void **state)
{
    char texts[ESPER_POLICY_MAX_SLOTS][ESPER_POLICY_ID_CHARS];
    const char *ids[ESPER_POLICY_MAX_SLOTS];
    esper_learned_identity identity = identity_of("synth", 1);
    esper_learned_file *file;

    (void)state;
    for (int i = 0; i < ESPER_POLICY_MAX_SLOTS; i++) {
        snprintf(texts[i], sizeof(texts[i]), "r%uc0000000%03u", (unsigned)i % 64, (unsigned)i % 64);
        ids[i] = texts[i];
    }
    check_good(esper_learned_identity_set_slots(&identity, ids, ESPER_POLICY_MAX_SLOTS));
    save_new(&identity, policy_path);
    file = open_file(policy_path);
    assert_memory_equal(esper_learned_identity_of(file), &identity, sizeof(identity));
    esper_learned_close(file);
}

/* ------------------------------------------------------------------------------------------------ no policy */

static void check_refused(const char *path, esper_status wanted, const char *words)
{
    uint64_t live = live_blocks();
    esper_learned_file *file = NULL;

    check_fails(esper_learned_open(path, &file), wanted, words);
    assert_null(file);
    assert_int_equal(live_blocks(), live);
}

static void refuses_what_is_no_policy(void **state)
{
    static const float zeros[4] = {0};
    esper_safetensors_tensor tensor = {
        .name = "weights", .dtype = ESPER_SAFETENSORS_F32, .rank = 1, .shape = {4}, .data = zeros};
    esper_safetensors_note version = {"policy_version", "99"};
    esper_learned_identity identity = identity_of("synth", 2);
    learner l;

    (void)state;
    check_refused("absent.safetensors", ESPER_E_NOTFOUND, "absent.safetensors");
    write_file("text.txt", "this is a poem about growth, and not a policy at all\n");
    check_refused("text.txt", ESPER_E_FORMAT, "text.txt");
    write_file("empty.safetensors", "");
    check_refused("empty.safetensors", ESPER_E_FORMAT, "empty.safetensors");
    check_good(esper_safetensors_write("other.safetensors", &tensor, 1, NULL, 0));
    check_refused("other.safetensors", ESPER_E_FORMAT, "other.safetensors: this is no policy");
    check_good(esper_safetensors_write("new.safetensors", &tensor, 1, &version, 1));
    check_refused("new.safetensors", ESPER_E_FORMAT, "a policy of version 99, this program reads version 2");
    version.value = "1";
    check_good(esper_safetensors_write("old.safetensors", &tensor, 1, &version, 1));
    check_refused("old.safetensors", ESPER_E_FORMAT,
                  "a policy of form 1, which knew the slots of one host by their number. Those of form 2 know them by "
                  "their properties, and decide for any host: learn it anew with `esper learn TASK`");
    learner_open(&l, &identity, 1, 1); /* a learner of something else: no notes of ours */
    check_good(esper_ppo_save(l.ppo, "toy.safetensors", NULL, 0, NULL, 0));
    check_refused("toy.safetensors", ESPER_E_FORMAT,
                  "no policy that decides about growth: it has no note learned_version");
    version = (esper_safetensors_note){"learned_version", "4"};
    check_good(esper_ppo_save(l.ppo, "later.safetensors", NULL, 0, &version, 1));
    check_refused("later.safetensors", ESPER_E_FORMAT, "a learned policy of version 4, this program reads version 3");
    version.value = "2";
    check_good(esper_ppo_save(l.ppo, "before.safetensors", NULL, 0, &version, 1));
    check_refused("before.safetensors", ESPER_E_FORMAT,
                  "a learned policy of version 2, which could not ask for trials. Those of version 3 can, and see what "
                  "came of them: learn it anew with `esper learn TASK`");
    learner_close(&l);
}

/* Whole notes that say what cannot be. */
static void refuses_notes_that_cannot_be(void **state)
{
    static const struct {
        const char *key, *value, *words;
    } cases[] = {
        {"learned_slots", "", "are no slots"},
        {"learned_slots", "r0c0  r1c0", "are no slots"},
        {"learned_task", "", "'' is no name"},
        {"learned_topology", "forest", "'forest' is none"},
        {"learned_topology", "cnn  mlp", "'' is none"},
        {"learned_features", "40", "40 features, and 71 of a slot, are not those of version 3"},
        {"learned_slot_features", "0", "'0' is no whole number"},
        {"learned_max_epochs", "-1", "'-1' is no whole"},
        {"learned_gates", "open", "'open' is neither"},
        {"learned_features_version", "x", "'x' is no"},
        {"learned_features_version", "1", "sees features of version 1, and this program shows those of version 3"},
        {"learned_features", "9999999999", "is no whole number"},
    };
    static const esper_safetensors_note sound[] = {
        {"learned_version", "3"},     {"learned_task", "synth"},         {"learned_topology", "cnn"},
        {"learned_slots", "r0c0"},    {"learned_max_epochs", "20"},      {"learned_gates", "strict"},
        {"learned_reward", "escrow"}, {"learned_features_version", "3"}, {"learned_features", "41"},
        {"learned_slot_features", "71"},
    };
    enum { N_NOTES = sizeof(sound) / sizeof(sound[0]) };
    esper_learned_identity identity = identity_of("synth", 1);
    learner l;

    (void)state;
    learner_open(&l, &identity, 1, 1);
    check_good(esper_ppo_save(l.ppo, "notes.safetensors", NULL, 0, sound, N_NOTES));
    esper_learned_close(open_file("notes.safetensors"));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_safetensors_note notes[N_NOTES];

        memcpy(notes, sound, sizeof(notes));
        for (int k = 0; k < N_NOTES; k++)
            if (strcmp(notes[k].key, cases[i].key) == 0)
                notes[k].value = cases[i].value;
        check_good(esper_ppo_save(l.ppo, "notes.safetensors", NULL, 0, notes, N_NOTES));
        check_refused("notes.safetensors", ESPER_E_FORMAT, cases[i].words);
    }
    learner_close(&l);
}

/* Notes cost nothing: a network that they say and the tensors are not is refused before anything of its size is made. */
static void refuses_sizes_that_its_tensors_have_not(void **state)
{
    static const char *const cases[][2] = {
        {"policy_hidden", "65536"}, {"policy_hidden", "32"},       {"policy_hidden", "17"},
        {"policy_width", "65536"},  {"policy_layers", "4"},        {"learned_features", "1000000"},
        {"policy_hidden", "99999999"},
    };
    esper_learned_identity identity = identity_of("synth", 3);
    esper_safetensors_note notes[64];
    const esper_safetensors *content;
    esper_safetensors_tensor *tensors;
    esper_learned_file *file;
    size_t n, n_notes;

    (void)state;
    save_new(&identity, policy_path);
    file = open_file(policy_path);
    content = esper_learned_content(file);
    n = esper_safetensors_count(content);
    n_notes = esper_safetensors_note_count(content);
    assert_in_range(n_notes, 1, 64);
    tensors = calloc(n, sizeof(*tensors));
    assert_non_null(tensors);
    for (size_t i = 0; i < n; i++)
        tensors[i] = *esper_safetensors_at(content, i);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        size_t n_kept = 0, n_changed = 0;

        for (size_t i = 0; i < n_notes; i++) {
            notes[n_kept] = esper_safetensors_note_at(content, i);
            n_changed += strcmp(notes[n_kept].key, cases[c][0]) == 0;
            if (strcmp(notes[n_kept].key, cases[c][0]) == 0)
                notes[n_kept].value = cases[c][1];
            n_kept += strcmp(notes[n_kept].key, "policy_hash") != 0;
        }
        assert_int_equal(n_changed, 1);
        check_good(esper_ppo_write("claims.safetensors", tensors, n, notes, n_kept));
        check_refused("claims.safetensors", ESPER_E_FORMAT, "claims.safetensors");
    }
    free(tensors);
    esper_learned_close(file);
}

/* ------------------------------------------------------------------------------------------------ damage */

static void meets_every_damage(void **state)
{
    esper_learned_identity identity = identity_of("synth", 1);
    esper_learned_file *file;
    size_t n, n_tried = 0;
    char *bytes;

    (void)state;
    identity.width = identity.hidden = 8;
    save_new(&identity, policy_path);
    bytes = read_bytes(policy_path, &n);
    for (size_t at = 0; at < n; at += at < 4096 ? 31 : n / 150) {
        for (int bit = 0; bit < 8; bit += 3) {
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            write_bytes("bad.safetensors", bytes, n);
            file = NULL;
            if (esper_learned_open("bad.safetensors", &file) != ESPER_E_FORMAT)
                fail_msg("bit %d of byte %zu of %zu was flipped and nobody noticed: %s", bit, at, n,
                         esper_last_error());
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            n_tried++;
        }
    }
    for (size_t length = 0; length < n; length += 1 + n / 97) {
        write_bytes("bad.safetensors", bytes, length);
        check_refused("bad.safetensors", ESPER_E_FORMAT, "bad.safetensors");
    }
    bytes[n - 5] ^= 1;
    write_bytes("bad.safetensors", bytes, n);
    check_refused("bad.safetensors", ESPER_E_FORMAT, "bad.safetensors: damaged: its content has the hash");
    printf("%zu flipped bits of %zu bytes, all met\n", n_tried, n);
    free(bytes);
}

static void spoil(float *values, int64_t n, int tensor)
{
    if (tensor % 7 == 3) /* some of them */
        values[n - 1] = NAN;
}

/* A learner that had gone wrong before it was saved: nothing of it is taken over. */
static void refuses_weights_that_are_not_finite(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    float h[2 * HIDDEN] = {0}, c[2 * HIDDEN] = {0};
    esper_learned_file *file;
    learner l, other;
    uint64_t before;

    (void)state;
    learner_open(&l, &identity, 2, 1);
    each_weight(l.ppo, spoil);
    save_policy(&l, policy_path);
    learner_close(&l);
    learner_open(&other, &identity, 2, 5);
    before = hash_act(&other, 2, h, c);
    file = open_file(policy_path);
    check_fails(esper_learned_load(file, other.ppo, other.norm, false), ESPER_E_FORMAT,
                " is nan: no policy acts by that");
    assert_non_null(strstr(esper_last_error(), "of param/"));
    check_fails(esper_learned_load(file, other.ppo, other.norm, true), ESPER_E_FORMAT,
                " is nan: no policy acts by that");
    esper_learned_close(file);
    memset(h, 0, sizeof(h));
    memset(c, 0, sizeof(c));
    assert_int_equal(hash_act(&other, 2, h, c), before);
    learner_close(&other);
}

static void refuses_statistics_that_are_not_finite(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3);
    esper_learned_file *file;
    learner l;

    (void)state;
    learner_open(&l, &identity, 1, 1);
    l.norm->variance[2] = -1.0;
    save_policy(&l, policy_path);
    l.norm->variance[2] = 1.0;
    file = open_file(policy_path);
    check_fails(esper_learned_load(file, l.ppo, l.norm, false), ESPER_E_FORMAT,
                "statistics of observation 2: mean 0, variance -1");
    assert_true(l.norm->variance[2] == 1.0);
    esper_learned_close(file);
    learner_close(&l);
}

/* The learner was opened for something else than the file is of. */
static void refuses_another_network(void **state)
{
    esper_learned_identity identity = identity_of("synth", 3), other = identity_of("synth", 3);
    esper_learned_file *file;
    learner l;

    (void)state;
    save_new(&identity, policy_path);
    other.hidden = 24;
    learner_open(&l, &other, 1, 1);
    file = open_file(policy_path);
    check_fails(esper_learned_load(file, l.ppo, l.norm, false), ESPER_E_CONFIG, "hidden width: 16, but here 24");
    esper_learned_close(file);
    learner_close(&l);
}

/* To act, weights are enough: a file without moments and counters. */
static void acts_without_moments(void **state)
{
    esper_learned_identity identity = identity_of("synth", 1);
    esper_safetensors_note notes[32];
    esper_safetensors_tensor *tensors;
    const esper_safetensors *content;
    esper_learned_file *file;
    size_t n = 0, n_notes = 0;
    learner l;

    (void)state;
    save_new(&identity, policy_path);
    file = open_file(policy_path);
    content = esper_learned_content(file);
    tensors = calloc(esper_safetensors_count(content), sizeof(*tensors));
    assert_non_null(tensors);
    for (size_t i = 0; i < esper_safetensors_count(content); i++)
        if (strncmp(esper_safetensors_at(content, i)->name, "moment", 6) != 0 &&
            strcmp(esper_safetensors_at(content, i)->name, "policy/counters") != 0)
            tensors[n++] = *esper_safetensors_at(content, i);
    assert_true(n < esper_safetensors_count(content) / 2);
    for (size_t i = 0; i < esper_safetensors_note_count(content); i++)
        if (strcmp(esper_safetensors_note_at(content, i).key, "policy_hash") != 0)
            notes[n_notes++] = esper_safetensors_note_at(content, i);
    check_good(esper_safetensors_write("unsealed.safetensors", tensors, n, notes, n_notes));
    check_refused("unsealed.safetensors", ESPER_E_FORMAT, "and it says none");
    learner_open(&l, &identity, 1, 3);
    check_good(esper_ppo_write("sealed.safetensors", tensors, n, notes, n_notes));
    esper_learned_close(file);
    free(tensors);
    file = open_file("sealed.safetensors");
    check_good(esper_learned_load(file, l.ppo, l.norm, false));
    check_fails(esper_learned_load(file, l.ppo, l.norm, true), ESPER_E_NOTFOUND, "policy/counters");
    esper_learned_close(file);
    learner_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acts_as_it_was_saved),
        cmocka_unit_test(resumes_whole),
        cmocka_unit_test(refuses_to_save_nonsense),
        cmocka_unit_test(says_what_differs),
        cmocka_unit_test(knows_many_slots),
        cmocka_unit_test(refuses_what_is_no_policy),
        cmocka_unit_test(refuses_notes_that_cannot_be),
        cmocka_unit_test(refuses_sizes_that_its_tensors_have_not),
        cmocka_unit_test(meets_every_damage),
        cmocka_unit_test(refuses_weights_that_are_not_finite),
        cmocka_unit_test(refuses_statistics_that_are_not_finite),
        cmocka_unit_test(refuses_another_network),
        cmocka_unit_test(acts_without_moments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
