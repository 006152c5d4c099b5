/* cmd_inspect.c - `switchyard inspect`: what a checkpoint holds, and what serving it takes. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "inspect_fidelity.h"
#include "inspect_place.h"
#include "sy_args.h"
#include "sy_precision_text.h"
#include "tool_memory.h"
#include "tool_print.h"
#include "tool_report.h"

typedef struct options {
    const char *dir, *devices, *weights;
    int64_t experts_per_node, fidelity_tokens;
    int json, tensors, fields, fidelity, allow_nan;
} options;

static const char *gate_score_name(sy_gate_score score)
{
    switch (score) {
    case SY_GATE_SOFTMAX: return "softmax";
    case SY_GATE_SIGMOID: return "sigmoid";
    case SY_GATE_SIGMOID_CHOSEN: return "sigmoid of the chosen";
    case SY_GATE_SOFTMAX_CHOSEN: return "softmax over the chosen";
    case SY_GATE_SPARSEMIXER: return "sparsemixer";
    }
    return "unknown";
}

static int parse(options *o, int argc, char **argv)
{
    const sy_arg args[] = {
        {"experts-per-node", "N",
         "memory of a node that holds N of every layer's experts; 0: of several numbers of nodes",
         SY_ARG_INT, &o->experts_per_node, 0, SY_EXPERTS_MAX},
        {"devices", "LIST",
         "where the experts could go: gpu0=80GiB,gpu1=80GiB, expert-0/cuda:1=24GiB or 4*80GiB",
         SY_ARG_STRING, &o->devices, 0, 0},
        {"weights", "FORMAT", "with --devices: " SY_WEIGHTS_HELP, SY_ARG_STRING, &o->weights, 0, 0},
        {"fields", NULL,
         "with --devices: print only the fields, as placement plan and apply read them",
         SY_ARG_FLAG, &o->fields, 0, 0},
        {"fidelity", NULL,
         "load the model and measure how far rounding moves its outputs, by tier and format",
         SY_ARG_FLAG, &o->fidelity, 0, 0},
        {"fidelity-tokens", "N", "with --fidelity: tokens of each of its 4 prompts; default 64",
         SY_ARG_INT, &o->fidelity_tokens, 1, SY_CONTEXT_MAX},
        {"allow-nan", NULL, "with --fidelity: " TOOL_ALLOW_NAN_HELP, SY_ARG_FLAG, &o->allow_nan, 0,
         0},
        {"tensors", NULL, "list every tensor", SY_ARG_FLAG, &o->tensors, 0, 0},
        {"json", NULL, "print JSON", SY_ARG_FLAG, &o->json, 0, 0},
    };
    sy_error err = {0};
    size_t n = 0;

    *o = (options){.weights = "as-stored", .fidelity_tokens = 64};
    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard inspect DIR [options]\n\n"
                      "Checks a checkpoint as the servers would, and tells what it holds and the "
                      "memory that each\ntier needs. No weight is read without --fidelity.",
                      &o->dir, 1, &n, &err) != SY_OK)
        return tool_usage_error(&err) == 0 ? -1 : 2;
    if (n == 0)
        return tool_bad_option("the checkpoint's folder is missing: switchyard inspect DIR");
    if (o->fields && o->devices == NULL) return tool_bad_option("--fields needs --devices");
    if (o->fields && o->fidelity)
        return tool_bad_option("--fields prints fields alone: leave out --fidelity");
    return 0;
}

/* ---- text ---- */

static void print_shape(const sy_tensor *tensor)
{
    for (uint32_t d = 0; d < tensor->rank; d++)
        printf("%s%" PRIu64, d > 0 ? " x " : "", tensor->shape[d]);
}

static void print_tensors(const sy_model *model)
{
    char size[TOOL_SIZE_BYTES];

    printf("\ntensors\n");
    for (size_t i = 0; i < sy_model_tensor_count(model); i++) {
        const sy_tensor *tensor = sy_model_tensor_at(model, i);

        printf("  %-60s %-5s ", tensor->name, tensor->dtype_name);
        print_shape(tensor);
        printf("  %s\n", tool_size(size, tensor->bytes));
    }
}

