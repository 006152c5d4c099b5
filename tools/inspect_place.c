/* inspect_place.c - see the header. */
#include "inspect_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_precision_text.h"
#include "tool_text.h"

/* ---- devices ---- */

/* Digits; *at moves past them. 0: there are none, or too many. */
static uint64_t read_number(const char **at)
{
    uint64_t n = 0;

    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (n > UINT64_MAX / 100) return 0;
        n = n * 10 + (uint64_t)(**at - '0');
    }
    return n;
}

/* "80GiB" -> bytes; *at moves past it. 0: there is no size, or one that no memory has. */
static uint64_t read_size(const char **at)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } unit[] = {
        {"KiB", 1ull << 10},   {"MiB", 1ull << 20},   {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},   {"KB", 1000},          {"MB", 1000000},
        {"GB", 1000000000ull}, {"TB", 1000000000000}, {"B", 1},
    };
    uint64_t n = read_number(at);
    const char *text = *at;

    for (size_t i = 0; i < SY_COUNT_OF(unit); i++) {
        if (strncmp(text, unit[i].name, strlen(unit[i].name)) != 0) continue;
        if (n > UINT64_MAX / 2 / unit[i].bytes) return 0;
        n *= unit[i].bytes;
        text += strlen(unit[i].name);
        break;
    }
    *at = text;
    return n;
}

static sy_status add_device(inspect_place *p, const char *name, size_t n, uint64_t bytes,
                            sy_error *err)
{
    inspect_device *device = &p->device[p->n_devices];
    sy_target_list list;
    sy_status st;

    if (p->n_devices == INSPECT_DEVICES_MAX)
        return sy_error_set(err, SY_ELIMIT, "more than %d devices", INSPECT_DEVICES_MAX);
    snprintf(device->name, sizeof(device->name), "%.*s%s", (int)SY_MIN(n, sizeof(device->name) - 1),
             name, memchr(name, '/', n) == NULL ? "/cpu:0" : "");
    SY_TRY(sy_targets_parse(&list, device->name, strlen(device->name), err));
    if (list.n != 1 || list.target[0].share != 0 || list.target[0].shadow ||
        list.target[0].any_weights) {
        return sy_error_set(err, SY_EINVAL, "'%s' is no NODE/DEVICE", tool_shown(device->name));
    }
    for (size_t i = 0; i < p->n_devices; i++)
        if (strcmp(p->device[i].name, device->name) == 0)
            return sy_error_set(err, SY_EINVAL, "%s is named twice", device->name);
    device->memory_bytes = bytes;
    device->n_room = bytes / SY_MAX(p->format->expert_bytes, 1);
    p->n_devices++;
out:
    return st;
}

static sy_status refuse(const char *item, size_t n, sy_error *err)
{
    char shown[80];

    return sy_error_set(err, SY_EINVAL,
                        "'%s': write NAME=SIZE, as gpu0=80GiB or expert-0/cuda:1=80GiB, or N*SIZE, "
                        "as 4*80GiB",
                        tool_text_show(shown, sizeof(shown), item, n));
}

/* One item, up to the comma. */
static sy_status read_item(inspect_place *p, const char *item, size_t n, sy_error *err)
{
    const char *equals = memchr(item, '=', n);
    const char *star = equals == NULL ? memchr(item, '*', n) : NULL;
    const char *at = equals != NULL ? equals + 1 : star != NULL ? star + 1 : item + n;
    const uint64_t bytes = read_size(&at);
    const char *count = item;
    char name[32];
    sy_status st = SY_OK;

    if (bytes == 0 || at != item + n) return refuse(item, n, err);
    if (equals != NULL) return add_device(p, item, (size_t)(equals - item), bytes, err);
    const uint64_t n_nodes = read_number(&count);
    if (n_nodes == 0 || n_nodes > INSPECT_DEVICES_MAX || count != star) return refuse(item, n, err);
    for (uint64_t i = 0; i < n_nodes; i++) {
        const int len = snprintf(name, sizeof(name), "expert-%llu", (unsigned long long)i);
        SY_TRY(add_device(p, name, (size_t)len, bytes, err));
    }
out:
    return st;
}

