/* Loading modules. They are looked for relative to the program alone, so that a tree may be moved and nobody's search
 * path decides what is loaded. */
#include "dist/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

#ifndef ESPER_MODULE_FROM_BIN /* the way from the installed program to the installed modules */
#define ESPER_MODULE_FROM_BIN "../lib/esper"
#endif

enum { PATH_CHARS = 4096 };

/* Where modules lie, seen from the program's folder: beside it in a build tree, where they are installed, in lib/ of a kit;
 * and the same seen from a test program, two folders deeper. */
static const char *const places[] = {".", ESPER_MODULE_FROM_BIN, "lib", "../..", "../../lib"};

static bool find_module(const char *file, char *path, size_t chars)
{
    char folder[PATH_CHARS];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash;

    if (n <= 0 || (size_t)n >= sizeof(folder) - 1)
        return false;
    folder[n] = '\0';
    slash = strrchr(folder, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        int length = snprintf(path, chars, "%.*s/%s/%s", (int)(slash - folder), folder, places[i], file);

        if (length > 0 && (size_t)length < chars && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

/* Global: the parts of Open MPI that it loads by itself look for its functions in the whole program. */
esper_status esper_module_load(const char *file, const esper_comm_kind **kind_out)
{
    char path[PATH_CHARS + 64];
    const esper_comm_kind *kind;
    void *library;

    if (!find_module(file, path, sizeof(path)))
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "this build has no %s: install Open MPI (Debian: apt-get install "
                          "libopenmpi-dev openmpi-bin) and build again",
                          file);
    library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "%s cannot be loaded (%s): install Open MPI (Debian: apt-get install "
                          "openmpi-bin)",
                          file, dlerror());
    kind = dlsym(library, ESPER_COMM_MODULE_ENTRY);
    if (kind == NULL || kind->abi != ESPER_COMM_ABI)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s is of another version of this program: build it again", path);
    *kind_out = kind;
    return ESPER_OK;
}