static void print_description(const inspect_facts *f)
{
    static const char *const qk_norm[] = {
        [SY_QK_NORM_NONE] = "",
        [SY_QK_NORM_WHOLE] = ", q and k normed",
        [SY_QK_NORM_HEAD] = ", q and k normed per head",
        [SY_QK_NORM_ROTATED] = ", q and k normed per head once rotated",
        [SY_QK_NORM_WEIGHTLESS] = ", q and k normed per head without weights"};
    const sy_model_desc *d = f->desc;
    char moe_layers[SY_GRID_TEXT_BYTES];

    printf("%s: %s (%s)\n\n", sy_model_name(f->model), d->family, d->architecture);
    printf("layers         %" PRIu32 ", hidden size %" PRIu32 ", vocabulary %" PRIu32
           ", context %" PRIu32 "\n",
           d->n_layers, d->hidden, d->vocab, d->context);
    printf("attention      %" PRIu32 " heads of %" PRIu32 ", %" PRIu32 " for keys and values%s",
           d->n_heads, d->head_dim, d->n_kv_heads, qk_norm[d->qk_norm]);
    if (d->mla.kv_rank != 0) printf(", over a latent of %" PRIu32, d->mla.kv_rank);
    if (d->sliding_window != 0) printf(", a window of %" PRIu32, d->sliding_window);
    printf("\nexperts        %" PRIu32 " a layer of width %" PRIu32 ", %" PRIu32
           " a token; %s gate%s\n",
           d->n_experts, d->expert_ffn, d->top_k, gate_score_name(d->gate.score),
           d->gate.renormalise ? ", weights renormalised" : "");
    sy_grid_format(moe_layers, sizeof(moe_layers), &f->grid);
    if (d->dense_ffn != 0)
        printf("               in layers %s; the others have an MLP of width %" PRIu32 "\n",
               moe_layers, d->dense_ffn);
    if (d->shared_ffn != 0)
        printf("               beside an MLP of width %" PRIu32 " for every token\n",
               d->shared_ffn);
    if (f->has_tokenizer)
        printf("tokenizer      %s, %zu tokens\n", f->tokenizer_kind, f->tokenizer_vocab);
    else
        printf("tokenizer      none: only token ids can be given\n");
}

static void print_part(const char *name, const inspect_part *part)
{
    char count[TOOL_SIZE_BYTES], stored[TOOL_SIZE_BYTES];

    printf("  %-12s %-10s %s\n", name, tool_count(count, part->parameters),
           tool_size(stored, part->stored_bytes));
}

static void print_weights(const inspect_facts *f)
{
    char a[TOOL_SIZE_BYTES], b[TOOL_SIZE_BYTES];
    const uint64_t total = f->trunk.parameters + f->gates.parameters + f->experts.parameters;

    printf("\nparameters     %s, %s active for a token\n", tool_count(a, total),
           tool_count(b, f->active_parameters));
    print_part("trunk", &f->trunk);
    print_part("gates", &f->gates);
    print_part("experts", &f->experts);
    for (size_t i = 0; i < f->n_types; i++)
        printf("%s%" PRIu64 " tensors of %s, %s\n", i == 0 ? "types          " : "               ",
               f->type[i].n_tensors, f->type[i].name, tool_size(a, f->type[i].bytes));
    for (size_t i = 0; i < f->n_files; i++)
        printf("%s%s, %s\n", i == 0 ? "files          " : "               ", f->file[i].name,
               tool_size(a, f->file[i].bytes));
}

