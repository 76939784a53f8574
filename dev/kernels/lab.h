/* The kernel lab: every kernel beside the plain loops it replaces and the variants that were tried, on a list of shapes.
 *
 * A kernel is a table (lab_kernel) in a file lab_<thing>.c, which CMakeLists.txt compiles once for each kernel set, as the
 * kernels themselves are. The file names its tables in LAB_KERNELS(thing), and lab.c lists the things. For each shape the
 * lab asks the kernel for a case (buffers, what is to come out, FLOPs), checks every variant, and times them in turn. */
#ifndef ESPER_LAB_H
#define ESPER_LAB_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lab_case {
    char    shape[64];
    double  flops;    /* of one run: multiplications and additions, none of them with padding */
    double  bytes;    /* read and written by one run, where that is what counts; then GB/s are printed, not GFLOP/s */
    double  scale;    /* of the errors: the largest entry expected, at least 1; the lab fills it in */
    float  *result;   /* (n) what a variant writes */
    double *expected; /* (n) the same by plain loops in double; memory of the lab */
    size_t  n;
    void   *context;  /* of the kernel */
    void  **memory;   /* of the lab */
} lab_case;

typedef struct lab_variant {
    const char *name; /* NULL ends a list */
    void (*run)(const lab_case *c);
} lab_variant;

typedef struct lab_kernel {
    const char *name;                       /* NULL ends a list */
    bool (*open)(int shape, lab_case *c);   /* fills in shape, flops, result, n and context; false after the last shape */
    void (*expect)(const lab_case *c);      /* fills in expected */
    const lab_variant *variants;
} lab_kernel;

/* Memory of a case, zeroed, 64-byte aligned; the lab gives it back. Ends the lab where there is none. */
void *lab_memory(lab_case *c, size_t bytes);

/* n random floats between -1 and 1, the same ones in every run. */
float *lab_random(lab_case *c, size_t n);

/* The tables of a thing for the kernel set that is compiled. */
#define LAB_PASTE_(a, b, c)  a##_##b##_##c
#define LAB_PASTE(a, b, c)   LAB_PASTE_(a, b, c)
#define LAB_KERNELS(thing)   LAB_PASTE(lab_kernels, thing, ESPER_KERNELS)

#endif
