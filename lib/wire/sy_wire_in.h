/* sy_wire_in.h - what the decoders share: unpacking into an arena, and checks that name the field
 * they refuse. Private to lib/wire. The first failure sticks: later checks change nothing, so a
 * decoder runs straight through and returns in->status at its end. What a check returns after a
 * failure may be read, but means nothing. */
#ifndef SY_WIRE_IN_H
#define SY_WIRE_IN_H

#include "sy_arena.h"
#include "sy_wire.h"
#include "sy_wire_cursor.h"

struct ProtobufCMessageDescriptor;
struct Switchyard__V1__RoutePolicy;
struct Switchyard__V1__Rows;
struct Switchyard__V1__SharedRows;
struct Switchyard__V1__Status;

#define SY_WIRE_EXPERTS_MAX 65535u /* ids are 16 bits wide, and 0xFFFF is the empty slot */

typedef struct sy_wire_in {
    sy_arena *arena;
    sy_error *err; /* may be NULL */
    sy_status status;
    const char *kind; /* the message's name */
    /* The message that refused fields are inside of, or NULL, and its index, or -1 when it is not
     * repeated: "fault" and 2 make "fault[2].expert". */
    const char *group;
    int64_t index;
    /* The data of field 15 may have been left in the pieces: they are all that `bulk` has left. */
    int has_bulk;
    sy_wire_cursor bulk;
} sy_wire_in;

void sy_wire_in_init(sy_wire_in *in, sy_arena *arena, sy_error *err);
/* A message of `desc` in the arena; NULL: in->status says why not. If its field 15 is a Rows or
 * plain bytes at the very end of the message, then its data are not in what is returned but wait
 * for sy_wire_rows() or sy_wire_bulk(). */
const void *sy_wire_unpack(sy_wire_in *in, const struct ProtobufCMessageDescriptor *desc,
                           const sy_iov *iov, size_t n);

/* Records SY_EINVAL with "FIELD: what is wrong"; the format begins with the field's name. */
void sy_wire_refuse(sy_wire_in *in, const char *fmt, ...) SY_PRINTF(2, 3);
/* n bytes of the arena, 64-byte aligned whatever n is; NULL after a failure, which is recorded. */
void *sy_wire_alloc(sy_wire_in *in, size_t n);

/* Bytes of a string that sy_wire_unpack made: more than strlen() when there are NULs inside. */
size_t sy_wire_string_bytes(const char *s);
void sy_wire_utf8(sy_wire_in *in, const char *field, const char *s, size_t n);
/* s, once it is known to be UTF-8 without NUL and of at most max_bytes. */
const char *sy_wire_text(sy_wire_in *in, const char *field, const char *s, size_t max_bytes);
const char *sy_wire_name(sy_wire_in *in, const char *field, const char *s);
/* n bytes at p, 64-byte aligned: p itself, or a copy. NULL when n is 0. */
const void *sy_wire_aligned(sy_wire_in *in, const void *p, size_t n);
/* The same for an array of elements; refuses a length that is not a whole number of them. */
const void *sy_wire_array(uint32_t *n_out, sy_wire_in *in, const char *field, const void *p,
                          size_t bytes, size_t element_bytes);
void sy_wire_finite(sy_wire_in *in, const char *field, const float *value, size_t n);
/* expert and weight: [T,K] with K = slots. Both may be empty: T is 0. */
typedef struct sy_wire_slots {
    uint32_t slots, n_tokens;
    const uint16_t *expert;
    const float *weight;
} sy_wire_slots;
void sy_wire_slots_get(sy_wire_slots *out, sy_wire_in *in, uint32_t slots, const sy_iov *expert,
                       const sy_iov *weight);

/* What field 15 has as its data: its size and its bytes, 64-byte aligned, wherever they are.
 * unpacked: what sy_wire_unpack made of them. n: the size, which the caller has checked. */
size_t sy_wire_bulk_bytes(const sy_wire_in *in, size_t unpacked_bytes);
const void *sy_wire_bulk(sy_wire_in *in, const void *unpacked, size_t n);
/* 1: a known type and a size that a tensor may have; else FIELD.dtype, .rows or .cols is refused.
 */
int sy_wire_shape(sy_wire_in *in, const char *field, int dtype, uint32_t rows, uint32_t cols);
/* The same for weights, which may also be in blocks. */
int sy_wire_weights_shape(sy_wire_in *in, const char *field, int dtype, uint32_t rows,
                          uint32_t cols);

/* ELSEWHERE: required, but its data are not in the message. */
enum sy_wire_presence { SY_WIRE_OPTIONAL, SY_WIRE_REQUIRED, SY_WIRE_ELSEWHERE };
/* A Rows without rows and data counts as absent, where that is allowed. */
void sy_wire_rows(sy_rows *out, sy_wire_in *in, const char *field,
                  const struct Switchyard__V1__Rows *msg, enum sy_wire_presence presence);
/* hidden: the rows that are shared. msg may be NULL: nothing is. */
void sy_wire_shared(sy_shared_rows *out, sy_wire_in *in,
                    const struct Switchyard__V1__SharedRows *msg, const sy_rows *hidden);
sy_route_policy sy_wire_policy(const struct Switchyard__V1__RoutePolicy *msg);
/* NULL and 0 when there are none, or too many. */
const char *const *sy_wire_policies(uint32_t *n_out, sy_wire_in *in, char *const *policies,
                                    size_t n);
/* Absent: SY_OK. Texts longer than sy_error holds are cut. */
void sy_wire_status(sy_error *out, sy_wire_in *in, const struct Switchyard__V1__Status *msg);

#endif
