/* The unit table of a plan: see render.h. Units that differ only in the layer and are held in the
 * same way share a row; its sizes and times are their sums. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/render.h"

#define NONE (-1)

struct row {
    const Memferry__V1__UnitPlan *first;
    struct mf_render_layers layers;
    bool why_differs;
    int64_t weight_bytes;
    double compute_ns, h2d_ns, d2h_ns, cpu_ns;
};

/* Same unit of another layer, held in the same way. */
static bool same(const struct row *row, const Memferry__V1__UnitPlan *unit)
{
    const Memferry__V1__UnitPlan *first = row->first;
    return mf_render_layers_same(&row->layers, unit->name) && first->rows == unit->rows &&
           first->columns == unit->columns && first->forward == unit->forward &&
           first->backward == unit->backward && first->gradient == unit->gradient &&
           first->optimizer == unit->optimizer && first->pinned == unit->pinned;
}

static void add_unit(struct row *row, const Memferry__V1__UnitPlan *unit)
{
    if (row->first == NULL) {
        row->first = unit;
        mf_render_layers_begin(&row->layers, unit->name);
    } else {
        mf_render_layers_add(&row->layers, unit->name);
    }
    row->why_differs |= strcmp(row->first->why, unit->why) != 0;
    row->weight_bytes += unit->weight_bytes;
    row->compute_ns += unit->compute_ns;
    row->h2d_ns += unit->h2d_ns;
    row->d2h_ns += unit->d2h_ns;
    row->cpu_ns += unit->cpu_ns;
}

static size_t fold(const Memferry__V1__Plan *plan, bool all, struct row *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->n_units; i++) {
        const Memferry__V1__UnitPlan *unit = plan->units[i];
        size_t at = all ? count : 0;
        while (at < count && !same(&rows[at], unit)) {
            at++;
        }
        count += at == count;
        add_unit(&rows[at], unit);
    }
    return count;
}

static void numbers(struct mf_table *table, const double *ns)
{
    char text[MF_FORMAT_MAX];
    for (int i = 0; i < 4; i++) {
        mf_table_cell(table, "%s", mf_render_ms(ns[i], text));
    }
}

/* The planner's reason, after what it may not say itself. */
static void why_cell(struct mf_table *table, const struct row *row)
{
    const Memferry__V1__UnitPlan *unit = row->first;
    bool pinned = unit->pinned && strstr(unit->why, "pin") == NULL;
    bool tied = unit->tied_to[0] != '\0' && strstr(unit->why, "tied") == NULL;
    mf_table_cell(table, "%s%s%s%s%s%s", pinned ? "pinned by you; " : "", tied ? "tied to " : "",
                  tied ? unit->tied_to : "", tied && unit->why[0] != '\0' ? "; " : "", unit->why,
                  row->why_differs ? " (and others)" : "");
}

