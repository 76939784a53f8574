/* The configuration: every place a value can come from, what each refuses and in which words, and the run record. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/config.h"
#include "base/atomic_file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/suggest.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const esper_config_source from_flag = {.place = ESPER_CONFIG_FLAG};
static const esper_config_source from_preset = {.place = ESPER_CONFIG_PRESET, .name = "tiny"};

/* Shows both texts when one is not part of the other. */
static void check_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static void check_refused(esper_status status, const char *part)
{
    if (status != ESPER_E_CONFIG)
        fail_msg("status %s (%s) instead of ESPER_E_CONFIG with \"%s\"", esper_status_name(status), esper_last_error(),
                 part);
    check_contains(esper_last_error(), part);
}

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* Equal in every value, as their texts tell. */
static void check_same_values(const esper_config *a, const esper_config *b)
{
    static char text_a[ESPER_CONFIG_RECORD_CHARS], text_b[ESPER_CONFIG_RECORD_CHARS];

    esper_config_write(a, text_a);
    esper_config_write(b, text_b);
    assert_string_equal(text_a, text_b);
}

static esper_status load(esper_config *config, const char *text)
{
    return esper_config_load_text(config, text, strlen(text), "my.conf");
}

static const char *source_of(const esper_config *config, const char *key)
{
    static char text[ESPER_CONFIG_TEXT_CHARS + 32];

    esper_config_source_text(config, esper_config_find(key), text, sizeof(text));
    return text;
}

/* ---- the table ---- */

static void defaults_are_those_of_the_list(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    assert_int_equal(config.seed, 1);
    assert_int_equal(config.threads, 0);
    assert_int_equal(config.backend, ESPER_CONFIG_BACKEND_AUTO);
    assert_string_equal(config.run_dir, "");
    assert_int_equal(config.log_level, ESPER_LOG_INFO);
    assert_int_equal(config.epochs, 5);
    assert_int_equal(config.batch, 128);
    assert_int_equal(config.optimizer, ESPER_CONFIG_OPTIMIZER_SGD);
    assert_true(config.lr == 0.01);
    assert_true(config.weight_decay == 5e-4);
    assert_true(config.adam_eps == 1e-8);
    assert_true(config.valid_fraction == 0.1);
    assert_false(config.flip);
    assert_int_equal(config.pools, -1);
    assert_int_equal(config.context, 128);
}

/* A default that its own range refuses would leave the field at zero in a release build. */
static void defaults_are_allowed(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const esper_config_key *key = esper_config_key_at(i);

        check_good(esper_config_set(&config, key->name, key->preset, &from_flag));
        assert_int_equal(esper_config_find(key->name), i);
        assert_true(strlen(key->help) > 10);
    }
}

static void ranges_hold_at_their_ends(void **state)
{
    static const struct {
        const char *key, *good[3], *bad[3];
    } cases[] = {
        {"threads", {"0", "256"}, {"-1", "257"}},
        {"batch", {"1", "65536"}, {"0", "65537", "99999999999999999999"}},
        {"epochs", {"0", "2147483647"}, {"-1", "2147483648", "-99999999999999999999"}},
        {"lr", {"1e-300", "1e300"}, {"0", "-0", "-1e-9"}},
        {"momentum", {"0", "0.99999"}, {"1", "-0.1", "1.5"}},
        {"valid_fraction", {"1e-9", "0.5"}, {"0", "0.50001", "-0.1"}},
        {"clip", {"0", "-0", "1e9"}, {"-1e-9"}},
        {"seed", {"0", "18446744073709551615"}, {"18446744073709551616"}},
        {"pools", {"-1", "0", "8"}, {"-2", "9"}},
        {"kernel", {"1", "7"}, {"0", "8"}},
        {"context", {"1", "4096"}, {"0", "4097"}},
        {"dropout", {"0", "0.5"}, {"1", "-0.01"}},
    };
    esper_config config;

    (void)state;
    esper_config_init(&config);
    for (int i = 0; i < COUNT(cases); i++)
        for (int k = 0; k < 3; k++) {
            if (cases[i].good[k] != NULL)
                check_good(esper_config_set(&config, cases[i].key, cases[i].good[k], &from_flag));
            if (cases[i].bad[k] != NULL)
                check_refused(esper_config_set(&config, cases[i].key, cases[i].bad[k], &from_flag), "out of range");
        }
}

