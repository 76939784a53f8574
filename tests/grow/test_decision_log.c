/* ctest: timeout=60 */
/* The decision log: what is read is what was written, bit for bit; what was appended is there whatever happens next; what
 * is damaged is named with its line. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "fault/alloc.h"
#include "grow/decision_log.h"
#include "engine/helpers.h"

#define PATH "decisions.jsonl"

static const esper_log_head head = {.task = "fashion",
                                    .kernels = "cpu avx2",
                                    .topology = ESPER_TOPOLOGY_CNN,
                                    .seed = UINT64_MAX - 1,
                                    .ranks = 4,
                                    .budget = UINT64_MAX - 2,
                                    .data = 0xab};

/* A policy's decision with nothing as usual. */
static esper_log_entry a_decision(void)
{
    esper_log_entry entry = {
        .epoch = 12, .step = ((uint64_t)1 << 53) + 1, .share = 0.25, .source = ESPER_LOG_POLICY, .slot = "r0c1"};

    esper_decision_init(&entry.decision, ESPER_SLOT_OP_GERMINATE);
    entry.decision.slot = 1;
    entry.decision.blueprint = 2;
    entry.decision.birth = ESPER_BIRTH_OWN;
    entry.decision.style = ESPER_STYLE_GATED_GATE;
    entry.decision.tempo = 7;
    entry.decision.speed = 3;
    entry.decision.curve = ESPER_ALPHA_CHOICE_SIGMOID_SHARP;
    entry.decision.target = 0.1 + 0.2;
    entry.decision.confidence = 5e-324;
    esper_decision_because(&entry.decision, ESPER_REASON_PLATEAU, "plateau of 3 epochs");
    return entry;
}

/* A fork of a trial, with a loss that is none. */
static esper_log_entry a_fork(void)
{
    return (esper_log_entry){.epoch = 3,
                             .step = 60,
                             .share = 0.125,
                             .source = ESPER_LOG_TRIAL,
                             .slot = "r1c1",
                             .trial = {.blueprint = 1,
                                       .round = 2,
                                       .n_steps = 129,
                                       .n_samples = 6000,
                                       .loss = (double)NAN,
                                       .gain = -0.25,
                                       .error = 0.5,
                                       .flops = 3.29e11,
                                       .fork = 0x5dcd4b4a2e5d8c4e}};
}

static esper_log_entry a_rollback(void)
{
    esper_log_entry entry = {.epoch = 1, .step = 0, .share = 1.0, .source = ESPER_LOG_GOVERNOR};
    esper_log_governor *governor = &entry.governor;

    esper_log_governor_init(governor);
    governor->action = ESPER_GOVERNOR_PRUNE;
    governor->reason = ESPER_GOVERNOR_SCAN;
    governor->role = ESPER_GUARD_ROLE_MOMENT;
    strcpy(governor->tensor, "m.blocks.0.conv.weight \"\\\n\x01\x7f\u20ac");
    strcpy(governor->problem, "NaN");
    governor->n_elements = UINT64_MAX - 1;
    governor->first_index = 17;
    governor->to_step = (uint64_t)1 << 60;
    governor->lr_scale = 1.0 / 3.0;
    governor->n_pruned = 2;
    strcpy(governor->pruned[0], "r1c0");
    strcpy(governor->pruned[1], "r0c0");
    return entry;
}

static esper_log_entry an_injection(int fault, int point)
{
    esper_log_entry entry = {.epoch = INT32_MAX, .step = 41, .source = ESPER_LOG_INJECTION};

    strcpy(entry.injection.tensor, "head.weight");
    entry.injection.role = fault % ESPER_GUARD_N_ROLES;
    entry.injection.fault = fault;
    entry.injection.point = point;
    entry.injection.bit = UINT32_MAX;
    entry.injection.element = 99;
    return entry;
}

static esper_decision_log *open_new(void)
{
    esper_decision_log *log;

    check_good(esper_decision_log_open(PATH, &head, false, 0, &log));
    return log;
}

/* A log of n plain decisions, in epochs 1 to n. */
static void write_log(int n)
{
    esper_decision_log *log = open_new();
    esper_log_entry entry = a_decision();

    for (entry.epoch = 1; entry.epoch <= n; entry.epoch++)
        check_good(esper_decision_log_append(log, &entry));
    esper_decision_log_close(log);
}

