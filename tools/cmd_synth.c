/* cmd_synth.c - `switchyard synth`: a checkpoint of pseudo-random weights, for tests and for
 * benchmarks of shapes that nobody wants to download. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "sy_args.h"
#include "sy_file.h"
#include "sy_synth.h"
#include "tool_print.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

typedef struct preset {
    const char *name;
    sy_synth_config config;
} preset;

/* Options are laid over one of these; the first is the default. */
static const preset presets[] = {
    {"mixtral-tiny",
     {.family = "mixtral",
      .vocab = 512,
      .hidden = 128,
      .n_layers = 2,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 32,
      .n_experts = 8,
      .top_k = 2,
      .expert_ffn = 256,
      .context = 512,
      .rms_eps = 1e-5f,
      .rope_theta = 1e6f,
      .options.dtype = SY_BF16}},
    {"trio", /* the shape of the bundled checkpoint */
     {.family = "mixtral",
      .vocab = 2048,
      .hidden = 192,
      .n_layers = 4,
      .n_heads = 6,
      .n_kv_heads = 2,
      .head_dim = 32,
      .n_experts = 16,
      .top_k = 2,
      .expert_ffn = 256,
      .context = 1024,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4f,
      .options.dtype = SY_BF16}},
    {"olmoe4", /* OLMoE-1B-7B's layers, four of its sixteen */
     {.family = "olmoe",
      .vocab = 50304,
      .hidden = 2048,
      .n_layers = 4,
      .n_heads = 16,
      .n_kv_heads = 16,
      .head_dim = 128,
      .n_experts = 64,
      .top_k = 8,
      .expert_ffn = 1024,
      .context = 4096,
      .rms_eps = 1e-5f,
      .rope_theta = 1e4f,
      .options.dtype = SY_BF16}},
    {"mixtral2", /* Mixtral-8x7B's layers, two of its thirty-two */
     {.family = "mixtral",
      .vocab = 32000,
      .hidden = 4096,
      .n_layers = 2,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .n_experts = 8,
      .top_k = 2,
      .expert_ffn = 14336,
      .context = 32768,
      .rms_eps = 1e-5f,
      .rope_theta = 1e6f,
      .options.dtype = SY_BF16}},
    {"qwen3moe4", /* Qwen3-30B-A3B's layers, four of its forty-eight */
     {.family = "qwen3_moe",
      .vocab = 151936,
      .hidden = 2048,
      .n_layers = 4,
      .n_heads = 32,
      .n_kv_heads = 4,
      .head_dim = 128,
      .n_experts = 128,
      .top_k = 8,
      .renormalise = 1,
      .expert_ffn = 768,
      .context = 40960,
      .rms_eps = 1e-6f,
      .rope_theta = 1e6f,
      .options.dtype = SY_BF16}},
};

/* Strings that are NULL and numbers that are 0 leave the preset's value. */
typedef struct options {
    const char *out, *config, *preset, *family, *dtype, *recipe, *tokenizer;
    int64_t layers, hidden, heads, kv_heads, head_dim, experts, top_k, ffn, vocab, context;
    int64_t seed, shard_mb;
    double rms_eps, rope_theta, qkv_clip;
    int force, json;
} options;

