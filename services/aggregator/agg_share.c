/* agg_share.c - see agg_share.h. A region and its loans are one piece of memory; one that has been
 * given up stays until the last layer call that reads there has ended. */
#include "agg_share.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sy_log.h"
#include "sy_shm.h"

_Static_assert(SY_WIRE_SHARED_ALIGN == SY_SHM_ALIGN && SY_WIRE_SHARED_KEY_BYTES == SY_SHM_KEY_BYTES,
               "the messages describe what lib/shm makes");

typedef struct region region;

struct agg_loan {
    region *region;
    uint64_t id;
    void *area; /* NULL: this place is free */
    size_t input_bytes, output_bytes;
    int is_read, is_settled; /* by the layer call; by the peer */
};

struct region {
    agg_share *share;
    sy_shm *shm;
    sy_shm_ticket ticket;
    int is_lost;
    uint32_t n_loans; /* in use, of those below */
    agg_loan loan[SY_SHM_AREAS_MAX];
};

struct agg_share {
    const char *name;
    size_t bytes_max, bytes_min;
    pthread_mutex_t mutex; /* guards the rest, and what is in regions */
    region *current;       /* NULL: none yet on this connection */
    int is_refused;        /* on this connection */
    int is_broken;         /* the system gives no such memory */
};

/* ---- regions; under the mutex ---- */

static region *region_open(agg_share *share)
{
    region *self = calloc(1, sizeof(*self));
    sy_error err = {0};

    if (self == NULL) return NULL;
    if (sy_shm_create(&self->shm, share->bytes_max, &err) != SY_OK) {
        sy_log_error(SY_LOG_WARN, &err, "rows for %s go through its connection", share->name);
        share->is_broken = 1;
        free(self);
        return NULL;
    }
    self->share = share;
    sy_shm_get_ticket(self->shm, &self->ticket);
    return self;
}

static void region_free(region *self)
{
    sy_shm_unref(self->shm);
    free(self);
}

/* Frees the area once nobody uses it, and a lost region with its last loan. */
static void end_if_unused(agg_loan *loan)
{
    region *self = loan->region;

    if (loan->is_read || !loan->is_settled) return;
    sy_shm_give_back(self->shm, loan->area);
    loan->area = NULL;
    self->n_loans--;
    if (self->is_lost && self->n_loans == 0) region_free(self);
}

static void region_lose(region *self)
{
    const uint32_t n_loans = self->n_loans;

    self->is_lost = 1;
    if (n_loans == 0) region_free(self);
    for (uint32_t i = 0, seen = 0; seen < n_loans; i++) {
        agg_loan *loan = &self->loan[i];
        if (loan->area == NULL) continue;
        seen++;
        loan->is_settled = 1; /* the memory is never lent again, so it does not matter */
        end_if_unused(loan);  /* the last one takes the region along */
    }
}

static agg_loan *find_loan(region *self, uint64_t id)
{
    for (uint32_t i = 0, seen = 0; seen < self->n_loans; i++) {
        if (self->loan[i].area == NULL) continue;
        seen++;
        if (self->loan[i].id == id) return &self->loan[i];
    }
    return NULL;
}

/* ---- open, close ---- */

static int is_here(const char *address)
{
    static const char *const local[] = {"unix:", "127.", "[::1]:", "localhost:"};

    for (size_t i = 0; i < SY_COUNT_OF(local); i++)
        if (strncmp(address, local[i], strlen(local[i])) == 0) return 1;
    return 0;
}

agg_share *agg_share_open(const char *name, const char *address, size_t bytes_max, size_t bytes_min)
{
    agg_share *share = bytes_max > 0 && is_here(address) ? calloc(1, sizeof(*share)) : NULL;

    if (share == NULL) return NULL;
    share->name = name;
    share->bytes_max = bytes_max;
    share->bytes_min = bytes_min;
    pthread_mutex_init(&share->mutex, NULL);
    return share;
}

void agg_share_close(agg_share *share)
{
    if (share == NULL) return;
    agg_share_lost(share);
    pthread_mutex_destroy(&share->mutex);
    free(share);
}

