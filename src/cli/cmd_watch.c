/* esper watch: a run of another process, or one that has ended, in the terminal. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/status.h"
#include "cli/cli.h"
#include "run/index.h"
#include "run/run_dir.h"
#include "ui/drawing.h"
#include "ui/report.h"
#include "ui/watch_view.h"

enum { PLAY, ONCE };

static const esper_command_option options[] = {[PLAY] = {"play", false}, [ONCE] = {"once", false}, {.name = NULL}};

static volatile sig_atomic_t leaving;

static void on_signal(int number)
{
    if (number != SIGWINCH)
        leaving = 1;
}

/* A window that changes its size wakes us up, to draw it anew; Ctrl-C and its like leave it as it was. */
static void mind_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction action = {.sa_handler = on_signal};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

static void wait_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    nanosleep(&pause, NULL); /* a signal ends it */
}

typedef struct watching {
    char             dir[ESPER_PATH_CHARS], store[ESPER_PATH_CHARS];
    esper_watch_look look;
    esper_terminal   terminal;
    bool             on_screen; /* the other screen of the terminal is shown */
    bool             play;
    int64_t          told;      /* the last epoch of which a line was printed, where there is no screen */
} watching;

static esper_status compose(watching *self, esper_page *page, esper_watch_state *state_out)
{
    esper_terminal_measure(&self->terminal);
    self->look.running = esper_index_is_running(self->dir);
    return esper_watch_compose(&self->look, &self->terminal, page, state_out);
}

/* The terminal's other screen, which leaves what was there before as it was. */
static void enter_screen(watching *self)
{
    self->on_screen = true;
    fputs("\033[?1049h\033[?25l", stdout);
}

static void leave_screen(watching *self)
{
    if (self->on_screen)
        fputs("\033[?25h\033[?1049l", stdout);
    self->on_screen = false;
    fflush(stdout);
}

static void draw(const esper_page *page)
{
    fputs("\033[H", stdout);
    for (const char *at = page->text; *at != '\0';) {
        size_t n = strcspn(at, "\n");

        printf("%.*s\033[K%s", (int)n, at, at[n] == '\n' ? "\r\n" : "");
        at += n + (at[n] == '\n');
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

/* Until the run has ended, nobody works on it any more, or somebody leaves. */
static esper_status follow_on_screen(watching *self)
{
    enum { LIVE_MS = 500, PLAY_MS = 120 };
    esper_watch_state state = {0};
    esper_status status = ESPER_OK;
    bool over = false;

    enter_screen(self);
    while (!leaving && !over && status == ESPER_OK) {
        esper_page page = {0};

        status = compose(self, &page, &state);
        if (status == ESPER_OK)
            draw(&page);
        esper_page_fini(&page);
        over = self->play ? self->look.epoch >= state.last_epoch : state.ended || !self->look.running;
        if (self->play)
            self->look.epoch++;
        if (!over && status == ESPER_OK)
            wait_ms(self->play ? PLAY_MS : LIVE_MS);
    }
    leave_screen(self);
    return status;
}

/* Where nothing can be drawn over: the first lines of the window, once for each epoch. */
static esper_status follow_in_lines(watching *self)
{
    enum { LINES_MS = 1000 };
    esper_watch_state state = {0};
    esper_status status = ESPER_OK;
    bool over = false;

    while (!leaving && !over && status == ESPER_OK) {
        esper_page page = {0};

        status = compose(self, &page, &state);
        if (status == ESPER_OK && state.epoch > self->told) {
            const char *second = strchr(page.text, '\n');

            self->told = state.epoch;
            printf("epoch %4lld  %.*s\n", (long long)state.epoch, (int)strcspn(second + 1, "\n"), second + 1);
            fflush(stdout);
        }
        esper_page_fini(&page);
        over = self->play ? self->look.epoch >= state.last_epoch : state.ended || !self->look.running;
        if (self->play)
            self->look.epoch++;
        else if (!over && status == ESPER_OK)
            wait_ms(LINES_MS);
    }
    return status;
}

static esper_status watch(watching *self, bool once)
{
    esper_watch_state state;
    esper_page page = {0};
    esper_status status = compose(self, &page, &state);
    bool follow = status == ESPER_OK && !once && (self->play || (!state.ended && self->look.running));

    esper_page_fini(&page);
    ESPER_TRY(status);
    if (follow) {
        mind_signals();
        self->look.epoch = self->play ? 1 : self->look.epoch;
        ESPER_TRY(self->terminal.escapes ? follow_on_screen(self) : follow_in_lines(self));
        self->look.epoch = ESPER_DRAWING_LAST;
    }
    page = (esper_page){0};
    status = compose(self, &page, &state); /* how it stands stays, below what was there before */
    if (status == ESPER_OK)
        fputs(page.text, stdout);
    esper_page_fini(&page);
    return status;
}

static esper_status run(esper_cli_call *call)
{
    watching self = {.look = {.run = ESPER_REPORT_RUN, .epoch = ESPER_DRAWING_LAST}};
    char quoted[ESPER_SHELL_CHARS];
    struct stat info;
    esper_status status;

    ESPER_TRY(esper_run_dir_find(call->n_words > 0 ? call->words[0] : "last", self.dir));
    ESPER_TRY(esper_run_path(self.dir, ESPER_RUN_STORE, self.store));
    if (stat(self.store, &info) != 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s has no run store (%s): runs of `esper grow` and `esper learn` keep one; "
                          "`esper inspect %s` shows what this run has",
                          self.dir, ESPER_RUN_STORE, esper_shell_quote_path(self.dir, quoted));
    ESPER_TRY(esper_store_reader_open(self.store, &self.look.reader));
    self.look.name = self.dir;
    self.terminal = esper_terminal_look(stdout);
    self.play = call->given[PLAY] != NULL;
    status = watch(&self, call->given[ONCE] != NULL);
    esper_store_reader_close(self.look.reader);
    return status;
}

const esper_command esper_command_watch = {
    .name = "watch",
    .arguments = "[RUN] [--play] [--once]",
    .summary = "a run live: network, curves, seeds, health",
    .help =
        "Shows a run in the terminal as its store tells of it: the network with every seed at its place, curves of\n"
        "accuracy and loss, seeds, health, and what happened last. The run may be that of another process: it is only\n"
        "read, and never waits. Ctrl-C leaves; what was shown last stays. Of a run that has ended it shows the end.\n"
        "RUN is a directory, the beginning of its name below runs/, or 'last', which is what it takes alone.\n\n"
        "  --play          from the first epoch on, some eight epochs a second\n"
        "  --once          as it stands now, and no more\n\n"
        "In the drawing blocks are as wide as the root of their parameters; [##..] is a seed, filled as far as its\n"
        "weight alpha, with a letter for its stage: Germinated, Training, Blending, Holding, Fossilized; o is an empty\n"
        "slot, x one that rests after a prune.",
    .keys = (const char *const[]){NULL},
    .options = options,
    .most_words = 1,
    .run = run,
};
