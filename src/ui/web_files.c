/* The files of web/. The build makes their bytes (cmake/WebFiles.cmake). */
#include "ui/web_files.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "generated/web_files.h"

static const esper_web_file files[] = {ESPER_WEB_FILES};

enum { N_FILES = sizeof(files) / sizeof(files[0]) };

static char tag[20];

const esper_web_file *esper_web_file_find(const char *name)
{
    for (int i = 0; i < N_FILES; i++)
        if (strcmp(files[i].name, name) == 0)
            return &files[i];
    return NULL;
}

const char *esper_web_file_type(const char *name)
{
    static const struct {
        const char *ending, *type;
    } types[] = {{".html", "text/html; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".svg", "image/svg+xml"}};
    const char *ending = strrchr(name, '.');

    for (size_t i = 0; ending != NULL && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(ending, types[i].ending) == 0)
            return types[i].type;
    return "application/octet-stream";
}

static void make_tag(void)
{
    uint64_t hash = 0;

    for (int i = 0; i < N_FILES; i++)
        hash = XXH64(files[i].bytes, files[i].n_bytes, hash);
    snprintf(tag, sizeof(tag), "\"%016" PRIx64 "\"", hash);
}

const char *esper_web_file_tag(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_tag);
    return tag;
}
