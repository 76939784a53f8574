/* Preloaded into a program that uses the cuda backend, loses its device in earnest: at the launch that LOSE_AT counts to,
 * kernels and graphs alike, a kernel that traps is launched first, and every call of the driver behind it fails as after any
 * fault of a kernel. dev/gpu/fleet.sh has runs lost so, and resumed.
 *   cc -O2 -fPIC -shared -o lose_device.so dev/gpu/lose_device.c        LD_PRELOAD=lose_device.so LOSE_AT=500 esper grow ... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef int (*launch_kernel)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                             void **extra);
typedef int (*launch_graph)(void *graph, void *stream);
typedef void *(*look_up)(void *library, const char *name);

static struct {
    void         *library;
    launch_kernel kernel;
    launch_graph  graph;
    atomic_long   n_launches;
} driver;

static look_up real_dlsym(void)
{
    look_up found = (look_up)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");

    return found != NULL ? found : (look_up)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
}

static void trap(void *stream)
{
    static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry lost() { trap; }\n";
    int (*load)(void **, const void *) = (int (*)(void **, const void *))real_dlsym()(driver.library, "cuModuleLoadData");
    int (*find)(void **, void *, const char *) =
        (int (*)(void **, void *, const char *))real_dlsym()(driver.library, "cuModuleGetFunction");
    void *module, *kernel;

    if (load(&module, code) != 0 || find(&kernel, module, "lost") != 0)
        abort(); /* a rehearsal that does not happen must not look like one that went well */
    (void)driver.kernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void count(void *stream)
{
    const char *at = getenv("LOSE_AT");

    if (at != NULL && atomic_fetch_add(&driver.n_launches, 1) + 1 == atol(at))
        trap(stream);
}

static int counted_kernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                          unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    count(stream);
    return driver.kernel(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra);
}

static int counted_graph(void *graph, void *stream)
{
    count(stream);
    return driver.graph(graph, stream);
}

void *dlsym(void *library, const char *name)
{
    void *found = real_dlsym()(library, name);

    if (found != NULL && strcmp(name, "cuLaunchKernel") == 0) {
        driver.library = library;
        driver.kernel = (launch_kernel)found;
        return (void *)counted_kernel;
    }
    if (found != NULL && strcmp(name, "cuGraphLaunch") == 0) {
        driver.graph = (launch_graph)found;
        return (void *)counted_graph;
    }
    return found;
}
