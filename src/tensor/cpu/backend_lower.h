/* Internal. Lowering: from a network as it was built to one as the vectors of the CPU like it.
 *
 * The lowered network computes the same. Its per-sample tensors are blocked (16 samples side by side in vectors, see
 * tensor/cpu/block.h), and chains of operations that need not leave their results in memory have become one. Tensors keep
 * their numbers, so whoever holds an id can use it; those that the caller reads or writes stay canonical and have a
 * blocked twin, which pack and unpack connect with them. New tensors come after the old ones. */
#ifndef ESPER_TENSOR_CPU_BACKEND_LOWER_H
#define ESPER_TENSOR_CPU_BACKEND_LOWER_H

#include "tensor/kernel.h"
#include "tensor/net.h"

/* Whether every operation of the network has a kernel in the set's family over blocks, and no gradient comes in from outside
 * but at its end. */
bool esper_lower_applies(const esper_net *net, const esper_kernel_set *kernels);

/* lowered_out is to be given to esper_net_fini. */
esper_status esper_lower(const esper_net *net, esper_net *lowered_out);

#endif
