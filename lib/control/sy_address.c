/* sy_address.c - where Redis is. An error text never repeats what it was given, because that may
 * hold a password. */
#include "sy_address.h"

#include <stdio.h>
#include <string.h>

#include "sy_control.h"

#define REDIS_PORT 6379
#define DB_MAX     65535
/* User and password in percent signs, a host or a path, and what stands between them. */
#define ONE_ADDRESS_MAX 1024

/* Digits alone; -1: not a number from 0 to max. */
static int read_number(const char *text, size_t n, int max)
{
    int value = 0;

    if (n == 0 || n > 6) return -1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value <= max ? value : -1;
}

static int copy_text(char *out, size_t cap, const char *text, size_t n)
{
    if (n >= cap || memchr(text, '\0', n) != NULL) return 0;
    memcpy(out, text, n);
    out[n] = '\0';
    return 1;
}

int sy_address_split(char *host, size_t host_cap, int *port, const char *text, size_t n)
{
    const char *const end = text + n;
    const char *colon = memrchr(text, ':', n);
    const char *host_end = colon != NULL ? colon : end;

    *port = -1;
    if (n > 0 && text[0] == '[') {
        host_end = memchr(text, ']', n);
        if (host_end == NULL) return 0;
        colon = host_end + 1 < end ? host_end + 1 : NULL;
        if (colon != NULL && *colon != ':') return 0;
        text++;
    } else if (colon != NULL && memchr(text, ':', (size_t)(colon - text)) != NULL) {
        return 0; /* an IPv6 address without brackets: which colon begins the port is a guess */
    }
    if (colon != NULL) {
        *port = read_number(colon + 1, (size_t)(end - colon - 1), 65535);
        if (*port < 0) return 0;
    }
    return copy_text(host, host_cap, text, (size_t)(host_end - text));
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* %40 and the like, so that a password may hold any character but NUL. */
static int copy_decoded(char *out, size_t cap, const char *text, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];

        if (c == '%') {
            const int high = i + 2 < n ? hex_digit(text[i + 1]) : -1;
            const int low = i + 2 < n ? hex_digit(text[i + 2]) : -1;

            if (high < 0 || low < 0) return 0;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (c == '\0' || len + 1 >= cap) return 0;
        out[len++] = c;
    }
    out[len] = '\0';
    return 1;
}

/* Takes "[user]:password@" off the front of *text. */
static sy_status read_login(sy_redis_address *out, const char **text, sy_error *err)
{
    const char *const at = memrchr(*text, '@', strcspn(*text, "/"));
    const char *colon;

    if (at == NULL) return SY_OK;
    colon = memchr(*text, ':', (size_t)(at - *text));
    if (colon == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "the Redis address has a user but no password: write "
                            "redis://USER:PASSWORD@HOST:PORT or redis://:PASSWORD@HOST:PORT");
    }
    if (!copy_decoded(out->user, sizeof(out->user), *text, (size_t)(colon - *text)) ||
        !copy_decoded(out->password, sizeof(out->password), colon + 1, (size_t)(at - colon - 1))) {
        return sy_error_set(
            err, SY_EINVAL,
            "the user (at most %zu bytes) or the password (at most %zu) in the "
            "Redis address does not parse: write %% as %%25, / as %%2f, a comma as %%2c",
            sizeof(out->user) - 1, sizeof(out->password) - 1);
    }
    *text = at + 1;
    return SY_OK;
}

static sy_status read_db(sy_redis_address *out, const char *text, size_t n, sy_error *err)
{
    out->db = read_number(text, n, DB_MAX);
    if (out->db >= 0) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "the Redis database is not a number from 0 to %d", DB_MAX);
}

static sy_status read_path(sy_redis_address *out, const char *text, size_t n, sy_error *err)
{
    out->is_unix = 1;
    if (n > 0 && text[0] == '/' && copy_text(out->path, sizeof(out->path), text, n)) return SY_OK;
    return sy_error_set(err, SY_EINVAL,
                        "the Redis socket is not an absolute path of at most %zu bytes: write "
                        "unix:/run/redis/redis.sock",
                        sizeof(out->path) - 1);
}

/* "/path" or "//[[user]:password@]/path[?db=N]", after "unix:". */
static sy_status parse_unix(sy_redis_address *out, const char *text, sy_error *err)
{
    const char *query;
    sy_status st;

    if (strncmp(text, "//", 2) != 0) return read_path(out, text, strlen(text), err);
    text += 2;
    SY_TRY(read_login(out, &text, err));
    query = strchr(text, '?');
    if (query == NULL) return read_path(out, text, strlen(text), err);
    SY_TRY(read_path(out, text, (size_t)(query - text), err));
    if (strncmp(query, "?db=", 4) != 0) {
        return sy_error_set(err, SY_EINVAL, "after '?' the Redis address may only have db=N");
    }
    st = read_db(out, query + 4, strlen(query + 4), err);
out:
    return st;
}

static sy_status read_host(sy_redis_address *out, const char *text, size_t n, int default_port,
                           sy_error *err)
{
    if (sy_address_split(out->host, sizeof(out->host), &out->port, text, n) &&
        out->host[0] != '\0') {
        if (out->port < 0) out->port = default_port;
        if (out->port > 0) return SY_OK;
    }
    return sy_error_set(err, SY_EINVAL,
                        "the Redis address does not parse: write unix:/PATH, HOST:PORT or "
                        "redis://[[USER]:PASSWORD@]HOST:PORT[/DB]");
}

sy_status sy_redis_address_parse(sy_redis_address *out, const char *text, sy_error *err)
{
    const char *slash;
    sy_status st;

    memset(out, 0, sizeof(*out));
    if (strncmp(text, "unix:", 5) == 0) return parse_unix(out, text + 5, err);
    if (strncmp(text, "rediss://", 9) == 0) {
        return sy_error_set(err, SY_EINVAL,
                            "Redis over TLS is not supported: use a local TLS tunnel and its port");
    }
    if (strncmp(text, "redis://", 8) != 0) return read_host(out, text, strlen(text), -1, err);
    text += 8;
    SY_TRY(read_login(out, &text, err));
    slash = strchr(text, '/');
    if (slash == NULL) return read_host(out, text, strlen(text), REDIS_PORT, err);
    SY_TRY(read_host(out, text, (size_t)(slash - text), REDIS_PORT, err));
    if (slash[1] != '\0') st = read_db(out, slash + 1, strlen(slash + 1), err);
out:
    return st;
}

sy_status sy_redis_addresses_parse(sy_redis_address *out, size_t cap, size_t *n, const char *text,
                                   sy_error *err)
{
    sy_status st = SY_OK;

    for (*n = 0;; text++) {
        char one[ONE_ADDRESS_MAX];
        size_t len;

        text += strspn(text, " ");
        len = strcspn(text, ",");
        if (*n == cap) {
            st = sy_error_set(err, SY_EINVAL, "there are more than %zu Redis addresses", cap);
            break;
        }
        if (!copy_text(one, sizeof(one), text, len)) {
            st = sy_error_set(err, SY_EINVAL, "a Redis address is longer than %d bytes",
                              ONE_ADDRESS_MAX - 1);
            break;
        }
        SY_TRY(sy_redis_address_parse(&out[*n], one, err));
        if (out[*n].db != out[0].db) {
            st = sy_error_set(err, SY_EINVAL,
                              "the Redis addresses name different databases: a primary and its "
                              "replicas have the same");
            break;
        }
        (*n)++;
        text += len;
        if (*text == '\0') break;
    }
out:
    return st;
}
