/* bench_tokenizer.c - how fast text becomes ids, one core: for each tokenizer the documents and
 * sources of this repository, and words of many scripts that do not repeat. Before anything is
 * timed the ids must give the text back. One JSON object a line. */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_limits.h"
#include "bench_stats.h"
#include "sy_args.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "sy_tokenizer.h"
#include "sy_unicode.h"

#define FILE_BYTES_MAX    ((size_t)64 << 20)
#define NATURAL_BYTES_MAX ((size_t)2 << 20)
#define SCRIPTS_BYTES     ((size_t)1 << 20)
#define VOCAB_MAX         (1u << 20)
#define SAMPLES_MAX       64
#define PATH_BYTES        4096
#define GOLDEN            SY_SOURCE_DIR "/tests/golden/tokenizer"

typedef struct bench {
    double seconds; /* a figure */
    sy_strbuf natural, scripts;
} bench;

/* ---- texts ---- */

static void append_file(sy_strbuf *out, const char *path)
{
    char *data = NULL;
    size_t n = 0;
    sy_error err;

    if (sy_file_read(&data, &n, path, FILE_BYTES_MAX, &err) == SY_OK &&
        sy_utf8_check(data, n) == n && out->len + n <= NATURAL_BYTES_MAX) {
        sy_strbuf_append(out, data, n);
    }
    free(data);
}

/* Every document and source below dir, in the order of their names. */
static void append_tree(sy_strbuf *out, const char *dir)
{
    struct dirent **entry = NULL;
    const int n = scandir(dir, &entry, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name, *dot = strrchr(name, '.');
        char path[PATH_BYTES];
        if (name[0] != '.' && sy_path_join(path, sizeof(path), dir, name) == SY_OK) {
            if (dot == NULL) {
                append_tree(out, path);
            } else if (strcmp(dot, ".md") == 0 || strcmp(dot, ".c") == 0 ||
                       strcmp(dot, ".h") == 0) {
                append_file(out, path);
            }
        }
        free(entry[i]);
    }
    free(entry);
}

/* Words of random letters, a line in one script, so that no table of words helps. */
static void append_scripts(sy_strbuf *out)
{
    static const struct {
        uint32_t first, n, word_max; /* 0: no spaces */
    } script[] = {{'a', 26, 9},      {0xE0, 23, 8},      {0x3B1, 25, 9}, {0x430, 32, 10},
                  {0x5D0, 27, 6},    {0x627, 36, 7},     {0x905, 53, 6}, {0x3041, 83, 0},
                  {0x4E00, 6000, 0}, {0xAC00, 11172, 4}, {'0', 10, 5}};
    uint64_t seed = 1;

    while (out->len < SCRIPTS_BYTES) {
        seed = sy_splitmix64(seed + 1);
        const size_t k = (size_t)(seed % SY_COUNT_OF(script));
        uint32_t left = 1;
        for (int i = 0; i < 40; i++) {
            char c[4];
            seed = sy_splitmix64(seed + 1);
            sy_strbuf_append(out, c,
                             sy_utf8_put(c, script[k].first + (uint32_t)(seed % script[k].n)));
            if (script[k].word_max == 0 || --left > 0) continue;
            sy_strbuf_append(out, " ", 1);
            left = 1 + (uint32_t)(seed >> 32) % script[k].word_max;
        }
        sy_strbuf_append(out, ".\n", 2);
    }
}

/* ---- what is timed ---- */

static int gives_text_back(const sy_tokenizer *tokenizer, const sy_ids *ids, const sy_strbuf *text)
{
    sy_detok state = {0};
    sy_strbuf out;

    sy_strbuf_init(&out);
    for (size_t i = 0; i < ids->n; i++) {
        sy_tokenizer_decode(tokenizer, &state, ids->id[i], 1, &out);
    }
    sy_tokenizer_decode_end(tokenizer, &state, &out);
    const int ok = out.len == text->len && memcmp(out.data, text->data, out.len) == 0;
    sy_strbuf_free(&out);
    return ok;
}

static void ignore_piece(void *arg, const char *s, size_t len)
{
    (void)s;
    *(size_t *)arg += len;
}

