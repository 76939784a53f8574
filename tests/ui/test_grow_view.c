/* The live view of growing: what a person sees, on a screen that is played here, on a pseudo-terminal, and in a log. */
#include <math.h>

#include "slot/slots.h"
#include "engine/helpers.h"
#include "ui/grow_view.h"
#include "ui/grow_words.h"
#include "ui/helpers.h"
#include "ui/terminal.h"

#define NONE ((double)NAN)

/* ------------------------------------------------------------------------------------------------ a run to be shown */

static esper_slot a_slot(const char *id, int stage, const char *blueprint, double alpha)
{
    esper_slot slot = {
        .stage = stage, .channels = 8, .epochs_in_stage = 3, .seed_params = 8512, .embargo_ticks = ESPER_EMBARGO_TICKS};

    snprintf(slot.id, sizeof(slot.id), "%s", id);
    snprintf(slot.blueprint, sizeof(slot.blueprint), "%s", blueprint);
    slot.alpha.value = alpha;
    return slot;
}

static esper_growth_slot nothing_known(const esper_slot *slot)
{
    return (esper_growth_slot){.slot = slot,
                               .gate.gate = -1,
                               .dependence = NONE,
                               .dependence_low = NONE,
                               .dependence_high = NONE,
                               .would_add = NONE,
                               .gradient_ratio = NONE};
}

/* A gate that fails for two reasons. */
static esper_gate_result a_failed_gate(void)
{
    esper_gate_input input = {.stage = ESPER_STAGE_TRAINING,
                              .epochs_in_stage = 12,
                              .improvement = {.value = 0.21, .how = ESPER_MERIT_TRIAL},
                              .has_gradient_ratio = true,
                              .gradient_ratio = 0.05};
    esper_gate_result result;

    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    return result;
}

static esper_gate_result a_passed_gate(void)
{
    esper_gate_input input = {.stage = ESPER_STAGE_TRAINING,
                              .epochs_in_stage = 12,
                              .improvement = {.value = 0.81, .how = ESPER_MERIT_TRIAL},
                              .has_gradient_ratio = true,
                              .gradient_ratio = 0.32};
    esper_gate_result result;

    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    return result;
}

typedef struct scene {
    esper_slot        slots[4];
    esper_growth_slot seeds[4];
    esper_growth_view growth;
} scene;

static void set_scene(scene *self)
{
    self->slots[0] = a_slot("r0c0", ESPER_STAGE_DORMANT, "", 0.0);
    self->slots[1] = a_slot("r0c1", ESPER_STAGE_TRAINING, "conv_light", 0.0);
    self->slots[2] = a_slot("r1c0", ESPER_STAGE_HOLDING, "attention", 1.0);
    self->slots[3] = a_slot("r1c1", ESPER_STAGE_BLENDING, "conv_small", 0.43);
    for (int i = 0; i < 4; i++)
        self->seeds[i] = nothing_known(&self->slots[i]);
    self->seeds[1].would_add = 0.21;
    self->seeds[1].gate = a_failed_gate();
    self->seeds[2].dependence = 1.83;
    self->seeds[2].dependence_low = 1.24;
    self->seeds[2].dependence_high = 2.42;
    self->seeds[3].dependence = -0.4;
    self->seeds[3].gate = a_passed_gate();
    self->growth = (esper_growth_view){
        .epoch = 14,
        .max_epochs = 40,
        .share = 0.331,
        .part = 0.4,
        .loss_train = 0.4321,
        .acc_train = 83.5,
        .loss_valid = 0.45,
        .acc_valid = 84.31,
        .acc_best = 84.9,
        .params_total = 37881,
        .params_host = 12345,
        .slots = self->seeds,
        .n_slots = 4,
        .decision =
            {.op = "advance", .slot = "r0c1", .reason = "12 epochs of training", .refused = true, .refusal = "G2"},
        .n_rollbacks = 1,
        .n_skips = 2,
        .lr = 0.05,
        .samples_per_s = 12345.6,
        .seconds = 4.2,
        .seconds_left = 133.0,
    };
}

/* ------------------------------------------------------------------------------------------------ a screen */

enum { ROWS = 100, COLUMNS = 256 };

/* Of a terminal, as far as views use one. */
typedef struct screen {
    char cells[ROWS][COLUMNS + 1]; /* text without what is blank at its end */
    int  row, column, width, n_wrapped, n_colours;
} screen;

static void screen_init(screen *self, int width)
{
    memset(self, 0, sizeof(*self));
    self->width = width;
}

static void screen_put(screen *self, char c)
{
    char *line = self->cells[self->row];
    int n = (int)strlen(line);

    if (self->column == self->width) {
        self->n_wrapped++;
        self->row++;
        self->column = 0;
        line = self->cells[self->row];
        n = (int)strlen(line);
    }
    assert_in_range(self->row, 0, ROWS - 1);
    for (; n < self->column; n++)
        line[n] = ' ';
    line[self->column++] = c;
    if (self->column > n)
        line[self->column] = '\0';
}

/* One sequence behind ESC [; returns what follows it. */
static const char *screen_obey(screen *self, const char *at)
{
    int number = 0;

    for (; *at >= '0' && *at <= '9'; at++)
        number = 10 * number + *at - '0';
    switch (*at) {
    case 'A':
        self->row -= number;
        if (self->row < 0)
            fail_msg("moved %d lines above the screen", -self->row);
        break;
    case 'K':
        self->cells[self->row][self->column] = '\0';
        break;
    case 'J':
        self->cells[self->row][self->column] = '\0';
        for (int i = self->row + 1; i < ROWS; i++)
            self->cells[i][0] = '\0';
        break;
    case 'm':
        self->n_colours++;
        break;
    default:
        fail_msg("a sequence that this screen does not know: %c", *at);
    }
    return at + 1;
}

