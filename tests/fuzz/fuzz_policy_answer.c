/* Any line as what a program answers: refused with words, or a decision that is legal now. */
#include "fuzz/fuzz.h"
#include "policy/command.h"
#include "policy/mask.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static const char *const ids[] = {"r0c0", "r0c1", "r1c0"};
    esper_policy_slot slots[3];
    esper_policy_view view = {
        .topology = ESPER_TOPOLOGY_CNN, .epoch = 3, .max_epochs = 60, .slots = slots, .n_slots = 3};
    static char memory[ESPER_COMMAND_MEMORY_CHARS];
    esper_decision decision;
    bool remembers = false;
    esper_status status;

    for (int i = 0; i < 3; i++)
        esper_policy_slot_init(&slots[i], view.topology, ids[i]);
    slots[1].stage = ESPER_STAGE_TRAINING; /* one of each: empty, growing, part of the network */
    slots[1].blueprint = slots[2].blueprint = 1;
    slots[2].stage = ESPER_STAGE_FOSSILIZED;
    status = esper_command_take_answer((const char *)bytes, n_bytes, &view, &decision, memory, &remembers);
    fuzz_must_say(status);
    if (status == ESPER_OK)
        fuzz_must(esper_mask_check(&view, &decision) == ESPER_OK && strnlen(memory, sizeof(memory)) < sizeof(memory));
    fuzz_must_be_free();
    return 0;
}
