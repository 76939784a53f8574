/* Internal to tests/ui. A pseudo-terminal: what is written to its stream is read back. */
#ifndef ESPER_TESTS_UI_HELPERS_H
#define ESPER_TESTS_UI_HELPERS_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct terminal {
    int   master;
    FILE *stream; /* the side that is written to */
    char  text[32768];
} terminal;

static inline void set_size(const terminal *self, int rows, int columns)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};

    assert_int_equal(ioctl(self->master, TIOCSWINSZ, &size), 0);
}

static inline void terminal_open(terminal *self, int rows, int columns)
{
    self->master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (self->master < 0 || grantpt(self->master) != 0 || unlockpt(self->master) != 0) {
        print_message("skipped: no pseudo-terminal\n");
        skip();
    }
    self->stream = fopen(ptsname(self->master), "w");
    assert_non_null(self->stream);
    set_size(self, rows, columns);
}

/* What was written since. */
static inline const char *terminal_read(terminal *self)
{
    size_t used = 0;
    ssize_t n;

    fflush(self->stream);
    while ((n = read(self->master, self->text + used, sizeof(self->text) - 1 - used)) > 0)
        used += (size_t)n;
    self->text[used] = '\0';
    return self->text;
}

static inline void terminal_close(terminal *self)
{
    fclose(self->stream);
    close(self->master);
}

#endif
