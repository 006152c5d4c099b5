/* test_shard_home_offer.c - a shard that is read out of another process's emulated GPU: that it is
 * the same one, and that nothing becomes a shard which is not what was offered. */
#include "home_fixture.h"
#include "sy_shard_remote.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOLD_FD = 3, STEP = 1000, OWN_DEVICE = 1 };

/* ---- the other process ---- */

typedef struct owner {
    pid_t pid;
    int fd;
    sy_shard_offer told[2]; /* experts 0 and 1 of layer 0 */
} owner;

/* What it is told by: its own checkpoint is the same, because all that are made so are. */
static int own(void)
{
    test_shards t;
    sy_shard_offer told[2];
    const sy_shard *shard[2];
    sy_error err = {0};
    char byte;

    if (devices_open(NULL) != 0) return 1;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    for (uint32_t i = 0; i < 2; i++) {
        shard[i] = load_on(store, home, 0, i);
        must(sy_shard_offer_of(&told[i], shard[i], &err), &err);
    }
    if (write(TOLD_FD, told, sizeof(told)) != sizeof(told)) return 1;
    while (read(TOLD_FD, &byte, 1) > 0) continue;
    for (uint32_t i = 0; i < 2; i++) sy_shard_put(store, shard[i]);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
    return devices_close(NULL);
}

static owner owner_start(void)
{
    owner o;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fflush(stdout);
    o.pid = fork();
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        if (pair[1] == TOLD_FD)
            fcntl(TOLD_FD, F_SETFD, 0);
        else
            dup2(pair[1], TOLD_FD);
        execl("/proc/self/exe", "test", "own", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    o.fd = pair[0];
    assert_int_equal(recv(o.fd, o.told, sizeof(o.told), MSG_WAITALL), sizeof(o.told));
    return o;
}

static void owner_end(const owner *o)
{
    int status;

    close(o->fd);
    assert_int_equal(waitpid(o->pid, &status, 0), o->pid);
    assert_int_equal(status, 0);
}

/* ---- what is taken ---- */

typedef struct place {
    test_shards t;
    sy_shard_home *home;
    sy_shard_store *store;
    owner other;
} place;

static void place_open(place *p)
{
    p->other = owner_start();
    shards_open(&p->t, SY_BF16, H, F);
    p->home = home_open(&p->t, OWN_DEVICE);
    p->store = store_open(&p->t, 0);
}

static void place_close(place *p)
{
    sy_shard_store_close(p->store);
    expect_slots(p->home, 0);
    sy_shard_home_close(p->home);
    shards_close(&p->t);
    owner_end(&p->other);
}

static void pull_all(sy_shard_builder *builder, const sy_shard_offer *offer)
{
    sy_error err = {0};
    uint64_t before = 0;
    int done = 0;

    while (!done) {
        must(sy_shard_add_from_offer(builder, offer, STEP, &done, &err), &err);
        assert_true(sy_shard_added(builder) > before);
        before = sy_shard_added(builder);
    }
}

static void an_offered_shard_is_the_same_one(void **state)
{
    place p;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    place_open(&p);
    sy_shard_builder *builder = begin_on(p.store, p.home, 0, 1);
    pull_all(builder, &p.other.told[1]);
    must(sy_shard_add_from_offer(builder, &p.other.told[1], STEP, &done, &err), &err);
    assert_true(done);
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    assert_true(identity.content == p.other.told[1].identity.content);
    assert_true(identity.probe == p.other.told[1].identity.probe);
    sy_shard_publish(builder);
    const sy_shard *got = sy_shard_get(p.store, 0, 1);
    sy_shard_store *plain = store_open(&p.t, 0);
    const sy_shard *want = load_on(plain, NULL, 0, 1);
    expect_same_bytes(got, want);
    assert_true(got->home_hash == p.other.told[1].home_hash);
    sy_shard_put(p.store, got);
    sy_shard_put(plain, want);
    sy_shard_store_close(plain);
    place_close(&p);
}

static void what_is_not_what_was_offered_is_not_taken(void **state)
{
    static const struct {
        const char *reason, *text;
        int slot, hash, content, probe;
    } lies[] = {{"SHARD_CORRUPT", "on another process's GPU it hashed to", .slot = 1},
                {"SHARD_CORRUPT", "on another process's GPU it hashed to", .hash = 1},
                {"SHARD_CORRUPT", "said that its content is", .content = 1},
                {"SHARD_PROBE", "computes other bits than another process's GPU", .probe = 1}};
    place p;
    sy_shard_identity identity;
    sy_error err = {0};

    (void)state;
    place_open(&p);
    for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
        sy_shard_offer offer = p.other.told[0];
        sy_shard_builder *builder = begin_on(p.store, p.home, 0, 0);

        if (lies[i].slot) offer.slot = p.other.told[1].slot;
        offer.home_hash ^= (uint64_t)lies[i].hash;
        offer.identity.content ^= (uint64_t)lies[i].content;
        offer.identity.probe ^= (uint64_t)lies[i].probe;
        pull_all(builder, &offer);
        expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EDATALOSS,
                     &err, lies[i].text);
        assert_string_equal(err.reason, lies[i].reason);
        sy_shard_abandon(builder);
        expect_slots(p.home, 0);
    }
    place_close(&p);
}