static void print_memory(const inspect_facts *f)
{
    char a[TOOL_SIZE_BYTES], b[TOOL_SIZE_BYTES], c[TOOL_SIZE_BYTES];

    printf("\nmemory         one expert of one layer: %s\n", tool_size(a, f->expert_bytes));
    printf("  router       %s\n", tool_size(a, f->gates.loaded_bytes));
    printf("  aggregator   %s, and %s of KV cache a token\n", tool_size(a, f->trunk.loaded_bytes),
           tool_size(b, f->kv_bytes_per_token));
    for (size_t i = 0; i < f->n_spreads; i++)
        printf("  expert nodes %" PRIu32 " of %s, each with %" PRIu32 " of a layer's %" PRIu32
               " experts\n",
               f->spread[i].n_nodes, tool_size(a, f->spread[i].node_bytes),
               f->spread[i].experts_per_node, f->desc->n_experts);
    for (size_t i = 1; i < f->n_formats; i++)
        printf("  --weights %s aggregator %s, all experts %s, one of one layer %s\n",
               sy_weights_name(f->format[i].weights), tool_size(a, f->format[i].trunk_bytes),
               tool_size(b, f->format[i].experts_bytes), tool_size(c, f->format[i].expert_bytes));
}

/* ---- a placement ---- */

static void place_field(char field[32], const inspect_place *p, size_t at)
{
    sy_field_format(field, 32,
                    (sy_field){(int32_t)(at / p->grid.experts), (int32_t)(at % p->grid.experts)});
}

static void print_fields(const inspect_place *p)
{
    char field[32];

    for (size_t at = 0; at < (size_t)p->grid.layers * p->grid.experts; at++) {
        if (p->to[at] == INSPECT_NOWHERE) continue;
        place_field(field, p, at);
        printf("%s %s\n", field, p->device[p->to[at]].name);
    }
}

static void print_place(const inspect_facts *f, const inspect_place *p)
{
    char a[TOOL_SIZE_BYTES], b[TOOL_SIZE_BYTES], c[TOOL_SIZE_BYTES];
    uint64_t room = 0;

    printf("\nplacement      %" PRIu64 " experts of %s, --weights %s\n", sy_grid_shards(&p->grid),
           tool_size(a, p->format->expert_bytes), sy_weights_name(p->format->weights));
    for (size_t d = 0; d < p->n_devices; d++) {
        const inspect_device *device = &p->device[d];
        const uint64_t used = device->n_experts * p->format->expert_bytes;

        room += device->memory_bytes;
        printf("  %-20s %" PRIu64 " experts, %s of %s, %s free\n", device->name, device->n_experts,
               tool_size(a, used), tool_size(b, device->memory_bytes),
               tool_size(c, device->memory_bytes - used));
    }
    if (p->n_left == 0) {
        printf("               all fit; --fields prints which goes where\n");
        return;
    }
    printf("               %" PRIu64 " do not fit: %s more is needed\n", p->n_left,
           tool_size(a, p->n_left * p->format->expert_bytes));
    for (size_t i = 0; i < f->n_formats; i++)
        if (f->format[i].experts_bytes < room)
            printf("               --weights %s needs %s in all\n",
                   sy_weights_name(f->format[i].weights), tool_size(a, f->format[i].experts_bytes));
}

/* ---- JSON ---- */

static json_t *part_json(const inspect_part *part)
{
    return json_pack("{s:I,s:I,s:I}", "parameters", (json_int_t)part->parameters, "stored_bytes",
                     (json_int_t)part->stored_bytes, "loaded_bytes",
                     (json_int_t)part->loaded_bytes);
}

