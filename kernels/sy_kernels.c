/* sy_kernels.c - which implementations this machine can run, and the choice between them. */
#include "sy_kernels.h"

#include <cpuid.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/sy_cpu.h"
#include "ref/sy_ref.h"

#define CHOICE_ENV "SWITCHYARD_KERNELS"

static int always(void)
{
    return 1;
}

/* Not every compiler lets the builtins be asked for F16C. The instruction that tells is asked once:
 * in a virtual machine it takes tens of microseconds. */
static int has_f16c(void)
{
    static _Atomic int known; /* 0: not yet; 1: no; 2: yes */
    unsigned eax, ebx, ecx, edx;

    if (known == 0) known = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0 ? 2 : 1;
    return known == 2;
}

/* The builtins also ask whether the operating system saves the registers. */
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static int has_vnni(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static int has_avx512_only(void)
{
    return has_avx512() && !has_vnni();
}

static const struct implementation {
    const sy_kernels *kernels;
    int (*runs_here)(void);
} implementations[] = {
    /* Each later one is faster where it runs; of those of one name at most one does. */
    {&sy_kernels_ref, always},
    {&sy_kernels_avx2, has_avx2},
    {&sy_kernels_avx512, has_avx512_only},
    {&sy_kernels_avx512_vnni, has_vnni},
};

size_t sy_kernels_count(void)
{
    size_t n = 0;

    for (size_t i = 0; i < SY_COUNT_OF(implementations); i++)
        n += implementations[i].runs_here() != 0;
    return n;
}

const sy_kernels *sy_kernels_at(size_t i)
{
    for (size_t j = 0; j < SY_COUNT_OF(implementations); j++) {
        if (!implementations[j].runs_here()) continue;
        if (i == 0) return implementations[j].kernels;
        i--;
    }
    SY_ASSERT(!"an index below sy_kernels_count()");
    return NULL;
}

const sy_kernels *sy_kernels_find(const char *name)
{
    for (size_t i = 0; i < SY_COUNT_OF(implementations); i++) {
        const struct implementation *it = &implementations[i];
        if (strcmp(it->kernels->name, name) == 0 && it->runs_here()) return it->kernels;
    }
    return NULL;
}

static int is_auto(const char *name)
{
    return name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0;
}

const sy_kernels *sy_kernels_best(void)
{
    const char *forced = getenv(CHOICE_ENV);
    const sy_kernels *found = is_auto(forced) ? NULL : sy_kernels_find(forced);

    return found != NULL ? found : sy_kernels_at(sy_kernels_count() - 1);
}

sy_status sy_kernels_choose(const sy_kernels **out, const char *name, sy_error *err)
{
    const char *source = "";
    char names[64] = "auto";

    *out = NULL;
    if (is_auto(name)) {
        name = getenv(CHOICE_ENV);
        source = " from " CHOICE_ENV;
    }
    *out = is_auto(name) ? sy_kernels_best() : sy_kernels_find(name);
    if (*out != NULL) return SY_OK;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        strncat(names, ", ", sizeof(names) - strlen(names) - 1);
        strncat(names, sy_kernels_at(i)->name, sizeof(names) - strlen(names) - 1);
    }
    return sy_error_set(err, SY_EINVAL,
                        "kernels '%s'%s: unknown, or this machine cannot run them; use one of %s",
                        name, source, names);
}
