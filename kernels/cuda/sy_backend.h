/* sy_backend.h - what a device backend offers, as a table of functions that a plugin hands out. The
 * plugin is libswitchyard_NAME.so and has one symbol, sy_backend_get; it is the only part of
 * Switchyard that knows a vendor's runtime. Both sides compile this file and nothing else of each
 * other: it is plain C with types of fixed size, and C++ reads it too.
 *
 * The table only grows at its end, and then `size` grows with it: a caller looks at no entry beyond
 * `size`. Any other change, of an entry's meaning or of a struct, is a new SY_BACKEND_ABI, and the
 * two sides then refuse each other.
 *
 * Every call that can fail returns SY_BACKEND_OK, or another sy_backend_result and a sentence in
 * why, which ends with a NUL and without a full stop. Calls without a handle may come from any
 * thread; those with a handle or a buffer from one thread at a time. */
#ifndef SY_BACKEND_H
#define SY_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SY_BACKEND_ABI       1u
#define SY_BACKEND_ENTRY     "sy_backend_get"
#define SY_BACKEND_WHY_BYTES 256 /* of every why below */

typedef enum sy_backend_result {
    SY_BACKEND_OK = 0,
    SY_BACKEND_ENODEVICE, /* no driver, no device, or no library of that kind on this machine */
    SY_BACKEND_EINVAL,    /* an argument is out of range */
    SY_BACKEND_ENOMEM,    /* the host or the device has no room */
    SY_BACKEND_EFAILED,   /* the call failed and may be tried again */
    SY_BACKEND_EDEVLOST   /* the device is of no more use to this process: only close is left */
} sy_backend_result;

/* Versions are 1000 * major + 10 * minor, as CUDA counts them; 0: there is none. */
typedef struct sy_backend_system {
    uint32_t driver_version;  /* the newest runtime that the installed driver serves */
    uint32_t runtime_version; /* what the plugin was built with */
} sy_backend_system;

typedef struct sy_backend_device {
    char name[64];         /* "NVIDIA H200" */
    char pci[32];          /* "0000:1b:00.0" */
    uint32_t major, minor; /* compute capability */
    uint32_t n_multiprocessors;
    uint32_t has_ecc;               /* 1: its memory is checked and corrected */
    uint64_t memory_bytes;          /* all of it, used or not */
    uint32_t usable;                /* 0: why says what keeps it from use */
    char why[SY_BACKEND_WHY_BYTES]; /* "" when usable */
} sy_backend_device;

/* Bytes a second, the best of several copies: no kernel moves the same bytes in less time. */
typedef struct sy_backend_bandwidth {
    double to_device, from_device; /* from and to pinned memory of the host */
    double on_device;              /* bytes read and bytes written, both counted */
} sy_backend_bandwidth;

typedef struct sy_backend_handle sy_backend_handle; /* one opened device */
typedef struct sy_backend_buffer sy_backend_buffer; /* memory on it */

typedef struct sy_backend {
    uint32_t abi;     /* SY_BACKEND_ABI */
    uint32_t size;    /* sizeof(sy_backend) where the plugin was built */
    const char *name; /* "cuda" */

    /* What is there, without taking memory on any device. device: [max]; *n: how many there are,
     * which may be more than max, and only the first max are filled in. *system is filled in as far
     * as it goes even when the call fails. SY_BACKEND_ENODEVICE: there is none. */
    int (*probe)(sy_backend_system *system, sy_backend_device *device, uint32_t max, uint32_t *n,
                 char *why);

    /* The vendor's library of matrix products, which is loaded for this question and stays: ask
     * once a device is there. *version as that library counts; SY_BACKEND_ENODEVICE: it cannot be
     * loaded. */
    int (*blas_version)(uint64_t *version, char *why);

    /* SY_BACKEND_OK: the caller owns *out and ends it with close; otherwise it is NULL. */
    int (*open)(sy_backend_handle **out, uint32_t device, char *why);
    void (*close)(sy_backend_handle *handle); /* accepts NULL; its buffers are freed before */

    int (*memory)(sy_backend_handle *handle, uint64_t *free_bytes, uint64_t *total_bytes,
                  char *why);

    /* bytes > 0. SY_BACKEND_OK: the caller owns *out and ends it with buffer_free; otherwise it is
     * NULL. The contents are not set. */
    int (*buffer_alloc)(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
                        char *why);
    void (*buffer_free)(sy_backend_buffer *buffer); /* accepts NULL */

    /* n bytes to or from the buffer at offset; done when they return. The range must lie inside.
     * host is borrowed for the call and needs no alignment. */
    int (*copy_in)(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                   char *why);
    int (*copy_out)(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why);

    /* Takes bytes on the host and twice as many on the device, for the time of the call. */
    int (*measure_copies)(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
                          char *why);
} sy_backend;

/* SY_BACKEND_ENTRY. abi: the caller's. Returns a table that lives as long as the process, or NULL:
 * the plugin has no table of that ABI. */
typedef const sy_backend *(*sy_backend_entry)(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif
