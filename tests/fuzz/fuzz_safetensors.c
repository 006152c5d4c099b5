/* fuzz_safetensors.c - any bytes as a safetensors file: it opens or it does not, and what opened
 * lies inside the file. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every tensor is found by its name, and follows the one before it without a gap. */
static void check_tensors(const sy_safetensors *file, size_t file_bytes)
{
    const size_t n = sy_safetensors_count(file);
    uint64_t total_bytes = 0;
    const uint8_t *end = NULL;

    for (size_t i = 0; i < n; i++) {
        const sy_tensor *tensor = sy_safetensors_at(file, i);

        SY_ASSERT(sy_safetensors_find(file, tensor->name) == tensor);
        SY_ASSERT(tensor->rank <= SY_TENSOR_RANK_MAX && strlen(tensor->name) <= SY_TENSOR_NAME_MAX);
        SY_ASSERT(end == NULL || tensor->data == end);
        end = tensor->data + tensor->bytes;
        total_bytes += tensor->bytes;
        if (tensor->bytes > 0) {
            const volatile uint8_t *bytes = tensor->data;

            (void)bytes[0];
            (void)bytes[tensor->bytes - 1];
        }
    }
    SY_ASSERT(total_bytes <= file_bytes);
    SY_ASSERT(sy_safetensors_at(file, n) == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("safetensors", MFD_CLOEXEC);
    sy_safetensors *file = NULL;
    sy_error err;
    char path[64];

    SY_ASSERT(fd >= 0 && (size == 0 || write(fd, data, size) == (ssize_t)size));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    sy_error_clear(&err);
    if (sy_safetensors_open(&file, path, &err) == SY_OK) {
        check_tensors(file, size);
    } else {
        SY_ASSERT(file == NULL && err.message[0] != '\0');
    }
    sy_safetensors_close(file);
    close(fd);
    return 0;
}