static char *text_of(size_t *bytes_out)
{
    char *text;

    check_good(esper_file_read(PATH, 1 << 24, &text, bytes_out));
    return text;
}

static esper_decision_history read_all(void)
{
    esper_decision_history history;

    check_good(esper_decision_history_read(PATH, UINT64_MAX, &history));
    return history;
}

static uint64_t count_entries(void)
{
    esper_decision_history history = read_all();
    uint64_t n = history.n;

    esper_decision_history_free(&history);
    return n;
}

static size_t count_bytes(void)
{
    size_t bytes;

    esper_mem_free(text_of(&bytes));
    return bytes;
}

/* ------------------------------------------------------------------------------------------------ round trip */

/* The same bytes, but for the kind of a NaN. */
static void check_same(const esper_log_entry *found, const esper_log_entry *wanted, uint64_t number)
{
    esper_log_entry copy = *wanted;

    copy.number = number;
    if (copy.source == ESPER_LOG_POLICY)
        copy.decision.slot = -1; /* its id is what is kept */
    if (isnan(copy.governor.loss)) {
        if (!isnan(found->governor.loss))
            fail_msg("entry %d: loss %g, expected NaN", (int)number, found->governor.loss);
        copy.governor.loss = found->governor.loss;
    }
    assert_memory_equal(&found->decision, &copy.decision, sizeof(copy.decision));
    assert_memory_equal(&found->governor, &copy.governor, sizeof(copy.governor));
    assert_memory_equal(found, &copy, sizeof(copy));
}

/* Everything that an entry can be, in one list. */
static int make_entries(esper_log_entry entries[64])
{
    static const char *const texts[] = {"", "\"}\n{\"number\":1}", "\xff\xfe cut \xe2\x82", "\x01\x02\x7f\t\\u0000",
                                        "\u20ac\u00e9 %s %n"};
    static const double losses[] = {(double)NAN,
                                    (double)INFINITY,
                                    -(double)INFINITY,
                                    -0.0,
                                    0.0,
                                    4.9e-324,
                                    1.7976931348623157e308,
                                    1e15,
                                    123456789012345680.0,
                                    -0.1};
    int n = 0;

    entries[n++] = a_decision();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        entries[n] = a_decision();
        memset(entries[n].decision.text, 0, ESPER_DECISION_TEXT_CHARS);
        strcpy(entries[n++].decision.text, texts[i]);
    }
    entries[n] = a_decision(); /* the longest text there is, in the form that takes most room */
    memset(entries[n++].decision.text, '\xff', ESPER_DECISION_TEXT_CHARS - 1);
    entries[n] = a_decision();
    memset(entries[n++].decision.text, '\x01', ESPER_DECISION_TEXT_CHARS - 1);
    for (int op = 0; op < ESPER_N_SLOT_OPS; op++) {
        entries[n] = a_decision();
        entries[n].decision.op = op;
        entries[n].decision.birth = op == ESPER_SLOT_OP_GERMINATE ? ESPER_BIRTH_OWN : ESPER_BIRTH_UNSAID;
        entries[n++].decision.style = op == ESPER_SLOT_OP_GERMINATE ? 0 : ESPER_STYLE_KEEP;
    }
    entries[n] = (esper_log_entry){.epoch = 3, .source = ESPER_LOG_POLICY};
    esper_decision_init(&entries[n++].decision, ESPER_SLOT_OP_WAIT); /* no slot */
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        entries[n] = a_rollback();
        entries[n++].governor.loss = losses[i];
    }
    for (int action = ESPER_GOVERNOR_SKIP; action <= ESPER_GOVERNOR_STOP; action++) {
        entries[n] = (esper_log_entry){.epoch = 9, .source = ESPER_LOG_GOVERNOR};
        esper_log_governor_init(&entries[n].governor); /* vital signs: no tensor, no step, nothing pruned */
        entries[n++].governor.action = action;
    }
    for (int fault = ESPER_FAULT_NAN; fault <= ESPER_FAULT_MANTISSA; fault++)
        entries[n++] = an_injection(fault, fault % (ESPER_DRILL_GRADIENTS + 1));
    entries[n++] = a_fork();
    return n;
}

