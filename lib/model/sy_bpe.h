/* sy_bpe.h - byte pair encoding of one piece of text, as Hugging Face's BPE model does it. A built
 * model is read by any thread; each call brings its own scratch. */
#ifndef SY_BPE_H
#define SY_BPE_H

#include "sy_tokenizer.h"
#include "sy_vocab.h"

#define SY_BPE_LOW_CHARS 0x800 /* one- and two-byte characters, every byte-level one among them */

#define SY_BPE_JOINT_BITS 18
#define SY_BPE_JOINTS     ((size_t)1 << SY_BPE_JOINT_BITS)

typedef struct sy_bpe_merge { /* left and right become merged */
    uint32_t left, right;     /* left == SY_NO_ID: an empty slot */
    uint32_t rank, merged;
} sy_bpe_merge;

typedef struct sy_bpe {
    const sy_vocab *vocab; /* borrowed; stands beside this in the tokenizer */
    sy_bpe_merge *slot;    /* [n_slots] open addressing by (left, right), a power of two */
    size_t n_slots;
    uint64_t *joint; /* [SY_BPE_JOINTS / 64] which characters a merge may bring together, hashed */
    uint32_t low_char[SY_BPE_LOW_CHARS]; /* id of the token that is just this character */
    uint32_t byte_id[256];               /* id of "<0xHH>" */
    uint32_t unk;                        /* SY_NO_ID: none in the vocabulary */
    int has_unk;                         /* the file names one, in the vocabulary or not */
    int fuse_unk, byte_fallback, ignore_merges;
} sy_bpe;

typedef struct sy_bpe_scratch { /* zeroed is empty; grows to the longest piece */
    struct sy_bpe_symbol *symbol;
    size_t n_symbols, symbol_capacity;
    uint32_t last_char; /* that the last symbol ends with */
    struct sy_bpe_candidate *heap;
    size_t n_heap, heap_capacity;
} sy_bpe_scratch;

/* After all tokens are in vocab. n_merges: as many as will be added. */
SY_MUST_USE sy_status sy_bpe_open(sy_bpe *bpe, const sy_vocab *vocab, size_t n_merges);
void sy_bpe_add_merge(sy_bpe *bpe,
                      const sy_bpe_merge *merge); /* a repeated pair takes the later rank */
void sy_bpe_free(sy_bpe *bpe);                    /* vocab stays */

/* Appends the ids of s, valid UTF-8, n <= UINT32_MAX. O(n log n). SY_EINVAL: a character has no
 * token and the model's unk_token is not in the vocabulary. */
SY_MUST_USE sy_status sy_bpe_encode(const sy_bpe *bpe, sy_bpe_scratch *scratch, sy_ids *ids,
                                    const char *s, size_t n, sy_error *err);
void sy_bpe_scratch_free(sy_bpe_scratch *scratch);

#endif
