/* sy_grammar.c - the text of the placement hash: fields and values, in and out. What is refused is
 * refused with a sentence that shows the offending piece and says what to write instead. */
#include <stdio.h>
#include <string.h>

#include "sy_bytes.h"
#include "sy_placement.h"

#define SHOWN_BYTES    80 /* of an offending piece in an error text */
#define DEVICE_IDS_MAX 1024

/* A piece of text that is not NUL-terminated. */
typedef struct piece {
    const char *text;
    size_t n;
} piece;

static const char *show(char *out, piece p)
{
    return sy_bytes_show(out, SHOWN_BYTES, p.text, p.n);
}

/* *before: what stands before the first `c`, *rest: what follows it. Without a `c`, *before is the
 * whole piece, *rest is empty, and the answer 0. */
static int cut_at(piece *before, piece *rest, piece p, char c)
{
    const char *at = p.n > 0 ? memchr(p.text, c, p.n) : NULL;

    *before = p;
    *rest = (piece){"", 0};
    if (at == NULL) return 0;
    before->n = (size_t)(at - p.text);
    *rest = (piece){at + 1, p.n - before->n - 1};
    return 1;
}

static int equals(piece p, const char *word)
{
    return p.n == strlen(word) && memcmp(p.text, word, p.n) == 0;
}

static int has(piece p, char c)
{
    return p.n > 0 && memchr(p.text, c, p.n) != NULL;
}

/* Digits alone, without leading zeros: one number has one spelling, so that no two hash fields name
 * the same expert. At most 9 digits. */
static int read_number(int32_t *out, piece p)
{
    int32_t value = 0;

    if (p.n == 0 || p.n > 9 || (p.n > 1 && p.text[0] == '0')) return 0;
    for (size_t i = 0; i < p.n; i++) {
        if (p.text[i] < '0' || p.text[i] > '9') return 0;
        value = value * 10 + (p.text[i] - '0');
    }
    *out = value;
    return 1;
}

/* ---- fields ---- */

static sy_status read_index(int32_t *out, piece p, const char *what, uint32_t n, sy_error *err)
{
    char shown[SHOWN_BYTES];

    if (equals(p, "*")) {
        *out = SY_ANY;
        return SY_OK;
    }
    if (!read_number(out, p)) {
        return sy_error_set(err, SY_EINVAL,
                            "the %s '%s' is not a number: write 0 to %u without leading zeros, or "
                            "* for every %s",
                            what, show(shown, p), n - 1, what);
    }
    if ((uint32_t)*out >= n) {
        return sy_error_set(err, SY_EINVAL, "the model has no %s %d: its %ss are 0 to %u", what,
                            (int)*out, what, n - 1);
    }
    return SY_OK;
}

sy_status sy_field_parse(sy_field *out, const char *text, size_t n, const sy_grid *grid,
                         sy_error *err)
{
    const piece whole = {text, n};
    char shown[SHOWN_BYTES];
    piece layer;
    piece expert;
    sy_field field;
    sy_status st;

    *out = (sy_field){SY_ANY, SY_ANY};
    if (grid->layers == 0 || grid->experts == 0) {
        return sy_error_set(err, SY_EINVAL, "the model has no experts to place");
    }
    if (!cut_at(&layer, &expert, whole, '/')) {
        return sy_error_set(err, SY_EINVAL,
                            "the field '%s' is not LAYER/EXPERT: write for example 3/17, */17, "
                            "3/* or */*",
                            show(shown, whole));
    }
    SY_TRY(read_index(&field.layer, layer, "layer", grid->layers, err));
    SY_TRY(read_index(&field.expert, expert, "expert", grid->experts, err));
    if (field.layer != SY_ANY) SY_TRY(sy_grid_check(grid, (uint32_t)field.layer, err));
    *out = field;
out:
    return st;
}

static int index_format(char *out, size_t cap, int32_t index)
{
    return index == SY_ANY ? snprintf(out, cap, "*") : snprintf(out, cap, "%d", (int)index);
}

size_t sy_field_format(char *out, size_t cap, sy_field field)
{
    char layer[16];
    char expert[16];

    index_format(layer, sizeof(layer), field.layer);
    index_format(expert, sizeof(expert), field.expert);
    return (size_t)snprintf(out, cap, "%s/%s", layer, expert);
}

/* ---- values ---- */

static int is_node_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

static sy_status read_node(sy_target *target, piece p, sy_error *err)
{
    char shown[SHOWN_BYTES];

    if (p.n == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "a target has no node: write NODE/DEVICE, for example "
                            "expert-a/cpu:0");
    }
    if (p.n >= sizeof(target->node)) {
        return sy_error_set(err, SY_EINVAL, "the node name '%s' has %zu bytes: at most %zu",
                            show(shown, p), p.n, sizeof(target->node) - 1);
    }
    for (size_t i = 0; i < p.n; i++) {
        if (!is_node_char(p.text[i])) {
            return sy_error_set(err, SY_EINVAL,
                                "the node name '%s' has a character other than letters, digits, "
                                "'.', '_' and '-'",
                                show(shown, p));
        }
    }
    memcpy(target->node, p.text, p.n);
    return SY_OK;
}

