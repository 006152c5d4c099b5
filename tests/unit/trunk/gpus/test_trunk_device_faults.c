/* test_trunk_device_faults.c - checkpoints that a GPU's kernels do not do, and GPUs without room,
 * that compute wrong, hang or are lost: each is noticed, and named. */
#include "gpu_forms.h"

#include "cuda/sy_cuda_trunk.h"

enum { ROWS = 18, PAGES = 4 };

static sy_status try_open(sy_trunk **out, const sy_model *model, const sy_trunk_device *device,
                          sy_dtype weights, sy_error *err)
{
    const sy_precision precision = {.weights = weights};

    *out = (sy_trunk *)out;
    *err = (sy_error){0};
    return sy_trunk_open_on(out, device, model, sy_kernels_best(), precision, NULL, err);
}

static void expect_refused(const sy_model *model, sy_dtype weights, const char *reason,
                           const char *text)
{
    const sy_trunk_device device = device_at(0);
    sy_trunk *trunk;
    sy_error err;

    expect_error(try_open(&trunk, model, &device, weights, &err), SY_EUNIMPLEMENTED, &err, reason,
                 text);
    assert_null(trunk);
}

/* ---- refused ---- */

static void weights_that_no_kernel_reads_are_refused_by_name(void **state)
{
    static const sy_dtype asked[] = {SY_DTYPE_NONE, SY_Q8, SY_FP8};
    sy_model *model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_F32});
    const sy_trunk_device device = device_at(0);
    sy_trunk *trunk;
    sy_error err = {0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(asked); i++)
        expect_refused(model, asked[i], "DEVICE_WEIGHTS",
                       "made is stored as f32, and cuda:0 computes the trunk with an embedding of "
                       "bf16 alone");
    made_model_close(model);
    model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_BF16});
    model->tensor[1][SY_ROLE_O].dtype = SY_F16;
    model->tensor[1][SY_ROLE_O].dtype_name = "f16";
    expect_refused(model, SY_DTYPE_NONE, "DEVICE_WEIGHTS",
                   "made is stored as f16, and cuda:0 computes the trunk with matrices of bf16, "
                   "q8, q4, fp8 or mxfp4");
    expect_error(try_open(&trunk, model, &device, SY_F32, &err), SY_EINVAL, &err, "",
                 "made is stored as bf16, not as f32: use --weights as-stored, q8 or q4");
    assert_null(trunk);
    made_model_close(model);
}

static void gate_and_up_that_would_be_held_apart_are_refused(void **state)
{
    sy_model *model = open_form_as(&forms[3], 1, (made_options){.dtype = SY_BF16});

    (void)state;
    /* Nobody reads it: what it would be held as is enough. */
    model->tensor[1][SY_ROLE_SHARED_UP].encoding = SY_ENCODING_MXFP4;
    expect_refused(model, SY_MXFP4, "DEVICE_WEIGHTS",
                   "made would be held as bf16 and made as mxfp4, and cuda:0 holds both as one");
    made_model_close(model);
}

static void weights_too_large_to_be_rounded_are_refused_by_name(void **state)
{
    sy_model *model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_BF16});
    uint8_t *at = (uint8_t *)(uintptr_t)model->tensor[2][SY_ROLE_V].data;
    const sy_trunk_device device = device_at(0);
    const uint16_t large = 0x7f00;
    sy_trunk *trunk;
    sy_error err = {0};

    (void)state;
    memcpy(at, &large, sizeof(large));
    expect_error(try_open(&trunk, model, &device, SY_Q4, &err), SY_EINVAL, &err, "",
                 "made: its weights are too large for q4: load them as stored");
    assert_null(trunk);
    made_model_close(model);
}

static void wide_latents(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->mla = (sy_mla_desc){.kv_rank = 576, .nope_dim = 8, .value_dim = 8};
    d->n_kv_heads = d->n_heads;
    d->rotary_dim = 8;
    d->head_dim = 16;
}

static void wide_heads(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->head_dim = 520; /* as keys they would do */
}

