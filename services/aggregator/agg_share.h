/* agg_share.h - memory that is shared with one peer of this host: the rows of a message, and those
 * of its answer, stand there instead of passing through the connection, and what the node computes
 * is read where its kernels put it.
 *
 * An area is lent to one message. It is free again when the layer call has ended (agg_loan_end) and
 * the message is settled: its own answer has come, however late, or it was never sent. A peer that
 * still owes an answer may write at any time. When the connection is lost nobody will know, so the
 * whole region is given up; the next connection gets a new one. */
#ifndef AGG_SHARE_H
#define AGG_SHARE_H

#include "sy_wire.h"

enum { AGG_SHARED_BYTES_MIN = 16 << 10 }; /* below, a message with its rows is as fast */

typedef struct agg_share agg_share; /* of one peer; any thread */
typedef struct agg_loan agg_loan;   /* of one message */

/* NULL: the peer is not on this host, nothing is to be shared (bytes_max 0), or there is no memory;
 * every other call accepts that. bytes_max: of areas lent at once; bytes_min: messages with less
 * are not worth it. name is borrowed, for logs. */
agg_share *agg_share_open(const char *name, const char *address, size_t bytes_max,
                          size_t bytes_min);
void agg_share_close(agg_share *share); /* the peer is closed, and every loan has ended */
/* An area for the message of that id. NULL: it goes as bytes, because it is small, there is no
 * room, or the peer cannot reach the memory. */
agg_loan *agg_share_lend(agg_share *share, uint64_t id, size_t input_bytes, size_t output_bytes);
void agg_share_settled(agg_share *share, uint64_t id); /* sy_peer_config.on_settled */
void agg_share_lost(agg_share *share);                 /* the connection is */

uint32_t agg_share_lent(agg_share *share); /* areas in use; 0 for NULL */

void *agg_loan_input(const agg_loan *loan);
/* The peer may still write there while it is read: these are numbers, and only wrong ones at worst.
 */
const void *agg_loan_output(const agg_loan *loan);
void agg_loan_describe(const agg_loan *loan, sy_shared_rows *out);
/* 1: this answer of the peer to the loan's message says that it cannot share. Nothing more is lent
 * on this connection, and the message is to be sent again. */
int agg_loan_is_refused(agg_loan *loan, const sy_error *answer);
void agg_loan_end(agg_loan *loan); /* the layer call reads no more there; accepts NULL */

#endif
