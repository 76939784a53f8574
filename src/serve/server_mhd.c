/* HTTP by libmicrohttpd: one thread serves all connections; a second one, of ours, watches stores (live.h) and the clock.
 *
 * A connection that listens sleeps between messages. Every other one is under the clock: from the moment it is made, or has had its
 * last answer, its request must come within some seconds, and an answer must be taken within a minute, however it drips. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/page.h"
#include "base/status.h"
#include "serve/answers.h"
#include "serve/catalogue.h"
#include "serve/live.h"
#include "serve/request.h"
#include "serve/serve.h"
#include "ui/drawing.h"
#include "ui/web_files.h"

enum {
    MOST_CONNECTIONS = 512,
    CONNECTION_BYTES = 16 << 10, /* of a request with its headers, and of what is on its way out */
    PORTS_TO_TRY = 20,
    REQUEST_S = 10, /* for a request to be there, from its connection's beginning or last answer */
    ANSWER_S = 60,  /* for its answer to be taken */
    IDLE_S = 30,    /* without a byte in either direction */
    SOCKETS_KEPT = 64, /* descriptors for all else */
    CROWD = 16,        /* connections: when so many have gone, their memory is given back */
};

/* One connection, as long as it lasts. */
typedef struct guest {
    struct guest *next, *before;
    int           socket;
    void         *connection;
    double        due; /* by esper_clock_seconds; 0: it listens */
} guest;

struct esper_server {
    struct MHD_Daemon *daemon;
    esper_catalogue   *catalogue;
    esper_live        *live;
    bool               is_local, has_token;
    char               token[ESPER_TOKEN_CHARS], pass[ESPER_TOKEN_CHARS]; /* of the address, and of the cookie */
    char               cookie[32], url[ESPER_SERVE_URL_CHARS];
    pthread_mutex_t    mutex; /* of guests */
    pthread_cond_t     changed;
    pthread_t          clock;
    bool               has_clock, over;
    guest             *guests;
    int                n_guests, most_guests; /* now; at once, since memory was given back */
};

bool esper_serve_is_built(void)
{
    return true;
}

/* ------------------------------------------------------------------------------------------------ the clock */

static void set_due(esper_server *server, guest *one, double seconds)
{
    pthread_mutex_lock(&server->mutex);
    one->due = seconds > 0.0 ? esper_clock_seconds() + seconds : 0.0;
    pthread_mutex_unlock(&server->mutex);
}

/* Called before a socket is used for the first time, and before it is closed: what is in the list is open. */
static void note_connection(void *self, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode code)
{
    esper_server *server = self;
    guest *one = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        one = esper_mem_alloc(sizeof(*one));
        *context = one;
        if (one == NULL)
            return;
        one->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        one->connection = connection;
        one->due = esper_clock_seconds() + REQUEST_S;
        pthread_mutex_lock(&server->mutex);
        one->next = server->guests;
        if (one->next != NULL)
            one->next->before = one;
        server->guests = one;
        server->n_guests++;
        if (server->n_guests > server->most_guests)
            server->most_guests = server->n_guests;
        pthread_mutex_unlock(&server->mutex);
    } else if (one != NULL) {
        pthread_mutex_lock(&server->mutex);
        *(one->before != NULL ? &one->before->next : &server->guests) = one->next;
        if (one->next != NULL)
            one->next->before = one->before;
        server->n_guests--;
        pthread_mutex_unlock(&server->mutex);
        esper_mem_free(one);
        *context = NULL;
    }
}

static bool is_gone(int socket)
{
    struct pollfd look = {.fd = socket, .events = POLLRDHUP};

    return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* A connection takes some 28 kB, most of it libmicrohttpd's. Freed, it stays with the process, as blocks of a few bytes that the thread's
 * cache keeps lie between, and the next crowd finds holes too small: so every crowd would leave the process larger. Called and left
 * with the mutex held. */
static void give_back(esper_server *server)
{
    if (server->most_guests - server->n_guests < CROWD || server->n_guests > server->most_guests / 2)
        return;
    server->most_guests = server->n_guests;
    pthread_mutex_unlock(&server->mutex);
    esper_mem_give_back();
    pthread_mutex_lock(&server->mutex);
}

/* Libmicrohttpd sees a socket that was shut down as one whose other end has gone, and closes it. */
static void *mind_clock(void *self)
{
    esper_server *server = self;
    struct timespec until;

    pthread_mutex_lock(&server->mutex);
    while (!server->over) {
        double now = esper_clock_seconds();

        for (guest *g = server->guests; g != NULL; g = g->next) {
            if (g->due > 0.0 && g->due < now)
                shutdown(g->socket, SHUT_RDWR);
            else if (g->due <= 0.0 && is_gone(g->socket))
                esper_live_end(server->live, g->connection);
        }
        give_back(server);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&server->changed, &server->mutex, &until);
    }
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

static guest *guest_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

/* ------------------------------------------------------------------------------------------------ answers */

/* A page takes nothing from elsewhere and is shown in no frame of others; what it is sent as, it is. */
static void add_headers(struct MHD_Response *response)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
         "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
    };

    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
}

