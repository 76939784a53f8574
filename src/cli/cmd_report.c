/* esper report: a page about a grown run. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/status.h"
#include "cli/cli.h"
#include "telemetry/store.h"
#include "train/run_dir.h"
#include "ui/report.h"
#include "ui/text.h"

#define REPORT_NAME "report.html"

/* Writing over what the report is made from, or over what the run goes on from, would lose it. */
static esper_status check_out(const char *dir, const char *out)
{
    static const char *const kept[] = {ESPER_RUN_STORE, ESPER_RUN_STORE "-wal", ESPER_RUN_STORE "-shm",
                                       ESPER_RUN_CONFIG, ESPER_RUN_EVENTS, ESPER_RUN_CHECKPOINT};
    char path[ESPER_PATH_CHARS];
    struct stat a, b;

    if (stat(out, &a) != 0)
        return ESPER_OK;
    if (S_ISDIR(a.st_mode))
        return ESPER_FAIL(ESPER_E_CONFIG, "--out %s is a directory: name a file, such as %s/%s", out, out, REPORT_NAME);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        ESPER_TRY(esper_run_path(dir, kept[i], path));
        if (stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return ESPER_FAIL(ESPER_E_CONFIG, "--out %s is a file of the run itself: choose another one", out);
    }
    return ESPER_OK;
}

static esper_status open_store(const char *dir, esper_store_reader **reader_out)
{
    char path[ESPER_PATH_CHARS];
    struct stat info;

    ESPER_TRY(esper_run_path(dir, ESPER_RUN_STORE, path));
    if (stat(path, &info) != 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s has no run store (%s): was it made by `esper train`? Only grown runs keep one; "
                          "`esper inspect %s` shows what this run has",
                          dir, ESPER_RUN_STORE, dir);
    return esper_store_reader_open(path, reader_out);
}

static esper_status compose(const char *dir, esper_page *page, esper_report_numbers *numbers_out)
{
    esper_store_reader *reader = NULL;
    esper_status status = open_store(dir, &reader);

    if (status == ESPER_OK)
        status = esper_report_closing(reader, ESPER_REPORT_RUN, numbers_out);
    if (status == ESPER_OK)
        status = esper_report_write(reader, ESPER_REPORT_RUN, page);
    esper_store_reader_close(reader);
    return status;
}

static void print_written(const char *dir, const char *out, const esper_report_numbers *numbers, size_t bytes)
{
    char size[ESPER_TEXT_CHARS];

    printf("run       %s, %lld epoch%s%s\n", dir, (long long)numbers->grown.epochs,
           numbers->grown.epochs == 1 ? "" : "s", numbers->grown.ended ? "" : ", not ended: the page shows it so far");
    printf("written   %s (%s)\n", out, esper_text_bytes((double)bytes, size));
    printf("next      open it in a browser: xdg-open %s\n", out);
}

static esper_status report(const char *name, const char *out)
{
    char dir[ESPER_PATH_CHARS], path[ESPER_PATH_CHARS];
    esper_report_numbers numbers;
    esper_page page = {0};
    esper_status status;

    ESPER_TRY(esper_run_dir_find(name, dir));
    ESPER_TRY(esper_run_path(dir, REPORT_NAME, path));
    out = out != NULL ? out : path;
    ESPER_TRY(check_out(dir, out));
    status = compose(dir, &page, &numbers);
    if (status == ESPER_OK)
        status = esper_file_write(out, page.text, page.used);
    if (status == ESPER_OK)
        print_written(dir, out, &numbers, page.used);
    esper_page_fini(&page);
    return status;
}

static int run(int argc, char **argv)
{
    const char *out = NULL;
    const esper_config_option options[] = {{.name = "out", .has_value = true, .text_out = &out}};
    esper_config config;
    esper_status status;
    bool help;
    int n_left;

    status = esper_cli_configure(&esper_command_report, &config, argc, argv, options, 1, &n_left, &help);
    if (status != ESPER_OK)
        return esper_cli_fail(status);
    if (help)
        return ESPER_EXIT_OK;
    if (n_left != 1)
        return esper_cli_usage(&esper_command_report, "expected one run, got %d", n_left);
    if (out != NULL && out[0] == '\0')
        return esper_cli_usage(&esper_command_report, "--out wants a file, not an empty word");
    status = report(argv[0], out);
    return status == ESPER_OK ? ESPER_EXIT_OK : esper_cli_fail(status);
}

const esper_command esper_command_report = {
    .name = "report",
    .arguments = "RUN [--out FILE]",
    .summary = "a page about a grown run: curves, seeds, why",
    .help =
        "Writes one HTML page about a grown run from its run store: the closing table, curves, the life of every\n"
        "seed, the evidence at its gates, decisions, rollbacks and what seeds are worth. The page needs nothing else:\n"
        "it can be mailed, printed and read offline. A run that is still going on is shown as far as it has come.\n"
        "RUN is a directory, the beginning of its name below runs/, or 'last'.\n\n"
        "  --out FILE      where to write it (default: report.html in the run's directory); replaced when it is there",
    .keys = (const char *const[]){NULL},
    .run = run,
};
