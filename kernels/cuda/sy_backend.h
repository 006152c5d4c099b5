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
 * thread; those with a handle or a buffer from one thread at a time; those with a pool, a matrix or
 * a stream as they say. After SY_BACKEND_EDEVLOST every call of the handle, and of what was made
 * with it, gives that. */
#ifndef SY_BACKEND_H
#define SY_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SY_BACKEND_ABI       2u
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
typedef struct sy_backend_pool sy_backend_pool;     /* experts on it, and what computes them */
typedef struct sy_backend_remote sy_backend_remote; /* another process's pool on this machine */

/* How weights are held: rows as sy_dtype has them. FP8: rows [128 i, 128 i + 128) of a part of an
 * expert, or of a matrix, have the same factors. */
typedef enum sy_backend_weights {
    SY_BACKEND_BF16,
    SY_BACKEND_Q8,
    SY_BACKEND_Q4,
    SY_BACKEND_FP8,
    SY_BACKEND_MXFP4
} sy_backend_weights;
typedef enum sy_backend_mlp { SY_BACKEND_SWIGLU, SY_BACKEND_CLAMPED } sy_backend_mlp;

typedef struct sy_backend_pool_config {
    uint32_t hidden, ffn; /* H, F >= 1 */
    uint32_t weights;     /* sy_backend_weights */
    uint32_t has_bias;
    uint32_t mlp;          /* sy_backend_mlp */
    float mlp_limit;       /* SY_BACKEND_CLAMPED: > 0 */
    uint64_t memory_bytes; /* of all slots, at most; 0: nine tenths of what is free once lanes are
                              there */
    uint32_t slots_max;    /* what the model has, so that no more are made */
    uint32_t rows_max;     /* of a batch: tokens, and rows, each; >= 1 */
    uint32_t lanes;        /* batches under way at once, 1 to SY_BACKEND_LANES_MAX */
} sy_backend_pool_config;
#define SY_BACKEND_LANES_MAX 8u

#define SY_BACKEND_ARITHMETIC_BYTES 32
/* Of CUDA devices of this compute capability, major and minor. */
#define SY_BACKEND_ARITHMETIC_CUDA "bf16-mma/1:sm_%u%u"
typedef struct sy_backend_pool_info {
    uint64_t slot_bytes; /* on the device, alignment included */
    uint32_t n_slots, n_lanes;
    uint32_t x_stride; /* elements between the rows of a lane's x: H padded */
    /* What the bits of an output depend on besides weights and input: "bf16-mma/1:sm_90". */
    char arithmetic[SY_BACKEND_ARITHMETIC_BYTES];
} sy_backend_pool_info;

/* The parts of an expert, in the order of a shard's form. */
typedef enum sy_backend_part {
    SY_BACKEND_GATE,
    SY_BACKEND_UP,
    SY_BACKEND_DOWN,
    SY_BACKEND_GATE_BIAS,
    SY_BACKEND_UP_BIAS,
    SY_BACKEND_DOWN_BIAS
} sy_backend_part;

/* The memory of a lane: pinned, of the host. The caller writes x and x_row before a submit and
 * reads y after the wait that says done; in between it touches none of it. */
typedef struct sy_backend_lane {
    uint16_t *x;     /* [rows_max, x_stride] bf16; elements past H are zero, and stay so */
    uint32_t *x_row; /* [rows_max] */
    float *y;        /* [rows_max, H] */
} sy_backend_lane;

/* Rows [begin, end) of a batch, all of the expert in one slot. */
typedef struct sy_backend_group {
    uint32_t slot;
    uint32_t begin, end;
} sy_backend_group;

/* What opens a pool's memory to other processes of this machine; bytes mean nothing elsewhere. */
typedef struct sy_backend_export {
    uint8_t handle[64];
    uint64_t slot_bytes;
    uint32_t n_slots;
    uint32_t reserved;
} sy_backend_export;

/* ---- operations on rows: the model without its experts ---- */

typedef struct sy_backend_stream sy_backend_stream;
#define SY_BACKEND_MARKS 8u /* of a stream */

/* Memory of a buffer from a byte on; buffer NULL: none, where an operation allows it. 16-byte
 * aligned, unless said otherwise. */
typedef struct sy_backend_ref {
    sy_backend_buffer *buffer;
    uint64_t offset;
} sy_backend_ref;

