/* sy_status.h - how a call fails. A status is a code to branch on; a sy_error is the same code with
 * what a person needs: a reason for machines to match, where it happened, and a sentence that says
 * what to do. */
#ifndef SY_STATUS_H
#define SY_STATUS_H

#include "sy_base.h"

typedef enum sy_status {
    SY_OK = 0,
    SY_EINVAL,         /* the caller's or the file's mistake: INVALID_ARGUMENT */
    SY_ENOTFOUND,      /* NOT_FOUND */
    SY_EEXISTS,        /* ALREADY_EXISTS: port or file in use */
    SY_ELIMIT,         /* a stated limit is reached: RESOURCE_EXHAUSTED */
    SY_ENOMEM,         /* no memory: RESOURCE_EXHAUSTED */
    SY_EUNAVAILABLE,   /* a peer is absent or died: UNAVAILABLE, worth a retry */
    SY_EDEADLINE,      /* DEADLINE_EXCEEDED */
    SY_ECANCELLED,     /* CANCELLED */
    SY_EPRECONDITION,  /* not in this state: FAILED_PRECONDITION */
    SY_EUNIMPLEMENTED, /* UNIMPLEMENTED */
    SY_EDATALOSS,      /* corrupt file or message: DATA_LOSS */
    SY_EIO,            /* the operating system refused: INTERNAL */
    SY_EINTERNAL,      /* INTERNAL */
    SY_N_STATUS
} sy_status;

const char *sy_status_name(
    sy_status status); /* "INVALID_ARGUMENT"; static text, any value accepted */

/* google.rpc.Code, which gRPC and the messages' Status share: the one place that knows the numbers.
 */
int sy_status_code(sy_status status);
sy_status sy_status_from_code(int code); /* unknown codes: SY_EINTERNAL */

#define SY_REASON_BYTES  40
#define SY_NODE_BYTES    64
#define SY_MESSAGE_BYTES 512

typedef struct sy_error {
    sy_status status;
    int32_t layer;                /* -1: none */
    int32_t expert;               /* -1: none */
    char reason[SY_REASON_BYTES]; /* UPPER_SNAKE, stable: "EXPERT_UNREACHABLE"; "" means the status'
                                     name */
    char node[SY_NODE_BYTES];     /* "": none */
    char message[SY_MESSAGE_BYTES];
} sy_error;

/* Fills err (NULL is accepted) and returns status, so that `return sy_error_set(err, SY_EINVAL,
 * ...)` reads as one. */
sy_status sy_error_set(sy_error *err, sy_status status, const char *fmt, ...) SY_PRINTF(3, 4);
/* Adds to an error already set; reason and node may be NULL, layer and expert -1. NULL err is
 * accepted. */
void sy_error_where(sy_error *err, const char *reason, int32_t layer, int32_t expert,
                    const char *node);
/* Puts "text: " before the message, as in "model.safetensors: header is not JSON". NULL err is
 * accepted. */
void sy_error_prefix(sy_error *err, const char *fmt, ...) SY_PRINTF(2, 3);
void sy_error_clear(
    sy_error *err); /* status SY_OK, layer and expert -1, texts empty; NULL is accepted */

#endif
