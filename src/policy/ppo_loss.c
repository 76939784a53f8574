/* The losses of PPO and their gradients. */
#include "policy/ppo_loss.h"

#include <assert.h>
#include <math.h>

static const double MOST_LOG_RATIO = 20, MOST_JOINT = 30, MOST_CONTRIBUTION = 10, RATIO_HIGH = 5, RATIO_LOW = 0.1;

static double cut(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x; /* NaN stays NaN */
}

static bool has_head(uint32_t bits, int head)
{
    assert(head >= 0 && head < 32);
    return (bits >> head & 1u) != 0;
}

/* Whether the head's choice at this step is the actor's. */
static bool acts(const esper_ppo_terms *t, size_t step, int head)
{
    return has_head(t->asked[step], head) && t->forced[step] == 0;
}

static size_t at(const esper_ppo_terms *t, size_t step, int head)
{
    assert(step < t->n && head >= 0 && head < t->n_heads);
    return step * (size_t)t->n_heads + (size_t)head;
}

static double log_ratio(const esper_ppo_terms *t, size_t step, int head)
{
    double d = t->log_prob[at(t, step, head)] - t->old_log_prob[at(t, step, head)];

    return cut(d, -MOST_LOG_RATIO, MOST_LOG_RATIO);
}

/* What a head's sums are divided by. */
static double divisor(const esper_ppo_weights *w, const esper_ppo_terms *t, int head)
{
    double n = 0;

    if (!w->head_means)
        return t->n > 0 ? (double)t->n : 1;
    for (size_t i = 0; i < t->n; i++)
        n += acts(t, i, head);
    return fmax(n, 1);
}

/* The head's share of the policy loss. A cut value passes no gradient; where both sides are equal both have the slope A. */
static double policy_of(const esper_ppo_weights *w, const esper_ppo_terms *t, int head, double n, double *grad)
{
    double sum = 0;

    assert(n > 0 && w->clip > 0);
    for (size_t i = 0; i < t->n; i++) {
        double raw = t->log_prob[at(t, i, head)] - t->old_log_prob[at(t, i, head)], d = log_ratio(t, i, head);
        double ratio = exp(d), A = t->advantage[i], bounded = cut(ratio, 1 - w->clip, 1 + w->clip);
        bool open = ratio * A <= bounded * A && fabs(raw) <= MOST_LOG_RATIO;

        if (!acts(t, i, head))
            continue;
        sum += fmin(ratio * A, bounded * A);
        if (grad != NULL)
            grad[at(t, i, head)] = open ? -A * ratio / n : 0;
    }
    return -sum / n;
}

static double entropy_of(const esper_ppo_weights *w, const esper_ppo_terms *t, int head, double n, double *grad)
{
    double sum = 0;

    assert(n > 0);
    for (size_t i = 0; i < t->n; i++) {
        if (!acts(t, i, head))
            continue;
        sum += t->entropy[at(t, i, head)];
        if (grad != NULL)
            grad[at(t, i, head)] = -w->entropy * w->head_entropy[head] / n;
    }
    return -w->head_entropy[head] * sum / n;
}

static bool is_open(const esper_ppo_terms *t, size_t step, int head)
{
    return has_head(t->available[step], head) && t->forced[step] == 0;
}

static double penalty_of(const esper_ppo_weights *w, const esper_ppo_terms *t, int head, double *grad)
{
    double sum = 0, n = 0, missing;

    for (size_t i = 0; i < t->n; i++)
        if (is_open(t, i, head)) {
            sum += t->open_entropy[at(t, i, head)];
            n++;
        }
    missing = n > 0 ? fmax(0, w->head_floor[head] - sum / n) : 0;
    for (size_t i = 0; i < t->n && grad != NULL; i++)
        if (is_open(t, i, head))
            grad[at(t, i, head)] = -2 * w->head_penalty[head] * missing / n;
    return w->head_penalty[head] * missing * missing;
}

/* 0.5 weighted mean of squares. */
static double critic_of(const esper_ppo_weights *w, const esper_ppo_terms *t, const double *value, double weight,
                        double *grad)
{
    double sum = 0, all = 0;

    for (size_t i = 0; i < t->n; i++)
        all += t->forced[i] != 0 ? w->forced_weight : 1;
    all = fmax(all, 1);
    for (size_t i = 0; i < t->n; i++) {
        double share = t->forced[i] != 0 ? w->forced_weight : 1, off = value[i] - t->target[i];

        sum += share * off * off;
        if (grad != NULL)
            grad[i] = weight * share * off / all;
    }
    return 0.5 * sum / all;
}

