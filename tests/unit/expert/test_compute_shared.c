/* test_compute_shared.c - Compute messages whose rows are in memory that the client shares: the
 * same bits as from messages that hold them, whatever a client says of that memory. */
#include "residency_fixture.h"
#include "sy_shm.h"

enum { H = 64, TOKENS = 2, ROWS = 6, REGION = 1 << 20 };
enum { INPUT_BYTES = TOKENS * H * 4, OUTPUT_BYTES = ROWS * H * 4 };

static char dir[] = "/tmp/sy-shared-XXXXXX";
static sy_model *model;
static host *node;
static sy_peer *peer;
static sy_fanout *fanout;
static sy_arena arena;
static sy_shm *shm;
static float *input; /* [TOKENS,H], and the output after it */

/* ---- messages ---- */

static const uint16_t expert_id[3] = {0, 1, 2};
static const uint32_t group_end[3] = {2, 4, 6};
static const uint32_t row_of[ROWS] = {0, 1, 0, 1, 0, 1};
static const float weights[ROWS] = {0.5f, 0.25f, 0.125f, 0.5f, 1.0f, 2.0f};

static sy_compute_request ask_bytes(void)
{
    return (sy_compute_request){.model = "small",
                                .n_groups = 3,
                                .n_assign = ROWS,
                                .expert = expert_id,
                                .group_end = group_end,
                                .row = row_of,
                                .weight = weights,
                                .hidden = {SY_F32, TOKENS, H, input}};
}

static sy_compute_request ask_shared(void)
{
    sy_compute_request r = ask_bytes();
    sy_shm_ticket ticket;

    sy_shm_get_ticket(shm, &ticket);
    r.hidden.data = NULL;
    r.shared = (sy_shared_rows){.pid = ticket.pid,
                                .fd = ticket.fd,
                                .bytes = ticket.bytes,
                                .input = sy_shm_offset(shm, input),
                                .output = sy_shm_offset(shm, input) + INPUT_BYTES,
                                .output_bytes = OUTPUT_BYTES};
    memcpy(r.shared.key, ticket.key, sizeof(ticket.key));
    return r;
}

static void send(sy_compute_request *r)
{
    sy_frame frame;

    r->id = sy_peer_next_id(peer);
    assert_int_equal(sy_wire_compute_request_encode(&frame, r, NULL), SY_OK);
    sy_fanout_send(fanout, peer, r->id, &frame);
}

static sy_compute_reply answer(void)
{
    sy_compute_reply reply;
    sy_error err = {0};
    size_t n;

    sy_fanout_wait(fanout, sy_clock_us() + WAIT_US);
    const sy_fanout_slot *slot = sy_fanout_at(fanout, sy_fanout_count(fanout) - 1);
    if (slot->status != SY_OK) fail_msg("%s", slot->err.message);
    const sy_iov *iov = sy_msg_iov(slot->msg, &n);
    must(sy_wire_compute_reply_decode(&reply, &arena, iov, n, &err), &err);
    sy_fanout_reset(fanout);
    return reply;
}

static sy_compute_reply exchange(sy_compute_request r)
{
    send(&r);
    return answer();
}

static void *output(void)
{
    return input + TOKENS * H;
}

/* What the rows give when the message holds them. */
static const void *wanted(sy_compute_request r, uint32_t n_rows)
{
    r.hidden.data = input;
    r.shared = (sy_shared_rows){0};
    const sy_compute_reply reply = exchange(r);

    assert_int_equal(reply.status.status, SY_OK);
    assert_int_equal(reply.output_shared, 0);
    assert_int_equal(reply.output.rows, n_rows);
    return reply.output.data;
}

static void expect_shared(sy_compute_request r, uint32_t n_rows)
{
    const void *want = wanted(r, n_rows);

    memset(output(), 0x55, OUTPUT_BYTES);
    const sy_compute_reply reply = exchange(r);
    if (reply.status.status != SY_OK) fail_msg("%s", reply.status.message);
    assert_int_equal(reply.output_shared, 1);
    assert_int_equal(reply.output.rows, n_rows);
    assert_memory_equal(output(), want, n_rows * H * sizeof(float));
}

