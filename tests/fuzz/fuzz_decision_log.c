/* Any bytes as a decision log: refused with words, or entries that the log itself would take. */
#include "fuzz/fuzz.h"
#include "grow/decision_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_decision_history history;
    esper_status status;
    char path[96];

    fuzz_write(fuzz_path("decisions.jsonl", path), bytes, n_bytes);
    status = esper_decision_history_read(path, UINT64_MAX, &history);
    fuzz_must_say(status);
    if (status == ESPER_OK) {
        fuzz_must(history.bytes <= n_bytes);
        for (uint64_t i = 0; i < history.n; i++) {
            fuzz_must(history.entries[i].number == i);
            fuzz_must(esper_log_entry_check(&history.entries[i], (esper_topology)history.head.topology) == ESPER_OK);
        }
        esper_decision_history_free(&history);
    }
    fuzz_remove(path);
    fuzz_must_be_free();
    return 0;
}
