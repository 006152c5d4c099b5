/* sy_gguf_set.c - parts by number: their names follow from the first one's, and each says in its
 * metadata which one it is. */
#include "sy_gguf_set.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"

#define EXTENSION   ".gguf"
#define TAIL_FORMAT "-%05" PRIu32 "-of-%05" PRIu32 EXTENSION
#define TAIL_BYTES  sizeof("-00001-of-00003" EXTENSION)

struct sy_gguf_set {
    sy_gguf **part;                 /* [n_parts] */
    char **path;                    /* [n_parts] */
    const sy_gguf_tensor **by_name; /* [n_tensors] */
    size_t n_parts, n_tensors;
};

static int ends_with(const char *s, const char *tail)
{
    const size_t n = strlen(s);
    const size_t m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Five digits; 0 where there are others. */
static uint32_t five_digits(const char *s)
{
    uint32_t number = 0;

    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return 0;
        number = 10 * number + (uint32_t)(s[i] - '0');
    }
    return number;
}

/* Whether name ends as part `number` of any split does. */
static int part_number(uint32_t *number, const char *name)
{
    const size_t n = strlen(name);
    const char *digits;
    char tail[TAIL_BYTES];

    if (n < TAIL_BYTES - 1) return 0;
    digits = name + n - (TAIL_BYTES - 2); /* behind the dash */
    *number = five_digits(digits);
    (void)snprintf(tail, sizeof(tail), TAIL_FORMAT, *number, five_digits(digits + 9));
    return ends_with(name, tail);
}

sy_status sy_gguf_locate(char out[PATH_MAX], const char *dir, sy_error *err)
{
    DIR *folder = opendir(dir);
    char found[NAME_MAX + 1] = "";
    const struct dirent *entry;
    sy_status st = SY_OK;

    if (folder == NULL) {
        st = errno == ENOENT || errno == ENOTDIR ? SY_ENOTFOUND : SY_EIO;
        return sy_error_set(err, st, "%s: cannot list it: %s", dir, strerrordesc_np(errno));
    }
    while (st == SY_OK && (entry = readdir(folder)) != NULL) {
        uint32_t number;

        if (!ends_with(entry->d_name, EXTENSION)) continue;
        if (part_number(&number, entry->d_name) && number != 1) continue;
        if (found[0] != '\0') {
            st = sy_error_set(err, SY_EINVAL,
                              "%s: holds several models, %.80s and %.80s: keep one of them", dir,
                              found, entry->d_name);
        }
        (void)snprintf(found, sizeof(found), "%s", entry->d_name);
    }
    closedir(folder);
    if (st != SY_OK) return st;
    if (found[0] == '\0') return sy_error_set(err, SY_ENOTFOUND, "%s: holds no .gguf file", dir);
    if (sy_path_join(out, PATH_MAX, dir, found) != SY_OK)
        return sy_error_set(err, SY_EINVAL, "%s: the path of %s is too long", dir, found);
    return SY_OK;
}

sy_status sy_gguf_locate_file(char out[PATH_MAX], const char *path, sy_error *err)
{
    if (!ends_with(path, EXTENSION)) return sy_gguf_locate(out, path, err);
    if (!sy_file_exists(path))
        return sy_error_set(err, SY_EINVAL, "%s: there is no such file", path);
    if (snprintf(out, PATH_MAX, "%s", path) >= PATH_MAX)
        return sy_error_set(err, SY_EINVAL, "%s: the path is too long", path);
    return SY_OK;
}

static sy_status reserve(sy_gguf_set *self, uint32_t n_parts, sy_error *err)
{
    self->part = calloc(n_parts, sizeof(*self->part));
    self->path = calloc(n_parts, sizeof(*self->path));
    if (self->part != NULL && self->path != NULL) return SY_OK;
    return sy_error_set(err, SY_ENOMEM, "no memory for %" PRIu32 " files", n_parts);
}

/* Takes file over, whatever happens. */
static sy_status add_part(sy_gguf_set *self, sy_gguf *file, const char *path, sy_error *err)
{
    self->part[self->n_parts] = file;
    self->path[self->n_parts] = strdup(path);
    self->n_parts++;
    self->n_tensors += sy_gguf_count(file);
    if (self->path[self->n_parts - 1] != NULL) return SY_OK;
    return sy_error_set(err, SY_ENOMEM, "%s: no memory", path);
}

/* The count in the first part; 1 for a file that is not split. */
static sy_status read_split(uint32_t *n_parts, const sy_gguf *file, sy_error *err)
{
    uint32_t number = 0;
    sy_status st;

    *n_parts = 1;
    if (sy_gguf_value_of(file, "split.count") == NULL) return SY_OK;
    st = sy_gguf_u32(n_parts, file, "split.count", err);
    if (st != SY_OK) return st;
    if (*n_parts > SY_GGUF_PARTS_MAX) {
        return sy_error_set(err, SY_ELIMIT, "split.count is %" PRIu32 ", above the limit of %u",
                            *n_parts, SY_GGUF_PARTS_MAX);
    }
    if (*n_parts <= 1) { /* 0 and 1 both mean that there is nothing else */
        *n_parts = 1;
        return SY_OK;
    }
    st = sy_gguf_u32(&number, file, "split.no", err);
    if (st == SY_OK && number != 0) {
        st = sy_error_set(err, SY_EINVAL, "is part %" PRIu32 " of %" PRIu32 ": open the first one",
                          number + 1, *n_parts);
    }
    return st;
}