static json_t *description_json(const inspect_facts *f)
{
    const sy_model_desc *d = f->desc;
    char moe_layers[SY_GRID_TEXT_BYTES];
    json_t *eos = json_array();

    sy_grid_format(moe_layers, sizeof(moe_layers), &f->grid);

    for (uint32_t i = 0; i < d->n_eos; i++) json_array_append_new(eos, json_integer(d->eos[i]));
    return json_pack(
        "{s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:{s:s,s:b,s:f},s:I,s:o}",
        "layers", (json_int_t)d->n_layers, "moe_layers", moe_layers, "hidden",
        (json_int_t)d->hidden, "vocab", (json_int_t)d->vocab, "context", (json_int_t)d->context,
        "heads", (json_int_t)d->n_heads, "kv_heads", (json_int_t)d->n_kv_heads, "head_dim",
        (json_int_t)d->head_dim, "experts", (json_int_t)d->n_experts, "top_k", (json_int_t)d->top_k,
        "expert_ffn", (json_int_t)d->expert_ffn, "dense_ffn", (json_int_t)d->dense_ffn,
        "shared_ffn", (json_int_t)d->shared_ffn, "sliding_window", (json_int_t)d->sliding_window,
        "tied_head", d->tied_head, "gate", "score", gate_score_name(d->gate.score), "renormalise",
        d->gate.renormalise, "scale", (double)d->gate.scale, "bos", (json_int_t)d->bos, "eos", eos);
}

static json_t *lists_json(const inspect_facts *f)
{
    json_t *types = json_object(), *files = json_array(), *spreads = json_array();
    json_t *formats = json_object();

    for (size_t i = 0; i < f->n_types; i++)
        json_object_set_new(types, f->type[i].name,
                            json_pack("{s:I,s:I}", "tensors", (json_int_t)f->type[i].n_tensors,
                                      "bytes", (json_int_t)f->type[i].bytes));
    for (size_t i = 0; i < f->n_files; i++)
        json_array_append_new(files, json_pack("{s:s,s:I}", "name", f->file[i].name, "bytes",
                                               (json_int_t)f->file[i].bytes));
    for (size_t i = 0; i < f->n_spreads; i++)
        json_array_append_new(
            spreads, json_pack("{s:I,s:I,s:I}", "nodes", (json_int_t)f->spread[i].n_nodes,
                               "experts_per_node", (json_int_t)f->spread[i].experts_per_node,
                               "node_bytes", (json_int_t)f->spread[i].node_bytes));
    for (size_t i = 0; i < f->n_formats; i++)
        json_object_set_new(formats, sy_weights_name(f->format[i].weights),
                            json_pack("{s:I,s:I,s:I}", "trunk_bytes",
                                      (json_int_t)f->format[i].trunk_bytes, "experts_bytes",
                                      (json_int_t)f->format[i].experts_bytes, "expert_bytes",
                                      (json_int_t)f->format[i].expert_bytes));
    return json_pack("{s:o,s:o,s:o,s:o}", "types", types, "files", files, "expert_nodes", spreads,
                     "weights", formats);
}

static json_t *tensors_json(const sy_model *model)
{
    json_t *list = json_array();

    for (size_t i = 0; i < sy_model_tensor_count(model); i++) {
        const sy_tensor *tensor = sy_model_tensor_at(model, i);
        json_t *shape = json_array();

        for (uint32_t d = 0; d < tensor->rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d]));
        json_array_append_new(list, json_pack("{s:o,s:s,s:o,s:I}", "name",
                                              tool_json_text(tensor->name, strlen(tensor->name)),
                                              "type", tensor->dtype_name, "shape", shape, "bytes",
                                              (json_int_t)tensor->bytes));
    }
    return list;
}

static json_t *place_json(const inspect_place *p)
{
    json_t *devices = json_array(), *fields = json_object();
    char field[32];

    for (size_t d = 0; d < p->n_devices; d++) {
        const inspect_device *device = &p->device[d];

        json_array_append_new(devices, json_pack("{s:s,s:I,s:I,s:I}", "device", device->name,
                                                 "memory_bytes", (json_int_t)device->memory_bytes,
                                                 "experts", (json_int_t)device->n_experts, "bytes",
                                                 (json_int_t)device->n_experts *
                                                     (json_int_t)p->format->expert_bytes));
    }
    for (size_t at = 0; at < (size_t)p->grid.layers * p->grid.experts; at++) {
        if (p->to[at] == INSPECT_NOWHERE) continue;
        place_field(field, p, at);
        json_object_set_new(fields, field, json_string(p->device[p->to[at]].name));
    }
    return json_pack("{s:s,s:I,s:I,s:o,s:o}", "weights", sy_weights_name(p->format->weights),
                     "expert_bytes", (json_int_t)p->format->expert_bytes, "left",
                     (json_int_t)p->n_left, "devices", devices, "fields", fields);
}

