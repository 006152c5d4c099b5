/* sy_balance_match.c - the groups that packing made have no device yet: which group goes where is
 * free among devices that are alike, and is chosen so that the most shards are where they are now.
 * An assignment problem, solved exactly, twice: devices inside each pair of nodes, then nodes,
 * since what stands on one node must stay together. */
#include <stdlib.h>
#include <string.h>

#include "sy_balance_layer.h"

#define SIDE_MAX   256 /* devices on a node, or nodes: the solution takes the cube of it */
#define IMPOSSIBLE 1e9 /* beside shards; whole numbers this size add up without rounding */

/* The square assignment problem in O(n^3), by shortest augmenting paths (Kuhn, Munkres; Jonker and
 * Volgenant). cost: [n, n]; row i goes to column to[i]. Equal costs: the same answer every time. */
typedef struct assignment {
    uint32_t n;
    double cost[SIDE_MAX][SIDE_MAX];
    uint32_t to[SIDE_MAX];
    /* Work, with an imagined column 0 and everything else shifted by one. */
    double row_price[SIDE_MAX + 1], col_price[SIDE_MAX + 1], slack[SIDE_MAX + 1];
    uint32_t row_of[SIDE_MAX + 1], before[SIDE_MAX + 1];
    uint8_t seen[SIDE_MAX + 1];
} assignment;

static void augment(assignment *a, uint32_t row)
{
    uint32_t col = 0;

    a->row_of[0] = row;
    for (uint32_t j = 0; j <= a->n; j++) {
        a->slack[j] = 4 * IMPOSSIBLE * SIDE_MAX;
        a->seen[j] = 0;
    }
    do {
        const uint32_t i = a->row_of[col];
        double delta = 8 * IMPOSSIBLE * SIDE_MAX;
        uint32_t next = 0;

        a->seen[col] = 1;
        for (uint32_t j = 1; j <= a->n; j++) {
            const double left = a->cost[i - 1][j - 1] - a->row_price[i] - a->col_price[j];

            if (a->seen[j]) continue;
            if (left < a->slack[j]) {
                a->slack[j] = left;
                a->before[j] = col;
            }
            if (a->slack[j] < delta) {
                delta = a->slack[j];
                next = j;
            }
        }
        for (uint32_t j = 0; j <= a->n; j++) {
            if (a->seen[j]) {
                a->row_price[a->row_of[j]] += delta;
                a->col_price[j] -= delta;
            } else {
                a->slack[j] -= delta;
            }
        }
        col = next;
    } while (a->row_of[col] != 0);
    for (; col != 0; col = a->before[col]) a->row_of[col] = a->row_of[a->before[col]];
}

/* Returns the cost of the cheapest assignment. */
static double assign(assignment *a)
{
    double sum = 0.0;

    memset(a->row_price, 0, sizeof(a->row_price));
    memset(a->col_price, 0, sizeof(a->col_price));
    memset(a->row_of, 0, sizeof(a->row_of));
    for (uint32_t row = 1; row <= a->n; row++) augment(a, row);
    for (uint32_t j = 1; j <= a->n; j++) {
        a->to[a->row_of[j] - 1] = j - 1;
        sum += a->cost[a->row_of[j] - 1][j - 1];
    }
    return sum;
}

/* ---- devices and nodes ---- */

typedef struct match {
    const sy_bal_layer *layer;
    uint32_t *overlap;        /* [D, D] shards of group g that device d has */
    uint32_t *first, *member; /* [N + 1], [D]: the devices of each node */
    uint32_t *to;             /* [D] the device that group g goes to */
    assignment *devices, *nodes;
} match;

static void count_overlap(match *m)
{
    const sy_bal_layer *const layer = m->layer;
    const sy_bal_world *const world = layer->world;

    for (uint32_t e = 0; e < world->n_experts; e++) {
        const uint32_t *const holder = sy_bal_holders(layer, e);

        if (layer->n[e] == 0) continue;
        for (uint32_t d = 0; d < world->n_devices; d++) {
            if (!layer->origin[(size_t)d * world->n_experts + e]) continue;
            for (uint32_t i = 0; i < layer->n[e]; i++)
                m->overlap[(size_t)holder[i] * world->n_devices + d]++;
        }
    }
}

static void group_by_node(match *m)
{
    const sy_bal_world *const world = m->layer->world;
    uint32_t at = 0;

    for (uint32_t node = 0; node < world->n_nodes; node++) {
        m->first[node] = at;
        for (uint32_t d = 0; d < world->n_devices; d++)
            if (world->node[d] == node) m->member[at++] = d;
    }
    m->first[world->n_nodes] = at;
}

