/* sy_devices.c - see the header. */
#include "sy_devices.h"

#include <stdio.h>
#include <string.h>

#include "sy_backend_load.h"

/* ---- names ---- */

/* Decimal digits without zeros in front, as the placement's grammar has them. 0: it is no number in
 * range. */
static int read_number(uint32_t *out, const char *s, size_t n)
{
    uint32_t value = 0;

    if (n == 0 || n > 4 || (n > 1 && s[0] == '0')) return 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return 0;
        value = value * 10 + (uint32_t)(s[i] - '0');
    }
    *out = value;
    return value <= SY_DEVICE_NUMBER_MAX;
}

static int equals(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(s, word, n) == 0;
}

static int read_device(sy_device *out, const char *s, size_t n)
{
    const char *colon = memchr(s, ':', n);
    size_t n_kind;

    if (colon == NULL) return 0;
    n_kind = (size_t)(colon - s);
    if (equals(s, n_kind, "cpu")) {
        out->kind = SY_DEVICE_CPU;
    } else if (equals(s, n_kind, "cuda")) {
        out->kind = SY_DEVICE_CUDA;
    } else {
        return 0;
    }
    if (!read_number(&out->number, colon + 1, n - n_kind - 1)) return 0;
    memcpy(out->name, s, n); /* "cuda:1023" at most */
    out->name[n] = '\0';
    return 1;
}

static sy_status add(sy_device_list *list, const char *s, size_t n, sy_error *err)
{
    sy_device device = {0};

    if (equals(s, n, "cuda")) {
        if (list->every_cuda) return sy_error_set(err, SY_EINVAL, "cuda is named twice");
        list->every_cuda = 1;
        return SY_OK;
    }
    if (!read_device(&device, s, n))
        return sy_error_set(err, SY_EINVAL,
                            "'%.*s' is not a device: write cpu:N or cuda:N with N from 0 to %u, or "
                            "cuda for all of them",
                            (int)SY_MIN(n, (size_t)64), s, SY_DEVICE_NUMBER_MAX);
    for (uint32_t i = 0; i < list->n; i++)
        if (strcmp(list->device[i].name, device.name) == 0)
            return sy_error_set(err, SY_EINVAL, "%s is named twice", device.name);
    if (list->n == SY_DEVICES_MAX)
        return sy_error_set(err, SY_EINVAL, "more than %d devices", SY_DEVICES_MAX);
    list->device[list->n++] = device;
    return SY_OK;
}

static sy_status check_every(const sy_device_list *list, sy_error *err)
{
    if (!list->every_cuda) return SY_OK;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->device[i].kind == SY_DEVICE_CUDA)
            return sy_error_set(err, SY_EINVAL, "%s is among cuda, which names all of them",
                                list->device[i].name);
    return SY_OK;
}

sy_status sy_devices_parse(sy_device_list *out, const char *text, sy_error *err)
{
    *out = (sy_device_list){0};
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        const sy_status st = add(out, at, n, err);

        if (st != SY_OK) return st;
        at += n;
        if (*at == '\0') return check_every(out, err);
    }
}

/* ---- what is there ---- */

const char *sy_backend_version_text(char out[SY_VERSION_TEXT_BYTES], uint32_t version)
{
    if (version == 0)
        snprintf(out, SY_VERSION_TEXT_BYTES, "none");
    else
        snprintf(out, SY_VERSION_TEXT_BYTES, "%u.%u", version / 1000, version % 1000 / 10);
    return out;
}

void sy_cuda_probe(sy_cuda *out)
{
    char why[SY_BACKEND_WHY_BYTES] = "";
    char driver[SY_VERSION_TEXT_BYTES], runtime[SY_VERSION_TEXT_BYTES];
    int result;

    *out = (sy_cuda){0};
    sy_error_clear(&out->why);
    if (sy_backend_load(&out->backend, "cuda", &out->why) != SY_OK) return;
    result = out->backend->probe(&out->system, out->device, SY_DEVICES_MAX, &out->n, why);
    if (result == SY_BACKEND_OK && out->n > 0) return;
    if (result == SY_BACKEND_OK) {
        result = SY_BACKEND_ENODEVICE;
        snprintf(why, sizeof(why), "the driver counts no device");
    }
    out->n = 0;
    sy_error_set(&out->why, sy_backend_status(result), "%s; driver %s, runtime %s", why,
                 sy_backend_version_text(driver, out->system.driver_version),
                 sy_backend_version_text(runtime, out->system.runtime_version));
    sy_error_where(&out->why, "NO_CUDA_DEVICE", -1, -1, NULL);
}

static sy_status refuse(sy_error *err, sy_status st, const char *reason)
{
    sy_error_where(err, reason, -1, -1, NULL);
    return st;
}

