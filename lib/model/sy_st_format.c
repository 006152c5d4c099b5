/* sy_st_format.c - one table. Its order is the reference writer's order of types, lowest rank
 * first. */
#include "sy_st_format.h"

#include <string.h>

static const sy_st_dtype dtypes[] = {
    {"BOOL", 8, SY_DTYPE_NONE},
    {"F4", 4, SY_DTYPE_NONE},
    {"F6_E2M3", 6, SY_DTYPE_NONE},
    {"F6_E3M2", 6, SY_DTYPE_NONE},
    {"U8", 8, SY_DTYPE_NONE},
    {"I8", 8, SY_DTYPE_NONE},
    {"F8_E5M2", 8, SY_DTYPE_NONE},
    {"F8_E4M3", 8, SY_DTYPE_NONE},
    {"F8_E8M0", 8, SY_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, SY_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, SY_DTYPE_NONE},
    {"I16", 16, SY_DTYPE_NONE},
    {"U16", 16, SY_DTYPE_NONE},
    {"F16", 16, SY_F16},
    {"BF16", 16, SY_BF16},
    {"I32", 32, SY_DTYPE_NONE},
    {"U32", 32, SY_DTYPE_NONE},
    {"F32", 32, SY_F32},
    {"C64", 64, SY_DTYPE_NONE},
    {"F64", 64, SY_DTYPE_NONE},
    {"I64", 64, SY_DTYPE_NONE},
    {"U64", 64, SY_DTYPE_NONE},
};

const sy_st_dtype *sy_st_dtype_by_name(const char *name)
{
    for (size_t i = 0; i < SY_COUNT_OF(dtypes); i++) {
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    }
    return NULL;
}

const sy_st_dtype *sy_st_dtype_of(sy_dtype dtype)
{
    for (size_t i = 0; i < SY_COUNT_OF(dtypes) && dtype != SY_DTYPE_NONE; i++) {
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    }
    return NULL;
}