static void wrong_kinds_are_refused(void **state)
{
    static const struct {
        const char *key, *text, *message;
    } cases[] = {
        {"lr", "fast", "--lr fast: expected a number above 0"},
        {"lr", "", "expected a number"},
        {"lr", " 1", "expected a number"},
        {"lr", "1 ", "expected a number"},
        {"lr", "0,5", "expected a number"},
        {"lr", "nan", "expected a number"},
        {"lr", "inf", "expected a number"},
        {"lr", "1e999", "expected a number"},
        {"lr", "0x1p3", "expected a number"},
        {"lr", "1e", "expected a number"},
        {"lr", ".", "expected a number"},
        {"lr", "1.2.3", "expected a number"},
        {"batch", "12.0", "expected a whole number of samples from 1 to 65536"},
        {"batch", "1e3", "expected a whole number"},
        {"batch", "+5", "expected a whole number"},
        {"batch", "0x10", "expected a whole number"},
        {"batch", "-", "expected a whole number"},
        {"seed", "-1", "expected a whole number from 0 to 18446744073709551615"},
        {"flip", "maybe", "--flip maybe: expected true or false"},
        {"flip", "TRUE", "expected true or false"},
        {"optimizer", "adam", "expected sgd or adamw; did you mean 'adamw'?"},
        {"optimizer", "", "expected sgd or adamw"},
        {"backend", "gpu", "expected auto, cpu, cuda, ref or null"},
        {"run_dir", "a\nb", "a?b"},
        {"run_dir", " a", "blanks at the ends"},
        {"run_dir", "a ", "blanks at the ends"},
        {"run_dir", "a #b", "comments"},
        {"run_dir", ";b", "comments"},
        {"run_dir", "\"a\"", "quotes"},
        {"no_such_key", "1", "there is no key 'no_such_key'; 'esper info config --all' lists them"},
        {"bacth", "1", "did you mean 'batch'?"},
    };
    esper_config config, before;

    (void)state;
    esper_config_init(&config);
    before = config;
    for (int i = 0; i < COUNT(cases); i++)
        check_refused(esper_config_set(&config, cases[i].key, cases[i].text, &from_flag), cases[i].message);
    assert_memory_equal(&config, &before, sizeof(config));
}

static void texts_end_at_1023_characters(void **state)
{
    esper_config config;
    char text[ESPER_CONFIG_TEXT_CHARS + 1];

    (void)state;
    esper_config_init(&config);
    memset(text, 'x', sizeof(text));
    text[ESPER_CONFIG_TEXT_CHARS - 1] = '\0';
    check_good(esper_config_set(&config, "data", text, &from_flag));
    assert_string_equal(config.data, text);
    text[ESPER_CONFIG_TEXT_CHARS - 1] = 'x';
    text[ESPER_CONFIG_TEXT_CHARS] = '\0';
    check_refused(esper_config_set(&config, "data", text, &from_flag), "at most 1023 bytes");
}

/* ---- strength and sources ---- */

/* All orders of the four places must end in the same value. */
static void the_strongest_place_wins_in_any_order(void **state)
{
    (void)state;
    check_good(setenv("ESPER_BATCH", "4", 1) == 0 ? ESPER_OK : ESPER_E_STATE);
    for (int order = 0; order < 256; order++) {
        char flag[] = "--batch=5";
        char *argv[] = {flag};
        esper_config config;
        int n_left;
        int strongest = 0;

        esper_config_init(&config);
        for (int turn = 0; turn < 4; turn++) {
            int place = order >> (2 * turn) & 3;

            if (place == 0)
                check_good(esper_config_set(&config, "batch", "2", &from_preset));
            else if (place == 1)
                check_good(load(&config, "batch = 3"));
            else if (place == 2)
                check_good(esper_config_load_environ(&config));
            else
                check_good(esper_config_parse_args(&config, 1, argv, NULL, 0, &n_left));
            strongest = place > strongest ? place : strongest;
            assert_int_equal(config.batch, strongest + 2);
            assert_int_equal(esper_config_place_of(&config, esper_config_find("batch")),
                             (int)ESPER_CONFIG_PRESET + strongest);
        }
    }
    unsetenv("ESPER_BATCH");
}