static int measure(const bench *b, const char *name, const sy_tokenizer *tokenizer,
                   const char *what, const sy_strbuf *text)
{
    double encode[SAMPLES_MAX], split[SAMPLES_MAX];
    sy_ids ids = {0};
    sy_error err;
    size_t n = 0, n_bytes = 0;

    if (sy_tokenizer_encode(tokenizer, &ids, text->data, text->len, 0, &err) != SY_OK ||
        !gives_text_back(tokenizer, &ids, text)) {
        fprintf(stderr, "bench_tokenizer: %s: the ids do not give the %s text back; not timed\n",
                name, what);
        sy_ids_free(&ids);
        return 0;
    }
    const double end = bench_now_s() + b->seconds;
    while (n < 3 || (n < SAMPLES_MAX && bench_now_s() < end)) {
        const double start = bench_now_s();
        ids.n = 0;
        (void)!sy_tokenizer_encode(tokenizer, &ids, text->data, text->len, 0, &err);
        const double encoded = bench_now_s();
        (void)!sy_tokenizer_split(tokenizer, text->data, text->len, ignore_piece, &n_bytes, &err);
        split[n] = bench_now_s() - encoded;
        encode[n++] = encoded - start;
    }
    const double mb = (double)text->len * 1e-6;
    printf("{\"tokenizer\": \"%s\", \"text\": \"%s\", \"bytes\": %zu, \"ids\": %zu, "
           "\"encode_mb_s\": %.1f, \"split_mb_s\": %.1f}\n",
           name, what, text->len, ids.n, mb / bench_quantile(encode, n, 0.5),
           mb / bench_quantile(split, n, 0.5));
    fflush(stdout);
    sy_ids_free(&ids);
    return 1;
}

static int measure_both(const bench *b, const char *name, sy_tokenizer *tokenizer)
{
    const int ok = measure(b, name, tokenizer, "natural", &b->natural) &&
                   measure(b, name, tokenizer, "scripts", &b->scripts);

    sy_tokenizer_close(tokenizer);
    return ok;
}

/* A golden file holds a tokenizer beside what it must do. */
static int measure_golden(const bench *b, const char *name)
{
    char path[PATH_BYTES];
    sy_tokenizer *tokenizer = NULL;
    sy_error err = {0};
    json_t *root;
    char *json;

    (void)snprintf(path, sizeof(path), GOLDEN "/%s.json", name);
    root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    json = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT);
    json_decref(root);
    if (json == NULL ||
        sy_tokenizer_parse(&tokenizer, json, strlen(json), NULL, 0, VOCAB_MAX, &err) != SY_OK) {
        fprintf(stderr, "bench_tokenizer: %s: %s\n", path, err.message);
        free(json);
        return 0;
    }
    free(json);
    return measure_both(b, name, tokenizer);
}

static int measure_folder(const bench *b, const char *dir)
{
    sy_tokenizer *tokenizer;
    sy_error err;

    if (sy_tokenizer_open(&tokenizer, dir, VOCAB_MAX, &err) != SY_OK) {
        fprintf(stderr, "bench_tokenizer: %s\n", err.message);
        return 0;
    }
    return measure_both(b, sy_path_base(dir), tokenizer);
}

int main(int argc, char **argv)
{
    static const char *const golden[] = {"gpt2",    "qwen2",          "llama3",
                                         "o200k",   "deepseek_v2",    "deepseek_v3",
                                         "granite", "metaspace_first"};
    const char *dir[SY_ARG_STRINGS_MAX];
    size_t n_dirs = 0;
    bench b = {.seconds = 2};
    int is_quick = 0, ok = 1;
    sy_error err;
    const sy_arg args[] = {{.name = "quick",
                            .help = "a tenth of the time, to see that it works",
                            .kind = SY_ARG_FLAG,
                            .out = &is_quick}};
    const sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                                       "bench_tokenizer [options] [CHECKPOINT...]", dir,
                                       SY_ARG_STRINGS_MAX, &n_dirs, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK) {
        fprintf(stderr, "bench_tokenizer: %s\n", err.message);
        return 2;
    }
    if (is_quick) b.seconds /= 10;
    sy_strbuf_init(&b.natural);
    sy_strbuf_init(&b.scripts);
    append_tree(&b.natural, SY_SOURCE_DIR "/docs");
    append_tree(&b.natural, SY_SOURCE_DIR "/lib");
    append_scripts(&b.scripts);
    for (size_t i = 0; ok && i < n_dirs; i++) ok = measure_folder(&b, dir[i]);
    for (size_t i = 0; ok && n_dirs == 0 && i < SY_COUNT_OF(golden); i++) {
        ok = measure_golden(&b, golden[i]);
    }
    sy_strbuf_free(&b.scripts);
    sy_strbuf_free(&b.natural);
    return ok ? 0 : 1;
}