static sy_status check_part(const sy_gguf *file, uint32_t number, uint32_t n_parts, sy_error *err)
{
    uint32_t says_number = 0, says_count = 0;
    sy_status st;

    SY_TRY(sy_gguf_u32(&says_number, file, "split.no", err));
    SY_TRY(sy_gguf_u32(&says_count, file, "split.count", err));
    if (says_number != number || says_count != n_parts) {
        return sy_error_set(err, SY_EINVAL,
                            "says it is part %" PRIu32 " of %" PRIu32 ", where part %" PRIu32
                            " of %" PRIu32 " is needed",
                            says_number + 1, says_count, number + 1, n_parts);
    }
out:
    return st;
}

static sy_status open_rest(sy_gguf_set *self, uint32_t n_parts, sy_error *err)
{
    char path[PATH_MAX];
    char tail[TAIL_BYTES];
    size_t stem;

    (void)snprintf(tail, sizeof(tail), TAIL_FORMAT, (uint32_t)1, n_parts);
    if (!ends_with(self->path[0], tail)) {
        return sy_error_set(err, SY_EINVAL,
                            "%s: is the first of %" PRIu32 " parts, so its name must end in %s",
                            self->path[0], n_parts, tail);
    }
    stem = strlen(self->path[0]) - strlen(tail);
    if (stem + TAIL_BYTES > sizeof(path))
        return sy_error_set(err, SY_EINVAL, "%s: the path is too long", self->path[0]);
    memcpy(path, self->path[0], stem);
    for (uint32_t i = 1; i < n_parts; i++) {
        sy_gguf *file;
        sy_status st;

        (void)snprintf(path + stem, sizeof(path) - stem, TAIL_FORMAT, i + 1, n_parts);
        st = sy_gguf_open(&file, path, err);
        if (st != SY_OK) return st;
        st = add_part(self, file, path, err);
        if (st != SY_OK) return st;
        st = check_part(file, i, n_parts, err);
        if (st != SY_OK) {
            sy_error_prefix(err, "%s", path);
            return st;
        }
    }
    return SY_OK;
}

static int order_by_name(const void *a, const void *b)
{
    const sy_gguf_tensor *const *x = a;
    const sy_gguf_tensor *const *y = b;

    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

static sy_status merge(sy_gguf_set *self, sy_error *err)
{
    uint32_t wanted = (uint32_t)self->n_tensors;
    size_t n = 0;
    sy_status st;

    self->by_name = calloc(self->n_tensors + 1, sizeof(*self->by_name));
    if (self->by_name == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", self->n_tensors);
    for (size_t p = 0; p < self->n_parts; p++) {
        for (size_t i = 0; i < sy_gguf_count(self->part[p]); i++)
            self->by_name[n++] = sy_gguf_at(self->part[p], i);
    }
    qsort(self->by_name, n, sizeof(*self->by_name), order_by_name);
    for (size_t i = 1; i < n; i++) {
        if (order_by_name(&self->by_name[i - 1], &self->by_name[i]) == 0) {
            return sy_error_set(err, SY_EINVAL, "%s: two parts hold the tensor \"%s\"",
                                self->path[0], self->by_name[i]->tensor.name);
        }
    }
    if (self->n_parts == 1 || sy_gguf_value_of(self->part[0], "split.tensors.count") == NULL)
        return SY_OK;
    st = sy_gguf_u32(&wanted, self->part[0], "split.tensors.count", err);
    if (st == SY_OK && wanted != n) {
        st = sy_error_set(err, SY_EINVAL,
                          "split.tensors.count is %" PRIu32 ", but the parts hold %zu tensors",
                          wanted, n);
    }
    if (st != SY_OK) sy_error_prefix(err, "%s", self->path[0]);
    return st;
}

sy_status sy_gguf_set_open(sy_gguf_set **out, const char *path, sy_error *err)
{
    sy_gguf_set *self = calloc(1, sizeof(*self));
    sy_gguf *first = NULL;
    uint32_t n_parts = 1;
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "%s: no memory to open it", path);
    SY_TRY(sy_gguf_open(&first, path, err));
    st = read_split(&n_parts, first, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", path);
        goto out;
    }
    SY_TRY(reserve(self, n_parts, err));
    st = add_part(self, first, path, err);
    first = NULL;
    if (st != SY_OK) goto out;
    if (n_parts > 1) SY_TRY(open_rest(self, n_parts, err));
    SY_TRY(merge(self, err));
    *out = self;
    self = NULL;
out:
    sy_gguf_close(first);
    sy_gguf_set_close(self);
    return st;
}

void sy_gguf_set_close(sy_gguf_set *set)
{
    if (set == NULL) return;
    for (size_t i = 0; i < set->n_parts; i++) {
        sy_gguf_close(set->part[i]);
        free(set->path[i]);
    }
    free(set->part);
    free(set->path);
    free(set->by_name);
    free(set);
}

const sy_gguf *sy_gguf_set_metadata(const sy_gguf_set *set)
{
    return set->part[0];
}

size_t sy_gguf_set_parts(const sy_gguf_set *set)
{
    return set->n_parts;
}

const char *sy_gguf_set_part_path(const sy_gguf_set *set, size_t part)
{
    return part < set->n_parts ? set->path[part] : NULL;
}

size_t sy_gguf_set_count(const sy_gguf_set *set)
{
    return set->n_tensors;
}

const sy_gguf_tensor *sy_gguf_set_at(const sy_gguf_set *set, size_t i)
{
    return i < set->n_tensors ? set->by_name[i] : NULL;
}

const sy_gguf_tensor *sy_gguf_set_find(const sy_gguf_set *set, const char *name)
{
    const sy_gguf_tensor wanted = {.tensor = {.name = name}};
    const sy_gguf_tensor *key = &wanted;
    const sy_gguf_tensor **found =
        bsearch(&key, set->by_name, set->n_tensors, sizeof(*set->by_name), order_by_name);

    return found != NULL ? *found : NULL;
}