static void screen_take(screen *self, const char *text)
{
    while (*text != '\0') {
        if (text[0] == '\033' && text[1] == '[') {
            text = screen_obey(self, text + 2);
            continue;
        }
        if (*text == '\r') {
            self->column = 0;
        } else if (*text == '\n') {
            self->row++;
            self->column = 0;
        } else if ((unsigned char)*text < ' ') {
            fail_msg("a control character: %d", *text);
        } else {
            screen_put(self, *text);
        }
        text++;
    }
}

/* As terminals do: lines that are too long now go on in the next. */
static void screen_resize(screen *self, int width)
{
    screen old = *self;
    int row = 0;

    memset(self->cells, 0, sizeof(self->cells));
    for (int i = 0; i <= old.row; i++) {
        int n = (int)strlen(old.cells[i]), at = 0;

        do {
            snprintf(self->cells[row++], COLUMNS, "%.*s", width, old.cells[i] + at);
            at += width;
        } while (at < n);
    }
    self->row = row - 1;
    self->column = (int)strlen(self->cells[self->row]);
    self->width = width;
}

/* All lines, each ended; blanks at their ends do not count. */
static void screen_text(const screen *self, char *text, size_t size)
{
    size_t used = 0;
    int last = ROWS - 1;

    text[0] = '\0';
    while (last >= 0 && self->cells[last][0] == '\0')
        last--;
    for (int i = 0; i <= last; i++) {
        int n = (int)strlen(self->cells[i]);

        while (n > 0 && self->cells[i][n - 1] == ' ')
            n--;
        used += (size_t)snprintf(text + used, size - used, "%.*s\n", n, self->cells[i]);
    }
}

static void check_screen(const screen *self, const char *wanted)
{
    char text[16384];

    screen_text(self, text, sizeof(text));
    if (strcmp(text, wanted) != 0)
        fail_msg("the screen shows:\n%s\nexpected:\n%s", text, wanted);
}

/* ------------------------------------------------------------------------------------------------ the block */

static const char wide_block[] =
    "   14/40  [=========>              ]  40 %  valid 84.31 %  best 84.90 %  37,881 params (host 12,345)\n"
    "  spent 33 %  2:13 left  loss 0.4321  accuracy 83.50 %  valid loss 0.4500  12,345/s  lr 0.05  1 rollback  2 skips\n"
    "  slot  blueprint     stage       alpha           ep     params dependence        last gate\n"
    "  r0c0  -             empty\n"
    "  r0c1  conv_light    training    [      ] 0.00    3      8,512 would add +0.21   G2 failed: improvement 0.21 < 0.5\n"
    "  r1c0  attention     holding     [======] 1.00    3      8,512 +1.8 [1.2, 2.4]   -\n"
    "  r1c1  conv_small    blending    [===   ] 0.43    3      8,512 -0.4              G2 passed\n"
    "  advance r0c1: 12 epochs of training (refused: G2)\n";

static void block_on_a_terminal(void **state)
{
    terminal tty;
    screen seen;
    scene run;
    esper_grow_view view;

    (void)state;
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    set_scene(&run);
    terminal_open(&tty, 50, 140);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    assert_true(view.live.bar && view.colour && !view.live.plain);
    screen_init(&seen, 140);
    for (int i = 0; i < 3; i++) { /* over itself */
        esper_grow_view_epoch(&view, &run.growth);
        screen_take(&seen, terminal_read(&tty));
        check_screen(&seen, wide_block);
    }
    assert_int_equal(seen.n_wrapped, 0);
    assert_true(seen.n_colours > 0);
    esper_grow_view_clear(&view);
    screen_take(&seen, terminal_read(&tty));
    check_screen(&seen, "");
    terminal_close(&tty);
}

static void colours_can_be_refused(void **state)
{
    terminal tty;
    scene run;
    esper_grow_view view;

    (void)state;
    set_scene(&run);
    terminal_open(&tty, 50, 140);
    for (int i = 0; i < 3; i++) {
        screen seen;

        setenv("NO_COLOR", i == 0 ? "1" : "", 1);
        setenv("TERM", i == 1 ? "dumb" : "xterm", 1);
        esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_BAR, tty.stream);
        esper_grow_view_epoch(&view, &run.growth);
        screen_init(&seen, 140);
        screen_take(&seen, terminal_read(&tty));
        check_screen(&seen, wide_block);
        if ((seen.n_colours > 0) != (i == 2))
            fail_msg("NO_COLOR '%s', TERM %s: %d colours", getenv("NO_COLOR"), getenv("TERM"), seen.n_colours);
    }
    unsetenv("NO_COLOR");
    terminal_close(&tty);
}