static void reads_what_was_written(void **state)
{
    esper_decision_log *log = open_new();
    esper_decision_history history;
    esper_log_entry entries[64];
    int n = make_entries(entries);

    (void)state;
    for (int i = 0; i < n; i++)
        check_good(esper_decision_log_append(log, &entries[i]));
    esper_decision_log_close(log);
    history = read_all();
    assert_int_equal(history.n, n);
    assert_false(history.torn);
    assert_int_equal(history.bytes, count_bytes());
    assert_memory_equal(&history.head, &head, sizeof(head));
    for (int i = 0; i < n; i++)
        check_same(&history.entries[i], &entries[i], (uint64_t)i);
    esper_decision_history_free(&history);
}

/* Writing what was read gives the same file. */
static void writes_what_was_read(void **state)
{
    esper_decision_log *log = open_new();
    esper_decision_history history;
    esper_log_entry entries[64];
    int n = make_entries(entries);
    char *before, *after;
    size_t n_before, n_after;

    (void)state;
    for (int i = 0; i < n; i++)
        check_good(esper_decision_log_append(log, &entries[i]));
    esper_decision_log_close(log);
    before = text_of(&n_before);
    history = read_all();
    assert_string_equal(history.entries[0].slot, "r0c1");
    check_good(esper_decision_log_open(PATH, &history.head, false, 0, &log));
    for (int i = 0; i < n; i++)
        check_good(esper_decision_log_append(log, &history.entries[i]));
    esper_decision_log_close(log);
    after = text_of(&n_after);
    assert_string_equal(after, before);
    esper_mem_free(before);
    esper_mem_free(after);
    esper_decision_history_free(&history);
}

/* The form is a contract with those who read the file with other programs. */
static void is_written_as_said(void **state)
{
    static const char wanted[] =
        "{\"esper_decisions\":3,\"task\":\"fashion\",\"topology\":\"cnn\",\"seed\":\"18446744073709551614\","
        "\"kernels\":\"cpu avx2\",\"ranks\":4,\"budget\":\"18446744073709551613\",\"data\":\"00000000000000ab\"}\n"
        "{\"number\":0,\"epoch\":12,\"step\":\"9007199254740993\",\"share\":0.25,\"weights\":\"0000000000000000\",\"source\":\"policy\",\"op\":\"germinate\","
        "\"slot\":\"r0c1\",\"blueprint\":\"attention\",\"birth\":\"own\",\"style\":\"gated_gate\",\"tempo\":7,"
        "\"target\":0.30000000000000004,\"speed\":3,\"curve\":\"sigmoid_sharp\",\"reason\":\"plateau\","
        "\"confidence\":4.94065645841247e-324,\"text\":\"plateau of 3 epochs\"}\n"
        "{\"number\":1,\"epoch\":2147483647,\"step\":41,\"share\":0,\"weights\":\"0000000000000000\",\"source\":\"injection\",\"tensor\":\"head.weight\","
        "\"role\":\"param\",\"element\":99,\"fault\":\"nan\",\"bit\":4294967295,\"point\":\"gradients\"}\n"
        "{\"number\":2,\"epoch\":9,\"step\":5,\"share\":0,\"weights\":\"0000000000000000\",\"source\":\"governor\",\"action\":\"skip\",\"reason\":\"none\","
        "\"tensor\":null,\"role\":null,\"problem\":\"\",\"n_elements\":0,\"first_index\":null,\"loss\":\"nan\","
        "\"to_step\":null,\"pruned\":[],\"lr_scale\":1}\n";
    esper_log_entry skip = {.epoch = 9, .step = 5, .source = ESPER_LOG_GOVERNOR};
    esper_log_entry entries[3] = {a_decision(), an_injection(ESPER_FAULT_NAN, ESPER_DRILL_GRADIENTS), skip};
    esper_decision_log *log = open_new();
    char *text;
    size_t bytes;

    (void)state;
    esper_log_governor_init(&entries[2].governor);
    entries[2].governor.action = ESPER_GOVERNOR_SKIP;
    for (int i = 0; i < 3; i++)
        check_good(esper_decision_log_append(log, &entries[i]));
    esper_decision_log_close(log);
    text = text_of(&bytes);
    assert_string_equal(text, wanted);
    esper_mem_free(text);
}

/* ------------------------------------------------------------------------------------------------ cutting back */

