/* A comparison as JSON Lines. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json_write.h"
#include "base/status.h"
#include "ui/compare_table.h"

enum { OBJECT_BYTES = 16384 }; /* two settings of the longest kind with every character escaped, and the rest */

static void put_text(esper_json *json, const char *key, const char *text)
{
    esper_json_key(json, key);
    esper_json_text(json, text);
}

/* Not known: null. */
static void put_real(esper_json *json, const char *key, double value)
{
    esper_json_key(json, key);
    if (isnan(value))
        esper_json_null(json);
    else
        esper_json_real(json, value);
}

static void put_int(esper_json *json, const char *key, int64_t value)
{
    esper_json_key(json, key);
    if (value < 0)
        esper_json_null(json);
    else
        esper_json_int(json, value);
}

/* A value named after another one: "acc_lower". */
static void put_part(esper_json *json, const char *key, const char *part, double value)
{
    char name[32];

    snprintf(name, sizeof(name), "%s_%s", key, part);
    put_real(json, name, value);
}

/* The ends of the 95 % interval of a mean. */
static void put_interval(esper_json *json, const char *key, const esper_compare_spread *spread)
{
    double margin = esper_compare_margin(spread);

    put_part(json, key, "lower", spread->mean - margin);
    put_part(json, key, "upper", spread->mean + margin);
}

static void begin_object(esper_json *json, char text[OBJECT_BYTES])
{
    esper_json_init(json, text, OBJECT_BYTES);
    esper_json_object_begin(json);
}

static void put_object(esper_json *json, esper_page *page)
{
    esper_json_object_end(json);
    if (json->overflow && page->status == ESPER_OK)
        page->status = ESPER_FAIL(ESPER_E_FORMAT, "an object of more than %d bytes", (int)OBJECT_BYTES);
    esper_page_print(page, "%s\n", json->text);
}

/* Whose network a static line is made after. */
static void put_follows(esper_json *json, const esper_compare *compare, int line)
{
    if (compare->lines[line].of >= 0)
        put_text(json, "follows", compare->lines[compare->lines[line].of].name);
}

static void write_run(const esper_compare *compare, const esper_compare_run *run, esper_page *page)
{
    const esper_compare_result *result = &run->result;
    char text[OBJECT_BYTES], name[ESPER_COMPARE_NAME_CHARS];
    esper_json json;

    begin_object(&json, text);
    put_text(&json, "line", compare->lines[run->line].name);
    put_follows(&json, compare, run->line);
    esper_json_key(&json, "seed");
    esper_json_u64(&json, esper_compare_seed(compare, run->seed));
    put_text(&json, "status", esper_compare_outcome_name(result->outcome));
    if (result->why[0] != '\0')
        put_text(&json, "why", result->why);
    put_real(&json, "acc_test", result->acc_test);
    put_real(&json, "loss_test", result->loss_test);
    put_real(&json, "total_reward", esper_compare_return(compare, run));
    put_int(&json, "params", result->params);
    put_real(&json, "flops", result->flops);
    put_real(&json, "flops_train", result->flops_train);
    put_int(&json, "epochs", result->epochs);
    put_real(&json, "seconds", result->seconds);
    put_real(&json, "budget", run->flops > 0.0 ? run->flops : (double)NAN);
    put_text(&json, "tested", result->tested);
    put_text(&json, "plant", run->plant);
    if (run->size > 0)
        put_int(&json, esper_compare_size_key(compare->task, &compare->config), run->size);
    esper_compare_name(compare, run->same_as >= 0 ? &compare->runs[run->same_as] : run, name);
    put_text(&json, "run", name);
    put_object(&json, page);
}

