/* sy_devices.h - the devices that an operator names (--devices), and what this machine has of them.
 * Nothing is opened and no memory is taken on any device. Any thread. */
#ifndef SY_DEVICES_H
#define SY_DEVICES_H

#include "cuda/sy_backend.h"
#include "sy_status.h"

#define SY_DEVICES_MAX       16 /* of one process */
#define SY_DEVICE_NUMBER_MAX 1023u
#define SY_DEVICE_NAME_BYTES 16

typedef enum sy_device_kind { SY_DEVICE_CPU, SY_DEVICE_CUDA } sy_device_kind;

typedef struct sy_device {
    sy_device_kind kind;
    uint32_t number;
    char name[SY_DEVICE_NAME_BYTES]; /* "cpu:0", as placement spells it */
} sy_device;

typedef struct sy_device_list {
    uint32_t n; /* >= 1, but for "cuda" alone before it is checked */
    sy_device device[SY_DEVICES_MAX];
    int every_cuda; /* "cuda" was named: all CUDA devices of the machine */
} sy_device_list;

/* text: "cuda:0,cuda:1,cpu:0", or "cuda" among them. Numbers from 0 to SY_DEVICE_NUMBER_MAX.
 * SY_EINVAL: a name is none, is named twice, or there are more than SY_DEVICES_MAX. */
SY_MUST_USE sy_status sy_devices_parse(sy_device_list *out, const char *text, sy_error *err);

/* What the machine has of CUDA. */
typedef struct sy_cuda {
    const sy_backend *backend; /* NULL: no plugin */
    sy_backend_system system;
    uint32_t n; /* that are there; the first SY_DEVICES_MAX are described */
    sy_backend_device device[SY_DEVICES_MAX];
    sy_error why; /* SY_OK: n >= 1. Else what keeps all of CUDA from use, with a reason for
                     machines */
} sy_cuda;

/* Loads the plugin and asks it. Never fails: out->why tells. */
void sy_cuda_probe(sy_cuda *out);

/* Whether this process can compute on one CUDA device, or why not, in a sentence. cuda->why's
 * error, or, with the reason: DEVICE_NOT_FOUND (SY_ENOTFOUND) the machine has no device of that
 * number; DEVICE_UNUSABLE (SY_EPRECONDITION) it is there and something keeps it from use. */
SY_MUST_USE sy_status sy_cuda_check(const sy_cuda *cuda, uint32_t number, sy_error *err);

/* The same for every device of the list, and whether all of them have one arithmetic, so that a
 * shard that moves between them changes no bit: else SY_EINVAL (MIXED_ARITHMETIC). The first that
 * fails is the answer. Where "cuda" was named the list has every CUDA device afterwards. CPU
 * devices can always be used, and the plugin is not even looked for when no other is named. Nobody
 * falls back to another device, whatever it says. */
SY_MUST_USE sy_status sy_devices_check(sy_device_list *list, sy_error *err);

/* Parses and checks what --devices says; the error's text begins so, and ends with the reason. */
SY_MUST_USE sy_status sy_devices_choose(sy_device_list *out, const char *text, sy_error *err);

/* Makes an error one of an option that names a device: its text begins with the option, and ends
 * with the reason for machines, if it has one. */
void sy_devices_name_option(sy_error *err, const char *option);

/* The same for an option that names one device, which the error's text begins with: "cuda:0".
 * *backend: what drives it, for as long as the process lives; NULL: it is the processor. */
SY_MUST_USE sy_status sy_devices_choose_one(sy_device *out, const sy_backend **backend,
                                            const char *option, const char *text, sy_error *err);

/* "13.0" of 13000; "none" for 0. Returns out. */
#define SY_VERSION_TEXT_BYTES 16
const char *sy_backend_version_text(char out[SY_VERSION_TEXT_BYTES], uint32_t version);

#endif
