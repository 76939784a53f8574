/* Nets as PyTorch modules: the text, the names, and what is refused. That PyTorch computes the same is parity's to show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/page.h"
#include "base/status.h"
#include "nn/torch_export.h"
#include "support/op_nets.h"
#include "support/small_net.h"

static uint64_t live_blocks(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

static const esper_torch_number half[] = {{"alpha", 0.5f}, {"r0c0.alpha", 0.3f}, {"r1c0.alpha", 1.0f}};

static esper_torch_desc desc_of(const esper_net *net)
{
    return (esper_torch_desc){.net = net, .class_name = "Net", .numbers = half, .n_numbers = 3};
}

static void export(esper_torch *torch, const esper_net *net)
{
    esper_torch_desc desc = desc_of(net);

    if (esper_torch_init(torch, &desc) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

/* The text has these lines, one after the other. */
static void check_lines(const char *text, const char *lines)
{
    if (strstr(text, lines) == NULL)
        fail_msg("expected\n%s\nin\n%s", lines, text);
}

static void check_absent(const char *text, const char *words)
{
    if (strstr(text, words) != NULL)
        fail_msg("\"%s\" in\n%s", words, text);
}

static void check_refused(const esper_net *net, esper_status wanted, const char *words)
{
    esper_torch_desc desc = desc_of(net);
    uint64_t live = live_blocks();
    esper_torch torch;
    esper_status status = esper_torch_init(&torch, &desc);

    if (status != wanted || strstr(esper_last_error(), words) == NULL)
        fail_msg("%s: %s; expected %s: ... %s ...", esper_status_name(status), esper_last_error(),
                 esper_status_name(wanted), words);
    assert_int_equal(live_blocks(), live);
}

static const esper_torch_entry *entry_named(const esper_torch *torch, const char *name)
{
    for (int i = 0; i < torch->n_entries; i++)
        if (strcmp(torch->entries[i].name, name) == 0)
            return &torch->entries[i];
    fail_msg("no entry is called %s", name);
    return NULL;
}

/* ---- whole networks ---- */

static void cnn_reads_as_written_by_hand(void **state)
{
    esper_host host = small_cnn();
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    export(&torch, &net);
    check_lines(torch.text, "class Net(nn.Module):\n"
                            "    def __init__(self):\n"
                            "        super().__init__()\n"
                            "        self.blocks = nn.ModuleList([\n"
                            "            Group(\n"
                            "                conv=nn.Conv2d(3, 4, 3, padding=1, bias=False),\n"
                            "                bn=nn.BatchNorm2d(4),\n"
                            "            ),\n"
                            "            Group(\n"
                            "                conv=nn.Conv2d(4, 8, 3, padding=1, bias=False),\n"
                            "                bn=nn.BatchNorm2d(8),\n"
                            "            ),\n"
                            "        ])\n"
                            "        self.classifier = nn.Linear(8, 5)\n"
                            "\n"
                            "    def forward(self, images):\n"
                            "        \"\"\"(N, 3, 8, 8) -> (N, 5)\"\"\"\n"
                            "        # blocks.0\n"
                            "        x = self.blocks[0].conv(images)\n"
                            "        x = self.blocks[0].bn(x)\n"
                            "        x = F.relu(x)\n"
                            "        x = F.max_pool2d(x, 2)\n"
                            "\n"
                            "        # blocks.1\n"
                            "        x = self.blocks[1].conv(x)\n"
                            "        x = self.blocks[1].bn(x)\n"
                            "        x = F.relu(x)\n"
                            "        x = F.max_pool2d(x, 2)\n"
                            "\n"
                            "        x = x.mean(dim=(2, 3))\n"
                            "        x = self.classifier(x)\n"
                            "        return x\n");
    check_absent(torch.text, "causal_attention");
    check_absent(torch.text, "blend");
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

static void transformer_ties_its_head(void **state)
{
    esper_host host = small_transformer(0.1f);
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, NULL), ESPER_OK);
    export(&torch, &net);
    check_lines(torch.text, "        self.tok_emb = nn.Embedding(11, 16)\n"
                            "        self.pos_emb = nn.Embedding(8, 16)\n"
                            "        self.layers = nn.ModuleList([\n"
                            "            Group(\n"
                            "                ln1=nn.LayerNorm(16),\n"
                            "                attn=Group(\n"
                            "                    c_attn=nn.Linear(16, 48),\n"
                            "                    c_proj=nn.Linear(16, 16),\n"
                            "                ),\n"
                            "                ln2=nn.LayerNorm(16),\n");
    check_lines(torch.text, "        x = self.tok_emb(tokens) + self.pos_emb(torch.arange(tokens.shape[1], "
                            "device=tokens.device))\n"
                            "        x = F.dropout(x, 0.1, self.training)\n"
                            "\n"
                            "        # layers.0\n"
                            "        y = self.layers[0].ln1(x)\n"
                            "        y = self.layers[0].attn.c_attn(y)\n"
                            "        y = causal_attention(y, heads=2, drop=0.1, training=self.training)\n"
                            "        y = self.layers[0].attn.c_proj(y)\n"
                            "        y = F.dropout(y, 0.1, self.training)\n"
                            "        x = x + y\n");
    check_lines(torch.text, "        x = self.ln_f(x)\n"
                            "        x = F.linear(x, self.tok_emb.weight)\n"
                            "        return x\n");
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

