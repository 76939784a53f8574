/* Any safetensors file as a policy, its hash made to fit so that changes get past it: refused with words, or a network no larger
 * than its file. */
#include "fuzz/fuzz.h"
#include "policy/learned.h"

enum { MOST = 256 };

static void try_file(const char *path, size_t n_bytes)
{
    esper_learned_identity wanted;
    esper_learned_file *file;
    esper_policy_net_desc desc;
    esper_status status = esper_learned_open(path, &file);
    esper_net net;

    fuzz_must_say(status);
    if (status != ESPER_OK)
        return;
    esper_learned_net(esper_learned_identity_of(file), &desc);
    fuzz_must(esper_policy_net_build(&desc, &net) == ESPER_OK);
    fuzz_must((uint64_t)esper_net_count_params(&net, -1) * sizeof(float) <= n_bytes);
    esper_net_fini(&net);
    esper_learned_identity_init(&wanted);
    fuzz_must_say(esper_learned_check(file, &wanted));
    esper_learned_close(file);
}

static void seal(const esper_safetensors *content, const char *path)
{
    static esper_safetensors_tensor tensors[MOST];
    static esper_safetensors_note notes[MOST];
    size_t n_tensors = 0, n_notes = 0;

    for (size_t i = 0; i < esper_safetensors_count(content) && n_tensors < MOST; i++)
        tensors[n_tensors++] = *esper_safetensors_at(content, i);
    for (size_t i = 0; i < esper_safetensors_note_count(content) && n_notes < MOST; i++)
        if (strcmp(esper_safetensors_note_at(content, i).key, "policy_hash") != 0)
            notes[n_notes++] = esper_safetensors_note_at(content, i);
    fuzz_must_say(esper_ppo_write(path, tensors, n_tensors, notes, n_notes));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    esper_safetensors *content;
    char path[96];

    if (esper_safetensors_open_memory("input", bytes, n_bytes, &content) == ESPER_OK) {
        seal(content, fuzz_path("policy.safetensors", path));
        esper_safetensors_close(content);
        try_file(path, n_bytes);
        fuzz_remove(path);
    }
    fuzz_must_be_free();
    return 0;
}