/* Sends and lets go of it. */
static enum MHD_Result send_response(struct MHD_Connection *connection, int code, struct MHD_Response *response)
{
    enum MHD_Result result;

    if (response == NULL)
        return MHD_NO;
    add_headers(response);
    result = MHD_queue_response(connection, (unsigned)code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_words(struct MHD_Connection *connection, int code, const char *words)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(words), (void *)(uintptr_t)words, MHD_RESPMEM_MUST_COPY);

    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", "text/plain; charset=utf-8");
        MHD_add_response_header(response, "Cache-Control", "no-store");
        if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
            MHD_add_response_header(response, "Allow", "GET, HEAD");
    }
    return send_response(connection, code, response);
}

/* The page is the response's from here on. */
static enum MHD_Result send_page(struct MHD_Connection *connection, esper_page *page, const char *type)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(page->used, page->text, esper_mem_free);

    if (response == NULL) {
        esper_page_fini(page);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    return send_response(connection, MHD_HTTP_OK, response);
}

/* What went wrong, in words that name no path beyond the directory that is served. */
static enum MHD_Result send_failure(struct MHD_Connection *connection, esper_status status)
{
    switch (status) {
    case ESPER_E_NOTFOUND:
        return send_words(connection, MHD_HTTP_NOT_FOUND, "There is no such run.\n");
    case ESPER_E_FORMAT:
    case ESPER_E_UNSUPPORTED:
        return send_words(connection, MHD_HTTP_NOT_FOUND,
                          "The store of this run cannot be read: it is damaged, or of another "
                          "version. `esper report` says more.\n");
    default:
        return send_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "The store cannot be read just now.\n");
    }
}

static enum MHD_Result send_file(struct MHD_Connection *connection, const char *name)
{
    const esper_web_file *file = esper_web_file_find(name);
    const char *known = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "If-None-Match");
    struct MHD_Response *response;
    int code = MHD_HTTP_OK;

    if (file == NULL)
        return send_words(connection, MHD_HTTP_NOT_FOUND, "There is no such page.\n");
    if (known != NULL && strcmp(known, esper_web_file_tag()) == 0) {
        response = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
        code = MHD_HTTP_NOT_MODIFIED;
    } else {
        response =
            MHD_create_response_from_buffer(file->n_bytes, (void *)(uintptr_t)file->bytes, MHD_RESPMEM_PERSISTENT);
    }
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", esper_web_file_type(name));
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "ETag", esper_web_file_tag());
    }
    return send_response(connection, code, response);
}

static enum MHD_Result send_runs(esper_server *server, struct MHD_Connection *connection)
{
    esper_page page = {0};
    uint64_t version;
    esper_status status = esper_catalogue_refresh(server->catalogue, &version);

    if (status == ESPER_OK)
        status = esper_catalogue_list(server->catalogue, &page);
    if (status != ESPER_OK) {
        esper_page_fini(&page);
        return send_failure(connection, status);
    }
    return send_page(connection, &page, "application/json");
}

static enum MHD_Result send_run(esper_server *server, struct MHD_Connection *connection, const esper_request *request)
{
    esper_catalogue_entry entry;
    esper_source source;
    esper_page page = {0};
    esper_status status = esper_catalogue_find(server->catalogue, request->run, &entry);

    if (status == ESPER_OK)
        status = esper_source_open(entry.store, &source);
    if (status != ESPER_OK)
        return send_failure(connection, status);
    status = esper_answer_whole(&source, entry.id, entry.name, entry.running, &page);
    esper_source_close(&source);
    if (status != ESPER_OK) {
        esper_page_fini(&page);
        return send_failure(connection, status);
    }
    return send_page(connection, &page, "application/json");
}

