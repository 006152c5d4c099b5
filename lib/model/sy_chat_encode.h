/* sy_chat_encode.h - a conversation as token ids: through the checkpoint's template and tokenizer.
 */
#ifndef SY_CHAT_ENCODE_H
#define SY_CHAT_ENCODE_H

#include "sy_chat.h"
#include "sy_tokenizer.h"

/* Appends to ids. conversation: [n], a JSON object of the template's variables, as sy_chat_render
 * takes it, but that add_generation_prompt is true unless it is given: an answer is wanted. What
 * looks like a special token in a message is one, as in transformers. chat: NULL: the checkpoint
 * has no template, SY_EPRECONDITION. Otherwise errors of rendering and encoding. */
SY_MUST_USE sy_status sy_chat_encode(sy_ids *ids, const sy_chat *chat,
                                     const sy_tokenizer *tokenizer, const char *conversation,
                                     size_t n, sy_error *err);

#endif
