/* Slots on their way between emulated GPUs: in one process, with peer access and without, and from
 * another process, which may lie, or die. */
#include "plugin_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* More than one piece of a copy, and more than a way has: rows at both ends and in the middle say
 * whose a slot is, the rest is zero, and the hash is of everything. */
static const struct patch {
    uint32_t part, row, n_rows;
} patches[] = {{SY_BACKEND_GATE, 0, 16},    {SY_BACKEND_UP, 320, 16},   {SY_BACKEND_GATE, 592, 8},
               {SY_BACKEND_DOWN, 0, 16},    {SY_BACKEND_DOWN, 352, 16}, {SY_BACKEND_DOWN, 688, 12},
               {SY_BACKEND_UP_BIAS, 0, 600}};

static sy_backend_pool_config large(void)
{
    return config_of(700, 600, SY_BACKEND_BF16, 1);
}

static sy_backend_pool_config encoded(uint32_t weights)
{
    return config_of(150, 260, weights, 1);
}

static void mark(const place *p, uint32_t slot, uint32_t id)
{
    for (size_t i = 0; i < SY_COUNT_OF(patches); i++) {
        const struct patch *at = &patches[i];
        uint8_t *rows = part_make(&p->config, id, at->part);

        ok(cuda->slot_write(p->pool, slot, at->part, at->row, at->n_rows,
                            rows + at->row * part_row_bytes(&p->config, at->part), why));
        free(rows);
    }
    ok(cuda->slot_flush(p->pool, slot, why));
}

static void check_marked(const place *p, uint32_t slot, uint32_t id)
{
    for (size_t i = 0; i < SY_COUNT_OF(patches); i++) {
        const struct patch *at = &patches[i];
        const size_t row = part_row_bytes(&p->config, at->part), bytes = at->n_rows * row;
        uint8_t *want = part_make(&p->config, id, at->part), *got = malloc(bytes);

        assert_non_null(got);
        ok(cuda->slot_read(got, p->pool, slot, at->part, at->row, at->n_rows, why));
        if (memcmp(got, want + at->row * row, bytes) != 0)
            fail_msg("slot %u, part %u, row %u is not of expert %u", slot, at->part, at->row, id);
        free(want);
        free(got);
    }
}

static void copied_and_checked(const place *to, uint32_t to_slot, const place *from,
                               uint32_t from_slot, uint32_t id)
{
    ok(cuda->slot_copy(to->pool, to_slot, from->pool, from_slot, 0, to->info.slot_bytes, why));
    check_marked(to, to_slot, id);
    assert_true(hash_of(to, to_slot) == hash_of(from, from_slot));
}

static void slots_go_between_devices(void **state)
{
    const sy_backend_pool_config c = large();

    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++) {
        place a, b;

        emu_cudart_machine_get()->has_peers = has_peers;
        a = place_open(0, &c);
        b = place_open(1, &c);
        mark(&a, 0, 1);
        mark(&b, 3, 2);
        copied_and_checked(&b, 5, &a, 0, 1);
        copied_and_checked(&a, 1, &b, 3, 2);
        copied_and_checked(&a, 0, &b, 3, 2); /* over another */
        copied_and_checked(&a, 4, &a, 1, 2); /* in one pool */
        copied_and_checked(&a, 5, &a, 1, 2); /* by the way that the source has, too */
        check_marked(&b, 3, 2);
        assert_true((emu_cudart_n_calls("cudaMemcpyPeerAsync") > 0) == has_peers);
        place_close(&a);
        place_close(&b);
        emu_cudart_reset();
    }
}

/* Their factors too, of which some lie behind the blocks. */
static void encoded_weights_go_between_devices(void **state)
{
    (void)state;
    for (uint32_t weights = SY_BACKEND_FP8; weights <= SY_BACKEND_MXFP4; weights++) {
        const sy_backend_pool_config c = encoded(weights);

        emu_cudart_machine_get()->has_peers = weights == SY_BACKEND_FP8;
        place a = place_open(0, &c), b = place_open(1, &c);
        put(&a, 1, 7);
        put(&b, 2, 8);
        ok(cuda->slot_copy(b.pool, 2, a.pool, 1, 0, a.info.slot_bytes, why));
        check_slot(&b, 2, 7);
        assert_true(hash_of(&b, 2) == hash_of(&a, 1));
        place_close(&a);
        place_close(&b);
        emu_cudart_reset();
    }
}