/* The network as it stood after an epoch; without one, as it stands. */
static enum MHD_Result send_drawing(esper_server *server, struct MHD_Connection *connection,
                                    const esper_request *request)
{
    esper_catalogue_entry entry;
    esper_source source;
    esper_drawing drawing;
    esper_page page = {0};
    char title[64];
    esper_status status = esper_catalogue_find(server->catalogue, request->run, &entry);

    if (status == ESPER_OK)
        status = esper_source_open(entry.store, &source);
    if (status != ESPER_OK)
        return send_failure(connection, status);
    status = esper_drawing_read(source.reader, source.run.id, request->epoch >= 0 ? request->epoch : ESPER_DRAWING_LAST,
                                &drawing);
    esper_source_close(&source);
    if (status == ESPER_OK) {
        snprintf(title, sizeof(title), "The network after epoch %" PRId64, drawing.epoch);
        esper_drawing_svg(&page, &drawing, "network", title);
        status = page.status;
    }
    if (status != ESPER_OK) {
        esper_page_fini(&page);
        return send_failure(connection, status);
    }
    return send_page(connection, &page, "image/svg+xml");
}

/* ------------------------------------------------------------------------------------------------ listening */

static void sleep_connection(void *connection)
{
    MHD_suspend_connection(connection);
}

static void wake_connection(void *connection)
{
    MHD_resume_connection(connection);
}

static ssize_t read_live(void *listener, uint64_t position, char *bytes, size_t room)
{
    ssize_t n = esper_live_read(listener, bytes, room);

    (void)position;
    return n >= 0 ? n : MHD_CONTENT_READER_END_OF_STREAM;
}

static void leave_live(void *listener)
{
    esper_live_leave(listener);
}

static enum MHD_Result send_live(esper_server *server, struct MHD_Connection *connection, esper_request *request)
{
    const char *last = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Last-Event-ID");
    bool of_run = request->run[0] != '\0';
    esper_catalogue_entry entry;
    esper_live_listener *listener;
    struct MHD_Response *response;
    esper_status status = ESPER_OK;
    guest *one = guest_of(connection);

    if (last != NULL && esper_mark_read(last, &request->mark)) /* it was here before, and knows more by now */
        request->has_mark = true;
    if (of_run)
        status = esper_catalogue_find(server->catalogue, request->run, &entry);
    if (status == ESPER_OK)
        status = esper_live_listen(server->live, of_run ? &entry : NULL, request->has_mark ? &request->mark : NULL,
                                   connection, &listener);
    if (status != ESPER_OK)
        return send_failure(connection, status);
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read_live, listener, leave_live);
    if (response == NULL) {
        esper_live_leave(listener);
        return MHD_NO;
    }
    if (one != NULL)
        set_due(server, one, 0.0);
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    return send_response(connection, MHD_HTTP_OK, response);
}

/* ------------------------------------------------------------------------------------------------ who asks */

static bool is_allowed(const esper_server *server, struct MHD_Connection *connection)
{
    const char *bearer = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization");
    const char *cookies = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Cookie");
    char token[ESPER_TOKEN_CHARS];

    if (!server->has_token)
        return true;
    if (bearer != NULL && esper_token_from_bearer(bearer, token))
        return esper_token_is(token, server->token);
    return cookies != NULL && esper_token_from_cookies(cookies, server->cookie, token) &&
           esper_token_is(token, server->pass);
}

/* The first visit: the token leaves the address bar, and the browser keeps a pass of its own. */
static enum MHD_Result admit(const esper_server *server, struct MHD_Connection *connection)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    char cookie[128];

    if (response != NULL) {
        snprintf(cookie, sizeof(cookie), "%s=%s; Path=/; HttpOnly; SameSite=Strict", server->cookie, server->pass);
        MHD_add_response_header(response, "Set-Cookie", cookie);
        MHD_add_response_header(response, "Location", "/");
        MHD_add_response_header(response, "Cache-Control", "no-store");
    }
    return send_response(connection, MHD_HTTP_SEE_OTHER, response);
}

static enum MHD_Result answer(esper_server *server, struct MHD_Connection *connection, esper_request *request)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");

    if (server->is_local && (host == NULL || !esper_host_is_local(host)))
        return send_words(connection, MHD_HTTP_FORBIDDEN,
                          "This server is for the machine it runs on: use localhost.\n");
    if (server->has_token && request->token[0] != '\0' && esper_token_is(request->token, server->token))
        return admit(server, connection);
    if (!is_allowed(server, connection))
        return send_words(connection, MHD_HTTP_UNAUTHORIZED,
                          "This takes the address with its token, which `esper serve` printed when it was started.\n");
    switch (request->route) {
    case ESPER_ROUTE_FILE:
        return send_file(connection, request->file);
    case ESPER_ROUTE_RUNS:
        return send_runs(server, connection);
    case ESPER_ROUTE_RUN:
        return send_run(server, connection, request);
    case ESPER_ROUTE_LIVE:
        return send_live(server, connection, request);
    case ESPER_ROUTE_DRAWING:
        return send_drawing(server, connection, request);
    }
    return send_words(connection, MHD_HTTP_NOT_FOUND, "There is no such page.\n");
}