static void a_weaker_place_is_still_checked(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_good(esper_config_set(&config, "lr", "0.5", &from_flag));
    check_refused(load(&config, "lr = fast"), "my.conf:1: lr = fast: expected a number above 0");
    assert_true(config.lr == 0.5);
}

static void every_value_knows_its_source(void **state)
{
    esper_config config;
    char weight_decay[] = "--weight-decay", value[] = "0.25";
    char *argv[] = {weight_decay, value};
    int n_left;

    (void)state;
    esper_config_init(&config);
    check_good(esper_config_set(&config, "blocks", "5", &from_preset));
    check_good(load(&config, "# first\n\nepochs = 3\n"));
    setenv("ESPER_ADAM_EPS", "1e-6", 1);
    check_good(esper_config_load_environ(&config));
    unsetenv("ESPER_ADAM_EPS");
    check_good(esper_config_parse_args(&config, 2, argv, NULL, 0, &n_left));
    assert_string_equal(source_of(&config, "seed"), "default");
    assert_string_equal(source_of(&config, "blocks"), "preset tiny");
    assert_string_equal(source_of(&config, "epochs"), "my.conf:3");
    assert_string_equal(source_of(&config, "adam_eps"), "environment ESPER_ADAM_EPS");
    assert_string_equal(source_of(&config, "weight_decay"), "flag --weight-decay");
}

static void too_many_files_are_refused(void **state)
{
    esper_config config;
    char name[32];

    (void)state;
    esper_config_init(&config);
    for (int i = 0; i < ESPER_CONFIG_MAX_NAMES; i++) {
        snprintf(name, sizeof(name), "%d.conf", i);
        check_good(esper_config_load_text(&config, "batch = 7", 9, name));
    }
    check_good(esper_config_load_text(&config, "batch = 8", 9, "0.conf"));
    check_refused(esper_config_load_text(&config, "batch = 9", 9, "x.conf"), "x.conf: a configuration can come from 8");
    assert_int_equal(config.batch, 8);
}

/* ---- files ---- */

static void files_are_read_as_written(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_good(load(&config, "\xEF\xBB\xBF# a comment\r\n"
                             "  ; another = one\r\n"
                             "\r\n"
                             "lr=0.5\r\n"
                             "   batch =\t64   # after a blank\r\n"
                             "flip = yes ; the same\n"
                             "data = /a b/c#d;e:f=g\n"
                             "run-dir =\n"
                             "optimizer = adamw"));
    assert_true(config.lr == 0.5);
    assert_int_equal(config.batch, 64);
    assert_true(config.flip);
    assert_string_equal(config.data, "/a b/c#d;e:f=g");
    assert_string_equal(config.run_dir, "");
    assert_int_equal(config.optimizer, ESPER_CONFIG_OPTIMIZER_ADAMW);
    check_good(load(&config, ""));
    check_good(load(&config, "\n\n \n"));
}

static void bad_files_are_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"lr = 0.1\nlr = 0.2", "my.conf:2: 'lr' is set already on line 1; keep one of them"},
        {"run_dir = a\nrun-dir = b", "is set already on line 1"},
        {"lr", "my.conf:1: expected a line 'key = value'"},
        {"lr: 0.1", "expected a line 'key = value'"},
        {"= 0.1", "expected a line 'key = value'"},
        {"lr 0.1 # = 3", "expected a line 'key = value'"},
        {"\n\n[training]\nlr = 0.1", "my.conf:3: there are no sections here"},
        {"batchsize = 3", "my.conf:1: there is no key 'batchsize'; did you mean 'batch'?"},
        {"LR = 3", "there is no key 'LR'"},
        {"epochs = 3\n  lr = x", "my.conf:2: lr = x: expected a number"},
        {"lr = 0.1 0.2", "lr = 0.1 0.2: expected a number"},
        {"lr = \"0.1\"", "expected a number"},
        {"data = 'x'", "quotes"},
        {"a_key_so_long_that_it_cannot_be_one_of_ours_whatever_else_may_follow_it = 1", "expected a line"},
    };

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        esper_config config, before;

        esper_config_init(&config);
        before = config;
        check_refused(load(&config, cases[i].text), cases[i].message);
        assert_memory_equal(&config, &before, sizeof(config));
    }
}

