/* What lanes cost each other, for people: see render.h. */
#include <string.h>

#include "client/render.h"

static const struct {
    const char *load;
    const char *title;
} loads[] = {{"compute", "compute"},
             {"gpu_update", "update"},
             {"direct_read", "direct read"},
             {"direct_write", "direct write"},
             {"h2d", "copies in"},
             {"d2h", "copies out"},
             {"cpu", "CPU"}};
#define LOADS (sizeof(loads) / sizeof(loads[0]))

static const char *const lanes[] = {"compute", "h2d", "d2h", "cpu"};
#define LANES (sizeof(lanes) / sizeof(lanes[0]))

/* 1 where nothing is listed; whether `load` is beside anything that slows it, with NULL. */
static double slowdown(const Memferry__V1__Contention *contention, const char *load,
                       const char *beside)
{
    for (size_t i = 0; i < contention->n_slowdowns; i++) {
        const Memferry__V1__Slowdown *entry = contention->slowdowns[i];
        if (strcmp(entry->load, load) == 0 &&
            (beside == NULL || strcmp(entry->beside, beside) == 0)) {
            return entry->factor;
        }
    }
    return 1;
}

static void render_slowdowns(const struct mf_render *render,
                             const Memferry__V1__Contention *contention)
{
    struct mf_table_column columns[LOADS + 1] = {{"times slower", MF_TABLE_LEFT}};
    struct mf_table table;
    for (size_t i = 0; i < LOADS; i++) {
        columns[i + 1] = (struct mf_table_column){loads[i].title, MF_TABLE_RIGHT};
    }
    mf_table_init(&table, columns, LOADS + 1);
    for (size_t a = 0; a < LOADS; a++) {
        if (slowdown(contention, loads[a].load, NULL) <= 1) {
            continue;
        }
        mf_table_cell(&table, "%s, beside", loads[a].title);
        for (size_t b = 0; b < LOADS; b++) {
            double factor = slowdown(contention, loads[a].load, loads[b].load);
            mf_table_cell(&table, factor > 1 ? "%.2f" : "", factor);
        }
    }
    mf_render_table(render, &table, "  ");
    mf_table_reset(&table);
}

static void render_latencies(const struct mf_render *render,
                             const Memferry__V1__Contention *contention)
{
    static const struct mf_table_column columns[] = {
        {"lane, us", MF_TABLE_LEFT},    {"gap", MF_TABLE_RIGHT},    {"issue", MF_TABLE_RIGHT},
        {"to compute", MF_TABLE_RIGHT}, {"to h2d", MF_TABLE_RIGHT}, {"to d2h", MF_TABLE_RIGHT},
        {"to cpu", MF_TABLE_RIGHT}};
    struct mf_table table;
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < contention->n_lanes; i++) {
        const Memferry__V1__LaneLatency *lane = contention->lanes[i];
        double to[LANES] = {0};
        for (size_t j = 0; j < contention->n_hand_overs; j++) {
            const Memferry__V1__HandOver *hand_over = contention->hand_overs[j];
            for (size_t k = 0; k < LANES && strcmp(hand_over->from, lane->lane) == 0; k++) {
                to[k] = strcmp(hand_over->to, lanes[k]) == 0 ? hand_over->latency_ns : to[k];
            }
        }
        mf_table_cell(&table, "%s", lane->lane);
        mf_table_cell(&table, "%.1f", lane->gap_ns / 1e3);
        mf_table_cell(&table, "%.1f", lane->issue_ns / 1e3);
        for (size_t k = 0; k < LANES; k++) {
            mf_table_cell(&table, strcmp(lane->lane, lanes[k]) != 0 ? "%.1f" : "", to[k] / 1e3);
        }
    }
    mf_render_table(render, &table, "  ");
    mf_table_reset(&table);
}

void mf_render_contention(const struct mf_render *render,
                          const Memferry__V1__Contention *contention)
{
    fputc('\n', render->out);
    mf_render_heading(render, "lanes side by side (%s), a graph costs %.0f us",
                      contention->measured ? "measured here" : "assumed: not measured here yet",
                      contention->graph_ns / 1e3);
    if (contention->n_slowdowns > 0) {
        render_slowdowns(render, contention);
        fputc('\n', render->out);
    } else {
        mf_render_fact(render, "slow-downs", "none");
    }
    if (contention->measured) {
        render_latencies(render, contention);
    }
}
