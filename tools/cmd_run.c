/* cmd_run.c - `switchyard run`: the whole model in this process, through the same libraries that
 * the tiers use. Also the reference that the tiers' answers are compared with, bit by bit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "sy_backend_load.h"
#include "sy_chat_encode.h"
#include "sy_clock.h"
#include "sy_devices.h"
#include "sy_engine.h"
#include "sy_precision_text.h"
#include "tool_interrupt.h"
#include "tool_print.h"
#include "tool_result.h"
#include "tool_sampling.h"

enum { RUNNING_MAX = 64, EXIT_INTERRUPTED = 130, POLICIES_MAX = 3 + 2 * SY_PRECISION_POLICIES_MAX };

typedef struct options {
    tool_sampling sampling;
    const char *model, *kernels, *weights, *activations, *devices, *trunk_device;
    sy_precision precision; /* what --weights and --activations say */
    int64_t threads;
    int allow_nan;
} options;

struct run;

/* One prompt's answer. The engine's thread adds to it, the main thread prints it. */
typedef struct generation {
    struct run *run;
    sy_ids prompt;
    tool_result result;
    uint64_t id; /* the engine's; 0: it never took it */
    int has_ended;
} generation;

typedef struct run {
    const options *options;
    tool_prompts prompts;
    sy_model *model;
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_pool *pool;
    sy_tokenizer *tokenizer;
    sy_trunk *trunk;
    sy_moe_local *experts;
    sy_engine *engine;
    double load_ms;
    /* The departures from exactness that were asked for. */
    char policy[POLICIES_MAX][SY_PRECISION_POLICY_BYTES];
    uint32_t n_policies;
    pthread_mutex_t mutex; /* guards the generations once they are submitted */
    pthread_cond_t news;
    generation *generation; /* [prompts.n] */
} run;

/* ---- options ---- */

static int parse(options *o, int argc, char **argv)
{
    const sy_arg own[] = {
        {"model", "DIR", "a checkpoint: a directory in Hugging Face's layout, or a .gguf file",
         SY_ARG_STRING, &o->model, 0, 0},
        {"threads", "N", "threads that compute; 0: one a core", SY_ARG_INT, &o->threads, 0, 1024},
        {"kernels", "NAME", "auto, ref, avx2 or avx512: the same bits, other speeds", SY_ARG_STRING,
         &o->kernels, 0, 0},
        {"weights", "FORMAT", SY_WEIGHTS_HELP, SY_ARG_STRING, &o->weights, 0, 0},
        {"activations", "TYPE", SY_ACTIVATIONS_HELP, SY_ARG_STRING, &o->activations, 0, 0},
        {"devices", "LIST",
         "what computes the experts: cpu:0, or GPUs, which have them in turn: cuda:0,cuda:1, or "
         "cuda for all of them; default cpu:0",
         SY_ARG_STRING, &o->devices, 0, 0},
        {"trunk-device", "NAME",
         "what computes the rest of the model, such as cuda:0; default the first of --devices",
         SY_ARG_STRING, &o->trunk_device, 0, 0},
        {"allow-nan", NULL, TOOL_ALLOW_NAN_HELP, SY_ARG_FLAG, &o->allow_nan, 0, 0},
    };
    sy_arg args[SY_COUNT_OF(own) + TOOL_SAMPLING_ARGS];
    sy_error err = {0};

    *o = (options){
        .kernels = "auto", .weights = "as-stored", .activations = "f32", .devices = "cpu:0"};
    memcpy(args, own, sizeof(own));
    tool_sampling_args(args + SY_COUNT_OF(own), &o->sampling);
    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard run --model DIR --prompt TEXT [options]\n\n"
                      "Generates text in this process: no gRPC, no Redis, every expert local.",
                      NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err) == 0 ? -1 : 2;
    if (o->model == NULL) return tool_bad_option("--model DIR is missing");
    if (sy_precision_parse(&o->precision, o->weights, o->activations, &err) != SY_OK)
        return tool_bad_option("%s", err.message);
    return tool_sampling_check(&o->sampling);
}

/* ---- loading ---- */

