/* emu_control.c - what is made to go wrong: by the API, and by the file SY_EMU_CONTROL. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "emu_state.h"

enum { NAME = 48, FAILURES_MAX = 64, LINES_MAX = 64, TEXT_MAX = 4096, CALLS_MAX = 96 };

/* ---- calls that fail ---- */

typedef struct failure {
    char call[NAME]; /* "*": any that can be told of */
    uint64_t left;   /* calls until it is that one's turn; 0: the entry is free */
    cudaError_t error;
} failure;
static failure failures[FAILURES_MAX];

static struct {
    const char *name;
    uint64_t n;
} calls[CALLS_MAX];

/* Those whose result nobody can act on. */
static int ends_something(const char *call)
{
    static const char *const enders[] = {
        "cudaFree",         "cudaFreeHost",     "cudaHostUnregister",   "cudaStreamDestroy",
        "cudaEventDestroy", "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaIpcCloseMemHandle"};

    for (size_t i = 0; i < sizeof(enders) / sizeof(enders[0]); i++)
        if (strcmp(call, enders[i]) == 0) return 1;
    return 0;
}

static int matches(const char *wanted, const char *call)
{
    return strcmp(wanted, "*") == 0 ? !ends_something(call) : strcmp(wanted, call) == 0;
}

cudaError_t emu_count_call(const char *call)
{
    cudaError_t e = cudaSuccess;
    int i = 0;

    while (i < CALLS_MAX - 1 && calls[i].name != NULL && strcmp(calls[i].name, call) != 0) i++;
    calls[i].name = call;
    calls[i].n++;
    for (failure *f = failures; f < failures + FAILURES_MAX; f++)
        if (f->left > 0 && matches(f->call, call) && --f->left == 0) e = f->error;
    return e;
}

static void add_failure(const char *call, uint64_t n, cudaError_t error)
{
    for (failure *f = failures; f < failures + FAILURES_MAX; f++)
        if (f->left == 0) {
            snprintf(f->call, sizeof(f->call), "%s", call);
            f->left = n;
            f->error = error;
            return;
        }
    emu_die("more than %d calls that are to fail", FAILURES_MAX);
}

void emu_cudart_fail(const char *call, uint64_t n, cudaError_t error)
{
    const char *name = call != NULL ? call : "*";

    emu_lock();
    for (failure *f = failures; f < failures + FAILURES_MAX; f++)
        if (strcmp(f->call, name) == 0) f->left = 0;
    if (n > 0) add_failure(name, n, error);
    emu_unlock();
}

uint64_t emu_cudart_n_calls(const char *call)
{
    uint64_t n = 0;

    emu_lock();
    for (int i = 0; i < CALLS_MAX && calls[i].name != NULL; i++)
        if (matches(call != NULL ? call : "*", calls[i].name)) n += calls[i].n;
    emu_unlock();
    return n;
}

/* ---- devices that are slow, hang or flip bits ---- */

typedef struct trouble {
    int hangs;
    uint64_t slow_us;
} trouble;
static trouble by_api[EMU_CUDART_DEVICES_MAX];

typedef struct control_line {
    char text[TEXT_MAX / 16];
    int stands;      /* in the file as it is now */
    int device;      /* of slow and hang; -1: it is neither */
    trouble trouble; /* as long as it stands */
} control_line;
static control_line lines[LINES_MAX];
static char text_before[TEXT_MAX];

static void apply_troubles(void)
{
    for (int d = 0; d < EMU_CUDART_DEVICES_MAX; d++) {
        trouble t = by_api[d];
        for (const control_line *l = lines; l < lines + LINES_MAX; l++)
            if (l->text[0] != '\0' && l->device == d) {
                t.hangs |= l->trouble.hangs;
                t.slow_us += l->trouble.slow_us;
            }
        __atomic_store_n(&emu.device[d].hangs, t.hangs, __ATOMIC_RELAXED);
        __atomic_store_n(&emu.device[d].slow_us, t.slow_us, __ATOMIC_RELAXED);
    }
}

/* What is in the middle changes, not what orders it: nobody is to be blamed for a race. */
static void flip_memory(int device)
{
    emu_memory *largest = NULL;

    for (emu_memory *m = emu.memory; m != NULL; m = m->next)
        if (m->kind == EMU_DEVICE && m->device == device &&
            (largest == NULL || m->bytes > largest->bytes))
            largest = m;
    if (largest != NULL) largest->data[largest->bytes / 2] ^= 0x10;
}