static void zero_bytes_are_found_anywhere(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_refused(esper_config_load_text(&config, "lr = 1\n\0batch = 3", 17, "z"), "z:2: a zero byte");
    check_refused(esper_config_load_text(&config, "# \0\nlr = 1", 10, "z"), "z:1: a zero byte");
    check_refused(esper_config_load_text(&config, "lr = 1\0", 7, "z"), "z:1: a zero byte");
}

/* Every length around inih's limit of 200, each with the pattern shifted: cuts fall between all its characters. */
static void long_lines_are_read_whole(void **state)
{
    static const char pattern[] = "/a b;c#d=e:f  g[h]";
    char text[2 * ESPER_CONFIG_TEXT_CHARS], path[ESPER_CONFIG_TEXT_CHARS];
    esper_config config;

    (void)state;
    for (size_t n = 1; n<ESPER_CONFIG_TEXT_CHARS; n += n> 150 && n < 450 ? 1 : 61) {
        for (size_t i = 0; i < n; i++)
            path[i] = pattern[(i + n) % (sizeof(pattern) - 1)];
        path[0] = '/';
        path[n - 1] = 'z';
        path[n] = '\0';
        snprintf(text, sizeof(text), "batch = 3\ndata = %s ; comment\nepochs = 4", path);
        esper_config_init(&config);
        check_good(load(&config, text));
        assert_string_equal(config.data, path);
        assert_int_equal(config.epochs, 4);
    }
}

static void too_long_lines_are_refused(void **state)
{
    static char text[16384];
    esper_config config;

    (void)state;
    esper_config_init(&config);
    snprintf(text, sizeof(text), "data = %01500d", 7);
    check_refused(load(&config, text), "at most 1023 bytes");
    snprintf(text, sizeof(text), "\ndata = %05000d", 7);
    check_refused(load(&config, text), "my.conf:2: line of 5007 characters, at most 4096 are allowed");
    snprintf(text, sizeof(text), "data = a%*sb", 400, "");
    check_refused(load(&config, text), "too many blanks in a row");
    snprintf(text, sizeof(text), "batch = 3 # %012000d\nepochs = 4", 7);
    check_good(load(&config, text)); /* a comment may be as long as it likes */
    assert_int_equal(config.epochs, 4);
}

static void files_are_found_or_missed(void **state)
{
    esper_config config;

    (void)state;
    esper_config_init(&config);
    check_good(esper_file_write("good.conf", "epochs = 9\n", 11));
    check_good(esper_config_load_file(&config, "good.conf"));
    assert_int_equal(config.epochs, 9);
    assert_string_equal(source_of(&config, "epochs"), "good.conf:1");
    assert_int_equal(esper_config_load_file(&config, "absent.conf"), ESPER_E_NOTFOUND);
    check_contains(esper_last_error(), "absent.conf: cannot be opened: No such file");
    assert_int_equal(esper_config_load_file(&config, "."), ESPER_E_IO);
    check_contains(esper_last_error(), "Is a directory");
    assert_int_equal(esper_config_load_file(&config, "/dev/zero"), ESPER_E_IO);
    check_contains(esper_last_error(), "/dev/zero: more than the 1048576 bytes allowed here");
}

static void loading_survives_every_failed_allocation(void **state)
{
    esper_mem_stats before, after;
    esper_status st = ESPER_E_NOMEM;
    int n_failures = 0;

    (void)state;
    check_good(esper_file_write("good.conf", "epochs = 9\n", 11));
    esper_mem_stats_get(&before);
    while (st == ESPER_E_NOMEM) {
        esper_config config;

        esper_config_init(&config);
        esper_mem_fail_at((uint64_t)n_failures + 1);
        st = esper_config_load_file(&config, "good.conf");
        esper_mem_fail_at(0);
        assert_int_equal(config.epochs, st == ESPER_OK ? 9 : 5);
        n_failures += st == ESPER_E_NOMEM;
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
    }
    check_good(st);
    assert_int_equal(n_failures, 2); /* the text and the reader */
}

