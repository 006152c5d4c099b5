/* sy_pretok.c - applying pre-tokenizer steps. Pieces go down the steps one by one, so that no list
 * of them is ever kept; the recursion is as deep as there are steps. */
#include "sy_pretok.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

/* A split under way: the parts of s are matches and gaps in turn; a part may have to wait for the
 * one after it. */
typedef struct split {
    sy_pretok_run *run;
    size_t step_id;
    const char *s;
    const char *seen; /* what a regular expression sees in place of s: [n] */
    size_t n;
    int at_start;
    int holds, held_match; /* a part waits: */
    size_t held_from, held_to;
    sy_error *err;
} split;

static sy_status apply_step(sy_pretok_run *run, size_t step_id, const char *s, size_t n,
                            int at_start, sy_error *err);

void sy_pretok_free(sy_pretok *pretok)
{
    for (size_t i = 0; i < pretok->n_steps; i++) {
        sy_regex_close(pretok->step[i].regex);
        free(pretok->step[i].text);
    }
    memset(pretok, 0, sizeof(*pretok));
}

void sy_pretok_run_init(sy_pretok_run *run, const sy_pretok *pretok)
{
    memset(run, 0, sizeof(*run));
    run->pretok = pretok;
    for (size_t i = 0; i < SY_PRETOK_STEPS_MAX; i++) sy_strbuf_init(&run->buf[i]);
}

void sy_pretok_run_free(sy_pretok_run *run)
{
    for (size_t i = 0; i < SY_PRETOK_STEPS_MAX; i++) sy_strbuf_free(&run->buf[i]);
}

static sy_status emit(split *sp, size_t from, size_t to)
{
    return apply_step(sp->run, sp->step_id + 1, sp->s + from, to - from, sp->at_start && from == 0,
                      sp->err);
}

static sy_status flush(split *sp)
{
    if (!sp->holds) return SY_OK;
    sp->holds = 0;
    return emit(sp, sp->held_from, sp->held_to);
}

static void hold(split *sp, size_t from, size_t to, int is_match)
{
    sp->holds = 1;
    sp->held_match = is_match;
    sp->held_from = from;
    sp->held_to = to;
}

/* Takes the next part, which begins where the last one ended and is not empty. */
static sy_status take_part(split *sp, size_t from, size_t to, int is_match)
{
    sy_status st = SY_OK;
    int joins = 0;

    switch (sp->run->pretok->step[sp->step_id].behavior) {
    case SY_SPLIT_REMOVED: return is_match ? SY_OK : emit(sp, from, to);
    case SY_SPLIT_ISOLATED: return emit(sp, from, to);
    case SY_SPLIT_MERGED_WITH_PREVIOUS: joins = is_match && !sp->held_match; break;
    case SY_SPLIT_MERGED_WITH_NEXT: joins = !is_match && sp->held_match; break;
    case SY_SPLIT_CONTIGUOUS: joins = is_match == sp->held_match; break;
    }
    if (sp->holds && joins) {
        /* A run of one kind goes on; a match and its gap are complete, but wait to be flushed
         * alone. */
        hold(sp, sp->held_from, to, is_match);
        return SY_OK;
    }
    SY_TRY(flush(sp));
    hold(sp, from, to, is_match);
out:
    return st;
}

static sy_status find_numeric(const char *s, size_t n, size_t from, size_t match[2])
{
    for (size_t i = from; i < n;) {
        const size_t at = i;
        if (sy_unicode_is_numeric(sy_utf8_next(s, &i))) {
            match[0] = at;
            match[1] = i;
            return SY_OK;
        }
    }
    return SY_ENOTFOUND;
}

static sy_status find_text(const sy_pretok_step *step, const char *s, size_t n, size_t from,
                           size_t match[2])
{
    const char *found = memmem(s + from, n - from, step->text, step->text_bytes);

    if (found == NULL) return SY_ENOTFOUND;
    match[0] = (size_t)(found - s);
    match[1] = match[0] + step->text_bytes;
    return SY_OK;
}

static sy_status find_next(split *sp, size_t from, size_t match[2])
{
    const sy_pretok_step *step = &sp->run->pretok->step[sp->step_id];

    switch (step->pattern) {
    case SY_SPLIT_TEXT: return find_text(step, sp->s, sp->n, from, match);
    case SY_SPLIT_NUMERIC: return find_numeric(sp->s, sp->n, from, match);
    default:
        return sy_regex_find(step->regex, sp->run->regex, sp->seen, sp->n, from, match, sp->err);
    }
}

/* Characters that PCRE2 may be too old to know are replaced by their stand-ins, if there are any.
 */
