/* test_wire_shards.c - what expert nodes say of their shards, and the shards that go from node to
 * node: fields and bounds. */
#include "wire_packed.h"

static uint8_t zeros[128];

static void node_state(void **state)
{
    Switchyard__V1__NodeState msg;
    Switchyard__V1__Shard shard;
    Switchyard__V1__Shard *shards[] = {&shard};
    Switchyard__V1__DeviceLoad load;
    Switchyard__V1__DeviceLoad *loads[] = {&load};
    sy_node_state out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__node_state__init(&msg);
    switchyard__v1__shard__init(&shard);
    switchyard__v1__device_load__init(&load);
    (void)state;
    msg.node = text("node-1");
    msg.model = text("tiny");
    msg.full = 1;
    msg.n_shard = 1;
    msg.shard = shards;
    shard.layer = 4;
    shard.expert = 5;
    shard.state = SWITCHYARD__V1__SHARD_STATE__FAILED;
    shard.device = text("cpu:0");
    shard.reason = text("hash differs");
    shard.content_hash = UINT64_MAX;
    shard.probe_hash = 11;
    shard.loaded_percent = 100;
    msg.queue_length = 6;
    msg.memory_bytes = 7;
    msg.placement_hash = 8;
    msg.structure_hash = 9;
    msg.checkpoint_hash = 12;
    msg.arithmetic = text("f32-chain/1");
    msg.build = text("1.2.3");
    msg.n_device = 1;
    msg.device = loads;
    load.device = text("cpu:1");
    load.queue_length = 13;
    load.service_us = 14;
    load.memory_bytes = 15;
    load.memory_max_bytes = 16;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_node_state_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.node, "node-1");
    assert_string_equal(out.model, "tiny");
    assert_int_equal(out.full, 1);
    assert_int_equal(out.n_shards, 1);
    assert_int_equal(out.shard[0].layer, 4);
    assert_int_equal(out.shard[0].expert, 5);
    assert_int_equal(out.shard[0].state, SY_SHARD_FAILED);
    assert_string_equal(out.shard[0].device, "cpu:0");
    assert_string_equal(out.shard[0].reason, "hash differs");
    assert_int_equal(out.queue_length, 6);
    assert_int_equal(out.memory_bytes, 7);
    assert_int_equal(out.placement_hash, 8);
    assert_int_equal(out.structure_hash, 9);
    assert_true(out.shard[0].content_hash == UINT64_MAX && out.shard[0].probe_hash == 11);
    assert_int_equal(out.shard[0].loaded_percent, 100);
    assert_true(out.checkpoint_hash == 12);
    assert_string_equal(out.arithmetic, "f32-chain/1");
    assert_string_equal(out.build, "1.2.3");
    assert_int_equal(out.n_devices, 1);
    assert_string_equal(out.device[0].device, "cpu:1");
    assert_int_equal(out.device[0].queue_length, 13);
    assert_int_equal(out.device[0].service_us, 14);
    assert_true(out.device[0].memory_bytes == 15 && out.device[0].memory_max_bytes == 16);
    assert_int_equal(sy_wire_node_state_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

/* What a node of an earlier version does not say is zero or "". */
static void an_older_nodes_state_has_no_hashes_and_no_load(void **state)
{
    Switchyard__V1__NodeState msg;
    Switchyard__V1__Shard shard;
    Switchyard__V1__Shard *shards[] = {&shard};
    sy_node_state out;
    sy_iov sent;

    switchyard__v1__node_state__init(&msg);
    switchyard__v1__shard__init(&shard);
    (void)state;
    msg.n_shard = 1;
    msg.shard = shards;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_node_state_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.shard[0].content_hash == 0 && out.shard[0].probe_hash == 0);
    assert_int_equal(out.shard[0].loaded_percent, 0);
    assert_true(out.checkpoint_hash == 0);
    assert_string_equal(out.arithmetic, "");
    assert_string_equal(out.build, "");
    assert_int_equal(out.n_devices, 0);
}