/* A request as it was read from its first line, before its headers. */
typedef struct asked {
    int           code; /* of HTTP: what esper_request_read says */
    bool          is_begun;
    esper_request request;
} asked;

static void *read_target(void *self, const char *target, struct MHD_Connection *connection)
{
    asked *one = esper_mem_alloc(sizeof(*one));

    (void)self;
    (void)connection;
    if (one != NULL)
        one->code = esper_request_read(target, &one->request);
    return one;
}

/* Called when the headers are there, again for each part of a body, and at its end. Bodies are not read: an answer before the end
 * closes the connection. */
static enum MHD_Result take_request(void *self, struct MHD_Connection *connection, const char *url, const char *method,
                                    const char *version, const char *body, size_t *body_bytes, void **context)
{
    esper_server *server = self;
    asked *one = *context;
    guest *who = guest_of(connection);

    (void)url;
    (void)version;
    (void)body;
    if (one == NULL || *body_bytes > 0)
        return MHD_NO;
    if (who != NULL)
        set_due(server, who, ANSWER_S);
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_words(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Here is nothing to be changed.\n");
    if (!one->is_begun) {
        one->is_begun = true;
        return MHD_YES;
    }
    if (one->code == MHD_HTTP_NOT_FOUND)
        return send_words(connection, MHD_HTTP_NOT_FOUND, "There is no such page.\n");
    if (one->code != MHD_HTTP_OK)
        return send_words(connection, MHD_HTTP_BAD_REQUEST, "This address cannot be read.\n");
    return answer(server, connection, &one->request);
}

static void end_request(void *self, struct MHD_Connection *connection, void **context,
                        enum MHD_RequestTerminationCode code)
{
    guest *who = guest_of(connection);

    (void)code;
    esper_mem_free(*context);
    *context = NULL;
    if (who != NULL)
        set_due(self, who, REQUEST_S);
}

/* Says nothing: an address may have a token in it, and what strangers send is not worth a log. */
static void say_nothing(void *self, const char *format, va_list args)
{
    (void)self;
    (void)format;
    (void)args;
}

/* ------------------------------------------------------------------------------------------------ beginning */

static esper_status make_secret(char token[ESPER_TOKEN_CHARS])
{
    unsigned char bytes[(ESPER_TOKEN_CHARS - 1) / 2];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return ESPER_FAIL(ESPER_E_IO, "no random numbers for a token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return ESPER_OK;
}

static void set_port(struct sockaddr_storage *address, int port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)address)->sin_port = htons((uint16_t)port);
}

static esper_status read_address(const char *text, struct sockaddr_storage *address_out, socklen_t *bytes_out)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;

    if (getaddrinfo(text, NULL, &hints, &found) != 0)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "--listen wants an address of this machine in numbers, such as 127.0.0.1 or 0.0.0.0, not '%.60s'", text);
    memset(address_out, 0, sizeof(*address_out));
    memcpy(address_out, found->ai_addr, found->ai_addrlen);
    *bytes_out = found->ai_addrlen;
    freeaddrinfo(found);
    return ESPER_OK;
}

static bool loops_back(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr) != 0;
    return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
}

/* A socket that listens, at that port, or at the first that is free. */
static esper_status open_socket(const esper_serve_options *options, struct sockaddr_storage *address, socklen_t bytes,
                                int *socket_out, int *port_out)
{
    int first = options->port > 0 ? options->port : ESPER_SERVE_PORT;
    int last = options->port > 0 ? options->port : ESPER_SERVE_PORT + PORTS_TO_TRY - 1, one = 1;

    for (int port = first; port <= last; port++) {
        int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
            return ESPER_FAIL(ESPER_E_IO, "no socket: %s", strerror(errno));
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        set_port(address, port);
        if (bind(fd, (struct sockaddr *)address, bytes) == 0 && listen(fd, 256) == 0) {
            *socket_out = fd;
            *port_out = port;
            return ESPER_OK;
        }
        close(fd);
        if (errno != EADDRINUSE)
            break;
    }
    return errno == EADDRINUSE && options->port == 0
               ? ESPER_FAIL(ESPER_E_IO, "ports %d to %d of %s are all in use: choose one with --port", first, last,
                            options->address)
               : ESPER_FAIL(ESPER_E_IO, "%s, port %d: %s", options->address, first, strerror(errno));
}