static void clear(double *values, size_t n)
{
    for (size_t i = 0; values != NULL && i < n; i++)
        values[i] = 0;
}

esper_ppo_losses esper_ppo_loss(const esper_ppo_weights *weights, const esper_ppo_terms *terms, esper_ppo_grads *grads)
{
    esper_ppo_grads none = {0}, *g = grads != NULL ? grads : &none;
    size_t n = terms->n * (size_t)terms->n_heads;
    esper_ppo_losses loss = {0};

    clear(g->log_prob, n);
    clear(g->entropy, n);
    clear(g->open_entropy, n);
    for (int head = 0; head < terms->n_heads; head++) {
        double by = divisor(weights, terms, head);

        loss.policy += policy_of(weights, terms, head, by, g->log_prob);
        loss.entropy += entropy_of(weights, terms, head, by, g->entropy);
        if (terms->open_entropy != NULL)
            loss.penalty += penalty_of(weights, terms, head, g->open_entropy);
    }
    loss.value = critic_of(weights, terms, terms->value, weights->value, g->value);
    if (terms->q != NULL)
        loss.q = critic_of(weights, terms, terms->q, weights->q, g->q);
    loss.total = loss.policy + weights->value * loss.value + weights->entropy * loss.entropy + loss.penalty +
                 weights->q * loss.q;
    return loss;
}

/* ------------------------------------------------------------------------------------------------ how far it moved */

/* Kullback-Leibler distance, and clipping of each head. */
static void move_heads(const esper_ppo_weights *w, const esper_ppo_terms *t, esper_ppo_move *move)
{
    double sum = 0, n_all = 0;

    for (int head = 0; head < t->n_heads; head++) {
        double n = 0, clipped = 0;

        for (size_t i = 0; i < t->n; i++) {
            double d = log_ratio(t, i, head);

            if (!has_head(t->asked[i], head))
                continue;
            sum += expm1(d) - d;
            clipped += fabs(expm1(d)) > w->clip;
            n++;
        }
        move->head_clip_fraction[head] = clipped / fmax(n, 1);
        n_all += n;
    }
    move->kl = sum / fmax(n_all, 1);
}

static double joint_ratio(const esper_ppo_terms *t, size_t step)
{
    double sum = 0;

    for (int head = 0; head < t->n_heads; head++)
        sum += log_ratio(t, step, head);
    return exp(cut(sum, -MOST_JOINT, MOST_JOINT));
}

esper_ppo_move esper_ppo_moved(const esper_ppo_weights *weights, const esper_ppo_terms *terms)
{
    esper_ppo_move move = {.ratio_max = terms->n > 0 ? -(double)INFINITY : 1,
                           .ratio_min = terms->n > 0 ? (double)INFINITY : 1};
    double n = fmax((double)terms->n, 1), squares = 0;

    move_heads(weights, terms, &move);
    for (size_t i = 0; i < terms->n; i++) {
        double ratio = joint_ratio(terms, i);

        move.ratio_mean += ratio / n;
        move.ratio_max = fmax(move.ratio_max, ratio);
        move.ratio_min = fmin(move.ratio_min, ratio);
        move.clip_above += (ratio > 1 + weights->clip) / n;
        move.clip_below += (ratio < 1 - weights->clip) / n;
        move.n_bad += !(ratio <= RATIO_HIGH && ratio >= RATIO_LOW); /* NaN too */
    }
    for (size_t i = 0; i < terms->n; i++)
        squares += pow(joint_ratio(terms, i) - move.ratio_mean, 2);
    move.ratio_std = terms->n > 1 ? sqrt(squares / (n - 1)) : 0;
    move.clip_fraction = move.clip_above + move.clip_below;
    return move;
}

/* ------------------------------------------------------------------------------------------------ others */

double esper_ppo_contribution_loss(const float *predicted, const float *target, const uint8_t *counted, size_t n,
                                   double *grad_out)
{
    double sum = 0, count = 0;

    for (size_t i = 0; i < n; i++)
        count += counted[i] != 0;
    count = fmax(count, 1);
    for (size_t i = 0; i < n; i++) {
        double off = (double)predicted[i] - cut((double)target[i], -MOST_CONTRIBUTION, MOST_CONTRIBUTION);

        grad_out[i] = counted[i] != 0 ? 2 * off / count : 0;
        sum += counted[i] != 0 ? off * off / count : 0;
    }
    return sum;
}

double esper_ppo_penalty_scale(double progress)
{
    if (progress < 0.25)
        return 1.5;
    return progress < 0.75 ? 1.0 : 1.0 - 2.0 * (fmin(progress, 1.0) - 0.75);
}
