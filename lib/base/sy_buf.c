/* sy_buf.c - the process-wide pool of buffers. One header and one power-of-two payload lie in one
 * piece of memory; a buffer whose last reference goes waits in the list of its size class for the
 * next one of that size. The lists are last in, first out, because the newest memory is the
 * warmest. Under AddressSanitizer nothing is recycled, and a buffer is exactly as long as asked
 * for, so that every stray access is seen. */
#include "sy_buf.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sy_asan.h"

#define ALIGN_BYTES        ((size_t)64)
#define LEAST_CLASS_LOG2   8  /* 256 B */
#define LARGEST_CLASS_LOG2 26 /* 64 MB; larger buffers go straight back to the system */
#define N_CLASSES          (LARGEST_CLASS_LOG2 - LEAST_CLASS_LOG2 + 1)
#define NO_CLASS           N_CLASSES
#define CACHED_BYTES_MAX   ((size_t)256 << 20)

typedef struct pooled {
    sy_buf buf; /* first: a sy_buf * is a pooled * */
    _Atomic uint32_t n_refs;
    uint32_t class_id;   /* NO_CLASS: not recycled */
    struct pooled *next; /* while in a list */
} pooled;

_Static_assert(sizeof(pooled) <= ALIGN_BYTES, "the payload begins one alignment after the header");

/* The lock is held for two loads and two stores, never across a call. Each list has a cache line of
 * its own. */
typedef struct free_list {
    _Alignas(SY_CACHE_LINE) pthread_mutex_t lock;
    pooled *first;
} free_list;

static free_list lists[N_CLASSES] = {
    [0 ... N_CLASSES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};
static _Atomic size_t cached_bytes;
static _Atomic size_t n_outstanding;

static pooled *pooled_of(sy_buf *buf)
{
    return (pooled *)buf;
}

static uint32_t class_of(size_t len)
{
    size_t bits;

    if (SY_ASAN || len > (size_t)1 << LARGEST_CLASS_LOG2) return NO_CLASS;
    if (len <= (size_t)1 << LEAST_CLASS_LOG2) return 0;
    bits = 64 - (size_t)__builtin_clzll(len - 1);
    return (uint32_t)(bits - LEAST_CLASS_LOG2);
}

static size_t class_bytes(uint32_t class_id)
{
    return ALIGN_BYTES + ((size_t)1 << (LEAST_CLASS_LOG2 + class_id));
}

static pooled *list_pop(uint32_t class_id)
{
    free_list *list = &lists[class_id];
    pooled *self;

    pthread_mutex_lock(&list->lock);
    self = list->first;
    if (self != NULL) list->first = self->next;
    pthread_mutex_unlock(&list->lock);
    if (self != NULL) {
        atomic_fetch_sub_explicit(&cached_bytes, class_bytes(class_id), memory_order_relaxed);
    }
    return self;
}

/* False when the cache is full. The bytes are booked first, so that threads together cannot pass
 * the limit. */
static int list_push(pooled *self)
{
    free_list *list = &lists[self->class_id];
    const size_t bytes = class_bytes(self->class_id);

    if (atomic_fetch_add_explicit(&cached_bytes, bytes, memory_order_relaxed) + bytes >
        CACHED_BYTES_MAX) {
        atomic_fetch_sub_explicit(&cached_bytes, bytes, memory_order_relaxed);
        return 0;
    }
    pthread_mutex_lock(&list->lock);
    self->next = list->first;
    list->first = self;
    pthread_mutex_unlock(&list->lock);
    return 1;
}

static pooled *pooled_new(size_t len, uint32_t class_id)
{
    void *memory;
    pooled *self;

    if (len > PTRDIFF_MAX - ALIGN_BYTES) return NULL;
    if (posix_memalign(&memory, ALIGN_BYTES,
                       class_id == NO_CLASS ? ALIGN_BYTES + len : class_bytes(class_id)) != 0) {
        return NULL;
    }
    self = memory;
    self->class_id = class_id;
    return self;
}

sy_buf *sy_buf_alloc(size_t len)
{
    const uint32_t class_id = class_of(len);
    pooled *self = class_id == NO_CLASS ? NULL : list_pop(class_id);

    if (self == NULL) self = pooled_new(len, class_id);
    if (self == NULL) return NULL;
    self->buf.data = (char *)self + ALIGN_BYTES;
    self->buf.len = len;
    self->next = NULL;
    atomic_init(&self->n_refs, 1);
    atomic_fetch_add_explicit(&n_outstanding, 1, memory_order_relaxed);
    return &self->buf;
}

sy_buf *sy_buf_ref(sy_buf *buf)
{
    const uint32_t before =
        atomic_fetch_add_explicit(&pooled_of(buf)->n_refs, 1, memory_order_relaxed);

    SY_ASSERT(before > 0);
    return buf;
}

void sy_buf_unref(sy_buf *buf)
{
    pooled *self = pooled_of(buf);
    uint32_t before;

    if (buf == NULL) return;
    /* Release what this thread wrote; acquire what the others did, before the memory goes to
     * somebody else. */
    before = atomic_fetch_sub_explicit(&self->n_refs, 1, memory_order_acq_rel);
    SY_ASSERT(before > 0);
    if (before > 1) return;
    atomic_fetch_sub_explicit(&n_outstanding, 1, memory_order_relaxed);
    if (self->class_id == NO_CLASS || !list_push(self)) free(self);
}

size_t sy_buf_outstanding(void)
{
    return atomic_load_explicit(&n_outstanding, memory_order_relaxed);
}

void sy_buf_trim(void)
{
    pooled *self;

    for (uint32_t class_id = 0; class_id < N_CLASSES; class_id++) {
        while ((self = list_pop(class_id)) != NULL) free(self);
    }
}

void sy_frame_init(sy_frame *frame)
{
    frame->n_pieces = 0;
    frame->total_bytes = 0;
}

sy_status sy_frame_add(sy_frame *frame, sy_buf *buf, const void *data, size_t len)
{
    const uintptr_t offset = (uintptr_t)data - (uintptr_t)buf->data;

    SY_ASSERT(offset <= buf->len && len <= buf->len - offset);
    if (frame->n_pieces == SY_FRAME_PIECES_MAX) return SY_ELIMIT;
    frame->piece[frame->n_pieces].buf = sy_buf_ref(buf);
    frame->piece[frame->n_pieces].data = data;
    frame->piece[frame->n_pieces].len = len;
    frame->n_pieces++;
    frame->total_bytes += len;
    return SY_OK;
}

void sy_frame_free(sy_frame *frame)
{
    for (size_t i = 0; i < frame->n_pieces; i++) sy_buf_unref(frame->piece[i].buf);
    sy_frame_init(frame);
}
