/* sy_wire_out.h - what the encoders share. Private to lib/wire. An encoder fills protobuf-c's
 * structs with pointers into the caller's, packs, and forgets them: nothing is owned. */
#ifndef SY_WIRE_OUT_H
#define SY_WIRE_OUT_H

#include "sy_wire.h"

struct ProtobufCMessage;
struct Switchyard__V1__RoutePolicy;
struct Switchyard__V1__Rows;
struct Switchyard__V1__SharedMemory;
struct Switchyard__V1__SharedRows;
struct Switchyard__V1__Status;

/* out is initialised here, and the caller's on SY_OK. Fields of at least 1 KiB inside of bulk (may
 * be NULL) go by reference, the rest is copied. SY_ENOMEM, SY_ELIMIT (2 GiB). */
SY_MUST_USE sy_status sy_wire_pack(sy_frame *out, const struct ProtobufCMessage *msg, sy_buf *bulk);

/* protobuf-c's structs have no const, although packing only reads. A lent NULL text is "". */
void *sy_wire_lend(const void *p);
char *sy_wire_lend_text(const char *s);
/* Each fills msg, which the caller provides, and returns it, or NULL for what is absent on the
 * wire. */
struct Switchyard__V1__Rows *sy_wire_put_rows(struct Switchyard__V1__Rows *msg,
                                              const sy_rows *rows);
struct Switchyard__V1__SharedRows *sy_wire_put_shared(struct Switchyard__V1__SharedRows *msg,
                                                      struct Switchyard__V1__SharedMemory *memory,
                                                      const sy_shared_rows *shared);
struct Switchyard__V1__RoutePolicy *sy_wire_put_policy(struct Switchyard__V1__RoutePolicy *msg,
                                                       const sy_route_policy *policy);
struct Switchyard__V1__Status *sy_wire_put_status(struct Switchyard__V1__Status *msg,
                                                  const sy_error *status);

#endif
