/* sy_members.c - lists leases: SCAN for the names, HGETALL for each, compare with what was known.
 *
 * Members that are missing are not always gone. After an outage, or when somebody empties Redis,
 * all leases are missing until each holder renews its own; to report that would take every node
 * away from every aggregator at once. So the missing get one lease's time of grace when Redis comes
 * back, and when the placement is missing as well. A replica without its primary cannot tell
 * either: no lease is renewed there, so nobody who is missing counts as gone. */
#include "sy_members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sy_clock.h"
#include "sy_keys.h"
#include "sy_log.h"

#define MEMBERS_MAX 1024
#define SCAN_COUNT  "1000"
#define SCAN_STEPS_MAX \
    32 /* a check: in a Redis full of other keys a listing takes several checks */
#define LOG_INTERVAL_US 10000000

typedef char member_name[SY_NODE_BYTES];

typedef struct member_list {
    sy_member *member; /* sorted by name, unused bytes zero, so that equal lists are equal bytes */
    size_t n;
} member_list;

enum list_state { IDLE, SCANNING, PAUSED, FETCHING, ASKING };

struct sy_members {
    sy_members_config config;
    char placement_key[SY_KEY_BYTES];
    member_list known; /* as last reported */
    int64_t grace_until_us;
    int is_wiped; /* the placement was missing when members were */
    enum list_state state;
    int n_steps;
    char cursor[24];
    member_name name[MEMBERS_MAX];
    size_t n_names;
    size_t n_fetched; /* answers so far */
    size_t n_asked;
    int must_list_again;
    int is_broken; /* the connection went in the middle: this listing says nothing */
    member_list found;
    _Atomic int64_t logged_us, odd_logged_us, full_logged_us;
};

static void finish_listing(sy_members *self)
{
    free(self->found.member);
    self->found = (member_list){NULL, 0};
    self->n_names = 0;
    self->state = IDLE;
    if (self->must_list_again) sy_members_list(self);
}

/* ---- what a listing means ---- */

static int compare_members(const void *a, const void *b)
{
    return strcmp(((const sy_member *)a)->name, ((const sy_member *)b)->name);
}

static const sy_member *find_member(const member_list *list, const char *name)
{
    sy_member key = {.name = ""};

    if (list->n == 0) return NULL;
    memcpy(key.name, name, sizeof(key.name));
    return bsearch(&key, list->member, list->n, sizeof(key), compare_members);
}

static size_t count_missing(const sy_members *self)
{
    size_t n = 0;

    for (size_t i = 0; i < self->known.n; i++) {
        n += find_member(&self->found, self->known.member[i].name) == NULL;
    }
    return n;
}

/* Keeps the missing in the list. */
static int add_missing(sy_members *self)
{
    const size_t n_found = self->found.n;
    const member_list among = {self->found.member, n_found};
    sy_member *grown = calloc(n_found + self->known.n, sizeof(*grown));

    if (grown == NULL) return 0;
    if (n_found > 0) memcpy(grown, self->found.member, n_found * sizeof(*grown));
    for (size_t i = 0; i < self->known.n; i++) {
        if (find_member(&among, self->known.member[i].name) != NULL) continue;
        memcpy(&grown[self->found.n++], &self->known.member[i], sizeof(*grown));
    }
    free(self->found.member);
    self->found.member = grown;
    qsort(grown, self->found.n, sizeof(*grown), compare_members);
    return 1;
}

static void settle(sy_members *self, int keep_missing)
{
    const int is_sound = !keep_missing || add_missing(self);
    const size_t n = self->found.n;
    const int is_same =
        n == self->known.n &&
        (n == 0 || memcmp(self->found.member, self->known.member, n * sizeof(sy_member)) == 0);

    if (is_sound && !is_same) {
        free(self->known.member);
        self->known = self->found;
        self->found = (member_list){NULL, 0};
        self->config.on_members(self->config.ctx, self->config.kind, self->known.member, n);
    }
    finish_listing(self);
}

