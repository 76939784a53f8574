/* Any text as a decision file: refused with its line, or lines in order that the host could be given. */
#include "fuzz/fuzz.h"
#include "policy/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const ids[] = {"r0c0", "r0c1", "r1c0"};
    static const esper_topology topologies[] = {ESPER_TOPOLOGY_CNN, ESPER_TOPOLOGY_TRANSFORMER};

    for (int k = 0; k < 2; k++) {
        esper_policy_setup setup = {.topology = topologies[k], .max_epochs = 60, .slot_ids = ids, .n_slots = 3};
        char *text = malloc(n_bytes + 1);
        esper_script script;
        esper_status status;

        fuzz_must(text != NULL);
        memcpy(text, bytes, n_bytes);
        text[n_bytes] = '\0';
        status = esper_script_init(&script, text, n_bytes, "fuzz", &setup);
        fuzz_must_say(status);
        if (status == ESPER_OK) {
            for (int i = 0; i < script.n_lines; i++) {
                fuzz_must(i == 0 || script.lines[i].epoch > script.lines[i - 1].epoch);
                fuzz_must(esper_script_find(&script, script.lines[i].epoch) == &script.lines[i]);
                fuzz_must(esper_decision_check(&script.lines[i].decision, topologies[k]) == ESPER_OK);
            }
            esper_script_fini(&script);
        }
        free(text);
        fuzz_must_be_free();
    }
    return 0;
}