/* ---- the record ---- */

/* Any value inside its range must come back the same. */
static void set_at_random(esper_config *config, int index, esper_rng *rng)
{
    const esper_config_key *key = esper_config_key_at(index);
    double high = key->range.high < 1e6 ? key->range.high : 1e6, low = key->range.any ? 0 : key->range.low;
    char text[64];

    switch (key->kind) {
    case ESPER_CONFIG_INT:
        snprintf(text, sizeof(text), "%d", (int)low + (int)esper_rng_below(rng, (uint32_t)(high - low) + 1));
        break;
    case ESPER_CONFIG_U64:
        snprintf(text, sizeof(text), "%llu", (unsigned long long)esper_rng_u32(rng) << 32 | esper_rng_u32(rng));
        break;
    case ESPER_CONFIG_REAL:
        esper_number_write_real(low + (high - low) * ((double)esper_rng_uniform(rng) * 0.999 + 1e-4), text);
        break;
    case ESPER_CONFIG_BOOL:
        snprintf(text, sizeof(text), "%u", esper_rng_below(rng, 2));
        break;
    case ESPER_CONFIG_CHOICE:
        snprintf(text, sizeof(text), "%s", key->choices[esper_rng_below(rng, 2)]);
        break;
    case ESPER_CONFIG_TEXT:
        snprintf(text, sizeof(text), "/d/%u x;#y=/%u", esper_rng_u32(rng), esper_rng_u32(rng));
        break;
    }
    check_good(esper_config_set(config, key->name, text, &from_flag));
}

static void records_read_back_to_the_same_values(void **state)
{
    static char text[ESPER_CONFIG_RECORD_CHARS];
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 3, .purpose = ESPER_RNG_TEST});
    for (int round = 0; round < 200; round++) {
        esper_config config, again;
        size_t n;

        esper_config_init(&config);
        for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++)
            set_at_random(&config, i, &rng);
        n = esper_config_write(&config, text);
        assert_int_equal(n, strlen(text));
        esper_config_init(&again);
        check_good(esper_config_load_text(&again, text, n, "record"));
        check_same_values(&config, &again);
        assert_memory_equal(&config.lr, &again.lr, sizeof(config.lr));
        assert_int_equal(config.seed, again.seed);
    }
}

