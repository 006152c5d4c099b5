/* sy_chat_method.c - methods of Python's str, dict, list and of Jinja's loop variable that a chat
 * template may call. */
#include <string.h>

#include "sy_chat_eval.h"
#include "sy_chat_text.h"
#include "sy_unicode.h"

/* The first place of `part` in s: [n]; n when there is none. part: [len], len >= 1. */
static size_t find_bytes(const char *s, size_t n, const char *part, size_t len)
{
    const char *found = len == 1 ? memchr(s, part[0], n) : memmem(s, n, part, len);

    return found == NULL ? n : (size_t)(found - s);
}

/* A copy with its bytes in the other order, so that what searches forwards, in linear time, finds
 * the last place of something. NULL: the run failed. */
static char *reversed(chat_run *run, const chat_str *s)
{
    char *copy = sy_chat_alloc(run, s->n, 1);

    for (size_t i = 0; copy != NULL && i < s->n; i++) copy[i] = s->data[s->n - 1 - i];
    sy_chat_charge(run, s->n);
    return copy;
}

/* The last place of part in s; s->n when there is none. */
static size_t find_last(chat_run *run, const chat_str *s, const chat_str *part)
{
    const char *backwards = reversed(run, s);
    const char *wanted = reversed(run, part);
    size_t at;

    if (backwards == NULL || wanted == NULL) return s->n;
    at = find_bytes(backwards, s->n, wanted, part->n);
    return at == s->n ? s->n : s->n - at - part->n;
}

static int has_char(const chat_str *chars, const char *c, size_t len)
{
    for (size_t i = 0; i < chars->n; i += sy_utf8_length((uint8_t)chars->data[i])) {
        if (len <= chars->n - i && memcmp(chars->data + i, c, len) == 0) return 1;
    }
    return 0;
}

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

static void strip_chars(chat_run *run, const chat_str *s, const chat_str *chars, int sides,
                        size_t *begin, size_t *end)
{
    while ((sides & STRIP_LEFT) != 0 && *begin < *end) {
        const size_t len = sy_utf8_length((uint8_t)s->data[*begin]);

        sy_chat_charge(run, chars->n);
        if (!has_char(chars, s->data + *begin, len)) break;
        *begin += len;
    }
    while ((sides & STRIP_RIGHT) != 0 && *begin < *end) {
        size_t start = *end - 1;

        while (((uint8_t)s->data[start] & 0xC0) == 0x80) start--;
        sy_chat_charge(run, chars->n);
        if (!has_char(chars, s->data + start, *end - start)) break;
        *end = start;
    }
}

static chat_value strip_sides(chat_run *run, chat_value self, chat_value chars, int sides)
{
    const chat_str *s = self.str;
    size_t begin = 0;
    size_t end = s->n;

    if (chars.kind == CHAT_MISSING || chars.kind == CHAT_NONE) {
        if ((sides & STRIP_RIGHT) != 0) end = sy_chat_rstrip_space(s->data, end);
        if ((sides & STRIP_LEFT) != 0) begin = sy_chat_space_prefix(s->data, end);
        sy_chat_charge(run, begin + s->n - end);
    } else {
        chars = sy_chat_arg_string(run, chars, "strip arg");
        strip_chars(run, s, chars.str, sides, &begin, &end);
    }
    return sy_chat_substring(run, self, begin, end);
}

static chat_value strip(chat_run *run, chat_value self, const chat_value *arg)
{
    return strip_sides(run, self, arg[0], STRIP_LEFT | STRIP_RIGHT);
}

static chat_value lstrip(chat_run *run, chat_value self, const chat_value *arg)
{
    return strip_sides(run, self, arg[0], STRIP_LEFT);
}

static chat_value rstrip(chat_run *run, chat_value self, const chat_value *arg)
{
    return strip_sides(run, self, arg[0], STRIP_RIGHT);
}

static size_t skip_word(const chat_str *s, size_t at)
{
    while (at < s->n) {
        size_t next = at;

        if (sy_chat_is_space(sy_utf8_next(s->data, &next))) break;
        at = next;
    }
    return at;
}

static size_t word_start(const chat_str *s, size_t end)
{
    while (end > 0) {
        size_t start = end - 1;
        size_t next;

        while (((uint8_t)s->data[start] & 0xC0) == 0x80) start--;
        next = start;
        if (sy_chat_is_space(sy_utf8_next(s->data, &next))) break;
        end = start;
    }
    return end;
}