static void narrow_terminals_cut(void **state)
{
    static const char wanted[] = "   14/40  [====>     ]  40 %  84.31 %  best 84.90 %\n"
                                 "  spent 33 %  2:13 left  loss 0.4321  accuracy 83.50 %\n"
                                 "  slot  blueprint     stage      alpha   ep     params\n"
                                 "  r0c0  -             empty\n"
                                 "  r0c1  conv_light    training   0.00     3      8,512\n"
                                 "  r1c0  attention     holding    1.00     3      8,512 +1.8\n"
                                 "  r1c1  conv_small    blending   0.43     3      8,512 -0.4\n"
                                 "  advance r0c1: 12 epochs of training (refused: G2)\n";
    static const char usual[] = "   14/40  [====>     ]  40 %  84.31 %  best 84.90 %  37,881 params\n"
                                "  spent 33 %  2:13 left  loss 0.4321  accuracy 83.50 %  valid loss 0.4500\n"
                                "  slot  blueprint     stage      alpha   ep     params dependence\n"
                                "  r0c0  -             empty\n"
                                "  r0c1  conv_light    training   0.00     3      8,512 would add +0.21\n"
                                "  r1c0  attention     holding    1.00     3      8,512 +1.8 [1.2, 2.4]\n"
                                "  r1c1  conv_small    blending   0.43     3      8,512 -0.4\n"
                                "  advance r0c1: 12 epochs of training (refused: G2)\n";
    terminal tty;
    scene run;
    esper_grow_view view;

    (void)state;
    set_scene(&run);
    terminal_open(&tty, 50, 61);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_BAR, tty.stream);
    for (int width = 140; width >= 1; width--) { /* never wrapped, however narrow */
        screen seen;

        set_size(&tty, 50, width);
        view.n_lines = 0;
        esper_grow_view_epoch(&view, &run.growth);
        screen_init(&seen, width);
        screen_take(&seen, terminal_read(&tty));
        if (seen.n_wrapped > 0)
            fail_msg("%d lines wrapped on %d columns", seen.n_wrapped, width);
        if (width == 62)
            check_screen(&seen, wanted);
        if (width == 80)
            check_screen(&seen, usual);
    }
    terminal_close(&tty);
}

/* Whatever the sizes, nothing of an older block is left, and what stays above it stays. */
static void resized_terminals_are_cleaned(void **state)
{
    static const int widths[] = {140, 100, 61, 75, 140, 40, 139};
    terminal tty;
    screen seen;
    scene run;
    esper_grow_view view;
    char text[16384], *second;

    (void)state;
    set_scene(&run);
    terminal_open(&tty, 50, 140);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    screen_init(&seen, 140);
    esper_grow_view_note(&view, 13, "this stays");
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        set_size(&tty, 50, widths[i]);
        screen_resize(&seen, widths[i]);
        esper_grow_view_epoch(&view, &run.growth);
        screen_take(&seen, terminal_read(&tty));
        screen_text(&seen, text, sizeof(text));
        if (strncmp(text, "epoch   13  this stays\n", 23) != 0)
            fail_msg("at %d columns the line above is gone:\n%s", widths[i], text);
        second = strstr(text, "14/40");
        if (second == NULL || strstr(second + 1, "14/40") != NULL || strstr(text, "slot  blue") == NULL)
            fail_msg("at %d columns there is not one block:\n%s", widths[i], text);
    }
    snprintf(text, sizeof(text), "epoch   13  this stays\n%s", wide_block);
    check_screen(&seen, text);
    terminal_close(&tty);
}

/* On a screen of few lines seeds stay and empty slots go. */
static void low_terminals_leave_slots_out(void **state)
{
    enum { MANY = 32 };
    static esper_slot slots[MANY];
    static esper_growth_slot seeds[MANY];
    terminal tty;
    scene run;
    esper_grow_view view;
    char text[16384], id[16];

    (void)state;
    set_scene(&run);
    for (int i = 0; i < MANY; i++) {
        snprintf(id, sizeof(id), "r%dc0", i);
        slots[i] = a_slot(id, i == 30 ? ESPER_STAGE_TRAINING : ESPER_STAGE_DORMANT, i == 30 ? "conv_light" : "", 0.0);
        seeds[i] = nothing_known(&slots[i]);
    }
    run.growth.slots = seeds;
    run.growth.n_slots = MANY;
    terminal_open(&tty, 12, 100);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    for (int rows = 60; rows >= 7; rows--) {
        int n_lines = 0;
        screen seen;

        set_size(&tty, rows, 100);
        view.n_lines = 0;
        esper_grow_view_epoch(&view, &run.growth);
        screen_init(&seen, 100);
        screen_take(&seen, terminal_read(&tty));
        screen_text(&seen, text, sizeof(text));
        for (const char *at = text; *at != '\0'; at++)
            n_lines += *at == '\n';
        if (n_lines >= rows || strstr(text, "advance r0c1") == NULL)
            fail_msg("%d lines on a screen of %d:\n%s", n_lines, rows, text);
        if (strstr(text, "r30c0") == NULL)
            fail_msg("the seed is not among %d lines:\n%s", n_lines, text);
        assert_int_equal(strstr(text, "more slots") != NULL, rows < 37);
        if (rows == 12)
            assert_non_null(strstr(text, "  and 26 more slots\n"));
    }
    terminal_close(&tty);
}

/* A window that is too small gets plain lines; made larger it gets the block, at once; made smaller again, plain lines below
 * what was there, and nothing of the block. */
