/* esper report: a page about a grown run. */
#include <stdio.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/report_page.h"
#include "run/run_dir.h"
#include "ui/terminal.h"
#include "ui/text.h"

static void print_written(const char *dir, const char *out, const esper_report_numbers *numbers, size_t bytes)
{
    char size[ESPER_TEXT_CHARS], quoted[ESPER_SHELL_CHARS];

    esper_terminal_print(stdout, "run       %s, %lld %s%s%s\n", dir, (long long)numbers->grown.epochs,
                         numbers->learns ? "round" : "epoch", numbers->grown.epochs == 1 ? "" : "s",
                         numbers->grown.ended ? "" : ", not ended: the page shows it so far");
    esper_terminal_print(stdout, "written   %s (%s)\n", out, esper_text_bytes((double)bytes, size));
    printf("next      open it in a browser: xdg-open %s\n", esper_shell_quote_path(out, quoted));
}

enum { OUT };

static const esper_command_option options[] = {[OUT] = {"out", true}, {.name = NULL}};

static esper_status run(esper_cli_call *call)
{
    const char *out = call->given[OUT];
    char dir[ESPER_PATH_CHARS], path[ESPER_PATH_CHARS];
    esper_report_numbers numbers;
    size_t bytes;

    if (out != NULL && out[0] == '\0')
        return esper_cli_usage(call, "--out wants a file, not an empty word");
    ESPER_TRY(esper_run_dir_find(call->words[0], dir));
    ESPER_TRY(esper_run_path(dir, ESPER_REPORT_NAME, path));
    out = out != NULL ? out : path;
    ESPER_TRY(esper_report_page_write(dir, out, &numbers, &bytes));
    print_written(dir, out, &numbers, bytes);
    return ESPER_OK;
}

const esper_command esper_command_report = {
    .name = "report",
    .arguments = "RUN [--out FILE]",
    .summary = "a page about a run: curves, seeds, why",
    .help =
        "Writes one HTML page about a grown run from its run store: the closing table, curves, the life of every\n"
        "seed, the evidence at its gates, decisions, rollbacks and what seeds are worth. The page needs nothing else:\n"
        "it can be mailed, printed and read offline. A run that is still going on is shown as far as it has come.\n"
        "Of a run that learned a policy it shows return, accuracy, size and the policy's vitals over rounds, and what\n"
        "was paid for. A comparison has a page of its own, which `esper compare` writes.\n"
        "RUN is a directory, the beginning of its name below runs/, or 'last'.\n\n"
        "  --out FILE      where to write it (default: report.html in the run's directory); replaced when it is there",
    .keys = (const char *const[]){NULL},
    .options = options,
    .wants = "one run",
    .run = run,
};
