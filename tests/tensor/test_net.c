/* Net programs: what is refused and in which words, lists that grow, the text form, slots, places of operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/small_net.h"

enum { PLENTY = 200 };

static const esper_init born_zero = {ESPER_INIT_CONSTANT, 0.0f};

/* A net with one tensor of each kind that the cases below need. */
typedef struct parts {
    esper_net net;
    int       image, vector, ids, kernel, matrix, channel, other, mean, var, one, one_input, like_image;
} parts;

static void make_parts(parts *p)
{
    esper_net *net = &p->net;
    int one = 1, four = 4, five = 5;

    esper_net_init(net);
    p->image = esper_net_input(net, "image", ESPER_F32, 3, (int[]){4, 6, 6});
    p->like_image = esper_net_input(net, "like_image", ESPER_F32, 3, (int[]){4, 6, 6});
    p->vector = esper_net_input(net, "vector", ESPER_F32, 1, &four);
    p->ids = esper_net_input(net, "ids", ESPER_I32, 1, &five);
    p->one_input = esper_net_input(net, "one_input", ESPER_F32, 1, &one);
    p->kernel = esper_net_param(net, "kernel", 4, (int[]){8, 4, 3, 3}, born_zero);
    p->matrix = esper_net_param(net, "matrix", 2, (int[]){7, 4}, born_zero);
    p->channel = esper_net_param(net, "channel", 1, &four, born_zero);
    p->other = esper_net_param(net, "other", 1, &five, born_zero);
    p->one = esper_net_param(net, "one", 1, &one, born_zero);
    p->mean = esper_net_buffer(net, "mean", 1, &four, 0.0f);
    p->var = esper_net_buffer(net, "var", 1, &four, 1.0f);
}

/* ------------------------------------------------------------------------------------------------ refusals */

static int conv_of_vector(parts *p)
{
    return esper_net_conv2d(&p->net, p->vector, p->kernel, 1, 1);
}

static int conv_channels(parts *p)
{
    return esper_net_conv2d(&p->net, p->image, p->kernel, 1, 2);
}

static int conv_no_groups(parts *p)
{
    return esper_net_conv2d(&p->net, p->image, p->kernel, 1, 0);
}

static int conv_not_square(parts *p)
{
    int w = esper_net_param(&p->net, "flat", 4, (int[]){8, 4, 3, 1}, born_zero);

    return esper_net_conv2d(&p->net, p->image, w, 1, 1);
}

static int conv_negative_pad(parts *p)
{
    return esper_net_conv2d(&p->net, p->image, p->kernel, -1, 1);
}

static int conv_shrinks_away(parts *p)
{
    int big = esper_net_param(&p->net, "big", 4, (int[]){8, 4, 9, 9}, born_zero);

    return esper_net_conv2d(&p->net, p->image, big, 1, 1);
}

static int conv_with_activation(parts *p)
{
    int w = esper_net_input(&p->net, "w", ESPER_F32, 4, (int[]){8, 4, 3, 3});

    return esper_net_conv2d(&p->net, p->image, w, 1, 1);
}

static int batch_norm_vectors(parts *p)
{
    return esper_net_batch_norm(&p->net, p->image, p->channel, p->other, p->mean, p->var, 1e-5f, 0.1f);
}

static int group_norm_groups(parts *p)
{
    return esper_net_group_norm(&p->net, p->image, p->channel, p->channel, 3, 1e-5f);
}

static int layer_norm_width(parts *p)
{
    return esper_net_layer_norm(&p->net, p->image, p->channel, p->channel, 1e-5f);
}

static int pool_of_vector(parts *p)
{
    return esper_net_max_pool(&p->net, p->vector);
}

static int pool_too_often(parts *p)
{
    return esper_net_max_pool(&p->net, esper_net_max_pool(&p->net, esper_net_max_pool(&p->net, p->image)));
}

static int mean_of_vector(parts *p)
{
    return esper_net_global_mean(&p->net, p->vector);
}

static int linear_width(parts *p)
{
    return esper_net_linear(&p->net, p->image, p->matrix, ESPER_NO_TENSOR);
}

static int linear_bias(parts *p)
{
    return esper_net_linear(&p->net, p->vector, p->matrix, p->channel);
}

static int embedding_ids(parts *p)
{
    return esper_net_embedding(&p->net, p->vector, p->matrix, p->matrix);
}

static int embedding_long(parts *p)
{
    int few = esper_net_param(&p->net, "few", 2, (int[]){3, 4}, born_zero);

    return esper_net_embedding(&p->net, p->ids, p->matrix, few);
}

static int embedding_flat(parts *p)
{
    return esper_net_embedding(&p->net, p->ids, p->channel, p->other);
}

static int attention_heads(parts *p)
{
    int qkv = esper_net_input(&p->net, "qkv", ESPER_F32, 2, (int[]){5, 12});

    return esper_net_attention(&p->net, qkv, 3, 0.0f);
}