static void add_policy(run *self, const char *name, const char *arithmetic)
{
    if (strcmp(arithmetic, sy_arithmetic_name(self->options->precision.activations)) == 0) return;
    snprintf(self->policy[self->n_policies++], sizeof(self->policy[0]), "%s=%.30s", name,
             arithmetic);
}

/* As an aggregator lists them. */
static void list_policies(run *self)
{
    const options *o = self->options;
    const sy_precision trunk = sy_trunk_precision(self->trunk);

    if (o->sampling.experts_per_token > 0 && o->sampling.experts_per_token < self->desc->top_k)
        snprintf(self->policy[self->n_policies++], sizeof(self->policy[0]), "experts_per_token=%u",
                 (unsigned)o->sampling.experts_per_token);
    self->n_policies += sy_precision_policies(&self->policy[self->n_policies], "", trunk);
    if (trunk.weights != o->precision.weights)
        self->n_policies +=
            sy_precision_policies(&self->policy[self->n_policies], "expert_", o->precision);
    add_policy(self, "arithmetic", sy_moe_local_arithmetic(self->experts));
    add_policy(self, "trunk_arithmetic", sy_trunk_arithmetic(self->trunk));
}

/* ---- where it is computed ---- */

static sy_status open_trunk(run *self, const sy_device_list *devices, sy_error *err)
{
    const options *o = self->options;
    const char *name = o->trunk_device == NULL ? devices->device[0].name : o->trunk_device;
    const sy_backend *backend;
    sy_device device;
    sy_status st;

    SY_TRY(sy_devices_choose_one(&device, &backend, "--trunk-device", name, err));
    if (backend == NULL)
        return sy_trunk_open(&self->trunk, self->model, self->kernels, o->precision, self->pool,
                             err);
    const sy_trunk_device place = {
        .backend = backend, .number = device.number, .name = device.name};
    st = sy_trunk_open_on(&self->trunk, &place, self->model, self->kernels, o->precision,
                          self->pool, err);
    if (st != SY_OK) sy_devices_name_option(err, "--trunk-device");
out:
    return st;
}

static void on_shard(void *arg, uint32_t done, uint32_t total)
{
    tool_progress_show(arg, done, total);
}

static sy_status open_experts(run *self, const sy_device_list *list, sy_error *err)
{
    tool_progress progress = {.label = "loading experts"};
    sy_moe_devices devices = {0};
    sy_status st;

    _Static_assert(SY_MOE_DEVICES_MAX >= SY_DEVICES_MAX, "a list is copied as it is");
    for (uint32_t i = 0; i < list->n && list->device[0].kind == SY_DEVICE_CUDA; i++) {
        devices.number[i] = list->device[i].number;
        devices.name[i] = list->device[i].name;
        devices.n++;
    }
    if (devices.n > 0) SY_TRY(sy_backend_load(&devices.backend, "cuda", err));
    st = sy_moe_local_open(&self->experts, self->model, self->kernels, self->options->precision,
                           self->pool, &devices, on_shard, &progress, err);
    tool_progress_end(&progress);
out:
    return st;
}

static sy_status open_model(run *self, sy_error *err)
{
    const options *o = self->options;
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t start_us = sy_clock_us();
    sy_device_list devices;
    sy_status st;

    SY_TRY(sy_devices_choose(&devices, o->devices, err));
    SY_TRY(sy_kernels_choose(&self->kernels, o->kernels, err));
    SY_TRY(sy_model_open(&self->model, o->model, NULL, err));
    if (o->allow_nan) sy_model_allow_nan(self->model);
    self->desc = sy_model_describe(self->model);
    SY_TRY(sy_tokenizer_open(&self->tokenizer, o->model, self->desc->vocab, err));
    st = sy_pool_open(&self->pool, (unsigned)(o->threads > 0 ? o->threads : SY_MAX(cores, 1)),
                      "run");
    if (st != SY_OK) {
        sy_error_set(err, st, "no threads to compute with");
        goto out;
    }
    if (o->precision.activations != SY_ACT_F32 && devices.device[0].kind == SY_DEVICE_CUDA) {
        st = sy_error_set(err, SY_EINVAL, "--activations %s: it is for CPUs", o->activations);
        goto out;
    }
    /* The trunk first: experts take nine tenths of what is free on a GPU then. */
    SY_TRY(open_trunk(self, &devices, err));
    SY_TRY(open_experts(self, &devices, err));
    list_policies(self);
    self->load_ms = (double)(sy_clock_us() - start_us) / 1e3;
out:
    return st;
}

