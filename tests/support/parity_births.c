/* blueprints.jsonl: how every blueprint is born, at many widths, for an adding and for a multiplying blend.
 *
 * Expected is what was recorded, changed exactly as nn/blueprint.h says: all but `norm` have batch norms where group norms
 * were recorded; conv_small, depthwise, conv_light and conv_heavy have a `scale` more, born 1/2, hence are no identities; and
 * their last convolution, recorded as born 0 (conv_small always, the others for a multiplying blend), is born like any
 * other. bottleneck's last convolution is born like any other too, and the norm behind it with weights of 1/2. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/blueprint.h"
#include "support/parity.h"

enum { MAX_FILE_BYTES = 1 << 20, TOKENS = 6, HEIGHT = 4, WIDTH = 5, SAMPLES = 2 };

/* One line of the file. */
typedef struct birth_case {
    const char   *file;
    char          what[96]; /* "case 12 cnn norm 8 ADD", for messages */
    const char   *topology, *blueprint;
    bool          multiply, has_scale;
    int           width;
    const json_t *out;
    golden_tally *tally;
} birth_case;

#define BIRTH_MISMATCH(birth, ...) golden_mismatch((birth)->tally, (birth)->file, (birth)->what, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------ ours */

static esper_status build(const birth_case *birth, esper_net *net)
{
    bool is_cnn = strcmp(birth->topology, "cnn") == 0;
    const esper_blueprint *blueprint;

    ESPER_TRY(
        esper_blueprint_find(is_cnn ? ESPER_TOPOLOGY_CNN : ESPER_TOPOLOGY_TRANSFORMER, birth->blueprint, &blueprint));
    net->input = is_cnn ? esper_net_input(net, "x", ESPER_F32, 3, (int[]){birth->width, HEIGHT, WIDTH})
                        : esper_net_input(net, "x", ESPER_F32, 2, (int[]){TOKENS, birth->width});
    net->output =
        esper_blueprint_build(blueprint, net, net->input,
                              (esper_blueprint_how){.blend = birth->multiply ? ESPER_BLEND_MULTIPLY : ESPER_BLEND_ADD});
    return esper_net_status(net);
}

static const esper_tensor *next_param(const esper_net *net, int *at)
{
    for (; *at < net->n_tensors; ++*at)
        if (net->tensors[*at].role == ESPER_ROLE_PARAM)
            return &net->tensors[(*at)++];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ names and shapes */

static bool shape_is(const esper_tensor *tensor, const json_t *shape)
{
    if (tensor->rank != (int)json_array_size(shape))
        return false;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->dim[i] != json_integer_value(json_array_get(shape, (size_t)i)))
            return false;
    return true;
}

static void check_parameters(const birth_case *birth, const esper_net *net)
{
    json_t *recorded = json_object_get(birth->out, "parameters"), *shape;
    const esper_tensor *param;
    const char *name;
    int at = 0;

    json_object_foreach(recorded, name, shape) {
        param = next_param(net, &at);
        if (param == NULL || strcmp(param->name, name) != 0 || !shape_is(param, shape))
            BIRTH_MISMATCH(birth, "%s (%d,%d,%d,%d) here, %s of %d dimensions recorded in its place",
                           param != NULL ? param->name : "nothing", param != NULL ? param->dim[0] : 0,
                           param != NULL ? param->dim[1] : 0, param != NULL ? param->dim[2] : 0,
                           param != NULL ? param->dim[3] : 0, name, (int)json_array_size(shape));
    }
    if (birth->has_scale) {
        param = next_param(net, &at);
        if (param == NULL || strcmp(param->name, "scale") != 0 || param->rank != 1 || param->dim[0] != birth->width)
            BIRTH_MISMATCH(birth, "expected scale (%d) as the last parameter, found %s", birth->width,
                           param != NULL ? param->name : "none");
    }
    param = next_param(net, &at);
    if (param != NULL)
        BIRTH_MISMATCH(birth, "%s here, nothing recorded", param->name);
}

