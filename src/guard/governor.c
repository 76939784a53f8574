/* The governor: vital signs from losses, and the ladder from readings to actions. It computes in double, on numbers alone;
 * whoever asks it does the work.
 *
 *      losses ──> judge_loss ──> trigger ─┐
 *                                         ├──> ladder[trigger][ground] ──> action
 *      scans  ──> judge_scan ──> trigger ─┘
 *
 * Losses and scans each have a standing answer; the worse of the two is the governor's. Once either has asked for a restore
 * it keeps asking until there was one: clean scans and good losses do not mend weights. Losses are still noted meanwhile, as
 * vital signs. A scan that asked for a skip meant that step alone, so a loss that comes after it is not answered with the
 * same skip again. */
#include "guard/governor.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { MIN_SAMPLES = 10, MAX_WINDOW = 1 << 20 };
enum {
    GRAD_BITS = ESPER_GUARD_BAD_NAN_GRAD | ESPER_GUARD_BAD_INF_GRAD,
    KNOWN_BITS = GRAD_BITS | ESPER_GUARD_BAD_NAN_STATE | ESPER_GUARD_BAD_INF_STATE | ESPER_GUARD_BAD_CHANGED
};

static const double collapse_distance = 0.065; /* of random_guess_loss: this near to it is guessing ... */
static const double collapse_below = 0.60;     /* ... and is a collapse when the mean was below this part of it */

/* What a reading amounts to. */
typedef enum trigger {
    HEALTHY,
    ANOMALY,   /* a loss far too high, not yet often enough */
    BAD_GRAD,  /* a gradient is not finite, everything else is */
    SKIPS_OUT, /* one more of those than may be passed over in a row */
    BAD_STATE, /* parameters, moments or buffers are not finite, or not what they were */
    PANIC,     /* of the vital signs */
    N_TRIGGERS
} trigger;

/* What lies behind. */
typedef enum ground {
    FRESH, /* no rollback to the newest snapshot yet */
    AGAIN, /* the newest snapshot has been rolled back to already */
    SPENT, /* max_rollbacks have been made */
    N_GROUNDS
} ground;

/* The ladder. */
static const esper_governor_action ladder[N_TRIGGERS][N_GROUNDS] = {
    /*              FRESH                     AGAIN                 SPENT                */
    [HEALTHY] =   {ESPER_GOVERNOR_GO,        ESPER_GOVERNOR_GO,    ESPER_GOVERNOR_GO},
    [ANOMALY] =   {ESPER_GOVERNOR_GO,        ESPER_GOVERNOR_GO,    ESPER_GOVERNOR_GO},
    [BAD_GRAD] =  {ESPER_GOVERNOR_SKIP,      ESPER_GOVERNOR_SKIP,  ESPER_GOVERNOR_SKIP},
    [SKIPS_OUT] = {ESPER_GOVERNOR_ROLL_BACK, ESPER_GOVERNOR_PRUNE, ESPER_GOVERNOR_STOP},
    [BAD_STATE] = {ESPER_GOVERNOR_ROLL_BACK, ESPER_GOVERNOR_PRUNE, ESPER_GOVERNOR_STOP},
    [PANIC] =     {ESPER_GOVERNOR_ROLL_BACK, ESPER_GOVERNOR_PRUNE, ESPER_GOVERNOR_STOP},
};

struct esper_governor {
    esper_governor_options options;
    /* Vital signs. */
    double  *history; /* (window) healthy losses, a ring */
    uint32_t n_history, oldest;
    uint32_t consecutive;
    bool     pending;
    double   panic_loss;
    /* The ladder. */
    esper_governor_action loss_action, scan_action; /* standing answers */
    esper_governor_reason loss_reason, scan_reason;
    uint32_t              skips_in_a_row;
    uint64_t              n_skipped, n_rollbacks;
    bool                  again;         /* a rollback was made and no later snapshot since */
    uint64_t              restored_step; /* of that rollback */
    bool                  faulted;
};

static const char *const reason_names[] = {
#define X(name, text) text,
    ESPER_GOVERNOR_REASON_LIST(X)
#undef X
};

