/* fuzz_chat.c - a chat template up to the first NUL byte, then the JSON of its variables (a small
 * conversation where there is none). Whatever both say, rendering ends, fails with a reason or
 * gives UTF-8, and gives it twice. */
#include <stdlib.h>
#include <string.h>

#include "sy_chat.h"
#include "sy_unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition) abort(); /* the fuzzer reports the input */
}

static void render(const sy_chat *chat, const char *json, size_t n)
{
    sy_strbuf out[2];
    sy_status st[2];

    for (int i = 0; i < 2; i++) {
        sy_error err;

        sy_error_clear(&err);
        sy_strbuf_init(&out[i]);
        st[i] = sy_chat_render(chat, &out[i], json, n, 1735787045, &err);
        require(st[i] == SY_OK ? err.message[0] == '\0' : err.message[0] != '\0');
        require(st[i] == SY_OK || out[i].len == 0);
    }
    require(st[0] == st[1] && out[0].len == out[1].len);
    require(memcmp(out[0].data, out[1].data, out[0].len) == 0);
    require(sy_utf8_check(out[0].data, out[0].len) == out[0].len);
    sy_strbuf_free(&out[0]);
    sy_strbuf_free(&out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char conversation[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                       "\"x\":[1,2.5,\"a\",null,{\"k\":true}]}";
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n = nul == NULL ? size : (size_t)(nul - data);
    const char *json = nul == NULL ? conversation : (const char *)nul + 1;
    const size_t json_n = nul == NULL ? sizeof(conversation) - 1 : size - n - 1;
    sy_chat *chat;
    sy_error err;

    if (sy_chat_parse(&chat, (const char *)data, n, &err) != SY_OK) {
        require(chat == NULL && err.message[0] != '\0');
        return 0;
    }
    render(chat, json, json_n);
    sy_chat_close(chat);
    return 0;
}