static void check_count(const birth_case *birth, const esper_net *net)
{
    long long expected =
        json_integer_value(json_object_get(birth->out, "count")) + (birth->has_scale ? birth->width : 0);
    long long count = esper_net_count_params(net, -1);

    if (count != expected)
        BIRTH_MISMATCH(birth, "%lld parameters here, %lld expected", count, expected);
}

/* Ours are batch norms, and group norm in `norm` alone. All else is compared with group norm in their places, and an identity
 * with one is an identity with the other. */
static void check_norms(const birth_case *birth, esper_net *net)
{
    size_t expected =
        strcmp(birth->blueprint, "norm") == 0 ? 0 : json_array_size(json_object_get(birth->out, "groups"));
    int n = parity_put_group_norms(net, 0);

    if ((size_t)n != expected)
        BIRTH_MISMATCH(birth, "%d batch norms here, %zu expected", n, expected);
}

static void check_groups(const birth_case *birth, const esper_net *net)
{
    const json_t *recorded = json_object_get(birth->out, "groups");
    size_t n = 0;

    for (int o = 0; o < net->n_ops; o++) {
        int groups = net->ops[o].attr.norm.groups;

        if (net->ops[o].kind != ESPER_OP_GROUP_NORM)
            continue;
        if (json_integer_value(json_array_get(recorded, n)) != groups)
            BIRTH_MISMATCH(birth, "group norm %zu: %d groups here, %lld recorded", n, groups,
                           (long long)json_integer_value(json_array_get(recorded, n)));
        n++;
    }
    if (n != json_array_size(recorded))
        BIRTH_MISMATCH(birth, "%zu group norms here, %zu recorded", n, json_array_size(recorded));
}

/* ------------------------------------------------------------------------------------------------ first values */

static bool is_constant(const float *values, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (values[i] != values[0])
            return false;
    return true;
}

static bool is_bottleneck(const birth_case *birth)
{
    return strcmp(birth->blueprint, "bottleneck") == 0;
}

/* The convolution that was born 0 in front of a norm, and is not any more. */
static bool is_revived(const birth_case *birth, const char *param)
{
    static const char *const last_conv[][2] = {
        {"conv_small", "conv.weight"},         {"depthwise", "pointwise.weight"},
        {"conv_light", "enhance.conv.weight"}, {"conv_heavy", "enhance.1.conv.weight"},
        {"bottleneck", "up.weight"},
    };
    bool was_zero = birth->multiply ? birth->has_scale : strcmp(birth->blueprint, "conv_small") == 0;

    if (!was_zero && !is_bottleneck(birth))
        return false;
    for (size_t i = 0; i < sizeof(last_conv) / sizeof(last_conv[0]); i++)
        if (strcmp(birth->blueprint, last_conv[i][0]) == 0 && strcmp(param, last_conv[i][1]) == 0)
            return true;
    return false;
}

/* The constant a parameter is expected to be born as; NAN = it is drawn. */
static double expected_constant(const birth_case *birth, const esper_tensor *param)
{
    const json_t *recorded = json_object_get(json_object_get(birth->out, "constant"), param->name);

    if (strcmp(param->name, birth->has_scale ? "scale" : is_bottleneck(birth) ? "gn.weight" : "") == 0)
        return 0.5;
    if (recorded == NULL || is_revived(birth, param->name))
        return (double)NAN;
    return json_number_value(recorded);
}

static void check_constants(const birth_case *birth, const parity_run *run)
{
    const esper_tensor *param;
    int at = 0;

    while ((param = next_param(&run->net, &at)) != NULL) {
        const float *values = esper_slab_at(&run->slab, ESPER_FAMILY_PARAM, param);
        double expected = expected_constant(birth, param);

        if (isnan(expected) && param->count == 1) /* a single value is always constant: most were not written down */
            continue;
        if (isnan(expected) && is_constant(values, param->count))
            BIRTH_MISMATCH(birth, "%s: all %g here, expected to be drawn", param->name, (double)values[0]);
        if (!isnan(expected) && (!is_constant(values, param->count) || (double)values[0] != expected))
            BIRTH_MISMATCH(birth, "%s: %g%s here, all %g expected", param->name, (double)values[0],
                           is_constant(values, param->count) ? "" : " and others", expected);
        birth->tally->n_values += (long)param->count;
    }
    birth->tally->n_tensors++;
}

