/* ctest: timeout=60 */
/* The report of a run: stores are made with the store's own functions, and pages are looked through for what they must
 * hold, for being well-formed, and for needing nothing from outside. Pages stay in the test's folder, to be seen. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>

#include "base/atomic_file.h"
#include "telemetry/helpers.h"
#include "ui/report.h"
#include "ui/report_chart.h"
#include "ui/report_html.h"

enum { STEPS = 100 }; /* an epoch */

/* ================================================================================================ looking at pages */

enum { DEEPEST = 64, TAG_CHARS = 24 };

typedef struct tags {
    char names[DEEPEST][TAG_CHARS];
    int  depth, n_seen;
} tags;

/* The end of a tag that begins at `at`: ">" outside of quotes. */
static const char *end_of_tag(const char *at)
{
    char quote = '\0';

    for (const char *s = at + 1; *s != '\0'; s++) {
        if (quote != '\0' ? *s == quote : *s == '"' || *s == '\'')
            quote = quote != '\0' ? '\0' : *s;
        else if (quote == '\0' && *s == '>')
            return s;
        else if (*s == '<')
            fail_msg("'<' inside of a tag: %.80s", at);
    }
    fail_msg("a tag that does not end: %.80s", at);
    return NULL;
}

/* No script, nothing loaded, no place to go to but in the page. */
static void check_tag(const char *tag, size_t n)
{
    static const char *const forbidden[] = {"<script", "<link",  "<img",  "<iframe", "<object", "<embed",  "<base",
                                            "<use",    "<image", "<form", " src=",   "xlink",   " style=", "url("};
    char *text = esper_mem_alloc(n + 1);
    const char *href;

    assert_non_null(text);
    memcpy(text, tag, n);
    for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++)
        if (strcasestr(text, forbidden[i]) != NULL)
            fail_msg("%s in %s", forbidden[i], text);
    href = strstr(text, "href=\"");
    if (href != NULL && href[6] != '#')
        fail_msg("a link that leads out: %s", text);
    for (const char *s = text; (s = strstr(s, " on")) != NULL; s++)
        if (isalpha((unsigned char)s[3]) && strchr(s, '=') != NULL && strchr(s, '=') - s < 14)
            fail_msg("an event handler: %s", text);
    esper_mem_free(text);
}

static void take_tag(tags *stack, const char *at, const char *end)
{
    const char *name = at[1] == '/' ? at + 2 : at + 1;
    size_t n = strcspn(name, " \n/>");

    check_tag(at, (size_t)(end - at) + 1);
    stack->n_seen++;
    if (n == 0 || n >= TAG_CHARS)
        fail_msg("no tag: %.40s", at);
    if (at[1] == '/') {
        if (stack->depth == 0 || strncmp(stack->names[stack->depth - 1], name, n) != 0 ||
            stack->names[stack->depth - 1][n] != '\0')
            fail_msg("%.40s closes <%s>", at, stack->depth > 0 ? stack->names[stack->depth - 1] : "nothing");
        stack->depth--;
    } else if (end[-1] != '/') {
        assert_true(stack->depth < DEEPEST);
        memcpy(stack->names[stack->depth], name, n);
        stack->names[stack->depth++][n] = '\0';
    }
}

static void check_entity(const char *at)
{
    size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789#");

    if (n == 0 || at[1 + n] != ';')
        fail_msg("a bare '&': %.40s", at);
}

/* Every place in the page that a link or a label leads to is there, once. */
static void check_ids(const char *text)
{
    for (const char *s = text; (s = strstr(s, " href=\"#")) != NULL; s++) {
        char id[80];
        const char *found;

        snprintf(id, sizeof(id), " id=\"%.*s\"", (int)strcspn(s + 8, "\""), s + 8);
        found = strstr(text, id);
        if (found == NULL || strstr(found + 1, id) != NULL)
            fail_msg("%s is not there once", id);
    }
}

static void check_page(const char *text)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    tags stack = {.depth = 0};

    assert_memory_equal(text, doctype, strlen(doctype));
    for (const char *s = text + strlen(doctype); *s != '\0'; s++) {
        if (*s == '<') {
            const char *end = end_of_tag(s);

            take_tag(&stack, s, end);
            s = end;
        } else if (*s == '&') {
            check_entity(s);
        } else if (*s == '>') {
            fail_msg("a bare '>': %.40s", s);
        }
    }
    if (stack.depth != 0)
        fail_msg("<%s> stays open", stack.names[stack.depth - 1]);
    assert_true(stack.n_seen > 50);
    check_ids(text);
    assert_null(strstr(text, "@import"));
    assert_null(strstr(text, "url("));
}

static esper_store_reader *open_reader(const char *path)
{
    esper_store_reader *reader = NULL;

    check_good(esper_store_reader_open(path, &reader));
    return reader;
}

static esper_page page_of(const char *path)
{
    esper_store_reader *reader = open_reader(path);
    esper_page page = {0};
    char name[64];

    check_good(esper_report_write(reader, ESPER_REPORT_RUN, &page));
    esper_store_reader_close(reader);
    check_page(page.text);
    snprintf(name, sizeof(name), "%.*s.html", (int)strcspn(path, "."), path);
    check_good(esper_file_write(name, page.text, page.used));
    return page;
}

static void has(const esper_page *page, const char *words)
{
    if (strstr(page->text, words) == NULL)
        fail_msg("the page does not say: %s", words);
}

static void has_not(const esper_page *page, const char *words)
{
    const char *found = strstr(page->text, words);

    if (found != NULL)
        fail_msg("the page says: %.120s", found);
}

static int count(const esper_page *page, const char *words)
{
    int n = 0;

    for (const char *s = page->text; (s = strstr(s, words)) != NULL; s += strlen(words))
        n++;
    return n;
}

/* ================================================================================================ making stores */

static esper_store *begin(const char *path, const esper_store_run *run, const char *config)
{
    esper_store_options options = {.queue_records = 1 << 15};
    esper_store *store;
    int64_t id;

    remove_store(path);
    store = open_store(path, &options);
    check_good(esper_store_begin(store, run, config, &id));
    assert_int_equal(id, ESPER_REPORT_RUN);
    return store;
}

static esper_store_run usual_run(void)
{
    esper_store_run run = esper_store_run_of("runs/fashion-20260131-1");

    ESPER_STORE_SET(run.task, "fashion");
    ESPER_STORE_SET(run.policy, "heuristic");
    ESPER_STORE_SET(run.gate_mode, "strict");
    ESPER_STORE_SET(run.kernels, "cpu/avx2");
    ESPER_STORE_SET(run.build, "6072a7f");
    run.rng_seed = 18446744073709551615u;
    run.threads = 2;
    run.params_host = 9418;
    run.flops_host = 1620000;
    return run;
}

static void end(esper_store *store, esper_store_run *run, double acc_test, int64_t params, int64_t flops_train)
{
    ESPER_STORE_SET(run->status, esper_status_name(ESPER_OK));
    run->epochs = 40;
    run->steps = 40 * STEPS;
    run->params = params;
    run->flops = params * 172;
    run->flops_train = flops_train;
    run->acc_test = acc_test;
    run->seconds = 100.0 + (double)params / 1000.0;
    check_good(esper_store_end(store, run));
    esper_store_close(store);
}

/* A curve that rises and levels off, with some roughness. */
static double rise(int64_t epoch, double from, double to, double pace)
{
    return to - (to - from) * exp(-(double)epoch / pace) + 0.25 * sin((double)epoch * 2.1);
}

