/* sy_static.c - a name's addresses are kept until the name server gives others: a name that cannot
 * be resolved for a while takes nobody away. libuv asks on threads of its own, at most one question
 * a name at a time. Addresses are sorted, because name servers like to rotate them, and a list that
 * only turned is no news. */
#include "sy_static.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "sy_address.h"
#include "sy_hash.h"
#include "sy_log.h"

#define ENTRIES_MAX     64  /* in the configuration */
#define ADDRESSES_MAX   256 /* of one name */
#define INTERVAL_US     5000000
#define LOG_INTERVAL_US 10000000

typedef struct static_entry {
    sy_static *owner;
    char host[128]; /* of a name; "": a literal address */
    char port[16];
    char (*address)[SY_ADDRESS_BYTES]; /* [n]: what it stands for now */
    size_t n;
    uv_timer_t timer; /* the next question; names only, as the next */
    uv_getaddrinfo_t request;
    int is_resolving;
    int is_failing; /* the log has said so */
    _Atomic int64_t logged_us;
} static_entry;

struct sy_static {
    sy_static_config config;
    static_entry entry[ENTRIES_MAX];
    size_t n_entries;
    int is_started, is_stopped;
    sy_member *leased;
    size_t n_leased;
    sy_member *told; /* nobody, at first */
    size_t n_told;
};

/* ---- the list ---- */

/* A name as leases have it would be misleading: the address is all that is known. One that does not
 * fit ends in its hash. */
static void name_after_address(char *out, size_t cap, const char *address)
{
    const size_t n = strlen(address);

    if (n < cap) {
        memcpy(out, address, n + 1);
        return;
    }
    snprintf(out, cap, "%.*s-%016llx", (int)cap - 18, address,
             (unsigned long long)sy_fnv1a(SY_FNV1A_START, address, n));
}

static int compare_members(const void *a, const void *b)
{
    return strcmp(((const sy_member *)a)->name, ((const sy_member *)b)->name);
}

static int has_address(const sy_member *list, size_t n, const char *address)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].address, address) == 0) return 1;
    }
    return 0;
}

static size_t add_entry_members(sy_member *list, size_t n, const static_entry *entry)
{
    const char *model = entry->owner->config.model;

    for (size_t i = 0; i < entry->n; i++) {
        sy_member *member = &list[n];

        if (has_address(list, n, entry->address[i])) continue;
        memcpy(member->address, entry->address[i], sizeof(member->address));
        name_after_address(member->name, sizeof(member->name), member->address);
        snprintf(member->model, sizeof(member->model), "%s", model != NULL ? model : "");
        snprintf(member->state, sizeof(member->state), "serving");
        n++;
    }
    return n;
}

static void tell(sy_static *self)
{
    size_t cap = self->n_leased + 1;
    size_t n = self->n_leased;
    sy_member *list;

    if (!self->is_started || self->is_stopped) return;
    for (size_t i = 0; i < self->n_entries; i++) cap += self->entry[i].n;
    list = calloc(cap, sizeof(*list));
    if (list == NULL) return; /* the next answer tries again */
    if (n > 0) memcpy(list, self->leased, n * sizeof(*list));
    for (size_t i = 0; i < self->n_entries; i++) n = add_entry_members(list, n, &self->entry[i]);
    qsort(list, n, sizeof(*list), compare_members);
    if (n == self->n_told && (n == 0 || memcmp(list, self->told, n * sizeof(*list)) == 0)) {
        free(list);
        return;
    }
    free(self->told);
    self->told = list;
    self->n_told = n;
    self->config.on_members(self->config.ctx, SY_MEMBER_ROUTER, list, n);
}

void sy_static_set_leased(sy_static *routers, const sy_member *member, size_t n)
{
    sy_member *copy = calloc(n + 1, sizeof(*copy));

    if (copy == NULL) return;
    if (n > 0) memcpy(copy, member, n * sizeof(*copy));
    free(routers->leased);
    routers->leased = copy;
    routers->n_leased = n;
    tell(routers);
}

/* ---- names ---- */

static int compare_addresses(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* "10.0.0.1:7000", "[fd00::1]:7000". 0: another family, or it has no text. */
static int format_address(char *out, size_t cap, const struct sockaddr *address, const char *port)
{
    char host[64];

    if (address->sa_family == AF_INET) {
        if (uv_ip4_name((const struct sockaddr_in *)(const void *)address, host, sizeof(host)))
            return 0;
        snprintf(out, cap, "%s:%s", host, port);
    } else if (address->sa_family == AF_INET6) {
        if (uv_ip6_name((const struct sockaddr_in6 *)(const void *)address, host, sizeof(host)))
            return 0;
        snprintf(out, cap, "[%s]:%s", host, port);
    } else {
        return 0;
    }
    return 1;
}

static void take_addresses(static_entry *entry, const struct addrinfo *found)
{
    char(*list)[SY_ADDRESS_BYTES];
    size_t n = 0;

    for (const struct addrinfo *a = found; a != NULL && n < ADDRESSES_MAX; a = a->ai_next) n++;
    list = calloc(n + 1, sizeof(*list));
    if (list == NULL) return;
    n = 0;
    for (const struct addrinfo *a = found; a != NULL && n < ADDRESSES_MAX; a = a->ai_next) {
        n += (size_t)format_address(list[n], sizeof(list[n]), a->ai_addr, entry->port);
    }
    if (n == 0) {
        free(list);
        return;
    }
    qsort(list, n, sizeof(*list), compare_addresses);
    free(entry->address);
    entry->address = list;
    entry->n = n;
}

static void note_failure(static_entry *entry, const char *why)
{
    if (!sy_log_due(&entry->logged_us, LOG_INTERVAL_US)) return;
    entry->is_failing = 1;
    sy_log(SY_LOG_WARN, "routers: the name %s cannot be resolved: %s; its last %zu addresses stay",
           entry->host, why, entry->n);
}

static void ask(static_entry *entry);

static void on_due(uv_timer_t *timer)
{
    ask(timer->data);
}

static void ask_later(static_entry *entry, int has_failed)
{
    const int64_t interval_us = entry->owner->config.interval_us / (has_failed ? 5 : 1);

    uv_timer_start(&entry->timer, on_due, (uint64_t)SY_MAX(interval_us / 1000, (int64_t)1), 0);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    static_entry *entry = request->data;
    const int has_failed = status != 0 || found == NULL;

    entry->is_resolving = 0;
    if (!entry->owner->is_stopped) {
        if (has_failed) {
            note_failure(entry, status != 0 ? uv_strerror(status) : "it has no address");
        } else {
            take_addresses(entry, found);
            if (entry->is_failing) {
                sy_log(SY_LOG_INFO, "routers: the name %s is resolved again", entry->host);
            }
            entry->is_failing = 0;
        }
        tell(entry->owner);
        ask_later(entry, has_failed);
    }
    uv_freeaddrinfo(found);
}

static void ask(static_entry *entry)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    sy_static *self = entry->owner;
    int rc;

    entry->request.data = entry;
    rc = self->config.resolve(self->config.loop, &entry->request, on_resolved, entry->host,
                              entry->port, &hints);
    entry->is_resolving = rc == 0;
    if (rc == 0) return;
    note_failure(entry, uv_strerror(rc));
    ask_later(entry, 1);
}