static void split_words(chat_run *run, chat_value self, int64_t max, chat_list *out)
{
    const chat_str *s = self.str;
    size_t at = sy_chat_space_prefix(s->data, s->n);

    for (; at < s->n && run->status == SY_OK; max--) {
        const size_t end = max == 0 ? s->n : skip_word(s, at);

        sy_chat_list_push(run, out, sy_chat_substring(run, self, at, end));
        if (max == 0) break;
        at = end + sy_chat_space_prefix(s->data + end, s->n - end);
    }
}

static void split_words_right(chat_run *run, chat_value self, int64_t max, chat_list *out)
{
    const chat_str *s = self.str;
    size_t end = sy_chat_rstrip_space(s->data, s->n);

    for (; end > 0 && run->status == SY_OK; max--) {
        const size_t start = max == 0 ? 0 : word_start(s, end);

        sy_chat_list_push(run, out, sy_chat_substring(run, self, start, end));
        if (max == 0) break;
        end = sy_chat_rstrip_space(s->data, start);
    }
}

static void split_text(chat_run *run, chat_value self, const chat_str *sep, int64_t max,
                       chat_list *out)
{
    const chat_str *s = self.str;
    size_t at = 0;

    while (run->status == SY_OK) {
        const size_t found =
            max == 0 ? s->n - at : find_bytes(s->data + at, s->n - at, sep->data, sep->n);

        sy_chat_list_push(run, out, sy_chat_substring(run, self, at, at + found));
        if (found == s->n - at) break;
        at += found + sep->n;
        max--;
    }
}

static void split_text_right(chat_run *run, chat_value self, const chat_str *sep, int64_t max,
                             chat_list *out)
{
    const size_t n = self.str->n;
    const char *s = reversed(run, self.str);
    const char *part = reversed(run, sep);
    size_t at = 0; /* from the end */

    while (run->status == SY_OK) {
        const size_t found = max == 0 ? n - at : find_bytes(s + at, n - at, part, sep->n);

        sy_chat_list_push(run, out, sy_chat_substring(run, self, n - at - found, n - at));
        if (found == n - at) break;
        at += found + sep->n;
        max--;
    }
}

static void reverse_in_place(chat_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        const chat_value other = list->item[list->n - 1 - i];

        list->item[list->n - 1 - i] = list->item[i];
        list->item[i] = other;
    }
}

static chat_value split_any(chat_run *run, chat_value self, const chat_value *arg, int from_right)
{
    const int64_t max = sy_chat_arg_int(run, arg[1], -1);
    chat_list *parts = sy_chat_list_new(run, CHAT_SEQ_LIST, 0);

    if (parts == NULL) return sy_chat_none();
    if (arg[0].kind == CHAT_MISSING || arg[0].kind == CHAT_NONE) {
        (from_right ? split_words_right : split_words)(run, self, max, parts);
    } else {
        const chat_value sep = sy_chat_arg_string(run, arg[0], "the separator");

        if (sep.str->n == 0) sy_chat_fail(run, SY_EINVAL, "empty separator");
        (from_right ? split_text_right : split_text)(run, self, sep.str, max, parts);
    }
    if (from_right) reverse_in_place(parts);
    return sy_chat_from_list(parts);
}

static chat_value split(chat_run *run, chat_value self, const chat_value *arg)
{
    return split_any(run, self, arg, 0);
}

static chat_value rsplit(chat_run *run, chat_value self, const chat_value *arg)
{
    return split_any(run, self, arg, 1);
}

