/* sy_st_format.h - the element types of the safetensors format, for its reader and its writer.
 * Private to lib/model. */
#ifndef SY_ST_FORMAT_H
#define SY_ST_FORMAT_H

#include "sy_dtype.h"

#define SY_ST_METADATA_KEY "__metadata__" /* the one name that is no tensor's */

typedef struct sy_st_dtype {
    const char *name; /* as the header spells it */
    uint32_t bits;    /* of one element */
    sy_dtype dtype;   /* SY_DTYPE_NONE: no kernel reads it */
} sy_st_dtype;

/* NULL: the format has no such type. A type that stands later in memory is wider or newer: the
 * writer's order of ranks. */
const sy_st_dtype *sy_st_dtype_by_name(const char *name);
const sy_st_dtype *sy_st_dtype_of(sy_dtype dtype);

#endif