static int attention_drops_all(parts *p)
{
    int qkv = esper_net_input(&p->net, "qkv", ESPER_F32, 2, (int[]){5, 12});

    return esper_net_attention(&p->net, qkv, 2, 1.0f);
}

static int dropout_negative(parts *p)
{
    return esper_net_dropout(&p->net, p->image, -0.5f);
}

static int dropout_large(parts *p)
{
    int huge = esper_net_input(&p->net, "huge", ESPER_F32, 2, (int[]){1 << 12, 1 << 11});

    return esper_net_dropout(&p->net, huge, 0.5f);
}

static int add_shapes(parts *p)
{
    return esper_net_add(&p->net, p->image, p->vector);
}

static int add_param(parts *p)
{
    return esper_net_add(&p->net, p->vector, p->channel);
}

static int add_ids(parts *p)
{
    return esper_net_add(&p->net, p->ids, p->ids);
}

static int mul_shapes(parts *p)
{
    return esper_net_mul(&p->net, p->image, p->one_input);
}

static int scale_width(parts *p)
{
    return esper_net_channel_scale(&p->net, p->image, p->other);
}

static int mix_weight(parts *p)
{
    return esper_net_mix_tanh(&p->net, p->image, p->like_image, p->channel);
}

static int relu_of_param(parts *p)
{
    return esper_net_relu(&p->net, p->channel);
}

static int relu_of_nothing(parts *p)
{
    return esper_net_relu(&p->net, 999);
}

static int loss_targets(parts *p)
{
    return esper_net_softmax_xent(&p->net, p->vector, p->ids);
}

static int loss_numbers(parts *p)
{
    return esper_net_softmax_xent(&p->net, p->vector, p->one_input);
}

static int blend_alpha(parts *p)
{
    return esper_net_blend_add(&p->net, p->image, p->like_image, p->vector);
}

static int blend_alpha_param(parts *p)
{
    return esper_net_blend_add(&p->net, p->image, p->like_image, p->one);
}

static int blend_shapes(parts *p)
{
    return esper_net_blend_add(&p->net, p->image, p->vector, p->one_input);
}

static int blend_mul_seen(parts *p)
{
    return esper_net_blend_mul(&p->net, p->image, p->like_image, p->vector, p->one_input);
}

static int blend_gate_value(parts *p)
{
    return esper_net_blend_gate(&p->net, p->image, p->like_image, p->vector, p->one_input);
}

static int straight_shapes(parts *p)
{
    return esper_net_straight_through(&p->net, p->image, p->vector);
}

static int isolate_param(parts *p)
{
    return esper_net_isolate(&p->net, p->channel);
}

/* Two steps of width 3, with one part replaced. */
static int lstm_with(parts *p, esper_net_lstm_in wrong)
{
    esper_net_lstm_in in = {
        .gates = esper_net_input(&p->net, "gates", ESPER_F32, 2, (int[]){2, 12}),
        .weight = esper_net_param(&p->net, "recurrent", 2, (int[]){12, 3}, born_zero),
        .bias = esper_net_param(&p->net, "gate_bias", 1, (int[]){12}, born_zero),
        .h = esper_net_input(&p->net, "h", ESPER_F32, 1, (int[]){3}),
        .c = esper_net_input(&p->net, "c", ESPER_F32, 1, (int[]){3}),
        .reset = esper_net_input(&p->net, "reset", ESPER_F32, 1, (int[]){2}),
    };

    in.gates = wrong.gates != 0 ? wrong.gates : in.gates;
    in.bias = wrong.bias != 0 ? wrong.bias : in.bias;
    in.c = wrong.c != 0 ? wrong.c : in.c;
    in.reset = wrong.reset != 0 ? wrong.reset : in.reset;
    return esper_net_lstm(&p->net, in, NULL);
}

static int lstm_gates(parts *p)
{
    return lstm_with(p, (esper_net_lstm_in){.gates = esper_net_input(&p->net, "few", ESPER_F32, 2, (int[]){2, 9})});
}

static int lstm_bias(parts *p)
{
    return lstm_with(p, (esper_net_lstm_in){.bias = p->channel});
}

static int lstm_state(parts *p)
{
    return lstm_with(p, (esper_net_lstm_in){.c = p->vector});
}

static int lstm_reset(parts *p)
{
    return lstm_with(p, (esper_net_lstm_in){.reset = p->one_input});
}

static int concat_rows(parts *p)
{
    int a = esper_net_input(&p->net, "a", ESPER_F32, 2, (int[]){3, 4});

    return esper_net_concat(&p->net, a, p->vector);
}

static int add_five_rows(parts *p)
{
    int a = esper_net_input(&p->net, "a", ESPER_F32, 2, (int[]){5, 4});

    return esper_net_add_rows(&p->net, a, esper_net_input(&p->net, "b", ESPER_F32, 2, (int[]){2, 4}));
}