/* As a migration under a bandwidth does it. */
static void slots_go_in_parts(void **state)
{
    const sy_backend_pool_config c = large();
    const uint64_t step = 300000;

    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++) {
        place a, b;

        emu_cudart_machine_get()->has_peers = has_peers;
        a = place_open(0, &c);
        b = place_open(1, &c);
        mark(&a, 2, 7);
        mark(&b, 2, 8);
        for (uint64_t at = 0; at < a.info.slot_bytes; at += step) {
            const uint64_t left = a.info.slot_bytes - at;
            ok(cuda->slot_copy(b.pool, 2, a.pool, 2, at, left < step ? left : step, why));
        }
        check_marked(&b, 2, 7);
        ok(cuda->slot_copy(b.pool, 2, a.pool, 2, a.info.slot_bytes, 0, why));
        place_close(&a);
        place_close(&b);
        emu_cudart_reset();
    }
}

/* What was written and not flushed yet is copied, too. */
static void a_copy_waits_for_what_is_being_written(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 0);

    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++) {
        place a, b;

        emu_cudart_machine_get()->has_peers = has_peers;
        a = place_open(0, &c);
        b = place_open(1, &c);
        emu_cudart_slow(0, 3000);
        for (uint32_t part = 0; part < 3; part++) {
            uint8_t *rows = part_make(&c, 5, part);
            ok(cuda->slot_write(a.pool, 1, part, 0, part_rows(&c, part), rows, why));
            free(rows);
        }
        ok(cuda->slot_copy(b.pool, 2, a.pool, 1, 0, a.info.slot_bytes, why));
        check_slot(&b, 2, 5);
        place_close(&a);
        place_close(&b);
        emu_cudart_reset();
    }
}

typedef struct exchange {
    const place *to, *from;
    int result;
    char why[SY_BACKEND_WHY_BYTES];
} exchange;

static void *copy_in_rounds(void *argument)
{
    exchange *x = argument;

    for (int i = 0; i < 8 && x->result == SY_BACKEND_OK; i++)
        x->result =
            cuda->slot_copy(x->to->pool, 1, x->from->pool, 0, 0, x->to->info.slot_bytes, x->why);
    return NULL;
}

static void two_pools_that_copy_from_each_other_do_not_wait_for_ever(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 0);

    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++) {
        place a, b;
        exchange x[2];
        pthread_t thread[2];

        emu_cudart_machine_get()->has_peers = has_peers;
        a = place_open(0, &c);
        b = place_open(1, &c);
        put(&a, 0, 1);
        put(&b, 0, 2);
        x[0] = (exchange){.to = &a, .from = &b};
        x[1] = (exchange){.to = &b, .from = &a};
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, copy_in_rounds, &x[i]), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(thread[i], NULL);
            if (x[i].result != SY_BACKEND_OK) fail_msg("%s", x[i].why);
        }
        check_slot(&a, 1, 2);
        check_slot(&b, 1, 1);
        place_close(&a);
        place_close(&b);
        emu_cudart_reset();
    }
}

static void a_flipped_bit_shows_in_the_hash(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 1);
    place a = place_open(0, &c), b = place_open(1, &c);

    (void)state;
    put(&a, 0, 1);
    emu_cudart_machine_get()->has_peers = 1;
    emu_cudart_flip(1, 0);
    ok(cuda->slot_copy(b.pool, 0, a.pool, 0, 0, a.info.slot_bytes, why));
    assert_true(hash_of(&b, 0) != hash_of(&a, 0));
    ok(cuda->slot_copy(b.pool, 0, a.pool, 0, 0, a.info.slot_bytes, why));
    assert_true(hash_of(&b, 0) == hash_of(&a, 0));
    place_close(&a);
    place_close(&b);
}

static void what_is_no_copy_is_refused(void **state)
{
    const sy_backend_pool_config c = config_of(70, 50, SY_BACKEND_BF16, 1);
    sy_backend_pool_config other = c;
    place a = place_open(0, &c), b;
    const uint64_t bytes = a.info.slot_bytes;
    const struct {
        uint64_t offset, n;
    } outside[] = {{bytes, 1},      {bytes + 1, 0},  {0, bytes + 1}, {1, bytes},
                   {UINT64_MAX, 0}, {UINT64_MAX, 2}, {0, UINT64_MAX}};

    (void)state;
    other.has_bias = 0;
    other.mlp = SY_BACKEND_SWIGLU;
    b = place_open(1, &other);
    refused(cuda->slot_copy(b.pool, 0, a.pool, 0, 0, 1, why), SY_BACKEND_EINVAL, "different forms");
    refused(cuda->slot_copy(a.pool, 6, a.pool, 0, 0, 1, why), SY_BACKEND_EINVAL, "slot 6");
    refused(cuda->slot_copy(a.pool, 0, a.pool, 6, 0, 1, why), SY_BACKEND_EINVAL, "slot 6");
    for (size_t i = 0; i < SY_COUNT_OF(outside); i++)
        refused(cuda->slot_copy(a.pool, 0, a.pool, 1, outside[i].offset, outside[i].n, why),
                SY_BACKEND_EINVAL, "of a slot of");
    place_close(&a);
    place_close(&b);
}

