/* generate_load.c - threads that call, one blocking call each, and the arithmetic over what they
 * saw. */
#include "generate_load.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "tool_print.h"
#include "tool_report.h"

typedef struct answer { /* to one prompt: the first that came is what the others must equal */
    tool_result result;
    int is_known;
} answer;

typedef struct load {
    const generate_load_config *config;
    pthread_mutex_t mutex; /* guards what follows */
    size_t n_started;
    answer *answer;              /* [prompts] */
    double *first_ms, *total_ms; /* [n_ok] of [n_requests] */
    size_t n_ok, n_failed, n_differed;
    size_t n_by_status[SY_N_STATUS];
    uint64_t n_tokens;
    sy_error first_error;
    int64_t wall_us;
} load;

typedef struct worker {
    load *load;
    size_t slot;
    pthread_t thread;
} worker;

/* ---- running ---- */

/* The next request's number; 0 when there is none left. */
static int take_request(load *self, size_t *out)
{
    int is_taken = 0;

    pthread_mutex_lock(&self->mutex);
    if (self->n_started < self->config->n_requests) {
        *out = self->n_started++;
        is_taken = 1;
    }
    pthread_mutex_unlock(&self->mutex);
    return is_taken;
}

static void record_failure(load *self, const sy_error *err)
{
    if (self->n_failed++ == 0) self->first_error = *err;
    self->n_by_status[SY_MIN((size_t)err->status, (size_t)SY_N_STATUS - 1)]++;
    if (err->status == SY_ECANCELLED) self->n_started = self->config->n_requests; /* Ctrl-C */
}

/* Takes the result over. Mutex held. */
static void record(load *self, size_t request_id, client_generation *gen)
{
    answer *known = &self->answer[request_id % self->config->prompts->n];

    if (gen->result.error.status != SY_OK) {
        record_failure(self, &gen->result.error);
    } else {
        const int64_t first_us = gen->first_token_us == 0 ? gen->ended_us : gen->first_token_us;

        self->first_ms[self->n_ok] = (double)(first_us - gen->started_us) / 1e3;
        self->total_ms[self->n_ok++] = (double)(gen->ended_us - gen->started_us) / 1e3;
        self->n_tokens += gen->result.n_tokens;
        if (!known->is_known) {
            known->result = gen->result;
            known->is_known = 1;
            return;
        }
        if (!tool_result_equal(&known->result, &gen->result)) self->n_differed++;
    }
    tool_result_free(&gen->result);
}

static void *work(void *arg)
{
    const worker *me = arg;
    load *self = me->load;
    const generate_load_config *c = self->config;
    size_t id;

    while (take_request(self, &id)) {
        sy_generate_request request =
            tool_request(c->sampling, &c->prompts->item[id % c->prompts->n]);
        client_generation gen;

        request.model = c->model;
        client_generate(c->client, me->slot, &request, NULL, &gen);
        pthread_mutex_lock(&self->mutex);
        record(self, id, &gen);
        pthread_mutex_unlock(&self->mutex);
    }
    return NULL;
}

static sy_status run_workers(load *self, worker *workers, sy_error *err)
{
    const int64_t start_us = sy_clock_us();
    size_t n = 0;
    sy_status st = SY_OK;

    while (n < self->config->n_calls && st == SY_OK) {
        workers[n] = (worker){.load = self, .slot = n};
        if (pthread_create(&workers[n].thread, NULL, work, &workers[n]) == 0)
            n++;
        else
            st = sy_error_set(err, SY_EIO, "no thread for call %zu", n + 1);
    }
    if (st != SY_OK) client_interrupt(self->config->client);
    for (size_t i = 0; i < n; i++) pthread_join(workers[i].thread, NULL);
    self->wall_us = sy_clock_us() - start_us;
    return st;
}

/* ---- printing ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Nearest rank in n sorted values, 0 for none. percent: 1 to 100. */
static double percentile(const double *sorted, size_t n, size_t percent)
{
    return n == 0 ? 0 : sorted[(n * percent + 99) / 100 - 1];
}

static double per_second(const load *self, uint64_t n)
{
    return self->wall_us == 0 ? 0 : (double)n * 1e6 / (double)self->wall_us;
}

static void print_latency(const char *what, const double *sorted, size_t n)
{
    printf("%s p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, worst %.1f ms\n", what,
           percentile(sorted, n, 50), percentile(sorted, n, 90), percentile(sorted, n, 99),
           percentile(sorted, n, 100));
}

static void print_text(const load *self)
{
    printf("%zu requests, %zu at a time, in %.2f s: %zu failed, %zu answers differed\n",
           self->n_ok + self->n_failed, self->config->n_calls, (double)self->wall_us / 1e6,
           self->n_failed, self->n_differed);
    printf("throughput    %.1f requests/s, %.1f tokens/s\n", per_second(self, self->n_ok),
           per_second(self, self->n_tokens));
    print_latency("first token  ", self->first_ms, self->n_ok);
    print_latency("whole answer ", self->total_ms, self->n_ok);
}

