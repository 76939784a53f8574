/* ctest: timeout=300 cost=15 */
/* Networks of random growth as C, compiled and compared with the engine: within 1e-5, every host, seeds in every stage. As C99 by
 * gcc and clang and as C++, with every warning an error; with sanitizers; in whole numbers as computed inside; the same text twice.
 * Names that would be code in a careless writer are data. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/c99_export.h"
#include "support/effort.h"
#include "support/random_network.h"

#ifndef NETWORKS
#define NETWORKS effort(16, 4)
#endif

static const double TOLERANCE = 1e-5;
static const char warnings[] = "-Wall -Wextra -Wpedantic -Werror";

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static bool has(const char *tool)
{
    char command[128];

    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", tool);
    return system(command) == 0;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

__attribute__((format(printf, 2, 3))) static void run(const random_network *net, const char *format, ...)
{
    char command[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    if (system(command) != 0)
        fail_msg("%s: failed: %s", net->text, command);
}

static void write_c(const esper_c99 *c99)
{
    write_text("model.h", c99->header);
    write_text("model.c", c99->source);
    write_text("main.c", c99->test);
}

/* What the compiled file computes for the network's inputs. */
static void compute(const random_network *net, const esper_c99 *c99, float *output)
{
    void (*model_run)(void *memory, const void *input, float *output);
    void *library = dlopen("./model.so", RTLD_NOW | RTLD_LOCAL), *memory = malloc((size_t)c99->memory_bytes);

    if (library == NULL)
        fail_msg("%s: %s", net->text, dlerror());
    *(void **)&model_run = dlsym(library, "model_run");
    assert_true(model_run != NULL && memory != NULL);
    memset(memory, 0xa5, (size_t)c99->memory_bytes); /* nothing in it has to be set */
    for (int i = 0; i < RANDOM_SAMPLES; i++)
        model_run(memory, net->input + i * net->n_in, output + i * net->n_out);
    free(memory);
    dlclose(library);
}

static esper_c99_desc describe(const random_network *net, const esper_infer *infer, const float *expected)
{
    return (esper_c99_desc){.infer = infer,
                            .name = "model",
                            .about = net->text,
                            .samples = net->input,
                            .expected = expected,
                            .n_samples = RANDOM_SAMPLES};
}

/* ------------------------------------------------------------------------------------------------ floats */

static double worst_seen;

/* All compilers for a few, one for the rest: a compiler takes longer than the network. */
static void check_compilers(const random_network *net, uint32_t number)
{
    const char *sanitize = "-g -fsanitize=address,undefined -fno-sanitize-recover=all";

    run(net, "cc -std=c99 -O1 %s -Wconversion -Wno-sign-conversion -shared -fPIC -o model.so model.c -lm", warnings);
    if (number % 4 != 0)
        return;
    run(net,
        "cc -std=c99 -O1 %s %s -o test main.c model.c -lm && { setarch -R true 2>/dev/null && setarch -R ./test || ./test; } >/dev/null",
        warnings, sanitize);
    if (has("c++"))
        run(net, "c++ -x c++ -std=c++11 -O1 %s -o test main.c model.c -lm && ./test >/dev/null", warnings);
    if (has("clang")) {
        run(net, "clang -std=c99 -Os %s -o test main.c model.c -lm && ./test >/dev/null", warnings);
        run(net, "clang -x c++ -std=c++17 -fsyntax-only %s main.c model.c", warnings);
    }
}

static void check_network(uint32_t number)
{
    random_network net;
    esper_infer infer;
    esper_c99_desc desc;
    esper_c99 c99, again;
    float *output;
    double distance;

    random_network_open(&net, number);
    random_network_infer(&net, &infer);
    output = calloc((size_t)(net.n_out * RANDOM_SAMPLES), sizeof(*output));
    assert_non_null(output);
    desc = describe(&net, &infer, net.output);
    check_good(esper_c99_init(&c99, &desc));
    check_good(esper_c99_init(&again, &desc));
    assert_string_equal(c99.source, again.source);
    assert_string_equal(c99.header, again.header);
    write_c(&c99);
    check_compilers(&net, number);
    compute(&net, &c99, output);
    distance = random_network_distance(&net, output);
    if (!(distance <= TOLERANCE))
        fail_msg("%s: %.3g from the engine", net.text, distance);
    worst_seen = distance > worst_seen ? distance : worst_seen;
    free(output);
    esper_c99_fini(&c99);
    esper_c99_fini(&again);
    esper_infer_fini(&infer);
    random_network_close(&net);
}

static void test_floats(void **state)
{
    const char *wanted = getenv("ESPER_NETWORKS");
    int n = wanted != NULL ? atoi(wanted) : NETWORKS;

    (void)state;
    for (int i = 0; i < n; i++)
        check_network((uint32_t)i);
    print_message("%d networks as C, at most %.2g from the engine\n", n, worst_seen);
}

/* ------------------------------------------------------------------------------------------------ whole numbers */

static const void *next_sample(void *context, int index)
{
    const random_network *net = context;

    return index < RANDOM_SAMPLES ? net->input + index * net->n_in : NULL;
}

