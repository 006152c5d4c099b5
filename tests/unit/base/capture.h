/* capture.h - what a piece of code writes to stdout or stderr, for the tests of lib/base. One
 * capture at a time. */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct capture {
    FILE *file;
    int fd;       /* STDOUT_FILENO or STDERR_FILENO */
    int saved_fd; /* what it was before */
} capture;

static inline capture capture_begin(int fd)
{
    capture c = {.file = tmpfile(), .fd = fd};

    assert_non_null(c.file);
    fflush(NULL);
    c.saved_fd = dup(fd);
    assert_true(dup2(fileno(c.file), fd) >= 0);
    return c;
}

/* The caller frees the text. */
static inline char *capture_end(capture *c)
{
    char *text;
    long len;

    fflush(NULL);
    dup2(c->saved_fd, c->fd);
    close(c->saved_fd);
    fseek(c->file, 0, SEEK_END);
    len = ftell(c->file);
    rewind(c->file);
    text = calloc(1, (size_t)len + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)len, c->file), len);
    fclose(c->file);
    return text;
}

#endif
