/* config_text.h - configurations as texts: single quotes for double ones, one key replaced by
 * another, parsed, or refused with a message that says what the user needs. */
#ifndef CONFIG_TEXT_H
#define CONFIG_TEXT_H

#include "checkpoint_files.h"

#include "sy_model.h"

#define CONFIG_TEXT_BYTES 16384

/* out: [CONFIG_TEXT_BYTES]; base with `old`, which it must have, replaced by `new`. */
static inline void config_change(char *out, const char *base, const char *old, const char *new)
{
    const char *at = strstr(base, old);
    int n;

    if (at == NULL) fail_msg("the test's configuration has no %s", old);
    n = snprintf(out, CONFIG_TEXT_BYTES, "%.*s%s%s", (int)(at - base), base, new, at + strlen(old));
    assert_in_range(n, 1, CONFIG_TEXT_BYTES - 1);
}

static inline sy_status config_try(sy_model_desc *desc, const char *text, sy_error *err)
{
    char json[CONFIG_TEXT_BYTES];
    const size_t n = strlen(text);

    assert_true(n < sizeof(json));
    for (size_t i = 0; i < n; i++) json[i] = text[i] == '\'' ? '"' : text[i];
    sy_error_clear(err);
    return sy_model_desc_parse(desc, json, n, err);
}

static inline sy_model_desc config_parse(const char *text)
{
    sy_model_desc desc;
    sy_error err;

    expect_ok(config_try(&desc, text, &err), &err);
    return desc;
}

static inline sy_model_desc config_parse_changed(const char *base, const char *old, const char *new)
{
    char text[CONFIG_TEXT_BYTES];

    config_change(text, base, old, new);
    return config_parse(text);
}

/* Both parts must stand in the message: the key, and what is wrong with it. */
static inline void config_refuse(const char *base, const char *old, const char *new,
                                 const char *part, const char *other_part)
{
    char text[CONFIG_TEXT_BYTES];
    sy_model_desc desc;
    sy_error err;
    sy_status st;

    config_change(text, base, old, new);
    st = config_try(&desc, text, &err);
    if (st != SY_EINVAL)
        fail_msg("%s: wanted an error with \"%s\", got %s", new, part, sy_status_name(st));
    expect_text(err.message, part);
    expect_text(err.message, other_part);
}

/* A further key in front of those that base has. */
static inline void config_refuse_added(const char *base, const char *member, const char *part,
                                       const char *other_part)
{
    char first[2048];

    snprintf(first, sizeof(first), "{%s, ", member);
    config_refuse(base, "{", first, part, other_part);
}

#endif
