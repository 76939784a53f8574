/* The drawing of the network: what it is made from, at any epoch, and how it is drawn on pages and in terminals. */
#include <jansson.h>
#include <math.h>

#include "base/file.h"
#include "nn/host.h"
#include "telemetry/helpers.h"
#include "ui/drawing.h"

static esper_drawing drawing; /* large */

static esper_net net;

static void build_cnn(int blocks)
{
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN,
                       .cnn = {.in_channels = 3,
                               .height = 32,
                               .width = 32,
                               .classes = 10,
                               .blocks = blocks,
                               .channels = 4,
                               .kernel = 3,
                               .pools = 2}};

    esper_net_init(&net);
    check_good(esper_host_build(&host, &net));
}

/* ------------------------------------------------------------------------------------------------ parts of hosts */

static int64_t sum_of_blocks(const esper_drawing *of)
{
    int64_t sum = 0;

    for (int i = 0; i < of->n; i++)
        sum += of->part[i].is_slot ? 0 : of->part[i].params;
    return sum;
}

static void a_host_of_images_has_its_parts(void **state)
{
    static const char *const names[] = {"blocks.0", "r0c0", "max_pool", "r1c0", "blocks.1",  "r0c1",
                                        "max_pool", "r1c1", "blocks.2", "r0c2", "classifier"};

    (void)state;
    build_cnn(3);
    esper_drawing_of_host(&net, &drawing);
    assert_int_equal(drawing.n, 11);
    for (int i = 0; i < drawing.n; i++)
        assert_string_equal(drawing.part[i].name, names[i]);
    assert_int_equal(drawing.part[0].params, 3 * 4 * 9 + 2 * 4);
    assert_string_equal(drawing.part[2].shape, "4x16x16");
    assert_string_equal(drawing.part[10].shape, "10");
    assert_int_equal(sum_of_blocks(&drawing), esper_net_count_params(&net, 0));
    assert_int_equal(drawing.params_host, sum_of_blocks(&drawing));
    esper_net_fini(&net);
}

/* Of slots at one place those are drawn behind which another can open, and no more. */
static void closed_slots_are_left_out(void **state)
{
    static const int stages[] = {ESPER_STAGE_DORMANT, ESPER_STAGE_HOLDING, ESPER_STAGE_FOSSILIZED};
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN,
                       .text = "conv 4 | pool | conv 4 | mean | linear",
                       .stack = 2,
                       .cnn = {.in_channels = 1, .height = 8, .width = 8, .classes = 2}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_net_init(&net);
        check_good(esper_host_build(&host, &net));
        esper_drawing_of_host(&net, &drawing);
        assert_int_equal(drawing.n, 4 + 9);
        esper_drawing_set(&drawing, "r1c0", stages[i], 1.0, "norm", 9);
        esper_drawing_drop_closed(&drawing);
        assert_int_equal(drawing.n, 4 + 3 + (stages[i] == ESPER_STAGE_FOSSILIZED));
        assert_string_equal(drawing.part[3].name, "r1c0");
        assert_string_equal(drawing.part[4].name, stages[i] == ESPER_STAGE_FOSSILIZED ? "r1c0_2" : "blocks.1");
        esper_net_fini(&net);
    }
}

/* A slot of new channels stands inside the block that takes them, which is drawn as one. */
static void new_channels_have_a_place(void **state)
{
    static const char *const names[] = {"blocks.0", "r0c0", "blocks.1", "wide0", "r0c1", "classifier", "wide1"};
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN,
                       .text = "conv 4 | conv 4 | mean | linear",
                       .stack = 1,
                       .widen = true,
                       .cnn = {.in_channels = 1, .height = 8, .width = 8, .classes = 2}};

    (void)state;
    esper_net_init(&net);
    check_good(esper_host_build(&host, &net));
    esper_drawing_of_host(&net, &drawing);
    esper_drawing_drop_closed(&drawing);
    assert_int_equal(drawing.n, 7);
    for (int i = 0; i < drawing.n; i++)
        assert_string_equal(drawing.part[i].name, names[i]);
    assert_int_equal(drawing.part[2].params, 4 * 4 * 9 + 2 * 4);
    esper_net_fini(&net);
}

