/* sy_service.h - what the three servers share: options, start-up order, readiness told to health
 * checks, and an orderly end. A program's main is: sy_service_init, parse, open its own parts,
 * sy_service_start, sy_service_wait, close. */
#ifndef SY_SERVICE_H
#define SY_SERVICE_H

#include "sy_args.h"
#include "sy_control.h"
#include "sy_rpc.h"

typedef struct sy_service_options {
    sy_arg_strings listen; /* gRPC addresses; default 127.0.0.1:0 */
    const char *http;      /* metrics and probes; default 127.0.0.1:0 */
    const char *redis;     /* one address or several; default redis://127.0.0.1:6379 */
    const char *name;      /* of this process: lease, logs, metrics; default TIER-PID */
    const char *
        advertise; /* the address that peers are told; default: the first listen address as bound */
    const char *model_dir;  /* required */
    const char *model_name; /* default: the directory's base name */
    const char *kernels;    /* "auto" */
    int64_t threads;        /* compute threads; 0: all cores */
    int64_t drain_s;        /* default 10 */
    int64_t message_mb;     /* largest gRPC message; default 64 */
    const char *log_level;
    int log_json;
    int allow_nan; /* sy_model_allow_nan */
} sy_service_options;

typedef struct sy_service sy_service;

typedef struct sy_service_config {
    const char *tier; /* "router", "expert", "aggregator" */
    sy_member_kind kind;
    const char *devices;                      /* announced; NULL: none */
    uint64_t structure_hash, checkpoint_hash; /* announced */
    const char *arithmetic;                   /* announced */
    sy_server_config
        server; /* methods, service_names; addresses and limits come from the options */
    sy_control_config control; /* grid, watch_*, callbacks, ctx; addresses come from the
                                  options; model, on_signal and ready are set by the service */
    const char *model;
    int (*ready)(void *ctx, sy_strbuf *why); /* ctx: control.ctx. Asked on the control thread, every
                                                100 ms and by probes */
} sy_service_config;

/* First thing in main, before any thread exists: signals are blocked for all. */
void sy_service_init(void);
/* Parses the common options and `extra`, opens the log. SY_ECANCELLED: help was printed. */
SY_MUST_USE sy_status sy_service_parse(sy_service_options *out, int argc, char **argv,
                                       const char *tier, const char *usage, const sy_arg *extra,
                                       size_t n_extra, sy_error *err);
/* Opens loop, server and control plane, in this order; *out is set before the first callback runs.
 * Announces the process: "starting" until ready() first says yes, then "serving". Health of "", of
 * every service name and of the model's name follows ready(). options and config are copied;
 * strings are borrowed for good. On failure everything is closed again and *out is NULL. */
SY_MUST_USE sy_status sy_service_start(sy_service **out, const sy_service_options *options,
                                       const sy_service_config *config, sy_error *err);
sy_loop *sy_service_loop(sy_service *service);
sy_control *sy_service_control(sy_service *service);
sy_server *sy_service_server(sy_service *service);
const char *sy_service_name(const sy_service *service);
int sy_service_draining(const sy_service *service); /* any thread */
/* Sleeps until SIGTERM or SIGINT; then, in this order: the lease says "draining", health says
 * NOT_SERVING, new calls are refused with UNAVAILABLE while in-flight ones finish within drain_s,
 * and the lease is withdrawn. When it returns no server callback runs any more; the loop (for
 * peers) and the control plane still do. */
void sy_service_wait(sy_service *service);
/* Stops the control plane: none of its callbacks runs afterwards. Before peers that it feeds are
 * closed. Once or more; accepts NULL. */
void sy_service_stop_control(sy_service *service);
/* Stops the control plane, then the loop; peers are closed before. Accepts NULL. */
void sy_service_close(sy_service *service);
/* Ends a call with a status and a text. Any thread. */
void sy_service_refuse(sy_call *call, sy_status st, const char *text);
/* SY_ENOTFOUND (MODEL_UNKNOWN) unless asked is "" or the model served here. */
sy_status sy_service_check_model(const char *served, const char *asked, sy_error *err);
/* SY_EINVAL (LAYER_HAS_NO_EXPERTS): what was asked of the layer is a matter of experts. */
sy_status sy_service_refuse_dense(uint32_t layer, sy_error *err);
/* "error: TEXT" on stderr and the exit code for a failed start: 2 for usage, 1 otherwise, 0 for
 * SY_ECANCELLED (help). */
int sy_service_exit_code(const sy_error *err, const char *program);

#endif