/* ---- the configuration ---- */

static sy_status parse_name(static_entry *entry, const char *text, sy_error *err)
{
    int port;

    if (!sy_address_split(entry->host, sizeof(entry->host), &port, text, strlen(text)) ||
        entry->host[0] == '\0' || port <= 0 || strchr(entry->host, '/') != NULL) {
        return sy_error_set(err, SY_EINVAL, "routers: dns:///%s is no name: write dns:///NAME:PORT",
                            text);
    }
    snprintf(entry->port, sizeof(entry->port), "%d", port);
    return SY_OK;
}

static sy_status parse_literal(static_entry *entry, const char *text, sy_error *err)
{
    char host[128];
    int port = -1;
    const int is_good = strncmp(text, "unix:", 5) == 0
                            ? text[5] == '/'
                            : sy_address_split(host, sizeof(host), &port, text, strlen(text)) &&
                                  host[0] != '\0' && strchr(host, '/') == NULL && port > 0;

    if (!is_good || strlen(text) >= SY_ADDRESS_BYTES) {
        return sy_error_set(err, SY_EINVAL,
                            "routers: %s is no address: write HOST:PORT, unix:/PATH or "
                            "dns:///NAME:PORT, several with commas between",
                            text);
    }
    entry->address = calloc(1, sizeof(*entry->address));
    if (entry->address == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for an address");
    memcpy(entry->address[0], text, strlen(text) + 1);
    entry->n = 1;
    return SY_OK;
}

static sy_status parse(sy_static *self, const char *text, sy_error *err)
{
    sy_status st = SY_OK;

    for (;; text++) {
        static_entry *entry = &self->entry[self->n_entries];
        char one[256];
        size_t len;

        text += strspn(text, " ");
        len = strcspn(text, ",");
        if (self->n_entries == ENTRIES_MAX || len >= sizeof(one)) {
            return sy_error_set(err, SY_EINVAL,
                                "routers: at most %d addresses of at most %zu bytes", ENTRIES_MAX,
                                sizeof(one) - 1);
        }
        memcpy(one, text, len);
        one[len] = '\0';
        entry->owner = self;
        if (strncmp(one, "dns:///", 7) == 0) {
            SY_TRY(parse_name(entry, one + 7, err));
        } else {
            SY_TRY(parse_literal(entry, one, err));
        }
        self->n_entries++;
        text += len;
        if (*text == '\0') break;
    }
out:
    return st;
}

/* ---- open and close ---- */

sy_status sy_static_open(sy_static **out, const sy_static_config *config, sy_error *err)
{
    sy_static *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for routers");
    self->config = *config;
    self->config.routers = NULL;
    if (config->interval_us <= 0) self->config.interval_us = INTERVAL_US;
    if (config->resolve == NULL) self->config.resolve = uv_getaddrinfo;
    SY_TRY(parse(self, config->routers, err));
    *out = self;
    self = NULL;
out:
    sy_static_free(self);
    return st;
}

void sy_static_start(sy_static *routers)
{
    routers->is_started = 1;
    for (size_t i = 0; i < routers->n_entries; i++) {
        static_entry *entry = &routers->entry[i];

        if (entry->host[0] == '\0') continue;
        uv_timer_init(routers->config.loop, &entry->timer);
        entry->timer.data = entry;
        ask(entry);
    }
    tell(routers);
}

void sy_static_stop(sy_static *routers)
{
    if (routers == NULL || routers->is_stopped) return;
    routers->is_stopped = 1;
    if (!routers->is_started) return;
    for (size_t i = 0; i < routers->n_entries; i++) {
        static_entry *entry = &routers->entry[i];

        if (entry->host[0] == '\0') continue;
        if (entry->is_resolving) uv_cancel((uv_req_t *)&entry->request);
        uv_close((uv_handle_t *)&entry->timer, NULL);
    }
}

void sy_static_free(sy_static *routers)
{
    if (routers == NULL) return;
    for (size_t i = 0; i < routers->n_entries; i++) free(routers->entry[i].address);
    free(routers->leased);
    free(routers->told);
    free(routers);
}
