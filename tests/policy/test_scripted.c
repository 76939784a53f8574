/* ctest: timeout=60 */
/* Decision files: what is read, every kind of bad line with its number, illegal moves when their epoch comes, and which
 * changes a resumed run takes. */
#include "policy/helpers.h"
#include "policy/script.h"

static esper_status open_text(const char *text, esper_policy **policy_out)
{
    esper_policy_setup setup = plain_setup();

    write_file("plan.txt", text);
    setup.script = "plan.txt";
    return esper_policy_open("scripted", &setup, policy_out);
}

static esper_policy *open_good(const char *text)
{
    esper_policy *policy = NULL;

    check_good(open_text(text, &policy));
    return policy;
}

static void good_file(void **state)
{
    esper_policy *policy =
        open_good("# a plan\n"
                  "\n"
                  "  6 r0c0 germinate blueprint=conv_light\t# the first\r\n"
                  "7\tr0c0\tadvance\n"
                  "8 r1c0 germinate target=0.7 tempo=8 style=gated_gate blueprint=norm\n"
                  "20 r0c0 set_alpha_target target=0.25 speed=3 curve=sigmoid_sharp style=linear_add\n"
                  "30 r0c0 prune speed=5 curve=cosine\n"
                  "40 - wait\n"
                  "41 r2c0 wait\n"
                  "50 r0c0 fossilize"); /* no line end */
    esper_policy_slot *slot;
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.epoch = 5;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_string_equal(decision.text, "No line for epoch 5");
    s.view.epoch = 6;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 0);
    assert_int_equal(decision.blueprint, 1);
    assert_int_equal(decision.style, ESPER_STYLE_SIGMOID_ADD);
    assert_int_equal(decision.tempo, 5);
    assert_true(decision.target == 1.0);
    assert_string_equal(decision.text, "Line 3 of the decision file");
    s.view.epoch = 8;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.slot, 1);
    assert_int_equal(decision.blueprint, 3);
    assert_int_equal(decision.style, ESPER_STYLE_GATED_GATE);
    assert_int_equal(decision.tempo, 8);
    assert_true(decision.target == 0.7);
    slot = put_seed(&s, 0, ESPER_STAGE_HOLDING, "conv_light");
    s.view.epoch = 20;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_SET_ALPHA_TARGET);
    assert_int_equal(decision.speed, 3);
    assert_int_equal(decision.curve, ESPER_ALPHA_CHOICE_SIGMOID_SHARP);
    assert_int_equal(decision.style, ESPER_STYLE_LINEAR_ADD);
    assert_true(decision.target == 0.25);
    s.view.epoch = 30;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_PRUNE);
    assert_int_equal(decision.speed, 5);
    assert_int_equal(decision.style, ESPER_STYLE_KEEP);
    for (s.view.epoch = 40; s.view.epoch <= 41; s.view.epoch++) {
        check_good(esper_policy_decide(policy, &s.view, &decision));
        assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    }
    slot->stage = ESPER_STAGE_HOLDING;
    s.view.epoch = 50;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_FOSSILIZE);
    esper_policy_close(policy);
    esper_policy_close(open_good(""));
    esper_policy_close(open_good("# nothing\n\n   \n"));
}

