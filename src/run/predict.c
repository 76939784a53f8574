/* Passes over samples that are in no split. */
#include "run/predict.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

int64_t esper_predict_inputs(const esper_network *network)
{
    return network->net.tensors[network->net.input].count;
}

int64_t esper_predict_outputs(const esper_network *network)
{
    return network->net.tensors[network->net.output].count;
}

int esper_predict_room(const esper_network *network)
{
    return esper_engine_max_samples(network->engine);
}

esper_status esper_predict_logits(esper_network *network, const void *samples, int n, float *logits)
{
    const esper_net *net = &network->net;

    assert(n > 0 && n <= esper_predict_room(network));
    ESPER_TRY(esper_plan_write(network->plan, network->stream, 0, net->input, samples, n));
    ESPER_TRY(esper_plan_fill(network->plan, network->stream, 0, net->target, 0.0f, n)); /* the loss is nobody's */
    ESPER_TRY(esper_splice_fill_alphas(&network->splice, network->alpha_input, network->plan, network->stream, n));
    network->pass.n_samples = n;
    network->pass.training = false;
    network->pass.loss_scale = 1.0f;
    ESPER_TRY(esper_plan_forward_one(network->plan, network->stream, 0));
    ESPER_TRY(esper_plan_read(network->plan, network->stream, 0, net->output, logits, n));
    return esper_network_wait(network);
}

void esper_predict_take(const esper_dataset *data, esper_split split, uint32_t index, void *sample, int *label_out)
{
    const esper_dataset_info *info = esper_dataset_info_get(data);
    uint32_t id = esper_dataset_id(data, split, index);

    *label_out = info->kind != ESPER_DATASET_TOKENS ? esper_dataset_label(data, split, id) : 0;
    if (info->kind == ESPER_DATASET_TOKENS) {
        const uint16_t *window = esper_dataset_window(data, split, id);

        for (int t = 0; t < info->context; t++)
            ((int32_t *)sample)[t] = window[t];
    } else if (info->kind == ESPER_DATASET_VECTORS) {
        memcpy(sample, esper_dataset_row(data, split, id), (size_t)info->features * sizeof(float));
    } else {
        const uint8_t *image = esper_dataset_image(data, split, id);
        int64_t plane = (int64_t)info->height * info->width;

        for (int64_t i = 0; i < plane * info->channels; i++)
            ((float *)sample)[i] = esper_dataset_levels(data, (int)(i / plane))[image[i]];
    }
}

/* ------------------------------------------------------------------------------------------------ classes */

void esper_predict_softmax(const float *logits, int n, double *probabilities)
{
    double most = (double)logits[0], sum = 0.0;

    for (int i = 1; i < n; i++)
        most = (double)logits[i] > most ? (double)logits[i] : most;
    for (int i = 0; i < n; i++)
        sum += probabilities[i] = exp((double)logits[i] - most);
    for (int i = 0; i < n; i++)
        probabilities[i] /= sum;
}

int esper_predict_choose(const float *logits, int n, int most, esper_choice *choices_out)
{
    double probabilities[ESPER_DATASET_MAX_CLASSES];
    int n_chosen = 0;

    assert(n > 0 && n <= ESPER_DATASET_MAX_CLASSES);
    esper_predict_softmax(logits, n, probabilities);
    for (; n_chosen < most && n_chosen < n; n_chosen++) {
        int best = -1;

        for (int i = 0; i < n; i++) { /* of equals the first, as everywhere */
            bool taken = false;

            for (int k = 0; k < n_chosen; k++)
                taken = taken || choices_out[k].class == i;
            if (!taken && (best < 0 || logits[i] > logits[best]))
                best = i;
        }
        choices_out[n_chosen] = (esper_choice){best, probabilities[best]};
    }
    return n_chosen;
}

esper_status esper_predict_confusion(esper_network *network, esper_split split, uint64_t *counts_out)
{
    const esper_dataset *data = network->engine->data;
    int classes = esper_dataset_info_get(data)->classes, room = esper_predict_room(network), label;
    size_t n_in = (size_t)esper_predict_inputs(network), n_out = (size_t)esper_predict_outputs(network);
    float *samples = esper_mem_alloc((size_t)room * n_in * sizeof(*samples));
    float *logits = esper_mem_alloc((size_t)room * n_out * sizeof(*logits));
    esper_status status = samples != NULL && logits != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "a batch");

    memset(counts_out, 0, (size_t)classes * (size_t)classes * sizeof(*counts_out));
    for (uint32_t first = 0; status == ESPER_OK && first < esper_dataset_count(data, split); first += (uint32_t)room) {
        uint32_t left = esper_dataset_count(data, split) - first;
        int n = left < (uint32_t)room ? (int)left : room;

        for (int i = 0; i < n; i++)
            esper_predict_take(data, split, first + (uint32_t)i, samples + (size_t)i * n_in, &label);
        status = esper_predict_logits(network, samples, n, logits);
        for (int i = 0; status == ESPER_OK && i < n; i++) {
            uint32_t id = esper_dataset_id(data, split, first + (uint32_t)i);
            esper_choice choice;

            esper_predict_choose(logits + (size_t)i * n_out, classes, 1, &choice);
            counts_out[esper_dataset_label(data, split, id) * classes + choice.class]++;
        }
    }
    esper_mem_free(samples);
    esper_mem_free(logits);
    return status;
}

/* ------------------------------------------------------------------------------------------------ text */