const char *esper_governor_reason_name(esper_governor_reason reason)
{
    return (size_t)reason < sizeof(reason_names) / sizeof(reason_names[0]) ? reason_names[reason] : "unknown";
}

static const char *const action_names[] = {
#define X(name, text) text,
    ESPER_GOVERNOR_ACTION_LIST(X)
#undef X
};

const char *esper_governor_action_name(esper_governor_action action)
{
    return (size_t)action < sizeof(action_names) / sizeof(action_names[0]) ? action_names[action] : "unknown";
}

/* ------------------------------------------------------------------------------------------------ opening */

void esper_governor_options_init(esper_governor_options *options)
{
    if (options == NULL)
        return;
    *options = (esper_governor_options){
        .size = sizeof(*options),
        .sensitivity = 6.0,
        .multiplier = 3.0,
        .absolute = 12.0,
        .random_guess_loss = log(10.0),
        .window = 20,
        .min_panics = 3,
        .max_skips = 10,
        .max_rollbacks = 3,
    };
}

static bool is_level(double value)
{
    return isfinite(value) && value >= 0.0;
}

/* A program built against an earlier header gives a shorter struct: what it does not know of keeps its default. */
static esper_status read_options(const esper_governor_options *given, esper_governor_options *options)
{
    esper_governor_options_init(options);
    if (given == NULL)
        return ESPER_OK;
    if (given->size < sizeof(given->size) || given->size > sizeof(*given))
        return ESPER_FAIL(ESPER_E_ARG, "governor: options of %zu bytes: set them up with esper_governor_options_init",
                          given->size);
    memcpy(options, given, given->size);
    options->size = sizeof(*options);
    if (!is_level(options->sensitivity) || !is_level(options->multiplier) || !is_level(options->absolute) ||
        !is_level(options->random_guess_loss))
        return ESPER_FAIL(ESPER_E_ARG,
                          "governor: sensitivity %g, multiplier %g, absolute %g, random_guess_loss %g: all must be "
                          "finite and not negative",
                          options->sensitivity, options->multiplier, options->absolute, options->random_guess_loss);
    if (options->window < MIN_SAMPLES || options->window > MAX_WINDOW)
        return ESPER_FAIL(ESPER_E_ARG,
                          "governor: a window of %u losses: expected %d to %d; with fewer it would never judge",
                          options->window, MIN_SAMPLES, MAX_WINDOW);
    if (options->min_panics == 0)
        return ESPER_FAIL(ESPER_E_ARG, "governor: min_panics is 0: expected 1 or more anomalies before a panic");
    return ESPER_OK;
}

esper_status esper_governor_open(const esper_governor_options *options, esper_governor **governor_out)
{
    esper_governor_options read;
    esper_governor *governor;

    if (governor_out == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "governor: nowhere to put it");
    ESPER_TRY(read_options(options, &read));
    governor = esper_mem_alloc(sizeof(*governor));
    if (governor != NULL)
        governor->history = esper_mem_alloc(read.window * sizeof(*governor->history));
    if (governor == NULL || governor->history == NULL) {
        esper_governor_close(governor);
        return ESPER_FAIL(ESPER_E_NOMEM, "governor with a window of %u losses", read.window);
    }
    governor->options = read;
    governor->panic_loss = (double)NAN;
    *governor_out = governor;
    return ESPER_OK;
}

void esper_governor_close(esper_governor *governor)
{
    if (governor == NULL)
        return;
    esper_mem_free(governor->history);
    esper_mem_free(governor);
}

/* ------------------------------------------------------------------------------------------------ history */

/* Loss i of the history, the oldest first. */
static double history_at(const esper_governor *governor, uint32_t i)
{
    assert(i < governor->n_history);
    return governor->history[(governor->oldest + i) % governor->options.window];
}

static void history_add(esper_governor *governor, double loss)
{
    uint32_t window = governor->options.window;

    assert(isfinite(loss) && governor->n_history <= window && governor->oldest < window);
    governor->history[(governor->oldest + governor->n_history) % window] = loss;
    if (governor->n_history < window)
        governor->n_history++;
    else
        governor->oldest = (governor->oldest + 1) % window;
}