/* As wide as the kernels go. */
static void widest_latents(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->n_layers = d->n_heads = d->n_kv_heads = 1;
    d->mla = (sy_mla_desc){.kv_rank = SY_CUDA_VALUE_MAX, .nope_dim = 8, .value_dim = 8};
    d->rotary_dim = SY_CUDA_KEY_MAX - SY_CUDA_VALUE_MAX;
    d->head_dim = d->mla.nope_dim + d->rotary_dim;
}

static void heads_that_are_too_wide_are_refused_by_name(void **state)
{
    const form wide[] = {{"latents", wide_latents}, {"heads", wide_heads}};
    const form widest = {"widest", widest_latents};
    const sy_trunk_device device = device_at(0);
    sy_trunk *trunk;
    sy_error err;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(wide); i++) {
        sy_model *model = open_form_as(&wide[i], 0, (made_options){.dtype = SY_BF16});
        expect_refused(model, SY_DTYPE_NONE, "DEVICE_SHAPE",
                       i == 0 ? "keys of 584 elements and values of 576" : "values of 520");
        made_model_close(model);
    }
    sy_model *model = open_form_as(&widest, 0, (made_options){.dtype = SY_BF16});
    must(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), &err);
    sy_trunk_close(trunk);
    made_model_close(model);
}

static void a_weight_that_is_no_number_is_found_in_every_role(void **state)
{
    static const size_t looked_at[] = {1, 3, 6, 7, 9}; /* between them they have every role */
    const sy_trunk_device device = device_at(0);
    const uint16_t nan = 0x7fc0;
    uint64_t roles = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(looked_at); i++) {
        sy_model *model = open_form_as(&forms[looked_at[i]], 1, (made_options){.dtype = SY_BF16});

        for (int role = 0; role < SY_N_ROLES; role++) {
            const uint32_t layer = role < SY_ROLE_SHARED_GATE ? 0 : 2;
            const sy_tensor *t = &model->tensor[layer][role];
            uint16_t kept;
            sy_trunk *trunk;
            sy_error err;

            if (t->data == NULL || (roles >> role & 1) != 0) continue;
            roles |= 1ull << role;
            uint8_t *last = (uint8_t *)(uintptr_t)t->data + (t->n_elements - 1) * sizeof(nan);
            memcpy(&kept, last, sizeof(kept));
            memcpy(last, &nan, sizeof(nan));
            expect_error(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), SY_EDATALOSS, &err,
                         "", "made: ");
            assert_null(trunk);
            memcpy(last, &kept, sizeof(kept));
        }
        made_model_close(model);
    }
    for (int role = 0; role <= SY_ROLE_SHARED_MIX; role++)
        if ((roles >> role & 1) == 0) fail_msg("role %d was in none", role);
}

/* ---- room ---- */

static void what_does_not_fit_is_named_with_figures(void **state)
{
    const sy_trunk_device device = device_at(0);
    sy_model *model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_BF16});
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_error err = {0};

    (void)state;
    devices_told("fail cudaMalloc 1 cudaErrorMemoryAllocation\n");
    expect_error(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), SY_ENOMEM, &err,
                 "DEVICE_MEMORY", "cuda:0: the trunk's weights need ");
    devices_told("");
    must(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), &err);
    expect_error(sy_kv_open(&kv, trunk, 1 << 18, &err), SY_ENOMEM, &err, "DEVICE_MEMORY",
                 "cuda:0: the pages of the KV cache need 2415919104 bytes, and ");
    assert_null(kv);
    expect_error(sy_trunk_ws_open(&ws, trunk, 1 << 18, NULL, &err), SY_ENOMEM, &err,
                 "DEVICE_MEMORY", "cuda:0: the rows of a step need ");
    assert_null(ws);
    must(sy_trunk_ws_open(&ws, trunk, 4, NULL, &err), &err);
    sy_trunk_ws_close(ws);
    sy_trunk_close(trunk);
    made_model_close(model);
}

/* ---- a step ---- */

