/* sy_backend_load.c - see the header. The build says SY_BACKEND_LIBDIR: where plugins are
 * installed. */
#include "sy_backend_load.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_strbuf.h"

static sy_status refuse(sy_error *err, sy_status st, const char *reason)
{
    sy_error_where(err, reason, -1, -1, NULL);
    return st;
}

static sy_status mismatch(sy_error *err, const char *path, const char *what)
{
    return refuse(err,
                  sy_error_set(err, SY_EPRECONDITION,
                               "%s %s: take the plugin that was built with this program", path,
                               what),
                  "BACKEND_MISMATCH");
}

/* ---- one file ---- */

static int has_all_entries(const sy_backend *b)
{
    return b->probe != NULL && b->blas_version != NULL && b->open != NULL && b->close != NULL &&
           b->memory != NULL && b->buffer_alloc != NULL && b->buffer_free != NULL &&
           b->copy_in != NULL && b->copy_out != NULL && b->measure_copies != NULL &&
           b->pool_open != NULL && b->pool_close != NULL && b->pool_describe != NULL &&
           b->slot_write != NULL && b->slot_flush != NULL && b->slot_read != NULL &&
           b->slot_hash != NULL && b->slot_copy != NULL && b->pool_export != NULL &&
           b->pool_import != NULL && b->remote_close != NULL && b->slot_pull != NULL &&
           b->lane != NULL && b->submit != NULL && b->wait != NULL && b->pinned_alloc != NULL &&
           b->pinned_free != NULL && b->matrix_bytes != NULL && b->matrix_write != NULL &&
           b->stream_open != NULL && b->stream_close != NULL && b->stream_run != NULL &&
           b->stream_mark != NULL && b->stream_wait != NULL && b->attend_scratch_bytes != NULL;
}

static sy_status check_table(const sy_backend *b, const char *path, const char *name, sy_error *err)
{
    char what[128];

    if (b == NULL || b->abi != SY_BACKEND_ABI) {
        snprintf(what, sizeof(what), "has no table of ABI %u", SY_BACKEND_ABI);
        return mismatch(err, path, what);
    }
    if (b->size < sizeof(*b)) {
        snprintf(what, sizeof(what), "is older: its table has %u bytes of %zu", b->size,
                 sizeof(*b));
        return mismatch(err, path, what);
    }
    if (b->name == NULL || strcmp(b->name, name) != 0) {
        snprintf(what, sizeof(what), "is the backend %.32s and not %.32s",
                 b->name != NULL ? b->name : "without a name", name);
        return mismatch(err, path, what);
    }
    if (!has_all_entries(b)) return mismatch(err, path, "leaves entries of its table empty");
    return SY_OK;
}

sy_status sy_backend_load_file(const sy_backend **out, const char *path, const char *name,
                               sy_error *err)
{
    const sy_backend *b;
    sy_backend_entry entry;
    void *library;
    sy_status st;

    *out = NULL;
    SY_ASSERT(strchr(path, '/') != NULL);
    /* Local: no symbol of it shows elsewhere. Never unloaded: a vendor's runtime has threads and
     * handlers of its own. */
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return refuse(err, sy_error_set(err, SY_EPRECONDITION, "%s", dlerror()),
                      "BACKEND_NOT_LOADABLE");
    *(void **)&entry = dlsym(library, SY_BACKEND_ENTRY);
    if (entry == NULL) return mismatch(err, path, "has no symbol " SY_BACKEND_ENTRY);
    b = entry(SY_BACKEND_ABI);
    st = check_table(b, path, name, err);
    if (st == SY_OK) *out = b;
    return st;
}

/* ---- the search ---- */

/* out: [cap]. 0: the path does not fit, or there is none. */
static int path_beside_program(char *out, size_t cap, const char *file)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    int len;

    if (n < 0) return 0;
    self[n] = '\0';
    len = snprintf(out, cap, "%s/../lib/switchyard/%s", dirname(self), file);
    return len > 0 && (size_t)len < cap;
}

static int path_in(char *out, size_t cap, const char *dir, const char *file)
{
    const int len = snprintf(out, cap, "%s/%s", dir, file);

    return len > 0 && (size_t)len < cap;
}

static int is_there(const char *path, sy_strbuf *tried)
{
    if (access(path, F_OK) == 0) return 1;
    sy_strbuf_printf(tried, "%s%s", tried->len > 0 ? ", " : "", path);
    return 0;
}

/* path: [PATH_MAX], the first that is there; "" and what was tried when there is none. */
static sy_status find(char *path, sy_strbuf *tried, const char *file, sy_error *err)
{
    const char *named = getenv(SY_BACKEND_DIR_VARIABLE);

    path[0] = '\0';
    if (named != NULL && named[0] != '\0') {
        if (named[0] != '/')
            return sy_error_set(err, SY_EINVAL,
                                SY_BACKEND_DIR_VARIABLE "=%s: write an absolute path", named);
        if (path_in(path, PATH_MAX, named, file) && is_there(path, tried)) return SY_OK;
    }
    if (path_beside_program(path, PATH_MAX, file) && is_there(path, tried)) return SY_OK;
    if (path_in(path, PATH_MAX, SY_BACKEND_LIBDIR, file) && is_there(path, tried)) return SY_OK;
    path[0] = '\0';
    return SY_OK;
}

sy_status sy_backend_load(const sy_backend **out, const char *name, sy_error *err)
{
    char file[64];
    char path[PATH_MAX];
    sy_strbuf tried;
    sy_status st;

    *out = NULL;
    SY_ASSERT(strlen(name) < sizeof(file) - sizeof("libswitchyard_.so"));
    snprintf(file, sizeof(file), "libswitchyard_%s.so", name);
    sy_strbuf_init(&tried);
    SY_TRY(find(path, &tried, file, err));
    if (path[0] == '\0') {
        st = refuse(err,
                    sy_error_set(err, SY_ENOTFOUND,
                                 "this installation has no %s plugin: there is no %s", name,
                                 tried.data),
                    "BACKEND_NOT_FOUND");
        goto out;
    }
    st = sy_backend_load_file(out, path, name, err);
out:
    sy_strbuf_free(&tried);
    return st;
}

sy_status sy_backend_status(int result)
{
    switch (result) {
    case SY_BACKEND_OK: return SY_OK;
    case SY_BACKEND_ENODEVICE:
    case SY_BACKEND_EDEVLOST: return SY_EUNAVAILABLE;
    case SY_BACKEND_EINVAL: return SY_EINVAL;
    case SY_BACKEND_ENOMEM: return SY_ENOMEM;
    default: return SY_EIO;
    }
}
