/* A directory below /tmp. */
#include "bench/home.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* A run has files alone. What cannot be removed is small, and in a place for such things. */
static void remove_run(const char *dir)
{
    char path[512];
    const struct dirent *entry;
    DIR *handle = opendir(dir);

    while (handle != NULL && (entry = readdir(handle)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) < (int)sizeof(path))
            (void)unlink(path);
    if (handle != NULL)
        closedir(handle);
    (void)rmdir(dir);
}

esper_status esper_bench_home_open(char home_out[ESPER_BENCH_HOME_CHARS])
{
    snprintf(home_out, ESPER_BENCH_HOME_CHARS, "/tmp/esper-bench-XXXXXX");
    if (mkdtemp(home_out) == NULL) {
        int code = errno;

        home_out[0] = '\0';
        return ESPER_FAIL(ESPER_E_IO, "no directory for the benchmark's runs can be made in /tmp: %s", strerror(code));
    }
    return ESPER_OK;
}

void esper_bench_home_close(const char *home)
{
    char path[512];
    const struct dirent *entry;
    DIR *handle = home[0] != '\0' ? opendir(home) : NULL;

    if (handle == NULL)
        return;
    while ((entry = readdir(handle)) != NULL)
        if (entry->d_name[0] != '.' && snprintf(path, sizeof(path), "%s/%s", home, entry->d_name) < (int)sizeof(path))
            remove_run(path);
    closedir(handle);
    (void)rmdir(home);
}