typedef struct step {
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_kv_seq seq;
    uint32_t token[ROWS], position[ROWS];
    const sy_kv_seq *of[ROWS];
    sy_batch batch;
    float logits[VOCAB];
} step;

static sy_status step_open(step *s, const sy_model *model, const sy_trunk_device *device,
                           sy_error *err)
{
    sy_status st;

    memset(s, 0, sizeof(*s));
    s->batch = (sy_batch){ROWS, s->token, s->position, s->of};
    for (uint32_t t = 0; t < ROWS; t++) {
        s->token[t] = t * 7 % VOCAB;
        s->position[t] = t;
        s->of[t] = &s->seq;
    }
    SY_TRY(sy_trunk_open_on(&s->trunk, device, model, sy_kernels_best(), (sy_precision){0}, NULL,
                            err));
    SY_TRY(sy_trunk_ws_open(&s->ws, s->trunk, ROWS, NULL, err));
    SY_TRY(sy_kv_open(&s->kv, s->trunk, PAGES, err));
    SY_TRY(sy_kv_reserve(s->kv, &s->seq, ROWS));
out:
    return st;
}

static void step_close(step *s)
{
    if (s->kv != NULL) sy_kv_release(s->kv, &s->seq);
    sy_kv_close(s->kv);
    sy_trunk_ws_close(s->ws);
    sy_trunk_close(s->trunk);
}

/* All of a step, of every layer; each fails by itself, and then so do all. */
static sy_status step_run(step *s, sy_error *err)
{
    const sy_trunk_row row = {s->ws, ROWS - 1};
    const float *xn;
    sy_status st;

    SY_TRY(sy_trunk_begin(s->trunk, s->ws, &s->batch, err));
    for (uint32_t layer = 0; layer < sy_trunk_describe(s->trunk)->n_layers; layer++) {
        SY_TRY(sy_trunk_attend(s->trunk, s->ws, s->kv, layer, &s->batch, err));
        SY_TRY(sy_trunk_norm(s->trunk, s->ws, layer, ROWS, err));
        SY_TRY(sy_trunk_mlp(s->trunk, s->ws, layer, ROWS, err));
        if (!sy_model_has_experts(sy_trunk_describe(s->trunk), layer)) continue;
        SY_TRY(sy_trunk_input(&xn, s->trunk, s->ws, ROWS, err));
        memcpy(sy_trunk_output(s->ws), xn,
               ROWS * sy_trunk_describe(s->trunk)->hidden * sizeof(*xn));
        SY_TRY(sy_trunk_add(s->trunk, s->ws, ROWS, err));
    }
    SY_TRY(sy_trunk_head(s->trunk, s->logits, &row, 1, err));
out:
    return st;
}

/* ---- calls that fail ---- */

/* Opens, computes and closes. Returns 0 when nothing failed; what fails in a step may be tried
 * again, and is what it was. */
static int is_reported(const sy_model *model, const float *want, sy_status status)
{
    const sy_trunk_device device = device_at(1);
    step s;
    sy_error err = {0};
    sy_status st = step_open(&s, model, &device, &err);
    const int is_open = st == SY_OK;

    if (is_open) st = step_run(&s, &err);
    devices_told("");
    if (st != SY_OK && (st != status || strstr(err.message, "cuda:1") == NULL))
        fail_msg("%s: %s", sy_status_name(st), err.message);
    if (st != SY_OK && is_open) must(step_run(&s, &err), &err);
    if (is_open) assert_memory_equal(s.logits, want, VOCAB * sizeof(*want));
    step_close(&s);
    return st != SY_OK;
}

