/* Requests: strict readers of a few small texts. */
#include "serve/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/number.h"
#include "base/utf8.h"

enum { OK = 200, BAD = 400, NOT_FOUND = 404 };

/* ------------------------------------------------------------------------------------------------ texts */

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool is_text(const char *text)
{
    size_t left = strlen(text), n;

    for (; left > 0; text += n, left -= n) {
        n = esper_utf8_length((const uint8_t *)text, left);
        if (n == 0 || esper_utf8_is_control((const uint8_t *)text, n))
            return false;
    }
    return true;
}

/* A value of a query, of n bytes, without its %xx; false: it is too long, broken, or no text that could be shown. */
static bool decode(const char *value, size_t n, char *out, size_t room)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        char c = value[i];

        if (c == '%') {
            int high = i + 1 < n ? digit_of(value[i + 1]) : -1, low = i + 2 < n ? digit_of(value[i + 2]) : -1;

            if (high < 0 || low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (used + 1 >= room)
            return false;
        out[used++] = c;
    }
    out[used] = '\0';
    return is_text(out);
}

static bool is_token(const char *text)
{
    size_t n = strspn(text, "0123456789abcdef");

    return n == ESPER_TOKEN_CHARS - 1 && text[n] == '\0';
}

/* ------------------------------------------------------------------------------------------------ the target */

static bool read_int(const char *text, int64_t least, int64_t *value_out)
{
    int64_t value;
    bool fits;

    if (!esper_number_read_int(text, &value, &fits) || !fits || value < least)
        return false;
    *value_out = value;
    return true;
}

bool esper_mark_read(const char *text, esper_mark *mark_out)
{
    int64_t numbers[3];
    char part[ESPER_NUMBER_CHARS];

    for (int i = 0; i < 3; i++) {
        size_t n = strcspn(text, ".");

        if (n >= sizeof(part) || (text[n] == '.') != (i < 2))
            return false;
        memcpy(part, text, n);
        part[n] = '\0';
        if (!read_int(part, i == 0 ? 0 : -1, &numbers[i]))
            return false;
        text += n + 1;
    }
    *mark_out = (esper_mark){.generation = numbers[0], .seq = numbers[1], .seq_control = numbers[2]};
    return true;
}

const char *esper_mark_write(const esper_mark *mark, char text[ESPER_MARK_CHARS])
{
    snprintf(text, ESPER_MARK_CHARS, "%" PRId64 ".%" PRId64 ".%" PRId64, mark->generation, mark->seq,
             mark->seq_control);
    return text;
}

static bool is_named(const char *part, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(part, name, n) == 0;
}

/* One "name=value" of a query. A name that is not known is passed over, as everybody on the web does. */
static bool take_part(const char *part, size_t n, esper_request *request)
{
    const char *sign = memchr(part, '=', n);
    size_t n_name = sign != NULL ? (size_t)(sign - part) : n;
    const char *value = sign != NULL ? sign + 1 : part + n;
    size_t n_value = n - n_name - (sign != NULL);
    char text[ESPER_MARK_CHARS];

    if (is_named(part, n_name, "run"))
        return decode(value, n_value, request->run, sizeof(request->run)) && request->run[0] != '\0';
    if (is_named(part, n_name, "epoch"))
        return decode(value, n_value, text, sizeof(text)) && read_int(text, 0, &request->epoch);
    if (is_named(part, n_name, "since")) {
        request->has_mark = decode(value, n_value, text, sizeof(text)) && esper_mark_read(text, &request->mark);
        return request->has_mark;
    }
    if (is_named(part, n_name, "token"))
        return decode(value, n_value, request->token, sizeof(request->token)) && is_token(request->token);
    return true;
}

static bool read_query(const char *query, esper_request *request)
{
    while (*query != '\0') {
        size_t n = strcspn(query, "&");

        if (!take_part(query, n, request))
            return false;
        query += n + (query[n] == '&');
    }
    return true;
}