void agg_share_lost(agg_share *share)
{
    if (share == NULL) return;
    pthread_mutex_lock(&share->mutex);
    region *lost = share->current;
    share->current = NULL;
    share->is_refused = 0;
    if (lost != NULL) region_lose(lost);
    pthread_mutex_unlock(&share->mutex);
}

/* ---- loans ---- */

static size_t line_up(size_t n)
{
    return (n + SY_SHM_ALIGN - 1) & ~(size_t)(SY_SHM_ALIGN - 1);
}

static agg_loan *take_loan(region *self, size_t bytes)
{
    uint32_t i = 0;

    if (self->n_loans == SY_SHM_AREAS_MAX) return NULL;
    void *area = sy_shm_lend(self->shm, bytes);
    if (area == NULL) return NULL;
    while (self->loan[i].area != NULL) i++;
    self->n_loans++;
    self->loan[i] = (agg_loan){.region = self, .area = area, .is_read = 1};
    return &self->loan[i];
}

agg_loan *agg_share_lend(agg_share *share, uint64_t id, size_t input_bytes, size_t output_bytes)
{
    agg_loan *loan = NULL;

    if (share == NULL || input_bytes + output_bytes < share->bytes_min) return NULL;
    pthread_mutex_lock(&share->mutex);
    if (!share->is_refused && !share->is_broken) {
        if (share->current == NULL) share->current = region_open(share);
        if (share->current != NULL)
            loan = take_loan(share->current, line_up(input_bytes) + output_bytes);
        if (loan != NULL) {
            loan->id = id;
            loan->input_bytes = input_bytes;
            loan->output_bytes = output_bytes;
        }
    }
    pthread_mutex_unlock(&share->mutex);
    return loan;
}

void agg_share_settled(agg_share *share, uint64_t id)
{
    if (share == NULL) return;
    pthread_mutex_lock(&share->mutex);
    agg_loan *loan = share->current == NULL ? NULL : find_loan(share->current, id);
    if (loan != NULL) {
        loan->is_settled = 1;
        end_if_unused(loan);
    }
    pthread_mutex_unlock(&share->mutex);
}

uint32_t agg_share_lent(agg_share *share)
{
    if (share == NULL) return 0;
    pthread_mutex_lock(&share->mutex);
    const uint32_t n = share->current == NULL ? 0 : share->current->n_loans;
    pthread_mutex_unlock(&share->mutex);
    return n;
}

void *agg_loan_input(const agg_loan *loan)
{
    return loan->area;
}

const void *agg_loan_output(const agg_loan *loan)
{
    return (const uint8_t *)loan->area + line_up(loan->input_bytes);
}

void agg_loan_describe(const agg_loan *loan, sy_shared_rows *out)
{
    const region *self = loan->region;

    *out = (sy_shared_rows){.pid = self->ticket.pid,
                            .fd = self->ticket.fd,
                            .bytes = self->ticket.bytes,
                            .input = sy_shm_offset(self->shm, loan->area),
                            .output_bytes = loan->output_bytes};
    memcpy(out->key, self->ticket.key, sizeof(out->key));
    if (loan->output_bytes > 0) out->output = sy_shm_offset(self->shm, agg_loan_output(loan));
}

/* A server that knows nothing of shared memory finds no rows in the message: SY_EINVAL, without a
 * reason that would speak of anything else. */
int agg_loan_is_refused(agg_loan *loan, const sy_error *answer)
{
    agg_share *share = loan->region->share;
    const int unavailable = strcmp(answer->reason, SY_SHM_UNAVAILABLE) == 0;

    if (!unavailable && (answer->status != SY_EINVAL || answer->reason[0] != '\0')) return 0;
    pthread_mutex_lock(&share->mutex);
    const int is_first = share->current == loan->region && !share->is_refused;
    if (is_first) share->is_refused = 1;
    pthread_mutex_unlock(&share->mutex);
    if (is_first)
        sy_log_error(SY_LOG_INFO, answer, "rows for %s go through its connection", share->name);
    return 1;
}

void agg_loan_end(agg_loan *loan)
{
    if (loan == NULL) return;
    agg_share *share = loan->region->share;
    pthread_mutex_lock(&share->mutex);
    loan->is_read = 0;
    end_if_unused(loan);
    pthread_mutex_unlock(&share->mutex);
}
