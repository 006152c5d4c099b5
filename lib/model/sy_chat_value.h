/* sy_chat_value.h - the values a chat template computes with, and the run that owns them. Values
 * are Python's: strings count characters, integers are exact (64 bits, checked), mappings keep
 * their order. All memory comes from the run's arena and is given back at its end.
 *
 * Failure is sticky: the first sy_chat_fail() of a run is kept, functions then return harmless
 * values, and whoever loops asks run->status. Private to sy_chat_*.c. */
#ifndef SY_CHAT_VALUE_H
#define SY_CHAT_VALUE_H

#include "sy_arena.h"
#include "sy_chat.h"

typedef enum chat_kind {
    CHAT_MISSING, /* an argument not given, a variable without a value; nothing computes with it */
    CHAT_UNDEFINED,
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STRING,
    CHAT_LIST,
    CHAT_DICT,
    CHAT_NAMESPACE,
    CHAT_MACRO,
    CHAT_FUNCTION, /* a global function */
    CHAT_METHOD,   /* bound: "x.strip" */
    CHAT_LOOP
} chat_kind;

typedef struct chat_str {
    char *data; /* [n], UTF-8, not NUL-terminated */
    size_t n, n_chars;
    size_t room; /* bytes behind data[n] that are free for whoever appends first */
} chat_str;

struct chat_list;
struct chat_dict;
struct chat_macro;
struct chat_loop;

typedef struct chat_value {
    uint8_t kind;
    uint8_t is_safe; /* STRING: went through |safe: what `+` adds to it is HTML-escaped */
    uint16_t id;     /* METHOD, FUNCTION: which; UNDEFINED: see sy_chat_undefined */
    union {
        int64_t i; /* INT, BOOL */
        double f;
        chat_str *str;                 /* STRING; UNDEFINED: the name, may be NULL */
        struct chat_list *list;        /* LIST */
        struct chat_dict *dict;        /* DICT, NAMESPACE */
        struct chat_macro *macro;      /* MACRO */
        struct chat_loop *loop;        /* LOOP */
        const struct chat_value *self; /* METHOD */
    };
} chat_value;

/* Python's sequences. All are held whole; an ITERATOR (what map() or selectattr() return) can be
 * walked only once. */
typedef enum chat_seq {
    CHAT_SEQ_LIST,
    CHAT_SEQ_TUPLE,
    CHAT_SEQ_RANGE,
    CHAT_SEQ_ITERATOR,
    CHAT_SEQ_KEYS, /* the views of a mapping: no index goes into these three */
    CHAT_SEQ_VALUES,
    CHAT_SEQ_ITEMS
} chat_seq;

typedef struct chat_list {
    chat_value *item; /* [capacity] */
    size_t n, capacity;
    chat_seq seq;
    size_t pos; /* ITERATOR: the first item not taken yet */
    struct {
        int64_t start, stop, step;
    } range; /* RANGE: as it was made, to be printed */
} chat_list;

typedef struct chat_entry {
    chat_value key, value;
    uint64_t hash;
} chat_entry;

typedef struct chat_dict {
    chat_entry *entry; /* [capacity], in order of insertion */
    size_t n, capacity;
    uint32_t *slot; /* [n_slots]: entry index + 1, 0 free; a power of two, at least 2 * n */
    size_t n_slots;
} chat_dict;

/* One rendering, or the parsing of a template, which makes its constants with the same functions.
 */
typedef struct chat_run {
    sy_arena *arena;
    sy_status status; /* the first failure */
    sy_error *err;
    uint32_t line; /* of the template, where things happen now */
    uint32_t depth;
    uint64_t steps;
    size_t text_bytes; /* in all open buffers */
    sy_strbuf *out;    /* what {{ }} prints to */
    const sy_chat *chat;
    const chat_value *context; /* [names of the template]: the caller's variables */
    int64_t now_seconds;
} chat_run;

/* Keeps the first failure, with the line in front. */
void sy_chat_fail(chat_run *run, sy_status status, const char *fmt, ...) SY_PRINTF(3, 4);
/* How many bytes of text: [n] a message quotes: whole characters, and not too many. For "%.*s". */
int sy_chat_clip(const char *text, size_t n);
void sy_chat_charge(chat_run *run, size_t work); /* counts steps; fails the run past the limit */
int sy_chat_enter(chat_run *run);                /* one level down; 0: too deep, the run failed */
void sy_chat_leave(chat_run *run);               /* after every sy_chat_enter, failed or not */
/* n items of size bytes. NULL: the run failed. Contents are undefined. */
void *sy_chat_alloc(chat_run *run, size_t n, size_t size);
/* Text into a buffer, against the limit on text being built. */
void sy_chat_put(chat_run *run, sy_strbuf *buf, const char *text, size_t n);
/* A buffer for text being built, and its end. Pairs, whatever fails between. */
void sy_chat_text_begin(sy_strbuf *buf);
chat_value sy_chat_text_end(chat_run *run, sy_strbuf *buf);

