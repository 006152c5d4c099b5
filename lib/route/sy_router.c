/* sy_router.c - the gates of a checkpoint, packed and resident, and routing with them. Owns the
 * packed matrices; the checkpoint is read while opening and not needed afterwards. */
#include "sy_route.h"

#include <stdlib.h>

#include "sy_file.h"

struct sy_router {
    const sy_kernels *kernels;
    sy_gate_desc gate;
    uint32_t n_layers, hidden, n_experts, top_k;
    uint64_t bytes;
    float *bias;        /* [n_layers, E], for the choice of experts; NULL: the family has none */
    float *logit_bias;  /* [n_layers, E], part of the logits; NULL: the family has none */
    void *data;         /* every layer's panels, each at a cache line */
    sy_panels panels[]; /* [n_layers]; data NULL: the layer has no experts */
};

static size_t line_up(size_t n)
{
    return (n + SY_CACHE_LINE - 1) / SY_CACHE_LINE * SY_CACHE_LINE;
}

/* Shapes and the sum of sizes; data pointers follow once there is memory. The model has checked
 * that each gate is [E,H]; here only what would make this file wrong is looked at again. */
static sy_status plan_panels(sy_router *self, const sy_model *model, sy_error *err)
{
    for (uint32_t layer = 0; layer < self->n_layers; layer++) {
        const sy_tensor *tensor = sy_model_tensor(model, SY_ROLE_GATE, layer, 0);
        sy_panels *panels = &self->panels[layer];
        size_t bytes;

        if (!sy_model_has_experts(sy_model_describe(model), layer)) continue;
        if (tensor == NULL || tensor->n_elements != (uint64_t)self->n_experts * self->hidden) {
            return sy_error_set(err, SY_EINVAL, "layer %u: there is no gate of %u x %u", layer,
                                self->n_experts, self->hidden);
        }
        bytes = sy_panels_bytes(tensor->dtype, self->n_experts, self->hidden);
        if (bytes == 0) {
            return sy_error_set(err, SY_EINVAL, "%s: no kernel reads type %s", tensor->name,
                                tensor->dtype_name);
        }
        *panels = (sy_panels){.dtype = tensor->dtype, .n = self->n_experts, .k = self->hidden};
        self->bytes += line_up(bytes);
    }
    return SY_OK;
}

static sy_status corrupt(const sy_tensor *tensor, uint32_t layer, sy_error *err)
{
    sy_error_set(err, SY_EDATALOSS,
                 "%s: the file was cut while open, or a value is not a finite number (--allow-nan "
                 "loads such values)",
                 tensor->name);
    sy_error_where(err, NULL, (int32_t)layer, -1, NULL);
    return SY_EDATALOSS;
}

typedef struct gate_load {
    const sy_model *model;
    void *dst, *rows; /* packed; as they are stored */
    const sy_tensor *tensor;
    const sy_panels *shape;
} gate_load;

/* Runs under sy_map_guard: it may be left in the middle. */
static sy_status pack_gate(void *arg)
{
    const gate_load *load = arg;
    const sy_panels *shape = load->shape;

    sy_tensor_read(load->rows, load->tensor, 0, shape->n);
    if (!sy_model_is_sound(load->model, load->rows, shape->dtype, (uint64_t)shape->n * shape->k))
        return SY_EDATALOSS;
    sy_panels_pack(load->dst, load->rows, shape->dtype, shape->n, shape->k, 0,
                   sy_panels_count(shape->n));
    return SY_OK;
}

static sy_status load_gate(sy_router *self, const sy_model *model, uint32_t layer, void *dst,
                           sy_error *err)
{
    sy_panels *panels = &self->panels[layer];
    gate_load load = {.model = model,
                      .dst = dst,
                      .tensor = sy_model_tensor(model, SY_ROLE_GATE, layer, 0),
                      .shape = panels};
    sy_status st;

    load.rows = malloc(panels->n * sy_tensor_row_bytes(load.tensor));
    if (load.rows == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a gate");
    st = sy_map_guard(pack_gate, &load, NULL);
    free(load.rows);
    if (st != SY_OK) return corrupt(load.tensor, layer, err);
    panels->data = dst;
    return SY_OK;
}

static sy_status load_gates(sy_router *self, const sy_model *model, sy_error *err)
{
    uint8_t *next;

    self->data = aligned_alloc(SY_CACHE_LINE, self->bytes);
    if (self->data == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for %llu bytes of gates",
                            (unsigned long long)self->bytes);
    }
    next = self->data;
    for (uint32_t layer = 0; layer < self->n_layers; layer++) {
        const sy_panels *panels = &self->panels[layer];

        if (panels->n == 0) continue;
        const sy_status st = load_gate(self, model, layer, next, err);
        if (st != SY_OK) return st;
        next += line_up(sy_panels_bytes(panels->dtype, panels->n, panels->k));
    }
    return SY_OK;
}

typedef struct bias_load {
    const sy_model *model;
    float *dst;
    const sy_tensor *tensor;
} bias_load;

/* Runs under sy_map_guard. Element by element: they need not lie side by side. */
static sy_status widen_bias(void *arg)
{
    const bias_load *load = arg;
    const sy_tensor *t = load->tensor;

    for (uint64_t i = 0; i < t->n_elements; i++) {
        uint8_t element[sizeof(float)];

        sy_tensor_read(element, t, i, 1);
        if (!sy_model_is_sound(load->model, element, t->dtype, 1)) return SY_EDATALOSS;
        sy_dtype_widen(load->dst + i, element, t->dtype, 1);
    }
    return SY_OK;
}

