/* Internal. Our networks beside the recorded ones: every check returns the number of mismatches it met, so that a
 * test can demand none, and the mutation test can demand some. */
#ifndef ESPER_TESTS_PARITY_H
#define ESPER_TESTS_PARITY_H

#include "support/golden.h"
#include "tensor/plan.h"

/* ------------------------------------------------------------------------------------------------ backends */

/* A backend, and for the cpu the kernel set it is to use. */
typedef struct parity_backend {
    const char *name, *kernels; /* kernels NULL = the backend has but one set; name NULL ends the list */
} parity_backend;

extern const parity_backend parity_backends[];

/* E_UNSUPPORTED when this processor cannot run the kernel set. */
esper_status parity_backend_open(const parity_backend *wanted, esper_pool *pool, esper_backend **be_out);

/* That of "cuda": in memory that the host sees as well. */
esper_status parity_cuda_open(esper_pool *pool, esper_backend **be_out);

/* Opens a backend, checks all files of these parts (bits) that are here, prints one line of what was compared, and
 * closes all again. n_mismatches counts; so does a block of memory that stays behind. E_UNSUPPORTED as above. */
esper_status parity_check_backend(const parity_backend *wanted, unsigned parts, int *n_mismatches_out);

/* ------------------------------------------------------------------------------------------------ a network to run */

/* A net with its state and memory. The plan points into it: it may not be moved once planned. */
typedef struct parity_run {
    esper_net   net;
    esper_slab  slab;
    esper_plan *plan;
    esper_pass  pass;
} parity_run;

/* Takes slab and plan for run->net, which the caller has built; parameters and buffers are as at birth. */
esper_status parity_run_open(parity_run *run, esper_backend *backend, int n_samples, bool training);
void         parity_run_close(parity_run *run);

/* Fills every parameter from <prefix>param/<name>. A parameter that is not recorded is a mismatch, unless it is called
 * `born_one`, which then is set to 1; NULL = none is. */
void parity_load_params(parity_run *run, golden *vectors, const char *prefix, const char *born_one);

/* Compares every tensor of a role and family with <prefix><name>, but for the parameter `skip` (NULL = none). */
void parity_compare_state(parity_run *run, golden *vectors, const char *prefix, esper_family family, const char *skip);

/* ------------------------------------------------------------------------------------------------ the checks */

/* Everything a file records. */
int parity_check(esper_backend *backend, const golden_entry *entry, golden_tally *tally);

int parity_check_host(esper_backend *backend, const golden_entry *entry, golden_tally *tally);
int parity_check_seed(esper_backend *backend, const golden_entry *entry, golden_tally *tally);
int parity_check_gate(esper_backend *backend, const golden_entry *entry, golden_tally *tally);

int parity_check_slotted(esper_backend *backend, const golden_entry *entry, golden_tally *tally);
int parity_check_blend(esper_backend *backend, const golden_entry *entry, golden_tally *tally);

/* blueprints.jsonl: names, shapes, counts, births; with the differences nn/blueprint.h lists, and no others. */
int parity_check_births(esper_backend *backend, const golden_entry *entry, golden_tally *tally);

/* Whether a blueprint of ours ends in a scale that the recorded one has not. */
bool parity_has_scale(const char *topology, const char *blueprint);

/* Puts group norm, as recorded, in the place of each batch norm of regions from `first_region` on, which are seeds': same
 * parameters, by their recorded names, and no buffers. Returns how many there were. Before the net gets its memory. */
int parity_put_group_norms(esper_net *net, int first_region);

#endif