static void push_epoch(esper_store *store, int64_t epoch, double acc, int64_t params, int64_t n_seeds)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_EPOCH, epoch, epoch * STEPS);

    record.epoch_done.acc_valid = acc;
    record.epoch_done.acc_train = acc + (100.0 - acc) * fmin(0.01 * (double)epoch, 0.7);
    record.epoch_done.loss_valid = 2.3 * pow(1.0 - acc / 100.0, 0.7);
    record.epoch_done.loss_train = record.epoch_done.loss_valid * (1.0 - 0.004 * (double)epoch);
    record.epoch_done.lr = 0.05;
    record.epoch_done.grad_norm = 1.5;
    record.epoch_done.params = params;
    record.epoch_done.n_seeds = n_seeds;
    record.epoch_done.flops_train = epoch * 1000000000;
    record.epoch_done.seconds = 2.5;
    esper_store_push(store, &record);
}

static void push_rate(esper_store *store, int64_t epoch, double lr)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_EPOCH, epoch, epoch * STEPS);

    record.epoch_done.acc_valid = 60.0 + (double)epoch;
    record.epoch_done.lr = lr;
    esper_store_push(store, &record);
}

static void push_germination(esper_store *store, int64_t epoch, int64_t seed, const char *slot, const char *blueprint,
                             int64_t params)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_GERMINATION, epoch, epoch * STEPS);

    record.germination.seed = seed;
    record.germination.params = params;
    ESPER_STORE_SET(record.germination.slot, slot);
    ESPER_STORE_SET(record.germination.blueprint, blueprint);
    ESPER_STORE_SET(record.germination.blend, "add");
    ESPER_STORE_SET(record.germination.reason, "plateau");
    esper_store_push(store, &record);
}

static void push_move(esper_store *store, int64_t epoch, int64_t seed, const char *from, const char *to,
                      const char *reason)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_STAGE, epoch, epoch * STEPS);

    record.stage.seed = seed;
    ESPER_STORE_SET(record.stage.slot, "r0c0");
    ESPER_STORE_SET(record.stage.from_stage, from);
    ESPER_STORE_SET(record.stage.to_stage, to);
    ESPER_STORE_SET(record.stage.initiator, "policy");
    ESPER_STORE_SET(record.stage.reason, reason);
    esper_store_push(store, &record);
}

static void push_alpha(esper_store *store, int64_t epoch, int64_t seed, const char *stage, double alpha)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_SEED_EPOCH, epoch, epoch * STEPS);

    record.seed_epoch.seed = seed;
    record.seed_epoch.alpha = alpha;
    ESPER_STORE_SET(record.seed_epoch.stage, stage);
    esper_store_push(store, &record);
}

static esper_store_record check_of(const char *name, double value, double threshold, int64_t passed)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_CHECK, 0, 0);

    ESPER_STORE_SET(record.check.name, name);
    record.check.value = value;
    record.check.threshold = threshold;
    record.check.passed = passed;
    return record;
}

static void push_gate(esper_store *store, int64_t epoch, int64_t seed, const char *name, const char *to, double value,
                      double threshold, const char *message)
{
    esper_store_record gate = esper_store_record_of(ESPER_STORE_GATE, epoch, epoch * STEPS);
    esper_store_record checks[2] = {check_of("contribution", value, threshold, value >= threshold),
                                    check_of("healthy", 1.0, ESPER_STORE_NO_REAL, 1)};

    gate.gate.seed = seed;
    gate.gate.passed = value >= threshold;
    ESPER_STORE_SET(gate.gate.gate, name);
    ESPER_STORE_SET(gate.gate.mode, "strict");
    ESPER_STORE_SET(gate.gate.to_stage, to);
    ESPER_STORE_SET(gate.gate.message, message);
    esper_store_push_gate(store, &gate, checks, 2);
}

static void push_decision(esper_store *store, int64_t epoch, const char *op, const char *slot, const char *reason,
                          int64_t accepted)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_DECISION, epoch, epoch * STEPS);

    ESPER_STORE_SET(record.decision.source, "policy");
    ESPER_STORE_SET(record.decision.op, op);
    ESPER_STORE_SET(record.decision.slot, slot);
    ESPER_STORE_SET(record.decision.reason, reason);
    if (strcmp(op, "germinate") == 0) {
        ESPER_STORE_SET(record.decision.blueprint, "conv_light");
        record.decision.tempo = 5;
    }
    record.decision.accepted = accepted;
    esper_store_push(store, &record);
}

static void push_worth(esper_store *store, int64_t epoch, const char *measure, int64_t seed, int64_t other,
                       double value)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_ATTRIBUTION, epoch, epoch * STEPS);

    ESPER_STORE_SET(record.attribution.measure, measure);
    record.attribution.seed = seed;
    record.attribution.other_seed = other;
    record.attribution.value = value;
    record.attribution.lower = value - 0.31;
    record.attribution.upper = value + 0.31;
    record.attribution.n_samples = 5000;
    record.attribution.n_epochs = 3;
    esper_store_push(store, &record);
}

static void push_rollback(esper_store *store, int64_t from_epoch, int64_t to_epoch, const char *reason)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_ROLLBACK, from_epoch, to_epoch * STEPS);

    ESPER_STORE_SET(record.rollback.action, "roll_back");
    record.rollback.from_epoch = from_epoch;
    record.rollback.from_step = from_epoch * STEPS;
    record.rollback.to_epoch = to_epoch;
    record.rollback.to_step = to_epoch * STEPS;
    record.rollback.n_pruned = 0;
    record.rollback.lr_scale = 0.5;
    record.rollback.seconds = 0.012;
    ESPER_STORE_SET(record.rollback.reason, reason);
    esper_store_push(store, &record);
}

static void push_reading(esper_store *store, int64_t epoch, int64_t n_tensors, const char *tensor, const char *action)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_HEALTH, epoch, epoch * STEPS);

    record.health.n_tensors = n_tensors;
    record.health.n_skipped = n_tensors;
    ESPER_STORE_SET(record.health.action, action);
    if (n_tensors > 0) {
        ESPER_STORE_SET(record.health.tensor, tensor);
        ESPER_STORE_SET(record.health.role, "param");
        ESPER_STORE_SET(record.health.problem, "NaN");
        record.health.n_elements = 3;
    }
    esper_store_push(store, &record);
}

/* A life from birth to being kept or pruned. */
typedef struct plan {
    int64_t     seed;
    const char *slot, *blueprint;
    int64_t     params, born, blends, holds, ends; /* epochs; 0: not reached */
    bool        kept;
    const char *reason;
} plan;

