/* ctest: timeout=300 cost=8 */
/* Networks of random growth as ONNX models: checked by onnx (Debian: python3-onnx), computed by ONNX Runtime's WebAssembly build (npm:
 * onnxruntime-web, in web/node_modules or where ESPER_ORT says) within 1e-5 of the engine. What is not there is skipped and said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/onnx_export.h"
#include "support/effort.h"
#include "support/random_network.h"

#ifndef NETWORKS
#define NETWORKS effort(40, 10)
#endif

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void write_bytes(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static size_t describe_dims(char *text, size_t room, const esper_tensor *tensor)
{
    size_t used = 0;

    for (int i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%d", i > 0 ? "," : "[", tensor->dim[i]);
    return used + (size_t)snprintf(text + used, room - used, "]");
}

static void write_case(uint32_t number)
{
    static const esper_onnx_note notes[] = {{"classes", "[\"a\\\"b\", \"*/\"]"},
                                            {"\xff key", "\xfe value \xe2\x80\xae"}};
    random_network net;
    esper_infer infer;
    esper_onnx onnx, again;
    esper_onnx_desc desc = {.infer = &infer, .notes = notes, .n_notes = 2};
    char dir[64], shape[256], input[64], output[64];

    random_network_open(&net, number);
    random_network_infer(&net, &infer);
    desc.about = net.text;
    check_good(esper_onnx_init(&onnx, &desc));
    check_good(esper_onnx_init(&again, &desc));
    assert_int_equal(onnx.n, again.n);
    assert_memory_equal(onnx.bytes, again.bytes, onnx.n);
    snprintf(dir, sizeof(dir), "cases/%04u", number);
    assert_int_equal(mkdir(dir, 0777), 0);
    write_bytes(dir, "model.onnx", onnx.bytes, onnx.n);
    write_bytes(dir, "input.bin", net.input, (size_t)(net.n_in * RANDOM_SAMPLES) * sizeof(float));
    write_bytes(dir, "output.bin", net.output, (size_t)(net.n_out * RANDOM_SAMPLES) * sizeof(float));
    describe_dims(input, sizeof(input), &net.run.net.tensors[net.run.net.input]);
    describe_dims(output, sizeof(output), &net.run.net.tensors[net.run.net.output]);
    snprintf(shape, sizeof(shape), "{\"ids\": %s, \"input\": %s, \"output\": %s}", net.ids ? "true" : "false", input,
             output);
    write_bytes(dir, "shape.json", shape, strlen(shape));
    esper_onnx_fini(&onnx);
    esper_onnx_fini(&again);
    esper_infer_fini(&infer);
    random_network_close(&net);
}

static void write_cases(void **state)
{
    const char *wanted = getenv("ESPER_NETWORKS");
    int n = wanted != NULL ? atoi(wanted) : NETWORKS;

    (void)state;
    assert_int_equal(mkdir("cases", 0777), 0);
    for (int i = 0; i < n; i++)
        write_case((uint32_t)i);
}

static void onnx_accepts_them(void **state)
{
    (void)state;
    if (system("/usr/bin/python3 -c 'import onnx' >/dev/null 2>&1") != 0) {
        print_message("skipped: /usr/bin/python3 has no onnx (on Debian: apt-get install python3-onnx)\n");
        skip();
    }
    if (system("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python /usr/bin/python3 " ESPER_SOURCE_DIR
               "/tests/nn/onnx_check.py cases") != 0)
        fail_msg("onnx does not accept all of them");
}

static void runtime_gives_our_outputs(void **state)
{
    const char *ort = getenv("ESPER_ORT");
    char command[1024];

    (void)state;
    if (ort == NULL || ort[0] == '\0')
        ort = ESPER_SOURCE_DIR "/web/node_modules/onnxruntime-web";
    snprintf(command, sizeof(command), "command -v node >/dev/null && test -f '%s/dist/ort.node.min.js'", ort);
    if (system(command) != 0) {
        print_message(
            "skipped: there is no onnxruntime-web in web/node_modules (npm install --no-save onnxruntime-web there)\n");
        skip();
    }
    snprintf(command, sizeof(command), "node " ESPER_SOURCE_DIR "/tests/nn/onnx_compare.mjs '%s' cases", ort);
    if (system(command) != 0)
        fail_msg("ONNX Runtime gives other outputs");
}

/* The nth allocation fails, for every n. */
static void memory_runs_out(void **state)
{
    random_network net;
    esper_infer infer;
    esper_onnx onnx;
    esper_onnx_desc desc = {.infer = &infer};
    esper_status status = ESPER_E_NOMEM;
    uint64_t n = 1;

    (void)state;
    random_network_open(&net, 3);
    for (; status != ESPER_OK; n += 1 + n / 16) {
        esper_infer_desc from = {&net.run.net, &net.run.slab, net.numbers, net.n_numbers};

        esper_mem_fail_at(n);
        status = esper_infer_init(&infer, &from);
        if (status == ESPER_OK) {
            status = esper_onnx_init(&onnx, &desc);
            esper_mem_fail_at(0);
            esper_infer_fini(&infer);
        }
        assert_true(status == ESPER_OK || status == ESPER_E_NOMEM);
    }
    esper_mem_fail_at(0);
    esper_onnx_fini(&onnx);
    random_network_close(&net);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(write_cases), cmocka_unit_test(onnx_accepts_them),
                                       cmocka_unit_test(runtime_gives_our_outputs), cmocka_unit_test(memory_runs_out)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