static int pool_five_rows(parts *p)
{
    int a = esper_net_input(&p->net, "a", ESPER_F32, 2, (int[]){5, 4}), five = 5;

    return esper_net_pool_rows(&p->net, a, esper_net_input(&p->net, "there", ESPER_F32, 1, &five), 2);
}

static int gradient_of_param(parts *p)
{
    esper_net_take_grad(&p->net, p->channel);
    return ESPER_NO_TENSOR;
}

static int rank_five(parts *p)
{
    return esper_net_input(&p->net, "deep", ESPER_F32, 5, (int[]){1, 1, 1, 1, 1});
}

static int rank_zero(parts *p)
{
    return esper_net_input(&p->net, "flat", ESPER_F32, 0, NULL);
}

static int dim_zero(parts *p)
{
    return esper_net_param(&p->net, "none", 2, (int[]){3, 0}, born_zero);
}

static int dim_huge(parts *p)
{
    return esper_net_param(&p->net, "huge", 4, (int[]){1 << 30, 1 << 30, 1 << 30, 1 << 30}, born_zero);
}

static int name_twice(parts *p)
{
    return esper_net_param(&p->net, "channel", 1, (int[]){4}, born_zero);
}

static int name_long(parts *p)
{
    return esper_net_param(
        &p->net, "a.name.that.goes.on.and.on.until.it.has.more.than.the.eighty.characters.that.there.are.for.it", 1,
        (int[]){4}, born_zero);
}

static int region_unknown(parts *p)
{
    esper_net_enter(&p->net, "slot.", ESPER_MAX_REGIONS);
    return ESPER_NO_TENSOR;
}

typedef struct refusal {
    const char *name;
    int (*make)(parts *p);
    const char *words; /* must be part of the message */
} refusal;

static const refusal refusals[] = {
    {"conv2d of a vector", conv_of_vector, "conv2d: needs x (C,H,W)"},
    {"conv2d with other channels", conv_channels, "channels and groups"},
    {"conv2d with 0 groups", conv_no_groups, "channels and groups"},
    {"conv2d with a kernel that is not square", conv_not_square, "square kernel"},
    {"conv2d with negative padding", conv_negative_pad, "padding of 0 or more"},
    {"conv2d larger than its map", conv_shrinks_away, "dimension 1 is 0"},
    {"conv2d with weights for each sample", conv_with_activation, "w, must be a parameter"},
    {"batch_norm with another width", batch_norm_vectors, "four vectors of C"},
    {"group_norm of 4 channels in 3 groups", group_norm_groups, "groups that divide C"},
    {"layer_norm of another width", layer_norm_width, "two vectors of D"},
    {"max_pool of a vector", pool_of_vector, "max_pool: needs x (C,H,W)"},
    {"max_pool of one pixel", pool_too_often, "use fewer pools"},
    {"global_mean of a vector", mean_of_vector, "global_mean: needs"},
    {"linear of another width", linear_width, "linear: needs x (..,I)"},
    {"linear with a wrong bias", linear_bias, "bias of O"},
    {"embedding of numbers", embedding_ids, "vector, must hold ids"},
    {"embedding of too many tokens", embedding_long, "sequence of 5 tokens, but there are only 3 positions"},
    {"embedding from vectors", embedding_flat, "embedding: needs"},
    {"attention with heads that do not divide", attention_heads, "number of heads"},
    {"attention that drops all", attention_drops_all, "not in [0, 1)"},
    {"dropout of a negative share", dropout_negative, "not in [0, 1)"},
    {"dropout of more than a stream", dropout_large, "2^22"},
    {"add of two shapes", add_shapes, "add: needs two tensors of one shape"},
    {"add of a parameter", add_param, "channel, must be an input or an operation's output"},
    {"add of ids", add_ids, "ids, must hold numbers"},
    {"mul of two shapes", mul_shapes, "mul: needs b like a"},
    {"channel_scale of another width", scale_width, "vector of C"},
    {"mix_tanh with many weights", mix_weight, "one weight"},
    {"relu of a parameter", relu_of_param, "channel, must be an input"},
    {"relu of nothing", relu_of_nothing, "has no input"},
    {"softmax_xent with too many targets", loss_targets, "a target for each row"},
    {"softmax_xent with numbers as targets", loss_numbers, "a target for each row"},
    {"blend_add with many alphas", blend_alpha, "one alpha for each sample"},
    {"blend_add with a parameter as alpha", blend_alpha_param, "one, must be an input"},
    {"blend_add of two shapes", blend_shapes, "two tensors of one shape"},
    {"blend_mul with another input", blend_mul_seen, "h, s and u of one shape"},
    {"blend_gate with many gates", blend_gate_value, "one gate value"},
    {"straight_through of two shapes", straight_shapes, "two tensors of one shape"},
    {"isolate of a parameter", isolate_param, "channel, must be an input"},
    {"lstm with gates of another width", lstm_gates, "a bias of 4H"},
    {"lstm with another bias", lstm_bias, "a bias of 4H"},
    {"lstm with another state", lstm_state, "needs a state of H and H"},
    {"lstm with a reset too few", lstm_reset, "a reset for each step"},
    {"concat of 4 elements to 3 rows", concat_rows, "b with T rows"},
    {"5 rows for 2", add_five_rows, "a (T S,D) and b (T,D)"},
    {"5 rows in 2 groups", pool_five_rows, "a number for each of its rows"},
    {"a gradient given for a parameter", gradient_of_param, "or of a parameter"},
    {"rank 5", rank_five, "deep: rank 5"},
    {"rank 0", rank_zero, "flat: rank 0"},
    {"dimension 0", dim_zero, "none: dimension 1 is 0"},
    {"2^120 elements", dim_huge, "huge: more than 2^40 elements"},
    {"a name twice", name_twice, "channel: there is a tensor of that name already"},
    {"a name too long", name_long, "at most 79 characters"},
    {"region 33", region_unknown, "no such slab region"},
};

