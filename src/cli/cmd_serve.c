/* esper serve: runs in a browser. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/number.h"
#include "base/status.h"
#include "cli/cli.h"
#include "serve/serve.h"
#include "ui/terminal.h"

enum { LISTEN, PORT };

static const esper_command_option options[] = {[LISTEN] = {"listen", true}, [PORT] = {"port", true}, {.name = NULL}};

static void print_open(const esper_server *server, const char *dir)
{
    int n = esper_serve_n_runs(server);

    esper_terminal_print(stdout, "serving   %s, %d run%s%s\n", dir, n, n == 1 ? "" : "s",
                         n == 0 ? "; what begins there appears by itself" : "");
    printf("open      %s\n", esper_serve_url(server));
    if (esper_serve_has_token(server))
        esper_terminal_print(
            stdout, "token     it is part of the address above, is not shown again, and travels unencrypted: in a "
                    "network you do not trust, leave --listen out and use ssh -L\n");
    printf("stop      Ctrl-C\n");
    fflush(stdout);
}

static esper_status read_port(const char *text, int *port_out)
{
    int64_t port = 0;
    bool fits;

    if (text != NULL && (!esper_number_read_int(text, &port, &fits) || !fits || port < 1 || port > 65535))
        return ESPER_FAIL(ESPER_E_CONFIG, "--port wants a number from 1 to 65535, not '%.40s'", text);
    *port_out = (int)port;
    return ESPER_OK;
}

/* The directory that runs go to may come later; one that somebody typed is there. */
static esper_status check_dir(const char *dir, bool typed)
{
    struct stat info;

    if (stat(dir, &info) != 0)
        return typed ? ESPER_FAIL(ESPER_E_NOTFOUND, "%s: there is no such directory", dir) : ESPER_OK;
    return S_ISDIR(info.st_mode) ? ESPER_OK
                                 : ESPER_FAIL(ESPER_E_CONFIG, "%s is a file: give the directory that runs lie in", dir);
}

/* Signals are taken here and nowhere else: threads that are started later inherit that they wait. */
static esper_status run(esper_cli_call *call)
{
    const char *dir = call->n_words > 0 ? call->words[0] : "runs";
    esper_serve_options wanted = {.dir = dir,
                                  .address = call->given[LISTEN] != NULL ? call->given[LISTEN] : "127.0.0.1"};
    esper_server *server;
    sigset_t ends;
    int signal_number;

    ESPER_TRY(read_port(call->given[PORT], &wanted.port));
    if (esper_serve_is_built())
        ESPER_TRY(check_dir(dir, call->n_words > 0));
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN); /* who goes away while we write is no reason to end */
    ESPER_TRY(esper_serve_open(&wanted, &server));
    print_open(server, dir);
    sigwait(&ends, &signal_number);
    esper_serve_close(server);
    return ESPER_OK;
}

const esper_command esper_command_serve = {
    .name = "serve",
    .arguments = "[DIR] [options]",
    .summary = "all runs in a browser, live",
    .help =
        "Shows the runs below DIR (runs, unless given) in a browser: a table of all of them, and of each the network as it\n"
        "grew, epoch by epoch, its curves, trials, seeds, gates, decisions, health and rollbacks; several runs beside each\n"
        "other; what a policy learned. A run that is going on is shown live. Nothing is changed: run stores are read.\n\n"
        "  --listen ADDRESS   which address of this machine to listen at (default: 127.0.0.1, for this machine alone).\n"
        "                     Any other asks for a token, which is part of the address that is printed\n"
        "  --port N           the port (default: the first free one from 8600 on)",
    .keys = (const char *const[]){NULL},
    .options = options,
    .most_words = 1,
    .run = run,
};
