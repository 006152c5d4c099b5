/* up_cluster.h - what a local cluster consists of: its folder (RUNDIR), the processes and their
 * addresses. RUNDIR/cluster.json is this description, there as long as the cluster is. */
#ifndef UP_CLUSTER_H
#define UP_CLUSTER_H

#include "sy_control.h"

#define UP_OF_A_TIER_MAX   64
#define UP_PROCESSES_MAX   (1 + 3 * UP_OF_A_TIER_MAX)
#define UP_PATH_BYTES      4096
#define UP_DIR_BYTES       108 /* the folder of Unix sockets cannot be longer than their paths */
#define UP_SOCKET_PATH_MAX 107
#define UP_URL_BYTES       512

typedef struct up_process {
    char name[SY_NODE_BYTES];       /* "expert-0" */
    char tier[16];                  /* "redis", "router", "expert", "aggregator" */
    char address[SY_ADDRESS_BYTES]; /* what it serves: "unix:RUNDIR/expert-0.sock" */
    char http[SY_ADDRESS_BYTES];    /* "": none, as Redis */
} up_process;

typedef struct up_cluster {
    char dir[UP_DIR_BYTES]; /* RUNDIR, absolute, no symbolic links */
    char model[128];        /* what it is called */
    char model_dir[UP_PATH_BYTES];
    sy_grid grid;
    char redis[UP_URL_BYTES];
    int owns_redis;     /* the first process is Redis */
    size_t n_processes; /* in the order they are started */
    up_process process[UP_PROCESSES_MAX];
} up_cluster;

typedef struct up_size {
    uint32_t experts, routers, aggregators; /* each at most UP_OF_A_TIER_MAX */
} up_size;

/* Tiers in the order they are stopped: who asks before who answers. */
#define UP_TIERS 4
extern const char *const up_stop_order[UP_TIERS];

/* Makes dir if it is not there, and fills out->dir. SY_EINVAL: too long for the longest socket of
 * this size; SY_EIO. */
SY_MUST_USE sy_status up_cluster_set_dir(up_cluster *out, const char *dir, const up_size *size,
                                         sy_error *err);
/* Fills redis, owns_redis and the processes. redis: NULL for one of the cluster's own. */
SY_MUST_USE sy_status up_cluster_describe(up_cluster *cluster, const up_size *size,
                                          const char *redis, sy_error *err);
/* "RUNDIR/NAME.SUFFIX". */
void up_cluster_path(char out[UP_PATH_BYTES], const char *dir, const char *name,
                     const char *suffix);

SY_MUST_USE sy_status up_cluster_save(const up_cluster *cluster, sy_error *err);
/* *out: the caller frees it. SY_ENOTFOUND: there is no cluster in dir, and the text says how to
 * start one; SY_EDATALOSS: cluster.json is not what save writes. */
SY_MUST_USE sy_status up_cluster_load(up_cluster **out, const char *dir, sy_error *err);
/* Removes cluster.json and every socket; logs stay. */
void up_cluster_clean(const char *dir);

#endif
