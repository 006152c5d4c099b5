/* The tester is tested: this program runs itself once for every bug of emu_planted.cu, and for the
 * same kernel without it, and looks at how that ends and what it says. What values or the emulator
 * itself can show must be caught in every build; races with ThreadSanitizer, overruns and
 * misaligned reads with the others. */
#include "emu_child.h"
#include "emu_planted.h"
#include "sy_base.h"

#define WRONG "is wrong"

/* What the child says, as far as this build can tell; NULL: not more than the others. */
typedef struct bug_case {
    const char *what;
    const char *any, *address, *undefined, *thread;
} bug_case;
static const bug_case cases[N_EMU_BUGS] = {
    [BUG_BARRIER_MISSING] = {"a missing barrier", WRONG, .thread = "data race"},
    [BUG_BARRIER_MISSING_LATE] = {"a missing second barrier", WRONG, .thread = "data race"},
    [BUG_WAIT_TOO_EARLY] = {"a wait that is too early", WRONG, .thread = "data race"},
    [BUG_COUNT_NOT_ATOMIC] = {"a count that is not atomic", .thread = "data race"},
    [BUG_SHARED_OVERRUN] = {"a write past shared memory", "after a shared array of 256 was written",
                            .address = "use-after-poison"},
    [BUG_GLOBAL_OVERRUN] = {"a read past global memory", .address = "heap-buffer-overflow"},
    [BUG_SHARED_UNWRITTEN] = {"shared memory never written", WRONG},
    [BUG_MISALIGNED] = {"a misaligned vector", .undefined = "misaligned address"},
    [BUG_BARRIER_DIVERGENT] = {"a barrier in a branch", "while others are at that of line"},
    [BUG_BARRIER_LEFT] = {"a barrier that threads have left before", "left before"},
    [BUG_LANE_LEFT] = {"a shuffle with lanes that have left", "names a lane that has left"},
    [BUG_LANES_APART] = {"lanes at different shuffles", "while other lanes are at that of line"},
};

/* ---- the child ---- */

static int child(emu_bug bug, int planted)
{
    const size_t in_bytes = (EMU_PLANTED_THREADS + 4) * sizeof(uint32_t);
    uint32_t *in = aligned_alloc(16, in_bytes);
    uint32_t *out = aligned_alloc(16, EMU_PLANTED_THREADS * sizeof(uint32_t));
    int n_wrong = 0;

    if (in == NULL || out == NULL) return 1;
    for (uint32_t i = 0; i < EMU_PLANTED_THREADS + 4; i++) in[i] = 1000 + 7 * i;
    memset(out, 0, EMU_PLANTED_THREADS * sizeof(uint32_t));
    emu_planted_run(bug, planted, out, in);
    for (uint32_t i = 0; i < EMU_PLANTED_THREADS; i++) {
        if (out[i] == emu_planted_want(bug, in, i)) continue;
        if (n_wrong++ == 0)
            fprintf(stderr, "out[%u] " WRONG ": %u, want %u\n", i, out[i],
                    emu_planted_want(bug, in, i));
    }
    free(in);
    free(out);
    return n_wrong != 0;
}

/* ---- the parent ---- */

static void run_child(emu_child_end *end, emu_bug bug, int planted, const char *order)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)bug);
    emu_child_run(end, text, planted ? "1" : "0", order);
}

static void expect_said(const emu_child_end *end, const char *want, const bug_case *c,
                        const char *order)
{
    if (want == NULL) return;
    if (end->clean) fail_msg("%s, order %s: not caught", c->what, order);
    if (strstr(end->said, want) == NULL)
        fail_msg("%s, order %s: caught without \"%s\": %s", c->what, order, want, end->said);
}

static const char *const orders[] = {"linear", "reverse", "random:1"};

static void every_planted_bug_is_caught(void **state)
{
    static emu_child_end end;

    (void)state;
    for (int bug = 0; bug < N_EMU_BUGS; bug++)
        for (size_t o = 0; o < SY_COUNT_OF(orders); o++) {
            const bug_case *c = &cases[bug];
            run_child(&end, (emu_bug)bug, 1, orders[o]);
            if (emu_child_sanitizes("address") && c->address != NULL) {
                expect_said(&end, c->address, c, orders[o]);
            } else {
                expect_said(&end, c->any, c, orders[o]);
            }
            if (emu_child_sanitizes("undefined")) expect_said(&end, c->undefined, c, orders[o]);
            if (emu_child_sanitizes("thread")) expect_said(&end, c->thread, c, orders[o]);
        }
}

static void nothing_is_reported_without_the_bug(void **state)
{
    static emu_child_end end;

    (void)state;
    for (int bug = 0; bug < N_EMU_BUGS; bug++)
        for (size_t o = 0; o < SY_COUNT_OF(orders); o++) {
            run_child(&end, (emu_bug)bug, 0, orders[o]);
            if (!end.clean || end.said[0] != '\0')
                fail_msg("without %s, order %s: %s", cases[bug].what, orders[o], end.said);
        }
}

static void an_unknown_order_is_refused(void **state)
{
    static emu_child_end end;

    (void)state;
    run_child(&end, BUG_BARRIER_MISSING, 0, "random:x");
    assert_false(end.clean);
    assert_non_null(strstr(end.said, "SY_EMU_ORDER=random:x: linear, reverse or random:SEED"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planted_bug_is_caught),
        cmocka_unit_test(nothing_is_reported_without_the_bug),
        cmocka_unit_test(an_unknown_order_is_refused),
    };

    if (argc == 3) return child((emu_bug)atoi(argv[1]), atoi(argv[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
