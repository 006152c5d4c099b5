/* sy_metrics.c - the registry of metrics and its text. The registry is a list in the order in which
 * it is printed; metrics are never removed, so a handle may be used from any thread for ever.
 * Updates take no lock. */
#include "sy_metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_text.h"

#define HOOKS_MAX 16

typedef enum metric_kind { COUNTER, GAUGE, HISTOGRAM } metric_kind;

static const char *const kind_name[] = {"counter", "gauge", "histogram"};

/* Upper bounds; what is above the last one counts only in +Inf. */
static const int64_t bucket_us[] = {
    10,      20,      50,       100,      200,      500,      1000,   2000,
    5000,    10000,   20000,    50000,    100000,   200000,   500000, 1000000,
    2000000, 5000000, 10000000, 20000000, 50000000, 60000000,
};
#define N_BUCKETS (SY_COUNT_OF(bucket_us) + 1)

typedef struct histogram {
    _Atomic uint64_t sum_us;
    _Atomic uint64_t count[N_BUCKETS]; /* not cumulative; the last one is for +Inf */
} histogram;

struct sy_metric {
    sy_metric *next;
    const char *name;
    const char *help;
    char *labels; /* well-formed, without braces; "": none */
    metric_kind kind;
    _Atomic double value; /* counter, gauge */
    histogram *histogram; /* NULL for the others */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sy_metric *first_metric; /* by name, then by labels */
static struct {
    void (*fn)(void *arg);
    void *arg;
} hooks[HOOKS_MAX];
static size_t n_hooks;

static int is_name_char(char c, int is_first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!is_first && c >= '0' && c <= '9');
}

static int is_metric_name(const char *name)
{
    for (const char *p = name; *p != '\0'; p++) {
        if (*p != ':' && !is_name_char(*p, p == name)) return 0;
    }
    return *name != '\0';
}

/* The first byte after `"value"`, whose opening quote is at p; NULL when the value is malformed. */
static const char *skip_value(const char *p)
{
    if (*p != '"') return NULL;
    p++;
    while (*p != '"') {
        const size_t n = sy_utf8_char(p, strnlen(p, 4));

        if (n == 0 || *p == '\n') return NULL; /* n is 0 at the end as well */
        if (*p == '\\') {
            p++;
            if (*p != '\\' && *p != '"' && *p != 'n') return NULL;
        }
        p += n;
    }
    return p + 1;
}

static int are_labels(const char *p)
{
    for (;;) {
        const char *name = p;

        while (is_name_char(*p, p == name)) p++;
        if (p == name || *p != '=') return 0;
        p = skip_value(p + 1);
        if (p == NULL) return 0;
        if (*p == '\0') return 1;
        if (*p != ',') return 0;
        p++;
    }
}

static void put_escaped(sy_strbuf *out, const char *s, int with_quotes)
{
    size_t n = strlen(s);

    while (n > 0) {
        const size_t len = sy_utf8_char(s, n);

        if (len == 0) {
            sy_strbuf_puts(out, "\xef\xbf\xbd");
        } else if (*s == '\n') {
            sy_strbuf_puts(out, "\\n");
        } else if (*s == '\\' || (with_quotes && *s == '"')) {
            sy_strbuf_append(out, "\\", 1);
            sy_strbuf_append(out, s, 1);
        } else {
            sy_strbuf_append(out, s, len);
        }
        s += len > 0 ? len : 1;
        n -= len > 0 ? len : 1;
    }
}

/* A copy that may be printed. One malformed line would make a scraper refuse all of them, so labels
 * with a value that was not escaped become the value of a label of their own: visible, and still
 * told from others. */
static char *copy_labels(const char *labels)
{
    sy_strbuf copy;

    sy_strbuf_init(&copy);
    if (labels != NULL && labels[0] != '\0') {
        if (are_labels(labels)) {
            sy_strbuf_puts(&copy, labels);
        } else {
            sy_strbuf_puts(&copy, "malformed=\"");
            put_escaped(&copy, labels, 1);
            sy_strbuf_puts(&copy, "\"");
        }
    }
    return sy_strbuf_detach(&copy);
}

/* Takes labels over. NULL: no memory. */
static sy_metric *metric_new(const char *name, const char *help, char *labels, metric_kind kind)
{
    sy_metric *self = calloc(1, sizeof(*self));

    if (self == NULL) goto failed;
    if (kind == HISTOGRAM) {
        self->histogram = calloc(1, sizeof(*self->histogram));
        if (self->histogram == NULL) goto failed;
    }
    self->name = name;
    self->help = help != NULL ? help : "";
    self->labels = labels;
    self->kind = kind;
    return self;
failed:
    free(self);
    free(labels);
    return NULL;
}

static sy_metric *metric_get(const char *name, const char *help, const char *labels_text,
                             metric_kind kind)
{
    char *labels = copy_labels(labels_text);
    sy_metric **link = &first_metric;
    sy_metric *self = NULL;
    int order = 1;

    SY_ASSERT(is_metric_name(name));
    if (labels == NULL) return NULL;
    pthread_mutex_lock(&lock);
    for (; *link != NULL; link = &(*link)->next) {
        order = strcmp((*link)->name, name);
        SY_ASSERT(order != 0 || (*link)->kind == kind); /* a family has one type */
        if (order == 0) order = strcmp((*link)->labels, labels);
        if (order >= 0) break;
    }
    if (*link != NULL && order == 0) {
        self = *link;
        free(labels);
    } else {
        self = metric_new(name, help, labels, kind);
        if (self != NULL) {
            self->next = *link;
            *link = self;
        }
    }
    pthread_mutex_unlock(&lock);
    return self;
}

sy_metric *sy_metric_counter(const char *name, const char *help, const char *labels)
{
    return metric_get(name, help, labels, COUNTER);
}

