/* Internal. The web server of `esper serve`: pages and data about all runs below a directory, to be read and never written.
 *
 *     request.h     what is asked for, and by whom       catalogue.h   which runs there are
 *     answers.h     data as JSON                         live.h        what happens from here on
 *     server_mhd.c  HTTP by libmicrohttpd                server_none.c its place where that is absent
 *
 * Who is on this machine may ask. From elsewhere it takes a token of 128 bits, made anew each time; the first visit hands it over
 * in its address, and is sent on with a cookie in its place. */
#ifndef ESPER_SERVE_SERVE_H
#define ESPER_SERVE_SERVE_H

#include <stdbool.h>

#include "esper.h"

typedef struct esper_server esper_server;

typedef struct esper_serve_options {
    const char *dir;
    const char *address; /* numbers, such as 127.0.0.1 or ::1 */
    int         port;    /* 0: the first that is free from ESPER_SERVE_PORT on */
} esper_serve_options;

enum { ESPER_SERVE_PORT = 8600, ESPER_SERVE_URL_CHARS = 256 };

/* Whether this build has it. */
bool esper_serve_is_built(void);

/* Serves until it is closed, by threads of its own. */
esper_status esper_serve_open(const esper_serve_options *options, esper_server **server_out);
void         esper_serve_close(esper_server *server);

/* The address to type, with the token where one is needed. */
const char *esper_serve_url(const esper_server *server);
bool        esper_serve_has_token(const esper_server *server);
int         esper_serve_n_runs(const esper_server *server);

#endif
