/* Internal. From records to what people and governors read: statistics of tensors, groups and the whole, in words too.
 * Everything here is arithmetic on numbers that are there already. */
#ifndef ESPER_GUARD_REPORT_H
#define ESPER_GUARD_REPORT_H

#include "guard/engine.h"

/* The ESPER_GUARD_BAD_* bits of one tensor. */
uint32_t esper_scan_record_bad(const esper_scan_record *record, esper_guard_role role);

/* The norm of gradients whose finite elements have that sum of squares, under the verdict on them. */
double esper_guard_grad_norm(double sum_squares, uint32_t bad);

/* What gradients of that norm are multiplied by: 1 where nothing is to be done, or the norm is not finite. clip_norm 0:
 * no clipping. */
double esper_guard_clip_factor(double grad_norm, double clip_norm);

/* Statistics of a tensor of `count` elements. */
void esper_report_stat(const esper_scan_record *record, uint64_t count, esper_guard_stat *stat_out);

/* When a tensor's norm is too small or too large. */
typedef struct esper_report_limits {
    double vanishing, exploding;
} esper_report_limits;

/* A group is begun, given its tensors one by one in order, and finished. */
void esper_report_group_begin(esper_guard_group *group, const char *name, esper_guard_role role);
void esper_report_group_add(esper_guard_group *group, const esper_scan_record *record, uint64_t count,
                            const esper_guard_stat *stat, const esper_report_limits *limits);
void esper_report_group_finish(esper_guard_group *group);

#endif