/* Writes as anyone would: without waiting for the disk. */
static void put_text(const char *mode, const char *text, size_t bytes)
{
    FILE *file = fopen(PATH, mode);

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

static void is_cut_back_to_the_checkpoint(void **state)
{
    esper_log_entry entry = a_decision();
    esper_decision_history history;
    esper_decision_log *log;

    (void)state;
    write_log(5);
    put_text("a", "{\"number\":5,\"epoch\":6,\"st", 24);
    check_good(esper_decision_log_open(PATH, &head, true, 3, &log));
    history = read_all();
    assert_int_equal(history.n, 3);
    assert_int_equal(count_bytes(), history.bytes);
    esper_decision_history_free(&history);
    entry.epoch = 77;
    check_good(esper_decision_log_append(log, &entry));
    esper_decision_log_close(log);
    history = read_all();
    assert_int_equal(history.n, 4);
    assert_int_equal(history.entries[2].epoch, 3);
    assert_int_equal(history.entries[3].epoch, 77);
    assert_int_equal(history.entries[3].number, 3);
    esper_decision_history_free(&history);
    check_good(esper_decision_log_open(PATH, &head, true, 0, &log)); /* all of it */
    esper_decision_log_close(log);
    history = read_all();
    assert_int_equal(history.n, 0);
    esper_decision_history_free(&history);
}

/* A torn line is no entry, wherever it was torn, and goes when the run goes on. */
static void torn_line_is_no_entry(void **state)
{
    size_t bytes, n_two, n_three;
    esper_decision_log *log;
    char *text;

    (void)state;
    write_log(2);
    esper_mem_free(text_of(&n_two));
    write_log(3);
    text = text_of(&n_three);
    for (size_t cut = n_two + 1; cut < n_three; cut++) {
        esper_decision_history history;

        put_text("w", text, cut);
        history = read_all();
        assert_int_equal(history.n, 2);
        assert_true(history.torn);
        esper_decision_history_free(&history);
        check_fails(esper_decision_log_open(PATH, &head, true, 3, &log), ESPER_E_FORMAT, PATH ":4: |2 whole entries|3");
        esper_mem_free(text_of(&bytes));
        assert_int_equal(bytes, cut); /* a refusal changes nothing */
        if (cut % 50 != 0)
            continue;
        check_good(esper_decision_log_open(PATH, &head, true, 2, &log));
        esper_decision_log_close(log);
        esper_mem_free(text_of(&bytes));
        assert_int_equal(bytes, n_two);
    }
    esper_mem_free(text);
}

static void log_of_another_run_is_refused(void **state)
{
    esper_log_head other = head;
    esper_decision_log *log;

    (void)state;
    write_log(1);
    strcpy(other.task, "cifar10");
    check_fails(esper_decision_log_open(PATH, &other, true, 1, &log), ESPER_E_FORMAT, PATH ":1: |fashion|cifar10");
    other = head;
    other.seed = 7;
    check_fails(esper_decision_log_open(PATH, &other, true, 1, &log), ESPER_E_FORMAT, ":1: |18446744073709551614|7");
    other = head;
    other.topology = ESPER_TOPOLOGY_TRANSFORMER;
    check_fails(esper_decision_log_open(PATH, &other, true, 1, &log), ESPER_E_FORMAT, ":1: |cnn|transformer");
    other = head;
    strcpy(other.kernels, "ref"); /* may change: a resumed run says so itself */
    check_good(esper_decision_log_open(PATH, &other, true, 1, &log));
    esper_decision_log_close(log);
    memset(other.task, 'x', sizeof(other.task));
    check_fails(esper_decision_log_open(PATH, &other, false, 0, &log), ESPER_E_ARG, "no text");
    unlink(PATH);
    check_fails(esper_decision_log_open(PATH, &head, true, 0, &log), ESPER_E_NOTFOUND, PATH);
    check_fails(esper_decision_log_open("nowhere/" PATH, &head, false, 0, &log), ESPER_E_NOTFOUND, "nowhere/" PATH);
}

/* ------------------------------------------------------------------------------------------------ damage */

/* The text of a log of three entries with one word of line 3 changed becomes the log. */
static void damage(const char *text, const char *word, const char *instead)
{
    char changed[8192];
    const char *found;
    size_t at = strcspn(text, "\n") + 1;

    at += strcspn(text + at, "\n") + 1;
    found = strstr(text + at, word);
    assert_non_null(found);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(found - text), text, instead, found + strlen(word));
    put_text("w", changed, strlen(changed));
}