static void bad_lines(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"6", "plan.txt:1: 1 words"},
        {"6 r0c0", "plan.txt:1: 2 words"},
        {"\n\n6 r0c0 # advance", "plan.txt:3: 2 words"},
        {"6 r0c0 prune a b c d e f g h i j k l m n o p", "plan.txt:1: 19 words"},
        {"six r0c0 advance", "'six' is no epoch"},
        {"0 r0c0 advance", "'0' is no epoch"},
        {"-3 r0c0 advance", "'-3' is no epoch"},
        {"6.5 r0c0 advance", "'6.5' is no epoch"},
        {"99999999999999999999 r0c0 advance", "is no epoch"},
        {"61 r0c0 advance", "plan.txt:1: epoch 61: the run has 60 epochs"},
        {"6 r9c0 advance", "no slot 'r9c0'; did you mean"},
        {"6 early advance", "no slot 'early'"},
        {"6 - advance", "advance needs a slot"},
        {"6 r0c0 germinat blueprint=norm", "'germinat' is no operation; did you mean 'germinate'?"},
        {"6 r0c0 GERMINATE blueprint=norm", "'GERMINATE' is no operation"},
        {"6 r0c0 germinate", "plan.txt:1: germinate: a blueprint is missing"},
        {"6 r0c0 germinate blueprint", "'blueprint' is not of the form"},
        {"6 r0c0 germinate blueprint=", "is not of the form"},
        {"6 r0c0 germinate =norm", "is not of the form"},
        {"6 r0c0 germinate blueprint=nrm", "'nrm'"},
        {"6 r0c0 germinate blueprint=lora", "'lora'"},
        {"6 r0c0 germinate blueprint=noop", "cannot germinate"},
        {"6 r0c0 germinate blueprint=norm blueprint=norm", "'blueprint' stands there twice"},
        {"6 r0c0 germinate blueprint=norm speed=3", "'speed': germinate takes blueprint, birth, style, tempo, target"},
        {"6 r0c0 germinate blueprint=norm tmpo=3", "did you mean 'tempo'?"},
        {"6 r0c0 germinate blueprint=norm tempo=0", "tempo '0'"},
        {"6 r0c0 germinate blueprint=norm tempo=1001", "tempo '1001'"},
        {"6 r0c0 germinate blueprint=norm tempo=2.5", "tempo '2.5'"},
        {"6 r0c0 germinate blueprint=norm target=0", "target '0'"},
        {"6 r0c0 germinate blueprint=norm target=1.01", "target '1.01'"},
        {"6 r0c0 germinate blueprint=norm target=nan", "target 'nan'"},
        {"6 r0c0 germinate blueprint=norm style=add", "style 'add' is none of linear_add, linear_multiply"},
        {"6 r0c0 prune speed=-1", "speed '-1'"},
        {"6 r0c0 prune curve=round", "curve 'round' is none of linear, cosine"},
        {"6 r0c0 prune target=0.5", "'target': prune takes speed, curve"},
        {"6 r0c0 advance speed=3", "'speed': advance takes no choices"},
        {"6 - wait speed=3", "'speed': wait takes no choices"},
        {"6 r0c0 advance\n6 r1c0 advance", "plan.txt:2: epoch 6 has its decision in line 1 already"},
        {"# x\n7 r0c0 advance\n\n6 r1c0 advance", "plan.txt:4: epoch 6 after epoch 7 in line 2"},
        {"\xFF\xFE 1 2", "is no epoch"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        esper_policy *policy = NULL;
        esper_status status = open_text(rows[i].text, &policy);

        if (status != ESPER_E_CONFIG || strstr(esper_last_error(), rows[i].words) == NULL || policy != NULL)
            fail_msg("\"%s\": %s, \"%s\", expected ESPER_E_CONFIG and \"%s\"", rows[i].text, esper_status_name(status),
                     esper_last_error(), rows[i].words);
        if (strncmp(esper_last_error(), "plan.txt:", 9) != 0)
            fail_msg("\"%s\" does not begin with the file and the line", esper_last_error());
    }
}

static void bad_files(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = NULL;
    FILE *file;

    (void)state;
    check_fails(esper_policy_open("scripted", &setup, &policy), ESPER_E_CONFIG, "needs a decision file");
    setup.script = "";
    check_fails(esper_policy_open("scripted", &setup, &policy), ESPER_E_CONFIG, "needs a decision file");
    setup.script = "not-there.txt";
    check_fails(esper_policy_open("scripted", &setup, &policy), ESPER_E_NOTFOUND, "not-there.txt");
    setup.script = ".";
    check_fails(esper_policy_open("scripted", &setup, &policy), ESPER_E_IO, ".");
    file = fopen("zero.txt", "w");
    assert_non_null(file);
    fwrite("6 r0c0\0 advance\n", 1, 16, file);
    fclose(file);
    setup.script = "zero.txt";
    check_fails(esper_policy_open("scripted", &setup, &policy), ESPER_E_CONFIG, "a zero byte after 6 bytes");
    assert_null(policy);
}

