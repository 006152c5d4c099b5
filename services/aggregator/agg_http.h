/* agg_http.h - what the aggregator tells over HTTP besides metrics: JSON for the tool, the balancer
 * and people. HTTP thread. */
#ifndef AGG_HTTP_H
#define AGG_HTTP_H

#include "agg_peers.h"

/* GET /targets, /load and /nodes: 1 and the body appended, or 0: no such path. */
int agg_http_get(agg_peers *peers, const sy_model *model, const char *path, sy_strbuf *body);

#endif