static int ends_line(uint32_t c)
{
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

static chat_value splitlines(chat_run *run, chat_value self, const chat_value *arg)
{
    const int keeps_ends = sy_chat_arg_truth(arg[0], 0);
    const chat_str *s = self.str;
    chat_list *lines = sy_chat_list_new(run, CHAT_SEQ_LIST, 0);
    size_t begin = 0;

    sy_chat_charge(run, s->n);
    for (size_t i = 0; i < s->n && run->status == SY_OK;) {
        const size_t at = i;
        const uint32_t c = sy_utf8_next(s->data, &i);

        if (!ends_line(c)) continue;
        if (c == '\r' && i < s->n && s->data[i] == '\n') i++;
        sy_chat_list_push(run, lines, sy_chat_substring(run, self, begin, keeps_ends ? i : at));
        begin = i;
    }
    if (begin < s->n) sy_chat_list_push(run, lines, sy_chat_substring(run, self, begin, s->n));
    return sy_chat_from_list(lines);
}

static chat_value partition_at(chat_run *run, chat_value self, chat_value sep, int is_last)
{
    const chat_str *s = self.str;
    const chat_value empty = sy_chat_cstring(run, "");
    chat_list *parts = sy_chat_list_new(run, CHAT_SEQ_TUPLE, 3);
    size_t at;

    sep = sy_chat_arg_string(run, sep, "the separator");
    if (sep.str->n == 0) sy_chat_fail(run, SY_EINVAL, "empty separator");
    if (run->status != SY_OK) return empty;
    sy_chat_charge(run, s->n);
    at =
        is_last ? find_last(run, s, sep.str) : find_bytes(s->data, s->n, sep.str->data, sep.str->n);
    if (at == s->n) {
        sy_chat_list_push(run, parts, is_last ? empty : self);
        sy_chat_list_push(run, parts, empty);
        sy_chat_list_push(run, parts, is_last ? self : empty);
    } else {
        sy_chat_list_push(run, parts, sy_chat_substring(run, self, 0, at));
        sy_chat_list_push(run, parts, sep);
        sy_chat_list_push(run, parts, sy_chat_substring(run, self, at + sep.str->n, s->n));
    }
    return sy_chat_from_list(parts);
}

static chat_value partition(chat_run *run, chat_value self, const chat_value *arg)
{
    return partition_at(run, self, arg[0], 0);
}

static chat_value rpartition(chat_run *run, chat_value self, const chat_value *arg)
{
    return partition_at(run, self, arg[0], 1);
}

static int matches_at_end(chat_run *run, const chat_str *s, const chat_str *part, int at_end)
{
    sy_chat_charge(run, part->n);
    return part->n <= s->n &&
           memcmp(s->data + (at_end ? s->n - part->n : 0), part->data, part->n) == 0;
}

/* part: a string, or a tuple of strings of which one must match. */
static chat_value matches_any(chat_run *run, const chat_str *s, chat_value part, int at_end)
{
    if (part.kind == CHAT_LIST && part.list->seq == CHAT_SEQ_TUPLE) {
        for (size_t i = 0; i < part.list->n && run->status == SY_OK; i++) {
            const chat_value one = sy_chat_arg_string(run, part.list->item[i], "an affix");

            if (matches_at_end(run, s, one.str, at_end)) return sy_chat_bool(1);
        }
        return sy_chat_bool(0);
    }
    part = sy_chat_arg_string(run, part, at_end ? "endswith first arg" : "startswith first arg");
    return sy_chat_bool(matches_at_end(run, s, part.str, at_end));
}

static chat_value startswith(chat_run *run, chat_value self, const chat_value *arg)
{
    return matches_any(run, self.str, arg[0], 0);
}

static chat_value endswith(chat_run *run, chat_value self, const chat_value *arg)
{
    return matches_any(run, self.str, arg[0], 1);
}

static chat_value removeprefix(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value part = sy_chat_arg_string(run, arg[0], "removeprefix argument");

    if (!matches_at_end(run, self.str, part.str, 0)) return self;
    return sy_chat_substring(run, self, part.str->n, self.str->n);
}

static chat_value removesuffix(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value part = sy_chat_arg_string(run, arg[0], "removesuffix argument");

    if (!matches_at_end(run, self.str, part.str, 1)) return self;
    return sy_chat_substring(run, self, 0, self.str->n - part.str->n);
}

/* Python puts an empty `old` between all characters. */
static void replace_empty(chat_run *run, sy_strbuf *buf, const chat_str *s, const chat_str *new_,
                          int64_t count)
{
    size_t i = 0;

    while (run->status == SY_OK) {
        const size_t len = i < s->n ? sy_utf8_length((uint8_t)s->data[i]) : 0;

        if (count != 0) sy_chat_put(run, buf, new_->data, new_->n);
        if (count > 0) count--;
        sy_chat_put(run, buf, s->data + i, len);
        if (i == s->n) break;
        i += len;
    }
}

static chat_value replace(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value old = sy_chat_arg_string(run, arg[0], "replace() argument 1");
    const chat_value new_ = sy_chat_arg_string(run, arg[1], "replace() argument 2");
    int64_t count = sy_chat_arg_int(run, arg[2], -1);
    const chat_str *s = self.str;
    sy_strbuf buf;
    size_t at = 0;

    sy_chat_text_begin(&buf);
    if (old.str->n == 0) {
        replace_empty(run, &buf, s, new_.str, count);
        at = s->n;
    }
    while (at < s->n && run->status == SY_OK) {
        const size_t left = s->n - at;
        const size_t found =
            count == 0 ? left : find_bytes(s->data + at, left, old.str->data, old.str->n);

        sy_chat_put(run, &buf, s->data + at, found);
        if (found == left) break;
        sy_chat_put(run, &buf, new_.str->data, new_.str->n);
        at += found + old.str->n;
        if (count > 0) count--;
    }
    return sy_chat_text_end(run, &buf);
}

static chat_value find_at(chat_run *run, chat_value self, chat_value part, int is_last)
{
    const chat_str *s = self.str;
    size_t at;

    part = sy_chat_arg_string(run, part, "find() argument");
    sy_chat_charge(run, s->n);
    if (part.str->n == 0) return sy_chat_int(is_last ? (int64_t)s->n_chars : 0);
    at = is_last ? find_last(run, s, part.str)
                 : find_bytes(s->data, s->n, part.str->data, part.str->n);
    return sy_chat_int(at == s->n ? -1 : (int64_t)sy_chat_count_chars(s->data, at));
}

static chat_value find(chat_run *run, chat_value self, const chat_value *arg)
{
    return find_at(run, self, arg[0], 0);
}

static chat_value rfind(chat_run *run, chat_value self, const chat_value *arg)
{
    return find_at(run, self, arg[0], 1);
}

static chat_value index_of(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value at = find_at(run, self, arg[0], 0);

    if (at.i < 0) sy_chat_fail(run, SY_EINVAL, "substring not found");
    return at;
}

static chat_value count_text(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_str *s = self.str;
    const chat_value part = sy_chat_arg_string(run, arg[0], "count() argument");
    int64_t n = 0;

    if (part.str->n == 0) return sy_chat_int((int64_t)s->n_chars + 1);
    sy_chat_charge(run, s->n);
    for (size_t at = 0; at < s->n; at += part.str->n) {
        const size_t found = find_bytes(s->data + at, s->n - at, part.str->data, part.str->n);

        if (found == s->n - at) break;
        at += found;
        n++;
    }
    return sy_chat_int(n);
}

static chat_value join(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_list *items = sy_chat_iterate(run, arg[0]);
    sy_strbuf buf;

    sy_chat_text_begin(&buf);
    for (size_t i = 0; items != NULL && i < items->n && run->status == SY_OK; i++) {
        const chat_value item = sy_chat_arg_string(run, items->item[i], "an item to join");

        if (i > 0) sy_chat_put(run, &buf, self.str->data, self.str->n);
        sy_chat_put(run, &buf, item.str->data, item.str->n);
    }
    return sy_chat_text_end(run, &buf);
}

static chat_value upper(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, self, CHAT_UPPER);
}

