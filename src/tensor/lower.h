/* Internal. Lowering: from a network as it was built to one as backends like it that compute on blocks of samples.
 *
 * The lowered network computes the same. Its per-sample tensors are blocked (a few samples side by side at each element, as
 * many as suit the backend), and chains of operations that need not leave their results in memory have become one. Tensors keep
 * their numbers, so whoever holds an id can use it; those that the caller reads or writes stay canonical and have a
 * blocked twin, which pack and unpack connect with them. New tensors come after the old ones. */
#ifndef ESPER_TENSOR_LOWER_H
#define ESPER_TENSOR_LOWER_H

#include "tensor/net.h"

/* esper_tensor.layout of a per-sample tensor, and esper_launch.variant of work on such tensors. */
enum { ESPER_CANONICAL, ESPER_BLOCKED };

/* What a backend can do on blocks. */
typedef struct esper_lower_rules {
    bool (*has)(const void *of, esper_op_kind kind); /* whether there are kernels for operations of this kind */
    const void *of;
    int         largest_kernel; /* of a convolution */
} esper_lower_rules;

/* Whether the backend has every operation of the network on blocks, and no gradient comes in from outside but at its end. */
bool esper_lower_applies(const esper_net *net, const esper_lower_rules *rules);

/* lowered_out is to be given to esper_net_fini. */
esper_status esper_lower(const esper_net *net, esper_net *lowered_out);

#endif