static void seeds_are_told_apart(void **state)
{
    const small_seed seeds[] = {
        {"r0c0", "attention", SMALL_GATE}, {"r1c0", "conv_light", SMALL_ADD}, {"r0c1", "noop", SMALL_TRAINING}, {0}};
    esper_host host = small_cnn();
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, seeds), ESPER_OK);
    export(&torch, &net);
    check_lines(torch.text, "        # the seed in slot r0c0\n"
                            "        self.r0c0 = Group(\n"
                            "            fc=nn.ModuleDict({\n"
                            "                \"0\": nn.Linear(4, 1, bias=False),\n"
                            "                \"2\": nn.Linear(1, 4),\n"
                            "            }),\n"
                            "            alpha=torch.tensor([0.3]),\n"
                            "            gate=nn.ModuleDict({\n"
                            "                \"0\": nn.Linear(4, 8),\n"
                            "                \"2\": nn.Linear(8, 1),\n"
                            "            }),\n"
                            "        )\n");
    check_lines(torch.text, "\n        # slot r0c0: a seed blended in by alpha and a gate of its own\n"
                            "        y = x.mean(dim=(2, 3))\n"
                            "        y = self.r0c0.fc[\"0\"](y)\n"
                            "        y = F.relu(y)\n"
                            "        y = self.r0c0.fc[\"2\"](y)\n"
                            "        y = torch.sigmoid(y)\n"
                            "        y = x * y[:, :, None, None]\n"
                            "        z = x.mean(dim=(2, 3))\n");
    check_lines(torch.text, "        x = blend(x, y, self.r0c0.alpha.clamp(0, 1) * z.clamp(0, 1))\n"
                            "\n        # blocks.0\n"
                            "        x = F.max_pool2d(x, 2)\n"
                            "\n        # slot r1c0: a seed blended in by alpha\n"
                            "        y = self.r1c0.enhance.conv(x)\n");
    check_lines(torch.text, "        y = y * self.r1c0.scale[:, None, None]\n"
                            "        y = x + y\n"
                            "        x = blend(x, y, self.r1c0.alpha)\n");
    check_lines(torch.text, "\n        # slot r0c1: a seed in training, whose output is not used yet\n"
                            "        y = x.detach()\n"
                            "        x = StraightThrough.apply(x, y)\n");
    assert_true(entry_named(&torch, "r0c0.alpha")->source == ESPER_TORCH_NUMBER);
    assert_true(entry_named(&torch, "r0c0.alpha")->value == 0.3f);
    assert_true(entry_named(&torch, "blocks.0.bn.num_batches_tracked")->source == ESPER_TORCH_BATCHES);
    assert_true(entry_named(&torch, "r1c0.scale")->source == ESPER_TORCH_STATE);
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

/* ---- operations ---- */

/* Whoever adds an operation comes by here: it needs a network in tests/support/op_nets.c and a line of PyTorch. */
static void every_operation_has_a_line(void **state)
{
    (void)state;
    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        esper_torch_desc desc;
        esper_torch torch;
        esper_net net;

        if (!op_net_build(&net, (esper_op_kind)kind))
            continue;
        desc = desc_of(&net);
        if (esper_torch_init(&torch, &desc) != ESPER_OK)
            fail_msg("%s cannot be exported: %s", esper_op_info_of((esper_op_kind)kind)->name, esper_last_error());
        check_lines(torch.text, kind == ESPER_OP_SOFTMAX_XENT ? "    def loss(self, logits, targets):\n"
                                                              : "    def forward(self, ");
        check_absent(torch.text, " = \n"); /* a line with nothing on its right */
        esper_torch_fini(&torch);
        esper_net_fini(&net);
    }
}