static inline chat_value sy_chat_none(void)
{
    return (chat_value){.kind = CHAT_NONE};
}

static inline chat_value sy_chat_bool(int truth)
{
    return (chat_value){.kind = CHAT_BOOL, .i = truth != 0};
}

static inline chat_value sy_chat_int(int64_t i)
{
    return (chat_value){.kind = CHAT_INT, .i = i};
}

static inline chat_value sy_chat_float(double f)
{
    return (chat_value){.kind = CHAT_FLOAT, .f = f};
}

static inline int sy_chat_is_integer(chat_value v) /* as Python counts: booleans too */
{
    return v.kind == CHAT_INT || v.kind == CHAT_BOOL;
}

static inline int sy_chat_is_number(chat_value v)
{
    return sy_chat_is_integer(v) || v.kind == CHAT_FLOAT;
}

/* owner: the kind that lacks the attribute; MISSING: name is a variable; METHOD: name is a method
 * that changes its object, which the sandbox forbids. */
chat_value sy_chat_undefined(chat_str *name, chat_kind owner);
void sy_chat_fail_undefined(chat_run *run, chat_value v); /* "'x' is undefined" */
const char *sy_chat_type(chat_value v);                   /* the name of Python's type */

/* Copies; the text is UTF-8. */
chat_value sy_chat_string(chat_run *run, const char *text, size_t n);
chat_value sy_chat_cstring(chat_run *run, const char *text);
chat_value sy_chat_substring(chat_run *run, chat_value whole, size_t begin, size_t end); /* bytes */
chat_value sy_chat_concat(chat_run *run, chat_value a, chat_value b); /* two strings */
int sy_chat_str_equal(const chat_str *a, const chat_str *b);
int sy_chat_str_is(const chat_str *s, const char *text);
size_t sy_chat_count_chars(const char *text, size_t n);
/* The byte where character i begins; i <= s->n_chars. */
size_t sy_chat_char_offset(chat_run *run, const chat_str *s, size_t i);

/* NULL: the run failed; the others accept NULL then. */
chat_list *sy_chat_list_new(chat_run *run, chat_seq seq, size_t capacity);
void sy_chat_list_push(chat_run *run, chat_list *list, chat_value v);
chat_value sy_chat_from_list(chat_list *list);
chat_value sy_chat_pair(chat_run *run, chat_value a, chat_value b); /* a tuple */
/* What Python's iter() walks over: an iterator is used up, a mapping gives its keys, a string its
 * characters. NULL: the value is not iterable or there is no memory; the run failed. */
chat_list *sy_chat_iterate(chat_run *run, chat_value v);
int sy_chat_is_iterable(chat_value v);
int sy_chat_length(chat_value v, size_t *out); /* 0: has no len() */

chat_dict *sy_chat_dict_new(chat_run *run);
void sy_chat_dict_set(chat_run *run, chat_dict *dict, chat_value key, chat_value value);
/* NULL: no such key (or one that cannot be a key: the run failed). Lives until the next set. */
chat_value *sy_chat_dict_get(chat_run *run, const chat_dict *dict, chat_value key);
chat_value *sy_chat_dict_get_str(chat_run *run, const chat_dict *dict, chat_str *key);
chat_value sy_chat_from_dict(chat_dict *dict);
chat_value sy_chat_dict_view(chat_run *run, const chat_dict *dict, chat_seq view);
int sy_chat_is_hashable(chat_value v);

int sy_chat_truth(chat_value v);
int sy_chat_equal(chat_run *run, chat_value a, chat_value b);
/* <0, 0, >0; types that have no order fail the run. symbol: for that message. unordered: set when a
 * NaN is involved; may be NULL. */
int sy_chat_compare(chat_run *run, chat_value a, chat_value b, const char *symbol, int *unordered);
int sy_chat_contains(chat_run *run, chat_value container, chat_value item); /* item in container */

/* sy_chat_print.c: Python's str() and repr(). A string stays the value it is. */
chat_value sy_chat_to_string(chat_run *run, chat_value v);
void sy_chat_print(chat_run *run, sy_strbuf *buf, chat_value v);
void sy_chat_print_repr(chat_run *run, sy_strbuf *buf, chat_value v);
size_t sy_chat_format_double(char out[40], double f); /* Python's repr */

#endif
