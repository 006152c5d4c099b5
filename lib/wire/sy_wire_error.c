/* sy_wire_error.c - sy_error as the google.rpc.Status of a failed call's trailers, and back. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "google/rpc/status.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

#define ERROR_INFO_URL       "type.googleapis.com/google.rpc.ErrorInfo"
#define ERROR_DOMAIN         "switchyard"
#define ERROR_INFO_BYTES     512
#define METADATA_MAX         3
#define NUMBER_BYTES         12
#define DETAILS_MEMORY_BYTES ((size_t)256 << 10)

typedef struct metadata {
    size_t n;
    Google__Rpc__ErrorInfo__MetadataEntry entry[METADATA_MAX];
    Google__Rpc__ErrorInfo__MetadataEntry *pointer[METADATA_MAX];
} metadata;

static void add_metadata(metadata *data, const char *key, const char *value)
{
    Google__Rpc__ErrorInfo__MetadataEntry *entry = &data->entry[data->n];

    google__rpc__error_info__metadata_entry__init(entry);
    entry->key = sy_wire_lend_text(key);
    entry->value = sy_wire_lend_text(value);
    data->pointer[data->n++] = entry;
}

/* out: [ERROR_INFO_BYTES], which is enough for every sy_error. */
static size_t pack_error_info(uint8_t *out, const sy_error *err)
{
    Google__Rpc__ErrorInfo info;
    char layer[NUMBER_BYTES], expert[NUMBER_BYTES];
    metadata data = {0};

    google__rpc__error_info__init(&info);
    snprintf(layer, sizeof(layer), "%" PRId32, err->layer);
    snprintf(expert, sizeof(expert), "%" PRId32, err->expert);
    if (err->layer >= 0) add_metadata(&data, "layer", layer);
    if (err->expert >= 0) add_metadata(&data, "expert", expert);
    if (err->node[0] != '\0') add_metadata(&data, "node", err->node);
    info.reason =
        sy_wire_lend_text(err->reason[0] != '\0' ? err->reason : sy_status_name(err->status));
    info.domain = sy_wire_lend_text(ERROR_DOMAIN);
    info.n_metadata = data.n;
    info.metadata = data.pointer;
    SY_ASSERT(google__rpc__error_info__get_packed_size(&info) <= ERROR_INFO_BYTES);
    return google__rpc__error_info__pack(&info, out);
}

size_t sy_wire_error_details(const sy_error *err, void *out, size_t cap)
{
    Google__Rpc__Status status;
    Google__Rpc__PackedAny any;
    Google__Rpc__PackedAny *details[] = {&any};
    uint8_t info[ERROR_INFO_BYTES];

    google__rpc__status__init(&status);
    google__rpc__packed_any__init(&any);
    any.type_url = sy_wire_lend_text(ERROR_INFO_URL);
    any.value = (ProtobufCBinaryData){pack_error_info(info, err), info};
    status.code = sy_status_code(err->status);
    status.message = sy_wire_lend_text(err->message);
    status.n_details = SY_COUNT_OF(details);
    status.details = details;
    if (google__rpc__status__get_packed_size(&status) > cap) return 0;
    return google__rpc__status__pack(&status, out);
}

/* -1: not a decimal number that fits. */
static int32_t parse_id(const char *s)
{
    char *end;
    long long value;

    if (*s < '0' || *s > '9') return -1; /* strtoll would take a sign and spaces */
    value = strtoll(s, &end, 10);
    return *end == '\0' && value <= INT32_MAX ? (int32_t)value : -1;
}

static void read_error_info(sy_error *err, sy_wire_in *in, const Google__Rpc__PackedAny *any)
{
    const sy_iov bytes = {any->value.data, any->value.len};
    const Google__Rpc__ErrorInfo *info =
        sy_wire_unpack(in, &google__rpc__error_info__descriptor, &bytes, 1);

    if (info == NULL || strcmp(info->domain, ERROR_DOMAIN) != 0) return;
    sy_error_where(err, sy_wire_name(in, "reason", info->reason), -1, -1, NULL);
    for (size_t i = 0; i < info->n_metadata; i++) {
        const char *key = info->metadata[i]->key;
        const char *value = sy_wire_name(in, "metadata", info->metadata[i]->value);

        if (strcmp(key, "layer") == 0) sy_error_where(err, NULL, parse_id(value), -1, NULL);
        if (strcmp(key, "expert") == 0) sy_error_where(err, NULL, -1, parse_id(value), NULL);
        if (strcmp(key, "node") == 0) sy_error_where(err, NULL, -1, -1, value);
    }
}

/* The caller's status and message are kept: they come from gRPC itself, or know more than a code
 * does. */
void sy_wire_error_from_details(sy_error *err, const void *data, size_t n)
{
    const sy_iov bytes = {data, n};
    const Google__Rpc__Status *status;
    sy_error merged, told;
    sy_arena arena;
    sy_wire_in in;

    if (err == NULL) return;
    merged = *err;
    sy_arena_init(&arena, DETAILS_MEMORY_BYTES);
    sy_wire_in_init(&in, &arena, NULL);
    status = sy_wire_unpack(&in, &google__rpc__status__descriptor, &bytes, 1);
    if (status == NULL) goto out;
    if (merged.status == SY_OK) merged.status = sy_status_from_code(status->code);
    if (merged.message[0] == '\0') {
        sy_error_set(&told, merged.status, "%s",
                     sy_wire_text(&in, "message", status->message, SIZE_MAX));
        memcpy(merged.message, told.message, sizeof(merged.message));
    }
    for (size_t i = 0; i < status->n_details; i++) {
        const Google__Rpc__PackedAny *any = status->details[i];

        if (strcmp(any->type_url, ERROR_INFO_URL) == 0) read_error_info(&merged, &in, any);
    }
    if (in.status == SY_OK) *err = merged;
out:
    sy_arena_free(&arena);
}
