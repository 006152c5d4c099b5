/* sy_bpe.c - merging symbols by rank: a linked list of symbols and a heap of candidate pairs.
 * Candidates that a merge has overtaken stay in the heap and are recognised when they come up. A
 * piece may be a whole text; between two characters that no merge brings together it falls into
 * parts that are merged one by one, each in a small heap. */
#include "sy_bpe.h"
#include "sy_hash.h"
#include "sy_unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END             UINT32_MAX
#define PIECE_BYTES_MAX (UINT32_MAX / 2) /* positions fit 32 bits */

struct sy_bpe_symbol {
    uint32_t id;         /* SY_NO_ID: swallowed by its left neighbour */
    uint32_t prev, next; /* END also where no merge reaches across */
};

struct sy_bpe_candidate {
    uint64_t key; /* rank << 32 | position of the left symbol: lowest rank first, then leftmost */
    uint32_t merged;
};

sy_status sy_bpe_open(sy_bpe *bpe, const sy_vocab *vocab, size_t n_merges)
{
    size_t n_slots = 16;
    char text[8];

    bpe->vocab = vocab;
    bpe->unk = SY_NO_ID;
    for (uint32_t c = 0; c < SY_BPE_LOW_CHARS; c++) {
        bpe->low_char[c] = sy_vocab_find(vocab, text, sy_utf8_put(text, c));
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        const int n = snprintf(text, sizeof(text), "<0x%02X>", byte);
        bpe->byte_id[byte] = sy_vocab_find(vocab, text, (size_t)n);
    }
    while (n_slots < 2 * n_merges) n_slots *= 2;
    bpe->slot = malloc(n_slots * sizeof(*bpe->slot));
    bpe->joint = calloc(SY_BPE_JOINTS / 64, sizeof(*bpe->joint));
    if (bpe->slot == NULL || bpe->joint == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_slots; i++) bpe->slot[i].left = SY_NO_ID;
    bpe->n_slots = n_slots;
    return SY_OK;
}

/* The bit for two characters side by side. Two pairs may share one, which only makes a part longer.
 */
static size_t joint_bit(uint32_t left, uint32_t right)
{
    return (size_t)((left * 0x9E3779B1u ^ right * 0x85EBCA77u) >> (32 - SY_BPE_JOINT_BITS));
}

static int may_join(const sy_bpe *bpe, uint32_t left, uint32_t right)
{
    const size_t bit = joint_bit(left, right);

    return bpe->joint[bit / 64] >> (bit % 64) & 1;
}

/* The first and the last character of a token's text; 0: it has none. */
static int edges(const sy_vocab *vocab, uint32_t id, uint32_t *first, uint32_t *last)
{
    const char *s = vocab->text + vocab->token[id].at;
    size_t i = 0, at = vocab->token[id].n_bytes;

    if (at-- == 0) return 0;
    *first = sy_utf8_next(s, &i);
    while (at > 0 && ((uint8_t)s[at] & 0xC0) == 0x80) at--;
    *last = sy_utf8_next(s, &at);
    return 1;
}

/* The slot of the pair, or the empty one where it would stand. */
static sy_bpe_merge *find_merge(const sy_bpe *bpe, uint32_t left, uint32_t right)
{
    const size_t mask = bpe->n_slots - 1;
    size_t i = (size_t)sy_splitmix64((uint64_t)left << 32 | right) & mask;

    while (bpe->slot[i].left != SY_NO_ID &&
           (bpe->slot[i].left != left || bpe->slot[i].right != right)) {
        i = (i + 1) & mask;
    }
    return &bpe->slot[i];
}

void sy_bpe_add_merge(sy_bpe *bpe, const sy_bpe_merge *merge)
{
    uint32_t left = 0, right = 0, unused;

    *find_merge(bpe, merge->left, merge->right) = *merge;
    if (!edges(bpe->vocab, merge->left, &unused, &left) ||
        !edges(bpe->vocab, merge->right, &right, &unused)) {
        /* An empty token has no edges of its own: nothing is known to stay apart. */
        memset(bpe->joint, 0xFF, SY_BPE_JOINTS / 8);
        return;
    }
    const size_t bit = joint_bit(left, right);
    bpe->joint[bit / 64] |= (uint64_t)1 << (bit % 64);
}