static void live(esper_store *store, const plan *seed, int64_t epoch)
{
    const char *stage = seed->ends > 0 && epoch > seed->ends && seed->kept ? "fossilized"
                        : seed->holds > 0 && epoch > seed->holds           ? "holding"
                        : seed->blends > 0 && epoch > seed->blends         ? "blending"
                                                                           : "training";
    double alpha = seed->blends > 0 && epoch > seed->blends ? (double)(epoch - seed->blends) / 5.0 : 0.0;

    if (epoch == seed->born) {
        push_germination(store, epoch, seed->seed, seed->slot, seed->blueprint, seed->params);
        push_decision(store, epoch, "germinate", seed->slot, "accuracy stands still", 1);
    }
    if (epoch > seed->born && (seed->ends == 0 || epoch <= seed->ends))
        push_alpha(store, epoch, seed->seed, stage, fmin(alpha, 1.0));
    if (epoch == seed->born + 1)
        push_move(store, epoch, seed->seed, "germinated", "training", "gate passed");
    if (epoch == seed->blends) {
        push_gate(store, epoch, seed->seed, "G2", "blending", 0.62, 0.5, "trial gain 0.62 reaches 0.50");
        push_move(store, epoch, seed->seed, "training", "blending", "gate passed");
    }
    if (epoch == seed->holds)
        push_move(store, epoch, seed->seed, "blending", "holding", "alpha reached 1");
    if (epoch == seed->ends && seed->ends > 0) {
        const char *from = seed->holds > 0 ? "holding" : seed->blends > 0 ? "blending" : "training";

        push_gate(store, epoch, seed->seed, seed->kept ? "G5" : "G2", seed->kept ? "fossilized" : "blending",
                  seed->kept ? 1.32 : 0.08, seed->kept ? 1.0 : 0.5, seed->reason);
        push_move(store, epoch, seed->seed, from, seed->kept ? "fossilized" : "pruned", seed->reason);
    }
}

static const plan plans[] = {
    {1, "r1c0", "conv_light", 2432, 5, 10, 16, 20, true, "lower bound 1.32 reaches 1.00"},
    {2, "r0c0", "attention", 512, 8, 0, 0, 16, false, "no gain of a trial blend after 8 epochs"},
    {3, "r2c0", "conv_heavy", 9280, 18, 23, 29, 33, true, "lower bound 1.10 reaches 1.00"},
    {4, "r0c0", "norm", 32, 24, 27, 0, 31, false, "upper bound -0.12 is below 1.00"},
    {5, "r0c0", "depthwise", 1120, 35, 38, 0, 0, false, ""},
};

enum { N_PLANS = sizeof(plans) / sizeof(plans[0]) };

static void grow(esper_store *store)
{
    for (int64_t epoch = 1; epoch <= 40; epoch++) {
        double acc = rise(epoch, 55.0, 87.4, 4.0) + (epoch > 12 ? 1.6 * fmin((double)(epoch - 12) / 6.0, 1.0) : 0.0) +
                     (epoch > 25 ? 1.4 * fmin((double)(epoch - 25) / 6.0, 1.0) : 0.0);
        int64_t params = 9418, n = 0;

        for (int i = 0; i < N_PLANS; i++)
            if (epoch > plans[i].born && (plans[i].kept || plans[i].ends == 0 || epoch <= plans[i].ends)) {
                params += plans[i].params;
                n++;
            }
        push_epoch(store, epoch, acc, params, n);
        for (int i = 0; i < N_PLANS; i++)
            live(store, &plans[i], epoch);
        push_decision(store, epoch, "wait", "", epoch < 5 ? "the host is not stable" : "seeds are at work", 1);
        push_reading(store, epoch, 0, "", "go");
        if (epoch == 26) {
            push_epoch(store, 27, 31.0, 21642, 3);
            push_reading(store, 27, 2, "blocks.1.conv.weight", "roll_back");
            push_rollback(store, 27, 26, "NaN in blocks.1.conv.weight");
        }
    }
    push_worth(store, 19, "contribution", 1, ESPER_STORE_NO_INT, 1.1);
    push_worth(store, 40, "contribution", 1, ESPER_STORE_NO_INT, 1.74);
    push_worth(store, 33, "contribution", 3, ESPER_STORE_NO_INT, 1.52);
    push_worth(store, 30, "contribution", 4, ESPER_STORE_NO_INT, -0.43);
    push_worth(store, 30, "shapley", 4, ESPER_STORE_NO_INT, -0.77);
    push_worth(store, 40, "shapley", 1, ESPER_STORE_NO_INT, 1.91);
    push_worth(store, 40, "shapley", 3, ESPER_STORE_NO_INT, 1.38);
    push_worth(store, 40, "shapley", 5, ESPER_STORE_NO_INT, -0.2);
    push_worth(store, 40, "synergy", 1, 3, -0.35);
    push_worth(store, 40, "synergy", 3, 5, 0.12);
}

static void make_full(const char *path)
{
    static const char config[] = "task = fashion\nepochs = 40\nlr = 0.05\n# a < b && c\n";
    esper_store_run run = usual_run(), control = usual_run();
    esper_store *store = begin(path, &run, config);
    int64_t id;

    grow(store);
    end(store, &run, 91.234, 22250, 5123000000000);
    ESPER_STORE_SET(control.relation, ESPER_REPORT_CONTROL);
    ESPER_STORE_SET(control.name, "runs/fashion-20260131-1/static");
    control.parent_run = ESPER_REPORT_RUN;
    store = open_store(path, NULL);
    check_good(esper_store_begin(store, &control, NULL, &id));
    for (int64_t epoch = 1; epoch <= 40; epoch++)
        push_epoch(store, epoch, rise(epoch, 55.0, 87.4, 4.2) - 0.2, 9418, 0);
    end(store, &control, 89.4, 9418, 2560000000000);
}

/* ================================================================================================ tests */

static void a_full_run(void **state)
{
    esper_page page;

    (void)state;
    make_full("full.sqlite");
    page = page_of("full.sqlite");
    has(&page, "<title>fashion, grown by heuristic</title>");
    has(&page, "<dd>18446744073709551615</dd>");
    has(&page, "<dd>strict</dd>");
    has(&page, "<dd>cpu/avx2</dd>");
    has(&page, "<dd>6072a7f</dd>");
    has(&page, "# a &lt; b &amp;&amp; c");
    has(&page, "reaches 91.23 % test accuracy, 1.83 points more than its static host, with 2.36 times its parameters");
    has(&page, "5 seeds germinated: 2 kept, 2 pruned, 1 not decided.");
    has(&page, "<th scope=\"row\">static host</th><td class=\"n\">89.40 %</td><td class=\"n\">9,418</td>"
               "<td class=\"n\">1.62 MFLOP</td><td class=\"n\">2.56 TFLOP</td><td class=\"n\">40</td>"
               "<td class=\"n\">1:49</td>");
    has(&page, "<th scope=\"row\">grown host</th><td class=\"n\">91.23 %</td><td class=\"n\">22,250</td>"
               "<td class=\"n\">3.83 MFLOP</td><td class=\"n\">5.12 TFLOP</td><td class=\"n\">40</td>"
               "<td class=\"n\">2:02</td>");
    has(&page, "<th scope=\"row\">difference</th><td class=\"n\">+1.83 points</td><td class=\"n\">+12,832</td>"
               "<td class=\"n\">+2.21 MFLOP</td><td class=\"n\">+2.56 TFLOP</td><td class=\"n\">0</td>"
               "<td class=\"n\">+0:13</td>");
    has_not(&page, "has not ended");
    esper_page_fini(&page);
}

