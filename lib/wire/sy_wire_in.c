/* sy_wire_in.c - the checks that more than one decoder makes. */
#include "sy_wire_in.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "switchyard/v1/tensor.pb-c.h"
#include "sy_text.h"

_Static_assert(SY_F32 == (int)SWITCHYARD__V1__DTYPE__F32 &&
                   SY_BF16 == (int)SWITCHYARD__V1__DTYPE__BF16 &&
                   SY_F16 == (int)SWITCHYARD__V1__DTYPE__F16 &&
                   SY_Q8 == (int)SWITCHYARD__V1__DTYPE__Q8 &&
                   SY_Q4 == (int)SWITCHYARD__V1__DTYPE__Q4 &&
                   SY_FP8 == (int)SWITCHYARD__V1__DTYPE__FP8 &&
                   SY_MXFP4 == (int)SWITCHYARD__V1__DTYPE__MXFP4,
               "sy_dtype follows tensor.proto");

void sy_wire_refuse(sy_wire_in *in, const char *fmt, ...)
{
    char text[SY_MESSAGE_BYTES];
    va_list ap;

    if (in->status != SY_OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (in->group == NULL) {
        in->status = sy_error_set(in->err, SY_EINVAL, "%s", text);
    } else if (in->index < 0) {
        in->status = sy_error_set(in->err, SY_EINVAL, "%s.%s", in->group, text);
    } else {
        in->status =
            sy_error_set(in->err, SY_EINVAL, "%s[%" PRId64 "].%s", in->group, in->index, text);
    }
}

void sy_wire_utf8(sy_wire_in *in, const char *field, const char *s, size_t n)
{
    size_t step;

    for (size_t i = 0; i < n; i += step) {
        step = sy_utf8_char(s + i, n - i);
        if (step > 0) continue;
        sy_wire_refuse(in, "%s: not UTF-8 at byte %zu", field, i);
        return;
    }
}

const char *sy_wire_text(sy_wire_in *in, const char *field, const char *s, size_t max_bytes)
{
    const size_t n = sy_wire_string_bytes(s);

    if (n > max_bytes) {
        sy_wire_refuse(in, "%s: %zu bytes, but at most %zu are allowed", field, n, max_bytes);
    } else if (strlen(s) != n) {
        sy_wire_refuse(in, "%s: a NUL at byte %zu, but text has none", field, strlen(s));
    } else {
        sy_wire_utf8(in, field, s, n);
    }
    return s;
}

const char *sy_wire_name(sy_wire_in *in, const char *field, const char *s)
{
    return sy_wire_text(in, field, s, SY_WIRE_NAME_MAX);
}

const void *sy_wire_aligned(sy_wire_in *in, const void *p, size_t n)
{
    void *copy;

    if (n == 0) return NULL;
    if ((uintptr_t)p % SY_CACHE_LINE == 0) return p;
    copy = sy_wire_alloc(in, n);
    if (copy != NULL) memcpy(copy, p, n);
    return copy;
}

const void *sy_wire_array(uint32_t *n_out, sy_wire_in *in, const char *field, const void *p,
                          size_t bytes, size_t element_bytes)
{
    /* A message has less than 2 GiB, so that the count fits. */
    *n_out = (uint32_t)(bytes / element_bytes);
    if (bytes % element_bytes != 0) {
        sy_wire_refuse(in, "%s: %zu bytes, which is no multiple of %zu", field, bytes,
                       element_bytes);
    }
    return sy_wire_aligned(in, p, bytes);
}

void sy_wire_finite(sy_wire_in *in, const char *field, const float *value, size_t n)
{
    if (in->status != SY_OK || sy_dtype_all_finite(value, SY_F32, n)) return;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(value[i])) continue;
        sy_wire_refuse(in, "%s: element %zu is %f, which is not finite", field, i,
                       (double)value[i]);
        return;
    }
}

void sy_wire_slots_get(sy_wire_slots *out, sy_wire_in *in, uint32_t slots, const sy_iov *expert,
                       const sy_iov *weight)
{
    uint32_t n_expert, n_weight;

    *out = (sy_wire_slots){.slots = slots};
    out->expert =
        sy_wire_array(&n_expert, in, "expert", expert->data, expert->len, sizeof(*out->expert));
    out->weight =
        sy_wire_array(&n_weight, in, "weight", weight->data, weight->len, sizeof(*out->weight));
    if (slots > SY_WIRE_EXPERTS_MAX) {
        sy_wire_refuse(in, "slots: %" PRIu32 ", but a token has at most %u", slots,
                       SY_WIRE_EXPERTS_MAX);
    } else if (n_expert > 0 && (slots == 0 || n_expert % slots != 0)) {
        sy_wire_refuse(
            in, "expert: %" PRIu32 " elements, which is no multiple of the %" PRIu32 " slots",
            n_expert, slots);
    } else if (n_weight != n_expert) {
        sy_wire_refuse(in, "weight: %" PRIu32 " elements, but `expert` has %" PRIu32, n_weight,
                       n_expert);
    } else if (n_expert > 0 && n_expert / slots > SY_WIRE_ROWS_MAX) {
        sy_wire_refuse(in, "expert: %" PRIu32 " tokens, but at most %u are allowed",
                       n_expert / slots, SY_WIRE_ROWS_MAX);
    } else if (n_expert > 0) {
        out->n_tokens = n_expert / slots;
    }
    sy_wire_finite(in, "weight", out->weight, n_weight);
}

