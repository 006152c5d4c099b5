/* target_edit.c - see the header. */
#include "target_edit.h"

#include <string.h>

sy_status target_parse(sy_target *out, const char *text, sy_error *err)
{
    sy_target_list list;
    const sy_status st = sy_targets_parse(&list, text, strlen(text), err);

    if (st != SY_OK) return st;
    if (list.n != 1 || list.target[0].share != 0 || list.target[0].shadow) {
        return sy_error_set(err, SY_EINVAL, "write one NODE/DEVICE here, as expert-0/cpu:0");
    }
    *out = list.target[0];
    return SY_OK;
}

int target_is_at(const sy_target *a, const sy_target *b)
{
    return strcmp(a->node, b->node) == 0 && strcmp(a->device, b->device) == 0;
}

int targets_find(const sy_target_list *list, const sy_target *target)
{
    for (uint32_t i = 0; i < list->n; i++) {
        if (target_is_at(&list->target[i], target)) return (int)i;
    }
    return -1;
}

uint32_t targets_count_serving(const sy_target_list *list)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < list->n; i++) n += !list->target[i].shadow;
    return n;
}

/* ---- shares ---- */

static int has_shares(const sy_target_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->target[i].share > 0) return 1;
    }
    return 0;
}

typedef struct split { /* of `sum` percent, among targets with weights */
    uint32_t n, sum, total;
    uint32_t weight[SY_TARGETS_MAX]; /* 0: gets nothing */
    uint32_t share[SY_TARGETS_MAX];
} split;

/* Who is furthest below (up) or above what is due, the first of equals. */
static uint32_t furthest(const split *s, int up)
{
    uint32_t best = 0;
    int64_t most = INT64_MIN;

    for (uint32_t i = 0; i < s->n; i++) {
        const int64_t due = (int64_t)s->sum * s->weight[i];
        const int64_t has = (int64_t)s->share[i] * s->total;
        const int64_t off = up ? due - has : has - due;

        if (s->weight[i] == 0 || (!up && s->share[i] == 1) || off <= most) continue;
        most = off;
        best = i;
    }
    return best;
}

/* Each gets its part rounded down, and 1 at least; what is then left over goes to those furthest
 * below their part, and what is missing is taken from those furthest above. */
sy_status targets_scale(sy_target_list *list, uint32_t sum, sy_error *err)
{
    const uint32_t n_serving = targets_count_serving(list);
    const int is_weighted = has_shares(list);
    split s = {.n = list->n, .sum = sum};
    uint32_t given = 0;

    if (n_serving == 0 || n_serving > sum) {
        return sy_error_set(err, SY_EINVAL, "%u targets cannot share %u percent", n_serving, sum);
    }
    for (uint32_t i = 0; i < list->n; i++) {
        if (list->target[i].shadow) continue;
        s.weight[i] = is_weighted ? SY_MAX(list->target[i].share, 1u) : 1;
        s.total += s.weight[i];
    }
    for (uint32_t i = 0; i < list->n; i++) {
        if (s.weight[i] == 0) continue;
        s.share[i] = SY_MAX(sum * s.weight[i] / s.total, 1u);
        given += s.share[i];
    }
    for (; given < sum; given++) s.share[furthest(&s, 1)]++;
    for (; given > sum; given--) s.share[furthest(&s, 0)]--;
    for (uint32_t i = 0; i < list->n; i++) list->target[i].share = (uint8_t)s.share[i];
    return SY_OK;
}

/* ---- edits ---- */

static void remove_at(sy_target_list *list, uint32_t at)
{
    memmove(&list->target[at], &list->target[at + 1], (list->n - at - 1) * sizeof(list->target[0]));
    list->n--;
    memset(&list->target[list->n], 0, sizeof(list->target[0]));
}

sy_status targets_drop_node(sy_target_list *list, const char *node, sy_error *err)
{
    const int is_weighted = has_shares(list);
    sy_target_list left = *list;
    sy_status st = SY_OK;

    for (uint32_t i = left.n; i-- > 0;) {
        if (strcmp(left.target[i].node, node) == 0) remove_at(&left, i);
    }
    if (targets_count_serving(&left) == 0) {
        return sy_error_set(err, SY_ENOTFOUND, "no other target than %s serves", node);
    }
    if (left.n == list->n) return SY_OK;
    if (is_weighted) SY_TRY(targets_scale(&left, 100, err));
    *list = left;
out:
    return st;
}

sy_status targets_move(sy_target_list *list, const sy_target *from, const sy_target *to,
                       sy_error *err)
{
    const int at = targets_find(list, from);
    const int there = targets_find(list, to);
    sy_target *moved;

    if (at < 0) {
        return sy_error_set(err, SY_ENOTFOUND, "%s/%s is not among the targets", from->node,
                            from->device);
    }
    moved = &list->target[at];
    if (there == at) return SY_OK;
    if (there < 0) {
        memcpy(moved->node, to->node, sizeof(moved->node));
        memcpy(moved->device, to->device, sizeof(moved->device));
        moved->any_weights = to->any_weights;
        return SY_OK;
    }
    sy_target *kept = &list->target[there];

    if (!moved->shadow) {
        kept->share = (uint8_t)(kept->share + moved->share);
        kept->shadow = 0;
    }
    remove_at(list, (uint32_t)at);
    return SY_OK;
}

static sy_status add_target(sy_target_list *list, const sy_target *to, sy_error *err)
{
    const int there = targets_find(list, to);

    if (there >= 0 && !list->target[there].shadow) {
        return sy_error_set(err, SY_EEXISTS, "%s/%s is among the targets already", to->node,
                            to->device);
    }
    if (there >= 0) remove_at(list, (uint32_t)there);
    if (list->n == SY_TARGETS_MAX) {
        return sy_error_set(err, SY_ELIMIT,
                            "there are %d targets already, which is all there may "
                            "be",
                            SY_TARGETS_MAX);
    }
    list->target[list->n++] = *to;
    return SY_OK;
}

sy_status targets_with_shadow(sy_target_list *list, const sy_target *to, sy_error *err)
{
    const sy_status st = add_target(list, to, err);

    if (st != SY_OK) return st;
    list->target[list->n - 1].share = 0;
    list->target[list->n - 1].shadow = 1;
    return SY_OK;
}

sy_status targets_with_share(sy_target_list *list, const sy_target *to, uint32_t share,
                             sy_error *err)
{
    sy_target_list scaled = *list;
    sy_status st;

    if (share < 1 || share > 99) {
        return sy_error_set(err, SY_EINVAL, "a share of %u percent: 1 to 99", share);
    }
    if (targets_find(&scaled, to) >= 0 && scaled.target[targets_find(&scaled, to)].shadow) {
        remove_at(&scaled, (uint32_t)targets_find(&scaled, to));
    }
    SY_TRY(targets_scale(&scaled, 100 - share, err));
    SY_TRY(add_target(&scaled, to, err));
    scaled.target[scaled.n - 1].share = (uint8_t)share;
    scaled.target[scaled.n - 1].shadow = 0;
    *list = scaled;
out:
    return st;
}

sy_status targets_text(char out[SY_PLACEMENT_VALUE_MAX], const sy_target_list *list, sy_error *err)
{
    if (sy_targets_format(out, SY_PLACEMENT_VALUE_MAX, list) < SY_PLACEMENT_VALUE_MAX) return SY_OK;
    return sy_error_set(err, SY_ELIMIT, "a value of more than %d bytes",
                        SY_PLACEMENT_VALUE_MAX - 1);
}
