/* Server reflection, as grpcurl uses it. */
#include "rpc_fixture.h"

#include "grpc/reflection/v1alpha/reflection.pb-c.h"

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest request_message;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse response_message;

#define INIT      GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT
#define ASK(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind
#define GOT(kind) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind
#define V1        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
#define V1ALPHA   "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

static const char *const services[] = {"switchyard.v1.Router", "switchyard.v1.Expert"};

static response_message *query(const fixture *f, const char *path, const request_message *request)
{
    uint8_t bytes[1024];
    sy_frame frame = frame_of_bytes(
        bytes, grpc__reflection__v1alpha__server_reflection_request__pack(request, bytes));
    sy_client_call *call = start_call(f, path, frame, WAIT_US);
    response_message *response;
    sy_error err;
    sy_buf *buf;
    sy_msg *msg;

    if (sy_client_next(call, &msg, &err) != SY_OK) fail_msg("%s", err.message);
    assert_non_null(msg);
    buf = gather(msg);
    sy_msg_free(msg);
    response =
        grpc__reflection__v1alpha__server_reflection_response__unpack(NULL, buf->len, buf->data);
    assert_non_null(response);
    sy_buf_unref(buf);
    assert_int_equal(sy_client_next(call, &msg, &err),
                     SY_OK); /* ends with the client's half-close */
    assert_null(msg);
    sy_client_end(call);
    assert_non_null(response->original_request);
    assert_int_equal(response->original_request->message_request_case,
                     request->message_request_case);
    return response;
}

static void drop(response_message *response)
{
    grpc__reflection__v1alpha__server_reflection_response__free_unpacked(response, NULL);
}

static request_message for_symbol(const char *symbol)
{
    request_message request = INIT;

    request.message_request_case = ASK(FILE_CONTAINING_SYMBOL);
    request.file_containing_symbol = (char *)(uintptr_t)symbol;
    return request;
}

static request_message for_file(const char *name)
{
    request_message request = INIT;

    request.message_request_case = ASK(FILE_BY_FILENAME);
    request.file_by_filename = (char *)(uintptr_t)name;
    return request;
}

/* A file descriptor begins with field 1, its name. */
static int is_file(const ProtobufCBinaryData *file, const char *name)
{
    return file->len > 2 && file->data[0] == 0x0a && file->data[1] == strlen(name) &&
           memcmp(file->data + 2, name, strlen(name)) == 0;
}

static void services_are_listed(void **state)
{
    fixture *f = *state;
    request_message request = INIT;
    const char *const paths[] = {V1, V1ALPHA};

    request.message_request_case = ASK(LIST_SERVICES);
    request.list_services = (char *)(uintptr_t) "*";
    serve(f,
          (sy_server_config){.service_names = services, .n_service_names = SY_COUNT_OF(services)});
    for (size_t p = 0; p < SY_COUNT_OF(paths); p++) {
        response_message *response = query(f, paths[p], &request);
        const Grpc__Reflection__V1alpha__ListServiceResponse *list =
            response->list_services_response;

        assert_int_equal(response->message_response_case, GOT(LIST_SERVICES_RESPONSE));
        assert_int_equal(list->n_service, 4);
        assert_string_equal(list->service[0]->name, "switchyard.v1.Router");
        assert_string_equal(list->service[1]->name, "switchyard.v1.Expert");
        assert_string_equal(list->service[2]->name, "grpc.health.v1.Health");
        assert_string_equal(list->service[3]->name, "grpc.reflection.v1alpha.ServerReflection");
        drop(response);
    }
}