static sy_status encode_chat(run *self, sy_ids *ids, const tool_prompt *p, sy_error *err)
{
    sy_chat *chat = NULL;
    sy_status st = sy_chat_open(&chat, sy_model_dir(self->model), NULL, err);

    if (st == SY_OK || st == SY_ENOTFOUND)
        st = sy_chat_encode(ids, chat, self->tokenizer, p->text, p->text_bytes, err);
    sy_chat_close(chat);
    return st;
}

/* Token ids of every prompt. */
static sy_status encode_prompts(run *self, sy_error *err)
{
    for (size_t i = 0; i < self->prompts.n; i++) {
        const tool_prompt *p = &self->prompts.item[i];
        sy_ids *ids = &self->generation[i].prompt;
        sy_status st = SY_OK;

        if (p->is_chat)
            st = encode_chat(self, ids, p, err);
        else if (p->text != NULL)
            st = sy_tokenizer_encode(self->tokenizer, ids, p->text, p->text_bytes, SY_SPECIAL_ALL,
                                     err);
        for (uint32_t t = 0; t < p->n_tokens && st == SY_OK; t++)
            if ((st = sy_ids_push(ids, p->token[t])) != SY_OK)
                sy_error_set(err, st, "no memory for the prompt");
        if (st != SY_OK) {
            if (self->prompts.n > 1) sy_error_prefix(err, "prompt %zu", i + 1);
            return st;
        }
    }
    return SY_OK;
}

/* A cache that holds whatever can run at the same time, and no more: all of it is known. */
static uint64_t kv_bytes(const run *self)
{
    const uint32_t context = self->desc->context;
    uint64_t pages_max = 1;

    for (size_t i = 0; i < self->prompts.n; i++) {
        const uint64_t room = self->prompts.item[i].max_tokens;
        const uint64_t n = self->generation[i].prompt.n + (room == 0 ? context : room);

        pages_max = SY_MAX(pages_max, (SY_MIN(n, context) + SY_KV_PAGE - 1) / SY_KV_PAGE);
    }
    return pages_max * SY_MIN(self->prompts.n, (size_t)RUNNING_MAX) *
           sy_trunk_page_bytes(self->trunk);
}

static sy_status open_engine(run *self, sy_error *err)
{
    const sy_engine_config config = {
        .trunk = self->trunk,
        .tokenizer = self->tokenizer,
        .moe = sy_moe_local_ops(self->experts),
        .pool = self->pool,
        .running_max = (uint32_t)SY_MIN(self->prompts.n, (size_t)RUNNING_MAX),
        .queue_max = (uint32_t)SY_MIN(self->prompts.n, (size_t)UINT32_MAX),
        .kv_bytes_max = kv_bytes(self),
    };

    return sy_engine_open(&self->engine, &config, err);
}

/* ---- the engine's thread ---- */

static void finish(tool_result *result, const sy_gen_event *e, const run *self)
{
    const sy_gen_stats *s = &e->stats;
    const char *policy[POLICIES_MAX];
    const sy_finish f = {.reason = e->reason == SY_GEN_STOP ? SY_FINISH_STOP : SY_FINISH_LENGTH,
                         .prompt_tokens = s->prompt_tokens,
                         .generated_tokens = s->generated_tokens,
                         .queue_ms = (double)s->queue_us / 1e3,
                         .first_token_ms = (double)s->first_token_us / 1e3,
                         .total_ms = (double)s->total_us / 1e3,
                         .decode_tokens_per_s = s->decode_tokens_per_s,
                         .route_ms = (double)s->moe.route_us / 1e3,
                         .dispatch_ms = (double)s->moe.dispatch_us / 1e3,
                         .compute_ms = (double)s->moe.compute_us / 1e3,
                         .combine_ms = (double)s->moe.combine_us / 1e3,
                         .placement_hash = s->placement_hash,
                         .n_policies = self->n_policies,
                         .policy = policy};

    for (uint32_t i = 0; i < self->n_policies; i++) policy[i] = self->policy[i];
    tool_result_finish(result, &f);
}

