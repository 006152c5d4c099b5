/* sim_world.h - the state of a simulated cluster. Inside tests/sim only. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "sim.h"
#include "sy_lifecycle.h"
#include "sy_placement.h"

enum {
    NODES_MAX = 6,
    AGGS_MAX = 3,
    PROCESSES_MAX = NODES_MAX + AGGS_MAX, /* nodes first */
    LAYERS = 2,
    EXPERTS = 3,
    SHARDS = LAYERS * EXPERTS,
    FIELDS = (LAYERS + 1) * (EXPERTS + 1), /* wildcards included, "*" first */
    REQUESTS_MAX = 64,
    VALUE_BYTES = 160,
};

#define MS(n)         ((int64_t)(n)*1000)
#define EDITS_END_US  MS(30000)
#define END_US        MS(130000)
#define GRACE_US      MS(1000)  /* of a request */
#define WATCH_MAX_US  MS(300)   /* what a node announces is known by then */
#define LATE_MAX_US   MS(10000) /* no message between nodes takes longer */
#define REPEAT_MIN_US MS(1000)  /* a question is asked again; doubles, because asking again */
#define REPEAT_MAX_US MS(4000)  /* makes the answers to the one before worthless */

typedef enum event_kind {
    EVENT_EDIT,     /* the operator writes */
    EVENT_READ,     /* a process reads the hash */
    EVENT_TICK,     /* a node looks at what is due */
    EVENT_LOADED,   /* ... has read a shard */
    EVENT_VERIFIED, /* ... and compared it */
    EVENT_QUESTION,
    EVENT_ANSWER,
    EVENT_WATCH,   /* an aggregator hears what a node announced */
    EVENT_DOWN,    /* ... or that its stream broke */
    EVENT_REQUEST, /* a client asks an aggregator */
    EVENT_COMPUTE, /* the request arrives at a node */
    EVENT_REPLY,   /* and its answer at the aggregator */
    EVENT_DEADLINE,
    EVENT_CRASH,
    EVENT_RESTART,
} event_kind;

typedef struct event {
    int64_t at_us;
    uint64_t sequence; /* events of one moment happen in the order they were made */
    event_kind kind;
    uint32_t to, from; /* processes */
    uint32_t shard;
    uint32_t number;       /* a node's generation, or a request's */
    sy_life_answer answer; /* EVENT_QUESTION, _ANSWER, and _WATCH for the state alone */
    int is_found;          /* EVENT_REPLY */
} event;

typedef struct process {
    sy_snapshot *snapshot; /* NULL: nothing read yet */
    int is_slow;           /* hears of edits late */
} process;

typedef struct node {
    int is_down;
    uint32_t generation; /* lives before this one */
    uint32_t n_questions;
    uint32_t room; /* shards */
    sy_life life[SHARDS];
    int64_t asked_us[SHARDS], repeat_us[SHARDS];
} node;

typedef struct request {
    int is_open, is_asking; /* is_asking: a node's answer is awaited */
    int has_waited;         /* for news: there was nobody to ask */
    uint32_t number;
    uint32_t shard;
    uint32_t tried; /* bits of nodes that said "not resident" */
    int64_t start_us;
} request;

typedef struct aggregator {
    uint8_t state[NODES_MAX][SHARDS]; /* of sy_shard_state, as announced */
    int64_t heard_us[NODES_MAX];      /* the newest announcement on its way arrives then */
    request request[REQUESTS_MAX];
} aggregator;

typedef struct world {
    uint64_t seed, n_random;
    uint32_t bugs;
    int with_trace, is_over; /* is_over: a violation ends the run */
    int64_t now_us;
    sim_report *report;
    event *event; /* a heap */
    size_t n_events, event_capacity;
    uint64_t n_sequence;
    uint32_t n_nodes, n_aggs, n_request_numbers;
    process process[PROCESSES_MAX];
    node node[NODES_MAX];
    aggregator agg[AGGS_MAX];
    /* Redis, and what the operator goes back to. */
    char value[FIELDS][VALUE_BYTES]; /* "": no such field */
    char before[FIELDS][VALUE_BYTES];
    /* What this seed is like. */
    int64_t linger_us;
    int is_flipping; /* the operator goes back and forth between two places, and does nothing else
                      */
    uint32_t percent_dropped, percent_failing, percent_late;
    int has_crashes;
    /* For the invariants. */
    int is_served[SHARDS];
    int64_t served_since_us[SHARDS], crashed_us[SHARDS];
} world;

/* sim_run.c */
uint32_t sim_below(world *w, uint32_t n); /* [0, n) */
int sim_percent(world *w, uint32_t percent);
int64_t sim_between(world *w, int64_t from_us, int64_t to_us);
void sim_note(world *w, const char *fmt, ...) SY_PRINTF(2, 3);
void sim_violation(world *w, const char *fmt, ...) SY_PRINTF(2, 3);
uint64_t sim_hash(const world *w, uint32_t process);        /* of the placement in force; 0: none */
int sim_has(const world *w, uint32_t node, uint32_t shard); /* in memory, and would compute */

/* sim_queue.c */
void sim_post(world *w, int64_t at_us, event e); /* at_us: not before now */
int sim_next(world *w, event *out);              /* 0: none is left */

/* sim_operator.c */
void sim_first_placement(world *w);
void sim_edit(world *w);
void sim_last_edit(world *w); /* everything valid, every expert on a node that exists */
void sim_read(world *w, uint32_t process);

/* sim_node.c */
void sim_node_placed(world *w, uint32_t n); /* a placement is in force */
void sim_node_step(world *w, uint32_t n);
void sim_node_loaded(world *w, const event *e);
void sim_node_verified(world *w, const event *e);
void sim_node_question(world *w, const event *e);
void sim_node_answer(world *w, const event *e);
void sim_node_crash(world *w, uint32_t n);

/* sim_agg.c */
void sim_announce(world *w, uint32_t node, uint32_t shard);
void sim_announce_down(world *w, uint32_t node);
void sim_agg_watch(world *w, const event *e);
void sim_agg_down(world *w, const event *e);
void sim_agg_placed(world *w, uint32_t a);
void sim_agg_request(world *w, uint32_t a);
void sim_agg_compute(world *w, const event *e);
void sim_agg_reply(world *w, const event *e);
void sim_agg_deadline(world *w, const event *e);

#endif
