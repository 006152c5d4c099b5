/* sy_fault.c - the table of SY_FAULT, read once. A process that runs without it pays one load a
 * pass. */
#include "sy_fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sy_log.h"

#define POINTS_MAX 16
#define NAME_BYTES 64

typedef struct fault_point {
    char name[NAME_BYTES];
    uint64_t failing_pass; /* counted from 1; 0: every pass */
    _Atomic uint64_t n_passes;
} fault_point;

enum { UNREAD, OFF, ON };

static _Atomic int state = UNREAD;
static fault_point
    points[POINTS_MAX]; /* not written after state has left UNREAD, but for n_passes */
static size_t n_points;

/* entry: "name:pass" or "name:always", not NUL-terminated. False when it is neither. */
static int parse_entry(fault_point *out, const char *entry, size_t len)
{
    char text[NAME_BYTES + 24];
    char *colon;
    char *end;

    if (len >= sizeof(text)) return 0;
    memcpy(text, entry, len);
    text[len] = '\0';
    colon = strrchr(text, ':');
    if (colon == NULL || colon == text || (size_t)(colon - text) >= NAME_BYTES) return 0;
    *colon = '\0';
    memcpy(out->name, text, (size_t)(colon - text) + 1);
    out->failing_pass = 0;
    if (strcmp(colon + 1, "always") == 0) return 1;
    if (colon[1] < '1' || colon[1] > '9') return 0;
    out->failing_pass = strtoull(colon + 1, &end, 10);
    return *end == '\0';
}

static void read_environment(void)
{
    const char *entry = getenv("SY_FAULT");
    size_t len;

    while (entry != NULL && *entry != '\0') {
        len = strcspn(entry, ",");
        if (n_points == POINTS_MAX) {
            sy_log(SY_LOG_ERROR, "SY_FAULT: more than %d points; the rest is ignored", POINTS_MAX);
            break;
        }
        if (parse_entry(&points[n_points], entry, len)) {
            n_points++;
        } else {
            sy_log(SY_LOG_ERROR, "SY_FAULT: \"%.*s\" is not NAME:PASS or NAME:always; ignored",
                   (int)SY_MIN(len, 200), entry);
        }
        entry += len;
        if (*entry == ',') entry++;
    }
    atomic_store_explicit(&state, n_points > 0 ? ON : OFF, memory_order_release);
}

int sy_fault_hit(const char *point)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (atomic_load_explicit(&state, memory_order_relaxed) == OFF) return 0;
    pthread_once(&once, read_environment);
    for (size_t i = 0; i < n_points; i++) {
        uint64_t pass;

        if (strcmp(points[i].name, point) != 0) continue;
        pass = atomic_fetch_add_explicit(&points[i].n_passes, 1, memory_order_relaxed) + 1;
        return points[i].failing_pass == 0 || pass == points[i].failing_pass;
    }
    return 0;
}
