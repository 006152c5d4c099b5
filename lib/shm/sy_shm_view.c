/* sy_shm_view.c - regions as the server sees them: what a client's ticket names is looked at
 * closely before it is mapped. */
#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "sy_shm_internal.h"

enum { ATTACHES_MAX = 8 }; /* of one connection: an honest client needs one or two */

struct sy_shm_view {
    atomic_uint refs;
    uint8_t *data; /* [bytes], mapped */
    size_t bytes;
    uint8_t key[SY_SHM_KEY_BYTES];
};

struct sy_shm_guest {
    atomic_uint refs;
    int usable;
    pthread_mutex_t mutex; /* guards the rest */
    sy_shm_view *view;     /* NULL: none */
    int n_attached;        /* tickets tried */
};

/* ---- from a ticket to a mapping ---- */

static sy_status refuse(sy_error *err, const char *why)
{
    sy_error_set(err, SY_EPRECONDITION, "the memory that the client shares cannot be used: %s",
                 why);
    sy_error_where(err, SY_SHM_UNAVAILABLE, -1, -1, NULL);
    return SY_EPRECONDITION;
}

/* A size that is sealed stays; of ordinary shared memory, because of huge pages there may be too
 * few when they are touched. */
static const char *whats_wrong(int fd, uint64_t bytes)
{
    struct statfs fs;
    struct stat st;

    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) return "it is no memory file";
    if ((fcntl(fd, F_GET_SEALS) & SHM_SEALS) != SHM_SEALS) return "its size is not sealed";
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != bytes) return "it has another size";
    return NULL;
}

/* The number may stand for anything, a device or a pipe among them: it is looked at before it is
 * opened. -1: refused. */
static int open_region(const sy_shm_ticket *ticket, sy_error *err)
{
    char path[64];
    struct stat st;
    const char *wrong = NULL;

    snprintf(path, sizeof(path), "/proc/%" PRIu64 "/fd/%" PRIu32, ticket->pid, ticket->fd);
    const int at = open(path, O_PATH | O_CLOEXEC);
    if (at < 0) {
        refuse(err, strerror(errno));
        return -1;
    }
    const int regular = fstat(at, &st) == 0 && S_ISREG(st.st_mode);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
    int fd = regular ? open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (fd < 0)
        wrong = regular ? strerror(errno) : "it is no memory file";
    else
        wrong = whats_wrong(fd, ticket->bytes);
    close(at);
    if (wrong == NULL) return fd;
    refuse(err, wrong);
    if (fd >= 0) close(fd);
    return -1;
}

static sy_status check_header(const sy_shm_view *view, sy_error *err)
{
    shm_header header;

    memcpy(&header, view->data, sizeof(header)); /* once: its owner may write there */
    if (memcmp(header.magic, SHM_MAGIC, sizeof(header.magic)) != 0 || header.bytes != view->bytes)
        return refuse(err, "it does not begin as such a region does");
    if (memcmp(header.key, view->key, sizeof(header.key)) != 0)
        return refuse(err, "it is another region than the one that was meant");
    return SY_OK;
}

sy_status sy_shm_attach(sy_shm_view **out, const sy_shm_ticket *ticket, sy_error *err)
{
    sy_shm_view *view;
    sy_status st;

    *out = NULL;
    if (ticket->bytes <= SHM_HEADER_BYTES || ticket->bytes > SY_SHM_BYTES_MAX)
        return refuse(err, "its size is out of bounds");
    view = calloc(1, sizeof(*view));
    if (view == NULL) return refuse(err, "no memory");
    atomic_init(&view->refs, 1);
    view->bytes = (size_t)ticket->bytes;
    memcpy(view->key, ticket->key, sizeof(view->key));
    const int fd = open_region(ticket, err);
    if (fd < 0) {
        free(view);
        return SY_EPRECONDITION;
    }
    view->data = mmap(NULL, view->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (view->data == MAP_FAILED) {
        view->data = NULL;
        st = refuse(err, strerror(errno));
    } else {
        st = check_header(view, err);
    }
    close(fd); /* the mapping holds the file */
    if (st == SY_OK)
        *out = view;
    else
        sy_shm_view_unref(view);
    return st;
}

sy_shm_view *sy_shm_view_ref(sy_shm_view *view)
{
    atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    return view;
}

void sy_shm_view_unref(sy_shm_view *view)
{
    if (view == NULL || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (view->data != NULL) munmap(view->data, view->bytes);
    free(view);
}

void *sy_shm_view_at(const sy_shm_view *view, uint64_t offset, uint64_t bytes)
{
    if (offset < SHM_HEADER_BYTES || offset % SY_SHM_ALIGN != 0) return NULL;
    if (offset > view->bytes || bytes > view->bytes - offset) return NULL;
    return view->data + offset;
}

/* ---- what a connection has attached ---- */

sy_shm_guest *sy_shm_guest_open(int usable)
{
    sy_shm_guest *guest = calloc(1, sizeof(*guest));

    if (guest == NULL) return NULL;
    atomic_init(&guest->refs, 1);
    guest->usable = usable;
    pthread_mutex_init(&guest->mutex, NULL);
    return guest;
}

sy_shm_guest *sy_shm_guest_ref(sy_shm_guest *guest)
{
    atomic_fetch_add_explicit(&guest->refs, 1, memory_order_relaxed);
    return guest;
}

void sy_shm_guest_unref(sy_shm_guest *guest)
{
    if (guest == NULL || atomic_fetch_sub_explicit(&guest->refs, 1, memory_order_acq_rel) != 1)
        return;
    sy_shm_view_unref(guest->view);
    pthread_mutex_destroy(&guest->mutex);
    free(guest);
}

static int is_of(const sy_shm_view *view, const sy_shm_ticket *ticket)
{
    return view != NULL && view->bytes == ticket->bytes &&
           memcmp(view->key, ticket->key, sizeof(view->key)) == 0;
}

/* Under the mutex. */
static sy_status attach_other(sy_shm_guest *guest, const sy_shm_ticket *ticket, sy_error *err)
{
    sy_shm_view *view;

    if (guest->n_attached == ATTACHES_MAX)
        return refuse(err, "this connection has shared too many regions");
    guest->n_attached++;
    const sy_status st = sy_shm_attach(&view, ticket, err);
    if (st != SY_OK) return st;
    sy_shm_view_unref(guest->view);
    guest->view = view;
    return SY_OK;
}

sy_status sy_shm_guest_view(sy_shm_view **out, sy_shm_guest *guest, const sy_shm_ticket *ticket,
                            sy_error *err)
{
    sy_status st = SY_OK;

    *out = NULL;
    if (!guest->usable) return refuse(err, "this server does without (--shared-memory off)");
    pthread_mutex_lock(&guest->mutex);
    if (!is_of(guest->view, ticket)) st = attach_other(guest, ticket, err);
    if (st == SY_OK) *out = sy_shm_view_ref(guest->view);
    pthread_mutex_unlock(&guest->mutex);
    return st;
}