/* Two ways to be packed: one matrix; or Gate and Up, which have the same shape, as one. */
typedef enum sy_backend_matrix_form { SY_BACKEND_PLAIN, SY_BACKEND_GATE_UP } sy_backend_matrix_form;
typedef struct sy_backend_matrix {
    uint32_t form;    /* sy_backend_matrix_form */
    uint32_t n, k;    /* outputs, inputs, >= 1; of GATE_UP: of either */
    uint32_t weights; /* sy_backend_weights */
} sy_backend_matrix;

/* The operations; each is the function of sy_cuda_trunk.h that it names, and what that says of
 * shapes, limits and arithmetic holds here. Rows of bf16 activations lie padded(n) elements apart,
 * n rounded up to 64, their padding zero. */
typedef enum sy_backend_op_kind {
    SY_BACKEND_IN,           /* bytes from pinned memory, which is not written until they are in */
    SY_BACKEND_OUT,          /* bytes to pinned memory */
    SY_BACKEND_COPY,         /* bytes from one buffer to another, or to where it does not overlap */
    SY_BACKEND_ROWS,         /* fp32 rows to bf16 rows: sy_cuda_rows_from_f32 */
    SY_BACKEND_EMBED,        /* sy_cuda_embed */
    SY_BACKEND_NORM,         /* sy_cuda_norm_rows */
    SY_BACKEND_ADD,          /* sy_cuda_add */
    SY_BACKEND_SHARED_GATE,  /* sy_cuda_shared_gate */
    SY_BACKEND_LINEAR,       /* sy_cuda_linear */
    SY_BACKEND_SWIGLU_UP,    /* sy_cuda_linear_swiglu */
    SY_BACKEND_LINEAR_HEADS, /* sy_cuda_linear_heads */
    SY_BACKEND_HEADS,        /* sy_cuda_finish_heads */
    SY_BACKEND_KV_PUT,       /* sy_cuda_kv_put */
    SY_BACKEND_ATTEND        /* sy_cuda_attend */
} sy_backend_op_kind;

/* Of one layer: sy_cuda_kv. */
typedef struct sy_backend_kv {
    sy_backend_ref data, page;
    uint32_t is_bf16, is_latent;
    uint32_t n_heads, key_dim, value_dim;
    uint32_t pages_max; /* of a sequence: entries of its row of page */
    uint32_t n_pages;   /* of data */
    uint32_t n_sequences;
} sy_backend_kv;

/* Where rows belong: [rows_max] uint32 each, 4-byte aligned. */
typedef struct sy_backend_places {
    sy_backend_ref position, sequence, angle;
} sy_backend_places;

/* The forms of sy_cuda_norm_form and sy_cuda_head_norm have these numbers there as well. */
typedef enum sy_backend_norm_form {
    SY_BACKEND_NORM_RMS,
    SY_BACKEND_NORM_LAYER
} sy_backend_norm_form;
typedef enum sy_backend_head_norm {
    SY_BACKEND_HEADS_AS_THEY_ARE,
    SY_BACKEND_NORM_THEN_ROTATE,
    SY_BACKEND_ROTATE_THEN_NORM
} sy_backend_head_norm;

