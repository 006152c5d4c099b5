/* fuzz_gguf.c - any bytes as a GGUF file: it opens or it does not; what opened lies inside the
 * file, its metadata can be read, and making a configuration, a tokenizer and rows of it ends in a
 * text or an error. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_gguf_map.h"
#include "sy_gguf_tokenizer.h"
#include "sy_model.h"
#include "sy_tokenizer.h"

#define FLOATS_MAX ((uint64_t)1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_metadata(const sy_gguf *file)
{
    for (size_t i = 0; i < sy_gguf_key_count(file); i++) {
        const sy_gguf_value *value;
        const char *key = sy_gguf_key_at(file, i, &value);
        uint64_t sum = 0;

        SY_ASSERT(sy_gguf_value_of(file, key) == value);
        for (size_t k = 0; k < value->n; k++) {
            int64_t number = 0;
            float real = 0.0f;
            int truth = 0;

            if (value->strings != NULL && value->strings[k].n > 0)
                sum += (uint8_t)value->strings[k].s[value->strings[k].n - 1];
            sum += (uint64_t)(sy_gguf_value_i64(&number, value, k) + truth);
            sum += (uint64_t)sy_gguf_value_f32(&real, value, k);
            sum += (uint64_t)sy_gguf_value_bool(&truth, value, k);
        }
        SY_ASSERT(sum != UINT64_MAX);
    }
}

static void check_rows(const sy_gguf_set *set, const sy_gguf_tensor *tensor)
{
    sy_gguf_place place;
    sy_error err;
    float *rows;

    if (sy_gguf_place_of(&place, set, tensor, &err) != SY_OK || place.name[0] == '\0') return;
    SY_ASSERT(place.n_matrices * place.n_rows * place.n_columns == tensor->tensor.n_elements);
    if (place.n_rows * place.n_columns > FLOATS_MAX) return;
    rows = calloc(place.n_rows * place.n_columns, sizeof(float));
    SY_ASSERT(rows != NULL);
    for (uint64_t m = 0; m < SY_MIN(place.n_matrices, 2u); m++)
        SY_ASSERT(sy_gguf_read_rows(rows, tensor, &place, m, 0, place.n_rows, &err) == SY_OK ||
                  err.status == SY_EUNIMPLEMENTED);
    free(rows);
}

static void check_tensors(const sy_gguf_set *set, size_t file_bytes)
{
    const sy_gguf *file = sy_gguf_set_metadata(set);
    uint64_t total_bytes = 0;

    SY_ASSERT(sy_gguf_set_count(set) == sy_gguf_count(file));
    for (size_t i = 0; i < sy_gguf_count(file); i++) {
        const sy_gguf_tensor *item = sy_gguf_at(file, i);
        const volatile uint8_t *bytes = item->tensor.data;

        SY_ASSERT(sy_gguf_find(file, item->tensor.name) == item);
        SY_ASSERT(sy_gguf_set_find(set, item->tensor.name) == item);
        SY_ASSERT(item->tensor.bytes > 0);
        (void)bytes[0];
        (void)bytes[item->tensor.bytes - 1];
        total_bytes += item->tensor.bytes;
        check_rows(set, item);
    }
    SY_ASSERT(total_bytes <= file_bytes);
}

static void check_texts(const sy_gguf_set *set)
{
    sy_strbuf config, tokenizer;
    sy_tokenizer *parsed = NULL;
    sy_model_desc desc;
    sy_error err;

    sy_strbuf_init(&config);
    sy_strbuf_init(&tokenizer);
    if (sy_gguf_config(&config, set, &err) == SY_OK &&
        sy_model_desc_parse(&desc, config.data, config.len, &err) != SY_OK) {
        SY_ASSERT(strstr(err.message, "not JSON") == NULL);
    }
    sy_strbuf_reset(&config);
    if (sy_gguf_tokenizer(&tokenizer, &config, sy_gguf_set_metadata(set), &err) == SY_OK &&
        sy_tokenizer_parse(&parsed, tokenizer.data, tokenizer.len, config.data, config.len, 65536,
                           &err) != SY_OK) {
        SY_ASSERT(strstr(err.message, "not JSON") == NULL);
    }
    sy_tokenizer_close(parsed);
    sy_strbuf_free(&config);
    sy_strbuf_free(&tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("gguf", MFD_CLOEXEC);
    sy_gguf_set *set = NULL;
    sy_error err;
    char path[64];

    SY_ASSERT(fd >= 0 && (size == 0 || write(fd, data, size) == (ssize_t)size));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    sy_error_clear(&err);
    if (sy_gguf_set_open(&set, path, &err) == SY_OK) {
        check_metadata(sy_gguf_set_metadata(set));
        check_tensors(set, size);
        check_texts(set);
    } else {
        SY_ASSERT(set == NULL && err.message[0] != '\0');
    }
    sy_gguf_set_close(set);
    close(fd);
    return 0;
}