static void add_event(tool_result *result, const sy_gen_event *e, uint32_t vocab)
{
    sy_token_logprob top[SY_TOP_LOGPROBS_MAX];
    sy_delta delta = {.n_tokens = e->n_tokens,
                      .token = e->token,
                      .text = e->text,
                      .text_bytes = e->text_bytes,
                      .n_logprobs = e->logprob == NULL ? 0 : e->n_tokens,
                      .logprob = e->logprob,
                      .n_top = e->n_top,
                      .top = top};

    for (uint32_t i = 0; i < e->n_top; i++)
        top[i] = (sy_token_logprob){e->top[i].token, e->top[i].logprob};
    if (e->logits != NULL) delta.logits = (sy_rows){SY_F32, e->n_tokens, vocab, e->logits};
    tool_result_add(result, &delta);
}

static void on_event(void *user, const sy_gen_event *e)
{
    generation *gen = user;
    run *self = gen->run;

    pthread_mutex_lock(&self->mutex);
    add_event(&gen->result, e, self->desc->vocab);
    if (e->ended) {
        finish(&gen->result, e, self);
        if (gen->result.error.status == SY_OK) gen->result.error = e->error;
        gen->has_ended = 1;
    }
    pthread_cond_signal(&self->news);
    pthread_mutex_unlock(&self->mutex);
}

/* ---- the signals' thread ---- */

static void on_interrupt(void *arg)
{
    run *self = arg;

    pthread_mutex_lock(&self->mutex);
    if (self->engine == NULL) _exit(EXIT_INTERRUPTED); /* still loading: nothing to end in order */
    for (size_t i = 0; i < self->prompts.n; i++)
        if (self->generation[i].id != 0) sy_engine_cancel(self->engine, self->generation[i].id);
    pthread_mutex_unlock(&self->mutex);
}

/* ---- the main thread ---- */

static sy_status submit(run *self, size_t i, sy_error *err)
{
    generation *gen = &self->generation[i];
    const sy_generate_request r = tool_request(&self->options->sampling, &self->prompts.item[i]);
    const sy_gen_params params = {.prompt = gen->prompt.id,
                                  .n_prompt = (uint32_t)gen->prompt.n,
                                  .max_tokens = r.max_tokens,
                                  .sampler = {r.sampling.temperature, r.sampling.top_k,
                                              r.sampling.top_p, r.sampling.min_p,
                                              r.sampling.repetition_penalty, r.seed},
                                  .n_stops = r.n_stops,
                                  .stop = r.stop,
                                  .logprobs = r.logprobs,
                                  .want_logits = r.want_logits,
                                  .ignore_eos = r.ignore_eos,
                                  .top_logprobs = r.top_logprobs,
                                  .experts_per_token = r.policy.experts_per_token,
                                  .deadline_us = SY_NEVER_US,
                                  .user = gen,
                                  .on_event = on_event};

    return sy_engine_submit(self->engine, &params, &gen->id, err);
}

/* Opens the engine and gives it every prompt; one that it refuses has ended. The mutex keeps an
 * interrupt from seeing half of this, and events from being early. */
static sy_status submit_all(run *self, sy_error *err)
{
    sy_status st;

    pthread_mutex_lock(&self->mutex);
    st = open_engine(self, err);
    for (size_t i = 0; st == SY_OK && i < self->prompts.n; i++) {
        generation *gen = &self->generation[i];

        gen->has_ended = submit(self, i, &gen->result.error) != SY_OK;
    }
    pthread_mutex_unlock(&self->mutex);
    return st;
}

/* Waits for news of one generation: its text from byte `from` on goes to `text`. 1: it has ended.
 */
