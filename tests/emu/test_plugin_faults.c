/* The plugin's pools when CUDA fails: any call, once or for good, and devices that are lost or
 * hang. Nothing is left behind, the result has the right kind, nobody waits for ever, and other
 * devices go on. */
#include "effort.h"
#include "plugin_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>

static sy_backend_pool_config small(void)
{
    sy_backend_pool_config c = config_of(32, 16, SY_BACKEND_BF16, 1);

    c.slots_max = 2;
    c.rows_max = 16;
    return c;
}

/* ---- any call ---- */

enum { N_REPLAYS = 4 };

static int use(const place *p, const place *other)
{
    const batch b = batch_of(3, (uint32_t[]){0, 1}, (uint32_t[]){4, 2}, 2);
    const uint64_t bytes = p->info.slot_bytes;
    sy_backend_export told;
    uint8_t row[16 * 64];
    uint64_t hash;
    int result;

    if ((result = expert_write(p, 0, 0, 16, why)) != SY_BACKEND_OK ||
        (result = expert_write(p, 1, 1, 32, why)) != SY_BACKEND_OK ||
        (result = cuda->slot_read(row, p->pool, 1, SY_BACKEND_GATE, 0, 16, why)) != SY_BACKEND_OK ||
        (result = cuda->slot_hash(&hash, p->pool, 1, why)) != SY_BACKEND_OK ||
        (result = cuda->slot_copy(other->pool, 0, p->pool, 1, 0, bytes, why)) != SY_BACKEND_OK ||
        (result = cuda->slot_copy(other->pool, 0, other->pool, 0, 0, 1, why)) != SY_BACKEND_OK ||
        (result = cuda->pool_export(&told, p->pool, why)) != SY_BACKEND_OK)
        return result;
    for (uint32_t i = 0; i < N_REPLAYS && result == SY_BACKEND_OK; i++) {
        result = batch_submit(p, i % 2, &b, why);
        if (result == SY_BACKEND_OK) result = batch_wait(p, i % 2, why);
        if (result == SY_BACKEND_OK) batch_check(p, i % 2, &b);
    }
    return result;
}

/* A pool on device `device`, which is all that p has when it is SY_BACKEND_OK. */
static int open_place(place *p, uint32_t device)
{
    const sy_backend_pool_config c = small();
    int result;

    *p = (place){.config = c};
    result = cuda->open(&p->handle, device, why);
    if (result == SY_BACKEND_OK) result = cuda->pool_open(&p->pool, p->handle, &c, why);
    if (result == SY_BACKEND_OK) cuda->pool_describe(&p->info, p->pool);
    return result;
}

/* Everything once; the first result that is no success. Ends what it made. */
static int session(int has_peers)
{
    place a = {0}, b = {0};
    int result;

    emu_cudart_machine_get()->has_peers = has_peers;
    result = open_place(&a, 0);
    if (result == SY_BACKEND_OK) result = open_place(&b, 1);
    if (result == SY_BACKEND_OK) result = use(&a, &b);
    place_close(&a);
    place_close(&b);
    return result;
}

/* Every call that can fail but those that end something, whose result nobody can act on. */
static const char *const calls[] = {"cudaGetDeviceCount",
                                    "cudaSetDevice",
                                    "cudaDeviceGetAttribute",
                                    "cudaDeviceGetStreamPriorityRange",
                                    "cudaDeviceCanAccessPeer",
                                    "cudaDeviceEnablePeerAccess",
                                    "cudaMemGetInfo",
                                    "cudaMalloc",
                                    "cudaHostAlloc",
                                    "cudaMemsetAsync",
                                    "cudaMemcpyAsync",
                                    "cudaMemcpyPeerAsync",
                                    "cudaIpcGetMemHandle",
                                    "cudaStreamCreateWithFlags",
                                    "cudaStreamCreateWithPriority",
                                    "cudaStreamQuery",
                                    "cudaStreamWaitEvent",
                                    "cudaEventCreate",
                                    "cudaEventCreateWithFlags",
                                    "cudaEventRecord",
                                    "cudaEventQuery",
                                    "cudaEventElapsedTime",
                                    "cudaLaunchKernel",
                                    "cudaStreamBeginCapture",
                                    "cudaStreamEndCapture",
                                    "cudaGraphInstantiate",
                                    "cudaGraphLaunch"};

