/* sy_control.h - the control plane of a process: one libuv loop thread that owns Redis, leases,
 * timers, signals and the HTTP port (metrics and probes). Redis is never on the path of a request:
 * what it says is handed over as immutable snapshots. When Redis is away the last good ones stay in
 * force, and the loop keeps trying with back-off. */
#ifndef SY_CONTROL_H
#define SY_CONTROL_H

#include "sy_placement.h"
#include "sy_strbuf.h"

typedef struct sy_control sy_control;

/* A lease as read from `switchyard:nodes:NODE` or `switchyard:routers:ID`. */
#define SY_ADDRESS_BYTES 128
#define SY_DEVICES_BYTES 256
typedef struct sy_member {
    char name[SY_NODE_BYTES];
    char address[SY_ADDRESS_BYTES]; /* gRPC */
    char http[SY_ADDRESS_BYTES];
    char model[128];
    char devices[SY_DEVICES_BYTES]; /* expert nodes: "cpu:0 cpu:1" */
    char state[24];                 /* "starting", "serving", "draining" */
    char version[24];
    char structure_hash[20];  /* 16 hex digits */
    char checkpoint_hash[20]; /* 16 hex digits; sy_model_checkpoint_hash */
    char arithmetic[32];      /* SY_ARITHMETIC */
    int64_t pid;
} sy_member;

typedef enum sy_member_kind {
    SY_MEMBER_NODE,
    SY_MEMBER_ROUTER,
    SY_MEMBER_AGGREGATOR
} sy_member_kind;

typedef struct sy_control_config {
    /* All texts are copied. */
    const char *redis; /* "unix:/path", "redis://[[user]:password@]host:port[/db]", "host:port",
                          "unix://[[user]:password@]/path[?db=N]"; several, separated by commas: a
                          primary and its replicas, of which the one that is primary now is used,
                          and one that only reads while there is none; NULL: no Redis */
    const char *model; /* whose placement is followed; NULL: none */
    sy_grid grid;      /* its shards */
    int watch_nodes, watch_routers; /* keep lists of leases */
    /* Routers that have no lease: "dns:///name:port" (every address of the name, asked again every
     * few seconds), "host:port", "unix:/path"; several separated by commas. They are members named
     * by their address, beside those with leases. NULL: none. */
    const char *routers;
    int64_t check_us; /* the periodic check that catches what notifications miss. 0: 1 s */
    int64_t lease_us; /* lease time to live, renewed at a third. 0: 5 s */
    const char *http; /* "127.0.0.1:9100", "127.0.0.1:0", "unix:/path"; NULL: no HTTP port */
    /* Of the callbacks, which must not block for long. They run on the loop thread, but for `ready`
     * and `http_get`: those run on the HTTP thread, at the same time as others. Each may run
     * before sy_control_open has returned. */
    void *ctx;
    /* A new snapshot is in force; borrowed, sy_snapshot_ref to keep. Never called with the same
     * epoch twice. */
    void (*on_placement)(void *ctx, sy_snapshot *snapshot);
    /* The leases of one kind, whole, whenever one came, went or changed. While Redis is away
     * nothing expires. */
    void (*on_members)(void *ctx, sy_member_kind kind, const sy_member *member, size_t n);
    /* /readyz: 1 ready; else why, a sentence. NULL: ready. */
    int (*ready)(void *ctx, sy_strbuf *why);
    /* More HTTP paths: 1 and a JSON body appended, or 0 for 404. NULL: none. */
    int (*http_get)(void *ctx, const char *path, sy_strbuf *body);
    /* SIGTERM and SIGINT, once each: a second one ends the process at once, as if there were no
     * handler. NULL: signals are left alone. */
    void (*on_signal)(void *ctx, int signum);
} sy_control_config;

/* Blocks SIGTERM, SIGINT and ignores SIGPIPE for the whole process: call it first in main, before
 * any thread exists. */
void sy_control_block_signals(void);

/* Starts the threads. SY_EINVAL: an address does not parse, or a model without experts;
 * SY_EEXISTS: the HTTP port is in use (named). An absent Redis is no failure: it is logged, shown
 * in metrics, and waited for. */
SY_MUST_USE sy_status sy_control_open(sy_control **out, const sy_control_config *config,
                                      sy_error *err);
/* Withdraws the lease, stops the threads. Does not wait for a Redis that is away. Not from a
 * callback. Accepts NULL. */
void sy_control_close(sy_control *control);
int sy_control_http_port(const sy_control *control); /* 0: none, or unix: */
/* Announces this process, from now on, renewed until withdrawn; a second call replaces what is
 * announced. Any thread. SY_EINVAL: the name is not [A-Za-z0-9._-]+, or there is no address. */
SY_MUST_USE sy_status sy_control_announce(sy_control *control, sy_member_kind kind,
                                          const sy_member *self);
/* Waits for the DEL, at most 1 s, unless Redis is away or this is a callback. A lease that another
 * process holds by now is left alone. */
void sy_control_withdraw(sy_control *control);
int sy_control_redis_up(const sy_control *control);
/* The snapshot in force with a reference, or NULL before the first. Any thread. */
sy_snapshot *sy_control_snapshot(sy_control *control);

/* In which ways changes are heard of now, before the periodic check. */
#define SY_HINT_TRACKING      1u /* CLIENT TRACKING of the placement */
#define SY_HINT_NOTIFICATIONS 2u /* keyspace notifications of the placement */
#define SY_HINT_MEMBERS       4u /* what holders of leases publish */
typedef struct sy_placement_news {
    int64_t build_us; /* what it took to make the last snapshot of the hash; 0 before the first */
    int64_t taken_us; /* since 1970: when the epoch in force began; 0 before the first */
    unsigned hints;   /* SY_HINT_* */
} sy_placement_news;
void sy_control_news(sy_control *control, sy_placement_news *out); /* any thread */
void sy_control_check_now(sy_control *control); /* re-reads placement and leases soon. Any thread */
/* Runs fn(arg) every interval_us (of milliseconds) on the loop thread, until close. Any thread. At
 * most 8: SY_ELIMIT. */
SY_MUST_USE sy_status sy_control_every(sy_control *control, int64_t interval_us,
                                       void (*fn)(void *arg), void *arg);

/* The keys of the contract. out: [cap]; SY_ELIMIT: does not fit. */
SY_MUST_USE sy_status sy_key_placement(char *out, size_t cap, const char *model);
SY_MUST_USE sy_status sy_key_member(char *out, size_t cap, sy_member_kind kind,
                                    const char *name); /* "switchyard:nodes:NAME" */

/* Redis addresses, for tools as well. SY_EINVAL; the error's text holds no password. */
typedef struct sy_redis_address {
    int is_unix;
    char path[108]; /* unix */
    char host[128];
    int port;
    int db;
    char user[64], password[128]; /* "": none */
} sy_redis_address;
SY_MUST_USE sy_status sy_redis_address_parse(sy_redis_address *out, const char *text,
                                             sy_error *err);

/* Several, separated by commas (in a password a comma is %2c), all of one database. out: [cap]; *n:
 * how many. SY_EINVAL also for more than cap. */
#define SY_REDIS_ADDRESSES_MAX 8
SY_MUST_USE sy_status sy_redis_addresses_parse(sy_redis_address *out, size_t cap, size_t *n,
                                               const char *text, sy_error *err);

#endif