/* ---- from another process ---- */

enum { OWNER_FD = 3, OWNER_SLOTS = 3 };

typedef struct owner {
    pid_t pid;
    int fd;
    sy_backend_export told;
} owner;

/* The other process: a pool of three, experts 30, 31 and 32, until its end of the socket ends. */
static int own(uint32_t weights)
{
    sy_backend_pool_config c = weights == SY_BACKEND_BF16 ? large() : encoded(weights);
    sy_backend_export told;
    place p;
    char byte;

    cuda = sy_backend_get(SY_BACKEND_ABI);
    c.slots_max = OWNER_SLOTS;
    p = place_open(0, &c);
    for (uint32_t slot = 0; slot < OWNER_SLOTS; slot++) {
        if (weights == SY_BACKEND_BF16)
            mark(&p, slot, 30 + slot);
        else
            put(&p, slot, 30 + slot);
    }
    ok(cuda->pool_export(&told, p.pool, why));
    if (write(OWNER_FD, &told, sizeof(told)) != sizeof(told)) return 1;
    while (read(OWNER_FD, &byte, 1) > 0) continue;
    place_close(&p);
    return 0;
}

static owner owner_start(uint32_t weights)
{
    owner o;
    char number[16];
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(number, sizeof(number), "%u", weights);
    o.pid = fork();
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        dup2(pair[1], OWNER_FD);
        execl("/proc/self/exe", "test_plugin_copy", "own", number, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    o.fd = pair[0];
    assert_int_equal(recv(o.fd, &o.told, sizeof(o.told), MSG_WAITALL), sizeof(o.told));
    return o;
}

static void owner_end(const owner *o, int kill_it)
{
    int status;

    if (kill_it) kill(o->pid, SIGKILL);
    close(o->fd);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    if (!kill_it) assert_int_equal(status, 0);
}

static void slots_are_pulled_from_another_process(void **state)
{
    const sy_backend_pool_config c = large();
    place p = place_open(1, &c);
    const owner o = owner_start(SY_BACKEND_BF16);
    const uint64_t bytes = p.info.slot_bytes;
    sy_backend_remote *remote;

    (void)state;
    assert_int_equal(o.told.n_slots, OWNER_SLOTS);
    assert_true(o.told.slot_bytes == bytes);
    ok(cuda->pool_import(&remote, p.pool, &o.told, why));
    ok(cuda->slot_pull(p.pool, 5, remote, 2, 0, bytes, why));
    check_marked(&p, 5, 32);
    mark(&p, 4, 32);
    assert_true(hash_of(&p, 5) == hash_of(&p, 4));
    ok(cuda->slot_pull(p.pool, 0, remote, 0, 0, 1000, why));
    ok(cuda->slot_pull(p.pool, 0, remote, 0, 1000, bytes - 1000, why));
    check_marked(&p, 0, 30);
    ok(cuda->slot_pull(p.pool, 0, remote, 0, bytes, 0, why));
    refused(cuda->slot_pull(p.pool, 0, remote, 3, 0, 1, why), SY_BACKEND_EINVAL,
            "slot 3 of the other pool's 3");
    refused(cuda->slot_pull(p.pool, 6, remote, 0, 0, 1, why), SY_BACKEND_EINVAL, "slot 6");
    refused(cuda->slot_pull(p.pool, 0, remote, 0, 1, bytes, why), SY_BACKEND_EINVAL, "of a slot");
    refused(cuda->slot_pull(p.pool, 0, remote, 0, UINT64_MAX, 2, why), SY_BACKEND_EINVAL,
            "of a slot");
    cuda->remote_close(remote);
    owner_end(&o, 0);
    place_close(&p);
}

/* And never as anything else, even where slots are said to be as large. */
static void encoded_weights_are_pulled_as_what_they_are(void **state)
{
    (void)state;
    for (uint32_t weights = SY_BACKEND_FP8; weights <= SY_BACKEND_MXFP4; weights++) {
        const sy_backend_pool_config c = encoded(weights);
        const sy_backend_pool_config other = encoded(SY_BACKEND_FP8 + SY_BACKEND_MXFP4 - weights);
        place p = place_open(1, &c), q = place_open(1, &other);
        const owner o = owner_start(weights);
        sy_backend_export told = o.told;
        sy_backend_remote *remote;

        ok(cuda->pool_import(&remote, p.pool, &told, why));
        ok(cuda->slot_pull(p.pool, 4, remote, 2, 0, p.info.slot_bytes, why));
        check_slot(&p, 4, 32);
        put(&p, 3, 32);
        assert_true(hash_of(&p, 3) == hash_of(&p, 4));
        cuda->remote_close(remote);
        told.slot_bytes = q.info.slot_bytes;
        refused(cuda->pool_import(&remote, q.pool, &told, why), SY_BACKEND_EINVAL,
                "no pool of such experts");
        owner_end(&o, 0);
        place_close(&p);
        place_close(&q);
    }
}

static void an_owner_that_dies_harms_nobody(void **state)
{
    const sy_backend_pool_config c = large();
    place p = place_open(1, &c);
    const owner o = owner_start(SY_BACKEND_BF16);
    sy_backend_remote *remote;
    uint64_t right;

    (void)state;
    mark(&p, 4, 31);
    right = hash_of(&p, 4);
    ok(cuda->pool_import(&remote, p.pool, &o.told, why));
    owner_end(&o, 1);
    if (cuda->slot_pull(p.pool, 0, remote, 1, 0, p.info.slot_bytes, why) == SY_BACKEND_OK &&
        hash_of(&p, 0) == right)
        check_marked(&p, 0, 31);
    cuda->remote_close(remote);
    assert_true(cuda->pool_import(&remote, p.pool, &o.told, why) != SY_BACKEND_OK);
    assert_null(remote);
    mark(&p, 2, 31);
    assert_true(hash_of(&p, 2) == right);
    place_close(&p);
}

/* Of another form, though its owner says that its slots are of the right size. */
static void what_the_other_says_is_not_taken_for_granted(void **state)
{
    sy_backend_pool_config c = large();
    place p = place_open(1, &c), other;
    const owner o = owner_start(SY_BACKEND_BF16);
    sy_backend_export told = o.told;
    sy_backend_remote *remote;

    (void)state;
    told.slot_bytes += 256;
    refused(cuda->pool_import(&remote, p.pool, &told, why), SY_BACKEND_EINVAL, "slots have");
    assert_null(remote);
    told = o.told;
    memset(told.handle, 0x5a, sizeof(told.handle));
    assert_true(cuda->pool_import(&remote, p.pool, &told, why) != SY_BACKEND_OK);
    assert_null(remote);

    c.weights = SY_BACKEND_BF16;
    c.hidden = 300;
    c.ffn = 200;
    other = place_open(0, &c);
    told = o.told;
    told.slot_bytes = other.info.slot_bytes;
    told.n_slots = UINT32_MAX;
    refused(cuda->pool_import(&remote, other.pool, &told, why), SY_BACKEND_EINVAL,
            "no pool of such experts");
    assert_null(remote);

    told = o.told;
    told.n_slots = UINT32_MAX; /* what counts is how many there are */
    ok(cuda->pool_import(&remote, p.pool, &told, why));
    refused(cuda->slot_pull(p.pool, 0, remote, 3, 0, 1, why), SY_BACKEND_EINVAL,
            "slot 3 of the other pool's 3");
    refused(cuda->slot_pull(other.pool, 0, remote, 0, 0, 1, why), SY_BACKEND_EINVAL,
            "different forms");
    cuda->remote_close(remote);
    place_close(&other);
    place_close(&p);
    owner_end(&o, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(slots_go_between_devices),
        PLUGIN_TEST(encoded_weights_go_between_devices),
        PLUGIN_TEST(slots_go_in_parts),
        PLUGIN_TEST(a_copy_waits_for_what_is_being_written),
        PLUGIN_TEST(two_pools_that_copy_from_each_other_do_not_wait_for_ever),
        PLUGIN_TEST(a_flipped_bit_shows_in_the_hash),
        PLUGIN_TEST(what_is_no_copy_is_refused),
        PLUGIN_TEST(slots_are_pulled_from_another_process),
        PLUGIN_TEST(encoded_weights_are_pulled_as_what_they_are),
        PLUGIN_TEST(an_owner_that_dies_harms_nobody),
        PLUGIN_TEST(what_the_other_says_is_not_taken_for_granted),
    };
    if (argc > 2 && strcmp(argv[1], "own") == 0) return own((uint32_t)strtoul(argv[2], NULL, 10));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