/* Of an address that stands for all of a machine's, the machine's name is what others type. */
static void write_url(esper_server *server, const struct sockaddr_storage *address, const char *text, int port)
{
    bool is_v6 = address->ss_family == AF_INET6;
    bool is_any = strcmp(text, "0.0.0.0") == 0 || strcmp(text, "::") == 0;
    char name[128] = "";

    if (is_any && gethostname(name, sizeof(name) - 1) != 0)
        name[0] = '\0';
    snprintf(server->url, sizeof(server->url), "http://%s%s%s:%d/%s%s", is_v6 && !is_any ? "[" : "",
             is_any && name[0] != '\0' ? name : text, is_v6 && !is_any ? "]" : "", port,
             server->has_token ? "?token=" : "", server->has_token ? server->token : "");
    snprintf(server->cookie, sizeof(server->cookie), "esper-%d", port); /* cookies do not mind ports */
}

/* Every connection is a descriptor, and so is every store that is open. */
static unsigned connections_allowed(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return SOCKETS_KEPT;
    if (limit.rlim_cur < MOST_CONNECTIONS + SOCKETS_KEPT && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max < 2 * MOST_CONNECTIONS ? limit.rlim_max : 2 * MOST_CONNECTIONS;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur < MOST_CONNECTIONS + SOCKETS_KEPT ? (unsigned)(limit.rlim_cur / 2) : MOST_CONNECTIONS;
}

static esper_status start_daemon(esper_server *server, int socket)
{
    server->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, take_request, server, MHD_OPTION_EXTERNAL_LOGGER, say_nothing, NULL, MHD_OPTION_LISTEN_SOCKET,
        socket, MHD_OPTION_CONNECTION_LIMIT, connections_allowed(), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_URI_LOG_CALLBACK,
        read_target, server, MHD_OPTION_NOTIFY_COMPLETED, end_request, server, MHD_OPTION_NOTIFY_CONNECTION,
        note_connection, server, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (server->daemon == NULL) {
        close(socket);
        return ESPER_FAIL(ESPER_E_IO, "libmicrohttpd cannot be started: %s", strerror(errno));
    }
    return ESPER_OK;
}

static esper_status start_clock(esper_server *server)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&server->clock, NULL, mind_clock, server) != 0)
        return ESPER_FAIL(ESPER_E_IO, "a thread cannot be started: %s", strerror(errno));
    server->has_clock = true;
    return ESPER_OK;
}

static esper_status start(esper_server *server, const esper_serve_options *options)
{
    const esper_live_ops ops = {.sleep = sleep_connection, .wake = wake_connection};
    struct sockaddr_storage address;
    socklen_t bytes = 0;
    int socket = -1, port = 0;

    ESPER_TRY(read_address(options->address, &address, &bytes));
    server->is_local = loops_back(&address);
    server->has_token = !server->is_local;
    ESPER_TRY(make_secret(server->token));
    ESPER_TRY(make_secret(server->pass));
    ESPER_TRY(start_clock(server));
    ESPER_TRY(esper_catalogue_open(options->dir, &server->catalogue));
    ESPER_TRY(esper_live_open(server->catalogue, &ops, &server->live));
    ESPER_TRY(open_socket(options, &address, bytes, &socket, &port));
    write_url(server, &address, options->address, port);
    return start_daemon(server, socket);
}

esper_status esper_serve_open(const esper_serve_options *options, esper_server **server_out)
{
    esper_server *server = esper_mem_alloc(sizeof(*server));
    esper_status status;

    if (server == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the server");
    status = start(server, options);
    if (status != ESPER_OK) {
        esper_serve_close(server);
        return status;
    }
    *server_out = server;
    return ESPER_OK;
}

/* Listeners are woken before the daemon stops, which must find none asleep. */
void esper_serve_close(esper_server *server)
{
    if (server == NULL)
        return;
    if (server->live != NULL)
        esper_live_stop(server->live);
    if (server->daemon != NULL)
        MHD_stop_daemon(server->daemon);
    esper_live_close(server->live);
    if (server->has_clock) {
        pthread_mutex_lock(&server->mutex);
        server->over = true;
        pthread_cond_signal(&server->changed);
        pthread_mutex_unlock(&server->mutex);
        pthread_join(server->clock, NULL);
        pthread_cond_destroy(&server->changed);
        pthread_mutex_destroy(&server->mutex);
    }
    esper_catalogue_close(server->catalogue);
    esper_mem_free(server);
}

const char *esper_serve_url(const esper_server *server)
{
    return server->url;
}

bool esper_serve_has_token(const esper_server *server)
{
    return server->has_token;
}

int esper_serve_n_runs(const esper_server *server)
{
    return esper_catalogue_count(server->catalogue);
}
