/* Any bytes as what a browser sends: the target of a request, and the headers that decide who may ask. What is read is whole, of
 * bounded length, and text; a mark reads back as it was written. */
#include "base/utf8.h"
#include "fuzz/fuzz.h"
#include "serve/request.h"

static void must_be_text(const char *text, size_t room)
{
    size_t left = strnlen(text, room), n;

    fuzz_must(left < room);
    for (; left > 0; text += n, left -= n) {
        n = esper_utf8_length((const uint8_t *)text, left);
        fuzz_must(n > 0 && !esper_utf8_is_control((const uint8_t *)text, n));
    }
}

static void read_target(const char *text)
{
    esper_request request = {.route = ESPER_ROUTE_FILE};
    char mark[ESPER_MARK_CHARS];
    esper_mark back;
    int code = esper_request_read(text, &request);

    fuzz_must(code == 200 || code == 400 || code == 404);
    if (code != 200)
        return;
    must_be_text(request.run, sizeof(request.run));
    must_be_text(request.file, sizeof(request.file));
    must_be_text(request.token, sizeof(request.token));
    fuzz_must(strchr(request.file, '/') == NULL && request.epoch >= -1);
    if (request.has_mark)
        fuzz_must(esper_mark_read(esper_mark_write(&request.mark, mark), &back) &&
                  memcmp(&back, &request.mark, sizeof(back)) == 0);
}

static void read_headers(const char *text)
{
    char token[ESPER_TOKEN_CHARS];
    esper_mark mark;

    if (esper_token_from_bearer(text, token) || esper_token_from_cookies(text, "esper-8600", token))
        fuzz_must(strlen(token) == ESPER_TOKEN_CHARS - 1 &&
                  strspn(token, "0123456789abcdef") == ESPER_TOKEN_CHARS - 1 && esper_token_is(token, token));
    if (esper_host_is_local(text))
        fuzz_must(strpbrk(text, "/@ ") == NULL);
    (void)esper_mark_read(text, &mark);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char *text = malloc(n_bytes + 1); /* exact, so that reading past its end is seen */

    fuzz_must(text != NULL);
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = '\0';
    read_target(text);
    read_headers(text);
    free(text);
    return 0;
}
