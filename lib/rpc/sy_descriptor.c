/* sy_descriptor.c - a FileDescriptorSet, walked in place: just enough of descriptor.proto for
 * server reflection. Never reads past a range, whatever the bytes are; a malformed part reads as
 * the end. */
#include "sy_rpc_internal.h"

#include <string.h>

/* Field numbers of google/protobuf/descriptor.proto. A name is field 1 of everything. */
enum { SET_FILE = 1, NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3 };

enum scope {
    SCOPE_NONE,
    SCOPE_FILE,
    SCOPE_MESSAGE,
    SCOPE_ENUM,
    SCOPE_SERVICE,
    SCOPE_LEAF,
    N_SCOPES
};

#define FIELDS_MAX 9
static const uint8_t children[N_SCOPES][FIELDS_MAX] = {
    [SCOPE_FILE] = {[4] = SCOPE_MESSAGE, [5] = SCOPE_ENUM, [6] = SCOPE_SERVICE, [7] = SCOPE_LEAF},
    [SCOPE_MESSAGE] = {[2] = SCOPE_LEAF,
                       [3] = SCOPE_MESSAGE,
                       [4] = SCOPE_ENUM,
                       [6] = SCOPE_LEAF,
                       [8] = SCOPE_LEAF},
    [SCOPE_ENUM] = {[2] = SCOPE_LEAF},
    [SCOPE_SERVICE] = {[2] = SCOPE_LEAF},
};

static int read_varint(rpc_range *rest, uint64_t *out)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64 && rest->len > 0; shift += 7) {
        const uint8_t byte = *rest->data;

        rest->data++;
        rest->len--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

static int skip(rpc_range *rest, uint64_t n, rpc_range *skipped)
{
    if (n > rest->len) return 0;
    *skipped = (rpc_range){rest->data, (size_t)n};
    rest->data += n;
    rest->len -= (size_t)n;
    return 1;
}

/* The next field; *value is empty for all but length-delimited ones. 0: the end, or malformed. */
static int next_field(rpc_range *rest, uint64_t *field, rpc_range *value)
{
    uint64_t key, n;
    rpc_range fixed;

    *value = (rpc_range){NULL, 0};
    if (!read_varint(rest, &key)) return 0;
    *field = key >> 3;
    switch (key & 7) {
    case 0: return read_varint(rest, &n);
    case 1: return skip(rest, 8, &fixed);
    case 2: return read_varint(rest, &n) && skip(rest, n, value);
    case 5: return skip(rest, 4, &fixed);
    default: return 0;
    }
}

/* The n-th length-delimited occurrence of a field. */
static int find_field(rpc_range *out, rpc_range in, uint64_t wanted, size_t n)
{
    rpc_range value;
    uint64_t field;

    while (next_field(&in, &field, &value)) {
        if (field != wanted || value.data == NULL || n-- > 0) continue;
        *out = value;
        return 1;
    }
    return 0;
}

int rpc_descriptor_file(rpc_range *file, rpc_range set, size_t n)
{
    return find_field(file, set, SET_FILE, n);
}

int rpc_descriptor_name(rpc_range *name, rpc_range file)
{
    return find_field(name, file, NAME, 0);
}

int rpc_descriptor_dependency(rpc_range *name, rpc_range file, size_t n)
{
    return find_field(name, file, FILE_DEPENDENCY, n);
}

/* Bounded: every level but an enum's takes a name off the symbol, and enums hold only leaves. */
static int defines(rpc_range in, enum scope scope, const char *symbol)
{
    rpc_range child, name;
    uint64_t field;

    while (next_field(&in, &field, &child)) {
        const enum scope kind =
            field < FIELDS_MAX ? (enum scope)children[scope][field] : SCOPE_NONE;

        if (kind == SCOPE_NONE || child.data == NULL) continue;
        if (kind == SCOPE_ENUM && defines(child, kind, symbol))
            return 1; /* values are their enum's siblings */
        if (!find_field(&name, child, NAME, 0) ||
            strncmp(symbol, (const char *)name.data, name.len) != 0)
            continue;
        if (symbol[name.len] == '\0') return name.len > 0;
        if (symbol[name.len] != '.' || kind == SCOPE_LEAF || kind == SCOPE_ENUM) continue;
        if (defines(child, kind, symbol + name.len + 1)) return 1;
    }
    return 0;
}

int rpc_descriptor_defines(rpc_range file, const char *symbol)
{
    rpc_range package;

    if (find_field(&package, file, FILE_PACKAGE, 0) && package.len > 0) {
        if (strncmp(symbol, (const char *)package.data, package.len) != 0) return 0;
        if (symbol[package.len] != '.') return 0;
        symbol += package.len + 1;
    }
    return defines(file, SCOPE_FILE, symbol);
}