static void on_placement_exists(void *arg, const redisReply *reply)
{
    sy_members *self = arg;

    if (reply == NULL) {
        finish_listing(self);
        return;
    }
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 0) {
        if (!self->is_wiped) self->grace_until_us = sy_clock_us() + self->config.lease_us;
        self->is_wiped = 1;
    } else {
        self->is_wiped = 0;
    }
    settle(self, sy_clock_us() < self->grace_until_us);
}

static void start_grace(sy_members *self)
{
    self->grace_until_us = sy_clock_us() + self->config.lease_us;
}

static void judge(sy_members *self)
{
    if (self->is_broken) {
        finish_listing(self);
        return;
    }
    if (!sy_primary_is_writable(self->config.commands)) start_grace(self);
    if (count_missing(self) == 0) {
        self->is_wiped = 0;
        settle(self, 0);
    } else if (sy_clock_us() < self->grace_until_us) {
        settle(self, 1);
    } else if (self->config.model == NULL) {
        settle(self, 0);
    } else {
        self->state = ASKING;
        if (sy_primary_command(self->config.commands, on_placement_exists, self, 2,
                               (const char *const[]){"EXISTS", self->placement_key}) != SY_OK) {
            finish_listing(self);
        }
    }
}

/* ---- fetching ---- */

/* Sets the member's field of that name. 0: it does not fit, so the lease is not to be trusted. */
static int set_field(sy_member *member, const redisReply *name, const redisReply *value)
{
    if (name->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING) return 0;
    for (size_t i = 0; i < SY_LEASE_FIELDS; i++) {
        const sy_lease_field *field = &sy_lease_fields[i];

        if (strcmp(name->str, field->name) != 0) continue;
        if (i == SY_LEASE_PID) {
            member->pid = strtoll(value->str, NULL, 10);
            return 1;
        }
        if (value->len >= field->cap || strlen(value->str) != value->len) return 0;
        memcpy((char *)member + field->offset, value->str, value->len);
        return 1;
    }
    return 1; /* a field of a later version */
}

/* 0: there is no such lease any more, or it is of no use. */
static int read_member(sy_member *out, const char *name, const redisReply *reply)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->name, name, sizeof(out->name));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements % 2 != 0) return 0;
    for (size_t i = 0; i < reply->elements; i += 2) {
        if (!set_field(out, reply->element[i], reply->element[i + 1])) return 0;
    }
    return reply->elements > 0 && out->address[0] != '\0';
}