static void its_seeds(void **state)
{
    esper_page page;

    (void)state;
    page = page_of("full.sqlite");
    assert_int_equal(count(&page, "<td class=\"bar\">"), 5);
    assert_int_equal(count(&page, "<path class=\"cut\""), 3); /* two seeds, and the key */
    has(&page, "epoch 16, pruned: seed 2 (attention in r0c0)");
    has(&page, "epoch 20, fossilised: seed 1 (conv_light in r1c0)");
    has(&page, "<title>holding, epochs 16 to 20</title>");
    has(&page, "policy: no gain of a trial blend after 8 epochs");
    has(&page, "not decided: blending");
    /* came in 5, and without a trial; germinated for 1, training 4, blending 6, holding 4; the last dependence with its bounds */
    has(&page, "<td class=\"n\">2,432</td><td class=\"n\">5</td><td class=\"n\">1</td><td class=\"n\">4</td>"
               "<td class=\"n\">6</td><td class=\"n\">4</td><td class=\"n\">\xe2\x80\x93</td><td class=\"n\">+1.74<br/>"
               "<span class=\"soft\">+1.43 to +2.05</span></td>");
    has(&page, "seed 1 (conv_light in r1c0): 2 evaluations, 2 passed");
    has(&page, "seed 2 (attention in r0c0): 1 evaluation, 0 passed");
    has(&page,
        "<td>contribution<br/><span class=\"soft\">dependence: points of accuracy that are lost without it</span></td><td class=\"n\">0.08</td><td class=\"n\">0.5</td>"
        "<td class=\"fail\">fail</td>");
    has(&page,
        "<td>healthy<br/><span class=\"soft\">are all its numbers finite?</span></td><td class=\"n\">1</td><td class=\"n\">\xe2\x80\x93</td>");
    esper_page_fini(&page);
}

static void its_events(void **state)
{
    esper_page page;

    (void)state;
    page = page_of("full.sqlite");
    has(&page, "45 decisions, 40 of them to wait");
    has(&page, "<td class=\"n\">1\xe2\x80\x93"
               "4</td><td>policy</td><td>wait, 4 times</td>");
    has(&page, "blueprint conv_light, tempo 5");
    has(&page, "41 readings, 1 with something to report; 2 steps skipped.");
    has(&page, "<td class=\"why\">blocks.1.conv.weight</td><td>param</td><td>NaN</td>");
    has(&page, "epoch 27, rolled back: to the end of epoch 26 (NaN in blocks.1.conv.weight)");
    has(&page, "<td class=\"n\">+1.91</td>");
    has_not(&page, "-0.77"); /* of an older set */
    has(&page, "<td>seed 1 (conv_light in r1c0)</td><td>seed 3 (conv_heavy in r2c0)</td>");
    /* the epoch that was undone is in the table, and not in the curve */
    assert_int_equal(count(&page, "<tr class=\"undone\">"), 1);
    assert_int_equal(count(&page, "<title>grown host, validation, epoch 27: "), 2); /* accuracy and loss */
    has_not(&page, "epoch 27: 31.00 %");
    esper_page_fini(&page);
}

static void closing_numbers(void **state)
{
    esper_store_reader *reader;
    esper_report_numbers numbers;

    (void)state;
    reader = open_reader("full.sqlite");
    check_good(esper_report_closing(reader, ESPER_REPORT_RUN, &numbers));
    esper_store_reader_close(reader);
    assert_int_equal(numbers.host.run, 2);
    assert_true(numbers.host.ended && numbers.grown.ended);
    assert_int_equal(numbers.grown.params, 22250);
    assert_int_equal(numbers.difference.params, 12832);
    assert_int_equal(numbers.difference.flops, 12832 * 172);
    assert_int_equal(numbers.difference.flops_train, 2563000000000);
    assert_float_equal(numbers.difference.acc_test, 1.834, 1e-9);
    assert_float_equal(numbers.grown.seconds, 122.25, 1e-9);
}