static void damaged_lines_are_named(void **state)
{
    static const struct damage_case {
        const char *word, *instead, *says;
    } cases[] = {
        {"{", "", "no JSON"},
        {"{\"number\":1", "[]\n{\"number\":1", "no object"},
        {"{\"number\":1", "\n{\"number\":1", "no JSON"},
        {"\"number\":1", "\"number\":2", "entry 2 where entry 1 belongs"},
        {"\"number\":1", "\"number\":-1", "number is not"},
        {"\"number\":1,", "", "number is missing"},
        {"\"epoch\":2", "\"epoch\":0", "count from 1"},
        {"\"epoch\":2", "\"epoch\":2.5", "epoch is not"},
        {"\"epoch\":2", "\"epoch\":3000000000", "epoch is not"},
        {"\"epoch\":2", "\"epoch\":2,\"epoch\":2", "duplicate"},
        {"\"epoch\":2", "\"epoch\":2,\"colour\":1", "1 members that nobody knows"},
        {"\"share\":0.25", "\"share\":1.5", "a share of 1.5"},
        {"\"share\":0.25", "\"share\":\"nan\"", "a share of nan"},
        {"\"share\":0.25,", "", "share is missing"},
        {"\"9007199254740993\"", "\"18446744073709551616\"", "step is not"},
        {"\"policy\"", "\"policies\"", "no source 'policies'"},
        {"\"policy\"", "7", "source is not a text"},
        {"\"policy\"", "\"governor\"", "action is missing"},
        {"\"germinate\"", "\"grow\"", "no op 'grow'"},
        {"\"r0c1\"", "\"r0c1 and something longer\"", "slot is longer"},
        {"\"r0c1\"", "null", "a slot is missing"},
        {"\"attention\"", "\"conv_huge\"", "conv_huge"},
        {"\"attention\"", "null", "a blueprint is missing"},
        {"\"gated_gate\"", "null", "no style"},
        {"0.30000000000000004", "1.5", "target"},
        {"0.30000000000000004", "\"nan\"", "target"},
        {"0.30000000000000004", "1e999", "no JSON"},
        {"0.30000000000000004", "\"0.3\"", "target is not a number"},
        {"\"tempo\":7", "\"tempo\":0", "tempo"},
        {"\"text\":\"", "\"text_bytes\":\"6\",\"text\":\"", "text_bytes"},
        {"\"text\":\"", "\"text_bytes\":\"6G\",\"text\":\"", "text_bytes"},
        {"\"text\":\"", "\"text_bytes\":\"00\",\"text\":\"", "text_bytes"},
        {"plateau of", "plateau\\u0000of", "no JSON"},
        {"plateau of", "plateau \xff of", "no JSON"},
    };
    esper_decision_history history;
    esper_decision_log *log;
    char *text;
    size_t bytes;

    (void)state;
    write_log(3);
    text = text_of(&bytes);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char words[256];

        damage(text, cases[i].word, cases[i].instead);
        snprintf(words, sizeof(words), PATH ":3: |%s", cases[i].says);
        check_fails(esper_decision_history_read(PATH, UINT64_MAX, &history), ESPER_E_FORMAT, words);
        check_fails(esper_decision_log_open(PATH, &head, true, 3, &log), ESPER_E_FORMAT, words);
    }
    /* What is cut away is not judged. */
    damage(text, "\"germinate\"", "\"grow\"");
    check_good(esper_decision_log_open(PATH, &head, true, 1, &log));
    esper_decision_log_close(log);
    esper_mem_free(text);
}

#define HEAD(task, topology, seed, rest)                                                                     \
    "{\"esper_decisions\":3," task "\"topology\":\"" topology "\",\"seed\":\"" seed "\",\"kernels\":\"ref\"" rest "}\n"

