/* sy_reflection.c - grpc.reflection, v1alpha and v1 (the same messages): what the server offers,
 * and the descriptors of all of it, out of the set that is linked in. Runs on the loop; a request
 * costs one or two walks over some 50 KB. */
#include "sy_rpc_internal.h"

#include <stdlib.h>
#include <string.h>

#include "grpc/reflection/v1alpha/reflection.pb-c.h"

#define REQUEST_BYTES_MAX 4096

#define CODE_NOT_FOUND 5 /* google.rpc.Code, inside the messages */
#define CODE_INVALID   3

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest request_message;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse response_message;
typedef Grpc__Reflection__V1alpha__ServiceResponse service_message;

extern const unsigned char sy_descriptors[], sy_descriptors_end[];

struct rpc_reflection {
    size_t n_services;
    service_message *services;
    service_message **service_list; /* as protobuf-c wants them */
    size_t n_files;
    rpc_range *files;
};

static const char *const own_services[] = {"grpc.health.v1.Health",
                                           "grpc.reflection.v1alpha.ServerReflection"};

/* ---- answers ---- */

static void send_response(sy_call *call, request_message *request, response_message *response)
{
    sy_frame frame;
    sy_error err;
    sy_status st;

    response->valid_host = request->host;
    response->original_request = request;
    st = rpc_frame_pack(&frame, &response->base);
    if (st == SY_OK) st = sy_call_send(call, &frame);
    if (st == SY_OK) return;
    sy_error_clear(&err);
    sy_error_set(&err, st, "cannot queue an answer: read the ones that wait first");
    sy_call_finish(call, &err);
}

static void answer_error(sy_call *call, request_message *request, int code, const char *text)
{
    Grpc__Reflection__V1alpha__ErrorResponse error =
        GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
    response_message response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;

    error.error_code = code;
    error.error_message = (char *)(uintptr_t)text; /* only read */
    response.error_response = &error;
    response.message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    send_response(call, request, &response);
}

static void answer_services(const rpc_reflection *reflection, sy_call *call,
                            request_message *request)
{
    Grpc__Reflection__V1alpha__ListServiceResponse list =
        GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    response_message response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;

    list.n_service = reflection->n_services;
    list.service = reflection->service_list;
    response.list_services_response = &list;
    response.message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    send_response(call, request, &response);
}

/* ---- files ---- */

