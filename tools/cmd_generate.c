/* cmd_generate.c - `switchyard generate`: text from an aggregator, as it comes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "generate_load.h"
#include "tool_interrupt.h"
#include "tool_print.h"

typedef struct options {
    tool_sampling sampling;
    const char *target, *model;
    int64_t timeout_s, concurrency, repeat;
    int wait;
} options;

static int parse(options *o, int argc, char **argv)
{
    const sy_arg own[] = {
        {"target", "ADDRESS", "the aggregator: unix:PATH or HOST:PORT", SY_ARG_STRING, &o->target,
         0, 0},
        {"model", "NAME", "the model; an aggregator serves one, so that it need not be named",
         SY_ARG_STRING, &o->model, 0, 0},
        {"timeout-s", "S", "a request may take so long; 0: for ever", SY_ARG_INT, &o->timeout_s, 0,
         1000000},
        {"wait", NULL, "wait for a server that is not there yet, within the timeout", SY_ARG_FLAG,
         &o->wait, 0, 0},
        {"concurrency", "N", "requests at the same time: measure instead of printing text",
         SY_ARG_INT, &o->concurrency, 1, 1024},
        {"repeat", "M",
         "requests in all, each with the next prompt in turn: measure, and check that equal "
         "requests give equal answers; 0: each prompt once",
         SY_ARG_INT, &o->repeat, 0, 10000000},
    };
    sy_arg args[SY_COUNT_OF(own) + TOOL_SAMPLING_ARGS];
    sy_error err = {0};

    *o = (options){.model = "", .timeout_s = 600, .concurrency = 1};
    memcpy(args, own, sizeof(own));
    tool_sampling_args(args + SY_COUNT_OF(own), &o->sampling);
    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard generate --target ADDRESS --prompt TEXT [options]\n\n"
                      "Generates text through an aggregator. With --concurrency or --repeat it is "
                      "a load generator.",
                      NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err) == 0 ? -1 : 2;
    if (o->target == NULL) return tool_bad_option("--target ADDRESS is missing");
    return tool_sampling_check(&o->sampling);
}

static void print_text(const char *text, size_t n)
{
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

/* One prompt after another, each printed as it comes. */
static int generate_all(client *c, const options *o, const tool_prompts *prompts)
{
    const tool_result_origin origin = {-1, NULL};
    tool_result *results = calloc(prompts->n, sizeof(*results));
    sy_error err = {0};
    size_t n = 0;
    int code = 0;

    sy_error_clear(&err);
    if (results == NULL) {
        sy_error_set(&err, SY_ENOMEM, "no memory for %zu prompts", prompts->n);
        return tool_fail(&err);
    }
    for (int is_cancelled = 0; n < prompts->n && !is_cancelled; n++) {
        sy_generate_request request = tool_request(&o->sampling, &prompts->item[n]);
        client_generation gen;

        request.model = o->model;
        if (prompts->n > 1 && !o->sampling.json)
            printf("%s--- prompt %zu\n", n > 0 ? "\n" : "", n + 1);
        client_generate(c, 0, &request, o->sampling.json ? NULL : print_text, &gen);
        code |= tool_result_print_end(&gen.result, &origin, o->sampling.json,
                                      prompts->n > 1 ? n + 1 : 0);
        is_cancelled = gen.result.error.status == SY_ECANCELLED;
        results[n] = gen.result;
    }
    if (code == 0 && o->sampling.logits_out != NULL &&
        tool_results_write_logits(o->sampling.logits_out, results, n, &err) != SY_OK)
        code = tool_fail(&err);
    for (size_t i = 0; i < n; i++) tool_result_free(&results[i]);
    free(results);
    return code;
}

static int run(client *c, const options *o, const tool_prompts *prompts)
{
    const size_t n_requests = o->repeat == 0 ? prompts->n : (size_t)o->repeat;
    const generate_load_config config = {
        .client = c,
        .sampling = &o->sampling,
        .prompts = prompts,
        .model = o->model,
        .n_calls = SY_MIN((size_t)o->concurrency, n_requests),
        .n_requests = n_requests,
    };

    if (o->concurrency == 1 && o->repeat == 0) return generate_all(c, o, prompts);
    return generate_load_run(&config);
}

int cmd_generate(int argc, char **argv)
{
    options o;
    client c;
    tool_prompts prompts = {0};
    sy_error err = {0};
    sy_status st = SY_OK;
    int code = parse(&o, argc, argv);

    if (code != 0) return SY_MAX(code, 0);
    sy_error_clear(&err);
    client_init(&c);
    code = tool_prompts_load(&prompts, &o.sampling);
    if (code != 0) goto out;
    c.timeout_us = o.timeout_s * 1000000;
    c.wait = o.wait;
    /* Before the connection, whose threads are to leave the signals alone. */
    SY_TRY(tool_interrupt_open(client_interrupt, &c, &err));
    SY_TRY(client_open(&c, o.target, (size_t)o.concurrency, 0, &err));
    code = run(&c, &o, &prompts);
out:
    if (st != SY_OK) code = tool_fail(&err);
    tool_interrupt_close();
    client_close(&c);
    tool_prompts_free(&prompts);
    return code;
}
