/* cmd_devices.c - `switchyard devices`: what an expert node of this machine could be told with
 * --devices. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "device_measure.h"
#include "sy_args.h"
#include "sy_kernels.h"
#include "tool_memory.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

typedef struct cuda_device {
    sy_error check; /* what an expert node would say of it */
    int is_refused;
    sy_error measure; /* when it was asked for, and the driver offers the device */
    int has_failed;   /* else measured holds */
    device_measure measured;
} cuda_device;

typedef struct devices {
    long n_processors;
    const char *kernels;
    uint64_t memory_bytes; /* UINT64_MAX: not known */
    sy_cuda cuda;
    uint32_t n; /* of the next */
    cuda_device device[SY_DEVICES_MAX];
    int is_measured;
    uint64_t blas_version; /* 0: blas_why tells */
    char blas_why[SY_BACKEND_WHY_BYTES];
} devices;

static int is_measured(const devices *d, uint32_t i)
{
    return d->is_measured && d->cuda.device[i].usable;
}

static void gather_device(devices *d, uint32_t i)
{
    cuda_device *one = &d->device[i];

    sy_error_clear(&one->check);
    sy_error_clear(&one->measure);
    one->is_refused = sy_cuda_check(&d->cuda, i, &one->check) != SY_OK;
    if (is_measured(d, i))
        one->has_failed =
            device_measure_run(&one->measured, d->cuda.backend, i, &one->measure) != SY_OK;
}

/* cuBLAS is asked for only where there is a device: it takes 150 MB. */
static void gather(devices *d)
{
    d->n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    d->kernels = sy_kernels_best()->name;
    d->memory_bytes = tool_memory_available("");
    sy_cuda_probe(&d->cuda);
    d->n = SY_MIN(d->cuda.n, (uint32_t)SY_DEVICES_MAX);
    for (uint32_t i = 0; i < d->n; i++) gather_device(d, i);
    if (d->n > 0) (void)d->cuda.backend->blas_version(&d->blas_version, d->blas_why);
}

/* 1: something was to be measured and could not be. */
static int has_failed(const devices *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->device[i].has_failed) return 1;
    return 0;
}

/* ---- text ---- */

static void print_measured(const devices *d, uint32_t i)
{
    const device_measure *m = &d->device[i].measured;
    char a[TOOL_SIZE_BYTES], b[TOOL_SIZE_BYTES], c[TOOL_SIZE_BYTES], free_size[TOOL_SIZE_BYTES];

    if (!is_measured(d, i)) return;
    if (d->device[i].has_failed) {
        printf("        not measured: %s\n", tool_shown(d->device[i].measure.message));
        return;
    }
    printf("        copies: %s/s to it, %s/s from it, %s/s on it; %s of its memory free\n",
           tool_size(a, (uint64_t)m->copies.to_device),
           tool_size(b, (uint64_t)m->copies.from_device),
           tool_size(c, (uint64_t)m->copies.on_device), tool_size(free_size, m->free_bytes));
}

static void print_cuda(const devices *d)
{
    char driver[SY_VERSION_TEXT_BYTES], runtime[SY_VERSION_TEXT_BYTES], size[TOOL_SIZE_BYTES];

    if (d->cuda.why.status != SY_OK) {
        printf("cuda    not usable: %s (%s)\n", tool_shown(d->cuda.why.message),
               d->cuda.why.reason[0] != '\0' ? d->cuda.why.reason
                                             : sy_status_name(d->cuda.why.status));
        return;
    }
    printf("cuda    driver %s, runtime %s, ",
           sy_backend_version_text(driver, d->cuda.system.driver_version),
           sy_backend_version_text(runtime, d->cuda.system.runtime_version));
    if (d->blas_version != 0)
        printf("cublasLt %" PRIu64 "\n", d->blas_version);
    else
        printf("no cublasLt: %s\n", tool_shown(d->blas_why));
    for (uint32_t i = 0; i < d->n; i++) {
        const sy_backend_device *device = &d->cuda.device[i];

        printf("cuda:%-2" PRIu32 " %s, compute capability %" PRIu32 ".%" PRIu32 ", %" PRIu32
               " multiprocessors, %s %s ECC, at %s\n",
               i, tool_shown(device->name), device->major, device->minor, device->n_multiprocessors,
               tool_size(size, device->memory_bytes), device->has_ecc ? "with" : "without",
               tool_shown(device->pci));
        if (d->device[i].is_refused)
            printf("        not usable: %s (%s)\n", tool_shown(d->device[i].check.message),
                   d->device[i].check.reason);
        else
            printf("        usable: computes as " SY_BACKEND_ARITHMETIC_CUDA "\n", device->major,
                   device->minor);
        print_measured(d, i);
    }
}