static void expect_refused(sy_compute_request r, sy_status status, const char *why)
{
    const sy_compute_reply reply = exchange(r);

    assert_int_equal(reply.status.status, status);
    if (strstr(reply.status.message, why) == NULL)
        fail_msg("'%s', wanted '%s'", reply.status.message, why);
    expect_shared(ask_shared(), ROWS); /* and the stream goes on */
}

/* ---- the node ---- */

static void connect_peer(void)
{
    const sy_peer_config config = {.name = "a",
                                   .address = node->address,
                                   .stream_path = "/switchyard.v1.Expert/ComputeStream",
                                   .reply_id = sy_wire_peek_id};
    sy_error err = {0};

    must(sy_peer_open(&peer, node->loop, &config, &err), &err);
    wait_until(sy_peer_up(peer));
}

static int set_up(void **state)
{
    sy_error err = {0};

    (void)state;
    model = model_make(dir, 1);
    node = host_open(&(host_options){.name = "a", .model = model, .n_devices = 2});
    place(node, "0/0", "a/cpu:0", "0/1", "a/cpu:1", "0/2", "a/cpu:0");
    wait_until(count_in(node, SY_SHARD_RESIDENT) == 3);
    sy_arena_init(&arena, 1 << 24);
    must(sy_fanout_open(&fanout, 64), &err);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sy_fanout_free(fanout);
    sy_arena_free(&arena);
    host_close(node);
    model_remove(model);
    return 0;
}

/* Each test has a connection and a region of its own. */
static int begin(void **state)
{
    sy_error err = {0};

    (void)state;
    connect_peer();
    must(sy_shm_create(&shm, REGION, &err), &err);
    input = sy_shm_lend(shm, INPUT_BYTES + OUTPUT_BYTES);
    for (size_t i = 0; i < TOKENS * H; i++) input[i] = (float)i / (2 * H) - 0.4f;
    return 0;
}

static int end(void **state)
{
    (void)state;
    sy_fanout_reset(fanout);
    sy_peer_close(peer);
    sy_shm_unref(shm);
    shm = NULL;
    return 0;
}

/* ---- tests ---- */

static void shared_rows_give_the_bits_that_sent_rows_give(void **state)
{
    sy_compute_request partial = ask_shared();

    (void)state;
    expect_shared(ask_shared(), ROWS);
    partial.partial = 1;
    expect_shared(partial, TOKENS);
}

static void an_output_that_does_not_fit_comes_in_the_message(void **state)
{
    static const uint64_t room[] = {0, OUTPUT_BYTES - 1};
    const void *want = wanted(ask_bytes(), ROWS);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(room); i++) {
        sy_compute_request r = ask_shared();
        r.shared.output_bytes = room[i];
        memset(output(), 0x55, OUTPUT_BYTES);
        const sy_compute_reply reply = exchange(r);
        assert_int_equal(reply.status.status, SY_OK);
        assert_int_equal(reply.output_shared, 0);
        assert_memory_equal(reply.output.data, want, OUTPUT_BYTES);
        assert_int_equal(*(uint8_t *)output(), 0x55);
    }
}

/* What fp32 answers give, rounded: n_rows rows in bf16. */
static const void *wanted_rounded(sy_compute_request r, uint32_t n_rows)
{
    uint16_t *rounded = sy_arena_alloc(&arena, n_rows * H * sizeof(*rounded));

    r.output_dtype = SY_F32;
    node->self.kernels->round_bf16(rounded, wanted(r, n_rows), n_rows * H);
    return rounded;
}

static void outputs_in_bf16_are_those_in_fp32_rounded_wherever_they_are_put(void **state)
{
    (void)state;
    for (int partial = 0; partial < 2; partial++) {
        const uint32_t n_rows = partial ? TOKENS : ROWS;
        const size_t bytes = n_rows * H * sizeof(uint16_t);
        /* Enough room for bf16, for floats, not enough; and no shared memory at all. */
        const size_t room[] = {bytes, OUTPUT_BYTES, bytes - 1, 0};
        for (size_t way = 0; way < SY_COUNT_OF(room); way++) {
            const int fits = room[way] >= bytes;
            sy_compute_request r = room[way] > 0 ? ask_shared() : ask_bytes();
            r.partial = partial;
            r.output_dtype = SY_BF16;
            if (room[way] > 0) r.shared.output_bytes = room[way];
            const void *want = wanted_rounded(r, n_rows);
            memset(output(), 0x55, OUTPUT_BYTES);
            const sy_compute_reply reply = exchange(r);
            if (reply.status.status != SY_OK) fail_msg("%s", reply.status.message);
            assert_int_equal(reply.output.dtype, SY_BF16);
            assert_int_equal(reply.output.rows, n_rows);
            assert_int_equal(reply.output_shared, fits);
            assert_memory_equal(fits ? output() : reply.output.data, want, bytes);
            assert_int_equal(((uint8_t *)output())[fits ? bytes : 0], 0x55); /* no byte more */
        }
    }
}

static void rows_in_bf16_give_what_those_numbers_give_in_fp32(void **state)
{
    uint16_t rounded[TOKENS * H];
    sy_compute_request r = ask_bytes();

    (void)state;
    node->self.kernels->round_bf16(rounded, input, TOKENS * H);
    sy_dtype_widen(input, rounded, SY_BF16, TOKENS * H);
    r.output_dtype = SY_BF16;
    const void *want = wanted_rounded(r, ROWS);
    r.hidden.dtype = SY_BF16;
    r.hidden.data = rounded;
    sy_compute_reply reply = exchange(r);
    assert_memory_equal(reply.output.data, want, ROWS * H * sizeof(uint16_t));
    memcpy(input, rounded, sizeof(rounded));
    r = ask_shared();
    r.output_dtype = r.hidden.dtype = SY_BF16;
    reply = exchange(r);
    assert_int_equal(reply.output_shared, 1);
    assert_memory_equal(output(), want, ROWS * H * sizeof(uint16_t));
}

static void experts_that_are_not_here_leave_zeros_in_the_shared_output(void **state)
{
    static const uint16_t absent[3] = {0, 1, 5};
    const float zeros[2 * H] = {0};
    sy_compute_request r = ask_shared();

    (void)state;
    r.expert = absent;
    memset(output(), 0x55, OUTPUT_BYTES);
    const sy_compute_reply reply = exchange(r);
    assert_int_equal(reply.n_faults, 1);
    assert_int_equal(reply.output_shared, 1);
    assert_memory_equal((float *)output() + 4 * H, zeros, sizeof(zeros));
    assert_memory_not_equal(output(), zeros, sizeof(zeros));
    r.output_dtype = SY_BF16;
    memset(output(), 0x55, OUTPUT_BYTES);
    assert_int_equal(exchange(r).n_faults, 1);
    assert_memory_equal((uint16_t *)output() + 4 * H, zeros, 2 * H * sizeof(uint16_t));
}

static void areas_outside_of_the_memory_are_refused(void **state)
{
    sy_compute_request r;

    (void)state;
#define REFUSED(change, why) \
    r = ask_shared();        \
    change;                  \
    expect_refused(r, SY_EINVAL, why)
    REFUSED(r.shared.input += 4, "shared.input");
    REFUSED(r.shared.output += 60, "shared.output");
    REFUSED(r.shared.input = r.shared.bytes - 64, "shared.input");
    REFUSED(r.shared.output = r.shared.bytes, "shared.output");
    REFUSED(r.shared.output = UINT64_MAX - 63, "shared.output");
    REFUSED(r.shared.output_bytes = UINT64_MAX, "shared.output");
    REFUSED(r.shared.output = r.shared.input, "overlaps");
    REFUSED(r.shared.output = r.shared.input + 64, "overlaps");
    REFUSED(r.shared.input = 0, "shared.input: no area"); /* where the key is */
    REFUSED(r.shared.output = 0, "shared.output: no area");
    REFUSED(r.hidden.rows = 1 << 20, "shared.input");
}

static void memory_that_is_another_than_said_is_refused_with_its_reason(void **state)
{
    sy_compute_request r = ask_shared();

    (void)state;
    expect_shared(r, ROWS);
    r.shared.key[3] ^= 1;
    const sy_compute_reply reply = exchange(r);
    assert_int_equal(reply.status.status, SY_EPRECONDITION);
    assert_string_equal(reply.status.reason, SY_SHM_UNAVAILABLE);
    r = ask_shared();
    r.shared.bytes += 4096; /* areas are within what it says, but not within what there is */
    expect_refused(r, SY_EPRECONDITION, "another size");
    node->self.shares_memory = 0;
    sy_peer_close(peer);
    connect_peer();
    assert_string_equal(exchange(ask_shared()).status.reason, SY_SHM_UNAVAILABLE);
    assert_int_equal(exchange(ask_bytes()).status.status, SY_OK);
    node->self.shares_memory = 1;
}

static void a_call_without_a_stream_shares_nothing(void **state)
{
    sy_compute_request r = ask_shared();
    sy_client *client;
    sy_client_call *call;
    sy_frame frame;
    sy_msg *msg;
    sy_error err = {0};

    (void)state;
    must(sy_client_open(&client, node->address, 0, &err), &err);
    must(sy_wire_compute_request_encode(&frame, &r, NULL), &err);
    must(sy_client_start(&call, client, "/switchyard.v1.Expert/Compute", &frame,
                         sy_clock_us() + WAIT_US, 1, &err),
         &err);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "ComputeStream only"));
    sy_client_end(call);
    sy_client_close(client);
}

static void a_row_that_is_not_a_number_is_refused_there_too(void **state)
{
    (void)state;
    input[H + 1] = __builtin_nanf("");
    const sy_compute_reply reply = exchange(ask_shared());
    assert_string_equal(reply.status.reason, "ROW_NOT_FINITE");
}

/* The client has given the region up and unmapped it: the node still has its own mapping. */
static void a_region_that_is_gone_is_still_written_to_safely(void **state)
{
    sy_compute_request r = ask_shared();

    (void)state;
    expect_shared(r, ROWS);
    for (int i = 0; i < 30; i++) send(&r);
    sy_shm_unref(shm);
    assert_int_equal(answer().status.status, SY_OK);
    sy_peer_close(peer);
    begin(state);
    expect_shared(ask_shared(), ROWS);
}

static void a_client_that_dies_while_its_rows_are_computed_harms_nobody(void **state)
{
    sy_compute_request r = ask_shared();

    (void)state;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 30; i++) send(&r);
        sy_peer_close(peer); /* with messages in the queue and under way */
        sy_fanout_reset(fanout);
        connect_peer();
        expect_shared(ask_shared(), ROWS);
    }
    wait_until(atomic_load(&node->self.device[0].depth) == 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(shared_rows_give_the_bits_that_sent_rows_give),
        TEST(an_output_that_does_not_fit_comes_in_the_message),
        TEST(outputs_in_bf16_are_those_in_fp32_rounded_wherever_they_are_put),
        TEST(rows_in_bf16_give_what_those_numbers_give_in_fp32),
        TEST(experts_that_are_not_here_leave_zeros_in_the_shared_output),
        TEST(areas_outside_of_the_memory_are_refused),
        TEST(memory_that_is_another_than_said_is_refused_with_its_reason),
        TEST(a_call_without_a_stream_shares_nothing),
        TEST(a_row_that_is_not_a_number_is_refused_there_too),
        TEST(a_region_that_is_gone_is_still_written_to_safely),
        TEST(a_client_that_dies_while_its_rows_are_computed_harms_nobody),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