void emu_cudart_hang(int device, int on)
{
    emu_lock();
    by_api[device].hangs = on;
    apply_troubles();
    emu_unlock();
}

void emu_cudart_slow(int device, uint64_t us)
{
    emu_lock();
    by_api[device].slow_us = us;
    apply_troubles();
    emu_unlock();
}

void emu_cudart_flip(int device, int memory)
{
    emu_lock();
    if (memory) {
        flip_memory(device);
    } else {
        emu.device[device].flip_next_copy = 1;
    }
    emu_unlock();
}

/* ---- the file ---- */

static int device_of(unsigned number, const char *line)
{
    if (number >= EMU_CUDART_DEVICES_MAX) emu_die("SY_EMU_CONTROL: no such device: %s", line);
    return (int)number;
}

static cudaError_t error_of(const char *name, const char *line)
{
    cudaError_t e = cudaErrorECCUncorrectable;

    if (name[0] != '\0' && !emu_error_named(&e, name))
        emu_die("SY_EMU_CONTROL: no such error: %s", line);
    return e;
}

/* Does what happens once, and keeps what lasts. */
static void begin_line(control_line *l)
{
    char call[NAME], name[NAME] = "";
    unsigned device;
    unsigned long long n;
    int end = 0;

    l->device = -1;
    if (sscanf(l->text, "fail %47s %llu %47s%n", call, &n, name, &end) == 3 && n > 0 &&
        l->text[end] == '\0') {
        add_failure(call, n, error_of(name, l->text));
    } else if (sscanf(l->text, "lose %u %47s", &device, name) >= 1) {
        __atomic_store_n(&emu.device[device_of(device, l->text)].lost, error_of(name, l->text),
                         __ATOMIC_RELAXED);
    } else if (sscanf(l->text, "slow %u %llu", &device, &n) == 2) {
        l->device = device_of(device, l->text);
        l->trouble.slow_us = n;
    } else if (sscanf(l->text, "hang %u", &device) == 1) {
        l->device = device_of(device, l->text);
        l->trouble.hangs = 1;
    } else if (sscanf(l->text, "flip %u %47s", &device, name) >= 1 &&
               (name[0] == '\0' || strcmp(name, "copy") == 0)) {
        emu.device[device_of(device, l->text)].flip_next_copy = 1;
    } else if (sscanf(l->text, "flip %u %47s", &device, name) == 2 && strcmp(name, "memory") == 0) {
        flip_memory(device_of(device, l->text));
    } else {
        emu_die("SY_EMU_CONTROL: what is \"%s\"?", l->text);
    }
}

static void read_line(const char *text, size_t n)
{
    control_line *room = NULL;

    if (n == 0 || text[0] == '#') return;
    if (n >= sizeof(lines[0].text)) emu_die("SY_EMU_CONTROL: a line of %zu bytes", n);
    for (control_line *l = lines; l < lines + LINES_MAX; l++) {
        if (strlen(l->text) == n && memcmp(l->text, text, n) == 0) {
            l->stands = 1;
            return;
        }
        if (l->text[0] == '\0' && room == NULL) room = l;
    }
    if (room == NULL) emu_die("SY_EMU_CONTROL: more than %d lines", LINES_MAX);
    *room = (control_line){.stands = 1};
    memcpy(room->text, text, n);
    begin_line(room);
}

/* By the system calls themselves: ThreadSanitizer takes files for something that orders. */
static void read_file(char text[TEXT_MAX])
{
    const char *path = getenv("SY_EMU_CONTROL");
    const long fd = path != NULL ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    const long n = fd >= 0 ? syscall(SYS_read, fd, text, TEXT_MAX - 1) : 0;

    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0) syscall(SYS_close, fd);
}

/* A line that has no end yet is still being written. */
void emu_control_look(void)
{
    char text[TEXT_MAX];

    read_file(text);
    if (strcmp(text, text_before) == 0) return;
    memcpy(text_before, text, sizeof(text));
    for (control_line *l = lines; l < lines + LINES_MAX; l++) l->stands = 0;
    for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
        read_line(at, (size_t)(end - at));
    for (control_line *l = lines; l < lines + LINES_MAX; l++)
        if (!l->stands) l->text[0] = '\0';
    apply_troubles();
}

void emu_control_reset(void)
{
    memset(failures, 0, sizeof(failures));
    memset(calls, 0, sizeof(calls));
    memset(by_api, 0, sizeof(by_api));
    memset(lines, 0, sizeof(lines));
    memset(text_before, 0, sizeof(text_before));
    apply_troubles();
}
