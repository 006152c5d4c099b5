/* sy_metrics.h - counters, gauges and histograms, and their Prometheus text. Handles are made at
 * start and live as long as the process; updating one is an atomic add from any thread. Names
 * follow Prometheus: base unit in the name, _total for counters. */
#ifndef SY_METRICS_H
#define SY_METRICS_H

#include "sy_strbuf.h"

typedef struct sy_metric sy_metric;

/* labels: `tier="router",node="router-0"` without braces, or NULL. The same name and labels give
 * the same handle. name and help are borrowed for good; labels are copied. NULL only when there is
 * no memory, and every update accepts NULL. */
sy_metric *sy_metric_counter(const char *name, const char *help, const char *labels);
sy_metric *sy_metric_gauge(const char *name, const char *help, const char *labels);
/* Seconds; buckets from 10 us to 60 s, three a decade. */
sy_metric *sy_metric_histogram(const char *name, const char *help, const char *labels);

void sy_metric_add(sy_metric *metric, double value);            /* counter or gauge */
void sy_metric_set(sy_metric *metric, double value);            /* gauge */
void sy_metric_observe_us(sy_metric *metric, int64_t value_us); /* histogram */
double sy_metric_value(const sy_metric *metric); /* counter, gauge; histogram: the count */
void sy_metrics_render(
    sy_strbuf *out); /* text exposition format 0.0.4, families together, sorted by name */
/* Called at the start of each render, to set gauges that are cheaper to read than to keep. At most
 * 16, at start-up. */
void sy_metrics_on_render(void (*fn)(void *arg), void *arg);

#endif
