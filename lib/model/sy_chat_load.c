/* sy_chat_load.c - the chat template and the special tokens of a checkpoint directory. */
#include "sy_chat_load.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_gguf_set.h"
#include "sy_gguf_tokenizer.h"
#include "sy_json_load.h"

#define CONFIG_BYTES_MAX  ((size_t)64 << 20)
#define CONFIG_VALUES_MAX ((size_t)4 << 20)
#define NAME_MAX_CHARS    64

/* Part of a file's name, and it may come from a request. */
static int is_template_name(const char *name)
{
    const size_t n = strlen(name);

    return n > 0 && n <= NAME_MAX_CHARS && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static sy_status parse_file(sy_chat **out, const char *path, sy_error *err)
{
    char *text = NULL;
    size_t n = 0;
    sy_status st = sy_checkpoint_require_file(path, err);

    if (st == SY_OK) st = sy_file_read(&text, &n, path, SY_CHAT_TEMPLATE_BYTES_MAX, err);
    if (st != SY_OK) return st;
    st = sy_chat_parse(out, text, n, err);
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    free(text);
    return st;
}

/* chat_template: a string, which is the default one, or a list of {name, template}. Borrowed. */
static sy_status pick(const json_t **out, const json_t *config, const char *name, sy_error *err)
{
    const json_t *given = json_object_get(config, "chat_template");
    size_t i;
    const json_t *entry;

    *out = NULL;
    if (given == NULL || json_is_null(given)) return SY_OK;
    if (json_is_string(given)) {
        if (strcmp(name, "default") == 0) *out = given;
        return SY_OK;
    }
    if (!json_is_array(given)) {
        return sy_error_set(err, SY_EINVAL, "chat_template is %s, not a string or a list",
                            sy_json_kind(given));
    }
    json_array_foreach(given, i, entry)
    {
        const json_t *entry_name = json_object_get(entry, "name");
        const json_t *template = json_object_get(entry, "template");

        if (!json_is_string(entry_name) || !json_is_string(template)) {
            return sy_error_set(err, SY_EINVAL,
                                "chat_template[%zu] must have a name and a template", i);
        }
        if (strcmp(json_string_value(entry_name), name) == 0) *out = template;
    }
    return SY_OK;
}

static sy_status parse_config(sy_chat **out, const json_t *config, const char *path,
                              const char *name, sy_error *err)
{
    const json_t *text;
    sy_status st = pick(&text, config, name, err);

    if (st == SY_OK && text != NULL) {
        st = sy_chat_parse(out, json_string_value(text), json_string_length(text), err);
    }
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    return st;
}

/* "bos_token": "<s>" or {"content": "<s>", ...}; other members have nothing to say here. */
static sy_status add_specials(sy_chat *chat, const json_t *config, sy_error *err)
{
    static const char suffix[] = "_token";
    const char *key;
    json_t *value;
    sy_status st = SY_OK;

    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        const size_t n = strlen(key);
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;

        if (n < sizeof(suffix) || strcmp(key + n - (sizeof(suffix) - 1), suffix) != 0) continue;
        if (!json_is_string(text)) continue;
        st = sy_chat_add_special(chat, key, json_string_value(text), err);
        if (st != SY_OK) break;
    }
    return st;
}

/* NULL without an error when the file is not there. */
static sy_status load_optional(json_t **out, char path[PATH_MAX], const char *dir, const char *file,
                               sy_error *err)
{
    sy_status st = sy_checkpoint_path(path, dir, file, err);

    *out = NULL;
    if (st != SY_OK || !sy_file_exists(path)) return st;
    return sy_json_load_file(out, path, CONFIG_BYTES_MAX, CONFIG_VALUES_MAX, err);
}

/* What a GGUF model says in the place of tokenizer_config.json. NULL without an error when dir is
 * none. */
static sy_status load_gguf(json_t **out, char path[PATH_MAX], const char *dir, sy_error *err)
{
    sy_gguf_set *set = NULL;
    sy_strbuf tokenizer, config;
    sy_status st = sy_gguf_locate_file(path, dir, err);

    if (st != SY_OK) {
        sy_error_clear(err);
        return st == SY_ENOTFOUND ? SY_OK : sy_error_set(err, st, "%s: no model is found", dir);
    }
    sy_strbuf_init(&tokenizer);
    sy_strbuf_init(&config);
    SY_TRY(sy_gguf_set_open(&set, path, err));
    SY_TRY(sy_gguf_tokenizer(&tokenizer, &config, sy_gguf_set_metadata(set), err));
    st = sy_json_load(out, config.data, config.len, CONFIG_VALUES_MAX, err);
out:
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    sy_gguf_set_close(set);
    sy_strbuf_free(&tokenizer);
    sy_strbuf_free(&config);
    return st;
}

/* The template as a file of its own; *out stays NULL when there is none. */
static sy_status open_file(sy_chat **out, const char *dir, const char *name, sy_error *err)
{
    char file[NAME_MAX_CHARS + 64];
    char path[PATH_MAX];
    sy_status st;

    if (strcmp(name, "default") == 0) {
        (void)snprintf(file, sizeof(file), "chat_template.jinja");
    } else {
        (void)snprintf(file, sizeof(file), "additional_chat_templates/%s.jinja", name);
    }
    st = sy_checkpoint_path(path, dir, file, err);
    if (st != SY_OK || !sy_file_exists(path)) return st;
    return parse_file(out, path, err);
}

sy_status sy_chat_open(sy_chat **out, const char *dir, const char *name, sy_error *err)
{
    char config_path[PATH_MAX];
    char map_path[PATH_MAX];
    json_t *config = NULL;
    json_t *map = NULL;
    sy_chat *chat = NULL;
    sy_status st;

    *out = NULL;
    if (name == NULL) name = "default";
    if (!is_template_name(name)) {
        return sy_error_set(err, SY_ENOTFOUND,
                            "no chat template can have that name: letters, digits, '_', '-' and "
                            "'.', at most %d",
                            NAME_MAX_CHARS);
    }
    SY_TRY(load_optional(&config, config_path, dir, "tokenizer_config.json", err));
    SY_TRY(load_optional(&map, map_path, dir, "special_tokens_map.json", err));
    if (config == NULL && map == NULL) SY_TRY(load_gguf(&config, config_path, dir, err));
    SY_TRY(open_file(&chat, dir, name, err));
    if (chat == NULL && config != NULL) {
        SY_TRY(parse_config(&chat, config, config_path, name, err));
    }
    if (chat == NULL) {
        st = sy_error_set(err, SY_ENOTFOUND, "%s has no chat template of the name \"%s\"", dir,
                          name);
        goto out;
    }
    /* What is added last is found first: tokenizer_config.json is the newer file of the two. */
    if (map != NULL) SY_TRY(add_specials(chat, map, err));
    if (config != NULL) SY_TRY(add_specials(chat, config, err));
    *out = chat;
    chat = NULL;
out:
    sy_chat_close(chat);
    json_decref(map);
    json_decref(config);
    return st;
}