static double history_mean(const esper_governor *governor)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < governor->n_history; i++)
        sum += history_at(governor, i);
    return governor->n_history > 0 ? sum / governor->n_history : 0.0;
}

/* mean + sensitivity * deviation, of the population; 0 without a history. */
static double history_threshold(const esper_governor *governor)
{
    double mean = history_mean(governor), sum = 0.0;

    if (governor->n_history == 0)
        return 0.0;
    for (uint32_t i = 0; i < governor->n_history; i++) {
        double distance = history_at(governor, i) - mean;

        sum += distance * distance;
    }
    return mean + governor->options.sensitivity * sqrt(sum / governor->n_history);
}

/* ------------------------------------------------------------------------------------------------ judging */

static trigger panic_now(esper_governor *governor, double loss)
{
    assert(!governor->faulted);
    governor->pending = false; /* of the anomalies; that a restore is asked for is told by the action */
    governor->panic_loss = loss;
    return PANIC;
}

/* The network was doing well and now only guesses. */
static bool has_collapsed(const esper_governor *governor, double loss)
{
    double guess = governor->options.random_guess_loss;

    return history_mean(governor) < collapse_below * guess && fabs(loss - guess) < collapse_distance * guess;
}

static bool is_anomalous(const esper_governor *governor, double loss)
{
    return loss > governor->options.absolute && loss > history_threshold(governor) &&
           loss > governor->options.multiplier * history_mean(governor);
}

static trigger note_anomaly(esper_governor *governor, double loss)
{
    assert(governor->n_history >= MIN_SAMPLES && isfinite(loss));
    if (governor->consecutive < UINT32_MAX)
        governor->consecutive++;
    governor->pending = true;
    governor->panic_loss = loss;
    return governor->consecutive >= governor->options.min_panics ? PANIC : ANOMALY;
}

/* The first that fits: not finite, collapsed, too early to say, diverging, healthy. Only healthy losses are remembered, so
 * that what is abnormal does not become the norm. */
static trigger judge_loss(esper_governor *governor, double loss, esper_governor_reason *reason_out)
{
    bool armed = governor->n_history >= MIN_SAMPLES;

    *reason_out = ESPER_GOVERNOR_NAN;
    if (!isfinite(loss))
        return panic_now(governor, loss);
    *reason_out = ESPER_GOVERNOR_LOBOTOMY;
    if (armed && has_collapsed(governor, loss))
        return panic_now(governor, loss);
    *reason_out = ESPER_GOVERNOR_DIVERGENCE;
    if (armed && is_anomalous(governor, loss))
        return note_anomaly(governor, loss);
    *reason_out = ESPER_GOVERNOR_NONE;
    history_add(governor, loss);
    if (!armed)
        return HEALTHY; /* whatever it is: the rest keeps what an earlier panic left, until there is a rollback */
    governor->consecutive = 0;
    governor->pending = false;
    governor->panic_loss = (double)NAN;
    return HEALTHY;
}

/* What is wrong with the state outweighs what is wrong with a gradient: the latter follows from the former. */
static trigger judge_scan(esper_governor *governor, uint32_t bad)
{
    assert((bad & ~(uint32_t)KNOWN_BITS) == 0);
    if (bad == 0) {
        governor->skips_in_a_row = 0;
        return HEALTHY;
    }
    if ((bad & ~(uint32_t)GRAD_BITS) != 0)
        return BAD_STATE;
    if (governor->skips_in_a_row >= governor->options.max_skips)
        return SKIPS_OUT;
    governor->skips_in_a_row++;
    governor->n_skipped++;
    return BAD_GRAD;
}

/* ------------------------------------------------------------------------------------------------ deciding */

static esper_governor_action decide(const esper_governor *governor, trigger why)
{
    ground where = governor->again ? AGAIN : FRESH;

    assert(!governor->faulted);
    if (governor->n_rollbacks >= governor->options.max_rollbacks)
        where = SPENT;
    return ladder[why][where];
}

static bool wants_restore(esper_governor_action action)
{
    return action >= ESPER_GOVERNOR_ROLL_BACK;
}