static void fetch_request(void **state)
{
    Switchyard__V1__FetchShardRequest msg;
    sy_fetch_request out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__fetch_shard_request__init(&msg);
    (void)state;
    msg.model = text("tiny");
    msg.layer = 3;
    msg.expert = 17;
    msg.offset = (uint64_t)5 << 32;
    msg.content_hash = UINT64_MAX;
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_fetch_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.model, "tiny");
    assert_true(out.layer == 3 && out.expert == 17);
    assert_true(out.offset == (uint64_t)5 << 32 && out.content_hash == UINT64_MAX);
    assert_int_equal(sy_wire_fetch_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void shard_chunk(void **state)
{
    static const uint32_t shape[3][2] = {{2, 3}, {2, 3}, {3, 2}};
    uint8_t part[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    Switchyard__V1__ShardChunk msg;
    Switchyard__V1__ShardTensor tensor[3];
    Switchyard__V1__ShardTensor *tensors[] = {&tensor[0], &tensor[1], &tensor[2]};
    sy_shard_chunk out;
    sy_frame frame;
    sy_iov sent;

    switchyard__v1__shard_chunk__init(&msg);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        switchyard__v1__shard_tensor__init(&tensor[i]);
        tensor[i].dtype = i < 2 ? SWITCHYARD__V1__DTYPE__BF16 : SWITCHYARD__V1__DTYPE__F32;
        tensor[i].rows = shape[i][0];
        tensor[i].cols = shape[i][1];
    }
    msg.layer = 3;
    msg.expert = 17;
    msg.content_hash = 1;
    msg.probe_hash = 2;
    msg.total_bytes = 48;
    msg.offset = 36;
    msg.chunk_hash = 3;
    msg.n_tensor = 3;
    msg.tensor = tensors;
    msg.data = (ProtobufCBinaryData)WHOLE(part);
    sent = packed(&msg.base);
    assert_int_equal(sy_wire_shard_chunk_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.layer == 3 && out.expert == 17);
    assert_true(out.content_hash == 1 && out.probe_hash == 2 && out.chunk_hash == 3);
    assert_true(out.total_bytes == 48 && out.offset == 36);
    assert_true(out.dtype[0] == SY_BF16 && out.dtype[1] == SY_BF16 && out.dtype[2] == SY_F32);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(out.rows[i], shape[i][0]);
        assert_int_equal(out.cols[i], shape[i][1]);
    }
    assert_int_equal(out.n_bytes, sizeof(part));
    assert_memory_equal(out.data, part, sizeof(part));
    assert_true(is_aligned(out.data));
    assert_int_equal(sy_wire_shard_chunk_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void shards_are_in_a_known_state(void **state)
{
    Switchyard__V1__NodeState msg;
    Switchyard__V1__Shard shard;
    Switchyard__V1__Shard *shards[] = {&shard};
    char long_text[600] = "";

    switchyard__v1__node_state__init(&msg);
    switchyard__v1__shard__init(&shard);
    (void)state;
    msg.n_shard = 1;
    msg.shard = shards;
    taken("node_state", &msg.base);
    shard.state = (Switchyard__V1__ShardState)6;
    refused("node_state", &msg.base, "shard[0].state: 6, must be 0 to 5");
    shard.state = (Switchyard__V1__ShardState)-1;
    refused("node_state", &msg.base, "shard[0].state: -1, must be 0 to 5");
    shard.state = SWITCHYARD__V1__SHARD_STATE__RESIDENT;
    shard.expert = 70000;
    refused("node_state", &msg.base, "shard[0].expert: 70000, must be below 65535");
    shard.expert = 0;
    memset(long_text, 'x', 513);
    shard.reason = long_text;
    refused("node_state", &msg.base, "shard[0].reason: 513 bytes, but at most 512 are allowed");
    shard.reason = text("");
    shard.device = long_text;
    refused("node_state", &msg.base, "shard[0].device: 513 bytes, but at most 128 are allowed");
    shard.device = text("");
    shard.loaded_percent = 101;
    refused("node_state", &msg.base, "shard[0].loaded_percent: 101, must be at most 100");
    msg.n_shard = 0;
    msg.arithmetic = long_text;
    refused("node_state", &msg.base, "arithmetic: 513 bytes, but at most 128 are allowed");
    msg.arithmetic = text("");
    msg.build = text("\xff");
    refused("node_state", &msg.base, "build: not UTF-8 at byte 0");
    msg.build = text("");
    msg.node = long_text;
    refused("node_state", &msg.base, "node: 513 bytes, but at most 128 are allowed");
}

static void a_node_has_a_bounded_number_of_shards_and_devices(void **state)
{
    const size_t n = SY_WIRE_SHARDS_MAX + 1;
    Switchyard__V1__NodeState msg;
    Switchyard__V1__Shard shard;
    Switchyard__V1__DeviceLoad load;
    Switchyard__V1__DeviceLoad *loads[SY_WIRE_DEVICES_MAX + 1];
    char long_text[130] = "";
    Switchyard__V1__Shard **shards = calloc(n, sizeof(Switchyard__V1__Shard *));

    switchyard__v1__node_state__init(&msg);
    switchyard__v1__shard__init(&shard);
    switchyard__v1__device_load__init(&load);
    (void)state;
    assert_non_null(shards);
    for (size_t i = 0; i < n; i++) shards[i] = &shard;
    for (size_t i = 0; i < SY_COUNT_OF(loads); i++) loads[i] = &load;
    msg.n_device = SY_COUNT_OF(loads);
    msg.device = loads;
    refused("node_state", &msg.base, "device: 257 elements, but at most 256 are allowed");
    msg.n_device--;
    taken("node_state", &msg.base);
    memset(long_text, 'd', 129);
    load.device = long_text;
    refused("node_state", &msg.base, "device[0].device: 129 bytes, but at most 128 are allowed");
    msg.n_device = 0;
    msg.shard = shards;
    msg.n_shard = n;
    refused("node_state", &msg.base, "shard: 131073 elements, but at most 131072 are allowed");
    free(shards);
}

typedef struct chunk_fixture {
    Switchyard__V1__ShardChunk msg;
    Switchyard__V1__ShardTensor tensor[7];
    Switchyard__V1__ShardTensor *tensors[7];
} chunk_fixture;

/* 128 bytes of 3 matrices of one row, of which the data are 100; 12 more are their biases. */
static void chunk_reset(chunk_fixture *f)
{
    static const uint32_t cols[] = {12, 12, 8, 1, 1, 1, 1};

    switchyard__v1__shard_chunk__init(&f->msg);
    for (size_t i = 0; i < SY_COUNT_OF(f->tensor); i++) {
        switchyard__v1__shard_tensor__init(&f->tensor[i]);
        f->tensor[i].dtype = SWITCHYARD__V1__DTYPE__F32;
        f->tensor[i].rows = 1;
        f->tensor[i].cols = cols[i];
        f->tensors[i] = &f->tensor[i];
    }
    f->msg.n_tensor = 3;
    f->msg.tensor = f->tensors;
    f->msg.total_bytes = 128;
    f->msg.offset = 28;
    f->msg.data = (ProtobufCBinaryData){100, zeros};
}

static void chunk_refused(chunk_fixture *f, const char *why)
{
    refused("shard_chunk", &f->msg.base, why);
    chunk_reset(f);
}

static void a_chunk_is_a_part_of_its_shard(void **state)
{
    chunk_fixture f;

    (void)state;
    chunk_reset(&f);
    taken("shard_chunk", &f.msg.base);
    f.msg.data.len = 0;
    chunk_refused(&f, "data: 0 bytes, must be 1 to 4194304");
    f.msg.offset = 29;
    chunk_refused(&f, "offset: 29 and 100 bytes of data, but the shard has 128");
    f.msg.offset = UINT64_MAX;
    chunk_refused(&f, "offset: 18446744073709551615 and 100 bytes of data");
    f.msg.total_bytes = 129;
    chunk_refused(&f, "total_bytes: 129, but the tensors need 128");
    f.msg.total_bytes = UINT64_MAX;
    chunk_refused(&f, "total_bytes: 18446744073709551615, but the tensors need 128");
    f.msg.expert = 65535;
    chunk_refused(&f, "expert: 65535, must be below 65535");
    f.tensor[1].dtype = SWITCHYARD__V1__DTYPE__DTYPE_UNSPECIFIED;
    chunk_refused(&f, "tensor[1].dtype: 0, must be F32 (1), BF16 (2), F16 (3), Q8 (4), Q4 (5), "
                      "FP8 (6) or MXFP4 (7)");
    f.tensor[0].dtype = (Switchyard__V1__DType)8;
    chunk_refused(&f, "tensor[0].dtype: 8, must be");
    f.tensor[2].dtype = (Switchyard__V1__DType)9;
    chunk_refused(&f, "tensor[2].dtype: 9, must be");
    f.tensor[0].rows = 0;
    chunk_refused(&f, "tensor[0].rows: 0, must be 1 to 1048576");
    f.tensor[2].cols = (1u << 20) + 1;
    chunk_refused(&f, "tensor[2].cols: 1048577, must be 1 to 1048576");
}

static void a_chunk_of_a_shard_with_biases_lists_them_behind_the_matrices(void **state)
{
    chunk_fixture f;
    sy_shard_chunk out;
    sy_frame frame;
    sy_iov sent;

    (void)state;
    chunk_reset(&f);
    f.msg.n_tensor = 6;
    f.tensor[1].rows = f.tensor[4].rows = 2;
    f.tensor[1].cols = 6;
    f.msg.total_bytes = 144;
    sent = packed(&f.msg.base);
    assert_int_equal(sy_wire_shard_chunk_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_int_equal(out.n_tensors, 6);
    assert_true(out.dtype[4] == SY_F32 && out.rows[4] == 2 && out.cols[4] == 1);
    assert_int_equal(sy_wire_shard_chunk_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
    f.msg.total_bytes = 128;
    refused("shard_chunk", &f.msg.base, "total_bytes: 128, but the tensors need 144");
}

static void a_bias_that_does_not_fit_its_matrix_is_refused(void **state)
{
    chunk_fixture f;

    (void)state;
    for (size_t n = 0; n <= 7; n++) {
        chunk_reset(&f);
        f.msg.n_tensor = n;
        f.msg.total_bytes = n < 6 ? 128 : 140;
        if (n == 3 || n == 6)
            taken("shard_chunk", &f.msg.base);
        else
            refused("shard_chunk", &f.msg.base, "must be 3: gate, up, down; or 6: their biases");
    }
    chunk_reset(&f);
    f.msg.n_tensor = 6;
    f.msg.total_bytes = 140;
    f.tensor[3].dtype = SWITCHYARD__V1__DTYPE__BF16;
    refused("shard_chunk", &f.msg.base, "tensor[3]: bf16 [1,1], must be a bias, f32 [1,1]");
    f.tensor[3].dtype = SWITCHYARD__V1__DTYPE__F32;
    f.tensor[4].rows = 12;
    refused("shard_chunk", &f.msg.base, "tensor[4]: f32 [12,1], must be a bias, f32 [1,1]");
    f.tensor[4].rows = 1;
    f.tensor[5].cols = 2;
    refused("shard_chunk", &f.msg.base, "tensor[5]: f32 [1,2], must be a bias, f32 [1,1]");
    f.tensor[5].cols = 0;
    refused("shard_chunk", &f.msg.base, "tensor[5].cols: 0, must be 1 to 1048576");
}

/* A row of 33 elements is two blocks. */
static void a_chunk_of_blocks_needs_what_its_rows_need(void **state)
{
    chunk_fixture f;

    (void)state;
    chunk_reset(&f);
    f.tensor[0].dtype = SWITCHYARD__V1__DTYPE__Q8;
    f.tensor[0].rows = 2;
    f.tensor[0].cols = 33;
    f.tensor[1].dtype = SWITCHYARD__V1__DTYPE__Q4;
    f.tensor[1].cols = 32;
    f.msg.total_bytes = 2 * 2 * 34 + 18 + 8 * 4;
    taken("shard_chunk", &f.msg.base);
    f.msg.total_bytes--;
    refused("shard_chunk", &f.msg.base, "total_bytes: 185, but the tensors need 186");
}

/* A row of 129 elements has two factors of FP8, or five of MXFP4. */
static void a_chunk_of_encoded_rows_needs_what_they_need(void **state)
{
    chunk_fixture f;

    (void)state;
    chunk_reset(&f);
    f.tensor[0].dtype = SWITCHYARD__V1__DTYPE__FP8;
    f.tensor[0].rows = 2;
    f.tensor[0].cols = 129;
    f.tensor[1].dtype = SWITCHYARD__V1__DTYPE__MXFP4;
    f.tensor[1].rows = 3;
    f.tensor[1].cols = 129;
    f.msg.total_bytes = 2 * (129 + 2 * 4) + 3 * 5 * 17 + 8 * 4;
    taken("shard_chunk", &f.msg.base);
    f.msg.total_bytes++;
    refused("shard_chunk", &f.msg.base, "total_bytes: 562, but the tensors need 561");
}

static void a_chunk_is_not_too_large(void **state)
{
    const size_t n = SY_WIRE_CHUNK_MAX + 1;
    chunk_fixture f;
    uint8_t *data = calloc(n, 1);

    (void)state;
    assert_non_null(data);
    chunk_reset(&f);
    f.tensor[0].rows = f.tensor[0].cols = 1u << 20;
    f.msg.total_bytes = ((uint64_t)4 << 40) + 80;
    f.msg.data = (ProtobufCBinaryData){n, data};
    refused("shard_chunk", &f.msg.base, "data: 4194305 bytes, must be 1 to 4194304");
    f.msg.data.len--;
    taken("shard_chunk", &f.msg.base);
    free(data);
}

static void a_fetch_names_an_expert_that_may_be(void **state)
{
    Switchyard__V1__FetchShardRequest msg;
    char long_name[130] = "";

    switchyard__v1__fetch_shard_request__init(&msg);
    (void)state;
    msg.expert = 65535;
    refused("fetch_request", &msg.base, "expert: 65535, must be below 65535");
    msg.expert = 65534;
    taken("fetch_request", &msg.base);
    memset(long_name, 'n', 129);
    msg.model = long_name;
    refused("fetch_request", &msg.base, "model: 129 bytes, but at most 128 are allowed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(node_state),
        cmocka_unit_test(an_older_nodes_state_has_no_hashes_and_no_load),
        cmocka_unit_test(fetch_request),
        cmocka_unit_test(shard_chunk),
        cmocka_unit_test(shards_are_in_a_known_state),
        cmocka_unit_test(a_node_has_a_bounded_number_of_shards_and_devices),
        cmocka_unit_test(a_chunk_is_a_part_of_its_shard),
        cmocka_unit_test(a_chunk_of_a_shard_with_biases_lists_them_behind_the_matrices),
        cmocka_unit_test(a_bias_that_does_not_fit_its_matrix_is_refused),
        cmocka_unit_test(a_chunk_of_blocks_needs_what_its_rows_need),
        cmocka_unit_test(a_chunk_of_encoded_rows_needs_what_they_need),
        cmocka_unit_test(a_chunk_is_not_too_large),
        cmocka_unit_test(a_fetch_names_an_expert_that_may_be),
    };

    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