static json_t *latency_json(const double *sorted, size_t n)
{
    return json_pack("{s:f,s:f,s:f,s:f}", "p50", percentile(sorted, n, 50), "p90",
                     percentile(sorted, n, 90), "p99", percentile(sorted, n, 99), "max",
                     percentile(sorted, n, 100));
}

static json_t *errors_json(const load *self)
{
    json_t *errors = json_object();

    for (size_t i = 0; i < SY_N_STATUS; i++)
        if (self->n_by_status[i] > 0)
            json_object_set_new(errors, sy_status_name((sy_status)i),
                                json_integer((json_int_t)self->n_by_status[i]));
    return errors;
}

/* One result a prompt, null for a prompt that got no answer. */
static json_t *outputs_json(const load *self)
{
    const tool_result_origin origin = {-1, NULL};
    json_t *outputs = json_array();

    for (size_t i = 0; i < self->config->prompts->n; i++)
        json_array_append_new(outputs, self->answer[i].is_known
                                           ? tool_result_json(&self->answer[i].result, &origin)
                                           : json_null());
    return outputs;
}

static int print_json(const load *self)
{
    const json_int_t n_requests = (json_int_t)self->n_ok + (json_int_t)self->n_failed;

    return tool_json_print(json_pack(
        "{s:I,s:I,s:I,s:I,s:f,s:I,s:f,s:f,s:o,s:o,s:o,s:o}", "requests", n_requests, "concurrency",
        (json_int_t)self->config->n_calls, "failed", (json_int_t)self->n_failed, "differed",
        (json_int_t)self->n_differed, "wall_ms", (double)self->wall_us / 1e3, "generated_tokens",
        (json_int_t)self->n_tokens, "requests_per_s", per_second(self, self->n_ok), "tokens_per_s",
        per_second(self, self->n_tokens), "first_token_ms",
        latency_json(self->first_ms, self->n_ok), "total_ms",
        latency_json(self->total_ms, self->n_ok), "errors", errors_json(self), "outputs",
        outputs_json(self)));
}

static int print(load *self)
{
    int code;

    qsort(self->first_ms, self->n_ok, sizeof(double), ascending);
    qsort(self->total_ms, self->n_ok, sizeof(double), ascending);
    if (self->config->sampling->json) {
        code = print_json(self);
    } else {
        print_text(self);
        code = tool_flush_stdout();
    }
    if (self->n_failed > 0) {
        sy_error_prefix(&self->first_error, "%zu of %zu requests failed, the first", self->n_failed,
                        self->n_ok + self->n_failed);
        code = tool_fail(&self->first_error);
    }
    if (self->n_differed > 0) {
        sy_error err = {0};

        sy_error_clear(&err);
        sy_error_set(&err, SY_EDATALOSS, "%zu answers differ from others to the same request",
                     self->n_differed);
        code = tool_fail(&err);
    }
    return code;
}

static sy_status write_logits(const load *self, sy_error *err)
{
    const size_t n = self->config->prompts->n;
    tool_result *results = calloc(n, sizeof(*results));
    sy_status st;

    if (results == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to write the logits");
    for (size_t i = 0; i < n; i++) results[i] = self->answer[i].result;
    st = tool_results_write_logits(self->config->sampling->logits_out, results, n, err);
    free(results);
    return st;
}

int generate_load_run(const generate_load_config *config)
{
    load self = {.config = config};
    worker *workers = calloc(config->n_calls, sizeof(*workers));
    sy_error err = {0};
    sy_status st;
    int code = 0;

    sy_error_clear(&err);
    pthread_mutex_init(&self.mutex, NULL);
    self.answer = calloc(config->prompts->n, sizeof(*self.answer));
    self.first_ms = calloc(config->n_requests, sizeof(double));
    self.total_ms = calloc(config->n_requests, sizeof(double));
    if (workers == NULL || self.answer == NULL || self.first_ms == NULL || self.total_ms == NULL) {
        st = sy_error_set(&err, SY_ENOMEM, "no memory for %zu requests", config->n_requests);
        goto out;
    }
    SY_TRY(run_workers(&self, workers, &err));
    code = print(&self);
    if (code == 0 && config->sampling->logits_out != NULL) st = write_logits(&self, &err);
out:
    if (st != SY_OK) code = tool_fail(&err);
    for (size_t i = 0; self.answer != NULL && i < config->prompts->n; i++)
        if (self.answer[i].is_known) tool_result_free(&self.answer[i].result);
    free(self.answer);
    free(self.first_ms);
    free(self.total_ms);
    free(workers);
    pthread_mutex_destroy(&self.mutex);
    return code;
}
