/* test_wire_slots.c - a shard that is read where it lies, in place of its bytes: who asks for that,
 * and what is answered; fields and bounds. */
#include "wire_packed.h"

static uint8_t key[SY_WIRE_SHARED_KEY_BYTES] = {9, 8, 7};
static uint8_t handle[SY_WIRE_HANDLE_BYTES] = {1, 2, 3, [63] = 4};
static uint8_t zeros[65];

typedef struct request_fixture {
    Switchyard__V1__FetchShardRequest msg;
    Switchyard__V1__SlotTaker taker;
    Switchyard__V1__SharedMemory memory;
} request_fixture;

static void request_reset(request_fixture *f)
{
    switchyard__v1__fetch_shard_request__init(&f->msg);
    switchyard__v1__slot_taker__init(&f->taker);
    switchyard__v1__shared_memory__init(&f->memory);
    f->msg.model = text("tiny");
    f->msg.taker = &f->taker;
    f->taker.memory = &f->memory;
    f->taker.arithmetic = text("bf16-mma/1:sm_90");
    f->taker.slot_bytes = (uint64_t)3 << 33;
    f->memory.pid = 4711;
    f->memory.fd = 12;
    f->memory.key = (ProtobufCBinaryData)WHOLE(key);
    f->memory.bytes = 8192;
}

static void request_refused(request_fixture *f, const char *why)
{
    refused("fetch_request", &f->msg.base, why);
    request_reset(f);
}