/* One call of the session fails. Graphs may be done without; everything else must be told. */
static void fail_once(const char *call, uint64_t at, int has_peers)
{
    static const struct {
        cudaError_t error;
        int result;
    } kinds[] = {{cudaErrorMemoryAllocation, SY_BACKEND_ENOMEM},
                 {cudaErrorECCUncorrectable, SY_BACKEND_EDEVLOST},
                 {cudaErrorUnknown, SY_BACKEND_EFAILED}};
    static size_t turn;
    const size_t kind = turn++ % SY_COUNT_OF(kinds);
    int result;

    emu_cudart_reset();
    emu_cudart_fail(call, at, kinds[kind].error);
    why[0] = '\0';
    result = session(has_peers);
    if (result == SY_BACKEND_OK && emu_cudart_n_calls("cudaGraphLaunch") == N_REPLAYS &&
        strcmp(call, "cudaGraphLaunch") != 0)
        fail_msg("%s %d: nobody was told", call, (int)at);
    if (result != SY_BACKEND_OK && result != kinds[kind].result)
        fail_msg("%s %d: result %d and not %d: %s", call, (int)at, result, kinds[kind].result, why);
    if (result != SY_BACKEND_OK && why[0] == '\0') fail_msg("%s %d: no reason", call, (int)at);
    if (emu_cudart_n_live() != 0)
        fail_msg("%s %d leaves %d objects", call, (int)at, emu_cudart_n_live());
    if (emu_cudart_last() != cudaSuccess)
        fail_msg("%s %d leaves the error %d", call, (int)at, (int)emu_cudart_last());
}

/* What is asked again and again has no number of times: the first few are looked at. What closing
 * asks last, nobody is told of. */
static uint64_t n_to_fail(const char *call)
{
    const uint64_t n = emu_cudart_n_calls(call);

    if (strcmp(call, "cudaEventQuery") == 0) return n < 6 ? n : 6;
    if (strcmp(call, "cudaStreamQuery") == 0) return n < 2 ? n : 2;
    if (strcmp(call, "cudaSetDevice") == 0) return n - 4;
    return n;
}

static void any_call_that_fails_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++)
        for (size_t i = 0; i < SY_COUNT_OF(calls); i++) {
            uint64_t n;

            if (has_peers && strstr(calls[i], "Peer") == NULL) continue;
            emu_cudart_reset();
            ok(session(has_peers));
            assert_int_equal(emu_cudart_n_calls("cudaGraphLaunch"), N_REPLAYS);
            n = n_to_fail(calls[i]);
            if (n == 0 && strstr(calls[i], "Peer") == NULL) fail_msg("no %s", calls[i]);
            for (uint64_t at = 1; at <= n; at += ONLY_RACES ? 3 : 1)
                fail_once(calls[i], at, has_peers);
        }
}

/* ---- lost ---- */

