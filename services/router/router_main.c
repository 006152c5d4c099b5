/* router_main.c - switchyard-router: loads the gates, answers Route. Stateless: any number of
 * replicas may run. Threads: the rpc loop takes messages and answers quick ones itself; workers
 * decode, compute and answer the others; the control thread does the rest. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "router_work.h"
#include "sy_log.h"

static sy_grid router_grid(const sy_model_desc *desc)
{
    return sy_grid_of(desc->n_layers, desc->n_experts, desc->layer, SY_LAYER_DENSE);
}

static sy_status open_model(router *self, const sy_service_options *o, sy_error *err)
{
    sy_status st;

    SY_TRY(sy_kernels_choose(&self->kernels, o->kernels, err));
    SY_TRY(sy_model_open(&self->model, o->model_dir, o->model_name, err));
    if (o->allow_nan) sy_model_allow_nan(self->model);
    self->desc = sy_model_describe(self->model);
    SY_TRY(sy_model_checkpoint_hash(&self->checkpoint_hash, self->model, err));
    SY_TRY(sy_router_open(&self->gates, self->model, self->kernels, err));
    const sy_grid grid = router_grid(self->desc);
    sy_log(SY_LOG_INFO, "model %s: gates of %u layers, %llu KB, kernels %s",
           sy_model_name(self->model), sy_grid_moe_layers(&grid),
           (unsigned long long)(sy_router_bytes(self->gates) >> 10), self->kernels->name);
out:
    return st;
}

static sy_status start(router *self, const sy_service_options *o, sy_error *err)
{
    static const char *const names[] = {"switchyard.v1.Router"};
    const sy_method methods[] = {
        {.path = "/switchyard.v1.Router/Route", .ctx = self, .on_message = router_route_message},
        {.path = "/switchyard.v1.Router/RouteStream",
         .client_streams = 1,
         .server_streams = 1,
         .ctx = self,
         .on_open = router_stream_open,
         .on_message = router_route_message,
         .on_end = router_stream_end},
        {.path = "/switchyard.v1.Router/DescribeModel",
         .ctx = self,
         .on_message = router_describe_message},
    };
    const sy_service_config config = {.tier = "router",
                                      .kind = SY_MEMBER_ROUTER,
                                      .structure_hash = sy_model_structure_hash(self->model),
                                      .checkpoint_hash = self->checkpoint_hash,
                                      .arithmetic = SY_ARITHMETIC,
                                      .server = {.methods = methods,
                                                 .n_methods = SY_COUNT_OF(methods),
                                                 .service_names = names,
                                                 .n_service_names = 1,
                                                 .send_queue_max = ROUTER_QUEUE_MAX,
                                                 .error_details = sy_wire_error_details},
                                      .control = {.grid = router_grid(self->desc), .ctx = self},
                                      .model = sy_model_name(self->model)};

    return sy_service_start(&self->service, o, &config, err);
}

static sy_status parse(sy_service_options *o, int *shares_memory, int argc, char **argv,
                       sy_error *err)
{
    const char *shared_memory = "on";
    const sy_arg extra[] = {
        {"shared-memory", "on|off",
         "on: rows of aggregators on this host are read where they have them; off: all rows go "
         "through the connection; default on",
         SY_ARG_STRING, &shared_memory, 0, 0},
    };
    const sy_status st = sy_service_parse(
        o, argc, argv, "router",
        "switchyard-router --model DIR [options]\n\n"
        "Computes the top-k experts of hidden rows. Loads nothing but the gates of the model.",
        extra, SY_COUNT_OF(extra), err);

    *shares_memory = strcmp(shared_memory, "on") == 0;
    if (st == SY_OK && !*shares_memory && strcmp(shared_memory, "off") != 0)
        return sy_error_set(err, SY_EINVAL, "--shared-memory %s: on or off", shared_memory);
    return st;
}

int main(int argc, char **argv)
{
    static router self;
    sy_service_options options;
    sy_error err = {0};
    sy_status st;

    sy_service_init();
    sy_error_clear(&err);
    SY_TRY(parse(&options, &self.shares_memory, argc, argv, &err));
    SY_TRY(open_model(&self, &options, &err));
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    SY_TRY(router_work_open(
        &self, (unsigned)(options.threads > 0 ? options.threads : SY_MAX(cores, 1)), &err));
    SY_TRY(start(&self, &options, &err));
    sy_service_wait(self.service);
out:
    router_work_close(&self);
    sy_service_close(self.service);
    sy_router_close(self.gates);
    sy_model_close(self.model);
    return st == SY_OK ? 0 : sy_service_exit_code(&err, "switchyard-router");
}
