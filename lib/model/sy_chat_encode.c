/* sy_chat_encode.c - see sy_chat_encode.h. */
#include "sy_chat_encode.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sy_json_load.h"

enum { VALUES_MAX = 1000000 };

/* *text: the conversation with add_generation_prompt; the caller frees it. */
static sy_status complete(char **text, const char *conversation, size_t n, sy_error *err)
{
    json_t *root = NULL;
    sy_status st = sy_json_load(&root, conversation, n, VALUES_MAX, err);

    *text = NULL;
    if (st != SY_OK) return st;
    if (json_object_get(root, "add_generation_prompt") == NULL &&
        json_object_set_new(root, "add_generation_prompt", json_true()) != 0)
        goto out;
    *text = json_dumps(root, JSON_COMPACT);
out:
    json_decref(root);
    return *text != NULL ? SY_OK : sy_error_set(err, SY_ENOMEM, "no memory for the conversation");
}

sy_status sy_chat_encode(sy_ids *ids, const sy_chat *chat, const sy_tokenizer *tokenizer,
                         const char *conversation, size_t n, sy_error *err)
{
    char *text = NULL;
    sy_strbuf prompt;
    sy_status st;

    if (chat == NULL)
        return sy_error_set(err, SY_EPRECONDITION,
                            "the checkpoint has no chat template: give the prompt as text");
    sy_strbuf_init(&prompt);
    SY_TRY(complete(&text, conversation, n, err));
    SY_TRY(sy_chat_render(chat, &prompt, text, strlen(text), (int64_t)time(NULL), err));
    st = sy_tokenizer_encode(tokenizer, ids, prompt.data, prompt.len, SY_SPECIAL_IN_TEXT, err);
out:
    if (st != SY_OK) sy_error_prefix(err, "chat");
    sy_strbuf_free(&prompt);
    free(text);
    return st;
}