static void what_cannot_be_read_is_refused(void **state)
{
    sy_shard_offer offer[4];
    place p;
    sy_error err = {0};
    int done;

    (void)state;
    place_open(&p);
    for (size_t i = 0; i < SY_COUNT_OF(offer); i++) offer[i] = p.other.told[0];
    memset(offer[0].pool.handle, 0x5a, sizeof(offer[0].pool.handle));
    offer[1].pool.slot_bytes += 256;
    offer[2].slot = p.other.told[0].pool.n_slots;
    offer[3].slot = UINT32_MAX;
    offer[3].pool.n_slots = UINT32_MAX;
    for (size_t i = 0; i < SY_COUNT_OF(offer); i++) {
        sy_shard_builder *builder = begin_on(p.store, p.home, 0, 0);
        const sy_status st = sy_shard_add_from_offer(builder, &offer[i], STEP, &done, &err);
        if (st != SY_EINVAL && st != SY_EIO)
            fail_msg("offer %zu: %s %s", i, sy_status_name(st), err.message);
        assert_false(done);
        assert_int_equal(sy_shard_add_from_offer(builder, &p.other.told[0], STEP, &done, &err),
                         SY_EPRECONDITION);
        sy_shard_abandon(builder);
        expect_slots(p.home, 0);
    }
    place_close(&p);
}

/* ---- one way for all bytes ---- */

static void bytes_of_one_builder_come_one_way(void **state)
{
    place p;
    sy_shard_identity identity;
    sy_error err = {0};
    char row[16] = "";
    int done;

    (void)state;
    place_open(&p);
    const sy_shard_offer *offer = &p.other.told[0];
    sy_shard_builder *builder = begin_on(p.store, p.home, 0, 0);
    must(sy_shard_add_from_offer(builder, offer, STEP, &done, &err), &err);
    assert_false(done);
    expect_error(sy_shard_add(builder, row, sizeof(row), &err), SY_EPRECONDITION, &err,
                 "it was begun with a copy from another process");
    expect_error(sy_shard_add_from_copy(builder, STEP, &done, &err), SY_EPRECONDITION, &err,
                 "it was begun with a copy from another process");
    expect_error(sy_shard_add_from_checkpoint(builder, STEP, &done, &err), SY_EPRECONDITION, &err,
                 "it was begun with a copy from another process");
    expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EPRECONDITION,
                 &err, "bytes are there");
    pull_all(builder, offer); /* none of this has harmed it */
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    sy_shard_abandon(builder);

    builder = begin_on(p.store, p.home, 0, 0);
    must(sy_shard_add(builder, row, sizeof(row), &err), &err);
    expect_error(sy_shard_add_from_offer(builder, offer, STEP, &done, &err), SY_EPRECONDITION, &err,
                 "it was begun with bytes");
    sy_shard_abandon(builder);

    builder = begin_on(p.store, NULL, 0, 0);
    expect_error(sy_shard_add_from_offer(builder, offer, STEP, &done, &err), SY_EPRECONDITION, &err,
                 "it goes into host memory");
    sy_shard_abandon(builder);
    place_close(&p);
}

static void host_memory_is_not_offered(void **state)
{
    sy_shard_offer offer;
    place p;
    sy_error err = {0};

    (void)state;
    place_open(&p);
    const sy_shard *shard = load_on(p.store, NULL, 0, 0);
    expect_error(sy_shard_offer_of(&offer, shard, &err), SY_EPRECONDITION, &err,
                 "it lies in host memory");
    sy_shard_put(p.store, shard);
    place_close(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_offered_shard_is_the_same_one),
        cmocka_unit_test(what_is_not_what_was_offered_is_not_taken),
        cmocka_unit_test(what_cannot_be_read_is_refused),
        cmocka_unit_test(bytes_of_one_builder_come_one_way),
        cmocka_unit_test(host_memory_is_not_offered),
    };

    if (argc > 1 && strcmp(argv[1], "own") == 0) return own();
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