static void damaged_headers_are_named(void **state)
{
    static const struct head_case {
        const char *text, *says;
    } cases[] = {
        {"", "no whole line"},
        {"{\"esper_decisions\":1", "no whole line"},
        {"{\"epoch\":1}\n", "no decision log"},
        {"{\"esper_decisions\":1,\"task\":\"x\"}\n",
         "version 1; this program reads version 3|the program that made them"},
        {"{\"esper_decisions\":2,\"task\":\"x\"}\n", "version 2; this program reads version 3"},
        {"{\"esper_decisions\":4}\n", "version 4; this program reads version 3"},
        {HEAD("\"task\":\"x\",", "cnn", "1", ",\"ranks\":1"), "budget is missing"},
        {HEAD("\"task\":\"x\",", "cnn", "1", ",\"ranks\":1,\"budget\":\"5\",\"epochs\":3"),
         "1 members that nobody knows"},
        {HEAD("\"task\":\"x\",", "cnn", "1", ",\"budget\":\"5\""), "ranks is missing"},
        {HEAD("\"task\":\"x\",", "cnn", "1", ",\"ranks\":1,\"budget\":-5"), "budget"},
        {HEAD("", "cnn", "1", ",\"ranks\":1,\"budget\":\"5\""), "task is missing"},
        {HEAD("\"task\":\"x\",", "graph", "1", ",\"ranks\":1,\"budget\":\"5\""), "'graph'"},
        {HEAD("\"task\":\"x\",", "cnn", "-1", ",\"ranks\":1,\"budget\":\"5\""), "seed"},
    };
    esper_decision_history history;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char words[256];

        put_text("w", cases[i].text, strlen(cases[i].text));
        snprintf(words, sizeof(words), PATH ":1: |%s", cases[i].says);
        check_fails(esper_decision_history_read(PATH, UINT64_MAX, &history), ESPER_E_FORMAT, words);
    }
}

/* Any single byte of a log changed: read or refused, with a line; never worse. */
static void survives_any_byte(void **state)
{
    esper_log_entry entries[4] = {a_decision(), a_rollback(), an_injection(1, 1), a_fork()};
    esper_decision_log *log = open_new();
    esper_decision_history history;
    int n_refused = 0;
    char *text, kept;
    size_t bytes;

    (void)state;
    for (int i = 0; i < 4; i++)
        check_good(esper_decision_log_append(log, &entries[i]));
    esper_decision_log_close(log);
    text = text_of(&bytes);
    for (size_t i = 0; i < bytes; i++) {
        esper_status status;

        kept = text[i];
        text[i] = (char)(kept ^ (i % 2 == 0 ? 0x10 : 0x01));
        put_text("w", text, bytes);
        text[i] = kept;
        status = esper_decision_history_read(PATH, UINT64_MAX, &history);
        if (status == ESPER_OK) {
            esper_decision_history_free(&history);
            continue;
        }
        n_refused++;
        check_fails(status, ESPER_E_FORMAT, PATH ":");
    }
    esper_mem_free(text);
    print_message("%d of %d changed bytes were refused\n", n_refused, (int)bytes);
    assert_in_range(n_refused, bytes / 2, bytes);
}

/* What the log would not read again, it does not write. */
static void refuses_what_is_not_whole(void **state)
{
    esper_decision_log *log = open_new();
    esper_log_entry entry = a_decision();
    uint64_t bytes = count_bytes();

    (void)state;
    entry.epoch = 0;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, PATH ": entry 0: |epoch 0");
    entry = a_decision();
    entry.source = ESPER_LOG_N_SOURCES;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "source 4");
    entry = a_fork();
    entry.trial.blueprint = -1;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "a fork's slot and blueprint (-1)");
    entry = a_fork();
    entry.slot[0] = '\0';
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "a fork's slot and blueprint (1)");
    entry = a_fork();
    entry.trial.round = -1;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "round -1");
    entry = a_decision();
    entry.slot[0] = '\0';
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "slot 1 has no name");
    entry = a_decision();
    strcpy(entry.slot, "slot 1");
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "'slot 1' is no slot");
    entry = a_decision();
    entry.decision.target = (double)NAN;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "target");
    entry = a_decision();
    entry.decision.op = ESPER_SLOT_OP_PRUNE;
    entry.decision.blueprint = 15;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "blueprint 15");
    entry = a_rollback();
    entry.governor.action = ESPER_GOVERNOR_GO;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "no action 0");
    entry = a_rollback();
    entry.governor.role = -1;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "do not go together");
    entry = a_rollback();
    strcpy(entry.governor.tensor, "\xff");
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "do not go together");
    entry = a_rollback();
    entry.governor.n_pruned = 3; /* of which one has no name */
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "'' is no slot");
    entry = a_rollback();
    entry.governor.lr_scale = (double)NAN;
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "learning rate");
    entry = an_injection(5, 0);
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "fault 5");
    entry = an_injection(0, 3);
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_ARG, "point 3");
    assert_int_equal(count_bytes(), bytes);
    assert_int_equal(count_entries(), 0);
    esper_decision_log_close(log);
}