static void windows_change_while_it_runs(void **state)
{
    terminal tty;
    screen seen;
    scene run;
    esper_grow_view view;
    const char *text;

    (void)state;
    setenv("TERM", "xterm", 1);
    set_scene(&run);
    terminal_open(&tty, 5, 100);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    screen_init(&seen, 100);
    esper_grow_view_epoch(&view, &run.growth);
    text = terminal_read(&tty);
    assert_null(strchr(text, '\033'));
    assert_non_null(strstr(text, "   14/40   0.4321  83.50 %"));
    assert_false(esper_grow_view_is_due(&view, "training")); /* plain lines have time */
    set_size(&tty, 24, 39);
    assert_false(esper_grow_view_is_due(&view, "training"));
    set_size(&tty, 24, 140);
    screen_init(&seen, 140);
    esper_grow_view_step(&view, &run.growth);
    screen_take(&seen, terminal_read(&tty));
    check_screen(&seen, wide_block);
    set_size(&tty, 6, 140);
    esper_grow_view_epoch(&view, &run.growth);
    screen_take(&seen, terminal_read(&tty));
    check_screen(&seen, "   14/40   0.4321  83.50 %     0.4500  84.31 %     37,881     3   4.2 s    2:13\n");
    terminal_close(&tty);
}

/* Without escapes a terminal is written to as a file is. */
static void terminals_that_take_no_escapes(void **state)
{
    static const char *const kinds[] = {"dumb", "", NULL};
    terminal tty;
    scene run;
    esper_grow_view view;

    (void)state;
    set_scene(&run);
    terminal_open(&tty, 24, 80);
    for (int i = 0; i < 3; i++) {
        const char *text;

        if (kinds[i] != NULL)
            setenv("TERM", kinds[i], 1);
        else
            unsetenv("TERM");
        esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
        assert_true(view.live.plain && !view.live.bar && !view.colour);
        esper_grow_view_epoch(&view, &run.growth);
        esper_grow_view_note(&view, 14, "back to step 30");
        esper_grow_view_clear(&view);
        text = terminal_read(&tty);
        assert_non_null(strstr(text, "epoch   14  back to step 30\r\n"));
        assert_null(strchr(text, '\033'));
    }
    setenv("TERM", "xterm", 1);
    terminal_close(&tty);
}

/* ------------------------------------------------------------------------------------------------ without a terminal */

/* Everything in a stream so far. */
static char *text_in(FILE *stream)
{
    static char text[32768];
    size_t n;

    rewind(stream);
    n = fread(text, 1, sizeof(text) - 1, stream);
    text[n] = '\0';
    return text;
}

static void check_text(FILE *stream, const char *wanted)
{
    const char *text = text_in(stream);

    if (strcmp(text, wanted) != 0)
        fail_msg("shown:\n%s\nexpected:\n%s", text, wanted);
}

static void plain_lines_for_logs(void **state)
{
    static const char wanted[] =
        "   14/40  40 %  training  loss 0.4321  accuracy 83.50 %  12,345/s  33 % of the run spent  2:13 left\n"
        "   epoch     loss accuracy valid loss accuracy     params seeds    time    left\n"
        "   14/40   0.4321  83.50 %     0.4500  84.31 %     37,881     3   4.2 s    2:13\n"
        "epoch   14  back to step 30\n"
        "   40/40   0.4321  83.50 %          -        -     37,881     3       ?       -\n";
    FILE *stream = tmpfile();
    esper_grow_view view;
    scene run;

    (void)state;
    assert_non_null(stream);
    set_scene(&run);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, stream);
    assert_true(view.live.plain && !view.live.bar && !view.colour);
    esper_grow_view_step(&view, &run.growth); /* too soon */
    view.live.last_shown -= 60.0;
    esper_grow_view_step(&view, &run.growth);
    esper_grow_view_step(&view, &run.growth); /* too soon again */
    esper_grow_view_epoch(&view, &run.growth);
    esper_grow_view_note(&view, 14, "back to step 30");
    run.growth.epoch = 40;
    run.growth.loss_valid = run.growth.acc_valid = run.growth.seconds = NONE;
    esper_grow_view_epoch(&view, &run.growth);
    esper_grow_view_clear(&view);
    check_text(stream, wanted);
    fclose(stream);
}

static void none_says_nothing(void **state)
{
    FILE *stream = tmpfile();
    esper_slot_event event = {.kind = ESPER_SLOT_EVENT_GERMINATED};
    esper_grow_view view;
    scene run;

    (void)state;
    assert_non_null(stream);
    set_scene(&run);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_NONE, stream);
    assert_false(esper_live_is_shown(&view.live));
    view.live.last_shown -= 60.0;
    esper_grow_view_step(&view, &run.growth);
    esper_grow_view_epoch(&view, &run.growth);
    esper_grow_view_event(&view, 1, &event, NULL);
    esper_grow_view_note(&view, 1, "x");
    esper_grow_view_clear(&view);
    check_text(stream, "");
    fclose(stream);
}

/* A slot that rests says for how long, and why. */
static void resting_slots_say_so(void **state)
{
    FILE *stream = tmpfile();
    esper_slot slot = a_slot("r0c1", ESPER_STAGE_EMBARGOED, "conv_light", 0.0);
    esper_growth_slot seed = nothing_known(&slot);
    esper_grow_view view;
    screen seen;
    scene run;
    char text[16384];

    (void)state;
    assert_non_null(stream);
    set_scene(&run);
    strcpy(slot.prune_reason, "stuck");
    run.growth.slots = &seed;
    run.growth.n_slots = 1;
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_BAR, stream);
    esper_grow_view_epoch(&view, &run.growth);
    screen_init(&seen, 200);
    screen_take(&seen, text_in(stream));
    screen_text(&seen, text, sizeof(text));
    if (strstr(text, "\n  r0c1  conv_light    embargoed, free in 3 epochs: stuck\n") == NULL)
        fail_msg("the screen shows:\n%s", text);
    fclose(stream);
}