static void check_refusal(const refusal *r)
{
    parts p;
    int id;

    make_parts(&p);
    assert_int_equal(esper_net_status(&p.net), ESPER_OK);
    id = r->make(&p);
    if (id != ESPER_NO_TENSOR || esper_net_status(&p.net) != ESPER_E_ARG ||
        strstr(esper_last_error(), r->words) == NULL)
        fail_msg("%s: id %d, status %d, message \"%s\", expected words \"%s\"", r->name, id, esper_net_status(&p.net),
                 esper_last_error(), r->words);
    esper_net_fini(&p.net);
}

static void test_bad_shapes_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        check_refusal(&refusals[i]);
}

/* What is refused above is accepted in its right form: the checks do not simply refuse everything. */
static void test_right_shapes_are_accepted(void **state)
{
    parts p;
    esper_net *net = &p.net;
    int x;

    (void)state;
    make_parts(&p);
    x = esper_net_relu(net, esper_net_conv2d(net, p.image, p.kernel, 1, 1));
    assert_int_equal(net->tensors[x].dim[0], 8);
    assert_int_equal(net->tensors[x].dim[1], 6);
    x = esper_net_batch_norm(net, p.image, p.channel, p.channel, p.mean, p.var, 1e-5f, 0.1f);
    x = esper_net_mul(net, x, p.vector);
    x = esper_net_channel_scale(net, esper_net_add(net, x, p.like_image), p.channel);
    x = esper_net_mix_tanh(net, x, p.image, p.one);
    x = esper_net_blend_gate(net, x, p.image, p.one_input, p.one_input);
    x = esper_net_blend_mul(net, x, p.image, esper_net_isolate(net, p.image), p.one_input);
    x = esper_net_linear(net, esper_net_global_mean(net, x), p.matrix, ESPER_NO_TENSOR);
    x = esper_net_dropout(net, x, 0.5f);
    if (x == ESPER_NO_TENSOR)
        fail_msg("refused: %s", esper_last_error());
    assert_int_equal(net->tensors[x].rank, 1);
    assert_int_equal(net->tensors[x].dim[0], 7);
    esper_net_fini(net);
}

static void test_first_mistake_is_kept(void **state)
{
    parts p;
    char first[256];
    int n_tensors, n_ops;

    (void)state;
    make_parts(&p);
    assert_int_equal(esper_net_max_pool(&p.net, p.vector), ESPER_NO_TENSOR);
    snprintf(first, sizeof(first), "%s", esper_last_error());
    n_tensors = p.net.n_tensors;
    n_ops = p.net.n_ops;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
        assert_int_equal(refusals[i].make(&p), ESPER_NO_TENSOR);
    assert_int_equal(esper_net_relu(&p.net, p.image), ESPER_NO_TENSOR);
    assert_string_equal(esper_last_error(), first);
    assert_int_equal(p.net.n_tensors, n_tensors);
    assert_int_equal(p.net.n_ops, n_ops);
    esper_net_fini(&p.net);
}

/* ------------------------------------------------------------------------------------------------ lists */