/* The compiled file does what is computed inside, and that is near the engine's: roundings of 8 bits remain. */
static double check_fixed(uint32_t number)
{
    random_network net;
    esper_infer infer;
    esper_fixed fixed;
    esper_c99_desc desc;
    esper_c99 c99;
    float *inside, *output;
    double distance = 0.0, from_engine;

    random_network_open(&net, number);
    random_network_infer(&net, &infer);
    inside = calloc((size_t)(net.n_out * RANDOM_SAMPLES), sizeof(*inside));
    output = calloc((size_t)(net.n_out * RANDOM_SAMPLES), sizeof(*output));
    assert_true(inside != NULL && output != NULL);
    check_good(esper_fixed_init(&fixed, &infer, next_sample, &net));
    for (int i = 0; i < RANDOM_SAMPLES; i++)
        esper_fixed_run(&fixed, net.input + i * net.n_in, inside + i * net.n_out);
    from_engine = random_network_distance(&net, inside);
    desc = describe(&net, &infer, inside);
    desc.fixed = &fixed;
    check_good(esper_c99_init(&c99, &desc));
    write_c(&c99);
    check_compilers(&net, number);
    compute(&net, &c99, output);
    for (int64_t i = 0; i < net.n_out * RANDOM_SAMPLES; i++)
        distance = fmax(distance, fabs((double)output[i] - (double)inside[i]) / (1.0 + fabs((double)inside[i])));
    if (!(distance <= 1e-5))
        fail_msg("%s: in whole numbers %.3g from what is computed inside", net.text, distance);
    if (!(from_engine <= 0.25))
        fail_msg("%s: in whole numbers %.3g from the engine", net.text, from_engine);
    free(inside);
    free(output);
    esper_c99_fini(&c99);
    esper_fixed_fini(&fixed);
    esper_infer_fini(&infer);
    random_network_close(&net);
    return from_engine;
}

static void test_whole_numbers(void **state)
{
    int n = NETWORKS / 2;
    double sum = 0.0;

    (void)state;
    for (int i = 0; i < n; i++)
        sum += check_fixed((uint32_t)(i + 5000));
    print_message("%d networks in whole numbers, on average %.2g from the engine\n", n, sum / n);
    assert_true(sum / n <= 0.03);
}

/* ------------------------------------------------------------------------------------------------ names */

