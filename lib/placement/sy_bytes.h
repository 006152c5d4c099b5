/* sy_bytes.h - how bytes that nobody has checked are shown to a person. Only for lib/placement. */
#ifndef SY_BYTES_H
#define SY_BYTES_H

#include "sy_base.h"

/* out: [cap], cap >= 4. Printable ASCII as it stands, any other byte as \xNN; "..." where it was
 * cut to fit. Returns out. */
char *sy_bytes_show(char *out, size_t cap, const char *bytes, size_t n);

#endif