static void write_summary(const esper_compare *compare, int line, esper_page *page)
{
    char text[OBJECT_BYTES];
    esper_compare_summary summary;
    esper_json json;

    esper_compare_summarise(compare, line, &summary);
    begin_object(&json, text);
    put_text(&json, "summary", compare->lines[line].name);
    put_follows(&json, compare, line);
    put_text(&json, "task", compare->task->name);
    put_text(&json, "gates", esper_config_gates_name(compare->config.gates));
    put_int(&json, "n", summary.acc.n);
    put_int(&json, "n_bad", summary.n_bad);
    put_real(&json, "acc_mean", summary.acc.mean);
    put_real(&json, "acc_sd", summary.acc.sd);
    put_real(&json, "acc_min", summary.acc.min);
    put_real(&json, "acc_max", summary.acc.max);
    put_real(&json, "params", summary.params.mean);
    put_real(&json, "flops", summary.flops.mean);
    put_real(&json, "flops_train", summary.flops_train.mean);
    put_real(&json, "epochs", summary.epochs.mean);
    put_real(&json, "seconds", summary.seconds.mean);
    put_int(&json, "gain_n", summary.gain.n);
    put_real(&json, "gain_mean", summary.gain.mean);
    put_real(&json, "gain_sd", summary.gain.sd);
    put_interval(&json, "acc", &summary.acc);
    put_interval(&json, "params", &summary.params);
    put_int(&json, "return_n", summary.total_reward.n);
    put_real(&json, "return_mean", summary.total_reward.mean);
    put_real(&json, "return_sd", summary.total_reward.sd);
    put_interval(&json, "return", &summary.total_reward);
    put_real(&json, "return_per_tflop_mean", summary.per_tflop.mean);
    put_real(&json, "return_per_tflop_sd", summary.per_tflop.sd);
    put_interval(&json, "return_per_tflop", &summary.per_tflop);
    esper_json_key(&json, "on_front");
    esper_json_bool(&json, esper_compare_on_front(compare, line));
    put_object(&json, page);
}

static void put_difference(esper_json *json, const char *key, const esper_compare_spread *spread)
{
    char name[32];

    snprintf(name, sizeof(name), "%s_n", key);
    put_int(json, name, spread->n);
    put_real(json, key, spread->mean);
    put_part(json, key, "sd", spread->sd);
    put_interval(json, key, spread);
}

/* Differences: the line that others are held against less this one. */
static void write_pair(const esper_compare *compare, int line, esper_page *page)
{
    char text[OBJECT_BYTES];
    esper_compare_pair pair;
    esper_json json;

    if (!esper_compare_pair_up(compare, line, &pair))
        return;
    begin_object(&json, text);
    put_text(&json, "pair", compare->lines[compare->against].name);
    put_text(&json, "less", compare->lines[line].name);
    put_text(&json, "reward", compare->config.reward);
    put_text(&json, "reward_weights", compare->config.reward_weights);
    put_difference(&json, "return", &pair.total_reward);
    put_difference(&json, "acc_test", &pair.acc);
    put_difference(&json, "params", &pair.params);
    put_difference(&json, "return_per_tflop", &pair.per_tflop);
    put_object(&json, page);
}

static void write_policy(const esper_compare_line *line, esper_page *page)
{
    char text[OBJECT_BYTES], hash[20];
    esper_json json;

    if (line->file[0] == '\0')
        return;
    snprintf(hash, sizeof(hash), "%016" PRIx64, line->hash);
    begin_object(&json, text);
    put_text(&json, "policy", line->name);
    put_text(&json, "file", line->file);
    put_text(&json, "hash", hash);
    put_text(&json, "trained_by", line->reward);
    if (line->weights_known)
        put_text(&json, "trained_weights", line->weights);
    put_text(&json, "trained_gates", line->gates);
    put_text(&json, "note", line->note);
    put_object(&json, page);
}

void esper_compare_write_json(const esper_compare *compare, esper_page *page)
{
    for (int i = 0; i < compare->n_runs; i++)
        write_run(compare, &compare->runs[i], page);
    for (int line = 0; line < compare->n_lines; line++)
        write_summary(compare, line, page);
    for (int line = 0; line < compare->n_lines; line++)
        write_pair(compare, line, page);
    for (int line = 0; line < compare->n_lines; line++)
        write_policy(&compare->lines[line], page);
}