static void the_longest_record_fits(void **state)
{
    static char text[ESPER_CONFIG_RECORD_CHARS];
    char path[ESPER_CONFIG_TEXT_CHARS];
    esper_config config, again;
    size_t n;

    (void)state;
    esper_config_init(&config);
    memset(path, 'p', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    check_good(esper_config_set(&config, "data", path, &from_flag));
    check_good(esper_config_set(&config, "run_dir", path, &from_flag));
    n = esper_config_write(&config, text);
    assert_true(n < sizeof(text));
    assert_int_equal(n, strlen(text));
    esper_config_init(&again);
    check_good(esper_config_load_text(&again, text, n, "record"));
    check_same_values(&config, &again);
}

/* ---- environment ---- */

static void refuse_variable(const char *name, const char *value, const char *message)
{
    esper_config config, before;

    esper_config_init(&config);
    before = config;
    setenv(name, value, 1);
    check_refused(esper_config_load_environ(&config), message);
    unsetenv(name);
    assert_memory_equal(&config, &before, sizeof(config));
}

static void the_environment_is_strict(void **state)
{
    esper_config config;

    (void)state;
    refuse_variable("ESPER_LR", "fast", "environment variable ESPER_LR=fast: expected a number above 0");
    refuse_variable("ESPER_BATCHES", "3", "ESPER_BATCHES names no configuration key; did you mean 'ESPER_BATCH'?");
    refuse_variable("ESPER_KERNELL", "3", "did you mean 'ESPER_KERNEL'?");
    refuse_variable("ESPER_CONFG", "3", "did you mean 'ESPER_CONFIG'?");
    refuse_variable("ESPER_lr", "3", "did you mean 'ESPER_LR'?");
    refuse_variable("ESPER_", "3", "names no configuration key; unset it");
    refuse_variable("ESPER_QQQQQQQQQ", "3", "names no configuration key; unset it");
    setenv("ESPER_CONFIG", "x", 1);
    setenv("ESPER_KERNELS", "x", 1);
    setenv("ESPER_NVRTC", "x", 1);
    setenv("ESPER_GOLDEN", "x", 1);
    setenv("ESPER_ENGINE_LIBRARY", "x", 1);
    setenv("ESPER_TEST_ANYTHING", "x", 1);
    setenv("ESPER_FUZZ_SECONDS", "x", 1);
    setenv("ESPERANTO", "x", 1);
    setenv("ESPER_CHECKPOINT_EVERY", "7", 1);
    esper_config_init(&config);
    check_good(esper_config_load_environ(&config));
    assert_int_equal(config.checkpoint_every, 7);
    unsetenv("ESPER_CHECKPOINT_EVERY");
    unsetenv("ESPER_CONFIG");
    unsetenv("ESPER_KERNELS");
    unsetenv("ESPER_NVRTC");
    unsetenv("ESPER_GOLDEN");
    unsetenv("ESPER_ENGINE_LIBRARY");
}

/* ---- flags ---- */

/* Parses the words of one line. */
static esper_status parse(esper_config *config, const char *line, char **argv, int *n_left_out,
                          const esper_config_option *options, int n_options)
{
    static char words[1024];
    int argc = 0;

    snprintf(words, sizeof(words), "%s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return esper_config_parse_args(config, argc, argv, options, n_options, n_left_out);
}

static void flags_leave_the_positional_arguments(void **state)
{
    const char *resume = NULL, *json = NULL, *help = NULL;
    const esper_config_option options[] = {
        {.name = "resume", .letter = 'r', .has_value = true, .text_out = &resume},
        {.name = "json", .text_out = &json},
        {.name = "help", .letter = 'h', .text_out = &help},
    };
    char *argv[32];
    esper_config config;
    int n_left;

    (void)state;
    esper_config_init(&config);
    check_good(parse(&config,
                     "fashion --lr 0.5 --batch=7 - --flip --pools -1 --json -r last --run_dir=a=b x -- --lr -y", argv,
                     &n_left, options, 3));
    assert_int_equal(n_left, 5);
    assert_string_equal(argv[0], "fashion");
    assert_string_equal(argv[1], "-");
    assert_string_equal(argv[2], "x");
    assert_string_equal(argv[3], "--lr");
    assert_string_equal(argv[4], "-y");
    assert_true(config.lr == 0.5);
    assert_int_equal(config.batch, 7);
    assert_true(config.flip);
    assert_string_equal(config.run_dir, "a=b");
    assert_string_equal(resume, "last");
    assert_string_equal(json, "");
    assert_null(help);
    check_good(parse(&config, "--no-flip --lr 1 --lr 2 --data=", argv, &n_left, options, 3));
    assert_false(config.flip);
    assert_true(config.lr == 2);
    assert_int_equal(n_left, 0);
    check_good(parse(&config, "--flip=on -h", argv, &n_left, options, 3));
    assert_true(config.flip);
    assert_non_null(help);
}

static void bad_flags_are_refused(void **state)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--lr", "--lr expects a value"},
        {"--lr --batch 3", "--lr expects a value, not '--batch'; if that is meant, write --lr=--batch"},
        {"--lr fast", "--lr fast: expected a number above 0"},
        {"--lr=", "expected a number above 0"},
        {"--weight_decay -1", "--weight-decay -1: out of range, expected a number, 0 or more"},
        {"--batchsize 3", "there is no option '--batchsize'; did you mean '--batch'?"},
        {"--weight-dacay=3", "did you mean '--weight-decay'?"},
        {"--resum", "did you mean '--resume'?"},
        {"--no-lr", "there is no option '--no-lr'"},
        {"--no-flip=yes", "--no-flip takes no value"},
        {"--flip=maybe", "--flip maybe: expected true or false"},
        {"--resume", "--resume expects a value"},
        {"--json=3", "--json takes no value, but '3' was given"},
        {"-x", "there is no option '-x'"},
        {"-rlast", "there is no option '-rlast'"},
        {"-5", "there is no option '-5'"},
        {"--=", "there is no option '--='"},
        {"--xyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzyxyzzy", "--help lists them"},
    };
    const char *resume = NULL, *json = NULL;
    const esper_config_option options[] = {
        {.name = "resume", .letter = 'r', .has_value = true, .text_out = &resume},
        {.name = "json", .text_out = &json},
    };
    char *argv[32];
    int n_left = -7;

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        esper_config config, before;

        esper_config_init(&config);
        before = config;
        check_refused(parse(&config, cases[i].line, argv, &n_left, options, 2), cases[i].message);
        assert_memory_equal(&config, &before, sizeof(config));
        assert_int_equal(n_left, -7);
    }
}

