/* The arithmetic of reports, and their words.
 *
 * Three things are told apart: NaN in the data, Inf in the data, and a norm that is not finite although the data are. */
#include "guard/report.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint32_t esper_scan_bad(const esper_scan_sums *sums, esper_guard_role role)
{
    uint32_t bad = 0;

    assert(role < ESPER_GUARD_N_ROLES);
    if (sums->n_nan > 0)
        bad |= role == ESPER_GUARD_ROLE_GRAD ? ESPER_GUARD_BAD_NAN_GRAD : ESPER_GUARD_BAD_NAN_STATE;
    if (sums->n_inf > 0)
        bad |= role == ESPER_GUARD_ROLE_GRAD ? ESPER_GUARD_BAD_INF_GRAD : ESPER_GUARD_BAD_INF_STATE;
    return bad;
}

double esper_scan_norm(const esper_scan_sums *sums)
{
    return sums->n_nan > 0 ? (double)NAN : sums->n_inf > 0 ? (double)INFINITY : sqrt(sums->sum_squares);
}

double esper_guard_clip_factor(double grad_norm, double clip_norm)
{
    double factor = clip_norm / (grad_norm + 1e-6);

    return clip_norm > 0.0 && isfinite(grad_norm) && factor < 1.0 ? factor : 1.0;
}

void esper_report_stat(const esper_scan_record *record, uint64_t count, esper_guard_stat *stat_out)
{
    uint64_t n_inf = record->n_pos_inf + record->n_neg_inf, n_finite = count - record->n_nan - n_inf;
    double norm = sqrt(record->sum_squares);

    if (record->sum_squares < 1e-280 && norm < record->max_abs)
        norm = record->max_abs; /* squares of float64 below 1e-162 are lost: a better answer than 0 */
    *stat_out = (esper_guard_stat){
        .n_nan = record->n_nan,
        .n_pos_inf = record->n_pos_inf,
        .n_neg_inf = record->n_neg_inf,
        .first_bad = record->first_bad,
        .n_zero = record->n_zero,
        .n_tiny = record->n_tiny,
        .norm = record->n_nan > 0 ? (double)NAN
                : n_inf > 0       ? (double)INFINITY
                                  : norm,
        .mean = n_finite > 0 ? record->sum / (double)n_finite : 0.0,
        .max_abs = record->max_abs,
        .min_abs = record->min_abs,
        .checksum = record->checksum,
        .scanned = 1,
        .norm_overflow = n_finite == count && !isfinite(norm),
    };
}

void esper_scan_sums_init(esper_scan_sums *sums)
{
    *sums = (esper_scan_sums){.min_norm = (double)INFINITY, .first_bad = UINT32_MAX};
}

void esper_scan_sums_take(esper_scan_sums *sums, const esper_scan_record *record, const esper_guard_stat *stat,
                          uint32_t index, const esper_report_limits *limits)
{
    uint64_t n_inf = stat->n_pos_inf + stat->n_neg_inf;

    sums->sum_squares += record->sum_squares;
    sums->n_zero += stat->n_zero;
    if (isfinite(stat->norm)) {
        sums->n_vanishing += stat->norm < limits->vanishing;
        sums->n_exploding += stat->norm > limits->exploding;
        sums->min_norm = stat->norm < sums->min_norm ? stat->norm : sums->min_norm;
        sums->max_norm = stat->norm > sums->max_norm ? stat->norm : sums->max_norm;
        return;
    }
    sums->n_nan += stat->n_nan;
    sums->n_inf += n_inf;
    sums->n_not_finite++;
    sums->n_exploding++;
    sums->n_bad += stat->n_nan + n_inf > 0;
    if (stat->n_nan + n_inf > 0 && index < sums->first_bad)
        sums->first_bad = index;
}

void esper_scan_sums_add(esper_scan_sums *sums, const esper_scan_sums *other)
{
    sums->sum_squares += other->sum_squares;
    sums->min_norm = other->min_norm < sums->min_norm ? other->min_norm : sums->min_norm;
    sums->max_norm = other->max_norm > sums->max_norm ? other->max_norm : sums->max_norm;
    sums->n_nan += other->n_nan;
    sums->n_inf += other->n_inf;
    sums->n_zero += other->n_zero;
    sums->n_vanishing += other->n_vanishing;
    sums->n_exploding += other->n_exploding;
    sums->n_not_finite += other->n_not_finite;
    sums->n_bad += other->n_bad;
    sums->first_bad = other->first_bad < sums->first_bad ? other->first_bad : sums->first_bad;
}

void esper_report_group(const char *name, esper_guard_role role, const esper_report_size *size,
                        const esper_scan_sums *sums, esper_guard_group *group_out)
{
    esper_guard_group group = {.name = name, .role = role};
    const double n = (double)size->n_tensors;

    if (sums != NULL && size->n_tensors > 0) {
        group.measured = 1;
        group.n_tensors = size->n_tensors;
        group.n_elements = size->n_elements;
        group.n_nan = sums->n_nan;
        group.n_inf = sums->n_inf;
        group.n_zero = sums->n_zero;
        group.n_vanishing = sums->n_vanishing;
        group.n_exploding = sums->n_exploding;
        group.norm = esper_scan_norm(sums);
        group.min_norm = isinf(sums->min_norm) ? 0.0 : sums->min_norm;
        group.max_norm = sums->max_norm;
        group.norm_not_finite = sums->n_not_finite > 0;
        group.norm_ratio = group.max_norm / (group.min_norm > 1e-10 ? group.min_norm : 1e-10);
        group.zero_fraction = size->n_elements > 0 ? (double)sums->n_zero / (double)size->n_elements : 0.0;
        group.health =
            isfinite(group.norm)
                ? fmax(0.0, 1.0 - 0.5 * ((double)group.n_vanishing / n) - 0.8 * ((double)group.n_exploding / n))
                : 0.0;
        group.is_healthy = group.n_nan == 0 && group.n_inf == 0 && group.norm_ratio < 1000.0 &&
                           group.zero_fraction < 0.5 && group.n_exploding == 0;
    }
    *group_out = group;
}

