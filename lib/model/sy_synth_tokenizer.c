/* sy_synth_tokenizer.c - a byte-level tokenizer without merges, in the format of Hugging Face's
 * tokenizers, or a copy of a given one. */
#include "sy_synth_tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_model.h"
#include "sy_strbuf.h"

#define TOKENIZER_BYTES_MAX ((size_t)256 << 20)
#define N_BYTES             256u

/* The printable stand-in of a byte, as GPT-2's byte-level vocabulary has it: the byte's own
 * character where that is printable, else the next free one from U+0100 on. n_hidden: how many
 * stand-ins from there are taken. */
static uint32_t byte_character(uint32_t byte, uint32_t *n_hidden)
{
    const int is_printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;

    return is_printable ? byte : 0x100 + (*n_hidden)++;
}

static void render_tokenizer(sy_strbuf *out)
{
    uint32_t n_hidden = 0;

    sy_strbuf_puts(out,
                   "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                   "  \"added_tokens\": [],\n  \"normalizer\": null,\n"
                   "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                   "\"trim_offsets\": true, \"use_regex\": true},\n"
                   "  \"post_processor\": null,\n"
                   "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                   "\"trim_offsets\": true, \"use_regex\": true},\n"
                   "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                   "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                   "\"fuse_unk\": false, \"byte_fallback\": false,\n    \"vocab\": {");
    for (uint32_t byte = 0; byte < N_BYTES; byte++) {
        const uint32_t c = byte_character(byte, &n_hidden);
        const char utf8[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        const char ascii = (char)c;

        sy_strbuf_puts(out, byte > 0 ? ", " : "");
        if (c < 0x80) {
            sy_strbuf_json_string(out, &ascii, 1);
        } else {
            sy_strbuf_json_string(out, utf8, sizeof(utf8));
        }
        sy_strbuf_printf(out, ": %u", byte);
    }
    sy_strbuf_puts(out, "},\n    \"merges\": []}\n}\n");
}

static sy_status copy_file(const char *dir, const char *source_dir, const char *name, sy_error *err)
{
    char from[PATH_MAX];
    char to[PATH_MAX];
    char *data = NULL;
    size_t len;
    sy_status st;

    SY_TRY(sy_checkpoint_path(from, source_dir, name, err));
    SY_TRY(sy_checkpoint_path(to, dir, name, err));
    SY_TRY(sy_file_read(&data, &len, from, TOKENIZER_BYTES_MAX, err));
    st = sy_file_write_atomic(to, data, len, err);
out:
    free(data);
    return st;
}

static sy_status write_byte_level(const char *dir, sy_error *err)
{
    static const char settings[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                   "  \"add_bos_token\": false,\n"
                                   "  \"clean_up_tokenization_spaces\": false\n}\n";
    char path[PATH_MAX];
    sy_strbuf text;
    sy_status st;

    sy_strbuf_init(&text);
    render_tokenizer(&text);
    if (text.failed) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for the tokenizer");
        goto out;
    }
    SY_TRY(sy_checkpoint_path(path, dir, "tokenizer.json", err));
    SY_TRY(sy_file_write_atomic(path, text.data, text.len, err));
    SY_TRY(sy_checkpoint_path(path, dir, "tokenizer_config.json", err));
    st = sy_file_write_atomic(path, settings, sizeof(settings) - 1, err);
out:
    sy_strbuf_free(&text);
    return st;
}

sy_status sy_synth_tokenizer_write(const char *dir, const char *source_dir, sy_error *err)
{
    sy_status st;

    if (source_dir == NULL) return write_byte_level(dir, err);
    st = copy_file(dir, source_dir, "tokenizer.json", err);
    return st == SY_OK ? copy_file(dir, source_dir, "tokenizer_config.json", err) : st;
}

sy_status sy_synth_eos(uint32_t *out, const char *source_dir, uint32_t vocab, sy_error *err)
{
    sy_model_desc desc = {.vocab = vocab};
    char path[PATH_MAX];
    char *text = NULL;
    size_t len;
    sy_status st = SY_OK;

    *out = 0;
    if (source_dir == NULL) {
        if (vocab >= N_BYTES) return SY_OK;
        return sy_error_set(err, SY_EINVAL,
                            "a vocabulary of %" PRIu32 " is too small for a byte-level tokenizer, "
                            "which needs %u: raise it, or name a tokenizer",
                            vocab, N_BYTES);
    }
    SY_TRY(sy_checkpoint_path(path, source_dir, "generation_config.json", err));
    st = sy_file_read(&text, &len, path, TOKENIZER_BYTES_MAX, err);
    if (st == SY_OK) {
        st = sy_generation_config_parse(&desc, text, len, err);
        if (st != SY_OK) sy_error_prefix(err, "%s", path);
    } else if (st == SY_ENOTFOUND) {
        sy_error_clear(err);
        st = SY_OK;
    }
    *out = desc.n_eos > 0 ? (uint32_t)desc.eos[0] : vocab - 1;
out:
    free(text);
    return st;
}