typedef struct sy_backend_op {
    uint32_t kind; /* sy_backend_op_kind */
    /* Of all but IN, OUT, COPY and ROWS: how many rows there are, one uint32 on the device, 4-byte
     * aligned; and how many at most, which the launch is sized for: 2^24, of HEADS, KV_PUT and
     * ATTEND 65535. ROWS: rows_max are there. */
    uint32_t rows_max;
    sy_backend_ref n_rows;
    union {
        struct { /* IN, OUT, COPY: of the three, the two that the kind has; no alignment */
            sy_backend_ref to, from;
            void *host;
            uint64_t n;
        } copy;
        struct {
            sy_backend_ref to, from; /* [rows,padded(n)] bf16; [rows,n] fp32 */
            uint32_t n;
        } rows;
        struct {
            sy_backend_ref x, embedding, token; /* [T,H] fp32; [V,H] bf16; [T] */
            uint32_t hidden, vocab;
            float factor;
        } embed;
        struct {
            sy_backend_ref y, y16, x, row; /* y, y16 or row may be none */
            sy_backend_ref weight, bias;   /* [n] fp32; bias may be none */
            uint32_t form, n;              /* sy_backend_norm_form */
            uint32_t x_rows;               /* that x has, with row */
            float eps;
        } norm;
        struct {
            sy_backend_ref x, y, row_factor; /* [T,H] fp32; row_factor: [T] or none */
            uint32_t hidden;
            float factor;
        } add;
        struct {
            sy_backend_ref gate, x, w; /* [T], [T,H], [H] fp32 */
            uint32_t hidden;
        } shared_gate;
        struct {                          /* LINEAR, SWIGLU_UP */
            sy_backend_ref y, x;          /* LINEAR: y fp32; SWIGLU_UP: bf16 rows; x: bf16 rows */
            sy_backend_ref weights, bias; /* SWIGLU_UP has no bias; LINEAR's may be none */
            sy_backend_matrix matrix;     /* PLAIN; GATE_UP */
            float divisor;                /* LINEAR alone */
        } linear;
        struct {
            sy_backend_ref y, x, weights; /* weights: n_heads of the matrix, one behind another */
            sy_backend_matrix matrix;     /* PLAIN, of BF16, Q8 or Q4 */
            uint32_t n_heads, n_tail;
        } linear_heads;
        struct {
            sy_backend_ref x, norm_weight, angles;      /* norm_weight, angles may be none */
            sy_backend_places places;                   /* sequence is none */
            uint32_t n_heads, head_dim, norm, norm_dim; /* norm: sy_backend_head_norm */
            float norm_eps, clip;
            uint32_t rotary_at, rotary_dim, interleaved, angle_rows;
            float temperature_floor, temperature_scale;
        } heads;
        struct {
            sy_backend_kv kv;
            sy_backend_ref k, v; /* v: none for latents */
            sy_backend_places places;
        } kv_put;
        struct {
            sy_backend_kv kv;
            sy_backend_ref out, q, sinks, scratch; /* sinks, scratch may be none */
            sy_backend_places places;
            uint32_t n_heads, window, chunk, positions_max, rows_together;
            float scale;
        } attend;
    } u;
} sy_backend_op;

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

    /* ---- experts ---- */

    /* Takes all memory that the pool will ever use: the slots in one piece, the lanes, and the way
     * in and out for weights. SY_BACKEND_OK: the caller owns *out and ends it with pool_close;
     * otherwise it is NULL. SY_BACKEND_ENOMEM: not even one slot has room, with figures. */
    int (*pool_open)(sy_backend_pool **out, sy_backend_handle *handle,
                     const sy_backend_pool_config *config, char *why);
    void (*pool_close)(sy_backend_pool *pool); /* waits for what is under way; accepts NULL */
    void (*pool_describe)(sy_backend_pool_info *out, const sy_backend_pool *pool);

    /* The four of weights, for one slot from one thread at a time, for different slots from any,
     * also while batches are submitted: their copies go by a stream of lowest priority, in pieces
     * of a megabyte at most. A slot that a batch under way names must not be written.
     *
     * Rows [row, row + n_rows) of a part, row-major and packed as sy_dtype has them, biases as rows
     * of one fp32. row is a multiple of 16, and so is n_rows unless the part ends there. Of FP8, a
     * call that begins in the middle of 128 rows that share factors follows one with rows of the
     * same 128; SY_BACKEND_EINVAL: their factors differ, and none of the call's rows was taken. A
     * slot has what was written last; one that was never written has garbage. slot_write has read
     * `rows` when it returns, but the device may still be busy: slot_read, slot_hash and slot_flush
     * wait. */
    int (*slot_write)(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                      uint32_t n_rows, const void *rows, char *why);
    int (*slot_flush)(sy_backend_pool *pool, uint32_t slot, char *why);
    int (*slot_read)(void *rows, sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                     uint32_t n_rows, char *why);
    /* Of all that the slot holds, computed on the device (sy_cuda_hash.h): equal for equal weights
     * in any slot of any pool of this configuration, whatever was in the slot before. */
    int (*slot_hash)(uint64_t *out, sy_backend_pool *pool, uint32_t slot, char *why);

    /* Bytes [offset, offset + n) of a slot from another pool of the same configuration, in this
     * process; there when it returns. Directly between devices where they can, else through the
     * host. SY_BACKEND_EDEVLOST may mean either device: slot_flush on each tells which. */
    int (*slot_copy)(sy_backend_pool *to, uint32_t to_slot, sy_backend_pool *from,
                     uint32_t from_slot, uint64_t offset, uint64_t n, char *why);
    /* The same from another process. pool_export: what the owner hands out. pool_import:
     * SY_BACKEND_EINVAL when it is not a pool of slots like `like`'s; the caller ends *out with
     * remote_close, before `like`. The owner may die meanwhile: slot_pull then fails or gives
     * garbage, so what was pulled is hashed before it is used. */
    int (*pool_export)(sy_backend_export *out, sy_backend_pool *pool, char *why);
    int (*pool_import)(sy_backend_remote **out, sy_backend_pool *like,
                       const sy_backend_export *from, char *why);
    void (*remote_close)(sy_backend_remote *remote); /* accepts NULL */
    int (*slot_pull)(sy_backend_pool *to, uint32_t to_slot, sy_backend_remote *from,
                     uint32_t from_slot, uint64_t offset, uint64_t n, char *why);

    /* Batches. lane < n_lanes; one thread at a time for a lane, any for others. */
    void (*lane)(sy_backend_lane *out, const sy_backend_pool *pool, uint32_t lane);
    /* Begins y[r] = expert(x[x_row[r]]) for the rows of every group; groups lie one after the other
     * from row 0 on and end at n_rows. The lane is free: no submit without a finished wait before.
     * n_x, n_rows <= rows_max; x_row[r] < n_x, slot < n_slots, else SY_BACKEND_EINVAL. Does not
     * wait for the device, but where only a part of the batch could be begun, for a tenth of a
     * second at most; SY_BACKEND_EFAILED: what an earlier such batch began is still there. */
    int (*submit)(sy_backend_pool *pool, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                  const sy_backend_group *group, uint32_t n_groups, char *why);
    /* Waits until the lane's batch is done, for timeout_us at most (0: looks once): *done tells.
     * *device_us: how long the device was busy with it. A lane without a batch is done. */
    int (*wait)(int *done, float *device_us, sy_backend_pool *pool, uint32_t lane,
                uint32_t timeout_us, char *why);

    /* ---- operations on rows ---- */

    /* Memory of the host that copies go through without a detour; zeroed. SY_BACKEND_OK: the caller
     * owns *out and ends it with pinned_free; otherwise it is NULL. */
    int (*pinned_alloc)(void **out, sy_backend_handle *handle, uint64_t bytes, char *why);
    void (*pinned_free)(sy_backend_handle *handle, void *p); /* accepts NULL */

    /* Of a packed matrix; 0: it overflows, or there is no such form or kind of weights. */
    uint64_t (*matrix_bytes)(const sy_backend_matrix *matrix);
    /* Packs rows [row, row + n_rows) of a matrix into `to`, which has room for the whole matrix;
     * row is a multiple of 16 (of FP8: 128), and so is n_rows unless the matrix ends there. rows:
     * [n_rows,k], row-major and packed as sy_dtype has the weights, of the host, any alignment,
     * read when it returns; up: the same rows of Up, of SY_BACKEND_GATE_UP; else NULL.
     * SY_BACKEND_EINVAL, also where rows of FP8 that must share factors do not: nothing was
     * written. A matrix is defined once all its rows were written, and for any stream that runs
     * afterwards. One thread at a time for a matrix. */
    int (*matrix_write)(sy_backend_ref to, const sy_backend_matrix *matrix, uint32_t row,
                        uint32_t n_rows, const void *rows, const void *up, char *why);

    /* Everything of a stream happens in the order in which it was enqueued. One thread at a time.
     * SY_BACKEND_OK: the caller owns *out and ends it with stream_close, before its buffers. */
    int (*stream_open)(sy_backend_stream **out, sy_backend_handle *handle, char *why);
    void (*stream_close)(sy_backend_stream *stream); /* waits for what is under way; accepts NULL */
    /* Enqueues n operations and does not wait. SY_BACKEND_EINVAL: one of them is not well formed,
     * is past a limit, or reaches past a buffer, and none of them was enqueued; after any other
     * failure some were. What stands on the device (numbers of rows, tokens, positions, sequences,
     * pages, rows of x and of angles) is not looked at: the caller answers for it. */
    int (*stream_run)(sy_backend_stream *stream, const sy_backend_op *op, uint32_t n, char *why);
    /* What was enqueued until now gets this mark, < SY_BACKEND_MARKS, which names nothing else from
     * now on. */
    int (*stream_mark)(sy_backend_stream *stream, uint32_t mark, char *why);
    /* Waits until all that got the mark is done, for timeout_us at most (0: looks once): *done
     * tells. A mark that was never given is done. */
    int (*stream_wait)(int *done, sy_backend_stream *stream, uint32_t mark, uint32_t timeout_us,
                       char *why);
    /* Of attention over `heads` query heads in splits; 0: it overflows. */
    uint64_t (*attend_scratch_bytes)(uint32_t rows_max, uint32_t n_heads, uint32_t value_dim,
                                     uint32_t positions_max);
} sy_backend;

/* SY_BACKEND_ENTRY. abi: the caller's. Returns a table that lives as long as the process, or NULL:
 * the plugin has no table of that ABI. */
typedef const sy_backend *(*sy_backend_entry)(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif
