/* sim_operator.c - who edits the placement hash, and how processes hear of it. Nodes are n0, n1,
 * ...; "ghost" is one that nobody has heard of. */
#include <stdio.h>
#include <string.h>

#include "sim_world.h"

static void field_text(char out[32], uint32_t i)
{
    const sy_field field = {(int32_t)(i / (EXPERTS + 1)) - 1, (int32_t)(i % (EXPERTS + 1)) - 1};

    sy_field_format(out, 32, field);
}

static uint32_t field_of(uint32_t shard)
{
    return (shard / EXPERTS + 1) * (EXPERTS + 1) + shard % EXPERTS + 1;
}

static void good_value(world *w, char out[VALUE_BYTES])
{
    const uint32_t a = sim_below(w, w->n_nodes);
    const uint32_t b = (a + 1 + sim_below(w, w->n_nodes - 1)) % w->n_nodes;
    const char *mark = sim_percent(w, 10) ? "!" : "";

    switch (sim_below(w, 8)) {
    case 0:
    case 1: snprintf(out, VALUE_BYTES, "n%u/cpu:0 n%u/cpu:0%s", a, b, mark); break;
    case 2: snprintf(out, VALUE_BYTES, "n%u/cpu:0@95 n%u/cpu:0@5%s", a, b, mark); break;
    case 3: snprintf(out, VALUE_BYTES, "n%u/cpu:0 n%u/cpu:0@shadow%s", a, b, mark); break;
    case 4: snprintf(out, VALUE_BYTES, "n%u/cpu:0 ghost/cpu:0", a); break;
    default: snprintf(out, VALUE_BYTES, "n%u/cpu:0%s", a, mark); break;
    }
}

static void odd_value(world *w, char out[VALUE_BYTES])
{
    const uint32_t a = sim_below(w, w->n_nodes);

    switch (sim_below(w, 4)) {
    case 0: snprintf(out, VALUE_BYTES, "ghost/cpu:0"); break; /* valid, but served by nobody */
    case 1: snprintf(out, VALUE_BYTES, "ghost/cpu:0 n%u/cpu:0@shadow", a); break;
    case 2: snprintf(out, VALUE_BYTES, "n%u/gpu:0", a); break;
    default: snprintf(out, VALUE_BYTES, "n%u/cpu:0@95", a); break;
    }
}

/* value: not one of w's own. */
static void write_field(world *w, uint32_t i, const char *value)
{
    char field[32];

    field_text(field, i);
    sim_note(w, "edit %s = '%s'", field, value);
    memcpy(w->before[i], w->value[i], VALUE_BYTES);
    memcpy(w->value[i], value, strlen(value) + 1);
}

static void tell_everybody(world *w)
{
    for (uint32_t p = 0; p < w->n_nodes + w->n_aggs; p++) {
        const int64_t most_us = w->process[p].is_slow ? MS(15000) : MS(700);

        sim_post(w, w->now_us + sim_between(w, MS(1), most_us),
                 (event){.kind = EVENT_READ, .to = p});
    }
}

void sim_first_placement(world *w)
{
    char value[VALUE_BYTES];

    good_value(w, value);
    write_field(w, 0, value); /* everything */
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        good_value(w, value);
        if (!w->is_flipping && sim_percent(w, 70)) write_field(w, field_of(shard), value);
    }
    tell_everybody(w);
}

/* Everything there and back again, so that the same placement is in force again and again while
 * messages of earlier times are still on their way. */
static void flip(world *w)
{
    static const char *const place[3] = {"n0/cpu:0", "n1/cpu:0", "n0/cpu:0 n1/cpu:0"};
    uint32_t next = sim_below(w, 3);

    if (strcmp(w->value[0], place[next]) == 0) next = (next + 1) % 3;
    write_field(w, 0, place[next]);
    tell_everybody(w);
}

void sim_edit(world *w)
{
    char value[VALUE_BYTES];
    char kept[VALUE_BYTES];
    const uint32_t i = sim_percent(w, 80) ? field_of(sim_below(w, SHARDS)) : sim_below(w, FIELDS);
    const uint32_t j = field_of(sim_below(w, SHARDS));
    const uint32_t kind = sim_below(w, 100);

    w->report->n_edits++;
    if (w->is_flipping) {
        flip(w);
        return;
    }
    if (kind < 40) { /* one step back */
        memcpy(kept, w->before[i], VALUE_BYTES);
        good_value(w, value);
        write_field(w, i, kept[0] != '\0' ? kept : value);
    } else if (kind < 70) {
        good_value(w, value);
        write_field(w, i, value);
    } else if (kind < 80) { /* two change places */
        memcpy(kept, w->value[i], VALUE_BYTES);
        memcpy(value, w->value[j], VALUE_BYTES);
        write_field(w, i, value);
        write_field(w, j, kept);
    } else if (kind < 87) {
        odd_value(w, value);
        write_field(w, i, value);
    } else if (kind < 97) {
        write_field(w, i, "");
    } else { /* FLUSHALL, undone by the next edits */
        for (uint32_t f = 0; f < FIELDS; f++) write_field(w, f, "");
    }
    tell_everybody(w);
}

void sim_last_edit(world *w)
{
    char value[VALUE_BYTES];

    for (uint32_t i = 0; i < FIELDS; i++) {
        if (w->value[i][0] != '\0') write_field(w, i, "");
    }
    good_value(w, value);
    if (sim_percent(w, 50)) write_field(w, 0, value);
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        good_value(w, value);
        write_field(w, field_of(shard), value);
    }
    tell_everybody(w);
}

void sim_read(world *w, uint32_t p)
{
    process *const self = &w->process[p];
    sy_placement_entry entry[FIELDS];
    char field[FIELDS][32];
    sy_snapshot *snapshot;
    size_t n = 0;

    if (p < w->n_nodes && w->node[p].is_down) return;
    for (uint32_t i = 0; i < FIELDS; i++) {
        if (w->value[i][0] == '\0') continue;
        field_text(field[i], i);
        entry[n++] =
            (sy_placement_entry){field[i], strlen(field[i]), w->value[i], strlen(w->value[i])};
    }
    SY_ASSERT(sy_snapshot_build(&snapshot, self->snapshot, entry, n,
                                &(sy_grid){.layers = LAYERS, .experts = EXPERTS}, NULL) == SY_OK);
    sy_snapshot_unref(self->snapshot);
    self->snapshot = snapshot;
    w->report->n_refusals += sy_snapshot_refusals(snapshot) > 0;
    sim_note(w, "%c%u reads placement %04x", p < w->n_nodes ? 'n' : 'a',
             p < w->n_nodes ? p : p - w->n_nodes, (unsigned)(sim_hash(w, p) & 0xffff));
    if (p < w->n_nodes) {
        sim_node_placed(w, p);
    } else {
        sim_agg_placed(w, p - w->n_nodes);
    }
}
