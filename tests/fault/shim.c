/* Stands between a program and its system calls (LD_PRELOAD), for tests/fault/crash.py: counts them, kills the program at the n-th,
 * has the n-th fail, writes down what happens to files, lets clocks jump. By counting and not by time, so that every place is met.
 *
 *   SHIM_SHARED=FILE   what all processes of a job share, `shared` below; there before, full of zeros
 *   SHIM_ROOT=DIR      calls count that change something below DIR (without /proc's links); else every call counts that can fail
 *   SHIM_KILL=N        SIGKILL before the N-th; SHIM_KILL_ALL=1: to the whole process group
 *   SHIM_FAIL=N[,N]    these fail; SHIM_DRAW=K chooses among the errors that fit the call
 *   SHIM_RECORD=FILE   what is done below DIR, in order, as records of `record` below
 *   SHIM_CLOCK=K       the time of day jumps by up to two days either way every K-th time it is asked for, and the steady clock half
 *                      a second forward
 *
 * Calls that the C library makes for itself, as for stdio, are not seen: the program writes no files that way. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATH_CHARS = 4096, N_FAULTS = 2 };

typedef struct shared {
    _Atomic uint64_t n_calls;
    _Atomic uint32_t lock;
    _Atomic uint32_t n_failed;
    struct {
        char     call[24];
        int32_t  code; /* errno; 0: less was done than was asked for */
        char     path[228];
    } failed[N_FAULTS];
} shared;

enum { CREATE = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, LINK, MKDIR, RMDIR };

/* Followed by two paths, and the bytes written. */
typedef struct record {
    uint32_t op, n_path, n_other, is_dir;
    uint64_t inode, offset, bytes;
} record;

static struct {
    shared     *shared;
    const char *root;
    uint64_t    kill_at, fail_at[N_FAULTS], draw, clock_every;
    bool        kill_all;
    int         record_fd;
} shim = {.record_fd = -1};