static int parse(options *o, int argc, char **argv)
{
    *o = (options){.preset = presets[0].name};
    const sy_arg args[] = {
        {"out", "DIR", "where to write; made if absent", SY_ARG_STRING, &o->out, 0, 0},
        {"config", "FILE",
         "the config.json of the model to write, of any family; in place of --preset and the "
         "options down to --qkv-clip",
         SY_ARG_STRING, &o->config, 0, 0},
        {"preset", "NAME",
         "mixtral-tiny, trio, olmoe4, mixtral2 or qwen3moe4: what the options below that are not "
         "given come from",
         SY_ARG_STRING, &o->preset, 0, 0},
        {"family", "NAME", "mixtral, olmoe or qwen3_moe", SY_ARG_STRING, &o->family, 0, 0},
        {"layers", "L", "layers; 0: the preset's, as for all numbers below", SY_ARG_INT, &o->layers,
         0, SY_LAYERS_MAX},
        {"hidden", "H", "hidden size", SY_ARG_INT, &o->hidden, 0, SY_DIM_MAX},
        {"heads", "N", "query heads", SY_ARG_INT, &o->heads, 0, SY_DIM_MAX},
        {"kv-heads", "N", "key and value heads", SY_ARG_INT, &o->kv_heads, 0, SY_DIM_MAX},
        {"head-dim", "N", "width of a head", SY_ARG_INT, &o->head_dim, 0, SY_DIM_MAX},
        {"experts", "E", "experts a layer", SY_ARG_INT, &o->experts, 0, SY_EXPERTS_MAX},
        {"top-k", "K", "experts a token", SY_ARG_INT, &o->top_k, 0, SY_TOP_K_MAX},
        {"ffn", "F", "width of an expert", SY_ARG_INT, &o->ffn, 0, SY_DIM_MAX},
        {"vocab", "V", "vocabulary", SY_ARG_INT, &o->vocab, 0, SY_VOCAB_MAX},
        {"context", "N", "longest sequence, in tokens", SY_ARG_INT, &o->context, 0, SY_CONTEXT_MAX},
        {"rms-eps", "X", "epsilon of the norms", SY_ARG_DOUBLE, &o->rms_eps, 0, 0},
        {"rope-theta", "X", "base of the rotary angles", SY_ARG_DOUBLE, &o->rope_theta, 0, 0},
        {"qkv-clip", "X", "for families that clip", SY_ARG_DOUBLE, &o->qkv_clip, 0, 0},
        {"dtype", "TYPE", "bf16, f16 or f32, of every tensor", SY_ARG_STRING, &o->dtype, 0, 0},
        {"recipe", "NAME",
         "scaled: activations stay near 1 at any size; vectors: the rules of the published test "
         "vectors, which --seed does not change",
         SY_ARG_STRING, &o->recipe, 0, 0},
        {"seed", "S", "other weights", SY_ARG_INT, &o->seed, 0, INT64_MAX},
        {"shard-mb", "MB", "split into files of this size; 0: one file", SY_ARG_INT, &o->shard_mb,
         0, 1 << 20},
        {"tokenizer", "DIR", "copy tokenizer.json from here; otherwise a token is a byte",
         SY_ARG_STRING, &o->tokenizer, 0, 0},
        {"force", NULL, "write into a folder that holds something, over a checkpoint there",
         SY_ARG_FLAG, &o->force, 0, 0},
        {"json", NULL, "print what was written as JSON", SY_ARG_FLAG, &o->json, 0, 0},
    };
    sy_error err = {0};

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard synth --out DIR [--config FILE | --preset NAME] [options]\n\n"
                      "Writes a checkpoint of pseudo-random weights in Hugging Face's layout. The "
                      "same options\ngive the same bytes everywhere.",
                      NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err) == 0 ? -1 : 2;
    return o->out == NULL ? tool_bad_option("--out DIR is missing") : 0;
}

/* ---- from options to a configuration ---- */

static void override(uint32_t *field, int64_t value)
{
    if (value != 0) *field = (uint32_t)value; /* its range was checked while parsing */
}

static void override_float(float *field, double value)
{
    if (value != 0) *field = (float)value;
}

/* A mistake is printed: 0, or 2. */
static int configure_options(sy_synth_options *out, const options *o)
{
    if (o->dtype != NULL) {
        out->dtype = sy_dtype_from_name(o->dtype);
        if (out->dtype == SY_DTYPE_NONE)
            return tool_bad_option("--dtype %s: bf16, f16 or f32", o->dtype);
    }
    if (o->recipe != NULL && strcmp(o->recipe, "scaled") != 0 && strcmp(o->recipe, "vectors") != 0)
        return tool_bad_option("--recipe %s: scaled or vectors", o->recipe);
    if (o->recipe != NULL)
        out->recipe = strcmp(o->recipe, "scaled") == 0 ? SY_SYNTH_SCALED : SY_SYNTH_VECTORS;
    out->seed = (uint64_t)o->seed;
    out->shard_bytes_max = (uint64_t)o->shard_mb << 20;
    out->tokenizer_dir = o->tokenizer;
    return 0;
}

