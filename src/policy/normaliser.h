/* Internal. Running means and variances: of observations, of returns and of rewards, so that networks see numbers of size 1.
 *
 * What a round has seen is gathered in moments: whole numbers of 2^-32, so that any order and any grouping of environments, threads
 * and ranks gives the same bits. At the end of a round they are absorbed at once; in between, statistics are frozen. What is
 * not finite is never gathered, only counted, so no statistic can become NaN. */
#ifndef ESPER_POLICY_NORMALISER_H
#define ESPER_POLICY_NORMALISER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "esper.h"

/* ------------------------------------------------------------------------------------------------ moments */

enum { ESPER_MOMENTS_LIMIT = 32768 }; /* values beyond count as this; up to 2^31 of them */

/* All zero is empty. Plain, without holes. */
typedef struct esper_moments {
    uint64_t n, n_bad;                  /* values, and those that were not finite */
    uint64_t sum[2], squares[2];        /* 128 bits each, low word first */
} esper_moments;

/* False: it was not finite. */
bool   esper_moments_add(esper_moments *moments, double value);
void   esper_moments_merge(esper_moments *moments, const esper_moments *other);
double esper_moments_mean(const esper_moments *moments);     /* 0 of none */
double esper_moments_variance(const esper_moments *moments); /* of the population; 0 of none */

/* ------------------------------------------------------------------------------------------------ observations */

typedef enum esper_norm_how {
    ESPER_NORM_AS_IS,      /* already of size 1: flags, one-hot codes, parts of a whole */
    ESPER_NORM_RUNNING,    /* less the running mean, by the running deviation */
    ESPER_NORM_OR_MISSING, /* the same, but -1 is "not there": not gathered, and becomes 0, which is the mean */
} esper_norm_how;

#define ESPER_NORM_EPSILON 1e-4 /* added to a variance */
#define ESPER_NORM_CLIP    10.0

typedef struct esper_normaliser {
    int            n;        /* values in a row */
    double         momentum; /* part of the old statistics that each round leaves; 0 = all rows weigh the same */
    double        *mean, *variance, *count; /* (n) */
    uint8_t       *how;      /* (n) esper_norm_how */
    esper_moments *round;    /* (n) of the rows since the last update */
} esper_normaliser;

/* how NULL: all RUNNING. Momentum from 0 to below 1. One allocation. */
esper_status esper_normaliser_open(int n, const uint8_t *how, double momentum, esper_normaliser **norm_out);
void         esper_normaliser_close(esper_normaliser *norm);

/* A row for the next update. Rows of an environment that panicked are not to be gathered. */
void esper_normaliser_gather(esper_normaliser *norm, const float *row);
/* What others have gathered: (n). */
void esper_normaliser_merge(esper_normaliser *norm, const esper_moments *others);
/* Absorbs what was gathered. Returns how many values were not finite. */
uint64_t esper_normaliser_update(esper_normaliser *norm);
/* The row as the network sees it, cut to +-ESPER_NORM_CLIP; what is not finite becomes 0. In place is fine. */
void esper_normaliser_apply(const esper_normaliser *norm, const float *row, float *row_out);

/* Unpacking leaves it as it was when it fails (E_FORMAT, or E_CONFIG: of another length or treatment of values). */
size_t       esper_normaliser_pack_bytes(const esper_normaliser *norm);
void         esper_normaliser_pack(const esper_normaliser *norm, void *memory);
esper_status esper_normaliser_unpack(esper_normaliser *norm, const void *memory, size_t bytes);

/* ------------------------------------------------------------------------------------------------ returns */

enum { ESPER_VALUE_WARMUP = 32 }; /* returns that are seen before values are scaled */

/* Values are learned as value / scale. Plain, without holes. */
typedef struct esper_value_norm {
    double mean, variance, count;
} esper_value_norm;

void   esper_value_norm_init(esper_value_norm *norm);
void   esper_value_norm_update(esper_value_norm *norm, const esper_moments *returns);
double esper_value_norm_scale(const esper_value_norm *norm); /* 1 until it is warm */

/* ------------------------------------------------------------------------------------------------ rewards */

/* Rewards are divided by their deviation; their mean stays. Plain, without holes. */
typedef struct esper_reward_norm {
    double count, mean, squares; /* squares: sum of squared distances from the mean */
} esper_reward_norm;

void   esper_reward_norm_init(esper_reward_norm *norm);
void   esper_reward_norm_update(esper_reward_norm *norm, const esper_moments *rewards); /* once a round */
double esper_reward_norm_apply(const esper_reward_norm *norm, double reward);

#endif
