/* The gates. */
#include "slot/gate.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "slot/alpha.h"

/* A number as it stands in tokens. */
typedef struct words {
    char text[ESPER_NUMBER_CHARS];
} words;

static words in_words(double value)
{
    words number;

    esper_number_write_fixed(value, 2, number.text);
    return number;
}

/* Adds a check with the word for its outcome. */
__attribute__((format(printf, 6, 7))) static void add(esper_gate_result *result, esper_gate_check_kind kind,
                                                      bool passed, double value, double threshold, const char *token,
                                                      ...)
{
    esper_gate_check *check = &result->checks[result->n_checks++];
    va_list args;

    assert(result->n_checks <= ESPER_GATE_MAX_CHECKS);
    check->kind = (int32_t)kind;
    check->passed = passed;
    check->value = value;
    check->threshold = threshold;
    va_start(args, token);
    vsnprintf(check->token, sizeof(check->token), token, args);
    va_end(args);
    result->passed = result->passed && passed;
}

/* A check whose answer is yes or no. */
static void add_yes_no(esper_gate_result *result, esper_gate_check_kind kind, bool passed, const char *yes,
                       const char *no)
{
    add(result, kind, passed, passed, 1.0, "%s", passed ? yes : no);
}

static bool reaches(double value, double threshold)
{
    return isfinite(value) && value >= threshold;
}

static double share(double value, double whole)
{
    return isfinite(value) && value > 0.0 ? fmin(1.0, value / whole) : 0.0;
}

static bool has_text(const char *text)
{
    return text != NULL && text[0] != '\0';
}

static void say(esper_gate_result *result, const char *before, const char *number, const char *after)
{
    snprintf(result->message, sizeof(result->message), "%s%s%s", before, number, after);
}

/* What a stage must have lasted. */
static int epochs_asked(const esper_gate_input *input)
{
    return input->min_epochs > 0 ? input->min_epochs : ESPER_GATE_MIN_EPOCHS;
}

/* ----------------------------------------------------------------------------------------------------------- G2 */

static void judge_blending_strict(const esper_gate_input *input, esper_gate_result *result)
{
    const esper_merit *merit = &input->improvement;
    bool measured = merit->how == ESPER_MERIT_PLAIN || merit->how == ESPER_MERIT_TRIAL;
    bool enough = reaches(merit->value, ESPER_GATE_MIN_IMPROVEMENT);
    bool lasted = input->epochs_in_stage >= epochs_asked(input);
    bool active = reaches(input->gradient_ratio, ESPER_GATE_MIN_RATIO);

    if (measured)
        add(result, ESPER_CHECK_IMPROVEMENT, enough, merit->value, ESPER_GATE_MIN_IMPROVEMENT, "%s_%s%s%%",
            merit->how == ESPER_MERIT_TRIAL ? "trial_gain" : "global_improvement", enough ? "" : "insufficient_",
            in_words(merit->value).text);
    else
        add(result, ESPER_CHECK_IMPROVEMENT, false, (double)NAN, ESPER_GATE_MIN_IMPROVEMENT,
            "improvement_never_measured");
    add(result, ESPER_CHECK_EPOCHS, lasted, input->epochs_in_stage, epochs_asked(input), "%s",
        lasted ? "seed_ready" : "seed_not_ready");
    if (input->has_gradient_ratio)
        add(result, ESPER_CHECK_GRADIENT_RATIO, active, input->gradient_ratio, ESPER_GATE_MIN_RATIO,
            "seed_gradient_%s_%s", active ? "active" : "low", in_words(input->gradient_ratio).text);
    else
        add(result, ESPER_CHECK_GRADIENT_RATIO, false, (double)NAN, ESPER_GATE_MIN_RATIO,
            "gradient_stats_never_measured");
    say(result, "Improvement: ", in_words(merit->value).text, "%");
}

