/* emu_state.h - the emulated runtime's objects. Private to tests/emu/cudart, whose files (but
 * emu_bytes.c) are built without ThreadSanitizer. One lock guards everything here; it is held in
 * every function that does not say otherwise, and while it is, ThreadSanitizer ignores what the
 * thread reads and writes. */
#ifndef EMU_STATE_H
#define EMU_STATE_H

#include <pthread.h>
#include <stdint.h>

#include "emu_cudart.h"

enum { EMU_NEW_BYTE = 0xff, EMU_SPOILED_BYTE = 0xee };

/* ---- a call: emu_cudart.c ---- */

enum { EMU_CURRENT = -1, EMU_NO_DEVICE = -2 };

typedef struct emu_device {
    cudaError_t lost; /* cudaSuccess: it is not. Read without the lock by those who wait */
    int hangs;        /* by the API or by the control file; read likewise */
    uint64_t slow_us;
    int flip_next_copy;
    uint32_t peers; /* whose memory it may use: a bit each */
    size_t used_bytes;
} emu_device;

typedef struct emu_runtime {
    emu_cudart_machine machine;
    emu_device device[EMU_CUDART_DEVICES_MAX];
    int n_live;
    struct emu_memory *memory;
    struct CUstream_st *streams, *ended_streams;
    struct CUevent_st *events, *ended_events;
    struct CUgraph_st *graphs, *ended_graphs;
    struct CUgraphExec_st *execs, *ended_execs;
} emu_runtime;
extern emu_runtime emu;

void emu_lock(void);
void emu_unlock(void);
/* Takes the lock, looks at the control file and counts the call. device: EMU_CURRENT,
 * EMU_NO_DEVICE, or whose loss fails it. What it returns is what the call must return, if not
 * cudaSuccess. */
cudaError_t emu_begin(const char *call, int device);
/* Ends what emu_begin began, in every case: keeps the error for cudaGetLastError. */
cudaError_t emu_end(cudaError_t e);
int emu_current(void);
/* For machine.strict. */
void emu_check_current(int device, const char *what);
_Noreturn void emu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *emu_new(size_t bytes); /* zeroed */
int emu_error_named(cudaError_t *e, const char *name);

/* Every line of the control file, and what calls fail: emu_control.c */
void emu_control_look(void);
void emu_control_reset(void);
cudaError_t emu_count_call(const char *call);

/* ---- ThreadSanitizer ---- */

void emu_tsan_release(void *token);
void emu_tsan_acquire(void *token);
/* Around what is to be seen of a thread that holds the lock. */
void emu_tsan_watch(void);
void emu_tsan_ignore(void);

/* The bytes of a copy: emu_bytes.c, which all sanitizers see. */
void emu_bytes_copy(void *to, const void *from, size_t n);
void emu_bytes_set(void *to, int value, size_t n);

/* ---- memory: emu_memory.c ---- */

typedef enum emu_memory_kind {
    EMU_DEVICE,
    EMU_IMPORTED,
    EMU_PINNED,
    EMU_REGISTERED
} emu_memory_kind;

typedef struct emu_memory {
    emu_memory_kind kind;
    int device; /* -1: the host's */
    unsigned char *data;
    size_t bytes;
    unsigned char *map; /* with a page before and after that nobody may touch */
    size_t map_bytes;
    int fd; /* what lies in [map + a page, map + map_bytes - a page); -1: none */
    struct emu_memory *next;
} emu_memory;

/* The memory that holds p, NULL: none does; ends the process when [p, p + n) leaves it. */
emu_memory *emu_memory_of(const void *p, size_t n, const char *call);
int emu_is_device_memory(const emu_memory *m);
/* Maps a file of whole pages so that `bytes` end with it; fd: owned by the memory. */
emu_memory *emu_memory_map(emu_memory_kind kind, int fd, size_t file_bytes, size_t bytes);
void emu_memory_unmap(emu_memory *m); /* takes it out of the list and frees it */

/* ---- work: emu_stream.c ---- */

/* The end of one piece of work. */
typedef struct emu_stamp {
    int n_refs;
    uint32_t done; /* a futex, read without the lock */
    cudaError_t error;
    uint64_t done_ns;
    char token; /* what came before is released to it */
} emu_stamp;

typedef enum emu_step_kind { EMU_COPY, EMU_SET, EMU_KERNEL } emu_step_kind;

