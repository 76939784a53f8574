/* Compiled kernels on disk. A file: a line that says what it is, a line with the title, how many bytes and a hash of them, and the
 * code. It is written under another name first, so that who finds it finds all of it. */
#include "device/cuda_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static const char magic[] = "esper kernels 1\n";

enum { PATH_CHARS = 4096, MOST_BYTES = 64 << 20 };

/* FNV-1a: the guard's library has no other. */
static uint64_t hash_bytes(const void *bytes, size_t n, uint64_t hash)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t esper_cuda_cache_key(const char *source, const esper_cuda_header *headers)
{
    uint64_t hash = hash_bytes(source, strlen(source) + 1, UINT64_C(0xcbf29ce484222325));

    for (; headers != NULL && headers->name != NULL; headers++) {
        hash = hash_bytes(headers->name, strlen(headers->name) + 1, hash);
        hash = hash_bytes(headers->text, strlen(headers->text) + 1, hash);
    }
    return hash;
}

/* Where programs keep such files; false: nowhere. */
static bool folder_of(char folder[PATH_CHARS])
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;

    if (xdg != NULL && xdg[0] == '/')
        n = snprintf(folder, PATH_CHARS, "%s/esper", xdg);
    else if (home != NULL && home[0] == '/')
        n = snprintf(folder, PATH_CHARS, "%s/.cache/esper", home);
    return n > 0 && n < PATH_CHARS - 128;
}

static bool path_of(const char *name, uint64_t key, int capability, char path[PATH_CHARS])
{
    char folder[PATH_CHARS];
    int n;

    if (!folder_of(folder))
        return false;
    n = snprintf(path, PATH_CHARS, "%s/%s-%016" PRIx64 "-sm_%d.kernels", folder, name, key, capability);
    return n > 0 && n < PATH_CHARS - 32;
}

static bool read_code(FILE *file, esper_cuda_code *code_out)
{
    esper_cuda_code code = {.bytes = NULL};
    char line[sizeof(magic)] = "";
    uint64_t n_bytes, hash;

    if (fread(line, 1, sizeof(magic) - 1, file) != sizeof(magic) - 1 || strcmp(line, magic) != 0 ||
        fgets(code.title, sizeof(code.title), file) == NULL || strchr(code.title, '\n') == NULL ||
        fscanf(file, "%" SCNu64 " %" SCNx64, &n_bytes, &hash) != 2 || fgetc(file) != '\n' || n_bytes > MOST_BYTES)
        return false;
    *strchr(code.title, '\n') = '\0';
    code.n_bytes = (size_t)n_bytes;
    code.bytes = esper_mem_alloc(code.n_bytes + 1); /* PTX is text */
    if (code.bytes == NULL)
        return false;
    if (fread(code.bytes, 1, code.n_bytes, file) != code.n_bytes || hash_bytes(code.bytes, code.n_bytes, 0) != hash) {
        esper_mem_free(code.bytes);
        return false;
    }
    *code_out = code;
    return true;
}

bool esper_cuda_cache_find(const char *name, uint64_t key, int capability, esper_cuda_code *code_out)
{
    char path[PATH_CHARS];
    bool found;
    FILE *file;

    if (!path_of(name, key, capability, path))
        return false;
    file = fopen(path, "rbe");
    if (file == NULL)
        return false;
    found = read_code(file, code_out);
    fclose(file);
    return found;
}

/* The folder, and the one it is in. */
static void make_folder(char *folder)
{
    char *last = strrchr(folder, '/');

    if (last != NULL && last != folder) {
        *last = '\0';
        (void)mkdir(folder, 0777);
        *last = '/';
    }
    (void)mkdir(folder, 0777);
}

void esper_cuda_cache_put(const char *name, uint64_t key, int capability, const esper_cuda_code *code)
{
    char path[PATH_CHARS], aside[PATH_CHARS], folder[PATH_CHARS];
    bool good;
    FILE *file;

    if (!folder_of(folder) || !path_of(name, key, capability, path) ||
        snprintf(aside, sizeof(aside), "%s.%ld", path, (long)getpid()) >= (int)sizeof(aside))
        return;
    make_folder(folder);
    file = fopen(aside, "wbe");
    if (file == NULL)
        return;
    good = fprintf(file, "%s%s\n%zu %016" PRIx64 "\n", magic, code->title, code->n_bytes,
                   hash_bytes(code->bytes, code->n_bytes, 0)) > 0 &&
           fwrite(code->bytes, 1, code->n_bytes, file) == code->n_bytes;
    good = fclose(file) == 0 && good;
    if (!good || rename(aside, path) != 0)
        (void)unlink(aside);
}
