/* sy_chat_json.h - JSON and the values of a chat template. Private to sy_chat_*.c. */
#ifndef SY_CHAT_JSON_H
#define SY_CHAT_JSON_H

#include "sy_chat_value.h"

struct json_t;

/* A copy in the run's memory. */
chat_value sy_chat_from_json(chat_run *run, const struct json_t *json);

/* How json.dumps() of Python writes. */
typedef struct chat_json_style {
    int ensure_ascii, sort_keys;
    int is_pretty;          /* one item a line, each level indented by indent */
    const chat_str *indent; /* when is_pretty */
    const chat_str *item_separator, *key_separator;
} chat_json_style;
chat_value sy_chat_to_json(chat_run *run, chat_value v, const chat_json_style *style);

#endif