static size_t find_file(const rpc_reflection *reflection, rpc_range wanted)
{
    rpc_range name;

    for (size_t i = 0; i < reflection->n_files; i++) {
        if (rpc_descriptor_name(&name, reflection->files[i]) && name.len == wanted.len &&
            memcmp(name.data, wanted.data, name.len) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

static size_t find_symbol(const rpc_reflection *reflection, const char *symbol)
{
    for (size_t i = 0; i < reflection->n_files; i++) {
        if (rpc_descriptor_defines(reflection->files[i], symbol)) return i;
    }
    return SIZE_MAX;
}

/* The file and everything it needs, breadth first; returns how many. picked: [n_files]. */
static size_t with_dependencies(const rpc_reflection *reflection, size_t first, size_t *picked)
{
    size_t n = 0;
    rpc_range name;

    picked[n++] = first;
    for (size_t done = 0; done < n; done++) {
        for (size_t d = 0; rpc_descriptor_dependency(&name, reflection->files[picked[done]], d);
             d++) {
            const size_t file = find_file(reflection, name);
            size_t i = 0;

            if (file == SIZE_MAX) continue;
            while (i < n && picked[i] != file) i++;
            if (i == n) picked[n++] = file; /* each file once, so n stays within n_files */
        }
    }
    return n;
}

static void answer_file(const rpc_reflection *reflection, sy_call *call, request_message *request,
                        size_t first)
{
    Grpc__Reflection__V1alpha__FileDescriptorResponse files =
        GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    response_message response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    size_t *picked;

    if (first == SIZE_MAX) {
        answer_error(call, request, CODE_NOT_FOUND, "not found");
        return;
    }
    picked = calloc(reflection->n_files, sizeof(*picked));
    files.file_descriptor_proto = calloc(reflection->n_files, sizeof(*files.file_descriptor_proto));
    if (picked != NULL && files.file_descriptor_proto != NULL) {
        files.n_file_descriptor_proto = with_dependencies(reflection, first, picked);
        for (size_t i = 0; i < files.n_file_descriptor_proto; i++) {
            const rpc_range file = reflection->files[picked[i]];

            files.file_descriptor_proto[i].data = (uint8_t *)(uintptr_t)file.data; /* only read */
            files.file_descriptor_proto[i].len = file.len;
        }
    }
    response.file_descriptor_response = &files;
    response.message_response_case =
        GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    send_response(call, request, &response);
    free(files.file_descriptor_proto);
    free(picked);
}

/* ---- requests ---- */

static void answer(const rpc_reflection *reflection, sy_call *call, request_message *request)
{
    rpc_range name;

    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(reflection, call, request);
        return;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        name = (rpc_range){(const uint8_t *)request->file_by_filename,
                           strlen(request->file_by_filename)};
        answer_file(reflection, call, request, find_file(reflection, name));
        return;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_file(reflection, call, request,
                    find_symbol(reflection, request->file_containing_symbol));
        return;
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    case GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_error(call, request, CODE_NOT_FOUND, "there are no extensions here");
        return;
    default: answer_error(call, request, CODE_INVALID, "the request asks for nothing"); return;
    }
}

static void on_request(void *ctx, sy_call *call, sy_msg *msg)
{
    request_message *request = NULL;
    uint8_t bytes[REQUEST_BYTES_MAX];
    const size_t n = rpc_msg_copy(msg, bytes, sizeof(bytes));
    sy_error err;

    if (n <= sizeof(bytes)) {
        request = grpc__reflection__v1alpha__server_reflection_request__unpack(NULL, n, bytes);
    }
    if (request == NULL) {
        sy_error_clear(&err);
        sy_error_set(&err, SY_EINVAL, "not a ServerReflectionRequest of at most %d bytes",
                     REQUEST_BYTES_MAX);
        sy_call_finish(call, &err);
        return;
    }
    answer(ctx, call, request);
    grpc__reflection__v1alpha__server_reflection_request__free_unpacked(request, NULL);
}

void rpc_reflection_methods(rpc_reflection *reflection, sy_method *out)
{
    out[0] = (sy_method){.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                         .client_streams = 1,
                         .server_streams = 1,
                         .ctx = reflection,
                         .on_message = on_request};
    out[1] = out[0];
    out[1].path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
}

/* ---- life ---- */

static sy_status index_files(rpc_reflection *reflection)
{
    const rpc_range set = {sy_descriptors, (size_t)(sy_descriptors_end - sy_descriptors)};
    rpc_range file;

    while (rpc_descriptor_file(&file, set, reflection->n_files)) reflection->n_files++;
    reflection->files = calloc(SY_MAX(reflection->n_files, 1), sizeof(*reflection->files));
    if (reflection->files == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < reflection->n_files; i++) {
        (void)rpc_descriptor_file(&reflection->files[i], set, i); /* counted above */
    }
    return SY_OK;
}

static sy_status add_service(rpc_reflection *reflection, const char *name)
{
    service_message *service = &reflection->services[reflection->n_services];

    grpc__reflection__v1alpha__service_response__init(service);
    service->name = strdup(name);
    if (service->name == NULL) return SY_ENOMEM;
    reflection->service_list[reflection->n_services] = service;
    reflection->n_services++;
    return SY_OK;
}

sy_status rpc_reflection_open(rpc_reflection **out, const char *const *services, size_t n_services)
{
    const size_t n_max = n_services + SY_COUNT_OF(own_services);
    rpc_reflection *reflection = calloc(1, sizeof(*reflection));
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (reflection == NULL) return SY_ENOMEM;
    reflection->services = calloc(n_max, sizeof(*reflection->services));
    reflection->service_list = calloc(n_max, sizeof(*reflection->service_list));
    if (reflection->services == NULL || reflection->service_list == NULL) goto out;
    for (size_t i = 0; i < n_services; i++) SY_TRY(add_service(reflection, services[i]));
    for (size_t i = 0; i < SY_COUNT_OF(own_services); i++) {
        SY_TRY(add_service(reflection, own_services[i]));
    }
    SY_TRY(index_files(reflection));
    *out = reflection;
    return SY_OK;
out:
    rpc_reflection_free(reflection);
    return st;
}

void rpc_reflection_free(rpc_reflection *reflection)
{
    if (reflection == NULL) return;
    for (size_t i = 0; i < reflection->n_services; i++) free(reflection->services[i].name);
    free(reflection->services);
    free(reflection->service_list);
    free(reflection->files);
    free(reflection);
}