static void test_lists_grow(void **state)
{
    esper_net net;
    char name[32];
    int x, four = 4;

    (void)state;
    esper_net_init(&net);
    x = esper_net_input(&net, "x", ESPER_F32, 1, &four);
    for (int i = 0; i < PLENTY; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        esper_net_param(&net, name, 1, &four, born_zero);
        x = esper_net_relu(&net, x);
        x = esper_net_boundary(
            &net,
            (esper_boundary){.order = i, .channels = 4, .slot = {'s', (char)(' ' + i / 90), (char)(' ' + i % 90)}}, x);
    }
    assert_int_equal(esper_net_status(&net), ESPER_OK);
    assert_int_equal(net.n_ops, PLENTY);
    assert_int_equal(net.n_tensors, 1 + 2 * PLENTY);
    assert_int_equal(net.n_boundaries, PLENTY);
    for (int i = 0; i < PLENTY; i++) {
        snprintf(name, sizeof(name), "p%d", i);
        assert_int_equal(esper_net_find(&net, name), 1 + 2 * i);
        assert_int_equal(net.tensors[1 + 2 * i].offset, ESPER_SLAB_ALIGN * i);
        assert_int_equal(net.ops[i].out[0], 2 + 2 * i);
        assert_int_equal(net.ops[i].in[0], 2 * i);
        assert_int_equal(net.boundaries[i].tensor, 2 + 2 * i);
    }
    assert_int_equal(esper_net_find(&net, "p"), ESPER_NO_TENSOR);
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ text */

static const char small_cnn_text[] =
    "input images(N,3,8,8)\n"
    "param blocks.0.conv.weight(4,3,3,3)\n"
    "param blocks.0.bn.weight(4)\n"
    "param blocks.0.bn.bias(4)\n"
    "buffer blocks.0.bn.running_mean(4)\n"
    "buffer blocks.0.bn.running_var(4)\n"
    "param blocks.1.conv.weight(8,4,3,3)\n"
    "param blocks.1.bn.weight(8)\n"
    "param blocks.1.bn.bias(8)\n"
    "buffer blocks.1.bn.running_mean(8)\n"
    "buffer blocks.1.bn.running_var(8)\n"
    "param classifier.weight(5,8)\n"
    "param classifier.bias(5)\n"
    "input targets(N,1)\n"
    "conv2d.0(N,4,8,8) = conv2d images blocks.0.conv.weight pad=1 groups=1\n"
    "batch_norm.1(N,4,8,8) = batch_norm conv2d.0 blocks.0.bn.weight blocks.0.bn.bias blocks.0.bn.running_mean "
    "blocks.0.bn.running_var\n"
    "relu.2(N,4,8,8) = relu batch_norm.1\n"
    "slot r0c0: 4 channels\n"
    "max_pool.3(N,4,4,4) = max_pool relu.2\n"
    "slot r1c0: 4 channels\n"
    "conv2d.4(N,8,4,4) = conv2d max_pool.3 blocks.1.conv.weight pad=1 groups=1\n"
    "batch_norm.5(N,8,4,4) = batch_norm conv2d.4 blocks.1.bn.weight blocks.1.bn.bias blocks.1.bn.running_mean "
    "blocks.1.bn.running_var\n"
    "relu.6(N,8,4,4) = relu batch_norm.5\n"
    "slot r0c1: 8 channels\n"
    "max_pool.7(N,8,2,2) = max_pool relu.6\n"
    "slot r1c1: 8 channels\n"
    "global_mean.8(N,8) = global_mean max_pool.7\n"
    "linear.9(N,5) = linear global_mean.8 classifier.weight classifier.bias\n"
    "softmax_xent.10(N,1) = softmax_xent linear.9 targets\n";

static void test_text_form(void **state)
{
    esper_host host = small_cnn();
    esper_net net;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    esper_net_print(&net, stream);
    fclose(stream);
    assert_string_equal(text, small_cnn_text);
    free(text);
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ slots */

static int hook_that_shrinks(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    (void)boundary;
    (void)context;
    return esper_net_global_mean(net, x);
}

static int hook_that_forgets(esper_net *net, const esper_boundary *boundary, int x, void *context)
{
    (void)net;
    (void)boundary;
    (void)x;
    (void)context;
    return ESPER_NO_TENSOR;
}

static void check_hook_refused(esper_net_hook hook)
{
    esper_host host = small_cnn();
    esper_net net;

    esper_net_init(&net);
    net.hook = hook;
    assert_int_equal(esper_host_build(&host, &net), ESPER_E_ARG);
    if (strstr(esper_last_error(), "r0c0: a seed must keep the shape") == NULL)
        fail_msg("message \"%s\"", esper_last_error());
    esper_net_fini(&net);
}

static void test_seed_must_keep_the_shape(void **state)
{
    (void)state;
    check_hook_refused(hook_that_shrinks);
    check_hook_refused(hook_that_forgets);
}

static void check_boundary_refused(esper_boundary boundary, const char *words)
{
    esper_net net;
    int x, four = 4;

    esper_net_init(&net);
    x = esper_net_input(&net, "x", ESPER_F32, 1, &four);
    x = esper_net_boundary(&net, (esper_boundary){.slot = "r0c0", .channels = 4, .order = 0}, x);
    x = esper_net_boundary(&net, boundary, x);
    if (x != ESPER_NO_TENSOR || esper_net_status(&net) != ESPER_E_ARG || strstr(esper_last_error(), words) == NULL)
        fail_msg("id %d, status %d, message \"%s\", expected words \"%s\"", x, esper_net_status(&net),
                 esper_last_error(), words);
    esper_net_fini(&net);
}

static void test_bad_boundaries_are_refused(void **state)
{
    (void)state;
    check_boundary_refused((esper_boundary){.slot = "r0c1", .channels = 5, .order = 1}, "r0c1: channels");
    check_boundary_refused((esper_boundary){.slot = "r0c1", .channels = 4, .order = 1, .position = 1.5f}, "position");
    check_boundary_refused((esper_boundary){.slot = "r0c1", .channels = 4, .order = -1}, "negative order");
    check_boundary_refused((esper_boundary){.slot = "r0c1", .channels = 4, .order = 0}, "same order");
    check_boundary_refused((esper_boundary){.slot = "r0c0", .channels = 4, .order = 1}, "such a slot already");
    check_boundary_refused(
        (esper_boundary){.slot = "r0c1", .channels = 4, .order = 1, .layer_begin = 2, .layer_end = 1}, "layer range");
}

/* ------------------------------------------------------------------------------------------------ growth */

/* Operations of the host (those outside of `seed` regions) must stand where they stand without seeds. */
static void check_places(const esper_host *host, const small_seed *seeds)
{
    esper_net plain, grown;
    int next = 0;

    assert_int_equal(small_build(&plain, host, NULL), ESPER_OK);
    assert_int_equal(small_build(&grown, host, seeds), ESPER_OK);
    assert_true(grown.n_ops > plain.n_ops);
    for (int o = 0; o < grown.n_ops; o++) {
        if (grown.ops[o].kind == ESPER_OP_ISOLATE) /* is no work, and has no place of its own */
            continue;
        if (o > 0 && grown.ops[o - 1].kind != ESPER_OP_ISOLATE)
            assert_true(grown.ops[o].place > grown.ops[o - 1].place);
        if (next < plain.n_ops && grown.ops[o].place == plain.ops[next].place) {
            assert_int_equal(grown.ops[o].kind, plain.ops[next].kind);
            next++;
        }
    }
    if (next != plain.n_ops)
        fail_msg("%d of %d host operations kept their place", next, plain.n_ops);
    esper_net_fini(&plain);
    esper_net_fini(&grown);
}

static void test_seeds_leave_host_places(void **state)
{
    static const small_seed in_cnn[] = {
        {"r0c0", "conv_heavy", SMALL_TRAINING}, {"r1c1", "bottleneck", SMALL_GATE}, {0}};
    static const small_seed one_op[] = {{"r0c1", "noop", SMALL_ADD}, {0}};
    static const small_seed in_transformer[] = {{"r0c0", "mlp", SMALL_ADD}, {"r0c1", "attention", SMALL_MULTIPLY}, {0}};
    esper_host cnn = small_cnn(), transformer = small_transformer(0.1f);

    (void)state;
    check_places(&cnn, in_cnn);
    check_places(&cnn, one_op);
    check_places(&transformer, in_transformer);
}

static uint32_t tag_of(const esper_op *op)
{
    if (op->kind == ESPER_OP_DROPOUT)
        return op->attr.dropout.tag;
    return op->kind == ESPER_OP_ATTENTION && op->attr.attention.drop > 0.0f ? op->attr.attention.tag : UINT32_MAX;
}

/* Else a seed in TRAINING would change the masks of the host behind it. */
static void test_seeds_leave_host_dropout(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "attention", SMALL_TRAINING}, {0}};
    esper_host host = small_transformer(0.1f);
    esper_net plain, grown;
    int n_found = 0;

    (void)state;
    assert_int_equal(small_build(&plain, &host, NULL), ESPER_OK);
    assert_int_equal(small_build(&grown, &host, seeds), ESPER_OK);
    for (int i = 0; i < plain.n_ops; i++)
        for (int j = 0; j < grown.n_ops; j++) {
            if (plain.ops[i].place != grown.ops[j].place || tag_of(&plain.ops[i]) == UINT32_MAX)
                continue;
            n_found++;
            if (tag_of(&plain.ops[i]) != tag_of(&grown.ops[j]))
                fail_msg("%s at place %u: tag %u without seed, %u with", esper_op_info_of(plain.ops[i].kind)->name,
                         plain.ops[i].place, tag_of(&plain.ops[i]), tag_of(&grown.ops[j]));
        }
    assert_int_equal(n_found, 7); /* embedding; attention, its projection and MLP of two layers */
    esper_net_fini(&plain);
    esper_net_fini(&grown);
}

