/* sy_gguf_vocab.c - the vocabulary, and merges from scores. Pieces are found by binary search,
 * which chosen pieces cannot slow down. */
#include "sy_gguf_vocab.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_gguf_tokenizer.h"

static sy_status optional_array(const sy_gguf_value **out, const sy_gguf *metadata, const char *key,
                                sy_gguf_kind kind, size_t n, sy_error *err)
{
    sy_status st;

    *out = NULL;
    if (sy_gguf_value_of(metadata, key) == NULL) return SY_OK;
    st = sy_gguf_array(out, metadata, key, kind, err);
    if (st == SY_OK && (*out)->n != n) {
        st = sy_error_set(err, SY_EINVAL, "%s has %zu elements, but there are %zu tokens", key,
                          (*out)->n, n);
    }
    return st;
}

sy_status gguf_vocab_read(gguf_vocab *out, const sy_gguf *metadata, sy_error *err)
{
    const sy_gguf_value *tokens = NULL;
    sy_status st;

    *out = (gguf_vocab){0};
    SY_TRY(sy_gguf_array(&tokens, metadata, "tokenizer.ggml.tokens", SY_GGUF_KIND_STRING, err));
    if (tokens->n == 0 || tokens->n > SY_GGUF_VOCAB_MAX) {
        return sy_error_set(err, SY_EINVAL, "tokenizer.ggml.tokens has %zu tokens, not 1 to %u",
                            tokens->n, SY_GGUF_VOCAB_MAX);
    }
    SY_TRY(optional_array(&out->types, metadata, "tokenizer.ggml.token_type", SY_GGUF_KIND_I32,
                          tokens->n, err));
    SY_TRY(optional_array(&out->scores, metadata, "tokenizer.ggml.scores", SY_GGUF_KIND_F32,
                          tokens->n, err));
    out->tokens = tokens->strings;
    out->n = tokens->n;
out:
    return st;
}

gguf_token_type gguf_token_type_of(const gguf_vocab *vocab, size_t id)
{
    int64_t type = GGUF_TOKEN_NORMAL;

    if (vocab->types != NULL && !sy_gguf_value_i64(&type, vocab->types, id)) type = 0;
    return type >= 0 && type <= GGUF_TOKEN_BYTE ? (gguf_token_type)type : GGUF_TOKEN_UNDEFINED;
}

int gguf_token_is_there(const gguf_vocab *vocab, size_t id)
{
    return vocab->tokens[id].n > 0 && gguf_token_type_of(vocab, id) != GGUF_TOKEN_UNUSED;
}

typedef struct piece {
    sy_gguf_string text;
    uint32_t id;
} piece;

typedef struct merge {
    float score;
    uint32_t left_chars, right_chars;
    uint32_t left, right, whole; /* ids */
} merge;

typedef struct merge_list {
    merge *items;
    size_t n, capacity;
} merge_list;

static int order_by_text(const void *a, const void *b)
{
    const piece *x = a;
    const piece *y = b;
    const size_t shorter = SY_MIN(x->text.n, y->text.n);
    const int order = shorter > 0 ? memcmp(x->text.s, y->text.s, shorter) : 0;

    return order != 0 ? order : (x->text.n > y->text.n) - (x->text.n < y->text.n);
}

static int order_by_rank(const void *a, const void *b)
{
    const merge *x = a;
    const merge *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars) return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars) return x->right_chars > y->right_chars ? -1 : 1;
    return (x->whole > y->whole) - (x->whole < y->whole);
}

static const piece *find_piece(const piece *sorted, size_t n, const char *s, size_t len)
{
    const piece wanted = {.text = {.s = s, .n = len}};

    return bsearch(&wanted, sorted, n, sizeof(*sorted), order_by_text);
}

static int push(merge_list *list, const merge *item)
{
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity > 0 ? 2 * list->capacity : 1024;
        merge *items = realloc(list->items, capacity * sizeof(*items));

        if (items == NULL) return 0;
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = *item;
    return 1;
}

static int begins_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static uint32_t count_chars(const char *s, size_t n)
{
    uint32_t count = 0;

    for (size_t i = 0; i < n; i++) count += (uint32_t)begins_char(s[i]);
    return count;
}

/* Every split of one piece into two. 0: no memory. */
static int push_splits(merge_list *list, const piece *sorted, size_t n, const piece *whole,
                       float score)
{
    const char *s = whole->text.s;
    const uint32_t n_chars = count_chars(s, whole->text.n);
    merge item = {.score = score, .whole = whole->id};

    for (size_t i = 1; i < whole->text.n; i++) {
        const piece *left, *right;

        if (!begins_char(s[i])) continue;
        item.left_chars++;
        left = find_piece(sorted, n, s, i);
        if (left == NULL) continue;
        right = find_piece(sorted, n, s + i, whole->text.n - i);
        if (right == NULL) continue;
        item.right_chars = n_chars - item.left_chars;
        item.left = left->id;
        item.right = right->id;
        if (!push(list, &item)) return 0;
    }
    return 1;
}

static sy_status collect(merge_list *list, const gguf_vocab *vocab, const piece *sorted, size_t n,
                         sy_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const piece *whole = &sorted[i];
        float score = 0.0f;

        if (!sy_gguf_value_f32(&score, vocab->scores, whole->id) || !isfinite(score)) {
            return sy_error_set(err, SY_EINVAL, "tokenizer.ggml.scores[%" PRIu32 "] is no number",
                                whole->id);
        }
        if (whole->text.n > SY_GGUF_PIECE_BYTES) {
            return sy_error_set(err, SY_EINVAL,
                                "token %" PRIu32 " has %zu bytes, more than the limit of %u",
                                whole->id, whole->text.n, SY_GGUF_PIECE_BYTES);
        }
        if (!push_splits(list, sorted, n, whole, score))
            return sy_error_set(err, SY_ENOMEM, "no memory for merges");
    }
    return SY_OK;
}

sy_status gguf_merges_of_scores(sy_strbuf *out, const gguf_vocab *vocab, sy_error *err)
{
    piece *sorted = calloc(vocab->n, sizeof(*sorted));
    merge_list list = {0};
    size_t n = 0;
    sy_status st;

    if (sorted == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %zu tokens", vocab->n);
    for (size_t id = 0; id < vocab->n; id++) {
        if (gguf_token_is_there(vocab, id))
            sorted[n++] = (piece){.text = vocab->tokens[id], .id = (uint32_t)id};
    }
    qsort(sorted, n, sizeof(*sorted), order_by_text);
    SY_TRY(collect(&list, vocab, sorted, n, err));
    if (list.n > 0) qsort(list.items, list.n, sizeof(*list.items), order_by_rank);
    sy_strbuf_puts(out, "[");
    for (size_t i = 0; i < list.n; i++) {
        const sy_gguf_string *left = &vocab->tokens[list.items[i].left];
        const sy_gguf_string *right = &vocab->tokens[list.items[i].right];

        sy_strbuf_puts(out, i > 0 ? ",\n[" : "[");
        sy_strbuf_json_string(out, left->s, left->n);
        sy_strbuf_puts(out, ",");
        sy_strbuf_json_string(out, right->s, right->n);
        sy_strbuf_puts(out, "]");
    }
    sy_strbuf_puts(out, "]");
out:
    free(list.items);
    free(sorted);
    return st;
}
