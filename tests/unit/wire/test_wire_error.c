/* test_wire_error.c - error details in trailers, ids peeked at, and health. */
#include "google/rpc/status.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "wire_fixture.h"

static sy_error full_error(void)
{
    sy_error err;

    sy_error_set(&err, SY_EUNAVAILABLE, "node-2 does not answer");
    sy_error_where(&err, "EXPERT_UNREACHABLE", 3, 0, "node-2");
    return err;
}

static const char *metadata_of(const Google__Rpc__ErrorInfo *info, const char *key)
{
    for (size_t i = 0; i < info->n_metadata; i++) {
        if (strcmp(info->metadata[i]->key, key) == 0) return info->metadata[i]->value;
    }
    return "none";
}

static void clients_of_google_rpc_can_read_the_details(void **state)
{
    const sy_error err = full_error();
    uint8_t details[1024];
    const size_t n = sy_wire_error_details(&err, details, sizeof(details));
    Google__Rpc__Status *status = google__rpc__status__unpack(NULL, n, details);
    Google__Rpc__ErrorInfo *info;

    (void)state;
    assert_non_null(status);
    assert_int_equal(status->code, 14);
    assert_string_equal(status->message, "node-2 does not answer");
    assert_int_equal(status->n_details, 1);
    assert_string_equal(status->details[0]->type_url, "type.googleapis.com/google.rpc.ErrorInfo");
    info = google__rpc__error_info__unpack(NULL, status->details[0]->value.len,
                                           status->details[0]->value.data);
    assert_non_null(info);
    assert_string_equal(info->reason, "EXPERT_UNREACHABLE");
    assert_string_equal(info->domain, "switchyard");
    assert_int_equal(info->n_metadata, 3);
    assert_string_equal(metadata_of(info, "layer"), "3");
    assert_string_equal(metadata_of(info, "expert"), "0");
    assert_string_equal(metadata_of(info, "node"), "node-2");
    google__rpc__error_info__free_unpacked(info, NULL);
    google__rpc__status__free_unpacked(status, NULL);
}

static void details_come_back(void **state)
{
    const sy_error sent = full_error();
    uint8_t details[1024];
    const size_t n = sy_wire_error_details(&sent, details, sizeof(details));
    sy_error got;

    (void)state;
    sy_error_set(&got, SY_EUNAVAILABLE, "as gRPC said it");
    sy_wire_error_from_details(&got, details, n);
    assert_int_equal(got.status, SY_EUNAVAILABLE);
    assert_string_equal(got.message, "as gRPC said it");
    assert_string_equal(got.reason, "EXPERT_UNREACHABLE");
    assert_string_equal(got.node, "node-2");
    assert_int_equal(got.layer, 3);
    assert_int_equal(got.expert, 0);

    sy_error_clear(&got);
    sy_wire_error_from_details(&got, details, n);
    assert_int_equal(got.status, SY_EUNAVAILABLE);
    assert_string_equal(got.message, "node-2 does not answer");
    sy_wire_error_from_details(NULL, details, n);
}

static void an_error_without_a_reason_gives_its_status_name(void **state)
{
    uint8_t details[1024];
    sy_error err;
    size_t n;

    (void)state;
    sy_error_set(&err, SY_EINVAL, "no");
    n = sy_wire_error_details(&err, details, sizeof(details));
    sy_wire_error_from_details(&err, details, n);
    assert_string_equal(err.reason, "INVALID_ARGUMENT");
    assert_int_equal(err.layer, -1);
    assert_int_equal(err.expert, -1);
    assert_string_equal(err.node, "");
}

static void details_that_do_not_fit_are_left_out(void **state)
{
    const sy_error err = full_error();
    uint8_t details[1024];
    const size_t n = sy_wire_error_details(&err, details, sizeof(details));
    sy_error longest;

    (void)state;
    for (size_t cap = 0; cap < n; cap++) {
        uint8_t *exact = malloc(cap > 0 ? cap : 1);

        assert_int_equal(sy_wire_error_details(&err, exact, cap), 0);
        free(exact);
    }
    assert_int_equal(sy_wire_error_details(&err, details, n), n);
    longest.status = SY_EINTERNAL;
    longest.layer = longest.expert = INT32_MAX;
    memset(longest.reason, 'R', sizeof(longest.reason));
    memset(longest.node, 'n', sizeof(longest.node));
    memset(longest.message, 'm', sizeof(longest.message));
    longest.reason[SY_REASON_BYTES - 1] = longest.node[SY_NODE_BYTES - 1] = '\0';
    longest.message[SY_MESSAGE_BYTES - 1] = '\0';
    assert_true(sy_wire_error_details(&longest, details, sizeof(details)) > 0);
}

static void unchanged(const void *data, size_t n)
{
    sy_error before, after;

    memset(&before, 0, sizeof(before));
    sy_error_set(&before, SY_EINTERNAL, "kept");
    sy_error_where(&before, "KEPT", 1, 2, "kept");
    after = before;
    sy_wire_error_from_details(&after, data, n);
    assert_memory_equal(&after, &before, sizeof(after));
}

