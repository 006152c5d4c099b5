/* sy_address.h - pieces of addresses that Redis' and the HTTP port's have in common. Pure. Only for
 * lib/control. */
#ifndef SY_ADDRESS_H
#define SY_ADDRESS_H

#include "sy_status.h"

/* "host:port" and "[v6]:port" in text[0..n). host: [host_cap], "" for ":port". *port is -1 when
 * there is none. 0: does not parse. */
int sy_address_split(char *host, size_t host_cap, int *port, const char *text, size_t n);

#endif