/* The worse of the standing answers. */
static esper_governor_action action_of(const esper_governor *governor)
{
    if (governor->faulted)
        return ESPER_GOVERNOR_STOP;
    return governor->scan_action > governor->loss_action ? governor->scan_action : governor->loss_action;
}

/* Of no governor: one that has stopped, so that nobody goes on by mistake. */
void esper_governor_reading_get(const esper_governor *governor, esper_governor_reading *reading_out)
{
    bool scan_is_worse = governor != NULL && governor->scan_action > governor->loss_action;
    esper_governor_action action = governor != NULL ? action_of(governor) : ESPER_GOVERNOR_STOP;

    if (reading_out == NULL)
        return;
    if (governor == NULL) {
        *reading_out = (esper_governor_reading){
            .action = ESPER_GOVERNOR_STOP, .pending = 1, .panic_loss = (double)NAN, .faulted = 1};
        return;
    }
    *reading_out = (esper_governor_reading){
        .action = action,
        .reason = scan_is_worse ? governor->scan_reason : governor->loss_reason,
        .pending = governor->pending || governor->skips_in_a_row > 0 || action != ESPER_GOVERNOR_GO,
        .consecutive = governor->consecutive,
        .panic_loss = governor->panic_loss,
        .history_count = governor->n_history,
        .history_mean = history_mean(governor),
        .threshold = history_threshold(governor),
        .n_skipped = governor->n_skipped,
        .n_rollbacks = governor->n_rollbacks,
        .faulted = governor->faulted,
    };
}

/* After every judgement: a stop sticks. */
static void conclude(esper_governor *governor, esper_governor_reading *reading_out)
{
    if (governor->loss_action == ESPER_GOVERNOR_STOP || governor->scan_action == ESPER_GOVERNOR_STOP)
        governor->faulted = true;
    if (reading_out != NULL)
        esper_governor_reading_get(governor, reading_out);
}

esper_status esper_governor_check(esper_governor *governor, double loss, esper_governor_reading *reading_out)
{
    esper_governor_reason reason;
    trigger why;

    if (governor == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "governor: NULL");
    if (governor->scan_action ==
        ESPER_GOVERNOR_SKIP) { /* that step lies behind; how many there were in a row still counts */
        governor->scan_action = ESPER_GOVERNOR_GO;
        governor->scan_reason = ESPER_GOVERNOR_NONE;
    }
    if (!governor->faulted) {
        why = judge_loss(governor, loss, &reason);
        if (!wants_restore(governor->loss_action)) {
            governor->loss_action = decide(governor, why);
            governor->loss_reason = reason;
        }
    }
    conclude(governor, reading_out);
    return ESPER_OK;
}