static void a_taker_says_who_it_is_and_what_its_slots_are_like(void **state)
{
    request_fixture f;
    sy_fetch_request out;
    sy_frame frame;

    (void)state;
    request_reset(&f);
    const sy_iov sent = packed(&f.msg.base);
    assert_int_equal(sy_wire_fetch_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_string_equal(out.model, "tiny");
    assert_true(out.taker.pid == 4711 && out.taker.fd == 12 && out.taker.bytes == 8192);
    assert_memory_equal(out.taker.key, key, sizeof(key));
    assert_string_equal(out.taker.arithmetic, "bf16-mma/1:sm_90");
    assert_true(out.taker.slot_bytes == (uint64_t)3 << 33);
    assert_int_equal(sy_wire_fetch_request_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void who_asks_for_bytes_is_no_taker(void **state)
{
    request_fixture f;
    sy_fetch_request out;

    (void)state;
    request_reset(&f);
    f.msg.taker = NULL;
    const sy_iov sent = packed(&f.msg.base);
    assert_int_equal(sy_wire_fetch_request_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.taker.bytes == 0 && out.taker.slot_bytes == 0);
    assert_string_equal(out.taker.arithmetic, "");
}

static void a_taker_that_is_none_is_refused(void **state)
{
    char long_name[130] = "";
    request_fixture f;

    (void)state;
    memset(long_name, 'n', 129);
    request_reset(&f);
    f.taker.memory = NULL;
    request_refused(&f, "taker.memory: absent or empty");
    f.memory.bytes = 0;
    request_refused(&f, "taker.memory: absent or empty");
    f.memory.key.len = 15;
    request_refused(&f, "taker.memory.key: 15 bytes, must be 16");
    f.memory.key = (ProtobufCBinaryData){17, zeros};
    request_refused(&f, "taker.memory.key: 17 bytes, must be 16");
    f.taker.slot_bytes = 0;
    request_refused(&f, "taker.slot_bytes: 0, must be at least 1");
    f.taker.arithmetic = long_name;
    request_refused(&f, "taker.arithmetic: 129 bytes, but at most 128 are allowed");
    f.msg.offset = 1;
    request_refused(&f, "taker: with offset 1, must be absent then");
    taken("fetch_request", &f.msg.base);
}

typedef struct slot_fixture {
    Switchyard__V1__ShardChunk msg;
    Switchyard__V1__ShardTensor tensor[3];
    Switchyard__V1__ShardTensor *tensors[3];
    Switchyard__V1__ShardSlot slot;
} slot_fixture;

static void slot_reset(slot_fixture *f)
{
    switchyard__v1__shard_chunk__init(&f->msg);
    switchyard__v1__shard_slot__init(&f->slot);
    for (size_t i = 0; i < 3; i++) {
        switchyard__v1__shard_tensor__init(&f->tensor[i]);
        f->tensor[i].dtype = SWITCHYARD__V1__DTYPE__BF16;
        f->tensor[i].rows = f->tensor[i].cols = 2;
        f->tensors[i] = &f->tensor[i];
    }
    f->msg.content_hash = 5;
    f->msg.probe_hash = 6;
    f->msg.n_tensor = 3;
    f->msg.tensor = f->tensors;
    f->msg.total_bytes = 24;
    f->msg.slot = &f->slot;
    f->slot.handle = (ProtobufCBinaryData)WHOLE(handle);
    f->slot.slot_bytes = (uint64_t)1 << 40;
    f->slot.n_slots = 100;
    f->slot.slot = 99;
    f->slot.home_hash = UINT64_MAX;
}

static void slot_refused(slot_fixture *f, const char *why)
{
    refused("shard_chunk", &f->msg.base, why);
    slot_reset(f);
}

static void a_slot_is_in_place_of_data(void **state)
{
    slot_fixture f;
    sy_shard_chunk out;
    sy_frame frame;

    (void)state;
    slot_reset(&f);
    const sy_iov sent = packed(&f.msg.base);
    assert_int_equal(sy_wire_shard_chunk_decode(&out, &arena, &sent, 1, NULL), SY_OK);
    assert_true(out.content_hash == 5 && out.probe_hash == 6 && out.total_bytes == 24);
    assert_memory_equal(out.slot.handle, handle, sizeof(handle));
    assert_true(out.slot.slot_bytes == (uint64_t)1 << 40 && out.slot.home_hash == UINT64_MAX);
    assert_int_equal(out.slot.n_slots, 100);
    assert_int_equal(out.slot.slot, 99);
    assert_int_equal(out.n_bytes, 0);
    assert_null(out.data);
    assert_int_equal(sy_wire_shard_chunk_encode(&frame, &out, NULL), SY_OK);
    frame_equals(&frame, sent);
}

static void a_slot_that_cannot_be_is_refused(void **state)
{
    slot_fixture f;

    (void)state;
    slot_reset(&f);
    f.slot.handle.len = 63;
    slot_refused(&f, "slot.handle: 63 bytes, must be 64");
    f.slot.handle = (ProtobufCBinaryData){65, zeros};
    slot_refused(&f, "slot.handle: 65 bytes, must be 64");
    f.slot.handle.len = 0;
    slot_refused(&f, "slot.handle: 0 bytes, must be 64");
    f.slot.slot = 100;
    slot_refused(&f, "slot.slot: 100, must be below n_slots, 100");
    f.slot.slot = UINT32_MAX;
    slot_refused(&f, "slot.slot: 4294967295, must be below n_slots, 100");
    f.slot.n_slots = f.slot.slot = 0;
    slot_refused(&f, "slot.slot: 0, must be below n_slots, 0");
    f.slot.slot_bytes = 0;
    slot_refused(&f, "slot.slot_bytes: 0, must be at least 1");
    f.msg.total_bytes = 23;
    slot_refused(&f, "total_bytes: 23, but the tensors need 24");
    f.msg.data = (ProtobufCBinaryData){1, zeros};
    slot_refused(&f, "slot: with 1 bytes of data at 0, must have none");
    f.msg.offset = 1;
    slot_refused(&f, "slot: with 0 bytes of data at 1, must have none");
    f.msg.n_tensor = 2;
    slot_refused(&f, "must be 3: gate, up, down; or 6: their biases");
    taken("shard_chunk", &f.msg.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_taker_says_who_it_is_and_what_its_slots_are_like),
        cmocka_unit_test(who_asks_for_bytes_is_no_taker),
        cmocka_unit_test(a_taker_that_is_none_is_refused),
        cmocka_unit_test(a_slot_is_in_place_of_data),
        cmocka_unit_test(a_slot_that_cannot_be_is_refused),
    };

    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