static json_t *facts_json(const inspect_facts *f, const inspect_place *place,
                          const inspect_fidelity *fidelity, int with_tensors)
{
    const uint64_t total = f->trunk.parameters + f->gates.parameters + f->experts.parameters;
    const char *name = sy_model_name(f->model);
    json_t *lists = lists_json(f), *root;
    char hash[17];

    snprintf(hash, sizeof(hash), "%016" PRIx64, sy_model_structure_hash(f->model));
    root = json_pack("{s:o,s:s,s:s,s:o,s:I,s:I,s:o,s:o,s:o,s:I,s:I,s:I,s:s}", "name",
                     tool_json_text(name, strlen(name)), "family", f->desc->family, "architecture",
                     f->desc->architecture, "dims", description_json(f), "parameters",
                     (json_int_t)total, "active_parameters", (json_int_t)f->active_parameters,
                     "trunk", part_json(&f->trunk), "gates", part_json(&f->gates), "experts",
                     part_json(&f->experts), "bytes", (json_int_t)sy_model_bytes(f->model),
                     "expert_bytes", (json_int_t)f->expert_bytes, "kv_bytes_per_token",
                     (json_int_t)f->kv_bytes_per_token, "structure_hash", hash);
    if (root == NULL || lists == NULL) goto out;
    json_object_update(root, lists);
    json_object_set_new(root, "tokenizer",
                        f->has_tokenizer ? json_pack("{s:s,s:I}", "kind", f->tokenizer_kind,
                                                     "vocab", (json_int_t)f->tokenizer_vocab)
                                         : json_null());
    if (place->n_devices > 0) json_object_set_new(root, "placement", place_json(place));
    if (fidelity->n_prompts > 0)
        json_object_set_new(root, "fidelity", inspect_fidelity_json(fidelity));
    if (with_tensors) json_object_set_new(root, "tensors", tensors_json(f->model));
out:
    json_decref(lists);
    return root;
}

int cmd_inspect(int argc, char **argv)
{
    inspect_facts facts;
    inspect_place place = {0};
    inspect_fidelity fidelity = {0};
    options o;
    sy_error err = {0};
    int code = parse(&o, argc, argv);
    sy_status st;

    if (code != 0) return SY_MAX(code, 0);
    sy_error_clear(&err);
    st = inspect_gather(&facts, o.dir, (uint32_t)o.experts_per_node, &err);
    if (st == SY_OK && o.devices != NULL)
        st = inspect_place_make(&place, &facts, o.devices, o.weights, &err);
    if (st == SY_OK && o.allow_nan) sy_model_allow_nan(facts.model);
    if (st == SY_OK && o.fidelity)
        st = inspect_fidelity_measure(&fidelity, &facts, (uint32_t)o.fidelity_tokens,
                                      tool_memory_available(""), &err);
    if (st != SY_OK) {
        code = tool_fail(&err);
    } else if (o.json) {
        code = tool_json_print(facts_json(&facts, &place, &fidelity, o.tensors));
    } else if (o.fields) {
        print_fields(&place);
        code = tool_flush_stdout();
    } else {
        print_description(&facts);
        print_weights(&facts);
        print_memory(&facts);
        if (place.n_devices > 0) print_place(&facts, &place);
        if (o.fidelity) inspect_fidelity_print(&fidelity);
        if (o.tensors) print_tensors(facts.model);
        code = tool_flush_stdout();
    }
    inspect_place_free(&place);
    inspect_facts_free(&facts);
    return code;
}
