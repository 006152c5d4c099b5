/* sy_lifecycle.c - the transitions. */
#include "sy_lifecycle.h"

static void enter(sy_life *life, sy_shard_state state, int64_t now_us)
{
    life->state = state;
    life->since_us = now_us;
    life->question = 0; /* no answer to an earlier question may end what begins now */
}

int sy_life_wanted(sy_life *life, int wanted, int64_t now_us)
{
    const sy_shard_state before = life->state;

    life->wanted = wanted != 0;
    life->question = 0; /* asked under a placement that may be another */
    switch (life->state) {
    case SY_SHARD_RESIDENT:
        if (!wanted) enter(life, SY_SHARD_LINGERING, now_us);
        break;
    case SY_SHARD_LINGERING:
        if (wanted) enter(life, SY_SHARD_RESIDENT, now_us);
        break;
    case SY_SHARD_FAILED:
        life->failures = 0;
        enter(life, SY_SHARD_ABSENT, now_us);
        break;
    case SY_SHARD_ABSENT:
    case SY_SHARD_LOADING:
    case SY_SHARD_VERIFYING:
    case SY_N_SHARD_STATES: break;
    }
    return life->state != before;
}

int sy_life_must_load(const sy_life *life, int64_t now_us)
{
    if (!life->wanted) return 0;
    return life->state == SY_SHARD_ABSENT ||
           (life->state == SY_SHARD_FAILED && now_us >= life->retry_us);
}

void sy_life_loading(sy_life *life, int64_t now_us)
{
    enter(life, SY_SHARD_LOADING, now_us);
}

void sy_life_verifying(sy_life *life, int64_t now_us)
{
    enter(life, SY_SHARD_VERIFYING, now_us);
}

void sy_life_loaded(sy_life *life, int64_t now_us)
{
    life->failures = 0;
    enter(life, life->wanted ? SY_SHARD_RESIDENT : SY_SHARD_LINGERING, now_us);
}

void sy_life_failed(sy_life *life, int64_t now_us)
{
    int64_t wait_us = SY_LIFE_RETRY_MIN_US;

    for (uint32_t i = 0; i < life->failures && wait_us < SY_LIFE_RETRY_MAX_US; i++) wait_us *= 2;
    life->failures++;
    life->retry_us = now_us + SY_MIN(wait_us, (int64_t)SY_LIFE_RETRY_MAX_US);
    enter(life, life->wanted ? SY_SHARD_FAILED : SY_SHARD_ABSENT, now_us);
}

int sy_life_may_ask(const sy_life *life, int64_t linger_us, int needs_room, int64_t now_us)
{
    return life->state == SY_SHARD_LINGERING &&
           (needs_room || now_us - life->since_us >= linger_us);
}

void sy_life_ask(sy_life *life, uint64_t question, uint64_t placement_hash)
{
    life->question = question;
    life->asked_hash = placement_hash;
}

int sy_life_answered(sy_life *life, const sy_life_answer *answer, uint64_t placement_hash,
                     int64_t now_us)
{
    if (life->state != SY_SHARD_LINGERING || life->question == 0 ||
        answer->question != life->question)
        return 0;
    if (life->asked_hash != placement_hash || answer->placement_hash != placement_hash) return 0;
    if (answer->state != SY_SHARD_RESIDENT) return 0;
    enter(life, SY_SHARD_ABSENT, now_us);
    return 1;
}