static void every_call_says(const place *p, const char *text)
{
    const sy_backend_group group = {0, 0, 1};
    uint8_t rows[16 * 64] = {0};
    sy_backend_export told;
    sy_backend_remote *remote;
    float device_us;
    uint64_t hash;
    int done = 1;

    refused(cuda->slot_write(p->pool, 0, SY_BACKEND_GATE, 0, 16, rows, why), SY_BACKEND_EDEVLOST,
            text);
    refused(cuda->slot_flush(p->pool, 0, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->slot_read(rows, p->pool, 0, SY_BACKEND_GATE, 0, 16, why), SY_BACKEND_EDEVLOST,
            text);
    refused(cuda->slot_hash(&hash, p->pool, 0, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->slot_copy(p->pool, 0, p->pool, 1, 0, 1, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->pool_export(&told, p->pool, why), SY_BACKEND_EDEVLOST, text);
    told = (sy_backend_export){.slot_bytes = p->info.slot_bytes, .n_slots = 2};
    refused(cuda->pool_import(&remote, p->pool, &told, why), SY_BACKEND_EDEVLOST, text);
    assert_null(remote);
    refused(cuda->submit(p->pool, 1, 1, 1, &group, 1, why), SY_BACKEND_EDEVLOST, text);
    refused(cuda->wait(&done, &device_us, p->pool, 1, 1000000, why), SY_BACKEND_EDEVLOST, text);
    assert_int_equal(done, 0);
}

static void a_device_lost_under_a_batch_says_so_from_then_on(void **state)
{
    const batch b = batch_of(3, (uint32_t[]){0, 1}, (uint32_t[]){4, 2}, 2);
    place lost, other;

    (void)state;
    ok(open_place(&lost, 0));
    ok(open_place(&other, 1));
    put(&lost, 0, 0);
    put(&lost, 1, 1);
    put(&other, 0, 0);
    put(&other, 1, 1);
    emu_cudart_hang(0, 1);
    ok(batch_submit(&lost, 0, &b, why));
    ok(batch_submit(&other, 0, &b, why));
    emu_cudart_lose(0, cudaErrorECCUncorrectable);
    refused(batch_wait(&lost, 0, why), SY_BACKEND_EDEVLOST, "ECC");
    every_call_says(&lost, "device 0 was lost before: ");
    every_call_says(&lost, "ECC");
    ok(batch_wait(&other, 0, why));
    batch_check(&other, 0, &b);
    refused(cuda->slot_copy(other.pool, 0, lost.pool, 0, 0, 1, why), SY_BACKEND_EDEVLOST, "ECC");
    ok(batch_submit(&other, 1, &b, why));
    ok(batch_wait(&other, 1, why));
    batch_check(&other, 1, &b);
    place_close(&lost);
    place_close(&other);
}

static void a_device_lost_while_weights_are_written_says_so(void **state)
{
    place p;

    (void)state;
    ok(open_place(&p, 1));
    emu_cudart_lose(1, cudaErrorIllegalAddress);
    refused(expert_write(&p, 0, 0, 16, why), SY_BACKEND_EDEVLOST, "(cudaErrorIllegalAddress)");
    every_call_says(&p, "device 1 was lost before: ");
    place_close(&p);
}

static void a_device_lost_while_it_gives_is_not_the_loss_of_who_takes(void **state)
{
    const batch b = batch_of(3, (uint32_t[]){0, 1}, (uint32_t[]){4, 2}, 2);

    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++) {
        place a, c;

        emu_cudart_machine_get()->has_peers = has_peers;
        ok(open_place(&a, 0));
        ok(open_place(&c, 1));
        put(&c, 0, 0);
        put(&c, 1, 1);
        emu_cudart_lose(0, cudaErrorECCUncorrectable);
        refused(cuda->slot_copy(c.pool, 1, a.pool, 1, 0, a.info.slot_bytes, why),
                SY_BACKEND_EDEVLOST, "ECC");
        every_call_says(&a, "device 0 was lost before: ");
        put(&c, 1, 1);
        ok(batch_submit(&c, 0, &b, why));
        ok(batch_wait(&c, 0, why));
        batch_check(&c, 0, &b);
        place_close(&a);
        place_close(&c);
        emu_cudart_reset();
    }
}

typedef struct copy_job {
    const place *to, *from;
    int result;
    char why[SY_BACKEND_WHY_BYTES];
} copy_job;

static void *copy_slot(void *argument)
{
    copy_job *job = argument;

    job->result = cuda->slot_copy(job->to->pool, 0, job->from->pool, 1, 0, job->to->info.slot_bytes,
                                  job->why);
    return NULL;
}

static void a_device_lost_under_a_copy_is_told_from_the_other(void **state)
{
    (void)state;
    for (int has_peers = 0; has_peers < 2; has_peers++)
        for (uint32_t gives = 0; gives < 2;
             gives++) { /* device 0 is lost, as the one or the other */
            place a, b;
            copy_job job;
            pthread_t thread;

            emu_cudart_machine_get()->has_peers = has_peers;
            ok(open_place(&a, 0));
            ok(open_place(&b, 1));
            put(&a, 1, 1);
            put(&b, 1, 1);
            job = (copy_job){.to = gives ? &b : &a, .from = gives ? &a : &b};
            emu_cudart_hang(0, 1);
            assert_int_equal(pthread_create(&thread, NULL, copy_slot, &job), 0);
            while (emu_cudart_n_calls("cudaStreamWaitEvent") == 0) sched_yield();
            emu_cudart_lose(0, cudaErrorECCUncorrectable);
            pthread_join(thread, NULL);
            memcpy(why, job.why, sizeof(why));
            refused(job.result, SY_BACKEND_EDEVLOST, "ECC");
            refused(cuda->slot_flush(a.pool, 1, why), SY_BACKEND_EDEVLOST, "ECC");
            /* Who was reading a lost device's memory directly has an error of its own. */
            if (!has_peers || !gives) {
                put(&b, 1, 1);
                check_slot(&b, 1, 1);
            }
            place_close(&a);
            place_close(&b);
            emu_cudart_reset();
        }
}

/* ---- a batch that fails half way ---- */

static void a_lane_is_used_again_once_what_failed_is_over(void **state)
{
    const batch b = batch_of(3, (uint32_t[]){0, 1}, (uint32_t[]){4, 2}, 2);
    int result = SY_BACKEND_EFAILED;
    place p;

    (void)state;
    ok(open_place(&p, 0));
    put(&p, 0, 0);
    put(&p, 1, 1);
    emu_cudart_fail("cudaStreamBeginCapture", 1, cudaErrorUnknown);
    emu_cudart_fail("cudaLaunchKernel", 2, cudaErrorLaunchOutOfResources);
    refused(batch_submit(&p, 0, &b, why), SY_BACKEND_EFAILED, "sy_cuda_down");
    ok(batch_submit(&p, 0, &b, why));
    ok(batch_wait(&p, 0, why));
    batch_check(&p, 0, &b);

    emu_cudart_hang(0, 1);
    emu_cudart_fail("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources);
    refused(batch_submit(&p, 0, &b, why), SY_BACKEND_EFAILED, "sy_cuda_up");
    refused(cuda->submit(p.pool, 0, b.n_x, b.n_rows, b.group, b.n_groups, why), SY_BACKEND_EFAILED,
            "a part of a batch that failed");
    emu_cudart_hang(0, 0);
    for (int i = 0; i < 10000 && result == SY_BACKEND_EFAILED; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        result = cuda->submit(p.pool, 0, b.n_x, b.n_rows, b.group, b.n_groups, why);
    }
    ok(result);
    ok(batch_wait(&p, 0, why));
    batch_check(&p, 0, &b);
    place_close(&p);
}

/* ---- hanging ---- */

/* The other process: closes a pool whose device hangs. What it leaves behind is its end's. */
static int close_a_hanging_device(void)
{
    const batch b = batch_of(3, (uint32_t[]){0, 1}, (uint32_t[]){4, 2}, 2);
    place p;

    cuda = sy_backend_get(SY_BACKEND_ABI);
    ok(open_place(&p, 0));
    put(&p, 0, 0);
    put(&p, 1, 1);
    emu_cudart_hang(0, 1);
    ok(batch_submit(&p, 0, &b, why));
    cuda->pool_close(p.pool);
    _exit(0);
}

static void a_pool_on_a_device_that_hangs_is_closed_all_the_same(void **state)
{
    int status = -1;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(120);
        execl("/proc/self/exe", "test_plugin_faults", "hang", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(any_call_that_fails_leaves_nothing_behind),
        PLUGIN_TEST(a_device_lost_under_a_batch_says_so_from_then_on),
        PLUGIN_TEST(a_device_lost_while_weights_are_written_says_so),
        PLUGIN_TEST(a_device_lost_while_it_gives_is_not_the_loss_of_who_takes),
        PLUGIN_TEST(a_device_lost_under_a_copy_is_told_from_the_other),
        PLUGIN_TEST(a_lane_is_used_again_once_what_failed_is_over),
        PLUGIN_TEST(a_pool_on_a_device_that_hangs_is_closed_all_the_same),
    };
    if (argc > 1 && strcmp(argv[1], "hang") == 0) return close_a_hanging_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