static void test_dropout_streams_differ(void **state)
{
    esper_net net;
    int x, four = 4;

    (void)state;
    esper_net_init(&net);
    x = esper_net_input(&net, "x", ESPER_F32, 1, &four);
    x = esper_net_dropout(&net, x, 0.5f);
    x = esper_net_dropout(&net, x, 0.5f);
    esper_net_enter(&net, "a.", 1);
    x = esper_net_dropout(&net, x, 0.5f);
    esper_net_enter(&net, "b.", ESPER_MAX_REGIONS - 1);
    for (int i = 0; i < 64; i++)
        x = esper_net_dropout(&net, x, 0.5f);
    assert_int_equal(esper_net_status(&net), ESPER_OK);
    for (int i = 0; i < net.n_ops; i++) {
        assert_true(tag_of(&net.ops[i]) < 1u << 12);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(tag_of(&net.ops[i]), tag_of(&net.ops[j]));
    }
    assert_int_equal(esper_net_dropout(&net, x, 0.5f), ESPER_NO_TENSOR);
    if (strstr(esper_last_error(), "too many dropouts") == NULL)
        fail_msg("message \"%s\"", esper_last_error());
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ cutting */

enum { CUT_SAMPLES = 19 };

/* Every input of one run that the other has, too, gets the same values. */
static void fill_inputs(small_run *run)
{
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        void *data = esper_plan_data(run->plan, 0, t);

        if (tensor->role != ESPER_ROLE_INPUT)
            continue;
        for (int64_t i = 0; i < tensor->count * CUT_SAMPLES; i++) {
            if (tensor->dtype == ESPER_I32)
                ((int32_t *)data)[i] = (int32_t)(i % 5);
            else
                ((float *)data)[i] = (float)((i * 37 + t) % 101) / 101.0f;
        }
    }
}

