/* Internal. Texts of hosts and blueprints as programs: the one builder.
 *
 * Names of parameters, which are the checkpoint's: blocks.N.conv and .bn, or .linear and .norm, N counting convolutions and linear
 * layers; layers.N. of a transformer's; tok_emb and pos_emb; norms.N, but ln_f for the norm before a transformer's head;
 * attentions.N.qkv and .proj; shortcuts.N.conv and .bn, or .linear, where a residual block changes the width; classifier. */
#ifndef ESPER_NN_HOST_BUILD_H
#define ESPER_NN_HOST_BUILD_H

#include "nn/host.h"

/* E_CONFIG, pointing into the text, where it does not fit the host's data, or where `slots` of the host names none of it. */
esper_status esper_host_build_text(const esper_host *host, const char *text, esper_net *net, int *logits_out);

/* What the text of a blueprint computes from x, in x's shape. The last layer of one for tokens or rows is born with `shrink` times its
 * usual weights, 0 as zeros. Where it cannot be built behind x, the net has failed. */
int esper_text_build_seed(esper_net *net, const char *text, int x, float shrink);

#endif
