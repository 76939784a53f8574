/* Pipes, poll and waiting for a child, none of them without an end. */
#include "policy/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

struct esper_child {
    pid_t  pid;      /* also of its group; 0 = none was started */
    int    to, from; /* our ends of its input and output; -1 = closed */
    bool   failed;
    size_t n_used, n_line; /* bytes in the buffer, and of the line given out, its end included */
    char   buffer[ESPER_CHILD_LINE_BYTES];
};

enum { GRACE_MS = 500, EXIT_MS = 200, NAP_MS = 2 };

static const uint64_t ns_per_ms = 1000000;

/* ------------------------------------------------------------------------------------------------ starting */

/* A pipe whose ends are above the standard streams, which may be closed in a daemon, and not inherited. */
static esper_status open_pipe(int ends[2])
{
    int low[2], saved;

    if (pipe2(low, O_CLOEXEC) != 0)
        return ESPER_FAIL(ESPER_E_IO, "a pipe to the program: %s", strerror(errno));
    ends[0] = fcntl(low[0], F_DUPFD_CLOEXEC, 3);
    ends[1] = fcntl(low[1], F_DUPFD_CLOEXEC, 3);
    saved = errno;
    close(low[0]);
    close(low[1]);
    if (ends[0] >= 0 && ends[1] >= 0)
        return ESPER_OK;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    ends[0] = ends[1] = -1;
    return ESPER_FAIL(ESPER_E_IO, "a pipe to the program: %s", strerror(saved));
}

