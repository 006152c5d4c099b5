/* up_result.h - what `switchyard up` says once everything is ready. */
#ifndef UP_RESULT_H
#define UP_RESULT_H

#include "sy_strbuf.h"
#include "up_cluster.h"

/* Append to out. The JSON asks the processes, so it takes as long as they take to answer. */
void up_result_json(sy_strbuf *out, const up_cluster *cluster);
void up_result_text(sy_strbuf *out, const up_cluster *cluster, int64_t took_us, int is_detached);

#endif
