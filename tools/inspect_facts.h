/* inspect_facts.h - what `switchyard inspect` tells about a checkpoint, gathered from its headers:
 * no weight byte is read. */
#ifndef INSPECT_FACTS_H
#define INSPECT_FACTS_H

#include "sy_grid.h"
#include "sy_model.h"

enum {
    INSPECT_FORMATS_MAX = 5,
    INSPECT_TYPES_MAX = 32,
    INSPECT_SPREADS_MAX = 8,
    INSPECT_KIND_BYTES = 96
};

typedef struct inspect_part { /* of the weights */
    uint64_t parameters;
    uint64_t stored_bytes, loaded_bytes; /* on disk; packed in memory, as the tier holds it */
} inspect_part;

typedef struct inspect_type {
    const char *name; /* "BF16" */
    uint64_t n_tensors, bytes;
} inspect_type;

typedef struct inspect_file {
    char *name; /* in the checkpoint's folder */
    uint64_t bytes;
} inspect_file;

typedef struct inspect_format { /* memory by --weights */
    sy_dtype weights;
    uint64_t trunk_bytes, experts_bytes,
        expert_bytes; /* as loaded_bytes; one expert of one layer */
} inspect_format;

typedef struct inspect_spread { /* every layer's experts shared out */
    uint32_t n_nodes, experts_per_node;
    uint64_t node_bytes;
} inspect_spread;

typedef struct inspect_facts {
    sy_model *model;
    const sy_model_desc *desc;
    sy_grid grid;
    inspect_part trunk, gates, experts;
    uint64_t active_parameters; /* that one token's path multiplies with or looks up in */
    uint64_t expert_bytes;      /* one expert of one layer, in memory; the largest */
    uint64_t kv_bytes_per_token;
    inspect_format format[INSPECT_FORMATS_MAX]; /* that it can be held in; the first as stored */
    size_t n_formats;
    inspect_type type[INSPECT_TYPES_MAX];
    size_t n_types;
    inspect_file *file; /* [n_files] by name */
    size_t n_files;
    inspect_spread spread[INSPECT_SPREADS_MAX];
    size_t n_spreads;
    int has_tokenizer;
    char tokenizer_kind[INSPECT_KIND_BYTES]; /* "BPE, ByteLevel" */
    size_t tokenizer_vocab;
} inspect_facts;

/* experts_per_node: 0: several numbers of nodes are worked out. A folder without a tokenizer is
 * fine, one whose tokenizer cannot be read is not. *out is to be freed either way. */
SY_MUST_USE sy_status inspect_gather(inspect_facts *out, const char *dir, uint32_t experts_per_node,
                                     sy_error *err);
void inspect_facts_free(inspect_facts *facts);

#endif
