/* canary_meter.c - see the header. */
#include "canary_meter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "fact_json.h"
#include "sy_hash.h"
#include "target_edit.h"

#define REFUSED_LOOKS \
    3 /* in a row: a node that has just come is refused until it has told itself */

enum { MESSAGES, ROWS, ERRORS, LATENCY, COMPARED, DIFFERING, N_COUNTERS };
static const char *const counter_name[N_COUNTERS] = {
    "messages", "rows", "errors", "latency_us", "compared_rows", "differing_rows"};

/* The counters of one target of one field on one aggregator, as they were seen last. */
typedef struct seen {
    char key[SY_NODE_BYTES + 128]; /* "": a free slot */
    uint64_t counter[N_COUNTERS];
} seen;

struct canary_meter {
    const canary_state *state;
    char to[SY_NODE_BYTES + SY_DEVICE_BYTES]; /* without "!" */
    sy_target target;
    const char **field; /* [state->n], sorted */
    seen *slot;         /* [n_slots], a power of two, at most half full */
    size_t n_slots, n_seen;
    canary_counts sum;  /* of the phase */
    canary_counts look; /* of this look: what is no sum */
    size_t n_refused_looks;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

sy_status canary_meter_open(canary_meter **out, const canary_state *state, sy_error *err)
{
    canary_meter *meter = calloc(1, sizeof(*meter));
    sy_status st = SY_OK;

    *out = NULL;
    if (meter == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    meter->state = state;
    meter->n_slots = 64;
    meter->slot = calloc(meter->n_slots, sizeof(*meter->slot));
    meter->field = calloc(state->n + 1, sizeof(*meter->field));
    if (meter->slot == NULL || meter->field == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the canary");
        goto out;
    }
    SY_TRY(target_parse(&meter->target, state->to, err));
    snprintf(meter->to, sizeof(meter->to), "%s/%s", meter->target.node, meter->target.device);
    for (size_t i = 0; i < state->n; i++) meter->field[i] = state->field[i].field;
    if (state->n > 1) qsort(meter->field, state->n, sizeof(*meter->field), by_text);
    *out = meter;
    meter = NULL;
out:
    canary_meter_close(meter);
    return st;
}

void canary_meter_close(canary_meter *meter)
{
    if (meter == NULL) return;
    free(meter->slot);
    free(meter->field);
    free(meter);
}

void canary_meter_begin(canary_meter *meter)
{
    memset(&meter->sum, 0, sizeof(meter->sum));
}

/* ---- one target's counters ---- */

static seen *find_slot(const canary_meter *meter, const char *key)
{
    size_t i = (size_t)sy_fnv1a(SY_FNV1A_START, key, strlen(key)) & (meter->n_slots - 1);

    while (meter->slot[i].key[0] != '\0' && strcmp(meter->slot[i].key, key) != 0) {
        i = (i + 1) & (meter->n_slots - 1);
    }
    return &meter->slot[i];
}

static sy_status make_room(canary_meter *meter)
{
    seen *before = meter->slot;
    const size_t n_before = meter->n_slots;

    if (2 * (meter->n_seen + 1) <= meter->n_slots) return SY_OK;
    meter->slot = calloc(2 * n_before, sizeof(*meter->slot));
    if (meter->slot == NULL) {
        meter->slot = before;
        return SY_ENOMEM;
    }
    meter->n_slots = 2 * n_before;
    for (size_t i = 0; i < n_before; i++) {
        if (before[i].key[0] != '\0') *find_slot(meter, before[i].key) = before[i];
    }
    free(before);
    return SY_OK;
}

/* By how much each counter has grown since it was seen last. The new target begins at zero; of the
 * others nobody knows what was before the canary, so what is seen first is their zero. */
static sy_status step(uint64_t by[N_COUNTERS], canary_meter *meter, const char *aggregator,
                      const char *field, const char *target, const json_t *item)
{
    char key[sizeof(meter->slot->key)];
    const int is_new = strcmp(target, meter->to) == 0;
    int is_first;
    seen *s;
    sy_status st;

    SY_TRY(make_room(meter));
    snprintf(key, sizeof(key), "%s %s %s", aggregator, field, target);
    s = find_slot(meter, key);
    is_first = s->key[0] == '\0';
    meter->n_seen += (size_t)is_first;
    memcpy(s->key, key, sizeof(key));
    for (int i = 0; i < N_COUNTERS; i++) {
        const uint64_t now = fact_count(item, counter_name[i]);

        if (is_first) s->counter[i] = is_new ? 0 : now;
        by[i] = now >= s->counter[i] ? now - s->counter[i] : now; /* it started anew */
        s->counter[i] = now;
    }
out:
    return st;
}

static double difference_of(const json_t *item)
{
    const json_t *value = json_object_get(item, "max_diff");

    if (!json_is_number(value) || !isfinite(json_number_value(value))) return INFINITY;
    return json_number_value(value);
}

static void take_new(canary_meter *meter, const uint64_t by[N_COUNTERS], const json_t *item)
{
    canary_counts *sum = &meter->sum;
    char state[24];
    char refused[192];

    sum->messages += by[MESSAGES];
    sum->rows += by[ROWS];
    sum->errors += by[ERRORS];
    sum->latency_us += by[LATENCY];
    sum->compared_rows += by[COMPARED];
    sum->differing_rows += by[DIFFERING];
    if (by[DIFFERING] > 0) sum->max_diff = fmax(sum->max_diff, difference_of(item));
    fact_text(state, sizeof(state), item, "state");
    fact_text(refused, sizeof(refused), item, "refused");
    if (refused[0] != '\0') {
        snprintf(meter->look.refused, sizeof(meter->look.refused), "%s", refused);
    } else if (strcmp(state, "resident") == 0) {
        meter->look.n_resident++;
    }
}

static sy_status take_target(canary_meter *meter, const char *aggregator, const json_t *item)
{
    char field[40];
    char target[SY_NODE_BYTES + SY_DEVICE_BYTES];
    const char *const wanted = field;
    uint64_t by[N_COUNTERS];
    sy_status st;

    fact_text(field, sizeof(field), item, "field");
    fact_text(target, sizeof(target), item, "target");
    target[strcspn(target, "@!")] = '\0';
    if (bsearch(&wanted, meter->field, meter->state->n, sizeof(wanted), by_text) == NULL) {
        return SY_OK;
    }
    SY_TRY(step(by, meter, aggregator, field, target, item));
    if (strcmp(target, meter->to) == 0) {
        take_new(meter, by, item);
    } else if (!fact_flag(item, "shadow")) {
        meter->sum.old_messages += by[MESSAGES];
        meter->sum.old_errors += by[ERRORS];
        meter->sum.old_latency_us += by[LATENCY];
    }
out:
    return st;
}

static sy_status take_targets(canary_meter *meter, const char *aggregator, const json_t *object)
{
    const json_t *list = json_object_get(object, "targets");
    sy_status st = SY_OK;

    if (!json_is_array(list)) return SY_EDATALOSS;
    meter->look.n_aggregators++;
    meter->look.n_wanted += meter->state->n;
    for (size_t i = 0; i < json_array_size(list) && st == SY_OK; i++) {
        st = take_target(meter, aggregator, json_array_get(list, i));
    }
    return st;
}

/* ---- a look ---- */

void canary_meter_look_begin(canary_meter *meter)
{
    memset(&meter->look, 0, sizeof(meter->look));
}

sy_status canary_meter_take(canary_meter *meter, const char *aggregator, const char *json)
{
    json_t *object = json_loads(json, JSON_ALLOW_NUL, NULL);
    const sy_status st = take_targets(meter, aggregator, object);

    json_decref(object);
    return st;
}

void canary_meter_look_end(canary_counts *out, canary_meter *meter)
{
    canary_counts *look = &meter->look;

    meter->n_refused_looks = look->refused[0] != '\0' ? meter->n_refused_looks + 1 : 0;
    *out = meter->sum;
    out->n_aggregators = look->n_aggregators;
    out->n_silent = look->n_silent;
    out->n_wanted = look->n_wanted;
    out->n_resident = look->n_resident;
    memcpy(out->silent, look->silent, sizeof(out->silent));
    memcpy(out->failed, look->failed, sizeof(out->failed));
    if (meter->n_refused_looks >= REFUSED_LOOKS) {
        memcpy(out->refused, look->refused, sizeof(out->refused));
    }
}

static void take_failures(canary_meter *meter, const cluster_facts *facts)
{
    const fact_process *node = facts_node(facts, meter->target.node);
    canary_counts *look = &meter->look;

    if (node == NULL) {
        snprintf(look->silent, sizeof(look->silent), "node %s has no lease", meter->target.node);
        return;
    }
    for (size_t i = 0; i < node->shards.n && look->failed[0] == '\0'; i++) {
        const fact_shard *shard = &node->shards.shard[i];
        char field[32];
        const char *const wanted = field;

        if (shard->state != SY_SHARD_FAILED) continue;
        snprintf(field, sizeof(field), "%u/%u", shard->layer, shard->expert);
        if (bsearch(&wanted, meter->field, meter->state->n, sizeof(wanted), by_text) == NULL) {
            continue;
        }
        snprintf(look->failed, sizeof(look->failed), "%s: %s", field, shard->reason);
    }
}

sy_status canary_meter_look(canary_counts *out, canary_meter *meter, const cluster_facts *facts,
                            sy_error *err)
{
    sy_status st = SY_OK;

    canary_meter_look_begin(meter);
    take_failures(meter, facts);
    for (size_t i = 0; i < facts->n && st == SY_OK; i++) {
        const sy_member *lease = &facts->process[i].lease;
        json_t *object = NULL;
        sy_error why;

        if (facts->process[i].kind != SY_MEMBER_AGGREGATOR) continue;
        sy_error_clear(&why);
        if (fact_get(&object, lease->http, "/targets", &why) == SY_OK) {
            st = take_targets(meter, lease->name, object);
            if (st == SY_EDATALOSS) st = sy_error_set(&why, SY_OK, "it tells no targets");
        }
        if (why.message[0] != '\0') {
            meter->look.n_silent++;
            snprintf(meter->look.silent, sizeof(meter->look.silent), "%s: %.180s", lease->name,
                     why.message);
        }
        json_decref(object);
    }
    canary_meter_look_end(out, meter);
    return st == SY_OK ? SY_OK : sy_error_set(err, st, "no memory for the canary");
}