static void a_call_that_fails_once_is_reported_and_leaves_nothing_behind(void **state)
{
    static const struct {
        const char *call, *error;
        sy_status status;
    } cases[] = {{"cudaMalloc", "cudaErrorMemoryAllocation", SY_ENOMEM},
                 {"cudaHostAlloc", "cudaErrorMemoryAllocation", SY_ENOMEM},
                 {"cudaStreamCreateWithPriority", "cudaErrorInvalidValue", SY_EIO},
                 {"cudaMemcpyAsync", "cudaErrorInvalidValue", SY_EIO},
                 {"cudaEventRecord", "cudaErrorInvalidValue", SY_EIO},
                 {"cudaLaunchKernel", "cudaErrorInvalidValue", SY_EIO}};
    sy_model *model = open_form_as(&forms[3], 1, (made_options){.dtype = SY_BF16});
    const sy_trunk_device device = device_at(1);
    float want[VOCAB];
    step s;
    sy_error err = {0};

    (void)state;
    must(step_open(&s, model, &device, &err), &err);
    must(step_run(&s, &err), &err);
    memcpy(want, s.logits, sizeof(want));
    step_close(&s);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        uint64_t n = 1;
        char line[96];

        do {
            snprintf(line, sizeof(line), "fail %s %llu %s\n", cases[i].call, (unsigned long long)n,
                     cases[i].error);
            devices_told(line);
            n += n / 6 + 1;
        } while (is_reported(model, want, cases[i].status));
        if (n < 4) fail_msg("%s was called %llu times", cases[i].call, (unsigned long long)n);
        /* It may still be to come; or it was a mark before something was freed, which nobody
         * misses.
         */
        for (int k = 0; k < 2 && !is_reported(model, want, cases[i].status); k++) continue;
    }
    made_model_close(model);
}

/* ---- computing wrong ---- */

static struct {
    uint32_t copies; /* the nth from now on, from 1 */
    uint64_t at;     /* the float in it */
    float factor;
} breaks;

static int broken_copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n,
                           char *why)
{
    const int result = backend->copy_out(host, buffer, offset, n, why);
    float value;

    if (breaks.copies == 0 || --breaks.copies > 0) return result;
    uint8_t *at = (uint8_t *)host + breaks.at * sizeof(value);
    memcpy(&value, at, sizeof(value));
    value = value * breaks.factor + breaks.factor - 1;
    memcpy(at, &value, sizeof(value));
    return result;
}

static void a_device_that_computes_wrong_fails_its_self_test(void **state)
{
    static const struct {
        uint32_t copies;
        uint64_t at;
        float factor;
        const char *text;
    } cases[] = {
        {1, 72 + 5, 1.5f, "a wrong result of embedding, row 1, element 5"},
        {3, 2 * 96 + 95, 1.5f, "a wrong result of queries, row 2, element 95"},
        {6, 20 * 96, 1.5f, "a wrong result of attention, row 20, element 0"},
        {9, 71, 1.5f, "a wrong result of MLP, row 0, element 71"},
        {9 + 6, 3, 1 + 0x1p-20f, "bits that depend on the batch of attention, row 0, element 3"},
        {27 + 9, 1, 1 + 0x1p-20f, "bits that depend on the batch of MLP, row 12, element 1"},
        {4, 7, NAN, "a wrong result of keys, row 0, element 7"},
    };
    sy_model *model = open_form_as(&forms[7], 1, (made_options){.dtype = SY_BF16});
    sy_backend broken = *backend;
    sy_trunk_device device = device_at(2);
    sy_trunk *trunk;
    sy_error err;

    (void)state;
    broken.copy_out = broken_copy_out;
    device.backend = &broken;
    must(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), &err);
    sy_trunk_close(trunk);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        breaks.copies = cases[i].copies;
        breaks.at = cases[i].at;
        breaks.factor = cases[i].factor;
        expect_error(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), SY_EDATALOSS, &err,
                     "DEVICE_SELF_TEST", cases[i].text);
        assert_null(trunk);
    }
    must(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), &err);
    sy_trunk_close(trunk);
    made_model_close(model);
}

/* ---- loss: each test its own device ---- */