static int next_text(run *self, const generation *gen, size_t from, sy_strbuf *text)
{
    int has_ended;

    sy_strbuf_reset(text);
    pthread_mutex_lock(&self->mutex);
    while (!gen->has_ended && gen->result.text.len == from)
        pthread_cond_wait(&self->news, &self->mutex);
    has_ended = gen->has_ended;
    sy_strbuf_append(text, gen->result.text.data + from, gen->result.text.len - from);
    pthread_mutex_unlock(&self->mutex);
    return has_ended;
}

/* Prints one answer as it comes; the exit code. */
static int print_generation(run *self, size_t i)
{
    generation *gen = &self->generation[i];
    const int json = self->options->sampling.json;
    const tool_result_origin origin = {self->load_ms, self->kernels->name};
    sy_strbuf text;
    size_t n_printed = 0;
    int has_ended = 0;

    if (self->prompts.n > 1 && !json) printf("%s--- prompt %zu\n", i > 0 ? "\n" : "", i + 1);
    sy_strbuf_init(&text);
    while (!has_ended) {
        has_ended = next_text(self, gen, n_printed, &text);
        n_printed += text.len;
        if (json) continue;
        fwrite(text.data, 1, text.len, stdout);
        fflush(stdout);
    }
    sy_strbuf_free(&text);
    return tool_result_print_end(&gen->result, &origin, json, self->prompts.n > 1 ? i + 1 : 0);
}

static sy_status prepare(run *self, sy_error *err)
{
    sy_status st;

    self->generation = calloc(self->prompts.n, sizeof(*self->generation));
    if (self->generation == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for %zu prompts", self->prompts.n);
        goto out;
    }
    for (size_t i = 0; i < self->prompts.n; i++) {
        self->generation[i].run = self;
        tool_result_init(&self->generation[i].result);
    }
    SY_TRY(tool_interrupt_open(on_interrupt, self, err));
    SY_TRY(open_model(self, err));
    SY_TRY(encode_prompts(self, err));
    st = submit_all(self, err);
out:
    return st;
}

static int write_logits(const run *self)
{
    const size_t n = self->prompts.n;
    tool_result *results = calloc(SY_MAX(n, 1u), sizeof(*results));
    sy_error err = {0};
    sy_status st;

    sy_error_clear(&err);
    if (results == NULL) {
        sy_error_set(&err, SY_ENOMEM, "no memory to write the logits");
        return tool_fail(&err);
    }
    for (size_t i = 0; i < n; i++) results[i] = self->generation[i].result;
    st = tool_results_write_logits(self->options->sampling.logits_out, results, n, &err);
    free(results);
    return st == SY_OK ? 0 : tool_fail(&err);
}

static void close_all(run *self)
{
    tool_interrupt_close();
    sy_engine_close(self->engine);
    sy_moe_local_close(self->experts);
    sy_trunk_close(self->trunk);
    sy_tokenizer_close(self->tokenizer);
    sy_model_close(self->model);
    sy_pool_free(self->pool);
    for (size_t i = 0; self->generation != NULL && i < self->prompts.n; i++) {
        sy_ids_free(&self->generation[i].prompt);
        tool_result_free(&self->generation[i].result);
    }
    free(self->generation);
    tool_prompts_free(&self->prompts);
    pthread_cond_destroy(&self->news);
    pthread_mutex_destroy(&self->mutex);
}

int cmd_run(int argc, char **argv)
{
    options o;
    run self = {.options = &o};
    sy_error err = {0};
    int code = parse(&o, argc, argv);

    if (code != 0) return SY_MAX(code, 0);
    sy_error_clear(&err);
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.news, NULL);
    code = tool_prompts_load(&self.prompts, &o.sampling);
    if (code == 0 && prepare(&self, &err) == SY_OK) {
        for (size_t i = 0; i < self.prompts.n; i++) code |= print_generation(&self, i);
        if (code == 0 && o.sampling.logits_out != NULL) code = write_logits(&self);
    } else if (code == 0) {
        code = tool_fail(&err);
    }
    close_all(&self);
    return code;
}
