/* Long jobs on the command line: how they are asked to stop, and what is said then. */
#include "cli/job.h"

#include <stdio.h>

#include "cli/cli.h"
#include "ui/text.h"

static volatile sig_atomic_t stop;

/* The first signal asks the run to save and leave; the second is the system's to handle. */
static void ask_to_stop(int number)
{
    stop = 1;
    signal(number, SIG_DFL);
}

const volatile sig_atomic_t *esper_job_listen(void)
{
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL); /* a connection that broke off */
    signal(SIGPIPE, SIG_IGN); /* Ctrl-C also ends the `tee` we write to: that must not end us before we have saved */
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is met like a full disk: the write fails and says so */
    return &stop;
}

void esper_job_report_stopped(const esper_run_result *result, const char *command)
{
    const esper_cursor *cursor = &result->cursor;
    char took[ESPER_TEXT_CHARS], loss[ESPER_TEXT_CHARS];

    if (cursor->epoch >= result->epochs) {
        printf("stopped before the end of the test\nsaved in %s after %s\ntest it with: %s eval %s\n", result->run_dir,
               esper_text_duration(result->seconds, took), esper_cli_program(), result->run_dir);
        return;
    }
    printf("stopped in epoch %u after %u of %u batches", cursor->epoch + 1, cursor->batch, result->steps_per_epoch);
    if (cursor->batch > 0)
        printf(", loss %s", esper_text_loss(result->loss_now, loss));
    printf("\nsaved in %s after %s\ngo on with: %s %s --resume %s\n", result->run_dir,
           esper_text_duration(result->seconds, took), esper_cli_program(), command, result->run_dir);
}