/* The head is the embedding: it is counted once. */
static void a_host_of_text_has_its_parts(void **state)
{
    esper_host host = {
        .topology = ESPER_TOPOLOGY_TRANSFORMER,
        .transformer =
            {.vocab = 65, .width = 16, .heads = 2, .layers = 4, .context = 8, .segments = 2, .embed_std = 0.02f},
        .with_loss = true};

    (void)state;
    esper_net_init(&net);
    check_good(esper_host_build(&host, &net));
    esper_drawing_of_host(&net, &drawing);
    assert_int_equal(sum_of_blocks(&drawing), esper_net_count_params(&net, 0));
    assert_string_equal(drawing.part[0].name, "tok_emb");
    assert_string_equal(drawing.part[1].name, "layers.0");
    assert_string_equal(drawing.part[3].name, "r0c0");
    assert_true(drawing.part[3].is_slot);
    assert_string_equal(drawing.part[drawing.n - 1].name, "ln_f");
    esper_net_fini(&net);
}

/* Sixteen blocks are drawn one by one; a hundred layers are not. */
static void a_deep_host_is_drawn_from_slot_to_slot(void **state)
{
    esper_host host = {
        .topology = ESPER_TOPOLOGY_TRANSFORMER,
        .transformer = {
            .vocab = 9, .width = 4, .heads = 1, .layers = 100, .context = 4, .segments = 4, .embed_std = 0.02f}};

    (void)state;
    esper_net_init(&net);
    check_good(esper_host_build(&host, &net));
    esper_drawing_of_host(&net, &drawing);
    assert_int_equal(drawing.n, 4 + 5);
    assert_int_equal(sum_of_blocks(&drawing), esper_net_count_params(&net, 0));
    esper_net_fini(&net);
}

/* ------------------------------------------------------------------------------------------------ from a store */

static void push_part(esper_store *store, int number, const char *what, const char *name, int64_t params)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_PART, 0, 0);

    row.part.number = number;
    ESPER_STORE_SET(row.part.what, what);
    ESPER_STORE_SET(row.part.name, name);
    ESPER_STORE_SET(row.part.shape, "4x8x8");
    row.part.params = params;
    esper_store_push(store, &row);
}

static void push_germination(esper_store *store, int64_t epoch, int64_t seed, const char *slot, const char *blueprint)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_GERMINATION, epoch, epoch * 10);

    row.germination.seed = seed;
    row.germination.params = 500 * seed;
    ESPER_STORE_SET(row.germination.slot, slot);
    ESPER_STORE_SET(row.germination.blueprint, blueprint);
    esper_store_push(store, &row);
}

static void push_stage(esper_store *store, int64_t epoch, int64_t seed, const char *slot, const char *to, double alpha)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_STAGE, epoch, epoch * 10);

    row.stage.seed = seed;
    row.stage.alpha = alpha;
    ESPER_STORE_SET(row.stage.slot, slot);
    ESPER_STORE_SET(row.stage.to_stage, to);
    esper_store_push(store, &row);
}

static void push_seed_epoch(esper_store *store, int64_t epoch, int64_t seed, const char *slot, const char *stage,
                            double alpha)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_SEED_EPOCH, epoch, epoch * 10);

    row.seed_epoch.seed = seed;
    row.seed_epoch.alpha = alpha;
    row.seed_epoch.params = 500 * seed;
    ESPER_STORE_SET(row.seed_epoch.slot, slot);
    ESPER_STORE_SET(row.seed_epoch.stage, stage);
    esper_store_push(store, &row);
}

static void push_epoch(esper_store *store, int64_t epoch)
{
    esper_store_record row = esper_store_record_of(ESPER_STORE_EPOCH, epoch, epoch * 10);

    esper_store_push(store, &row);
}

#define HOSTILE "</svg><script>x&'\""

/* Epoch 2: a seed comes, is blended in by 5 and kept at 6; at 7 another comes, and a rollback to 6 undoes it. */
static void make_store(const char *path, bool with_parts)
{
    esper_store *store = open_store(path, NULL);
    esper_store_run run = esper_store_run_of("drawn");
    esper_store_record back = esper_store_record_of(ESPER_STORE_ROLLBACK, 6, 60);
    int64_t id;

    run.params_host = 1000;
    check_good(esper_store_begin(store, &run, NULL, &id));
    if (with_parts) {
        push_part(store, 0, "block", "blocks.0", 900);
        push_part(store, 1, "slot", "r0c0", ESPER_STORE_NO_INT);
        push_part(store, 2, "block", HOSTILE, 100);
        push_part(store, 3, "slot", "r0c1", ESPER_STORE_NO_INT);
    }
    push_epoch(store, 1);
    push_epoch(store, 2);
    push_germination(store, 2, 1, "r0c1", "conv_light");
    push_stage(store, 2, 1, "r0c1", "germinated", 0.0);
    push_seed_epoch(store, 2, 1, "r0c1", "germinated", 0.0);
    push_epoch(store, 4);
    push_stage(store, 4, 1, "r0c1", "blending", 0.0);
    push_seed_epoch(store, 4, 1, "r0c1", "blending", 0.5);
    push_epoch(store, 6);
    push_seed_epoch(store, 6, 1, "r0c1", "holding", 1.0);
    push_stage(store, 6, 1, "r0c1", "fossilized", 1.0);
    push_germination(store, 7, 2, "r0c0", "norm");
    push_stage(store, 7, 2, "r0c0", "germinated", 0.0);
    back.rollback.to_step = 60;
    back.rollback.from_step = 70;
    esper_store_push(store, &back);
    check_good(esper_store_flush(store));
    esper_store_close(store);
}

