/* sy_balance.h - which experts should have replicas and where, so that the devices of a layer have
 * the same work: from the load of every expert and the placement there is to a better one that is
 * few bytes away. Pure: no I/O, no clock, the same input gives the same plan.
 *
 * Layers run one after another, so a layer takes as long as its busiest device: what counts is
 * max/mean device load in each layer by itself. An expert's load is split evenly among its holders.
 * Replicas of one expert stand on different nodes, or are spread evenly over nodes where there are
 * more replicas than nodes. For availability every expert can be given a minimum of nodes: no step
 * goes below it, and who is below it is repaired before anything is evened out. */
#ifndef SY_BALANCE_H
#define SY_BALANCE_H

#include "sy_grid.h"

#define SY_BALANCE_LAYERS_MAX  1024u
#define SY_BALANCE_EXPERTS_MAX 4096u
#define SY_BALANCE_DEVICES_MAX 1024u
#define SY_BALANCE_GONE        UINT32_MAX /* a holder that is not among the devices */

typedef struct sy_balance_device {
    uint32_t node;  /* equal numbers: the same node */
    uint32_t slots; /* shards that fit, over all layers, with those that are there now */
} sy_balance_device;

typedef struct sy_balance_input { /* borrowed during the call */
    sy_grid grid;                 /* layers without experts stay as they are: no load, no holders */
    uint32_t n_devices;
    const sy_balance_device *device; /* [n_devices] */
    const double *load;              /* [layers, experts]; finite, not negative, any unit */
    /* The placement there is: the holders of expert e of layer l are
     * holder[offset[l*experts+e] .. offset[l*experts+e+1]-1], device indices or SY_BALANCE_GONE,
     * no device twice. None at all means the same as one that is gone. */
    const uint32_t *offset; /* [layers*experts + 1] */
    const uint32_t *holder; /* [offset[layers*experts]] */
    /* Experts that must stay as they are, 1 each; NULL: none. They fill slots and make load. */
    const uint8_t *pinned; /* [layers*experts] */
    const double *share; /* as holder: what part each holder of a pinned expert gets; NULL: even */
    uint64_t shard_bytes;
} sy_balance_input;

typedef struct sy_balance_options {
    uint64_t budget_bytes; /* of loads; 0: no limit */
    uint32_t replicas_max; /* of one expert; 0: SY_TARGETS_MAX */
    /* Nodes that hold each expert, or all nodes where there are fewer: no plan has fewer, except
     * for an expert that has fewer now and cannot have more by budget or room; it keeps what it
     * has. 0 and 1: none. At most replicas_max. */
    uint32_t min_replicas;
    /* A change of a layer is made only when the layer's max/mean falls by at least this much, and
     * this much for each tenth of its experts that must be loaded: 0.02. */
    double min_gain;
    /* max/mean, mean of layers, that is good enough; 0: none. Where min_gain leaves more than this
     * it is lowered, down to 0: bytes are saved only once the load is even. */
    double good_enough;
} sy_balance_options;

typedef enum sy_balance_verdict {
    SY_BALANCE_EVEN,        /* nothing better was found */
    SY_BALANCE_NO_LOAD,     /* no load was seen in this layer: nothing to go by */
    SY_BALANCE_NO_EXPERTS,  /* the layer has none */
    SY_BALANCE_IMPROVED,    /* and nothing better was found than what is planned */
    SY_BALANCE_TOO_LITTLE,  /* something (still) better exists, but gains less than min_gain */
    SY_BALANCE_OVER_BUDGET, /* something (still) better exists, but is more than the budget */
    SY_BALANCE_NO_ROOM      /* an expert has no holder, and no device has room for it */
} sy_balance_verdict;

typedef struct sy_balance_layer {
    double mean;   /* device load */
    double before; /* the busiest device's; without holders that are gone */
    double base;   /* the same once what was lost is placed again: what the rest starts from */
    double after;
    double better;       /* the best that was found, whether it is planned or not */
    double bound;        /* no placement into these slots has a busiest device below this */
    uint32_t n_loads;    /* that after costs */
    uint32_t need_loads; /* that better costs */
    sy_balance_verdict verdict;
} sy_balance_layer;

typedef enum sy_balance_why {
    SY_BALANCE_LOST,         /* it had no holder left, and is placed again */
    SY_BALANCE_LOST_REPLICA, /* as many holders as before some were gone */
    SY_BALANCE_REPLICATED,   /* it is hot: more holders */
    SY_BALANCE_MOVED,        /* as many holders, elsewhere */
    SY_BALANCE_THINNED,      /* fewer holders: less load there, or room for others */
    SY_BALANCE_MINIMUM,      /* it was on fewer nodes than the minimum, and no longer is */
    SY_BALANCE_LEFT_BUDGET,  /* what it lost is not placed again now: the budget is spent */
    SY_BALANCE_LEFT_ROOM,    /* what it lost is not placed again: no device has room */
    SY_BALANCE_SHORT_BUDGET, /* still on fewer nodes than the minimum: the budget is spent */
    SY_BALANCE_SHORT_ROOM    /* the same: no device of a node without it has room */
} sy_balance_why;

typedef struct sy_balance_change {
    uint32_t layer, expert;
    sy_balance_why why;
    uint32_t n_loads; /* devices that must load it */
    uint32_t n_drops; /* devices that need it no longer, those that are gone not counted */
    double load;
} sy_balance_change;

typedef struct sy_balance_ratio { /* max/mean device load; 1 is perfect */
    double mean;                  /* over layers that have load */
    double worst;
    uint32_t worst_layer;
    double whole; /* of the devices' loads summed over layers */
} sy_balance_ratio;

typedef struct sy_balance_plan {
    uint32_t layers, experts;
    uint32_t *offset, *holder; /* as in the input, ascending; without those that are gone */
    sy_balance_layer *layer;   /* [layers] */
    sy_balance_change *change; /* [n_changes] by layer, expert: what differs from what there is */
    size_t n_changes;
    sy_balance_ratio before, base, after;
    uint64_t n_loads, n_drops, load_bytes;
    uint32_t n_lost;       /* experts without any holder */
    uint32_t n_lost_left;  /* that still have none */
    uint32_t min_nodes;    /* the minimum in force: not more than there are nodes; 0 and 1: none */
    uint32_t n_short;      /* experts with a holder, on fewer nodes than that */
    uint32_t n_short_left; /* that are so by the plan; of those that had no holder, too */
} sy_balance_plan;

/* What is gone is placed again first, experts without any holder before those on too few nodes,
 * those before others, and busy ones before idle ones, whatever it gains; then come the changes
 * that gain the most for each byte, as long as the budget lasts. No layer's busiest device gets
 * more than `base`; a device that holds more than its slots already gets nothing more. SY_OK: the
 * caller ends *out with sy_balance_plan_free. SY_EINVAL: a size, index or load is out of range, a
 * device twice among an expert's holders, load or holders in a layer without experts, no device,
 * min_replicas above replicas_max; SY_ENOMEM. */
SY_MUST_USE sy_status sy_balance(sy_balance_plan *out, const sy_balance_input *input,
                                 const sy_balance_options *options, sy_error *err);
void sy_balance_plan_free(sy_balance_plan *plan);    /* accepts a zeroed one */
const char *sy_balance_why_text(sy_balance_why why); /* "replicated: it is hot"; static */

#endif