static void print_text(const devices *d)
{
    char size[TOOL_SIZE_BYTES];

    printf("cpu:N   %ld processors, kernels %s", d->n_processors, d->kernels);
    if (d->memory_bytes != UINT64_MAX)
        printf(", %s of memory available", tool_size(size, d->memory_bytes));
    printf("\n        usable: each N is a pool of threads\n");
    print_cuda(d);
}

/* ---- JSON ---- */

static json_t *text_json(const char *text)
{
    return tool_json_text(text, strlen(text));
}

/* What keeps something from use; "OK" and nothing else: nothing does. */
static void add_refusal(json_t *to, const sy_error *err)
{
    json_object_set_new(to, "status", json_string(sy_status_name(err->status)));
    json_object_set_new(to, "reason", json_string(err->reason));
    json_object_set_new(to, "why", text_json(err->message));
}

static json_t *measured_json(const cuda_device *one)
{
    const device_measure *m = &one->measured;

    if (one->has_failed)
        return json_pack("{s:s,s:o}", "status", sy_status_name(one->measure.status), "why",
                         text_json(one->measure.message));
    return json_pack("{s:s,s:I,s:I,s:f,s:f,s:f}", "status", "OK", "free_bytes",
                     (json_int_t)m->free_bytes, "total_bytes", (json_int_t)m->total_bytes,
                     "to_device_bytes_s", m->copies.to_device, "from_device_bytes_s",
                     m->copies.from_device, "on_device_bytes_s", m->copies.on_device);
}

static json_t *device_json(const devices *d, uint32_t i)
{
    const sy_backend_device *device = &d->cuda.device[i];
    char name[SY_DEVICE_NAME_BYTES];
    json_t *root;

    snprintf(name, sizeof(name), "cuda:%" PRIu32, i);
    root = json_pack("{s:s,s:o,s:o,s:[I,I],s:I,s:b,s:I}", "device", name, "name",
                     text_json(device->name), "pci", text_json(device->pci), "compute_capability",
                     (json_int_t)device->major, (json_int_t)device->minor, "multiprocessors",
                     (json_int_t)device->n_multiprocessors, "ecc", device->has_ecc != 0,
                     "memory_bytes", (json_int_t)device->memory_bytes);
    if (root == NULL) return NULL;
    json_object_set_new(
        root, "arithmetic",
        json_sprintf(SY_BACKEND_ARITHMETIC_CUDA, (unsigned)device->major, (unsigned)device->minor));
    json_object_set_new(root, "usable", json_boolean(!d->device[i].is_refused));
    add_refusal(root, &d->device[i].check);
    if (is_measured(d, i)) json_object_set_new(root, "measured", measured_json(&d->device[i]));
    return root;
}

static json_t *cuda_json(const devices *d)
{
    char driver[SY_VERSION_TEXT_BYTES], runtime[SY_VERSION_TEXT_BYTES];
    json_t *list = json_array();
    json_t *root =
        json_pack("{s:b,s:s,s:s,s:I,s:o}", "plugin", d->cuda.backend != NULL, "driver",
                  sy_backend_version_text(driver, d->cuda.system.driver_version), "runtime",
                  sy_backend_version_text(runtime, d->cuda.system.runtime_version), "cublaslt",
                  (json_int_t)d->blas_version, "devices", list);

    if (root == NULL) return NULL;
    for (uint32_t i = 0; i < d->n; i++) json_array_append_new(list, device_json(d, i));
    add_refusal(root, &d->cuda.why);
    return root;
}

static json_t *devices_json(const devices *d)
{
    json_t *cpu = json_pack("{s:b,s:I,s:s}", "usable", 1, "processors", (json_int_t)d->n_processors,
                            "kernels", d->kernels);

    if (cpu != NULL && d->memory_bytes != UINT64_MAX)
        json_object_set_new(cpu, "memory_available_bytes",
                            json_integer((json_int_t)d->memory_bytes));
    return json_pack("{s:o,s:o}", "cpu", cpu, "cuda", cuda_json(d));
}

int cmd_devices(int argc, char **argv)
{
    static devices d;
    int json = 0;
    const sy_arg args[] = {
        {"measure", NULL,
         "open every CUDA device that the driver offers, check that bytes come back as they went, "
         "and measure copies",
         SY_ARG_FLAG, &d.is_measured, 0, 0},
        {"json", NULL, "print JSON", SY_ARG_FLAG, &json, 0, 0},
    };
    sy_error err;
    int code;

    sy_error_clear(&err);
    if (sy_args_parse(
            argc, argv, args, SY_COUNT_OF(args),
            "switchyard devices [options]\n\n"
            "Lists what this machine has to compute on, and what keeps a device from use.",
            NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err);
    gather(&d);
    if (json) {
        code = tool_json_print(devices_json(&d));
    } else {
        print_text(&d);
        code = tool_flush_stdout();
    }
    return code != 0 ? code : has_failed(&d);
}