/* Nothing measured, nothing there, an open end: no words like "nan". */
static void before_anything_is_known(void **state)
{
    static const char wanted[] = "       1  [>                       ]   0 %  validating  valid -  best -  0 params\n"
                                 "  spent 0 %  ? left  loss -  accuracy -  valid loss -  -/s\n"
                                 "  no decision yet\n";
    FILE *stream = tmpfile();
    esper_growth_view growth = {.epoch = 1,
                                .part = NONE,
                                .doing = "validating",
                                .loss_train = NONE,
                                .acc_train = NONE,
                                .loss_valid = NONE,
                                .acc_valid = NONE,
                                .acc_best = -(double)INFINITY,
                                .lr = NONE,
                                .samples_per_s = NONE,
                                .seconds_left = NONE};
    esper_grow_view view;
    screen seen;

    (void)state;
    assert_non_null(stream);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_BAR, stream);
    esper_grow_view_step(&view, &growth); /* at once: what the run does has changed */
    screen_init(&seen, 200);
    screen_take(&seen, text_in(stream));
    check_screen(&seen, wanted);
    assert_int_equal(seen.n_colours, 0); /* no terminal */
    fclose(stream);
}

/* ------------------------------------------------------------------------------------------------ what happened */

static void events_in_words(void **state)
{
    static const char wanted[] =
        "epoch   12  r0c1 conv_light germinated, 8,512 parameters (plateau of 3 epochs)\n"
        "epoch   12  r0c1 conv_light passed G2 to blending: improvement 0.81 >= 0.5, epochs in stage 12 >= 10, gradient "
        "ratio 0.32 >= 0.1\n"
        "epoch   12  r0c1 conv_light back to blending\n"
        "epoch   12  r0c1 conv_light fossilized after 31 epochs, dependence +1.8, 8,512 parameters (contributes)\n"
        "epoch   12  r0c1 conv_light pruned after 31 epochs in blending: governor_nan by governor\n"
        "epoch   12  r0c1 is free again\n";
    FILE *stream = tmpfile();
    esper_slot_event event = {.slot = "r0c1", .blueprint = "conv_light", .params = 8512, .contribution = 1.83};
    esper_grow_view view;

    (void)state;
    assert_non_null(stream);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_PLAIN, stream);
    event.epochs_total = 31;
    event.kind = ESPER_SLOT_EVENT_GERMINATED;
    esper_grow_view_event(&view, 12, &event, "plateau of 3 epochs");
    event.kind = ESPER_SLOT_EVENT_GATE;
    event.from = ESPER_STAGE_TRAINING;
    event.to = ESPER_STAGE_BLENDING;
    event.gate = a_failed_gate(); /* says nothing: the next epoch may ask again */
    esper_grow_view_event(&view, 12, &event, NULL);
    event.gate = a_passed_gate();
    esper_grow_view_event(&view, 12, &event, NULL);
    event.kind = ESPER_SLOT_EVENT_STAGE; /* told by its gate */
    esper_grow_view_event(&view, 12, &event, NULL);
    event.from = ESPER_STAGE_HOLDING;
    esper_grow_view_event(&view, 12, &event, "");
    event.kind = ESPER_SLOT_EVENT_FOSSILIZED;
    esper_grow_view_event(&view, 12, &event, "contributes");
    event.kind = ESPER_SLOT_EVENT_PRUNED;
    event.from = ESPER_STAGE_BLENDING;
    strcpy(event.reason, "governor_nan");
    strcpy(event.initiator, "governor");
    esper_grow_view_event(&view, 12, &event, NULL);
    event.kind = ESPER_SLOT_EVENT_STAGE;
    event.to = ESPER_STAGE_PRUNED; /* told by the prune */
    esper_grow_view_event(&view, 12, &event, NULL);
    event.to = ESPER_STAGE_DORMANT;
    esper_grow_view_event(&view, 12, &event, NULL);
    check_text(stream, wanted);
    fclose(stream);
}

/* The life of a real slot, told by its own events: every stage shows once. */
static void life_of_a_slot(void **state)
{
    FILE *stream = tmpfile();
    esper_slot_event list[64];
    esper_slot_events events = {.events = list, .capacity = 64};
    esper_boundary boundary = {.slot = "r0c0", .channels = 8};
    esper_slot_rules rules = {.permissive = true};
    esper_germination wanted;
    esper_gate_result result;
    esper_grow_view view;
    esper_slots slots;

    (void)state;
    assert_non_null(stream);
    check_good(esper_slots_init(&slots, &boundary, 1, &rules));
    esper_germination_init(&wanted, "conv_light", 3);
    wanted.seed_params = 100;
    check_good(esper_slot_germinate(&slots.slot[0], &wanted, &events));
    check_good(esper_slot_advance(&slots.slot[0], -1, NULL, &events, &result));
    check_good(esper_slot_prune(&slots.slot[0], "stuck", NULL, &events));
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < slots.n; k++)
            esper_slot_tick(&slots.slot[k], NULL, &events);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_PLAIN, stream);
    for (int i = 0; i < events.n; i++)
        esper_grow_view_event(&view, 5, &events.events[i], NULL);
    check_text(stream, "epoch    5  r0c0 conv_light germinated, 100 parameters\n"
                       "epoch    5  r0c0 conv_light passed G1 to training: germinated\n"
                       "epoch    5  r0c0 conv_light pruned after 0 epochs in training: stuck by policy\n"
                       "epoch    5  r0c0 is free again\n");
    fclose(stream);
}