/* The same. */
static int configure(sy_synth_config *out, const options *o)
{
    const preset *base = NULL;

    for (size_t i = 0; i < SY_COUNT_OF(presets); i++)
        if (strcmp(presets[i].name, o->preset) == 0) base = &presets[i];
    if (base == NULL)
        return tool_bad_option("--preset %s is unknown; --help lists the presets", o->preset);
    *out = base->config;
    if (o->family != NULL) out->family = o->family;
    override(&out->n_layers, o->layers);
    override(&out->hidden, o->hidden);
    override(&out->n_heads, o->heads);
    override(&out->n_kv_heads, o->kv_heads);
    override(&out->head_dim, o->head_dim);
    override(&out->n_experts, o->experts);
    override(&out->top_k, o->top_k);
    override(&out->expert_ffn, o->ffn);
    override(&out->vocab, o->vocab);
    override(&out->context, o->context);
    override_float(&out->rms_eps, o->rms_eps);
    override_float(&out->rope_theta, o->rope_theta);
    override_float(&out->qkv_clip, o->qkv_clip);
    return configure_options(&out->options, o);
}

/* ---- the folder ---- */

/* SY_EEXISTS: there is something in it already. */
static sy_status check_empty(const char *path, sy_error *err)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    sy_status st = SY_OK;

    if (dir == NULL && errno == ENOENT) return SY_OK; /* it will be made */
    if (dir == NULL)
        return sy_error_set(err, SY_EIO, "%s: cannot open the folder: %s", path,
                            strerrordesc_np(errno));
    while ((entry = readdir(dir)) != NULL && st == SY_OK)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            st = sy_error_set(err, SY_EEXISTS,
                              "%s: holds %.100s already: name another folder, or say --force", path,
                              entry->d_name);
    closedir(dir);
    return st;
}

static void on_bytes(void *arg, uint64_t done, uint64_t total)
{
    tool_progress_show(arg, done, total);
}

/* Opening it again checks what was written as any reader would. */
static sy_status report(const options *o, sy_error *err)
{
    char size[TOOL_SIZE_BYTES];
    sy_strbuf path;
    sy_model *model = NULL;
    const sy_status st = sy_model_open(&model, o->out, NULL, err);

    if (st != SY_OK) return st;
    if (o->json) {
        sy_strbuf_init(&path);
        sy_strbuf_json_string(&path, o->out, strlen(o->out));
        printf("{\"dir\":%s,\"tensors\":%zu,\"bytes\":%" PRIu64 ",\"structure_hash\":\"%016" PRIx64
               "\"}\n",
               path.data, sy_model_tensor_count(model), sy_model_bytes(model),
               sy_model_structure_hash(model));
        sy_strbuf_free(&path);
    } else {
        printf("%s: %zu tensors, %s\n", o->out, sy_model_tensor_count(model),
               tool_size(size, sy_model_bytes(model)));
    }
    sy_model_close(model);
    return SY_OK;
}

static sy_status write_described(const options *o, const sy_synth_options *how, sy_error *err)
{
    char *text = NULL;
    size_t n = 0;
    sy_status st;

    SY_TRY(sy_file_read(&text, &n, o->config, CONFIG_BYTES_MAX, err));
    st = sy_synth_write_config(o->out, text, n, how, err);
    if (st != SY_OK) sy_error_prefix(err, "%s", o->config);
out:
    free(text);
    return st;
}

int cmd_synth(int argc, char **argv)
{
    tool_progress progress = {.label = "writing"};
    sy_synth_config config = {0};
    options o;
    sy_error err = {0};
    sy_status st = SY_OK;
    int code = parse(&o, argc, argv);

    if (code == 0)
        code = o.config != NULL ? configure_options(&config.options, &o) : configure(&config, &o);
    if (code != 0) return SY_MAX(code, 0);
    sy_error_clear(&err);
    config.options.progress = on_bytes;
    config.options.progress_arg = &progress;
    if (!o.force) SY_TRY(check_empty(o.out, &err));
    st = o.config != NULL ? write_described(&o, &config.options, &err)
                          : sy_synth_write(o.out, &config, &err);
    tool_progress_end(&progress);
    if (st == SY_OK) st = report(&o, &err);
out:
    return st == SY_OK ? tool_flush_stdout() : tool_fail(&err);
}
