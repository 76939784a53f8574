/* Internal. What a browser asks for, read from the bytes it sent: the target of a request line, and the few headers that decide
 * who may ask. Everything that comes from the other side passes here, and nothing else of the server looks at it (fuzzed:
 * tests/fuzz/fuzz_request.c).
 *
 *     /  /app.js          a file of the page              /api/runs                      all runs
 *     /?token=...         the first visit of a stranger   /api/run?run=ID                all that is known of one
 *                                                         /api/drawing?run=ID&epoch=N    its network after an epoch
 *                                                         /api/live[?run=ID&since=MARK]  what happens from here on
 *
 * A name is compared with those of runs that were found (catalogue.h): no path is ever made of it. */
#ifndef ESPER_SERVE_REQUEST_H
#define ESPER_SERVE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ESPER_REQUEST_ID_CHARS = 512,
    ESPER_REQUEST_FILE_CHARS = 32,
    ESPER_TOKEN_CHARS = 33, /* 128 bits in hexadecimal, and the zero */
};

typedef enum esper_route {
    ESPER_ROUTE_FILE,
    ESPER_ROUTE_RUNS,
    ESPER_ROUTE_RUN,
    ESPER_ROUTE_DRAWING,
    ESPER_ROUTE_LIVE,
} esper_route;

/* How far somebody has read: "7.1200.-1". The rows of a run and of its static control up to these numbers, of this generation:
 * another one means that rows have gone, since the run was resumed, and all must be read anew. */
typedef struct esper_mark {
    int64_t generation;
    int64_t seq, seq_control; /* -1: none */
} esper_mark;

typedef struct esper_request {
    esper_route route;
    char        file[ESPER_REQUEST_FILE_CHARS]; /* "index.html" */
    char        run[ESPER_REQUEST_ID_CHARS];    /* "" = none was given */
    int64_t     epoch;                          /* -1: none was given */
    bool        has_mark;
    esper_mark  mark;
    char        token[ESPER_TOKEN_CHARS]; /* "" = none was given */
} esper_request;

/* Reads a target, such as "/api/run?run=fashion-1". The answer is that of HTTP: 200, or 400 for what cannot be read, 404 for what
 * there is not; then nothing is written. */
int esper_request_read(const char *target, esper_request *request_out);

bool esper_mark_read(const char *text, esper_mark *mark_out);

enum { ESPER_MARK_CHARS = 72 };
const char *esper_mark_write(const esper_mark *mark, char text[ESPER_MARK_CHARS]);

/* Whether a Host header names this machine as only somebody on it would: localhost, or an address that loops back. A page of
 * somebody else, whose name was made to lead here, has that name in it. */
bool esper_host_is_local(const char *host);

/* The token of "Bearer TOKEN" and of a cookie of that name in "a=b; name=TOKEN; c=d"; false: there is none of that form. */
bool esper_token_from_bearer(const char *header, char token_out[ESPER_TOKEN_CHARS]);
bool esper_token_from_cookies(const char *header, const char *name, char token_out[ESPER_TOKEN_CHARS]);

/* Takes as long for every pair. */
bool esper_token_is(const char token[ESPER_TOKEN_CHARS], const char expected[ESPER_TOKEN_CHARS]);

#endif