/* Whether the seed gives back its input, bit for bit. */
static esper_status check_identity(const birth_case *birth, parity_run *run, esper_backend *backend)
{
    esper_rng_key key = {.seed = 7, .purpose = ESPER_RNG_TEST};
    int64_t count = SAMPLES * run->net.tensors[run->net.input].count;
    float *x = esper_plan_data(run->plan, 0, run->net.input);
    bool recorded = json_is_true(json_object_get(birth->out, "identity_at_birth")),
         expected = recorded && !birth->has_scale && !is_bottleneck(birth), identity;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int64_t i = 0; i < count; i++)
        x[i] = esper_rng_normal(&rng);
    ESPER_TRY(esper_plan_forward(run->plan));
    ESPER_TRY(esper_backend_sync(backend));
    identity = memcmp(x, esper_plan_data(run->plan, 0, run->net.output), (size_t)count * sizeof(float)) == 0;
    if (identity != expected)
        BIRTH_MISMATCH(birth, "%s an identity at birth here, expected %s", identity ? "is" : "is not",
                       expected ? "one" : "none");
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the file */

static esper_status check_birth(const birth_case *birth, parity_run *run, esper_backend *backend)
{
    ESPER_TRY(build(birth, &run->net));
    check_norms(birth, &run->net);
    check_parameters(birth, &run->net);
    check_count(birth, &run->net);
    check_groups(birth, &run->net);
    ESPER_TRY(parity_run_open(run, backend, SAMPLES, false));
    check_constants(birth, run);
    return check_identity(birth, run, backend);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static void check_line(const char *line, esper_backend *backend, const char *file, golden_tally *tally)
{
    json_t *json = json_loads(line, 0, NULL);
    const json_t *in = json_object_get(json, "in");
    birth_case birth = {.file = file, .tally = tally, .out = json_object_get(json, "out")};
    parity_run run = {0};

    birth.topology = text_of(in, "topology");
    birth.blueprint = text_of(in, "blueprint");
    birth.multiply = strcmp(text_of(in, "operator"), "MULTIPLY") == 0;
    birth.width = (int)json_integer_value(json_object_get(in, "width"));
    birth.has_scale = parity_has_scale(birth.topology, birth.blueprint);
    snprintf(birth.what, sizeof(birth.what), "case %d %s %s %d %s",
             (int)json_integer_value(json_object_get(json, "case")), birth.topology, birth.blueprint, birth.width,
             text_of(in, "operator"));
    esper_net_init(&run.net);
    if (check_birth(&birth, &run, backend) != ESPER_OK)
        BIRTH_MISMATCH(&birth, "%s", esper_last_error());
    parity_run_close(&run);
    json_decref(json);
}

int parity_check_births(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    long before = tally->n_mismatches;
    char path[GOLDEN_PATH_CHARS], *text, *line;
    size_t n_bytes;
    int n = 0;

    if (esper_file_read(golden_path(entry, path), MAX_FILE_BYTES, &text, &n_bytes) != ESPER_OK) {
        golden_mismatch(tally, entry->name, "file", "%s", esper_last_error());
        return 1;
    }
    line = strchr(text, '\n'); /* the first line is the header */
    while (line != NULL && line[1] != '\0') {
        char *end = strchr(++line, '\n');

        if (end != NULL)
            *end = '\0';
        check_line(line, backend, entry->name, tally);
        line = end;
        n++;
    }
    if (n == 0)
        golden_mismatch(tally, entry->name, "file", "no cases");
    esper_mem_free(text);
    return (int)(tally->n_mismatches - before);
}
