/* sy_gguf_parse.h - the bytes of a GGUF header -> metadata and tensor infos, every count and length
 * checked before it is used. Pure. Private to lib/model. */
#ifndef SY_GGUF_PARSE_H
#define SY_GGUF_PARSE_H

#include "sy_arena.h"
#include "sy_gguf.h"

typedef struct gguf_key {
    const char *name;
    sy_gguf_value value;
} gguf_key;

typedef struct gguf_entry {
    sy_gguf_tensor item; /* data is NULL so far */
    uint64_t offset;     /* in the data */
} gguf_entry;

/* Arrays and what they point to live in the arena, except text and numbers, which stay in the
 * bytes. */
typedef struct gguf_header {
    gguf_key *keys; /* [n_keys] in file order */
    gguf_entry *entries;
    size_t n_keys, n_entries;
    uint32_t alignment;
    uint64_t bytes; /* of the header, without padding */
} gguf_header;

/* bytes: the first n of a file of file_bytes. *ran_out: set, together with a failure, when all went
 * well up to byte n and the file goes on: to be tried again with more. */
SY_MUST_USE sy_status gguf_parse(gguf_header *out, sy_arena *arena, const uint8_t *bytes, size_t n,
                                 uint64_t file_bytes, int *ran_out, sy_error *err);
size_t gguf_kind_bytes(sy_gguf_kind kind); /* of a number or bool; 0 for STRING and ARRAY */

#endif
