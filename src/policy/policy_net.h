/* Internal. The recurrent network of a policy: what it sees -> features -> residual LSTM -> heads and critics.
 *
 *     observation (F0) | rows of a table for each id  ->  linear, norm, relu (F)  ->  linear to H where F is not H
 *     -> for each layer: x = norm(LSTM(x)) + x  ->  x (H)
 *     x -> for each head: linear H/2, relu, linear n (a deep head: linear H, relu before)        logits
 *
 * With slots, one set of weights serves any number of them in any order:
 *
 *     properties of a slot (Fs) | row of its id  ->  linear, norm, relu  ->  e (E), for each slot
 *     mean and largest of the e of the slots that are there (2E) join the observation
 *     e, x -> linear H/2 each, added, relu -> u, for each slot; u -> linear n for each head of slots    logits
 *     e, x -> the same, no gradient to either, dropout, linear 1                                        contribution of the slot
 *
 * and without:
 *
 *     x -> linear H/2, norm, relu, dropout, linear H/4, relu, linear n, no gradient to x          contributions
 *
 * In both:
 *
 *     x -> linear H/2, norm, relu, linear H/4, norm, relu, linear H/8, relu, linear 1            value
 *     x | choice of one head -> the same, no gradient to x                                        value of that choice
 *
 * Two programs share one set of weights: one step of many environments (to act), and chunks of T steps with a backward pass (to
 * learn). Nothing here knows what heads or features mean. One thread at a time. */
#ifndef ESPER_POLICY_POLICY_NET_H
#define ESPER_POLICY_POLICY_NET_H

#include "tensor/plan.h"

enum { ESPER_POLICY_MAX_HEADS = 8, ESPER_POLICY_MAX_LAYERS = 4 };

/* What a head chooses by. */
typedef enum esper_policy_head_kind {
    ESPER_POLICY_OF_RUN,      /* the run as a whole */
    ESPER_POLICY_AMONG_SLOTS, /* one of the slots, by a score of each for the choice of the head q_head; one head at most */
    ESPER_POLICY_OF_SLOT,     /* the slot that was chosen */
} esper_policy_head_kind;

typedef struct esper_policy_head {
    const char *name; /* "slot": parameters are slot_head.0.weight and so on; borrowed until close */
    int         size; /* choices, 1 to 64; among slots: their number */
    bool        deep; /* of the run alone */
    esper_policy_head_kind kind;
} esper_policy_head;

typedef struct esper_policy_net_desc {
    int               n_features;
    int               n_slots;          /* most slots of an observation; 0 = a network without */
    int               n_slot_features, slot_width; /* Fs; E */
    int               there;            /* which of those features is not 0 where there is such a slot */
    int               n_ids;            /* ids with each observation, such as the blueprint in each slot; 0 = none. With slots: one each */
    int               id_rows, id_width; /* of the table they point into */
    int               n_heads;
    esper_policy_head heads[ESPER_POLICY_MAX_HEADS];
    int               q_head;           /* the head whose choice the second critic is told; -1 = no second critic */
    int               n_contributions;  /* 0 = none predicted; with slots: of each */
    float             drop;             /* dropout among them */
    int               width, hidden, layers; /* F; H, a multiple of 8; LSTM layers */
    bool              unborn; /* weights stay 0 until they are read: being born is most of the work of a wide network */
} esper_policy_net_desc;

/* Width and hidden 128, one layer, dropout 0.1; everything else is 0, q_head -1. */
void esper_policy_net_desc_init(esper_policy_net_desc *desc);

/* Values of an observation: those of the run, then those of slot after slot. */
static inline size_t esper_policy_net_wide(const esper_policy_net_desc *desc)
{
    return (size_t)desc->n_features + (size_t)desc->n_slots * (size_t)desc->n_slot_features;
}

/* Where a head's logits are among those of a step: choice i at first + i * stride. */
typedef struct esper_policy_logits {
    size_t n;             /* of a step, all together */
    size_t first, stride;
} esper_policy_logits;

/* chosen: (n_heads) the choices so far; of heads that this one does not depend on they are not read. */
esper_policy_logits esper_policy_net_logits_at(const esper_policy_net_desc *desc, int head, const int32_t *chosen);

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
    float   *slots;    /* (N,T,n_slots,n_slot_features) */
    float   *there;    /* (N,T,n_slots) not 0: there is such a slot */
    int32_t *ids;      /* (N,T,n_ids) */
    float   *reset;    /* (N,T) not 0: the step begins without memory */
    float   *q_choice; /* (N,T,size of that head) 1 at the choice, else 0 */
    float   *h[ESPER_POLICY_MAX_LAYERS], *c[ESPER_POLICY_MAX_LAYERS]; /* (N,H) memory before the first step */
    /* after a forward pass */
    const float *logits
        [ESPER_POLICY_MAX_HEADS]; /* (N,T,size); (N,T,n_slots,size of q_head) among slots, (N,T,n_slots,size) of one */
    const float *value, *q;                      /* (N,T) */
    const float *contributions;                  /* (N,T,n) */
    const float *h_after[ESPER_POLICY_MAX_LAYERS], *c_after[ESPER_POLICY_MAX_LAYERS]; /* (N,T,H) after each step */
    /* to be written before a backward pass, all of it */
    float *d_logits[ESPER_POLICY_MAX_HEADS], *d_value, *d_q, *d_contributions;
} esper_policy_io;

/* An observation (esper_policy_net_wide), and its ids, -1 being the last row, as row `row` of the inputs. NULL: zeros. */
void esper_policy_net_put(const esper_policy_net_desc *desc, const esper_policy_io *io, size_t row, const float *obs,
                          const int32_t *ids);

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
