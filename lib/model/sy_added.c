/* sy_added.c - finding added tokens: a sorted list, narrowed byte by byte from each position. */
#include "sy_added.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    const sy_added_token *x = a, *y = b;
    const int order = memcmp(x->text, y->text, SY_MIN(x->n_bytes, y->n_bytes));

    return order != 0 ? order : (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

sy_status sy_added_add(sy_added_set *set, const sy_added_token *token)
{
    char *text;

    if (set->n == set->capacity) {
        const size_t larger = SY_MAX((size_t)16, 2 * set->capacity);
        void *moved = realloc(set->token, larger * sizeof(*set->token));
        if (moved == NULL) return SY_ENOMEM;
        set->token = moved;
        set->capacity = larger;
    }
    text = malloc(token->n_bytes + 1);
    if (text == NULL) return SY_ENOMEM;
    memcpy(text, token->text, token->n_bytes);
    text[token->n_bytes] = '\0';
    set->token[set->n] = *token;
    set->token[set->n++].text = text;
    return SY_OK;
}

sy_status sy_added_seal(sy_added_set *set)
{
    size_t k = 0;

    if (set->n > 0) qsort(set->token, set->n, sizeof(*set->token), by_text);
    for (size_t i = 1; i < set->n; i++) {
        if (by_text(&set->token[i - 1], &set->token[i]) == 0) return SY_EEXISTS;
    }
    for (unsigned byte = 0; byte < 257; byte++) {
        while (k < set->n && (uint8_t)set->token[k].text[0] < byte) k++;
        set->first[byte] = k;
    }
    return SY_OK;
}

void sy_added_free(sy_added_set *set)
{
    for (size_t i = 0; i < set->n; i++) free(set->token[i].text);
    free(set->token);
    memset(set, 0, sizeof(*set));
}

/* The first token in [low, high), all of which agree on `depth` bytes, whose byte there is >= byte;
 * a token that ends there comes first. */
static size_t lower_bound(const sy_added_set *set, size_t low, size_t high, size_t depth,
                          unsigned byte)
{
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const sy_added_token *token = &set->token[middle];
        if (token->n_bytes <= depth || (uint8_t)token->text[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest token that stands at s: [n], n >= 1. */
static const sy_added_token *longest_at(const sy_added_set *set, const char *s, size_t n)
{
    const sy_added_token *longest = NULL;
    size_t low = set->first[(uint8_t)s[0]];
    size_t high = set->first[(uint8_t)s[0] + 1];

    for (size_t depth = 1; low < high; depth++) {
        /* In sorted order the token that ends here is the first of the range. */
        if (set->token[low].n_bytes == depth) longest = &set->token[low];
        if (depth == n) break;
        const unsigned byte = (uint8_t)s[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return longest;
}

static uint32_t char_before(const char *s, size_t at)
{
    size_t i = at - 1;

    while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80) i--;
    return sy_utf8_next(s, &i);
}

static int stands_alone(const sy_added_scan *scan, size_t from, size_t to)
{
    if (from > 0 && sy_unicode_is_word(char_before(scan->s, from))) return 0;
    return to == scan->n || !sy_unicode_is_word(sy_utf8_next(scan->s, &(size_t){to}));
}

/* Where the whitespace that ends at `at` begins, not before `least`. */
static size_t space_before(const char *s, size_t at, size_t least)
{
    while (at > least) {
        size_t i = at - 1;
        while (i > least && ((uint8_t)s[i] & 0xC0) == 0x80) i--;
        if (!sy_unicode_is_space(sy_utf8_next(s, &(size_t){i}))) break;
        at = i;
    }
    return at;
}

static size_t space_after(const char *s, size_t n, size_t at)
{
    while (at < n) {
        size_t next = at;
        if (!sy_unicode_is_space(sy_utf8_next(s, &next))) break;
        at = next;
    }
    return at;
}

int sy_added_next(sy_added_scan *scan, sy_added_match *match)
{
    const sy_added_set *set = scan->set;

    while (set->n > 0 && scan->at < scan->n) {
        const size_t from = scan->at;
        const sy_added_token *token = longest_at(set, scan->s + from, scan->n - from);
        if (token == NULL) {
            scan->at++;
            continue;
        }
        /* A match that is refused is passed over whole: no shorter or later one inside it counts.
         */
        const size_t to = from + token->n_bytes;
        scan->at = to;
        if (token->special && !scan->special) continue;
        if (token->single_word && !stands_alone(scan, from, to)) continue;
        match->token = token;
        match->from = token->lstrip ? space_before(scan->s, from, scan->taken) : from;
        match->to = token->rstrip ? space_after(scan->s, scan->n, to) : to;
        scan->taken = match->to;
        return 1;
    }
    return 0;
}