static chat_value lower(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, self, CHAT_LOWER);
}

static chat_value capitalize(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, self, CHAT_CAPITALIZE);
}

static chat_value title(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_change_case(run, self, CHAT_TITLE);
}

static chat_value is_alpha(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_ALPHA));
}

static chat_value is_digit(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_DIGIT));
}

static chat_value is_alnum(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_ALNUM));
}

static chat_value is_space(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_SPACE));
}

static chat_value is_upper(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_IS_UPPER));
}

static chat_value is_lower(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_bool(sy_chat_is_class(run, self.str, CHAT_IS_LOWER));
}

const chat_builtin *sy_chat_str_methods(size_t *n)
{
    static const chat_builtin methods[] = {
        {"strip", "chars?", strip, NULL, CHAT_STRING},
        {"lstrip", "chars?", lstrip, NULL, CHAT_STRING},
        {"rstrip", "chars?", rstrip, NULL, CHAT_STRING},
        {"split", "sep? maxsplit?", split, NULL, CHAT_STRING},
        {"rsplit", "sep? maxsplit?", rsplit, NULL, CHAT_STRING},
        {"splitlines", "keepends?", splitlines, NULL, CHAT_STRING},
        {"partition", "sep", partition, NULL, CHAT_STRING},
        {"rpartition", "sep", rpartition, NULL, CHAT_STRING},
        {"startswith", "prefix", startswith, NULL, CHAT_STRING},
        {"endswith", "suffix", endswith, NULL, CHAT_STRING},
        {"removeprefix", "prefix", removeprefix, NULL, CHAT_STRING},
        {"removesuffix", "suffix", removesuffix, NULL, CHAT_STRING},
        {"replace", "old new count?", replace, NULL, CHAT_STRING},
        {"find", "sub", find, NULL, CHAT_STRING},
        {"rfind", "sub", rfind, NULL, CHAT_STRING},
        {"index", "sub", index_of, NULL, CHAT_STRING},
        {"count", "sub", count_text, NULL, CHAT_STRING},
        {"join", "iterable", join, NULL, CHAT_STRING},
        {"format", NULL, NULL, sy_chat_format_braces, CHAT_STRING},
        {"upper", "", upper, NULL, CHAT_STRING},
        {"lower", "", lower, NULL, CHAT_STRING},
        {"capitalize", "", capitalize, NULL, CHAT_STRING},
        {"title", "", title, NULL, CHAT_STRING},
        {"isalpha", "", is_alpha, NULL, CHAT_STRING},
        {"isdigit", "", is_digit, NULL, CHAT_STRING},
        {"isalnum", "", is_alnum, NULL, CHAT_STRING},
        {"isspace", "", is_space, NULL, CHAT_STRING},
        {"isupper", "", is_upper, NULL, CHAT_STRING},
        {"islower", "", is_lower, NULL, CHAT_STRING},
    };

    *n = SY_COUNT_OF(methods);
    return methods;
}