esper_status esper_governor_scan(esper_governor *governor, uint32_t bad, esper_governor_reading *reading_out)
{
    trigger why;

    if (governor == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "governor: NULL");
    if ((bad & ~(uint32_t)KNOWN_BITS) != 0)
        return ESPER_FAIL(ESPER_E_ARG,
                          "governor: a verdict of %#x: expected ESPER_GUARD_BAD_* bits, such as the report's `bad`",
                          bad);
    if (!governor->faulted && !wants_restore(governor->scan_action)) {
        why = judge_scan(governor, bad);
        governor->scan_action = decide(governor, why);
        governor->scan_reason = why == HEALTHY ? ESPER_GOVERNOR_NONE : ESPER_GOVERNOR_SCAN;
    }
    conclude(governor, reading_out);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ being told */

esper_status esper_governor_snapshot(esper_governor *governor, uint64_t snapshot_step)
{
    if (governor == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "governor: NULL");
    if (snapshot_step > governor->restored_step)
        governor->again = false;
    return ESPER_OK;
}

esper_status esper_governor_rolled_back(esper_governor *governor, uint64_t snapshot_step, int failed)
{
    if (governor == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "governor: NULL");
    if (!wants_restore(action_of(governor)))
        return ESPER_FAIL(ESPER_E_STATE, "governor: no rollback was asked for; one of your own need not be told");
    if (failed) {
        governor->faulted = true;
        return ESPER_OK;
    }
    governor->n_rollbacks++;
    governor->again = true;
    governor->restored_step = snapshot_step;
    governor->faulted = false;
    governor->skips_in_a_row = 0;
    governor->loss_action = governor->scan_action = ESPER_GOVERNOR_GO;
    governor->loss_reason = governor->scan_reason = ESPER_GOVERNOR_NONE;
    governor->consecutive = 0;
    governor->pending = false;
    governor->panic_loss = (double)NAN;
    return ESPER_OK;
}

void esper_governor_forget_losses(esper_governor *governor)
{
    governor->n_history = governor->oldest = 0;
    if (wants_restore(action_of(governor)))
        return;
    governor->consecutive = 0;
    governor->pending = false;
    governor->panic_loss = (double)NAN;
}

/* ------------------------------------------------------------------------------------------------ remembering */

/* Counters in front of the history. All are exact as doubles: no run makes 2^53 steps. */
enum { N_COUNTERS = 8 };

size_t esper_governor_memory_count(const esper_governor *governor)
{
    return N_COUNTERS + governor->n_history;
}

void esper_governor_pack(const esper_governor *governor, double *numbers_out)
{
    const double counters[N_COUNTERS] = {
        (double)governor->consecutive, governor->pending ? 1.0 : 0.0,     governor->panic_loss,
        (double)governor->skips_in_a_row, (double)governor->n_skipped, (double)governor->n_rollbacks,
        governor->again ? 1.0 : 0.0, (double)governor->restored_step,
    };

    memcpy(numbers_out, counters, sizeof(counters));
    for (uint32_t i = 0; i < governor->n_history; i++)
        numbers_out[N_COUNTERS + i] = history_at(governor, i);
}

static bool is_count(double number)
{
    return number >= 0.0 && number <= 0x1p53 && number == floor(number);
}

static esper_status check_numbers(const esper_governor *governor, const double *numbers, size_t n_numbers)
{
    if (n_numbers < N_COUNTERS || n_numbers - N_COUNTERS > governor->options.window)
        return ESPER_FAIL(ESPER_E_FORMAT, "a governor's memory of %zu numbers: expected %d to %u", n_numbers,
                          N_COUNTERS, N_COUNTERS + governor->options.window);
    for (size_t i = 0; i < n_numbers; i++)
        if (i < N_COUNTERS ? i != 2 && !is_count(numbers[i]) : !isfinite(numbers[i]))
            return ESPER_FAIL(ESPER_E_FORMAT, "a governor's memory: %g cannot stand at place %zu", numbers[i], i);
    if (numbers[0] > UINT32_MAX || numbers[3] > UINT32_MAX)
        return ESPER_FAIL(ESPER_E_FORMAT, "a governor's memory: %g anomalies and %g skips in a row", numbers[0],
                          numbers[3]);
    return ESPER_OK;
}

esper_status esper_governor_unpack(esper_governor *governor, const double *numbers, size_t n_numbers)
{
    ESPER_TRY(check_numbers(governor, numbers, n_numbers));
    governor->consecutive = (uint32_t)numbers[0];
    governor->pending = numbers[1] != 0.0;
    governor->panic_loss = numbers[2];
    governor->skips_in_a_row = (uint32_t)numbers[3];
    governor->n_skipped = (uint64_t)numbers[4];
    governor->n_rollbacks = (uint64_t)numbers[5];
    governor->again = numbers[6] != 0.0;
    governor->restored_step = (uint64_t)numbers[7];
    governor->loss_reason = governor->pending ? ESPER_GOVERNOR_DIVERGENCE : ESPER_GOVERNOR_NONE;
    return esper_governor_unpack_history(governor, numbers, n_numbers);
}

esper_status esper_governor_unpack_history(esper_governor *governor, const double *numbers, size_t n_numbers)
{
    ESPER_TRY(check_numbers(governor, numbers, n_numbers));
    governor->n_history = 0;
    governor->oldest = 0;
    for (size_t i = N_COUNTERS; i < n_numbers; i++)
        history_add(governor, numbers[i]);
    return ESPER_OK;
}