/* A family has a bias in every layer with experts or in none: the model has checked their shapes.
 * *bias: [n_layers, E], or NULL: it has none. */
static sy_status load_biases(float **bias, sy_router *self, const sy_model *model, sy_role role,
                             sy_error *err)
{
    const size_t n = (size_t)self->n_layers * self->n_experts;

    for (uint32_t layer = 0; layer < self->n_layers; layer++) {
        bias_load load = {.model = model, .tensor = sy_model_tensor(model, role, layer, 0)};

        if (load.tensor == NULL) continue;
        if (*bias == NULL) {
            *bias = calloc(n, sizeof(**bias));
            self->bytes += n * sizeof(**bias);
        }
        if (*bias == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a router");
        load.dst = *bias + (size_t)layer * self->n_experts;
        if (sy_map_guard(widen_bias, &load, NULL) != SY_OK) return corrupt(load.tensor, layer, err);
    }
    return SY_OK;
}

sy_status sy_router_open(sy_router **out, const sy_model *model, const sy_kernels *kernels,
                         sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_router *self;
    sy_status st;

    *out = NULL;
    if (desc->n_layers == 0) {
        return sy_error_set(err, SY_EINVAL, "%s: a model without layers", sy_model_name(model));
    }
    st = sy_gate_check(&desc->gate, desc->n_experts, desc->top_k, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", sy_model_name(model));
        return st;
    }
    self = calloc(1, sizeof(*self) + desc->n_layers * sizeof(self->panels[0]));
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a router");
    self->kernels = kernels;
    self->gate = desc->gate;
    self->n_layers = desc->n_layers;
    self->hidden = desc->hidden;
    self->n_experts = desc->n_experts;
    self->top_k = desc->top_k;
    SY_TRY(plan_panels(self, model, err));
    SY_TRY(load_gates(self, model, err));
    SY_TRY(load_biases(&self->bias, self, model, SY_ROLE_GATE_BIAS, err));
    SY_TRY(load_biases(&self->logit_bias, self, model, SY_ROLE_GATE_LOGIT_BIAS, err));
    *out = self;
    self = NULL;
out:
    sy_router_close(self);
    return st;
}

void sy_router_close(sy_router *router)
{
    if (router == NULL) return;
    free(router->bias);
    free(router->logit_bias);
    free(router->data);
    free(router);
}

uint32_t sy_router_top_k(const sy_router *router)
{
    return router->top_k;
}

uint64_t sy_router_bytes(const sy_router *router)
{
    return router->bytes;
}

size_t sy_router_scratch(const sy_router *router, uint32_t n_tokens)
{
    return (size_t)n_tokens * router->n_experts;
}

/* A row with NaN or infinity has no finite logit: each product with it is NaN or infinite, and a
 * chain of additions never becomes finite again. So the logits, which are fewer, are tested, and
 * the row only to say whose fault it is. */
static sy_status refuse_row(const sy_router *router, const float *row, uint32_t layer, uint32_t t,
                            sy_error *err)
{
    if (router->kernels->all_finite(row, router->hidden)) {
        sy_error_set(err, SY_EINVAL,
                     "row %u is too large: a logit of the gate is not finite; look at the "
                     "activations before layer %u",
                     t, layer);
    } else {
        sy_error_set(err, SY_EINVAL,
                     "row %u holds NaN or infinity; look at the activations before layer %u", t,
                     layer);
    }
    sy_error_where(err, NULL, (int32_t)layer, -1, NULL);
    return SY_EINVAL;
}

sy_status sy_route(const sy_router *router, uint32_t layer, uint16_t *expert, float *weight,
                   const float *x, uint32_t n_tokens, const sy_route_options *options,
                   float *scratch, uint32_t *bad_row, sy_error *err)
{
    const sy_kernels *kernels = router->kernels;
    const uint32_t E = router->n_experts, H = router->hidden;
    const float *bias;
    uint32_t k = router->top_k;
    int renormalise = router->gate.renormalise;

    if (layer >= router->n_layers) {
        return sy_error_set(err, SY_EINVAL, "there is no layer %u, the model has %u", layer,
                            router->n_layers);
    }
    if (router->panels[layer].n == 0) {
        return sy_error_set(err, SY_EINVAL, "layer %u has no experts", layer);
    }
    if (options != NULL && options->experts_per_token != 0) {
        k = options->experts_per_token;
        if (k > router->top_k) {
            return sy_error_set(err, SY_EINVAL,
                                "%u experts per token asked for: the checkpoint allows 1 to %u", k,
                                router->top_k);
        }
        renormalise = renormalise || k < router->top_k;
    }
    bias = router->bias == NULL ? NULL : router->bias + (size_t)layer * E;
    kernels->matmul(scratch, E, x, H, NULL, n_tokens, &router->panels[layer], 0,
                    sy_panels_count(E));
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *logits = scratch + (size_t)t * E;

        if (router->logit_bias != NULL)
            kernels->add(logits, router->logit_bias + (size_t)layer * E, E);
        if (!kernels->all_finite(logits, E)) {
            if (bad_row != NULL) *bad_row = t;
            return refuse_row(router, x + (size_t)t * H, layer, t, err);
        }
        sy_route_select(expert + (size_t)t * k, weight + (size_t)t * k, logits, bias, E, k,
                        renormalise, &router->gate, kernels);
    }
    return SY_OK;
}