static void test_hostile_names(void **state)
{
    static const char *const classes[] = {"\"};int x=1/0;//",
                                          "*/ int main(void){return 1;} /*",
                                          "?\?/\n#error trigraph",
                                          "%s%n%n",
                                          "\\\"\\",
                                          "\xff\xfe no UTF-8",
                                          "\xe2\x80\xae"
                                          "code",
                                          "\n#include </etc/passwd>",
                                          "0"};
    static const esper_c99_feature features[] = {{"a\"];", 0.5f, 2.0f}, {"*/", 0.0f, 1.0f}, {"x\\", -1.0f, 1e-30f}};
    static float input[RANDOM_SAMPLES * 3], output[RANDOM_SAMPLES * 9];
    float w[27], b[9];
    esper_infer_tensor tensors[2] = {{.rank = 1, .dim = {3, 1, 1, 1}, .count = 3, .n_uses = 1},
                                     {.rank = 1, .dim = {9, 1, 1, 1}, .count = 9, .n_uses = 1, .last_use = 1}};
    esper_infer_weights weights[2] = {{w, 2, {9, 3, 1, 1}, 27}, {b, 1, {9, 1, 1, 1}, 9}};
    esper_infer_op op = {.kind = ESPER_INFER_LINEAR, .in = {0, -1, -1}, .out = 1, .w = 0, .b = 1, .name = "*/\"\\?\?/"};
    esper_infer infer = {tensors, &op, weights, 2, 1, 2, 2, 0, 1};
    esper_c99_desc desc = {.infer = &infer,
                           .name = "model",
                           .about = "*/ #error \n*/\nint x; /*\\\n?\?/\n/* \xff",
                           .classes = classes,
                           .n_classes = 9,
                           .features = features,
                           .n_features = 3,
                           .samples = input,
                           .expected = output,
                           .n_samples = RANDOM_SAMPLES};
    static random_network net = {.text = "hostile names"};
    const char *const *names;
    void *library;
    esper_c99 c99;

    (void)state;
    for (int i = 0; i < 27; i++)
        w[i] = 0.1f * (float)(i % 5);
    memset(b, 0, sizeof(b));
    check_good(esper_c99_init(&c99, &desc));
    write_c(&c99);
    check_compilers(&net, 0);
    library = dlopen("./model.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
    names = dlsym(library, "model_class_names");
    for (int i = 0; i < 9; i++)
        assert_string_equal(names[i], classes[i]);
    names = dlsym(library, "model_feature_names");
    for (int i = 0; i < 3; i++)
        assert_string_equal(names[i], features[i].name);
    dlclose(library);
    esper_c99_fini(&c99);
    for (int i = 0; i < 4; i++) {
        static const char *const bad[] = {"", "9a", "a b", "a;system"};

        desc.name = bad[i];
        assert_int_equal(esper_c99_init(&c99, &desc), ESPER_E_CONFIG);
    }
}

/* ------------------------------------------------------------------------------------------------ what is not finite */

/* The first network of floats that has a buffer of such a name. */
static void open_with(random_network *net, const char *name, const esper_tensor **tensor_out)
{
    for (uint32_t number = 0;; number++) {
        assert_true(number < 50);
        random_network_open(net, number);
        for (int t = 0; t < net->run.net.n_tensors; t++)
            if (!net->ids && net->run.net.tensors[t].role == ESPER_ROLE_BUFFER &&
                strstr(net->run.net.tensors[t].name, name) != NULL) {
                *tensor_out = &net->run.net.tensors[t];
                return;
            }
        random_network_close(net);
    }
}

/* Every number is finite, and what is folded out of them is not. */
static void test_variances_below_zero(void **state)
{
    const esper_tensor *variance;
    random_network net;
    esper_infer infer;

    (void)state;
    open_with(&net, "running_var", &variance);
    ((float *)esper_slab_at(&net.run.slab, ESPER_FAMILY_BUFFER, variance))[0] = -4.0f;
    {
        const esper_infer_desc from = {&net.run.net, &net.run.slab, net.numbers, net.n_numbers};

        assert_int_equal(esper_infer_init(&infer, &from), ESPER_E_FORMAT);
    }
    if (strstr(esper_last_error(), "once norms are folded into it") == NULL)
        fail_msg("%s", esper_last_error());
    random_network_close(&net);
}

/* The compiled test sees an output that is no number, also where good ones come after it. */
static void test_the_test_sees_what_is_no_number(void **state)
{
    static const char poison[] = "#include <math.h>\n#include \"model.h\"\n"
                                 "void good_run(model_memory *memory, const float *input, float *output);\n"
                                 "void model_run(model_memory *memory, const float *input, float *output)\n{\n"
                                 "    static int n;\n\n    good_run(memory, input, output);\n"
                                 "    if (n++ == POISONED)\n        output[0] = NAN;\n}\n";
    const esper_tensor *any;
    random_network net;
    esper_infer infer;
    esper_c99_desc desc;
    esper_c99 c99;

    (void)state;
    open_with(&net, "running_var", &any);
    random_network_infer(&net, &infer);
    desc = describe(&net, &infer, net.output);
    check_good(esper_c99_init(&c99, &desc));
    write_c(&c99);
    write_text("poison.c", poison);
    run(&net, "cc -std=c99 -O1 -Dmodel_run=good_run -c -o good.o model.c");
    for (int n = -1; n < RANDOM_SAMPLES; n++)
        run(&net, "cc -std=c99 -O1 -DPOISONED=%d -o test main.c poison.c good.o -lm && %s ./test >/dev/null", n,
            n < 0 ? "" : "!");
    esper_c99_fini(&c99);
    esper_infer_fini(&infer);
    random_network_close(&net);
}

/* ------------------------------------------------------------------------------------------------ memory */

static esper_status export_all(const random_network *net, esper_c99 *c99)
{
    const esper_infer_desc from = {&net->run.net, &net->run.slab, net->numbers, net->n_numbers};
    esper_infer infer = {0};
    esper_fixed fixed = {0};
    esper_status status = esper_infer_init(&infer, &from);

    if (status == ESPER_OK)
        status = esper_fixed_init(&fixed, &infer, next_sample, (void *)(uintptr_t)net);
    if (status == ESPER_OK) {
        esper_c99_desc desc = describe(net, &infer, net->output);

        desc.fixed = &fixed;
        status = esper_c99_init(c99, &desc);
    }
    esper_fixed_fini(&fixed);
    esper_infer_fini(&infer);
    return status;
}

/* The nth allocation fails, for every n at first and then for ever fewer. */
static void test_memory_runs_out(void **state)
{
    esper_mem_stats before, after;
    esper_status status = ESPER_E_NOMEM;
    esper_c99 c99 = {0};
    random_network net;
    uint64_t n = 1;

    (void)state;
    random_network_open(&net, 4);
    esper_mem_stats_get(&before);
    for (; status != ESPER_OK; n += 1 + n / 16) {
        esper_mem_fail_at(n);
        status = export_all(&net, &c99);
        esper_mem_fail_at(0);
        assert_true(status == ESPER_OK || status == ESPER_E_NOMEM);
    }
    esper_c99_fini(&c99);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_live, before.n_live);
    assert_true(n > 20);
    random_network_close(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_floats),
                                       cmocka_unit_test(test_whole_numbers),
                                       cmocka_unit_test(test_hostile_names),
                                       cmocka_unit_test(test_variances_below_zero),
                                       cmocka_unit_test(test_the_test_sees_what_is_no_number),
                                       cmocka_unit_test(test_memory_runs_out)};

    if (!has("cc")) {
        printf("skipped: there is no cc here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