/* ---- for people ---- */

/* What a function prints to a stream, as text to free. */
static char *printed(void (*print)(const esper_config *, FILE *), const esper_config *config)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);

    assert_non_null(stream);
    print(config, stream);
    fclose(stream);
    return text;
}

static void print_help(const esper_config *config, FILE *stream)
{
    (void)config;
    esper_config_help(stream, 100, NULL, NULL);
}

static void help_tells_every_key(void **state)
{
    char *text = printed(print_help, NULL);
    char flag[ESPER_CONFIG_NAME_CHARS];

    (void)state;
    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        esper_config_flag_name(esper_config_key_at(i)->name, flag);
        check_contains(text, flag);
    }
    check_contains(text, "[default 128; a whole number of samples from 1 to 65536]");
    check_contains(text, "--optimizer sgd|adamw");
    check_contains(text, "--flip, --no-flip");
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        assert_in_range(strcspn(line, "\n"), 0, 100);
    free(text);
}

static void print_all(const esper_config *config, FILE *stream)
{
    static const esper_config_use use = {.job = ESPER_CONFIG_IN_TRAIN, .task = "tiny", .images = true};

    esper_config_print_sources(config, &use, true, stream);
}

static void print_useful(const esper_config *config, FILE *stream)
{
    static const esper_config_use use = {.job = ESPER_CONFIG_IN_TRAIN, .task = "tiny", .images = true};

    esper_config_print_sources(config, &use, false, stream);
}

static void what_info_prints_is_a_configuration_file(void **state)
{
    esper_config config, again;
    char *text;

    (void)state;
    esper_config_init(&config);
    check_good(esper_config_set(&config, "lr", "0.125", &from_preset));
    check_good(load(&config, "data = /a/b\nflip = true"));
    text = printed(print_all, &config);
    check_contains(text, "# preset tiny");
    check_contains(text, "# my.conf:1; no effect: its data is synthetic");
    check_contains(text, "# default; no effect: its host is convolutional");
    esper_config_init(&again);
    check_good(load(&again, text));
    check_same_values(&config, &again);
    free(text);
    text = printed(print_useful, &config);
    check_contains(text, "# my.conf:2");
    assert_null(strstr(text, "no effect"));
    assert_null(strstr(text, "\nlayers "));
    free(text);
}

/* A terminal view may switch to a locale that writes 0,5. */
static void numbers_do_not_follow_the_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"};
    char text[ESPER_NUMBER_CHARS];
    double value = 0;
    bool found = false;

    (void)state;
    for (int i = 0; i < COUNT(names) && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
    assert_true(esper_number_read_real("0.5", &value));
    assert_true(value == 0.5);
    esper_number_write_real(0.25, text);
    assert_string_equal(text, "0.25");
    setlocale(LC_NUMERIC, "C");
}