/* ------------------------------------------------------------------------------------------------ faults */

static void set_file_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The disk takes only a part of a line: the append says so, the file is as before, and later there may be room again. */
static void full_disk_leaves_whole_lines(void **state)
{
    esper_decision_log *log = open_new();
    esper_log_entry entry = a_decision();
    esper_decision_history history;
    uint64_t before, n_waiting = 0;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    check_good(esper_decision_log_append(log, &entry));
    before = count_bytes();
    for (rlim_t room = 0; room < 100; room += 33) {
        esper_status status;

        set_file_limit(before + room);
        entry.step++;
        check_good(esper_decision_log_append(log, &entry));
        status = esper_decision_log_catch_up(log);
        set_file_limit(RLIM_INFINITY);
        check_fails(status, ESPER_E_IO, PATH "|cannot be written");
        assert_int_equal(count_bytes(), before);
        assert_int_equal(++n_waiting, esper_decision_log_n_waiting(log));
    }
    entry.step++;
    check_good(esper_decision_log_append(log, &entry));
    assert_int_equal(esper_decision_log_n_waiting(log), 0);
    esper_decision_log_close(log);
    history = read_all();
    assert_int_equal(history.n, 2 + n_waiting);
    for (uint64_t i = 1; i < history.n; i++)
        assert_int_equal(history.entries[i].step, history.entries[i - 1].step + 1);
    esper_decision_history_free(&history);
}

/* It keeps some thousands and no more; those that it has kept are written. */
static void only_so_many_entries_wait(void **state)
{
    esper_decision_log *log = open_new();
    esper_log_entry entry = a_decision();
    esper_status status = ESPER_OK;
    esper_decision_history history;
    uint64_t n = 0;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    set_file_limit(count_bytes());
    while (status == ESPER_OK && n < 100000) {
        status = esper_decision_log_append(log, &entry);
        n += status == ESPER_OK;
    }
    check_fails(status, ESPER_E_IO, PATH "|no room on the disk|no more are kept");
    assert_int_equal(esper_decision_log_n_waiting(log), n);
    assert_true(n > 5000);
    set_file_limit(RLIM_INFINITY);
    check_good(esper_decision_log_catch_up(log));
    esper_decision_log_close(log);
    history = read_all();
    assert_int_equal(history.n, n);
    esper_decision_history_free(&history);
}

/* A log that can be neither written nor cut back takes nothing any more. */
static void broken_log_stays_broken(void **state)
{
    esper_decision_log *log;
    esper_log_entry entry = a_decision();

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: no /dev/full\n");
        skip();
    }
    check_fails(esper_decision_log_open("/dev/full", &head, false, 0, &log), ESPER_E_IO,
                "/dev/full: cannot be written");
    log = open_new();
    for (int fd = 3; fd < 64; fd++) { /* its descriptor becomes that of a device which is full and cannot be cut */
        char link[64], target[512] = "";
        int full;

        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof(target) - 1) < 0 || strstr(target, PATH) == NULL)
            continue;
        full = open("/dev/full", O_WRONLY);
        assert_int_equal(dup2(full, fd), fd);
        close(full);
    }
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_IO, PATH "|cannot be written");
    check_fails(esper_decision_log_append(log, &entry), ESPER_E_IO, PATH "|no more entries");
    assert_int_equal(count_entries(), 0);
    esper_decision_log_close(log);
}

/* A log that people would not find again, or not as it was written, is noticed at the next entry. */
static void a_log_that_goes_away_is_noticed(void **state)
{
    esper_log_entry entry = a_decision();

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_decision_log *log = open_new();
        FILE *file;

        check_good(esper_decision_log_append(log, &entry));
        if (i == 0)
            assert_int_equal(unlink(PATH), 0);
        if (i == 1) { /* another file in its place */
            assert_int_equal(rename(PATH, "aside.jsonl"), 0);
            close(creat(PATH, 0666));
        }
        if (i == 2) {
            file = fopen(PATH, "a");
            fputs("{}\n", file);
            fclose(file);
        }
        check_fails(esper_decision_log_append(log, &entry), ESPER_E_IO, PATH "|somebody else");
        check_fails(esper_decision_log_append(log, &entry), ESPER_E_IO, PATH "|no more entries");
        esper_decision_log_close(log);
    }
}

