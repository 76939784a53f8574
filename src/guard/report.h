/* Internal. From records to what people and governors read: statistics of tensors, groups and the whole, in words too.
 * Everything here is arithmetic on numbers that are there already. */
#ifndef ESPER_GUARD_REPORT_H
#define ESPER_GUARD_REPORT_H

#include "guard/engine.h"

/* The ESPER_GUARD_BAD_* bits of tensors of one role. */
uint32_t esper_scan_bad(const esper_scan_sums *sums, esper_guard_role role);

/* The norm of gradients with these sums: NaN or Inf when they hold such. */
double esper_scan_norm(const esper_scan_sums *sums);

/* What gradients of that norm are multiplied by: 1 where nothing is to be done, or the norm is not finite. clip_norm 0:
 * no clipping. */
double esper_guard_clip_factor(double grad_norm, double clip_norm);

/* Statistics of a tensor of `count` elements. */
void esper_report_stat(const esper_scan_record *record, uint64_t count, esper_guard_stat *stat_out);

/* When a tensor's norm is too small or too large. */
typedef struct esper_report_limits {
    double vanishing, exploding;
} esper_report_limits;

/* Sums of no tensor; with one tensor more, whose number is `index`; with those of other sums. */
void esper_scan_sums_init(esper_scan_sums *sums);
void esper_scan_sums_take(esper_scan_sums *sums, const esper_scan_record *record, const esper_guard_stat *stat,
                          uint32_t index, const esper_report_limits *limits);
void esper_scan_sums_add(esper_scan_sums *sums, const esper_scan_sums *other);

/* How large a group is. */
typedef struct esper_report_size {
    uint64_t n_tensors, n_elements;
} esper_report_size;

/* A group as people see it. Without sums (NULL), or with no tensor, it is unmeasured. */
void esper_report_group(const char *name, esper_guard_role role, const esper_report_size *size,
                        const esper_scan_sums *sums, esper_guard_group *group_out);

/* "grad"; "unknown" for any other number. */
const char *esper_guard_role_name(esper_guard_role role);

/* "param+moment", for messages; "none" without any. */
enum { ESPER_GUARD_ROLES_CHARS = 64 };
const char *esper_guard_roles_text(uint32_t roles, char text[ESPER_GUARD_ROLES_CHARS]);

#endif
