/* sy_hints.h - a second connection that hears of changes: of the placement by the server's tracking
 * of keys and by keyspace notifications, of leases by what their holders publish. All of it only
 * says when to look; the periodic check does where none of it is to be had. The loop's thread only,
 * but for sy_hints_active. Only for lib/control. */
#ifndef SY_HINTS_H
#define SY_HINTS_H

#include "sy_control.h"
#include "sy_primary.h"

typedef struct sy_hints sy_hints;

typedef struct sy_hints_config {
    struct uv_loop_s *loop;
    sy_primary *commands; /* borrowed: whose server is listened to */
    const char *model;    /* borrowed: whose placement; NULL: of none */
    int db;
    int are_members_wanted;
    void *ctx;
    void (*on_placement)(void *ctx); /* it may have changed */
    /* Leases may have changed. who: [n] bytes as published, "nodes:expert-a" if the publisher is
     * one of ours; NULL: any. */
    void (*on_members)(void *ctx, const char *who, size_t n);
} sy_hints_config;

SY_MUST_USE sy_status sy_hints_open(sy_hints **out, const sy_hints_config *config);
void sy_hints_stop(sy_hints *hints);  /* closes its connection; accepts NULL */
void sy_hints_free(sy_hints *hints);  /* after stop, when no answer can come; accepts NULL */
void sy_hints_on_up(sy_hints *hints); /* commands may be sent, perhaps to another server */
void sy_hints_on_down(sy_hints *hints);
unsigned sy_hints_active(const sy_hints *hints); /* SY_HINT_*; any thread; NULL: 0 */

#endif