sy_status sy_cuda_check(const sy_cuda *cuda, uint32_t number, sy_error *err)
{
    const uint32_t n = SY_MIN(cuda->n, (uint32_t)SY_DEVICES_MAX);
    const sy_backend_device *device = number < n ? &cuda->device[number] : NULL;

    if (cuda->why.status != SY_OK) {
        if (err != NULL) *err = cuda->why;
        sy_error_prefix(err, "cuda cannot be used");
        return cuda->why.status;
    }
    if (device == NULL)
        return refuse(err,
                      sy_error_set(err, SY_ENOTFOUND,
                                   "cuda:%u: this machine has %u CUDA devices of which the first "
                                   "%u may be named, counted from 0",
                                   number, cuda->n, n),
                      "DEVICE_NOT_FOUND");
    if (!device->usable)
        return refuse(
            err,
            sy_error_set(err, SY_EPRECONDITION, "cuda:%u cannot be used: %s", number, device->why),
            "DEVICE_UNUSABLE");
    return SY_OK;
}

/* ---- what is named ---- */

static int names(const sy_device_list *list, sy_device_kind kind)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->device[i].kind == kind) return 1;
    return kind == SY_DEVICE_CUDA && list->every_cuda;
}

static sy_status refuse_mixed(sy_error *err, const char *one, const char *other)
{
    return refuse(err,
                  sy_error_set(err, SY_EINVAL,
                               "%s and %s round differently, and a shard that moved from one to "
                               "the other would change what it computes: start a node for each",
                               one, other),
                  "MIXED_ARITHMETIC");
}

/* Puts all of them where "cuda" stands for them. There are no others in the list: with a CUDA
 * device the name is a second one, and CPU devices have another arithmetic. */
static sy_status add_every(sy_device_list *list, const sy_cuda *cuda, sy_error *err)
{
    const uint32_t n = SY_MAX(cuda->n, 1u); /* none at all has a reason as well */

    list->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const sy_status st = sy_cuda_check(cuda, i, err);
        if (st != SY_OK) return st;
        sy_device *device = &list->device[list->n++];
        *device = (sy_device){.kind = SY_DEVICE_CUDA, .number = i};
        snprintf(device->name, sizeof(device->name), "cuda:%u", i);
    }
    return SY_OK;
}

/* Bits depend on the compute capability. */
static sy_status check_one_kind(const sy_device_list *list, const sy_cuda *cuda, sy_error *err)
{
    const sy_backend_device *first = &cuda->device[list->device[0].number];

    for (uint32_t i = 1; i < list->n; i++) {
        const sy_backend_device *d = &cuda->device[list->device[i].number];
        char one[64], other[64];
        if (d->major == first->major && d->minor == first->minor) continue;
        snprintf(one, sizeof(one), "%s (compute capability %u.%u)", list->device[0].name,
                 first->major, first->minor);
        snprintf(other, sizeof(other), "%s (%u.%u)", list->device[i].name, d->major, d->minor);
        return refuse_mixed(err, one, other);
    }
    return SY_OK;
}

static sy_status check_cuda(sy_device_list *list, sy_error *err)
{
    sy_cuda cuda;
    sy_status st = SY_OK;

    sy_cuda_probe(&cuda);
    for (uint32_t i = 0; i < list->n && st == SY_OK; i++)
        st = sy_cuda_check(&cuda, list->device[i].number, err);
    if (st == SY_OK && list->every_cuda) st = add_every(list, &cuda, err);
    return st == SY_OK ? check_one_kind(list, &cuda, err) : st;
}

sy_status sy_devices_check(sy_device_list *list, sy_error *err)
{
    if (!names(list, SY_DEVICE_CUDA)) return SY_OK;
    if (names(list, SY_DEVICE_CPU)) return refuse_mixed(err, "cpu:N", "cuda:N");
    return check_cuda(list, err);
}

void sy_devices_name_option(sy_error *err, const char *option)
{
    if (err == NULL) return;
    sy_error_prefix(err, "%s", option);
    if (err->reason[0] != '\0') {
        const size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof(err->message) - n, " (%s)", err->reason);
    }
}

sy_status sy_devices_choose(sy_device_list *out, const char *text, sy_error *err)
{
    sy_status st;

    SY_TRY(sy_devices_parse(out, text, err));
    SY_TRY(sy_devices_check(out, err));
out:
    if (st != SY_OK) sy_devices_name_option(err, "--devices");
    return st;
}

sy_status sy_devices_choose_one(sy_device *out, const sy_backend **backend, const char *option,
                                const char *text, sy_error *err)
{
    sy_device_list list;
    sy_cuda cuda;
    sy_status st;

    *backend = NULL;
    SY_TRY(sy_devices_parse(&list, text, err));
    if (list.n != 1 || list.every_cuda) {
        st = sy_error_set(err, SY_EINVAL, "'%s': one device, such as cuda:0", text);
        goto out;
    }
    *out = list.device[0];
    if (out->kind == SY_DEVICE_CPU) return SY_OK;
    sy_cuda_probe(&cuda);
    SY_TRY(sy_cuda_check(&cuda, out->number, err));
    *backend = cuda.backend;
out:
    if (st != SY_OK) sy_devices_name_option(err, option);
    return st;
}