static int has_elements(int dtype)
{
    return dtype == SY_F32 || dtype == SY_BF16 || dtype == SY_F16;
}

/* What weights alone may be. */
static int is_block_type(int dtype)
{
    return dtype == SY_Q8 || dtype == SY_Q4 || dtype == SY_FP8 || dtype == SY_MXFP4;
}

static int check_size(sy_wire_in *in, const char *field, uint32_t rows, uint32_t cols)
{
    if (rows < 1 || rows > SY_WIRE_ROWS_MAX) {
        sy_wire_refuse(in, "%s.rows: %" PRIu32 ", must be 1 to %u", field, rows, SY_WIRE_ROWS_MAX);
    } else if (cols < 1 || cols > SY_WIRE_COLS_MAX) {
        sy_wire_refuse(in, "%s.cols: %" PRIu32 ", must be 1 to %u", field, cols, SY_WIRE_COLS_MAX);
    } else {
        return 1;
    }
    return 0;
}

int sy_wire_shape(sy_wire_in *in, const char *field, int dtype, uint32_t rows, uint32_t cols)
{
    if (has_elements(dtype)) return check_size(in, field, rows, cols);
    sy_wire_refuse(in, "%s.dtype: %d, must be F32 (1), BF16 (2) or F16 (3)", field, dtype);
    return 0;
}

int sy_wire_weights_shape(sy_wire_in *in, const char *field, int dtype, uint32_t rows,
                          uint32_t cols)
{
    if (has_elements(dtype) || is_block_type(dtype)) return check_size(in, field, rows, cols);
    sy_wire_refuse(in,
                   "%s.dtype: %d, must be F32 (1), BF16 (2), F16 (3), Q8 (4), Q4 (5), FP8 (6) or "
                   "MXFP4 (7)",
                   field, dtype);
    return 0;
}

/* Refuses a shape that is out of bounds, or that the bytes of data do not fit. */
static void check_rows(sy_wire_in *in, const char *field, const Switchyard__V1__Rows *msg,
                       size_t data_bytes)
{
    const sy_rows shape = {.dtype = (sy_dtype)msg->dtype, .rows = msg->rows, .cols = msg->cols};

    if (!sy_wire_shape(in, field, (int)msg->dtype, msg->rows, msg->cols)) return;
    if (sy_rows_bytes(&shape) != data_bytes) {
        sy_wire_refuse(
            in, "%s.data: %zu bytes, but %" PRIu32 " rows x %" PRIu32 " columns of %s need %zu",
            field, data_bytes, msg->rows, msg->cols, sy_dtype_name(shape.dtype),
            sy_rows_bytes(&shape));
    }
}

size_t sy_wire_bulk_bytes(const sy_wire_in *in, size_t unpacked_bytes)
{
    return in->has_bulk ? in->bulk.remaining_bytes : unpacked_bytes;
}

const void *sy_wire_bulk(sy_wire_in *in, const void *unpacked, size_t n)
{
    void *gathered;

    if (!in->has_bulk) return sy_wire_aligned(in, unpacked, n);
    gathered = sy_wire_alloc(in, n);
    if (gathered != NULL) sy_wire_cursor_read(&in->bulk, gathered, n);
    return gathered;
}

void sy_wire_rows(sy_rows *out, sy_wire_in *in, const char *field, const Switchyard__V1__Rows *msg,
                  enum sy_wire_presence presence)
{
    const size_t data_bytes = msg == NULL ? 0 : sy_wire_bulk_bytes(in, msg->data.len);

    *out = (sy_rows){.dtype = SY_DTYPE_NONE};
    if (msg == NULL && presence != SY_WIRE_OPTIONAL) sy_wire_refuse(in, "%s: absent", field);
    if (msg == NULL) return;
    if (msg->rows == 0 && data_bytes == 0 && presence == SY_WIRE_OPTIONAL) return;
    if (presence != SY_WIRE_ELSEWHERE)
        check_rows(in, field, msg, data_bytes);
    else if (data_bytes > 0)
        sy_wire_refuse(in, "%s.data: %zu bytes, but shared memory is said to have them", field,
                       data_bytes);
    else
        (void)sy_wire_shape(in, field, (int)msg->dtype, msg->rows, msg->cols);
    if (in->status != SY_OK) return;
    *out = (sy_rows){.dtype = (sy_dtype)msg->dtype, .rows = msg->rows, .cols = msg->cols};
    if (presence != SY_WIRE_ELSEWHERE) out->data = sy_wire_bulk(in, msg->data.data, data_bytes);
}