static void read_at(const char *path, int64_t epoch)
{
    esper_store_reader *reader;

    check_good(esper_store_reader_open(path, &reader));
    check_good(esper_drawing_read(reader, 1, epoch, &drawing));
    check_fails(esper_drawing_read(reader, 9, epoch, &(esper_drawing){.n = 0}), ESPER_E_NOTFOUND, "no run 9");
    esper_store_reader_close(reader);
}

static void the_network_at_any_epoch(void **state)
{
    const esper_drawing_part *empty = &drawing.part[1], *taken = &drawing.part[3];

    (void)state;
    remove_store("drawn.sqlite");
    make_store("drawn.sqlite", true);
    read_at("drawn.sqlite", 0);
    assert_int_equal(drawing.n, 4);
    assert_false(drawing.guessed);
    assert_int_equal(drawing.params_host, 1000);
    assert_int_equal(drawing.params_seeds, 0);
    assert_int_equal(taken->stage, ESPER_STAGE_DORMANT);
    read_at("drawn.sqlite", 5);
    assert_int_equal(drawing.epoch, 5);
    assert_int_equal(taken->stage, ESPER_STAGE_BLENDING);
    assert_true(taken->alpha == 0.5);
    assert_string_equal(taken->blueprint, "conv_light");
    assert_int_equal(drawing.params_seeds, 500);
    read_at("drawn.sqlite", ESPER_DRAWING_LAST);
    assert_int_equal(drawing.epoch, 6); /* 7 was undone */
    assert_int_equal(taken->stage, ESPER_STAGE_FOSSILIZED);
    assert_int_equal(empty->stage, ESPER_STAGE_DORMANT);
    assert_int_equal(drawing.params_largest, 900);
}

/* Neither one that was written before there were parts, nor one of the first release. */
static void an_old_store_has_a_drawing(void **state)
{
    char *sql;
    size_t bytes;

    (void)state;
    remove_store("partless.sqlite");
    make_store("partless.sqlite", false);
    read_at("partless.sqlite", ESPER_DRAWING_LAST);
    assert_true(drawing.guessed);
    assert_int_equal(drawing.n, 2);
    assert_string_equal(drawing.part[0].name, "host");
    assert_int_equal(drawing.part[0].params, 1000);
    assert_string_equal(drawing.part[1].name, "r0c1");
    if (esper_file_read(ESPER_SOURCE_DIR "/tests/telemetry/store_v3.sql", 1 << 20, &sql, &bytes) != ESPER_OK)
        skip();
    remove_store("first.sqlite");
    change("first.sqlite", sql);
    esper_mem_free(sql);
    read_at("first.sqlite", ESPER_DRAWING_LAST);
    assert_true(drawing.guessed);
    assert_int_equal(drawing.n, 2);
    assert_true(esper_drawing_has_seed(&drawing.part[1]));
}

/* ------------------------------------------------------------------------------------------------ drawn */

static int count(const char *text, const char *what)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

static void the_svg_has_every_part(void **state)
{
    esper_page page = {0};

    (void)state;
    read_at("drawn.sqlite", 5);
    esper_drawing_svg(&page, &drawing, "net", "a <title>");
    check_good(page.status);
    assert_int_equal(count(page.text, "class=\"block\""), 2);
    assert_int_equal(count(page.text, "class=\"vacant\""), 1);
    assert_int_equal(count(page.text, "class=\"shell e-blending\""), 1);
    assert_int_equal(count(page.text, "class=\"s-blending\""), 1);
    assert_int_equal(count(page.text, "blending 0.50, 500"), 1);
    assert_int_equal(count(page.text, "<script"), 0);
    assert_int_equal(count(page.text, "a &lt;title&gt;"), 1);
    assert_int_equal(count(page.text, "</svg>"), 1);
    esper_page_fini(&page);
}