/* Lines that stay are broken between words, and the block comes back below them. */
static void notes_stay_above_the_block(void **state)
{
    static const char wanted[] = "epoch   14  NaN in blocks.0.conv.weight (param): 1 element, the\n"
                                 "            first at 17; 1 bad tensor; back from step 40 to step\n"
                                 "            30\n"
                                 "epoch   14  short\n";
    terminal tty;
    screen seen;
    scene run;
    esper_grow_view view;
    char text[16384];

    (void)state;
    set_scene(&run);
    run.growth.n_slots = 0;
    terminal_open(&tty, 50, 66);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    screen_init(&seen, 66);
    esper_grow_view_epoch(&view, &run.growth);
    esper_grow_view_note(&view, 14,
                         "NaN in blocks.0.conv.weight (param): 1 element, the first at 17; 1 bad tensor; "
                         "back from step 40 to step 30");
    esper_grow_view_epoch(&view, &run.growth);
    esper_grow_view_note(&view, 14, "short");
    esper_grow_view_epoch(&view, &run.growth);
    screen_take(&seen, terminal_read(&tty));
    assert_int_equal(seen.n_wrapped, 0);
    screen_text(&seen, text, sizeof(text));
    if (strncmp(text, wanted, strlen(wanted)) != 0)
        fail_msg("the screen shows:\n%s\nexpected above the block:\n%s", text, wanted);
    assert_non_null(strstr(text + strlen(wanted), "14/40"));
    assert_null(strstr(text + strlen(wanted), "slot  blueprint")); /* there are none */
    terminal_close(&tty);
}

/* Texts of others cannot write to the terminal: no sequences, no line ends, no broken characters. */
static void hostile_reasons_are_harmless(void **state)
{
    static const char hostile[] = "\033[2J\033]0;title\a\r\n\x7f \xc2\x9b"
                                  "31m \xff\xfe \u20ac\u00e9 %s%n end";
    terminal tty;
    screen seen;
    scene run;
    esper_grow_view view;
    char text[16384], reason[2000];

    (void)state;
    set_scene(&run);
    terminal_open(&tty, 50, 160);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_AUTO, tty.stream);
    run.growth.decision = (esper_growth_decision){.op = "prune", .slot = "r0c1", .reason = hostile};
    screen_init(&seen, 160);
    esper_grow_view_note(&view, 1, hostile);
    esper_grow_view_epoch(&view, &run.growth);
    screen_take(&seen, terminal_read(&tty));
    screen_text(&seen, text, sizeof(text));
    if (strstr(text, "  prune r0c1: ?[2J?]0;title???? ?31m ?? \u20ac\u00e9 %s%n end\n") == NULL ||
        strncmp(text, "epoch    1  ?[2J?]0;title???? ?31m ?? \u20ac\u00e9 %s%n end\n", 30) != 0)
        fail_msg("the screen shows:\n%s", text);
    memset(reason, 'x', sizeof(reason) - 1); /* long, without a blank */
    reason[sizeof(reason) - 1] = '\0';
    run.growth.decision.reason = reason;
    run.growth.decision.refused = true;
    run.growth.decision.refusal = reason;
    esper_grow_view_note(&view, 1, reason);
    esper_grow_view_epoch(&view, &run.growth);
    screen_take(&seen, terminal_read(&tty));
    assert_int_equal(seen.n_wrapped, 0);
    for (size_t i = 0; i < 198; i += 3) /* of wide characters */
        memcpy(reason + i, "\xe6\xbc\xa2", 3);
    reason[198] = '\0';
    esper_grow_view_epoch(&view, &run.growth);
    assert_null(strchr(terminal_read(&tty), '?'));
    assert_in_range(view.columns[view.n_lines - 1], 150, 159); /* two columns each */
    terminal_close(&tty);
}