static void malformed_details_change_nothing(void **state)
{
    const sy_error sent = full_error();
    uint8_t details[1024];
    const size_t n = sy_wire_error_details(&sent, details, sizeof(details));
    rng r = {5};

    (void)state;
    unchanged(NULL, 0);
    unchanged("\xff\xff\xff", 3);
    for (size_t len = 0; len < n; len++) {
        if (details[len] != 0x1a) continue; /* up to the details, which are then missing */
        unchanged(details, len);
        break;
    }
    for (size_t len = n - 40; len < n; len++) unchanged(details, len);
    for (int i = 0; i < 20000; i++) {
        uint8_t *copy = malloc(n);
        sy_error err = sent;

        assert_non_null(copy);
        memcpy(copy, details, n);
        copy[rng_below(&r, n)] ^= (uint8_t)(1u << rng_below(&r, 8));
        sy_wire_error_from_details(&err, copy, n);
        assert_true(strnlen(err.reason, SY_REASON_BYTES) < SY_REASON_BYTES);
        assert_true(strnlen(err.node, SY_NODE_BYTES) < SY_NODE_BYTES);
        assert_true(err.layer >= -1 && err.expert >= -1);
        free(copy);
    }
}

static void only_our_own_domain_and_numbers_count(void **state)
{
    Google__Rpc__Status status;
    Google__Rpc__PackedAny any;
    Google__Rpc__PackedAny *details[] = {&any};
    Google__Rpc__ErrorInfo info;
    Google__Rpc__ErrorInfo__MetadataEntry entry;
    Google__Rpc__ErrorInfo__MetadataEntry *entries[] = {&entry};
    static const char *const numbers[] = {
        "", "-1", " 1", "1x", "2147483648", "99999999999999999999", "0x10"};
    char domain[20] = "googleapis.com", key[] = "layer", reason[] = "THEIRS";
    char url[] = "type.googleapis.com/google.rpc.ErrorInfo";
    uint8_t inner[200], outer[400];

    google__rpc__status__init(&status);
    google__rpc__packed_any__init(&any);
    google__rpc__error_info__init(&info);
    google__rpc__error_info__metadata_entry__init(&entry);
    (void)state;
    status.n_details = 1;
    status.details = details;
    any.type_url = url;
    info.reason = reason;
    info.domain = domain;
    any.value = (ProtobufCBinaryData){google__rpc__error_info__pack(&info, inner), inner};
    unchanged(outer, google__rpc__status__pack(&status, outer));

    strcpy(domain, "switchyard");
    strcpy(reason, "KEPT");
    info.n_metadata = 1;
    info.metadata = entries;
    entry.key = key;
    for (size_t i = 0; i < SY_COUNT_OF(numbers); i++) {
        entry.value = (char *)(uintptr_t)numbers[i];
        any.value.len = google__rpc__error_info__pack(&info, inner);
        unchanged(outer, google__rpc__status__pack(&status, outer));
    }
}

static void ids_are_peeked_at_in_any_cut(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        uint64_t id;
    } cases[] = {
        {"", 0, 0},
        {"\x08\x05", 2, 5},
        {"\x08\xac\x02\x12\x01x", 6, 300},
        {"\x12\x01x\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 14,
         UINT64_MAX},               /* behind another field */
        {"\x08\x05\x08\x06", 4, 6}, /* the last one counts */
        {"\x10\x05", 2, 0},         /* field 2 */
        {"\x0a\x01\x05", 3, 0},     /* not a varint */
        {"\x08", 1, 0},
        {"\x08\xff", 2, 0},
        {"\x08\x05\x12\x09x", 5, 0}, /* the rest is cut short */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, 0},
        {"\x08\x05\x7b", 3, 0}, /* a group */
        {"\x09\x01\x02\x03\x04\x05\x06\x07\x08", 9, 0},
        {"\x11\x01\x02\x03\x04\x05\x06\x07\x08\x1d\x01\x02\x03\x04\x08\x07", 16, 7},
        {"\x00\x05\x08\x07", 4, 0}, /* field 0 */
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const bytes b = {(uint8_t *)(uintptr_t)cases[i].bytes, cases[i].n};

        for (size_t cut = 0; cut <= b.len; cut++) {
            pieces *p = pieces_of(b, cut, 1);

            assert_true(sy_wire_peek_id(p->iov, p->n) == cases[i].id);
            pieces_free(p);
        }
    }
}

static void health_is_asked_and_answered(void **state)
{
    Grpc__Health__V1__HealthCheckResponse msg;
    Grpc__Health__V1__HealthCheckRequest *request;
    uint8_t packed[16];
    sy_frame frame;
    int status = -1;
    sy_iov iov;
    bytes b;

    grpc__health__v1__health_check_response__init(&msg);
    (void)state;
    assert_int_equal(sy_wire_health_request_encode(&frame, "switchyard.v1.Router"), SY_OK);
    b = bytes_of_frame(&frame);
    request = grpc__health__v1__health_check_request__unpack(NULL, b.len, b.data);
    assert_non_null(request);
    assert_string_equal(request->service, "switchyard.v1.Router");
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    free(b.data);

    for (int s = 0; s <= 3; s++) {
        msg.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)s;
        iov = (sy_iov){packed, grpc__health__v1__health_check_response__pack(&msg, packed)};
        assert_int_equal(sy_wire_health_reply_decode(&status, &iov, 1), SY_OK);
        assert_int_equal(status, s);
    }
    iov = (sy_iov){"\x08", 1};
    assert_int_equal(sy_wire_health_reply_decode(&status, &iov, 1), SY_EINVAL);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_of_google_rpc_can_read_the_details),
        cmocka_unit_test(details_come_back),
        cmocka_unit_test(an_error_without_a_reason_gives_its_status_name),
        cmocka_unit_test(details_that_do_not_fit_are_left_out),
        cmocka_unit_test(malformed_details_change_nothing),
        cmocka_unit_test(only_our_own_domain_and_numbers_count),
        cmocka_unit_test(ids_are_peeked_at_in_any_cut),
        cmocka_unit_test(health_is_asked_and_answered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