static void forward(small_run *run)
{
    run->pass.training = false;
    if (esper_plan_forward(run->plan) != ESPER_OK || esper_backend_sync(run->backend) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

/* A network cut before a slot gives the same losses from what the whole one has there, to the bit. */
static void check_cut_run(const char *backend, const esper_host *host, const small_seed *seeds, const char *slot)
{
    small_run whole = {0}, cut = {0};
    int at, before;
    const float *a, *b;

    assert_int_equal(small_build(&whole.net, host, seeds), ESPER_OK);
    assert_int_equal(small_build(&cut.net, host, seeds), ESPER_OK);
    at = esper_net_find_boundary(&whole.net, slot)->tensor;
    whole.net.tensors[at].keep = true;
    before = cut.net.n_ops;
    assert_int_equal(esper_net_cut(&cut.net, at), ESPER_OK);
    assert_true(cut.net.n_ops < before);
    small_run_open(&whole, backend, CUT_SAMPLES, false);
    small_run_open(&cut, backend, CUT_SAMPLES, false);
    fill_inputs(&whole);
    forward(&whole);
    fill_inputs(&cut);
    memcpy(esper_plan_data(cut.plan, 0, at), esper_plan_data(whole.plan, 0, at),
           (size_t)(cut.net.tensors[at].count * CUT_SAMPLES) * sizeof(float));
    forward(&cut);
    a = esper_plan_data(whole.plan, 0, whole.net.loss);
    b = esper_plan_data(cut.plan, 0, cut.net.loss);
    for (int i = 0; i < CUT_SAMPLES; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s, cut at %s: sample %d has loss %.9g, %.9g when whole", backend, slot, i, (double)b[i],
                     (double)a[i]);
    small_run_close(&whole);
    small_run_close(&cut);
}

static void test_cut_networks_compute_the_same(void **state)
{
    static const char *const backends[] = {"ref", "cpu"};
    static const char *const cnn_slots[] = {"r0c0", "r1c0", "r0c1", "r1c1"};
    static const small_seed in_cnn[] = {
        {"r1c0", "conv_light", SMALL_ADD}, {"r0c1", "bottleneck", SMALL_GATE}, {"r1c1", "norm", SMALL_MULTIPLY}, {0}};
    static const small_seed in_transformer[] = {{"r0c0", "mlp", SMALL_ADD}, {"r0c1", "attention", SMALL_MULTIPLY}, {0}};
    esper_host cnn = small_cnn(), transformer = small_transformer(0.0f);

    (void)state;
    for (int b = 0; b < 2; b++) {
        for (int s = 0; s < 4; s++) {
            check_cut_run(backends[b], &cnn, NULL, cnn_slots[s]);
            check_cut_run(backends[b], &cnn, in_cnn, cnn_slots[s]);
        }
        check_cut_run(backends[b], &transformer, in_transformer, "r0c0");
        check_cut_run(backends[b], &transformer, in_transformer, "r0c1");
    }
}

static void test_cut_leaves_what_is_needed(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "conv_light", SMALL_ADD}, {"r0c1", "norm", SMALL_ADD}, {0}};
    esper_host host = small_cnn();
    esper_net net;
    int at, images, targets, kept;

    (void)state;
    assert_int_equal(small_build(&net, &host, seeds), ESPER_OK);
    at = esper_net_find_boundary(&net, "r0c1")->tensor;
    kept = esper_net_find_boundary(&net, "r1c0")->tensor;
    net.tensors[kept].keep = true;
    images = net.input;
    targets = net.target;
    assert_int_equal(esper_net_cut(&net, at), ESPER_OK);
    assert_int_equal(net.input, at);
    assert_int_equal(net.target, targets);
    assert_int_equal(net.tensors[at].role, ESPER_ROLE_INPUT);
    assert_int_not_equal(net.tensors[images].role, ESPER_ROLE_INPUT);
    assert_int_not_equal(net.tensors[esper_net_find(&net, "r0c0.alpha")].role, ESPER_ROLE_INPUT);
    assert_int_equal(net.tensors[esper_net_find(&net, "r0c1.alpha")].role, ESPER_ROLE_INPUT);
    assert_false(net.tensors[kept].keep);
    assert_int_equal(net.n_boundaries, 2);
    assert_string_equal(net.boundaries[0].slot, "r0c1");
    assert_string_equal(net.boundaries[1].slot, "r1c1");
    assert_int_equal(esper_net_cut(&net, at), ESPER_E_ARG); /* it is an input now */
    esper_net_fini(&net);
}

