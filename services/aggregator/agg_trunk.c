/* agg_trunk.c - see agg_trunk.h. */
#include "agg_trunk.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_devices.h"
#include "sy_log.h"
#include "sy_metrics.h"
#include "sy_precision_text.h"

/* Where it is, for dashboards; and, on a GPU, whether that is lost, there from the start. */
static void open_metrics(aggregator *agg, const sy_device *device)
{
    char labels[96];

    snprintf(labels, sizeof(labels), "device=\"%s\",arithmetic=\"%.40s\"", device->name,
             sy_trunk_arithmetic(agg->trunk));
    sy_metric_set(sy_metric_gauge("switchyard_aggregator_trunk_info",
                                  "What computes the model without its experts", labels),
                  1);
    if (device->kind == SY_DEVICE_CPU) return;
    snprintf(labels, sizeof(labels), "device=\"%s\",reason=\"DEVICE_LOST\"", device->name);
    agg->trunk_faults =
        sy_metric_counter("switchyard_aggregator_device_faults_total",
                          "GPUs that failed while the aggregator served, by reason", labels);
}

sy_status agg_trunk_open(aggregator *agg, const agg_trunk_options *options, sy_error *err)
{
    const sy_backend *backend;
    sy_device device;
    sy_status st;

    agg->trunk_exit_us = options->exit_s * 1000000;
    agg->trunk_is_refused = 1; /* until it is known that the device can be used */
    SY_TRY(sy_devices_choose_one(&device, &backend, "--trunk-device", options->device, err));
    if (backend == NULL) {
        agg->trunk_is_refused = 0;
        SY_TRY(
            sy_trunk_open(&agg->trunk, agg->model, agg->kernels, agg->precision, agg->pool, err));
        open_metrics(agg, &device);
        return SY_OK;
    }
    if (agg->precision.activations != SY_ACT_F32)
        return sy_error_set(err, SY_EINVAL,
                            "--activations %s: it is for CPUs; what GPUs do is in the name of "
                            "their arithmetic (switchyard devices)",
                            sy_activations_name(agg->precision.activations));
    const sy_trunk_device place = {
        .backend = backend,
        .number = device.number,
        .name = device.name,
        .timeout_us = (uint32_t)(options->timeout_s * 1000000),
    };
    st = sy_trunk_open_on(&agg->trunk, &place, agg->model, agg->kernels, agg->precision, agg->pool,
                          err);
    if (st != SY_OK) {
        sy_devices_name_option(err, "--trunk-device");
        goto out;
    }
    agg->trunk_is_refused = 0;
    open_metrics(agg, &device);
    sy_log(SY_LOG_INFO, "the trunk is on %s, which computes as %s", device.name,
           sy_trunk_arithmetic(agg->trunk));
out:
    return st;
}

int agg_trunk_is_lost(const aggregator *agg, sy_strbuf *why)
{
    sy_error err = {0};

    if (!sy_trunk_lost(agg->trunk, &err)) return 0;
    sy_strbuf_printf(why, "%s (%s)", err.message, err.reason);
    return 1;
}

void agg_trunk_tick(void *arg)
{
    aggregator *agg = arg;
    const int64_t now_us = sy_clock_us();
    sy_error err = {0};

    if (!sy_trunk_lost(agg->trunk, &err)) return;
    if (agg->trunk_lost_us == 0) {
        agg->trunk_lost_us = now_us;
        sy_metric_add(agg->trunk_faults, 1);
        sy_log_error(SY_LOG_ERROR, &err, "no more is generated here");
    }
    if (agg->trunk_is_exiting || now_us - agg->trunk_lost_us < agg->trunk_exit_us) return;
    agg->trunk_is_exiting = 1;
    sy_log(SY_LOG_ERROR, "this process ends, to be started again: %s", err.message);
    (void)kill(getpid(), SIGTERM); /* the orderly end, which answers what is still open */
}

void agg_trunk_end(const aggregator *agg)
{
    if (agg->trunk != NULL && sy_trunk_lost(agg->trunk, NULL)) _exit(AGG_EXIT_DEVICE);
}