static sy_status choose_seen(split *sp)
{
    sy_strbuf *buf = &sp->run->buf[sp->step_id];
    size_t done = 0;

    sp->seen = sp->s;
    sy_strbuf_reset(buf);
    for (size_t i = 0; i < sp->n;) {
        const size_t at = i;
        char bytes[4];
        if ((uint8_t)sp->s[i] < 0xE0) { /* up to U+07FF there is none */
            i++;
            continue;
        }
        const uint32_t c = sy_utf8_next(sp->s, &i), stand_in = sy_unicode_stand_in(c);
        if (stand_in == c) continue;
        sy_strbuf_append(buf, sp->s + done, at - done);
        sy_strbuf_append(buf, bytes, sy_utf8_put(bytes, stand_in));
        done = i;
    }
    if (done == 0) return SY_OK;
    sy_strbuf_append(buf, sp->s + done, sp->n - done);
    if (buf->failed) return SY_ENOMEM;
    SY_ASSERT(buf->len == sp->n);
    sp->seen = buf->data;
    return SY_OK;
}

static sy_status apply_split(split *sp)
{
    const sy_pretok_step *step = &sp->run->pretok->step[sp->step_id];
    const int invert = step->invert;
    sy_status st = SY_OK;
    size_t from = 0, match[2];

    if (step->pattern == SY_SPLIT_REGEX) SY_TRY(choose_seen(sp));
    while (from < sp->n) {
        st = find_next(sp, from, match);
        if (st == SY_ENOTFOUND) {
            SY_TRY(take_part(sp, from, sp->n, invert));
            break;
        }
        if (st != SY_OK) goto out;
        if (match[0] > from) SY_TRY(take_part(sp, from, match[0], invert));
        SY_TRY(take_part(sp, match[0], match[1], !invert));
        from = match[1];
    }
    st = flush(sp);
out:
    return st;
}

static sy_status apply_prefix_space(sy_pretok_run *run, size_t step_id, const char *s, size_t n,
                                    int at_start, sy_error *err)
{
    sy_strbuf *buf = &run->buf[step_id];

    if (s[0] == ' ') return apply_step(run, step_id + 1, s, n, at_start, err);
    sy_strbuf_reset(buf);
    sy_strbuf_append(buf, " ", 1);
    sy_strbuf_append(buf, s, n);
    if (buf->failed) return SY_ENOMEM;
    return apply_step(run, step_id + 1, buf->data, buf->len, at_start, err);
}

static sy_status apply_metaspace(sy_pretok_run *run, size_t step_id, const char *s, size_t n,
                                 int at_start, sy_error *err)
{
    const sy_pretok_step *step = &run->pretok->step[step_id];
    sy_strbuf *buf = &run->buf[step_id];
    const int starts_so =
        s[0] == ' ' || (n >= step->text_bytes && memcmp(s, step->text, step->text_bytes) == 0);
    size_t from = 0;

    sy_strbuf_reset(buf);
    if (!starts_so &&
        (step->scheme == SY_PREPEND_ALWAYS || (step->scheme == SY_PREPEND_FIRST && at_start))) {
        sy_strbuf_append(buf, step->text, step->text_bytes);
    }
    while (from < n) {
        const char *space = memchr(s + from, ' ', n - from);
        const size_t end = space == NULL ? n : (size_t)(space - s);
        sy_strbuf_append(buf, s + from, end - from);
        if (space != NULL) sy_strbuf_append(buf, step->text, step->text_bytes);
        from = end + 1;
    }
    if (buf->failed) return SY_ENOMEM;
    return apply_step(run, step_id + 1, buf->data, buf->len, at_start, err);
}

static sy_status apply_step(sy_pretok_run *run, size_t step_id, const char *s, size_t n,
                            int at_start, sy_error *err)
{
    if (n == 0) return SY_OK;
    if (step_id == run->pretok->n_steps) return run->piece(run->arg, s, n, err);
    switch (run->pretok->step[step_id].kind) {
    case SY_PRETOK_PREFIX_SPACE: return apply_prefix_space(run, step_id, s, n, at_start, err);
    case SY_PRETOK_METASPACE: return apply_metaspace(run, step_id, s, n, at_start, err);
    default: {
        split sp = {
            .run = run, .step_id = step_id, .s = s, .n = n, .at_start = at_start, .err = err};
        return apply_split(&sp);
    }
    }
}

sy_status sy_pretok_apply(sy_pretok_run *run, const char *s, size_t n, int at_start, sy_error *err)
{
    return apply_step(run, 0, s, n, at_start, err);
}
