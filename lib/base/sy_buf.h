/* sy_buf.h - bytes that cross threads and sockets: reference-counted, 64-byte aligned, recycled by
 * size class, so that a layer costs no page fault. And a frame: a message on its way out, as pieces
 * by reference. Any thread. */
#ifndef SY_BUF_H
#define SY_BUF_H

#include "sy_status.h"

typedef struct sy_buf {
    void *data; /* 64-byte aligned */
    size_t len; /* bytes asked for */
} sy_buf;

sy_buf *sy_buf_alloc(size_t len); /* one reference; contents undefined; NULL: no memory. From the
                                     process-wide pool */
sy_buf *sy_buf_ref(sy_buf *buf);  /* returns buf */
void sy_buf_unref(
    sy_buf *buf); /* accepts NULL; lock-free enough for gRPC's slice destructors: never calls out */
size_t sy_buf_outstanding(void); /* buffers alive: zero at the end of a test */
void sy_buf_trim(void);          /* gives recycled memory back to the system */

typedef struct sy_iov {
    const void *data;
    size_t len;
} sy_iov;

#define SY_FRAME_PIECES_MAX 16
/* Pieces in order; each holds one reference to its buffer. Whoever has the frame ends it with
 * sy_frame_free, or hands it to a send call, which then owns the references. */
typedef struct sy_frame {
    size_t n_pieces;
    size_t total_bytes;
    struct {
        sy_buf *buf;
        const void *data; /* inside buf */
        size_t len;
    } piece[SY_FRAME_PIECES_MAX];
} sy_frame;

void sy_frame_init(sy_frame *frame);
/* Takes a reference of its own to buf. SY_ELIMIT: too many pieces. */
SY_MUST_USE sy_status sy_frame_add(sy_frame *frame, sy_buf *buf, const void *data, size_t len);
void sy_frame_free(sy_frame *frame);

#endif
