/* The page about a run, as a file. */
#include "cli/report_page.h"

#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/status.h"
#include "cli/cli.h"
#include "run/run_dir.h"

/* Writing over what the report is made from, or over what the run goes on from, would lose it. */
static esper_status check_out(const char *dir, const char *out)
{
    static const char *const kept[] = {ESPER_RUN_STORE,      ESPER_RUN_STORE "-wal", ESPER_RUN_STORE "-shm",
                                       ESPER_RUN_CONFIG,     ESPER_RUN_EVENTS,       ESPER_RUN_DECISIONS,
                                       ESPER_RUN_CHECKPOINT, ESPER_RUN_SOUND,        ESPER_RUN_BEFORE,
                                       ESPER_RUN_BEST,       ESPER_RUN_POLICY};
    char path[ESPER_PATH_CHARS];
    struct stat a, b;

    if (stat(out, &a) != 0)
        return ESPER_OK;
    if (S_ISDIR(a.st_mode))
        return ESPER_FAIL(ESPER_E_CONFIG, "--out %s is a directory: name a file, such as %s/%s", out, out,
                          ESPER_REPORT_NAME);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        ESPER_TRY(esper_run_path(dir, kept[i], path));
        if (stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return ESPER_FAIL(ESPER_E_CONFIG, "--out %s is a file of the run itself: choose another one", out);
    }
    return ESPER_OK;
}

static esper_status compose(const char *dir, esper_page *page, esper_report_numbers *numbers_out)
{
    char path[ESPER_PATH_CHARS], quoted[ESPER_SHELL_CHARS];
    esper_store_reader *reader;
    struct stat info;
    esper_status status;

    ESPER_TRY(esper_run_path(dir, ESPER_RUN_STORE, path));
    if (stat(path, &info) != 0)
        return ESPER_FAIL(ESPER_E_NOTFOUND,
                          "%s has no run store (%s): was it made by `esper train`? Only grown runs keep one; "
                          "`esper inspect %s` shows what this run has",
                          dir, ESPER_RUN_STORE, esper_shell_quote_path(dir, quoted));
    ESPER_TRY(esper_store_reader_open(path, &reader));
    status = esper_report_closing(reader, ESPER_REPORT_RUN, numbers_out);
    if (status == ESPER_OK)
        status = esper_report_write(reader, ESPER_REPORT_RUN, page);
    esper_store_reader_close(reader);
    return status;
}

esper_status esper_report_page_write(const char *dir, const char *out, esper_report_numbers *numbers_out,
                                     size_t *bytes_out)
{
    esper_report_numbers numbers;
    esper_page page = {0};
    esper_status status;

    ESPER_TRY(check_out(dir, out));
    status = compose(dir, &page, &numbers);
    if (status == ESPER_OK)
        status = esper_file_write(out, page.text, page.used);
    if (status == ESPER_OK) {
        *numbers_out = numbers;
        *bytes_out = page.used;
    }
    esper_page_fini(&page);
    return status;
}
