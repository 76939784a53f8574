/* Internal. Exported networks and what they gave here, written to folders for PyTorch to compare (parity/torch_compare.py). */
#ifndef ESPER_TESTS_TORCH_CASE_H
#define ESPER_TESTS_TORCH_CASE_H

#include "tensor/plan.h"

/* An interpreter that can import torch: $PYTHON, Debian's, or the one on the path. NULL when there is none; that is then said
 * on standard output. */
const char *torch_case_python(void);

/* Writes vectors.safetensors into the folder of an exported network: input and output of the pass just made, and targets and
 * mean loss where the network has a loss (targets below 0 do not count). The output must be kept. */
void torch_case_write(const esper_net *net, const esper_plan *plan, int n_samples, const char *dir);

/* Lets PyTorch load every network below `folder` and compare. Fails the test when one differs. */
void torch_case_compare(const char *python, const char *folder);

#endif