/* Windows of T tokens, of which the last may be short: what stands behind it is seen by nobody. */
static uint64_t fill_windows(const int32_t *tokens, uint64_t n, uint64_t first, int T, int room, int32_t *windows)
{
    uint64_t n_windows = 0;

    memset(windows, 0, (size_t)room * (size_t)T * sizeof(*windows));
    for (; n_windows < (uint64_t)room && first + n_windows * (uint64_t)T + 1 < n; n_windows++)
        for (int t = 0; t < T && first + n_windows * (uint64_t)T + (uint64_t)t + 1 < n; t++)
            windows[n_windows * (uint64_t)T + (uint64_t)t] = tokens[first + n_windows * (uint64_t)T + (uint64_t)t];
    return n_windows;
}

static double loss_of(const float *logits, int vocab, int token)
{
    double most = (double)logits[0], sum = 0.0;

    for (int v = 1; v < vocab; v++)
        most = (double)logits[v] > most ? (double)logits[v] : most;
    for (int v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - most);
    return log(sum) + most - (double)logits[token];
}

esper_status esper_predict_foretell(esper_network *network, const int32_t *tokens, uint64_t n, esper_foretold *out)
{
    int T = (int)esper_predict_inputs(network), room = esper_predict_room(network);
    int vocab = esper_dataset_info_get(network->engine->data)->vocab;
    int32_t *windows = esper_mem_alloc((size_t)room * (size_t)T * sizeof(*windows));
    float *logits = esper_mem_alloc((size_t)room * (size_t)esper_predict_outputs(network) * sizeof(*logits));
    esper_status status = windows != NULL && logits != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "windows");
    esper_foretold found = {0};

    for (uint64_t i = 0; status == ESPER_OK && i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            status = ESPER_FAIL(ESPER_E_FORMAT, "token %d at %llu: the network knows %d", tokens[i],
                                (unsigned long long)i, vocab);
    for (uint64_t first = 0; status == ESPER_OK && first + 1 < n;) {
        uint64_t n_windows = fill_windows(tokens, n, first, T, room, windows), end;

        status = esper_predict_logits(network, windows, (int)n_windows, logits);
        end = first + n_windows * (uint64_t)T;
        for (uint64_t at = first; status == ESPER_OK && at < end && at + 1 < n; at++) {
            found.loss += loss_of(logits + (at - first) * (uint64_t)vocab, vocab, tokens[at + 1]);
            found.n_tokens++;
        }
        first = end;
    }
    esper_mem_free(windows);
    esper_mem_free(logits);
    if (status == ESPER_OK)
        *out = found;
    return status;
}

/* From probabilities, by one number from 0 to 1. */
static int draw(const float *logits, int vocab, double temperature, double *probabilities, float *scaled,
                esper_rng *rng)
{
    double at = (double)esper_rng_uniform(rng), sum = 0.0;
    int best = 0;

    for (int v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    if (temperature <= 0.0)
        return best;
    for (int v = 0; v < vocab; v++)
        scaled[v] = (float)(((double)logits[v] - (double)logits[best]) / temperature);
    esper_predict_softmax(scaled, vocab, probabilities);
    for (int v = 0; v < vocab; v++) {
        sum += probabilities[v];
        if (at < sum)
            return v;
    }
    return best;
}

static esper_status go_on(esper_network *network, int32_t *window, int n, double temperature, uint64_t seed,
                          float *logits, double *probabilities, float *scaled, int32_t *tokens_out, int n_out)
{
    int T = (int)esper_predict_inputs(network), vocab = esper_dataset_info_get(network->engine->data)->vocab;
    esper_rng_key key = {.seed = seed, .purpose = ESPER_RNG_SAMPLE};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int i = 0; i < n_out; i++) {
        if (i > 0 && n == T) { /* only what the network can see at once counts */
            memmove(window, window + 1, (size_t)(T - 1) * sizeof(*window));
            n--;
        }
        if (i > 0)
            window[n++] = tokens_out[i - 1];
        ESPER_TRY(esper_predict_logits(network, window, 1, logits));
        tokens_out[i] = draw(logits + (int64_t)(n - 1) * vocab, vocab, temperature, probabilities, scaled, &rng);
    }
    return ESPER_OK;
}

esper_status esper_predict_continue(esper_network *network, const int32_t *prompt, int n_prompt, double temperature,
                                    uint64_t seed, int32_t *tokens_out, int n_out)
{
    int T = (int)esper_predict_inputs(network), vocab = esper_dataset_info_get(network->engine->data)->vocab;
    int n = n_prompt < T ? n_prompt : T;
    int32_t *window = esper_mem_alloc((size_t)T * sizeof(*window));
    float *logits = esper_mem_alloc((size_t)esper_predict_outputs(network) * sizeof(*logits));
    double *probabilities = esper_mem_alloc((size_t)vocab * sizeof(*probabilities));
    float *scaled = esper_mem_alloc((size_t)vocab * sizeof(*scaled));
    esper_status status = window != NULL && logits != NULL && probabilities != NULL && scaled != NULL
                              ? ESPER_OK
                              : ESPER_FAIL(ESPER_E_NOMEM, "a window");

    assert(n_prompt > 0);
    for (int i = 0; status == ESPER_OK && i < n; i++) {
        window[i] = prompt[n_prompt - n + i];
        if (window[i] < 0 || window[i] >= vocab)
            status = ESPER_FAIL(ESPER_E_CONFIG, "the prompt has token %d, and the network knows %d", window[i], vocab);
    }
    if (status == ESPER_OK)
        status = go_on(network, window, n, temperature, seed, logits, probabilities, scaled, tokens_out, n_out);
    esper_mem_free(window);
    esper_mem_free(logits);
    esper_mem_free(probabilities);
    esper_mem_free(scaled);
    return status;
}