static void expect_lost_for_good(step *s, const char *text)
{
    const sy_trunk_row row = {s->ws, 0};
    const uint32_t kept[ROWS] = {0};
    const sy_batch one = {1, s->token, s->position, s->of};
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_error err = {0};

    assert_true(sy_trunk_lost(s->trunk, &err));
    expect_error(err.status, SY_EUNAVAILABLE, &err, "DEVICE_LOST", text);
    expect_error(sy_trunk_begin(s->trunk, s->ws, &s->batch, &err), SY_EUNAVAILABLE, &err,
                 "DEVICE_LOST", text);
    expect_error(sy_trunk_keep(s->trunk, s->ws, &one, kept, &err), SY_EUNAVAILABLE, &err,
                 "DEVICE_LOST", text);
    expect_error(sy_trunk_head(s->trunk, s->logits, &row, 1, &err), SY_EUNAVAILABLE, &err,
                 "DEVICE_LOST", text);
    expect_error(sy_trunk_ws_open(&ws, s->trunk, ROWS, NULL, &err), SY_EUNAVAILABLE, &err,
                 "DEVICE_LOST", text);
    expect_error(sy_kv_open(&kv, s->trunk, PAGES, &err), SY_EUNAVAILABLE, &err, "DEVICE_LOST",
                 text);
}

static void a_lost_device_says_so_from_then_on(void **state)
{
    sy_model *model = open_form_as(&forms[3], 1, (made_options){.dtype = SY_BF16});
    const sy_trunk_device device = device_at(7);
    step s;
    sy_error err = {0};

    (void)state;
    must(step_open(&s, model, &device, &err), &err);
    must(step_run(&s, &err), &err);
    assert_false(sy_trunk_lost(s.trunk, &err));
    devices_told("lose 7\n");
    expect_error(step_run(&s, &err), SY_EUNAVAILABLE, &err, "DEVICE_LOST", "cuda:7 is lost: ");
    devices_told("");
    expect_error(step_run(&s, &err), SY_EUNAVAILABLE, &err, "DEVICE_LOST", "cuda:7 is lost: ");
    expect_lost_for_good(&s, "cuda:7 is lost: ");
    step_close(&s);
    expect_error(step_open(&s, model, &device, &err), SY_EUNAVAILABLE, &err, "DEVICE_LOST",
                 "cuda:7");
    step_close(&s);
    made_model_close(model);
}

static void a_device_that_hangs_is_lost_after_its_time(void **state)
{
    sy_model *model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_BF16});
    sy_trunk_device device = device_at(6);
    step s;
    sy_error err = {0};

    (void)state;
    device.timeout_us = 250000;
    must(step_open(&s, model, &device, &err), &err);
    must(step_run(&s, &err), &err);
    devices_told("hang 6\n");
    expect_error(step_run(&s, &err), SY_EUNAVAILABLE, &err, "DEVICE_LOST",
                 "cuda:6 is lost: the work of a step was not done after 0.250 s");
    devices_told("");
    expect_lost_for_good(&s, "was not done after 0.250 s");
    step_close(&s);
    made_model_close(model);
}

static void a_device_that_is_not_there_is_named(void **state)
{
    sy_model *model = open_form_as(&forms[0], 1, (made_options){.dtype = SY_BF16});
    const sy_trunk_device device = device_at(N_DEVICES);
    sy_trunk *trunk;
    sy_error err;

    (void)state;
    expect_error(try_open(&trunk, model, &device, SY_DTYPE_NONE, &err), SY_EUNAVAILABLE, &err, "",
                 "cuda:8: there are 8 devices");
    assert_null(trunk);
    made_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_no_kernel_reads_are_refused_by_name),
        cmocka_unit_test(gate_and_up_that_would_be_held_apart_are_refused),
        cmocka_unit_test(weights_too_large_to_be_rounded_are_refused_by_name),
        cmocka_unit_test(heads_that_are_too_wide_are_refused_by_name),
        cmocka_unit_test(a_weight_that_is_no_number_is_found_in_every_role),
        cmocka_unit_test(what_does_not_fit_is_named_with_figures),
        cmocka_unit_test(a_call_that_fails_once_is_reported_and_leaves_nothing_behind),
        cmocka_unit_test(a_device_that_computes_wrong_fails_its_self_test),
        cmocka_unit_test(a_lost_device_says_so_from_then_on),
        cmocka_unit_test(a_device_that_hangs_is_lost_after_its_time),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
