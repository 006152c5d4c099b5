/* placement_history.h - the history of a model's placement, newest first: who changed what, why,
 * and what was there before. The texts are as Redis has them: bytes, not trusted. */
#ifndef PLACEMENT_HISTORY_H
#define PLACEMENT_HISTORY_H

#include "sy_arena.h"
#include "tool_redis.h"

#define HISTORY_FIELDS_MAX        65536             /* of one entry that are read */
#define HISTORY_CHANGES_BYTES_MAX ((size_t)2 << 20) /* as JSON: an entry with more has none */

typedef struct history_entry {
    const char *id; /* "1700000000000-0" */
    int64_t at_us;  /* CLOCK_REALTIME */
    const char *author, *reason, *command;
    /* [n]; NULL: the entry does not say what it changed, or not in words that can be read */
    const tool_field_change *change;
    size_t n;
    size_t n_fields; /* how many it changed, even where it does not say which */
} history_entry;

typedef struct history {
    history_entry *entry; /* [n], newest first */
    size_t n;
    sy_arena arena; /* owns everything */
} history;

/* At most count entries, those before the id `older_than` (NULL: from the newest). SY_OK, with n 0
 * when there are none: the caller ends *out with history_free. */
SY_MUST_USE sy_status history_read(history *out, tool_redis *redis, const char *model, size_t count,
                                   const char *older_than, sy_error *err);
void history_free(history *h); /* accepts a zeroed one */

/* The newest change of a field, or NULL. *who: the entry it is in. */
const tool_field_change *history_find(const history_entry **who, const history *h,
                                      const char *field);

/* [{"field":"3/17","before":"..." or null,"after":"..." or null}]. Without those whose before is
 * their after. The caller frees it; NULL: no memory. n_changed: how many. */
char *history_changes_json(const tool_field_change *change, size_t n, size_t *n_changed);
/* SY_EINVAL: it is not what history_changes_json writes; SY_ENOMEM. out: in the arena. */
SY_MUST_USE sy_status history_changes_parse(const tool_field_change **out, size_t *n,
                                            sy_arena *arena, const char *text, size_t text_bytes);

#endif
