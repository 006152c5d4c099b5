/* gpu_forms.h - the made models, with caches of either kind that a GPU has. */
#ifndef GPU_FORMS_H
#define GPU_FORMS_H

#include "trunk_gpu_fixture.h"

#include "../made_forms.h"

/* The form as it is, whose cache is fp32 on a GPU, or with heads of whole vectors, where it is
 * bf16. */
static inline sy_model *open_form_as(const form *f, int is_rounded, made_options options)
{
    sy_model_desc d = plain_desc();

    f->change(&d, &options);
    if (is_rounded && d.mla.kv_rank > 0) {
        d.mla.kv_rank = 40;
        d.rotary_dim = 8;
        d.head_dim = d.mla.nope_dim + d.rotary_dim;
    } else if (is_rounded) {
        if (d.rotary_dim == d.head_dim && d.rope.type != SY_ROPE_LONG) d.rotary_dim = 24;
        d.head_dim = 24;
    }
    return made_model_open(&d, &options);
}

#endif
