/* The server's place in a build without libmicrohttpd. */
#include <stddef.h>

#include "base/status.h"
#include "serve/serve.h"

bool esper_serve_is_built(void)
{
    return false;
}

esper_status esper_serve_open(const esper_serve_options *options, esper_server **server_out)
{
    (void)options;
    (void)server_out;
    return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                      "this build has no web server, since libmicrohttpd was not there: install it (Debian: "
                      "apt-get install libmicrohttpd-dev) and build again with `make`. `esper report RUN` makes a page "
                      "without it");
}

void esper_serve_close(esper_server *server)
{
    (void)server;
}

const char *esper_serve_url(const esper_server *server)
{
    (void)server;
    return "";
}

bool esper_serve_has_token(const esper_server *server)
{
    (void)server;
    return false;
}

int esper_serve_n_runs(const esper_server *server)
{
    (void)server;
    return 0;
}