/* Two networks were trained, with the seed and without: nothing else has to be asked. */
static void judge_blending_by_forks(const esper_gate_input *input, esper_gate_result *result)
{
    double gain = input->improvement.value;
    bool enough = isfinite(gain) && gain > 0.0;

    add(result, ESPER_CHECK_IMPROVEMENT, enough, gain, 0.0, "fork_gain_%s%.4f", enough ? "" : "insufficient_", gain);
    say(result, enough ? "A fork with it gained" : "A fork with it did not gain", "", "");
}

static void judge_blending_permissive(const esper_gate_input *input, esper_gate_result *result)
{
    int epochs = input->epochs_in_stage, asked = epochs_asked(input);
    double health = input->gradient_health, least = ESPER_GATE_MIN_HEALTH;

    if (epochs >= asked)
        add(result, ESPER_CHECK_EPOCHS, true, epochs, asked, "trained_%d_epochs", epochs);
    else
        add(result, ESPER_CHECK_EPOCHS, false, epochs, asked, "insufficient_training_%d_of_%d", epochs, asked);
    if (input->has_gradient_health)
        add_yes_no(result, ESPER_CHECK_EXPLODING, !input->exploding, "no_exploding_gradients", "exploding_gradients");
    if (!input->has_gradient_health)
        add(result, ESPER_CHECK_GRADIENT_MEASURED, false, (double)NAN, least, "gradient_health_not_measured");
    else if (input->exploding) /* needs no second word: the health then fails in silence, as recorded */
        add(result, ESPER_CHECK_GRADIENT_HEALTH, false, health, least, "%s", "");
    else if (reaches(health, least))
        add(result, ESPER_CHECK_GRADIENT_HEALTH, true, health, least, "gradient_health_%s", in_words(health).text);
    else
        add(result, ESPER_CHECK_GRADIENT_HEALTH, false, health, least, "gradient_health_low_%s_need_%s",
            in_words(health).text, in_words(least).text);
    say(result, "Permissive G2 Safety: ", result->passed ? "PASS" : "FAIL", "");
}

/* ----------------------------------------------------------------------------------------------------------- G3 */

static void judge_holding(const esper_gate_input *input, esper_gate_result *result)
{
    static const char *const modes[] = {"HOLD", "UP", "DOWN"}; /* as recorded tokens write them */
    double alpha = input->alpha, target = input->alpha_target, full = 1.0 - ESPER_ALPHA_NEAR;
    int asked = epochs_asked(input);
    bool is_there =
        input->alpha_mode == ESPER_ALPHA_HOLD && isfinite(alpha) && fabs(alpha - target) <= ESPER_ALPHA_NEAR;

    if (reaches(target, full))
        add(result, ESPER_CHECK_ALPHA_TARGET, true, target, full, "alpha_target_full");
    else
        add(result, ESPER_CHECK_ALPHA_TARGET, false, target, full, "alpha_target_not_full_%s", in_words(target).text);
    if (is_there)
        add(result, ESPER_CHECK_ALPHA, true, alpha, target, "alpha_target_reached");
    else
        add(result, ESPER_CHECK_ALPHA, false, alpha, target, "alpha_not_at_target_%s_target_%s_mode_%s",
            in_words(alpha).text, in_words(target).text,
            input->alpha_mode >= 0 && input->alpha_mode < 3 ? modes[input->alpha_mode] : "?");
    if (input->permissive)
        say(result, "Permissive G3: alpha completion only", "", "");
    else if (input->epochs_in_stage >= asked)
        add(result, ESPER_CHECK_EPOCHS, true, input->epochs_in_stage, asked, "blending_complete");
    else
        add(result, ESPER_CHECK_EPOCHS, false, input->epochs_in_stage, asked, "blending_incomplete_%d",
            input->epochs_in_stage);
    result->score = isfinite(alpha) ? alpha : 0.0;
}

/* ----------------------------------------------------------------------------------------------------------- G5 */