static void on_member(void *arg, const redisReply *reply)
{
    sy_members *self = arg;
    const char *name = self->name[self->n_fetched++];
    sy_member *const into = &self->found.member[self->found.n];

    if (reply == NULL) {
        self->is_broken = 1;
    } else if (sy_redis_answered(reply, "to read a lease", &self->logged_us)) {
        if (read_member(into, name, reply)) {
            self->found.n++;
        } else if (reply->elements > 0 && sy_log_due(&self->odd_logged_us, LOG_INTERVAL_US)) {
            sy_log(SY_LOG_WARN, "the lease %s%s is ignored: it has no address, or a field too long",
                   sy_key_member_prefix(self->config.kind), name);
        }
    }
    if (self->n_fetched == self->n_asked) judge(self);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* SCAN may say a name twice. */
static void sort_names(sy_members *self)
{
    size_t n = 0;

    qsort(self->name, self->n_names, sizeof(self->name[0]), compare_names);
    for (size_t i = 0; i < self->n_names; i++) {
        if (n > 0 && strcmp(self->name[n - 1], self->name[i]) == 0) continue;
        if (n != i) memcpy(self->name[n], self->name[i], sizeof(self->name[0]));
        n++;
    }
    self->n_names = n;
}

static void fetch(sy_members *self)
{
    char key[SY_KEY_BYTES];
    size_t n = 0;

    sort_names(self);
    self->state = FETCHING;
    self->n_fetched = 0;
    self->is_broken = 0;
    self->found.member = calloc(self->n_names + 1, sizeof(sy_member));
    if (self->found.member == NULL) {
        finish_listing(self);
        return;
    }
    /* No answer comes before this returns, so n_asked is set before anybody compares with it. */
    while (n < self->n_names) {
        (void)!sy_key_member(key, sizeof(key), self->config.kind,
                             self->name[n]); /* names are short */
        if (sy_primary_command(self->config.commands, on_member, self, 2,
                               (const char *const[]){"HGETALL", key}) != SY_OK) {
            self->is_broken = 1;
            break;
        }
        n++;
    }
    self->n_asked = n;
    if (n == 0) judge(self);
}

/* ---- scanning ---- */

static void add_name(sy_members *self, const redisReply *key)
{
    const char *prefix = sy_key_member_prefix(self->config.kind);
    const size_t skip = strlen(prefix);

    if (key->type != REDIS_REPLY_STRING || key->len < skip) return;
    if (memcmp(key->str, prefix, skip) != 0) return;
    if (!sy_name_is_good(key->str + skip, key->len - skip)) return;
    if (self->n_names == MEMBERS_MAX) {
        if (sy_log_due(&self->full_logged_us, LOG_INTERVAL_US)) {
            sy_log(SY_LOG_WARN, "there are more than %d leases %s*: the others are ignored",
                   MEMBERS_MAX, prefix);
        }
        return;
    }
    memset(self->name[self->n_names], 0, sizeof(self->name[0]));
    memcpy(self->name[self->n_names++], key->str + skip, key->len - skip);
}

static void scan(sy_members *self);

static void on_scanned(void *arg, const redisReply *reply)
{
    sy_members *self = arg;
    const redisReply *keys;

    if (!sy_redis_answered(reply, "to list leases", &self->logged_us) ||
        reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[0]->len >= sizeof(self->cursor) ||
        reply->element[1]->type != REDIS_REPLY_ARRAY) {
        finish_listing(self);
        return;
    }
    snprintf(self->cursor, sizeof(self->cursor), "%s", reply->element[0]->str);
    keys = reply->element[1];
    for (size_t i = 0; i < keys->elements; i++) add_name(self, keys->element[i]);
    if (strcmp(self->cursor, "0") == 0) {
        fetch(self);
    } else if (++self->n_steps < SCAN_STEPS_MAX) {
        scan(self);
    } else {
        self->state = PAUSED;
    }
}

static void scan(sy_members *self)
{
    char pattern[SY_KEY_BYTES];

    snprintf(pattern, sizeof(pattern), "%s*", sy_key_member_prefix(self->config.kind));
    self->state = SCANNING;
    if (sy_primary_command(self->config.commands, on_scanned, self, 6,
                           (const char *const[]){"SCAN", self->cursor, "MATCH", pattern, "COUNT",
                                                 SCAN_COUNT}) != SY_OK) {
        finish_listing(self);
    }
}

void sy_members_list(sy_members *members)
{
    if (members->state != IDLE && members->state != PAUSED) return;
    if (!sy_primary_is_up(members->config.commands)) return;
    if (members->state == IDLE) {
        members->must_list_again = 0;
        memcpy(members->cursor, "0", 2);
        members->n_names = 0;
    }
    members->n_steps = 0;
    scan(members);
}

void sy_members_list_again(sy_members *members)
{
    members->must_list_again = members->state != IDLE;
    sy_members_list(members);
}

void sy_members_on_up(sy_members *members)
{
    /* A paused one belongs to another connection, perhaps another server. */
    members->must_list_again = 0;
    finish_listing(members);
    if (members->known.n > 0) start_grace(members);
    sy_members_list(members);
}

sy_status sy_members_open(sy_members **out, const sy_members_config *config)
{
    sy_members *self = calloc(1, sizeof(*self));
    sy_status st = SY_OK;

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->config = *config;
    if (config->model != NULL) {
        SY_TRY(sy_key_placement(self->placement_key, sizeof(self->placement_key), config->model));
    }
    *out = self;
    self = NULL;
out:
    free(self);
    return st;
}

void sy_members_free(sy_members *members)
{
    if (members == NULL) return;
    free(members->known.member);
    free(members->found.member);
    free(members);
}
