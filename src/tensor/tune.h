/* Internal. The tune table: which way of computing is taken where kernels have several.
 *
 * All ways of a work give the same bits and differ in how they cut it for the caches, so which is fastest depends on the
 * processor and on how wide a layer is. That was measured (`esper bench tune`) and is written down in a table,
 * src/tensor/tune.table, which is compiled in; the environment variable ESPER_TUNE names a file to take in its place. No
 * clock decides in a run. A line is a kernel set, a work, and a way for each class of widths:
 *
 *     esper-tune 1
 *     #        work        64      128     256     512     1024    more
 *     avx2     linear.y    narrow  narrow  wide    wide    wide    wide
 *
 * The width of a layer is the larger one of its inputs and outputs, or of its channels of one group; its class is the first
 * that is not below it. Every set and work has one line. */
#ifndef ESPER_TENSOR_TUNE_H
#define ESPER_TENSOR_TUNE_H

#include "esper.h"
#include "tensor/kernel.h"

enum { ESPER_TUNE_WIDTHS = 6, ESPER_TUNE_SETS = 3, ESPER_TUNE_TEXT = 4096 };

/* The whole table. */
typedef struct esper_tune_table {
    uint8_t way[ESPER_TUNE_SETS][ESPER_N_WORKS][ESPER_TUNE_WIDTHS];
} esper_tune_table;

/* What it says for one kernel set. */
typedef struct esper_tune {
    uint8_t  way[ESPER_N_WORKS][ESPER_TUNE_WIDTHS];
    uint32_t hash; /* of these, part of a run's identity */
} esper_tune;

/* Reads a table; `source` is named in messages. Everything must be there, once, and known. */
esper_status esper_tune_read(const char *text, size_t chars, const char *source, esper_tune_table *table_out);

/* The table as text, a zero at the end. */
void esper_tune_write(const esper_tune_table *table, char text[ESPER_TUNE_TEXT]);

/* The table in force: the file that ESPER_TUNE names, or what was compiled in. */
esper_status esper_tune_load(esper_tune_table *table_out);

/* Which line of a table is a kernel set's: portable, avx2, avx512; -1 for others. */
int         esper_tune_set(const char *set);
const char *esper_tune_set_name(int set);
esper_tune  esper_tune_of(const esper_tune_table *table, int set);

const char *esper_tune_work_name(esper_work work);
const char *esper_tune_way_name(esper_work work, int way);
int         esper_tune_width(int width_class); /* the largest of a class; 0 for the last, which has no end */
int         esper_tune_class(int width);

/* Phase number `phase` of an operation for one lane, computed the way the table says. tune NULL: the first way. */
const esper_phase *esper_tune_phase(const esper_tune *tune, const esper_op_kernels *op, bool backward, int phase,
                                    const esper_lane *lane);

#endif