/* Whether there is a contribution to judge, and that of how many epochs. */
static bool check_measured(const esper_merit *merit, esper_gate_result *result)
{
    bool is_bound = merit->how == ESPER_MERIT_LOWER_BOUND;

    if (merit->how != ESPER_MERIT_PLAIN && !is_bound) {
        add(result, ESPER_CHECK_CONTRIBUTION_MEASURED, false, (double)NAN, 0.0, "counterfactual_not_available");
        return false;
    }
    if (!isfinite(merit->value)) {
        add(result, ESPER_CHECK_CONTRIBUTION_MEASURED, false, merit->value, 0.0, "counterfactual_not_finite");
        return false;
    }
    if (!is_bound)
        add(result, ESPER_CHECK_CONTRIBUTION_MEASURED, true, merit->value, 0.0, "counterfactual_available_%s%%",
            in_words(merit->value).text);
    else if (merit->n_epochs >= ESPER_GATE_MIN_BOUND_EPOCHS)
        add(result, ESPER_CHECK_BOUND_EPOCHS, true, merit->n_epochs, ESPER_GATE_MIN_BOUND_EPOCHS,
            "counterfactual_bound_%s%%_of_%d_epochs", in_words(merit->value).text, merit->n_epochs);
    else
        add(result, ESPER_CHECK_BOUND_EPOCHS, false, merit->n_epochs, ESPER_GATE_MIN_BOUND_EPOCHS,
            "counterfactual_bound_of_%d_of_%d_epochs", merit->n_epochs, (int)ESPER_GATE_MIN_BOUND_EPOCHS);
    return true;
}

static void judge_fossil(const esper_gate_input *input, esper_gate_result *result)
{
    double merit = input->contribution.value;
    bool enough = reaches(merit, ESPER_GATE_MIN_CONTRIBUTION);

    if (!check_measured(&input->contribution, result))
        return;
    add_yes_no(result, ESPER_CHECK_HEALTHY, input->healthy, "healthy", "unhealthy");
    result->score = share(merit, 10.0);
    if (input->permissive) {
        say(result, "Permissive G5: ", in_words(merit).text, "% contribution (no threshold)");
    } else if (enough) {
        add(result, ESPER_CHECK_CONTRIBUTION, true, merit, ESPER_GATE_MIN_CONTRIBUTION, "sufficient_contribution_%s%%",
            in_words(merit).text);
    } else {
        add(result, ESPER_CHECK_CONTRIBUTION, false, merit, ESPER_GATE_MIN_CONTRIBUTION,
            "insufficient_contribution_%s%%_below_1.0%%", in_words(merit).text);
    }
}

/* ------------------------------------------------------------------------------------------------------- public */

int esper_gate_pace(int epochs, int gate_epochs)
{
    return (int)(((int64_t)epochs * gate_epochs + ESPER_GATE_MIN_EPOCHS - 1) / ESPER_GATE_MIN_EPOCHS);
}

int esper_gate_least_epochs(bool permissive, int gate_epochs)
{
    const int64_t born = 1, until_training = 1, training = gate_epochs;
    int64_t blending = permissive ? 1 : gate_epochs, holding = permissive ? 1 : ESPER_GATE_MIN_BOUND_EPOCHS;
    int64_t least = born + until_training + training + blending + holding;

    return least < INT_MAX ? (int)least : INT_MAX;
}

int esper_gate_before(int stage)
{
    switch (stage) {
#define X(name, code, text, target) \
    case ESPER_STAGE_##target:      \
        return code;
        ESPER_GATE_LIST(X)
#undef X
    default:
        return -1;
    }
}

const char *esper_gate_name(int gate)
{
    switch (gate) {
#define X(name, code, text, target) \
    case code:                      \
        return text;
        ESPER_GATE_LIST(X)
#undef X
    default:
        return NULL;
    }
}

const char *esper_gate_check_name(int kind)
{
    static const char *const names[ESPER_CHECK_N_KINDS] = {
#define X(name, text, about) text,
        ESPER_GATE_CHECK_LIST(X)
#undef X
    };

    return kind >= 0 && kind < ESPER_CHECK_N_KINDS ? names[kind] : NULL;
}