static chat_value dict_get(chat_run *run, chat_value self, const chat_value *arg)
{
    const chat_value *found = sy_chat_dict_get(run, self.dict, arg[0]);

    if (found != NULL) return *found;
    return arg[1].kind == CHAT_MISSING ? sy_chat_none() : arg[1];
}

static chat_value dict_items(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_dict_view(run, self.dict, CHAT_SEQ_ITEMS);
}

static chat_value dict_keys(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_dict_view(run, self.dict, CHAT_SEQ_KEYS);
}

static chat_value dict_values(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)arg;
    return sy_chat_dict_view(run, self.dict, CHAT_SEQ_VALUES);
}

/* Nothing changes a mapping or a list, so that a copy is the thing itself. */
static chat_value copy(chat_run *run, chat_value self, const chat_value *arg)
{
    (void)run;
    (void)arg;
    return self;
}

static size_t position(chat_run *run, const chat_list *list, chat_value v)
{
    size_t i = 0;

    while (i < list->n && run->status == SY_OK && !sy_chat_equal(run, list->item[i], v)) i++;
    return i;
}

static chat_value list_index(chat_run *run, chat_value self, const chat_value *arg)
{
    const size_t i = position(run, self.list, arg[0]);

    if (i == self.list->n) sy_chat_fail(run, SY_EINVAL, "the value is not in the list");
    return sy_chat_int((int64_t)i);
}

static chat_value list_count(chat_run *run, chat_value self, const chat_value *arg)
{
    int64_t n = 0;

    for (size_t i = 0; i < self.list->n && run->status == SY_OK; i++) {
        n += sy_chat_equal(run, self.list->item[i], arg[0]);
    }
    return sy_chat_int(n);
}

static chat_value loop_cycle(chat_run *run, chat_value self, const chat_args *args)
{
    if (args->n_pos == 0 || args->n_named > 0) {
        sy_chat_fail(run, SY_EINVAL, "no items for cycling given");
        return sy_chat_none();
    }
    return args->pos[(self.loop->index - 1) % args->n_pos];
}

static chat_value loop_changed(chat_run *run, chat_value self, const chat_args *args)
{
    chat_list *now = sy_chat_list_new(run, CHAT_SEQ_TUPLE, args->n_pos);
    const chat_value seen = sy_chat_from_list(now);
    int is_same;

    for (size_t i = 0; i < args->n_pos; i++) sy_chat_list_push(run, now, args->pos[i]);
    is_same = self.loop->changed.kind == CHAT_LIST && sy_chat_equal(run, self.loop->changed, seen);
    self.loop->changed = seen;
    return sy_chat_bool(!is_same);
}

const chat_builtin *sy_chat_container_methods(size_t *n)
{
    static const chat_builtin methods[] = {
        {"get", "key default?", dict_get, NULL, CHAT_DICT},
        {"items", "", dict_items, NULL, CHAT_DICT},
        {"keys", "", dict_keys, NULL, CHAT_DICT},
        {"values", "", dict_values, NULL, CHAT_DICT},
        {"copy", "", copy, NULL, CHAT_DICT},
        {"index", "value", list_index, NULL, CHAT_LIST},
        {"count", "value", list_count, NULL, CHAT_LIST},
        {"copy", "", copy, NULL, CHAT_LIST},
        {"cycle", NULL, NULL, loop_cycle, CHAT_LOOP},
        {"changed", NULL, NULL, loop_changed, CHAT_LOOP},
    };

    *n = SY_COUNT_OF(methods);
    return methods;
}
