/* fidelity_diff.c - see the header. Sums are doubles: rounding of their own is far below what
 * floats of logits differ by. */
#include "fidelity_diff.h"

#include <math.h>

static int all_finite(const float *a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(a[i])) return 0;
    return 1;
}

static uint32_t argmax(const float *a, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (a[i] > a[best]) best = i;
    return best;
}

static double largest(const float *a, uint32_t n)
{
    double most = 0;

    for (uint32_t i = 0; i < n; i++) most = SY_MAX(most, fabs((double)a[i]));
    return most;
}

/* log(sum(exp(a))); best: the largest of a, so that no term overflows. */
static double log_sum_exp(const float *a, uint32_t n, double best)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += exp((double)a[i] - best);
    return best + log(sum);
}

/* sum p (log p - log q). The logarithms' difference is (want - got) less that of the two sums: for
 * equal logits both are 0, and no rounding is left over. */
static double kl_nats(const float *want, const float *got, uint32_t n, uint32_t want_best,
                      uint32_t got_best)
{
    const double want_sum = log_sum_exp(want, n, want[want_best]);
    const double shift = want_sum - log_sum_exp(got, n, got[got_best]);
    double kl = 0;

    for (uint32_t i = 0; i < n; i++) {
        const double log_ratio = (double)want[i] - (double)got[i] - shift;
        kl += exp((double)want[i] - want_sum) * log_ratio;
    }
    return SY_MAX(kl, 0.0);
}

void fidelity_row_compare(fidelity_row *out, const float *want, const float *got, uint32_t vocab)
{
    double most = 0, sum = 0, scale;

    *out = (fidelity_row){0};
    if (!all_finite(want, vocab) || !all_finite(got, vocab)) return;
    for (uint32_t i = 0; i < vocab; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        most = SY_MAX(most, d);
        sum += d;
    }
    scale = largest(want, vocab);
    if (scale == 0) scale = most; /* want is 0 throughout: that is the largest of got */
    const uint32_t want_best = argmax(want, vocab), got_best = argmax(got, vocab);
    *out = (fidelity_row){.relative_max = scale > 0 ? most / scale : 0,
                          .absolute_mean = sum / vocab,
                          .kl_nats = kl_nats(want, got, vocab, want_best, got_best),
                          .same_argmax = want_best == got_best,
                          .is_finite = 1};
}

void fidelity_diff_add(fidelity_diff *diff, const fidelity_row *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const fidelity_row *r = &row[i];

        if (!r->is_finite) {
            diff->n_not_finite++;
            continue;
        }
        diff->n_rows++;
        diff->n_same_argmax += r->same_argmax != 0;
        diff->relative_max = SY_MAX(diff->relative_max, r->relative_max);
        diff->kl_max_nats = SY_MAX(diff->kl_max_nats, r->kl_nats);
        /* Running means: rows count alike however they are cut into calls. */
        diff->absolute_mean += (r->absolute_mean - diff->absolute_mean) / (double)diff->n_rows;
        diff->kl_mean_nats += (r->kl_nats - diff->kl_mean_nats) / (double)diff->n_rows;
    }
}

void fidelity_diff_add_experts(fidelity_diff *diff, const uint16_t *want, const uint16_t *got,
                               size_t n, uint32_t k)
{
    for (size_t t = 0; t < n; t++, want += k, got += k)
        for (uint32_t i = 0; i < k; i++) {
            uint32_t j = 0;

            while (j < k && got[j] != want[i]) j++;
            diff->n_same_experts += j < k;
        }
    diff->n_experts += n * k;
}

double fidelity_diff_same_argmax(const fidelity_diff *diff)
{
    return diff->n_rows == 0 ? 0 : (double)diff->n_same_argmax / (double)diff->n_rows;
}

double fidelity_diff_same_experts(const fidelity_diff *diff)
{
    return diff->n_experts == 0 ? 1 : (double)diff->n_same_experts / (double)diff->n_experts;
}