double esper_guard_ratio(const esper_guard_group *seed, const esper_guard_group *host)
{
    double ratio;

    if (seed == NULL || host == NULL || !seed->measured || !host->measured || !isfinite(seed->norm) ||
        !isfinite(host->norm))
        return (double)NAN;
    if (seed->n_elements == 0 || host->n_elements == 0 || seed->norm < 1e-8 || host->norm < 1e-8)
        return 0.0;
    ratio = (seed->norm / sqrt((double)seed->n_elements)) / (host->norm / sqrt((double)host->n_elements) + 1e-8);
    return ratio < 10.0 ? ratio : 10.0;
}

/* A text that is cut off, not overrun. */
typedef struct writer {
    char  *text;
    size_t chars, used;
} writer;

static __attribute__((format(printf, 2, 3))) void put(writer *out, const char *format, ...)
{
    size_t left = out->chars - out->used;
    va_list args;
    int n;

    if (left <= 1)
        return;
    va_start(args, format);
    n = vsnprintf(out->text + out->used, left, format, args);
    va_end(args);
    if (n > 0)
        out->used += (size_t)n < left ? (size_t)n : left - 1;
}

/* 589824 as 589,824. */
static void put_count(writer *out, uint64_t count)
{
    char digits[24];
    int n = snprintf(digits, sizeof(digits), "%" PRIu64, count);

    for (int i = 0; i < n; i++)
        put(out, "%s%c", i > 0 && (n - i) % 3 == 0 ? "," : "", digits[i]);
}

const char *esper_guard_role_name(esper_guard_role role)
{
    static const char *const names[] = {
#define X(name, text) text,
        ESPER_GUARD_ROLE_LIST(X)
#undef X
    };

    return (unsigned)role < ESPER_GUARD_N_ROLES ? names[role] : "unknown";
}

const char *esper_guard_roles_text(uint32_t roles, char text[ESPER_GUARD_ROLES_CHARS])
{
    writer out = {.text = text, .chars = ESPER_GUARD_ROLES_CHARS};

    text[0] = '\0';
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        if ((roles >> role & 1) != 0)
            put(&out, "%s%s", out.used > 0 ? "+" : "", esper_guard_role_name((esper_guard_role)role));
    if (roles >> ESPER_GUARD_N_ROLES != 0)
        put(&out, "%sunknown %#x", out.used > 0 ? "+" : "", roles >> ESPER_GUARD_N_ROLES << ESPER_GUARD_N_ROLES);
    return out.used > 0 ? text : "none";
}

static void put_tensor(writer *out, const esper_guard *guard, uint64_t index)
{
    const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, (size_t)index);

    if (tensor != NULL)
        put(out, "%s (%s, %s)", tensor->name, esper_guard_role_name(tensor->role), tensor->group);
    else
        put(out, "tensor %" PRIu64, index);
}

static void put_bad(writer *out, const esper_guard *guard, const esper_guard_report *report)
{
    const esper_guard_stat *stat = &report->stats[report->first_bad];
    const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, (size_t)report->first_bad);
    uint64_t n_inf = stat->n_pos_inf + stat->n_neg_inf;

    put(out, "%s in ", n_inf == 0 ? "NaN" : stat->n_nan == 0 ? "Inf" : "NaN and Inf");
    put_tensor(out, guard, report->first_bad);
    put(out, ": ");
    put_count(out, stat->n_nan + n_inf);
    if (tensor != NULL) {
        put(out, " of ");
        put_count(out, tensor->count);
    }
    put(out, ", first at ");
    put_count(out, stat->first_bad);
    if (report->n_bad > 1) {
        put(out, "; ");
        put_count(out, report->n_bad - 1);
        put(out, " more tensor%s", report->n_bad > 2 ? "s" : "");
    }
}

static void put_good(writer *out, const esper_guard *guard, const esper_guard_report *report)
{
    uint64_t n_scanned = 0, overflow = ESPER_GUARD_NONE;

    for (size_t i = report->n_tensors; i-- > 0;) {
        n_scanned += report->stats[i].scanned;
        if (report->stats[i].norm_overflow)
            overflow = i;
    }
    if (n_scanned == 0) {
        put(out, "no tensor was scanned");
        return;
    }
    put(out, n_scanned == 1 ? "" : "all ");
    put_count(out, n_scanned);
    put(out, n_scanned == 1 ? " tensor is finite" : " tensors are finite");
    if (report->totals[ESPER_GUARD_ROLE_GRAD].measured)
        put(out, ", gradient norm %.4g", report->grad_norm);
    if (overflow != ESPER_GUARD_NONE) {
        put(out, ", but the norm of ");
        put_tensor(out, guard, overflow);
        put(out, " overflows");
    }
}

const char *esper_guard_describe(const esper_guard *guard, const esper_guard_report *report, char *text, size_t chars)
{
    writer out = {.text = text, .chars = chars};

    if (text == NULL || chars == 0)
        return "";
    text[0] = '\0';
    if (guard == NULL || report == NULL) {
        put(&out, "no report");
        return text;
    }
    if (report->first_bad != ESPER_GUARD_NONE)
        put_bad(&out, guard, report);
    else
        put_good(&out, guard, report);
    if (report->changed != ESPER_GUARD_NONE) {
        put(&out, "; bytes of ");
        put_tensor(&out, guard, report->changed);
        put(&out, " have changed");
    }
    return text;
}
