/* sy_chat.h - a conversation as the text that the model was trained on. Checkpoints bring a chat
 * template, a program in the Jinja language; this is an interpreter of the part of Jinja that such
 * templates use, with the semantics that Hugging Face transformers gives it. A template is a file
 * that nobody vouches for: it can compute and fail, and reach nothing outside its own variables. */
#ifndef SY_CHAT_H
#define SY_CHAT_H

#include "sy_strbuf.h"

/* What one template and one rendering may take. Past a limit: SY_ELIMIT. */
#define SY_CHAT_TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define SY_CHAT_INPUT_BYTES_MAX    ((size_t)32 << 20)
#define SY_CHAT_OUTPUT_BYTES_MAX   ((size_t)32 << 20)  /* all text being built at one moment */
#define SY_CHAT_MEMORY_BYTES_MAX   ((size_t)128 << 20) /* of values; none is freed before the end */
#define SY_CHAT_STEPS_MAX          ((uint64_t)5000000) /* less than a second */
#define SY_CHAT_DEPTH_MAX          1000 /* of evaluation, macros within macros included */
#define SY_CHAT_NESTING_MAX        100  /* of the template's text: parentheses, blocks */

typedef struct sy_chat sy_chat; /* immutable once open, so any thread may render with it */

/* The template of a checkpoint directory: chat_template.jinja if it is there, else "chat_template"
 * of tokenizer_config.json. name: a file of additional_chat_templates/ or a member of the list in
 * tokenizer_config.json; NULL means the default one. The special tokens of tokenizer_config.json
 * and special_tokens_map.json (bos_token, eos_token, ...) become variables. On SY_OK the caller
 * owns *out; otherwise it is NULL and: SY_ENOTFOUND the checkpoint has no such template; SY_EINVAL
 * a file is not what it should be, or the template uses what the subset lacks (the message names
 * the construct and the line); SY_ELIMIT; SY_EIO; SY_ENOMEM. */
SY_MUST_USE sy_status sy_chat_open(sy_chat **out, const char *dir, const char *name, sy_error *err);
/* A template from memory, without special tokens. text: [n], any bytes. */
SY_MUST_USE sy_status sy_chat_parse(sy_chat **out, const char *text, size_t n, sy_error *err);
void sy_chat_close(sy_chat *chat); /* accepts NULL */

/* Appends the prompt to out; out is unchanged on failure. input_json: [n], an object whose members
 * are the template's variables: messages, tools, documents, add_generation_prompt and whatever else
 * it reads; a member wins over a special token of its name. tools and documents are none and
 * add_generation_prompt is false unless given, as in transformers. now_seconds: since 1970, what
 * strftime_now() prints; add the zone's offset for local time. SY_EINVAL: the input is no JSON
 * object, or the template cannot render it or refuses it with raise_exception(), reason
 * CHAT_TEMPLATE_REFUSED (the message names the template's line); SY_ELIMIT; SY_ENOMEM. */
SY_MUST_USE sy_status sy_chat_render(const sy_chat *chat, sy_strbuf *out, const char *input_json,
                                     size_t n, int64_t now_seconds, sy_error *err);

#endif
