/* inspect_fidelity.h - what rounding does to a checkpoint's outputs, measured: the model as stored
 * computes the logits of every position of fixed prompts, then the same with experts, trunk or both
 * held otherwise. In this process, as `switchyard run` computes; never two copies of a part in
 * memory. */
#ifndef INSPECT_FIDELITY_H
#define INSPECT_FIDELITY_H

#include "fidelity_diff.h"
#include "inspect_facts.h"
#include "sy_kernels.h"

enum { INSPECT_FIDELITY_PROMPTS = 4, INSPECT_FIDELITY_ROWS_MAX = 16, INSPECT_FIDELITY_NOTES = 3 };

typedef struct inspect_fidelity_row {
    const char *name; /* "experts q8": static */
    sy_precision trunk, experts;
    fidelity_diff diff;
    sy_error error; /* not SY_OK: this checkpoint cannot be held so, and diff is zeroed */
} inspect_fidelity_row;

typedef struct inspect_fidelity {
    uint32_t n_prompts, n_tokens; /* n_tokens of each prompt */
    uint64_t needed_bytes;        /* of memory, at the most */
    /* The first is the model as stored, again; fp8 and mxfp4 where parts are so encoded. */
    inspect_fidelity_row row[INSPECT_FIDELITY_ROWS_MAX];
    size_t n_rows;
    const char *note[INSPECT_FIDELITY_NOTES]; /* static; what "as stored" already means */
    size_t n_notes;
} inspect_fidelity;

/* n_tokens: of each prompt, at least 1. memory_bytes: what may be taken. SY_EINVAL: n_tokens is
 * past the model's context; SY_ELIMIT: more memory is needed than that; SY_EDATALOSS: the file is
 * cut, or a logit of the model as stored is not a number; SY_ENOMEM. */
SY_MUST_USE sy_status inspect_fidelity_measure(inspect_fidelity *out, const inspect_facts *facts,
                                               uint32_t n_tokens, uint64_t memory_bytes,
                                               sy_error *err);

void inspect_fidelity_print(const inspect_fidelity *f);
struct json_t;
struct json_t *inspect_fidelity_json(const inspect_fidelity *f); /* NULL: no memory */

#endif