/* A shell of its own group, with no signal blocked, and those we may ignore back to what they do by default. */
static int spawn_shell(const char *command, int in, int out, pid_t *pid_out)
{
    static const int usual[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP};
    char shell[] = "sh", flag[] = "-c";
    char *arguments[] = {shell, flag, (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    int error = posix_spawn_file_actions_init(&actions);

    if (error != 0)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        sigemptyset(&none);
        sigemptyset(&defaults);
        for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
            sigaddset(&defaults, usual[i]);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        error = posix_spawnattr_setflags(&attributes,
                                         POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if (error == 0)
            error = posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
        if (error == 0)
            error = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
        if (error == 0)
            error = posix_spawn(pid_out, "/bin/sh", &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static void close_end(int *end)
{
    if (*end >= 0)
        close(*end);
    *end = -1;
}

static esper_status start(esper_child *child, const char *command)
{
    int input[2] = {-1, -1}, output[2] = {-1, -1}, error;
    esper_status status = open_pipe(input);

    if (status == ESPER_OK)
        status = open_pipe(output);
    child->to = input[1];
    child->from = output[0];
    if (status == ESPER_OK) {
        error = spawn_shell(command, input[0], output[1], &child->pid);
        if (error != 0) {
            child->pid = 0;
            status = ESPER_FAIL(ESPER_E_IO, "/bin/sh cannot be started: %s", strerror(error));
        }
    }
    close_end(&input[0]);
    close_end(&output[1]);
    if (status == ESPER_OK &&
        (fcntl(child->to, F_SETFL, O_NONBLOCK) != 0 || fcntl(child->from, F_SETFL, O_NONBLOCK) != 0))
        status = ESPER_FAIL(ESPER_E_IO, "the program's pipes: %s", strerror(errno));
    return status;
}

esper_status esper_child_open(const char *command, esper_child **child_out)
{
    esper_child *child = esper_mem_alloc(sizeof(*child));
    esper_status status;

    if (child == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a program's pipes");
    child->to = child->from = -1;
    status = start(child, command);
    if (status != ESPER_OK) {
        child->failed = true;
        esper_child_close(child);
        return status;
    }
    *child_out = child;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ending */

/* Whether it has ended, looked at again and again for at most wait_ms. It is not collected: its id stays its own. */
static bool has_ended(const esper_child *child, int wait_ms, siginfo_t *info)
{
    uint64_t end = esper_clock_ns() + (uint64_t)wait_ms * ns_per_ms;

    for (;;) {
        memset(info, 0, sizeof(*info));
        if (waitid(P_PID, (id_t)child->pid, info, WEXITED | WNOWAIT | WNOHANG) != 0 && errno != EINTR)
            return true; /* somebody else has collected it */
        if (info->si_pid != 0)
            return true;
        if (esper_clock_ns() >= end)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = (long)(NAP_MS * ns_per_ms)}, NULL);
    }
}

void esper_child_close(esper_child *child)
{
    siginfo_t info;

    if (child == NULL)
        return;
    close_end(&child->to);
    close_end(&child->from);
    if (child->pid > 0) {
        if (!has_ended(child, child->failed ? 0 : GRACE_MS, &info)) {
            kill(-child->pid, SIGTERM);
            has_ended(child, GRACE_MS, &info);
        }
        kill(-child->pid, SIGKILL); /* its leader is not yet collected: until then no other group can have this id */
        while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    esper_mem_free(child);
}

/* ------------------------------------------------------------------------------------------------ asking */

/* write() to a pipe nobody reads kills the process by SIGPIPE unless the signal is blocked; it is for the calling thread
 * alone, and taken back if it came. */
static ssize_t write_quietly(int end, const char *text, size_t bytes)
{
    sigset_t pipe_signal, before, pending;
    bool was_pending;
    ssize_t n;
    int error;

    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    n = write(end, text, bytes);
    error = errno;
    if (n < 0 && error == EPIPE && !was_pending)
        while (sigtimedwait(&pipe_signal, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return n;
}

/* Why a pipe came to its end: in words, from how the program ended. */
static esper_status fail_ended(const esper_child *child, const char *pipe_name)
{
    siginfo_t info;

    if (!has_ended(child, EXIT_MS, &info))
        return ESPER_FAIL(ESPER_E_IO, "it closed its %s, but still runs", pipe_name);
    if (info.si_pid == 0)
        return ESPER_FAIL(ESPER_E_IO, "it ended without an answer");
    if (info.si_code != CLD_EXITED) {
        const char *name = sigdescr_np(info.si_status);

        return ESPER_FAIL(ESPER_E_IO, "it was ended by signal %d (%s)", info.si_status,
                          name != NULL ? name : "unknown");
    }
    if (info.si_status == 126 || info.si_status == 127)
        return ESPER_FAIL(ESPER_E_IO, "it could not be run (exit status %d): is it there, and may it be executed?",
                          info.si_status);
    return ESPER_FAIL(ESPER_E_IO, "it ended without an answer, exit status %d", info.si_status);
}

static const char *find_line_end(const esper_child *child)
{
    return memchr(child->buffer, '\n', child->n_used);
}

/* One wait for either pipe, and what can be done then. An answer may come before all of the question was read. */
static esper_status exchange(esper_child *child, const char *text, size_t bytes, uint64_t end, size_t *sent)
{
    bool sends = *sent < bytes, receives = find_line_end(child) == NULL;
    struct pollfd ends[2] = {{.fd = receives ? child->from : -1, .events = POLLIN},
                             {.fd = sends ? child->to : -1, .events = POLLOUT}};
    uint64_t now = esper_clock_ns();
    ssize_t n;

    assert(child->n_used <= sizeof(child->buffer) && *sent <= bytes && (sends || receives));
    if (now >= end)
        return ESPER_FAIL(ESPER_E_IO, "no %s before the deadline",
                          receives ? "answer" : "taking of all of the question");
    n = poll(ends, 2, (int)((end - now) / ns_per_ms) + 1);
    if (n < 0 && errno != EINTR)
        return ESPER_FAIL(ESPER_E_IO, "waiting for it: %s", strerror(errno));
    if (n <= 0)
        return ESPER_OK;
    if (ends[0].revents != 0) {
        n = read(child->from, child->buffer + child->n_used, sizeof(child->buffer) - child->n_used);
        if (n == 0)
            return fail_ended(child, "output");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return ESPER_FAIL(ESPER_E_IO, "reading from it: %s", strerror(errno));
        child->n_used += n > 0 ? (size_t)n : 0;
    }
    if (ends[1].revents != 0) {
        n = write_quietly(child->to, text + *sent, bytes - *sent);
        if (n < 0 && errno == EPIPE)
            return fail_ended(child, "input");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return ESPER_FAIL(ESPER_E_IO, "writing to it: %s", strerror(errno));
        *sent += n > 0 ? (size_t)n : 0;
    }
    if (child->n_used == sizeof(child->buffer) && find_line_end(child) == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "its answer has more than %d bytes in one line", ESPER_CHILD_LINE_BYTES - 1);
    return ESPER_OK;
}

esper_status esper_child_ask(esper_child *child, const char *text, size_t bytes, int deadline_ms, const char **line_out,
                             size_t *line_bytes_out)
{
    uint64_t end = esper_clock_ns() + (uint64_t)deadline_ms * ns_per_ms;
    size_t sent = 0;

    if (child->failed)
        return ESPER_FAIL(ESPER_E_STATE, "it failed before and is not asked again");
    memmove(child->buffer, child->buffer + child->n_line, child->n_used - child->n_line);
    child->n_used -= child->n_line;
    child->n_line = 0;
    while (sent < bytes || find_line_end(child) == NULL) {
        esper_status status = exchange(child, text, bytes, end, &sent);

        if (status != ESPER_OK) {
            child->failed = true;
            return status;
        }
    }
    child->n_line = (size_t)(find_line_end(child) - child->buffer) + 1;
    *line_out = child->buffer;
    *line_bytes_out = child->n_line - 1;
    return ESPER_OK;
}