int esper_request_read(const char *target, esper_request *request_out)
{
    static const struct {
        const char *path;
        esper_route route;
        bool        wants_run;
    } routes[] = {{"/api/runs", ESPER_ROUTE_RUNS, false},
                  {"/api/run", ESPER_ROUTE_RUN, true},
                  {"/api/drawing", ESPER_ROUTE_DRAWING, true},
                  {"/api/live", ESPER_ROUTE_LIVE, false}};
    esper_request request = {.epoch = -1};
    size_t n_path = strcspn(target, "?");
    char path[ESPER_REQUEST_FILE_CHARS];

    if (target[0] != '/')
        return BAD;
    if (!decode(target, n_path, path, sizeof(path)))
        return n_path >= sizeof(path) ? NOT_FOUND : BAD; /* nothing has so long a name */
    if (target[n_path] == '?' && !read_query(target + n_path + 1, &request))
        return BAD;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (strcmp(path, routes[i].path) == 0) {
            request.route = routes[i].route;
            if (routes[i].wants_run && request.run[0] == '\0')
                return BAD;
            *request_out = request;
            return OK;
        }
    if (strchr(path + 1, '/') != NULL)
        return NOT_FOUND;
    request.route = ESPER_ROUTE_FILE;
    strcpy(request.file, path[1] != '\0' ? path + 1 : "index.html");
    *request_out = request;
    return OK;
}

/* ------------------------------------------------------------------------------------------------ headers */

/* "127.0.0.1" to "127.255.255.255": four numbers and no name that begins like one. */
static bool is_loop(const char *host, size_t n)
{
    char text[16], rest;
    unsigned a, b, c, d;

    if (n >= sizeof(text))
        return false;
    memcpy(text, host, n);
    text[n] = '\0';
    if (strspn(text, "0123456789.") != n || sscanf(text, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &rest) != 4)
        return false;
    return a == 127 && b < 256 && c < 256 && d < 256;
}

bool esper_host_is_local(const char *host)
{
    const char *end = host[0] == '[' ? strchr(host, ']') : NULL;
    size_t n = end != NULL ? (size_t)(end + 1 - host) : strcspn(host, ":");

    if (host[n] == ':' && (host[n + 1] == '\0' || strspn(host + n + 1, "0123456789") != strlen(host + n + 1)))
        return false;
    if (host[n] != '\0' && host[n] != ':')
        return false;
    return (n == 9 && strncasecmp(host, "localhost", 9) == 0) || is_named(host, n, "[::1]") || is_loop(host, n);
}

static bool take_token(const char *text, size_t n, char token_out[ESPER_TOKEN_CHARS])
{
    char token[ESPER_TOKEN_CHARS];

    if (n != ESPER_TOKEN_CHARS - 1)
        return false;
    memcpy(token, text, n);
    token[n] = '\0';
    if (!is_token(token))
        return false;
    memcpy(token_out, token, sizeof(token));
    return true;
}

bool esper_token_from_bearer(const char *header, char token_out[ESPER_TOKEN_CHARS])
{
    static const char scheme[] = "Bearer ";

    if (strncasecmp(header, scheme, strlen(scheme)) != 0)
        return false;
    return take_token(header + strlen(scheme), strlen(header) - strlen(scheme), token_out);
}

bool esper_token_from_cookies(const char *header, const char *name, char token_out[ESPER_TOKEN_CHARS])
{
    while (*header != '\0') {
        size_t n, n_name = strlen(name);

        header += strspn(header, " ");
        n = strcspn(header, ";");
        if (n > n_name && memcmp(header, name, n_name) == 0 && header[n_name] == '=' &&
            take_token(header + n_name + 1, n - n_name - 1, token_out))
            return true;
        header += n + (header[n] == ';');
    }
    return false;
}

bool esper_token_is(const char token[ESPER_TOKEN_CHARS], const char expected[ESPER_TOKEN_CHARS])
{
    volatile unsigned char differs = 0;

    for (int i = 0; i < ESPER_TOKEN_CHARS - 1; i++)
        differs = (unsigned char)(differs | (token[i] ^ expected[i]));
    return differs == 0;
}