static void row_cells(struct mf_table *table, const struct row *row)
{
    const Memferry__V1__UnitPlan *unit = row->first;
    char text[MF_LIBRARY_JSON_ENUM_MAX];
    char bytes[MF_FORMAT_MAX];
    mf_render_layers_cell(table, &row->layers);
    mf_table_cell(table, "%d", row->layers.count);
    mf_table_cell(table, "%s",
                  row->weight_bytes > 0 ? mf_format_bytes(row->weight_bytes, bytes) : "");
    mf_table_cell(table, "%s", MF_RENDER_ENUM(weight_forward, unit->forward, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(weight_backward, unit->backward, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(gradient, unit->gradient, text));
    mf_table_cell(table, "%s", MF_RENDER_ENUM(optimizer, unit->optimizer, text));
    numbers(table, (double[]){row->compute_ns, row->h2d_ns, row->d2h_ns, row->cpu_ns});
    why_cell(table, row);
}

static void sum_cells(struct mf_table *table, const char *name, const struct row *row)
{
    char bytes[MF_FORMAT_MAX];
    bool units = row->layers.count > 0;
    mf_table_cell(table, "%s", name);
    mf_table_cell(table, units ? "%d" : "", row->layers.count);
    mf_table_cell(table, "%s", units ? mf_format_bytes(row->weight_bytes, bytes) : "");
    for (int i = 0; i < 4; i++) {
        mf_table_cell(table, "%s", "");
    }
    numbers(table, (double[]){row->compute_ns, row->h2d_ns, row->d2h_ns, row->cpu_ns});
    mf_table_cell(table, "%s", "");
}

/* What the lanes do that belongs to no unit, so that the totals are those of the step. */
static void other_work(struct mf_table *table, struct row *total,
                       const Memferry__V1__Prediction *predicted)
{
    struct row other = {.compute_ns = fmax(predicted->compute_busy_ns - total->compute_ns, 0),
                        .h2d_ns = fmax(predicted->h2d_busy_ns - total->h2d_ns, 0),
                        .d2h_ns = fmax(predicted->d2h_busy_ns - total->d2h_ns, 0),
                        .cpu_ns = fmax(predicted->cpu_busy_ns - total->cpu_ns, 0)};
    total->compute_ns += other.compute_ns;
    total->h2d_ns += other.h2d_ns;
    total->d2h_ns += other.d2h_ns;
    total->cpu_ns += other.cpu_ns;
    sum_cells(table, "(attention, activations)", &other);
}

void mf_render_units(const struct mf_render *render, const Memferry__V1__Plan *plan, bool all)
{
    static const struct mf_table_column columns[] = {
        {"unit", MF_TABLE_LEFT},      {"n", MF_TABLE_RIGHT},          {"weights", MF_TABLE_RIGHT},
        {"forward", MF_TABLE_LEFT},   {"backward", MF_TABLE_LEFT},    {"gradient", MF_TABLE_LEFT},
        {"optimizer", MF_TABLE_LEFT}, {"compute ms", MF_TABLE_RIGHT}, {"h2d ms", MF_TABLE_RIGHT},
        {"d2h ms", MF_TABLE_RIGHT},   {"cpu ms", MF_TABLE_RIGHT},     {"why", MF_TABLE_LEFT},
    };
    struct row *rows = calloc(plan->n_units + 1, sizeof(*rows));
    MF_ASSERT(rows != NULL);
    size_t count = fold(plan, all, rows);

    struct mf_table table;
    mf_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    struct row total = {0};
    for (size_t i = 0; i < count; i++) {
        row_cells(&table, &rows[i]);
        total.layers.count += rows[i].layers.count;
        total.weight_bytes += rows[i].weight_bytes;
        total.compute_ns += rows[i].compute_ns;
        total.h2d_ns += rows[i].h2d_ns;
        total.d2h_ns += rows[i].d2h_ns;
        total.cpu_ns += rows[i].cpu_ns;
    }
    if (plan->prediction != NULL) {
        other_work(&table, &total, plan->prediction);
    }
    sum_cells(&table, "total", &total);
    mf_render_table(render, &table, "");
    mf_table_reset(&table);
    free(rows);
}

/* The layer whose units are in `block`; NONE for a block without a numbered one. */
static int block_layer(const Memferry__V1__Plan *plan, int block)
{
    for (size_t i = 0; i < plan->n_units; i++) {
        if (plan->units[i]->block == block) {
            return mf_render_layers_number(plan->units[i]->name);
        }
    }
    return NONE;
}

void mf_render_units_activations(const struct mf_render *render, const Memferry__V1__Plan *plan)
{
    size_t count = plan->n_activations;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    MF_ASSERT(out != NULL);
    for (size_t first = 0, last; first < count; first = last + 1) {
        int layer = block_layer(plan, (int)first);
        last = first;
        while (last + 1 < count && plan->activations[last + 1] == plan->activations[first] &&
               (block_layer(plan, (int)last + 1) == NONE) == (layer == NONE)) {
            last++;
        }
        char name[MF_LIBRARY_JSON_ENUM_MAX];
        int last_layer = block_layer(plan, (int)last);
        fprintf(out, "%s%s ", first > 0 ? "; " : "",
                MF_RENDER_ENUM(activation, plan->activations[first], name));
        if (layer != NONE) {
            fprintf(out, layer == last_layer ? "layer %d" : "layers %d-%d", layer, last_layer);
        } else if (first == last && (first == 0 || last + 1 == count) && count > 2) {
            fputs(first == 0 ? "input" : "output", out);
        } else {
            fprintf(out, first == last ? "block %zu" : "blocks %zu-%zu", first, last);
        }
    }
    fclose(out);
    if (count > 0) {
        mf_render_fact(render, "activations", "%s", text);
    }
    free(text);
}