static sy_status read_devices(inspect_place *p, const char *text, sy_error *err)
{
    sy_status st = SY_OK;

    for (text += strspn(text, ", "); *text != '\0'; text += strspn(text, ", ")) {
        const size_t n = strcspn(text, ", ");

        SY_TRY(read_item(p, text, n, err));
        text += n;
    }
    if (p->n_devices == 0) st = sy_error_set(err, SY_EINVAL, "no device is named");
out:
    if (st != SY_OK) sy_error_prefix(err, "--devices");
    return st;
}

/* ---- the spread ---- */

/* The device of more free room, of equals the first. */
static size_t roomiest(const inspect_place *p)
{
    size_t best = 0;

    for (size_t d = 1; d < p->n_devices; d++)
        if (p->device[d].n_room - p->device[d].n_experts >
            p->device[best].n_room - p->device[best].n_experts)
            best = d;
    return best;
}

/* The value is where the spread would have the expert; a device that is full passes it on. */
static sy_status put(void *arg, const char *field, const char *value)
{
    inspect_place *p = arg;
    sy_field at;
    size_t d = 0;
    const sy_status st = sy_field_parse(&at, field, strlen(field), &p->grid, NULL);

    if (st != SY_OK) return st;
    while (p->device[d].name != value) d++;
    if (p->device[d].n_experts == p->device[d].n_room) d = roomiest(p);
    if (p->device[d].n_experts == p->device[d].n_room) {
        p->n_left++;
        return SY_OK;
    }
    p->device[d].n_experts++;
    p->to[(size_t)at.layer * p->grid.experts + (size_t)at.expert] = (uint16_t)d;
    return SY_OK;
}

/* A device's room, as far as the model could fill it. */
static uint64_t part_of(const inspect_place *p, size_t d)
{
    return SY_MIN(p->device[d].n_room, sy_grid_shards(&p->grid));
}

/* The devices as the spread takes them in turn: each once where all have room for an even share,
 * else each for its part of the room of all. Returns how many turns there are. */
static size_t take_turns(const char *turn[SY_EXPERTS_MAX], const inspect_place *p)
{
    const uint64_t even = (sy_grid_shards(&p->grid) + p->n_devices - 1) / p->n_devices;
    uint64_t room = 0, passed = part_of(p, 0);
    size_t d = 0, n_roomy = 0;

    for (size_t i = 0; i < p->n_devices; i++) {
        room += part_of(p, i);
        n_roomy += p->device[i].n_room >= even;
        turn[i] = p->device[i].name;
    }
    if (room == 0 || n_roomy == p->n_devices) return p->n_devices;
    for (size_t i = 0; i < p->grid.experts; i++) {
        while (passed * p->grid.experts <= i * room && d + 1 < p->n_devices)
            passed += part_of(p, ++d);
        turn[i] = p->device[d].name;
    }
    return p->grid.experts;
}

static sy_status find_format(inspect_place *p, const inspect_facts *facts, const char *weights,
                             sy_error *err)
{
    char list[64] = "";
    size_t at = 0;

    for (size_t i = 0; i < facts->n_formats; i++) {
        const char *name = sy_weights_name(facts->format[i].weights);

        if (strcmp(name, weights) == 0) {
            p->format = &facts->format[i];
            return SY_OK;
        }
        const char *between = i == 0 ? "" : i + 1 == facts->n_formats ? " or " : ", ";
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", between, name);
    }
    return sy_error_set(err, SY_EINVAL, "--weights %s: %s", tool_shown(weights), list);
}

sy_status inspect_place_make(inspect_place *out, const inspect_facts *facts, const char *devices,
                             const char *weights, sy_error *err)
{
    static const char *turn[SY_EXPERTS_MAX];
    const size_t n_places = (size_t)facts->grid.layers * facts->grid.experts;
    sy_status st;

    *out = (inspect_place){.grid = facts->grid};
    SY_TRY(find_format(out, facts, weights, err));
    out->device = calloc(INSPECT_DEVICES_MAX + 1, sizeof(*out->device));
    out->to = malloc(n_places * sizeof(*out->to));
    if (out->device == NULL || out->to == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for a placement");
    memset(out->to, 0xff, n_places * sizeof(*out->to));
    SY_TRY(read_devices(out, devices, err));
    SY_TRY(sy_placement_spread(&out->grid, turn, take_turns(turn, out), put, out));
out:
    return st;
}

void inspect_place_free(inspect_place *place)
{
    free(place->device);
    free(place->to);
    *place = (inspect_place){0};
}