const char *esper_gate_check_about(int kind)
{
    static const char *const abouts[ESPER_CHECK_N_KINDS] = {
#define X(name, text, about) about,
        ESPER_GATE_CHECK_LIST(X)
#undef X
    };

    return kind >= 0 && kind < ESPER_CHECK_N_KINDS ? abouts[kind] : NULL;
}

bool esper_gate_judge(int gate, const esper_gate_input *input, esper_gate_result *result_out)
{
    esper_gate_result result;

    memset(&result, 0, sizeof(result));
    result.gate = gate;
    result.passed = 1;
    result.permissive = input->permissive;
    switch (gate) {
    case ESPER_GATE_G0:
        add_yes_no(&result, ESPER_CHECK_SEED_ID, has_text(input->seed_id), "seed_id_present", "seed_id_missing");
        add_yes_no(&result, ESPER_CHECK_BLUEPRINT, has_text(input->blueprint), "blueprint_id_present",
                   "blueprint_id_missing");
        result.score = result.passed;
        say(&result, result.passed ? "Germination gate" : "Missing required fields", "", "");
        break;
    case ESPER_GATE_G1:
        add_yes_no(&result, ESPER_CHECK_STAGE, input->stage == ESPER_STAGE_GERMINATED, "germinated", "not_germinated");
        result.score = result.passed;
        say(&result, result.passed ? "Ready for training" : "Not germinated", "", "");
        break;
    case ESPER_GATE_G2:
        (input->improvement.how == ESPER_MERIT_FORKS ? judge_blending_by_forks
         : input->permissive                         ? judge_blending_permissive
                                                     : judge_blending_strict)(input, &result);
        result.score = share(input->improvement.value, 5.0);
        break;
    case ESPER_GATE_G3:
        judge_holding(input, &result);
        break;
    case ESPER_GATE_G5:
        judge_fossil(input, &result);
        break;
    default:
        return false;
    }
    *result_out = result;
    return true;
}

void esper_gate_refuse(int gate, const char *token, esper_gate_result *result_out)
{
    memset(result_out, 0, sizeof(*result_out));
    result_out->gate = gate;
    result_out->passed = 1;
    add(result_out, ESPER_CHECK_SEED, false, 0.0, 1.0, "%s", token);
}

/* ------------------------------------------------------------------------------------------------------- in words */

const char *esper_gate_why(const esper_gate_result *result, char text[ESPER_GATE_WHY_CHARS])
{
    /* where there is no number to hold against another, the recorded word says it */
    static const uint32_t by_token = 1u << ESPER_CHECK_SEED | 1u << ESPER_CHECK_SEED_ID | 1u << ESPER_CHECK_BLUEPRINT |
                                     1u << ESPER_CHECK_STAGE | 1u << ESPER_CHECK_EXPLODING | 1u << ESPER_CHECK_HEALTHY |
                                     1u << ESPER_CHECK_CONTRIBUTION_MEASURED;
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; !result->passed && i < result->n_checks && used < ESPER_GATE_WHY_CHARS; i++) {
        const esper_gate_check *check = &result->checks[i];
        const char *between = used > 0 ? "; " : "";
        size_t left = ESPER_GATE_WHY_CHARS - used;

        if (check->passed || check->token[0] == '\0') /* what fails in silence */
            continue;
        if ((by_token >> check->kind & 1u) != 0 || isnan(check->value))
            used += (size_t)snprintf(text + used, left, "%s%s", between, check->token);
        else
            used += (size_t)snprintf(text + used, left, "%s%s %.4g, needs %.4g", between,
                                     esper_gate_check_name(check->kind), check->value, check->threshold);
    }
    for (char *c = text; *c != '\0'; c++)
        *c = (char)(*c == '_' ? ' ' : *c);
    if (used == 0)
        snprintf(text, ESPER_GATE_WHY_CHARS, "%s", result->message);
    return text;
}