static void gates_in_words(void **state)
{
    char words[ESPER_WORDS_CHARS];
    esper_gate_result result = {.gate = -1};
    esper_gate_input input = {.stage = ESPER_STAGE_HOLDING, .healthy = true};

    (void)state;
    assert_string_equal(esper_words_gate(&result, words), "-");
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G5 failed: dependence not measured");
    input.contribution = (esper_merit){.value = 1.6, .how = ESPER_MERIT_LOWER_BOUND, .n_epochs = 2};
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G5 failed: epochs measured 2 < 3");
    input.contribution.n_epochs = 3;
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G5 passed");
    input.healthy = false;
    assert_true(esper_gate_judge(ESPER_GATE_G5, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G5 failed: unhealthy");
    assert_true(esper_gate_judge(ESPER_GATE_G2, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G2 failed: improvement not measured");
    input.alpha = 0.43;
    input.alpha_target = 1.0;
    input.epochs_in_stage = 10;
    assert_true(esper_gate_judge(ESPER_GATE_G3, &input, &result));
    assert_string_equal(esper_words_gate(&result, words), "G3 failed: alpha 0.43 of 1");
    esper_gate_refuse(ESPER_GATE_G1, "no_active_seed", &result);
    assert_string_equal(esper_words_gate(&result, words), "G1 failed: no active seed");
}

static void trials_in_words(void **state)
{
    esper_words_best best = {
        .slot = "r0c1", .blueprint = "conv_light", .gain = 0.0412, .error = 0.008, .params = 8512, .n_candidates = 8};
    char words[ESPER_WORDS_CHARS];

    (void)state;
    assert_string_equal(esper_words_trial(&best, true, words),
                        "trial of 8 seeds: r0c1 conv_light wins, gain +0.0412 "
                        "[0.0212, 0.0612] nats, and joins with 8,512 parameters");
    assert_string_equal(esper_words_trial(&best, false, words),
                        "trial of 8 seeds: none pays; the best was r0c1 conv_light, "
                        "gain +0.0412 [0.0212, 0.0612] nats");
    best.asked = true;
    assert_string_equal(esper_words_trial(&best, false, words),
                        "trial of 8 seeds, asked for: r0c1 conv_light did best, "
                        "gain +0.0412 [0.0212, 0.0612] nats");
    best.asked = false;
    best.gain = NONE; /* it lost by not being finite */
    best.n_candidates = 1;
    assert_string_equal(esper_words_trial(&best, false, words),
                        "trial of 1 seed: none pays; the best was r0c1 conv_light, gain - nats");
}

/* Epochs that are foretold are shown as such, and what is being tried changes a block at once. */
static void a_trial_on_a_terminal(void **state)
{
    terminal tty;
    scene run;
    esper_grow_view view;
    char doing[32] = "trying 8 seeds";
    const char *text;

    (void)state;
    set_scene(&run);
    run.growth.foretold = true;
    run.growth.doing = doing;
    terminal_open(&tty, 50, 140);
    esper_grow_view_init(&view, ESPER_CONFIG_PROGRESS_BAR, tty.stream);
    esper_grow_view_step(&view, &run.growth);
    text = terminal_read(&tty);
    if (strstr(text, "14/~40  [=") == NULL || strstr(text, "40 %  trying 8 seeds  valid ") == NULL)
        fail_msg("the screen shows:\n%s", text);
    assert_false(esper_grow_view_is_due(&view, doing));
    snprintf(doing, sizeof(doing), "trying 4 seeds"); /* in the caller's memory: the view has kept a copy */
    assert_true(esper_grow_view_is_due(&view, doing));
    terminal_close(&tty);
}

/* ------------------------------------------------------------------------------------------------ the end */

static void check_closing(const esper_growth_closing *closing, const char *wanted)
{
    FILE *stream = tmpfile();

    assert_non_null(stream);
    esper_grow_view_closing(stream, closing);
    check_text(stream, wanted);
    fclose(stream);
}

static void closing_table(void **state)
{
    static const char wanted[] =
        "                     static host    grown host    difference\n"
        "  test accuracy          84.12 %       86.31 %         +2.19\n"
        "  parameters              12,345        20,857        x 1.69\n"
        "  FLOPs per sample    1.62 MFLOP    2.02 MFLOP        x 1.25\n"
        "  training FLOPs      1.60 TFLOP    1.60 TFLOP        x 1.00\n"
        "    part of trials             -       20.00 %             -\n"
        "  time                      2:13          3:20        x 1.50\n"
        "\n"
        "  slot   seed             params        born  end\n"
        "  r0c1   conv_light        8,512   12 at 9 %  fossilized 45  gain +0.0412 [0.0212, 0.0612] of 8   "
        "dependence +1.8 [1.2, 2.4]      lower bound 1.2\n"
        "  r1c0   attention           512  14 at 11 %  pruned 20      gain +0.0100 [0.0018, 0.0182] of 1   "
        "dependence -                    ?stuck\n"
        "  r1c1   norm                 16          38  training       dependence -\n"
        "\n"
        "  gain: validation loss (nats) that its fork won over the one that got nothing, best of so many tried\n"
        "  born: its epoch, and the run's FLOPs spent by then, trials included\n"
        "  dependence: accuracy (points) that the network loses when the seed is taken away\n";
    static const esper_growth_seed seeds[] = {
        {.slot = "r0c1",
         .blueprint = "conv_light",
         .params = 8512,
         .stage = ESPER_STAGE_FOSSILIZED,
         .germinated = 12,
         .share = 0.092,
         .gain = 0.0412,
         .gain_error = 0.0080, /* of 8 candidates: 2.498 of it */
         .n_candidates = 8,
         .ended = 45,
         .dependence = 1.83,
         .dependence_low = 1.24,
         .dependence_high = 2.42,
         .reason = "lower bound 1.2"},
        {.slot = "r1c0",
         .blueprint = "attention",
         .params = 512,
         .stage = ESPER_STAGE_PRUNED,
         .germinated = 14,
         .share = 0.11,
         .gain = 0.01,
         .gain_error = 0.005, /* of one: 1.645 */
         .n_candidates = 1,
         .ended = 20,
         .dependence = NONE,
         .reason = "\033stuck"},
        {.slot = "r1c1",
         .blueprint = "norm",
         .params = 16,
         .stage = ESPER_STAGE_TRAINING,
         .germinated = 38,
         .share = NONE,
         .gain = NONE,
         .dependence = NONE},
    };
    esper_growth_closing closing = {
        .grown = {86.31, 20857, 2.02e6, 1.6e12, 200.0, 3.2e11},
        .has_static = true,
        .fixed = {84.12, 12345, 1.62e6, 1.6e12, 133.0, 0.0},
        .seeds = seeds,
        .n_seeds = 3,
    };

    (void)state;
    check_closing(&closing, wanted);
}

static void closing_table_without_a_control(void **state)
{
    static const char wanted[] = "                      grown host\n"
                                 "  test accuracy                -\n"
                                 "  parameters              20,857\n"
                                 "  FLOPs per sample             -\n"
                                 "  training FLOPs      1.60 TFLOP\n"
                                 "  time                     4.2 s\n"
                                 "\n"
                                 "  no seed germinated\n";
    esper_growth_closing closing = {.grown = {NONE, 20857, NONE, 1.6e12, 4.2, 0.0}};

    (void)state;
    check_closing(&closing, wanted);
}

/* On a terminal a reason that would wrap stands below its seed. */
static void closing_table_on_a_terminal(void **state)
{
    static const char wanted[] = "  slot   seed             params        born  end\r\n"
                                 "  r0c1   conv_light        8,512          12  holding        dependence +1.8\r\n"
                                 "          still on probation\r\n"
                                 "  r1c1   flex_attention  123,456 118 at 10 %  fossilized 45\r\n"
                                 "          gain +0.0412 [0.0212, 0.0612] of 8  dependence +15.6 [14.6, 16.5]\r\n"
                                 "          a reason that is longer than a line of eighty columns would take:\r\n"
                                 "          +2.38 at least +1.68\r\n"
                                 "  r1c1   flex_attention  123,456 118 at 10 %  fossilized 145\r\n"
                                 "          dependence -100.0 [-100.0, 100.0]\r\n"
                                 "\r\n"
                                 "  gain: validation loss (nats) that its fork won over the one that got nothing,\r\n"
                                 "  best of so many tried\r\n"
                                 "  born: its epoch, and the run's FLOPs spent by then, trials included\r\n"
                                 "  dependence: accuracy (points) that the network loses when the seed is taken\r\n"
                                 "  away\r\n";
    esper_growth_seed seed = {.slot = "r0c1",
                              .blueprint = "conv_light",
                              .params = 8512,
                              .stage = ESPER_STAGE_HOLDING,
                              .germinated = 12,
                              .share = NONE,
                              .dependence = 1.83,
                              .dependence_low = NONE,
                              .dependence_high = NONE,
                              .reason = "still on probation"};
    esper_growth_seed large = {.slot = "r1c1",
                               .blueprint = "flex_attention",
                               .params = 123456,
                               .stage = ESPER_STAGE_FOSSILIZED,
                               .germinated = 118,
                               .share = 0.1,
                               .gain = 0.0412,
                               .gain_error = 0.0080,
                               .n_candidates = 8,
                               .ended = 45,
                               .dependence = 15.6,
                               .dependence_low = 14.6,
                               .dependence_high = 16.5,
                               .reason = "a reason that is longer than a line of eighty columns would take: +2.38 at "
                                         "least +1.68"};
    esper_growth_seed seeds[] = {seed, large, large};
    esper_growth_closing closing = {.seeds = seeds, .n_seeds = 3};
    terminal tty;
    const char *text;

    (void)state;
    seeds[2].ended = 145;
    seeds[2].dependence = seeds[2].dependence_low = -100.0;
    seeds[2].dependence_high = 100.0;
    seeds[2].reason = NULL;
    seeds[2].n_candidates = 0;
    terminal_open(&tty, 50, 80);
    esper_grow_view_closing(tty.stream, &closing);
    text = terminal_read(&tty);
    if (strlen(text) < strlen(wanted) || strcmp(text + strlen(text) - strlen(wanted), wanted) != 0)
        fail_msg("shown:\n%s\nexpected at its end:\n%s", text, wanted);
    terminal_close(&tty);
}

/* A control of which nothing is known gives no figures, and no division by nothing. */
static void closing_table_of_an_unknown_control(void **state)
{
    esper_growth_closing closing = {
        .grown = {86.0, 20857, 2e6, 1e12, 200.0, 0.0}, .has_static = true, .fixed = {NONE, 0, NONE, 0.0, NONE, 0.0}};

    (void)state;
    check_closing(&closing, "                     static host    grown host    difference\n"
                            "  test accuracy                -       86.00 %             -\n"
                            "  parameters                   0        20,857             -\n"
                            "  FLOPs per sample             -    2.00 MFLOP             -\n"
                            "  training FLOPs          0 FLOP    1.00 TFLOP             -\n"
                            "  time                         -          3:20             -\n"
                            "\n"
                            "  no seed germinated\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_on_a_terminal),
        cmocka_unit_test(colours_can_be_refused),
        cmocka_unit_test(narrow_terminals_cut),
        cmocka_unit_test(resized_terminals_are_cleaned),
        cmocka_unit_test(low_terminals_leave_slots_out),
        cmocka_unit_test(windows_change_while_it_runs),
        cmocka_unit_test(terminals_that_take_no_escapes),
        cmocka_unit_test(plain_lines_for_logs),
        cmocka_unit_test(none_says_nothing),
        cmocka_unit_test(resting_slots_say_so),
        cmocka_unit_test(before_anything_is_known),
        cmocka_unit_test(events_in_words),
        cmocka_unit_test(life_of_a_slot),
        cmocka_unit_test(notes_stay_above_the_block),
        cmocka_unit_test(hostile_reasons_are_harmless),
        cmocka_unit_test(gates_in_words),
        cmocka_unit_test(trials_in_words),
        cmocka_unit_test(a_trial_on_a_terminal),
        cmocka_unit_test(closing_table),
        cmocka_unit_test(closing_table_without_a_control),
        cmocka_unit_test(closing_table_on_a_terminal),
        cmocka_unit_test(closing_table_of_an_unknown_control),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