static sy_status read_device(sy_target *target, piece p, sy_error *err)
{
    char shown[SHOWN_BYTES];
    piece kind;
    piece id;
    int32_t number;

    if (!cut_at(&kind, &id, p, ':') || !(equals(kind, "cpu") || equals(kind, "cuda")) ||
        !read_number(&number, id) || number >= DEVICE_IDS_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "the device '%s' is neither cpu:N nor cuda:N with N from 0 to %d",
                            show(shown, p), DEVICE_IDS_MAX - 1);
    }
    memcpy(target->device, p.text, p.n); /* "cuda:1023" at most */
    return SY_OK;
}

static sy_status read_share(sy_target *target, piece p, sy_error *err)
{
    char shown[SHOWN_BYTES];
    int32_t share;

    if (equals(p, "shadow")) {
        target->shadow = 1;
        return SY_OK;
    }
    if (!read_number(&share, p) || share < 1 || share > 100) {
        return sy_error_set(err, SY_EINVAL,
                            "the share '%s' is neither a whole number from 1 to 100 nor 'shadow'",
                            show(shown, p));
    }
    target->share = (uint8_t)share;
    return SY_OK;
}

/* p is not empty. */
static sy_status read_target(sy_target *target, piece p, sy_error *err)
{
    char shown[SHOWN_BYTES];
    piece plain = p; /* without the mark at its end */
    piece node;
    piece place;
    piece share;
    piece device;
    int has_share;
    sy_status st;

    memset(target, 0, sizeof(*target));
    target->any_weights = p.text[p.n - 1] == '!';
    plain.n -= target->any_weights;
    if (has(plain, '!')) {
        return sy_error_set(err, SY_EINVAL,
                            "the target '%s' has a '!' too many or in another place than its end: "
                            "write for example expert-a/cpu:0! or expert-a/cpu:0@5!",
                            show(shown, p));
    }
    has_share = cut_at(&place, &share, plain, '@');
    if (!cut_at(&node, &device, place, '/')) {
        return sy_error_set(err, SY_EINVAL,
                            "the target '%s' is not NODE/DEVICE: write for example "
                            "expert-a/cpu:0",
                            show(shown, p));
    }
    SY_TRY(read_node(target, node, err));
    SY_TRY(read_device(target, device, err));
    if (has_share) SY_TRY(read_share(target, share, err));
out:
    return st;
}

/* What concerns the targets together: twins, shares, and that somebody computes. */
static sy_status check_list(const sy_target_list *list, sy_error *err)
{
    uint32_t n_shadow = 0;
    uint32_t n_shared = 0;
    uint32_t sum = 0;

    for (uint32_t i = 0; i < list->n; i++) {
        const sy_target *target = &list->target[i];

        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(target->node, list->target[j].node) == 0 &&
                strcmp(target->device, list->target[j].device) == 0) {
                return sy_error_set(err, SY_EINVAL, "%s/%s is named twice: name each target once",
                                    target->node, target->device);
            }
        }
        n_shadow += target->shadow;
        n_shared += target->share > 0;
        sum += target->share;
    }
    if (n_shadow == list->n) {
        return sy_error_set(err, SY_EINVAL,
                            "there are only shadow targets: name at least one without @shadow");
    }
    if (n_shared > 0 && n_shared + n_shadow < list->n) {
        return sy_error_set(err, SY_EINVAL,
                            "some targets have a share and some have none: give every target a "
                            "share or @shadow, or no target a share");
    }
    if (n_shared > 0 && sum != 100) {
        return sy_error_set(err, SY_EINVAL, "the shares add up to %u: they must add up to 100",
                            sum);
    }
    return SY_OK;
}

sy_status sy_targets_parse(sy_target_list *out, const char *text, size_t n, sy_error *err)
{
    sy_status st = SY_OK;
    size_t at = 0;

    memset(out, 0, sizeof(*out));
    if (n > SY_PLACEMENT_VALUE_MAX) {
        return sy_error_set(err, SY_EINVAL, "the value has %zu bytes: at most %d", n,
                            SY_PLACEMENT_VALUE_MAX);
    }
    while (at < n) {
        piece p = {text + at, 0};

        while (at + p.n < n && text[at + p.n] != ' ') p.n++;
        at += p.n + 1;
        if (p.n == 0) continue; /* one of several spaces in a row */
        if (out->n == SY_TARGETS_MAX) {
            st = sy_error_set(err, SY_EINVAL, "there are more than %d targets", SY_TARGETS_MAX);
            goto out;
        }
        SY_TRY(read_target(&out->target[out->n], p, err));
        out->n++;
    }
    if (out->n == 0) {
        st = sy_error_set(err, SY_EINVAL,
                          "the value names no target: write NODE/DEVICE, or delete the field");
        goto out;
    }
    st = check_list(out, err);
out:
    if (st != SY_OK) memset(out, 0, sizeof(*out));
    return st;
}

size_t sy_targets_format(char *out, size_t cap, const sy_target_list *list)
{
    size_t len = 0;

    if (cap > 0) out[0] = '\0';
    for (uint32_t i = 0; i < list->n; i++) {
        const sy_target *target = &list->target[i];
        char share[8] = "";
        char *const to = len < cap ? out + len : NULL;

        if (target->shadow) {
            strcpy(share, "@shadow");
        } else if (target->share > 0) {
            snprintf(share, sizeof(share), "@%u", (unsigned)target->share);
        }
        len +=
            (size_t)snprintf(to, to != NULL ? cap - len : 0, "%s%s/%s%s%s", i > 0 ? " " : "",
                             target->node, target->device, share, target->any_weights ? "!" : "");
    }
    return len;
}