static int are_alike(const sy_bal_layer *layer, uint32_t a, uint32_t b)
{
    return layer->cap[a] == layer->cap[b] && layer->fixed[a] == layer->fixed[b];
}

static uint32_t count_members(const match *m, uint32_t node)
{
    return m->first[node + 1] - m->first[node];
}

/* The cheapest way to give node a's groups to node b's devices, left in m->devices. */
static double assign_devices(match *m, uint32_t a, uint32_t b)
{
    const uint32_t *const group = m->member + m->first[a];
    const uint32_t *const device = m->member + m->first[b];
    assignment *const devices = m->devices;
    double sum;

    if (count_members(m, a) != count_members(m, b)) return IMPOSSIBLE;
    devices->n = count_members(m, a);
    for (uint32_t i = 0; i < devices->n; i++) {
        for (uint32_t j = 0; j < devices->n; j++) {
            const size_t at = (size_t)group[i] * m->layer->world->n_devices + device[j];

            devices->cost[i][j] =
                are_alike(m->layer, group[i], device[j]) ? -(double)m->overlap[at] : IMPOSSIBLE;
        }
    }
    sum = assign(devices);
    return sum > 0.0 ? IMPOSSIBLE : sum; /* what is possible costs nothing or less */
}

static void assign_nodes(match *m)
{
    const uint32_t n_nodes = m->layer->world->n_nodes;

    m->nodes->n = n_nodes;
    for (uint32_t a = 0; a < n_nodes; a++)
        for (uint32_t b = 0; b < n_nodes; b++) m->nodes->cost[a][b] = assign_devices(m, a, b);
    /* Everything where it is is possible, so nothing impossible is ever cheapest. */
    assign(m->nodes);
    for (uint32_t a = 0; a < n_nodes; a++) {
        const uint32_t b = m->nodes->to[a];

        assign_devices(m, a, b);
        for (uint32_t i = 0; i < m->devices->n; i++)
            m->to[m->member[m->first[a] + i]] = m->member[m->first[b] + m->devices->to[i]];
    }
}

/* The bits of `has` and all that follows from who holds what, under the new names. */
static void rename_devices(sy_bal_layer *layer, const uint32_t *to)
{
    const sy_bal_world *const world = layer->world;

    memset(layer->has, 0, (size_t)world->n_devices * world->n_experts);
    memset(layer->used, 0, world->n_devices * sizeof(*layer->used));
    for (uint32_t e = 0; e < world->n_experts; e++) {
        uint32_t *const holder = layer->holder + (size_t)e * world->stride;

        for (uint32_t i = 0; i < layer->n[e]; i++) {
            holder[i] = to[holder[i]];
            layer->has[(size_t)holder[i] * world->n_experts + e] = 1;
            layer->used[holder[i]]++;
        }
    }
    sy_bal_sum(layer);
}

static int fits(const sy_bal_world *world, const match *m)
{
    if (world->n_nodes > SIDE_MAX) return 0;
    for (uint32_t node = 0; node < world->n_nodes; node++)
        if (count_members(m, node) > SIDE_MAX) return 0;
    return 1;
}

int sy_bal_match(sy_bal_layer *layer)
{
    const sy_bal_world *const world = layer->world;
    const size_t d = world->n_devices;
    match m = {.layer = layer};
    int is_done = 0;

    m.overlap = calloc(d * d, sizeof(*m.overlap));
    m.first = calloc((size_t)world->n_nodes + 1, sizeof(*m.first));
    m.member = calloc(d, sizeof(*m.member));
    m.to = calloc(d, sizeof(*m.to));
    m.devices = calloc(1, sizeof(*m.devices));
    m.nodes = calloc(1, sizeof(*m.nodes));
    if (m.overlap == NULL || m.first == NULL || m.member == NULL || m.to == NULL ||
        m.devices == NULL || m.nodes == NULL) {
        goto out;
    }
    is_done = 1;
    group_by_node(&m);
    if (!fits(world, &m)) goto out; /* as packed: more to load, and just as even */
    count_overlap(&m);
    assign_nodes(&m);
    rename_devices(layer, m.to);
out:
    free(m.overlap);
    free(m.first);
    free(m.member);
    free(m.to);
    free(m.devices);
    free(m.nodes);
    return is_done;
}
