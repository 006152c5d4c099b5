/* sy_channel.c - how this system's channels are set up: what peers and blocking clients share. */
#include "sy_rpc_internal.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <limits.h>

/* One connection attempt, from the first SYN to the server's HTTP/2 settings: a host that swallows
 * packets, or a process that is stopped, costs at most this before the next attempt. */
#define CONNECT_TIMEOUT_MS 3000

#define KEEPALIVE_MS_MIN 20

static int to_ms(int64_t us)
{
    return (int)SY_MIN(SY_MAX(us / 1000, 1), INT_MAX);
}

static grpc_arg int_arg(const char *key, int value)
{
    /* gRPC copies the key; the cast only serves its signature. */
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

struct grpc_channel *rpc_channel_open(const rpc_address *address,
                                      const rpc_channel_options *options)
{
    grpc_channel_credentials *insecure = grpc_insecure_credentials_create();
    const int keepalive_ms = SY_MAX(to_ms(options->keepalive_us), KEEPALIVE_MS_MIN);
    grpc_arg arg[] = {
        /* Two channels to one address are two connections: a peer's fate is its own. */
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                (int)SY_MIN(options->message_bytes_max, (size_t)INT_MAX)),
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY,
                0), /* http_proxy in the environment is not meant for us */
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        int_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, to_ms(options->backoff_min_us)),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, to_ms(options->backoff_max_us)),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                CONNECT_TIMEOUT_MS), /* really the attempt's timeout */
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* The last two only when asked for. */
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms),
    };
    const grpc_channel_args args = {
        .num_args = SY_COUNT_OF(arg) - (options->keepalive_us > 0 ? 0 : 2), .args = arg};
    grpc_channel *channel = grpc_channel_create(address->target, insecure, &args);

    grpc_channel_credentials_release(insecure);
    return channel;
}