static void a_symbol_finds_its_file_with_all_it_imports(void **state)
{
    static const struct {
        const char *symbol, *file;
    } cases[] = {
        {"switchyard.v1.Expert", "switchyard/v1/expert.proto"},
        {"switchyard.v1.Expert.ComputeStream", "switchyard/v1/expert.proto"},
        {"switchyard.v1.ComputeRequest", "switchyard/v1/expert.proto"},
        {"switchyard.v1.ComputeRequest.hidden", "switchyard/v1/expert.proto"},
        {"switchyard.v1.Combine", "switchyard/v1/expert.proto"},
        {"switchyard.v1.PARTIAL", "switchyard/v1/expert.proto"}, /* a value is its enum's sibling */
        {"switchyard.v1.Router", "switchyard/v1/router.proto"},
        {"google.rpc.Status", "google/rpc/status.proto"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"},
        {"grpc.health.v1.HealthCheckResponse.SERVING", "grpc/health/v1/health.proto"},
        {"grpc.reflection.v1alpha.ServerReflectionRequest.message_request",
         "grpc/reflection/v1alpha/reflection.proto"},
    };
    fixture *f = *state;

    serve(f, (sy_server_config){0});
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const request_message request = for_symbol(cases[i].symbol);
        response_message *response = query(f, V1ALPHA, &request);

        if (response->message_response_case != GOT(FILE_DESCRIPTOR_RESPONSE))
            fail_msg("no %s", cases[i].symbol);
        assert_true(response->file_descriptor_response->n_file_descriptor_proto >= 1);
        if (!is_file(&response->file_descriptor_response->file_descriptor_proto[0],
                     cases[i].file)) {
            fail_msg("%s is not in %s", cases[i].symbol, cases[i].file);
        }
        drop(response);
    }
}

static void imports_come_along(void **state)
{
    fixture *f = *state;
    const request_message request = for_file("switchyard/v1/expert.proto");
    response_message *response;
    int has_tensor = 0;

    serve(f, (sy_server_config){0});
    response = query(f, V1, &request);
    assert_int_equal(response->message_response_case, GOT(FILE_DESCRIPTOR_RESPONSE));
    for (size_t i = 0; i < response->file_descriptor_response->n_file_descriptor_proto; i++) {
        has_tensor |= is_file(&response->file_descriptor_response->file_descriptor_proto[i],
                              "switchyard/v1/tensor.proto");
    }
    assert_true(has_tensor);
    drop(response);
}

static void what_is_not_there_is_not_found(void **state)
{
    static const char *const symbols[] = {"",
                                          ".",
                                          "switchyard",
                                          "switchyard.v1",
                                          "switchyard.v1.",
                                          "switchyard.v1.Exper",
                                          "switchyard.v1.Experts",
                                          "switchyard.v1.Expert.",
                                          "switchyard.v1.Expert.Compute.x",
                                          "switchyard.v1.Combine.PARTIAL",
                                          "grpc.health.v1.HealthCheckResponse.ServingStatus.x",
                                          "Expert"};
    fixture *f = *state;
    request_message request;
    response_message *response;

    serve(f, (sy_server_config){0});
    for (size_t i = 0; i < SY_COUNT_OF(symbols); i++) {
        request = for_symbol(symbols[i]);
        response = query(f, V1ALPHA, &request);
        if (response->message_response_case != GOT(ERROR_RESPONSE))
            fail_msg("found \"%s\"", symbols[i]);
        assert_int_equal(response->error_response->error_code, 5);
        drop(response);
    }
    request = for_file("switchyard/v1/exper.proto");
    response = query(f, V1ALPHA, &request);
    assert_int_equal(response->error_response->error_code, 5);
    drop(response);
    request = (request_message)INIT;
    response = query(f, V1ALPHA, &request);
    assert_int_equal(response->error_response->error_code, 3);
    drop(response);
}

static void nonsense_ends_the_stream_only(void **state)
{
    fixture *f = *state;
    sy_error err;

    serve(f, (sy_server_config){0});
    assert_int_equal(run_call(f, V1ALPHA, frame_of_bytes("\xff\xff\xff", 3), NULL, &err),
                     SY_EINVAL);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(services_are_listed),
        TEST(a_symbol_finds_its_file_with_all_it_imports),
        TEST(imports_come_along),
        TEST(what_is_not_there_is_not_found),
        TEST(nonsense_ends_the_stream_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