void sy_bpe_free(sy_bpe *bpe)
{
    free(bpe->joint);
    free(bpe->slot);
    memset(bpe, 0, sizeof(*bpe));
}

/* first, last: the characters at the ends of the symbol's text. */
static sy_status push_symbol(const sy_bpe *bpe, sy_bpe_scratch *scratch, uint32_t id,
                             uint32_t first, uint32_t last)
{
    if (scratch->n_symbols == scratch->symbol_capacity) {
        const size_t larger = SY_MAX((size_t)64, 2 * scratch->symbol_capacity);
        void *moved = realloc(scratch->symbol, larger * sizeof(*scratch->symbol));
        if (moved == NULL) return SY_ENOMEM;
        scratch->symbol = moved;
        scratch->symbol_capacity = larger;
    }
    const uint32_t at = (uint32_t)scratch->n_symbols++;
    scratch->symbol[at] = (struct sy_bpe_symbol){.id = id, .prev = END, .next = END};
    if (at > 0 && may_join(bpe, scratch->last_char, first)) {
        scratch->symbol[at].prev = at - 1;
        scratch->symbol[at - 1].next = at;
    }
    scratch->last_char = last;
    return SY_OK;
}

static sy_status push_unk(const sy_bpe *bpe, sy_bpe_scratch *scratch)
{
    uint32_t first = 0, last = 0;

    (void)edges(bpe->vocab, bpe->unk, &first, &last);
    return push_symbol(bpe, scratch, bpe->unk, first, last);
}

static sy_status push_bytes(const sy_bpe *bpe, sy_bpe_scratch *scratch, const char *s, size_t n)
{
    sy_status st = SY_OK;

    for (size_t i = 0; i < n && st == SY_OK; i++) {
        st = push_symbol(bpe, scratch, bpe->byte_id[(uint8_t)s[i]], '<', '>');
    }
    return st;
}

static int has_bytes(const sy_bpe *bpe, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bpe->byte_id[(uint8_t)s[i]] == SY_NO_ID) return 0;
    }
    return 1;
}

/* The piece as one symbol a character; a character without a token becomes its bytes, the unknown
 * token or nothing. An unknown token waits for the next known character, since fuse_unk may join it
 * with more of its kind; bytes overtake it while it waits, as they do in the library this follows.
 */
static sy_status split_into_symbols(const sy_bpe *bpe, sy_bpe_scratch *scratch, const char *s,
                                    size_t n, sy_error *err)
{
    sy_status st = SY_OK;
    int unk_waits = 0;

    scratch->n_symbols = 0;
    for (size_t i = 0; i < n;) {
        const size_t from = i;
        const uint32_t c = sy_utf8_next(s, &i);
        const uint32_t id =
            c < SY_BPE_LOW_CHARS ? bpe->low_char[c] : sy_vocab_find(bpe->vocab, s + from, i - from);
        if (id != SY_NO_ID) {
            if (unk_waits) SY_TRY(push_unk(bpe, scratch));
            unk_waits = 0;
            SY_TRY(push_symbol(bpe, scratch, id, c, c));
        } else if (bpe->byte_fallback && has_bytes(bpe, s + from, i - from)) {
            SY_TRY(push_bytes(bpe, scratch, s + from, i - from));
        } else if (bpe->has_unk) {
            if (bpe->unk == SY_NO_ID) {
                return sy_error_set(err, SY_EINVAL,
                                    "U+%04X has no token, and the tokenizer's unk_token is not in "
                                    "its vocabulary",
                                    (unsigned)c);
            }
            if (unk_waits && !bpe->fuse_unk) SY_TRY(push_unk(bpe, scratch));
            unk_waits = 1;
        }
    }
    if (unk_waits) SY_TRY(push_unk(bpe, scratch));
out:
    return st;
}