static void the_json_has_every_part(void **state)
{
    esper_page page = {0};
    json_t *root, *parts;

    (void)state;
    read_at("drawn.sqlite", 5);
    esper_drawing_json(&page, &drawing);
    check_good(page.status);
    root = json_loads(page.text, 0, NULL);
    assert_non_null(root);
    parts = json_object_get(root, "parts");
    assert_int_equal(json_array_size(parts), 4);
    assert_string_equal(json_string_value(json_object_get(json_array_get(parts, 2), "name")), HOSTILE);
    assert_string_equal(json_string_value(json_object_get(json_array_get(parts, 3), "stage")), "blending");
    assert_true(json_real_value(json_object_get(json_array_get(parts, 3), "alpha")) == 0.5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(parts, 1), "stage")), "dormant");
    assert_null(json_object_get(json_array_get(parts, 1), "params"));
    json_decref(root);
    esper_page_fini(&page);
}

static void lines_fit_every_terminal(void **state)
{
    esper_line stream, names;

    (void)state;
    for (int blocks = 2; blocks <= 12; blocks++) {
        build_cnn(blocks);
        esper_drawing_of_host(&net, &drawing);
        esper_drawing_set(&drawing, "r0c0", ESPER_STAGE_BLENDING, 0.5, "norm", 40);
        esper_drawing_set(&drawing, "nowhere", ESPER_STAGE_BLENDING, 0.5, "norm", 40);
        for (int room = 8; room <= 200; room++)
            for (int utf8 = 0; utf8 < 2; utf8++) {
                esper_line_init(&stream, room, false);
                esper_line_init(&names, room, false);
                esper_line_put(&stream, "  ");
                esper_drawing_lines(&drawing, utf8, &stream, &names);
                assert_true(stream.columns <= room && names.columns <= room && !stream.full && !names.full);
                for (const char *s = stream.text; utf8 == 0 && *s != '\0'; s++)
                    assert_true((unsigned char)*s < 0x80);
            }
        assert_non_null(strstr(names.text, "r0c0 B"));
        esper_net_fini(&net);
    }
    build_cnn(3);
    esper_drawing_of_host(&net, &drawing);
    esper_drawing_set(&drawing, "r1c0", ESPER_STAGE_HOLDING, 1.0, "norm", 400);
    esper_line_init(&stream, 79, false);
    esper_line_init(&names, 79, false);
    esper_drawing_lines(&drawing, false, &stream, &names);
    assert_int_equal(count(stream.text, "o"), 4);
    assert_int_equal(count(stream.text, "["), 1);
    assert_non_null(strstr(names.text, "r1c0 H"));
    esper_net_fini(&net);
}

static void numbers_that_are_none_are_drawn(void **state)
{
    esper_page page = {0};
    esper_line stream, names;

    (void)state;
    build_cnn(2);
    esper_drawing_of_host(&net, &drawing);
    esper_drawing_set(&drawing, "r0c0", ESPER_STAGE_BLENDING, (double)NAN, "norm", INT64_MIN);
    esper_drawing_set(&drawing, "r0c1", ESPER_STAGE_BLENDING, 1e300, "norm", INT64_MAX);
    esper_drawing_svg(&page, &drawing, "net", "none");
    check_good(page.status);
    assert_null(strstr(page.text, "width=\"nan"));
    esper_line_init(&stream, 79, true);
    esper_line_init(&names, 79, true);
    esper_drawing_lines(&drawing, true, &stream, &names);
    assert_false(stream.full);
    esper_page_fini(&page);
    esper_net_fini(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_of_images_has_its_parts),
        cmocka_unit_test(closed_slots_are_left_out),
        cmocka_unit_test(new_channels_have_a_place),
        cmocka_unit_test(a_host_of_text_has_its_parts),
        cmocka_unit_test(a_deep_host_is_drawn_from_slot_to_slot),
        cmocka_unit_test(the_network_at_any_epoch),
        cmocka_unit_test(an_old_store_has_a_drawing),
        cmocka_unit_test(the_svg_has_every_part),
        cmocka_unit_test(the_json_has_every_part),
        cmocka_unit_test(lines_fit_every_terminal),
        cmocka_unit_test(numbers_that_are_none_are_drawn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