static void numbers_are_written_short_and_exact(void **state)
{
    static const struct {
        double      value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {0, "0"},
                 {5e-4, "0.0005"},
                 {1e-8, "1e-08"},
                 {1.0 / 3, "0.3333333333333333"},
                 {1e300, "1e+300"},
                 {5e-324, "4.94065645841247e-324"},
                 {-2.5, "-2.5"}};
    char text[ESPER_NUMBER_CHARS];
    esper_rng rng;

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        esper_number_write_real(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
    esper_rng_init(&rng, &(esper_rng_key){.seed = 4, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 10000; i++) {
        uint64_t bits = (uint64_t)esper_rng_u32(&rng) << 32 | esper_rng_u32(&rng);
        double value, again = 0;

        memcpy(&value, &bits, sizeof(value));
        if ((bits >> 52 & 0x7FF) == 0x7FF)
            continue; /* NaN or infinity */
        esper_number_write_real(value, text);
        assert_true(esper_number_read_real(text, &again));
        assert_memory_equal(&value, &again, sizeof(value));
    }
}

static void floats_are_written_shorter(void **state)
{
    static const struct {
        float       value;
        const char *text;
    } cases[] = {{0.1f, "0.1"},          {1.0f, "1"},
                 {1e-5f, "1e-05"},       {1.0f / 3.0f, "0.33333334"},
                 {-0.2860f, "-0.286"},   {16777217.0f, "16777216"},
                 {1e-45f, "1.4013e-45"}, {INFINITY, "inf"}};
    char text[ESPER_NUMBER_CHARS];
    esper_rng rng;

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        esper_number_write_float(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 10000; i++) {
        uint32_t bits = esper_rng_u32(&rng);
        float value, again;
        double read = 0;

        memcpy(&value, &bits, sizeof(value));
        if ((bits >> 23 & 0xFF) == 0xFF)
            continue; /* NaN or infinity */
        esper_number_write_float(value, text);
        assert_true(esper_number_read_real(text, &read));
        again = (float)read;
        assert_memory_equal(&value, &again, sizeof(value));
    }
}

static void suggestions_are_near(void **state)
{
    static const struct {
        const char *a, *b;
        size_t      distance;
    } cases[] = {
        {"", "", 0},     {"a", "", 1},     {"batch", "batch", 0}, {"bacth", "batch", 1}, {"kitten", "sitting", 3},
        {"ab", "ba", 1}, {"abc", "ca", 3}, {"flip", "clip", 1}};
    char text[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        assert_int_equal(esper_suggest_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(esper_suggest_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
    esper_suggest_init(&suggest, "epoch");
    esper_suggest_offer(&suggest, "batch");
    assert_string_equal(esper_suggest_text(&suggest, "--", text), "");
    esper_suggest_offer(&suggest, "epochs");
    esper_suggest_offer(&suggest, "epocha");
    assert_string_equal(esper_suggest_text(&suggest, "--", text), "; did you mean '--epochs'?");
    esper_suggest_init(&suggest, "x");
    esper_suggest_offer(&suggest, "y");
    assert_null(suggest.best); /* one letter out of one is no resemblance */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_list),
        cmocka_unit_test(defaults_are_allowed),
        cmocka_unit_test(ranges_hold_at_their_ends),
        cmocka_unit_test(wrong_kinds_are_refused),
        cmocka_unit_test(texts_end_at_1023_characters),
        cmocka_unit_test(the_strongest_place_wins_in_any_order),
        cmocka_unit_test(a_weaker_place_is_still_checked),
        cmocka_unit_test(every_value_knows_its_source),
        cmocka_unit_test(too_many_files_are_refused),
        cmocka_unit_test(files_are_read_as_written),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(zero_bytes_are_found_anywhere),
        cmocka_unit_test(long_lines_are_read_whole),
        cmocka_unit_test(too_long_lines_are_refused),
        cmocka_unit_test(files_are_found_or_missed),
        cmocka_unit_test(loading_survives_every_failed_allocation),
        cmocka_unit_test(records_read_back_to_the_same_values),
        cmocka_unit_test(the_longest_record_fits),
        cmocka_unit_test(the_environment_is_strict),
        cmocka_unit_test(flags_leave_the_positional_arguments),
        cmocka_unit_test(bad_flags_are_refused),
        cmocka_unit_test(help_tells_every_key),
        cmocka_unit_test(what_info_prints_is_a_configuration_file),
        cmocka_unit_test(numbers_do_not_follow_the_locale),
        cmocka_unit_test(numbers_are_written_short_and_exact),
        cmocka_unit_test(floats_are_written_shorter),
        cmocka_unit_test(suggestions_are_near),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
