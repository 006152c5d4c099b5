/* test_wire_shared.c - messages that say where their rows are instead of holding them: what a peer
 * may say there, and what one that knows nothing of it makes of it. */
#include "wire_packed.h"

static uint8_t zeros[1024];

typedef struct message { /* of one row of 64 floats for expert 3, and room for its answer */
    Switchyard__V1__ComputeRequest request;
    Switchyard__V1__SharedRows shared;
    Switchyard__V1__SharedMemory memory;
    Switchyard__V1__Rows hidden;
    uint16_t expert;
    uint32_t group_end, row;
} message;

static message *good(void)
{
    message *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    switchyard__v1__compute_request__init(&m->request);
    switchyard__v1__shared_rows__init(&m->shared);
    switchyard__v1__shared_memory__init(&m->memory);
    switchyard__v1__rows__init(&m->hidden);
    m->expert = 3;
    m->group_end = 1;
    m->request.expert = (ProtobufCBinaryData){sizeof(m->expert), (uint8_t *)&m->expert};
    m->request.group_end = (ProtobufCBinaryData){sizeof(m->group_end), (uint8_t *)&m->group_end};
    m->request.row = (ProtobufCBinaryData){sizeof(m->row), (uint8_t *)&m->row};
    m->request.hidden = &m->hidden;
    m->request.shared = &m->shared;
    m->hidden.dtype = SWITCHYARD__V1__DTYPE__F32;
    m->hidden.rows = 1;
    m->hidden.cols = 64;
    m->shared.memory = &m->memory;
    m->shared.input = 4096;
    m->shared.output = 4096 + 256;
    m->shared.output_bytes = 256;
    m->memory.pid = 17;
    m->memory.fd = 5;
    m->memory.key = (ProtobufCBinaryData){16, zeros};
    m->memory.bytes = 4096 + 512;
    return m;
}

static void what_is_said_arrives(void **state)
{
    message *m = good();
    sy_compute_request r;
    sy_error err = {0};

    (void)state;
    const sy_iov iov = packed(&m->request.base);
    assert_int_equal(sy_wire_compute_request_decode(&r, &arena, &iov, 1, &err), SY_OK);
    assert_int_equal(r.hidden.rows, 1);
    assert_int_equal(r.hidden.cols, 64);
    assert_null(r.hidden.data);
    assert_int_equal(r.shared.pid, 17);
    assert_int_equal(r.shared.fd, 5);
    assert_int_equal(r.shared.bytes, 4096 + 512);
    assert_int_equal(r.shared.input, 4096);
    assert_int_equal(r.shared.output, 4096 + 256);
    assert_int_equal(r.shared.output_bytes, 256);
    free(m);
}

#define REFUSED(change, why)                               \
    do {                                                   \
        message *m = good();                               \
        change;                                            \
        refused("compute_request", &m->request.base, why); \
        free(m);                                           \
    } while (0)

static void areas_must_be_aligned_inside_and_apart(void **state)
{
    (void)state;
    REFUSED(m->shared.input += 4, "shared.input: 4100, which is no multiple of 64");
    REFUSED(m->shared.output -= 1, "shared.output: 4351, which is no multiple of 64");
    REFUSED(m->memory.bytes -= 1, "shared.output: 256 bytes at 4352, but the memory has 4607");
    REFUSED(m->shared.output_bytes += 1, "shared.output: 257 bytes at 4352, but");
    REFUSED(m->shared.output_bytes = UINT64_MAX, "shared.output: 18446744073709551615 bytes at");
    REFUSED(m->shared.output = UINT64_MAX - 63, "shared.output: 256 bytes at");
    REFUSED(m->shared.input = UINT64_MAX - 63, "shared.input: 256 bytes at");
    REFUSED(m->shared.input = 1 << 20,
            "shared.input: 256 bytes at 1048576, but the memory has 4608");
    REFUSED(m->hidden.rows = 1 << 20, "shared.input: 268435456 bytes at 4096");
    REFUSED(m->shared.output = 4096, "shared.output: overlaps");
    REFUSED(m->shared.output = 4096 + 192, "shared.output: overlaps");
    REFUSED(m->shared.output = 4096 - 192, "shared.output: overlaps");
}

static void the_memory_must_be_named(void **state)
{
    (void)state;
    REFUSED(m->shared.memory = NULL, "shared.memory: absent");
    REFUSED(m->memory.bytes = 0, "shared.memory: absent or empty");
    REFUSED(m->memory.key.len = 15, "shared.memory.key: 15 bytes, must be 16");
    REFUSED(m->memory.key.len = 17, "shared.memory.key: 17 bytes, must be 16");
    REFUSED(m->request.hidden = NULL, "hidden: absent");
    REFUSED(m->hidden.cols = 0, "hidden.cols: 0");
    REFUSED((m->hidden.data = (ProtobufCBinaryData){256, zeros}),
            "hidden.data: 256 bytes, but shared");
    REFUSED(m->request.shared = NULL, "hidden.data: 0 bytes, but 1 rows x 64 columns");
}

/* As a server of an earlier version reads it, which has no such field: it must not compute. */
static void who_does_not_know_the_field_finds_no_rows(void **state)
{
    message *m = good();
    sy_error err;

    (void)state;
    m->request.shared = NULL;
    assert_int_equal(read_message("compute_request", &m->request.base, &err), SY_EINVAL);
    assert_string_equal(err.reason, ""); /* what the client takes for "cannot share" */
    free(m);
}

static void an_answer_of_a_router_is_never_shared(void **state)
{
    message *m = good();
    Switchyard__V1__RouteRequest msg;

    (void)state;
    switchyard__v1__route_request__init(&msg);
    msg.hidden = &m->hidden;
    msg.shared = &m->shared;
    refused("route_request", &msg.base, "shared.output_bytes: 256, but the reply is never shared");
    m->shared.output_bytes = m->shared.output = 0;
    taken("route_request", &msg.base);
    free(m);
}

static void a_reply_says_where_its_rows_are_once(void **state)
{
    Switchyard__V1__ComputeReply msg;
    Switchyard__V1__Rows output;

    (void)state;
    switchyard__v1__compute_reply__init(&msg);
    switchyard__v1__rows__init(&output);
    output.dtype = SWITCHYARD__V1__DTYPE__F32;
    output.rows = 2;
    output.cols = 8;
    msg.output_shared = 1;
    refused("compute_reply", &msg.base, "output: absent");
    msg.output = &output;
    taken("compute_reply", &msg.base);
    output.data = (ProtobufCBinaryData){64, zeros};
    refused("compute_reply", &msg.base, "output.data: 64 bytes, but shared");
    output.data.len = 0;
    output.rows = 0;
    refused("compute_reply", &msg.base, "output.rows: 0");
    output.rows = 2;
    msg.output_shared = 0;
    refused("compute_reply", &msg.base, "output.data: 0 bytes, but 2 rows");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_arrives),
        cmocka_unit_test(areas_must_be_aligned_inside_and_apart),
        cmocka_unit_test(the_memory_must_be_named),
        cmocka_unit_test(who_does_not_know_the_field_finds_no_rows),
        cmocka_unit_test(an_answer_of_a_router_is_never_shared),
        cmocka_unit_test(a_reply_says_where_its_rows_are_once),
    };
    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