/* n bytes at offset are in the shared memory. */
static void check_area(sy_wire_in *in, const char *field, uint64_t offset, uint64_t n,
                       uint64_t bytes)
{
    if (offset % SY_WIRE_SHARED_ALIGN != 0) {
        sy_wire_refuse(in, "%s: %" PRIu64 ", which is no multiple of %d", field, offset,
                       SY_WIRE_SHARED_ALIGN);
    } else if (offset > bytes || n > bytes - offset) {
        sy_wire_refuse(in, "%s: %" PRIu64 " bytes at %" PRIu64 ", but the memory has %" PRIu64,
                       field, n, offset, bytes);
    }
}

void sy_wire_shared(sy_shared_rows *out, sy_wire_in *in, const Switchyard__V1__SharedRows *msg,
                    const sy_rows *hidden)
{
    const Switchyard__V1__SharedMemory *memory = msg == NULL ? NULL : msg->memory;
    const uint64_t input_bytes = sy_rows_bytes(hidden);

    *out = (sy_shared_rows){0};
    if (msg == NULL) return;
    if (memory == NULL || memory->bytes == 0) {
        sy_wire_refuse(in, "shared.memory: absent or empty");
        return;
    }
    if (memory->key.len != SY_WIRE_SHARED_KEY_BYTES) {
        sy_wire_refuse(in, "shared.memory.key: %zu bytes, must be %d", memory->key.len,
                       SY_WIRE_SHARED_KEY_BYTES);
        return;
    }
    check_area(in, "shared.input", msg->input, input_bytes, memory->bytes);
    check_area(in, "shared.output", msg->output, msg->output_bytes, memory->bytes);
    if (in->status != SY_OK) return;
    if (msg->input < msg->output + msg->output_bytes && msg->output < msg->input + input_bytes) {
        sy_wire_refuse(in, "shared.output: overlaps with the input");
        return;
    }
    *out = (sy_shared_rows){.pid = memory->pid,
                            .fd = memory->fd,
                            .bytes = memory->bytes,
                            .input = msg->input,
                            .output = msg->output,
                            .output_bytes = msg->output_bytes};
    memcpy(out->key, memory->key.data, sizeof(out->key));
}

const char *const *sy_wire_policies(uint32_t *n_out, sy_wire_in *in, char *const *policies,
                                    size_t n)
{
    const char **policy;

    *n_out = 0;
    if (n == 0) return NULL;
    if (n > SY_WIRE_POLICIES_MAX) {
        sy_wire_refuse(in, "policies: %zu elements, but at most %d are allowed", n,
                       SY_WIRE_POLICIES_MAX);
        return NULL;
    }
    policy = sy_wire_alloc(in, n * sizeof(*policy));
    if (policy == NULL) return NULL;
    for (size_t i = 0; i < n; i++) policy[i] = sy_wire_name(in, "policies", policies[i]);
    *n_out = (uint32_t)n;
    return policy;
}

size_t sy_rows_bytes(const sy_rows *rows)
{
    return (size_t)rows->rows * rows->cols * sy_dtype_bytes(rows->dtype);
}

sy_route_policy sy_wire_policy(const Switchyard__V1__RoutePolicy *msg)
{
    if (msg == NULL) return (sy_route_policy){0};
    return (sy_route_policy){.experts_per_token = msg->experts_per_token,
                             .degraded = msg->degraded != 0};
}

/* An id in a status: -1 when it is not given. */
static int32_t status_id(sy_wire_in *in, const char *field, int given, uint32_t id)
{
    if (!given) return -1;
    if (id > INT32_MAX) sy_wire_refuse(in, "%s: %" PRIu32 ", must be below 2147483648", field, id);
    return (int32_t)(id & INT32_MAX);
}

void sy_wire_status(sy_error *out, sy_wire_in *in, const Switchyard__V1__Status *msg)
{
    const char *message, *reason, *node;
    int32_t layer, expert;

    sy_error_clear(out);
    if (msg == NULL) return;
    message = sy_wire_text(in, "status.message", msg->message, SIZE_MAX);
    reason = sy_wire_text(in, "status.reason", msg->reason, SIZE_MAX);
    node = sy_wire_text(in, "status.node", msg->node, SIZE_MAX);
    layer =
        status_id(in, "status.layer",
                  msg->layer_given_case == SWITCHYARD__V1__STATUS__LAYER_GIVEN_LAYER, msg->layer);
    expert = status_id(in, "status.expert",
                       msg->expert_given_case == SWITCHYARD__V1__STATUS__EXPERT_GIVEN_EXPERT,
                       msg->expert);
    sy_error_set(out, sy_status_from_code(msg->code <= INT32_MAX ? (int)msg->code : -1), "%s",
                 message);
    sy_error_where(out, reason, layer, expert, node);
}
