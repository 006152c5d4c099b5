/* sy_static.h - routers that have no lease: literal addresses and DNS names, asked again and again,
 * merged with those that have one. The loop's thread only. Only for lib/control. */
#ifndef SY_STATIC_H
#define SY_STATIC_H

#include "sy_control.h"

struct addrinfo;
struct uv_getaddrinfo_s;
struct uv_loop_s;

typedef struct sy_static sy_static;

/* uv_getaddrinfo, which is what is used; another for tests of names that come and go. */
typedef int sy_static_resolve_fn(struct uv_loop_s *loop, struct uv_getaddrinfo_s *request,
                                 void (*done)(struct uv_getaddrinfo_s *, int, struct addrinfo *),
                                 const char *host, const char *port, const struct addrinfo *hints);

typedef struct sy_static_config {
    struct uv_loop_s *loop;
    const char *routers; /* as in sy_control_config; borrowed during open */
    const char *model;   /* borrowed; NULL: "" */
    int64_t interval_us; /* between questions for a name. 0: 5 s; after a failure a fifth of it */
    sy_static_resolve_fn *resolve; /* NULL: uv_getaddrinfo */
    void *ctx;
    /* The whole list, sorted by name; whenever it is not what was last told. */
    void (*on_members)(void *ctx, sy_member_kind kind, const sy_member *member, size_t n);
} sy_static_config;

/* SY_EINVAL: an address does not parse, or there are too many. Nothing is told before
 * sy_static_start. */
SY_MUST_USE sy_status sy_static_open(sy_static **out, const sy_static_config *config,
                                     sy_error *err);
void sy_static_start(sy_static *routers); /* tells, and begins to resolve */
/* Those that have a lease now: [n], copied. Of two with one address, the lease is kept. */
void sy_static_set_leased(sy_static *routers, const sy_member *member, size_t n);
void sy_static_stop(sy_static *routers); /* accepts NULL */
void sy_static_free(sy_static *routers); /* after stop, when the loop has run out; accepts NULL */

#endif