static void check_cut_refused(esper_net *net, int tensor, const char *words)
{
    int n_ops = net->n_ops, n_boundaries = net->n_boundaries, input = net->input;
    esper_status status = esper_net_cut(net, tensor);

    if (status != ESPER_E_ARG || strstr(esper_last_error(), words) == NULL)
        fail_msg("cut at %d: %s (\"%s\"), expected ESPER_E_ARG with \"%s\"", tensor, esper_status_name(status),
                 esper_last_error(), words);
    assert_int_equal(net->n_ops, n_ops);
    assert_int_equal(net->n_boundaries, n_boundaries);
    assert_int_equal(net->input, input);
    assert_int_equal(esper_net_status(net), ESPER_OK);
}

static void test_bad_cuts_are_refused(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "conv_light", SMALL_ADD}, {0}};
    esper_host host = small_cnn();
    esper_net net;
    int blended;

    (void)state;
    assert_int_equal(small_build(&net, &host, seeds), ESPER_OK);
    check_cut_refused(&net, ESPER_NO_TENSOR, "no operation makes it");
    check_cut_refused(&net, net.n_tensors, "no operation makes it");
    check_cut_refused(&net, net.input, "no operation makes it");
    check_cut_refused(&net, esper_net_find(&net, "classifier.weight"), "no operation makes it");
    check_cut_refused(&net, net.ops[1].out[1], "slice for each sample"); /* a mean of the first batch norm */
    check_cut_refused(&net, net.loss, "a result");
    for (blended = 0; net.ops[blended].kind != ESPER_OP_BLEND_ADD; blended++) {
    }
    check_cut_refused(&net, net.ops[blended].in[1], "behind it needs"); /* the blend wants the host's stream as well */
    esper_net_fini(&net);
    esper_net_init(&net);
    esper_net_relu(&net, 0);
    assert_int_equal(esper_net_cut(&net, 0), ESPER_E_ARG); /* the first mistake */
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ memory */

static void test_allocation_failures(void **state)
{
    static const small_seed seeds[] = {{"r0c0", "conv_heavy", SMALL_TRAINING}, {"r0c1", "bottleneck", SMALL_GATE}, {0}};
    esper_host host = small_cnn();
    esper_mem_stats before, after;
    esper_status status = ESPER_E_NOMEM;
    esper_net net;
    uint64_t nth;

    (void)state;
    esper_mem_stats_get(&before);
    for (nth = 1; status == ESPER_E_NOMEM && nth < 100; nth++) {
        esper_mem_fail_at(nth);
        status = small_build(&net, &host, seeds);
        esper_mem_fail_at(0);
        esper_net_fini(&net);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(after.live_bytes, before.live_bytes);
    }
    assert_int_equal(status, ESPER_OK);
    assert_true(nth > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_shapes_are_refused),
        cmocka_unit_test(test_right_shapes_are_accepted),
        cmocka_unit_test(test_first_mistake_is_kept),
        cmocka_unit_test(test_lists_grow),
        cmocka_unit_test(test_text_form),
        cmocka_unit_test(test_seed_must_keep_the_shape),
        cmocka_unit_test(test_bad_boundaries_are_refused),
        cmocka_unit_test(test_seeds_leave_host_places),
        cmocka_unit_test(test_seeds_leave_host_dropout),
        cmocka_unit_test(test_dropout_streams_differ),
        cmocka_unit_test(test_cut_networks_compute_the_same),
        cmocka_unit_test(test_cut_leaves_what_is_needed),
        cmocka_unit_test(test_bad_cuts_are_refused),
        cmocka_unit_test(test_allocation_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