static sy_status heap_push(sy_bpe_scratch *scratch, struct sy_bpe_candidate added)
{
    size_t i = scratch->n_heap;

    if (i == scratch->heap_capacity) {
        const size_t larger = SY_MAX((size_t)64, 2 * scratch->heap_capacity);
        void *moved = realloc(scratch->heap, larger * sizeof(*scratch->heap));
        if (moved == NULL) return SY_ENOMEM;
        scratch->heap = moved;
        scratch->heap_capacity = larger;
    }
    scratch->n_heap++;
    for (; i > 0 && scratch->heap[(i - 1) / 2].key > added.key; i = (i - 1) / 2) {
        scratch->heap[i] = scratch->heap[(i - 1) / 2];
    }
    scratch->heap[i] = added;
    return SY_OK;
}

static struct sy_bpe_candidate heap_pop(sy_bpe_scratch *scratch)
{
    struct sy_bpe_candidate *heap = scratch->heap;
    const struct sy_bpe_candidate top = heap[0];
    const size_t n = --scratch->n_heap;
    const struct sy_bpe_candidate moved = heap[n];
    size_t i = 0;

    for (size_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= moved.key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
    return top;
}

/* Offers the pair that begins at symbol `left`, if it merges at all. */
static sy_status offer(const sy_bpe *bpe, sy_bpe_scratch *scratch, uint32_t left)
{
    const struct sy_bpe_symbol *a = &scratch->symbol[left];
    const sy_bpe_merge *merge;

    if (a->next == END) return SY_OK;
    merge = find_merge(bpe, a->id, scratch->symbol[a->next].id);
    if (merge->left == SY_NO_ID) return SY_OK;
    return heap_push(scratch, (struct sy_bpe_candidate){.key = (uint64_t)merge->rank << 32 | left,
                                                        .merged = merge->merged});
}

/* Merges what the heap holds, and what comes of it, until nothing does. */
static sy_status merge_part(const sy_bpe *bpe, sy_bpe_scratch *scratch)
{
    struct sy_bpe_symbol *symbol = scratch->symbol;
    sy_status st = SY_OK;

    while (scratch->n_heap > 0) {
        const struct sy_bpe_candidate best = heap_pop(scratch);
        const uint32_t at = (uint32_t)best.key;
        struct sy_bpe_symbol *left = &symbol[at];

        if (left->id == SY_NO_ID || left->next == END) continue;
        struct sy_bpe_symbol *right = &symbol[left->next];
        /* Overtaken unless the pair that stands here now still makes the same token. */
        const sy_bpe_merge *merge = find_merge(bpe, left->id, right->id);
        if (merge->left == SY_NO_ID || merge->merged != best.merged) continue;
        left->id = best.merged;
        left->next = right->next;
        right->id = SY_NO_ID;
        if (left->next != END) symbol[left->next].prev = at;
        if (left->prev != END) SY_TRY(offer(bpe, scratch, left->prev));
        SY_TRY(offer(bpe, scratch, at));
    }
out:
    return st;
}

static sy_status merge_symbols(const sy_bpe *bpe, sy_bpe_scratch *scratch)
{
    sy_status st = SY_OK;

    scratch->n_heap = 0;
    for (uint32_t i = 0; i < scratch->n_symbols; i++) {
        SY_TRY(offer(bpe, scratch, i));
        if (scratch->symbol[i].next == END) SY_TRY(merge_part(bpe, scratch));
    }
out:
    return st;
}

sy_status sy_bpe_encode(const sy_bpe *bpe, sy_bpe_scratch *scratch, sy_ids *ids, const char *s,
                        size_t n, sy_error *err)
{
    sy_status st = SY_OK;

    if (n > PIECE_BYTES_MAX) return sy_error_set(err, SY_ELIMIT, "a piece of %zu bytes", n);
    if (bpe->ignore_merges) {
        const uint32_t whole = sy_vocab_find(bpe->vocab, s, n);
        if (whole != SY_NO_ID) return sy_ids_push(ids, whole);
    }
    SY_TRY(split_into_symbols(bpe, scratch, s, n, err));
    SY_TRY(merge_symbols(bpe, scratch));
    for (size_t i = 0; i < scratch->n_symbols; i++) {
        if (scratch->symbol[i].id != SY_NO_ID) SY_TRY(sy_ids_push(ids, scratch->symbol[i].id));
    }
out:
    return st;
}

void sy_bpe_scratch_free(sy_bpe_scratch *scratch)
{
    free(scratch->symbol);
    free(scratch->heap);
    memset(scratch, 0, sizeof(*scratch));
}