/* What is written stays in the file of that name. */
static void no_log_is_written_through_a_link(void **state)
{
    esper_decision_log *log = open_new();

    (void)state;
    esper_decision_log_close(log);
    unlink("link.jsonl");
    assert_int_equal(symlink(PATH, "link.jsonl"), 0);
    check_fails(esper_decision_log_open("link.jsonl", &head, false, 0, &log), ESPER_E_IO, "link.jsonl");
    check_fails(esper_decision_log_open("link.jsonl", &head, true, 0, &log), ESPER_E_IO, "link.jsonl");
    assert_int_equal(count_entries(), 0);
}

/* Appends for ever, and says through the pipe how far it is. */
static void append_until_killed(int pipe_fd)
{
    esper_decision_log *log = open_new();
    esper_log_entry entry = a_decision();

    for (uint64_t n = 1;; n++) {
        if (esper_decision_log_append(log, &entry) != ESPER_OK)
            _exit(1);
        if (write(pipe_fd, &n, sizeof(n)) != sizeof(n))
            _exit(1);
        entry.epoch++;
    }
}

/* Whatever was told to be appended is in the file, and nothing but whole entries and perhaps one torn line. */
static void killed_run_keeps_its_entries(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        uint64_t told = 0, n;
        esper_decision_history history;
        esper_decision_log *log;
        int ends[2], status;
        pid_t child;

        assert_int_equal(pipe(ends), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0)
            append_until_killed(ends[1]);
        close(ends[1]);
        while (told < (uint64_t)(3 * round + 1) && read(ends[0], &n, sizeof(n)) == sizeof(n))
            told = n;
        usleep((useconds_t)(137 * round));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &n, sizeof(n)) == sizeof(n))
            told = n;
        close(ends[0]);
        history = read_all();
        if (history.n < told || history.n > told + 1)
            fail_msg("%d entries in the file, %d were told", (int)history.n, (int)told);
        for (uint64_t i = 0; i < history.n; i++)
            assert_int_equal(history.entries[i].epoch, 12 + i);
        esper_decision_history_free(&history);
        check_good(esper_decision_log_open(PATH, &head, true, told, &log));
        esper_decision_log_close(log);
    }
}

static esper_status open_and_append(void *context)
{
    esper_log_entry entry = a_decision();
    esper_decision_log *log;
    esper_status status = esper_decision_log_open(PATH, &head, *(bool *)context, 0, &log);

    if (status != ESPER_OK)
        return status;
    status = esper_decision_log_append(log, &entry);
    esper_decision_log_close(log);
    return status;
}

static esper_status read_once(void *context)
{
    esper_decision_history history;
    esper_status status = esper_decision_history_read(PATH, UINT64_MAX, &history);

    (void)context;
    if (status == ESPER_OK)
        esper_decision_history_free(&history);
    return status;
}

static void memory_that_is_out(void **state)
{
    bool resume = false;
    esper_mem_stats before, after;
    esper_log_entry entry = a_decision();
    esper_decision_log *log;

    (void)state;
    fail_each("a new log", open_and_append, NULL, &resume, 1);
    resume = true;
    fail_each("a resumed log", open_and_append, NULL, &resume, 1);
    write_log(70); /* more than there is room for at first */
    fail_each("reading", read_once, NULL, NULL, 1);
    log = open_new();
    esper_mem_stats_get(&before);
    check_good(esper_decision_log_append(log, &entry));
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_decision_log_close(log);
    esper_decision_log_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written),
        cmocka_unit_test(writes_what_was_read),
        cmocka_unit_test(is_written_as_said),
        cmocka_unit_test(is_cut_back_to_the_checkpoint),
        cmocka_unit_test(torn_line_is_no_entry),
        cmocka_unit_test(log_of_another_run_is_refused),
        cmocka_unit_test(damaged_lines_are_named),
        cmocka_unit_test(damaged_headers_are_named),
        cmocka_unit_test(survives_any_byte),
        cmocka_unit_test(refuses_what_is_not_whole),
        cmocka_unit_test(full_disk_leaves_whole_lines),
        cmocka_unit_test(only_so_many_entries_wait),
        cmocka_unit_test(broken_log_stays_broken),
        cmocka_unit_test(a_log_that_goes_away_is_noticed),
        cmocka_unit_test(no_log_is_written_through_a_link),
        cmocka_unit_test(killed_run_keeps_its_entries),
        cmocka_unit_test(memory_that_is_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
