/* sy_vocab.c - token texts in one block, an array by id, and a hash table by text. */
#include "sy_vocab.h"
#include "sy_hash.h"

#include <stdlib.h>
#include <string.h>

static size_t slot_of(const sy_vocab *vocab, const char *s, size_t n)
{
    size_t i = (size_t)sy_splitmix64(sy_fnv1a(SY_FNV1A_START, s, n)) & (vocab->n_slots - 1);

    for (;; i = (i + 1) & (vocab->n_slots - 1)) {
        const uint32_t id = vocab->slot[i];
        if (id == SY_NO_ID) return i;
        const sy_vocab_token *token = &vocab->token[id];
        if (token->n_bytes == n && memcmp(vocab->text + token->at, s, n) == 0) return i;
    }
}

sy_status sy_vocab_reserve(sy_vocab *vocab, size_t n_model)
{
    size_t n_slots = 16;

    /* At most half full, so that a probe for a missing text ends soon. */
    while (n_slots < 2 * n_model) n_slots *= 2;
    vocab->slot = malloc(n_slots * sizeof(*vocab->slot));
    if (vocab->slot == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_slots; i++) vocab->slot[i] = SY_NO_ID;
    vocab->n_slots = n_slots;
    return SY_OK;
}

static sy_status grow(void **array, size_t *capacity, size_t needed, size_t item_bytes)
{
    size_t larger = SY_MAX(*capacity, (size_t)256);
    void *moved;

    if (needed <= *capacity) return SY_OK;
    while (larger < needed) larger *= 2;
    moved = realloc(*array, larger * item_bytes);
    if (moved == NULL) return SY_ENOMEM;
    *array = moved;
    *capacity = larger;
    return SY_OK;
}

sy_status sy_vocab_add(sy_vocab *vocab, uint32_t id, const char *s, size_t n, int model)
{
    void *text = vocab->text, *tokens = vocab->token;
    sy_status st = SY_OK;

    SY_ASSERT(id <= SY_TOKEN_ID_MAX);
    if (n > UINT32_MAX) return SY_ELIMIT;
    if (sy_vocab_get(vocab, id) != NULL) return SY_EEXISTS;
    SY_TRY(grow(&text, &vocab->text_capacity, vocab->text_bytes + n + 1, 1));
    vocab->text = text;
    SY_TRY(grow(&tokens, &vocab->token_capacity, (size_t)id + 1, sizeof(*vocab->token)));
    vocab->token = tokens;
    if (id >= vocab->n_ids) {
        memset(vocab->token + vocab->n_ids, 0, (id + 1 - vocab->n_ids) * sizeof(*vocab->token));
        vocab->n_ids = (size_t)id + 1;
    }
    memcpy(vocab->text + vocab->text_bytes, s, n);
    vocab->text[vocab->text_bytes + n] = '\0';
    vocab->token[id] =
        (sy_vocab_token){.at = vocab->text_bytes, .n_bytes = (uint32_t)n, .present = 1};
    vocab->text_bytes += n + 1;
    if (model) {
        SY_ASSERT(2 * (vocab->n_model + 1) <= vocab->n_slots);
        vocab->slot[slot_of(vocab, s, n)] = id;
        vocab->n_model++;
    }
out:
    return st;
}

uint32_t sy_vocab_find(const sy_vocab *vocab, const char *s, size_t n)
{
    return vocab->n_slots == 0 ? SY_NO_ID : vocab->slot[slot_of(vocab, s, n)];
}

const sy_vocab_token *sy_vocab_get(const sy_vocab *vocab, uint32_t id)
{
    if (id >= vocab->n_ids || !vocab->token[id].present) return NULL;
    return &vocab->token[id];
}

void sy_vocab_free(sy_vocab *vocab)
{
    free(vocab->text);
    free(vocab->token);
    free(vocab->slot);
    memset(vocab, 0, sizeof(*vocab));
}