sy_metric *sy_metric_gauge(const char *name, const char *help, const char *labels)
{
    return metric_get(name, help, labels, GAUGE);
}

sy_metric *sy_metric_histogram(const char *name, const char *help, const char *labels)
{
    return metric_get(name, help, labels, HISTOGRAM);
}

void sy_metric_add(sy_metric *metric, double value)
{
    double before;

    if (metric == NULL) return;
    SY_ASSERT(metric->kind != HISTOGRAM);
    /* A counter that falls looks like a restart, and a NaN never goes away again. */
    if (metric->kind == COUNTER && !(value >= 0)) return;
    before = atomic_load_explicit(&metric->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&metric->value, &before, before + value,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

void sy_metric_set(sy_metric *metric, double value)
{
    if (metric == NULL) return;
    SY_ASSERT(metric->kind == GAUGE);
    atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

void sy_metric_observe_us(sy_metric *metric, int64_t value_us)
{
    const int64_t positive_us = value_us > 0 ? value_us : 0;
    size_t low = 0;
    size_t high = SY_COUNT_OF(bucket_us);

    if (metric == NULL) return;
    SY_ASSERT(metric->kind == HISTOGRAM);
    while (low < high) { /* to the first bound that is not below the value */
        const size_t middle = (low + high) / 2;

        if (bucket_us[middle] < positive_us) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    atomic_fetch_add_explicit(&metric->histogram->count[low], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&metric->histogram->sum_us, (uint64_t)positive_us,
                              memory_order_relaxed);
}

double sy_metric_value(const sy_metric *metric)
{
    uint64_t count = 0;

    if (metric == NULL) return 0;
    if (metric->kind != HISTOGRAM) {
        return atomic_load_explicit(&metric->value, memory_order_relaxed);
    }
    for (size_t i = 0; i < N_BUCKETS; i++) {
        count += atomic_load_explicit(&metric->histogram->count[i], memory_order_relaxed);
    }
    return (double)count;
}

/* The shortest of two forms that reads back as the same number. */
static void put_number(sy_strbuf *out, double value)
{
    char text[40];

    if (isnan(value)) {
        sy_strbuf_puts(out, "NaN");
    } else if (isinf(value)) {
        sy_strbuf_puts(out, value > 0 ? "+Inf" : "-Inf");
    } else {
        snprintf(text, sizeof(text), "%.15g", value);
        if (strtod(text, NULL) != value) snprintf(text, sizeof(text), "%.17g", value);
        sy_strbuf_puts(out, text);
    }
}

/* le: the bucket's bound, or NULL for a line without one. */
static void put_line(sy_strbuf *out, const sy_metric *metric, const char *suffix, const char *le,
                     double value)
{
    const char *comma = metric->labels[0] != '\0' && le != NULL ? "," : "";

    sy_strbuf_puts(out, metric->name);
    sy_strbuf_puts(out, suffix);
    if (metric->labels[0] != '\0' || le != NULL) {
        sy_strbuf_puts(out, "{");
        sy_strbuf_puts(out, metric->labels);
        if (le != NULL) sy_strbuf_printf(out, "%sle=\"%s\"", comma, le);
        sy_strbuf_puts(out, "}");
    }
    sy_strbuf_puts(out, " ");
    put_number(out, value);
    sy_strbuf_puts(out, "\n");
}

/* The count is the sum of the buckets as they were read, so that it always equals +Inf's, whatever
 * is observed meanwhile. */
static void put_histogram(sy_strbuf *out, const sy_metric *metric)
{
    const histogram *h = metric->histogram;
    const uint64_t sum_us = atomic_load_explicit(&h->sum_us, memory_order_relaxed);
    uint64_t count = 0;
    char le[32];

    for (size_t i = 0; i < N_BUCKETS; i++) {
        count += atomic_load_explicit(&h->count[i], memory_order_relaxed);
        if (i < SY_COUNT_OF(bucket_us)) {
            snprintf(le, sizeof(le), "%g", (double)bucket_us[i] / 1e6);
        } else {
            snprintf(le, sizeof(le), "+Inf");
        }
        put_line(out, metric, "_bucket", le, (double)count);
    }
    put_line(out, metric, "_sum", NULL, (double)sum_us / 1e6);
    put_line(out, metric, "_count", NULL, (double)count);
}

static void call_hooks(void)
{
    size_t n;

    pthread_mutex_lock(&lock);
    n = n_hooks;
    pthread_mutex_unlock(&lock);
    /* Without the lock, for a hook may make a metric. Hooks are only ever added. */
    for (size_t i = 0; i < n; i++) hooks[i].fn(hooks[i].arg);
}

void sy_metrics_render(sy_strbuf *out)
{
    const char *family = "";

    call_hooks();
    pthread_mutex_lock(&lock);
    for (const sy_metric *metric = first_metric; metric != NULL; metric = metric->next) {
        if (strcmp(family, metric->name) != 0) {
            family = metric->name;
            sy_strbuf_printf(out, "# HELP %s ", family);
            put_escaped(out, metric->help, 0);
            sy_strbuf_printf(out, "\n# TYPE %s %s\n", family, kind_name[metric->kind]);
        }
        if (metric->kind == HISTOGRAM) {
            put_histogram(out, metric);
        } else {
            put_line(out, metric, "", NULL,
                     atomic_load_explicit(&metric->value, memory_order_relaxed));
        }
    }
    pthread_mutex_unlock(&lock);
}

void sy_metrics_on_render(void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    SY_ASSERT(n_hooks < HOOKS_MAX);
    hooks[n_hooks].fn = fn;
    hooks[n_hooks].arg = arg;
    n_hooks++;
    pthread_mutex_unlock(&lock);
}