static void an_empty_run(void **state)
{
    static const char *const words[] = {
        "No seed has germinated.",           "No epoch has been finished.",
        "No gate has been evaluated.",       "No decision has been recorded.",
        "The run was never rolled back.",    "The guard has recorded no reading.",
        "No attribution has been measured.", "This run has not ended",
        "0 epochs are recorded so far",      "The static host was not trained beside this run"};
    esper_store_run run = esper_store_run_of("");
    esper_store *store = begin("empty.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    esper_store_close(store);
    page = page_of("empty.sqlite");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        has(&page, words[i]);
    has_not(&page, "nan");
    has_not(&page, "-9223372036854775808");
    has_not(&page, "1.79769");
    esper_page_fini(&page);
}

/* Killed in its third epoch: what its epochs told is what is known. */
static void an_unfinished_run(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("unfinished.sqlite", &run, "epochs = 40\n");
    esper_store_reader *reader;
    esper_report_numbers numbers;
    esper_page page;

    (void)state;
    push_epoch(store, 1, 70.0, 9418, 0);
    push_epoch(store, 2, 75.5, 9418, 0);
    push_germination(store, 2, 1, "r0c0", "conv_light", 2432);
    esper_store_close(store);
    page = page_of("unfinished.sqlite");
    has(&page, "This run has not ended");
    has(&page, "2 epochs are recorded so far");
    has(&page, "Validation accuracy is 75.50 % after epoch 2.");
    has(&page, "not decided: germinated");
    has(&page, "No gate has been evaluated.");
    esper_page_fini(&page);
    reader = open_reader("unfinished.sqlite");
    check_good(esper_report_closing(reader, ESPER_REPORT_RUN, &numbers));
    esper_store_reader_close(reader);
    assert_false(numbers.grown.ended);
    assert_int_equal(numbers.grown.epochs, 2);
    assert_int_equal(numbers.grown.params, 9418);
    assert_int_equal(numbers.grown.flops_train, 2000000000);
    assert_true(numbers.grown.acc_test == ESPER_STORE_NO_REAL);
    assert_float_equal(numbers.grown.seconds, 5.0, 1e-9);
    assert_int_equal(numbers.host.run, ESPER_STORE_NO_INT);
    assert_int_equal(numbers.host.params, 9418);
    assert_int_equal(numbers.difference.params, 0);
    assert_int_equal(numbers.difference.flops, ESPER_STORE_NO_INT);
}

static void a_resumed_run(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("resumed.sqlite", &run, NULL);
    esper_store_reader *reader;
    esper_report_numbers numbers;
    esper_page page;
    int64_t id;

    (void)state;
    for (int64_t epoch = 1; epoch <= 4; epoch++)
        push_epoch(store, epoch, 70.0 + (double)epoch, 9418, 0);
    esper_store_close(store);
    store = open_store("resumed.sqlite", NULL);
    check_good(esper_store_resume(store, run.name, 3, 3 * STEPS, ESPER_STORE_NO_INT, &id)); /* the fourth was cut off */
    push_epoch(store, 4, 74.0, 9418, 0);
    end(store, &run, 73.0, 9418, 4000000000);
    reader = open_reader("resumed.sqlite");
    check_good(esper_report_closing(reader, ESPER_REPORT_RUN, &numbers));
    esper_store_reader_close(reader);
    assert_float_equal(numbers.grown.seconds, 10.0, 1e-9); /* not those of its last process */
    page = page_of("resumed.sqlite");
    has(&page, "The run was resumed: its time is the sum of its epochs'.");
    esper_page_fini(&page);
}

static void numbers_that_are_none(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("nan.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    push_epoch(store, 1, 70.0, 9418, 0);
    push_epoch(store, 2, (double)NAN, 9418, 0);
    push_epoch(store, 3, (double)INFINITY, 9418, 0);
    push_epoch(store, 4, 1e300, 9418, 0);
    push_epoch(store, 5, ESPER_STORE_NO_REAL, 9418, 0);
    push_epoch(store, 6, 80.0, 9418, 0);
    push_germination(store, 2, 1, "r0c0", "conv_light", 2432);
    push_alpha(store, 3, 1, "training", (double)NAN);
    push_alpha(store, 4, 1, "training", 7.0);
    push_gate(store, 4, 1, "G5", "fossilized", (double)NAN, 1.0, "not finite");
    push_worth(store, 4, "contribution", 1, ESPER_STORE_NO_INT, (double)NAN);
    push_worth(store, 4, "shapley", 1, ESPER_STORE_NO_INT, (double)NAN);
    push_worth(store, 4, "synergy", 1, 2, (double)-INFINITY);
    end(store, &run, (double)NAN, 9418, 1);
    page = page_of("nan.sqlite");
    has(&page, "not finite: a cross at the foot");
    has(&page, "above the axis and cut off");
    has(&page,
        "<td>contribution<br/><span class=\"soft\">dependence: points of accuracy that are lost without it</span></td><td class=\"n\">nan</td><td class=\"n\">1</td><td class=\"fail\">");
    has(&page, "<th scope=\"row\">grown host</th><td class=\"n\">nan</td>");
    has(&page, "<td class=\"n\">-inf</td>");
    assert_null(strstr(strstr(page.text, "id=\"accuracy-t\""), "d=\"Mnan"));
    for (const char *s = page.text; (s = strstr(s, " d=\"")) != NULL; s++)
        if (strcspn(s + 4, "\"") != strspn(s + 4, "MLHVAZlhvamz0123456789.- "))
            fail_msg("no path: %.60s", s);
    esper_page_fini(&page);
}

/* A fork as the store has it: most is in its line. */
static void push_fork(esper_store *store, int64_t epoch, const char *slot, const char *blueprint, const char *numbers)
{
    esper_store_record record = esper_store_record_of(ESPER_STORE_DECISION, epoch, epoch * STEPS);
    char line[512];

    ESPER_STORE_SET(record.decision.source, "trial");
    ESPER_STORE_SET(record.decision.op, "trial");
    ESPER_STORE_SET(record.decision.slot, slot);
    ESPER_STORE_SET(record.decision.blueprint, blueprint);
    snprintf(line, sizeof(line), "{\"epoch\":%d,\"share\":0.125,\"source\":\"trial\",%s,\"fork\":\"00\"}", (int)epoch,
             numbers);
    ESPER_STORE_SET(record.decision.line, line);
    record.decision.accepted = 1;
    esper_store_push(store, &record);
}

static int count_words(const esper_page *page, const char *words)
{
    int n = 0;

    for (const char *s = page->text; (s = strstr(s, words)) != NULL; s++)
        n++;
    return n;
}

/* Held for two epochs, a trial after the third, the seed that came of it decided after the fifth; held; falling from 8 on; then the
 * rate is raised once more, and falls again. */
static void phases_stand_behind_the_curves(void **state)
{
    static const double rates[] = {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.01, 0.08, 0.04, 0.0};
    enum { N = sizeof(rates) / sizeof(rates[0]), N_CHARTS = 2 /* accuracy and rate */ };
    esper_store_run run = usual_run();
    esper_store *store = begin("phases.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    for (int64_t epoch = 1; epoch <= N; epoch++) {
        push_rate(store, epoch, rates[epoch - 1]);
        if (epoch == 3) {
            push_fork(store, 3, "", "", "\"round\":0,\"n_steps\":5,\"loss\":0.5,\"gain\":0,\"error\":0,\"flops\":3e9");
            push_germination(store, 3, 1, "r0c1", "conv_light", 2432);
        }
        if (epoch == 5)
            push_move(store, 5, 1, "holding", "fossilized", "it pays");
    }
    end(store, &run, 76.0, 9418, N);
    page = page_of("phases.sqlite");
    assert_int_equal(count_words(&page, "<title>hold, epoch 1 to 2: "), N_CHARTS);
    assert_int_equal(count_words(&page, "<title>trial, epoch 3 to 3: "), N_CHARTS);
    assert_int_equal(count_words(&page, "<title>grow, epoch 4 to 5: "), N_CHARTS);
    assert_int_equal(count_words(&page, "<title>hold, epoch 6 to 10: "), N_CHARTS);
    assert_int_equal(count_words(&page, "<title>fall, epoch 11 to 12: "), N_CHARTS);
    has(&page, "epoch 9, rate raised: from 0.01 to 0.08");
    has(&page, "<li><svg width=\"22\" height=\"14\" aria-hidden=\"true\"><rect class=\"phase p-fall\"");
    esper_page_fini(&page);
}

static void trials(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("trials.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    push_epoch(store, 1, 70.0, 9418, 0);
    push_fork(store, 1, "", "", "\"round\":1,\"n_steps\":200,\"loss\":0.5,\"gain\":0,\"error\":0,\"flops\":3e9");
    push_fork(store, 1, "r0c1", "conv_light",
              "\"round\":1,\"n_steps\":200,\"loss\":0.4,\"gain\":0.1,\"error\":0.01,\"flops\":4e9");
    push_fork(store, 1, "r0c0", "conv_heavy",
              "\"round\":0,\"n_steps\":100,\"loss\":\"nan\",\"gain\":\"nan\",\"error\":\"nan\",\"flops\":1e9");
    push_decision(store, 1, "germinate", "r0c1", "Best of 2 tried", 1);
    push_germination(store, 1, 1, "r0c1", "conv_light", 2432);
    push_epoch(store, 2, 75.0, 9418, 0);
    push_fork(store, 2, "", "", "\"round\":0,\"n_steps\":50,\"loss\":0.4,\"gain\":0,\"error\":0,\"flops\":1e9");
    push_fork(store, 2, "r0c0", "conv_heavy",
              "\"round\":0,\"n_steps\":50,\"loss\":0.42,\"gain\":-0.02,\"error\":0.01,\"flops\":1e9");
    push_decision(store, 2, "wait", "", "Of 1 tried none pays", 1);
    push_epoch(store, 3, 76.0, 9418, 0);
    push_fork(store, 3, "", "", "cut sh"); /* by the end of a run, and of its column */
    end(store, &run, 76.0, 9418, 3);
    page = page_of("trials.sqlite");
    has(&page, "Trials took 10.0 GFLOP of training");
    has(&page, "<h3>Epoch 1, 12.5 % of the run's training FLOPs spent by its end: conv_light in r0c1 wins</h3>");
    has(&page,
        "<td colspan=\"2\">nothing</td><td class=\"n\">2</td><td class=\"n\">200</td><td class=\"n\">0.5000</td>");
    /* of two candidates: 1.960 errors each way */
    has(&page, "<td class=\"name\">r0c1</td><td class=\"name\">conv_light</td><td class=\"n\">2</td>"
               "<td class=\"n\">200</td><td class=\"n\">0.4000</td><td class=\"n\">+0.1000</td>"
               "<td class=\"n\">+0.0804 to +0.1196</td><td class=\"gauge\"><svg");
    has(&page, "<td class=\"n\">1</td><td class=\"n\">100</td><td class=\"n\">nan</td><td class=\"n\">nan</td>");
    has(&page,
        "<h3>Epoch 2, 12.5 % of the run's training FLOPs spent by its end: none pays</h3>\n<p class=\"soft\">Of 1 tried none pays.</p>");
    has(&page, "<td class=\"n\">-0.0200</td><td class=\"n\">-0.0364 to -0.0036</td>"); /* of one: 1.645 */
    has(&page, "<h3>Epoch 3, 12.5 % of the run's training FLOPs spent by its end: not decided</h3>");
    has(&page, "<td class=\"n\">+0.1000<br/><span class=\"soft\">+0.0804 to +0.1196</span></td>"); /* in the lineage */
    has(&page, "2 decisions, 1 of them to wait"); /* forks are none */
    esper_page_fini(&page);
    page = page_of("full.sqlite");
    has(&page, "<p>No trial was held: heuristic decided, which decides otherwise.</p>");
    esper_page_fini(&page);
}

/* All is lost: no curve can be drawn at all. */
static void nothing_to_draw(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("void.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    push_epoch(store, 1, (double)NAN, ESPER_STORE_NO_INT, 0);
    esper_store_close(store);
    page = page_of("void.sqlite");
    has(&page, "Accuracy: there is no finite number to draw.");
    has(&page, "Parameters: there is no finite number to draw.");
    esper_page_fini(&page);
}

static void many_seeds(void **state)
{
    enum { N_EPOCHS = 400, N_SEEDS = 60 };
    esper_store_run run = usual_run();
    esper_store *store = begin("many.sqlite", &run, NULL);
    plan seed[N_SEEDS];
    esper_page page;

    (void)state;
    for (int i = 0; i < N_SEEDS; i++) {
        int64_t born = 3 + 6 * i, pace = 3 + i % 4;

        seed[i] = (plan){i + 1,
                         i % 2 ? "r0c0" : "r3c1",
                         "conv_bottleneck",
                         1000 + i,
                         born,
                         born + pace,
                         born + 2 * pace,
                         born + 3 * pace,
                         i % 3 == 0,
                         "a reason of some length that wraps in the last column of the table"};
    }
    for (int64_t epoch = 1; epoch <= N_EPOCHS; epoch++) {
        push_epoch(store, epoch, rise(epoch, 40.0, 93.0, 60.0), 9418 + 50 * epoch, epoch / 10);
        for (int i = 0; i < N_SEEDS; i++)
            live(store, &seed[i], epoch);
        if (epoch % 50 == 0)
            check_good(esper_store_flush(store));
    }
    end(store, &run, 93.0, 30000, 1000000000000000);
    page = page_of("many.sqlite");
    assert_int_equal(count(&page, "<td class=\"bar\">"), N_SEEDS);
    has(&page, "60 seeds germinated: 20 kept, 40 pruned, 0 not decided.");
    has(&page, "<title>fossilised, epochs 12 to 400</title>");
    if (page.used > 1500000)
        fail_msg("the page has %zu bytes", page.used);
    esper_page_fini(&page);
}

/* A germination and all that followed are undone; numbers are given again. */
static void what_was_undone(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store = begin("undone.sqlite", &run, NULL);
    esper_page page;

    (void)state;
    for (int64_t epoch = 1; epoch <= 3; epoch++)
        push_epoch(store, epoch, 70.0, 9418, 0);
    push_germination(store, 4, 1, "r0c0", "lost_one", 77);
    push_move(store, 5, 1, "germinated", "training", "gate passed");
    push_gate(store, 5, 1, "G1", "training", 1.0, 0.5, "fine");
    push_decision(store, 5, "advance", "r0c0", "because", 1);
    push_rollback(store, 5, 3, "loss is not finite");
    push_epoch(store, 4, 71.0, 9418, 0);
    push_germination(store, 4, 1, "r1c0", "kept_one", 78);
    esper_store_close(store);
    page = page_of("undone.sqlite");
    has_not(&page, "lost_one");
    has(&page, "seed 1 (kept_one in r1c0)");
    has(&page, "<title>germinated in epoch 4</title>"); /* in the last one: there is no bar yet */
    has(&page, "(undone) fine");
    has(&page, "(undone) because");
    assert_int_equal(count(&page, "<td class=\"bar\">"), 1);
    esper_page_fini(&page);
}

/* Whatever stands in a text, the page stays a page, and shows it. */
static void hostile_text(void **state)
{
    static const char evil[] = "</td><script>alert(1)</script>\"' onload=x &amp; <b> http://example.org/ \x01\xff";
    static const char shown[] =
        "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39; onload=x &amp;amp; &lt;b&gt; "
        "http://example.org/ &#xFFFD;";
    esper_store_run run = usual_run();
    esper_store *store;
    esper_page page;
    int n;

    (void)state;
    ESPER_STORE_SET(run.name, evil);
    ESPER_STORE_SET(run.task, "<i>&\"");
    ESPER_STORE_SET(run.policy, "'><script>");
    ESPER_STORE_SET(run.gate_mode, "<&\"'>");
    ESPER_STORE_SET(run.kernels, evil);
    ESPER_STORE_SET(run.build, evil);
    store = begin("hostile.sqlite", &run, evil);
    for (int i = 0; i < 3; i++)
        for (esper_store_kind kind = 0; kind < ESPER_STORE_N_KINDS; kind++) {
            const esper_store_column *columns = esper_store_columns(kind, &n);
            esper_store_record record = filled_record(kind, 1 + i, 10 + i, 7);

            for (int c = 0; c < n; c++)
                if (columns[c].kind == ESPER_STORE_COLUMN_TEXT)
                    esper_store_set((char *)&record + columns[c].offset, columns[c].bytes, evil + (i == 2 ? 0 : i));
            if (kind == ESPER_STORE_ATTRIBUTION && i < 2)
                ESPER_STORE_SET(record.attribution.measure, i == 0 ? "shapley" : "synergy");
            if (kind == ESPER_STORE_ROLLBACK)
                record.rollback.to_step = 1000; /* undoes nothing */
            record.epoch = 1 + i;
            esper_store_push(store, &record);
        }
    esper_store_close(store);
    page = page_of("hostile.sqlite");
    has(&page, "<title>&lt;i&gt;&amp;&quot;, grown by &#39;&gt;&lt;script&gt;</title>");
    assert_true(count(&page, shown) >= 5);
    has_not(&page, "<script");
    esper_page_fini(&page);
}

/* Classes that the data names are told in one line, the first twenty by their names, whatever those are. */
static void classes_by_name(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store;
    esper_page page;

    (void)state;
    for (int n = 0; n <= 23; n += n == 0 ? 2 : 21) {
        store = begin("classes.sqlite", &run, NULL);
        for (int i = 0; i < n; i++) {
            esper_store_record record = esper_store_record_of(ESPER_STORE_CLASS, 0, 0);

            record.class.number = i;
            snprintf(record.class.name, sizeof(record.class.name), "na\xc3\xafve %d", i);
            if (i == 0)
                ESPER_STORE_SET(record.class.name, "<b onclick='x'>");
            esper_store_push(store, &record);
        }
        esper_store_close(store);
        page = page_of("classes.sqlite");
        if (n == 0)
            has_not(&page, "<dt>Data</dt>");
        else
            has(&page, n == 2 ? "<dt>Data</dt><dd>2 classes: &lt;b onclick=&#39;x&#39;&gt;, na\xc3\xafve 1</dd>"
                              : "<dt>Data</dt><dd>23 classes: &lt;b onclick=&#39;x&#39;&gt;, na\xc3\xafve 1, ");
        if (n == 23)
            has(&page, ", na\xc3\xafve 19 and 3 more</dd>");
        esper_page_fini(&page);
    }
}

/* A database that somebody has changed: what cannot be is no reason to fail. */
static void numbers_that_cannot_be(void **state)
{
    static const char *const changes[] = {
        "UPDATE stages SET epoch = NULL",
        "UPDATE germinations SET epoch = 9223372036854775807",
        "UPDATE germinations SET epoch = NULL, params = -9223372036854775807, seed = NULL WHERE seed = 2",
        "UPDATE seed_epochs SET epoch = -9223372036854775807, alpha = 1e308",
        "UPDATE epochs SET epoch = 9223372036854775807, params = 9223372036854775807, loss_valid = -1e308",
        "UPDATE rollbacks SET from_epoch = -9223372036854775807",
        "UPDATE attributions SET value = 1e308, lower = -1e308, n_samples = NULL",
        "UPDATE runs SET began = -1e300, seconds = 1e300, flops = -5, acc_test = 1e300, config = NULL",
    };

    (void)state;
    make_full("odd.sqlite");
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        esper_page page;

        change("odd.sqlite", changes[i]);
        page = page_of("odd.sqlite");
        esper_page_fini(&page);
    }
}

static void bytes_that_are_no_text(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"a<b>c&d\"e'f", "a&lt;b&gt;c&amp;d&quot;e&#39;f"},
        {"tab\tline\nend", "tab\tline\nend"},
        {"\x1b[31m\x7f", "&#xFFFD;[31m&#xFFFD;"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb1", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb1"},
        {"\xc3", "&#xFFFD;"},
        {"\xc2\x85\xc2\xa0", "&#xFFFD;\xc2\xa0"},
        {"\xef\xbf\xbf\xef\xbf\xbd", "&#xFFFD;\xef\xbf\xbd"},
        {"\xff\xfe<", "&#xFFFD;&#xFFFD;&lt;"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_page page = {0};

        esper_html(&page, "%s", cases[i].text);
        assert_string_equal(page.text, cases[i].expected);
        esper_page_fini(&page);
    }
}

/* Every conversion of esper_html, and what was not measured. */
static void numbers_for_people(void **state)
{
    static const char dash[] = "\xe2\x80\x93";
    char wanted[400];
    esper_page page = {0};

    (void)state;
    esper_html(&page, "%s %d %" PRId64 " %" PRIu64 " %i %" PRIi64, "a<b", -1234, INT64_MIN, UINT64_MAX, -1234567,
               ESPER_STORE_NO_INT);
    snprintf(wanted, sizeof(wanted), "a&lt;b -1234 -9223372036854775808 18446744073709551615 -1,234,567 %s", dash);
    assert_string_equal(page.text, wanted);
    esper_page_fini(&page);
    esper_html(&page, "%.2f %+.2f %+.1f %.0f %.*f %.3f %.1f %%", 0.505, 0.5, -0.5, 12345.6, 3, 2.0, ESPER_STORE_NO_REAL,
               (double)NAN);
    snprintf(wanted, sizeof(wanted), "0.51 +0.50 -0.5 12,346 2.000 %s nan %%", dash);
    assert_string_equal(page.text, wanted);
    esper_page_fini(&page);
    esper_html(&page, "%g %g %g %g|%a %a %a %a", 0.05, 1200.0, ESPER_STORE_NO_REAL, -(double)INFINITY, 12.5, -0.04, 7.0,
               (double)NAN);
    snprintf(wanted, sizeof(wanted), "0.05 1,200 %s -inf|12.5 0 7 0", dash);
    assert_string_equal(page.text, wanted);
    esper_page_fini(&page);
    esper_html_cells(&page, "%i name:%s %s why:%s %+.1f", 1234, "x&y", "plain", "", ESPER_STORE_NO_REAL);
    snprintf(wanted, sizeof(wanted),
             "<td class=\"n\">1,234</td><td class=\"name\">x&amp;y</td><td>plain</td><td class=\"why\">%s</td>"
             "<td class=\"n\">%s</td>",
             dash, dash);
    assert_string_equal(page.text, wanted);
    esper_page_fini(&page);
}

static void scales(void **state)
{
    static const struct {
        double low, high;
        int    n;
        bool   whole;
        double first, step, end;
        int    n_ticks, decimals;
    } cases[] = {
        {0.0, 100.0, 5, false, 0.0, 20.0, 100.0, 6, 0},      {61.3, 90.8, 6, false, 60.0, 5.0, 95.0, 8, 0},
        {0.21, 0.74, 6, false, 0.2, 0.1, 0.8, 7, 1},         {0.0, 3.0, 12, true, 0.0, 1.0, 3.0, 4, 0},
        {0.0, 22250.0, 3, true, 0.0, 5000.0, 25000.0, 6, 0}, {-3.0, 4.0, 4, false, -4.0, 2.0, 4.0, 5, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        esper_scale scale = esper_scale_round(cases[i].low, cases[i].high, cases[i].n, cases[i].whole);

        assert_float_equal(scale.first, cases[i].first, 1e-9);
        assert_float_equal(scale.step, cases[i].step, 1e-9);
        assert_float_equal(scale.high, cases[i].end, 1e-9);
        assert_int_equal(scale.n_ticks, cases[i].n_ticks);
        assert_int_equal(scale.decimals, cases[i].decimals);
    }
}

/* Single values and numbers of any size get a scale that they lie on, with labels that fit beside it. */
static void odd_scales(void **state)
{
    static const double values[] = {0.0, 1.0, -1.0, 88.123456, 100.0, 1e-12, 1e12, -5e20, 1e29};
    char label[64];

    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        for (int whole = 0; whole < 2; whole++) {
            esper_scale scale = esper_scale_round(values[i], values[i], 5, whole);
            double place = esper_scale_place(&scale, values[i], 0.0, 1.0);

            if (!(place >= 0.0 && place <= 1.0) || scale.n_ticks < 2 || scale.n_ticks > 20)
                fail_msg("%g lies at %g, %d ticks", values[i], place, scale.n_ticks);
            snprintf(label, sizeof(label), "%.*f", scale.decimals, scale.high);
            if (fabs(values[i]) < 1e4 && strlen(label) > 9)
                fail_msg("%g has a label of %zu characters: %s", values[i], strlen(label), label);
        }
}

static void no_such_run(void **state)
{
    esper_store_reader *reader = open_reader("full.sqlite");
    esper_report_numbers numbers = {.host.run = 77};
    esper_page page = {0};

    (void)state;
    check_fails(esper_report_write(reader, 9, &page), ESPER_E_NOTFOUND, "no run 9");
    assert_null(page.text);
    check_fails(esper_report_closing(reader, 9, &numbers), ESPER_E_NOTFOUND, "no run 9");
    assert_int_equal(numbers.host.run, 77);
    esper_store_reader_close(reader);
}

static void the_control_that_ended(void **state)
{
    esper_store_run run = usual_run(), control = usual_run();
    esper_store *store = begin("controls.sqlite", &run, NULL);
    esper_store_reader *reader;
    esper_report_numbers numbers;
    int64_t id;

    (void)state;
    esper_store_close(store);
    control.parent_run = ESPER_REPORT_RUN;
    for (int i = 0; i < 4; i++) { /* 2: killed, 3: ended, 4: killed, 5: something else */
        ESPER_STORE_SET(control.relation, i < 3 ? ESPER_REPORT_CONTROL : "replay");
        store = open_store("controls.sqlite", NULL);
        check_good(esper_store_begin(store, &control, NULL, &id));
        if (i == 1)
            end(store, &control, 80.0, 9418, 1);
        else
            esper_store_close(store);
    }
    reader = open_reader("controls.sqlite");
    check_good(esper_report_closing(reader, ESPER_REPORT_RUN, &numbers));
    esper_store_reader_close(reader);
    assert_int_equal(numbers.host.run, 3);
}

/* A title names nobody by a hash; as many parameters are not 1.00 times as many. */
static void a_learned_policy(void **state)
{
    esper_store_run run = usual_run();
    esper_store *store;
    esper_page page;

    (void)state;
    ESPER_STORE_SET(run.policy, "learned ca5faa2347578340 policy.safetensors");
    store = begin("learned.sqlite", &run, NULL);
    end(store, &run, 80.0, run.params_host, 1);
    page = page_of("learned.sqlite");
    has(&page, "<title>fashion, grown by a learned policy</title>");
    has(&page, "<dd>learned ca5faa2347578340 policy.safetensors</dd>");
    has(&page, "reaches 80.00 % test accuracy, with as many parameters as its static host.");
    esper_page_fini(&page);
}

/* ------------------------------------------------------------------------------------------------ learning */

enum { N_ROUNDS = 30, N_ENVS = 2 };

static void push_round(esper_store *store, int64_t round)
{
    esper_store_record record;

    for (int env = 0; env < N_ENVS; env++)
        for (int epoch = 1; epoch <= 3; epoch++) {
            double parts[ESPER_N_REWARD_PARTS] = {
                [ESPER_PART_RENT] = -0.25, [ESPER_PART_TERMINAL] = (double)round / 3.0};
            esper_fact fact = esper_fact_of(ESPER_FACT_REWARD, round, 6 * round);

            fact.reward.round = round;
            fact.reward.env = env;
            fact.reward.episode_epoch = epoch;
            esper_fact_set_reward(&fact, parts[ESPER_PART_RENT] + parts[ESPER_PART_TERMINAL], parts);
            esper_store_tell(store, &fact, 1);
        }
    record = esper_store_record_of(ESPER_STORE_DECISION, round, 6 * round); /* the policy comes to like conv_light */
    ESPER_STORE_SET(record.decision.op, "germinate");
    ESPER_STORE_SET(record.decision.slot, "r0c1");
    ESPER_STORE_SET(record.decision.blueprint, round <= 4 ? "norm" : "conv_light");
    record.decision.accepted = round != 30;
    esper_store_push(store, &record);
    record = esper_store_record_of(ESPER_STORE_UPDATE, round, 6 * round);
    record.update.round = round;
    record.update.n_episodes = N_ENVS;
    record.update.return_mean = (double)round;
    record.update.return_sd = 0.5;
    record.update.acc_mean = rise(round, 60.0, 80.0, 10.0);
    record.update.params_mean = 1000.0 + (double)round;
    record.update.kl = round == 7 ? (double)__builtin_nanf("") : 0.01;
    record.update.explained_variance = round == 1 ? -400.0 : 0.5;
    record.update.entropy_op = 1.0 - (double)round / 50.0;
    ESPER_STORE_SET(record.update.health, round == 7 ? "degraded, <loss>" : "fine");
    esper_store_push(store, &record);
}

/* Another page altogether: curves over rounds, and what was paid for at the beginning and at the end. */
static void a_run_that_learns(void **state)
{
    esper_store_run run = usual_run();
    esper_report_numbers numbers;
    esper_store_reader *reader;
    esper_store *store;
    esper_page page;

    (void)state;
    ESPER_STORE_SET(run.policy, ESPER_REPORT_LEARNER);
    ESPER_STORE_SET(run.reward_mode, "escrow");
    store = begin("learning.sqlite", &run, NULL);
    for (int64_t round = 1; round <= N_ROUNDS; round++)
        push_round(store, round);
    esper_store_close(store);
    page = page_of("learning.sqlite");
    has(&page, "fashion: a policy that learns</h1>");
    has(&page, "From the first 10 rounds to the last 10 of 30 the mean return went from 5.500 to 25.500");
    has(&page, ", and parameters went from 1,006 to 1,026.");
    has(&page, "This run has not ended");
    has(&page, "Return over rounds</title>");
    has(&page, "Entropy of each head over rounds</title>");
    has(&page, "KL, round 7: not finite");
    has(&page, "by the critic: -1 in round 1, 0.5 in round 30.");
    has(&page, "<th scope=\"row\">rent</th><td class=\"n\">-0.750</td><td class=\"n\">-0.750</td>");
    has(&page, "<th scope=\"row\">terminal</th><td class=\"n\">+5.500</td><td class=\"n\">+25.500</td>");
    has(&page, "a standard deviation of them higher: 1.5 in round 1, 30.5 in round 30.");
    has(&page, "<th scope=\"col\" class=\"n\">1 to 4</th>"); /* 30 rounds in eight columns */
    has(&page,
        "<td class=\"name\">r0c1</td><td class=\"name\">conv_light</td><td class=\"n h0\">0</td><td class=\"n h5\">4</td>");
    has(&page, "<td class=\"name\">norm</td><td class=\"n h5\">4</td><td class=\"n h0\">0</td>");
    has(&page, "<td class=\"n\">25</td></tr>"); /* what was refused is not planted */
    has(&page, "degraded, &lt;loss&gt;");
    has_not(&page, "escrow_forfeit");
    has_not(&page, "epoch 1");
    esper_page_fini(&page);
    reader = open_reader("learning.sqlite");
    check_good(esper_report_closing(reader, ESPER_REPORT_RUN, &numbers));
    assert_true(numbers.learns);
    assert_int_equal(numbers.grown.epochs, N_ROUNDS);
    esper_store_reader_close(reader);
    store = begin("learning-none.sqlite", &run, NULL);
    esper_store_close(store);
    page = page_of("learning-none.sqlite");
    has(&page, "No round has been finished.");
    esper_page_fini(&page);
}

/* Every allocation fails once: the failure comes back, and nothing stays behind. */
static void without_memory(void **state)
{
    esper_store_reader *reader = open_reader("full.sqlite");
    uint64_t before = live_blocks();
    esper_status status = ESPER_E_NOMEM;
    int n = 0;

    (void)state;
    while (status != ESPER_OK) {
        esper_page page = {0};

        assert_true(++n < 2000);
        esper_mem_fail_at((uint64_t)n);
        status = esper_report_write(reader, ESPER_REPORT_RUN, &page);
        esper_mem_fail_at(0);
        if (status != ESPER_OK)
            assert_int_equal(status, ESPER_E_NOMEM);
        esper_page_fini(&page);
        assert_int_equal(live_blocks(), before);
    }
    assert_true(n > 20);
    esper_store_reader_close(reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_run),
        cmocka_unit_test(its_seeds),
        cmocka_unit_test(its_events),
        cmocka_unit_test(closing_numbers),
        cmocka_unit_test(an_empty_run),
        cmocka_unit_test(an_unfinished_run),
        cmocka_unit_test(a_resumed_run),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(trials),
        cmocka_unit_test(phases_stand_behind_the_curves),
        cmocka_unit_test(nothing_to_draw),
        cmocka_unit_test(many_seeds),
        cmocka_unit_test(what_was_undone),
        cmocka_unit_test(hostile_text),
        cmocka_unit_test(classes_by_name),
        cmocka_unit_test(numbers_that_cannot_be),
        cmocka_unit_test(bytes_that_are_no_text),
        cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(scales),
        cmocka_unit_test(odd_scales),
        cmocka_unit_test(no_such_run),
        cmocka_unit_test(the_control_that_ended),
        cmocka_unit_test(a_learned_policy),
        cmocka_unit_test(a_run_that_learns),
        cmocka_unit_test(without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
