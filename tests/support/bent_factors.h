/* bent_factors.h - the factors of a synthetic fp8 checkpoint are powers of two, with which bf16 has
 * every weight exactly; those of real ones are not. */
#ifndef BENT_FACTORS_H
#define BENT_FACTORS_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_hash.h"
#include "sy_safetensors.h"

/* Multiplies every factor of DIR/model.safetensors by a number of its own in [0.7, 1). Nothing else
 * has the file open. */
static inline void bend_factors(const char *dir)
{
    const uint8_t *first = NULL;
    uint64_t header_bytes = 0;
    sy_safetensors *file;
    sy_error err = {0};
    char path[128];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    if (sy_safetensors_open(&file, path, &err) != SY_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    const int fd = open(path, O_RDWR);
    if (pread(fd, &header_bytes, sizeof(header_bytes), 0) != sizeof(header_bytes)) abort();
    /* Tensors follow each other, so that the first one in memory is where the data begins. */
    for (size_t i = 0; i < sy_safetensors_count(file); i++) {
        const uint8_t *data = sy_safetensors_at(file, i)->data;
        if (first == NULL || data < first) first = data;
    }
    for (size_t i = 0; i < sy_safetensors_count(file); i++) {
        const sy_tensor *t = sy_safetensors_at(file, i);
        const off_t at = (off_t)(sizeof(header_bytes) + header_bytes) + (t->data - first);

        if (strstr(t->name, "_scale_inv") == NULL) continue;
        for (size_t f = 0; f < t->n_elements; f++) {
            float factor;

            memcpy(&factor, t->data + f * sizeof(factor), sizeof(factor));
            factor *= 0.7f + 0.3f * sy_unit_float(sy_splitmix64(17 * i + f));
            if (pwrite(fd, &factor, sizeof(factor), at + (off_t)(f * sizeof(factor))) !=
                sizeof(factor))
                abort();
        }
    }
    close(fd);
    sy_safetensors_close(file);
}

#endif
