/* Any text as a host, a blueprint: refused with words that point at a place, or printed, read again and found equal; a host is built
 * on each kind of data, or refused with words. */
#include "fuzz/fuzz.h"
#include "nn/host.h"

/* What is read is what is printed. Longer ones than a setting holds are refused by the printer. */
static int is_printed(const char *text, esper_text_use use, char printed[ESPER_HOST_CHARS])
{
    static esper_host_text host, again;
    esper_status status = esper_host_text_parse(text, "fuzz", use, &host);

    fuzz_must_say(status);
    if (status != ESPER_OK)
        return 0;
    status = esper_host_text_print(&host, printed);
    fuzz_must_say(status);
    if (status != ESPER_OK)
        return 0;
    fuzz_must(esper_host_text_parse(printed, "fuzz", use, &again) == ESPER_OK);
    fuzz_must(esper_host_text_equal(&host, &again));
    return 1;
}

static void build(const char *text)
{
    const esper_host data[] = {
        {.topology = ESPER_TOPOLOGY_CNN, .cnn = {.in_channels = 1, .height = 8, .width = 9, .classes = 3}},
        {.topology = ESPER_TOPOLOGY_TRANSFORMER, .transformer = {.vocab = 5, .context = 4, .embed_std = 0.02f}},
        {.topology = ESPER_TOPOLOGY_MLP, .mlp = {.features = 4, .classes = 3}},
    };

    for (int i = 0; i < 3; i++) {
        esper_host host = data[i];
        esper_net net;

        snprintf(host.text, sizeof(host.text), "%s", text);
        esper_net_init(&net);
        fuzz_must_say(esper_host_build(&host, &net));
        esper_net_fini(&net);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char printed[ESPER_HOST_CHARS], *text = malloc(n_bytes + 1);

    fuzz_must(text != NULL);
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = '\0';
    if (is_printed(text, ESPER_TEXT_HOST, printed))
        build(printed);
    (void)is_printed(text, ESPER_TEXT_BLUEPRINT, printed);
    free(text);
    fuzz_must_be_free();
    return 0;
}