/* A legal line that comes at a wrong time: the line, the epoch and why. Nothing is written out. */
static void illegal_moves(void **state)
{
    esper_policy *policy = open_good("\n10 r1c0 fossilize\n11 r0c0 germinate blueprint=norm\n");
    esper_decision decision = {.op = 77};
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.epoch = 10;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_STATE,
                "plan.txt:2: epoch 10: fossilize r1c0 needs a seed that is holding; r1c0 is dormant");
    s.view.epoch = 11;
    put_seed(&s, 0, ESPER_STAGE_FOSSILIZED, "norm");
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_STATE,
                "plan.txt:3: epoch 11: germinate r0c0 needs an empty slot; r0c0 is fossilized");
    assert_int_equal(decision.op, 77);
    esper_policy_close(policy);
}

/* The future of a file may change, its past may not; comments may come and go. */
static void resuming(void **state)
{
    static const char past[] = "5 r0c0 germinate blueprint=norm\n6 r0c0 advance\n";
    char memory[256], text[512];
    esper_policy *policy = open_good(past);
    size_t bytes = esper_policy_pack_bytes(policy);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.epoch = 5;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    put_seed(&s, 0, ESPER_STAGE_GERMINATED, "norm");
    s.view.epoch = 6;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_true(bytes <= sizeof(memory));
    esper_policy_pack(policy, memory);
    check_good(esper_policy_unpack(policy, memory, bytes));
    esper_policy_close(policy);
    snprintf(text, sizeof(text), "# more\n%s7 r1c0 germinate blueprint=norm\n", past);
    policy = open_good(text);
    check_good(esper_policy_unpack(policy, memory, bytes));
    esper_policy_close(policy);
    snprintf(text, sizeof(text), "4 - wait\n%s", past);
    policy = open_good(text);
    check_fails(esper_policy_unpack(policy, memory, bytes), ESPER_E_CONFIG, "plan.txt: its decisions up to epoch 6");
    esper_policy_close(policy);
    policy = open_good("5 r0c0 germinate blueprint=norm tempo=6\n6 r0c0 advance\n");
    check_fails(esper_policy_unpack(policy, memory, bytes), ESPER_E_CONFIG, "only later epochs");
    esper_policy_close(policy);
}

/* Any bytes are refused or read, never more. */
static void any_text(void **state)
{
    static const char *const parts[] = {
        "6",       "7", " ", "\t",      "\n", "r0c0", "r1c0", "-",   "germinate", "advance", "prune", "blueprint=norm",
        "speed=3", "=", "#", "tempo=9", "\r", "wait", "x",    "\x80"};
    esper_policy_setup setup = plain_setup();
    esper_rng rng;
    int n_good = 0;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST});
    for (int i = 0; i < 20000; i++) {
        int n = (int)esper_rng_below(&rng, 24);
        char text[512] = "";
        esper_script script;
        esper_status status;

        for (int part = 0; part < n; part++)
            strcat(text, parts[esper_rng_below(&rng, sizeof(parts) / sizeof(parts[0]))]);
        status = esper_script_init(&script, text, strlen(text), "any", &setup);
        if (status != ESPER_OK && status != ESPER_E_CONFIG)
            fail_msg("%s: %s", esper_status_name(status), esper_last_error());
        if (status == ESPER_OK) {
            n_good++;
            esper_script_fini(&script);
        }
    }
    assert_true(n_good > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file),     cmocka_unit_test(bad_lines), cmocka_unit_test(bad_files),
        cmocka_unit_test(illegal_moves), cmocka_unit_test(resuming),  cmocka_unit_test(any_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