/* The call itself: real(open)(...). */
#define real(name) \
    ({ \
        static __typeof__(&name) found; \
        if (found == NULL) \
            found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        found; \
    })

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static __attribute__((constructor)) void begin(void)
{
    const char *path = getenv("SHIM_SHARED"), *fail = getenv("SHIM_FAIL");
    int fd = path != NULL ? real(open)(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? real(mmap)(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (fd >= 0)
        real(close)(fd);
    if (map == MAP_FAILED)
        return;
    shim.root = getenv("SHIM_ROOT");
    shim.kill_at = number_of("SHIM_KILL");
    shim.kill_all = number_of("SHIM_KILL_ALL") != 0;
    shim.draw = number_of("SHIM_DRAW");
    shim.clock_every = number_of("SHIM_CLOCK");
    for (int i = 0; fail != NULL && i < N_FAULTS; i++) {
        shim.fail_at[i] = strtoull(fail, NULL, 10);
        fail = strchr(fail, ',');
        fail = fail != NULL ? fail + 1 : NULL;
    }
    path = getenv("SHIM_RECORD");
    if (path != NULL) {
        fd = real(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        shim.record_fd = real(fcntl)(fd, F_DUPFD_CLOEXEC, 200); /* out of the way of who counts descriptors */
        real(close)(fd);
    }
    shim.shared = map;
}

/* ------------------------------------------------------------------------------------------------ which calls count */

static bool is_below_root(const char *path)
{
    size_t n = shim.root != NULL ? strlen(shim.root) : 0;

    return strncmp(path, shim.root != NULL ? shim.root : "", n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* An absolute path; "" when it cannot be told. */
static void absolute(int dir, const char *path, char out[PATH_CHARS])
{
    char link[64], base[PATH_CHARS] = "";
    ssize_t n;

    if (path[0] == '/') {
        snprintf(out, PATH_CHARS, "%s", path);
        return;
    }
    if (dir == AT_FDCWD)
        snprintf(link, sizeof(link), "/proc/self/cwd");
    else
        snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
    n = real(readlink)(link, base, sizeof(base) - 1);
    base[n > 0 ? n : 0] = '\0';
    if (snprintf(out, PATH_CHARS, "%s/%s", base, path) >= PATH_CHARS)
        out[0] = '\0';
}

static void path_of(int fd, char out[PATH_CHARS])
{
    char link[64];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = real(readlink)(link, out, PATH_CHARS - 1);
    out[n > 0 ? n : 0] = '\0';
}

/* ------------------------------------------------------------------------------------------------ killing and failing */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void die(void)
{
    kill(shim.kill_all ? 0 : getpid(), SIGKILL);
    for (;;)
        pause();
}

enum { GO = -1, SHORT = 0 };

/* Counts a call. GO, or the error that it has to fail with, out of a list that ends with GO. */
static int met(const char *call, const char *path, const int *errors)
{
    uint64_t n;
    int code, n_errors = 0;

    if (shim.shared == NULL)
        return GO;
    n = atomic_fetch_add(&shim.shared->n_calls, 1) + 1;
    if (n == shim.kill_at)
        die();
    for (int i = 0; i < N_FAULTS; i++) {
        uint32_t k;

        if (n != shim.fail_at[i])
            continue;
        while (errors[n_errors] != GO)
            n_errors++;
        code = errors[mixed(shim.draw * 1000003 + n) % (uint64_t)n_errors];
        k = atomic_fetch_add(&shim.shared->n_failed, 1);
        if (k < N_FAULTS) {
            snprintf(shim.shared->failed[k].call, sizeof(shim.shared->failed[k].call), "%s", call);
            snprintf(shim.shared->failed[k].path, sizeof(shim.shared->failed[k].path), "%s", path);
            shim.shared->failed[k].code = code;
        }
        return code;
    }
    return GO;
}

#define MET(call, path, ...) met(call, path, (const int[]){__VA_ARGS__, GO})

/* For calls that change files: counted where it is below the root, or everything is. */
#define MET_PATH(call, path, ...) (shim.root == NULL || is_below_root(path) ? MET(call, path, __VA_ARGS__) : GO)
/* For those that change nothing: counted where everything is. */
#define MET_ANY(call, path, ...) (shim.root == NULL ? MET(call, path, __VA_ARGS__) : GO)

#define FAIL_WITH(code, value) \
    do { \
        errno = (code); \
        return (value); \
    } while (0)

/* ------------------------------------------------------------------------------------------------ writing down */

static void lock(void)
{
    uint32_t free = 0;

    while (shim.record_fd >= 0 && !atomic_compare_exchange_weak(&shim.shared->lock, &free, 1)) {
        free = 0;
        sched_yield();
    }
}

static void unlock(void)
{
    if (shim.record_fd >= 0)
        atomic_store(&shim.shared->lock, 0);
}

static void note(record head, const char *path, const char *other, const void *data)
{
    struct iovec parts[4];
    int saved = errno;

    if (shim.record_fd < 0 || !is_below_root(path))
        return;
    head.n_path = (uint32_t)strlen(path);
    head.n_other = (uint32_t)strlen(other);
    parts[0] = (struct iovec){&head, sizeof(head)};
    parts[1] = (struct iovec){(void *)(uintptr_t)path, head.n_path};
    parts[2] = (struct iovec){(void *)(uintptr_t)other, head.n_other};
    parts[3] = (struct iovec){(void *)(uintptr_t)data, data != NULL ? head.bytes : 0};
    if (writev(shim.record_fd, parts, 4) < (ssize_t)sizeof(head))
        abort(); /* what is not written down would be taken for not done */
    errno = saved;
}

static struct stat info_of(int fd)
{
    struct stat info = {0};
    int saved = errno;

    real(fstat)(fd, &info);
    errno = saved;
    return info;
}

static void note_fd(uint32_t op, int fd, const char *path, uint64_t offset, const void *data, uint64_t bytes)
{
    struct stat info;

    if (shim.record_fd < 0)
        return;
    info = info_of(fd);
    note((record){.op = op, .is_dir = S_ISDIR(info.st_mode), .inode = info.st_ino, .offset = offset, .bytes = bytes},
         path, "", data);
}

/* ------------------------------------------------------------------------------------------------ files */

static int open_at(const char *call, int dir, const char *path, int flags, mode_t mode)
{
    char full[PATH_CHARS];
    bool is_new;
    int code, fd;

    if (shim.shared == NULL)
        return real(openat)(dir, path, flags, mode);
    absolute(dir, path, full);
    if ((flags & (O_CREAT | O_TRUNC)) != 0)
        code = MET_PATH(call, full, EMFILE, ENOSPC, EIO, EACCES, ENOMEM, EROFS);
    else
        code = MET_ANY(call, full, EMFILE, ENFILE, EIO, EACCES, ENOMEM);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    is_new = (flags & O_CREAT) != 0 && real(faccessat)(AT_FDCWD, full, F_OK, 0) != 0;
    fd = real(openat)(dir, path, flags, mode);
    if (fd >= 0 && is_new)
        note_fd(CREATE, fd, full, 0, NULL, 0);
    else if (fd >= 0 && (flags & O_TRUNC) != 0)
        note_fd(TRUNCATE, fd, full, 0, NULL, 0);
    unlock();
    return fd;
}

#define MODE_OF(flags) \
    ({ \
        va_list rest; \
        mode_t mode = 0; \
        va_start(rest, flags); \
        if (((flags) & (O_CREAT | O_TMPFILE)) != 0) \
            mode = va_arg(rest, mode_t); \
        va_end(rest); \
        mode; \
    })

int open(const char *path, int flags, ...)
{
    return open_at("open", AT_FDCWD, path, flags, MODE_OF(flags));
}
int open64(const char *path, int flags, ...)
{
    return open_at("open", AT_FDCWD, path, flags, MODE_OF(flags));
}
int openat(int dir, const char *path, int flags, ...)
{
    return open_at("openat", dir, path, flags, MODE_OF(flags));
}
int openat64(int dir, const char *path, int flags, ...)
{
    return open_at("openat", dir, path, flags, MODE_OF(flags));
}

/* offset: -1 = where the file stands. */
static ssize_t write_at(const char *call, int fd, const void *data, size_t bytes, off_t offset)
{
    char path[PATH_CHARS];
    ssize_t n;
    int code;

    if (shim.shared == NULL)
        return offset < 0 ? real(write)(fd, data, bytes) : real(pwrite)(fd, data, bytes, offset);
    path_of(fd, path);
    code = MET_PATH(call, path, ENOSPC, EIO, EDQUOT, EINTR, SHORT);
    if (code > 0)
        FAIL_WITH(code, -1);
    if (code == SHORT && bytes > 1)
        bytes /= 2;
    lock();
    n = offset < 0 ? real(write)(fd, data, bytes) : real(pwrite)(fd, data, bytes, offset);
    if (n > 0)
        note_fd(WRITE, fd, path, (uint64_t)(offset < 0 ? lseek(fd, 0, SEEK_CUR) - n : offset), data, (uint64_t)n);
    unlock();
    return n;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    return write_at("write", fd, data, bytes, -1);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    return write_at("pwrite", fd, data, bytes, at);
}
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t at)
{
    return write_at("pwrite", fd, data, bytes, at);
}

int ftruncate(int fd, off_t bytes)
{
    char path[PATH_CHARS];
    int code, result;

    path_of(fd, path);
    code = MET_PATH("ftruncate", path, EIO, EINTR, EPERM);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = real(ftruncate)(fd, bytes);
    if (result == 0)
        note_fd(TRUNCATE, fd, path, (uint64_t)bytes, NULL, 0);
    unlock();
    return result;
}

int ftruncate64(int fd, off_t bytes)
{
    return ftruncate(fd, bytes);
}

static int sync_with(const char *call, int (*sync)(int), int fd)
{
    char path[PATH_CHARS];
    int code, result;

    path_of(fd, path);
    code = MET_PATH(call, path, EIO, ENOSPC, EDQUOT);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = sync(fd);
    if (result == 0)
        note_fd(SYNC, fd, path, 0, NULL, 0);
    unlock();
    return result;
}

int fsync(int fd)
{
    return sync_with("fsync", real(fsync), fd);
}
int fdatasync(int fd)
{
    return sync_with("fdatasync", real(fdatasync), fd);
}

int rename(const char *old, const char *new)
{
    char from[PATH_CHARS], to[PATH_CHARS];
    int code, result;

    absolute(AT_FDCWD, old, from);
    absolute(AT_FDCWD, new, to);
    code = MET_PATH("rename", to, EIO, ENOSPC, EACCES);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = real(rename)(old, new);
    if (result == 0)
        note((record){.op = RENAME}, from, to, NULL);
    unlock();
    return result;
}

int link(const char *old, const char *new)
{
    char from[PATH_CHARS], to[PATH_CHARS];
    int code, result;

    absolute(AT_FDCWD, old, from);
    absolute(AT_FDCWD, new, to);
    code = MET_PATH("link", to, EIO, ENOSPC, EMLINK, EPERM);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = real(link)(old, new);
    if (result == 0)
        note((record){.op = LINK}, from, to, NULL);
    unlock();
    return result;
}

int unlinkat(int dir, const char *path, int flags)
{
    char full[PATH_CHARS];
    int code, result;

    absolute(dir, path, full);
    code = MET_PATH("unlink", full, EIO, EACCES, EBUSY);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = real(unlinkat)(dir, path, flags);
    if (result == 0)
        note((record){.op = (flags & AT_REMOVEDIR) != 0 ? RMDIR : UNLINK}, full, "", NULL);
    unlock();
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}
int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdir(const char *path, mode_t mode)
{
    char full[PATH_CHARS];
    int code, result;

    absolute(AT_FDCWD, path, full);
    code = MET_PATH("mkdir", full, ENOSPC, EIO, EACCES, EROFS);
    if (code != GO)
        FAIL_WITH(code, -1);
    lock();
    result = real(mkdir)(path, mode);
    if (result == 0)
        note((record){.op = MKDIR}, full, "", NULL);
    unlock();
    return result;
}

/* ------------------------------------------------------------------------------------------------ calls that change no file */

#define ANY_FD(call, fd, ...) \
    char path[PATH_CHARS] = ""; \
    int code; \
    if (shim.shared != NULL && shim.root == NULL) \
        path_of(fd, path); \
    code = MET_ANY(call, path, __VA_ARGS__)

static ssize_t read_at(const char *call, int fd, void *data, size_t bytes, off_t offset)
{
    ANY_FD(call, fd, EIO, EINTR, ENOMEM);
    if (code != GO)
        FAIL_WITH(code, -1);
    return offset < 0 ? real(read)(fd, data, bytes) : real(pread)(fd, data, bytes, offset);
}

ssize_t read(int fd, void *data, size_t bytes)
{
    return read_at("read", fd, data, bytes, -1);
}
ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    return read_at("pread", fd, data, bytes, at);
}
ssize_t pread64(int fd, void *data, size_t bytes, off_t at)
{
    return read_at("pread", fd, data, bytes, at);
}

/* The descriptor is closed either way, as Linux does it. */
int close(int fd)
{
    ANY_FD("close", fd, EIO, EINTR, ENOSPC);
    if (fd == shim.record_fd && fd >= 0)
        FAIL_WITH(EBADF, -1);
    if (code == GO)
        return real(close)(fd);
    real(close)(fd);
    FAIL_WITH(code, -1);
}

int fstat(int fd, struct stat *out)
{
    ANY_FD("fstat", fd, EIO, ENOMEM);
    if (code != GO)
        FAIL_WITH(code, -1);
    return real(fstat)(fd, out);
}

int stat(const char *path, struct stat *out)
{
    int code = MET_ANY("stat", path, EIO, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(stat)(path, out);
}

int lstat(const char *path, struct stat *out)
{
    int code = MET_ANY("lstat", path, EIO, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(lstat)(path, out);
}

int fstat64(int fd, struct stat64 *out)
{
    return fstat(fd, (struct stat *)out);
}
int stat64(const char *path, struct stat64 *out)
{
    return stat(path, (struct stat *)out);
}
int lstat64(const char *path, struct stat64 *out)
{
    return lstat(path, (struct stat *)out);
}

int access(const char *path, int mode)
{
    int code = MET_ANY("access", path, EIO, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(access)(path, mode);
}

ssize_t readlink(const char *path, char *out, size_t size)
{
    int code = MET_ANY("readlink", path, EIO, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(readlink)(path, out, size);
}

char *getcwd(char *out, size_t size)
{
    int code = MET_ANY("getcwd", "", ENOENT, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, NULL);
    return real(getcwd)(out, size);
}

DIR *opendir(const char *path)
{
    int code = MET_ANY("opendir", path, EMFILE, EACCES, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, NULL);
    return real(opendir)(path);
}

struct dirent *readdir(DIR *dir)
{
    int code = MET_ANY("readdir", "", EIO, EIO);

    if (code != GO)
        FAIL_WITH(code, NULL);
    return real(readdir)(dir);
}

int fcntl(int fd, int command, ...)
{
    va_list rest;
    void *argument;

    va_start(rest, command);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (command == F_SETLK || command == F_SETLKW) { /* the others fail for a wrong descriptor alone */
        ANY_FD("fcntl", fd, ENOLCK, EINTR, EACCES);
        if (code != GO)
            FAIL_WITH(code, -1);
    }
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        ANY_FD("fcntl", fd, EMFILE, EMFILE);
        if (code != GO)
            FAIL_WITH(code, -1);
    }
    return real(fcntl)(fd, command, argument);
}

int fcntl64(int fd, int command, ...)
{
    va_list rest;
    void *argument;

    va_start(rest, command);
    argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl(fd, command, argument);
}

int flock(int fd, int operation)
{
    ANY_FD("flock", fd, ENOLCK, EINTR, ENOMEM);
    if (code != GO)
        FAIL_WITH(code, -1);
    return real(flock)(fd, operation);
}

int fchmod(int fd, mode_t mode)
{
    ANY_FD("fchmod", fd, EIO, EPERM, EROFS);
    if (code != GO)
        FAIL_WITH(code, -1);
    return real(fchmod)(fd, mode);
}

int dup2(int fd, int wanted)
{
    int code = MET_ANY("dup2", "", EMFILE, EINTR, EBUSY);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(dup2)(fd, wanted);
}

int pipe2(int fds[2], int flags)
{
    int code = MET_ANY("pipe2", "", EMFILE, ENFILE);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(pipe2)(fds, flags);
}

int poll(struct pollfd *fds, nfds_t n, int wait_ms)
{
    int code = MET_ANY("poll", "", EINTR, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(poll)(fds, n, wait_ms);
}

void *mmap(void *wanted, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    int code = MET_ANY("mmap", "", ENOMEM, EAGAIN);

    if (code != GO)
        FAIL_WITH(code, MAP_FAILED);
    return real(mmap)(wanted, bytes, protection, flags, fd, offset);
}

void *mmap64(void *wanted, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return mmap(wanted, bytes, protection, flags, fd, offset);
}

pid_t fork(void)
{
    int code = MET_ANY("fork", "", EAGAIN, ENOMEM);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(fork)();
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
                char *const arguments[], char *const environment[])
{
    int code = MET_ANY("posix_spawn", path, EAGAIN, ENOMEM);

    return code != GO ? code : real(posix_spawn)(pid, path, actions, how, arguments, environment);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    int code = MET_ANY("waitpid", "", EINTR, EINTR);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(waitpid)(pid, status, options);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*work)(void *), void *argument)
{
    int code = MET_ANY("pthread_create", "", EAGAIN, EAGAIN);

    return code != GO ? code : real(pthread_create)(thread, how, work, argument);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *mine, unsigned long n_mine, const struct iovec *theirs,
                         unsigned long n_theirs, unsigned long flags)
{
    int code = MET_ANY("process_vm_readv", "", EPERM, ENOMEM, ENOSYS);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(process_vm_readv)(pid, mine, n_mine, theirs, n_theirs, flags);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *mine, unsigned long n_mine, const struct iovec *theirs,
                          unsigned long n_theirs, unsigned long flags)
{
    int code = MET_ANY("process_vm_writev", "", EPERM, ENOMEM, ENOSYS);

    if (code != GO)
        FAIL_WITH(code, -1);
    return real(process_vm_writev)(pid, mine, n_mine, theirs, n_theirs, flags);
}

/* ------------------------------------------------------------------------------------------------ clocks */

static int64_t day_shift(void)
{
    static _Atomic uint64_t n_asked;
    uint64_t n = atomic_fetch_add(&n_asked, 1);

    if (shim.clock_every == 0)
        return 0;
    return (int64_t)(mixed(n / shim.clock_every + shim.draw) % (4 * 86400)) - 2 * 86400;
}

static int64_t steady_shift(void)
{
    static _Atomic uint64_t n_asked;
    uint64_t n = atomic_fetch_add(&n_asked, 1);

    return shim.clock_every == 0 ? 0 : (int64_t)(n / shim.clock_every) * 500000000;
}

int clock_gettime(clockid_t which, struct timespec *out)
{
    int result = real(clock_gettime)(which, out);
    int64_t ns;

    if (result != 0)
        return result;
    ns = which == CLOCK_REALTIME ? day_shift() * 1000000000 : which == CLOCK_MONOTONIC ? steady_shift() : 0;
    ns += out->tv_nsec;
    out->tv_sec += ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    if (out->tv_nsec < 0) {
        out->tv_nsec += 1000000000;
        out->tv_sec--;
    }
    return 0;
}

time_t time(time_t *out)
{
    time_t now = real(time)(NULL) + day_shift();

    if (out != NULL)
        *out = now;
    return now;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int result = real(gettimeofday)(out, zone);

    out->tv_sec += day_shift();
    return result;
}