static void unknown_operations_are_named(void **state)
{
    esper_net net;

    (void)state;
    assert_true(op_net_build(&net, ESPER_OP_RELU));
    net.ops[0].kind = ESPER_OP_SGD;
    check_refused(&net, ESPER_E_UNSUPPORTED, "operation sgd");
    net.ops[0].kind = ESPER_OP_PACK;
    check_refused(&net, ESPER_E_UNSUPPORTED, "operation pack");
    esper_net_fini(&net);
}

static void settings_that_differ_are_written(void **state)
{
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_true(op_net_build(&net, ESPER_OP_BATCH_NORM));
    export(&torch, &net);
    check_lines(torch.text, "        self.bn = Group(\n"
                            "            scale=nn.Parameter(torch.zeros(4)),\n"
                            "            shift=nn.Parameter(torch.zeros(4)),\n"
                            "            mean=torch.zeros(4),\n"
                            "        )\n"
                            "        self.register_buffer(\"var\", torch.zeros(4))\n");
    check_lines(torch.text, "        x = F.batch_norm(images, self.bn.mean, self.var, self.bn.scale, self.bn.shift, "
                            "self.training, 0.2, 0.001)\n");
    assert_int_equal(torch.n_entries, 4);
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

/* Two operations on one weight: one layer, called twice, but only with the same settings. */
static void shared_weights_stay_shared(void **state)
{
    esper_torch torch;
    esper_net net;
    int x, weight;

    (void)state;
    esper_net_init(&net);
    x = net.input = esper_net_input(&net, "pixels", ESPER_F32, 3, (int[]){2, 6, 6});
    weight = esper_net_param(&net, "c.weight", 4, (int[]){2, 2, 3, 3}, (esper_init){0});
    x = esper_net_conv2d(&net, x, weight, 1, 1);
    x = esper_net_conv2d(&net, x, weight, 1, 1);
    net.output = esper_net_conv2d(&net, x, weight, 0, 1);
    assert_int_equal(esper_net_status(&net), ESPER_OK);
    export(&torch, &net);
    check_lines(torch.text, "        x = self.c(images)\n"
                            "        x = self.c(x)\n"
                            "        x = F.conv2d(x, self.c.weight, padding=0, groups=1)\n");
    assert_int_equal(torch.n_entries, 1);
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

/* What the output does not need is not computed, but its parameters are there: the file is loaded whole. */
static void what_is_not_needed_is_left_out(void **state)
{
    esper_torch torch;
    esper_net net;
    int x;

    (void)state;
    esper_net_init(&net);
    x = net.input = esper_net_input(&net, "rows", ESPER_F32, 2, (int[]){3, 2});
    esper_net_linear(&net, x, esper_net_param(&net, "aside.weight", 2, (int[]){4, 2}, (esper_init){0}),
                     ESPER_NO_TENSOR);
    net.output = esper_net_tanh(&net, x);
    export(&torch, &net);
    check_lines(torch.text, "        self.aside = Group(\n            weight=nn.Parameter(torch.zeros(4, 2)),\n");
    check_lines(torch.text, "-> (N, 3, 2)\"\"\"\n        x = torch.tanh(images)\n        return x\n");
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

/* ---- names ---- */

static int scaled(esper_net *net, const char *name, int x)
{
    int two = 2;

    return esper_net_channel_scale(net, x, esper_net_param(net, name, 1, &two, (esper_init){0}));
}

static void names_fit_python(void **state)
{
    static const struct {
        const char *ours, *python;
    } names[] = {
        {"plain", "plain"},         {"class", "class_"},       {"a.train.b", "a.train_.b"}, {"7", "_7"},
        {"many.0.s", "many.0.s"},   {"many.1.s", "many.1.s"},  {"some.3.s", "some.3.s"},    {"mixed.0.s", "mixed._0.s"},
        {"mixed.s", "mixed.s"},     {"with-sign", "with_sign"}, {"3x.s", "_3x.s"},          {"\xc3\xa9.s", "__.s"},
        {"a..b", "a._.b"},
    };
    esper_torch torch;
    esper_net net;
    int x;

    (void)state;
    esper_net_init(&net);
    x = net.input = esper_net_input(&net, "pixels", ESPER_F32, 3, (int[]){2, 3, 3});
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        x = scaled(&net, names[i].ours, x);
    net.output = x;
    assert_int_equal(esper_net_status(&net), ESPER_OK);
    export(&torch, &net);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_string_equal(net.tensors[entry_named(&torch, names[i].python)->tensor].name, names[i].ours);
    check_lines(torch.text, "self.many[1].s[:, None, None]");
    check_lines(torch.text, "self.some[\"3\"].s[:, None, None]");
    check_lines(torch.text, "self.mixed._0.s[:, None, None]");
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

static void names_that_clash_are_refused(void **state)
{
    static const char *const pairs[][2] = {{"a", "a.b"}, {"a.b", "a"}, {"a-b", "a_b"}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_net net;

        esper_net_init(&net);
        net.input = esper_net_input(&net, "pixels", ESPER_F32, 3, (int[]){2, 3, 3});
        net.output = scaled(&net, pairs[i][1], scaled(&net, pairs[i][0], net.input));
        check_refused(&net, ESPER_E_ARG, pairs[i][1]);
        esper_net_fini(&net);
    }
}

static void inputs_need_a_value(void **state)
{
    esper_torch_desc desc;
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_true(op_net_build(&net, ESPER_OP_BLEND_ADD));
    desc = desc_of(&net);
    desc.n_numbers = 0;
    assert_int_equal(esper_torch_init(&torch, &desc), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "alpha"));
    esper_net_fini(&net);
    esper_net_init(&net);
    check_refused(&net, ESPER_E_ARG, "without input or output");
}

/* Text from outside cannot end the docstring. */
static void about_stays_a_comment(void **state)
{
    esper_torch_desc desc;
    esper_torch torch;
    esper_net net;

    (void)state;
    assert_true(op_net_build(&net, ESPER_OP_RELU));
    desc = desc_of(&net);
    desc.about = "a\"\"\"b\\c\nd\x01\xff";
    assert_int_equal(esper_torch_init(&torch, &desc), ESPER_OK);
    assert_memory_equal(torch.text, "\"\"\"a'''b/c\nd??\n", 15);
    esper_torch_fini(&torch);
    esper_net_fini(&net);
}

/* ---- memory ---- */

static void running_out_of_memory_is_survived(void **state)
{
    const small_seed seeds[] = {{"r0c0", "attention", SMALL_GATE}, {0}};
    esper_host host = small_cnn();
    uint64_t nth = 1, live;
    esper_torch_desc desc;
    esper_torch torch;
    esper_status status;
    esper_net net;

    (void)state;
    assert_int_equal(small_build(&net, &host, seeds), ESPER_OK);
    desc = desc_of(&net);
    live = live_blocks();
    do {
        esper_mem_fail_at(nth++);
        status = esper_torch_init(&torch, &desc);
        esper_mem_fail_at(0);
        if (status == ESPER_OK)
            esper_torch_fini(&torch);
        if (live_blocks() != live)
            fail_msg("allocation %llu: %llu blocks live, expected %llu", (unsigned long long)nth - 1,
                     (unsigned long long)live_blocks(), (unsigned long long)live);
        if (status != ESPER_OK)
            assert_int_equal(status, ESPER_E_NOMEM);
    } while (status != ESPER_OK);
    assert_true(nth > 10);
    esper_net_fini(&net);
    assert_int_equal(live_blocks(), 0);
}

static void pages_grow(void **state)
{
    esper_page page = {0};

    (void)state;
    for (int i = 0; i < 5000; i++)
        esper_page_print(&page, "%d,", i % 10);
    assert_int_equal(page.status, ESPER_OK);
    assert_int_equal(page.used, 10000);
    assert_int_equal(strlen(page.text), 10000);
    assert_string_equal(page.text + 9996, "8,9,");
    esper_page_fini(&page);
    assert_null(page.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_reads_as_written_by_hand),
        cmocka_unit_test(transformer_ties_its_head),
        cmocka_unit_test(seeds_are_told_apart),
        cmocka_unit_test(every_operation_has_a_line),
        cmocka_unit_test(unknown_operations_are_named),
        cmocka_unit_test(settings_that_differ_are_written),
        cmocka_unit_test(shared_weights_stay_shared),
        cmocka_unit_test(what_is_not_needed_is_left_out),
        cmocka_unit_test(names_fit_python),
        cmocka_unit_test(names_that_clash_are_refused),
        cmocka_unit_test(inputs_need_a_value),
        cmocka_unit_test(about_stays_a_comment),
        cmocka_unit_test(running_out_of_memory_is_survived),
        cmocka_unit_test(pages_grow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
