/* Internal. The recurrent network of a policy: what it sees -> features -> residual LSTM -> heads and critics.
 *
 *     observation (F0) | rows of a table for each id  ->  linear, norm, relu (F)  ->  linear to H where F is not H
 *     -> for each layer: x = norm(LSTM(x)) + x  ->  x (H)
 *     x -> for each head: linear H/2, relu, linear n (a deep head: linear H, relu before)        logits
 *     x -> linear H/2, norm, relu, linear H/4, norm, relu, linear H/8, relu, linear 1            value
 *     x | choice of one head -> the same, no gradient to x                                        value of that choice
 *     x -> linear H/2, norm, relu, dropout, linear H/4, relu, linear n, no gradient to x          contributions
 *
 * Two programs share one set of weights: one step of many environments (to act), and chunks of T steps with a backward pass (to
 * learn). Nothing here knows what heads or features mean. One thread at a time. */
#ifndef ESPER_POLICY_POLICY_NET_H
#define ESPER_POLICY_POLICY_NET_H

#include "tensor/plan.h"

enum { ESPER_POLICY_MAX_HEADS = 8, ESPER_POLICY_MAX_LAYERS = 4 };

typedef struct esper_policy_head {
    const char *name; /* "slot": parameters are slot_head.0.weight and so on; borrowed until close */
    int         size; /* choices, 1 to 64 */
    bool        deep;
} esper_policy_head;

typedef struct esper_policy_net_desc {
    int               n_features;
    int               n_ids;            /* ids with each observation, such as the blueprint in each slot; 0 = none */
    int               id_rows, id_width; /* of the table they point into */
    int               n_heads;
    esper_policy_head heads[ESPER_POLICY_MAX_HEADS];
    int               q_head;           /* the head whose choice the second critic is told; -1 = no second critic */
    int               n_contributions;  /* 0 = none predicted */
    float             drop;             /* dropout among them */
    int               width, hidden, layers; /* F; H, a multiple of 8; LSTM layers */
    bool              unborn; /* weights stay 0 until they are read: being born is most of the work of a wide network */
} esper_policy_net_desc;

/* Width and hidden 128, one layer, dropout 0.1; everything else is 0, q_head -1. */
void esper_policy_net_desc_init(esper_policy_net_desc *desc);

typedef enum esper_policy_side { ESPER_POLICY_ACT, ESPER_POLICY_LEARN, ESPER_POLICY_N_SIDES } esper_policy_side;

typedef struct esper_policy_net esper_policy_net;

typedef struct esper_policy_net_sizes {
    int n_envs;  /* that act at once */
    int n_steps;  /* T of a chunk */
    int n_chunks; /* of one pass of learning */
} esper_policy_net_sizes;

/* The program of one step alone, without memory or weights: tensors by name and shape. The net is the caller's to end, also when it
 * fails. */
esper_status esper_policy_net_build(const esper_policy_net_desc *desc, esper_net *net_out);

/* Weights are born of the seed. The backend is borrowed until close. E_ARG says which number is wrong. */
esper_status esper_policy_net_open(esper_backend *backend, const esper_policy_net_desc *desc,
                                   const esper_policy_net_sizes *sizes, uint64_t seed, esper_policy_net **net_out);
void         esper_policy_net_close(esper_policy_net *net);

/* What a side is given and gives, in the host's memory: N samples (environments or chunks) of T steps (1 to act). What a
 * network has not is NULL. */
typedef struct esper_policy_io {
    int      n_samples, n_steps; /* at most */
    float   *obs;      /* (N,T,n_features) */
    int32_t *ids;      /* (N,T,n_ids) */
    float   *reset;    /* (N,T) not 0: the step begins without memory */
    float   *q_choice; /* (N,T,size of that head) 1 at the choice, else 0 */
    float   *h[ESPER_POLICY_MAX_LAYERS], *c[ESPER_POLICY_MAX_LAYERS]; /* (N,H) memory before the first step */
    /* after a forward pass */
    const float *logits[ESPER_POLICY_MAX_HEADS]; /* (N,T,size) */
    const float *value, *q;                      /* (N,T) */
    const float *contributions;                  /* (N,T,n) */
    const float *h_after[ESPER_POLICY_MAX_LAYERS], *c_after[ESPER_POLICY_MAX_LAYERS]; /* (N,T,H) after each step */
    /* to be written before a backward pass, all of it */
    float *d_logits[ESPER_POLICY_MAX_HEADS], *d_value, *d_q, *d_contributions;
} esper_policy_io;

esper_policy_io esper_policy_net_io(const esper_policy_net *net, esper_policy_side which);

/* n_samples of what is in the inputs. `training`: with dropout, drawn by the number of the pass. */
esper_status esper_policy_net_forward(esper_policy_net *net, esper_policy_side which, esper_backend_stream *stream,
                                      int n_samples);
esper_status esper_policy_net_forward_training(esper_policy_net *net, int n_samples, uint32_t number);
/* Gradients of the parameters, of the forward pass before it on the learning side. */
esper_status esper_policy_net_backward(esper_policy_net *net);

/* Reading. */
const esper_net             *esper_policy_net_program(const esper_policy_net *net); /* tensors by name */
esper_slab                  *esper_policy_net_slab(esper_policy_net *net);
esper_backend               *esper_policy_net_backend(const esper_policy_net *net);

#endif