typedef struct emu_step {
    emu_step_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;                  /* of EMU_SET */
    int to_device, from_device; /* -1: the host's */
    int spoils;                 /* to is pinned: undefined from the call on */
    void *staged;               /* a copy of pageable memory, owned; from points to it */
    void (*run)(void *argument);
    void (*drop)(void *argument);
    void *argument; /* owned, ended by drop */
    struct emu_step *next;
} emu_step;

typedef struct emu_steps { /* of one piece of work, or of a graph; never changed once enqueued */
    int n_refs;
    emu_step *first, *last;
} emu_steps;

typedef struct emu_work {
    emu_steps *steps; /* NULL: none */
    emu_stamp *after; /* not before that; NULL: at once */
    emu_stamp *stamp;
    char token; /* what the host did before is released to it */
    struct emu_work *next;
} emu_work;

struct CUevent_st {
    int device;
    unsigned flags;
    emu_stamp *stamp;     /* of what it was recorded after last; NULL: nothing */
    cudaStream_t capture; /* in whose capture it was recorded last; NULL: in none */
    struct CUevent_st *next;
};

struct CUgraph_st {
    int device;
    emu_steps *steps;
    struct CUgraph_st *next;
};

struct CUgraphExec_st {
    int device;
    emu_steps *steps;
    emu_stamp *latest; /* of its latest launch: the next one comes after */
    struct CUgraphExec_st *next;
};

struct CUstream_st {
    int device;
    emu_work *running, *first, *last;
    emu_stamp *latest; /* of the work enqueued last; NULL: there was none */
    uint32_t bell;     /* a futex: counts what was enqueued, and the end */
    int ending;
    cudaError_t error;  /* of any of its work */
    emu_steps *capture; /* NULL: it is not capturing */
    enum cudaStreamCaptureMode capture_mode;
    int capture_broken;
    pthread_t capturer;
    struct CUstream_st *next;
};

/* emu_begin for a call that takes a stream, which must be there. */
cudaError_t emu_begin_stream(const char *call, cudaStream_t stream);
/* Enqueues; takes over the reference to steps and adds one to after. The stamp is the stream's. */
emu_stamp *emu_enqueue(cudaStream_t stream, emu_steps *steps, emu_stamp *after);
/* Enqueues one step, which it takes over, or adds it to what the stream captures. */
emu_stamp *emu_enqueue_step(cudaStream_t stream, emu_step *step);
/* Gives the lock back while it waits. Ends early when the device is lost, with its error. */
cudaError_t emu_wait(emu_stamp *stamp, int device);
/* Until nothing on its way in any stream of the device, or touching the memory. Likewise. */
void emu_wait_for_memory(const emu_memory *m);
emu_stamp *emu_stamp_ref(emu_stamp *stamp);
void emu_stamp_unref(emu_stamp *stamp); /* accepts NULL */
void emu_steps_unref(emu_steps *steps); /* accepts NULL */
/* Whether the steps read or write any of [p, p + n). */
int emu_steps_touch(const emu_steps *steps, const void *p, size_t n, int reads_only);
/* Fills the pinned memory that steps will write, unless something on its way reads it. */
void emu_spoil(const emu_steps *steps);
void emu_step_run(const emu_step *step, int device); /* without the lock: emu_copy.c */

/* A call that no capture allows, its own thread's or, of global mode, anybody's: breaks it. */
cudaError_t emu_capture_forbids(void);
cudaError_t emu_break_capture(cudaStream_t stream);

/* Lists of objects: those that were ended are kept, so that they are known. */
#define EMU_LINK(list, object) ((object)->next = (list), (list) = (object))
#define EMU_FIND(list, object)                                        \
    __extension__({                                                   \
        __typeof__(object) *at_ = &(list);                            \
        while (*at_ != NULL && *at_ != (object)) at_ = &(*at_)->next; \
        at_;                                                          \
    })
/* Ends the process when the object is not in the list of those that live. */
#define EMU_CHECK(list, object, what)                                              \
    do {                                                                           \
        if ((object) == NULL || *EMU_FIND(list, object) == NULL)                   \
            emu_die("%s: %s %p is not there", __func__, (what), (void *)(object)); \
    } while (0)
#define EMU_BURY(list, ended, object)             \
    do {                                          \
        *EMU_FIND(list, object) = (object)->next; \
        EMU_LINK(ended, object);                  \
        emu.n_live--;                             \
    } while (0)

#endif
