/* Internal. For every operation that can stand in a network, a small network that uses it, under names that are those of
 * no layer. */
#ifndef ESPER_TESTS_OP_NETS_H
#define ESPER_TESTS_OP_NETS_H

#include "tensor/net.h"

/* Builds it into a net, which it initialises; input and output are set. False: the kind is work on flat ranges and stands
 * in no network. Fails the test for an operation it does not know. */
bool op_net_build(esper_net *net, esper_op_kind kind);

#endif
